"""The nodes of a cluster as a client knows them: which one gets the next request.

A request about a key goes to the leader of the key, as far as the routes name one that is usable; any other to the
given nodes in turn. A node that did not answer is avoided for a while. Addresses in the routes are right in the
network of the cluster: in that of the client one may belong to something else, so that it is used only after a node of
the same cluster has answered there. All methods may be called from any thread; none waits.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from isthmus.client.errors import ServerFault
from isthmus.client.names import Key
from isthmus.client.routes import Routes, parse_routes
from isthmus.client.steps import Endpoint, NoAnswer, Response

AVOID_FIRST_S: Final = 0.5
"""How long a node is avoided after it did not answer; doubled with each time in succession."""
AVOID_MAX_S: Final = 10.0

ROUTES_AFTER_COUNT: Final = 4
"""Requests about keys before the routes are read: a program that asks for less gains nothing by them."""
ROUTES_INTERVAL_S: Final = 1.0
"""Shortest time between two requests for the routes."""
ROUTES_AGE_S: Final = 60.0
"""Routes of this age are read again: an answer without change has no body."""
UNUSABLE_S: Final = 60.0
"""How long an address of the routes is left alone at which no node of the cluster answered."""


class Survey(NamedTuple):
    """A request for the routes that is due. `probes`: it is to find out whether a node of the cluster answers there."""

    node: Endpoint
    etag: str
    probes: bool


class _Failures(NamedTuple):
    times: int
    avoid_until_s: float


class Nodes:
    """`seeds`: the given nodes. With `discover` other nodes of the cluster are used, too; with `routing` requests go to
    leaders."""

    def __init__(self, seeds: Sequence[Endpoint], *, routing: bool, discover: bool) -> None:
        self._seeds = tuple(seeds)
        self._routing = routing
        self._discover = discover
        self._lock = threading.Lock()
        self._turn = 0
        self._failures: dict[Endpoint, _Failures] = {}
        self._routes: Routes | None = None
        self._etag = ""
        self._source: Endpoint | None = None
        """The node that the routes and their tag are from: another node's tag differs."""
        self._keyed_count = 0
        self._outdated = True
        self._read_at_s = float("-inf")
        self._asked_at_s = float("-inf")
        self._asking = False
        self._verified: set[Endpoint] = set()
        self._unusable: dict[Endpoint, float] = {}

    def pick(self, key: Key | None, tried: Collection[Endpoint], now_s: float) -> Endpoint:
        """The node for the next attempt; `tried` are those that failed for this request."""
        with self._lock:
            if key is not None:
                self._keyed_count += 1
                leader = self._leader(key)
                if leader is not None and leader not in tried and self._usable(leader, now_s):
                    return leader
            usable = [node for node in self._known() if self._usable(node, now_s)]
            fresh = [node for node in usable if node not in tried] or usable
            if fresh:
                self._turn += 1
                return fresh[self._turn % len(fresh)]
            # All are avoided: the one that is so for the shortest time.
            rest = [node for node in self._known() if node not in tried] or self._known()
            return min(rest, key=lambda node: self._failures[node].avoid_until_s)

    def others(self, tried: Collection[Endpoint]) -> bool:
        """True when there is a node that was not tried."""
        with self._lock:
            return any(node not in tried for node in self._known())

    def answered(self, node: Endpoint) -> None:
        """A node has answered, whatever."""
        if node in self._failures:
            with self._lock:
                self._failures.pop(node, None)

    def failed(self, node: Endpoint, now_s: float) -> None:
        """A node did not answer."""
        with self._lock:
            times = self._failures.get(node, _Failures(0, 0.0)).times + 1
            avoid_s = min(AVOID_MAX_S, AVOID_FIRST_S * 2 ** min(times - 1, 16))
            self._failures[node] = _Failures(times, now_s + avoid_s)
            self._outdated = True

    def learn(self, key: Key, address: str) -> None:
        """An answer about a key named its leader."""
        with self._lock:
            if self._routes is not None and self._routes.learn(key, address):
                self._outdated = True

    def refused(self) -> None:
        """A node refused a request for now: leaders may have changed."""
        self._outdated = True

    def leader(self, key: Key) -> Endpoint | None:
        """The leader of a key, for requests about several keys at once."""
        with self._lock:
            return self._leader(key)

    def survey(self, key: Key | None, now_s: float) -> Survey | None:
        """A request for the routes that the caller is to send, and to report by `surveyed` or `survey_ended`."""
        if not self._routing:
            return None
        with self._lock:
            if self._asking or self._keyed_count < ROUTES_AFTER_COUNT:
                return None
            found = self._due(key, now_s)
            self._asking = found is not None
            return found

    def surveyed(self, survey: Survey, answer: Response | NoAnswer, now_s: float) -> None:
        """The answer to a request for the routes."""
        with self._lock:
            self._asking = False
            if isinstance(answer, Response) and answer.status == 200:
                self._take(survey, answer, now_s)
            elif survey.probes:
                self._unusable[survey.node] = now_s + UNUSABLE_S
            elif isinstance(answer, Response):
                self._outdated, self._read_at_s = False, now_s  # 304, or a refusal that will be the same for a while
                self._routing = answer.status != 404  # 404: a version before routes
        if isinstance(answer, NoAnswer) and not survey.probes:
            self.failed(survey.node, now_s)

    def survey_ended(self) -> None:
        """The request for the routes was given up."""
        with self._lock:
            self._asking = False

    def _due(self, key: Key | None, now_s: float) -> Survey | None:
        probe = self._to_probe(key, now_s)
        if probe is not None:
            return Survey(probe, "", True)
        if not self._outdated and now_s - self._read_at_s < ROUTES_AGE_S:
            return None
        if now_s - self._asked_at_s < ROUTES_INTERVAL_S:
            return None
        usable = [node for node in self._known() if self._usable(node, now_s)]
        if not usable:
            return None
        self._asked_at_s = now_s
        node = self._source if self._source in usable else usable[self._turn % len(usable)]
        return Survey(node, self._etag if node == self._source else "", False)

    def _to_probe(self, key: Key | None, now_s: float) -> Endpoint | None:
        """An address of the routes that is needed, and not known to be a node's."""
        if self._routes is None or not self._discover:
            return None
        wanted: list[Endpoint] = []
        address = None if key is None else self._routes.leader(key)
        if address is not None:
            wanted += self._endpoint(address)
        if not any(self._usable(node, now_s) for node in self._known()):
            wanted += [node for address in self._routes.nodes for node in self._endpoint(address)]
        known = self._known()
        for node in wanted:
            if node not in known and self._unusable.get(node, now_s) <= now_s:
                return node
        return None

    def _take(self, survey: Survey, answer: Response, now_s: float) -> None:
        try:
            routes = parse_routes(answer.body)
        except ServerFault:
            routes = None
        if routes is None and not survey.probes:
            self._routing = False  # of another version
            return
        if routes is None:
            self._unusable[survey.node] = now_s + UNUSABLE_S
            return
        if survey.probes:
            if self._routes is None or routes.cluster_uuid != self._routes.cluster_uuid:
                self._unusable[survey.node] = now_s + UNUSABLE_S
                return
            self._verified.add(survey.node)
            self._unusable.pop(survey.node, None)
            if routes.version <= self._routes.version:
                return
        elif self._routes is not None and routes.cluster_uuid != self._routes.cluster_uuid:
            self._verified.clear()
        self._routes, self._etag, self._source = routes, answer.headers.get("etag", ""), survey.node
        self._outdated, self._read_at_s = False, now_s
        live = {node for address in routes.nodes for node in self._endpoint(address)}
        self._verified &= live
        known = live | set(self._seeds)
        self._unusable = {node: until for node, until in self._unusable.items() if node in known}
        self._failures = {node: failures for node, failures in self._failures.items() if node in known}

    def _known(self) -> list[Endpoint]:
        return [*self._seeds, *sorted(self._verified - set(self._seeds))]

    def _usable(self, node: Endpoint, now_s: float) -> bool:
        failures = self._failures.get(node)
        return failures is None or failures.avoid_until_s <= now_s

    def _leader(self, key: Key) -> Endpoint | None:
        address = None if self._routes is None else self._routes.leader(key)
        for node in () if address is None else self._endpoint(address):
            if node in self._seeds or node in self._verified:
                return node
        return None

    def _endpoint(self, address: str) -> list[Endpoint]:
        """The endpoint of an address in the routes; none if it is not HOST:PORT."""
        try:
            parts = urlsplit(f"//{address}")
            return (
                [Endpoint(self._seeds[0].scheme, parts.hostname, parts.port)] if parts.hostname and parts.port else []
            )
        except ValueError:
            return []

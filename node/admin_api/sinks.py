"""The sink in the admin API: links, suspensions, limits and dead letters.

Passes changes on to `sink.service` and shows its state; for the whole cluster, the answers of every node
(`node.services.sink_query`). docs/sinks.md explains the terms.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from isthmus.config.relations import is_own
from isthmus.config.settings import PeerSettings
from isthmus.config.validation import check_name, check_peer_url
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.admin_api.history import ALL, GONE
from isthmus.node.http.answer_limits import RETRY_TIMEOUT_MS
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.requests import AuditedRequest, right
from isthmus.node.services.cluster_status import with_gone
from isthmus.node.services.container import NodeServices
from isthmus.node.services.dead_letter_query import (
    DROPPED,
    LETTER_PAGE,
    PAGE_MAX,
    RETRIED,
    DropLetters,
    ListLetters,
    RetryLetters,
)
from isthmus.node.services.explain_key import dot_shown
from isthmus.node.services.link_check import Here, judged, look
from isthmus.node.services.sink_query import SINK
from isthmus.repl.model.vclock import decode_clock
from isthmus.sink.conflicts import conflict_as_dict
from isthmus.sink.limits import SinkLimits
from isthmus.sink.scheduler import LinkName
from isthmus.sink.service import WORKERS_MAX

RATE_MAX: Final = 1 << 40
"""Largest rate; above any disk's."""

CONFLICTS: Final = 100
"""Conflicts in an answer by default."""

CONFLICTS_MAX: Final = 10_000
"""Most conflicts in an answer: about 10 MB of JSON."""

IDS_MAX: Final = 10_000
"""Most dead letters in one request."""

LETTERS: Final = 100
"""Dead letters of each node in an answer about all nodes, by default."""

LETTER_ID_MAX: Final = (1 << 63) - 1
"""The largest number that SQLite gives."""

DROP_TIMEOUT_MS: Final = 10_000
"""How long another node may take to drop letters: one commit on its disk, which a backup may lock for 5 s."""


Workers = Annotated[int, msgspec.Meta(ge=1, le=WORKERS_MAX)]
Rate = Annotated[int, msgspec.Meta(ge=0, le=RATE_MAX, description="0: no limit.")]
OneNode = Annotated[str, msgspec.Meta(description="Only on this node; null: on all.")]


class SuspendSinkRequest(AuditedRequest, frozen=True, kw_only=True):
    """Suspend or resume fetches of a queue, from a peer, or all."""

    queue: str | None = None
    peer: str | None = None
    node: OneNode | None = None


class SinkLimitsRequest(AuditedRequest, frozen=True, kw_only=True):
    """Limits of a node's sink, or the workers of one queue."""

    queue: Annotated[str, msgspec.Meta(description="The workers of this queue alone.")] | None = None
    node: OneNode | None = None
    workers: Workers | None = None
    per_peer: Annotated[int, msgspec.Meta(ge=0, le=WORKERS_MAX)] | None = None
    bytes_per_second: Rate | None = None
    objects_per_second: Rate | None = None
    forget: Annotated[bool, msgspec.Meta(description="The named limits are the config's again.")] = False


class RemoveSinkPeerRequest(AuditedRequest, frozen=True, kw_only=True):
    """A queue of another cluster, as one of its nodes serves it."""

    queue: str | None = None
    url: str | None = None


class SinkPeerRequest(RemoveSinkPeerRequest, frozen=True, kw_only=True):
    """A queue of another cluster, and the credentials for it."""

    cluster: str | None = None
    token_file: Annotated[str, msgspec.Meta(description="An absolute path, the same on every node.")] | None = None


LetterId = Annotated[int, msgspec.Meta(ge=1, le=LETTER_ID_MAX)]


class DeadLettersRequest(AuditedRequest, frozen=True, kw_only=True):
    """Dead letters of one node: those named, or all."""

    ids: (
        Annotated[
            list[LetterId],
            msgspec.Meta(max_length=IDS_MAX),
            right(f"a list of at most {IDS_MAX} numbers of dead letters"),
        ]
        | None
    ) = None
    node: (
        Annotated[
            str, msgspec.Meta(description="The node that keeps them, and numbers them; null: the one that is asked.")
        ]
        | None
    ) = None


class SinkAdmin:
    """Routes over the sink."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/sink", self.sink)
        router.add("GET", "/admin/sink/nodes", self.nodes)
        router.add("POST", "/admin/sink/suspend", BodyHandler(SuspendSinkRequest, self.suspend))
        router.add("POST", "/admin/sink/resume", BodyHandler(SuspendSinkRequest, self.resume))
        router.add("POST", "/admin/sink/limits", BodyHandler(SinkLimitsRequest, self.limits))
        router.add("POST", "/admin/sink/check", BodyHandler(SinkPeerRequest, self.check))
        router.add("POST", "/admin/sink/peers/add", BodyHandler(SinkPeerRequest, self.add_peer))
        router.add("POST", "/admin/sink/peers/remove", BodyHandler(RemoveSinkPeerRequest, self.remove_peer))
        router.add("GET", "/admin/sink/conflicts", self.conflicts)
        router.add("GET", "/admin/sink/dead-letters", self.letters)
        router.add("GET", "/admin/sink/dead-letters/nodes", self.letters_of_nodes)
        router.add("POST", "/admin/sink/dead-letters/retry", BodyHandler(DeadLettersRequest, self.retry))
        router.add("POST", "/admin/sink/dead-letters/drop", BodyHandler(DeadLettersRequest, self.drop))

    async def sink(self, _request: Request) -> Reply:
        """Every (queue, peer) that this node fetches from, and the state of its sink."""
        sink = self._services.sink
        return json_reply({**sink.overview(), "sinks": sink.listing()})

    async def nodes(self, _request: Request) -> Reply:
        """The sink of every node; null for a node that does not answer, or is gone."""
        return json_reply(await self.nodes_document())

    async def nodes_document(self) -> dict[str, Any]:
        """The answer to `GET /admin/sink/nodes`."""
        answers = await self._services.query.ask(SINK, None, self._services.membership.live_nodes())
        found = with_gone(self._services.controller.records, answers.by_node)
        unknown = {**answers.unknown, **dict.fromkeys(sorted(found.keys() - answers.by_node.keys()), GONE)}
        return {"nodes": [{"node": node, "sink": what} for node, what in found.items()], "unknown": unknown}

    async def suspend(self, request: Request, body: SuspendSinkRequest) -> Reply:
        """Start no new fetch of a queue, a peer, or all, on one node or on all."""
        with request.changing(self._state):
            await self._services.sink.suspend(body.queue, body.peer, acting_user(body.by), body.reason or "", body.node)
        return await self.sink(request)

    async def resume(self, request: Request, body: SuspendSinkRequest) -> Reply:
        """Resume fetches."""
        with request.changing(self._state):
            await self._services.sink.resume(body.queue, body.peer, body.node)
        return await self.sink(request)

    async def limits(self, request: Request, body: SinkLimitsRequest) -> Reply:
        """Set workers, workers per peer and rates, on one node or on all; with "forget" the named limits (with any
        number) are the config's again."""
        sink, by, reason = self._services.sink, acting_user(body.by), body.reason or ""
        if body.queue is not None:
            if not (body.per_peer is body.bytes_per_second is body.objects_per_second is None):
                raise RequestRefused(
                    400, "bad-json", "of one queue the workers alone can be set: the others are the node's"
                )
            if body.workers is None and not body.forget:
                raise RequestRefused(400, "bad-json", f"give workers, from 1 to {WORKERS_MAX}, or forget, true")
            workers = None if body.forget else body.workers
            with request.changing(self._state):
                await sink.set_queue_workers(body.queue, body.node, workers, by, reason)
            return await self.sink(request)
        limits = SinkLimits(
            workers=body.workers,
            peer_limit=body.per_peer,
            bytes_per_second=body.bytes_per_second,
            objects_per_second=body.objects_per_second,
            by=by,
            at_ms=self._services.time.wall_ms(),
            reason=reason,
        )
        if not body.forget and (limits.peer_limit or 0) > (limits.workers or WORKERS_MAX):
            raise RequestRefused(400, "bad-json", f"per_peer is at most workers, {limits.workers}: more never bind")
        with request.changing(self._state):
            await sink.set_limits(limits, body.node, body.forget)
        answer: dict[str, Any] = {**sink.overview(), "sinks": sink.listing()}
        rates = (("bytes", body.bytes_per_second), ("objects", body.objects_per_second))
        lifted = [word for word, rate in rates if rate == 0]
        if len(lifted) == 1:  # with both at 0 no limit is what was meant
            answer["notes"] = [f"0 is no limit: fetches are not limited in {lifted[0]}; to stop them, suspend the sink"]
        return json_reply(answer)

    async def add_peer(self, request: Request, body: SinkPeerRequest) -> Reply:
        """Fetch from a queue of another cluster that no file lists."""
        name, peer = _peer_of(body)
        if is_own(name.peer, self._services.settings.listen.http):
            raise RequestRefused(
                400, "bad-input", f"{name.peer} is this node itself; a peer is a node of another cluster"
            )
        with request.changing(self._state):
            await self._services.sink.add_peer(peer, acting_user(body.by), body.reason or "")
        return await self.sink(request)

    async def check(self, _request: Request, body: SinkPeerRequest) -> Reply:
        """Check whether a link would work, as this node sees it; nothing is fetched or changed."""
        name, peer = _peer_of(body)
        node = self._services
        access = node.credentials.access_to(peer)
        found = await asyncio.to_thread(look, name.peer, name.queue, access, node.time.wall_ms)
        here = Here(
            node.cluster_uuid.hex(),
            node.settings.node.cluster,
            {record.bucket_type for record in node.controller.records.values()},
            {kind.decode(errors="backslashreplace"): one.hex() for kind, one in node.property_cache.digests().items()},
            node.property_cache.scope_digests(),
            any((row["queue"], row["peer"]) == name for row in node.sink.listing()),
        )
        rows = judged(name.peer, name.queue, peer.cluster, found, here)
        return json_reply({"node": node.settings.node.name, "queue": name.queue, "url": name.peer, "checks": rows})

    async def remove_peer(self, request: Request, body: RemoveSinkPeerRequest) -> Reply:
        """Stop fetching from a queue, though a file may list it."""
        name = _link_of(body)
        with request.changing(self._state):
            await self._services.sink.remove_peer(name, acting_user(body.by), body.reason or "")
        return await self.sink(request)

    async def conflicts(self, request: Request) -> Reply:
        """The newest concurrent changes that this node's sink fetched, newest first: ?count=N."""
        found = await self._services.sink.conflicts(request.number("count", CONFLICTS, 1, CONFLICTS_MAX))
        rows = [
            {**conflict_as_dict(one), "ours": _clock(one.ours), "theirs": _clock(one.theirs)}
            for one in found["conflicts"]
        ]
        return json_reply({"node": self._services.settings.node.name, **found, "conflicts": rows})

    async def letters(self, _request: Request) -> Reply:
        """The changes that this node's sink refused for good, the oldest first, with the reasons."""
        return json_reply({"dead_letters": await self._services.sink.dead_letters()})

    async def letters_of_nodes(self, request: Request) -> Reply:
        """The dead letters of all nodes: ?node=NAME&limit=N&after=ID; null for a node that does not answer, or is
        gone."""
        limit = request.number("limit", LETTERS, 1, PAGE_MAX)
        after = request.number("after", 0, 0, LETTER_ID_MAX)
        wanted = request.query.get("node", ALL)
        if after and wanted == ALL:
            raise RequestRefused(400, "bad-query", "after=ID needs node=NAME: each node has numbers of its own")
        membership = self._services.membership
        nodes = membership.known_nodes() if wanted == ALL else {self._keeper(wanted)}
        live = nodes & membership.live_nodes()
        answers = await self._services.query.ask(LETTER_PAGE, ListLetters(limit, after), live, own_may_fail=True)
        found = {**dict.fromkeys(nodes), **answers.by_node}
        nothing = {"dead_letters": None, "more": None, "kept": None, "given_up": None}
        return json_reply(
            {
                "nodes": [
                    {"node": node, **(nothing if page is None else msgspec.to_builtins(page))}
                    for node, page in sorted(found.items())
                ],
                "unknown": {**answers.unknown, **dict.fromkeys(sorted(nodes - live), GONE)},
                "at_ms": self._services.time.wall_ms(),
            }
        )

    async def retry(self, request: Request, body: DeadLettersRequest) -> Reply:
        """Push dead letters of a node again: those named, or all."""
        retried = await self._services.query.ask_one(
            RETRIED, RetryLetters(body.ids), self._keeper(body.node), timeout_ms=RETRY_TIMEOUT_MS
        )
        request.changed(None, {"retried": retried})
        return json_reply({"retried": retried})

    async def drop(self, request: Request, body: DeadLettersRequest) -> Reply:
        """Drop dead letters of a node: those named, or all."""
        dropped = await self._services.query.ask_one(
            DROPPED, DropLetters(body.ids), self._keeper(body.node), timeout_ms=DROP_TIMEOUT_MS
        )
        request.changed(None, {"dropped": dropped})
        return json_reply({"dropped": dropped})

    def _keeper(self, node: str | None) -> str:
        """The node that keeps letters; None: this one. Raises RequestRefused."""
        known = self._services.membership.known_nodes()
        if node is not None and node not in known:
            there = ", ".join(sorted(known))
            raise RequestRefused(404, "unknown-node", f"there is no node {node[:64]!r}; there are {there}")
        return node or self._services.settings.node.name

    def _state(self) -> dict[str, Any]:
        """The state of this node's sink that operators change, for the audit log."""
        overview = self._services.sink.overview()
        workers, rates = overview["workers"], overview["throttle"]["configured"]
        keys = ("suspensions", "peers_set", "queue_workers_set", "limits_set")
        limits = {"workers": workers["count"], "per_peer": workers["peer_limit"], **rates}
        return {**{key: overview[key] for key in keys}, "limits": limits}


def _link_of(body: RemoveSinkPeerRequest) -> LinkName:
    """The queue and the peer of a body. Raises RequestRefused."""
    try:
        return LinkName(check_name(body.queue or ""), check_peer_url(body.url or ""))
    except ValueError as error:
        raise RequestRefused(400, "bad-json", f"name the link: queue and url ({error})") from None


def _peer_of(body: SinkPeerRequest) -> tuple[LinkName, PeerSettings]:
    """The link of a body, with its settings. Raises RequestRefused."""
    name = _link_of(body)
    try:
        cluster = check_name(body.cluster) if body.cluster else ""
        token_file = None if body.token_file is None else Path(body.token_file)
    except ValueError as error:
        raise RequestRefused(400, "bad-json", str(error)) from None
    if token_file is not None and not token_file.is_absolute():
        raise RequestRefused(
            400, "bad-json", f"token_file {token_file}: an absolute path is right, the same on every node"
        )
    return name, PeerSettings(name.peer, name.queue, cluster, token_file)


def _clock(encoded: bytes) -> dict[str, Any]:
    """A clock as X-Riak-Vclock has it, and the newest write of each actor in it."""
    dots = [dot_shown(actor, counter) for actor, counter, _ in decode_clock(encoded)]
    return {"clock": base64.b64encode(encoded).decode(), "seen": dots}

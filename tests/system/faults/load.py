"""Clients that read and write a few keys at any number of nodes, and record the answers and their times.

Each client is a thread with a connection to each node. It writes values that no other client writes, mostly with the
clock of its last answer for the key. A write whose outcome is unknown is tried again with the same request id, context
and value, at any node, until it is known or the client's patience ends. `tests.system.faults.linearizability` checks
the history.
"""

from __future__ import annotations

import email.parser
import email.policy
import http.client
import itertools
import random
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.system.faults.linearizability import Kind, Operation, Outcome

CONNECT_TIMEOUT_S: Final = 1.0
REQUEST_TIMEOUT_S: Final = 5.0
"""Longer than a node needs to find out by itself that a write hangs, shorter than an act."""

PATIENCE: Final = 12
"""Tries of one write; then its outcome stays unknown for ever, and the next value is written."""

PAUSE_S: Final = 0.1
"""Pause between two failed attempts."""

BLIND: Final = 0.03
"""Share of writes without a clock: each makes a sibling."""

BUCKET: Final = "history"
PADDING: Final = " " * 200
"""Padding behind each value, so that objects are not all header."""


class NodeAddress(NamedTuple):
    """Addresses of one node for its clients."""

    name: str
    host: str
    port: int


class Reply(NamedTuple):
    """The response of a node."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def reason(self) -> str:
        """Status and code, for counting."""
        return f"{self.status} {self.headers.get('X-Isthmus-Reason', '')}".strip()


class NotSent(Exception):
    """No connection: the request cannot have taken effect."""


class Broken(Exception):
    """The connection broke, or nothing came in time, after the request was sent or while it was."""


class Connection:
    """One keep-alive connection to one node, made when needed."""

    def __init__(self, place: NodeAddress, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self.place = place
        self._timeout_s = timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def request(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None) -> Reply:
        """Raises NotSent, Broken."""
        if self._connection is None:
            fresh = http.client.HTTPConnection(self.place.host, self.place.port, CONNECT_TIMEOUT_S)
            try:
                fresh.connect()
            except OSError as error:
                fresh.close()
                raise NotSent(str(error)) from error
            assert fresh.sock is not None
            fresh.sock.settimeout(self._timeout_s)
            fresh.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection = fresh
        try:
            self._connection.request(method, path, body, headers)
            answer = self._connection.getresponse()
            reply = Reply(answer.status, answer.headers, answer.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Broken(f"{type(error).__name__} {error}") from error
        if answer.will_close:
            self.close()
        return reply

    def close(self) -> None:
        """Close the connection; the next request connects again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def values_of(reply: Reply) -> tuple[str, ...]:
    """The values in the answer to a GET: one, the siblings of a 300, or none. Raises ValueError for other answers."""
    if reply.status == 404:
        return ()
    if reply.status == 200:
        return (reply.body.decode().strip(),)
    if reply.status != 300:
        raise ValueError(f"no answer to a GET: {reply.reason}")
    head = f"Content-Type: {reply.headers['Content-Type']}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + reply.body)
    return tuple(part.get_payload(decode=True).decode().strip() for part in message.iter_parts())  # type: ignore[union-attr]


@dataclass
class History:
    """The operations recorded by all clients. Lists only grow, and appending is atomic."""

    keys: dict[str, list[Operation]] = field(default_factory=dict)
    acknowledged: list[tuple[int, str]] = field(default_factory=list)
    """(when, key) of each acknowledged write."""
    counts: Counter[str] = field(default_factory=Counter)
    """Answers by outcome; each attempt counts."""
    surprises: list[str] = field(default_factory=list)
    """Answers that no fault explains: a 400, a 500."""

    def longest_gap_s(self, began_ns: int, ended_ns: int, key: str | None = None) -> float:
        """The longest time in which no write, of `key` if it is given, was acknowledged."""
        times = [at for at, of in self.acknowledged if began_ns <= at <= ended_ns and key in (None, of)]
        edges = [began_ns, *sorted(times), ended_ns]
        return max(b - a for a, b in itertools.pairwise(edges)) / 1e9


class Client(threading.Thread):
    """One client; runs until stopped. `history` must have a list for each of `keys`."""

    def __init__(
        self,
        name: str,
        places: Sequence[NodeAddress],
        keys: Sequence[str],
        history: History,
        chance: random.Random,
        pause_s: float = 0.0,
        writes: float = 0.5,
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._places = {place.name: Connection(place) for place in places}
        self._names = {f"{place.host}:{place.port}": place.name for place in places}
        self._keys = keys
        self._history = history
        self._chance = chance
        self._pause_s = pause_s
        self._writes = writes
        self._clocks: dict[str, tuple[str, Operation]] = {}
        self._at = chance.choice(list(self._places))
        self._stopping = threading.Event()
        self._count = 0

    def stop(self) -> None:
        """Begin nothing new."""
        self._stopping.set()

    def run(self) -> None:
        """See `threading.Thread`."""
        try:
            while not self._stopping.is_set():
                key = self._chance.choice(self._keys)
                if self._chance.random() < self._writes:
                    self._write(key)
                else:
                    self.read(key)
                if self._pause_s:
                    self._stopping.wait(self._chance.uniform(0, 2 * self._pause_s))
        except Exception as error:  # noqa: BLE001 - a client that dies silently would be a quiet cluster
            self._history.surprises.append(f"client {self.name} died: {error!r}")
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections."""
        for connection in self._places.values():
            connection.close()

    def read(self, key: str) -> bool:
        """One GET; False when no node answered it."""
        operation = Operation(Kind.READ, self.name, time.monotonic_ns(), 0)
        try:
            reply = self._places[self._at].request("GET", path_of(key), {"Accept": "multipart/mixed"})
        except (NotSent, Broken) as error:
            self._failed("GET", type(error).__name__)
            return False
        operation.answered_ns = time.monotonic_ns()
        operation.where = self._at
        if reply.status not in (200, 300, 404):
            self._refused("GET", reply)
            return False
        self._history.counts[f"GET {reply.status}"] += 1
        operation.values = values_of(reply)
        self._history.keys[key].append(operation)
        clock = reply.headers.get("X-Riak-Vclock")
        if clock is not None:
            self._clocks[key] = clock, operation
        return True

    def _write(self, key: str) -> None:
        self._count += 1
        value = f"{key}-{self.name}-{self._count}"
        clock, seen = self._clocks.get(key, ("", None))
        if not clock or self._chance.random() < BLIND:
            clock, seen = "", None
        operation = Operation(Kind.WRITE, self.name, time.monotonic_ns(), 0, Outcome.UNKNOWN, value, seen)
        reply, sure = self._put(key, value, clock, operation)
        operation.answered_ns = time.monotonic_ns()
        if reply is not None and reply.status == 204:
            operation.outcome = Outcome.OK
            self._history.acknowledged.append((operation.answered_ns, key))
            if sure:
                self._clocks[key] = reply.headers["X-Riak-Vclock"], operation
            else:
                # A later attempt may be answered with a newer clock than its effect had: read before writing.
                self._clocks.pop(key, None)
        elif sure:
            operation.outcome = Outcome.REFUSED
        self._history.keys[key].append(operation)

    def _put(self, key: str, value: str, clock: str, operation: Operation) -> tuple[Reply | None, bool]:
        """(the answer that settled it, or None; whether no try before it may have taken effect)."""
        headers = {
            "Content-Type": "text/plain",
            "X-Isthmus-Request-Id": uuid.UUID(int=self._chance.getrandbits(128)).hex,
        }
        if clock:
            headers["X-Riak-Vclock"] = clock
        body = (value + PADDING).encode()
        sure = True
        reply: Reply | None = None
        for _ in range(PATIENCE):
            operation.where = f"{operation.where} {self._at}".strip()
            try:
                reply = self._places[self._at].request("PUT", path_of(key), headers, body)
            except NotSent:
                self._failed("PUT", "not sent")
            except Broken:
                sure = False
                self._failed("PUT", "broken")
            else:
                if reply.status == 204:
                    self._history.counts["PUT 204"] += 1
                    return reply, sure
                if reply.status >= 500 and reply.status != 503:
                    sure = False
                self._refused("PUT", reply)
                if reply.status < 500:
                    return reply, sure
            if self._stopping.is_set():
                break
        return None, sure

    def _failed(self, method: str, what: str) -> None:
        self._history.counts[f"{method} {what}"] += 1
        self._at = self._chance.choice(list(self._places))
        self._stopping.wait(self._chance.uniform(0, 2 * PAUSE_S))

    def _refused(self, method: str, reply: Reply) -> None:
        self._history.counts[f"{method} {reply.reason}"] += 1
        if reply.status not in (422, 503, 504):
            self._history.surprises.append(f"{self.name} {method} at {self._at}: {reply.reason} {reply.body[:200]!r}")
        leader = self._names.get(reply.headers.get("X-Isthmus-Leader", ""))
        self._at = leader or self._chance.choice(list(self._places))
        self._stopping.wait(self._chance.uniform(0, 2 * PAUSE_S))


def path_of(key: str) -> str:
    """The HTTP path of a key."""
    return f"/types/default/buckets/{BUCKET}/keys/{key}"


class Load:
    """Some clients on some keys, from `start` to `stop`."""

    def __init__(
        self,
        places: Sequence[NodeAddress],
        keys: Sequence[str],
        history: History,
        chance: random.Random,
        *,
        clients: int = 6,
        pause_s: float = 0.01,
    ) -> None:
        self._places = places
        self._keys = list(keys)
        self.history = history
        for key in keys:
            history.keys.setdefault(key, [])
        self._clients = [
            Client(f"{keys[0]}c{number}", places, self._keys, history, random.Random(chance.getrandbits(64)), pause_s)
            for number in range(clients)
        ]
        self.began_ns = 0
        self.ended_ns = 0

    def start(self) -> None:
        """Start the clients."""
        self.began_ns = time.monotonic_ns()
        for client in self._clients:
            client.start()

    def stop(self) -> None:
        """Stop the clients; returns when each has finished its current operation: within one request's time-out."""
        for client in self._clients:
            client.stop()
        for client in self._clients:
            client.join()
        self.ended_ns = time.monotonic_ns()


def read_all(
    places: Sequence[NodeAddress], keys: Sequence[str], history: History, chance: random.Random, timeout_s: float
) -> None:
    """Read each key once at each node, again until it answers. Raises AssertionError when one does not in time."""
    deadline = time.monotonic() + timeout_s
    for place in places:
        client = Client(f"last at {place.name}", [place], keys, history, chance)
        try:
            for key in keys:
                while not client.read(key):
                    assert time.monotonic() < deadline, (
                        f"{place.name} does not answer for {key}: {dict(history.counts)}"
                    )
        finally:
            client.close()

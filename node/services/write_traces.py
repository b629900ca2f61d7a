"""Traces of clients' writes, and the way of a trace to the node that leads the key.

The decision whether a request is traced is made here, once: by the client's header `traceparent`, or by chance. The
node that leads the key is told by a request of its own (METHOD), which goes ahead of the write on the same connection;
a node of an older version refuses the unknown method, and the trace lacks what happens there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Any, Final, Protocol

import msgspec

from isthmus.config.settings import TracesSettings
from isthmus.node.http.responses import Headers
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.requests import WriteResult
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.traces import (
    TRACEPARENT_BYTES,
    ChangeTraces,
    KeyNames,
    Span,
    SpanKind,
    TraceContext,
    Tracer,
    key_attributes,
    parse_traceparent,
)
from isthmus.repl.unforeseen import observes

METHOD: Final = "traced-write"

TIMEOUT_MS: Final = 2_000
"""How long the leader may take to answer; nothing waits for it."""

HEADER: Final = b"traceparent"

HEADER_BYTES_MAX: Final = 512
"""Longest header `traceparent`; a longer one is ignored. Later versions of it may be longer than ours."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_trace_requests_total": Family(
        "Requests of clients that were traced, by who decided it: `client` or `sampling`.",
        "requests",
        "traces",
        ("by",),
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


class KeyLeaders(Protocol):
    """The leader of each key: `repl.coordinator.routing.RoutingTable`."""

    def partition_of(self, bucket_type: bytes, hash64: int) -> int:
        """The partition of a key. Raises IsthmusError."""

    def leader(self, partition: int) -> str | None:
        """The node that leads it; None for none."""


class RequestSender(Protocol):
    """The connections with the other nodes (`repl.transport.links.ClusterLinks`)."""

    def send_request(
        self, node: str, method: str, body: bytes, timeout_ms: int, answered: Callable[[bytes | IsthmusError], None]
    ) -> None:
        """Send a request. Raises IsthmusError."""


class _Note(msgspec.Struct, frozen=True, array_like=True):
    """Body of the request to the leader: a key, a trace context, and whether a write follows or came to nothing."""

    bucket_type: bytes
    bucket: bytes
    key: bytes
    context: str
    follows: bool


_decode: Final = msgspec.msgpack.Decoder(_Note).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class LeaderWatch:
    """Has a write followed by the node that leads its key. Implements `repl.traces.WriteWatch`."""

    def __init__(self, node: str, changes: ChangeTraces, routes: KeyLeaders, links: RequestSender) -> None:
        self._node = node
        self._changes = changes
        self._routes = routes
        self._links = links

    @observes("traces.failed")
    def watch(self, key: KeyNames, parent: TraceContext) -> None:
        """See WriteWatch."""
        if self._led_here(key, parent, follows=True):
            self._changes.watch(key, parent)

    @observes("traces.failed")
    def unwatch(self, key: KeyNames, parent: TraceContext) -> None:
        """See WriteWatch."""
        if self._led_here(key, parent, follows=False):
            self._changes.unwatch(key, parent)

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """The handler of other nodes' notes."""
        return {METHOD: self._noted}

    def _led_here(self, key: KeyNames, parent: TraceContext, *, follows: bool) -> bool:
        """True if this node leads the key; otherwise the leader is told, if it can be."""
        with suppress(IsthmusError):  # nobody leads it now, or it cannot be reached: the trace lacks the commit
            leader = self._routes.leader(self._routes.partition_of(key[0], key_hash(key[1], key[2])))
            if leader == self._node:
                return True
            if leader is not None:
                note = _encode(_Note(*key, parent.traceparent(), follows))
                self._links.send_request(leader, METHOD, note, TIMEOUT_MS, _ignore)
        return False

    async def _noted(self, _node: str, body: bytes) -> bytes:
        try:
            note = _decode(body)
        except (msgspec.DecodeError, ValueError) as error:
            raise CodecError(f"{METHOD}: {error}") from error
        context = parse_traceparent(note.context[:TRACEPARENT_BYTES].encode())
        if context is None:
            raise CodecError(f"{METHOD}: no context")
        key = (note.bucket_type, note.bucket, note.key)
        if note.follows:
            self._changes.watch(key, context)
        else:
            self._changes.unwatch(key, context)
        return b""


def _ignore(_answer: bytes | IsthmusError) -> None:
    """A leader that does not know the method follows nothing."""


class RequestSpan:
    """The span of a client's request."""

    __slots__ = ("_key", "_span", "_watch")

    def __init__(self, span: Span, key: KeyNames, watch: LeaderWatch) -> None:
        self._span = span
        self._key = key
        self._watch = watch
        watch.watch(key, span.context)

    @observes("traces.failed")
    def end(self, error: str = "") -> None:
        """It ends now; `error`: the reason why it failed."""
        if error:
            self._watch.unwatch(self._key, self._span.context)
        self._span.set("isthmus.outcome", error or "written")
        self._span.end(error)


class WriteTraces:
    """Begins traces of clients' writes. Belongs to the event loop."""

    def __init__(self, settings: TracesSettings, tracer: Tracer, watch: LeaderWatch, random: Random) -> None:
        self._ratio = settings.sample_per_million / 1_000_000
        self._from_clients = settings.from_clients
        self._tracer = tracer
        self._watch = watch
        self._random = random
        self._open: dict[asyncio.Future[list[object]], RequestSpan] = {}
        """Traced PUTs that were started, by the future of their result."""
        self._counts = {"client": 0, "sampling": 0}

    @observes("traces.failed")
    def begin(self, method: str, key: Key, headers: Headers) -> RequestSpan | None:
        """See RequestTraces."""
        parent = None
        if self._from_clients:
            for name, value in headers:
                if name == HEADER:
                    parent = parse_traceparent(value[:HEADER_BYTES_MAX])
                    break
        if parent is None:
            if self._random.random() >= self._ratio:
                return None
        elif not parent.sampled:
            return None
        self._counts["sampling" if parent is None else "client"] += 1
        attributes = {"http.request.method": method, **key_attributes(key)}
        return RequestSpan(self._tracer.span(f"{method} object", parent, SpanKind.SERVER, attributes), key, self._watch)

    def started(self, key: Key, headers: Headers, results: asyncio.Future[list[object]]) -> None:
        """See RequestTraces."""
        span = self.begin("PUT", key, headers)
        if span is not None:
            self._open[results] = span
            results.add_done_callback(self._done)

    def settled(self, results: asyncio.Future[list[object]], error: str) -> None:
        """See RequestTraces."""
        span = self._open.pop(results, None)
        if span is not None:
            span.end(error)

    def samples(self) -> Iterator[Sample]:
        """For Prometheus."""
        for by, count in self._counts.items():
            yield "isthmus_trace_requests_total", {"by": by}, count

    @observes("traces.failed")
    def _done(self, results: asyncio.Future[Any]) -> None:
        """The results are there: usual ones end the span; for others `settled` does."""
        if not results.cancelled() and results.exception() is None:
            (written,) = results.result()
            if not isinstance(written, WriteResult) or written.repeated or written.leader:
                return
            self.settled(results, "")
        # Cancelled, as when its connection is cut: `settle_put` is told, too, and awaits it.

"""Traces of single changes: what a component needs to take part in one, without the library that exports spans.

A sampled change carries a context, the W3C Trace Context: the ids of the trace and of the span that comes before. On
the node that leads its partition `ChangeTraces` follows it by its key: the entry that is applied next is taken for it,
and ends the span of the commit; the first batch of each queue that has the key ends the span of the wait in the queue,
and carries the context to the other cluster. So neither log nor store know of traces. Two writes of one key at the same
moment may be taken for each other; a change that waits while its leader ends is followed no further.

`node.observability.traces` implements `Tracer` with OpenTelemetry. Where traces are off, nothing of this exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from isthmus.repl.model.entry import EntryKind
from isthmus.repl.model.ports import AppliedChanges, AppliedEntries, TimeSource
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import observes

WATCHED_MAX: Final = 1_024
"""Sampled writes on a node that are not applied yet; with more, the oldest are given up."""

WATCH_MS: Final = 60_000
"""How long one may take: longer than a request may wait. Later it is given up: it was refused."""

OFFERED_MAX: Final = 4_096
"""Sampled changes of a node that wait in its queues; with more, the oldest are given up. Some 2 MB."""

OFFERED_MS: Final = 3_600_000
"""How long one is followed there: an hour. A trace that lasts longer is of no use to anybody, a guess."""

TRACEPARENT_BYTES: Final = 55
"""Length of a context as text, as it is written here."""

NAME_MAX: Final = 256
"""Most bytes of a bucket or a key in an attribute: keys may have kilobytes, and say enough by their begin."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_trace_changes_followed": Family(
        "Sampled changes that are not applied yet (state `writing`), or are, and may wait in a queue (`offered`).",
        "changes",
        "traces",
        ("state",),
    ),
    "isthmus_trace_changes_lost_total": Family(
        "Sampled changes that were followed no further because there were too many, or they took too long.",
        "changes",
        "traces",
    ),
}
"""Name -> metric definition (see repl.telemetry)."""

_TRACEPARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

KeyNames = tuple[bytes, bytes, bytes]
"""Bucket type, bucket, key."""

Attributes = Mapping[str, str | int | bool]


class TraceContext(NamedTuple):
    """A span that others continue, as W3C Trace Context has it."""

    trace_id: int
    span_id: int
    sampled: bool = True

    def traceparent(self) -> str:
        """The value of the header `traceparent`."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"


def parse_traceparent(value: bytes) -> TraceContext | None:
    """The context in a header `traceparent`; None for anything else, which a receiver ignores."""
    found = _TRACEPARENT.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id = found[1], int(found[2], 16), int(found[3], 16)
    if version == b"ff" or (version == b"00" and found[5] is not None) or not trace_id or not span_id:
        return None
    return TraceContext(trace_id, span_id, bool(int(found[4], 16) & 1))


class SpanKind(Enum):
    """The relation of a span to the one before, in OpenTelemetry's terms."""

    SERVER = "server"
    INTERNAL = "internal"
    PRODUCER = "producer"
    CONSUMER = "consumer"


class Span(Protocol):
    """A span that has begun."""

    context: TraceContext

    def set(self, name: str, value: str | int | bool) -> None:
        """Set an attribute."""

    def event(self, name: str, at_ns: int) -> None:
        """Note a moment within the span, in ns since 1970."""

    def end(self, error: str = "") -> None:
        """End it now; with `error` it failed."""


class Tracer(Protocol):
    """Begins spans. `start_ns`: in ns since 1970; None: now."""

    def span(
        self,
        name: str,
        parent: TraceContext | None,
        kind: SpanKind,
        attributes: Attributes,
        start_ns: int | None = None,
    ) -> Span:
        """Begin a span; without `parent` a trace."""


class WriteWatch(Protocol):
    """Follows a write on the node that leads its key (`node.services.write_traces`)."""

    def watch(self, key: KeyNames, parent: TraceContext) -> None:
        """A write of the key follows, which `parent` stands for."""

    def unwatch(self, key: KeyNames, parent: TraceContext) -> None:
        """It came to no entry."""


class _Watched(NamedTuple):
    span: Span
    parent: TraceContext
    since_ms: int


class _Offered:
    """An applied change that queues may offer."""

    __slots__ = ("context", "offset", "since_ms", "since_ns", "taken_by")

    def __init__(self, context: TraceContext, offset: int, since_ms: int, since_ns: int) -> None:
        self.context = context
        self.offset = offset
        self.since_ms = since_ms
        self.since_ns = since_ns
        self.taken_by: set[str] = set()


def key_attributes(key: KeyNames) -> dict[str, str | int | bool]:
    """The attributes of a key, as text; long names are cut."""
    names = ("isthmus.bucket_type", "isthmus.bucket", "isthmus.key")
    return {name: part[:NAME_MAX].decode(errors="backslashreplace") for name, part in zip(names, key, strict=True)}


class ChangeTraces:
    """The sampled changes of the partitions that this node leads; a listener of applied entries. Belongs to the event
    loop. `type_of`: the bucket type of a partition, None for an unknown one."""

    def __init__(
        self, tracer: Tracer, type_of: Callable[[int], bytes | None], changes: AppliedChanges, time: TimeSource
    ) -> None:
        """Listens to `changes`."""
        self._tracer = tracer
        self._type_of = type_of
        self._time = time
        self._watched: dict[KeyNames, list[_Watched]] = {}
        """In the order in which the first watch of each began."""
        self._watched_count = 0
        self._offered: dict[KeyNames, _Offered] = {}
        """The oldest first."""
        self._lost = 0
        changes.add(self)

    @observes("traces.failed")
    def watch(self, key: KeyNames, parent: TraceContext) -> None:
        """See WriteWatch: begins the span of the commit."""
        now_ms = self._time.now_ms()
        self._give_up_watched(now_ms)
        span = self._tracer.span("isthmus.commit", parent, SpanKind.INTERNAL, key_attributes(key))
        self._watched.setdefault(key, []).append(_Watched(span, parent, now_ms))
        self._watched_count += 1

    @observes("traces.failed")
    def unwatch(self, key: KeyNames, parent: TraceContext) -> None:
        """See WriteWatch. The span of the commit says that nothing was written."""
        for one in self._watched.get(key, ()):
            if one.parent == parent:
                self._remove(key, one)
                one.span.set("isthmus.written", False)
                one.span.end()
                return

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """See `repl.model.ports.ApplyListener`: a watched write is committed and visible."""
        watched, offered = self._watched, self._offered
        if not (watched or offered):
            return
        for partition, entries, leader in applied:
            bucket_type = self._type_of(partition) if leader else None
            if bucket_type is None:
                continue
            for entry in entries:
                if entry.kind != EntryKind.DATA:
                    continue
                key = (bucket_type, entry.bucket, entry.key)
                if key in watched:
                    self._committed(key, partition, entry.epoch, entry.offset, entry.time_ms)
                elif key in offered and offered[key].taken_by:
                    del offered[key]  # the next batch that has the key sends another write

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """See `repl.model.ports.ApplyListener`: a new leader follows nothing."""

    @observes("traces.failed")
    def served(self, queue: str, items: Sequence[Any], sink_node: str) -> dict[int, str] | None:
        """The contexts of those changes of a batch that are sampled, by index; ends their wait. `items` as in
        `queues.window_rules.Item`. None for none."""
        offered = self._offered
        if not offered:
            return None
        found: dict[int, str] = {}
        now_ms = self._time.now_ms()
        for index, item in enumerate(items):
            change = offered.get(item[3:6])
            if change is None or queue in change.taken_by or item[2] < change.offset:
                continue
            if now_ms - change.since_ms > OFFERED_MS:
                continue
            change.taken_by.add(queue)
            attributes = {"isthmus.queue": queue, "isthmus.sink_node": sink_node, "isthmus.offset": item[2]}
            span = self._tracer.span("isthmus.queue", change.context, SpanKind.PRODUCER, attributes, change.since_ns)
            span.end()
            found[index] = span.context.traceparent()
        return found or None

    def samples(self) -> Iterator[Sample]:
        """For Prometheus."""
        yield "isthmus_trace_changes_followed", {"state": "writing"}, self._watched_count
        yield "isthmus_trace_changes_followed", {"state": "offered"}, len(self._offered)
        yield "isthmus_trace_changes_lost_total", {}, self._lost

    def _committed(self, key: KeyNames, partition: int, epoch: int, offset: int, appended_ms: int) -> None:
        one = self._watched[key][0]
        self._remove(key, one)
        span, now_ms = one.span, self._time.now_ms()
        if now_ms - one.since_ms > WATCH_MS:  # it was refused; this is another write
            self._give_up(one)
            return
        for name, value in (("partition", partition), ("epoch", epoch), ("offset", offset)):
            span.set(f"isthmus.{name}", value)
        span.event("appended", appended_ms * 1_000_000)
        span.end()
        offered = self._offered
        offered.pop(key, None)
        while offered and (len(offered) >= OFFERED_MAX or now_ms - _oldest(offered).since_ms > OFFERED_MS):
            gone = offered.pop(next(iter(offered)))
            self._lost += not gone.taken_by
        offered[key] = _Offered(span.context, offset, now_ms, self._time.wall_ms() * 1_000_000)

    def _remove(self, key: KeyNames, one: _Watched) -> None:
        waiting = self._watched[key]
        waiting.remove(one)
        self._watched_count -= 1
        if not waiting:
            del self._watched[key]

    def _give_up_watched(self, now_ms: int) -> None:
        while self._watched:
            key = next(iter(self._watched))
            one = self._watched[key][0]
            if self._watched_count < WATCHED_MAX and now_ms - one.since_ms <= WATCH_MS:
                return
            self._remove(key, one)
            self._give_up(one)

    def _give_up(self, one: _Watched) -> None:
        self._lost += 1
        one.span.end("given up: too many writes are followed, or it was not applied")


def _oldest(offered: Mapping[KeyNames, _Offered]) -> _Offered:
    return next(iter(offered.values()))

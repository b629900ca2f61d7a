"""Sampled changes on the node that leads them: the end of each span, and abandoned spans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.runtime.apply_listeners import ApplyListeners
from isthmus.repl.traces import (
    OFFERED_MAX,
    OFFERED_MS,
    WATCH_MS,
    WATCHED_MAX,
    Attributes,
    ChangeTraces,
    SpanKind,
    TraceContext,
    parse_traceparent,
)

PARENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
KEY = (b"default", b"b", b"k")


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.ms


class NotedSpan:
    """A span that records its calls."""

    def __init__(self, name: str, parent: TraceContext | None, number: int, attributes: Attributes) -> None:
        self.name = name
        self.parent = parent
        self.context = TraceContext(1 if parent is None else parent.trace_id, number)
        self.attributes = dict(attributes)
        self.events: list[tuple[str, int]] = []
        self.ended: str | None = None

    def set(self, name: str, value: str | int | bool) -> None:
        self.attributes[name] = value

    def event(self, name: str, at_ns: int) -> None:
        self.events.append((name, at_ns))

    def end(self, error: str = "") -> None:
        assert self.ended is None, self.name
        self.ended = error


class NotedTracer:
    """Keeps all spans."""

    def __init__(self) -> None:
        self.spans: list[NotedSpan] = []
        self._numbers = count(1)

    def span(
        self,
        name: str,
        parent: TraceContext | None,
        kind: SpanKind,
        attributes: Attributes,
        start_ns: int | None = None,
    ) -> NotedSpan:
        self.spans.append(NotedSpan(name, parent, next(self._numbers), attributes))
        return self.spans[-1]

    def named(self, name: str) -> list[NotedSpan]:
        return [span for span in self.spans if span.name == name]


def entry(offset: int, key: bytes = b"k", kind: EntryKind = EntryKind.DATA) -> Entry:
    """An entry of bucket b."""
    return make_entry(kind, 7, offset, request_id=b"", origin=b"", time_ms=5, bucket=b"b", key=key)


def item(offset: int, key: bytes = b"k") -> tuple[Any, ...]:
    """A change as a queue serves it."""
    return (1, 0, offset, b"default", b"b", key, b"", 5, b"object")


def made() -> tuple[ChangeTraces, NotedTracer, Clock]:
    """Partitions 0 and up of bucket type `default`."""
    tracer, clock = NotedTracer(), Clock()

    def type_of(partition: int) -> bytes | None:
        return b"default" if partition < 10 else None

    return ChangeTraces(tracer, type_of, ApplyListeners(), clock), tracer, clock


def apply(traces: ChangeTraces, entries: Sequence[Entry], partition: int = 0, *, leader: bool = True) -> None:
    """These entries are in the store."""
    traces.applied([AppliedEntries(partition, entries, leader)])


def values(traces: ChangeTraces) -> tuple[float, float, float]:
    """Writing, offered, lost."""
    writing, offered, lost = (value for _, _, value in traces.samples())
    return writing, offered, lost


@pytest.mark.parametrize(
    ("text", "context"),
    [
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", PARENT),
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-02", PARENT._replace(sampled=False)),
        (b"cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-comes", PARENT),
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more", None),
        (b"ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", None),
        (b"00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", None),
        (b"00-00000000000000000000000000000000-00f067aa0ba902b7-01", None),
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", None),
        (b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7", None),
        (b"", None),
    ],
)
def test_contexts_are_read_as_w3c_has_them(text: bytes, context: TraceContext | None) -> None:
    """A later version is read by its first parts; a malformed header, or one without ids, gives no context."""
    assert parse_traceparent(text) == context


def test_a_context_is_written_as_it_is_read() -> None:
    """It is written in the version that every reader accepts."""
    for context in (PARENT, PARENT._replace(sampled=False)):
        assert parse_traceparent(context.traceparent().encode()) == context


def test_the_entry_of_a_watched_key_ends_the_commit_and_its_batch_the_wait() -> None:
    """Each is the parent of the next; the batch carries the context of the wait."""
    traces, tracer, _ = made()
    traces.watch(KEY, PARENT)
    assert values(traces) == (1, 0, 0)
    apply(traces, [entry(3, b"other"), entry(4)])
    (commit,) = tracer.spans
    assert (commit.name, commit.parent, commit.ended) == ("isthmus.commit", PARENT, "")
    assert commit.events == [("appended", 5_000_000)]
    assert {commit.attributes[f"isthmus.{name}"] for name in ("partition", "epoch", "offset")} == {0, 7, 4}
    found = traces.served("q", [item(3, b"other"), item(4)], "west-1")
    (wait,) = tracer.named("isthmus.queue")
    assert (wait.parent, wait.ended) == (commit.context, "")
    assert found == {1: wait.context.traceparent()}
    assert values(traces) == (0, 1, 0)


def test_each_queue_takes_a_change_once() -> None:
    """A batch that is served again carries nothing; another queue's first one does."""
    traces, _, _ = made()
    traces.watch(KEY, PARENT)
    apply(traces, [entry(4)])
    assert traces.served("q", [item(4)], "a")
    assert traces.served("q", [item(4)], "a") is None
    assert traces.served("r", [item(4)], "a")


def test_an_older_change_of_the_key_is_not_taken_for_it() -> None:
    """A batch that was taken before the write was applied sends the previous change; a newer one includes the write."""
    traces, _, _ = made()
    traces.watch(KEY, PARENT)
    apply(traces, [entry(4)])
    assert traces.served("q", [item(3)], "a") is None
    assert traces.served("q", [item(9)], "a")


def test_a_later_write_of_the_key_is_not_taken_for_one_that_was_sent() -> None:
    """Once a queue has sent the change, the next entry of its key is a different one."""
    traces, _, _ = made()
    traces.watch(KEY, PARENT)
    apply(traces, [entry(4)])
    apply(traces, [entry(5)])
    assert traces.served("q", [item(5)], "a")
    apply(traces, [entry(6)])
    assert traces.served("r", [item(6)], "a") is None
    assert values(traces) == (0, 0, 0)


def test_only_data_of_partitions_led_here_counts() -> None:
    """Followers, barriers, and partitions that are gone change nothing."""
    traces, tracer, _ = made()
    traces.watch(KEY, PARENT)
    apply(traces, [entry(4)], leader=False)
    apply(traces, [entry(4, kind=EntryKind.BARRIER)])
    apply(traces, [entry(4)], partition=10)
    assert tracer.spans[0].ended is None
    apply(traces, [entry(4)])
    assert tracer.spans[0].ended == ""


def test_two_watched_writes_of_a_key_end_in_order() -> None:
    """Each write has an entry of its own."""
    traces, tracer, _ = made()
    traces.watch(KEY, PARENT)
    traces.watch(KEY, PARENT._replace(span_id=5))
    apply(traces, [entry(4), entry(5)])
    assert [(span.parent, span.attributes["isthmus.offset"]) for span in tracer.named("isthmus.commit")] == [
        (PARENT, 4),
        (PARENT._replace(span_id=5), 5),
    ]


def test_a_write_that_came_to_nothing_is_no_longer_watched() -> None:
    """Its span is marked as not written, and the next entry of the key is not taken for it."""
    traces, tracer, _ = made()
    traces.watch(KEY, PARENT)
    traces.unwatch(KEY, PARENT._replace(span_id=5))
    assert values(traces)[0] == 1
    traces.unwatch(KEY, PARENT)
    apply(traces, [entry(4)])
    (span,) = tracer.spans
    assert (span.ended, span.attributes["isthmus.written"]) == ("", False)
    assert values(traces) == (0, 0, 0)


def test_a_write_that_takes_too_long_is_given_up() -> None:
    """An entry after WATCH_MS belongs to another write; so does one when the next watch begins."""
    traces, tracer, clock = made()
    traces.watch(KEY, PARENT)
    clock.ms += WATCH_MS + 1
    apply(traces, [entry(4)])
    traces.watch(KEY, PARENT)
    clock.ms += WATCH_MS + 1
    traces.watch((b"default", b"b", b"l"), PARENT)
    first, second, third = tracer.spans
    assert first.ended
    assert second.ended
    assert third.ended is None
    assert values(traces) == (1, 0, 2)


def test_what_is_followed_is_bounded() -> None:
    """The oldest are abandoned, and counted as lost unless a queue has sent them."""
    traces, _, clock = made()
    for number in range(WATCHED_MAX + 5):
        traces.watch((b"default", b"b", b"%d" % number), PARENT)
    assert values(traces) == (WATCHED_MAX, 0, 5)
    lost = 5
    for number in range(5, WATCHED_MAX + 5):
        apply(traces, [entry(number, b"%d" % number)])
    assert traces.served("q", [item(5, b"5")], "a")
    for number in range(WATCHED_MAX + 5, OFFERED_MAX + 10):
        traces.watch((b"default", b"b", b"%d" % number), PARENT)
        apply(traces, [entry(number, b"%d" % number)])
    assert values(traces) == (0, OFFERED_MAX, lost + 4)
    clock.ms += OFFERED_MS + 1
    assert traces.served("q", [item(99, b"99")], "a") is None
    traces.watch(KEY, PARENT)
    apply(traces, [entry(1)])
    assert values(traces)[1] == 1


def test_a_batch_costs_nothing_while_nothing_is_followed() -> None:
    """Items are not inspected."""
    traces, _, _ = made()
    assert traces.served("q", None, "a") is None  # type: ignore[arg-type]
    traces.applied(None)  # type: ignore[arg-type]

"""The selection of traced writes, and the notification of their leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from isthmus.config.settings import TracesSettings
from isthmus.node.services.write_traces import METHOD, LeaderWatch, WriteTraces
from isthmus.repl.model.errors import BadInput, CodecError, IsthmusError, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import WriteResult
from isthmus.repl.traces import Attributes, KeyNames, SpanKind, TraceContext

KEY = Key(b"default", b"b", b"k")
TRACE = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
HEADERS = [(b"host", b"h"), (b"traceparent", TRACE.traceparent().encode())]
ON = TracesSettings(endpoint="http://127.0.0.1:1/v1/traces", sample_per_million=0)
ALL = TracesSettings(endpoint="http://127.0.0.1:1/v1/traces", sample_per_million=1_000_000)


class Span:
    """A span that keeps its end."""

    def __init__(self, name: str, parent: TraceContext | None) -> None:
        self.name = name
        self.parent = parent
        self.context = TraceContext(9, 9)
        self.ended: str | None = None
        self.outcome: object = None

    def set(self, name: str, value: str | int | bool) -> None:
        self.outcome = value

    def event(self, name: str, at_ns: int) -> None:
        raise AssertionError(name)

    def end(self, error: str = "") -> None:
        assert self.ended is None
        self.ended = error


class Parts:
    """The collaborators of the component: tracer, changes, routes and links."""

    def __init__(self, leader: str | None = "n1") -> None:
        self.spans: list[Span] = []
        self.noted: list[tuple[str, KeyNames, TraceContext]] = []
        self.sent: list[tuple[str, str, bytes]] = []
        self.found: str | None = leader
        self.fails: IsthmusError | None = None
        self.leader_watch = LeaderWatch("n1", self, self, self)  # type: ignore[arg-type]

    def traces(self, settings: TracesSettings = ON) -> WriteTraces:
        return WriteTraces(settings, self, self.leader_watch, Random(1))

    def span(
        self,
        name: str,
        parent: TraceContext | None,
        kind: SpanKind,
        attributes: Attributes,
        start_ns: int | None = None,
    ) -> Span:
        self.spans.append(Span(name, parent))
        return self.spans[-1]

    def watch(self, key: KeyNames, parent: TraceContext) -> None:
        self.noted.append(("watch", key, parent))

    def unwatch(self, key: KeyNames, parent: TraceContext) -> None:
        self.noted.append(("unwatch", key, parent))

    def partition_of(self, bucket_type: bytes, hash64: int) -> int:
        if self.fails is not None:
            raise self.fails
        return 3

    def leader(self, partition: int) -> str | None:
        assert partition == 3
        return self.found

    def send_request(
        self, node: str, method: str, body: bytes, timeout_ms: int, answered: Callable[[bytes | IsthmusError], None]
    ) -> None:
        self.sent.append((node, method, body))
        answered(BadInput("a node of an older version"))


@pytest.mark.parametrize(
    ("settings", "headers", "parent"),
    [
        (ON, HEADERS, TRACE),
        (ON, [], "none"),
        (ON, [(b"traceparent", TRACE._replace(sampled=False).traceparent().encode())], "none"),
        (ALL, [(b"traceparent", TRACE._replace(sampled=False).traceparent().encode())], "none"),
        (ALL, [], None),
        (ALL, HEADERS, TRACE),
        (ALL, [(b"traceparent", b"nonsense")], None),
        (ON, [(b"traceparent", TRACE.traceparent().encode() + b"-" + b"x" * 600)], "none"),
        (TracesSettings(sample_per_million=1_000_000, from_clients=False), HEADERS, None),
        (TracesSettings(sample_per_million=0, from_clients=False), HEADERS, "none"),
    ],
)
def test_the_client_decides_or_else_chance(settings: TracesSettings, headers: Any, parent: object) -> None:
    """A sampled context is continued, an unsampled one traces nothing; a malformed one is ignored."""
    parts = Parts()
    traces = parts.traces(settings)
    begun = traces.begin("PUT", KEY, headers)
    assert [span.parent for span in parts.spans] == ([] if parent == "none" else [parent])
    assert (begun is None) == (parent == "none")
    assert sum(value for _, _, value in traces.samples()) == len(parts.spans)


def test_chance_takes_about_as_many_as_it_should() -> None:
    """About a tenth of the writes is traced."""
    parts = Parts()
    traces = parts.traces(TracesSettings(sample_per_million=100_000))
    for _ in range(2_000):
        traces.begin("PUT", KEY, [])
    assert 130 < len(parts.spans) < 270


async def test_a_started_write_ends_with_its_result() -> None:
    """A write of this node ends at once; a refused or forwarded one when its answer is made."""
    parts = Parts()
    traces = parts.traces()
    loop = asyncio.get_running_loop()
    usual, refused, cancelled = (loop.create_future() for _ in range(3))
    for results in (usual, refused, cancelled):
        traces.started(KEY, HEADERS, results)
    usual.set_result([WriteResult(b"", b"", 1)])
    refused.set_result([NotReady("no leader")])
    cancelled.cancel()
    await asyncio.sleep(0)
    assert [span.ended for span in parts.spans] == ["", None, None]
    traces.settled(refused, "not-ready")
    traces.settled(cancelled, "cancelled")
    traces.settled(usual, "again")
    assert [span.ended for span in parts.spans] == ["", "not-ready", "cancelled"]
    assert [what for what, _, _ in parts.noted] == ["watch"] * 3 + ["unwatch"] * 2


async def test_another_leader_is_told_in_a_message_of_its_own() -> None:
    """The leader decodes the message to the same values; a refusal of the method has no effect."""
    parts, there = Parts("n2"), Parts()
    span = parts.traces().begin("PUT", KEY, HEADERS)
    assert span is not None
    span.end("overloaded")
    assert parts.noted == []
    assert [(node, method) for node, method, _ in parts.sent] == [("n2", METHOD)] * 2
    handler = there.leader_watch.request_handlers()[METHOD]
    for _, _, body in parts.sent:
        assert await handler("n1", body) == b""
    context = parts.spans[0].context
    assert there.noted == [("watch", tuple(KEY), context), ("unwatch", tuple(KEY), context)]


@pytest.mark.parametrize("fails", [None, NotReady("not known yet")])
def test_without_a_leader_nothing_is_told(fails: IsthmusError | None) -> None:
    """The request is traced nevertheless."""
    parts = Parts(None)
    parts.fails = fails
    assert parts.traces().begin("PUT", KEY, HEADERS) is not None
    assert (parts.noted, parts.sent) == ([], [])


@pytest.mark.parametrize("body", [b"", b"\xc0", b"\x95\xc4\x01t\xc4\x01b\xc4\x01k\xa1x\xc3", b"\x91\xc4\x01t"])
async def test_a_malformed_note_is_refused(body: bytes) -> None:
    """It is refused like any malformed body of another node."""
    with pytest.raises(CodecError, match=METHOD):
        await Parts().leader_watch.request_handlers()[METHOD]("n2", body)

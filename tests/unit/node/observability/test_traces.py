"""The export of spans: in batches, bounded, without blocking; and the settings that enable it."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from isthmus.config.settings import TracesSettings
from isthmus.node.observability import traces
from isthmus.node.observability.traces import BATCH_COUNT, SpanQueue, read_headers, start_tracer
from isthmus.repl.extras import MissingExtra
from isthmus.repl.model.errors import BadConfig
from isthmus.repl.traces import SpanKind, TraceContext
from tests.support.waiting import PATIENCE_S

SUCCESS = object()
PARENT = TraceContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)


class Exporter:
    """Takes batches; waits while `held` is set; fails with `raises`."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.held = threading.Event()
        self.held.set()
        self.raises: Exception | None = None
        self.result: object = SUCCESS
        self.shut = False

    def export(self, spans: Sequence[Any], /) -> object:
        self.held.wait()
        if self.raises is not None:
            raise self.raises
        self.batches.append(list(spans))
        return self.result

    def shutdown(self) -> None:
        self.shut = True
        self.held.set()


@pytest.mark.timing
def test_spans_are_exported_in_batches_and_what_does_not_fit_is_dropped() -> None:
    """While the collector hangs `limit_count` wait, the others are dropped at once; then the waiting ones go."""
    exporter = Exporter()
    exporter.held.clear()
    queue = SpanQueue(exporter, 1_000, SUCCESS)
    for number in range(BATCH_COUNT):
        queue.add(number)  # type: ignore[arg-type]
    while queue.waiting_count:
        time.sleep(0.01)  # the first batch is on its way
    began_s = time.monotonic()
    for number in range(1_200):
        queue.add(number)  # type: ignore[arg-type]
    assert time.monotonic() - began_s < 1
    assert (queue.waiting_count, queue.counts["dropped"]) == (1_000, 200)
    exporter.held.set()
    queue.stop(PATIENCE_S)
    assert [len(batch) for batch in exporter.batches] == [BATCH_COUNT, BATCH_COUNT, 1_000 - BATCH_COUNT]
    assert queue.counts == {"exported": BATCH_COUNT + 1_000, "failed": 0, "dropped": 200}
    assert exporter.shut


@pytest.mark.parametrize("raises", [None, RuntimeError("a fault")])
def test_what_the_collector_does_not_take_is_counted(raises: Exception | None) -> None:
    """A failure is counted whether the exporter returns it or raises; the thread continues."""
    exporter = Exporter()
    exporter.result, exporter.raises = None, raises
    queue = SpanQueue(exporter, 1_000, SUCCESS)
    queue.add(1)  # type: ignore[arg-type]
    queue.stop(PATIENCE_S)
    assert queue.counts == {"exported": 0, "failed": 1, "dropped": 0}


@pytest.mark.timing
def test_a_stop_waits_for_a_collector_that_hangs_no_longer_than_it_may() -> None:
    """Waiting spans are dropped, and so are later ones."""
    exporter = Exporter()
    exporter.held.clear()
    queue = SpanQueue(exporter, 1_000, SUCCESS)
    for number in range(BATCH_COUNT + 1):
        queue.add(number)  # type: ignore[arg-type]
    while queue.waiting_count > 1:
        time.sleep(0.01)
    began_s = time.monotonic()
    queue.stop(0.2)
    assert time.monotonic() - began_s < 5
    queue.add(1)  # type: ignore[arg-type]
    assert queue.counts["dropped"] == 2


async def test_a_span_has_the_parent_the_times_and_the_node_that_it_was_given() -> None:
    """As OpenTelemetry exports it."""
    exporter = Exporter()
    tracer = start_tracer(
        TracesSettings(endpoint="http://127.0.0.1:1/v1/traces"), {}, node="n1", cluster="east", exporter=exporter
    )
    assert tracer is not None
    root = tracer.span("GET object", None, SpanKind.SERVER, {})
    span = tracer.span("isthmus.push", PARENT, SpanKind.CONSUMER, {"isthmus.key": "k"}, 5)
    span.set("isthmus.outcome", "failed")
    span.event("appended", 7)
    span.end("not-leader")
    root.end()
    await tracer.stop()
    failed, whole = [one for batch in exporter.batches for one in batch]
    assert (failed.context.trace_id, failed.parent.span_id) == (PARENT.trace_id, PARENT.span_id)
    assert failed.context.span_id == span.context.span_id
    assert (failed.start_time, failed.kind.name, failed.status.status_code.name) == (5, "CONSUMER", "ERROR")
    assert dict(failed.attributes) == {"isthmus.key": "k", "isthmus.outcome": "failed"}
    assert [(event.name, event.timestamp) for event in failed.events] == [("appended", 7)]
    assert (whole.parent, whole.status.status_code.name) == (None, "UNSET")
    attributes = whole.resource.attributes
    assert (attributes["service.namespace"], attributes["service.instance.id"]) == ("east", "east/n1")


def test_without_an_endpoint_there_is_no_tracer() -> None:
    """Nothing is imported or started."""
    assert start_tracer(TracesSettings(), {}, node="n1", cluster="east") is None


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised when traces are on; when they are off the extra is not needed."""
    monkeypatch.setattr("isthmus.repl.extras.is_installed", lambda _: False)
    traces.check_traces(TracesSettings())
    with pytest.raises(MissingExtra, match=r"traces\.endpoint needs .*opentelemetry.*pip install 'isthmus\[traces\]'"):
        traces.check_traces(TracesSettings(endpoint="http://127.0.0.1:4318/v1/traces"))


def private(path: Path, text: str) -> Path:
    """A file that others cannot read."""
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_headers_are_read_from_a_private_file(tmp_path: Path) -> None:
    """One a line, with comments; a faulty line is named by its number, and not repeated."""
    assert read_headers(None) == {}
    text = "# of the collector\n\nAuthorization:  Bearer s3cret-s3cret \nx-scope: a b\n"
    assert read_headers(private(tmp_path / "a", text)) == {"authorization": "Bearer s3cret-s3cret", "x-scope": "a b"}
    for number, (fault, why) in enumerate(
        [("x: ok\ns3cret\n", ":2: not a header"), ("x: \u00e4s3cret", "something else"), ("x" * 9_000, "larger than")]
    ):
        path = private(tmp_path / f"b{number}", fault)
        with pytest.raises(BadConfig, match=why) as raised:
            read_headers(path)
        assert "s3cret" not in str(raised.value)
    many = private(tmp_path / "c", "".join(f"x-{number}: 1\n" for number in range(17)))
    with pytest.raises(BadConfig, match="at most 16"):
        read_headers(many)
    open_to_all = private(tmp_path / "d", "x: y\n")
    open_to_all.chmod(0o644)
    with pytest.raises(BadConfig, match="chmod"):
        read_headers(open_to_all)

"""Spans by OpenTelemetry, exported as OTLP over HTTP; the only module that imports `opentelemetry`.

Spans that have ended wait in a queue of bounded length for one thread, which exports them in batches. With the queue
full, spans are dropped and counted: a collector that is slow or away costs spans, and never a request. The packages are
those of the extra `traces`; they are imported when traces are turned on.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from isthmus.config.settings import TracesSettings
from isthmus.node.observability.version import program_version
from isthmus.repl.extras import check_packages
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadConfig
from isthmus.repl.security.watched_files import check_private, encoding_fault
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.traces import Attributes, SpanKind, TraceContext
from isthmus.repl.unforeseen import observes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Span, Tracer

BATCH_COUNT: Final = 512
"""Most spans in one request to the collector: some 200 KB."""

EXPORT_EVERY_S: Final = 1.0
"""How long a span waits for others before it is exported."""

STOP_S: Final = 3.0
"""How long a node that stops waits for the collector to take what waits; the rest is dropped."""

HEADERS_MAX: Final = 16
HEADER_BYTES_MAX: Final = 8_192
"""Most headers for the collector, and the largest file of them."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_trace_spans_total": Family(
        "Spans of traces by what became of them: exported, failed (the collector did not take them), dropped (too many "
        "waited).",
        "spans",
        "traces",
        ("outcome",),
    ),
    "isthmus_trace_spans_waiting": Family("Spans that wait to be exported.", "spans", "traces"),
}
"""Name -> metric definition (see repl.telemetry)."""

_HEADER: Final = re.compile(r"([A-Za-z0-9-]+):[ \t]*([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)[ \t]*", re.ASCII)


class SpanExporter(Protocol):
    """Sends spans to a collector: OpenTelemetry's OTLPSpanExporter."""

    def export(self, spans: Sequence[ReadableSpan], /) -> object:
        """Send them, within the exporter's time-out; retries what may be retried."""

    def shutdown(self) -> None:
        """End a request that runs, and send nothing more."""


def read_headers(path: Path | None) -> dict[str, str]:
    """The headers of a file, one `NAME: VALUE` a line; none without a file. Raises BadConfig, which repeats nothing of
    the file."""
    if path is None:
        return {}
    check_private(path)
    try:
        raw = path.read_bytes()[: HEADER_BYTES_MAX + 1]
        if fault := encoding_fault(raw):
            raise BadConfig(f"{path} {fault}")
        text = raw.decode("ascii")
    except OSError as error:
        raise BadConfig(f"{path}: {(error.strerror or str(error)).lower()}") from error
    except UnicodeDecodeError:
        raise BadConfig(f"{path} holds something else than headers; {_FORM}") from None
    if len(text) > HEADER_BYTES_MAX:
        raise BadConfig(f"{path} is larger than {HEADER_BYTES_MAX} bytes; {_FORM}")
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        header = _HEADER.fullmatch(line)
        if header is None:
            raise BadConfig(f"{path}:{number}: not a header; {_FORM}")
        found[header[1].lower()] = header[2]
    if len(found) > HEADERS_MAX:
        raise BadConfig(f"{path} holds {len(found)} headers, at most {HEADERS_MAX} are sent")
    return found


_FORM: Final = 'a line is NAME: VALUE, such as "Authorization: Bearer ..."'


class OtelSpan:
    """A span of OpenTelemetry. Implements `repl.traces.Span`."""

    __slots__ = ("_span", "context")

    def __init__(self, span: Span) -> None:
        self._span = span
        found = span.get_span_context()
        self.context = TraceContext(found.trace_id, found.span_id)

    @observes("traces.failed")
    def set(self, name: str, value: str | int | bool) -> None:
        """See Span."""
        self._span.set_attribute(name, value)

    @observes("traces.failed")
    def event(self, name: str, at_ns: int) -> None:
        """See Span."""
        self._span.add_event(name, timestamp=at_ns)

    @observes("traces.failed")
    def end(self, error: str = "") -> None:
        """See Span."""
        if error:
            from opentelemetry.trace import Status, StatusCode

            self._span.set_status(Status(StatusCode.ERROR, error))
        self._span.end()


class SpanQueue:
    """Spans that have ended, and the thread that exports them. Its limit is `limit_count`."""

    def __init__(self, exporter: SpanExporter, limit_count: int, success: object) -> None:
        self._exporter = exporter
        self._limit_count = limit_count
        self._success = success
        self._waiting: deque[ReadableSpan] = deque()
        self._wake = machine().event()
        self._stop_at_s: float | None = None
        self.counts = dict.fromkeys(("exported", "failed", "dropped"), 0)
        self._thread = machine().thread(self._run, "traces")

    @property
    def waiting_count(self) -> int:
        """Spans that wait."""
        return len(self._waiting)

    def add(self, span: ReadableSpan) -> None:
        """Export a span soon, or drop it: never waits. Called by the event loop alone."""
        if len(self._waiting) >= self._limit_count or self._stop_at_s is not None:
            self.counts["dropped"] += 1
            return
        self._waiting.append(span)
        if len(self._waiting) >= BATCH_COUNT:
            self._wake.set()

    def stop(self, timeout_s: float) -> None:
        """Export what waits, within `timeout_s`; drop and count the rest. Blocks."""
        self._stop_at_s = machine().monotonic_s() + timeout_s
        self._wake.set()
        self._thread.join(timeout_s)
        self._exporter.shutdown()  # ends a request that runs
        self._thread.join(timeout_s)
        self.counts["dropped"] += len(self._waiting)
        self._waiting.clear()

    def _run(self) -> None:
        while True:
            self._wake.wait(EXPORT_EVERY_S)
            self._wake.clear()
            while self._waiting:
                if self._stop_at_s is not None and machine().monotonic_s() >= self._stop_at_s:
                    return
                batch = [self._waiting.popleft() for _ in range(min(BATCH_COUNT, len(self._waiting)))]
                try:
                    done = self._exporter.export(batch) is self._success
                except Exception:  # noqa: BLE001 -- a fault of the library: its spans are lost and counted
                    done = False
                self.counts["exported" if done else "failed"] += len(batch)
            if self._stop_at_s is not None:
                return


class NodeTracer:
    """Begins the spans of one node. Implements `repl.traces.Tracer`."""

    def __init__(self, tracer: Tracer, queue: SpanQueue) -> None:
        from opentelemetry.trace import SpanKind as Kind

        self._tracer = tracer
        self._queue = queue
        self._kinds = {kind: Kind[kind.name] for kind in SpanKind}

    def span(
        self,
        name: str,
        parent: TraceContext | None,
        kind: SpanKind,
        attributes: Attributes,
        start_ns: int | None = None,
    ) -> OtelSpan:
        """See Tracer."""
        from opentelemetry.context import Context
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

        context = Context()
        if parent is not None:
            flags = TraceFlags(TraceFlags.SAMPLED)
            before = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags)
            context = set_span_in_context(NonRecordingSpan(before), context)
        return OtelSpan(
            self._tracer.start_span(name, context, self._kinds[kind], dict(attributes), start_time=start_ns)
        )

    async def stop(self) -> None:
        """Export what waits, within STOP_S and the end of a request that runs."""
        await asyncio.get_running_loop().run_in_executor(None, self._queue.stop, STOP_S)

    def samples(self) -> Iterator[Sample]:
        """For Prometheus."""
        for outcome, count in self._queue.counts.items():
            yield "isthmus_trace_spans_total", {"outcome": outcome}, count
        yield "isthmus_trace_spans_waiting", {}, self._queue.waiting_count


def check_traces(settings: TracesSettings) -> None:
    """Raises MissingExtra if traces are on and their packages are not installed."""
    if settings.endpoint:
        check_packages("traces.endpoint", "opentelemetry")


def start_tracer(
    settings: TracesSettings,
    headers: Mapping[str, str],
    *,
    node: str,
    cluster: str,
    exporter: SpanExporter | None = None,
) -> NodeTracer | None:
    """The node's tracer, None where traces are off. `exporter`: instead of OTLP. Raises MissingExtra."""
    if not settings.endpoint:
        return None
    check_traces(settings)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExportResult
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    if exporter is None:
        exporter = OTLPSpanExporter(
            endpoint=settings.endpoint,
            certificate_file=None if settings.authority is None else str(settings.authority),
            headers=dict(headers),
            timeout=settings.timeout_ms / 1000,
        )
    queue = SpanQueue(exporter, settings.queue_count, SpanExportResult.SUCCESS)

    class Processor(SpanProcessor):
        def on_end(self, span: ReadableSpan) -> None:
            queue.add(span)

    resource = Resource(
        {
            "service.name": "isthmus",
            "service.namespace": cluster,
            "service.instance.id": f"{cluster}/{node}",
            "service.version": program_version(),
        }
    )
    provider = TracerProvider(resource=resource, sampler=ALWAYS_ON, shutdown_on_exit=False)  # sampled before
    provider.add_span_processor(Processor())
    return NodeTracer(provider.get_tracer("isthmus", program_version()), queue)

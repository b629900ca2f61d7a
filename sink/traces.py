"""The sink's part of a trace: the spans of fetching and pushing changes that came with a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from isthmus.queues.window_rules import Item
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import PushOutcome, PushResult
from isthmus.repl.traces import Attributes, Span, SpanKind, Tracer, WriteWatch, key_attributes, parse_traceparent
from isthmus.repl.unforeseen import observes
from isthmus.sink.scheduler import LinkName

_WRITTEN: Final = (PushOutcome.APPLIED, PushOutcome.MERGED)


class TracedPush(NamedTuple):
    """A sampled change of a batch that is being pushed."""

    at: int
    key: Key
    span: Span


class SinkTraces:
    """Begins and ends the spans of a sink. Belongs to the event loop."""

    def __init__(self, tracer: Tracer, watch: WriteWatch) -> None:
        self._tracer = tracer
        self._watch = watch

    @observes("traces.failed")
    def fetched(
        self, name: LinkName, contexts: Mapping[int, str], items: Sequence[Item], start_ns: int
    ) -> list[TracedPush]:
        """The sampled changes of a batch that the source took at `start_ns`, and that was received now: their fetch
        ends, their push begins. A context that is none, or not sampled, is ignored."""
        pushes = []
        for index, text in contexts.items():
            context = parse_traceparent(text.encode())
            if context is None or not context.sampled or not 0 <= index < len(items):
                continue
            key = Key(*items[index][3:6])
            attributes: Attributes = {
                "isthmus.queue": name.queue,
                "isthmus.peer": name.peer,
                "isthmus.batch_count": len(items),
            }
            fetch = self._tracer.span("isthmus.fetch", context, SpanKind.CONSUMER, attributes, start_ns)
            fetch.end()
            span = self._tracer.span("isthmus.push", fetch.context, SpanKind.INTERNAL, key_attributes(key))
            self._watch.watch(key, span.context)
            pushes.append(TracedPush(index, key, span))
        return pushes

    @observes("traces.failed")
    def pushed(self, pushes: Sequence[TracedPush], results: Sequence[PushResult]) -> None:
        """Their pushes have ended."""
        for at, key, span in pushes:
            outcome, error, _ = results[at]
            if outcome not in _WRITTEN:
                self._watch.unwatch(key, span.context)
            span.set("isthmus.outcome", outcome.value)
            span.end("" if error is None else error.reason)

"""The replication telemetry of every node: entries, times, failures and log sizes by bucket type.

The numbers are measured by `repl.runtime.metrics`; `node.services.telemetry` adds them up.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from isthmus.node.services.cluster_query import EmptyBody, MsgpackBody, Query
from isthmus.node.services.telemetry import KindFacts, NodeFacts, TypeFacts
from isthmus.repl.model.errors import CodecError
from isthmus.repl.runtime.latency import KindTimes
from isthmus.repl.runtime.metrics import PARTS, ReplogSizes, replog_sizes
from isthmus.repl.runtime.runtime import Runtime

METHOD: Final = "telemetry"

ROWS_MAX: Final = 65_536
"""Rows of one answer: bucket types times kinds of entries and reasons, which are tens. A longer answer is refused."""

NUMBERS_MAX: Final = 64
"""Numbers of a row; a later version may have more of them than this one, which refuses them."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_Row = Annotated[list[str | _Number], msgspec.Meta(min_length=4, max_length=4 + NUMBERS_MAX)]


class TelemetryBody:
    """msgpack: rows of (bucket type, topic, kind or part, reason or "", numbers...)."""

    _rows: Final = MsgpackBody[list[Any]](METHOD, Annotated[list[_Row], msgspec.Meta(max_length=ROWS_MAX)])

    def encode(self, facts: NodeFacts) -> bytes:
        """See Codec."""
        rows: list[tuple[Any, ...]] = []
        for bucket_type, of in facts.items():
            rows += [(bucket_type, "replogs", part, "", *sizes) for part, sizes in of.replogs.items()]
            rows += [(bucket_type, "replicate", kind, "", *times) for kind, times in of.replicate.items()]
            rows += [(bucket_type, "apply", kind, "", *times) for kind, times in of.apply.items()]
            rows += [(bucket_type, "failures", kind, reason, count) for (kind, reason), count in of.failures.items()]
            rows += [(bucket_type, "recent-failures", *key, *recent) for key, recent in of.recent_failures.items()]
        return self._rows.encode(rows)

    def decode(self, body: bytes) -> NodeFacts:
        """See Codec. Rows with a topic that only later versions know are left out."""
        found: dict[str, TypeFacts] = {}
        for row in self._rows.decode(body):
            bucket_type, what, kind, reason, *numbers = row
            if not (all(type(one) is str for one in row[:4]) and all(type(one) is int for one in numbers)):
                raise CodecError(f"{METHOD}: {row!r:.80} is not four texts and whole numbers from 0")
            of = found.setdefault(bucket_type, TypeFacts())
            try:
                if what == "replogs" and kind in PARTS:
                    of.replogs[kind] = ReplogSizes._make(numbers)
                elif what in ("replicate", "apply"):
                    (of.replicate if what == "replicate" else of.apply)[kind] = KindFacts._make(numbers)
                elif what == "failures":
                    (of.failures[kind, reason],) = numbers
                elif what == "recent-failures":
                    recent, span_ms = numbers
                    of.recent_failures[kind, reason] = recent, span_ms
            except (TypeError, ValueError) as error:
                raise CodecError(f"{METHOD}: {row!r:.80} has too many or too few numbers") from error
        return found


TELEMETRY: Final[Query[None, NodeFacts]] = Query(METHOD, EmptyBody(), TelemetryBody())


class TelemetryResponder:
    """Answers TELEMETRY from the runtime's measurements."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def respond(self, _request: None) -> NodeFacts:
        """See Responder."""
        runtime = self._runtime
        now_ms, times = runtime.time.now_ms(), runtime.latency
        found: dict[str, TypeFacts] = {}

        def of(bucket_type: bytes) -> TypeFacts:
            return found.setdefault(bucket_type.decode(), TypeFacts())

        for (bucket_type, part), sizes in replog_sizes(runtime.partitions.values(), runtime.replog).items():
            of(bucket_type).replogs[part] = sizes
        for (bucket_type, kind), each in times.replicated_times(now_ms).items():
            of(bucket_type).replicate[kind] = _kind_facts(each)
        for (bucket_type, kind), each in times.applied_times(now_ms).items():
            of(bucket_type).apply[kind] = _kind_facts(each)
        for (bucket_type, kind, reason), count in times.failures().items():
            of(bucket_type).failures[kind, reason] = count
        for (bucket_type, kind, reason), recent in times.recent_failures(now_ms).items():
            of(bucket_type).recent_failures[kind, reason] = recent.added, recent.span_ms
        return found


def _kind_facts(times: KindTimes) -> KindFacts:
    recent = times.recent
    return KindFacts(times.entries, recent.added, recent.total_ms, recent.max_ms, recent.span_ms)

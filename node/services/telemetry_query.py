"""The replication telemetry of every node: entries, times, failures and log sizes by bucket type.

The numbers are measured by `repl.runtime.metrics`; `node.services.telemetry` adds them up.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from isthmus.node.services.cluster_query import EmptyBody, Query
from isthmus.node.services.telemetry import KindFacts, NodeFacts, TypeFacts
from isthmus.repl.model.errors import CodecError
from isthmus.repl.runtime.latency import KindTimes
from isthmus.repl.runtime.metrics import PARTS, ReplogSizes, replog_sizes
from isthmus.repl.runtime.runtime import Runtime

METHOD: Final = "telemetry"

ROWS_MAX: Final = 65_536
"""Rows of one answer: bucket types times kinds of entries and reasons, which are tens. A longer answer is refused."""

NUMBER_MAX: Final = 1 << 63


class TelemetryBody:
    """msgpack: rows of (bucket type, topic, kind or part, reason or "", numbers...)."""

    def encode(self, facts: NodeFacts) -> bytes:
        """See Codec."""
        rows: list[tuple[Any, ...]] = []
        for bucket_type, of in facts.items():
            rows += [(bucket_type, "replogs", part, "", *sizes) for part, sizes in of.replogs.items()]
            rows += [(bucket_type, "replicate", kind, "", *times) for kind, times in of.replicate.items()]
            rows += [(bucket_type, "apply", kind, "", *times) for kind, times in of.apply.items()]
            rows += [(bucket_type, "failures", kind, reason, count) for (kind, reason), count in of.failures.items()]
            rows += [(bucket_type, "recent-failures", *key, *recent) for key, recent in of.recent_failures.items()]
        body: bytes = msgpack.packb(rows)
        return body

    def decode(self, body: bytes) -> NodeFacts:
        """See Codec. Rows with a topic that only later versions know are left out."""
        try:
            rows = msgpack.unpackb(body)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise CodecError(f"{METHOD}: not msgpack ({error})") from error
        if not isinstance(rows, list) or len(rows) > ROWS_MAX:
            raise CodecError(f"{METHOD}: not a list of rows")
        found: dict[str, TypeFacts] = {}
        for row in rows:
            if not isinstance(row, list) or len(row) < 4 or not all(isinstance(text, str) for text in row[:4]):
                raise CodecError(f"{METHOD}: {row!r:.80} is not a row")
            bucket_type, what, kind, reason, *numbers = row
            if not all(type(number) is int and 0 <= number < NUMBER_MAX for number in numbers):
                raise CodecError(f"{METHOD}: {row!r:.80} has a value that is not a whole number from 0")
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

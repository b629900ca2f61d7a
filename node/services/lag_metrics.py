"""This node's part of `isthmus lag` as metrics: how far other clusters are behind, and what the sink has not stored.

The source's side is read by `queues.admin.QueueActs.lags` and summed by `node.services.replication_lag.lag_rows`, as
for the command, over the partitions led here. It is read when Prometheus asks, since it reads the store: `measure`
comes before `samples`. A number that is not known is NaN, so that a sum that needs it is unknown, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from math import nan
from typing import Final, Protocol

from isthmus.node.services.replication_lag import LagRow, NodeLags, lag_rows
from isthmus.queues.lag import QueueLag
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen
from isthmus.sink.status import FetchedLag

FRESH_MS: Final = 1_000
"""Numbers that were read within this time will do: a scrape costs no reading where `isthmus lag`, a dashboard or
another scrape has just had one. A reading takes some 10 ms of other threads, more where much waits (`queues.lag`)."""

_LABELS: Final = ("bucket_type", "peer_cluster", "queue", "side")

HELP: Final[Mapping[str, Family]] = {
    "isthmus_lag_seconds": Family(
        "How far another cluster is behind. With side `source`: age of the oldest change that it has not acknowledged, "
        "of the partitions led here; the largest of all nodes is that of `isthmus lag`. With side `sink`: age of the "
        "oldest change that was fetched and is not stored. 0 for none; NaN where it is not known.",
        "seconds",
        "lag",
        _LABELS,
    ),
    "isthmus_lag_objects": Family(
        "Keys whose newest change is not acknowledged (source), or changes fetched and not stored (sink). The source's "
        "contain the sink's: do not add them. NaN where not known, as with more than 50,000 rows to read.",
        "objects",
        "lag",
        _LABELS,
    ),
    "isthmus_lag_bytes": Family(
        "Size of these objects. NaN where not known, as with more than 10,000 of them.",
        "bytes",
        "lag",
        _LABELS,
    ),
    "isthmus_lag_unknown": Family("1 while isthmus_lag_seconds is not known.", "0 or 1", "lag", _LABELS),
}
"""Name -> metric definition (see repl.telemetry)."""


class LagReader(Protocol):
    """Reads the lag of all queues on this node: `queues.admin.QueueActs`."""

    async def lags(self, fresh_ms: int = 0) -> list[QueueLag]:
        """See QueueActs."""


class LagMetrics:
    """Reads the lag of this node's queues for its metrics. Belongs to the event loop."""

    def __init__(
        self,
        node: str,
        reader: LagReader,
        records: Callable[[], Mapping[int, PartitionRecord]],
        fetched: Callable[[], Iterable[FetchedLag]],
    ) -> None:
        self._node = node
        self._reader = reader
        self._records = records
        self._fetched = fetched
        self._rows: list[LagRow] = []

    async def measure(self) -> None:
        """Read the lag, unless it was read within FRESH_MS; takes some seconds at most (`queues.lag.TIMEOUT_S`)."""
        try:
            lags = await self._reader.lags(FRESH_MS)
        except Exception as error:  # the other metrics are shown all the same
            unforeseen.exception("metrics.lag_unread", error)
            self._rows = []
            return
        led = {
            partition: record
            for partition, record in self._records().items()
            if record.leader is not None and record.leader.node == self._node
        }
        self._rows = lag_rows({self._node: NodeLags(lags, [])}, led)

    def samples(self) -> Iterator[Sample]:
        """Samples of the last reading; of the source none where it failed."""
        for row in self._rows:
            labels = {
                "side": "source",
                "queue": row.queue,
                "peer_cluster": row.cluster or "",
                "bucket_type": row.bucket_type,
            }
            yield from _numbers(labels, row.seconds, row.objects, row.bytes)
        for one in self._fetched():
            labels = {
                "side": "sink",
                "queue": one.queue,
                "peer_cluster": one.cluster,
                "bucket_type": one.bucket_type.decode(errors="backslashreplace"),
            }
            yield from _numbers(labels, one.seconds, one.objects, one.size_bytes)


def _numbers(
    labels: Mapping[str, str], seconds: float | None, objects: int | None, size_bytes: int | None
) -> Iterator[Sample]:
    yield "isthmus_lag_seconds", labels, nan if seconds is None else seconds
    yield "isthmus_lag_objects", labels, nan if objects is None else objects
    yield "isthmus_lag_bytes", labels, nan if size_bytes is None else size_bytes
    yield "isthmus_lag_unknown", labels, float(seconds is None)

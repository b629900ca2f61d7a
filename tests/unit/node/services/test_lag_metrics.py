"""The lag of this node's queues as metrics: read when asked for, NaN where it is not known."""

from __future__ import annotations

from collections.abc import Iterable
from math import isnan

import pytest
from structlog.testing import capture_logs

from isthmus.node.services.lag_metrics import FRESH_MS, LagMetrics
from isthmus.queues.lag import PartitionLag, QueueLag
from isthmus.repl.model.record import Incarnation, PartitionRecord, PartitionStatus
from isthmus.sink.status import FetchedLag


def part(partition: int, seconds: float | None, objects: int | None, size: int | None) -> PartitionLag:
    """A partition as `queues.lag` has it."""
    return PartitionLag(partition, "default", seconds, objects, size, in_flight=0, cursor=1, applied=1)


def queue(*parts: PartitionLag) -> QueueLag:
    """A queue as `QueueActs.lags` has it."""
    return QueueLag(queue="q", cluster="west", uuid="77", reason="", partitions=list(parts))


class Reader:
    """Answers as QueueActs; `asked` are the ages that would do."""

    def __init__(self, *rows: QueueLag) -> None:
        self.rows = list(rows)
        self.asked: list[int] = []
        self.fails = False

    async def lags(self, fresh_ms: int = 0) -> list[QueueLag]:
        self.asked.append(fresh_ms)
        if self.fails:
            raise OSError("the store is closed")
        return self.rows


def record(partition: int, leader: str) -> PartitionRecord:
    """A partition of `default`."""
    return PartitionRecord(
        partition, "default", partition, 3, ("a", "b"), 1, PartitionStatus.ONLINE, Incarnation(leader, 1)
    )


RECORDS = {0: record(0, "a"), 1: record(1, "a"), 2: record(2, "b")}


def metrics_of(reader: Reader, fetched: Iterable[FetchedLag] = ()) -> LagMetrics:
    """Those of node a, which leads partitions 0 and 1."""
    return LagMetrics("a", reader, lambda: RECORDS, lambda: fetched)


def values_of(metrics: LagMetrics, side: str = "source") -> dict[str, float]:
    """Metric -> value of the one series of a side."""
    found = [(name, labels, value) for name, labels, value in metrics.samples() if labels["side"] == side]
    assert len({name for name, _, _ in found}) == len(found)
    return {name.removeprefix("isthmus_lag_"): value for name, _, value in found}


async def test_what_is_led_here_is_summed_as_the_command_does_it() -> None:
    """The metric has the worst partition's seconds, and the sums of objects and bytes. Partitions of other nodes are
    not counted as unknown."""
    metrics = metrics_of(Reader(queue(part(0, 3.5, 2, 200), part(1, 7.0, 1, 50))))
    assert list(metrics.samples()) == []
    await metrics.measure()
    assert values_of(metrics) == {"seconds": 7.0, "objects": 3, "bytes": 250, "unknown": 0}
    labels = next(iter(metrics.samples()))[1]
    assert labels == {"side": "source", "queue": "q", "peer_cluster": "west", "bucket_type": "default"}


@pytest.mark.parametrize("parts", [(part(0, 3.5, 2, 200),), (part(0, 3.5, 2, 200), part(1, None, None, None))])
async def test_a_partition_that_is_not_known_makes_all_of_it_not_known(parts: tuple[PartitionLag, ...]) -> None:
    """If it is led here and has no cursor yet, or was not read in time, the numbers are NaN, and `unknown` is 1."""
    metrics = metrics_of(Reader(queue(*parts)))
    await metrics.measure()
    values = values_of(metrics)
    assert values.pop("unknown") == 1
    assert all(map(isnan, values.values()))


async def test_a_number_alone_that_is_not_known_is_nan() -> None:
    """If there are too many objects to add up their sizes, seconds and objects are still known."""
    metrics = metrics_of(Reader(queue(part(0, 3.5, 20_000, None), part(1, 0.0, 0, 0))))
    await metrics.measure()
    values = values_of(metrics)
    assert isnan(values.pop("bytes"))
    assert values == {"seconds": 3.5, "objects": 20_000, "unknown": 0}


async def test_a_scrape_takes_a_reading_of_the_last_second() -> None:
    """Scrapes that come together, or just after `isthmus lag`, cost no reading of their own."""
    reader = Reader(queue(part(0, 1.0, 1, 1), part(1, 1.0, 1, 1)))
    await metrics_of(reader).measure()
    assert reader.asked == [FRESH_MS]


async def test_a_reading_that_fails_removes_the_numbers() -> None:
    """It is logged; the next one shows them again."""
    reader = Reader(queue(part(0, 1.0, 1, 1), part(1, 1.0, 1, 1)))
    metrics = metrics_of(reader)
    await metrics.measure()
    assert values_of(metrics)["objects"] == 2
    reader.fails = True
    with capture_logs() as logs:
        await metrics.measure()
    assert [event["event"] for event in logs] == ["metrics.lag_unread"]
    assert values_of(metrics) == {}
    reader.fails = False
    await metrics.measure()
    assert values_of(metrics)["objects"] == 2


async def test_the_sinks_side_is_what_was_fetched_and_is_not_stored() -> None:
    """It is labelled by the source cluster."""
    metrics = metrics_of(Reader(), [FetchedLag("to-east", "west", b"default", 0.5, 3, 300)])
    assert values_of(metrics, "sink") == {"seconds": 0.5, "objects": 3, "bytes": 300, "unknown": 0}

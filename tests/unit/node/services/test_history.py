"""The rings of a node's history: slots, rates, gaps, the day, clock changes, and the limit of its memory."""

from __future__ import annotations

import tracemalloc
from typing import Final

import numpy as np
import pytest

from isthmus.config.settings import MB
from isthmus.node.services.history import (
    COLUMN_BYTES,
    DAY,
    HOUR,
    MEMORY_LIMIT_BYTES,
    History,
    HistorySpan,
    Reading,
)
from isthmus.node.services.history_series import ALL_TYPES, COLUMNS, ISR_BASE, SAMPLED, Scope

START_MS: Final = 1_700_000_040_000 // DAY.step_ms * DAY.step_ms
"""The beginning of a minute."""

RSS: Final = COLUMNS["process.rss_bytes"]
CPU: Final = COLUMNS["process.cpu_percent"]
WRITES: Final = COLUMNS["replicate.write.per_s"]
LONGEST: Final = COLUMNS["replicate.write.max_ms"]
WORST: Final = COLUMNS["isr.worst"]


def sample(history: History, at_ms: int, *readings: Reading) -> None:
    """Add a sample taken `at_ms` after START_MS by both clocks."""
    history.add(readings, at_ms, START_MS + at_ms)


def places(history: History, name: str, count: int, span: HistorySpan = HOUR, label: str = "") -> list[float | None]:
    """The first places of a column since START_MS."""
    found = history.read(span, START_MS // span.step_ms, (name, label))
    assert found is not None
    assert len(found) == span.places
    return [None if np.isnan(value) else float(value) for value in found[:count]]


def test_gauges_are_kept_and_counters_become_rates() -> None:
    """The first sample only starts the counters; then a gauge is kept as it is, and a counter as its rate over the
    actual time between samples."""
    history = History()
    for at_ms, rss, cpu in ((0, 5, 100), (2_000, 6, 110), (4_000, 7, 110), (7_000, 8, 140)):
        sample(history, at_ms, (RSS, "", rss), (CPU, "", cpu))
    assert places(history, RSS.name, 5) == [None, 6, 7, 8, None]
    assert places(history, CPU.name, 5) == [None, 5, 0, 10, None]
    assert history.newest["process.cpu_percent", ""] == 10
    assert history.newest_ms == START_MS + 7_000


def test_places_without_a_sample_are_unknown() -> None:
    """While the process was blocked there are gaps, not the numbers before or after, and not those of an hour ago."""
    history = History()
    for place in range(HOUR.places):
        sample(history, 2_000 * place, (RSS, "", place))
    later = HOUR.places + 3
    sample(history, 2_000 * later, (RSS, "", -1))
    found = history.read(HOUR, START_MS // 2_000 + 4, (RSS.name, ""))
    assert found is not None
    assert np.isnan(found[HOUR.places - 4 : HOUR.places - 1]).all()
    assert found[HOUR.places - 1] == -1
    assert found[: HOUR.places - 4].tolist() == list(range(4, HOUR.places))


def test_a_pause_longer_than_the_ring_leaves_nothing_old() -> None:
    """After two hours without samples the hour has only the new one."""
    history = History()
    for at_ms in range(0, 200_000, 2_000):
        sample(history, at_ms, (RSS, "", 1))
    sample(history, 7_200_000, (RSS, "", 2))
    found = history.read(HOUR, (START_MS + 7_200_000) // 2_000 - HOUR.places + 1, (RSS.name, ""))
    assert found is not None
    assert np.isnan(found[:-1]).all()
    assert found[-1] == 2


def test_a_clock_that_is_set_back_repeats_its_time() -> None:
    """Samples after the step overwrite those of the repeated time; later ones are unknown until their time comes
    again."""
    history = History()
    for n in range(6):
        history.add([(RSS, "", n)], 2_000 * n, START_MS + 2_000 * n)
    history.add([(RSS, "", 70)], 12_000, START_MS + 4_000)
    assert places(history, RSS.name, 7) == [None, 1, 70, None, None, None, None]
    history.add([(RSS, "", 80)], 14_000, START_MS + 6_000)
    assert places(history, RSS.name, 7) == [None, 1, 70, 80, None, None, None]


def test_a_minute_is_merged_by_the_columns_rule() -> None:
    """For each minute, the day keeps the mean of gauges and rates over the existing samples, the largest maximum, and
    the worst ISR."""
    history = History()
    for n in range(40):
        sample(
            history,
            2_000 * n,
            (RSS, "", n),
            (LONGEST, "default", 100 - n),
            (WRITES, "default", 10 * n * n),
            (WORST, "default", ISR_BASE + 3 if n != 7 else 2),
        )
    assert places(history, RSS.name, 2, DAY) == [15, None]
    assert places(history, LONGEST.name, 2, DAY, "default") == [99, None]
    assert places(history, WRITES.name, 1, DAY, "default") == [pytest.approx(10 * 29 * 29 / 58)]
    assert places(history, WORST.name, 2, DAY, "default") == [2, None]


def test_a_minute_with_a_gap_is_made_of_its_samples_alone() -> None:
    """The mean of a minute of which half was missed is that of the other half; a missed minute is unknown."""
    history = History()
    for n in (*range(10), 90, 91):
        sample(history, 2_000 * n, (RSS, "", n))
    assert places(history, RSS.name, 4, DAY) == [5, None, None, None]


def test_numbers_over_all_bucket_types_are_kept_beside_each() -> None:
    """Rates are added, maxima are maxima, and the worst ISR is the worst of any type."""
    history = History()
    for n in (0, 1):
        for_type = [
            (WRITES, "default", 10 * n), (WRITES, "large", 2 * n), (LONGEST, "default", 7), (LONGEST, "large", 9),
            (WORST, "default", ISR_BASE + 3), (WORST, "large", -ISR_BASE + 1),
        ]  # fmt: skip
        sample(history, 2_000 * n, *for_type)
    assert places(history, WRITES.name, 2, label="default") == [None, 5]
    assert places(history, WRITES.name, 2, label=ALL_TYPES) == [None, 6]
    assert places(history, LONGEST.name, 2, label=ALL_TYPES) == [None, 9]
    assert places(history, WORST.name, 2, label=ALL_TYPES) == [None, 1 - ISR_BASE]


def test_what_never_happened_is_zero_where_the_node_was_there() -> None:
    """A kind of entry that comes first after a while had a rate of 0 before, but only where there are samples."""
    history = History()
    for at_ms in (0, 2_000, 8_000):
        sample(history, at_ms, (RSS, "", 1))
    assert places(history, WRITES.name, 6, label="default") == [None, 0, None, None, 0, None]
    sample(history, 10_000, (RSS, "", 1), (WRITES, "default", 8))
    assert places(history, WRITES.name, 6, label="default") == [None, 0, None, None, 0, 4]
    assert history.read(HOUR, 0, (LONGEST.name, "default")) is None


def test_a_counter_that_begins_again_is_unknown_once() -> None:
    """A queue that was delisted and registered again has no negative rate."""
    served = COLUMNS["queue.served_per_s"]
    history = History()
    for n, total in enumerate((100, 120, 4, 10)):
        sample(history, 2_000 * n, (served, "q", total))
    assert places(history, served.name, 4, label="q") == [None, 10, None, 3]


def test_columns_that_are_not_measured_for_a_day_are_given_back() -> None:
    """Names that come and go do not fill the memory: after a day without samples their space is reused, with nothing
    old in it."""
    history = History(limit_bytes=3 * COLUMN_BYTES)
    waiting = COLUMNS["queue.waiting"]
    for n in range(3):
        sample(history, 2_000 * n, (RSS, "", 1), (waiting, "old", 5))
    sample(history, 6_000, (RSS, "", 1), (waiting, "new", 6))
    assert history.left_out == 1
    assert history.labels(Scope.QUEUE) == ["old"]
    for minute in range(1, DAY.places + 4):
        sample(history, 60_000 * minute, (RSS, "", 1), (waiting, "new", 6))
    assert history.labels(Scope.QUEUE) == ["new"]
    assert history.left_out == 0
    end = (START_MS + 60_000 * (DAY.places + 3)) // DAY.step_ms
    found = history.read(DAY, end - DAY.places, (waiting.name, "new"))
    assert found is not None
    assert set(found[~np.isnan(found)].tolist()) <= {6.0}


def readings_of(types: int, queues: int, links: int, number: int) -> list[Reading]:
    """Everything that a node can report."""
    labels = {
        Scope.BUCKET_TYPE: [f"type-{n}" for n in range(types)],
        Scope.NODE: [ALL_TYPES],
        Scope.REQUEST: ["put", "get", "delete", "push", "repeated", "refused", "unknown"],
        Scope.QUEUE: [f"queue-to-cluster-{n}" for n in range(queues)],
        Scope.LINK: [f"queue-to-cluster-{n}@https://node-{n}.example.net:8098" for n in range(links)],
    }
    return [
        (column, label, float(number))
        for column in COLUMNS.values()
        if column.name != SAMPLED
        for label in labels[column.scope]
    ]


def test_the_memory_of_a_large_node_is_within_its_limit() -> None:
    """14 bucket types with every kind of entry, 10 queues and 10 links fit; Python's memory for them, including a
    sample in progress, is at most 16 MB."""
    sets = [readings_of(14, 10, 10, number) for number in range(4)]
    History()  # modules and caches
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        history = History()
        for n in range(65):
            sample(history, 2_000 * n, *sets[min(n, 3)])
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert history.left_out == 0
    assert MEMORY_LIMIT_BYTES == 16 * MB
    assert peak <= MEMORY_LIMIT_BYTES
    assert 0.9 * peak < history.size_bytes() <= MEMORY_LIMIT_BYTES


def test_what_does_not_fit_is_left_out_and_counted() -> None:
    """Beyond the limit columns of single bucket types are not kept, are unknown and not 0, and are counted; those over
    all types, and of queues and links, stay right."""
    history = History()
    for n in range(3):
        sample(history, 2_000 * n, *readings_of(40, 10, 10, n))
    assert history.size_bytes() <= MEMORY_LIMIT_BYTES
    assert history.left_out > 0
    applied = COLUMNS["apply.per_s"].name
    assert history.read(HOUR, 0, (applied, "type-39")) is None
    assert places(history, applied, 3) == [None, 20, 20]
    assert len(history.labels(Scope.LINK)) == len(history.labels(Scope.QUEUE)) == 10

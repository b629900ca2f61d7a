"""The store's writer: one batch at a time, in order, and no partition waits for another's backlog."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.runtime.applier import RETRY_PAUSES_S, Applier, ApplyJob
from isthmus.repl.store.port import PartitionStep, Prepared
from tests.support.memory_log import MemoryLog
from tests.support.memory_store import MemoryStore
from tests.support.runtime_cluster import eventually
from tests.support.waiting import PATIENCE_S


def entries(first: int, count: int, size: int = 100) -> list[Entry]:
    return [
        make_entry(
            EntryKind.CURSOR, 1, offset, request_id=b"", origin=b"o" * 16, time_ms=0, key=b"q", payload=b"x" * size
        )
        for offset in range(first, first + count)
    ]


class ApplierFixture:
    """An applier over memory logs and stores that records its writes in order."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.log.start(lambda _ends, _truncations: None, self.fail)
        self.store = MemoryStore()
        self.steps: list[tuple[int, int, int, bool]] = []
        self.commit_times: list[int] = []
        self.failures: list[Exception] = []
        self.ended: list[int] = []
        self.applier = Applier(self.store, self.log, self, asyncio.get_running_loop())

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def not_applied(self, partition: int, bug: Exception) -> None:
        self.ended.append(partition)

    def on_written(self, steps: list[PartitionStep], committed_ms: int, read_back: bool) -> None:
        if steps:
            self.commit_times.append(committed_ms)
        self.steps += [
            (s.partition, s.entries[0].offset, s.entries[-1].offset + 1, read_back) for s in steps if s.entries
        ]
        self.applier.written(steps)


async def test_a_long_backlog_does_not_hold_up_other_partitions(tmp_path: Path) -> None:
    """A partition that reads 40 MB back from the log gives way after each part to one whose entries are in memory."""

    fixture = ApplierFixture()
    fixture.log.append(0, entries(0, 40, 1_000_000))
    fixture.applier.submit([ApplyJob(0, 0, 40, None, 7)])
    fixture.applier.submit([ApplyJob(1, 0, 3, entries(0, 3), 7)])
    fixture.applier.start()
    await eventually(lambda: fixture.applier.idle)
    order = [partition for partition, _, _, _ in fixture.steps]
    assert order.count(0) >= 5
    assert order.index(1) == 1
    assert fixture.store.applied(0).offset == 40
    assert fixture.applier.stop(PATIENCE_S)
    assert not fixture.failures


async def test_a_step_is_reported_with_the_time_of_its_oldest_commit() -> None:
    """Entries that arrive while a step is written are written together, with the commit time of the oldest; so is each
    part of entries that are read back."""

    fixture = ApplierFixture()
    fixture.log.append(2, entries(0, 9, 1_000_000))
    fixture.applier.submit([ApplyJob(0, 0, 1, entries(0, 1), 10)])
    fixture.applier.submit([ApplyJob(0, 1, 2, entries(1, 1), 30)])
    fixture.applier.submit([ApplyJob(1, 0, 1, entries(0, 1), 20)])
    fixture.applier.start()
    await eventually(lambda: fixture.applier.idle)
    fixture.applier.submit([ApplyJob(2, 0, 9, None, 40)])
    await eventually(lambda: fixture.applier.idle)
    assert fixture.commit_times == [10, 20, 40, 40]
    assert fixture.applier.stop(PATIENCE_S)


async def test_read_back_and_memory_join_in_order() -> None:
    """Jobs of one partition are written in the order of their offsets, with entries from memory or from the log; the
    latter are reported as read back, and waiting ones are merged."""

    fixture = ApplierFixture()
    fixture.log.append(0, entries(0, 12))
    fixture.applier.submit([ApplyJob(0, 0, 2, None, 7), ApplyJob(0, 2, 5, None, 7)])
    fixture.applier.submit([ApplyJob(0, 5, 7, entries(5, 2), 7), ApplyJob(0, 7, 9, entries(7, 2), 7)])
    fixture.applier.submit([ApplyJob(0, 9, 10, None, 7), ApplyJob(0, 10, 12, None, 7)])
    fixture.applier.soft_cursor(0, b"q", b"soft")
    fixture.applier.start()
    await eventually(lambda: fixture.applier.idle)
    assert [(start, end) for _, start, end, back in fixture.steps if not back] == [(5, 9)]
    ends = [end for _, _, end, _ in fixture.steps]
    assert ends == sorted(ends)
    assert ends[-1] == 12
    assert [start for _, start, _, _ in fixture.steps] == [0, *ends[:-1]]
    assert fixture.store.cursor(0, b"q").soft == b"soft"
    assert fixture.applier.stop(PATIENCE_S)
    assert not fixture.failures


@pytest.mark.logs_errors("apply.step_failed")
@pytest.mark.parametrize("read_back", [False, True])
async def test_a_partition_that_failed_is_tried_again_in_order(
    monkeypatch: pytest.MonkeyPatch, read_back: bool
) -> None:
    """After each unforeseen exception the partition waits longer, and keeps its jobs and soft cursors; other partitions
    go on. A success ends the count, soft cursors that are written alone do not. After the last pause the partition
    ends, and takes no more."""

    monkeypatch.setattr("isthmus.repl.runtime.applier.RETRY_PAUSES_S", (0.05, 0.1, 0.2))
    fixture = ApplierFixture()
    prepare, fails = fixture.store.prepare, 0
    loop = asyncio.get_running_loop()
    times_s: list[float] = []

    def bad(steps: list[PartitionStep]) -> Prepared:
        nonlocal fails
        if fails and any(step.partition == 0 and step.entries for step in steps):
            fails -= len(steps) == 1
            times_s.append(loop.time())
            raise RuntimeError("made up by a test")
        return prepare(steps)

    monkeypatch.setattr(fixture.store, "prepare", bad)
    fixture.log.append(0, entries(0, 9))
    fixture.applier.start()
    for first in (0, 4):
        fails, seen = len(RETRY_PAUSES_S), len(fixture.steps)
        given = None if read_back else entries(first, 2)
        fixture.applier.soft_cursor(0, b"q", b"%d" % first)
        fixture.applier.submit([ApplyJob(0, first, first + 2, given, 7)])
        await eventually(lambda: fixture.applier._held)
        assert not fixture.applier.idle
        fixture.applier.submit([ApplyJob(0, first + 2, first + 4, entries(first + 2, 2), 7)])
        other = first // 4
        fixture.applier.submit([ApplyJob(1, other, other + 1, entries(other, 1), 7)])
        await eventually(lambda: fixture.applier.idle)
        assert {partition for partition, *_ in fixture.steps[seen:][:1]} == {1}
        assert [(start, end) for p, start, end, _ in fixture.steps[seen:] if p == 0][-1][1] == first + 4
        assert fixture.store.applied(0).offset == first + 4
        assert fixture.store.cursor(0, b"q").soft == b"%d" % first
        tries_s, times_s = times_s, []
        waited_s = [after - before for before, after in pairwise(tries_s)]
        assert len(waited_s) == 2
        assert waited_s[0] >= 0.05
        assert waited_s[1] >= 0.1
    fails = len(RETRY_PAUSES_S) + 1
    fixture.applier.submit([ApplyJob(0, 8, 9, None if read_back else entries(8, 1), 7)])

    def has_ended() -> bool:
        if not fixture.ended:
            fixture.applier.soft_cursor(0, b"q", b"alone")
            fixture.applier.flush_soft_cursors()
        return bool(fixture.ended)

    await eventually(has_ended)
    fixture.applier.submit([ApplyJob(0, 9, 10, entries(9, 1), 7)])
    assert (fixture.ended, fixture.applier.idle, fixture.store.applied(0).offset) == ([0], True, 8)
    assert fixture.applier.stop(PATIENCE_S)
    assert not fixture.failures

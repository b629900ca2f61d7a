"""The store's writer: one batch at a time, in order, and no partition waits for another's backlog."""

from __future__ import annotations

import asyncio
from pathlib import Path

from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.runtime.applier import Applier, ApplyJob
from isthmus.repl.store.port import PartitionStep
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
        self.applier = Applier(self.store, self.log, self, asyncio.get_running_loop())

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

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

"""The conditions under which the event loop writes a small batch itself, and the result."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.model.errors import LocalFault
from isthmus.repl.runtime.applier import LOOP_ENTRIES_MAX, Applier, ApplyJob
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep, Store
from isthmus.repl.store.write_stalls import (
    BATCH_BYTES_MAX,
    HOLD_S_MAX,
    LEVEL0_TABLES_MAX,
    LOOK_EVERY_BYTES,
    SLOW_S,
    WriteStallPredictor,
)
from tests.support.memory_log import MemoryLog
from tests.support.memory_store import MemoryStore
from tests.support.waiting import PATIENCE_S
from tests.unit.repl.runtime.test_applier import entries


class Database:
    """A fake database and clock for `WriteStallPredictor`."""

    def __init__(self, write_buffer_bytes: int = 64 << 20) -> None:
        self.tables = 0
        self.looks = 0
        self.now_s = 100.0
        self.at_once = WriteStallPredictor(self.get_property, lambda: self.now_s, write_buffer_bytes)

    def get_property(self, name: bytes) -> bytes:
        assert name == b"leveldb.num-files-at-level0"
        self.looks += 1
        return b"%d" % self.tables


def test_tables_of_level_0_that_pile_up_are_seen_before_they_make_a_writer_wait() -> None:
    """They are counted after every MB or write buffer that was written, and not with every batch."""
    for write_buffer, every in ((64 << 20, LOOK_EVERY_BYTES), (64 << 10, 64 << 10)):
        database = Database(write_buffer)
        for _ in range(8):
            assert database.at_once.takes(1000)
            database.at_once.wrote(every // 16, 0.0001)
        assert database.looks == 1
        database.tables = LEVEL0_TABLES_MAX + 1
        database.at_once.wrote(every // 2, 0.0001)
        assert not database.at_once.takes(1000)
        database.tables = LEVEL0_TABLES_MAX
        assert not database.at_once.takes(1000)
        database.at_once.wrote(every, 0.0001)
        assert database.at_once.takes(1000)
        assert database.looks == 3


@pytest.mark.parametrize(("took_s", "held_s"), [(SLOW_S, 100 * SLOW_S), (10.0, 1_000.0), (60.0, HOLD_S_MAX)])
def test_after_a_slow_write_the_thread_writes_for_a_hundred_times_as_long(took_s: float, held_s: float) -> None:
    """The time is at most an hour, for a slow write of the thread or of the loop; a write that is not slow changes
    nothing."""
    database = Database()
    database.at_once.wrote(1000, SLOW_S * 0.9)
    assert database.at_once.takes(1000)
    database.at_once.wrote(1000, took_s)
    database.now_s += held_s * 0.99
    assert not database.at_once.takes(1000)
    database.now_s += held_s * 0.02
    assert database.at_once.takes(1000)


def test_a_large_batch_is_not_for_the_loop() -> None:
    """A batch above the byte limit is never written by the loop."""
    assert Database().at_once.takes(BATCH_BYTES_MAX)
    assert not Database().at_once.takes(BATCH_BYTES_MAX + 1)


def test_the_stall_predictor_reads_the_state_of_leveldb(tmp_path: Path) -> None:
    """A new store accepts a few entries at once, but not a large batch, and after a slow write none."""
    store = LevelStore.open(
        tmp_path, cluster_uuid=b"c" * 16, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20, boot_id="boot"
    )
    try:
        few = store.prepare([PartitionStep(0, entries(0, 3))])
        assert store.takes_at_once(few)
        store.commit(few)
        large = store.prepare([PartitionStep(0, entries(3, 3, BATCH_BYTES_MAX))])
        assert not store.takes_at_once(large)
        store.commit(large)
        store._stalls.wrote(0, 1.0)
        last = store.prepare([PartitionStep(0, entries(6, 1))])
        assert not store.takes_at_once(last)
        store.commit(last)
        assert store.applied(0).offset == 7
    finally:
        store.close()


class ThreadRecordingStore(MemoryStore):
    """Records which thread writes."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[str] = []
        self.accepts_inline = True
        self.refuses = False

    def takes_at_once(self, prepared: Any) -> bool:
        return self.accepts_inline

    def commit(self, prepared: Any, *, patient: bool = True) -> None:
        if self.refuses:
            raise LocalFault("no room")
        self.threads.append(threading.current_thread().name)
        super().commit(prepared)


COMMITTED_MS = 7


class ApplierFixture:
    """An applier whose store records which thread writes."""

    def __init__(self, store: Store | None = None) -> None:
        self.store = ThreadRecordingStore()
        self.failures: list[Exception] = []
        self.applier = Applier(store or self.store, MemoryLog(), self, asyncio.get_running_loop())
        self.applier.start()

    def on_written(self, steps: list[PartitionStep], committed_ms: int, read_back: bool) -> None:
        """See ApplyEvents."""
        assert committed_ms == COMMITTED_MS
        assert not read_back
        self.applier.written(steps)

    def fail(self, error: Exception) -> None:
        """See ApplyEvents."""
        self.failures.append(error)

    async def applied(self, end: int) -> str:
        """The name of the thread that wrote up to there."""
        async with asyncio.timeout(PATIENCE_S):
            while self.store.applied(0).offset < end or not self.applier.idle:
                await asyncio.sleep(0.001)
        return self.store.threads[-1]


async def test_few_entries_are_written_by_the_loop_and_many_by_the_thread() -> None:
    """The choice depends on their number and on the store's prediction; in both cases they are applied in order, and
    while a batch waits for the loop's next turn the applier is not idle."""

    fixture = ApplierFixture()
    here = threading.current_thread().name
    fixture.applier.submit([ApplyJob(0, 0, 3, entries(0, 3), COMMITTED_MS)])
    assert not fixture.applier.idle
    assert fixture.store.applied(0).offset == 0
    assert await fixture.applied(3) == here
    many = 3 + LOOP_ENTRIES_MAX + 1
    fixture.applier.submit([ApplyJob(0, 3, many, entries(3, many - 3), COMMITTED_MS)])
    assert await fixture.applied(many) == "apply"
    fixture.store.accepts_inline = False
    fixture.applier.submit([ApplyJob(0, many, many + 1, entries(many, 1), COMMITTED_MS)])
    assert await fixture.applied(many + 1) == "apply"
    assert fixture.applier.stop(PATIENCE_S)
    assert not fixture.failures


async def test_nothing_is_written_by_the_loop_once_the_applier_is_stopped() -> None:
    """Entries that waited for the loop's next turn are not written, since the store is about to be closed."""

    fixture = ApplierFixture()
    fixture.applier.submit([ApplyJob(0, 0, 3, entries(0, 3), COMMITTED_MS)])
    assert fixture.applier.stop(PATIENCE_S)
    await asyncio.sleep(0.01)
    assert fixture.store.applied(0).offset == 0
    assert not fixture.store.threads


async def test_nothing_more_is_prepared_once_the_applier_is_stopped(tmp_path: Path) -> None:
    """A stop that does not wait for all committed entries closes the store before the thread's last report is
    processed: waiting entries stay in the log, and the closed store is not accessed."""

    store = LevelStore.open(
        tmp_path, cluster_uuid=b"c" * 16, write_buffer_bytes=1 << 20, block_cache_bytes=1 << 20, boot_id="boot"
    )
    fixture, loop = ApplierFixture(store), asyncio.get_running_loop()
    bugs: list[object] = []
    loop.set_exception_handler(lambda _loop, context: bugs.append(context))
    fixture.applier.submit([ApplyJob(0, 0, many := LOOP_ENTRIES_MAX + 1, entries(0, many), COMMITTED_MS)])
    fixture.applier.submit([ApplyJob(0, many, many + 1, entries(many, 1), COMMITTED_MS)])
    assert fixture.applier.stop(PATIENCE_S)  # the loop is blocked: the report waits
    store.close()
    await asyncio.sleep(0.01)
    assert not bugs
    assert store.applied(0).offset == many


async def test_a_write_by_the_loop_that_fails_ends_the_writing() -> None:
    """The failure is reported once, and nothing is written after it."""

    fixture = ApplierFixture()
    fixture.store.refuses = True
    fixture.applier.submit([ApplyJob(0, 0, 3, entries(0, 3), COMMITTED_MS)])
    await asyncio.sleep(0.01)
    assert [str(failure) for failure in fixture.failures] == ["no room"]
    fixture.store.refuses = False
    fixture.applier.submit([ApplyJob(0, 3, 4, entries(3, 1), COMMITTED_MS)])
    await asyncio.sleep(0.01)
    assert not fixture.store.threads
    assert fixture.applier.stop(PATIENCE_S)

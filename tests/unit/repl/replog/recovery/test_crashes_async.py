"""An async log is stopped at every step: written entries may be lost, but are never mixed up."""

from __future__ import annotations

from random import Random

import pytest

from isthmus.repl.replog import writer
from isthmus.repl.replog.log import FileLog
from tests.support.log_history import History, Listener, entries, open_log
from tests.support.memory_disk import MemoryDisk
from tests.unit.repl.replog.recovery.test_crashes import FIRST, SECOND, THIRD, HistoryWriter


@pytest.fixture(autouse=True)
def no_sync_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only files that end, STARTs and copies are synced, so that each run takes the same steps."""
    monkeypatch.setattr(writer, "ASYNC_SYNC_S", 1_000.0)


def write_history(disk: MemoryDisk) -> HistoryWriter:
    """The whole sequence of operations, or its part until the disk stops."""
    history_writer = HistoryWriter(disk, size_limit_bytes=2000, file_bytes=1000, durability="async")
    history_writer.process(*FIRST) and history_writer.process(*SECOND) and history_writer.process(*THIRD)
    return history_writer


def opened(disk: MemoryDisk, partitions: set[int]) -> FileLog:
    """The log, for a store that has nothing on disk."""
    return open_log(disk, size_limit_bytes=2000, durability="async", known_durable=dict.fromkeys(partitions, 0))


def prefixes(log: FileLog, history: History) -> dict[int, tuple[object, ...]]:
    """The recovered entries of each partition, checked to be a part of one of its earlier states that begins at or
    below its floor."""
    found = {}
    for partition, it in log.recovered().items():
        wires = tuple(entry.wire for entry in log.read(partition, it.start, it.leo, 1 << 30))
        states = {state[partition].wires for state in history.states if partition in state} | {()}
        assert len(wires) == it.leo - it.start
        assert any(len(state) >= it.leo and state[it.start : it.leo] == wires for state in states), (partition, it)
        assert it.start <= history.floors.get(partition, 0)
        found[partition] = (it.start, it.leo, it.epoch_table, wires)
    return found


@pytest.mark.parametrize("how", ["killed", "killed in a write"])
def test_a_killed_process_loses_nothing_that_was_reported(how: str) -> None:
    """Written bytes stay in the page cache, as with fsync."""
    stop_at = 0
    while True:
        stop_at += 1
        disk = MemoryDisk()
        disk.stop_at, disk.tear_write = stop_at, how == "killed in a write"
        history_writer = write_history(disk)
        if not disk.stopped:
            break
        disk.revive()
        log = open_log(disk, size_limit_bytes=2000, durability="async")
        history_writer.history.recovered_as(log)
        log.close()
    assert stop_at > 60


@pytest.mark.parametrize("how", ["lost", "torn"])
def test_after_a_power_loss_each_partition_is_as_it_once_was_and_goes_on(how: str) -> None:
    """For any subset of the unsynced bytes on disk, the log opens, keeps the beginning of an earlier state of each
    partition, treats it as complete from then on, and accepts entries."""
    stop_at = 0
    damaged = 0
    while True:
        stop_at += 1
        disk = MemoryDisk()
        disk.stop_at = stop_at
        history_writer = write_history(disk)
        if not disk.stopped:
            break
        for seed in range(2):
            after = disk.survivor(how, Random(2 * stop_at + seed))
            log = opened(after, set(history_writer.history.now))
            found = prefixes(log, history_writer.history)
            damaged += any(it.damage for it in log.recovered().values())
            listener = Listener(log)
            log.append(0, entries(9, log.leo(0), 1))
            assert listener.wait({0: log.leo(0)})
            log.close()
            log = opened(after, set(found))
            for partition, it in log.recovered().items():
                assert not it.damage
                assert partition == 0 or (it.start, it.leo, it.epoch_table) == found[partition][:3]
            log.close()
    assert stop_at > 60
    assert bool(damaged) == (how == "torn"), "only where a later write is there, and an earlier one not"

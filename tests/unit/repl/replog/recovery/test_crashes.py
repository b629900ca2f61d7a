"""The log is stopped at every write, sync, rename and unlink, and recovered from the remaining bytes (H37)."""

from __future__ import annotations

from random import Random

import pytest

from isthmus.repl.model.errors import LocalFault
from tests.support.log_history import History, Listener, entries, kill, open_log
from tests.support.memory_disk import MemoryDisk


class HistoryWriter:
    """One process after another on one disk, writing what the history notes; ends where the disk stops."""

    def __init__(self, disk: MemoryDisk, **options: object) -> None:
        self.disk = disk
        self.options = options
        self.history = History()
        self.seen = 0
        self.touched: dict[int, int] = {}

    def process(self, *acts: object) -> bool:
        """Open, do the acts one by one, each durable before the next, and close. False when the disk stopped."""
        try:
            log = open_log(self.disk, **self.options)
        except LocalFault:
            assert self.disk.stopped
            return False
        self.history.continued_from(self.history.recovered_as(log))
        listener = Listener(log)
        self.seen = 0
        try:
            for act in acts:
                act(self, log)  # type: ignore[operator]
                done = listener.wait({p: self.history.leo(p) for p in listener.durable | self.touched})
                for report in listener.reports[self.seen :]:
                    self.history.reported(report)
                self.seen = len(listener.reports)
                if not done:
                    return False
        except LocalFault:
            assert self.disk.stopped
            return False
        finally:
            try:
                log.close()
            except LocalFault:
                assert self.disk.stopped
        for report in listener.reports[self.seen :]:
            self.history.reported(report)
        return not self.disk.stopped


def append(partition: int, epoch: int, count: int, size: int = 20):
    """An act: append entries to a partition."""

    def act(history_writer: HistoryWriter, log) -> None:
        added = entries(epoch, log.leo(partition), count, size=size, tag=partition)
        history_writer.history.append(partition, added)
        history_writer.touched = {partition: 0}
        log.append(partition, added)

    return act


def truncate(partition: int, to_offset: int, epoch: int):
    """An act: truncate a partition."""

    def act(history_writer: HistoryWriter, log) -> None:
        history_writer.history.truncate(partition, to_offset)
        history_writer.touched = {partition: 0}
        log.truncate(partition, to_offset, epoch)

    return act


def together(*acts):
    """An act: several without waiting in between."""

    def act(history_writer: HistoryWriter, log) -> None:
        touched: dict[int, int] = {}
        for each in acts:
            each(history_writer, log)
            touched |= history_writer.touched
        history_writer.touched = touched

    return act


def trim(**floors: int):
    """An act: trim to floors p0=..., p1=..."""

    def act(history_writer: HistoryWriter, log) -> None:
        named = {int(name[1:]): floor for name, floor in floors.items()}
        for partition, floor in named.items():
            history_writer.history.floors[partition] = max(floor, history_writer.history.floors.get(partition, 0))
        history_writer.touched = {}
        log.trim(named)

    return act


FIRST = (
    append(4, 2, 1, 5),
    append(0, 1, 1),
    together(append(0, 1, 3), append(1, 1, 2), append(2, 4, 1)),
    append(1, 2, 2, 150),
    truncate(1, 3, 3),
    together(append(1, 3, 1), append(0, 1, 6, 100), truncate(0, 8, 2), append(0, 2, 2)),
)
SECOND = (
    append(2, 4, 5, 80),
    together(trim(p0=5, p1=1, p2=3), append(1, 3, 1)),
    append(0, 2, 3),
    together(truncate(2, 4, 5), append(2, 5, 2)),
    together(trim(p0=12, p1=4, p2=5), append(0, 2, 1)),
)
THIRD = (append(0, 3, 1), append(3, 1, 1))


def write_history(disk: MemoryDisk) -> HistoryWriter:
    """The whole sequence of operations, or its part until the disk stops."""
    history_writer = HistoryWriter(disk, size_limit_bytes=2000, file_bytes=1000)
    history_writer.process(*FIRST) and history_writer.process(*SECOND) and history_writer.process(*THIRD)
    return history_writer


def test_the_history_creates_truncates_trims_and_copies() -> None:
    """The sequence that the other tests stop somewhere does create files, truncate, trim and copy."""
    disk = MemoryDisk()
    history_writer = write_history(disk)
    assert not disk.stopped
    kinds = {step.split()[0] for step in disk.steps}
    assert kinds == {
        "create",
        "allocate",
        "write",
        "dsync",
        "fdatasync",
        "truncate",
        "fsync",
        "rename",
        "unlink",
        "sync",
    }
    log = open_log(disk)
    assert history_writer.history.recovered_as(log) == len(history_writer.history.states) - 1
    assert log.recovered()[0].start > 0
    assert log.recovered()[4].start == 0
    assert [extent.copied for extent in log._index.partitions[4].extents] == [True]
    log.close()


@pytest.mark.parametrize("how", ["killed", "killed in a write", "power lost", "power lost, parts on disk"])
def test_a_crash_anywhere_keeps_durable_entries_and_invents_none(how: str) -> None:
    """After a stop at any step, every reported entry is at its offset, and there is no entry that was not appended;
    entries that the next process reports survive the following power loss (R-FSYNC)."""
    stop_at = 0
    while True:
        stop_at += 1
        disk = MemoryDisk()
        disk.stop_at = stop_at
        disk.tear_write = how == "killed in a write"
        history_writer = write_history(disk)
        if not disk.stopped:
            break
        match how:
            case "power lost":
                found = [disk.survivor("lost", Random(0))]
            case "power lost, parts on disk":
                found = [disk.survivor("torn", Random(2 * stop_at + seed)) for seed in range(2)]
            case _:
                disk.revive()
                found = [disk]
        for after in found:
            check_continuation(history_writer.history, after)
    assert stop_at > 60


def check_continuation(history: History, disk: MemoryDisk) -> None:
    """The log on `disk` is one of those that it may be; a new process appends to it, and the power fails."""
    log = open_log(disk, size_limit_bytes=2000)
    state = history.states[history.recovered_as(log)]
    listener = Listener(log)
    added = entries(9, log.leo(0), 1)
    log.append(0, added)
    assert listener.wait({0: log.leo(0)})
    kill(log, disk)
    log = open_log(disk.survivor("lost", Random(0)))
    for partition, found in log.recovered().items():
        wires = state[partition].wires if partition in state else ()
        if partition == 0:
            wires = (*wires, added[0].wire)
        read = tuple(entry.wire for entry in log.read(partition, found.start, found.leo, 1 << 30))
        assert (found.leo, found.damage, read) == (len(wires), "", wires[found.start :])
    log.close()


def test_a_power_loss_in_the_middle_of_much_copying_loses_nothing() -> None:
    """A power loss while a trim copies several batches, which keeps any parts of them, damages no partition."""
    stop_at = 0
    copied = False
    while not copied:
        stop_at += 1
        disk = MemoryDisk()
        history = History()
        log = open_log(disk, size_limit_bytes=9000, file_bytes=8000, batch_bytes=400)
        listener = Listener(log)
        for partition, size in ((1, 80), (0, 400)):
            for _ in range(10 if partition else 30):
                added = entries(1, log.leo(partition), 1, size=size, tag=partition)
                history.append(partition, added)
                log.append(partition, added)
                assert listener.wait({partition: log.leo(partition)})
        history.durable_at = len(history.states) - 1
        history.floors = {0: 30, 1: 0}
        before = len(disk.steps)
        disk.stop_at = before + stop_at
        log.trim({0: 30})
        added = entries(1, 30, 1)
        history.append(0, added)
        log.append(0, added)
        copied = listener.wait({0: 31})
        kill(log, disk)
        assert not copied or sum(step.startswith("write") for step in disk.steps[before:]) > 4
        for seed in range(3):
            log = open_log(disk.survivor("torn", Random(seed)))
            history.recovered_as(log)
            log.close()
    assert stop_at > 10

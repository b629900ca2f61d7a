"""Shared by the log's tests: entries, a log opened on a memory disk, and a history to check recovery against."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.replog.epochs import clipped, extended, truncated
from isthmus.repl.replog.frames import FILE_HEADER_BYTES
from isthmus.repl.replog.index import LogFile
from isthmus.repl.replog.log import FileLog
from isthmus.repl.replog.port import EpochTable, Replog
from isthmus.repl.replog.reader import LogFileReader, LogFrame
from tests.support.memory_disk import MemoryDisk
from tests.support.waiting import PATIENCE_S

CLUSTER = bytes(range(16))
DIRECTORY = Path("/log")


def entries(epoch: int, first: int, count: int, *, size: int = 20, tag: int = 0) -> list[Entry]:
    """`count` entries from offset `first` on; their bytes encode (tag, epoch, offset)."""
    return [
        make_entry(
            EntryKind.DATA,
            epoch,
            offset,
            request_id=b"",
            origin=CLUSTER,
            time_ms=1_700_000_000_000 + offset,
            key=b"k%d" % tag,
            payload=(b"%d/%d/%d." % (tag, epoch, offset)).ljust(size, b"x"),
        )
        for offset in range(first, first + count)
    ]


def open_log(io: Any, directory: Path = DIRECTORY, **options: Any) -> FileLog:
    """A small log on `io`: files of 600 bytes, batches of 400, unless given otherwise."""
    settings = {
        "cluster_uuid": CLUSTER,
        "durability": "fsync",
        "size_limit_bytes": 1 << 20,
        "file_bytes": 600,
        "batch_bytes": 400,
        "reserve_bytes": 1000,
    } | options
    return FileLog.open(directory, io=io, **settings)


class Listener:
    """Records the reports of a log and waits for them."""

    def __init__(self, log: Replog, on_above_limit: Callable[[], None] = lambda: None) -> None:
        self.log = log
        self.reports: list[dict[int, int]] = []
        self.truncated: list[dict[int, int]] = []
        self.durable: dict[int, int] = {}
        self.failures: list[Exception] = []
        self._changed = threading.Condition()
        log.start(self._on_durable, self._on_failure, on_above_limit)

    def _on_durable(self, durable: Mapping[int, int], truncated: Mapping[int, int]) -> None:
        with self._changed:
            self.reports.append(dict(durable))
            self.truncated.append(dict(truncated))
            self.durable.update(durable)
            self._changed.notify_all()

    def _on_failure(self, error: Exception) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait(self, wanted: Mapping[int, int]) -> bool:
        """Wait until each partition is durable up to exactly the wanted offset; False when the log failed first."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not self.failures and any(self.durable.get(p) != end for p, end in wanted.items()):
                assert self._changed.wait(deadline - time.monotonic()), f"not durable: {wanted}, but {self.durable}"
            return not self.failures

    def wait_for_failure(self) -> Exception:
        """Wait until the log failed."""
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not self.failures:
                assert self._changed.wait(deadline - time.monotonic()), "the log did not fail"
            return self.failures[0]


def whole_frames(disk: MemoryDisk, name: str) -> list[LogFrame]:
    """The frames of a log file, all complete, up to its end or to unused room."""
    frames: list[LogFrame] = []
    with LogFileReader(disk, LogFile(0, DIRECTORY / name, None, 0)) as reader:
        reader.file_header()
        position = FILE_HEADER_BYTES
        while not reader.is_unused(position):
            frames.append(reader.frame(position))
            position = frames[-1].end
    return frames


def kill(log: FileLog, disk: Any) -> None:
    """End the process that has the log open: nothing more reaches the memory disk."""
    disk.stopped = True
    with contextlib.suppress(LocalFault):
        log.close()


class PartitionState(NamedTuple):
    """A partition as the history has it: all wires ever at [0, leo), and the epochs."""

    wires: tuple[bytes, ...] = ()
    table: EpochTable = ()


class History:
    """All states that a log went through, one after each call, and the highest offset reported durable."""

    def __init__(self) -> None:
        self.states: list[dict[int, PartitionState]] = [{}]
        self.durable_at = 0
        """The newest state that must survive."""
        self.floors: dict[int, int] = {}

    @property
    def now(self) -> dict[int, PartitionState]:
        return self.states[-1]

    def leo(self, partition: int) -> int:
        return len(self.now.get(partition, PartitionState()).wires)

    def append(self, partition: int, added: Sequence[Entry]) -> None:
        for entry in added:  # one state an entry: a long append may take more than one batch
            state = self.now.get(partition, PartitionState())
            table = extended(state.table, entry.epoch, entry.offset)
            self._next(partition, PartitionState((*state.wires, entry.wire), table))

    def truncate(self, partition: int, to_offset: int) -> None:
        state = self.now[partition]
        self._next(partition, PartitionState(state.wires[:to_offset], truncated(state.table, to_offset)))

    def _next(self, partition: int, state: PartitionState) -> None:
        self.states.append(self.now | {partition: state})

    def reported(self, report: Mapping[int, int]) -> None:
        """Note a durability report of the log: the first state that agrees with it, and all before, must survive."""
        for at in range(self.durable_at, len(self.states)):
            if all(len(self.states[at].get(p, PartitionState()).wires) == end for p, end in report.items()):
                self.durable_at = at
                return
        raise AssertionError(f"the log reports {report}, which it never was")

    def recovered_as(self, log: FileLog) -> int:
        """The index of the state that the log was recovered as; fails when no permitted state matches, or when any
        partition is damaged."""
        for partition, found in log.recovered().items():
            assert not found.damage, f"partition {partition} is called damaged: {found.damage}"
        for at in range(len(self.states) - 1, self.durable_at - 1, -1):
            if all(self._same(log, p, self.states[at].get(p, PartitionState())) for p in self.states[-1]):
                return at
        raise AssertionError(
            f"recovered {dict(log.recovered())}, but durable was {_lengths(self.states[self.durable_at])} "
            f"and newest {_lengths(self.now)}"
        )

    def _same(self, log: FileLog, partition: int, state: PartitionState) -> bool:
        leo = len(state.wires)
        if log.leo(partition) != leo:
            return False
        found = log.recovered().get(partition)
        start = found.start if found else 0
        assert start <= max(self.floors.get(partition, 0), 0), (
            f"partition {partition} begins at {start}, above its floor"
        )
        if log.epoch_table(partition) != clipped(state.table, start):
            return False
        read = log.read(partition, start, leo, 1 << 30)
        return tuple(entry.wire for entry in read) == state.wires[start:]

    def continued_from(self, at: int) -> None:
        """A new process has recovered state `at`: drop all later states."""
        del self.states[at + 1 :]
        self.durable_at = at


def _lengths(state: Mapping[int, PartitionState]) -> dict[int, int]:
    return {partition: len(held.wires) for partition, held in state.items()}

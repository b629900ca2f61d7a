"""The log's memory twin: the same port without files, for tests of the layers above it.

It has no thread: appended entries become durable, and are reported, within the call; with `hold` not before `commit`.
Nothing survives it. The contract suite in `tests/contract/test_replog.py` runs on both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter

from isthmus.repl.model.entry import Entry, decode_entry
from isthmus.repl.model.errors import LocalFault, OutOfStorage
from isthmus.repl.replog.epochs import clipped, extended, last_epoch, truncated
from isthmus.repl.replog.frames import EntryRunKind, decode_runs, decode_wires, encode_entries
from isthmus.repl.replog.port import (
    NO_PINS,
    PINNED_SHARE,
    EncodedRun,
    EpochTable,
    LogStats,
    OnAboveLimit,
    OnDurable,
    RecoveredPartition,
    pinned_floors,
)


class _Partition:
    __slots__ = ("abandoned", "durable", "entries", "start", "table")

    def __init__(self) -> None:
        self.abandoned = False
        self.start = 0
        self.durable = 0
        self.entries: list[Entry] = []
        """Entries from `start` on."""
        self.table: EpochTable = ()

    @property
    def leo(self) -> int:
        return self.start + len(self.entries)


class MemoryLog:
    """A log of at most `size_limit_bytes` of entries below the floors; `capacity_bytes` is the size of its "disk"."""

    def __init__(self, *, size_limit_bytes: int = 1 << 30, capacity_bytes: int = 1 << 40, hold: bool = False) -> None:
        self._size_limit_bytes = size_limit_bytes
        self._capacity_bytes = capacity_bytes
        self._hold = hold
        self._gathering = False
        self._partitions: dict[int, _Partition] = {}
        self._touched: dict[int, None] = {}
        self._truncated: dict[int, int] = {}
        self._on_durable: OnDurable | None = None
        self._on_failure: Callable[[Exception], None] = lambda _: None
        self._on_above_limit: OnAboveLimit = lambda: None
        self._failure: Exception | None = None
        self._closed = False
        self._size_bytes = 0
        self._entries_queued = 0
        self._entries_written = 0
        self._batches_written = 0

    def recovered(self) -> Mapping[int, RecoveredPartition]:
        return {}

    def start(
        self,
        on_durable: OnDurable,
        on_failure: Callable[[Exception], None],
        on_above_limit: OnAboveLimit = lambda: None,
    ) -> None:
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._on_above_limit = on_above_limit

    def commit(self) -> None:
        """Make queued entries durable, and report them."""
        if not self._touched or self._failure is not None:
            return
        assert self._on_durable is not None
        touched, self._touched = self._touched, {}
        truncated, self._truncated = self._truncated, {}
        for partition in touched:
            self._partitions[partition].durable = self._partitions[partition].leo
        self._entries_written = self._entries_queued
        self._batches_written += 1
        self._on_durable({partition: self._partitions[partition].durable for partition in touched}, truncated)
        if self._size_bytes > self._size_limit_bytes:
            self._on_above_limit()

    def fail(self, error: Exception) -> None:
        """Behave as if a write had failed with `error`."""
        if self._failure is None:
            self._failure = error
            self._on_failure(error)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise LocalFault(f"the log has failed: {self._failure}") from self._failure
        if self._closed:
            raise LocalFault("the log is closed")
        assert self._on_durable is not None, "the log is written to before it was started"

    def has_space(self, size_bytes: int) -> bool:
        return self._size_bytes + size_bytes <= self._capacity_bytes

    def has_space_for_barriers(self) -> bool:
        return self.has_space(0)

    @property
    def shortage(self) -> str:
        """See the port: nothing but its capacity is ever short."""
        return ""

    def refresh_free_space(self) -> None:
        """See the port: no other process fills it."""

    def append(self, partition: int, entries: Sequence[Entry]) -> list[EncodedRun]:
        self._check_usable()
        held = self._partitions.setdefault(partition, _Partition())
        assert not held.abandoned, "entries in a log that is given up"
        offset, table = held.leo, held.table
        for entry in entries:
            assert entry.offset == offset, f"offset {entry.offset} does not follow on {offset - 1}"
            table = extended(table, entry.epoch, offset)
            offset += 1
        size = sum(len(entry.wire) for entry in entries)
        if not entries:
            return []
        if not self.has_space(size):
            raise OutOfStorage("the memory log is full")
        previous_epoch = last_epoch(held.table)
        held.entries.extend(entries)
        held.table = table
        self._size_bytes += size
        self._entries_queued += len(entries)
        self._queued(partition)
        runs = []
        for epoch, group in groupby(entries, attrgetter("epoch")):
            of_epoch = list(group)
            wires = [entry.wire for entry in of_epoch]
            base = of_epoch[0].offset
            buffers = encode_entries(
                EntryRunKind.ENTRIES, partition, epoch, previous_epoch, base, wires, [len(wire) for wire in wires]
            )
            runs.append(EncodedRun(partition, epoch, base, len(of_epoch), buffers))
            previous_epoch = epoch
        return runs

    def append_encoded(self, runs: Sequence[EncodedRun]) -> None:
        for run in runs:
            body = b"".join(run.buffers)
            (found,) = decode_runs(body, 1)
            wires = decode_wires(body, found, run.base, run.base + run.entry_count)
            self.append(run.partition, [decode_entry(wire) for wire in wires])

    def truncate(self, partition: int, to_offset: int, epoch: int) -> None:
        self._check_usable()
        held = self._partitions.setdefault(partition, _Partition())
        assert held.start <= to_offset <= held.leo, f"truncation to {to_offset} outside the log"
        assert epoch >= last_epoch(truncated(held.table, to_offset))
        if partition in self._touched:
            self.commit()  # entries appended before are reported before
        self._size_bytes -= sum(len(entry.wire) for entry in held.entries[to_offset - held.start :])
        del held.entries[to_offset - held.start :]
        held.table = truncated(held.table, to_offset)
        held.durable = min(held.durable, to_offset)
        self._truncated[partition] = to_offset
        self._queued(partition)

    def restart(self, partition: int, at_offset: int, table: EpochTable) -> None:
        self._check_usable()
        held = self._partitions.setdefault(partition, _Partition())
        if partition in self._touched:
            self.commit()  # entries appended before are reported before
        self._size_bytes -= sum(len(entry.wire) for entry in held.entries)
        held.entries = []
        held.abandoned = False
        held.start = held.durable = at_offset
        held.table = clipped(table, at_offset)
        self._truncated[partition] = at_offset
        self._queued(partition)

    def abandon(self, partition: int) -> None:
        if partition in self._partitions:
            self._partitions[partition].abandoned = True

    @contextmanager
    def grouped(self) -> Iterator[None]:
        assert not self._gathering
        self._gathering = True
        try:
            yield
        finally:
            self._gathering = False
            if not self._hold:
                self.commit()

    def _queued(self, partition: int) -> None:
        self._touched[partition] = None
        if not self._hold and not self._gathering:
            self.commit()

    def leo(self, partition: int) -> int:
        held = self._partitions.get(partition)
        return held.leo if held else 0

    def start_of(self, partition: int) -> int:
        held = self._partitions.get(partition)
        return held.start if held else 0

    def epoch_table(self, partition: int) -> EpochTable:
        held = self._partitions.get(partition)
        return held.table if held else ()

    def read(self, partition: int, from_offset: int, to_offset: int, max_bytes: int) -> list[Entry]:
        held = self._partitions.get(partition)
        if held is None or from_offset >= min(to_offset, held.durable):
            return []
        if from_offset < held.start:
            raise LookupError(f"partition {partition}: offset {from_offset} is below the log's start {held.start}")
        entries: list[Entry] = []
        for entry in held.entries[from_offset - held.start : min(to_offset, held.durable) - held.start]:
            max_bytes -= len(entry.wire)
            if entries and max_bytes < 0:
                break
            entries.append(entry)
        return entries

    def trim(self, floors: Mapping[int, int], pins: Mapping[int, int] = NO_PINS) -> None:
        self._free(pinned_floors(floors, pins), self._size_limit_bytes)
        if pins:
            self._free(floors, self._size_limit_bytes * (1 + PINNED_SHARE))

    def _free(self, floors: Mapping[int, int], limit_bytes: int) -> None:
        for partition, held in self._partitions.items():
            if self._size_bytes <= limit_bytes:
                return
            floor = held.leo if held.abandoned else floors.get(partition, 0)
            start = max(held.start, min(floor, held.durable))
            self._size_bytes -= sum(len(entry.wire) for entry in held.entries[: start - held.start])
            del held.entries[: start - held.start]
            held.start = start
            held.table = clipped(held.table, start)

    def sync(self) -> None:
        """Nothing to do without a disk."""

    def stats(self) -> LogStats:
        return LogStats(
            size_bytes=self._size_bytes,
            file_count=1,
            entries_written=self._entries_written,
            batches_written=self._batches_written,
            fsync_count=0,
            fsync_seconds=0.0,
            free_bytes=1 << 40,
        )

    def close(self) -> None:
        if not self._closed and self._failure is None:
            self.commit()
        self._closed = True

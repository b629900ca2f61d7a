"""The index of the log: which range of offsets of each partition is in which file, and where to start reading.

It holds durable entries only. The writer changes it under `LogIndex.lock`; readers in any thread look positions up
under this lock and then read the file without it. An extent has one position per INDEX_STRIDE_BYTES of file, so the
size of the log bounds the memory, not the number of entries or batches. No I/O; see `repl.replog.reader`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.repl.machine import MemoryLock, ThreadLock
from isthmus.repl.replog.epochs import clipped, common_end, extended, truncated
from isthmus.repl.replog.port import EpochTable

INDEX_STRIDE_BYTES: Final = 64 * 1024
"""Distance between indexed positions: a read skips at most this much before its first entry (some 50 µs), and a log of
1 GB takes at most 16,384 positions of 16 bytes per partition."""


@dataclass(slots=True)
class LogFile:
    """One file of the log; `salt` is None when its header cannot be read.

    Preallocated space may follow its `size_bytes`; `disk_bytes` includes it.
    """

    sequence: int
    path: Path
    salt: int | None
    size_bytes: int
    disk_bytes: int = 0


class IndexPosition(NamedTuple):
    """Where to start reading: the file, a frame at or before the wanted entry, which runs count (copied or new), and up
    to which offset."""

    sequence: int
    position: int
    end: int
    copied: bool


class Extent:
    """Entries [first, end) of one partition in one file, in file order, without a truncation among them."""

    __slots__ = ("_offsets", "_positions", "copied", "end", "first", "growing", "sequence")

    def __init__(self, sequence: int, position: int, first: int, end: int, copied: bool) -> None:
        self.sequence = sequence
        self.first = first
        self.end = end
        self.copied = copied
        self.growing = True
        self._offsets = array("Q", (first,))
        self._positions = array("Q", (position,))

    def grow(self, position: int, end: int) -> None:
        """Add entries up to `end`, in the frame at `position`."""
        if position - self._positions[-1] >= INDEX_STRIDE_BYTES:
            self._offsets.append(self.end)
            self._positions.append(position)
        self.end = end

    def cut(self, end: int) -> None:
        """Drop entries from `end` on, and stop growing.

        The file now holds two versions of these offsets, and a reader that starts here must not reach the later one.
        """
        self.end = min(self.end, end)
        self.growing = False

    def before(self, end: int) -> Extent:
        """Return a copy that ends at `end`."""
        part = Extent(self.sequence, self._positions[0], self.first, self.end, self.copied)
        part._offsets = self._offsets[:]
        part._positions = self._positions[:]
        part.cut(end)
        return part

    def locate(self, offset: int) -> IndexPosition:
        """Return where to start reading for `offset`, which lies in [first, end)."""
        point = max(0, bisect_right(self._offsets, offset) - 1)
        return IndexPosition(self.sequence, self._positions[point], self.end, self.copied)


class PartitionIndex:
    """One partition's log: entries [start, leo), its epochs, and the extents that hold them, by offset."""

    __slots__ = ("abandoned", "extents", "leo", "start", "table", "truncations")

    def __init__(self, start: int = 0, leo: int = 0, table: EpochTable = ()) -> None:
        self.start = start
        self.leo = leo
        self.table = table
        self.extents: list[Extent] = []
        self.truncations = 0
        """Number of truncations: entries read before and after one belong to different logs."""
        self.abandoned = False
        """None of the entries is needed, until a restart."""

    def add(self, sequence: int, position: int, epoch: int, base: int, count: int) -> None:
        """Append `count` new entries of `epoch` at the LEO, in the frame at `position`."""
        assert base == self.leo, f"entries at {base} do not follow on {self.leo}"
        assert not self.abandoned, f"entries at {base} in a log that is given up"
        self.table = extended(self.table, epoch, base)
        self.leo = base + count
        last = self.extents[-1] if self.extents else None
        if last is not None and last.growing and not last.copied and last.sequence == sequence and last.end == base:
            last.grow(position, self.leo)
        else:
            self.extents.append(Extent(sequence, position, base, self.leo, copied=False))

    def copy(self, sequence: int, position: int, first: int, end: int) -> None:
        """Entries [first, end), which the log has, are now (also) in the frame at `position`."""
        first, end = max(first, self.start), min(end, self.leo)
        if first >= end:
            return
        kept: list[Extent] = []
        for extent in self.extents:
            if extent.first < first < extent.end:
                kept.append(extent.before(first))
            if extent.first < end < extent.end:
                extent.first = end
            if extent.end <= first or extent.first >= end:
                kept.append(extent)
        at = bisect_right(kept, first, key=lambda extent: extent.first)
        before = kept[at - 1] if at else None
        if before and before.growing and before.copied and before.sequence == sequence and before.end == first:
            before.grow(position, end)
        else:
            kept.insert(at, Extent(sequence, position, first, end, copied=True))
        self.extents = kept

    def truncate(self, to_offset: int) -> None:
        """Drop the entries from `to_offset` on."""
        self.truncations += 1
        self.leo = to_offset
        self.table = truncated(self.table, to_offset)
        self._cut_extents(to_offset)

    def _cut_extents(self, to_offset: int) -> None:
        while self.extents and self.extents[-1].first >= to_offset:
            self.extents.pop()
        if self.extents:
            self.extents[-1].cut(to_offset)

    def trim(self, start: int) -> None:
        """Move the log's start to `start`."""
        self.start = max(self.start, start)
        self.table = clipped(self.table, self.start)
        while self.extents and self.extents[0].end <= self.start:
            self.extents.pop(0)
        if self.extents:
            self.extents[0].first = max(self.extents[0].first, self.start)

    def assume(self, start: int, leo: int, table: EpochTable) -> None:
        """Adopt the state that the log states; extents stay as far as both agree."""
        self.trim(start)
        agreed = common_end(self.table, self.leo, clipped(table, self.start), leo)
        if agreed < self.leo:
            self._cut_extents(agreed)
        self.leo = max(leo, self.start)
        self.table = clipped(table, self.start)

    def restart(self, at_offset: int, table: EpochTable) -> None:
        """Drop everything: the log begins and ends at `at_offset`."""
        self.truncations += 1
        self.abandoned = False
        self.start = self.leo = at_offset
        self.table = clipped(table, at_offset)
        self.extents = []

    def interrupt(self) -> None:
        """Put later entries into new extents: readers cannot pass the current position of the file."""
        for extent in self.extents:
            extent.growing = False

    def first_gap(self) -> int:
        """Return the first offset in [start, leo] without an extent; the LEO when all are present."""
        at = self.start
        for extent in self.extents:
            if extent.first > at:
                break
            at = max(at, extent.end)
        return min(at, self.leo)

    def locate(self, offset: int) -> IndexPosition:
        """Return where to start reading for `offset`, which lies in [start, leo)."""
        extent = self.extents[bisect_right(self.extents, offset, key=lambda extent: extent.first) - 1]
        assert extent.first <= offset < extent.end, f"offset {offset} is in no extent"
        return extent.locate(offset)

    def spans_in(self, sequence: int) -> list[tuple[int, int]]:
        """Return the ranges [first, end) in file `sequence`, ascending."""
        return [(extent.first, extent.end) for extent in self.extents if extent.sequence == sequence]


@dataclass(slots=True)
class LogIndex:
    """All partitions and all files, oldest first. Change it, and read more than one field, under `lock`."""

    partitions: dict[int, PartitionIndex] = field(default_factory=dict)
    files: list[LogFile] = field(default_factory=list)
    lock: ThreadLock = field(default_factory=MemoryLock)

    def partition(self, partition: int) -> PartitionIndex:
        """Return the partition's index, created if new."""
        index = self.partitions.get(partition)
        if index is None:
            index = self.partitions[partition] = PartitionIndex()
        return index

    def file(self, sequence: int) -> LogFile | None:
        """Return the file with this number, None once it was trimmed."""
        return next((file for file in self.files if file.sequence == sequence), None)

    def size_bytes(self) -> int:
        """Bytes of all files, including preallocated space."""
        return sum(file.disk_bytes for file in self.files)


def states(partitions: dict[int, PartitionIndex]) -> Sequence[tuple[int, int, int, EpochTable]]:
    """Return (partition, start, LEO, epoch table) of each partition, in order."""
    return [(p, index.start, index.leo, index.table) for p, index in sorted(partitions.items())]

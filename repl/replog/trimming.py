"""Trimming: delete the oldest log files after copying forward the entries in them that are still needed.

It may stop anywhere: copies and new starts are on disk before a file is unlinked, and copies are recognised as such, in
place of the originals. It runs in the log's writer thread. The writer decides that the log is too large; the store's
`floors` decide which entries are needed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from isthmus.repl.model.errors import StorageShort
from isthmus.repl.replog.epochs import clipped
from isthmus.repl.replog.files import FileIO
from isthmus.repl.replog.frames import EntryRunKind, encode_entries, encode_state
from isthmus.repl.replog.index import LogFile, LogIndex
from isthmus.repl.replog.reader import LogFileReader
from isthmus.repl.replog.tail import LogTail
from isthmus.repl.shortage import is_shortage

COPY_SHARE: Final = 4
"""At most this part (a quarter) of the oldest file's size is copied forward at one time; if more is needed, the file
stays and the log exceeds its limit. Copying nearly all of a file would write much to free little, again and again."""


class _Copy(NamedTuple):
    partition: int
    epoch: int
    base: int
    wires: list[bytes]
    lengths: list[int]
    size_bytes: int


@dataclass(slots=True)
class _Plan:
    """Files to delete, the start of each partition afterwards, and the entries to copy first."""

    files: list[LogFile] = field(default_factory=list)
    starts: dict[int, int] = field(default_factory=dict)
    copies: list[_Copy] = field(default_factory=list)
    budget_bytes: int = 0


def trim(
    io: FileIO,
    directory: Path,
    index: LogIndex,
    tail: LogTail,
    floors: Mapping[int, int],
    *,
    excess_bytes: int,
    batch_bytes: int,
) -> None:
    """Delete the oldest files until `excess_bytes` are free, as far as they are not needed.

    Raises OSError, Corruption when needed entries cannot be read, and StorageShort when a file cannot be opened,
    written or removed now: what was not done then is done by a later trim.
    """
    plan = _Plan(budget_bytes=index.files[0].size_bytes // COPY_SHARE)
    for file in index.files[:-1]:
        if excess_bytes <= 0 or not _extend(plan, io, index, file, floors):
            break
        excess_bytes -= file.disk_bytes
    if not plan.files:
        return
    if plan.starts:
        _write(plan, index, tail, batch_bytes)
    tail.sync()
    with index.lock:
        del index.files[: len(plan.files)]
    try:
        _unlink(io, directory, index, plan.files)
    except OSError as error:
        if is_shortage(error):  # nothing in them is needed, so a later trim, or the next start, removes what is left
            raise StorageShort(f"old log files cannot be removed: {error.strerror}") from error
        raise


def _extend(plan: _Plan, io: FileIO, index: LogIndex, file: LogFile, floors: Mapping[int, int]) -> bool:
    """Add `file` to the plan; False when too much of it is needed."""
    starts: dict[int, int] = {}
    needed: list[tuple[int, int, int]] = []
    for partition, held in index.partitions.items():
        spans = held.spans_in(file.sequence)
        if spans:
            floor = held.leo if held.abandoned else floors.get(partition, 0)
            start = max(held.start, plan.starts.get(partition, 0), min(floor, spans[-1][1]))
            starts[partition] = start
            needed += [(partition, max(first, start), end) for first, end in spans if end > start]
    copies: list[_Copy] = []
    budget_bytes = plan.budget_bytes
    if needed:
        with _opened(io, file) as reader:
            for partition, first, end in needed:
                place = index.partitions[partition].locate(first)
                for epoch, base, wires in reader.wires(partition, first, end, place.position, place.copied):
                    lengths = list(map(len, wires))
                    budget_bytes -= sum(lengths)
                    if budget_bytes < 0:
                        return False
                    copies.append(_Copy(partition, epoch, base, wires, lengths, sum(lengths)))
    plan.files.append(file)
    plan.starts |= starts
    plan.copies += copies
    plan.budget_bytes = budget_bytes
    return True


def _unlink(io: FileIO, directory: Path, index: LogIndex, files: list[LogFile]) -> None:
    """Remove files that the index has no more; it gets those back that are still there."""
    left = list(files)
    try:
        while left:
            io.unlink(left[0].path)
            del left[0]
        io.sync_directory(directory)
    finally:
        with index.lock:
            index.files[:0] = left


def _opened(io: FileIO, file: LogFile) -> LogFileReader:
    try:
        return LogFileReader(io, file)
    except OSError as error:
        if is_shortage(error):
            raise StorageShort(f"log file {file.path} cannot be opened: {error}") from error
        raise


def _write(plan: _Plan, index: LogIndex, tail: LogTail, batch_bytes: int) -> None:
    """Write and sync the copies and then the new starts; record the positions of the copies."""
    placed: list[tuple[_Copy, int, int]] = []
    waiting: list[_Copy] = []
    size = 0
    for copy in plan.copies:
        if waiting and size + copy.size_bytes > batch_bytes:
            placed += _write_frame(tail, waiting, [])
            waiting, size = [], 0
        waiting.append(copy)
        size += copy.size_bytes
    moved: list[bytes] = []
    for partition, start in plan.starts.items():
        held = index.partitions[partition]
        moved.append(encode_state(partition, start, held.leo, clipped(held.table, start)))
    placed += _write_frame(tail, waiting, moved)
    with index.lock:
        for partition, start in plan.starts.items():
            index.partitions[partition].trim(start)
        for copy, sequence, position in placed:
            index.partitions[copy.partition].copy(sequence, position, copy.base, copy.base + len(copy.wires))


def _write_frame(tail: LogTail, copies: list[_Copy], states: list[bytes]) -> list[tuple[_Copy, int, int]]:
    buffers: list[bytes] = []
    for copy in copies:
        buffers += encode_entries(
            EntryRunKind.COPIED, copy.partition, copy.epoch, 0, copy.base, copy.wires, copy.lengths
        )
    # each frame is synced before the next: of two unsynced ones, only the later may reach the disk
    at = tail.write([*buffers, *states], len(copies) + len(states), synced=True)
    return [(copy, at.sequence, at.position) for copy in copies]

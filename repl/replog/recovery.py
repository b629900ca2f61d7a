"""Recovery: reads the log's files in order and finds the entries, the damage, and where to continue writing.

Each new file and each mark states the end of every partition, and each run of entries names the epoch below it. After a
damaged frame the log itself therefore shows which partitions lost entries there and which did not.

A damaged frame is a *torn end* when no valid frame follows it and no durable entry is known to be missing: the remains
of a write that was never reported. It is cut off and no partition is affected. Anything else is *corruption*
(docs/protocol.md H35), since a frame is written only after those before it were synced, and a mark after the last one.
Nothing is cut then. Every partition that has a gap there, or that cannot be shown to have none, is reported as damaged
and keeps the entries before the gap. The file is not repaired: once the owner has recorded the damage
(`FileLog.start`), a new file states the partitions' ends.

*Unused space* is no damage: zeros from the end of a frame to the end of the file, preallocated by a process that did
not stop properly. In the last file it is cut off. In another file it stays, and the next file's STATE shows whether
there had been entries. In the last file, where nothing else can show this, a missing durable entry without another
damaged frame to blame makes it damage.

This module only reads; `FileLog.open` writes. `repl.replog.frames` defines the format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from isthmus.repl.model.errors import Corruption, WrongIdentity
from isthmus.repl.replog.epochs import epoch_at, extended, last_epoch
from isthmus.repl.replog.files import FileIO
from isthmus.repl.replog.frames import FILE_HEADER_BYTES, EntryRun, EntryRunKind, LogPosition, decode_state
from isthmus.repl.replog.index import LogFile, LogIndex, PartitionIndex
from isthmus.repl.replog.names import sequence_of
from isthmus.repl.replog.port import RecoveredPartition
from isthmus.repl.replog.reader import BadFrame, LogFileReader, LogFrame

NOWHERE: Final = LogPosition(0, 0)
"""Before the first file, whose number is 1."""


@dataclass(slots=True)
class Recovery:
    """The contents of a log directory.

    `end` is the end of the last valid frame, `durable` the position below which everything was known to be on disk. A
    torn end or unused space is not part of the last file's `size_bytes`.
    """

    index: LogIndex = field(default_factory=LogIndex)
    damage: dict[int, str] = field(default_factory=dict)
    end: LogPosition = NOWHERE
    durable: LogPosition = NOWHERE
    marked: bool = False
    """The last frame states the ends of all partitions: no loss above it can go unnoticed."""

    def partitions(self) -> dict[int, RecoveredPartition]:
        """Partition -> what was recovered."""
        return {
            partition: RecoveredPartition(index.start, index.leo, index.table, self.damage.get(partition, ""))
            for partition, index in sorted(self.index.partitions.items())
        }


def recover(io: FileIO, directory: Path, cluster_uuid: bytes, known_durable: Mapping[int, int]) -> Recovery:
    """Read the log in `directory`.

    `known_durable` names, for every partition of this node, an offset below which everything was durable (what its
    store has applied). Raises WrongIdentity for another cluster's log, LocalFault for a later format, OSError when the
    files cannot be read.
    """
    scan = _LogScan(io, cluster_uuid, known_durable)
    paths = {sequence_of(name): directory / name for name in io.names(directory)}
    scan.files([(sequence, path) for sequence, path in paths.items() if sequence is not None])
    return scan.finish()


class _LogScan:
    def __init__(self, io: FileIO, cluster_uuid: bytes, known_durable: Mapping[int, int]) -> None:
        self._io = io
        self._cluster_uuid = cluster_uuid
        self._known_durable = known_durable
        self._found = Recovery()
        self._problem = ""
        """The last damage, in words; the cause of gaps found after it."""
        self._in_doubt: set[int] = set()
        self._all_in_doubt = False
        self._holes: dict[int, str] = {}

    def files(self, paths: list[tuple[int, Path]]) -> None:
        paths.sort()
        expected: int | None = None
        for sequence, path in paths:
            if expected is not None and sequence != expected:
                self._bad_place(f"before {path.name}: log files {expected} to {sequence - 1} are missing")
            expected = sequence + 1
            file = LogFile(sequence, path, None, 0)
            self._found.index.files.append(file)
            with LogFileReader(self._io, file) as reader:
                file.size_bytes = file.disk_bytes = reader.size
                self._file(file, reader, is_last=sequence == paths[-1][0])

    def _file(self, file: LogFile, reader: LogFileReader, *, is_last: bool) -> None:
        try:
            header = reader.file_header()
            if header.sequence != file.sequence:
                raise Corruption(f"its header names file {header.sequence}")
        except Corruption as error:
            self._bad_place(f"{file.path.name} at byte 0: {error}")
            return
        if header.cluster_uuid != self._cluster_uuid:
            raise WrongIdentity(
                f"{file.path} belongs to cluster {header.cluster_uuid.hex()}, this node to {self._cluster_uuid.hex()}: "
                "set node.data_dir to this cluster's data"
            )
        file.salt = header.salt
        for frame in self._frames(file, reader, is_last=is_last):
            self._frame(file, frame)

    def _frames(self, file: LogFile, reader: LogFileReader, *, is_last: bool) -> Iterator[LogFrame]:
        """Yield all valid frames of the file, skipping damage."""
        position = FILE_HEADER_BYTES
        if reader.size == position:
            self._bad_place(f"{file.path.name} at byte {position}: the file's first frame is missing")
        while position < reader.size:
            try:
                frame = reader.frame(position)
            except BadFrame as bad:
                following = reader.find_frame_header(position + 1 if bad.end is None else bad.end)
                if following is None and position > FILE_HEADER_BYTES and self._is_end(reader, position, is_last):
                    file.size_bytes = position
                    return
                self._bad_place(str(bad))
                if following is None:
                    return
                position = following
            else:
                yield frame
                position = frame.end

    def _is_end(self, reader: LogFileReader, position: int, is_last: bool) -> bool:
        """True when the file ends at `position`: only the remains of a write, or unused space, follow."""
        missing = self._known_to_be_missing()
        if not reader.is_unused(position):
            return is_last and not missing
        if is_last:
            partitions = self._found.index.partitions
            return all(p in self._in_doubt or (self._all_in_doubt and p not in partitions) for p in missing)
        self._problem = f"{reader.name} at byte {position}: no entry is valid from here on"
        return True

    def _known_to_be_missing(self) -> list[int]:
        """Partitions that end below what is known to have been durable."""
        partitions = self._found.index.partitions
        return [
            partition
            for partition, offset in self._known_durable.items()
            if offset and (partition not in partitions or offset > partitions[partition].leo)
        ]

    def _bad_place(self, problem: str) -> None:
        self._problem = problem
        self._all_in_doubt = True
        self._in_doubt.update(self._found.index.partitions)
        for index in self._found.index.partitions.values():
            index.interrupt()

    def _frame(self, file: LogFile, frame: LogFrame) -> None:
        found = self._found
        found.durable = max(found.durable, frame.header.durable)
        for run in frame.runs:
            self._run(file, frame, run)
        if frame.header.complete:
            self._all_in_doubt = False
        found.marked = frame.header.complete
        found.end = LogPosition(file.sequence, frame.end)

    def _run(self, file: LogFile, frame: LogFrame, run: EntryRun) -> None:
        index = self._found.index.partition(run.partition)
        match run.kind:
            case EntryRunKind.ENTRIES:
                if run.base != index.leo or run.previous_epoch != last_epoch(index.table) or self._in_doubt:
                    self._attach(run, index)
                index.add(file.sequence, frame.position, run.epoch, run.base, run.item_count)
            case EntryRunKind.TRUNCATE:
                self._attach(run, index)
            case EntryRunKind.COPIED:
                index.copy(file.sequence, frame.position, run.base, run.base + run.item_count)
            case EntryRunKind.STATE:
                leo, table = decode_state(frame.body, run)
                if leo > index.leo:
                    self._holes[run.partition] = self._problem or f"the log begins behind them, with {file.path.name}"
                index.assume(run.base, leo, table)
                self._in_doubt.discard(run.partition)
            case EntryRunKind.START:
                _, table = decode_state(frame.body, run)
                index.restart(run.base, table)
                self._in_doubt.discard(run.partition)
                self._holes.pop(run.partition, None)

    def _attach(self, run: EntryRun, index: PartitionIndex) -> None:
        """Make the partition end at the run's base, in the epoch that the run names below it.

        Logs with the same (offset, epoch) agree on everything below it (I-LOG-MATCH), so nothing is missing in that
        case.
        """
        self._in_doubt.discard(run.partition)
        below = run.base - 1
        if run.base <= index.leo and epoch_at(index.table, below) == run.previous_epoch:
            if run.base < index.leo or run.kind is EntryRunKind.TRUNCATE:
                index.truncate(run.base)
            return
        self._holes[run.partition] = self._problem
        if run.base <= index.leo:  # a truncation is lost, and these are the entries that it dropped
            epoch = epoch_at(index.table, below)
            index.truncate(next((first for e, first in index.table if e == epoch), index.start))
        index.leo = run.base
        if run.previous_epoch > last_epoch(index.table):
            index.table = extended(index.table, run.previous_epoch, below)

    def finish(self) -> Recovery:
        """Cut every partition at its first gap, and describe what is missing."""
        found = self._found
        for partition in self._known_durable.keys() - found.index.partitions.keys():
            found.index.partition(partition)
            if self._all_in_doubt:
                self._in_doubt.add(partition)
        for partition, index in found.index.partitions.items():
            if (gap := index.first_gap()) < index.leo:
                problem = self._holes.get(partition) or "no file of the log holds them"
                found.damage[partition] = f"entries {gap} to {index.leo - 1} are lost ({problem})"
                index.truncate(gap)
            elif partition in self._in_doubt:
                found.damage[partition] = f"entries from {index.leo} on may be lost ({self._problem})"
            elif self._known_durable.get(partition, 0) > index.leo:
                found.damage[partition] = (
                    f"the log ends at offset {index.leo}, but its entries below {self._known_durable[partition]} were "
                    f"applied ({self._problem or 'no bad place was found in the log'})"
                )
        return found

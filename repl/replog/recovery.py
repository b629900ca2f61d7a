"""Reads the log's files in order and says what holds: entries, damage, and where to go on writing.

Each new file and each mark states where every partition stands, and each run of entries names the epoch below it, so
that behind a bad place the log itself tells which partitions lost something there and which did not.

A bad place is a *torn end* when nothing whole follows it and nobody knows of anything durable that is missing: the
remains of a write that nobody was told of. It is cut off, and no partition is worse for it. Anything else is
*corruption* (docs/protocol.md H35), for a frame is written only after those before it were synced, and a mark after the
last: nothing is cut, and every partition that has a hole there, or that cannot be shown to have none, is reported
damaged and keeps what stands before the hole. The file is not repaired: once the owner has taken note
(`FileLog.start`), a new file states where the partitions stand from then on.

*Unused room* is no bad place: zeros from the end of a frame to the end of the file, which a file that was not left in
order has ahead of its end. In the last file it is cut off; in another it stays, and the next file's STATE tells whether
anything had stood there. In the last file, where nobody else can tell, something durable that is missing without
another bad place to blame makes it one.

This module reads; the only writing is `FileLog.open`'s. What the bytes mean is `repl.replog.frames`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from isthmus.repl.model.errors import Corruption, WrongIdentity
from isthmus.repl.replog.epochs import epoch_at, extended, last_epoch
from isthmus.repl.replog.files import FileIO
from isthmus.repl.replog.frames import FILE_HEADER_BYTES, EntryRun, LogPosition, RunKind, decode_state
from isthmus.repl.replog.index import LogFile, LogIndex, PartitionIndex
from isthmus.repl.replog.names import sequence_of
from isthmus.repl.replog.port import RecoveredPartition
from isthmus.repl.replog.reader import BadFrame, LogFileReader, LogFrame

NOWHERE: Final = LogPosition(0, 0)
"""Before the first file, whose number is 1."""


@dataclass(slots=True)
class Recovery:
    """What a log directory holds. `end` is the end of the last whole frame, `durable` the position below
    which all was known to be on disk. A torn end, or unused room, is not among the last file's `size_bytes`."""

    index: LogIndex = field(default_factory=LogIndex)
    damage: dict[int, str] = field(default_factory=dict)
    end: LogPosition = NOWHERE
    durable: LogPosition = NOWHERE
    marked: bool = False
    """The last frame states where everything stands: nothing above it can be lost unseen."""

    def partitions(self) -> dict[int, RecoveredPartition]:
        """The same in the words of the port."""
        return {
            partition: RecoveredPartition(index.start, index.leo, index.table, self.damage.get(partition, ""))
            for partition, index in sorted(self.index.partitions.items())
        }


def recover(io: FileIO, directory: Path, cluster_uuid: bytes, known_durable: Mapping[int, int]) -> Recovery:
    """Read the log in `directory`. `known_durable` names, for every partition that this node holds, an
    offset below which all was durable (what its store has applied). Raises WrongIdentity for another cluster's
    log, LocalFault for a later format, OSError when the files cannot be read."""
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
        self._trouble = ""
        """The last bad place, in words; names the cause of the holes that are found behind it."""
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
                raise Corruption(f"its header says that it is file {header.sequence}")
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
        """All whole frames of the file, past any bad places."""
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
        """Does the file just end at `position`, with nothing behind it but the remains of a write, or unused room?"""
        missing = self._known_to_be_missing()
        if not reader.is_unused(position):
            return is_last and not missing
        if is_last:
            partitions = self._found.index.partitions
            return all(p in self._in_doubt or (self._all_in_doubt and p not in partitions) for p in missing)
        self._trouble = f"{reader.name} at byte {position}: nothing stands from here on"
        return True

    def _known_to_be_missing(self) -> list[int]:
        """The partitions that end below what is known to have been durable."""
        partitions = self._found.index.partitions
        return [
            partition
            for partition, offset in self._known_durable.items()
            if offset and (partition not in partitions or offset > partitions[partition].leo)
        ]

    def _bad_place(self, trouble: str) -> None:
        self._trouble = trouble
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
            case RunKind.ENTRIES:
                if run.base != index.leo or run.previous_epoch != last_epoch(index.table) or self._in_doubt:
                    self._attach(run, index)
                index.add(file.sequence, frame.position, run.epoch, run.base, run.item_count)
            case RunKind.TRUNCATE:
                self._attach(run, index)
            case RunKind.COPIED:
                index.copy(file.sequence, frame.position, run.base, run.base + run.item_count)
            case RunKind.STATE:
                leo, table = decode_state(frame.body, run)
                if leo > index.leo:
                    self._holes[run.partition] = self._trouble or f"the log begins behind them, with {file.path.name}"
                index.assume(run.base, leo, table)
                self._in_doubt.discard(run.partition)
            case RunKind.START:
                _, table = decode_state(frame.body, run)
                index.restart(run.base, table)
                self._in_doubt.discard(run.partition)
                self._holes.pop(run.partition, None)

    def _attach(self, run: EntryRun, index: PartitionIndex) -> None:
        """Let the partition end at the run's base, in the epoch that the run says stands below it. Two logs that
        hold the same (offset, epoch) agree on all below it (I-LOG-MATCH), so then nothing is missing."""
        self._in_doubt.discard(run.partition)
        below = run.base - 1
        if run.base <= index.leo and epoch_at(index.table, below) == run.previous_epoch:
            if run.base < index.leo or run.kind is RunKind.TRUNCATE:
                index.truncate(run.base)
            return
        self._holes[run.partition] = self._trouble
        if run.base <= index.leo:  # a truncation went missing, and what stands here is what it dropped
            epoch = epoch_at(index.table, below)
            index.truncate(next((first for e, first in index.table if e == epoch), index.start))
        index.leo = run.base
        if run.previous_epoch > last_epoch(index.table):
            index.table = extended(index.table, run.previous_epoch, below)

    def finish(self) -> Recovery:
        """Cut every partition to what it has without a hole, and name what is missing."""
        found = self._found
        for partition in self._known_durable.keys() - found.index.partitions.keys():
            found.index.partition(partition)
            if self._all_in_doubt:
                self._in_doubt.add(partition)
        for partition, index in found.index.partitions.items():
            if (founded := index.unfounded()) < index.leo:
                trouble = self._holes.get(partition) or "no file of the log holds them"
                found.damage[partition] = f"entries {founded} to {index.leo - 1} are lost ({trouble})"
                index.truncate(founded)
            elif partition in self._in_doubt:
                found.damage[partition] = f"entries from {index.leo} on may be lost ({self._trouble})"
            elif self._known_durable.get(partition, 0) > index.leo:
                found.damage[partition] = (
                    f"the log ends at offset {index.leo}, but its entries below {self._known_durable[partition]} were "
                    f"applied ({self._trouble or 'no bad place was found in the log'})"
                )
        return found

"""Reads frames and entries of log files, for reading, trimming and recovery.

It checks every checksum before it returns a byte, and never writes. `repl.replog.index` knows where entries are, and
`repl.replog.recovery` what a partition's log contains.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

from isthmus.repl.model.entry import Entry, decode_entry
from isthmus.repl.model.errors import CodecError, Corruption
from isthmus.repl.replog.files import FileIO
from isthmus.repl.replog.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    EntryRun,
    EntryRunKind,
    FileHeader,
    FrameHeader,
    decode_file_header,
    decode_frame_header,
    decode_runs,
    decode_wires,
    frame_seed,
)
from isthmus.repl.replog.index import LogFile

WINDOW_BYTES: Final = 256 * 1024
"""Bytes read from the file at once: many small frames cost one system call, and one entry not much more."""

SEARCH_BYTES: Final = 1024 * 1024
"""Chunk size of the search for a frame after a damaged one."""


class LogFrame(NamedTuple):
    """A frame with valid checksums; `end` is the position of the next one."""

    position: int
    end: int
    header: FrameHeader
    body: bytes
    runs: list[EntryRun]


class BadFrame(Corruption):
    """There is no valid frame at `position`. `end`: the expected position of the next one, if the header was valid."""

    def __init__(self, message: str, position: int, end: int | None = None) -> None:
        super().__init__(message)
        self.position = position
        self.end = end


class LogFileReader:
    """One log file, open for reading; a context manager. Raises FileNotFoundError when it is gone."""

    def __init__(self, io: FileIO, file: LogFile) -> None:
        self._io = io
        self._fd = io.open(file.path, write=False)
        self._window = b""
        self._window_at = 0
        self.name = file.path.name
        self.salt = file.salt or 0
        self.size = io.size(self._fd)

    def __enter__(self) -> LogFileReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._io.close(self._fd)

    def _bytes(self, position: int, length: int) -> bytes:
        at = position - self._window_at
        if at < 0 or at + length > len(self._window):
            self._window = self._io.pread(self._fd, max(length, WINDOW_BYTES), position)
            self._window_at = position
            at = 0
        return self._window[at : at + length]

    def file_header(self) -> FileHeader:
        """Return the file's header; call before reading frames. Raises Corruption."""
        header = decode_file_header(self._bytes(0, FILE_HEADER_BYTES))
        self.salt = header.salt
        return header

    def frame_header(self, position: int) -> FrameHeader:
        """Return the header of the frame at `position`. Raises BadFrame."""
        try:
            return decode_frame_header(self._bytes(position, FRAME_HEADER_BYTES), frame_seed(self.salt, position))
        except Corruption as error:
            raise BadFrame(f"{self.name} at byte {position}: {error}", position) from error

    def frame(self, position: int) -> LogFrame:
        """Return the frame at `position`. Raises BadFrame."""
        header = self.frame_header(position)
        body_from = position + FRAME_HEADER_BYTES
        end = body_from + header.body_bytes
        if end > self.size:
            raise BadFrame(f"{self.name} at byte {position}: a frame is cut short", position)
        body = self._bytes(body_from, header.body_bytes)
        if xxh64_intdigest(body, frame_seed(self.salt, position)) != header.body_hash:
            raise BadFrame(f"{self.name} at byte {position}: a frame fails its checksum", position, end)
        try:
            runs = decode_runs(body, header.run_count)
        except Corruption as error:
            raise BadFrame(f"{self.name} at byte {position}: {error}", position, end) from error
        return LogFrame(position, end, header, body, runs)

    def frames(self, position: int) -> Iterator[LogFrame]:
        """Yield the frames from `position` to the end of the file at the time of opening. Raises BadFrame."""
        while position < self.size:
            frame = self.frame(position)
            yield frame
            position = frame.end

    def find_frame_header(self, position: int) -> int | None:
        """Return the position of the next valid frame header from `position` on; None for none."""
        while position < self.size:
            chunk = self._io.pread(self._fd, SEARCH_BYTES + FRAME_HEADER_BYTES, position)
            at = chunk.find(FRAME_MAGIC)
            while 0 <= at < SEARCH_BYTES:
                data = chunk[at : at + FRAME_HEADER_BYTES]
                try:
                    decode_frame_header(data, frame_seed(self.salt, position + at))
                except Corruption:
                    at = chunk.find(FRAME_MAGIC, at + 1)
                else:
                    return position + at
            position += SEARCH_BYTES
        return None

    def is_unused(self, position: int) -> bool:
        """True when there are only zeros from `position` to the end of the file."""
        while position < self.size:
            chunk = self._io.pread(self._fd, SEARCH_BYTES, position)
            if not chunk or chunk.count(0) < len(chunk):
                return False
            position += len(chunk)
        return True

    def wires(
        self, partition: int, from_offset: int, to_offset: int, position: int, copied: bool
    ) -> Iterator[tuple[int, int, list[bytes]]]:
        """Yield (epoch, first offset, entry bytes) of the partition's entries [from, to), run by run.

        The search begins with the frame at `position`, among the copied or the other runs. Raises Corruption when
        entries are missing.
        """
        wanted = EntryRunKind.COPIED if copied else EntryRunKind.ENTRIES
        offset = from_offset
        for frame in self.frames(position):
            for run in frame.runs:
                if run.partition != partition or run.kind is not wanted:
                    continue
                if run.base <= offset < run.base + run.item_count:
                    end = min(to_offset, run.base + run.item_count)
                    yield run.epoch, offset, decode_wires(frame.body, run, offset, end)
                    offset = end
                    if offset == to_offset:
                        return
        raise Corruption(
            f"{self.name}: entries {offset} to {to_offset - 1} of partition {partition} are not where they were written"
        )


def decoded(partition: int, epoch: int, offset: int, wire: bytes) -> Entry:
    """Return the entry in `wire`, written as (epoch, offset). Raises Corruption when it is another."""
    try:
        entry = decode_entry(wire)
    except CodecError as error:
        raise Corruption(f"the entry at offset {offset} of partition {partition} cannot be read: {error}") from error
    if entry.offset != offset or entry.epoch != epoch:
        raise Corruption(
            f"the entry at offset {offset} of partition {partition}, epoch {epoch}, is encoded as "
            f"{entry.offset} of epoch {entry.epoch}"
        )
    return entry

"""The tail of the log: the newest file, written frame by frame, and the start of the next file.

While small frames are written and synced one by one, the file is preallocated beyond its end: its writer calls
`preallocate` after each frame. Leaving a file, and opening one at start, returns unused preallocated space.

One thread at a time uses it (the log's writer, or the thread that opens the log), except for `sync`. Every call may
raise OSError; after one did, all others do, since a sync after a failed one proves nothing (docs/protocol.md H34). It
knows positions and syncs; the contents of frames are the caller's.

A write or sync that finds the disk short of something (`repl.shortage`) raises StorageShort, also in its middle, and so
does all that follows, until `mend` has brought the file back to what it was before: nothing of the refused write is
left, and what no sync has confirmed is written and synced again. It is what a start does to the end of the log.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from isthmus.repl.machine import machine
from isthmus.repl.model.errors import StorageShort
from isthmus.repl.replog.files import NOT_KNOWN, FileIO
from isthmus.repl.replog.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    LogPosition,
    encode_file_header,
    encode_frame_header,
    encode_state,
    frame_seed,
)
from isthmus.repl.replog.index import LogFile, LogIndex, states
from isthmus.repl.replog.names import log_path, new_path
from isthmus.repl.replog.reader import LogFileReader
from isthmus.repl.shortage import SHORTAGES, is_shortage

REWRITE_BYTES: Final = 1024 * 1024
"""Chunk size for rewriting a log's last part when it is opened; bounds the memory."""

PREALLOCATE_BYTES: Final = 512 * 1024
"""Zeros written at once beyond the file's end, never beyond its target size. A write beyond the end of a file, or into
blocks that were never written, changes what the file system knows of the file, which a sync must bring to its journal.
Over zeros that are on disk, a frame of 8 KB takes 60 % less time and 40 % less CPU than at the end of the file or in
blocks that were only allocated (ext4), though every byte is written twice. 512 KB take about 1 ms; larger steps save
little more, and a kill leaves less behind."""

SMALL_FRAME_BYTES: Final = 32 * 1024
"""Larger frames are not preallocated for: from 50 KB on a sync is as fast without."""

NOT_PREALLOCATED: Final = NOT_KNOWN | SHORTAGES | {errno.EFBIG}
"""Errors of a preallocation that are no failure: the file then grows with its frames, as long as they fit."""

ADVICE: Final[Mapping[int, str]] = {
    errno.ENOSPC: ": free some space",
    errno.EDQUOT: ": raise the quota of the node's user, or free some space",
    errno.EROFS: ": mount the file system for writing",
}
"""What an operator does about a write that was refused, by its error."""


class LogTail:
    """Writes the newest file of the log. Times are seconds, sizes bytes."""

    def __init__(self, io: FileIO, directory: Path, cluster_uuid: bytes, index: LogIndex, *, file_bytes: int) -> None:
        self._io = io
        self._directory = directory
        self._cluster_uuid = cluster_uuid
        self._index = index
        self._file_bytes = file_bytes
        self._preallocation_refused = False
        """The file system refused to preallocate; it is asked again for the next file."""
        self._fd: int | None = None
        self._file = LogFile(0, directory, None, 0)
        self._sync_lock = machine().lock()
        self._failed = False
        self.short = ""
        """What the log's disk is short of, as a clause for operators, from a refused write or sync until `mend`; ""."""
        self._unfinished: list[Path] = []
        """Names that a next file may have which was not begun after all."""
        self.end = LogPosition(0, 0)
        """Position of the next frame."""
        self.durable = LogPosition(0, 0)
        self.marked = False
        """True while nothing was written since the last statement of all partitions."""
        self.fsync_count = 0
        self.fsync_seconds = 0.0

    @property
    def preallocated_bytes(self) -> int:
        """Preallocated bytes that are not written yet."""
        return self._file.disk_bytes - self._file.size_bytes

    def resume_last(self, durable: LogPosition, *, marked: bool) -> None:
        """Continue at the end of the last file; durably cut off what is beyond.

        Bytes above `durable` are rewritten in place and synced: they were read from the page cache, and a failed sync
        before the process ended may have marked pages as clean that never reached the disk.
        """
        file = self._file = self._index.files[-1]
        fd = self._fd = self._io.open(file.path, write=True)
        if file.disk_bytes > file.size_bytes:
            self._io.truncate(fd, file.size_bytes)
            file.disk_bytes = file.size_bytes
        self._rewrite(fd, durable.position if durable.sequence == file.sequence else 0)
        self._io.fsync(fd)
        self._io.sync_directory(self._directory)
        self.durable = self.end = LogPosition(file.sequence, file.size_bytes)
        self.marked = marked

    def _check_usable(self) -> None:
        if self._failed:
            raise OSError(errno.EIO, "an earlier write or sync of the log failed")
        if self.short:
            raise StorageShort(self.short)

    def _note(self, error: OSError) -> None:
        """A write or sync failed: finally, or (raises StorageShort) until the disk is not short any more."""
        if not is_shortage(error):
            self._failed = True
            return
        self.short = f"the log cannot be written: {error.strerror}{ADVICE.get(error.errno or 0, '')}"
        raise StorageShort(self.short) from error

    def mend(self) -> None:
        """After a StorageShort: leave nothing of what was refused, and bring to disk what no sync has confirmed, from
        the page cache. Raises StorageShort while the disk is short, OSError, and Corruption where such bytes are lost.
        """
        with self._sync_lock:
            if self._failed:
                raise OSError(errno.EIO, "an earlier write or sync of the log failed")
            try:
                for path in self._unfinished:
                    with suppress(FileNotFoundError):
                        self._io.unlink(path)
                if self._unfinished:
                    self._io.sync_directory(self._directory)
                    self._unfinished.clear()
                if self._fd is not None:
                    self._restore(self._fd)
            except OSError as error:
                self._note(error)
                raise
            self.short = ""

    def _restore(self, fd: int) -> None:
        file, position = self._file, self.durable.position
        self._io.truncate(fd, file.size_bytes)
        file.disk_bytes = file.size_bytes
        if position < file.size_bytes:
            with LogFileReader(self._io, file) as reader:
                for _ in reader.frames(position):  # it must be what was written: the kernel may have dropped it
                    pass
        self._rewrite(fd, position)
        self._io.fsync(fd)
        self.durable = self.end

    def _rewrite(self, fd: int, position: int) -> None:
        while position < self._file.size_bytes:
            data = self._io.pread(fd, min(REWRITE_BYTES, self._file.size_bytes - position), position)
            self._io.pwritev(fd, [data], position)
            position += len(data)

    def roll(self) -> None:
        """Sync and leave the file, and start the next with the state of every partition.

        The file gets its name when it is on disk, and the name is on disk before anything else is written into it
        (H37). Raises StorageShort when it cannot be begun now: the file before goes on then, after `mend` if `short`.
        """
        self.seal()
        self._check_usable()
        try:
            self._begin_file()
        except OSError as error:
            self._note(error)
            raise

    def _begin_file(self) -> None:
        sequence = self._index.files[-1].sequence + 1 if self._index.files else 1
        path = log_path(self._directory, sequence)
        salt = int.from_bytes(machine().random_bytes(8), "little")
        header = encode_file_header(FileHeader(self._cluster_uuid, sequence, salt))
        count = len(self._index.partitions)
        frame = self._frame(b"".join(self._state_runs()), count, FILE_HEADER_BYTES, salt, complete=True)
        fd = self._create(new_path(path), [header, *frame])
        try:
            self._io.fsync(fd)
            self._io.rename(new_path(path), path)
            self._io.sync_directory(self._directory)
        except OSError:
            self._unfinished = [new_path(path), path]
            self._io.close(fd)
            raise
        with self._sync_lock:
            self.close()
            self._fd = fd
            size_bytes = FILE_HEADER_BYTES + sum(map(len, frame))
            self._file = LogFile(sequence, path, salt, size_bytes, size_bytes)
            self._preallocation_refused = False
            self.durable = self.end = LogPosition(sequence, size_bytes)
            with self._index.lock:
                self._index.files.append(self._file)
        self.marked = True

    def _create(self, path: Path, buffers: Sequence[bytes]) -> int:
        """A new file with `buffers`, unsynced and without its final name. Raises StorageShort, and nothing of it is
        left."""
        fd = None
        try:
            fd = self._io.create(path)
            self._io.pwritev(fd, buffers, 0)
        except OSError as error:
            if not is_shortage(error):
                raise
            if fd is not None:
                self._unfinished = [path]
                self._io.close(fd)
                self._io.unlink(path)
                self._unfinished.clear()
            raise StorageShort(f"the log's next file cannot be created: {error}") from error
        return fd

    def _state_runs(self) -> list[bytes]:
        return [encode_state(*state) for state in states(self._index.partitions)]

    def _frame(self, body: bytes, count: int, position: int, salt: int, *, complete: bool) -> tuple[bytes, bytes]:
        seed = frame_seed(salt, position)
        return encode_frame_header(body, count, durable=self.durable, complete=complete, seed=seed), body

    def write(self, runs: Sequence[bytes], count: int, *, synced: bool) -> LogPosition:
        """Write `count` runs, given as consecutive buffers, as one frame; returns its position.

        With `synced`, it and everything before it are on disk on return.
        """
        self.marked = False
        return self._write(runs, count, complete=False, synced=synced)

    def mark(self, *, synced: bool) -> None:
        """Write the state of every partition.

        The last frame of a log cannot prove that it was durable; a mark after it does.
        """
        self._write(self._state_runs(), len(self._index.partitions), complete=True, synced=synced)
        self.marked = True

    def _write(self, runs: Sequence[bytes], count: int, *, complete: bool, synced: bool) -> LogPosition:
        at, fd, salt = self.end, self._fd, self._file.salt
        assert fd is not None
        assert salt is not None
        body = b"".join(runs)
        frame = self._frame(body, count, at.position, salt, complete=complete)
        size_bytes = FRAME_HEADER_BYTES + len(body)
        self._check_usable()
        try:
            if synced:
                with self._sync_lock:
                    if self.durable == at:
                        began = machine().perf_s()
                        self._io.pwritev_synced(fd, frame, at.position)
                        self._synced(began)
                        self._grow(size_bytes)
                        self.durable = self.end
                        return at
            self._io.pwritev(fd, frame, at.position)
        except OSError as error:
            self._note(error)
            raise
        self._grow(size_bytes)
        if synced:  # a synced write waits for its own bytes only; those before it are not synced yet
            try:
                self.sync()
            except StorageShort:  # the caller writes it again
                with self._sync_lock:
                    self._file.size_bytes, self.end = at.position, at
                raise
        return at

    def _grow(self, size_bytes: int) -> None:
        file = self._file
        end = file.size_bytes = file.size_bytes + size_bytes
        if end > file.disk_bytes:
            file.disk_bytes = end
        self.end = LogPosition(file.sequence, end)

    def preallocate(self, frame_bytes: int) -> None:
        """After a synced frame of this size: preallocate for the next, if it was small and the file system can."""
        file, fd = self._file, self._fd
        if frame_bytes > SMALL_FRAME_BYTES or self.preallocated_bytes >= SMALL_FRAME_BYTES:
            return
        allocate_to = min(file.size_bytes + PREALLOCATE_BYTES, self._file_bytes)
        if allocate_to <= file.disk_bytes or self._preallocation_refused:
            return
        assert fd is not None
        self._check_usable()
        try:
            self._io.allocate(fd, file.disk_bytes, allocate_to - file.disk_bytes)
        except OSError as error:
            if error.errno not in NOT_PREALLOCATED:
                self._failed = True
                raise
            self._preallocation_refused = True
            file.disk_bytes = self._io.size(fd)
            return
        file.disk_bytes = allocate_to
        try:
            self._io.fdatasync(fd)
        except OSError as error:
            self._note(error)
            raise

    def sync(self) -> None:
        """Wait until everything written is on disk; from any thread."""
        with self._sync_lock:
            if self._fd is not None and self.end != self.durable:
                self._sync(self._fd, self._io.fdatasync)

    def seal(self) -> None:
        """Sync, and return the preallocated space beyond the end."""
        if not self.preallocated_bytes:
            self.sync()
            return
        with self._sync_lock:
            assert self._fd is not None
            self._sync(self._fd, self._cut)

    def _cut(self, fd: int) -> None:
        self._io.truncate(fd, self._file.size_bytes)
        self._io.fsync(fd)
        self._file.disk_bytes = self._file.size_bytes

    def _sync(self, fd: int, how: Callable[[int], None]) -> None:
        end = self.end
        began = machine().perf_s()
        self._check_usable()
        try:
            how(fd)
        except OSError as error:
            self._note(error)
            raise
        self._synced(began)
        self.durable = end

    def _synced(self, began: float) -> None:
        self.fsync_seconds += machine().perf_s() - began
        self.fsync_count += 1

    def close(self) -> None:
        """Close the file as it is."""
        if self._fd is not None:
            self._io.close(self._fd)
            self._fd = None

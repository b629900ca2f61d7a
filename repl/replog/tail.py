"""The end of the log: the one file that is written, frame after frame, and the making of the next.

One thread at a time uses it (the log's writer, or whoever opens the log), but for `sync`. Every call may raise OSError;
after one that did, every other does, too: nothing is tried again on a file that failed once (docs/protocol.md H34), for
a sync after a failed one says nothing. It knows positions and syncs; what is in the frames is its caller's business.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Final

from repl.replog.files import FileIO
from repl.replog.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    LogPosition,
    encode_file_header,
    encode_frame_header,
    encode_state,
    frame_seed,
)
from repl.replog.index import LogFile, LogIndex, states
from repl.replog.names import log_path, new_path

REWRITE_BYTES: Final = 1024 * 1024
"""Read and written back at once when a log is opened; bounds the memory that this takes."""


class LogTail:
    """Writes the newest file of the log. Times are seconds, sizes bytes."""

    def __init__(self, io: FileIO, directory: Path, cluster_uuid: bytes, index: LogIndex) -> None:
        self._io = io
        self._directory = directory
        self._cluster_uuid = cluster_uuid
        self._index = index
        self._fd: int | None = None
        self._file = LogFile(0, directory, None, 0)
        self._sync_lock = Lock()
        self._failed = False
        self.durable = LogPosition(0, 0)
        self.marked = False
        """True while nothing was written since all partitions were last stated."""
        self.fsync_count = 0
        self.fsync_seconds = 0.0

    @property
    def end(self) -> LogPosition:
        """Where the next frame goes."""
        return LogPosition(self._file.sequence, self._file.size_bytes)

    def continue_last(self, durable: LogPosition, *, cut_at: int | None, marked: bool) -> None:
        """Go on behind the end of the last file; with `cut_at` it ends there from now on, durably.

        What lies above `durable` is written again, in its place, and synced: it was read from the page cache, and
        a sync that failed before the process left may have marked pages as clean that never reached the disk.
        """
        file = self._file = self._index.files[-1]
        fd = self._fd = self._io.open(file.path, write=True)
        if cut_at is not None:
            self._io.truncate(fd, cut_at)
            file.size_bytes = cut_at
        position = durable.position if durable.sequence == file.sequence else 0
        while position < file.size_bytes:
            data = self._io.pread(fd, min(REWRITE_BYTES, file.size_bytes - position), position)
            self._io.pwritev(fd, [data], position)
            position += len(data)
        self._io.fsync(fd)
        self._io.sync_directory(self._directory)
        self.durable = self.end
        self.marked = marked

    def _check_never_failed(self) -> None:
        if self._failed:
            raise OSError(errno.EIO, "an earlier write or sync of the log failed")

    def roll(self) -> None:
        """Sync and leave the file, and begin the next with the state of every partition. The file gets its name
        when it is on disk, and the name is on disk before anything else goes into it (H37)."""
        self.sync()
        self._check_never_failed()
        try:
            self._begin_file()
        except OSError:
            self._failed = True
            raise

    def _begin_file(self) -> None:
        sequence = self._index.files[-1].sequence + 1 if self._index.files else 1
        path = log_path(self._directory, sequence)
        salt = int.from_bytes(os.urandom(8), "little")
        fd = self._io.create(new_path(path))
        header = encode_file_header(FileHeader(self._cluster_uuid, sequence, salt))
        frame = self._frame(self._state_runs(), len(self._index.partitions), FILE_HEADER_BYTES, salt, complete=True)
        self._io.pwritev(fd, [header, *frame], 0)
        self._io.fsync(fd)
        self._io.rename(new_path(path), path)
        self._io.sync_directory(self._directory)
        with self._sync_lock:
            self.close()
            self._fd = fd
            self._file = LogFile(sequence, path, salt, sum(map(len, frame)) + FILE_HEADER_BYTES)
            self.durable = self.end
            with self._index.lock:
                self._index.files.append(self._file)
        self.marked = True

    def _state_runs(self) -> list[bytes]:
        return [encode_state(*state) for state in states(self._index.partitions)]

    def _frame(self, runs: Sequence[bytes], count: int, position: int, salt: int, *, complete: bool) -> list[bytes]:
        body = b"".join(runs)
        header = encode_frame_header(
            body,
            count,
            durable=self.durable,
            complete=complete,
            seed=frame_seed(salt, position),
        )
        return [header, body]

    def write(self, runs: Sequence[bytes], count: int) -> LogPosition:
        """Write `count` runs, given as buffers one after another, as one frame; returns where it begins."""
        self.marked = False
        return self._write(runs, count, complete=False)

    def mark(self) -> None:
        """State where every partition stands. A frame that is last in the log cannot prove that it had been durable;
        a mark behind it does, by stating that it was."""
        self._write(self._state_runs(), len(self._index.partitions), complete=True)
        self.marked = True

    def _write(self, runs: Sequence[bytes], count: int, *, complete: bool) -> LogPosition:
        file = self._file
        assert self._fd is not None
        assert file.salt is not None
        at = self.end
        frame = self._frame(runs, count, at.position, file.salt, complete=complete)
        self._check_never_failed()
        try:
            self._io.pwritev(self._fd, frame, at.position)
        except OSError:
            self._failed = True
            raise
        file.size_bytes += FRAME_HEADER_BYTES + len(frame[1])
        return at

    def sync(self) -> None:
        """Wait until all that was written is on disk; from any thread."""
        with self._sync_lock:
            if self._fd is None:
                return
            end = self.end
            if end == self.durable:
                return
            began = time.perf_counter()
            self._check_never_failed()
            try:
                self._io.fdatasync(self._fd)
            except OSError:
                self._failed = True
                raise
            self.fsync_seconds += time.perf_counter() - began
            self.fsync_count += 1
            self.durable = end

    def close(self) -> None:
        """Close the file as it is."""
        if self._fd is not None:
            self._io.close(self._fd)
            self._fd = None

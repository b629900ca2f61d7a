"""The log's door to the file system: every system call that the log makes, and no other.

A test hands in another door, one that stops at each step or forgets what was not synced; the log cannot tell.
Descriptors are plain ints. All calls raise OSError as the system does; the callers translate it. What
belongs in the files is `repl.replog.frames`' business.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class FileIO(Protocol):
    """File system calls on one directory of log files."""

    def names(self, directory: Path) -> list[str]:
        """Names in the directory, which is made, with its parents, when it is not there."""

    def create(self, path: Path) -> int:
        """A new empty file, open for writing. FileExistsError when there is one."""

    def open(self, path: Path, *, write: bool) -> int:
        """An existing file, open for reading, and for writing when asked."""

    def size(self, fd: int) -> int:
        """Bytes in the file."""

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Bytes at `position`; fewer than `length` only at the end of the file."""

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        """Write all buffers one after another at `position`: all of them, or an error."""

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""

    def fdatasync(self, fd: int) -> None:
        """Wait until the file's bytes and size are on disk."""

    def fsync(self, fd: int) -> None:
        """The same with all of the file's metadata."""

    def close(self, fd: int) -> None:
        """Close the descriptor."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in its directory."""

    def unlink(self, path: Path) -> None:
        """Remove a name."""

    def sync_directory(self, directory: Path) -> None:
        """Wait until the directory's names are on disk."""

    def free_bytes(self, directory: Path) -> int:
        """Bytes that an unprivileged user may still write on the directory's file system."""


class SystemFiles:
    """The real file system."""

    def names(self, directory: Path) -> list[str]:
        if not directory.is_dir():
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.sync_directory(directory.parent)
        return os.listdir(directory)

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def open(self, path: Path, *, write: bool) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def pread(self, fd: int, length: int, position: int) -> bytes:
        data = os.pread(fd, length, position)
        if len(data) == length or not data:
            return data
        chunks = [data]
        while data and (missing := length - sum(map(len, chunks))):
            data = os.pread(fd, missing, position + length - missing)
            chunks.append(data)
        return b"".join(chunks)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        written = os.pwritev(fd, buffers, position)
        total = sum(map(len, buffers))
        if written == total:
            return
        rest = memoryview(b"".join(buffers))
        while written < total:  # a short write is no error: a full disk says so on the next call
            written += os.pwrite(fd, rest[written:], position + written)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def sync_directory(self, directory: Path) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def free_bytes(self, directory: Path) -> int:
        numbers = os.statvfs(directory)
        return numbers.f_bavail * numbers.f_frsize

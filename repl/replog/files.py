"""File system calls of the log: every system call that it makes, behind one interface.

Tests pass an implementation that stops at each step, or loses unsynced data. Descriptors are plain ints. All calls
raise OSError as the system does; the callers translate it. `repl.replog.frames` defines the contents of the files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, cast

from isthmus.repl.shortage import DESCRIPTORS

NOT_KNOWN: Final = frozenset((errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL))
"""Errors of a kernel or file system that lacks a call or one of its flags; nothing was done then."""

ZEROS: Final = bytes(256 * 1024)
"""Zeros written at once into allocated space."""


def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """Return fallocate(2) of the C library: (descriptor, mode, position, length); None if it has none."""
    library = ctypes.CDLL(None, use_errno=True)
    call = getattr(library, "fallocate64", None) or getattr(library, "fallocate", None)
    if call is None:
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    return cast("Callable[[int, int, int, int], int]", call)


_FALLOCATE: Final = _fallocate()


class FileIO(Protocol):
    """File system calls on one directory of log files."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in the directory, which is created with its parents if missing."""

    def create(self, path: Path) -> int:
        """Create an empty file and open it for writing. Raises FileExistsError."""

    def open(self, path: Path, *, write: bool) -> int:
        """Open an existing file for reading, and also for writing with `write`."""

    def size(self, fd: int) -> int:
        """Return the file's size in bytes."""

    def pread(self, fd: int, length: int, position: int) -> bytes:
        """Return bytes at `position`; fewer than `length` only at the end of the file."""

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        """Write all buffers one after another at `position`: all of them, or an error."""

    def pwritev_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        """As `pwritev`, and wait until these bytes, and a file size that includes them, are on disk.

        Does not wait for earlier writes to other parts of the file.
        """

    def allocate(self, fd: int, position: int, length: int) -> None:
        """Extend the file from `position`, its end, by `length` bytes of zeros.

        An error may leave a part of it done. A file system that cannot allocate blocks raises; nothing is emulated.
        """

    def truncate(self, fd: int, size: int) -> None:
        """Cut the file to `size` bytes."""

    def fdatasync(self, fd: int) -> None:
        """Wait until the file's bytes and size are on disk."""

    def fsync(self, fd: int) -> None:
        """As `fdatasync`, with all of the file's metadata."""

    def close(self, fd: int) -> None:
        """Close the descriptor."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name in its directory."""

    def unlink(self, path: Path) -> None:
        """Remove a name."""

    def sync_directory(self, directory: Path) -> None:
        """Wait until the directory's names are on disk."""

    def free_bytes(self, directory: Path) -> int:
        """Return the bytes that an unprivileged user may still write on the directory's file system."""

    def free_inodes(self, directory: Path) -> int | None:
        """Return how many files an unprivileged user may still create there; None where the file system sets no
        limit."""

    def read_only(self, directory: Path) -> bool:
        """Return True while the file system is mounted read-only."""


class SystemFiles:
    """The real file system."""

    def __init__(self) -> None:
        self._write_flags = getattr(os, "RWF_DSYNC", 0)
        """Flags of a synced write; 0 once the system has refused them."""
        self._directories: dict[Path, int] = {}
        """Open directories, so that no sync of one fails for want of a descriptor."""

    def names(self, directory: Path) -> list[str]:
        if not directory.is_dir():
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.sync_directory(directory.parent)
        self._descriptor_of(directory)
        return os.listdir(directory)

    def create(self, path: Path) -> int:
        return DESCRIPTORS.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, path: Path, *, write: bool) -> int:
        return DESCRIPTORS.open(path, os.O_RDWR if write else os.O_RDONLY)

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
        if written != sum(map(len, buffers)):
            self._write_rest(fd, buffers, position, written)

    def _write_rest(self, fd: int, buffers: Sequence[bytes], position: int, written: int) -> None:
        rest = memoryview(b"".join(buffers))
        while written < len(rest):  # a short write is no error: a full disk raises in the next call
            written += os.pwrite(fd, rest[written:], position + written)

    def pwritev_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if self._write_flags:
            try:
                written = os.pwritev(fd, buffers, position, self._write_flags)
            except OSError as error:
                if error.errno not in NOT_KNOWN:
                    raise
                self._write_flags = 0
            else:
                if written != sum(map(len, buffers)):
                    self._write_rest(fd, buffers, position, written)
                    os.fdatasync(fd)
                return
        self.pwritev(fd, buffers, position)
        os.fdatasync(fd)

    def allocate(self, fd: int, position: int, length: int) -> None:
        # not os.posix_fallocate: without support in the file system, the C library writes a byte into each block,
        # which costs more (10 ms of CPU per MB) than preallocation saves
        if _FALLOCATE is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        while _FALLOCATE(fd, 0, position, length) != 0:
            number = ctypes.get_errno()
            if number != errno.EINTR:
                raise OSError(number, os.strerror(number))
        # else the sync of each frame would bring it to the file system's journal that its blocks are written now
        for begin in range(0, length, len(ZEROS)):
            self.pwritev(fd, [ZEROS[: length - begin]], position + begin)

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
        os.fsync(self._descriptor_of(directory))

    def _descriptor_of(self, directory: Path) -> int:
        fd = self._directories.get(directory)
        if fd is None:
            fd = self._directories[directory] = DESCRIPTORS.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            weakref.finalize(self, os.close, fd)
        return fd

    def free_bytes(self, directory: Path) -> int:
        numbers = os.statvfs(directory)
        return numbers.f_bavail * numbers.f_frsize

    def free_inodes(self, directory: Path) -> int | None:
        numbers = os.statvfs(directory)
        return numbers.f_favail if numbers.f_files else None

    def read_only(self, directory: Path) -> bool:
        return bool(os.statvfs(directory).f_flag & os.ST_RDONLY)

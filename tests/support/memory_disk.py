"""A disk in memory for the log's tests: page cache and platter apart, and a stop at any step.

Every call that changes the disk is a step. `stop_at = n` kills the process at its n-th step: the step has no effect,
or, for a write with `tear_write`, half of it; every call after it fails. `survivor` gives the disk that the next
process finds: with all written data (the process was killed), without unsynced data (the power failed), or with random
parts of that. The same applies to a directory's names as to a file's bytes.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from threading import RLock
from typing import NamedTuple

SECTOR_BYTES = 64
"""Smaller than real ones, so that the small frames of tests tear in many places."""


class ProcessKilled(OSError):
    """The process was killed here."""


class Write(NamedTuple):
    """Bytes at a place."""

    position: int
    data: bytes


class Truncation(NamedTuple):
    """A smaller size."""

    size: int


class Extension(NamedTuple):
    """A larger size; the new bytes read as zeros."""

    size: int


class File:
    """One file: the readable contents, the contents on the platter, and the changes between the two."""

    def __init__(self) -> None:
        self.cached = bytearray()
        self.synced = bytearray()
        self.pending: list[Write | Truncation | Extension] = []

    def change(self, change: Write | Truncation | Extension) -> None:
        apply(self.cached, change)
        self.pending.append(change)

    def truncate(self, size: int) -> None:
        self.change(Truncation(size))

    def sync(self) -> None:
        for change in self.pending:  # and nothing else: a file that is not known to be dirty is not written
            apply(self.synced, change)
        self.pending.clear()

    def sync_write(self, write: Write) -> None:
        """That write is on the platter, with a size that holds it; other pending changes are unaffected."""
        assert not any(isinstance(change, Truncation) for change in self.pending), (
            "a write waits for a cut to be synced"
        )
        self.pending.remove(write)
        apply(self.synced, write)
        self.pending = [c for c in self.pending if not isinstance(c, Extension) or c.size > len(self.synced)]

    def survive(self, how: str, random: Random) -> File:
        """The file that the next process finds; all of it is then on the platter."""
        data = bytearray(self.synced)
        if how == "kept":
            data = self.cached[:]
        elif how == "torn":
            for change in self.pending:
                tear(data, change, random)
        file = File()
        file.cached = data
        file.synced = bytearray(data)
        return file


def apply(data: bytearray, change: Write | Truncation | Extension) -> None:
    """Make the change to `data`."""
    match change:
        case Write(position, written):
            data.extend(bytes(max(0, position - len(data))))
            data[position : position + len(written)] = written
        case Truncation(size):
            del data[size:]
        case Extension(size):
            data.extend(bytes(max(0, size - len(data))))


def tear(data: bytearray, change: Write | Truncation | Extension, random: Random) -> None:
    """Change `data` as a power loss may leave it while the change is on its way: done, not done, or done in some
    sectors."""
    if isinstance(change, Truncation):
        if random.random() < 0.5:
            apply(data, change)
        return
    if isinstance(change, Extension):
        apply(data, Extension(random.choice([0, change.size, random.randint(0, change.size)])))
        return
    position, written = change
    end = random.choice([position, position + len(written), random.randint(position, position + len(written))])
    data.extend(bytes(max(0, end - len(data))))
    at = position
    while at < end:
        upto = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if random.random() < 0.6:
            data[at:upto] = written[at - position : upto - position]
        at = upto


class MemoryDisk:
    """The log's FileIO on one directory of memory files."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.synced_names: dict[str, File] = {}
        self.pending_names: list[dict[str, File]] = []
        self.descriptors: dict[int, File] = {}
        self.steps: list[str] = []
        self.stop_at: int | None = None
        self.tear_write = False
        self.stopped = False
        self.free = 1 << 40
        self.inodes: int | None = None
        self.mounted_read_only = False
        self.fault: Callable[[str], OSError | None] = lambda _: None
        self.lock = RLock()
        self._next_fd = 100

    def survivor(self, how: str, random: Random) -> MemoryDisk:
        """The disk after the process, or the power, is gone."""
        assert how in ("kept", "lost", "torn")
        names = self.synced_names
        if how == "kept":
            names = self.files
        elif how == "torn" and self.pending_names:
            names = random.choice([names, *self.pending_names])
        disk = MemoryDisk()
        disk.files = {name: file.survive(how, random) for name, file in names.items()}
        disk.synced_names = dict(disk.files)
        return disk

    def revive(self) -> None:
        """Let the next process begin where the last one was killed, with the page cache intact."""
        self.stopped = False
        self.stop_at = None
        self.steps.clear()

    def clone(self) -> MemoryDisk:
        """A clone of the disk, all of it on the platter, for experiments."""
        return self.survivor("kept", Random(0))

    def _step(self, what: str, write: tuple[File, Write] | None = None) -> None:
        if self.stopped:
            raise ProcessKilled(errno.EIO, "the process was killed")
        self.steps.append(what)
        if self.stop_at is not None and len(self.steps) >= self.stop_at:
            self.stopped = True
            if write is not None and self.tear_write:
                file, (position, data) = write
                file.change(Write(position, data[: len(data) // 2]))
            raise ProcessKilled(errno.EIO, "the process was killed")
        error = self.fault(what)
        if error is not None:
            if write is not None and self.tear_write:
                file, (position, data) = write
                file.change(Write(position, data[: len(data) // 2]))
            raise error

    def _names_changed(self) -> None:
        self.pending_names.append(dict(self.files))

    def _alive(self) -> None:
        if self.stopped:
            raise ProcessKilled(errno.EIO, "the process was killed")

    def _open(self, file: File) -> int:
        self._next_fd += 1
        self.descriptors[self._next_fd] = file
        return self._next_fd

    def names(self, directory: Path) -> list[str]:
        with self.lock:
            self._alive()
            return sorted(self.files, reverse=True)  # any order will do

    def create(self, path: Path) -> int:
        with self.lock:
            self._step(f"create {path.name}")
            if path.name in self.files:
                raise FileExistsError(errno.EEXIST, "exists", str(path))
            self.files[path.name] = File()
            self._names_changed()
            return self._open(self.files[path.name])

    def open(self, path: Path, *, write: bool) -> int:
        with self.lock:
            self._alive()
            if path.name not in self.files:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            error = self.fault("open")
            if error is not None:
                raise error
            return self._open(self.files[path.name])

    def size(self, fd: int) -> int:
        return len(self.descriptors[fd].cached)

    def pread(self, fd: int, length: int, position: int) -> bytes:
        with self.lock:
            self._alive()
            error = self.fault("pread")
            if error is not None:
                raise error
            return bytes(self.descriptors[fd].cached[position : position + length])

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        with self.lock:
            write = Write(position, b"".join(buffers))
            file = self.descriptors[fd]
            self._step(f"write {len(write.data)}", (file, write))
            file.change(write)

    def pwritev_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        with self.lock:
            self.pwritev(fd, buffers, position)
            file = self.descriptors[fd]
            write = file.pending[-1]
            assert isinstance(write, Write)
            self._step("dsync")
            file.sync_write(write)

    def allocate(self, fd: int, position: int, length: int) -> None:
        with self.lock:
            file = self.descriptors[fd]
            assert position == len(file.cached), "room elsewhere than at the end"
            self._step(f"allocate {length}")
            file.change(Extension(position + length))

    def truncate(self, fd: int, size: int) -> None:
        with self.lock:
            self._step(f"truncate {size}")
            self.descriptors[fd].truncate(size)

    def fdatasync(self, fd: int) -> None:
        with self.lock:
            self._step("fdatasync")
            self.descriptors[fd].sync()

    def fsync(self, fd: int) -> None:
        with self.lock:
            self._step("fsync")
            self.descriptors[fd].sync()

    def close(self, fd: int) -> None:
        with self.lock:
            del self.descriptors[fd]

    def rename(self, source: Path, target: Path) -> None:
        with self.lock:
            self._step(f"rename {target.name}")
            self.files[target.name] = self.files.pop(source.name)
            self._names_changed()

    def unlink(self, path: Path) -> None:
        with self.lock:
            self._step(f"unlink {path.name}")
            if path.name not in self.files:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            del self.files[path.name]
            self._names_changed()

    def sync_directory(self, directory: Path) -> None:
        with self.lock:
            self._step("sync directory")
            self.synced_names = dict(self.files)
            self.pending_names.clear()

    def free_bytes(self, directory: Path) -> int:
        self._alive()
        return self.free

    def free_inodes(self, directory: Path) -> int | None:
        self._alive()
        return self.inodes

    def read_only(self, directory: Path) -> bool:
        self._alive()
        return self.mounted_read_only

    def flipped(self, name: str, position: int, mask: int) -> MemoryDisk:
        """A copy of the disk with one byte of one file changed."""
        disk = self.clone()
        disk.files[name].cached[position] ^= mask
        disk.files[name].synced[position] ^= mask
        return disk

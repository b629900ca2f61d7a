"""The disk of one machine: real files, the bytes and names of them that are on the platter, and what may go wrong.

`WorldDisk.files` is the FileIO of the node's log, `database` opens the rows of its store (`leveldb`), `checkpoints` is
the disk of the store's checkpoints. They write real files at once, so that backups and copies of directories see them,
and the disk knows which bytes and names a power loss may take. A killed process loses nothing that it wrote.

Every other file of a data directory is a real one that is not tracked, and counts as on disk when the call that wrote
it returns: the slot files of identity and floors, which sync themselves before they return, the dead letters (SQLite,
synchronous), saved trees and the journal. Failures and slowness do not reach them, except the floors' slots.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any, Final

from isthmus.repl.model.errors import LocalFault, StorageShort
from isthmus.repl.shortage import is_shortage, lacks_descriptors
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store import checkpoint
from tests.simulation.world.leveldb import LevelDb
from tests.support.memory_disk import Extension, File, Truncation, Write, apply, tear

CAPACITY_BYTES: Final = 1 << 40
"""Size of a disk that is not full."""


class Failure(Enum):
    """What may be wrong with a disk, until it is healed."""

    WRITE = "a write gets EIO when half of it is done"
    SYNC = "a sync gets EIO, and what it was to bring to the platter never gets there by a later one"
    SPACE = "a write that makes a file longer gets ENOSPC when the rest of the space is used"
    QUOTA = "a write that makes a file longer gets EDQUOT when half of it is done, a new file at once"
    MEMORY = "a write gets ENOMEM when half of it is done"
    LATE = "a sync gets ENOSPC, as where space is allocated late, and its bytes never get to the platter"
    INODES = "a new file gets ENOSPC"
    READ_ONLY = "a write gets EROFS, the first one when half of it is done; so does a sync, or a new file"
    DESCRIPTORS = "a file cannot be opened: EMFILE, also for the reserve"


HALF_WRITES: Final = {Failure.WRITE: errno.EIO, Failure.QUOTA: errno.EDQUOT, Failure.MEMORY: errno.ENOMEM}
"""Errors of a write of which half is done."""

FAILED_SYNCS: Final = {Failure.SYNC: errno.EIO, Failure.LATE: errno.ENOSPC, Failure.READ_ONLY: errno.EROFS}
"""Errors of a sync whose bytes never get to the platter."""


def _error(number: int, path: object = None) -> OSError:
    return OSError(number, os.strerror(number), None if path is None else str(path))


class TrackedFile(File):
    """One real file: its contents on the platter, and the changes since. `synced` is None while all of the real file
    is on the platter."""

    synced: bytearray | None  # type: ignore[assignment]

    def __init__(self, inode: int, size_bytes: int, synced: bytearray | None) -> None:
        super().__init__()
        self.inode = inode
        self.size_bytes = size_bytes
        self.synced = synced
        self.lossy = False
        """A sync failed: the real file may differ from the platter although nothing is pending."""

    def load(self, read: Callable[[], bytes]) -> None:
        """Keep what is on the platter, before the real file changes."""
        if self.synced is None:
            self.synced = bytearray(read())

    def change(self, change: Write | Truncation | Extension) -> None:
        self.pending.append(change)

    def sync_write(self, write: Write) -> None:
        self.pending.append(write)
        super().sync_write(write)

    def doom(self) -> None:
        """The kernel has dropped the pages: what is pending stays readable, and off the platter."""
        self.lossy |= bool(self.pending)
        self.pending.clear()

    def left(self, random: Random) -> bytes:
        """What a power loss leaves: of what is pending all, nothing, all up to a point, or anything of each change."""
        assert self.synced is not None
        data = bytearray(self.synced)
        how = random.randrange(4)
        count = (0, len(self.pending), random.randint(0, len(self.pending)), 0)[how]
        for change in self.pending[:count]:
            apply(data, change)
        for change in self.pending[count : count + 1] if how == 2 else self.pending if how == 3 else ():
            match random.randrange(3):
                case 0:
                    apply(data, change)
                case 1:
                    tear(data, change, random)
        return bytes(data)

    def release(self) -> None:
        """Nobody writes it any more."""
        if not self.pending and not self.lossy:
            self.synced = None


class TrackedDirectory:
    """The names of one directory: now, on the platter, and after each change between the two."""

    def __init__(self, path: str, inode: int) -> None:
        self.path = path
        self.inode = inode
        self.names = {name: TrackedFile(*found, None) for name, found in _files_in(path).items()}
        self.synced = dict(self.names)
        self.pending: list[dict[str, TrackedFile]] = []

    def is_as_left(self) -> bool:
        """Nothing but this disk has changed its files."""
        return _files_in(self.path) == {name: (file.inode, file.size_bytes) for name, file in self.names.items()}

    def changed(self) -> None:
        self.pending.append(dict(self.names))

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.pending.clear()

    def power_loss(self, random: Random) -> None:
        """Leave in the real directory what a power loss leaves."""
        left = random.choice([self.synced, *self.pending])
        for name in self.names:
            if name not in left:
                os.unlink(os.path.join(self.path, name))
        for name, file in left.items():
            if file.synced is None:
                continue  # all of it is on the platter
            place = os.path.join(self.path, name)
            with open(place + ".left", "wb") as left_file:
                left_file.write(file.left(random))
            os.replace(place + ".left", place)


class WorldDisk:
    """The disk of a machine. `charge_ms` lets virtual time pass for the code
    that waits for the disk, and is called before anything is done. Everything goes through one process at a time."""

    def __init__(self, charge_ms: Callable[[float], None] = lambda _: None) -> None:
        self._charge_ms = charge_ms
        self._latency_ms = 0.0
        self._capacity_bytes = CAPACITY_BYTES
        self._used_bytes = 0
        self._failures: frozenset[Failure] = frozenset()
        self.was_broken = False
        """It has answered EIO once."""
        self._tears = False
        """The next write of a data file is done to its half before the file system is read-only."""
        self._directories: dict[str, TrackedDirectory] = {}
        self.files = ProcessFiles(self)
        self.checkpoints = CheckpointDisk(self)

    # -- processes -------------------------------------------------------------------------------------------

    def process_begins(self) -> None:
        """A new process uses the disk; the one before is gone, if it was not already."""
        self.process_ends()
        self.files = ProcessFiles(self)

    def process_ends(self) -> None:
        """The process is gone, with its descriptors and its databases; the page cache is still there."""
        self.files.end()

    def database(self, name: str, **options: Any) -> LevelDb:
        """Open the database in the directory `name`; takes what plyvel.DB takes."""
        return LevelDb(self.files, name, **options)

    # -- acts ------------------------------------------------------------------------------------------------

    def power_loss(self, random: Random) -> None:
        """The power fails: the process ends, and of each file what was not synced is there in parts, or not at all.
        Bytes and names that were synced are there."""
        self.process_ends()
        for path, directory in sorted(self._directories.items()):
            if _inode(path) == directory.inode:
                directory.power_loss(random)
        self.forget()

    def fail(self, failure: Failure, *, left_bytes: int = 0) -> None:
        """Something is wrong from now on; with SPACE, `left_bytes` can still be written."""
        self._failures |= {failure}
        self._tears = failure is Failure.READ_ONLY
        self.was_broken |= failure in (Failure.WRITE, Failure.SYNC)
        if failure is Failure.SPACE:
            self._capacity_bytes = self._used_bytes + left_bytes

    def heal(self, failure: Failure | None = None) -> None:
        """One thing, or nothing, is wrong any more."""
        self._failures = self._failures - {failure} if failure else frozenset()
        if Failure.SPACE not in self._failures:
            self._capacity_bytes = CAPACITY_BYTES

    def slow(self, latency_ms: float) -> None:
        """Each write and each sync takes `latency_ms` from now on; 0: none."""
        self._latency_ms = latency_ms

    def forget(self, path: Path | None = None) -> None:
        """What is found in the directory `path` (None: in all) counts as on the platter. A directory that was removed
        or replaced as a whole needs no call, nor one in which something else has written before log or store open."""
        for each in sorted(self._directories):
            if path is None or each == os.fspath(path) or each.startswith(os.path.join(path, "")):
                gone = self._directories.pop(each)
                self._used_bytes -= sum(file.size_bytes for file in gone.names.values())

    # -- for the interfaces below ----------------------------------------------------------------------------

    def charge(self) -> None:
        """Let the time of one write or sync pass."""
        if self._latency_ms:
            self._charge_ms(self._latency_ms)

    def directory_of(self, path: str) -> TrackedDirectory:
        """The directory, taken as it is found if it is another one than before. Raises FileNotFoundError."""
        inode = _inode(path)
        if inode is None:
            raise _error(errno.ENOENT, path)
        found = self._directories.get(path)
        if found is None or found.inode != inode:
            self.forget(Path(path))
            found = self._directories[path] = TrackedDirectory(path, inode)
            self._used_bytes += sum(file.size_bytes for file in found.names.values())
        return found

    def file_of(self, path: str) -> TrackedFile:
        """An existing file. Raises FileNotFoundError."""
        base, name = os.path.split(path)
        directory = self.directory_of(base)
        file = directory.names.get(name)
        if file is None:
            found = os.stat(path)
            file = directory.names[name] = directory.synced[name] = TrackedFile(found.st_ino, found.st_size, None)
            self._used_bytes += found.st_size
        return file

    def admit_open(self, path: str) -> None:
        """Raise OSError where no file can be opened."""
        if Failure.DESCRIPTORS in self._failures:
            raise _error(errno.EMFILE, path)

    def admit_creation(self, path: str) -> None:
        """Raise OSError where no file can be created."""
        if self._failures:
            if Failure.READ_ONLY in self._failures:
                raise _error(errno.EROFS, path)
            if Failure.INODES in self._failures:
                raise _error(errno.ENOSPC, path)
            if Failure.QUOTA in self._failures:
                raise _error(errno.EDQUOT, path)
            self.admit_open(path)

    def admit_change(self) -> None:
        """Raise OSError where nothing can be written."""
        if self._failures:
            if Failure.READ_ONLY in self._failures:
                raise _error(errno.EROFS)
            if Failure.WRITE in self._failures:
                raise _error(errno.EIO)
            if Failure.MEMORY in self._failures:
                raise _error(errno.ENOMEM)

    def admit_slot(self) -> None:
        """Raise OSError where an existing file cannot be overwritten and synced."""
        self.admit_change()
        if Failure.SYNC in self._failures:
            raise _error(errno.EIO)
        if Failure.LATE in self._failures:
            raise _error(errno.ENOSPC)

    def admit_file(self, path: str, size_bytes: int) -> None:
        """Raise OSError where a new file of this size cannot be written and synced."""
        self.admit_creation(path)
        self.admit_slot()
        if size_bytes > self.free_bytes():
            raise _error(errno.ENOSPC, path)

    def write(self, fd: int, file: TrackedFile, data: bytes, position: int, *, synced: bool) -> None:
        """Write at `position`, and bring it to the platter with `synced`. Raises OSError, and has written a part."""
        growth = position + len(data) - file.size_bytes
        if self._failures:
            if Failure.READ_ONLY in self._failures:
                if self._tears:
                    self._tears = False
                    self._put(fd, file, data[: len(data) // 2], position)
                raise _error(errno.EROFS)
            for failure, number in HALF_WRITES.items():
                if failure in self._failures and (failure is not Failure.QUOTA or growth > 0):
                    self._put(fd, file, data[: len(data) // 2], position)
                    raise _error(number)
            missing = growth - (self._capacity_bytes - self._used_bytes)
            if growth > 0 and missing > 0:
                self._put(fd, file, data[: max(0, len(data) - missing)], position)
                raise _error(errno.ENOSPC)
            if synced and (failed := self._failures & FAILED_SYNCS.keys()):
                self._put(fd, file, data, position)
                file.pending.pop()
                file.lossy = True
                raise _error(max(FAILED_SYNCS[each] for each in failed) if Failure.SYNC not in failed else errno.EIO)
        if synced:
            file.load(lambda: _whole(fd))
            self._put_bytes(fd, file, data, position)
            file.sync_write(Write(position, data))
        else:
            self._put(fd, file, data, position)

    def _put(self, fd: int, file: TrackedFile, data: bytes, position: int) -> None:
        file.load(lambda: _whole(fd))
        self._put_bytes(fd, file, data, position)
        file.pending.append(Write(position, data))

    def _put_bytes(self, fd: int, file: TrackedFile, data: bytes, position: int) -> None:
        written = os.pwrite(fd, data, position)
        assert written == len(data), "a short write: is the file system of the world's files full?"
        self._resized(file, max(file.size_bytes, position + written))

    def _resized(self, file: TrackedFile, size_bytes: int) -> None:
        self._used_bytes += size_bytes - file.size_bytes
        file.size_bytes = size_bytes

    def resize(self, fd: int, file: TrackedFile, size_bytes: int) -> None:
        """Cut a file, or extend it with zeros. Raises OSError, and has done nothing."""
        self.admit_change()
        growth = size_bytes - file.size_bytes
        if growth > self._capacity_bytes - self._used_bytes:
            raise _error(errno.ENOSPC)
        if growth > 0 and Failure.QUOTA in self._failures:
            raise _error(errno.EDQUOT)
        file.load(lambda: _whole(fd))
        os.ftruncate(fd, size_bytes)
        file.change(Extension(size_bytes) if growth > 0 else Truncation(size_bytes))
        self._resized(file, size_bytes)

    def sync(self, file: TrackedFile) -> None:
        """Bring the file's pending changes to the platter. Raises OSError, and they will never get there."""
        if not file.pending:
            return
        if self._failures and (failed := self._failures & FAILED_SYNCS.keys()):
            file.doom()
            raise _error(max(FAILED_SYNCS[each] for each in failed) if Failure.SYNC not in failed else errno.EIO)
        file.sync()

    def sync_directory(self, path: str) -> None:
        """Bring the directory's names to the platter. Raises OSError."""
        if Failure.SYNC in self._failures:
            raise _error(errno.EIO, path)
        self.directory_of(path).sync()

    def unlink(self, path: str) -> None:
        """Remove a name; a power loss may bring it back. Raises OSError."""
        self.admit_change()
        directory, file = self.directory_of(os.path.dirname(path)), self.file_of(path)
        file.load(Path(path).read_bytes)
        os.unlink(path)
        del directory.names[os.path.basename(path)]
        directory.changed()
        self._used_bytes -= file.size_bytes

    def rename(self, source: str, target: str) -> None:
        """Give a file another name in its directory. Raises OSError."""
        self.admit_change()
        directory, file = self.directory_of(os.path.dirname(source)), self.file_of(source)
        file.load(Path(source).read_bytes)
        replaced = directory.names.pop(os.path.basename(target), None)
        if replaced is not None:
            replaced.load(Path(target).read_bytes)
            self._used_bytes -= replaced.size_bytes
        os.rename(source, target)
        del directory.names[os.path.basename(source)]
        directory.names[os.path.basename(target)] = file
        directory.changed()

    def free_bytes(self) -> int:
        return max(0, self._capacity_bytes - self._used_bytes)

    def free_inodes(self) -> int | None:
        return 0 if Failure.INODES in self._failures else None

    def read_only(self) -> bool:
        return Failure.READ_ONLY in self._failures


class ProcessFiles:
    """The FileIO of one process: its descriptors are real ones, and are gone when it ends."""

    def __init__(self, disk: WorldDisk) -> None:
        self.disk = disk
        self.databases: dict[str, LevelDb] = {}
        """The open databases, by directory."""
        self._open: dict[int, TrackedFile] = {}
        self._ended = False

    def end(self) -> None:
        """The process is gone; every later call fails."""
        self._ended = True
        for fd in self._open:
            os.close(fd)
        self._open.clear()
        for database in list(self.databases.values()):
            database.drop()
        self.databases.clear()

    def _alive(self) -> None:
        if self._ended:
            raise _error(errno.EIO, "the process is gone")

    def _file(self, fd: int) -> TrackedFile:
        file = self._open.get(fd)
        if file is None:
            raise _error(errno.EBADF)
        return file

    def names(self, directory: Path) -> list[str]:
        self._alive()
        if not directory.is_dir():
            self.disk.admit_creation(os.fspath(directory))
            directory.mkdir(parents=True, mode=0o700)
        self.disk.admit_open(os.fspath(directory))
        if not self.disk.directory_of(os.fspath(directory)).is_as_left():
            self.disk.forget(directory)
        return sorted(self.disk.directory_of(os.fspath(directory)).names)

    def create(self, path: Path) -> int:
        self._alive()
        self.disk.admit_creation(os.fspath(path))
        directory = self.disk.directory_of(os.fspath(path.parent))
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        self._open[fd] = directory.names[path.name] = TrackedFile(os.fstat(fd).st_ino, 0, bytearray())
        directory.changed()
        return fd

    def open(self, path: Path, *, write: bool) -> int:
        self._alive()
        self.disk.admit_open(os.fspath(path))
        file = self.disk.file_of(os.fspath(path))
        fd = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)
        self._open[fd] = file
        return fd

    def size(self, fd: int) -> int:
        return self._file(fd).size_bytes

    def pread(self, fd: int, length: int, position: int) -> bytes:
        self._file(fd)
        return os.pread(fd, length, position)

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self.disk.charge()
        self.disk.write(fd, self._file(fd), b"".join(buffers), position, synced=False)

    def append(self, fd: int, data: bytes) -> None:
        """Write at the end of the file, without the time that it takes. Raises OSError, and has written a part."""
        file = self._file(fd)
        self.disk.write(fd, file, data, file.size_bytes, synced=False)

    def pwritev_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        self.disk.charge()
        self.disk.write(fd, self._file(fd), b"".join(buffers), position, synced=True)

    def allocate(self, fd: int, position: int, length: int) -> None:
        self.disk.charge()
        self.disk.resize(fd, self._file(fd), position + length)

    def truncate(self, fd: int, size: int) -> None:
        self.disk.charge()
        self.disk.resize(fd, self._file(fd), size)

    def fdatasync(self, fd: int) -> None:
        self.disk.charge()
        self.disk.sync(self._file(fd))

    def fsync(self, fd: int) -> None:
        self.fdatasync(fd)

    def close(self, fd: int) -> None:
        file = self._file(fd)
        del self._open[fd]
        os.close(fd)
        if file not in self._open.values():
            file.release()

    def rename(self, source: Path, target: Path) -> None:
        self._alive()
        self.disk.rename(os.fspath(source), os.fspath(target))

    def unlink(self, path: Path) -> None:
        self._alive()
        self.disk.unlink(os.fspath(path))

    def sync_directory(self, directory: Path) -> None:
        self._alive()
        self.disk.charge()
        self.disk.sync_directory(os.fspath(directory))

    def free_bytes(self, directory: Path) -> int:
        return self.disk.free_bytes()

    def free_inodes(self, directory: Path) -> int | None:
        return self.disk.free_inodes()

    def read_only(self, directory: Path) -> bool:
        return self.disk.read_only()


class CheckpointDisk(checkpoint.Disk):
    """The disk of a store's checkpoints."""

    def __init__(self, disk: WorldDisk) -> None:
        self._disk = disk

    def sync_file(self, path: Path) -> None:
        self._disk.charge()
        try:
            self._disk.admit_open(os.fspath(path))
        except OSError as error:
            raise StorageShort(f"{path} cannot be opened: {error.strerror}") from error
        self._disk.sync(self._disk.file_of(os.fspath(path)))

    def sync_directory(self, path: Path) -> None:
        self._disk.charge()
        try:
            self._disk.sync_directory(os.fspath(path))
        except OSError as error:
            if lacks_descriptors(error):
                raise StorageShort(f"directory {path} cannot be opened: {error.strerror}") from error
            raise

    def probe(self, directory: Path, size_bytes: int) -> None:
        self._disk.charge()
        path = os.fspath(directory / checkpoint.PROBE_NAME)
        try:
            self._disk.admit_file(path, size_bytes)
        except OSError as error:
            if is_shortage(error):
                raise StorageShort(f"{path} cannot be written: {error.strerror}") from error
            raise

    def write_slot(self, slots: SlotFile, value: Any) -> None:
        self._disk.charge()
        try:
            self._disk.admit_slot()
        except OSError as error:
            kind = StorageShort if is_shortage(error) else LocalFault
            raise kind(f"cannot write the floors: {error.strerror}") from error
        super().write_slot(slots, value)


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _files_in(path: str) -> dict[str, tuple[int, int]]:
    """The files of a directory, sorted: name -> (inode, bytes)."""
    found = {}
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                found[entry.name] = (status.st_ino, status.st_size)
    return dict(sorted(found.items()))


def _whole(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)

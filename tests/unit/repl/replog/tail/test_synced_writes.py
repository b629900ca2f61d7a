"""Synchronous writes: what they cover, systems without them, and the finality of the first failure."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from isthmus.repl.model.errors import StorageShort
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.replog.index import LogIndex
from isthmus.repl.replog.tail import LogTail
from tests.support.log_history import CLUSTER, DIRECTORY
from tests.support.memory_disk import MemoryDisk

FIRST = "0000000000000001.log"
FILE_BYTES = 3000


def a_tail(disk: MemoryDisk) -> LogTail:
    tail = LogTail(disk, DIRECTORY, CLUSTER, LogIndex(), file_bytes=FILE_BYTES)
    tail.roll()
    return tail


def test_a_synced_write_behind_unsynced_ones_syncs_them_all() -> None:
    """A synchronous write covers only its own bytes: after unsynced ones the file is synced, and then `durable`
    moves."""
    disk = MemoryDisk()
    tail = a_tail(disk)
    tail.write([b"one"], 1, synced=True)
    assert tail.durable == tail.end
    assert disk.steps[-1] == "dsync"
    tail.write([b"two"], 1, synced=False)
    assert tail.durable < tail.end
    tail.mark(synced=True)
    assert tail.durable == tail.end
    assert disk.steps[-1] == "fdatasync"
    assert not disk.files[FIRST].pending
    assert tail.fsync_count == 2
    tail.close()


def test_a_failed_sync_of_preallocated_space_is_a_failure() -> None:
    """A file system may refuse space; a sync that fails ends the tail."""
    disk = MemoryDisk()
    tail = a_tail(disk)
    tail.write([b"one"], 1, synced=True)
    disk.fault = lambda what: OSError(errno.EIO, "Input/output error") if what == "fdatasync" else None
    with pytest.raises(OSError, match="Input/output error"):
        tail.preallocate(1)
    disk.fault = lambda _: None
    with pytest.raises(OSError, match="an earlier write or sync of the log failed"):
        tail.write([b"two"], 1, synced=True)
    tail.close()


def test_a_sync_of_preallocated_space_that_is_refused_is_mended() -> None:
    """Where the disk is short of something the space is given back, and the tail goes on."""
    disk = MemoryDisk()
    tail = a_tail(disk)
    tail.write([b"one"], 1, synced=True)
    disk.fault = lambda what: OSError(errno.ENOSPC, "No space left") if what == "fdatasync" else None
    with pytest.raises(StorageShort, match="No space left"):
        tail.preallocate(1)
    disk.fault = lambda _: None
    with pytest.raises(StorageShort, match="No space left"):
        tail.write([b"two"], 1, synced=True)
    tail.mend()
    assert (tail.preallocated_bytes, tail.short) == (0, "")
    assert tail.write([b"two"], 1, synced=True) < tail.durable == tail.end
    tail.close()


@pytest.mark.parametrize("step", ["allocate", "write", "dsync", "truncate"])
def test_nothing_is_tried_again_after_a_failed_step(step: str) -> None:
    """The first failure is a tail's last disk operation: all later calls fail without one."""
    disk = MemoryDisk()
    tail = a_tail(disk)
    tail.write([b"one"], 1, synced=True)
    if step == "truncate":
        tail.preallocate(1)
    durable = tail.durable
    disk.fault = lambda what: OSError(errno.EIO, "Input/output error") if what.startswith(step) else None
    acts = {"truncate": tail.seal, "allocate": lambda: tail.preallocate(1)}
    act = acts.get(step, lambda: tail.write([b"two"], 1, synced=True))
    with pytest.raises(OSError, match="Input/output error"):
        act()
    disk.fault = lambda _: None
    steps = len(disk.steps)
    for act in (lambda: tail.write([b"three"], 1, synced=True), lambda: tail.mark(synced=False), tail.roll):
        with pytest.raises(OSError, match="an earlier write or sync of the log failed"):
            act()
    assert (len(disk.steps), tail.durable) == (steps, durable)
    tail.close()


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_system_that_cannot_sync_in_a_write_is_asked_once(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused flag is not a failure: the bytes are written and the file is synced, in two calls from then on."""
    asked: list[int] = []
    synced: list[int] = []
    pwritev, fdatasync = os.pwritev, os.fdatasync

    def refusing(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        if flags:
            asked.append(flags)
            raise OSError(number, os.strerror(number))
        return pwritev(fd, buffers, position)

    def counted(fd: int) -> None:
        synced.append(fd)
        fdatasync(fd)

    monkeypatch.setattr(os, "pwritev", refusing)
    monkeypatch.setattr(os, "fdatasync", counted)
    io = SystemFiles()
    fd = io.create(tmp_path / "file")
    io.pwritev_synced(fd, [b"ab", b"c"], 0)
    io.pwritev_synced(fd, [b"d"], 3)
    assert io.pread(fd, 9, 0) == b"abcd"
    assert (len(asked), len(synced)) == (1, 2)
    io.close(fd)


def test_a_synced_write_that_was_short_is_finished_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a short write follows, and is on disk when the call returns; an error in it is raised."""
    synced: list[int] = []
    pwritev = os.pwritev

    def short(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        return pwritev(fd, [b"".join(buffers)[:3]], position, flags)

    monkeypatch.setattr(os, "pwritev", short)
    monkeypatch.setattr(os, "fdatasync", synced.append)
    io = SystemFiles()
    fd = io.create(tmp_path / "file")
    io.pwritev_synced(fd, [b"ab", b"cde", b"fg"], 2)
    assert io.pread(fd, 20, 0) == b"\0\0abcdefg"
    assert synced == [fd]

    def full(fd: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        io.pwritev_synced(fd, [b"abcd"], 9)
    assert synced == [fd]
    io.close(fd)

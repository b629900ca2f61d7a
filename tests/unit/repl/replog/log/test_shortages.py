"""Shortages that are no failure of the disk: the log goes on in its file, refuses writes, and recovers by itself."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from random import Random

import pytest

from isthmus.repl.model.errors import LocalFault, StorageShort
from isthmus.repl.replog import writer as writer_module
from isthmus.repl.replog.log import FileLog
from isthmus.repl.replog.writer import INODES_RESERVE
from isthmus.repl.shortage import NO_DESCRIPTORS, SHORTAGES
from tests.support.log_history import Listener, entries, kill, open_log
from tests.support.memory_disk import MemoryDisk
from tests.support.waiting import wait_until
from tests.unit.repl.replog.log.test_disk_faults import failing

ALL = sorted(SHORTAGES)


def names_of(number: int) -> str:
    """The symbol of an error."""
    return errno.errorcode[number]


def creations(disk: MemoryDisk) -> int:
    """How many log files were given their name."""
    return sum(step.startswith("rename") for step in disk.steps)


def fill_until(log: FileLog, listener: Listener, condition: Callable[[], bool]) -> None:
    """Append entries, each made durable, until the condition holds."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        log.append(0, entries(1, log.leo(0), 1, size=400))
        assert listener.wait({0: log.leo(0)})


@pytest.mark.parametrize("step", ["create", "write"])
@pytest.mark.parametrize("number", ALL, ids=names_of)
def test_a_file_that_cannot_be_created_is_created_later(
    step: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was accepted is durable in the file before; new writes are refused with the reason, barriers are not; once
    the shortage is over, the next file begins and writes are accepted. Nothing is lost by a crash in between
    (R-SHORT)."""
    monkeypatch.setattr(writer_module, "ROLL_AGAIN_S", 0.01)
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    error = OSError(number, "short")

    created = [False]

    def fault(what: str) -> OSError | None:
        """The creation fails, or the first write into what was created."""
        began, created[0] = created[0], what.startswith("create")
        return error if (created[0] if step == "create" else began and what.startswith("write")) else None

    disk.fault = fault
    before = creations(disk)
    fill_until(log, listener, lambda: not log.has_space(0))
    assert "cannot be created" in log.shortage
    assert log.has_space_for_barriers()
    log.append(0, entries(1, log.leo(0), 3, size=400))  # accepted before the shortage was known
    assert listener.wait({0: log.leo(0)})
    assert creations(disk) == before
    crashed = open_log(disk.survivor("lost", Random(0)))
    assert crashed.recovered()[0].leo == log.leo(0)
    assert not crashed.recovered()[0].damage
    crashed.close()
    disk.fault = lambda _: None

    def has_space_again() -> bool:
        log.refresh_free_space()
        return log.has_space(0)

    wait_until(has_space_again, "the next file is begun")
    assert log.shortage == ""
    assert creations(disk) == before + 1
    fill_until(log, listener, lambda: creations(disk) > before + 1)
    assert not listener.failures
    leo = log.leo(0)
    assert log.read(0, 0, leo, 1 << 30) == [entry for at in range(leo) for entry in entries(1, at, 1, size=400)]
    kill(log, disk)
    again = open_log(disk.survivor("lost", Random(0)))
    assert (again.recovered()[0].leo, again.recovered()[0].damage) == (leo, "")
    again.close()


@pytest.mark.parametrize("number", sorted(SHORTAGES - NO_DESCRIPTORS), ids=names_of)
@pytest.mark.parametrize(("step", "durability"), [
    ("write", "fsync"), ("dsync", "fsync"), ("fsync", "fsync"), ("rename", "fsync"), ("sync directory", "fsync"),
    ("write", "async"), ("fdatasync", "async"), ("fsync", "async"),
])  # fmt: skip
def test_a_shortage_in_the_middle_of_a_write_or_sync_is_waited_out(
    step: str, durability: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a write is there, or a sync fails and the kernel drops what it was to bring to disk: the log refuses
    writes and barriers with the reason, reads go on, and a crash loses nothing that was durable. Once the shortage is
    over, everything that was accepted is written, once, and on disk, and the log takes writes again (R-SHORT)."""
    monkeypatch.setattr(writer_module, "ROLL_AGAIN_S", 0.01)
    monkeypatch.setattr(writer_module, "WRITE_AGAIN_S", 0.01)
    monkeypatch.setattr(writer_module, "ASYNC_SYNC_S", 0.01)
    disk = MemoryDisk()
    log = open_log(disk, durability=durability)
    listener = Listener(log)
    fill_until(log, listener, lambda: log.stats().file_count > 1)
    disk.tear_write = True
    fails = failing(step, OSError(number, os.strerror(number)))

    def fault(what: str) -> OSError | None:
        error = fails(what)
        if error is not None and "sync" in what:
            for file in list(disk.files.values()):
                file.pending.clear()
        return error

    disk.fault = fault
    until = time.monotonic() + 20
    while log.has_space(0):
        log.append(0, entries(1, log.leo(0), 1, size=400))
        wait_until(lambda: listener.durable[0] == log.leo(0) or not log.has_space(0), "it is durable, or refused")
        assert time.monotonic() < until
    assert os.strerror(number) in log.shortage
    log.append(0, entries(1, log.leo(0), 3, size=400))  # accepted before the shortage was known
    durable = listener.durable[0]
    assert log.read(0, 0, durable, 1 << 20) == [e for at in range(durable) for e in entries(1, at, 1, size=400)]
    if durability == "fsync":
        crashed = open_log(disk.survivor("lost", Random(0)))
        assert crashed.recovered()[0].leo >= durable
        assert not crashed.recovered()[0].damage
        crashed.close()
    disk.fault = lambda _: None
    disk.tear_write = False
    assert listener.wait({0: log.leo(0)})

    def has_space_again() -> bool:
        log.refresh_free_space()
        return log.has_space(0) and log.has_space_for_barriers()

    wait_until(has_space_again, "writes are accepted")
    assert log.shortage == ""
    before = log.leo(0)
    fill_until(log, listener, lambda: log.leo(0) > before + 3)
    assert not listener.failures
    log.sync()
    leo = log.leo(0)
    assert log.read(0, 0, leo, 1 << 30) == [entry for at in range(leo) for entry in entries(1, at, 1, size=400)]
    kill(log, disk)
    again = open_log(disk.survivor("lost", Random(0)))
    assert (again.recovered()[0].leo, again.recovered()[0].damage) == (leo, "")
    again.close()


def test_a_log_that_closes_while_it_is_short_says_what_it_could_not_write() -> None:
    """It waits no longer, and the next start finds what was durable, without damage."""
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    fill_until(log, listener, lambda: log.leo(0) == 3)
    disk.tear_write = True
    disk.fault = failing("write", OSError(errno.EDQUOT, "Disk quota exceeded"))
    log.append(0, entries(1, 3, 1))
    wait_until(lambda: not log.has_space(0), "the shortage is known")
    with pytest.raises(LocalFault, match="raise the quota"):
        log.close()
    again = open_log(disk.survivor("kept", Random(0)))
    assert (again.recovered()[0].leo, again.recovered()[0].damage) == (3, "")
    again.close()


@pytest.mark.parametrize("step", ["dsync", "fsync", "sync directory"])
def test_a_broken_disk_ends_the_log(step: str) -> None:
    """H34: EIO is no shortage, and nothing of it is tried again."""
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    disk.fault = failing(step, OSError(errno.EIO, "failed"))
    while not listener.failures:
        log.append(0, entries(1, log.leo(0), 1, size=400))
        listener.wait({0: log.leo(0)})
    failure = listener.wait_for_failure()
    assert isinstance(failure, LocalFault)
    assert not isinstance(failure, StorageShort)
    kill(log, disk)


@pytest.mark.parametrize("step", ["unlink", "sync directory", "write"])
def test_a_log_that_cannot_remove_what_it_has_trimmed_removes_it_later(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a file system that became read-only the oldest files stay, and go with a later trim."""
    monkeypatch.setattr(writer_module, "WRITE_AGAIN_S", 0.01)
    disk = MemoryDisk()
    log = open_log(disk, size_limit_bytes=1_000)
    listener = Listener(log)
    fill_until(log, listener, lambda: log.stats().file_count > 3)
    wait_until(lambda: log._tail.marked and log._tail.durable == log._tail.end, "the idle log is marked")
    disk.fault = failing(step, OSError(errno.EROFS, "Read-only file system"))
    log.trim({0: log.leo(0)})
    wait_until(lambda: any(each.startswith(step) for each in disk.steps[-4:]), "the trim is refused")
    disk.fault = lambda _: None
    log.append(0, entries(1, log.leo(0), 1))
    assert listener.wait({0: log.leo(0)})
    log.trim({0: log.leo(0)})
    wait_until(lambda: log.stats().size_bytes < 2_000, "the log is trimmed")
    assert not listener.failures
    log.close()
    assert sum(name.endswith(".log") for name in disk.files) == log.stats().file_count
    assert log.read(0, log.leo(0) - 1, log.leo(0), 1 << 20) == entries(1, log.leo(0) - 1, 1)


@pytest.mark.parametrize(("inodes", "writes", "barriers"), [
    (None, True, True), (INODES_RESERVE, True, True), (INODES_RESERVE - 1, False, True),
    (INODES_RESERVE // 2, False, True), (INODES_RESERVE // 2 - 1, False, False), (0, False, False),
])  # fmt: skip
def test_inodes_have_a_reserve_as_bytes_have(inodes: int | None, writes: bool, barriers: bool) -> None:
    """Below it writes are refused, below half of it barriers, too; more inodes end that. A file system without a limit
    is never short (H38)."""
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    disk.inodes = inodes
    log.append(0, entries(1, 0, 1))
    assert listener.wait({0: 1})
    log.refresh_free_space()
    wait_until(lambda: log.stats().free_inodes == inodes and log.has_space(0) == writes, "the inodes are counted")
    assert log.has_space_for_barriers() == barriers
    assert (f"{inodes} free inodes" in log.shortage) == (not writes)
    disk.inodes = INODES_RESERVE
    log.refresh_free_space()
    wait_until(lambda: log.has_space(0), "there are inodes again")
    log.close()


def test_a_log_on_a_file_system_that_is_read_only_refuses_until_it_is_not() -> None:
    """Neither writes nor barriers are accepted meanwhile, and nothing is written."""
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    log.append(0, entries(1, 0, 1))
    assert listener.wait({0: 1})
    wait_until(lambda: log._tail.marked, "the idle log is marked")
    disk.mounted_read_only = True
    log.refresh_free_space()
    wait_until(lambda: not log.has_space(0), "the read-only file system is noticed")
    assert "read-only" in log.shortage
    assert not log.has_space_for_barriers()
    disk.fault = failing("write", OSError(errno.EROFS, "Read-only file system"))
    time.sleep(2 * writer_module.MARK_AFTER_S)
    disk.fault = lambda _: None
    disk.mounted_read_only = False
    log.refresh_free_space()
    wait_until(lambda: log.has_space(0), "it can be written again")
    log.append(0, entries(1, 1, 1))
    assert listener.wait({0: 2})
    log.close()


def test_a_log_that_cannot_read_what_it_would_trim_trims_later() -> None:
    """The oldest file is opened to copy what is still needed of it; without a descriptor it stays until the next
    checkpoint asks again."""
    disk = MemoryDisk()
    log = open_log(disk, size_limit_bytes=1_000)
    listener = Listener(log)
    fill_until(log, listener, lambda: log.stats().file_count > 3)
    disk.fault = failing("open", OSError(errno.EMFILE, "Too many open files"))
    with pytest.raises(StorageShort, match="cannot be read"):
        log.read(0, 0, log.leo(0), 1 << 20)
    files = log.stats().file_count
    log.trim({0: 1})
    log.append(0, entries(1, log.leo(0), 1))
    assert listener.wait({0: log.leo(0)})
    assert log.stats().file_count >= files
    disk.fault = lambda _: None
    log.trim({0: log.leo(0)})
    wait_until(lambda: log.stats().file_count < files, "the log is trimmed")
    assert not listener.failures
    log.close()

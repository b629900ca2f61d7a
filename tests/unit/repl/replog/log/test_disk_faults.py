"""Failing disks, full disks, foreign directories, and the number of syncs with group commit and in async mode."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from isthmus.repl.model.entry import EntryKind, make_entry
from isthmus.repl.model.errors import Corruption, LocalFault, OutOfStorage, TooLarge, WrongIdentity
from isthmus.repl.replog import log as log_module
from isthmus.repl.replog import writer as writer_module
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.replog.log import BARRIERS_BYTES, FileLog
from tests.support.log_history import CLUSTER, DIRECTORY, Listener, entries, kill, open_log
from tests.support.memory_disk import MemoryDisk
from tests.support.waiting import wait_until


def failing(step: str, error: OSError, after: int = 0) -> Callable[[str], OSError | None]:
    """A fault that meets every `step` but the first `after` ones."""
    met = [0]

    def fault(what: str) -> OSError | None:
        if what.startswith(step):
            met[0] += 1
            if met[0] > after:
                return error
        return None

    return fault


@pytest.mark.parametrize("step", ["dsync", "write", "allocate", "create", "fsync", "rename", "sync directory"])
def test_the_first_failure_ends_the_log(step: str) -> None:
    """One failed write or sync is reported once, nothing of it is reported as durable, and nothing is retried (H34)."""
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    log.append(0, entries(1, 0, 1))
    assert listener.wait({0: 1})
    disk.fault = failing(step, OSError(errno.EIO, "Input/output error"))
    while not listener.failures:
        log.append(0, entries(1, log.leo(0), 1))
        listener.wait({0: log.leo(0)})
    failure = listener.wait_for_failure()
    assert isinstance(failure, LocalFault)
    assert isinstance(failure.__cause__, OSError)
    durable, steps = listener.durable[0], len(disk.steps)
    disk.fault = lambda _: None
    for act in (lambda: log.append(0, entries(1, log.leo(0), 1)), lambda: log.truncate(0, 0, 1)):
        with pytest.raises(LocalFault, match="Input/output error"):
            act()
    log.trim({0: 1})
    assert log.read(0, 0, 1 << 20, 1 << 20) == entries(1, 0, durable)
    with pytest.raises(LocalFault):
        log.close()
    log.close()
    assert (len(listener.failures), listener.durable[0], len(disk.steps)) == (1, durable, steps)
    again = open_log(disk.survivor("lost", Random(0)))
    assert again.recovered()[0].leo == durable
    assert not again.recovered()[0].damage
    again.close()


def test_a_failed_background_sync_ends_an_async_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """In async mode, too, a failed sync is reported and nothing is accepted after it."""
    monkeypatch.setattr(writer_module, "ASYNC_SYNC_S", 0.01)
    disk = MemoryDisk()
    log = open_log(disk, durability="async")
    disk.fault = failing("fdatasync", OSError(errno.EIO, "Input/output error"))
    listener = Listener(log)
    log.append(0, entries(1, 0, 1))
    assert isinstance(listener.wait_for_failure(), LocalFault)
    steps = len(disk.steps)
    disk.fault = lambda _: None
    with pytest.raises(LocalFault):
        log.append(0, entries(1, 1, 1))
    with pytest.raises(LocalFault):
        log.close()
    assert disk.steps[steps:] == []


def test_a_disk_that_fills_all_the_same_refuses_with_advice() -> None:
    """If a write meets a full disk in spite of the reserve, the shortage includes advice."""
    disk = MemoryDisk()
    log = open_log(disk)
    disk.fault = failing("write", OSError(errno.ENOSPC, "No space left on device"))
    listener = Listener(log)
    log.append(0, entries(1, 0, 1))
    wait_until(lambda: not log.has_space(0), "the full disk is noticed")
    assert "free some space" in log.shortage
    assert not listener.failures
    kill(log, disk)


def test_after_a_failed_sync_the_next_process_writes_the_bytes_again() -> None:
    """Bytes that a failed sync left only in the page cache are on disk before recovery counts them as part of the log
    (H34)."""
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    log.append(0, entries(1, 0, 1))
    assert listener.wait({0: 1})
    disk.fault = failing("dsync", OSError(errno.EIO, "Input/output error"))
    log.append(0, entries(1, 1, 1))
    listener.wait_for_failure()
    with pytest.raises(LocalFault):
        log.close()
    disk.fault = lambda _: None
    for file in disk.files.values():
        file.pending.clear()  # the pages are marked clean, though they are not on the platter
    again = open_log(disk)
    assert again.recovered()[0].leo == 2
    kill(again, disk)
    after_power_loss = open_log(disk.survivor("lost", Random(0)))
    assert after_power_loss.recovered()[0].leo == 2
    after_power_loss.close()


def test_the_reserve_refuses_before_the_disk_is_full() -> None:
    """Below the reserve there is no room for new entries, though the disk still has space; `append` refuses at half of
    it (H38)."""
    disk = MemoryDisk()
    disk.free = 5000
    log = open_log(disk, reserve_bytes=4000)
    listener = Listener(log)
    assert log.has_space(1000)
    assert not log.has_space(1001)
    log.append(0, entries(1, 0, 1, size=1500))
    assert listener.wait({0: 1})
    with pytest.raises(OutOfStorage):
        log.append(0, entries(1, 1, 1, size=1500))
    assert log.leo(0) == 1
    log.close()


def test_barriers_may_use_the_whole_reserve() -> None:
    """With less than half of the reserve left a change is refused and a barrier is not; a lack of space for barriers is
    known beforehand (H38)."""
    disk = MemoryDisk()
    disk.free = BARRIERS_BYTES + 1000
    log = open_log(disk, reserve_bytes=4 * BARRIERS_BYTES)
    listener = Listener(log)
    assert log.has_space_for_barriers()
    with pytest.raises(OutOfStorage):
        log.append(0, entries(1, 0, 1))
    log.append(0, [make_entry(EntryKind.BARRIER, 1, 0, request_id=b"", origin=CLUSTER, time_ms=0)])
    assert listener.wait({0: 1})
    disk.free = 0
    log._writer.check_space()
    assert not log.has_space_for_barriers()
    assert log.leo(0) == 1
    log.close()


def test_the_free_space_is_watched_while_the_log_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that other programs fill is noticed by writing alone, before it is full."""
    monkeypatch.setattr(writer_module, "SPACE_CHECK_BYTES", 1000)
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    disk.free = 1500
    refused = False
    while not refused:
        try:
            log.append(0, entries(1, log.leo(0), 1, size=200))
        except OutOfStorage:
            refused = True
        assert listener.wait({0: log.leo(0)})
        assert log.leo(0) < 20
    log.close()


def test_an_entry_too_large_for_a_frame_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry over the frame's limit raises TooLarge and leaves no trace."""
    monkeypatch.setattr(log_module, "ENTRY_BYTES_MAX", 1000)
    log = open_log(MemoryDisk())
    listener = Listener(log)
    with pytest.raises(TooLarge):
        log.append(0, entries(1, 0, 1) + entries(1, 1, 1, size=1001))
    assert log.leo(0) == 0
    log.append(0, entries(1, 0, 1, size=800))
    assert listener.wait({0: 1})
    log.close()


def test_one_sync_serves_all_that_waits() -> None:
    """All entries queued during a sync are committed by the next one together, for any number of partitions."""
    release = threading.Event()
    began = threading.Event()

    class SlowDisk(MemoryDisk):
        def pwritev_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
            began.set()
            assert release.wait(60)
            super().pwritev_synced(fd, buffers, position)

    disk = SlowDisk()
    log = open_log(disk, file_bytes=1 << 20, batch_bytes=1 << 20)
    listener = Listener(log)
    log.append(0, entries(1, 0, 1))
    assert began.wait(60)
    for offset in range(100):
        for partition in range(1, 13):
            log.append(partition, entries(1, offset, 1))
    release.set()
    assert listener.wait(dict.fromkeys(range(1, 13), 100))
    assert listener.reports == [{0: 1}, dict.fromkeys(range(1, 13), 100)]
    assert (log.stats().fsync_count, log.stats().batches_written) == (2, 2)
    assert log.stats().fsync_seconds > 0
    log.close()


def test_a_batch_is_bounded_but_a_large_entry_fits() -> None:
    """Batches end at their byte limit; an entry over it is a batch of its own."""
    writes: list[int] = []

    class Counting(MemoryDisk):
        def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
            writes.append(sum(map(len, buffers)))
            super().pwritev(fd, buffers, position)

    log = open_log(Counting(), file_bytes=1 << 20, batch_bytes=1000)
    listener = Listener(log)
    writes.clear()
    log.append(0, entries(1, 0, 40, size=100) + entries(1, 40, 1, size=5000) + entries(1, 41, 2))
    assert listener.wait({0: 43})
    assert sorted(writes)[-1] > 5000
    assert sorted(writes)[-2] < 1300
    assert log.read(0, 39, 43, 1 << 20) == entries(1, 39, 1, size=100) + entries(1, 40, 1, size=5000) + entries(
        1, 41, 2
    )
    log.close()


def test_async_reports_after_the_write_and_syncs_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """In async mode nothing waits for the disk, but everything is on disk soon after."""
    monkeypatch.setattr(writer_module, "ASYNC_SYNC_S", 0.05)
    disk = MemoryDisk()
    log = open_log(disk, durability="async", file_bytes=1 << 20, batch_bytes=1)
    listener = Listener(log)
    for offset in range(200):
        log.append(0, entries(1, offset, 1))
    assert listener.wait({0: 200})
    assert log.stats().batches_written == 200
    assert log.stats().fsync_count < 100
    wait_until(lambda: not disk.files["0000000000000001.log"].pending, "the background sync")
    kill(log, disk)
    again = open_log(disk.survivor("lost", Random(0)), durability="async")
    assert again.recovered()[0].leo == 200
    again.close()


def test_entries_reported_by_an_async_log_are_on_disk_after_its_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a component records that entries are not needed from the log any more, it can have them synced, from any
    thread; a disk error ends the log."""
    monkeypatch.setattr(writer_module, "ASYNC_SYNC_S", 30.0)
    disk = MemoryDisk()
    log = open_log(disk, durability="async", file_bytes=1 << 20, batch_bytes=1)
    listener = Listener(log)
    log.append(0, entries(1, 0, 20))
    assert listener.wait({0: 20})
    again = open_log(disk.survivor("lost", Random(0)), durability="async")
    assert 0 not in again.recovered()
    again.close()
    log.sync()
    again = open_log(disk.survivor("lost", Random(0)), durability="async")
    assert again.recovered()[0].leo == 20
    again.close()
    log.append(0, entries(1, 20, 1))
    assert listener.wait({0: 21})
    disk.fault = failing("fdatasync", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(LocalFault, match="cannot be synced"):
        log.sync()
    with pytest.raises(LocalFault, match="the log has failed"):
        log.append(0, entries(1, 21, 1))
    with pytest.raises(LocalFault):
        log.close()
    with pytest.raises(LocalFault, match="the log has failed"):
        log.sync()


def test_an_async_log_that_loses_power_is_whole_up_to_somewhere_or_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """After any power loss, an async log is a gapless prefix of the entries that were written."""
    monkeypatch.setattr(writer_module, "ASYNC_SYNC_S", 30.0)
    disk = MemoryDisk()
    log = open_log(disk, durability="async", file_bytes=1 << 20, batch_bytes=1)
    listener = Listener(log)
    for offset in range(0, 30, 2):
        log.append(0, entries(1, offset, 2))
        assert listener.wait({0: offset + 2})
    kill(log, disk)
    ends = set()
    for seed in range(60):
        again = open_log(disk.survivor("torn", Random(seed)), durability="async")
        found = again.recovered().get(0)
        end = found.leo if found else 0
        ends.add(end)
        assert again.read(0, 0, end, 1 << 20) == entries(1, 0, end)
        again.close()
    assert len(ends) > 1


def test_a_mark_follows_the_last_batch_of_a_busy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Soon after the last batch a mark with the state is written, so that a flipped byte in that batch is detected as
    damage; then nothing more is written."""
    monkeypatch.setattr(writer_module, "MARK_AFTER_S", 0.01)
    disk = MemoryDisk()
    log = open_log(disk, file_bytes=1 << 20)
    listener = Listener(log)
    at = log._tail.end.position
    log.append(0, entries(1, 0, 1))
    assert listener.wait({0: 1})
    wait_until(lambda: log._tail.marked and log._tail.durable == log._tail.end, "the mark is written")
    steps = len(disk.steps)
    time.sleep(0.05)
    assert len(disk.steps) == steps
    kill(log, disk)
    flipped = disk.survivor("lost", Random(0)).flipped("0000000000000001.log", at + 70, 4)
    log = open_log(flipped)
    assert "may be lost" in log.recovered()[0].damage or "are lost" in log.recovered()[0].damage
    log.close()


def test_a_foreign_log_is_refused() -> None:
    """Another cluster's log, and one of a later format, are refused and left as they are (H33)."""
    disk = MemoryDisk()
    open_log(disk).close()
    before = bytes(disk.files["0000000000000001.log"].cached)
    with pytest.raises(WrongIdentity, match="belongs to cluster"):
        open_log(disk, cluster_uuid=b"x" * 16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("isthmus.repl.replog.frames.FORMAT_VERSION", 2)
        with pytest.raises(LocalFault, match="format version 1"):
            open_log(disk)
    assert bytes(disk.files["0000000000000001.log"].cached) == before


def test_unfinished_files_are_removed_and_foreign_ones_kept() -> None:
    """Files that were not completed are deleted at the next opening; other programs' files stay."""
    disk = MemoryDisk()
    open_log(disk).close()
    for name in ("0000000000000002.log.new", "notes.txt", "0000000000000003.log.old"):
        disk.create(DIRECTORY / name)
    open_log(disk).close()
    assert sorted(disk.files) == ["0000000000000001.log", "0000000000000003.log.old", "notes.txt"]


def test_a_directory_that_cannot_be_used_is_one_clear_error(tmp_path: Path) -> None:
    """A path that is not a directory raises a LocalFault that names it."""
    (tmp_path / "log").write_text("a file")
    with pytest.raises(LocalFault, match="cannot be opened"):
        FileLog.open(
            tmp_path / "log",
            cluster_uuid=CLUSTER,
            durability="fsync",
            size_limit_bytes=1000,
            file_bytes=1000,
            batch_bytes=1000,
            io=SystemFiles(),
        )


def test_reading_rotten_bytes_raises_corruption() -> None:
    """Bytes that are corrupted while the log is open are never returned."""
    disk = MemoryDisk()
    log = open_log(disk, file_bytes=1 << 20)
    listener = Listener(log)
    log.append(0, entries(1, 0, 3, size=50))
    assert listener.wait({0: 3})
    file = disk.files["0000000000000001.log"]
    intact = bytes(file.cached)
    for position in range(112, log._tail.end.position):
        file.cached[position] ^= 0x10
        with pytest.raises(Corruption):
            log.read(0, 0, 3, 1 << 20)
        file.cached[:] = intact
    assert log.read(0, 0, 3, 1 << 20) == entries(1, 0, 3, size=50)
    disk.files["gone"] = disk.files.pop("0000000000000001.log")
    with pytest.raises(Corruption, match="is gone"):
        log.read(0, 0, 3, 1 << 20)
    disk.files["0000000000000001.log"] = disk.files.pop("gone")
    disk.fault = failing("pread", OSError(errno.EIO, "Input/output error"))
    with pytest.raises(LocalFault, match="cannot be read"):
        log.read(0, 0, 3, 1 << 20)
    disk.fault = lambda _: None
    log.close()


def test_an_entry_that_is_not_what_the_log_wrote_it_as_is_corruption() -> None:
    """A wire that decodes to another offset than its place is never handed out."""
    log = open_log(MemoryDisk())
    listener = Listener(log)
    entry = entries(1, 0, 1)[0]
    strange = make_entry(EntryKind.BARRIER, 1, 7, request_id=b"", origin=CLUSTER, time_ms=0).wire
    log.append(0, [entry._replace(wire=strange)])
    log.append(1, [entry._replace(wire=b"\xc1")])
    assert listener.wait({0: 1, 1: 1})
    for partition in (0, 1):
        with pytest.raises(Corruption):
            log.read(partition, 0, 1, 1 << 20)
    log.close()


def test_a_closed_log_is_on_disk_in_full() -> None:
    """`close` leaves nothing in the page cache, not even the closing mark; closing an unchanged log writes nothing."""
    for durability in ("fsync", "async"):
        disk = MemoryDisk()
        log = open_log(disk, durability=durability)
        listener = Listener(log)
        log.append(0, entries(1, 0, 5))
        log.close()
        assert listener.durable == {0: 5}
        assert not disk.pending_names
        assert not any(file.pending for file in disk.files.values())
        again = open_log(disk, durability=durability)
        Listener(again)
        size = again.stats().size_bytes
        again.close()
        assert again.stats().size_bytes == size


def test_an_async_log_syncs_a_file_before_it_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """In async mode a power loss takes nothing from any file but the newest, also when old files are trimmed."""
    monkeypatch.setattr(writer_module, "ASYNC_SYNC_S", 30.0)
    disk = MemoryDisk()
    log = open_log(disk, durability="async", size_limit_bytes=700)
    listener = Listener(log)
    for offset in range(12):
        log.append(0, entries(1, offset, 1))
        assert listener.wait({0: offset + 1})
        before_newest = log._index.partitions[0].spans_in(log._tail.end.sequence)[0][0]
    survived = open_log(disk.survivor("lost", Random(0)), durability="async")
    assert (survived.recovered()[0].leo, survived.recovered()[0].damage) == (before_newest, "")
    survived.close()
    log.truncate(0, 0, 2)
    assert listener.wait({0: 0})
    log.trim({})
    log.append(1, entries(1, 0, 1))
    assert listener.wait({1: 1})
    last_unlinked = max(at for at, step in enumerate(disk.steps) if step.startswith("unlink"))
    assert disk.steps[last_unlinked + 1] == "sync directory"
    survived = open_log(disk.survivor("lost", Random(0)), durability="async")
    assert (survived.recovered()[0].leo, survived.recovered()[0].damage) == (0, "")
    survived.close()
    kill(log, disk)


def test_a_new_beginning_of_a_partition_is_on_disk_when_it_is_reported_also_in_async(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store then drops the mark of the state transfer: a log in its earlier state would be read as if its entries
    had made those rows."""
    monkeypatch.setattr(writer_module, "ASYNC_SYNC_S", 30.0)
    disk = MemoryDisk()
    log = open_log(disk, durability="async", file_bytes=1 << 20, batch_bytes=1)
    listener = Listener(log)
    log.append(0, entries(1, 0, 20))
    assert listener.wait({0: 20})
    log.restart(0, 50, ((1, 0),))
    assert listener.wait({0: 50})
    kill(log, disk)
    again = open_log(disk.survivor("lost", Random(0)), durability="async")
    assert (again.recovered()[0].start, again.recovered()[0].leo) == (50, 50)
    again.close()

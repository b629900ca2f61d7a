"""Trimming: which files are deleted, which entries are copied forward, and that starts and epochs survive their
files."""

from __future__ import annotations

from random import Random

import pytest

from isthmus.repl.replog.log import FileLog
from tests.support.log_history import Listener, entries, kill, open_log
from tests.support.memory_disk import MemoryDisk
from tests.support.waiting import wait_until


def fill(log: FileLog, listener: Listener, partition: int, epoch: int, count: int, size: int = 150) -> None:
    """Append one entry after the other, each a batch."""
    for _ in range(count):
        log.append(partition, entries(epoch, log.leo(partition), 1, size=size, tag=partition))
        assert listener.wait({partition: log.leo(partition)})


def trimmed(log: FileLog, floors: dict[int, int]) -> None:
    """Trim and wait until that is done: a truncation queued behind it is answered."""
    log.trim(floors)
    before = log.stats().batches_written
    log.truncate(99, 0, 1)
    wait_until(lambda: log.stats().batches_written > before, "the trim is over")


def opened(disk: MemoryDisk, **options: object) -> tuple[FileLog, Listener]:
    """A log with a size limit of 3,000 bytes whose partition 99 serves to wait."""
    log = open_log(disk, **({"size_limit_bytes": 3000} | options))
    listener = Listener(log)
    fill(log, listener, 99, 1, 1)
    log.truncate(99, 0, 1)
    assert listener.wait({99: 0})
    return log, listener


def test_an_emptied_partition_keeps_its_end_and_epoch() -> None:
    """When all entries of a partition are trimmed, its LEO and last epoch are still known, also after a restart
    (R-TRIM)."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    fill(log, listener, 1, 4, 2)
    fill(log, listener, 1, 6, 1)
    for _ in range(4):
        fill(log, listener, 0, 1, 15)
        trimmed(log, {0: log.leo(0), 1: 3})
    assert not disk.files.keys() & {f"{sequence:016d}.log" for sequence in range(1, 8)}
    assert (log.leo(1), log.epoch_table(1)) == (3, ((6, 2),))
    with pytest.raises(LookupError):
        log.read(1, 2, 3, 100)
    log.close()
    log = open_log(disk)
    found = log.recovered()[1]
    assert (found.start, found.leo, found.epoch_table, found.damage) == (3, 3, ((6, 2),), "")
    listener = Listener(log)
    fill(log, listener, 1, 6, 1)
    assert log.read(1, 3, 4, 1000) == entries(6, 3, 1, size=150, tag=1)
    log.close()


def test_the_epoch_table_is_clipped_with_the_log() -> None:
    """Below the start, only the epoch of the entry just below it is kept, at its true first offset."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    for epoch in range(1, 11):
        fill(log, listener, 0, epoch, 6)
    trimmed(log, {0: 31})
    start = 60 - len(log.read(0, log.start_of(0), 60, 1 << 20))
    assert 20 < start <= 31
    table = log.epoch_table(0)
    assert table[0][1] < start <= table[1][1]
    assert table == tuple((epoch, 6 * (epoch - 1)) for epoch in range(table[0][0], 11))
    log.close()
    log = open_log(disk)
    assert (log.recovered()[0].start, log.recovered()[0].epoch_table) == (start, table)
    log.close()


def test_needed_entries_are_copied_forward_again_and_again() -> None:
    """An entry that is never applied is copied forward again and again, readable all the time and after every
    restart."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    fill(log, listener, 1, 1, 2, size=30)
    fill(log, listener, 1, 2, 1, size=30)
    wanted = entries(1, 1, 1, size=30, tag=1) + entries(2, 2, 1, size=30, tag=1)
    for _ in range(6):
        fill(log, listener, 0, 1, 16)
        trimmed(log, {0: log.leo(0), 1: 1})
        assert log.stats().size_bytes < 5000
        assert log.read(1, 1, 3, 1 << 20) == wanted
        assert log.epoch_table(1) == ((1, 0), (2, 2))
        log.close()
        log = open_log(disk, size_limit_bytes=3000)
        found = log.recovered()[1]
        assert (found.start, found.leo, found.epoch_table, found.damage) == (1, 3, ((1, 0), (2, 2)), "")
        assert log.read(1, 1, 3, 1 << 20) == wanted
        listener = Listener(log)
    log.truncate(1, 2, 3)
    fill(log, listener, 1, 3, 2, size=30)
    assert log.read(1, 1, 4, 1 << 20) == wanted[:1] + entries(3, 2, 2, size=30, tag=1)
    log.close()


def test_too_much_to_copy_leaves_the_file() -> None:
    """If more than a quarter of the oldest file is still needed it stays, and the log exceeds its size limit."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    fill(log, listener, 0, 1, 40)
    size = log.stats().size_bytes
    trimmed(log, {})
    assert log.stats().size_bytes >= size
    assert "0000000000000001.log" in disk.files
    trimmed(log, {0: 40})
    assert "0000000000000001.log" not in disk.files
    trimmed(log, {0: 40})
    assert log.stats().size_bytes <= 3000
    log.close()


def test_pins_cost_twice_the_limit_and_no_more_goes_for_it() -> None:
    """A log that a pin holds above twice its limit is trimmed to that, not to the limit, and the pin keeps the rest."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    fill(log, listener, 0, 1, 60)
    log.trim({0: 60}, {0: 5})
    trimmed(log, {})
    assert 5_000 < log.stats().size_bytes <= 7_000, "a file more, and what trimming itself writes"
    log.trim({0: 60}, {0: 58})
    trimmed(log, {})
    assert log.stats().size_bytes <= 4_200
    log.close()


def test_entries_cut_by_a_truncation_do_not_move_the_start() -> None:
    """A file whose entries were dropped by a later truncation goes without moving the start above the new ones
    (R-TRIM)."""
    disk = MemoryDisk()
    log, listener = opened(disk, file_bytes=300)
    fill(log, listener, 0, 1, 2)
    fill(log, listener, 0, 2, 8)
    log.truncate(0, 2, 3)
    fill(log, listener, 0, 3, 8)
    fill(log, listener, 1, 1, 20)
    trimmed(log, {0: 2, 1: 20})
    index = log._index.partitions[0]
    assert index.start == 2
    assert all(extent.first >= 2 for extent in index.extents)
    assert log.read(0, 2, 10, 1 << 20) == entries(3, 2, 8, size=150)
    log.close()
    log = open_log(disk)
    assert (log.recovered()[0].start, log.recovered()[0].leo, log.recovered()[0].damage) == (2, 10, "")
    assert log.read(0, 2, 10, 1 << 20) == entries(3, 2, 8, size=150)
    log.close()


def test_a_reader_in_the_middle_of_a_trim_gets_entries_or_a_lookup_error() -> None:
    """When the file under a reader is trimmed, it gets the remaining entries or LookupError, never Corruption."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    fill(log, listener, 0, 1, 30)
    original = disk.open

    def trim_first(path, *, write):
        disk.open = original
        trimmed(log, {0: 25, 1: 0})
        return original(path, write=write)

    disk.open = trim_first
    with pytest.raises(LookupError):
        log.read(0, 0, 30, 1 << 20)
    disk.open = trim_first
    fill(log, listener, 0, 1, 30)
    start = log.start_of(0)
    disk.open = trim_first
    try:
        assert log.read(0, start, 60, 1 << 20) == entries(1, start, 60 - start, size=150)
    except LookupError:
        assert log.start_of(0) > start
    log.close()


def test_a_read_in_the_middle_of_a_truncation_shows_one_log() -> None:
    """Entries from before a truncation and from after it are never handed out together."""
    disk = MemoryDisk()
    log, listener = opened(disk, file_bytes=300, size_limit_bytes=1 << 20)
    fill(log, listener, 0, 1, 12)
    original = disk.open

    def truncate_first(path, *, write):
        disk.open = original
        log.truncate(0, 1, 2)
        fill(log, listener, 0, 2, 12)
        return original(path, write=write)

    disk.open = truncate_first
    read = log.read(0, 0, 12, 1 << 20)
    assert read == entries(1, 0, len(read), size=150)
    assert 0 < len(read) < 12
    assert log.read(0, 0, 12, 1 << 20) == entries(1, 0, 1, size=150) + entries(2, 1, 11, size=150)
    log.close()


def test_rotten_entries_are_not_copied_forward() -> None:
    """If an entry that must be copied cannot be read, the log fails; the next opening reports the partition as
    damaged."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    at = log._tail.end
    fill(log, listener, 1, 1, 1)
    fill(log, listener, 0, 1, 30)
    disk.files[f"{at.sequence:016d}.log"].cached[at.position + 100] ^= 1
    log.trim({0: 30})
    listener.wait_for_failure()
    kill(log, disk)
    log = open_log(disk.survivor("kept", Random(0)))
    assert log.recovered()[1].damage
    assert not log.recovered()[0].damage
    assert log.read(0, 0, 30, 1 << 20) == entries(1, 0, 30, size=150)
    log.close()

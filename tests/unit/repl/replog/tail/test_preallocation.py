"""Preallocated space at a file's end: when it is allocated, its costs, and zeros in a file at a start."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from isthmus.repl.model.errors import LocalFault
from isthmus.repl.replog import tail as tail_module
from isthmus.repl.replog.files import ZEROS, SystemFiles
from isthmus.repl.replog.frames import FILE_HEADER_BYTES, LogPosition
from isthmus.repl.replog.index import LogFile
from isthmus.repl.replog.log import FileLog
from isthmus.repl.replog.reader import SEARCH_BYTES, LogFileReader
from isthmus.repl.replog.recovery import recover
from tests.support.log_history import (
    CLUSTER,
    DIRECTORY,
    Listener,
    entries,
    kill,
    open_log,
    whole_frames,
)
from tests.support.memory_disk import MemoryDisk
from tests.support.waiting import PATIENCE_S, wait_until

FIRST = "0000000000000001.log"
SECOND = "0000000000000002.log"
FILE_BYTES = 3000
PREALLOCATE_BYTES = 1000
SMALL_FRAME_BYTES = 400


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preallocates 1,000 bytes at a time, for frames of up to 400."""
    monkeypatch.setattr(tail_module, "PREALLOCATE_BYTES", PREALLOCATE_BYTES)
    monkeypatch.setattr(tail_module, "SMALL_FRAME_BYTES", SMALL_FRAME_BYTES)


def append(log: FileLog, listener: Listener, partition: int, count: int = 1, size: int = 100) -> None:
    """Append entries one by one, each a frame; on return the log's thread waits for the next."""
    for _ in range(count):
        log.append(partition, entries(1, log.leo(partition), 1, size=size, tag=partition))
        assert listener.wait({partition: log.leo(partition)})
        log.refresh_free_space()
        wait_until(lambda: not log._writer.space_check_queued, "the log's thread is idle")


def opened(disk: MemoryDisk, **options: object) -> tuple[FileLog, Listener]:
    """A log with files of 3,000 bytes."""
    log = open_log(disk, **({"file_bytes": FILE_BYTES, "batch_bytes": FILE_BYTES} | options))
    return log, Listener(log)


class KilledLog(NamedTuple):
    """A killed log and its contents."""

    disk: MemoryDisk
    leos: dict[int, int]
    end: int
    """Where its newest file's last frame ends."""


def killed(counts: Sequence[tuple[int, int]], **options: object) -> KilledLog:
    """A killed log with the given numbers of entries of these partitions, all of them on disk."""
    disk = MemoryDisk()
    log, listener = opened(disk, **options)
    for partition, count in counts:
        append(log, listener, partition, count)
    end = log._tail.end.position
    kill(log, disk)
    return KilledLog(disk.survivor("kept", Random(0)), dict(listener.durable), end)


def found_in(disk: MemoryDisk, known: dict[int, int] | None = None) -> dict[int, tuple[int, bool]]:
    """(LEO, is it damaged) of each partition, as two openings after each other both find it."""
    found = []
    for _ in range(2):
        log = open_log(disk, file_bytes=FILE_BYTES, known_durable=known)
        found.append({p: (one.leo, bool(one.damage)) for p, one in log.recovered().items()})
        log.close()
    assert found[0] == found[1]
    return found[0]


def zeroed(disk: MemoryDisk, name: str, begin: int, end: int) -> MemoryDisk:
    """A copy of the disk with zeros in a part of a file."""
    copy = disk.clone()
    for data in (copy.files[name].cached, copy.files[name].synced):
        data[begin:end] = bytes(end - begin)
    return copy


# -- making room ------------------------------------------------------------------------------------------------


def test_small_frames_are_written_into_preallocated_space() -> None:
    """Space is allocated in steps, before a small frame needs it, and never beyond the file's own limit; a finished
    file has none."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    while len(disk.files) == 1:
        append(log, listener, 0)
        end, size = whole_frames(disk, FIRST)[-1].end, len(disk.files[FIRST].cached)
        assert min(FILE_BYTES, end + SMALL_FRAME_BYTES) <= size <= max(FILE_BYTES, end) or len(disk.files) > 1
    in_first = disk.steps[: disk.steps.index(f"create {SECOND}.new")]
    steps = [int(step.split()[1]) for step in in_first if step.startswith("allocate")]
    assert steps[0] == PREALLOCATE_BYTES
    assert len(steps) > 2
    assert len(disk.files[FIRST].cached) == whole_frames(disk, FIRST)[-1].end
    log.close()


def test_large_frames_are_not_preallocated() -> None:
    """A frame above the limit of small ones extends the file; it uses existing preallocated space."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    append(log, listener, 0, size=500)
    assert not any(step.startswith("allocate") for step in disk.steps)
    append(log, listener, 0, size=20)
    size = len(disk.files[FIRST].cached)
    append(log, listener, 0, size=500)
    assert len(disk.files[FIRST].cached) == size
    assert sum(step.startswith("allocate") for step in disk.steps) == 1
    log.close()


def test_an_async_log_is_not_preallocated() -> None:
    """Without synchronous writes, preallocation would gain nothing."""
    disk = MemoryDisk()
    log, listener = opened(disk, durability="async")
    append(log, listener, 0, 3)
    log.close()
    assert not any(step.startswith(("allocate", "truncate")) for step in disk.steps)


def test_preallocated_space_counts_as_used_and_is_released_on_close() -> None:
    """The log's size is its disk usage; entries may fill preallocated space, so it counts as free for them; a closed
    log has none, durably."""
    disk = MemoryDisk()
    disk.free = 10_000
    log, listener = opened(disk, reserve_bytes=0)
    append(log, listener, 0)
    assert log.stats().size_bytes == len(disk.files[FIRST].cached) > log._tail.end.position
    room = log.stats().size_bytes - log._tail.end.position
    log._writer.check_space()
    assert log._writer.spendable_bytes == log._writer.bytes_written + 10_000 + room
    log.close()
    assert log.stats().size_bytes == len(disk.files[FIRST].synced) == whole_frames(disk, FIRST)[-1].end


def test_a_failed_release_of_preallocated_space_is_an_error() -> None:
    """`close` raises the error; no durable entry is lost."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    append(log, listener, 0)
    disk.fault = lambda what: OSError(errno.EIO, "Input/output error") if what.startswith("truncate") else None
    with pytest.raises(LocalFault, match="Input/output error"):
        log.close()
    disk.fault = lambda _: None
    assert found_in(disk.survivor("lost", Random(0))) == {0: (1, False)}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EINVAL])
@pytest.mark.parametrize("partly", [0, 150])
def test_a_disk_that_refuses_preallocation_still_takes_what_fits(number: int, partly: int) -> None:
    """A refused preallocation fails no write and is not repeated within the file; a partly allocated space is used."""

    class Refusing(MemoryDisk):
        def allocate(self, fd: int, position: int, length: int) -> None:
            super().allocate(fd, position, min(partly, length))
            raise OSError(number, os.strerror(number))

    disk = Refusing()
    log, listener = opened(disk)
    append(log, listener, 0, 5)
    assert sum(step.startswith("allocate") for step in disk.steps) == 1
    assert log.stats().size_bytes == len(disk.files[FIRST].cached)
    while len(disk.files) == 1:
        append(log, listener, 0)
    append(log, listener, 0)
    assert sum(step.startswith("allocate") for step in disk.steps) == 2
    leo = log.leo(0)
    kill(log, disk)
    assert found_in(disk.survivor("lost", Random(0))) == {0: (leo, False)}


def test_preallocated_space_of_real_files_reads_as_zeros_and_is_cut_off(tmp_path: Path) -> None:
    """On a real file system a killed log's file is longer than its content, and a start truncates it; a closed one's is
    not. (Without preallocation in the file system the file ends with its last frame.)"""
    options = {"file_bytes": 1 << 20, "size_limit_bytes": 1 << 24, "batch_bytes": 1 << 16, "reserve_bytes": 0}
    log = FileLog.open(tmp_path, cluster_uuid=CLUSTER, durability="fsync", **options)
    listener = Listener(log)
    append(log, listener, 0, 20)
    end, size = log._tail.end.position, (tmp_path / FIRST).stat().st_size
    assert size in (end, FILE_HEADER_BYTES + 48 + PREALLOCATE_BYTES) or size > end
    held = (tmp_path / FIRST).read_bytes()
    assert held[end:] == bytes(size - end)
    log.close()
    assert (tmp_path / FIRST).stat().st_size == log.stats().size_bytes
    (tmp_path / FIRST).write_bytes(held)
    log = FileLog.open(tmp_path, cluster_uuid=CLUSTER, durability="fsync", **options)
    assert (log.recovered()[0].leo, log.recovered()[0].damage) == (20, "")
    assert (tmp_path / FIRST).stat().st_size == end
    log.close()


def test_a_frame_is_reported_before_room_is_made() -> None:
    """However long the disk takes for the allocation, the previous frame is durable, and is reported."""
    answer = threading.Event()

    class Slow(MemoryDisk):
        def allocate(self, fd: int, position: int, length: int) -> None:
            assert answer.wait(PATIENCE_S)
            super().allocate(fd, position, length)

    disk = Slow()
    log, listener = opened(disk)
    log.append(0, entries(1, 0, 1))
    assert listener.wait({0: 1})
    assert not any(step.startswith("allocate") for step in disk.steps)
    answer.set()
    append(log, listener, 0)
    assert any(step.startswith("allocate") for step in disk.steps)
    log.close()


def test_allocated_space_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Preallocated space of a real file is filled with zeros, in pieces."""
    calls: list[tuple[int, int]] = []
    pwritev = os.pwritev

    def write(fd: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        calls.append((position, sum(map(len, buffers))))
        return pwritev(fd, buffers, position, flags)

    io = SystemFiles()
    fd = io.create(tmp_path / FIRST)
    io.pwritev(fd, [b"frame"], 0)
    monkeypatch.setattr(os, "pwritev", write)
    io.allocate(fd, 5, len(ZEROS) + 10)
    assert calls == [(5, len(ZEROS)), (5 + len(ZEROS), 10)]
    assert (tmp_path / FIRST).read_bytes() == b"frame" + bytes(len(ZEROS) + 10)
    io.close(fd)


# -- zeros in a file that is read ---------------------------------------------------------------------------------


def test_unused_preallocated_space_is_the_end_of_a_killed_log() -> None:
    """Zeros after the last frame are not damage, whether the store knows all entries or not; they are truncated,
    durably."""
    disk, leos, end = killed([(0, 2), (1, 1)])
    assert len(disk.files[FIRST].cached) > end
    for known in ({}, leos):
        left = disk.clone()
        log = open_log(left, known_durable=known)
        assert {p: (one.leo, one.damage) for p, one in log.recovered().items()} == {0: (2, ""), 1: (1, "")}
        assert len(left.files[FIRST].synced) == log.stats().size_bytes == end
        assert list(left.files) == [FIRST]
        log.close()


@pytest.mark.parametrize("kept", [0, 1, 30, 47, 48, 60, 120])
@pytest.mark.parametrize("torn_at", ["its end", "its beginning"])
def test_a_torn_frame_in_preallocated_space_is_a_torn_end(kept: int, torn_at: str) -> None:
    """Only a part of the last, unreported frame reached the disk, among zeros: it is truncated."""
    disk, _, end = killed([(0, 2), (1, 1)])
    frame = whole_frames(disk, FIRST)[-1]
    if torn_at == "its end":
        left = zeroed(disk, FIRST, frame.position + kept, end)
    else:
        left = zeroed(disk, FIRST, frame.position, end - kept)
    assert found_in(left, {0: 2}) == {0: (2, False)}
    assert len(left.files[FIRST].synced) == frame.position


def test_a_durable_frame_that_became_zeros_is_missed_where_its_entries_were_applied() -> None:
    """If the store knows entries that are zeros now, all partitions are damaged: the others may have had entries there,
    too."""
    disk, leos, end = killed([(0, 2), (1, 1)])
    frame = whole_frames(disk, FIRST)[-1]
    left = zeroed(disk, FIRST, frame.position, end)
    assert found_in(left, leos) == {0: (2, True), 1: (0, True)}
    log, listener = opened(left, known_durable=leos)
    append(log, listener, 0)
    log.close()
    assert found_in(left) == {0: (3, False), 1: (0, False)}


def test_a_bad_frame_before_preallocated_space_damages_only_its_own_partitions() -> None:
    """Partitions that the bad frame does not affect stay undamaged in spite of the preallocated space, although the
    store knows that some of the entries are missing."""
    disk, leos, _ = killed([(0, 2), (1, 1), (2, 1)])
    bad = whole_frames(disk, FIRST)[2]
    left = disk.flipped(FIRST, bad.position + 60, 1)
    log = open_log(left)
    assert log.recovered()[0].damage.startswith(f"entries from 1 on may be lost ({FIRST} at byte {bad.position}")
    log.close()
    left = disk.flipped(FIRST, bad.position + 60, 1)
    assert found_in(left, leos) == {0: (1, True), 1: (1, False), 2: (1, False)}


def test_zeros_between_frames_are_damage() -> None:
    """A frame of zeros before a whole one was durable: it is damage, and nothing is truncated."""
    disk, leos, end = killed([(0, 3), (1, 1)])
    frame = whole_frames(disk, FIRST)[3]
    left = zeroed(disk, FIRST, frame.position, frame.end)
    size = len(left.files[FIRST].cached)
    assert found_in(left)[0] == (2, True)
    assert end <= len(left.files[FIRST].cached) <= size
    assert whole_frames(disk, FIRST)[-1].end == end
    assert leos == {0: 3, 1: 1}


def two_files() -> tuple[MemoryDisk, dict[int, int]]:
    """A killed log in two files, the first of which ends with an entry of partition 1."""
    disk = MemoryDisk()
    log, listener = opened(disk)
    while log._tail.end.position < FILE_BYTES - 200:
        append(log, listener, 0)
    append(log, listener, 1, size=150)
    while len(disk.files) == 1:
        append(log, listener, 1, size=150)
    append(log, listener, 0)
    kill(log, disk)
    return disk.survivor("kept", Random(0)), dict(listener.durable)


def test_a_hole_at_the_end_of_an_old_file_is_found_by_the_next_one() -> None:
    """Zeros at the end of a file that is not the last hide nothing: the next file records what had been there."""
    disk, leos = two_files()
    assert found_in(disk.clone()) == {p: (leo, False) for p, leo in leos.items()}
    frame = whole_frames(disk, FIRST)[-1]
    left = zeroed(disk, FIRST, frame.position, frame.end)
    lost = frame.runs[0].base
    log = open_log(left)
    assert log.recovered()[0].damage == ""
    assert log.recovered()[1].leo == lost
    assert log.recovered()[1].damage.endswith(f"({FIRST} at byte {frame.position}: no entry is valid from here on)")
    log.close()
    assert found_in(left)[1] == (lost, True)


def test_a_torn_frame_before_the_preallocated_space_of_an_old_file_is_damage() -> None:
    """Bytes that were not truncated when the next file was begun were durable: zeros after a torn frame do not make it
    a torn end."""
    disk, leos = two_files()
    frame = whole_frames(disk, FIRST)[-1]
    left = zeroed(disk, FIRST, frame.position + 60, frame.end)
    for data in (left.files[FIRST].cached, left.files[FIRST].synced):
        data.extend(bytes(1000))
    assert found_in(left, leos)[1] == (frame.runs[0].base, True)
    log = open_log(left)
    assert f"({FIRST} at byte {frame.position}: a frame fails its checksum)" in log.recovered()[1].damage
    log.close()


def test_preallocated_space_at_the_end_of_an_old_file_is_no_damage() -> None:
    """A file that was followed by another before its space was released has lost nothing."""
    disk, leos = two_files()
    for data in (disk.files[FIRST].cached, disk.files[FIRST].synced):
        data.extend(bytes(5000))
    assert found_in(disk, leos) == {p: (leo, False) for p, leo in leos.items()}
    log = open_log(disk)
    assert log.stats().size_bytes == sum(len(file.cached) for file in disk.files.values())
    log.close()


@pytest.mark.parametrize("name", [FIRST, SECOND])
def test_a_file_with_nothing_but_its_header_and_zeros_is_damage(name: str) -> None:
    """A file has its first frame when it gets its name: preallocated space does not explain that it is missing."""
    disk, leos = two_files()
    left = zeroed(disk, name, FILE_HEADER_BYTES, len(disk.files[name].cached))
    assert any(is_damaged for _, is_damaged in found_in(left, leos).values())
    left = zeroed(disk, name, 0, len(disk.files[name].cached))
    assert any(is_damaged for _, is_damaged in found_in(left, leos).values())


def test_large_preallocated_space_is_read_in_pieces() -> None:
    """However long the zeros are, no read asks for more than a piece."""
    asked: list[int] = []

    class Counting(MemoryDisk):
        def pread(self, fd: int, length: int, position: int) -> bytes:
            asked.append(length)
            return super().pread(fd, length, position)

    disk, leos, end = killed([(0, 2)])
    left = Counting()
    left.files = disk.files
    left.files[FIRST].cached.extend(bytes(5 * SEARCH_BYTES))
    found = recover(left, DIRECTORY, CLUSTER, leos)
    assert (found.damage, found.end) == ({}, LogPosition(1, end))
    assert (found.index.files[0].size_bytes, found.index.files[0].disk_bytes) == (end, len(left.files[FIRST].cached))
    assert max(asked) < 2 * SEARCH_BYTES
    assert len(asked) < 20
    with LogFileReader(left, LogFile(1, DIRECTORY / FIRST, None, 0)) as reader:
        assert not reader.is_unused(end - 1)
        assert reader.is_unused(end)
        assert reader.is_unused(reader.size)

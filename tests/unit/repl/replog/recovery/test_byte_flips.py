"""One byte of the log is changed, each in turn: durable entries are either there or reported as damaged (H35)."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from isthmus.repl.model.entry import EntryKind, make_entry
from isthmus.repl.replog.frames import FILE_HEADER_BYTES, EntryRunKind
from isthmus.repl.replog.log import FileLog
from tests.support.log_history import History, Listener, entries, kill, open_log, whole_frames
from tests.support.memory_disk import File, MemoryDisk
from tests.support.waiting import wait_until

FLIPS = (0x01, 0x80, 0xFF)


def written(disk: MemoryDisk, history: History, *, close: bool) -> None:
    """A small log in two files with three partitions, a truncation and one partition that ends early."""
    log = open_log(disk, file_bytes=700)
    listener = Listener(log)
    for partition, epoch, count in [(0, 1, 2), (1, 1, 1), (2, 3, 1), (1, 2, 2), (0, 2, 1)]:
        added = entries(epoch, log.leo(partition), count, tag=partition)
        history.append(partition, added)
        log.append(partition, added)
        assert listener.wait({partition: log.leo(partition)})
        if (partition, epoch) == (1, 2):
            history.truncate(1, 2)
            log.truncate(1, 2, 2)
            assert listener.wait({1: 2})
    if close:
        log.close()
    else:
        kill(log, disk)


def assert_true_or_damaged(log: FileLog, history: History, what: str) -> bool:
    """Checks that undamaged partitions are complete and damaged ones hold a part of what was written; true if any is
    damaged."""
    for partition, state in history.now.items():
        found = log.recovered()[partition]
        leo = len(state.wires)
        if not found.damage:
            assert (found.start, found.leo, found.epoch_table) == (0, leo, state.table), (
                f"{what}: partition {partition}"
            )
        else:
            assert ".log" in found.damage, f"{what}: the damage names no file: {found.damage}"
        read = tuple(entry.wire for entry in log.read(partition, found.start, found.leo, 1 << 30))
        assert len(read) == found.leo - found.start
        everything = {wire for past in history.states for wire in past.get(partition, state).wires}
        if found.damage:
            assert set(read) <= everything, f"{what}: partition {partition} holds what was never written"
        else:
            assert read == state.wires[found.start :], f"{what}: partition {partition}"
    return any(found.damage for found in log.recovered().values())


def all_flips(disk: MemoryDisk, files: dict[str, File] | None = None) -> Iterator[tuple[str, int, MemoryDisk]]:
    """(file, position, disk with that byte flipped), for every byte of every file, or of some."""
    for name, file in sorted((files or disk.files).items()):
        for position in range(len(file.cached)):
            yield name, position, disk.flipped(name, position, FLIPS[position % len(FLIPS)])


def loaded_bytes(disk: MemoryDisk) -> set[tuple[str, int]]:
    """The bytes whose change must be detected: frames with entries, and the headers of files with such frames.

    (A lost truncation is reported, and the next state repairs it.)
    """
    loaded: set[tuple[str, int]] = set()
    for name in disk.files:
        for frame in whole_frames(disk, name):
            if any(run.kind is EntryRunKind.ENTRIES for run in frame.runs):
                loaded.update((name, at) for at in range(frame.position, frame.end))
                loaded.update((name, at) for at in range(FILE_HEADER_BYTES))
    return loaded


def test_a_flipped_byte_of_a_closed_log_is_damage_and_never_silent() -> None:
    """In a closed log all entries were durable: a flipped byte in any entry damages a partition, and is never
    silent."""
    disk, history = MemoryDisk(), History()
    written(disk, history, close=True)
    loaded = loaded_bytes(disk)
    assert len(loaded) > 800
    for name, position, flipped in all_flips(disk):
        log = open_log(flipped, known_durable={0: 0, 1: 0, 2: 0})
        damaged = assert_true_or_damaged(log, history, f"{name}[{position}]")
        assert damaged or (name, position) not in loaded, f"{name}[{position}]"
        log.close()


def test_a_flipped_byte_of_a_killed_log_is_found_where_the_store_had_applied() -> None:
    """Without a closing mark a flipped byte in the last batch looks like an unfinished write: the applied offsets
    detect it."""
    disk, history = MemoryDisk(), History()
    written(disk, history, close=False)
    left = disk.survivor("kept", Random(0))
    applied = {partition: len(state.wires) for partition, state in history.now.items()}
    loaded = loaded_bytes(left)
    newest = {name: left.files[name] for name in sorted(left.files)[-2:]}
    for name, position, flipped in all_flips(left, newest):
        log = open_log(flipped, known_durable=applied)
        damaged = assert_true_or_damaged(log, history, f"{name}[{position}]")
        assert damaged or (name, position) not in loaded, f"{name}[{position}]"
        log.close()


def test_damage_stays_until_the_log_is_started_and_is_healed_then() -> None:
    """Every opening finds the damage again, until `start` has recorded it; new entries follow the valid ones."""
    disk, history = MemoryDisk(), History()
    written(disk, history, close=True)
    for name, position, flipped in Random(5).sample(list(all_flips(disk)), 100):
        what = f"{name}[{position}]"
        found = [dict(open_and_close(flipped).recovered()) for _ in range(2)]
        assert found[0] == found[1], what
        log = open_log(flipped, known_durable={0: 0, 1: 0, 2: 0})
        listener = Listener(log)
        for partition in range(3):
            log.append(partition, entries(7, log.leo(partition), 1))
        assert listener.wait({partition: log.leo(partition) for partition in range(3)})
        log.close()
        healed = open_and_close(flipped).recovered()
        for partition in range(3):
            assert healed[partition].damage == "", what
            assert healed[partition].leo == found[0][partition].leo + 1, what


def open_and_close(disk: MemoryDisk) -> FileLog:
    """Opens and closes the log without other operations."""
    log = open_log(disk, known_durable={0: 0, 1: 0, 2: 0})
    log.close()
    return log


@pytest.mark.parametrize("close", [True, False])
def test_damage_is_attributed_to_its_partitions(close: bool) -> None:
    """A bad batch in the middle damages the partitions that had entries in it, and no others."""
    disk, history = MemoryDisk(), History()
    log = open_log(disk, file_bytes=1 << 20)
    listener = Listener(log)
    positions = []
    for partition in (0, 1, 0, 1, 2):
        positions.append(log._tail.end.position)
        added = entries(1, log.leo(partition), 1)
        history.append(partition, added)
        log.append(partition, added)
        assert listener.wait({partition: log.leo(partition)})
    if close:
        log.close()
    else:
        kill(log, disk)
    flipped = disk.survivor("kept", Random(0)).flipped("0000000000000001.log", positions[2] + 60, 1)
    log = open_log(flipped)
    damage = {partition: found.damage for partition, found in log.recovered().items() if found.damage}
    assert list(damage) == [0]
    what = "entries 1 to 1 are lost" if close else "entries from 1 on may be lost"
    assert damage[0].startswith(f"{what} (0000000000000001.log at byte {positions[2]}: ")
    assert log.recovered()[0].leo == 1
    log.close()


@pytest.mark.parametrize("victim", range(4))
def test_a_missing_file_is_damage(victim: int) -> None:
    """A missing log file damages the partitions with entries in it, unless it was trimmed or is the newest."""
    disk, history = MemoryDisk(), History()
    log = open_log(disk, file_bytes=200)
    listener = Listener(log)
    for partition in (0, 0, 0, 0, 1, 1):
        added = entries(1, log.leo(partition), 1)
        history.append(partition, added)
        log.append(partition, added)
        assert listener.wait({partition: log.leo(partition)})
    log.close()
    names = sorted(disk.files)
    assert len(names) == 6
    held = disk.clone()
    del held.files[names[victim]]
    log = open_log(held)
    damaged = [partition for partition, found in log.recovered().items() if found.damage]
    assert damaged == [0]
    assert log.recovered()[0].leo == victim
    assert (f"log files {victim + 1} to {victim + 1} are missing" in log.recovered()[0].damage) == (victim > 0)
    assert_true_or_damaged(log, history, f"without {names[victim]}")
    log.close()


def test_a_log_that_ends_below_what_was_applied_is_damaged() -> None:
    """Entries that the store has applied were durable: a log without them has lost them, even if its bytes are
    valid."""
    disk = MemoryDisk()
    log = open_log(disk)
    listener = Listener(log)
    log.append(0, entries(1, 0, 3))
    assert listener.wait({0: 3})
    log.close()
    log = open_log(disk.clone(), known_durable={0: 3, 1: 0})
    assert [found.damage for found in log.recovered().values()] == ["", ""]
    log.close()
    log = open_log(disk, known_durable={0: 4, 5: 2})
    assert "its entries below 4 were applied" in log.recovered()[0].damage
    assert "its entries below 2 were applied" in log.recovered()[5].damage
    log.close()


def test_a_stored_frame_is_not_taken_for_one() -> None:
    """A value that holds a frame which would fit is never read as part of the log, however damaged that is."""
    disk = MemoryDisk()
    log = open_log(disk, file_bytes=1 << 20, batch_bytes=1 << 20)
    listener = Listener(log)
    log.append(0, entries(1, 0, 2))
    assert listener.wait({0: 2})
    log.close()
    name = "0000000000000001.log"
    end = len(disk.files[name].cached)
    fork = disk.clone()
    log = open_log(fork, file_bytes=1 << 20)
    listener = Listener(log)
    log.append(0, entries(1, 2, 1, tag=666))
    assert listener.wait({0: 3})
    kill(log, fork)
    stolen = bytes(fork.files[name].cached[end:])
    log = open_log(disk, file_bytes=1 << 20, batch_bytes=1 << 20)
    listener = Listener(log)
    log.append(0, [make_entry(EntryKind.DATA, 1, 2, request_id=b"", origin=b"", time_ms=0, payload=stolen)])
    assert listener.wait({0: 3})
    kill(log, disk)
    torn = disk.survivor("kept", Random(0)).flipped(name, end + 3, 1)
    log = open_log(torn)
    assert (log.recovered()[0].leo, log.recovered()[0].damage) == (2, "")
    assert len(torn.files[name].synced) == end
    log.close()


def test_damage_is_healed_as_soon_as_the_log_was_started() -> None:
    """`start` alone makes the log state its good prefix: a process killed right after it leaves no doubt."""
    disk, history = MemoryDisk(), History()
    written(disk, history, close=False)
    left = disk.survivor("kept", Random(0))
    for position in range(110, len(left.files["0000000000000001.log"].cached), 90):
        flipped = left.flipped("0000000000000001.log", position, 1)
        log = open_log(flipped)
        found = {partition: recovered.leo for partition, recovered in log.recovered().items()}
        assert any(recovered.damage for recovered in log.recovered().values())
        files = len(flipped.files)
        Listener(log)
        wait_until(lambda: len(flipped.files) > files and not flipped.pending_names, "a new file is begun")  # noqa: B023
        kill(log, flipped)
        again = open_log(flipped.survivor("lost", Random(0)))
        assert {partition: recovered.leo for partition, recovered in again.recovered().items()} == found
        assert not any(recovered.damage for recovered in again.recovered().values())
        again.close()


@pytest.mark.parametrize("size", [0, 30, 56, 80])
def test_a_newest_file_without_its_first_frame_is_damage(size: int) -> None:
    """A file gets its name when its first frame is on disk: one without it has lost entries, perhaps all."""
    disk = MemoryDisk()
    log = open_log(disk, file_bytes=200)
    listener = Listener(log)
    for offset in range(2):
        log.append(0, entries(1, offset, 1))
        assert listener.wait({0: offset + 1})
    log.close()
    file = disk.files["0000000000000002.log"]
    file.truncate(size)
    file.sync()
    log = open_log(disk)
    assert (log.recovered()[0].leo, log.recovered()[0].damage != "") == (1, True)
    log.close()


def test_files_under_each_others_names_are_damage() -> None:
    """The order of the files is in them, too: renamed ones are not read in another order."""
    disk = MemoryDisk()
    log = open_log(disk, file_bytes=200)
    listener = Listener(log)
    for offset in range(4):
        log.append(offset % 2, entries(1, offset // 2, 1))
        assert listener.wait({offset % 2: offset // 2 + 1})
    log.close()
    files = disk.files
    files["0000000000000001.log"], files["0000000000000002.log"] = (
        files["0000000000000002.log"],
        files["0000000000000001.log"],
    )
    log = open_log(disk)
    assert [found.damage != "" for found in log.recovered().values()] == [True, True]
    assert "its header names file" in log.recovered()[0].damage
    log.close()


@pytest.mark.parametrize("close", [True, False])
def test_a_lost_truncation_never_leaves_the_entries_that_it_dropped(close: bool) -> None:
    """If the batch with the truncation and the new entries is damaged, the dropped entries are not restored as valid
    ones."""
    disk = MemoryDisk()
    log = open_log(disk, file_bytes=1 << 20, batch_bytes=1 << 20)
    listener = Listener(log)
    log.append(0, entries(1, 0, 10))
    assert listener.wait({0: 10})
    disk.lock.acquire()  # so that both go into one batch
    log.append(1, entries(1, 0, 1))
    log.truncate(0, 5, 2)
    log.append(0, entries(2, 5, 2))
    disk.lock.release()
    assert listener.wait({0: 7})
    log.append(0, entries(2, 7, 1))
    assert listener.wait({0: 8})
    if close:
        log.close()
    else:
        kill(log, disk)
    left = disk.survivor("kept", Random(0))
    name = "0000000000000001.log"
    lost = [
        frame.position
        for frame in whole_frames(left, name)
        if any(run.kind is EntryRunKind.TRUNCATE or (run.partition == 0 and run.base == 5) for run in frame.runs)
    ]
    for position in lost:
        left = left.flipped(name, position + 50, 2)
    log = open_log(left)
    found = log.recovered()[0]
    assert found.damage
    assert found.leo <= 5
    assert log.read(0, 0, found.leo, 1 << 20) == entries(1, 0, found.leo)
    log.close()


def test_a_partition_that_only_the_bad_batch_knew_is_damaged_unless_a_state_clears_it() -> None:
    """A damaged batch may have held all entries of a partition that is otherwise missing in the log; a complete state
    shows whether it did."""
    disk = MemoryDisk()
    log = open_log(disk, file_bytes=1 << 20)
    listener = Listener(log)
    positions = []
    for partition in (5, 0):
        positions.append(log._tail.end.position)
        log.append(partition, entries(1, 0, 1))
        assert listener.wait({partition: 1})
    unmarked = disk.clone()
    log.close()
    for left, marked in ((unmarked, False), (disk, True)):
        log = open_log(left.flipped("0000000000000001.log", positions[0] + 50, 1), known_durable={0: 0, 5: 0, 6: 0})
        damaged = {partition for partition, found in log.recovered().items() if found.damage}
        assert damaged == ({5} if marked else {5, 6})
        log.close()

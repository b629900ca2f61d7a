"""The disk of a simulated machine: a power loss takes what is not synced and nothing else; failures are the product's
errors."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from isthmus.node.backup.create import create
from isthmus.node.backup.restore import restore, verify
from isthmus.repl.model.errors import LocalFault, StorageShort
from isthmus.repl.replog import writer
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.store.leveldb import LevelStore, plyvel
from isthmus.repl.store.port import PartitionStep
from tests.simulation.world.disk import Failure, WorldDisk
from tests.support.entry_histories import ExpectedRows, open_store
from tests.support.entry_histories import History as StoreHistory
from tests.support.log_history import CLUSTER, Listener, entries, open_log
from tests.support.memory_disk import ProcessKilled
from tests.support.samples import seeds
from tests.support.waiting import wait_until
from tests.unit.repl.replog.recovery.test_crashes import FIRST, SECOND, THIRD, HistoryWriter

LOSSES = range(40)
"""Seeds of power losses of one state."""


@pytest.fixture
def place(memory_directory: Path) -> Path:
    """An empty directory of the disk."""
    made = memory_directory / "d"
    made.mkdir()
    return made


@pytest.fixture
def disk() -> WorldDisk:
    """A disk on which nothing was written."""
    return WorldDisk()


def left_by_losses(disk: WorldDisk, place: Path, name: str, state: Callable[[], object]) -> set[bytes | None]:
    """What power losses by all seeds leave of the file `name` once `state` was made in an empty directory; None: no
    file."""
    found: set[bytes | None] = set()
    for seed in LOSSES:
        shutil.rmtree(place)
        place.mkdir()
        disk.process_begins()
        state()
        disk.power_loss(Random(seed))
        found.add((place / name).read_bytes() if (place / name).exists() else None)
    disk.process_begins()
    return found


def created(disk: WorldDisk, place: Path, name: str, data: bytes, *, named: bool = True) -> int:
    """A file with synced contents, and with a synced name if `named`."""
    fd = disk.files.create(place / name)
    disk.files.pwritev(fd, [data], 0)
    disk.files.fdatasync(fd)
    if named:
        disk.files.sync_directory(place)
    return fd


# -- bytes and names ---------------------------------------------------------------------------------------------


def test_a_killed_process_loses_nothing_that_it_wrote(disk: WorldDisk, place: Path) -> None:
    """Written bytes and names are there for the next process, and the descriptors of the one before are of no use."""
    files = disk.files
    fd = files.create(place / "a")
    files.pwritev(fd, [b"one", b"two"], 0)
    disk.process_begins()
    again = disk.files.open(place / "a", write=False)
    assert disk.files.pread(again, 100, 0) == b"onetwo"
    for act in (
        lambda: files.pwritev(fd, [b"x"], 0), lambda: files.fdatasync(fd), lambda: files.close(fd),
        lambda: files.create(place / "b"), lambda: files.unlink(place / "a"),
    ):  # fmt: skip
        with pytest.raises(OSError, match=r"gone|descriptor"):
            act()


def test_synced_bytes_stay_and_others_may_be_torn(disk: WorldDisk, place: Path) -> None:
    """After a power loss the synced bytes are there, whatever the seed; those behind are gone, there, or cut."""

    def state() -> None:
        fd = created(disk, place, "a", b"synced")
        disk.files.pwritev(fd, [b"0123456789"], 6)

    found = left_by_losses(disk, place, "a", state)
    assert all(data is not None and data.startswith(b"synced") for data in found)
    assert {b"synced", b"synced0123456789"} < found
    assert any(data not in (b"synced", b"synced0123456789") for data in found)


def test_a_synced_write_brings_only_its_own_bytes(disk: WorldDisk, place: Path) -> None:
    """A write with `pwritev_synced` stays; one before it that is not synced may be zeros."""

    def state() -> None:
        fd = created(disk, place, "a", b"")
        disk.files.pwritev(fd, [b"early"], 0)
        disk.files.pwritev_synced(fd, [b"late"], 5)

    found = left_by_losses(disk, place, "a", state)
    assert all(data is not None and data[5:] == b"late" for data in found)
    assert {b"early", bytes(5)} <= {(data or b"")[:5] for data in found}


def test_overwritten_and_cut_bytes_may_come_back(disk: WorldDisk, place: Path) -> None:
    """A write over synced bytes, a truncation and an extension are there or not until they are synced."""

    def state() -> None:
        fd = created(disk, place, "a", b"before")
        disk.files.pwritev(fd, [b"AFTER!"], 0)
        disk.files.truncate(fd, 3)

    found = left_by_losses(disk, place, "a", state)
    assert {b"before", b"AFTER!", b"AFT", b"bef"} <= found

    def extended() -> None:
        fd = created(disk, place, "a", b"12")
        disk.files.allocate(fd, 2, 3)

    assert {b"12", b"12\0\0\0"} <= left_by_losses(disk, place, "a", extended)


def test_a_name_that_is_not_synced_may_vanish_or_come_back(disk: WorldDisk, place: Path) -> None:
    """A new name may be gone although its bytes are synced; a removed one may be there again, with its bytes; a file
    is under its old or its new name, never under none."""
    assert left_by_losses(disk, place, "a", lambda: created(disk, place, "a", b"x", named=False)) == {None, b"x"}

    def removed() -> None:
        disk.files.close(created(disk, place, "a", b"x"))
        disk.files.unlink(place / "a")

    assert left_by_losses(disk, place, "a", removed) == {None, b"x"}

    def renamed() -> None:
        disk.files.close(created(disk, place, "old", b"new contents"))
        disk.files.close(created(disk, place, "a", b"old contents"))
        disk.files.rename(place / "old", place / "a")

    assert left_by_losses(disk, place, "a", renamed) == {b"old contents", b"new contents"}
    assert left_by_losses(disk, place, "old", renamed) == {b"new contents", None}

    def renamed_and_synced() -> None:
        renamed()
        disk.files.sync_directory(place)

    assert left_by_losses(disk, place, "a", renamed_and_synced) == {b"new contents"}


def test_a_sync_that_failed_is_not_made_good_by_a_later_one(disk: WorldDisk, place: Path) -> None:
    """The bytes are readable, the next sync succeeds, and a power loss takes them all the same (docs/protocol.md H34);
    written and synced once more they stay."""

    def state(*, again: bool) -> None:
        fd = created(disk, place, "a", b"")
        disk.files.pwritev(fd, [b"bytes"], 0)
        disk.fail(Failure.SYNC)
        with pytest.raises(OSError, match="Input/output error"):
            disk.files.fdatasync(fd)
        disk.heal()
        assert disk.files.pread(fd, 10, 0) == b"bytes"
        if again:
            disk.files.pwritev(fd, [b"bytes"], 0)
        disk.files.fdatasync(fd)

    assert left_by_losses(disk, place, "a", lambda: state(again=False)) == {b""}
    assert left_by_losses(disk, place, "a", lambda: state(again=True)) == {b"bytes"}

    def synced_write() -> None:
        fd = created(disk, place, "a", b"")
        disk.fail(Failure.SYNC)
        with pytest.raises(OSError, match="Input/output error"):
            disk.files.pwritev_synced(fd, [b"bytes"], 0)
        disk.heal()
        disk.files.fdatasync(fd)
        disk.files.close(fd)

    assert left_by_losses(disk, place, "a", synced_write) == {b""}


def test_a_directory_that_was_put_back_counts_as_on_disk(disk: WorldDisk, place: Path) -> None:
    """A copy in the place of a lost directory is whole after a power loss, also where the lost one had unsynced
    files; what is written into it afterwards is tracked again."""
    copy = place.parent / "copy"

    def state() -> None:
        fd = created(disk, place, "a", b"old")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        disk.files.pwritev(fd, [b"newer"], 0)
        shutil.rmtree(place)
        shutil.copytree(copy, place)

    assert left_by_losses(disk, place, "a", state) == {b"old"}

    def state_and_write() -> None:
        state()
        disk.files.pwritev(disk.files.open(place / "a", write=True), [b"later"], 0)

    assert {b"old", b"later"} < left_by_losses(disk, place, "a", state_and_write)


def test_files_that_something_else_changed_count_as_on_disk(disk: WorldDisk, place: Path) -> None:
    """A file that was removed, replaced or made by another program than the log or the store is taken as it is when
    the next log or store looks at the directory."""

    def state() -> None:
        for name in "abc":
            disk.files.close(created(disk, place, name, b"x", named=False))
        (place / "a").unlink()
        (place / "b").unlink()
        (place / "b").write_bytes(b"another b")
        assert disk.files.names(place) == ["b", "c"]

    assert left_by_losses(disk, place, "a", state) == {None}
    assert left_by_losses(disk, place, "b", state) == {b"another b"}
    assert left_by_losses(disk, place, "c", state) == {b"x"}


# -- failures and time -------------------------------------------------------------------------------------------


CHANGES = {"write", "synced write", "allocate", "truncate", "rename", "unlink"}


@pytest.mark.parametrize(
    ("failure", "number", "fails"),
    [
        (Failure.WRITE, errno.EIO, CHANGES),
        (Failure.SYNC, errno.EIO, {"synced write", "sync", "sync directory"}),
        (Failure.SPACE, errno.ENOSPC, {"write", "synced write", "allocate"}),
        (Failure.INODES, errno.ENOSPC, {"create"}),
        (Failure.READ_ONLY, errno.EROFS, CHANGES | {"create", "sync"}),
        (Failure.DESCRIPTORS, errno.EMFILE, {"create", "open"}),
        (Failure.QUOTA, errno.EDQUOT, {"write", "synced write", "allocate", "create"}),
        (Failure.MEMORY, errno.ENOMEM, CHANGES),
        (Failure.LATE, errno.ENOSPC, {"synced write", "sync"}),
    ],
    ids=lambda value: value.name if isinstance(value, Failure) else "",
)
def test_each_failure_is_an_error_of_the_system_until_it_is_healed(
    failure: Failure, number: int, fails: set[str], disk: WorldDisk, place: Path
) -> None:
    """The calls that it concerns raise OSError with its number, the others work, and all do once it is healed."""
    files = disk.files
    calls: dict[str, Callable[[int], object]] = {
        "create": lambda _: files.create(place / "new"),
        "open": lambda _: files.open(place / "a", write=True),
        "write": lambda fd: files.pwritev(fd, [b"12345678"], 10),
        "synced write": lambda fd: files.pwritev_synced(fd, [b"12345678"], 10),
        "allocate": lambda fd: files.allocate(fd, 10, 4),
        "truncate": lambda fd: files.truncate(fd, 4),
        "sync": files.fdatasync,
        "sync directory": lambda _: files.sync_directory(place),
        "rename": lambda _: files.rename(place / "a", place / "b"),
        "unlink": lambda _: files.unlink(place / "a"),
    }
    failed = {}
    for healed, (name, call) in itertools.product((False, True), calls.items()):
        shutil.rmtree(place)
        place.mkdir()
        fd = created(disk, place, "a", b"some bytes")
        files.pwritev(fd, [b"SOME"], 0)
        disk.fail(failure)
        if healed:
            disk.heal(failure)
        try:
            call(fd)
        except OSError as error:
            failed[name, healed] = error.errno
        disk.heal()
    assert failed == {(name, False): number for name in fails}


def test_a_full_disk_takes_what_fits(disk: WorldDisk, place: Path) -> None:
    """The free bytes fall as files grow and rise as they are cut and removed; a write that does not fit is done in
    part, and one within the file succeeds."""
    files = disk.files
    fd = created(disk, place, "a", b"0123456789")
    disk.fail(Failure.SPACE, left_bytes=5)
    assert files.free_bytes(place) == 5
    with pytest.raises(OSError, match="No space left"):
        files.pwritev(fd, [b"abcdefgh"], 10)
    assert files.pread(fd, 100, 0) == b"0123456789abcde"
    assert files.free_bytes(place) == 0
    files.pwritev(fd, [b"ABC"], 0)
    files.truncate(fd, 12)
    assert files.free_bytes(place) == 3
    files.close(fd)
    files.unlink(place / "a")
    assert files.free_bytes(place) == 15
    for name in ("b", "c"):
        files.pwritev(files.create(place / name), [b"12345"], 0)
    files.rename(place / "b", place / "c")
    assert files.free_bytes(place) == 10


def test_a_slow_disk_takes_time_before_anything_is_done(place: Path) -> None:
    """Each write and sync takes the latency, and a process that ends within it has not written."""
    taken: list[float] = []
    disk = WorldDisk(taken.append)
    fd = created(disk, place, "a", b"x")
    assert taken == []
    disk.slow(7.5)
    disk.files.pwritev_synced(fd, [b"y"], 1)
    disk.files.fdatasync(fd)
    assert taken == [7.5, 7.5]

    def end(_: float) -> None:
        disk.process_ends()

    disk._charge_ms = end
    with pytest.raises(OSError, match="descriptor"):
        disk.files.pwritev(fd, [b"z"], 2)
    assert (place / "a").read_bytes() == b"xy"


# -- the log -----------------------------------------------------------------------------------------------------


class StoppingFiles:
    """File calls of a process that is killed at its `stop_at`-th change of the disk: that one and all later fail."""

    def __init__(self, files: Any, stop_at: int) -> None:
        self._files = files
        self._left = stop_at
        self.stopped = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._files, name)
        if name in ("names", "open", "size", "pread", "close", "free_bytes", "free_inodes", "read_only"):
            return call

        def counted(*values: Any) -> Any:
            self._left -= 1
            self.stopped |= self._left <= 0
            if self.stopped:
                raise ProcessKilled(errno.EIO, "the process was killed")
            return call(*values)

        return counted


@pytest.mark.parametrize("durability", ["fsync", "async"])
def test_a_log_recovers_from_a_power_loss_at_any_step(
    durability: str, memory_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Appends, truncations, trims and restarts, stopped by a power loss at each change of the disk: the log opens
    without damage as one of its states. With fsync none is older than what was reported durable."""
    monkeypatch.setattr(writer, "ASYNC_SYNC_S", 1_000.0)
    place = memory_directory / "log"
    options: dict[str, Any] = {
        "directory": place, "size_limit_bytes": 2000, "file_bytes": 1000, "durability": durability,
    }  # fmt: skip
    for stop_at in seeds(range(1, 400)) if durability == "fsync" else seeds(range(1, 400, 3)):
        shutil.rmtree(place, ignore_errors=True)
        disk = WorldDisk()
        written = HistoryWriter(StoppingFiles(disk.files, stop_at), **options)  # type: ignore[arg-type]
        written.process(*FIRST) and written.process(*SECOND) and written.process(*THIRD)
        disk.power_loss(Random(stop_at))
        disk.process_begins()
        if durability == "async":
            log = open_log(disk.files, **options, known_durable=dict.fromkeys(written.history.now, 0))
            for partition, found in log.recovered().items():
                wires = tuple(entry.wire for entry in log.read(partition, found.start, found.leo, 1 << 30))
                states = {state[partition].wires for state in written.history.states if partition in state} | {()}
                assert any(state[found.start : found.leo] == wires for state in states), (stop_at, partition)
        else:
            log = open_log(disk.files, **options)
            written.history.recovered_as(log)
        log.close()
        if not written.disk.stopped:
            break


def failing_log(disk: WorldDisk, place: Path, failure: Failure) -> Exception:
    """How a log fails in which this happens while it is written."""
    log = open_log(disk.files, place, known_durable={})
    listener = Listener(log)
    log.append(0, entries(1, 0, 2))
    assert listener.wait({0: 2})
    disk.fail(failure)
    with suppress(LocalFault):
        for n in range(2, 50):
            log.append(0, entries(1, n, 1, size=100))
    error = listener.wait_for_failure()
    with suppress(LocalFault):
        log.close()
    return error


@pytest.mark.parametrize("failure", [Failure.WRITE, Failure.SYNC], ids=lambda each: each.name)
def test_a_log_on_a_failing_disk_reports_it_and_goes_on_after_a_restart(
    failure: Failure, disk: WorldDisk, place: Path
) -> None:
    """The log fails for good with the system's words, and a later process finds every entry that was durable."""
    assert os.strerror(errno.EIO) in str(failing_log(disk, place, failure))
    disk.heal()
    disk.power_loss(Random(1))
    disk.process_begins()
    log = open_log(disk.files, place)
    assert log.leo(0) >= 2
    assert not log.recovered()[0].damage
    log.close()


@pytest.mark.parametrize(
    "failure",
    [Failure.SPACE, Failure.QUOTA, Failure.MEMORY, Failure.LATE, Failure.READ_ONLY],
    ids=lambda each: each.name,
)
def test_a_log_on_a_short_disk_waits_and_goes_on(
    failure: Failure, disk: WorldDisk, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of a write is there, or a sync has dropped its bytes: nothing is reported as durable before it is, and the
    same process goes on once the disk is not short any more; a power loss then takes nothing."""
    monkeypatch.setattr(writer, "WRITE_AGAIN_S", 0.01)
    log = open_log(disk.files, place)
    listener = Listener(log)
    log.append(0, entries(1, 0, 2))
    assert listener.wait({0: 2})
    disk.fail(failure)
    log.append(0, entries(1, 2, 1, size=2_000))
    wait_until(lambda: bool(log.shortage), "the shortage is noticed")
    assert listener.durable == {0: 2}
    disk.heal()
    assert listener.wait({0: 3})
    assert not listener.failures
    disk.power_loss(Random(1))
    disk.process_begins()
    again = open_log(disk.files, place)
    assert (again.leo(0), again.recovered()[0].damage) == (3, "")
    again.close()
    with suppress(LocalFault, OSError):
        log.close()


@pytest.mark.parametrize("failure", [Failure.DESCRIPTORS, Failure.INODES], ids=lambda each: each.name)
def test_a_log_that_cannot_make_its_first_file_says_so(failure: Failure, disk: WorldDisk, place: Path) -> None:
    """Without descriptors or inodes a new log cannot be opened: LocalFault or StorageShort, with the reason."""
    disk.fail(failure)
    with pytest.raises((LocalFault, StorageShort), match=r"Too many open files|No space left"):
        open_log(disk.files, place)


def test_a_log_sees_the_space_of_its_disk(disk: WorldDisk, place: Path) -> None:
    """Free bytes, free inodes and a read-only disk are the ones that the log's status shows."""
    log = open_log(disk.files, place)
    disk.fail(Failure.SPACE, left_bytes=123)
    disk.fail(Failure.INODES)
    disk.fail(Failure.READ_ONLY)
    assert log._io.free_bytes(place) == 123
    assert log._io.free_inodes(place) == 0
    assert log._io.read_only(place)
    disk.heal()
    log.close()


# -- the store ---------------------------------------------------------------------------------------------------


def store_on(disk: WorldDisk, place: Path, boot_id: str = "first-boot") -> LevelStore:
    """A store with small logs."""
    return open_store(
        place / "store",
        boot_id=boot_id,
        write_buffer_bytes=65_536,
        database=disk.database,
        disk=disk.checkpoints,
    )


def simulated_rows(disk: WorldDisk, place: Path) -> dict[bytes, bytes]:
    """Every row of the closed store."""
    db = disk.database(os.fspath(place / "store" / "rows"))
    with db.iterator() as found:
        rows = dict(found)
    db.close()
    return rows


@pytest.mark.parametrize("seed", seeds(range(60)))
def test_a_store_replays_after_power_losses(seed: int, place: Path) -> None:
    """Writes, checkpoints, kills and power losses at random: the durable floors stay, no strict check fails, and a
    replay from the floor gives exactly the rows of the log."""
    random, disk = Random(seed), WorldDisk()
    history, expected = StoreHistory(), ExpectedRows()
    for n in range(200):
        history.put(b"b", b"%d" % random.randrange(20), b"%d" % n * random.choice((1, 1, 3_000)))
    applied = floor = 0
    store = store_on(disk, place)
    for boot in range(6):
        for _ in range(random.randrange(15)):
            count = random.randrange(1, 8)
            if applied + count > len(history.entries):
                break
            store.write([history.step(applied, applied + count)])
            applied += count
            if random.random() < 0.15:
                store.checkpoint()
                floor = applied
        if random.random() < 0.3:
            disk.process_begins()
            store = store_on(disk, place, f"boot-{boot}")
            assert store.applied(3).offset == applied
        disk.power_loss(random)
        disk.process_begins()
        store = store_on(disk, place, f"boot-{boot + 1}")
        assert floor <= store.durable_floor(3)
        at = store.durable_floor(3)
        while at < applied:
            upto = min(applied, at + random.randrange(1, 9))
            store.write([history.step(at, upto)])
            at = upto
        if store.needs_replay():
            store.replay_finished()
        assert store.applied(3).offset == applied
        floor = store.durable_floor(3)
    store.close()
    expected.write([history.step(0, applied)])
    assert simulated_rows(disk, place) == expected.rows


def test_a_power_loss_may_take_rows_below_the_applied_position(disk: WorldDisk, place: Path) -> None:
    """Some seed leaves the newer of two unsynced logs and tears the older one, so that the applied row that is found
    stands above missing rows: what a replay from the floor is for (docs/protocol.md H36)."""
    history = StoreHistory()
    for n in range(40):
        history.put(b"b", b"%d" % n, b"x" * 5_000)
    gaps = 0
    for seed in LOSSES:
        shutil.rmtree(place / "store", ignore_errors=True)
        disk.process_begins()
        store = store_on(disk, place)
        for n in range(40):
            store.write([history.step(n, n + 1)])
        disk.power_loss(Random(seed))
        disk.process_begins()
        store = store_on(disk, place, "another boot")
        applied = store.applied(3).offset
        gaps += any(store.object(3, b"b", b"%d" % n) is None for n in range(applied))
        disk.process_ends()
    assert gaps


def test_a_store_on_a_failing_disk_refuses_until_it_is_opened_again(place: Path) -> None:
    """A failed write or sync is a LocalFault then and at each later write; the next process has every checkpointed
    row."""
    for failure, act in ((Failure.WRITE, "write"), (Failure.SYNC, "checkpoint")):
        shutil.rmtree(place / "store", ignore_errors=True)
        disk = WorldDisk()
        history = StoreHistory()
        for n in range(20):
            history.put(b"b", b"%d" % n, b"x" * 100)
        store = store_on(disk, place)
        store.write([history.step(0, 5)])
        store.checkpoint()
        store.write([history.step(5, 6)])
        disk.fail(failure)
        for _ in range(2):
            with pytest.raises(LocalFault):
                store.write([history.step(6, 7)]) if act == "write" else store.checkpoint()
            disk.heal()
        with pytest.raises(LocalFault):
            store.write([history.step(7, 8)])
        disk.power_loss(Random(3))
        disk.process_begins()
        store = store_on(disk, place, "another boot")
        assert store.durable_floor(3) == 5
        assert all(store.object(3, b"b", b"%d" % n) for n in range(5))
        store.write([history.step(5, 20)])
        store.replay_finished()
        store.close()


@pytest.mark.parametrize(
    "failure", [Failure.DESCRIPTORS, Failure.INODES, Failure.READ_ONLY], ids=lambda each: each.name
)
def test_a_store_that_cannot_begin_a_log_is_short_and_writes_later(
    failure: Failure, disk: WorldDisk, place: Path
) -> None:
    """As with LevelDB, the batch that needs a new log raises StorageShort, nothing of it is written, and it is
    written once the shortage is over."""
    history = StoreHistory()
    for n in range(60):
        history.put(b"b", b"%d" % n, bytes(20_000))
    store = store_on(disk, place)
    at = 0
    while store._db._files.size(store._db._log_fd) < 65_536:
        store.write([history.step(at, at + 1)])
        at += 1
    disk.fail(failure)
    prepared = store.prepare([history.step(at, at + 1)])
    with pytest.raises(StorageShort):
        store.commit(prepared, patient=False)
    assert store.shortage.startswith("the store cannot create a file: ")
    assert store.applied(3).offset == at
    disk.heal()
    store.commit(prepared)
    assert store.shortage == ""
    store.write([history.step(at + 1)])
    store.close()
    assert sum(name.startswith(b"o") for name in simulated_rows(disk, place)) == 60


def test_a_backup_of_a_running_node_is_restored(disk: WorldDisk, place: Path) -> None:
    """The product's backup copies the log and the store of this disk while they are open, and opens the copied rows
    through it; restored elsewhere on the disk, log and store have everything, also after a power loss."""
    data, target, backup = place / "data", place / "restored", place / "backup"
    identity = NodeIdentity.open(data)
    identity.adopt(CLUSTER, "east-1", "boot", {0: 7}, spare=6)
    options: dict[str, Any] = {
        "cluster_uuid": CLUSTER, "write_buffer_bytes": 65_536, "block_cache_bytes": 65_536, "database": disk.database,
        "disk": disk.checkpoints,
    }  # fmt: skip
    store = LevelStore.open(data / "store", boot_id="boot", **options)
    log = open_log(disk.files, data / "log")
    listener = Listener(log)
    written = entries(1, 0, 40)
    log.append(0, written)
    assert listener.wait({0: 40})
    store.write([PartitionStep(0, written[:20])])
    store.checkpoint()
    store.write([PartitionStep(0, written[20:30])])
    create(data, backup, node="east-1", cluster="east", progress=lambda *_: None, database=disk.database)
    store.close()
    log.close()
    identity.close(clean=True)
    manifest, faults = verify(backup, lambda *_: None)
    assert not faults
    restore(backup, target, manifest, lambda *_: None)
    disk.power_loss(Random(1))
    disk.process_begins()
    store = LevelStore.open(target / "store", boot_id="boot", **options)
    assert store.durable_floor(0) == 20
    assert store.object(0, written[7].bucket, written[7].key) == written[29].payload
    log = open_log(disk.files, target / "log", known_durable={0: 20})
    assert log.leo(0) == 40
    log.close()
    store.close()


def test_a_killed_process_has_no_store(disk: WorldDisk, place: Path) -> None:
    """The next process opens the database of one that was killed, and finds what that one wrote; the old store serves
    nothing any more."""
    history = StoreHistory()
    history.put(b"b", b"k", b"x")
    killed = store_on(disk, place)
    killed.write([history.step(0)])
    disk.process_begins()
    store = store_on(disk, place)
    assert store.object(3, b"b", b"k") == b"x"
    with pytest.raises(RuntimeError, match="closed"):
        killed.object(3, b"b", b"k")
    store.close()


def test_an_error_of_a_compaction_lasts_until_the_store_is_opened_again(disk: WorldDisk, place: Path) -> None:
    """As LevelDB's own work: the writes after it fail, also once the disk is healed, and the next process has every
    row."""
    db = disk.database(str(place / "db"), create_if_missing=True)
    db.put(b"a", b"1")
    disk.fail(Failure.WRITE)
    db.compact_range()
    disk.heal()
    for _ in range(2):
        with pytest.raises(plyvel.IOError, match="Input/output error"):
            db.put(b"b", b"2")
    db.close()
    db = disk.database(str(place / "db"))
    db.put(b"b", b"2")
    assert (db.get(b"a"), db.get(b"b")) == (b"1", b"2")
    db.close()


def test_a_synced_batch_stays(disk: WorldDisk, place: Path) -> None:
    """A batch with `sync`, and those before it, are there after any power loss once the log's name is synced."""
    for seed in LOSSES:
        shutil.rmtree(place, ignore_errors=True)
        disk.process_begins()
        db = disk.database(str(place), create_if_missing=True)
        disk.checkpoints.sync_directory(place)
        db.put(b"a", b"1")
        db.put(b"b", b"2", sync=True)
        disk.power_loss(Random(seed))
        disk.process_begins()
        db = disk.database(str(place), paranoid_checks=True)
        assert (db.get(b"a"), db.get(b"b")) == (b"1", b"2")


def test_a_checkpoint_without_descriptors_is_made_later(disk: WorldDisk, place: Path) -> None:
    """A sync that could not begin is a StorageShort, the floors stay, and the next checkpoint moves them."""
    history = StoreHistory()
    history.put(b"b", b"k", b"x")
    store = store_on(disk, place)
    store.write([history.step(0)])
    disk.fail(Failure.DESCRIPTORS)
    with pytest.raises(StorageShort):
        store.checkpoint()
    assert store.durable_floor(3) == 0
    disk.heal()
    store.checkpoint()
    assert store.durable_floor(3) == 1
    store.close()

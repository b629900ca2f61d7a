"""A power loss loses nothing that the log cannot restore, and the store knows where to replay from (H36). The entries
stay in the test, as they would in the log; after each loss they are written again from the floors, and every row must
equal that of a store without a loss."""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from isthmus.repl.model.entry import EntryKind, make_entry
from isthmus.repl.store import row_codec, rows
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from tests.support.entry_histories import START_MS, ExpectedRows, History, open_store, stored_rows
from tests.support.power_loss import DatabaseRecorder, LogLoss, LossyDisk, PowerCut

PARTITIONS = (0, 1, 7)

LOSSES = {
    "old log empty, new one whole": LogLoss(0.0, 1.0),
    "old log half, new one whole": LogLoss(0.5, 1.0),
    "old log nearly whole, new one whole": LogLoss(0.97, 1.0),
    "old log zeroed, new one whole": LogLoss(0.3, 1.0, b"\0"),
    "old log garbled, new one whole": LogLoss(0.4, 1.0, b"\xa5\x5a\x17"),
    "both half": LogLoss(0.5, 0.5),
    "old log whole, new one gone": LogLoss(1.0, 0.0),
    "both gone": LogLoss(0.0, 0.0),
    "nothing lost": LogLoss(1.0, 1.0),
}


class Cluster:
    """Three partitions' logs, the entries applied of them, and a memory store without faults for comparison."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.histories = {p: History(p) for p in PARTITIONS}
        self.expected_rows = ExpectedRows()
        self.cursors: dict[int, bytes] = {}

    def grow(self) -> list[PartitionStep]:
        """A step of some 8 KB: new keys, overwritten ones, now and then a cursor or an epoch."""
        steps = []
        for partition in self.rng.sample(PARTITIONS, self.rng.randint(1, 3)):
            history = self.histories[partition]
            at = len(history.entries)
            for _ in range(self.rng.randint(1, 4)):
                dice = self.rng.random()
                if dice < 0.05:
                    history.plain(EntryKind.BARRIER)
                elif dice < 0.15:
                    history.plain(EntryKind.CURSOR, key=b"west", payload=b"state %d" % at)
                else:
                    time_ms = START_MS + len(history.entries) * 400 - self.rng.randint(0, 3_000)
                    key = b"key-%d" % self.rng.randint(0, 25)
                    history.put(b"bucket", key, self.rng.randbytes(self.rng.randint(100, 3000)), time_ms=time_ms)
            steps.append(history.step(at))
        self.expected_rows.write(steps)
        return steps

    def replay(self, store: LevelStore, per_step: int = 5, stop_after: int | None = None) -> None:
        """Writes again, from the floors, the entries that the store may have lost, then all later ones."""
        written = 0
        for partition, history in self.histories.items():
            at = store.durable_floor(partition) if store.needs_replay() else store.applied(partition).offset
            while at < len(history.entries):
                if stop_after is not None and written >= stop_after:
                    return
                found = store.applied(partition).offset
                store.write([history.step(at, at + per_step)])
                at = min(at + per_step, len(history.entries))
                written += 1
                assert store.applied(partition).offset == max(found, at)
        if store.needs_replay():
            store.replay_finished()

    def check_below_floor(self, store: LevelStore) -> None:
        """Checks that keys whose latest change lies below the floor are complete before any replay."""
        for partition, history in self.histories.items():
            floor = store.durable_floor(partition)
            assert floor <= store.applied(partition).offset
            changes = {c.offset for c in store.changes(partition, 0, 10_000)}
            for (bucket, key), entry in history.latest.items():
                if entry.offset < floor:
                    assert store.object(partition, bucket, key) == entry.payload
                    assert store.key_row(partition, entry.key_hash, bucket, key) == entry.row
                    assert entry.offset in changes


WITHIN_CHECKPOINT = (
    "old log empty, new one whole",
    "old log garbled, new one whole",
    "both half",
    "both gone",
)


def recover(cluster: Cluster, directory: Path, boot_id: str) -> bool:
    """Opens the remains of a power loss, replays, and compares every row; True if rows were in fact missing."""
    store = open_store(directory, boot_id=boot_id)
    cluster.check_below_floor(store)
    needed = store.needs_replay()
    found = {p: store.applied(p).offset for p in PARTITIONS}
    missing = any(
        store.object(p, b, k) is None
        for p, history in cluster.histories.items()
        for (b, k), entry in history.latest.items()
        if entry.offset < found[p]
    )
    assert needed or not missing
    cluster.replay(store)
    assert not store.needs_replay()
    store.close()
    assert stored_rows(directory) == cluster.expected_rows.rows
    return missing


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES.keys())
def test_a_power_loss_around_every_memtable_switch_loses_nothing(loss: LogLoss, memory_directory: Path) -> None:
    """For any remains of the two logs after a memtable switch, a replay from the floors restores every row."""
    cluster, disk = Cluster(1), LossyDisk()
    store = open_store(memory_directory / "live", disk=disk)
    recorder = DatabaseRecorder(memory_directory / "live", memory_directory / "hoard", disk)
    switches = missing = 0
    for number in range(48):
        store.write(cluster.grow())
        if len(recorder.logs()) == 2:
            switches += 1
            recorder.power_loss(memory_directory / "left", loss)
            missing += recover(cluster, memory_directory / "left", "second boot")
        if number % 9 == 8:
            store.checkpoint()
        recorder.settle()
    store.close()
    assert stored_rows(memory_directory / "live") == cluster.expected_rows.rows
    assert switches >= 3
    if loss.older < 1.0 and loss.newest == 1.0:
        assert missing, "the emulation did not lose a row: it proves nothing"


def cluster_that_lost_power(memory_directory: Path, loss: LogLoss, seed: int = 6) -> tuple[Cluster, Path]:
    """A store that ran to its first memtable switches and lost power, and the directory with its remains."""
    cluster, disk = Cluster(seed), LossyDisk()
    store = open_store(memory_directory / "live", disk=disk)
    recorder = DatabaseRecorder(memory_directory / "live", memory_directory / "hoard", disk)
    while len(recorder.logs()) < 2:
        recorder.settle()
        store.write(cluster.grow())
    recorder.power_loss(memory_directory / "left", loss)
    store.close()
    return cluster, memory_directory / "left"


def checkpoint_cut_short(
    memory_directory: Path, stop_after: int | None, seed: int, beside: bool
) -> tuple[Cluster, DatabaseRecorder, bool]:
    """A store that ran, checkpointed, continued over a switch and lost power within its second checkpoint."""
    cluster, disk = Cluster(seed), LossyDisk()
    store = open_store(memory_directory / "live", disk=disk)
    recorder = DatabaseRecorder(memory_directory / "live", memory_directory / "hoard", disk)
    for _ in range(8):
        store.write(cluster.grow())
        recorder.settle()
    store.checkpoint()
    for _ in range(8):
        store.write(cluster.grow())
        recorder.settle()
    while len(recorder.logs()) < 2:
        recorder.settle()
        store.write(cluster.grow())
    begun = disk.count
    disk.stop_after = None if stop_after is None else begun + stop_after

    def write_on() -> None:
        for _ in range(3):
            store.write(cluster.grow())
            recorder.logs()

    if beside:
        disk.beside = write_on
    recorder.hold()
    cut_short = False
    try:
        store.checkpoint()
    except PowerCut:
        cut_short = True
    disk.beside = lambda: None
    return cluster, recorder, cut_short


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "with a writer beside"])
@pytest.mark.parametrize("stop_after", [0, 1, 2, 3, None])
def test_a_power_loss_within_a_checkpoint_loses_nothing(
    stop_after: int | None, beside: bool, memory_directory: Path
) -> None:
    """Stopped before or after each of its operations, a checkpoint leaves correct floors."""
    cluster, recorder, cut_short = checkpoint_cut_short(memory_directory, stop_after, 5, beside)
    assert cut_short or stop_after in (3, None)
    for name in WITHIN_CHECKPOINT:
        recorder.power_loss(memory_directory / "left", LOSSES[name])
        recover(cluster, memory_directory / "left", "second boot")


def test_a_power_loss_during_replay_is_replayed_again(memory_directory: Path) -> None:
    """A second loss in the middle of a replay, with or without a checkpoint in it, does no more damage than the
    first."""
    losses = 0
    for seed in range(2):
        for with_checkpoint in (False, True):
            place = memory_directory / f"{seed}-{with_checkpoint}"
            place.mkdir()
            cluster, left = cluster_that_lost_power(place, LogLoss(0.2, 1.0), seed)

            second_disk = LossyDisk()
            second_disk.durable_slots = {p.name: p.read_bytes() for p in left.glob("floors.*")}
            replaying = open_store(left, boot_id="second boot", disk=second_disk)
            assert replaying.needs_replay()
            found = {p: replaying.applied(p) for p in PARTITIONS}
            second = DatabaseRecorder(left, place / "second hoard", second_disk)
            cluster.replay(replaying, per_step=2, stop_after=6)
            assert replaying.needs_replay()
            if with_checkpoint:
                replaying.checkpoint()
                assert replaying.needs_replay()
            second.power_loss(place / "twice", LogLoss(0.0, 0.3))

            third = open_store(place / "twice", boot_id="third boot")
            assert third.needs_replay()
            for partition in PARTITIONS:
                assert third.applied(partition) >= found[partition]
            third.close()
            losses += recover(cluster, place / "twice", "third boot")
    assert losses


def test_without_a_power_loss_nothing_is_replayed(memory_directory: Path) -> None:
    """After `kill -9` the boot id is the same, and the store continues at its applied offsets."""
    cluster, disk = Cluster(3), LossyDisk()
    store = open_store(memory_directory / "live", disk=disk)
    recorder = DatabaseRecorder(memory_directory / "live", memory_directory / "hoard", disk)
    for _ in range(30):
        store.write(cluster.grow())
    recorder.settle()
    recorder.power_loss(memory_directory / "killed", LOSSES["nothing lost"])
    reopened = open_store(memory_directory / "killed")
    assert not reopened.needs_replay()
    for partition, history in cluster.histories.items():
        assert reopened.applied(partition).offset == len(history.entries) == reopened.durable_floor(partition)
    reopened.close()
    assert stored_rows(memory_directory / "killed") == cluster.expected_rows.rows


def test_after_a_clean_stop_another_boot_replays_nothing(memory_directory: Path) -> None:
    """A clean stop leaves floors at the applied offsets and a marker; the next run removes the marker durably."""
    cluster = Cluster(4)
    store = open_store(memory_directory / "live")
    for _ in range(20):
        store.write(cluster.grow())
    store.close()
    disk = LossyDisk()
    reopened = open_store(memory_directory / "live", boot_id="second boot", disk=disk)
    assert not reopened.needs_replay()
    assert "write slot" in disk.done
    recorder = DatabaseRecorder(memory_directory / "live", memory_directory / "hoard", disk)
    while len(recorder.logs()) < 2:
        recorder.settle()
        reopened.write(cluster.grow())
    recorder.power_loss(memory_directory / "left", LogLoss(0.0, 1.0))
    third = open_store(memory_directory / "left", boot_id="third boot")
    assert third.needs_replay()
    third.close()
    recover(cluster, memory_directory / "left", "third boot")


@pytest.mark.parametrize("with_checkpoint", [False, True])
def test_a_replay_that_was_killed_begins_again(with_checkpoint: bool, memory_directory: Path) -> None:
    """A process killed within a replay, after a checkpoint or without one, replays again from the floors, though the
    boot is the same; entries written twice change nothing."""
    cluster, left = cluster_that_lost_power(memory_directory, LogLoss(0.1, 1.0))
    replaying = open_store(left, boot_id="second boot")
    found = {p: replaying.applied(p) for p in PARTITIONS}
    cluster.replay(replaying, per_step=1, stop_after=5)
    if with_checkpoint:
        replaying.checkpoint()
    assert replaying.needs_replay()
    shutil.copytree(left, memory_directory / "killed")
    replaying.close()
    again = open_store(memory_directory / "killed", boot_id="second boot")
    assert again.needs_replay()
    assert {p: again.applied(p) for p in PARTITIONS} == found
    again.close()
    assert recover(cluster, memory_directory / "killed", "second boot")


def test_a_stop_during_a_replay_is_not_clean(memory_directory: Path) -> None:
    """A store closed during a replay needs the rest of it when it is opened again, in any boot."""
    cluster, left = cluster_that_lost_power(memory_directory, LogLoss(0.1, 1.0))
    for boot_id in ("second boot", "second boot", "third boot"):
        replaying = open_store(left, boot_id=boot_id)
        assert replaying.needs_replay()
        cluster.replay(replaying, per_step=1, stop_after=2)
        replaying.close()
    recover(cluster, left, "third boot")


def test_a_replay_goes_on_from_the_floor_and_leaves_no_gap(memory_directory: Path) -> None:
    """Entries that do not begin at the replay's position are refused as a bug; finishing it early does nothing."""
    cluster, left = cluster_that_lost_power(memory_directory, LogLoss(0.1, 1.0))
    replaying = open_store(left, boot_id="second boot")
    partition = next(p for p in PARTITIONS if replaying.applied(p).offset > replaying.durable_floor(p) + 2)
    floor = replaying.durable_floor(partition)
    with pytest.raises(AssertionError):
        replaying.write([cluster.histories[partition].step(floor + 1, floor + 2)])
    replaying.replay_finished()
    assert replaying.needs_replay()
    replaying.close()


def test_rows_are_sent_only_up_to_the_replayed_offset(memory_directory: Path) -> None:
    """Rows above may be missing: a receiver would be marked as complete at an offset that it does not have."""
    cluster, left = cluster_that_lost_power(memory_directory, LogLoss(0.1, 1.0))
    replaying = open_store(left, boot_id="second boot")
    partition = next(p for p in PARTITIONS if replaying.applied(p).offset > replaying.durable_floor(p) + 2)
    found, floor = replaying.applied(partition).offset, replaying.durable_floor(partition)

    def given() -> int:
        with closing(replaying.transfers.snapshot(partition)) as snapshot:
            assert snapshot.rows(0, 1 << 30).upto == snapshot.end.offset
            return snapshot.end.offset

    assert given() == floor
    replaying.write([cluster.histories[partition].step(floor, floor + 1)])
    assert given() == floor + 1
    last = replaying.prepare([cluster.histories[partition].step(floor + 1, found)])
    assert given() == floor + 1
    replaying.commit(last)
    assert given() == found
    replaying.close()


@pytest.mark.parametrize("reaped", [False, True])
def test_changes_of_lost_entries_that_a_replay_makes_void_are_swept(memory_directory: Path, reaped: bool) -> None:
    """The log ends below the offsets found, and has an older entry of a key whose lost one left rows: afterwards the
    index has each key once, and rows can be sent to others. A key with only a lost entry stays."""
    history, held = History(), History()
    for each in (history, held):
        for key in (b"a", b"b", b"a", b"c"):
            each.put(b"bucket", key, key)
    store = open_store(memory_directory / "store", boot_id="first boot")
    store.write([history.step(0, 2)])
    store.checkpoint()
    for each in (history, held) if reaped else ():
        gone = each.latest.pop((b"bucket", b"c"))
        reap = {"key_hash": gone.key_hash, "previous_offset": gone.offset, "bucket": b"bucket", "key": b"c"}
        each.entries.append(make_entry(EntryKind.REAP, 1, 4, request_id=b"", origin=b"", time_ms=START_MS, **reap))
    history.put(b"bucket", b"a", b"lost")
    history.put(b"bucket", b"c", b"lost")
    history.put(b"bucket", b"d", b"lost")
    store.write([history.step(2)])
    store._db.close()
    store = open_store(memory_directory / "store", boot_id="second boot")
    while len(held.entries) <= len(history.entries):
        held.plain(EntryKind.BARRIER)
    store.write([held.step(2)])
    store.replay_finished()
    with closing(store.transfers.snapshot(3)) as snapshot:
        given = row_codec.decode_rows(snapshot.rows(0, 1 << 30).rows)
    tails = [rows.change_place(row.offset, row.change)[1][-1:] for row in given]
    assert sorted(tails) == ([b"a", b"b", b"d"] if reaped else [b"a", b"b", b"c", b"d"])
    assert store.object(3, b"bucket", b"a") == b"a"
    store.close()


def test_a_damaged_key_row_does_not_end_the_sweep(memory_directory: Path) -> None:
    """The change that it points to is unknown, so that change stays until the row is repaired; the node keeps
    running."""
    history = History()
    for key in (b"a", b"b"):
        history.put(b"bucket", key, key)
    store = open_store(memory_directory / "store", boot_id="first boot")
    store.write([history.step(0)])
    store._db.close()
    store = open_store(memory_directory / "store", boot_id="second boot")
    store.write([history.step(0)])
    damaged = rows.prefixes(3).key
    name, value = next((n, v) for n, v in store._db.iterator(prefix=damaged))
    store._db.put(name, b"\xc1 no row")
    store.replay_finished()
    assert len(list(store._db.iterator(prefix=rows.prefixes(3).change))) == 2
    store._db.put(name, value)
    store.close()

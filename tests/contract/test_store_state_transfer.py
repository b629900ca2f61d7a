"""State transfer between stores: the rows of a receiving partition, at any moment and after any stop (R-FAR)."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from isthmus.repl.model.entry import EntryKind, decode_key_row, encode_key_row, make_entry
from isthmus.repl.model.errors import Corruption, LocalFault
from isthmus.repl.model.keys import key_hash
from isthmus.repl.model.objects import Summary
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store import row_codec, rows, state_transfer
from isthmus.repl.store.checkpoint import Disk
from isthmus.repl.store.leveldb import PLYVEL, LevelStore, OpenDatabase
from isthmus.repl.store.port import AppliedPosition, PartitionStep, Store
from tests.simulation.world.disk import WorldDisk
from tests.support.memory_store import MemoryStore

UUID = b"east-cluster-016"
PARTITION = 3


def opened(directory: Path, boot_id: str = "boot-1", database: OpenDatabase = PLYVEL) -> LevelStore:
    return LevelStore.open(
        directory,
        cluster_uuid=UUID,
        write_buffer_bytes=100_000,
        block_cache_bytes=100_000,
        boot_id=boot_id,
        database=database,
    )


@pytest.fixture(params=["level", "memory", "simulated"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Two stores of one kind: a giver and a taker."""
    made: list[Store]
    if request.param == "memory":
        made = [MemoryStore(), MemoryStore()]
    else:
        database = WorldDisk().database if request.param == "simulated" else PLYVEL
        made = [opened(tmp_path / name, database=database) for name in "ab"]
    yield made
    for store in made:
        store.close()


class Writer:
    """Makes entries as a leader does: each has the offset of its key's previous change."""

    def __init__(self, seed: int = 1) -> None:
        self.random = Random(seed)
        self.offset = 0
        self.last: dict[bytes, int] = {}

    def step(self, count: int) -> PartitionStep:
        entries = []
        for _ in range(count):
            key = b"k%d" % self.random.randint(0, 20)
            hash64 = key_hash(b"b", key)
            row = encode_key_row(Summary(b"c", 7, 0, 1, 1, tombstone=False), self.offset)
            kind = self.random.choice((EntryKind.DATA, EntryKind.DATA, EntryKind.DATA, EntryKind.CURSOR))
            data = kind is EntryKind.DATA
            entries.append(
                make_entry(
                    kind,
                    1,
                    self.offset,
                    request_id=b"r%d" % self.offset if data and self.random.random() < 0.5 else b"",
                    origin=UUID,
                    time_ms=1_000 * self.offset,
                    key_hash=hash64 if data else 0,
                    previous_offset=self.last.get(key, -1) if data else -1,
                    bucket=b"b" if data else b"",
                    key=key,
                    row=row if data else b"",
                    payload=b"v%d" % self.offset,
                )
            )
            if data:
                self.last[key] = self.offset
            self.offset += 1
        return PartitionStep(PARTITION, entries)


def seen(store: Store) -> tuple[Any, ...]:
    """All rows of the partition, by way of a snapshot."""
    snapshot = store.transfers.snapshot(PARTITION)
    try:
        rows = row_codec.decode_rows(snapshot.rows(0, 1 << 30).rows)
        return snapshot.end, rows, row_codec.decode_state(snapshot.state(b"", 1 << 30).rows)
    finally:
        snapshot.close()


def transfer_all(giver: Store, taker: Store, limit_bytes: int = 300) -> AppliedPosition:
    """One whole round, in small chunks."""
    snapshot = giver.transfers.snapshot(PARTITION)
    position = taker.transfers.marks()[PARTITION].position
    while position < snapshot.end.offset:
        chunk = snapshot.rows(position, limit_bytes)
        assert chunk.upto > position
        position = taker.transfers.install_rows(PARTITION, chunk.rows, chunk.upto, 1).position
    after, done = b"", False
    while not done:
        state = snapshot.state(after, limit_bytes)
        taker.transfers.install_state(PARTITION, state.rows, first=not after)
        after, done = state.last, state.done
    taker.transfers.finish(PARTITION, snapshot.end)
    snapshot.close()
    return snapshot.end


class FaultyDisk(Disk):
    """A disk that stops writing floors on request."""

    broken = False

    def write_slot(self, slots: SlotFile, value: Any) -> None:
        if self.broken:
            raise OSError("killed here")
        super().write_slot(slots, value)


def test_a_kill_at_a_round_end_below_the_old_floor_leaves_a_store_that_opens(tmp_path: Path) -> None:
    """A replica that began empty may end at a lower offset than before, since its leader has applied less. No floor of
    the deleted rows may be left then, or the store would count as damaged and the node would not start."""
    giver = opened(tmp_path / "a")
    giver.write([Writer().step(20)])
    disk = FaultyDisk()
    options = {"write_buffer_bytes": 100_000, "block_cache_bytes": 100_000, "boot_id": "boot-1"}
    taker = LevelStore.open(tmp_path / "b", cluster_uuid=UUID, disk=disk, **options)  # type: ignore[arg-type]
    taker.write([Writer().step(40)])
    taker.checkpoint()
    taker.transfers.begin(PARTITION, empty=True)
    checkpoint = taker.checkpoint
    written: list[bool] = []

    def killed_once_it_is_written() -> None:
        disk.broken = PARTITION not in taker.transfers.marks()
        written.append(disk.broken)
        checkpoint()

    taker.checkpoint = killed_once_it_is_written  # type: ignore[method-assign]
    with pytest.raises(LocalFault):
        transfer_all(giver, taker)
    assert written[-1]
    taker.close()
    again = opened(tmp_path / "b")
    assert again.applied(PARTITION) == giver.applied(PARTITION)
    assert again.durable_floor(PARTITION) <= giver.applied(PARTITION).offset
    assert seen(again) == seen(giver)
    for store in (again, giver):
        store.close()


def test_a_round_makes_the_receiver_equal_to_the_sender(pair: list[Store]) -> None:
    """After several rounds from other positions all rows are the same, change rows of older changes are gone, and both
    stores apply the same entries."""
    giver, taker = pair
    writer = Writer()
    first = writer.step(30)
    giver.write([first])
    taker.write([first])
    for empty in (False, True, False):
        giver.write([writer.step(60)])
        mark = taker.transfers.begin(PARTITION, empty=empty)
        assert mark.whole
        assert mark.position == (0 if empty else mark.position)
        assert taker.applied(PARTITION) == AppliedPosition(0, 0)
        transfer_all(giver, taker)
        assert seen(taker) == seen(giver)
        assert taker.applied(PARTITION) == giver.applied(PARTITION)
        assert taker.durable_floor(PARTITION) == giver.applied(PARTITION).offset
        for offset, name in ((e.offset, e.request_id) for e in first.entries if e.request_id):
            hash64 = next(e.key_hash for e in first.entries if e.offset == offset)
            found = taker.request_offset(PARTITION, hash64, name)
            assert found == giver.request_offset(PARTITION, hash64, name)
    more = writer.step(20)
    giver.write([more])
    taker.write([more])
    assert seen(taker) == seen(giver)
    assert not taker.transfers.marks()


def test_a_snapshot_shows_what_was_when_it_was_taken(pair: list[Store]) -> None:
    """Writes after it are not in it, however late it is read."""
    giver, _ = pair
    writer = Writer()
    giver.write([writer.step(20)])
    snapshot = giver.transfers.snapshot(PARTITION)
    before = snapshot.rows(0, 1 << 30)
    keys = list(giver.key_rows(PARTITION, 0, 1 << 20))
    objects = {(bucket, key): giver.object(PARTITION, bucket, key) for _, bucket, key, _ in keys}
    giver.write([writer.step(50)])
    assert snapshot.rows(0, 1 << 30) == before
    assert list(snapshot.key_rows(0, 1 << 20)) == keys
    assert keys
    middle = keys[len(keys) // 2][0]
    assert [*snapshot.key_rows(0, middle), *snapshot.key_rows(middle, 1 << 20)] == keys
    segments = sorted({key[0] for key in keys})
    ranges = [(0, 0), *((segment, segment + 1) for segment in segments), (1 << 20, 1 << 20)]
    parts = [
        [(int.from_bytes(name[:3], "big"), *rows.split_tail(name[3:]), row) for name, row in part]
        for part in snapshot.segments(ranges)
    ]
    assert parts == [[], *([key for key in keys if key[0] == segment] for segment in segments), []]
    (whole,) = snapshot.segments([(0, 1 << 20)])
    assert [row for _, row in whole] == [key[3] for key in keys]
    few = [part for part in snapshot.segments([(segments[3], segments[3] + 1), (segments[9], segments[9] + 2)]) if part]
    assert len(few) == 2
    assert {name: snapshot.object(*name) for name in objects} == objects
    assert snapshot.object(b"no", b"key") is None
    assert list(giver.key_rows(PARTITION, 0, 1 << 20)) != keys
    assert snapshot.end.offset == 20
    snapshot.close()


def test_a_damaged_key_row_does_not_block_a_state_transfer(pair: list[Store]) -> None:
    """The receiver overwrites its unreadable row like any other, and its change row is deleted: afterwards both stores
    hold the same."""
    giver, taker = pair
    writer = Writer()
    first = writer.step(60)
    for store in (giver, taker):
        store.write([first])
    giver.write([writer.step(60)])
    hurt = b"k7"
    assert decode_key_row(giver.key_row(PARTITION, key_hash(b"b", hurt), b"b", hurt) or b"").offset >= 60
    if isinstance(taker, LevelStore):
        prefix = rows.prefixes(PARTITION).key
        taker._db.put(prefix + rows.segment_name(key_hash(b"b", hurt) >> 44) + b"b\0\1" + hurt, b"\xc1 no row")
    else:
        assert isinstance(taker, MemoryStore)
        taker._partitions[PARTITION].key_rows[b"b", hurt] = b"\xc1 no row"
    taker.transfers.begin(PARTITION, empty=False)
    transfer_all(giver, taker)
    assert seen(taker) == seen(giver)
    assert taker.changes(PARTITION, 0, 1_000) == giver.changes(PARTITION, 0, 1_000)


def test_a_damaged_chunk_changes_nothing(pair: list[Store]) -> None:
    """A flipped byte, or rows of another place, are refused, and the mark stays where it was."""
    giver, taker = pair
    giver.write([Writer().step(30)])
    taker.transfers.begin(PARTITION, empty=True)
    snapshot = giver.transfers.snapshot(PARTITION)
    chunk = snapshot.rows(0, 400)
    hurt = bytearray(chunk.rows)
    hurt[len(hurt) // 2] ^= 1
    with pytest.raises(Corruption):
        taker.transfers.install_rows(PARTITION, bytes(hurt), chunk.upto, 1)
    with pytest.raises(Corruption, match="among those"):
        taker.transfers.install_rows(PARTITION, chunk.rows, 1, 1)
    assert taker.transfers.marks()[PARTITION].position == 0
    snapshot.close()


def test_a_far_replica_stays_far_after_a_kill_and_is_empty_after_a_power_loss(tmp_path: Path) -> None:
    """A process kill keeps every row up to the transfer's position. After a reboot the rows on disk are uncertain, so
    all are dropped, even if the first process after the reboot is killed, too."""
    giver, taker = opened(tmp_path / "a"), opened(tmp_path / "b")
    giver.write([Writer().step(60)])
    taker.transfers.begin(PARTITION, empty=False)
    snapshot = giver.transfers.snapshot(PARTITION)
    chunk = snapshot.rows(0, 400)
    taker.transfers.install_rows(PARTITION, chunk.rows, chunk.upto, 1)
    snapshot.close()
    taker._db.close()
    taker = opened(tmp_path / "b")
    mark = taker.transfers.marks()[PARTITION]
    assert (mark.position, mark.epoch, mark.whole) == (chunk.upto, 1, False)
    assert PARTITION not in taker.applied_offsets()
    taker._db.close()
    taker = opened(tmp_path / "b", "boot-2")
    assert (taker.transfers.marks()[PARTITION].position, taker.transfers.marks()[PARTITION].whole) == (0, True)
    assert list(taker.list_keys(PARTITION, None, None)) == []
    transfer_all(giver, taker)
    assert seen(taker) == seen(giver)
    for row in row_codec.decode_rows(giver.transfers.snapshot(PARTITION).rows(0, 1 << 30).rows):
        assert decode_key_row(row.key_row).offset == row.offset
    taker.close()
    giver.close()


def test_a_finished_transfer_to_the_same_offset_sets_a_floor_again(pair: list[Store]) -> None:
    """The rows are on disk as before, and the next checkpoint sets the floor although nothing was written since."""
    store, _ = pair
    store.write([Writer().step(30)])
    store.checkpoint()
    mark = store.transfers.begin(PARTITION, empty=False)
    assert store.durable_floor(PARTITION) == 0
    store.transfers.finish(PARTITION, AppliedPosition(mark.epoch, mark.position))
    store.checkpoint()
    assert store.durable_floor(PARTITION) == 30


def test_a_partition_is_removed_in_steps_and_may_begin_at_zero(pair: list[Store]) -> None:
    """Nothing of it is left, the floors included; another partition keeps all, and the removed one may begin at 0."""
    store, _ = pair
    mine, other = Writer(), Writer(2).step(40)
    store.write([mine.step(60), PartitionStep(4, other.entries)])
    store.checkpoint()
    assert sum(store.transfers.remove(PARTITION)) >= 20
    assert list(store.list_keys(PARTITION, None, None)) == []
    assert (store.applied(PARTITION), store.durable_floor(PARTITION)) == (AppliedPosition(0, 0), 0)
    assert PARTITION not in store.transfers.marks()
    assert seen(store)[1:] == ([], [])
    assert store.applied(4).offset == 40
    assert list(store.list_keys(4, None, None)) != []
    again = Writer(3).step(10)
    store.write([again])
    assert store.applied(PARTITION).offset == 10


def test_a_removal_that_was_cut_short_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill after any step leaves a mark, and no floor above what is there; the next removal ends it."""
    monkeypatch.setattr(state_transfer, "WIPE_ROWS", 7)
    whole = 0
    for steps in range(40):
        directory = tmp_path / str(steps)
        store = opened(directory)
        store.write([Writer().step(60)])
        store.checkpoint()
        removal = store.transfers.remove(PARTITION)
        taken = [count for count, _ in zip(removal, range(steps), strict=False)]
        whole += len(taken) < steps
        store._db.close()
        store = opened(directory, "boot-1" if steps % 2 else "boot-2")
        assert sum(1 for _ in store.transfers.remove(PARTITION)) >= 1
        assert list(store.list_keys(PARTITION, None, None)) == []
        store.close()
        store = opened(directory)
        assert (store.applied_offsets(), store.transfers.marks()) == ({}, {})
        store.close()
    assert whole > 1

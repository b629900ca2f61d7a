"""A REAP entry on all stores: it leaves only its offset and, for a while, the clock of the reaped tombstone, however
often it is applied (R-REAP)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.repl.model.entry import Entry, EntryKind, decode_key_row, encode_key_row, make_entry
from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.keys import key_hash
from isthmus.repl.model.objects import TOMBSTONE, encode_with_summary, write
from isthmus.repl.model.vclock import actor_of, pack_counter
from isthmus.repl.store import reaped_keys as reaped
from isthmus.repl.store import row_codec
from isthmus.repl.store.leveldb import PLYVEL, LevelStore, OpenDatabase
from isthmus.repl.store.port import REAPED, PartitionStep, Store
from isthmus.repl.store.reaped_keys import ReapedKeys, decode_gone, encode_gone
from tests.simulation.world.disk import WorldDisk
from tests.support.memory_store import MemoryStore

UUID = b"east-cluster-016"
HASH = key_hash(b"b", b"k")


def level(directory: Path, boot_id: str = "boot", database: OpenDatabase = PLYVEL) -> Store:
    return LevelStore.open(
        directory,
        cluster_uuid=UUID,
        write_buffer_bytes=1_000_000,
        block_cache_bytes=1_000_000,
        boot_id=boot_id,
        database=database,
    )


@pytest.fixture(params=["level", "memory", "simulated"])
def store(request, memory_directory):
    if request.param == "memory":
        found = MemoryStore()
    else:
        database = WorldDisk().database if request.param == "simulated" else PLYVEL
        found = level(memory_directory / "store", database=database)
    yield found
    found.close()


def barrier(offset: int):
    return make_entry(EntryKind.BARRIER, 1, offset, request_id=b"", origin=UUID, time_ms=0)


def deleted(offset: int, previous: int = -1):
    """A tombstone of the key."""
    payload, summary = encode_with_summary(write(None, (), TOMBSTONE, (actor_of(UUID, 0), pack_counter(1, offset)), 5))
    row = encode_key_row(summary, offset)
    return make_entry(
        EntryKind.DATA, 1, offset, request_id=b"", origin=UUID, time_ms=5, key_hash=HASH, previous_offset=previous,
        bucket=b"b", key=b"k", row=row, payload=payload,
    )  # fmt: skip


def reap(offset: int, previous: int):
    return make_entry(
        EntryKind.REAP, 1, offset, request_id=b"", origin=UUID, time_ms=6, key_hash=HASH, previous_offset=previous,
        bucket=b"b", key=b"k",
    )  # fmt: skip


def test_nothing_is_left_of_a_reaped_key_but_the_offset_of_its_reap(store):
    """Object, key row, change row and listing are gone; a later write of the key is like its first one."""
    assert store.cursor(0, REAPED).entry_offset == -1
    store.write([PartitionStep(0, [barrier(0), deleted(1), reap(2, 1)])])
    assert store.object(0, b"b", b"k") is None
    assert store.key_row(0, HASH, b"b", b"k") is None
    assert store.changes(0, 0, 10) == []
    assert list(store.list_keys(0, None, None)) == []
    assert store.cursor(0, REAPED).entry_offset == 2
    store.write([PartitionStep(0, [deleted(3)])])
    assert [change.offset for change in store.changes(0, 0, 10)] == [3]
    store.write([PartitionStep(0, [reap(4, 3)])])
    assert store.changes(0, 0, 10) == []
    assert store.cursor(0, REAPED).entry_offset == 4


def test_a_reap_of_what_was_never_here_is_only_remembered(store):
    """It changes no other row, and its clock is remembered."""
    tombstone = deleted(1)
    gone = make_entry(
        EntryKind.REAP, 1, 2, request_id=b"", origin=UUID, time_ms=6, key_hash=key_hash(b"b", b"other"),
        bucket=b"b", key=b"other", row=tombstone.row,
    )  # fmt: skip
    store.write([PartitionStep(0, [barrier(0), tombstone, gone])])
    assert [change.offset for change in store.changes(0, 0, 10)] == [1]
    assert store.object(0, b"b", b"k") == tombstone.payload
    assert store.reaped_clocks(0) == {(b"b", b"other"): decode_key_row(tombstone.row).clock}
    assert store.cursor(0, REAPED).entry_offset == 2


@pytest.mark.parametrize(("give", "take"), [("level", "memory"), ("memory", "level")])
def test_the_offset_of_the_last_reap_is_part_of_the_transferred_state(give, take, memory_directory):
    """A transfer copies the offset of the last reap, below which a replica may lack a reap; a later leader needs it."""
    stores: dict[str, Callable[[str], Store]] = {
        "level": lambda n: level(memory_directory / n),
        "memory": lambda _: MemoryStore(),
    }
    source, target = stores[give]("a"), stores[take]("b")
    source.write([PartitionStep(0, [barrier(0), deleted(1), reap(2, 1)])])
    snapshot = source.transfers.snapshot(0)
    target.transfers.begin(0, empty=True)
    target.transfers.install_rows(0, snapshot.rows(0, 1_000).rows, 3, 1)
    target.transfers.install_state(0, snapshot.state(b"", 1_000).rows, first=True)
    target.transfers.finish(0, snapshot.end)
    snapshot.close()
    assert target.cursor(0, REAPED).entry_offset == 2
    for each in (source, target):
        each.close()


def test_a_replay_reaps_again(memory_directory):
    """After a power loss the entries since the floor are applied again, with the same result."""
    store = level(memory_directory / "store")
    entries = [barrier(0), deleted(1), reap(2, 1), deleted(3), reap(4, 3)]
    store.write([PartitionStep(0, entries)])
    store._db.close()
    again = level(memory_directory / "store", "other")
    assert again.needs_replay()
    again.write([PartitionStep(0, entries)])
    assert again.object(0, b"b", b"k") is None
    assert again.changes(0, 0, 10) == []
    again.close()


def reaped_keys(*numbers: int, start: int = 0) -> list[Entry]:
    """Entries that write, delete and reap keys of these numbers, from offset `start` on."""
    found = []
    for offset, number in zip(range(start, start + 2 * len(numbers), 2), numbers, strict=True):
        name = b"k%d" % number
        payload, summary = encode_with_summary(
            write(None, (), TOMBSTONE, (actor_of(UUID, 0), pack_counter(1, offset)), 5)
        )
        for kind, at, previous in ((EntryKind.DATA, offset, -1), (EntryKind.REAP, offset + 1, offset)):
            found.append(
                make_entry(
                    kind, 1, at, request_id=b"", origin=UUID, time_ms=5, key_hash=key_hash(b"b", name),
                    previous_offset=previous, bucket=b"b", key=name, row=encode_key_row(summary, offset),
                    payload=payload if kind is EntryKind.DATA else b"",
                )
            )  # fmt: skip
    return found


def clocks_of(entries: list[Entry]) -> dict[tuple[bytes, bytes], bytes]:
    """The clocks that the store should remember of the reaped keys of `entries`."""
    return {(e.bucket, e.key): decode_key_row(e.row).clock for e in entries if e.kind is EntryKind.REAP}


def test_the_clocks_of_reaped_keys_are_remembered_up_to_a_number(store, monkeypatch):
    """Both stores remember the last ones; for a key that was reaped twice, the clock of its later tombstone."""
    monkeypatch.setattr(reaped, "REMEMBERED_MAX", 3)
    assert store.reaped_clocks(0) == {}
    entries = reaped_keys(1, 2, 3, 1, 4, 5, 4)
    store.write([PartitionStep(0, entries[:5])])
    store.write([PartitionStep(0, entries[5:])])
    assert store.reaped_clocks(0) == clocks_of(entries[-6:])
    assert store.reaped_clocks(1) == {}
    names = [name for name, _ in state_of(store)]
    assert names == sorted(names)
    assert sum(b"gone" in name for name in names) == 3


def test_long_names_and_clocks_are_remembered_up_to_so_many_bytes(monkeypatch):
    """The oldest clocks are dropped first, whichever limit is reached."""
    monkeypatch.setattr(reaped, "REMEMBERED_BYTES_MAX", 100)
    keys = ReapedKeys()
    assert keys.add(1, b"b", b"k" * 39, b"c" * 10) == []
    assert keys.add(2, b"b", b"l" * 39, b"c" * 10) == []
    assert keys.add(5, b"b", b"m", b"") == [1]
    assert keys.add(9, b"b", b"k" * 60, b"c" * 40) == [2, 5, 9]
    assert keys.clocks == {}


def state_of(store: Store) -> list[tuple[bytes, bytes]]:
    """The rows of the transferred state that are not object rows."""
    snapshot = store.transfers.snapshot(0)
    found = row_codec.decode_state(snapshot.state(b"", 1_000_000).rows)
    snapshot.close()
    return found


@pytest.mark.parametrize("boot_id", ["boot", "another"])
def test_clocks_of_reaped_keys_survive_a_restart(memory_directory, boot_id, monkeypatch):
    """They survive a restart of the process, and of the machine, where a replay of entries that were not yet on disk
    gives the same rows."""
    monkeypatch.setattr(reaped, "REMEMBERED_MAX", 3)
    store, entries = level(memory_directory / "store"), reaped_keys(1, 2, 3, 4, 5)
    store.write([PartitionStep(0, entries[:6])])
    store.checkpoint()
    store.write([PartitionStep(0, entries[6:])])
    store._db.close()
    again = level(memory_directory / "store", boot_id)
    if again.needs_replay():
        again.write([PartitionStep(0, entries[6:])])
    assert again.needs_replay() == (boot_id != "boot")
    assert again.reaped_clocks(0) == clocks_of(entries[-6:])
    again.write([PartitionStep(0, reaped_keys(6, start=10))])
    assert again.reaped_clocks(0) == clocks_of(entries[-4:] + reaped_keys(6, start=10))
    assert sum(b"gone" in name for name, _ in state_of(again)) == 3
    again.close()


@pytest.mark.parametrize(("give", "take"), [("level", "memory"), ("memory", "level")])
def test_clocks_of_reaped_keys_are_part_of_the_transferred_state(give, take, memory_directory):
    """The receiver then remembers exactly the clocks of the sender."""
    stores: dict[str, Callable[[str], Store]] = {
        "level": lambda n: level(memory_directory / n),
        "memory": lambda _: MemoryStore(),
    }
    source, target = stores[give]("a"), stores[take]("b")
    entries = reaped_keys(1, 2, 3)
    source.write([PartitionStep(0, entries)])
    target.write([PartitionStep(0, reaped_keys(7))])
    snapshot = source.transfers.snapshot(0)
    target.transfers.begin(0, empty=False)
    target.transfers.install_rows(0, snapshot.rows(2, 1_000).rows, 6, 1)
    target.transfers.install_state(0, snapshot.state(b"", 10_000).rows, first=True)
    target.transfers.finish(0, snapshot.end)
    snapshot.close()
    assert target.reaped_clocks(0) == clocks_of(entries) == source.reaped_clocks(0)
    for each in (source, target):
        each.close()


def test_a_partition_that_is_removed_is_forgotten(store):
    """A later replica of it begins with no remembered clocks."""
    store.write([PartitionStep(0, reaped_keys(1))])
    for _ in store.transfers.remove(0):
        pass
    assert store.reaped_clocks(0) == {}
    assert state_of(store) == []


def test_a_store_of_a_release_without_the_memory_opens_and_learns(memory_directory):
    """The REAP entries of that release left no such rows, and those still in its log have no key row: no clocks are
    remembered for them."""
    old = level(memory_directory / "store")
    old.write([PartitionStep(0, [barrier(0), deleted(1), reap(2, 1)])])
    assert old.reaped_clocks(0) == {}
    old.close()
    new = level(memory_directory / "store")
    assert new.cursor(0, REAPED).entry_offset == 2
    new.write([PartitionStep(0, reaped_keys(1, start=3))])
    assert new.reaped_clocks(0) == clocks_of(reaped_keys(1, start=3))
    new.close()


def test_a_reaped_key_row_round_trips():
    """Names with zero bytes, empty clocks; a damaged length is refused."""
    for bucket, key, clock in ((b"b", b"k", b"clock"), (b"\0\1b", b"\0", b""), (b"b" * 300, b"\xff", b"\0" * 70_000)):
        assert decode_gone(encode_gone(bucket, key, clock)) == (bucket, key, clock)
    for damaged in (b"", b"\0\0", b"\0\0\0\7abc", b"\0\0\0\1abc"):
        with pytest.raises(Corruption):
            decode_gone(damaged)

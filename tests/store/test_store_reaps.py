"""A REAP entry on both stores: nothing of the key is left but the entry's offset, however often it is applied."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from repl.model.entry import EntryKind, encode_key_row, make_entry
from repl.model.keys import key_hash
from repl.model.objects import TOMBSTONE, seal, write
from repl.model.vclock import actor_of, pack_counter
from repl.store.leveldb import LevelStore
from repl.store.memory import MemoryStore
from repl.store.port import REAPED, PartitionStep, Store

UUID = b"east-cluster-016"
HASH = key_hash(b"b", b"k")


def level(directory: Path) -> Store:
    return LevelStore.open(
        directory, cluster_uuid=UUID, write_buffer_bytes=1_000_000, block_cache_bytes=1_000_000, boot_id="boot"
    )


@pytest.fixture(params=["level", "memory"])
def store(request, room):
    found = level(room / "store") if request.param == "level" else MemoryStore()
    yield found
    found.close()


def barrier(offset: int):
    return make_entry(EntryKind.BARRIER, 1, offset, request_id=b"", origin=UUID, time_ms=0)


def deleted(offset: int, previous: int = -1):
    """A tombstone of the key."""
    payload, summary = seal(write(None, (), TOMBSTONE, (actor_of(UUID, 0), pack_counter(1, offset)), 5))
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
    """Object, key row, change row and listing are without it; a later write of the key is a first one."""
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


@pytest.mark.parametrize(("give", "take"), [("level", "memory"), ("memory", "level")])
def test_the_offset_of_the_last_reap_goes_with_the_state_to_a_copy_that_is_far(give, take, room):
    """Whoever leads later knows below which offset a copy may lack a reap."""
    stores: dict[str, Callable[[str], Store]] = {"level": lambda n: level(room / n), "memory": lambda _: MemoryStore()}
    source, target = stores[give]("a"), stores[take]("b")
    source.write([PartitionStep(0, [barrier(0), deleted(1), reap(2, 1)])])
    snapshot = source.far.snapshot(0)
    target.far.begin(0, empty=True)
    target.far.install_rows(0, snapshot.rows(0, 1_000).rows, 3, 1)
    target.far.install_state(0, snapshot.state(b"", 1_000).rows, first=True)
    target.far.finish(0, snapshot.end)
    snapshot.close()
    assert target.cursor(0, REAPED).entry_offset == 2
    for each in (source, target):
        each.close()


def test_a_replay_reaps_again(room):
    """After a power loss the entries since the floor are applied once more, and come to the same."""
    store = level(room / "store")
    entries = [barrier(0), deleted(1), reap(2, 1), deleted(3), reap(4, 3)]
    store.write([PartitionStep(0, entries)])
    store._db.close()
    again = LevelStore.open(
        room / "store", cluster_uuid=UUID, write_buffer_bytes=1_000_000, block_cache_bytes=1_000_000, boot_id="other"
    )
    assert again.needs_replay()
    again.write([PartitionStep(0, entries)])
    assert again.object(0, b"b", b"k") is None
    assert again.changes(0, 0, 10) == []
    again.close()

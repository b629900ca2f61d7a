"""The repair of a key's damaged rows: only rows that were compared are overwritten, and only with the latest ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.model.entry import Entry, decode_key_row
from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.keys import key_hash
from isthmus.repl.store import row_codec, rows
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep, Store
from tests.simulation.world.disk import WorldDisk
from tests.support.entry_histories import History, open_store
from tests.support.memory_store import MemoryStore

PARTITION = 3


def applied(store: Store, entries: list[Entry]) -> None:
    store.write([PartitionStep(PARTITION, entries)])


def chunk_of(store: Store, key: bytes) -> bytes:
    """The rows of a key, as another replica gives them."""
    row = store.key_row(PARTITION, key_hash(b"b", key), b"b", key)
    assert row is not None
    snapshot = store.transfers.snapshot(PARTITION)
    found = snapshot.rows(decode_key_row(row).offset, 1).rows
    snapshot.close()
    return found


def put_key_row(store: Any, key: bytes, row: bytes | None) -> None:
    """Damage a key row, or take it away."""
    if isinstance(store, LevelStore):
        driver: Any = store._db
        name = rows.prefixes(PARTITION).key + rows.segment_name(key_hash(b"b", key) >> 44) + b"b\0\x01" + key
        assert driver.get(name) is not None
        driver.delete(name) if row is None else driver.put(name, row)
    elif row is None:
        del store._partitions[PARTITION].key_rows[b"b", key]
    else:
        store._partitions[PARTITION].key_rows[b"b", key] = row


@pytest.fixture(params=["level", "memory", "simulated"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Two replicas of 30 keys, each changed twice: a giver and a taker."""
    made: list[Store]
    if request.param == "memory":
        made = [MemoryStore(), MemoryStore()]
    else:
        simulated = {"database": WorldDisk().database} if request.param == "simulated" else {}
        made = [open_store(tmp_path / n, **simulated) for n in "ab"]
    history = History(PARTITION)
    entries = [history.put(b"b", b"%d" % (n % 30), b"x%d" % n) for n in range(60)]
    for store in made:
        applied(store, entries)
    yield made, history
    for store in made:
        store.close()


def same(giver: Store, taker: Store) -> bool:
    """True if both stores hold the same key rows, objects and changes."""
    mine, theirs = (list(store.key_rows(PARTITION, 0, 1 << 20)) for store in (giver, taker))
    objects = [[store.object(PARTITION, b"b", b"%d" % n) for n in range(30)] for store in (giver, taker)]
    changes = [store.changes(PARTITION, 0, 1_000) for store in (giver, taker)]
    return mine == theirs and objects[0] == objects[1] and changes[0] == changes[1]


@pytest.mark.parametrize("damaged", [b"\xc1 no row", None, "another offset"])
def test_a_damaged_row_is_what_it_was(pair: Any, damaged: Any) -> None:
    """For a key row that cannot be read, is missing, or names another key's offset: after the repair all rows equal
    those of the other replica, and no other key has lost its change row."""
    (giver, taker), _ = pair
    right = taker.key_row(PARTITION, key_hash(b"b", b"7"), b"b", b"7")
    assert right is not None
    if damaged == "another offset":
        assert right[-1] == 37
        damaged = right[:-1] + bytes((38,))
    put_key_row(taker, b"7", damaged)
    assert taker.transfers.mend(PARTITION, chunk_of(giver, b"7"), damaged, 60)
    assert taker.key_row(PARTITION, key_hash(b"b", b"7"), b"b", b"7") == right
    assert same(giver, taker)


def test_a_row_changed_since_is_not_repaired(pair: Any) -> None:
    """Nothing is written if the row differs from the one that was compared, if its offset is not applied here yet, or
    if the row is missing here and comes from a replica that has applied less (R-MEND)."""
    (giver, taker), history = pair
    chunk = chunk_of(giver, b"7")
    right = taker.key_row(PARTITION, key_hash(b"b", b"7"), b"b", b"7")
    assert not taker.transfers.mend(PARTITION, chunk, b"another", 60)
    assert not taker.transfers.mend(PARTITION, chunk, None, 60)
    newer = history.put(b"b", b"7", b"newer")
    applied(giver, [newer])
    assert not taker.transfers.mend(PARTITION, chunk_of(giver, b"7"), right, 61)
    assert taker.key_row(PARTITION, key_hash(b"b", b"7"), b"b", b"7") == right
    applied(taker, [newer])
    put_key_row(taker, b"7", None)
    assert not taker.transfers.mend(PARTITION, chunk, None, 60)
    assert taker.key_row(PARTITION, key_hash(b"b", b"7"), b"b", b"7") is None
    assert taker.transfers.mend(PARTITION, chunk_of(giver, b"7"), None, 61)
    assert same(giver, taker)


def test_a_far_replica_and_malformed_rows_are_refused(pair: Any) -> None:
    """A replica in state transfer gets its rows elsewhere, and a chunk must have exactly one key."""
    (giver, taker), _ = pair
    right = taker.key_row(PARTITION, key_hash(b"b", b"7"), b"b", b"7")
    with pytest.raises(Corruption, match="0 rows where one"):
        taker.transfers.mend(PARTITION, row_codec.encode([]), right, 60)
    with pytest.raises(Corruption, match="checksum"):
        taker.transfers.mend(PARTITION, b"nonsense", right, 60)
    taker.transfers.begin(PARTITION, empty=False)
    assert not taker.transfers.mend(PARTITION, chunk_of(giver, b"7"), right, 60)

"""Large objects in the store: reads of small rows do not read them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.store import rows
from isthmus.repl.store.leveldb import LevelStore, plyvel
from tests.support.entry_histories import START_MS, History, open_store

PARTITIONS = (0, 1, 7)
BYTES = 300_000


def filled(directory: Path) -> list[History]:
    """A closed store of several tables: each has a large object of every partition between small ones."""
    histories = [History(partition) for partition in PARTITIONS]
    for n in range(4):
        store = open_store(directory)
        for history in histories:
            begun = len(history.entries)
            for at in range(3):
                time_ms = START_MS + n * 60_000 + at * 1_000
                history.put(b"b", b"%d-%d" % (n, at), b"small", time_ms=time_ms)
            history.put(b"b", b"large-%d" % n, b"%d" % n * BYTES, time_ms=START_MS + n * 60_000 + 5_000)
            store.write([history.step(begun)])
        store.checkpoint()
        store.close()
    open_store(directory).close()  # what the last log has becomes a table
    return histories


def damage_large_objects(directory: Path) -> None:
    """Change a byte in the middle of each large object in each table."""
    found = 0
    for table in (directory / "rows").glob("*.ldb"):
        data = bytearray(table.read_bytes())
        for n in range(4):
            at = -1
            while (at := data.find(b"%d" % n * (BYTES // 2), at + 1)) >= 0:
                data[at + BYTES // 4] ^= 0xFF
                found += 1
                at += BYTES
        table.write_bytes(data)
    assert found >= 4 * len(PARTITIONS)


def read_small_rows(store: LevelStore, histories: list[History]) -> None:
    """Every read of small rows, in every partition: the change index, key rows, marks, single rows."""
    for history in histories:
        partition = history.partition
        assert len(store.changes(partition, 0, 1_000)) == 16
        assert len(store.changes(partition, 13, 1_000)) == 3
        assert len(list(store.key_rows(partition, 0, SEGMENT_COUNT))) == 16
        for offset in (0, 5, 15):
            below, above = store.seconds_around(partition, offset)
            assert below is not None
            assert above is not None
        for second in range(0, 200, 9):
            store.offset_at(partition, START_MS + second * 1_000)
        store.offset_at(partition, START_MS - 1)


def test_no_read_of_small_rows_reads_a_large_object(tmp_path: Path) -> None:
    """With every large object damaged on disk, all reads of other rows succeed: none checks a block that has one. Only
    the objects themselves cannot be read."""
    histories = filled(tmp_path / "store")
    damage_large_objects(tmp_path / "store")
    store = open_store(tmp_path / "store")
    read_small_rows(store, histories)
    for history in histories:
        with pytest.raises(Corruption):
            store.object(history.partition, b"b", b"large-2")
    store.close()


def test_a_store_without_separators_is_read_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database of a version that wrote no separator opens, answers every read, and takes writes, with separators from
    then on."""
    with monkeypatch.context() as old:
        old.setattr(rows, "LARGE_OBJECT_BYTES", 1 << 40)
        histories = filled(tmp_path / "store")
    assert rows.SEPARATOR_KEY not in names_in(tmp_path / "store", tmp_path / "copy")
    store = open_store(tmp_path / "store")
    read_small_rows(store, histories)
    for history in histories:
        assert b"2" * BYTES in (store.object(history.partition, b"b", b"large-2") or b"")
        history.put(b"b", b"new", b"n" * BYTES)
        store.write([history.step(16)])
    store.close()
    assert rows.SEPARATOR_KEY in names_in(tmp_path / "store", tmp_path / "copy2")


def test_small_objects_bring_no_separator(tmp_path: Path) -> None:
    """A store without large objects has no such row."""
    history = History(0)
    store = open_store(tmp_path / "store")
    history.put(b"b", b"k", b"v" * 1_000)
    store.write([history.step(0)])
    store.close()
    assert rows.SEPARATOR_KEY not in names_in(tmp_path / "store", tmp_path / "copy")


def names_in(directory: Path, copy: Path) -> set[bytes]:
    """All names of a closed store's rows, read in a copy."""
    shutil.copytree(directory / "rows", copy)
    db = plyvel.DB(str(copy))
    try:
        return set(db.iterator(include_value=False))
    finally:
        db.close()

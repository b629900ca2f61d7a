"""The filter of absent keys: never wrong, and without a look-up in LevelDB where possible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.keys import key_hash
from isthmus.repl.store import key_filter, rows
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from tests.contract.test_store_row_repair import chunk_of, put_key_row
from tests.support.entry_histories import CLUSTER, History, chunks, open_store


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads seven names at a time when a store is opened, and after a checkpoint."""
    monkeypatch.setattr(key_filter, "LEARN_ROWS", 7)


class CountingDatabase:
    """Counts look-ups in LevelDB."""

    def __init__(self, store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        ask = store._source.get

        def get(name: bytes) -> bytes | None:
            self.count += 1
            return ask(name)

        monkeypatch.setattr(store._source, "get", get)


def row_of(store: LevelStore, key: bytes, partition: int = 3) -> bytes | None:
    return store.key_row(partition, key_hash(b"b", key), b"b", key)


def written(store: LevelStore, count: int) -> History:
    """Keys k0, k1 ... of the bucket b."""
    history = History()
    for n in range(count):
        history.put(b"b", b"k%d" % n, b"x")
    for step in chunks(history, 10):
        store.write([step])
    return history


def absent(count: int) -> Iterator[bytes]:
    """Keys that are never written."""
    return (b"absent-%d" % n for n in range(count))


def test_in_a_new_store_absent_keys_cost_no_lookup(memory_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All written keys are found; hardly any absent one is looked up."""
    store = open_store(memory_directory / "store")
    written(store, 50)
    assert all(row_of(store, b"k%d" % n) for n in range(50))
    looks = CountingDatabase(store, monkeypatch)
    assert not any(row_of(store, key) for key in absent(200))
    assert looks.count < 3
    store.close()


def test_a_reopened_store_proves_nothing_until_it_has_read_all_names(
    memory_directory: Path, monkeypatch: pytest.MonkeyPatch, small_slices: None
) -> None:
    """Before, every key is looked up, and found; afterwards absent ones are not looked up."""
    store = open_store(memory_directory / "store")
    history = written(store, 50)
    store.close()
    store = open_store(memory_directory / "store")
    looks = CountingDatabase(store, monkeypatch)
    for slices in range(1, 8):
        assert not any(row_of(store, key) for key in absent(20))
        assert looks.count == 20 * slices
        assert all(row_of(store, entry.key) == entry.row for entry in history.entries)
        looks.count = 20 * slices
        store.checkpoint()
    looks.count = 0
    assert not any(row_of(store, key) for key in absent(200))
    assert looks.count < 3
    assert all(row_of(store, entry.key) == entry.row for entry in history.entries)
    store.close()


@pytest.mark.parametrize("seed", range(10))
def test_keys_written_during_the_scan_are_found(memory_directory: Path, small_slices: None, seed: int) -> None:
    """Keys are written, overwritten, deleted and written again, on both sides of the position of the scan, in a store
    that is reopened now and then: every look-up agrees with a plain dictionary."""
    chance = Random(seed)
    store = open_store(memory_directory / "store")
    here: dict[tuple[int, bytes], tuple[int, bytes]] = {}
    histories = {p: History(p) for p in (1, 2, 3)}
    done = dict.fromkeys(histories, 0)
    for _ in range(120):
        partition = chance.choice((1, 2, 3))
        history, key = histories[partition], b"k%d" % chance.randrange(40)
        last = here.get((partition, key))
        if last is not None and chance.random() < 0.4:
            history.latest.pop((b"b", key))
            history.entries.append(reaped(len(history.entries), history.epoch, key, last[0]))
            del here[partition, key]
        else:
            entry = history.put(b"b", key, b"x")
            here[partition, key] = entry.offset, entry.row
        store.write([history.step(done[partition])])
        done[partition] = len(history.entries)
        if chance.random() < 0.2:
            store.checkpoint()
        if chance.random() < 0.05:
            store.close()
            store = open_store(memory_directory / "store")
        for p in histories:
            for n in range(0, 40, 3):
                name = b"k%d" % n
                assert row_of(store, name, p) == here.get((p, name), (0, None))[1]
    store.close()


def reaped(offset: int, epoch: int, key: bytes, previous: int) -> Entry:
    """The entry that reaps a key."""
    return make_entry(
        EntryKind.REAP,
        epoch,
        offset,
        request_id=b"",
        origin=CLUSTER,
        time_ms=0,
        key_hash=key_hash(b"b", key),
        previous_offset=previous,
        bucket=b"b",
        key=key,
    )


def test_rows_of_another_node_are_found_at_once(memory_directory: Path) -> None:
    """Rows of a state transfer come without entries; they are found during the transfer, and after its end."""
    giver, taker = open_store(memory_directory / "giver"), open_store(memory_directory / "taker")
    history = written(giver, 30)
    snapshot = giver.transfers.snapshot(3)
    taker.transfers.begin(3, empty=False)
    taker.transfers.install_rows(3, snapshot.rows(0, 1 << 20).rows, 30, 1)
    assert all(row_of(taker, entry.key) == entry.row for entry in history.entries)
    taker.transfers.install_state(3, snapshot.state(b"", 1 << 20).rows, first=True)
    taker.transfers.finish(3, snapshot.end)
    assert all(row_of(taker, entry.key) == entry.row for entry in history.entries)
    snapshot.close()
    for store in (giver, taker):
        store.close()


def test_a_repaired_row_is_found(memory_directory: Path) -> None:
    """A key row that was missing when the names were read is found once another replica has restored it."""
    giver, taker = open_store(memory_directory / "giver"), open_store(memory_directory / "taker")
    for store in (giver, taker):
        history = written(store, 30)
    put_key_row(taker, b"k7", None)
    taker.close()
    taker = open_store(memory_directory / "taker")
    assert row_of(taker, b"k7") is None
    assert taker.transfers.mend(3, chunk_of(giver, b"k7"), None, 30)
    assert row_of(taker, b"k7") == history.entries[7].row
    for store in (giver, taker):
        store.close()


def test_a_store_of_too_many_keys_is_not_read_through(
    memory_directory: Path, monkeypatch: pytest.MonkeyPatch, small_slices: None
) -> None:
    """Beyond the limit the names are not read, and every key is looked up and found."""
    monkeypatch.setattr(key_filter, "LEARNED_MAX", 20)
    store = open_store(memory_directory / "store")
    history = written(store, 50)
    store.close()
    store = open_store(memory_directory / "store")
    for _ in range(20):
        store.checkpoint()
    looks = CountingDatabase(store, monkeypatch)
    assert all(row_of(store, entry.key) == entry.row for entry in history.entries)
    assert not any(row_of(store, key) for key in absent(20))
    assert looks.count == 70
    store.close()


def test_names_that_cannot_be_read_end_nothing(
    memory_directory: Path, monkeypatch: pytest.MonkeyPatch, small_slices: None
) -> None:
    """A damaged table is reported to its readers: a checkpoint does not fail, and nothing is taken for absent."""
    store = open_store(memory_directory / "store")
    history = written(store, 10)
    store.close()
    store = open_store(memory_directory / "store")
    read = store._source.names

    def names(start: bytes, stop: bytes) -> Iterator[bytes]:
        if not start.startswith(rows.KEY_TAG):
            yield from read(start, stop)
            return
        yield start + b"\0"
        raise Corruption("a table cannot be read")

    with monkeypatch.context() as damage:
        damage.setattr(store._source, "names", names)
        store.checkpoint()
        store.write([PartitionStep(3, [history.put(b"b", b"later", b"x")])])
        store.checkpoint()
    store.checkpoint()
    assert all(row_of(store, entry.key) == entry.row for entry in history.entries)
    looks = CountingDatabase(store, monkeypatch)
    assert row_of(store, b"absent") is None
    assert looks.count == 1
    store.close()

"""The LevelDB of simulated nodes answers as LevelDB does."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from isthmus.node.backup.store_copy import StoreCopier
from isthmus.repl.store.leveldb import plyvel
from tests.simulation.world import leveldb
from tests.simulation.world.disk import WorldDisk
from tests.support.samples import seeds

NAMES = (b"\0", b"\0\0", b"a", b"a\0", b"a\xff", b"b", b"c", b"\xff", b"\xff\xff")

ACTS = {
    "write": 6, "write many": 3, "get": 2, "open a snapshot": 2, "read a snapshot": 4, "close a snapshot": 1,
    "iterate": 2, "iterate over a snapshot": 2, "go on": 6, "seek": 2, "close an iterator": 1, "compact": 0.2,
    "open again": 0.3,
}  # fmt: skip
"""Act -> how often it is done."""


def drawn(random: Random) -> tuple[str, Any]:
    """An act, and what it needs."""
    (act,) = random.choices(list(ACTS), list(ACTS.values()))
    name, which = random.choice(NAMES), random.randrange(4)
    match act:
        case "write":
            values = (None, None, b"", b"1", b"2", b"x" * 30_000)
            return act, [(random.choice(NAMES), random.choice(values)) for _ in range(random.randrange(8))]
        case "write many":
            return act, (random.choice(b"ab\xff"), random.choice((None, b"3", b"4")))
        case "iterate":
            return act, (name, random.random() < 0.5)
        case "go on":
            return act, (which, random.choice((1, 2, 20, 60)))
        case "open again":
            return act, random.random() < 0.5
        case "get":
            return act, name
        case _:
            return act, (which, name)


class User:
    """One user of a database, whose answers are noted."""

    def __init__(self, opener: Any, directory: Path) -> None:
        self.opener = opener
        self.directory = str(directory)
        self.snapshots: list[Any] = []
        self.iterators: list[Any] = []
        self.db = self.opened(True)

    def opened(self, paranoid: bool) -> Any:
        return self.opener(
            self.directory, create_if_missing=True, paranoid_checks=paranoid, write_buffer_size=1, compression=None
        )

    def do(self, act: str, value: Any) -> Any:
        """The answer to an act."""
        db = self.db
        match act:
            case "write":
                with db.write_batch() as batch:
                    for name, written in value:
                        batch.delete(name) if written is None else batch.put(name, written)
            case "write many":
                first, written = value
                with db.write_batch() as batch:
                    for name in (bytes([first, n]) for n in range(0, 256, 3)):
                        batch.delete(name) if written is None else batch.put(name, written)
            case "get":
                return db.get(value, verify_checksums=True)
            case "open a snapshot":
                if len(self.snapshots) < 4:
                    self.snapshots.append(db.snapshot())
            case "iterate":
                start, include_value = value
                if len(self.iterators) < 4:
                    self.iterators.append(
                        db.iterator(start=start, include_value=include_value, verify_checksums=True, fill_cache=False)
                    )
            case "compact":
                db.compact_range(start=b"\xff\xff", stop=b"\xff\xff\xff")
            case "open again":
                for each in (*self.iterators, *self.snapshots):
                    each.close()
                self.iterators.clear()
                self.snapshots.clear()
                db.close()
                self.db = self.opened(value)
            case "close a snapshot" if self.snapshots:
                self.snapshots.pop(value[0] % len(self.snapshots)).close()
            case "close an iterator" if self.iterators:
                self.iterators.pop(value[0] % len(self.iterators)).close()
            case "read a snapshot" if self.snapshots:
                return self.snapshots[value[0] % len(self.snapshots)].get(value[1], verify_checksums=True)
            case "iterate over a snapshot" if self.snapshots and len(self.iterators) < 4:
                self.iterators.append(self.snapshots[value[0] % len(self.snapshots)].iterator(start=value[1]))
            case "go on" if self.iterators:
                return [next(self.iterators[value[0] % len(self.iterators)], None) for _ in range(value[1])]
            case "seek" if self.iterators:
                iterator = self.iterators[value[0] % len(self.iterators)]
                iterator.seek(value[1])
                return next(iterator, None)
        return None

    def end(self) -> list[tuple[bytes, bytes]]:
        """All rows, at the end."""
        self.do("open again", True)
        with self.db.iterator() as found:
            rows = list(found)
        self.db.close()
        return rows


@pytest.mark.parametrize("seed", seeds(range(60)))
def test_every_answer_is_leveldbs(seed: int, memory_directory: Path) -> None:
    """The same random batches, reads, snapshots, iterators, compactions and restarts give the same answers and leave
    the same rows as in LevelDB."""
    random = Random(seed)
    real = User(plyvel.DB, memory_directory / "real")
    simulated = User(WorldDisk().database, memory_directory / "simulated")
    try:
        for number in range(400):
            act, value = drawn(random)
            assert simulated.do(act, value) == real.do(act, value), (number, act)
    finally:
        rows = real.end()
    assert simulated.end() == rows


def failure(action: Any) -> tuple[type, bytes]:
    """The driver's error."""
    with pytest.raises(plyvel.Error) as error:
        action()
    return type(error.value), error.value.args[0]


def test_refusals_are_leveldbs(memory_directory: Path) -> None:
    """A database that is not there, one that is open, and one whose MANIFEST is gone are refused with LevelDB's error
    and words."""
    answers = []
    place = memory_directory / "db"
    for opener in (plyvel.DB, WorldDisk().database):
        shutil.rmtree(place, ignore_errors=True)
        found = [failure(lambda opener=opener: opener(str(place)))]
        db = opener(str(place), create_if_missing=True)
        found.append(failure(lambda opener=opener: opener(str(place))))
        db.close()
        (manifest,) = place.glob("MANIFEST-*")
        manifest.unlink()
        kind, words = failure(lambda opener=opener: opener(str(place)))
        found.append((kind, words.split(b":")[:2]))
        answers.append(found)
    assert answers[0] == answers[1]


def test_a_closed_database_serves_nothing(memory_directory: Path) -> None:
    """After `close`, what was opened on a database raises RuntimeError, as plyvel's does, and `close` may be called
    again."""
    for opener in (plyvel.DB, WorldDisk().database):
        db = opener(str(memory_directory / opener.__name__), create_if_missing=True)
        batch, iterator, snapshot = db.write_batch(), db.iterator(), db.snapshot()
        db.close()
        for action in (
            lambda db=db: db.get(b"a"), db.write_batch, db.iterator, db.snapshot, batch.write, iterator.__next__,
            lambda iterator=iterator: iterator.seek(b"a"), lambda snapshot=snapshot: snapshot.get(b"a"),
        ):  # fmt: skip
            with pytest.raises(RuntimeError):
                action()
        for each in (iterator, snapshot, db):
            each.close()


def test_a_transaction_that_raises_writes_nothing(memory_directory: Path) -> None:
    """With `transaction` a batch is dropped when its block raises, without it is written, as in plyvel."""
    for opener in (plyvel.DB, WorldDisk().database):
        db = opener(str(memory_directory / opener.__name__), create_if_missing=True)
        for transaction, expected in ((True, None), (False, b"1")):
            with suppress(KeyError), db.write_batch(transaction=transaction) as batch:
                batch.put(b"a", b"1")
                raise KeyError
            assert db.get(b"a") == expected
        db.close()


def filled(disk: WorldDisk, place: Path, count: int = 20) -> list[int]:
    """A database of `count` batches of one row; the length of its log after each."""
    db = disk.database(str(place), create_if_missing=True)
    lengths = []
    for n in range(count):
        db.put(b"%03d" % n, b"x" * 100)
        lengths.append(max(place.glob("*.log")).stat().st_size)
    db.close()
    return lengths


def rows_of(disk: WorldDisk, place: Path, *, strict: bool) -> list[bytes]:
    """The names of all rows."""
    db = disk.database(str(place), paranoid_checks=strict)
    with db.iterator(include_value=False) as names:
        found = list(names)
    db.close()
    return found


def test_a_log_that_is_cut_off_ends_before_the_torn_record(memory_directory: Path) -> None:
    """For a log cut at any byte, also a strict open finds exactly the batches that are whole."""
    disk, place, copy = WorldDisk(), memory_directory / "db", memory_directory / "copy"
    lengths = filled(disk, place, 5)
    for cut in range(lengths[-1] + 1):
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(place, copy)
        (log,) = copy.glob("*.log")
        os.truncate(log, cut)
        assert len(rows_of(disk, copy, strict=True)) == sum(length <= cut for length in lengths), cut


def test_damage_within_a_log_stops_a_strict_open_and_costs_another_one_batch(memory_directory: Path) -> None:
    """A byte that changed in the middle of a log raises CorruptionError; without strict checks the other batches are
    found, and after that the database opens strictly."""
    disk, place = WorldDisk(), memory_directory / "db"
    lengths = filled(disk, place)
    (log,) = place.glob("*.log")
    data = bytearray(log.read_bytes())
    data[lengths[6] + 60] ^= 1
    log.write_bytes(data)
    with pytest.raises(plyvel.CorruptionError):
        rows_of(disk, place, strict=True)
    expected = [b"%03d" % n for n in range(20) if n != 7]
    assert rows_of(disk, place, strict=False) == expected
    assert rows_of(disk, place, strict=True) == expected


def test_a_missing_table_is_noticed(memory_directory: Path) -> None:
    """A database without the table that its MANIFEST names is corrupt, and never opens with a part of its rows."""
    disk, place = WorldDisk(), memory_directory / "db"
    filled(disk, place)
    db = disk.database(str(place))
    db.compact_range()
    db.close()
    (table,) = place.glob("*.ldb")
    table.unlink()
    disk.forget(place)
    with pytest.raises(plyvel.CorruptionError, match="missing files"):
        rows_of(disk, place, strict=False)


def test_the_files_of_a_database_stay_few(memory_directory: Path) -> None:
    """However often it is opened and written, a database has one table, some logs and one MANIFEST, and their size
    follows that of the rows."""
    disk, place = WorldDisk(), memory_directory / "db"
    for n in range(12):
        db = disk.database(str(place), create_if_missing=True, write_buffer_size=1)
        for _ in range(40):
            db.put(b"%d" % (n % 3), b"x" * 20_000)
        db.close()
        files = os.listdir(place)
        assert len(files) <= leveldb.LOGS_MAX + 4, files
        assert sum((place / name).stat().st_size for name in files) < 1_000_000


def test_a_copy_made_while_it_is_written_has_all_rows(memory_directory: Path) -> None:
    """The product's copier of a store's database finds CURRENT, MANIFEST, tables and logs; the copy has every row that
    was written before it ended, also where a compaction ran between its steps."""
    disk, place, copy = WorldDisk(), memory_directory / "db", memory_directory / "copy"
    db = disk.database(str(place), create_if_missing=True)
    for n in range(100):
        db.put(b"%03d" % n, b"x")
    db.compact_range()
    copier = StoreCopier(place, copy, lambda _: None)
    copier.copy_tables()
    for n in range(100, 200):
        db.put(b"%03d" % n, b"x")
    db.compact_range()
    for n in range(200, 210):
        db.put(b"%03d" % n, b"x")
    copier.cut()
    assert rows_of(disk, copy, strict=True) == [b"%03d" % n for n in range(210)]
    db.close()

"""A store without descriptors, inodes or space: what could not begin is done later; after what failed half-way
LevelDB is opened again. A broken disk is final."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.model.errors import LocalFault, StorageShort
from isthmus.repl.shortage import NO_DESCRIPTORS, SHORTAGES
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store import leveldb
from isthmus.repl.store.checkpoint import Disk
from isthmus.repl.store.leveldb import LevelDbView, LevelStore, PatientSource, RowChanges, creation_shortage
from tests.support.entry_histories import History, open_store
from tests.support.few_descriptors import no_descriptor_left

ENTRIES = 60
VALUE = bytes(20_000)
"""Four of them fill a write buffer of 64 KB, and LevelDB begins another log."""


def history_of_large_values() -> History:
    """Entries of partition 3."""
    history = History()
    for n in range(ENTRIES):
        history.put(b"b", b"%d" % n, VALUE)
    return history


def write_until_short(store: LevelStore, history: History) -> tuple[int, Any]:
    """Write entries one by one until LevelDB needs another file; returns the offset and the prepared batch."""
    for at in range(ENTRIES):
        prepared = store.prepare([history.step(at, at + 1)])
        try:
            store.commit(prepared, patient=False)
        except StorageShort:
            return at, prepared
    raise AssertionError("LevelDB began no other log")


def test_a_write_that_needs_a_file_is_written_once_one_can_be_created(memory_directory: Path) -> None:
    """Nothing of the batch is written, the store says what it waits for, and the same batch is written later: the rows
    are whole, also for the next process (R-SHORT)."""
    history = history_of_large_values()
    store = open_store(memory_directory / "store", write_buffer_bytes=65_536)
    with no_descriptor_left():
        at, prepared = write_until_short(store, history)
        assert store.shortage == "the store cannot create a file: Too many open files"
        assert store.applied(3).offset == at
        with pytest.raises(StorageShort):
            store.commit(prepared, patient=False)
    store.commit(prepared)
    assert store.shortage == ""
    for later in range(at + 1, ENTRIES):
        store.write([history.step(later, later + 1)])
    store.close()
    again = open_store(memory_directory / "store", write_buffer_bytes=65_536)
    assert again.applied(3).offset == ENTRIES
    assert all(again.object(3, b"b", b"%d" % n) == VALUE for n in range(ENTRIES))
    again.close()


def test_a_patient_write_waits_for_its_file(memory_directory: Path) -> None:
    """As the applier's thread does, until there is a descriptor."""
    history = history_of_large_values()
    store = open_store(memory_directory / "store", write_buffer_bytes=65_536)
    with no_descriptor_left():
        at, prepared = write_until_short(store, history)
        writing = threading.Thread(target=store.commit, args=(prepared,))
        writing.start()
        writing.join(0.6)
        assert writing.is_alive()
    writing.join(20)
    assert not writing.is_alive()
    assert store.applied(3).offset == at + 1
    store.close()


def test_a_store_that_closes_waits_no_longer(memory_directory: Path) -> None:
    """The write that waited raises, and the next process finds what was written before it."""
    history = history_of_large_values()
    store = open_store(memory_directory / "store", write_buffer_bytes=65_536)
    raised: list[Exception] = []
    with no_descriptor_left():
        at, prepared = write_until_short(store, history)

        def commit() -> None:
            try:
                store.commit(prepared)
            except StorageShort as error:
                raised.append(error)

        writing = threading.Thread(target=commit)
        writing.start()
        writing.join(0.3)
        assert writing.is_alive()
        store.closing.set()
        writing.join(20)
    assert len(raised) == 1
    store.close()
    again = open_store(memory_directory / "store")
    assert again.applied(3).offset == at
    again.close()


class FaultyBatch:
    """A batch of LevelDB that is refused while `faulty.fails`; half of it may be in LevelDB's log then."""

    def __init__(self, faulty: FaultyDatabase, batch: Any) -> None:
        self._faulty = faulty
        self.batch = batch
        self.put, self.delete, self.clear = batch.put, batch.delete, batch.clear
        self.approximate_size = batch.approximate_size

    def append(self, source: FaultyBatch) -> None:
        self.batch.append(source.batch)

    def write(self) -> None:
        if self._faulty.broken:
            raise leveldb.plyvel.IOError(self._faulty.broken)
        if self._faulty.opener.fails:
            self._faulty.broken = self._faulty.opener.fails
            self._faulty.opener.tear()
            raise leveldb.plyvel.IOError(self._faulty.broken)
        if (gate := self._faulty.opener.gate) is not None:
            self._faulty.opener.waits.set()
            gate.wait(20)
        self.batch.write()


class FaultyDatabase:
    """LevelDB itself, which repeats its first error until it is opened again, as LevelDB does."""

    def __init__(self, opener: Opener, db: Any) -> None:
        self.opener = opener
        self.broken = b""
        self._db = db
        self.get, self.iterator, self.snapshot, self.close = db.get, db.iterator, db.snapshot, db.close
        self.get_property, self.compact_range = db.get_property, db.compact_range

    def write_batch(self, **options: Any) -> Any:
        batch = self._db.write_batch(**options)
        return batch if options else FaultyBatch(self, batch)


class Opener:
    """Opens LevelDB; with `torn`, a failed write leaves half a record in LevelDB's log."""

    fails = b""
    torn = False
    opened = 0
    gate: threading.Event | None = None
    """A write waits for this, and sets `waits` meanwhile."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def __call__(self, name: str, **options: Any) -> FaultyDatabase:
        if self.fails:
            raise leveldb.plyvel.IOError(self.fails)
        self.directory = Path(name)
        self.opened += 1
        return FaultyDatabase(self, leveldb.PLYVEL(name, **options))

    def tear(self) -> None:
        """Leave half a record at the end of the newest log."""
        if self.torn:
            newest = max(self.directory.glob("*.log"))
            with newest.open("ab") as file:
                file.write(b"\x01\x02\x03\x04\xff\x00\x01half a record")


def store_on(opener: Opener, directory: Path, disk: Disk | None = None) -> LevelStore:
    """A store whose database `opener` opens."""
    return open_store(directory / "store", write_buffer_bytes=65_536, database=opener, disk=disk)


@pytest.mark.parametrize("torn", [True, False], ids=["half a record", "background error"])
@pytest.mark.parametrize("number", sorted(SHORTAGES), ids=lambda number: errno.errorcode[number])
def test_leveldb_is_opened_again_after_a_shortage_in_its_own_work(
    number: int, torn: bool, memory_directory: Path
) -> None:
    """LevelDB repeats the error of a write or of its background work at each write: the store says what is short, reads
    go on, and once the disk takes files it closes LevelDB, opens it again, and writes the batch that waited, and one
    that was prepared. All rows are there, for a snapshot of before they are refused, and for the next process
    (R-SHORT)."""
    opener, disk, history = Opener(), ShortDisk(), history_of_large_values()
    opener.torn = torn
    store = store_on(opener, memory_directory, disk)
    store.write([history.step(0, 10)])
    snapshot, scan = store.transfers.snapshot(3), store.key_rows(3, 0, 1 << 20)
    next(scan)
    what = "000004.log" if torn else "000009.ldb"
    if torn:
        what = max((memory_directory / "store" / "rows").glob("*.log")).name
    opener.fails = f"IO error: {memory_directory}/store/rows/{what}: {os.strerror(number)}".encode()
    disk.fails, disk.number = "probe", number
    prepared = store.prepare([history.step(10, 11)])
    with pytest.raises(StorageShort, match=os.strerror(number)):
        store.commit(prepared, patient=False)
    assert os.strerror(number) in store.shortage
    assert not store.takes_at_once(prepared)
    with pytest.raises(StorageShort):
        store.checkpoint()
    assert store.object(3, b"b", b"9") == VALUE
    assert snapshot.object(b"b", b"9") == VALUE
    disk.fails = ""
    with pytest.raises(StorageShort, match="cannot be opened again"):  # it fills up between the trial and the open
        store.checkpoint()
    with pytest.raises(StorageShort):
        store.object(3, b"b", b"9")
    with pytest.raises(StorageShort):
        store.prepare([history.step(11, 12)])
    opener.fails = b""
    store.commit(prepared)
    assert (store.shortage, opener.opened) == ("", 2)
    assert store.object(3, b"b", b"10") == VALUE
    for read in (lambda: snapshot.object(b"b", b"9"), lambda: next(scan)):
        with pytest.raises(StorageShort):
            read()
    snapshot.close()
    scan.close()
    for at in range(11, ENTRIES):
        store.write([history.step(at, at + 1)])
    store.checkpoint()
    store.close()
    again = open_store(memory_directory / "store")
    assert again.applied(3).offset == ENTRIES
    assert all(again.object(3, b"b", b"%d" % n) == VALUE for n in range(ENTRIES))
    again.close()


def test_leveldb_is_opened_again_beside_its_readers(memory_directory: Path) -> None:
    """Threads that read while it is closed get a row, or StorageShort, and nothing crashes (R-SHORT)."""
    opener, history = Opener(), history_of_large_values()
    store = store_on(opener, memory_directory)
    store.write([history.step(0, 20)])
    wrong: list[object] = []
    stop = threading.Event()

    def reads() -> None:
        while not stop.is_set():
            try:
                if store.object(3, b"b", b"7") != VALUE or len(list(store.key_rows(3, 0, 1 << 20))) < 20:
                    wrong.append("rows are missing")
            except StorageShort:
                pass
            except Exception as error:  # noqa: BLE001 - the test fails with it
                wrong.append(error)

    threads = [threading.Thread(target=reads) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for at in range(20, 40):
            opener.fails = f"IO error: {memory_directory}/rows/000009.ldb: No space left on device".encode()
            prepared = store.prepare([history.step(at, at + 1)])
            with pytest.raises(StorageShort):
                store.commit(prepared, patient=False)
            opener.fails = b""
            store.commit(prepared)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    assert wrong == []
    assert opener.opened == 21
    store.close()


def test_a_batch_of_the_event_loop_waits_for_no_thread(memory_directory: Path) -> None:
    """While another thread writes, after it has opened LevelDB again, such a batch is refused at once, which is no
    shortage, and written later."""
    opener, history = Opener(), history_of_large_values()
    store = store_on(opener, memory_directory)
    store.write([history.step(0, 1)])
    opener.fails = f"IO error: {memory_directory}/rows/000009.ldb: No space left on device".encode()
    first = store.prepare([history.step(1, 2)])
    with pytest.raises(StorageShort):
        store.commit(first, patient=False)
    opener.fails = b""
    opener.gate = threading.Event()
    thread = threading.Thread(target=lambda: store.write_batch(RowChanges()))
    thread.start()
    opener.waits.wait(20)
    try:
        with pytest.raises(StorageShort, match="a thread writes"):
            store.commit(first, patient=False)
    finally:
        opener.gate.set()
        thread.join(20)
    assert store.shortage == ""
    store.commit(first, patient=False)
    assert store.applied(3).offset == 2
    store.close()


@pytest.mark.parametrize("short", ["next", "send"])
def test_a_scan_that_was_to_skip_goes_on_where_it_was_sent(short: str) -> None:
    """A state transfer's scan that meets a closed database begins again behind its last row, or at the row that it was
    sent to, and no earlier."""
    names = [b"a", b"b", b"c", b"d"]
    begun: list[bytes] = []

    class View:
        """Scans of the four rows; the first one ends at its second step, since the database is closed."""

        def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], bytes | None, None]:
            """See Source."""
            begun.append(start)
            while start < stop:
                row = next(name for name in names if name >= start)
                target = yield row, b""
                if len(begun) == 1:
                    raise StorageShort("made up by a test")
                start = row + b"\0" if target is None else target

    class Open(threading.Event):
        """The store is not closing, and pauses take no time."""

        def wait(self, timeout: float | None = None) -> bool:
            """See threading.Event."""
            return False

    source = PatientSource(View(), Open())  # type: ignore[arg-type]
    scan = source.scan(b"a", b"d\0")
    assert next(scan) == (b"a", b"")
    found = next(scan) if short == "next" else scan.send(b"c")
    assert found[0] == (b"b" if short == "next" else b"c")
    assert begun == [b"a", b"a\0" if short == "next" else b"c"]
    assert [name for name, _ in scan] == names[names.index(found[0]) + 1 :]


def test_a_broken_disk_under_leveldb_is_final(memory_directory: Path) -> None:
    """EIO is no shortage: nothing is written until the node is started again."""
    opener, history = Opener(), history_of_large_values()
    store = store_on(opener, memory_directory)
    store.write([history.step(0, 1)])
    opener.fails = f"IO error: {memory_directory}/rows/000009.ldb: Input/output error".encode()
    prepared = store.prepare([history.step(1, 2)])
    for _ in range(2):
        with pytest.raises(LocalFault, match="until the node is started again") as failed:
            store.commit(prepared)
        assert not isinstance(failed.value, StorageShort)
    store.close()


@pytest.mark.parametrize(("message", "short"), [
    ("IO error: {}/000009.log: Too many open files", "the store cannot create a file: Too many open files"),
    ("IO error: {}/000009.log: No space left on device", "the store cannot create a file: No space left on device"),
    ("IO error: {}/000009.log: Disk quota exceeded", "the store cannot create a file: Disk quota exceeded"),
    ("IO error: {}/000009.log: Read-only file system", "the store cannot create a file: Read-only file system"),
    ("IO error: {}/000009.log: Input/output error", ""),
    ("IO error: {}/000003.log: No space left on device", ""),
    ("IO error: {}/000009.ldb: Too many open files", ""),
    ("IO error: {}/MANIFEST-000002: No space left on device", ""),
    ("Corruption: 3 missing files; e.g.: {}/000009.log", ""),
    ("", ""),
])  # fmt: skip
def test_only_a_log_that_was_never_made_proves_that_nothing_was_written(
    tmp_path: Path, message: str, short: str
) -> None:
    """000003.log exists, so the error is of a write into it, which may have left half a record; errors of tables and
    manifests are of LevelDB's background work, and last until it is opened again (R-SHORT)."""
    (tmp_path / "000003.log").touch()
    assert creation_shortage(message.format(tmp_path)) == short


def test_a_read_without_a_descriptor_is_refused_and_damages_nothing(memory_directory: Path) -> None:
    """A table that cannot be opened now is not taken for a damaged one, nor its rows for missing ones."""
    names = [b"%04d" % n for n in range(400)]
    driver = leveldb._open_driver(leveldb.PLYVEL, memory_directory, write_buffer_size=65_536)
    for name in names:
        driver.put(name, os.urandom(20_000))
    driver.close()
    driver = leveldb._open_driver(leveldb.PLYVEL, memory_directory)
    view = LevelDbView(driver, memory_directory)
    with no_descriptor_left():
        for read in (
            lambda: [view.get(name) for name in names],
            lambda: list(view.scan(names[0], names[-1])),
            lambda: list(view.names(names[0], names[-1])),
        ):
            with pytest.raises(StorageShort, match="Too many open files"):
                read()
    assert list(view.names(names[0], names[-1])) == names[:-1]
    driver.close()


class ShortDisk(Disk):
    """Fails one kind of operation with one error, or not."""

    fails = ""
    number = 0

    def sync_file(self, path: Path) -> None:
        """Fails if `fails` is "sync"."""
        if self.fails == "sync":
            raise OSError(self.number, "short", str(path))
        super().sync_file(path)

    def sync_directory(self, path: Path) -> None:
        """Fails if `fails` is "directory"."""
        if self.fails == "directory":
            raise OSError(self.number, "short", str(path))
        super().sync_directory(path)

    def probe(self, directory: Path, size_bytes: int) -> None:
        """Short if `fails` is "probe"."""
        if self.fails == "probe":
            raise StorageShort("cannot write")
        super().probe(directory, size_bytes)

    def write_slot(self, slots: SlotFile, value: Any) -> None:
        """Short if `fails` is "slot"."""
        if self.fails == "slot":
            raise StorageShort("cannot write floors")
        super().write_slot(slots, value)


@pytest.mark.parametrize("number", sorted(NO_DESCRIPTORS))
@pytest.mark.parametrize("fails", ["sync", "directory", "slot"])
def test_a_checkpoint_that_cannot_begin_is_made_later(fails: str, number: int, memory_directory: Path) -> None:
    """The floors stay, writes go on, and the next checkpoint syncs everything again (R-SHORT)."""
    disk = ShortDisk()
    store = open_store(memory_directory / "store", disk=disk)
    history = history_of_large_values()
    store.write([history.step(0, 2)])
    store.checkpoint()
    store.write([history.step(2, 4)])
    disk.fails, disk.number = fails, number
    with pytest.raises(StorageShort):
        store.checkpoint()
    assert store.durable_floor(3) == 2
    store.write([history.step(4, 6)])
    disk.fails = ""
    store.checkpoint()
    assert store.durable_floor(3) == 6
    store.close()


@pytest.mark.parametrize("number", sorted({errno.EIO, *SHORTAGES} - NO_DESCRIPTORS))
@pytest.mark.parametrize("fails", ["sync", "directory"])
def test_a_sync_that_failed_is_never_tried_again(fails: str, number: int, memory_directory: Path) -> None:
    """H34: a later one would prove nothing. After a shortage LevelDB is opened again, so that its tables have the rows;
    a broken disk is final (R-SHORT)."""
    disk, opener = ShortDisk(), Opener()
    store = store_on(opener, memory_directory, disk)
    history = history_of_large_values()
    store.write([history.step(0, 2)])
    disk.fails, disk.number = fails, number
    with pytest.raises(LocalFault) as failed:
        store.checkpoint()
    disk.fails = ""
    if number == errno.EIO:
        assert not isinstance(failed.value, StorageShort)
        with pytest.raises(LocalFault, match="refuses writes"):
            store.checkpoint()
    else:
        assert isinstance(failed.value, StorageShort)
        store.checkpoint()
        assert (store.durable_floor(3), opener.opened, store.shortage) == (2, 2, "")
    store.close()


def test_rows_that_a_failed_sync_has_lost_are_noticed(memory_directory: Path) -> None:
    """The kernel may have dropped pages that it could not write: a store that is opened again without these rows has
    failed, and its floors stay below them (R-SHORT)."""
    disk, opener = ShortDisk(), Opener()
    store = store_on(opener, memory_directory, disk)
    history = history_of_large_values()
    store.write([history.step(0, 2)])
    disk.fails, disk.number = "sync", errno.EDQUOT
    with pytest.raises(StorageShort):
        store.checkpoint()
    disk.fails = ""
    for path in (memory_directory / "store" / "rows").glob("*.log"):
        path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(LocalFault) as failed:
        store.checkpoint()
    assert not isinstance(failed.value, StorageShort)
    assert store.durable_floor(3) == 0
    with pytest.raises(LocalFault, match="refuses writes"):
        store.checkpoint()
    store.close()


def test_the_real_checkpoint_needs_no_descriptor_it_cannot_get(memory_directory: Path) -> None:
    """Without any it is made later; LevelDB's logs are never taken for none because the directory cannot be listed."""
    store = open_store(memory_directory / "store")
    history = history_of_large_values()
    for at in (0, 2):
        store.write([history.step(at, at + 2)])
        store.checkpoint()
    store.write([history.step(4, 6)])
    with no_descriptor_left(), pytest.raises(StorageShort):
        store.checkpoint()
    assert store.durable_floor(3) == 4
    store.checkpoint()
    assert store.durable_floor(3) == 6
    store.close()

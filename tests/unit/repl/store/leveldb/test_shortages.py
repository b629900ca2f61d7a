"""A store without descriptors, inodes or space: what could not begin is done later; what failed half-way is final."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.model.errors import LocalFault, StorageShort
from isthmus.repl.shortage import NO_DESCRIPTORS, SHORTAGES
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store import leveldb
from isthmus.repl.store.checkpoint import Disk
from isthmus.repl.store.leveldb import LevelDbView, LevelStore, creation_shortage
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
    are whole, also for the next process."""
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


def test_patience_has_an_end(memory_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the store has failed, and the node ends."""
    monkeypatch.setattr(leveldb, "SHORTAGE_PATIENCE_S", 0.3)
    history = history_of_large_values()
    store = open_store(memory_directory / "store", write_buffer_bytes=65_536)
    with no_descriptor_left():
        at, prepared = write_until_short(store, history)
        with pytest.raises(LocalFault, match="refuses writes until the node is started again") as failed:
            store.commit(prepared)
        assert not isinstance(failed.value, StorageShort)
    with pytest.raises(LocalFault, match="refuses writes"):
        store.commit(prepared)
    store.close()
    again = open_store(memory_directory / "store")
    assert again.applied(3).offset == at
    again.close()


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
    manifests are of LevelDB's background work, and last until it is opened again."""
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

    def write_slot(self, slots: SlotFile, value: Any) -> None:
        """Short if `fails` is "slot"."""
        if self.fails == "slot":
            raise StorageShort("cannot write floors")
        super().write_slot(slots, value)


@pytest.mark.parametrize("number", sorted(NO_DESCRIPTORS))
@pytest.mark.parametrize("fails", ["sync", "directory", "slot"])
def test_a_checkpoint_that_cannot_begin_is_made_later(fails: str, number: int, memory_directory: Path) -> None:
    """The floors stay, writes go on, and the next checkpoint syncs everything again."""
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
def test_a_sync_that_failed_is_final_whatever_its_error(fails: str, number: int, memory_directory: Path) -> None:
    """H34: only an error that no sync can have proves that none was tried."""
    disk = ShortDisk()
    store = open_store(memory_directory / "store", disk=disk)
    history = history_of_large_values()
    store.write([history.step(0, 2)])
    disk.fails, disk.number = fails, number
    with pytest.raises(LocalFault) as failed:
        store.checkpoint()
    assert not isinstance(failed.value, StorageShort)
    disk.fails = ""
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

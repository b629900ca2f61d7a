"""A failed write or sync is final for the store, and reverts nothing that was written before."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.model.errors import LocalFault
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store.checkpoint import Disk
from tests.support.entry_histories import History, open_store


@contextmanager
def files_limited_to(size_bytes: int) -> Iterator[None]:
    """Writes beyond this length of any file fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_fails_the_write_and_all_later_ones(memory_directory: Path) -> None:
    """The write that fails and every later one raise LocalFault; reads continue; after a reopening the store is
    complete."""
    history = History()
    for n in range(60):
        history.put(b"b", b"%d" % n, bytes(2_000))
    store = open_store(memory_directory / "store")
    with files_limited_to(50_000):
        for at in range(0, 20, 2):
            store.write([history.step(at, at + 2)])
        with pytest.raises(LocalFault, match="refuses writes"):
            store.write([history.step(20)])
    written = 20
    for refused in (lambda: store.write([history.step(written, written + 2)]), store.checkpoint):
        with pytest.raises(LocalFault, match="refuses writes"):
            refused()
    assert store.object(3, b"b", b"0") == bytes(2_000)
    assert store.applied(3).offset == written
    store.close()
    store = open_store(memory_directory / "store")
    assert store.applied(3).offset == written
    assert len(store.changes(3, 0, 100)) == written
    store.write([history.step(written)])
    assert store.object(3, b"b", b"59") == bytes(2_000)
    store.close()


class FailingDisk(Disk):
    """A disk that refuses one kind of operation from some moment on."""

    refuses = ""

    def sync_file(self, path: Path) -> None:
        """Fails if `refuses` is "sync"."""
        if self.refuses == "sync":
            raise OSError(5, "Input/output error")
        super().sync_file(path)

    def write_slot(self, slots: SlotFile, value: Any) -> None:
        """Fails if `refuses` is "slot"."""
        if self.refuses == "slot":
            raise LocalFault("cannot write floors")
        super().write_slot(slots, value)


@pytest.mark.parametrize("refuses", ["sync", "slot"])
def test_a_failed_checkpoint_is_never_tried_again(refuses: str, memory_directory: Path) -> None:
    """After a failed sync the pages may be marked clean although they are lost: the store refuses writes, keeps its old
    floors, and leaves no clean marker, so that it replays after a reboot (H34)."""
    disk = FailingDisk()
    store = open_store(memory_directory / "store", disk=disk)
    history = History()
    for n in range(6):
        history.put(b"b", b"%d" % n, b"x")
    store.write([history.step(0, 2)])
    store.checkpoint()
    store.write([history.step(2, 4)])
    disk.refuses = refuses
    with pytest.raises(LocalFault):
        store.checkpoint()
    disk.refuses = ""
    for refused in (store.checkpoint, lambda: store.write([history.step(4)])):
        with pytest.raises(LocalFault, match="refuses writes"):
            refused()
    assert store.durable_floor(3) == 2
    store.close()
    store = open_store(memory_directory / "store", boot_id="another boot")
    assert store.durable_floor(3) == 2
    assert store.needs_replay()
    store.write([history.step(2)])
    store.replay_finished()
    store.close()


def test_a_close_whose_checkpoint_fails_raises_and_closes(memory_directory: Path) -> None:
    """`close` raises when the last checkpoint fails, but releases the database; the stop does not count as clean."""
    disk = FailingDisk()
    store = open_store(memory_directory / "store", disk=disk)
    history = History()
    history.put(b"b", b"k", b"x")
    store.write([history.step(0)])
    disk.refuses = "sync"
    with pytest.raises(LocalFault):
        store.close()
    store.close()
    store = open_store(memory_directory / "store", boot_id="another boot")
    assert store.needs_replay()
    store.write([history.step(0)])
    store.replay_finished()
    store.close()


def test_prepared_batches_show_when_committed_in_order(memory_directory: Path) -> None:
    """Batches prepared ahead of their commits continue each other, and readers see each one at its commit."""
    store = open_store(memory_directory / "store")
    history = History()
    for n in range(6):
        history.put(b"b", b"same", b"%d" % n)
    ahead = [store.prepare([history.step(at, at + 2)]) for at in (0, 2, 4)]
    assert store.applied(3).offset == 0
    for number, prepared in enumerate(ahead):
        store.checkpoint()
        assert store.durable_floor(3) == number * 2
        store.commit(prepared)
        assert store.applied(3).offset == number * 2 + 2
        assert store.object(3, b"b", b"same") == b"%d" % (number * 2 + 1)
        assert len(store.changes(3, 0, 10)) == 1
    store.close()


def test_an_idle_checkpoint_touches_no_disk(memory_directory: Path) -> None:
    """A checkpoint with nothing written since the last one does nothing, and so does the next."""

    class CountingDisk(Disk):
        count = 0

        def write_slot(self, slots: SlotFile, value: Any) -> None:
            self.count += 1
            super().write_slot(slots, value)

    disk = CountingDisk()
    store = open_store(memory_directory / "store", disk=disk)
    history = History()
    history.put(b"b", b"k", b"x")
    store.write([history.step(0)])
    store.checkpoint()
    count = disk.count
    store.checkpoint()
    assert disk.count == count
    store.close()

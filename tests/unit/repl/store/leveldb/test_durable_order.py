"""The order in which a LevelDB store writes and syncs, and the states that a power loss may leave in between (H36,
R-FAR)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store import row_codec, rows
from isthmus.repl.store.checkpoint import Disk
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from isthmus.repl.store.state_transfer import LevelTransfers
from tests.contract.test_store_state_transfer import PARTITION, UUID, Writer, opened
from tests.support.power_loss import LossyDisk

MARK = rows.TRANSFER_TAG + rows.U32.pack(PARTITION)


class RecordedBatch:
    """A LevelDB batch, and the names of its rows."""

    def __init__(self, real: Any) -> None:
        self.real = real
        self.names: dict[bytes, bytes | None] = {}

    def put(self, name: bytes, value: bytes) -> None:
        self.real.put(name, value)
        self.names[name] = value

    def delete(self, name: bytes) -> None:
        self.real.delete(name)
        self.names[name] = None


class RecordingRowWriter:
    """The RowWriter of a store's transfers; records what they write and sync: "sync", or the names of one batch."""

    def __init__(self, transfers: LevelTransfers, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[str | dict[bytes, bytes | None]] = []
        self._real = transfers._store
        patch.setattr(transfers, "_store", self)

    def new_batch(self) -> RecordedBatch:
        return RecordedBatch(self._real.new_batch())

    def write_batch(self, batch: RecordedBatch) -> None:
        self._real.write_batch(batch.real)
        if batch.names:
            self.steps.append(batch.names)

    def sync_rows(self) -> None:
        self._real.sync_rows()
        self.steps.append("sync")

    def checkpoint(self) -> None:
        self._real.checkpoint()

    def step_names(self) -> list[str]:
        """The steps in words: sync, mark (with its kind), rows, mark and rows in one batch."""
        found = []
        for step in self.steps:
            if isinstance(step, str):
                found.append(step)
                continue
            mark = step.get(MARK)
            kind = "" if mark is None else rows.decode_mark(mark)[0].name
            others = any(name != MARK and name != rows.prefixes(PARTITION).applied for name in step)
            found.append(" and ".join(part for part in (kind, "rows" if others else "") if part))
        return found


def key_rows(store: LevelStore) -> list[bytes]:
    """The names of the partition's key rows, as they are in the database."""
    prefix = rows.prefixes(PARTITION).key
    with closing(store.transfers._source.names(prefix, rows.after_prefix(prefix))) as names:
        return list(names)


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """A store with some rows."""
    made = opened(tmp_path / "store")
    made.write([Writer().step(60)])
    yield made
    made.close()


def test_the_far_mark_is_on_disk_before_the_first_row(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a power loss took the mark, rows of a transfer would be left under an applied position."""
    recorded = RecordingRowWriter(store.transfers, monkeypatch)
    store.transfers.begin(PARTITION, empty=False)
    assert recorded.step_names() == ["WHOLE", "sync"]


def test_a_store_is_emptied_in_an_order_that_a_power_loss_cannot_break(
    store: LevelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark EMPTYING is on disk before the first row is deleted; all deletions are on disk before the mark WHOLE is;
    and that is on disk before the first new row."""
    recorded = RecordingRowWriter(store.transfers, monkeypatch)
    store.transfers.begin(PARTITION, empty=True)
    told = recorded.step_names()
    assert told[:2] == ["EMPTYING", "sync"]
    assert told[-3:] == ["sync", "WHOLE", "sync"]
    assert set(told[2:-3]) == {"rows"}


def test_a_replica_in_replay_begins_a_transfer_without_rows(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows may be missing below its applied offset, and a round that begins there would not send them (H36)."""
    monkeypatch.setattr(store._progress, "is_replaying", lambda _partition: True)
    mark = store.transfers.begin(PARTITION, empty=False)
    assert (mark.position, mark.whole) == (0, True)
    assert key_rows(store) == []


def test_rows_and_their_position_are_written_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mark above missing rows, they would be skipped for good."""
    giver, taker = opened(tmp_path / "a"), opened(tmp_path / "b")
    giver.write([Writer().step(60)])
    taker.transfers.begin(PARTITION, empty=True)
    snapshot = giver.transfers.snapshot(PARTITION)
    recorded = RecordingRowWriter(taker.transfers, monkeypatch)
    chunk = snapshot.rows(0, 300)
    taker.transfers.install_rows(PARTITION, chunk.rows, chunk.upto, 1)
    assert row_codec.decode_rows(chunk.rows)
    assert recorded.step_names() == ["PARTIAL and rows"]
    snapshot.close()
    giver.close()
    taker.close()


def test_an_emptying_that_was_interrupted_goes_on_at_the_next_start(tmp_path: Path) -> None:
    """This also holds after a plain restart of the process: some rows are left, and none is visible."""
    store = opened(tmp_path / "store")
    store.write([Writer().step(60)])
    next(store.transfers._emptying(PARTITION))
    assert key_rows(store)
    store.close()
    again = opened(tmp_path / "store")
    assert key_rows(again) == []
    mark = again.transfers.marks()[PARTITION]
    assert (mark.position, mark.whole) == (0, True)
    again.close()


class FloorHookDisk(LossyDisk):
    """Calls `before_slot_write` before the floors are written down."""

    before_slot_write: Callable[[], None] = staticmethod(lambda: None)

    def write_slot(self, slots: Any, value: Any) -> None:
        self.before_slot_write()
        super().write_slot(slots, value)


def on(disk: LossyDisk, directory: Path) -> LevelStore:
    """A store on that disk."""
    return LevelStore.open(
        directory,
        cluster_uuid=UUID,
        write_buffer_bytes=100_000,
        block_cache_bytes=100_000,
        boot_id="boot-1",
        disk=disk,
    )


def test_a_checkpoint_makes_durable_what_it_noted_and_no_more(tmp_path: Path) -> None:
    """Entries written during the sync may be lost: the log must not be trimmed above the positions recorded before."""
    disk = FloorHookDisk()
    store = on(disk, tmp_path / "store")
    writer = Writer()
    store.write([writer.step(10)])
    later: list[PartitionStep] = [writer.step(10)]
    disk.before_slot_write = lambda: store.write([later.pop()]) if later else None
    store.checkpoint()
    assert (store.applied(PARTITION).offset, store.durable_floor(PARTITION)) == (20, 10)
    store.checkpoint()
    assert store.durable_floor(PARTITION) == 20
    store.close()


def test_a_checkpoint_syncs_the_names_of_the_files_that_it_synced(tmp_path: Path) -> None:
    """A log file whose directory entry is not on disk is lost in a power loss, even if its content was synced (H37)."""
    disk = LossyDisk()
    store = on(disk, tmp_path / "store")
    store.write([Writer().step(10)])
    disk.done.clear()
    store.checkpoint()
    *logs, directory, slot = disk.done
    assert set(logs) == {"sync .log"}
    assert (directory, slot) == ("sync directory", "write slot")
    store.close()


def test_a_replay_is_finished_only_when_it_was_swept(store: LevelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the boot id were stored first, a power loss would leave changes that no key row points to, for good."""
    steps: list[str] = []
    note = store._write_floors
    monkeypatch.setattr(store.transfers, "sweep", lambda: steps.append("sweep"))
    monkeypatch.setattr(store, "_write_floors", lambda boot_id, **given: (steps.append("note"), note(boot_id, **given)))
    store.replay_finished()
    assert steps == ["sweep", "note"]


def test_the_logs_are_on_disk_before_the_rows_and_the_rows_before_the_floors(tmp_path: Path) -> None:
    """A floor above the end of the log after a power loss would leave rows of entries that no log has (H36)."""
    steps: list[str] = []

    class RecordingDisk(Disk):
        def sync_file(self, path: Path) -> None:
            super().sync_file(path)
            steps.append("rows")

        def write_slot(self, slots: SlotFile, value: Any) -> None:
            super().write_slot(slots, value)
            steps.append("floors")

    made = LevelStore.open(
        tmp_path / "store",
        cluster_uuid=UUID,
        write_buffer_bytes=100_000,
        block_cache_bytes=100_000,
        boot_id="boot-1",
        disk=RecordingDisk(),
    )
    made.before_floors = lambda: steps.append("logs")
    steps.clear()
    made.write([Writer().step(10)])
    made.checkpoint()
    made.close()
    kept = [step for n, step in enumerate(steps) if n == 0 or steps[n - 1] != step]
    assert kept[:3] == ["logs", "rows", "floors"]
    assert kept == ["logs", "rows", "floors"] * (len(kept) // 3)

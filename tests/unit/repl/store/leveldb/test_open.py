"""Stores that are not opened, with an error of one sentence that includes the remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from isthmus.repl.model.errors import Corruption, LocalFault, WrongIdentity
from isthmus.repl.model.keys import segment_of
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store import rows
from isthmus.repl.store.checkpoint import FLOORS_VERSION
from isthmus.repl.store.leveldb import LevelStore, plyvel
from tests.support.entry_histories import BOOT, History, open_store


def filled(directory: Path, keys: int = 5) -> History:
    """A cleanly closed store with some keys and two checkpoints."""
    store = open_store(directory)
    history = History()
    for n in range(2 * keys):
        history.put(b"b", b"%d" % n, b"x" * 100)
    store.write([history.step(0, keys)])
    store.checkpoint()
    store.write([history.step(keys)])
    store.close()
    return history


def single_line_error(error: pytest.ExceptionInfo[LocalFault], directory: Path) -> str:
    """The error's text: one line that names the directory."""
    text = str(error.value)
    assert "\n" not in text
    assert str(directory) in text
    return text


def test_a_store_of_another_cluster_is_refused(memory_directory: Path) -> None:
    """The wrong cluster's uuid gives WrongIdentity and leaves the store as it was (H33)."""
    history = filled(memory_directory / "store")
    with pytest.raises(WrongIdentity) as error:
        open_store(memory_directory / "store", cluster_uuid=b"\xee" * 16)
    assert "ee" * 16 in single_line_error(error, memory_directory / "store")
    store = open_store(memory_directory / "store")
    assert store.applied(3).offset == len(history.entries)
    store.close()


def test_a_store_of_another_format_is_refused(memory_directory: Path) -> None:
    """A later format is a LocalFault that names both versions."""
    filled(memory_directory / "store")
    db = plyvel.DB(str(memory_directory / "store" / "rows"))
    db.put(rows.FORMAT_KEY, b"\0\x09" + db.get(rows.FORMAT_KEY)[2:])
    db.close()
    with pytest.raises(LocalFault, match="format 9, this program reads 2") as error:
        open_store(memory_directory / "store")
    single_line_error(error, memory_directory / "store")


def test_a_foreign_database_is_refused(memory_directory: Path) -> None:
    """A LevelDB database that is not a store is not written to."""
    (memory_directory / "store").mkdir()
    db = plyvel.DB(str(memory_directory / "store" / "rows"), create_if_missing=True)
    db.put(b"key", b"value")
    db.close()
    with pytest.raises(WrongIdentity) as error:
        open_store(memory_directory / "store")
    single_line_error(error, memory_directory / "store")
    db = plyvel.DB(str(memory_directory / "store" / "rows"))
    assert list(db) == [(b"key", b"value")]
    db.close()


def test_a_file_in_the_place_of_the_directory_is_a_local_fault(memory_directory: Path) -> None:
    """A path that cannot be a directory gives one line, not a traceback of the driver's."""
    (memory_directory / "store").write_text("")
    with pytest.raises(LocalFault) as error:
        open_store(memory_directory / "store")
    single_line_error(error, memory_directory / "store")


def test_a_store_in_use_by_this_process_is_a_local_fault(memory_directory: Path) -> None:
    """A second open of the same directory fails with "in use"."""
    store = open_store(memory_directory / "store")
    with pytest.raises(LocalFault, match="in use") as error:
        open_store(memory_directory / "store")
    single_line_error(error, memory_directory / "store")
    store.close()


def test_a_store_in_use_by_another_process_is_a_local_fault(memory_directory: Path) -> None:
    """A store that another process holds is refused, too; after that process ends, it opens."""
    filled(memory_directory / "store")
    hold = (
        "from isthmus.repl.store.leveldb import plyvel; import sys;"
        " db = plyvel.DB(sys.argv[1]); print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(memory_directory / "store" / "rows")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LocalFault, match="in use by another process") as error:
            open_store(memory_directory / "store")
        single_line_error(error, memory_directory / "store")
        holder.stdin.close()
        holder.wait(60)
    open_store(memory_directory / "store").close()


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "delete"])
@pytest.mark.parametrize("which", [0, 1])
def test_one_damaged_slot_leaves_the_other(which: int, damage: str, memory_directory: Path) -> None:
    """With either slot of the floors damaged the store opens, with the floors of the newer one or of the checkpoint
    before."""
    history = filled(memory_directory / "store", keys=5)
    slot = memory_directory / "store" / f"floors.{which}"
    other = SlotFile(memory_directory / "store", "floors")
    newest = other.read()
    if damage == "flip":
        data = bytearray(slot.read_bytes())
        data[len(data) // 2] ^= 0x40
        slot.write_bytes(data)
    elif damage == "delete":
        slot.unlink()
    else:
        slot.write_bytes(slot.read_bytes()[:9] if damage == "cut" else b"")
    left = SlotFile(memory_directory / "store", "floors").read()
    store = open_store(memory_directory / "store", boot_id="another boot")
    assert store.applied(3).offset == len(history.entries)
    assert store.needs_replay() == (left != newest and store.durable_floor(3) < len(history.entries))
    if store.needs_replay():
        store.write([history.step(store.durable_floor(3))])
        store.replay_finished()
    assert store.durable_floor(3) == len(history.entries)
    store.close()


def spoil_slots(directory: Path, data: bytes | None) -> None:
    """Overwrite or delete both slots."""
    for which in (0, 1):
        slot = directory / f"floors.{which}"
        if data is None:
            slot.unlink()
        else:
            slot.write_bytes(data)


@pytest.mark.parametrize("data", [None, b"", b"ISLT" + bytes(60)])
def test_without_floors_the_store_is_called_damaged(data: bytes | None, memory_directory: Path) -> None:
    """If both slots are damaged or missing, the replay position is unknown: Corruption, with the remedy."""
    filled(memory_directory / "store")
    spoil_slots(memory_directory / "store", data)
    with pytest.raises(Corruption, match=r"away \(it alone: the rest of node.data_dir stays\)") as error:
        open_store(memory_directory / "store")
    single_line_error(error, memory_directory / "store")


@pytest.mark.parametrize(
    "value",
    [
        "text",
        [FLOORS_VERSION],
        [FLOORS_VERSION, BOOT, True, {"a": 1}],
        [FLOORS_VERSION, BOOT, 1, []],
        [FLOORS_VERSION, BOOT, False, [[3, 1, 5]]],
        [FLOORS_VERSION, BOOT, False, [[3, 1, "5", 0]]],
    ],
)
def test_floors_of_a_wrong_shape_are_corruption(value: object, memory_directory: Path) -> None:
    """A valid slot with a value other than floors raises Corruption."""
    filled(memory_directory / "store")
    slots = SlotFile(memory_directory / "store", "floors")
    slots.read()
    slots.write(value)
    with pytest.raises(Corruption):
        open_store(memory_directory / "store")


def test_floors_of_another_version_are_refused(memory_directory: Path) -> None:
    """Floors that a later release wrote are a LocalFault that names both versions."""
    filled(memory_directory / "store")
    slots = SlotFile(memory_directory / "store", "floors")
    slots.read()
    slots.write([FLOORS_VERSION + 1, "anything"])
    with pytest.raises(LocalFault, match=f"version {FLOORS_VERSION + 1}, this program reads {FLOORS_VERSION}"):
        open_store(memory_directory / "store")


def test_a_floor_above_what_is_applied_is_corruption(memory_directory: Path) -> None:
    """Rows that were on disk and are missing are Corruption, even if the database opens."""
    filled(memory_directory / "store")
    slots = SlotFile(memory_directory / "store", "floors")
    slots.read()
    slots.write([FLOORS_VERSION, BOOT, False, [[3, 1, 11, 0]]])
    with pytest.raises(Corruption, match="up to offset 11 but applied only to 10"):
        open_store(memory_directory / "store")


def test_a_lost_database_is_not_created_again(memory_directory: Path) -> None:
    """Floors without their database are Corruption, again at the next start, and nothing is served from a new one."""
    filled(memory_directory / "store")
    shutil.rmtree(memory_directory / "store" / "rows")
    for _ in range(2):
        with pytest.raises(Corruption, match="its rows are gone"):
            open_store(memory_directory / "store")


def test_a_first_open_that_was_cut_short_is_begun_again(memory_directory: Path) -> None:
    """An interrupted first start leaves a database without a format row, and floors without positions."""
    (memory_directory / "store").mkdir()
    SlotFile(memory_directory / "store", "floors").write([FLOORS_VERSION, "boot", False, []])
    plyvel.DB(str(memory_directory / "store" / "rows"), create_if_missing=True).close()
    store = open_store(memory_directory / "store")
    assert not store.needs_replay()
    store.close()


def test_a_flipped_byte_in_the_databases_log_is_corruption(memory_directory: Path) -> None:
    """Without a power loss, damage in the middle of LevelDB's log is refused rather than skipped over."""
    store = open_store(memory_directory / "store")
    history = History()
    for n in range(20):
        history.put(b"b", b"%d" % n, b"x" * 500)
        store.write([history.step(n)])
    shutil.copytree(memory_directory / "store", memory_directory / "copy")
    store.close()
    (log,) = (memory_directory / "copy" / "rows").glob("*.log")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.raises(Corruption, match="move the directory away") as error:
        open_store(memory_directory / "copy")
    single_line_error(error, memory_directory / "copy")


def test_a_missing_table_is_corruption(memory_directory: Path) -> None:
    """A table that is gone is noticed at open."""
    filled(memory_directory / "store")
    open_store(memory_directory / "store").close()
    for table in (memory_directory / "store" / "rows").glob("*.ldb"):
        os.unlink(table)
    with pytest.raises(Corruption, match="move the directory away"):
        open_store(memory_directory / "store")


def _rows_of_segments(store: LevelStore, segments: list[int]) -> list[bytes]:
    """The key rows of a partition's segments, each sought."""
    with closing(store.transfers.snapshot(3)) as snapshot:
        ranges = [(segment, segment + 1) for segment in sorted(set(segments))]
        return [row for part in snapshot.segments(ranges) for _, row in part]


def test_no_damaged_table_shortens_an_answer(memory_directory: Path) -> None:
    """With any byte of a table flipped, each read returns what was written or raises Corruption."""
    history = History()
    store = open_store(memory_directory / "store")
    for n in range(120):
        history.put(b"b", b"%03d" % n, b"%03d" % n * 60)
    store.write([history.step(0)])
    store.close()
    open_store(memory_directory / "store").close()
    tables = sorted((memory_directory / "store" / "rows").glob("*.ldb"))
    assert tables
    latest = {e.key: e for e in history.entries}
    changes = [(e.offset, e.kind, e.key_hash, e.origin, e.time_ms, e.bucket, e.key) for e in history.entries]
    listed = [(b"b", key, latest[key].row) for key in sorted(latest)]
    segments = sorted((segment_of(e.key_hash), b"b", e.key, e.row) for e in history.entries)
    some = history.entries[::10]

    reads: list[Callable[[LevelStore], bool]] = [
        lambda s: s.changes(3, 0, 1_000) == changes,
        lambda s: list(s.list_keys(3, None, None)) == listed,
        lambda s: list(s.key_rows(3, 0, 1 << 20)) == segments,
        lambda s: _rows_of_segments(s, [each[0] for each in segments]) == [each[3] for each in segments],
        lambda s: s.offset_at(3, history.time_ms) == 0,
        lambda s: all(s.object(3, b"b", e.key) == e.payload for e in some),
        lambda s: all(s.key_row(3, e.key_hash, b"b", e.key) == e.row for e in some),
    ]
    refused = 0
    for table in tables:
        whole = table.read_bytes()
        for at in range(7, len(whole), len(whole) // 30):
            shutil.rmtree(memory_directory / "copy", ignore_errors=True)
            shutil.copytree(memory_directory / "store", memory_directory / "copy")
            data = bytearray(whole)
            data[at] ^= 0x10
            (memory_directory / "copy" / "rows" / table.name).write_bytes(data)
            try:
                damaged = open_store(memory_directory / "copy")
            except Corruption:
                refused += 1
                continue
            for number, read in enumerate(reads):
                try:
                    assert read(damaged), (table.name, at, number)
                except Corruption:
                    refused += 1
            damaged.close()
    assert refused

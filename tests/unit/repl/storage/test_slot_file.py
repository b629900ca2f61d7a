"""Slot files when something is short, and when a disk is broken."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from isthmus.repl.model.errors import LocalFault, StorageShort
from isthmus.repl.shortage import SHORTAGES
from isthmus.repl.storage.slot_file import SlotFile
from tests.support.few_descriptors import no_descriptor_left


def test_files_that_were_written_need_no_descriptor_any_more(tmp_path: Path) -> None:
    """A node's epochs can be written although the process has no descriptor left."""
    slots = SlotFile(tmp_path, "value")
    slots.write(1)
    slots.write(2)
    with no_descriptor_left():
        for value in range(3, 7):
            slots.write(value)
        with pytest.raises(StorageShort, match="Too many open files"):
            SlotFile(tmp_path, "another").write(1)
    slots.close()
    assert SlotFile(tmp_path, "value").read() == 6


@pytest.mark.parametrize("number", sorted(SHORTAGES), ids=lambda number: errno.errorcode[number])
@pytest.mark.parametrize("call", ["pwrite", "ftruncate"])
def test_a_slot_that_could_not_be_written_is_written_later(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value before is kept, for this process and for the next one; the same may be tried again."""
    slots = SlotFile(tmp_path, "value")
    slots.write("a")
    slots.write("b")

    def fails(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fails)
        with pytest.raises(StorageShort):
            slots.write("c")
    assert SlotFile(tmp_path, "value").read() in (["b"] if call == "pwrite" else ["b", "c"])
    slots.write("d")
    slots.close()
    assert SlotFile(tmp_path, "value").read() == "d"


@pytest.mark.parametrize("number", sorted({errno.EIO, *SHORTAGES}), ids=lambda number: errno.errorcode[number])
def test_a_sync_that_finds_a_shortage_is_no_fault(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The value before is kept, and the next write brings all of the slot to disk again; a broken disk is final
    (R-SHORT)."""
    slots = SlotFile(tmp_path, "value")
    for value in ("a", "b", "c"):
        slots.write(value)

    def fails(_: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fails)
        with pytest.raises(LocalFault) as failed:
            slots.write("d")
    assert isinstance(failed.value, StorageShort) == (number != errno.EIO)
    (tmp_path / "value.0").write_bytes((tmp_path / "value.0").read_bytes()[:9])  # the sync may have lost it
    assert SlotFile(tmp_path, "value").read() == "c"
    slots.write("e")
    assert SlotFile(tmp_path, "value").read() == "e"


def test_a_broken_disk_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that fails with an error of the disk is no shortage."""
    slots = SlotFile(tmp_path, "value")

    def fails(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "pwrite", fails)
    with pytest.raises(LocalFault, match="Input/output error") as failed:
        slots.write("a")
    assert not isinstance(failed.value, StorageShort)


def test_a_file_in_place_of_the_open_one_is_written(tmp_path: Path) -> None:
    """Files that are kept open are not written into nowhere when somebody replaces or removes them."""
    slots = SlotFile(tmp_path, "value")
    for value in "abc":
        slots.write(value)
    for name in ("value.0", "value.1"):
        shutil.copyfile(tmp_path / name, tmp_path / "copy")
        (tmp_path / "copy").replace(tmp_path / name)
    slots.write("d")
    assert SlotFile(tmp_path, "value").read() == "d"
    shutil.rmtree(tmp_path)
    with pytest.raises(LocalFault, match="No such file"):
        slots.write("e")

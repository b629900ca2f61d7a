"""Copies of LevelDB's files while tables, logs and the MANIFEST come and go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from isthmus.node.backup import store_copy
from isthmus.node.backup.file_copy import Raced, copy_file
from isthmus.node.backup.store_copy import PINNED_MAX, StoreCopier
from isthmus.repl.model.errors import LocalFault


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A database's directory with a table, two logs and a MANIFEST."""
    directory = tmp_path / "rows"
    directory.mkdir()
    files = {"CURRENT": "MANIFEST-000002\n", "MANIFEST-000002": "m", "000005.ldb": "five", "000007.log": "seven"}
    for name, text in (files | {"000010.log": "ten", "LOG": "of LevelDB"}).items():
        (directory / name).write_text(text)
    return directory


def copied(tmp_path: Path) -> dict[str, str]:
    """The files of the copy, with their texts."""
    return {path.name: path.read_text() for path in (tmp_path / "copy").iterdir()}


def before_copying(monkeypatch: pytest.MonkeyPatch, name: str, act: Callable[[], object]) -> list[str]:
    """Act once, before the file of that name is copied; the names in the order of their copies."""
    order: list[str] = []

    def copy(source: Path, target: Path, passed: Callable[[int], None]) -> int:
        if source.name == name and name not in order:
            act()
        order.append(source.name)
        return copy_file(source, target, passed)

    monkeypatch.setattr(store_copy, "copy_file", copy)
    return order


def ignored(_size_bytes: int) -> None:
    """A progress callback that does nothing."""


def test_logs_are_copied_in_their_order_and_before_the_manifest(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables first, then logs by number, then the MANIFEST; LevelDB's own log and lock are left out."""
    order = before_copying(monkeypatch, "", lambda: None)
    copier = StoreCopier(rows, tmp_path / "copy", ignored)
    copier.copy_tables()
    copier.cut()
    assert order == ["000005.ldb", "000007.log", "000010.log", "MANIFEST-000002"]
    assert copied(tmp_path).keys() == {*order, "CURRENT"}


def test_a_log_that_is_flushed_meanwhile_is_replaced_by_its_table(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log disappears before it is copied, since it was flushed to a table: the copy has the table, and the newer
    MANIFEST."""

    def flush() -> None:
        (rows / "000011.ldb").write_text("seven")
        (rows / "MANIFEST-000002").write_text("mm")
        (rows / "000007.log").unlink()

    before_copying(monkeypatch, "000007.log", flush)
    copier = StoreCopier(rows, tmp_path / "copy", ignored)
    copier.copy_tables()
    copier.cut()
    found = copied(tmp_path)
    assert "000007.log" not in found
    assert (found["000011.ldb"], found["MANIFEST-000002"]) == ("seven", "mm")


def test_a_table_that_is_compacted_away_is_dropped(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table goes before the MANIFEST is copied: its copy goes, too, and the one that replaces it is there."""

    def compact() -> None:
        (rows / "000012.ldb").write_text("five and more")
        (rows / "000005.ldb").unlink()

    before_copying(monkeypatch, "MANIFEST-000002", compact)
    copier = StoreCopier(rows, tmp_path / "copy", ignored)
    copier.copy_tables()
    assert "000005.ldb" in copied(tmp_path)
    copier.cut()
    assert {name for name in copied(tmp_path) if name.endswith("ldb")} == {"000012.ldb"}


def test_a_table_that_was_copied_while_it_grew_is_copied_again(rows: Path, tmp_path: Path) -> None:
    """A compaction's output is copied at half its length: the end of the backup has all of it."""
    copier = StoreCopier(rows, tmp_path / "copy", ignored)
    copier.copy_tables()
    (rows / "000005.ldb").write_text("five and the rest")
    copier.cut()
    assert copied(tmp_path)["000005.ldb"] == "five and the rest"


def test_a_node_that_starts_meanwhile_spoils_the_attempt(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another CURRENT at the end means files of two runs; the next attempt has those of one, and none of the first."""

    def start() -> None:
        (rows / "MANIFEST-000013").write_text("new")
        (rows / "CURRENT").write_text("MANIFEST-000013\n")

    before_copying(monkeypatch, "MANIFEST-000002", start)
    copier = StoreCopier(rows, tmp_path / "copy", ignored)
    copier.copy_tables()
    with pytest.raises(Raced):
        copier.cut()
    copier.cut()
    assert copied(tmp_path)["CURRENT"] == "MANIFEST-000013\n"
    assert "MANIFEST-000002" not in copied(tmp_path)


def test_too_many_new_tables_spoil_the_attempt(rows: Path, tmp_path: Path) -> None:
    """More new tables than may be open at once are copied before, and not at the end."""
    copier = StoreCopier(rows, tmp_path / "copy", ignored)
    for number in range(PINNED_MAX + 1):
        (rows / f"{number + 100:06d}.ldb").write_text("x")
    with pytest.raises(Raced):
        copier.cut()
    copier.copy_tables()
    copier.cut()
    assert len(copied(tmp_path)) == PINNED_MAX + 6


def test_a_directory_without_a_database_is_named(tmp_path: Path) -> None:
    """An empty directory is not a store: the error names it."""
    (tmp_path / "rows").mkdir()
    with pytest.raises(LocalFault, match=str(tmp_path / "rows")):
        StoreCopier(tmp_path / "rows", tmp_path / "copy", ignored).cut()

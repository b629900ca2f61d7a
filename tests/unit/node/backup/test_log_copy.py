"""Copies of a log's files while the log is written and trimmed: recovery finds the entries that were complete when the
copy began."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from isthmus.node.backup import log_copy
from isthmus.node.backup.file_copy import Raced, copy_file
from isthmus.node.backup.log_copy import LogCopier
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.replog.log import FileLog
from isthmus.repl.replog.recovery import recover
from tests.support.log_history import CLUSTER, Listener, entries


def ignored(_size_bytes: int) -> None:
    """A progress callback that does nothing."""


class WrittenLog:
    """A log of one partition on real files of 64 KB."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log = FileLog.open(
            directory,
            cluster_uuid=CLUSTER,
            durability="fsync",
            size_limit_bytes=64_000,
            file_bytes=64_000,
            batch_bytes=8_000,
            reserve_bytes=1_000,
        )
        self.listener = Listener(self.log)
        self.end = 0

    def write(self, count: int) -> None:
        """Appends `count` entries of 1 KB, and waits until they are durable."""
        for first in range(self.end, self.end + count, 4):
            self.log.append(0, entries(1, first, 4, size=1_000))
            self.end = first + 4
            assert self.listener.wait({0: self.end})


@pytest.fixture
def source(tmp_path: Path) -> Iterator[WrittenLog]:
    """A log with several finished files."""
    log = WrittenLog(tmp_path / "log")
    log.write(200)
    yield log
    log.log.close()


def recovered(tmp_path: Path) -> tuple[int, int, str]:
    """Start, end and damage of the copied log."""
    found = recover(SystemFiles(), tmp_path / "copy", CLUSTER, {}).partitions()[0]
    return found.start, found.leo, found.damage


def when_copying(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], object]) -> None:
    """Act once, before the file of that number is copied."""
    done: list[str] = []

    def copy(path: Path, target: Path, passed: Callable[[int], None]) -> int:
        if path.name == f"{number:016d}.log" and not done:
            done.append(path.name)
            act()
        return copy_file(path, target, passed)

    monkeypatch.setattr(log_copy, "copy_file", copy)


def test_a_log_that_is_written_meanwhile_is_copied_to_where_it_was(source: WrittenLog, tmp_path: Path) -> None:
    """Entries from after the first step, in new files and in the newest one, are in the copy."""
    copier = LogCopier(source.directory, tmp_path / "copy", ignored)
    copier.copy_finished()
    source.write(200)
    copier.cut()
    assert recovered(tmp_path) == (0, source.end, "")


def test_a_frame_that_is_half_copied_is_cut_off_with_what_follows(
    source: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame is zeros in the copy, and the next one is whole, since both were written during it: recovery would take
    that for corruption, so the copy ends before the first."""
    newest = max(source.directory.glob("*.log"))
    before = source.end

    def copy(path: Path, target: Path, passed: Callable[[int], None]) -> int:
        size = path.stat().st_size
        end = len(path.read_bytes().rstrip(b"\0"))
        if path == newest:
            source.write(4)
            source.write(4)
        copied = copy_file(path, target, passed)
        if path == newest:
            data = bytearray(target.read_bytes())
            assert any(data[end + 100 : size]), "both frames lie in what was allocated"
            data[end + 1 : end + 600] = bytes(599)
            target.write_bytes(data)
        return copied

    monkeypatch.setattr(log_copy, "copy_file", copy)
    LogCopier(source.directory, tmp_path / "copy", ignored).cut()
    assert recovered(tmp_path) == (0, before, "")


def test_files_that_are_trimmed_between_the_steps_are_left_out(source: WrittenLog, tmp_path: Path) -> None:
    """The log is trimmed after its old files were copied: the copy begins where the log does."""
    copier = LogCopier(source.directory, tmp_path / "copy", ignored)
    copier.copy_finished()
    source.log.trim({0: 150})
    source.write(4)
    copier.cut()
    start, end, damage = recovered(tmp_path)
    assert (start, end, damage) == (source.log.start_of(0), source.end, "")
    assert start > 0


def test_files_that_are_trimmed_during_the_end_spoil_the_attempt(
    source: WrittenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listed file is gone before it is copied: another attempt is needed, which copies the existing files."""

    def trim() -> None:
        source.log.trim({0: 150})
        source.write(4)

    when_copying(monkeypatch, 1, trim)
    copier = LogCopier(source.directory, tmp_path / "copy", ignored)
    with pytest.raises(Raced):
        copier.cut()
    copier.cut()
    assert recovered(tmp_path) == (source.log.start_of(0), source.end, "")


def test_a_newest_file_of_an_attempt_before_is_copied_again_or_dropped(source: WrittenLog, tmp_path: Path) -> None:
    """The newest file of one attempt is finished, or gone, in the next one: no part of the old copy is left."""
    copier = LogCopier(source.directory, tmp_path / "copy", ignored)
    copier.cut()
    source.write(200)
    copier.cut()
    assert recovered(tmp_path) == (0, source.end, "")
    source.log.trim({0: source.end})
    source.write(4)
    copier.cut()
    assert {path.name for path in (tmp_path / "copy").iterdir()} == {
        path.name for path in source.directory.glob("*.log")
    }


def test_a_directory_without_a_log_spoils_the_attempt(tmp_path: Path) -> None:
    """A log that is not there yet has nothing to copy."""
    with pytest.raises(Raced, match="no file"):
        LogCopier(tmp_path / "log", tmp_path / "copy", ignored).cut()

"""A copy of a log while its node writes and trims it.

All files but the newest are finished and never change; they are copied first. Then, when the rows have been copied, the
rest: finished files that are new, and the newest one up to the last frame that was whole when its copy began. A frame
that was written during the copy may be in it by half, and is cut off with what follows. The store applies an entry only
when it is in the log; so the copy of the log reaches at least as far as the rows that were copied before.

Trimming deletes the oldest files. Where one is deleted before it was copied, it and those below it are left out: then
the partitions begin later. `create` checks that they do not begin above what the rows are known to hold.
"""

from __future__ import annotations

import os
from pathlib import Path

from isthmus.node.backup.file_copy import Raced, copy_file
from isthmus.node.backup.manifest import Passed
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.replog.frames import FILE_HEADER_BYTES
from isthmus.repl.replog.index import LogFile
from isthmus.repl.replog.names import log_path, sequence_of
from isthmus.repl.replog.reader import BadFrame, LogFileReader


class LogCopier:
    """Copies the log in `source` to `target`, which is made."""

    def __init__(self, source: Path, target: Path, passed: Passed) -> None:
        self._source = source
        self._target = target
        self._passed = passed
        self._copied: set[int] = set()
        target.mkdir(parents=True, mode=0o700)

    def copy_finished(self) -> None:
        """Copy the files that are finished now. Raises OSError."""
        for sequence in self._sequences()[:-1]:
            if sequence not in self._copied:
                try:
                    self._copy(sequence)
                except FileNotFoundError:
                    continue
                self._copied.add(sequence)

    def cut(self) -> None:
        """Copy the rest; may be repeated. Raises Raced, Corruption for a newest file without a header, OSError."""
        found = self._sequences()
        if not found:
            raise Raced("the log has no file")
        self._copied &= set(found)
        kept = {log_path(self._target, sequence) for sequence in self._copied}
        for path in self._target.iterdir():
            if path not in kept:  # trimmed since, or the newest file of an attempt before
                path.unlink()
        try:
            for sequence in found[:-1]:
                if sequence not in self._copied:
                    self._copy(sequence)
                    self._copied.add(sequence)
            self._copy(found[-1])
        except FileNotFoundError:
            raise Raced("the log was trimmed meanwhile") from None
        cut_after_last_frame(log_path(self._target, found[-1]), found[-1])

    def _copy(self, sequence: int) -> None:
        copy_file(log_path(self._source, sequence), log_path(self._target, sequence), self._passed)

    def _sequences(self) -> list[int]:
        try:
            names = os.listdir(self._source)
        except FileNotFoundError:
            return []
        return sorted(number for name in names if (number := sequence_of(name)) is not None)


def cut_after_last_frame(path: Path, sequence: int) -> None:
    """Cut a log file before its first bad frame. Raises Corruption where it has no valid header, OSError."""
    with LogFileReader(SystemFiles(), LogFile(sequence, path, None, 0)) as reader:
        reader.file_header()
        end = FILE_HEADER_BYTES
        try:
            for frame in reader.frames(end):
                end = frame.end
        except BadFrame:
            pass
    os.truncate(path, end)

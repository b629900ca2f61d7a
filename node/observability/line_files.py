"""JSON lines of one series in rotated files of bounded size: numbering, appending, rotation, reading backwards.

Files are `PREFIX` + `FIRST-ID.jsonl`; the newest is appended to, and the oldest is deleted when there are too many.
Everything here blocks on the disk, and belongs to one thread. A crash can leave a piece of a line at the end of a file;
it is ended by a newline before the next line, and readers count it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

SUFFIX: Final = ".jsonl"

ID_DIGITS: Final = 12
"""Digits of an id in a file's name, so that names sort as ids do; a thousand lines a second for thirty years."""

LINE_BYTES_MAX: Final = 32_000
"""Largest line. The parts of a line have limits of their own, which add up to less unless most characters need an
escape; a larger line loses `what.request`, `before` and `after`."""

BLOCK_BYTES: Final = 64 * 1024
"""Bytes that a reader takes from the end of a file at once."""

PAGE_BYTES_MAX: Final = 1_000_000
"""Most bytes of lines in one page; it ends early then, and the next page goes on."""

SCAN_BYTES_MAX: Final = 2_000_000
"""Most bytes of lines that are read for one page, since few may be wanted: some 0.05 s of CPU time, during which no
line is written. The page ends early then, too."""

CLOCK_SLACK_MS: Final = 3_600_000
"""How much later than its last change a file may have lines, and how much later than the next line an earlier one may
be: file systems' clocks lag by a tick, and a node's clock may be set back. A guess; with a clock set back by more, a
page of a series `in_order` with `since` may lack lines of the time between."""

_OF_THE_FILE: Final = frozenset((errno.EACCES, errno.EPERM, errno.EIO))
"""Errors of a file that others of its directory need not have."""

Line = dict[str, Any]
"""A line as a JSON object; `id` and `lost_before` are set here."""


class LinePage(NamedTuple):
    """Lines of one series, the newest first."""

    lines: list[Line]
    more: bool
    """Older lines are there that were not read, or do not fit on the page."""
    unreadable: int
    """Pieces of lines in the files that were read."""
    read_to: tuple[int, int] | None
    """Id and time (ms) of the oldest line that was read and is not left for the next page; None: there was none."""
    unread: str = ""
    """Which file could not be read, and why, of those that were to be read; "" if none."""


class Written(NamedTuple):
    """What became of lines: the first `done_count` are written, the others are not."""

    done_count: int
    error: Exception | None
    """Why the others are not; None: all are written."""
    unsynced: OSError | None
    """Why a written line may not survive a power failure."""


class LineFiles:
    """The files of one series in `directory`, which is made with the first line.

    `in_order`: the times of lines rise, but for CLOCK_SLACK_MS, so that a line older than what is wanted ends a search.
    """

    def __init__(self, directory: Path, prefix: str, file_bytes: int, files_count: int, *, in_order: bool) -> None:
        self._directory = directory
        self._prefix = prefix
        self._file_bytes = file_bytes
        self._files_count = files_count
        self._in_order = in_order
        self._newest: Path | None = None
        self._fd = -1
        self._size = 0
        self._next_id = 0
        """0: the directory has not been read yet."""
        self._torn = False
        """The file may end in a piece of a line."""
        self._unsynced: OSError | None = None

    def limit(self, file_bytes: int, files_count: int) -> None:
        """Other limits, from the next line on. May be called by any thread."""
        self._file_bytes, self._files_count = file_bytes, files_count

    def write(self, lines: Sequence[Line], lost_before: int, *, sync: bool) -> Written:
        """Write lines, of which the first follows `lost_before` lost ones, and sync them. Never raises."""
        count, error = 0, None
        self._unsynced = None
        try:
            self._read_directory()
            for line in lines:
                self._write_line(line, 0 if count else lost_before, sync=sync)
                count += 1
        except Exception as raised:  # noqa: BLE001 -- the caller accounts for it; the lines before are written
            error = raised
        if count and sync and self._fd >= 0:
            self._sync()
        return Written(count, error, self._unsynced)

    def close(self) -> None:
        """Close the file; the next line opens it again. An error is left to fsync: the descriptor is free in any case,
        and may be that of another file soon."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):
                os.close(fd)

    def page(self, before_id: int | None, since_ms: int, limit: int, wanted: Callable[[Line], bool]) -> LinePage:
        """The newest lines that are `wanted`, `limit` at most, with an id below `before_id` (None: any) and from
        `since_ms` on. A file that cannot be read is left out. Raises OSError when the directory cannot be read."""
        lines: list[Line] = []
        taken_bytes = scanned_bytes = unreadable = 0
        read_to: tuple[int, int] | None = None
        unread = ""

        def ended(more: bool) -> LinePage:
            return LinePage(lines, more, unreadable, read_to, unread)

        for path in reversed(self._files()):
            if before_id is not None and self._first_id(path) >= before_id:
                continue
            try:
                if path.stat().st_mtime * 1000 + CLOCK_SLACK_MS < since_ms:
                    continue  # all of its lines are older
                for line, size in _backwards(path):
                    if line is None:
                        unreadable += 1
                        continue
                    if before_id is not None and line["id"] >= before_id:
                        continue
                    if self._in_order and line["at_ms"] + CLOCK_SLACK_MS < since_ms:
                        return ended(more=False)  # all before it are older
                    if scanned_bytes > SCAN_BYTES_MAX:
                        return ended(more=True)
                    if line["at_ms"] >= since_ms and wanted(line):
                        if len(lines) == limit or taken_bytes > PAGE_BYTES_MAX:
                            return ended(more=True)
                        lines.append(line)
                        taken_bytes += size
                    scanned_bytes += size
                    read_to = line["id"], line["at_ms"]
            except FileNotFoundError:
                continue  # deleted meanwhile
            except OSError as error:
                unread = unread or f"{path.name} cannot be read: {error.strerror}"
        return ended(more=False)

    def _write_line(self, line: Line, lost_before: int, *, sync: bool) -> None:
        number = self._next_id + lost_before
        data = _encoded({"id": number, **line, **({"lost_before": lost_before} if lost_before else {})})
        if self._newest is None or (self._size and self._size + len(data) > self._file_bytes):
            self._rotate(number, sync=sync)
        elif self._fd < 0:
            self._open(self._newest)
        if self._torn:
            self._write_all(b"\n")
        self._torn = True  # until the whole line is written
        self._write_all(data)
        self._torn = False
        self._next_id = number + 1

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._fd, view)
            self._size += written
            view = view[written:]

    def _sync(self) -> None:
        try:
            os.fsync(self._fd)
        except OSError as error:
            self._unsynced = error

    def _read_directory(self) -> None:
        """Once, at the first line: go on with the newest file, behind its last whole line, or behind the whole file if
        it cannot be read."""
        if self._next_id:
            return
        self._directory.mkdir(mode=0o700, exist_ok=True)
        files = self._files()
        if not files:
            self._next_id = 1
            return
        newest = files[-1]
        first_id = self._first_id(newest)
        try:
            last = next((line for line, _ in _backwards(newest) if line is not None), None)
            self._open(newest)
            self._torn = self._size > 0 and not _ends_whole(newest)
        except OSError as error:
            if error.errno not in _OF_THE_FILE:
                raise
            self.close()
            self._newest = None  # a new file is begun
            self._next_id = first_id + newest.stat().st_size + 1  # it has fewer lines than bytes
            return
        self._next_id = (first_id if last is None else last["id"]) + 1

    def _rotate(self, first_id: int, *, sync: bool) -> None:
        """Begin a file whose first line has this id, and delete the oldest ones that are too many."""
        if self._fd >= 0:
            if sync:
                self._sync()
            self.close()
        self._open(self._directory / f"{self._prefix}{first_id:0{ID_DIGITS}}{SUFFIX}")
        self._torn = self._size > 0
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        for old in self._files()[: -self._files_count]:
            old.unlink(missing_ok=True)

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._newest = path
        self._size = os.fstat(self._fd).st_size

    def _files(self) -> list[Path]:
        """The files of the series, the oldest first."""
        try:
            found = [path for path in self._directory.iterdir() if path.suffix == SUFFIX]
        except FileNotFoundError:
            return []
        return sorted(path for path in found if self._is_of_series(path.stem))

    def _is_of_series(self, stem: str) -> bool:
        return stem.startswith(self._prefix) and stem.removeprefix(self._prefix).isdigit()

    def _first_id(self, path: Path) -> int:
        return int(path.stem.removeprefix(self._prefix))


def utc_text(at_ms: int) -> str:
    """A time (ms since 1970) as lines have it beside the number: UTC, with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _encoded(line: Line) -> bytes:
    """A line with its newline, in UTF-8; half of a surrogate pair stays an escape."""
    data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"
    if len(data) <= LINE_BYTES_MAX or "what" not in line:
        return data
    what = {**line["what"], "request": None}
    return _encoded({**line, "what": what, "before": None, "after": None, "cut": True}) if "cut" not in line else data


def _ends_whole(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _backwards(path: Path) -> Iterator[tuple[Line | None, int]]:
    """The lines of a file and their sizes in bytes, the last one first; None for a piece that is no line."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        rest = b""
        while end:
            start = max(0, end - BLOCK_BYTES)
            file.seek(start)
            first, *whole = (file.read(end - start) + rest).split(b"\n")
            for raw in reversed(whole):
                if raw:
                    yield _parsed(raw), len(raw)
            rest, end = first, start
        if rest:
            yield _parsed(rest), len(rest)


def _parsed(raw: bytes) -> Line | None:
    try:
        line = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        try:
            line = json.loads(raw)  # half of a surrogate pair, which others refuse
        except (ValueError, RecursionError):
            return None
    whole = isinstance(line, dict) and type(line.get("id")) is int and type(line.get("at_ms")) is int
    return line if whole else None

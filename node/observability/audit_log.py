"""The audit log of one node: a JSON line for each act of an operator, in rotated files of bounded size.

The lines are made by `node.http.audit`; this module numbers, writes and reads them. Files are
`DATA_DIR/audit/FIRST-ID.jsonl`; the newest is appended to, and the oldest is deleted when there are too many.

One thread writes, off the event loop: whole lines, then one fsync for all lines that came together. `append` returns
when its line is on the disk, or after WAIT_S without it. A line that cannot be written is lost: the loss is counted
and logged, the next line that is written has the number of lost ones before it (`lost_before`), and their ids stay
free. A crash can leave a piece of a line at the end of a file; it is ended by a newline at the next start, and readers
count it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import structlog

from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

DIRECTORY: Final = "audit"
SUFFIX: Final = ".jsonl"

ID_DIGITS: Final = 12
"""Digits of an id in a file's name, so that names sort as ids do; a thousand acts a second for thirty years."""

QUEUE_MAX: Final = 512
"""Lines that wait for the disk; with more, new lines are lost. A disk that stalls for seconds is bridged, as operators
act a few times a second at most; lines of LINE_BYTES_MAX would take 16 MB."""

LINE_BYTES_MAX: Final = 32_000
"""Largest line. The parts of a line have limits of their own, which add up to less unless most characters need an
escape; a larger line loses `what.request`, `before` and `after`."""

WAIT_S: Final = 1.0
"""How long `append` waits for the disk. A sync takes milliseconds; the answer to an operator must not wait for a disk
that hangs."""

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
page with `since` may lack lines of the time between."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_audit_lines_total": Family(
        "Lines of the audit log by result: written, unsynced (written, but fsync failed), lost (the disk is full or "
        "fails, or too many waited). A lost act was carried out all the same.",
        "lines",
        "logs and store",
        ("result",),
    ),
}
"""Name -> metric definition (see repl.telemetry)."""

Line = dict[str, Any]
"""A line as a JSON object; `id` and `lost_before` are set here."""


def _any_line(_line: Line) -> bool:
    return True


class AuditPage(NamedTuple):
    """Lines of one node, the newest first."""

    acts: list[Line]
    more: bool
    """Older lines are there that were not read, or do not fit on the page."""
    unreadable: int
    """Pieces of lines in the files that were read."""
    read_to: tuple[int, int] | None
    """Id and time (ms) of the oldest line that was read and is not left for the next page; None: there was none."""


class AuditLog:
    """The audit log in one directory; the event loop appends and reads, one thread has the files."""

    def __init__(self, data_dir: Path, file_bytes: int, files_count: int) -> None:
        self.directory = data_dir / DIRECTORY
        self._file_bytes = file_bytes
        self._files_count = files_count
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: list[tuple[Line, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._fd = -1
        self._size = 0
        self._next_id = 0
        """0: the directory has not been read yet."""
        self._torn = False
        """The file may end in a piece of a line."""
        self._unmarked = 0
        """Lost lines that no written line counts yet."""
        self.counts = {"written": 0, "unsynced": 0, "lost": 0}

    def limit(self, file_bytes: int, files_count: int) -> None:
        """Other limits, from the next line on."""
        self._file_bytes, self._files_count = file_bytes, files_count

    async def append(self, line: Line) -> None:
        """Write a line; returns when it is on the disk or lost, after WAIT_S at the latest. Never raises."""
        written = self.enqueue(line)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await written

    def enqueue(self, line: Line) -> asyncio.Future[None]:
        """Write a line soon; the future is done when it is on the disk or lost."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= QUEUE_MAX:
            self._lose([line], "too many lines wait for the disk")
            written.set_result(None)
            return written
        self._waiting.append((line, written))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting())
        return written

    async def page(
        self, before_id: int | None, since_ms: int, limit: int, wanted: Callable[[Line], bool] = _any_line
    ) -> AuditPage:
        """The newest lines that are `wanted`, `limit` at most, with an id below `before_id` (None: any) and from
        `since_ms` on. Raises OSError when the directory cannot be read."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread(), self._page, before_id, since_ms, limit, wanted
        )

    async def stop(self) -> None:
        """Write what waits, and close the file. A disk that hangs is waited for WAIT_S."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=WAIT_S)
        if self._pool is not None:
            pool, self._pool = self._pool, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await asyncio.get_running_loop().run_in_executor(pool, self._close)
            pool.shutdown(wait=False, cancel_futures=True)

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        for result, count in self.counts.items():
            yield "isthmus_audit_lines_total", {"result": result}, count

    def _thread(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="audit")
        return self._pool

    async def _write_waiting(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            lines, unmarked = [line for line, _ in batch], self._unmarked
            write = asyncio.get_running_loop().run_in_executor(self._thread(), self._write, lines, unmarked)
            lost, why, synced = await write
            written_count = len(lines) - len(lost)
            self.counts["written" if synced else "unsynced"] += written_count
            if written_count:
                self._unmarked -= unmarked
            if lost:
                self._lose(lost, why)
            for _, written in batch:
                if not written.done():
                    written.set_result(None)

    def _lose(self, lines: list[Line], why: str) -> None:
        """Count lost lines; the process's log has who did what in the first of them."""
        self.counts["lost"] += len(lines)
        self._unmarked += len(lines)
        first = lines[0]
        log.error("audit.lost", lines=len(lines), why=why, who=first["who"], act=first["what"]["act"])

    # ---------------------------------------------------------------- in the thread

    def _write(self, lines: list[Line], lost_before: int) -> tuple[list[Line], str, bool]:
        """Write and sync. Returns the lines that are lost, why, and whether the others are synced."""
        done, why = 0, ""
        try:
            self._read_directory()
            for line in lines:
                self._write_line(line, 0 if done else lost_before)
                done += 1
        except OSError as error:
            why = error.strerror or str(error)
        except Exception as error:  # no line may end the writing of others
            unforeseen.exception("audit.write_failed", error)
            why = f"the line cannot be written: {type(error).__name__}"
        return lines[done:], why, done == 0 or self._fd < 0 or self._sync()

    def _write_line(self, line: Line, lost_before: int) -> None:
        number = self._next_id + lost_before
        data = _encoded({"id": number, **line, **({"lost_before": lost_before} if lost_before else {})})
        if self._fd < 0 or (self._size and self._size + len(data) > self._file_bytes):
            self._rotate(number)
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

    def _sync(self) -> bool:
        try:
            os.fsync(self._fd)
        except OSError as error:
            log.error("audit.unsynced", why=error.strerror)
            return False
        return True

    def _read_directory(self) -> None:
        """Once, at the first line: go on with the newest file, behind its last whole line."""
        if self._next_id:
            return
        self.directory.mkdir(mode=0o700, exist_ok=True)
        files = self._files()
        if not files:
            self._next_id = 1
            return
        newest = files[-1]
        last = next((line for line, _ in _backwards(newest) if line is not None), None)
        self._open(newest)
        self._torn = self._size > 0 and not _ends_whole(newest)
        self._next_id = (_first_id(newest) if last is None else last["id"]) + 1

    def _rotate(self, first_id: int) -> None:
        """Begin a file whose first line has this id, and delete the oldest ones that are too many."""
        if self._fd >= 0:
            self._sync()
            self._close()
        self._open(self.directory / f"{first_id:0{ID_DIGITS}}{SUFFIX}")
        self._torn = self._size > 0
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        for old in self._files()[: -self._files_count]:
            old.unlink(missing_ok=True)

    def _open(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _files(self) -> list[Path]:
        """The files, the oldest first."""
        try:
            return sorted(path for path in self.directory.iterdir() if path.suffix == SUFFIX and path.stem.isdigit())
        except FileNotFoundError:
            return []

    def _page(self, before_id: int | None, since_ms: int, limit: int, wanted: Callable[[Line], bool]) -> AuditPage:
        acts: list[Line] = []
        taken_bytes = scanned_bytes = unreadable = 0
        read_to: tuple[int, int] | None = None
        for path in reversed(self._files()):
            if before_id is not None and _first_id(path) >= before_id:
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
                    if line["at_ms"] + CLOCK_SLACK_MS < since_ms:
                        return AuditPage(acts, False, unreadable, read_to)  # all before it are older
                    if scanned_bytes > SCAN_BYTES_MAX:
                        return AuditPage(acts, True, unreadable, read_to)
                    if line["at_ms"] >= since_ms and wanted(line):
                        if len(acts) == limit or taken_bytes > PAGE_BYTES_MAX:
                            return AuditPage(acts, True, unreadable, read_to)
                        acts.append(line)
                        taken_bytes += size
                    scanned_bytes += size
                    read_to = line["id"], line["at_ms"]
            except FileNotFoundError:
                continue  # deleted meanwhile
        return AuditPage(acts, False, unreadable, read_to)


def _encoded(line: Line) -> bytes:
    """A line with its newline, in UTF-8; half of a surrogate pair stays an escape."""
    data = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace") + b"\n"
    if len(data) <= LINE_BYTES_MAX:
        return data
    what = {**line["what"], "request": None}
    return _encoded({**line, "what": what, "before": None, "after": None, "cut": True}) if "cut" not in line else data


def _first_id(path: Path) -> int:
    return int(path.stem)


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

"""The journal of one node: a JSON line for each act of an operator, in files of bounded size.

`node.http.audit` makes the lines; this module writes and reads them, in `DATA_DIR/audit` (`line_files`).

One thread writes, off the event loop: whole lines, then one fsync for all lines that came together. `append` returns
when its line is on the disk, or after WAIT_S without it. A line that cannot be written is lost: the loss is counted
and logged, the next line that is written has the number of lost ones before it (`lost_before`), and their ids stay
free.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import structlog

from isthmus.node.observability.line_files import Line, LineFiles, LinePage
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

DIRECTORY: Final = "audit"
"""Folder of the data directory."""

QUEUE_MAX: Final = 512
"""Acts that wait for the disk; with more, new ones are lost. A disk that stalls for seconds is bridged, as operators
act a few times a second at most; lines of LINE_BYTES_MAX would take 16 MB."""

WAIT_S: Final = 1.0
"""How long `append` waits for the disk. A sync takes milliseconds; the answer to an operator must not wait for a disk
that hangs."""

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


def _any_line(_line: Line) -> bool:
    return True


class Journal:
    """The journal in one data directory; the event loop appends and reads, one thread has the files."""

    def __init__(self, data_dir: Path, file_bytes: int, files_count: int) -> None:
        self.directory = data_dir / DIRECTORY
        self._acts = LineFiles(self.directory, "", file_bytes, files_count)
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: list[tuple[Line, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._unmarked = 0
        """Lost acts that no written line counts yet."""
        self.counts = {"written": 0, "unsynced": 0, "lost": 0}

    def limit(self, file_bytes: int, files_count: int) -> None:
        """Other limits of the files of acts, from the next line on."""
        self._acts.limit(file_bytes, files_count)

    async def append(self, line: Line) -> None:
        """Write an act; returns when it is on the disk or lost, after WAIT_S at the latest. Never raises."""
        written = self.enqueue(line)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await written

    def enqueue(self, line: Line) -> asyncio.Future[None]:
        """Write an act soon; the future is done when it is on the disk or lost."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if len(self._waiting) >= QUEUE_MAX:
            self._lose([line], "too many lines wait for the disk")
            written.set_result(None)
            return written
        self._waiting.append((line, written))
        self._write_soon()
        return written

    async def acts(
        self, before_id: int | None, since_ms: int, limit: int, wanted: Callable[[Line], bool] = _any_line
    ) -> LinePage:
        """A page of acts: see `LineFiles.page`. Raises OSError when the directory cannot be read."""
        return await asyncio.get_running_loop().run_in_executor(
            self._thread(), self._acts.page, before_id, since_ms, limit, wanted
        )

    async def stop(self) -> None:
        """Write what waits, and close the files. A disk that hangs is waited for WAIT_S."""
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=WAIT_S)
        if self._pool is not None:
            pool, self._pool = self._pool, None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_S):
                    await asyncio.get_running_loop().run_in_executor(pool, self._acts.close)
            pool.shutdown(wait=False, cancel_futures=True)

    def samples(self) -> Iterator[Sample]:
        """Samples for Prometheus."""
        for result, count in self.counts.items():
            yield "isthmus_audit_lines_total", {"result": result}, count

    def _thread(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="journal")
        return self._pool

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting())

    async def _write_waiting(self) -> None:
        while self._waiting:
            await self._write_acts()

    async def _write_acts(self) -> None:
        batch, self._waiting = self._waiting, []
        lines, unmarked = [line for line, _ in batch], self._unmarked
        write = partial(self._acts.write, lines, unmarked, sync=True)
        result = await asyncio.get_running_loop().run_in_executor(self._thread(), write)
        if result.unsynced is not None:
            log.error("audit.unsynced", why=result.unsynced.strerror)
        self.counts["written" if result.unsynced is None else "unsynced"] += result.done_count
        if result.done_count:
            self._unmarked -= unmarked
        if result.error is not None:
            self._lose(lines[result.done_count :], _reason(result.error, "audit.write_failed"))
        for _, written in batch:
            if not written.done():
                written.set_result(None)

    def _lose(self, lines: list[Line], why: str) -> None:
        """Count lost acts; the process's log has who did what in the first of them."""
        self.counts["lost"] += len(lines)
        self._unmarked += len(lines)
        first = lines[0]
        log.error("audit.lost", lines=len(lines), why=why, who=first["who"], act=first["what"]["act"])


def _reason(error: Exception, event: str) -> str:
    """Why a line was not written; an error that is not the disk's is logged as `event`."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    unforeseen.exception(event, error)
    return f"the line cannot be written: {type(error).__name__}"

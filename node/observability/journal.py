"""The journal of one node: what happened, a JSON line for each act of an operator and each event, in bounded files.

`node.http.audit` makes the lines of acts, `events` has the events in memory; this module writes and reads both, in
`DATA_DIR/audit`. Each kind has its own files (`line_files`), so that events, which may be many, push out no act.

One thread writes, off the event loop. Acts are synced, one fsync for all that came together: `append` returns when its
line is on the disk, or after WAIT_S without it. An act that cannot be written is lost: the loss is counted and logged,
the next one that is written has the number of lost ones before it (`lost_before`), and their ids stay free.

Events are written after the acts that wait, and not synced. While they cannot be written they stay in memory, and are
tried again every RETRY_S; those whose place there newer ones have taken are lost, and counted the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from isthmus.node.observability.events import TEXT_MAX, RecentEvent, RecentEvents
from isthmus.node.observability.line_files import CLOCK_SLACK_MS, Line, LineFiles, LinePage, Written, utc_text
from isthmus.node.observability.redaction import Redactor
from isthmus.repl.log_limit import LogLimit
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

READ_S: Final = 1.5
"""How long a node reads its journal for one answer, below the time-out of a query between nodes; its files are some ten
megabytes, and a disk that hangs must not hold the answers of the other nodes."""

EVENTS_PREFIX: Final = "events-"

EVENTS_FILE_BYTES: Final = 2_000_000
EVENTS_FILES: Final = 4
"""With files of this size: 8 MB, some 25,000 events, or weeks of a quiet node. A search reads all of them in 0.2 s."""

EVENTS_BATCH: Final = 500
"""Events that are written at once: an act waits for them at most some milliseconds."""

RETRY_S: Final = 2.0
"""Between two attempts to write events to a disk that is full or fails, which is when they come by the hundred; an
attempt takes some milliseconds of the event loop."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_audit_lines_total": Family(
        "Lines of the audit log by result: written, unsynced (written, but fsync failed), lost (the disk is full or "
        "fails, or too many waited). A lost act was carried out all the same.",
        "lines",
        "logs and store",
        ("result",),
    ),
    "isthmus_journal_events_total": Family(
        "Events by what became of them in the journal on disk: written, repeated (left out, since the same came too "
        "often), lost (the disk was full, failed or hung for longer than memory keeps events).",
        "events",
        "logs and store",
        ("result",),
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


def _any_line(_line: Line) -> bool:
    return True


class NodeEvents(NamedTuple):
    """Events that happen in a node's process: `secrets` gives the texts that no line may have."""

    node: str
    recent: RecentEvents
    secrets: Callable[[], list[str]]


class EventPage(NamedTuple):
    """Lines of events, the oldest first."""

    lines: list[Line]
    unread: str
    """Why older events, which are in files, are missing; "" if none are."""


class Journal:
    """The journal in one data directory; the event loop appends and reads, one thread has the files.

    `file_bytes` and `files_count` are the limits of acts."""

    def __init__(self, data_dir: Path, file_bytes: int, files_count: int, events: NodeEvents) -> None:
        self.directory = data_dir / DIRECTORY
        self._acts = LineFiles(self.directory, "", file_bytes, files_count, in_order=True)
        # Not in order: each start of a machine may log events before its clock is set.
        self._events = LineFiles(self.directory, EVENTS_PREFIX, EVENTS_FILE_BYTES, EVENTS_FILES, in_order=False)
        self._source = events
        self._loop: asyncio.AbstractEventLoop | None = None
        """Where events are written from; None: not yet, or no longer."""
        self._woken = False
        """The loop is to look for events."""
        self._events_due = False
        self._retry: asyncio.TimerHandle | None = None
        """Set while events wait because they could not be written."""
        self._events_to = 0
        """Number of the newest event that needs no writing any more."""
        self._events_unmarked = 0
        """Lost events that no written line counts yet."""
        self._failures = LogLimit()
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: list[tuple[Line, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._stopped = False
        self._unmarked = 0
        """Lost acts that no written line counts yet."""
        self.counts = {"written": 0, "unsynced": 0, "lost": 0}
        """Acts."""
        self.event_counts = {"written": 0, "repeated": 0, "lost": 0}

    def limit(self, file_bytes: int, files_count: int) -> None:
        """Other limits of the files of acts, from the next line on."""
        self._acts.limit(file_bytes, files_count)

    def start(self) -> None:
        """Write events from now on, those since the process began first; the running loop does it."""
        self._loop = asyncio.get_running_loop()
        self._source.recent.listener = self._on_event
        self._look_for_events()

    async def append(self, line: Line) -> None:
        """Write an act; returns when it is on the disk or lost, after WAIT_S at the latest. Never raises."""
        written = self.enqueue(line)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_S):
                await written

    def enqueue(self, line: Line) -> asyncio.Future[None]:
        """Write an act soon; the future is done when it is on the disk or lost."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._stopped or len(self._waiting) >= QUEUE_MAX:
            self._lose([line], "the node has stopped" if self._stopped else "too many lines wait for the disk")
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

    async def events(self, since_ms: int, limit: int, kind: str | None = None) -> EventPage:
        """The newest events (of a kind) from `since_ms` on, `limit` at most: those in memory, and older ones from the
        files as far as these are needed. Never raises."""
        recent = self._source.recent
        in_memory = recent.all()
        newest = [each for each in in_memory if each.at_ms >= since_ms and kind in (None, each.kind)][-limit:]
        lines = self._lines_of(newest)
        if len(lines) == limit or since_ms > recent.complete_from_ms() + CLOCK_SLACK_MS:
            return EventPage(lines, "")
        known = {self._event_id(each) for each in in_memory}
        older: list[Line] = []
        why = ""
        try:
            async with asyncio.timeout(READ_S):
                why = await self._read_older(older, since_ms, limit - len(lines), kind, known)
        except TimeoutError:
            why = f"the disk did not give {self.directory} within {READ_S} s"
        except OSError as error:
            why = f"{self.directory} cannot be read: {error.strerror}"
        return EventPage([*reversed(older), *lines], why)

    async def stop(self) -> None:
        """Write what waits, and close the files. A disk that hangs is waited for WAIT_S. Never raises."""
        if self._loop is not None:
            self._source.recent.listener = None
            self._end_pause()
        if self._writing is not None:
            await asyncio.wait([self._writing], timeout=WAIT_S)
        self._loop, self._stopped = None, True
        if self._retry is not None:
            self._retry.cancel()
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
        for result, count in self.event_counts.items():
            yield "isthmus_journal_events_total", {"result": result}, count

    def _thread(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="journal")
        return self._pool

    def _write_soon(self) -> None:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_waiting())

    def _close(self) -> None:
        self._acts.close()
        self._events.close()

    async def _write_waiting(self) -> None:
        while not self._stopped and (self._waiting or self._events_due):
            if self._waiting:
                await self._write_acts()
            else:
                self._events_due = False
                await self._write_events()

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
        ended_count = len(batch)
        if result.error is not None:
            if not isinstance(result.error, OSError):
                unforeseen.exception("audit.write_failed", result.error)
                ended_count = result.done_count + 1  # this line is lost alone
            self._lose(lines[result.done_count : ended_count], _reason(result.error))
        self._waiting[:0] = batch[ended_count:]
        for _, written in batch[:ended_count]:
            if not written.done():
                written.set_result(None)

    def _on_event(self) -> None:
        """See `RecentEvents.listener`."""
        loop = self._loop
        if loop is not None and not self._woken:
            self._woken = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._look_for_events)

    def _look_for_events(self) -> None:
        self._woken = False
        if self._loop is not None and self._retry is None and self._source.recent.newest > self._events_to:
            self._events_due = True
            self._write_soon()

    def _end_pause(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._look_for_events()

    async def _write_events(self) -> None:
        """Write the oldest events that are not written yet; after a failure they wait for RETRY_S."""
        batch = self._source.recent.after(self._events_to, EVENTS_BATCH)
        if not batch:
            return
        self._lose_events(batch[0].number - self._events_to - 1)
        wanted = [each for each in batch if each.suppressed is not None]
        lines = self._lines_of(wanted)
        for line, event in zip(lines, wanted, strict=True):
            if event.suppressed:
                line["text"] += f" ({event.suppressed} like it left out before)"
        write = partial(self._append_events, lines, self._events_unmarked)
        result = await asyncio.get_running_loop().run_in_executor(self._thread(), write)
        if result.done_count:
            self._events_unmarked = 0
        to = batch[-1].number
        if isinstance(result.error, OSError):
            to = wanted[result.done_count].number - 1  # it and those after it are tried again
            if self._loop is not None:
                self._retry = self._loop.call_later(RETRY_S, self._end_pause)
            if (suppressed := self._failures.due()) is not None:
                log.warning("journal.events_wait", why=_reason(result.error), suppressed=suppressed)
        elif result.error is not None:
            to = wanted[result.done_count].number  # it is lost alone
            unforeseen.exception("journal.write_failed", result.error)
            self._lose_events(1)
        self._events_due = self._loop is not None and self._retry is None and self._source.recent.newest > to
        self._events_to = to
        self.event_counts["written"] += result.done_count
        self.event_counts["repeated"] += sum(each.suppressed is None and each.number <= to for each in batch)

    def _lose_events(self, count: int) -> None:
        self.event_counts["lost"] += count
        self._events_unmarked += count

    def _append_events(self, lines: list[Line], lost_before: int) -> Written:
        """In the thread. The file is closed again: events are rare, and descriptors may be short."""
        if not lines:
            return Written(0, None, None)
        try:
            return self._events.write(lines, lost_before, sync=False)
        finally:
            self._events.close()

    async def _read_older(self, into: list[Line], since_ms: int, limit: int, kind: str | None, known: set[str]) -> str:
        """Add the newest lines that are wanted, the newest first. Returns which file could not be read, and why; "" if
        none. Raises OSError."""

        def wanted(line: Line) -> bool:
            return line.get("event_id") not in known and kind in (None, line.get("kind"))

        before: int | None = None
        unread = ""
        while True:
            read = partial(self._events.page, before, since_ms, limit - len(into), wanted)
            page = await asyncio.get_running_loop().run_in_executor(self._thread(), read)
            into += page.lines
            unread = unread or page.unread
            if not page.more or page.read_to is None or len(into) >= limit:
                return unread
            before = page.read_to[0]

    def _lines_of(self, events: Iterable[RecentEvent]) -> list[Line]:
        """The lines of events, without what is known to be a secret."""
        clean = Redactor(self._source.secrets()).without_known
        return [
            {
                "at": utc_text(each.at_ms),
                "at_ms": each.at_ms,
                "node": self._source.node,
                "kind": each.kind,
                "event": each.event,
                "level": each.level,
                "subject": clean(each.subject)[:TEXT_MAX],
                "text": clean(each.text)[:TEXT_MAX],
                "event_id": self._event_id(each),
            }
            for each in events
        ]

    def _event_id(self, event: RecentEvent) -> str:
        """Unique among the events of the node, over its restarts, too."""
        return f"e{self._source.recent.began_ms}-{event.number}"

    def _lose(self, lines: list[Line], why: str) -> None:
        """Count lost acts; the process's log has who did what in the first of them."""
        self.counts["lost"] += len(lines)
        self._unmarked += len(lines)
        first = lines[0]
        log.error("audit.lost", lines=len(lines), why=why, who=first["who"], act=first["what"]["act"])


def _reason(error: Exception) -> str:
    """Why a line was not written."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return f"the line cannot be written: {type(error).__name__}"

"""How many changes wait in a queue on this node, when not all of them are in memory: true of one moment, or not told.

    resting -> reading    rows of the change index above each window's `scan`, in the read pool; what is applied
                          meanwhile is noted
    reading -> told       all that the store had when the reading ended has been told to the windows
    told    -> resting    in one turn of the loop: what is in memory, and the rows with what was noted, less those for
                          which a reference in memory stands already

A row that is overwritten while the reading goes on is found twice, or never; the notes put both right. What cannot be
put right (a window that was made anew, too many rows, too many notes) is None. The story goes back to
`queues.queue_server`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Final, NamedTuple

from isthmus.queues.object_reader import read_changes
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.window import Window
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.store.port import DamagedChange, Store

ROWS_MAX: Final = 200_000
"""Rows read for one count; beyond it the answer is "unknown"."""

NOTES_MAX: Final = 100_000
"""Changes noted while rows are read; beyond it the answer is "unknown": three seconds of the fastest writers."""

STEP_ROWS: Final = 4_096
"""Rows read at once: bounds memory."""

REST: Final = 10
"""A count holds for this many times as long as it took: listing must not cost what serving needs."""

REST_MIN_MS: Final = 1_000
"""It holds at least for so long."""

TELLING_MS: Final = 1_000
"""How long the windows may be behind the store before the answer is "unknown"; usually they are by milliseconds."""


class Backlog(NamedTuple):
    """How many changes wait, the leader's wall clock of the oldest, both None when not known or none; `at_ms` (wall
    clock) is the moment that this is true of."""

    changes: int | None
    oldest_ms: int | None
    at_ms: int


class Note(NamedTuple):
    """A change that was applied: its row, the row that it replaced, when it was made, and whether it is for the
    queue."""

    offset: int
    previous: int
    time_ms: int
    wanted: bool


class UncountedWindow(NamedTuple):
    """One window and the rows above its `scan` that are for the queue: offset -> time."""

    window: Window
    start: int
    end: int
    notes: list[Note]


class BacklogCounter:
    """See the module's text."""

    def __init__(self, machine: SourceQueue, store: Store, pool: Executor, time: TimeSource) -> None:
        self._machine = machine
        self._store = store
        self._pool = pool
        self._time = time
        self._lock = asyncio.Lock()
        self._last = Backlog(None, None, 0)
        self._again_ms = 0

    async def waiting(self, partitions_led: int) -> Backlog:
        """Exact from memory when all is there, else the last count that still holds, or a new one."""
        machine = self._machine
        if len(machine.windows) < partitions_led:
            return Backlog(None, None, self._time.wall_ms())
        async with self._lock:
            if not machine.incomplete_windows():
                return Backlog(self._in_memory(), machine.oldest_ms(), self._time.wall_ms())
            began = self._time.now_ms()
            if began >= self._again_ms:
                self._last = await self._counted()
                now = self._time.now_ms()
                self._again_ms = now + max(REST_MIN_MS, REST * (now - began))
            return self._last

    def _in_memory(self) -> int:
        return sum(window.waiting_count for window in self._machine.windows.values())

    async def _counted(self) -> Backlog:
        machine, loop = self._machine, asyncio.get_running_loop()
        # Of all windows: one that has all in memory may stop meanwhile.
        unread = {p: UncountedWindow(w, w.scan, w.applied, []) for p, w in machine.windows.items()}
        heard = asyncio.Event()

        def noted(window: Window, entries: Sequence[Entry]) -> None:
            _note(unread, window, entries)
            heard.set()

        machine.on_added = noted
        try:
            rows, complete, told = await loop.run_in_executor(self._pool, self._read, list(unread.values()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TELLING_MS / 1000):
                    while any(one.window.applied < told.get(p, 0) for p, one in unread.items()):
                        heard.clear()
                        await heard.wait()
            windows, wall_ms = machine.windows, self._time.wall_ms()
            in_memory, oldest = self._in_memory(), machine.oldest_ms()
            if not complete:
                times = [t for t in (oldest, *(t for found in rows.values() for t in found.values())) if t is not None]
                return Backlog(None, min(times, default=None), wall_ms)
            behind = any(
                w.applied < told[p] or len(unread[p].notes) > NOTES_MAX for p, w in windows.items() if p in told
            )
            if behind or windows != {p: one.window for p, one in unread.items()}:
                return Backlog(None, None, wall_ms)
            stood_for = {p: one.window.rows_in_memory() for p, one in unread.items()}
            scans = {p: one.window.scan for p, one in unread.items()}
        finally:
            machine.on_added = None

        def added() -> tuple[int, int | None]:
            count, first = 0, None
            for partition, one in unread.items():
                times = with_notes(rows[partition], one.notes, scans[partition], stood_for[partition])
                count += len(times)
                first = min((t for t in (first, *times) if t is not None), default=None)
            return count, first

        count, first = await loop.run_in_executor(self._pool, added)
        times = [t for t in (oldest, first) if t is not None]
        return Backlog(in_memory + count, min(times, default=None), wall_ms)

    def _read(self, unread: Sequence[UncountedWindow]) -> tuple[dict[int, dict[int, int]], bool, dict[int, int]]:
        """({partition: {row: time}} of the rows that are for the queue, whether these are all, {partition: applied
        offset behind the reading}). In the read pool."""
        found: dict[int, dict[int, int]] = {}
        room = ROWS_MAX
        for one in unread:
            partition, offset = one.window.partition, one.start
            times = found[partition] = {}
            while offset < one.end:
                try:
                    rows = read_changes(self._store, one.window, offset, STEP_ROWS)
                except DamagedChange:  # what stands behind it is not known until it is mended
                    return found, False, {}
                times |= {
                    row.offset: row.time_ms for row in rows if row.offset < one.end and one.window.offers_row(row)
                }
                room -= len(rows)
                if len(rows) < STEP_ROWS:
                    break
                if room < 0:
                    return found, False, {}
                offset = rows[-1].offset + 1
        return found, True, {one.window.partition: self._store.applied(one.window.partition).offset for one in unread}


def _note(unread: dict[int, UncountedWindow], window: Window, entries: Sequence[Entry]) -> None:
    one = unread.get(window.partition)
    if one is not None and one.window is window and len(one.notes) <= NOTES_MAX:
        one.notes.extend(Note(e.offset, e.previous_offset, e.time_ms, window.offers(e)) for e in entries)


def with_notes(rows: dict[int, int], notes: Sequence[Note], scan: int, stood_for: set[int]) -> list[int]:
    """Times of the rows that wait and are not in memory, once the notes are taken in (pure)."""
    now = dict(rows)
    for note in notes:
        now.pop(note.previous, None)
        if note.wanted:
            now[note.offset] = note.time_ms
    return [time_ms for offset, time_ms in now.items() if offset >= scan and offset not in stood_for]

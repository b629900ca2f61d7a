"""Counts the changes that wait in a queue on this node when not all are in memory: exact for one moment, or unknown.

    idle      -> reading     reads rows of the change index above each window's `scan` in the read pool, and notes the
                             entries that are applied meanwhile
    reading   -> caught up   the windows got all entries that the store had when the reading ended
    caught up -> idle        in one turn of the loop: adds up references in memory and rows, corrected by the notes,
                             without the rows that have a reference in memory

A row that is overwritten during the reading is found twice, or never; the notes correct both. The count is None where
they cannot: a window was replaced, or there are too many rows or notes.
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
"""Rows read for one count; beyond it the count is unknown."""

NOTES_MAX: Final = 100_000
"""Changes noted while rows are read; beyond it the count is unknown: three seconds of the fastest writers."""

STEP_ROWS: Final = 4_096
"""Rows read at once: bounds memory."""

REUSE_FACTOR: Final = 10
"""A count is reused for this many times as long as it took: listings must not take the time that serving needs."""

REUSE_MIN_MS: Final = 1_000
"""A count is reused at least for so long."""

CATCH_UP_MS: Final = 1_000
"""How long the windows may be behind the store before the count is unknown; usually they are by milliseconds."""


class Backlog(NamedTuple):
    """How many changes wait (None: unknown), and the leader's wall clock of the oldest (None: unknown, or none), as of
    `at_ms` (wall clock)."""

    changes: int | None
    oldest_ms: int | None
    at_ms: int


class Note(NamedTuple):
    """An applied change: its row, the row that it replaced, when it was made, and whether the queue offers it."""

    offset: int
    previous: int
    time_ms: int
    offered: bool


class UncountedWindow(NamedTuple):
    """A window and the range of rows to read for it, with the changes noted meanwhile."""

    window: Window
    start: int
    end: int
    notes: list[Note]


class BacklogCounter:
    """The counter of one queue."""

    def __init__(self, machine: SourceQueue, store: Store, pool: Executor, time: TimeSource) -> None:
        self._machine = machine
        self._store = store
        self._pool = pool
        self._time = time
        self._lock = asyncio.Lock()
        self._last = Backlog(None, None, 0)
        self._reuse_until_ms = 0

    async def count(self, partitions_led: int) -> Backlog:
        """From memory when everything is there, else the last count, or a new one when that is too old."""
        machine = self._machine
        if len(machine.windows) < partitions_led:
            return Backlog(None, None, self._time.wall_ms())
        async with self._lock:
            if not machine.incomplete_windows():
                return Backlog(self._in_memory(), machine.oldest_ms(), self._time.wall_ms())
            began = self._time.now_ms()
            if began >= self._reuse_until_ms:
                self._last = await self._count()
                now = self._time.now_ms()
                self._reuse_until_ms = now + max(REUSE_MIN_MS, REUSE_FACTOR * (now - began))
            return self._last

    def _in_memory(self) -> int:
        return sum(window.waiting_count for window in self._machine.windows.values())

    async def _count(self) -> Backlog:
        machine, loop = self._machine, asyncio.get_running_loop()
        # All windows, since one that is contiguous now may stop meanwhile.
        unread = {p: UncountedWindow(w, w.scan, w.applied, []) for p, w in machine.windows.items()}
        added = asyncio.Event()

        def noted(window: Window, entries: Sequence[Entry]) -> None:
            _note(unread, window, entries)
            added.set()

        machine.on_added = noted
        try:
            rows, complete, ends = await loop.run_in_executor(self._pool, self._read, list(unread.values()))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CATCH_UP_MS / 1000):
                    while any(one.window.applied < ends.get(p, 0) for p, one in unread.items()):
                        added.clear()
                        await added.wait()
            windows, wall_ms = machine.windows, self._time.wall_ms()
            in_memory, oldest = self._in_memory(), machine.oldest_ms()
            if not complete:
                times = [t for t in (oldest, *(t for found in rows.values() for t in found.values())) if t is not None]
                return Backlog(None, min(times, default=None), wall_ms)
            behind = any(
                w.applied < ends[p] or len(unread[p].notes) > NOTES_MAX for p, w in windows.items() if p in ends
            )
            if behind or windows != {p: one.window for p, one in unread.items()}:
                return Backlog(None, None, wall_ms)
            in_memory_rows = {p: one.window.rows_in_memory() for p, one in unread.items()}
            scans = {p: one.window.scan for p, one in unread.items()}
        finally:
            machine.on_added = None

        def total() -> tuple[int, int | None]:
            count, first = 0, None
            for partition, one in unread.items():
                times = with_notes(rows[partition], one.notes, scans[partition], in_memory_rows[partition])
                count += len(times)
                first = min((t for t in (first, *times) if t is not None), default=None)
            return count, first

        count, first = await loop.run_in_executor(self._pool, total)
        times = [t for t in (oldest, first) if t is not None]
        return Backlog(in_memory + count, min(times, default=None), wall_ms)

    def _read(self, unread: Sequence[UncountedWindow]) -> tuple[dict[int, dict[int, int]], bool, dict[int, int]]:
        """({partition: {row: time}} of the rows that the queue offers, whether these are all, {partition: applied
        offset after the reading}). Runs in the read pool."""
        found: dict[int, dict[int, int]] = {}
        room = ROWS_MAX
        for one in unread:
            partition, offset = one.window.partition, one.start
            times = found[partition] = {}
            while offset < one.end:
                try:
                    rows = read_changes(self._store, one.window, offset, STEP_ROWS)
                except DamagedChange as error:
                    if not one.window.passes_over(error.offset):
                        return found, False, {}  # what lies behind it is not known yet
                    rows, after = list(error.before), error.offset + 1
                else:
                    after = rows[-1].offset + 1 if len(rows) == STEP_ROWS else one.end
                times |= {
                    row.offset: row.time_ms for row in rows if row.offset < one.end and one.window.offers_row(row)
                }
                room -= len(rows)
                if room < 0 and after < one.end:
                    return found, False, {}
                offset = after
        return found, True, {one.window.partition: self._store.applied(one.window.partition).offset for one in unread}


def _note(unread: dict[int, UncountedWindow], window: Window, entries: Sequence[Entry]) -> None:
    one = unread.get(window.partition)
    if one is not None and one.window is window and len(one.notes) <= NOTES_MAX:
        one.notes.extend(Note(e.offset, e.previous_offset, e.time_ms, window.offers(e)) for e in entries)


def with_notes(rows: dict[int, int], notes: Sequence[Note], scan: int, in_memory_rows: set[int]) -> list[int]:
    """Times of the rows that wait and have no reference in memory, after the notes are applied (pure)."""
    now = dict(rows)
    for note in notes:
        now.pop(note.previous, None)
        if note.offered:
            now[note.offset] = note.time_ms
    return [time_ms for offset, time_ms in now.items() if offset >= scan and offset not in in_memory_rows]

"""The highest counters of other clusters' actors in this node's rows, which it tells those clusters (R-ACTOR).

A cluster that was put back to an earlier state, as by its machines' snapshots, does not know it; the others do, by the
clocks of what they got from it. Applied entries raise the counters; what was stored before this process started is
found by one pass over the key rows, slowly. Until it has ended, a counter may be too low, which hides a loss and never
invents one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from typing import Final

import structlog

from isthmus.repl.machine import machine
from isthmus.repl.model.entry import KEY_ROW_VERSION, decode_key_row
from isthmus.repl.model.errors import CodecError, IsthmusError
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.model.vclock import decode_clock, dot_of_one_writer, parts_of
from isthmus.repl.store.port import Store
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

ACTORS_MAX: Final = 65_536
"""Actors whose counters are held, about 10 MB; further ones are left out, with a line in the log. 64 clusters with as
many partitions as one bucket type may have come to this."""

PASS_ROWS: Final = 10_000
"""Rows after which a turn of the pass ends, with their segment: some ten milliseconds of a thread."""

PASS_SEGMENTS: Final = 4_096
"""Segments of a partition that one turn reads at most once a turn has failed, so that damage hides few others: 1/256 of
its rows."""

PASS_SHARE: Final = 10
"""The pass sleeps this many times as long as its turns take: it takes at most a tenth of a core."""

_HEAD: Final = bytes((0x98, KEY_ROW_VERSION, 0xC4))
_LENGTH_AT: Final = len(_HEAD)
_CLOCK_AT: Final = _LENGTH_AT + 1


def clock_of(row: bytes) -> bytes:
    """The encoded clock in an encoded key row. Raises CodecError."""
    if row.startswith(_HEAD):
        return row[_CLOCK_AT : _CLOCK_AT + row[_LENGTH_AT]]
    return decode_key_row(row).clock


class HeldCounters:
    """The counters that one node holds. Belongs to the event loop; the pass reads in a thread of `pool`."""

    def __init__(self, store: Store, cluster_uuid: bytes, pool: Executor) -> None:
        self._store = store
        self._own = cluster_uuid
        self._pool = pool
        self._counters: dict[bytes, int] = {}
        self._full = False
        self._task: asyncio.Task[None] | None = None
        self.passes = 0
        """Passes over all rows that have ended: 0 while the counters may be too low."""

    def start(self) -> None:
        """Begin the pass over what is stored."""
        self._task = asyncio.get_running_loop().create_task(self._pass())

    async def stop(self) -> None:
        """End the pass."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def of(self, cluster_uuid: bytes) -> Mapping[bytes, int]:
        """Actor -> highest counter, of the actors of one cluster."""
        return {actor: counter for actor, counter in self._counters.items() if actor.startswith(cluster_uuid)}

    # -- see ApplyListener ------------------------------------------------------------------------------

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """Raise the counters by the clocks of applied entries."""
        for _, entries, _ in applied:
            self._raise(entry.row for entry in entries if entry.row)

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """Leader and follower hold the same."""

    # -- counting ---------------------------------------------------------------------------------------

    def _raise(self, rows: Iterable[bytes]) -> None:
        self._take(_highest(rows, self._own, self._counters))

    def _take(self, found: Mapping[bytes, int]) -> None:
        counters = self._counters
        for actor, counter in found.items():
            if counter > counters.get(actor, 0):
                if actor not in counters and len(counters) >= ACTORS_MAX:
                    if not self._full:
                        self._full = True
                        log.warning("held_counters.full", actors=ACTORS_MAX)
                    continue
                counters[actor] = counter

    async def _pass(self) -> None:
        loop = asyncio.get_running_loop()
        for partition in sorted(self._store.applied_offsets()):
            first, failed = 0, False
            while first < SEGMENT_COUNT:
                began = machine().monotonic_s()
                end = min(SEGMENT_COUNT, first + PASS_SEGMENTS) if failed else SEGMENT_COUNT
                try:
                    found, first = await loop.run_in_executor(self._pool, self._read, partition, first, end)
                except Exception as error:
                    if not failed:
                        failed = True
                        continue
                    if isinstance(error, IsthmusError):
                        # Rows that cannot be read are reported and mended elsewhere (R-MEND); the others still count.
                        log.info("held_counters.unread", partition=partition, segment=first, error=str(error))
                    else:
                        unforeseen.exception("held_counters.pass_bug", error, partition=partition, segment=first)
                    first = end
                    continue
                self._take(found)
                await asyncio.sleep((machine().monotonic_s() - began) * PASS_SHARE)
        self.passes += 1

    def _read(self, partition: int, first: int, end: int) -> tuple[dict[bytes, int], int]:
        """The counters of a turn's rows, of segments [first, end), and the segment at which the next turn begins."""
        taken: list[bytes] = []
        last = -1
        with closing(self._store.key_rows(partition, first, end)) as found_rows:
            for segment, _, _, row in found_rows:
                if len(taken) >= PASS_ROWS and segment != last:
                    end = segment
                    break
                taken.append(row)
                last = segment
        found = _highest(taken, self._own, {})
        if first == 0:
            for encoded in self._store.reaped_clocks(partition).values():
                _note(encoded, self._own, found)
        return found, end


def _highest(rows: Iterable[bytes], own: bytes, known: Mapping[bytes, int]) -> dict[bytes, int]:
    """The highest counters of other clusters' actors in the clocks of key rows, where they are above those `known`."""
    found: dict[bytes, int] = {}
    for row in rows:
        try:
            _note(clock_of(row), own, found)
        except CodecError:
            continue  # a damaged row, which is reported and mended elsewhere (R-MEND)
    return {actor: counter for actor, counter in found.items() if counter > known.get(actor, 0)}


def _note(encoded: bytes, own: bytes, found: dict[bytes, int]) -> None:
    dot = dot_of_one_writer(encoded)
    if dot is not None:
        actor, counter = dot
        if counter > found.get(actor, 0) and not actor.startswith(own):
            found[actor] = counter
        return
    for actor, counter, _ in decode_clock(encoded):
        if counter > found.get(actor, 0) and not actor.startswith(own) and parts_of(actor) is not None:
            found[actor] = counter

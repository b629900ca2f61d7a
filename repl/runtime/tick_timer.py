"""One timer for the deadlines of all replicas of a node.

A busy leader's deadline changes with every message: a timer for each replica would cost more than the tick, and so
would asking for the deadline each time. So after an event all replicas are checked together within CHECK_WITHIN_MS,
and this check computes when the next one is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from isthmus.repl.isr import events as ev
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.port import EventSink

TICK_MIN_MS: Final = 10
"""Least time between two checks: deadlines within it are served together. The shortest pause that the cores ask for is
ten times as long."""

CHECK_WITHIN_MS: Final = 50
"""Longest time from an event of a replica until its deadline is read. Deadlines that an event sets are further away
(see TICK_MIN_MS), so no tick is late; a busy node checks 20 times a second, 2 us a replica."""


class TickTimer:
    """Feeds a Tick to each replica whose deadline has passed, and flushes after each check."""

    def __init__(self, partitions: Mapping[int, Partition], time: TimeSource, events: EventSink) -> None:
        self._partitions = partitions
        self._time = time
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0
        """When the timer fires, by the loop's clock."""

    def arm(self) -> None:
        """A replica got an event: check deadlines within CHECK_WITHIN_MS."""
        at_s = self._loop.time() + CHECK_WITHIN_MS / 1000
        if self._timer is None or self._at_s > at_s:
            self._check_at(at_s)

    def _check_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at_s = at_s
        self._timer = self._loop.call_at(at_s, self._check)

    def _check(self) -> None:
        self._timer = None
        now_ms = self._time.now_ms()
        next_ms: int | None = None
        for partition in self._partitions.values():
            deadline_ms = partition.replica.deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._events.feed(partition, ev.Tick())
                deadline_ms = partition.replica.deadline_ms()
            if deadline_ms is not None and (next_ms is None or deadline_ms < next_ms):
                next_ms = deadline_ms
        if next_ms is not None:
            self._check_at(self._loop.time() + max(TICK_MIN_MS, next_ms - now_ms) / 1000)
        self._events.flush()

    def stop(self) -> None:
        """Check no more."""
        if self._timer is not None:
            self._timer.cancel()

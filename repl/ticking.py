"""One timer for the deadlines of all replicas of a node.

A busy leader's deadline changes with every message: a timer each would cost more than the tick is worth, and so would
asking for the deadline each time. So a replica to which something happened is looked at within LOOK_WITHIN_MS, with
all the others, and it is this look that finds out when the next one is due.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from repl.model.ports import TimeSource
from repl.partition import Partition

TICK_MIN_MS: Final = 10
"""Least time between two looks: deadlines within it are served together. The shortest pause that the cores ask for
is ten times as long."""

LOOK_WITHIN_MS: Final = 50
"""Longest time from something that happens to a replica until its deadline is asked for. What it set meanwhile is
further away (see above), so no tick is late for it; a busy node looks 20 times a second, 2 us a replica."""


class Ticking:
    """Calls `tick(partition)` when the partition's replica is due, and `done()` after each look."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        time: TimeSource,
        tick: Callable[[Partition], None],
        done: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._time = time
        self._tick = tick
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0
        """When the timer fires, by the loop's clock."""

    def arm(self) -> None:
        """Something happened to a replica: let the next look come soon enough for whatever it wants."""
        at_s = self._loop.time() + LOOK_WITHIN_MS / 1000
        if self._timer is None or self._at_s > at_s:
            self._look_at(at_s)

    def _look_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at_s = at_s
        self._timer = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._time.now_ms()
        next_ms: int | None = None
        for partition in self._partitions.values():
            deadline_ms = partition.replica.deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._tick(partition)
                deadline_ms = partition.replica.deadline_ms()
            if deadline_ms is not None and (next_ms is None or deadline_ms < next_ms):
                next_ms = deadline_ms
        if next_ms is not None:
            self._look_at(self._loop.time() + max(TICK_MIN_MS, next_ms - now_ms) / 1000)
        self._done()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

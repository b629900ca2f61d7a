"""One timer for the deadlines of all replicas of a node.

A busy leader's deadline changes with every message; a timer each would cost more than the tick is worth. So the timer
is only ever moved forward when a deadline comes nearer, and looks at all of them when it fires.
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
        self._due_ms = 0

    def arm(self, partition: Partition) -> None:
        """Let the next look come no later than this replica's deadline."""
        deadline_ms = partition.replica.deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._due_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._due_ms = deadline_ms
        delay_ms = max(TICK_MIN_MS, deadline_ms - self._time.now_ms())
        self._timer = self._loop.call_later(delay_ms / 1000, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._time.now_ms()
        for partition in self._partitions.values():
            deadline_ms = partition.replica.deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._tick(partition)
            self.arm(partition)
        self._done()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()

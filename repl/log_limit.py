"""Limits how often an event is logged while its cause lasts."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

INTERVAL_S: Final = 10.0
"""Least time between two lines of one event: a frequent fault is still seen within seconds, and costs 360 lines an
hour."""


class LogLimit:
    """Counts suppressed events. Not thread-safe."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._next_s = float("-inf")
        self._suppressed = 0

    def due(self) -> int | None:
        """None when the event was logged less than INTERVAL_S ago; else how many were suppressed since."""
        now_s = self._clock()
        if now_s < self._next_s:
            self._suppressed += 1
            return None
        self._next_s = now_s + INTERVAL_S
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed

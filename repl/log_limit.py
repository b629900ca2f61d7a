"""Limit how often one event is logged while its cause lasts."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final

INTERVAL_S: Final = 10.0
"""Between two lines of one event: a fault that is met five times a second is still seen within seconds, and costs
360 lines an hour."""


class LogLimit:
    """Counts what is left out. Not for several threads."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._next_s = float("-inf")
        self._left_out = 0

    def due(self) -> int | None:
        """None when the event was logged less than INTERVAL_S ago; else how many were left out since."""
        now_s = self._clock()
        if now_s < self._next_s:
            self._left_out += 1
            return None
        self._next_s = now_s + INTERVAL_S
        left_out, self._left_out = self._left_out, 0
        return left_out

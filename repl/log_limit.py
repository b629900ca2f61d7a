"""Limits how often an event is logged while its cause lasts. The one mechanism for it; see docs/settings.md, [log]."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from isthmus.repl.machine import MemoryLock, monotonic_s

INTERVAL_S: Final = 10.0
"""Least time between two lines of one event: a frequent fault is still seen within seconds, and costs 360 lines an
hour."""

KEYS_MAX: Final = 4_096
"""Subjects that one limit remembers: all partitions of a large node. With more, those whose interval is over are
forgotten, and if there are none, all of them: some lines are then written sooner, and counts start at 0 again."""


class _Window:
    """The lines of one subject in its interval."""

    __slots__ = ("ends_s", "suppressed", "written")

    def __init__(self) -> None:
        self.ends_s = float("-inf")
        self.written = 0
        self.suppressed = 0


class LogLimit:
    """Lets `burst` lines of a subject through in `interval_s`, and counts the others. May be used by all threads."""

    def __init__(
        self, clock: Callable[[], float] = monotonic_s, burst: int = 1, interval_s: float = INTERVAL_S
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._interval_s = interval_s
        self._lock = MemoryLock()
        self._windows: dict[Hashable, _Window] = {}

    def due(self, subject: Hashable = None) -> int | None:
        """None when the line is one too many; else how many lines of the subject were suppressed before it."""
        now_s = self._clock()
        with self._lock:
            window = self._windows.get(subject)
            if window is None:
                window = self._add(subject, now_s)
            if now_s >= window.ends_s:
                window.ends_s, window.written = now_s + self._interval_s, 0
            if window.written >= self._burst:
                window.suppressed += 1
                return None
            window.written += 1
            suppressed, window.suppressed = window.suppressed, 0
            return suppressed

    def _add(self, subject: Hashable, now_s: float) -> _Window:
        if len(self._windows) >= KEYS_MAX:
            self._windows = {each: window for each, window in self._windows.items() if now_s < window.ends_s}
            if len(self._windows) >= KEYS_MAX:
                self._windows.clear()
        window = self._windows[subject] = _Window()
        return window

"""How long many things took, at a cost that a write does not feel: counts in fixed buckets, and the recent past.

Pure: `now_ms` comes in. Adding is a few additions for a whole batch. Buckets and sum only rise, as Prometheus wants
them; rate, average and maximum of the recent past, as people want them, come from two windows that take turns. What is
timed is said in `repl.entry_times`.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final, NamedTuple

BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
"""Upper bounds of the buckets, included: from what one fsync takes to what a client waits for at most."""

WINDOW_MS: Final = 30_000
"""The recent past is this long at least, and twice as long at most: two or three scrapes of Prometheus."""


class Recent(NamedTuple):
    """What was added lately: how many things, their times, and for how long "lately" reaches back."""

    things: int = 0
    total_ms: int = 0
    max_ms: int = 0
    span_ms: int = 0

    @property
    def per_s(self) -> float:
        """How many a second."""
        return 1000 * self.things / self.span_ms if self.span_ms else 0.0


class Durations:
    """Of one kind of thing. `count` and `total_ms` are of all that was ever added."""

    __slots__ = ("_before", "_buckets", "_here_count", "_here_max_ms", "_here_ms", "_since_ms", "count", "total_ms")

    def __init__(self, now_ms: int) -> None:
        self.count = 0
        self.total_ms = 0
        self._buckets = [0] * (len(BOUNDS_MS) + 1)
        self._since_ms = now_ms
        self._here_count = self._here_ms = self._here_max_ms = 0
        self._before = Recent()

    def add(self, duration_ms: int, count: int, now_ms: int) -> None:
        """`count` things took `duration_ms` each."""
        if now_ms - self._since_ms >= WINDOW_MS:
            self._turn(now_ms)
        self.count += count
        self.total_ms += duration_ms * count
        self._buckets[bisect_left(BOUNDS_MS, duration_ms)] += count
        self._here_count += count
        self._here_ms += duration_ms * count
        if duration_ms > self._here_max_ms:
            self._here_max_ms = duration_ms

    def recent(self, now_ms: int) -> Recent:
        """The last WINDOW_MS to 2 * WINDOW_MS, or less when there was no more."""
        if now_ms - self._since_ms >= WINDOW_MS:
            self._turn(now_ms)
        before = self._before
        return Recent(
            self._here_count + before.things,
            self._here_ms + before.total_ms,
            max(self._here_max_ms, before.max_ms),
            max(1, now_ms - self._since_ms + before.span_ms),
        )

    def _turn(self, now_ms: int) -> None:
        """The window is full: what is in it came within its time, however late that is noticed. What was before it is
        forgotten; after a silence of a whole window it is, too."""
        windows = (now_ms - self._since_ms) // WINDOW_MS
        if windows == 1:
            self._before = Recent(self._here_count, self._here_ms, self._here_max_ms, WINDOW_MS)
        else:
            self._before = Recent(span_ms=WINDOW_MS)
        self._here_count = self._here_ms = self._here_max_ms = 0
        self._since_ms += windows * WINDOW_MS

    def cumulative(self) -> list[tuple[str, int]]:
        """(upper bound in seconds, how many took at most that long), the last bound "+Inf"."""
        bounds = [f"{bound / 1000:g}" for bound in BOUNDS_MS]
        return list(zip([*bounds, "+Inf"], accumulate(self._buckets), strict=True))

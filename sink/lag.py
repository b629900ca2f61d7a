"""Replication lag: time from a change in its cluster to its storage in this one.

Exact to the millisecond below 128 ms, within 5 % above. Recent values come from slices of ten seconds, so that a burst
an hour ago does not distort them. The wall clocks of two clusters are compared, so the lag includes their difference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Final

from isthmus.repl.histogram import Histogram

EXACT_MS: Final = 128
GROWTH: Final = 1.05
BOUNDS_MS: Final[Sequence[int]] = [
    *range(EXACT_MS),
    *sorted({math.ceil(EXACT_MS * GROWTH**n) for n in range(320)}),
]
"""Upper bounds of the buckets; the last is above two years."""

SLICE_MS: Final = 10_000
SLICES: Final = 6
"""Slices that count as recent: the last minute."""


class Lag:
    """Lag in ms since the start, and of the last minute."""

    def __init__(self) -> None:
        self.all = Histogram(BOUNDS_MS)
        self._slices: dict[int, Histogram[int]] = {}

    def note(self, times_ms: Sequence[int], now_ms: int) -> None:
        """Add changes that were made at `times_ms` (wall clock of their leader) and stored at `now_ms` (ours). A lag
        below zero (clocks that disagree) counts as zero."""
        number = now_ms // SLICE_MS
        current = self._slices.get(number)
        if current is None:
            current = self._slices[number] = Histogram(BOUNDS_MS)
            for old in [n for n in self._slices if not number - SLICES < n <= number]:
                del self._slices[old]  # also those of a clock that was set back since
        for time_ms, count in Counter(times_ms).items():
            lag_ms = max(0, now_ms - time_ms)
            self.all.add(lag_ms, count)
            current.add(lag_ms, count)

    def recent(self, now_ms: int) -> Histogram[int]:
        """The last minute's lags; empty when nothing was stored in it."""
        merged, now = Histogram(BOUNDS_MS), now_ms // SLICE_MS
        for number, histogram in self._slices.items():
            if now - SLICES < number <= now:
                merged.merge(histogram)
        return merged

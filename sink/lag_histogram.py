"""Replication lag: time from a change in its cluster to its storage in this one.

A histogram with logarithmic buckets: exact to the millisecond below 128 ms, within 5 % above. Recent values come from
slices of ten seconds, so that a burst an hour ago does not distort them. The wall clocks of two clusters are compared,
so the lag includes their difference.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

EXACT_MS: Final = 128
GROWTH: Final = 1.05
_BOUNDS: Final[list[int]] = [
    *range(EXACT_MS),
    *sorted({math.ceil(EXACT_MS * GROWTH**n) for n in range(320)}),
]
"""Upper bounds of the buckets in ms; the last is above two years."""

SLICE_MS: Final = 10_000
SLICES: Final = 6
"""Slices that count as recent: the last minute."""


def _bucket(lag_ms: int) -> int:
    """Index of the bucket of a lag; a lag below zero counts as zero."""
    if 0 <= lag_ms < EXACT_MS:
        return lag_ms
    return min(bisect_left(_BOUNDS, lag_ms), len(_BOUNDS) - 1)


class LagHistogram:
    """Counts of lags in ms."""

    __slots__ = ("_counts", "total")

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self.total = 0

    def add(self, lag_ms: int, count: int) -> None:
        """Add `count` changes of this lag; a lag below zero (clocks that disagree) counts as zero."""
        self.add_all({_bucket(lag_ms): count}, count)

    def add_all(self, counts: Mapping[int, int], total: int) -> None:
        """Add counts by bucket, `total` in all."""
        into = self._counts
        for bucket, count in counts.items():
            into[bucket] = into.get(bucket, 0) + count
        self.total += total

    def merge(self, other: LagHistogram) -> None:
        """Add another histogram's counts."""
        self._counts.update(other._counts)
        self.total += other.total

    def quantile_ms(self, q: float) -> int | None:
        """The lag that a share `q` of the changes did not exceed (its bucket's upper bound); None when empty."""
        if not self.total:
            return None
        rank = max(1, math.ceil(q * self.total))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                return _BOUNDS[bucket]
        raise AssertionError("counts do not add up")


class Lag:
    """Lag since the start, and of the last minute."""

    def __init__(self) -> None:
        self.all = LagHistogram()
        self._slices: dict[int, LagHistogram] = {}

    def note(self, times_ms: Sequence[int], now_ms: int) -> None:
        """Add changes that were made at `times_ms` (wall clock of their leader) and stored at `now_ms` (ours)."""
        number = now_ms // SLICE_MS
        current = self._slices.get(number)
        if current is None:
            current = self._slices[number] = LagHistogram()
            for old in [n for n in self._slices if not number - SLICES < n <= number]:
                del self._slices[old]  # also those of a clock that was set back since
        counts: dict[int, int] = {}
        last_ms, bucket = -1, 0
        for time_ms in times_ms:
            if time_ms != last_ms:  # equal times usually follow each other
                last_ms, bucket = time_ms, _bucket(now_ms - time_ms)
            counts[bucket] = counts.get(bucket, 0) + 1
        self.all.add_all(counts, len(times_ms))
        current.add_all(counts, len(times_ms))

    def recent(self, now_ms: int) -> LagHistogram:
        """The last minute's histogram; empty when nothing was stored in it."""
        merged, now = LagHistogram(), now_ms // SLICE_MS
        for number, histogram in self._slices.items():
            if now - SLICES < number <= now:
                merged.merge(histogram)
        return merged

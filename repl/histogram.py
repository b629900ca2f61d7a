"""Counts of numbers by buckets with fixed bounds. Pure.

Counts only rise, as Prometheus expects. Which bounds are right depends on what is measured, so they are given: those of
requests (`node.http.durations`), of entries (`repl.runtime.latency`) and of the lag between clusters (`sink.lag`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from operator import add, sub
from typing import Generic, TypeVar

from isthmus.repl.telemetry import Sample

Number = TypeVar("Number", int, float)


class Histogram(Generic[Number]):
    """Numbers of 0 and more. Bucket n has those up to `bounds[n]`, the bound included, and the last one all above."""

    __slots__ = ("bounds", "buckets", "total")

    def __init__(self, bounds: Sequence[Number]) -> None:
        self.bounds: Sequence[Number] = bounds
        self.buckets = [0] * (len(bounds) + 1)
        self.total: Number = 0 * bounds[0]
        """The sum of the numbers."""

    def add(self, value: Number, count: int = 1) -> None:
        """Add `count` numbers of this value."""
        self.total += value * count
        self.buckets[bisect_left(self.bounds, value)] += count

    def merge(self, other: Histogram[Number]) -> None:
        """Add all numbers of another histogram of these bounds."""
        self.total += other.total
        self.buckets = list(map(add, self.buckets, other.buckets))

    def since(self, earlier: Histogram[Number]) -> Histogram[Number]:
        """The numbers that were added since `earlier`, a state of this histogram."""
        found = Histogram(self.bounds)
        found.total = self.total - earlier.total
        found.buckets = list(map(sub, self.buckets, earlier.buckets))
        return found

    def quantile(self, share: float) -> Number | None:
        """The bound of the bucket in which `share` of the numbers (above 0, at most 1) is reached, and at most the last
        bound; None when empty."""
        place = self._place(share)
        return None if place is None else self.bounds[min(place[0], len(self.bounds) - 1)]

    def interpolated_quantile(self, share: float) -> float | None:
        """As `quantile`, but within its bucket by the number of its numbers, as Prometheus' histogram_quantile."""
        place = self._place(share)
        if place is None:
            return None
        (bucket, part, count), bounds = place, self.bounds
        low: float = bounds[bucket - 1] if bucket else 0.0
        high: float = bounds[min(bucket, len(bounds) - 1)]
        return low + (high - low) * part / count

    def _place(self, share: float) -> tuple[int, float, int] | None:
        """(the bucket in which `share` of the numbers is reached, how many of its numbers that takes, of how many)."""
        counts = list(accumulate(self.buckets))
        wanted = share * counts[-1]
        if not wanted:
            return None
        bucket = bisect_left(counts, wanted)
        count = self.buckets[bucket]
        return bucket, wanted - (counts[bucket] - count), count

    def samples(self, name: str, labels: Mapping[str, str], per_second: int = 1) -> Iterator[Sample]:
        """Samples for Prometheus, in seconds; the numbers are `per_second` times as large."""
        bounds = [*(f"{bound / per_second:g}" for bound in self.bounds), "+Inf"]
        counts = list(accumulate(self.buckets))
        for bound, count in zip(bounds, counts, strict=True):
            yield f"{name}_bucket", {**labels, "le": bound}, count
        yield f"{name}_count", labels, counts[-1]
        yield f"{name}_sum", labels, self.total / per_second

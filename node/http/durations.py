"""Durations of requests by route, method and class of status, as a histogram. Pure.

Routes are templates of paths, never paths, so the number of series is bounded. The most frequent requests hold their
series and add to it directly: a clock read at each end and a few list operations.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from isthmus.repl.telemetry import Family, Sample

BOUNDS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Upper bounds of the buckets: from a read without a wait to above the default time limit of requests."""

METHODS: Final = frozenset(("DELETE", "GET", "HEAD", "POST", "PUT"))
"""Methods with a label of their own; all others are "other", since a client may send what it likes."""

OTHER: Final = "other"
"""The route of requests that no route answers, and of those that are refused before one is looked for."""

OBJECT: Final = "object"
"""The route of requests for one object, whose path the router does not see."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_http_request_duration_seconds": Family(
        "Time of requests by listener, route and class of status: from the head of a request until its answer is "
        "handed to the connection; a body is part of it, and so is the wait of a long poll or a stream.",
        "seconds",
        "clients",
        ("listener", "method", "route", "status_class"),
    )
}
"""Name -> metric definition (see repl.telemetry)."""

_BUCKETS: Final = [*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"]


def quantile_s(counts: Sequence[int], share: float) -> float | None:
    """The duration that `share` of the requests did not exceed, as Prometheus' histogram_quantile: within its bucket by
    their number, and at most the last bound. `counts` as of `RequestDurations.counts`; None without a request."""
    wanted = share * sum(counts)
    if not wanted:
        return None
    below = 0
    for low, high, count in zip((0.0, *BOUNDS_S), BOUNDS_S, counts, strict=False):
        if below + count >= wanted:
            return low + (high - low) * (wanted - below) / count
        below += count
    return BOUNDS_S[-1]


class DurationSeries:
    """The durations of one route, method and class of status."""

    __slots__ = ("buckets", "total_s")

    def __init__(self) -> None:
        self.total_s = 0.0
        self.buckets = [0] * len(_BUCKETS)

    def add(self, duration_s: float) -> None:
        """Add one duration."""
        self.total_s += duration_s
        self.buckets[bisect_left(BOUNDS_S, duration_s)] += 1


class RequestDurations:
    """All series of one listener."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, int], DurationSeries] = {}

    def series(self, route: str, method: str, status: int) -> DurationSeries:
        """The series of an answer; the same one for the same class of status."""
        key = route, method, status // 100
        found = self._series.get(key)
        if found is None:
            key = route, method if method in METHODS else OTHER, status // 100
            found = self._series.get(key)
            if found is None:
                found = self._series[key] = DurationSeries()
        return found

    def counts(self, route: str, method: str) -> list[int]:
        """Number of answers in each bucket of BOUNDS_S, and in the one above, of all statuses."""
        found = [0] * len(_BUCKETS)
        for (each_route, each_method, _), series in self._series.items():
            if (each_route, each_method) == (route, method):
                found = [a + b for a, b in zip(found, series.buckets, strict=True)]
        return found

    def samples(self, listener: str) -> Iterator[Sample]:
        """Samples of the requests that were answered."""
        name = "isthmus_http_request_duration_seconds"
        for (route, method, status_class), series in self._series.items():
            counts = list(accumulate(series.buckets))
            if not counts[-1]:
                continue
            labels = {"listener": listener, "route": route, "method": method, "status_class": f"{status_class}xx"}
            for bound, count in zip(_BUCKETS, counts, strict=True):
                yield f"{name}_bucket", {**labels, "le": bound}, count
            yield f"{name}_count", labels, counts[-1]
            yield f"{name}_sum", labels, series.total_s

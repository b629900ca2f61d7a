"""Durations of requests by route, method and class of status, as a histogram. Pure.

Routes are templates of paths, never paths, so the number of series is bounded. The most frequent requests hold their
series and add to it directly: a clock read at each end and a few list operations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from isthmus.repl.histogram import Histogram
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


class RequestDurations:
    """All series of one listener."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, int], Histogram[float]] = {}

    def series(self, route: str, method: str, status: int) -> Histogram[float]:
        """The series of an answer; the same one for the same class of status."""
        key = route, method, status // 100
        found = self._series.get(key)
        if found is None:
            key = route, method if method in METHODS else OTHER, status // 100
            found = self._series.get(key)
            if found is None:
                found = self._series[key] = Histogram(BOUNDS_S)
        return found

    def of_all_statuses(self, route: str, method: str) -> Histogram[float]:
        """The durations of a route and method up to now."""
        found = Histogram(BOUNDS_S)
        for (each_route, each_method, _), series in self._series.items():
            if (each_route, each_method) == (route, method):
                found.merge(series)
        return found

    def samples(self, listener: str) -> Iterator[Sample]:
        """Samples of the requests that were answered."""
        name = "isthmus_http_request_duration_seconds"
        for (route, method, status_class), series in self._series.items():
            if any(series.buckets):
                labels = {"listener": listener, "route": route, "method": method, "status_class": f"{status_class}xx"}
                yield from series.samples(name, labels)

"""Client-side replication lag: time from an acknowledged write in one cluster to a successful read in another.

The probe writes 20 objects a second beside other load. Each write goes to the next node of the first cluster; the probe
then reads the object at the next node of the second cluster until it exists. It uses blocking clients in threads, since
so few requests cost little CPU.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from bench.kept_connection import KeptConnection
from bench.loadgen import VALUE_BYTES

THREADS: Final = 4
"""Number of objects in progress at most, so that a slow one does not delay the next."""

INTERVAL_S: Final = 0.2
"""Interval of the writes of one thread; all threads together write 20 objects a second."""

READ_PAUSE_S: Final = 0.000_5
"""Pause between two reads of an object, which bounds the load of the probe and its error."""

SEEN_TIMEOUT_S: Final = 10.0
REQUEST_TIMEOUT_S: Final = 5.0
BUCKET_PATH: Final = "/buckets/bench-seen/keys"
_HEADERS: Final = {"Content-Type": "application/octet-stream"}


@dataclass
class Visibility:
    """Lags of the probe's objects, in ms."""

    after_answer_ms: list[float] = field(default_factory=list)
    """From the acknowledgement of the write to the response with the object."""
    after_request_ms: list[float] = field(default_factory=list)
    """From the start of the write to the response with the object."""
    failed: int = 0
    """Number of rejected writes, and of objects that did not exist after `SEEN_TIMEOUT_S`."""


def percentile(values: list[float], share: float) -> float:
    """The value at a percentile by nearest rank; NaN without values."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


class VisibilityProbe:
    """Context manager: writes to the nodes `sources` and reads from the nodes `sinks`. `run`: prefix of the keys."""

    def __init__(self, sources: list[str], sinks: list[str], run: str) -> None:
        self._sources = sources
        self._sinks = sinks
        self._run = run
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._found = Visibility()
        self._threads = [threading.Thread(target=self._follow, args=(number,)) for number in range(THREADS)]

    def __enter__(self) -> VisibilityProbe:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    @property
    def found(self) -> Visibility:
        """The measured lags; complete after the exit."""
        return self._found

    def _follow(self, thread: int) -> None:
        sources, sinks = (
            [KeptConnection(url, REQUEST_TIMEOUT_S) for url in urls] for urls in (self._sources, self._sinks)
        )
        due_s = time.perf_counter() + thread * INTERVAL_S / THREADS
        try:
            for number in count():
                if self._stop.wait(max(0.0, due_s - time.perf_counter())):
                    return
                due_s += INTERVAL_S
                turn = thread + number
                path = f"{BUCKET_PATH}/{self._run}-{thread}-{number}"
                times = self._seen(sources[turn % len(sources)], sinks[(turn + number) % len(sinks)], path)
                with self._lock:
                    if times is None:
                        self._found.failed += 1
                    else:
                        self._found.after_answer_ms.append(times[0])
                        self._found.after_request_ms.append(times[1])
        finally:
            for connection in (*sources, *sinks):
                connection.close()

    def _seen(self, source: KeptConnection, sink: KeptConnection, path: str) -> tuple[float, float] | None:
        """Both lags of one object, in ms; None for a failure."""
        began_s = time.perf_counter()
        if source.send("PUT", path, bytes(VALUE_BYTES), _HEADERS).status != 204:
            return None
        answered_s = time.perf_counter()
        while time.perf_counter() - answered_s < SEEN_TIMEOUT_S:
            if sink.send("GET", path).status == 200:
                seen_s = time.perf_counter()
                return (seen_s - answered_s) * 1_000, (seen_s - began_s) * 1_000
            time.sleep(READ_PAUSE_S)
        return None

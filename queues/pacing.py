"""When a waiting fetch is answered: at once at a low rate of changes, with a gathered batch at a high one (pure).

    changes a second     a waiting fetch is answered
    below 300            at once
    from 300             at once while the sinks hold no batch; else GATHER_MS after the first waiting change, or when
                         they acknowledge: lag counts
    1,500 to 2,000       after a wait that grows with the rate
    from 2,000           GATHER_MOST_MS after the first waiting change, or once GATHER_COUNT wait: cost counts

The first change after SILENCE_MS without any is sent at once. `active` decides whether bulk references are paced.
"""

from __future__ import annotations

from typing import Final

GATHER_RATE_PER_MS: Final = 0.3
"""Changes per millisecond from which a waiting fetch gathers a batch: below it lag counts, above it the cost of a
fetch."""

GATHER_MS: Final = 2
"""How long a fetch gathers from that rate on. At 1,000 changes a second this took a quarter off the sink's CPU and
lowered the lag's median from 6 to 5 ms on two busy cores; 4 ms gained nothing more."""

MANY_RATE_PER_MS: Final = 1.5
"""Up to this rate a fetch gathers for GATHER_MS: the target for lag is set at 1,000 changes a second."""

MOST_RATE_PER_MS: Final = 2.0
"""From this rate on a fetch gathers for GATHER_MOST_MS; in between the wait grows linearly, without a step."""

GATHER_MOST_MS: Final = 10
"""Longest gathering: at 5,000 changes a second 50 of them, some for each of a dozen partitions. A round costs the sink
about as much as twenty of its changes, so that it then costs a third of the work instead of most; a client that writes
so fast waits about as long for its own answers."""

GATHER_COUNT: Final = 256
"""Waiting changes that end the gathering at once: the cost of a fetch is then small for each of them."""

ACTIVE_MS: Final = 1_000
"""Real time counts as active for so long after each change: longer than the pauses of any interactive load."""

RATE_SPAN_MS: Final = 20
"""Span over which arrivals are counted for the rate."""

SMOOTHING: Final = 0.25
"""Weight of one span in the smoothed rate, which so covers about the last 100 ms. A fetch gathers by the lower of the
two rates: the burst after a hiccup of the source is not a high rate, and must not wait like one."""

SILENCE_MS: Final = 50
"""After so long without a change the rate is forgotten: longer than the hiccups of a load."""


class BatchPacing:
    """Gathering of one queue."""

    __slots__ = ("_arrived", "_from_ms", "_gather_ms", "_last_ms", "_smoothed_per_ms")

    def __init__(self) -> None:
        self._arrived = 0
        self._from_ms = 0
        self._smoothed_per_ms = 0.0
        self._gather_ms = 0
        """How long a fetch gathers at the current rate."""
        self._last_ms: int | None = None

    def arrived(self, count: int, now_ms: int) -> None:
        """Changes were applied."""
        last = self._last_ms
        if last is None or now_ms - last >= SILENCE_MS:
            self._arrived, self._from_ms, self._gather_ms, self._smoothed_per_ms = 0, now_ms, 0, 0.0
        self._arrived += count
        self._last_ms = now_ms
        span = now_ms - self._from_ms
        if span >= RATE_SPAN_MS:
            per_ms = self._arrived / span
            self._smoothed_per_ms += SMOOTHING * (per_ms - self._smoothed_per_ms)
            self._gather_ms = gather_ms(min(per_ms, self._smoothed_per_ms))
            self._arrived, self._from_ms = 0, now_ms

    def wait_ms(self, waiting: int, since_ms: int | None, now_ms: int, *, idle: bool) -> int:
        """How long a fetch still gathers while `waiting` changes wait for it, the first since `since_ms` (None: for
        longer than can be told). `idle`: no batch is under lease."""
        if waiting >= GATHER_COUNT or since_ms is None or (idle and self._gather_ms <= GATHER_MS):
            return 0
        return max(0, since_ms + self._gather_ms - now_ms)

    def active(self, now_ms: int) -> bool:
        """Whether changes arrived within ACTIVE_MS."""
        return self._last_ms is not None and now_ms - self._last_ms < ACTIVE_MS


def gather_ms(per_ms: float) -> int:
    """How long a waiting fetch gathers at a rate of changes per millisecond."""
    if per_ms < GATHER_RATE_PER_MS:
        return 0
    over = (per_ms - MANY_RATE_PER_MS) / (MOST_RATE_PER_MS - MANY_RATE_PER_MS)
    return GATHER_MS + int((GATHER_MOST_MS - GATHER_MS) * min(1.0, max(0.0, over)))

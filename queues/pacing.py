"""When a waiting fetch leaves: at once while changes are few, with a gathered batch while they are many (pure). And
whether real time is alive, so that lower priorities leave room for it.

    changes a second     a waiting fetch leaves
    below 300            at once
    from 300             at once while the sinks have nothing to do; else GATHER_MS after the first change that waits,
                         or when they come back: lag counts
    1,500 to 2,000       later by and by
    from 2,000           GATHER_MOST_MS after it, or once GATHER_COUNT wait: the cost of a round counts

The first change after SILENCE_MS without any leaves at once, whatever was before. The story goes back to
`queues.source_queue`.
"""

from __future__ import annotations

from typing import Final

GATHER_RATE_PER_MS: Final = 0.3
"""Changes per millisecond from which a waiting fetch gathers a batch instead of leaving with one change: below it
lag counts, above it the cost of a fetch does."""

GATHER_MS: Final = 2
"""How long it gathers then. At 1,000 changes a second this took a quarter off the sink's CPU and lowered the lag's
median from 6 to 5 ms on two busy cores; 4 ms gained nothing more."""

MANY_RATE_PER_MS: Final = 1.5
"""Up to here lag counts, so it gathers no longer than that: a target for lag is set at 1,000 changes a second."""

MOST_RATE_PER_MS: Final = 2.0
"""From here on it gathers the longest; in between the wait grows with the rate, so that nothing jumps."""

GATHER_MOST_MS: Final = 10
"""Longest gathering: at 5,000 changes a second 50 of them, some for each of a dozen partitions. A round costs the sink
about as much as twenty of its changes, so that it then costs a third of the work instead of most; a client that writes
so fast waits about as long for its own answers."""

GATHER_COUNT: Final = 256
"""Waiting changes that end the gathering at once: from here on the cost of a fetch is spread thin enough."""

ALIVE_MS: Final = 1_000
"""Real time is alive for so long after each change: longer than the pauses of any load that somebody waits for."""

RATE_SPAN_MS: Final = 20
"""Over how long arrivals are counted."""

USUAL_SHARE: Final = 0.25
"""What one such span counts for in the usual rate, so that this is of about the last 100 ms. The lower of the two rates
is what a fetch gathers by: what comes at once after a hiccup of the source is no flood, and must not wait like one."""

SILENCE_MS: Final = 50
"""After so long without a change the rate of before says nothing of what comes: longer than the hiccups of a load."""


class BatchPacing:
    """Of one queue."""

    __slots__ = ("_arrived", "_from_ms", "_gather_ms", "_gathering_from_ms", "_last_ms", "_usual_per_ms")

    def __init__(self) -> None:
        self._arrived = 0
        self._from_ms = 0
        self._usual_per_ms = 0.0
        self._gather_ms = 0
        """How long a fetch gathers at the rate as it is now."""
        self._gathering_from_ms: int | None = None
        self._last_ms: int | None = None

    def arrived(self, count: int, now_ms: int) -> None:
        """Changes were applied."""
        last = self._last_ms
        if last is None or now_ms - last >= SILENCE_MS:
            self._arrived, self._from_ms, self._gather_ms, self._usual_per_ms = 0, now_ms, 0, 0.0
        self._arrived += count
        self._last_ms = now_ms
        span = now_ms - self._from_ms
        if span >= RATE_SPAN_MS:
            per_ms = self._arrived / span
            self._usual_per_ms += USUAL_SHARE * (per_ms - self._usual_per_ms)
            self._gather_ms = gather_ms(min(per_ms, self._usual_per_ms))
            self._arrived, self._from_ms = 0, now_ms
        if self._gathering_from_ms is None:
            self._gathering_from_ms = now_ms

    def wait_ms(self, waiting: int, now_ms: int, *, idle: bool) -> int:
        """How long a fetch still gathers, when so many wait. `idle`: the sinks work on nothing that came from here."""
        if waiting >= GATHER_COUNT or self._gathering_from_ms is None or (idle and self._gather_ms <= GATHER_MS):
            return 0
        return max(0, self._gathering_from_ms + self._gather_ms - now_ms)

    def alive(self, now_ms: int) -> bool:
        """Changes come, or came just now."""
        return self._last_ms is not None and now_ms - self._last_ms < ALIVE_MS

    def emptied(self) -> None:
        """Nothing waits any more: the next change begins a new gathering."""
        self._gathering_from_ms = None


def gather_ms(per_ms: float) -> int:
    """How long a waiting fetch gathers at a rate of changes."""
    if per_ms < GATHER_RATE_PER_MS:
        return 0
    over = (per_ms - MANY_RATE_PER_MS) / (MOST_RATE_PER_MS - MANY_RATE_PER_MS)
    return GATHER_MS + int((GATHER_MOST_MS - GATHER_MS) * min(1.0, max(0.0, over)))

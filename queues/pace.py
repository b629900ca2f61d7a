"""When a waiting fetch leaves: at once while changes are few, with a gathered batch while they are many (pure). And
whether real time is alive, so that lower priorities leave room for it.

The story goes back to `queues.source_queue`.
"""

from __future__ import annotations

from typing import Final

GATHER_RATE_PER_MS: Final = 0.3
"""Changes per millisecond from which a waiting fetch gathers a batch instead of leaving with one change: below it
lag counts, above it the cost of a fetch does."""

GATHER_MS: Final = 2
"""How long it gathers at most. At 1,000 changes a second this took a quarter off the sink's CPU and lowered the lag's
median from 6 to 5 ms on two busy cores; 4 ms gained nothing more."""

GATHER_COUNT: Final = 256
"""Waiting changes that end the gathering at once: from here on the cost of a fetch is spread thin enough."""

ALIVE_MS: Final = 1_000
"""Real time is alive for so long after each change: longer than the pauses of any load that somebody waits for."""

RATE_SPAN_MS: Final = 20
"""Over how long arrivals are counted."""


class Pace:
    """Of one queue."""

    __slots__ = ("_arrived", "_from_ms", "_gathering_from_ms", "_last_ms", "_per_ms")

    def __init__(self) -> None:
        self._arrived = 0
        self._from_ms = 0
        self._per_ms = 0.0
        self._gathering_from_ms: int | None = None
        self._last_ms: int | None = None

    def arrived(self, count: int, now_ms: int) -> None:
        """Changes were applied."""
        self._arrived += count
        self._last_ms = now_ms
        span = now_ms - self._from_ms
        if span >= RATE_SPAN_MS:
            self._per_ms = self._arrived / span
            self._arrived, self._from_ms = 0, now_ms
        if self._gathering_from_ms is None:
            self._gathering_from_ms = now_ms

    def wait_ms(self, waiting: int, now_ms: int) -> int:
        """How long a fetch still gathers, when so many wait."""
        if waiting >= GATHER_COUNT or self._per_ms < GATHER_RATE_PER_MS or self._gathering_from_ms is None:
            return 0
        return max(0, self._gathering_from_ms + GATHER_MS - now_ms)

    def alive(self, now_ms: int) -> bool:
        """Changes come, or came just now."""
        return self._last_ms is not None and now_ms - self._last_ms < ALIVE_MS

    def emptied(self) -> None:
        """Nothing waits any more: the next change begins a new gathering."""
        self._gathering_from_ms = None

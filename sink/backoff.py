"""How long a link waits before its next fetch: a pure function of results.

Shorter on results, slightly longer on empties, greatly longer on errors, with jitter; and back at once on the
first success, where Riak's sink needs seventeen successes to forget one error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final

EMPTY_STEP_MS: Final = 5
"""What one empty answer adds. A long poll has waited already; this only paces sources that answer at once."""

EMPTY_MAX_MS: Final = 250
"""Longest delay after empties: what a source that is suspended or starting is asked at most (four times a second)."""


class Result(StrEnum):
    """What a cycle came to."""

    ITEMS = "items"
    EMPTY = "empty"
    FAILED = "failed"
    """The source answered, but this cluster did not store all of it."""
    ERROR = "error"
    """The source did not answer, or wrongly."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """One link's delay. `delay_ms` is drawn with jitter by `pause_ms`; `errors` counts those in a row."""

    min_ms: int
    max_ms: int
    delay_ms: int = 0
    errors: int = 0

    def after(self, result: Result, waited_ms: int) -> Backoff:
        """The delay after `result`; `waited_ms` is how long the source held the fetch."""
        match result:
            case Result.ITEMS:
                return Backoff(self.min_ms, self.max_ms)
            case Result.EMPTY:
                before = 0 if self.errors else self.delay_ms
                delay = 0 if waited_ms >= EMPTY_MAX_MS else min(EMPTY_MAX_MS, before * 2 + EMPTY_STEP_MS)
                return Backoff(self.min_ms, self.max_ms, delay)
            case Result.FAILED | Result.ERROR:
                before = self.delay_ms if self.errors else 0
                return Backoff(
                    self.min_ms, self.max_ms, min(self.max_ms, max(self.min_ms, before * 2)), self.errors + 1
                )

    def pause_ms(self, random: Random) -> int:
        """The wait before the next fetch: half the delay to the whole, so that many sinks do not march in step."""
        return self.delay_ms if self.delay_ms < 2 else random.randint(self.delay_ms // 2, self.delay_ms)

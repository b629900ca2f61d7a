"""Delay of a link before its next fetch, from the results of its cycles (pure).

No delay after changes, a slightly longer one after each empty answer, a much longer one after each error, with jitter.
The first success ends the delay; Riak's sink needs seventeen successes after one error. Bounds and steps are settings.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random
from typing import NamedTuple


class CycleResult(StrEnum):
    """Result of a cycle."""

    ITEMS = "items"
    EMPTY = "empty"
    FAILED = "failed"
    """The source answered, but this cluster did not store all of it."""
    ERROR = "error"
    """The source did not answer, or wrongly."""


class Delays(NamedTuple):
    """Bounds and steps: after errors from `min_ms` to `max_ms`; after empty answers from `empty_min_ms` to
    `empty_max_ms`; each further one in a row multiplies by `factor`."""

    min_ms: int = 10
    max_ms: int = 8_000
    empty_min_ms: int = 5
    empty_max_ms: int = 250
    factor: int = 2


@dataclass(frozen=True, slots=True)
class Backoff:
    """One link's delay without jitter (see `pause_ms`), and its errors in a row."""

    delays: Delays
    delay_ms: int = 0
    errors: int = 0

    def after(self, result: CycleResult, waited_ms: int) -> Backoff:
        """The delay after `result`; `waited_ms` is how long the source held the fetch: a long poll paces the link by
        itself."""
        delays = self.delays
        match result:
            case CycleResult.ITEMS:
                return self if not (self.delay_ms or self.errors) else Backoff(delays)
            case CycleResult.EMPTY if waited_ms >= delays.empty_max_ms:
                return Backoff(delays)
            case CycleResult.EMPTY:
                before = 0 if self.errors else self.delay_ms
                return Backoff(delays, min(delays.empty_max_ms, before * delays.factor + delays.empty_min_ms))
            case CycleResult.FAILED | CycleResult.ERROR:
                # Never below the delay after empty answers: an error is no reason to fetch sooner.
                delay = min(delays.max_ms, max(delays.min_ms, self.delay_ms * delays.factor))
                return replace(self, delay_ms=delay, errors=self.errors + 1)

    def pause_ms(self, random: Random) -> int:
        """The wait before the next fetch: from half the delay to the whole, so that sinks do not synchronise."""
        return self.delay_ms if self.delay_ms < 2 else random.randint(self.delay_ms // 2, self.delay_ms)

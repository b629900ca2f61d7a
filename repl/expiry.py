"""Requests that wait for their outcome, and what they are told when it does not come in time.

One sweep for all: a timer a request costs more than its expiry is worth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from repl.model.errors import Corruption, IsthmusError, OutcomeUnknown, TimedOut
from repl.partition import Waiter

SWEEP_S: Final = 0.25
"""How often requests without an answer are looked through for those that have waited too long."""


class Expiry:
    """Waiting requests and their time-out; `forget` is called once some were told. Belongs to the event loop."""

    def __init__(self, timeout_ms: int, forget: Callable[[], None]) -> None:
        self._forget = forget
        self._loop = asyncio.get_running_loop()
        self._timeout_s = timeout_ms / 1000
        self._waiting: dict[Waiter, float] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def add(self, waiter: Waiter) -> None:
        """Let `waiter` expire in time."""
        self._waiting[waiter] = self._loop.time() + self._timeout_s
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Forget who has an answer, and tell who has waited too long that the outcome is unknown."""
        now = self._loop.time()
        self._waiting = {w: deadline for w, deadline in self._waiting.items() if not w.future.done()}
        expired = [w for w, deadline in self._waiting.items() if deadline <= now]
        for waiter in expired:
            del self._waiting[waiter]
            waiter.future.set_result([self._expired(result) for result in waiter.results])
        if expired:
            self._forget()
        self._sweeper = self._loop.call_later(SWEEP_S, self._sweep) if self._waiting else None

    def _expired(self, result: object) -> IsthmusError:
        """What an item is told whose time is over, given what it would have been told. A refusal stands, unless it
        needs a confirmation of leadership that has not come (R-COND, R-FORGED). Nor is a push refused for good by bytes
        that may be dropped (R-WAIT)."""
        if isinstance(result, Corruption):
            return TimedOut(f"nothing was confirmed within {self._timeout_s:g} s, and nothing was written: {result}")
        if isinstance(result, IsthmusError):
            if not result.needs_confirmation:
                return result
            why = f"leadership could not be confirmed, so this refusal is not certain: {result}"
            return TimedOut(f"no outcome within {self._timeout_s:g} s, and nothing was written: {why}")
        return OutcomeUnknown(f"no outcome within {self._timeout_s:g} s: the write may yet take effect")

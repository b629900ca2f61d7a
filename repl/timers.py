"""A timer of the event loop with a known deadline.

`asyncio.TimerHandle.when()` is not used for that: uvloop returns a plain `Handle`, without `when`, for a delay that
rounds to 0 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls `callback` once, at the earliest of the requested times since the last call."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._handle: asyncio.Handle | None = None
        self._at_s = 0.0
        """The deadline by the loop's clock, while there is a handle."""

    def call_by(self, at_s: float) -> None:
        """Call at `at_s` (the loop's time) at the latest; an earlier deadline is kept."""
        if self._handle is not None:
            if self._at_s <= at_s:
                return
            self._handle.cancel()
        self._at_s = at_s
        self._handle = asyncio.get_running_loop().call_at(at_s, self._fire)

    def call_within(self, wait_s: float) -> None:
        """Call after `wait_s` at the latest; an earlier deadline is kept."""
        self.call_by(asyncio.get_running_loop().time() + wait_s)

    def cancel(self) -> None:
        """Do not call; the next `call_by` starts over."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _fire(self) -> None:
        self._handle = None
        self._callback()

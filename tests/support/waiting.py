"""Waiting for a claim that another task, thread or process makes true.

What another one does has happened at no particular moment: a test waits for it here, as long as any machine may take,
and asserts afterwards on what no longer changes.

    eventually   within an event loop, in real or in virtual time
    wait_until   without an event loop
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, Final

PATIENCE_S: Final = 30.0
"""How long a claim may take to become true: far longer than on an idle machine, and shorter than the time-out of a
test, which ends its process and does not say what was awaited."""


async def eventually(holds: Callable[[], Any], what: str = "it", timeout_s: float = PATIENCE_S) -> Any:
    """Wait until `holds()`, or what it returns once awaited, is true; returns that. Raises AssertionError with `what`
    after `timeout_s` seconds of the loop's clock."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + timeout_s
    while True:
        found = holds()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert loop.time() < deadline_s, f"not within {timeout_s:g} s: {what}"
        await asyncio.sleep(0.002)


def wait_until(holds: Callable[[], Any], what: str = "it", timeout_s: float = PATIENCE_S) -> Any:
    """Like `eventually`, for a test without a loop: sleeps between two looks."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < deadline_s, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.01)
    return found

"""The clock of the connections' health: time that this process lived through. Who counts it is in `connection`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

TURNS: Final = 4
"""Turns of the loop in which what came during a pause is read: a loop may run what is due before it reads, and an
answer may want a turn at either end."""


async def lived_ms(interval_s: float) -> AsyncIterator[int]:
    """How many milliseconds have passed, every `interval_s`. A tick that comes late, since the process or its machine
    was paused, counts as two at most, and only when what came meanwhile has been read."""
    loop = asyncio.get_running_loop()
    before_s = loop.time()
    while True:
        await asyncio.sleep(interval_s)
        now_s = loop.time()
        elapsed_s = min(now_s - before_s, 2 * interval_s)
        before_s = now_s
        if elapsed_s == 2 * interval_s:
            for _ in range(TURNS):
                await asyncio.sleep(0)
        yield int(elapsed_s * 1000)

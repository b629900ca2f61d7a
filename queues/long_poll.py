"""Fetches that wait at a queue until there is something for them: long polls, who came first goes first.

When there is something, and for whom, is decided by the queue's machine (`queues.source_queue`); this room keeps who
waits, and looks at most twice for all that one turn of the event loop brings, however many partitions a store batch was
of: who is woken takes along what came behind.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from isthmus.queues.leases import Session
from isthmus.repl.model.errors import Overloaded
from isthmus.repl.timers import DeadlineTimer

WAITING_FETCHES_MAX: Final = 256
"""Long polls of one queue at once; one more is refused as overloaded. A sink node holds one a link."""

CLOCK_STEP_S: Final = 0.001
"""The event loop's clock goes in steps of 1 ms: whose time is over by less has waited long enough."""

Until = Callable[[asyncio.Future[None]], Awaitable[None]]
"""Waits for a future; raises when whoever wanted to wait for it is not there any more."""


async def wait_forever(waiter: asyncio.Future[None]) -> None:
    """The wait of one who stays."""
    await waiter


class _Waits(NamedTuple):
    """A fetch that waits, until `until_s` at the latest (the loop's time)."""

    waiter: asyncio.Future[None]
    session: Session
    until_s: float


class LongPollWaiters:
    """Of one queue. `look()` wakes who is to be woken (`wake`)."""

    def __init__(self, name: str, look: Callable[[], None]) -> None:
        self._name = name
        self._look = look
        self._waiting: deque[_Waits] = deque()
        self._looked = False
        """In this turn of the loop, already."""
        self._again = False
        self._later = DeadlineTimer(look)
        self._ending = DeadlineTimer(self._end)
        """Ends the waits whose time is over: one timer for all; a wait that ends early does not move it."""

    def __len__(self) -> int:
        return len(self._waiting)

    async def wait(self, session: Session, wait_ms: int, until: Until) -> None:
        """Until woken, for `wait_ms` at most. Raises Overloaded, and what `until` does."""
        if len(self._waiting) >= WAITING_FETCHES_MAX:
            raise Overloaded(f"{WAITING_FETCHES_MAX} fetches wait at queue {self._name} already")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        waits = _Waits(waiter, session, loop.time() + wait_ms / 1000)
        self._waiting.append(waits)
        self._ending.call_by(waits.until_s)
        try:
            await until(waiter)
        finally:
            if waits in self._waiting:
                self._waiting.remove(waits)

    def _end(self) -> None:
        """Who has waited as long as they wanted waits no more."""
        now_s = asyncio.get_running_loop().time() + CLOCK_STEP_S
        for waits in self._waiting:
            if waits.until_s <= now_s:
                wake(waits.waiter)
        left = [waits.until_s for waits in self._waiting if waits.until_s > now_s]
        if left:
            self._ending.call_by(min(left))

    def wake(self, may_have: Callable[[Session], bool]) -> None:
        """Wake the first whose session may have what there is."""
        for waits in self._waiting:
            if not waits.waiter.done() and may_have(waits.session):
                self._waiting.remove(waits)
                waits.waiter.set_result(None)
                return

    def wake_all(self) -> None:
        """Everybody looks again."""
        while self._waiting:
            wake(self._waiting.popleft().waiter)

    def soon(self) -> None:
        """Something may be there for somebody: look, or look again in the loop's next turn, once who was woken had
        theirs."""
        if not self._waiting:
            return
        if self._looked:
            self._again = True
            return
        self._looked = True
        self._look()
        asyncio.get_running_loop().call_soon(self._turned)

    def in_ms(self, wait_ms: int) -> None:
        """Look after `wait_ms` at the latest."""
        self._later.call_within(wait_ms / 1000)

    def _turned(self) -> None:
        again, self._looked, self._again = self._again, False, False
        if again:
            self._look()


def wake(waiter: asyncio.Future[None]) -> None:
    """Whoever waits for it waits no more."""
    if not waiter.done():
        waiter.set_result(None)

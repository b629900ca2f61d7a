"""Long polls: fetches that wait at a queue until there is something for them, first come, first served.

The queue's machine (`queues.source_queue`) decides when there is something, and for whom. In one turn of the event loop
the waiters look at most twice, however many partitions a store batch has: the fetch that is woken takes everything that
was added meanwhile.
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
"""Long polls of one queue at once; one more is refused with Overloaded. A sink node holds one a link."""

CLOCK_STEP_S: Final = 0.001
"""The event loop's clock has steps of 1 ms: a wait that ends within one step counts as over."""

Until = Callable[[asyncio.Future[None]], Awaitable[None]]
"""Waits for a future; raises when the client that waits has gone."""


async def wait_forever(waiter: asyncio.Future[None]) -> None:
    """Wait for a client that does not go away."""
    await waiter


class _Waits(NamedTuple):
    """A fetch that waits, until `until_s` at the latest (the loop's time)."""

    waiter: asyncio.Future[None]
    session: Session
    until_s: float


class LongPollWaiters:
    """The waiting fetches of queue `name`. `look()` decides whether to call `wake`."""

    def __init__(self, name: str, look: Callable[[], None]) -> None:
        self._name = name
        self._look = look
        self._waiting: deque[_Waits] = deque()
        self._looked = False
        """Whether `look` was called in this turn of the loop already."""
        self._again = False
        self._later = DeadlineTimer(look)
        self._ending = DeadlineTimer(self._end)
        """Ends the waits whose time is over: one timer for all, which a wait that ends early does not move."""

    def __len__(self) -> int:
        return len(self._waiting)

    def nodes(self) -> set[str]:
        """Nodes whose fetches wait."""
        return {waits.session.node for waits in self._waiting}

    async def wait(self, session: Session, wait_ms: int, until: Until) -> None:
        """Wait until woken, for `wait_ms` at most. Raises Overloaded, and what `until` raises."""
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
        """Wake the waits whose time is over."""
        now_s = asyncio.get_running_loop().time() + CLOCK_STEP_S
        for waits in self._waiting:
            if waits.until_s <= now_s:
                wake(waits.waiter)
        left = [waits.until_s for waits in self._waiting if waits.until_s > now_s]
        if left:
            self._ending.call_by(min(left))

    def wake(self, due_in_ms: Callable[[Session], int | None]) -> None:
        """Wake the first wait that is due; when none is, look again once the first of them will be. `due_in_ms` returns
        in how many ms a session's fetch should be answered, None: nothing is there for it."""
        nearest_ms: int | None = None
        for waits in self._waiting:
            if waits.waiter.done():
                continue
            due_ms = due_in_ms(waits.session)
            if due_ms == 0:
                self._waiting.remove(waits)
                waits.waiter.set_result(None)
                return
            if due_ms is not None and (nearest_ms is None or due_ms < nearest_ms):
                nearest_ms = due_ms
        if nearest_ms is not None:
            self.look_in_ms(nearest_ms)

    def wake_all(self) -> None:
        """Wake all waits."""
        while self._waiting:
            wake(self._waiting.popleft().waiter)

    def look_soon(self) -> None:
        """Look now; a second time in the same turn of the loop, look in its next turn, once the fetch that was woken
        has taken its batch."""
        if not self._waiting:
            return
        if self._looked:
            self._again = True
            return
        self._looked = True
        self._look()
        asyncio.get_running_loop().call_soon(self._turned)

    def look_in_ms(self, wait_ms: int) -> None:
        """Look after `wait_ms` at the latest."""
        self._later.call_within(wait_ms / 1000)

    def _turned(self) -> None:
        again, self._looked, self._again = self._again, False, False
        if again:
            self._look()


def wake(waiter: asyncio.Future[None]) -> None:
    """End the wait for a future, if it goes on."""
    if not waiter.done():
        waiter.set_result(None)

"""One queue as it runs on the event loop: waiting fetches, wake-ups, reads from the store.

What to give, when and to whom is decided by the queue's machine (`queues.source_queue`); objects and rows are read
in the read pool. Who may fetch at all is asked before, in `queues.registry`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, Final

import structlog

from config.settings import QueueSettings
from queues.batches import Batch
from queues.filters import parse_filter
from queues.ownership import Owner, Suspension
from queues.reading import count_rows, read_objects
from queues.rules import Budget
from queues.source_queue import SourceQueue
from queues.window import Window
from queues.wire import SERVING, STARTING, SUSPENDED, FetchRequest
from repl.model.errors import IsthmusError, Overloaded
from repl.model.ports import TimeSource
from repl.model.reference import ReferenceKind
from repl.store.port import Store

log = structlog.get_logger(__name__)

WAITING_FETCHES_MAX: Final = 256
"""Long polls of one queue at once; one more is refused as overloaded. A sink node holds one a link."""

COUNT_ROWS_MAX: Final = 200_000
"""Rows read to tell how many changes wait when not all are in memory; beyond it the answer is "unknown"."""

COUNT_REST: Final = 10
"""A count made by reading holds for this many times as long as it took: listing must not cost what serving needs."""

COUNT_REST_MIN_MS: Final = 1_000
"""It holds at least for so long."""

_TO_FETCH: Final = int(ReferenceKind.TO_FETCH)

Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Starts a task that is awaited or cancelled at stop."""


class ServedQueue:
    """See the module's text. Raises BadConfig when the filter is not known."""

    def __init__(
        self,
        settings: QueueSettings,
        *,
        own: bytes,
        batch_prefix: bytes,
        store: Store,
        pool: Executor,
        time: TimeSource,
        spawn: Spawn,
    ) -> None:
        budget = Budget(settings.object_size_limit_bytes, settings.object_limit_count, settings.queue_limit_count)
        self.settings = settings
        self.name = settings.name.encode()
        self.filter = parse_filter(settings.filter)
        self.machine = SourceQueue(settings.name, own, settings.cascade, settings.lease_ms, budget, batch_prefix)
        self.owner: Owner | None = None
        self.suspension: Suspension | None = None
        self.claiming: set[int] = set()
        """Partitions whose CURSOR entry of the current owner version is under way."""
        self.waiters: deque[asyncio.Future[None]] = deque()
        self._store = store
        self._pool = pool
        self._time = time
        self._spawn = spawn
        self._gathering: asyncio.TimerHandle | None = None
        self._closed = False
        self._counted: tuple[int | None, int | None] = (None, None)
        self._count_again_ms = 0

    @property
    def state(self) -> str:
        """What a fetch is told: suspended, serving, or starting while no partition stands under the owner's version."""
        machine = self.machine
        if self.suspension is not None:
            return SUSPENDED
        ready = any(window.owner_version == machine.owner_version for window in machine.windows.values())
        return SERVING if ready else STARTING

    async def next_batch(self, request: FetchRequest, deadline_ms: int) -> Batch | None:
        """The next batch for this request, at the latest at `deadline_ms`; None when there was nothing. Raises
        Overloaded."""
        now = self._time.now_ms()
        while True:
            self.refill()
            due = self.machine.due_in_ms(now)
            if due is not None and (due == 0 or now >= deadline_ms):
                batch = await self._serve(request, now)
                if batch is not None:
                    return batch
            if now >= deadline_ms or self._closed:
                return None
            if due != 0:
                self.wake()
                await self._wait(deadline_ms - now)
            now = self._time.now_ms()

    async def _serve(self, request: FetchRequest, now_ms: int) -> Batch | None:
        machine = self.machine
        batch = machine.take(request.session, request.max_count, request.max_bytes, now_ms)
        if batch is None:
            return None
        items = batch.items()
        if any(item[0] == _TO_FETCH for item in items):
            loop = asyncio.get_running_loop()
            try:
                resolved = await loop.run_in_executor(self._pool, read_objects, self._store, items, request.max_bytes)
            except BaseException:
                machine.release(batch)
                raise
            if not machine.settle(batch, resolved):
                return None
        machine.sent(batch)
        self.refill()
        self.wake()
        return batch

    async def _wait(self, wait_ms: int) -> None:
        if len(self.waiters) >= WAITING_FETCHES_MAX:
            raise Overloaded(f"{WAITING_FETCHES_MAX} fetches wait at queue {self.settings.name} already")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self.waiters.append(waiter)
        timer = loop.call_later(wait_ms / 1000, _let_go, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            if waiter in self.waiters:
                self.waiters.remove(waiter)

    def wake(self) -> None:
        """Wake the first waiting fetch if there is something to give: now, or once enough has gathered."""
        if not self.waiters:
            return
        due = self.machine.due_in_ms(self._time.now_ms())
        if due == 0:
            while self.waiters:
                waiter = self.waiters.popleft()
                if not waiter.done():
                    waiter.set_result(None)
                    return
        elif due is not None and self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(due / 1000, self._gathered)

    def wake_all(self) -> None:
        """Every waiting fetch looks again: the queue was suspended or resumed."""
        while self.waiters:
            _let_go(self.waiters.popleft())

    def close(self) -> None:
        """Answer the waiting fetches; none waits from here on."""
        self._closed = True
        self.wake_all()

    def _gathered(self) -> None:
        self._gathering = None
        self.wake()

    def refill(self) -> None:
        """Begin every read of the change index that a window wants."""
        for window, start, rows in self.machine.refills():
            self._spawn(self._read_rows(window, start, rows))

    async def _read_rows(self, window: Window, start: int, limit: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            rows = await loop.run_in_executor(self._pool, self._store.changes, window.partition, start, limit)
        except IsthmusError as error:
            log.error("queue.rows_unreadable", queue=self.settings.name, partition=window.partition, error=str(error))
            window.refill_failed()
            return
        window.refilled(rows, limit)
        self.refill()
        self.wake()

    async def count_waiting(self, partitions_led: int) -> tuple[int | None, int | None]:
        """(changes that wait, wall clock of the oldest that does): exact from memory, else by reading the change
        index, at most COUNT_ROWS_MAX rows of it; then the count is None."""
        machine = self.machine
        if len(machine.windows) < partitions_led:
            return None, machine.oldest_ms()
        ranges = machine.unknown()
        if not ranges:
            return machine.waiting_count(), machine.oldest_ms()
        began = self._time.now_ms()
        if began >= self._count_again_ms:
            loop = asyncio.get_running_loop()
            self._counted = await loop.run_in_executor(self._pool, count_rows, self._store, ranges, COUNT_ROWS_MAX)
            now = self._time.now_ms()
            self._count_again_ms = now + max(COUNT_REST_MIN_MS, COUNT_REST * (now - began))
        count, oldest = self._counted
        in_memory = machine.oldest_ms()
        oldest = min((t for t in (oldest, in_memory) if t is not None), default=None)
        return (None if count is None else count + machine.waiting_count()), oldest


def _let_go(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)

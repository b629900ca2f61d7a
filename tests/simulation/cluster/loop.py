"""An event loop in a simulation's virtual time, one for each simulated process: the product's own coroutines run on it.

`call_soon` schedules an event of the simulation, `call_later` one at its virtual time. A paused process's calls wait
until it continues; a dead one's tasks are cancelled, and their remaining output is dropped.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process

WIND_UP_CALLS = 20_000
"""Calls that the tasks of a dead process may take to end: far more than they need."""

READ_MS_MAX = 4
"""Longest way of a read to its thread, and back."""


class SimLoop(asyncio.AbstractEventLoop):
    """The event loop of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._simulation = process.simulation
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._soon: dict[events.Handle, None] = {}
        """Calls that are due and have not happened."""
        self._parked: deque[events.Handle] = deque()
        self._ending: deque[events.Handle] | None = None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Code of the process runs: this is the running loop."""
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            yield
        finally:
            events._set_running_loop(before)

    # -- the interface that the product uses ---------------------------------------------------

    def get_debug(self) -> bool:
        """See asyncio."""
        return False

    def time(self) -> float:
        """Virtual seconds."""
        return self._simulation.now_ms / 1000

    def call_soon(self, callback: Callable[..., Any], *args: Any, context: Any = None) -> events.Handle:
        """See asyncio."""
        handle = events.Handle(callback, args, self, context)
        if self._ending is not None:
            self._ending.append(handle)
        else:
            self._soon[handle] = None
            self._simulation.after(0, self._run, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> events.TimerHandle:
        """See asyncio."""
        handle = events.TimerHandle(self.time() + delay, callback, args, self, context)
        if self._ending is None:
            self._simulation.after(max(0, round(delay * 1000)), self._run, handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> events.TimerHandle:
        """See asyncio."""
        return self.call_later(when - self.time(), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        """See asyncio."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **_: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """See asyncio."""
        task = asyncio.Task(coro, loop=self)
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))
        return task

    def run_in_executor(  # type: ignore[override]
        self, _executor: Any, function: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """A read in a thread: it reads the store's state of some time later, and takes a while to return."""
        future = self.create_future()
        self.call_later(self._simulation.rng.randint(0, READ_MS_MAX) / 1000, self._read, future, function, args)
        return future

    def _read(self, future: asyncio.Future[Any], function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.done():
            return
        found = function(*args)
        self.call_later(self._simulation.rng.randint(0, READ_MS_MAX) / 1000, self._bring, future, found)

    @staticmethod
    def _bring(future: asyncio.Future[Any], found: object) -> None:
        if not future.done():
            future.set_result(found)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignore exceptions that nobody awaited: answers that a dead client would have got."""

    def _timer_handle_cancelled(self, handle: events.TimerHandle) -> None:
        """See asyncio; a cancelled call comes and is passed over."""

    # -- the simulation ------------------------------------------------------------------------------

    def _run(self, handle: events.Handle) -> None:
        if handle.cancelled() or not self._process.alive or self._ending is not None:
            return
        if self._process.paused:
            self._parked.append(handle)
            return
        self._soon.pop(handle, None)
        self._call(handle)
        if self._simulation.broken is not None:  # type: ignore[attr-defined]
            raise self._simulation.broken  # type: ignore[attr-defined]

    def _call(self, handle: Any) -> None:
        before = events._get_running_loop()
        events._set_running_loop(self)  # as `entered`, which takes a fifth of the time of most calls
        try:
            handle._context.run(handle._callback, *handle._args)
        finally:
            events._set_running_loop(before)

    def go_on(self) -> None:
        """Continue after a pause."""
        while self._parked and not self._process.paused and self._process.alive:
            self._run(self._parked.popleft())

    def wind_up(self) -> None:
        """End all tasks; nothing runs here any more."""
        if self._ending is not None:
            return
        self._ending = deque(self._soon)
        for task in list(self._tasks):
            task.cancel()
        for _ in range(WIND_UP_CALLS):
            if not self._ending:
                break
            handle = self._ending.popleft()
            if not handle.cancelled():
                self._call(handle)

"""An event loop in virtual time, one for each machine.

A turn calls what is ready, as asyncio's does; it is an event of the kernel, some ten microseconds after the one that
made something ready, so that the turns of several machines interleave as the seed says. A timer begins a turn itself.
Work for threads (`run_in_executor`) runs in greenlets, as many at once as its pool has threads.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from asyncio import events as asyncio_events
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tests.simulation.world.kernel import KernelEvent
from tests.simulation.world.network import NetworkLoop

if TYPE_CHECKING:
    from tests.simulation.world.machine import VirtualMachine

TURN_NS = 20_000
"""Time from the moment at which a loop has something to do until its turn; up to twice that, by chance."""

DEFAULT_THREADS = 8
"""Threads of a loop's default executor."""


class VirtualLoop(NetworkLoop, asyncio.AbstractEventLoop):
    """The loop of one machine's process."""

    def __init__(self, machine: VirtualMachine) -> None:
        self.machine = machine
        self._kernel = machine.kernel
        self._ready: deque[asyncio.Handle] = deque()
        self._turn_due = False
        self._turn_event = KernelEvent(None, machine)
        self._running = False
        self._closed = False
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None
        self._signal_handlers: dict[int, tuple[Callable[..., object], tuple[Any, ...]]] = {}
        self._pools: dict[int, _VirtualPool] = {}
        self.init_network()

    # Turns

    def _turn(self) -> None:
        self._turn_due = False
        ready = self._ready
        count = len(ready)
        asyncio_events._set_running_loop(self)
        self._running = True
        try:
            for _ in range(count):
                handle = ready.popleft()
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:  # noqa: BLE001 - as asyncio.Handle: the loop's handler gets it
                        self._raised(handle, error)
        finally:
            self._running = False
            asyncio_events._set_running_loop(None)
        if ready:
            self._want_turn()

    def _want_turn(self) -> None:
        if not self._turn_due and not self._closed:
            self._turn_due = True
            kernel = self._kernel
            event = self._turn_event
            event.callback = self._turn
            kernel.again(TURN_NS + int(kernel.random.random() * TURN_NS), event)

    def _raised(self, handle: asyncio.Handle, error: BaseException) -> None:
        what = f"Exception in callback {handle!r}"
        self.call_exception_handler({"message": what, "exception": error, "handle": handle})

    def time(self) -> float:
        return self.machine.monotonic_s()

    def call_soon(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Call(callback, args, self, context)
        self._ready.append(handle)
        if not self._turn_due:
            self._want_turn()
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., Any], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = _Timer(when, callback, args, self, context)
        delay_ns = self.machine.kernel_ns(when - self.time())
        handle.event = self._kernel.at(delay_ns + TURN_NS, functools.partial(self._due, handle), self.machine)
        return handle

    def _due(self, handle: asyncio.Handle) -> None:
        if not handle._cancelled:
            self._ready.append(handle)
            if not self._turn_due:
                self._turn()

    # Futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def get_task_factory(self) -> None:
        return None

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def set_exception_handler(self, handler: Any) -> None:
        self._handler = handler

    def get_exception_handler(self) -> Any:
        return self._handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.machine.uncaught(str(context.get("message")), context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self._closed:
            return
        if self._handler is not None:
            self._handler(self, context)
        self.default_exception_handler(context)

    async def shutdown_asyncgens(self) -> None:
        """Nothing is kept."""

    def _asyncgen_firstiter_hook(self, agen: object) -> None:
        """Nothing is kept."""

    # Signals

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self._signal_handlers[int(sig)] = callback, args

    def signal(self, number: int) -> bool:
        """Send a signal to the process; whether it handles it."""
        found = self._signal_handlers.get(int(number))
        if found is None:
            return False
        self.call_soon(found[0], *found[1])
        return True

    # Threads

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        pool = self._pools.get(id(executor))
        if pool is None:
            threads = executor._max_workers if isinstance(executor, ThreadPoolExecutor) else DEFAULT_THREADS
            pool = self._pools[id(executor)] = _VirtualPool(self.machine, executor, threads)
        if isinstance(executor, ThreadPoolExecutor) and executor._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        pool.submit(future, functools.partial(func, *args))
        return future


class _Call(asyncio.Handle):
    """A call that is due; asyncio's asks the loop for its debug mode each time."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., Any],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None
        self._source_traceback = None


class _Timer(_Call, asyncio.TimerHandle):
    """A timer that knows its event."""

    __slots__ = ("event",)
    event: Any

    def __init__(
        self,
        when: float,
        callback: Callable[..., Any],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: contextvars.Context | None,
    ) -> None:
        _Call.__init__(self, callback, args, loop, context)
        self._when = when
        self._scheduled = False
        self.event = None

    def cancel(self) -> None:
        """See asyncio.Handle; asyncio's asks the loop for its debug mode each time."""
        if not self._cancelled:
            self._cancelled = True
            self._callback = self._args = None
            self.event.cancel()


class _VirtualPool:
    """The threads of one executor."""

    def __init__(self, machine: VirtualMachine, executor: object, threads: int) -> None:
        self._machine = machine
        self._executor = executor  # so that its id stays its own
        self._free = threads
        self._jobs: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()

    def submit(self, future: asyncio.Future[Any], job: Callable[[], Any]) -> None:
        self._jobs.append((future, job))
        if self._free:
            self._free -= 1
            kernel = self._machine.kernel
            kernel.spawn(self._work, self._machine, TURN_NS + int(kernel.random.random() * TURN_NS))

    def _work(self) -> None:
        loop = self._machine.loop
        while self._jobs:
            future, job = self._jobs.popleft()
            if future.cancelled():
                continue
            try:
                result = job()
            except StopIteration as error:
                found: tuple[BaseException | None, Any] = RuntimeError(f"StopIteration: {error}"), None
            except Exception as error:  # noqa: BLE001 - it belongs to the caller
                found = error, None
            else:
                found = None, result
            loop.call_soon(_settle, future, *found)
        self._free += 1


def _settle(future: asyncio.Future[Any], error: BaseException | None, result: Any) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)

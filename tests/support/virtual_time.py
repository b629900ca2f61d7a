"""An event loop in virtual time: when nothing is ready, its clock jumps to the next timer.

An async test with the marker `virtual_time` runs in it; `run` serves tests that cannot be async. The clock stops while
code runs, and while a call is in an executor: the result of a thread comes before any timer. Sockets, pipes and threads
outside executors answer in real time: tests that use them must not run in virtual time; with sockets or pipes they
fail. The same holds for tests in which a thread waits for the loop, or the loop acts by timers while a thread reads:
mark them with False.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

START_S: Final = 1_000_000
"""The loop's time when it begins: far from 0, which means "never" in places."""

NS: Final = 1_000_000_000

TURNS_MAX: Final = 500_000
"""Turns of the loop, each with a ready call, until a test fails: some ten seconds, far more than tests need."""


class NothingToWaitFor(RuntimeError):
    """All tasks wait, and there is neither a timer nor a call in an executor: they would wait for ever."""


class _Selector(selectors.DefaultSelector):
    """Advances the clock of its loop where another selector would wait."""

    loop: VirtualTimeLoop
    turns = 0
    """Turns of the loop since it last had to wait."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Ready files; none after the clock moved by `timeout` seconds."""
        ready = super().select(0)
        if ready or timeout == 0:
            self.turns += 1
            if self.turns > TURNS_MAX:
                raise RuntimeError(
                    f"{TURNS_MAX:,} turns of the loop and time did not pass: a task polls without a timer"
                )
            return ready
        self.turns = 0
        if self.loop.calls_in_threads:
            return super().select(None)
        if len(self.get_map()) > 1:  # the loop's own, which wakes it, is one
            raise RuntimeError("a socket or pipe is open in virtual time: it answers in real time, which does not pass")
        if timeout is None:
            raise NothingToWaitFor("every task waits, and no timer and no thread is left that could wake one")
        self.loop.now_ns += round(timeout * NS)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """asyncio's loop with a clock that costs no time."""

    def __init__(self) -> None:
        self.now_ns = START_S * NS
        self.calls_in_threads = 0
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        """Virtual seconds."""
        return self.now_ns / NS

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, function: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """See asyncio; the clock stops until the call has returned."""
        future: asyncio.Future[T] = super().run_in_executor(executor, function, *args)
        self.calls_in_threads += 1
        future.add_done_callback(self._returned)
        return future

    def _returned(self, _future: asyncio.Future[Any]) -> None:
        self.calls_in_threads -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """See asyncio, which waits for a thread of its own here."""
        self.calls_in_threads += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self.calls_in_threads -= 1


def run(test: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(test)


class LoopTime:
    """A time source (`repl.model.ports.TimeSource`) with the clock of the running loop, virtual or not.

    `skew_ms` moves both clocks ahead, without waiting."""

    def __init__(self) -> None:
        self.skew_ms = 0
        self._loop = asyncio.get_running_loop()
        self._wall_less_loop_ms = time.time_ns() // 1_000_000 - self._loop_ms()

    def _loop_ms(self) -> int:
        return int(self._loop.time() * 1000 + 1e-6)  # 1.05 s are 1050 ms, not 1049.999

    def now_ms(self) -> int:
        """Milliseconds of the loop's clock."""
        return self._loop_ms() + self.skew_ms

    def wall_ms(self) -> int:
        """Milliseconds since 1970: the start date plus the loop's elapsed time."""
        return self.now_ms() + self._wall_less_loop_ms

"""`repl.timers`: one callback at the earliest deadline, on every supported event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import pytest
import uvloop

from isthmus.queues.long_poll import LongPollWaiters
from isthmus.repl.timers import DeadlineTimer
from tests.support.waiting import PATIENCE_S

LOOPS: Final = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest.fixture(params=sorted(LOOPS))
def run(request: pytest.FixtureRequest) -> Callable[[Awaitable[None]], None]:
    """Run a coroutine on a new loop of each kind."""

    def on_loop(main: Any) -> None:
        with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
            runner.run(asyncio.wait_for(main, PATIENCE_S))

    return on_loop


def test_a_deadline_that_has_passed_does_not_break_the_next_one(run: Any) -> None:
    """A deadline of now, which uvloop answers with a handle that has no `when`, can be followed by others before its
    call; there is one call for all of them, and the timer can be used again afterwards."""

    async def main() -> None:
        calls: list[int] = []
        timer = DeadlineTimer(lambda: calls.append(1))
        timer.call_within(0)
        timer.call_within(5)
        timer.call_within(-1)
        assert calls == []
        await asyncio.sleep(0.02)
        assert calls == [1]
        timer.call_within(0)
        await asyncio.sleep(0.02)
        assert calls == [1, 1]

    run(main())


@pytest.mark.timing
def test_an_earlier_deadline_replaces_a_later_one_and_not_the_reverse(run: Any) -> None:
    """The call comes at the earliest of the deadlines; a cancelled timer does not call, and starts over."""

    async def main() -> None:
        called: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        timer = DeadlineTimer(lambda: called.set_result(loop.time()))
        began_s = loop.time()
        timer.call_within(5)
        timer.call_within(0.02)
        timer.call_within(3)
        assert await called - began_s < 1
        called = loop.create_future()
        timer.call_within(0.01)
        timer.cancel()
        await asyncio.sleep(0.03)
        assert not called.done()
        timer.call_within(0.01)
        await called

    run(main())


def test_a_fetch_that_waits_0_ms_does_not_fail_the_next_one(run: Any) -> None:
    """Two long polls of one queue, the first of which waits no time at all: both end without an error."""

    async def main() -> None:
        polls = LongPollWaiters("q", lambda: None)
        session: Any = SimpleNamespace()

        async def await_waiter(waiter: asyncio.Future[None]) -> None:
            await waiter

        await asyncio.gather(polls.wait(session, 0, await_waiter), polls.wait(session, 20, await_waiter))
        polls.look_in_ms(0)
        polls.look_in_ms(10)
        await asyncio.sleep(0.03)

    run(main())

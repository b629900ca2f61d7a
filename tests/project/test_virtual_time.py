"""tests/support/virtual_time.py: waiting takes no real time, and a wait without end fails."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest

from tests.support import virtual_time
from tests.support.virtual_time import LoopTime, NothingToWaitFor, VirtualTimeLoop

DAY_S = 86_400


@pytest.mark.virtual_time
async def test_a_day_passes_at_once_and_timers_run_in_their_order() -> None:
    """The marker gives a test this loop, whose clock is exactly at the time of the timer that runs; the product's
    clocks follow it."""
    loop, clock, began_s = asyncio.get_running_loop(), LoopTime(), time.monotonic()
    assert isinstance(loop, VirtualTimeLoop)
    start_s, start_ms, start_wall_ms = loop.time(), clock.now_ms(), clock.wall_ms()
    ran: list[tuple[str, float]] = []

    async def note(name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        ran.append((name, loop.time() - start_s))

    await asyncio.gather(note("second", DAY_S), note("first", 0.001), note("third", DAY_S + 0.05))
    assert ran == [("first", pytest.approx(0.001)), ("second", DAY_S), ("third", pytest.approx(DAY_S + 0.05))]
    clock.skew_ms += 5
    assert clock.now_ms() - start_ms == clock.wall_ms() - start_wall_ms == DAY_S * 1000 + 50 + 5
    assert time.monotonic() - began_s < 30


@pytest.mark.virtual_time
async def test_time_stands_still_while_a_thread_works() -> None:
    """The result of a call in an executor arrives before any time-out, however long the call takes."""
    loop = asyncio.get_running_loop()
    before_s = loop.time()
    async with asyncio.timeout(0.001):
        await asyncio.to_thread(time.sleep, 0.02)
    assert loop.time() == before_s


def test_who_waits_for_nothing_fails() -> None:
    """A test that would wait for ever fails at once instead of at its time-out."""

    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(NothingToWaitFor):
        virtual_time.run(wait())


def test_sockets_are_refused_once_time_would_pass() -> None:
    """A socket answers in real time: beside one, time-outs would be over before any answer."""

    async def wait() -> None:
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            with pytest.raises(asyncio.CancelledError):  # when the loop is closed
                await asyncio.wait_for(asyncio.get_running_loop().sock_recv(here, 1), 60)
            raise asyncio.CancelledError

    with pytest.raises(RuntimeError, match="socket or pipe"):
        virtual_time.run(wait())


def test_a_loop_ends_with_its_threads() -> None:
    """The default executor is shut down at the end, although that takes a thread and no timer."""

    async def work() -> int:
        return await asyncio.to_thread(threading.get_ident)

    assert virtual_time.run(work()) != threading.get_ident()

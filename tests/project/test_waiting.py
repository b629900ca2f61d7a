"""tests/support/waiting.py: a claim that becomes true is awaited, and one that does not fails with its words."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from tests.support.waiting import PATIENCE_S, eventually, wait_until


@pytest.mark.virtual_time
async def test_a_claim_is_awaited_and_its_value_returned() -> None:
    """A function and a coroutine function may make it, as late as the last moment; its value is the result."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()

    async def found() -> str:
        await asyncio.sleep(0.1)
        return "found" if loop.time() >= begun_s + PATIENCE_S - 1 else ""

    assert await eventually(found) == "found"
    assert loop.time() - begun_s >= PATIENCE_S - 1
    assert await eventually(lambda: [7]) == [7]


@pytest.mark.virtual_time
async def test_a_claim_that_stays_false_fails_with_its_words() -> None:
    """After the time-out, and not before; an error of the claim itself is not awaited."""
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    with pytest.raises(AssertionError, match="not within 30 s: the leader has moved"):
        await eventually(lambda: False, "the leader has moved")
    assert PATIENCE_S <= loop.time() - begun_s < PATIENCE_S + 1
    with pytest.raises(ZeroDivisionError):
        await eventually(lambda: 1 // 0)


def test_without_a_loop_threads_go_on_meanwhile() -> None:
    """`wait_until` does the same for threads and processes."""
    done = threading.Event()
    thread = threading.Timer(0.05, done.set)
    thread.start()
    assert wait_until(done.is_set) is True
    thread.join()
    begun_s = time.monotonic()
    with pytest.raises(AssertionError, match=r"not within 0\.1 s: it"):
        wait_until(lambda: None, timeout_s=0.1)
    assert time.monotonic() - begun_s >= 0.1

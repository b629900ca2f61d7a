"""The alarm on a real scheduler: it rings once, on the event loop, at the newest date."""

from __future__ import annotations

import asyncio
import threading
import time

from isthmus.aae.scheduling.alarm import SchedulerAlarm
from tests.support.waiting import PATIENCE_S


async def test_an_alarm_fires_once_on_the_loop_and_a_new_time_replaces_the_old() -> None:
    """This also holds for a time in the past; after `stop` it does not fire."""

    rung: list[tuple[str, int]] = []
    heard = asyncio.Event()

    def ring(name: str) -> None:
        asyncio.get_running_loop()
        rung.append((name, threading.get_ident()))
        heard.set()

    alarm = SchedulerAlarm()
    now_ms = int(time.time() * 1000)
    alarm.set_at(now_ms + 3_600_000, lambda: ring("never"))
    alarm.set_at(now_ms - 60_000, lambda: ring("gone"))
    async with asyncio.timeout(PATIENCE_S):
        await heard.wait()
    heard.clear()
    alarm.set_at(int(time.time() * 1000) + 50, lambda: ring("soon"))
    async with asyncio.timeout(PATIENCE_S):
        await heard.wait()
    alarm.set_at(int(time.time() * 1000) + 50, lambda: ring("stopped"))
    alarm.stop()
    await asyncio.sleep(0.2)
    assert rung == [("gone", threading.get_ident()), ("soon", threading.get_ident())]

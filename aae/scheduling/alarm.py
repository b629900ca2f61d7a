"""The one date at which full-sync has something to do next, kept by APScheduler: the one place that knows it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger

_JOB: Final = "next-check"


class Alarm(Protocol):
    """Rings once, at a wall-clock time."""

    def ring_at(self, wall_ms: int, call: Callable[[], None]) -> None:
        """Call on the event loop at `wall_ms`, at once if that has gone; a new date replaces the old one."""

    def stop(self) -> None:
        """Ring no more."""


class SchedulerAlarm:
    """An Alarm on the running event loop."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone=UTC)
        self._scheduler.start()

    def ring_at(self, wall_ms: int, call: Callable[[], None]) -> None:
        """See Alarm."""
        moment = DateTrigger(datetime.fromtimestamp(wall_ms / 1000, UTC))

        async def ring() -> None:
            call()  # a plain function would be called in a thread

        self._scheduler.add_job(ring, moment, id=_JOB, replace_existing=True, misfire_grace_time=None)

    def stop(self) -> None:
        """See Alarm."""
        self._scheduler.shutdown(wait=False)

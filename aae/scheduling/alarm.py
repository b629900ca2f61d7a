"""The one time at which full-sync has something to do next; the only module that imports APScheduler.

The requirements of the project name APScheduler for full-sync's schedule. The plan of a day is made by pure functions
(`aae.scheduling.schedule`), so that a single date at a time is left for it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final, Protocol

from apscheduler.schedulers.asyncio import AsyncIOScheduler
from apscheduler.triggers.date import DateTrigger

_JOB: Final = "next-check"


class Alarm(Protocol):
    """Calls back once, at a wall-clock time."""

    def set_at(self, wall_ms: int, call: Callable[[], None]) -> None:
        """Call on the event loop at `wall_ms`, at once if that has gone; a new date replaces the old one."""

    def stop(self) -> None:
        """Cancel the alarm."""


class SchedulerAlarm:
    """An Alarm on the running event loop."""

    def __init__(self) -> None:
        self._scheduler = AsyncIOScheduler(timezone=UTC)

    def set_at(self, wall_ms: int, call: Callable[[], None]) -> None:
        """See Alarm."""
        if not self._scheduler.running:
            self._scheduler.start()
        moment = DateTrigger(datetime.fromtimestamp(wall_ms / 1000, UTC))

        async def run() -> None:
            call()  # APScheduler would call a plain function in a thread

        self._scheduler.add_job(run, moment, id=_JOB, replace_existing=True, misfire_grace_time=None)

    def stop(self) -> None:
        """See Alarm."""
        if self._scheduler.running:
            self._scheduler.shutdown(wait=False)

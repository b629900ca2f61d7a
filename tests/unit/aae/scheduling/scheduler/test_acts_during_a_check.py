"""Settings of full-sync that operators change while a check runs are kept."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from isthmus.aae.exchange.exchange import ExchangeVerdict
from isthmus.aae.scheduling.schedule import CheckKind, TimeRange
from tests.unit.aae.scheduling.scheduler.test_checks import START, WEST, SchedulerFixture, ended

pytestmark = pytest.mark.virtual_time


async def test_a_range_that_is_set_while_a_check_runs_is_that_of_the_next_one(tmp_path: Path) -> None:
    """The running check uses the previous range, or none: its end must not delete the new one."""

    fixture = SchedulerFixture(tmp_path, WEST)
    checker = fixture.checkers["west"]
    checker.outcomes = [ExchangeVerdict.IN_SYNC, ExchangeVerdict.REPAIRED]
    for since_ms in (5, 7):
        checker.gate = asyncio.Event()
        fixture.scheduler.begin("west", CheckKind.RANGE, "")
        while fixture.scheduler.running is None:
            await asyncio.sleep(0)
        await fixture.scheduler.set_range("west", TimeRange(since_ms, 9))
        checker.gate.set()
        await ended(fixture)
    await fixture.scheduler.run("west", CheckKind.RANGE, "")
    assert [check.times.since_ms for check in checker.checks if check.times] == [START, 5, 7]

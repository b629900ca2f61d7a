"""Reports of damaged rows wait until they are taken, whoever makes them and however early."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.aae.damaged_rows import SUSPECTS_MAX, DamagedRows

pytestmark = pytest.mark.virtual_time


async def test_what_is_reported_before_anybody_waits_is_taken_later() -> None:
    """A row of a known segment is checked; one of an unknown segment has all rows of its partition repaired. Each
    report is taken once, the segments of a partition together and in order."""
    damaged = DamagedRows()
    damaged.on_damaged_row(3, 9)
    damaged.on_damaged_row(3, 4)
    damaged.on_damaged_row(5, None)
    await asyncio.wait_for(damaged.reported(), 1)
    assert damaged.take_suspects() == {3: [4, 9]}
    assert damaged.take_repair() == (5, {})
    assert (damaged.take_suspects(), damaged.take_repair()) == ({}, None)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(damaged.reported(), 1)


async def test_a_repair_is_told_all_leaves_of_its_partition() -> None:
    """Leaves that are reported one after the other are one repair, with the newest leaf of each segment."""
    damaged = DamagedRows()
    damaged.repair_soon(1, {7: 70, 8: 80})
    damaged.repair_soon(1, {8: 81})
    assert damaged.take_repair() == (1, {7: 70, 8: 81})


def test_segments_over_the_limit_are_left_to_the_rounds() -> None:
    """An exchange may read any number of segments; what waits is bounded."""
    damaged = DamagedRows()
    damaged.check_soon(1, range(SUSPECTS_MAX + 5))
    damaged.check_soon(2, range(5))
    assert damaged.take_suspects() == {1: list(range(SUSPECTS_MAX))}

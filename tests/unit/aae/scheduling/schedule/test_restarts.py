"""The moments of checks on nodes that start at different times, restart, arrive and leave; all share the day's
slots."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from isthmus.aae.scheduling.schedule import DAY_MS, HOUR_MS, CheckKind
from tests.unit.aae.scheduling.scheduler.test_checks import START, WEST, SchedulerFixture, ended, operator_view

pytestmark = pytest.mark.virtual_time

MINUTE_MS = 60_000
NODES = ("n0", "n1", "n2")


def offsets(fixture: SchedulerFixture) -> set[int]:
    """The minutes within the hour at which upcoming checks begin."""
    return {at_ms % HOUR_MS // MINUTE_MS for at_ms, _ in fixture.scheduler.upcoming("west")}


def began(fixture: SchedulerFixture, name: str = "west") -> list[int]:
    """When the checks began, in minutes of the first day."""
    return [(check.began_ms - START) // MINUTE_MS for check in fixture.checkers[name].checks]


async def test_nodes_that_start_at_different_times_stay_apart(tmp_path: Path) -> None:
    """Three nodes that start at odd moments, one of which restarts at the worst one, keep a third of a slot between
    their checks all day."""

    starts = {"n0": 13 * MINUTE_MS + 7, "n1": 34 * MINUTE_MS + 901, "n2": 59 * MINUTE_MS}
    desks = [
        SchedulerFixture(tmp_path / node, WEST, live=NODES, node=node, start_ms=START + at_ms)
        for node, at_ms in starts.items()
    ]
    assert [offsets(fixture) for fixture in desks] == [{0}, {20}, {40}]
    again = SchedulerFixture(
        tmp_path / "n1", WEST, live=NODES, node="n1", start_ms=START + 9 * HOUR_MS + 42 * MINUTE_MS
    )
    assert offsets(again) == {20}
    await again.pass_until(START + DAY_MS)
    assert began(again) == [60 * hour + 20 for hour in range(10, 24)]


@pytest.mark.parametrize("minute", [1, 19, 20, 21, 45])
async def test_a_restart_within_a_slot_repeats_nothing_and_skips_what_has_gone_by(tmp_path: Path, minute: int) -> None:
    """A check whose moment is still ahead runs; one whose moment was before the start does not, and is not called
    late."""

    fixture = SchedulerFixture(tmp_path, WEST, live=NODES, start_ms=START + 5 * HOUR_MS + minute * MINUTE_MS)
    await fixture.pass_until(START + 7 * HOUR_MS)
    assert began(fixture) == ([5 * 60 + 20] if minute <= 20 else []) + [6 * 60 + 20]
    assert list(fixture.scheduler.peer("west").skipped) == []


async def test_a_restart_goes_on_with_the_days_order(tmp_path: Path) -> None:
    """The kinds of the rest of the day are those that were planned before the restart; the next day has another order,
    and another node its own."""

    mixed = replace(WEST, hour_count=10, all_count=6, day_count=8)
    before = SchedulerFixture(tmp_path / "a", mixed)
    plan = before.scheduler.upcoming("west")
    again = SchedulerFixture(tmp_path / "b", mixed, start_ms=START + 7 * HOUR_MS + 1)
    assert again.scheduler.upcoming("west") == plan[8:]
    other = SchedulerFixture(tmp_path / "c", mixed, live=["n2"], node="n2")
    assert [kind for _, kind in other.scheduler.upcoming("west")] != [kind for _, kind in plan]
    await again.pass_until(START + DAY_MS - 1)
    tomorrow = again.scheduler.upcoming("west")
    assert [at_ms for at_ms, _ in tomorrow] == [at_ms + DAY_MS for at_ms, _ in plan]
    assert [kind for _, kind in tomorrow] != [kind for _, kind in plan]


async def test_nodes_that_come_and_go_move_the_moments_and_no_slot_runs_twice(tmp_path: Path) -> None:
    """A node that goes moves the others' moments back, one that comes moves them on; each slot has one check at most,
    at most half a slot late, and its moment is that of the nodes that live then."""

    fixture = SchedulerFixture(tmp_path, WEST, live=NODES, node="n2")
    await fixture.pass_until(START + 45 * MINUTE_MS)  # of three, at 40
    fixture.members.live = ["n2"]
    fixture.scheduler.arm()
    await fixture.pass_until(START + 65 * MINUTE_MS)  # alone, at 0
    fixture.members.live = ["n1", "n2"]
    fixture.scheduler.arm()
    await fixture.pass_until(START + 2 * HOUR_MS + 25 * MINUTE_MS)  # of two, at 30
    fixture.members.live = ["n2"]
    fixture.scheduler.arm()
    await fixture.pass_until(START + 2 * HOUR_MS + 50 * MINUTE_MS)  # what was to come at 30 is due since 0
    assert began(fixture) == [40, 60, 2 * 60 + 25]
    assert not fixture.scheduler.peer("west").skipped


async def test_before_the_other_nodes_are_known_nothing_is_lost(tmp_path: Path) -> None:
    """A node that does not know the live nodes yet plans as if it were alone; a check that is due by its later rank in
    the same slot still runs."""

    fixture = SchedulerFixture(tmp_path, WEST, live=(), node="n2", start_ms=START + HOUR_MS + 10 * MINUTE_MS)
    fixture.members.live = list(NODES)
    fixture.scheduler.arm()
    await fixture.pass_until(START + 2 * HOUR_MS)
    assert began(fixture) == [60 + 40]


async def test_the_last_check_of_a_day_may_begin_after_midnight(tmp_path: Path) -> None:
    """A check that is due before midnight and waits for a longer one begins after midnight, within half a slot; one
    that waits longer is reported as late. The new day's plan begins at midnight."""

    for ends_at, minutes, late in ((20, [20, 50], 0), (21, [50], 1)):
        east = replace(WEST, name="east")  # of two peers and three nodes: at 50 of each hour
        fixture = SchedulerFixture(
            tmp_path / str(ends_at), WEST, east, live=NODES, node="n2", start_ms=START + 23 * HOUR_MS
        )
        peer = fixture.scheduler.peer("east")
        await fixture.pass_until(START + DAY_MS - 11 * MINUTE_MS)
        gate = fixture.checkers["west"].gate = asyncio.Event()
        fixture.scheduler.begin("west", CheckKind.ALL, "ann")
        fixture.clock.ms = START + DAY_MS + ends_at * MINUTE_MS
        gate.set()
        await ended(fixture)
        await fixture.pass_until(START + DAY_MS + 59 * MINUTE_MS)
        assert [at - 24 * 60 for at in began(fixture, "east")] == minutes
        assert [one.reason for one in peer.skipped] == ["late"] * late


async def test_several_peers_of_several_nodes_share_out_a_slot(tmp_path: Path) -> None:
    """Three nodes with two peers each: six moments, a sixth of a slot apart, whenever each node began."""

    moments = []
    for number, node in enumerate(NODES):
        directory = tmp_path / node
        fixture = SchedulerFixture(
            directory, WEST, replace(WEST, name="east"), live=NODES, node=node, start_ms=START + number * 977_000
        )
        moments += [fixture.scheduler.upcoming(name)[-1][0] for name in ("west", "east")]
    assert [(at - START) % HOUR_MS // MINUTE_MS for at in moments] == [0, 10, 20, 30, 40, 50]


async def test_two_clusters_in_slices_of_their_own_are_apart(tmp_path: Path) -> None:
    """Three nodes in slice 1 and two in slice 2 of the other cluster: the moments of one are never in the other's
    quarter of the slot."""

    for slice_, nodes, minutes in ((1, NODES, {0, 5, 10}), (2, ("w1", "w2"), {15, 22})):
        found = set[int]()
        for node in nodes:
            one = replace(WEST, cluster_slice=slice_)
            found |= offsets(SchedulerFixture(tmp_path / node, one, live=nodes, node=node, start_ms=START + 1_234_567))
        assert found == minutes


async def test_a_clock_that_is_set_back_begins_the_plan_there(tmp_path: Path) -> None:
    """Set back by hours, the checks of the hours that come again are due again; by minutes, none is repeated."""

    fixture = SchedulerFixture(tmp_path, WEST)
    await fixture.pass_until(START + 10 * HOUR_MS)
    fixture.clock.ms = START + 9 * HOUR_MS + 50 * MINUTE_MS
    fixture.scheduler.arm()
    assert fixture.alarm.at_ms == START + 11 * HOUR_MS
    fixture.clock.ms = START + 2 * HOUR_MS + 30 * MINUTE_MS
    fixture.scheduler.arm()
    assert fixture.alarm.at_ms == START + 3 * HOUR_MS
    fixture.clock.ms = START + 20 * DAY_MS + 1
    fixture.scheduler.arm()
    assert fixture.alarm.at_ms == START + 20 * DAY_MS + 1, "at once: it is within half a slot"
    assert {one.kind for one in fixture.scheduler.peer("west").skipped} == {CheckKind.HOUR}
    assert operator_view(fixture)["peers"][0]["next_ms"] == START + 20 * DAY_MS

"""Schedules: every want gets its slot, nodes and peers do not meet, what is late is left out, and auto's choice."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aae.schedule import (
    DAY_MS,
    HOUR_MS,
    Kind,
    Place,
    Standing,
    TimeRange,
    Window,
    after,
    chosen,
    due,
    learned_range,
    looked_at,
    moment,
    planned,
    rank_of,
)

START = 1_700_000_000_000
wants = st.dictionaries(st.sampled_from(list(Kind)), st.integers(0, 30))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(wants, st.integers(1, 5), st.integers(1, 3), st.integers())
def test_every_want_gets_a_slot_of_its_own_on_every_node(
    wanted: dict[Kind, int], nodes: int, peers: int, seed: int
) -> None:
    """All checks of the day are in the plan, and no two nodes or peers have the same moment; it is within its slot."""
    plan = planned(wanted, START, Random(seed))
    if plan is None:
        assert sum(n for kind, n in wanted.items() if kind is not Kind.NONE) == 0
        return
    assert sorted(plan.kinds) == sorted(kind for kind, n in wanted.items() for _ in range(n))
    assert DAY_MS - len(plan.kinds) < plan.end_ms - START <= DAY_MS
    moments = [
        moment(plan, slot, Place(rank, nodes, peer, peers))
        for slot in range(len(plan.kinds))
        for rank in range(nodes)
        for peer in range(peers)
    ]
    assert moments == sorted(set(moments))
    assert all(START <= at < plan.end_ms for at in moments)


def test_the_order_is_shuffled() -> None:
    """Two days differ in order."""
    wanted = {Kind.ALL: 5, Kind.HOUR: 20}
    one, other = planned(wanted, START, Random(1)), planned(wanted, START, Random(2))
    assert one is not None
    assert other is not None
    assert one.kinds != other.kinds


def test_what_is_late_is_left_out_and_what_is_just_due_is_not() -> None:
    """A check half a slot behind its moment is skipped and named; the next one is taken; then the day is over."""
    plan = planned({Kind.HOUR: 24}, START, Random(0))
    assert plan is not None
    place = Place(0, 1, 0, 1)
    found, skipped = due(plan, place, -1, START)
    assert found == (0, Kind.HOUR, START)
    assert skipped == []
    found, skipped = due(plan, place, 0, START + HOUR_MS + HOUR_MS // 2)
    assert found is not None
    assert (found.slot, skipped) == (1, [])
    found, skipped = due(plan, place, 0, START + 5 * HOUR_MS + HOUR_MS // 2 + 1)
    assert found is not None
    assert (found.slot, found.at_ms, skipped) == (6, START + 6 * HOUR_MS, [1, 2, 3, 4, 5])
    assert due(plan, place, 23, START) == (None, [])
    assert due(plan, place, 20, START + 2 * DAY_MS) == (None, [21, 22, 23])


def test_ranks_follow_the_names_of_those_that_live() -> None:
    """A node has the rank of its name, also before it is listed itself."""
    assert rank_of("b", ["c", "a", "b"]) == (1, 3)
    assert rank_of("b", ["c", "a"]) == (1, 3)
    assert rank_of("b", []) == (0, 1)


@pytest.mark.parametrize(
    ("first", "end", "hours"),
    [(1, 4, {1, 2, 3}), (22, 2, {22, 23, 0, 1}), (5, 5, {5})],
)
def test_windows_end_before_their_end_and_go_over_midnight(first: int, end: int, hours: set[int]) -> None:
    """The hours of a window, as given."""
    window = Window(first, end)
    assert {h for h in range(24) if window.holds(DAY_MS * 20_000 + h * HOUR_MS + 1)} == hours
    assert Window(first, end, always=True).holds(0)
    assert not Window(first, end, never=True).holds(DAY_MS + first * HOUR_MS)


def test_autos_choice() -> None:
    """In sync: since then. Learned: that first. Failed: all within the window, a day outside; and nothing for a while
    where nothing can be repaired from here, unless the peer is told, too."""
    night = Window(0, 0)
    standing = Standing(START)
    assert chosen(standing, night, DAY_MS, both_ways=False)[0] is Kind.RANGE
    assert looked_at(Kind.RANGE, standing, START + 1000) == TimeRange(START, START + 6000)
    failed = after(standing, Kind.RANGE, START + 500, in_sync=False, repaired=3, learned=None)
    assert failed.succeeded_ms == START
    assert chosen(failed, night, DAY_MS, both_ways=False)[0] is Kind.ALL
    assert chosen(failed, night, DAY_MS + HOUR_MS, both_ways=False)[0] is Kind.DAY
    learned = TimeRange(5, 9, b"b")
    knows = after(failed, Kind.DAY, START, in_sync=False, repaired=3, learned=learned)
    assert chosen(knows, night, DAY_MS, both_ways=False)[0] is Kind.RANGE
    assert looked_at(Kind.RANGE, knows, START) == learned
    assert after(knows, Kind.RANGE, START, in_sync=False, repaired=1, learned=None).learned is None
    assert after(knows, Kind.HOUR, START, in_sync=False, repaired=1, learned=None).learned == learned
    assert after(knows, Kind.ALL, START + 9, in_sync=True, repaired=0, learned=None) == Standing(
        START + 9, learned=learned
    )
    helpless = after(standing, Kind.ALL, START, in_sync=False, repaired=0, learned=None)
    kinds = []
    for _ in range(4):
        kind, helpless = chosen(helpless, night, DAY_MS, both_ways=False)
        kinds.append(kind)
    assert kinds == [Kind.NONE, Kind.NONE, Kind.ALL, Kind.ALL]
    helpless = after(standing, Kind.ALL, START, in_sync=False, repaired=0, learned=None)
    assert chosen(helpless, night, DAY_MS, both_ways=True)[0] is Kind.ALL


def test_what_a_check_looks_at() -> None:
    """All times, the last day, the last hour."""
    standing = Standing(START)
    assert looked_at(Kind.ALL, standing, START) is None
    assert looked_at(Kind.DAY, standing, START) == TimeRange(START - DAY_MS, START + 5_000)
    assert looked_at(Kind.HOUR, standing, START) == TimeRange(START - HOUR_MS, START + 5_000)


def test_many_repairs_teach_a_range() -> None:
    """More than half of what a check may repair: their times a second wider, and their bucket if it is one."""
    assert learned_range([5_000, 9_000], {b"b"}, 4) is None
    assert learned_range([5_000, 9_000, 500], {b"b"}, 4) == TimeRange(0, 10_000, b"b")
    assert learned_range([5_000, 9_000, 7_000], {b"b", b"c"}, 4) == TimeRange(4_000, 10_000, None)

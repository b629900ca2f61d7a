"""Schedules: every configured check gets its slot, nodes and peers take turns, late checks are skipped, and `auto`
chooses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.aae.scheduling.schedule import (
    DAY_MS,
    HOUR_MS,
    SKEW_MAX_MS,
    CheckHours,
    CheckKind,
    PeerScheduleState,
    SchedulePlace,
    TimeRange,
    choose_auto,
    compared_times,
    learned_range,
    next_due,
    plan_day,
    rank_of,
    slot_moment,
    state_after,
    widened,
)
from tests.support.samples import share

START = 1_699_920_000_000  # midnight UTC
wants = st.dictionaries(st.sampled_from(list(CheckKind)), st.integers(0, 30))


@settings(max_examples=share(60), deadline=None, derandomize=True)
@given(wants, st.integers(1, 5), st.integers(1, 3), st.text(max_size=9))
def test_every_check_gets_a_slot_of_its_own_on_every_node(
    wanted: dict[CheckKind, int], nodes: int, peers: int, seed: str
) -> None:
    """All checks of the day are in the plan, and no two nodes or peers have the same moment; it is within its slot."""
    plan = plan_day(wanted, START, seed)
    if plan is None:
        assert sum(n for kind, n in wanted.items() if kind is not CheckKind.NONE) == 0
        return
    assert sorted(plan.kinds) == sorted(kind for kind, n in wanted.items() for _ in range(n))
    assert plan.end_ms == START + DAY_MS
    assert DAY_MS - len(plan.kinds) < plan.slot_ms * len(plan.kinds) <= DAY_MS
    moments = [
        slot_moment(plan, slot, SchedulePlace(rank, nodes, peer, peers))
        for slot in range(len(plan.kinds))
        for rank in range(nodes)
        for peer in range(peers)
    ]
    assert moments == sorted(set(moments))
    assert all(START <= at < plan.end_ms for at in moments)


def test_the_order_is_shuffled_by_node_peer_and_date() -> None:
    """Two days, and two seeds, differ in order; the same seed on the same day gives the same order, as at a restart."""
    wanted = {CheckKind.ALL: 5, CheckKind.HOUR: 20}
    plans = [plan_day(wanted, day_ms, seed) for day_ms, seed in ((START, "a"), (START + DAY_MS, "a"), (START, "b"))]
    assert len({plan.kinds for plan in plans if plan is not None}) == 3
    assert plan_day(wanted, START, "a") == plans[0]


def test_a_late_check_is_skipped_and_a_due_one_is_not() -> None:
    """A check half a slot behind its moment is skipped and named; the next one is taken; then the day is over."""
    plan = plan_day({CheckKind.HOUR: 24}, START, "")
    assert plan is not None
    place = SchedulePlace(0, 1, 0, 1)
    found, skipped = next_due(plan, place, -1, START, START)
    assert found == (0, CheckKind.HOUR, START)
    assert skipped == []
    found, skipped = next_due(plan, place, 0, START, START + HOUR_MS + HOUR_MS // 2)
    assert found is not None
    assert (found.slot, skipped) == (1, [])
    found, skipped = next_due(plan, place, 0, START, START + 5 * HOUR_MS + HOUR_MS // 2 + 1)
    assert found is not None
    assert (found.slot, found.at_ms, skipped) == (6, START + 6 * HOUR_MS, [1, 2, 3, 4, 5])
    assert next_due(plan, place, 23, START, START) == (None, [])
    assert next_due(plan, place, 20, START, START + 2 * DAY_MS) == (None, [21, 22, 23])


def test_moments_before_a_nodes_start_have_gone_by() -> None:
    """A node that starts within a slot neither begins the check that was due before nor calls it late: its first check
    is the next one of the schedule, as without a restart."""
    plan = plan_day({CheckKind.HOUR: 24}, START, "")
    assert plan is not None
    started_ms = START + 5 * HOUR_MS + 30 * 60_000
    found, skipped = next_due(plan, SchedulePlace(1, 3, 0, 1), -1, started_ms, started_ms)
    assert (found, skipped) == ((6, CheckKind.HOUR, START + 6 * HOUR_MS + 20 * 60_000), [])
    found, skipped = next_due(plan, SchedulePlace(2, 3, 0, 1), -1, started_ms, started_ms)
    assert (found, skipped) == ((5, CheckKind.HOUR, START + 5 * HOUR_MS + 40 * 60_000), [])


@pytest.mark.parametrize("nodes", [1, 2, 3, 5])
@pytest.mark.parametrize("others", [1, 2, 4])
def test_clusters_in_slices_of_their_own_never_begin_in_anothers(nodes: int, others: int) -> None:
    """With any numbers of nodes and peers, each cluster's checks begin in its quarter of the slot."""
    plan = plan_day({CheckKind.AUTO: 24}, START, "")
    assert plan is not None
    for slice_, count in ((1, nodes), (2, others), (3, nodes), (4, others)):
        for part in range(2 * count):
            place = SchedulePlace(part // 2, count, part % 2, 2, slice_)
            first = START + 7 * HOUR_MS + (slice_ - 1) * HOUR_MS // 4
            at_ms = slot_moment(plan, 7, place)
            assert first <= at_ms < first + HOUR_MS // 4
            found, skipped = next_due(plan, place, 6, START, first + HOUR_MS // 4)
            assert (found is not None and found.slot, skipped) == (7, [])
            found, skipped = next_due(plan, place, 6, START, first + HOUR_MS // 4 + 1)
            assert (found is not None and found.slot, skipped) == (8, [7])


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
    window = CheckHours(first, end)
    assert {h for h in range(24) if window.contains(DAY_MS * 20_000 + h * HOUR_MS + 1)} == hours
    assert CheckHours(first, end, always=True).contains(0)
    assert not CheckHours(first, end, never=True).contains(DAY_MS + first * HOUR_MS)


def test_autos_choice() -> None:
    """After a check in sync, `auto` compares the changes since then. A learned range comes first. After a failure, it
    compares everything within the window and a day outside it; it skips checks for a while if repairs are not possible
    from here, unless the peer repairs, too."""
    night = CheckHours(0, 0)
    standing = PeerScheduleState(START)
    assert choose_auto(standing, night, DAY_MS, both_ways=False)[0] is CheckKind.RANGE
    assert compared_times(CheckKind.RANGE, standing, START + 1000) == TimeRange(START, START + 6000)
    failed = state_after(standing, CheckKind.RANGE, START + 500, up_to_date=False, repaired=3, learned=None)
    assert failed.succeeded_ms == START
    assert choose_auto(failed, night, DAY_MS, both_ways=False)[0] is CheckKind.ALL
    assert choose_auto(failed, night, DAY_MS + HOUR_MS, both_ways=False)[0] is CheckKind.DAY
    learned = TimeRange(5, 9, b"b")
    knows = state_after(failed, CheckKind.DAY, START, up_to_date=False, repaired=3, learned=learned)
    assert choose_auto(knows, night, DAY_MS, both_ways=False)[0] is CheckKind.RANGE
    assert compared_times(CheckKind.RANGE, knows, START) == learned
    assert state_after(knows, CheckKind.RANGE, START, up_to_date=False, repaired=1, learned=None).learned is None
    assert state_after(knows, CheckKind.HOUR, START, up_to_date=False, repaired=1, learned=None).learned == learned
    assert state_after(knows, CheckKind.ALL, START + 9, up_to_date=True, repaired=0, learned=None) == PeerScheduleState(
        START + 9, learned=learned
    )
    helpless = state_after(standing, CheckKind.ALL, START, up_to_date=False, repaired=0, learned=None)
    kinds = []
    for _ in range(4):
        kind, helpless = choose_auto(helpless, night, DAY_MS, both_ways=False)
        kinds.append(kind)
    assert kinds == [CheckKind.NONE, CheckKind.NONE, CheckKind.ALL, CheckKind.ALL]
    helpless = state_after(standing, CheckKind.ALL, START, up_to_date=False, repaired=0, learned=None)
    assert choose_auto(helpless, night, DAY_MS, both_ways=True)[0] is CheckKind.ALL


def test_an_operator_leaves_out_checks_of_kind_auto() -> None:
    """The given number of checks is skipped, whatever was found or learned; other checks in between do not end it. The
    number of checks that `auto` skips by itself is a setting."""
    standing = PeerScheduleState(START, learned=TimeRange(5, 9), suppressed=2)
    kind, standing = choose_auto(standing, CheckHours(0, 0), DAY_MS, both_ways=True)
    assert (kind, standing.suppressed) == (CheckKind.NONE, 1)
    standing = state_after(standing, CheckKind.ALL, START, up_to_date=True, repaired=0, learned=None)
    standing = state_after(standing, CheckKind.ALL, START, up_to_date=False, repaired=0, learned=None, quiet_checks=5)
    assert (standing.suppressed, standing.quiet) == (1, 5)
    kind, standing = choose_auto(standing, CheckHours(0, 0), DAY_MS, both_ways=False)
    assert (kind, standing.suppressed, standing.quiet) == (CheckKind.NONE, 0, 5)
    assert choose_auto(standing, CheckHours(0, 0), DAY_MS, both_ways=True)[0] is CheckKind.RANGE, (
        "what was learned comes first"
    )


def test_each_kind_of_check_covers_its_times() -> None:
    """All times, the last day, the last hour."""
    standing = PeerScheduleState(START)
    assert compared_times(CheckKind.ALL, standing, START) is None
    assert compared_times(CheckKind.DAY, standing, START) == TimeRange(START - DAY_MS, START + 5_000)
    assert compared_times(CheckKind.HOUR, standing, START) == TimeRange(START - HOUR_MS, START + 5_000)


def test_many_repairs_teach_a_range() -> None:
    """After more than half of the repairs that a check may make, their times, a second wider, become the learned range,
    and their bucket if there is only one."""
    assert learned_range([5_000, 9_000], {b"b"}, 4) is None
    assert learned_range([5_000, 9_000, 500], {b"b"}, 4) == TimeRange(0, 10_000, b"b")
    assert learned_range([5_000, 9_000, 7_000], {b"b", b"c"}, 4) == TimeRange(4_000, 10_000, None)


def test_a_range_is_as_much_wider_as_clocks_differ() -> None:
    """Keys are stamped by the clocks of other nodes: a range reaches so much further at both ends, without leaving what
    has no bound. Beyond an hour there is no range of times, only the bucket."""
    assert widened(TimeRange(100_000, 200_000), 30_000) == TimeRange(70_000, 230_000)
    assert widened(TimeRange(10_000, 200_000, b"b"), 30_000) == TimeRange(0, 230_000, b"b")
    assert widened(TimeRange(0, 200_000), 30_000) == TimeRange(0, 230_000)
    assert widened(TimeRange(100_000, 0), 30_000) == TimeRange(70_000, 0)
    assert widened(None, 30_000) is None
    assert widened(TimeRange(1, 2), SKEW_MAX_MS + 1) is None
    assert widened(TimeRange(1, 2, b"b"), SKEW_MAX_MS + 1) == TimeRange(0, 0, b"b")

"""On how many nodes leaders stand: as few as carry the load, without flapping."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import pytest

from isthmus.repl.controller.leader_balance_plan import LeaderAssignment, loads, plan
from isthmus.repl.controller.leader_goal import (
    BUSY,
    CALM,
    FOUND,
    HOLD_MIN_MS,
    NOT_LOW,
    UNDECIDED,
    UNKNOWN_MS,
    UP_MS,
    LeaderGoal,
    chosen,
)

LIVE = ("n1", "n2", "n3")
STEP_MS = 5_000


def seat(leader: str, *eligible: str) -> LeaderAssignment:
    """A partition that `leader` leads and `eligible` may lead."""
    return LeaderAssignment(leader, frozenset(eligible or LIVE))


def decided(count: int) -> LeaderGoal:
    """A goal of so many nodes."""
    goal = LeaderGoal()
    goal.count, goal.decided = count, True
    return goal


def looked(goal: LeaderGoal, shares: Mapping[str, float | None], upto_ms: int, from_ms: int = 0) -> None:
    """Look every 5 s at the same loads."""
    for now_ms in range(from_ms, upto_ms + 1, STEP_MS):
        goal.look(shares, LIVE, now_ms)


def test_leaders_are_gathered_once_the_load_was_low_for_a_while() -> None:
    """Not at the first look; then on one of three nodes, with the reason."""
    goal = LeaderGoal()
    idle = dict.fromkeys(LIVE, 0.05)
    looked(goal, idle, HOLD_MIN_MS - STEP_MS)
    assert goal.count == 3
    looked(goal, idle, HOLD_MIN_MS, HOLD_MIN_MS)
    assert (goal.count, goal.reason) == (1, "all nodes together were busy for 15% of a core")


def test_an_unknown_load_keeps_leaders_on_all_nodes() -> None:
    """A node of an earlier version, or one that does not answer, may be busy; one that has just started tells its load
    within UNKNOWN_MS and changes nothing until then."""
    goal = LeaderGoal()
    looked(goal, dict.fromkeys(LIVE, 0.0), HOLD_MIN_MS)
    assert goal.count == 1
    looked(goal, {"n1": 0.0, "n2": None, "n3": 0.0}, 30_000 + UNKNOWN_MS - STEP_MS, 30_000)
    assert goal.count == 1
    looked(goal, {"n1": 0.0, "n2": None, "n3": 0.0}, 30_000 + UNKNOWN_MS, 30_000 + UNKNOWN_MS)
    assert (goal.count, goal.reason) == (None, "the load of n2 is not known")


@pytest.mark.parametrize("share", [BUSY, 1.0])
def test_a_busy_leader_spreads_them(share: float) -> None:
    """After UP_MS, not by one reading; to twice as many nodes, and to all when these are all there are."""
    goal = LeaderGoal()
    four = ("n1", "n2", "n3", "n4")
    looked(goal, dict.fromkeys(four, 0.0), HOLD_MIN_MS)
    assert goal.count == 1
    shares = {**dict.fromkeys(four, 0.1), "n1": share}
    at_ms = 100_000
    goal.look(shares, {"n1"}, at_ms)
    assert goal.count == 1
    goal.look(shares, {"n1"}, at_ms + UP_MS)
    assert (goal.count, goal.reason) == (2, f"n1 was busy for {share:.0%} of a core")
    goal.look({**shares, "n2": share}, {"n1", "n2"}, at_ms + UP_MS + 1)
    goal.look({**shares, "n2": share}, {"n1", "n2"}, at_ms + 2 * UP_MS + 1)
    assert goal.count is None


def test_a_busy_node_that_leads_nothing_spreads_nothing() -> None:
    """Its load is not that of leaders: a backup, a reader of trees."""
    goal = LeaderGoal()
    looked(goal, dict.fromkeys(LIVE, 0.0), HOLD_MIN_MS)
    for now_ms in (100_000, 100_000 + UP_MS, 100_000 + 3 * UP_MS):
        goal.look({"n1": 0.1, "n2": 1.0, "n3": 0.1}, {"n1"}, now_ms)
    assert goal.count == 1


def cost(rate: float, count: int) -> dict[str, float | None]:
    """Loads of three nodes at a rate: on one node writes cost half of what they do on three (measured)."""
    total = min(rate * (0.5 + 0.25 * (count - 1)), 3.0)
    leader = min(1.0, 0.6 * total / count)
    rest = (total - leader * count) / 3
    return {node: min(1.0, rest + leader * (at < count)) for at, node in enumerate(LIVE)}


@pytest.mark.parametrize("period_s", [10, 30, 60, 120, 600])
@pytest.mark.parametrize("high", [0.8, 1.2, 1.6, 2.4])
def test_a_load_that_swings_moves_leaders_seldom(period_s: int, high: float) -> None:
    """Ten hours of a load that is high for one half of each period and nothing for the other: leaders are gathered and
    spread at most 40 times, since each time that they are spread soon after the last gathering doubles the hold."""
    goal, changes = LeaderGoal(), 0
    for now_ms in range(0, 36_000_000, STEP_MS):
        rate = high if now_ms // 1000 % period_s < period_s / 2 else 0.0
        before = goal.count
        goal.look(cost(rate, before or 3), LIVE[: before or 3], now_ms)
        changes += goal.count != before
    assert changes <= 40, goal.reason


@pytest.mark.parametrize("rate", [step / 20 for step in range(1, 60)])
def test_a_steady_load_ends_in_one_state(rate: float) -> None:
    """Whatever the rate, the last of two hours see no change: what was just gathered is not spread by the same load."""
    goal, seen = LeaderGoal(), []
    for now_ms in range(0, 7_200_000, STEP_MS):
        goal.look(cost(rate, goal.count or 3), LIVE[: goal.count or 3], now_ms)
        seen.append(goal.count)
    assert len(set(seen[len(seen) // 2 :])) == 1
    assert sum(a != b for a, b in pairwise(seen)) <= 2
    if rate * 1.0 <= CALM:
        assert seen[-1] == 1


def test_the_nodes_are_those_that_lead_already() -> None:
    """The fewest moves; and the same ones while they may lead, whoever leads meanwhile."""
    seats = {0: seat("n2"), 1: seat("n2"), 2: seat("n3")}
    assert chosen(seats, 1, {}) == {"n2"}
    assert chosen({p: one._replace(leader="n3") for p, one in seats.items()}, 1, {}, {"n2"}) == {"n2"}


def test_each_partition_is_led_by_a_node_that_has_it() -> None:
    """With more nodes than replicas, as many lead as are needed; a partition without any of them stays where it is."""
    seats = {0: seat("a", "a", "b"), 1: seat("c", "c", "d"), 2: seat("a", "a", "c")}
    nodes = chosen(seats, 1, {})
    assert len(nodes) == 2
    assert all(one.eligible & nodes for one in seats.values())
    goal = decided(1)
    goal.choose(seats, {})
    assert all(one.eligible & nodes for one in goal.restricted(seats).values())


def test_a_busy_node_doubles_the_nodes_on_which_leaders_stand() -> None:
    """These are two where none has all partitions, although one would carry the load."""
    seats = {0: seat("a", "a", "b"), 1: seat("c", "c", "d"), 2: seat("e", "e", "a"), 3: seat("d", "d")}
    goal = decided(1)
    goal.choose(seats, {})
    assert goal.nodes == {"a", "d"}
    for now_ms in (0, UP_MS):
        goal.look({**dict.fromkeys("abcde", 0.1), "a": BUSY}, goal.nodes, now_ms)
    assert goal.count == 4


def test_two_nodes_are_of_two_racks() -> None:
    """The loss of a rack then costs half of the leaders an election."""
    seats = {p: seat("n1" if p < 3 else "n2", "n1", "n2", "n3") for p in range(4)}
    assert chosen(seats, 2, {"n1": "r1", "n2": "r1", "n3": "r2"}) == {"n1", "n3"}


def test_a_plan_of_restricted_seats_moves_all_leaders_to_the_nodes() -> None:
    """What is planned are the moves to the nodes of the goal, and none once they are there."""
    seats = {p: seat(LIVE[p % 3]) for p in range(12)}
    goal = decided(1)
    goal.choose(seats, {})
    (node,) = chosen(seats, 1, {})
    moves = plan(goal.restricted(seats))
    assert {move.target for move in moves} == {node}
    assert len(moves) == 8
    after = {p: one._replace(leader=node) for p, one in seats.items()}
    assert plan(goal.restricted(after)) == []
    assert loads(goal.restricted(after)) == {node: 12}
    goal.count = None
    goal.choose(after, {})
    assert len(plan(goal.restricted(after))) == 8


def test_refused_moves_choose_no_other_node() -> None:
    """What the node of the goal may not lead for now stays where it is, and does not go to a third node either."""
    seats = {p: seat("n1" if p < 6 else "n2") for p in range(12)}
    goal = decided(1)
    goal.choose(seats, {})
    assert goal.nodes == {"n1"}
    refused = {p: one._replace(eligible=one.eligible - {"n1"}) if 6 <= p < 9 else one for p, one in seats.items()}
    moves = plan(goal.restricted(refused))
    assert {(move.partition, move.target) for move in moves} == {(p, "n1") for p in (9, 10, 11)}


def test_nodes_that_may_lead_all_stay_whatever_others_may_lead() -> None:
    """A replica that is out of sync for a while, or one more on another node, moves no leader."""
    seats = {0: seat("a", "a", "b"), 1: seat("c", "c", "d"), 2: seat("a", "a", "b", "c")}
    assert chosen(seats, 1, {}, {"a", "c"}) == {"a", "c"}
    more = {**seats, 3: seat("c", "b", "c", "d"), 4: seat("c", "b", "c", "d")}
    assert chosen(more, 1, {}, {"a", "c"}) == {"a", "c"}
    assert len(chosen(more, 3, {}, {"a", "c"})) == 3
    assert chosen(more, 3, {}, {"a", "c"}) >= {"a", "c"}


@pytest.mark.parametrize("period_s", [80, 120, 300, 600])
def test_a_node_whose_load_comes_and_goes_moves_leaders_seldom(period_s: int) -> None:
    """Ten hours in which a node answers for one half of each period: each spread soon after a gathering doubles the
    hold, as that of a load that swings."""
    goal, changes = LeaderGoal(), 0
    for now_ms in range(0, 36_000_000, STEP_MS):
        share = 0.0 if now_ms // 1000 % period_s < period_s / 2 else None
        before = goal.count
        goal.look({"n1": 0.0, "n2": share, "n3": 0.0}, LIVE[: before or 3], now_ms)
        changes += goal.count != before
    assert changes <= 40


def test_the_reason_is_of_what_is_known_now() -> None:
    """Of a controller that finds leaders gathered, and of a load that was not known and is too high to gather them."""
    goal = LeaderGoal()
    assert goal.reason == UNDECIDED
    goal.look(dict.fromkeys(LIVE, 0.2), {"n1"}, 0)
    assert (goal.count, goal.reason) == (1, FOUND)
    looked(goal, {"n1": 0.2, "n2": None, "n3": 0.2}, UNKNOWN_MS + STEP_MS, STEP_MS)
    assert goal.reason == "the load of n2 is not known"
    looked(goal, dict.fromkeys(LIVE, 0.4), 3_600_000, 100_000)
    assert (goal.count, goal.reason) == (None, NOT_LOW)


@pytest.mark.parametrize("live", [("n2", "n3"), ("n2",)])
def test_leaders_on_a_drained_node_are_decided_upon(live: tuple[str, ...]) -> None:
    """A new controller that finds all leaders on a node that is drained decides at its first look, also if one other
    node is left: they would stay there for ever."""
    goal = LeaderGoal()
    goal.look(dict.fromkeys(live, 0.0), {"n1"}, 0)
    assert goal.decided
    seats = {p: seat("n1", *live) for p in range(4)}
    goal.choose(seats, {})
    assert {move.target for move in plan(goal.restricted(seats))} == {"n2"}


def test_leaders_stay_where_they_are_until_it_is_decided() -> None:
    """They may have been gathered by another controller: an operator's run, too, moves none to another node."""
    goal, seats = LeaderGoal(), {p: seat("n1") for p in range(6)}
    goal.choose(seats, {})
    assert plan(goal.restricted(seats)) == []

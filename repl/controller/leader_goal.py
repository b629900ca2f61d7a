"""On how many nodes leaders stand: on as few as carry the load.

A group commit costs a node about a millisecond, whatever is in it. Leaders on one node make few large groups of all
clients' writes, leaders on every node many small ones; but the loop of one node carries only so much.

    undecided -> as many as lead   all loads are known for the first time: the cluster has just begun, or a node that
                                   has just become the controller finds leaders where another one gathered them
    any -> every node              a live node's load has not been known for UNKNOWN_MS, as of one of an earlier version
    few -> twice as many           the busiest of them has been above BUSY for UP_MS
    many -> few                    half as many or fewer would be busy for CALM at most by the load of all nodes, for
                                   the hold

Undecided, leaders stay on the nodes that lead. What was just gathered takes CALM, half of BUSY, so that the same load
does not spread it. Load that swings more widely, or comes and goes with its node's answers, meets the hold, which
doubles each time that leaders are spread again within SETTLED_MS of a gathering.
Which nodes: those of the goal before while they may lead everything, else those that lead most already, of racks that
differ; more than the number where no fewer have a replica of each partition. Pure; `repl.controller.leader_balancer`
carries it out (docs/decisions.md 95).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from isthmus.repl.controller.leader_balance_plan import LeaderAssignment

BUSY: Final = 0.6
"""Share of a core of a leader's loop above which leaders are spread: at twice the rate, clients would queue."""

CALM: Final = 0.3

UP_MS: Final = 5_000
"""How long one node must be too busy. Loads are means over some 10 s."""

HOLD_MIN_MS: Final = 10_000
"""How long the load must be low before leaders are gathered."""

UNKNOWN_MS: Final = 15_000
"""How long a live node's load may be unknown, as of one that has just started, before it counts as busy."""

HOLD_MAX_MS: Final = 1_800_000
"""Longest hold."""

SETTLED_MS: Final = 900_000
"""How long leaders must have been gathered for a spread to be another load, and not the other half of a swing."""


UNDECIDED: Final = "the loads of all nodes are not known yet"
FOUND: Final = "so many led when this node became the controller"
NOT_LOW: Final = "the load was not low for long enough yet to lead from fewer nodes"


class LeaderGoal:
    """How many nodes are to lead, and which."""

    def __init__(self) -> None:
        self.count: int | None = None
        """None: every node."""
        self.decided = False
        """False while loads are not known yet: leaders may have been gathered by another controller."""
        self.reason = UNDECIDED
        """Why it is so."""
        self.nodes: frozenset[str] = frozenset()
        """Those that are to lead, as `choose` found them; none: every node."""
        self._blind = False
        """Whether leaders stand on every node because a load is not known."""
        self._busy_since_ms: int | None = None
        self._calm_since_ms: int | None = None
        self._unknown_since_ms: int | None = None
        self._hold_ms = HOLD_MIN_MS
        self._gathered_ms: int | None = None
        """When leaders were gathered last."""

    def look(self, loads: Mapping[str, float | None], leading: Collection[str], now_ms: int) -> None:
        """Decide by the loads of all live nodes, which are not drained; `leading` are the nodes that lead, none while
        one is elected."""
        unknown = sorted(node for node, share in loads.items() if share is None)
        known = {node: share for node, share in loads.items() if share is not None}
        self._unknown_since_ms = _since(self._unknown_since_ms, now_ms, lasts=bool(unknown))
        if self._unknown_since_ms is not None:
            self._busy_since_ms = self._calm_since_ms = None
            if now_ms - self._unknown_since_ms >= UNKNOWN_MS:
                self.decided = self._blind = True
                self._spread(len(loads), len(loads), f"the load of {', '.join(unknown)} is not known", now_ms)
            return
        if self._blind:
            self._blind, self.reason = False, NOT_LOW
        if not self.decided:
            if not leading:
                return
            self.count, self.decided = len(leading), True
            self.reason = FOUND if len(leading) < len(known) else NOT_LOW
        if len(known) < 2:
            self._busy_since_ms = self._calm_since_ms = None
            return
        present = len(known) if self.count is None else min(self.count, len(known))
        busiest = max((node for node in known if node in leading), key=lambda node: known[node], default=None)
        standing = max(present, len(self.nodes))  # more where no fewer have a replica of each partition
        too_busy = busiest is not None and known[busiest] >= BUSY and standing < len(known)
        self._busy_since_ms = _since(self._busy_since_ms, now_ms, lasts=too_busy)
        enough = max(1, math.ceil(sum(known.values()) / CALM))
        calm = 2 * enough <= present + 1 and enough < present
        self._calm_since_ms = _since(self._calm_since_ms, now_ms, lasts=calm)
        if self._busy_since_ms is not None and now_ms - self._busy_since_ms >= UP_MS:
            why = f"{busiest} was busy for {known[busiest or '']:.0%} of a core"
            self._spread(2 * standing, len(known), why, now_ms)
        elif self._calm_since_ms is not None and now_ms - self._calm_since_ms >= self._hold_ms:
            self.count, self._calm_since_ms, self._gathered_ms = enough, None, now_ms
            self.reason = f"all nodes together were busy for {sum(known.values()):.0%} of a core"

    def _spread(self, count: int, live: int, why: str, now_ms: int) -> None:
        self.count = count if count < live else None
        self.reason, self._busy_since_ms = why, None
        if self._gathered_ms is None:
            return
        swings = now_ms - self._gathered_ms < SETTLED_MS
        self._hold_ms = min(HOLD_MAX_MS, 2 * self._hold_ms) if swings else HOLD_MIN_MS
        self._gathered_ms = None

    def choose(self, seats: Mapping[int, LeaderAssignment], racks: Mapping[str, str]) -> None:
        """Choose the nodes. `seats` are without regard to moves that were refused, which would choose others anew for
        each of them."""
        if not self.decided:
            self.nodes = frozenset(seat.leader for seat in seats.values())
        elif self.count is None:
            self.nodes = frozenset()
        else:
            self.nodes = chosen(seats, self.count, racks, self.nodes)

    def restricted(self, seats: Mapping[int, LeaderAssignment]) -> dict[int, LeaderAssignment]:
        """`seats`, of which only the nodes of the goal may lead. A partition that none of them may lead now stays where
        it is."""
        return {partition: self._restricted(seat) for partition, seat in seats.items()} if self.nodes else dict(seats)

    def _restricted(self, seat: LeaderAssignment) -> LeaderAssignment:
        eligible = seat.eligible & self.nodes
        if not eligible and seat.leader in seat.eligible:
            eligible = frozenset({seat.leader})
        return seat._replace(eligible=eligible) if eligible else seat


def _since(since_ms: int | None, now_ms: int, *, lasts: bool) -> int | None:
    return (now_ms if since_ms is None else since_ms) if lasts else None


def chosen(
    seats: Mapping[int, LeaderAssignment], count: int, racks: Mapping[str, str], present: Collection[str] = ()
) -> frozenset[str]:
    """At least `count` nodes, and as many more as are needed so that one of them may lead each partition. Those of
    `present`, if they may lead all and are not too many; then, one after the other, the node that may lead most of what
    is left, of those one of `present`, of a rack that has none yet, that leads most."""
    kept = [node for node in sorted(present) if any(node in seat.eligible for seat in seats.values())]
    if not kept or not all(seat.eligible.intersection(kept) for seat in seats.values()):
        return _filled([], seats, count, racks, present)
    if len(kept) <= count:
        return _filled(kept, seats, count, racks, present)
    fewest = _filled([], seats, count, racks, present)
    return frozenset(kept) if len(kept) <= len(fewest) else fewest


def _filled(
    found: list[str],
    seats: Mapping[int, LeaderAssignment],
    count: int,
    racks: Mapping[str, str],
    present: Collection[str],
) -> frozenset[str]:
    leads = Counter(seat.leader for seat in seats.values())
    nodes = sorted({node for seat in seats.values() for node in seat.eligible})
    left = {partition: seat for partition, seat in seats.items() if not seat.eligible.intersection(found)}
    while len(found) < min(count, len(nodes)) or left:
        may = Counter(node for seat in left.values() for node in seat.eligible)
        used = {racks.get(node, "") for node in found}
        rest = [node for node in nodes if node not in found]
        if not rest:
            break
        best = max(rest, key=lambda node: (may[node], node in present, racks.get(node, "") not in used, leads[node]))
        found = [*found, best]
        left = {partition: seat for partition, seat in left.items() if best not in seat.eligible}
    return frozenset(found)

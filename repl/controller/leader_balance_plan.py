"""Leader balance plans: who should lead what, so that leaderships are spread evenly with the fewest moves.

A pure function of who leads what and who may lead it: a minimum-cost flow. Each partition goes to one of its eligible
nodes; the k-th leadership of a node costs more than the one before, a move costs a little. Evenness counts in this
order: for each bucket type by itself, then in the sum over all of them, then the fewest moves.

For each bucket type the plan starts at the present state and moves single leaderships along shortest paths (Johnson's
potentials, Dijkstra) from nodes that lead many to nodes that lead few. After each step the plan has the fewest moves
for its loads; when no path helps any more, the loads are the most even ones possible (least sum of squares). Then, if
there are several bucket types, cycles of negative cost are cancelled in the flow of all together (Klein), which is
optimal once it has none (`_Joined`). `repl.controller.leader_balancer` decides when plans are made and carried out
(docs/protocol.md I-BAL-OPT, H46).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from heapq import heappop, heappush
from typing import Final, NamedTuple

from isthmus.repl.isr.membership import too_few_in_sync
from isthmus.repl.model.record import PartitionRecord, PartitionStatus, Registration


class LeaderAssignment(NamedTuple):
    """One partition's leader, and the nodes that may lead it: the leader is among them, unless it is drained and
    another may lead."""

    leader: str
    eligible: frozenset[str]
    bucket_type: str = ""


class LeaderMove(NamedTuple):
    """A leadership to be moved from one node to another."""

    partition: int
    source: str
    target: str


def seats(
    records: Mapping[int, PartitionRecord],
    registrations: Mapping[str, Registration],
    refused: Collection[tuple[int, str]] = (),
    drained: Collection[str] = (),
) -> dict[int, LeaderAssignment]:
    """The current leaderships, by partition, with their eligible nodes.

    Eligible are members of the confirmed ISR whose nodes are registered with the same log, are not leaving, and stay
    replicas (R-RF). `refused`: excluded (partition, node). The leader of a partition whose ELR is not empty, or with
    too few replicas in sync, is its only eligible node. `drained` nodes are eligible only if no other node is.
    Partitions without a leader are left out.
    """
    found: dict[int, LeaderAssignment] = {}
    for partition, record in records.items():
        if record.status is not PartitionStatus.ONLINE or record.leader is None:
            continue
        leader = record.leader.node
        eligible = {leader}
        if not record.elr and not too_few_in_sync(record):
            for member in record.isr:
                node = registrations.get(member.node)
                if (
                    node is not None
                    and node.active
                    and node.log_id_of(partition) == member.log_id
                    and member.node not in record.removing
                    and (partition, member.node) not in refused
                    and member.node not in drained
                ):
                    eligible.add(member.node)
        if leader in drained and len(eligible) > 1:
            eligible.remove(leader)
        found[partition] = LeaderAssignment(leader, frozenset(eligible), record.bucket_type)
    return found


def by_type(found: Mapping[int, LeaderAssignment]) -> dict[str, dict[int, LeaderAssignment]]:
    """The leaderships of each bucket type, by name."""
    types: dict[str, dict[int, LeaderAssignment]] = {}
    for partition, seat in found.items():
        types.setdefault(seat.bucket_type, {})[partition] = seat
    return dict(sorted(types.items()))


def loads(found: Mapping[int, LeaderAssignment]) -> Counter[str]:
    """How many partitions each node leads; 0 for nodes that only may lead some. A drained node is included while it
    leads."""
    counted = Counter(dict.fromkeys({node for seat in found.values() for node in seat.eligible}, 0))
    counted.update(seat.leader for seat in found.values())
    return counted


def imbalance(counted: Mapping[str, int]) -> int:
    """The difference between the most and the least leaderships of a node; 0 if there are none."""
    return max(counted.values(), default=0) - min(counted.values(), default=0)


def plan(found: Mapping[int, LeaderAssignment], reluctant: Collection[int] = ()) -> list[LeaderMove]:
    """The moves after which the loads of each bucket type are as even as they can be (the least sum of their squares),
    and of such plans the one whose loads in all are the most even, with the fewest moves, and of those with the fewest
    `reluctant` partitions. The busiest to the idlest first. Empty when nothing can be more even."""
    reluctant = frozenset(reluctant)
    leaders: dict[int, str] = {}
    types = by_type(found)
    for seats_of_type in types.values():
        flow = _Flow(seats_of_type, reluctant)
        if flow.spread():  # else no leadership moves, and there is none to save
            flow.save_switches()
        leaders |= flow.leaders
    if len(types) > 1:
        joined = _Joined(found, leaders, reluctant)
        joined.improve()
        leaders = joined.leaders
    before = loads(found)
    moves = [
        LeaderMove(partition, seat.leader, leaders[partition])
        for partition, seat in found.items()
        if leaders[partition] != seat.leader
    ]
    return sorted(moves, key=lambda move: (before[move.target] - before[move.source], move.partition))


_NO_WAY: Final = 1 << 60
"""Longer than any way; and the load of a leadership that its node is to give away, so that it goes before all else."""


class _Flow:
    """The plan while it is made. The graph's vertices are nodes; an edge from u to v is a partition that u has and v
    may have, and costs the moves that passing it on adds (or saves, if v is its present leader)."""

    def __init__(self, found: Mapping[int, LeaderAssignment], reluctant: frozenset[int]) -> None:
        self._seats = found
        self._switch = len(found) + 1
        """Cost of a switch: above that of any number of reluctant partitions, which cost 1 more each."""
        self._reluctant = reluctant
        self.leaders = {partition: seat.leader for partition, seat in found.items()}
        self._load = loads(found)
        for seat in found.values():
            if seat.leader not in seat.eligible:
                self._load[seat.leader] += _NO_WAY
        self._nodes = sorted(self._load)
        self._has: dict[str, set[int]] = {node: set() for node in self._nodes}
        for partition, leader in self.leaders.items():
            self._has[leader].add(partition)
        self._edges: dict[str, dict[str, tuple[int, int]]] = {}
        self._potential = dict.fromkeys(self._nodes, 0)

    def _edges_of(self, node: str) -> dict[str, tuple[int, int]]:
        """Neighbour -> (cost, partition) of the cheapest edge; cached until the partitions of `node` change."""
        kept = self._edges.get(node)
        if kept is not None:
            return kept
        made: dict[str, tuple[int, int]] = {}
        for partition in self._has[node]:
            leader, eligible, _ = self._seats[partition]
            switch = self._switch + (partition in self._reluctant)
            back = switch if node != leader else 0
            for other in eligible:
                if other != node:
                    edge = ((switch if other != leader else 0) - back, partition)
                    if other not in made or edge < made[other]:
                        made[other] = edge
        self._edges[node] = made
        return made

    def spread(self) -> bool:
        """Make the loads as even as possible; returns whether any leadership moves. A partition that a node cannot pass
        on now it never can: paths to nodes with two fewer only vanish while the busiest are emptied, and each round
        tries all. Where no node has two fewer, there is nothing to look for: controllers plan every few seconds, and
        loads are even nearly always."""
        stuck: set[str] = set()
        moved = False
        while True:
            busy = max((n for n in self._nodes if n not in stuck), key=lambda n: (self._load[n], n), default=None)
            if busy is None or min(self._load.values()) > self._load[busy] - 2:
                return moved
            target, distance, way = self._search(busy, self._load[busy] - 2)
            if target is None:
                stuck.add(busy)
                continue
            self._raise_potentials(distance, distance[target])
            self._send(busy, target, way)
            moved = True
            stuck.clear()

    def save_switches(self) -> None:
        """Choose the nodes that keep one more than others so that there are the fewest moves."""
        improved = True
        while improved:
            improved = False
            for node in self._nodes:
                while self._saved(node):
                    improved = True

    def _saved(self, node: str) -> bool:
        """Pass the extra leadership of `node` to another node if that saves moves."""
        _, distance, way = self._search(node, -1)
        self._raise_potentials(distance, max(distance.values()))
        best = min(
            (
                (self._potential[other] - self._potential[node], other)
                for other in distance
                if self._load[other] == self._load[node] - 1
            ),
            default=(0, ""),
        )
        if best[0] >= 0:
            return False
        self._send(node, best[1], way)
        return True

    def _search(self, start: str, most: int) -> tuple[str | None, dict[str, int], dict[str, tuple[str, int]]]:
        """Shortest paths from `start`, until a node is found that leads at most `most`. Costs are reduced by the
        potentials and so not negative. Returns that node, the final distances, and the last step to each node."""
        settled: dict[str, int] = {}
        best = {start: 0}
        way: dict[str, tuple[str, int]] = {}
        heap = [(0, self._load[start], start)]
        potential = self._potential
        while heap:
            at, load, node = heappop(heap)
            if node in settled:
                continue
            settled[node] = at
            if load <= most:
                return node, settled, way
            base = at + potential[node]
            for other, (cost, partition) in self._edges_of(node).items():
                there = base + cost - potential[other]
                if there < best.get(other, _NO_WAY):
                    best[other] = there
                    way[other] = (node, partition)
                    heappush(heap, (there, self._load[other], other))
        return None, settled, way

    def _raise_potentials(self, distance: Mapping[str, int], most: int) -> None:
        """Keep reduced costs non-negative after a move along a shortest path of length `most`."""
        for node in self._nodes:
            self._potential[node] += min(distance.get(node, most), most)

    def _send(self, source: str, target: str, way: Mapping[str, tuple[str, int]]) -> None:
        """Pass one leadership on along `way`."""
        self._load[source] -= 1
        self._load[target] += 1
        for node, other, partition in _steps(source, target, way):
            self._has[node].remove(partition)
            self._has[other].add(partition)
            self.leaders[partition] = other
            self._edges.pop(node, None)
            self._edges.pop(other, None)


def _steps(source: str, target: str, way: Mapping[str, tuple[str, int]]) -> Iterator[tuple[str, str, int]]:
    """(from, to, partition), from the target back to the source."""
    while target != source:
        before, partition = way[target]
        yield before, target, partition
        target = before


Spot = tuple[str, str]
"""A vertex of the flow of all bucket types: (bucket type, node), or ("", node) for all that the node leads, or ALL."""

ALL: Final[Spot] = ("", "")


class _Joined:
    """The flow of all bucket types: each partition goes to a (bucket type, node), from there to the node, from there to
    ALL. The load of a (bucket type, node) and the load of a node have convex costs. The cost of a bucket type's load
    outweighs that of the sum, which outweighs any number of switches. An edge costs what one leadership more or less,
    or in another place, adds."""

    def __init__(
        self, found: Mapping[int, LeaderAssignment], leaders: Mapping[int, str], reluctant: frozenset[int]
    ) -> None:
        self._seats = found
        self._reluctant = reluctant
        self.leaders = dict(leaders)
        self._switch = len(found) + 1
        self._of_sum = (len(found) + 2) ** 2
        """Above all moves of one cycle: it has at most as many as there are partitions."""
        self._of_type = self._of_sum * 4 * (len(found) + 1)
        """Above what one cycle changes in the sum: that is the load of two nodes, by one each."""
        self._load: Counter[Spot] = Counter()
        self._has: dict[Spot, set[int]] = {}
        for partition, seat in found.items():
            for node in {*seat.eligible, leaders[partition]}:
                self._has.setdefault((seat.bucket_type, node), set())
            spot = (seat.bucket_type, leaders[partition])
            self._has[spot].add(partition)
            self._load[spot] += 1
            self._load["", leaders[partition]] += 1
        self._types_at: dict[str, list[Spot]] = {}
        for spot in sorted(self._has):
            self._types_at.setdefault(spot[1], []).append(spot)
        self._kept: dict[Spot, list[tuple[Spot, int, int]]] = {}

    def improve(self) -> None:
        """Cancel cycles of negative cost until there is none: each makes the plan better, so this ends."""
        while cycle := self._negative_cycle():
            for spot, other, partition in cycle:
                if partition >= 0:
                    self._has[spot].remove(partition)
                    self._has[other].add(partition)
                    self.leaders[partition] = other[1]
                elif self._lessens(spot, other):
                    self._load[other] -= 1
                else:
                    self._load[spot] += 1
                for _, node in (spot, other):
                    self._kept.pop(("", node), None)
                    for each in self._types_at.get(node, ()):
                        self._kept.pop(each, None)

    def _edges_of(self, spot: Spot) -> list[tuple[Spot, int, int]]:
        """(to, cost, partition or -1); kept until a load or what is led there changes."""
        kept = self._kept.get(spot)
        if kept is not None:
            return kept
        made: list[tuple[Spot, int, int]] = []
        kind, node = spot
        if spot == ALL:
            made = [(("", each), -self._of_sum * (2 * self._load["", each] - 1), -1) for each in self._types_at]
        elif not kind:
            made.append((ALL, self._of_sum * (2 * self._load[spot] + 1), -1))
            made += [(each, -self._of_type * (2 * self._load[each] - 1), -1) for each in self._types_at[node]]
        else:
            made.append((("", node), self._of_type * (2 * self._load[spot] + 1), -1))
            cheapest: dict[str, tuple[int, int]] = {}
            for partition in self._has[spot]:
                leader, eligible, _ = self._seats[partition]
                switch = self._switch + (partition in self._reluctant)
                back = switch if node != leader else 0
                for other in eligible:
                    edge = ((switch if other != leader else 0) - back, partition)
                    if other != node and (other not in cheapest or edge < cheapest[other]):
                        cheapest[other] = edge
            made += [((kind, other), cost, partition) for other, (cost, partition) in sorted(cheapest.items())]
        # nothing to take away
        made = [each for each in made if each[2] >= 0 or not self._lessens(spot, each[0]) or self._load[each[0]]]
        if spot != ALL:
            self._kept[spot] = made
        return made

    def _lessens(self, spot: Spot, other: Spot) -> bool:
        """True for an edge that takes one away from `other`: from ALL to a node, from a node to a bucket type there;
        the reverse edges add one to `spot`."""
        return spot == ALL or (not spot[0] and other[0] != "")

    def _negative_cycle(self) -> list[tuple[Spot, Spot, int]]:
        """The edges of one, by Bellman-Ford from all vertices at once; empty if there is none."""
        distance: dict[Spot, int] = dict.fromkeys([*self._has, *(("", node) for node in self._types_at), ALL], 0)
        way: dict[Spot, tuple[Spot, int]] = {}
        changed = set(distance)
        while changed:
            before, changed = changed, set()
            for spot in sorted(before):
                base = distance[spot]
                for other, cost, partition in self._edges_of(spot):
                    if base + cost < distance[other]:
                        distance[other] = base + cost
                        way[other] = (spot, partition)
                        changed.add(other)
            if cycle := _cycle_in(way):
                return cycle
        return []


def _cycle_in(way: Mapping[Spot, tuple[Spot, int]]) -> list[tuple[Spot, Spot, int]]:
    """A cycle among the last steps to each vertex; there is one only where its cost is negative."""
    over: set[Spot] = set()
    for start in way:
        seen: dict[Spot, None] = {}
        spot = start
        while spot in way and spot not in over and spot not in seen:
            seen[spot] = None
            spot = way[spot][0]
        if spot in seen:
            cycle: list[tuple[Spot, Spot, int]] = []
            at = spot
            while not cycle or at != spot:
                before, partition = way[at]
                cycle.append((before, at, partition))
                at = before
            return cycle
        over.update(seen)
    return []

"""Reassignment plans: which replicas go where when a placement changes, with as few copies as possible. Pure.

An `AssignmentDraft` has one bucket type's planned replicas, and is changed step by step: more or fewer replicas,
nothing on some nodes, as many on each node as on any other. The least loaded nodes get new replicas; where nodes have
racks, the replicas of a partition are in as many racks as possible. Then single replicas are moved along shortest paths
from nodes with many to nodes with few (as `leader_balance_plan.py` does with leaderships), those without a copy first.
Changes under way count as done. `repl.controller.reassignments` makes plans, `reassignment_progress.py` carries out
orders.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.record import PartitionRecord


class PlanRefused(BadInput):
    """The request is impossible with the present nodes; the sentence says what would help."""

    reason = "plan-refused"


class PlanningNode(NamedTuple):
    """A node, for planning. `open`: it may get replicas: it is live, not leaving and not drained."""

    rack: str
    open: bool


Sites = Mapping[str, PlanningNode]


class ReplicaMove(NamedTuple):
    """One partition's replicas before and after; those that stay keep their order."""

    partition: int
    before: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def adds(self) -> tuple[str, ...]:
        """The nodes that get a copy."""
        return tuple(node for node in self.after if node not in self.before)

    @property
    def removes(self) -> tuple[str, ...]:
        """The nodes whose copy is removed."""
        return tuple(node for node in self.before if node not in self.after)


class AssignmentDraft:
    """The planned replicas of one bucket type, while a plan is made."""

    def __init__(
        self,
        records: Iterable[PartitionRecord],
        sites: Sites,
        *,
        elsewhere: Mapping[str, int] | None = None,
        pending: Mapping[int, Sequence[str]] | None = None,
        ignore_racks: bool = False,
    ) -> None:
        """`elsewhere`: replicas of other bucket types, by node. `pending`: what partitions are to be by what was
        ordered before. Raises PlanRefused when some open nodes have a rack and others none."""
        ordered = pending or {}
        self._records = {record.partition: record for record in records}
        self._sites = sites
        self._before = {p: tuple(ordered.get(p, r.staying)) for p, r in sorted(self._records.items())}
        self._sets = {p: list(before) for p, before in self._before.items()}
        self._open = sorted(node for node, site in sites.items() if site.open)
        self._racks = {} if ignore_racks else _racks(sites, self._open)
        self._elsewhere = Counter(elsewhere or {})
        self._has: dict[str, dict[int, None]] = {node: {} for node in self._open}
        for p, nodes in self._sets.items():
            for node in nodes:
                self._has.setdefault(node, {})[p] = None

    def moves(self) -> list[ReplicaMove]:
        """The changes, by partition."""
        return [
            ReplicaMove(p, before, tuple(self._sets[p]))
            for p, before in self._before.items()
            if set(before) != set(self._sets[p])
        ]

    def loads(self) -> dict[str, int]:
        """Replicas of this bucket type on each open node, as planned."""
        return {node: len(self._has[node]) for node in self._open}

    # -- what is wanted -----------------------------------------------------------------------------------

    def factor(self, factor: int) -> None:
        """Plan `factor` replicas of each partition. Raises PlanRefused."""
        self._check(factor)
        for p, nodes in self._sets.items():
            while len(nodes) > factor:
                self._take(p, max(nodes, key=lambda node: self._dispensable(p, node)))
            self._fill(p, factor)
        self._even(copies=False)

    def vacate(self, gone: Collection[str]) -> None:
        """Plan nothing on the nodes `gone`. Raises PlanRefused."""
        self._open = [node for node in self._open if node not in gone]
        concerned = [p for p, nodes in self._sets.items() if any(node in gone for node in nodes)]
        self._check(max((len(self._sets[p]) for p in concerned), default=0), gone)
        for p in concerned:
            count = len(self._sets[p])
            for node in [node for node in self._sets[p] if node in gone]:
                self._take(p, node)
            self._fill(p, count)
        self._even(copies=False)

    def vacate_of(self, partition: int, gone: Collection[str]) -> None:
        """`vacate` for one partition. Raises PlanRefused."""
        self._open = [node for node in self._open if node not in gone]
        count = len(self._sets[partition])
        self._check(count, gone)
        for node in [node for node in self._sets[partition] if node in gone]:
            self._take(partition, node)
        self._fill(partition, count)

    def spread(self) -> None:
        """Plan as many on each open node as on any other, and each partition in as many racks as possible."""
        for p in self._sets:
            self._mend_racks(p)
        self._even(copies=False)
        self._even(copies=True)

    def replace(self, old: str, new: str) -> None:
        """Plan `new` wherever `old` is. Raises PlanRefused."""
        for p in list(self._has.get(old, ())):
            nodes = self._sets[p]
            if new in nodes:
                raise PlanRefused(
                    f"{new} holds partition {p} already, beside {old}: `isthmus node drain {old}` finds other places"
                )
            if self._distinct(_swapped(nodes, old, new)) < self._distinct(nodes):
                raise PlanRefused(
                    f"with {new} instead of {old} partition {p} would be in fewer racks: name a node of rack "
                    f"{self._racks.get(old) or '(unknown)'}, or ignore racks"
                )
            self._sets[p] = _swapped(nodes, old, new)
            del self._has[old][p]
            self._has[new][p] = None

    def put(self, partition: int, nodes: Sequence[str]) -> None:
        """Plan these nodes, in this order."""
        for node in list(self._sets[partition]):
            self._take(partition, node)
        for node in nodes:
            self._give(partition, node)

    # -- one partition ------------------------------------------------------------------------------------

    def _check(self, factor: int, gone: Collection[str] = ()) -> None:
        held = len(self._open)
        if factor > held:
            without = f" without {', '.join(sorted(gone))}" if gone else ""
            raise PlanRefused(
                f"a replication factor of {factor} needs as many nodes: {held}{without} "
                f"{'lives and is' if held == 1 else 'live and are'} not drained ({', '.join(self._open) or 'none'})"
            )

    def _fill(self, p: int, count: int) -> None:
        nodes = self._sets[p]
        while len(nodes) < count:
            self._give(p, min((n for n in self._open if n not in nodes), key=lambda node: self._welcome(p, node)))

    def _welcome(self, p: int, node: str) -> tuple[int, bool, int, int, str]:
        """Rank of a node for another replica, the least first; a node that has a copy already costs none."""
        crowd = sum(self._racks.get(other) == self._racks[node] for other in self._sets[p]) if self._racks else 0
        return crowd, node not in self._before[p], len(self._has[node]), self._elsewhere[node], node

    def _dispensable(self, p: int, node: str) -> tuple[bool, bool, bool, int, int, int, str]:
        """Rank of a replica for removal, the greatest first; never the leader or the last in sync, if there are
        others."""
        rack = self._racks.get(node)
        crowd = sum(self._racks.get(other) == rack for other in self._sets[p]) if rack else 0
        site = self._sites.get(node)
        closed = site is None or not site.open
        stays, in_sync, load = self._leads(p, node), self._in_sync(p, node), len(self._has[node])
        return not stays, not in_sync, closed, crowd, load, self._elsewhere[node], node

    def _in_sync(self, p: int, node: str) -> bool:
        return any(member.node == node for member in self._records[p].isr)

    def _mend_racks(self, p: int) -> None:
        nodes = self._sets[p]
        while self._distinct(nodes) < min(len(nodes), len(set(self._racks.values()))):
            held = Counter(self._racks.get(node) for node in nodes)
            twice = [node for node in nodes if node in self._racks and held[self._racks[node]] > 1]
            others = [node for node in self._open if not held[self._racks[node]]]
            if not twice or not others:
                return
            self._take(p, max(twice, key=lambda node: self._dispensable(p, node)))
            self._give(p, min(others, key=lambda node: self._welcome(p, node)))

    def _distinct(self, nodes: Iterable[str]) -> int:
        return len({self._racks[node] for node in nodes if node in self._racks})

    def _take(self, p: int, node: str) -> None:
        self._sets[p].remove(node)
        del self._has[node][p]

    def _give(self, p: int, node: str) -> None:
        self._sets[p].append(node)
        self._has.setdefault(node, {})[p] = None

    # -- evenly -------------------------------------------------------------------------------------------

    def _even(self, *, copies: bool) -> None:
        """Move replicas from nodes with many to nodes with few until no path helps; without `copies` only moves that
        cost no copy."""
        while True:
            moved = False
            stuck: set[str] = set()
            while busy := max((n for n in self._open if n not in stuck), key=self._weight, default=""):
                way = self._way(busy, len(self._has[busy]) - 2, copies=copies)
                if way is None:
                    stuck.add(busy)
                    continue
                moved = True
                for p, source, target in way:
                    self._sets[p] = _swapped(self._sets[p], source, target)
                    del self._has[source][p]
                    for node in self._sets[p]:  # last in turn from now on, so that others change first
                        self._has[node].pop(p, None)
                        self._has[node][p] = None
            if not moved:
                return

    def _weight(self, node: str) -> tuple[int, int, str]:
        return len(self._has[node]), self._elsewhere[node], node

    def _way(self, start: str, most: int, *, copies: bool) -> list[tuple[int, str, str]] | None:
        """The shortest path from `start` to a node with at most `most` replicas, as (partition, from, to) steps."""
        targets = sorted(self._open, key=self._weight)
        if not targets or len(self._has[targets[0]]) > most:
            return None
        steps: dict[str, tuple[int, str]] = {}
        seen = {start}
        queue = deque([start])
        while queue:
            source = queue.popleft()
            used = {p for p, _, _ in _path(steps, start, source)}
            free = {} if copies else self._free(source, used)
            for target in targets:
                if target in seen:
                    continue
                p = self._passable(source, target, used) if copies else free.get(target)
                if p is None:
                    continue
                seen.add(target)
                steps[target] = (p, source)
                if len(self._has[target]) <= most:
                    return _path(steps, start, target)
                queue.append(target)
        return None

    def _free(self, source: str, used: Collection[int]) -> dict[str, int]:
        """Node -> a partition of `source` that may move there without another copy: it is to be copied in any case, or
        the node has it already."""
        found: dict[str, int] = {}
        for p in self._has[source]:
            nodes, before = self._sets[p], self._before[p]
            if p in used or self._leads(p, source):
                continue
            kept = source in before
            if kept and len(nodes) >= len(before) and set(before) <= set(nodes):
                continue
            in_sync = kept and self._in_sync(p, source)
            for target in before if kept else self._open:
                if target in found or target in nodes or target not in self._has or target not in self._sites:
                    continue
                if not self._sites[target].open or (in_sync and not self._in_sync(p, target)):
                    continue
                if self._as_spread(nodes, source, target):
                    found[target] = p
        return found

    def _passable(self, source: str, target: str, used: Collection[int]) -> int | None:
        """A partition of `source` that may be copied to `target`; preferably one that `source` does not lead."""
        led: int | None = None
        for p in self._has[source]:
            nodes = self._sets[p]
            if target in nodes or p in used or not self._as_spread(nodes, source, target):
                continue
            if not self._leads(p, source):
                return p
            led = p if led is None else led
        return led

    def _leads(self, p: int, node: str) -> bool:
        leader = self._records[p].leader
        return leader is not None and leader.node == node

    def _as_spread(self, nodes: Sequence[str], source: str, target: str) -> bool:
        """True if the partition is in as many racks with `target` in place of `source`."""
        racks = self._racks
        if not racks:
            return True
        others = {racks.get(node) for node in nodes if node != source}
        return racks[target] not in others or racks.get(source) in others


def _swapped(nodes: Sequence[str], old: str, new: str) -> list[str]:
    return [new if node == old else node for node in nodes]


def _path(steps: Mapping[str, tuple[int, str]], start: str, end: str) -> list[tuple[int, str, str]]:
    way: list[tuple[int, str, str]] = []
    while end != start:
        p, before = steps[end]
        way.append((p, before, end))
        end = before
    return way


def _racks(sites: Sites, open_nodes: Sequence[str]) -> dict[str, str]:
    """Node -> its rack, for nodes whose rack is known; empty if no open node has one."""
    racks = {node: site.rack for node, site in sites.items() if site.rack}
    without = [node for node in open_nodes if node not in racks]
    if len(without) == len(open_nodes):
        return {}
    if without:
        raise PlanRefused(
            f"{', '.join(without)} have no rack while others have one: give every node its rack (node.rack), or ignore "
            "racks"
        )
    return racks

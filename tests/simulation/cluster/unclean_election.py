"""A forced election: all electable replicas have lost their disks, and an operator forces a remaining one.

First some followers are cut off until they are no longer electable, then all electable replicas lose their data. Once
the partition is Offline the operator looks at the replicas, as `isthmus partition force-leader` shows them, and orders
one of them by the product's own rules (`repl.controller.unclean_election`), if need be again. Mostly it is the best
one; at times it is any.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from isthmus.repl.controller import unclean_election
from isthmus.repl.isr.epochs import last_epoch
from isthmus.repl.isr.membership import guard
from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus

if TYPE_CHECKING:
    from tests.simulation.cluster.simulator import ClusterSimulation

PARTITION = 0
"""The one that it happens to."""

AGAIN_MS = 250
"""Pause between two checks."""

APART_MS = 7_000
"""How long the followers to be left behind are cut off."""

MADE_ANEW_MS = 1_500
"""Pause between two checks whether replicas must be recreated."""

PATIENCE_MS = 4_000
"""How long the operator waits for replicas that do not answer, and the simulation for followers to cease to be
electable."""


class UncleanElections:
    """One simulation's operator; without `Plan.last_resort_ms` there is nothing to do."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self.simulation = simulation
        self._offline_since_ms: int | None = None
        self._incarnations = itertools.count(1)

    def start(self) -> None:
        """Begin at the time in the plan."""
        if self.simulation.plan.last_resort_ms:
            self.simulation.after(self.simulation.plan.last_resort_ms, self._cut_off)

    @property
    def _record(self) -> PartitionRecord:
        return self.simulation.metastore.records[PARTITION]

    def _cut_off(self) -> None:
        simulation, record = self.simulation, self._record
        if simulation.faults.over:
            return
        leader = record.leader
        followers = sorted(m.node for m in record.isr if leader is not None and m.node != leader.node)
        room = min(len(followers), len(record.replicas) - record.effective_min_isr)
        if leader is None or room < 1:
            simulation.after(AGAIN_MS, self._cut_off)
            return
        for name in simulation.rng.sample(followers, simulation.rng.randint(1, room)):
            for other in simulation.nodes:
                if other != name:
                    simulation.network.cut(name, other, APART_MS)
                    simulation.network.cut(other, name, APART_MS)
        simulation.after(AGAIN_MS, self._await_out, simulation.now_ms + PATIENCE_MS)

    def _await_out(self, until_ms: int) -> None:
        simulation, record = self.simulation, self._record
        if simulation.faults.over:
            return
        if self._left_behind(record) and record.leader is not None:
            simulation.after(simulation.rng.randint(0, 900), self.lose)
        elif simulation.now_ms < until_ms:
            simulation.after(AGAIN_MS, self._await_out, until_ms)
        else:
            self._cut_off()

    def _left_behind(self, record: PartitionRecord) -> list[str]:
        """The nodes with a replica that no record counts on."""
        electable = {member.node for member in guard(record)}
        return [node.name for node in self.simulation.holders(PARTITION) if node.name not in electable]

    def lose(self) -> None:
        """All electable replicas lose their data, beyond the promise, if others are left."""
        simulation, record = self.simulation, self._record
        if simulation.faults.over:
            return
        if not self._left_behind(record):
            self._cut_off()
            return
        simulation.counts["guard_lost"] += 1
        simulation.log_event("operator", "the guard loses its disks", record)
        simulation.checkers.beyond_promise = True
        for member in sorted(guard(record)):
            node = simulation.nodes[member.node]
            if node.disk.log_ids[PARTITION] == member.log_id:
                node.replace_disk()
        self.look()

    # -- the operator ---------------------------------------------------------------------------

    def look(self) -> None:
        """Check the partition, and force a replica once it is Offline and the replicas answer."""
        simulation, record = self.simulation, self._record
        if any(simulation.nodes[m.node].disk.log_ids[PARTITION] == m.log_id for m in guard(record)):
            simulation.checkers.beyond_promise = False  # the act is done; or a late write made it needless
            self.make_anew()
            return
        simulation.after(AGAIN_MS, self.look)
        if record.status is not PartitionStatus.OFFLINE:
            return
        if self._offline_since_ms is None:
            self._offline_since_ms = simulation.now_ms
        copies = [copy for copy in map(self.copy, record.replicas) if copy is not None]
        everybody = len(copies) == len(record.replicas)
        if copies and (everybody or simulation.now_ms > self._offline_since_ms + PATIENCE_MS):
            best = unclean_election.most_complete(copies)
            self.force(record, best if simulation.rng.random() < 0.6 else simulation.rng.choice(copies), copies)

    def make_anew(self) -> None:
        """Recreate diverged replicas, one after the other, where the rest is too few for writes: then the partition
        waits for an operator (docs/runbooks.md)."""
        simulation, record = self.simulation, self._record
        simulation.after(MADE_ANEW_MS, self.make_anew)
        others = [name for name in record.replicas if self._stands_apart(name)]
        if others and len(record.replicas) - len(others) < record.effective_min_isr:
            simulation.counts["made_anew"] += 1
            simulation.log_event("operator", "has made anew", others[0])
            simulation.nodes[others[0]].replace_disk()

    def _stands_apart(self, name: str) -> bool:
        """Whether a node runs, and reports its replica as diverged."""
        node = self.simulation.nodes[name]
        replica = None if node.current is None else node.current.replicas.get(PARTITION)
        quarantined = self.simulation.checkers.declared.quarantines(node, PARTITION)
        return quarantined and replica is not None and replica.role is ReplicaRole.FAILED

    def copy(self, name: str) -> unclean_election.ReplicaReport | None:
        """A replica as its node reports it."""
        process = self.simulation.nodes[name].current
        replica = None if process is None or process.paused else process.replicas.get(PARTITION)
        if replica is None:
            return None
        reach = last_epoch(replica.epoch_table), replica.leo
        far = replica.transfer_position is not None
        return unclean_election.ReplicaReport(
            name, replica.epoch, *reach, replica.high_watermark, replica.applied, replica.member.log_id, far
        )

    def force(
        self,
        record: PartitionRecord,
        chosen: unclean_election.ReplicaReport,
        copies: list[unclean_election.ReplicaReport],
    ) -> None:
        """Order a replica to be forced, on the record that was shown."""
        simulation = self.simulation
        registration = simulation.metastore.registrations.get(chosen.node)
        if registration is None or unclean_election.disqualification(registration, PARTITION, chosen):
            return
        who = Incarnation(chosen.node, registration.session_id)
        epochs = (copy.epoch for copy in copies)
        made = unclean_election.forced(record, chosen, who, epochs, next(self._incarnations), "forced")
        simulation.checkers.declared.shown(record, chosen)
        simulation.log_event("operator", "forces", chosen.node, made)
        asker = simulation.rng.choice(simulation.controllers).name
        simulation.metastore.write(asker, made, (Member(chosen.node, chosen.log_id),), self._written)

    def _written(self, kind: str, _asked: PartitionRecord, _found: PartitionRecord) -> None:
        self.simulation.counts[f"forced_{kind}"] += 1

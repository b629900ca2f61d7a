"""Faults, their frequencies and weights: every seed draws its own mix (swarm testing).

Some seeds know only crashes, some only a bad network, some everything; a fault that always occurs alone would hide
defects that need two faults. Data is lost only within the promise: at any time fewer lost and not yet replaced replicas
than min-ISR.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from isthmus.repl.controller.leader_balance_plan import plan, seats
from isthmus.repl.controller.reassignment_progress import wanted
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.membership import guard
from isthmus.repl.model.record import Member, PartitionRecord
from tests.simulation.cluster.metastore import METASTORE
from tests.simulation.cluster.network import FOR_GOOD_MS
from tests.simulation.cluster.plan import KINDS

if TYPE_CHECKING:
    from tests.simulation.cluster.nodes import Node
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulator import ClusterSimulation

AMBUSHES = (
    fx.PersistEpoch,
    fx.AppendBarrier,
    fx.Persist,
    fx.Apply,
    fx.Promoted,
    fx.LeadershipReady,
    fx.WriteRecord,
    fx.Truncate,
    fx.Truncate,
    fx.RoleChanged,
)
"""Effects during which a crash may occur: right after the core requested one of these."""


class Faults:
    """Breaks the simulation until `end`."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        self.simulation = simulation
        self.over = False
        self._open_losses: dict[int, dict[str, int]] = {}
        """partition -> node -> its log id since it lost its data."""
        self._least_min_isr: dict[int, int] = {}

    def start(self) -> None:
        """The first fault comes after a while, unless none is planned."""
        for partition, record in self.simulation.metastore.records.items():
            self._least_min_isr[partition] = record.effective_min_isr
        if any(self.simulation.plan.weights):
            self._next()

    def end(self, nodes: frozenset[str] | None = None) -> None:
        """End every fault (or those of all of `nodes` and the metastore); no new ones start."""
        self.over = True
        simulation = self.simulation
        if simulation.metastore.down:
            simulation.metastore.outage_over()
        for name, node in simulation.nodes.items():
            if nodes is not None and name not in nodes:
                continue
            node.ambush = None
            node.gone = False
            node.disk.fails = False
            node.disk.slow = 1
            for process in list(node.processes):
                if not process.holds_directory():
                    process.die("the supervisor clears up")
                elif process.paused:
                    process.resume()
            node.start()
        ends = (
            None if nodes is None else nodes | {METASTORE, *(controller.name for controller in simulation.controllers)}
        )
        simulation.network.join_all(ends)

    def _next(self) -> None:
        simulation = self.simulation
        simulation.after(1 + int(simulation.rng.expovariate(1 / simulation.plan.gap_ms)), self._strike)

    def _strike(self) -> None:
        if self.over:
            return
        simulation, rng = self.simulation, self.simulation.rng
        kind = rng.choices(KINDS, simulation.plan.weights)[0]
        self._inflict(kind, self._victim())
        self._next()

    def _victim(self) -> Node:
        """Any node, a leader's rather than another's."""
        simulation, rng = self.simulation, self.simulation.rng
        if rng.random() < 0.4:
            record = rng.choice(list(simulation.metastore.records.values()))
            if record.leader is not None:
                return simulation.nodes[record.leader.node]
        return rng.choice(list(simulation.nodes.values()))

    def ambushed(self, node: Node) -> None:
        """A process walked into the ambush that was laid at its node."""
        assert node.ambush is not None
        self.simulation.counts[f"ambush_{node.ambush.__name__}"] += 1
        node.ambush = None
        kind = self.simulation.rng.choice(("kill", "power_loss", "power_loss", "take_over", "long_pause"))
        self.simulation.after(self.simulation.rng.randint(0, 20), self._inflict, kind, node)

    def _inflict(self, kind: str, node: Node) -> None:
        if self.over:
            return
        self.simulation.log_event("faults", kind, node.name)
        getattr(self, f"_{kind}")(node)

    # -- crashes --------------------------------------------------------------------------------

    def _kill(self, node: Node) -> None:
        node.kill()

    def _power_loss(self, node: Node) -> None:
        if self.simulation.plan.asynchronous:
            if not all(self._may_lose(node, partition) for partition in node.partitions):
                node.kill()
                return
            node.power_loss()
            self._lost(node)
        else:
            node.power_loss()

    def _blackout(self, _node: Node) -> None:
        """All machines lose power at once: where acknowledged means synced, no acknowledged entry is lost."""
        if not self.simulation.plan.asynchronous:
            self.simulation.counts["blackout"] += 1
            for node in self.simulation.nodes.values():
                node.power_loss()

    def _replace_disk(self, node: Node) -> None:
        if all(self._may_lose(node, partition) and self._may_copy(node, partition) for partition in node.partitions):
            node.replace_disk()
            self._lost(node)

    def _may_lose(self, node: Node, partition: int) -> bool:
        """True when one more replica without its data is within the promise: min-ISR - 1 at once (and never the
        last)."""
        simulation = self.simulation
        record = simulation.metastore.records[partition]
        lost = self._open_losses.setdefault(partition, {})
        for name, log_id in list(lost.items()):
            if Member(name, log_id) in record.isr or name not in record.replicas:
                del lost[name]
        acts = record.lineage or simulation.counts["guard_lost"]
        if acts and not any(simulation.electable(record, [m.node]) for m in guard(record) if m.node != node.name):
            return False  # a forced leader is alone until others join it
        return len(lost.keys() | {node.name}) < min(self._least_min_isr[partition], record.effective_min_isr)

    def _may_copy(self, node: Node, partition: int) -> bool:
        """True when the other replicas can be copied from the start, or enough of them agree that this one is not
        needed."""
        simulation = self.simulation
        others = [other for other in simulation.holders(partition) if other is not node]
        start = max((other.disk.logs[partition].start for other in others), default=0)
        if start == 0:
            return True
        reach = [other for other in others if simulation.checkers.agreed(other, partition) >= start]
        return simulation.plan.harsh_trims and len(reach) >= simulation.metastore.records[partition].effective_min_isr

    def _lost(self, node: Node) -> None:
        for partition in node.partitions:
            self._open_losses.setdefault(partition, {})[node.name] = node.disk.log_ids[partition]

    def lossy(self, partition: int) -> bool:
        """True when some replica of the partition is not back in sync since it lost its data."""
        return bool(self._open_losses.get(partition))

    def _pause(self, node: Node) -> None:
        node.pause(self.simulation.rng.randint(100, 1_500))

    def _long_pause(self, node: Node) -> None:
        node.pause(self.simulation.rng.randint(2_800, 6_000))

    def _take_over(self, node: Node) -> None:
        node.take_over(self.simulation.rng.randint(200, 6_000))

    def _stop(self, node: Node) -> None:
        node.stop()

    def _ambush(self, node: Node) -> None:
        node.ambush = self.simulation.rng.choice(AMBUSHES)

    # -- disks ----------------------------------------------------------------------------------

    def _slow_disk(self, node: Node) -> None:
        node.disk.slow = self.simulation.rng.choice((8, 30, 100))
        self.simulation.after(self.simulation.rng.randint(500, 4_000), self._mend_disk, node)

    def _mend_disk(self, node: Node) -> None:
        node.disk.slow = 1

    def _failing_disk(self, node: Node) -> None:
        node.disk.fails = True

    # -- the network ----------------------------------------------------------------------------

    def _for_ms(self) -> int:
        """Duration of a cut: in simulations of churn, through elections."""
        rng = self.simulation.rng
        return rng.randint(2_500, 9_000) if self.simulation.plan.churn else rng.randint(150, 4_000)

    def _cut_nodes(self, node: Node) -> None:
        """Cut two nodes from each other, in one direction or both."""
        simulation, rng = self.simulation, self.simulation.rng
        others = [name for name in simulation.nodes if name != node.name]
        if others:
            other, for_ms = rng.choice(others), self._for_ms()
            simulation.counts["cut_nodes"] += 1
            simulation.network.cut(node.name, other, for_ms)
            if rng.random() < 0.5:
                simulation.network.cut(other, node.name, for_ms)

    def _cut_metastore(self, node: Node) -> None:
        """Cut a node from the metastore, in one direction or both; its links to other nodes work."""
        simulation, rng = self.simulation, self.simulation.rng
        for_ms, ways = self._for_ms(), rng.randint(1, 3)
        simulation.counts["cut_metastore"] += 1
        if ways & 1:
            simulation.network.cut(node.name, METASTORE, for_ms)
        if ways & 2:
            simulation.network.cut(METASTORE, node.name, for_ms)

    def _isolate(self, node: Node) -> None:
        """A node alone, with or without the metastore."""
        simulation, rng = self.simulation, self.simulation.rng
        for_ms, alone = self._for_ms(), rng.random() < 0.7
        simulation.counts["isolate"] += 1
        for other in (*simulation.nodes, *((METASTORE,) if alone else ())):
            if other != node.name:
                simulation.network.cut(node.name, other, for_ms)
                simulation.network.cut(other, node.name, for_ms)

    def _swizzle(self, _node: Node) -> None:
        """Cut many ways, then heal them in another order."""
        simulation, rng = self.simulation, self.simulation.rng
        ends = [*simulation.nodes, METASTORE]
        ways = [(a, b) for a in ends for b in ends if a != b]
        simulation.counts["swizzle"] += 1
        rng.shuffle(ways)
        for a, b in ways[: rng.randint(2, len(ways))]:
            simulation.network.cut(a, b, rng.randint(300, 6_000))

    def _flap(self, node: Node) -> None:
        others = [name for name in self.simulation.nodes if name != node.name]
        if others:
            self.simulation.counts["flap"] += 1
            self.simulation.network.flap(node.name, self.simulation.rng.choice(others))

    def _slow_link(self, node: Node) -> None:
        simulation, rng = self.simulation, self.simulation.rng
        others = [name for name in simulation.nodes if name != node.name]
        if others:
            way = (node.name, rng.choice(others))
            simulation.network.slow_down(
                *(way if rng.random() < 0.5 else way[::-1]), rng.randint(100, 900), self._for_ms()
            )

    # -- metastore and controllers --------------------------------------------------------------

    def _outage(self, _node: Node) -> None:
        metastore = self.simulation.metastore
        if not metastore.down:
            metastore.down = True
            self.simulation.counts["outage"] += 1
            self.simulation.after(self.simulation.rng.randint(300, 5_000), self._outage_over)

    def _outage_over(self) -> None:
        if self.simulation.metastore.down:
            self.simulation.log_event("faults", "the metastore is back")
            self.simulation.metastore.outage_over()

    def _sleeping_controller(self, _node: Node) -> None:
        controller = self.simulation.rng.choice(self.simulation.controllers)
        controller.sleeps_until_ms = self.simulation.now_ms + self.simulation.rng.randint(500, 6_000)

    def _cut_controller(self, node: Node) -> None:
        simulation, rng = self.simulation, self.simulation.rng
        name, other = rng.choice(simulation.controllers).name, rng.choice((node.name, METASTORE))
        simulation.network.cut(name, other, self._for_ms())
        if rng.random() < 0.5:
            simulation.network.cut(other, name, self._for_ms())

    # -- operators ------------------------------------------------------------------------------

    def _hand_over(self, _node: Node) -> None:
        """Request that a leader hands a partition over to a node, which need not even be in sync."""
        simulation, rng = self.simulation, self.simulation.rng
        record = rng.choice(list(simulation.metastore.records.values()))
        process = self._leader(record)
        if process is not None:
            target = rng.choice((*record.replicas, *record.replicas, None))
            simulation.counts["hand_over"] += 1
            deadline_ms = simulation.now_ms + rng.randint(100, 3_000)
            process.post(record.partition, ev.TransferLeadership(target, deadline_ms, simulation.sessions_as_read()))

    def _leader(self, record: PartitionRecord) -> Process | None:
        return None if record.leader is None else self.simulation.nodes[record.leader.node].current

    def _min_isr(self, _node: Node) -> None:
        """Set min-ISR by a conditional write that leaves the rest of the record unchanged (H22)."""
        simulation, rng = self.simulation, self.simulation.rng
        record = rng.choice(list(simulation.metastore.records.values()))
        least = 2 if simulation.plan.loses_data else 1
        if len(record.replicas) < least or simulation.plan.harsh_trims:
            return
        chosen = rng.randint(least, len(record.replicas))
        if chosen != record.min_isr:
            simulation.counts["min_isr_asked"] += 1
            partition = record.partition
            self._least_min_isr[partition] = min(chosen, self._least_min_isr[partition])
            if self.lossy(partition):
                return
            asker = rng.choice(simulation.controllers).name
            simulation.metastore.write(asker, replace(record, min_isr=chosen), (), self._min_isr_set)

    def _min_isr_set(self, kind: str, _asked: PartitionRecord, _found: PartitionRecord) -> None:
        self.simulation.counts[f"min_isr_{kind}"] += 1

    def _reassign(self, _node: Node) -> None:
        """An operator moves replicas, sets another replication factor, or takes such a change back."""
        simulation, rng = self.simulation, self.simulation.rng
        record = rng.choice(list(simulation.metastore.records.values()))
        if not (record.adding or record.removing):
            changed = self._other_replicas(record)
        else:
            changed = self._redirected(record) if simulation.plan.redirects else self._taken_back(record)
        if changed is not None and not self.lossy(record.partition):
            simulation.counts["reassign_asked"] += 1
            partition = record.partition
            self._least_min_isr[partition] = min(changed.effective_min_isr, self._least_min_isr[partition])
            simulation.metastore.write(rng.choice(simulation.controllers).name, changed, (), self._reassigned)

    def _reassigned(self, kind: str, _asked: PartitionRecord, _found: PartitionRecord) -> None:
        self.simulation.counts[f"reassign_{kind}"] += 1

    def _taken_back(self, record: PartitionRecord) -> PartitionRecord | None:
        back = wanted(record, record.replicas_before, "taken back")
        return None if self.simulation.rng.random() < 0.5 or back == replace(record, reason=back.reason) else back

    def _redirected(self, record: PartitionRecord) -> PartitionRecord | None:
        """The change under way goes elsewhere: back, with other newcomers, or with those of before again."""
        rng, before = self.simulation.rng, record.replicas_before
        others = [name for name in self.simulation.nodes if name not in before]
        target = (*before, *rng.sample(others, rng.randint(0, len(others))))
        if set(target) == {*record.staying}:
            return None
        self.simulation.counts["redirected"] += 1
        return wanted(record, target, "sent elsewhere")

    def _other_replicas(self, record: PartitionRecord) -> PartitionRecord | None:
        rng, before = self.simulation.rng, record.replicas
        others = [name for name in self.simulation.nodes if name not in before]
        least = 2 if self.simulation.plan.loses_data else 1
        adding = tuple(rng.sample(others, rng.randint(0, min(2, len(others)))))
        going = rng.randint(0, max(0, min(2, len(before) + len(adding) - least)))
        removing = tuple(rng.sample(before, min(going, len(before) - (not adding))))
        if not adding and not removing:
            return None
        return replace(record, replicas=before + adding, adding=adding, removing=removing)

    def _balance(self, _node: Node) -> None:
        """The controller's plan for even leaderships is carried out: each leader gets a request to hand over."""
        simulation = self.simulation
        for move in plan(seats(simulation.metastore.records, simulation.metastore.registrations)):
            record = simulation.metastore.records[move.partition]
            process = self._leader(record)
            if move.target in simulation.network.deaf:  # as the leader's node refuses (R-REACHED)
                simulation.counts["balance_refused"] += 1
            elif process is not None and move.partition in process.replicas:
                simulation.counts["balance_move"] += 1
                deadline_ms = simulation.now_ms + 3_000
                sessions = simulation.sessions_as_read()
                process.post(record.partition, ev.TransferLeadership(move.target, deadline_ms, sessions))

    # -- for good -------------------------------------------------------------------------------

    def leave_broken(self, names: list[str]) -> None:
        """Disconnect these nodes from the others for good, each in a different way."""
        simulation, rng = self.simulation, self.simulation.rng
        for name in names:
            node = simulation.nodes[name]
            match rng.randint(0, 3):
                case 0:
                    node.gone = True
                    for process in list(node.processes):
                        process.die("for good")
                case 1:
                    node.gone = True
                    for process in node.processes:
                        process.paused = True
                    simulation.network.links_changed()
                case 2:
                    simulation.network.cut(name, METASTORE, FOR_GOOD_MS)
                    for other in simulation.nodes:
                        if other != name and rng.random() < 0.7:
                            simulation.network.cut(other, name, FOR_GOOD_MS)
                case _:
                    for other in (*simulation.nodes, METASTORE):
                        if other != name:
                            simulation.network.cut(name, other, FOR_GOOD_MS)
                            simulation.network.cut(other, name, FOR_GOOD_MS)

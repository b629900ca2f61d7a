"""A simulation whose metastore goes back: at one moment its records return to an earlier state (H32).

All sessions are over then, as after a restore of the metastore's data; faults continue for a while, and then stop. No
operator acts. The guarantees are weaker than in other simulations: a forgotten epoch cannot be known when all nodes
that saw it are away. `settle` checks the remaining guarantees. The invariants about one history of epochs do not hold:
an epoch may exist twice.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from isthmus.repl.controller.unclean_election import ReplicaReport, most_complete
from isthmus.repl.isr.epochs import last_epoch
from isthmus.repl.isr.replica import Replica
from tests.simulation.cluster import invariants
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.simulator import ClusterSimulation

ONE_HISTORY = (
    "epoch_one", "dot_unique", "log_leader", "log_match", "guard_complete", "some_guard", "min_guard", "epoch_mono",
    "write_one", "commit_rule", "factor_in_force",
)  # fmt: skip
"""Invariants, by function, that suppose a metastore that forgets nothing."""


def _unchecked(*args: Any, **_options: Any) -> Any:
    """Replaces an invariant; those that return a sum return it unchanged."""
    return args[0] if args else None


SETTLE_MS = 20_000
"""Virtual time after the last fault within which the partition has a leader again or reports why it has none."""


class RollbackSimulation(ClusterSimulation):
    """The metastore forgets so much as happened in a time out of `gaps_ms`. `calm`: the last fault is over then."""

    gaps_ms = (300, 5_000)
    calm = False

    def __init__(self, seed: int, **options: Any) -> None:
        super().__init__(seed, **options)
        self.plan.harsh_trims = False
        self.rolled = False
        self.moved: dict[int, tuple[int, int]] = {}
        """partition -> its epoch when the metastore was copied, and when that copy was restored."""

    def run(self) -> Any:
        """Run faults, restore the metastore's earlier state, run more faults; then end all faults, and `settle`."""
        note_ms = self.rng.randint(1_500, 6_000)
        back_ms = note_ms + self.rng.randint(*self.gaps_ms)
        self.start()
        self.run_until(note_ms)
        copy = dict(self.metastore.records)
        self.run_until(back_ms)
        with ExitStack() as stack:
            for name in ONE_HISTORY:
                stack.enter_context(patch.object(invariants, name, _unchecked))
            self._go_back(copy)
            if not self.calm:
                self.run_until(back_ms + self.rng.randint(2_000, 9_000))
            self.log_event("world", "the last fault is over")
            self.faults.end()
            self.run_until(self.now_ms + SETTLE_MS)
            self.settle()
        return self.counts

    def _go_back(self, copy: dict[int, Any]) -> None:
        metastore = self.metastore
        if metastore.down:
            metastore.outage_over()
        self.moved = {p: (old.epoch, metastore.records[p].epoch) for p, old in copy.items()}
        self.log_event("faults", "the metastore goes back", self.moved)
        metastore.go_back(copy)
        self.rolled = True
        self.checkers.beyond_promise = True
        self.counts["rolled_back"] += 1
        self.counts["epochs_forgotten"] += any(old != new for old, new in self.moved.values())

    def settle(self) -> None:
        """Acknowledged entries are not lost: in a partition that continued, all members in sync have them; in one that
        reports the rollback, the replica that a re-seed would choose has them. Every partition is in one of these
        states."""
        for partition, record in self.metastore.records.items():
            history = self.checkers.history(partition)
            copies = [copy for copy in (self._copy(name, partition) for name in record.replicas) if copy is not None]
            best = most_complete(copies)
            has = self.checkers.agreed(self.nodes[best.node], partition)
            if has < history.acked_end:
                raise Violation(
                    "I-ROLLBACK", f"{best} agrees up to {has} with what was decided; acknowledged: {history.acked_end}"
                )
            self.counts["overtaken" if record.overtaken else f"went_on_{record.status}"] += 1
            if record.overtaken:
                continue
            for member in record.isr:
                node = self.nodes[member.node]
                held = node.disk.log_ids[partition] == member.log_id and partition in node.disk.logs
                if held and self.checkers.agreed(node, partition) < history.acked_end:
                    raise Violation("I-ACK", f"{member} is in sync and lacks what was acknowledged; {record}")

    def _copy(self, name: str, partition: int) -> ReplicaReport | None:
        node = self.nodes[name]
        process = node.current
        replica: Replica | None = None if process is None else process.replicas.get(partition)
        if replica is None:
            return None
        return ReplicaReport(
            name,
            replica.epoch_seen,
            last_epoch(replica.epoch_table),
            replica.leo,
            replica.high_watermark,
            replica.applied,
            node.disk.log_ids[partition],
            replica.transfer_position is not None,
        )


def plan_of(rng: Any) -> Plan:
    """A random mix in which several replicas hold acknowledged entries, durably."""
    plan = Plan.drawn(rng)
    while plan.factor == 1:
        plan = Plan.drawn(rng)
    plan.asynchronous = False
    plan.min_isr = max(plan.min_isr, 2)
    return plan

"""A simulation that a test drives step by step: there are no faults or writes of its own.

The processes, the metastore, the network and the controllers are the simulator's; time advances in `wait`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.model.record import PartitionRecord
from tests.simulation.cluster.metastore import METASTORE
from tests.simulation.cluster.network import FOR_GOOD_MS
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.process import Process
from tests.simulation.cluster.simulator import ClusterSimulation

PATIENCE_MS = 30_000
"""Virtual time within which the events that a test waits for occur: sessions, elections and their longest timers."""


class ScriptedCluster:
    """One partition, three nodes, RF 3, min-ISR 2 unless `plan` differs; it has a leader at the start."""

    def __init__(self, **plan: Any) -> None:
        self.simulation = ClusterSimulation(1, plan=Plan.only(**{"trims": 0.0, **plan}))
        self.simulation.clients = []
        self.simulation.start()
        self.client = _Writer()
        self.wait(lambda: self.leads() is not None and len(self.record.isr) == len(self.record.replicas))

    # -- looking --------------------------------------------------------------------------------

    @property
    def record(self) -> PartitionRecord:
        """The record as the metastore has it."""
        return self.simulation.metastore.records[0]

    def process(self, name: str) -> Process:
        """The process that runs on a node."""
        process = self.simulation.nodes[name].current
        assert process is not None
        return process

    def replica(self, name: str) -> Replica:
        """A node's core."""
        return self.process(name).replicas[0]

    def leads(self) -> str | None:
        """The node whose process leads and serves, by the record and by itself."""
        leader = self.record.leader
        if leader is None or self.simulation.nodes[leader.node].current is None:
            return None
        process = self.process(leader.node)
        return leader.node if process.me() == leader and process.replicas[0].ready else None

    def in_sync(self) -> set[str]:
        """The nodes in the ISR."""
        return {member.node for member in self.record.isr}

    def eligible(self) -> set[str]:
        """The nodes in the ELR."""
        return {member.node for member in self.record.elr}

    # -- doing ----------------------------------------------------------------------------------

    def wait(self, done: Callable[[], object]) -> None:
        """Let things happen until `done()`; every event is checked against the invariants."""
        limit_ms = self.simulation.now_ms + PATIENCE_MS
        while not done():
            assert self.simulation.now_ms < limit_ms, self.simulation.rendered_trace()[-6_000:]
            self.simulation.run_until(self.simulation.now_ms + 5)

    def pass_ms(self, time_ms: int) -> None:
        """Let so much time pass."""
        self.simulation.run_until(self.simulation.now_ms + time_ms)

    def write(self, name: str, count: int = 1) -> str | None:
        """A client's batch at a node; the code of its refusal, or None when it was appended."""
        return self.process(name).submit(self.client, count, 0, 0)

    def acked(self) -> int:
        """How many items were acknowledged."""
        return self.client.acked

    def cut(self, *ways: tuple[str, str]) -> None:
        """Cut these routes until `join`."""
        for sender, to in ways:
            self.simulation.network.cut(sender, to, FOR_GOOD_MS)

    def cut_off(self, name: str) -> None:
        """Cut a node off from all others."""
        others = (*(other for other in self.simulation.nodes if other != name), METASTORE, "c1", "c2")
        self.cut(*((name, other) for other in others), *((other, name) for other in others))

    def join(self) -> None:
        """End all cuts."""
        self.simulation.network.join_all()

    def others(self, name: str) -> list[str]:
        """The replicas but one."""
        return [other for other in self.record.replicas if other != name]

    def all_in_sync(self) -> bool:
        """True when all replicas are in sync, at rest and equal."""
        return not self.simulation.checkers.not_in_sync()

    def is_follower(self, name: str) -> bool:
        """True when a node follows."""
        replica = self.replica(name)
        return replica.role is ReplicaRole.FOLLOWER and replica.following


class _Writer:
    """A stand-in for a client: counts the outcomes of its items."""

    partition = 0
    done = False

    def __init__(self) -> None:
        self.acked = 0
        self.lost = 0

    def acknowledged(self) -> None:
        """An item took effect."""
        self.acked += 1

    def unknown(self) -> None:
        """The outcome of an item is unknown."""
        self.lost += 1

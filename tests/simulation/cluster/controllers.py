"""Two controllers that act at once, on old reads and with late writes; the rules are the product's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.repl.controller.election import ElectionTimer, ProposeRecord, WaitUntil, asked, watched
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr.epochs import last_epoch
from isthmus.repl.model.record import PartitionRecord, PartitionStatus

if TYPE_CHECKING:
    from tests.simulation.cluster.metastore import Look
    from tests.simulation.cluster.simulator import ClusterSimulation

LOOK_MS = 500
"""Pause between two reads of a controller that got no notification."""


class Controller:
    """Reads, lets the rules decide, writes conditionally; keeps only its watches and the candidates' reports."""

    def __init__(self, simulation: ClusterSimulation, name: str) -> None:
        self.simulation = simulation
        self.name = name
        self.sleeps_until_ms = 0
        self._due_ms: set[int] = set()
        self._watches: dict[int, ElectionTimer] = {}
        self._promoted: dict[int, set[tuple[int, str, int, int]]] = {}
        self._reported: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
        """(partition, version) -> node -> (last epoch, LEO), as it answered."""
        self._asked: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Read now and every LOOK_MS."""
        self.look()
        self.simulation.after(LOOK_MS, self.start)

    def look(self) -> None:
        """Read the state from the metastore."""
        self.simulation.metastore.read(self.name, self._decide)

    def on_promoted(self, partition: int, promoted: fx.Promoted) -> None:
        """A candidate reports that it promoted itself."""
        known = self._promoted.setdefault(partition, set())
        promotion = (promoted.epoch, promoted.node, promoted.session_id, promoted.log_id)
        if promotion not in known:
            known.add(promotion)
            self.look()

    def _decide(self, look: Look) -> None:
        simulation = self.simulation
        if simulation.now_ms < self.sleeps_until_ms:
            simulation.counts["controller_slept"] += 1
            simulation.after(self.sleeps_until_ms - simulation.now_ms, self._decide, look)  # and wakes with an old read
            return
        records, registrations, life = look
        if life != simulation.metastore.life:
            return  # its session with the metastore that it read has ended
        for partition, record in records.items():
            before = self._watches.get(partition)
            if before is not None and record.epoch < before.epoch:
                watch = before
            else:
                watch = self._watches[partition] = watched(before, record, simulation.now_ms)
            key = (partition, record.version)
            if record.status is PartitionStatus.ELECTION and key not in self._asked:
                self._asked.add(key)
                for name in asked(record, registrations):
                    self._ask(name, key)
            decision = simulation.decide(
                record,
                registrations,
                simulation.now_ms,
                watch.since_ms,
                self._promoted.get(partition, set()),
                attempt=watch.attempt,
                reported=self._reported.get(key, {}),
                unreached=simulation.network.deaf,
            )
            if isinstance(decision, ProposeRecord):
                simulation.log_event(self.name, "writes", decision.record)
                simulation.metastore.write(self.name, decision.record, (), self._written)
            elif isinstance(decision, WaitUntil) and decision.until_ms not in self._due_ms:
                self._due_ms.add(decision.until_ms)
                simulation.after(max(1, decision.until_ms - simulation.now_ms), self.look)

    def _ask(self, name: str, key: tuple[int, int]) -> None:
        simulation = self.simulation
        if simulation.network.both_open(self.name, name) and simulation.rng.random() >= simulation.plan.lost:
            simulation.after(simulation.rng.randint(2, 20), self._answer, name, key)

    def _answer(self, name: str, key: tuple[int, int]) -> None:
        process = self.simulation.nodes[name].current
        replica = None if process is None or process.paused else process.replicas.get(key[0])
        if replica is not None:
            self._reported.setdefault(key, {})[name] = (last_epoch(replica.epoch_table), replica.leo)
            self.simulation.after(self.simulation.rng.randint(2, 20), self.look)

    def _written(self, kind: str, _asked: PartitionRecord, _found: PartitionRecord) -> None:
        self.simulation.counts[f"controller_{kind}"] += 1
        if kind != "undecided":
            self.look()

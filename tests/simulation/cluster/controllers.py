"""Two controllers that act at once, on old looks and with late writes; the rules are the product's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.repl.controller.election import ElectionTimer, ProposeRecord, WaitUntil, asked, watched
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr.epochs import last_epoch
from isthmus.repl.model.record import PartitionRecord, PartitionStatus

if TYPE_CHECKING:
    from tests.simulation.cluster.metastore import Look
    from tests.simulation.cluster.simulator import World

LOOK_MS = 500
"""Pause between two looks of a controller that heard of nothing."""


class Controller:
    """Reads, lets the rules decide, writes conditionally; remembers only its watches and what it heard."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.sleeps_until_ms = 0
        self._due_ms: set[int] = set()
        self._watches: dict[int, ElectionTimer] = {}
        self._promoted: dict[int, set[tuple[int, str, int, int]]] = {}
        self._reported: dict[tuple[int, int], dict[str, tuple[int, int]]] = {}
        """(partition, version) -> node -> (last epoch, LEO), as it answered."""
        self._asked: set[tuple[int, int]] = set()

    def start(self) -> None:
        """Look now and every LOOK_MS."""
        self.look()
        self.world.after(LOOK_MS, self.start)

    def look(self) -> None:
        """Ask the metastore how things are."""
        self.world.metastore.read(self.name, self._decide)

    def heard(self, partition: int, promoted: fx.Promoted) -> None:
        """A candidate says that it promoted itself."""
        known = self._promoted.setdefault(partition, set())
        promotion = (promoted.epoch, promoted.node, promoted.session_id, promoted.log_id)
        if promotion not in known:
            known.add(promotion)
            self.look()

    def _decide(self, look: Look) -> None:
        world = self.world
        if world.now_ms < self.sleeps_until_ms:
            world.counts["controller_slept"] += 1
            world.after(self.sleeps_until_ms - world.now_ms, self._decide, look)  # and wakes with an old look
            return
        records, registrations, life = look
        if life != world.metastore.life:
            return  # its session is over with the metastore that it looked at
        for partition, record in records.items():
            before = self._watches.get(partition)
            if before is not None and record.epoch < before.epoch:
                watch = before
            else:
                watch = self._watches[partition] = watched(before, record, world.now_ms)
            key = (partition, record.version)
            if record.status is PartitionStatus.ELECTION and key not in self._asked:
                self._asked.add(key)
                for name in asked(record, registrations):
                    self._ask(name, key)
            decision = world.decide(
                record,
                registrations,
                world.now_ms,
                watch.since_ms,
                self._promoted.get(partition, set()),
                attempt=watch.attempt,
                reported=self._reported.get(key, {}),
            )
            if isinstance(decision, ProposeRecord):
                world.tell(self.name, "writes", decision.record)
                world.metastore.write(self.name, decision.record, (), self._written)
            elif isinstance(decision, WaitUntil) and decision.until_ms not in self._due_ms:
                self._due_ms.add(decision.until_ms)
                world.after(max(1, decision.until_ms - world.now_ms), self.look)

    def _ask(self, name: str, key: tuple[int, int]) -> None:
        world = self.world
        if world.network.both_open(self.name, name) and world.rng.random() >= world.plan.lost:
            world.after(world.rng.randint(2, 20), self._answer, name, key)

    def _answer(self, name: str, key: tuple[int, int]) -> None:
        process = self.world.nodes[name].current
        replica = None if process is None or process.paused else process.replicas.get(key[0])
        if replica is not None:
            self._reported.setdefault(key, {})[name] = (last_epoch(replica.epoch_table), replica.leo)
            self.world.after(self.world.rng.randint(2, 20), self.look)

    def _written(self, kind: str, _asked: PartitionRecord, _found: PartitionRecord) -> None:
        self.world.counts[f"controller_{kind}"] += 1
        if kind != "undecided":
            self.look()

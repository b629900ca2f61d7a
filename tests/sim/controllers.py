"""Two controllers that act at once, on old looks and with late writes; the rules are the product's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from repl.isr import effects as fx
from repl.isr.election import Wait, Watch, Write, watched
from repl.model.record import PartitionRecord

if TYPE_CHECKING:
    from tests.sim.metastore import Look
    from tests.sim.world import World

LOOK_MS = 400
"""Pause between two looks of a controller that heard of nothing."""


class Controller:
    """Reads, lets the rules decide, writes conditionally; remembers only its watches and what it heard."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.sleeps_until_ms = 0
        self._due_ms: set[int] = set()
        self._watches: dict[int, Watch] = {}
        self._promoted: dict[int, set[tuple[int, str, int, int]]] = {}

    def start(self) -> None:
        """Look now and every LOOK_MS."""
        self.look()
        self.world.after(LOOK_MS, self.start)

    def look(self) -> None:
        """Ask the metastore how things are."""
        self.world.metastore.read(self._decide)

    def heard(self, partition: int, promoted: fx.Promoted) -> None:
        """A candidate says that it promoted itself."""
        known = self._promoted.setdefault(partition, set())
        promotion = (promoted.epoch, promoted.node, promoted.inc, promoted.gen)
        if promotion not in known:
            known.add(promotion)
            self.look()

    def _decide(self, look: Look) -> None:
        world = self.world
        if world.now_ms < self.sleeps_until_ms:
            world.counts["controller_slept"] += 1
            world.after(self.sleeps_until_ms - world.now_ms, self._decide, look)  # and wakes with an old look
            return
        records, registrations = look
        for partition, record in records.items():
            before = self._watches.get(partition)
            if before is not None and record.epoch < before.epoch:
                watch = before
            else:
                watch = self._watches[partition] = watched(before, record, world.now_ms)
            decision = world.decide(
                record,
                registrations,
                world.now_ms,
                watch.since_ms,
                self._promoted.get(partition, set()),
                attempt=watch.attempt,
            )
            if isinstance(decision, Write):
                world.tell(self.name, "writes", decision.record)
                world.metastore.write(decision.record, False, self._written)
            elif isinstance(decision, Wait) and decision.until_ms not in self._due_ms:
                self._due_ms.add(decision.until_ms)
                world.after(max(1, decision.until_ms - world.now_ms), self.look)

    def _written(self, kind: str, _asked: PartitionRecord, _found: PartitionRecord) -> None:
        self.world.counts[f"controller_{kind}"] += 1
        if kind != "undecided":
            self.look()

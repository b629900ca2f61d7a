"""The simulated world: one virtual clock, one source of chance, everything that happens in one heap.

A world is made from a seed and nothing else, so a seed replays exactly. It holds the machines (`nodes`), the
metastore, the controllers and the clients; `faults.py` breaks them, `checkers.py` looks after every event.
Nothing here sleeps or reads a clock. Run it with `python -m tests.sim --seeds A:B`.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from repl.isr.election import elect
from repl.isr.invariants import Violation
from repl.isr.placement import computed
from repl.isr.replica import Replica
from repl.model.record import Member, PartitionRecord
from tests.sim.checkers import Checkers
from tests.sim.clients import Client
from tests.sim.controllers import Controller
from tests.sim.faults import Faults, Plan
from tests.sim.metastore import SimMetastore
from tests.sim.nodes import Node

FAULT_PHASE_MS = 13_000
"""Virtual time under faults: several sessions, elections and restarts long."""

HEAL_LIMIT_MS = 90_000
"""Virtual time after the last fault within which everything must be well again: the longest back-off of an
election, a session and some restarts."""

LATE_MS = 7_000
"""Virtual time after which even a held message has arrived."""

QUIET_MS = 4_000
"""Virtual time after that in which no record may change any more."""

STORY_LINES = 240
"""How many of the last happenings a failure prints."""


class World:
    """One run. `replica_class` and `decide` are the product's own unless a test puts a defect in."""

    def __init__(
        self,
        seed: int,
        *,
        replica_class: type[Replica] = Replica,
        decide: Callable[..., Any] = elect,
        plan: Plan | None = None,
    ) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now_ms = 0
        self.replica_class = replica_class
        self.decide = decide
        self.counts: Counter[str] = Counter()
        self.story: deque[tuple[int, str, object, object]] = deque(maxlen=STORY_LINES)
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._sequence = 0
        self._last_request = 0
        self.plan = plan if plan is not None else Plan.drawn(self.rng)
        self.checkers = Checkers(self)
        self.metastore = SimMetastore(self)
        names = ["n1"]
        placement = computed(self.plan.partition_count, 1, names)
        self.nodes = {
            name: Node(self, name, [partition for partition, replicas in enumerate(placement) if name in replicas])
            for name in names
        }
        for partition, replicas in enumerate(placement):
            isr = frozenset(Member(name, self.nodes[name].disk.gens[partition]) for name in replicas)
            self.metastore.create(
                PartitionRecord(
                    partition, "default", partition, self.plan.partition_count, replicas, isr=isr, version=0
                )
            )
        self.controllers = [Controller(self, name) for name in ("c1", "c2")]
        self.clients = [Client(self, partition) for partition in range(self.plan.partition_count)]
        self.faults = Faults(self)

    # -- time -----------------------------------------------------------------------------------

    def after(self, delay_ms: int, function: Callable[..., None], *args: Any) -> None:
        """Let `function(*args)` happen `delay_ms` from now; equal times in the order of asking."""
        self._sequence += 1
        heapq.heappush(self._heap, (self.now_ms + delay_ms, self._sequence, function, args))

    def tell(self, actor: str, what: object, detail: object = "") -> None:
        """One line of the story; rendered only when somebody asks."""
        self.story.append((self.now_ms, actor, what, detail))

    def request_id(self) -> bytes:
        """A request id that was never used."""
        self._last_request += 1
        return b"r%d" % self._last_request

    def run_until(self, until_ms: int, done: Callable[[], bool] | None = None) -> None:
        """Let things happen until `until_ms`, or until `done()` after some event."""
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now_ms, _, function, args = heapq.heappop(heap)
            function(*args)
            self.counts["events"] += 1
            if done is not None and done():
                return
        self.now_ms = until_ms

    # -- the run --------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """Faults, then healing, then quiet; returns what happened how often. Raises Violation."""
        for node in self.nodes.values():
            node.start()
        for controller in self.controllers:
            controller.start()
        for client in self.clients:
            client.start()
        self.faults.start()
        self.run_until(FAULT_PHASE_MS)
        self.heal()
        self.quiet()
        self.checkers.final()
        return self.counts

    def heal(self) -> None:
        """No fault any more: everything must become well, and every client must get a write through."""
        self.tell("world", "the last fault is over")
        self.faults.end()
        for client in self.clients:
            client.begin_final()
        self.run_until(self.now_ms + HEAL_LIMIT_MS, self._well)
        if not self._well():
            raise Violation("I-CONVERGE", f"not well {HEAL_LIMIT_MS} ms after the last fault: {self.checkers.unwell()}")

    def quiet(self) -> None:
        """Without faults and without writes nothing changes any more."""
        for client in self.clients:
            client.stop()
        self.run_until(self.now_ms + LATE_MS)
        before = {partition: record.version for partition, record in self.metastore.records.items()}
        self.run_until(self.now_ms + QUIET_MS)
        after = {partition: record.version for partition, record in self.metastore.records.items()}
        if before != after or self.checkers.unwell():
            raise Violation("I-CONVERGE", f"not quiet: versions {before} -> {after}; {self.checkers.unwell()}")

    def _well(self) -> bool:
        return all(client.final_done for client in self.clients) and not self.checkers.unwell()

    # -- telling --------------------------------------------------------------------------------

    def narrate(self) -> str:
        """The last happenings, one a line."""
        return "\n".join(
            f"{at_ms:>7} {actor:<8} {_short(what)}{'  ->  ' + _short(detail) if detail not in ('', []) else ''}"
            for at_ms, actor, what, detail in self.story
        )


def _short(thing: object) -> str:
    """A happening in few words: entries by their places, records by what matters."""
    if isinstance(thing, str):
        return thing
    if isinstance(thing, list | tuple):
        return "; ".join(_short(item) for item in thing)
    if isinstance(thing, PartitionRecord):
        who = thing.leader or thing.candidate
        return f"v{thing.version} e{thing.epoch} {thing.status}{f' {who.node}/{who.inc}' if who else ''}"
    fields = getattr(type(thing), "__slots__", ())
    parts = []
    for name in fields:
        value = getattr(thing, name)
        if name == "entries":
            value = f"{value[0].epoch}.{value[0].offset}+{len(value)}"
        parts.append(f"{name}={_short(value)}" if isinstance(value, PartitionRecord | str) else f"{name}={value}")
    return f"{type(thing).__name__}({', '.join(parts)})"


def run_seed(seed: int, **options: Any) -> World:
    """Run a seed to its end; a Violation or a broken assertion carries the seed and the story."""
    world = World(seed, **options)
    try:
        world.run()
    except AssertionError as error:
        error.add_note(
            f"{world.narrate()}\n\nseed {seed}: {error}\nreplay: python -m tests.sim --seeds {seed}:{seed + 1} --story"
        )
        raise
    return world

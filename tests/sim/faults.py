"""What goes wrong, how often, and with which weight: every seed draws its own mix (swarm testing).

Some seeds know only crashes, some only a bad metastore, some everything; a fault that never meets another
one would hide what their meeting breaks.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from repl.isr import effects as fx

if TYPE_CHECKING:
    from tests.sim.nodes import Node
    from tests.sim.world import World

KINDS = (
    "kill",
    "power_loss",
    "pause",
    "long_pause",
    "take_over",
    "stop",
    "ambush",
    "outage",
    "cut",
    "slow_disk",
    "failing_disk",
    "sleeping_controller",
)


AMBUSHES = (
    fx.PersistEpoch,
    fx.AppendBarrier,
    fx.Persist,
    fx.Persist,
    fx.Apply,
    fx.Promoted,
    fx.LeadershipReady,
    fx.WriteRecord,
)
"""Where a crash waits for a process: right after it was asked for one of these."""


@dataclass(slots=True)
class Plan:
    """One seed's mix. Rates are probabilities of one message or chance; `gap_ms` is the mean time between faults."""

    partition_count: int
    gap_ms: int
    weights: tuple[float, ...]
    lost: float
    held: float
    trims: float
    sync_on_open: bool
    write_gap_ms: int

    @staticmethod
    def drawn(rng: Random) -> Plan:
        """A mix of its own for each seed."""
        return Plan(
            partition_count=rng.choice((1, 1, 2)),
            gap_ms=rng.choice((300, 600, 1_200, 2_500)),
            weights=tuple(rng.choice((0, 0.3, 1, 1, 3)) * (3 if kind in ("ambush", "stop") else 1) for kind in KINDS),
            lost=rng.choice((0, 0.02, 0.1, 0.25)),
            held=rng.choice((0, 0.02, 0.1, 0.25)),
            trims=rng.choice((0, 0.4, 0.9)),
            sync_on_open=rng.random() < 0.5,
            write_gap_ms=rng.choice((25, 60, 150)),
        )

    @staticmethod
    def only(*kinds: str, lost: float = 0.0, held: float = 0.0) -> Plan:
        """A mix of few faults, to look closely at what they break."""
        assert set(kinds) <= set(KINDS)
        return Plan(
            partition_count=1,
            gap_ms=700,
            weights=tuple(1.0 if kind in kinds else 0.0 for kind in KINDS),
            lost=lost,
            held=held,
            trims=0.4,
            sync_on_open=False,
            write_gap_ms=60,
        )


class Faults:
    """Breaks the world until `end`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.over = False

    def start(self) -> None:
        """The first fault comes after a while, unless none is planned."""
        if any(self.world.plan.weights):
            self._next()

    def end(self) -> None:
        """Everything that is broken is mended; nothing new breaks."""
        self.over = True
        world = self.world
        world.plan.lost = world.plan.held = 0
        if world.metastore.down:
            world.metastore.outage_over()
        for node in world.nodes.values():
            node.ambush = None
            node.disk.fails = False
            node.disk.slow = 1
            for process in list(node.processes):
                process.session.cut = False
                if not process.holds_directory():
                    process.die("the supervisor clears up")
            node.start()

    def _next(self) -> None:
        world = self.world
        world.after(1 + int(world.rng.expovariate(1 / world.plan.gap_ms)), self._strike)

    def _strike(self) -> None:
        if self.over:
            return
        world, rng = self.world, self.world.rng
        node = rng.choice(list(world.nodes.values()))
        kind = rng.choices(KINDS, world.plan.weights)[0]
        world.tell("faults", kind)
        self._inflict(kind, node)
        self._next()

    def ambushed(self, node: Node) -> None:
        """A process walked into the ambush that was laid at its node."""
        assert node.ambush is not None
        self.world.counts[f"ambush_{node.ambush.__name__}"] += 1
        node.ambush = None
        kind = self.world.rng.choice(("kill", "power_loss", "power_loss", "take_over", "long_pause"))
        self.world.after(self.world.rng.randint(0, 20), self._inflict, kind, node)

    def _inflict(self, kind: str, node: Node) -> None:
        if self.over:
            return
        world, rng = self.world, self.world.rng
        match kind:
            case "kill":
                node.kill()
            case "power_loss":
                node.power_loss()
            case "pause":
                node.pause(rng.randint(100, 2_000))
            case "long_pause":
                node.pause(rng.randint(3_500, 7_000))
            case "take_over":
                node.take_over(rng.randint(200, 6_000))
            case "stop":
                node.stop()
            case "ambush":
                node.ambush = rng.choice(AMBUSHES)
            case "outage":
                self._outage()
            case "cut":
                self._cut(node.name)
            case "slow_disk":
                node.disk.slow = rng.choice((8, 30, 100))
                world.after(rng.randint(500, 4_000), self._mend_disk, node.name)
            case "failing_disk":
                node.disk.fails = True
            case _:
                controller = rng.choice(world.controllers)
                controller.sleeps_until_ms = world.now_ms + rng.randint(500, 6_000)

    def _outage(self) -> None:
        metastore = self.world.metastore
        if not metastore.down:
            metastore.down = True
            self.world.counts["outage"] += 1
            self.world.after(self.world.rng.randint(300, 6_000), self._outage_over)

    def _outage_over(self) -> None:
        if self.world.metastore.down:
            self.world.tell("faults", "the metastore is back")
            self.world.metastore.outage_over()

    def _cut(self, name: str) -> None:
        process = self.world.nodes[name].current
        if process is not None and not process.session.cut:
            process.session.cut = True
            self.world.counts["cut"] += 1
            self.world.after(self.world.rng.randint(500, 7_000), self._join, name)

    def _join(self, name: str) -> None:
        for process in self.world.nodes[name].processes:
            process.session.cut = False

    def _mend_disk(self, name: str) -> None:
        self.world.nodes[name].disk.slow = 1

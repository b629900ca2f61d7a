"""Scenarios of the mesh, by name: topology, faults, and operator actions that one seed runs and checks.

The quick tests run tens of seeds of them, `python -m tests.simulation.mesh` as many as requested.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from isthmus.repl.model.vclock import covers
from tests.simulation.mesh.cluster import Link
from tests.simulation.mesh.discarding import DiscardingSimulation
from tests.simulation.mesh.queue_moves import QueueMoveSimulation
from tests.simulation.mesh.restoring import RestoringSimulation
from tests.simulation.mesh.simulator import MeshSimulation

STEPS: Final = 2_000


def both_ways(*pairs: tuple[str, str], cascade: str = "") -> list[Link]:
    """Links in both directions; clusters in `cascade` also forward received changes."""
    ends = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    return [Link(source, sink, source in cascade) for source, sink in ends]


TOPOLOGIES: Final = {
    "two-way": both_ways(("a", "b")),
    "mesh": both_ways(("a", "b"), ("b", "c"), ("a", "c")),
    "mesh with cascade": both_ways(("a", "b"), ("b", "c"), ("a", "c"), cascade="abc"),
    "chain": both_ways(("a", "b"), ("b", "c"), cascade="b"),
    "hub": both_ways(("h", "x"), ("h", "y"), ("h", "z"), cascade="h"),
    "ring": both_ways(("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), cascade="abcd"),
}

MOVES: Final = {
    "two-way": (TOPOLOGIES["two-way"], [Link("a", "c"), Link("c", "a")]),
    "star": (both_ways(("a", "b"), ("a", "c")), [Link("a", "d"), Link("b", "d")]),
    "mesh": (TOPOLOGIES["mesh"], [Link("a", "d"), Link("d", "a")]),
    "chain": (TOPOLOGIES["chain"], [Link("c", "d"), Link("b", "d", cascade=True)]),
    "hub": (TOPOLOGIES["hub"], [Link("h", "w", cascade=True), Link("x", "w")]),
}
"""Links from the start, and links whose queues are registered while the simulation runs."""

GAPS: Final = {"one way": [Link("a", "b")], "two-way": TOPOLOGIES["two-way"], "mesh": TOPOLOGIES["mesh"]}


def converges(name: str, seed: int) -> MeshSimulation:
    """I-ALO, I-NO-LOST, I-SIB, I-COMM under faults: in the end all clusters hold the same bytes, and the siblings are
    exactly the writes that no later write includes in its clock; I-DOT-UNIQUE, I-IDEMP, I-Q-NOLOOP, I-NO-RESURRECT
    and I-CLOCK-STABLE at every step. Each second seed's sinks drop batches that are older than their lease."""
    simulation = MeshSimulation(seed, TOPOLOGIES[name], drops=seed % 2 == 1)
    simulation.run(STEPS)
    simulation.drain()
    simulation.equal()
    return simulation


def crosses_once(name: str, seed: int) -> MeshSimulation:
    """Without faults no version of an object goes over the same link twice."""
    simulation = MeshSimulation(seed, TOPOLOGIES[name], faults=False)
    simulation.run(STEPS)
    simulation.drain()
    simulation.equal()
    assert max(simulation.crossed.values()) == 1
    return simulation


def locks(name: str, seed: int) -> MeshSimulation:
    """`converges` with clients that write by the tag of the object that they read: such a write replaces exactly that
    object."""
    simulation = MeshSimulation(seed, TOPOLOGIES[name], faults=seed % 2 == 0, locking=True)
    simulation.run(STEPS)
    simulation.drain()
    simulation.equal()
    return simulation


def keeps_one(name: str, seed: int) -> MeshSimulation:
    """R-KEEP: clusters that keep the newest sibling alone, under wall clocks that step back, fall silent in the end and
    hold the same bytes; I-CLOCK-STABLE, I-IDEMP, I-DOT-UNIQUE and I-NO-RESURRECT hold at every step."""
    simulation = MeshSimulation(seed, TOPOLOGIES[name], faults=seed % 3 > 0, keeps_one=True)
    simulation.run(STEPS)
    simulation.drain()
    simulation.agree()
    return simulation


def gives_its_own(seed: int) -> MeshSimulation:
    """R-OWED: a and b replicate both ways, c fetches from a alone, which does not cascade: c has every write of a."""
    simulation = MeshSimulation(seed, [*both_ways(("a", "b")), Link("a", "c")])
    simulation.run(STEPS)
    simulation.drain()
    for made in simulation.made:
        if made.cluster == "a":
            found = simulation.clusters["c"].get(made.key)
            assert found is not None
            assert covers(found.clock, made.dot), "c never heard of a write of a"
    return simulation


def gives_up(name: str, seed: int) -> MeshSimulation:
    """R-GAP: every change that a sink misses lies in a gap, and comparing the gaps' ranges makes both sides equal."""
    simulation = DiscardingSimulation(seed, GAPS[name], discard=seed % 2 == 0, acts=True, faults=seed % 3 > 0)
    simulation.run(STEPS)
    simulation.drain()
    simulation.only_gaps_are_missing()
    if name == "two-way":
        simulation.full_sync()
        simulation.equal()
    return simulation


def moves(name: str, seed: int) -> QueueMoveSimulation:
    """Operators release, place and register queues, and suspend and clear them in each second seed: every write of a
    source is at each cluster that fetches from it, in a gap, or older than the position at which the queue was made to
    begin."""
    links, late = MOVES[name]
    simulation = QueueMoveSimulation(
        seed,
        links,
        late=late,
        gives_up=seed % 2 == 0,
        discard=seed % 4 == 3,
        faults=seed % 3 > 0,
        drops=seed % 5 > 1,
    )
    simulation.run(STEPS)
    simulation.drain()
    simulation.only_gaps_are_missing()
    return simulation


def reaps(name: str, seed: int) -> MeshSimulation:
    """I-NO-RESURRECT with deletes and reaps: no cluster stores a value again that it knew to be replaced, every
    tombstone can be reaped in the end, and the remaining siblings are exactly the writes that no later write includes
    in its clock."""
    simulation = MeshSimulation(
        seed, TOPOLOGIES[name], faults=seed % 3 > 0, reaps=True, repl_reap=seed % 2 == 0, drops=seed % 5 > 2
    )
    simulation.run(STEPS)
    simulation.drain()
    simulation.equal()
    simulation.reap_all()
    simulation.equal()
    assert not any(obj.deleted for cluster in simulation.clusters.values() for obj in simulation.objects_of(cluster))
    return simulation


def restores(name: str, seed: int) -> RestoringSimulation:
    """R-ACTOR: clusters go back to backups. Every write that another cluster ever stored is in all of them in the end,
    unless a write replaced it whose client had seen it; I-DOT-UNIQUE at every step."""
    simulation = RestoringSimulation(seed, TOPOLOGIES[name])
    simulation.run(STEPS)
    simulation.drain()
    simulation.full_sync()
    simulation.forget_lost()
    simulation.equal()
    return simulation


def _each(scenario: Callable[[str, int], MeshSimulation], *names: str) -> dict[str, Callable[[int], MeshSimulation]]:
    return {f"{scenario.__name__}: {name}": lambda seed, name=name: scenario(name, seed) for name in names}  # type: ignore[misc]


SCENARIOS: Final[dict[str, Callable[[int], MeshSimulation]]] = {
    **_each(moves, *MOVES),
    "gives_its_own": gives_its_own,
    **_each(gives_up, *GAPS),
    **_each(reaps, "two-way", "mesh", "mesh with cascade", "chain", "hub"),
    **_each(restores, "two-way", "mesh", "chain"),
    **_each(converges, *TOPOLOGIES),
    **_each(crosses_once, *TOPOLOGIES),
    **_each(locks, *TOPOLOGIES),
    **_each(keeps_one, *TOPOLOGIES),
}
"""Name -> function that runs one seed; AssertionError when an invariant does not hold."""

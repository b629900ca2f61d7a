"""What a seed of each story of the mesh runs and checks: the shapes, the faults and the operators' acts, by name.

The quick tests run tens of seeds of them, `python -m tests.simulation.mesh` as many as it is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from isthmus.repl.model.vclock import covers
from tests.simulation.mesh.cluster import Road
from tests.simulation.mesh.discarding import GivingWorld
from tests.simulation.mesh.queue_moves import MovingWorld
from tests.simulation.mesh.simulator import World

STEPS: Final = 2_000


def both_ways(*pairs: tuple[str, str], cascade: str = "") -> list[Road]:
    """Roads in both directions; a town named in `cascade` passes on what came from elsewhere."""
    ends = [pair for a, b in pairs for pair in ((a, b), (b, a))]
    return [Road(source, sink, source in cascade) for source, sink in ends]


TOPOLOGIES: Final = {
    "two-way": both_ways(("a", "b")),
    "mesh": both_ways(("a", "b"), ("b", "c"), ("a", "c")),
    "mesh with cascade": both_ways(("a", "b"), ("b", "c"), ("a", "c"), cascade="abc"),
    "chain": both_ways(("a", "b"), ("b", "c"), cascade="b"),
    "hub": both_ways(("h", "x"), ("h", "y"), ("h", "z"), cascade="h"),
    "ring": both_ways(("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), cascade="abcd"),
}

MOVES: Final = {
    "two-way": (TOPOLOGIES["two-way"], [Road("a", "c"), Road("c", "a")]),
    "star": (both_ways(("a", "b"), ("a", "c")), [Road("a", "d"), Road("b", "d")]),
    "mesh": (TOPOLOGIES["mesh"], [Road("a", "d"), Road("d", "a")]),
    "chain": (TOPOLOGIES["chain"], [Road("c", "d"), Road("b", "d", cascade=True)]),
    "hub": (TOPOLOGIES["hub"], [Road("h", "w", cascade=True), Road("x", "w")]),
}
"""Roads from the start, and roads whose queues are registered while the world runs."""

GAPS: Final = {"one way": [Road("a", "b")], "two-way": TOPOLOGIES["two-way"], "mesh": TOPOLOGIES["mesh"]}


def converges(name: str, seed: int) -> World:
    """I-ALO, I-NO-LOST, I-SIB, I-COMM under faults: in the end all towns hold the same bytes, and the siblings are
    exactly the writes that no later write has seen; I-DOT, I-IDEMP, I-Q-NOLOOP, I-NO-RESURRECT and I-CLOCK-STABLE at
    every step. Each second seed's sinks drop batches that are older than their lease."""
    world = World(seed, TOPOLOGIES[name], drops=seed % 2 == 1)
    world.run(STEPS)
    world.drain()
    world.equal()
    return world


def crosses_once(name: str, seed: int) -> World:
    """Without faults no version of an object goes over the same road twice."""
    world = World(seed, TOPOLOGIES[name], faults=False)
    world.run(STEPS)
    world.drain()
    world.equal()
    assert max(world.crossed.values()) == 1
    return world


def gives_its_own(seed: int) -> World:
    """R-OWED: a and b replicate both ways, c fetches from a alone, which does not cascade: c has every write of a."""
    world = World(seed, [*both_ways(("a", "b")), Road("a", "c")])
    world.run(STEPS)
    world.drain()
    for made in world.made:
        if made.town == "a":
            found = world.towns["c"].get(made.key)
            assert found is not None
            assert covers(found.clock, made.dot), "c never heard of a write of a"
    return world


def gives_up(name: str, seed: int) -> World:
    """R-GAP: what a sink misses lies in a gap, and a comparison of what the gaps say makes both sides equal."""
    world = GivingWorld(seed, GAPS[name], discard=seed % 2 == 0, acts=True, faults=seed % 3 > 0)
    world.run(STEPS)
    world.drain()
    world.only_gaps_are_missing()
    if name == "two-way":
        world.full_sync()
        world.equal()
    return world


def moves(name: str, seed: int) -> MovingWorld:
    """Operators release, place and register queues, and suspend and clear them in each second seed: every write of a
    source is at each cluster that fetches from it, in a gap, or older than where the queue was told to begin."""
    roads, late = MOVES[name]
    world = MovingWorld(
        seed,
        roads,
        late=late,
        gives_up=seed % 2 == 0,
        discard=seed % 4 == 3,
        faults=seed % 3 > 0,
        drops=seed % 5 > 1,
    )
    world.run(STEPS)
    world.drain()
    world.only_gaps_are_missing()
    return world


def reaps(name: str, seed: int) -> World:
    """I-NO-RESURRECT with deletes and reaps: no town stores again what it knew to be replaced, every tombstone can be
    reaped in the end, and what is left is exactly the writes that no later write has seen."""
    world = World(seed, TOPOLOGIES[name], faults=seed % 3 > 0, reaps=True, repl_reap=seed % 2 == 0, drops=seed % 5 > 2)
    world.run(STEPS)
    world.drain()
    world.equal()
    world.reap_all()
    world.equal()
    assert not any(obj.deleted for town in world.towns.values() for obj in world.objects_of(town))
    return world


def _each(story: Callable[[str, int], World], *names: str) -> dict[str, Callable[[int], World]]:
    return {f"{story.__name__}: {name}": lambda seed, name=name: story(name, seed) for name in names}  # type: ignore[misc]


STORIES: Final[dict[str, Callable[[int], World]]] = {
    **_each(moves, *MOVES),
    "gives_its_own": gives_its_own,
    **_each(gives_up, *GAPS),
    **_each(reaps, "two-way", "mesh", "mesh with cascade", "chain", "hub"),
    **_each(converges, *TOPOLOGIES),
    **_each(crosses_once, *TOPOLOGIES),
}
"""Name -> what one seed runs; AssertionError when an invariant does not hold."""

"""Deletes and reaps in clusters that replicate to each other, in virtual time (R-REAP)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import PushOutcome, PushResult
from isthmus.sink.backoff import CycleResult
from tests.simulation.mesh.cluster import KEYS, LEASE_MS
from tests.simulation.mesh.scenarios import TOPOLOGIES, both_ways
from tests.simulation.mesh.simulator import FetchCycle, MeshSimulation
from tests.support.memory_store import MemoryStore

SEEDS = 3
STEPS = 2_500


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("repl_reap", [False, True])
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("name", ["two-way", "mesh", "mesh with cascade", "chain", "hub"])
def test_every_tombstone_goes_in_the_end_and_nothing_comes_back(
    name: str, faults: bool, repl_reap: bool, seed: int
) -> None:
    """I-NO-RESURRECT, I-NO-LOST, I-SIB with random deletes, reaps, cuts, late pushes and restarts: no cluster ever
    stores a value again that it knew to be replaced; after the last fault every tombstone can be reaped everywhere,
    without any circulating, and the remaining siblings are exactly the writes that no later write includes in its
    clock."""
    simulation = MeshSimulation(seed, TOPOLOGIES[name], faults=faults, reaps=True, repl_reap=repl_reap)
    simulation.run(STEPS)
    simulation.drain()
    simulation.equal()
    simulation.reap_all()
    simulation.equal()
    assert not any(obj.deleted for cluster in simulation.clusters.values() for obj in simulation.objects_of(cluster))


@pytest.mark.parametrize("name", ["two-way", "mesh", "chain", "hub"])
def test_a_reap_at_one_cluster_reaches_all_clusters(name: str) -> None:
    """`repl_reap`: one cluster reaps, and the other clusters repeat exactly its reaps."""
    simulation = MeshSimulation(2, TOPOLOGIES[name], faults=False, reaps=True, repl_reap=True)
    first = next(iter(simulation.clusters.values()))
    for key in KEYS:
        dot = first.put(key, Content(b"v"), ())
        assert dot is not None
        simulation.note(first, key, (), dot)
        current = first.get(key)
        assert current is not None
        simulation.note(first, key, current.clock, first.delete(key, current.clock))
    simulation.drain()
    assert all(len(simulation.objects_of(cluster)) == len(KEYS) for cluster in simulation.clusters.values())
    for _ in range(30):
        simulation.drain()
        for cluster in simulation.clusters.values():
            cluster.save_cursors()
            for key in KEYS:
                if cluster is first or cluster.leaves(key):
                    cluster.reap(key)
    simulation.drain()
    assert not any(simulation.objects_of(cluster) for cluster in simulation.clusters.values())


def a_late_push() -> MeshSimulation:
    """A value is fetched and held by a slow worker; its lease ends, it is deleted at its source, the tombstone is
    acknowledged and reaped at both ends. Then the worker continues."""
    simulation = MeshSimulation(1, both_ways(("a", "b")), reaps=True)
    simulation.faults = False
    a, b = simulation.clusters["a"], simulation.clusters["b"]

    def written(key: bytes, content: Content | None) -> None:
        current = a.get(key)
        clock = () if current is None else current.clock
        simulation.note(a, key, clock, a.delete(key, clock) if content is None else a.put(key, content, clock))
        a.apply(9)
        a.notify(9)

    def late() -> FetchCycle | None:
        return next((cycle for cycle in simulation.cycles if cycle.step == "pushes"), None)

    written(b"a", Content(b"old"))
    while late() is None:
        simulation.fetches()
        simulation.reads()
        simulation.goes_on()
        simulation.time_passes()
    slow = late()
    assert slow is not None
    simulation.cycles.remove(slow)
    simulation.now += LEASE_MS
    simulation.time_passes()
    written(b"a", None)
    simulation.reap_all()
    assert a.get(b"a") is b.get(b"a") is None
    simulation.cycles.append(slow)
    simulation.drain()
    simulation.equal()
    return simulation


def test_a_push_that_is_late_brings_nothing_back_where_the_tombstone_came_as_one_that_leaves() -> None:
    """I-NO-RESURRECT: in a chain, a key that c has not fetched from b yet is deleted at a, and reaped there, so that c
    gets the delete only as a tombstone about to be reaped, and never had the key. Then a slow worker of c continues."""
    simulation = MeshSimulation(1, TOPOLOGIES["chain"], faults=False, reaps=True, repl_reap=True)
    a, b, c = simulation.clusters.values()

    def goes_on_until(done: Callable[[], bool]) -> None:
        for _ in range(2_000):
            for _ in range(3):
                simulation.fetches()
                simulation.goes_on()
                simulation.reads()
                simulation.applies()
                simulation.notify_applied()
            simulation.time_passes()
            for cluster in simulation.clusters.values():
                cluster.save_cursors()
                if cluster is a or cluster.leaves(b"a"):
                    cluster.reap(b"a")
            if done():
                return
        raise AssertionError("it does not come about")

    def late() -> FetchCycle | None:
        return next((cycle for cycle in simulation.cycles if cycle.step == "pushes" and cycle.link.sink == "c"), None)

    simulation.note(a, b"a", (), a.put(b"a", Content(b"old"), ()))
    goes_on_until(lambda: late() is not None)
    slow = late()
    assert slow is not None
    simulation.ends(slow, CycleResult.ERROR)
    simulation.now += LEASE_MS
    simulation.time_passes()
    simulation.cut.add(slow.link)
    current = a.get(b"a")
    assert current is not None
    simulation.note(a, b"a", current.clock, a.delete(b"a", current.clock))
    goes_on_until(lambda: a.get(b"a") is None)
    simulation.cut.clear()
    goes_on_until(lambda: b.get(b"a") is None)
    assert c.get(b"a") is None
    ((answer, _),) = c.push([(item[5], item[8], False) for item in slow.items], b.uuid)
    assert answer == PushResult(PushOutcome.SUPERSEDED)
    simulation.drain()
    assert not any(simulation.objects_of(cluster) for cluster in simulation.clusters.values())


def test_a_push_that_is_late_by_a_lease_brings_nothing_back() -> None:
    """I-NO-RESURRECT: the sink keeps the clocks of reaped keys, so the value is not new to it."""
    simulation = a_late_push()
    assert simulation.outcomes[PushOutcome.SUPERSEDED]


def test_without_the_clocks_of_reaped_keys_a_key_is_resurrected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the clocks of reaped keys the late push brings the deleted value back."""
    monkeypatch.setattr(MemoryStore, "reaped_clocks", lambda *_: {})
    with pytest.raises(AssertionError, match="I-NO-RESURRECT"):
        a_late_push()

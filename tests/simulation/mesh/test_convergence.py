"""Three and more clusters that replicate to each other, under cuts, losses and restarts, in virtual time."""

from __future__ import annotations

import pytest

from isthmus.repl.model.requests import PushOutcome
from isthmus.repl.model.vclock import covers
from tests.simulation.mesh.cluster import KEYS, Link
from tests.simulation.mesh.scenarios import (
    STEPS,
    TOPOLOGIES,
    both_ways,
    converges,
    crosses_once,
    gives_its_own,
    keeps_one,
    locks,
)
from tests.simulation.mesh.simulator import MeshSimulation
from tests.support.samples import seeds

SEEDS = len(seeds(range(6)))

EMPTY_SEEDS = {
    "two-way": (3, 39),
    "mesh": (9, 18),
    "mesh with cascade": (18, 39),
    "chain": (27, 93),
    "hub": (12, 93),
    "ring": (0, 9),
}
"""Seeds in which two objects met that had dropped all of each other's siblings: pushes failed for ever, and the batch
with them."""

OWED_SEEDS = (378, 579, 1268, 1531, 1554, 2112)
"""Lost a write of a when R-OWED compared the cursor with the offset of our dot instead of the key's row."""


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_topology_converges_under_faults(name: str, seed: int) -> None:
    """I-ALO, I-NO-LOST, I-SIB, I-COMM: once links are restored every queue becomes empty, all clusters hold the same
    bytes, and the siblings are exactly the writes that no later write includes in its clock; I-DOT-UNIQUE, I-IDEMP,
    I-Q-NOLOOP, I-NO-RESURRECT and I-CLOCK-STABLE hold at every step."""
    converges(name, seed)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", ["two-way", "mesh", "ring"])
def test_a_write_by_tag_replaces_exactly_what_its_client_has_read(name: str, seed: int) -> None:
    """I-NO-LOST, I-SIB with optimistic locking: a write with a tag and no clock is refused exactly if the key holds
    another version, and otherwise the writes that it replaced, at all clusters, are those that its client has read."""
    simulation = locks(name, seed)
    assert simulation.locked[True] > 2
    assert simulation.locked[False] > 2


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_clusters_that_keep_one_sibling_agree_under_clocks_that_step_back(name: str) -> None:
    """R-KEEP: without allow_mult, and with last_write_wins, in all clusters or in some, no merge keeps nothing,
    whatever wall clocks say; in the end every queue is empty, and all clusters hold the same bytes. Such merges do
    occur."""
    simulations = [keeps_one(name, seed) for seed in (*range(4 * SEEDS), *EMPTY_SEEDS[name])]
    assert sum(simulation.emptied for simulation in simulations)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_without_faults_a_change_crosses_each_link_at_most_once(name: str, seed: int) -> None:
    """No version of an object goes over the same link twice, and none circulates: in a full mesh, and where clusters
    forward received changes."""
    simulation = crosses_once(name, seed)
    assert simulation.outcomes[PushOutcome.APPLIED] > 20


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_no_cluster_receives_a_version_that_it_has(name: str, seed: int) -> None:
    """R-PLACE: where each key is written at one cluster and no change can come on two ways, no cluster
    receives a version that it has: no newer version goes before an older one, and none goes twice."""
    simulation = MeshSimulation(seed, TOPOLOGIES[name], faults=False, homes=True)
    simulation.run(STEPS)
    simulation.drain()
    simulation.equal()
    assert max(simulation.crossed.values()) == 1
    if name not in ("mesh with cascade", "ring"):
        assert simulation.outcomes[PushOutcome.SUPERSEDED] == 0
    assert simulation.outcomes[PushOutcome.MERGED] == 0


def test_a_batch_must_wait_for_what_was_read_with_it() -> None:
    """If a batch is sent before its queue is notified of a change that the batch contains, the change is sent again, or
    goes back to its origin (R-PLACE)."""
    twice = 0
    for seed in range(18):
        simulation = MeshSimulation(seed, TOPOLOGIES["mesh"], faults=False, waiting=False)
        simulation.run(STEPS)
        simulation.drain()
        twice += sum(count > 1 for count in simulation.crossed.values())
    assert twice


@pytest.mark.parametrize("seed", [*range(SEEDS), *OWED_SEEDS])
def test_a_cluster_without_cascade_still_sends_all_of_its_own_writes(seed: int) -> None:
    """R-OWED: a and b replicate both ways, c fetches from a alone, which does not cascade: whatever b pushes over a's
    writes, c receives every one of them in the end."""
    gives_its_own(seed)


def test_without_the_rule_of_unreplicated_writes_a_write_is_lost() -> None:
    """Without R-OWED some order of events lets a push from b hide a write that c still has to get from a."""
    links = [*both_ways(("a", "b")), Link("a", "c")]
    missed = 0
    for seed in range(20, 72):
        simulation = MeshSimulation(seed, links, unreplicated_check=False)
        simulation.run(STEPS)
        simulation.drain()
        for made in simulation.made:
            found = simulation.clusters["c"].get(made.key)
            missed += made.cluster == "a" and (found is None or not covers(found.clock, made.dot))
        if missed:
            break
    assert missed


def test_the_simulation_covers_every_kind_of_event() -> None:
    """Concurrent writes, deletes, superseded pushes and overflowing windows all happen in the runs above."""
    outcomes, siblings, tombstones, refilled = 0, 0, 0, 0
    for seed in range(4):
        simulation = MeshSimulation(seed, TOPOLOGIES["mesh"])
        simulation.run(STEPS)
        outcomes += simulation.outcomes[PushOutcome.MERGED] * simulation.outcomes[PushOutcome.SUPERSEDED]
        for cluster in simulation.clusters.values():
            refilled += cluster.read_count
            for key in KEYS:
                found = cluster.get(key)
                siblings += found is not None and len(found.siblings) > 1
                tombstones += found is not None and any(s.tombstone for s in found.siblings)
    assert min(outcomes, siblings, tombstones, refilled) > 0

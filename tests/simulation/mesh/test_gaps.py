"""Changes discarded on purpose, in virtual time: gaps cover all of them, and closing the gaps restores them."""

from __future__ import annotations

from collections import Counter

import pytest

from isthmus.queues.cursor_decisions import PUBLISHING_SUSPENDED
from isthmus.queues.queue_documents import CLEARED
from isthmus.queues.window import DISCARDED
from tests.simulation.mesh.cluster import Link
from tests.simulation.mesh.discarding import DiscardingSimulation
from tests.simulation.mesh.scenarios import TOPOLOGIES
from tests.support.samples import seeds

STEPS = 2_500
ROADS = {"one way": [Link("a", "b")], "two-way": TOPOLOGIES["two-way"], "mesh": TOPOLOGIES["mesh"]}


@pytest.mark.parametrize("seed", seeds(range(6)))
@pytest.mark.parametrize("faults", [False, True])
@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("name", ROADS)
def test_every_missing_change_lies_in_a_gap(name: str, discard: bool, faults: bool, seed: int) -> None:
    """R-GAP: overflows, suspended publishing and clears, with cuts, lost leases, restarts and new leaderships between a
    decision and its CURSOR entry: every change that a sink lacks in the end lies in a gap, by offset and by time."""
    simulation = DiscardingSimulation(seed, ROADS[name], discard=discard, acts=True, faults=faults)
    simulation.run(STEPS)
    simulation.drain()
    simulation.only_gaps_are_missing()
    if name == "two-way":
        simulation.full_sync()
        simulation.equal()


def test_the_simulation_covers_every_cause_of_gaps() -> None:
    """Overflows, suspensions and clears all leave gaps in the runs above, and keys are missing in them."""
    seen: Counter[str] = Counter()
    missing = 0
    for seed in range(4):
        simulation = DiscardingSimulation(seed, ROADS["two-way"], discard=True, acts=True)
        simulation.run(STEPS)
        simulation.drain()
        simulation.only_gaps_are_missing()
        seen += simulation.seen
        missing += len({tuple(simulation.values_of(cluster)) for cluster in simulation.clusters.values()}) > 1
    assert set(seen) == {DISCARDED, PUBLISHING_SUSPENDED, CLEARED}
    assert missing

"""Queues that operators move while clusters replicate to each other, in virtual time."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.mesh.scenarios import MOVES, SCENARIOS, moves
from tests.support.samples import seeds

SEEDS = len(seeds(range(10)))

KEPT = {"two-way": (23, 587), "mesh": (27,), "chain": (34,)}
"""Failed while changes in a gap did not count as unreplicated for its queue, and while the previous owner settled rows
for the next one."""

RUNS = [(name, seed) for name in MOVES for seed in sorted({*range(SEEDS), *KEPT.get(name, ())})]


@pytest.mark.parametrize(("name", "seed"), RUNS)
def test_no_write_of_a_source_is_missing_after_queue_moves(name: str, seed: int) -> None:
    """R-OWED, R-GAP, R-DECREE: queues are released to other clusters, placed, registered from 0 and from a time,
    suspended and cleared, under faults: each write of a source is at each cluster that fetches from it, whatever origin
    its row has, or in a gap by offset and by time, or older than the position at which the queue was made to begin."""
    moves(name, seed)


def test_queues_move_in_every_way() -> None:
    """Releases, places and late registrations happen in the runs above, and change who owns a queue."""
    seen: Counter[str] = Counter()
    owners = 0
    for seed in range(4):
        simulation = moves("star", seed)
        seen += simulation.moves
        owners += sum(bool(link.moved) for link in simulation.links)
    assert seen.keys() == {"released", "placed", "registered"}
    assert owners


def test_every_scenario_runs() -> None:
    """Each scenario of the nightly run passes with one seed."""
    for scenario in SCENARIOS.values():
        scenario(11)

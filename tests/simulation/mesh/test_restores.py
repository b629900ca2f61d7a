"""Clusters that are restored from backups, in virtual time: what they lost and others hold is never replaced unseen."""

from __future__ import annotations

from contextlib import suppress

import pytest

from isthmus.repl.coordinator.write_batch import ForgedClock
from tests.simulation.mesh.restoring import RestoringSimulation
from tests.simulation.mesh.scenarios import TOPOLOGIES, restores
from tests.support.samples import seeds


@pytest.mark.parametrize("seed", seeds(range(40)))
@pytest.mark.parametrize("name", ["two-way", "mesh", "chain"])
def test_a_restored_cluster_gives_no_dot_twice_and_replaces_nothing_unseen(name: str, seed: int) -> None:
    """R-ACTOR, H41: after clusters went back to backups, in the same epoch and with the offsets given again, every
    write that another cluster ever stored is in all clusters once they are compared, unless a client that had seen it
    replaced it."""
    restores(name, seed)


def test_clusters_are_restored_and_have_lost_writes_that_others_hold() -> None:
    """The runs above restore clusters, and clusters that continue under their old actor fail them: their dots stand for
    two contents, their clocks cover writes that no client had seen, and what comes back looks forged."""
    restored = found = 0
    for seed in range(24):
        simulation = RestoringSimulation(seed, TOPOLOGIES["two-way"], renewed=False)
        whole = False
        with suppress(AssertionError, ForgedClock):
            simulation.run(2_000)
            simulation.drain()
            simulation.full_sync()
            simulation.forget_lost()
            simulation.equal()
            whole = True
        restored += simulation.restored
        found += not whole
    assert restored >= 8
    assert found >= 5

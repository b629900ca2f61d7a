"""Disks that fill up, in the simulator: nothing is lost, nodes with space lead, and all replicas recover (H38)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.simulation.cluster.full_disks import FillingProcess, FullDiskSimulation
from tests.simulation.cluster.simulator import run_seed
from tests.support.samples import floors, seeds

SEEDS = range(40)
MANY = range(40, 2_040)

EXPECTED = {
    "disk_none": 30, "disk_low": 60, "refused_out-of-storage": 200, "dropped_by_a_disk": 100,
    "barriers_on_a_low_disk": 5, "elections": 40, "acked": 2_000,
}  # fmt: skip
"""Minimum number of occurrences over SEEDS; about a third of those in a run."""


def test_no_invariant_breaks_while_disks_fill_up() -> None:
    """All invariants hold after every event, a full disk accepts nothing, and every seed becomes healthy and quiet
    again."""
    counts: Counter[str] = Counter()
    for seed in seeds(SEEDS):
        counts.update(run_seed(seed, simulation_class=FullDiskSimulation).counts)
    missing = {name: (counts[name], least) for name, least in floors(EXPECTED).items() if counts[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


def test_a_replica_that_takes_any_nomination_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check a candidate's barrier is appended to a full disk, which is caught."""
    monkeypatch.setattr(FillingProcess, "_tell", lambda _process, _replica: None)
    found = ""
    for seed in SEEDS:
        try:
            run_seed(seed, simulation_class=FullDiskSimulation)
        except AssertionError as error:
            found = str(error)
            break
    assert found.startswith("I-DISK-FULL")


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_many_seeds() -> None:
    """No invariant breaks over many more seeds."""
    for seed in MANY:
        run_seed(seed, simulation_class=FullDiskSimulation)

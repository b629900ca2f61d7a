"""Each deliberate defect is caught by some seed of a fixed range, by an invariant that fits it."""

from __future__ import annotations

import pytest

from tests.simulation.cluster import simulator
from tests.simulation.cluster.fault_mixes import cuts, losses, moves, redirects, settings, storms
from tests.simulation.cluster.mutants import DEFECTS, Defect
from tests.simulation.cluster.simulator import run_seed
from tests.support.samples import seeds

SEEDS = range(60)

DEFECT_HEAL_LIMIT_MS = 40_000
"""Virtual time in which a simulation with a defect must become healthy: most sound ones need a tenth of it."""


def caught(defect: Defect) -> str:
    """The first violation that some seed shows; empty when none does."""
    for seed in (defect.seed, *SEEDS):
        try:
            run_seed(seed, plan=defect.plan() if defect.plan is not None else None, decide=defect.decide)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: (defect.put_in or defect.decide).__name__)
def test_a_defect_is_caught(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulator notices the defect, and for the right reason."""
    monkeypatch.setattr(simulator, "HEAL_LIMIT_MS", DEFECT_HEAL_LIMIT_MS)
    if defect.put_in is not None:
        defect.put_in(monkeypatch)
    assert caught(defect).startswith(defect.names)


@pytest.mark.parametrize("plan", [storms(), storms(store_held=0.4), losses(), settings, cuts(), moves(), redirects()])
def test_the_sound_core_passes_the_mixes_that_catch_defects(plan: object) -> None:
    """Without a defect the special mixes pass, so a failure under a mutant is due to its defect."""
    assert callable(plan)
    for seed in seeds(range(8)):
        run_seed(seed, plan=plan())

"""Each deliberate defect is found by some seed of its own, and the sound product passes the same seeds."""

from __future__ import annotations

import pytest

from tests.simulation.world.mutants import MUTANTS, Mutant
from tests.simulation.world.plan import Plan, drawn
from tests.simulation.world.run import run
from tests.support.samples import WHOLE

TRIED = [mutant for mutant in MUTANTS if WHOLE or mutant.quick]

SEEDS = sorted({seed for mutant in TRIED for seed in mutant.seeds})


def plan_of(seed: int) -> Plan:
    """A world that is a little shorter than the usual one."""
    return drawn(seed, operations=200, acts=25)


@pytest.mark.parametrize("mutant", TRIED, ids=lambda mutant: mutant.put_in.__name__)
def test_a_defect_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A world with the defect does not end well."""
    mutant.put_in(monkeypatch)
    assert any(run(plan_of(seed)).failures for seed in mutant.seeds)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_sound_product_passes_the_seeds_that_find_defects(seed: int) -> None:
    """Without a defect the same worlds end well, so that what they find is due to the defect."""
    assert run(plan_of(seed)).failures == ()

"""Each deliberate defect is found within its seeds, by the oracle that is to find it; the sound product passes the same
plans."""

from __future__ import annotations

import pytest

from tests.simulation.world.mutants import MUTANTS, Draw, Mutant
from tests.simulation.world.run import run
from tests.support.samples import WHOLE

QUICK_LEAST = 20

TRIED = [mutant for mutant in MUTANTS if WHOLE or mutant.quick]

SOUND = sorted({(mutant.draw, seed) for mutant in TRIED for seed in range(mutant.seeds)})


@pytest.mark.parametrize("mutant", TRIED, ids=lambda mutant: mutant.put_in.__name__)
def test_a_defect_is_found(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one of its seeds its oracle speaks."""
    mutant.put_in(monkeypatch)
    assert any(
        failure.startswith(f"{mutant.oracle}:")
        for seed in range(mutant.seeds)
        for failure in run(mutant.draw.plan(seed)).failures
    )


@pytest.mark.parametrize(("draw", "seed"), SOUND)
def test_the_sound_product_passes_the_plans_that_find_defects(draw: Draw, seed: int) -> None:
    """Without a defect every oracle is content with them, so that what they find is due to the defect."""
    assert run(draw.plan(seed)).failures == ()


def test_enough_defects_are_tried_in_each_run() -> None:
    """Forty at least in whole runs, twenty in quick ones, each once."""
    assert len({mutant.put_in for mutant in MUTANTS}) == len(MUTANTS) >= 2 * QUICK_LEAST
    assert sum(mutant.quick for mutant in MUTANTS) >= QUICK_LEAST

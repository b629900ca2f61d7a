"""Each deliberate defect is caught by some seed of a fixed range, by an invariant that fits it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from repl.isr.replica import Replica
from tests.sim import mutants
from tests.sim.faults import Plan
from tests.sim.world import run_seed

SEEDS = range(40)


def resigning() -> Plan:
    """Nodes that stop in order while the metastore answers badly."""
    return Plan.only("stop", "outage", lost=0.3, held=0.2)


def caught(seeds: range, plan: Callable[[], Plan] | None = None, **defect: Any) -> str:
    """The first violation that some seed shows; empty when none does."""
    for seed in seeds:
        try:
            run_seed(seed, plan=plan() if plan is not None else None, **defect)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize(
    ("defect", "names", "plan"),
    [
        (mutants.AppliesBeforeDurable, ("I-COMMIT-RULE",), None),
        (mutants.CommitsWithoutBeingInSync, ("I-COMMIT-RULE",), None),
        (mutants.CommitsBeforeBarrier, ("I-COMMIT-RULE",), None),
        (mutants.TrustsRecoveredTail, ("I-APPLY",), None),
        (mutants.ResumesLeadership, ("I-EPOCH-ONE", "I-READ-LIN"), None),
        (mutants.BelievesOldRecords, ("I-EPOCH-MONO",), None),
        (mutants.ServesBeforeBarrierApplied, ("I-READ-LIN",), None),
        (mutants.ActsBeforeEpochIsDurable, ("I-EPOCH-MONO",), None),
        (mutants.AppendsWhatItRefuses, ("I-NO-FALSE-NACK",), None),
        (mutants.ForgetsUndecidedWrite, ("I-CONVERGE",), resigning),
        (mutants.TakesUndecidedForRefused, ("I-CONVERGE",), resigning),
    ],
)
def test_a_defect_of_the_core_is_caught(
    defect: type[Replica], names: tuple[str, ...], plan: Callable[[], Plan] | None
) -> None:
    """The simulator notices the defect, and for the right reason."""
    assert caught(SEEDS, plan, replica_class=defect).startswith(names)


@pytest.mark.parametrize(
    ("defect", "names"),
    [
        (mutants.elect_in_old_epoch, ("I-CONVERGE", "I-EPOCH")),
        (mutants.elect_by_node, ("I-CONVERGE",)),
        (mutants.elect_unheard, ("elected before the barrier was durable", "I-CONVERGE")),
    ],
)
def test_a_defect_of_the_election_is_caught(defect: Callable[..., object], names: tuple[str, ...]) -> None:
    """The simulator notices the defect, and for the right reason."""
    assert caught(SEEDS, decide=defect).startswith(names)


def test_the_sound_core_passes_the_seeds_that_catch_defects() -> None:
    """Without a defect the special mixes are harmless, so what was caught was the defect."""
    assert caught(range(12), resigning) == ""

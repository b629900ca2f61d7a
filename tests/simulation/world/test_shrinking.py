"""Shrinking of plans, and plans as text; no world is run."""

from __future__ import annotations

from tests.simulation.world.clusters import Shape
from tests.simulation.world.kept import plan_of, text_of
from tests.simulation.world.plan import Plan, Step
from tests.simulation.world.shrinking import shrunk

PLAN = Plan("7", Shape((2, 1), 2), tuple(Step(number / 10, f"step-{number}", number) for number in range(100)))


def test_only_the_steps_that_matter_are_left() -> None:
    """A failure that needs three steps of a hundred is shrunk to these, in their order."""
    needed = {3, 50, 99}

    def fails(plan: Plan) -> bool:
        return needed <= {step.seed for step in plan.steps}

    assert [step.seed for step in shrunk(PLAN, fails).steps] == sorted(needed)


def test_shrinking_ends() -> None:
    """After the given number of runs the smallest plan so far is the answer, and it still fails."""
    runs = 0

    def fails(plan: Plan) -> bool:
        nonlocal runs
        runs += 1
        return len(plan.steps) >= 40

    assert len(shrunk(PLAN, fails, runs_max=5).steps) >= 40
    assert runs == 5


def test_a_plan_is_the_same_after_it_was_written() -> None:
    """Text of a plan gives the same plan."""
    assert plan_of(text_of(PLAN)) == PLAN

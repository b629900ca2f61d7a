"""Fewer steps that still fail: what is left of a plan tells what met what."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.world.plan import Plan


def shrunk(plan: Plan, fails: Callable[[Plan], bool], *, runs_max: int = 400) -> Plan:
    """The plan with as few steps as `fails` still holds for, found by leaving out ever smaller parts (delta debugging);
    no step of it can be left out alone, unless `runs_max` runs were not enough."""
    runs = 0
    parts = 2
    while len(plan.steps) > 0:
        size = max(1, len(plan.steps) // parts)
        smaller = None
        for start in range(0, len(plan.steps), size):
            if runs >= runs_max:
                return plan
            runs += 1
            tried = plan.without(range(start, start + size))
            if fails(tried):
                smaller = tried
                break
        if smaller is not None:
            plan = smaller
            parts = max(2, parts - 1)
        elif size == 1:
            return plan
        else:
            parts = min(len(plan.steps), parts * 2)
    return plan

"""Fewer steps that still fail: what is left of a plan tells what met what."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.world.plan import Plan


def shrunk(plan: Plan, fails: Callable[[Plan], bool], *, runs_max: int = 400) -> Plan:
    """The plan with as few steps as `fails` still holds for, found by leaving out ever smaller parts, each once in a
    round; no step of it can be left out alone, unless `runs_max` runs were not enough."""
    size, runs = len(plan.steps) // 2, 0
    while size:
        at, before = 0, len(plan.steps)
        while at < len(plan.steps):
            if runs >= runs_max:
                return plan
            runs += 1
            tried = plan.without(range(at, at + size))
            if fails(tried):
                plan = tried
            else:
                at += size
        if size > 1:
            size = min(size // 2, max(1, len(plan.steps) // 2))
        elif len(plan.steps) == before:
            size = 0
    return plan

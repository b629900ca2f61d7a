"""Runs a plan: start, steps, healing, quiet, judgement."""

from __future__ import annotations

import gc
import time
import traceback
from typing import NamedTuple

from tests.simulation.world import acts, acts_riak, faults, oracles, workload  # noqa: F401 -- they teach the world their steps
from tests.simulation.world.kernel import SECOND, Stuck
from tests.simulation.world.plan import Plan, drawn
from tests.simulation.world.world import World

QUIET_S = 300.0
"""Within this virtual time a healed world is quiet."""


class Outcome(NamedTuple):
    """How a world ended."""

    plan: Plan
    failures: tuple[str, ...]
    """One line each; none: all oracles are content."""
    story: tuple[str, ...]
    digest: str
    """Of all events; the same for the same plan and program."""
    virtual_s: float
    events: int


def run(plan: Plan) -> Outcome:
    """Live through a plan."""
    failures: list[str] = []
    with World(plan.seed, plan.shape) as world:
        world.oracles = oracles.all_of(world)
        try:
            world.start()
            world.prepare()
            world.perform(plan.steps)
            world.heal()
            world.wait_until_quiet(QUIET_S)
            for oracle in world.oracles:
                failures += [f"{oracle.name}: {what}" for what in oracle.judge(world)]
        except (AssertionError, Stuck) as error:
            failures.append(f"world: {error}")
            world.story.tell("world", "".join(traceback.format_exception(error)))
        failures[:0] = world.failures
        return Outcome(
            plan,
            tuple(failures),
            tuple(world.story.lines),
            world.kernel.digest,
            world.kernel.now_ns / SECOND,
            world.kernel.events_run,
        )


class Told(NamedTuple):
    """How the world of a seed ended."""

    seed: int
    failures: tuple[str, ...]
    digest: str
    virtual_s: float
    cpu_s: float


def told_of(seed: int) -> Told:
    """Run a seed."""
    began_s = time.process_time()
    outcome = run(drawn(seed))
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()  # modules, which no later collection needs to look at
    return Told(seed, outcome.failures, outcome.digest, outcome.virtual_s, time.process_time() - began_s)

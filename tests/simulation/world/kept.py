"""Plans as text, so that a test keeps the fewest steps that showed a defect.

A file of `kept/` is one such plan, with what it found. It has the steps themselves, not the seed that they were drawn
from, so that it stays the same when plans are drawn otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tests.simulation.world.clusters import Shape
from tests.simulation.world.plan import Plan, Step

KEPT: Final = Path(__file__).parent / "kept"


def text_of(plan: Plan, found: str = "") -> str:
    """A plan as JSON, one step a line; `found`: what went wrong before it was mended."""
    head = {"seed": plan.seed, "shape": plan.shape._asdict()}
    steps = ",\n".join(f"  {json.dumps(list(step))}" for step in plan.steps)
    return f'{{"found": {json.dumps(found)},\n"plan": {json.dumps(head)},\n"steps": [\n{steps}\n]}}'


def plan_of(text: str) -> Plan:
    """The plan that `text_of` wrote."""
    read = json.loads(text)
    shape = read["plan"]["shape"]
    for name in ("nodes", "filters"):
        shape[name] = tuple(shape[name])
    return Plan(read["plan"]["seed"], Shape(**shape), tuple(Step(*each) for each in read["steps"]))

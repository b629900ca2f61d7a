"""Plans as text, so that a test can keep the fewest steps that showed a defect."""

from __future__ import annotations

import json

from tests.simulation.world.clusters import Shape
from tests.simulation.world.plan import Plan, Step


def text_of(plan: Plan) -> str:
    """A plan as JSON, one step a line."""
    head = {"seed": plan.seed, "shape": plan.shape._asdict()}
    steps = ",\n".join(f"  {json.dumps(list(step))}" for step in plan.steps)
    return f'{{"plan": {json.dumps(head)}, "steps": [\n{steps}\n]}}'


def plan_of(text: str) -> Plan:
    """The plan that `text_of` wrote."""
    read = json.loads(text)
    shape = read["plan"]["shape"]
    for name in ("nodes", "filters"):
        shape[name] = tuple(shape[name])
    return Plan(read["plan"]["seed"], Shape(**shape), tuple(Step(*each) for each in read["steps"]))

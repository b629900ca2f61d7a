"""What is done in a world, and when: drawn from the seed before it begins.

Each step has a seed of its own, from which it chooses its targets when its time has come. So a plan of which steps are
left out does the same with the others, and a shrinker can look for the fewest that still fail.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from random import Random
from typing import NamedTuple

from tests.simulation.world.clusters import Shape
from tests.simulation.world.steps import KINDS, StepKind, StepOf, possible

SECONDS = 60.0
"""Virtual time over which steps are spread."""

FAULT_SHARE = 3
"""One of so many acts is a fault: with more, most acts of operators meet a cluster that refuses them."""


SPECIAL = 6
"""Steps more that a world does of those that need a feature of its shape, if it has any."""


class Step(NamedTuple):
    """One thing that a client, an operator or a machine does."""

    at_s: float
    """Virtual seconds after the world is up."""
    name: str
    """One of `steps.STEPS`."""
    seed: int
    """Of its own choices."""


class Plan(NamedTuple):
    """All steps of a world, in the order of time."""

    seed: str
    shape: Shape
    steps: tuple[Step, ...]

    def without(self, left_out: Iterable[int]) -> Plan:
        """The plan without the steps at these places."""
        gone = set(left_out)
        return self._replace(steps=tuple(step for at, step in enumerate(self.steps) if at not in gone))


def _counts(operations: int, acts: int, named: Mapping[StepKind, list[str]]) -> tuple[tuple[StepKind, int], ...]:
    faults = acts // FAULT_SHARE
    if not named[StepKind.FAULT]:
        faults = 0
    elif not named[StepKind.ACT]:
        faults = acts
    return (StepKind.OPERATION, operations), (StepKind.ACT, acts - faults), (StepKind.FAULT, faults)


def drawn(
    seed: int | str,
    *,
    shape: Shape | None = None,
    operations: int = 300,
    acts: int = 30,
    seconds: float = SECONDS,
    among: Collection[str] = (),
) -> Plan:
    """The plan of a seed: `operations` of clients, `acts` of operators and machines, of which each third is a fault.
    `among`: names of steps, of which alone there are any, if the shape has what they need; acts are all of the kind of
    which there are any."""
    random, special = Random(f"{seed}/plan"), Random(f"{seed}/features")
    if shape is None:
        shape = Shape.drawn(random).with_features(special)
        shape = shape._replace(
            gathered=max(shape.nodes) > 1 and Random(f"{seed}/leaders").random() < 0.4,
            riak=not shape.tls and Random(f"{seed}/riak").random() < 0.1,
        )
    steps = []
    named = {
        kind: [name for name in (possible(kind, shape) if among else known) if _drawn_among(known[name], among)]
        for kind, known in KINDS.items()
    }
    for kind, count in _counts(operations, acts, named):
        names = named[kind]
        weights = [KINDS[kind][name].weight for name in names]
        for name in random.choices(names, weights, k=count) if names else ():
            steps.append(Step(round(random.random() * seconds, 6), name, random.getrandbits(48)))
    if not among and acts:
        for name in _special(special, shape):
            steps.append(Step(round(special.random() * seconds, 6), name, special.getrandbits(48)))
    return Plan(str(seed), shape, tuple(sorted(steps)))


def _drawn_among(each: StepOf, among: Collection[str]) -> bool:
    return each.name in among if among else not each.needs


def _special(random: Random, shape: Shape) -> list[str]:
    """Steps that need a feature of the shape, some of each feature."""
    found = [KINDS[kind][name] for kind in StepKind for name in possible(kind, shape) if KINDS[kind][name].needs]
    return [each.name for each in random.choices(found, [each.weight for each in found], k=SPECIAL)] if found else []

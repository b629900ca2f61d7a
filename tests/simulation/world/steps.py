"""The things that can happen in a world, by name: clients' operations, and acts of operators and machines.

A module that teaches the world something decorates a coroutine with `step`. It gets a `Doing`: the world, and chances
that are its own. What an act leaves broken it registers with `Doing.heal_later`, to be undone when the world heals.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tests.simulation.world.history import DeclaredLoss, Scope

if TYPE_CHECKING:
    from tests.simulation.world.clusters import Shape, WorldCluster
    from tests.simulation.world.node import WorldNode
    from tests.simulation.world.world import World

T = TypeVar("T")


class StepKind(Enum):
    """Who does it."""

    OPERATION = "operation"
    """A client."""
    ACT = "act"
    """An operator."""
    FAULT = "fault"
    """A machine, a disk, a network or a metastore."""


class Doing:
    """One step that is being done."""

    def __init__(self, world: World, name: str, seed: int) -> None:
        self.world = world
        self.name = name
        self.chance = Random(seed)

    def tell(self, what: str) -> None:
        """Add to the story what was done."""
        self.world.story.tell(self.name, what)

    def heal_later(self, what: str, undo: Callable[[], object]) -> None:
        """`undo` is called when the world heals."""
        self.world.disturbances += 1
        self.world.broken.append((what, undo))

    def undo_later(self, what: str, undo: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What an operator changed, and takes back once nothing is broken: the newest change first, each once."""
        self.world.changed.pop(what, None)
        self.world.changed[what] = undo

    def recover_later(self, what: str, recover: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What a cluster needs before anything else is taken back, once nothing is broken."""
        self.world.recoveries.pop(what, None)
        self.world.recoveries[what] = recover

    def declare_loss(self, scope: Scope, cluster: str, *, queue: str = "", bucket_type: str = "") -> DeclaredLoss:
        """Call this before an act that may lose what clients were promised, and `loss_is_over` after it."""
        loss = DeclaredLoss(scope, cluster, self.name, queue, bucket_type, self.world.kernel.now_ns)
        self.world.history.losses.append(loss)
        return loss

    def loss_is_over(self, loss: DeclaredLoss) -> None:
        """What clients are promised from now on is not concerned by the loss."""
        loss.until_ns = self.world.kernel.now_ns

    def no_loss(self, loss: DeclaredLoss) -> None:
        """The act was refused, and nothing can be lost by it."""
        self.world.history.losses.remove(loss)

    def cluster(self) -> WorldCluster:
        """A cluster by chance."""
        return self.chance.choice(list(self.world.clusters.values()))

    def node(self, among: Callable[[WorldNode], bool] = lambda _: True) -> WorldNode | None:
        """A node by chance, of those that satisfy `among`; None if there is none."""
        found = [node for node in self.world.nodes if among(node)]
        return self.chance.choice(found) if found else None


class StepOf(NamedTuple):
    """A kind of step."""

    name: str
    perform: Callable[[Doing], Coroutine[Any, Any, None]]
    weight: int
    needs: str
    """The field of the world's shape without which there is nothing to do; "" for none."""
    covers: frozenset[str]
    """The admin routes ("POST /admin/queues/{queue}/suspend") and commands ("queue suspend") that it does."""


KINDS: dict[StepKind, dict[str, StepOf]] = {kind: {} for kind in StepKind}


def step(
    kind: StepKind, *, weight: int = 1, needs: str = "", covers: tuple[str, ...] = ()
) -> Callable[[Callable[[Doing], Coroutine[Any, Any, None]]], Callable[[Doing], Awaitable[None]]]:
    """Teach the world a step; its name is the function's, with dashes. One that `needs` a feature is drawn in worlds of
    a shape that has it, beside all others."""

    def decorated(perform: Callable[[Doing], Coroutine[Any, Any, None]]) -> Callable[[Doing], Awaitable[None]]:
        name = perform.__name__.replace("_", "-")
        assert all(name not in known for known in KINDS.values()), name
        KINDS[kind][name] = StepOf(name, perform, weight, needs, frozenset(covers))
        return perform

    return decorated


def possible(kind: StepKind, shape: Shape) -> list[str]:
    """The names of the steps of a kind that worlds of a shape can do."""
    return [name for name, known in KINDS[kind].items() if not known.needs or getattr(shape, known.needs)]


def found(name: str) -> StepOf:
    """The step of this name."""
    for known in KINDS.values():
        if name in known:
            return known[name]
    raise KeyError(name)

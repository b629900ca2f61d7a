"""Faults while replicas move: the replication factor changes, nodes come and are drained, and meanwhile nodes are
killed, stopped and paused, including the one with the active controller.

Each act ends with the replicas that it began with. Collected by `tests.system.faults.nemeses`.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

from tests.system.faults.cluster import ClusterNode
from tests.system.faults.nemesis import SESSION_S, FaultContext, Nemesis

FACTOR: Final = "/admin/bucket-types/default/replication-factor"
MOVES: Final = "/admin/moves"
DRAIN: Final = "/admin/nodes/drain"
DONE_TIMEOUT_S: Final = 90.0
TAKEN_TIMEOUT_S: Final = 90.0
"""An order is refused while fewer nodes live than it needs, and on a busy machine one that was killed takes half a
minute to start."""

SPARE: Final = "n4"
UP_TIMEOUT_S: Final = 60.0


def replication_factor(context: FaultContext) -> None:
    """Reduce every partition's replicas by one, then restore them; each time a node is hurt before the order is
    done."""
    count = len(context.cluster.nodes)
    for factor in (count - 1, count):
        _hurt_until_done(context, _ordered(context, FACTOR, {"replication_factor": factor}), context.victim)


def drained(context: FaultContext) -> None:
    """A node joins, replaces another one, is drained in its turn, and leaves; each time a node is hurt before the order
    is done, sources and targets of the moves included."""
    cluster, node = context.cluster, context.victim()
    spare = _come(context)
    replaced = {"kind": "replace", "nodes": [node.name, spare.name]}
    for path, wish in ((MOVES, replaced), (DRAIN, {"nodes": [spare.name]})):
        number = _ordered(context, path, wish)
        _hurt_until_done(context, number, lambda: context.chance.choice([node, spare, context.victim()]))
    spare.terminate()
    cluster.remove(spare.name)
    context.request_admin(f"/admin/nodes/{spare.name}/remove", {"by": "tests"})


def _come(context: FaultContext) -> ClusterNode:
    """Start one more node with an empty disk, and wait until the others know it."""
    shutil.rmtree(context.cluster.zookeeper.directory.with_name(SPARE), ignore_errors=True)
    node = context.cluster.add(SPARE)
    deadline = time.monotonic() + UP_TIMEOUT_S
    while not any(row["name"] == SPARE and row["state"] == "live" for row in _rows(context, "/admin/nodes", "nodes")):
        assert time.monotonic() < deadline, f"{SPARE} does not come"
        time.sleep(0.1)
    context.timeline.note(f"{SPARE} is there")
    return node


def _ordered(context: FaultContext, path: str, wish: Mapping[str, object]) -> int:
    """The number of an order."""
    number = context.request_admin(path, {**wish, "by": "tests"}, TAKEN_TIMEOUT_S)["order"]
    assert isinstance(number, int)
    return number


def _hurt_until_done(context: FaultContext, number: int, victim: Callable[[], ClusterNode]) -> None:
    """Hurt a node a moment after the order, and again until the order is done. Raises AssertionError when it is never
    done, or ends otherwise."""
    deadline = time.monotonic() + DONE_TIMEOUT_S
    hurts = context.chance.randrange(1, 4)
    while (outcome := _outcome(context, number)) is None:
        assert time.monotonic() < deadline, f"order {number} is not done: {_rows(context, MOVES, 'orders')}"
        context.wait(0.0, 0.6)
        if hurts:
            hurts -= 1
            _hurt(context, victim())
    assert outcome == "done", f"order {number} ended as {outcome}"
    context.timeline.note(f"order {number} is done")


def _hurt(context: FaultContext, node: ClusterNode) -> None:
    match context.chance.choice(["kill", "stop", "pause"]):
        case "kill":
            node.kill()
            context.timeline.note(f"killed {node.name}")
            context.wait(0.0, SESSION_S)
            context.cluster.start(node)
        case "stop":
            node.terminate()
            context.timeline.note(f"stopped {node.name}")
            context.cluster.start(node)
        case _:
            node.send(signal.SIGSTOP)
            context.timeline.note(f"paused {node.name}")
            context.wait(0.2, SESSION_S * 1.5)
            node.send(signal.SIGCONT)
    context.timeline.note(f"{node.name} goes on")


def _outcome(context: FaultContext, number: int) -> str | None:
    found = (row["outcome"] for row in _rows(context, MOVES, "ended") if row["order"] == number)
    return next((str(outcome) for outcome in found), None)


def _rows(context: FaultContext, path: str, name: str) -> list[dict[str, object]]:
    """A listing of whichever node answers; empty when none does."""
    answers = (node.ask(path) for node in context.cluster.nodes.values())
    return next((list(answer[name]) for answer in answers if answer is not None), [])


PLACEMENTS: Final[Mapping[str, Nemesis]] = {
    "replication-factor": Nemesis(replication_factor, nodes=3),
    "drained": Nemesis(drained, nodes=3, spare=SPARE),
}
"""Nemeses by their names on the command line."""

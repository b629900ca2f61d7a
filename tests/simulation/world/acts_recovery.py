"""Unsafe recovery: what operators do when a cluster cannot go on by itself."""

from __future__ import annotations

from tests.simulation.world.admin import act, look
from tests.simulation.world.history import Scope
from tests.simulation.world.steps import Doing, StepKind, step


@step(StepKind.ACT, weight=1, covers=("POST /admin/partitions/{partition}/force-leader",))
async def force_leader(doing: Doing) -> None:
    """A partition without a leader gets one, whatever that replica lacks; one that has a leader keeps it."""
    cluster = doing.cluster()
    found = await look(doing, cluster, "/admin/partitions")
    rows = (found or {}).get("partitions") or ()
    offline = [row["partition"] for row in rows if row.get("status") != "online"]
    partition = doing.chance.choice(offline or list(range(doing.world.shape.partitions)))
    node = doing.chance.choice(list(cluster.nodes))
    path = f"/admin/partitions/{partition}/force-leader"
    dry_run = doing.chance.random() < 0.2
    loss = doing.declare_loss(Scope.CLUSTER, cluster.name)
    answer = await act(doing, cluster, path, node=node, dry_run=dry_run, allowed={"bad-input"})
    if dry_run or (answer is not None and not answer.done and not answer.unknown):
        doing.no_loss(loss)


@step(StepKind.ACT, weight=1, covers=("POST /admin/cluster/reseed",))
async def cluster_reseed(doing: Doing) -> None:
    """Records that a metastore forgot are made anew; there are none, unless it went back."""
    cluster = doing.cluster()
    incomplete = doing.chance.random() < 0.2
    dry_run = doing.chance.random() < 0.2
    loss = doing.declare_loss(Scope.CLUSTER, cluster.name)
    answer = await act(doing, cluster, "/admin/cluster/reseed", incomplete=incomplete, dry_run=dry_run)
    ordered = (
        answer is None
        or answer.unknown
        or any(plan.get("outcome") == "ordered" for plan in answer.body.get("partitions", ()))
    )
    if dry_run or not ordered:
        doing.no_loss(loss)

"""Unsafe recovery: what operators do when a cluster cannot go on by itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from tests.simulation.world.acts_backup import reseeded_later
from tests.simulation.world.acts_nodes import start
from tests.simulation.world.admin import act, look
from tests.simulation.world.history import Scope
from tests.simulation.world.node_state import ROOT, records_of
from tests.simulation.world.steps import Doing, StepKind, step

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster

LOST_S: Final = (0.5, 5.0, 15.0)
"""How much of what a metastore has confirmed it loses."""

FOUND_S: Final = (1.0, 5.0, 20.0)
"""After this time an operator does something about a metastore that has gone back."""


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


def _named(cluster: WorldCluster) -> tuple[frozenset[str], ...]:
    """The partitions and nodes that a metastore names: no command restores those that it forgets."""
    tree, root = cluster.ensemble.tree, f"{ROOT}/{cluster.name}"
    return tuple(frozenset(tree.children(f"{root}/{name}") or ()) for name in ("p", "ids"))


InSync = dict[tuple[int, int], tuple[str, ...]]
"""(partition, epoch) -> the members in sync by the record."""


def _in_sync(cluster: WorldCluster) -> InSync:
    """Who is in sync now. A change within an epoch is forgotten for good if the
    processes that knew it end (docs/protocol.md, H32)."""
    return {
        (number, record.epoch): tuple(sorted(member.node for member in record.isr))
        for number, record in records_of(cluster).items()
    }


def _has_changed_within_epochs(one: InSync, other: InSync) -> bool:
    return any(one.get(epoch, members) != members for epoch, members in other.items())


@step(StepKind.FAULT, weight=3, needs="rollback")
async def metastore_goes_back(doing: Doing) -> None:
    """A metastore comes back with the data of some moments ago. After a while an operator goes on with them, or has the
    newest put back after all; then all nodes are started anew, since they stay away from it, and the records are made
    anew (docs/runbooks.md). With all replicas there nothing that was acknowledged is lost; what queues had recorded
    since is."""
    cluster, world = doing.cluster(), doing.world
    ensemble = cluster.ensemble
    old, named, in_sync = ensemble.snapshot(), _named(cluster), _in_sync(cluster)
    await asyncio.sleep(doing.chance.choice(LOST_S))
    newest = ensemble.snapshot()
    if not ensemble.running or newest.tree.zxid == old.tree.zxid or _named(cluster) != named or world.recoveries:
        return  # nothing was lost, or more than this is about
    in_sync_newest = _in_sync(cluster)
    if _has_changed_within_epochs(in_sync, in_sync_newest):
        return
    loss = doing.declare_loss(Scope.QUEUE, cluster.name)
    what = f"the metastore of {cluster.name} has gone back"
    entry = (what, lambda: None)
    world.disturbances += 1
    world.broken.append(entry)
    doing.tell(what)
    ensemble.stop()
    ensemble.put_back(old)
    ensemble.start()
    reseeded_later(doing, cluster, loss)
    await asyncio.sleep(doing.chance.choice(FOUND_S))
    if doing.chance.random() < 0.3 and not _has_changed_within_epochs(_in_sync(cluster), in_sync_newest):
        doing.tell(f"the metastore of {cluster.name} has its newest data again")
        ensemble.stop()
        ensemble.put_back(newest)
        ensemble.start(elections=1)
    for node in list(cluster.nodes.values()):
        node.machine.kill()
        await start(doing, node, seconds=2.0)
    await act(doing, cluster, "/admin/cluster/reseed", dry_run=True)
    await act(doing, cluster, "/admin/cluster/reseed")
    world.broken.remove(entry)
    world.disturbances += 1

"""Where all copies of a partition but one are complete, and what an operator does where none is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from isthmus.repl.model.record import PartitionStatus
from tests.simulation.world.admin import SETTLED_S, WrongAnswer, act, look
from tests.simulation.world.history import Scope
from tests.simulation.world.kernel import SECOND
from tests.simulation.world.steps import Doing

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.node import WorldNode


def complete_without(cluster: WorldCluster, node: WorldNode) -> bool:
    """Whether every partition of a cluster is online with a member in sync on a node that runs, besides `node`."""
    for each in cluster.running:
        if each is node or each.machine.frozen or each.node is None or not each.node.ready()[0]:
            continue
        records = each.node.services.controller.records
        names = {one.name for one in cluster.running if one is not node and not one.machine.frozen}
        return bool(records) and all(
            record.status is PartitionStatus.ONLINE and {member.node for member in record.isr} & names
            for record in records.values()
        )
    return False


def leaders_forced_later(doing: Doing, cluster: WorldCluster, *, waits_for: WorldNode | None = None) -> None:
    """In the end a partition that waits for a copy which is no more gets the leader that lacks least; of those that
    wait, only the ones that wait for the log of `waits_for`, if it is given."""
    reason = "" if waits_for is None else f"waits for {waits_for.name} (came back with another log"

    async def force() -> None:
        ends_ns = doing.world.kernel.now_ns + round(SETTLED_S * SECOND)
        while doing.world.kernel.now_ns < ends_ns:
            waiting = await offline(doing, cluster, reason)
            if not waiting:
                return
            await asyncio.sleep(30.0)  # an election may be under way
            for partition in sorted(waiting & await offline(doing, cluster, reason)):
                await _forced(doing, cluster, partition)
        raise WrongAnswer(f"{cluster.name}: partitions are offline after a restoration, and leaders cannot be forced")

    whose = cluster.name if waits_for is None else waits_for.name
    doing.recover_later(f"partitions that lost the copies of {whose}", force)


async def offline(doing: Doing, cluster: WorldCluster, reason: str = "") -> set[int]:
    """The partitions that do not serve, with `reason` in why."""
    found = await look(doing, cluster, "/admin/partitions")
    return {
        row["partition"]
        for row in (found or {}).get("partitions") or ()
        if row["status"] != "online" and reason in row["reason"]
    }


async def _forced(doing: Doing, cluster: WorldCluster, partition: int) -> None:
    found = await look(doing, cluster, "/admin/partitions")
    row = next(each for each in (found or {})["partitions"] if each["partition"] == partition)
    path = f"/admin/partitions/{partition}/force-leader"
    plan = await act(doing, cluster, path, node=sorted(row["replicas"])[0], dry_run=True)
    if plan is None or not plan.done:
        return
    known = [copy for copy in plan.body["replicas"] if copy["leo"] is not None]
    if known:
        best = max(known, key=lambda copy: (copy["log_epoch"], copy["leo"], copy["node"]))
        doing.declare_loss(Scope.CLUSTER, cluster.name)
        doing.world.disturbances += 1  # nodes log it as an error
        await act(doing, cluster, path, node=best["node"])

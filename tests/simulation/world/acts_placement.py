"""What operators do to placements: leaders, moves, factors, drains."""

from __future__ import annotations

from typing import Any

from tests.simulation.world.admin import act, insist, look
from tests.simulation.world.clusters import WorldCluster
from tests.simulation.world.steps import Doing, StepKind, step

NOT_NOW = frozenset(("bad-input", "bad-replica-map"))
"""More replicas than live nodes, or a node that is not live."""


@step(StepKind.ACT, weight=9, covers=("POST /admin/leaders/balance",))
async def leader_balance(doing: Doing) -> None:
    """Leaders move as planned."""
    await act(doing, doing.cluster(), "/admin/leaders/balance", dry_run=doing.chance.random() < 0.2)


@step(StepKind.ACT, weight=3, covers=("POST /admin/partitions/assign",))
async def partitions_assign(doing: Doing) -> None:
    """A bucket type with an operator's placement, in one cluster alone; or the check of a placement."""
    cluster = doing.cluster()
    ids = list(range(1, len(cluster.nodes) + 1))
    partitions = [{"id": number, "replicas": _sample(doing, ids)} for number in range(2)]
    only = doing.chance.random() < 0.3
    kind = doing.chance.choice(["placed", "default"])
    await act(
        doing,
        cluster,
        "/admin/partitions/assign",
        bucket_type=kind,
        partitions=partitions,
        validate_only=only,
        allowed=NOT_NOW,
    )


def _sample(doing: Doing, among: list[Any]) -> list[Any]:
    return doing.chance.sample(among, doing.chance.randrange(1, len(among) + 1))


@step(StepKind.ACT, weight=9, covers=("POST /admin/moves",))
async def moves_order(doing: Doing) -> None:
    """Replicas of the default bucket type move: evenly, to where a file says, or from one node to another."""
    cluster, chance = doing.cluster(), doing.chance
    names = list(cluster.nodes)
    count = doing.world.shape.partitions
    factor = chance.randrange(1, len(names) + 1)
    orders: list[dict[str, Any]] = [
        {"kind": "spread"},
        {"kind": "spread", "bucket_type": "default"},
        {
            "kind": "file",
            "bucket_type": "default",
            "partitions": [{"id": number, "replicas": chance.sample(names, factor)} for number in range(count)],
        },
    ]
    if len(names) > 1:
        orders.append({"kind": "replace", "nodes": chance.sample(names, 2)})
    order = chance.choice(orders)
    factor_later(doing, cluster)
    await act(doing, cluster, "/admin/moves", **order, dry_run=chance.random() < 0.1, allowed=NOT_NOW)


def factor_later(doing: Doing, cluster: WorldCluster, kind: str = "default", factor: int | None = None) -> None:
    """In the end a bucket type has as many replicas as in the beginning; None: as many as the cluster had nodes. An
    order that waits for what was broken goes on by itself."""

    async def put_back() -> None:
        wanted = factor or doing.world.shape.nodes[cluster.number - 1]
        await insist(doing, cluster, f"/admin/bucket-types/{kind}/replication-factor", replication_factor=wanted)

    doing.undo_later(f"replicas of {kind} of {cluster.name}", put_back)


@step(StepKind.ACT, weight=6, covers=("POST /admin/moves/cancel",))
async def moves_cancel(doing: Doing) -> None:
    """The newest order, or one by number."""
    cluster = doing.cluster()
    found = await look(doing, cluster, "/admin/moves")
    numbers = [row["order"] for row in (found or {}).get("orders", ())]
    order = doing.chance.choice([None, *numbers])
    await act(doing, cluster, "/admin/moves/cancel", order=order)


@step(StepKind.ACT, weight=6, covers=("POST /admin/bucket-types/{name}/replication-factor",))
async def replication_factor(doing: Doing) -> None:
    """From one to as many as there are nodes."""
    cluster = doing.cluster()
    factor = doing.chance.randrange(1, len(cluster.nodes) + 1)
    factor_later(doing, cluster)
    await act(
        doing,
        cluster,
        "/admin/bucket-types/default/replication-factor",
        replication_factor=factor,
        dry_run=doing.chance.random() < 0.1,
        allowed=NOT_NOW,
    )


@step(StepKind.ACT, weight=6, covers=("POST /admin/nodes/drain",))
async def node_drain(doing: Doing) -> None:
    """All replicas off a node; or it may have some again."""
    cluster = doing.cluster()
    name = doing.chance.choice(list(cluster.nodes))
    undo = doing.chance.random() < 0.3
    factor_later(doing, cluster)
    undrained_later(doing, cluster, name)
    await act(doing, cluster, "/admin/nodes/drain", nodes=[name], undo=undo, allowed=NOT_NOW)


def undrained_later(doing: Doing, cluster: WorldCluster, name: str) -> None:
    """In the end no node is drained, and that before factors are taken back, which need all nodes."""

    async def undrain() -> None:
        await insist(doing, cluster, "/admin/nodes/drain", nodes=[name], undo=True, over={"unknown"})

    doing.recover_later(f"drain of {name}", undrain)

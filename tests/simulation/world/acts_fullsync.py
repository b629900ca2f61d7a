"""What operators do to full-sync."""

from __future__ import annotations

from typing import Any

from tests.simulation.world.acts_queues import cluster_wall_ms, node_or_all, receivers
from tests.simulation.world.admin import act, insist
from tests.simulation.world.clusters import WorldCluster
from tests.simulation.world.steps import Doing, StepKind, step

KINDS = ("all", "day", "hour", "range", "auto")

WIDER = frozenset(("bad-input",))
"""A wider suspension stays, or this node does not have the full-sync (any more)."""


def checker(doing: Doing) -> tuple[WorldCluster, str]:
    """A cluster that compares itself with another one, and the name of that full-sync."""
    cluster = doing.chance.choice([each for each in doing.world.clusters.values() if receivers(doing, each)])
    return cluster, doing.chance.choice(receivers(doing, cluster))


@step(StepKind.ACT, weight=12, covers=("POST /admin/fullsync/run",))
async def fullsync_run(doing: Doing) -> None:
    """A check now, on some node."""
    cluster, name = checker(doing)
    kind, peer = doing.chance.choice(KINDS), doing.chance.choice([None, name])
    node = doing.chance.choice([None, *cluster.nodes])
    await act(doing, cluster, "/admin/fullsync/run", kind=kind, peer=peer, node=node, allowed={"bad-input"})


@step(StepKind.ACT, weight=6, covers=("POST /admin/fullsync/suspend",))
async def fullsync_suspend(doing: Doing) -> None:
    """One or all, on a node or on all."""
    cluster, name = checker(doing)
    checking_later(doing, cluster)
    peer = doing.chance.choice([None, name])
    await act(doing, cluster, "/admin/fullsync/suspend", peer=peer, node=node_or_all(doing, cluster))


def checking_later(doing: Doing, cluster: WorldCluster) -> None:
    """In the end nothing is suspended."""

    async def resume() -> None:
        await insist(doing, cluster, "/admin/fullsync/resume")

    doing.undo_later(f"suspensions of full-sync of {cluster.name}", resume)


@step(StepKind.ACT, weight=6, covers=("POST /admin/fullsync/resume",))
async def fullsync_resume(doing: Doing) -> None:
    """Ends suspensions, if there are any."""
    cluster, name = checker(doing)
    peer, node = doing.chance.choice([None, name]), node_or_all(doing, cluster)
    await act(doing, cluster, "/admin/fullsync/resume", peer=peer, node=node, allowed=WIDER)


@step(StepKind.ACT, weight=6, covers=("POST /admin/fullsync/set",))
async def fullsync_set(doing: Doing) -> None:
    """Schedules and limits."""
    cluster, name = checker(doing)
    chance, node = doing.chance, node_or_all(doing, cluster)
    values: list[dict[str, Any]] = [
        {"values": {"auto": chance.choice((0, 24, 240)), "all": chance.choice((0, 24))}},
        {"values": {"segment_limit": chance.choice((16, 256))}},
        {"values": {"all_window": chance.choice(("always", "never", "0-6"))}},
        {"values": {"repair_rate_limit": chance.choice((0, 10, 1_000))}},
        {"default": True},
    ]
    file_counts_later(doing, cluster, name, node)
    body = chance.choice(values)
    await act(doing, cluster, "/admin/fullsync/set", peer=name, node=node, **body, allowed=WIDER)


def file_counts_later(doing: Doing, cluster: WorldCluster, name: str, node: str | None) -> None:
    """In the end a full-sync is as its file has it."""

    async def default() -> None:
        over = {"unknown-fullsync"}
        await insist(doing, cluster, "/admin/fullsync/set", peer=name, node=node, default=True, over=over)

    doing.undo_later(f"settings of full-sync {name} of {cluster.name} ({node or 'all nodes'})", default)


def peer_removed_later(doing: Doing, cluster: WorldCluster, name: str, node: str | None) -> None:
    """In the end a full-sync that no file has is gone."""

    async def remove() -> None:
        over = {"unknown-fullsync"}
        await insist(doing, cluster, "/admin/fullsync/peers/remove", peer=name, node=node, over=over)

    doing.undo_later(f"full-sync {name} of {cluster.name} ({node or 'all nodes'})", remove)


@step(StepKind.ACT, weight=3, covers=("POST /admin/fullsync/peers/add",))
async def fullsync_add_peer(doing: Doing) -> None:
    """One more comparison with the same cluster."""
    cluster, name = checker(doing)
    other = doing.chance.choice(list(doing.world.clusters[name].nodes.values()))
    extra, node = f"{name}-more", node_or_all(doing, cluster)
    peer_removed_later(doing, cluster, extra, node)
    values = {"urls": other.http_url, "queue": name, "cluster": name, "auto": 24}
    await act(doing, cluster, "/admin/fullsync/peers/add", peer=extra, node=node, values=values, allowed=WIDER)


@step(StepKind.ACT, weight=3, covers=("POST /admin/fullsync/peers/remove",))
async def fullsync_remove_peer(doing: Doing) -> None:
    """One of the file, which comes back when all is healed."""
    cluster, name = checker(doing)
    node = node_or_all(doing, cluster)
    file_counts_later(doing, cluster, name, node)
    await act(doing, cluster, "/admin/fullsync/peers/remove", peer=name, node=node, allowed=WIDER)


@step(StepKind.ACT, weight=3, covers=("POST /admin/fullsync/set-range",))
async def fullsync_set_range(doing: Doing) -> None:
    """The range of the next check of this kind."""
    cluster, name = checker(doing)
    now_ms = cluster_wall_ms(cluster)
    span = {"since_ms": now_ms - doing.chance.randrange(1, 60_000), "before_ms": now_ms}
    bucket: dict[str, Any] = doing.chance.choice([{}, {"bucket": "b0"}])
    peer, node = doing.chance.choice([None, name]), doing.chance.choice([None, *cluster.nodes])
    await act(doing, cluster, "/admin/fullsync/set-range", peer=peer, node=node, **span, **bucket, allowed=WIDER)


@step(StepKind.ACT, weight=3, covers=("POST /admin/fullsync/clear-range",))
async def fullsync_clear_range(doing: Doing) -> None:
    """No range."""
    cluster, name = checker(doing)
    peer, node = doing.chance.choice([None, name]), doing.chance.choice([None, *cluster.nodes])
    await act(doing, cluster, "/admin/fullsync/clear-range", peer=peer, node=node, allowed=WIDER)


@step(StepKind.ACT, weight=3, covers=("POST /admin/fullsync/suppress-auto",))
async def fullsync_suppress_auto(doing: Doing) -> None:
    """The next checks of kind auto are left out; taken back when all is healed."""
    cluster, name = checker(doing)
    peer, node = doing.chance.choice([None, name]), doing.chance.choice(list(cluster.nodes))

    async def none() -> None:
        over = {"unknown-node", "unknown-fullsync"}
        await insist(doing, cluster, "/admin/fullsync/suppress-auto", peer=peer, node=node, count=0, over=over)

    doing.undo_later(f"checks of {cluster.name} left out at {node} for {peer}", none)
    count = doing.chance.choice((0, 1, 5))
    await act(doing, cluster, "/admin/fullsync/suppress-auto", peer=peer, node=node, count=count, allowed=WIDER)


@step(StepKind.ACT, weight=6, covers=("POST /admin/trees/rebuild",))
async def trees_rebuild(doing: Doing) -> None:
    """The trees of a node, all or of one partition."""
    cluster = doing.cluster()
    partition = doing.chance.choice([None, *range(doing.world.shape.partitions)])
    await act(doing, cluster, "/admin/trees/rebuild", partition=partition)

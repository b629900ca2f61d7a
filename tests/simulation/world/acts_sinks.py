"""What operators do to sinks."""

from __future__ import annotations

from typing import Any, Final

from tests.simulation.world.acts_queues import EXTRA, node_or_all
from tests.simulation.world.admin import act, ask, insist
from tests.simulation.world.clusters import WorldCluster
from tests.simulation.world.history import Scope
from tests.simulation.world.steps import Doing, StepKind, step

BY_NODES = frozenset(("bad-input",))
"""A queue, peer or node that this node does not know (any more), or a wider suspension that stays."""


def receiver(doing: Doing) -> WorldCluster:
    """A cluster that fetches from others."""
    return doing.chance.choice([each for each in doing.world.clusters.values() if each.receives_from])


def link_of(doing: Doing, cluster: WorldCluster, *, number: int | None = 1) -> dict[str, Any]:
    """A link of a cluster: to node `number` of a cluster that it fetches from; None: to any of its nodes."""
    source = doing.world.clusters[doing.chance.choice(cluster.receives_from)]
    nodes = list(source.nodes.values())
    node = doing.chance.choice(nodes) if number is None else nodes[number - 1]
    link = {"queue": cluster.name, "url": node.http_url, "cluster": source.name}
    if source.credentials is not None:
        link["token_file"] = str(source.credentials.file("replicate"))
    return link


@step(StepKind.ACT, weight=12, covers=("POST /admin/sink/suspend",))
async def sink_suspend(doing: Doing) -> None:
    """All fetches, those of the queue or those from a peer, on a node or on all."""
    cluster = receiver(doing)
    fetching_later(doing, cluster)
    await act(doing, cluster, "/admin/sink/suspend", **part_of(doing, cluster), allowed=BY_NODES)


def fetching_later(doing: Doing, cluster: WorldCluster) -> None:
    """In the end nothing is suspended."""

    async def resume() -> None:
        await insist(doing, cluster, "/admin/sink/resume")

    doing.undo_later(f"suspensions of the sink of {cluster.name}", resume)


def part_of(doing: Doing, cluster: WorldCluster) -> dict[str, Any]:
    link = link_of(doing, cluster)
    part: dict[str, Any] = doing.chance.choice([{}, {"queue": link["queue"]}, {"peer": link["url"]}])
    return {**part, "node": node_or_all(doing, cluster)}


@step(StepKind.ACT, weight=9, covers=("POST /admin/sink/resume",))
async def sink_resume(doing: Doing) -> None:
    """Ends suspensions, if there are any."""
    cluster = receiver(doing)
    part = doing.chance.choice([{}, part_of(doing, cluster)])
    await act(doing, cluster, "/admin/sink/resume", **part, allowed=BY_NODES)


@step(StepKind.ACT, weight=9, covers=("POST /admin/sink/limits",))
async def sink_limits(doing: Doing) -> None:
    """Workers and rates."""
    cluster, chance = receiver(doing), doing.chance
    node = node_or_all(doing, cluster)
    limits: list[dict[str, Any]] = [
        {"workers": chance.choice((1, 2, 12))},
        {"workers": 4, "per_peer": chance.choice((0, 1, 4))},
        {"bytes_per_second": chance.choice((0, 2_000, 1_000_000))},
        {"objects_per_second": chance.choice((0, 2, 1_000))},
        {"queue": cluster.name, "workers": chance.choice((1, 3))},
        {"workers": 1, "forget": True},
    ]
    values = chance.choice(limits)
    limits_forgotten_later(doing, cluster, node)
    await act(doing, cluster, "/admin/sink/limits", node=node, **values, allowed=BY_NODES)


def limits_forgotten_later(doing: Doing, cluster: WorldCluster, node: str | None) -> None:
    async def forget() -> None:
        named = {"workers": 1, "per_peer": 1, "bytes_per_second": 0, "objects_per_second": 0}
        await insist(doing, cluster, "/admin/sink/limits", node=node, forget=True, **named, over=BY_NODES)
        of_queue = {"queue": cluster.name, "forget": True, "node": node}
        await insist(doing, cluster, "/admin/sink/limits", **of_queue, over=BY_NODES)

    doing.undo_later(f"limits of the sink of {cluster.name} ({node or 'all nodes'})", forget)


@step(StepKind.ACT, weight=3, covers=("POST /admin/sink/check",))
async def sink_check(doing: Doing) -> None:
    """Whether a link would work."""
    cluster = receiver(doing)
    await act(doing, cluster, "/admin/sink/check", **link_of(doing, cluster, number=None))


@step(StepKind.ACT, weight=6, covers=("POST /admin/sink/peers/add",))
async def sink_add_peer(doing: Doing) -> None:
    """Another node of the same cluster, or the queue that operators register."""
    cluster = receiver(doing)
    link = link_of(doing, cluster, number=None)
    if doing.chance.random() < 0.4:
        link["queue"] = EXTRA
    if link["queue"] == EXTRA or link["url"] not in of_file(doing, cluster):
        removed_later(doing, cluster, link)
    await act(doing, cluster, "/admin/sink/peers/add", **link, allowed=BY_NODES)


def of_file(doing: Doing, cluster: WorldCluster) -> set[str]:
    return {next(iter(doing.world.clusters[name].nodes.values())).http_url for name in cluster.receives_from}


def removed_later(doing: Doing, cluster: WorldCluster, link: dict[str, Any]) -> None:
    async def remove() -> None:
        named = {"queue": link["queue"], "url": link["url"]}
        await insist(doing, cluster, "/admin/sink/peers/remove", **named, over=BY_NODES)

    doing.undo_later(f"peer {link['queue']} {link['url']} of {cluster.name}", remove)


@step(StepKind.ACT, weight=6, covers=("POST /admin/sink/peers/remove",))
async def sink_remove_peer(doing: Doing) -> None:
    """A link of the file, which comes back when all is healed."""
    cluster = receiver(doing)
    link = link_of(doing, cluster)
    added_later(doing, cluster, link)
    named = {"queue": link["queue"], "url": link["url"]}
    await act(doing, cluster, "/admin/sink/peers/remove", **named, allowed=BY_NODES)


def added_later(doing: Doing, cluster: WorldCluster, link: dict[str, Any]) -> None:
    """In the end a link of the file is there."""

    async def add() -> None:
        await insist(doing, cluster, "/admin/sink/peers/add", **link, over=BY_NODES)

    doing.undo_later(f"removed peer {link['queue']} {link['url']} of {cluster.name}", add)


RIAK: Final = "old"
RIAK_QUEUE: Final = "isthmus"
"""No queue of the world, so a node that is taken for a Riak refuses what it is asked."""


def riak_of(doing: Doing, cluster: WorldCluster) -> dict[str, Any]:
    """A Riak to fetch from: a node of another cluster, which is none."""
    return {"urls": link_of(doing, cluster, number=None)["url"], "queue": RIAK_QUEUE}


@step(StepKind.ACT, weight=2, covers=("POST /admin/riaks/check",))
async def riak_check(doing: Doing) -> None:
    """Whether a Riak could be fetched from."""
    cluster = receiver(doing)
    await act(doing, cluster, "/admin/riaks/check", **riak_of(doing, cluster))


@step(StepKind.ACT, weight=2, covers=("POST /admin/riaks/add",))
async def riak_add(doing: Doing) -> None:
    """A Riak that answers nothing, until all is healed."""
    cluster = receiver(doing)
    riak_removed_later(doing, cluster)
    await act(doing, cluster, "/admin/riaks/add", name=RIAK, **riak_of(doing, cluster), allowed=BY_NODES)


def riak_removed_later(doing: Doing, cluster: WorldCluster) -> None:
    async def remove() -> None:
        await insist(doing, cluster, f"/admin/riaks/{RIAK}/remove", over=BY_NODES)

    doing.undo_later(f"Riak {RIAK} of {cluster.name}", remove)


@step(StepKind.ACT, weight=2, covers=("POST /admin/riaks/{riak}/remove",))
async def riak_remove(doing: Doing) -> None:
    """If there is one."""
    await act(doing, receiver(doing), f"/admin/riaks/{RIAK}/remove", allowed=BY_NODES)


@step(StepKind.ACT, weight=2, covers=("POST /admin/riaks/{riak}/seed",))
async def riak_seed(doing: Doing) -> None:
    """By its queue or by lists of keys, if there is one."""
    cluster, way = receiver(doing), doing.chance.choice(("queue", "keys"))
    await act(doing, cluster, f"/admin/riaks/{RIAK}/seed", way=way, allowed=BY_NODES)


@step(StepKind.ACT, weight=1, covers=("POST /admin/riaks/{riak}/seed/stop",))
async def riak_stop_seed(doing: Doing) -> None:
    """If one runs."""
    await act(doing, receiver(doing), f"/admin/riaks/{RIAK}/seed/stop", allowed=BY_NODES)


@step(StepKind.ACT, weight=6, covers=("POST /admin/sink/dead-letters/retry",))
async def dead_letters_retry(doing: Doing) -> None:
    """Of a node, all or some."""
    cluster = receiver(doing)
    node = doing.chance.choice([None, *cluster.nodes])
    ids = doing.chance.choice([None, [1], [1, 2, 3]])
    await act(doing, cluster, "/admin/sink/dead-letters/retry", node=node, ids=ids)


@step(StepKind.ACT, weight=1, covers=("POST /admin/sink/dead-letters/drop",))
async def dead_letters_drop(doing: Doing) -> None:
    """Of a node: a named loss that nobody names any more but the one who dropped it."""
    cluster = receiver(doing)
    running = cluster.running
    if not running:
        return
    node = doing.chance.choice(running)
    found = await ask(doing, node, f"/admin/sink/dead-letters/nodes?node={node.name}&limit=1000")
    letters = [row for one in (found.body.get("nodes") or () if found and found.done else ()) for row in
               one.get("dead_letters") or ()]  # fmt: skip
    losses = [doing.declare_loss(Scope.QUEUE, name, queue=cluster.name) for name in cluster.receives_from if letters]
    ids = [row["id"] for row in letters] or [1]
    await ask(doing, node, "/admin/sink/dead-letters/drop", {"node": node.name, "ids": ids})
    for loss in losses:
        doing.loss_is_over(loss)

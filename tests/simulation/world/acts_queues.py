"""What operators do to source queues."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from isthmus.queues.queue_documents import QueuePaths
from isthmus.repl.metastore.port import Versioned
from tests.simulation.world.admin import WrongAnswer, act, insist, look
from tests.simulation.world.clusters import WorldCluster
from tests.simulation.world.history import Scope
from tests.simulation.world.steps import Doing, StepKind, step

EXTRA: Final = "extra"
"""A queue that operators register; another cluster may fetch it, too."""

BUCKET: Final = "things"
"""The bucket that clients write to."""

FILTERS: Final = ("any", "block_rtq", "buckettype:default", "bucketprefix:t", "!bucketname:things", "bucketname:things")

MORE_FILTERS: Final = (*FILTERS, "!bucketname:local", "bucketname:local", "!buckettype:newest, !buckettype:reaped")
"""In worlds whose clients write to a second bucket."""


def some_filter(doing: Doing) -> str:
    """A filter that an operator gives to a queue."""
    return doing.chance.choice(MORE_FILTERS if doing.world.shape.partial else FILTERS)


def kinds(doing: Doing) -> list[str]:
    """The bucket types that clients write to."""
    return sorted({key.bucket_type for key in doing.world.workload.keys})


def receivers(doing: Doing, cluster: WorldCluster) -> list[str]:
    """The clusters that fetch from it, which are the names of its queues."""
    return [each.name for each in doing.world.clusters.values() if cluster.name in each.receives_from]


def queue_of(doing: Doing, *, extra: float = 0.2) -> tuple[WorldCluster, str]:
    """A cluster and one of its queues; with chance `extra` the one that operators register."""
    sources = [each for each in doing.world.clusters.values() if receivers(doing, each)]
    cluster = doing.chance.choice(sources)
    if doing.chance.random() < extra:
        return cluster, EXTRA
    return cluster, doing.chance.choice(receivers(doing, cluster))


def node_or_all(doing: Doing, cluster: WorldCluster) -> str | None:
    """The name of one node, or None for all."""
    return doing.chance.choice([None, None, *cluster.nodes])


def _path(queue: str, act_: str) -> str:
    return f"/admin/queues/{queue}/{act_}"


@step(StepKind.ACT, weight=12, covers=("POST /admin/queues/{queue}/suspend",))
async def queue_suspend(doing: Doing) -> None:
    """Serving or publishing of a queue, on a node or on all."""
    cluster, queue = queue_of(doing)
    what = doing.chance.choice(["serving", "serving", "publishing", ["serving", "publishing"]])
    node = node_or_all(doing, cluster)
    resumed_later(doing, cluster, queue)
    await act(doing, cluster, _path(queue, "suspend"), what=what, node=node, reason="by chance")


def resumed_later(doing: Doing, cluster: WorldCluster, queue: str) -> None:
    async def resume() -> None:
        await insist(doing, cluster, _path(queue, "resume"), what=["serving", "publishing"], over={"unknown-queue"})

    doing.undo_later(f"suspensions of queue {queue} of {cluster.name}", resume)


@step(StepKind.ACT, weight=9, covers=("POST /admin/queues/{queue}/resume",))
async def queue_resume(doing: Doing) -> None:
    """Ends suspensions, if there are any."""
    cluster, queue = queue_of(doing)
    what = doing.chance.choice(["serving", "publishing", ["serving", "publishing"]])
    node = node_or_all(doing, cluster)
    allowed = {"bad-input"}  # still suspended as part of a wider one
    await act(doing, cluster, _path(queue, "resume"), what=what, node=node, allowed=allowed)


@step(StepKind.ACT, weight=6, covers=("POST /admin/queues/register",))
async def queue_register(doing: Doing) -> None:
    """A queue more, which nobody fetches unless a sink is given it."""
    cluster, _ = queue_of(doing)
    await _registered(doing, cluster, EXTRA)


async def _registered(doing: Doing, cluster: WorldCluster, queue: str) -> None:
    chance = doing.chance
    begin: dict[str, Any] = chance.choice(
        [{"from": "now"}, {"from": "0"}, {"positions": {"0": chance.choice((0, 1, 5))}}]
    )
    values: dict[str, Any] = chance.choice([{}, {"overflow": "discard"}, {"queue_limit": 20}, {"cascade": True}])
    delisted_later(doing, cluster, queue)
    filter_ = some_filter(doing)
    await _register(doing, cluster, name=queue, filter=filter_, **begin, **values)


async def _register(doing: Doing, cluster: WorldCluster, /, **values: Any) -> None:
    """A queue, unless there is one of this name. Raises WrongAnswer if it begins with what an earlier one left."""
    name = values["name"]
    before = _left(cluster, name)
    answer = await act(doing, cluster, "/admin/queues/register", allowed={"bad-input"}, **values)
    if answer is not None and answer.done and (same := before & _left(cluster, values["name"])):
        raise WrongAnswer(
            f"{cluster.name}: queue {values['name']} is registered, and has what was left: {sorted(same)}"
        )


def _left(cluster: WorldCluster, queue: str) -> set[tuple[str, bytes]]:
    """What operators have set of a queue, and its marks and losses: (former path, value); each names its moment."""
    paths, found = QueuePaths(queue), set()
    for joined, begins_anew in (
        (paths.settings, (paths.suspensions, paths.rates, paths.limits)),
        (paths.bulk, (paths.lost, paths.held)),
    ):
        one = cluster.ensemble.tree.read(_in_tree(cluster, joined.path))
        for document in begins_anew:
            apart = cluster.ensemble.tree.read(_in_tree(cluster, document.path))
            data = joined.decode(one[0]).data(document) if one is not None else None if apart is None else apart[0]
            if data and document.decode(Versioned(data, 0)) != document.decode(None):
                found.add((document.path, data))
    return found


def _in_tree(cluster: WorldCluster, path: str) -> str:
    return f"/isthmus/{cluster.name}{path}"


def delisted_later(doing: Doing, cluster: WorldCluster, queue: str) -> None:
    async def delist() -> None:
        await insist(doing, cluster, _path(queue, "delist"), over={"unknown-queue", "bad-input"})

    doing.undo_later(f"queue {queue} of {cluster.name}", delist)


@step(StepKind.ACT, weight=1, covers=("POST /admin/queues/{queue}/delist",))
async def queue_delist(doing: Doing) -> None:
    """A queue goes, with its gaps and references; a cluster's own comes back some seconds later, or when all is
    healed."""
    cluster, queue = queue_of(doing, extra=0.6)
    if queue == EXTRA:
        await act(doing, cluster, _path(queue, "delist"), allowed={"bad-input"})
        return
    registered_later(doing, cluster, queue)
    await act(doing, cluster, _path(queue, "delist"), allowed={"bad-input"})
    await asyncio.sleep(doing.chance.choice((0.5, 5.0, 10.0)))
    begin = {"from": doing.chance.choice(("now", "0"))}
    await _register(doing, cluster, name=queue, filter=doing.world.shape.filter_of(cluster.name), **begin)


def registered_later(doing: Doing, cluster: WorldCluster, queue: str) -> None:
    loss = doing.declare_loss(Scope.QUEUE, cluster.name, queue=queue)

    async def register() -> None:
        values = {"name": queue, "filter": doing.world.shape.filter_of(cluster.name), "from": "0"}
        await insist(doing, cluster, "/admin/queues/register", over={"bad-input"}, **values)
        doing.loss_is_over(loss)

    doing.undo_later(f"delisted queue {queue} of {cluster.name}", register)


@step(StepKind.ACT, weight=6, covers=("POST /admin/queues/{queue}/clear",))
async def queue_clear(doing: Doing) -> None:
    """What waits becomes a gap."""
    cluster, queue = queue_of(doing)
    dry_run = doing.chance.random() < 0.2
    await act(doing, cluster, _path(queue, "clear"), dry_run=dry_run)


@step(StepKind.ACT, weight=6, covers=("POST /admin/queues/{queue}/release",))
async def queue_release(doing: Doing) -> None:
    """The next cluster that fetches owns the queue."""
    cluster, queue = queue_of(doing)
    now_ms = cluster_wall_ms(cluster)
    start: Any = doing.chance.choice(["0", "now", now_ms - doing.chance.randrange(60_000)])
    await act(doing, cluster, _path(queue, "release"), from_=start, allowed={"bad-input", "bad-json"})


def cluster_wall_ms(cluster: WorldCluster) -> int:
    """The wall clock of its first node."""
    return next(iter(cluster.nodes.values())).machine.wall_ns() // 1_000_000


@step(StepKind.ACT, weight=6, covers=("POST /admin/queues/{queue}/place",))
async def queue_place(doing: Doing) -> None:
    """Cursors go to where a seed is said to have been; what lies in between is not offered any more, or once more."""
    cluster, queue = queue_of(doing)
    found = await look(doing, cluster, "/admin/partitions")
    rows = [row for row in (found or {}).get("partitions") or () if row["bucket_type"] == "default"]
    if not rows:
        return
    row = doing.chance.choice(rows)
    at = doing.chance.choice([0, 0, 0, row["applied"] or 0])
    loss = doing.declare_loss(Scope.QUEUE, cluster.name, queue=queue) if at else None
    await act(doing, cluster, _path(queue, "place"), positions={str(row["partition"]): at})
    if loss is not None:
        doing.loss_is_over(loss)


@step(StepKind.ACT, weight=6, covers=("POST /admin/queues/{queue}/throttle",))
async def queue_throttle(doing: Doing) -> None:
    """Rates of a queue."""
    cluster, queue = queue_of(doing)
    chance = doing.chance
    values: dict[str, Any] = chance.choice(
        [{"objects_per_second": chance.choice((0, 1, 50))}, {"bytes_per_second": chance.choice((0, 1_000, 100_000))},
         {"objects_per_second": 20, "bytes_per_second": 10_000}, {"default": True}]
    )  # fmt: skip
    rates_lifted_later(doing, cluster, queue)
    await act(doing, cluster, _path(queue, "throttle"), **values)


def rates_lifted_later(doing: Doing, cluster: WorldCluster, queue: str) -> None:
    """In the end the rates are the file's."""

    async def lift() -> None:
        await insist(doing, cluster, _path(queue, "throttle"), default=True, over={"unknown-queue"})

    doing.undo_later(f"rates of queue {queue} of {cluster.name}", lift)


@step(StepKind.ACT, weight=9, covers=("POST /admin/queues/{queue}/set",))
async def queue_set(doing: Doing) -> None:
    """Filter, limits or lease of a queue; or all of it once more."""
    cluster, queue = queue_of(doing)
    chance = doing.chance
    values: dict[str, Any] = chance.choice(
        [{"filter": some_filter(doing)}, {"filter": some_filter(doing), "from": "0"}, {"from": "0"},
         {"overflow": chance.choice(("replay", "discard"))}, {"queue_limit": chance.choice((1, 10, 1_000))},
         {"object_limit": chance.choice((0, 5))}, {"object_size_limit": chance.choice((0, 100))},
         {"lease_ms": chance.choice((100, 1_000, 30_000))}, {"cascade": chance.random() < 0.5},
         {"riak_fetch": True}, {"default": True}]
    )  # fmt: skip
    default_later(doing, cluster, queue)
    await act(doing, cluster, _path(queue, "set"), **values)


def default_later(doing: Doing, cluster: WorldCluster, queue: str) -> None:
    """In the end the settings are the file's."""

    async def default() -> None:
        await insist(doing, cluster, _path(queue, "set"), default=True, over={"unknown-queue"})

    if queue != EXTRA:
        doing.undo_later(f"settings of queue {queue} of {cluster.name}", default)


@step(StepKind.ACT, weight=6, covers=("POST /admin/queues/{queue}/push",))
async def queue_push(doing: Doing) -> None:
    """References to keys, whether they exist or not."""
    cluster, queue = queue_of(doing)
    keys = [f"k{doing.chance.randrange(6)}" for _ in range(doing.chance.choice((1, 3, 10)))]
    kind, fold = doing.chance.choice(kinds(doing)), doing.chance.random() < 0.5
    named = {"bucket_type": kind, "bucket": BUCKET, "keys": keys}
    await act(doing, cluster, _path(queue, "push"), **named, fold=fold, wait_ms=500)


@step(StepKind.ACT, weight=1, covers=("POST /admin/queues/{queue}/gaps/close",))
async def gaps_close(doing: Doing) -> None:
    """An operator says that gaps are no more, and is believed."""
    cluster, queue = queue_of(doing)
    found = await look(doing, cluster, f"/admin/gaps?queue={queue}")
    ids = [row["id"] for row in (found or {}).get("gaps", ())]
    loss = doing.declare_loss(Scope.QUEUE, cluster.name, queue=queue)
    if ids and doing.chance.random() < 0.5:
        await act(doing, cluster, _path(queue, "gaps/close"), ids=ids)
    else:
        now_ms = cluster_wall_ms(cluster)
        span = {"from_ms": now_ms - 10_000, "upto_ms": now_ms - 5_000}
        await act(doing, cluster, _path(queue, "gaps/close"), bucket_type="default", **span)
    doing.loss_is_over(loss)

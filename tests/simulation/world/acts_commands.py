"""Acts that go through the command line: its entry parses them, asks nodes, waits and prints.

`COMMANDS` has the arguments of each command by its words, `isthmus queue suspend` and so on. They change the same as
the acts by HTTP, and are taken back alike.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from tests.simulation.world import acts_data, acts_fullsync, acts_placement, acts_queues, acts_sinks, acts_types
from tests.simulation.world.acts_nodes import start, stop
from tests.simulation.world.clusters import WorldCluster
from tests.simulation.world.commands import RESTART, run
from tests.simulation.world.copies import complete_without, leaders_forced_later
from tests.simulation.world.history import Scope
from tests.simulation.world.steps import Doing, StepKind, step

WAIT: Final = ("--wait", "--timeout", "20s")

ALLOWED: Final = frozenset(
    (
        "bad-input",
        "bad-replica-map",
        "timed-out",
        "not-done",
        "unknown-gap",
        "no-tombstone",
        "waits",
        "restart-failed",
        "peer-removed",
    )
)
"""What a command may say because of other acts: what it names is not there, or was there before; a wait has ended."""


class Invocation(NamedTuple):
    """A command that is about to be run."""

    cluster: WorldCluster
    arguments: list[str]
    loses: Scope | None = None
    """The state of the cluster may go back, or what it was to get from queues may be lost."""
    everywhere: bool = False
    """Every other cluster gets the same command, since linked clusters need the same."""


def _node(doing: Doing, cluster: WorldCluster) -> list[str]:
    node = acts_queues.node_or_all(doing, cluster)
    return doing.chance.choice([[], ["--all-nodes"]]) if node is None else ["--node", node]


def _targets(doing: Doing) -> list[str]:
    return doing.chance.choice([[], ["--serving"], ["--publishing"], ["--serving", "--publishing"]])


def _positions(doing: Doing) -> str:
    """A seed's file, in which every cursor is at its beginning."""
    path = doing.world.directory / "handover.json"
    path.write_text(json.dumps({"positions": {"0": 0}}))
    return str(path)


# -- queues -----------------------------------------------------------------------------------------------------------


def _queue_suspend(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    acts_queues.resumed_later(doing, cluster, queue)
    return Invocation(cluster, [queue, *_targets(doing), *_node(doing, cluster), "--yes"])


def _queue_resume(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    return Invocation(cluster, [queue, *_targets(doing), *_node(doing, cluster)])


def _queue_register(doing: Doing) -> Invocation:
    cluster, _ = acts_queues.queue_of(doing)
    acts_queues.delisted_later(doing, cluster, acts_queues.EXTRA)
    begin = doing.chance.choice([["--from", "0"], ["--from", "now"], ["--positions", _positions(doing)]])
    return Invocation(cluster, [acts_queues.EXTRA, "--filter", acts_queues.some_filter(doing), *begin])


def _queue_delist(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing, extra=0.9)
    if queue != acts_queues.EXTRA:
        acts_queues.registered_later(doing, cluster, queue)
    return Invocation(cluster, [queue, "--yes"])


def _queue_clear(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    return Invocation(cluster, [queue, doing.chance.choice(["--yes", "--dry-run"])])


def _queue_release(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    return Invocation(cluster, [queue, "--from", doing.chance.choice(["0", "now", "10s"]), "--yes"])


def _queue_place(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    return Invocation(cluster, [queue, "--positions", _positions(doing)])


def _queue_throttle(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    acts_queues.rates_lifted_later(doing, cluster, queue)
    rates = doing.chance.choice([["--bytes", "1KB"], ["--objects", "5"], ["--off"], ["--default"], ["--bytes", "none"]])
    return Invocation(cluster, [queue, *rates])


def _queue_set(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    acts_queues.default_later(doing, cluster, queue)
    values = doing.chance.choice(
        [["--filter", acts_queues.some_filter(doing)], ["--lease", "2s"], ["--overflow", "replay"],
         ["--from", "0"], ["--default"], ["--cascade"], ["--object-limit", "3"]]
    )  # fmt: skip
    return Invocation(cluster, [queue, *values, "--yes"])


def _queue_push(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    kind = doing.chance.choice(acts_queues.kinds(doing))
    fold = doing.chance.choice([[], ["--fold"]])
    return Invocation(cluster, [queue, f"{kind}/{acts_queues.BUCKET}", "k0", "k3", *fold])


def _queue_gaps(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing)
    return Invocation(cluster, [queue, "--close", "1-1-1"])


# -- sinks ------------------------------------------------------------------------------------------------------------


def _link(doing: Doing, *, number: int | None = 1) -> tuple[WorldCluster, dict[str, str]]:
    cluster = acts_sinks.receiver(doing)
    return cluster, acts_sinks.link_of(doing, cluster, number=number)


def _some(doing: Doing, link: dict[str, str]) -> list[str]:
    return doing.chance.choice([[], ["--queue", link["queue"]], ["--peer", link["url"]]])


def _sink_suspend(doing: Doing) -> Invocation:
    cluster, link = _link(doing)
    acts_sinks.fetching_later(doing, cluster)
    return Invocation(cluster, [*_some(doing, link), *_node(doing, cluster)])


def _sink_resume(doing: Doing) -> Invocation:
    cluster, link = _link(doing)
    return Invocation(cluster, [*_some(doing, link), *_node(doing, cluster)])


def _sink_set_workers(doing: Doing) -> Invocation:
    cluster = acts_sinks.receiver(doing)
    acts_sinks.limits_forgotten_later(doing, cluster, None)
    return Invocation(
        cluster, doing.chance.choice([["2"], ["4", "--per-peer", "1"], ["1", "--queue", cluster.name], ["--default"]])
    )


def _sink_throttle(doing: Doing) -> Invocation:
    cluster = acts_sinks.receiver(doing)
    acts_sinks.limits_forgotten_later(doing, cluster, None)
    return Invocation(cluster, doing.chance.choice([["--bytes", "2KB"], ["--objects", "5"], ["--off"], ["--default"]]))


def _sink_check(doing: Doing) -> Invocation:
    cluster, link = _link(doing, number=None)
    return Invocation(cluster, [link["url"], link["queue"], "--peer-cluster", link["cluster"], *_token_of(link)])


def _sink_add_peer(doing: Doing) -> Invocation:
    cluster, link = _link(doing, number=None)
    link["queue"] = doing.chance.choice([link["queue"], acts_queues.EXTRA])
    if link["queue"] == acts_queues.EXTRA or link["url"] not in acts_sinks.of_file(doing, cluster):
        acts_sinks.removed_later(doing, cluster, link)
    named = [link["url"], link["queue"], "--peer-cluster", link["cluster"], *_token_of(link)]
    return Invocation(cluster, [*named, "--yes"])


def _token_of(link: dict[str, str]) -> list[str]:
    return ["--peer-token-file", link["token_file"]] if "token_file" in link else []


def _sink_remove_peer(doing: Doing) -> Invocation:
    cluster, link = _link(doing)
    acts_sinks.added_later(doing, cluster, link)
    return Invocation(cluster, [link["url"], link["queue"]])


def _riak_check(doing: Doing) -> Invocation:
    cluster = acts_sinks.receiver(doing)
    return Invocation(cluster, [acts_sinks.riak_of(doing, cluster)["urls"]])


def _riak_add(doing: Doing) -> Invocation:
    cluster = acts_sinks.receiver(doing)
    acts_sinks.riak_removed_later(doing, cluster)
    return Invocation(cluster, [acts_sinks.RIAK, acts_sinks.riak_of(doing, cluster)["urls"], "--yes"])


def _riak_remove(doing: Doing) -> Invocation:
    return Invocation(acts_sinks.receiver(doing), [acts_sinks.RIAK])


def _riak_seed(doing: Doing) -> Invocation:
    more = doing.chance.choice([[], ["--by-keys"], ["--bucket", "b"], ["--stop"]])
    return Invocation(acts_sinks.receiver(doing), [acts_sinks.RIAK, *more])


def _letters_retry(doing: Doing) -> Invocation:
    return Invocation(acts_sinks.receiver(doing), doing.chance.choice([["--all"], ["1"]]))


def _letters_drop(doing: Doing) -> Invocation:
    cluster = acts_sinks.receiver(doing)
    return Invocation(cluster, ["--all", "--yes"], loses=Scope.QUEUE)


# -- full-sync --------------------------------------------------------------------------------------------------------


def _one(doing: Doing, name: str) -> list[str]:
    return doing.chance.choice([[], ["--peer", name]])


def _fullsync_run(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    wait = doing.chance.choice([[], ["--wait"]])
    return Invocation(cluster, [doing.chance.choice(acts_fullsync.KINDS), *_one(doing, name), *wait])


def _fullsync_suspend(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    acts_fullsync.checking_later(doing, cluster)
    return Invocation(cluster, [*_one(doing, name), *_node(doing, cluster)])


def _fullsync_resume(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    return Invocation(cluster, [*_one(doing, name), *_node(doing, cluster)])


def _fullsync_set(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    acts_fullsync.file_counts_later(doing, cluster, name, None)
    values = doing.chance.choice(
        [["--wants", "auto=48,all=2"], ["--all-window", "always"], ["--repair-rate-limit", "10"], ["--default"]]
    )
    return Invocation(cluster, [name, *values])


def _fullsync_peer_add(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    url = doing.chance.choice(list(doing.world.clusters[name].nodes.values())).http_url
    acts_fullsync.peer_removed_later(doing, cluster, f"{name}-more", None)
    return Invocation(cluster, [f"{name}-more", "--urls", url, "--peer-cluster", name, "--queue", name])


def _fullsync_peer_remove(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    acts_fullsync.file_counts_later(doing, cluster, name, None)
    return Invocation(cluster, [name])


def _fullsync_set_range(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    now_s = acts_queues.cluster_wall_ms(cluster) // 1000
    times = [datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at_s in (now_s - 30, now_s)]
    return Invocation(cluster, [*times, *_one(doing, name)])


def _fullsync_clear_range(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    return Invocation(cluster, _one(doing, name))


def _fullsync_suppress(doing: Doing) -> Invocation:
    cluster, name = acts_fullsync.checker(doing)
    return Invocation(cluster, [doing.chance.choice(["0", "1"]), *_one(doing, name)])


def _trees(doing: Doing) -> Invocation:
    return Invocation(doing.cluster(), ["--rebuild"])


# -- bucket types, properties, options --------------------------------------------------------------------------------


def _assignments(doing: Doing) -> list[str]:
    props = doing.chance.choice(acts_types.PROPERTIES)
    return [f"{name}={str(value).lower()}" for name, value in props.items()]


def _type_set(doing: Doing) -> Invocation:
    kind = doing.chance.choice(acts_queues.kinds(doing))
    acts_types.put_back_later(doing, kind, f"/admin/bucket-types/{kind}/properties")
    return Invocation(doing.cluster(), [kind, *_assignments(doing)], everywhere=True)


def _type_unset(doing: Doing) -> Invocation:
    kind = doing.chance.choice(acts_queues.kinds(doing))
    acts_types.put_back_later(doing, kind, f"/admin/bucket-types/{kind}/properties")
    return Invocation(doing.cluster(), [kind, *doing.chance.choice([[], ["allow_mult"]])], everywhere=True)


def _type_create(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    name = doing.chance.choice(list(acts_types.TYPES))
    acts_types.made_later(doing, name)
    numbers = acts_types.numbers_of(doing, cluster, acts_types.TYPES[name])
    props = [each for key, value in numbers["props"].items() for each in ("--prop", f"{key}={str(value).lower()}")]
    counts = [
        "--partitions",
        str(numbers["partition_count"]),
        "--replication-factor",
        str(numbers["replication_factor"]),
    ]
    return Invocation(cluster, [name, *counts, *props])


def _bucket(doing: Doing) -> tuple[str, str]:
    kind = doing.chance.choice(acts_queues.kinds(doing))
    acts_types.put_back_later(doing, kind, f"/admin/buckets/{kind}/{acts_queues.BUCKET}/properties")
    return kind, f"{kind}/{acts_queues.BUCKET}"


def _bucket_set(doing: Doing) -> Invocation:
    _, bucket = _bucket(doing)
    return Invocation(doing.cluster(), [bucket, *_assignments(doing)], everywhere=True)


def _bucket_unset(doing: Doing) -> Invocation:
    _, bucket = _bucket(doing)
    return Invocation(doing.cluster(), [bucket], everywhere=True)


def _of_type(kind: str | None) -> list[str]:
    return [] if kind is None else ["--bucket-type", kind]


def _option_set(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    name, kind = acts_types.option_of(doing, cluster)
    return Invocation(cluster, [name, str(doing.chance.choice(acts_types.VALUES[name])), *_of_type(kind)])


def _option_unset(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    name, kind = acts_types.option_of(doing, cluster)
    return Invocation(cluster, [name, *_of_type(kind)])


# -- placement --------------------------------------------------------------------------------------------------------


def _leader_balance(doing: Doing) -> Invocation:
    return Invocation(doing.cluster(), ["--yes", *doing.chance.choice([[], ["--wait"]])])


def _replica_map(doing: Doing, cluster: WorldCluster, count: int) -> str:
    ids = list(range(1, len(cluster.nodes) + 1))
    factor = doing.chance.randint(1, len(ids))
    rows = [{"id": number, "replicas": doing.chance.sample(ids, factor)} for number in range(count)]
    path = Path(doing.world.directory / f"placement-{doing.chance.getrandbits(32)}.json")
    path.write_text(json.dumps({"partitions": rows}))
    return str(path)


def _assign(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    return Invocation(cluster, ["--file", _replica_map(doing, cluster, 2), "--bucket-type", "placed"])


def _reassign(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    acts_placement.factor_later(doing, cluster)
    names = doing.chance.sample(list(cluster.nodes), min(2, len(cluster.nodes)))
    what = [
        ["--spread"],
        ["--cancel"],
        ["--file", _replica_map(doing, cluster, doing.world.shape.partitions), "--bucket-type", "default"],
        *([["--replace", *names]] if len(names) == 2 else []),
    ]
    return Invocation(cluster, [*doing.chance.choice(what), "--yes", *doing.chance.choice([(), WAIT])])


def _set_factor(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    acts_placement.factor_later(doing, cluster)
    factor = str(doing.chance.randint(1, len(cluster.nodes)))
    return Invocation(cluster, ["default", factor, "--yes", *doing.chance.choice([(), WAIT])])


def _drain(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    name = doing.chance.choice(list(cluster.nodes))
    acts_placement.undrained_later(doing, cluster, name)
    return Invocation(cluster, [name, *doing.chance.choice([[], ["--undo"]]), "--yes"])


def _remove(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    return Invocation(cluster, [doing.chance.choice(list(cluster.nodes)), "--dry-run"])


def _force_leader(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    partition = str(doing.chance.randrange(doing.world.shape.partitions))
    return Invocation(cluster, [partition, doing.chance.choice(list(cluster.nodes)), "--yes"], loses=Scope.CLUSTER)


def _reseed(doing: Doing) -> Invocation:
    return Invocation(doing.cluster(), ["--yes", *doing.chance.choice([(), WAIT])], loses=Scope.CLUSTER)


def _rolling_restart(doing: Doing) -> Invocation:
    return Invocation(doing.cluster(), ["--command", RESTART, "--timeout", "40s", "--yes"])


# -- data -------------------------------------------------------------------------------------------------------------


def _scope(doing: Doing) -> list[str]:
    return doing.chance.choice([[], ["--bucket", acts_queues.BUCKET], ["--bucket", "other"]])


def _repl_keys(doing: Doing) -> Invocation:
    cluster, queue = acts_queues.queue_of(doing, extra=0.0)
    return Invocation(cluster, [queue, *_scope(doing), "--yes"])


def _reap_tombs(doing: Doing) -> Invocation:
    acts_data.reaped(doing, acts_queues.kinds(doing))
    return Invocation(doing.cluster(), [*_scope(doing), "--yes"])


def _erase_keys(doing: Doing) -> Invocation:
    cluster = doing.cluster()
    if doing.chance.random() < 0.5:
        return Invocation(cluster, [*_scope(doing), "--dry-run"])
    acts_data.erased(doing, cluster)
    return Invocation(cluster, [*_scope(doing), "--yes"])


def _repair_keys(doing: Doing) -> Invocation:
    return Invocation(doing.cluster(), [*_scope(doing), "--mend"])


def _kv_reap(doing: Doing) -> Invocation:
    kind = doing.chance.choice(acts_queues.kinds(doing))
    acts_data.reaped(doing, [kind])
    return Invocation(doing.cluster(), [f"{kind}/{acts_queues.BUCKET}", f"k{doing.chance.randrange(5)}"])


COMMANDS: Final[dict[str, tuple[int, Callable[[Doing], Invocation]]]] = {
    "queue suspend": (4, _queue_suspend),
    "queue resume": (4, _queue_resume),
    "queue register": (2, _queue_register),
    "queue delist": (1, _queue_delist),
    "queue clear": (2, _queue_clear),
    "queue release": (2, _queue_release),
    "queue place": (2, _queue_place),
    "queue throttle": (2, _queue_throttle),
    "queue set": (3, _queue_set),
    "queue push": (2, _queue_push),
    "queue gaps": (1, _queue_gaps),
    "gaps": (1, _queue_gaps),
    "sink suspend": (4, _sink_suspend),
    "sink resume": (4, _sink_resume),
    "sink set-workers": (2, _sink_set_workers),
    "sink throttle": (2, _sink_throttle),
    "sink check": (1, _sink_check),
    "sink add-peer": (2, _sink_add_peer),
    "sink remove-peer": (2, _sink_remove_peer),
    "riak check": (1, _riak_check),
    "riak add": (1, _riak_add),
    "riak remove": (1, _riak_remove),
    "riak seed": (1, _riak_seed),
    "sink dead-letters retry": (2, _letters_retry),
    "sink dead-letters drop": (1, _letters_drop),
    "fullsync run": (4, _fullsync_run),
    "fullsync suspend": (2, _fullsync_suspend),
    "fullsync resume": (2, _fullsync_resume),
    "fullsync set": (2, _fullsync_set),
    "fullsync peer add": (1, _fullsync_peer_add),
    "fullsync peer remove": (1, _fullsync_peer_remove),
    "fullsync set-range": (1, _fullsync_set_range),
    "fullsync clear-range": (1, _fullsync_clear_range),
    "fullsync suppress-auto": (1, _fullsync_suppress),
    "fullsync trees": (2, _trees),
    "bucket-type create": (2, _type_create),
    "bucket-type set": (2, _type_set),
    "bucket-type unset": (2, _type_unset),
    "bucket-type set-replication-factor": (2, _set_factor),
    "bucket set": (2, _bucket_set),
    "bucket unset": (2, _bucket_unset),
    "option set": (2, _option_set),
    "option unset": (2, _option_unset),
    "leader balance": (2, _leader_balance),
    "partition assign": (1, _assign),
    "partition reassign": (3, _reassign),
    "partition force-leader": (1, _force_leader),
    "node drain": (2, _drain),
    "node remove": (1, _remove),
    "cluster reseed": (1, _reseed),
    "cluster rolling-restart": (3, _rolling_restart),
    "fold repl-keys": (2, _repl_keys),
    "fold reap-tombs": (1, _reap_tombs),
    "fold erase-keys": (1, _erase_keys),
    "fold repair-keys": (1, _repair_keys),
    "kv reap": (2, _kv_reap),
}
"""Words of a command -> its weight, and what draws its arguments."""


UNSIGNED: Final = frozenset(
    ("cluster rolling-restart", "leader balance", "sink check", "riak check", "fold repair-keys")
)
"""Commands without --by."""


def _teach(words: str, weight: int, draw: Callable[[Doing], Invocation]) -> None:
    async def perform(doing: Doing) -> None:
        invocation = draw(doing)
        name = invocation.cluster.name
        losses = []
        if invocation.loses is Scope.CLUSTER:
            losses = [doing.declare_loss(Scope.CLUSTER, name)]
        elif invocation.loses is Scope.QUEUE:
            sources = invocation.cluster.receives_from
            losses = [doing.declare_loss(Scope.QUEUE, source, queue=name) for source in sources]
        others = [each for each in doing.world.clusters.values() if each is not invocation.cluster]
        arguments = [*words.split(), *invocation.arguments, *([] if words in UNSIGNED else ["--by", "operator"])]
        ran = await run(doing, invocation.cluster, *arguments, allowed=ALLOWED)
        for cluster in others if invocation.everywhere else ():
            await run(doing, cluster, *arguments, allowed=ALLOWED)
        for loss in losses:
            if ran is not None and not ran.done and ran.reason != "outcome-unknown":
                doing.no_loss(loss)
            else:
                doing.loss_is_over(loss)

    perform.__name__ = "isthmus_" + words.replace(" ", "_").replace("-", "_")
    step(StepKind.ACT, weight=weight, covers=(words,))(perform)


for _words, (_weight, _draw) in COMMANDS.items():
    _teach(_words, _weight, _draw)


@step(StepKind.ACT, weight=1, covers=("node new-identity",))
async def isthmus_node_new_identity(doing: Doing) -> None:
    """A node is stopped, gets new log ids for all its replicas, and catches up from the others."""
    node = doing.node()
    assert node is not None
    cluster = doing.world.clusters[node.cluster]
    if not complete_without(cluster, node) or not await stop(doing, node):
        return
    leaders_forced_later(doing, cluster)
    await run(doing, cluster, "node", "new-identity", str(node.file), "--by", "operator", allowed=ALLOWED, local=True)
    await start(doing, node)

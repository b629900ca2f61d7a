"""What operators do to bucket types, properties and options.

Linked clusters need the same bucket types, and the same properties to resolve a key alike, so an operator makes and
sets them at every cluster. What a disturbed cluster refused is done when all is healed.
"""

from __future__ import annotations

from typing import Any, Final

from isthmus.config.dynamic_options import OPTIONS
from isthmus.config.schema import SettingScope
from tests.simulation.world import workload
from tests.simulation.world.acts_queues import BUCKET, kinds
from tests.simulation.world.admin import act, insist
from tests.simulation.world.clusters import WorldCluster
from tests.simulation.world.history import Key
from tests.simulation.world.steps import Doing, StepKind, step

TYPES: Final[dict[str, dict[str, Any]]] = {
    "made-last": {"last_write_wins": True},
    "made-newest": {"allow_mult": False},
    "made-reaped": {"delete_mode": 2_000, "repl_reap": True},
    "made-plain": {},
}
"""Bucket types that operators make, with their properties."""

PROPERTIES: Final[tuple[dict[str, Any], ...]] = (
    {"allow_mult": False},
    {"allow_mult": True},
    {"last_write_wins": True},
    {"last_write_wins": False},
    {"dvv_enabled": False},
    {"delete_mode": "keep"},
    {"delete_mode": "immediate"},
    {"delete_mode": 3_000},
    {"delete_mode": 2_000, "repl_reap": True},
    {"max_siblings": 50},
    {"max_object_size": 1_000},
    {"warn_siblings": 1, "warn_object_size": 10},
)

VALUES: Final[dict[str, tuple[Any, ...]]] = {
    "replication.min.isr": (1, 2, 3),
    "replication.max.time.lag.millis": (500, 3_000),
    "replication.max.record.lag": (10, 1_000),
    "replication.max.near.sync.message.lag": (10, 20_000),
    "replication.far.horizon.min.transfer.rounds": (1, 3),
    "replication.catch.up.rate": ("64KB", "100MB"),
    "read.isolation.default": ("committed", "uncommitted"),
    "election.ask.millis": (1, 500),
    "election.response.min.millis": (500, 2_000),
    "election.response.max.millis": (2_000, 10_000),
    "election.back.off.min.millis": (100, 1_000),
    "election.back.off.max.millis": (1_000, 30_000),
    "placement.moves.at.once": (0, 1, 4),
}
"""Options and what operators set them to."""

assert VALUES.keys() == OPTIONS.keys()


@step(StepKind.ACT, weight=9, covers=("POST /admin/bucket-types/{name}",))
async def bucket_type_create(doing: Doing) -> None:
    """In every cluster, one after the other; a cluster with fewer nodes has fewer replicas."""
    name = doing.chance.choice(list(TYPES))
    props = TYPES[name]
    made_later(doing, name)
    made = True
    for cluster in doing.world.clusters.values():
        path = f"/admin/bucket-types/{name}"
        answer = await act(doing, cluster, path, **numbers_of(doing, cluster, props), allowed={"bad-input"})
        made = made and answer is not None and answer.done
    clients = doing.world.workload
    if made and name not in kinds(doing):
        doing.world.history.rules_of(name)
        for cluster in doing.world.clusters.values():
            workload.note_rules(doing.world.history, cluster)
        clients.keys += [Key(name, BUCKET, f"k{number}") for number in range(workload.KEYS)]


def made_later(doing: Doing, name: str) -> None:
    """In the end every cluster has the bucket type."""

    async def everywhere() -> None:
        for cluster in doing.world.clusters.values():
            path = f"/admin/bucket-types/{name}"
            await insist(doing, cluster, path, **numbers_of(doing, cluster, TYPES[name]))

    doing.undo_later(f"bucket type {name} in every cluster", everywhere)


def numbers_of(doing: Doing, cluster: WorldCluster, props: dict[str, Any]) -> dict[str, Any]:
    """The same each time, so that it may be repeated."""
    factor = min(2, doing.world.shape.nodes[cluster.number - 1])
    return {"partition_count": 2, "replication_factor": factor, "props": props}


def scope_of(doing: Doing) -> tuple[str, str]:
    """A bucket type, and the path of its properties or of those of a bucket."""
    kind = doing.chance.choice(kinds(doing))
    if doing.chance.random() < 0.4:
        return kind, f"/admin/bucket-types/{kind}/properties"
    bucket = doing.chance.choice([BUCKET, BUCKET, "other"])
    return kind, f"/admin/buckets/{kind}/{bucket}/properties"


SET: Final = (
    "POST /admin/bucket-types/{type}/properties/set",
    "POST /admin/buckets/{type}/{bucket}/properties/set",
)
UNSET: Final = (
    "POST /admin/bucket-types/{type}/properties/unset",
    "POST /admin/buckets/{type}/{bucket}/properties/unset",
)


@step(StepKind.ACT, weight=12, covers=SET)
async def properties_set(doing: Doing) -> None:
    """At every cluster, one after the other."""
    (kind, scope), props = scope_of(doing), doing.chance.choice(PROPERTIES)
    put_back_later(doing, kind, scope)
    for cluster in doing.world.clusters.values():
        await act(doing, cluster, f"{scope}/set", props=props, reason="by chance")


@step(StepKind.ACT, weight=6, covers=UNSET)
async def properties_unset(doing: Doing) -> None:
    """At every cluster, one after the other."""
    kind, scope = scope_of(doing)
    put_back_later(doing, kind, scope)
    names: list[str] | None = doing.chance.choice([None, ["allow_mult"], ["delete_mode"]])
    for cluster in doing.world.clusters.values():
        await act(doing, cluster, f"{scope}/unset", names=names)


def put_back_later(doing: Doing, kind: str, scope: str) -> None:
    """In the end every cluster has the properties of the beginning."""

    async def put_back() -> None:
        props = {} if "/buckets/" in scope else {**workload.TYPES, **TYPES}[kind]
        for cluster in doing.world.clusters.values():
            await insist(doing, cluster, f"{scope}/unset")
            if props:
                await insist(doing, cluster, f"{scope}/set", props=props)

    doing.undo_later(f"properties of {scope}", put_back)


def option_of(doing: Doing, cluster: WorldCluster) -> tuple[str, str | None]:
    name = doing.chance.choice(list(VALUES))

    async def unset() -> None:
        for kind in (None, "default") if SettingScope.BUCKET_TYPE in OPTIONS[name].scopes else (None,):
            await insist(doing, cluster, f"/admin/options/{name}/unset", bucket_type=kind)

    doing.undo_later(f"option {name} of {cluster.name}", unset)
    kind = doing.chance.choice([None, "default"]) if SettingScope.BUCKET_TYPE in OPTIONS[name].scopes else None
    return name, kind


@step(StepKind.ACT, weight=9, covers=("POST /admin/options/{option}/set",))
async def option_set(doing: Doing) -> None:
    """Of a cluster, or of a bucket type."""
    cluster = doing.cluster()
    name, kind = option_of(doing, cluster)
    value = doing.chance.choice(VALUES[name])
    expected: dict[str, Any] = doing.chance.choice([{}, {}, {"expected": None}])
    await act(doing, cluster, f"/admin/options/{name}/set", value=value, bucket_type=kind, **expected)


@step(StepKind.ACT, weight=6, covers=("POST /admin/options/{option}/unset",))
async def option_unset(doing: Doing) -> None:
    """Of a cluster, or of a bucket type."""
    cluster = doing.cluster()
    name, kind = option_of(doing, cluster)
    await act(doing, cluster, f"/admin/options/{name}/unset", bucket_type=kind)

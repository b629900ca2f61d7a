"""`isthmus cluster` and `isthmus partition`: who is there, who leads, what is not as it should be.

Shows what a node's admin listener says; `-o json` prints its answer unchanged.
"""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.output import cell, echo_facts, echo_json, echo_table, output_option
from node.cli.remote import AdminClient, admin_option

PARTITION_COLUMNS: Final = (
    "partition",
    "type",
    "leader",
    "replicas",
    "isr",
    "leo",
    "hw",
    "apply",
    "lag",
    "status",
    "reason",
)
PARTITION_KEYS: Final = ("leader", "replicas", "isr", "leo", "hw", "applied", "lag", "status")


@click.group("cluster")
def cluster_group() -> None:
    """Look at a cluster as a whole."""


@cluster_group.command("status")
@admin_option
@output_option
def status(admin: AdminClient, output: str) -> None:
    """Nodes, controller, leaders, actors, and partitions that lack replicas."""
    answer = admin.get("/admin/cluster")
    if output == "json":
        echo_json(answer)
        return
    partitions = answer.get("partitions") or {}
    echo_facts(
        [
            ("cluster", answer.get("cluster")),
            ("uuid", answer.get("cluster_uuid")),
            ("answered by", answer.get("node")),
            ("version", answer.get("version")),
            ("controller", answer.get("controller")),
            ("partitions", f"{cell(partitions.get('online'))} of {cell(partitions.get('total'))} online"),
            ("under-replicated", answer.get("under_replicated")),
        ]
    )
    click.echo()
    keys = ("name", "state", "http", "admin", "leaders")
    echo_table(("node", *keys[1:]), ([node.get(key) for key in keys] for node in listed(answer, "nodes")))
    click.echo()
    echo_table(
        ("actor", "state", "reason"),
        ([actor.get("actor"), actor.get("state"), actor.get("reason") or ""] for actor in listed(answer, "actors")),
    )


@click.group("partition")
def partition_group() -> None:
    """Look at partitions."""


@partition_group.command("list")
@admin_option
@output_option
def list_partitions(admin: AdminClient, output: str) -> None:
    """Every partition with its leader, replicas, in-sync replicas, offsets and status."""
    answer = admin.get("/admin/partitions")
    if output == "json":
        echo_json(answer)
        return
    echo_table(PARTITION_COLUMNS, (_partition_row(each) for each in listed(answer, "partitions")))


def listed(answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects under `key`; none when the node (of another version, maybe) does not list them."""
    found = answer.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _partition_row(each: dict[str, Any]) -> list[Any]:
    kind = f"{cell(each.get('bucket_type'))}/{cell(each.get('index'))}"
    return [each.get("partition"), kind, *(each.get(key) for key in PARTITION_KEYS), each.get("reason") or ""]

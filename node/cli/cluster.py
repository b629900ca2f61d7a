"""`isthmus cluster`: who is there, who leads, what is not as it should be.

Shows what a node's admin listener says of its cluster; `-o json` prints its answer unchanged. Ends with 1 when
something is amiss, so that a script can wait for a whole cluster.
"""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.acts import reseed
from node.cli.adopting import adopt_command
from node.cli.exits import Exit
from node.cli.output import cell, echo_facts, echo_json, echo_table, moment, output_option
from node.cli.remote import AdminClient, admin_option
from node.cli.telemetry import telemetry

NODE_KEYS: Final = (
    "name",
    "id",
    "rack",
    "state",
    "drained",
    "leaders",
    "replicas",
    "in_sync",
    "http",
    "admin",
    "cluster",
)
STATUSES: Final = ("online", "election", "candidate_found", "offline")


@click.group("cluster")
def cluster_group() -> None:
    """Look at a cluster as a whole, and mend it."""


cluster_group.add_command(adopt_command)
cluster_group.add_command(reseed)
cluster_group.add_command(telemetry)


@cluster_group.command("status")
@admin_option
@output_option
def status(admin: AdminClient, output: str) -> int:
    """Nodes, controller, leaders, actors, and what is amiss. Code 1 unless all partitions are online and in sync."""
    answer = admin.get("/admin/cluster")
    problems = [each for each in _list(answer, "problems") if isinstance(each, str)]
    if output == "json":
        echo_json(answer)
    else:
        _echo(answer, problems)
    return Exit.DIFFERS if problems else Exit.OK


def _echo(answer: dict[str, Any], problems: list[str]) -> None:
    found = answer.get("partitions")
    partitions = found if isinstance(found, dict) else {}
    counted = [f"{partitions[key]} {key.replace('_', '-')}" for key in STATUSES[1:] if partitions.get(key)]
    online = f"{cell(partitions.get('online'))} of {cell(partitions.get('total'))} online"
    lost = ", this node is not registered" if answer.get("registered") is False else ""
    echo_facts(
        [
            ("cluster", answer.get("cluster")),
            ("uuid", answer.get("cluster_uuid")),
            ("state", ": ".join(each for each in (cell(answer.get("state")), answer.get("state_reason")) if each)),
            ("answered by", answer.get("node")),
            ("version", answer.get("version")),
            ("controller", answer.get("controller")),
            ("metastore", f"{cell(answer.get('metastore'))}{lost}, read {moment(answer.get('read_at_ms'))}"),
            ("partitions", ", ".join([online, *counted])),
            *(("moving", each) for each in _moving(answer)),
            ("under-replicated", answer.get("under_replicated")),
            ("below min-ISR", answer.get("below_min_isr")),
            *(("unclean elections", each) for each in _unclean(answer)),
            *(("amiss", each) for each in problems),
            *(("warning", each) for each in _list(answer, "warnings") if isinstance(each, str)),
        ]
    )
    click.echo()
    columns = ("node", *(key.replace("_", " ") for key in NODE_KEYS[1:]))
    echo_table(columns, ([node.get(key) for key in NODE_KEYS] for node in listed(answer, "nodes")))
    click.echo()
    echo_table(
        ("actor", "state", "reason"),
        ([actor.get("actor"), actor.get("state"), actor.get("reason") or ""] for actor in listed(answer, "actors")),
    )


def listed(answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects under `key`; none when the node (of another version, maybe) does not list them."""
    return [each for each in _list(answer, key) if isinstance(each, dict)]


def _list(answer: dict[str, Any], key: str) -> list[Any]:
    found = answer.get(key)
    return found if isinstance(found, list) else []


def _moving(answer: dict[str, Any]) -> list[str]:
    """One sentence if replicas are moved by order."""
    found = answer.get("moving")
    return [found["reason"]] if isinstance(found, dict) and found.get("reason") else []


def _unclean(answer: dict[str, Any]) -> list[str]:
    """One sentence if an operator ever had a leader elected that may have lacked something."""
    found = answer.get("unclean_elections")
    if not isinstance(found, dict) or not found:
        return []
    names = ", ".join(f"{cell(partition)} ({cell(times)})" for partition, times in list(found.items())[:8])
    return [f"partition (times): {names}" + (", ..." if len(found) > 8 else "")]

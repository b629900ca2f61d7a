"""`isthmus cluster`: who is there, who leads, what is not as it should be.

Shows what a node's admin listener says of its cluster; `-o json` prints its answer unchanged. Ends with 1 when
something is amiss, so that a script can wait for a whole cluster.

`isthmus cluster telemetry`: replication in numbers, of the cluster, of each bucket type and of each node.

Shows what a node gathered from all (`GET /admin/telemetry`); `-o json` prints its answer unchanged. Rates and times are
of the last 30 to 60 s, totals since each node began.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.cluster_adopt import adopt_command
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.output import cell, echo_facts, echo_json, echo_table, milliseconds, moment, output_option
from isthmus.node.cli.unsafe_recovery import reseed

PARTS: Final = (("leader", "leaders"), ("isr", "ISR followers"), ("osr", "OSR"))


@click.command("telemetry")
@admin_option
@output_option
def telemetry(admin: AdminClient, output: str) -> None:
    """Replogs, replication, apply and ISR in numbers: cluster, bucket types, nodes.

    Logs by role, times and rates by kind of entry, failures, and the worst ISR.
    """
    answer = admin.get("/admin/telemetry")
    if output == "json":
        echo_json(answer)
        return
    levels = list(_levels(answer))
    unknown = answer.get("nodes_unknown")
    if unknown:
        echo_facts([("not counted, unknown", unknown)])
        click.echo()
    columns: tuple[str, ...]
    columns = ("of", "part", "replicas", "entries avg", "entries max", "unapplied avg", "unapplied max")
    echo_table(columns, (row for name, level in levels for row in _replogs(name, level)))
    click.echo()
    columns = (
        "of", "entry", "replicated", "/s", "avg", "max", "failures", "failures/s",
        "applied", "applied/s", "apply avg", "apply max",
    )  # fmt: skip
    echo_table(columns, (row for name, level in levels for row in _kinds(name, level)))
    click.echo()
    echo_table(("of", "worst ISR", "min-ISR", "replicas", "partition"), (_isr(name, level) for name, level in levels))


def _levels(answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "cluster", _mapping(answer.get("cluster"))
    for key, what in (("bucket_types", "bucket_type"), ("nodes", "node")):
        for each in answer.get(key) or []:
            yield f"{what.replace('_', ' ')} {cell(each.get(what))}", _mapping(each)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _replogs(name: str, level: dict[str, Any]) -> Iterator[list[Any]]:
    replogs = level.get("replogs")
    for part, shown in PARTS:
        sizes = _mapping(_mapping(replogs).get(part))
        keys = ("replicas", "entries_average", "entries_max", "unapplied_average", "unapplied_max")
        if replogs is None or sizes.get("replicas"):
            yield [name, shown, *(sizes.get(key) for key in keys)]


def _kinds(name: str, level: dict[str, Any]) -> Iterator[list[Any]]:
    replicate, apply = level.get("replicate"), level.get("apply")
    failures, rates = _mapping(level.get("failures")), _mapping(level.get("failures_per_s"))
    if replicate is None or apply is None:
        yield [name, *[None] * 11]
        return
    for kind in sorted({*replicate, *apply, *failures}):
        done, applied = _mapping(replicate.get(kind)), _mapping(apply.get(kind))
        failed = ", ".join(f"{count} {cell(reason)}" for reason, count in _mapping(failures.get(kind)).items())
        lately = [rate for rate in _mapping(rates.get(kind)).values() if isinstance(rate, int | float)]
        yield [name, kind, *_pace(done), failed or 0, round(sum(lately), 3), *_pace(applied)]


def _pace(pace: dict[str, Any]) -> list[Any]:
    """Total, rate, average and maximum; nothing where nothing of the kind was lately."""
    if not pace:
        return [0, 0.0, "", ""]
    times = (milliseconds(pace[key]) if pace.get(key) is not None else "" for key in ("average_ms", "max_ms"))
    return [pace.get("total"), pace.get("per_s"), *times]


def _isr(name: str, level: dict[str, Any]) -> list[Any]:
    isr = level.get("isr")
    if not isinstance(isr, dict):
        return [name, "", "", "", ""]
    return [name, isr.get("members"), isr.get("min_isr"), isr.get("replicas"), isr.get("partition")]


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

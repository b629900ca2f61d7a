"""`isthmus cluster`: nodes, leaders, what is wrong, and replication in numbers.

`status` ends with 1 when something is wrong, so that a script can wait for a whole cluster.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import click

from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.cluster_adopt import adopt_command
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    cell,
    column,
    echo_facts,
    echo_json,
    echo_table,
    milliseconds,
    moment,
    named,
    object_in,
    objects_in,
    value_or_nothing,
)
from isthmus.node.cli.rolling_restart import rolling_restart, wait_command
from isthmus.node.cli.unsafe_recovery import reseed
from isthmus.node.nouns.node import NodeRow


@click.group("cluster")
def cluster_group() -> None:
    """Look at a cluster as a whole, wait for it, restart its nodes one by one, and repair its metastore."""


for command in (adopt_command, reseed, wait_command, rolling_restart):
    cluster_group.add_command(command)


# --- status ---

STATES: Final = table_of(NodeRow, without={"reason"})
"""Nodes without the reasons of their states, which are among the problems."""
ACTORS: Final = TableSpec("actor", column("state", state=True), column("reason", value_or_nothing("reason"), text=True))
NOT_ONLINE: Final = ("election", "candidate_found", "offline")


@cluster_group.command("status")
@admin_query
def status(query: AdminCommand) -> int:
    """Nodes, controller, leaders, actors, and what is wrong. Code 1 unless all partitions are online and in sync."""
    answer = query.get("/admin/cluster")
    problems = _sentences(answer, "problems")
    if query.json:
        echo_json(answer)
    else:
        _echo(answer, problems)
    return Exit.DIFFERS if problems else Exit.OK


def _echo(answer: Row, problems: list[str]) -> None:
    partitions = object_in(answer, "partitions")
    counted = [f"{partitions[key]} {key.replace('_', '-')}" for key in NOT_ONLINE if partitions.get(key)]
    online = f"{cell(partitions.get('online'))} of {cell(partitions.get('total'))} online"
    lost = ", this node is not registered" if answer.get("registered") is False else ""
    moving = object_in(answer, "moving").get("reason")
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
            *((("moving", moving),) if moving else ()),
            ("under-replicated", answer.get("under_replicated")),
            ("below min-ISR", answer.get("below_min_isr")),
            *(("unclean elections", each) for each in _unclean(answer)),
            *(("problem", each) for each in problems),
            *(("warning", each) for each in _sentences(answer, "warnings")),
        ]
    )
    click.echo()
    STATES.echo(objects_in(answer, "nodes"))
    click.echo()
    ACTORS.echo(objects_in(answer, "actors"))


def _sentences(answer: Row, key: str) -> list[str]:
    found = answer.get(key)
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def _unclean(answer: Row) -> list[str]:
    """One sentence if an operator ever forced the election of a leader that may have lacked something."""
    found = object_in(answer, "unclean_elections")
    if not found:
        return []
    names = [f"{cell(partition)} ({cell(times)})" for partition, times in found.items()]
    return [f"partition (times): {named(names)}"]


# --- telemetry ---

PARTS: Final = (("leader", "leaders"), ("isr", "ISR followers"), ("osr", "OSR"))

REPLOGS: Final = TableSpec(
    "of",
    "part",
    "replicas",
    ("entries avg", "entries_average"),
    "entries_max",
    ("unapplied avg", "unapplied_average"),
    "unapplied_max",
)
WORST_ISR: Final = TableSpec("of", ("worst ISR", "members"), ("min-ISR", "min_isr"), "replicas", "partition")
KIND_COLUMNS: Final = (
    "of", "entry", "replicated", "/s", "avg", "max", "failures", "failures/s",
    "applied", "applied/s", "apply avg", "apply max",
)  # fmt: skip


@cluster_group.command("telemetry", short_help="Replogs, replication, apply and ISR in numbers.")
@admin_query
def telemetry(query: AdminCommand) -> None:
    """Replogs, replication, apply and ISR in numbers: cluster, bucket types, nodes.

    Logs by role, times and rates by kind of entry, failures, and the worst ISR. Rates and times cover the last 30 to
    60 s, totals the time since each node began.
    """
    answer = query.get("/admin/telemetry")
    if query.echo_json(answer):
        return
    levels = list(_levels(answer))
    unknown = answer.get("nodes_unknown")
    if unknown:
        echo_facts([("not counted, unknown", unknown)])
        click.echo()
    REPLOGS.echo(row for name, level in levels for row in _replogs(name, level))
    click.echo()
    echo_table(KIND_COLUMNS, (row for name, level in levels for row in _kinds(name, level)))
    click.echo()
    WORST_ISR.echo({**_isr(level), "of": name} for name, level in levels)


def _levels(answer: Row) -> Iterator[tuple[str, dict[str, Any]]]:
    """The cluster, each bucket type and each node, with their numbers."""
    yield "cluster", object_in(answer, "cluster")
    for key, what in (("bucket_types", "bucket_type"), ("nodes", "node")):
        for each in answer.get(key) or []:
            yield f"{what.replace('_', ' ')} {cell(each.get(what))}", each if isinstance(each, dict) else {}


def _replogs(name: str, level: Row) -> Iterator[Row]:
    for part, shown in PARTS:
        sizes = object_in(object_in(level, "replogs"), part)
        if level.get("replogs") is None or sizes.get("replicas"):
            yield {**sizes, "of": name, "part": shown}


def _kinds(name: str, level: Row) -> Iterator[list[Any]]:
    replicate, apply = level.get("replicate"), level.get("apply")
    failures, rates = object_in(level, "failures"), object_in(level, "failures_per_s")
    if replicate is None or apply is None:
        yield [name, *[None] * (len(KIND_COLUMNS) - 1)]
        return
    for kind in sorted({*replicate, *apply, *failures}):
        failed = ", ".join(f"{count} {cell(reason)}" for reason, count in object_in(failures, kind).items())
        lately = [rate for rate in object_in(rates, kind).values() if isinstance(rate, int | float)]
        done, applied = _pace(object_in(replicate, kind)), _pace(object_in(apply, kind))
        yield [name, kind, *done, failed or 0, round(sum(lately), 3), *applied]


def _pace(pace: Row) -> list[Any]:
    """Total, rate, average and maximum; zeros where there was none lately."""
    if not pace:
        return [0, 0.0, "", ""]
    times = (milliseconds(pace[key]) if pace.get(key) is not None else "" for key in ("average_ms", "max_ms"))
    return [pace.get("total"), pace.get("per_s"), *times]


def _isr(level: Row) -> Row:
    isr = level.get("isr")
    return isr if isinstance(isr, dict) else dict.fromkeys(("members", "min_isr", "replicas", "partition"), "")

"""`isthmus partition`: where partitions are, how a placement would look, and placing a bucket type by a file.

Moving what exists is `node.cli.reassignment`', forcing a leader `node.cli.unsafe_recovery`'.

`plan` is offline and prints what `assign` reads; the rules of both are `repl.controller.placement` and
`repl.controller.placement`, so a file that passes here passes at the node, which checks it once more against the nodes
that live.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.text import quantity
from isthmus.config.validation import check_name
from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import cell, echo_json, echo_table, output_option
from isthmus.node.cli.reassignment import moves, read_named, reassign
from isthmus.node.cli.unsafe_recovery import force_leader
from isthmus.repl.controller.placement import (
    PARTITIONS_MAX,
    REPLICAS_MAX,
    BadReplicaMap,
    ReplicaMap,
    parse_replica_map,
    placed,
    replica_map_document,
)

COLUMNS: Final = ("partition", "type", "leader", "replicas", "isr", "leo", "hw", "apply", "lag", "status", "reason")
KEYS: Final = ("leader", "replicas", "isr", "leo", "hw", "applied", "lag", "status")

NODES_MAX: Final = 1_000
"""Most nodes of a plan; a cluster shares one metastore and each node talks to each, so it stays far below."""

INDEX_MAX: Final = 1_000_000_000
"""Largest start index: beyond any number of partitions that was ever placed."""


def _bucket_type(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return value if value is None else check_name(value)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, "bad-input", f"--bucket-type: {error}") from None


@click.group("partition")
def partition_group() -> None:
    """Look at partitions, place and move them, and force a leader."""


partition_group.add_command(force_leader)
partition_group.add_command(reassign)
partition_group.add_command(moves)


@partition_group.command("list")
@click.option("--bucket-type", metavar="T", callback=_bucket_type, help="Only this bucket type's partitions.")
@admin_option
@output_option
def list_partitions(bucket_type: str | None, admin: AdminClient, output: str) -> None:
    """Every partition with its leader, replicas, in-sync replicas, offsets and status."""
    path = "/admin/partitions" + (f"?bucket_type={quote(bucket_type, safe='')}" if bucket_type else "")
    answer = admin.get(path)
    if output == "json":
        echo_json(answer)
        return
    echo_table(COLUMNS, (_row(each) for each in listed(answer, "partitions")))


def _row(each: dict[str, Any]) -> list[Any]:
    kind = f"{cell(each.get('bucket_type'))}/{cell(each.get('index'))}"
    values = {**each, "leader": each.get("leader") or ("" if each.get("status") else None)}
    return [each.get("partition"), kind, *(values.get(key) for key in KEYS), each.get("reason") or ""]


@partition_group.command("plan")
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    help="Nodes, with the ids 0, 1, ...; without it those of --racks.",
)
@click.option("--partitions", type=click.IntRange(1, PARTITIONS_MAX), required=True, help="Partitions to place.")
@click.option(
    "--replication-factor", type=click.IntRange(1, REPLICAS_MAX), required=True, help="Replicas of each partition."
)
@click.option("--racks", default="", metavar="R:N,...", help="a:2,b:1: ids 0 and 1 are in rack a, 2 is in b.")
@click.option("--ignore-rack-assignment", is_flag=True, help="Place without regard to racks.")
@click.option(
    "--start-index",
    type=click.IntRange(0, INDEX_MAX),
    default=0,
    show_default=True,
    help="One past the index at which the run before ended.",
)
@output_option
def plan(
    nodes: int | None,
    partitions: int,
    replication_factor: int,
    racks: str,
    ignore_rack_assignment: bool,
    start_index: int,
    output: str,
) -> None:
    """Show the computed placement; asks no cluster. `-o json` prints the file that `assign` takes."""
    found = placed(
        partitions,
        replication_factor,
        _racks(racks, nodes),
        ignore_racks=ignore_rack_assignment,
        start_index=start_index,
    )
    _echo_plan(found, _racks(racks, nodes), output)


def _racks(text: str, nodes: int | None) -> dict[int, str]:
    """Node id -> its rack; as many nodes as are named where `nodes` does not say. Raises CommandFailed (usage)."""
    if nodes is None and not text:
        raise CommandFailed(Exit.USAGE, "usage", "how many nodes there are is missing: --nodes, or --racks a:3,b:3")
    most = NODES_MAX if nodes is None else nodes
    names: list[str] = []
    for part in text.split(",") if text else []:
        rack, colon, count = part.partition(":")
        try:
            check_name(rack)
            if not colon or not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= NODES_MAX:
                raise ValueError(f"{part[:80]!r} is not RACK:NUMBER-OF-NODES, such as a:2")
        except ValueError as error:
            raise CommandFailed(Exit.USAGE, "bad-input", f"--racks: {error}") from None
        names += [rack] * int(count)
        if len(names) > most:
            than = f"the most there may be, {NODES_MAX}" if nodes is None else f"--nodes, which is {nodes}"
            raise CommandFailed(Exit.USAGE, "bad-input", f"--racks: {text[:80]} has more nodes than {than}")
    names += [""] * (0 if nodes is None else nodes - len(names))
    return dict(enumerate(names))


def _echo_plan(found: ReplicaMap, racks: dict[int, str], output: str) -> None:
    if output == "json":
        echo_json(replica_map_document(found))
        return
    if not any(racks.values()):
        echo_table(("partition", "leader", "replicas"), ([index, each[0], each] for index, each in enumerate(found)))
        return
    echo_table(
        ("partition", "leader", "replicas", "racks"),
        ([index, each[0], each, [racks[node] for node in each]] for index, each in enumerate(found)),
    )


@partition_group.command("assign")
@click.option("--file", "path", type=click.Path(path_type=Path), required=True, help="A replica map in JSON.")
@click.option("--validate-only", is_flag=True, help="Check the file, and against the cluster if it answers; no more.")
@click.option(
    "--bucket-type", metavar="T", default="default", show_default=True, callback=_bucket_type, help="What to create."
)
@admin_option
@output_option
def assign(path: Path, validate_only: bool, bucket_type: str, admin: AdminClient, output: str) -> None:
    """Create bucket type T with the placement in a file, as `plan -o json` prints it. `reassign` moves what exists."""
    replica_map = read_map(path)
    body = {"bucket_type": bucket_type, "validate_only": validate_only, **replica_map_document(replica_map)}
    try:
        answer = admin.post("/admin/partitions/assign", body)
    except CommandFailed as error:
        if not validate_only or error.reason != "unavailable":
            raise
        answer = {
            "outcome": "valid",
            "bucket_type": bucket_type,
            "partitions": len(replica_map),
            "not_checked": f"whether these nodes live: {error}",
        }
    if output == "json":
        echo_json(answer)
        return
    click.echo(_sentence(answer, path, bucket_type))


def read_map(path: Path) -> ReplicaMap:
    """The replica map in a file; faults name the file. Raises BadReplicaMap, also when it cannot be read."""
    text = read_named(path)
    try:
        return parse_replica_map(text)
    except BadReplicaMap as error:
        raise BadReplicaMap([f"{path}: {fault}" for fault in error.faults]) from None


def _sentence(answer: dict[str, Any], path: Path, bucket_type: str) -> str:
    outcome = cell(answer.get("outcome"))
    number = answer.get("partitions")
    share = quantity(number, "partition") if isinstance(number, int) else f"{cell(number)} partitions"
    what = f"bucket type {bucket_type}, {share}"
    match outcome:
        case "created":
            return f"{what}: created"
        case "exists":
            return f"{what}: exists with just this placement, nothing was changed"
        case "valid":
            left = f"; not checked: {cell(answer['not_checked'])}" if answer.get("not_checked") else ""
            return f"{path} is valid for {what}{left}"
        case _:
            return f"{what}: {outcome}"

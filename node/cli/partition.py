"""`isthmus partition`: where partitions are, computing a placement, and placing a bucket type by a file.

`plan` asks no cluster and prints the file that `assign` reads; `repl.controller.placement` has the rules of both, and
the node checks the file again against the nodes that live. Moving replicas is `node.cli.reassignment`, forcing a leader
`node.cli.unsafe_recovery`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.text import quantity
from isthmus.config.validation import check_name
from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import cell, echo_facts, echo_json, echo_table, objects_in, output_option
from isthmus.node.cli.parameters import (
    Count,
    PartitionName,
    PartitionParameter,
    RenamedOption,
    bucket_type_name,
    checking,
    partition_number,
)
from isthmus.node.cli.reassignment import moves, read_limited, reassign
from isthmus.node.cli.unsafe_recovery import force_leader
from isthmus.node.nouns.partition import PartitionRow, ReplicaRow
from isthmus.repl.controller.placement import (
    PARTITIONS_MAX,
    REPLICAS_MAX,
    BadReplicaMap,
    ReplicaMap,
    parse_replica_map,
    placed,
    replica_map_document,
)
from isthmus.repl.model.errors import BadInput

NODES_MAX: Final = 1_000
"""Most nodes of a plan. Clusters stay far below: all nodes share one metastore and connect to each other."""

INDEX_MAX: Final = 1_000_000_000
"""Largest start index: more than any number of partitions ever placed."""


PARTITIONS: Final = table_of(PartitionRow)
REPLICAS: Final = table_of(ReplicaRow)


@click.group("partition")
def partition_group() -> None:
    """Look at partitions, place and move them, and force a leader."""


partition_group.add_command(force_leader)
partition_group.add_command(reassign)
partition_group.add_command(moves)


@partition_group.command("list", short_help="Every partition: leader, replicas, offsets, status.")
@click.option("--bucket-type", metavar="T", callback=bucket_type_name, help="Only this bucket type's partitions.")
@admin_query
def list_partitions(bucket_type: str | None, query: AdminCommand) -> None:
    """Every partition with its leader, replicas, in-sync replicas, offsets and status."""
    path = "/admin/partitions" + (f"?bucket_type={quote(bucket_type, safe='')}" if bucket_type else "")
    query.echo_rows(query.get(path), "partitions", PARTITIONS)


@partition_group.command("show", short_help="One partition: what each replica reports.")
@click.argument("partition", type=PartitionParameter())
@admin_query
def show(partition: PartitionName, query: AdminCommand) -> None:
    """PARTITION (its number, or TYPE/INDEX): its record, and what each of its replicas reports."""
    answer = query.get(f"/admin/partitions/{partition_number(query.admin, partition)}")
    if query.echo_json(answer):
        return
    PARTITIONS.echo([answer])
    click.echo()
    names = ("epoch", "min_isr", "elr", "adding", "removing")
    echo_facts((name.replace("_", "-"), answer.get(name)) for name in names)
    click.echo()
    REPLICAS.echo(objects_in(answer, "replica_states"))


@partition_group.command("plan")
@click.option(
    "--nodes",
    type=Count(1, NODES_MAX),
    help="Nodes, with the ids 0, 1, ...; without it those of --racks.",
)
@click.option("--partitions", type=Count(1, PARTITIONS_MAX), required=True, help="Partitions to place.")
@click.option(
    "--replication-factor", cls=RenamedOption, old=("--factor",), type=Count(1, REPLICAS_MAX), required=True,
    help="Replicas of each partition.",
)  # fmt: skip
@click.option("--racks", default="", metavar="R:N,...", help="a:2,b:1: ids 0 and 1 are in rack a, 2 is in b.")
@click.option(
    "--ignore-racks",
    is_flag=True,
    cls=RenamedOption,
    old=("--ignore-rack-assignment",),
    help="Place without regard to racks.",
)
@click.option(
    "--start-index",
    type=Count(0, INDEX_MAX),
    default=0,
    show_default=True,
    help="Continue an earlier placement: one past its last index.",
)
@output_option
def plan(
    nodes: int | None,
    partitions: int,
    replication_factor: int,
    racks: str,
    ignore_racks: bool,
    start_index: int,
    output: str,
) -> None:
    """Show a computed placement, without asking a cluster. `-o json` prints the file that `assign` takes."""
    found = placed(
        partitions,
        replication_factor,
        _racks(racks, nodes),
        ignore_racks=ignore_racks,
        start_index=start_index,
    )
    _echo_plan(found, _racks(racks, nodes), output)


def _racks(text: str, nodes: int | None) -> dict[int, str]:
    """Node id -> rack; without `nodes` as many nodes as `text` has. Raises BadInput."""
    if nodes is None and not text:
        raise CommandFailed(Exit.USAGE, "usage", "how many nodes there are is missing: --nodes, or --racks a:3,b:3")
    most = NODES_MAX if nodes is None else nodes
    names: list[str] = []
    for part in text.split(",") if text else []:
        rack, colon, count = part.partition(":")
        with checking("--racks"):
            check_name(rack)
            if not colon or not count.isascii() or not count.isdigit() or not 1 <= int(count[:9]) <= NODES_MAX:
                raise ValueError(f"{part[:80]!r} is not RACK:NUMBER-OF-NODES, such as a:2")
        names += [rack] * int(count)
        if len(names) > most:
            than = f"the most there may be, {NODES_MAX}" if nodes is None else f"--nodes, which is {nodes}"
            raise BadInput(f"--racks: {text[:80]} has more nodes than {than}")
    names += [""] * (0 if nodes is None else nodes - len(names))
    return dict(enumerate(names))


def _echo_plan(found: ReplicaMap, racks: dict[int, str], output: str) -> None:
    if output == "json":
        echo_json(replica_map_document(found))
        return
    columns = ("partition", "leader", "replicas") + ("racks",) * any(racks.values())
    rows = ([index, ids[0], ids, [racks[node] for node in ids]] for index, ids in enumerate(found))
    echo_table(columns, (row[: len(columns)] for row in rows))


@partition_group.command("assign", short_help="Create a bucket type with the placement in a file.")
@click.option("--file", "path", type=click.Path(path_type=Path), required=True, help="A replica map in JSON.")
@click.option(
    "--bucket-type",
    metavar="T",
    default="default",
    show_default=True,
    callback=bucket_type_name,
    help="The bucket type to create.",
)
@admin_act(dry_run=True)
def assign(path: Path, bucket_type: str, act: AdminCommand) -> None:
    """Create bucket type T with the placement in a file, as `plan -o json` prints it. `reassign` moves existing
    replicas.

    --dry-run checks the file, against the cluster if it answers, and creates nothing.
    """
    replica_map = read_map(path)
    body = {"bucket_type": bucket_type, "validate_only": act.dry_run, **replica_map_document(replica_map)}
    try:
        answer = act.post("/admin/partitions/assign", **body)
    except CommandFailed as error:
        if not act.dry_run or error.reason != "unavailable":
            raise
        answer = {
            "outcome": "valid",
            "bucket_type": bucket_type,
            "partitions": len(replica_map),
            "not_checked": f"whether these nodes live: {error}",
        }
    act.echo(answer, _sentence(answer, path, bucket_type))


def read_map(path: Path) -> ReplicaMap:
    """The replica map in a file; faults name the file. Raises BadReplicaMap, also when it cannot be read."""
    text = read_limited(path)
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

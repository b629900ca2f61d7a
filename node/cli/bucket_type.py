"""`isthmus bucket-type`: bucket types, the unit of placement: listed, shown, made and changed.

`repl.controller.placement` computes placements and reads placement files; the node checks both again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.dynamic_options import MIN_ISR
from isthmus.config.text import quantity
from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query
from isthmus.node.cli.bucket import PROPERTIES, parse_assignments, set_properties, unset_properties
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    cell,
    echo_json,
    objects_in,
    printable,
)
from isthmus.node.cli.parameters import Count, RenamedOption
from isthmus.node.cli.partition import read_map
from isthmus.node.cli.reassignment import set_replication_factor
from isthmus.node.nouns.bucket_type import BucketTypeRow
from isthmus.repl.controller.placement import PARTITIONS_MAX, REPLICAS_MAX, replica_map_document
from isthmus.repl.model.errors import BadInput

NAME = click.argument("name")

BUCKET_TYPES: Final = table_of(BucketTypeRow)
PARTITIONS: Final = TableSpec(
    ("index", "id"), "partition", "leader", "nodes", ("ids", "replicas"), "adding", "removing", "status"
)
PLACEMENT: Final = TableSpec(("index", "id"), ("node ids", "replicas"))


@click.group("bucket-type")
def bucket_type_group() -> None:
    """Make and change bucket types, and look where they are."""


bucket_type_group.add_command(set_replication_factor)


@bucket_type_group.command("list", short_help="Every bucket type, and its state.")
@admin_query
def list_types(query: AdminCommand) -> None:
    """Every bucket type: partitions, replicas, min-ISR, and how many partitions are online and fully in sync."""
    query.echo_rows(query.get("/admin/bucket-types"), "bucket_types", BUCKET_TYPES)


@bucket_type_group.command("show", short_help="Where its replicas are, and its properties.")
@NAME
@admin_query
def show(name: str, query: AdminCommand) -> None:
    """The placement of bucket type NAME, and its properties. `-o json` prints the file that `create --file` takes;
    properties alone: `bucket-type properties -o json`."""
    answer = query.get(_path(name))
    rows = objects_in(answer, "partitions")
    if query.json:
        echo_json({"partitions": [{"id": row["id"], "replicas": _replicas(row)} for row in rows]})
        return
    BUCKET_TYPES.echo([answer])
    if answer.get("orders"):
        then, changing = cell(answer.get("replication_factor_then")), cell(answer.get("changing"))
        what = f"partitions that change now: {changing}, replication factor {then} then"
        click.echo(printable(f"order {cell(answer.get('orders'))}: {what}; `isthmus partition moves` shows it"))
    click.echo()
    PARTITIONS.echo(rows)
    click.echo()
    PROPERTIES.echo(objects_in(answer, "properties"))


def _replicas(row: Row) -> list[int | str]:
    """Node ids; for a node that is gone and whose id is unknown its name. A file for `reassign` may have both."""
    pairs = zip(row["nodes"], row["replicas"], strict=True)
    return [node if number is None else number for node, number in pairs]


@bucket_type_group.command("properties", short_help="Every property: value, origin, by whom.")
@NAME
@admin_query
def properties(name: str, query: AdminCommand) -> None:
    """Every property of bucket type NAME: the value in force, its origin, by whom and since when."""
    query.echo_rows(query.get(f"{_path(name)}/properties"), "properties", PROPERTIES)


@bucket_type_group.command("create", short_help="Create a bucket type on the live nodes.")
@NAME
@click.option("--partitions", type=Count(1, PARTITIONS_MAX), help="Number of partitions; cannot be changed later.")
@click.option(
    "--replication-factor", cls=RenamedOption, old=("--factor",), type=Count(1, REPLICAS_MAX),
    help="Replicas of each partition.",
)  # fmt: skip
@click.option("--min-isr", type=Count(), help="Its own min-ISR; without it that of the cluster.")
@click.option(
    "--placement",
    type=click.Choice(("computed", "rack-aware")),
    help="Ignore racks, or require them. Default: by racks if the nodes have them.",
)
@click.option("--prop", "props", multiple=True, metavar="NAME=VALUE", help="A property; may be given several times.")
@click.option("--file", "path", type=click.Path(path_type=Path), help="A replica map, as `show -o json` prints it.")
@admin_act(dry_run=True)
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    min_isr: int | None,
    placement: str | None,
    props: tuple[str, ...],
    path: Path | None,
    act: AdminCommand,
) -> None:
    """Create bucket type NAME on the live nodes; returns when it can be used."""
    body: dict[str, Any] = {"min_isr": min_isr, "dry_run": act.dry_run}
    if props:
        body["props"] = parse_assignments(props)
    if path is not None:
        if (partitions, replication_factor, placement) != (None, None, None):
            raise BadInput("--file already gives --partitions, --replication-factor and --placement")
        body |= replica_map_document(read_map(path))
    elif partitions is None or replication_factor is None:
        raise BadInput("--partitions and --replication-factor are needed, or --file")
    else:
        body |= {"partition_count": partitions, "replication_factor": replication_factor, "placement": placement}
    answer = act.post(_path(name), **body)
    rows = objects_in(answer, "partitions")
    what = f"bucket type {name}, {quantity(len(rows), 'partition')}"
    match answer.get("outcome"):
        case "created":
            act.echo(answer, f"{what}: created, {cell(answer.get('online'))} online")
        case "exists":
            act.echo(answer, f"{what}: exists so, nothing was changed")
        case _:
            act.echo(answer, f"{what}: would be placed so")
            if not act.json:
                PLACEMENT.echo(rows)


@bucket_type_group.command(
    "set", short_help="Set properties, or the min-ISR.", context_settings={"ignore_unknown_options": True}
)
@NAME
@click.argument("assignments", nargs=-1, metavar="[PROPERTY=VALUE...]")
@click.option("--min-isr", type=Count(), help="Replicas that must hold a write; clamped to 1 .. RF.")
@admin_act(dry_run=True)
def set_type(name: str, assignments: tuple[str, ...], min_isr: int | None, act: AdminCommand) -> None:
    """Set properties of bucket type NAME, PROPERTY=VALUE, or its min-ISR. Other options: `isthmus option set ...
    --bucket-type NAME`."""
    if assignments:
        if min_isr is not None:
            raise BadInput("properties or --min-isr: they are set one after the other")
        set_properties(act, f"{_path(name)}/properties", f"bucket type {name}", assignments)
        return
    if min_isr is None:
        raise BadInput("nothing to set: PROPERTY=VALUE, or --min-isr")
    answer = act.post(f"/admin/options/{MIN_ISR}/set", value=min_isr, bucket_type=name, dry_run=act.dry_run)
    rows = objects_in(answer, "options")
    effective = cell(rows[0].get("effective")) if rows else cell(None)
    act.echo(answer, f"bucket type {name}: min-ISR {cell(answer.get('outcome'))}, effective {effective}")
    for warning in answer.get("warnings") or ():
        act.note(f"note: {warning}")


@bucket_type_group.command("unset", short_help="Go back to the defaults of properties.")
@NAME
@click.argument("names", nargs=-1, metavar="[PROPERTY...]")
@admin_act(dry_run=True)
def unset_type(name: str, names: tuple[str, ...], act: AdminCommand) -> None:
    """Remove properties of bucket type NAME, or all without names: the defaults are in force again."""
    unset_properties(act, f"{_path(name)}/properties", f"bucket type {name}", names)


def _path(name: str) -> str:
    return f"/admin/bucket-types/{quote(name, safe='')}"

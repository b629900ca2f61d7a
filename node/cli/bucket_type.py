"""`isthmus bucket-type`: the unit of placement, listed, shown and made.

What is placed where is `repl.controller.placement`'s, what a placement file may say `repl.controller.placement`'s; the
node checks all of it once more.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from isthmus.config.dynamic_options import MIN_ISR
from isthmus.config.text import quantity
from isthmus.node.cli.admin_client import AdminClient, admin_option, whoami
from isthmus.node.cli.bucket import echo_changed, echo_properties, set_properties, wanted
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import cell, echo_json, echo_table, output_option, printable
from isthmus.node.cli.partition import read_map
from isthmus.node.cli.reassignment import set_replication_factor
from isthmus.repl.controller.placement import PARTITIONS_MAX, REPLICAS_MAX, replica_map_document

NAME = click.argument("name")
BY = click.option("--by", default=whoami, show_default="USER@HOST", help="Who does it; shown to others.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say what would be done.")

KEYS = ("bucket_type", "partition_count", "replication_factor", "min_isr", "online", "in_sync")
COLUMNS = ("bucket type", "partitions", "replication factor", "min-isr", "online", "in sync")


@click.group("bucket-type")
def bucket_type_group() -> None:
    """Make and change bucket types, and look where they are."""


bucket_type_group.add_command(set_replication_factor)


@bucket_type_group.command("list")
@admin_option
@output_option
def list_types(admin: AdminClient, output: str) -> None:
    """Every bucket type: partitions, replicas, min-ISR, how many partitions are online and wholly in sync."""
    answer = admin.get("/admin/bucket-types")
    if output == "json":
        echo_json(answer)
    else:
        echo_table(COLUMNS, ([row.get(key) for key in KEYS] for row in listed(answer, "bucket_types")))


@bucket_type_group.command("show")
@NAME
@admin_option
@output_option
def show(name: str, admin: AdminClient, output: str) -> None:
    """Where the replicas of bucket type NAME are, and its properties. `-o json` prints the file that `create --file`
    takes; properties alone: `bucket-type properties -o json`."""
    answer = admin.get(_path(name))
    rows = listed(answer, "partitions")
    if output != "json":
        echo_table(COLUMNS, [[answer.get(key) for key in KEYS]])
        if answer.get("orders"):
            then, changing = cell(answer.get("replication_factor_then")), cell(answer.get("changing"))
            what = f"partitions that change now: {changing}, replication factor {then} then"
            click.echo(printable(f"order {cell(answer.get('orders'))}: {what}; `isthmus partition moves` shows it"))
        click.echo()
        keys = ("id", "partition", "leader", "nodes", "replicas", "adding", "removing", "status")
        columns = ("index", "partition", "leader", "nodes", "ids", "adding", "removing", "status")
        echo_table(columns, ([row.get(key) for key in keys] for row in rows))
        click.echo()
        echo_properties(answer, output)
        return
    echo_json({"partitions": [{"id": row["id"], "replicas": _replicas(row)} for row in rows]})


def _replicas(row: dict[str, Any]) -> list[int | str]:
    """Node ids; the name of a node that is gone, whose id nobody knows: a file for `reassign` may have both."""
    pairs = zip(row["nodes"], row["replicas"], strict=True)
    return [node if number is None else number for node, number in pairs]


@bucket_type_group.command("properties")
@NAME
@admin_option
@output_option
def properties(name: str, admin: AdminClient, output: str) -> None:
    """Every property of bucket type NAME: what counts, where it comes from, by whom and since when."""
    echo_properties(admin.get(f"{_path(name)}/properties"), output)


@bucket_type_group.command("create")
@NAME
@click.option("--partitions", type=click.IntRange(1, PARTITIONS_MAX), help="How many; never changed later.")
@click.option("--replication-factor", type=click.IntRange(1, REPLICAS_MAX), help="Replicas of each partition.")
@click.option("--min-isr", type=int, help="Its own min-ISR. Without it the cluster's counts.")
@click.option(
    "--placement",
    type=click.Choice(("computed", "rack-aware")),
    help="Without regard to racks, or by them. Default: by racks if the nodes have them.",
)
@click.option("--prop", "props", multiple=True, metavar="NAME=VALUE", help="A property; may be given several times.")
@click.option("--file", "path", type=click.Path(path_type=Path), help="A replica map, as `show -o json` prints it.")
@BY
@DRY_RUN
@admin_option
@output_option
def create(
    name: str,
    partitions: int | None,
    replication_factor: int | None,
    min_isr: int | None,
    placement: str | None,
    props: tuple[str, ...],
    path: Path | None,
    by: str,
    dry_run: bool,
    admin: AdminClient,
    output: str,
) -> None:
    """Make bucket type NAME on the nodes that live; returns when it can be used."""
    wish: dict[str, Any] = {"min_isr": min_isr, "by": by, "dry_run": dry_run}
    if props:
        wish["props"] = wanted(props)
    if path is not None:
        if (partitions, replication_factor, placement) != (None, None, None):
            raise CommandFailed(
                Exit.USAGE, "bad-input", "--file says all of --partitions, --replication-factor and --placement"
            )
        wish |= replica_map_document(read_map(path))
    elif partitions is None or replication_factor is None:
        raise CommandFailed(Exit.USAGE, "bad-input", "--partitions and --replication-factor are needed, or --file")
    else:
        wish |= {"partition_count": partitions, "replication_factor": replication_factor, "placement": placement}
    answer = admin.post(_path(name), wish)
    if output == "json":
        echo_json(answer)
        return
    rows = listed(answer, "partitions")
    what = f"bucket type {name}, {quantity(len(rows), 'partition')}"
    match answer.get("outcome"):
        case "created":
            click.echo(printable(f"{what}: created, {cell(answer.get('online'))} online"))
        case "exists":
            click.echo(printable(f"{what}: exists so, nothing was changed"))
        case _:
            click.echo(printable(f"{what}: would be placed so"))
            echo_table(("index", "node ids"), ([row.get("id"), row.get("replicas")] for row in rows))


@bucket_type_group.command("set", context_settings={"ignore_unknown_options": True})
@NAME
@click.argument("assignments", nargs=-1, metavar="[PROPERTY=VALUE...]")
@click.option("--min-isr", type=int, help="Replicas that must hold a write; clamped to 1 .. RF.")
@BY
@DRY_RUN
@admin_option
@output_option
def set_type(
    name: str,
    assignments: tuple[str, ...],
    min_isr: int | None,
    by: str,
    dry_run: bool,
    admin: AdminClient,
    output: str,
) -> None:
    """Set what bucket type NAME goes by: PROPERTY=VALUE, or its min-ISR. Other options: `isthmus option set ...
    --bucket-type NAME`."""
    if assignments:
        if min_isr is not None:
            raise CommandFailed(Exit.USAGE, "bad-input", "properties or --min-isr: they are set one after the other")
        path = f"{_path(name)}/properties"
        set_properties(admin, path, f"bucket type {name}", assignments, by=by, dry_run=dry_run, output=output)
        return
    if min_isr is None:
        raise CommandFailed(Exit.USAGE, "bad-input", "nothing to set: PROPERTY=VALUE, or --min-isr")
    wish = {"value": min_isr, "bucket_type": name, "by": by, "dry_run": dry_run}
    answer = admin.post(f"/admin/options/{MIN_ISR}/set", wish)
    if output == "json":
        echo_json(answer)
        return
    rows = listed(answer, "options")
    effective = cell(rows[0].get("effective")) if rows else cell(None)
    click.echo(printable(f"bucket type {name}: min-ISR {cell(answer.get('outcome'))}, effective {effective}"))
    for warning in answer.get("warnings") or ():
        click.echo(printable(f"note: {warning}"))


@bucket_type_group.command("unset")
@NAME
@click.argument("names", nargs=-1, metavar="[PROPERTY...]")
@BY
@DRY_RUN
@admin_option
@output_option
def unset_type(name: str, names: tuple[str, ...], by: str, dry_run: bool, admin: AdminClient, output: str) -> None:
    """Take back properties of bucket type NAME, or all without names: the defaults count again."""
    answer = admin.post(f"{_path(name)}/properties/unset", {"names": list(names), "by": by, "dry_run": dry_run})
    echo_changed(answer, f"bucket type {name}", output)


def _path(name: str) -> str:
    return f"/admin/bucket-types/{quote(name, safe='')}"

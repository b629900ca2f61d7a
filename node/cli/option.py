"""`isthmus option`: what may be changed while a cluster runs, what it is set to, and what is in force.

Shows and asks what a node's admin listener offers; which options there are is `config.dynamic_options`' affair,
docs/options.md prints them.
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.node.cli.admin_client import AdminClient, admin_option, whoami
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.output import cell, echo_json, echo_table, moment, output_option, printable

NAME = click.argument("name")
BUCKET_TYPE = click.option("--bucket-type", metavar="T", help="Of this bucket type, not of the cluster.")
BY = click.option("--by", default=whoami, show_default="USER@HOST", help="Who does it; shown to others.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say what would be in force.")

COLUMNS: Final = ("option", "for", "default", "set", "effective", "from", "by", "when")


@click.group("option")
def option_group() -> None:
    """Look at dynamic options; set and unset them."""


@option_group.command("list")
@BUCKET_TYPE
@admin_option
@output_option
def list_options(bucket_type: str | None, admin: AdminClient, output: str) -> None:
    """Every option: what it is set to, by whom, and what is in force."""
    _echo(admin.get(f"/admin/options{_query(bucket_type)}"), output)


@option_group.command("get")
@NAME
@BUCKET_TYPE
@admin_option
@output_option
def get(name: str, bucket_type: str | None, admin: AdminClient, output: str) -> None:
    """One option, with its range and meaning."""
    answer = admin.get(f"{_path(name)}{_query(bucket_type)}")
    _echo(answer, output)
    rows = listed(answer, "options")
    if output != "json" and rows:
        click.echo(f"\nrange: {cell(rows[0].get('range'))} {cell(rows[0].get('unit')).replace('-', '')}".rstrip())
        click.echo(printable(str(rows[0].get("meaning"))))


@option_group.command("set", context_settings={"ignore_unknown_options": True})
@NAME
@click.argument("value")
@BUCKET_TYPE
@BY
@DRY_RUN
@admin_option
@output_option
def set_option(
    name: str, value: str, bucket_type: str | None, by: str, dry_run: bool, admin: AdminClient, output: str
) -> None:
    """Set option NAME to VALUE, on all nodes at once and for as long as it is not unset."""
    wish = {"value": value, "bucket_type": bucket_type, "by": by, "dry_run": dry_run}
    _changed(admin.post(f"{_path(name)}/set", wish), name, output, dry_run=dry_run)


@option_group.command("unset")
@NAME
@BUCKET_TYPE
@BY
@DRY_RUN
@admin_option
@output_option
def unset(name: str, bucket_type: str | None, by: str, dry_run: bool, admin: AdminClient, output: str) -> None:
    """Take back what option NAME was set to: the cluster's setting, each node's file, or the default counts again."""
    wish = {"bucket_type": bucket_type, "by": by, "dry_run": dry_run}
    _changed(admin.post(f"{_path(name)}/unset", wish), name, output, dry_run=dry_run)


def _path(name: str) -> str:
    return f"/admin/options/{quote(name, safe='')}"


def _query(bucket_type: str | None) -> str:
    return f"?bucket_type={quote(bucket_type, safe='')}" if bucket_type else ""


def _changed(answer: dict[str, Any], name: str, output: str, *, dry_run: bool) -> None:
    if output != "json":
        before = answer.get("before")
        was = "" if before is None else f" (it was set to {cell(before)})"
        click.echo(printable(f"{name}: {cell(answer.get('outcome'))}{was}"))
        for warning in answer.get("warnings") or ():
            click.echo(printable(f"note: {warning}"))
    _echo(answer, output, dry_run=dry_run)


def _echo(answer: dict[str, Any], output: str, *, dry_run: bool = False) -> None:
    """The rows, and which partitions wait for the controller: nothing does that was not set."""
    if output == "json":
        echo_json(answer)
        return
    rows = listed(answer, "options")
    echo_table(COLUMNS, (_row(each) for each in rows))
    found = [each.get("waiting") for each in rows]
    waiting = sorted({number for numbers in found if isinstance(numbers, list) for number in numbers})
    if waiting and not dry_run:
        numbers = ", ".join(map(str, waiting[:8])) + (", ..." if len(waiting) > 8 else "")
        click.echo(f"not yet in force in partitions {numbers}: their records wait for the controller")


def _row(each: dict[str, Any]) -> list[Any]:
    """What is not set is "-"; by whom and when, too."""
    kind = each.get("bucket_type")
    value = each.get("set")
    return [
        each.get("option"),
        "cluster" if kind is None else f"bucket type {kind}",
        each.get("default"),
        "" if value is None else value,
        each.get("effective"),
        each.get("origin"),
        each.get("by") or "",
        "" if each.get("at_ms") is None else moment(each.get("at_ms")),
    ]

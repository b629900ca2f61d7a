"""`isthmus option`: dynamic options: what they are set to, and what is in force.

`config.dynamic_options` lists the options; docs/settings.md prints them.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

import click

from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query, note_other_nodes
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.output import (
    Row,
    cell,
    named,
    object_in,
    objects_in,
    printable,
)
from isthmus.node.cli.parameters import add_old_name
from isthmus.node.nouns.option import OptionRow

NAME = click.argument("name")
BUCKET_TYPE = click.option("--bucket-type", metavar="T", help="For this bucket type, not for the cluster.")

OPTIONS: Final = table_of(OptionRow)


@click.group("option")
def option_group() -> None:
    """Look at dynamic options; set and unset them."""


@option_group.command("list")
@BUCKET_TYPE
@admin_query
def list_options(bucket_type: str | None, query: AdminCommand) -> None:
    """Every option: its set value, by whom, and the value in force."""
    _echo(query, query.get(f"/admin/options{_query(bucket_type)}"))


@option_group.command("show")
@NAME
@BUCKET_TYPE
@admin_query
def show(name: str, bucket_type: str | None, query: AdminCommand) -> None:
    """One option, with its range and meaning."""
    answer = query.get(f"{_path(name)}{_query(bucket_type)}")
    _echo(query, answer)
    rows = objects_in(answer, "options")
    if not query.json and rows:
        click.echo(f"\nrange: {cell(rows[0].get('range'))} {cell(rows[0].get('unit')).replace('-', '')}".rstrip())
        click.echo(printable(str(rows[0].get("meaning"))))
        if rows[0].get("reason"):
            click.echo(printable(f"reason: {rows[0]['reason']}"))


add_old_name(option_group, "get", show)


@option_group.command("set", context_settings={"ignore_unknown_options": True})
@NAME
@click.argument("value")
@BUCKET_TYPE
@admin_act(dry_run=True)
def set_option(name: str, value: str, bucket_type: str | None, act: AdminCommand) -> None:
    """Set option NAME to VALUE, on all nodes at once, until it is unset."""
    _echo_set(act, name, act.post(f"{_path(name)}/set", value=value, bucket_type=bucket_type, dry_run=act.dry_run))


@option_group.command("unset", short_help="Go back to the cluster's setting, the file's, the default.")
@NAME
@BUCKET_TYPE
@admin_act(dry_run=True)
def unset(name: str, bucket_type: str | None, act: AdminCommand) -> None:
    """Unset option NAME: the cluster's setting, each node's file, or the default is in force again."""
    _echo_set(act, name, act.post(f"{_path(name)}/unset", bucket_type=bucket_type, dry_run=act.dry_run))


def _path(name: str) -> str:
    return f"/admin/options/{quote(name, safe='')}"


def _query(bucket_type: str | None) -> str:
    return f"?bucket_type={quote(bucket_type, safe='')}" if bucket_type else ""


def _echo_set(act: AdminCommand, name: str, answer: Row) -> None:
    before = answer.get("before")
    by = f", by {cell(answer['before_by'])}" if answer.get("before_by") else ""
    was = " (before, it was not set)" if before is None else f" (before: {cell(before)}{by})"
    if answer.get("outcome") == "was not set":
        was = ""
    act.note(f"{name}: {cell(answer.get('outcome'))}{was}")
    for warning in answer.get("warnings") or ():
        act.note(f"note: {warning}")
    _echo(act, answer, waiting=not act.dry_run)


def _echo(command: AdminCommand, answer: Row, *, waiting: bool = True) -> None:
    """Print the options, and the nodes where other values are in force; with `waiting` also the partitions whose
    records wait for the controller."""
    if command.echo_json(answer):
        return
    rows = objects_in(answer, "options")
    OPTIONS.echo(rows)
    for row in rows:
        for node, other in object_in(row, "differs").items():
            command.note(f"note: {row['option']} is {cell(other['effective'])} at node {node} ({other['origin']})")
    note_other_nodes(command, answer)
    found = [each.get("waiting") for each in rows]
    partitions = sorted({number for numbers in found if isinstance(numbers, list) for number in numbers})
    if partitions and waiting:
        click.echo(f"not yet in force in partitions {named(partitions)}: their records wait for the controller")

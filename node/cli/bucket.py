"""`isthmus bucket`: properties of one bucket, TYPE/BUCKET; and showing and setting properties of bucket types.

`config.bucket_properties` lists the properties; the node checks their values. A bucket's name is percent-encoded where
it holds a slash or is no text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query, note_other_nodes
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    cell,
    echo_json,
    moment_or_nothing,
    object_in,
    objects_in,
    value_or_nothing,
)
from isthmus.node.cli.parameters import split_bucket
from isthmus.repl.model.errors import BadInput

WHERE = click.argument("where", metavar="[TYPE/]BUCKET")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _effect(row: Row) -> Any:
    return row.get("meaning") if row.get("acts") else f"none: {row.get('meaning')}"


PROPERTIES: Final = TableSpec(
    "property",
    ("value", lambda row: _text(row.get("value"))),
    ("from", "origin"),
    ("by", value_or_nothing("by")),
    ("when", moment_or_nothing("at_ms")),
    ("effect", _effect),
)
BUCKETS: Final = TableSpec(
    "bucket_type",
    "bucket",
    ("properties", lambda row: " ".join(f"{n}={_text(value)}" for n, value in object_in(row, "props").items())),
)


@click.group("bucket")
def bucket_group() -> None:
    """Properties of single buckets."""


@bucket_group.command("list")
@admin_query
def list_buckets(query: AdminCommand) -> None:
    """Every bucket that has properties of its own."""
    query.echo_rows(query.get("/admin/buckets"), "buckets", BUCKETS)


@bucket_group.command("show", short_help="Every property of a bucket: value, origin, by whom.")
@WHERE
@admin_query
def show(where: str, query: AdminCommand) -> None:
    """Every property of a bucket, BUCKET or TYPE/BUCKET: the value in force, its origin, by whom and since when."""
    query.echo_rows(query.get(bucket_path(where)), "properties", PROPERTIES)


@bucket_group.command("set")
@WHERE
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE...")
@admin_act(dry_run=True)
def set_bucket(where: str, assignments: tuple[str, ...], act: AdminCommand) -> None:
    """Set properties of a bucket, on all nodes at once."""
    set_properties(act, bucket_path(where), where, assignments)


@bucket_group.command("unset", short_help="Go back to the properties of the bucket type.")
@WHERE
@click.argument("names", nargs=-1, metavar="[NAME...]")
@admin_act(dry_run=True)
def unset(where: str, names: tuple[str, ...], act: AdminCommand) -> None:
    """Remove properties of a bucket, or all without names: those of its bucket type are in force again."""
    unset_properties(act, bucket_path(where), where, names)


def bucket_path(where: str) -> str:
    """The admin path of a bucket's properties."""
    kind, bucket = split_bucket(where)
    if not kind or not bucket:
        raise BadInput("a bucket is written BUCKET, or TYPE/BUCKET; neither may be empty")
    return f"/admin/buckets/{quote(kind, safe='')}/{quote(bucket, safe='%')}/properties"


def parse_assignments(assignments: Sequence[str]) -> dict[str, Any]:
    """The properties in `NAME=VALUE...`; a value is JSON, or else a text. Raises BadInput."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise BadInput(f"{assignment!r} is not of the form NAME=VALUE")
        if name in found:
            raise BadInput(f"{name} is given twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def set_properties(act: AdminCommand, path: str, title: str, assignments: Sequence[str]) -> None:
    """Set properties at `path`, and show those that are set then."""
    answer = act.post(f"{path}/set", props=parse_assignments(assignments), dry_run=act.dry_run)
    _echo_change(act, answer, title, [row for row in objects_in(answer, "properties") if row.get("by") is not None])


def unset_properties(act: AdminCommand, path: str, title: str, names: Sequence[str]) -> None:
    """Remove properties at `path`, or all without names, and show what is in force of them then."""
    answer = act.post(f"{path}/unset", names=list(names), dry_run=act.dry_run)
    rows = [row for row in objects_in(answer, "properties") if not names or row.get("property") in names]
    _echo_change(act, answer, title, rows)


def _echo_change(act: AdminCommand, answer: Row, title: str, rows: Sequence[Row]) -> None:
    if act.json:
        echo_json(answer)
        return
    act.note(f"{title}: {cell(answer.get('outcome'))}")
    for warning in answer.get("warnings") or ():
        act.note(f"note: {warning}")
    note_other_nodes(act, answer)
    PROPERTIES.echo(rows)

"""`isthmus bucket`: properties of one bucket, TYPE/BUCKET, and how properties of bucket types are shown and set.

Which properties there are is `config.bucket_properties`' affair; the node judges them. A bucket's name is
percent-encoded where it holds a slash or is no text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.node.cli.admin_client import AdminClient, admin_option, whoami
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import cell, echo_json, echo_table, moment, output_option, printable
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE

WHERE = click.argument("where", metavar="[TYPE/]BUCKET")
BY = click.option("--by", default=whoami, show_default="USER@HOST", help="Who does it; shown to others.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say whether it would be taken.")

COLUMNS: Final = ("property", "value", "from", "by", "when", "effect")


@click.group("bucket")
def bucket_group() -> None:
    """Properties of single buckets."""


@bucket_group.command("list")
@admin_option
@output_option
def list_buckets(admin: AdminClient, output: str) -> None:
    """Every bucket that has properties of its own."""
    answer = admin.get("/admin/buckets")
    if output == "json":
        echo_json(answer)
        return
    rows = listed(answer, "buckets")
    echo_table(
        ("bucket type", "bucket", "properties"),
        ([r.get("bucket_type"), r.get("bucket"), _assigned(r.get("props"))] for r in rows),
    )


@bucket_group.command("show")
@WHERE
@admin_option
@output_option
def show(where: str, admin: AdminClient, output: str) -> None:
    """Every property of a bucket, BUCKET or TYPE/BUCKET: what counts, where it comes from, by whom and since when."""
    echo_properties(admin.get(bucket_path(where)), output)


@bucket_group.command("set")
@WHERE
@click.argument("assignments", nargs=-1, required=True, metavar="NAME=VALUE...")
@BY
@DRY_RUN
@admin_option
@output_option
def set_bucket(
    where: str, assignments: tuple[str, ...], by: str, dry_run: bool, admin: AdminClient, output: str
) -> None:
    """Set properties of a bucket, on all nodes at once."""
    set_properties(admin, bucket_path(where), where, assignments, by=by, dry_run=dry_run, output=output)


@bucket_group.command("unset")
@WHERE
@click.argument("names", nargs=-1, metavar="[NAME...]")
@BY
@DRY_RUN
@admin_option
@output_option
def unset(where: str, names: tuple[str, ...], by: str, dry_run: bool, admin: AdminClient, output: str) -> None:
    """Take back properties of a bucket, or all without names: its bucket type's count again."""
    answer = admin.post(f"{bucket_path(where)}/unset", {"names": list(names), "by": by, "dry_run": dry_run})
    echo_changed(answer, where, output)


def bucket_path(where: str) -> str:
    """The admin path of a bucket's properties; without a slash the bucket is of the default type."""
    kind, slash, bucket = where.partition("/")
    if not slash:
        kind, bucket = DEFAULT_BUCKET_TYPE.decode(), where
    if not kind or not bucket:
        raise CommandFailed(Exit.USAGE, "bad-input", "a bucket is written BUCKET, or TYPE/BUCKET; neither may be empty")
    return f"/admin/buckets/{quote(kind, safe='')}/{quote(bucket, safe='%')}/properties"


def wanted(assignments: Sequence[str]) -> dict[str, Any]:
    """The properties in `NAME=VALUE...`; a value is JSON, or else a text."""
    found: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise CommandFailed(Exit.USAGE, "bad-input", f"{assignment!r} is not of the form NAME=VALUE")
        if name in found:
            raise CommandFailed(Exit.USAGE, "bad-input", f"{name} is given twice")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def set_properties(
    admin: AdminClient, path: str, where: str, assignments: Sequence[str], *, by: str, dry_run: bool, output: str
) -> None:
    """Set what the assignments say at `path`, and show what counts then."""
    answer = admin.post(f"{path}/set", {"props": wanted(assignments), "by": by, "dry_run": dry_run})
    echo_changed(answer, where, output)


def echo_changed(answer: dict[str, Any], where: str, output: str) -> None:
    """What became of a change, and what is set then."""
    if output != "json":
        click.echo(printable(f"{where}: {cell(answer.get('outcome'))}"))
    echo_properties(answer, output, only_set=True)


def echo_properties(answer: dict[str, Any], output: str, *, only_set: bool = False) -> None:
    """A table of properties; with `only_set` of those that somebody has set."""
    if output == "json":
        echo_json(answer)
        return
    rows = [row for row in listed(answer, "properties") if not only_set or row.get("by") is not None]
    echo_table(COLUMNS, (_row(row) for row in rows))


def _row(row: dict[str, Any]) -> list[Any]:
    at_ms = row.get("at_ms")
    return [
        row.get("property"),
        _value(row.get("value")),
        row.get("origin"),
        row.get("by") or "",
        "" if at_ms is None else moment(at_ms),
        row.get("meaning") if row.get("acts") else f"none: {row.get('meaning')}",
    ]


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _assigned(props: Any) -> str:
    return " ".join(f"{name}={_value(value)}" for name, value in props.items()) if isinstance(props, dict) else ""

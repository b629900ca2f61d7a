"""`isthmus kv reap`: the tombstone of one key removed, or who still needs it. The node decides (`repl.reaping`)."""

from __future__ import annotations

from typing import Any

import click

from node.cli.exits import CommandFailed, Exit
from node.cli.output import cell, echo_json, output_option, printable
from node.cli.remote import AdminClient, admin_option
from repl.model.keys import DEFAULT_BUCKET_TYPE


@click.command("reap")
@click.argument("where", metavar="[TYPE/]BUCKET")
@click.argument("name", metavar="KEY")
@admin_option
@output_option
def reap(where: str, name: str, admin: AdminClient, output: str) -> None:
    """Remove the tombstone of KEY, whatever its bucket's delete_mode: if every replica is in sync and every queue has
    its acknowledgement. Otherwise it says who is waited for, and exits with code 4. Names are percent-encoded where
    they hold a slash or are no plain text."""
    kind, slash, bucket = where.partition("/")
    if not slash:
        kind, bucket = DEFAULT_BUCKET_TYPE.decode(), where
    answer: dict[str, Any] = admin.post("/admin/reaps", {"bucket_type": kind, "bucket": bucket, "key": name})
    outcome, reason = cell(answer.get("outcome")), cell(answer.get("reason"))
    if output == "json":
        echo_json(answer)
    elif outcome == "reaped":
        click.echo(printable(f"{where} {name}: reaped"))
    if outcome != "reaped":
        raise CommandFailed(Exit.REFUSED, outcome, reason)

"""`isthmus sink dead-letters`: changes of other clusters that one node's sink refused for good.

They lie on the node that fetched them, so `--admin` says whose are meant. What they are: docs/sinks.md.
"""

from __future__ import annotations

from typing import Any, Final

import click

from node.cli.cluster import listed
from node.cli.confirming import confirm
from node.cli.exits import CommandFailed, Exit
from node.cli.output import cell, echo_json, echo_table, moment, output_option
from node.cli.queue import BY
from node.cli.remote import AdminClient, admin_option

IDS = click.argument("ids", metavar="[ID]...", nargs=-1, type=click.IntRange(1))
YES = click.option("--yes", is_flag=True, help="Do not ask before all are dropped.")

IDS_AT_ONCE: Final = 1_000
"""Letters of one request to the node; more are asked for in several."""

ALL = click.option("--all", "everything", is_flag=True, help="All of them.")


@click.group("dead-letters")
def dead_letters_group() -> None:
    """Look at changes that were refused for good; push them again, or drop them."""


@dead_letters_group.command("list")
@admin_option
@output_option
def list_letters(admin: AdminClient, output: str) -> None:
    """Every dead letter that this node keeps, the oldest first: what it refused for good, and why."""
    answer = admin.get("/admin/sink/dead-letters")
    if output == "json":
        echo_json(answer)
        return
    columns = ("id", "at", "queue", "source", "type", "bucket", "key", "bytes", "kept", "tries", "reason", "error")
    rows = []
    for letter in listed(answer, "dead_letters"):
        key = letter.get("key")
        parts = key if isinstance(key, list) and len(key) == 3 else [None, None, None]
        plain = [letter.get(name) for name in ("size_bytes", "object_kept", "tries", "reason", "error")]
        where = [letter.get("queue"), letter.get("source_cluster")]
        rows.append([letter.get("id"), moment(letter.get("at_ms")), *where, *parts, *plain])
    echo_table(columns, rows)


@dead_letters_group.command("retry")
@IDS
@ALL
@BY
@admin_option
@output_option
def retry(ids: tuple[int, ...], everything: bool, by: str, admin: AdminClient, output: str) -> Exit:
    """Push dead letters again. What is taken now is off the list; code 1 when one was not. Each has a request of its
    own, since it may wait for its source, or for a leader, as long as a request has."""
    _chosen(ids, everything)
    asked = tuple(dict.fromkeys(ids)) if ids else _kept(admin)
    retried: list[dict[str, Any]] = []
    try:
        for number in asked:
            answer = admin.post("/admin/sink/dead-letters/retry", {"ids": [number], "by": by})
            retried += (found := listed(answer, "retried"))
            for letter in found if output != "json" else ():
                why = f": {cell(letter.get('error'))}" if letter.get("error") else ""
                click.echo(f"{letter.get('id')}: {cell(letter.get('outcome') or letter.get('reason'))}{why}")
    except CommandFailed as error:
        sentence = f"dead letter {number}, after {len(retried)} of {len(asked)}: {error}"
        raise CommandFailed(error.exit_code, error.reason, sentence) from error
    finally:
        if output == "json":
            echo_json({"retried": retried})
    taken = sum(letter.get("outcome") in ("applied", "superseded", "merged") for letter in retried)
    if everything and output != "json":
        click.echo(f"taken: {taken} of {len(asked)}")
    return Exit.OK if taken == len(asked) else Exit.DIFFERS


@dead_letters_group.command("drop")
@IDS
@ALL
@YES
@BY
@admin_option
@output_option
def drop(ids: tuple[int, ...], everything: bool, yes: bool, by: str, admin: AdminClient, output: str) -> None:
    """Forget dead letters. The change stays what it is at its source; full-sync may find that the clusters differ. With
    --all their number is told, and asked about; what comes meanwhile stays."""
    _chosen(ids, everything)
    if everything:
        ids = _kept(admin)
        if ids:
            confirm(yes, f"Drop all {len(ids)} dead letters of this node?", output)
    asked, dropped = sorted(set(ids)), 0
    for start in range(0, len(asked), IDS_AT_ONCE):
        wish = {"ids": asked[start : start + IDS_AT_ONCE], "by": by}
        dropped += int(admin.post("/admin/sink/dead-letters/drop", wish).get("dropped") or 0)
    if output == "json":
        echo_json({"dropped": dropped})
    else:
        click.echo(f"dropped: {dropped}" + (f" of {len(asked)}" if everything else ""))
    left = len(asked) - dropped
    if left > 0 and not everything:
        click.echo(f"{left} of {len(asked)} are not kept by this node: letters lie on the node that fetched", err=True)


def _kept(admin: AdminClient) -> tuple[int, ...]:
    """The ids of all that the node keeps."""
    kept = listed(admin.get("/admin/sink/dead-letters"), "dead_letters")
    return tuple(letter["id"] for letter in kept if type(letter.get("id")) is int)


def _chosen(ids: tuple[int, ...], everything: bool) -> None:
    if bool(ids) == everything:
        raise CommandFailed(Exit.USAGE, "bad-input", "give the ids of dead letters, or --all")

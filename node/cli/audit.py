"""`isthmus audit`: the acts of operators on all nodes, from their journals.

docs/what-happened.md explains the columns.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import click

from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.output import NOTHING, Row, TableSpec, column, moment, moment_of, object_in, objects_in
from isthmus.node.cli.parameters import Count, time_of, time_or_ago
from isthmus.node.http.answer_limits import ROWS_MAX


def _who(row: Row) -> str:
    """The name of who acted, else the certificate's, the token's role, or the address; and the way."""
    who = object_in(row, "who")
    names = ", ".join(map(str, who.get("certificate") or ()))
    host = str(row.get("from") or "").rpartition(":")[0]
    return f"{who.get('by') or names or who.get('role') or host or NOTHING} ({row.get('via')})"


def _outcome(row: Row) -> str:
    """The outcome; of a refusal with its reason code."""
    error = row.get("error")
    reason = str(error).partition(":")[0] if error else ""
    return f"{row.get('outcome')}: {reason}" if reason else str(row.get("outcome"))


ACTS: Final = TableSpec(
    ("at", moment_of("at_ms")),
    column("node", leave=1),
    column("who", _who, text=True),
    column("act", lambda row: object_in(row, "what").get("act"), text=True),
    column("outcome", _outcome, state=True),
)


@click.group("audit")
def audit_group() -> None:
    """Look at the audit log: who changed what, and when."""


@audit_group.command("list", short_help="The acts of operators on all nodes, newest first.")
@click.option(
    "--since",
    metavar="TIME",
    help="Only acts from this time on, such as 2026-02-03T04:05 (UTC), or 15m for 15 minutes ago.",
)
@click.option("--before", "until", metavar="TIME", help="Only acts up to this time.")
@click.option("--node", metavar="NAME", help="Only what was asked of this node.")
@click.option("--act", metavar="TEXT", help="Only acts whose words or route contain this text, such as `set option`.")
@click.option("--who", metavar="TEXT", help="Only acts by this name, role, token digest, certificate or address.")
@click.option("--object", "target", metavar="TEXT", help="Only acts whose path or request contains this text.")
@click.option("--outcome", type=click.Choice(("done", "refused", "unknown")), help="Only acts with this outcome.")
@click.option("--limit", type=Count(1, ROWS_MAX), default=50, show_default=True, help="Most acts to show.")
@click.option("--from", "before", metavar="CURSOR", help="Continue after a page: the cursor that it printed.")
@admin_query
def list_acts(
    since: str | None,
    until: str | None,
    node: str | None,
    act: str | None,
    who: str | None,
    target: str | None,
    outcome: str | None,
    limit: int,
    before: str | None,
    query: AdminCommand,
) -> None:
    """The acts of operators on all nodes, the newest first: when, at which node, by whom, by which
    interface, and how it ended. `-o json` has the values before and after, the reason, and the address."""
    wanted = {
        "since": None if since is None else time_or_ago(since),
        "until": None if until is None else time_of(until, "--before"),
        "node": node,
        "act": act,
        "who": who,
        "object": target,
        "outcome": outcome,
        "limit": limit,
        "before": before,
    }
    answer = query.get("/admin/audit?" + urlencode({k: v for k, v in wanted.items() if v is not None}))
    query.echo_rows(answer, "acts", ACTS)
    for name, why in object_in(answer, "unknown").items():
        query.note(f"note: acts of node {name} are missing: {why}")
    for name, found in object_in(answer, "nodes").items():
        if isinstance(found, dict) and found.get("lost"):
            query.note(f"note: node {name} has lost {found['lost']} lines since it started")
    if answer.get("next") and not objects_in(answer, "acts"):
        query.note(f"none found back to {moment(answer.get('searched_to_ms'))}")
    if answer.get("next"):
        query.note(f"older ones: --from {answer['next']}")

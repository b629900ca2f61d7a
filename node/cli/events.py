"""`isthmus events`: what happened lately on all nodes of a cluster, in one timeline."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from typing import Any, Final
from urllib.parse import urlencode

import click

from isthmus.config.units import parse_duration
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.output import Row, TableSpec, column, moment, moment_of, object_in, objects_in, printable
from isthmus.node.cli.parameters import Duration, time_of
from isthmus.repl.model.errors import BadInput

LIMIT_MAX: Final = 1_000
"""Most events of one answer, as in the admin API."""

FOLLOW_S: Final = 2.0
"""Between two looks of --follow."""

OVERLAP_MS: Final = 10_000
"""How far --follow looks back again: clocks of nodes differ, and an answer may come late. A guess."""

SEEN_MAX: Final = 10_000
"""Events that --follow remembers as printed: more than all nodes have in OVERLAP_MS."""

EVENTS: Final = TableSpec(
    ("at", moment_of("at_ms")),
    "node",
    column("kind", leave=1),
    "event",
    column("text", text=True),
)


@click.command("events")
@click.option("--since", metavar="TIME", help="From this time on, such as 2026-02-03T04:05 (UTC), or 15m ago.")
@click.option("--kind", metavar="KIND", help="Only act, election, replica, node, order, link, check, disk, ...")
@click.option("--node", metavar="NAME", help="Only of this node.")
@click.option("--limit", type=click.IntRange(1, LIMIT_MAX), default=100, show_default=True, help="Most events to show.")
@click.option("--follow", is_flag=True, help="Print further events as they come, until Ctrl-C, which is code 0.")
@click.option("--timeout", "timeout_ms", type=Duration(), metavar="TIME", help="End --follow after this.")
@admin_query
def events_command(
    since: str | None,
    kind: str | None,
    node: str | None,
    limit: int,
    follow: bool,
    timeout_ms: int | None,
    query: AdminCommand,
) -> None:
    """What happened on all nodes: elections, nodes that come and go, replicas in and out of sync, orders, acts of
    operators, links, checks. The oldest first; -o json with --follow prints a line for each event.

    Acts are kept by the audit log, over restarts; of other events each node keeps the newest 2,000 since its start.
    """
    if timeout_ms is not None and not follow:
        raise BadInput("--timeout ends --follow: give both")
    since_ms = None if since is None else _since(since)
    wanted = {"since": since_ms, "kind": kind, "limit": limit}
    answer = query.get(_path(wanted))
    rows = _of(answer, node)
    if not follow:
        if query.echo_json({**answer, "events": rows}):
            return
        EVENTS.echo(rows)
        _note_unknown(answer)
        return
    ends_s = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    seen: OrderedDict[tuple[Any, Any], None] = OrderedDict()
    _note_unknown(answer)
    try:
        while True:
            _print_new(query, rows, seen)
            if ends_s is not None and time.monotonic() >= ends_s:
                return
            time.sleep(FOLLOW_S if ends_s is None else max(0.0, min(FOLLOW_S, ends_s - time.monotonic())))
            newest = max((int(row.get("at_ms") or 0) for row in rows), default=0)
            back_ms = max(0, (newest or int(answer.get("at_ms") or 0)) - OVERLAP_MS)
            answer = query.get(_path({"since": max(back_ms, since_ms or 0), "kind": kind, "limit": LIMIT_MAX}))
            rows = _of(answer, node) or rows
    except KeyboardInterrupt:
        return


def _since(text: str) -> int:
    """A time, or a duration before now."""
    try:
        return max(0, time.time_ns() // 1_000_000 - parse_duration(text))
    except ValueError:
        return time_of(text, "--since")


def _path(wanted: dict[str, Any]) -> str:
    return "/admin/events?" + urlencode({key: value for key, value in wanted.items() if value is not None})


def _of(answer: Row, node: str | None) -> list[dict[str, Any]]:
    return [row for row in objects_in(answer, "events") if node in (None, row.get("node"))]


def _print_new(query: AdminCommand, rows: list[dict[str, Any]], seen: OrderedDict[tuple[Any, Any], None]) -> None:
    """Print the events that were not printed before, a line each."""
    for row in rows:
        key = row.get("node"), row.get("id")
        if key in seen:
            continue
        seen[key] = None
        if len(seen) > SEEN_MAX:
            seen.popitem(last=False)
        if query.json:
            click.echo(json.dumps(row))
        else:
            text = f": {row['text']}" if row.get("text") else ""
            click.echo(printable(f"{moment(row.get('at_ms'))} {row.get('node')} {row.get('event')}{text}"))


def _note_unknown(answer: Row) -> None:
    for name, why in object_in(answer, "unknown").items():
        click.echo(printable(f"isthmus: the events of node {name} are unknown: {why}"), err=True)

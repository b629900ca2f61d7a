"""`isthmus events`: events of all nodes of a cluster in one timeline."""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

import click

from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.node.cli.output import Row, TableSpec, column, moment, moment_of, object_in, objects_in, printable
from isthmus.node.cli.parameters import Count, Duration, time_or_ago
from isthmus.node.http.answer_limits import ROWS, ROWS_MAX
from isthmus.node.http.answer_texts import without_age
from isthmus.repl.model.errors import BadInput

FOLLOW_S: Final = 2.0
"""Between two looks of --follow."""

OVERLAP_MS: Final = 10_000
"""How far --follow looks back behind its last complete answer, by the clock of each node: an event may come late. A
guess."""

BACK_MAX_MS: Final = 600_000
"""How far it looks back at most: a node that does not answer for longer has its older events in `isthmus events`."""

SEEN_MAX: Final = 20_000
"""Events that --follow remembers as printed: those of some answers of 1,000."""

FOLD_MS: Final = 600_000
"""Longest time between two equal events that a table shows as one: a fault that lasts is reported every few seconds or
minutes; after a longer pause it is news. A guess."""

EVENTS: Final = TableSpec(
    ("at", moment_of("at_ms")),
    "node",
    column("kind", leave=1),
    "event",
    column("text", text=True),
)


@click.command("events")
@click.option(
    "--since", metavar="TIME", help="From this time on, such as 2026-02-03T04:05 (UTC), or 15m for 15 minutes ago."
)
@click.option("--kind", metavar="KIND", help="Only act, election, replica, node, order, link, check, disk, ...")
@click.option("--node", metavar="NAME", help="Only of this node.")
@click.option("--limit", type=Count(1, ROWS_MAX), default=ROWS, show_default=True, help="Most events to show.")
@click.option("--follow", is_flag=True, help="Print further events as they come, until Ctrl-C, which is code 0.")
@click.option("--timeout", "timeout_ms", type=Duration(), help="End --follow after this.")
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
    """The events of all nodes: elections, nodes that come and go, replicas in and out of sync, orders, acts of
    operators, links, checks. The oldest first; -o json with --follow prints a line for each event.

    Repeated events are one line, with their number and the first time; -o json has each.

    They come from the nodes' journals, which are on disk and go back beyond the last restart.
    """
    if timeout_ms is not None and not follow:
        raise BadInput("--timeout ends --follow: give both")
    since_ms = None if since is None else time_or_ago(since)
    wanted = {"since": since_ms, "kind": kind, "node": node}
    began_s = time.monotonic()
    answer = query.get(_path({**wanted, "limit": limit}))
    if not follow:
        if query.echo_json(answer):
            return
        EVENTS.echo(folded(objects_in(answer, "events")))
        _note_unknown(answer)
        return
    follower = _Follower(query, wanted, began_s)
    try:
        follower.print_new(answer)
        follower.run(None if timeout_ms is None else began_s + timeout_ms / 1000)
    except KeyboardInterrupt:
        return


def folded(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The events with each that came again within FOLD_MS, at the same node with the same text but for the age of an
    answer, as one: at the time of the last, with how often it came and since when."""
    found: dict[tuple[Any, ...], tuple[dict[str, Any], int, Any]] = {}
    done: list[tuple[dict[str, Any], int, Any]] = []
    for row in rows:
        act = row.get("id") if row.get("kind") == "act" else None  # each act of a person counts
        key = (row.get("node"), row.get("kind"), row.get("event"), act, without_age(str(row.get("text") or "")))
        last, count, since_ms = found.pop(key, (None, 0, row.get("at_ms")))
        if last is not None and not _is_soon(last.get("at_ms"), row.get("at_ms")):
            done.append((last, count, since_ms))
            count, since_ms = 0, row.get("at_ms")
        found[key] = (dict(row), count + 1, since_ms)
    rest = sorted([*done, *found.values()], key=lambda one: one[0].get("at_ms") or 0)
    return [{**row, "text": _with_count(row, count, since_ms)} for row, count, since_ms in rest]


def _with_count(row: Row, count: int, since_ms: Any) -> Any:
    again = f"({count} times since {moment(since_ms)})"
    return row.get("text") if count == 1 else f"{row['text']} {again}" if row.get("text") else again


def _is_soon(before_ms: Any, at_ms: Any) -> bool:
    return isinstance(before_ms, int) and isinstance(at_ms, int) and at_ms - before_ms <= FOLD_MS


class _Follower:
    """Prints further events as they come."""

    def __init__(self, query: AdminCommand, wanted: dict[str, Any], began_s: float) -> None:
        self._query = query
        self._wanted = wanted
        self._complete_s = began_s
        """When the last answer was asked for that had all nodes."""
        self._seen: OrderedDict[tuple[Any, Any], None] = OrderedDict()
        self._unknown: dict[str, Any] = {}
        self._failure = ""

    def run(self, ends_s: float | None) -> None:
        """Ask again each FOLLOW_S until `ends_s`; an answer that fails is noted."""
        while ends_s is None or time.monotonic() < ends_s:
            time.sleep(FOLLOW_S if ends_s is None else max(0.0, min(FOLLOW_S, ends_s - time.monotonic())))
            began_s = time.monotonic()
            back_ms = min(int(1000 * (began_s - self._complete_s)) + OVERLAP_MS, BACK_MAX_MS)
            try:
                answer = self._query.get(_path({**self._wanted, "last": back_ms, "limit": ROWS_MAX}))
            except CommandFailed as error:
                self._note(str(error))
                continue
            self._note("")
            rows = objects_in(answer, "events")
            if len(rows) >= ROWS_MAX and _key(rows[0]) not in self._seen:
                _say(f"more than {ROWS_MAX:,} events at once: older ones of the last {back_ms // 1000} s are left out")
            self.print_new(answer)
            if not object_in(answer, "unknown"):
                self._complete_s = began_s

    def print_new(self, answer: Row) -> None:
        """Print the events that were not printed before, a line each, and which nodes do not answer any more."""
        for row in objects_in(answer, "events"):
            key = _key(row)
            if key in self._seen:
                self._seen.move_to_end(key)
                continue
            self._seen[key] = None
            if self._query.json:
                click.echo(json.dumps(row))
            else:
                text = f": {row['text']}" if row.get("text") else ""
                click.echo(printable(f"{moment(row.get('at_ms'))} {row.get('node')} {row.get('event')}{text}"))
        while len(self._seen) > SEEN_MAX:
            self._seen.popitem(last=False)
        unknown = object_in(answer, "unknown")
        _note_unknown({"unknown": {name: why for name, why in unknown.items() if self._unknown.get(name) != why}})
        for name in sorted(self._unknown.keys() - unknown.keys()):
            _say(f"the events of node {name} are known again")
        self._unknown = dict(unknown)

    def _note(self, failure: str) -> None:
        """Print why there is no answer, once, and that there is one again."""
        if failure and failure != self._failure:
            _say(f"{failure}; --follow goes on")
        elif self._failure and not failure:
            _say("the cluster answers again")
        self._failure = failure


def _path(wanted: dict[str, Any]) -> str:
    return "/admin/events?" + urlencode({key: value for key, value in wanted.items() if value is not None})


def _key(row: Row) -> tuple[Any, Any]:
    return row.get("node"), row.get("id")


def _note_unknown(answer: Row) -> None:
    for name, why in object_in(answer, "unknown").items():
        _say(f"the events of node {name} are unknown: {why}")


def _say(sentence: str) -> None:
    click.echo(printable(f"isthmus: {sentence}"), err=True)

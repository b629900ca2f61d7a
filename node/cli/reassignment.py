"""Moving replicas: `partition reassign|moves`, `bucket-type set-replication-factor`, `node drain|remove|list`.

Each command shows its plan and asks for confirmation; the cluster then carries out exactly that plan
(`repl.controller.reassigner`) or refuses it. docs/runbooks.md says when to use them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.text import quantity
from isthmus.node.cli.admin_command import AdminCommand, admin_act, admin_query
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    cell,
    column,
    echo_json,
    milliseconds,
    moment,
    moment_of,
    object_in,
    objects_in,
    printable,
    value_or_nothing,
)
from isthmus.node.cli.parameters import Count, bucket_type_name
from isthmus.node.cli.waiting import Waiter, wait_for_empty, wait_for_order, wait_options
from isthmus.node.nouns.node import NodeRow
from isthmus.repl.controller.placement import MAP_BYTES_MAX, REPLICAS_MAX, BadReplicaMap, read_document
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadInput

WATCH_S: Final = 1.0
"""Between two looks of `moves --watch`."""

ROWS_SHOWN: Final = 100
"""Partitions of a plan that a table shows; `-o json` has all."""

ENDED_SHOWN: Final = 5
"""Finished orders that `moves` shows without --all."""

IGNORE_RACKS = click.option("--ignore-racks", is_flag=True, help="Choose nodes without regard to racks.")


# --- reassign, set-replication-factor, drain, remove ---


@click.command("reassign", short_help="Move replicas while the cluster serves.")
@click.option("--file", "path", type=click.Path(path_type=Path), help="A replica map, as `bucket-type show -o json`.")
@click.option("--bucket-type", metavar="T", callback=bucket_type_name, help="Only this one; with --file: default.")
@click.option("--spread", is_flag=True, help="As many replicas on each node as on any other.")
@click.option("--replace", nargs=2, metavar="A B", help="Node B instead of node A.")
@click.option("--cancel", is_flag=False, flag_value=-1, type=Count(), metavar="[ORDER]", help="Cancel an order.")
@IGNORE_RACKS
@wait_options
@admin_act(asks=True)
def reassign(
    path: Path | None,
    bucket_type: str | None,
    spread: bool,
    replace: tuple[str, str] | None,
    cancel: int | None,
    ignore_racks: bool,
    wait: bool,
    timeout_ms: int,
    act: AdminCommand,
) -> None:
    """Move replicas while the cluster serves: by a file, evenly, or from one node to another.

    Shows the plan and asks for confirmation.
    """
    if sum((path is not None, spread, replace is not None, cancel is not None)) != 1:
        raise BadInput("one of --file, --spread, --replace and --cancel is needed")
    if cancel is not None:
        _cancel(act, cancel)
        return
    body: dict[str, Any] = {"bucket_type": bucket_type, "ignore_racks": ignore_racks}
    if path is not None:
        body |= {"kind": "file", "partitions": read_places(path)}
    elif replace is not None:
        body |= {"kind": "replace", "nodes": list(replace)}
    else:
        body |= {"kind": "spread"}
    _order(act, "/admin/moves", body, wait_ms=timeout_ms if wait else None)


def _cancel(act: AdminCommand, order: int) -> None:
    """Cancel an order; -1: the only one."""
    if act.dry_run:
        raise BadInput("--cancel has no --dry-run: `isthmus partition moves` shows it")
    answer = act.post("/admin/moves/cancel", order=None if order < 0 else order)
    cancelled = f"order {cell(answer.get('order'))} ({cell(answer.get('title'))}): cancelled"
    act.echo(answer, f"{cancelled}; what is under way goes back, what is done stays")


@click.command("set-replication-factor", short_help="Change the number of replicas.")
@click.argument("name")
@click.argument("factor", type=Count(1, REPLICAS_MAX))
@IGNORE_RACKS
@wait_options
@admin_act(asks=True)
def set_replication_factor(
    name: str, factor: int, ignore_racks: bool, wait: bool, timeout_ms: int, act: AdminCommand
) -> None:
    """Give each partition of bucket type NAME FACTOR replicas, while it serves.

    Shows the plan and asks for confirmation.
    """
    path = f"/admin/bucket-types/{quote(name, safe='')}/replication-factor"
    body = {"replication_factor": factor, "ignore_racks": ignore_racks}
    _order(act, path, body, wait_ms=timeout_ms if wait else None)


@click.command("drain", short_help="Move replicas and leaderships off nodes.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--undo", is_flag=True, help="Allow replicas and leaderships on them again.")
@IGNORE_RACKS
@wait_options
@admin_act(asks=True)
def drain(
    names: tuple[str, ...], undo: bool, ignore_racks: bool, wait: bool, timeout_ms: int, act: AdminCommand
) -> None:
    """Move all replicas and leaderships off nodes, and give them no new ones. Code 0 as soon as it is ordered, with
    --wait when the nodes hold nothing any more."""
    path = "/admin/nodes/drain"
    if not undo:
        body = {"nodes": list(names), "ignore_racks": ignore_racks}
        ordered = _order(act, path, body, drains=True, wait_ms=timeout_ms if wait else None)
        if wait and ordered:
            wait_for_empty(act.admin, names, Waiter(timeout_ms, quiet=act.json))
        return
    answer = act.post(path, nodes=list(names), undo=True, dry_run=act.dry_run)
    cancelled = answer.get("cancelled")
    orders = f"; cancelled: order {cell(cancelled)}" if cancelled else ""
    act.echo(answer, f"drain of {', '.join(names)}: {cell(answer.get('outcome'))}{orders}")


@click.command("remove", short_help="Remove a stopped node without replicas.")
@click.argument("name")
@admin_act(asks=True)
def remove(name: str, act: AdminCommand) -> None:
    """Remove node NAME, which must be stopped and hold no replica: nothing waits for it afterwards.

    Its id may be used again. Refused while the node is live or holds replicas.
    """
    path = f"/admin/nodes/{quote(name, safe='')}/remove"
    answer = act.plan(path)
    if not act.dry_run:
        act.confirm(f"Forget node {name}?")
        answer = act.post(path)
    act.echo(answer, f"node {name}: {cell(answer.get('outcome'))}")


def _order(
    act: AdminCommand, path: str, body: dict[str, Any], *, drains: bool = False, wait_ms: int | None = None
) -> bool:
    """Show the plan, ask, and order exactly that plan; with `wait_ms` wait for its end. True when something was
    ordered."""
    plan = act.plan(path, **body)
    ordered = False
    if not act.json:
        _echo_plan(plan)
    if not act.dry_run and (drains or objects_in(plan, "partitions")):
        act.confirm("Order it?")
        plan, ordered = act.post(path, **body, plan=plan.get("plan")), True
        number = plan.get("order")
        nothing = "drained; nothing to move" if drains else "nothing to move"
        result = nothing if number is None else f"order {cell(number)}; `isthmus partition moves` shows it"
        act.note(f"{cell(plan.get('title'))}: {result}")
        if number is not None and wait_ms is not None:
            ended = wait_for_order(act.admin, number, Waiter(wait_ms, quiet=act.json))
            act.note(f"order {number}: {cell(ended.get('outcome'))}")
            plan = {**plan, "ended": ended}
    act.echo_json(plan)
    return ordered


def _share(row: Row) -> str:
    """Bucket type and index of a partition."""
    return f"{cell(row.get('bucket_type'))}/{cell(row.get('index'))}"


PLAN: Final = TableSpec("partition", ("type/index", _share), "from", "to")
PLANNED_NODES: Final = TableSpec("node", "replicas", "then")


def _echo_plan(plan: Row) -> None:
    rows = objects_in(plan, "partitions")
    click.echo(printable(cell(plan.get("title"))))
    if not rows:
        click.echo("nothing to move: it is so already")
        return
    PLAN.echo(rows[:ROWS_SHOWN])
    if len(rows) > ROWS_SHOWN:
        click.echo(f"and {len(rows) - ROWS_SHOWN} more; -o json has all")
    click.echo()
    PLANNED_NODES.echo(objects_in(plan, "nodes"))
    copies = plan.get("copies")
    copied = quantity(copies, "replica") if isinstance(copies, int) else f"{cell(copies)} replicas"
    click.echo(
        f"{quantity(len(rows), 'partition')} {'changes' if len(rows) == 1 else 'change'}, "
        f"{copied} {'is' if copies == 1 else 'are'} copied"
    )
    for note in plan.get("notes") or ():
        click.echo(printable(f"note: {note}"))


def read_limited(path: Path) -> bytes:
    """The bytes of a placement file, at most one more than it may have. Raises BadReplicaMap: a file that the command
    line names and that is missing is a usage error."""
    try:
        with path.open("rb") as file:
            return file.read(MAP_BYTES_MAX + 1)
    except OSError as error:
        raise BadReplicaMap([f"{path}: {error.strerror or error}"]) from error


def read_places(path: Path) -> Any:
    """The partitions in a placement file, which names nodes by id or by name. The node checks them. Raises
    BadReplicaMap, also when the file cannot be read."""
    text = read_limited(path)
    try:
        document = read_document(text)
        if not isinstance(document, dict) or set(document) != {"partitions"}:
            raise BadReplicaMap(["the map is not an object with the single key partitions"])
    except BadReplicaMap as error:
        raise BadReplicaMap([f"{path}: {fault}" for fault in error.faults]) from None
    return document["partitions"]


# --- moves ---

IN_FLIGHT: Final = TableSpec(
    "partition",
    column("type/index", _share, leave=1),
    column("state", "stage", state=True),
    "adds",
    "removes",
    column("reason", value_or_nothing("reason"), text=True),
)
ENDED: Final = TableSpec(
    "order",
    column("what", "title", text=True),
    column("by", leave=2),
    column("ended", moment_of("ended_ms"), leave=1),
    column("outcome", state=True),
    ("done", lambda order: f"{cell(order.get('done'))} of {cell(order.get('total'))}"),
)


@click.command("moves", short_help="Orders that move replicas, and their progress.")
@click.option("--watch", is_flag=True, help="Repeat every second until all orders are finished.")
@click.option(
    "--all", "everything", is_flag=True, help="Include partitions that wait or are done, and all finished orders."
)
@admin_query
def moves(watch: bool, everything: bool, query: AdminCommand) -> None:
    """Orders that move replicas: progress, why they wait, and finished ones."""
    if watch and query.json:
        raise BadInput("--watch is for people; programs ask again")
    while True:
        answer = query.get("/admin/moves")
        if query.json:
            echo_json(answer)
            return
        if watch and sys.stdout.isatty():
            click.clear()
        _echo_moves(answer, everything=everything)
        if not watch or not objects_in(answer, "orders"):
            return
        machine().sleep(WATCH_S)


def _echo_moves(answer: Row, *, everything: bool) -> None:
    orders = objects_in(answer, "orders")
    for drained in objects_in(answer, "drained"):
        since = moment(drained.get("at_ms"))
        click.echo(printable(f"{cell(drained.get('node'))} is drained, by {cell(drained.get('by'))} at {since}"))
    if not orders:
        click.echo("nothing is ordered")
    if answer.get("paused"):
        click.echo(printable(f"nothing new is begun: {answer['paused']}"))
    for order in orders:
        click.echo(printable(_heading(order)))
        rows = [r for r in objects_in(order, "partitions") if everything or r.get("stage") not in ("waiting", "done")]
        if rows:
            IN_FLIGHT.echo(rows)
    ended = objects_in(answer, "ended")
    if ended and (everything or not orders):
        click.echo()
        ENDED.echo(ended if everything else ended[:ENDED_SHOWN])


def _heading(order: Row) -> str:
    stages = ", ".join(f"{count} {stage}" for stage, count in object_in(order, "stages").items())
    who = f"by {cell(order.get('by'))} at {moment(order.get('at_ms'))}"
    cancelled = f", cancelled by {order['cancelled_by']}" if order.get("cancelled_by") else ""
    left = milliseconds(order.get("estimate_ms"))
    done = f"{cell(order.get('done'))} of {cell(order.get('total'))} done ({stages}), time left: {left}"
    return f"order {cell(order.get('order'))}: {cell(order.get('title'))}, {who}{cancelled}: {done}"


# --- node list ---

NODES: Final = table_of(NodeRow, without={"http", "admin", "cluster"})


@click.command("list", short_help="Every node: replicas, leaderships, whether it is live.")
@admin_query
def list_nodes(query: AdminCommand) -> None:
    """Every node, with its replicas and leaderships, whether it is live, and whether it is drained. Nodes that are down
    have their ids, too."""
    query.echo_rows(query.get("/admin/nodes"), "nodes", NODES)

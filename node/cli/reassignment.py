"""Changes of placement: `partition reassign` and `moves`, `bucket-type set-replication-factor`, and `node drain`,
`remove` and `list`.

Each shows its plan and asks before anything is ordered; what was shown is what is ordered, or nothing. The order is
carried out by the cluster (`repl.controller.reassigner`); `partition moves` looks at it. What they mean stands in
docs/runbooks.md.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.config.text import quantity
from isthmus.config.validation import check_name
from isthmus.node.cli.admin_client import AdminClient, admin_option, whoami
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import cell, echo_json, echo_table, milliseconds, moment, output_option, printable
from isthmus.node.cli.parameters import confirm
from isthmus.repl.controller.placement import MAP_BYTES_MAX, REPLICAS_MAX, BadReplicaMap, read_document

WATCH_S: Final = 1.0
"""How often `--watch` looks."""

ROWS_SHOWN: Final = 100
"""Partitions of a plan that a table shows; `-o json` has all."""

NODE_KEYS: Final = ("name", "id", "rack", "state", "drained", "leaders", "replicas", "in_sync", "reason")

BY = click.option("--by", default=whoami, show_default="USER@HOST", help="Who does it; kept with the order.")
YES = click.option("--yes", is_flag=True, help="Do not ask.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show the plan.")
IGNORE_RACKS = click.option("--ignore-racks", is_flag=True, help="Choose places without regard to racks.")


def _bucket_type(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    try:
        return value if value is None else check_name(value)
    except ValueError as error:
        raise CommandFailed(Exit.USAGE, "bad-input", f"--bucket-type: {error}") from None


@click.command("reassign")
@click.option("--file", "path", type=click.Path(path_type=Path), help="A replica map, as `bucket-type show -o json`.")
@click.option("--bucket-type", metavar="T", callback=_bucket_type, help="Only this one; with --file: default.")
@click.option("--spread", is_flag=True, help="As many replicas on each node as on any other.")
@click.option("--replace", nargs=2, metavar="A B", help="Node B instead of node A.")
@click.option("--cancel", is_flag=False, flag_value=-1, type=int, metavar="[ORDER]", help="Let an order go no further.")
@IGNORE_RACKS
@YES
@DRY_RUN
@BY
@admin_option
@output_option
def reassign(
    path: Path | None,
    bucket_type: str | None,
    spread: bool,
    replace: tuple[str, str] | None,
    cancel: int | None,
    ignore_racks: bool,
    yes: bool,
    dry_run: bool,
    by: str,
    admin: AdminClient,
    output: str,
) -> int:
    """Move replicas while the cluster serves: by a file, evenly, or from one node to another.

    Shows the plan and asks.
    """
    if sum((path is not None, spread, replace is not None, cancel is not None)) != 1:
        raise CommandFailed(Exit.USAGE, "bad-input", "one of --file, --spread, --replace and --cancel is needed")
    if cancel is not None:
        if dry_run:
            raise CommandFailed(
                Exit.USAGE, "bad-input", "--cancel has no --dry-run: `isthmus partition moves` shows it"
            )
        answer = admin.post("/admin/moves/cancel", {"order": None if cancel < 0 else cancel, "by": by})
        if output == "json":
            echo_json(answer)
        else:
            said = f"order {cell(answer.get('order'))} ({cell(answer.get('title'))}): cancelled"
            click.echo(printable(f"{said}; what is under way goes back, what is done stays"))
        return Exit.OK
    wish: dict[str, Any] = {"bucket_type": bucket_type, "ignore_racks": ignore_racks}
    if path is not None:
        wish |= {"kind": "file", "partitions": read_places(path)}
    elif replace is not None:
        wish |= {"kind": "replace", "nodes": list(replace)}
    else:
        wish |= {"kind": "spread"}
    return _act(admin, "/admin/moves", wish, yes=yes, dry_run=dry_run, by=by, output=output)


@click.command("set-replication-factor")
@click.argument("name")
@click.argument("factor", type=click.IntRange(1, REPLICAS_MAX))
@IGNORE_RACKS
@YES
@DRY_RUN
@BY
@admin_option
@output_option
def set_replication_factor(
    name: str, factor: int, ignore_racks: bool, yes: bool, dry_run: bool, by: str, admin: AdminClient, output: str
) -> int:
    """Let each partition of bucket type NAME have FACTOR replicas, while it serves.

    Shows the plan and asks.
    """
    path = f"/admin/bucket-types/{quote(name, safe='')}/replication-factor"
    wish = {"replication_factor": factor, "ignore_racks": ignore_racks}
    return _act(admin, path, wish, yes=yes, dry_run=dry_run, by=by, output=output)


@click.command("drain")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--undo", is_flag=True, help="Let them be given replicas and leaderships again.")
@IGNORE_RACKS
@YES
@DRY_RUN
@BY
@admin_option
@output_option
def drain(
    names: tuple[str, ...],
    undo: bool,
    ignore_racks: bool,
    yes: bool,
    dry_run: bool,
    by: str,
    admin: AdminClient,
    output: str,
) -> int:
    """Move all replicas and leaderships off nodes, and give them no new ones. Code 0 as soon as it is ordered."""
    if not undo:
        wish = {"nodes": list(names), "ignore_racks": ignore_racks}
        return _act(admin, "/admin/nodes/drain", wish, yes=yes, dry_run=dry_run, by=by, output=output)
    answer = admin.post("/admin/nodes/drain", {"nodes": list(names), "undo": True, "dry_run": dry_run, "by": by})
    if output == "json":
        echo_json(answer)
    else:
        cancelled = answer.get("cancelled")
        orders = f"; cancelled: order {cell(cancelled)}" if cancelled else ""
        click.echo(printable(f"drain of {', '.join(names)}: {cell(answer.get('outcome'))}{orders}"))
    return Exit.OK


@click.command("remove")
@click.argument("name")
@YES
@DRY_RUN
@BY
@admin_option
@output_option
def remove(name: str, yes: bool, dry_run: bool, by: str, admin: AdminClient, output: str) -> None:
    """Forget node NAME, which is stopped and holds nothing: nothing waits for it afterwards.

    Its id is free then. Refused while the node lives or holds replicas.
    """
    path = f"/admin/nodes/{quote(name, safe='')}/remove"
    answer = admin.post(path, {"by": by, "dry_run": True})
    if not dry_run:
        confirm(yes, f"Forget node {name}?", output)
        answer = admin.post(path, {"by": by})
    if output == "json":
        echo_json(answer)
    else:
        click.echo(printable(f"node {name}: {cell(answer.get('outcome'))}"))


@click.command("list")
@admin_option
@output_option
def list_nodes(admin: AdminClient, output: str) -> None:
    """Every node: what it holds and leads, whether it lives, and whether it is drained. Its id is shown also
    while it is down."""
    answer = admin.get("/admin/nodes")
    if output == "json":
        echo_json(answer)
        return
    columns = ("node", *(key.replace("_", " ") for key in NODE_KEYS[1:]))
    echo_table(columns, ([row.get(key) for key in NODE_KEYS] for row in listed(answer, "nodes")))


@click.command("moves")
@click.option("--watch", is_flag=True, help="Show it again every second until all orders are over.")
@click.option("--all", "everything", is_flag=True, help="With the partitions that wait or are done, and all history.")
@admin_option
@output_option
def moves(watch: bool, everything: bool, admin: AdminClient, output: str) -> None:
    """What is ordered of placements, how far it is, and why; then what was."""
    if watch and output == "json":
        raise CommandFailed(Exit.USAGE, "bad-input", "--watch is for people; programs ask again")
    while True:
        answer = admin.get("/admin/moves")
        if output == "json":
            echo_json(answer)
            return
        if watch and sys.stdout.isatty():
            click.clear()
        _echo_moves(answer, everything=everything)
        if not watch or not listed(answer, "orders"):
            return
        time.sleep(WATCH_S)


# -- acts -------------------------------------------------------------------------------------------


def _act(admin: AdminClient, path: str, wish: dict[str, Any], *, yes: bool, dry_run: bool, by: str, output: str) -> int:
    """Show the plan, ask, and order just that."""
    plan = admin.post(path, {**wish, "dry_run": True, "by": by})
    drains = path.endswith("/drain")
    acts = not dry_run and (drains or bool(listed(plan, "partitions")))
    if output != "json":
        _echo_plan(plan)
    if acts:
        confirm(yes, "Order it?", output)
        plan = admin.post(path, {**wish, "plan": plan.get("plan"), "by": by})
        if output != "json":
            number = plan.get("order")
            nothing = "drained; nothing to move" if drains else "nothing to move"
            said = nothing if number is None else f"order {cell(number)}; `isthmus partition moves` shows it"
            click.echo(printable(f"{cell(plan.get('title'))}: {said}"))
    if output == "json":
        echo_json(plan)
    return Exit.OK


def read_named(path: Path) -> bytes:
    """The bytes of a placement file, one more than there may be at most. Raises BadReplicaMap: what the command line
    names and is not there is a slip of the command line."""
    try:
        with path.open("rb") as file:
            return file.read(MAP_BYTES_MAX + 1)
    except OSError as error:
        raise BadReplicaMap([f"{path}: {error.strerror or error}"]) from error


def read_places(path: Path) -> Any:
    """The partitions in a placement file; names may stand where ids do. The node checks them. Raises BadReplicaMap,
    also when the file cannot be read."""
    text = read_named(path)
    try:
        document = read_document(text)
        if not isinstance(document, dict) or set(document) != {"partitions"}:
            raise BadReplicaMap(["the map is no object with the one key partitions"])
    except BadReplicaMap as error:
        raise BadReplicaMap([f"{path}: {fault}" for fault in error.faults]) from None
    return document["partitions"]


# -- words and columns ------------------------------------------------------------------------------


def _echo_plan(plan: dict[str, Any]) -> None:
    rows = listed(plan, "partitions")
    click.echo(printable(cell(plan.get("title"))))
    if not rows:
        click.echo("nothing to move: it is so already")
        return
    columns = ("partition", "type", "from", "to")
    echo_table(columns, ([r.get("partition"), _share(r), r.get("from"), r.get("to")] for r in rows[:ROWS_SHOWN]))
    if len(rows) > ROWS_SHOWN:
        click.echo(f"and {len(rows) - ROWS_SHOWN} more; -o json has all")
    click.echo()
    nodes = listed(plan, "nodes")
    echo_table(("node", "replicas", "then"), ([n.get("node"), n.get("replicas"), n.get("then")] for n in nodes))
    copies = plan.get("copies")
    copied = quantity(copies, "replica") if isinstance(copies, int) else f"{cell(copies)} replicas"
    click.echo(
        f"{quantity(len(rows), 'partition')} {'changes' if len(rows) == 1 else 'change'}, "
        f"{copied} {'is' if copies == 1 else 'are'} copied"
    )
    for note in plan.get("notes") or ():
        click.echo(printable(f"note: {note}"))


def _share(row: dict[str, Any]) -> str:
    return f"{cell(row.get('bucket_type'))}/{cell(row.get('index'))}"


def _echo_moves(answer: dict[str, Any], *, everything: bool) -> None:
    orders = listed(answer, "orders")
    for drained in listed(answer, "drained"):
        since = moment(drained.get("at_ms"))
        click.echo(printable(f"{cell(drained.get('node'))} is drained, by {cell(drained.get('by'))} at {since}"))
    if not orders:
        click.echo("nothing is ordered")
    if answer.get("paused"):
        click.echo(printable(f"nothing new is begun: {answer['paused']}"))
    for order in orders:
        click.echo(printable(_heading(order)))
        rows = [r for r in listed(order, "partitions") if everything or r.get("stage") not in ("waiting", "done")]
        if rows:
            columns = ("partition", "type", "state", "adds", "removes", "reason")
            echo_table(columns, ([r.get("partition"), _share(r), *_facts(r)] for r in rows))
    ended = listed(answer, "ended")
    if ended and (everything or not orders):
        click.echo()
        columns = ("order", "what", "by", "ended", "outcome", "done")
        echo_table(columns, (_ended(each) for each in (ended if everything else ended[:5])))


def _heading(order: dict[str, Any]) -> str:
    found = order.get("stages")
    stages = ", ".join(f"{count} {stage}" for stage, count in found.items()) if isinstance(found, dict) else ""
    who = f"by {cell(order.get('by'))} at {moment(order.get('at_ms'))}"
    cancelled = f", cancelled by {order['cancelled_by']}" if order.get("cancelled_by") else ""
    left = milliseconds(order.get("estimate_ms"))
    done = f"{cell(order.get('done'))} of {cell(order.get('total'))} done ({stages}), time left: {left}"
    return f"order {cell(order.get('order'))}: {cell(order.get('title'))}, {who}{cancelled}: {done}"


def _facts(row: dict[str, Any]) -> list[Any]:
    return [row.get("stage"), row.get("adds"), row.get("removes"), row.get("reason") or ""]


def _ended(each: dict[str, Any]) -> list[Any]:
    done = f"{cell(each.get('done'))} of {cell(each.get('total'))}"
    when = moment(each.get("ended_ms"))
    return [each.get("order"), each.get("title"), each.get("by"), when, each.get("outcome"), done]

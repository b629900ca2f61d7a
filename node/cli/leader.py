"""`isthmus leader`: how many partitions each node leads, and balancing them now.

Shows the plan, asks for confirmation, then follows the moves until they are over. The node plans and moves
(`node.admin_api.leaders`); `repl.controller.leader_balancer` balances on its own.
"""

from __future__ import annotations

from typing import Any, Final

import click

from isthmus.node.cli.admin_client import AdminClient, whoami
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import (
    Row,
    TableSpec,
    cell,
    echo_json,
    echo_table,
    object_in,
    objects_in,
)
from isthmus.node.cli.parameters import DRY_RUN, YES, is_interactive
from isthmus.repl.machine import machine

POLL_S: Final = 0.2
"""Between two looks at the moves; each move takes some tenths of a second."""

STALL_S: Final = 30.0
"""Without a finished move for so long the command ends; the moves go on."""

PLAN: Final = TableSpec("partition", "from", "to")
BALANCING: Final = "leadership-balancing"


@click.group("leader")
def leader_group() -> None:
    """Look at leaders, and balance them."""


@leader_group.command("balance", short_help="Move leaderships to where they should be, with few moves.")
@DRY_RUN
@YES
@click.option("--wait/--no-wait", default=True, help="Follow the moves to their end (the default), or only order them.")
@admin_query
def balance(dry_run: bool, yes: bool, wait: bool, query: AdminCommand) -> int:
    """Move leaderships so that the nodes that are to lead do so as evenly as possible, with as few moves as possible.

    With `replication.balance_by = "load"` these are as few nodes as carry the load, else all. Shows how many partitions
    each node leads and each move, and asks for confirmation.
    """
    status: Row = query.get("/admin/leaders")
    plan = objects_in(status, "plan")
    moving = status.get("state") == BALANCING
    if not plan and not moving and status.get("reason"):
        raise CommandFailed(Exit.UNAVAILABLE, "not-ready", f"leaderships are not moved now: {status['reason']}")
    if not query.json:
        _echo_plan(status, plan)
    if dry_run or not (plan or moving):
        if query.json:
            echo_json(status)
        return Exit.OK
    if plan and not yes:
        if not is_interactive(query.output):
            raise CommandFailed(
                Exit.USAGE, "usage", "there are leaderships to move: --yes moves them, --dry-run does not"
            )
        click.confirm("Move them?", abort=True)
    status = query.post("/admin/leaders/balance", by=whoami())
    if not wait:
        query.echo(status, "leaderships are being moved: `isthmus leader balance --dry-run` shows how far it is")
        return Exit.OK
    status = _follow(query.admin, status, quiet=query.json)
    run = object_in(status, "run")
    if query.json:
        echo_json(status)
    else:
        click.echo(f"{cell(run.get('outcome'))}: {cell(run.get('done'))} moved, {cell(run.get('failed'))} failed")
        echo_table(("node", "leaders"), sorted(_leaders(status).items()))
    return Exit.OK if run.get("outcome") == "balanced" else Exit.DIFFERS


def _echo_plan(status: Row, plan: list[dict[str, Any]]) -> None:
    leaders = _leaders(status)
    after = dict(leaders)
    for move in plan:
        for key, more in (("from", -1), ("to", 1)):
            node = str(move.get(key))
            after[node] = after.get(node, 0) + more
    echo_table(("node", "leaders", "then"), ([node, leaders.get(node), after[node]] for node in sorted(after)))
    types = object_in(status, "bucket_types")
    if len(types) > 1:
        click.echo()
        echo_table(
            ("bucket type", "node", "leaders"),
            (
                [name, node, count]
                for name, about in sorted(types.items())
                for node, count in sorted(_leaders(about).items() if isinstance(about, dict) else ())
            ),
        )
    click.echo()
    if (goal := object_in(status, "goal")).get("by_load"):
        why = f": {goal['reason']}" if goal.get("reason") else ""
        click.echo(f"leaders stand on {cell(goal.get('nodes'))} of {len(leaders)} nodes{why}")
    if plan:
        PLAN.echo(plan)
    elif status.get("state") == BALANCING:
        click.echo(f"leaderships are being moved: {cell(status.get('reason'))}")
    else:
        click.echo("nothing to move: leaderships are as even as they can be")


def _follow(admin: AdminClient, status: Row, *, quiet: bool) -> Row:
    """Wait until the run is over, and print each finished move; the last status."""
    number, printed = object_in(status, "run").get("number"), 0
    last_end_s = machine().monotonic_s()
    while True:
        run = object_in(status, "run")
        if run.get("number") != number:
            raise CommandFailed(Exit.UNAVAILABLE, "unknown", "another node controls the cluster now: look again")
        ended = [each for each in objects_in(run, "moves") if each.get("state") != "under-way"]
        over = sum(count for count in (run.get("done"), run.get("failed")) if isinstance(count, int))
        new = min(over - printed, len(ended))  # the node keeps only the last moves of a long run
        for each in ended[len(ended) - new :]:
            last_end_s = machine().monotonic_s()
            if not quiet:
                why = f": {cell(each.get('reason'))}" if each.get("reason") else ""
                click.echo(
                    f"partition {cell(each.get('partition'))} to {cell(each.get('to'))}: {cell(each.get('state'))}{why}"
                )
        printed = over
        if run.get("outcome"):
            return status
        if machine().monotonic_s() - last_end_s > STALL_S:
            raise CommandFailed(Exit.UNAVAILABLE, "unknown", f"no move has ended for {STALL_S:.0f} s; they go on")
        machine().sleep(POLL_S)
        status = admin.get("/admin/leaders")


def _leaders(status: Row) -> dict[str, int]:
    return {node: count for node, count in object_in(status, "leaders").items() if isinstance(count, int)}

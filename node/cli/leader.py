"""`isthmus leader`: who leads how much, and to spread it evenly now.

Shows the plan before anything is moved and asks, then follows the moves until they are over. What it asks a node is
`node.admin_api.leaders`'; when a cluster does it by itself is `repl.controller.leader_balancer`'s.
"""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from isthmus.node.cli.admin_client import AdminClient, admin_option, whoami
from isthmus.node.cli.cluster import listed
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import cell, echo_json, echo_table, output_option

POLL_S: Final = 0.2
"""How often the moves are looked at; each takes some tenths of a second."""

SILENT_S: Final = 30.0
"""How long nothing may come to an end before the command gives up looking; the moves go on."""


@click.group("leader")
def leader_group() -> None:
    """Look at leaderships, and spread them evenly."""


@leader_group.command("balance")
@click.option("--dry-run", is_flag=True, help="Show the plan; move nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before leaderships are moved.")
@admin_option
@output_option
def balance(dry_run: bool, yes: bool, admin: AdminClient, output: str) -> int:
    """Move leaderships to where they are spread most evenly, with as few moves as there can be.

    Shows who leads how much and each move, and asks.
    """
    status = admin.get("/admin/leaders")
    plan = listed(status, "plan")
    moving = status.get("state") == "leadership-balancing"
    if not plan and not moving and status.get("reason"):
        raise CommandFailed(Exit.UNAVAILABLE, "not-ready", f"leaderships are not moved now: {status['reason']}")
    if output == "table":
        _echo_plan(status, plan)
    if dry_run or not (plan or moving):
        if output == "json":
            echo_json(status)
        return Exit.OK
    if plan and not yes:
        if output == "json" or not sys.stdin.isatty():
            raise CommandFailed(
                Exit.USAGE, "usage", "there are leaderships to move: --yes moves them, --dry-run does not"
            )
        click.confirm("Move them?", abort=True)
    status = admin.post("/admin/leaders/balance", {"by": whoami()})
    status = _followed(admin, status, quiet=output == "json")
    if output == "json":
        echo_json(status)
    run = _run(status)
    if output == "table":
        click.echo(f"{cell(run.get('outcome'))}: {cell(run.get('done'))} moved, {cell(run.get('failed'))} failed")
        echo_table(("node", "leaders"), sorted(_leaders(status).items()))
    return Exit.OK if run.get("outcome") == "balanced" else Exit.DIFFERS


def _echo_plan(status: dict[str, Any], plan: list[dict[str, Any]]) -> None:
    leaders = _leaders(status)
    after = dict(leaders)
    for move in plan:
        for key, more in (("from", -1), ("to", 1)):
            node = str(move.get(key))
            after[node] = after.get(node, 0) + more
    echo_table(("node", "leaders", "then"), ([node, leaders.get(node), after[node]] for node in sorted(after)))
    types = status.get("bucket_types")
    if isinstance(types, dict) and len(types) > 1:
        click.echo()
        echo_table(("bucket type", "node", "leaders"), _of_types(types))
    click.echo()
    if not plan:
        moving = status.get("state") == "leadership-balancing"
        even = "nothing to move: leaderships are as even as they can be"
        click.echo(f"leaderships are being moved: {cell(status.get('reason'))}" if moving else even)
        return
    echo_table(("partition", "from", "to"), ([each.get(key) for key in ("partition", "from", "to")] for each in plan))


def _of_types(types: dict[str, Any]) -> list[list[object]]:
    return [
        [name, node, count]
        for name, about in sorted(types.items())
        for node, count in sorted(_leaders(about).items() if isinstance(about, dict) else ())
    ]


def _followed(admin: AdminClient, status: dict[str, Any], *, quiet: bool) -> dict[str, Any]:
    """Look until the run is over, telling what has moved; the last status."""
    number, told = _run(status).get("number"), 0
    silent_since_s = time.monotonic()
    while True:
        run = _run(status)
        if run.get("number") != number:
            raise CommandFailed(Exit.UNAVAILABLE, "unknown", "another node controls the cluster now: look again")
        ended = [each for each in listed(run, "moves") if each.get("state") != "under-way"]
        over = sum(count for count in (run.get("done"), run.get("failed")) if isinstance(count, int))
        new = min(over - told, len(ended))  # of a long run the node keeps the last moves only
        for each in ended[len(ended) - new :]:
            silent_since_s = time.monotonic()
            if not quiet:
                why = f": {cell(each.get('reason'))}" if each.get("reason") else ""
                click.echo(
                    f"partition {cell(each.get('partition'))} to {cell(each.get('to'))}: {cell(each.get('state'))}{why}"
                )
        told = over
        if run.get("outcome"):
            return status
        if time.monotonic() - silent_since_s > SILENT_S:
            raise CommandFailed(Exit.UNAVAILABLE, "unknown", f"no move has ended for {SILENT_S:.0f} s; they go on")
        time.sleep(POLL_S)
        status = admin.get("/admin/leaders")


def _run(status: dict[str, Any]) -> dict[str, Any]:
    found = status.get("run")
    return found if isinstance(found, dict) else {}


def _leaders(status: dict[str, Any]) -> dict[str, int]:
    found = status.get("leaders")
    return {node: count for node, count in found.items() if isinstance(count, int)} if isinstance(found, dict) else {}

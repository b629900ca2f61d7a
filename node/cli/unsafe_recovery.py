"""Operators' acts of last resort: `isthmus partition force-leader` and `isthmus cluster reseed`.

Both show what each replica holds, and what would be lost, before anything is done, and ask. What they mean stands in
docs/runbooks.md; the node does it (`node.admin_api.unsafe_recovery`).
"""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import click

from isthmus.node.cli.admin_client import AdminClient, admin_option, whoami
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.output import cell, echo_json, echo_table, output_option, printable
from isthmus.node.cli.parameters import confirm

KEYS: Final = ("node", "eligible", "epoch", "log_epoch", "leo", "hw", "applied", "gen")

BY = click.option(
    "--by", default=whoami, show_default="USER@HOST", help="Who does it; kept in the record and the logs."
)
YES = click.option("--yes", is_flag=True, help="Do not ask.")
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only show what there is and what would be lost.")


@click.command("force-leader")
@click.argument("partition", type=click.IntRange(0))
@click.argument("node")
@YES
@DRY_RUN
@BY
@admin_option
@output_option
def force_leader(partition: int, node: str, yes: bool, dry_run: bool, by: str, admin: AdminClient, output: str) -> None:
    """Have NODE's copy of PARTITION lead, whatever it lacks: an unclean election. What only others hold is lost."""
    path = f"/admin/partitions/{quote(str(partition))}/force-leader"
    plan = admin.post(path, {"node": node, "by": by, "dry_run": True})
    if output != "json":
        _echo_plan(plan)
    if not dry_run:
        confirm(yes, f"Let {node} lead partition {partition}?", output)
        plan = admin.post(path, {"node": node, "by": by, "version": plan.get("version")})
    if output == "json":
        echo_json(plan)
    elif not dry_run:
        click.echo(printable(f"partition {partition}: {node} is the candidate of epoch {cell(plan.get('epoch'))}"))


@click.command("reseed")
@click.option("--incomplete", is_flag=True, help="Go on where replicas do not answer: what only they hold is lost.")
@YES
@DRY_RUN
@BY
@admin_option
@output_option
def reseed(incomplete: bool, yes: bool, dry_run: bool, by: str, admin: AdminClient, output: str) -> int:
    """After METASTORE_ROLLBACK: make the forgotten records anew, above all that the replicas have seen.

    Each partition concerned is led by the copy that lacks least. Code 1 when some had to be left as they are.
    """
    wish = {"by": by, "incomplete": incomplete}
    answer = admin.post("/admin/cluster/reseed", {**wish, "dry_run": True})
    if output != "json":
        _echo_reseed(answer)
    if not dry_run and _objects(answer, "partitions"):
        confirm(yes, "Re-seed the metastore so?", output)
        answer = admin.post("/admin/cluster/reseed", {**wish, "dry_run": False})
        if output != "json":
            _echo_outcomes(answer)
    if output == "json":
        echo_json(answer)
    left = any(each.get("outcome") == "left" for each in _objects(answer, "partitions"))
    return Exit.DIFFERS if left or answer.get("forgotten") else Exit.OK


def _echo_plan(plan: dict[str, Any]) -> None:
    heading = (
        f"partition {cell(plan.get('partition'))}: {cell(plan.get('status'))}, epoch {cell(plan.get('record_epoch'))}"
    )
    click.echo(printable(f"{heading}; {cell(plan.get('reason'))}"))
    columns = [key.replace("_", " ") for key in KEYS]
    echo_table(columns, ([row.get(key) for key in KEYS] for row in _objects(plan, "replicas")))
    for note in plan.get("notes") or ["no replica that answers has more than this one"]:
        click.echo(printable(f"note: {note}"))


def _echo_reseed(answer: dict[str, Any]) -> None:
    plans = _objects(answer, "partitions")
    if not plans:
        click.echo(f"no record is behind its replicas, of {cell(answer.get('looked_at'))}")
    for plan in plans:
        _echo_plan(plan)
        if plan.get("outcome") != "left":
            click.echo(printable(f"would be led by {cell(plan.get('node'))}"))
    _echo_outcomes(answer)


def _echo_outcomes(answer: dict[str, Any]) -> None:
    for plan in _objects(answer, "partitions"):
        what = f"partition {cell(plan.get('partition'))}"
        if plan.get("outcome") == "left":
            click.echo(printable(f"{what}: left as it is: {cell(plan.get('reason'))}"))
        elif plan.get("outcome") == "ordered":
            click.echo(
                printable(f"{what}: {cell(plan.get('node'))} is the candidate of epoch {cell(plan.get('epoch'))}")
            )
    forgotten = answer.get("forgotten")
    if isinstance(forgotten, list) and forgotten:
        numbers = ", ".join(map(str, forgotten[:8])) + (", ..." if len(forgotten) > 8 else "")
        click.echo(f"the metastore has no record of partitions {numbers}, which nodes hold copies of")


def _objects(answer: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The objects under `key`; none when the node (of another version, maybe) does not list them."""
    found = answer.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []

"""`isthmus partition force-leader` and `isthmus cluster reseed`: recovery that may lose acknowledged writes.

Both show what each replica holds and what would be lost, and ask for confirmation. docs/runbooks.md says when to use
them; the node carries them out (`node.admin_api.unsafe_recovery`).
"""

from __future__ import annotations

from typing import Any, Final

import click

from isthmus.node.cli.admin_command import AdminCommand, admin_act
from isthmus.node.cli.described_table import table_of
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.output import cell, named, objects_in
from isthmus.node.cli.parameters import PartitionName, PartitionParameter, partition_number
from isthmus.node.cli.waiting import Goal, Waiter, wait_for, wait_options
from isthmus.node.nouns.partition import ReplicaHolds

REPLICAS: Final = table_of(ReplicaHolds)


@click.command("force-leader", short_help="Unclean election of a replica: loses writes.")
@click.argument("partition", type=PartitionParameter())
@click.argument("node")
@admin_act(asks=True)
def force_leader(partition: PartitionName, node: str, act: AdminCommand) -> None:
    """Make NODE's replica the leader of PARTITION even if it is not complete: an unclean election. Entries that only
    other replicas hold are lost."""
    number = partition_number(act.admin, partition)
    path = f"/admin/partitions/{number}/force-leader"
    plan = act.plan(path, node=node)
    _note_plan(act, plan)
    if not act.dry_run:
        act.confirm(f"Let {node} lead partition {partition}?")
        plan = act.post(path, node=node, version=plan.get("version"))
        act.note(f"partition {partition}: {node} is the candidate of epoch {cell(plan.get('epoch'))}")
    act.echo_json(plan)


@click.command("reseed", short_help="Restore records that the metastore lost.")
@click.option(
    "--incomplete", is_flag=True, help="Continue where replicas do not answer: entries that only they have are lost."
)
@wait_options
@admin_act(asks=True)
def reseed(incomplete: bool, wait: bool, timeout_ms: int, act: AdminCommand) -> int:
    """After METASTORE_ROLLBACK: restore lost records, newer than all that the replicas have seen.

    The most complete replica of each of these partitions leads it. Code 1 if some could not be restored. With --wait it
    returns when all partitions are online.
    """
    answer = act.plan("/admin/cluster/reseed", incomplete=incomplete)
    plans = objects_in(answer, "partitions")
    if not plans:
        act.note(f"no record is behind its replicas, of {cell(answer.get('looked_at'))}")
    for plan in plans:
        _note_plan(act, plan)
        if plan.get("outcome") != "left":
            act.note(f"would be led by {cell(plan.get('node'))}")
    _note_outcomes(act, answer)
    if not act.dry_run and plans:
        act.confirm("Re-seed the metastore so?")
        answer = act.post("/admin/cluster/reseed", incomplete=incomplete, dry_run=False)
        _note_outcomes(act, answer)
        if wait:
            wait_for(act.admin, Goal.ONLINE, Waiter(timeout_ms, quiet=act.json))
            act.note("all partitions are online")
    act.echo_json(answer)
    left = any(each.get("outcome") == "left" for each in objects_in(answer, "partitions"))
    return Exit.DIFFERS if left or answer.get("forgotten") else Exit.OK


def _note_plan(act: AdminCommand, plan: dict[str, Any]) -> None:
    """Print what the replicas of a partition hold."""
    if act.json:
        return
    record = f"{cell(plan.get('status'))}, epoch {cell(plan.get('record_epoch'))}"
    act.note(f"partition {cell(plan.get('partition'))}: {record}; {cell(plan.get('reason'))}")
    REPLICAS.echo(objects_in(plan, "replicas"))
    for note in plan.get("notes") or ["no replica that answers has more than this one"]:
        act.note(f"note: {note}")


def _note_outcomes(act: AdminCommand, answer: dict[str, Any]) -> None:
    for plan in objects_in(answer, "partitions"):
        what = f"partition {cell(plan.get('partition'))}"
        if plan.get("outcome") == "left":
            act.note(f"{what}: left as it is: {cell(plan.get('reason'))}")
        elif plan.get("outcome") == "ordered":
            act.note(f"{what}: {cell(plan.get('node'))} is the candidate of epoch {cell(plan.get('epoch'))}")
    forgotten = answer.get("forgotten")
    if isinstance(forgotten, list) and forgotten:
        act.note(f"the metastore has no record of partitions {named(forgotten)}, which nodes hold copies of")

"""`isthmus queue`: the source queues of a cluster, and the suspension of serving.

Shows and asks what a node's admin listener offers; the rules of suspension are kept in `queues`.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import click

from node.cli.cluster import listed
from node.cli.output import cell, echo_json, echo_table, milliseconds, moment, output_option, printable
from node.cli.remote import AdminClient, admin_option, whoami

NAME = click.argument("name")
SERVING = click.option(
    "--serving", is_flag=True, default=True, help="Giving out changes to sinks (what is meant anyway)."
)
BY = click.option("--by", default=whoami, show_default="USER@HOST", help="Who does it; shown to others.")
REASON = click.option("--reason", default="", help="Why; shown to others.")


@click.group("queue")
def queue_group() -> None:
    """Look at source queues; suspend and resume them."""


@queue_group.command("list")
@admin_option
@output_option
def list_queues(admin: AdminClient, output: str) -> None:
    """Every queue with its owner, what waits and what is under way."""
    answer = admin.get("/admin/queues")
    if output == "json":
        echo_json(answer)
        return
    columns = ("queue", "filter", "owner", "waiting", "in flight", "oldest", "publishing", "serving", "reason")
    echo_table(columns, (_row(queue) for queue in listed(answer, "queues")))


@queue_group.command("suspend")
@NAME
@SERVING
@BY
@REASON
@admin_option
@output_option
def suspend(name: str, serving: bool, by: str, reason: str, admin: AdminClient, output: str) -> None:  # noqa: ARG001
    """Give no changes of queue NAME to sinks until it is resumed, over restarts too. Nothing is lost: they wait."""
    answer = admin.post(
        f"/admin/queues/{quote(name, safe='')}/suspend", {"what": "serving", "by": by, "reason": reason}
    )
    _echo(answer, output, f"queue {name}: serving suspended")


@queue_group.command("resume")
@NAME
@SERVING
@BY
@admin_option
@output_option
def resume(name: str, serving: bool, by: str, admin: AdminClient, output: str) -> None:  # noqa: ARG001
    """Give out changes of queue NAME again, from where its cursor stands."""
    answer = admin.post(f"/admin/queues/{quote(name, safe='')}/resume", {"what": "serving", "by": by, "reason": ""})
    _echo(answer, output, f"queue {name}: serving resumed")


def _echo(answer: dict[str, Any], output: str, sentence: str) -> None:
    if output == "json":
        echo_json(answer)
    else:
        click.echo(printable(sentence))


def _row(queue: dict[str, Any]) -> list[Any]:
    """`owner` and `reason` may be null for none; everything else that is null is not known. The age is that of
    the oldest change that waits, so when nothing waits there is none."""
    owner = queue.get("owner")
    owner = "" if "owner" in queue and owner is None else owner.get("cluster") if isinstance(owner, dict) else owner
    plain = [queue.get(key) for key in ("waiting", "in_flight")]
    age_ms = queue.get("oldest_age_ms")
    oldest = "" if age_ms is None and plain == [0, 0] else milliseconds(age_ms)
    states = [queue.get(key) for key in ("publishing", "serving")]
    return [queue.get("name"), queue.get("filter"), owner, *plain, oldest, *states, _reason(queue)]


def _reason(queue: dict[str, Any]) -> str:
    """Why it is in its state; of a suspension also who made it, and when."""
    reason, suspended = queue.get("reason") or "", queue.get("suspended")
    if not isinstance(suspended, dict):
        return str(reason)
    return f"{reason} (by {cell(suspended.get('by'))}, {moment(suspended.get('at_ms'))})"

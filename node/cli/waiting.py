"""Waits for the state of a cluster or the end of an order; each has an end.

A wait asks again each POLL_S; a node that does not answer meanwhile is asked again too, since restarts are what is
waited for. Standard error gets a line whenever what is missing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final

import click

from isthmus.config.units import format_duration
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import Row, cell, named, object_in, objects_in, printable
from isthmus.node.cli.parameters import Duration, with_options
from isthmus.repl.machine import machine

POLL_S: Final = 0.5
"""Between two looks: short beside a restart, long beside the cost of an answer."""

TIMEOUT: Final = "10m"
"""A node with much to catch up takes minutes; what takes longer needs a look. A guess."""

timeout_option: Final = click.option(
    "--timeout", "timeout_ms", type=Duration(), default=TIMEOUT, show_default=True,
    help="End waiting after this, with code 1, or 3 if no node answers.",
)  # fmt: skip
wait_options: Final = with_options(
    click.option("--wait/--no-wait", default=False, help="Return when it is done, or as soon as it is ordered."),
    timeout_option,
)
"""Add `--wait`, as the argument `wait`, and `--timeout`, as `timeout_ms`."""


class Goal(Enum):
    """The state of a cluster that is waited for."""

    ONLINE = "online"
    IN_SYNC = "in-sync"


def obstacle(goal: Goal, cluster: Row) -> str:
    """Why a cluster (the answer of /admin/cluster) has not reached a goal, in a sentence; "" if it has."""
    partitions = object_in(cluster, "partitions")
    total, online = partitions.get("total"), partitions.get("online")
    if cluster.get("waiting"):
        return f"bucket type default: {cluster['waiting']}"
    if not isinstance(total, int) or not isinstance(online, int) or not total:
        return f"node {cell(cluster.get('node'))} knows no partitions yet"
    if online < total:
        return f"{online} of {total} partitions are online"
    if goal is Goal.ONLINE:
        below = cluster.get("below_min_isr")
        return f"too few replicas are in sync to take writes in {named(below)}" if below else ""
    under = cluster.get("under_replicated")
    if under:
        return f"replicas are out of sync in {len(under)} of {total} partitions: {named(under)}"
    problems = cluster.get("problems") or ()
    return str(problems[0]) if problems else ""


class Waiter:
    """Asks until there is nothing lacking, at most `timeout_ms`; prints what is lacking unless `quiet`."""

    def __init__(self, timeout_ms: int, *, quiet: bool) -> None:
        self._timeout_ms = timeout_ms
        self._quiet = quiet
        self._ends_s = machine().monotonic_s() + timeout_ms / 1000
        self._printed = ""

    def until(self, what: str, check: Callable[[], str]) -> None:
        """Wait until `check`, which may raise CommandFailed, returns "". Raises CommandFailed at the end: DIFFERS with
        what is lacking, or UNAVAILABLE where no node answers or the outcome is not known."""
        while True:
            answered = True
            try:
                why = check()
            except CommandFailed as error:
                if error.exit_code is not Exit.UNAVAILABLE:
                    raise
                answered, why = False, str(error)
            if not why:
                return
            if machine().monotonic_s() >= self._ends_s:
                code = Exit.DIFFERS if answered else Exit.UNAVAILABLE
                limit = format_duration(self._timeout_ms)
                raise CommandFailed(code, "timed-out", f"{what}: not within {limit}: {why}")
            if why != self._printed and not self._quiet:
                click.echo(printable(f"{what}: waits: {why}"), err=True)
            self._printed = why
            machine().sleep(min(POLL_S, max(0.0, self._ends_s - machine().monotonic_s())))


def wait_for(admin: AdminClient, goal: Goal, waiter: Waiter, what: str = "cluster") -> Row:
    """Wait until the cluster has reached a goal; its last state. Raises CommandFailed."""
    seen: list[Row] = []

    def check() -> str:
        seen[:] = [admin.get("/admin/cluster")]
        return obstacle(goal, seen[0])

    waiter.until(what, check)
    return seen[0]


def wait_for_order(admin: AdminClient, number: Any, waiter: Waiter) -> Row:
    """Wait until an order of moves is over; how it ended. Raises CommandFailed, also where it was cancelled."""
    ended: list[Row] = []

    def check() -> str:
        answer = admin.get("/admin/moves")
        for order in objects_in(answer, "orders"):
            if order.get("order") == number:
                stages = ", ".join(f"{count} {stage}" for stage, count in object_in(order, "stages").items())
                return f"{cell(order.get('done'))} of {cell(order.get('total'))} partitions done ({stages})"
        ended[:] = [each for each in objects_in(answer, "ended") if each.get("order") == number]
        return "" if ended else "it is not listed"

    waiter.until(f"order {number}", check)
    if ended[0].get("outcome") != "done":
        sentence = f"order {number} ended as {cell(ended[0].get('outcome'))}"
        raise CommandFailed(Exit.DIFFERS, "not-done", sentence)
    return ended[0]


def wait_for_empty(admin: AdminClient, nodes: Sequence[str], waiter: Waiter) -> None:
    """Wait until nodes hold no replica and lead nothing. Raises CommandFailed."""

    def check() -> str:
        rows = objects_in(admin.get("/admin/nodes"), "nodes")
        left = {str(row.get("name")): row for row in rows if row.get("name") in nodes}
        full = [
            f"{name} holds {cell(row.get('replicas'))} replicas and leads {cell(row.get('leaders'))} partitions"
            for name, row in left.items()
            if row.get("replicas") or row.get("leaders")
        ]
        return "; ".join(full)

    waiter.until(f"drain of {', '.join(nodes)}", check)

"""`isthmus cluster wait` and `isthmus cluster rolling-restart`.

A rolling restart runs an operator's command for one node after the other:

    cluster in sync  -> the command for the next node; a node of an order that failed is never followed by another
    command is done  -> the node must report another start than before, live, with the whole cluster in sync
    any failure      -> the end, with the words that go on later: nodes that started since the run began are done
"""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from isthmus.config.text import no_such, quantity
from isthmus.config.units import format_duration
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import Row, TableSpec, cell, echo_json, milliseconds, moment, object_in, objects_in
from isthmus.node.cli.parameters import DRY_RUN, YES, confirm, time_of
from isthmus.node.cli.waiting import Goal, Waiter, lacking, timeout_option, wait_for
from isthmus.repl.model.errors import BadInput

HEALTH: Final = "/admin/nodes/health"


@click.command("wait")
@click.option("--online", "goal", flag_value="online", help="Until every partition takes reads and writes.")
@click.option(
    "--in-sync", "goal", flag_value="in-sync", default="in-sync", help="Until nothing is amiss either (the default)."
)
@timeout_option
@admin_query
def wait_command(goal: str, timeout_ms: int, query: AdminCommand) -> None:
    """Wait until all partitions are online, or the whole cluster is in sync. What is lacking goes to standard error.

    Code 0 when it is so, 1 when it is not within --timeout, 3 when no node answers then.
    """
    found = wait_for(query.admin, Goal(goal), Waiter(timeout_ms, quiet=query.json))
    query.echo(found, f"cluster {cell(found.get('cluster'))}: {goal}")


class RestartStep(NamedTuple):
    """One node of a rolling restart: its name, the command, and the start that it reports before."""

    node: str
    command: str
    started_ms: int | None


STEPS: Final = TableSpec("node", ("started", lambda row: moment(row.get("started_ms"))), "outcome", "command")


@click.command("rolling-restart")
@click.option("--command", required=True, metavar="COMMAND", help="Restarts a node; {node} and {host} stand for it.")
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only this node; may be given several times.")
@click.option("--since", metavar="TIME", help="Nodes that started at this time or later are done: to go on.")
@timeout_option
@DRY_RUN
@YES
@admin_query
def rolling_restart(
    command: str,
    nodes: tuple[str, ...],
    since: str | None,
    timeout_ms: int,
    dry_run: bool,
    yes: bool,
    query: AdminCommand,
) -> None:
    """Restart the nodes one after the other by COMMAND, such as 'ssh {host} systemctl restart isthmus', which a shell
    runs here. Before each node, and after the last, the whole cluster is in sync.

    It ends at the first failure: a command that does not end with 0 or within --timeout (code 1), a node that is not
    back or a cluster that is not in sync within --timeout (1, or 3 where no node answers). The error says how to go on.
    The node that controls the cluster comes last. {host} is the host of a node's address for other nodes.
    """
    began = moment(time.time_ns() // 1_000_000)
    cluster = query.get("/admin/cluster")
    steps, done = _steps(query.admin, cluster, command, nodes, None if since is None else time_of(since, "--since"))
    shown = [{"node": s.node, "started_ms": s.started_ms, "outcome": "planned", "command": s.command} for s in steps]
    if dry_run or not steps:
        _echo(query, cluster, shown, done)
        return
    if not query.json:
        STEPS.echo(shown)
    confirm(yes, f"Restart {quantity(len(steps), 'node')} of {cell(cluster.get('cluster'))} so?", query.output)
    over: list[dict[str, Any]] = []
    for number, step in enumerate(steps, 1):
        try:
            took_s = _restart(query, step, timeout_ms, f"{step.node} ({number} of {len(steps)})")
        except CommandFailed as error:
            go_on = f"--since '{since or began}' goes on with the others and this one"
            query.echo_json({"cluster": cluster.get("cluster"), "restarted": over, "failed": step.node})
            raise CommandFailed(
                error.exit_code, error.reason, f"{step.node}: {str(error).removeprefix(f'{step.node}: ')}; {go_on}"
            ) from error
        over.append({"node": step.node, "outcome": "restarted", "seconds": round(took_s, 1)})
        query.note(f"{step.node}: restarted and in sync after {milliseconds(1000 * took_s)}")
    query.echo_json({"cluster": cluster.get("cluster"), "restarted": over, "failed": None})


def _echo(query: AdminCommand, cluster: Row, shown: list[dict[str, Any]], done: Sequence[str]) -> None:
    if query.json:
        echo_json({"cluster": cluster.get("cluster"), "steps": shown, "done": list(done)})
        return
    if shown:
        STEPS.echo(shown)
    for node in done:
        query.note(f"{node}: started since then, nothing to do")


def _steps(
    admin: AdminClient, cluster: Row, command: str, wanted: Sequence[str], since_ms: int | None
) -> tuple[list[RestartStep], list[str]]:
    """The nodes to restart, in their order, and those that are done. Raises BadInput, CommandFailed."""
    rows = {str(row.get("name")): row for row in objects_in(cluster, "nodes")}
    for name in wanted:
        if name not in rows:
            raise BadInput(f"--node: {no_such('node', name, list(rows))}")
    names = sorted(wanted or rows, key=lambda name: (name == cluster.get("controller"), name))
    if len(names) > 1 and "{node}" not in command and "{host}" not in command:
        raise BadInput("--command: it needs {node} or {host}: the same command for each node restarts one of them only")
    health = object_in(admin.get(HEALTH), "nodes")
    started = {name: object_in(health, name).get("started_ms") for name in names}
    done = [
        name
        for name, at_ms in started.items()
        if since_ms is not None and isinstance(at_ms, int) and at_ms >= since_ms and rows[name].get("state") == "live"
    ]
    steps = [RestartStep(name, _command_for(rows[name], command), started[name]) for name in names if name not in done]
    return steps, done


def _command_for(row: Row, command: str) -> str:
    """The command for a node, its names quoted for a shell. Raises BadInput where its host is not known."""
    name, address = str(row.get("name")), row.get("cluster")
    host = urlsplit(f"//{address}").hostname if isinstance(address, str) else None
    if "{host}" in command and not host:
        raise BadInput(f"--command: the host of node {name} is not known while it is down: write {{node}}")
    return command.replace("{node}", shlex.quote(name)).replace("{host}", shlex.quote(host or ""))


def _restart(query: AdminCommand, step: RestartStep, timeout_ms: int, what: str) -> float:
    """Restart one node; how many seconds it took. Raises CommandFailed."""
    why = lacking(Goal.IN_SYNC, query.get("/admin/cluster"))
    if why and step.started_ms is not None:  # a node that is down is restarted because of that
        wait_for(query.admin, Goal.IN_SYNC, Waiter(timeout_ms, quiet=query.json), "before it")
    began_s = time.monotonic()
    query.note(f"{what}: {step.command}")
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", step.command], stdin=subprocess.DEVNULL, timeout=timeout_ms / 1000, check=False
        )
    except subprocess.TimeoutExpired:
        limit = format_duration(timeout_ms)
        raise CommandFailed(Exit.DIFFERS, "restart-failed", f"the command did not end within {limit}") from None
    if done.returncode:
        raise CommandFailed(Exit.DIFFERS, "restart-failed", f"the command ended with code {done.returncode}")
    waiter = Waiter(timeout_ms, quiet=query.json)

    def lacks() -> str:
        answer = query.get(HEALTH)
        started = object_in(object_in(answer, "nodes"), step.node).get("started_ms")
        if not isinstance(started, int):
            return f"it does not answer: {cell(object_in(answer, 'unknown').get(step.node))}"
        if started == step.started_ms:
            return f"it has not restarted: it runs since {moment(started)}"
        rows = objects_in(query.get("/admin/cluster"), "nodes")
        state = next((row.get("state") for row in rows if row.get("name") == step.node), None)
        return "" if state == "live" else f"it is {cell(state)}"

    waiter.until(step.node, lacks)
    wait_for(query.admin, Goal.IN_SYNC, waiter, step.node)
    return time.monotonic() - began_s

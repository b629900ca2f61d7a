"""`isthmus cluster wait` and `isthmus cluster rolling-restart`.

A rolling restart runs an operator's command for one node after the other:

    cluster in sync  -> the command for the next node; for a node that is down at once, since that is the reason
    command is done  -> the node must report another start than before, live, with the whole cluster in sync
    any failure      -> the end, with the words that go on later: nodes that started since the run began are done

Two runs at once would each see a cluster in sync and restart two nodes together. On one machine a lock on a file, which
ends with its process, admits one of them for each cluster. Of other machines nothing is known but what their runs do:
a run remembers the start of every node, and ends before its next command where a node has another one that is not of
this run. Two that look within the same moment, before the node of the first one is down, do not see each other yet.

Whether a node is down is read from the metastore, never from a missed answer. A live node must report its start before
its command runs: without it nothing could show that the node has restarted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import click

from isthmus.config.text import no_such, quantity
from isthmus.config.units import format_duration
from isthmus.node.cli.admin_command import AdminCommand, admin_query
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import Row, TableSpec, cell, echo_json, milliseconds, moment, object_in, objects_in
from isthmus.node.cli.parameters import DRY_RUN, YES, confirm, time_of
from isthmus.node.cli.waiting import Goal, Waiter, obstacle, timeout_option, wait_for
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import BadInput

HEALTH: Final = "/admin/nodes/health"

STARTS_MS: Final = 10_000
"""How long live nodes have to report their start: five times what a node may take for one answer."""

END_S: Final = 5.0
"""Time that a command that took too long has to end after SIGTERM, before SIGKILL. A guess."""

STDERR: Final = 2
"""The descriptor of standard error."""

LIVE: Final = "live"
"""The state of a node that runs, in /admin/cluster."""


@click.command("wait", short_help="Wait until the cluster is online, or in sync.")
@click.option("--online", "goal", flag_value="online", help="Until every partition takes reads and writes.")
@click.option(
    "--in-sync", "goal", flag_value="in-sync", default="in-sync", help="Until there is no problem (the default)."
)
@timeout_option
@admin_query
def wait_command(goal: str, timeout_ms: int, query: AdminCommand) -> None:
    """Wait until all partitions are online, or the whole cluster is in sync.

    Standard error shows what is still missing. Code 0 when done, 1 after --timeout, 3 if no node answers then.
    """
    found = wait_for(query.admin, Goal(goal), Waiter(timeout_ms, quiet=query.json))
    query.echo(found, f"cluster {cell(found.get('cluster'))}: {goal}")


class RestartStep(NamedTuple):
    """One node of a rolling restart: its name, the command, and the start that it reports before; None: it is down."""

    node: str
    command: str
    started_ms: int | None


class _Nodes(NamedTuple):
    """The nodes at one moment."""

    rows: Mapping[str, Row]
    """By name, as /admin/cluster has them."""
    started: Mapping[str, int | None]
    """Start of each live node that is wanted; None for one that is down."""
    reported: Mapping[str, int]
    """Start of each node that reports it, wanted or not."""
    cluster: Row
    at_ms: Any
    """The time of the node that answered."""


STEPS: Final = TableSpec("node", ("started", lambda row: moment(row.get("started_ms"))), "outcome", "command")


@click.command("rolling-restart", short_help="Restart the nodes one after the other.")
@click.option(
    "--command", required=True, metavar="COMMAND", help="Restarts a node; {node} is its name, {host} its host."
)
@click.option("--node", "nodes", multiple=True, metavar="NAME", help="Only this node; may be given several times.")
@click.option("--since", metavar="TIME", help="Continue: nodes that started at this time or later are done.")
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
    runs here. Before each live node, and after the last, the whole cluster is in sync; nodes that are down come first.

    It ends at the first failure: a command that does not end with 0 or within --timeout (code 1), a node that is not
    back or a cluster that is not in sync within --timeout (1, or 3 where no node answers). The error says how to go on.
    The node that controls the cluster comes last. {host} is the host of a node's address for other nodes.

    Only one runs for a cluster on a machine. Where a node has restarted meanwhile, and not by this command, it ends
    before the next node (1): another one may run elsewhere. Two that begin at the same moment may not see each other.
    """
    since_ms = None if since is None else time_of(since, "--since")
    nodes_now = _nodes(query, nodes, timeout_ms)
    cluster = nodes_now.cluster
    steps, done = _steps(nodes_now, command, nodes, since_ms)
    shown = [{"node": s.node, "started_ms": s.started_ms, "outcome": "planned", "command": s.command} for s in steps]
    if dry_run or not steps:
        _echo(query, cluster, shown, done)
        return
    if not query.json:
        STEPS.echo(shown)
    confirm(yes, f"Restart {quantity(len(steps), 'node')} of {cell(cluster.get('cluster'))} so?", query.output)
    with _alone(cluster):
        _restart(query, nodes_now, steps, timeout_ms, since)


@contextlib.contextmanager
def _alone(cluster: Row) -> Iterator[None]:
    """Hold this machine's lock of a cluster, which ends with the process. Raises CommandFailed when another process
    holds it. Where there can be no such file, nothing is locked."""
    uuid = "".join(filter(str.isalnum, cell(cluster.get("cluster_uuid"))))
    lock = _open_lock(f"isthmus-rolling-restart-{uuid}.lock")
    try:
        if lock is not None:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sentence = f"another rolling restart of cluster {cell(cluster.get('cluster'))} runs on this machine"
                raise CommandFailed(Exit.DIFFERS, "restart-failed", f"{sentence}: wait until it has ended") from None
            except OSError:
                pass  # a file system without locks
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _open_lock(name: str) -> int | None:
    """Open a file of the machine's temporary directory, for reading: a lock needs no more, and another user may have
    made the file."""
    path = Path(tempfile.gettempdir()) / name
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644))
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None


def _restart(
    query: AdminCommand, nodes_now: _Nodes, steps: Sequence[RestartStep], timeout_ms: int, since: str | None
) -> None:
    """Restart the nodes of `steps` one after the other. Raises CommandFailed, with the words that go on later."""
    cluster = nodes_now.cluster
    over: list[dict[str, Any]] = []
    known = dict(nodes_now.reported)
    for number, step in enumerate(steps, 1):
        restart = _Restart(query, step, timeout_ms, [later.node for later in steps[number:]], known)
        try:
            took_s = restart.run(f"{step.node} ({number} of {len(steps)})")
        except CommandFailed as error:
            go_on = f"--since '{since or moment(nodes_now.at_ms)}' goes on with the others"
            go_on += ", and with this one unless it is live then" if restart.restarted else " and this one"
            query.echo_json({"cluster": cluster.get("cluster"), "restarted": over, "failed": step.node})
            raise CommandFailed(
                error.exit_code, error.reason, f"{step.node}: {str(error).removeprefix(f'{step.node}: ')}; {go_on}"
            ) from error
        over.append({"node": step.node, "outcome": "restarted", "seconds": round(took_s, 1)})
        how = "restarted and in sync" if restart.in_sync else "restarted"
        query.note(f"{step.node}: {how} after {milliseconds(1000 * took_s)}")
    query.echo_json({"cluster": cluster.get("cluster"), "restarted": over, "failed": None})


def _echo(query: AdminCommand, cluster: Row, shown: list[dict[str, Any]], done: Sequence[str]) -> None:
    if query.json:
        echo_json({"cluster": cluster.get("cluster"), "steps": shown, "done": list(done)})
        return
    if shown:
        STEPS.echo(shown)
    for node in done:
        query.note(f"{node}: started since then, nothing to do")


def _nodes(query: AdminCommand, wanted: Sequence[str], timeout_ms: int) -> _Nodes:
    """The nodes of the cluster, once each live one of `wanted` (empty: of all) reports its start. Raises BadInput,
    CommandFailed where one does not within STARTS_MS."""
    found: list[_Nodes] = []

    def check() -> str:
        health, cluster = query.get(HEALTH), query.get("/admin/cluster")
        rows = {str(row.get("name")): row for row in objects_in(cluster, "nodes")}
        for name in wanted:
            if name not in rows:
                raise BadInput(f"--node: {no_such('node', name, list(rows))}")
        reported = object_in(health, "nodes")
        started = {name: _start(object_in(reported, name), rows[name]) for name in wanted or rows}
        starts = {name: object_in(reported, name).get("started_ms") for name in rows}
        numbers = {name: at_ms for name, at_ms in starts.items() if isinstance(at_ms, int)}
        found[:] = [_Nodes(rows, started, numbers, cluster, health.get("at_ms"))]
        silent = [name for name, at_ms in started.items() if at_ms is None and rows[name].get("state") == LIVE]
        if not silent:
            return ""
        why = object_in(health, "unknown").get(silent[0])
        return f"node {silent[0]} is live, and does not report when it started: {cell(why)}"

    Waiter(min(timeout_ms, STARTS_MS), quiet=query.json).until("nodes", check)
    return found[0]


def _start(reported: Row, row: Row) -> int | None:
    started = reported.get("started_ms")
    return started if isinstance(started, int) and row.get("state") == LIVE else None


def _steps(
    now: _Nodes, command: str, wanted: Sequence[str], since_ms: int | None
) -> tuple[list[RestartStep], list[str]]:
    """The nodes to restart and those that are done. Nodes that are down come first, since no other can be restarted
    before them; the one that controls the cluster last. Raises BadInput."""
    rows, controller = now.rows, now.cluster.get("controller")
    names = sorted(wanted or rows, key=lambda name: (rows[name].get("state") == LIVE, name == controller, name))
    if len(names) > 1 and "{node}" not in command and "{host}" not in command:
        raise BadInput("--command: it needs {node} or {host}: the same command for each node restarts one of them only")
    done = [name for name in names if since_ms is not None and (now.started[name] or -1) >= since_ms]
    steps = [
        RestartStep(name, _command_for(rows[name], command), now.started[name]) for name in names if name not in done
    ]
    return steps, done


def _command_for(row: Row, command: str) -> str:
    """The command for a node, its names quoted for a shell. Raises BadInput where its host is not known."""
    name, address = str(row.get("name")), row.get("cluster")
    host = urlsplit(f"//{address}").hostname if isinstance(address, str) else None
    if "{host}" in command and not host:
        raise BadInput(f"--command: the host of node {name} is not known while it is down: write {{node}}")
    return command.replace("{node}", shlex.quote(name)).replace("{host}", shlex.quote(host or ""))


class _Restart:
    """The restart of one node."""

    def __init__(
        self, query: AdminCommand, step: RestartStep, timeout_ms: int, later: Sequence[str], known: dict[str, int]
    ) -> None:
        """`known`: the start of each node as this run saw or caused it; kept up to date."""
        self._known = known
        self._query = query
        self._step = step
        self._timeout_ms = timeout_ms
        self._later = later
        self.restarted = False
        """True as soon as the node reports another start than before."""
        self.in_sync = False
        """True when the cluster was in sync after it, which is not waited for while a later node is down."""

    def run(self, what: str) -> float:
        """Restart the node; how many seconds it took. Raises CommandFailed."""
        query, step = self._query, self._step
        cluster = query.get("/admin/cluster")
        if obstacle(Goal.IN_SYNC, cluster) and _state_in(cluster, step.node) == LIVE:
            wait_for(query.admin, Goal.IN_SYNC, Waiter(self._timeout_ms, quiet=query.json), "before it")
        now = _nodes(query, [step.node], self._timeout_ms)
        self._check_starts(now.reported)
        before_ms = now.started[step.node]
        began_s = machine().monotonic_s()
        query.note(f"{what}: {step.command}")
        _run(step.command, self._timeout_ms, quiet=query.json)
        waiter = Waiter(self._timeout_ms, quiet=query.json)
        waiter.until(step.node, lambda: self._obstacle(before_ms))
        cluster = query.get("/admin/cluster")
        if all(
            _state_in(cluster, node) == LIVE for node in self._later
        ):  # else the next one is down, and is waited for
            wait_for(query.admin, Goal.IN_SYNC, waiter, step.node)
            self.in_sync = True
        return machine().monotonic_s() - began_s

    def _check_starts(self, reported: Mapping[str, int]) -> None:
        """Raises CommandFailed when a node has restarted, and not by this run. One that was down may have been started
        meanwhile: that takes no node away."""
        for node, started_ms in reported.items():
            if self._known.setdefault(node, started_ms) != started_ms:
                at = moment(started_ms)
                sentence = (
                    f"{node} restarted at {at}, and not by this command: wait for another rolling restart, if any"
                )
                raise CommandFailed(Exit.DIFFERS, "restart-failed", sentence)

    def _obstacle(self, before_ms: int | None) -> str:
        """Why the node is not back yet; "": it is."""
        answer = self._query.get(HEALTH)
        started = object_in(object_in(answer, "nodes"), self._step.node).get("started_ms")
        if not isinstance(started, int):
            return f"it does not answer: {cell(object_in(answer, 'unknown').get(self._step.node))}"
        if started == before_ms:
            return f"it has not restarted: it runs since {moment(started)}"
        self.restarted = True
        self._known[self._step.node] = started
        state = _state_in(self._query.get("/admin/cluster"), self._step.node)
        return "" if state == LIVE else f"it is {cell(state)}"


def _state_in(cluster: Row, node: str) -> Any:
    return next((row.get("state") for row in objects_in(cluster, "nodes") if row.get("name") == node), None)


def _run(command: str, timeout_ms: int, *, quiet: bool) -> None:
    """Run a command in a shell, in a session of its own, so that a time-out or Ctrl-C ends what it started, too. Its
    output goes to standard error where standard output is a document (`quiet`). Raises CommandFailed."""
    shell = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=STDERR if quiet else None,
        start_new_session=True,
    )
    try:
        code = shell.wait(timeout_ms / 1000)
    except subprocess.TimeoutExpired:
        _end(shell)
        limit = format_duration(timeout_ms)
        raise CommandFailed(Exit.DIFFERS, "restart-failed", f"the command did not end within {limit}") from None
    except BaseException:
        _end(shell)
        raise
    if code:
        raise CommandFailed(Exit.DIFFERS, "restart-failed", f"the command ended with code {code}")


def _end(shell: subprocess.Popen[bytes]) -> None:
    """End all processes of a command, the gentle way first."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            shell.wait(END_S)

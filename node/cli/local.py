"""`isthmus local`: clusters on this machine, by `node.local.clusters` and `node.local.directory`."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import click

import isthmus.config
from isthmus.config.text import no_such
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.output import Row, TableSpec, column, echo_result, echo_rows, output_option, value_or_nothing
from isthmus.node.cli.parameters import Duration, with_options
from isthmus.node.local import directory as local_directory
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.supervisor_client import stop
from isthmus.node.local.topology import load_topology
from isthmus.node.local.topology_model import Topology
from isthmus.repl.model.errors import BadInput

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Where data, logs and ports are kept.",
)
topology_argument = click.argument("topology", type=click.Path(path_type=Path))
timeout_option = click.option(
    "--timeout",
    "timeout_ms",
    type=Duration(100, 3_600_000),
    default=f"{local_directory.READY_TIMEOUT_S:g}s",
    show_default=True,
    help="How long to wait until it serves.",
)
wait_option = click.option("--wait/--no-wait", default=True, help="Return when it serves (the default), or at once.")
kill_option = click.option(
    "--kill9", "--kill", "kill", is_flag=True, help="SIGKILL at once, as a crash would, instead of a graceful stop."
)
directory_options = with_options(
    click.argument("topology", type=click.Path(path_type=Path), required=False), directory_option, output_option
)
node_options = with_options(topology_argument, click.argument("node"), directory_option)

PROGRESS_INTERVAL_S: Final = 5.0
"""Between two lines of progress where standard error is no terminal: a start of 30 s leaves few lines in a log."""


@click.group("local")
def local_group() -> None:
    """Start and stop clusters on this machine."""


SAMPLES: Final = Path(isthmus.config.__file__).parent / "samples"
"""Topologies that come with the package, and the sample of a node's file (`isthmus config sample`)."""

TOPOLOGIES: Final = ("two-clusters", "two-clusters-secure", "two-nodes")


@local_group.command("sample", short_help="Print a topology to start from.")
@click.argument("name", type=click.Choice(TOPOLOGIES), default=TOPOLOGIES[0])
def sample(name: str) -> None:
    """Print a topology to start from: two clusters of three nodes each, the same with TLS and tokens, or two clusters
    of one node each."""
    click.echo((SAMPLES / f"{name}.toml").read_text(), nl=False)


@local_group.command("up", short_help="Start clusters, and wait until they serve.")
@topology_argument
@directory_option
@click.option("--auto-ports", is_flag=True, help="Use free ports instead of the file's; the same at every start.")
@wait_option
@timeout_option
@output_option
def up(topology: Path, directory: Path, auto_ports: bool, wait: bool, timeout_ms: int, output: str) -> None:
    """Start the clusters of TOPOLOGY; returns when every partition is online. Starts only what does not run."""
    clusters = LocalClusters(load_topology(topology), directory, auto_ports=auto_ports)
    with StartProgress() as progress:
        result = clusters.up(timeout_ms / 1000, progress.show, wait=wait)
    echo_rows(result, output, NODES, _node_rows(result))


@local_group.command("down", short_help="Stop all that runs in the directory.")
@directory_options
def down(topology: Path | None, directory: Path, output: str) -> None:
    """Stop all that runs in the directory; data and ports are kept. TOPOLOGY is not needed."""
    if topology is not None:
        load_topology(topology)
    stopped = stop(directory.absolute())
    echo_result({"stopped": stopped}, output, "stopped" if stopped else f"nothing ran in {directory}")


@local_group.command("status")
@directory_options
def status(topology: Path | None, directory: Path, output: str) -> int:
    """Processes of the directory and their addresses. Exit code 1 unless everything runs. TOPOLOGY is not needed."""
    if topology is not None:
        load_topology(topology)
    found = local_directory.status_of(directory)
    echo_rows(found, output, PROCESSES, _process_rows(found))
    states = [
        each["state"] for cluster in found["clusters"].values() for each in [*cluster["zookeepers"], *cluster["nodes"]]
    ]
    return Exit.OK if all(state == "running" for state in states) else Exit.DIFFERS


@local_group.command("restart-node", short_help="Restart a node.")
@node_options
@kill_option
@wait_option
@timeout_option
@output_option
def restart(topology: Path, node: str, directory: Path, kill: bool, wait: bool, timeout_ms: int, output: str) -> None:
    """Restart NODE, gracefully or with --kill9; start it if it is dead.

    Returns when it serves and its replicas are in sync: then the next node may follow.
    """
    _check_node(topology, node, directory)
    local_directory.restart_node(directory, node, timeout_ms / 1000 if wait else None, kill=kill)
    _show_nodes(directory, output)


@local_group.command("stop-node")
@node_options
@kill_option
@output_option
def stop_one(topology: Path, node: str, directory: Path, kill: bool, output: str) -> None:
    """Stop NODE, gracefully or with --kill9. It stays down until `start-node`, `restart-node` or `up`."""
    _check_node(topology, node, directory)
    local_directory.stop_node(directory, node, kill=kill)
    _show_nodes(directory, output)


@local_group.command("start-node", short_help="Start a node, and wait until it is in sync.")
@node_options
@wait_option
@timeout_option
@output_option
def start_one(topology: Path, node: str, directory: Path, wait: bool, timeout_ms: int, output: str) -> None:
    """Start NODE unless it runs; returns when it serves and its replicas are in sync."""
    _check_node(topology, node, directory)
    local_directory.start_node(directory, node, timeout_ms / 1000 if wait else None)
    _show_nodes(directory, output)


class StartProgress:
    """Progress on standard error: on a terminal one line that is overwritten, elsewhere a line every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._live = sys.stderr.isatty()
        self._width = 0
        self._clock = clock
        self._shown_s = clock()

    def __enter__(self) -> StartProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            click.echo(err=True)

    def show(self, line: str) -> None:
        """Show the newest state."""
        if self._live:
            width = shutil.get_terminal_size().columns - 1  # a line that wraps could not be replaced
            click.echo(f"\r{line[:width].ljust(self._width)}", nl=False, err=True)
            self._width = len(line[:width])
        elif self._clock() - self._shown_s >= PROGRESS_INTERVAL_S:
            self._shown_s = self._clock()
            click.echo(line, err=True)


def _check_node(topology: Path, node: str, directory: Path) -> None:
    """Refuse a node that the topology does not have, and a directory in which another topology is set up."""
    known = _node_names(load_topology(topology))
    if node not in known:
        raise BadInput(f"{no_such('node', node, known)} ({topology} has {', '.join(known)})")
    if node not in [one.name for one in local_directory.nodes_of(directory.absolute())]:
        raise BadInput(f"no node {node!r} in {directory}: another topology is set up there")


def _node_names(topology: Topology) -> list[str]:
    return [node.name for cluster in topology.clusters.values() for node in cluster.nodes]


def _show_nodes(directory: Path, output: str) -> None:
    result = local_directory.describe(directory.absolute())
    echo_rows(result, output, NODES, _node_rows(result))


def _node_rows(result: Row) -> Iterator[Row]:
    for name, cluster in result["clusters"].items():
        for node in cluster["nodes"]:
            yield {**node, "node": node["name"], "cluster": name}


def _process_rows(found: Row) -> Iterator[Row]:
    for name, cluster in found["clusters"].items():
        for each in [*cluster["nodes"], *cluster["zookeepers"]]:
            yield {**each, "process": each["name"], "cluster": name}


def _online(process: Row) -> str:
    """Partitions that are online; what a node lacks follows them."""
    return str(process.get("online") or "").removesuffix(" online")


def _reason(process: Row) -> str:
    last = f"; last output: {process['last_words']}" if process["last_words"] else ""
    return f"{process['reason']}{last}"


NODES: Final = TableSpec("cluster", "node", "http", "admin", ("pid", value_or_nothing("pid")))
PROCESSES: Final = TableSpec(
    "cluster",
    "process",
    column("state", state=True),
    column("pid", value_or_nothing("pid"), leave=3),
    column("restarts", leave=2),
    column("online", _online, text=True),
    column("address", lambda process: process.get("address") or process["http"], leave=1, host=True),
    column("admin", value_or_nothing("admin"), leave=4, host=True),
    column("reason", _reason, text=True),
)

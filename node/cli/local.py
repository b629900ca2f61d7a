"""`isthmus local`: clusters on this machine. All of it is `node.local`; here are words and columns."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

from node.cli.exits import CommandFailed, Exit
from node.cli.output import echo_json, echo_table, output_option
from node.local import UP_TIMEOUT_S, LocalClusters, described, places_of, restart_node, status_of
from node.supervisor import stop
from node.topology import load_topology

STATUS_COLUMNS: Final = ("cluster", "process", "state", "pid", "restarts", "online", "address", "reason")

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
    "timeout_s",
    type=click.FloatRange(min=0.1, max=3600),
    default=UP_TIMEOUT_S,
    show_default=True,
    help="Seconds to wait until everything is online.",
)


@click.group("local")
def local_group() -> None:
    """Start and stop clusters on this machine."""


@local_group.command("up")
@topology_argument
@directory_option
@click.option("--auto-ports", is_flag=True, help="Use free ports instead of the file's; the same at every start.")
@timeout_option
@output_option
def up(topology: Path, directory: Path, auto_ports: bool, timeout_s: float, output: str) -> None:
    """Start the clusters of TOPOLOGY; returns when every partition is online. Where all runs already, only says so."""
    clusters = LocalClusters(load_topology(topology), directory, auto_ports=auto_ports)
    with Progress() as progress:
        result = clusters.up(timeout_s, progress.show)
    if output == "json":
        echo_json(result)
        return
    echo_table(("cluster", "node", "http", "admin", "pid"), _node_rows(result))


@local_group.command("down")
@click.argument("topology", type=click.Path(path_type=Path), required=False)
@directory_option
@output_option
def down(topology: Path | None, directory: Path, output: str) -> None:
    """Stop all that runs in the directory; data and ports are kept. TOPOLOGY is not needed."""
    if topology is not None:
        load_topology(topology)
    stopped = stop(directory.absolute())
    if output == "json":
        echo_json({"stopped": stopped})
    else:
        click.echo("stopped" if stopped else f"nothing ran in {directory}")


@local_group.command("status")
@directory_option
@output_option
def status(directory: Path, output: str) -> int:
    """What runs in the directory, and where. Exit code 1 unless everything runs."""
    found = status_of(directory)
    if output == "json":
        echo_json(found)
    else:
        echo_table(STATUS_COLUMNS, _status_rows(found))
    states = [
        each["state"] for cluster in found["clusters"].values() for each in [cluster["zookeeper"], *cluster["nodes"]]
    ]
    return Exit.OK if all(state == "running" for state in states) else Exit.DIFFERS


@local_group.command("restart-node")
@topology_argument
@click.argument("node")
@directory_option
@timeout_option
@output_option
def restart(topology: Path, node: str, directory: Path, timeout_s: float, output: str) -> None:
    """Start NODE if it is dead, restart it if it runs; returns when it serves."""
    known = [each.name for cluster in load_topology(topology).clusters.values() for each in cluster.nodes]
    if node not in known:
        raise CommandFailed(Exit.USAGE, "bad-input", f"no node {node!r} in {topology}; there are {', '.join(known)}")
    if node not in [place.name for place in places_of(directory.absolute())]:
        raise CommandFailed(
            Exit.USAGE, "bad-input", f"no node {node!r} in {directory}: another topology is set up there"
        )
    restart_node(directory, node, timeout_s)
    result = described(directory.absolute())
    if output == "json":
        echo_json(result)
    else:
        echo_table(("cluster", "node", "http", "admin", "pid"), _node_rows(result))


class Progress:
    """One line on standard error that replaces itself on a terminal; elsewhere nothing, so that logs stay short."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._width:
            click.echo(err=True)

    def show(self, line: str) -> None:
        """Show the newest state."""
        if self._live:
            click.echo(f"\r{line.ljust(self._width)}", nl=False, err=True)
            self._width = len(line)


def _node_rows(result: dict[str, Any]) -> list[list[Any]]:
    return [
        [name, node["name"], node["http"], node["admin"], node["pid"]]
        for name, cluster in result["clusters"].items()
        for node in cluster["nodes"]
    ]


def _status_rows(found: dict[str, Any]) -> list[list[Any]]:
    rows = []
    for name, cluster in found["clusters"].items():
        for each in [*cluster["nodes"], cluster["zookeeper"]]:
            where = each.get("address") or f"{each['http']} {each['admin']}"
            pid = "" if each["pid"] is None else each["pid"]
            online = each.get("online") or ""
            rows.append([name, each["name"], each["state"], pid, each["restarts"], online, where, each["reason"]])
    return rows

"""`isthmus node`: run the daemon, renew the identity of a restored data directory; list, drain and remove nodes.

`node.daemon` is imported only to run a node; `node.cli.reassignment` lists, drains and removes nodes.
"""

from __future__ import annotations

import signal
from pathlib import Path

import click

from isthmus.config.loader import load_file
from isthmus.config.text import quantity
from isthmus.node.cli.output import echo_json, output_option, printable
from isthmus.node.cli.parameters import BY, DRY_RUN
from isthmus.node.cli.reassignment import drain, list_nodes, remove
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.storage.identity import NodeIdentity

FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group("node")
def node_group() -> None:
    """Run a node; list, drain and remove nodes; give a restored one a new identity."""


for command in (list_nodes, drain, remove):
    node_group.add_command(command)


@node_group.command("run")
@FILE
def run(file: Path) -> int:
    """Run the node that FILE describes, until SIGTERM or Ctrl-C; it stops gracefully.

    On SIGHUP certificates, keys, tokens, and log.level of FILE are read again; nothing stops.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the daemon handles it: a hang-up must not end a starting node
    settings = load_file(file)
    from isthmus.node import daemon

    return daemon.run(settings, file)


@node_group.command("new-identity")
@FILE
@DRY_RUN
@BY
@output_option
def new_identity(file: Path, dry_run: bool, by: str, output: str) -> None:
    """After a data directory was restored from a backup or a snapshot: give its replicas new gens at the next start.

    The node of FILE must not run. Its replicas catch up from their leaders; none of them is elected before.
    """
    settings = load_file(file)
    node, directory = settings.node.name, settings.node.data_dir
    if not directory.is_dir():
        raise LocalFault(f"{directory}, the data directory of node {node}, is not there: nothing is to be renewed")
    identity = NodeIdentity.open(directory)
    try:
        identity.check_node(node)
        if identity.is_new:
            raise LocalFault(f"{directory} has no identity yet: node {node} gets one at its first start")
        gens = identity.gens()
        if not dry_run:
            identity.renew(f"restored: a new identity was ordered by {by}")
    finally:
        identity.close(clean=False)
    outcome = "would be renewed" if dry_run else "renewed"
    if output == "json":
        echo_json({"node": node, "data_dir": str(directory), "outcome": outcome, "partitions": sorted(gens)})
    else:
        click.echo(
            printable(
                f"node {node}: {quantity(len(gens), 'copy')} in {directory} {outcome}: new gens at the next start"
            )
        )

"""`isthmus node`: run the daemon, renew the identity of a restored data directory; list, drain and remove nodes.

`node.daemon` is imported only to run a node; `node.cli.reassignment` lists, drains and removes nodes.
"""

from __future__ import annotations

import signal
from pathlib import Path

import click

from isthmus.config.loader import load_file
from isthmus.config.text import quantity
from isthmus.node.cli.exit_codes import Exit, failure_of
from isthmus.node.cli.node_init import init
from isthmus.node.cli.output import echo_json, output_option, printable
from isthmus.node.cli.parameters import BY, DRY_RUN
from isthmus.node.cli.reassignment import drain, list_nodes, remove
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.storage.identity import NodeIdentity

FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group("node")
def node_group() -> None:
    """Write the config of a node and run it; list, drain and remove nodes; give a restored one a new identity."""


for command in (init, list_nodes, drain, remove):
    node_group.add_command(command)


@node_group.command("run", short_help="Run a node until SIGTERM or Ctrl-C.")
@FILE
def run(file: Path) -> int:
    """Run the node that FILE describes, until SIGTERM or Ctrl-C; it stops gracefully.

    On SIGHUP certificates, keys, tokens, and log.level of FILE are read again; nothing stops.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the daemon handles it: a hang-up must not end a starting node
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, _ignored)  # log rotation made for other servers sends them; the default is an end
    settings = load_file(file)
    from isthmus.node import daemon
    from isthmus.node.observability import logs

    try:
        return daemon.run(settings, file)
    except Exception as error:
        if not logs.is_json(settings.log):
            raise  # a person reads it, as of any command
        import structlog

        failure = failure_of(error)
        log = structlog.get_logger(__name__)
        if failure is None:
            log.critical("node.failed", sentence="a fault in this program", exit_code=int(Exit.BROKEN), exc_info=error)
            return Exit.BROKEN
        sentence = "\n".join(failure.sentences)
        log.critical("node.failed", sentence=sentence, reason=failure.reason, exit_code=int(failure.exit_code))
        return failure.exit_code


def _ignored(_number: int, _frame: object) -> None:
    """A signal that means nothing. Not SIG_IGN, which the node's children would inherit."""


@node_group.command("new-identity", short_help="Give the replicas of a restored directory new gens.")
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
        log_ids = identity.log_ids()
        if not dry_run:
            identity.renew(f"restored: a new identity was ordered by {by}")
    finally:
        identity.close(clean=False)
    outcome = "would be renewed" if dry_run else "renewed"
    if output == "json":
        echo_json({"node": node, "data_dir": str(directory), "outcome": outcome, "partitions": sorted(log_ids)})
    else:
        click.echo(
            printable(
                f"node {node}: {quantity(len(log_ids), 'copy')} in {directory} {outcome}: new gens at the next start"
            )
        )

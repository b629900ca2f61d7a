"""`isthmus node`: run the daemon, renew the identity of a restored data directory; list, drain and remove nodes.

`node.daemon` is imported only to run a node; `node.cli.reassignment` lists, drains and removes nodes.
"""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Any, Final

import click

from isthmus.config.loader import ConfigError, Fault, load_file, load_text
from isthmus.config.sample import sample_text
from isthmus.config.text import quantity
from isthmus.node.cli.exit_codes import Exit, failure_of
from isthmus.node.cli.output import echo_json, echo_result, output_option, printable
from isthmus.node.cli.parameters import BY, DRY_RUN, Count, RenamedOption
from isthmus.node.cli.reassignment import drain, list_nodes, remove
from isthmus.repl.model.errors import BadInput, LocalFault
from isthmus.repl.storage.identity import NodeIdentity

FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group("node")
def node_group() -> None:
    """Write the config of a node and run it; list, drain and remove nodes; give a restored one a new identity."""


for command in (list_nodes, drain, remove):
    node_group.add_command(command)


@node_group.command("run", short_help="Run a node until SIGTERM or Ctrl-C.")
@FILE
def run(file: Path) -> int:
    """Run the node that FILE describes, until SIGTERM or Ctrl-C; it stops gracefully.

    On SIGHUP certificates, keys, tokens, and log.level of FILE are read again; nothing stops.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the daemon handles it: a hang-up must not end a starting node
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(
            number, _ignored
        )  # tools of other servers send them after a log's rotation; the default is an end
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


@node_group.command("init", short_help="Write the commented config of a new node.")
@FILE
@click.option("--name", required=True, help="The node's name, such as east-1.")
@click.option("--cluster-name", required=True, metavar="NAME", help="The cluster's name, such as east.")
@click.option("--data-dir", metavar="DIR", help="Where its data lies; without it data/NAME beside FILE.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where it listens for clients, nodes, operators.")
@click.option(
    "--port",
    type=Count(1, 65_533),
    default=8_097,
    show_default=True,
    help="For nodes; clients have the next one, operators the one after.",
)
@click.option("--metastore", default="", metavar="HOST:PORT,...", help="ZooKeeper; without it one in the node.")
@click.option(
    "--replication-factor", cls=RenamedOption, old=("--factor",), type=Count(1, 7),
    help="Replicas of each partition; without it 3 with --metastore, else 1.",
)  # fmt: skip
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="A queue for another cluster; repeatable.")
@click.option("--peer", "peers", nargs=2, multiple=True, metavar="URL QUEUE", help="Fetch from there; repeatable.")
@click.option("--every/--short", default=True, help="With every other key, commented out, or without.")
@output_option
def init(
    file: Path,
    name: str,
    cluster_name: str,
    data_dir: str | None,
    host: str,
    port: int,
    metastore: str,
    replication_factor: int | None,
    queues: tuple[str, ...],
    peers: tuple[tuple[str, str], ...],
    every: bool,
    output: str,
) -> None:
    """Write FILE, the commented config of a new node, which `isthmus node run FILE` starts. An existing FILE stays.

    The config is first checked as by `isthmus config check`; if it has a fault, nothing is written, and the message
    names the option.
    """
    shown = f"[{host}]" if ":" in host else host
    values: dict[str, Any] = {
        "node.name": name,
        "node.cluster": cluster_name,
        "node.data_dir": data_dir or f"data/{name}",
        "listen.http": f"{shown}:{port + 1}",
        "listen.admin": f"{shown}:{port + 2}",
        "listen.cluster": f"{shown}:{port}",
        "metastore.hosts": metastore,
        "queues": [{"name": queue} for queue in queues],
        "sink.peers": [{"url": url, "queue": queue} for url, queue in peers],
    }
    if replication_factor is not None:
        values["replication.factor"] = replication_factor
    text = sample_text(values, every=every)
    try:
        settings = load_text(text, file)
    except ConfigError as error:
        raise ConfigError("node init", [_at_option(fault) for fault in error.faults]) from None
    try:
        with file.open("x", encoding="utf-8") as written:
            written.write(text)
    except FileExistsError:
        raise BadInput(f"{file} exists: name another file, or change that one") from None
    answer = {"file": str(file), "node": name, "cluster": cluster_name, "data_dir": str(settings.node.data_dir)}
    echo_result(answer, output, f"{file}: node {name} of cluster {cluster_name}; `isthmus node run {file}` starts it")


OPTION_OF: Final = {
    "node.name": "--name",
    "node.cluster": "--cluster-name",
    "node.data_dir": "--data-dir",
    "listen": "--host",
    "metastore.hosts": "--metastore",
    "replication.factor": "--replication-factor",
    "queues": "--queue",
    "sink.peers": "--peer",
}
"""Key of the file, or beginning of keys -> the option of `node init` that gives its value."""


def _at_option(fault: Fault) -> Fault:
    """The fault with its option instead of a line of a file that is not written."""
    for key, option in OPTION_OF.items():
        if re.match(rf"{re.escape(key)}(?![a-z_])", fault.path):
            return Fault(option, 0, fault.message)
    return fault._replace(line=0)


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

"""`isthmus dev`: certificates of a test authority, and tokens, made by `node.local.dev_certificates`.

They are for trials: the authority's key lies beside what it signs. docs/security.md says what differs in production.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from isthmus.config.validation import check_name
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import TableSpec, echo_rows, moment_of, output_option
from isthmus.node.cli.parameters import Number
from isthmus.node.local import dev_certificates
from isthmus.node.local.topology import load_topology
from isthmus.node.security import certificates
from isthmus.repl.model.errors import BadInput
from isthmus.repl.security.tls import NodeName

directory_argument = click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))


CERTIFICATES: Final = TableSpec("name", "certificate", "key", ("expires", moment_of("expires_ms")))
TOKENS: Final = TableSpec("role", "file")


@click.group("dev")
def dev_group() -> None:
    """Certificates and tokens for trying things out."""


@dev_group.command("certs", short_help="A test authority, and a certificate for each node.")
@directory_argument
@click.option("--cluster", help="The cluster of the nodes that --node names.")
@click.option("--node", "nodes", multiple=True, help="A node to make a certificate for; may be repeated.")
@click.option(
    "--for",
    "topology",
    type=click.Path(path_type=Path),
    metavar="TOPOLOGY",
    help="Make one for every node of a file of `isthmus local`.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    default=dev_certificates.LOCAL_HOSTS,
    show_default=True,
    help="A name or address at which the nodes answer; may be repeated.",
)
@click.option("--days", type=Number(min=0.001, max=3650), default=certificates.DAYS, show_default=True)
@output_option
def certs(
    directory: Path,
    cluster: str | None,
    nodes: tuple[str, ...],
    topology: Path | None,
    hosts: tuple[str, ...],
    days: float,
    output: str,
) -> None:
    """Create a test authority in DIR and a certificate for each node, with private keys that only you can read.

    An existing authority stays, so that nodes can be added; certificates of the named nodes are replaced.
    """
    wanted = _named(cluster, nodes) + ([] if topology is None else _nodes_of(topology))
    if not wanted:
        raise CommandFailed(Exit.USAGE, "usage", "name nodes by --cluster NAME --node NAME, or a file by --for")
    paths = dev_certificates.make_certificates(directory, wanted, hosts, days)
    rows: list[dict[str, Any]] = [
        {
            "name": name.uri(),
            "certificate": str(path),
            "key": str(path.with_suffix(".key")),
            "expires_ms": certificates.expires_ms(path),
        }
        for name, path in zip(wanted, paths, strict=True)
    ]
    echo_rows({"authority": str(directory / "ca.crt"), "certificates": rows}, output, CERTIFICATES, rows)


@dev_group.command("tokens", short_help="A token for each role.")
@directory_argument
@output_option
def tokens(directory: Path, output: str) -> None:
    """Create a token for each role in DIR, in files that only you can read. Existing tokens stay."""
    paths = {path.stem: str(path) for path in dev_certificates.make_tokens(directory)}
    echo_rows({"tokens": paths}, output, TOKENS, ({"role": role, "file": path} for role, path in paths.items()))


def _named(cluster: str | None, nodes: tuple[str, ...]) -> list[NodeName]:
    if bool(cluster) != bool(nodes):
        raise CommandFailed(Exit.USAGE, "usage", "--cluster and --node belong together")
    try:
        return [NodeName(check_name(cluster or ""), check_name(node)) for node in nodes]
    except ValueError as error:
        raise BadInput(str(error)) from None


def _nodes_of(topology: Path) -> list[NodeName]:
    plan = load_topology(topology)
    return [NodeName(cluster.name, node.name) for cluster in plan.clusters.values() for node in cluster.nodes]

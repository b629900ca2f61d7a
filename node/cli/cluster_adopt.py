"""`isthmus cluster adopt`: fill a metastore that lost its data from the copy in a node's data directory.

Works on this machine's files and on the metastore, without a node: nodes do not start while the metastore is empty.
`repl.runtime.metastore_copy` decides what is written and what is lost; docs/runbooks.md has the runbook.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from isthmus.config.loader import load_file
from isthmus.config.settings import Settings
from isthmus.config.text import quantity
from isthmus.node.cli.output import echo_json, moment, output_option, printable
from isthmus.node.cli.parameters import BY, DRY_RUN, YES, confirm
from isthmus.repl.model.errors import LocalFault

if TYPE_CHECKING:
    from isthmus.repl.metastore.zookeeper import ZooKeeperMetastore
    from isthmus.repl.runtime.metastore_copy import Adoption, MetastoreCopy

NEXT = "start all nodes (restart those that run), then: isthmus cluster reseed"


@click.command("adopt", short_help="Fill a metastore that lost ALL its data.")
@click.argument("file", type=click.Path(path_type=Path))
@YES
@DRY_RUN
@BY
@output_option
def adopt_command(file: Path, yes: bool, dry_run: bool, by: str, output: str) -> None:
    """After ZooKeeper lost ALL its data: fill the empty metastore from the data directory of FILE.

    FILE is the config of any node. Bucket types, placements, options, queues and suspensions come from the copy of the
    metastore that the directory holds. Refused when the metastore is in use. Afterwards start the nodes, and run
    `isthmus cluster reseed`.

    Needs no node; shows what is lost, and asks for confirmation. Code 2 when the metastore is in use, 3 when it does
    not answer, 5 for a directory that belongs to no cluster.
    """
    from isthmus.node.observability import logs
    from isthmus.repl.runtime.metastore_copy import check_known, load_copy
    from isthmus.repl.storage.identity import NAME as IDENTITY
    from isthmus.repl.storage.slot_file import SlotFile

    settings = load_file(file)
    logs.configure(settings.log, settings.node.name)  # to standard error, as a node's
    directory, node = settings.node.data_dir, settings.node.name
    if not directory.is_dir():
        raise LocalFault(f"{directory}, the data directory of node {node}, is not there")
    identity = check_known(directory, SlotFile(directory, IDENTITY).read())
    if identity["node"] != node:
        raise LocalFault(f"{directory} belongs to node {identity['node']!r}, not {node!r}: name its own config file")
    copy = load_copy(directory)
    with _hosts_of(settings) as hosts:
        adoption = asyncio.run(_planned(settings, hosts, identity, copy, by))
        if output != "json":
            _echo_plan(adoption, settings, hosts, copy)
        if not dry_run:
            confirm(yes, "Fill the metastore so?", output)
            asyncio.run(_adopted(settings, hosts, adoption))
    outcome = "would be adopted" if dry_run else "adopted"
    if output == "json":
        echo_json(
            {
                "outcome": outcome,
                "cluster": settings.node.cluster,
                "cluster_uuid": adoption.cluster_uuid.hex(),
                "found_uuid": adoption.found_uuid or None,
                "hosts": hosts,
                "data_dir": str(directory),
                "copied_at_ms": adoption.as_of_ms,
                "bucket_types": dict(adoption.bucket_types),
                "documents": sorted(path for path in adoption.documents if not path.startswith("/p/")),
                "lost": list(adoption.lost),
                "next": NEXT,
            }
        )
    elif not dry_run:
        click.echo(printable(f"adopted: {hosts} is the metastore of cluster {settings.node.cluster} again; {NEXT}"))


@contextmanager
def _hosts_of(settings: Settings) -> Iterator[str]:
    """Addresses of the metastore. An embedded one is started for the command, while its node does not run."""
    from isthmus.node.local import supervisor_client
    from isthmus.repl.storage.identity import NodeIdentity

    if settings.metastore.hosts:
        yield settings.metastore.hosts
        return
    identity = NodeIdentity.open(
        settings.node.data_dir
    )  # held: the node and this command cannot both own its ZooKeeper
    try:
        data_dir, port = settings.node.data_dir, settings.metastore.embedded_port
        yield supervisor_client.ensure_embedded(data_dir, port, settings.metastore.linger_ms, os.getpid())
        supervisor_client.release_embedded(data_dir)
    finally:
        identity.close(clean=False)


@asynccontextmanager
async def _metastore(settings: Settings, hosts: str) -> AsyncIterator[ZooKeeperMetastore]:
    from isthmus.node.security.credentials import NodeCredentials
    from isthmus.node.services.wiring import metastore_of

    metastore = metastore_of(settings, hosts, NodeCredentials(settings).metastore)
    await metastore.start(lambda _: None)
    try:
        yield metastore
    finally:
        await metastore.stop()


async def _planned(settings: Settings, hosts: str, identity: Any, copy: MetastoreCopy | None, by: str) -> Adoption:
    from isthmus.repl.runtime.metastore_copy import plan_adoption

    async with _metastore(settings, hosts) as metastore:
        return await plan_adoption(metastore, identity, copy, node=settings.node.name, by=by)


async def _adopted(settings: Settings, hosts: str, adoption: Adoption) -> None:
    from isthmus.repl.runtime.metastore_copy import adopt

    async with _metastore(settings, hosts) as metastore:
        await adopt(metastore, adoption)


def _echo_plan(adoption: Adoption, settings: Settings, hosts: str, copy: MetastoreCopy | None) -> None:
    now = f"its uuid is {adoption.found_uuid}" if adoption.found_uuid else "it has no uuid"
    click.echo(printable(f"metastore {hosts} of cluster {settings.node.cluster}: {now}, and no node uses it"))
    click.echo(printable(f"data directory {settings.node.data_dir}: cluster {adoption.cluster_uuid.hex()}"))
    if copy is not None and adoption.as_of_ms is not None:
        since = f"nothing had changed there from {moment(adoption.as_of_ms)} on"
        until = "when this directory's node last ran, or the backup was made that it was restored from"
        click.echo(printable(f"copy of the metastore: as it was {until}; {since}"))
    for bucket_type, count in adoption.bucket_types.items():
        click.echo(printable(f"restored: bucket type {bucket_type}, {quantity(count, 'partition')}"))
    others = sorted(path for path in adoption.documents if not path.startswith("/p/"))
    click.echo(printable(f"restored: {', '.join(others)}"))
    for sentence in adoption.lost:
        click.echo(printable(f"lost: {sentence}"))

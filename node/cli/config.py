"""`isthmus config`: check a node's file or a topology, show the values in force. Needs no running node.

The work is done in `config.loader` and `node.local.topology`; here it is only printed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from isthmus.config.loader import ConfigError, Fault, effective, load_file
from isthmus.config.settings import QueueSettings, Settings
from isthmus.config.warnings import warnings_of
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import echo_json, echo_table, output_option, printable
from isthmus.node.local.topology import load_topology
from isthmus.node.services.fullsync_query import sharing, warning

FILE = click.argument("file", type=click.Path(path_type=Path))
FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))


OFFERS: Final = ("filter", "cascade", "overflow", "riak_fetch")
"""Settings of a queue that decide what it offers; its limits and rates may be another node's own affair."""


class Checked(NamedTuple):
    """A file, and what is wrong with it; `settings` of a node's own that has no faults."""

    file: str
    faults: Sequence[Fault]
    warnings: Sequence[Fault]
    settings: Settings | None


@click.group("config")
def config_group() -> None:
    """Check and show config files."""


@config_group.command("check")
@FILES
@output_option
def check(files: tuple[Path, ...], output: str) -> int:
    """Report every fault of each FILE at once: line, key, what is wrong and what would be right.

    FILE is a node's config file, or a topology for `isthmus local`. The files of certificates and tokens that it names
    are looked at, too. Warnings are what is allowed and probably not meant, such as two nodes of one cluster with the
    same name or id; they do not change the exit code.

    Full-sync's checks are not moved when a node is gone: given the files of all nodes of a cluster, this tells which
    nodes compare with the same other cluster, and warns where that is one alone. It warns of queues that one node has
    and another lacks, or has with another filter or `cascade`: each node offers the changes that it leads.
    """
    found = [_checked(file) for file in files]
    shared = shared_peers([one.settings for one in found if one.settings is not None])
    if len(found) == 1:
        (one,) = found
        found = [one._replace(warnings=[*one.warnings, *_alone(one)])]
    else:
        found = _with_unequal_queues(_beside_each_other(found))
    if output == "json":
        shown = [_shown(one) for one in found]
        echo_json(shown[0] if len(shown) == 1 else {"files": shown, "fullsync": shared})
    else:
        for one in found:
            _echo(one)
        for peer in shared if len(found) > 1 else ():
            by = ", ".join(peer["shared_by"])
            click.echo(printable(f"cluster {peer['cluster']}: {peer['peer']} is compared with by {by}"))
            if peer["warning"]:
                click.echo(printable(f"cluster {peer['cluster']}: warning: {peer['peer']}: {peer['warning']}"))
    return Exit.USAGE if any(one.faults for one in found) else Exit.OK


def shared_peers(files: Sequence[Settings]) -> list[dict[str, Any]]:
    """Of every other cluster that nodes compare theirs with: {"cluster", "peer", "shared_by", "warning"}."""
    clusters: dict[str, dict[str, Any]] = {}
    for one in files:
        peers = [
            {"name": peer.name, "cluster": peer.cluster or None, "urls": peer.urls.split(",")} for peer in one.fullsync
        ]
        clusters.setdefault(one.node.cluster, {})[one.node.name] = {"peers": peers}
    rows = []
    for cluster, nodes in clusters.items():
        told: set[tuple[str, ...]] = set()
        for peer in (peer for node in nodes.values() for peer in node["peers"]):
            shared_by, _ = sharing(peer, nodes)
            name = peer["cluster"] or peer["name"]
            if (name, *shared_by) not in told:
                told.add((name, *shared_by))
                said = warning(shared_by, [], len(nodes))
                rows.append({"cluster": cluster, "peer": name, "shared_by": shared_by, "warning": said})
    return rows


def _beside_each_other(found: Sequence[Checked]) -> list[Checked]:
    """The same with a warning where nodes of one cluster have one name or one number: the second would not start."""
    first: dict[tuple[str, str, object], str] = {}
    told = []
    for one in found:
        settings = one.settings
        if settings is not None:
            node = settings.node
            for key, value in (("name", node.name), ("id", node.id)):
                other = first.setdefault((node.cluster, key, value), one.file)
                if other != one.file:
                    said = f"{value} is that of {other}, too: each node of cluster {node.cluster} has its own"
                    one = one._replace(warnings=[*one.warnings, placed(settings, f"node.{key}", said)])
        told.append(one)
    return told


def _with_unequal_queues(found: Sequence[Checked]) -> list[Checked]:
    """The same with a warning for each queue that is not alike in all files of a cluster."""
    files = [(one.file, one.settings) for one in found if one.settings is not None]
    told = []
    for one in found:
        mine = one.settings
        if mine is not None:
            others = [(file, settings) for file, settings in files if settings.node.cluster == mine.node.cluster]
            faults = [placed(mine, path, said) for path, said in unequal_queues(mine, others)]
            one = one._replace(warnings=[*one.warnings, *faults])
        told.append(one)
    return told


def unequal_queues(mine: Settings, files: Sequence[tuple[str, Settings]]) -> list[tuple[str, str]]:
    """(key, what is wrong) of each queue that `files`, those of the same cluster, have and `mine` lacks or has
    otherwise. The first file that has a queue is the measure."""
    own = {queue.name: (number, queue) for number, queue in enumerate(mine.queues)}
    first: dict[str, tuple[str, QueueSettings]] = {}
    for other, settings in files:
        for queue in settings.queues:
            first.setdefault(queue.name, (other, queue))
    told = []
    for name, (other, queue) in first.items():
        if name not in own:
            lost = "changes of the partitions that it leads are not offered by it"
            told.append(("queues", f'this node has no queue "{name}", {other} has: {lost}'))
            continue
        number, here = own[name]
        for key in OFFERS:
            ours, theirs = getattr(here, key), getattr(queue, key)
            if ours != theirs:
                differs = f"{json.dumps(ours)} here and {json.dumps(theirs)} in {other}"
                said = f'queue "{name}": {differs}: what it offers depends on the node that leads a key'
                told.append((f"queues[{number}].{key}", said))
    return told


def _alone(one: Checked) -> list[Fault]:
    """What one file shows of full-sync: one node that compares. With a metastore of its own it has no others beside."""
    if one.settings is None or not one.settings.metastore.hosts:
        return []
    return [
        placed(
            one.settings,
            f"fullsync[{number}]",
            f"this file shows one node that compares with {peer.cluster or peer.name}, and nobody does when that is "
            "gone: another node should have it, too; check the files of all nodes together to see which do",
        )
        for number, peer in enumerate(one.settings.fullsync)
    ]


def _shown(one: Checked) -> dict[str, Any]:
    told = [
        [{"key": fault.path, "line": fault.line, "message": fault.message} for fault in faults]
        for faults in (one.faults, one.warnings)
    ]
    return {"file": one.file, "ok": not one.faults, "faults": told[0], "warnings": told[1]}


def _echo(one: Checked) -> None:
    if one.faults:
        for sentence in ConfigError(one.file, list(one.faults)).sentences():
            click.echo(printable(sentence))
        return
    for doubt in one.warnings:
        where = f":{doubt.line}" if doubt.line else ""
        click.echo(printable(f"{one.file}{where}: warning: {doubt.path}: {doubt.message}"))
    click.echo(f"{printable(one.file)}: no faults")


@config_group.command("show")
@FILE
@output_option
def show(file: Path, output: str) -> None:
    """Print every value in force, and where it comes from: FILE:LINE or "default"."""
    try:
        rows = effective(load_file(file))
    except ConfigError as error:
        if not _says_clusters(error):
            raise
        sentence = f"{file} is a topology; show takes a node's own file, which `isthmus local up` writes for each node"
        raise CommandFailed(Exit.USAGE, "bad-config", sentence) from None
    if output == "json":
        values = [{"key": row.path, "value": row.text, "origin": row.origin} for row in rows]
        echo_json({"file": str(file), "values": values})
    else:
        echo_table(["key", "value", "origin"], rows)


def _checked(file: Path) -> Checked:
    """A file with what is wrong with it, and with the files that it names."""
    from isthmus.node.security.credentials import file_faults

    try:
        try:
            settings = load_file(file)
        except ConfigError as error:
            if not _says_clusters(error):
                raise
            load_topology(file)
            return Checked(str(file), (), (), None)
    except ConfigError as error:
        return Checked(error.file, error.faults, (), None)
    faults = [placed(settings, *fault) for fault in file_faults(settings)]
    if faults:
        return Checked(str(file), sorted(faults, key=lambda fault: (fault.line, fault.path)), (), None)
    return Checked(str(file), (), [placed(settings, *doubt) for doubt in warnings_of(settings)], settings)


def placed(settings: Settings, path: str, message: str) -> Fault:
    """What is said of a key, at its line, or at its section's first one."""
    near = next((key for key in settings.origins if key == path or key.startswith(f"{path}.")), "")
    line = settings.origins[near].rpartition(":")[2] if near else "0"
    return Fault(path, int(line), message)


def _says_clusters(error: ConfigError) -> bool:
    """Only a topology has [clusters.NAME]; as a node's file it fails at that."""
    return any(fault.path == "clusters" for fault in error.faults)

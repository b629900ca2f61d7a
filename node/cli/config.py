"""`isthmus config`: check config files and topologies, show the values in force. Needs no running node.

`config.loader` and `node.local.topology` read the files; comparing the files of several nodes is here.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from isthmus.config.loader import ConfigError, Fault, effective, load_file
from isthmus.config.sample import Values, sample_text
from isthmus.config.settings import QueueSettings, Settings
from isthmus.config.warnings import warnings_of
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import TableSpec, echo_json, echo_rows, output_option, printable
from isthmus.node.local.topology import load_topology
from isthmus.node.services.fullsync_query import sharing, warning

FILE = click.argument("file", type=click.Path(path_type=Path))
FILES = click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path(path_type=Path))


OFFERS: Final = ("filter", "cascade", "overflow", "riak_fetch")
"""Settings of a queue that decide what it offers; limits and rates may differ between nodes."""


VALUES: Final = TableSpec("key", "value", "origin")


class Checked(NamedTuple):
    """A checked file; `settings` of a node's config file without faults."""

    file: str
    faults: Sequence[Fault]
    warnings: Sequence[Fault]
    settings: Settings | None


@click.group("config")
def config_group() -> None:
    """Check and show config files."""


@config_group.command("sample", short_help="Print a commented config file with every key.")
@click.option("--every/--short", default=True, help="With every key, or only with those that a first node needs.")
def sample(every: bool) -> None:
    """Print a commented config file: every section and key with its meaning, range and default. `isthmus node init`
    writes one with your values."""
    click.echo(sample_text(FIRST_NODE, every=every), nl=False)


FIRST_NODE: Final[Values] = {
    "node.name": "east-1",
    "node.cluster": "east",
    "node.data_dir": "data/east-1",
    "listen.http": "127.0.0.1:8098",
    "listen.admin": "127.0.0.1:8099",
    "listen.cluster": "127.0.0.1:8097",
    "metastore.hosts": "",
}
"""The keys that a first node sets."""


@config_group.command("check", short_help="Every fault of config files, with line and remedy.")
@FILES
@output_option
def check(files: tuple[Path, ...], output: str) -> int:
    """Report every fault of each FILE at once: line, key, what is wrong and what would be right.

    FILE is a node's config file, or a topology for `isthmus local`. The files of certificates and tokens that it names
    are checked, too. Warnings are about settings that are allowed and probably not meant, such as two nodes of one
    cluster with the same name or id, or a single replica where an ensemble is named; they do not change the exit code.

    Given the files of all nodes of a cluster, shows which nodes compare with the same other cluster, and warns where
    only one does: full-sync's checks are not moved when a node is gone. Warns about queues that one node has and
    another lacks, or has with another filter or `cascade`: each node offers the changes that it leads.
    """
    found = [_checked(file) for file in files]
    shared = shared_peers([one.settings for one in found if one.settings is not None])
    if len(found) == 1:
        (one,) = found
        found = [one._replace(warnings=[*one.warnings, *_single_node_warnings(one)])]
    else:
        found = _with_unequal_queues(_with_shared_identities(found))
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


class ComparedPeer(NamedTuple):
    """A [[fullsync]] of a file."""

    name: str
    cluster: str | None
    urls: list[str]


def shared_peers(files: Sequence[Settings]) -> list[dict[str, Any]]:
    """Other clusters that nodes compare theirs with: rows of {"cluster", "peer", "shared_by", "warning"}."""
    clusters: dict[str, dict[str, list[ComparedPeer]]] = {}
    for one in files:
        peers = [ComparedPeer(peer.name, peer.cluster or None, peer.urls.split(",")) for peer in one.fullsync]
        clusters.setdefault(one.node.cluster, {})[one.node.name] = peers
    rows = []
    for cluster, nodes in clusters.items():
        listed: set[tuple[str, ...]] = set()
        for peer in (peer for peers in nodes.values() for peer in peers):
            shared_by, _ = sharing(peer, nodes)
            name = peer.cluster or peer.name
            if (name, *shared_by) not in listed:
                listed.add((name, *shared_by))
                message = warning(shared_by, [], len(nodes))
                rows.append({"cluster": cluster, "peer": name, "shared_by": shared_by, "warning": message})
    return rows


def _with_shared_identities(found: Sequence[Checked]) -> list[Checked]:
    """Add a warning where nodes of one cluster share a name or an id: the second one would not start."""
    first: dict[tuple[str, str, object], str] = {}
    checked = []
    for one in found:
        settings = one.settings
        if settings is not None:
            node = settings.node
            for key, value in (("name", node.name), ("id", node.id)):
                other = first.setdefault((node.cluster, key, value), one.file)
                if other != one.file:
                    message = f"{value} is that of {other}, too: each node of cluster {node.cluster} has its own"
                    one = one._replace(warnings=[*one.warnings, placed(settings, f"node.{key}", message)])
        checked.append(one)
    return checked


def _with_unequal_queues(found: Sequence[Checked]) -> list[Checked]:
    """Add a warning for each queue that differs between the files of a cluster."""
    files = [(one.file, one.settings) for one in found if one.settings is not None]
    checked = []
    for one in found:
        mine = one.settings
        if mine is not None:
            others = [(file, settings) for file, settings in files if settings.node.cluster == mine.node.cluster]
            faults = [placed(mine, path, message) for path, message in unequal_queues(mine, others)]
            one = one._replace(warnings=[*one.warnings, *faults])
        checked.append(one)
    return checked


def unequal_queues(mine: Settings, files: Sequence[tuple[str, Settings]]) -> list[tuple[str, str]]:
    """(key, message) for each queue that `files`, those of the same cluster, have and that `mine` lacks or has with
    other settings. The first file that has a queue is the reference."""
    own = {queue.name: (number, queue) for number, queue in enumerate(mine.queues)}
    first: dict[str, tuple[str, QueueSettings]] = {}
    for other, settings in files:
        for queue in settings.queues:
            first.setdefault(queue.name, (other, queue))
    messages = []
    for name, (other, queue) in first.items():
        if name not in own:
            lost = "changes of the partitions that it leads are not offered by it"
            messages.append(("queues", f'this node has no queue "{name}", {other} has: {lost}'))
            continue
        number, here = own[name]
        for key in OFFERS:
            ours, theirs = getattr(here, key), getattr(queue, key)
            if ours != theirs:
                differs = f"{json.dumps(ours)} here and {json.dumps(theirs)} in {other}"
                message = f'queue "{name}": {differs}: what it offers depends on the node that leads a key'
                messages.append((f"queues[{number}].{key}", message))
    return messages


def _single_node_warnings(one: Checked) -> list[Fault]:
    """Warnings about full-sync from a single file: only one node compares. A node with an embedded metastore is alone
    in its cluster, so there is none."""
    if one.settings is None or not one.settings.metastore.hosts:
        return []
    return [
        placed(
            one.settings,
            f"fullsync[{number}]",
            f"this file shows one node that compares with {peer.cluster or peer.name}, and none does when that is "
            "gone: another node should have it, too; check the files of all nodes together to see which do",
        )
        for number, peer in enumerate(one.settings.fullsync)
    ]


def _shown(one: Checked) -> dict[str, Any]:
    faults, warnings = (
        [{"key": fault.path, "line": fault.line, "message": fault.message} for fault in found]
        for found in (one.faults, one.warnings)
    )
    return {"file": one.file, "ok": not one.faults, "faults": faults, "warnings": warnings}


def _echo(one: Checked) -> None:
    if one.faults:
        for sentence in ConfigError(one.file, list(one.faults)).sentences():
            click.echo(printable(sentence))
        return
    for warned in one.warnings:
        where = f":{warned.line}" if warned.line else ""
        click.echo(printable(f"{one.file}{where}: warning: {warned.path}: {warned.message}"))
    click.echo(f"{printable(one.file)}: no faults")


@config_group.command("show", short_help="Every value in force, and where it comes from.")
@FILE
@output_option
def show(file: Path, output: str) -> None:
    """Print every value in force, and where it comes from: FILE:LINE or "default"."""
    try:
        rows = effective(load_file(file))
    except ConfigError as error:
        if not _is_topology(error):
            raise
        sentence = f"{file} is a topology; show takes a node's own file, which `isthmus local up` writes for each node"
        raise CommandFailed(Exit.USAGE, "bad-config", sentence) from None
    values = [{"key": row.path, "value": row.text, "origin": row.origin} for row in rows]
    echo_rows({"file": str(file), "values": values}, output, VALUES, values)


def _checked(file: Path) -> Checked:
    """A file with its faults and warnings, those of files that it names included."""
    from isthmus.node.security.credentials import file_faults

    try:
        try:
            settings = load_file(file)
        except ConfigError as error:
            if not _is_topology(error):
                raise
            load_topology(file)
            return Checked(str(file), (), (), None)
    except ConfigError as error:
        return Checked(error.file, error.faults, (), None)
    faults = [placed(settings, *fault) for fault in (*_unusable_directory(settings), *file_faults(settings))]
    if faults:
        return Checked(str(file), sorted(faults, key=lambda fault: (fault.line, fault.path)), (), None)
    warnings = [*warnings_of(settings), *_single_replica(settings), *_missing_directories(settings)]
    return Checked(str(file), (), [placed(settings, *each) for each in warnings], settings)


def _unusable_directory(settings: Settings) -> list[tuple[str, str]]:
    """(key, message) of a data directory that a start would refuse here, whoever runs the node: it, or what is to hold
    it, is no directory, or lies on a file system that keeps nothing. Who may write there is seen at the start: this
    check may run as another user."""
    directory = settings.node.data_dir
    place = next(each for each in (directory, *directory.parents) if os.path.lexists(each))
    is_it = place == directory
    try:
        if not stat.S_ISDIR(place.stat().st_mode):
            what = "is a file" if is_it else f"cannot be made: {place} is a file"
            return [("node.data_dir", f"{directory} {what}; name a directory, which is made at the first start")]
        space = os.statvfs(place)
    except OSError as error:
        return [("node.data_dir", f"{directory}: {place}: {(error.strerror or str(error)).lower()}")]
    if space.f_flag & os.ST_RDONLY:
        return [("node.data_dir", f"{directory} lies on a file system that is mounted read-only")]
    if not space.f_blocks:
        return [("node.data_dir", f"{directory} lies on a file system without space for files, as /proc is")]
    return []


def _single_replica(settings: Settings) -> list[tuple[str, str]]:
    """(key, message) of a factor of 1 where an ensemble is named, as it is for several nodes. Nodes do not log it: the
    factor counts only when the cluster is created."""
    if settings.replication.factor != 1 or not settings.metastore.hosts:
        return []
    message = (
        "1 keeps a single copy of each key, which is lost with its node; leave the key out for 3 replicas. It is right "
        "for a cluster of one node"
    )
    return [("replication.factor", message)]


def _missing_directories(settings: Settings) -> list[tuple[str, str]]:
    """(key, message) of the directory of runs, unless it is there: it may be made, or mounted, later."""
    runs = settings.reconcile.runs_dir
    if runs is None or runs.is_dir():
        return []
    what = "is not a directory" if runs.exists() else "does not exist here"
    return [("reconcile.runs_dir", f"{runs} {what}: the node shows runs once it is a directory that it may read")]


def placed(settings: Settings, path: str, message: str) -> Fault:
    """A fault at the line of a key, or at the first line of its section."""
    near = next((key for key in settings.origins if key == path or key.startswith(f"{path}.")), "")
    line = settings.origins[near].rpartition(":")[2] if near else "0"
    return Fault(path, int(line), message)


def _is_topology(error: ConfigError) -> bool:
    """Only a topology has [clusters.NAME]; as a node's file it fails at that."""
    return any(fault.path == "clusters" for fault in error.faults)

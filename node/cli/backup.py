"""`isthmus backup`: create, verify and restore backups of a data directory.

Works on this machine's files, without a node. `node.backup` does the work.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from isthmus.config.loader import load_file
from isthmus.config.text import quantity
from isthmus.node.backup import create as creating
from isthmus.node.backup import restore as restoring
from isthmus.node.backup.create import Progress
from isthmus.node.backup.manifest import Manifest
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import echo_json, moment, output_option, percent, printable

PROGRESS_INTERVAL_S: Final = 0.5
"""Between two updates of the progress on a terminal."""

FAULTS_SHOWN: Final = 20
"""Damaged files that are named in sentences; JSON has all."""

DIRECTORY = click.argument("backup", metavar="DIR", type=click.Path(path_type=Path))


@click.group("backup")
def backup_group() -> None:
    """Back up a node's data directory while the node runs; verify a backup, and restore it."""


@backup_group.command("create", short_help="Back up a data directory, while its node runs or not.")
@click.argument("paths", metavar="[FILE] DEST", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--data-dir", type=click.Path(path_type=Path), metavar="DIR", help="The data directory, instead of FILE.")
@output_option
def create_command(paths: tuple[Path, ...], data_dir: Path | None, output: str) -> None:
    """Back up the data directory of the node that FILE configures, or --data-dir, to directory DEST.

    The node may run and take writes; everything that was acknowledged before the command began is in the backup. DEST
    must be empty or not exist; it is DEST.incomplete until all is copied and on disk. Objects are in it, and are
    not encrypted; config files, keys and tokens are not.

    Code 2 when DEST is not empty, 5 when the directory cannot be copied.
    """
    if len(paths) != (2 if data_dir is None else 1):
        raise click.UsageError("name the node's config FILE and DEST, or --data-dir DIR and DEST")
    node = cluster = None
    if data_dir is None:
        settings = load_file(paths[0])
        data_dir, node, cluster = settings.node.data_dir, settings.node.name, settings.node.cluster
    target = paths[-1]
    with _progress() as progress:
        manifest = creating.create(data_dir, target, node=node, cluster=cluster, progress=progress)
    _echo(manifest, target, output, "created", f"{target}: backup of {_of(manifest)}")
    if output != "json":
        transfers = [position.partition for position in manifest.partitions if position.in_transfer]
        if transfers:
            click.echo(
                f"not in it: {quantity(len(transfers), 'partition')} that the node is receiving from another one "
                f"({', '.join(map(str, transfers[:8]))}{', ...' if len(transfers) > 8 else ''})"
            )
        if manifest.metastore_copy_ms is None:
            click.echo("not in it: a copy of the metastore, which this data directory does not have")


@backup_group.command("verify", short_help="Read all of a backup and compare its checksums.")
@DIRECTORY
@output_option
def verify_command(backup: Path, output: str) -> int:
    """Read every file of the backup in DIR, and compare it with the manifest.

    Code 0 when all are as they were written, 1 when a file differs, is missing or does not belong there, 2 for a
    directory that is not a complete backup, 5 when the manifest is damaged or of another version.
    """
    with _progress() as progress:
        manifest, faults = restoring.verify(backup, progress)
    if output == "json":
        _echo(manifest, backup, output, "damaged" if faults else "verified", "", faults=faults)
    for fault in faults[: 0 if output == "json" else FAULTS_SHOWN]:
        click.echo(printable(f"damaged: {backup / fault.path}: {fault.problem}"))
    if output != "json":
        state = f"{quantity(len(faults), 'damaged file')}: do not restore it" if faults else "every file has its hash"
        click.echo(printable(f"{backup}: backup of {_of(manifest)}; {state}"))
    return Exit.DIFFERS if faults else Exit.OK


@backup_group.command("restore", short_help="Verify a backup, then copy it into a data directory.")
@DIRECTORY
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The target: an empty directory, or a new one.",
)
@output_option
def restore_command(backup: Path, data_dir: Path, output: str) -> None:
    """Verify the backup in DIR, then copy it into an empty data directory.

    Its replicas get new gens at the node's next start, as after `isthmus node new-identity`: they catch up from their
    leaders, and none of them is elected before. Where no leader is left, `isthmus cluster adopt` and `isthmus cluster
    reseed`, or `isthmus partition force-leader`, follow.

    Code 1 for a damaged backup (nothing is written), 2 for one that is not complete, or a data directory that is not
    empty, 5 when the directory cannot be written.
    """
    restoring.check_empty(data_dir)
    with _progress() as progress:
        manifest, faults = restoring.verify(backup, progress)
        if faults:
            named = "; ".join(f"{backup / fault.path}: {fault.problem}" for fault in faults[:FAULTS_SHOWN])
            more = f"; and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
            raise CommandFailed(
                Exit.DIFFERS, "damaged-backup", f"the backup is damaged, nothing was restored: {named}{more}"
            )
        restoring.restore(backup, data_dir, manifest, progress)
    steps = [
        f"set node.data_dir of node {manifest.node} to {data_dir}",
        "beside a living cluster: start the node; its replicas get new gens and catch up from their leaders",
        "where the whole cluster is lost, ZooKeeper too: restore all nodes, `isthmus cluster adopt FILE`, start them",
        "then, where no leader is left: `isthmus cluster reseed`",
    ]
    _echo(manifest, backup, output, "restored", f"{data_dir}: restored {_of(manifest)}", data_dir=data_dir, steps=steps)
    if output != "json":
        for step in steps:
            click.echo(printable(f"next: {step}"))


def _of(manifest: Manifest) -> str:
    cluster = f" of cluster {manifest.cluster}" if manifest.cluster else ""
    sizes = f"{quantity(len(manifest.partitions), 'partition')}, {quantity(len(manifest.files), 'file')}"
    begun = moment(manifest.begun_ms)
    return f"node {manifest.node}{cluster} at {begun}: {sizes}, {manifest.size_bytes / 1e6:,.1f} MB"


def _echo(
    manifest: Manifest,
    backup: Path,
    output: str,
    outcome: str,
    sentence: str,
    *,
    faults: list[restoring.BackupFault] | None = None,
    data_dir: Path | None = None,
    steps: list[str] | None = None,
) -> None:
    if output != "json":
        click.echo(printable(sentence))
        return
    answer: dict[str, Any] = {
        "outcome": outcome,
        "backup": str(backup),
        "program": manifest.program,
        "cluster": manifest.cluster,
        "cluster_uuid": manifest.cluster_uuid,
        "node": manifest.node,
        "begun_ms": manifest.begun_ms,
        "ended_ms": manifest.ended_ms,
        "metastore_copy_ms": manifest.metastore_copy_ms,
        "files": len(manifest.files),
        "bytes": manifest.size_bytes,
        "partitions": [
            {name: getattr(position, name) for name in position.__struct_fields__} for position in manifest.partitions
        ],
    }
    if faults is not None:
        answer["faults"] = [fault._asdict() for fault in faults]
    if data_dir is not None:
        answer["data_dir"] = str(data_dir)
    if steps is not None:
        answer["next"] = steps
    echo_json(answer)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show progress on standard error while that is a terminal."""
    shown_s = 0.0
    wide = 0

    def show(phase: str, done: int, total: int) -> None:
        nonlocal shown_s, wide
        now_s = time.monotonic()
        if now_s - shown_s < PROGRESS_INTERVAL_S:
            return
        shown_s = now_s
        line = f"{phase}: {done / 1e6:,.0f} of {total / 1e6:,.0f} MB ({percent(done / max(1, total))})"
        click.echo(f"\r{line:<{wide}}", err=True, nl=False)
        wide = len(line)

    is_terminal = sys.stderr.isatty()
    try:
        yield show if is_terminal else lambda _phase, _done, _total: None
    finally:
        if wide:
            click.echo("\r" + " " * wide + "\r", err=True, nl=False)

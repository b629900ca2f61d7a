"""`isthmus config`: check a node's file or a topology, show the values in force. Needs no running node.

The work is done in `config.loading` and `node.topology`; here it is only printed.
"""

from __future__ import annotations

from pathlib import Path

import click

from config.doubts import doubts_of
from config.loading import ConfigError, Fault, effective, load_file
from node.cli.exits import CommandFailed, Exit
from node.cli.output import echo_json, echo_table, output_option, printable
from node.topology import load_topology

FILE = click.argument("file", type=click.Path(path_type=Path))


@click.group("config")
def config_group() -> None:
    """Check and show config files."""


@config_group.command("check")
@FILE
@output_option
def check(file: Path, output: str) -> int:
    """Report every fault of FILE at once: line, key, what is wrong and what would be right.

    FILE is a node's config file, or a topology for `isthmus local`. The files of certificates and tokens that it names
    are looked at, too. Warnings are what is allowed and probably not meant; they do not change the exit code.
    """
    warnings: list[Fault] = []
    try:
        try:
            warnings = _checked(file)
        except ConfigError as error:
            if not _says_clusters(error):
                raise
            load_topology(file)
    except ConfigError as error:
        if output == "json":
            faults = [{"key": fault.path, "line": fault.line, "message": fault.message} for fault in error.faults]
            echo_json({"file": error.file, "ok": False, "faults": faults, "warnings": []})
        else:
            for sentence in error.sentences():
                click.echo(printable(sentence))
        return Exit.USAGE
    if output == "json":
        told = [{"key": fault.path, "line": fault.line, "message": fault.message} for fault in warnings]
        echo_json({"file": str(file), "ok": True, "faults": [], "warnings": told})
    else:
        for warning in warnings:
            where = f":{warning.line}" if warning.line else ""
            click.echo(printable(f"{file}{where}: warning: {warning.path}: {warning.message}"))
        click.echo(f"{printable(str(file))}: no faults")
    return Exit.OK


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


def _checked(file: Path) -> list[Fault]:
    """The warnings of a node's file. Raises ConfigError, also for faults of the files that it names."""
    from node.locks import file_faults

    settings = load_file(file)

    def placed(path: str, message: str) -> Fault:
        near = next((key for key in settings.origins if key == path or key.startswith(f"{path}.")), "")
        line = settings.origins[near].rpartition(":")[2] if near else "0"
        return Fault(path, int(line), message)

    faults = [placed(*fault) for fault in file_faults(settings)]
    if faults:
        raise ConfigError(str(file), sorted(faults, key=lambda fault: (fault.line, fault.path)))
    return [placed(*doubt) for doubt in doubts_of(settings)]


def _says_clusters(error: ConfigError) -> bool:
    """Only a topology has [clusters.NAME]; as a node's file it fails at that."""
    return any(fault.path == "clusters" for fault in error.faults)

"""`isthmus node`: the daemon. All of it is `node.daemon`, imported only when it is to run."""

from __future__ import annotations

from pathlib import Path

import click

from config.loading import load_file


@click.group("node")
def node_group() -> None:
    """Run a node."""


@node_group.command("run")
@click.argument("file", type=click.Path(path_type=Path))
def run(file: Path) -> int:
    """Run the node that FILE describes, until SIGTERM or Ctrl-C; it stops gracefully."""
    settings = load_file(file)
    from node import daemon

    return daemon.run(settings)

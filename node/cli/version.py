"""`isthmus version`: the version of this program, of Python, and of what it runs on."""

from __future__ import annotations

import platform
import sys

import click

from isthmus.node.cli.output import echo_json, output_option
from isthmus.node.observability.version import program_version


@click.command("version")
@output_option
def version_command(output: str) -> None:
    """The version of this program, and the Python and system that run it. `isthmus status` has those of nodes
    (-o json, versions)."""
    found = {"isthmus": program_version(), "python": platform.python_version(), "executable": sys.executable}
    found |= {"system": f"{platform.system()} {platform.release()} {platform.machine()}"}
    if output == "json":
        echo_json(found)
        return
    click.echo(f"isthmus {found['isthmus']}, Python {found['python']}, {found['system']}")

"""The question before an act that cannot be taken back: one for all commands, so none asks where nobody answers."""

from __future__ import annotations

import sys

import click

from node.cli.exits import CommandFailed, Exit


def confirm(yes: bool, question: str, output: str = "table") -> None:
    """Go on only if whoever asks for it says so. Raises CommandFailed where nobody can be asked, and with `output`
    "json", since a program reads it."""
    if yes:
        return
    if output == "json":
        raise CommandFailed(
            Exit.USAGE, "not-confirmed", "nothing was done: -o json does not ask; --yes does it, --dry-run shows it"
        )
    if not sys.stdin.isatty():
        raise CommandFailed(
            Exit.USAGE, "not-confirmed", "nothing was done: this cannot ask here; --yes says so instead"
        )
    click.confirm(question, abort=True, err=True)

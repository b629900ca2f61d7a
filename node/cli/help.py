"""`isthmus help`: the help of a command, and of what many commands share."""

from __future__ import annotations

from typing import Final

import click

from isthmus.config.text import no_such
from isthmus.node.cli.admin_client import ADMIN
from isthmus.node.cli.contexts import FILE_VARIABLE, path_of_file
from isthmus.node.cli.credentials import CHOICES, OPTIONS, TOKEN_VARIABLE
from isthmus.node.cli.exit_codes import MEANINGS
from isthmus.node.cli.object_client import HTTP

CONNECTION: Final = f"""\
Commands ask one node; any node answers for its cluster. Which one, in this order:

  1. {ADMIN.option} URL (isthmus kv: {HTTP.option} URL) on the command line;
  2. --context NAME or --cluster NAME on the command line: a context's;
  3. the variable {ADMIN.variable} ({HTTP.variable});
  4. the context of ISTHMUS_CONTEXT, else the one in use (isthmus context use);
  5. {ADMIN.default} ({HTTP.default}).

Each credential: its option, else its variable, else, at an address of a context,
what the context has. The credentials of a context go to its own addresses alone.
"""
"""The first lines of `isthmus help connection`, at most 80 columns wide."""

TOPICS: Final = ("connection", "exit-codes")
"""Topics of the help that are not commands."""


@click.command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND]...")
@click.pass_context
def help_command(context: click.Context, words: tuple[str, ...]) -> None:
    """The help of a command, such as `isthmus help queue list`, or of `connection` or `exit-codes`."""
    if words == ("connection",):
        click.echo(connection_help(context))
        return
    if words == ("exit-codes",):
        for code, meaning in MEANINGS.items():
            click.echo(f"{int(code):>3}  {meaning}")
        return
    found, at = context.find_root().command, context.find_root()
    for word in words:
        known = found.list_commands(at) if isinstance(found, click.Group) else []
        inner = found.get_command(at, word) if isinstance(found, click.Group) else None
        if inner is None:
            topics = [] if at.parent is not None else [topic for topic in TOPICS if topic not in known]
            raise click.UsageError(no_such("command", word, [*known, *topics]))
        found, at = inner, click.Context(inner, info_name=word, parent=at)
    click.echo(found.get_help(at))


def connection_help(context: click.Context) -> str:
    """The text about the options that choose a cluster and the credentials."""
    formatter = context.make_formatter()
    rows = [
        (f"{ADMIN.option} URL", f"Admin listener of any node of the cluster. Variable: {ADMIN.variable}."),
        (f"{HTTP.option} URL", f"Client listener of any node, for isthmus kv. Variable: {HTTP.variable}."),
    ]
    rows += [(f"{flag} NAME", f"{text} Variable: {variable}.") for flag, _, variable, text in CHOICES]
    rows += [(f"{flag} FILE", f"{text} Variable: {variable}.") for flag, _, variable, text in OPTIONS]
    formatter.write(CONNECTION)
    formatter.write("\n")
    formatter.write_dl(rows)
    formatter.write(f"\nA token is never an option: {TOKEN_VARIABLE} or a file has it.\n")
    formatter.write(f"Contexts are in {path_of_file()} ({FILE_VARIABLE} names another file).\n")
    return formatter.getvalue().rstrip("\n")

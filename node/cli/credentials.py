"""How commands come in at a node: a token, an authority to believe, a certificate to show. Options and environment.

    --token-file FILE   ISTHMUS_TOKEN_FILE, or ISTHMUS_TOKEN with the token itself
    --ca FILE           ISTHMUS_CA: who may sign for the nodes; without it, whom this system believes
    --cert FILE         ISTHMUS_CERT: a certificate to show; --key FILE, ISTHMUS_KEY: its private key

A token is never an argument, which everybody on the machine could read. `access_from` is what `admin_client` and others
hand to the door of outgoing HTTP.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import CliContext
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.model.errors import BadConfig
from isthmus.repl.security.tls import TlsFiles, client_contexts
from isthmus.repl.security.tokens import check_token, watched_token

TOKEN_VARIABLE: Final = "ISTHMUS_TOKEN"  # noqa: S105 - its name

OPTIONS: Final = (
    ("--token-file", "token_file", "ISTHMUS_TOKEN_FILE", "Holds the token to show (or ISTHMUS_TOKEN: the token)."),
    ("--ca", "authority", "ISTHMUS_CA", "Who may sign for the nodes' certificates."),
    ("--cert", "certificate", "ISTHMUS_CERT", "A certificate to show."),
    ("--key", "key", "ISTHMUS_KEY", "Its private key."),
)
"""Option, name, variable, help."""

Command = TypeVar("Command", bound=Callable[..., Any])


def credential_options(command: Command) -> Command:
    """Adds the options to a command, which sees none of them: `access_from` does."""
    for flag, name, variable, text in reversed(OPTIONS):
        command = click.option(
            flag,
            name,
            metavar="FILE",
            envvar=variable,
            show_envvar=True,
            is_eager=True,
            expose_value=False,
            callback=_remember,
            help=text,
        )(command)
    return command


def _remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    assert parameter.name is not None
    credentials = context.ensure_object(CliContext).credentials
    if value:
        credentials[parameter.name] = value
    else:
        credentials.pop(parameter.name, None)


def access_from(context: click.Context) -> PeerCredentials:
    """What the command was given. Raises CommandFailed (usage) in one line."""
    given = context.ensure_object(CliContext).credentials
    paths = {name: Path(value) for name, value in given.items()}
    certificate, key = paths.get("certificate"), paths.get("key")
    if (certificate is None) != (key is None):
        raise CommandFailed(Exit.USAGE, "usage", "--cert and --key belong together")
    authority = paths.get("authority")
    try:
        contexts = None
        if authority is not None or certificate is not None:
            files = TlsFiles(certificate, key, () if authority is None else (authority,))
            contexts = client_contexts(files, check_host=True).current
        return PeerCredentials(contexts, "", _token(paths.get("token_file")))
    except BadConfig as error:
        raise CommandFailed(Exit.USAGE, error.reason, str(error)) from error


def _token(path: Path | None) -> Callable[[], str] | None:
    if path is not None:
        return watched_token(path).current
    text = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not text:
        return None
    try:
        token = check_token(text)
    except ValueError as error:
        raise BadConfig(f"{TOKEN_VARIABLE}: {error}") from None
    return lambda: token

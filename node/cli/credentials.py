"""Credentials of commands: a token, trusted authorities, a certificate. From options and the environment.

    --token-file FILE   ISTHMUS_TOKEN_FILE, or ISTHMUS_TOKEN with the token itself
    --ca FILE           ISTHMUS_CA: authorities of the nodes' certificates; without it, those of this system
    --cert FILE         ISTHMUS_CERT: a client certificate; --key FILE, ISTHMUS_KEY: its private key

A token is never an argument, since every user of the machine can read arguments.
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
    ("--token-file", "token_file", "ISTHMUS_TOKEN_FILE", "File with the token (or ISTHMUS_TOKEN: the token)."),
    ("--ca", "authority", "ISTHMUS_CA", "Authorities of the nodes' certificates."),
    ("--cert", "certificate", "ISTHMUS_CERT", "A client certificate."),
    ("--key", "key", "ISTHMUS_KEY", "Its private key."),
)
"""Option, name, variable, help."""

Command = TypeVar("Command", bound=Callable[..., Any])


def credential_options(command: Command) -> Command:
    """Add the options to a command, which does not get them as arguments: `access_from` reads them."""
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
    """The credentials of a command. Raises CommandFailed (usage)."""
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

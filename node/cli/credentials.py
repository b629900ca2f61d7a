"""The connection options of commands: which cluster, at which address, with which credentials.

    --context NAME      ISTHMUS_CONTEXT: a context of the context file (`contexts`); without it the one in use
    --cluster NAME      ISTHMUS_CLUSTER: one of its clusters
    --token-file FILE   ISTHMUS_TOKEN_FILE, or ISTHMUS_TOKEN with the token itself
    --ca FILE           ISTHMUS_CA: authorities of the nodes' certificates; without it, those of this system
    --cert FILE         ISTHMUS_CERT: a client certificate; --key FILE, ISTHMUS_KEY: its private key

An option takes precedence over a variable, and a variable over the context. The credentials of a context go to its own
addresses alone, also when such an address is given by an option. A token is never an argument, since every user of the
machine can read arguments.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from isthmus.config.loader import ConfigError
from isthmus.node.cli.contexts import ClusterEntry, ContextEntry, ContextFile, load, path_of_file
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import CliContext
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.model.errors import BadConfig, LocalFault
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

CHOICES: Final = (
    ("--context", "context_name", "ISTHMUS_CONTEXT", "The context; without it the one in use."),
    ("--cluster", "cluster_name", "ISTHMUS_CLUSTER", "The cluster of the context."),
)
"""Option, name, variable, help."""

HELP_LINE: Final = ("Connection options", "Which cluster, and how: isthmus help connection.")
"""The line of a command's help that replaces all connection options."""

Command = TypeVar("Command", bound=Callable[..., Any])


class ConnectionOption(click.Option):
    """An option that `isthmus help connection` explains; in the help of a command the first one stands for all."""

    def __init__(self, *arguments: Any, first: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._first = first

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:  # noqa: ARG002
        """See click.Option."""
        return HELP_LINE if self._first else None

    def full_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The record of a plain option."""
        return super().get_help_record(ctx)


def credential_options(command: Command) -> Command:
    """Add the credential options to a command, which does not get them as arguments: `access_from` reads them."""
    return _with(OPTIONS, "FILE", command)


def connection_options(command: Command) -> Command:
    """Add the options of context, cluster and credentials to a command: `endpoint_of` reads them."""
    return _with((*CHOICES, *OPTIONS), "FILE", command)


def other_connection_options(command: Command) -> Command:
    """Add the connection options but `--cluster`, which the command declares itself."""
    return _with((CHOICES[0], *OPTIONS), "FILE", command)


def _with(options: Sequence[tuple[str, str, str, str]], metavar: str, command: Command) -> Command:
    for number, (flag, name, variable, text) in reversed(list(enumerate(options))):
        command = click.option(
            flag,
            name,
            cls=ConnectionOption,
            first=number == 0,
            metavar=metavar if name in {each[1] for each in OPTIONS} else "NAME",
            envvar=variable,
            show_envvar=True,
            is_eager=True,
            expose_value=False,
            callback=remember,
            help=text,
        )(command)
    return command


def remember(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Callback of a connection option: store its value where `endpoint_of` and `access_from` read it."""
    assert parameter.name is not None
    options = context.ensure_object(CliContext)
    credentials = options.credentials
    if value:
        credentials[parameter.name] = value
    else:
        credentials.pop(parameter.name, None)
    options.typed.discard(parameter.name)
    if is_typed(context, parameter.name):
        options.typed.add(parameter.name)


def is_typed(context: click.Context, name: str) -> bool:
    """True for an option of the command line, false for one of the environment or a default."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a command is sent. `cluster`: as the context calls it, "" without a context."""

    urls: tuple[str, ...]
    access: PeerCredentials
    cluster: str = ""
    entry: ClusterEntry | None = None
    """The context's entry, whose addresses `urls` are; None for an address of an option, a variable, or the default."""


def endpoint_of(context: click.Context, option: str, url: str, default: str, *, typed: bool) -> Endpoint:
    """Where a command is sent. `option`: the option of the address, `url` its value, "" for none; `typed`: it is of the
    command line. Raises CommandFailed (usage), ConfigError, LocalFault."""
    options = context.ensure_object(CliContext)
    chosen = {name: options.credentials.get(name, "") for name in ("context_name", "cluster_name")}
    flags = [flag for flag, name, _, _ in CHOICES if name in options.typed and chosen[name]]
    if url and typed and flags:
        raise CommandFailed(Exit.USAGE, "usage", f"{option} names a node, and {flags[0]} a context: give one of them")
    if url and not flags:
        return endpoint_at(context, (url,))
    file = load(path_of_file())
    name = chosen["context_name"] or file.current
    if not name:
        if chosen["cluster_name"]:
            sentence = f"--cluster {chosen['cluster_name']}: no context is in use; `isthmus context add` makes one"
            raise CommandFailed(Exit.USAGE, "usage", sentence)
        return Endpoint((default,), access_from(context))
    entry = file.named(name)
    cluster = entry.chosen(name, chosen["cluster_name"])
    return endpoint_in(context, entry, cluster)


def endpoint_at(context: click.Context, urls: Sequence[str]) -> Endpoint:
    """The listeners at addresses that were given. Those of a cluster of a context, of the one in use first, get its
    credentials, where none are given. Raises CommandFailed (usage)."""
    try:
        file = load(path_of_file())
    except (BadConfig, ConfigError, LocalFault):  # the addresses stand for themselves
        file = ContextFile({})
    wanted = {_plain(each) for url in urls for each in url.split(",")}
    for name in sorted(file.contexts, key=lambda name: name != file.current):
        for entry in file.contexts[name].clusters.values():
            if wanted <= {_plain(url) for url in (*entry.admin, *entry.http)}:
                return Endpoint(tuple(urls), access_from(context, entry))
    return Endpoint(tuple(urls), access_from(context))


def _plain(url: str) -> str:
    """An address in the form in which two are compared."""
    return (url if "://" in url else f"http://{url}").strip().rstrip("/").lower()


def endpoint_in(context: click.Context, entry: ContextEntry, cluster: str) -> Endpoint:
    """The admin listeners of a cluster of a context, with its credentials where none are given. Raises CommandFailed
    (usage)."""
    found = entry.clusters[cluster]
    return Endpoint(found.admin, access_from(context, found), cluster, found)


def context_in_use(context: click.Context) -> tuple[str, ContextEntry] | None:
    """The context that the options, the environment or the file choose; None for none. Raises as `endpoint_of`."""
    file: ContextFile = load(path_of_file())
    name = context.ensure_object(CliContext).credentials.get("context_name", "") or file.current
    return (name, file.named(name)) if name else None


def access_from(context: click.Context, entry: ClusterEntry | None = None) -> PeerCredentials:
    """The credentials of a command; `entry` has those that neither option nor variable gives. Raises CommandFailed
    (usage)."""
    given = context.ensure_object(CliContext).credentials
    paths = {name: Path(given[name]) for _, name, _, _ in OPTIONS if name in given}
    if entry is not None:
        paths = {**_paths_of(entry, paths, has_token=bool(os.environ.get(TOKEN_VARIABLE, "").strip())), **paths}
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


def _paths_of(entry: ClusterEntry, given: Mapping[str, Path], *, has_token: bool) -> dict[str, Path]:
    """The files of a context's cluster. A token of the environment, and a certificate that is given, stand alone."""
    found = {"authority": entry.ca}
    if not has_token:
        found["token_file"] = entry.token_file
    if not {"certificate", "key"} & given.keys():
        found |= {"certificate": entry.cert, "key": entry.key}
    return {name: Path(value) for name, value in found.items() if value}


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

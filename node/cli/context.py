"""`isthmus context`: addresses and credential files of clusters, typed once.

`contexts` has the file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from isthmus.config.text import quantity
from isthmus.config.validation import check_name, check_peer_url
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.contexts import (
    ADDRESSES_MAX,
    CLUSTERS_MAX,
    ClusterEntry,
    ContextEntry,
    ContextFile,
    load,
    path_of_file,
    save,
)
from isthmus.node.cli.credentials import OPTIONS, access_from
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.node_listener import with_scheme
from isthmus.node.cli.output import TableSpec, echo_facts, echo_json, echo_result, echo_rows, output_option
from isthmus.node.cli.parameters import checking, with_options
from isthmus.repl.model.errors import BadInput

CONTEXTS_MAX: Final = 256
"""Most contexts of the file: more than anybody names; the listing stays readable."""

NAME: Final = click.argument("name")

files: Final = with_options(
    *(click.option(flag, name, metavar="FILE", envvar=variable, expose_value=True, help=text)
      for flag, name, variable, text in OPTIONS)
)  # fmt: skip
"""Add the options of credential files, as arguments."""


@click.group("context")
def context_group() -> None:
    """Name clusters, their addresses and credential files, so that commands need not repeat them."""


def _urls(option: str, given: tuple[str, ...]) -> tuple[str, ...]:
    with checking(option):
        found = tuple(check_peer_url(with_scheme(url.strip())) for each in given for url in each.split(","))
        if len(set(found)) != len(found) or len(found) > ADDRESSES_MAX:
            raise ValueError(f"name each of 1 to {ADDRESSES_MAX} addresses once")
    return found


def _file(option: str, text: str | None) -> str:
    """The absolute path of a file that is there; "" for none. Raises BadInput."""
    if not text:
        return ""
    path = Path(os.path.abspath(Path(text).expanduser()))
    if not path.is_file():
        raise BadInput(f"{option}: {path} does not exist, or is not a file")
    return str(path)


@context_group.command("add", short_help="Add a cluster to a context, or replace it there.")
@NAME
@click.option("--admin", "admins", metavar="URL[,URL...]", multiple=True, required=True, help="Its admin listeners.")
@click.option("--http", "https", metavar="URL[,URL...]", multiple=True, help="Its client listeners, for isthmus kv.")
@click.option("--cluster", "cluster", metavar="NAME", help="Its name; without it a node is asked.")
@files
@output_option
@click.pass_context
def add(
    context: click.Context,
    /,
    name: str,
    admins: tuple[str, ...],
    https: tuple[str, ...],
    cluster: str | None,
    output: str,
    **given: str | None,
) -> None:
    """Add a cluster to context NAME, or replace it there. Creates the context if needed; the first context becomes the
    one in use, its first cluster the default of --cluster.

    Of several addresses the first that answers is used. Without --http, `isthmus kv` asks a node of --admin for the
    client listeners.
    """
    with checking("NAME"):
        check_name(name)
    paths = {key: _file(flag, given[key]) for flag, key, _, _ in OPTIONS}
    if bool(paths["certificate"]) != bool(paths["key"]):
        raise BadInput("--cert and --key belong together")
    entry = ClusterEntry(
        _urls("--admin", admins),
        _urls("--http", https),
        paths["token_file"],
        paths["authority"],
        paths["certificate"],
        paths["key"],
    )
    if cluster is None:
        cluster = _asked(context, entry)
    with checking("--cluster"):
        check_name(cluster)
    path = path_of_file()
    file = load(path)
    old = file.contexts.get(name, ContextEntry({}))
    clusters = {**old.clusters, cluster: entry}
    new = ContextEntry(clusters, old.cluster or next(iter(clusters)))
    if len(new.clusters) > CLUSTERS_MAX:
        raise BadInput(f"context {name} has {CLUSTERS_MAX} clusters already, the most there may be")
    if len(file.contexts | {name: new}) > CONTEXTS_MAX:
        raise BadInput(f"there are {CONTEXTS_MAX} contexts already, the most there may be: `isthmus context remove`")
    current = file.current or name
    save(path, ContextFile({**file.contexts, name: new}, current))
    outcome = "replaced" if cluster in old.clusters else "added"
    sentence = f"context {name}: cluster {cluster} {outcome}" + (", in use" if current == name else "")
    if new.cluster != cluster:
        sentence += f"; cluster {new.cluster} is meant without --cluster (isthmus context use {name} --cluster NAME)"
    echo_result({"context": name, "cluster": cluster, "outcome": outcome, "current": current}, output, sentence)


def _asked(context: click.Context, entry: ClusterEntry) -> str:
    """The cluster's own name, from a node. Raises CommandFailed."""
    client = AdminClient(entry.admin, access_from(context, entry))
    try:
        found = client.get("/admin/cluster").get("cluster")
    except CommandFailed as error:
        sentence = f"{error}; its name is asked there: --cluster NAME gives it"
        raise CommandFailed(error.exit_code, error.reason, sentence) from error
    finally:
        client.close()
    if not isinstance(found, str):
        raise CommandFailed(Exit.UNAVAILABLE, "unknown", f"{client.url} does not name its cluster: --cluster NAME")
    return found


@context_group.command("use")
@NAME
@click.option("--cluster", metavar="NAME", help="The default of --cluster from now on.")
@output_option
def use(name: str, cluster: str | None, output: str) -> None:
    """Use context NAME for commands that name no other context."""
    path = path_of_file()
    file = load(path)
    entry = file.named(name)
    if cluster is not None:
        entry = ContextEntry(entry.clusters, entry.chosen(name, cluster))
    save(path, ContextFile({**file.contexts, name: entry}, name))
    shown = f", cluster {entry.cluster}" if entry.cluster else ""
    echo_result({"context": name, "cluster": entry.cluster or None}, output, f"in use: context {name}{shown}")


CONTEXTS: Final = TableSpec("context", "in_use", "clusters", "cluster")


@context_group.command("list", short_help="Every context, and its clusters.")
@output_option
def list_contexts(output: str) -> None:
    """Every context, its clusters, and the default of --cluster."""
    path = path_of_file()
    file = load(path)
    rows = [
        {"context": name, "in_use": name == file.current, "clusters": list(entry.clusters), "cluster": entry.cluster}
        for name, entry in file.contexts.items()
    ]
    if not rows and output != "json":
        click.echo(f"there is no context in {path}: `isthmus context add`")
        return
    echo_rows({"file": str(path), "contexts": rows}, output, CONTEXTS, rows)


@context_group.command("show")
@click.argument("name", required=False)
@output_option
def show(name: str | None, output: str) -> None:
    """The addresses and files of context NAME, or of the one in use."""
    file = load(path_of_file())
    name = name or file.current
    if not name:
        raise CommandFailed(Exit.USAGE, "usage", "no context is in use: `isthmus context add` makes one, `use` chooses")
    entry = file.named(name)
    if output == "json":
        echo_json({"context": name, "in_use": name == file.current, **msgspec.to_builtins(entry)})
        return
    used = " (in use)" if name == file.current else ""
    facts: list[tuple[str, Any]] = [("context", f"{name}{used}"), ("cluster without --cluster", entry.cluster)]
    for cluster, of in entry.clusters.items():
        set_ = {key: value for key, value in msgspec.to_builtins(of).items() if value}
        facts += [(f"{cluster}: {key}", value) for key, value in set_.items()]
    echo_facts(facts)


@context_group.command("remove")
@NAME
@click.option("--cluster", metavar="NAME", help="Only this cluster of it.")
@output_option
def remove(name: str, cluster: str | None, output: str) -> None:
    """Remove context NAME, or one cluster of it. The files that it names stay."""
    path = path_of_file()
    file = load(path)
    entry = file.named(name)
    left: dict[str, ClusterEntry] = {}
    if cluster is not None:
        chosen = entry.chosen(name, cluster)
        left = {each: of for each, of in entry.clusters.items() if each != chosen}
    contexts = {each: of for each, of in file.contexts.items() if each != name}
    if left:
        contexts = {**file.contexts, name: ContextEntry(left, entry.cluster if entry.cluster in left else "")}
    current = file.current if file.current in contexts else ""
    save(path, ContextFile(contexts, current))
    what = f"cluster {cluster} of context {name}" if left else f"context {name}"
    note = "" if current or not contexts else f"; {quantity(len(contexts), 'context')} left, none in use"
    answer = {"context": name, "cluster": cluster, "outcome": "removed", "current": current or None}
    echo_result(answer, output, f"{what}: removed{note}")

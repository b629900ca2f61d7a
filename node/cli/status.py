"""`isthmus status`: one screen about all clusters.

`status_report` judges, `status_lines` draws.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import click

from isthmus.node.cli.admin_client import ADMIN, AdminClient
from isthmus.node.cli.contexts import CLUSTERS_MAX
from isthmus.node.cli.credentials import (
    CHOICES,
    ConnectionOption,
    connection_options,
    context_in_use,
    endpoint_at,
    endpoint_in,
    endpoint_of,
    is_typed,
)
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import PIPE_COLUMNS, CliContext, echo_json, output_option
from isthmus.node.cli.parameters import Count, Duration
from isthmus.node.cli.status_lines import screen
from isthmus.node.cli.status_report import PATHS, StatusAnswers, report
from isthmus.repl.model.errors import BadInput

ANSWER_S: Final = 6.0
"""How long one answer may take. A node waits up to 2 s for the others; what takes longer is unknown on this screen."""

INTERVAL: Final = "2s"
"""Between two pictures of `--watch`."""

CODES: Final = {"ok": Exit.OK, "warning": Exit.DIFFERS, "critical": Exit.DIFFERS, "unknown": Exit.UNAVAILABLE}
"""State of the report -> exit code."""


class ClusterSource:
    """One cluster of the picture: where it is asked. `name` "": as its nodes call it. `paths`: name of an answer -> the
    request for it; "cluster" is one of them."""

    def __init__(self, name: str, client: Callable[[], AdminClient], paths: Mapping[str, str] = PATHS) -> None:
        self.name = name
        self._paths = paths
        self._clients = {what: client() for what in paths}

    def questions(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Name of an answer -> the request for it, each on connections of its own."""
        return {what: partial(client.get, self._paths[what]) for what, client in self._clients.items()}

    def joined(self, answers: dict[str, Any], errors: dict[str, str]) -> StatusAnswers:
        """The answers to the questions, under the cluster's name."""
        own = answers.get("cluster", {}).get("cluster")
        return StatusAnswers(self.name or own or self._clients["cluster"].url, answers, errors)

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients.values():
            client.close()


def gathered(sources: Sequence[ClusterSource], pool: ThreadPoolExecutor) -> list[StatusAnswers]:
    """The answers of all clusters, asked at once."""
    asked = [(source, {what: pool.submit(ask) for what, ask in source.questions().items()}) for source in sources]
    found = []
    for source, pending in asked:
        answers: dict[str, Any] = {}
        errors: dict[str, str] = {}
        for what, future in pending.items():
            try:
                answers[what] = future.result()
            except CommandFailed as error:
                errors[what] = str(error)
        found.append(source.joined(answers, errors))
    return _merged(found)


def _merged(found: Sequence[StatusAnswers]) -> list[StatusAnswers]:
    """The answers with those of one cluster as one, such as where two of its nodes were given as two clusters: the
    first has the word, and what it lacks comes from the others."""
    merged: dict[object, StatusAnswers] = {}
    for number, each in enumerate(found):
        uuid = each.answers.get("cluster", {}).get("cluster_uuid") or number  # unknown: by itself
        before = merged.get(uuid)
        if before is None:
            merged[uuid] = each
            continue
        answers = {**each.answers, **before.answers}
        errors = {what: why for what, why in before.errors.items() if what not in answers}
        merged[uuid] = StatusAnswers(before.name, answers, errors)
    return list(merged.values())


ADMINS: Final = click.option(
    "--admin",
    "admins",
    cls=ConnectionOption,
    metavar="URL[,URL...]",
    multiple=True,
    envvar=ADMIN.variable,
    show_envvar=True,
    help="Admin listeners of one cluster, of which the first that answers is asked; once for each cluster.",
)
"""`--admin` of commands about several clusters, as the argument `admins`."""


@click.command("status")
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C, which is code 0.")
@click.option(
    "--interval",
    "interval_ms",
    type=Duration(500, 3_600_000),
    default=INTERVAL,
    show_default=True,
    help="Time between two screens of --watch.",
)
@click.option("--count", type=Count(1), help="End --watch after so many screens.")
@ADMINS
@connection_options
@output_option
@click.pass_context
def status_command(
    context: click.Context, watch: bool, interval_ms: int, count: int | None, admins: tuple[str, ...], output: str
) -> int:
    """All clusters on one screen: nodes, partitions, lag with its causes, what operators set, and problems.

    Code 0: all is well; 1: there is a problem; 3: no problem, but something is unknown. What operators set does not
    affect the code. Limits are the defaults of `isthmus check`, and a tenth of free disk. The output is cut to the
    terminal; -o wide has all.
    """
    if watch and output == "json":
        raise BadInput("--watch is for people; programs ask again")
    if count is not None and not watch:
        raise BadInput("--count ends --watch: give both")
    sources, title = sources_of(context, admins)
    pool = ThreadPoolExecutor(len(sources) * len(PATHS), thread_name_prefix="status")
    try:
        if watch:
            return _watch(sources, pool, interval_ms / 1000, count, title)
        found = report(gathered(sources, pool))
        at_ms = time.time_ns() // 1_000_000
        if output == "json":
            echo_json({"at_ms": at_ms, **found})
        else:
            width, height = _size()
            whole = output == "wide"
            click.echo(
                "\n".join(screen(found, title=title, at_ms=at_ms, width=width, height=None if whole else height))
            )
        return CODES[found["state"]]
    finally:
        pool.shutdown(cancel_futures=True)
        for source in sources:
            source.close()


def sources_of(
    context: click.Context, admins: Sequence[str], paths: Mapping[str, str] = PATHS
) -> tuple[list[ClusterSource], str]:
    """The clusters to ask, and the title: those of --admin, else all of the context, or its one of --cluster."""
    options = context.ensure_object(CliContext)
    flags = [flag for flag, name, _, _ in CHOICES if name in options.typed]
    if admins and flags and is_typed(context, "admins"):
        raise CommandFailed(Exit.USAGE, "usage", f"--admin names nodes, and {flags[0]} a context: give one of them")
    found = context_in_use(context) if flags or not admins else None
    title = "isthmus status" + (f", context {found[0]}" if found else "")
    if admins and not flags:
        endpoints = [endpoint_at(context, each.split(",")) for each in admins]
    elif found is None or "cluster_name" in options.credentials:
        endpoints = [endpoint_of(context, ADMIN.option, "", ADMIN.default, typed=False)]
    else:
        endpoints = [endpoint_in(context, found[1], name) for name in found[1].clusters]
    if len(endpoints) > CLUSTERS_MAX:
        raise BadInput(f"--admin: at most {CLUSTERS_MAX} clusters are shown at once")
    return [
        ClusterSource(each.cluster, partial(AdminClient, each.urls, each.access, ANSWER_S), paths) for each in endpoints
    ], title


def _size() -> tuple[int, int | None]:
    """Columns and lines of the terminal, but for the line of the prompt; no limit without one."""
    if not sys.stdout.isatty():
        return PIPE_COLUMNS, None
    size = shutil.get_terminal_size()
    return size.columns, size.lines - 1


HOME: Final = "\x1b[H\x1b[J"
"""To the upper left corner, and clear from there."""


def _watch(
    sources: Sequence[ClusterSource], pool: ThreadPoolExecutor, interval_s: float, count: int | None, title: str
) -> int:
    """Draw until Ctrl-C or `count` pictures; the last picture stays."""
    drawn = 0
    try:
        while True:
            found = report(gathered(sources, pool))
            at_ms = time.time_ns() // 1_000_000
            width, height = _size()
            head = f"{title}, every {interval_s:g} s"
            lines = screen(found, title=head, at_ms=at_ms, width=width, height=height)
            sys.stdout.write(HOME if sys.stdout.isatty() else "")
            click.echo("\n".join(lines))
            drawn += 1
            if drawn == count:
                return CODES[found["state"]]
            time.sleep(interval_s)
    except KeyboardInterrupt:
        return Exit.OK

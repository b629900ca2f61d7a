"""`isthmus reconcile seed`: fill a new cluster from another on Spark, and hand over to real time.

Shows the plan, starts Spark, and prints the summary, also for `isthmus reconcile show`. docs/spark.md explains it. Exit
codes: 0 equal, or copied without verifying; 1 differing; 2 error; 3 incomplete: the same run id goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from isthmus.aae.run_directory import SEED, SPARK_LOG, RunDirectory
from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import echo_facts, echo_json, echo_table, printable
from isthmus.node.cli.parameters import BY, Count, Duration
from isthmus.node.cli.reconcile_options import (
    BUCKET_TYPE,
    FORMAT,
    MASTER,
    MAX_TIME,
    NICE,
    RUN_ID,
    RUNS_DIRECTORY,
    VERBOSE,
    duration_s,
    files_of,
    new_run_id,
    print_progress,
    whole_seconds,
)
from isthmus.repl.model.errors import BadInput, PeerFault


@click.command("seed", short_help="Copy a bucket type into another cluster.")
@click.option("--source", required=True, metavar="URL[,URL...]", help="HTTP listeners of the cluster with the objects.")
@click.option("--target", required=True, metavar="URL[,URL...]", help="The same of the one to fill.")
@BUCKET_TYPE
@click.option("--queue", default="", help="The source's queue that continues afterwards; created if it does not exist.")
@click.option("--filter", default="any", show_default=True, metavar="RULES", help="Which changes a new queue offers.")
@click.option("--into-nonempty", is_flag=True, help="The target may have objects: they merge.")
@click.option("--no-verify", is_flag=True, help="Do not compare the clusters at the end.")
@click.option("--rate", "rows_per_second", type=Count(0), default=0, help="Objects a second at most; 0: no limit.")
@MAX_TIME
@click.option(
    "--settle",
    "settle_s",
    type=Duration(),
    callback=duration_s,
    default="10s",
    show_default=True,
    help="A change is there if the lag is below this.",
)
@click.option(
    "--give-up-after",
    "give_up_after_s",
    type=Duration(),
    callback=whole_seconds,
    default="60s",
    show_default=True,
    help="How long a cluster may not answer.",
)
@click.option("--target-token-file", default="", metavar="FILE", help="A token of the target, if it has others.")
@RUNS_DIRECTORY
@RUN_ID
@MASTER
@NICE
@VERBOSE
@click.option("--dry-run", is_flag=True, help="Show the plan alone.")
@BY
@admin_option
@FORMAT
@click.pass_context
def seed(
    context: click.Context,
    /,
    source: str,
    target: str,
    run_id: str | None,
    master: str,
    nice: int,
    verbose: bool,
    no_verify: bool,
    dry_run: bool,
    by: str,
    admin: AdminClient,
    format_: str,
    **given: Any,
) -> None:
    """Copy all objects of a bucket type into another cluster, with their clocks, also tombstones; then continue the
    queue from there, and compare. Ctrl-C, or a killed driver, loses nothing: a seed with the same --run-id goes on.
    --admin is a node of the source, needed with --queue."""
    from isthmus.aae.reconcile.seed_plan import QueueHandOver, SeedOptions, planned

    options = SeedOptions(run_id=run_id or new_run_id(), verify=not no_verify, **given, **files_of(context)._asdict())
    queue = QueueHandOver(_SeedAdmin(admin), options.queue, by, options.filter) if options.queue else None
    if dry_run:
        _echo_plan(planned(source, target, options, queue), format_)
        return
    from isthmus.aae.reconcile import seed as seeding
    from isthmus.aae.reconcile import spark_session
    from isthmus.aae.reconcile.spark_progress import SparkProgress

    seeding.open_seed(source, target, options, queue)  # reports faults before Spark starts
    log = RunDirectory(options.output, options.run_id, SEED).path / SPARK_LOG
    with (
        SparkProgress(print_progress) as progress,
        spark_session.job(f"seed {options.run_id}", progress, master, log, verbose=verbose, nice=nice) as spark,
    ):
        try:
            summary = seeding.seed(spark, source, target, options, queue, progress.report)
        except KeyboardInterrupt:
            click.echo(f"broken off: --run-id {options.run_id} goes on", err=True)
            raise
    _echo_summary(summary, format_)
    if summary["exit_code"]:
        raise click.exceptions.Exit(summary["exit_code"])


SEED_COLUMNS: Final = ("seed", "outcome", "objects", "ranges", "of", "queue", "hand_over", "verified")


def seed_row(directory: RunDirectory) -> dict[str, Any]:
    """The row of a seed: its progress and the state of its queue."""
    plan, summary = directory.read("plan.json"), directory.read("summary.json") or {}
    plan = {"chunks": ()} if plan is None else plan
    works = sorted((directory.path / "work").glob("[0-9]*.json"))
    done: dict[int, int] = {}
    for path in works:
        work = directory.read(f"work/{path.name}")
        with directory.decoding(f"work/{path.name}"):
            chunks = () if work is None else work["done"]
            done |= {int(one["chunk"]): int(one["rows"]) for one in chunks if not one["error"]}
    with directory.decoding("plan.json"):
        ranges = len(plan["chunks"])
    return {
        "seed": directory.run_id,
        "outcome": summary.get("outcome", "not ended"),
        "source": plan.get("source"),
        "target": plan.get("target"),
        "bucket_type": plan.get("bucket_type"),
        "objects": sum(done.values()),
        "ranges": len(done),
        "of": ranges,
        "queue": plan.get("queue") or None,
        "hand_over": (directory.read("handover.json") or {}).get("state"),
        "verified": (summary.get("verified") or {}).get("outcome"),
    }


def show_seed(directory: RunDirectory, output: str) -> None:
    """Print one seed: its progress, its summary once it ended, and the positions of its queue."""
    row, summary, handed = seed_row(directory), directory.read("summary.json"), directory.read("handover.json")
    if output == "json":
        echo_json({"seed": row, "summary": summary, "handover": handed})
        return
    if summary is None:
        click.echo(f"seed {directory.run_id} has not ended; `isthmus reconcile seed` with its id goes on")
        echo_facts((name.replace("_", " "), value) for name, value in row.items())
    else:
        _echo_summary(summary, output)
    if handed is not None and handed["queue"]:
        what = "goes on at" if handed["state"] == "handed over" else "is held from"
        click.echo(f"queue {printable(handed['queue'])} {what}:")
        echo_table(("partition", "offset"), handed["positions"].items())


class _SeedAdmin:
    """An admin client whose failures leave the seed incomplete."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin

    def get(self, path: str) -> dict[str, Any]:
        """See Admin."""
        return self._translated(lambda: self._admin.get(path))

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """See Admin."""
        return self._translated(lambda: self._admin.post(path, body))

    @staticmethod
    def _translated(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            return ask()
        except CommandFailed as error:
            raise (BadInput if error.exit_code is Exit.REFUSED else PeerFault)(str(error)) from error


def _echo_plan(plan: dict[str, Any], output: str) -> None:
    shown = {name: value for name, value in plan.items() if name not in ("chunks", "begin", "form")}
    shown["ranges"] = len(plan["chunks"])
    if output == "json":
        echo_json(shown | {"dry_run": True})
        return
    state = "to be made" if plan["queue_is_new"] else "there is one"
    queue = f"{plan['queue']}: {state}" if plan["queue"] else "none"
    differing = plan["properties_differing"]
    properties = "not known" if differing is None else ", ".join(differing) or "none"
    echo_facts(
        [
            ("source", plan["source"]),
            ("target", plan["target"]),
            ("bucket type", plan["bucket_type"]),
            ("objects, about", plan["objects"]),
            ("bytes, about", plan["bytes"]),
            ("objects of the target", plan["target_objects"]),
            ("partitions", plan["partitions"]),
            ("ranges", len(plan["chunks"])),
            ("seconds at this rate", plan["seconds"]),
            ("properties that differ", properties),
            ("queue", queue),
        ]
    )


def _echo_summary(summary: dict[str, Any], output: str) -> None:
    if output == "json":
        echo_json(summary)
        return
    verified = summary["verified"]
    facts: list[tuple[str, Any]] = [
        (name, summary[name]) for name in ("run_id", "outcome", "source", "target", "objects", "bytes")
    ]
    if summary["error"]:
        facts.append(("error", summary["error"]))
    facts += [(f"  {outcome}", count) for outcome, count in sorted(summary["outcomes"].items())]
    if summary["properties_differing"]:
        facts.append(("properties that differ", ", ".join(summary["properties_differing"])))
    facts += [("damaged", summary["damaged"])] if summary["damaged"] else []
    facts += [("  named", name) for name in summary["named"]]
    facts.append(("ranges", f"{summary['chunks']['done']} of {summary['chunks']['of']}"))
    facts += [("  open", f"partition {one[0]}, segments {one[1]}-{one[2]}") for one in summary["open"]]
    if summary["queue"]:
        facts.append(("queue", f"{summary['queue']}: {summary['queue_state']}"))
    if verified is not None:
        facts.append(("verified", f"{verified['outcome']} by {verified['mode']}, run {verified['run_id']}"))
    facts.append(("seconds", summary["seconds"]))
    echo_facts((name.replace("_", " "), value) for name, value in facts)

"""`isthmus reconcile`: compare two clusters on Spark, look at runs, and repair what they found.

Runs the jobs of `aae.reconcile`; only `run` starts Spark. docs/spark.md explains them. Exit codes of a run: 0 equal,
1 differ, 2 error, 3 incomplete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final, TypeVar
from urllib.parse import quote, quote_from_bytes

import click

from isthmus.aae.run_directory import SEED, SPARK_LOG, RunDirectory, known_runs
from isthmus.node.cli.admin_client import AdminClient, admin_option
from isthmus.node.cli.credentials import credential_options
from isthmus.node.cli.exit_codes import CommandFailed, Exit
from isthmus.node.cli.output import echo_facts, echo_json, echo_table, moment, printable, value_as_json
from isthmus.node.cli.parameters import BY, Count, Duration, Number, RenamedOption, time_of
from isthmus.node.cli.reconcile_jobs import export, import_, java_home, stats, trees
from isthmus.node.cli.reconcile_options import (
    BUCKET_TYPE,
    FORMAT,
    KNOWN_RUNS_DIRECTORY,
    MASTER,
    MAX_TIME,
    NICE,
    RUN_ID,
    RUNS_DIRECTORY,
    VERBOSE,
    absolute,
    duration_s,
    files_of,
    interrupted_by_sigterm,
    new_run_id,
    print_progress,
    refuse_token_variable,
    whole_seconds,
)
from isthmus.node.cli.reconcile_seed import SEED_COLUMNS, seed, seed_row, show_seed
from isthmus.queues.window_rules import FOLD
from isthmus.repl.model.errors import BadInput, LocalFault, PeerFault

Command = TypeVar("Command", bound=Callable[..., Any])


KEYS_MAX: Final = 10_000
"""Most keys that `show` prints; the Spark view `findings` has all."""

VERDICTS_SHOWN: Final = ("diverged", "waiting", "unreachable", "transient", "filtered")
"""Verdicts whose keys are printed, in this order."""

SIDES: Final = {"source": "left", "sink": "right"}


@click.group("reconcile")
@click.pass_context
def reconcile_group(context: click.Context) -> None:
    """Compare two clusters key by key on Spark, and repair what differs."""
    context.with_resource(interrupted_by_sigterm())


for _command in (seed, stats, export, import_, trees, java_home):
    reconcile_group.add_command(_command)


def _bytes(_context: click.Context, _parameter: click.Parameter, value: str | None) -> bytes:
    if value is None:
        return b""
    from isthmus.aae.reconcile.options import parse_bytes

    try:
        return parse_bytes(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _time(_context: click.Context, parameter: click.Parameter, value: str | None) -> int:
    """Milliseconds since 1970; 0 for no bound."""
    option = parameter.opts[0]
    found = 0 if value is None else time_of(value, option)
    if value is not None and not found and option == "--modified-before":
        raise BadInput(f"{option}: a time after 1970 is needed: nothing is older")
    return found


@reconcile_group.command("run")
@click.option("--left", required=True, metavar="URL[,URL...]", help="HTTP listeners of nodes of one cluster.")
@click.option("--right", required=True, metavar="URL[,URL...]", help="The same of the other one.")
@BUCKET_TYPE
@click.option("--bucket", callback=_bytes, help="Only keys of this bucket; bytes that are not UTF-8 as 0xff00.")
@click.option(
    "--modified-since",
    "modified_since_ms",
    metavar="TIME",
    callback=_time,
    help="Only keys that either side changed since then.",
)
@click.option(
    "--modified-before",
    "modified_before_ms",
    metavar="TIME",
    callback=_time,
    help="Only keys that either side changed before then.",
)
@click.option("--full", is_flag=True, help="Read all, without asking trees.")
@click.option("--bodies", is_flag=True, help="Read objects, too, and compare each with its key row; implies --full.")
@click.option("--sample", type=Number(0, 1, min_open=True), default=1.0, help="Compare only this part of the segments.")
@click.option("--max-differences", type=Count(0), default=0, help="Findings that are kept; totals stay true.")
@MAX_TIME
@click.option(
    "--settle",
    "settle_s",
    type=Duration(),
    callback=duration_s,
    default="10s",
    show_default=True,
    help="Pause before the second look.",
)
@click.option("--filter", default="", metavar="RULES", help="A queue's filter: what it leaves out is filtered.")
@click.option(
    "--rate",
    "rows_per_second",
    cls=RenamedOption,
    old=("--rate-limit",),
    type=Count(0),
    default=0,
    help="Rows a second of each cluster; 0: no limit.",
)
@click.option(
    "--give-up-after",
    "give_up_after_s",
    type=Duration(),
    callback=whole_seconds,
    default="30s",
    show_default=True,
    help="How long a cluster may not answer.",
)
@click.option(
    "--token-file", default="", envvar="ISTHMUS_TOKEN_FILE", show_envvar=True, callback=absolute,
    help="A token for both clusters; the path is read on every worker.",
)  # fmt: skip
@click.option("--right-token-file", default="", callback=absolute, help="One for the right cluster, if it has others.")
@click.option(
    "--ca", "ca_file", cls=RenamedOption, old=("--ca-file",), default="",
    envvar="ISTHMUS_CA", show_envvar=True, callback=absolute,
    help="Authorities of the nodes' certificates.",
)  # fmt: skip
@click.option(
    "--cert", "certificate_file", cls=RenamedOption, old=("--certificate-file",), default="",
    envvar="ISTHMUS_CERT", show_envvar=True,
    callback=absolute, help="A client certificate.",
)  # fmt: skip
@click.option(
    "--key", "key_file", cls=RenamedOption, old=("--key-file",), default="",
    envvar="ISTHMUS_KEY", show_envvar=True, callback=absolute,
    help="Its private key.",
)  # fmt: skip
@RUNS_DIRECTORY
@RUN_ID
@MASTER
@NICE
@VERBOSE
@FORMAT
def run(
    left: str, right: str, run_id: str | None, master: str, nice: int, verbose: bool, format_: str, **given: Any
) -> None:
    """Compare two clusters. Ctrl-C, or a killed driver, loses nothing: a run with the same --run-id goes on. The
    verdict is the exit code."""
    refuse_token_variable(given["token_file"])
    from isthmus.aae.reconcile.job import ReconcileOptions, check, check_apart
    from isthmus.aae.reconcile.job import run as run_it
    from isthmus.aae.reconcile.spark_progress import SparkProgress
    from isthmus.aae.reconcile.spark_session import LazySession, announced

    options = ReconcileOptions(run_id=run_id or new_run_id(), **given)
    check(left, right, options)
    check_apart(left, right, options)

    log = None if verbose else RunDirectory(options.output, options.run_id).path / SPARK_LOG
    with SparkProgress(print_progress) as progress:
        spark = LazySession(lambda: announced(progress, f"isthmus reconcile {options.run_id}", master, log, nice))
        try:
            summary = run_it(spark, left, right, options, progress.report)
        finally:
            spark.stop()
    if format_ == "json":
        echo_json(summary)
    else:
        _echo_summary(summary)
    if summary["exit_code"]:
        raise click.exceptions.Exit(summary["exit_code"])


@reconcile_group.command("show")
@click.argument("run_id", required=False)
@KNOWN_RUNS_DIRECTORY
@click.option("--keys", type=Count(0, KEYS_MAX), default=0, help="Name so many keys that differ (RUN_ID).")
@click.option(
    "--values", type=Count(0), default=0, help="Read so many keys that differ in both clusters, side by side."
)
@click.option(
    "--right-token-file", default="", callback=absolute, help="A token of the right cluster, if it has others."
)
@credential_options
@click.option("--skip", type=Count(0), default=0, help="Leave out the first so many of them: the next page.")
@click.option("--verdict", type=click.Choice(VERDICTS_SHOWN), help="Only keys with this verdict.")
@FORMAT
@click.pass_context
def show(
    context: click.Context,
    /,
    run_id: str | None,
    output: str,
    keys: int,
    values: int,
    right_token_file: str,
    skip: int,
    verdict: str | None,
    format_: str,
) -> None:
    """The runs and seeds of a directory. With RUN_ID: a run's totals, findings by verdict and bucket, and repairs, or a
    seed's progress and the positions of its queue. Reads files alone, no Java and no cluster, but for --values: that
    reads the keys as they are now, at the URLs of the run, with a token of the role read."""
    if keys and values:
        raise CommandFailed(Exit.USAGE, "usage", "--keys names keys and --values reads them: give one of the two")
    if (skip or verdict) and not (keys or values):
        raise CommandFailed(Exit.USAGE, "usage", "--skip and --verdict are for the keys that --keys or --values names")
    if run_id is None:
        if keys or values:
            option = "--keys lists" if keys else "--values reads"
            raise CommandFailed(Exit.USAGE, "usage", f"{option} the findings of one run: give its RUN_ID")
        rows = [_shown(_listed, one, "run", RUN_COLUMNS) for one in known_runs(output)]
        seeds = [_shown(seed_row, one, "seed", SEED_COLUMNS) for one in known_runs(output, SEED)]
        if format_ == "json":
            echo_json({"runs": rows, "seeds": seeds})
            return
        echo_table(RUN_COLUMNS, ([row[column] for column in RUN_COLUMNS] for row in rows))
        for row in (*rows, *seeds):
            if "error" in row:
                click.echo(f"isthmus: {printable(row['error'])}", err=True)
        if seeds:
            click.echo()
            echo_table(SEED_COLUMNS, ([row[column] for column in SEED_COLUMNS] for row in seeds))
        return
    from isthmus.aae.reconcile.findings import counted, named
    from isthmus.aae.reconcile.key_values import VALUES_MAX
    from isthmus.aae.reconcile.repair import repairs_of

    if values > VALUES_MAX:
        raise CommandFailed(
            Exit.USAGE, "usage", f"--values reads at most {VALUES_MAX} keys at once; --skip {VALUES_MAX} reads the next"
        )

    as_seed = RunDirectory(output, run_id, SEED)
    if as_seed.read("plan.json") is not None and RunDirectory(output, run_id).read("run.json") is None:
        show_seed(as_seed, format_)
        return
    directory = _known(output, run_id)
    verdicts = (verdict,) if verdict else VERDICTS_SHOWN
    if values:
        pairs = named(directory.path / "findings", values, verdicts, skip)
        for row, *sides in zip(pairs, *_sides_now(directory, pairs, files_of(context), right_token_file), strict=True):
            row |= dict(zip(("left", "right"), sides, strict=True))
        if format_ == "json":
            echo_json({"run": run_id, "values": [_as_json(row) for row in pairs]})
        else:
            _echo_values(pairs, skip)
        return
    summary = directory.read("summary.json")
    found = counted(directory.path / "findings")
    rows = named(directory.path / "findings", keys, verdicts, skip)
    repairs = repairs_of(directory)
    if format_ == "json":
        shown = {"keys": rows} if keys else {}
        echo_json({"run": run_id, "summary": summary, "findings": found, "repairs": repairs, **shown})
        return
    if summary is None:
        click.echo(f"run {run_id} has not ended; `isthmus reconcile run` with its id goes on")
    else:
        with directory.decoding("summary.json"):
            _echo_summary(summary)
    names = ("verdict", "difference", "side", "bucket", "count")
    echo_table(names, ([_side(row, name) for name in names] for row in found))
    if rows:
        columns = ["bucket", "key", "verdict", "difference", "side"]
        if any(row["left_fault"] or row["right_fault"] for row in rows):
            columns += ["left_fault", "right_fault"]
        click.echo()
        head = [name.replace("_", " ") for name in columns]
        echo_table(head, ([_side(row, name) for name in columns] for row in rows))
        differing = sum(row["count"] for row in found if verdict in (None, row["verdict"]))
        end = skip + len(rows)
        if len(rows) < differing:
            first = f"{skip + 1} to " if skip else ""
            more = f"; --skip {end} for the next, or --keys up to {KEYS_MAX}" if end < differing else ""
            click.echo(f"{first}{end} of {differing} keys{more}")
    elif skip:
        click.echo(f"no keys behind the first {skip}")
    if repairs:
        of_repairs = ("plan", "direction", "queue", "objects", "queued", "state")
        echo_table(of_repairs, ([row[column] for column in of_repairs] for row in repairs))


def _side(row: dict[str, Any], name: str) -> Any:
    """A field of a finding; the side by both of its names."""
    value = row[name]
    return f"{value} ({SIDES[value]})" if name == "side" and value in SIDES else value


def _sides_now(
    directory: RunDirectory, rows: Sequence[dict[str, Any]], credentials: Any, right_token_file: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the clusters of a run have now of the keys of some findings, left and right. Raises BadInput."""
    from isthmus.aae.reconcile.key_values import values_of
    from isthmus.aae.reconcile.options import parse_options

    urls = directory.read("urls.json")
    if urls is None:
        raise BadInput(f"run {directory.run_id} has no URLs of its clusters: it is of an earlier version, run it again")
    names = [(row["bucket_type"], bytes.fromhex(row["bucket_hex"]), bytes.fromhex(row["key_hex"])) for row in rows]
    with directory.decoding("urls.json"):
        left, right = (parse_options({"urls": str(urls[side])}).urls for side in ("left", "right"))
    theirs = credentials._replace(token_file=right_token_file or credentials.token_file)
    return list(values_of(left, credentials, names)), list(values_of(right, theirs, names))


def _as_json(row: dict[str, Any]) -> dict[str, Any]:
    """A finding with both sides; values as text where they are that, and in base64."""
    sides = {}
    for side in ("left", "right"):
        siblings = row[side]["siblings"]
        sides[side] = row[side] | {"siblings": siblings and [value_as_json(one) for one in siblings]}
    return row | sides


VALUE_COLUMNS: Final = 200
"""Characters of a value that a terminal shows; -o json has more."""


def _echo_values(rows: Sequence[dict[str, Any]], skip: int) -> None:
    """Print keys with both sides beside each other; what differs is marked."""
    if not rows:
        click.echo(f"no keys behind the first {skip}" if skip else "no keys differ")
    for number, row in enumerate(rows):
        if number:
            click.echo()
        what = ", ".join(str(_side(row, name)) for name in ("verdict", "difference", "side") if row[name] is not None)
        click.echo(printable(f"{row['bucket_type']}/{row['bucket']}/{row['key']}: {what}"))
        several = any(len(row[side]["siblings"] or ()) > 1 for side in ("left", "right"))
        left, right = (_facts_of(row[side], several) for side in ("left", "right"))
        names = [*left, *(name for name in right if name not in left)]
        lines = [(name, left.get(name, "-"), right.get(name, "-")) for name in names]
        echo_table(("", "left", "right"), ((f"{'=' if a == b else '≠'} {name}", a, b) for name, a, b in lines))


def _facts_of(side: dict[str, Any], several: bool) -> dict[str, str]:
    """What is printed of a key in one cluster; two texts are equal only where what they stand for is."""
    if side["state"] == "unknown":
        return {"state": f"unknown: {side['reason']}"}
    clock = (f"{one['actor'][:8]}..{one['actor'][-4:]} {one['epoch']}.{one['offset']}" for one in side["clock"])
    facts = {"state": side["state"], "clock": ", ".join(clock) or "-", "siblings": str(len(side["siblings"]))}
    for number, one in enumerate(side["siblings"], 1):
        place = f" {number}" if several else ""
        at_ms = one["last_modified_ms"]
        facts[f"last modified{place}"] = f"{moment(at_ms).removesuffix('Z')}.{at_ms % 1000:03}Z"
        facts[f"value{place}"] = "deleted" if one["deleted"] else _value_text(one)
    return facts


def _value_text(sibling: dict[str, Any]) -> str:
    """The beginning of a value, its length and its type; of one that is cut its hash, too."""
    text = sibling["value"].decode(errors="backslashreplace")
    about = f"{sibling['bytes']} bytes, {sibling['content_type']}"
    if len(text) <= VALUE_COLUMNS and len(sibling["value"]) == sibling["bytes"]:
        return f"{text} ({about})"
    return f"{text[:VALUE_COLUMNS]}... ({about}, xxh64 {sibling['xxh64']})"


class AdminQueue:
    """A queue behind a node's admin listener (`aae.reconcile.repair.Queue`): references at fold priority."""

    def __init__(self, admin: AdminClient, name: str, by: str) -> None:
        self._admin = admin
        self._name = name
        self._path = f"/admin/queues/{quote(name, safe='')}/push"
        self._by = by

    def row(self, sender: str) -> dict[str, Any]:
        """The queue's row of the listing. Raises BadInput for a node of another cluster than `sender`, and for a queue
        that it does not have."""
        cluster = self._admin.get("/admin/cluster")
        if cluster.get("cluster_uuid") != sender:
            raise BadInput(
                f"{self._admin.url} is of cluster {cluster.get('cluster')}, uuid {cluster.get('cluster_uuid')}; the"
                f" plan is sent by cluster {sender}: name a node of that one with --admin"
            )
        queues = self._admin.get("/admin/queues").get("queues", [])
        found: dict[str, Any] | None = next((one for one in queues if one.get("name") == self._name), None)
        if found is None:
            names = ", ".join(str(one.get("name")) for one in queues) or "none"
            raise BadInput(
                f"cluster {cluster.get('cluster')} has no queue {self._name}; it has {names}: make a new plan"
            )
        return found

    def check(self, sender: str, receiver: str) -> int:
        """See Queue. Prints why what is queued may have to wait."""
        found = self.row(sender)
        owner = found.get("owner") or {}
        if not owner:
            raise BadInput(
                f"no cluster fetches from queue {self._name}: {found.get('reason') or 'it has no owner'}. What the plan"
                f" queues would wait there and repair nothing; let cluster {receiver} fetch from it (`isthmus sink"
                " add-peer` there), then apply the plan"
            )
        if owner.get("uuid") != receiver:
            raise BadInput(
                f"queue {self._name} belongs to cluster {owner.get('cluster')}, uuid {owner.get('uuid')}; what the plan"
                f" repairs is lacking in cluster {receiver}: make a new plan for a queue that it fetches from"
            )
        self.warn(found)
        return self._clock_ms(self._gaps())

    def warn(self, found: dict[str, Any]) -> None:
        """Print why the queue does not serve everything, if it does not."""
        if found.get("reason"):
            click.echo(printable(f"queue {self._name}: {found['reason']}"), err=True)

    def lost(self, since_ms: int) -> list[str]:
        """See Queue."""
        answer = self._gaps()
        skew_ms = answer.get("skew_ms")
        # Losses are dated by the clocks of their nodes: one that may be later counts, since a plan may be repeated.
        earliest_ms = since_ms - 2 * (skew_ms if isinstance(skew_ms, int) else 0)
        return [
            f"{row.get('what')} at node {row.get('node')}, at most {row.get('count_at_most')} references,"
            f" {moment(row['upto_ms'])}"
            for row in answer.get("gaps", [])
            if row.get("priority") == FOLD and (row.get("upto_ms") or since_ms) >= earliest_ms
        ]

    def _gaps(self) -> dict[str, Any]:
        return self._admin.get(f"/admin/gaps?queue={quote(self._name, safe='')}")

    @staticmethod
    def _clock_ms(answer: dict[str, Any]) -> int:
        at_ms = answer.get("at_ms")
        if type(at_ms) is not int:
            raise CommandFailed(Exit.UNAVAILABLE, "unavailable", "the node does not report its time")
        return at_ms

    def push(self, bucket_type: bytes, names: list[tuple[bytes, bytes]]) -> int:
        """See Queue: those of the first bucket, as many as the queue accepts."""
        bucket = names[0][0]
        keys = [quote_from_bytes(key, safe="") for _, key in takewhile(lambda name: name[0] == bucket, names)]
        wish = {
            "bucket_type": bucket_type.decode(),
            "bucket": quote_from_bytes(bucket, safe=""),
            "keys": keys,
            "encoding": "percent",
            "fold": True,
            "by": self._by,
        }
        taken = self._admin.post(self._path, wish).get("queued")
        if type(taken) is not int or not 0 <= taken <= len(keys):
            raise CommandFailed(
                Exit.UNAVAILABLE,
                "unavailable",
                f"the node does not report how many of {len(keys)} references it accepted",
            )
        return taken


@reconcile_group.command("repair", short_help="Plan what is sent again, and queue it.")
@click.argument("run_id")
@click.argument("act", type=click.Choice(["plan", "apply"]))
@KNOWN_RUNS_DIRECTORY
@click.option("--queue", help="The queue of the sending cluster (plan).")
@click.option(
    "--to",
    "to",
    type=click.Choice(["right", "left"]),
    default="right",
    show_default=True,
    help="The cluster that lacks it.",
)
@click.option("--rate", type=Count(1), default=1_000, show_default=True, help="References a second (plan).")
@click.option("--plan", "plan_id", help="Which plan to apply; without it the only one.")
@click.option("--again", is_flag=True, help="Queue everything again, also what was queued before (apply).")
@BY
@admin_option
@FORMAT
def repair(
    run_id: str,
    act: str,
    output: str,
    queue: str | None,
    to: str,
    rate: int,
    plan_id: str | None,
    again: bool,
    by: str,
    admin: AdminClient,
    format_: str,
) -> None:
    """Plan which objects a cluster sends again, or put the references of a plan into its queue, at fold priority.
    --admin is a node of the cluster that sends: the left one, or with --to left the right one; any other is refused."""
    from isthmus.aae.reconcile import repair as repairs

    directory = _known(output, run_id)
    if act == "plan":
        if not queue:
            raise BadInput("name the queue that sends the objects: --queue NAME")
        direction = repairs.LEFT_TO_RIGHT if to == "right" else repairs.RIGHT_TO_LEFT
        sender, _ = repairs.clusters_of(directory, direction)
        sending = AdminQueue(admin, queue, by)
        try:
            sending.warn(sending.row(sender))
        except (CommandFailed, PeerFault) as error:
            click.echo(printable(f"queue {queue} was not looked at, `apply` does: {error}"), err=True)
        found = repairs.plan(directory, queue, direction, rate)
    else:
        found = _plan(repairs.repairs_of(directory), plan_id)
        if queue not in (None, found["queue"]):
            raise BadInput(f"plan {found['plan']} is of queue {found['queue']}: make a new plan")

        def progress(done: int, objects: int) -> None:
            click.echo(f"{done} of {objects} references queued", err=True)

        found = repairs.apply(directory, found["plan"], AdminQueue(admin, found["queue"], by), progress, again=again)
    if format_ == "json":
        echo_json(found)
    else:
        shown = ((name.replace("_", " "), value) for name, value in found.items() if not isinstance(value, dict | list))
        echo_facts(shown)
        echo_facts((f"left alone, {reason}", count) for reason, count in found["left_alone"].items())
        echo_facts(("lost", one) for one in found.get("lost", ()))
    state = found.get("state")
    if state == repairs.ALREADY_DONE:
        click.echo("nothing was queued now: an earlier apply queued all of it; --again queues it once more", err=True)
    if state == repairs.LOST:
        raise CommandFailed(
            Exit.UNAVAILABLE, "references-lost", "references were lost while the plan was applied: apply it again"
        )


def _plan(every: list[dict[str, Any]], plan_id: str | None) -> dict[str, Any]:
    found = [one for one in every if plan_id in (None, one["plan"])]
    if len(found) != 1:
        known = ", ".join(one["plan"] for one in every) or "none; `plan` makes one"
        raise BadInput(f"which plan? --plan ID, of {known}")
    return found[0]


def _known(output: str, run_id: str) -> RunDirectory:
    directory = RunDirectory(output, run_id)
    if directory.read("run.json") is None:
        raise BadInput(f"there is no run or seed {run_id} in {output}")
    return directory


RUN_COLUMNS: Final = ("run", "outcome", "keys", "diverged", "segments", "of", "seconds")


def _shown(
    row_of: Callable[[RunDirectory], dict[str, Any]], directory: RunDirectory, noun: str, columns: Sequence[str]
) -> dict[str, Any]:
    """The row of a run or seed, also of one whose documents are damaged."""
    try:
        return row_of(directory)
    except LocalFault as error:
        return dict.fromkeys(columns) | {noun: directory.run_id, "outcome": "unreadable", "error": str(error)}


def _listed(directory: RunDirectory) -> dict[str, Any]:
    summary = directory.read("summary.json")
    row: dict[str, Any] = {"run": directory.run_id, "outcome": "not ended"}
    if summary is None:
        return dict.fromkeys(RUN_COLUMNS) | row
    with directory.decoding("summary.json"):
        return row | {
            "outcome": summary["outcome"],
            "keys": summary["keys"],
            "diverged": summary["verdicts"]["diverged"],
            "segments": summary["coverage"]["segments"],
            "of": summary["coverage"]["of"],
            "seconds": summary["seconds"],
        }


def _proven_by_trees(summary: dict[str, Any]) -> bool:
    return summary["outcome"] == "equal" and summary["mode"] == "trees" and not summary["coverage"]["read"]


def _echo_summary(summary: dict[str, Any]) -> None:
    cover = summary["coverage"]
    facts: list[tuple[str, Any]] = [("run", summary["run_id"]), ("outcome", summary["outcome"])]
    if summary["error"]:
        facts.append(("error", summary["error"]))
    facts += [
        ("mode", f"{summary['mode']}: {summary['why']}" if summary["mode"] else "not decided"),
        ("keys read", "0: the trees of both clusters are equal" if _proven_by_trees(summary) else summary["keys"]),
    ]
    facts += list(summary["verdicts"].items())
    facts.append(("segments", f"{cover['segments']} of {cover['of']}, {cover['read']} of them read"))
    if summary["segments_open"]:
        named = ", ".join(f"{first}-{end}" for first, end in summary["segments_open"][:20])
        more = summary["segments_open_ranges"] - min(20, len(summary["segments_open"]))
        facts += [("segments open", named + (f" and {more} more ranges" if more else ""))]
        facts += [("reason", reason) for reason in summary["reasons"][:5]]
    facts += [("bytes", summary["bytes"]), ("seconds", summary["seconds"])]
    echo_facts(facts)

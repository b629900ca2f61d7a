"""`seed`: fill a new cluster from another one, then hand it over to real-time replication without a gap.

    plan        replicas; ranges of segments; whether the target is empty; estimated size and time
    hold        the queue is positioned below everything that will be read, and suspended (`QueueHandOver`)
    copy        waves of ranges, each read and pushed by one task; clocks and tombstones are kept (`seed_tasks`)
    hand over   each partition's cursor moves to the lowest offset at which any of it was read; the queue resumes
    verify      once the target has caught up: `job`, trees first

Progress is recorded after each wave: a killed run is resumed under the same id. A range that could not be read or
pushed is retried, then named; while one is open there is no hand-over. Nothing is lost, since a change below a cursor
was part of what was read. No deleted key returns, since the held cursors keep the source's tombstones, and the target
receives them after the copy.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic, sleep, time
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from isthmus.aae.reconcile.compare_range import SideSpec
from isthmus.aae.reconcile.job import ReconcileOptions
from isthmus.aae.reconcile.job import run as reconciled
from isthmus.aae.reconcile.report import EXIT_CODES, ReconcileOutcome
from isthmus.aae.reconcile.seed_plan import ABOUT, QueueHandOver, SeedOptions, check_clusters, planned, sides_of
from isthmus.aae.reconcile.seed_tasks import NAMED_MAX, ROW, SeedChunk, SeedJob, copies, encode_chunk
from isthmus.aae.reconcile.spark_session import spark_error_line
from isthmus.aae.run_directory import SEED, ProgressFile, RunDirectory, program_version
from isthmus.queues.filters import parse_filter
from isthmus.repl.model.errors import BadInput, IsthmusError

WAVE_TASKS: Final = 4
"""Chunks of the first wave per concurrent task."""

WAVE_S: Final = 20.0
"""A wave that took less is followed by one twice as large; about what a killed run repeats."""

ROUNDS: Final = 3
"""Attempts per chunk in one run; each lasts `give_up_after_s`."""

CATCH_UP_S: Final = 120.0
"""How long the target may take to fetch the waiting changes; it is verified afterwards in any case."""

POLL_S: Final = 0.5

COPIED: Final = "copied"
"""Outcome of a seed without verification."""


Progress = Callable[[str], None]
"""Receives a line of progress."""


def check(options: SeedOptions, queue: QueueHandOver | None) -> None:
    """Raises BadInput, BadConfig."""
    if (queue is None) == bool(options.queue):
        raise BadInput("give both a queue and the admin listener of the source, or neither")
    if min(options.rows_per_second, options.max_time_s, options.settle_s) < 0 or options.give_up_after_s < 1:
        raise BadInput("rate, max-time and settle are 0 or more, and a cluster is given at least a second to answer")
    if bool(options.certificate_file) != bool(options.key_file):
        raise BadInput("a certificate and its key go together")
    parse_filter(options.filter)


def open_seed(
    source: str, target: str, options: SeedOptions, queue: QueueHandOver | None = None
) -> tuple[RunDirectory, dict[str, Any]]:
    """The run's directory and its plan, which is made unless it exists; changes nothing in a cluster. Raises as
    `seed_plan.planned`, and BadInput for a target that is not empty or a run id of another seed."""
    check(options, queue)
    directory = RunDirectory(options.output, options.run_id, SEED)
    about = {name: getattr(options, name) for name in ABOUT} | {"source": source, "target": target}
    plan = directory.read("plan.json")
    if plan is not None:
        directory.open(about)
        check_clusters(plan, sides_of(source, target, options))
        if queue is not None:
            queue.check(*map(bytes.fromhex, plan["clusters"]))
        return directory, plan
    plan = planned(source, target, options, queue)
    if plan["target_objects"] != 0 and not options.into_nonempty:
        held = "an unknown number of" if plan["target_objects"] is None else f"about {plan['target_objects']:,}"
        raise BadInput(
            f"the target, {plan['target']}, has {held} objects of bucket type {options.bucket_type}: --into-nonempty"
            " (into_nonempty) lets the seed merge with them"
        )
    directory.open(about)
    directory.write("plan.json", plan)
    return directory, plan


def seed(
    spark: SparkSession,
    source: str,
    target: str,
    options: SeedOptions,
    queue: QueueHandOver | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run, or resume, a seed; returns its summary, which has all later errors. Raises as `open_seed`."""
    directory, plan = open_seed(source, target, options, queue)
    summary = directory.read("summary.json")
    if summary is not None and summary.get("exit_code") == 0:
        return summary
    return _Seed(spark, directory, options, sides_of(source, target, options), plan, queue, progress or _silent).run()


def properties_warning(plan: Mapping[str, Any]) -> str:
    """A warning about properties of the bucket type that differ between the clusters; "" if none do."""
    differing = plan.get("properties_differing", {})
    if differing is None:
        return "whether both clusters have the same properties for the bucket type is not known; none are copied"
    differences = ", ".join(
        f"{name} {one[0]!r} at the source, {one[1]!r} at the target" for name, one in differing.items()
    )
    return differences and f"the target has other properties for the bucket type, which are not copied: {differences}"


def positions_of(done: Iterable[dict[str, Any]]) -> dict[int, int]:
    """{partition: lowest offset at which any part of it was read}: every change below it was read."""
    positions: dict[int, int] = {}
    for one in done:
        for partition, _, offset, _ in one["pieces"]:
            positions[partition] = min(offset, positions.get(partition, offset))
    return positions


class _Seed:
    """One attempt of a seed."""

    def __init__(
        self,
        spark: SparkSession,
        directory: RunDirectory,
        options: SeedOptions,
        sides: Sequence[SideSpec],
        plan: dict[str, Any],
        queue: QueueHandOver | None,
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._options = options
        self._plan = plan
        self._queue = queue
        self._progress = progress
        self._file = ProgressFile(directory)
        self._file.clusters = [str(plan["source"]), str(plan["target"])]
        self._began_s = monotonic()
        source, target = (
            side._replace(cluster=bytes.fromhex(uuid)) for side, uuid in zip(sides, plan["clusters"], strict=True)
        )
        self._tasks = spark.sparkContext.defaultParallelism
        rate = options.rows_per_second / self._tasks
        self._job = SeedJob(source, target, rate, options.give_up_after_s)
        self._chunks = {one[0]: SeedChunk(*one) for one in plan["chunks"]}
        self._reason = f"seed {directory.run_id}"
        self._done: dict[int, dict[str, Any]] = {}
        """Results of copied chunks, by number."""
        self._failures: dict[int, str] = {}
        """Errors of chunks that were tried and not copied."""
        works = sorted((directory.path / "work").glob("[0-9]*.json"))
        for path in works:
            wave = directory.read(f"work/{path.name}")
            with directory.decoding(f"work/{path.name}"):
                self._take(() if wave is None else wave["done"])
        self._waves = len(works)

    def run(self) -> dict[str, Any]:
        with self._file.attempt():
            return self._run()

    def _run(self) -> dict[str, Any]:
        warning = properties_warning(self._plan)
        if warning:
            self._progress(f"warning: {warning}")
        try:
            self._note("hold")
            self._hold()
            self._note("copy")
            self._copy()
            if len(self._done) < len(self._chunks):
                return self._summary(ReconcileOutcome.INCOMPLETE, next(iter(self._failures.values()), "time was over"))
            self._note("hand-over")
            self._place_queue()
            return self._verified()
        except IsthmusError as error:
            if isinstance(error, BadInput):
                raise
            return self._summary(ReconcileOutcome.INCOMPLETE, f"{error.reason}: {error}")

    # ---------------------------------------------------------------- copy

    def _copy(self) -> None:
        """Copy the remaining chunks in waves, until all are done, have failed TRIES times, or time is over."""
        begun = self._rows()
        for _ in range(ROUNDS):
            left = [chunk for number, chunk in self._chunks.items() if number not in self._done]
            size = WAVE_TASKS * self._tasks
            while left:
                if self._late():
                    self._progress("time is over")
                    return
                wave_began_s = monotonic()
                self._wave(left[:size])
                left = left[size:]
                size = 2 * size if monotonic() - wave_began_s < WAVE_S else size
                self._report_progress(begun)
            if len(self._done) == len(self._chunks):
                return

    def _report_progress(self, begun: int) -> None:
        objects, rows = self._plan["objects"], self._rows()
        rate = (rows - begun) / (monotonic() - self._began_s)
        left_s = None if not objects or not rate else max(0, objects - rows) / rate
        self._note("copy", left_s)
        about = "" if left_s is None else f", about {left_s:.0f} s left"
        of = "" if objects is None else f" of about {objects:,}"
        wrong = f"; {len(self._failures)} ranges could not be copied" if self._failures else ""
        self._progress(f"copied {rows:,}{of} objects, {rate:,.0f}/s{about}{wrong}")

    def _note(self, stage: str, left_s: float | None = None) -> None:
        """Write the progress: ranges that are copied, and objects beside their estimated number."""
        objects = self._plan["objects"]
        about = {} if objects is None else {"objects_about": int(objects)}
        self._file.note(stage, len(self._done), len(self._chunks), left_s, {"objects": self._rows(), **about})

    def _wave(self, chunks: list[SeedChunk]) -> None:
        copy = F.arrow_udf(copies(self._job), ROW)
        given = self._spark.createDataFrame([(bytearray(encode_chunk(one)),) for one in chunks], "chunk binary")
        try:
            rows = given.repartition(len(chunks)).select(copy("chunk").alias("row")).select("row.result").collect()
        except (PySparkException, Py4JError) as error:
            why = f"spark: {spark_error_line(error)}"
            self._failures |= {chunk.number: why for chunk in chunks}
            return
        results = [json.loads(row["result"]) for row in rows]
        self._directory.write(f"work/{self._waves:05}.json", {"at_ms": _now_ms(), "done": results})
        self._waves += 1
        self._take(results)

    def _take(self, results: Sequence[dict[str, Any]]) -> None:
        for one in results:
            number = one["chunk"]
            if one["error"]:
                self._failures[number] = one["error"]
            else:
                self._done[number] = one
                self._failures.pop(number, None)

    def _rows(self) -> int:
        return sum(one["rows"] for one in self._done.values())

    def _late(self) -> bool:
        limit_s = self._options.max_time_s
        return bool(limit_s) and monotonic() - self._began_s >= limit_s

    # ---------------------------------------------------------------- the queue

    def _hold(self) -> None:
        if self._queue is None or self._directory.read("handover.json") is not None:
            return
        source, target = (bytes.fromhex(uuid) for uuid in self._plan["clusters"])
        begin = {int(partition): offset for partition, offset in self._plan["begin"].items()}
        found = self._queue.check(source, target)
        was_held = self._queue.hold(found, begin, self._reason)
        if was_held and not self._plan["queue_is_new"]:
            self._progress(f"queue {self._options.queue} was suspended before: it stays so at the end")
        state = {"queue": self._options.queue, "state": "held", "resume": not was_held or self._plan["queue_is_new"]}
        self._directory.write("handover.json", state | {"positions": self._plan["begin"]})

    def _place_queue(self) -> None:
        positions = positions_of(self._done.values())
        known = self._directory.read("handover.json") or {"queue": "", "state": "", "resume": False}
        if known["state"] == "handed over":
            return
        record = known | {"positions": {str(partition): at for partition, at in sorted(positions.items())}}
        self._directory.write("handover.json", record)
        if self._queue is not None:
            self._queue.place(positions, self._reason, resume=known["resume"])
            self._progress(f"queue {self._queue.queue} goes on from the offsets of {len(positions)} partitions")
        self._directory.write("handover.json", record | {"state": "handed over", "at_ms": _now_ms()})

    def _catch_up(self) -> tuple[bool, str]:
        """Wait until the target has fetched the waiting changes.

        Returns whether it fetches at all, and why it did not catch up ("" if it did)."""
        if self._queue is None:
            return True, ""
        target, settle_ms = self._plan["clusters"][1], self._options.settle_s * 1000
        deadline_s = monotonic() + CATCH_UP_S
        printed = False
        while True:
            now = self._queue.status()
            queue = self._queue.queue
            if now.owner not in ("", target):
                raise BadInput(f"queue {queue} was taken by another cluster than the target")
            if not now.owner:
                why = f"no node of the target fetches from queue {queue}: its [[sink.peers]] must name it"
            elif now.waiting is None:
                why = f"not all nodes and partitions report the waiting changes of queue {queue}"
            elif not now.waiting or (now.oldest_age_ms or 0) < settle_ms:
                return True, ""
            else:
                why = f"{now.waiting:,} changes wait in queue {queue}"
            if monotonic() >= deadline_s or self._late():
                return bool(now.owner), why
            if not printed:
                self._progress(f"waiting: {why}")
                printed = True
            sleep(POLL_S)

    # ---------------------------------------------------------------- the end

    def _verified(self) -> dict[str, Any]:
        options = self._options
        if not options.verify:
            return self._summary(COPIED, "")
        self._note("catch-up")
        fetched, why = self._catch_up()
        if not fetched:
            return self._summary(ReconcileOutcome.INCOMPLETE, why)
        number = 1
        while (RunDirectory(options.output, f"{options.run_id}-verify-{number}").path / "summary.json").exists():
            number += 1
        self._note("verify")
        wanted = ReconcileOptions(
            options.output, f"{options.run_id}-verify-{number}", options.bucket_type, settle_s=options.settle_s,
            filter=self._plan["filter"] if options.queue and self._plan["filter"] != "any" else "",
            token_file=options.token_file, right_token_file=options.target_token_file, ca_file=options.ca_file,
            certificate_file=options.certificate_file, key_file=options.key_file,
        )  # fmt: skip
        left, right = (",".join(side.urls) for side in (self._job.source, self._job.target))
        found = reconciled(self._spark, left, right, wanted, self._progress)
        return self._summary(found["outcome"], found["error"] or why, found)

    def _summary(self, outcome: str, error: str, verified: dict[str, Any] | None = None) -> dict[str, Any]:
        done, failures = self._done, self._failures
        outcomes: Counter[str] = Counter()
        for one in done.values():
            outcomes.update(one["outcomes"])
        damaged = sum(one["damaged"] for one in done.values())
        lacking = damaged + outcomes["rejected"]
        if lacking and outcome in (ReconcileOutcome.EQUAL, COPIED):
            outcome, error = (
                ReconcileOutcome.DIFFER,
                f"{lacking} objects could not be copied: they are damaged, or rejected",
            )
        names = [name for one in done.values() for name in one["named"]]
        left = [chunk for number, chunk in self._chunks.items() if number not in done]
        handed = self._directory.read("handover.json")
        summary = {
            "form": 1,
            "run_id": self._directory.run_id,
            "version": program_version(),
            "options_hash": self._directory.options_hash(),
            "outcome": str(outcome),
            "exit_code": 0 if outcome == COPIED else EXIT_CODES[ReconcileOutcome(outcome)],
            "error": error,
            "source": self._plan["source"],
            "target": self._plan["target"],
            "bucket_type": self._plan["bucket_type"],
            "properties_differing": self._plan.get("properties_differing", {}),
            "objects": sum(one["rows"] for one in done.values()),
            "bytes": sum(one["bytes"] for one in done.values()),
            "outcomes": dict(outcomes),
            "damaged": damaged,
            "named": names[:NAMED_MAX],
            "chunks": {"done": len(done), "of": len(self._chunks)},
            "open": [[one.partition, one.first, one.end] for one in left[:NAMED_MAX]],
            "reasons": sorted(set(failures.values()))[:NAMED_MAX],
            "queue": self._options.queue,
            "queue_state": None if handed is None else handed["state"],
            "verified": None if verified is None else {
                name: verified[name] for name in ("run_id", "outcome", "mode", "keys", "verdicts")
            },
            "seconds": round(monotonic() - self._began_s, 1),
            "at_ms": _now_ms(),
        }  # fmt: skip
        self._directory.write("summary.json", summary)
        return summary


def _now_ms() -> int:
    return int(time() * 1000)


def _silent(_line: str) -> None:
    """Default for `progress`: prints nothing."""

"""`reconcile`: two clusters compared key by key, as a Spark job that can be killed and goes on.

    plan      trees of both sides say which segments differ; without trees, or with `full`, all are read
    first     waves of chunks, each read from both sides by one task; what differs is a candidate
    settle    a pause after the last look: what is on its way arrives
    second    the candidates again, from leaders; only what differs still, and did not arrive, is `diverged`
    report    findings and segments as Parquet, totals in summary.json

A chunk that could not be read is named and looked at again by the next run of the same id; it never counts as equal.
Who looks is `waves`', what a look does `compare_tasks`', what a run leaves on disk `run_directory`'. Rules:
docs/protocol.md I-AAE-CONFIRM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from isthmus.aae.reconcile.compare_range import SideSpec, explained, plan_of
from isthmus.aae.reconcile.compare_tasks import Job
from isthmus.aae.reconcile.run_directory import (
    FIRST,
    SECOND,
    ChunkResult,
    RunDirectory,
    RunProgress,
    SegmentChunk,
    Wave,
    standing,
)
from isthmus.aae.reconcile.segment_plan import SegmentPlan, planned
from isthmus.aae.reconcile.segment_report import few, write_findings, write_segments
from isthmus.aae.reconcile.summary import ReconcileOutcome, summary_of
from isthmus.aae.reconcile.waves import Waves, rows_of
from isthmus.queues.filters import parse_filter
from isthmus.repl.model.errors import BadInput, CodecError, IsthmusError, PeerFault

SETTLE_S: Final = 10.0
"""Pause between the looks when nobody says how long: longer than replication takes as a rule, by far."""

WAVE_TASKS: Final = 4
"""Chunks of the first wave for each task that runs at once: so many that one slow chunk is no matter."""

WAVE_S: Final = 8.0
"""A wave costs Spark about a second besides its work. One that took less than this is followed by one twice as large: a
killed run has little to do again, and a long one spends little on beginning."""

SHORT_REST_S: Final = 0.2


class ReconcileOptions(NamedTuple):
    """What is wanted. `output`: a directory that driver and workers reach; times in ms since 1970, 0 for no bound;
    `sample`: part of the segments that is looked at; `max_differences` 0: all findings are kept; `max_time_s` 0: no
    limit; `filter`: a queue's, what it leaves out is `filtered`; `rows_per_second` of each cluster, 0: no limit;
    `bodies`: objects are read and held against their rows, all of them; files are paths that all workers have, and
    `right_token_file` "" means that `token_file` is for both."""

    output: str
    run_id: str
    bucket_type: str = "default"
    bucket: bytes = b""
    modified_since_ms: int = 0
    modified_before_ms: int = 0
    full: bool = False
    sample: float = 1.0
    max_differences: int = 0
    max_time_s: float = 0
    settle_s: float = SETTLE_S
    filter: str = ""
    rows_per_second: int = 0
    give_up_after_s: int = 30
    token_file: str = ""
    ca_file: str = ""
    bodies: bool = False
    right_token_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


HOW: Final = (
    "output", "run_id", "max_time_s", "rows_per_second", "give_up_after_s", "token_file", "right_token_file", "ca_file",
    "certificate_file", "key_file",
)  # fmt: skip
"""Options that say how a run is done, which may change from one time to the next; what it is about may not. Nor may the
clusters; by which of their nodes they are reached may."""

FURTHER_REST_S: Final = 5.0
"""Longest pause between further looks; a task holds its place meanwhile."""

Told = Callable[[str], None]
"""Takes a line of progress."""


def reconcile(
    spark: SparkSession,
    left: str,
    right: str,
    options: ReconcileOptions | Mapping[str, Any],
    told: Told | None = None,
) -> DataFrame:
    """The findings of comparing two clusters, each some URLs separated by commas: a row a key that differs, its columns
    in `findings.FINDING`. Totals, and whether all was looked at, stand in summary.json of the run. Raises as `run`."""
    wanted = options if isinstance(options, ReconcileOptions) else ReconcileOptions(**options)
    run(spark, left, right, wanted, told)
    return findings_of(spark, RunDirectory(wanted.output, wanted.run_id))


def findings_of(spark: SparkSession, directory: RunDirectory) -> DataFrame:
    """A run's findings; an empty table when there are none."""
    from isthmus.aae.reconcile.findings import FINDING

    path = directory.path / "findings"
    if not any(path.glob("verdict=*")):
        return spark.createDataFrame([], FINDING)
    return spark.read.schema(FINDING).option("basePath", str(path)).parquet(str(path))


def run(
    spark: SparkSession, left: str, right: str, options: ReconcileOptions, told: Told | None = None
) -> dict[str, Any]:
    """Do the run, or what is left of it; its summary. Raises BadInput for options that mean nothing, and for a run id
    that stands for another question. A cluster that cannot be read is no exception: the summary says so."""
    check(left, right, options)
    directory = RunDirectory(options.output, options.run_id)
    wanted = {**options._asdict(), "bucket": options.bucket.hex()}
    for name in HOW:
        del wanted[name]
    directory.opened(wanted)
    go = _RunAttempt(spark, directory, options, (_urls(left), _urls(right)), told or _silent)
    urls = {"left": left, "right": right}
    known = directory.read("summary.json")
    if known is not None and known.get("outcome") in (ReconcileOutcome.EQUAL, ReconcileOutcome.DIFFER):
        if directory.read("urls.json") != urls:
            go.same_clusters(strict=True)
        return known
    directory.write("urls.json", urls)
    return go.run()


def check(left: str, right: str, options: ReconcileOptions) -> None:
    """All that can be said before Spark is started. Raises BadInput, BadConfig."""
    both = set(_urls(left)) & set(_urls(right))
    if both:
        raise BadInput(f"left and right are the same cluster: {min(both)} is on both sides")
    RunDirectory(options.output, options.run_id)
    if not 0 < options.sample <= 1:
        raise BadInput(f"sample {options.sample}: a part above 0, up to 1, is right")
    if min(options.settle_s, options.max_time_s, options.max_differences, options.rows_per_second) < 0:
        raise BadInput("settle, max-time, max-differences and the rate are 0 or more")
    if options.modified_before_ms and options.modified_before_ms <= options.modified_since_ms:
        raise BadInput("modified-before is not after modified-since: no key can be between them")
    if bool(options.certificate_file) != bool(options.key_file):
        raise BadInput("a certificate and its key go together")
    if not options.bucket_type or options.give_up_after_s < 1:
        raise BadInput("a bucket type has a name, and a cluster is given at least a second to answer")
    if options.filter:
        parse_filter(options.filter)


def check_apart(left: str, right: str, options: ReconcileOptions) -> None:
    """Ask both sides which cluster they are, before Spark is started. Raises BadInput when they are one. A side that
    does not answer is judged by the run itself."""
    plans = []
    for side in _sides((_urls(left), _urls(right)), options, 0):
        try:
            plans.append(plan_of(side))
        except (PeerFault, CodecError):
            return
    if plans[0].cluster == plans[1].cluster:
        raise BadInput(f"left and right are the same cluster, {plans[0].cluster_name}")


def _sides(
    urls: tuple[tuple[str, ...], tuple[str, ...]], options: ReconcileOptions, rows_per_second: float
) -> list[SideSpec]:
    tokens = (options.token_file, options.right_token_file or options.token_file)
    return [
        SideSpec(
            one, options.bucket_type, token, options.ca_file, b"", rows_per_second, options.give_up_after_s,
            options.certificate_file, options.key_file,
        )
        for one, token in zip(urls, tokens, strict=True)
    ]  # fmt: skip


class _RunAttempt:
    """One go at a run."""

    def __init__(
        self,
        spark: SparkSession,
        directory: RunDirectory,
        options: ReconcileOptions,
        urls: tuple[tuple[str, ...], tuple[str, ...]],
        told: Told,
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._options = options
        self._told = told
        self._began_s = monotonic()
        self._tasks = spark.sparkContext.defaultParallelism
        rate = options.rows_per_second / self._tasks
        self._sides = _sides(urls, options, rate)

    def run(self) -> dict[str, Any]:
        try:
            plan = self._plan()
        except BadInput:
            raise
        except IsthmusError as error:
            return self._failed(explained(error))
        left, right = (
            side._replace(cluster=bytes.fromhex(uuid)) for side, uuid in zip(self._sides, plan.clusters, strict=True)
        )
        options = self._options
        job = Job(
            left, right, options.bucket_type, options.bucket, options.modified_since_ms, options.modified_before_ms,
            options.filter, options.bodies, min(options.settle_s, FURTHER_REST_S),
        )  # fmt: skip
        self._told(f"{plan.mode}: {plan.segments} segments in {len(plan.chunks)} chunks ({plan.why})")
        now = standing(self._directory.waves())
        by_number = {chunk.number: chunk for chunk in plan.chunks}
        pending = [chunk for number, chunk in by_number.items() if number not in now.first]
        looks = Waves(self._spark, self._directory, job)
        self._waves(FIRST, pending, lambda number, part: looks.first(number, part, plan.narrowed(part)))
        now = standing(self._directory.waves())
        waiting = [
            by_number[number]
            for number, (_, done) in now.first.items()
            if (done.candidates or done.filtered) and (number not in now.second or now.second[number][1].error)
        ]
        if any(now.first[chunk.number][1].candidates for chunk in waiting):
            self._settle(now)
        self._waves(SECOND, waiting, looks.second)
        return self._report(plan)

    def _plan(self) -> SegmentPlan:
        kept = self._directory.read("plan.json")
        if kept is not None:
            self.same_clusters()
            with self._directory.taking("plan.json"):
                return SegmentPlan.from_json(kept)
        options = self._options
        left, right = self._sides
        made = planned(left, right, options.full or options.bodies, options.sample, self._tasks)
        self._directory.write("plan.json", made.to_json())
        return made

    def same_clusters(self, *, strict: bool = False) -> None:
        """A run goes on with the clusters that it began with, whichever nodes of theirs are named. Raises BadInput; who
        does not answer is found out by those who read, unless `strict`: then PeerFault."""
        kept = self._directory.read("plan.json")
        assert kept is not None, "a run with an end, or a plan, has a plan"
        with self._directory.taking("plan.json"):
            clusters = list(zip(self._sides, kept["clusters"], ("left", "right"), strict=True))
        for side, uuid, what in clusters:
            try:
                told = plan_of(side)
            except PeerFault:
                if strict:
                    raise
                continue
            if told.cluster.hex() != uuid:
                raise BadInput(
                    f"run {self._directory.run_id} has cluster {uuid} on the {what}, and {side.urls[0]} is of"
                    f" {told.cluster_name}, {told.cluster.hex()}: take another --run-id"
                )

    def _failed(self, why: str) -> dict[str, Any]:
        self._told(f"error: {why}")
        summary = summary_of(self._directory, None, standing(()), why, monotonic() - self._began_s, self._facts())
        self._directory.write("summary.json", summary)
        return summary

    def _facts(self) -> dict[str, Any]:
        options = self._options
        return {"max_differences": options.max_differences, "sample": options.sample, "settle_s": options.settle_s}

    # ---------------------------------------------------------------- waves

    def _late(self) -> bool:
        limit_s = self._options.max_time_s
        return bool(limit_s) and monotonic() - self._began_s >= limit_s

    def _waves(
        self, look: str, chunks: list[SegmentChunk], work: Callable[[int, list[SegmentChunk]], list[ChunkResult]]
    ) -> None:
        """Look at the chunks, a wave after the other, as long as there is time."""
        size = max(1, WAVE_TASKS * self._tasks)
        began_s, total, passed = monotonic(), len(chunks), 0
        while passed < total:
            if self._late():
                self._told(f"time is over: {total - passed} chunks are left")
                return
            wave_began_s = monotonic()
            part = chunks[passed : passed + size]
            number = standing(self._directory.waves()).number
            done = work(number, part)
            self._directory.finished(Wave(number, look, int(time() * 1000), tuple(done)))
            passed += len(part)
            size = 2 * size if monotonic() - wave_began_s < WAVE_S else size
            left_s = (monotonic() - began_s) / passed * (total - passed)
            wrong = sum(bool(one.error) for one in done)
            self._told(
                f"{look} look: {passed} of {total} chunks, about {left_s:.0f} s left"
                + (f"; {wrong} could not be read" if wrong else "")
            )

    def _settle(self, now: RunProgress) -> None:
        until_ms = now.looked_at_ms + self._options.settle_s * 1000
        rest_s = until_ms / 1000 - time()
        if rest_s > SHORT_REST_S:
            self._told(f"settling for {rest_s:.0f} s before the second look")
        while (rest_s := until_ms / 1000 - time()) > 0 and not self._late():
            sleep(min(rest_s, 1.0))

    # ---------------------------------------------------------------- report

    def _report(self, plan: SegmentPlan) -> dict[str, Any]:
        now = standing(self._directory.waves())
        self._directory.forget("summary.json")  # first: it vouches for the findings that were there
        self._write_findings(now)
        write_segments(self._directory, now, plan)
        facts = self._facts() | {"as_of": {"begin": plan.as_of, "end": self._as_of()}}
        summary = summary_of(self._directory, plan, now, "", monotonic() - self._began_s, facts)
        self._directory.write("summary.json", summary)
        (self._directory.path / "_SUCCESS").touch()
        return summary

    def _as_of(self) -> list[dict[str, Any] | None]:
        """How far both sides are applied now; None for one that does not say."""
        from isthmus.aae.reconcile.segment_plan import as_of

        found: list[dict[str, Any] | None] = []
        for side in self._sides:
            try:
                found.append(as_of(plan_of(side)))
            except IsthmusError:
                found.append(None)
        return found

    def _write_findings(self, now: RunProgress) -> None:
        path = str(self._directory.path / "findings")
        if not now.second:
            Path(path).mkdir(parents=True, exist_ok=True)
            return
        if few(now.second):
            write_findings(self._directory, now.second, self._options.max_differences)
            return
        rows = rows_of(self._spark, self._directory, now.second)
        found = rows.select(F.explode("row.findings").alias("finding")).select("finding.*")
        limit = self._options.max_differences
        if limit:
            lost = F.col("verdict") == "diverged"
            found = found.where(lost).limit(limit).unionAll(found.where(~lost).limit(limit))
        found.write.mode("overwrite").partitionBy("verdict").parquet(path)


def _urls(text: str) -> tuple[str, ...]:
    from isthmus.aae.reconcile.options import parse_options

    return parse_options({"urls": text}).urls


def _silent(_line: str) -> None:
    """Nobody wants to hear of it."""

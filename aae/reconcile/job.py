"""`reconcile`: compare two clusters key by key in a Spark job that can be killed and resumed.

    plan      the trees of both sides show which segments differ; without trees, or with `full`, all are read
    first     waves of chunks, each read from both sides by one task; keys that differ are candidates
    settle    a pause, so that changes under way arrive
    second    candidates are read again, from leaders; only a key that still differs, and did not change, is `diverged`
    report    findings and segments as Parquet, totals in summary.json

A chunk that could not be read is named, and read again by the next attempt of the run; it never counts as equal. A wave
runs as Spark tasks, or in threads of the driver where trees have narrowed it to some thousand rows: a Spark job costs a
second before its first row. Both write the same rows to the same place. A session is started by the first wave that
needs tasks, so a run whose trees are equal, or differ in little, needs no Java. Rules: docs/protocol.md I-AAE-CONFIRM.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import monotonic, sleep, time
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from isthmus.aae.reconcile.client import QueuePosition, fetch_queues
from isthmus.aae.reconcile.compare_range import SideSpec, error_line, plan_of
from isthmus.aae.reconcile.compare_tasks import FIRST_ROW, SECOND_ROW, Job, encode_chunk, first_looks, second_looks
from isthmus.aae.reconcile.findings import summarized
from isthmus.aae.reconcile.report import (
    ReconcileOutcome,
    counts_so_far,
    fits_driver,
    read_counts,
    read_payloads,
    summarize,
    write_findings,
    write_segments,
)
from isthmus.aae.reconcile.segment_plan import SegmentPlan, planned
from isthmus.aae.reconcile.spark_session import LazySession, spark_error_line
from isthmus.aae.run_directory import (
    FIRST,
    SECOND,
    ChunkResult,
    ProgressFile,
    RunDirectory,
    RunProgress,
    SegmentChunk,
    Wave,
    standing,
)
from isthmus.queues.filters import parse_filter
from isthmus.repl.model.errors import BadInput, CodecError, IsthmusError, PeerFault

SETTLE_S: Final = 10.0
"""Default pause between the looks: much longer than replication takes as a rule."""

WAVE_TASKS: Final = 4
"""Chunks of the first wave per concurrent task: enough to make a slow chunk harmless."""

WAVE_S: Final = 8.0
"""A wave costs Spark about a second of overhead. After a wave that took less than this the next one is twice as large:
a killed run repeats little, and a long one has little overhead."""

SHORT_REST_S: Final = 0.2

PLAN: Final = "plan"
SETTLE: Final = "settle"
REPORT: Final = "report"
STAGES: Final = {FIRST: "first-look", SECOND: "second-look"}
"""Stages of a run in its progress; looks by their name in waves."""


class ReconcileOptions(NamedTuple):
    """Options of a run. `output`: a directory that driver and workers reach; times in ms since 1970, 0: no bound;
    `sample`: share of the segments that is compared; `max_differences` 0: keep all findings; `max_time_s` 0: no limit;
    `filter`: a queue's filter, keys that it leaves out are `filtered`; `rows_per_second` of each cluster, 0: no limit;
    `bodies`: read all objects and compare them with their rows; files are paths that all workers have;
    `right_token_file` "": `token_file` is for both sides."""

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
"""Options that may change between the attempts of a run, since they do not change what is compared. The URLs may
change, too, but not the clusters."""

FURTHER_LOOK_PAUSE_S: Final = 5.0
"""Longest pause between further looks, during which a task keeps its executor slot."""

Progress = Callable[[str], None]
"""Receives a line of progress."""


def reconcile(
    spark: SparkSession,
    left: str,
    right: str,
    options: ReconcileOptions | Mapping[str, Any],
    progress: Progress | None = None,
) -> DataFrame:
    """Compare two clusters, each given as comma-separated URLs; returns the findings, a row per differing key with the
    columns `findings.FINDING`. Totals are in summary.json of the run. Raises as `run`."""
    wanted = options if isinstance(options, ReconcileOptions) else ReconcileOptions(**options)
    run(spark, left, right, wanted, progress)
    return findings_of(spark, RunDirectory(wanted.output, wanted.run_id))


def findings_of(spark: SparkSession, directory: RunDirectory) -> DataFrame:
    """The findings of a run, possibly empty."""
    from isthmus.aae.reconcile.findings import FINDING

    path = directory.path / "findings"
    if not any(path.glob("verdict=*")):
        return spark.createDataFrame([], FINDING)
    return spark.read.schema(FINDING).option("basePath", str(path)).parquet(str(path))


def run(
    spark: SparkSession | LazySession,
    left: str,
    right: str,
    options: ReconcileOptions,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Run, or resume, a comparison; returns its summary. A LazySession is started only if tasks are needed. Raises
    BadInput for invalid options, and for a run id of another comparison. A cluster that cannot be read raises nothing:
    the summary has the error."""
    check(left, right, options)
    directory = RunDirectory(options.output, options.run_id)
    wanted = {**options._asdict(), "bucket": options.bucket.hex()}
    for name in HOW:
        del wanted[name]
    directory.open(wanted)
    lazy = spark if isinstance(spark, LazySession) else LazySession.of(spark)
    go = _Run(lazy, directory, options, (_urls(left), _urls(right)), progress or _silent)
    urls = {"left": left, "right": right}
    known = directory.read("summary.json")
    if known is not None and known.get("outcome") in (ReconcileOutcome.EQUAL, ReconcileOutcome.DIFFER):
        if directory.read("urls.json") != urls:
            go.same_clusters(strict=True)
        return known
    directory.write("urls.json", urls)
    return go.run()


def check(left: str, right: str, options: ReconcileOptions) -> None:
    """Validate the options before Spark starts. Raises BadInput, BadConfig."""
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
    """Raise BadInput if both sides are the same cluster, before Spark starts. A side that does not respond is left to
    the run."""
    plans = []
    for side in _sides((_urls(left), _urls(right)), options):
        try:
            plans.append(plan_of(side))
        except (PeerFault, CodecError):
            return
    if plans[0].cluster == plans[1].cluster:
        raise BadInput(f"left and right are the same cluster, {plans[0].cluster_name}")


def _sides(urls: tuple[tuple[str, ...], tuple[str, ...]], options: ReconcileOptions) -> list[SideSpec]:
    """Both sides, with the rate of the whole run."""
    tokens = (options.token_file, options.right_token_file or options.token_file)
    return [
        SideSpec(
            one, options.bucket_type, token, options.ca_file, b"", options.rows_per_second, options.give_up_after_s,
            options.certificate_file, options.key_file,
        )
        for one, token in zip(urls, tokens, strict=True)
    ]  # fmt: skip


class _Run:
    """One attempt of a run."""

    def __init__(
        self,
        spark: LazySession,
        directory: RunDirectory,
        options: ReconcileOptions,
        urls: tuple[tuple[str, ...], tuple[str, ...]],
        progress: Progress,
    ) -> None:
        self._spark = spark
        self._directory = directory
        self._options = options
        self._progress = progress
        self._file = ProgressFile(directory)
        self._began_s = monotonic()
        self._sides = _sides(urls, options)

    def run(self) -> dict[str, Any]:
        with self._file.attempt():
            return self._run()

    def _run(self) -> dict[str, Any]:
        self._file.note(PLAN)
        try:
            plan = self._plan()
        except BadInput:
            raise
        except IsthmusError as error:
            return self._failed(error_line(error))
        left, right = (
            side._replace(cluster=bytes.fromhex(uuid)) for side, uuid in zip(self._sides, plan.clusters, strict=True)
        )
        options = self._options
        job = Job(
            left, right, options.bucket_type, options.bucket, options.modified_since_ms, options.modified_before_ms,
            options.filter, options.bodies, min(options.settle_s, FURTHER_LOOK_PAUSE_S),
        )  # fmt: skip
        self._file.clusters = [str(side["cluster"]) for side in plan.as_of]
        self._progress(f"{plan.mode}: {plan.segments} segments in {len(plan.chunks)} chunks ({plan.why})")
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
            job = job._replace(to_right=self._queues(left, right), to_left=self._queues(right, left))
        self._waves(SECOND, waiting, Waves(self._spark, self._directory, job).second)
        return self._report(plan)

    def _queues(self, side: SideSpec, other: SideSpec) -> tuple[QueuePosition, ...]:
        """The queues of one side for the other, asked before the second look: what is acknowledged then has arrived."""
        try:
            found = fetch_queues(side.urls, side.credentials, other.cluster)
        except IsthmusError as error:
            self._progress(f"how far queues are acknowledged is not known: {error_line(error)}")
            return ()
        for queue in found or ():
            if queue.reason:
                self._progress(f"queue {queue.queue} to {queue.cluster}: {queue.reason}")
        return found or ()

    def _plan(self) -> SegmentPlan:
        kept = self._directory.read("plan.json")
        if kept is not None:
            self.same_clusters()
            with self._directory.decoding("plan.json"):
                return SegmentPlan.from_json(kept)
        options = self._options
        left, right = self._sides
        made = planned(left, right, options.full or options.bodies, options.sample, lambda: parallelism(self._spark))
        self._directory.write("plan.json", made.to_json())
        return made

    def same_clusters(self, *, strict: bool = False) -> None:
        """Raise BadInput if a side is another cluster than at the begin of the run. A side that does not respond is
        skipped; with `strict` it raises PeerFault."""
        kept = self._directory.read("plan.json")
        assert kept is not None, "a run with an end, or a plan, has a plan"
        with self._directory.decoding("plan.json"):
            clusters = list(zip(self._sides, kept["clusters"], ("left", "right"), strict=True))
        for side, uuid, what in clusters:
            try:
                plan = plan_of(side)
            except PeerFault:
                if strict:
                    raise
                continue
            if plan.cluster.hex() != uuid:
                raise BadInput(
                    f"run {self._directory.run_id} has cluster {uuid} on the {what}, and {side.urls[0]} is of"
                    f" {plan.cluster_name}, {plan.cluster.hex()}: take another --run-id"
                )

    def _failed(self, why: str) -> dict[str, Any]:
        self._progress(f"error: {why}")
        summary = summarize(self._directory, None, standing(()), why, monotonic() - self._began_s, self._facts())
        self._directory.write("summary.json", summary)
        return summary

    def _facts(self) -> dict[str, Any]:
        options = self._options
        return {"max_differences": options.max_differences, "sample": options.sample, "settle_s": options.settle_s,
                "at_ms": int(time() * 1000)}  # fmt: skip

    # ---------------------------------------------------------------- waves

    def _late(self) -> bool:
        limit_s = self._options.max_time_s
        return bool(limit_s) and monotonic() - self._began_s >= limit_s

    def _waves(
        self, look: str, chunks: list[SegmentChunk], work: Callable[[int, list[SegmentChunk]], list[ChunkResult]]
    ) -> None:
        """Look at the chunks in waves, until the time limit."""
        size = WAVE_TASKS * (self._spark.parallelism() or OWN_THREADS)
        began_s, total, passed = monotonic(), len(chunks), 0
        if chunks:
            self._file.note(STAGES[look], 0, total, None, counts_so_far(standing(self._directory.waves())))
        while passed < total:
            if self._late():
                self._progress(f"time is over: {total - passed} chunks are left")
                return
            wave_began_s = monotonic()
            part = chunks[passed : passed + size]
            number = standing(self._directory.waves()).number
            done = work(number, part)
            self._directory.add_wave(Wave(number, look, int(time() * 1000), tuple(done)))
            passed += len(part)
            size = 2 * size if monotonic() - wave_began_s < WAVE_S else size
            left_s = (monotonic() - began_s) / passed * (total - passed)
            self._file.note(STAGES[look], passed, total, left_s, counts_so_far(standing(self._directory.waves())))
            wrong = sum(bool(one.error) for one in done)
            self._progress(
                f"{look} look: {passed} of {total} chunks, about {left_s:.0f} s left"
                + (f"; {wrong} stay open" if wrong else "")
            )

    def _settle(self, now: RunProgress) -> None:
        until_ms = now.looked_at_ms + self._options.settle_s * 1000
        rest_s = until_ms / 1000 - time()
        self._file.note(SETTLE, left_s=max(0.0, rest_s))
        if rest_s > SHORT_REST_S:
            keys = sum(done.candidates for _, done in now.first.values())
            self._progress(
                f"{keys} keys differ at the first look; waiting {rest_s:.0f} s (--settle) for changes that are on their"
                " way, then they are looked at again"
            )
        while (rest_s := until_ms / 1000 - time()) > 0 and not self._late():
            sleep(min(rest_s, 1.0))

    # ---------------------------------------------------------------- report

    def _report(self, plan: SegmentPlan) -> dict[str, Any]:
        now = standing(self._directory.waves())
        self._file.note(REPORT, counts=counts_so_far(now))
        self._directory.remove("summary.json")  # first: it vouches for the findings that were there
        self._write_findings(now)
        write_segments(self._directory, now, plan)
        found = summarized(self._directory.path / "findings")
        facts = self._facts() | {"as_of": {"begin": plan.as_of, "end": self._as_of()}, "findings": found}
        summary = summarize(self._directory, plan, now, "", monotonic() - self._began_s, facts)
        self._directory.write("summary.json", summary)
        (self._directory.path / "_SUCCESS").touch()
        return summary

    def _as_of(self) -> list[dict[str, Any] | None]:
        """The applied offsets of both sides now; None for one that does not respond."""
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
        if fits_driver(now.second):
            write_findings(self._directory, now.second, self._options.max_differences)
            return
        rows = rows_of(self._spark.get(), self._directory, now.second)
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
    pass


OWN_ROWS: Final = 50_000
"""Approximate rows per side that the driver reads in a wave by itself: no more than a task has at once."""

OWN_CHUNKS: Final = 64
"""Chunks of such a wave; each takes some requests."""

OWN_THREADS: Final = 4
"""Concurrent reads of the driver, which mostly wait for nodes; at most as many as tasks would run, if Spark was
started."""


def parallelism(spark: LazySession) -> int:
    """How many tasks run at once; starts the session."""
    return max(1, int(spark.get().sparkContext.defaultParallelism))


class Waves:
    """Runs the waves of a run. The sides of `job` have the rate of the whole run."""

    def __init__(self, spark: LazySession, directory: RunDirectory, job: Job) -> None:
        self._spark = spark
        self._directory = directory
        self._job = job

    def first(self, number: int, chunks: Sequence[SegmentChunk], rows: int | None) -> list[ChunkResult]:
        """First looks at these chunks, as wave `number`. `rows`: approximate rows per side; None: many, or unknown."""
        data = [encode_chunk(chunk) for chunk in chunks]
        if self._own(len(chunks), rows):
            look = first_looks(self._shared(self._own_threads()))
            return self._threads(number, chunks, [partial(look, _one(each, pa.binary())) for each in data])

        def rows_of_looks() -> DataFrame:
            spark = self._spark.get()
            look = first_looks(self._shared(parallelism(self._spark)))
            given = spark.createDataFrame([(bytearray(each),) for each in data], "chunk binary")
            return given.repartition(len(chunks)).select(F.arrow_udf(look, FIRST_ROW)("chunk").alias("row"))

        return self._tasks(number, chunks, rows_of_looks)

    def second(self, number: int, chunks: Sequence[SegmentChunk]) -> list[ChunkResult]:
        """Second looks at the candidates of these chunks, as wave `number`."""
        first = standing(self._directory.waves()).first
        looks = {chunk.number: first[chunk.number] for chunk in chunks}
        small = fits_driver(looks)
        if small and self._own(len(chunks), sum(_again(chunk, looks[chunk.number][1]) for chunk in chunks)):
            look = second_looks(self._shared(self._own_threads()))
            payloads = read_payloads(self._directory, looks)
            acts = [partial(look, _one(at, pa.int32()), _one(data, pa.binary())) for at, data in payloads]
            return self._threads(number, chunks, acts)

        def rows_of_looks() -> DataFrame:
            spark = self._spark.get()
            if small:
                pairs = [(at, bytearray(data)) for at, data in read_payloads(self._directory, looks)]
                given = spark.createDataFrame(pairs, "chunk int, payload binary")
            else:
                rows = rows_of(spark, self._directory, looks)
                given = rows.select(F.col("row.chunk").alias("chunk"), F.col("row.payload").alias("payload"))
            arrow = F.arrow_udf(second_looks(self._shared(parallelism(self._spark))), SECOND_ROW)
            return given.repartition(len(chunks)).select(arrow("chunk", "payload").alias("row"))

        return self._tasks(number, chunks, rows_of_looks)

    def _own_threads(self) -> int:
        return min(OWN_THREADS, self._spark.parallelism() or OWN_THREADS)

    def _shared(self, at_once: int) -> Job:
        """The job with the share of its rate that each of so many concurrent reads has."""
        left, right = (
            side._replace(rows_per_second=side.rows_per_second / at_once) for side in (self._job.left, self._job.right)
        )
        return self._job._replace(left=left, right=right)

    def _own(self, chunks: int, rows: int | None) -> bool:
        """True if the driver reads the wave itself. With bodies tasks do, because objects are large."""
        return not self._job.bodies and chunks <= OWN_CHUNKS and rows is not None and rows <= OWN_ROWS

    def _threads(
        self, number: int, chunks: Sequence[SegmentChunk], acts: Sequence[Callable[[], pa.Array]]
    ) -> list[ChunkResult]:
        path = Path(self._directory.rows_of(number))
        pool = ThreadPoolExecutor(self._own_threads(), "look")
        try:
            found = list(pool.map(lambda act: act(), acts))
            draft = path.with_name(f".{path.name}")
            for left in (draft, path):
                shutil.rmtree(left, ignore_errors=True)
            draft.mkdir(parents=True)
            pq.write_table(pa.table({"row": pa.concat_arrays(found)}), draft / "part.parquet")
            draft.replace(path)
            return self._counted(number, chunks)
        except OSError as error:
            return _lost(chunks, str(error))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _tasks(self, number: int, chunks: Sequence[SegmentChunk], rows: Callable[[], DataFrame]) -> list[ChunkResult]:
        self._spark.get()  # outside: a session that does not start ends the run
        try:
            rows().write.mode("overwrite").parquet(self._directory.rows_of(number))
            return self._counted(number, chunks)
        except (PySparkException, Py4JError, OSError) as error:
            return _lost(chunks, f"spark: {spark_error_line(error)}")

    def _counted(self, number: int, chunks: Sequence[SegmentChunk]) -> list[ChunkResult]:
        found = {done.chunk: done for done in read_counts(self._directory, number)}
        missing = [chunk.number for chunk in chunks if chunk.number not in found]
        assert not missing, f"chunks without a row: {missing}"
        return list(found.values())


def rows_of(spark: SparkSession, directory: RunDirectory, looks: Mapping[int, tuple[int, ChunkResult]]) -> DataFrame:
    """The rows that these chunks wrote in these waves."""
    by_wave: dict[int, list[int]] = {}
    for chunk, (wave, _) in looks.items():
        by_wave.setdefault(wave, []).append(chunk)
    frames = [
        spark.read.parquet(directory.rows_of(wave)).where(F.col("row.chunk").isin(numbers))
        for wave, numbers in by_wave.items()
    ]
    whole = frames[0]
    for frame in frames[1:]:
        whole = whole.unionAll(frame)
    return whole


def _again(chunk: SegmentChunk, first: ChunkResult) -> int:
    """Approximate rows per side that a second look at a chunk reads."""
    rows = max(first.left_rows, first.right_rows)
    return min(rows, first.candidates * (rows // max(1, chunk.segments) + 1))


def _one(value: bytes | int, kind: pa.DataType) -> pa.Array:
    return pa.array([value], kind)


def _lost(chunks: Sequence[SegmentChunk], why: str) -> list[ChunkResult]:
    """The results of a wave that failed."""
    return [ChunkResult(chunk.number, why, *(0,) * (len(ChunkResult._fields) - 2)) for chunk in chunks]

"""The cost of Spark jobs: reading all keys, comparing two clusters, and the effect on nodes and clients.

    python -m bench.spark [--json] [--keys 1000000] [--rate 500]
    python -m bench.spark --large 5000000 [--keys 1000000]

Two clusters, one of two nodes and one of one node, are filled with the same objects except 1,000, which differ in every
way. A session of local[2] with 2 GB compares them by segments and in full, counts the rows of the view `keys` over all
columns, and reads again while clients write at a steady rate. There is no pause between two looks (settle 0), because
no client writes during a comparison. With `--large`, only the cost per key is measured: two clusters of one node each
are read and compared in full at both sizes. Spark's processes run at a lower priority than the nodes, as those of
`isthmus reconcile` do. Needs Java 17 or later.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any, Final

import click
import msgpack
import psutil

from bench.figures import CpuTime, Figure, Target, cpu_time, machine, report
from bench.kept_connection import KeptConnection
from bench.loadgen import Phase, Result
from bench.nodes import BenchFailed, LoadProcess, Nodes
from isthmus.repl.model.objects import Content, Object, encode_object, write
from isthmus.repl.model.vclock import EMPTY, actor_of

RATE: Final = Target(300_000, "rows/s")
SEGMENTS: Final = Target(8, "s", at_least=False)
FULL: Final = Target(20, "s", at_least=False)
P99_RATIO: Final = Target(2, "× the p99 without a reader", at_least=False)
MEMORY: Final = Target(64, "MB more on a node", at_least=False)
LINEAR: Final = Target(1.25, "× the CPU per key at the smaller size", at_least=False)

TOPOLOGY: Final = """\
[clusters.left.replication]
factor = 2
partitions = 4
[[clusters.left.nodes]]
name = "l1"
[[clusters.left.nodes]]
name = "l2"
[clusters.right.replication]
factor = 1
partitions = 3
[[clusters.right.nodes]]
name = "r1"
"""
LEFT: Final = ("l1", "l2")
RIGHT: Final = ("r1",)

SINGLE: Final = """\
[clusters.left]
[[clusters.left.nodes]]
name = "l1"
[clusters.right]
[[clusters.right.nodes]]
name = "r1"
"""
"""Two clusters of one node each, for the comparison of two sizes: fewer replicas to fill."""

BUCKET: Final = b"filled"
VALUE: Final = b"v" * 200
BATCH: Final = 500
PUSHERS: Final = 4
PUSH_TIMEOUT_S: Final = 120.0
"""Connections per node: the number of pushes that a node accepts at once."""

DIFFERENCES: Final = 1_000
CONNECTIONS: Final = 8
WINDOWS: Final = 7
"""Periods of load with a reader, alternating with as many without. One disk sync of 100 ms is two percent of a period,
so the p99 of one period shows the disk; the median of several shows the reader."""

WINDOW_S: Final = 5.0

IDLE_SHARE: Final = 0.1
"""CPU of a node, as a share of a core, below which the work after filling (mostly compaction) has ended."""

IDLE_WITHIN_S: Final = 60.0
"""Limit of the wait; then the measurement starts anyway."""

A, B = actor_of(b"A" * 16, 1), actor_of(b"B" * 16, 1)


def encoded_object(*actors: bytes) -> bytes:
    """The bytes of an object that these actors have written in turn."""
    found: Object | None = None
    for number, actor in enumerate(actors, 1):
        clock = EMPTY if found is None else found.clock
        found = write(found, clock, Content(VALUE), (actor, number), 1_700_000_000)
    assert found is not None
    return encode_object(found)


OLD, NEW, OTHER = encoded_object(A), encoded_object(A, A), encoded_object(A, B)

KINDS: Final[tuple[tuple[bytes | None, bytes | None], ...]] = ((OLD, None), (None, OLD), (NEW, OLD), (NEW, OTHER))
"""Kinds of differences: the left and the right object of the first DIFFERENCES keys, cyclically."""


def objects(side: int, first: int, end: int) -> Iterator[list[bytes]]:
    """The items of pushes of the keys `first` to `end`; side 0 is the left cluster."""
    for number in range(first, end):
        data = KINDS[number % len(KINDS)][side] if number < DIFFERENCES else OLD
        if data is not None:
            yield [b"default", BUCKET, b"key-%010d" % number, data]


def fill(nodes: Nodes, names: Sequence[str], side: int, first: int, end: int) -> None:
    """Push the objects of one cluster. Raises BenchFailed when a node refuses one."""
    starts = list(range(first, end, BATCH))

    def push(at: int, name: str) -> None:
        connection = KeptConnection(nodes.http[name], PUSH_TIMEOUT_S)
        for start in starts[at :: PUSHERS * len(names)]:
            body = msgpack.packb([1, None, list(objects(side, start, min(start + BATCH, end)))])
            status, _, data = connection.send("POST", "/batch/push", body)
            outcomes = Counter(one[0] for one in msgpack.unpackb(data)) if status == 200 else {data[:200]: 1}
            if outcomes.keys() - {"applied", "superseded"}:
                raise BenchFailed(f"{name} refuses a push: {status} {dict(outcomes)}")
        connection.close()

    with ThreadPoolExecutor(PUSHERS * len(names)) as pool:
        jobs = [pool.submit(push, at, names[at % len(names)]) for at in range(PUSHERS * len(names))]
        for job in jobs:
            job.result()


def wait_idle(nodes: Nodes, names: Sequence[str]) -> None:
    """Wait until the nodes are idle, at most IDLE_WITHIN_S."""
    for _ in range(round(IDLE_WITHIN_S)):
        used = nodes.measured(lambda: time.sleep(1.0))
        if all(used[name].total < IDLE_SHARE for name in names):
            return


def session() -> Any:
    """A Spark session of two threads with the data source. Raises BenchFailed without a usable Java."""
    from isthmus.aae.reconcile.spark_session import NICE
    from isthmus.aae.reconcile.spark_session import session as started

    try:
        return started("bench", "local[2]", {"spark.driver.memory": "2g"}, nice=NICE)
    except (OSError, RuntimeError) as error:
        raise BenchFailed(f"Spark did not start: {error}") from error


def spark_cpu(spark: Any) -> CpuTime:
    """CPU seconds so far of Spark's Java process and of its living Python workers."""
    java = psutil.Process(spark.sparkContext._gateway.proc.pid)
    total = CpuTime(0.0, 0.0)
    for process in (java, *java.children(recursive=True)):
        with suppress(psutil.Error):
            one = cpu_time(process.pid)
            total = CpuTime(total.user + one.user, total.system + one.system)
    return total


def measured(spark: Any, nodes: Nodes, work: Callable[[], None]) -> tuple[float, dict[str, CpuTime]]:
    """Run `work`; return its seconds, and the CPU seconds of Spark and of each cluster process."""
    before, began_s = spark_cpu(spark), time.perf_counter()
    used = nodes.measured(work)
    seconds, after = time.perf_counter() - began_s, spark_cpu(spark)
    spent = {name: one for name, one in used.items() if one.total >= 0.01}
    return seconds, {"spark": CpuTime(after.user - before.user, after.system - before.system), **spent}


def urls(nodes: Nodes, names: Sequence[str]) -> str:
    """The URLs of some nodes, comma-separated."""
    return ",".join(nodes.http[name] for name in names)


def read_all(spark: Any, nodes: Nodes, names: Sequence[str]) -> int:
    """The number of rows of the view; Spark evaluates every column."""
    keys = spark.read.format("isthmus").option("urls", urls(nodes, names)).load()
    counts = [f"count({name})" for name in keys.columns]
    return int(keys.selectExpr("count(*) rows", *counts).first()["rows"])


def reading(spark: Any, nodes: Nodes, names: Sequence[str], keys: int) -> Figure:
    """Measure one read of all keys without other load, and the growth of a node's memory meanwhile."""
    before = {name: nodes.resident_mb(name) for name in names}
    largest = dict(before)

    def work() -> None:
        with ThreadPoolExecutor(1) as pool:
            reader = pool.submit(read_all, spark, nodes, names)
            while not reader.done():
                for name in names:
                    largest[name] = max(largest[name], nodes.resident_mb(name))
                time.sleep(0.02)
        if reader.result() < keys - DIFFERENCES:
            raise BenchFailed(f"{reader.result()} rows were read instead of about {keys}")

    seconds, cpu = measured(spark, nodes, work)
    more = max(largest[name] - before[name] for name in names)
    return Figure(
        "keys view, all columns", f"{keys:,} keys, {len(names)} nodes", keys, seconds, cpu,
        {"node_memory_more_mb": more}, RATE, keys / seconds,
    )  # fmt: skip


def comparing(
    spark: Any, nodes: Nodes, sides: tuple[Sequence[str], Sequence[str]], keys: int, output: str, run_id: str
) -> Figure:
    """Measure one run of `reconcile`, in full unless its id is `segments`, and check its findings."""
    from isthmus.aae.reconcile.job import ReconcileOptions, run

    full = run_id != "segments"
    options = ReconcileOptions(output, run_id, full=full, settle_s=0.0)
    left, right = (urls(nodes, names) for names in sides)
    summary: dict[str, Any] = {}
    seconds, cpu = measured(spark, nodes, lambda: summary.update(run(spark, left, right, options)))
    found = (summary["outcome"], summary["verdicts"]["diverged"])
    if found != ("differ", DIFFERENCES):
        raise BenchFailed(f"reconcile returned {found}: {summary['error'] or summary['reasons']}")
    values = {"keys_read": float(summary["keys"]), "differences": float(found[1])}
    work = "reconcile --full" if full else "reconcile by segments, first job of the session"
    target = FULL if full else SEGMENTS
    return Figure(work, f"{keys:,} against {keys:,} keys", keys, seconds, cpu, values, target, seconds)


def writes_during_reads(spark: Any, nodes: Nodes, load: LoadProcess, keys: int, rate: float) -> Figure:
    """Measure the p99 of steady writes with and without a continuous reader: the medians of alternating periods."""
    count = round(rate * WINDOW_S)
    phase = Phase("put", first=0, count=count, space=count, connections=CONNECTIONS, rate=rate)
    load.run(phase)  # so that the keys exist and their contexts are known
    wait_idle(nodes, LEFT)
    quiet: list[Result] = []
    busy: list[Result] = []
    passes, seconds = 0, 0.0
    for _ in range(WINDOWS):
        quiet.append(load.run(phase))
        with ThreadPoolExecutor(1) as pool:
            began_s = time.perf_counter()
            writing = pool.submit(load.run, phase)
            while not writing.done():
                read_all(spark, nodes, LEFT)
                passes += 1
            seconds += time.perf_counter() - began_s
            busy.append(writing.result())
    p99s = [[one.p99_ms for one in each] for each in (quiet, busy)]
    values = {
        "p99_quiet_ms": median(p99s[0]), "p99_reading_ms": median(p99s[1]),
        "p50_quiet_ms": median(one.p50_ms for one in quiet), "p50_reading_ms": median(one.p50_ms for one in busy),
        "p99_quiet_worst_ms": max(p99s[0]), "p99_reading_worst_ms": max(p99s[1]),
        "rows_per_s_meanwhile": passes * keys / seconds,
    }  # fmt: skip
    work = f"{rate:g} PUT/s during reads, median of {WINDOWS} periods"
    return Figure(
        work, f"{keys:,} keys", 0, 0.0, {}, values, P99_RATIO, values["p99_reading_ms"] / values["p99_quiet_ms"]
    )


def cpu_per_key(figure: Figure) -> float:
    """CPU microseconds per key, over all processes."""
    return sum(one.total for one in figure.cpu.values()) * 1e6 / figure.objects


def compare_and_read(keys: int, rate: float, output: str) -> list[Figure]:
    """All figures at one size."""
    with Nodes(TOPOLOGY, None) as nodes, LoadProcess(nodes.http[LEFT[0]]) as load:
        fill(nodes, LEFT, 0, 0, keys)
        fill(nodes, RIGHT, 1, 0, keys)
        spark = session()
        figures = [comparing(spark, nodes, (LEFT, RIGHT), keys, output, "segments")]
        figures.append(comparing(spark, nodes, (LEFT, RIGHT), keys, output, "full"))
        read_all(spark, nodes, LEFT)  # Java is warmed up from here on
        alone = reading(spark, nodes, LEFT, keys)
        memory = Figure(
            "memory of a node while it serves", alone.key_space, 0, 0.0, {}, {}, MEMORY,
            alone.values["node_memory_more_mb"],
        )  # fmt: skip
        figures += [alone, memory, writes_during_reads(spark, nodes, load, keys, rate)]
        spark.stop()
    return figures


def cost_at_two_sizes(keys: int, large: int, output: str) -> list[Figure]:
    """The cost per key of reading and of comparing, at two sizes."""
    left, right = ("l1",), ("r1",)
    with Nodes(SINGLE, None) as nodes:
        spark = session()
        found: list[tuple[Figure, Figure]] = []
        for first, end in ((0, keys), (keys, large)):
            with ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(fill, nodes, names, side, first, end) for side, names in enumerate((left, right))]
                for job in jobs:
                    job.result()
            wait_idle(nodes, (*left, *right))
            if not found:  # Java is warmed up from here on
                for _ in range(2):
                    read_all(spark, nodes, right)
                comparing(spark, nodes, (left, right), end, output, "warm")
            read = reading(spark, nodes, right, end)
            found.append((read, comparing(spark, nodes, (left, right), end, output, f"full-{end}")))
        spark.stop()
    figures: list[Figure] = []
    for what, *both in zip(("read", "compare in full"), *found, strict=True):
        small, grown = (replace(one, target=None, measured=None) for one in both)  # their targets are for another size
        values = {"small_us_a_key": cpu_per_key(small), "large_us_a_key": cpu_per_key(grown)}
        times = values["large_us_a_key"] / values["small_us_a_key"]
        sizes = f"{large:,} against {keys:,} keys"
        figures += [small, grown, Figure(f"cost per key: {what}", sizes, 0, 0.0, {}, values, LINEAR, times)]
    return figures


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--keys", default=1_000_000, show_default=True, help="Keys in each cluster.")
@click.option(
    "--large", type=click.IntRange(1), help="Only compare the cost per key at this number of keys with that at --keys."
)
@click.option("--rate", default=500.0, show_default=True, help="Writes per second during the reads.")
def main(as_json: bool, keys: int, large: int | None, rate: float) -> None:
    """Measure reading and reconciliation by Spark."""
    if large is not None and large <= keys:
        raise click.UsageError("--large must be more than --keys")
    where = machine()
    try:
        with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as output:
            figures = compare_and_read(keys, rate, output) if large is None else cost_at_two_sizes(keys, large, output)
    except BenchFailed as error:
        raise SystemExit(f"bench.spark: {error}") from error
    report("spark", where, figures, as_json, [])


if __name__ == "__main__":
    main()

"""The cost of Spark's jobs: reading all keys, comparing two clusters, and their effect on nodes and clients.

    python -m bench.spark [--json] [--keys 1000000] [--rate 500]
    python -m bench.spark --large 5000000 [--keys 1000000]

Two clusters, of two nodes and of one, are filled with the same objects but for 1,000, which differ in every way. A
session of local[2] with 2 GB then compares them by segments and in full, counts the rows of the view `keys` over all
columns, and reads on while clients write at a steady rate. Looks follow each other at once (settle 0): nobody writes
while clusters are compared. With `--large` it is another comparison alone: two clusters of one node each are read and
compared in full at both sizes, and what a key costs is held against what it cost before. Spark's processes run at a
lower priority than the nodes, as those of `isthmus reconcile` do. Needs Java 17 or later.
"""

from __future__ import annotations

import http.client
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import click
import msgpack
import psutil

from bench.figures import CpuTime, Figure, Target, cpu_time, machine, report
from bench.loadgen import Phase, Result
from bench.nodes import BenchFailed, LoadProcess, Nodes
from isthmus.repl.model.objects import Content, Object, encode_object, write
from isthmus.repl.model.vclock import EMPTY, actor_of

RATE: Final = Target(300_000, "rows/s")
SEGMENTS: Final = Target(8, "s", at_least=False)
FULL: Final = Target(20, "s", at_least=False)
SLOWER: Final = Target(2, "× the p99 without a reader", at_least=False)
MORE: Final = Target(64, "MB more on a node", at_least=False)
LINEAR: Final = Target(1.25, "× the CPU of a key of the smaller one", at_least=False)

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
"""Keys at the smaller of two sizes between which the cost per key is compared: half the keys to fill."""

BUCKET: Final = b"filled"
VALUE: Final = b"v" * 200
BATCH: Final = 500
PUSHERS: Final = 4
"""Connections to each node: as many as it takes pushes at once."""

DIFFERENCES: Final = 1_000
CONNECTIONS: Final = 8
WINDOWS: Final = 7
"""Periods of load with a reader, alternating with as many without: one disk sync of 100 ms is one percent of five
seconds, so single percentiles show the disk; their medians show the reader."""

WINDOW_S: Final = 5.0

IDLE_SHARE: Final = 0.1
"""CPU of a node, as a share of a core, below which work left over by filling, compaction above all, is done."""

IDLE_WITHIN_S: Final = 60.0
"""How long that is waited for. Then it is measured as it is."""

A, B = actor_of(b"A" * 16, 1), actor_of(b"B" * 16, 1)


def made(*actors: bytes) -> bytes:
    """An object that these actors have written, one after the other."""
    found: Object | None = None
    for number, actor in enumerate(actors, 1):
        clock = EMPTY if found is None else found.clock
        found = write(found, clock, Content(VALUE), (actor, number), 1_700_000_000)
    assert found is not None
    return encode_object(found)


OLD, NEW, OTHER = made(A), made(A, A), made(A, B)

KINDS: Final[tuple[tuple[bytes | None, bytes | None], ...]] = ((OLD, None), (None, OLD), (NEW, OLD), (NEW, OTHER))
"""Kinds of differences: the left and the right object of the first DIFFERENCES keys, in turn."""


def objects(side: int, first: int, end: int) -> Iterator[list[bytes]]:
    """The items of a push, of the keys with these numbers; `side` 0 is the left cluster."""
    for number in range(first, end):
        data = KINDS[number % len(KINDS)][side] if number < DIFFERENCES else OLD
        if data is not None:
            yield [b"default", BUCKET, b"key-%010d" % number, data]


def fill(nodes: Nodes, names: Sequence[str], side: int, first: int, end: int) -> None:
    """Push the objects of a cluster. Raises BenchFailed for the first that is not taken."""
    starts = list(range(first, end, BATCH))

    def push(at: int, name: str) -> None:
        url = urlsplit(nodes.http[name])
        connection = http.client.HTTPConnection(url.hostname or "", url.port, timeout=120)
        for start in starts[at :: PUSHERS * len(names)]:
            body = msgpack.packb([1, None, list(objects(side, start, min(start + BATCH, end)))])
            connection.request("POST", "/batch/push", body)
            answer = connection.getresponse()
            data = answer.read()
            told = Counter(one[0] for one in msgpack.unpackb(data)) if answer.status == 200 else {data[:200]: 1}
            if told.keys() - {"applied", "superseded"}:
                raise BenchFailed(f"{name} does not take what it is filled with: {answer.status} {dict(told)}")

    with ThreadPoolExecutor(PUSHERS * len(names)) as pool:
        jobs = [pool.submit(push, at, names[at % len(names)]) for at in range(PUSHERS * len(names))]
        for job in jobs:
            job.result()


def settled(nodes: Nodes, names: Sequence[str]) -> None:
    """Wait until nodes have nothing to do, or IDLE_WITHIN_S."""
    for _ in range(round(IDLE_WITHIN_S)):
        used = nodes.measured(lambda: time.sleep(1.0))
        if all(used[name].total < IDLE_SHARE for name in names):
            return


def session() -> Any:
    """A session of two threads with the data source. Raises BenchFailed without PySpark's Java."""
    from isthmus.aae.reconcile.spark_session import session as started

    try:
        return started("bench", "local[2]", {"spark.driver.memory": "2g"}, stand_back=True)
    except (OSError, RuntimeError) as error:
        raise BenchFailed(f"no session: {error}") from error


def spark_cpu(spark: Any) -> CpuTime:
    """CPU seconds of Spark's Java and its Python workers so far, as far as they live."""
    java = psutil.Process(spark.sparkContext._gateway.proc.pid)
    total = CpuTime(0.0, 0.0)
    for process in (java, *java.children(recursive=True)):
        with suppress(psutil.Error):
            one = cpu_time(process.pid)
            total = CpuTime(total.user + one.user, total.system + one.system)
    return total


def measured(spark: Any, nodes: Nodes, work: Callable[[], None]) -> tuple[float, dict[str, CpuTime]]:
    """Seconds, and CPU seconds of Spark and of each process of the clusters, of some work."""
    before, began_s = spark_cpu(spark), time.perf_counter()
    used = nodes.measured(work)
    seconds, after = time.perf_counter() - began_s, spark_cpu(spark)
    spent = {name: one for name, one in used.items() if one.total >= 0.01}
    return seconds, {"spark": CpuTime(after.user - before.user, after.system - before.system), **spent}


def urls(nodes: Nodes, names: Sequence[str]) -> str:
    """The URLs of a cluster's nodes."""
    return ",".join(nodes.http[name] for name in names)


def read_all(spark: Any, nodes: Nodes, names: Sequence[str]) -> int:
    """Rows of the view, every column of each looked at by Spark."""
    keys = spark.read.format("isthmus").option("urls", urls(nodes, names)).load()
    counts = [f"count({name})" for name in keys.columns]
    return int(keys.selectExpr("count(*) rows", *counts).first()["rows"])


def reading(spark: Any, nodes: Nodes, names: Sequence[str], keys: int) -> Figure:
    """One read of everything, alone, and how much larger a node is at its largest meanwhile."""
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
            raise BenchFailed(f"{reader.result()} rows were read, about {keys} were written")

    seconds, cpu = measured(spark, nodes, work)
    more = max(largest[name] - before[name] for name in names)
    return Figure(
        "keys view, all columns", f"{keys:,} keys, {len(names)} nodes", keys, seconds, cpu,
        {"node_memory_more_mb": more}, RATE, keys / seconds,
    )  # fmt: skip


def comparing(
    spark: Any, nodes: Nodes, sides: tuple[Sequence[str], Sequence[str]], keys: int, output: str, run_id: str
) -> Figure:
    """One run of `reconcile`, in full unless its id is `segments`, whose findings are those that were made."""
    from isthmus.aae.reconcile.job import ReconcileOptions, run

    full = run_id != "segments"
    options = ReconcileOptions(output, run_id, full=full, settle_s=0.0)
    left, right = (urls(nodes, names) for names in sides)
    summary: dict[str, Any] = {}
    seconds, cpu = measured(spark, nodes, lambda: summary.update(run(spark, left, right, options)))
    found = (summary["outcome"], summary["verdicts"]["diverged"])
    if found != ("differ", DIFFERENCES):
        raise BenchFailed(f"reconcile says {found}, with {summary['error'] or summary['reasons']}")
    values = {"keys_read": float(summary["keys"]), "differences": float(found[1])}
    work = "reconcile --full" if full else "reconcile by segments, first job of the session"
    target = FULL if full else SEGMENTS
    return Figure(work, f"{keys:,} against {keys:,} keys", keys, seconds, cpu, values, target, seconds)


def beside(spark: Any, nodes: Nodes, load: LoadProcess, keys: int, rate: float) -> Figure:
    """p99 of steady writes while all is read again and again, against the p99 without: medians of stretches in turn."""
    count = round(rate * WINDOW_S)
    phase = Phase("put", first=0, count=count, space=count, connections=CONNECTIONS, rate=rate)
    load.run(phase)  # the keys are there, and their contexts known
    settled(nodes, LEFT)
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
    work = f"{rate:g} PUT/s beside a reader, median of {WINDOWS} stretches"
    return Figure(work, f"{keys:,} keys", 0, 0.0, {}, values, SLOWER, values["p99_reading_ms"] / values["p99_quiet_ms"])


def cpu_per_key(figure: Figure) -> float:
    """Microseconds of all processes."""
    return sum(one.total for one in figure.cpu.values()) * 1e6 / figure.objects


def whole(keys: int, rate: float, output: str) -> list[Figure]:
    """All at one size."""
    with Nodes(TOPOLOGY, None) as nodes, LoadProcess(nodes.http[LEFT[0]]) as load:
        fill(nodes, LEFT, 0, 0, keys)
        fill(nodes, RIGHT, 1, 0, keys)
        spark = session()
        figures = [comparing(spark, nodes, (LEFT, RIGHT), keys, output, "segments")]
        figures.append(comparing(spark, nodes, (LEFT, RIGHT), keys, output, "full"))
        read_all(spark, nodes, LEFT)  # the Java is warm from here on
        alone = reading(spark, nodes, LEFT, keys)
        memory = Figure(
            "memory of a node while it serves", alone.key_space, 0, 0.0, {}, {}, MORE,
            alone.values["node_memory_more_mb"],
        )  # fmt: skip
        figures += [alone, memory, beside(spark, nodes, load, keys, rate)]
        spark.stop()
    return figures


def growing(keys: int, large: int, output: str) -> list[Figure]:
    """The cost per key at two sizes, of reading and of comparing."""
    left, right = ("l1",), ("r1",)
    with Nodes(SINGLE, None) as nodes:
        spark = session()
        found: list[tuple[Figure, Figure]] = []
        for first, end in ((0, keys), (keys, large)):
            with ThreadPoolExecutor(2) as pool:
                jobs = [pool.submit(fill, nodes, names, side, first, end) for side, names in enumerate((left, right))]
                for job in jobs:
                    job.result()
            settled(nodes, (*left, *right))
            if not found:  # the Java is warm from here on
                for _ in range(2):
                    read_all(spark, nodes, right)
                comparing(spark, nodes, (left, right), end, output, "warm")
            read = reading(spark, nodes, right, end)
            found.append((read, comparing(spark, nodes, (left, right), end, output, f"full-{end}")))
        spark.stop()
    figures: list[Figure] = []
    for what, *both in zip(("read", "compare in full"), *found, strict=True):
        small, grown = (replace(one, target=None, measured=None) for one in both)  # those are of other sizes
        values = {"small_us_a_key": cpu_per_key(small), "large_us_a_key": cpu_per_key(grown)}
        times = values["large_us_a_key"] / values["small_us_a_key"]
        sizes = f"{large:,} against {keys:,} keys"
        figures += [small, grown, Figure(f"cost of a key: {what}", sizes, 0, 0.0, {}, values, LINEAR, times)]
    return figures


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--large", type=click.IntRange(1), help="Only what a key costs with so many, and with --keys.")
@click.option("--rate", default=500.0, show_default=True, help="Writes a second beside the reader.")
def main(as_json: bool, keys: int, large: int | None, rate: float) -> None:
    """Measure and print."""
    if large is not None and large <= keys:
        raise click.UsageError("--large is more than --keys")
    where = machine()
    try:
        with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as output:
            figures = whole(keys, rate, output) if large is None else growing(keys, large, output)
    except BenchFailed as error:
        raise SystemExit(f"bench.spark: {error}") from error
    report("spark", where, figures, as_json, [])


if __name__ == "__main__":
    main()

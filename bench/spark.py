"""How fast Spark reads a cluster's keys, what that costs, and what clients notice of it.

    python -m bench.spark [--json] [--keys 1000000] [--rate 500]

Two nodes, four partitions; a session of local[2] counts the rows of the view `keys` over all columns, first with
nothing else to do, then while clients write to one node at a steady rate, whose latency without a reader was measured
before.
Needs Java 17 or later.
"""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import click

from bench.figures import Figure, Target, machine, report
from bench.loadgen import Phase, Result
from bench.nodes import BenchFailed, LoadProcess, Nodes

RATE: Final = Target(300_000, "rows/s")
SLOWER: Final = Target(2, "× the p99 without a reader", at_least=False)
MORE: Final = Target(64, "MB more on a node", at_least=False)

TOPOLOGY: Final = """\
[clusters.bench.replication]
factor = 2
partitions = 4
[[clusters.bench.nodes]]
name = "n1"
[[clusters.bench.nodes]]
name = "n2"
"""

CONNECTIONS: Final = 8
MEASURED_MIN_S: Final = 10.0
"""Least time of load for a percentile that says something."""


def session() -> Any:
    """A session of two threads with the data source. Raises BenchFailed without PySpark's Java."""
    from pyspark.sql import SparkSession

    from aae.reconcile import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    try:
        spark = SparkSession.builder.master("local[2]").config(map=options).getOrCreate()
    except (OSError, RuntimeError) as error:
        raise BenchFailed(f"no session: {error}") from error
    register(spark)
    return spark


def read_all(spark: Any, nodes: Nodes) -> int:
    """Rows of the view, every column of each looked at by Spark."""
    keys = spark.read.format("isthmus").option("urls", ",".join(nodes.http.values())).load()
    counts = [f"count({name})" for name in keys.columns]
    return int(keys.selectExpr("count(*) rows", *counts).first()["rows"])


def reading(spark: Any, nodes: Nodes, keys: int) -> Figure:
    """One read of everything, alone."""
    before = {name: nodes.resident_mb(name) for name in nodes.http}
    seconds = 0.0

    def work() -> None:
        nonlocal seconds
        began_s = time.perf_counter()
        rows = read_all(spark, nodes)
        seconds = time.perf_counter() - began_s
        if rows != keys:
            raise BenchFailed(f"{rows} rows were read, {keys} were written")

    cpu = nodes.measured(work)
    more = max(nodes.resident_mb(name) - before[name] for name in nodes.http)
    return Figure(
        "keys view, local[2]", f"{keys:,} keys", keys, seconds, cpu, {"node_memory_more_mb": more}, RATE, keys / seconds
    )  # fmt: skip


def beside(spark: Any, nodes: Nodes, load: LoadProcess, keys: int, rate: float) -> Figure:
    """p99 of steady writes while all is read again and again, against the p99 without."""
    phase = Phase("put", first=0, count=round(rate * MEASURED_MIN_S), space=keys, connections=CONNECTIONS, rate=rate)
    quiet: Result = load.run(phase)
    passes = 0
    with ThreadPoolExecutor(1) as pool:
        began_s = time.perf_counter()
        writing = pool.submit(load.run, phase)
        while not writing.done():
            read_all(spark, nodes)
            passes += 1
        seconds = time.perf_counter() - began_s
        busy = writing.result()
    times = busy.p99_ms / quiet.p99_ms
    values = {"p99_quiet_ms": quiet.p99_ms, "p99_reading_ms": busy.p99_ms, "reads": float(passes), "seconds": seconds}
    return Figure("writes beside a reader", f"{keys:,} keys", 0, 0.0, {}, values, SLOWER, times)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--keys", default=1_000_000, show_default=True)
@click.option("--rate", default=500.0, show_default=True, help="Writes a second beside the reader.")
def main(as_json: bool, keys: int, rate: float) -> None:
    """Measure and print."""
    where = machine()
    try:
        with Nodes(TOPOLOGY, None) as nodes, LoadProcess(next(iter(nodes.http.values()))) as load:
            load.run(Phase("batch", count=keys, connections=4, batch=500, limit_s=1_800))
            spark = session()
            read_all(spark, nodes)  # the first one starts Python's workers
            alone = reading(spark, nodes, keys)
            memory = Figure(
                "memory of a node while it serves", alone.key_space, 0, 0.0, {}, {}, MORE,
                alone.values["node_memory_more_mb"],
            )  # fmt: skip
            figures = [alone, memory, beside(spark, nodes, load, keys, rate)]
            spark.stop()
    except BenchFailed as error:
        raise SystemExit(f"bench.spark: {error}") from error
    report("spark", where, figures, as_json, [])


if __name__ == "__main__":
    main()

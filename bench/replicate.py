"""The cost of replicating cluster A to cluster B, and the lag until B has what A acknowledged.

    python -m bench.replicate [--json] [--profile] [--keys 100000] [--rate 1000] [--paced-seconds 20]
                              [--overwrite 1000000] [--three]

Two clusters of one node, fsync on both sides, 1 KB objects, fresh keys; with `--overwrite` also keys that are written
over in random order, with `--three` also three nodes a side. A measurement of replication ends when A's queue is empty,
and counts the CPU seconds of all nodes with A's ingest. Lag is from A's append to B's apply, as B's sink reports it
(wall clocks of one machine).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from bench.figures import CpuTime, Figure, Target, machine, report
from bench.loadgen import VALUE_BYTES, Phase, Result
from bench.nodes import TWO_CLUSTERS, BenchFailed, LoadProcess, Nodes
from bench.profiling import Profiler
from isthmus.repl.model.errors import IsthmusError

SINGLE_COST: Final = Target(8, "CPU s per 100,000 objects, all nodes", at_least=False)
BATCH_COST: Final = Target(4, "CPU s per 100,000 objects, all nodes", at_least=False)
OVERWRITE_COST: Final = Target(7, "CPU s per 100,000 objects, all nodes", at_least=False)
BATCH_RATE: Final = Target(25_000, "objects/s sustained")
LAG_P50: Final = Target(2, "ms, p50 of the lag", at_least=False)
LAG_P99: Final = Target(10, "ms, p99 of the lag", at_least=False)
DRAIN: Final = Target(4, "s until the backlog is gone", at_least=False)
FIRST_OBJECT: Final = Target(200, "ms until the first change is there", at_least=False)
ONE_A_FETCH: Final = Target(2_000, "objects/s")
QUEUE_MEMORY: Final = Target(150, "MB more than before", at_least=False)
IDLE_MEMORY: Final = Target(120, "MB resident", at_least=False)
IDLE_CPU: Final = Target(1, "% of a core", at_least=False)

SINGLE_CONNECTIONS: Final = 32
BATCH_CONNECTIONS: Final = 8
MANY_SINGLE_CONNECTIONS: Final = 512
MANY_BATCH_CONNECTIONS: Final = 32
"""The number of concurrent clients determines how many writes share a group commit, and a partition's part of it: with
few, a node pays per object what many objects share otherwise. So both are measured."""

BATCH_OBJECTS: Final = 100
IDLE_SECONDS: Final = 10.0
DRAIN_TIMEOUT_S: Final = 180.0
FETCH_TIMEOUT_S: Final = 10.0
"""A suspended sink starts no fetch; one that waits in a long poll ends within 5 s."""

ONE_A_FETCH_SHARE: Final = 5
"""A fifth of the keys is enough to measure the cost of a fetch."""

FIRST_POLL_S: Final = 0.005

ONE_AT_A_TIME: Final = (
    TWO_CLUSTERS
    + """
[clusters.b.sink]
batch = 1
"""
)

SIX_NODES: Final = (
    "".join(f'[[clusters.{side}.nodes]]\nname = "{side}{number}"\n' for side in "ab" for number in (1, 2, 3))
    + """
[clusters.a.replication]
factor = 3
min_isr = 2
[[clusters.a.queues]]
name = "to-b"
[clusters.b.replication]
factor = 3
min_isr = 2
[[clusters.b.sink.peers]]
cluster = "a"
queue = "to-b"
"""
)

SETTLE_SECONDS: Final = 2.0
"""Quiet time before a measurement, so that work left over by the previous one is done."""

REST_SECONDS: Final = 65.0
"""After a load: time for two checkpoints, after which a node gives memory back."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--profile", is_flag=True, help="Record where both nodes' time goes in each measurement.")
@click.option(
    "--keys", default=100_000, show_default=True, help="Objects of each unpaced measurement and of the backlog."
)
@click.option("--rate", default=1_000.0, show_default=True, help="PUTs a second at which the lag is measured.")
@click.option("--paced-seconds", default=20.0, show_default=True, help="How long the lag is measured.")
@click.option("--limit", "limit_s", default=120.0, show_default=True, help="Seconds after which a load ends.")
@click.option(
    "--overwrite", "overwritten", default=0, show_default=True, help="Keys that are filled, then written over; 0: none."
)
@click.option("--references", default=300_000, show_default=True, help="References of the queue whose memory is taken.")
@click.option("--three", is_flag=True, help="Then also three nodes a side.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Where data lies; decides what an fsync costs."
)
def main(
    as_json: bool,
    profile: bool,
    keys: int,
    rate: float,
    paced_seconds: float,
    limit_s: float,
    overwritten: int,
    references: int,
    three: bool,
    directory: Path | None,
) -> None:
    """Cost, lag and catch-up of replication from A to B."""
    figures: list[Figure] = []
    profiled: list[str] = []

    def stage(topology: str, part: str, measure: Callable[[_Runs], None]) -> None:
        with Nodes(topology, None if directory is None else directory / part) as nodes:
            first = next(url for name, url in nodes.http.items() if name.startswith("a"))
            with LoadProcess(first) as load:
                runs = _Runs(nodes, load, profile, limit_s)
                measure(runs)
        figures.extend(runs.figures)
        profiled.extend(runs.profile)

    def pair(runs: _Runs) -> None:
        runs.idle("just started")
        runs.lag(rate, paced_seconds)
        runs.sustained("PUT, one object a request", "put", SINGLE_CONNECTIONS, keys, SINGLE_COST)
        runs.sustained("PUT, batches of 100", "batch", BATCH_CONNECTIONS, keys, BATCH_COST)
        runs.backlog(keys)
        if overwritten:
            runs.overwrite(overwritten)
        runs.references(references)
        runs.idle("after all that and a minute's rest", REST_SECONDS)

    def many(runs: _Runs) -> None:
        runs.sustained("PUT, one object a request", "put", MANY_SINGLE_CONNECTIONS, keys, SINGLE_COST)
        runs.sustained("PUT, batches of 100", "batch", MANY_BATCH_CONNECTIONS, keys, BATCH_COST)

    def six(runs: _Runs) -> None:
        runs.sustained("3 + 3 nodes: PUT, one object a request", "put", SINGLE_CONNECTIONS, keys, None)
        runs.sustained("3 + 3 nodes: PUT, batches of 100", "batch", BATCH_CONNECTIONS, keys, None)

    try:
        where = machine()
        stage(TWO_CLUSTERS, "pair", pair)
        stage(TWO_CLUSTERS, "many", many)
        stage(ONE_AT_A_TIME, "one-at-a-time", lambda runs: runs.one_a_fetch(max(1, keys // ONE_A_FETCH_SHARE)))
        if three:
            stage(SIX_NODES, "six", six)
        report("replicate", where, figures, as_json, profiled)
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Runs:
    def __init__(self, nodes: Nodes, load: LoadProcess, profile: bool, limit_s: float) -> None:
        self._nodes = nodes
        self._load = load
        self._profile = profile
        self._limit_s = limit_s
        self._first = 0
        self._sources = sorted(name for name in nodes.admin if name.startswith("a"))
        self._sinks = sorted(name for name in nodes.admin if name.startswith("b"))
        self._names = [*self._sources, *self._sinks]
        nodes.pids["source of load"] = load.pid
        self.figures: list[Figure] = []
        self.profile: list[str] = []

    def idle(self, when: str, rest_s: float = SETTLE_SECONDS) -> None:
        """Memory and CPU of nodes that have had nothing to do for `rest_s`."""
        time.sleep(rest_s)
        cpu = self._nodes.measured(lambda: time.sleep(IDLE_SECONDS))
        for name in ("a", "b"):
            share = 100 * cpu[name].total / IDLE_SECONDS
            space = f"{self._first:,} keys held"
            memory = self._nodes.resident_mb(name)
            self.figures.append(Figure(f"idle node {name}, {when}: memory", space, target=IDLE_MEMORY, measured=memory))
            self.figures.append(Figure(f"idle node {name}, {when}: CPU", space, target=IDLE_CPU, measured=share))

    def lag(self, rate: float, seconds: float) -> None:
        """Lag while clients write at a given rate. Before any unpaced load: the sink's figures are of all time."""
        count = int(rate * seconds)
        phase = self._phase("put", count, SINGLE_CONNECTIONS, rate)
        figure = self._measure(f"PUT at {rate:,.0f}/s", count, phase)
        link = self._nodes.sink("b")
        p50, p99 = float(link["lag_ms_p50"]), float(link["lag_ms_p99"])
        self._retarget(figure, LAG_P50, p50)
        self.figures.append(Figure(figure.work, figure.key_space, target=LAG_P99, measured=p99))

    def sustained(self, work: str, kind: str, connections: int, count: int, target: Target | None) -> None:
        """As fast as A takes it, until B has all of it."""
        figure = self._measure(work, count, self._phase(kind, count, connections, 0.0))
        cost = sum(figure.per_100k(name).total for name in self._names)
        if target is None:
            figure.values["cpu_s_per_100k_all_nodes"] = cost
            return
        self._retarget(figure, target, cost)
        if kind == "batch":
            self.figures.append(Figure(figure.work, figure.key_space, target=BATCH_RATE, measured=figure.rate))

    def overwrite(self, count: int) -> None:
        """`count` keys that both sides have are written over, each once, in random order."""
        first = self._first
        self._load.run(self._phase("batch", count, BATCH_CONNECTIONS, 0.0))
        self._wait_drained()
        phase = Phase("batch", first, count, count, BATCH_CONNECTIONS, BATCH_OBJECTS, 0.0, self._limit_s)
        figure = self._measure("overwrite, batches of 100", count, phase, f"{count:,} keys, each once, in random order")
        self._retarget(figure, OVERWRITE_COST, sum(figure.per_100k(name).total for name in self._names))

    def references(self, count: int) -> None:
        """How much memory a full queue takes: keys that are there already are written over while B's sink rests."""
        first = self._first
        self._load.run(self._phase("batch", count, BATCH_CONNECTIONS, 0.0))
        self._wait_drained()
        self._suspend()
        time.sleep(SETTLE_SECONDS)
        before_mb = self._nodes.resident_mb("a")
        self._load.run(Phase("batch", first, count, 0, BATCH_CONNECTIONS, BATCH_OBJECTS, 0.0, self._limit_s))
        (queue,) = self._nodes.admin["a"].get("/admin/queues")["queues"]
        more_mb = self._nodes.resident_mb("a") - before_mb
        held = int(queue["references_in_memory"])
        values = {"references_in_memory": float(held), "a_resident_MB": before_mb + more_mb}
        space = f"{count:,} keys written over"
        self.figures.append(
            Figure("a full queue: memory of A", space, values=values, target=QUEUE_MEMORY, measured=more_mb)
        )
        self._sink("resume")
        self._wait_drained()

    def one_a_fetch(self, count: int) -> None:
        """The way of Riak: a fetch for each object. From the sink's return until a backlog is gone."""
        self._suspend()
        written = self._load.run(self._phase("batch", count, BATCH_CONNECTIONS, 0.0))
        seconds: list[float] = []

        def drain() -> None:
            self._sink("resume")
            seconds.append(self._wait_drained())

        cpu = self._profiled("one object a fetch", drain)
        figure = Figure("drain, one object a fetch", f"{count:,} fresh keys", written.objects, seconds[0], cpu)
        self._retarget(figure, ONE_A_FETCH, figure.rate)
        self.figures.append(figure)

    def backlog(self, count: int) -> None:
        """Drain the backlog that gathered while B's sink was suspended, from its resumption on."""
        self._suspend()
        phase = self._phase("batch", count, BATCH_CONNECTIONS, 0.0)
        written = self._load.run(phase)
        left = self._nodes.outstanding("a")
        if left is not None and left < written.objects:
            raise BenchFailed(f"only {left} of {written.objects} changes wait although the sink is suspended")
        seconds: list[float] = []
        first_s: list[float] = []

        def drain() -> None:
            began_s = time.perf_counter()
            before = self._applied()
            self._sink("resume")
            while self._applied() == before and time.perf_counter() - began_s < DRAIN_TIMEOUT_S:
                time.sleep(FIRST_POLL_S)
            first_s.append(time.perf_counter() - began_s)
            self._wait_drained()
            seconds.append(time.perf_counter() - began_s)

        cpu = self._profiled(f"drain of {written.objects:,}", drain)
        per_backlog = seconds[0] * count / written.objects
        self.figures.append(
            Figure(
                f"drain of a backlog, {VALUE_BYTES:,} bytes",
                f"{written.objects:,} fresh keys",
                written.objects,
                seconds[0],
                cpu,
                target=DRAIN,
                measured=per_backlog,
            )
        )
        space = f"{written.objects:,} fresh keys"
        self.figures.append(
            Figure("first change after the sink's return", space, target=FIRST_OBJECT, measured=1_000 * first_s[0])
        )

    def _measure(self, work: str, count: int, phase: Phase, space: str = "") -> Figure:
        """Load, then wait until nothing is outstanding; both count."""
        time.sleep(SETTLE_SECONDS)
        results: list[Result] = []
        drained: list[float] = []

        def run() -> None:
            results.append(self._load.run(phase))
            drained.append(self._wait_drained())

        cpu = self._profiled(work, run)
        (result,) = results
        figure = Figure(
            f"{work}, {VALUE_BYTES:,} bytes, {phase.connections} connections",
            space or f"{count:,} fresh keys",
            result.objects,
            result.seconds + drained[0],
            cpu,
            {
                "accepted_per_s": result.objects / result.seconds,
                "seconds_behind_at_the_end": drained[0],
                "request_p50_ms": result.p50_ms,
                "request_p99_ms": result.p99_ms,
                **{f"{name}_resident_MB": self._nodes.resident_mb(name) for name in self._names},
            },
            failed=result.failed,
        )
        self.figures.append(figure)
        return figure

    def _profiled(self, work: str, run: Callable[[], None]) -> dict[str, CpuTime]:
        profilers = [Profiler(f"{work}, node {n}", self._nodes.pids[n]) for n in self._names] if self._profile else []
        cpu = self._nodes.measured(run)
        for profiler in profilers:
            self.profile += profiler.stop()
        return cpu

    def _phase(self, kind: str, count: int, connections: int, rate: float) -> Phase:
        first, self._first = self._first, self._first + count
        return Phase(kind, first, count, 0, connections, BATCH_OBJECTS, rate, self._limit_s)

    @staticmethod
    def _retarget(figure: Figure, target: Target, measured: float) -> None:
        figure.target, figure.measured = target, measured

    def _suspend(self) -> None:
        """B's sink fetches no more, and nothing is under way."""
        self._sink("suspend")
        deadline_s = time.perf_counter() + FETCH_TIMEOUT_S
        while self._nodes.sink("b")["running"] and time.perf_counter() < deadline_s:
            time.sleep(0.1)

    def _applied(self) -> int:
        return int(self._nodes.sink("b")["applied"])

    def _wait_drained(self) -> float:
        began_s = time.perf_counter()
        for name in self._sources:
            self._nodes.wait_drained(name, DRAIN_TIMEOUT_S)
        return time.perf_counter() - began_s

    def _sink(self, verb: str) -> None:
        wish: dict[str, Any] = {"queue": None, "peer": None, "by": "bench", "reason": "backlog measurement"}
        self._nodes.admin["b"].post(f"/admin/sink/{verb}", wish)


if __name__ == "__main__":
    main()

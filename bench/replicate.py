"""The cost of replication from cluster A to cluster B, and its lag.

    python -m bench.replicate [--json] [--profile] [--keys 100000] [--rate 1000] [--paced-seconds 20]
                              [--overwrite 1000000] [--three] [--clients spread|leader]

Two clusters of one node each, fsync on both sides, fresh keys, objects of 1 KB. `--overwrite` adds keys that are
overwritten in random order; `--three` adds clusters of three nodes. Each client is bound to one node of A in turn; with
`--clients leader` it sends each request to the leader of its key, by the routes. A measurement ends when A's queue is
empty, and counts the CPU seconds of all nodes, including A's ingest. Lag is the time from the append at A to the apply
at B, as B's sink reports it (wall clock of one machine).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from bench.figures import CpuTime, Figure, Target, machine, report
from bench.loadgen import LEADER, SPREAD, VALUE_BYTES, Phase, Result
from bench.nodes import TWO_CLUSTERS, BenchFailed, LoadProcess, Nodes
from bench.profiling import Profiler
from isthmus.repl.model.errors import IsthmusError

SINGLE_COST: Final = Target(8, "CPU s per 100,000 objects, all nodes", at_least=False)
BATCH_COST: Final = Target(4, "CPU s per 100,000 objects, all nodes", at_least=False)
OVERWRITE_COST: Final = Target(7, "CPU s per 100,000 objects, all nodes", at_least=False)
BATCH_RATE: Final = Target(25_000, "objects/s sustained")
LAG_P50: Final = Target(2, "ms, p50 of the lag", at_least=False)
LAG_P99: Final = Target(10, "ms, p99 of the lag", at_least=False)
DRAIN: Final = Target(4, "s until the backlog is drained", at_least=False)
FIRST_OBJECT: Final = Target(200, "ms until the first change arrives", at_least=False)
SINGLE_FETCH_RATE: Final = Target(2_000, "objects/s")
QUEUE_MEMORY: Final = Target(150, "MB more than before", at_least=False)
IDLE_MEMORY: Final = Target(120, "MB resident", at_least=False)
IDLE_CPU: Final = Target(1, "% of a core", at_least=False)

SINGLE_CONNECTIONS: Final = 32
BATCH_CONNECTIONS: Final = 8
MANY_SINGLE_CONNECTIONS: Final = 512
MANY_BATCH_CONNECTIONS: Final = 32
"""The number of concurrent clients determines how many writes share a group commit, and its cost. Both are measured."""

BATCH_OBJECTS: Final = 100
IDLE_SECONDS: Final = 10.0
DRAIN_TIMEOUT_S: Final = 180.0
FETCH_TIMEOUT_S: Final = 10.0
"""Time for running fetches to end after a suspend; a long poll takes at most 5 s."""

SINGLE_FETCH_DIVISOR: Final = 5
"""Divisor of the number of keys: fewer are enough to measure the cost of a fetch."""

FIRST_POLL_S: Final = 0.005

SINGLE_OBJECT_BATCHES: Final = (
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
"""Idle time before a measurement, in which the work of the previous one ends."""

CHECKPOINTS_SECONDS: Final = 65.0
"""Time for two checkpoints; a node releases memory after the second one without load."""


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--profile", is_flag=True, help="Profile both nodes in each measurement.")
@click.option(
    "--keys", default=100_000, show_default=True, help="Objects per measurement without a rate, and of the backlog."
)
@click.option("--rate", default=1_000.0, show_default=True, help="PUTs per second while the lag is measured.")
@click.option("--paced-seconds", default=20.0, show_default=True, help="Duration of the measurement of the lag.")
@click.option("--limit", "limit_s", default=120.0, show_default=True, help="Seconds after which a load ends.")
@click.option(
    "--overwrite",
    "overwritten",
    default=0,
    show_default=True,
    help="Number of keys that are written, then overwritten; 0: none.",
)
@click.option(
    "--references", default=300_000, show_default=True, help="References in the queue whose memory is measured."
)
@click.option("--three", is_flag=True, help="Also measure clusters of three nodes.")
@click.option(
    "--clients",
    type=click.Choice([SPREAD, LEADER]),
    default=SPREAD,
    show_default=True,
    help="Send to the nodes of A in turn, or to the leader of each key.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
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
    clients: str,
    directory: Path | None,
) -> None:
    """Measure cost, lag and catch-up of replication from A to B."""
    figures: list[Figure] = []
    profiled: list[str] = []

    def run_on(topology: str, part: str, measure: Callable[[_Runs], None]) -> None:
        with Nodes(topology, None if directory is None else directory / part) as nodes:
            urls = (url for name, url in nodes.http.items() if name.startswith("a"))
            with LoadProcess(*urls) as load:
                runs = _Runs(nodes, load, profile, limit_s, clients)
                measure(runs)
        figures.extend(runs.figures)
        profiled.extend(runs.profile)

    def one_node_each(runs: _Runs) -> None:
        runs.idle("just started")
        runs.lag(rate, paced_seconds)
        runs.sustained("PUT, one object per request", "put", SINGLE_CONNECTIONS, keys, SINGLE_COST)
        runs.sustained("PUT, batches of 100", "batch", BATCH_CONNECTIONS, keys, BATCH_COST)
        runs.backlog(keys)
        if overwritten:
            runs.overwrite(overwritten)
        runs.references(references)
        runs.idle("one minute after all loads", CHECKPOINTS_SECONDS)

    def many_clients(runs: _Runs) -> None:
        runs.sustained("PUT, one object per request", "put", MANY_SINGLE_CONNECTIONS, keys, SINGLE_COST)
        runs.sustained("PUT, batches of 100", "batch", MANY_BATCH_CONNECTIONS, keys, BATCH_COST)

    def three_nodes_each(runs: _Runs) -> None:
        runs.sustained("3 + 3 nodes: PUT, one object per request", "put", SINGLE_CONNECTIONS, keys, None)
        runs.sustained("3 + 3 nodes: PUT, batches of 100", "batch", BATCH_CONNECTIONS, keys, None)

    try:
        where = machine()
        run_on(TWO_CLUSTERS, "pair", one_node_each)
        run_on(TWO_CLUSTERS, "many", many_clients)
        run_on(
            SINGLE_OBJECT_BATCHES,
            "one-at-a-time",
            lambda runs: runs.single_object_fetches(max(1, keys // SINGLE_FETCH_DIVISOR)),
        )
        if three:
            run_on(SIX_NODES, "six", three_nodes_each)
        report("replicate", where, figures, as_json, profiled, {"clients": clients})
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Runs:
    def __init__(self, nodes: Nodes, load: LoadProcess, profile: bool, limit_s: float, clients: str) -> None:
        self._clients = clients
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
        """Memory and CPU of nodes that have been idle for `rest_s`."""
        time.sleep(rest_s)
        cpu = self._nodes.measured(lambda: time.sleep(IDLE_SECONDS))
        for name in ("a", "b"):
            share = 100 * cpu[name].total / IDLE_SECONDS
            space = f"{self._first:,} keys stored"
            memory = self._nodes.resident_mb(name)
            self.figures.append(Figure(f"idle node {name}, {when}: memory", space, target=IDLE_MEMORY, measured=memory))
            self.figures.append(Figure(f"idle node {name}, {when}: CPU", space, target=IDLE_CPU, measured=share))

    def lag(self, rate: float, seconds: float) -> None:
        """Measure the lag at a write rate, before any other load: the sink's lag covers its whole life."""
        count = int(rate * seconds)
        phase = self._phase("put", count, SINGLE_CONNECTIONS, rate)
        figure = self._measure(f"PUT at {rate:,.0f}/s", count, phase)
        link = self._nodes.sink("b")
        p50, p99 = float(link["lag_ms_p50"]), float(link["lag_ms_p99"])
        self._set_target(figure, LAG_P50, p50)
        self.figures.append(Figure(figure.work, figure.key_space, target=LAG_P99, measured=p99))

    def sustained(self, work: str, kind: str, connections: int, count: int, target: Target | None) -> None:
        """Write as fast as A accepts, and wait until B has everything."""
        figure = self._measure(work, count, self._phase(kind, count, connections, 0.0))
        cost = sum(figure.per_100k(name).total for name in self._names)
        if target is None:
            figure.values["cpu_s_per_100k_all_nodes"] = cost
            return
        self._set_target(figure, target, cost)
        if kind == "batch":
            self.figures.append(Figure(figure.work, figure.key_space, target=BATCH_RATE, measured=figure.rate))

    def overwrite(self, count: int) -> None:
        """Overwrite `count` existing keys, each once, in random order."""
        first = self._first
        self._load.run(self._phase("batch", count, BATCH_CONNECTIONS, 0.0))
        self._wait_drained()
        phase = Phase(
            "batch", first, count, count, BATCH_CONNECTIONS, BATCH_OBJECTS, 0.0, self._limit_s, clients=self._clients
        )
        figure = self._measure("overwrite, batches of 100", count, phase, f"{count:,} keys, each once, in random order")
        self._set_target(figure, OVERWRITE_COST, sum(figure.per_100k(name).total for name in self._names))

    def references(self, count: int) -> None:
        """Measure the memory of a full queue: overwrite existing keys while B's sink is suspended."""
        first = self._first
        self._load.run(self._phase("batch", count, BATCH_CONNECTIONS, 0.0))
        self._wait_drained()
        self._suspend()
        time.sleep(SETTLE_SECONDS)
        before_mb = self._nodes.resident_mb("a")
        self._load.run(
            Phase("batch", first, count, 0, BATCH_CONNECTIONS, BATCH_OBJECTS, 0.0, self._limit_s, clients=self._clients)
        )
        (queue,) = self._nodes.admin["a"].get("/admin/queues")["queues"]
        more_mb = self._nodes.resident_mb("a") - before_mb
        held = int(queue["references_in_memory"])
        values = {"references_in_memory": float(held), "a_resident_MB": before_mb + more_mb}
        space = f"{count:,} keys overwritten"
        self.figures.append(
            Figure("a full queue: memory of A", space, values=values, target=QUEUE_MEMORY, measured=more_mb)
        )
        self._sink("resume")
        self._wait_drained()

    def single_object_fetches(self, count: int) -> None:
        """Time the drain of a backlog with one object per fetch, as Riak does."""
        self._suspend()
        written = self._load.run(self._phase("batch", count, BATCH_CONNECTIONS, 0.0))
        seconds: list[float] = []

        def drain() -> None:
            self._sink("resume")
            seconds.append(self._wait_drained())

        cpu = self._profiled("one object per fetch", drain)
        figure = Figure("drain, one object per fetch", f"{count:,} fresh keys", written.objects, seconds[0], cpu)
        self._set_target(figure, SINGLE_FETCH_RATE, figure.rate)
        self.figures.append(figure)

    def backlog(self, count: int) -> None:
        """Time the drain of a backlog that was written while B's sink was suspended."""
        self._suspend()
        phase = self._phase("batch", count, BATCH_CONNECTIONS, 0.0)
        written = self._load.run(phase)
        left = self._nodes.outstanding("a")
        if left is not None and left < written.objects:
            raise BenchFailed(f"only {left} of {written.objects} changes are queued although the sink is suspended")
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
            Figure("first change after the sink is resumed", space, target=FIRST_OBJECT, measured=1_000 * first_s[0])
        )

    def _measure(self, work: str, count: int, phase: Phase, space: str = "") -> Figure:
        """Run the load and wait until the queue is empty; the time includes both."""
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
                "requests_forwarded": float(result.forwarded),
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
        return Phase(kind, first, count, 0, connections, BATCH_OBJECTS, rate, self._limit_s, clients=self._clients)

    @staticmethod
    def _set_target(figure: Figure, target: Target, measured: float) -> None:
        figure.target, figure.measured = target, measured

    def _suspend(self) -> None:
        """Suspend B's sink and wait until no fetch is running."""
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
        body: dict[str, Any] = {"queue": None, "peer": None, "by": "bench", "reason": "backlog measurement"}
        self._nodes.admin["b"].post(f"/admin/sink/{verb}", body)


if __name__ == "__main__":
    main()

"""Speed of far-horizon catch-up, and its effect on writes (docs/protocol.md R-FAR).

    python -m bench.far [--json] [--profile] [--keys 100000] [--rate 500]

One partition on three nodes. A follower is killed, its disk is emptied, and it is started again: once on an idle
cluster, and once while clients write to the leader at a steady rate. The time runs from the first bytes of rows to the
last; the bytes are those received. The latency of the same writes without a transfer is measured first.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import click

from bench.figures import CpuTime, Figure, Target, cpu_time, machine, report
from bench.loadgen import VALUE_BYTES, Phase, Result
from bench.nodes import THREE_NODES, BenchFailed, LoadProcess, Nodes
from bench.profiling import Profiler
from isthmus.node.local import directory as places
from isthmus.repl.model.errors import IsthmusError

RATE: Final = Target(30, "MB/s")
P99_RATIO: Final = Target(2, "× the p99 without a transfer", at_least=False)

TOPOLOGY: Final = THREE_NODES.replace(
    "partitions = 1\n",
    'partitions = 1\nlog_size = "8MB"\nlog_file_size = "1MB"\nlog_batch_size = "1MB"\ncheckpoint_interval = "1s"\n',
)
"""The log holds only a fraction of the keys, so that an empty follower needs a state transfer."""

CONNECTIONS: Final = 8
MEASURED_MIN_S: Final = 5.0
"""Minimum duration of the load: percentiles of fewer writes mean little."""

SETTLE_S: Final = 3.0
"""Quiet time before a measurement, so that work left over by the previous one is done."""

POLL_S: Final = 0.05
TIMEOUT_S: Final = 300.0


class Transfer(NamedTuple):
    """Bytes, seconds from the first byte to the last and until in sync, rounds, and CPU time by node."""

    bytes: float
    seconds: float
    in_sync_s: float
    rounds: float
    cpu: dict[str, CpuTime]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--profile", is_flag=True, help="Profile the leader during the transfers.")
@click.option("--keys", default=100_000, show_default=True, help="Objects in the store.")
@click.option(
    "--rate", default=500.0, show_default=True, help="Writes per second at the leader during the second transfer."
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, profile: bool, keys: int, rate: float, directory: Path | None) -> None:
    """Transfer a whole store to an empty follower, with and without load on the leader."""
    try:
        where = machine()
        with Nodes(TOPOLOGY, directory) as nodes:
            run = _Run(nodes, keys, rate, profile)
            run.all()
        report("far", where, run.figures, as_json, run.profile)
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Run:
    def __init__(self, nodes: Nodes, keys: int, rate: float, profile: bool) -> None:
        self._nodes = nodes
        self._keys = keys
        self._rate = rate
        self._profile = profile
        self.figures: list[Figure] = []
        self.profile: list[str] = []

    def all(self) -> None:
        """Fill the store, and measure the load alone and both transfers."""
        nodes, keys = self._nodes, self._keys
        leader = nodes.leader()
        follower = next(name for name in sorted(nodes.admin) if name != leader)
        with LoadProcess(nodes.http[leader]) as load, ThreadPoolExecutor(1) as pool:
            load.run(Phase("batch", 0, keys, 0, CONNECTIONS, 100))
            time.sleep(SETTLE_S)
            quiet = self._transfer(follower, leader, "the leader, transfer on an idle cluster")
            self._add(f"an empty follower, {VALUE_BYTES:,}-byte objects, no load", quiet, leader, follower)
            nodes.leader()
            time.sleep(SETTLE_S)
            spread = max(MEASURED_MIN_S, 1.5 * quiet.in_sync_s)
            alone = load.run(self._paced(spread))
            begun: list[Future[Result]] = []
            busy = self._transfer(
                follower,
                leader,
                "the leader, transfer under load",
                lambda: begun.append(pool.submit(load.run, self._paced(spread))),
            )
            result = begun[0].result()
        name = f"an empty follower, {self._rate:g} writes/s at the leader"
        self._add(name, busy, leader, follower, RATE)
        self._latencies(alone, result)

    def _paced(self, seconds: float) -> Phase:
        count = max(1, int(self._rate * seconds))
        return Phase("put", 0, count, self._keys, CONNECTIONS, 1, rate=self._rate, limit_s=TIMEOUT_S)

    def _transfer(
        self, follower: str, leader: str, title: str, begin_load: Callable[[], None] | None = None
    ) -> Transfer:
        """Kill and empty the follower, begin the load once it has left the ISR, and start it again."""
        nodes = self._nodes
        places.stop_node(nodes.directory, follower, kill=True)
        shutil.rmtree(nodes.directory / follower / "data")
        deadline_s = time.perf_counter() + TIMEOUT_S
        while follower in nodes.admin[leader].get("/admin/partitions")["partitions"][0]["isr"]:
            if time.perf_counter() > deadline_s:
                raise BenchFailed(f"{follower} is dead, but still in the ISR of {leader} after {TIMEOUT_S:.0f} s")
            time.sleep(POLL_S)
        if begin_load is not None:
            begin_load()
        profiler = Profiler(title, nodes.pids[leader]) if self._profile else None
        places.start_node(nodes.directory, follower, None)
        before = {name: cpu_time(nodes.pids[name]) for name in nodes.pids if name != follower}
        first: tuple[float, float] | None = None
        last = (0.0, 0.0)
        began_s = time.perf_counter()
        deadline_s = began_s + TIMEOUT_S
        while True:
            taken = _metric(nodes, follower, "isthmus_far_bytes_taken_total")
            now_s = time.perf_counter()
            if now_s > deadline_s:
                raise BenchFailed(f"{follower} is not in sync after {TIMEOUT_S:.0f} s; it has received {taken} bytes")
            if taken and first is None:
                first = (now_s, taken)
            if taken and taken != last[1]:
                last = (now_s, taken)
            if first is not None and _metric(nodes, follower, "isthmus_partitions_following") == 1:
                break
            time.sleep(POLL_S)
        nodes.leader(TIMEOUT_S)
        in_sync_s = time.perf_counter() - began_s
        nodes.refresh()
        cpu = {name: _less(cpu_time(nodes.pids[name]), before.get(name)) for name in nodes.pids}
        if profiler is not None:
            self.profile += profiler.stop()
        rounds = _metric(nodes, follower, "isthmus_far_rounds_taken_total") or 0.0
        return Transfer(last[1], last[0] - first[0], in_sync_s, rounds, cpu)

    def _add(self, work: str, transfer: Transfer, leader: str, follower: str, target: Target | None = None) -> None:
        roles = {leader: "leader", follower: "empty follower"}
        cpu = {roles[name]: spent for name, spent in transfer.cpu.items() if name in roles}
        rate = transfer.bytes / 1e6 / max(POLL_S, transfer.seconds)
        values = {
            "MB": transfer.bytes / 1e6,
            "rows_s": transfer.seconds,
            "start_to_in_sync_s": transfer.in_sync_s,
            "rounds": transfer.rounds,
            "MB_per_s": rate,
        }
        figure = Figure(work, f"{self._keys:,} keys", self._keys, transfer.in_sync_s, cpu, values)
        if target is not None:
            figure.target, figure.measured = target, rate
        self.figures.append(figure)

    def _latencies(self, alone: Result, during: Result) -> None:
        for work, result in (("writes without a transfer", alone), ("writes during a transfer", during)):
            values = {"p50_ms": result.p50_ms, "p99_ms": result.p99_ms, "max_ms": result.max_ms}
            figure = Figure(work, f"any of {self._keys:,} keys", result.objects, result.seconds, {}, values)
            figure.failed = result.failed
            if result is during:
                figure.target, figure.measured = P99_RATIO, during.p99_ms / max(0.001, alone.p99_ms)
            self.figures.append(figure)


def _less(after: CpuTime, before: CpuTime | None) -> CpuTime:
    """CPU time since `before`; all of it for a process that was started since."""
    return after if before is None else CpuTime(after.user - before.user, after.system - before.system)


def _metric(nodes: Nodes, name: str, metric: str) -> float | None:
    """The sum of a metric's samples; None while the node does not answer."""
    try:
        return nodes.metric(name, metric)
    except OSError:
        return None


if __name__ == "__main__":
    main()

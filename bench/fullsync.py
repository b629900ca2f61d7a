"""The cost of full-sync: proving two clusters equal, finding and repairing differences, updating and rebuilding trees.

    python -m bench.fullsync [--json] [--profile] [--keys 100000] [--few 1000] [--many 10000] [--rate 300]

Two clusters of one node each, the second fed by the first. Differences are made by writing while the second one's sink
is suspended and forgetting what waits for it, so they are scattered as hashes scatter keys. A repair is timed from the
command that begins a check until the second cluster has everything. The cost of keeping a tree is measured in this
process, on entries such as apply hands over.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import click

from bench.figures import CpuTime, Figure, Target, machine, report
from bench.loadgen import Phase, Result
from bench.nodes import TWO_CLUSTERS, BenchFailed, LoadProcess, Nodes
from bench.profiling import Profiler
from isthmus.aae.ports import LocalReplicas, ReplicaSnapshot
from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.repl.clock import SystemTime
from isthmus.repl.model.entry import Entry, EntryKind, encode_key_row, make_entry
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.objects import Summary
from tests.support.memory_store import MemoryStore

PROVEN: Final = Target(30, "ms to prove both equal, the median", at_least=False)
FEW: Final = Target(2, "s until all are repaired", at_least=False)
MANY: Final = Target(60, "s until all are repaired", at_least=False)
KEPT: Final = Target(3, "µs of CPU an applied object", at_least=False)
BUILT: Final = Target(500_000, "keys/s")
SLOWER: Final = Target(2, "× the p99 without", at_least=False)
MEMORY: Final = Target(8, "MiB for all of a bucket type's key space", at_least=False)
"""2^20 segments of 8 bytes."""

PEER: Final = "b"
PAUSE_MS: Final = 100
"""Pause between two comparisons: longer than the replication lag of an idle machine."""

TOPOLOGY: Final = f"""{TWO_CLUSTERS}
[[clusters.a.fullsync]]
name = "{PEER}"
cluster = "b"
queue = "to-b"
auto = 0
pause = "{PAUSE_MS}ms"
repair_rate_limit = 0
"""

START_KEYS: Final = 10_000
"""The small key space: proving any key space equal should take as long as proving this one."""

PROOFS: Final = 15
BATCH: Final = 100
CONNECTIONS: Final = 8
PACED_S: Final = 6.0
"""Load for one percentile: 1,800 requests at the usual rate, so its p99 is the 18th worst."""

KEPT_ENTRIES: Final = 200_000
KEPT_BATCH: Final = 20
"""Entries of a partition that are applied together under a batch load."""

KEEPER_LOOKS_S: Final = 0.5
"""Time for a keeper to see a copy that is empty."""

CLEARED_S: Final = 1.1
"""Clearing a queue takes effect with the next second of the wall clock."""

POLL_S: Final = 0.01
POLL_SHARE: Final = 0.02
"""Poll interval as a share of the time passed: a poll costs the node a millisecond."""

TIMEOUT_S: Final = 600.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@click.option("--profile", is_flag=True, help="Record where the first cluster's time goes.")
@click.option("--keys", default=100_000, show_default=True, help="Keys in each cluster; 1000000 is what is aimed at.")
@click.option("--few", default=1_000, show_default=True, help="Scattered differences of the first repair.")
@click.option("--many", default=10_000, show_default=True, help="Of the second one; 100000 is what is aimed at.")
@click.option("--rate", default=300.0, show_default=True, help="Writes a second whose latency is looked at.")
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), help="Where data lies; decides what an fsync costs."
)
def main(as_json: bool, profile: bool, keys: int, few: int, many: int, rate: float, directory: Path | None) -> None:
    """Measure proofs, repairs, and the cost of trees."""
    try:
        where = machine()
        figures = [asyncio.run(_keeping())]
        with Nodes(TOPOLOGY, directory) as nodes, LoadProcess(nodes.http["a"]) as load:
            run = _Run(nodes, load, max(keys, START_KEYS), rate, profile)
            run.all(few, many)
        report("fullsync", where, figures + run.figures, as_json, run.profile)
    except (BenchFailed, CommandFailed, IsthmusError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Replicas(LocalReplicas):
    def __init__(self, replicas: list[ReplicaSnapshot]) -> None:
        self._replicas = replicas

    def snapshots(self) -> list[ReplicaSnapshot]:
        """See LocalReplicas."""
        return self._replicas


async def _keeping() -> Figure:
    """The cost of one XOR per entry, with its overhead."""
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as directory:
        entries = [_entry(offset) for offset in range(KEPT_ENTRIES)]
        copy = ReplicaSnapshot(0, b"default", 1, 0, True)
        trees = TreeCache(MemoryStore(), directory=Path(directory), replicas=_Replicas([copy]), time=SystemTime())
        trees.start()
        await asyncio.sleep(KEEPER_LOOKS_S)
        assert 0 in trees.cached
        parts = [entries[at : at + KEPT_BATCH] for at in range(0, KEPT_ENTRIES, KEPT_BATCH)]
        began_s = time.process_time()
        for part in parts:
            trees.applied(0, part, True)
        seconds = time.process_time() - began_s
        assert trees.cached[0].tree is not None
        await trees.stop(save=False)
    figure = Figure(
        f"a tree kept by apply, {KEPT_BATCH} entries at once", f"{KEPT_ENTRIES:,} fresh keys", KEPT_ENTRIES, seconds
    )
    figure.cpu = {"apply": CpuTime(seconds, 0.0)}
    figure.target, figure.measured = KEPT, 1e6 * seconds / KEPT_ENTRIES
    return figure


def _entry(offset: int) -> Entry:
    return make_entry(
        EntryKind.DATA,
        1,
        offset,
        request_id=b"",
        origin=bytes(16),
        time_ms=1_700_000_000_000,
        bucket=b"bench",
        key=b"key-%d" % offset,
        row=encode_key_row(Summary(b"clock", offset, 1_700_000_000_000, 1_000, 1, False), offset),
        payload=b"",
        leaf_change=(offset + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF,
    )


class _Run:
    def __init__(self, nodes: Nodes, load: LoadProcess, keys: int, rate: float, profile: bool) -> None:
        self._nodes = nodes
        self._load = load
        self._keys = keys
        self._rate = rate
        self._profile = profile
        self._written = 0
        self.figures: list[Figure] = []
        self.profile: list[str] = []

    def all(self, few: int, many: int) -> None:
        """Every figure."""
        self._write(START_KEYS)
        self._proofs()
        if self._keys > START_KEYS:
            self._write(self._keys - START_KEYS)
            self._proofs()
        self._repairs(few, FEW if few == 1_000 else None)
        self._repairs(many, MANY if many == 100_000 else None)
        self._proofs()
        self._rebuilds()
        self._foreground()
        self._memory()

    def _write(self, count: int) -> None:
        self._load.run(Phase("batch", self._written, count, 0, CONNECTIONS, BATCH, limit_s=TIMEOUT_S))
        self._written += count
        self._nodes.wait_drained("a", TIMEOUT_S)

    def _proofs(self) -> None:
        """Both are equal: how long does it take to know?"""
        seconds: list[float] = []
        used = self._nodes.measured(lambda: seconds.extend(self._check("in-sync")["seconds"] for _ in range(PROOFS)))
        figure = Figure("equal clusters proven equal", f"{self._written:,} keys", PROOFS, sum(seconds), used)
        figure.values = {"p50_ms": 1e3 * statistics.median(seconds), "max_ms": 1e3 * max(seconds)}
        figure.target, figure.measured = PROVEN, 1e3 * statistics.median(seconds)
        self.figures.append(figure)

    def _repairs(self, count: int, target: Target | None) -> None:
        """`count` keys anywhere are newer here; then they are everywhere."""
        nodes, keys = self._nodes, self._written
        nodes.admin["b"].post("/admin/sink/suspend", {})
        while nodes.sink("b")["running"]:
            time.sleep(POLL_S)
        self._load.run(Phase("batch", 0, count, keys, CONNECTIONS, BATCH, limit_s=TIMEOUT_S, seed=count))
        time.sleep(CLEARED_S)
        nodes.admin["a"].post("/admin/queues/to-b/clear", {"reason": "bench"})
        nodes.wait_drained("a", TIMEOUT_S)
        nodes.admin["b"].post("/admin/sink/resume", {})
        profiler = Profiler(f"a check that finds {count:,} differences", nodes.pids["a"]) if self._profile else None
        result: dict[str, Any] = {}
        began_s = time.perf_counter()
        used = nodes.measured(lambda: result.update(self._repaired()))
        seconds = time.perf_counter() - began_s
        if profiler is not None:
            self.profile += profiler.stop()
        figure = Figure(f"{count:,} scattered differences repaired", f"any of {keys:,} keys", count, seconds, used)
        figure.values = {"check_s": result["seconds"], "segments": result["segments"], "compared": result["keys"]}
        if result["queued"] != count:
            figure.failed = {"not queued": count - result["queued"]}
        figure.target, figure.measured = target, seconds
        self.figures.append(figure)

    def _repaired(self) -> dict[str, Any]:
        result = self._check("repaired")
        self._nodes.wait_drained("a", TIMEOUT_S, POLL_S)
        return result

    def _rebuilds(self) -> None:
        """Rebuild all trees on an idle node."""
        before = self._metric("isthmus_tree_build_keys_total"), self._metric("isthmus_tree_build_seconds_total")
        profiler = Profiler("trees built anew", self._nodes.pids["a"]) if self._profile else None
        used = self._nodes.measured(self._rebuild)
        if profiler is not None:
            self.profile += profiler.stop()
        count = self._metric("isthmus_tree_build_keys_total") - before[0]
        seconds = self._metric("isthmus_tree_build_seconds_total") - before[1]
        figure = Figure("trees built anew, rests included", f"{self._written:,} keys", int(count), seconds, used)
        figure.target, figure.measured = BUILT, count / seconds
        self.figures.append(figure)

    def _rebuild(self) -> None:
        """Rebuild all trees, polling seldom to cost the node little."""
        before = self._built()
        self._nodes.admin["a"].post("/admin/trees/rebuild", {})
        deadline_s = time.perf_counter() + TIMEOUT_S
        while any(built_ms == before.get(partition) for partition, built_ms in self._built().items()):
            if time.perf_counter() > deadline_s:
                raise BenchFailed(f"not all trees are built within {TIMEOUT_S:.0f} s")
            time.sleep(5 * POLL_S)

    def _built(self) -> dict[int, int | None]:
        """Partition -> when its tree was built."""
        trees = self._nodes.admin["a"].get("/admin/trees")["trees"]
        return {tree["partition"]: tree["built_ms"] for tree in trees}

    def _foreground(self) -> None:
        """Clients' writes alone, beside builds, and beside checks."""
        alone = self._paced()
        self._latency("writes, nothing else", alone, None)
        self._latency("writes while trees are built, one after the other", self._beside(self._rebuild), alone)
        self._latency("writes while checks run, one after the other", self._beside(lambda: self._check()), alone)

    def _beside(self, work: Callable[[], object]) -> Result:
        """Writes while `work` is done again and again."""
        self._nodes.wait_drained("a", TIMEOUT_S)
        stopping = threading.Event()

        def again() -> None:
            while not stopping.is_set():
                work()

        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(again)
            try:
                result = self._paced()
            finally:
                stopping.set()
            busy.result()
        return result

    def _paced(self) -> Result:
        count = int(self._rate * PACED_S)
        return self._load.run(Phase("put", 0, count, self._written, CONNECTIONS, 1, rate=self._rate, seed=count))

    def _latency(self, work: str, result: Result, alone: Result | None) -> None:
        figure = Figure(work, f"any of {self._written:,} keys", result.objects, result.seconds)
        figure.values = {"p50_ms": result.p50_ms, "p99_ms": result.p99_ms, "max_ms": result.max_ms}
        figure.failed = result.failed
        if alone is not None:
            figure.target, figure.measured = SLOWER, result.p99_ms / max(0.001, alone.p99_ms)
        self.figures.append(figure)

    def _memory(self) -> None:
        held = self._metric("isthmus_tree_bytes") / 2**20
        figure = Figure("memory of all trees of a node that has all partitions", f"{self._written:,} keys")
        figure.values = {"resident_mb": self._nodes.resident_mb("a")}
        figure.target, figure.measured = MEMORY, held
        self.figures.append(figure)

    def _check(self, verdict: str = "") -> dict[str, Any]:
        """Run a check of everything to its end. Raises BenchFailed when it ends otherwise."""
        admin = self._nodes.admin["a"]
        begun = admin.post("/admin/fullsync/run", {"peer": PEER, "kind": "all"})
        began_s = time.perf_counter()
        while True:
            status = admin.get("/admin/fullsync?results=1")
            results = [r for r in status["peers"][0]["results"] if r["began_ms"] >= begun["at_ms"]]
            if results and status["running"] is None:
                break
            took_s = time.perf_counter() - began_s
            if took_s > TIMEOUT_S:
                raise BenchFailed(f"a check is not done within {TIMEOUT_S:.0f} s")
            time.sleep(max(POLL_S, POLL_SHARE * took_s))
        found: dict[str, Any] = results[-1]
        if verdict and found["verdict"] != verdict:
            raise BenchFailed(f"a check ended {found['verdict']} where {verdict} is right: {found['reason']}")
        return found

    def _metric(self, metric: str) -> float:
        lines = self._nodes.metrics("a")
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{metric} ", f"{metric}{{")))


if __name__ == "__main__":
    main()

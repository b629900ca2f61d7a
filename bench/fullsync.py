"""The cost of full-sync: proofs, repairs, tree updates and tree rebuilds.

    python -m bench.fullsync [--json] [--profile] [--keys 100000] [--few 1000] [--many 10000] [--rate 300]

Two clusters of one node each; the second replicates the first. Differences are created by writing while the sink of the
second is suspended, and clearing the queue, so that they are scattered over the whole hash space. A repair is timed
from the command that begins a check until the second cluster has all changes. The cost of updating a tree is measured
in this process, with entries like those that apply passes on.
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
from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.ports import ReplicaSnapshot
from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.repl.clock import SystemTime
from isthmus.repl.model.entry import Entry, EntryKind, encode_key_row, make_entry
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.objects import Summary
from isthmus.repl.model.ports import AppliedEntries
from tests.support.fullsync_fakes import FakeReplicas
from tests.support.memory_store import MemoryStore

PROOF: Final = Target(30, "ms median to prove both equal", at_least=False)
FEW: Final = Target(2, "s until all are repaired", at_least=False)
MANY: Final = Target(60, "s until all are repaired", at_least=False)
TREE_UPDATE: Final = Target(3, "µs of CPU per applied object", at_least=False)
TREE_BUILD: Final = Target(500_000, "keys/s")
P99_RATIO: Final = Target(2, "× the p99 without load", at_least=False)
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
"""The small key space; a proof should take the same time for any larger one."""

PROOFS: Final = 15
BATCH: Final = 100
CONNECTIONS: Final = 8
PACED_S: Final = 6.0
"""Duration of the load for one percentile: 1,800 requests at the default rate, so that 18 are above the p99."""

TREE_ENTRIES: Final = 200_000
TREE_BATCH: Final = 20
"""Entries of one partition that apply passes on together under a load of batches."""

TREE_READY_S: Final = 0.5
"""Time for the tree cache to build the tree of an empty replica."""

CLEARED_S: Final = 1.1
"""A clear takes effect with the next second of the wall clock."""

POLL_S: Final = 0.01
POLL_SHARE: Final = 0.02
"""Poll interval as a share of the elapsed time: a poll costs the node a millisecond of CPU."""

TIMEOUT_S: Final = 600.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--profile", is_flag=True, help="Profile the node of the first cluster.")
@click.option("--keys", default=100_000, show_default=True, help="Keys in each cluster; the targets are for 1000000.")
@click.option("--few", default=1_000, show_default=True, help="Differences of the first repair.")
@click.option(
    "--many", default=10_000, show_default=True, help="Differences of the second repair; the target is for 100000."
)
@click.option("--rate", default=300.0, show_default=True, help="Writes per second whose latency is measured.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, profile: bool, keys: int, few: int, many: int, rate: float, directory: Path | None) -> None:
    """Measure proofs, repairs and trees."""
    try:
        where = machine()
        figures = [asyncio.run(_tree_update_cost())]
        with Nodes(TOPOLOGY, directory) as nodes, LoadProcess(nodes.http["a"]) as load:
            run = _Run(nodes, load, max(keys, START_KEYS), rate, profile)
            run.all(few, many)
        report("fullsync", where, figures + run.figures, as_json, run.profile)
    except (BenchFailed, CommandFailed, IsthmusError, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


async def _tree_update_cost() -> Figure:
    """The CPU time per entry of updating a tree, measured in this process."""
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as directory:
        entries = [_entry(offset) for offset in range(TREE_ENTRIES)]
        replica = ReplicaSnapshot(0, b"default", 1, 0, True)
        trees = TreeCache(
            MemoryStore(),
            directory=Path(directory),
            replicas=FakeReplicas(lambda: [replica]),
            damaged=DamagedRows(),
            time=SystemTime(),
        )
        trees.start()
        await asyncio.sleep(TREE_READY_S)
        assert 0 in trees.cached
        parts = [[AppliedEntries(0, entries[at : at + TREE_BATCH], True)] for at in range(0, TREE_ENTRIES, TREE_BATCH)]
        began_s = time.process_time()
        for part in parts:
            trees.applied(part)
        seconds = time.process_time() - began_s
        assert trees.cached[0].tree is not None
        await trees.stop(save=False)
    figure = Figure(
        f"tree updated by apply, {TREE_BATCH} entries at once", f"{TREE_ENTRIES:,} fresh keys", TREE_ENTRIES, seconds
    )
    figure.cpu = {"apply": CpuTime(seconds, 0.0)}
    figure.target, figure.measured = TREE_UPDATE, 1e6 * seconds / TREE_ENTRIES
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
        """Measure every figure."""
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
        """Time the checks of two equal clusters."""
        seconds: list[float] = []
        used = self._nodes.measured(lambda: seconds.extend(self._check("in-sync")["seconds"] for _ in range(PROOFS)))
        figure = Figure("equal clusters proven equal", f"{self._written:,} keys", PROOFS, sum(seconds), used)
        figure.values = {"p50_ms": 1e3 * statistics.median(seconds), "max_ms": 1e3 * max(seconds)}
        figure.target, figure.measured = PROOF, 1e3 * statistics.median(seconds)
        self.figures.append(figure)

    def _repairs(self, count: int, target: Target | None) -> None:
        """Make `count` scattered keys newer at A, and time the check that repairs them at B."""
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
        """Time the rebuild of all trees of an idle node."""
        before = self._metric("isthmus_tree_build_keys_total"), self._metric("isthmus_tree_build_seconds_total")
        profiler = Profiler("trees rebuilt", self._nodes.pids["a"]) if self._profile else None
        used = self._nodes.measured(self._rebuild)
        if profiler is not None:
            self.profile += profiler.stop()
        count = self._metric("isthmus_tree_build_keys_total") - before[0]
        seconds = self._metric("isthmus_tree_build_seconds_total") - before[1]
        figure = Figure("trees rebuilt, pauses included", f"{self._written:,} keys", int(count), seconds, used)
        figure.target, figure.measured = TREE_BUILD, count / seconds
        self.figures.append(figure)

    def _rebuild(self) -> None:
        self._nodes.rebuild_trees("a", TIMEOUT_S)

    def _foreground(self) -> None:
        """Latency of writes alone, during tree rebuilds, and during checks."""
        alone = self._paced()
        self._latency("writes on an otherwise idle node", alone, None)
        self._latency("writes during continuous tree rebuilds", self._paced_during(self._rebuild), alone)
        self._latency("writes during continuous checks", self._paced_during(lambda: self._check()), alone)

    def _paced_during(self, work: Callable[[], object]) -> Result:
        """Paced writes while a thread repeats `work`."""
        self._nodes.wait_drained("a", TIMEOUT_S)
        stopping = threading.Event()

        def repeat() -> None:
            while not stopping.is_set():
                work()

        with ThreadPoolExecutor(1) as pool:
            busy = pool.submit(repeat)
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
            figure.target, figure.measured = P99_RATIO, result.p99_ms / max(0.001, alone.p99_ms)
        self.figures.append(figure)

    def _memory(self) -> None:
        held = self._metric("isthmus_tree_bytes") / 2**20
        figure = Figure("memory of all trees of a node with all partitions", f"{self._written:,} keys")
        figure.values = {"resident_mb": self._nodes.resident_mb("a")}
        figure.target, figure.measured = MEMORY, held
        self.figures.append(figure)

    def _check(self, verdict: str = "") -> dict[str, Any]:
        """Run a check of kind `all` and return its result. Raises BenchFailed when its verdict is not `verdict`."""
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
                raise BenchFailed(f"a check did not end within {TIMEOUT_S:.0f} s")
            time.sleep(max(POLL_S, POLL_SHARE * took_s))
        result: dict[str, Any] = results[-1]
        if verdict and result["verdict"] != verdict:
            raise BenchFailed(f"a check ended with {result['verdict']} instead of {verdict}: {result['reason']}")
        return result

    def _metric(self, metric: str) -> float:
        return self._nodes.metric("a", metric)


if __name__ == "__main__":
    main()

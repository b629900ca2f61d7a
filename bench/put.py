"""Throughput and cost of one node: single and batched PUTs, fresh and overwriting, and GETs.

    python -m bench.put [--tls] [--json] [--profile] [--keys 100000] [--space 1000000]

One cluster of one node. Every write is on disk (fsync) before its answer. The load comes from another process. CPU
seconds are shown for the node, its ZooKeeper and the load generator.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import click

from bench.figures import Figure, Target, machine, report
from bench.loadgen import VALUE_BYTES, Phase, Result
from bench.nodes import ONE_CLUSTER, SECURE, BenchFailed, LoadProcess, Nodes
from bench.profiling import Profiler
from isthmus.repl.model.errors import IsthmusError

SINGLE: Final = Target(10_000, "PUTs per second of node CPU")
BATCH: Final = Target(35_000, "PUTs per second of node CPU")
READ: Final = Target(10_000, "GETs per second of node CPU")

SINGLE_CONNECTIONS: Final = 32
BATCH_CONNECTIONS: Final = 8
BATCH_OBJECTS: Final = 100


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--tls", is_flag=True, help="Use TLS and tokens on every listener.")
@click.option("--profile", is_flag=True, help="Profile the node in each measurement.")
@click.option("--keys", default=100_000, show_default=True, help="Number of fresh keys, and of objects read.")
@click.option("--space", default=1_000_000, show_default=True, help="Number of keys that are overwritten; 0: none.")
@click.option("--limit", "limit_s", default=120.0, show_default=True, help="Seconds after which a measurement ends.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(
    as_json: bool, tls: bool, profile: bool, keys: int, space: int, limit_s: float, directory: Path | None
) -> None:
    """Measure single PUTs, batches and GETs of 1 KB objects."""
    try:
        where = machine()
        topology = (SECURE if tls else "") + ONE_CLUSTER
        with Nodes(topology, directory) as nodes, LoadProcess(nodes.http["node"], arguments=nodes.access) as load:
            runs = _Runs(nodes, load, profile, limit_s)
            runs.all(keys, space)
        report("put, with TLS and tokens" if tls else "put", where, runs.figures, as_json, runs.profile)
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Runs:
    def __init__(self, nodes: Nodes, load: LoadProcess, profile: bool, limit_s: float) -> None:
        self._nodes = nodes
        self._load = load
        self._profile = profile
        self._limit_s = limit_s
        nodes.pids["source of load"] = load.pid
        self.figures: list[Figure] = []
        self.profile: list[str] = []

    def all(self, keys: int, space: int) -> None:
        """Run all measurements; each uses the keys that earlier ones wrote."""
        fresh = f"{keys:,} fresh keys"
        written = self._single("PUT, one object per request", fresh, Phase("put", 0, keys))
        self._batch("PUT, batches of 100", fresh, Phase("batch", keys, keys))
        self._read("GET", f"any of {written:,} keys", Phase("get", 0, min(keys, written), written))
        if not space:
            return
        first = 2 * keys
        filling = f"PUT, batches of 100, filling {space:,} keys"
        filled = self._batch(filling, f"{space:,} fresh keys", Phase("batch", first, space))
        over = f"{filled:,} keys, overwritten in random order"
        self._single("PUT, one object per request", over, Phase("put", first, min(filled, 3 * keys), filled))
        self._batch("PUT, batches of 100", over, Phase("batch", first, filled, filled))
        self._read("GET", f"any of {filled:,} keys", Phase("get", first, keys, filled))

    def _single(self, work: str, key_space: str, phase: Phase) -> int:
        return self._run(work, key_space, phase, SINGLE_CONNECTIONS, SINGLE)

    def _batch(self, work: str, key_space: str, phase: Phase) -> int:
        return self._run(work, key_space, phase, BATCH_CONNECTIONS, BATCH)

    def _read(self, work: str, key_space: str, phase: Phase) -> int:
        return self._run(work, key_space, phase, SINGLE_CONNECTIONS, READ)

    def _run(self, work: str, key_space: str, phase: Phase, connections: int, target: Target) -> int:
        """Run one measurement; returns the number of objects written or read within the limit."""
        bounded = Phase(
            phase.kind, phase.first, phase.count, phase.space, connections, BATCH_OBJECTS, limit_s=self._limit_s
        )
        results: list[Result] = []
        profiler = Profiler(f"{work}, {key_space}", self._nodes.pids["node"]) if self._profile else None
        cpu = self._nodes.measured(lambda: results.append(self._load.run(bounded)))
        if profiler is not None:
            self.profile += profiler.stop()
        (result,) = results
        self.figures.append(
            Figure(
                f"{work}, {VALUE_BYTES:,} bytes, {connections} connections",
                key_space,
                result.objects,
                result.seconds,
                cpu,
                {
                    "request_p50_ms": result.p50_ms,
                    "request_p99_ms": result.p99_ms,
                    "request_p99.9_ms": result.p999_ms,
                    "request_max_ms": result.max_ms,
                    "node_resident_MB": self._nodes.resident_mb("node"),
                },
                target,
                result.objects / max(0.01, cpu["node"].total),
                result.failed,
            )
        )
        return result.objects


if __name__ == "__main__":
    main()

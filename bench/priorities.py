"""The effect of full bulk queues on real-time replication: fault matrix row 17.

    python -m bench.priorities [--json] [--keys 50000] [--probes 300]

Two clusters of one node each. A client writes fresh keys to A one at a time, and polls B until each one is there: first
without other load, then while folds repeatedly put references to every key into the third priority of the same queue,
whose limit is a small part of their number. A time is measured by the client: the request, the fsync on both sides, the
fetch, the push, and the last poll.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from bench.figures import Figure, Target, machine, report
from bench.kept_connection import KeptConnection
from bench.loadgen import VALUE_BYTES, Phase
from bench.nodes import REPOSITORY, TWO_CLUSTERS, BenchFailed, LoadProcess, Nodes
from isthmus.repl.model.errors import IsthmusError

LAG_RATIO: Final = Target(2, "× the p50 without", at_least=False)
QUEUE_LIMIT: Final = 2_000
TOPOLOGY: Final = TWO_CLUSTERS.replace('name = "to-b"\n', f'name = "to-b"\nqueue_limit = {QUEUE_LIMIT}\n')
PAUSE_S: Final = 0.03
POLL_S: Final = 0.0005
PROBE_TIMEOUT_S: Final = 30.0
DRAIN_TIMEOUT_S: Final = 180.0
BUCKET: Final = "probes"


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--keys", default=50_000, show_default=True, help="Keys whose references the folds push.")
@click.option("--probes", default=300, show_default=True, help="Timed writes per measurement.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, keys: int, probes: int, directory: Path | None) -> None:
    """Measure the real-time lag, alone and while the fold priority is full."""
    try:
        where = machine()
        with Nodes(TOPOLOGY, directory) as nodes, LoadProcess(nodes.http["a"]) as load:
            load.run(Phase("batch", 0, keys, 0, 8, 100, 0.0, DRAIN_TIMEOUT_S))
            nodes.wait_drained("a", DRAIN_TIMEOUT_S)
            time.sleep(2)
            alone = _probe(nodes, probes, "alone")
            with _folds(nodes) as pushed:
                during = _probe(nodes, probes, "during")
            if sum(pushed) < 3 * QUEUE_LIMIT:
                raise BenchFailed(f"only {sum(pushed)} references were pushed during the probes: take more of them")
        figures = [
            _figure("writes seen at B, no other load", keys, alone, {}),
            _figure("writes seen at B while the bulk queues are full", keys, during, {"pushed": float(sum(pushed))}),
        ]
        figures[1].target = LAG_RATIO
        figures[1].measured = _at(during, 0.5) / _at(alone, 0.5)
        report("priorities", where, figures, as_json, [])
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


def _figure(work: str, keys: int, seconds: list[float], more: dict[str, float]) -> Figure:
    values = {"p50_ms": 1000 * _at(seconds, 0.5), "p99_ms": 1000 * _at(seconds, 0.99), "max_ms": 1000 * max(seconds)}
    return Figure(work, f"{keys:,} existing keys", len(seconds), values=values | more)


def _at(seconds: list[float], share: float) -> float:
    return sorted(seconds)[int(share * (len(seconds) - 1))]


def _probe(nodes: Nodes, count: int, name: str) -> list[float]:
    """Seconds from each of `count` writes at A until B returns it."""
    source, sink = (KeptConnection(nodes.http[name], PROBE_TIMEOUT_S) for name in ("a", "b"))
    headers = {"Content-Type": "application/octet-stream"}
    found: list[float] = []
    try:
        for number in range(count):
            time.sleep(PAUSE_S)
            path = f"/buckets/{BUCKET}/keys/{name}{number}"
            began_s = time.perf_counter()
            if source.send("PUT", path, b"x" * VALUE_BYTES, headers).status != 204:
                raise BenchFailed(f"A refused the write of {path}")
            while sink.send("GET", path).status != 200:
                if time.perf_counter() - began_s > PROBE_TIMEOUT_S:
                    raise BenchFailed(f"B has no {path} after {PROBE_TIMEOUT_S:.0f} s")
                time.sleep(POLL_S)
            found.append(time.perf_counter() - began_s)
    finally:
        source.close()
        sink.close()
    return found


@contextmanager
def _folds(nodes: Nodes) -> Iterator[list[int]]:
    """Run folds that push references to all keys while the context is open; yields the number pushed by each."""
    stopping = threading.Event()
    pushed: list[int] = []
    command = [sys.executable, "-m", "isthmus.node.cli.main", "fold", "repl-keys", "to-b", "--yes", "-o", "json"]
    command += ["--admin", nodes.admin_urls["a"]]

    def run() -> None:
        while not stopping.is_set():
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, timeout=DRAIN_TIMEOUT_S, check=False)
            if done.returncode:
                break
            pushed.append(int(json.loads(done.stdout)["done"]))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield pushed
    finally:
        stopping.set()
        thread.join()


if __name__ == "__main__":
    main()

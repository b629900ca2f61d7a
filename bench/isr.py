"""The cost of commits and committed reads with three replicas on this machine.

    python -m bench.isr [--json] [--profile] [--keys 100000]

One partition with min-ISR 2: one node leads it, two follow. Every write is on the disk of all in-sync members (fsync)
before its answer. CPU seconds are those of the three nodes. The path without HTTP is driven inside the leader's process
(`bench.bare`); all other load comes over HTTP from another process. `bench.failover` kills leaders.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from bench.bare import Work
from bench.figures import CpuTime, Figure, Target, machine, report
from bench.loadgen import VALUE_BYTES, Phase, Result
from bench.nodes import REPOSITORY, THREE_NODES, BenchFailed, LoadProcess, Nodes
from bench.profiling import Profiler
from isthmus.node.local import directory as places
from isthmus.repl.model.errors import IsthmusError

COMMIT: Final = Target(7, "CPU s per 100,000 objects, three nodes", at_least=False)
"""From 25,000 objects per second on two cores, which would be 8, less a reserve."""

IDLE_CPU: Final = Target(1, "% of a core per node", at_least=False)

NODES: Final = ("n1", "n2", "n3")
BATCH_OBJECTS: Final = 100
BATCH_CONNECTIONS: Final = 8
READ_CONNECTIONS: Final = 32
DEPTH_ONE_REQUESTS: Final = 3_000
IDLE_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 3.0
"""Idle time before a measurement, in which the work of the previous one ends."""

START_TIMEOUT_S: Final = 60.0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--profile", is_flag=True, help="Profile the leader in each measurement.")
@click.option("--keys", default=100_000, show_default=True, help="Fresh keys per measurement without a rate.")
@click.option("--limit", "limit_s", default=120.0, show_default=True, help="Seconds after which a load ends.")
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path),
    help="Directory of the data; its disk determines the cost of an fsync.",
)
def main(as_json: bool, profile: bool, keys: int, limit_s: float, directory: Path | None) -> None:
    """Measure commits, committed reads and the idle cost of three nodes."""
    try:
        where = machine()
        runs = _Runs(profile, limit_s)
        with Nodes(THREE_NODES, None if directory is None else directory / "http") as nodes:
            runs.on(nodes)
            runs.idle()
            runs.over_http(keys)
        with Nodes(THREE_NODES, None if directory is None else directory / "bare") as nodes:
            runs.on(nodes)
            runs.bare(keys)
        report("isr", where, runs.figures, as_json, runs.profile)
    except (BenchFailed, IsthmusError) as error:
        print(f"bench: {error}", file=sys.stderr)
        raise SystemExit(1) from error


class _Runs:
    _nodes: Nodes

    def __init__(self, profile: bool, limit_s: float) -> None:
        self._profile = profile
        self._limit_s = limit_s
        self._first = 0
        self.figures: list[Figure] = []
        self.profile: list[str] = []

    def on(self, nodes: Nodes) -> None:
        """Use `nodes`, whose stores are empty, for the next measurements; existing keys cost LevelDB more."""
        self._nodes = nodes
        self._first = 0

    def idle(self) -> None:
        """CPU and memory of three idle nodes."""
        self._nodes.leader()
        time.sleep(SETTLE_SECONDS)
        cpu = self._nodes.measured(lambda: time.sleep(IDLE_SECONDS))
        share = {name: 100 * cpu[name].total / IDLE_SECONDS for name in NODES}
        values = {f"{name}_percent": round(percent, 2) for name, percent in share.items()}
        values |= {f"{name}_resident_MB": round(self._nodes.resident_mb(name), 1) for name in NODES}
        figure = Figure("idle cluster of three", "0 keys", cpu=cpu, values=values)
        figure.target, figure.measured = IDLE_CPU, max(share.values())
        self.figures.append(figure)

    def over_http(self, keys: int) -> None:
        """Measure batches, single writes and reads at the leader."""
        leader = self._nodes.leader()
        with LoadProcess(self._nodes.http[leader]) as load:
            batches = Phase("batch", self._fresh(keys), keys, 0, BATCH_CONNECTIONS, BATCH_OBJECTS)
            self._loaded("commit, batches over HTTP", f"{keys:,} fresh keys", load, batches, COMMIT)
            single = Phase("put", self._fresh(keys), min(keys, 3 * DEPTH_ONE_REQUESTS), 0, READ_CONNECTIONS, 1)
            self._loaded("commit, one object a request", f"{single.count:,} fresh keys", load, single)
            alone = Phase("put", self._fresh(DEPTH_ONE_REQUESTS), DEPTH_ONE_REQUESTS, 0, 1, 1)
            self._loaded("commit at depth 1", f"{alone.count:,} fresh keys", load, alone)
            space = f"any of {keys:,} keys"
            self._loaded("committed GET at depth 1", space, load, Phase("get", 0, DEPTH_ONE_REQUESTS, keys, 1, 1))
            self._loaded("committed GET", space, load, Phase("get", 0, min(keys, 50_000), keys, READ_CONNECTIONS, 1))

    def bare(self, keys: int) -> None:
        """Measure commits without HTTP: restart the nodes as `bench.bare`, and drive the leader inside its process."""
        for name in NODES:
            places.stop_node(self._nodes.directory, name)
        with ExitStack() as stack:
            drivers = {name: stack.enter_context(_Driver(self._nodes.directory / name / "node.toml")) for name in NODES}
            for driver in drivers.values():
                driver.wait_up()
            self._nodes.pids.update({name: driver.pid for name, driver in drivers.items()})
            leader = self._nodes.leader()
            for batch, outstanding in ((BATCH_OBJECTS, BATCH_CONNECTIONS), (256, 4), (1, 1)):
                count = keys if batch > 1 else DEPTH_ONE_REQUESTS
                work = Work(self._fresh(count), count, batch, outstanding)
                answers: list[dict[str, Any]] = []
                name = f"commit without HTTP, {outstanding} × {batch} under way"
                cpu = self._profiled(name, leader, lambda: answers.append(drivers[leader].run(work)))  # noqa: B023
                (answer,) = answers
                figure = Figure(
                    f"{name}, {VALUE_BYTES:,} bytes",
                    f"{count:,} fresh keys",
                    answer["objects"],
                    answer["seconds"],
                    cpu,
                    {"call_p50_ms": answer["p50_ms"], "call_p99_ms": answer["p99_ms"]},
                    failed=answer["failed"],
                )
                self._add(figure, leader, COMMIT if batch > 1 else None)
        for name in NODES:
            places.start_node(self._nodes.directory, name, None)
        self._nodes.refresh()

    def _fresh(self, count: int) -> int:
        first, self._first = self._first, self._first + count
        return first

    def _loaded(self, work: str, key_space: str, load: LoadProcess, phase: Phase, target: Target | None = None) -> None:
        bounded = Phase(**{**asdict(phase), "limit_s": self._limit_s})
        results: list[Result] = []
        leader = self._nodes.leader()
        self._nodes.pids["source of load"] = load.pid
        cpu = self._profiled(work, leader, lambda: results.append(load.run(bounded)))
        del self._nodes.pids["source of load"]
        (result,) = results
        values = {"request_p50_ms": result.p50_ms, "request_p99_ms": result.p99_ms, "request_max_ms": result.max_ms}
        under_way = f"{phase.connections} × {phase.batch}" if phase.kind == "batch" else str(phase.connections)
        title = f"{work}, {VALUE_BYTES:,} bytes, {under_way} under way"
        figure = Figure(title, key_space, result.objects, result.seconds, cpu, values, failed=result.failed)
        self._add(figure, leader, target)

    def _add(self, figure: Figure, leader: str, target: Target | None) -> None:
        """Name the processes by role, compare with the target, and keep the figure."""
        followers = (name for name in NODES if name != leader)
        roles = {leader: "leader", **dict(zip(followers, ("follower 1", "follower 2"), strict=True))}
        figure.cpu = {roles.get(name, name): spent for name, spent in figure.cpu.items()}
        if target is not None:
            figure.target = target
            figure.measured = sum(figure.per_100k(role).total for role in roles.values())
        self.figures.append(figure)

    def _profiled(self, work: str, leader: str, run: Callable[[], None]) -> dict[str, CpuTime]:
        time.sleep(SETTLE_SECONDS)
        profiler = Profiler(f"{work}, the leader", self._nodes.pids[leader]) if self._profile else None
        cpu = self._nodes.measured(run)
        if profiler is not None:
            self.profile += profiler.stop()
        return cpu


class _Driver:
    """A `bench.bare` child process."""

    def __init__(self, file: Path) -> None:
        self._log = file.with_name("bare.log").open("ab")
        command = [sys.executable, "-m", "bench.bare", str(file)]
        self._child = subprocess.Popen(
            command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log
        )

    def __enter__(self) -> _Driver:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        try:
            self._child.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()
        self._log.close()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def wait_up(self) -> None:
        """Wait until the node serves. Raises BenchFailed."""
        self._line()

    def run(self, work: Work) -> dict[str, Any]:
        """Run writes in the node and return their result. Raises BenchFailed when the process ends."""
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(asdict(work)).encode() + b"\n")
        self._child.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def _line(self) -> bytes:
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise BenchFailed(f"a bench.bare process ended; its output is in {self._log.name}")
        return line


if __name__ == "__main__":
    main()

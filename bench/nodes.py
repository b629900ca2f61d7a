"""Clusters for benchmarks, and the CPU time of their processes.

Starts clusters as `isthmus local` does, in a temporary directory, and stops them at the end, also after an error. CPU
seconds include all threads of a process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil

from bench.figures import CpuTime, cpu_time
from bench.loadgen import Phase, Result
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.topology import parse_topology
from isthmus.node.local.topology_model import SECURITY
from isthmus.repl.http.client import session

UP_TIMEOUT_S: Final = 90.0
METRICS_TIMEOUT_S: Final = 30.0
REPOSITORY: Final = Path(__file__).resolve().parents[1]

THREE_NODES: Final = """\
[clusters.bench.replication]
factor = 3
partitions = 1
[[clusters.bench.nodes]]
name = "n1"
[[clusters.bench.nodes]]
name = "n2"
[[clusters.bench.nodes]]
name = "n3"
"""
"""Three nodes with one partition: one leads, two follow."""

ONE_CLUSTER: Final = """\
[clusters.bench]
[[clusters.bench.nodes]]
name = "node"
"""

TWO_CLUSTERS: Final = """\
[clusters.a]
[[clusters.a.nodes]]
name = "a"
[[clusters.a.queues]]
name = "to-b"

[clusters.b]
[[clusters.b.nodes]]
name = "b"
[[clusters.b.sink.peers]]
cluster = "a"
queue = "to-b"
"""


class BenchFailed(Exception):
    """A benchmark cannot continue; the message is one line."""


SETTLED_S: Final = 30.0
"""Longer than leaders wait before they gather on fewer nodes."""

SECURE: Final = "secure = true\n"
"""Prefix for a topology: TLS and tokens on every listener. Methods that use `admin` do not support it."""


class Nodes:
    """Running clusters of a topology.

    `directory` holds their data (None: a temporary directory); its disk determines the cost of an fsync. All partitions
    are online within `up_timeout_s`, or entering raises LocalFault.
    """

    def __init__(self, topology: str, directory: Path | None, up_timeout_s: float = UP_TIMEOUT_S) -> None:
        self._temporary = directory is None
        self._up_timeout_s = up_timeout_s
        self._directory = directory or Path(tempfile.mkdtemp(prefix="isthmus-bench-"))
        self._clusters = LocalClusters(
            parse_topology(topology, Path("bench.toml")), self._directory, auto_ports=True, owned=True
        )
        self.http: dict[str, str] = {}
        self.admin: dict[str, AdminClient] = {}
        self.admin_urls: dict[str, str] = {}
        self.pids: dict[str, int] = {}
        self.zookeepers: dict[str, str] = {}
        """Addresses, by name."""

    @property
    def directory(self) -> Path:
        """The directory of the clusters."""
        return self._directory

    @property
    def access(self) -> tuple[str, ...]:
        """CA file and token file for clients; empty without TLS."""
        security = self._directory / SECURITY
        found = (security / "ca.crt", security / "write.token")
        return tuple(map(str, found)) if found[0].exists() else ()

    def __enter__(self) -> Self:
        try:
            self._clusters.up(self._up_timeout_s)
            self.refresh()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def refresh(self) -> None:
        """Read the addresses and process ids of all nodes and ZooKeepers."""
        for cluster in self._clusters.status()["clusters"].values():
            for node in cluster["nodes"]:
                self.http[node["name"]] = node["http"]
                self.admin[node["name"]] = AdminClient(node["admin"])
                self.admin_urls[node["name"]] = node["admin"]
                self.pids[node["name"]] = node["pid"]
            for zookeeper in cluster["zookeepers"]:
                self.pids[zookeeper["name"]] = zookeeper["pid"]
                self.zookeepers[zookeeper["name"]] = zookeeper["address"]

    def leader(self, timeout_s: float = UP_TIMEOUT_S) -> str:
        """Wait until all replicas of partition 0 are in sync; return its leader. Raises BenchFailed on time-out."""
        deadline_s = time.perf_counter() + timeout_s
        while time.perf_counter() < deadline_s:
            for admin in self.admin.values():
                try:
                    row = admin.get("/admin/partitions")["partitions"][0]
                except (CommandFailed, IndexError):
                    continue
                if row["leader"] is not None and len(row["isr"]) == len(row["replicas"]):
                    return str(row["leader"])
            time.sleep(0.1)
        raise BenchFailed(f"partition 0 has no leader with all replicas in sync within {timeout_s:.0f} s")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._clusters.down()
        if self._temporary:
            shutil.rmtree(self._directory, ignore_errors=True)

    def resident_mb(self, name: str) -> float:
        """Resident memory of a process, in MB."""
        resident: int = psutil.Process(self.pids[name]).memory_info().rss
        return resident / 1e6

    def measured(self, work: Callable[[], None]) -> dict[str, CpuTime]:
        """Run `work`; return the CPU seconds that each process used meanwhile."""
        before = {name: cpu_time(pid) for name, pid in self.pids.items()}
        work()
        used: dict[str, CpuTime] = {}
        for name, pid in self.pids.items():
            after = cpu_time(pid)
            used[name] = CpuTime(after.user - before[name].user, after.system - before[name].system)
        return used

    def metrics(self, name: str) -> list[str]:
        """The lines of a node's /metrics. Raises OSError."""
        with session() as http:
            return http.get(f"{self.http[name]}/metrics", timeout=METRICS_TIMEOUT_S).text.splitlines()

    def metric(self, name: str, metric: str) -> float:
        """The sum of a metric's samples at a node. Raises OSError."""
        lines = self.metrics(name)
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{metric} ", f"{metric}{{")))

    def trees_built(self, name: str) -> dict[int, int | None]:
        """Partition -> time of the last build of a node's tree, in ms."""
        trees = self.admin[name].get("/admin/trees")["trees"]
        return {tree["partition"]: tree["built_ms"] for tree in trees}

    def rebuild_trees(self, name: str, timeout_s: float, poll_s: float = 0.05) -> None:
        """Rebuild all trees of a node; each poll costs it CPU. Raises BenchFailed after `timeout_s`."""
        before = self.trees_built(name)
        self.admin[name].post("/admin/trees/rebuild", {})
        deadline_s = time.perf_counter() + timeout_s
        while any(built_ms == before.get(partition) for partition, built_ms in self.trees_built(name).items()):
            if time.perf_counter() > deadline_s:
                raise BenchFailed(f"not all trees were rebuilt within {timeout_s:.0f} s")
            time.sleep(poll_s)

    def sink(self, name: str) -> Mapping[str, Any]:
        """The status of the only link of a node's sink."""
        (link,) = self.sinks(name)
        return link

    def sinks(self, name: str) -> list[Mapping[str, Any]]:
        """The status of each link of a node's sink, one per node that it fetches from."""
        return list(self.admin[name].get("/admin/sink")["sinks"])

    def outstanding(self, name: str) -> int | None:
        """The number of unacknowledged changes of all queues of a node; None when unknown."""
        left = 0
        for queue in self.admin[name].get("/admin/queues")["queues"]:
            if queue["waiting"] is None or queue["in_flight"] is None:
                return None
            left += int(queue["waiting"]) + int(queue["in_flight"])
        return left

    def wait_settled(self, name: str, timeout_s: float = 90.0) -> None:
        """Wait until the cluster of a node has its leaders where they stand without load: on one node, or where they
        have stayed for SETTLED_S. Raises BenchFailed."""
        began_s = time.perf_counter()
        since_s, before = began_s, dict[str, int]()
        while time.perf_counter() - began_s < timeout_s:
            with suppress(CommandFailed):
                status = self.admin[name].get("/admin/leaders")
                goal = status.get("goal") or {"by_load": False}
                if status["leaders"] != before or status["state"] != "balanced":
                    since_s, before = time.perf_counter(), status["leaders"]
                elif not goal["by_load"] or goal["nodes"] == 1 or time.perf_counter() - since_s > SETTLED_S:
                    return
            time.sleep(0.5)
        raise BenchFailed(f"leaders of {name}'s cluster do not come to rest: {before}")

    def wait_drained(self, name: str, timeout_s: float, poll_s: float = 0.05) -> float:
        """Wait until a node's queues are empty; return the seconds. Raises BenchFailed after `timeout_s`."""
        began_s = time.perf_counter()
        left: int | None = None
        while time.perf_counter() - began_s < timeout_s:
            try:
                left = self.outstanding(name)
            except CommandFailed:
                left = None
            if left == 0:
                return time.perf_counter() - began_s
            time.sleep(poll_s)
        raise BenchFailed(f"the queues of {name} still have {left} unacknowledged changes after {timeout_s:.0f} s")


class LoadProcess:
    """A load generator as a child process: `bench.loadgen`, or another module that runs the same phases.

    `targets`: URLs or addresses of the servers. `arguments`: further arguments of the module."""

    def __init__(self, *targets: str, arguments: tuple[str, ...] = (), module: str = "bench.loadgen") -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-m", module, ",".join(targets), *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.close()
        if kind is not None:
            self._child.kill()
        self._child.wait()
        self._child.stdout.close()

    def run(self, phase: Phase) -> Result:
        """Run a phase. Raises BenchFailed when the node closes a connection or refuses every request."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps(asdict(phase)).encode() + b"\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise BenchFailed("bench.loadgen ended; see its output above")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchFailed(f"bench.loadgen: {answer['error']}")
        result = Result(**answer)
        if not result.objects:
            raise BenchFailed(f"no request succeeded: {result.failed}")
        return result

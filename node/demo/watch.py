"""Snapshots of a demo's clusters: processes, leaders, replicas in sync, queues, sinks, CPU time.

Asks the supervisor and every node's admin listener. Counts of several nodes are added up; a count is None (unknown)
unless the answers cover all partitions. Changes of processes, leaders and replicas in sync become notes.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil

from isthmus.config.text import quantity
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.node.local.directory import status_of
from isthmus.node.local.supervisor_client import START_TRIES
from isthmus.repl.model.errors import LocalFault

INTERVAL_S: Final = 1.0
"""Between two snapshots; CPU time of a killed process is lost with it, at most for this long."""

ANSWER_TIMEOUT_S: Final = 2.0
"""A node that takes longer is unknown in this snapshot."""

OWN_NAME: Final = "this demo"


class ProcessSnapshot(NamedTuple):
    """One process: its state, the reason, how often it was restarted, and `failures` in a row with its last output."""

    name: str
    state: str
    pid: int | None
    restarts: int
    reason: str
    failures: int = 0
    last_words: str = ""


class ClusterSnapshot(NamedTuple):
    """One cluster, by the node that read the metastore last. `leaders` counts partitions led by each node that holds
    replicas; `absent` are the nodes that are not registered."""

    name: str
    partitions: int
    online: int
    replicas: int
    in_sync: int
    leaders: Mapping[str, int]
    absent: tuple[str, ...] = ()

    @property
    def missing(self) -> int:
        """Partitions without a leader, replicas out of sync and nodes away; 0: the cluster is whole."""
        offline = self.partitions - self.online if self.partitions else 1
        return offline + self.replicas - self.in_sync + len(self.absent)

    def text(self) -> str:
        """Leaders and replicas in one line."""
        led = ", ".join(f"{name} {count}" for name, count in sorted(self.leaders.items()))
        offline = self.partitions - self.online
        leaderless = f"; {quantity(offline, 'partition')} without a leader" if offline else ""
        return f"{self.name}: leaders {led}; {self.in_sync} of {self.replicas} replicas in sync{leaderless}"


class QueueSnapshot(NamedTuple):
    """The source queue of a cluster, over all its nodes; None is unknown."""

    cluster: str
    name: str
    waiting: int | None
    in_flight: int | None
    reason: str

    @property
    def outstanding(self) -> int | None:
        """Changes that no sink has acknowledged."""
        return None if self.waiting is None or self.in_flight is None else self.waiting + self.in_flight


class SinkSnapshot(NamedTuple):
    """The sink of a cluster, over all links: lag since their nodes began, and in the last minute, p50 of the median
    link and p99 of the worst; None is unknown."""

    cluster: str
    queue: str
    state: str
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    recent_p50_ms: float | None
    recent_p99_ms: float | None
    reason: str


class DemoSnapshot(NamedTuple):
    """Processes, clusters, queues and sinks at one moment; `taken_s` is monotonic."""

    taken_s: float
    processes: tuple[ProcessSnapshot, ...] = ()
    clusters: tuple[ClusterSnapshot, ...] = ()
    """Those of which a node answered."""
    queues: tuple[QueueSnapshot, ...] = ()
    """One for each cluster."""
    sinks: tuple[SinkSnapshot, ...] = ()
    unknown: tuple[str, ...] = ()
    """Nodes that did not answer, each with why."""

    @property
    def missing(self) -> int | None:
        """`ClusterSnapshot.missing` of all clusters; None when one is unknown."""
        return sum(cluster.missing for cluster in self.clusters) if len(self.clusters) == len(self.queues) else None

    @property
    def outstanding(self) -> int | None:
        """Changes that are not acknowledged, of all queues; None when any is unknown."""
        return _total([queue.outstanding for queue in self.queues] or [None])

    def why_outstanding(self) -> str:
        """The outstanding changes and the reasons, in one line."""
        parts = list(self.unknown)
        parts += [cluster.text() for cluster in self.clusters if cluster.missing]
        for queue in self.queues:
            if queue.outstanding != 0:
                count = "an unknown number of" if queue.outstanding is None else f"{queue.outstanding:,}"
                parts.append(
                    f"{queue.cluster}'s queue {queue.name} has {count} changes outstanding {queue.reason}".strip()
                )
        parts += [f"{s.cluster}'s sink of {s.queue} is {s.state}: {s.reason}" for s in self.sinks if s.reason]
        return "; ".join(parts) or "nothing is outstanding"


def cluster_snapshot(name: str, raw: Mapping[str, Any]) -> ClusterSnapshot:
    """A cluster from a node's `/admin/cluster`."""
    partitions, replicas = raw["partitions"], raw["replicas"]
    return ClusterSnapshot(
        name,
        partitions["total"],
        partitions["online"],
        replicas["total"],
        replicas["in_sync"],
        {node["name"]: node["leaders"] for node in raw["nodes"]},
        tuple(node["name"] for node in raw["nodes"] if node["state"] == "gone"),
    )


def queue_snapshot(cluster: str, rows: Sequence[Mapping[str, Any]], partitions: int | None) -> QueueSnapshot:
    """A cluster's queue from the rows of its nodes' `/admin/queues`.

    A count is known only when the answers cover all of the cluster's `partitions`: each is counted where it is led.
    """
    if not rows:
        return QueueSnapshot(cluster, "unknown", None, None, "no node lists a queue")
    waiting, in_flight = (_total([row[key] for row in rows]) for key in ("waiting", "in_flight"))
    reason = next((row["reason"] for row in rows if row["reason"]), "")
    covered = sum(row["partitions"] for row in rows)
    if covered != partitions:
        waiting, reason = None, reason or f"{covered} of {partitions or 'an unknown number of'} partitions seen"
    return QueueSnapshot(cluster, rows[0]["name"], waiting, in_flight, reason)


def sink_snapshot(cluster: str, rows: Sequence[Mapping[str, Any]]) -> SinkSnapshot:
    """A cluster's sink from the rows of its nodes' `/admin/sink`, one for each link; at least one."""
    failing = next((row for row in rows if row["reason"]), rows[0])

    def over_links(key: str, combine: Callable[[Sequence[float]], float]) -> float | None:
        known = [row[key] for row in rows if row[key] is not None]
        return combine(known) if known else None

    return SinkSnapshot(
        cluster,
        failing["queue"],
        failing["state"],
        over_links("lag_ms_p50", statistics.median),
        over_links("lag_ms_p99", max),
        over_links("recent_lag_ms_p50", statistics.median),
        over_links("recent_lag_ms_p99", max),
        failing["reason"],
    )


def _total(counts: Sequence[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


class Watcher:
    """Takes snapshots, calls `note` with a line for each change that it sees, and adds up CPU time."""

    def __init__(self, directory: Path, clusters: Mapping[str, Any], note: Callable[[str], None]) -> None:
        """`clusters` as `LocalClusters.up` returns them."""
        self._directory = directory
        self._note = note
        self._admins = {
            name: {node["name"]: AdminClient(node["admin"], timeout_s=ANSWER_TIMEOUT_S) for node in cluster["nodes"]}
            for name, cluster in clusters.items()
        }
        self._processes: dict[str, ProcessSnapshot] = {}
        self._cluster_texts: dict[str, str] = {}
        self._cpu_seconds: dict[str, dict[int, float]] = {}
        self.latest = DemoSnapshot(-math.inf)

    def close(self) -> None:
        """Close the connections."""
        for admins in self._admins.values():
            for admin in admins.values():
                admin.close()

    def look(self) -> DemoSnapshot:
        """The newest snapshot; takes one when that is older than INTERVAL_S."""
        if time.monotonic() - self.latest.taken_s >= INTERVAL_S:
            self.latest = self._take()
        return self.latest

    def restarts(self) -> dict[str, int]:
        """Restarts by process, as the supervisor counts them."""
        return {name: process.restarts for name, process in self._processes.items()}

    def cpu_seconds(self) -> dict[str, float]:
        """CPU seconds by process, summed over those that had the name one after the other."""
        return {name: round(sum(by_pid.values()), 2) for name, by_pid in self._cpu_seconds.items()}

    def _take(self) -> DemoSnapshot:
        taken_s = time.monotonic()
        processes = self._take_processes()
        unknown: list[str] = []
        clusters: list[ClusterSnapshot] = []
        queues: list[QueueSnapshot] = []
        sinks: list[SinkSnapshot] = []
        for cluster, admins in self._admins.items():
            views: list[dict[str, Any]] = []
            queue_rows: list[dict[str, Any]] = []
            sink_rows: list[dict[str, Any]] = []
            for name, admin in admins.items():
                try:
                    views.append(admin.get("/admin/cluster"))
                    queue_rows += admin.get("/admin/queues")["queues"]
                    sink_rows += admin.get("/admin/sink")["sinks"]
                except CommandFailed as error:
                    unknown.append(f"{name}: {error}")
            partitions = None
            if views:
                newest = cluster_snapshot(cluster, max(views, key=lambda view: view["read_at_ms"] or 0))
                partitions = newest.partitions
                clusters.append(newest)
                self._note_cluster(newest)
            queues.append(queue_snapshot(cluster, queue_rows, partitions))
            sinks += [sink_snapshot(cluster, sink_rows)] if sink_rows else []
        return DemoSnapshot(taken_s, processes, tuple(clusters), tuple(queues), tuple(sinks), tuple(unknown))

    def _note_cluster(self, cluster: ClusterSnapshot) -> None:
        text = cluster.text()
        if self._cluster_texts.get(cluster.name) != text:
            self._note(text)
        self._cluster_texts[cluster.name] = text

    def _take_processes(self) -> tuple[ProcessSnapshot, ...]:
        try:
            status = status_of(self._directory, ask_nodes=False)
        except LocalFault as error:
            return (ProcessSnapshot("supervisor", "unknown", None, 0, str(error)),)
        supervisor = status["supervisor"]
        processes = [ProcessSnapshot("supervisor", "running" if supervisor else "gone", supervisor, 0, "")]
        for cluster in status["clusters"].values():
            rows = (*cluster["nodes"], *cluster["zookeepers"])
            processes += [ProcessSnapshot._make(row[name] for name in ProcessSnapshot._fields) for row in rows]
        for process in processes:
            self._note_process(process)
            self._add_cpu(process.name, process.pid)
        self._add_cpu(OWN_NAME, os.getpid())
        return tuple(processes)

    def _note_process(self, process: ProcessSnapshot) -> None:
        before = self._processes.get(process.name, process._replace(restarts=0, failures=0))
        if process.restarts > before.restarts:
            self._note(f"{process.name} was {process.reason}")
        if process.failures >= START_TRIES > before.failures:
            self._note(f"{process.name} does not stay up ({process.reason}): {process.last_words}")
        self._processes[process.name] = process

    def _add_cpu(self, name: str, pid: int | None) -> None:
        by_pid = self._cpu_seconds.setdefault(name, {})
        if pid is not None:
            with suppress(psutil.Error):
                by_pid[pid] = sum(psutil.Process(pid).cpu_times()[:2])

"""Snapshots of a demo's clusters, once a second: processes, leaders, replicas in sync, queues, sinks, CPU time.

Asks the supervisor and every node's admin listener, in a thread of its own, so that a node that is dead or paused
delays nothing else. Counts of several nodes are added up; a count is None (unknown) unless the answers cover all
partitions. Changes of processes, leaders and replicas in sync become notes.
"""

from __future__ import annotations

import math
import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from isthmus.config.text import quantity
from isthmus.node.cli.admin_client import AdminClient
from isthmus.node.cli.exit_codes import CommandFailed
from isthmus.node.demo.cost import CpuLedger
from isthmus.node.local.clusters import LocalClusters
from isthmus.node.local.directory import status_of
from isthmus.node.local.supervisor_client import START_TRIES
from isthmus.repl.model.errors import LocalFault

UNKNOWN_QUEUE: Final = "unknown"
"""Name of a queue for a cluster whose nodes list none; each cluster of a demo has one."""


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """One process: its state, the reason, and how often it was restarted."""

    name: str
    state: str
    pid: int | None
    restarts: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClusterSnapshot:
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
    def whole(self) -> bool:
        """Every partition online, every replica in sync, every node there."""
        return 0 < self.partitions == self.online and self.in_sync == self.replicas and not self.absent

    def text(self) -> str:
        """Leaders and replicas in one line."""
        led = ", ".join(f"{name} {count}" for name, count in sorted(self.leaders.items()))
        offline = f"; {quantity(self.partitions - self.online, 'partition')} without a leader" * (
            self.online < self.partitions
        )
        return f"{self.name}: leaders {led}; {self.in_sync} of {self.replicas} replicas in sync{offline}"


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One source queue of a cluster, over all its nodes; None is unknown."""

    cluster: str
    name: str
    waiting: int | None
    in_flight: int | None
    reason: str

    @property
    def outstanding(self) -> int | None:
        """Changes that no sink has acknowledged."""
        return None if self.waiting is None or self.in_flight is None else self.waiting + self.in_flight


@dataclass(frozen=True, slots=True)
class SinkSnapshot:
    """A cluster's sinks for one queue, over all links: lag since their nodes began, and in the last minute, p50 of the
    median link and p99 of the worst; None is unknown."""

    cluster: str
    queue: str
    state: str
    applied: int | None
    lag_p50_ms: float | None
    lag_p99_ms: float | None
    recent_p50_ms: float | None
    recent_p99_ms: float | None
    reason: str


@dataclass(frozen=True, slots=True)
class DemoSnapshot:
    """Processes, clusters, queues and sinks at one moment; `taken_s` is monotonic."""

    taken_s: float
    processes: tuple[ProcessSnapshot, ...] = ()
    clusters: tuple[ClusterSnapshot, ...] = ()
    queues: tuple[QueueSnapshot, ...] = ()
    sinks: tuple[SinkSnapshot, ...] = ()
    unknown: tuple[str, ...] = field(default=())
    """Nodes that did not answer, each with why."""

    def cluster(self, name: str) -> ClusterSnapshot | None:
        """One cluster; None when none of its nodes answered."""
        return next((cluster for cluster in self.clusters if cluster.name == name), None)

    @property
    def outstanding(self) -> int | None:
        """Changes that are not acknowledged, of all queues; None when any is unknown."""
        counts = [queue.outstanding for queue in self.queues]
        if not counts or any(count is None for count in counts):
            return None
        return sum(count for count in counts if count is not None)

    def why_outstanding(self) -> str:
        """The outstanding changes and the reasons, in one line."""
        parts = list(self.unknown)
        parts += [cluster.text() for cluster in self.clusters if not cluster.whole]
        for queue in self.queues:
            if queue.outstanding != 0:
                count = "an unknown number of" if queue.outstanding is None else f"{queue.outstanding:,}"
                parts.append(
                    f"{queue.cluster}'s queue {queue.name} has {count} changes outstanding {queue.reason}".strip()
                )
        parts += [f"{s.cluster}'s sink of {s.queue} is {s.state}: {s.reason}" for s in self.sinks if s.reason]
        return "; ".join(parts) or "nothing is outstanding"


def cluster_snapshot(name: str, raw: Mapping[str, Any]) -> ClusterSnapshot:
    """A cluster from a node's `/admin/cluster`. Raises KeyError, TypeError for anything else."""
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


def queue_snapshots(cluster: str, rows: Sequence[Mapping[str, Any]], partitions: int | None) -> list[QueueSnapshot]:
    """A cluster's queues from the rows of its nodes' `/admin/queues`.

    A count is known only when the answers cover all of the cluster's `partitions`: each is counted where it is led.
    Without rows the result is one unknown queue.
    """
    if not rows:
        return [QueueSnapshot(cluster, UNKNOWN_QUEUE, None, None, "no node tells of its queues")]
    snapshots = []
    for name in sorted({row["name"] for row in rows}):
        mine = [row for row in rows if row["name"] == name]
        covered = sum(row["partitions"] for row in mine)
        waiting, in_flight = (_sum([row[key] for row in mine]) for key in ("waiting", "in_flight"))
        reason = next((row["reason"] for row in mine if row.get("reason")), "")
        if covered != partitions:
            waiting, reason = None, reason or f"{covered} of {partitions or 'an unknown number of'} partitions seen"
        snapshots.append(QueueSnapshot(cluster, name, waiting, in_flight, reason))
    return snapshots


def sink_snapshots(cluster: str, rows: Sequence[Mapping[str, Any]]) -> list[SinkSnapshot]:
    """A cluster's sinks from the rows of its nodes' `/admin/sink`, one for each link."""
    snapshots = []
    for queue in sorted({row["queue"] for row in rows}):
        mine = [row for row in rows if row["queue"] == queue]
        troubled = next((row for row in mine if row.get("reason")), mine[0])
        snapshots.append(
            SinkSnapshot(
                cluster,
                queue,
                troubled["state"],
                _sum([row.get("applied") for row in mine]),
                _middle([row.get("lag_ms_p50") for row in mine]),
                _worst([row.get("lag_ms_p99") for row in mine]),
                _middle([row.get("recent_lag_ms_p50") for row in mine]),
                _worst([row.get("recent_lag_ms_p99") for row in mine]),
                troubled.get("reason") or "",
            )
        )
    return snapshots


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _middle(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _worst(values: Sequence[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


INTERVAL_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 2.0
"""A node that takes longer is unknown in this snapshot."""

OWN_NAME: Final = "this demo"


class Watcher:
    """Takes a snapshot every second until stopped; `latest` is the newest one."""

    def __init__(self, clusters: LocalClusters, nodes: Mapping[str, Mapping[str, str]]) -> None:
        """`nodes` maps each cluster to the admin URLs of its nodes, by name."""
        self._clusters = clusters
        self._admins = {
            cluster: {name: AdminClient(url, timeout_s=ANSWER_TIMEOUT_S) for name, url in admins.items()}
            for cluster, admins in nodes.items()
        }
        self._stopping = threading.Event()
        self._last_look = False
        self._taken = threading.Condition()
        self._notes: list[str] = []
        self._restarts: dict[str, int] = {}
        self._crash_looping: set[str] = set()
        self._cluster_texts: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="demo-watch", daemon=True)
        self.costs = CpuLedger()
        self.latest = DemoSnapshot(-math.inf)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, last_look: bool) -> None:
        """End; with `last_look` after a last snapshot, else at once."""
        self._last_look = last_look
        self._stopping.set()
        if last_look and self._thread.is_alive():
            self._thread.join()

    def snapshot_after(self, moment_s: float, timeout_s: float) -> DemoSnapshot:
        """The first snapshot that began after `moment_s` (monotonic); the newest one when none comes in time."""
        with self._taken:
            self._taken.wait_for(lambda: self.latest.taken_s > moment_s, timeout_s)
            return self.latest

    def taken_notes(self) -> list[str]:
        """Notes since the last call, one line each."""
        with self._taken:
            notes, self._notes = self._notes, []
            return notes

    def restarts(self) -> dict[str, int]:
        """Restarts by process, as the supervisor counts them."""
        return dict(self._restarts)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._take_snapshot()
            self._stopping.wait(INTERVAL_S)
        if self._last_look:
            self._take_snapshot()
        for admins in self._admins.values():
            for admin in admins.values():
                admin.close()

    def _take_snapshot(self) -> None:
        snapshot = self._snapshot()
        with self._taken:
            self._note_clusters(snapshot)
            self.latest = snapshot
            self._taken.notify_all()

    def _snapshot(self) -> DemoSnapshot:
        taken_s = time.monotonic()
        processes = self._processes()
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
                except (CommandFailed, KeyError, TypeError) as error:
                    unknown.append(f"{name}: {error}")
            newest = max(views, key=lambda view: view["read_at_ms"] or 0, default=None)
            clusters += [] if newest is None else [cluster_snapshot(cluster, newest)]
            queues += queue_snapshots(cluster, queue_rows, None if newest is None else newest["partitions"]["total"])
            sinks += sink_snapshots(cluster, sink_rows)
        return DemoSnapshot(taken_s, processes, tuple(clusters), tuple(queues), tuple(sinks), tuple(unknown))

    def _note_clusters(self, snapshot: DemoSnapshot) -> None:
        for cluster in snapshot.clusters:
            text = cluster.text()
            if self._cluster_texts.get(cluster.name, text) != text:
                self._notes.append(text)
            self._cluster_texts[cluster.name] = text

    def _processes(self) -> tuple[ProcessSnapshot, ...]:
        try:
            status = status_of(self._clusters.directory, ask_nodes=False)
        except LocalFault as error:
            return (ProcessSnapshot("supervisor", "unknown", None, 0, str(error)),)
        supervisor = status["supervisor"]
        rows = [raw for cluster in status["clusters"].values() for raw in (*cluster["nodes"], *cluster["zookeepers"])]
        snapshots = [ProcessSnapshot("supervisor", "running" if supervisor else "gone", supervisor, 0, "")]
        snapshots += [
            ProcessSnapshot(raw["name"], raw["state"], raw["pid"], raw["restarts"], raw["reason"]) for raw in rows
        ]
        self.costs.sample({snapshot.name: snapshot.pid for snapshot in snapshots} | {OWN_NAME: os.getpid()})
        with self._taken:
            for snapshot in snapshots:
                if snapshot.restarts > self._restarts.get(snapshot.name, 0):
                    self._notes.append(f"{snapshot.name} was {snapshot.reason}")
                self._restarts[snapshot.name] = snapshot.restarts
            for raw in rows:
                self._note_crash_loop(raw)
        return tuple(snapshots)

    def _note_crash_loop(self, raw: Mapping[str, Any]) -> None:
        """Note once the last output of a process that keeps failing."""
        if raw["failures"] < START_TRIES:
            self._crash_looping.discard(raw["name"])
        elif raw["name"] not in self._crash_looping:
            self._crash_looping.add(raw["name"])
            self._notes.append(f"{raw['name']} does not stay up ({raw['reason']}): {raw['last_words']}")

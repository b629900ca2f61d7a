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
    """One cluster: its metastore's content by the node that read it last, its queue and sink over all nodes. None is
    unknown."""

    name: str
    partitions: int | None = None
    online: int = 0
    replicas: int = 0
    in_sync: int = 0
    leaders: Mapping[str, int] = {}
    """Partitions led by each node that holds replicas."""
    absent: tuple[str, ...] = ()
    """Nodes that are not registered."""
    queue: str = "unknown"
    waiting: int | None = None
    in_flight: int | None = None
    queue_reason: str = ""
    lag_ms: tuple[float, float] | None = None
    """Lag of the sink since its nodes began: p50 of the median link and p99 of the worst."""
    recent_lag_ms: tuple[float, float] | None = None
    """The same in the last minute."""
    sink_reason: str = ""

    @property
    def missing(self) -> int | None:
        """Partitions without a leader, replicas out of sync and nodes away; 0: the cluster is whole."""
        if not self.partitions:
            return None
        return self.partitions - self.online + self.replicas - self.in_sync + len(self.absent)

    @property
    def outstanding(self) -> int | None:
        """Changes of the queue that no sink has acknowledged."""
        return None if self.waiting is None or self.in_flight is None else self.waiting + self.in_flight

    def text(self) -> str:
        """Leaders and replicas in one line."""
        led = ", ".join(f"{name} {count}" for name, count in sorted(self.leaders.items()))
        offline = (self.partitions or 0) - self.online
        leaderless = f"; {quantity(offline, 'partition')} without a leader" if offline else ""
        return f"{self.name}: leaders {led}; {self.in_sync} of {self.replicas} replicas in sync{leaderless}"


class DemoSnapshot(NamedTuple):
    """Processes and clusters at one moment; `taken_s` is monotonic."""

    taken_s: float
    processes: tuple[ProcessSnapshot, ...] = ()
    clusters: tuple[ClusterSnapshot, ...] = ()
    unknown: tuple[str, ...] = ()
    """Nodes that did not answer, each with why."""

    def cluster(self, name: str) -> ClusterSnapshot:
        """One cluster."""
        return next((cluster for cluster in self.clusters if cluster.name == name), ClusterSnapshot(name))

    @property
    def missing(self) -> int | None:
        """`ClusterSnapshot.missing` of all clusters; None when one is unknown."""
        return _total([cluster.missing for cluster in self.clusters])

    @property
    def outstanding(self) -> int | None:
        """`ClusterSnapshot.outstanding` of all clusters; None when one is unknown."""
        return _total([cluster.outstanding for cluster in self.clusters])

    def why_outstanding(self) -> str:
        """Everything missing and outstanding, with the reasons, in one line."""
        parts = list(self.unknown)
        parts += [cluster.text() for cluster in self.clusters if cluster.missing != 0]
        for cluster in self.clusters:
            if cluster.outstanding != 0:
                count = "an unknown number of" if cluster.outstanding is None else f"{cluster.outstanding:,}"
                queue = f"{cluster.name}'s queue {cluster.queue} has {count} changes outstanding"
                parts.append(f"{queue} {cluster.queue_reason}".strip())
        parts += [f"{cluster.name}'s sink {cluster.sink_reason}" for cluster in self.clusters if cluster.sink_reason]
        return "; ".join(parts) or "nothing is outstanding"


def cluster_snapshot(
    name: str,
    views: Sequence[Mapping[str, Any]],
    queues: Sequence[Mapping[str, Any]],
    sinks: Sequence[Mapping[str, Any]],
) -> ClusterSnapshot:
    """A cluster from its nodes' `/admin/cluster` and the rows of their `/admin/queues` and `/admin/sink`.

    Waiting changes are known only when the queues' rows cover all partitions: each is counted where it is led.
    """
    found = ClusterSnapshot(name)
    if views:
        view = max(views, key=lambda view: view["read_at_ms"] or 0)
        partitions, replicas = view["partitions"], view["replicas"]
        found = found._replace(
            partitions=partitions["total"],
            online=partitions["online"],
            replicas=replicas["total"],
            in_sync=replicas["in_sync"],
            leaders={node["name"]: node["leaders"] for node in view["nodes"]},
            absent=tuple(node["name"] for node in view["nodes"] if node["state"] == "gone"),
        )
    if queues:
        covered = sum(row["partitions"] for row in queues)
        known = covered == found.partitions
        seen = "" if known else f"{covered} of {found.partitions or 'an unknown number of'} partitions seen"
        found = found._replace(
            queue=queues[0]["name"],
            waiting=_total([row["waiting"] for row in queues]) if known else None,
            in_flight=_total([row["in_flight"] for row in queues]),
            queue_reason=next((row["reason"] for row in queues if row["reason"]), seen),
        )
    failing = [f"of {row['queue']} is {row['state']}: {row['reason']}" for row in sinks if row["reason"]]
    return found._replace(
        lag_ms=_lag(sinks, "lag_ms"), recent_lag_ms=_lag(sinks, "recent_lag_ms"), sink_reason="".join(failing[:1])
    )


def _lag(links: Sequence[Mapping[str, Any]], key: str) -> tuple[float, float] | None:
    known = [link for link in links if link[f"{key}_p50"] is not None]
    if not known:
        return None
    return statistics.median(link[f"{key}_p50"] for link in known), max(link[f"{key}_p99"] for link in known)


def _total(counts: Sequence[int | None]) -> int | None:
    """The sum; None when a count is unknown, or there is none."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


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
        for cluster, admins in self._admins.items():
            views: list[dict[str, Any]] = []
            queues: list[dict[str, Any]] = []
            sinks: list[dict[str, Any]] = []
            for name, admin in admins.items():
                try:
                    views.append(admin.get("/admin/cluster"))
                    queues += admin.get("/admin/queues")["queues"]
                    sinks += admin.get("/admin/sink")["sinks"]
                except CommandFailed as error:
                    unknown.append(f"{name}: {error}")
            clusters.append(cluster_snapshot(cluster, views, queues, sinks))
            if views:
                self._note_cluster(clusters[-1])
        return DemoSnapshot(taken_s, processes, tuple(clusters), tuple(unknown))

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

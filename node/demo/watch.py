"""What the demo sees of its clusters once a second: processes, queues, sinks, and what they cost.

Asks the supervisor and every node's admin listener as an operator would, in a thread of its own, so that a node
that is dead or paused delays nobody. What is not known is None. Changes of processes become notes in words. The
story goes on in `node.demo.view`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from node.demo.client import AdminClient, Trouble
from node.demo.costs import CpuLedger
from node.local import LocalClusters
from repl.model.errors import BadInput, LocalFault

INTERVAL_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 2.0
"""A node that takes longer to say how it is counts as unknown for this look."""

OWN_NAME: Final = "this demo"


@dataclass(frozen=True, slots=True)
class ProcessSight:
    """One process: its state in a word, why, and how often it was restarted."""

    name: str
    state: str
    pid: int | None
    restarts: int
    reason: str


@dataclass(frozen=True, slots=True)
class QueueSight:
    """One source queue of a cluster; None is unknown."""

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
class SinkSight:
    """What a cluster's sink says of one queue that it fetches: lag since its node began, and of the last minute; None
    is unknown."""

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
class Sight:
    """One look at everything; `taken_s` is monotonic."""

    taken_s: float
    processes: tuple[ProcessSight, ...] = ()
    queues: tuple[QueueSight, ...] = ()
    sinks: tuple[SinkSight, ...] = ()
    unknown: tuple[str, ...] = field(default=())
    """Nodes that did not answer, each with why."""

    @property
    def outstanding(self) -> int | None:
        """Changes that are not acknowledged, of all queues; None when any is unknown."""
        counts = [queue.outstanding for queue in self.queues]
        if self.unknown or not counts or any(count is None for count in counts):
            return None
        return sum(count for count in counts if count is not None)

    def why_outstanding(self) -> str:
        """What still waits, and what the parts say about it, in one line."""
        parts = list(self.unknown)
        for queue in self.queues:
            if queue.outstanding != 0:
                count = "an unknown number of" if queue.outstanding is None else f"{queue.outstanding:,}"
                parts.append(
                    f"{queue.cluster}'s queue {queue.name} has {count} changes outstanding {queue.reason}".strip()
                )
        parts += [f"{s.cluster}'s sink of {s.queue} is {s.state}: {s.reason}" for s in self.sinks if s.reason]
        return "; ".join(parts) or "nothing is outstanding"


class Watcher:
    """Looks once a second until stopped; `latest` is the last look, `notes` what happened to processes."""

    def __init__(self, clusters: LocalClusters, nodes: Mapping[str, str]) -> None:
        """`nodes` maps each cluster to its node's admin URL."""
        self._clusters = clusters
        self._admins = {name: AdminClient(url, ANSWER_TIMEOUT_S) for name, url in nodes.items()}
        self._stopping = threading.Event()
        self._last_look = False
        self._looked = threading.Condition()
        self._notes: list[str] = []
        self._restarts: dict[str, int] = {}
        self._thread = threading.Thread(target=self._run, name="demo-watch", daemon=True)
        self.costs = CpuLedger()
        self.latest = Sight(-math.inf)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self, last_look: bool) -> None:
        """End; with a last look at the costs, or at once."""
        self._last_look = last_look
        self._stopping.set()
        if last_look and self._thread.is_alive():
            self._thread.join()

    def look_after(self, moment_s: float, timeout_s: float) -> Sight:
        """The first look that began after `moment_s` (monotonic); the last one when none comes in time."""
        with self._looked:
            self._looked.wait_for(lambda: self.latest.taken_s > moment_s, timeout_s)
            return self.latest

    def taken_notes(self) -> list[str]:
        """What happened since the last call, one line each."""
        with self._looked:
            notes, self._notes = self._notes, []
            return notes

    def restarts(self) -> dict[str, int]:
        """Restarts by process, as the supervisor counts them."""
        return dict(self._restarts)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._take_look()
            self._stopping.wait(INTERVAL_S)
        if self._last_look:
            self._take_look()
        for admin in self._admins.values():
            admin.close()

    def _take_look(self) -> None:
        sight = self._look()
        with self._looked:
            self.latest = sight
            self._looked.notify_all()

    def _look(self) -> Sight:
        taken_s = time.monotonic()
        unknown: list[str] = []
        queues: list[QueueSight] = []
        sinks: list[SinkSight] = []
        for cluster, admin in self._admins.items():
            try:
                queues += [_queue(cluster, raw) for raw in admin.document("/admin/queues")["queues"]]
                sinks += [_sink(cluster, raw) for raw in admin.document("/admin/sink")["sinks"]]
            except (Trouble, BadInput, ValueError) as error:
                unknown.append(f"{cluster}: {error}")
        return Sight(taken_s, self._processes(), tuple(queues), tuple(sinks), tuple(unknown))

    def _processes(self) -> tuple[ProcessSight, ...]:
        try:
            status = self._clusters.status()
        except LocalFault as error:
            return (ProcessSight("supervisor", "unknown", None, 0, str(error)),)
        boss = status["supervisor"]
        sights = [ProcessSight("supervisor", "running" if boss else "gone", boss, 0, "")]
        sights += [
            ProcessSight(raw["name"], raw["state"], raw["pid"], raw["restarts"], raw["reason"])
            for cluster in status["clusters"].values()
            for raw in (*cluster["nodes"], *cluster["zookeepers"])
        ]
        self.costs.sample({sight.name: sight.pid for sight in sights} | {OWN_NAME: os.getpid()})
        with self._looked:
            for sight in sights:
                if sight.restarts > self._restarts.get(sight.name, 0):
                    self._notes.append(f"{sight.name} was {sight.reason}")
                self._restarts[sight.name] = sight.restarts
        return tuple(sights)


def _queue(cluster: str, raw: Mapping[str, Any]) -> QueueSight:
    return QueueSight(cluster, raw["name"], raw["waiting"], raw["in_flight"], raw.get("reason") or "")


def _sink(cluster: str, raw: Mapping[str, Any]) -> SinkSight:
    return SinkSight(
        cluster,
        raw["queue"],
        raw["state"],
        raw.get("applied"),
        raw.get("lag_ms_p50"),
        raw.get("lag_ms_p99"),
        raw.get("recent_lag_ms_p50"),
        raw.get("recent_lag_ms_p99"),
        raw.get("reason") or "",
    )

"""What the demo sees of its clusters once a second: processes, leaders, queues, sinks, and what they cost.

Asks the supervisor and every node's admin listener as an operator would, in a thread of its own, so that a node
that is dead or paused delays nobody. Changes of processes, of leaders and of replicas in sync become notes in words.
What a look holds is `node.demo.sights`; the story goes on in `node.demo.view`.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

from node.demo.client import AdminClient, Trouble
from node.demo.costs import CpuLedger
from node.demo.sights import (
    ClusterSight,
    ProcessSight,
    QueueSight,
    Sight,
    SinkSight,
    cluster_sight,
    queue_sights,
    sink_sights,
)
from node.local import LocalClusters
from node.places import status_of
from node.supervisor import START_TRIES
from repl.model.errors import BadInput, LocalFault

INTERVAL_S: Final = 1.0
ANSWER_TIMEOUT_S: Final = 2.0
"""A node that takes longer to say how it is counts as unknown for this look."""

OWN_NAME: Final = "this demo"


class Watcher:
    """Looks once a second until stopped; `latest` is the last look, `notes` what happened to processes and replicas."""

    def __init__(self, clusters: LocalClusters, nodes: Mapping[str, Mapping[str, str]]) -> None:
        """`nodes` maps each cluster to the admin URLs of its nodes, by name."""
        self._clusters = clusters
        self._admins = {
            cluster: {name: AdminClient(url, ANSWER_TIMEOUT_S) for name, url in admins.items()}
            for cluster, admins in nodes.items()
        }
        self._stopping = threading.Event()
        self._last_look = False
        self._looked = threading.Condition()
        self._notes: list[str] = []
        self._restarts: dict[str, int] = {}
        self._looping: set[str] = set()
        self._told: dict[str, str] = {}
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
        for admins in self._admins.values():
            for admin in admins.values():
                admin.close()

    def _take_look(self) -> None:
        sight = self._look()
        with self._looked:
            self._note_clusters(sight)
            self.latest = sight
            self._looked.notify_all()

    def _look(self) -> Sight:
        taken_s = time.monotonic()
        processes = self._processes()
        unknown: list[str] = []
        clusters: list[ClusterSight] = []
        queues: list[QueueSight] = []
        sinks: list[SinkSight] = []
        for cluster, admins in self._admins.items():
            views: list[dict[str, Any]] = []
            queue_rows: list[dict[str, Any]] = []
            sink_rows: list[dict[str, Any]] = []
            for name, admin in admins.items():
                try:
                    views.append(admin.document("/admin/cluster"))
                    queue_rows += admin.document("/admin/queues")["queues"]
                    sink_rows += admin.document("/admin/sink")["sinks"]
                except (Trouble, BadInput, ValueError, KeyError, TypeError) as error:
                    unknown.append(f"{name}: {error}")
            newest = max(views, key=lambda view: view["read_at_ms"] or 0, default=None)
            clusters += [] if newest is None else [cluster_sight(cluster, newest)]
            queues += queue_sights(cluster, queue_rows, None if newest is None else newest["partitions"]["total"])
            sinks += sink_sights(cluster, sink_rows)
        return Sight(taken_s, processes, tuple(clusters), tuple(queues), tuple(sinks), tuple(unknown))

    def _note_clusters(self, sight: Sight) -> None:
        for cluster in sight.clusters:
            told = cluster.told()
            if self._told.get(cluster.name, told) != told:
                self._notes.append(told)
            self._told[cluster.name] = told

    def _processes(self) -> tuple[ProcessSight, ...]:
        try:
            status = status_of(self._clusters.directory, ask_nodes=False)
        except LocalFault as error:
            return (ProcessSight("supervisor", "unknown", None, 0, str(error)),)
        boss = status["supervisor"]
        rows = [raw for cluster in status["clusters"].values() for raw in (*cluster["nodes"], *cluster["zookeepers"])]
        sights = [ProcessSight("supervisor", "running" if boss else "gone", boss, 0, "")]
        sights += [ProcessSight(raw["name"], raw["state"], raw["pid"], raw["restarts"], raw["reason"]) for raw in rows]
        self.costs.sample({sight.name: sight.pid for sight in sights} | {OWN_NAME: os.getpid()})
        with self._looked:
            for sight in sights:
                if sight.restarts > self._restarts.get(sight.name, 0):
                    self._notes.append(f"{sight.name} was {sight.reason}")
                self._restarts[sight.name] = sight.restarts
            for raw in rows:
                self._note_crash_loop(raw)
        return tuple(sights)

    def _note_crash_loop(self, raw: Mapping[str, Any]) -> None:
        """Say once of a process that does not stay up what it said last."""
        if raw["failures"] < START_TRIES:
            self._looping.discard(raw["name"])
        elif raw["name"] not in self._looping:
            self._looping.add(raw["name"])
            self._notes.append(f"{raw['name']} does not stay up ({raw['reason']}): {raw['last_words']}")

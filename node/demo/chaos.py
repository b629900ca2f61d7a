"""Failures that the demo causes while it replays: it kills a node that leads partitions, then a ZooKeeper, with kill
-9.

    waiting       -> node down      a quarter is done and the cluster is whole: the node that leads most is killed
    node down     -> coming back    the others lead its partitions and it was away for a while: it is started again
    coming back   -> whole again    every replica is in sync again
    whole again   -> done           three fifths of the replay are done: the cluster's ZooKeeper is killed

Decides from `watch.DemoSnapshot` and acts through a `ProcessControl`; each action and its effect is a note. The killed
node stays down until it is started here; the supervisor restarts the ZooKeeper.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from enum import Enum, auto
from pathlib import Path
from typing import Final, Protocol

from isthmus.config.text import quantity
from isthmus.node.demo.watch import ClusterSnapshot, DemoSnapshot, ProcessSnapshot
from isthmus.node.local import directory as local_directory
from isthmus.node.local import supervisor_client

NODE_SHARE: Final = 0.25
ZOOKEEPER_SHARE: Final = 0.6
"""Share of the replay that is done when a process is killed: enough before and after to see the difference."""

AWAY_S: Final = 10.0
"""Least time that the killed node stays down: the others notice within a session time-out of 6 s."""

AWAY_MOST_S: Final = 45.0
"""After this time it is started even when its partitions have not moved; a note says so."""


class ProcessControl(Protocol):
    """Stops, starts and kills processes of the demo's clusters."""

    def kill_node(self, name: str) -> None:
        """SIGKILL; it stays down. Raises LocalFault."""

    def start_node(self, name: str) -> None:
        """Start it, without waiting. Raises LocalFault."""

    def kill(self, pid: int) -> None:
        """SIGKILL to a process that its supervisor restarts."""


class SupervisorControl:
    """A `ProcessControl` through the supervisor of the clusters' directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def kill_node(self, name: str) -> None:
        """See ProcessControl."""
        local_directory.stop_node(self._directory, name, kill=True)

    def start_node(self, name: str) -> None:
        """See ProcessControl."""
        local_directory.start_node(self._directory, name, None)

    def kill(self, pid: int) -> None:
        """See ProcessControl."""
        process = next((p for p in supervisor_client.recorded_children(self._directory).values() if p.pid == pid), None)
        if process is not None:
            process.send(signal.SIGKILL)


class ChaosPhase(Enum):
    """Phase of the failures; the transitions stand at the top of this file."""

    WAITING = auto()
    NODE_DOWN = auto()
    COMING_BACK = auto()
    WHOLE_AGAIN = auto()
    DONE = auto()


class FailureInjector:
    """Kills processes of one cluster. `step` is called with every snapshot, `finish` once the replay is over."""

    def __init__(
        self,
        cluster: str,
        processes: ProcessControl,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._processes = processes
        self._note = note
        self._clock = clock
        self._victim = ""
        self._since_s = 0.0
        self.phase = ChaosPhase.WAITING
        self.sentences: list[str] = []
        """Each kill and its effect, a sentence each."""

    def step(self, share: float, snapshot: DemoSnapshot) -> None:
        """Take the action that is due with `share` (0 to 1) of the replay done. Raises LocalFault."""
        seen = snapshot.cluster(self._cluster)
        if seen is None:
            return
        match self.phase:
            case ChaosPhase.WAITING if share >= NODE_SHARE and seen.whole:
                self._kill_leader(seen, snapshot)
            case ChaosPhase.NODE_DOWN if self._is_time_to_start(seen):
                self._start(seen)
            case ChaosPhase.COMING_BACK if seen.whole and snapshot.taken_s > self._since_s:
                self._record(f"{self._victim}: every replica in sync again, {self._for_s():.0f} s after its start")
                self.phase = ChaosPhase.WHOLE_AGAIN
            case ChaosPhase.WHOLE_AGAIN if share >= ZOOKEEPER_SHARE:
                self._kill_zookeeper(snapshot)

    def finish(self, snapshot: DemoSnapshot) -> None:
        """Kill nothing more, and start what is down. Raises LocalFault."""
        if self.phase is ChaosPhase.NODE_DOWN and (seen := snapshot.cluster(self._cluster)) is not None:
            self._start(seen)
        elif self.phase not in (ChaosPhase.NODE_DOWN, ChaosPhase.COMING_BACK):
            self.phase = ChaosPhase.DONE

    def _kill_leader(self, seen: ClusterSnapshot, snapshot: DemoSnapshot) -> None:
        self._victim = max(sorted(seen.leaders), key=lambda name: seen.leaders[name])
        pid = _process(snapshot, self._victim).pid
        self._note(seen.text())
        self._processes.kill_node(self._victim)
        self._since_s = self._clock()
        self._record(
            f"killed {self._victim} (kill -9 {pid}), the leader of {quantity(seen.leaders[self._victim], 'partition')}"
        )
        self.phase = ChaosPhase.NODE_DOWN

    def _is_time_to_start(self, seen: ClusterSnapshot) -> bool:
        moved = not seen.leaders.get(self._victim) and seen.online == seen.partitions
        return self._for_s() >= (AWAY_S if moved else AWAY_MOST_S)

    def _start(self, seen: ClusterSnapshot) -> None:
        left = seen.leaders.get(self._victim, 0)
        away_s = self._for_s()
        self._processes.start_node(self._victim)
        self._since_s = self._clock()
        others = (
            "the others lead its partitions"
            if not left
            else f"it still is named leader of {quantity(left, 'partition')}"
        )
        self._record(f"started {self._victim} again after {away_s:.0f} s; {others}")
        self.phase = ChaosPhase.COMING_BACK

    def _kill_zookeeper(self, snapshot: DemoSnapshot) -> None:
        name = f"zookeeper-{self._cluster}"
        process = _process(snapshot, name)
        if process.pid is None:
            return  # the user killed it just now
        self._processes.kill(process.pid)
        self._record(f"killed {name} (kill -9 {process.pid}); writes go on without it, its supervisor restarts it")
        self.phase = ChaosPhase.DONE

    def _for_s(self) -> float:
        return self._clock() - self._since_s

    def _record(self, sentence: str) -> None:
        self.sentences.append(sentence)
        self._note(sentence)


def _process(snapshot: DemoSnapshot, name: str) -> ProcessSnapshot:
    """A process of the snapshot; one without a pid when it is missing."""
    unseen = ProcessSnapshot(name, "unknown", None, 0, "")
    return next((process for process in snapshot.processes if process.name == name), unseen)

"""What the demo breaks while it replays: a node that leads partitions, then a ZooKeeper, both by kill -9.

    waiting       -> node down      a quarter is done and the cluster is whole: the node that leads most is killed
    node down     -> coming back    the others lead its partitions and it was away for a while: it is started again
    coming back   -> whole again    every replica is in sync again
    whole again   -> done           three fifths of the replay are done: the cluster's ZooKeeper is killed

Decides by what `node.demo.watch` sees and acts through a `ProcessControl`; each act and what came of it is a note. The
killed node stays down until it is started here, the ZooKeeper is restarted by the supervisor.
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
"""How much of the replay is done when something is killed: enough before and after to see the difference."""

AWAY_S: Final = 10.0
"""How long the killed node stays away at least: the others notice within a session's time-out of 6 s and go on."""

AWAY_MOST_S: Final = 45.0
"""It is started again after so long even when its partitions have not moved; then that is seen and told."""


class ProcessControl(Protocol):
    """What is done to processes."""

    def kill_node(self, name: str) -> None:
        """SIGKILL; it stays down. Raises LocalFault."""

    def start_node(self, name: str) -> None:
        """Start it, without waiting. Raises LocalFault."""

    def kill(self, pid: int) -> None:
        """SIGKILL to a process that its supervisor restarts."""


class SupervisorControl:
    """Through the supervisor of the clusters' directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def kill_node(self, name: str) -> None:
        """See Hand."""
        local_directory.stop_node(self._directory, name, kill=True)

    def start_node(self, name: str) -> None:
        """See Hand."""
        local_directory.start_node(self._directory, name, None)

    def kill(self, pid: int) -> None:
        """See Hand."""
        process = next((p for p in supervisor_client.recorded_children(self._directory).values() if p.pid == pid), None)
        if process is not None:
            process.send(signal.SIGKILL)


class ChaosPhase(Enum):
    """Where the breaking is; the transitions stand at the top of this file."""

    WAITING = auto()
    NODE_DOWN = auto()
    COMING_BACK = auto()
    WHOLE_AGAIN = auto()
    DONE = auto()


class Breaker:
    """Breaks one cluster. `step` is called with every look, `mend` once the replay is over."""

    def __init__(
        self,
        cluster: str,
        hand: ProcessControl,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._hand = hand
        self._note = note
        self._clock = clock
        self._victim = ""
        self._since_s = 0.0
        self.stage = ChaosPhase.WAITING
        self.told: list[str] = []
        """What was broken and what came of it, a sentence each."""

    def step(self, share: float, sight: DemoSnapshot) -> None:
        """Do what is due with `share` (0 to 1) of the replay done. Raises LocalFault."""
        seen = sight.cluster(self._cluster)
        if seen is None:
            return
        match self.stage:
            case ChaosPhase.WAITING if share >= NODE_SHARE and seen.whole:
                self._kill_leader(seen, sight)
            case ChaosPhase.NODE_DOWN if self._is_time_to_start(seen):
                self._start(seen)
            case ChaosPhase.COMING_BACK if seen.whole and sight.taken_s > self._since_s:
                self._tell(f"{self._victim}: every replica in sync again, {self._for_s():.0f} s after its start")
                self.stage = ChaosPhase.WHOLE_AGAIN
            case ChaosPhase.WHOLE_AGAIN if share >= ZOOKEEPER_SHARE:
                self._kill_zookeeper(sight)

    def mend(self, sight: DemoSnapshot) -> None:
        """Nothing more is broken, and what is down is started. Raises LocalFault."""
        if self.stage is ChaosPhase.NODE_DOWN and (seen := sight.cluster(self._cluster)) is not None:
            self._start(seen)
        elif self.stage not in (ChaosPhase.NODE_DOWN, ChaosPhase.COMING_BACK):
            self.stage = ChaosPhase.DONE

    def _kill_leader(self, seen: ClusterSnapshot, sight: DemoSnapshot) -> None:
        self._victim = max(sorted(seen.leaders), key=lambda name: seen.leaders[name])
        pid = _process(sight, self._victim).pid
        self._note(seen.told())
        self._hand.kill_node(self._victim)
        self._since_s = self._clock()
        self._tell(
            f"killed {self._victim} (kill -9 {pid}), the leader of {quantity(seen.leaders[self._victim], 'partition')}"
        )
        self.stage = ChaosPhase.NODE_DOWN

    def _is_time_to_start(self, seen: ClusterSnapshot) -> bool:
        moved = not seen.leaders.get(self._victim) and seen.online == seen.partitions
        return self._for_s() >= (AWAY_S if moved else AWAY_MOST_S)

    def _start(self, seen: ClusterSnapshot) -> None:
        left = seen.leaders.get(self._victim, 0)
        away_s = self._for_s()
        self._hand.start_node(self._victim)
        self._since_s = self._clock()
        others = (
            "the others lead its partitions"
            if not left
            else f"it still is named leader of {quantity(left, 'partition')}"
        )
        self._tell(f"started {self._victim} again after {away_s:.0f} s; {others}")
        self.stage = ChaosPhase.COMING_BACK

    def _kill_zookeeper(self, sight: DemoSnapshot) -> None:
        name = f"zookeeper-{self._cluster}"
        process = _process(sight, name)
        if process.pid is None:
            return  # somebody else killed it just now
        self._hand.kill(process.pid)
        self._tell(f"killed {name} (kill -9 {process.pid}); writes go on without it, its supervisor restarts it")
        self.stage = ChaosPhase.DONE

    def _for_s(self) -> float:
        return self._clock() - self._since_s

    def _tell(self, sentence: str) -> None:
        self.told.append(sentence)
        self._note(sentence)


def _process(sight: DemoSnapshot, name: str) -> ProcessSnapshot:
    """A process as it was seen last; one without a pid when it was not."""
    unseen = ProcessSnapshot(name, "unknown", None, 0, "")
    return next((process for process in sight.processes if process.name == name), unseen)

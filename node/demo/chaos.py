"""Failures that the demo causes while it replays: it kills a node that leads partitions, then a ZooKeeper, with kill
-9.

    a quarter is done and the cluster is whole              the node that leads most is killed
    the others lead its partitions, and it was away a while it is started again
    every replica is in sync again, three fifths are done   the cluster's ZooKeeper is killed

Decides from `watch.DemoSnapshot` and acts through a `ProcessControl`; each action and its effect is a note. The killed
node stays down until it is started here; the supervisor restarts the ZooKeeper.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from isthmus.config.text import quantity
from isthmus.node.demo.watch import ClusterSnapshot, DemoSnapshot
from isthmus.node.local import directory as local_directory
from isthmus.node.local import supervisor_client

NODE_SHARE: Final = 0.25
ZOOKEEPER_SHARE: Final = 0.6
"""Share of the replay that is done when a process is killed: enough before and after to see the difference."""

AWAY_S: Final = 10.0
"""Least time that the killed node stays down: the others notice within a session time-out of 6 s."""

AWAY_MOST_S: Final = 45.0
"""After this time it is started even when its partitions have not moved; a note says so."""


class ProcessControl:
    """Stops, starts and kills processes through the supervisor of the clusters' directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def kill_node(self, name: str) -> None:
        """SIGKILL; it stays down. Raises LocalFault."""
        local_directory.stop_node(self._directory, name, kill=True)

    def start_node(self, name: str) -> None:
        """Start it, without waiting. Raises LocalFault."""
        local_directory.start_node(self._directory, name, None)

    def kill(self, name: str) -> None:
        """SIGKILL to a process that its supervisor restarts."""
        process = supervisor_client.recorded_children(self._directory).get(name)
        if process is not None:
            process.send(signal.SIGKILL)


class FailureInjector:
    """Kills processes of one cluster. `step` is called with every snapshot; `finish` once the replay is over."""

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
        self._share = 0.0
        self._snapshot = DemoSnapshot(0.0)
        self._seen = ClusterSnapshot(cluster)
        self._finishing = False
        self._plan = self._run()
        self.done = False
        """Nothing more is killed or started."""
        self.sentences: list[str] = []
        """Each kill and its effect, a sentence each."""

    def step(self, share: float, snapshot: DemoSnapshot) -> None:
        """Take the action that is due with `share` (0 to 1) of the replay done. Raises LocalFault."""
        seen = snapshot.cluster(self._cluster)
        if seen.partitions is not None:
            self._share, self._snapshot, self._seen = share, snapshot, seen
            self.done = next(self._plan, True)

    def finish(self) -> None:
        """From the next step on kill nothing more, and start what is down."""
        self._finishing = True

    def _run(self) -> Iterator[bool]:
        """The plan; yields False while it waits for the next step."""
        while not self._finishing and (self._share < NODE_SHARE or self._seen.missing != 0):
            yield False
        if self._finishing:
            return
        leaders = self._seen.leaders
        victim = max(sorted(leaders), key=lambda name: leaders[name])
        self._note(self._seen.text())
        self._processes.kill_node(victim)
        led = quantity(leaders[victim], "partition")
        self._record(f"killed {victim} (kill -9 {self._pid(victim)}), the leader of {led}")
        since_s = self._clock()
        yield False
        while not self._finishing and not self._is_time_to_start(victim, self._clock() - since_s):
            yield False
        left = self._seen.leaders.get(victim, 0)
        still = (
            f"it still is named leader of {quantity(left, 'partition')}" if left else "the others lead its partitions"
        )
        away_s = self._clock() - since_s
        self._processes.start_node(victim)
        self._record(f"started {victim} again after {away_s:.0f} s; {still}")
        since_s = self._clock()
        while self._seen.missing != 0 or self._snapshot.taken_s <= since_s:
            yield False
        self._record(f"{victim}: every replica in sync again, {self._clock() - since_s:.0f} s after its start")
        name = f"zookeeper-{self._cluster}"
        while not self._finishing and (self._share < ZOOKEEPER_SHARE or self._pid(name) is None):
            yield False  # without a pid: the user killed it just now
        if not self._finishing:
            self._processes.kill(name)
            self._record(
                f"killed {name} (kill -9 {self._pid(name)}); writes go on without it, its supervisor restarts it"
            )

    def _is_time_to_start(self, victim: str, away_s: float) -> bool:
        moved = not self._seen.leaders.get(victim) and self._seen.online == self._seen.partitions
        return away_s >= (AWAY_S if moved else AWAY_MOST_S)

    def _pid(self, name: str) -> int | None:
        return next((process.pid for process in self._snapshot.processes if process.name == name), None)

    def _record(self, sentence: str) -> None:
        self.sentences.append(sentence)
        self._note(sentence)

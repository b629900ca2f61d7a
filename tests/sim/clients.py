"""Clients of one partition: they write at whatever process of its node answers, and try again.

Every attempt has a request id of its own, so that what became of it can be told apart. Now and then a
batch was built for another state (an older epoch, a wrong place in the log); it must be refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.world import World


class Client:
    """A stream of batches for one partition; an operation counts as done when its last attempt was acknowledged."""

    def __init__(self, world: World, partition: int) -> None:
        self.world = world
        self.partition = partition
        self.final_done = False
        self._final = False
        self._stopped = False
        self._owed = 0
        """Items that were refused or are unknown, to be tried again."""

    def start(self) -> None:
        """Write, and again after a while."""
        if self._stopped:
            return
        world = self.world
        gap_ms = world.plan.write_gap_ms
        served = self._write()
        world.after(world.rng.randint(1, gap_ms) if served else world.rng.randint(gap_ms, 5 * gap_ms), self.start)

    def stop(self) -> None:
        """No more writes."""
        self._stopped = True

    def begin_final(self) -> None:
        """From now on one acknowledgement shows that the partition is well again."""
        self._final = True

    def acknowledged(self) -> None:
        """An item was acknowledged."""
        self.world.counts["acked"] += 1
        self.final_done = self.final_done or self._final

    def unknown(self) -> None:
        """An item's outcome is not known: it is tried again."""
        self._owed += 1

    def _write(self) -> bool:
        """Write once; False when nobody served it."""
        world = self.world
        rng = world.rng
        node = world.nodes[world.metastore.records[self.partition].replicas[0]]
        awake = [process for process in node.processes if not process.paused]
        if not awake:
            return False
        process = awake[0] if len(awake) == 1 else rng.choice(awake)
        count = min(8, self._owed) or rng.randint(1, 3)
        misfit = rng.random() < 0.03 and process.replicas[self.partition].ready
        shifts = rng.choice(((-1, 0), (0, -1), (0, 1), (1, 0))) if misfit else (0, 0)
        refused = process.submit(self, count, *shifts)
        assert (refused == "fenced") == misfit, f"a batch that was built for another state: {refused or 'appended'}"
        if refused is not None:
            world.counts[f"refused_{refused}"] += 1
            self._owed = max(self._owed, count)
            return misfit
        self._owed = max(0, self._owed - count)
        return True

"""Clients of one partition: they write to the leader that the record names, at times to other nodes, and retry.

Every attempt has a request id of its own, so that its outcome is distinct. Now and then a batch was built for another
state (an older epoch, a wrong log offset); it must be refused. In between they send committed reads to any process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process
    from tests.simulation.cluster.simulator import ClusterSimulation


class Client:
    """A stream of batches for one partition; an operation counts as done when its last attempt was acknowledged."""

    def __init__(self, simulation: ClusterSimulation, partition: int) -> None:
        self.simulation = simulation
        self.partition = partition
        self.done = False
        """An acknowledgement came since `begin`."""
        self._stopped = False
        self._owed = 0
        """Items that were refused or are unknown, to be tried again."""

    def start(self) -> None:
        """Write, and again after a while."""
        if self._stopped:
            return
        simulation = self.simulation
        gap_ms = simulation.plan.write_gap_ms
        served = self._write()
        if simulation.rng.random() < simulation.plan.reads:
            self._read()
        simulation.after(
            simulation.rng.randint(1, gap_ms) if served else simulation.rng.randint(gap_ms, 4 * gap_ms), self.start
        )

    def stop(self) -> None:
        """Stop writing and reading."""
        self._stopped = True

    def begin(self) -> None:
        """From now on one acknowledgement proves that the partition accepts writes."""
        self.done = False

    def acknowledged(self) -> None:
        """An item was acknowledged."""
        self.simulation.counts["acked"] += 1
        self.done = True

    def unknown(self) -> None:
        """The outcome of an item is unknown: it is retried."""
        self._owed += 1

    def _process(self, stray: float) -> Process | None:
        """The process to contact: on the leader's node by the record, or at times on any; of two processes there,
        either."""
        simulation, rng = self.simulation, self.simulation.rng
        record = simulation.metastore.records[self.partition]
        if record.leader is not None and rng.random() >= stray:
            name = record.leader.node
        else:
            name = rng.choice(record.replicas)
        awake = [p for p in simulation.nodes[name].processes if not p.paused and self.partition in p.replicas]
        if not awake:
            return None
        return awake[0] if len(awake) == 1 else rng.choice(awake)

    def _write(self) -> bool:
        """Write once; False when no process served it."""
        simulation, rng = self.simulation, self.simulation.rng
        process = self._process(0.05)
        if process is None:
            return False
        replica = process.replicas[self.partition]
        count = min(8, self._owed) or rng.randint(1, 3)
        misfit = replica.ready and rng.random() < 0.03
        shifts = rng.choice(((-1, 0), (0, -1), (0, 1), (1, 0))) if misfit else (0, 0)
        refused = process.submit(self, count, *shifts)
        assert (refused == "fenced") == misfit, f"a batch that was built for another state: {refused or 'appended'}"
        if refused is not None:
            simulation.counts[f"refused_{refused}"] += 1
            self._owed = max(self._owed, count)
            return misfit
        self._owed = max(0, self._owed - count)
        return True

    def _read(self) -> None:
        process = self._process(0.3)
        if process is not None:
            process.read(self.partition)

"""A machine with its disk, and the supervisor that starts the node's process again when it ended.

At most one process has the directory. A second one that is started while the first merely sleeps is
refused by the directory's lock, as on a real machine; `take_over` is the worse case, a lock that was lost
(a remounted disk): then two processes of one node run at once, and only the newer is obeyed by the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica import ReplicaRole
from tests.simulation.cluster.disk import Disk
from tests.simulation.cluster.process import Process

if TYPE_CHECKING:
    from tests.simulation.cluster.simulator import ClusterSimulation

ZOMBIE_LIMIT_MS = 2_500
"""How long a process that lost its directory may run after it woke up."""

STOP_LIMIT_MS = 6_000
"""How long a process may take for a graceful stop before it is killed."""

LEADS = (ReplicaRole.CANDIDATE, ReplicaRole.LEADER, ReplicaRole.RESIGNING)


class Node:
    """One machine."""

    def __init__(self, simulation: ClusterSimulation, name: str, partitions: Sequence[int]) -> None:
        self.simulation = simulation
        self.name = name
        self.disk = Disk(partitions, simulation.new_store)
        for partition in range(simulation.plan.partition_count):
            self.disk.log_ids[partition] = simulation.metastore.new_log_id()
        self.processes: list[Process] = []
        """Living ones, the one that holds the directory last."""
        self.ambush: type[fx.Effect] | None = None
        """A crash waits for the next effect of this kind."""
        self.gone = False
        """No process is started on it again."""
        self._started = 0

    @property
    def partitions(self) -> list[int]:
        """Partitions with a valid replica on this node."""
        return sorted(self.disk.logs.keys() - self.disk.condemned)

    @property
    def current(self) -> Process | None:
        """The process that holds the directory, if there is one."""
        holder = self.disk.holder
        return holder if isinstance(holder, Process) else None

    def start(self) -> None:
        """Start a process, unless the directory is taken."""
        if self.gone:
            return
        if self.disk.holder is not None:
            self.simulation.counts["lock_refused"] += 1
            return
        self._started += 1
        process = self.simulation.shell(self.simulation, self, self._started)
        self.processes.append(process)
        self.simulation.log_event(process.name, "starts")
        process.boot()
        self.simulation.network.links_changed()

    def died(self, process: Process) -> None:
        """A process ended; another one follows after a while."""
        self.processes.remove(process)
        self.simulation.network.links_changed()
        delay_ms = self.simulation.rng.randint(30, 1_200)
        if self.simulation.faults.over:
            delay_ms = 50
        self.simulation.after(delay_ms, self.start)

    # -- faults of the node ----------------------------------------------------------------------

    def kill(self) -> None:
        """SIGKILL."""
        if self.current is not None:
            self.simulation.counts["kill"] += 1
            self.current.die("killed")

    def power_loss(self) -> None:
        """The machine loses power and everything that was not synced. If that may include acknowledged data, its logs
        get new ids."""
        simulation = self.simulation
        simulation.counts["power_loss"] += 1
        for process in list(self.processes):
            process.die("power lost")
        simulation.checkers.data_lost(self)
        if self.disk.power_loss(simulation.rng):
            simulation.counts["tail_lost"] += 1
        for partition, log in self.disk.logs.items():
            if simulation.plan.asynchronous and partition not in self.disk.condemned:
                before = self.disk.log_ids[partition]
                self.take_new_log_id(partition)
                simulation.checkers.declared.renamed(self, partition, before)
            log.sync()  # the remaining state is the disk's
        simulation.checkers.disk_changed(self)

    def replace_disk(self) -> None:
        """The machine comes back with an empty disk."""
        simulation = self.simulation
        simulation.counts["disk_replaced"] += 1
        for process in list(self.processes):
            process.die("its disk is replaced")
        simulation.checkers.data_lost(self)
        here = [p for p, record in simulation.metastore.records.items() if self.name in record.replicas]
        self.disk = Disk(here, simulation.new_store)
        for partition in simulation.metastore.records:
            self.take_new_log_id(partition)
        simulation.checkers.disk_changed(self)

    def take_new_log_id(self, partition: int) -> None:
        """From now on the replica of `partition` here has another log (R-GEN)."""
        simulation = self.simulation
        self.disk.log_ids[partition] = simulation.metastore.new_log_id()
        simulation.counts["gen_lost"] += 1

    def pause(self, for_ms: int) -> None:
        """SIGSTOP, and SIGCONT later; the node may be started again meanwhile."""
        process = self.current
        if process is not None and not process.paused:
            process.paused = True
            self.simulation.counts["pause"] += 1
            self.simulation.log_event(process.name, f"sleeps for {for_ms} ms")
            if for_ms > 1_000:
                self.simulation.network.links_changed()
            self.simulation.after(for_ms // 2, self.start)
            self.simulation.after(for_ms, self._wake, process)

    def _wake(self, process: Process) -> None:
        if process.alive and process.paused and not self.gone:
            process.resume()
            self.simulation.network.links_changed()
            if not process.holds_directory():
                self.simulation.after(ZOMBIE_LIMIT_MS, process.die, "its place is taken")

    def take_over(self, sleep_ms: int) -> None:
        """The process sleeps, its lock is lost, another one starts; then the first wakes up."""
        process = self.current
        if process is not None and not process.paused:
            process.paused = True
            self.simulation.counts["take_over"] += 1
            self.simulation.log_event(process.name, f"sleeps for {sleep_ms} ms and loses its lock")
            self.disk.holder = None
            self.start()
            self.simulation.after(sleep_ms, self._wake, process)

    def stop(self, patience: int = 10) -> None:
        """Request a graceful stop; a little later, when the process leads something."""
        process = self.current
        if process is None or process.stopping or process.paused or self.simulation.faults.over:
            return
        if patience and not any(replica.ready for replica in process.replicas.values()):
            self.simulation.after(150, self.stop, patience - 1)
        else:
            process.stopping = True
            self.simulation.counts["stop"] += 1
            self.simulation.log_event(process.name, "is asked to stop")
            process.session.register_again()
            process.post_all(ev.Resign(None, self.simulation.sessions_as_read()))
            self._stopped(process, self.simulation.now_ms + STOP_LIMIT_MS)

    def _stopped(self, process: Process, limit_ms: int) -> None:
        """Let it end once it gave everything up."""
        if not process.alive:
            return
        disk = self.disk
        done = process.holds_directory() and all(
            replica.role not in LEADS and disk.stores[partition].applied >= replica.applied
            for partition, replica in process.replicas.items()
        )
        if done and not process.paused:
            self.simulation.counts["stopped_clean"] += 1
            process.checkpoint()
            self.simulation.metastore.close(self.name, process.session.session_id)
            process.die("stopped in order")
        elif self.simulation.now_ms >= limit_ms and not process.paused:
            self.simulation.counts["stop_forced"] += 1
            process.die("did not stop in time")
        else:
            self.simulation.after(40, self._stopped, process, limit_ms)

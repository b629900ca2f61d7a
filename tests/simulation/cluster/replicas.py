"""The replicas of a process: it creates those that records assign to its node, and deletes those that no record names
any more.

As in the product (`repl.runtime.replica_lifecycle`, `repl.runtime.replica_lifecycle`): a replica that no record names
is kept for a grace time, then the record is read again after a sync, then the replica is condemned and its slot gets
another log id, and only then are files deleted. A condemned replica is deleted in the end, by whichever process has the
directory then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.model.record import PartitionRecord

if TYPE_CHECKING:
    from tests.simulation.cluster.process import Process

GRACE_MS = 1_500
"""How long a replica that no record names is kept."""

AGAIN_MS = 400
"""Pause before the next attempt to condemn a replica."""


class ReplicaManager:
    """The replicas of one process."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.simulation = process.simulation
        self._records: dict[int, PartitionRecord] = {}
        self._looked_after: set[int] = set()

    def boot(self) -> None:
        """Before replicas are created: continue with condemned ones, and drop rows that cannot be replayed."""
        process = self.process
        disk = process.node.disk
        for partition in sorted(disk.condemned):
            self.simulation.after(process.store.disk_ms(1, 40), self._delete, partition)
        for partition in process.node.partitions:
            named = process.node.name in self.simulation.metastore.records[partition].replicas
            if disk.stores[partition].target and not named and disk.stores[partition].transfer is None:
                self.simulation.counts["removed_copy_emptied"] += 1
                disk.stores[partition].begin_transfer(empty=True)

    def seen(self, record: PartitionRecord) -> None:
        """A record reached this process: decide whether a replica is needed, or no longer."""
        partition, process = record.partition, self.process
        known = self._records.get(partition)
        if not process.alive or (known is not None and known.version >= record.version):
            return
        self._records[partition] = record
        if process.node.name in record.replicas:
            self._want(partition)
        elif partition in process.replicas and partition not in self._looked_after:
            self._looked_after.add(partition)
            self.simulation.after(self.simulation.rng.randint(1, GRACE_MS), self.consider, partition)

    def _want(self, partition: int) -> None:
        if partition not in self.process.replicas:
            self.simulation.after(self.process.store.disk_ms(1, 20), self._make, partition)

    def _make(self, partition: int) -> None:
        process, disk = self.process, self.process.node.disk
        record = self._records[partition]
        if not process.alive or not process.holds_directory() or partition in process.replicas:
            return
        if process.paused or partition in disk.condemned:
            self.simulation.after(AGAIN_MS, self._make, partition)
            return
        if process.node.name not in record.replicas:
            return
        self.simulation.counts["copy_made"] += 1
        disk.make_copy(partition)
        process.attach(partition)
        if process.session.session_id is not None:
            process.post(partition, ev.SessionStarted(process.session.session_id))
        process.post(partition, ev.RecordSeen(record))

    # -- deleting -------------------------------------------------------------------------------

    def consider(self, partition: int) -> None:
        """The grace time is over: read the record again, if no record names this replica yet."""
        process = self.process
        self._looked_after.discard(partition)
        named = process.node.name in self._records[partition].replicas
        if not process.alive or not process.holds_directory() or named or partition not in process.replicas:
            return
        self._looked_after.add(partition)
        if process.paused or not self._removed(partition) or not self._idle(partition):
            self.simulation.after(AGAIN_MS, self.consider, partition)
            return
        self.simulation.after(3 * AGAIN_MS, self.consider, partition)  # the answer may be lost
        self.simulation.metastore.read_synced(process.node.name, partition, self._read)

    def _removed(self, partition: int) -> bool:
        replica = self.process.replicas.get(partition)
        record = None if replica is None else replica.record
        return record is not None and self.process.node.name not in record.replicas

    def _idle(self, partition: int) -> bool:
        """Whether no operation of the replica is under way."""
        process = self.process
        replica, store = process.replicas[partition], process.node.disk.stores[partition]
        in_log = replica.durable < replica.leo or process.log.asked(partition)
        # Rows under transfer take no entries: unapplied entries are never applied.
        unapplied = replica.applied < replica.high_watermark and not store.transfer
        in_store = unapplied or process.transfers.busy(partition) or process.store.asked(partition)
        return (
            replica.role is ReplicaRole.IDLE
            and not in_log
            and not in_store
            and (store.transfer or store.applied >= replica.high_watermark)
        )

    def _read(self, record: PartitionRecord) -> None:
        process, partition = self.process, record.partition
        if not process.alive or process.paused or not process.holds_directory() or not self._removed(partition):
            return
        known = process.replicas[partition].record
        assert known is not None
        if record.version >= known.version and process.node.name not in record.replicas and self._idle(partition):
            self.condemn(partition)

    def condemn(self, partition: int) -> None:
        """Condemn the replica irrevocably: assign another log id, then delete everything."""
        process, disk = self.process, self.process.node.disk
        self.simulation.checkers.condemned(process.node, partition)
        self.simulation.counts["copy_condemned"] += 1
        self.simulation.log_event(process.name, f"condemns its copy of partition {partition}")
        disk.condemn(partition, self.next_log_id(partition))
        for kept in (process.replicas, process.undecided, process.tails, process.waiting):
            kept.pop(partition, None)  # type: ignore[attr-defined]
        process.session.register_again()
        self.simulation.after(process.store.disk_ms(1, 40), self._delete, partition)

    def next_log_id(self, _partition: int) -> int:
        """The log id of a replica that may be created here later."""
        return self.simulation.metastore.new_log_id()

    def _delete(self, partition: int) -> None:
        process, disk = self.process, self.process.node.disk
        if not process.alive or not process.holds_directory() or partition not in disk.condemned:
            return
        if process.paused:
            self.simulation.after(AGAIN_MS, self._delete, partition)
            return
        self.simulation.counts["copy_deleted"] += 1
        disk.delete_copy(partition)
        for zombie in process.node.processes:
            zombie.replicas.pop(partition, None)
        record = self._records.get(partition)
        if record is not None and process.node.name in record.replicas:
            self._want(partition)

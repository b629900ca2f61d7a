"""The copies of one node: which there are to be is the records' word; `repl.attaching` makes them, `repl.clearing`
deletes those that no record names any more. Both go on beside the write path, and `repl.runtime` feeds what is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from repl.attaching import Attaching
from repl.clearing import Clearing
from repl.identity import Identity
from repl.isr import events as ev
from repl.isr.options import Options
from repl.isr.succession import successors
from repl.metastore.port import Metastore
from repl.model.record import PartitionRecord
from repl.partition import Partition
from repl.registering import Registrar
from repl.replog.port import Replog
from repl.storage import Storage
from repl.store.port import Store
from repl.telemetry import Sample


class Copies:
    """`partitions` gains and loses what is made and deleted; `dispatch` feeds a core, `busy` says whether something of
    a replica is under way outside of log and store, `fail` ends the process. `inc` is this process's session, None
    without one."""

    def __init__(
        self,
        *,
        node: str,
        cluster_uuid: bytes,
        options_of: Callable[[str], Options],
        identity: Identity,
        metastore: Metastore,
        registrar: Registrar,
        replog: Replog,
        store: Store,
        storage: Storage,
        partitions: dict[int, Partition],
        removed_grace_ms: int,
        dispatch: Callable[[Partition, ev.Event], None],
        busy: Callable[[int], bool],
        fail: Callable[[Exception], None],
    ) -> None:
        self._node = node
        self._partitions = partitions
        self._storage = storage
        self._dispatch = dispatch
        self._busy_elsewhere = busy
        self._records: Mapping[int, PartitionRecord] = {}
        self.inc: int | None = None
        self._attaching = Attaching(
            node=node,
            cluster_uuid=cluster_uuid,
            options_of=options_of,
            identity=identity,
            registrar=registrar,
            replog=replog,
            store=store,
            replay=storage.replay,
            take=self._take,
            fail=fail,
        )
        self._clearing = Clearing(
            node=node,
            partitions=partitions,
            identity=identity,
            metastore=metastore,
            registrar=registrar,
            store=store,
            replog=replog,
            grace_ms=removed_grace_ms,
            busy=self._busy,
            let_go=storage.let_go,
            fail=fail,
        )

    def attach(self, record: PartitionRecord) -> Partition:
        """Make the replica of `record` from what log, store and identity hold. Before anything runs."""
        partition = self._partitions[record.partition] = self._attaching.replica(record)
        return partition

    def seen(self, records: Mapping[int, PartitionRecord]) -> None:
        """Records were read: begin to make the copies that they want of this node."""
        self._records = records
        self._attaching.wanted(records, self._partitions.keys() | self._clearing.going)

    def _take(self, made: list[Partition]) -> None:
        """New replicas are ready: tell them what the others know already."""
        for partition in made:
            self._partitions[partition.id] = partition
        for partition in made:
            if self.inc is not None:
                self._dispatch(partition, ev.SessionStarted(self.inc))
            record = self._records.get(partition.id)
            if record is not None:
                self._dispatch(partition, ev.RecordSeen(record))

    def heirs(self) -> dict[int, str]:
        """Who should take over what is led here, were this process to leave now."""
        return successors(self._records, self._node)

    def look(self, now_ms: int) -> None:
        """Once a second: see to copies that are no replicas any more, and to those that are again."""
        self._clearing.look(now_ms)
        self._attaching.wanted(self._records, self._partitions.keys() | self._clearing.going)

    def _busy(self, partition: Partition) -> bool:
        replica = partition.replica
        in_log = replica.durable < replica.leo
        in_store = partition.unapplied.submitted > replica.applied or partition.id in self._storage.mending
        return in_log or in_store or self._busy_elsewhere(partition.id)

    def log_restarted(self, partition: int) -> None:
        """The log of a copy that is not fed any more reports a cut."""
        self._clearing.log_restarted(partition)

    def cancel(self) -> None:
        """Make and delete no more: the process is leaving."""
        self._attaching.cancel()
        self._clearing.cancel()

    def stop(self) -> None:
        """Blocks until nothing uses the store."""
        self._clearing.stop()

    def metrics(self) -> list[Sample]:
        """What was deleted."""
        return [("isthmus_copies_deleted_total", {}, self._clearing.copies_deleted)]

"""What the core asks for that takes a round trip: epochs into the data directory, records into the metastore.

Runs beside the write path on the event loop; each answer goes back into the core as an event. Neither decides
anything: an undecided write is repeated when the core asks for it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from repl.identity import Identity
from repl.isr import events as ev
from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable
from repl.model.errors import LocalFault
from repl.model.record import PartitionRecord
from repl.partition import Partition


class RoundTrips:
    """Both kinds, for all partitions of a node. `dispatch` takes the answers, `fail` a disk that refuses."""

    def __init__(
        self,
        identity: Identity,
        metastore: Metastore,
        dispatch: Callable[[Partition, ev.Event], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._identity = identity
        self._metastore = metastore
        self._dispatch = dispatch
        self._fail = fail
        self._wanted: dict[int, tuple[Partition, int]] = {}
        self._epochs_task: asyncio.Task[None] | None = None
        self._writes: dict[int, asyncio.Task[None]] = {}

    def persist_epoch(self, partition: Partition, epoch: int) -> None:
        """Make `epoch` durable as the highest seen; many partitions share one fsync."""
        before = self._wanted.get(partition.id)
        self._wanted[partition.id] = (partition, epoch if before is None else max(before[1], epoch))
        if self._epochs_task is None or self._epochs_task.done():
            self._epochs_task = asyncio.get_running_loop().create_task(self._persist_epochs())

    async def _persist_epochs(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            epochs = {partition_id: epoch for partition_id, (_, epoch) in wanted.items()}
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._identity.note_epochs, epochs)
            except LocalFault as error:
                self._fail(error)
                return
            for partition, epoch in wanted.values():
                self._dispatch(partition, ev.EpochPersisted(epoch))

    def write_record(self, partition: Partition, record: PartitionRecord) -> None:
        """Write a record conditionally. One is in flight a partition: while it is, the core's repeats are dropped."""
        if partition.id not in self._writes:
            task = asyncio.get_running_loop().create_task(self._write(partition, record))
            self._writes[partition.id] = task

    async def _write(self, partition: Partition, record: PartitionRecord) -> None:
        event: ev.Event
        try:
            written = await self._metastore.write_record(record)
            event = ev.WriteConfirmed(written)
        except Conflict:
            try:
                records = await self._metastore.records()
                event = ev.WriteRefused(record.version, records[partition.id])
            except (Unavailable, KeyError):
                event = ev.WriteUndecided(record.version)
        except (Ambiguous, Unavailable):
            event = ev.WriteUndecided(record.version)
        finally:
            del self._writes[partition.id]
        self._dispatch(partition, event)

    def cancel(self) -> None:
        """Give up what is under way: the process is leaving."""
        for task in [self._epochs_task, *self._writes.values()]:
            if task is not None:
                task.cancel()

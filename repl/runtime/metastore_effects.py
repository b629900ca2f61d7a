"""What the core asks for that takes a round trip: epochs and gens into the data directory, records of the metastore.

Runs beside the write path on the event loop, and in a thread of its own where it waits for the disk: no election waits
for what others do in the loop's. Each answer goes back into the core as an event. Nothing is decided here:
an undecided write is repeated when the core asks for it again. Each kind has at most one round trip under way a
partition, so that what the core repeats is dropped while it is still true.

The alarm of a metastore that lost what it had confirmed, or was restored from an older copy (docs/protocol.md H32).

The core refuses such a record by itself and says so in its reason; here it is told to people, once a partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final, assert_never

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
from isthmus.repl.model.errors import IsthmusError, LocalFault
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.storage.identity import NodeIdentity

log = structlog.get_logger(__name__)

ROLLED_BACK: Final = "metastore-rollback"
"""Code of the core's reason."""


class RollbackAlarm:
    """Remembers of which partitions it has been told."""

    def __init__(self) -> None:
        self._told: set[int] = set()

    def look(self, partition: Partition) -> None:
        """A record of the partition was seen."""
        reason = partition.replica.reason
        if not reason.startswith(ROLLED_BACK):
            self._told.discard(partition.id)
        elif partition.id not in self._told:
            self._told.add(partition.id)
            log.error("METASTORE_ROLLBACK", partition=partition.id, reason=reason)


RETRY_MS: Final = 500
"""Pause before the metastore is asked again for what a copy cannot go on without."""


class MetastoreEffects:
    """All kinds, for all partitions of a node. `dispatch` takes the answers, `fail` a disk that refuses."""

    def __init__(
        self,
        identity: NodeIdentity,
        metastore: Metastore,
        registrar: Registrar,
        dispatch: Callable[[Partition, ev.Event], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._identity = identity
        self._metastore = metastore
        self._registrar = registrar
        self._dispatch = dispatch
        self._fail = fail
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="identity")
        self._wanted: dict[int, tuple[Partition, int, Incarnation | None]] = {}
        self._epochs_task: asyncio.Task[None] | None = None
        self._writes: dict[int, asyncio.Task[None]] = {}
        self._renewals: dict[int, asyncio.Task[None]] = {}
        self._syncs: dict[int, asyncio.Task[None]] = {}
        self._nonces: dict[int, int] = {}
        self._unsaid = False
        """Something is withheld that no registration says yet."""
        self._withholding: asyncio.Task[None] | None = None

    def perform(
        self, partition: Partition, effect: fx.PersistEpoch | fx.WriteRecord | fx.ReadRecordSync | fx.NewLogIdentity
    ) -> None:
        """Carry out one of the core's effects of this kind."""
        match effect:
            case fx.PersistEpoch(epoch, owner):
                self.persist_epoch(partition, epoch, owner)
            case fx.WriteRecord(record, needs):
                self.write_record(partition, record, needs)
            case fx.ReadRecordSync(nonce):
                self.sync_record(partition, nonce)
            case fx.NewLogIdentity(reason):
                self.renew_gen(partition, reason)
            case _:
                assert_never(effect)

    # -- the data directory -----------------------------------------------------------------------

    def persist_epoch(self, partition: Partition, epoch: int, owner: Incarnation | None) -> None:
        """Make `epoch` durable as the highest seen, and whose it is; many partitions share one fsync. The core asks for
        epochs in rising order."""
        self._wanted[partition.id] = (partition, epoch, owner)
        if self._epochs_task is None or self._epochs_task.done():
            self._epochs_task = asyncio.get_running_loop().create_task(self._persist_epochs())

    async def _persist_epochs(self) -> None:
        while self._wanted:
            wanted, self._wanted = self._wanted, {}
            epochs = {partition_id: (epoch, owner) for partition_id, (_, epoch, owner) in wanted.items()}
            try:
                await asyncio.get_running_loop().run_in_executor(self._disk, self._identity.note_epochs, epochs)
            except LocalFault as error:
                self._fail(error)
                return
            for partition, epoch, _ in wanted.values():
                self._dispatch(partition, ev.EpochPersisted(epoch))

    def renew_gen(self, partition: Partition, reason: str) -> None:
        """Give this copy another gen: allocated, durable, registered, and only then told to the core (R-GEN)."""
        if partition.id not in self._renewals:
            task = asyncio.get_running_loop().create_task(self._renew(partition, reason))
            self._renewals[partition.id] = task

    async def _renew(self, partition: Partition, reason: str) -> None:
        gen = 0
        while True:
            try:
                gen = gen or await self._new_gen(partition, reason)
                if not gen:
                    return
                await self._registrar.register()
            except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:  # never this disk's fault
                log.warning("identity.gen_waits", partition=partition.id, error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
            else:
                break
        del self._renewals[partition.id]
        self._dispatch(partition, ev.LogIdentityRenewed(gen))

    async def _new_gen(self, partition: Partition, reason: str) -> int:
        """Another gen, durable here; 0 when the disk refuses. Raises what the metastore raises."""
        gen = await self._metastore.allocate_gen()
        log.warning("identity.new_gen", partition=partition.id, gen=gen, reason=reason)
        try:
            await asyncio.get_running_loop().run_in_executor(self._disk, self._identity.note_gens, {partition.id: gen})
        except LocalFault as error:
            self._fail(error)
            return 0
        return gen

    def withhold(self, partition: int) -> None:
        """Tell the cluster that it cannot count on this copy, though the process and its session live."""
        self._registrar.withhold(partition)
        self._unsaid = True
        if self._withholding is None or self._withholding.done():
            self._withholding = asyncio.get_running_loop().create_task(self._withhold())

    async def _withhold(self) -> None:
        while self._unsaid:
            self._unsaid = False
            try:
                await self._registrar.register()
            except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:
                self._unsaid = True
                log.warning("identity.copy_is_withheld_later", error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)

    # -- the metastore ------------------------------------------------------------------------------

    def write_record(self, partition: Partition, record: PartitionRecord, needs: Collection[Member]) -> None:
        """Write a record conditionally. While one is in flight, the core's repeats are dropped."""
        if partition.id not in self._writes:
            task = asyncio.get_running_loop().create_task(self._write(partition, record, needs))
            self._writes[partition.id] = task

    async def _write(self, partition: Partition, record: PartitionRecord, needs: Collection[Member]) -> None:
        event: ev.Event
        try:
            event = ev.WriteConfirmed(await self._metastore.write_record(record, needs))
        except VersionConflict:
            event = await self._refused(partition, record.version)
        except (Ambiguous, Unavailable):
            event = ev.WriteOutcomeUnknown(record.version)
        except IsthmusError as error:
            log.warning("isr.record_not_written", partition=partition.id, error=str(error))
            event = ev.WriteOutcomeUnknown(record.version)
        finally:
            del self._writes[partition.id]
        self._dispatch(partition, event)

    async def _refused(self, partition: Partition, base_version: int) -> ev.Event:
        """The record as it is after a write was refused. Read after a sync: an older one would look as if the version
        had not moved."""
        try:
            return ev.WriteRefused(base_version, await self._metastore.synced_record(partition.id))
        except (Unavailable, Ambiguous, LookupError):
            return ev.WriteOutcomeUnknown(base_version)
        except IsthmusError as error:
            log.warning("isr.record_not_read", partition=partition.id, error=str(error))
            return ev.WriteOutcomeUnknown(base_version)

    def sync_record(self, partition: Partition, nonce: int) -> None:
        """Read the record after a sync. The newest question is answered by a read that began after it."""
        self._nonces[partition.id] = nonce
        if partition.id not in self._syncs:
            self._syncs[partition.id] = asyncio.get_running_loop().create_task(self._sync(partition))

    async def _sync(self, partition: Partition) -> None:
        try:
            while (nonce := self._nonces.pop(partition.id, None)) is not None:
                try:
                    record = await self._metastore.synced_record(partition.id)
                except (Unavailable, Ambiguous, LookupError):
                    continue
                except IsthmusError as error:
                    log.warning("isr.record_not_read", partition=partition.id, error=str(error))
                    continue
                self._dispatch(partition, ev.RecordSynced(nonce, record))
        finally:
            del self._syncs[partition.id]

    def busy(self, partition: int) -> bool:
        """True while something of a partition is under way."""
        return any(partition in kind for kind in (self._writes, self._renewals, self._syncs, self._wanted))

    def cancel(self) -> None:
        """Give up what is under way: the process is leaving."""
        for tasks in (self._writes, self._renewals, self._syncs):
            for task in list(tasks.values()):
                task.cancel()
        for single in (self._epochs_task, self._withholding):
            if single is not None:
                single.cancel()
        self._disk.shutdown(wait=False, cancel_futures=True)

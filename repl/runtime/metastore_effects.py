"""Carries out the core's effects that take a round trip: epochs and gens on disk, records in the metastore.

Runs beside the write path: on the event loop, and in its own thread where it waits for the disk, so that no election
waits for the loop's default executor. Each answer goes back to the core as an event. Nothing is decided here: an
undecided write is repeated when the core asks again. Each kind of effect has at most one round trip per partition under
way; repeated effects are dropped meanwhile.

`RollbackAlarm` reports a metastore that lost confirmed writes or was restored from an older copy (docs/protocol.md
H32). The core refuses such records by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Final, assert_never

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
from isthmus.repl.model.errors import IsthmusError, LocalFault
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.patience import once_possible
from isthmus.repl.runtime.port import EventSink
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

ROLLED_BACK: Final = "metastore-rollback"
"""Code of the core's reason for refusing a record."""


class RollbackAlarm:
    """Logs a metastore that went back in time, once for each partition."""

    def __init__(self) -> None:
        self._reported: set[int] = set()

    def check(self, partition: Partition) -> None:
        """Log an error if the core refused the newest record as older than a known one."""
        reason = partition.replica.reason
        if not reason.startswith(ROLLED_BACK):
            self._reported.discard(partition.id)
        elif partition.id not in self._reported:
            self._reported.add(partition.id)
            log.error("METASTORE_ROLLBACK", partition=partition.id, reason=reason)


RETRY_MS: Final = 500
"""Pause before a failed request to the metastore is repeated for a copy that cannot go on without it."""


class MetastoreEffects:
    """Round trips of all partitions of a node."""

    def __init__(
        self,
        identity: NodeIdentity,
        metastore: Metastore,
        registrar: Registrar,
        events: EventSink,
    ) -> None:
        self._identity = identity
        self._metastore = metastore
        self._registrar = registrar
        self._events = events
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="identity")
        self._epochs: dict[int, tuple[Partition, int, Incarnation | None]] = {}
        """Partition -> the epoch to make durable, and its leader."""
        self._epochs_task: asyncio.Task[None] | None = None
        self._write_tasks: dict[int, asyncio.Task[None]] = {}
        self._log_id_tasks: dict[int, asyncio.Task[None]] = {}
        self._sync_tasks: dict[int, asyncio.Task[None]] = {}
        self._nonces: dict[int, int] = {}
        """Partition -> nonce of its newest ReadRecordSync."""
        self._withheld_unregistered = False
        """A copy is withheld that no registration shows as withheld yet."""
        self._withhold_task: asyncio.Task[None] | None = None

    def perform(
        self, partition: Partition, effect: fx.PersistEpoch | fx.WriteRecord | fx.ReadRecordSync | fx.NewLogIdentity
    ) -> None:
        """Carry out an effect."""
        match effect:
            case fx.PersistEpoch(epoch, owner):
                self._persist_epoch(partition, epoch, owner)
            case fx.WriteRecord(record, needs):
                self._write_record(partition, record, needs)
            case fx.ReadRecordSync(nonce):
                self._sync_record(partition, nonce)
            case fx.NewLogIdentity(reason):
                self._renew_log_id(partition, reason)
            case _:
                assert_never(effect)

    # -- the data directory -----------------------------------------------------------------------

    def _persist_epoch(self, partition: Partition, epoch: int, owner: Incarnation | None) -> None:
        """Make `epoch` durable as the highest seen, with its leader; partitions share one fsync. The core asks for
        epochs in rising order."""
        self._epochs[partition.id] = (partition, epoch, owner)
        if self._epochs_task is None or self._epochs_task.done():
            self._epochs_task = asyncio.get_running_loop().create_task(self._persist_epochs())

    async def _persist_epochs(self) -> None:
        while self._epochs:
            pending, self._epochs = self._epochs, {}
            epochs = {partition_id: (epoch, owner) for partition_id, (_, epoch, owner) in pending.items()}
            try:
                await once_possible(self._disk, self._identity.note_epochs, epochs)
            except LocalFault as error:
                self._events.fail(error)
                return
            except Exception as bug:  # noqa: BLE001 - nothing says which epochs are durable
                for partition, _, _ in pending.values():
                    self._events.quarantine(partition, bug)
                continue
            for partition, epoch, _ in pending.values():
                self._events.dispatch(partition, ev.EpochPersisted(epoch))

    def _renew_log_id(self, partition: Partition, reason: str) -> None:
        """Give this copy another gen: allocate it, make it durable, register it, and only then dispatch it (R-GEN)."""
        if partition.id not in self._log_id_tasks:
            task = asyncio.get_running_loop().create_task(self._renew(partition, reason))
            self._log_id_tasks[partition.id] = task

    async def _renew(self, partition: Partition, reason: str) -> None:
        log_id = 0
        while True:
            try:
                log_id = log_id or await self._new_log_id(partition, reason)
                if not log_id:
                    return
                await self._registrar.register()
            except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:  # never this disk's fault
                log.warning("identity.gen_waits", partition=partition.id, error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
            except Exception as bug:
                unforeseen.exception("identity.gen_bug", bug, partition=partition.id)
                await asyncio.sleep(RETRY_MS / 1000)
            else:
                break
        del self._log_id_tasks[partition.id]
        self._events.dispatch(partition, ev.LogIdentityRenewed(log_id))

    async def _new_log_id(self, partition: Partition, reason: str) -> int:
        """Allocate a gen and make it durable here; 0 when the disk fails. Raises the metastore's errors."""
        log_id = await self._metastore.allocate_log_id()
        log.warning("identity.new_gen", partition=partition.id, gen=log_id, reason=reason)
        try:
            await once_possible(self._disk, self._identity.note_log_ids, {partition.id: log_id})
        except LocalFault as error:
            self._events.fail(error)
            return 0
        return log_id

    def withhold(self, partition: int) -> None:
        """Register this copy as one that the cluster cannot count on, though the process and its session live."""
        self._registrar.withhold(partition)
        self._withheld_unregistered = True
        if self._withhold_task is None or self._withhold_task.done():
            self._withhold_task = asyncio.get_running_loop().create_task(self._withhold())

    async def _withhold(self) -> None:
        while self._withheld_unregistered:
            self._withheld_unregistered = False
            try:
                await self._registrar.register()
            except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:
                self._withheld_unregistered = True
                log.warning("identity.copy_is_withheld_later", error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
            except Exception as bug:
                self._withheld_unregistered = True
                unforeseen.exception("identity.withhold_bug", bug)
                await asyncio.sleep(RETRY_MS / 1000)

    # -- the metastore ------------------------------------------------------------------------------

    def _write_record(self, partition: Partition, record: PartitionRecord, needs: Collection[Member]) -> None:
        """Write a record conditionally, unless a write of this partition is under way."""
        if partition.id not in self._write_tasks:
            task = asyncio.get_running_loop().create_task(self._write(partition, record, needs))
            self._write_tasks[partition.id] = task

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
        except Exception as bug:  # the core would wait for its answer for ever
            unforeseen.exception("isr.write_bug", bug, partition=partition.id)
            event = ev.WriteOutcomeUnknown(record.version)
        finally:
            del self._write_tasks[partition.id]
        self._events.dispatch(partition, event)

    async def _refused(self, partition: Partition, base_version: int) -> ev.Event:
        """Read the current record after a refused write, after a sync: an older one would look as if the version had
        not moved."""
        try:
            return ev.WriteRefused(base_version, await self._metastore.synced_record(partition.id))
        except (Unavailable, Ambiguous, LookupError):
            return ev.WriteOutcomeUnknown(base_version)
        except IsthmusError as error:
            log.warning("isr.record_not_read", partition=partition.id, error=str(error))
            return ev.WriteOutcomeUnknown(base_version)

    def _sync_record(self, partition: Partition, nonce: int) -> None:
        """Read the record after a sync; the newest nonce is answered by a read that began after its request."""
        self._nonces[partition.id] = nonce
        if partition.id not in self._sync_tasks:
            self._sync_tasks[partition.id] = asyncio.get_running_loop().create_task(self._sync(partition))

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
                except Exception as bug:
                    unforeseen.exception("isr.read_bug", bug, partition=partition.id)
                    continue
                self._events.dispatch(partition, ev.RecordSynced(nonce, record))
        finally:
            del self._sync_tasks[partition.id]

    def busy(self, partition: int) -> bool:
        """See InFlightWork."""
        return any(
            partition in kind for kind in (self._write_tasks, self._log_id_tasks, self._sync_tasks, self._epochs)
        )

    def cancel(self) -> None:
        """Cancel all round trips: the process is stopping."""
        for tasks in (self._write_tasks, self._log_id_tasks, self._sync_tasks):
            for task in list(tasks.values()):
                task.cancel()
        for single in (self._epochs_task, self._withhold_task):
            if single is not None:
                single.cancel()
        self._disk.shutdown(wait=False, cancel_futures=True)

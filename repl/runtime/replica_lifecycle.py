"""Opens the copies that the partition records assign to this node, and deletes those that no record names any more.

At a start copies are opened before anything runs. Later a record may name this node for a partition that it has no copy
of: then the copy's gen, the directory's spare one, is made durable and registered before the core gets an event
(docs/protocol.md R-GEN). All waiting is beside the write path. `repl.runtime.registration` decides what a copy's gen
means at a start.

Copies that no record names are deleted after a grace time (R-RF):

    kept       a record without this node was read: the copy stays as it is for the grace time; a record that names it
               again finds it as up to date as it was
    condemned  the record was read again, after a sync, and still does not name it: the copy no longer counts, and a
               later one gets another gen; noted in the identity before anything is deleted (R-GEN)
    deleted    its rows, then its log; a crash in between continues at the next start

Rows are deleted in steps, in a thread, with pauses, one copy at a time: the disk is shared with partitions that serve.
Only a record can remove a copy, never a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import structlog

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.epochs import epoch_at
from isthmus.repl.isr.replica import Replica
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.isr.succession import successors
from isthmus.repl.machine import machine
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
from isthmus.repl.model.errors import IsthmusError, LocalFault
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.runtime.node_data import NodeData, RuntimeSettings
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.patience import once_possible
from isthmus.repl.runtime.port import EventSink, InFlightWork
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.runtime.storage import Storage
from isthmus.repl.telemetry import Sample
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

RETRY_MS: Final = 500
"""Pause before a failed registration is repeated."""

NONCE_BITS: Final = 62
"""Bits of the random base of a process's nonces: fits msgpack, with a margin to count up."""


@dataclass(frozen=True)
class LocalCopies:
    """The copies of one node, at most one of each partition, and what keeps them."""

    node: str
    """The node's name, as partition records have it."""
    partitions: dict[int, Partition]
    """Partition id -> its copy; shared with the runtime. Gains the copies that are opened, loses those that are
    condemned."""
    data: NodeData
    registrar: Registrar
    """Registers the gens of the copies."""
    storage: Storage
    events: EventSink
    """Takes the events of copies that are opened or condemned, and what ends the process."""


class ReplicaOpener:
    """Builds replicas from log, store and identity; those of a running node are added to the copies."""

    def __init__(self, copies: LocalCopies, cluster_uuid: bytes, options_of: Callable[[str], ReplicaOptions]) -> None:
        self._node = copies.node
        self._cluster_uuid = cluster_uuid
        self._options_of = options_of
        self._partitions = copies.partitions
        self._identity = copies.data.identity
        self._registrar = copies.registrar
        self._replog = copies.data.replog
        self._store = copies.data.store
        self._replay = copies.storage.replay
        self._window = copies.storage.window
        self._events = copies.events
        self.session: int | None = None
        """This process's session with the metastore; None without one."""
        self.records: Mapping[int, PartitionRecord] = {}
        """The newest records that were read."""
        self._nonce_base = machine().random().getrandbits(NONCE_BITS)
        self._opening: dict[int, PartitionRecord] = {}
        """Records of the copies that are being opened."""
        self._task: asyncio.Task[None] | None = None

    def open(self, record: PartitionRecord) -> Partition:
        """The replica of `record`. Its gen is already in the identity."""
        partition = record.partition
        known = self._identity.partition(partition)
        assert known is not None, f"the gen of partition {partition} is not noted"
        leo = self._replog.leo(partition)
        log_start = self._replog.start_of(partition)
        applied = self._replay.first_offset(partition)
        transfer = self._transfer_state(partition, applied, log_start, removed=self._node not in record.replicas)
        if transfer is not None:
            self._replog.abandon(partition)
        replica = Replica(
            partition=partition,
            node=self._node,
            log_id=known.log_id,
            leo=leo,
            epoch_table=self._replog.epoch_table(partition),
            applied=applied,
            epoch_seen=known.epoch_seen,
            epoch_owner=known.epoch_owner,
            options=self._options_of(record.bucket_type),
            durable=leo,
            log_start=log_start,
            nonce_base=self._nonce_base,
            transfer=transfer,
            committed=0 if transfer is not None else self._committed(partition, leo),
        )
        if transfer is None and self._store.needs_replay():
            found = self._store.applied(partition)
            if found.offset > applied:
                replica.step(ev.RowsMissing(found.epoch, found.offset), 0)
            if replica.unfounded:
                log.error(
                    "attaching.rows_beyond_log",
                    partition=partition,
                    applied=found.offset,
                    leo=leo,
                    advice="its rows are given up for a leader's; forced to lead, it serves what its log lost",
                )
        return Partition(record, replica, self._cluster_uuid, log_start, self._window)

    def _committed(self, partition: int, leo: int) -> int:
        """The offset up to which the log is known to be committed: the store's applied offset, also where its rows must
        be replayed (H36), if the log holds that very entry, since it then holds all entries below it (I-LOG-MATCH).
        Else 0."""
        found = self._store.applied(partition)
        holds = found.offset <= leo and epoch_at(self._replog.epoch_table(partition), found.offset - 1) == found.epoch
        return found.offset if holds else 0

    def _transfer_state(
        self, partition: int, applied: int, log_start: int, *, removed: bool
    ) -> ev.TransferStored | None:
        """The state of an unfinished transfer to this copy; None without one. A copy whose store ends below its log
        begins one, and has another gen already (`repl.runtime.registration`). So does a copy whose rows must be
        replayed (H36) and that its record does not name: no leader would send it what is committed. Blocks at a start
        while rows are deleted."""
        mark = self._store.transfers.marks().get(partition)
        if removed and mark is None and self._store.needs_replay():
            log.warning("attaching.removed_copy_emptied", partition=partition, applied=applied)
            mark = self._store.transfers.begin(partition, empty=True)
            self._replay.forget(partition)
        if mark is None and applied < log_start:
            log.warning("attaching.store_lost", partition=partition, applied=applied, log_start=log_start)
            mark = self._store.transfers.begin(partition, empty=True)
            self._replay.forget(partition)
        return None if mark is None else ev.TransferStored(mark.position, mark.epoch, mark.whole)

    def open_assigned(self, present: Collection[int]) -> None:
        """Begin to open the copies that the records assign to this node and that are not among `present`."""
        deleting = self._identity.condemned()
        for partition, record in self.records.items():
            if partition in present or partition in self._opening or self._node not in record.replicas:
                continue
            if partition not in deleting:
                self._opening[partition] = record
        if self._opening and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._open_copies())

    async def _open_copies(self) -> None:
        while self._opening:
            fresh = dict(self._opening)
            unknown = [partition for partition in fresh if self._identity.partition(partition) is None]
            if unknown:
                again, spare = self._identity.log_ids(), self._identity.spare
                log_ids = {partition: again.get(partition, spare) for partition in unknown}
                try:
                    await once_possible(None, self._identity.note_log_ids, log_ids)
                except LocalFault as error:
                    self._events.fail(error)
                    return
                log.info("attaching.new_copies", gens=log_ids)
            try:
                await self._registrar.register()
            except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:  # never this disk's fault
                log.warning("attaching.waits", partitions=sorted(fresh), error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            opened = []
            for partition, record in sorted(fresh.items()):
                del self._opening[partition]
                try:
                    opened.append(self.open(record))
                except Exception as bug:  # tried again each second; the other copies are opened
                    unforeseen.exception("attaching.copy_bug", bug, partition=partition)
            self._start(opened)

    def _start(self, opened: list[Partition]) -> None:
        """Dispatch to new replicas the events that the others had before."""
        for partition in opened:
            self._partitions[partition.id] = partition
        for partition in opened:
            if self.session is not None:
                self._events.dispatch(partition, ev.SessionStarted(self.session))
            record = self.records.get(partition.id)
            if record is not None:
                self._events.dispatch(partition, ev.RecordSeen(record))

    def cancel(self) -> None:
        """Open no more copies: the process is stopping."""
        if self._task is not None:
            self._task.cancel()


STEP_PAUSE_S: Final = 0.02
"""Pause after each step of a deletion (some thousand rows, about 10 ms of the interpreter)."""


class ReplicaRemover:
    """Deletes copies that no record names; a condemned copy gets no more events."""

    def __init__(
        self, copies: LocalCopies, metastore: Metastore, in_flight: Sequence[InFlightWork], grace_ms: int
    ) -> None:
        self._node = copies.node
        self._partitions = copies.partitions
        self._identity = copies.data.identity
        self._metastore = metastore
        self._registrar = copies.registrar
        self._store = copies.data.store
        self._replog = copies.data.replog
        self._storage = copies.storage
        self._in_flight = in_flight
        self._grace_ms = grace_ms
        self._events = copies.events
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="clear")
        self._removed_ms: dict[int, int] = {}
        """Partition -> when a record without this node was first seen."""
        self._restarts: dict[int, asyncio.Future[None]] = {}
        """Partition -> done when its emptied log is durable."""
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.condemning: dict[int, int] = {}
        """Partitions that are being noted as condemned, with the next gen: they must not be opened, whatever a record
        says now. A note that failed is made again in the next turn."""
        self.copies_deleted = 0

    def check(self, now_ms: int) -> None:
        """Condemn copies whose grace time is over, and delete condemned ones; once a second."""
        due: list[Partition] = []
        for partition in self._partitions.values():
            if not partition.removed:
                if self._removed_ms.pop(partition.id, None) is not None:
                    partition.deletion_note = ""
                    log.info("clearing.kept", partition=partition.id)
                continue
            since_ms = self._removed_ms.setdefault(partition.id, now_ms)
            left_ms = max(0, since_ms + self._grace_ms - now_ms)
            when = f"in {left_ms // 1000} s" if left_ms else "as soon as the metastore has confirmed it"
            partition.deletion_note = f"its copy here is deleted {when}"
            if not left_ms and partition.replica.role is ReplicaRole.IDLE and not self._busy(partition):
                due.append(partition)
        work = due or self.condemning or self._identity.condemned()
        if work and (self._task is None or self._task.done()) and not self._stopping:
            self._task = asyncio.get_running_loop().create_task(self._remove(due))

    async def _remove(self, due: list[Partition]) -> None:
        for number in list(self.condemning):
            await self._alone(number, partial(self._note_condemned, number))
        for partition in due:
            await self._alone(partition.id, partial(self._confirm_and_condemn, partition))
        for number in self._identity.condemned():
            await self._alone(number, partial(self._delete, number))

    async def _alone(self, partition: int, step: Callable[[], Awaitable[None]]) -> None:
        """A step of one copy. What nobody foresaw leaves this copy as it is, for the next turn, and no other."""
        try:
            await step()
        except (IsthmusError, OSError) as error:
            self._events.fail(error)
        except Exception as bug:
            unforeseen.exception("clearing.bug", bug, partition=partition)

    async def _confirm_and_condemn(self, partition: Partition) -> None:
        """Condemn a copy if the metastore's record still does not name it; keep it when the record cannot be read."""
        try:
            record = await self._metastore.synced_record(partition.id)
            log_id = await self._metastore.allocate_log_id()
        except (Unavailable, Ambiguous, VersionConflict, LookupError, IsthmusError) as error:
            log.warning("clearing.waits", partition=partition.id, error=str(error))
            return
        await self._condemn(partition, record, log_id)

    async def _condemn(self, partition: Partition, record: PartitionRecord, log_id: int) -> None:
        """Note the copy as condemned, for good, unless `record` or work under way forbids it."""
        if self._named(record, partition) or self._busy(partition) or not partition.removed:
            return
        self.condemning[partition.id] = log_id
        del self._partitions[partition.id]
        del self._removed_ms[partition.id]
        self._storage.release_memory(partition)
        log.warning("clearing.condemned", partition=partition.id, gen=partition.replica.member.log_id, next_gen=log_id)
        await self._note_condemned(partition.id)

    async def _note_condemned(self, partition: int) -> None:
        await once_possible(self._pool, self._identity.condemn, partition, self.condemning[partition])
        del self.condemning[partition]
        try:
            await self._registrar.register()
        except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:
            log.warning("clearing.waits", partition=partition, error=str(error))

    def _busy(self, partition: Partition) -> bool:
        """True while entries or rows of the copy are on their way to log, store or metastore."""
        replica = partition.replica
        in_log = replica.durable < replica.leo
        in_store = partition.unapplied.submitted > replica.applied or partition.id in self._storage.mending
        return in_log or in_store or any(work.busy(partition.id) for work in self._in_flight)

    def _named(self, record: PartitionRecord, partition: Partition) -> bool:
        """True unless `record` is at least as new as the replica's, and does not name this node."""
        known = partition.replica.record
        assert known is not None, "a copy is removed by a record"
        older = record.version < known.version or record.epoch < partition.replica.epoch_seen
        return older or self._node in record.replicas

    async def _delete(self, partition: int) -> None:
        loop = asyncio.get_running_loop()
        rows = 0
        self._replog.abandon(partition)
        removal = self._store.transfers.remove(partition)
        while (count := await loop.run_in_executor(self._pool, _step, removal)) is not None:
            rows += count
            await asyncio.sleep(STEP_PAUSE_S)
        durable = self._restarts[partition] = loop.create_future()
        self._replog.restart(partition, 0, ())
        await durable
        await once_possible(self._pool, self._identity.deleted, partition)
        self.copies_deleted += 1
        log.warning("clearing.deleted", partition=partition, rows=rows)

    def log_restarted(self, partition: int) -> None:
        """The log of a partition that gets no more events was cut or restarted."""
        durable = self._restarts.pop(partition, None)
        if durable is not None and not durable.done():
            durable.set_result(None)

    def cancel(self) -> None:
        """Begin no more deletions: the process is stopping."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """Block until the step under way is done; after `cancel`."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _step(removal: Iterator[int]) -> int | None:
    return next(removal, None)


class ReplicaManager:
    """Opens and removes the copies of one node."""

    def __init__(
        self,
        copies: LocalCopies,
        settings: RuntimeSettings,
        metastore: Metastore,
        in_flight: Sequence[InFlightWork],
    ) -> None:
        self._node = copies.node
        self._partitions = copies.partitions
        self._opener = ReplicaOpener(copies, settings.cluster_uuid, settings.options_of)
        self._remover = ReplicaRemover(copies, metastore, in_flight, settings.removed_grace_ms)

    def attach(self, record: PartitionRecord) -> Partition:
        """Open the replica of `record`, before anything runs."""
        partition = self._partitions[record.partition] = self._opener.open(record)
        return partition

    def session_changed(self, session: int | None) -> None:
        """This process is registered under `session`, or its session is over (None)."""
        self._opener.session = session

    def records_seen(self, records: Mapping[int, PartitionRecord]) -> None:
        """Begin to open the copies that the records assign to this node."""
        self._opener.records = records
        self._open_assigned()

    def successors(self, reached: Collection[str]) -> dict[int, str]:
        """Which node should take over each partition that is led here, if this process stopped now; `reached`: those
        that this node has dialled."""
        return successors(self._opener.records, self._node, reached)

    def check(self, now_ms: int) -> None:
        """Remove copies that no record names, and open those that are assigned again; once a second."""
        self._remover.check(now_ms)
        self._open_assigned()

    def _open_assigned(self) -> None:
        self._opener.open_assigned(self._partitions.keys() | self._remover.condemning.keys())

    def log_restarted(self, partition: int) -> None:
        """The log of a copy that gets no more events was cut or restarted."""
        self._remover.log_restarted(partition)

    def cancel(self) -> None:
        """Open and delete no more copies: the process is stopping."""
        self._opener.cancel()
        self._remover.cancel()

    def stop(self) -> None:
        """Block until nothing here uses the store."""
        self._remover.stop()

    def metrics(self) -> list[Sample]:
        """Deleted copies."""
        return [("isthmus_copies_deleted_total", {}, self._remover.copies_deleted)]

"""Attaching: a replica comes to be, from what log, store and identity of this directory hold, or empty.

At a start that happens before anything runs. Later a record may name this node for a partition that it has no copy
of: then the copy's gen, the directory's spare one, is made durable, the registration says so, and only then the
core hears of anything (docs/protocol.md R-GEN). All that waits does so beside the write path. What a copy's gen means
at a start is `repl.runtime.registration`'s affair.

Clearing: copies that no record names any more are deleted, a while after this node has read so (R-RF).

    kept       a record without this node was read: the copy is left as it is for the grace time, in which a record
               that names it again finds it honest and up to where it was
    condemned  the record was read once more, behind a sync, and still does not name it: the copy counts no more, and
               one that may be made later has another gen; noted in the identity before anything goes (R-GEN)
    deleted    its rows, then its log; a crash in between begins that again at the next start

Rows go in steps in a thread of their own, with rests, and one copy at a time: there is no hurry, and the disk is shared
with partitions that serve. That a copy is to go is the record's word, never that of a message.

Open the copies that the partition records assign to this node, and delete those that no record names any more. Both
go on beside the write path.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.epochs import epoch_at
from isthmus.repl.isr.replica import Replica
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.isr.succession import successors
from isthmus.repl.metastore.port import Ambiguous, Metastore, Unavailable, VersionConflict
from isthmus.repl.model.errors import IsthmusError, LocalFault
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.model.vclock import actor_of
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.runtime.replay import LogReplay
from isthmus.repl.runtime.storage import Storage
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

RETRY_MS: Final = 500
"""Pause before a registration that failed is tried again."""

NONCE_BITS: Final = 62
"""Of the random base of a process's nonces: a number that fits msgpack, with room to count."""


class ReplicaOpener:
    """Makes replicas. `take` gets each one that is ready to be fed; `fail` a disk that refuses."""

    def __init__(
        self,
        *,
        node: str,
        cluster_uuid: bytes,
        options_of: Callable[[str], ReplicaOptions],
        identity: NodeIdentity,
        registrar: Registrar,
        replog: Replog,
        store: Store,
        replay: LogReplay,
        take: Callable[[list[Partition]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._node = node
        self._cluster_uuid = cluster_uuid
        self._options_of = options_of
        self._identity = identity
        self._registrar = registrar
        self._replog = replog
        self._store = store
        self._replay = replay
        self._take = take
        self._fail = fail
        self._nonce_base = random.SystemRandom().getrandbits(NONCE_BITS)
        self._arriving: dict[int, PartitionRecord] = {}
        self._task: asyncio.Task[None] | None = None

    def replica(self, record: PartitionRecord) -> Partition:
        """The replica of `record`. Its gen is noted already."""
        partition = record.partition
        known = self._identity.partition(partition)
        assert known is not None, f"the gen of partition {partition} is not noted"
        leo = self._replog.leo(partition)
        log_start = self._replog.start_of(partition)
        applied = self._replay.first_offset(partition)
        far = self._far(partition, applied, log_start, removed=self._node not in record.replicas)
        if far is not None:
            self._replog.abandon(partition)
        replica = Replica(
            partition=partition,
            node=self._node,
            log_id=known.gen,
            leo=leo,
            epoch_table=self._replog.epoch_table(partition),
            applied=applied,
            epoch_seen=known.epoch_seen,
            epoch_owner=known.epoch_owner,
            options=self._options_of(record.bucket_type),
            durable=leo,
            log_start=log_start,
            nonce_base=self._nonce_base,
            far=far,
            committed=0 if far is not None else self._committed(partition, leo),
        )
        if far is None and self._store.needs_replay():
            found = self._store.applied(partition)
            if found.offset > applied:
                replica.must_replay(found.epoch, found.offset)
            if replica.unfounded:
                log.error(
                    "attaching.rows_beyond_log",
                    partition=partition,
                    applied=found.offset,
                    leo=leo,
                    advice="its rows are given up for a leader's; forced to lead, it serves what its log lost",
                )
        return Partition(record, replica, actor_of(self._cluster_uuid, partition), log_start)

    def _committed(self, partition: int, leo: int) -> int:
        """How far the log is known to be committed by what the store was found to have applied, also where its rows
        must be replayed (H36): up to there where the log holds that very entry, for then it holds all below it
        (I-LOG-MATCH). 0 where nothing can be told so."""
        found = self._store.applied(partition)
        holds = found.offset <= leo and epoch_at(self._replog.epoch_table(partition), found.offset - 1) == found.epoch
        return found.offset if holds else 0

    def _far(self, partition: int, applied: int, log_start: int, *, removed: bool) -> ev.TransferStored | None:
        """What a copy has whose rows come from elsewhere. One whose store ends below its log begins anew, and has
        another gen already (`repl.runtime.registration`); so does one whose rows must be replayed (H36) while its
        record does not name this node: nobody would say what of its log is committed. Blocks, at a start, while rows
        are deleted."""
        mark = self._store.far.marks().get(partition)
        if removed and mark is None and self._store.needs_replay():
            log.warning("attaching.removed_copy_emptied", partition=partition, applied=applied)
            mark = self._store.far.begin(partition, empty=True)
            self._replay.forget(partition)
        if mark is None and applied < log_start:
            log.warning("attaching.store_lost", partition=partition, applied=applied, log_start=log_start)
            mark = self._store.far.begin(partition, empty=True)
            self._replay.forget(partition)
        return None if mark is None else ev.TransferStored(mark.position, mark.epoch, mark.whole)

    def wanted(self, records: Mapping[int, PartitionRecord], present: Collection[int]) -> None:
        """Begin to make the copies that `records` want of this node and that are not among `present`."""
        deleting = self._identity.condemned()
        for partition, record in records.items():
            if partition in present or partition in self._arriving or self._node not in record.replicas:
                continue
            if partition not in deleting:
                self._arriving[partition] = record
        if self._arriving and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._attach())

    async def _attach(self) -> None:
        loop = asyncio.get_running_loop()
        while self._arriving:
            fresh = dict(self._arriving)
            unknown = [partition for partition in fresh if self._identity.partition(partition) is None]
            if unknown:
                again, spare = self._identity.gens(), self._identity.spare
                gens = {partition: again.get(partition, spare) for partition in unknown}
                try:
                    await loop.run_in_executor(None, self._identity.note_gens, gens)
                except LocalFault as error:
                    self._fail(error)
                    return
                log.info("attaching.new_copies", gens=gens)
            try:
                await self._registrar.register()
            except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:  # never this disk's fault
                log.warning("attaching.waits", partitions=sorted(fresh), error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            made = [self.replica(record) for _, record in sorted(fresh.items())]
            for partition in fresh:
                del self._arriving[partition]
            self._take(made)

    def cancel(self) -> None:
        """Make no more: the process is leaving."""
        if self._task is not None:
            self._task.cancel()


REST_S: Final = 0.02
"""Rest after each step of a deletion (some thousand rows, about 10 ms of the interpreter)."""


class ReplicaRemover:
    """Of one node. `partitions` are the replicas that are fed; what is condemned leaves them. `busy` says whether
    something of a replica is under way, `let_go` frees what of it is in memory, `fail` hears of a disk that refuses."""

    def __init__(
        self,
        *,
        node: str,
        partitions: dict[int, Partition],
        identity: NodeIdentity,
        metastore: Metastore,
        registrar: Registrar,
        store: Store,
        replog: Replog,
        grace_ms: int,
        busy: Callable[[Partition], bool],
        let_go: Callable[[Partition], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._node = node
        self._partitions = partitions
        self._identity = identity
        self._metastore = metastore
        self._registrar = registrar
        self._store = store
        self._replog = replog
        self._grace_ms = grace_ms
        self._busy = busy
        self._let_go = let_go
        self._fail = fail
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="clear")
        self._removed_ms: dict[int, int] = {}
        """Partition -> when it was first seen that its record does not name this node."""
        self._restarts: dict[int, asyncio.Future[None]] = {}
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.going: set[int] = set()
        """Partitions that are being noted as condemned: no copy is made of what is here, whatever a record says now."""
        self.copies_deleted = 0

    def look(self, now_ms: int) -> None:
        """See whose time has come, and go on with what is condemned; once a second."""
        due: list[Partition] = []
        for partition in self._partitions.values():
            if not partition.removed:
                if self._removed_ms.pop(partition.id, None) is not None:
                    partition.deletion = ""
                    log.info("clearing.kept", partition=partition.id)
                continue
            since_ms = self._removed_ms.setdefault(partition.id, now_ms)
            left_ms = max(0, since_ms + self._grace_ms - now_ms)
            when = f"in {left_ms // 1000} s" if left_ms else "as soon as the metastore has confirmed it"
            partition.deletion = f"its copy here is deleted {when}"
            if not left_ms and partition.replica.role is ReplicaRole.IDLE and not self._busy(partition):
                due.append(partition)
        if (due or self._identity.condemned()) and (self._task is None or self._task.done()) and not self._stopping:
            self._task = asyncio.get_running_loop().create_task(self._clear(due))

    async def _clear(self, due: list[Partition]) -> None:
        try:
            for partition in due:
                await self._look_last(partition)
            for number in self._identity.condemned():
                await self._delete(number)
        except (IsthmusError, OSError) as error:
            self._fail(error)

    async def _look_last(self, partition: Partition) -> None:
        """Condemn it if the metastore still says so; what cannot be asked or read says nothing, of this one alone."""
        try:
            record = await self._metastore.synced_record(partition.id)
            gen = await self._metastore.allocate_gen()
        except (Unavailable, Ambiguous, VersionConflict, LookupError, IsthmusError) as error:
            log.warning("clearing.waits", partition=partition.id, error=str(error))
            return
        await self._condemn(partition, record, gen)

    async def _condemn(self, partition: Partition, record: PartitionRecord, gen: int) -> None:
        """The last look, and the note after which there is no way back."""
        if self._named(record, partition) or self._busy(partition) or not partition.removed:
            return
        del self._partitions[partition.id]
        del self._removed_ms[partition.id]
        self._let_go(partition)
        log.warning("clearing.condemned", partition=partition.id, gen=partition.replica.member.log_id, next_gen=gen)
        self.going.add(partition.id)
        await asyncio.get_running_loop().run_in_executor(self._pool, self._identity.condemn, partition.id, gen)
        self.going.discard(partition.id)  # not after a failure: the process ends then
        try:
            await self._registrar.register()
        except (Unavailable, Ambiguous, VersionConflict, IsthmusError) as error:
            log.warning("clearing.waits", partition=partition.id, error=str(error))

    def _named(self, record: PartitionRecord, partition: Partition) -> bool:
        """True unless `record` is as new as what was believed, and does not name this node."""
        known = partition.replica.record
        assert known is not None, "a copy is removed by a record"
        older = record.version < known.version or record.epoch < partition.replica.epoch_seen
        return older or self._node in record.replicas

    async def _delete(self, partition: int) -> None:
        loop = asyncio.get_running_loop()
        rows = 0
        self._replog.abandon(partition)
        removal = self._store.far.remove(partition)
        while (count := await loop.run_in_executor(self._pool, _step, removal)) is not None:
            rows += count
            await asyncio.sleep(REST_S)
        durable = self._restarts[partition] = loop.create_future()
        self._replog.restart(partition, 0, ())
        await durable
        await loop.run_in_executor(self._pool, self._identity.deleted, partition)
        self.copies_deleted += 1
        log.warning("clearing.deleted", partition=partition, rows=rows)

    def log_restarted(self, partition: int) -> None:
        """The log of a partition that is not fed any more reports a cut."""
        durable = self._restarts.pop(partition, None)
        if durable is not None and not durable.done():
            durable.set_result(None)

    def cancel(self) -> None:
        """Begin nothing more: the process is leaving."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        """Blocks until the step under way is done; after `cancel`."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def _step(removal: Iterator[int]) -> int | None:
    return next(removal, None)


class ReplicaManager:
    """`partitions` gains and loses what is made and deleted; `dispatch` feeds a core, `busy` says whether something of
    a replica is under way outside of log and store, `fail` ends the process. `inc` is this process's session, None
    without one."""

    def __init__(
        self,
        *,
        node: str,
        cluster_uuid: bytes,
        options_of: Callable[[str], ReplicaOptions],
        identity: NodeIdentity,
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
        self._attaching = ReplicaOpener(
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
        self._clearing = ReplicaRemover(
            node=node,
            partitions=partitions,
            identity=identity,
            metastore=metastore,
            registrar=registrar,
            store=store,
            replog=replog,
            grace_ms=removed_grace_ms,
            busy=self._busy,
            let_go=storage.release_memory,
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

"""Clearing: copies that no record names any more are deleted, a while after this node has read so (R-RF).

    kept       a record without this node was read: the copy is left as it is for the grace time, in which a record
               that names it again finds it honest and up to where it was
    condemned  the record was read once more, behind a sync, and still does not name it: the copy counts no more, and
               one that may be made later has another gen; noted in the identity before anything goes (R-GEN)
    deleted    its rows, then its log; a crash in between begins that again at the next start

Rows go in steps in a thread of their own, with rests, and one copy at a time: there is no hurry, and the disk is shared
with partitions that serve. That a copy is to go is the record's word, never that of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from repl.identity import Identity
from repl.isr.effects import Role
from repl.metastore.port import Ambiguous, Conflict, Metastore, Unavailable
from repl.model.errors import IsthmusError
from repl.model.record import PartitionRecord
from repl.partition import Partition
from repl.registering import Registrar
from repl.replog.port import Replog
from repl.store.port import Store

log = structlog.get_logger(__name__)

REST_S: Final = 0.02
"""Rest after each step of a deletion (some thousand rows, about 10 ms of the interpreter)."""


class Clearing:
    """Of one node. `partitions` are the replicas that are fed; what is condemned leaves them. `busy` says whether
    something of a replica is under way, `let_go` frees what of it is in memory, `fail` hears of a disk that refuses."""

    def __init__(
        self,
        *,
        node: str,
        partitions: dict[int, Partition],
        identity: Identity,
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
            if not left_ms and partition.replica.role is Role.IDLE and not self._busy(partition):
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
        except (Unavailable, Ambiguous, Conflict, LookupError, IsthmusError) as error:
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
        log.warning("clearing.condemned", partition=partition.id, gen=partition.replica.member.gen, next_gen=gen)
        self.going.add(partition.id)
        await asyncio.get_running_loop().run_in_executor(self._pool, self._identity.condemn, partition.id, gen)
        self.going.discard(partition.id)  # not after a failure: the process ends then
        try:
            await self._registrar.register()
        except (Unavailable, Ambiguous, Conflict, IsthmusError) as error:
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

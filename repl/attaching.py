"""Attaching: a replica comes to be, from what log, store and identity of this directory hold, or empty.

At a start that happens before anything runs. Later a record may name this node for a partition that it has no copy
of: then the copy's gen, the directory's spare one, is made durable, the registration says so, and only then the
core hears of anything (docs/protocol.md R-GEN). All that waits does so beside the write path. What a copy's gen means
at a start is `repl.settling`'s affair.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from typing import Final

import structlog

from repl.identity import Identity
from repl.isr import events as ev
from repl.isr.epochs import epoch_at
from repl.isr.options import Options
from repl.isr.replica import Replica
from repl.metastore.port import Ambiguous, Conflict, Unavailable
from repl.model.errors import IsthmusError, LocalFault
from repl.model.record import PartitionRecord
from repl.model.vclock import actor_of
from repl.partition import Partition
from repl.registering import Registrar
from repl.replay import Replay
from repl.replog.port import Replog
from repl.store.port import Store

log = structlog.get_logger(__name__)

RETRY_MS: Final = 500
"""Pause before a registration that failed is tried again."""

NONCE_BITS: Final = 62
"""Of the random base of a process's nonces: a number that fits msgpack, with room to count."""


class Attaching:
    """Makes replicas. `take` gets each one that is ready to be fed; `fail` a disk that refuses."""

    def __init__(
        self,
        *,
        node: str,
        cluster_uuid: bytes,
        options_of: Callable[[str], Options],
        identity: Identity,
        registrar: Registrar,
        replog: Replog,
        store: Store,
        replay: Replay,
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
            gen=known.gen,
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

    def _far(self, partition: int, applied: int, log_start: int, *, removed: bool) -> ev.FarStored | None:
        """What a copy has whose rows come from elsewhere. One whose store ends below its log begins anew, and has
        another gen already (`repl.settling`); so does one whose rows must be replayed (H36) while its record does not
        name this node: nobody would say what of its log is committed. Blocks, at a start, while rows are deleted."""
        mark = self._store.far.marks().get(partition)
        if removed and mark is None and self._store.needs_replay():
            log.warning("attaching.removed_copy_emptied", partition=partition, applied=applied)
            mark = self._store.far.begin(partition, empty=True)
            self._replay.forget(partition)
        if mark is None and applied < log_start:
            log.warning("attaching.store_lost", partition=partition, applied=applied, log_start=log_start)
            mark = self._store.far.begin(partition, empty=True)
            self._replay.forget(partition)
        return None if mark is None else ev.FarStored(mark.position, mark.epoch, mark.whole)

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
            except (Unavailable, Ambiguous, Conflict, IsthmusError) as error:  # never this disk's fault
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

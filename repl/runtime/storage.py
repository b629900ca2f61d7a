"""A node's log and store as its replicas use them: entries go in in order, the threads' reports come back to the loop.

What is appended stays in memory until it is applied, within `window_bytes` for the node: of the entries of other nodes'
leaders what exceeds it is left to the log, and read back when its turn comes, so that a slow store costs
time and not memory. Decides nothing about the protocol: what is appended, cut and applied when is the core's word,
which `repl.runtime.runtime` carries here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.errors import IsthmusError, LocalFault, OutOfStorage, Overloaded, TooLarge
from isthmus.repl.replog.port import EpochTable, Replog
from isthmus.repl.runtime.applier import Applier, ApplyJob, Checkpointer
from isthmus.repl.runtime.disk_full import ROOM_WANTED
from isthmus.repl.runtime.partition import Partition, UnappliedBuffer, wire_bytes
from isthmus.repl.runtime.replay import LogReplay
from isthmus.repl.store.port import PartitionStep, Store
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)


def barrier(effect: fx.AppendBarrier, origin: bytes, time_ms: int) -> Entry:
    """The first entry of an epoch, as its candidate asks for it."""
    return make_entry(EntryKind.BARRIER, effect.epoch, effect.offset, request_id=b"", origin=origin, time_ms=time_ms)


class Storage:
    """Of one node. All but `close` belongs to the event loop, and so do the calls of `on_durable(ends, truncations)`,
    `on_applied(steps)` and `fail`. `entry_limit_bytes` is the longest entry that another node can be sent."""

    def __init__(
        self,
        store: Store,
        replog: Replog,
        partitions: Mapping[int, Partition],
        *,
        window_bytes: int,
        entry_limit_bytes: int,
        checkpoint_interval_ms: int,
        on_durable: Callable[[Mapping[int, int], Mapping[int, int]], None],
        on_applied: Callable[[list[PartitionStep]], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._store = store
        store.before_floors = replog.sync
        self._replog = replog
        self._partitions = partitions
        self._window_bytes = window_bytes
        self._entry_limit_bytes = entry_limit_bytes
        self._on_durable = on_durable
        self._on_applied = on_applied
        self._fail = fail
        self._loop = asyncio.get_running_loop()
        self._jobs: list[ApplyJob] = []
        self._applier = Applier(
            store, replog, self._applied, self._fail, soon=self._loop.call_soon, from_thread=self._call
        )
        self._checkpointer = Checkpointer(
            store,
            replog,
            lambda: list(partitions),
            lambda: self.pins,
            checkpoint_interval_ms,
            self._failed_threadsafe,
        )
        self.replay = LogReplay(store, self._failed_threadsafe)
        self.pins: Mapping[int, int] = {}
        """Partition -> offset from which a follower needs the log; replaced as a whole."""
        self.mending: set[int] = set()
        """Partitions of which a row is being written again."""
        self.held_bytes = 0
        """Bytes of entries in memory that are not applied, of all partitions."""
        self.soft_cursor = self._applier.soft_cursor
        self.flush_soft_cursors = self._applier.flush_soft_cursors

    def start(self) -> None:
        """Start the threads of log, apply and checkpoint."""
        self._replog.start(self._durable_threadsafe, self._failed_threadsafe, self._checkpointer.soon)
        self._applier.start()
        self._checkpointer.start()
        self.replay.start()

    @property
    def idle(self) -> bool:
        """True when nothing waits to be applied."""
        return self._applier.idle

    def close(self, timeout_s: float) -> bool:
        """Close log and store; True when all ended clean. Blocks: from another thread, once nothing comes any more."""
        clean = self._checkpointer.stop(timeout_s)
        clean &= self._applier.stop(timeout_s)
        for close in (self._replog.close, self._store.close):
            try:
                close()
            except (IsthmusError, OSError) as error:
                log.error("storage.close_failed", error=str(error))
                clean = False
        return clean

    # -- into the log -----------------------------------------------------------------------------------

    def obstacle(self, entries: Sequence[Entry]) -> IsthmusError | None:
        """Why a leader must not append these entries now, whatever its core says; None when it may."""
        size = wire_bytes(entries)
        if self.held_bytes + size > self._window_bytes:
            led = sum(p.unapplied.held_bytes for p in self._partitions.values() if p.leads)
            if led and led + size > self._window_bytes:
                window = self._window_bytes
                return Overloaded(f"{led} bytes wait to be applied, replication.window_size is {window} bytes: retry")
        limit = self._entry_limit_bytes
        if size > limit and any(len(entry.wire) > limit for entry in entries):
            return TooLarge(f"an object that takes more than {limit} bytes with all its siblings is not replicated")
        if not self._replog.has_room(size):
            return OutOfStorage(f"the log's disk is full: free space ({ROOM_WANTED}); reads go on")
        return None

    def persist(self, partition: Partition, entries: Sequence[Entry]) -> None:
        """Append entries to the log's end."""
        try:
            self._replog.append(partition.id, entries)
        except (OutOfStorage, LocalFault) as error:
            # The core has counted these entries already; the process must end rather than drift from the log.
            self._fail(error)
            return
        unapplied = partition.unapplied
        self.held_bytes += unapplied.append(entries)
        if self.held_bytes > self._window_bytes and not partition.leads:
            before = unapplied.held_bytes
            unapplied.release(partition.replica.durable)
            self.held_bytes += unapplied.held_bytes - before

    def truncate(self, partition: Partition, to_offset: int, epoch: int) -> None:
        """Drop the log's entries from `to_offset` on."""
        try:
            self._replog.truncate(partition.id, to_offset, epoch)
        except LocalFault as error:
            self._fail(error)
            return
        unapplied = partition.unapplied
        before = unapplied.held_bytes
        unapplied.truncate(to_offset)
        self.held_bytes += unapplied.held_bytes - before
        log.warning("log.truncated", partition=partition.id, to_offset=to_offset, epoch=epoch)

    def restart(self, partition: Partition, at_offset: int, table: EpochTable) -> None:
        """Let the log begin and end at `at_offset`."""
        self._replog.restart(partition.id, at_offset, table)
        self.held_bytes -= partition.unapplied.held_bytes
        partition.unapplied = UnappliedBuffer(at_offset, at_offset)
        partition.committed.clear()
        partition.log_start = at_offset
        log.info("log.restarted", partition=partition.id, at_offset=at_offset)

    def abandon(self, partition: Partition) -> None:
        """The copy takes rows now: nothing of its log is replayed any more, and it must not keep the other partitions'
        files, however long the rows take."""
        self._replog.abandon(partition.id)

    def release_memory(self, partition: Partition) -> None:
        """Free what is in memory of a copy that is not fed any more; nothing of it is on its way to log or store."""
        self.held_bytes -= partition.unapplied.held_bytes
        partition.unapplied = UnappliedBuffer(0, 0)

    def _durable_threadsafe(self, ends: Mapping[int, int], truncations: Mapping[int, int]) -> None:
        self._call(self._on_durable, ends, truncations)

    # -- into the store -----------------------------------------------------------------------------------

    def apply(self, partition: Partition, end: int) -> None:
        """Apply all below `end`; handed over at the next `flush`."""
        unapplied = partition.unapplied
        before = unapplied.held_bytes
        stretches = unapplied.hand_over(end, keep=partition.leads or self.held_bytes <= self._window_bytes)
        self.held_bytes += unapplied.held_bytes - before
        self._jobs += [ApplyJob(partition.id, *stretch) for stretch in stretches]

    def flush(self) -> None:
        """Give the store's writer what was handed over in this turn."""
        if self._jobs:
            self._applier.submit(self._jobs)
            self._jobs = []

    async def mend(self, partition: Partition, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """Write a key's row again between two batches: see `FarStore.mend`. One at a time of a partition. Raises
        Corruption, LocalFault."""
        return await self._between(partition, lambda: self._store.far.mend(partition.id, chunk, seen, upto))

    async def drop_change(self, partition: Partition, offset: int, seen: bytes) -> bool:
        """Delete a change row that stands for nothing, as `mend` writes: see `FarStore.drop_change`."""
        return await self._between(partition, lambda: self._store.far.drop_change(partition.id, offset, seen))

    async def _between(self, partition: Partition, act: Callable[[], bool]) -> bool:
        if partition.replica.far_position is not None or partition.id in self.mending:
            return False
        done: Future[bool] = Future()
        done.set_running_or_notify_cancel()  # who waits may go; the row is written all the same

        def work() -> None:
            try:
                done.set_result(act())
            except Exception as error:  # noqa: BLE001 - it is raised where it is waited for
                done.set_exception(error)
            self._call(self.mending.discard, partition.id)

        self.mending.add(partition.id)
        self._applier.aside(work)
        return await asyncio.wrap_future(done)

    def _applied(self, steps: list[PartitionStep], read_back: bool) -> None:
        self._applier.written(steps)
        for step in steps:
            if not step.entries:
                continue
            if not read_back:
                self.held_bytes -= self._partitions[step.partition].unapplied.applied(step.entries)
            if self.replay.waits:
                self.replay.passed(step.partition, step.entries[-1].offset + 1)
        self._on_applied(steps)

    # -- from the threads -----------------------------------------------------------------------------------

    def _failed_threadsafe(self, error: Exception) -> None:
        self._call(self._fail, error)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def metrics(self) -> list[Sample]:
        """What was applied."""
        return [
            ("isthmus_apply_steps_total", {}, self._applier.steps_written),
            ("isthmus_apply_entries_total", {}, self._applier.entries_written),
            ("isthmus_unapplied_bytes", {}, self.held_bytes),
        ]

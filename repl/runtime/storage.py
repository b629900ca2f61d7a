"""A node's log and store as its replicas use them: appends, applies, and the results of their threads.

Unapplied entries stay in memory within the node's `MemoryWindow`. Above it a leader's appends are refused, and entries
from other nodes' leaders are left to the log and read back when they are applied, so that a slow store costs time and
not memory. Nothing here decides about the protocol: `repl.runtime.runtime` passes on what the core asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr.pair_stream import StreamRun
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.errors import IsthmusError, LocalFault, OutOfStorage, Overloaded, TooLarge
from isthmus.repl.replog.port import EncodedRun, EpochTable, Replog
from isthmus.repl.runtime.applier import Applier, ApplyJob, Checkpointer, call_threadsafe
from isthmus.repl.runtime.disk_full import DiskFullPolicy
from isthmus.repl.runtime.node_data import RuntimeSettings
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.replay import LogReplay
from isthmus.repl.runtime.unapplied import MemoryWindow, wire_bytes
from isthmus.repl.store.port import PartitionStep, Store
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)


def barrier(effect: fx.AppendBarrier, origin: bytes, time_ms: int) -> Entry:
    """The first entry of an epoch, for the candidate that asks for it."""
    return make_entry(EntryKind.BARRIER, effect.epoch, effect.offset, request_id=b"", origin=origin, time_ms=time_ms)


class StorageEvents(Protocol):
    """Results of log and store, on the event loop; `repl.runtime.runtime.Runtime`."""

    def on_durable(self, ends: Mapping[int, int], truncations: Mapping[int, int]) -> None:
        """Partition -> offset below which its log is durable; before that, logs of `truncations` were cut or restarted
        at the given offset."""

    def on_applied(self, steps: Sequence[PartitionStep], committed_ms: int) -> None:
        """Steps are in the store; the oldest of their entries was committed at `committed_ms`."""

    def fail(self, error: Exception) -> None:
        """End the process: log or store can no longer be trusted."""

    def quarantine(self, partition: Partition, bug: Exception) -> None:
        """See EventSink."""


class Storage:
    """Log, applier and checkpointer of one node. All methods but `close` belong to the event loop."""

    def __init__(
        self,
        store: Store,
        replog: Replog,
        partitions: Mapping[int, Partition],
        events: StorageEvents,
        disk_full: DiskFullPolicy,
        settings: RuntimeSettings,
    ) -> None:
        self._store = store
        store.before_floors = replog.sync
        self._replog = replog
        self._partitions = partitions
        self._events = events
        self._disk_full = disk_full
        self._entry_limit_bytes = settings.entry_limit_bytes
        self._loop = asyncio.get_running_loop()
        self._jobs: list[ApplyJob] = []
        self._applier = Applier(store, replog, self, self._loop)
        self._checkpointer = Checkpointer(store, replog, self, settings.checkpoint_interval_ms)
        self.window = MemoryWindow(settings.window_bytes)
        self.replay = LogReplay(store, self._fail_threadsafe)
        self.pins: Mapping[int, int] = {}
        """Partition -> offset from which a follower needs the log. Replaced as a whole: the checkpointer's thread reads
        it."""
        self.mending: set[int] = set()
        """Partitions of which a row is being mended."""

    def start(self) -> None:
        """Start the threads of log, apply and checkpoint."""
        self._replog.start(self._durable_threadsafe, self._fail_threadsafe, self._checkpointer.soon)
        self._applier.start()
        self._checkpointer.start()
        self.replay.start()

    @property
    def idle(self) -> bool:
        """True when no entry waits to be applied."""
        return self._applier.idle

    def close(self, timeout_s: float) -> bool:
        """Close log and store; True when all threads ended and nothing failed. Blocks; from another thread, once no
        events come any more."""
        self.replay.stop()
        clean = self._checkpointer.stop(timeout_s)
        clean &= self._applier.stop(timeout_s)
        for close in (self._replog.close, self._store.close):
            try:
                close()
            except (IsthmusError, OSError) as error:
                log.error("storage.close_failed", error=str(error))
                clean = False
        return clean

    # -- log ----------------------------------------------------------------------------------------------

    def refusal(self, entries: Sequence[Entry]) -> IsthmusError | None:
        """Why a leader must not append these entries now, whatever its core allows; None when it may."""
        size, window = wire_bytes(entries), self.window
        if window.held_bytes + size > window.limit_bytes:
            led = sum(p.unapplied.held_bytes for p in self._partitions.values() if p.leads)
            if led and led + size > window.limit_bytes:
                limit = window.limit_bytes
                return Overloaded(f"{led} bytes wait to be applied, replication.window_size is {limit} bytes: retry")
        limit = self._entry_limit_bytes
        if size > limit and any(len(entry.wire) > limit for entry in entries):
            return TooLarge(f"an object that takes more than {limit} bytes with all its siblings is not replicated")
        if not self._disk_full.has_space(size):
            return OutOfStorage(f"{self._disk_full.shortage}; reads go on")
        return None

    def persist(self, partition: Partition, entries: Sequence[Entry]) -> list[EncodedRun]:
        """Append entries to the log's end; returns them as the log writes them."""
        try:
            runs = self._replog.append(partition.id, entries)
        except (OutOfStorage, LocalFault) as error:
            # The core has counted these entries already; the process must end rather than drift from the log.
            self._events.fail(error)
            return []
        partition.unapplied.append(entries)
        if self.window.exceeded and not partition.leads:
            partition.unapplied.release(partition.replica.durable)
        return runs

    def persist_encoded(self, runs: Sequence[StreamRun]) -> None:
        """Append a stream's runs to the log, byte for byte; their entries are decoded when they are applied."""
        try:
            self._replog.append_encoded(
                [EncodedRun(run.partition, run.epoch, run.start, run.entry_count, (run.encoded,)) for run in runs]
            )
        except (OutOfStorage, LocalFault) as error:
            self._events.fail(error)
            return
        exceeded = self.window.exceeded
        for run in runs:
            partition = self._partitions[run.partition]
            partition.unapplied.append_encoded(run.start, run.wires)
            if exceeded:
                partition.unapplied.release(partition.replica.durable)

    def truncate(self, partition: Partition, to_offset: int, epoch: int) -> None:
        """Drop the log's entries from `to_offset` on."""
        try:
            self._replog.truncate(partition.id, to_offset, epoch)
        except LocalFault as error:
            self._events.fail(error)
            return
        partition.unapplied.truncate(to_offset)
        log.warning("log.truncated", partition=partition.id, to_offset=to_offset, epoch=epoch)

    def restart(self, partition: Partition, at_offset: int, table: EpochTable) -> None:
        """Let the log begin and end at `at_offset`, after a state transfer."""
        self._replog.restart(partition.id, at_offset, table)
        partition.unapplied.reset(at_offset)
        partition.log_start = at_offset
        log.info("log.restarted", partition=partition.id, at_offset=at_offset)

    def abandon(self, partition: Partition) -> None:
        """Never replay the partition's log again, as a state transfer begins: it must not keep the files of other
        partitions from being trimmed, however long the transfer takes."""
        self._replog.abandon(partition.id)

    def release_memory(self, partition: Partition) -> None:
        """Free the entries of a copy that gets no more events; none is on its way to log or store."""
        partition.unapplied.reset(0)

    def _durable_threadsafe(self, ends: Mapping[int, int], truncations: Mapping[int, int]) -> None:
        call_threadsafe(self._loop, self._events.on_durable, ends, truncations)

    # -- store --------------------------------------------------------------------------------------------

    def apply(self, partition: Partition, end: int, now_ms: int) -> None:
        """Apply all entries below `end`, which are committed; the applier gets them at the next `flush`."""
        keep = not self.window.exceeded or partition.leads
        for start, stop, entries in partition.unapplied.take_committed(end, keep=keep):
            self._jobs.append(ApplyJob(partition.id, start, stop, entries, now_ms))

    def flush(self) -> None:
        """Submit the entries of this turn of the loop to the applier."""
        if self._jobs:
            self._applier.submit(self._jobs)
            self._jobs = []

    def soft_cursor(self, partition: Partition, queue: bytes, payload: bytes) -> None:
        """Write a queue's soft cursor with the partition's next entries, or alone within a second; send it to followers
        if this node leads."""
        self._applier.soft_cursor(partition.id, queue, payload)
        partition.cursor_gossip.update(queue, payload)

    def flush_soft_cursors(self) -> None:
        """Write waiting soft cursors alone, unless entries wait to be applied."""
        self._applier.flush_soft_cursors()

    async def mend(self, partition: Partition, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """Replace a key's damaged row between two batches: see `TransferStore.mend`. Only one row of a partition at a
        time: False where another is under way. Raises Corruption, LocalFault."""
        return await self._between_batches(
            partition, lambda: self._store.transfers.mend(partition.id, chunk, seen, upto)
        )

    async def drop_change(self, partition: Partition, offset: int, seen: bytes) -> bool:
        """Delete a change row that belongs to no key, under the rules of `mend`: see `TransferStore.drop_change`."""
        return await self._between_batches(
            partition, lambda: self._store.transfers.drop_change(partition.id, offset, seen)
        )

    async def _between_batches(self, partition: Partition, change: Callable[[], bool]) -> bool:
        if partition.replica.transfer_position is not None or partition.id in self.mending:
            return False
        done: Future[bool] = Future()
        done.set_running_or_notify_cancel()  # the change is made even if the caller is cancelled

        def work() -> None:
            try:
                done.set_result(change())
            except Exception as error:  # noqa: BLE001 - it is raised where the future is awaited
                done.set_exception(error)
            call_threadsafe(self._loop, self.mending.discard, partition.id)

        self.mending.add(partition.id)
        self._applier.aside(work)
        return await asyncio.wrap_future(done)

    # -- ApplyEvents and CheckpointSource -----------------------------------------------------------------

    def on_written(self, steps: list[PartitionStep], committed_ms: int, read_back: bool) -> None:
        """Release the entries of `steps` from memory, and report them as applied."""
        self._applier.written(steps)
        for step in steps:
            if not step.entries:
                continue
            partition = self._partitions[step.partition]
            try:
                partition.unapplied.applied(step.entries, read_back=read_back)
                if self.replay.waits:
                    self.replay.passed(step.partition, step.entries[-1].offset + 1)
            except Exception as bug:  # noqa: BLE001 - its rows are written; what is known of them here may be wrong
                self._events.quarantine(partition, bug)
        self._events.on_applied(steps, committed_ms)

    def not_applied(self, partition: int, bug: Exception) -> None:
        """See ApplyEvents."""
        self._events.quarantine(self._partitions[partition], bug)

    def fail(self, error: Exception) -> None:
        """The applier failed."""
        self._events.fail(error)

    def partition_ids(self) -> Sequence[int]:
        """The partitions of this node, for the checkpointer's thread."""
        return list(self._partitions)

    def checkpoint_failed(self, error: Exception) -> None:
        """A checkpoint or a trim failed, in the checkpointer's thread."""
        self._fail_threadsafe(error)

    def _fail_threadsafe(self, error: Exception) -> None:
        call_threadsafe(self._loop, self._events.fail, error)

    def metrics(self) -> list[Sample]:
        """Applied steps and entries, and unapplied bytes in memory."""
        return [
            ("isthmus_apply_steps_total", {}, self._applier.steps_written),
            ("isthmus_apply_entries_total", {}, self._applier.entries_written),
            ("isthmus_unapplied_bytes", {}, self.window.held_bytes),
        ]

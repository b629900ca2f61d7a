"""The runtime: carries out what the pure core asks for, and tells it what happened.

Per partition: inbox -> `Replica.step` -> effects -> log, store, metastore -> events. It decides nothing about
the protocol; the order "durable, then applied, then answered" is the core's (`repl.isr`).
Everything here runs on the event loop; the log's and the store's threads report back through
`call_soon_threadsafe`. Group commit and apply steps span partitions: one loop turn makes one batch.

What it may not do: resolve clocks or answer clients; that is `repl.coordinator`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final, assert_never

import structlog

from repl.apply import SOFT_CURSOR_INTERVAL_MS, Applier, ApplyJob, Checkpointer
from repl.identity import Identity
from repl.isr import effects as fx
from repl.isr import events as ev
from repl.isr.replica import Replica, Role
from repl.metastore.port import Metastore
from repl.model.entry import Entry, EntryKind, make_entry
from repl.model.errors import (
    Fenced,
    IsthmusError,
    LocalFault,
    NotLeader,
    NotReady,
    OutcomeUnknown,
    OutOfStorage,
    Overloaded,
    Retryable,
    TooFewInSync,
)
from repl.model.ports import AfterApply, TimeSource
from repl.model.record import PartitionRecord
from repl.partition import Partition, PendingGroup
from repl.replog.port import Replog
from repl.round_trips import RoundTrips
from repl.store.port import PartitionStep, Store
from repl.telemetry import Sample

log = structlog.get_logger(__name__)

REFUSALS: Final[Mapping[str, type[Retryable]]] = {
    cls.reason: cls for cls in (Fenced, TooFewInSync, Overloaded, OutOfStorage, NotReady, NotLeader)
}
"""The core's reasons for refusing an append -> the error that a caller sees."""


class Runtime:
    """All partitions of one node. Build, `attach` the partitions, then `start`."""

    def __init__(
        self,
        *,
        node: str,
        cluster_uuid: bytes,
        store: Store,
        replog: Replog,
        metastore: Metastore,
        identity: Identity,
        time: TimeSource,
        window_entries: int,
        window_bytes: int,
        checkpoint_interval_ms: int,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self.node = node
        self.cluster_uuid = cluster_uuid
        self.store = store
        self.replog = replog
        self.metastore = metastore
        self.identity = identity
        self.time = time
        self.partitions: dict[int, Partition] = {}
        self.window_entries = window_entries
        self.window_bytes = window_bytes
        self.unapplied_bytes = 0
        self.hooks: list[AfterApply] = []
        self.on_promoted: Callable[[int, fx.Promoted], None] = lambda _partition, _effect: None
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._applier = Applier(store, replog, self._applied_threadsafe, self._failed_threadsafe)
        self._checkpointer = Checkpointer(
            store, replog, lambda: list(self.partitions), checkpoint_interval_ms, self._failed_threadsafe
        )
        self._tick: asyncio.TimerHandle | None = None
        self._tick_due_ms = 0
        self._soft_timer: asyncio.TimerHandle | None = None
        self._jobs: list[ApplyJob] = []
        self._round_trips = RoundTrips(identity, metastore, self.dispatch, self._fail)
        self._fatal: Exception | None = None
        self._stopping = False
        self._replay_targets: dict[int, int] = {}

    # -- start and stop -------------------------------------------------------------------------

    def attach(self, record: PartitionRecord, actor: bytes) -> Partition:
        """Make the replica of `record` from what log, store and identity hold. Before `start`."""
        partition = record.partition
        known = self.identity.partition(partition)
        assert known is not None
        applied = self.store.applied(partition).offset
        if self.store.needs_replay():
            # Rows between the floor and what was found may be missing: go back to the floor. Nothing is served
            # before the barrier, which lies above what was found, is applied (docs/protocol.md H36).
            floor = self.store.durable_floor(partition)
            if applied > floor:
                self._replay_targets[partition] = applied
            applied = floor
        leo = self.replog.leo(partition)
        replica = Replica(
            partition=partition,
            node=self.node,
            gen=known.gen,
            leo=leo,
            epoch_table=self.replog.epoch_table(partition),
            applied=applied,
            epoch_seen=known.epoch_seen,
            window_entries=self.window_entries,
            durable=leo,
        )
        self.partitions[partition] = Partition(record, replica, actor)
        return self.partitions[partition]

    def start(self) -> None:
        """Start the threads of log, apply and checkpoint."""
        self.replog.start(self._durable_threadsafe, self._failed_threadsafe)
        self._applier.start()
        self._checkpointer.start()
        if self.store.needs_replay() and not self._replay_targets:
            self._loop.run_in_executor(None, self._finish_replay)
        self._soft_timer = self._loop.call_later(SOFT_CURSOR_INTERVAL_MS / 1000, self._flush_soft)

    async def stop(self, timeout_s: float) -> bool:
        """Resign everything, finish what was appended, close log and store. True when all ended clean."""
        self._stopping = True
        for partition in self.partitions.values():
            self.dispatch(partition, ev.Resign())
        deadline = self._loop.time() + timeout_s
        while self._loop.time() < deadline and self._fatal is None:
            if self._applier.idle and all(p.replica.role in (Role.IDLE, Role.FAILED) for p in self.partitions.values()):
                break
            await asyncio.sleep(0.01)
        for timer in (self._tick, self._soft_timer):
            if timer is not None:
                timer.cancel()
        self._round_trips.cancel()
        return await self._loop.run_in_executor(None, self._close_storage, timeout_s)

    def _close_storage(self, timeout_s: float) -> bool:
        clean = self._fatal is None
        clean &= self._checkpointer.stop(timeout_s)
        clean &= self._applier.stop(timeout_s)
        for close in (self.replog.close, self.store.close):
            try:
                close()
            except (IsthmusError, OSError) as error:
                log.error("runtime.close_failed", error=str(error))
                clean = False
        return clean

    # -- events into the core ---------------------------------------------------------------------

    def dispatch(self, partition: Partition, event: ev.Event) -> None:
        """Feed one event to a partition's core and carry out what it asks for."""
        self._perform(partition, partition.replica.step(event, self.time.now_ms()))
        self._flush_jobs()
        self._arm_timer(partition)

    def dispatch_all(self, event: ev.Event) -> None:
        """Feed one event to every partition's core."""
        now_ms = self.time.now_ms()
        for partition in self.partitions.values():
            self._perform(partition, partition.replica.step(event, now_ms))
            self._arm_timer(partition)
        self._flush_jobs()

    def records_seen(self, records: Mapping[int, PartitionRecord]) -> None:
        """Tell the cores of records read from the metastore."""
        for partition in self.partitions.values():
            record = records.get(partition.id)
            if record is not None:
                self.dispatch(partition, ev.RecordSeen(record))

    def append(self, partition: Partition, entries: Sequence[Entry]) -> Retryable | None:
        """Append a leader's new entries; None when they are on their way, else why nothing happened."""
        size = sum(len(entry.wire) for entry in entries)
        if self.unapplied_bytes + size > self.window_bytes and self.unapplied_bytes:
            return Overloaded(
                f"{self.unapplied_bytes} bytes wait to be applied, "
                f"replication.window is {self.window_bytes} bytes: retry"
            )
        if self._stopping:
            return NotReady("the node is stopping")
        if not self.replog.has_room(size):
            return OutOfStorage("the log's disk is full: free space; reads go on")
        replica = partition.replica
        effects = replica.step(ev.Append(replica.epoch, tuple(entries)), self.time.now_ms())
        refused = self._perform(partition, effects)
        if refused is None:
            self._arm_timer(partition)
            return None
        error = REFUSALS.get(refused.reason, NotReady)
        return error(f"partition {partition.id}: {refused.reason} ({replica.reason})")

    # -- effects of the core ------------------------------------------------------------------------

    def _perform(self, partition: Partition, effects: Sequence[fx.Effect]) -> fx.Refused | None:
        """Carry out effects in order; returns the refusal among them, if any."""
        refused: fx.Refused | None = None
        for effect in effects:
            match effect:
                case fx.Persist():
                    self._persist(partition, effect.entries)
                case fx.Apply():
                    self._apply(partition, effect.end)
                case fx.AppendBarrier():
                    self._persist(partition, [self._barrier(effect)])
                case fx.PersistEpoch():
                    self._round_trips.persist_epoch(partition, effect.epoch)
                case fx.WriteRecord():
                    self._round_trips.write_record(partition, effect.record)
                case fx.Promoted():
                    self.on_promoted(partition.id, effect)
                case fx.RoleChanged():
                    log.info(
                        "isr.role",
                        partition=partition.id,
                        role=effect.role.value,
                        epoch=effect.epoch,
                        reason=effect.reason,
                    )
                case fx.LeadershipReady():
                    self._ready(partition)
                case fx.SteppedDown():
                    self._stepped_down(partition, effect)
                case fx.Refused():
                    refused = effect
                case _:
                    assert_never(effect)
        return refused

    def _barrier(self, effect: fx.AppendBarrier) -> Entry:
        return make_entry(
            EntryKind.BARRIER,
            effect.epoch,
            effect.offset,
            request_id=b"",
            origin=self.cluster_uuid,
            time_ms=self.time.wall_ms(),
        )

    def _persist(self, partition: Partition, entries: Sequence[Entry]) -> None:
        try:
            self.replog.append(partition.id, entries)
        except OutOfStorage as error:
            # The core has counted these entries already; it must fail rather than drift from the log.
            self._fail(error)
            return
        except LocalFault as error:
            self._fail(error)
            return
        if partition.own_from < 0 and entries:
            partition.own_from = entries[0].offset
        partition.pending.extend(entries)
        self.unapplied_bytes += sum(len(entry.wire) for entry in entries)

    def _apply(self, partition: Partition, end: int) -> None:
        start = partition.submitted
        if end <= start:
            return
        pending = partition.pending
        if not pending or pending[0].offset > start:
            until = min(end, pending[0].offset) if pending else end
            self._jobs.append(ApplyJob(partition.id, start, until, None))
            start = until
        if start < end:
            entries = [pending.popleft() for _ in range(end - start)]
            assert entries[0].offset == start
            self._jobs.append(ApplyJob(partition.id, start, end, entries))
        partition.submitted = end

    def _flush_jobs(self) -> None:
        if self._jobs:
            self._applier.submit(self._jobs)
            self._jobs = []

    def _ready(self, partition: Partition) -> None:
        log.info("isr.ready", partition=partition.id, epoch=partition.replica.epoch)
        for hook in self.hooks:
            hook.leadership(partition.id, True, partition.replica.applied)

    def _stepped_down(self, partition: Partition, effect: fx.SteppedDown) -> None:
        error = OutcomeUnknown(f"partition {partition.id}: leadership of epoch {effect.epoch} ended: {effect.reason}")
        kept: deque[PendingGroup] = deque()
        for group in partition.groups:
            if group.end <= effect.unknown_from:
                kept.append(group)
                continue
            for slot in group.slots:
                group.waiter.results[slot] = error
            group.waiter.release()
        partition.groups = kept
        for hook in self.hooks:
            hook.leadership(partition.id, False, partition.replica.applied)

    # -- reports of the threads -----------------------------------------------------------------------

    def _durable_threadsafe(self, ends: Mapping[int, int], _truncated: Mapping[int, int]) -> None:
        self._call(self._durable, ends)

    def _applied_threadsafe(self, steps: list[PartitionStep]) -> None:
        self._call(self._applied, steps)

    def _failed_threadsafe(self, error: Exception) -> None:
        self._call(self._fail, error)

    def _call(self, function: Callable[..., None], argument: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _durable(self, ends: Mapping[int, int]) -> None:
        now_ms = self.time.now_ms()
        for partition_id, end in ends.items():
            partition = self.partitions[partition_id]
            self._perform(partition, partition.replica.step(ev.Persisted(end), now_ms))
        self._flush_jobs()

    def _applied(self, steps: list[PartitionStep]) -> None:
        self._applier.written(steps)
        now_ms = self.time.now_ms()
        for step in steps:
            entries = step.entries
            if not entries:
                continue
            partition = self.partitions[step.partition]
            rows = partition.pending_rows
            size = 0
            for entry in entries:
                size += len(entry.wire)
                place = (entry.bucket, entry.key)
                if rows.get(place) is entry:
                    del rows[place]
            end = entries[-1].offset + 1
            if self._replay_targets:
                self._replayed(partition, end)
            if 0 <= partition.own_from <= entries[0].offset:
                self.unapplied_bytes -= size
            ready = partition.replica.ready
            effects = partition.replica.step(ev.AppliedTo(end), now_ms)
            groups = partition.groups
            while groups and groups[0].end <= end:
                groups.popleft().waiter.release()
            for hook in self.hooks:
                hook.applied(step.partition, entries, ready)
            self._perform(partition, effects)
            self._arm_timer(partition)
        self._flush_jobs()

    def _replayed(self, partition: Partition, end: int) -> None:
        """Drop a replay target that is passed; after the last, the store is as good as its applied offsets."""
        target = self._replay_targets.get(partition.id)
        if target is not None and end >= target:
            del self._replay_targets[partition.id]
            if not self._replay_targets:
                self._loop.run_in_executor(None, self._finish_replay)

    def _finish_replay(self) -> None:
        try:
            self.store.replay_finished()
        except (LocalFault, OSError) as error:
            self._failed_threadsafe(error)

    def _fail(self, error: Exception) -> None:
        if self._fatal is not None:
            return
        self._fatal = error
        log.error("runtime.failed", error=str(error), kind=type(error).__name__)
        for partition in self.partitions.values():
            self._perform(partition, partition.replica.step(ev.PersistFailed(str(error)), self.time.now_ms()))
        self._on_fatal(error)

    # -- timers ---------------------------------------------------------------------------------------

    def _arm_timer(self, partition: Partition) -> None:
        """Let the next tick come no later than this partition's deadline. A leader in quiet has none."""
        deadline_ms = partition.replica.deadline_ms()
        if deadline_ms is None or (self._tick is not None and self._tick_due_ms <= deadline_ms):
            return
        if self._tick is not None:
            self._tick.cancel()
        self._tick_due_ms = deadline_ms
        delay_ms = max(1, deadline_ms - self.time.now_ms())
        self._tick = self._loop.call_later(delay_ms / 1000, self._on_tick)

    def _on_tick(self) -> None:
        self._tick = None
        self.dispatch_all(ev.Tick())

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """Let a queue's soft cursor travel with the next apply batch, or alone within a second."""
        self._applier.soft_cursor(partition, queue, payload)

    def _flush_soft(self) -> None:
        self._applier.flush_soft_cursors()
        self._soft_timer = self._loop.call_later(SOFT_CURSOR_INTERVAL_MS / 1000, self._flush_soft)

    # -- telemetry --------------------------------------------------------------------------------------

    def metrics(self) -> list[Sample]:
        """The node's log, apply and roles, as samples of `repl.telemetry.HELP`."""
        replicas = [p.replica for p in self.partitions.values()]
        stats = self.replog.stats()
        samples: list[Sample] = [
            ("isthmus_partitions", {"role": role.value}, sum(r.role is role for r in replicas)) for role in Role
        ]
        samples += [
            ("isthmus_partitions_ready", {}, sum(r.ready for r in replicas)),
            ("isthmus_replog_unapplied_entries", {}, sum(r.leo - r.applied for r in replicas)),
            ("isthmus_replog_size_bytes", {}, stats.size_bytes),
            ("isthmus_replog_files", {}, stats.file_count),
            ("isthmus_replog_written_entries_total", {}, stats.entries_written),
            ("isthmus_replog_batches_total", {}, stats.batches_written),
            ("isthmus_replog_fsyncs_total", {}, stats.fsync_count),
            ("isthmus_replog_fsync_seconds_total", {}, stats.fsync_seconds),
            ("isthmus_apply_steps_total", {}, self._applier.steps_written),
            ("isthmus_apply_entries_total", {}, self._applier.entries_written),
            ("isthmus_unapplied_bytes", {}, self.unapplied_bytes),
            ("isthmus_store_size_bytes", {}, self.store.size_bytes()),
        ]
        return samples

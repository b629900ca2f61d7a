"""The runtime: carries out what the pure cores ask for, and tells them what happened.

Per partition: events -> `Replica.step` -> effects -> log, store, metastore, other nodes -> events. It decides nothing
about the protocol; the order "durable, then applied, then answered" is the core's (`repl.isr`). Everything here runs
on the event loop; the threads of log and store report back through `call_soon_threadsafe`. Group commit and
apply steps span partitions: one loop turn makes one batch.

This module is the loop between events and effects. What takes a
round trip is in `metastore_effects`, what goes to other nodes in `replication_sender`, log and store in `storage`, how
a replica comes to be in `replica_lifecycle`, what callers wait for in `waiters`. What it may not do: resolve clocks or
answer clients; that is `repl.coordinator.coordinator`.

What log and store report, told to the cores: how far logs are durable, and what is applied.

Both threads report for many partitions at once, one report for each group commit and each apply step, so this is gone
through with every write: the time is read once a report, and nothing is done for a partition that need not be.

One timer for the deadlines of all replicas of a node.

A busy leader's deadline changes with every message: a timer each would cost more than the tick is worth, and so would
asking for the deadline each time. So a replica to which something happened is looked at within LOOK_WITHIN_MS, with
all the others, and it is this look that finds out when the next one is due.

What other nodes tell this node's replicas: messages, a frame at a time, and connections that come and go.

It sorts by partition and sees to what the core presumes of its shell (`repl.isr.events`); the core decides what a
message means. What this node says is `repl.runtime.replication_sender`'s.

Far-horizon catch-up of a node: `catchup_sender` gives rows,
`catchup_receiver` takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, assert_never

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.messages import AppendEntries, FollowRequest, TransferRows
from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.errors import IsthmusError, NotReady
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.replog.port import Replog
from isthmus.repl.runtime import metrics as measures
from isthmus.repl.runtime.applier import SOFT_CURSOR_INTERVAL_MS
from isthmus.repl.runtime.catchup_receiver import TransferReceiver
from isthmus.repl.runtime.catchup_sender import TransferSender
from isthmus.repl.runtime.disk_full import HAND_OVER_MS, DiskFullPolicy
from isthmus.repl.runtime.hooks import ApplyListeners
from isthmus.repl.runtime.isr_changes import TELLING, IsrChanges
from isthmus.repl.runtime.metastore_effects import MetastoreEffects, RollbackAlarm
from isthmus.repl.runtime.metrics import ReplicationLatency
from isthmus.repl.runtime.partition import Partition, wire_bytes
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.runtime.replica_lifecycle import ReplicaManager
from isthmus.repl.runtime.replication_sender import ReplicationSender
from isthmus.repl.runtime.storage import Storage, barrier
from isthmus.repl.runtime.waiters import Waiters, refusal
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.store.port import PartitionStep, Store
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Delivery, Links

TICK_MIN_MS: Final = 10
"""Least time between two looks: deadlines within it are served together. The shortest pause that the cores ask for
is ten times as long."""

LOOK_WITHIN_MS: Final = 50
"""Longest time from something that happens to a replica until its deadline is asked for. What it set meanwhile is
further away (see above), so no tick is late for it; a busy node looks 20 times a second, 2 us a replica."""


class TickTimer:
    """Calls `tick(partition)` when the partition's replica is due, and `done()` after each look."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        time: TimeSource,
        tick: Callable[[Partition], None],
        done: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._time = time
        self._tick = tick
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._at_s = 0.0
        """When the timer fires, by the loop's clock."""

    def arm(self) -> None:
        """Something happened to a replica: let the next look come soon enough for whatever it wants."""
        at_s = self._loop.time() + LOOK_WITHIN_MS / 1000
        if self._timer is None or self._at_s > at_s:
            self._look_at(at_s)

    def _look_at(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at_s = at_s
        self._timer = self._loop.call_at(at_s, self._look)

    def _look(self) -> None:
        self._timer = None
        now_ms = self._time.now_ms()
        next_ms: int | None = None
        for partition in self._partitions.values():
            deadline_ms = partition.replica.deadline_ms()
            if deadline_ms is not None and deadline_ms <= now_ms:
                self._tick(partition)
                deadline_ms = partition.replica.deadline_ms()
            if deadline_ms is not None and (next_ms is None or deadline_ms < next_ms):
                next_ms = deadline_ms
        if next_ms is not None:
            self._look_at(self._loop.time() + max(TICK_MIN_MS, next_ms - now_ms) / 1000)
        self._done()

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()


class ReplicationReceiver:
    """Of one node. `step` feeds a core; `soft_cursor` takes what a leader says of a queue's cursor."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        replog: Replog,
        full_disk: DiskFullPolicy,
        step: Callable[[Partition, ev.Event], None],
        soft_cursor: Callable[[int, bytes, bytes], None],
    ) -> None:
        self._partitions = partitions
        self._replog = replog
        self._full_disk = full_disk
        self._step = step
        self._soft_cursor = soft_cursor
        self._strange_messages = 0

    def received(self, node: str, deliveries: Sequence[Delivery]) -> None:
        """Messages of another node's replicas, all of one frame; what they append goes to the log together. Those for
        partitions that are not here, or not yet, are dropped: whoever sent them asks again."""
        with self._replog.together():
            self._take(node, deliveries)

    def _take(self, node: str, deliveries: Sequence[Delivery]) -> None:
        for partition_id, message, cursors in deliveries:
            partition = self._partitions.get(partition_id)
            if partition is None:
                self._strange_messages += 1
                continue
            if isinstance(message, TransferRows):
                if self._full_disk.refuses(partition, len(message.rows)):
                    continue
            elif isinstance(message, AppendEntries):
                if message.entries and self._full_disk.refuses(partition, wire_bytes(message.entries)):
                    continue
                if cursors and partition.replica.following and message.epoch == partition.replica.epoch:
                    for queue, payload in cursors.items():
                        self._soft_cursor(partition_id, queue, payload)
            elif isinstance(message, FollowRequest):
                self.look_where_the_log_begins(partition)
            self._step(partition, ev.Received(node, message))

    def look_where_the_log_begins(self, partition: Partition) -> None:
        """Tell the core if that is not where it was."""
        start = self._replog.start_of(partition.id)
        if start > partition.log_start:
            partition.log_start = start
            self._step(partition, ev.Trimmed(start))

    def metrics(self) -> list[Sample]:
        """What came astray."""
        return [("isthmus_replicate_strange_messages_total", {}, self._strange_messages)]


FarEffect = fx.BeginTransfer | fx.InstallRows | fx.InstallMetadata | fx.FinishTransfer | fx.SendTransferChunk


class FarHorizon:
    """Of one node; see its halves."""

    def __init__(
        self,
        links: Links,
        store: Store,
        storage: Storage,
        time: TimeSource,
        step: Callable[[Partition, ev.Event], None],
        fail: Callable[[Exception], None],
    ) -> None:
        self._storage = storage
        self._serving = TransferSender(links, store, time, fail)
        self._taking = TransferReceiver(store, storage, time, step, fail)
        self.log_restarted = self._taking.log_restarted

    def report_damage(self, on_damaged: Callable[[int, int | None], None]) -> None:
        """Have `on_damaged(partition, segment)` called for each row that cannot be given."""
        self._serving.on_damaged = on_damaged

    def perform(self, partition: Partition, effect: FarEffect) -> None:
        """Carry out an effect."""
        if isinstance(effect, fx.SendTransferChunk):
            self._serving.answer(partition, effect)
        else:
            self._taking.perform(partition, effect)

    def look(self, partitions: Mapping[int, Partition]) -> None:
        """Once a second: end what is over, and pin the log for what is not."""
        self._storage.pins = self._serving.look(partitions)

    def busy(self, partition: int) -> bool:
        """True while rows of a partition are given or taken."""
        return self._taking.busy(partition) or self._serving.busy(partition)

    def stop(self) -> None:
        """Give and take nothing more. Blocks until nothing uses the store."""
        self._serving.stop()
        self._taking.stop()

    def metrics(self) -> list[Sample]:
        """What was given and taken."""
        return [*self._serving.metrics(), *self._taking.metrics()]


class Reports:
    """Of one node. `feed` takes an event of a partition at a time, and quarantines a copy whose core it breaks;
    `perform` carries out effects; `quarantine` stops a copy; `flush` ends a turn."""

    def __init__(
        self,
        partitions: Mapping[int, Partition],
        hooks: ApplyListeners,
        time: TimeSource,
        *,
        copies: ReplicaManager,
        far: FarHorizon,
        entry_times: ReplicationLatency,
        promises: Waiters,
        ticking: TickTimer,
        feed: Callable[[Partition, ev.Event, int], None],
        perform: Callable[[Partition, Sequence[fx.Effect], int], object],
        quarantine: Callable[[Partition, Exception], None],
        flush: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._hooks = hooks
        self._time = time
        self._copies = copies
        self._far = far
        self._entry_times = entry_times
        self._promises = promises
        self._ticking = ticking
        self._feed = feed
        self._perform = perform
        self._quarantine = quarantine
        self._flush = flush

    def durable(self, ends: Mapping[int, int], truncations: Mapping[int, int]) -> None:
        """Logs are durable below `ends`; before that, those of `truncations` were cut or restarted there."""
        partitions, feed, now_ms = self._partitions, self._feed, self._time.now_ms()
        for partition_id, end in ends.items():
            partition = partitions.get(partition_id)
            if partition is None:
                if partition_id in truncations:
                    self._copies.log_restarted(partition_id)
                continue
            if partition_id in truncations and not self._far.log_restarted(partition_id):
                feed(partition, ev.Truncated(truncations[partition_id]), now_ms)
            if partition.replica.far_position is None:
                feed(partition, ev.Persisted(end), now_ms)
        self._ticking.arm()
        self._flush()

    def applied(self, steps: Sequence[PartitionStep]) -> None:
        """Steps are in the store: answer who waited for them, and tell the hooks."""
        partitions, hooks, now_ms = self._partitions, self._hooks, self._time.now_ms()
        for partition_id, entries, _ in steps:
            if not entries:
                continue
            partition = partitions[partition_id]
            partition.forget_pending(entries)
            end = entries[-1].offset + 1
            leading = partition.told_leading
            try:
                effects = partition.replica.step(ev.AppliedTo(end), now_ms)
                self._entry_times.applied(partition, entries, now_ms)
                self._promises.applied(partition, end)
                hooks.applied(partition_id, entries, leading)
                if effects:
                    self._perform(partition, effects, now_ms)
            except Exception as bug:  # noqa: BLE001 - as in `feed`: this copy alone must not go on
                self._quarantine(partition, bug)
        self._ticking.arm()
        self._flush()


log = structlog.get_logger(__name__)


class Runtime:
    """All replicas of one node. Build, `attach` those that are here, `start`; later ones come by `records_seen`."""

    def __init__(
        self,
        *,
        node: str,
        cluster_uuid: bytes,
        store: Store,
        replog: Replog,
        metastore: Metastore,
        identity: NodeIdentity,
        registrar: Registrar,
        links: Links,
        time: TimeSource,
        options_of: Callable[[str], ReplicaOptions],
        window_bytes: int,
        entry_limit_bytes: int,
        checkpoint_interval_ms: int,
        removed_grace_ms: int,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        """`options_of` has the numbers of a bucket type's new replicas; an entry of `entry_limit_bytes` can be sent."""
        self.node, self.cluster_uuid = node, cluster_uuid
        self.store = store
        self.replog = replog
        self.links = links
        self.time = time
        self.entry_limit_bytes = entry_limit_bytes
        self.partitions: dict[int, Partition] = {}
        self.hooks = ApplyListeners()
        self.on_promoted: Callable[[int, fx.Promoted], None] = lambda _partition, _effect: None
        self.on_record_hint: Callable[[], None] = lambda: None
        """The core has heard of a newer record: whoever reads records should do so soon."""
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._registrar = registrar
        self._storage = Storage(
            store,
            replog,
            self.partitions,
            window_bytes=window_bytes,
            entry_limit_bytes=entry_limit_bytes,
            checkpoint_interval_ms=checkpoint_interval_ms,
            on_durable=lambda ends, truncations: self._reports.durable(ends, truncations),
            on_applied=lambda steps: self._reports.applied(steps),
            fail=self._fail,
        )
        self.mend = self._storage.mend
        self.drop_change = self._storage.drop_change
        self._round_trips = MetastoreEffects(identity, metastore, registrar, self.dispatch, self._fail)
        self._outbox = ReplicationSender(
            links, replog, time, self._fail, lambda p: self._inbox.look_where_the_log_begins(p)
        )
        self._far = FarHorizon(links, store, self._storage, time, self._feed, self._fail)
        self._copies = ReplicaManager(
            node=node,
            cluster_uuid=cluster_uuid,
            options_of=options_of,
            identity=identity,
            metastore=metastore,
            registrar=registrar,
            replog=replog,
            store=store,
            storage=self._storage,
            partitions=self.partitions,
            removed_grace_ms=removed_grace_ms,
            dispatch=self.dispatch,
            busy=lambda p: self._round_trips.busy(p) or self._far.busy(p),
            fail=self._fail,
        )
        self._promises = Waiters()
        self.entry_times = ReplicationLatency()
        self._full_disk = DiskFullPolicy(replog)
        self._inbox = ReplicationReceiver(self.partitions, replog, self._full_disk, self._feed, self.soft_cursor)
        self._ticking = TickTimer(self.partitions, time, lambda p: self._feed(p, ev.Tick()), self._storage.flush)
        self._reports = Reports(
            self.partitions,
            self.hooks,
            time,
            copies=self._copies,
            far=self._far,
            entry_times=self.entry_times,
            promises=self._promises,
            ticking=self._ticking,
            feed=self._feed_at,
            perform=self._perform,
            quarantine=self._quarantine,
            flush=self._storage.flush,
        )
        self._rollback_alarm = RollbackAlarm()
        self._isr_changes = IsrChanges()
        self._second: asyncio.TimerHandle | None = None
        self._fatal: Exception | None = None
        self._stopping = self._closed = False

    # -- start and stop -------------------------------------------------------------------------

    def attach(self, record: PartitionRecord) -> Partition:
        """Make the replica of `record` from what log, store and identity hold. Before `start`."""
        return self._copies.attach(record)

    def start(self) -> None:
        """Start the threads of log, apply and checkpoint."""
        self._storage.start()
        self._second = self._loop.call_later(SOFT_CURSOR_INTERVAL_MS / 1000, self._each_second)

    async def resign(self, timeout_s: float) -> None:
        """Withdraw from elections, hand over what is led here, and finish what was appended; then, or after
        `timeout_s`, take nothing more from anybody. Followers are served until then."""
        self._stopping = True
        deadline = self._loop.time() + timeout_s
        await self._registrar.withdraw(timeout_s)
        heirs = self._copies.heirs()
        for partition in self.partitions.values():
            self._feed(partition, ev.Resign(heirs.get(partition.id)))
        self._storage.flush()
        leaving = (ReplicaRole.IDLE, ReplicaRole.FOLLOWER, ReplicaRole.FAILED)
        while self._loop.time() < deadline and self._fatal is None:
            if self._storage.idle and all(p.replica.role in leaving for p in self.partitions.values()):
                break
            await asyncio.sleep(0.01)
        self._closed = True
        self._round_trips.cancel()
        self._copies.cancel()
        self._outbox.stop()
        for partition in self.partitions.values():
            self._promises.break_all(partition)

    async def stop(self, timeout_s: float) -> bool:
        """Resign, unless that was done before, and close log and store. True when all ended clean."""
        if not self._closed:
            await self.resign(timeout_s)
        self._ticking.stop()
        if self._second is not None:
            self._second.cancel()
        for using_the_store in (self._far, self._copies):
            await self._loop.run_in_executor(None, using_the_store.stop)
        clean = await self._loop.run_in_executor(None, self._storage.close, timeout_s)
        return clean and self._fatal is None

    # -- what others tell -----------------------------------------------------------------------------

    def session_started(self, inc: int) -> None:
        """This process is registered as `inc`."""
        self._copies.inc = inc
        self.dispatch_all(ev.SessionStarted(inc))

    def session_expired(self) -> None:
        """The session is definitely over."""
        self._copies.inc = None
        self.dispatch_all(ev.SessionExpired())

    def records_seen(self, records: Mapping[int, PartitionRecord]) -> None:
        """Tell the cores of records read from the metastore; begin to make copies that they want of this node."""
        for partition in self.partitions.values():
            if (record := records.get(partition.id)) is not None:
                self._feed(partition, ev.RecordSeen(record))
                self._rollback_alarm.look(partition)
        self._storage.flush()
        if not self._stopping:
            self._copies.seen(records)

    def received(self, node: str, deliveries: Sequence[Delivery]) -> None:
        """Messages of another node's replicas, all of one frame."""
        self._inbox.received(node, deliveries)
        self._storage.flush()

    def link_changed(self, node: str, up: bool) -> None:
        """The connection that this node dialled to `node` stands, or any with it broke."""
        if not up:
            self._outbox.link_lost(self.partitions.values(), node)
        self.dispatch_all(ev.LinkUp(node) if up else ev.LinkDown(node))

    # -- what this node asks of a replica ---------------------------------------------------------------

    def append(self, partition: Partition, entries: Sequence[Entry]) -> IsthmusError | None:
        """Append a leader's new entries; None when they are on their way, else why nothing happened."""
        error = NotReady("the node is stopping") if self._stopping else self._storage.obstacle(entries)
        if error is None:
            replica = partition.replica
            now_ms = self.time.now_ms()
            effects = replica.step(ev.Append(replica.epoch, tuple(entries)), now_ms)
            refused = self._perform(partition, effects, now_ms)
            if refused is None:
                self.entry_times.appended(partition, entries[0].kind, len(entries), now_ms)
                self._ticking.arm()
                return None
            error = refusal(partition, refused.reason)
        self.entry_times.refused(partition, entries, error.reason, self.time.now_ms())
        return error

    def committed(self, partition: Partition) -> asyncio.Future[None]:
        """Done as soon as the applied state of `partition` may be read as committed; fails with a Retryable."""
        if partition.replica.confirms_alone and not self._closed:
            return self._promises.kept
        token, future = self._promises.read(partition)
        self.dispatch(partition, ev.ReadRequested(token))
        if self._closed:
            self._promises.break_all(partition)
        return future

    def hand_over(self, partition: Partition, target: str | None, timeout_ms: int) -> None:
        """Ask a leader to hand over to `target`, or to whoever is closest; it leads on after `timeout_ms`."""
        self.dispatch(partition, ev.TransferLeadership(target, self.time.now_ms() + timeout_ms))

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """Let a queue's soft cursor travel with the next apply batch, or alone within a second; and to followers."""
        self._storage.soft_cursor(partition, queue, payload)
        self.partitions[partition].soft.note(queue, payload)

    # -- events into the core -----------------------------------------------------------------------------

    def dispatch(self, partition: Partition, event: ev.Event) -> None:
        """Feed one event to a partition's core and carry out what it asks for."""
        self._feed(partition, event)
        self._storage.flush()

    def dispatch_all(self, event: ev.Event) -> None:
        """Feed one event to every partition's core."""
        for partition in self.partitions.values():
            self._feed(partition, event)
        self._storage.flush()

    def _feed(self, partition: Partition, event: ev.Event) -> None:
        self._feed_at(partition, event, self.time.now_ms())
        self._ticking.arm()

    def _feed_at(self, partition: Partition, event: ev.Event, now_ms: int) -> None:
        """For many at one time; whoever calls it lets the deadlines be looked at."""
        if self._closed:
            return
        try:
            if isinstance(event, TELLING):
                before = partition.replica.record
                effects = partition.replica.step(event, now_ms)
                self._isr_changes.saw(before, partition.replica)
            else:
                effects = partition.replica.step(event, now_ms)
            if effects:
                self._perform(partition, effects, now_ms)
        except Exception as bug:  # noqa: BLE001 - an effect may be lost: this copy must not go on as if it were not
            self._quarantine(partition, bug)

    def _quarantine(self, partition: Partition, bug: Exception) -> None:
        """A fault of this program: this copy is left as it is, the others go on, here and on other nodes."""
        log.error("runtime.bug", partition=partition.id, exc_info=bug)
        reason = f"bug: {bug or type(bug).__name__}; report it with this node's log, then start the node again"
        now_ms = self.time.now_ms()
        self._perform(partition, partition.replica.step(ev.PersistFailed(reason), now_ms), now_ms)
        self._round_trips.withhold(partition.id)

    # -- effects of the core --------------------------------------------------------------------------------

    def _perform(self, partition: Partition, effects: Sequence[fx.Effect], now_ms: int) -> fx.AppendRefused | None:
        """Carry out effects in order; returns the refusal among them, if any."""
        refused: fx.AppendRefused | None = None
        for effect in effects:
            match effect:
                case fx.Persist():
                    self._storage.persist(partition, effect.entries)
                case fx.Replicate():
                    self._outbox.replicate(partition, effect)
                case fx.Send():
                    self._outbox.send(partition, effect)
                case fx.Apply():
                    self._storage.apply(partition, effect.end)
                    self.entry_times.committed(partition, effect.end, now_ms)
                case fx.ReadReady():
                    self._promises.read_ready(partition, effect.tokens)
                case fx.ReadRefused():
                    self._promises.read_refused(partition, effect.tokens, effect.reason)
                case fx.AppendBarrier():
                    self._storage.persist(partition, [barrier(effect, self.cluster_uuid, self.time.wall_ms())])
                    self.entry_times.appended(partition, EntryKind.BARRIER, 1, now_ms)
                case fx.Truncate():
                    self._storage.truncate(partition, effect.to_offset, effect.epoch)
                case fx.PersistEpoch() | fx.WriteRecord() | fx.ReadRecordSync() | fx.NewLogIdentity():
                    self._round_trips.perform(partition, effect)
                case fx.RefreshRecord():
                    self.on_record_hint()
                case (
                    fx.BeginTransfer()
                    | fx.InstallRows()
                    | fx.InstallMetadata()
                    | fx.FinishTransfer()
                    | fx.SendTransferChunk()
                ):
                    self._far.perform(partition, effect)
                case fx.Promoted():
                    self.on_promoted(partition.id, effect)
                case fx.RoleChanged():
                    self._role_changed(partition, effect)
                case fx.LeadershipReady():
                    self._ready(partition)
                case fx.SteppedDown():
                    self._stepped_down(partition, effect)
                case fx.AppendRefused():
                    refused = effect
                case _:
                    assert_never(effect)
        return refused

    def _role_changed(self, partition: Partition, effect: fx.RoleChanged) -> None:
        tell = log.error if effect.role is ReplicaRole.FAILED else log.info
        tell("isr.role", partition=partition.id, role=effect.role.value, epoch=effect.epoch, reason=effect.reason)
        self.entry_times.role_changed(partition, effect.role, self.time.now_ms())
        if effect.role is ReplicaRole.RESIGNING:
            self._outbox.share_cursors(partition, at_once=True)

    def _ready(self, partition: Partition) -> None:
        log.info("isr.ready", partition=partition.id, epoch=partition.replica.epoch)
        partition.told_leading = True
        self.hooks.leadership(partition.id, True, partition.replica.applied)

    def _stepped_down(self, partition: Partition, effect: fx.SteppedDown) -> None:
        self._promises.stepped_down(partition, effect)
        partition.told_leading = False
        self.hooks.leadership(partition.id, False, partition.replica.applied)

    def _fail(self, error: Exception) -> None:
        if self._fatal is not None:
            return
        self._fatal = error
        log.error("runtime.failed", error=str(error), kind=type(error).__name__)
        now_ms = self.time.now_ms()
        for partition in self.partitions.values():
            self._perform(partition, partition.replica.step(ev.PersistFailed(str(error)), now_ms), now_ms)
        self._on_fatal(error)

    # -- beside all this --------------------------------------------------------------------------------------

    def _each_second(self) -> None:
        self._second = self._loop.call_later(SOFT_CURSOR_INTERVAL_MS / 1000, self._each_second)
        self._storage.flush_soft_cursors()
        self._far.look(self.partitions)
        if not self._stopping:
            self._copies.look(self.time.now_ms())
        for partition in filter(lambda p: p.leads, self.partitions.values()):
            self._outbox.share_cursors(partition)
        for partition in self._full_disk.look(self.partitions.values(), self.time.now_ms()):
            self.hand_over(partition, None, HAND_OVER_MS)

    def report_damage(self, on_damaged: Callable[[int, int | None], None]) -> None:
        """Have `on_damaged(partition, segment)` called for each row that could not be given to a follower."""
        self._far.report_damage(on_damaged)

    def metrics(self) -> list[Sample]:
        """The node's log, apply, replicas and messages, as samples of `repl.telemetry.HELP`."""
        parts = (self.entry_times, self._storage, self._outbox, self._full_disk, self._inbox, self._far, self._copies)
        own = measures.samples(self.partitions.values(), self.replog, self.store, self.time.now_ms())
        own += self._isr_changes.metrics()
        return own + [sample for part in parts for sample in part.metrics()]

"""Carries out the effects of a node's replicas, and feeds them events.

For each partition: events -> `Replica.step` -> effects -> log, store, metastore, other nodes -> events. It decides
nothing about the protocol; the order "durable, then applied, then answered" is the core's (`repl.isr`). Everything runs
on the event loop; the threads of log and store report through `call_soon_threadsafe`. Group commits and apply steps
span partitions: one turn of the loop makes one batch.

A write: `Runtime.append` -> Persist and Replicate effects -> `Runtime.on_durable` and acknowledgements of followers
(`Runtime.received`) -> Apply effect -> `repl.runtime.applier` -> `Runtime.on_applied`, which answers the waiting
requests. Clocks and clients' answers are `repl.coordinator`'s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

import structlog

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.epochs import last_epoch
from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.machine import machine
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown
from isthmus.repl.model.ports import DamageListener, TimeSource
from isthmus.repl.model.record import PartitionRecord, Registration
from isthmus.repl.replog.port import EncodedRun
from isthmus.repl.runtime import metrics
from isthmus.repl.runtime.applier import SOFT_CURSOR_INTERVAL_MS
from isthmus.repl.runtime.apply_listeners import ApplyListeners
from isthmus.repl.runtime.disk_full import HAND_OVER_MS, DiskFullPolicy
from isthmus.repl.runtime.isr_changes import RECORD_EVENTS, IsrChanges
from isthmus.repl.runtime.latency import ReplicationLatency
from isthmus.repl.runtime.metastore_effects import MetastoreEffects, RollbackAlarm
from isthmus.repl.runtime.node_data import NodeData, RuntimeSettings
from isthmus.repl.runtime.pair_streams import PairStreams
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.port import RecordWatcher
from isthmus.repl.runtime.registration import Registrar
from isthmus.repl.runtime.replica_lifecycle import LocalCopies, ReplicaManager
from isthmus.repl.runtime.replication_receiver import ReplicationReceiver
from isthmus.repl.runtime.replication_sender import ReplicationSender
from isthmus.repl.runtime.rounds import Rounds
from isthmus.repl.runtime.storage import Storage, barrier
from isthmus.repl.runtime.tick_timer import TickTimer
from isthmus.repl.runtime.transfer_receiver import TransferReceiver
from isthmus.repl.runtime.transfer_sender import TransferSender
from isthmus.repl.store.port import PartitionStep
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Delivery, Links
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RuntimeListeners:
    """Get the reports of a runtime."""

    record_watcher: RecordWatcher
    """The inbox of this node's controller."""
    damage_listener: DamageListener
    """Gets rows that could not be sent to a follower."""
    on_fatal: Callable[[Exception], None]
    """Ends the process."""


class Runtime:
    """All replicas of one node. Build it, `attach` the copies that are here, `start` it, then the links, which it
    receives from; `records_seen` opens later ones.

    It is the `EventSink` of its parts, and receives the `StorageEvents` of log and store and the calls of a
    `LinkListener`.
    """

    def __init__(
        self,
        settings: RuntimeSettings,
        data: NodeData,
        reports: RuntimeListeners,
        *,
        metastore: Metastore,
        registrar: Registrar,
        links: Links,
        time: TimeSource,
    ) -> None:
        store, replog = data.store, data.replog
        self.node, self.cluster_uuid = settings.node, settings.cluster_uuid
        self.store = store
        self.replog = replog
        self.links = links
        self.time = time
        self.entry_limit_bytes = settings.entry_limit_bytes
        self.partitions: dict[int, Partition] = {}
        self.listeners = ApplyListeners()
        self.latency = ReplicationLatency()
        self._record_watcher = reports.record_watcher
        self._on_fatal = reports.on_fatal
        self._loop = asyncio.get_running_loop()
        self._registrar = registrar
        self._disk_full = DiskFullPolicy(replog, store)
        self._storage = Storage(store, replog, self.partitions, self, self._disk_full, settings)
        self._metastore_effects = MetastoreEffects(data.identity, metastore, registrar, self)
        self._sender = ReplicationSender(links, replog, time, self)
        self.rounds = Rounds()
        self._streams = PairStreams(
            self.partitions,
            links,
            self._storage,
            self._disk_full,
            time,
            self,
            self._loop,
            self.rounds,
            machine().random().getrandbits(62),
        )
        self._receiver = ReplicationReceiver(
            self.partitions, replog, self._storage, self._disk_full, self._streams, self
        )
        self._transfer_sender = TransferSender(links, store, time, self, reports.damage_listener)
        self._transfer_receiver = TransferReceiver(store, self._storage, time, self)
        self._replicas = ReplicaManager(
            LocalCopies(self.node, self.partitions, data, registrar, self._storage, self),
            settings,
            metastore,
            in_flight=(self._metastore_effects, self._transfer_receiver, self._transfer_sender),
        )
        self._ticks = TickTimer(self.partitions, time, self)
        self._rollback_alarm = RollbackAlarm()
        self._isr_changes = IsrChanges()
        self._confirmed: asyncio.Future[None] = self._loop.create_future()
        """The answer to reads that need no confirmation."""
        self._confirmed.set_result(None)
        self._sessions: Mapping[str, int] = {}
        """Node -> the session id under which it is registered."""
        self._second: asyncio.TimerHandle | None = None
        self._fatal: Exception | None = None
        self._stopping = self._closed = False
        registrar.watch(self)

    # -- start and stop -----------------------------------------------------------------------------------

    def attach(self, record: PartitionRecord) -> Partition:
        """Open the replica of `record` from log, store and identity. Before `start`."""
        return self._replicas.attach(record)

    def start(self) -> None:
        """Start the threads of log, apply and checkpoint."""
        self._storage.start()
        self._second = self._loop.call_later(SOFT_CURSOR_INTERVAL_MS / 1000, self._each_second)

    async def resign(self, timeout_s: float) -> None:
        """Withdraw from elections, hand over leadership, and finish what was appended; then, or after `timeout_s`, take
        no more events. Followers are served until then; writes are taken until the withdrawal is over."""
        deadline = self._loop.time() + timeout_s
        await self._registrar.withdraw(timeout_s)
        self._stopping = True
        successors = self._replicas.successors(self.links.dialled_nodes())
        for partition in self.partitions.values():
            self.feed(partition, ev.Resign(successors.get(partition.id), self._sessions))
        self.flush()
        resigned = (ReplicaRole.IDLE, ReplicaRole.FOLLOWER, ReplicaRole.FAILED)
        while self._loop.time() < deadline and self._fatal is None:
            if self._storage.idle and all(p.replica.role in resigned for p in self.partitions.values()):
                break
            await asyncio.sleep(0.01)
        self._closed = True
        self._metastore_effects.cancel()
        self._replicas.cancel()
        self._sender.stop()
        self._streams.stop()
        for partition in self.partitions.values():
            partition.waiters.refuse_all_reads(partition.refusal(NotReady.reason))

    async def stop(self, timeout_s: float) -> bool:
        """Resign, unless that was done before, and close log and store. True when all threads ended and nothing
        failed."""
        if not self._closed:
            await self.resign(timeout_s)
        self._ticks.stop()
        if self._second is not None:
            self._second.cancel()
        for using_the_store in (self._transfer_sender, self._transfer_receiver, self._replicas):
            await self._loop.run_in_executor(None, using_the_store.stop)
        clean = await self._loop.run_in_executor(None, self._storage.close, timeout_s)
        return clean and self._fatal is None

    # -- input from metastore and links -------------------------------------------------------------------

    def session_started(self, session: int) -> None:
        """See SessionListener. The controller may decide now."""
        self._replicas.session_changed(session)
        self.dispatch_all(ev.SessionStarted(session))
        self._record_watcher.wake()

    def session_expired(self) -> None:
        """See SessionListener. The session is definitely over."""
        self._replicas.session_changed(None)
        self.dispatch_all(ev.SessionExpired())

    def registrations_seen(self, registrations: Mapping[str, Registration]) -> None:
        """Note who is registered: leaders that resign nominate their successors."""
        self._sessions = {each.node: each.session_id for each in registrations.values() if each.active}

    def records_seen(self, records: Mapping[int, PartitionRecord]) -> None:
        """Feed records read from the metastore; begin to open the copies that they assign to this node."""
        for partition in self.partitions.values():
            if (record := records.get(partition.id)) is not None:
                self.feed(partition, ev.RecordSeen(record))
                self._rollback_alarm.check(partition)
        self.flush()
        if not self._stopping:
            self._replicas.records_seen(records)

    def received(self, node: str, deliveries: Sequence[Delivery]) -> None:
        """Messages of another node's replicas, all of one frame."""
        self._receiver.received(node, deliveries)
        self.flush()

    def link_changed(self, node: str, up: bool) -> None:
        """The connection that this node dialled to `node` is up, or any connection with it broke."""
        if not up:
            self._sender.link_lost(self.partitions.values(), node)
        self.dispatch_all(ev.LinkUp(node) if up else ev.LinkDown(node))
        if not up:
            self._streams.link_lost(node)

    def stream_wanted(self, node: str) -> None:
        """`node` takes a stream over the connection that it dialled."""
        self._streams.wanted(node)

    # -- requests -----------------------------------------------------------------------------------------

    def append(self, partition: Partition, entries: Sequence[Entry], now_ms: int) -> IsthmusError | None:
        """Append a leader's new entries; None when they are on their way, else why none was appended, or
        OutcomeUnknown: the copy has stopped, and nothing says how much was. `now_ms` is the same for all partitions
        that append in one turn of the loop."""
        error = NotReady("the node is stopping") if self._stopping else self._storage.refusal(entries)
        if error is None:
            replica = partition.replica
            try:
                effects = replica.step(ev.Append(replica.epoch, tuple(entries)), now_ms)
                refused = self._perform(partition, effects, now_ms)
            except Exception as bug:  # noqa: BLE001 - as in `feed_at`
                self.quarantine(partition, bug)
                return OutcomeUnknown(f"partition {partition.id}: its copy here stopped while this was appended")
            if refused is None:
                self.latency.appended(partition, entries[0].kind, len(entries), now_ms)
                self._ticks.arm()
                return None
            error = partition.refusal(refused.reason)
        self.latency.refused(partition, entries, error.reason, now_ms)
        return error

    def committed(self, partition: Partition) -> asyncio.Future[None]:
        """Done as soon as the applied state of `partition` may be read as committed; fails with a Retryable. A future
        that is not done yet is its caller's own, who may cancel it."""
        if partition.replica.confirms_alone and not self._closed:
            return self._confirmed
        token, future = partition.waiters.add_read()
        self.dispatch(partition, ev.ReadRequested(token))
        if self._closed:
            partition.waiters.refuse_all_reads(partition.refusal(NotReady.reason))
        return future

    def hand_over(self, partition: Partition, target: str | None, timeout_ms: int) -> None:
        """Have a leader hand over to `target`, or to the follower closest to it; it leads on after `timeout_ms`."""
        self.dispatch(partition, ev.TransferLeadership(target, self.time.now_ms() + timeout_ms, self._sessions))

    def reaches(self, node: str) -> bool:
        """Whether a connection with `node` is open that this node dialled."""
        return self.links.linked(node)

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """Write a queue's soft cursor with the next apply batch, or alone within a second, and send it to followers."""
        self._storage.soft_cursor(self.partitions[partition], queue, payload)

    async def mend(self, partition: Partition, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """See `Storage.mend`."""
        return await self._storage.mend(partition, chunk, seen, upto)

    async def drop_change(self, partition: Partition, offset: int, seen: bytes) -> bool:
        """See `Storage.drop_change`."""
        return await self._storage.drop_change(partition, offset, seen)

    def position_of(self, partition: int) -> tuple[int, int] | None:
        """(last epoch, LEO) of this node's replica of a partition; None when it has none."""
        found = self.partitions.get(partition)
        return None if found is None else (last_epoch(found.replica.epoch_table), found.replica.leo)

    # -- events into the core -----------------------------------------------------------------------------

    def dispatch(self, partition: Partition, event: ev.Event) -> None:
        """Step one replica, carry out its effects, and flush."""
        self.feed(partition, event)
        self.flush()

    def dispatch_all(self, event: ev.Event) -> None:
        """`dispatch` one event to every replica."""
        for partition in self.partitions.values():
            self.feed(partition, event)
        self.flush()

    def flush(self) -> None:
        """Hand committed entries of this turn to the applier."""
        self._storage.flush()

    def feed(self, partition: Partition, event: ev.Event) -> None:
        """Step one replica and carry out its effects; `flush` must follow in the same turn of the loop."""
        self.feed_at(partition, event, self.time.now_ms())
        self._ticks.arm()

    def feed_at(self, partition: Partition, event: ev.Event, now_ms: int) -> None:
        """`feed` for many partitions at one time; the caller arms the tick timer once."""
        if self._closed:
            return
        replica = partition.replica
        try:
            if type(event) in RECORD_EVENTS:
                before = replica.record
                effects = replica.step(event, now_ms)
                self._isr_changes.compare(before, replica)
            else:
                effects = replica.step(event, now_ms)
            if effects:
                self._perform(partition, effects, now_ms)
        except Exception as bug:  # noqa: BLE001 - an effect may be lost: this copy must not go on
            self.quarantine(partition, bug)

    def check_log_start(self, partition: Partition) -> None:
        """Feed a Trimmed event if the log begins above the offset that the replica knows."""
        start = self.replog.start_of(partition.id)
        if start > partition.log_start:
            partition.log_start = start
            self.feed(partition, ev.Trimmed(start))

    def quarantine(self, partition: Partition, bug: Exception) -> None:
        """Stop one copy after a bug and leave its files as they are; all other copies go on."""
        unforeseen.exception("runtime.bug", bug, partition=partition.id)
        reason = f"bug: {bug or type(bug).__name__}; report it with this node's log, then start the node again"
        now_ms = self.time.now_ms()
        self._perform(partition, partition.replica.step(ev.PersistFailed(reason), now_ms), now_ms)
        # Nothing more is applied here, so nobody waits for it, whatever is committed.
        partition.waiters.fail_above(0, OutcomeUnknown(f"partition {partition.id}: its copy here stopped: {reason}"))
        self._metastore_effects.withhold(partition.id)

    def fail(self, error: Exception) -> None:
        """End the process: log or store can no longer be trusted. Further calls do nothing."""
        if self._fatal is not None:
            return
        self._fatal = error
        log.error("runtime.failed", error=str(error), kind=type(error).__name__)
        now_ms = self.time.now_ms()
        for partition in self.partitions.values():
            self._perform(partition, partition.replica.step(ev.PersistFailed(str(error)), now_ms), now_ms)
        self._on_fatal(error)

    # -- results of log and store -------------------------------------------------------------------------

    def on_durable(self, ends: Mapping[int, int], truncations: Mapping[int, int]) -> None:
        """See `StorageEvents`. One report covers many partitions, once for each group commit: the time is read once."""
        now_ms = self.time.now_ms()
        for partition_id, end in ends.items():
            partition = self.partitions.get(partition_id)
            if partition is None:
                if partition_id in truncations:
                    self._replicas.log_restarted(partition_id)
                continue
            try:
                restarted = partition_id in truncations and not self._transfer_receiver.log_restarted(partition_id)
            except Exception as bug:  # noqa: BLE001 - as in `feed_at`
                self.quarantine(partition, bug)
                continue
            if restarted:
                self.feed_at(partition, ev.Truncated(truncations[partition_id]), now_ms)
            if partition.replica.transfer_position is None:
                self.feed_at(partition, ev.Persisted(end), now_ms)
        self._streams.durable()
        self._ticks.arm()
        self.flush()

    def on_applied(self, steps: Sequence[PartitionStep], committed_ms: int) -> None:
        """See `StorageEvents`: answer the requests that waited for these entries, and notify listeners, once for each
        apply step."""
        partitions, now_ms = self.partitions, self.time.now_ms()
        applied: list[tuple[Partition, Sequence[Entry]]] = []
        followed: list[tuple[Partition, fx.Effects]] = []
        for partition_id, entries, _ in steps:
            partition = partitions.get(partition_id)
            if not entries or partition is None:
                continue
            end = entries[-1].offset + 1
            try:
                effects = partition.replica.step(ev.AppliedTo(end), now_ms)
                partition.waiters.applied(end)
            except Exception as bug:  # noqa: BLE001 - as in `feed_at`
                self.quarantine(partition, bug)
                continue
            applied.append((partition, entries))
            if effects:
                followed.append((partition, effects))
        if applied:
            self.listeners.applied([(partition.id, entries) for partition, entries in applied])
            self.latency.applied(applied, committed_ms, now_ms)
        for partition, effects in followed:  # only now: listeners learn of a barrier before they learn of leadership
            try:
                self._perform(partition, effects, now_ms)
            except Exception as bug:  # noqa: BLE001 - as in `feed_at`
                self.quarantine(partition, bug)
        self._ticks.arm()
        self.flush()

    # -- effects of the core ------------------------------------------------------------------------------

    def _perform(self, partition: Partition, effects: Sequence[fx.Effect], now_ms: int) -> fx.AppendRefused | None:
        """Carry out effects in order; returns the refusal among them, if any."""
        refused: fx.AppendRefused | None = None
        runs: Sequence[EncodedRun] = ()
        for effect in effects:
            match effect:  # the effects of a write first
                case fx.Apply():
                    self._storage.apply(partition, effect.end, now_ms)
                case fx.Persist():
                    runs = self._storage.persist(partition, effect.entries)
                case fx.StreamEntries():
                    self._streams.add(effect, runs)
                    self._sender.streamed((effect.end - effect.start) * len(effect.to))
                case fx.Replicate():
                    self._sender.replicate(partition, effect)
                case fx.Send():
                    self._sender.send(partition, effect)
                case fx.ReadReady():
                    partition.waiters.reads_confirmed(effect.tokens)
                case fx.ReadRefused():
                    partition.waiters.reads_refused(effect.tokens, partition.refusal(effect.reason))
                case fx.AppendBarrier():
                    self._storage.persist(partition, [barrier(effect, self.cluster_uuid, self.time.wall_ms())])
                    self.latency.appended(partition, EntryKind.BARRIER, 1, now_ms)
                case fx.Truncate():
                    self._storage.truncate(partition, effect.to_offset, effect.epoch)
                case fx.PersistEpoch() | fx.WriteRecord() | fx.ReadRecordSync() | fx.NewLogIdentity():
                    self._metastore_effects.perform(partition, effect)
                case fx.RefreshRecord():
                    self._record_watcher.wake()
                case fx.BeginTransfer() | fx.InstallRows() | fx.InstallMetadata() | fx.FinishTransfer():
                    self._transfer_receiver.perform(partition, effect)
                case fx.SendTransferChunk():
                    self._transfer_sender.answer(partition, effect)
                case fx.Promoted():
                    self._record_watcher.promoted(partition.id, effect)
                case fx.RoleChanged():
                    self._role_changed(partition, effect)
                case fx.LeadershipReady():
                    self._leadership_ready(partition)
                case fx.SteppedDown():
                    self._stepped_down(partition, effect)
                case fx.AppendRefused():
                    refused = effect
                case fx.RunAccepted():
                    raise AssertionError("the end of the stream takes this, which received the run")
                case _:
                    assert_never(effect)
        return refused

    def _role_changed(self, partition: Partition, effect: fx.RoleChanged) -> None:
        write = log.error if effect.role is ReplicaRole.FAILED else log.info
        write("isr.role", partition=partition.id, role=effect.role.value, epoch=effect.epoch, reason=effect.reason)
        self.latency.role_changed(partition, effect.role, self.time.now_ms())
        if effect.role is ReplicaRole.LEADER:
            for node in self._streams.open_nodes:
                partition.replica.step(ev.StreamOpened(node), self.time.now_ms())
        if effect.role is ReplicaRole.RESIGNING:
            self._sender.share_cursors(partition, at_once=True)

    def _leadership_ready(self, partition: Partition) -> None:
        log.info("isr.ready", partition=partition.id, epoch=partition.replica.epoch)
        self.listeners.leadership(partition.id, True, partition.replica.applied)

    def _stepped_down(self, partition: Partition, effect: fx.SteppedDown) -> None:
        """Committed entries will still be answered when they are applied; the outcome of the others is unknown here."""
        lost = OutcomeUnknown(f"partition {partition.id}: leadership of epoch {effect.epoch} ended: {effect.reason}")
        partition.waiters.fail_above(effect.unknown_from, lost)
        partition.unapplied.clear_pending_rows()
        self.listeners.leadership(partition.id, False, partition.replica.applied)

    # -- once a second ------------------------------------------------------------------------------------

    def _each_second(self) -> None:
        self._second = self._loop.call_later(SOFT_CURSOR_INTERVAL_MS / 1000, self._each_second)
        steps = (self._storage.flush_soft_cursors, self._end_rounds, self._check_copies, self._hand_over_full)
        for step in steps:
            try:
                step()
            except Exception as error:
                unforeseen.exception("runtime.second_failed", error, step=step.__name__)
        reached = ev.NodesReached(frozenset(self.links.dialled_nodes()))
        now_ms = self.time.now_ms()
        for partition in [each for each in self.partitions.values() if each.leads]:
            self.feed_at(partition, reached, now_ms)
            try:
                self._sender.share_cursors(partition)
            except Exception as error:
                unforeseen.exception("runtime.second_failed", error, partition=partition.id)

    def _end_rounds(self) -> None:
        self._storage.pins = self._transfer_sender.end_rounds(self.partitions)

    def _check_copies(self) -> None:
        if not self._stopping:
            self._replicas.check(self.time.now_ms())

    def _hand_over_full(self) -> None:
        now_ms = self.time.now_ms()
        chosen = self._disk_full.check(self.partitions.values(), now_ms)
        full = ev.DiskFull(not self._disk_full.takes_barriers)
        for partition in self.partitions.values():
            self.feed_at(partition, full, now_ms)
        for partition in chosen:
            self.hand_over(partition, None, HAND_OVER_MS)

    def metrics(self) -> list[Sample]:
        """Samples of log, store, replicas and messages, by the names of `repl.telemetry.HELP`."""
        samples = metrics.samples(self.partitions.values(), self.replog, self.store, self.time.now_ms())
        samples += self._isr_changes.metrics()
        for part in (
            self.latency,
            self._storage,
            self._sender,
            self._streams,
            self._disk_full,
            self._receiver,
            self._transfer_sender,
            self._transfer_receiver,
            self._replicas,
        ):
            samples += part.metrics()
        return samples

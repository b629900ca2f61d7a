"""All source queues of a node: fed with applied entries, fetched from by sinks, changed by operators.

This module decides what concerns all queues of the node: which queues there are, which partitions are led here, who may
fetch, and what the metastore documents contain. `applied` runs on the write path and never waits. Go on with
`queues.queue_server` (serves one queue), `queues.source_queue` (its state machine), `queues.cursor_keeper` (cursors),
`queues.admin` (operators' acts), `queues.status` (reasons, ledgers, samples); `node.services.queue_listing` lists them.
The other end of a fetch is `sink`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import structlog

from isthmus.config.settings import QueueSettings
from isthmus.queues.backlog_count import Backlog
from isthmus.queues.bulk_marks import BulkMarks
from isthmus.queues.cursor_keeper import RETRY_MS, CursorKeeper, log_unreadable
from isthmus.queues.cursors import decode_state
from isthmus.queues.gaps import QueueGap
from isthmus.queues.leases import LeasedBatch, Session
from isthmus.queues.long_poll import Until, wait_forever
from isthmus.queues.queue_documents import DEFINITIONS_PATH, QueueOwner, QueueState
from isthmus.queues.queue_server import QueueHost, QueueServer
from isthmus.queues.queue_table import QueueTable
from isthmus.queues.riak_origin import RIAK_CLUSTER, RIAK_NAME
from isthmus.queues.sink_shares import KeyRange
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.status import samples_of, unknown_queue
from isthmus.queues.task_set import TaskSet
from isthmus.queues.window_rules import REAL_TIME, Item
from isthmus.queues.wire import BYTES_MAX, FetchReply, FetchRequest, OwnCluster, OwnedByOther, UnknownQueue
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import machine
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady
from isthmus.repl.model.ports import (
    AppliedChanges,
    AppliedEntries,
    CursorWriter,
    DamageListener,
    KeyValue,
    TimeSource,
)
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.property_digests import ScopeDigests
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Sample
from isthmus.repl.traces import ChangeTraces
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

TICK_MS: Final = 1_000
"""Interval at which leases expire and moved cursors are saved: what a crash redelivers beyond what is in flight."""

ANEW_MS: Final = 1_000
"""Pause before what failed for an unforeseen reason is begun again: a defect that lasts must not take the loop."""

STOP_RECORD_S: Final = 2.0
"""How long a stop waits for the metastore to record the bulk references that are lost with this process."""

READS_MAX: Final = 3
"""How often a queue's documents are read in a row because a fetch took the queue during the read. Each repeat needs
another take-over at this node; with so many, the caller retries."""

POP_ATTEMPTS_MAX: Final = 64
"""How many references to vanished objects one pop skips before it answers that there is nothing. A guess: 64 reads take
less time than the next request."""

EMPTY_HOLD_MS: Final = 32
"""How long `pop` waits for a change before it answers that there is none. A Riak's source looks eight times, every 4
ms, before it says so, and a Riak's sink asks the later the more empty answers it gets, up to once a second."""

STARTING_WAIT_MS: Final = 5_000
"""How long `pop` waits at most while changes may be there that are not in the windows yet: for a new owner or leader a
CURSOR entry is written, and the change index read, which takes some milliseconds unless the disk is slow."""

_CURSOR: Final = int(EntryKind.CURSOR)


class QueueCluster(Protocol):
    """Identity and state of this node's cluster, as the queues need them."""

    def partition_types(self) -> Mapping[int, bytes]:
        """Bucket type of each partition with a replica on this node."""

    def key_range(self, partition: int) -> KeyRange | None:
        """Which keys of its bucket type are in a partition; None for one without a replica on this node."""

    def bucket_types(self) -> Collection[bytes]:
        """All bucket types."""

    def property_digests(self) -> dict[bytes, bytes]:
        """Digest of the properties that must agree between clusters, by bucket type; see `queues.wire`."""

    def scope_digests(self) -> ScopeDigests | None:
        """Digests by bucket and bucket type; None where they are not sent."""

    def live_nodes(self) -> Collection[str]:
        """Names of the live nodes."""


@dataclass(frozen=True)
class QueuePorts:
    """The ports by which source queues use their node."""

    store: Store
    changes: AppliedChanges
    cursors: CursorWriter
    kv: KeyValue
    metastore: Metastore
    cluster: QueueCluster
    damage_listener: DamageListener
    """Gets damaged rows, on the event loop."""
    time: TimeSource
    read_pool: Executor


class QueueService:
    """The source side of a node; an ApplyListener. All methods belong to the event loop's thread. Raises BadConfig
    when the filter of a queue is not known."""

    def __init__(
        self,
        table: QueueTable,
        this: ThisNode,
        ports: QueuePorts,
        *,
        traces: ChangeTraces | None,
        enabled: bool,
    ) -> None:
        """Fills `table`. `traces` follows sampled changes; None: traces are off. `enabled` False: no reference is made
        on this node, and none is served."""
        self.node = this.name
        self.enabled = enabled
        self.queue_store = table.store
        self.time = ports.time
        self.cluster = ports.cluster
        self.cluster_uuid = this.cluster_uuid
        self.cluster_name = this.cluster
        self._damage_listener = ports.damage_listener
        self._traces = traces
        self._metastore = ports.metastore
        self._batch_prefix = machine().random_bytes(8)
        self._tasks = TaskSet()
        self.bulk_marks = BulkMarks(self.queue_store, this.name, ports.time, ports.cluster, self._tasks)
        self._host = QueueHost(
            own=this.cluster_uuid,
            batch_prefix=self._batch_prefix,
            store=ports.store,
            kv=ports.kv,
            pool=ports.read_pool,
            time=ports.time,
            tasks=self._tasks,
            marks=self.bulk_marks,
            keeper=self,
            enabled=enabled,
        )
        self._queues = table.servers
        self._queues.update({one.name: self._build(one) for one in table.settings})
        self._led: dict[int, int] = {}
        """Led partition -> first offset whose entry was not added to the queues yet."""
        self._cursors = CursorKeeper(
            self._host, cursors=ports.cursors, led=self._led, cluster=ports.cluster, loader=self
        )
        self._following = asyncio.Lock()
        self._damaged_rows = LogLimit()
        self._running = False
        ports.changes.add(self)

    def _build(self, settings: QueueSettings) -> QueueServer:
        documents = self.queue_store.documents(settings.name, self.time.wall_ms())
        return QueueServer(settings, documents, self._host)

    def on_damaged_row(self, partition: int, segment: int | None) -> None:
        """See DamageListener. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the node stops: its loop is closed
            self._loop.call_soon_threadsafe(self._report_damage, partition, segment)

    def _report_damage(self, partition: int, segment: int | None) -> None:
        if segment is not None and (suppressed := self._damaged_rows.due()) is not None:
            log.error("queue.key_row_damaged", partition=partition, segment=segment, suppressed=suppressed)
        self._damage_listener.on_damaged_row(partition, segment)

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Read the documents, then begin to tick. Raises NotReady when the metastore cannot be reached."""
        self._loop = asyncio.get_running_loop()
        self._metastore.watch(self._on_hint)
        await self.follow_definitions()
        for queue in self._queues.values():
            await self.reload(queue)
            await self.bulk_marks.begin(queue)
        self._running = True
        self._tasks.start(self._tick_forever())

    async def stop(self) -> None:
        """Answer the waiting fetches, save cursors, record what is lost with this process, end the tasks;
        idempotent."""
        queues = list(self._queues.values())
        for queue in queues:
            queue.close()
        if self._running:
            self._running = False
            for queue in queues:
                self._cursors.save(queue, None)
            with contextlib.suppress(IsthmusError, TimeoutError):
                async with asyncio.timeout(STOP_RECORD_S):
                    for queue in queues:
                        await self.bulk_marks.give_up(queue, "stopped", "")
        await self._tasks.cancel()

    async def _tick_forever(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.tick()

    def tick(self) -> None:
        """Do what is due once a second: save cursors, expire leases, retry CURSOR entries, drop idle windows. A queue
        that fails costs its own turn."""
        now = self.time.now_ms()
        for queue in self._queues.values():
            try:
                self._tick_of(queue, now)
            except Exception as error:
                unforeseen.exception("queue.tick_failed", error, queue=queue.settings.name)
        try:
            self.bulk_marks.tick(list(self._queues.values()))
        except Exception as error:
            unforeseen.exception("queue.marks_failed", error)

    def _tick_of(self, queue: QueueServer, now_ms: int) -> None:
        self._cursors.save(queue, None)
        queue.check_ledger()
        expired = queue.machine.expire(now_ms)
        if expired:
            log.info("queue.lease_over", queue=queue.settings.name, batches=expired)
        if not queue.waiters:
            queue.machine.drop_idle_windows(now_ms)
        self._go_on(queue)

    def _go_on(self, queue: QueueServer) -> None:
        """Write pending cursors, read rows, wake a fetch: whatever the queue's new state allows."""
        self._cursors.write_pending_cursors(queue)
        queue.refill()
        queue.wake()

    # ---------------------------------------------------------------- applied entries

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """See `repl.model.ports.ApplyListener`."""
        led, now = self._led, self.time.now_ms()
        added = False
        for partition, entries, leader in applied:
            if not leader or partition not in led:
                continue
            led[partition] = entries[-1].offset + 1
            if _CURSOR in [entry.kind for entry in entries]:
                self._applied_with_cursors(partition, entries, now)
                continue
            added = True
            for queue in self._queues.values():
                try:
                    queue.machine.add(partition, entries, now)
                except Exception as error:  # noqa: BLE001 -- see `begin_anew`
                    self.begin_anew(queue, partition, error)
        if added:
            for queue in self._queues.values():
                queue.waiters.look_soon()

    def _applied_with_cursors(self, partition: int, entries: Sequence[Entry], now_ms: int) -> None:
        for queue in self._queues.values():
            try:
                self._add_with_cursors(queue, partition, entries, now_ms)
                self._go_on(queue)
            except Exception as error:  # noqa: BLE001 -- see `begin_anew`
                self.begin_anew(queue, partition, error)

    def _add_with_cursors(self, queue: QueueServer, partition: int, entries: Sequence[Entry], now_ms: int) -> None:
        start = 0
        for at, entry in enumerate(entries):
            if entry.kind != _CURSOR or entry.key != queue.name:
                continue
            queue.machine.add(partition, entries[start : at + 1], now_ms)
            start = at + 1
            try:
                state = decode_state(entry.payload)
            except CodecError as error:
                log_unreadable(queue, partition, error)
                continue
            self._cursors.on_applied(queue, partition, entry.offset, state)
        if start < len(entries):
            queue.machine.add(partition, entries[start:], now_ms)

    def begin_anew(self, queue: QueueServer, partition: int, error: Exception) -> None:
        """A step of a queue's window failed, so that it may lack changes, or hold one that cannot be served. The window
        of this partition begins again from its cursor, after a pause, as after a change of leadership: what is between
        is read from the store. Other partitions and queues go on."""
        unforeseen.exception("queue.window_failed", error, queue=queue.settings.name, partition=partition)
        try:
            queue.machine.unlead(partition)
        except Exception as again:
            unforeseen.exception("queue.window_failed", again, queue=queue.settings.name, partition=partition)
        if partition not in queue.beginning_anew:
            queue.beginning_anew.add(partition)
            self._tasks.start(self._load_again(queue, partition))

    async def _load_again(self, queue: QueueServer, partition: int) -> None:
        try:
            await asyncio.sleep(ANEW_MS / 1000)
        finally:
            queue.beginning_anew.discard(partition)
        await self._load_position(queue, partition)

    def applied_upto(self) -> dict[int, int]:
        """Led partition -> first offset whose entry was not added to the queues yet."""
        return dict(self._led)

    @property
    def unread(self) -> str:
        """Why this node does not know which queues there are; "" when it does."""
        return self.queue_store.unread

    def machines(self) -> dict[str, SourceQueue]:
        """The state machines of all queues, by name."""
        return {name: queue.machine for name, queue in self._queues.items()}

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """See `repl.model.ports.ApplyListener`; all entries below `applied_offset` are applied."""
        if leading:
            self._led[partition] = applied_offset
            self._cursors.begin(partition)
            for queue in self._queues.values():
                self._tasks.start(self._load_position(queue, partition))
            return
        self._cursors.end(self._queues.values(), partition)
        self._led.pop(partition, None)
        for queue in self._queues.values():
            try:
                queue.machine.unlead(partition)
            except Exception as error:
                unforeseen.exception("queue.window_failed", error, queue=queue.settings.name, partition=partition)

    async def _load_position(self, queue: QueueServer, partition: int) -> None:
        try:
            await self._cursors.load_position(queue, partition)
            self._go_on(queue)
        except Exception as error:  # noqa: BLE001 -- without a window the queue would serve nothing of this partition
            self.begin_anew(queue, partition, error)

    # ---------------------------------------------------------------- fetches

    async def fetch(self, name: str, request: FetchRequest, until: Until = wait_forever) -> FetchReply:
        """Process the acknowledgements, then answer with the next batch, waiting for one with `until`, for as long as
        the request asks.

        Raises UnknownQueue, OwnCluster, OwnedByOther, NotReady (metastore away, or stopping), Overloaded, and what
        `until` raises: no batch is leased then.
        """
        queue, came_ms = self.named(name), self.time.now_ms()
        session = request.session
        if session.cluster == self.cluster_uuid:
            raise OwnCluster(f"queue {name} is of the same cluster {self.cluster_name}: this sink peer points at home")
        if queue.settings.riak_fetch:
            raise OwnedByOther(f"queue {name} is for a Riak alone (riak_fetch): give this cluster a queue of its own")
        self._check_running()
        await self._require_owner(queue, request)
        now = self.time.now_ms()
        if request.max_count:  # a request that only acknowledges sends neither
            digests, scopes = self.cluster.property_digests(), self.cluster.scope_digests()
            queue.compare_properties(session.node, digests, scopes, request)
            queue.machine.consumers.fetched(session.node, now)
            queue.machine.report_types(session.node, request.types, now)
            queue.machine.report_share(session.node, request.share, request.wait_ms, now)
        for ack in request.acks:
            queue.machine.acknowledge(session, ack.batch, ack.owner_version, ack.failed, ack.outcomes, ack.given_up)
        if any(ack.given_up for ack in request.acks):
            log.warning("queue.refused_there", queue=name, sink=request.cluster_name, peer=session.node)
            self.bulk_marks.record_refused(queue)
        queue.machine.on_fetch(session, request.holding, now)
        queue.space_freed()
        if queue.machine.owner_pending():
            self._cursors.write_pending_cursors(queue)
        if not request.max_count:
            queue.wake()  # changes that were blocked behind an acknowledged one can be served now
            return self._reply(queue, None, came_ms)
        batch = await queue.next_batch(request, now + request.wait_ms, until)
        if self._traces is None or batch is None or batch.priority != REAL_TIME:
            return self._reply(queue, batch, came_ms)
        return self._reply(queue, batch, came_ms, self._traces.served(name, batch.items(), session.node))

    def is_for_riak(self, name: str) -> bool:
        """Whether a Riak may `pop` from the queue. Raises UnknownQueue."""
        return self.named(name).settings.riak_fetch

    async def pop(
        self, name: str, render: Callable[[Item], Awaitable[bytes]], until: Until = wait_forever
    ) -> bytes | None:
        """Take one change out of a queue with `riak_fetch`, rendered; None when nothing came for EMPTY_HOLD_MS.

        The change is acknowledged once it is rendered, before anybody has received it. If `render` raises, the change
        is requeued; after a CodecError it becomes a gap instead, since it would block the queue. Raises UnknownQueue,
        OwnedByOther, NotReady, Overloaded, and what `render` and `until` raise.
        """
        queue, came_ms = self.named(name), self.time.now_ms()
        self._check_running()
        session = Session(RIAK_CLUSTER, RIAK_NAME, self._batch_prefix, 0)
        request = FetchRequest(session, RIAK_NAME, (), None, 1, BYTES_MAX, 0)
        await self._require_owner(queue, request)
        now = self.time.now_ms()
        queue.machine.consumers.fetched(session.node, now)
        queue.machine.on_fetch(session, None, now)
        if queue.machine.owner_pending():
            self._cursors.write_pending_cursors(queue)
        for _ in range(POP_ATTEMPTS_MAX):
            batch = await self._batch_to_pop(queue, request, came_ms, until)
            if batch is None:
                now = self.time.now_ms()
                if queue.machine.due_in_ms(now, session) != 0 or queue.throttle.wait_ms(now):
                    return None
                continue
            (item,) = batch.items()
            given_up: tuple[int, ...] = ()
            try:
                rendered = await render(item)
            except CodecError as error:
                log.error("queue.object_unreadable", queue=name, partition=item[1], offset=item[2], error=str(error))
                given_up = (0,)
            except BaseException:
                queue.machine.release(batch)
                queue.wake()
                raise
            queue.machine.acknowledge(session, batch.id, batch.owner_version, (), None, given_up)
            queue.space_freed()
            if not given_up:
                return rendered
            self.bulk_marks.record_refused(queue)
        return None

    async def _batch_to_pop(
        self, queue: QueueServer, request: FetchRequest, came_ms: int, until: Until
    ) -> LeasedBatch | None:
        """A change for a fetch that arrived at `came_ms`: at once, or when one comes while it is held."""
        batch = await queue.next_batch(request, self.time.now_ms(), until)
        hold_ms = came_ms + EMPTY_HOLD_MS
        while batch is None:
            now = self.time.now_ms()
            if now >= hold_ms:
                if queue.closed or not queue.machine.may_have_more or now >= came_ms + STARTING_WAIT_MS:
                    return None
                hold_ms = now + EMPTY_HOLD_MS
            batch = await queue.next_batch(request, hold_ms, until)
            if batch is None and self.time.now_ms() < hold_ms:  # nothing is left of what there was
                return None
        return batch

    def _check_running(self) -> None:
        if not self._running or self.queue_store.unread:
            raise NotReady(self.queue_store.unread or "the source queues are not running")

    def _reply(
        self, queue: QueueServer, batch: LeasedBatch | None, came_ms: int, traces: Mapping[int, str] | None = None
    ) -> FetchReply:
        digests, scopes = self.cluster.property_digests(), self.cluster.scope_digests()
        return queue.reply(batch, came_ms, self.cluster_uuid, self.cluster_name, digests, scopes, traces)

    async def _require_owner(self, queue: QueueServer, request: FetchRequest) -> None:
        """Check that the fetching cluster owns the queue; it becomes the owner if there is none. An owner of an older
        version than partitions have executed, after a restore of the metastore, gets a newer one. Raises
        OwnedByOther."""
        cluster, owner = request.session.cluster, queue.stored.owner
        newest = queue.machine.newest_owner_version()
        if owner is None or not owner.cluster or (owner.cluster == cluster and owner.version < newest):
            candidate = QueueOwner(cluster, request.cluster_name, newest, self.time.wall_ms(), request.session.node)
            # In a task of its own: a fetch may run in none, and the metastore's client needs one.
            now = self.time.now_ms()
            work = self.queue_store.take_ownership(
                queue.settings.name, candidate, lambda present: queue.release.may_own(candidate, present, now)
            )
            owner = await asyncio.get_running_loop().create_task(work)
            queue.apply_state(queue.stored._replace(owner=owner), self.node)
        if owner.cluster != cluster:
            whose = f"belongs to cluster {owner.name} ({owner.cluster.hex()})"
            if not owner.cluster:
                whose = f"was released from this cluster by {owner.by}, which may have it again after a minute"
            raise OwnedByOther(f"queue {queue.settings.name} {whose}")

    # ---------------------------------------------------------------- metastore documents

    def _on_hint(self, path: str) -> None:
        """A watch of the metastore reported a change at `path`."""
        if path == DEFINITIONS_PATH:
            self._tasks.start(self._retry_until_read(self.follow_definitions))
            return
        parts = path.split("/")
        if len(parts) == len(("", "queues", "NAME", "what")) and parts[1] == "queues" and parts[2] in self._queues:
            self._tasks.start(self._retry_until_read(partial(self.refresh, parts[2])))

    async def _retry_until_read(self, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Watch events are not repeated: what one announced must be read, however long the metastore is away."""
        while True:
            try:
                return await read()
            except NotReady:
                await asyncio.sleep(RETRY_MS / 1000)
            except Exception as error:
                unforeseen.exception("queue.documents_failed", error)
                await asyncio.sleep(ANEW_MS / 1000)

    async def refresh(self, name: str) -> None:
        """Read all documents of a queue, if it is here, and apply them. Raises NotReady."""
        queue = self._queues.get(name)
        if queue is not None:
            before = queue.stored.command
            queue.apply_state(await self._read_documents(queue), self.node)
            self._go_on(queue)
            await self.bulk_marks.apply_command(queue, before)

    async def reload(self, queue: QueueServer) -> None:
        """Read all documents of the queue, without going on with it yet. Raises NotReady."""
        queue.apply_state(await self._read_documents(queue), self.node)

    async def _read_documents(self, queue: QueueServer) -> QueueState:
        """The queue's documents. They are read again if a fetch took the queue meanwhile: the owner before it may have
        been read, and going back to that one would release what was just leased."""
        for _ in range(READS_MAX):
            before = queue.stored.owner
            state = await queue.documents.refresh()
            if queue.stored.owner == before:
                return state
        raise NotReady(f"queue {queue.settings.name} was taken over during each of {READS_MAX} reads of its documents")

    async def follow_definitions(self) -> None:
        """Add and remove queues so that they are those of the definitions. Raises NotReady."""
        async with self._following:
            wanted = await self.queue_store.queues()
            if wanted is None:
                return
            for name in [n for n, queue in self._queues.items() if wanted.get(n) != queue.defined]:
                gone = self._queues.pop(name)
                gone.close()
                for partition in list(gone.machine.windows):
                    gone.machine.unlead(partition)
                log.info("queue.gone", queue=name)
                await self.bulk_marks.end(gone)
            for name in [n for n in wanted if n not in self._queues]:
                queue = self._build(wanted[name])
                await self.reload(queue)
                await self.bulk_marks.begin(queue)
                self._queues[name] = queue
                log.info("queue.made", queue=name, filter=queue.settings.filter)
                # Watch events that came meanwhile were ignored: the queue was not here.
                self._tasks.start(self._retry_until_read(partial(self.refresh, name)))
                for partition in list(self._led):
                    self._tasks.start(self._load_position(queue, partition))

    async def close_gaps(self, queue: QueueServer, proven: Mapping[int, Collection[QueueGap]]) -> int:
        """See `queues.cursor_keeper.CursorKeeper.close_gaps`."""
        return await self._cursors.close_gaps(queue, proven)

    # ---------------------------------------------------------------- status

    def servers(self) -> list[QueueServer]:
        """Every queue, in the order in which they were defined."""
        return list(self._queues.values())

    async def backlog(self, queue: QueueServer) -> Backlog:
        """How many changes wait in real time in the partitions led here."""
        return await queue.backlog_counter.count(len(self._led))

    def metrics(self) -> list[Sample]:
        """Samples of every queue; their help lines are `queues.status.HELP`."""
        return [sample for samples in self.metrics_by_queue() for sample in samples]

    def metrics_by_queue(self) -> Iterator[list[Sample]]:
        """As `metrics`, queue by queue, for a caller that lets the event loop run between them."""
        for queue in self.servers():
            yield samples_of(queue, self.node, self.time, self.cluster.live_nodes())

    def status(self) -> dict[str, str]:
        """State of this component: {"actor", "state", "reason"}."""
        if not self._queues and not (self._running and self.queue_store.unread):
            return {"actor": "source", "state": "idle", "reason": "not configured"}
        if not self.enabled:
            return {"actor": "source", "state": "off", "reason": "source.enabled is false on this node"}
        if not self._running or (unread := self.queue_store.unread):
            return {"actor": "source", "state": "idle", "reason": "not started" if not self._running else unread}
        off = [name for name, queue in self._queues.items() if queue.ledger_off]
        if off:
            return {"actor": "source", "state": "alarm", "reason": f"the ledger does not close: {', '.join(off)}"}
        both = {n: (q.serving_suspension, q.publishing_suspension) for n, q in self._queues.items()}
        suspended = [name for name, found in both.items() if found != (None, None)]
        reason = f"suspended: {', '.join(suspended)}" if suspended else ""
        return {"actor": "source", "state": "running", "reason": reason}

    def named(self, name: str) -> QueueServer:
        """The queue of that name. Raises UnknownQueue."""
        queue = self._queues.get(name)
        if queue is None:
            raise UnknownQueue(unknown_queue(name, self._queues))
        return queue

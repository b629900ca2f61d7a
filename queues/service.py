"""All source queues of a node: fed by apply, asked by sinks, steered by operators.

This room holds what concerns all of a node's queues: which there are, which partitions are led, who may fetch, what
the metastore says. `applied` runs on the write path and never waits. How one queue serves stands in
`queues.queue_server`, what it decides in `queues.source_queue`, where it stands in `queues.cursor_keeper`, what
operators may do in `queues.admin`, how it is shown in `queues.status`; the other end of a fetch is `sink`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import structlog

from isthmus.config.settings import QueueSettings
from isthmus.queues.backlog_count import Backlog
from isthmus.queues.bulk_marks import BulkMarks
from isthmus.queues.cursor_keeper import RETRY_MS, CursorKeeper, unreadable
from isthmus.queues.cursors import decode_state
from isthmus.queues.gaps import QueueGap
from isthmus.queues.leases import LeasedBatch, Session
from isthmus.queues.long_poll import Until, wait_forever
from isthmus.queues.origin_check import owed
from isthmus.queues.queue_documents import DEFINITIONS_PATH, QUEUES_PATH, QueueOwner, QueueStore, take
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.status import listed, none_such, samples_of
from isthmus.queues.window_rules import Item
from isthmus.queues.wire import BYTES_MAX, FetchReply, FetchRequest, OwnCluster, OwnedByOther, UnknownQueue
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import CursorWriter, KeyValue, TimeSource
from isthmus.repl.property_digests import PlaceDigests
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

TICK_MS: Final = 1_000
"""How often leases are looked at and moved cursors let go: what a crash redelivers beyond what is in flight."""

STOP_NOTE_S: Final = 2.0
"""How long a stop waits for the metastore to note what is lost with this process."""

RIAK_NAME: Final = "riak"
"""Name of the owner of queues with `riak_fetch`. A Riak says neither its name nor an id, so there is one for all."""

RIAK_CLUSTER: Final = RIAK_NAME.encode().ljust(16, b"\0")
"""Stands for its uuid; no uuid that Isthmus draws has this form."""

POP_ATTEMPTS_MAX: Final = 64
"""How many references to objects that are gone one pop passes over; then it answers that there is nothing. A guess:
64 reads take less than the next request."""

_CURSOR: Final = int(EntryKind.CURSOR)


class QueueService:
    """The actor of the source side; an ApplyListener hook. All methods belong to the event loop's thread.

    `partitions()` maps the id of a partition to its bucket type. Raises BadConfig when a filter is not known.
    """

    def __init__(
        self,
        settings: Sequence[QueueSettings],
        *,
        node: str,
        enabled: bool,
        store: Store,
        cursors: CursorWriter,
        kv: KeyValue,
        metastore: Metastore,
        cluster_uuid: bytes,
        cluster_name: str,
        partitions: Callable[[], Mapping[int, bytes]],
        time: TimeSource,
        read_pool: Executor,
    ) -> None:
        """`enabled` False: no reference is made on this node, and none given out."""
        self.node = node
        self.enabled = enabled
        self.steering = QueueStore(metastore, {one.name: one for one in settings})
        self.time = time
        self.digests: Callable[[], dict[bytes, bytes]] = dict
        """Of this cluster's properties by bucket type; see `queues.wire`. Set by who knows them."""
        self.places: Callable[[], PlaceDigests | None] = lambda: None
        """Digests of this cluster's properties by bucket and bucket type; None: not told."""
        self.bucket_types: Callable[[], Collection[bytes]] = lambda: set(partitions().values())
        """Those of the cluster. Set by who knows them; else those of which this node has a partition."""
        self.on_damaged: Callable[[int, int | None], None] = lambda _partition, _segment: None
        """Called with the partition and segment of a key row that is damaged. Set by whoever mends rows."""
        self.cluster = (cluster_uuid, cluster_name)
        self._store = store
        self._kv = kv
        self._metastore = metastore
        self._uuid = cluster_uuid
        self._cluster_name = cluster_name
        self._partitions = partitions
        self._pool = read_pool
        self._prefix = secrets.token_bytes(8)
        self._queues = {one.name: self._made(one) for one in settings}
        self._led: dict[int, int] = {}
        """Led partition -> first offset that was not yet told to be applied."""
        self._keeper = CursorKeeper(
            store=store,
            cursors=cursors,
            led=self._led,
            types=partitions,
            time=time,
            pool=read_pool,
            spawn=self._spawn,
            reload=self.reload,
        )
        self.holding = BulkMarks(self.steering, node, time, self._spawn)
        self._tasks: set[asyncio.Task[None]] = set()
        self._following = asyncio.Lock()
        self._damaged_rows = LogLimit()
        self._running = False

    def _made(self, settings: QueueSettings) -> QueueServer:
        queue = QueueServer(
            settings,
            own=self._uuid,
            batch_prefix=self._prefix,
            store=self._store,
            kv=self._kv,
            pool=self._pool,
            time=self.time,
            spawn=self._spawn,
            cover=lambda queue, lower, count: self.holding.cover(queue, lower, count),
            enabled=self.enabled,
        )
        queue.machine.on_damaged = self._damaged
        return queue

    def _damaged(self, partition: int, segment: int | None) -> None:
        """From any thread."""
        with contextlib.suppress(RuntimeError):  # the node stops: its loop is closed
            self._loop.call_soon_threadsafe(self._report, partition, segment)

    def _report(self, partition: int, segment: int | None) -> None:
        if segment is not None and (left_out := self._damaged_rows.due()) is not None:
            log.error("queue.key_row_damaged", partition=partition, segment=segment, left_out=left_out)
        self.on_damaged(partition, segment)

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Read what operators have decided, then begin to tick. Raises NotReady when the metastore cannot be
        reached."""
        self._loop = asyncio.get_running_loop()
        self._metastore.watch(self._changed)
        await self.follow_definitions()
        for queue in self._queues.values():
            await self.reload(queue)
            await self.holding.begin(queue)
        self._running = True
        self._spawn(self._ticking())

    async def stop(self) -> None:
        """Note what is lost with this process, let the cursors go, answer the waiting fetches, end the tasks;
        idempotent."""
        queues = list(self._queues.values())
        for queue in queues:
            queue.close()
        if self._running:
            self._running = False
            for queue in queues:
                self._keeper.save(queue, None)
            with contextlib.suppress(IsthmusError, TimeoutError):
                async with asyncio.timeout(STOP_NOTE_S):
                    for queue in queues:
                        await self.holding.give_up(queue, "stopped", "")
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _ticking(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self.tick()

    def tick(self) -> None:
        """What is due once a second: cursors, leases, claims that failed, windows that nobody asks for."""
        now = self.time.now_ms()
        for queue in self._queues.values():
            self._keeper.save(queue, None)
            queue.watch_ledger()
            expired = queue.machine.expire(now)
            if expired:
                log.info("queue.lease_over", queue=queue.settings.name, batches=expired)
            if not queue.waiters:
                queue.machine.drop_idle_windows(now)
            self._follow_up(queue)
        self.holding.tick(list(self._queues.values()))

    def _follow_up(self, queue: QueueServer) -> None:
        self._keeper.write_pending_cursors(queue)
        queue.refill()
        queue.wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("queue.task_failed", exc_info=error)

    # ---------------------------------------------------------------- what apply tells

    def applied(self, partition: int, entries: Sequence[Entry], leader: bool) -> None:
        """See `repl.model.ports.ApplyListener`."""
        if not leader or not entries or partition not in self._led:
            return
        self._led[partition] = entries[-1].offset + 1
        now = self.time.now_ms()
        for entry in entries:
            if entry.kind == _CURSOR:
                self._applied_with_cursors(partition, entries, now)
                return
        for queue in self._queues.values():
            queue.machine.add(partition, entries, now)
            queue.waiters.soon()

    def _applied_with_cursors(self, partition: int, entries: Sequence[Entry], now_ms: int) -> None:
        for queue in self._queues.values():
            start = 0
            for at, entry in enumerate(entries):
                if entry.kind != _CURSOR or entry.key != queue.name:
                    continue
                queue.machine.add(partition, entries[start : at + 1], now_ms)
                start = at + 1
                try:
                    state = decode_state(entry.payload)
                except CodecError as error:
                    unreadable(queue, partition, error)
                    continue
                self._keeper.decided(queue, partition, entry.offset, state)
            if start < len(entries):
                queue.machine.add(partition, entries[start:], now_ms)
            self._follow_up(queue)

    def owed(self, partition: int, offset: int, pusher: bytes, key: Key) -> bool:
        """See `queues.origin_check`; asked on the write path."""
        return bool(self.steering.unread) or owed(
            (queue.machine for queue in self._queues.values()), partition, offset, pusher, key
        )

    def applied_upto(self) -> dict[int, int]:
        """Led partition -> first offset that was not yet told to be applied."""
        return dict(self._led)

    def machines(self) -> dict[str, SourceQueue]:
        """The queues' machines, by name."""
        return {name: queue.machine for name, queue in self._queues.items()}

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """See `repl.model.ports.ApplyListener`; all entries below `applied_offset` are applied."""
        if leading:
            self._led[partition] = applied_offset
            self._keeper.begin(partition)
            for queue in self._queues.values():
                self._spawn(self._stand(queue, partition))
            return
        self._keeper.end(self._queues.values(), partition)
        self._led.pop(partition, None)
        for queue in self._queues.values():
            queue.machine.unlead(partition)

    async def _stand(self, queue: QueueServer, partition: int) -> None:
        await self._keeper.load_position(queue, partition)
        self._follow_up(queue)

    # ---------------------------------------------------------------- fetches

    async def fetch(self, name: str, request: FetchRequest, until: Until = wait_forever) -> FetchReply:
        """Take the acknowledgements in, then answer with the next batch, waiting for one as long as asked, by `until`.

        Raises UnknownQueue, OwnCluster, OwnedByOther, NotReady (metastore away, or stopping), Overloaded, and what
        `until` raises: nothing is given out then.
        """
        queue, came_ms = self.named(name), self.time.now_ms()
        session = request.session
        if session.cluster == self._uuid:
            raise OwnCluster(f"queue {name} is of the same cluster {self._cluster_name}: this sink peer points at home")
        if queue.settings.riak_fetch:
            raise OwnedByOther(f"queue {name} is for a Riak alone (riak_fetch): give this cluster a queue of its own")
        self._check_running()
        await self._require_owner(queue, request)
        now = self.time.now_ms()
        if request.max_count:  # an acknowledgement by itself tells none
            queue.compare_properties(session.node, self.digests(), self.places(), request)
            queue.machine.report_types(session.node, request.types, now)
        for ack in request.acks:
            queue.machine.acknowledge(session, ack.batch, ack.owner_version, ack.failed, ack.outcomes, ack.given_up)
        if any(ack.given_up for ack in request.acks):
            log.warning("queue.refused_there", queue=name, sink=request.cluster_name, peer=session.node)
            self.holding.missing(queue)
        queue.machine.on_fetch(session, request.holding, now)
        queue.room_made()
        if queue.machine.owner_pending():
            self._keeper.write_pending_cursors(queue)
        if not request.max_count:
            queue.wake()  # what was held back behind it may go now
            return self._reply(queue, None, came_ms)
        return self._reply(queue, await queue.next_batch(request, now + request.wait_ms, until), came_ms)

    def is_for_riak(self, name: str) -> bool:
        """Whether a Riak may `pop` from the queue. Raises UnknownQueue."""
        return self.named(name).settings.riak_fetch

    async def pop(self, name: str, render: Callable[[Item], Awaitable[bytes]]) -> bytes | None:
        """Take one change out of a queue with `riak_fetch`, rendered; None when there is nothing to give now.

        The change is acknowledged once it is rendered, before anybody has received it. What `render` raises puts it
        back; a CodecError makes it a gap instead, since it would block the queue. Raises UnknownQueue, OwnedByOther,
        NotReady, Overloaded, and what `render` raises.
        """
        queue = self.named(name)
        self._check_running()
        session = Session(RIAK_CLUSTER, RIAK_NAME, self._prefix, 0)
        request = FetchRequest(session, RIAK_NAME, (), None, 1, BYTES_MAX, 0)
        await self._require_owner(queue, request)
        queue.machine.on_fetch(session, None, self.time.now_ms())
        if queue.machine.owner_pending():
            self._keeper.write_pending_cursors(queue)
        for _ in range(POP_ATTEMPTS_MAX):
            now = self.time.now_ms()
            batch = await queue.next_batch(request, now, wait_forever)
            if batch is None:
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
            queue.room_made()
            if not given_up:
                return rendered
            self.holding.missing(queue)
        return None

    def _check_running(self) -> None:
        if not self._running or self.steering.unread:
            raise NotReady(self.steering.unread or "the source queues are not running")

    def _reply(self, queue: QueueServer, batch: LeasedBatch | None, came_ms: int) -> FetchReply:
        return queue.reply(batch, came_ms, self._uuid, self._cluster_name, self.digests(), self.places())

    # ---------------------------------------------------------------- owners

    async def _require_owner(self, queue: QueueServer, request: FetchRequest) -> None:
        """The fetching cluster owns the queue, or takes it if nobody does; another is refused by name. An owner of an
        older version than partitions stand under, as a restored metastore has it, gets a newer one."""
        cluster, owner = request.session.cluster, queue.word.owner
        stands = queue.machine.newest_owner_version()
        if owner is None or not owner.cluster or (owner.cluster == cluster and owner.version < stands):
            mine = QueueOwner(cluster, request.cluster_name, stands, self.time.wall_ms(), request.session.node)
            # In a task of its own: a fetch may run in none, which the metastore's client does not know.
            now = self.time.now_ms()
            work = take(self._metastore, queue.settings.name, mine, lambda had: queue.release.lets(mine, had, now))
            owner = await asyncio.get_running_loop().create_task(work)
            queue.apply_state(queue.word._replace(owner=owner), self.node)
        if owner.cluster != cluster:
            whose = f"belongs to cluster {owner.name} ({owner.cluster.hex()})"
            if not owner.cluster:
                whose = f"was released from this cluster by {owner.by}, which may have it again after a minute"
            raise OwnedByOther(f"queue {queue.settings.name} {whose}")

    # ---------------------------------------------------------------- the metastore's word

    def _changed(self, path: str) -> None:
        if path == DEFINITIONS_PATH:
            self._spawn(self._when_possible(self.follow_definitions))
            return
        parts = path.split("/")
        if len(parts) == len(("", "queues", "NAME", "what")) and parts[1] == "queues" and parts[2] in self._queues:
            self._spawn(self._when_possible(lambda: self.refresh(parts[2])))

    async def _when_possible(self, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Hints are not repeated: what one told of must be read, however long the metastore stays away."""
        while True:
            try:
                return await read()
            except NotReady:
                await asyncio.sleep(RETRY_MS / 1000)

    async def refresh(self, name: str) -> None:
        """Take in what the metastore says of a queue now, if it is here. Raises NotReady."""
        queue = self._queues.get(name)
        if queue is not None:
            before = queue.word.decree
            await self.reload(queue)
            self._follow_up(queue)
            await self.holding.apply_state(queue, before)

    async def reload(self, queue: QueueServer) -> None:
        """The same, without acting on it yet."""
        queue.apply_state(await self.steering.word(queue.settings.name, queue.word), self.node)

    async def follow_definitions(self) -> None:
        """Have the queues that there are now, by one look after the other. Raises NotReady."""
        async with self._following:
            try:
                wanted = await self.steering.queues()
            except CodecError as error:
                log.error("queue.metastore_value_unreadable", path=DEFINITIONS_PATH, error=str(error))
                return
            for name in [n for n, queue in self._queues.items() if wanted.get(n) != queue.defined]:
                gone = self._queues.pop(name)
                gone.close()
                for partition in list(gone.machine.windows):
                    gone.machine.unlead(partition)
                log.info("queue.gone", queue=name)
                await self.holding.end(gone)
            for name in [n for n in wanted if n not in self._queues]:
                queue = self._made(wanted[name])
                await self.reload(queue)
                await self.holding.begin(queue)
                self._queues[name] = queue
                log.info("queue.made", queue=name, filter=queue.settings.filter)
                self._changed(f"{QUEUES_PATH}/{name}/word")  # hints of meanwhile were of no queue
                for partition in list(self._led):
                    self._spawn(self._stand(queue, partition))

    async def close_gaps(self, queue: QueueServer, proven: Mapping[int, Collection[QueueGap]]) -> int:
        """See `queues.cursor_keeper.CursorKeeper.close_gaps`."""
        return await self._keeper.close_gaps(queue, proven)

    # ---------------------------------------------------------------- what is shown

    async def listing(self) -> list[dict[str, Any]]:
        """One dict a queue, ready for JSON; see `queues.status`."""
        unread = self.steering.unread
        return [listed(q, self.node, await self.waiting(q), self.time, unread) for q in list(self._queues.values())]

    async def waiting(self, queue: QueueServer) -> Backlog:
        """How many changes wait in real time in the partitions led here."""
        return await queue.counting.waiting(len(self._led))

    def metrics(self) -> list[Sample]:
        """Samples of every queue; their help lines are `queues.status.HELP`."""
        return [sample for queue in self._queues.values() for sample in samples_of(queue, self.time.wall_ms())]

    def status(self) -> dict[str, str]:
        """What this actor does: {"actor", "state", "reason"}."""
        if not self._queues and not (self._running and self.steering.unread):
            return {"actor": "source", "state": "idle", "reason": "not configured"}
        if not self.enabled:
            return {"actor": "source", "state": "off", "reason": "source.enabled is false on this node"}
        if not self._running or (unread := self.steering.unread):
            return {"actor": "source", "state": "idle", "reason": "not started" if not self._running else unread}
        off = [name for name, queue in self._queues.items() if queue.ledger_off]
        if off:
            return {"actor": "source", "state": "alarm", "reason": f"the ledger does not close: {', '.join(off)}"}
        held = {n: (q.suspension, q.publishing_suspension) for n, q in self._queues.items()}
        suspended = [name for name, both in held.items() if both != (None, None)]
        reason = f"suspended: {', '.join(suspended)}" if suspended else ""
        return {"actor": "source", "state": "running", "reason": reason}

    def named(self, name: str) -> QueueServer:
        """The queue of that name. Raises UnknownQueue."""
        queue = self._queues.get(name)
        if queue is None:
            raise UnknownQueue(none_such(name, self._queues))
        return queue

"""All source queues of a node: fed by apply, asked by sinks, steered by operators.

This room holds what concerns all of a node's queues: which partitions are led, who owns a queue and what is
suspended (by the metastore), cursors (by CURSOR entries and soft states). `applied` runs on the write path and
never waits. How one queue serves stands in `queues.serving`, what it decides in `queues.source_queue`, how it is
shown in `queues.listing`; the other end of a fetch is `sink`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import structlog

from config.settings import QueueSettings
from queues.batches import Batch
from queues.cursors import CursorState, decode_state, encode_soft, encode_state, position_of
from queues.listing import listed, samples_of
from queues.owing import owed
from queues.ownership import (
    SERVING_SUSPENDED,
    Owner,
    Suspension,
    change_value,
    decode_owner,
    decode_suspension,
    encode_owner,
    encode_suspension,
    owner_path,
    read_value,
    suspension_path,
)  # fmt: skip
from queues.serving import ServedQueue
from queues.wire import FetchReply, FetchRequest, OwnCluster, OwnedByOther, UnknownQueue
from repl.metastore.port import Metastore
from repl.model.entry import Entry, EntryKind
from repl.model.errors import BadInput, CodecError, IsthmusError, NotReady, OutcomeUnknown, Retryable
from repl.model.ports import CursorWriter, TimeSource
from repl.store.port import Store
from repl.telemetry import Sample

log = structlog.get_logger(__name__)

TICK_MS: Final = 1_000
"""How often leases are looked at and moved cursors let go: what a crash redelivers beyond what is in flight."""

RETRY_MS: Final = 250
"""Pause before a CURSOR entry that was refused is tried again."""

_CURSOR: Final = int(EntryKind.CURSOR)


class SourceQueues:
    """The actor of the source side; an AfterApply hook. All methods belong to the event loop's thread.

    `partitions()` maps the id of a partition to its bucket type. Raises BadConfig when a filter is not known.
    """

    def __init__(
        self,
        settings: Sequence[QueueSettings],
        *,
        store: Store,
        cursors: CursorWriter,
        metastore: Metastore,
        cluster_uuid: bytes,
        cluster_name: str,
        partitions: Callable[[], Mapping[int, bytes]],
        time: TimeSource,
        read_pool: Executor,
    ) -> None:
        self._store = store
        self._cursors = cursors
        self._metastore = metastore
        self._uuid = cluster_uuid
        self._cluster_name = cluster_name
        self._partitions = partitions
        self._time = time
        self._pool = read_pool
        prefix = secrets.token_bytes(8)
        self._queues = {
            one.name: ServedQueue(
                one, own=cluster_uuid, batch_prefix=prefix, store=store, pool=read_pool, time=time, spawn=self._spawn
            )
            for one in settings
        }
        self._led: dict[int, int] = {}
        """Led partition -> first offset that was not yet told to be applied."""
        self._leading: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = False

    # ---------------------------------------------------------------- life

    async def start(self) -> None:
        """Read owners and suspensions, then begin to tick. Raises NotReady when the metastore cannot be reached."""
        if not self._queues:
            return
        self._metastore.watch(self._changed)
        for queue in self._queues.values():
            await self._reload(queue)
        self._running = True
        self._spawn(self._ticking())

    async def stop(self) -> None:
        """Let the cursors go, answer the waiting fetches, end the tasks; idempotent."""
        if self._running:
            self._running = False
            self._save_cursors(None)
        for queue in self._queues.values():
            queue.close()
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
        now = self._time.now_ms()
        self._save_cursors(None)
        for queue in self._queues.values():
            expired = queue.machine.expire(now)
            if expired:
                log.info("queue.lease_over", queue=queue.settings.name, batches=expired)
            if not queue.waiters:
                queue.machine.quieten(now)
            self._follow_up(queue)

    def _follow_up(self, queue: ServedQueue) -> None:
        self._claim_all(queue)
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
        """See `repl.model.ports.AfterApply`."""
        if not leader or not entries or partition not in self._led:
            return
        self._led[partition] = entries[-1].offset + 1
        now = self._time.now_ms()
        for entry in entries:
            if entry.kind == _CURSOR:
                self._applied_with_cursors(partition, entries, now)
                return
        for queue in self._queues.values():
            queue.machine.add(partition, entries, now)
            if queue.waiters:
                queue.wake()

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
                    _unreadable(queue, partition, error)
                    continue
                queue.machine.decided(partition, self._partitions()[partition], entry.offset, state)
            if start < len(entries):
                queue.machine.add(partition, entries[start:], now_ms)
            self._follow_up(queue)

    def owed(self, partition: int, offset: int, pusher: bytes) -> bool:
        """See `queues.owing`; asked on the write path."""
        return owed((queue.machine for queue in self._queues.values()), partition, offset, pusher)

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """See `repl.model.ports.AfterApply`; all entries below `applied_offset` are applied."""
        task = self._leading.pop(partition, None)
        if task is not None:
            task.cancel()
        if leading:
            self._led[partition] = applied_offset
            if self._queues:
                self._leading[partition] = self._spawn(self._lead(partition))
            return
        self._save_cursors(partition)
        self._led.pop(partition, None)
        for queue in self._queues.values():
            queue.machine.unlead(partition)

    async def _lead(self, partition: int) -> None:
        """Find where each queue stands in a partition that is led here now; one that never stood anywhere begins at
        0."""
        loop = asyncio.get_running_loop()
        for queue in self._queues.values():
            while partition not in queue.machine.windows:
                try:
                    rows = await loop.run_in_executor(self._pool, self._store.cursor, partition, queue.name)
                    position = position_of(rows)
                    if partition in queue.machine.windows:
                        break
                    if position is not None:
                        bucket_type = self._partitions()[partition]
                        queue.machine.lead(partition, bucket_type, position, self._led[partition])
                    else:
                        await self._cursors.write_cursor(partition, queue.name, encode_state(CursorState()))
                except (Retryable, OutcomeUnknown):
                    await asyncio.sleep(RETRY_MS / 1000)
                except IsthmusError as error:
                    _unreadable(queue, partition, error)
                    break
            self._follow_up(queue)

    def _save_cursors(self, partition: int | None) -> None:
        """Let moved cursors travel, of one partition or of all."""
        for queue in self._queues.values():
            for moved, base, cursor in queue.machine.soft_positions(partition):
                self._cursors.soft_cursor(moved, queue.name, encode_soft(base, cursor))

    # ---------------------------------------------------------------- fetches

    async def fetch(self, name: str, request: FetchRequest) -> FetchReply:
        """Take the acknowledgements in, then answer with the next batch, waiting for one as long as asked.

        Raises UnknownQueue, OwnCluster, OwnedByOther, NotReady (metastore away, or stopping), Overloaded.
        """
        queue = self._named(name)
        session = request.session
        if session.cluster == self._uuid:
            raise OwnCluster(f"queue {name} is of the same cluster {self._cluster_name}: this sink peer points at home")
        if not self._running:
            raise NotReady("the source queues are not running")
        await self._require_owner(queue, request)
        now = self._time.now_ms()
        for ack in request.acks:
            queue.machine.acknowledge(session, ack.batch, ack.owner_version, ack.failed)
        queue.machine.heard(session, request.holding, now)
        self._claim_all(queue)
        if not request.max_count:
            return self._reply(queue, None)
        return self._reply(queue, await queue.next_batch(request, now + request.wait_ms))

    def _reply(self, queue: ServedQueue, batch: Batch | None) -> FetchReply:
        machine = queue.machine
        return FetchReply(
            self._uuid,
            self._cluster_name,
            machine.owner_version if batch is None else batch.owner_version,
            b"" if batch is None else batch.id,
            machine.leases.lease_ms,
            self._time.wall_ms(),
            queue.state,
            [] if batch is None else batch.items(),
        )

    # ---------------------------------------------------------------- owners

    async def _require_owner(self, queue: ServedQueue, request: FetchRequest) -> None:
        """The fetching cluster owns the queue, or takes it if nobody does; another is refused by name."""
        cluster = request.session.cluster
        if queue.owner is None:
            version = 1 + max((w.owner_version for w in queue.machine.windows.values()), default=0)
            mine = Owner(cluster, request.cluster_name, version, self._time.wall_ms(), request.session.node)
            value = await change_value(
                self._metastore,
                owner_path(queue.settings.name),
                lambda now: encode_owner(mine) if now is None else None,
            )
            assert value is not None
            owner = decode_owner(value)
            if owner == mine:
                log.info("queue.owned", queue=queue.settings.name, cluster=owner.name, version=owner.version)
            self._owned(queue, owner)
        if queue.owner is not None and queue.owner.cluster != cluster:
            raise OwnedByOther(
                f"queue {queue.settings.name} belongs to cluster {queue.owner.name} ({queue.owner.cluster.hex()})"
            )

    def _owned(self, queue: ServedQueue, owner: Owner | None) -> None:
        queue.owner = owner
        if owner is not None:
            queue.machine.set_owner(owner.cluster, owner.version)

    def _claim_all(self, queue: ServedQueue) -> None:
        """See that every led partition gets the CURSOR entry of the current owner version."""
        for partition, state in queue.machine.unclaimed(self._time.wall_ms()):
            if partition not in queue.claiming:
                queue.claiming.add(partition)
                self._spawn(self._claim(queue, partition, state))

    async def _claim(self, queue: ServedQueue, partition: int, state: CursorState) -> None:
        try:
            await self._cursors.write_cursor(partition, queue.name, encode_state(state))
        except (Retryable, OutcomeUnknown) as error:
            log.info("queue.claim_put_off", queue=queue.settings.name, partition=partition, reason=error.reason)
            await asyncio.sleep(RETRY_MS / 1000)
        finally:
            queue.claiming.discard(partition)

    # ---------------------------------------------------------------- the metastore's word

    def _changed(self, path: str) -> None:
        for queue in self._queues.values():
            if path in (owner_path(queue.settings.name), suspension_path(queue.settings.name)):
                self._spawn(self._reload_when_possible(queue))

    async def _reload_when_possible(self, queue: ServedQueue) -> None:
        """Hints are not repeated: what one told of must be read, however long the metastore stays away."""
        while True:
            try:
                return await self._reload(queue)
            except NotReady:
                await asyncio.sleep(RETRY_MS / 1000)

    async def _reload(self, queue: ServedQueue) -> None:
        name = queue.settings.name
        owner = await read_value(self._metastore, owner_path(name))
        suspension = await read_value(self._metastore, suspension_path(name))
        try:
            self._owned(queue, None if owner is None else decode_owner(owner.value))
            self._suspended(queue, None if suspension is None else decode_suspension(suspension.value))
        except CodecError as error:
            log.error("queue.metastore_value_unreadable", queue=name, error=str(error))

    def _suspended(self, queue: ServedQueue, suspension: Suspension | None) -> None:
        changed = (queue.suspension is None) != (suspension is None)
        queue.suspension = suspension
        queue.machine.suspended = suspension is not None
        if changed:
            queue.wake_all()

    # ---------------------------------------------------------------- operators

    async def suspend(self, name: str, what: str, by: str, reason: str) -> None:
        """Give nothing out from now on, on all nodes and over restarts; what is under lease may still be
        acknowledged. Raises UnknownQueue, BadInput, NotReady."""
        await self._set_suspension(name, what, Suspension(by, self._time.wall_ms(), reason))
        log.info("queue.suspended", queue=name, what=what, by=by, reason=reason)

    async def resume(self, name: str, what: str, by: str, reason: str) -> None:
        """Give out again; `by` and `reason` go to the log. Raises UnknownQueue, BadInput, NotReady."""
        await self._set_suspension(name, what, None)
        log.info("queue.resumed", queue=name, what=what, by=by, reason=reason)

    async def _set_suspension(self, name: str, what: str, suspension: Suspension | None) -> None:
        queue = self._named(name)
        if what != SERVING_SUSPENDED:
            raise BadInput(f"{what!r} of a queue cannot be suspended in this version; {SERVING_SUSPENDED!r} can")
        value = encode_suspension(what, suspension)
        await change_value(self._metastore, suspension_path(name), lambda _: value)
        self._suspended(queue, suspension)

    async def listing(self) -> list[dict[str, Any]]:
        """One dict a queue, ready for JSON; see `queues.listing`."""
        return [await listed(queue, len(self._led), self._time.wall_ms()) for queue in self._queues.values()]

    def metrics(self) -> list[Sample]:
        """Samples of every queue; their help lines are `queues.listing.HELP`."""
        return [sample for queue in self._queues.values() for sample in samples_of(queue, self._time.wall_ms())]

    def status(self) -> dict[str, str]:
        """What this actor does: {"actor", "state", "reason"}."""
        if not self._queues:
            return {"actor": "source", "state": "idle", "reason": "not configured"}
        if not self._running:
            return {"actor": "source", "state": "idle", "reason": "not started"}
        suspended = [name for name, queue in self._queues.items() if queue.suspension is not None]
        reason = f"suspended: {', '.join(suspended)}" if suspended else ""
        return {"actor": "source", "state": "running", "reason": reason}

    def _named(self, name: str) -> ServedQueue:
        queue = self._queues.get(name)
        if queue is None:
            raise UnknownQueue(f"no queue named {name!r} is configured on this node")
        return queue


def _unreadable(queue: ServedQueue, partition: int, error: IsthmusError) -> None:
    log.error("queue.cursor_unreadable", queue=queue.settings.name, partition=partition, error=str(error))

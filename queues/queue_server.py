"""One queue as it runs on the event loop: waiting fetches, wake-ups, reads from the store.

What to give, when and to whom is decided by the queue's machine (`queues.source_queue`); objects and rows are read
in the read pool. Who may fetch at all is asked before, in `queues.service`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, Final

import structlog

from isthmus.config.settings import QueueSettings
from isthmus.queues.backlog_count import BacklogCounter
from isthmus.queues.bulk_queue import BulkQueue
from isthmus.queues.cursor_decisions import PublishingSuspended, PublishingUnknown
from isthmus.queues.filters import parse_filter
from isthmus.queues.leases import LeasedBatch
from isthmus.queues.long_poll import LongPollWaiters, Until, wake
from isthmus.queues.object_reader import read_batch, read_changes
from isthmus.queues.queue_documents import (
    NO_WORD,
    NOT_READ,
    PUBLISHING,
    QueueState,
    QueueSuspension,
    Release,
    UnreadSuspension,
    in_force_now,
    suspension_of,
    unread,
    unread_rates,
)
from isthmus.queues.queue_documents import SERVING as SERVES
from isthmus.queues.rate_limit import Rates, Throttle
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.window import Window
from isthmus.queues.window_rules import LOWER, REAL_TIME, Budget, Item
from isthmus.queues.wire import OFF, SERVING, STARTING, SUSPENDED, THROTTLED, FetchReply, FetchRequest
from isthmus.repl.model.errors import BadInput, IsthmusError, NotReady, Overloaded
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import is_deleted_object
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.property_digests import PlaceDigests, PropertyDifference, differences, differences_shown, types_of
from isthmus.repl.store.port import Change, DamagedChange, Store

log = structlog.get_logger(__name__)

PUSHERS_MAX: Final = 64
"""Bulk producers that may wait for room at once; one more is answered with what there was room for."""

READ_HERE_COUNT: Final = 16
"""So many objects of a batch are read on the loop, 5 us each as a rule: handing them to a thread costs more than ten
reads. More of them would hold up others."""

TOLD_STEP_S: Final = 0.001
"""Pause of a batch whose objects were read before the loop heard that they are applied; it ends with its lease."""

UNREADABLE_REST_MS: Final = 1_000
"""Rest of the lower priorities once nothing of a batch could be read: elections take seconds, hand-overs less. A guess.
No fetch waits for either, since real time would wait with it."""

DAMAGED_REST_S: Final = 5.0
"""Rest before a change row that could not be decoded is read again: to mend it, all rows of its partition are read."""

DIFFERING_MAX: Final = 64
"""Sink nodes whose differing properties are remembered, the newest."""


def lacking(bucket_types: Iterable[bytes], word: QueueState) -> str:
    """What is said of bucket types that the cluster lacks that owns the queue, and what to do."""
    names = ", ".join(name.decode(errors="backslashreplace") for name in bucket_types)
    there = "the other cluster" if word.owner is None else word.owner.name
    return (
        f"{there} has no bucket type {names}: its changes wait here until it is made there (isthmus bucket-type create)"
    )


DISCARD: Final = "discard"
"""`overflow` of a queue that gives up what is too much."""

_OBJECT: Final = int(ReferenceKind.OBJECT)
_TOMBSTONE: Final = int(ReferenceKind.TOMBSTONE)

Cover = Callable[["QueueServer", BulkQueue, int], Awaitable[None]]
"""Returns once it is on record that so many references more may be held at a lower priority (`queues.bulk_marks`)."""

Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Starts a task that is awaited or cancelled at stop."""


class QueueServer:
    """See the module's text. Raises BadConfig when the filter is not known."""

    def __init__(
        self,
        settings: QueueSettings,
        *,
        own: bytes,
        batch_prefix: bytes,
        store: Store,
        kv: KeyValue,
        pool: Executor,
        time: TimeSource,
        spawn: Spawn,
        cover: Cover,
        enabled: bool,
    ) -> None:
        """`enabled` False: the whole source is switched off on this node."""
        budget = Budget(
            settings.object_size_limit_bytes,
            settings.object_limit_count,
            settings.queue_limit_count,
            settings.overflow == DISCARD,
        )
        self.defined = settings
        """As the definition or the file has it."""
        self.settings = settings
        """With what operators have changed since."""
        self.name = settings.name.encode()
        self.filter = parse_filter(settings.filter)
        self.machine = SourceQueue(
            settings.name, own, settings.cascade, settings.lease_ms, budget, batch_prefix, self.filter
        )
        self.word: QueueState = NO_WORD._replace(suspensions=unread(settings.name, time.wall_ms()), rates=NOT_READ)
        """What the metastore says of it."""
        self.suspension: QueueSuspension | None = None
        """Of serving, on this node."""
        self.publishing_suspension: QueueSuspension | None = None
        """Of publishing, on this node."""
        self.configured = Rates(settings.rate_limit_bytes, settings.object_rate_limit_count)
        self.throttle = Throttle(self.configured, time.now_ms())
        self.claiming: set[int] = set()
        """Partitions whose CURSOR entry of the current owner version is under way."""
        self.waiters = LongPollWaiters(settings.name, self.wake)
        self._pushers: deque[asyncio.Future[None]] = deque()
        """Bulk producers that wait for room at a lower priority."""
        self.differing: dict[str, tuple[PropertyDifference, ...]] = {}
        """Sink node -> properties that are not the same there."""
        self.ledger_off = 0
        """Changes by which the ledger did not close when last looked at: a bug."""
        self._enabled = enabled
        self._store = store
        self._kv = kv
        self._pool = pool
        self._time = time
        self._spawn = spawn
        self._cover = cover
        self.closed = False
        self.release = Release()
        self.counting = BacklogCounter(self.machine, store, pool, time)

    @property
    def state(self) -> str:
        """What a fetch is told; starting: no partition stands under the owner's version yet."""
        machine = self.machine
        if not self._enabled:
            return OFF
        if self.suspension is not None:
            return SUSPENDED
        if self.throttle.wait_ms(self._time.now_ms()) and machine.due_in_ms(self._time.now_ms()) is not None:
            return THROTTLED
        ready = any(window.owner_version == machine.owner_version for window in machine.windows.values())
        return SERVING if ready else STARTING

    async def next_batch(self, request: FetchRequest, deadline_ms: int, until: Until) -> LeasedBatch | None:
        """The next batch for this request, at the latest at `deadline_ms`; None when there was nothing. Raises
        Overloaded, and what `until` does."""
        try:
            return await self._next_batch(request, deadline_ms, until)
        except BaseException:
            self.wake()  # whoever was woken for what waits has gone, so it is for another
            raise

    async def _next_batch(self, request: FetchRequest, deadline_ms: int, until: Until) -> LeasedBatch | None:
        now = self._time.now_ms()
        while True:
            self.refill()
            due, held_ms = self.machine.due_in_ms(now, request.session), self.throttle.wait_ms(now)
            if due is not None and not held_ms and (due == 0 or now >= deadline_ms):
                batch = await self._serve(request, now)
                if batch is not None:
                    return batch
            if now >= deadline_ms or self.closed:
                return None
            if held_ms and due is not None:
                await self.waiters.wait(request.session, min(held_ms, deadline_ms - now), until)
            elif due != 0:
                self.wake()
                await self.waiters.wait(request.session, deadline_ms - now, until)
            now = self._time.now_ms()

    async def _serve(self, request: FetchRequest, now_ms: int) -> LeasedBatch | None:
        machine = self.machine
        count, size = self.throttle.room(request.max_count, request.max_bytes, now_ms)
        batch = machine.take(request.session, count, size, now_ms)
        if batch is None:
            return None
        items = batch.items()
        try:
            if batch.priority != REAL_TIME:
                # In a task of its own: a fetch may run in none, which requests to other nodes do not know.
                resolved = await asyncio.get_running_loop().create_task(self._read_anywhere(batch, size))
            elif unread := sum([not item[8] for item in items]):
                if unread <= READ_HERE_COUNT:
                    resolved, ends = read_batch(self._store, items, size)
                else:
                    loop = asyncio.get_running_loop()
                    resolved, ends = await loop.run_in_executor(self._pool, read_batch, self._store, items, size)
                await self._until_told(batch, ends)
            else:
                resolved = None
        except BaseException:
            machine.release(batch)
            raise
        if resolved is not None and not machine.resolve(batch, resolved):
            self.room_made()
            return None
        machine.mark_sent(batch)
        self.throttle.spent(len(batch), batch.size_bytes, self._time.now_ms())
        self.refill()
        self.wake()
        return batch

    async def _until_told(self, batch: LeasedBatch, ends: Mapping[int, int]) -> None:
        """The store is a moment ahead of the loop: a newer object than the queue knows of must not go (R-PLACE)."""
        while not self.machine.caught_up(batch, ends):  # noqa: ASYNC110 - this is rare, and apply must not look for waiters
            await asyncio.sleep(TOLD_STEP_S)

    async def _read_anywhere(self, batch: LeasedBatch, limit_bytes: int) -> list[Item | None]:
        """The items of a lower priority's batch with their objects, read from the leaders of their partitions; None for
        one that is not there, or cannot be (no such bucket type). What could not be read leaves the batch and waits
        behind all others; what the answer has no room for is left out with all behind it, and waits again."""
        items = batch.items()
        keys = [Key(item[3], item[4], item[5]) for item in items]
        found = await self._kv.get_batch(keys, None, limit_bytes, waits=False)
        resolved: list[Item | None] = []
        unread: dict[int, IsthmusError] = {}
        for at, (item, payload) in enumerate(zip(items, found, strict=True)):
            if isinstance(payload, BadInput):
                log.info("queue.reference_to_nothing", queue=self.settings.name, reason=payload.reason)
                resolved.append(None)
            elif isinstance(payload, Overloaded):
                break
            elif isinstance(payload, IsthmusError):
                unread[at] = payload
            elif payload is None:
                resolved.append(None)
            else:
                kind = _TOMBSTONE if is_deleted_object(payload) else _OBJECT
                resolved.append((kind, *item[1:8], payload))
        if unread:
            reason = next(iter(unread.values())).reason
            log.info("queue.references_unreadable", queue=self.settings.name, count=len(unread), reason=reason)
            self.machine.leases.requeue_unread(batch, unread.keys())
        if not resolved:
            self.machine.pause_bulk(self._time.now_ms() + UNREADABLE_REST_MS)
        return resolved

    async def object_of(self, key: Key) -> bytes | None:
        """A key's object as its leader has it now, None when it is not there. Raises BadInput, Retryable."""
        return await self._kv.get(key)

    def reply(
        self,
        batch: LeasedBatch | None,
        came_ms: int,
        cluster: bytes,
        cluster_name: str,
        properties: Mapping[bytes, bytes],
        places: PlaceDigests | None,
    ) -> FetchReply:
        """The answer to a fetch that came at `came_ms`, with `batch` or nothing."""
        return FetchReply(
            cluster,
            cluster_name,
            self.machine.owner_version if batch is None else batch.owner_version,
            b"" if batch is None else batch.id,
            self.settings.lease_ms,
            self._time.wall_ms(),
            self.state,
            [] if batch is None else batch.items(),
            REAL_TIME if batch is None else batch.priority,
            properties,
            None if batch is None else max(0, batch.taken_ms - came_ms),
            self.machine.held_back_since(),
            places,
        )

    # ---------------------------------------------------------------- what does not fit

    def compare_properties(
        self, node: str, ours: Mapping[bytes, bytes], places: PlaceDigests | None, request: FetchRequest
    ) -> None:
        """Compare the digests that a sink node sent of its cluster's properties with ours, and keep what differs."""
        if ours == request.properties and node not in self.differing:
            return
        found = differences(ours, request.properties, places, request.places)
        if self.differing.get(node, ()) == found:
            return
        self.differing.pop(node, None)
        if found:
            if len(self.differing) >= DIFFERING_MAX:
                del self.differing[next(iter(self.differing))]
            self.differing[node] = found
        log.warning(
            "queue.properties_differ",
            queue=self.settings.name,
            sink_node=node,
            bucket_types=types_of(found),
            differences=differences_shown(found),
        )

    def watch_ledger(self) -> None:
        """Look whether the ledger closes, and say so when that changes."""
        machine = self.machine
        off = machine.ledger().unbalanced + sum(abs(w.ledger_error() or 0) for w in machine.windows.values())
        if off != self.ledger_off:
            self.ledger_off = off
            log.error("queue.ledger_off", queue=self.settings.name, changes=off)

    # ---------------------------------------------------------------- lower priorities

    async def push(self, keys: Sequence[Key], priority: int, deadline_ms: int) -> int:
        """Queue references, waiting for room until `deadline_ms`; returns how many of the first were taken in. Raises
        BadInput while the source of this node is off, NotReady while publishing is suspended, or when it cannot be put
        on record that they are here."""
        if not self._enabled:
            raise BadInput("the source of this node is switched off (source.enabled)")
        if (stopped := self.publishing_suspension) is not None:
            because = f": {stopped.reason}" if stopped.reason else ""
            raise NotReady(f"publishing of queue {self.settings.name} is suspended by {stopped.by}{because}")
        barred = sorted({key.bucket_type for key in keys if self.machine.sink_types.lacks(key.bucket_type)})
        if barred:
            raise NotReady(
                f"queue {self.settings.name}: {lacking(barred, self.word)}; nothing of it is taken in until then"
            )
        lower = self.machine.bulk_queues[LOWER.index(priority)]
        taken = 0
        while True:
            while (room := min(len(keys) - taken, lower.free_count())) and not self.closed:
                await self._cover(self, lower, room)
                taken += lower.offer(keys[taken : taken + room], self._time.wall_ms())
            if taken < len(keys) and not self.closed:
                taken += lower.offer(keys[taken:], self._time.wall_ms())  # without room, those that wait already
            self.wake()
            left_ms = deadline_ms - self._time.now_ms()
            if taken == len(keys) or left_ms <= 0 or self.closed or len(self._pushers) >= PUSHERS_MAX:
                return taken
            loop = asyncio.get_running_loop()
            pusher: asyncio.Future[None] = loop.create_future()
            self._pushers.append(pusher)
            timer = loop.call_later(left_ms / 1000, wake, pusher)
            try:
                await pusher
            finally:
                timer.cancel()
                if pusher in self._pushers:
                    self._pushers.remove(pusher)

    def room_made(self) -> None:
        """Lower references may have been settled: whoever waits for room looks again."""
        while self._pushers and any(lower.free_count() for lower in self.machine.bulk_queues):
            wake(self._pushers.popleft())

    # ---------------------------------------------------------------- what the metastore says

    def apply_state(self, word: QueueState, node: str) -> None:
        """Take in what operators want."""
        before = (self.suspension, self.publishing_suspension)
        self.word = word
        self.suspension = suspension_of(word.suspensions, SERVES, node)
        if self.suspension is None and word.rates is NOT_READ:
            self.suspension = unread_rates(self.settings.name, self._time.wall_ms())
        self.publishing_suspension = suspension_of(word.suspensions, PUBLISHING, node)
        self.machine.serving_suspended = self.suspension is not None or not self._enabled
        stopped = self.publishing_suspension
        if not self._enabled:
            self.machine.publishing_suspended = PublishingSuspended(
                "config", f"the source of node {node} is switched off"
            )
        elif isinstance(stopped, UnreadSuspension):
            self.machine.publishing_suspended = PublishingUnknown(stopped.by, stopped.reason)
        else:
            self.machine.publishing_suspended = (
                None if stopped is None else PublishingSuspended(stopped.by, stopped.reason)
            )
        settings = in_force_now(self.defined, word.decree, word.limits)
        if settings != self.settings:
            self._change_settings(settings)
        self.release.seen(word.owner, self._time.now_ms())
        if word.owner is not None:
            self.machine.set_owner(word.owner.cluster, word.owner.version)
        rates = self.configured if word.rates is None else word.rates.rates
        if rates != self.throttle.rates:
            self.throttle.change(rates, self._time.now_ms())
            self.waiters.wake_all()
        if (self.suspension, self.publishing_suspension) != before:
            self.waiters.wake_all()

    def _change_settings(self, settings: QueueSettings) -> None:
        """Other filters and limits from now on; every cursor stays where it is."""
        before, self.settings = self.settings, settings
        self.filter = parse_filter(settings.filter)
        budget = self.machine.budget
        budget.object_size_limit_bytes = settings.object_size_limit_bytes
        budget.object_limit = settings.object_limit_count
        budget.reference_limit = settings.queue_limit_count
        budget.discard = settings.overflow == DISCARD
        for lower in self.machine.bulk_queues:
            lower.limit = settings.queue_limit_count
        self.machine.leases.lease_ms = settings.lease_ms
        offers = (before.filter, before.cascade) != (settings.filter, settings.cascade)
        if offers or before.overflow != settings.overflow:
            self.machine.change_filter(self.filter, settings.cascade)
        log.info("queue.settings_changed", queue=settings.name, filter=settings.filter, cascade=settings.cascade)
        self.room_made()
        self.refill()
        self.waiters.wake_all()

    # ---------------------------------------------------------------- waiting fetches

    def wake(self) -> None:
        """Wake the first waiting fetch if there is something to give: now, or once enough has gathered."""
        if not self.waiters:
            return
        now, machine = self._time.now_ms(), self.machine
        due = machine.due_in_ms(now)
        if due is None:
            return
        due = max(due, self.throttle.wait_ms(now))
        if due:
            self.waiters.in_ms(due)
        else:
            self.waiters.wake(lambda session: machine.has_work_for(session, now))

    def close(self) -> None:
        """Answer the waiting fetches; none waits from here on."""
        self.closed = True
        self.waiters.wake_all()
        while self._pushers:
            wake(self._pushers.popleft())

    def refill(self) -> None:
        """Begin every read of the change index that a window wants."""
        for window, start, rows in self.machine.begin_refills():
            self._spawn(self._read_rows(window, start, rows))

    async def _read_rows(self, window: Window, start: int, limit: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            rows: Sequence[Change] = await loop.run_in_executor(
                self._pool, read_changes, self._store, window, start, limit
            )
        except DamagedChange as error:
            if not error.before:
                await self._wait_for_row(window, error)
                return
            rows, limit = error.before, len(error.before)  # these first; the next read begins with it
        except Exception as error:
            # Whatever it is, a window that waits for rows for ever would serve nothing more: they are read again.
            bug = None if isinstance(error, IsthmusError) else error
            log.error(
                "queue.rows_unreadable",
                queue=self.settings.name,
                partition=window.partition,
                error=str(error),
                exc_info=bug,
            )
            window.fail_refill()
            return
        window.finish_refill(rows, limit)
        self.refill()
        self.wake()

    async def _wait_for_row(self, window: Window, error: DamagedChange) -> None:
        """Have a change row mended, and read it again after a rest: to pass over it would lose a change."""
        log.error("queue.change_row_damaged", queue=self.settings.name, partition=window.partition, offset=error.offset)
        window.block_refill(f"waits until a damaged row is mended: {error}")
        window.on_damaged(None)
        await asyncio.sleep(DAMAGED_REST_S)
        window.fail_refill()
        if not self.closed:
            self.refill()

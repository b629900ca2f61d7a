"""Serves one queue on the event loop: waiting fetches, bulk producers, reads from the store.

The queue's machine (`queues.source_queue`) decides what is served, when and to whom; objects and rows are read in the
read pool. `queues.service` has checked before who may fetch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from isthmus.config.settings import QueueSettings
from isthmus.config.text import as_it_answered
from isthmus.queues.backlog_count import BacklogCounter
from isthmus.queues.bulk_queue import BulkQueue
from isthmus.queues.cursor_decisions import PublishingSuspended, PublishingUnknown
from isthmus.queues.filters import parse_filter
from isthmus.queues.leases import LeasedBatch
from isthmus.queues.long_poll import LongPollWaiters, Until, wake
from isthmus.queues.object_reader import kind_of, read_batch, read_changes
from isthmus.queues.queue_documents import (
    PUBLISHING,
    RATES_NOT_READ,
    QueueOwner,
    QueueState,
    QueueSuspension,
    ReleaseTimer,
    UnreadSuspension,
    settings_in_effect,
    suspension_at,
    unread_rates,
)
from isthmus.queues.queue_documents import SERVING as SERVING_ACT
from isthmus.queues.queue_store import QueueDocuments
from isthmus.queues.rate_limit import Rates, Throttle
from isthmus.queues.source_queue import SILENT_MS, SLOW_MS, SourceQueue, WindowListeners
from isthmus.queues.task_set import TaskSet
from isthmus.queues.window import Window
from isthmus.queues.window_rules import BULK_PRIORITIES, REAL_TIME, Budget, Read, UnreadableObject
from isthmus.queues.wire import OFF, SERVING, STARTING, SUSPENDED, THROTTLED, FetchReply, FetchRequest
from isthmus.repl.model.errors import BadInput, IsthmusError, NotReady, Overloaded
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import DamageListener, KeyValue, TimeSource
from isthmus.repl.property_digests import PropertyDifference, ScopeDigests, differences, differences_shown, types_of
from isthmus.repl.store.port import Change, DamagedChange, Store
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

PRODUCERS_MAX: Final = 64
"""Bulk producers that may wait for space at once; one more is answered with what was accepted."""

READ_HERE_COUNT: Final = 16
"""Up to so many objects of a batch are read on the loop, usually 5 us each: handing them to a thread costs more than
ten reads. More of them would block the loop for too long."""

CATCH_UP_STEP_S: Final = 0.001
"""Pause between two looks whether the entries that a batch was read with were added; ends with the lease."""

BULK_PAUSE_MS: Final = 1_000
"""Pause of bulk references once nothing of a batch could be read: elections take seconds, hand-overs less. A guess. No
fetch waits for that, because real time would wait with it."""

DAMAGED_ROW_PAUSE_S: Final = 5.0
"""Pause before a damaged change row is read again: to repair it, all rows of its partition are read. If it is damaged
still, it is passed over: what waits behind it is worth more than one change that full-sync brings, too."""

DIFFERING_MAX: Final = 64
"""Sink nodes whose differing properties are kept, the newest."""


def lacking_types(bucket_types: Iterable[bytes], owner: QueueOwner | None, age_ms: int | None = None) -> str:
    """The sentence on bucket types that the queue's owner lacks, with what to do. `age_ms`: how long ago one of its
    nodes said so, None for just now: it may have been made there since."""
    names = ", ".join(name.decode(errors="backslashreplace") for name in bucket_types)
    there = "the other cluster" if owner is None else owner.name
    create = "it is made there (isthmus bucket-type create)"
    if age_ms is None:
        return f"{there} has no bucket type {names}: its changes wait here until {create}"
    known = as_it_answered(f"{there} had no bucket type {names}", age_ms)
    return f"{known}: its changes wait here until {create} and it has fetched again"


DISCARD: Final = "discard"
"""`overflow` of a queue that discards changes at its limit."""


class MarkWriter(Protocol):
    """Records how many bulk references this node holds; `queues.bulk_marks.BulkMarks`."""

    async def cover(self, queue: QueueServer, bulk: BulkQueue, keys: Sequence[Key]) -> None:
        """Return once a mark allows references to `keys` more in `bulk`. Raises NotReady, Overloaded."""


class WindowKeeper(DamageListener, Protocol):
    """Mends what goes wrong in windows; `queues.service.QueueService`."""

    def begin_anew(self, queue: QueueServer, partition: int, error: Exception, /) -> None:
        """The window of a partition raised `error`: begin it again, after a pause."""


@dataclass(frozen=True)
class QueueHost:
    """What all queues of a node share."""

    own: bytes
    """This cluster's uuid."""
    batch_prefix: bytes
    """Of the ids of this process's batches; see `queues.leases.Leases`."""
    store: Store
    kv: KeyValue
    pool: Executor
    time: TimeSource
    tasks: TaskSet
    marks: MarkWriter
    keeper: WindowKeeper
    enabled: bool
    """False: the source is switched off on this node."""


class QueueServer:
    """One queue on this node. Raises BadConfig when the filter is not known."""

    def __init__(self, settings: QueueSettings, documents: QueueDocuments, host: QueueHost) -> None:
        time = host.time
        budget = Budget(
            settings.object_size_limit_bytes,
            settings.object_limit_count,
            settings.queue_limit_count,
            settings.overflow == DISCARD,
        )
        self.defined = settings
        """As defined at run time, or in the file."""
        self.settings = settings
        """`defined` with what operators have changed since."""
        self.name = settings.name.encode()
        self.filter = parse_filter(settings.filter)
        self.machine = SourceQueue(
            settings.name,
            host.own,
            settings.cascade,
            settings.lease_ms,
            budget,
            host.batch_prefix,
            WindowListeners(host.keeper, partial(host.keeper.begin_anew, self)),
            self.filter,
        )
        self.documents = documents
        self.stored: QueueState = documents.state()
        """The documents as they were applied last: a consistent copy, while `documents` are being read."""
        self.serving_suspension: QueueSuspension | None = None
        """The suspension of serving on this node."""
        self.publishing_suspension: QueueSuspension | None = None
        """The suspension of publishing on this node."""
        self.configured = Rates(settings.rate_limit_bytes, settings.object_rate_limit_count)
        self.throttle = Throttle(self.configured, time.now_ms())
        self.writing_cursor: set[int] = set()
        """Partitions for which a CURSOR entry is being written."""
        self.beginning_anew: set[int] = set()
        """Partitions whose window failed, and begins again after a pause."""
        self._served_since_ms = time.now_ms()
        self.waiters = LongPollWaiters(settings.name, self.wake)
        self._producers: deque[asyncio.Future[None]] = deque()
        """Bulk producers that wait for space."""
        self.differing: dict[str, tuple[PropertyDifference, ...]] = {}
        """Sink node -> properties that differ there."""
        self.ledger_off = 0
        """Changes by which the ledger did not balance at the last check: a bug."""
        self._enabled = host.enabled
        self._store = host.store
        self._kv = host.kv
        self._pool = host.pool
        self._time = time
        self._tasks = host.tasks
        self._marks = host.marks
        self.closed = False
        self.release = ReleaseTimer()
        self.backlog_counter = BacklogCounter(self.machine, host.store, host.pool, time)

    @property
    def state(self) -> str:
        """`state` of a fetch answer. STARTING: no partition has a CURSOR entry with the owner's version yet."""
        machine = self.machine
        if not self._enabled:
            return OFF
        if self.serving_suspension is not None:
            return SUSPENDED
        if self.throttle.wait_ms(self._time.now_ms()) and machine.due_in_ms(self._time.now_ms()) is not None:
            return THROTTLED
        ready = any(window.owner_version == machine.owner_version for window in machine.windows.values())
        return SERVING if ready else STARTING

    @property
    def is_silent(self) -> bool:
        """Whether no sink fetches from the queue on this node."""
        return not self.waiters and self.machine.not_fetched_for(SILENT_MS, self._time.now_ms())

    def lacking(self, bucket_types: Iterable[bytes]) -> str:
        """See `lacking_types`: with the age of what is known, where no node of the owner asks any more."""
        newest_ms = self.machine.newest_fetch_ms
        age_ms = None if newest_ms is None or not self.is_silent else self._time.now_ms() - newest_ms
        return lacking_types(bucket_types, self.stored.owner, age_ms)

    @property
    def is_slow(self) -> bool:
        """Whether the owner fetches, but changes that this node would serve wait for long."""
        if self.waiters or self.is_silent or self.throttle.binding(self._time.now_ms()):
            return False
        return self.machine.waited_for(SLOW_MS, self._time.wall_ms())

    async def next_batch(self, request: FetchRequest, deadline_ms: int, until: Until) -> LeasedBatch | None:
        """The next batch for this request, at the latest at `deadline_ms`; None when there was nothing. Raises
        Overloaded, and what `until` does."""
        try:
            return await self._next_batch(request, deadline_ms, until)
        except BaseException:
            self.machine.fetch_cut_off(request.session)
            self.wake()  # this fetch was woken for references that another one can have now
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
                if due is not None:
                    self.waiters.look_in_ms(due)
                self.wake()
                await self.waiters.wait(request.session, deadline_ms - now, until)
            now = self._time.now_ms()

    async def _serve(self, request: FetchRequest, now_ms: int) -> LeasedBatch | None:
        machine = self.machine
        count, size = self.throttle.allowance(request.max_count, request.max_bytes, now_ms)
        batch = machine.take(request.session, count, size, now_ms)
        if batch is None:
            return None
        items = batch.items()
        try:
            if batch.priority != REAL_TIME:
                # In a task of its own: a fetch may run in none, and requests to other nodes need one.
                resolved = await asyncio.get_running_loop().create_task(self._read_anywhere(batch, size))
            elif unread := sum([not item[8] for item in items]):
                if unread <= READ_HERE_COUNT:
                    resolved, ends = read_batch(self._store, items, size)
                else:
                    loop = asyncio.get_running_loop()
                    resolved, ends = await loop.run_in_executor(self._pool, read_batch, self._store, items, size)
                await self._caught_up(batch, ends)
            else:
                resolved = None
        except BaseException:
            machine.release(batch)
            raise
        if resolved is not None and not machine.resolve(batch, resolved):
            self.space_freed()
            return None
        machine.mark_sent(batch)
        sent_ms = self._time.now_ms()
        machine.consumers.given(request.session.node, len(batch), sent_ms)
        self.throttle.spend(len(batch), batch.size_bytes, sent_ms)
        self.refill()
        self.wake()
        return batch

    async def _caught_up(self, batch: LeasedBatch, ends: Mapping[int, int]) -> None:
        """Wait until the entries that the objects were read with were added: the store is a moment ahead of the loop,
        and a newer object than the queue knows of must not be sent (R-PLACE)."""
        while not self.machine.caught_up(batch, ends):  # noqa: ASYNC110 - rare, and apply must not search for waiters
            await asyncio.sleep(CATCH_UP_STEP_S)

    async def _read_anywhere(self, batch: LeasedBatch, limit_bytes: int) -> list[Read]:
        """The items of a bulk batch with their objects, read from the leaders of their partitions; None for one that
        does not exist, or cannot (no such bucket type). An item that could not be read leaves the batch and waits
        behind all others. From the first item that exceeds `limit_bytes` on, items are left out and wait again."""
        items = batch.items()
        keys = [Key(item[3], item[4], item[5]) for item in items]
        found = await self._kv.get_batch(keys, None, limit_bytes, waits=False)
        resolved: list[Read] = []
        unread: dict[int, str] = {}
        for at, (item, payload) in enumerate(zip(items, found, strict=True)):
            if isinstance(payload, BadInput):
                log.info("queue.reference_to_nothing", queue=self.settings.name, reason=payload.reason)
                resolved.append(None)
            elif isinstance(payload, Overloaded):
                break
            elif isinstance(payload, IsthmusError):
                unread[at] = payload.reason
            elif payload is None:
                resolved.append(None)
            else:
                kind = kind_of(payload, item)
                if isinstance(kind, UnreadableObject):
                    unread[at] = kind.reason
                else:
                    resolved.append((kind, *item[1:8], payload))
        if unread:
            reason = next(iter(unread.values()))
            log.info("queue.references_unreadable", queue=self.settings.name, count=len(unread), reason=reason)
            self.machine.leases.requeue_unread(batch, unread.keys())
        if not resolved:
            self.machine.pause_bulk(self._time.now_ms() + BULK_PAUSE_MS)
        return resolved

    async def object_of(self, key: Key) -> bytes | None:
        """A key's object as its leader has it now, None when it does not exist. Raises BadInput, Retryable."""
        return await self._kv.get(key)

    def reply(
        self,
        batch: LeasedBatch | None,
        came_ms: int,
        cluster: bytes,
        cluster_name: str,
        properties: Mapping[bytes, bytes],
        scopes: ScopeDigests | None,
        traces: Mapping[int, str] | None,
    ) -> FetchReply:
        """The answer to a fetch that arrived at `came_ms`, with `batch` or nothing. `traces`: contexts of its
        items."""
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
            max(0, (self._time.now_ms() if batch is None else batch.taken_ms) - came_ms),
            self.machine.held_back_since(),
            scopes,
            traces,
        )

    # ---------------------------------------------------------------- checks

    def compare_properties(
        self, node: str, ours: Mapping[bytes, bytes], scopes: ScopeDigests | None, request: FetchRequest
    ) -> None:
        """Compare the digests of properties that a sink node sent with ours, and keep the differences."""
        if ours == request.properties and node not in self.differing:
            return
        found = differences(ours, request.properties, scopes, request.scopes)
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
            peer=node,
            bucket_types=types_of(found),
            differences=differences_shown(found),
        )

    def fetch_age_ms(self, now_ms: int) -> int | None:
        """Time since a node of the owner asked for changes here, 0 while one waits; since this node serves the queue
        where none has. None while nobody has to: no owner, or no partition that is led here."""
        owner, machine = self.stored.owner, self.machine
        if owner is None or not owner.cluster or not machine.windows:
            return None
        newest_ms = machine.newest_fetch_ms
        return 0 if self.waiters else now_ms - (self._served_since_ms if newest_ms is None else newest_ms)

    def check_ledger(self) -> None:
        """Check that the ledger balances; log a change."""
        machine = self.machine
        off = machine.ledger().unbalanced + sum(abs(w.ledger_error() or 0) for w in machine.windows.values())
        if off != self.ledger_off:
            self.ledger_off = off
            log.error("queue.ledger_off", queue=self.settings.name, changes=off)

    # ---------------------------------------------------------------- bulk references

    async def push(self, keys: Sequence[Key], priority: int, deadline_ms: int) -> int:
        """Queue bulk references, waiting for space until `deadline_ms`; returns how many of the first were accepted.
        Raises BadInput while the source of this node is off, NotReady while publishing is suspended, or when the mark
        for them cannot be written."""
        if not self._enabled:
            raise BadInput("the source of this node is switched off (source.enabled)")
        if (suspended := self.publishing_suspension) is not None:
            because = f": {suspended.reason}" if suspended.reason else ""
            raise NotReady(f"publishing of queue {self.settings.name} is suspended by {suspended.by}{because}")
        lacking = sorted({key.bucket_type for key in keys if self.machine.sink_types.lacks(key.bucket_type)})
        if lacking:
            why = self.lacking(lacking)
            raise NotReady(f"queue {self.settings.name}: {why}; nothing of it is taken in until then")
        bulk = self.machine.bulk_queues[BULK_PRIORITIES.index(priority)]
        accepted = 0
        while True:
            while (count := min(len(keys) - accepted, bulk.free_count())) and not self.closed:
                offered = keys[accepted : accepted + count]
                await self._marks.cover(self, bulk, offered)
                accepted += bulk.offer(offered, self._time.wall_ms())
            if accepted < len(keys) and not self.closed:
                accepted += bulk.offer(keys[accepted:], self._time.wall_ms())  # without space, those that wait already
            self.wake()
            left_ms = deadline_ms - self._time.now_ms()
            if accepted == len(keys) or left_ms <= 0 or self.closed or len(self._producers) >= PRODUCERS_MAX:
                return accepted
            loop = asyncio.get_running_loop()
            producer: asyncio.Future[None] = loop.create_future()
            self._producers.append(producer)
            timer = loop.call_later(left_ms / 1000, wake, producer)
            try:
                await producer
            finally:
                timer.cancel()
                if producer in self._producers:
                    self._producers.remove(producer)

    def space_freed(self) -> None:
        """Bulk references may have been settled: wake the producers that wait for space."""
        while self._producers and any(bulk.free_count() for bulk in self.machine.bulk_queues):
            wake(self._producers.popleft())

    # ---------------------------------------------------------------- metastore documents

    def apply_state(self, state: QueueState, node: str) -> None:
        """Apply the queue's documents; `node` is the name of this node."""
        before = (self.serving_suspension, self.publishing_suspension)
        self.stored = state
        self.serving_suspension = suspension_at(state.suspensions, SERVING_ACT, node)
        if self.serving_suspension is None and state.rates is RATES_NOT_READ:
            self.serving_suspension = unread_rates(self.settings.name, self._time.wall_ms())
        self.publishing_suspension = suspension_at(state.suspensions, PUBLISHING, node)
        self.machine.serving_suspended = self.serving_suspension is not None or not self._enabled
        publishing = self.publishing_suspension
        if not self._enabled:
            self.machine.publishing_suspended = PublishingSuspended(
                "config", f"the source of node {node} is switched off"
            )
        elif isinstance(publishing, UnreadSuspension):
            self.machine.publishing_suspended = PublishingUnknown(publishing.by, publishing.reason)
        else:
            self.machine.publishing_suspended = (
                None if publishing is None else PublishingSuspended(publishing.by, publishing.reason)
            )
        settings = settings_in_effect(self.defined, state.command, state.limits)
        if settings != self.settings:
            self._change_settings(settings)
        self.release.observe(state.owner, self._time.now_ms())
        if state.owner is not None:
            self.machine.set_owner(state.owner.cluster, state.owner.version)
        rates = self.configured if state.rates is None else state.rates.rates
        if rates != self.throttle.rates:
            self.throttle.change(rates, self._time.now_ms())
            self.waiters.wake_all()
        if (self.serving_suspension, self.publishing_suspension) != before:
            self.waiters.wake_all()

    def _change_settings(self, settings: QueueSettings) -> None:
        """Apply other filters and limits; every cursor stays where it is."""
        before, self.settings = self.settings, settings
        self.filter = parse_filter(settings.filter)
        budget = self.machine.budget
        budget.object_size_limit_bytes = settings.object_size_limit_bytes
        budget.object_limit = settings.object_limit_count
        budget.reference_limit = settings.queue_limit_count
        budget.discard = settings.overflow == DISCARD
        for bulk in self.machine.bulk_queues:
            bulk.limit = settings.queue_limit_count
        self.machine.leases.lease_ms = settings.lease_ms
        changed = (before.filter, before.cascade) != (settings.filter, settings.cascade)
        if changed or before.overflow != settings.overflow:
            self.machine.change_filter(self.filter, settings.cascade)
        log.info("queue.settings_changed", queue=settings.name, filter=settings.filter, cascade=settings.cascade)
        self.space_freed()
        self.refill()
        self.waiters.wake_all()

    # ---------------------------------------------------------------- waiting fetches

    def wake(self) -> None:
        """Wake the first waiting fetch for which references are ready: now, once a batch has gathered, or once they
        have waited for the node in whose share they are."""
        if not self.waiters:
            return
        now, machine = self._time.now_ms(), self.machine
        held_ms = self.throttle.wait_ms(now)
        if not held_ms:
            self.waiters.wake(lambda session: machine.due_in_ms(now, session))
        elif machine.due_in_ms(now) is not None:
            self.waiters.look_in_ms(held_ms)

    def close(self) -> None:
        """Answer the waiting fetches and producers; none waits from now on."""
        self.closed = True
        self.waiters.wake_all()
        while self._producers:
            wake(self._producers.popleft())

    def refill(self) -> None:
        """Begin the reads of the change index that windows need."""
        for window, start, rows in self.machine.begin_refills():
            self._tasks.start(self._read_rows(window, start, rows))

    async def _read_rows(self, window: Window, start: int, limit: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            rows: Sequence[Change] = await loop.run_in_executor(
                self._pool, read_changes, self._store, window, start, limit
            )
        except DamagedChange as error:
            if not error.before:
                if window.waits_for_row(error.offset):
                    await self._wait_for_repair(window, error)
                else:
                    await self._pass_over(window, error)
                return
            rows, limit = error.before, len(error.before)  # the next read begins at the damaged row
        except Exception as error:
            # Whatever it is: a window that waited for these rows for ever would serve nothing more.
            about = {"queue": self.settings.name, "partition": window.partition}
            if isinstance(error, IsthmusError):
                log.error("queue.rows_unreadable", error=str(error), **about)
            else:
                unforeseen.exception("queue.rows_failed", error, **about)
            window.fail_refill()
            return
        try:
            window.finish_refill(rows, limit)
        except Exception as error:  # noqa: BLE001 -- see WindowListeners
            self.machine.window_failed(window, error)
        self.refill()
        self.wake()

    async def _wait_for_repair(self, window: Window, error: DamagedChange) -> None:
        """Have a damaged change row repaired, and read it again after a pause: most are repaired by then."""
        log.error("queue.change_row_damaged", queue=self.settings.name, partition=window.partition, offset=error.offset)
        window.block_refill(error.offset, f"waits until a damaged row is mended: {error}")
        window.damage_listener.on_damaged_row(window.partition, None)
        await asyncio.sleep(DAMAGED_ROW_PAUSE_S)
        window.fail_refill()
        if not self.closed:
            self.refill()

    async def _pass_over(self, window: Window, error: DamagedChange) -> None:
        """Leave a change row that was not repaired in a gap of its own, and read on behind it."""
        if not window.passes_over(error.offset):
            self.machine.counts.undecoded += 1
            log.warning(
                "queue.change_row_passed_over",
                queue=self.settings.name,
                partition=window.partition,
                offset=error.offset,
                reason=str(error),
            )
        now_ms = self._time.wall_ms()
        try:
            below_s, above_s = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._store.seconds_around, window.partition, error.offset
            )
        except IsthmusError:  # the times are for people
            below_s = above_s = None
        from_ms = 0 if below_s is None else below_s * 1000
        upto_ms = now_ms if above_s is None else above_s * 1000 + 999
        try:
            window.pass_over_row(error.offset, from_ms, upto_ms, f"{error}, and was not mended")
        except Exception as bug:  # noqa: BLE001 -- see WindowListeners
            self.machine.window_failed(window, bug)
        self.refill()
        self.wake()

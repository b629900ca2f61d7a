"""State machine of one source queue: windows of the partitions led here, batches under lease, cursors (pure).

`now_ms` comes in; nothing is awaited, read or logged here. `queues.queue_server` runs it.

    waiting   -> in flight      taken into a batch, under a lease
    in flight -> acknowledged   by the sink's next fetch; the cursor moves over the settled prefix
    in flight -> waiting        lease over, failed at the sink, or the sink no longer holds the batch
    in flight -> settled        its key has a newer change with a place of its own, or one that came from the sink
    waiting   -> settled        its object had vanished when it was read

Real time has strict priority: a batch of bulk references (`queues.bulk_queue`) is made only while no partition has a
real-time change to serve, in memory or in the change index. Nor may a real-time change wait behind such a batch: while
changes arrive, bulk batches are small and paced, and a sink process holds one at a time, so that its other fetches wait
for changes.

A node of the sink's cluster takes changes of the partitions that it leads there (`queues.sink_shares`), as far as it
sends which; a bulk batch goes to any node, since its references are not kept by partition.

CURSOR entries decide who may fetch, once they are applied (`cursor_applied`): a window serves only under the queue's
current owner version, and acknowledgements of an older one do not count (docs/protocol.md R-OWNER).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from isthmus.queues.bulk_queue import BulkQueue, RefusedReference
from isthmus.queues.consumers import Consumers
from isthmus.queues.cursor_decisions import PublishingSuspended, needs_no_new_window, wanted_state
from isthmus.queues.cursors import NO_OWNER, CursorPosition, CursorState
from isthmus.queues.filters import Filter
from isthmus.queues.leases import Counts, LeasedBatch, Leases, Part, Session, sum_outcomes
from isthmus.queues.pacing import BatchPacing
from isthmus.queues.sink_shares import SHARE_PATIENCE_MS, KeyRange, Share, SinkShares, includes
from isthmus.queues.sink_types import SinkTypes
from isthmus.queues.window import UNREADABLE, QueueRules, Window
from isthmus.queues.window_rules import BULK_PRIORITIES, REAL_TIME, Budget, Item, Ledger, Read, UnreadableObject
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.ports import DamageListener

TURN_MIN: Final = 16
"""Fewest references that one partition gives at its turn: below it a turn costs more than it shares."""

BULK_BATCH_COUNT: Final = 64
"""Most bulk references in one batch while changes arrive in real time: reading and storing them occupies each side's
loop for about a millisecond."""

BULK_INTERVAL_MS: Final = 16
"""Least time from one such batch to the next, less after a batch that was asked to be smaller: so a queue serves 4,000
bulk references a second beside real time, and both sides are mostly free for changes."""

IDLE_MS: Final = 60_000
"""A queue that nobody fetched from for so long drops its windows: a sink that is away for days costs no memory."""

SILENT_MS: Final = 20_000
"""After so long without a fetch, and without one that waits here, operators are told that the sink does not fetch:
longer than a usual poll and the longest delay after errors (5 s and 8 s by default)."""

SLOW_MS: Final = 10_000
"""A change that has waited for so long, in a cluster whose sink fetches, is a reason: usually one waits for some
milliseconds, and for a second or two beside a burst of writes."""


class WindowListeners(NamedTuple):
    """Get what goes wrong in a queue's windows."""

    damage_listener: DamageListener
    """Gets damaged rows, from any thread."""
    on_failed: Callable[[int, Exception], None]
    """Gets a partition whose window raised what nobody foresaw: the window is to begin again."""


class SourceQueue:
    """The machine of one queue. `filter_` None offers everything; `batch_prefix`: see `queues.leases.Leases`."""

    def __init__(
        self,
        name: str,
        own: bytes,
        cascade: bool,
        lease_ms: int,
        budget: Budget,
        batch_prefix: bytes,
        listeners: WindowListeners,
        filter_: Filter | None = None,
    ) -> None:
        self.name = name
        self.budget = budget
        self.counts = Counts()
        self.windows: dict[int, Window] = {}
        """Partition -> its window."""
        self.leases = Leases(batch_prefix, lease_ms)
        self.bulk_queues = tuple(BulkQueue(priority, own, budget.reference_limit) for priority in BULK_PRIORITIES)
        """Full-sync, fold."""
        self.past_ledger = Ledger()
        """Sum of the ledgers of windows that have ended."""
        self.serving_suspended = False
        self.publishing_suspended: PublishingSuspended | None = None
        self.owner = NO_OWNER
        """Uuid of the cluster that may fetch."""
        self.owner_version = 0
        self.sink_types = SinkTypes()
        self.sink_shares = SinkShares()
        self.consumers = Consumers()
        self.refused_bulk: list[RefusedReference] = []
        """Bulk references that the sink refused permanently and keeps nothing of; `queues.bulk_marks` records them
        soon."""
        self.on_added: Callable[[Window, Sequence[Entry]], None] | None = None
        """Called with entries that were added to a window, while `queues.backlog_count` counts."""
        self._own = own
        self._listeners = listeners
        self._set_filter(filter_, cascade)
        self._pending_cursors: dict[int, int] = {}
        """Partition -> CURSOR entries appended in this leadership that are not applied."""
        self._first_window = 0
        """Index of the window whose turn is first in the next batch."""
        self._last_fetch_ms: int | None = None
        self.newest_fetch_ms: int | None = None
        """When a fetch of an owner last began here, however long ago; None: never in this process's life."""
        self._pacing = BatchPacing()
        self._gathering_from_ms: dict[int, int] = {}
        """Partition -> when the first of its changes that are ready arrived; those that were read or came back do not
        count."""
        self._passed_over_ms: dict[int, int] = {}
        """Partition -> since when its window has had changes that a fetch passed over, in another node's share."""
        self._bulk_from_ms = 0
        """Earliest time of the next bulk batch."""

    # ---------------------------------------------------------------- filter

    def _set_filter(self, filter_: Filter | None, cascade: bool) -> None:
        self._filter = None if filter_ is None or filter_.everything else filter_
        self._cascade = cascade
        self.blocked = filter_ is not None and filter_.blocks
        """Nothing is offered in real time."""

    def includes(self, bucket_type: bytes, bucket: bytes) -> bool:
        """Whether the filter includes this bucket."""
        return self._filter is None or self._filter.includes(bucket_type, bucket)

    def change_filter(self, filter_: Filter | None, cascade: bool) -> None:
        """Offer other changes from now on, from each cursor on. Waiting changes are read again from the change index;
        those in flight are sent again, if they still are offered."""
        self._set_filter(filter_, cascade)
        for window in list(self.windows.values()):
            position = CursorPosition(window.base, window.state, window.advance())
            self.lead(window.partition, window.bucket_type, position, window.applied, window.key_range)

    # ---------------------------------------------------------------- leadership, owner, cursors

    def lead(
        self,
        partition: int,
        bucket_type: bytes,
        position: CursorPosition,
        applied: int,
        key_range: KeyRange | None = None,
    ) -> None:
        """This node leads `partition`, whose entries below `applied` are in the store; the queue's cursor is at
        `position`."""
        self._end_window(partition)
        rules = QueueRules(self._own, self._cascade, self.budget, self._filter, self._listeners.damage_listener)
        window = Window(partition, bucket_type, position, applied, rules, key_range)
        fetched = self._last_fetch_ms is not None and window.owner_version == self.owner_version > 0
        # A queue that discards must count what waits, whether anybody fetches or not.
        window.tracking = fetched or self.budget.discard
        self.windows[partition] = window
        if self.sink_types:
            self._update_held_back()

    def unlead(self, partition: int) -> None:
        """This node leads the partition no more; the next leader serves what was not settled."""
        self._pending_cursors.pop(partition, None)
        self._end_window(partition)

    def _end_window(self, partition: int) -> None:
        window = self.windows.pop(partition, None)
        self._gathering_from_ms.pop(partition, None)
        self._passed_over_ms.pop(partition, None)
        if window is not None:
            window.reset()
            self.past_ledger.inherit(window.ledger)

    def window_failed(self, window: Window, error: Exception) -> None:
        """A step of a window raised what nobody foresaw; the other windows go on."""
        if self.windows.get(window.partition) is window:
            self._listeners.on_failed(window.partition, error)

    def cursor_appended(self, partition: int) -> None:
        """A CURSOR entry of this queue is appended: see `cursor_pending`."""
        self._pending_cursors[partition] = self._pending_cursors.get(partition, 0) + 1

    def cursor_rejected(self, partition: int) -> None:
        """A CURSOR entry was not appended after all."""
        self._cursor_ended(partition)

    def _cursor_ended(self, partition: int) -> None:
        left = self._pending_cursors.pop(partition, 0) - 1
        if left > 0:
            self._pending_cursors[partition] = left

    def cursor_pending(self, partition: int) -> bool:
        """Whether some CURSOR entry is, or may be, appended and is not applied. A caller that appends the next one does
        not know the resulting cursor."""
        return partition in self._pending_cursors

    def cursor_applied(
        self, partition: int, bucket_type: bytes, base: int, state: CursorState, key_range: KeyRange | None = None
    ) -> None:
        """A CURSOR entry of this queue at offset `base` was applied; all entries before it were added."""
        self._cursor_ended(partition)
        window = self.windows.get(partition)
        if window is not None and needs_no_new_window(window, state):
            window.gaps_recorded(base, state)
            return
        self.lead(partition, bucket_type, CursorPosition(base, state, state.cursor), base + 1, key_range)

    def set_owner(self, cluster: bytes, version: int) -> None:
        """Cluster `cluster` may fetch under `version`, by the metastore; windows follow when their CURSOR entries are
        applied."""
        if (cluster, version) != (self.owner, self.owner_version):
            self.owner, self.owner_version = cluster, version
            self._last_fetch_ms = None
            self.sink_types.clear()
            self.sink_shares.clear()
            self.consumers.clear()
            self._update_held_back()
            for batch in list(self.leases.batches.values()):
                self.release(batch)

    def wanted_cursors(self, wall_ms: int) -> list[tuple[int, CursorState]]:
        """(partition, state for a CURSOR entry) of windows for which something was decided that no CURSOR entry
        contains yet."""
        wanted = []
        for partition, window in list(self.windows.items()):
            try:
                state = wanted_state(window, self.owner, self.owner_version, self.publishing_suspended, wall_ms)
            except Exception as error:  # noqa: BLE001 -- see `WindowListeners`
                self.window_failed(window, error)
                continue
            if state is not None:
                wanted.append((partition, state))
        return wanted

    def moved_cursors(self, only: int | None = None) -> list[tuple[int, int, int]]:
        """(partition, base, cursor) of every cursor that moved since the last call; of one partition, or (None) all."""
        moved = []
        for partition, window in list(self.windows.items()):
            try:
                cursor = window.advance()
            except Exception as error:  # noqa: BLE001 -- see `WindowListeners`
                self.window_failed(window, error)
                continue
            if cursor > window.saved and (only is None or only == partition):
                window.saved = cursor
                moved.append((partition, window.base, cursor))
        return moved

    # ---------------------------------------------------------------- applied entries

    def add(self, partition: int, entries: Sequence[Entry], now_ms: int) -> None:
        """Add entries that the leader applied, in offset order; none of them a CURSOR entry of this queue."""
        window = self.windows.get(partition)
        if window is None:
            return
        window.add(entries)
        if self.on_added is not None:
            self.on_added(window, entries)
        self._pacing.arrived(len(entries), now_ms)
        if window.ready_count:
            self._gathering_from_ms.setdefault(partition, now_ms)

    def begin_refills(self) -> list[tuple[Window, int, int]]:
        """(window, from offset, row count) of every read of the change index to begin now; its rows go to
        `Window.finish_refill`."""
        if self.budget.references >= self.budget.reference_limit:
            for window in self.windows.values():
                window.advance()  # frees the places of keys that were settled otherwise
        wanted = []
        for window in list(self.windows.values()):
            try:
                if window.scan != window.applied and (count := window.refill_count()):
                    wanted.append((window, window.begin_refill(), count))
            except Exception as error:  # noqa: BLE001 -- see `WindowListeners`
                self.window_failed(window, error)
        return wanted

    # ---------------------------------------------------------------- fetches

    def on_fetch(self, session: Session, holding: Collection[bytes] | None, now_ms: int) -> None:
        """A fetch of the owner arrived. Batches that its process no longer holds are released: those of an earlier
        incarnation of the same node, and those of the same link that are not in `holding` (None: not sent)."""
        if self._last_fetch_ms is None:
            for window in self.windows.values():
                window.tracking = window.tracking or window.owner_version == self.owner_version
        self._last_fetch_ms = self.newest_fetch_ms = now_ms
        for batch in self.leases.not_held(session, holding):
            self.release(batch)

    def report_types(self, node: str, types: frozenset[bytes] | None, now_ms: int) -> None:
        """A node of the sink's cluster reports its bucket types (None: it does not send them). Changes of a type that
        none of its nodes has are held back until one does (docs/protocol.md R-TYPE)."""
        if self.sink_types.report(node, types, now_ms):
            self._update_held_back()

    def report_share(self, node: str, share: Share | None, wait_ms: int, now_ms: int) -> None:
        """A node of the sink's cluster reports which partitions it leads there (None: it does not send them), by a
        fetch that may wait for `wait_ms`."""
        self.sink_shares.report(node, share, wait_ms, now_ms)

    def fetch_cut_off(self, session: Session) -> None:
        """A fetch ended without an answer: other nodes may take its node's share until it fetches again."""
        self.sink_shares.forget(session.node)

    def _update_held_back(self) -> None:
        for window in self.windows.values():
            lacks = self.sink_types.lacks(window.bucket_type)
            if window.held_back != lacks:
                window.hold_back(lacks)

    def held_back_since(self) -> dict[bytes, int]:
        """Bucket type that the sink's cluster lacks -> wall clock of the oldest change of it that waits."""
        found: dict[bytes, int] = {}
        for window in self.windows.values():
            since_ms = window.oldest_waiting_ms() if window.held_back else None
            if since_ms is not None:
                found[window.bucket_type] = min(since_ms, found.get(window.bucket_type, since_ms))
        for bulk in self.bulk_queues:
            for name, since_ms in bulk.parked_since().items():
                found[name] = min(since_ms, found.get(name, since_ms))
        return found

    def due_in_ms(self, now_ms: int, session: Session | None = None) -> int | None:
        """In how many ms a waiting fetch (of `session`, or of any) should be answered; None when nothing can be
        served."""
        if not self._may_serve():
            return None
        ready = self._ready_windows(self.windows.values(), session)
        if ready:
            home = self._home_windows(ready, session, now_ms)
            if not home:
                since_ms = min([self._passed_over_ms[window.partition] for window in ready])
                return max(0, since_ms + SHARE_PATIENCE_MS - now_ms)
            started = self._gathering_from_ms
            since = [started[window.partition] for window in home if window.partition in started]
            count = sum([window.ready_count for window in home])
            return self._pacing.wait_ms(count, min(since, default=None), now_ms, idle=not self.leases.batches)
        if self._next_bulk_queue() is None or (session is not None and self._holds_bulk_batch(session, now_ms)):
            return None
        return max(0, self._bulk_from_ms - now_ms)

    def _ready_windows(self, windows: Iterable[Window], session: Session | None) -> list[Window]:
        """Windows with references that may be taken now, except those of bucket types that the session's node lacks."""
        version = self.owner_version
        ready = [w for w in windows if w.waiting and w.ready_count and w.owner_version == version]
        lacking = self.sink_types.lacking_at(session.node) if session is not None else None
        return [w for w in ready if w.bucket_type not in lacking] if lacking else ready

    def _home_windows(self, ready: list[Window], session: Session | None, now_ms: int) -> list[Window]:
        """Those of the `ready` windows that the session may take from at once. Notes when it passes over another."""
        allowed = self.sink_shares.allowed(session.node, now_ms) if session is not None else None
        if allowed is None:
            return ready
        home = []
        for window in ready:
            if includes(allowed, window.bucket_type, window.key_range):
                home.append(window)
            else:
                self._passed_over_ms.setdefault(window.partition, now_ms)
        return home

    def _windows_to_take(self, order: Iterable[Window], session: Session, now_ms: int) -> list[Window]:
        """Those of the windows in `order` that a batch is taken from: of the session's share, or, when nothing waits
        there, those that have waited for their own node for SHARE_PATIENCE_MS."""
        ready = self._ready_windows(order, session)
        home = self._home_windows(ready, session, now_ms)
        if home:
            return home
        return [w for w in ready if now_ms - self._passed_over_ms[w.partition] >= SHARE_PATIENCE_MS]

    def _holds_bulk_batch(self, session: Session, now_ms: int) -> bool:
        """Whether the process of the session holds a bulk batch while changes arrive in real time."""
        return self._pacing.active(now_ms) and any(
            batch.priority != REAL_TIME and batch.session[:3] == session[:3] for batch in self.leases.batches.values()
        )

    def owner_pending(self) -> bool:
        """Whether some partition has no CURSOR entry with the owner's version yet."""
        version = self.owner_version
        return any(window.owner_version != version for window in self.windows.values())

    def _may_serve(self) -> bool:
        return not self.serving_suspended and self.leases.has_capacity()

    def _next_bulk_queue(self) -> BulkQueue | None:
        """The bulk queue to serve: the first with a reference that is ready, once real time has none."""
        if not self.owner_version:
            return None
        types = self.sink_types.known
        found = next((bulk for bulk in self.bulk_queues if bulk.waiting_count and bulk.ready(types)), None)
        if found is None:
            return None
        for window in self.windows.values():
            serves = window.owner_version == self.owner_version and not window.held_back
            if serves and (window.waiting_count or (window.tracking and not window.contiguous)):
                return None
        return found

    def take(self, session: Session, max_count: int, max_bytes: int, now_ms: int) -> LeasedBatch | None:
        """Lease the next batch, or return None. Partitions take turns, each with an equal share."""
        if not self._may_serve():
            return None
        order = list(self.windows.values())
        self._first_window = self._first_window + 1 if self._first_window + 1 < len(order) else 0
        order = order[self._first_window :] + order[: self._first_window]
        ready = self._windows_to_take(order, session, now_ms)
        parts: list[Part] = []
        count = size = 0
        while ready and count < max_count:
            share = max(TURN_MIN, -(-(max_count - count) // len(ready)))
            more: list[Window] = []
            for window in ready:
                try:
                    places, items, took = window.take(min(share, max_count - count), max_bytes - size, not parts)
                except Exception as error:  # noqa: BLE001 -- see `WindowListeners`
                    self.window_failed(window, error)
                    continue
                if items:
                    parts.append(Part(window, count, places, items))
                    count += len(items)
                    size += took
                if count >= max_count or size >= max_bytes:
                    more = []
                    break
                if window.ready_count and items:
                    more.append(window)
            ready = more
        priority = REAL_TIME
        if not parts:
            bulk = self._next_bulk_queue()
            if bulk is None or self._holds_bulk_batch(session, now_ms) or now_ms < self._bulk_from_ms:
                return None
            priority, count = bulk.priority, max_count
            if self._pacing.active(now_ms):
                count = min(count, BULK_BATCH_COUNT)
                self._bulk_from_ms = now_ms + BULK_INTERVAL_MS * count // BULK_BATCH_COUNT
            parts = [Part(bulk, 0, *bulk.take(count, self.sink_types.known))]
        for since_ms in (self._gathering_from_ms, self._passed_over_ms):
            for partition in [p for p in since_ms if p not in self.windows or not self.windows[p].ready_count]:
                del since_ms[partition]
        return self.leases.open(session, self.owner_version, parts, size, priority, now_ms)

    # ---------------------------------------------------------------- batches

    def caught_up(self, batch: LeasedBatch, ends: Mapping[int, int]) -> bool:
        """Whether every entry below `ends`, by partition, was added to the batch's windows. True, too, for a batch
        whose lease is over."""
        return batch.id not in self.leases.batches or all(
            part.source.applied >= ends[part.source.partition]
            for part in batch.parts
            if isinstance(part.source, Window) and self._is_current(part)
        )

    def resolve(self, batch: LeasedBatch, resolved: Sequence[Read]) -> bool:
        """Take in the objects that were read for a batch: `resolved` are its first items, whole, or None for one that
        vanished; the items beyond did not fit and are requeued. An UnreadableObject becomes a gap: waiting for it would
        in the end hold up all others. Returns whether anything is left to send."""
        if batch.id not in self.leases.batches:
            return False
        parts: list[Part] = []
        size = start = 0
        for part in batch.parts:
            if not self._is_current(part):
                continue
            read = resolved[part.start : part.start + len(part.items)]
            try:
                places, items = self._resolve_part(part, read)
            except Exception as error:  # noqa: BLE001 -- see `WindowListeners`
                self._part_failed(part, error)
                continue
            if items:
                parts.append(Part(part.source, start, places, items))
                start += len(items)
                size += sum([len(item[8]) for item in items])
        self.leases.resize(batch, parts, size)
        if not parts:
            self.leases.end(batch)
        return bool(parts)

    @staticmethod
    def _resolve_part(part: Part, read: Sequence[Read]) -> tuple[list[int], list[Item]]:
        """What is left to send of a part, of whose first items `read` are the objects."""
        source = part.source
        places: list[int] = []
        items: list[Item] = []
        gone_places: list[int] = []
        gone_items: list[Item] = []
        unread: list[tuple[int, Item, UnreadableObject]] = []
        decide = source.resolve if isinstance(source, Window) and source.has_newer_changes else None
        for place, before, found in zip(part.places, part.items, read, strict=False):
            if isinstance(found, UnreadableObject):
                unread.append((place, before, found))
                continue
            item = found
            if decide is not None and found is not None:
                item = decide(place, found)
                if item is None:
                    continue
            if item is None:
                gone_places.append(place)
                gone_items.append(before)
            else:
                places.append(place)
                items.append(item)
        source.requeue(part.places[len(read) :], part.items[len(read) :])
        source.settle(gone_places, gone_items, vanished=True)
        for place, item, why in unread:
            assert isinstance(source, Window)
            source.settle_refused([place], [item], UNREADABLE, why.reason)
            if why.damaged:
                source.damage_listener.on_damaged_row(source.partition, None)
        return places, items

    def _part_failed(self, part: Part, error: Exception) -> None:
        """As `window_failed`, for what a batch took from one source. Raises what a bulk queue raised."""
        if not isinstance(part.source, Window):
            raise error
        self.window_failed(part.source, error)

    def pause_bulk(self, until_ms: int) -> None:
        """Serve no bulk batch before `until_ms`: its objects cannot be read now."""
        self._bulk_from_ms = until_ms

    def mark_sent(self, batch: LeasedBatch) -> None:
        """Count a batch that goes into an answer."""
        self.counts.served += len(batch)
        self.counts.batches += 1

    def acknowledge(
        self,
        session: Session,
        batch_id: bytes,
        owner_version: int,
        failed: Collection[int] | None,
        outcomes: tuple[int, int, int, int] | None = None,
        given_up: Collection[int] = (),
    ) -> None:
        """Settle a batch. `failed` are indexes to be sent again (None: all). `outcomes` counts what was applied,
        merged, superseded, rejected, if the sink sends it. `given_up` are indexes that the sink refused permanently and
        keeps nothing of."""
        batch = self.leases.batches.get(batch_id)
        if batch is None:
            self.counts.late += 1
            return
        if owner_version != batch.owner_version or session.cluster != self.owner:
            self.counts.refused += 1
            return
        if failed is None:
            self.release(batch)
            return
        failed = frozenset(failed)
        every = batch.items() if given_up else []
        refused = {id(every[at]) for at in given_up if at < len(every) and at not in failed}
        self.leases.end(batch)
        for part in batch.parts:
            if self._is_current(part):
                try:
                    self._settle_part(part, failed, refused)
                except Exception as error:  # noqa: BLE001 -- see `WindowListeners`
                    self._part_failed(part, error)
        if outcomes is not None:
            counts = (
                self.counts
                if batch.priority == REAL_TIME
                else self.bulk_queues[BULK_PRIORITIES.index(batch.priority)].counts
            )
            counts.outcomes = sum_outcomes(counts.outcomes, outcomes)

    def _settle_part(self, part: Part, failed: frozenset[int], refused: set[int]) -> None:
        """Settle what a batch took from one source, except the indexes that `failed`; `refused` are ids of items."""
        source, places, items = part.source, part.places, part.items
        if failed:
            again = [i for i in range(len(items)) if part.start + i in failed]
            fine = [i for i in range(len(items)) if part.start + i not in failed]
            self._requeue(source, [places[i] for i in again], [items[i] for i in again])
            places, items = [places[i] for i in fine], [items[i] for i in fine]
        lost = {at for at, item in enumerate(items) if id(item) in refused} if refused else set()
        if isinstance(source, BulkQueue):
            source.settle(places, items)
            if lost:
                self.refused_bulk += [RefusedReference(source.priority, items[at][7], items[at][3]) for at in lost]
            return
        if lost:
            source.settle_refused([places[at] for at in lost], [items[at] for at in lost])
            places = [place for at, place in enumerate(places) if at not in lost]
            items = [item for at, item in enumerate(items) if at not in lost]
        source.settle(places, items)
        self.counts.acknowledged += len(items)

    def release(self, batch: LeasedBatch) -> None:
        """Requeue a batch unsettled; idempotent."""
        if batch.id not in self.leases.batches:
            return
        self.leases.end(batch)
        for part in batch.parts:
            if self._is_current(part):
                try:
                    self._requeue(part.source, part.places, part.items)
                except Exception as error:  # noqa: BLE001 -- see `WindowListeners`
                    self._part_failed(part, error)

    def expire(self, now_ms: int) -> int:
        """Release the batches whose lease is over; returns how many."""
        expired = self.leases.expired(now_ms)
        for batch in expired:
            self.release(batch)
        for window in list(self.windows.values()):
            try:
                window.trim()
            except Exception as error:  # noqa: BLE001 -- see `WindowListeners`
                self.window_failed(window, error)
        return len(expired)

    def drop_idle_windows(self, now_ms: int) -> None:
        """Reset the windows when nobody fetched for IDLE_MS and nothing is under lease."""
        if self._last_fetch_ms is None or self.leases.batches or now_ms - self._last_fetch_ms < IDLE_MS:
            return
        self._last_fetch_ms = None
        if self.budget.discard:
            return
        for window in self.windows.values():
            if not window.unrecorded_gaps():
                window.reset()

    def _is_current(self, part: Part) -> bool:
        """Whether the window of the part still is the one of its partition."""
        return isinstance(part.source, BulkQueue) or self.windows.get(part.source.partition) is part.source

    def _requeue(self, source: Window | BulkQueue, places: Sequence[int], items: Iterable[Item]) -> None:
        self.counts.redelivered += source.requeue(places, items)

    # ---------------------------------------------------------------- queries

    def not_fetched_for(self, duration_ms: int, now_ms: int) -> bool:
        """Whether the owner has begun no fetch for longer than `duration_ms`."""
        return self._last_fetch_ms is None or now_ms - self._last_fetch_ms > duration_ms

    def waited_for(self, duration_ms: int, wall_ms: int) -> bool:
        """Whether some change that may be served now was made longer ago than `duration_ms`."""
        ready = self._ready_windows(self.windows.values(), None)
        return any(
            oldest_ms is not None and wall_ms - oldest_ms > duration_ms
            for oldest_ms in (window.oldest_waiting_ms() for window in ready)
        )

    def newest_owner_version(self) -> int:
        """The newest owner version in a partition's CURSOR entry; 0 for none."""
        return max([window.owner_version for window in self.windows.values()], default=0)

    def newest_command_version(self) -> int:
        """The newest cursor command that a partition has executed; 0 for none."""
        return max([window.state.command_version for window in self.windows.values()], default=0)

    def waiting_count(self) -> int:
        """References that wait in memory, in windows that serve."""
        version = self.owner_version
        return sum(w.waiting_count for w in self.windows.values() if w.owner_version == version)

    def in_flight_count(self) -> int:
        """References under lease, in real time."""
        return sum(w.in_flight_count for w in self.windows.values())

    def incomplete_windows(self) -> list[Window]:
        """Windows whose waiting changes are not all in memory."""
        return [window for window in self.windows.values() if not window.contiguous]

    @property
    def may_have_more(self) -> bool:
        """Whether changes may wait that are not in memory, and would be served once they are: what the owner may have
        is being written, or read."""
        return not self.serving_suspended and (self.owner_pending() or bool(self.incomplete_windows()))

    def ledger(self) -> Ledger:
        """Sum over all windows of this process's life; what waits and is in flight is of the current ones."""
        total = Ledger()
        for ledger in (self.past_ledger, *(window.ledger for window in self.windows.values())):
            total.add(ledger)
        return total

    def oldest_ms(self) -> int | None:
        """The leader's wall clock of the oldest change in memory that is not acknowledged; None for none."""
        times = [
            part.items[0][7]
            for batch in self.leases.batches.values()
            if batch.priority == REAL_TIME
            for part in batch.parts
        ]
        times += [t for w in self.windows.values() if (t := w.oldest_waiting_ms()) is not None]
        return min(times, default=None)

"""One source queue of a node: windows of all partitions that it leads, batches under lease, cursors (pure).

Deciding only: `now_ms` comes in, nothing is awaited, read or logged here; `queues.service` runs what this says.

    waiting   -> away           taken into a batch, under a lease
    away      -> acknowledged   the sink said so in its next fetch; the cursor moves over the settled prefix
    away      -> waiting        lease over, refused by the sink, or the sink no longer holds the batch
    away      -> settled        its key has a newer change with a place of its own, or that came from the sink
    waiting   -> settled        found to have vanished when it was read

Real time comes first, strictly: a batch of a lower priority (`queues.bulk_queue`) is made only while no partition has
anything to give in real time, whether in memory or still in the change index. What comes in real time must not wait
behind such a batch either: while changes come it is small, the next follows after a rest, and a sink's process holds
one of them at a time, so that its other fetches wait for what comes.

Who may fetch is decided by CURSOR entries once they are applied (`decided`): a window serves only under the queue's
current owner version, and acknowledgements of an older one count nothing (docs/protocol.md R-OWNER).

What a source queue's machine tells of itself: what waits, what is under lease, its ledger, how old it is (pure).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from isthmus.queues.bulk_queue import BulkQueue
from isthmus.queues.cursor_decisions import PublishingSuspended, needs_no_new_window, wanted_state
from isthmus.queues.cursors import NO_OWNER, CursorPosition, CursorState
from isthmus.queues.filters import Filter
from isthmus.queues.leases import Counts, LeasedBatch, Leases, Part, Session, sum_outcomes
from isthmus.queues.pacing import BatchPacing
from isthmus.queues.window import Window
from isthmus.queues.window_rules import LOWER, REAL_TIME, Budget, Item, Ledger
from isthmus.repl.model.entry import Entry


class Reckoning:
    """The machine of one queue as those see it who show it."""

    windows: dict[int, Window]
    leases: Leases
    past: Ledger
    """Of leaderships that have ended."""
    owner_version: int
    _heard_ms: int | None

    @property
    def heard_lately(self) -> bool:
        """The owner has fetched within QUIET_MS."""
        return self._heard_ms is not None

    def unheard(self, now_ms: int, patience_ms: int) -> bool:
        """The owner has not begun a fetch for longer than `patience_ms`."""
        return self._heard_ms is None or now_ms - self._heard_ms > patience_ms

    def version_of_windows(self) -> int:
        """The newest owner version under which a partition stands; 0: none does."""
        return max([window.owner_version for window in self.windows.values()], default=0)

    def decree_of_windows(self) -> int:
        """The newest decree that a partition has obeyed; 0: none has any."""
        return max([window.state.decree for window in self.windows.values()], default=0)

    def waiting_count(self) -> int:
        """References that wait in memory, of windows that serve."""
        version = self.owner_version
        return sum(w.waiting_count for w in self.windows.values() if w.owner_version == version)

    def in_flight_count(self) -> int:
        """References under lease."""
        return sum(w.away_count for w in self.windows.values())

    def unknown(self) -> list[Window]:
        """Windows whose waiting changes are not all in memory."""
        return [window for window in self.windows.values() if not window.contiguous]

    def ledger(self) -> Ledger:
        """Of all partitions led here, now and before; what waits and is under lease is of those led now."""
        total = Ledger()
        for ledger in (self.past, *(window.ledger for window in self.windows.values())):
            total.add(ledger)
        return total

    def oldest_ms(self) -> int | None:
        """The leader's wall clock of the oldest change in memory that is not acknowledged; None when there is
        none."""
        times = [
            part.items[0][7]
            for batch in self.leases.batches.values()
            if batch.priority == REAL_TIME
            for part in batch.parts
        ]
        times += [t for w in self.windows.values() if (t := w.oldest_waiting_ms()) is not None]
        return min(times, default=None)


TURN_MIN: Final = 16
"""Fewest references that one partition gives at its turn: below it a turn costs more than it shares."""

LOWER_COUNT: Final = 64
"""Most references of a lower priority in one batch while changes come in real time: reading and storing them holds up
each side's loop for about a millisecond."""

LOWER_EVERY_MS: Final = 16
"""Least time from one such batch to the next, less after a batch that was asked to be smaller: so a queue gives 4,000
references a second beside real time, and both sides are mostly free for what comes."""

QUIET_MS: Final = 60_000
"""A queue from which nobody fetched for so long lets go of its windows: a sink that is away for days costs no
memory."""


TYPES_HEARD_MS: Final = 60_000
"""How long counts what a node of the sink's cluster said of its bucket types: longer than any pause between its
fetches, so that one node that does not know a new type yet does not hold it back for those that do."""

TYPES_HEARD_MAX: Final = 64
"""Nodes of the sink's cluster whose bucket types are remembered, the newest."""

_NONE: Final[frozenset[bytes]] = frozenset()


class SourceQueue(Reckoning):
    """The machine of one queue; see the module's text. `filter_` None offers everything; `batch_prefix` see
    `queues.leases.Leases`."""

    def __init__(
        self,
        name: str,
        own: bytes,
        cascade: bool,
        lease_ms: int,
        budget: Budget,
        batch_prefix: bytes,
        filter_: Filter | None = None,
    ) -> None:
        self.name = name
        self.budget = budget
        self.counts = Counts()
        self.on_damaged: Callable[[int, int | None], None] = lambda _partition, _segment: None
        """Called, from any thread, with the partition and segment of a key row that is damaged, None for a change
        row."""
        self.windows: dict[int, Window] = {}
        self._undecided: dict[int, int] = {}
        """Partition -> how many CURSOR entries were appended in this leadership, and are not applied."""
        self.leases = Leases(batch_prefix, lease_ms)
        self.lower = tuple(BulkQueue(priority, own, budget.reference_limit) for priority in LOWER)
        """Full-sync, fold."""
        self.past = Ledger()
        """Of leaderships that have ended."""
        self.suspended = False
        """Serving is."""
        self.stopped: PublishingSuspended | None = None
        """Publishing is suspended."""
        self.owner = NO_OWNER
        self.owner_version = 0
        self._own = own
        self.blocked = False
        """Nothing is offered in real time."""
        self._take_offer(filter_, cascade)
        self._turn = 0
        self._heard_ms: int | None = None
        self._pace = BatchPacing()
        self._lower_from_ms = 0
        """Earliest time of the next batch of a lower priority."""
        self.missing: list[tuple[int, list[int]]] = []
        """(lower priority, when they were queued) of references whose objects the sink refused and keeps nothing of; on
        record soon (`queues.bulk_marks`)."""
        self._types: dict[str, tuple[frozenset[bytes] | None, int]] = {}
        """Node of the sink's cluster -> bucket types that it knows (None: it does not tell), and when it said so."""
        self.types: frozenset[bytes] | None = None
        """Bucket types that the sink's cluster has, as far as any node of it knows; None: one does not tell. What is
        led here of others is held back, and nothing new of them is taken in at lower priorities."""
        self._lacking: dict[str, frozenset[bytes]] = {}
        """Node -> bucket types that it lacks and others have."""
        self.journal: Callable[[Window, Sequence[Entry]], None] | None = None
        """Told of what is added, while somebody counts (`queues.backlog_count`)."""

    def offers(self, bucket_type: bytes, bucket: bytes) -> bool:
        """Whether its filter lets changes of this bucket through."""
        return self._offers is None or self._offers(bucket_type, bucket)

    def _take_offer(self, filter_: Filter | None, cascade: bool) -> None:
        self._cascade = cascade
        self._offers = None if filter_ is None or filter_.everything else filter_.offers
        self.blocked = filter_ is not None and filter_.blocks

    def change_offer(self, filter_: Filter | None, cascade: bool) -> None:
        """Other changes are offered from now on, from each cursor on. What waits is found anew in the change index;
        what is under lease comes again, where it is offered still."""
        self._take_offer(filter_, cascade)
        for window in list(self.windows.values()):
            position = CursorPosition(window.base, window.state, window.advance())
            self.lead(window.partition, window.bucket_type, position, window.applied)

    # ---------------------------------------------------------------- leadership, owner, cursors

    def lead(self, partition: int, bucket_type: bytes, position: CursorPosition, applied: int) -> None:
        """This node leads `partition`, whose entries below `applied` are in the store, and the queue stands at
        `position`."""
        self._end_window(partition)
        window = Window(partition, bucket_type, position, applied, self._cascade, self._own, self.budget, self._offers)
        heard = self._heard_ms is not None and window.owner_version == self.owner_version > 0
        # A queue that gives up what is too much must know how much there is, whoever fetches.
        window.tracking = heard or self.budget.discard
        window.on_damaged = partial(self.on_damaged, partition)
        self.windows[partition] = window
        if self._types:
            self._judge_types()

    def unlead(self, partition: int) -> None:
        """The partition is led elsewhere now: its references go; what was sent of them is settled there."""
        self._undecided.pop(partition, None)
        self._end_window(partition)

    def _end_window(self, partition: int) -> None:
        window = self.windows.pop(partition, None)
        if window is not None:
            window.forget()
            self.past.inherit(window.ledger)

    def deciding(self, partition: int) -> None:
        """A CURSOR entry of this queue is appended: see `undecided`."""
        self._undecided[partition] = self._undecided.get(partition, 0) + 1

    def not_decided(self, partition: int) -> None:
        """It was refused, or is applied."""
        left = self._undecided.pop(partition, 0) - 1
        if left > 0:
            self._undecided[partition] = left

    def undecided(self, partition: int) -> bool:
        """Whether some CURSOR entry is appended, or may be, and is not applied: where the queue stands is not known to
        whom appends behind it."""
        return partition in self._undecided

    def decided(self, partition: int, bucket_type: bytes, base: int, state: CursorState) -> None:
        """A CURSOR entry of this queue at offset `base` was applied, all entries before it were told."""
        self.not_decided(partition)
        window = self.windows.get(partition)
        if window is not None and needs_no_new_window(window, state):
            window.recorded(base, state)
            return
        self.lead(partition, bucket_type, CursorPosition(base, state, state.cursor), base + 1)

    def set_owner(self, cluster: bytes, version: int) -> None:
        """The metastore says that `cluster` may fetch under `version`; windows follow when their CURSOR entries
        apply."""
        if (cluster, version) != (self.owner, self.owner_version):
            self.owner, self.owner_version = cluster, version
            self._heard_ms = None
            self._types.clear()
            self._judge_types()
            for batch in list(self.leases.batches.values()):
                self.release(batch)

    def unclaimed(self, wall_ms: int) -> list[tuple[int, CursorState]]:
        """(partition, state for a CURSOR entry) of windows for which something was decided that no entry says yet."""
        wanted = []
        for partition, window in self.windows.items():
            state = wanted_state(window, self.owner, self.owner_version, self.stopped, wall_ms)
            if state is not None:
                wanted.append((partition, state))
        return wanted

    def soft_positions(self, only: int | None = None) -> list[tuple[int, int, int]]:
        """(partition, base, cursor) of every cursor that moved since the last call; of one partition or of all."""
        moved = []
        for partition, window in self.windows.items():
            cursor = window.advance()
            if cursor > window.saved and (only is None or only == partition):
                window.saved = cursor
                moved.append((partition, window.base, cursor))
        return moved

    # ---------------------------------------------------------------- what is applied

    def add(self, partition: int, entries: Sequence[Entry], now_ms: int) -> None:
        """Entries applied at the leader, in offset order; none of them a CURSOR entry of this queue."""
        window = self.windows.get(partition)
        if window is None:
            return
        window.add(entries)
        if self.journal is not None:
            self.journal(window, entries)
        self._pace.arrived(len(entries), now_ms)

    def refills(self) -> list[tuple[Window, int, int]]:
        """(window, from offset, rows) of every read of the change index to begin now; the result goes to
        `Window.refilled`."""
        if self.budget.references >= self.budget.reference_limit:
            for window in self.windows.values():
                window.advance()  # places whose keys were settled otherwise make room
        return [
            (window, window.refill_started(), rows)
            for window in self.windows.values()
            if window.scan != window.applied and (rows := window.wanted())
        ]

    # ---------------------------------------------------------------- fetches

    def on_fetch(self, session: Session, holding: Collection[bytes] | None, now_ms: int) -> None:
        """A fetch of the owner came in. Batches that its process no longer holds come back at once: those of an
        earlier incarnation of the same node, and those of the same link that are not in `holding` (None: not
        told)."""
        if self._heard_ms is None:
            for window in self.windows.values():
                window.tracking = window.tracking or window.owner_version == self.owner_version
        self._heard_ms = now_ms
        for batch in self.leases.lost(session, holding):
            self.release(batch)

    def has_types(self, node: str, types: frozenset[bytes] | None, now_ms: int) -> None:
        """A node of the sink's cluster says which bucket types there are (None: it does not say). Changes of a type
        that no node of it knows are held back until one does (docs/protocol.md R-TYPE)."""
        before = self._types.pop(node, None)
        self._types[node] = (types, now_ms)
        old = [name for name, (_, heard_ms) in self._types.items() if now_ms - heard_ms > TYPES_HEARD_MS]
        for name in old or list(self._types)[: max(0, len(self._types) - TYPES_HEARD_MAX)]:
            del self._types[name]
        if old or before is None or before[0] != types:
            self._judge_types()

    def _judge_types(self) -> None:
        """Hold back the windows of bucket types that the sink's cluster lacks, let the others go on."""
        told = [types for types, _ in self._types.values() if types is not None]
        self.types = frozenset[bytes]().union(*told) if told and len(told) == len(self._types) else None
        known = _NONE.union(*told)
        self._lacking = {
            node: lacking
            for node, (types, _) in self._types.items()
            if types is not None and (lacking := known - types)
        }
        for window in self.windows.values():
            if window.barred != self.bars(window.bucket_type):
                window.bar(not window.barred)

    def bars(self, bucket_type: bytes) -> bool:
        """Whether changes of this bucket type are held back: the sink's cluster lacks it."""
        return self.types is not None and bucket_type not in self.types

    def held_back(self) -> dict[bytes, int]:
        """Bucket type that the sink's cluster lacks -> when the oldest change of it that waits was made."""
        found: dict[bytes, int] = {}
        for window in self.windows.values():
            since_ms = window.oldest_waiting_ms() if window.barred else None
            if since_ms is not None:
                found[window.bucket_type] = min(since_ms, found.get(window.bucket_type, since_ms))
        for lower in self.lower:
            for name, since_ms in lower.parked().items():
                found[name] = min(since_ms, found.get(name, since_ms))
        return found

    def due_in_ms(self, now_ms: int, session: Session | None = None) -> int | None:
        """In how many ms a waiting fetch, of `session` if that is told, should be answered; None when there is nothing
        to give."""
        if not self._may_give():
            return None
        waiting = self._ready_count(session)
        if waiting:
            return self._pace.wait_ms(waiting, now_ms, idle=not self.leases.batches)
        if self._lower_turn() is None or (session is not None and self._has_its_share(session, now_ms)):
            return None
        return max(0, self._lower_from_ms - now_ms)

    def may_have(self, session: Session, now_ms: int) -> bool:
        """Whether what waits may go to this session."""
        if not self._lacking:
            return not self._has_its_share(session, now_ms) or self._ready_count() > 0
        if self._ready_count(session):
            return True
        return not self._has_its_share(session, now_ms) and self._lower_turn() is not None

    def _ready_count(self, session: Session | None = None) -> int:
        version = self.owner_version
        lacking = self._lacking.get(session.node, _NONE) if session is not None and self._lacking else _NONE
        if lacking:
            windows = [w for w in self.windows.values() if w.bucket_type not in lacking]
            return sum([w.ready_count for w in windows if w.owner_version == version])
        return sum([w.ready_count for w in self.windows.values() if w.owner_version == version])

    def _has_its_share(self, session: Session, now_ms: int) -> bool:
        """Its process holds what it may of lower priorities."""
        return self._pace.alive(now_ms) and any(
            batch.priority != REAL_TIME and batch.session[:3] == session[:3] for batch in self.leases.batches.values()
        )

    def owner_is_new(self) -> bool:
        """Some partition does not stand under the owner's version yet."""
        version = self.owner_version
        return any(window.owner_version != version for window in self.windows.values())

    def _may_give(self) -> bool:
        return not self.suspended and self.leases.room()

    def _lower_turn(self) -> BulkQueue | None:
        """The lower priority whose turn it is: the first that has something, once real time has nothing."""
        if not self.owner_version:
            return None
        found = next((lower for lower in self.lower if lower.waiting_count and lower.ready(self.types)), None)
        if found is None:
            return None
        for window in self.windows.values():
            may_give = window.owner_version == self.owner_version and not window.barred
            if may_give and (window.waiting_count or (window.tracking and not window.contiguous)):
                return None
        return found

    def take(self, session: Session, max_count: int, max_bytes: int, now_ms: int) -> LeasedBatch | None:
        """The next batch, fair among partitions (each at its turn gives an equal share), or None."""
        if not self._may_give():
            return None
        order = list(self.windows.values())
        self._turn = self._turn + 1 if self._turn + 1 < len(order) else 0
        order = order[self._turn :] + order[: self._turn]
        lacking = self._lacking.get(session.node, _NONE)
        ready = [
            w for w in order if w.ready_count and w.owner_version == self.owner_version and w.bucket_type not in lacking
        ]
        parts: list[Part] = []
        count = size = 0
        while ready and count < max_count:
            share = max(TURN_MIN, -(-(max_count - count) // len(ready)))
            more: list[Window] = []
            for window in ready:
                places, items, took = window.take(min(share, max_count - count), max_bytes - size, not parts)
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
            lower = self._lower_turn()
            if lower is None or self._has_its_share(session, now_ms) or now_ms < self._lower_from_ms:
                return None
            priority, count = lower.priority, max_count
            if self._pace.alive(now_ms):
                count = min(count, LOWER_COUNT)
                self._lower_from_ms = now_ms + LOWER_EVERY_MS * count // LOWER_COUNT
            parts = [Part(lower, 0, *lower.take(count, self.types))]
        if not any(window.ready_count for window in order):
            self._pace.emptied()
        return self.leases.open(session, self.owner_version, parts, size, priority, now_ms)

    def caught_up(self, batch: LeasedBatch, ends: Mapping[int, int]) -> bool:
        """Whether its windows have heard of all below `ends`, by partition; so has a batch without a lease."""
        return batch.id not in self.leases.batches or all(
            part.window.applied >= ends[part.window.partition]
            for part in batch.parts
            if isinstance(part.window, Window) and self._current(part)
        )

    def settle(self, batch: LeasedBatch, resolved: Sequence[Item | None]) -> bool:
        """The batch's references were read from the store: `resolved` are its first items, whole, or None for one
        that vanished; those beyond did not fit and wait again. False when nothing is left to send."""
        if batch.id not in self.leases.batches:
            return False
        parts: list[Part] = []
        size = start = 0
        for part in batch.parts:
            if not self._current(part):
                continue
            read = resolved[part.start : part.start + len(part.items)]
            places, items = [], []
            gone_places, gone_items = [], []
            fetched = part.window.fetched if isinstance(part.window, Window) and part.window.overtaken else None
            for place, before, found in zip(part.places, part.items, read, strict=False):
                item = found
                if fetched is not None and found is not None:
                    item = fetched(place, found)
                    if item is None:
                        continue
                if item is None:
                    gone_places.append(place)
                    gone_items.append(before)
                else:
                    places.append(place)
                    items.append(item)
                    size += len(item[8])
            part.window.give_back(part.places[len(read) :], part.items[len(read) :])
            if isinstance(part.window, BulkQueue):
                part.window.done(gone_places, vanished=True)
            else:
                part.window.done(gone_places, gone_items, vanished=True)
            if items:
                parts.append(Part(part.window, start, places, items))
                start += len(items)
        self.leases.resize(batch, parts, size)
        if not parts:
            self.leases.end(batch)
        return bool(parts)

    def rest_lower(self, until_ms: int) -> None:
        """No batch of a lower priority begins before: what waits there cannot be read."""
        self._lower_from_ms = until_ms

    def sent(self, batch: LeasedBatch) -> None:
        """The batch goes into an answer."""
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
        """The sink is done with a batch; `failed` are the indexes that must come again (None: all of them). `outcomes`:
        how many were applied, merged, superseded, rejected, if it tells. `given_up`: indexes of what it refused and
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
            if not self._current(part):
                continue
            places, items = part.places, part.items
            if failed:
                again = [i for i in range(len(items)) if part.start + i in failed]
                fine = [i for i in range(len(items)) if part.start + i not in failed]
                self._return(part.window, [places[i] for i in again], [items[i] for i in again])
                places, items = [places[i] for i in fine], [items[i] for i in fine]
            lost = {items_at for items_at, item in enumerate(items) if given_up and id(item) in refused}
            if isinstance(part.window, BulkQueue):
                part.window.done(places)
                if lost:
                    self.missing.append((part.window.priority, [items[at][7] for at in lost]))
                continue
            if lost:
                part.window.missing([places[at] for at in lost], [items[at] for at in lost])
                places = [place for at, place in enumerate(places) if at not in lost]
                items = [item for at, item in enumerate(items) if at not in lost]
            part.window.done(places, items)
            self.counts.acknowledged += len(items)
        if outcomes is not None:
            kept = self.counts if batch.priority == REAL_TIME else self.lower[LOWER.index(batch.priority)].counts
            kept.outcomes = sum_outcomes(kept.outcomes, outcomes)

    def release(self, batch: LeasedBatch) -> None:
        """The batch comes back unsettled, whole; nothing happens when it did before."""
        if batch.id not in self.leases.batches:
            return
        self.leases.end(batch)
        for part in batch.parts:
            if self._current(part):
                self._return(part.window, part.places, part.items)

    def expire(self, now_ms: int) -> int:
        """Batches whose lease is over come back; returns how many."""
        over = self.leases.over(now_ms)
        for batch in over:
            self.release(batch)
        for window in self.windows.values():
            window.slim()
        return len(over)

    def drop_idle_windows(self, now_ms: int) -> None:
        """Let go of the windows when nobody fetched for a long time and nothing is under lease."""
        if self._heard_ms is not None and not self.leases.batches and now_ms - self._heard_ms >= QUIET_MS:
            self._heard_ms = None
            if self.budget.discard:
                return
            for window in self.windows.values():
                if not window.unrecorded():
                    window.forget()

    def _current(self, part: Part) -> bool:
        return isinstance(part.window, BulkQueue) or self.windows.get(part.window.partition) is part.window

    def _return(self, window: Window | BulkQueue, places: Sequence[int], items: Iterable[Item]) -> None:
        self.counts.redelivered += window.give_back(places, items)

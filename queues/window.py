"""What goes into a queue's window over one partition: what is applied, and rows of the change index (pure).

The window stands over the offsets [cursor, scan): every change in there that may be offered is *waiting* here,
*away* (in a leased batch) or settled. `applied` is the first offset that is not applied; when scan == applied
the window is *contiguous* and takes in what is applied as it comes, else it is *stopped* (full, fresh, or just
woken) and takes rows of the change index until it has caught up. It never reads the store itself, looks at no clock
and does no I/O.

    (not tracking)     nobody fetches: only `applied` moves              -> track
    stopped            the shell reads rows from `scan` (`wanted`)       -> refilling
    refilling          rows under way; what is applied meanwhile is kept -> contiguous | stopped
    contiguous         takes in what is applied                          -> stopped when the budget is spent
    any of them                                                          -> forget (not tracking, at the cursor); rows
                                                                            under way count nothing, and end first

A queue that discards does not stop when the budget is spent: what comes then is given up.

A place is the offset under which a reference waits; its row is the offset of the change that it stands for now.
They differ once a key changed again while it waited: the reference keeps its old place and gets the current object,
and the newer row is passed over, so that a hot key is neither starved nor sent twice (docs/protocol.md R-PLACE). A
change of a key of which something is under lease has a place of its own, and is held back there
(`queues.in_flight_keys`).

What goes out of a queue's window over the changes of one partition: served, settled, given back (pure).

    waiting -> away      taken into a batch, unless something of its key is away
    away    -> settled   acknowledged, or found to have vanished; the cursor moves over the settled prefix
    away    -> settled   what was read for it is on its way otherwise, or came from the cluster that fetches
    away    -> waiting   given back; settled instead when a newer row of its key has a place of its own

What goes in, and what a place and a row are, stands in `queues.window`; the story goes on in `queues.source_queue`,
which shares fetches among windows.

What a queue that discards gives up when its budget is spent, as gaps for the next CURSOR entry (pure).

It is counted, remembered as a gap, and the cursor stays below the gap's start until that is in a CURSOR entry
(docs/protocol.md R-GAP). Who writes that one is `queues.service`; what is not given up stands in `queues.window`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from xxhash import xxh64_intdigest

from isthmus.queues.cursors import CursorPosition, CursorState
from isthmus.queues.gaps import Gaps, QueueGap, covered, with_gap
from isthmus.queues.in_flight_keys import InFlightKeys, PendingChange
from isthmus.queues.window_rules import BucketRule, Budget, Item, Ledger, OriginRule
from isthmus.repl.model.entry import CHANGES, Entry, EntryKind, row_says_tombstone
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.store.port import Change

ROOM_AGAIN: Final = 0.9
"""A queue that has begun to give up goes on with it until it is this full: one gap an overflow, not one a change."""

PENDING_GAPS_MAX: Final = 16
"""Gaps that wait for their CURSOR entry; beyond it the last one grows over what lies between."""

DISCARDED: Final = "discard"

REFUSED: Final = "refused"
"""What a gap is of changes that the sink refused for good and keeps no dead letter of."""

NOT_KEPT: Final = "the other cluster refused it for good, and its node has no room for more dead letters"


class Discards:
    """The part of a window that knows of gaps; `queues.window` is the rest."""

    __slots__ = (
        "_claimed_upto",
        "_given",
        "_giving",
        "_refused",
        "_skips",
        "base",
        "budget",
        "cursor",
        "ledger",
        "saved",
        "state",
    )

    def __init__(self, position: CursorPosition, budget: Budget) -> None:
        self.base = position.base
        self.state = position.state
        self.cursor = self.saved = position.cursor
        self.budget = budget
        self.ledger = Ledger()
        self._skips = tuple((g.start, g.end) for g in position.state.gaps if g.end > position.cursor)
        """Ranges of gaps in which nothing is offered."""
        self._given: list[QueueGap] = []
        """Given up at the limit and not yet in a CURSOR entry, rising."""
        self._claimed_upto = 0
        """Below it all of `_given` is in a CURSOR entry under way."""
        self._giving = False
        self._refused: Gaps = ()
        """Refused there for good, kept nowhere, and not yet in a CURSOR entry."""

    def _skipped(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._skips)

    def _give_up(self, entry: Entry) -> None:
        """The queue is full and discards: the change goes into a gap, unless there is room again."""
        budget = self.budget
        if self._giving and budget.references < budget.reference_limit * ROOM_AGAIN:
            self._giving = False
            return
        offset, time_ms, given = entry.offset, entry.time_ms, self._given
        grows = bool(given) and given[-1].end > self._claimed_upto
        if given and ((grows and self._giving) or len(given) >= PENDING_GAPS_MAX):
            last = given[-1]
            given[-1] = last._replace(
                end=offset + 1,
                from_ms=min(last.from_ms, time_ms),
                upto_ms=max(last.upto_ms, time_ms),
                left_out=last.left_out + 1 if grows else 1,
            )
        else:
            limit = budget.reference_limit
            start = given[-1].end if given and self._giving else offset
            given.append(QueueGap(start, offset + 1, time_ms, time_ms, 1, DISCARDED, "", f"{limit} references waited"))
        self._giving = True
        self.ledger.given_up += 1

    def _refuse(self, row: int, time_ms: int) -> None:
        """The change at `row` was served, and the sink neither stores nor keeps it: a gap."""
        self._refused = with_gap(self._refused, QueueGap(row, row + 1, time_ms, time_ms, 1, REFUSED, "", NOT_KEPT))

    def claim_gaps(self) -> tuple[QueueGap, ...]:
        """`unrecorded`, for a CURSOR entry: they grow no more, or it and the next would both count what they count."""
        if self._given:
            self._claimed_upto = self._given[-1].end
        return (*self._given, *self._refused)

    def unrecorded(self) -> tuple[QueueGap, ...]:
        """Gaps that no CURSOR entry has yet."""
        return (*self._given, *self._refused)

    def gave_up(self, offset: int) -> bool:
        """Whether the offset lies in a gap on record; below others the cursor stands."""
        return any(gap.start <= offset < gap.end for gap in self.state.gaps)

    def recorded(self, base: int, state: CursorState) -> None:
        """A CURSOR entry at `base` changed nothing but gaps of discarding, below which the cursor stands."""
        self.base, self.saved, self.state = base, state.cursor, state
        self._skips = tuple((g.start, g.end) for g in state.gaps if g.end > self.cursor)
        ends = [gap.end for gap in state.gaps]
        self._given = [gap for gap in self._given if not any(gap.end <= end for end in ends)]
        self._refused = tuple(gap for gap in self._refused if not covered(state.gaps, gap.start, gap.end))
        if not self._given:
            self._giving = False


REFILL_ROWS: Final = 1024
"""Rows of the change index read at once: about 1 ms of the read pool, two batches for a sink."""

HELD_ROWS: Final = 256
"""References in memory of a window whose bucket type the sink lacks, and rows of one read: enough to move the cursor
over what is not for the queue, and to know that something waits; the others wait in the change index alone."""

REFILL_BELOW: Final = 2048
"""A stopped window reads on when fewer references than this wait: enough to hide a read behind serving, little
memory."""

TAIL_MAX: Final = 4096
"""Changes kept while a read of rows is under way, without their objects; beyond it they are dropped and another
read follows."""

_DATA: Final = int(EntryKind.DATA)
_REAP: Final = int(EntryKind.REAP)
_OBJECT: Final = int(ReferenceKind.OBJECT)
_TO_FETCH: Final = int(ReferenceKind.TO_FETCH)
_LEAVING: Final = int(ReferenceKind.LEAVING)
_TOMBSTONE: Final = int(ReferenceKind.TOMBSTONE)


class Intake(Discards):
    """See the module's text. `scan`, `cursor` and `applied` are offsets; cursor <= scan <= applied."""

    __slots__ = (
        "_buckets", "_flight", "_fresh", "_goal", "_gone", "_held", "_moved", "_open", "_opened", "_passed",
        "_returned", "_settled", "_tail", "_waiting", "applied", "backfill_end", "barred", "bucket_type", "known",
        "on_damaged", "origins", "owner_version", "partition", "reading", "refilling", "scan", "since", "tracking",
        "unreadable",
    )  # fmt: skip

    def __init__(
        self,
        partition: int,
        bucket_type: bytes,
        position: CursorPosition,
        applied: int,
        cascade: bool,
        own: bytes,
        budget: Budget,
        offers: Callable[[bytes, bytes], bool] | None = None,
    ) -> None:
        """`offers(bucket type, bucket)` is the queue's filter; None offers everything."""
        super().__init__(position, budget)
        self.partition = partition
        self.bucket_type = bucket_type
        self.scan = position.cursor
        self.applied = max(applied, position.cursor)
        self.since = self.applied
        """From where on it has been told of everything."""
        self.backfill_end = position.base
        """Below it a row of foreign origin is offered, too, if a write of ours is in it (R-OWED): see `backfills`."""
        self.owner_version = position.state.owner_version
        self.origins = OriginRule(own, position.state.owner, cascade)
        self.on_damaged: Callable[[int | None], None] = lambda _segment: None
        """Called, from any thread, with the segment of a key row that is damaged, None where it is a change row."""
        self.known = False
        """The ledger has had its first look at what waited: the window has been contiguous once."""
        self.tracking = False
        self.barred = False
        """The cluster that fetches lacks the bucket type: nothing is given out or given up, few references are kept."""
        self.reading = False
        """A read of rows is under way, which may be of before the window was let go: then it counts nothing."""
        self.refilling = False
        self.unreadable = ""
        """Of the change row at `scan`, which cannot be decoded and is being mended: what is said of it."""
        self._buckets = None if offers is None else BucketRule(lambda bucket: offers(bucket_type, bucket))
        self._goal = 0
        self._tail: list[Entry] | None = []
        self._waiting: dict[int, Item] = {}
        self._fresh: deque[int] = deque()
        """Places never served, rising; one that is no longer in `_waiting` was dropped."""
        self._returned: list[int] = []
        """Heap of places that came back; all below every fresh place."""
        self._open: deque[int] = deque()
        """Places served at least once and not yet passed by the cursor, rising."""
        self._opened = -1
        """The greatest place ever in `_open`."""
        self._gone: set[int] = set()
        """Places in `_open` that are settled."""
        self._moved: dict[int, int] = {}
        """Row -> place, of waiting references whose row is not their place."""
        self._flight = InFlightKeys()
        """References in leased batches."""
        self._held: set[int] = set()
        """Places in `_waiting` that wait for one of them to land; those served past already are in `_open`."""
        self._passed: set[int] = set()
        """Rows at or above `scan` that were acknowledged from an old place, or replaced while rows are read: to be
        passed over when they are there."""
        self._settled: set[int] = set()
        """Rows below `scan` that were."""

    # ---------------------------------------------------------------- what is applied

    def add(self, entries: Sequence[Entry]) -> None:
        """Entries applied at the leader, in offset order, following on `applied`."""
        applied = entries[-1].offset + 1
        if entries[0].offset > self.applied:
            # It was not told of some: they are found in the index, by another read than one that is under way.
            self.applied = self.since = entries[0].offset
            self._tail = None
        if not self.tracking:
            self.applied = applied
            self.ledger.eligible += sum(map(self._offered, entries))
            return
        if self.scan == self.applied and not self.refilling:
            self.applied = applied
            if self._extend(entries):
                self.scan = applied
            return
        self.applied = applied
        tail, ledger = self._tail, self.ledger
        for entry in entries:
            if entry.previous_offset >= self.cursor and self._overtake(entry):
                continue
            ledger.eligible += self._offered(entry)
            if not self.refilling or tail is None:
                continue
            if entry.kind in CHANGES or entry.kind == _REAP:
                if len(tail) < TAIL_MAX:
                    tail.append(entry._replace(row=b"", payload=b"", wire=b""))
                else:
                    tail = self._tail = None

    def _offered(self, entry: Entry) -> bool:
        """True when the change, by itself, is one for this queue."""
        if entry.kind not in CHANGES:
            return False
        if not self.origins.eligible(entry.origin) or (
            self._buckets is not None and not self._buckets.offers(entry.bucket)
        ):
            self.ledger.passed_over += 1
            return False
        if self._skips and self._skipped(entry.offset):
            self.ledger.eligible += 1
            self.ledger.given_up += 1
            return False
        return True

    def wants(self, row: Change) -> bool:
        """True when a row of the change index is one for this queue."""
        return (
            row.kind in CHANGES
            and self.origins.eligible(row.origin)
            and (self._buckets is None or self._buckets.offers(row.bucket))
            and not (self._skips and self._skipped(row.offset))
        )

    def backfills(self, row: Change) -> bool:
        """True when a row of the change index, which is foreign, is one for this queue if a write of ours is in it: it
        was made before the CURSOR entry under which the window stands, so the cursor that it was judged by may have
        been moved back since, or have been another owner's."""
        rule = self.origins
        return (
            row.offset < self.backfill_end
            and row.origin != rule.owner
            and not rule.eligible(row.origin)
            and self.wants(row._replace(origin=rule.own))
        )

    def _extend(self, entries: Sequence[Entry], counted: bool = False) -> bool:
        """Take entries in at the end. False when the budget was spent: `scan` then stands at the first left out.
        `counted`: the ledger has them already."""
        budget, own, cursor = self.budget, self.origins.own, self.cursor
        waiting, fresh, plain = self._waiting, self._fresh, not self._skips and self._buckets is None
        eligible = 0
        for at, entry in enumerate(entries):
            if entry.previous_offset >= cursor and self._overtake(entry, counted):
                continue
            # The usual change first: ours, of a queue without filter and gaps.
            if not (plain and entry.kind == _DATA and entry.origin == own) and not (
                self._still_offered(entry) if counted else self._offered(entry)
            ):
                continue
            if counted and self._elsewhere(entry.offset):
                continue
            eligible += 1
            full = self._giving or budget.references >= budget.reference_limit
            if full or (self.barred and self._places() >= HELD_ROWS):
                if budget.discard and not self.barred:
                    self._give_up(entry)
                    if self._giving:
                        continue
                else:
                    self.scan = entry.offset
                    for later in entries[at + 1 :]:
                        if later.previous_offset < cursor or not self._overtake(later, counted):
                            eligible += not counted and self._offered(later)
                    self.ledger.eligible += 0 if counted else eligible
                    return False
            waiting[entry.offset] = self._item(entry)
            fresh.append(entry.offset)
            budget.references += 1
            if entry.previous_offset >= cursor and self._flight.follows(entry.offset):
                self._held.add(entry.offset)
        if not counted:
            self.ledger.eligible += eligible
        return True

    def _still_offered(self, entry: Entry) -> bool:
        """As `_offered`, of an entry that the ledger has already."""
        return (
            entry.kind in CHANGES
            and self.origins.eligible(entry.origin)
            and (self._buckets is None or self._buckets.offers(entry.bucket))
            and not self._skipped(entry.offset)
        )

    def _knows_all(self) -> None:
        """The window has become contiguous: what the ledger could not see is booked."""
        ledger, left = self.ledger, len(self._waiting) + len(self._flight)
        difference = ledger.left() - left
        if not self.known:
            self.known = True
            if difference < 0:
                ledger.found -= difference
                return
        if difference >= 0:
            ledger.collapsed_unseen += difference
        else:
            ledger.unbalanced -= difference
            ledger.found -= difference

    def _item(self, entry: Entry) -> Item:
        """The reference of an applied change: whole within the limits, a tombstone whole always, else to be read."""
        payload, budget = entry.payload, self.budget
        kind = _OBJECT
        if not payload:
            kind = _TO_FETCH if entry.kind == _DATA else _LEAVING
        elif row_says_tombstone(entry.row, entry.offset):
            kind = _TOMBSTONE if entry.kind == _DATA else _LEAVING
        elif len(payload) > budget.object_size_limit_bytes or budget.objects >= budget.object_limit:
            kind, payload = _TO_FETCH, b""
        else:
            budget.objects += 1
        offset, bucket, key, origin = entry.offset, entry.bucket, entry.key, entry.origin
        return (kind, self.partition, offset, self.bucket_type, bucket, key, origin, entry.time_ms, payload)

    def _overtake(self, entry: Entry, counted: bool = False) -> bool:
        """A newer change of a key that may be in the window. True when it needs no place of its own. `counted`: the
        ledger has it as eligible already, if it is.

        Should the newer change be foreign (and so perhaps not eligible by itself), the reference still goes: what it
        stood for was ours and has not gone out yet; only to the cluster that the newer change came from it need not.
        """
        previous = entry.previous_offset
        place = self._moved.get(previous, previous)
        item = self._waiting.get(place)
        origins, budget = self.origins, self.budget
        settled = entry.kind == _REAP or entry.origin == origins.owner
        if self._flight.rows:
            offered = origins.eligible(entry.origin) and not (self._skips and self._skipped(entry.offset))
            if self._flight.changed(entry, offered=offered, settled=settled):
                self._outdated(previous)
        if item is None or item[2] != previous:
            return False
        self._moved.pop(previous, None)
        self._outdated(previous)
        if item[0] == _OBJECT:
            budget.objects -= 1
        if settled:
            del self._waiting[place]
            self._held.discard(place)
            if place <= self._opened:
                self._gone.add(place)
            if entry.kind == _REAP:
                self.ledger.vanished += 1
            else:
                self.ledger.collapsed += 1
            return True
        self._waiting[place] = self._item(entry)
        self._moved[entry.offset] = place
        self.ledger.collapsed += 1
        self.ledger.eligible += not (counted and self._still_offered(entry))
        return True

    def _elsewhere(self, row: int) -> bool:
        """Whether what changed there goes, or went, in an older place."""
        return row in self._moved or row in self._flight or row in self._passed

    def _outdated(self, row: int) -> None:
        """A row that is not in the index any more: a read of it that is under way may still bring it."""
        if self.refilling and row >= self.scan:
            self._passed.add(row)

    # ---------------------------------------------------------------- rows of the change index

    def wanted(self) -> int:
        """How many rows from `scan` on the window would take now; 0 when none."""
        if not self.tracking or self.reading or self.scan == self.applied or len(self._fresh) >= REFILL_BELOW:
            return 0
        if self.barred and self._places() >= HELD_ROWS:
            return 0
        rows = HELD_ROWS if self.barred else REFILL_ROWS
        return rows if self.budget.references < self.budget.reference_limit else 0

    def _places(self) -> int:
        """Places in memory."""
        return len(self._fresh) + len(self._open)

    def refill_started(self) -> int:
        """A read of rows begins; returns the offset to read from."""
        self.reading = self.refilling = True
        self._goal, self._tail = self.applied, []
        return self.scan

    def refill_failed(self) -> None:
        """The read came to nothing; the window stays stopped."""
        self.reading = self.refilling = False
        self._tail = []

    def refill_waits(self, unreadable: str) -> None:
        """The first row of the read cannot be decoded: the window stays stopped below it, and nothing is read again
        until `refill_failed`."""
        self.refilling, self.unreadable = False, unreadable
        self._tail = []

    def refilled(self, rows: Sequence[Change], limit: int) -> None:
        """Rows read from `scan` on since `refill_started`, at most `limit`; fewer mean that there were no more.

        Rows that stand above what this window was told is applied are left for their own notice.
        """
        self.reading = False
        self.unreadable = ""
        if not self.refilling:
            return
        tail, self._tail, self.refilling = self._tail, [], False
        upto = self._goal if len(rows) < limit else self.scan
        if rows:
            upto = max(upto, rows[-1].offset + 1)
        upto = min(upto, self.applied)
        for row in rows:
            offset = row.offset
            if offset >= upto:
                break
            if not self.wants(row):
                continue
            if self._elsewhere(offset):
                continue
            if self._flight.follows(offset):
                self._held.add(offset)
            self._waiting[offset] = (
                _TO_FETCH if row.kind == _DATA else _LEAVING, self.partition, offset, self.bucket_type, row.bucket,
                row.key, row.origin, row.time_ms, b"",
            )  # fmt: skip
            self._fresh.append(offset)
            self.budget.references += 1
        self.scan = upto
        if self._passed:
            self._settled.update(row_offset for row_offset in self._passed if row_offset < upto)
            self._passed = {row_offset for row_offset in self._passed if row_offset >= upto}
        later = [entry for entry in tail or () if entry.offset >= upto]
        if tail is not None and upto >= self._goal:
            if self._extend(later, counted=True):
                self.scan = self.applied
                self._settled |= self._passed
                self._passed.clear()
        else:
            for entry in later:
                if entry.previous_offset >= self.cursor:
                    self._overtake(entry, counted=True)
        if self.contiguous:
            self._knows_all()

    @property
    def contiguous(self) -> bool:
        """True when the window knows every change that waits."""
        return self.tracking and self.scan == self.applied and not self.refilling


SETTLED_ROWS_MAX: Final = 1_024
"""Rows that were acknowledged from an old place, kept for `unexplained`, before those below the cursor are dropped."""


class Window(Intake):
    """See the module's text."""

    __slots__ = ()

    # ---------------------------------------------------------------- serving

    def take(self, count: int, limit_bytes: int, whatever_size: bool) -> tuple[list[int], list[Item], int]:
        """Up to `count` references in the order of their places, those that came back first: (places, items, payload
        bytes). Stops before `limit_bytes` is passed; with `whatever_size` a first one that is larger still goes."""
        places: list[int] = []
        items: list[Item] = []
        size = 0
        waiting, fresh, returned, budget = self._waiting, self._fresh, self._returned, self.budget
        held, rows = self._held, self._flight.rows
        while len(items) < count:
            if returned:
                place = returned[0]
            elif fresh:
                place = fresh[0]
            else:
                break
            item = waiting.get(place)
            if held and place in held:
                self._open.append(place)
                self._opened = fresh.popleft()
                continue
            if item is not None:
                length = len(item[8])
                if size + length > limit_bytes and (items or not whatever_size):
                    break
                size += length
                del waiting[place]
                row = item[2]
                rows[row] = None
                if row != place:
                    self._moved.pop(row, None)
                if item[0] == _OBJECT:
                    budget.objects -= 1
                places.append(place)
                items.append(item)
            if returned:
                heappop(returned)
                continue
            fresh.popleft()
            if item is None:
                budget.references -= 1
            else:
                self._open.append(place)
                self._opened = place
        return places, items, size

    def done(self, places: Sequence[int], items: Iterable[Item], *, vanished: bool = False) -> None:
        """The references of a batch are settled: acknowledged, or found to have vanished."""
        flight, scan, ledger = self._flight, self.scan, self.ledger
        for place, item in zip(places, items, strict=True):
            row = item[2]
            newer = flight.land(row)
            if newer is not None:
                self._let_go(newer)
            if row >= scan:
                self._passed.add(row)
            elif row != place:
                self._settled.add(row)
        if vanished:
            ledger.vanished += len(places)
        else:
            ledger.acknowledged += len(places)
        self._gone.update(places)
        if len(self._settled) > SETTLED_ROWS_MAX:
            self._settled = {row for row in self._settled if row >= self.cursor}
        if len(self._passed) > self.budget.reference_limit:
            ledger.found += len(self._passed)  # they will be offered once more, which changes nothing
            self._passed.clear()
        self.advance()

    def missing(self, places: Sequence[int], items: Sequence[Item]) -> None:
        """References of a batch are settled, and what they stood for is missing at the sink: it refused it for good and
        keeps nothing of it. The cursor stays below until a CURSOR entry says so."""
        for item in items:
            self._refuse(item[2], item[7])
        self.done(places, items)
        self.ledger.acknowledged -= len(places)
        self.ledger.given_up += len(places)

    def give_back(self, places: Sequence[int], items: Iterable[Item]) -> int:
        """References come back unsettled (lease over, refused, or not sent) and wait again in their old places; one
        whose key has a newer row with a place of its own is settled by that. Returns how many wait again."""
        budget, again = self.budget, 0
        for place, item in zip(places, items, strict=True):
            row = item[2]
            newer = self._flight.land(row)
            if newer is not None:
                self._outdated(row)
                if newer.offered or newer.settled:
                    self._overtaken(place, newer)
                    continue
                row = newer.row  # not for this queue by itself: this reference stands for it (R-OWED)
                item = (_TO_FETCH, item[1], row, *item[3:8], b"")
            if item[0] == _OBJECT:
                if budget.objects < budget.object_limit:
                    budget.objects += 1
                else:
                    item = (_TO_FETCH, *item[1:8], b"")
            self._waiting[place] = item
            if row != place:
                self._moved[row] = place
            heappush(self._returned, place)
            again += 1
        self.advance()
        return again

    def fetched(self, place: int, item: Item) -> Item | None:
        """A reference is whole, and the window was told of all that it may be: what to send now. None when it is
        settled by that: the cluster that fetches has this object, or it is to have nothing."""
        row = item[2]
        newer = self._flight.rows[row]
        if newer is None:
            return item
        found = xxh64_intdigest(item[8])
        if newer.settled or found in newer.theirs:
            self._flight.land(row)
            self._outdated(row)
            self._overtaken(place, newer)
            return None
        if newer.offered and found == newer.hash64 and self._pass_over(newer.row):
            self._flight.land(row)
            self._outdated(row)
            self._flight.rows[newer.row] = None
            return (item[0], item[1], newer.row, *item[3:])
        return item

    def _pass_over(self, row: int) -> bool:
        """The change at `row` goes in an older place of its key; False when it was given up by itself."""
        place = self._moved.get(row, row)
        item = self._waiting.get(place)
        if item is not None and item[2] == row:
            del self._waiting[place]
            self._moved.pop(row, None)
            self._held.discard(place)
            if item[0] == _OBJECT:
                self.budget.objects -= 1
            if place <= self._opened:
                self._gone.add(place)
        elif row < self.scan:
            return False
        self.ledger.collapsed += 1
        return True

    def _overtaken(self, place: int, newer: PendingChange) -> None:
        """A reference is settled by a newer change of its key."""
        self._gone.add(place)
        self.ledger.collapsed += 1
        self._let_go(newer)

    def _let_go(self, newer: PendingChange) -> None:
        """What was held back behind a reference that has landed may go."""
        place = self._moved.get(newer.row, newer.row)
        if place in self._held:
            self._held.remove(place)
            if place <= self._opened:
                heappush(self._returned, place)

    def advance(self) -> int:
        """Move the cursor over the settled prefix; returns it."""
        cursor = self._front()
        if self._given:
            cursor = min(cursor, self._given[0].start)
        if self._refused:
            cursor = max(self.cursor, min(cursor, self._refused[0].start))
        assert self.cursor <= cursor <= self.applied, (self.cursor, cursor, self.scan, self.applied)
        self.cursor = cursor
        return cursor

    def _front(self) -> int:
        """Where the settled prefix ends. What was given up and is on no record yet may hold the cursor below it."""
        opened, gone, fresh, waiting = self._open, self._gone, self._fresh, self._waiting
        before = len(opened) + len(fresh)
        while opened and opened[0] in gone:
            gone.remove(opened.popleft())
        if not opened:
            while fresh and fresh[0] not in waiting:
                fresh.popleft()
        self.budget.references -= before - len(opened) - len(fresh)
        return opened[0] if opened else fresh[0] if fresh else self.scan

    def forget(self) -> None:
        """Let go of everything in memory and stand at the cursor, not tracking. Batches of before no longer count."""
        cursor, budget, ledger = self.advance(), self.budget, self.ledger
        ledger.found += len(self._gone)  # acknowledged out of order: they are offered again
        ledger.given_up -= sum(gap.left_out for gap in self._given)
        ledger.given_up -= sum(gap.left_out for gap in self._refused)
        self._given, self._giving, self._refused = [], False, ()
        budget.references -= len(self._open) + len(self._fresh)
        budget.objects -= sum(1 for item in self._waiting.values() if item[0] == _OBJECT)
        self._waiting.clear()
        self._fresh.clear()
        self._returned.clear()
        self._open.clear()
        self._gone.clear()
        self._moved.clear()
        self._flight.clear()
        self._held.clear()
        self._passed.clear()
        self._settled.clear()
        self._opened = -1
        self.scan = cursor
        self.tracking = self.refilling = False
        self.unreadable = ""
        self._tail = []

    # ---------------------------------------------------------------- what is shown

    def close_ledger(self) -> int | None:
        """By how many changes the ledger does not close; None while the window does not know all that waits."""
        if not self.contiguous:
            return None
        if not self.known:
            self._knows_all()
        return self.ledger.left() - len(self._waiting) - len(self._flight)

    def unexplained(self, rows: Sequence[Change]) -> list[int]:
        """Of rows of the change index at or above the cursor, those that should wait or be under lease, and are not,
        nor are settled: lost, if they still are in the index when it is read again."""
        kept = {item[2] for item in self._waiting.values()}
        return [
            row.offset
            for row in self.unsettled(rows)
            if row.offset < self.scan and row.offset not in kept and row.offset not in self._flight
        ]

    def unsettled(self, rows: Sequence[Change]) -> list[Change]:
        """Of rows of the change index at or above the cursor, those that are offered and neither acknowledged nor given
        up."""
        front, given = self._front(), self._given
        gone = (self._gone, self._settled, self._passed)
        return [
            row
            for row in rows
            if row.offset >= front
            and self.wants(row)
            and not any(row.offset in settled for settled in gone)
            and not any(gap.start <= row.offset < gap.end for gap in given)
        ]

    def whereabouts(self, row: int) -> tuple[str, int | None]:
        """Where the reference stands whose row of the change index is at offset `row`: "waiting" (and how many wait
        before it), "in-flight", "acknowledged", "not-read" (it waits in the change index), or "" when it has none."""
        if row in self._flight:
            return "in-flight", None
        place = self._moved.get(row, row)
        item = self._waiting.get(place)
        if item is not None and item[2] == row:
            return "waiting", sum(other < place for other in self._waiting)
        if row < self._front() or any(row in settled for settled in (self._gone, self._settled, self._passed)):
            return "acknowledged", None
        return ("not-read", None) if row >= self.scan else ("", None)

    def offers(self, entry: Entry) -> bool:
        """True when the change, by itself, is one for this queue; the ledger is not told."""
        return self._still_offered(entry)

    def rows_ahead(self) -> set[int]:
        """Rows for which a reference stands in memory, or was acknowledged, though they may be above `scan`."""
        return {*self._moved, *self._flight.rows, *self._passed}

    @property
    def waiting_count(self) -> int:
        """References that wait in memory."""
        return len(self._waiting)

    @property
    def ready_count(self) -> int:
        """Those of them that may be taken now."""
        return 0 if self.barred else len(self._waiting) - len(self._held)

    def bar(self, barred: bool) -> None:
        """Give out nothing, or go on. What is in memory beyond HELD_ROWS goes back to the change index once nothing of
        it is under lease: see `slim`."""
        self.barred = barred
        self.slim()

    def slim(self) -> None:
        """Keep no more in memory than a window may whose bucket type the sink lacks."""
        if self.barred and self.tracking and not self._flight and not self._refused and self._places() > HELD_ROWS:
            self.forget()
            self.tracking = True

    @property
    def overtaken(self) -> bool:
        """Whether what is read for some reference under lease may be newer than that: see `fetched`."""
        return self._flight.overtaken

    @property
    def away_count(self) -> int:
        """References in leased batches."""
        return len(self._flight)

    def unacknowledged_count(self) -> int:
        """Keys in memory whose newest change is not acknowledged: one with a newer change that waits counts once."""
        overtaken = sum(newer is not None and newer.offered for newer in self._flight.rows.values())
        return len(self._waiting) + len(self._flight) - overtaken

    def first(self, count: int) -> list[Item]:
        """The next `count` references to be served, those that came back first."""
        found: list[Item] = []
        for place in (*sorted(self._returned), *self._fresh) if count > 0 else ():
            if place in self._waiting:
                found.append(self._waiting[place])
                if len(found) >= count:
                    break
        return found

    def oldest_waiting_ms(self) -> int | None:
        """The leader's wall clock when the change of the oldest waiting reference was made; None when none waits."""
        while self._returned and self._returned[0] not in self._waiting:
            heappop(self._returned)
        if self._returned:
            return self._waiting[self._returned[0]][7]
        for place in self._fresh:
            if place in self._waiting:
                return self._waiting[place][7]
        return None

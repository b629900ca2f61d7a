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

A queue that discards does not stop when the budget is spent: what comes then is given up (`queues.discards`).

A place is the offset under which a reference waits; its row is the offset of the change that it stands for now.
They differ once a key changed again while it waited: the reference keeps its old place and gets the current object,
and the newer row is passed over, so that a hot key is neither starved nor sent twice (docs/protocol.md R-PLACE). A
change of a key of which something is under lease has a place of its own, and is held back there (`queues.flight`).

What goes out of it stands in `queues.window`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from queues.cursors import Position
from queues.discards import Discards
from queues.flight import Flight
from queues.rules import BucketRule, Budget, Item, OriginRule
from repl.model.entry import CHANGES, Entry, EntryKind, row_says_tombstone
from repl.model.reference import ReferenceKind
from repl.store.port import Change

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
        position: Position,
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
        self._flight = Flight()
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

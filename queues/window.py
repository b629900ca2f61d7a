"""The window of a source queue over one partition: which changes wait, are in flight, or are settled (pure).

A window covers the offsets [cursor, scan). `applied` is the first offset that is not applied. The window never reads
the store, looks at no clock and does no I/O: its caller adds applied entries and delivers rows of the change index.

States of the intake:

    not tracking       nobody fetches: only `applied` moves                  -> start tracking
    stopped            the caller reads rows from `scan` on (`refill_count`) -> refilling
    refilling          rows are being read; what is applied is kept aside    -> contiguous | stopped
    contiguous         scan == applied: applied entries are added            -> stopped when the budget is spent
    any of them        `reset`                                               -> not tracking, scan at the cursor; the
                                                                                rows of a read under way are ignored

A queue with `overflow = "discard"` does not stop when the budget is spent: it discards further changes, counts them and
records them as a gap. The cursor stays below the start of the gap until a CURSOR entry contains it (docs/protocol.md
R-GAP).

States of a reference:

    waiting   -> in flight    taken into a batch, unless another reference of its key is in flight
    in flight -> settled      acknowledged, or its object has vanished; the cursor moves over the settled prefix
    in flight -> settled      its object cannot be read here, or the sink refused it and keeps nothing: it is a gap
    in flight -> settled      the object read for it is sent otherwise, or came from the cluster that fetches
    in flight -> waiting      requeued; settled instead when a newer change of its key has a place of its own

A *place* is the offset under which a reference waits; its *row* is the offset of the change that it stands for now.
They differ once the key changed again while the reference waited: the reference keeps its place and takes the newer
object, and the newer row is skipped, so that a hot key is neither starved nor sent twice (docs/protocol.md R-PLACE). A
change of a key that is in flight has a place of its own and is blocked there until the older reference is settled or
requeued (`queues.in_flight_keys`).

`queues.source_queue` shares fetches among windows; `queues.cursor_keeper` writes CURSOR entries.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

from isthmus.queues.cursors import CursorPosition, CursorState
from isthmus.queues.filters import Filter
from isthmus.queues.gaps import Gaps, QueueGap, covered, with_gap
from isthmus.queues.in_flight_keys import InFlightKeys, PendingChange
from isthmus.queues.sink_shares import KeyRange
from isthmus.queues.window_rules import BucketRule, Budget, Item, Ledger, OriginRule
from isthmus.repl.model.entry import CHANGES, Entry, EntryKind, row_is_tombstone
from isthmus.repl.model.ports import DamageListener
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.store.port import Change

DISCARD_DOWN_TO: Final = 0.9
"""A queue that has begun to discard goes on until less than this share of its limit is used: one gap per overflow, not
one per change."""

PENDING_GAPS_MAX: Final = 16
"""Gaps that wait for their CURSOR entry; beyond it the last one grows over what lies between."""

DISCARDED: Final = "discard"
"""`what` of a gap of changes that were discarded at the limit."""

REFUSED: Final = "refused"
"""`what` of a gap of changes that the sink refused permanently and keeps no dead letter of."""

REFUSED_REASON: Final = "the other cluster refused it for good, and its node has no room for more dead letters"

UNREADABLE: Final = "unreadable"
"""`what` of a gap of changes whose objects this node cannot read."""

REFILL_ROWS: Final = 1024
"""Rows of the change index read at once: about 1 ms of the read pool, two batches for a sink."""

HELD_BACK_ROWS: Final = 256
"""References in memory of a window that is held back, and rows of one read: enough to move the cursor over what is not
for the queue, and to know that something waits; the others wait in the change index only."""

REFILL_BELOW: Final = 2048
"""A stopped window reads on when fewer references than this wait: enough to hide a read behind serving, little
memory."""

TAIL_MAX: Final = 4096
"""Entries kept while rows are being read, without their objects; beyond it they are dropped and another read
follows."""

SETTLED_ROWS_MAX: Final = 1_024
"""Rows acknowledged from an older place that are remembered for `find_lost`; beyond it those below the cursor are
dropped."""

_DATA: Final = int(EntryKind.DATA)
_REAP: Final = int(EntryKind.REAP)
_OBJECT: Final = int(ReferenceKind.OBJECT)
_TO_FETCH: Final = int(ReferenceKind.TO_FETCH)
_LEAVING: Final = int(ReferenceKind.LEAVING)
_TOMBSTONE: Final = int(ReferenceKind.TOMBSTONE)


class QueueRules(NamedTuple):
    """What all windows of a queue have in common."""

    own: bytes
    """This cluster's uuid."""
    cascade: bool
    budget: Budget
    filter: Filter | None
    """None offers every bucket."""
    damage_listener: DamageListener
    """Gets damaged rows, from any thread."""


class Window:
    """The window of one queue over one partition; `cursor` <= `scan` <= `applied` are offsets."""

    __slots__ = (
        "_awaited_row", "_blocked", "_bucket_rule", "_claimed_end", "_discarding", "_fresh", "_in_flight",
        "_last_served", "_moved", "_pending_gaps", "_refill_goal", "_refused_gaps", "_returned", "_served",
        "_settled_places", "_settled_rows", "_skip_ranges", "_skip_rows", "_tail", "_undecoded_count", "_waiting",
        "applied", "backfill_end", "base", "begin", "bucket_type", "budget", "complete_from", "cursor",
        "damage_listener", "held_back", "key_range", "ledger", "ledger_started", "origins", "owner_version",
        "partition", "reading", "refilling", "saved", "scan", "state", "tracking", "unreadable", "waiting",
    )  # fmt: skip

    def __init__(
        self,
        partition: int,
        bucket_type: bytes,
        position: CursorPosition,
        applied: int,
        rules: QueueRules,
        key_range: KeyRange | None = None,
    ) -> None:
        """`key_range` None: not known."""
        self.partition = partition
        self.bucket_type = bucket_type
        self.key_range = key_range
        self.budget = rules.budget
        self.ledger = Ledger()
        self.base = position.base
        """Offset of the CURSOR entry under which the window is; `state` is its content."""
        self.state = position.state
        self.begin = position.cursor
        """What lies below it an earlier window has passed."""
        self.cursor = self.saved = position.cursor
        """`saved` is the newest cursor that was written as a soft cursor."""
        self.scan = position.cursor
        self.applied = max(applied, position.cursor)
        self.complete_from = self.applied
        """Every entry from this offset on was added here."""
        self.backfill_end = position.base
        """Below it a row of foreign origin is offered, too, if a write of ours is in it (R-OWED): see
        `may_backfill`."""
        self.owner_version = position.state.owner_version
        self.origins = OriginRule(rules.own, position.state.owner, rules.cascade)
        self.damage_listener = rules.damage_listener
        self.ledger_started = False
        """The window has been contiguous once, so the ledger has counted what waited at the start."""
        self.tracking = False
        self.held_back = False
        """The cluster that fetches lacks the bucket type: nothing is served or discarded, few references are kept."""
        self.reading = False
        """A read of rows is under way; its rows are ignored if it began before the last `reset`."""
        self.refilling = False
        self.unreadable = ""
        """Why the change row at `scan` cannot be decoded, while it is being repaired; else ""."""
        self._awaited_row = -1
        """The last change row whose repair was waited for."""
        self._undecoded_count = 0
        """Change rows passed over since the ledger last balanced: some of these changes may have been counted."""
        self._bucket_rule = None if rules.filter is None else BucketRule(rules.filter, bucket_type)
        self._skip_ranges = tuple((g.start, g.end) for g in position.state.gaps if g.end > position.cursor)
        """Ranges of gaps in which nothing is offered."""
        self._pending_gaps: list[QueueGap] = []
        """Gaps of discarded changes that no CURSOR entry has yet, by rising start."""
        self._claimed_end = 0
        """Pending gaps that end here or below are in a CURSOR entry under way."""
        self._discarding = False
        self._refused_gaps: Gaps = ()
        """Gaps of changes that the sink refused permanently, or whose objects cannot be read, which no CURSOR entry has
        yet."""
        self._refill_goal = 0
        """`applied` when the read under way began."""
        self._tail: list[Entry] | None = []
        """Entries applied while rows are being read; None when there were too many."""
        self._waiting: dict[int, Item] = {}
        self.waiting: Mapping[int, Item] = self._waiting
        """Place -> reference that waits. A queue asks all its windows several times for each group of changes: it
        passes over those where this is empty, without a call."""
        self._fresh: deque[int] = deque()
        """Places never served, rising; one that is no longer in `_waiting` was dropped."""
        self._returned: list[int] = []
        """Heap of requeued places; all below every fresh place."""
        self._served: deque[int] = deque()
        """Places served at least once that the cursor has not passed, rising."""
        self._last_served = -1
        """The greatest place that was ever in `_served`."""
        self._settled_places: set[int] = set()
        """Places in `_served` that are settled."""
        self._moved: dict[int, int] = {}
        """Row -> place, of waiting references whose row is not their place."""
        self._in_flight = InFlightKeys()
        self._blocked: set[int] = set()
        """Places in `_waiting` whose key is in flight; those that `take` has passed are in `_served`."""
        self._skip_rows: set[int] = set()
        """Rows at or above `scan` that were acknowledged from an older place, or replaced while rows are being read: a
        read skips them."""
        self._settled_rows: set[int] = set()
        """Rows below `scan` that were acknowledged from an older place."""

    # ---------------------------------------------------------------- applied entries

    def add(self, entries: Sequence[Entry]) -> None:
        """Add entries that the leader applied, in offset order, the first at `applied`."""
        applied = entries[-1].offset + 1
        if entries[0].offset > self.applied:
            # Entries in between were not added here: a read that begins from now on finds them in the index.
            self.applied = self.complete_from = entries[0].offset
            self._tail = None
        if not self.tracking:
            self.applied = applied
            self.ledger.eligible += sum(map(self._count_offered, entries))
            return
        if self.scan == self.applied and not self.refilling:
            self.applied = applied
            if self._append(entries):
                self.scan = applied
            return
        self.applied = applied
        tail, ledger = self._tail, self.ledger
        for entry in entries:
            if entry.previous_offset >= self.cursor and self._collapse(entry):
                continue
            ledger.eligible += self._count_offered(entry)
            if not self.refilling or tail is None:
                continue
            if entry.kind in CHANGES or entry.kind == _REAP:
                if len(tail) < TAIL_MAX:
                    tail.append(entry._replace(row=b"", payload=b"", wire=b""))
                else:
                    tail = self._tail = None

    def _append(self, entries: Sequence[Entry], counted: bool = False) -> bool:
        """Add entries at the end. Returns False when the budget was spent: `scan` is then the offset of the first entry
        that was not added. `counted`: the ledger has counted them already."""
        budget, own, cursor = self.budget, self.origins.own, self.cursor
        waiting, fresh, plain = self._waiting, self._fresh, not self._skip_ranges and self._bucket_rule is None
        eligible = 0
        for at, entry in enumerate(entries):
            if entry.previous_offset >= cursor and self._collapse(entry, counted):
                continue
            # Shortcut for the most frequent change: ours, in a queue without filter and gaps.
            if not (plain and entry.kind == _DATA and entry.origin == own) and not (
                self.offers(entry) if counted else self._count_offered(entry)
            ):
                continue
            if counted and self._has_older_place(entry.offset):
                continue
            eligible += 1
            full = self._discarding or budget.references >= budget.reference_limit
            if full or (self.held_back and self._place_count() >= HELD_BACK_ROWS):
                if budget.discard and not self.held_back:
                    self._discard(entry)
                    if self._discarding:
                        continue
                else:
                    self.scan = entry.offset
                    for later in entries[at + 1 :]:
                        if later.previous_offset < cursor or not self._collapse(later, counted):
                            eligible += not counted and self._count_offered(later)
                    self.ledger.eligible += 0 if counted else eligible
                    return False
            waiting[entry.offset] = self._reference(entry)
            fresh.append(entry.offset)
            budget.references += 1
            if entry.previous_offset >= cursor and self._in_flight.follows(entry.offset):
                self._blocked.add(entry.offset)
        if not counted:
            self.ledger.eligible += eligible
        return True

    def _reference(self, entry: Entry) -> Item:
        """The reference of an applied change: with its object within the limits and for tombstones, else to fetch."""
        payload, budget = entry.payload, self.budget
        kind = _OBJECT
        if not payload:
            kind = _TO_FETCH if entry.kind == _DATA else _LEAVING
        elif row_is_tombstone(entry.row, entry.offset):
            kind = _TOMBSTONE if entry.kind == _DATA else _LEAVING
        elif len(payload) > budget.object_size_limit_bytes or budget.objects >= budget.object_limit:
            kind, payload = _TO_FETCH, b""
        else:
            budget.objects += 1
        offset, bucket, key, origin = entry.offset, entry.bucket, entry.key, entry.origin
        return (kind, self.partition, offset, self.bucket_type, bucket, key, origin, entry.time_ms, payload)

    def _collapse(self, entry: Entry, counted: bool = False) -> bool:
        """Replace the waiting reference of a key by a newer change of the key. Returns True when the change needs no
        place of its own. `counted`: the ledger has counted the change already, if the queue offers it.

        The filter is not asked: it looks at bucket type and bucket, which are those of the waiting reference. A foreign
        origin does not matter either: the older change was offered and never sent, so the newer one is sent in its
        place, except to the cluster that the newer one came from.
        """
        previous = entry.previous_offset
        place = self._moved.get(previous, previous)
        item = self._waiting.get(place)
        origins, budget = self.origins, self.budget
        settled = entry.kind == _REAP or entry.origin == origins.owner
        if self._in_flight.rows:
            offered = origins.eligible(entry.origin) and not (self._skip_ranges and self._in_gap(entry.offset))
            if self._in_flight.changed(entry, offered=offered, settled=settled):
                self._skip_replaced(previous)
        if item is None or item[2] != previous:
            return False
        self._moved.pop(previous, None)
        self._skip_replaced(previous)
        if item[0] == _OBJECT:
            budget.objects -= 1
        if settled:
            del self._waiting[place]
            self._blocked.discard(place)
            if place <= self._last_served:
                self._settled_places.add(place)
            if entry.kind == _REAP:
                self.ledger.vanished += 1
            else:
                self.ledger.collapsed += 1
            return True
        self._waiting[place] = self._reference(entry)
        self._moved[entry.offset] = place
        self.ledger.collapsed += 1
        self.ledger.eligible += not (counted and self.offers(entry))
        return True

    def _has_older_place(self, row: int) -> bool:
        """Whether the change at `row` is, or was, sent from an older place of its key."""
        return row in self._moved or row in self._in_flight or row in self._skip_rows

    def _skip_replaced(self, row: int) -> None:
        """Skip a row that was replaced in the index, which a read under way may still return."""
        if self.refilling and row >= self.scan:
            self._skip_rows.add(row)

    # ---------------------------------------------------------------- what is offered

    @property
    def offers_some(self) -> bool:
        """Whether the filter includes any bucket of the partition's bucket type. Where it does not, nothing can be left
        out, so no gap begins: a full-sync that compares what is replicated would never close it (docs/protocol.md
        R-GAP)."""
        return self._bucket_rule is None or self._bucket_rule.includes_some

    def offers(self, entry: Entry) -> bool:
        """Whether the queue offers this change by its kind, origin, bucket and recorded gaps. Other changes of the key
        do not matter here: see `_collapse`."""
        return (
            entry.kind in CHANGES
            and self.origins.eligible(entry.origin)
            and (self._bucket_rule is None or self._bucket_rule.includes(entry.bucket))
            and not self._in_gap(entry.offset)
        )

    def offers_row(self, row: Change) -> bool:
        """`offers` for a row of the change index."""
        return (
            row.kind in CHANGES
            and self.origins.eligible(row.origin)
            and (self._bucket_rule is None or self._bucket_rule.includes(row.bucket))
            and not (self._skip_ranges and self._in_gap(row.offset))
        )

    def may_backfill(self, row: Change) -> bool:
        """Whether the queue must offer this foreign row if its clock has a write of this cluster (R-OWED).

        A push keeps its foreign origin if the cursors of all other clusters' queues are above the row that it replaces.
        For a row below the window's CURSOR entry, this was decided before that entry. The entry may have moved the
        cursor back or changed the owner, so the row's origin does not prove that this cluster's write was sent."""
        rule = self.origins
        return (
            row.offset < self.backfill_end
            and row.origin != rule.owner
            and not rule.eligible(row.origin)
            and self.offers_row(row._replace(origin=rule.own))
        )

    def _count_offered(self, entry: Entry) -> bool:
        """`offers`, and count in the ledger a change that is not offered: as `passed_over` by origin or filter, as
        `eligible` and `given_up` in a gap."""
        if entry.kind not in CHANGES:
            return False
        if not self.origins.eligible(entry.origin) or (
            self._bucket_rule is not None and not self._bucket_rule.includes(entry.bucket)
        ):
            self.ledger.passed_over += 1
            return False
        if self._skip_ranges and self._in_gap(entry.offset):
            self.ledger.eligible += 1
            self.ledger.given_up += 1
            return False
        return True

    def _in_gap(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._skip_ranges)

    # ---------------------------------------------------------------- gaps

    def _discard(self, entry: Entry) -> None:
        """Discard a change of a full queue into a gap, unless the queue has space again."""
        budget = self.budget
        if self._discarding and budget.references < budget.reference_limit * DISCARD_DOWN_TO:
            self._discarding = False
            return
        offset, time_ms, gaps = entry.offset, entry.time_ms, self._pending_gaps
        grows = bool(gaps) and gaps[-1].end > self._claimed_end
        if gaps and ((grows and self._discarding) or len(gaps) >= PENDING_GAPS_MAX):
            last = gaps[-1]
            gaps[-1] = last._replace(
                end=offset + 1,
                from_ms=min(last.from_ms, time_ms),
                upto_ms=max(last.upto_ms, time_ms),
                left_out=last.left_out + 1 if grows else 1,
            )
        else:
            limit = budget.reference_limit
            start = gaps[-1].end if gaps and self._discarding else offset
            gaps.append(QueueGap(start, offset + 1, time_ms, time_ms, 1, DISCARDED, "", f"{limit} references waited"))
        self._discarding = True
        self.ledger.given_up += 1

    def claim_gaps(self) -> tuple[QueueGap, ...]:
        """`unrecorded_gaps`, for a CURSOR entry. They grow no more: else this entry and the next would both count the
        same changes."""
        if self._pending_gaps:
            self._claimed_end = self._pending_gaps[-1].end
        return self.unrecorded_gaps()

    def unrecorded_gaps(self) -> tuple[QueueGap, ...]:
        """Gaps that no CURSOR entry has yet."""
        return (*self._pending_gaps, *self._refused_gaps)

    def in_recorded_gap(self, offset: int) -> bool:
        """Whether the offset lies in a gap of the last CURSOR entry. The cursor stays below all other gaps."""
        return any(gap.start <= offset < gap.end for gap in self.state.gaps)

    def gaps_recorded(self, base: int, state: CursorState) -> None:
        """A CURSOR entry at `base` was applied that changes nothing but gaps."""
        self.base, self.saved, self.state = base, state.cursor, state
        self._skip_ranges = tuple((g.start, g.end) for g in state.gaps if g.end > self.cursor)
        ends = [gap.end for gap in state.gaps]
        self._pending_gaps = [gap for gap in self._pending_gaps if not any(gap.end <= end for end in ends)]
        self._refused_gaps = tuple(gap for gap in self._refused_gaps if not covered(state.gaps, gap.start, gap.end))
        if not self._pending_gaps:
            self._discarding = False

    # ---------------------------------------------------------------- rows of the change index

    def refill_count(self) -> int:
        """How many rows from `scan` on are to be read now; 0 for none."""
        if not self.tracking or self.reading or self.scan == self.applied or len(self._fresh) >= REFILL_BELOW:
            return 0
        if self.held_back and self._place_count() >= HELD_BACK_ROWS:
            return 0
        rows = HELD_BACK_ROWS if self.held_back else REFILL_ROWS
        return rows if self.budget.references < self.budget.reference_limit else 0

    def _place_count(self) -> int:
        return len(self._fresh) + len(self._served)

    def begin_refill(self) -> int:
        """A read of rows begins; returns the offset to read from."""
        self.reading = self.refilling = True
        self._refill_goal, self._tail = self.applied, []
        return self.scan

    def fail_refill(self) -> None:
        """The read failed; the window stays stopped and may read again."""
        self.reading = self.refilling = False
        self._tail = []

    def block_refill(self, row: int, unreadable: str) -> None:
        """The first row of the read, at offset `row`, cannot be decoded: the window stays stopped below it while it is
        being repaired, and reads nothing until `fail_refill`."""
        self.refilling, self.unreadable, self._awaited_row = False, unreadable, row
        self._tail = []

    def waits_for_row(self, row: int) -> bool:
        """Whether the repair of a change row that cannot be decoded is to be waited for: once, and not in a gap."""
        return row != self._awaited_row and not self.passes_over(row)

    def passes_over(self, row: int) -> bool:
        """Whether the offset lies in a gap, recorded or not."""
        return self.in_recorded_gap(row) or any(gap.start <= row < gap.end for gap in self._refused_gaps)

    def pass_over_row(self, row: int, from_ms: int, upto_ms: int, reason: str) -> None:
        """The first row of the read, at offset `row`, cannot be decoded: it becomes a gap of its own, and the rows
        behind it are read next. Whether the queue offers its change is not known, so the gap counts none."""
        if not self.refilling:
            self.fail_refill()
            return
        if self.offers_some and not self.passes_over(row):
            gap = QueueGap(row, row + 1, from_ms, upto_ms, 0, UNREADABLE, "", reason)
            self._refused_gaps = with_gap(self._refused_gaps, gap)
        self._settled_rows.add(row)  # not lost, if it is repaired later
        self._undecoded_count += 1
        self._finish_refill((), row + 1)

    def finish_refill(self, rows: Sequence[Change], limit: int) -> None:
        """Add the rows read from `scan` on since `begin_refill`; fewer than `limit` mean that there were no more.

        Rows at or above `applied` are ignored: their entries are added by `add` later.
        """
        upto = self._refill_goal if len(rows) < limit else self.scan
        if rows:
            upto = max(upto, rows[-1].offset + 1)
        self._finish_refill(rows, upto)

    def _finish_refill(self, rows: Sequence[Change], upto: int) -> None:
        """Add the rows that were read; all below `upto` are among them."""
        self.reading = False
        self.unreadable = ""
        if not self.refilling:
            return
        tail, self._tail, self.refilling = self._tail, [], False
        upto = min(upto, self.applied)
        for row in rows:
            offset = row.offset
            if offset >= upto:
                break
            if not self.offers_row(row):
                continue
            if self._has_older_place(offset):
                continue
            if self._in_flight.follows(offset):
                self._blocked.add(offset)
            self._waiting[offset] = (
                _TO_FETCH if row.kind == _DATA else _LEAVING, self.partition, offset, self.bucket_type, row.bucket,
                row.key, row.origin, row.time_ms, b"",
            )  # fmt: skip
            self._fresh.append(offset)
            self.budget.references += 1
        self.scan = upto
        if self._skip_rows:
            self._settled_rows.update(row_offset for row_offset in self._skip_rows if row_offset < upto)
            self._skip_rows = {row_offset for row_offset in self._skip_rows if row_offset >= upto}
        later = [entry for entry in tail or () if entry.offset >= upto]
        if tail is not None and upto >= self._refill_goal:
            if self._append(later, counted=True):
                self.scan = self.applied
                self._settled_rows |= self._skip_rows
                self._skip_rows.clear()
        else:
            for entry in later:
                if entry.previous_offset >= self.cursor:
                    self._collapse(entry, counted=True)
        if self.contiguous:
            self._balance_ledger()

    @property
    def contiguous(self) -> bool:
        """Whether every change that waits is in memory."""
        return self.tracking and self.scan == self.applied and not self.refilling

    def _balance_ledger(self) -> None:
        """Count what the ledger could not see while the window was not contiguous."""
        ledger, left = self.ledger, len(self._waiting) + len(self._in_flight)
        difference = ledger.left() - left
        if not self.ledger_started:
            self.ledger_started = True
            if difference < 0:
                ledger.found -= difference
                return
        if difference >= 0:
            passed_over = min(difference, self._undecoded_count)
            self._undecoded_count = 0
            ledger.given_up += passed_over
            ledger.collapsed_unseen += difference - passed_over
        else:
            ledger.unbalanced -= difference
            ledger.found -= difference

    # ---------------------------------------------------------------- serving

    def take(self, count: int, limit_bytes: int, first_of_any_size: bool) -> tuple[list[int], list[Item], int]:
        """Take up to `count` references in the order of their places, requeued ones first: (places, items, payload
        bytes). Stops before `limit_bytes` is passed; with `first_of_any_size` a single larger one is still taken."""
        places: list[int] = []
        items: list[Item] = []
        size = 0
        waiting, fresh, returned, budget = self._waiting, self._fresh, self._returned, self.budget
        blocked, rows = self._blocked, self._in_flight.rows
        while len(items) < count:
            if returned:
                place = returned[0]
            elif fresh:
                place = fresh[0]
            else:
                break
            item = waiting.get(place)
            if blocked and place in blocked:
                self._served.append(place)
                self._last_served = fresh.popleft()
                continue
            if item is not None:
                length = len(item[8])
                if size + length > limit_bytes and (items or not first_of_any_size):
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
                self._served.append(place)
                self._last_served = place
        return places, items, size

    def settle(self, places: Sequence[int], items: Iterable[Item], *, vanished: bool = False) -> None:
        """Settle references of a batch: acknowledged, or with `vanished` their objects are gone."""
        land, scan, ledger = self._in_flight.land, self.scan, self.ledger
        for place, item in zip(places, items, strict=True):
            row = item[2]
            newer = land(row)
            if newer is not None:
                self._unblock(newer)
            if row >= scan:
                self._skip_rows.add(row)
            elif row != place:
                self._settled_rows.add(row)
        if vanished:
            ledger.vanished += len(places)
        else:
            ledger.acknowledged += len(places)
        self._settled_places.update(places)
        if len(self._settled_rows) > SETTLED_ROWS_MAX:
            self._settled_rows = {row for row in self._settled_rows if row >= self.cursor}
        if len(self._skip_rows) > self.budget.reference_limit:
            ledger.found += len(self._skip_rows)  # they will be offered once more, which changes nothing
            self._skip_rows.clear()
        self.advance()

    def settle_refused(
        self, places: Sequence[int], items: Sequence[Item], what: str = REFUSED, reason: str = REFUSED_REASON
    ) -> None:
        """Settle references of a batch that the sink refused permanently and keeps nothing of, or (`what` UNREADABLE)
        whose objects cannot be read: each becomes a gap, and the cursor stays below it until a CURSOR entry contains
        it."""
        for item in items:
            row, time_ms = item[2], item[7]
            gap = QueueGap(row, row + 1, time_ms, time_ms, 1, what, "", reason)
            self._refused_gaps = with_gap(self._refused_gaps, gap)
        self.settle(places, items)
        self.ledger.acknowledged -= len(places)
        self.ledger.given_up += len(places)

    def requeue(self, places: Sequence[int], items: Iterable[Item]) -> int:
        """Return references of a batch (lease over, failed at the sink, or not sent) to their old places. One whose key
        has a newer row with a place of its own is settled by that. Returns how many wait again."""
        budget, count = self.budget, 0
        for place, item in zip(places, items, strict=True):
            row = item[2]
            newer = self._in_flight.land(row)
            if newer is not None:
                self._skip_replaced(row)
                if newer.offered or newer.settled:
                    self._settle_by_newer(place, newer)
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
            count += 1
        self.advance()
        return count

    def resolve(self, place: int, item: Item) -> Item | None:
        """Decide what to send for a reference whose object was read; every entry applied before the read was added.
        Returns None when the reference is settled: the cluster that fetches has this object, or is to get nothing."""
        row = item[2]
        newer = self._in_flight.rows[row]
        if newer is None:
            return item
        found = xxh64_intdigest(item[8])
        if newer.settled or found in newer.owner_hashes:
            self._in_flight.land(row)
            self._skip_replaced(row)
            self._settle_by_newer(place, newer)
            return None
        if newer.offered and found == newer.hash64 and self._drop_place_of(newer.row):
            self._in_flight.land(row)
            self._skip_replaced(row)
            self._in_flight.rows[newer.row] = None
            return (item[0], item[1], newer.row, *item[3:])
        return item

    def _drop_place_of(self, row: int) -> bool:
        """Drop the place of the change at `row`, which is sent from an older place of its key. Returns False when the
        change was discarded by itself."""
        place = self._moved.get(row, row)
        item = self._waiting.get(place)
        if item is not None and item[2] == row:
            del self._waiting[place]
            self._moved.pop(row, None)
            self._blocked.discard(place)
            if item[0] == _OBJECT:
                self.budget.objects -= 1
            if place <= self._last_served:
                self._settled_places.add(place)
        elif row < self.scan:
            return False
        self.ledger.collapsed += 1
        return True

    def _settle_by_newer(self, place: int, newer: PendingChange) -> None:
        """Settle a reference by a newer change of its key."""
        self._settled_places.add(place)
        self.ledger.collapsed += 1
        self._unblock(newer)

    def _unblock(self, newer: PendingChange) -> None:
        """Let the place of a newer change be served, now that nothing of its key is in flight."""
        place = self._moved.get(newer.row, newer.row)
        if place in self._blocked:
            self._blocked.remove(place)
            if place <= self._last_served:
                heappush(self._returned, place)

    # ---------------------------------------------------------------- cursor

    def advance(self) -> int:
        """Move the cursor over the settled prefix, but over no gap that is not recorded; returns it."""
        cursor = self._settled_end()
        if self._pending_gaps:
            cursor = min(cursor, self._pending_gaps[0].start)
        if self._refused_gaps:
            cursor = max(self.cursor, min(cursor, self._refused_gaps[0].start))
        assert self.cursor <= cursor <= self.applied, (self.cursor, cursor, self.scan, self.applied)
        self.cursor = cursor
        return cursor

    def _settled_end(self) -> int:
        """End of the settled prefix; unrecorded gaps may keep the cursor below it."""
        served, settled, fresh, waiting = self._served, self._settled_places, self._fresh, self._waiting
        before = len(served) + len(fresh)
        while served and served[0] in settled:
            settled.remove(served.popleft())
        if not served:
            while fresh and fresh[0] not in waiting:
                fresh.popleft()
        self.budget.references -= before - len(served) - len(fresh)
        return served[0] if served else fresh[0] if fresh else self.scan

    def reset(self) -> None:
        """Drop everything in memory and stop tracking, with `scan` at the cursor. Batches taken before do not count any
        more."""
        cursor, budget, ledger = self.advance(), self.budget, self.ledger
        ledger.found += len(self._settled_places)  # acknowledged out of order: they are offered again
        ledger.given_up -= sum(gap.left_out for gap in self._pending_gaps)
        ledger.given_up -= sum(gap.left_out for gap in self._refused_gaps)
        self._pending_gaps, self._discarding, self._refused_gaps = [], False, ()
        budget.references -= self._place_count()
        budget.objects -= sum(1 for item in self._waiting.values() if item[0] == _OBJECT)
        self._waiting.clear()
        self._fresh.clear()
        self._returned.clear()
        self._served.clear()
        self._settled_places.clear()
        self._moved.clear()
        self._in_flight.clear()
        self._blocked.clear()
        self._skip_rows.clear()
        self._settled_rows.clear()
        self._last_served = -1
        self.scan = cursor
        self.tracking = self.refilling = False
        self.unreadable = ""
        self._tail = []

    # ---------------------------------------------------------------- bucket types that the sink lacks

    def hold_back(self, held_back: bool) -> None:
        """Stop serving, or go on."""
        self.held_back = held_back
        self.trim()

    def trim(self) -> None:
        """Reset a window that is held back and has more than HELD_BACK_ROWS in memory, once nothing is in flight."""
        busy = self._in_flight or self._refused_gaps
        if self.held_back and self.tracking and not busy and self._place_count() > HELD_BACK_ROWS:
            self.reset()
            self.tracking = True

    # ---------------------------------------------------------------- queries

    def ledger_error(self) -> int | None:
        """By how many changes the ledger does not balance; None while the window is not contiguous."""
        if not self.contiguous:
            return None
        if not self.ledger_started:
            self._balance_ledger()
        return self.ledger.left() - len(self._waiting) - len(self._in_flight)

    def find_lost(self, rows: Sequence[Change]) -> list[int]:
        """Offsets of those rows of the change index, at or above the cursor, that should wait or be in flight and are
        not, nor are settled. They are lost if they still are in the index when it is read again."""
        kept = {item[2] for item in self._waiting.values()}
        return [
            row.offset
            for row in self.unsettled(rows)
            if row.offset < self.scan and row.offset not in kept and row.offset not in self._in_flight
        ]

    def unsettled(self, rows: Sequence[Change]) -> list[Change]:
        """Those rows of the change index, at or above the cursor, that are offered and neither acknowledged nor
        discarded."""
        start, gaps = self._settled_end(), self._pending_gaps
        settled = (self._settled_places, self._settled_rows, self._skip_rows)
        return [
            row
            for row in rows
            if row.offset >= start
            and self.offers_row(row)
            and not any(row.offset in offsets for offsets in settled)
            and not any(gap.start <= row.offset < gap.end for gap in gaps)
        ]

    def locate(self, row: int) -> tuple[str, int | None]:
        """State of the reference of the change at offset `row`: "waiting" (with the number that wait before it),
        "in-flight", "acknowledged", "not-read" (it waits in the change index), or "" when there is none."""
        if row in self._in_flight:
            return "in-flight", None
        place = self._moved.get(row, row)
        item = self._waiting.get(place)
        if item is not None and item[2] == row:
            return "waiting", sum(other < place for other in self._waiting)
        settled = (self._settled_places, self._settled_rows, self._skip_rows)
        if row < self._settled_end() or any(row in offsets for offsets in settled):
            return "acknowledged", None
        return ("not-read", None) if row >= self.scan else ("", None)

    def rows_in_memory(self) -> set[int]:
        """Rows, also above `scan`, that need not be read: they moved to an older place, are in flight or settled."""
        return {*self._moved, *self._in_flight.rows, *self._skip_rows}

    @property
    def waiting_count(self) -> int:
        """References that wait in memory."""
        return len(self._waiting)

    @property
    def ready_count(self) -> int:
        """References that may be taken now."""
        return 0 if self.held_back else len(self._waiting) - len(self._blocked)

    @property
    def in_flight_count(self) -> int:
        """References in leased batches."""
        return len(self._in_flight)

    @property
    def has_newer_changes(self) -> bool:
        """Whether the object read for some reference in flight may be newer than the reference: see `resolve`."""
        return self._in_flight.has_newer

    def unacknowledged_count(self) -> int:
        """Keys in memory whose newest change is not acknowledged; a key that is in flight and waits, too, counts
        once."""
        twice = sum(newer is not None and newer.offered for newer in self._in_flight.rows.values())
        return len(self._waiting) + len(self._in_flight) - twice

    def peek(self, count: int) -> list[Item]:
        """The next `count` references to be served, requeued ones first."""
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

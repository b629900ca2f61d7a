"""One queue's window over the changes of one partition (pure).

The window stands over the offsets [cursor, scan): every change in there that may be offered is *waiting* here,
*away* (in a leased batch) or acknowledged. `applied` is the first offset that is not applied; when scan == applied
the window is *contiguous* and takes in what is applied as it comes, else it is *stopped* (full, fresh, or just
woken) and takes rows of the change index until it has caught up. It never reads the store itself, looks at no clock
and does no I/O.

    (not tracking)     nobody fetches: only `applied` moves              -> track
    stopped            the shell reads rows from `scan` (`wanted`)       -> refilling
    refilling          rows under way; what is applied meanwhile is kept -> contiguous | stopped
    contiguous         takes in what is applied                          -> stopped when the budget is spent
    any of them                                                          -> forget (not tracking, at the cursor)

A place is the offset under which a reference waits; its row is the offset of the change that it stands for now.
They differ once a key changed again while it waited: the reference keeps its old place and gets the current object,
and the newer row is passed over, so that a hot key is neither starved nor sent twice (docs/protocol.md R-PLACE).

The story goes on in `queues.source_queue`, which shares fetches among windows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from queues.cursors import Position
from queues.rules import Budget, Item, OriginRule
from repl.model.entry import Entry, EntryKind, row_says_tombstone
from repl.model.reference import ReferenceKind
from repl.store.port import Change

REFILL_ROWS: Final = 1024
"""Rows of the change index read at once: about 1 ms of the read pool, two batches for a sink."""

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
_TOMBSTONE: Final = int(ReferenceKind.TOMBSTONE)


class Window:
    """See the module's text. `scan`, `cursor` and `applied` are offsets; cursor <= scan <= applied."""

    __slots__ = (
        "_away", "_fresh", "_goal", "_gone", "_moved", "_open", "_opened", "_passed", "_returned", "_tail",
        "_waiting", "applied", "base", "bucket_type", "budget", "cursor", "origins", "owner_version", "partition",
        "refilling", "saved", "scan", "tracking",
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
    ) -> None:
        self.partition = partition
        self.bucket_type = bucket_type
        self.base = position.base
        self.cursor = self.saved = position.cursor
        self.scan = position.cursor
        self.applied = max(applied, position.cursor)
        self.owner_version = position.state.owner_version
        self.origins = OriginRule(own, position.state.owner, cascade)
        self.budget = budget
        self.tracking = False
        self.refilling = False
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
        self._away: dict[int, bool] = {}
        """Row -> overtaken, of references in leased batches; overtaken: a newer row of the key has its own place."""
        self._passed: set[int] = set()
        """Rows at or above `scan` that were acknowledged from an old place: to be passed over when rows are read."""

    # ---------------------------------------------------------------- what is applied

    def add(self, entries: Sequence[Entry]) -> None:
        """Entries applied at the leader, in offset order, following on `applied`."""
        applied = entries[-1].offset + 1
        if not self.tracking:
            self.applied = applied
            return
        if self.scan == self.applied and not self.refilling:
            self.applied = applied
            if self._extend(entries):
                self.scan = applied
            return
        self.applied = applied
        tail = self._tail
        for entry in entries:
            if (entry.previous_offset >= self.cursor and self._overtake(entry)) or not self.refilling or tail is None:
                continue
            if entry.kind == _DATA or entry.kind == _REAP:
                if len(tail) < TAIL_MAX:
                    tail.append(entry._replace(row=b"", payload=b"", wire=b""))
                else:
                    tail = self._tail = None

    def _extend(self, entries: Sequence[Entry]) -> bool:
        """Take entries in at the end. False when the budget was spent: `scan` then stands at the first left out."""
        budget, origins = self.budget, self.origins
        waiting, fresh, own, cursor = self._waiting, self._fresh, origins.own, self.cursor
        for at, entry in enumerate(entries):
            if entry.previous_offset >= cursor and self._overtake(entry):
                continue
            if entry.kind != _DATA or (entry.origin != own and not origins.eligible(entry.origin)):
                continue
            if budget.references >= budget.reference_limit:
                self.scan = entry.offset
                for later in entries[at + 1 :]:
                    if later.previous_offset >= cursor:
                        self._overtake(later)
                return False
            waiting[entry.offset] = self._item(entry)
            fresh.append(entry.offset)
            budget.references += 1
        return True

    def _item(self, entry: Entry) -> Item:
        """The reference of an applied change: whole within the limits, a tombstone whole always, else to be read."""
        payload, budget = entry.payload, self.budget
        kind = _OBJECT
        if not payload:
            kind = _TO_FETCH
        elif row_says_tombstone(entry.row, entry.offset):
            kind = _TOMBSTONE
        elif len(payload) > budget.object_size_limit_bytes or budget.objects >= budget.object_limit:
            kind, payload = _TO_FETCH, b""
        else:
            budget.objects += 1
        offset, bucket, key, origin = entry.offset, entry.bucket, entry.key, entry.origin
        return (kind, self.partition, offset, self.bucket_type, bucket, key, origin, entry.time_ms, payload)

    def _overtake(self, entry: Entry) -> bool:
        """A newer change of a key that may be in the window. True when it needs no place of its own.

        Should the newer change be foreign (and so perhaps not eligible by itself), the reference still goes: what it
        stood for was ours and has not gone out yet; only to the cluster that the newer change came from it need not.
        """
        previous = entry.previous_offset
        place = self._moved.get(previous, previous)
        item = self._waiting.get(place)
        origins, budget = self.origins, self.budget
        settled = entry.kind == _REAP or entry.origin == origins.owner
        if item is None or item[2] != previous:
            if previous in self._away and (settled or origins.eligible(entry.origin)):
                self._away[previous] = True
            return False
        self._moved.pop(previous, None)
        if item[0] == _OBJECT:
            budget.objects -= 1
        if settled:
            del self._waiting[place]
            if place <= self._opened:
                self._gone.add(place)
            if entry.kind == _REAP:
                budget.vanished += 1
            else:
                budget.collapsed += 1
            return True
        self._waiting[place] = self._item(entry)
        self._moved[entry.offset] = place
        budget.collapsed += 1
        return True

    # ---------------------------------------------------------------- rows of the change index

    def wanted(self) -> int:
        """How many rows from `scan` on the window would take now; 0 when none."""
        if not self.tracking or self.refilling or self.scan == self.applied or len(self._fresh) >= REFILL_BELOW:
            return 0
        return REFILL_ROWS if self.budget.references < self.budget.reference_limit else 0

    def refill_started(self) -> int:
        """A read of rows begins; returns the offset to read from."""
        self.refilling, self._goal, self._tail = True, self.applied, []
        return self.scan

    def refill_failed(self) -> None:
        """The read came to nothing; the window stays stopped."""
        self.refilling, self._tail = False, []

    def refilled(self, rows: Sequence[Change], limit: int) -> None:
        """Rows read from `scan` on since `refill_started`, at most `limit`; fewer mean that there were no more.

        Rows that stand above what this window was told is applied are left for their own notice.
        """
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
            if row.kind != _DATA or not self.origins.eligible(row.origin):
                continue
            if offset in self._moved or offset in self._away or offset in self._passed:
                continue
            self._waiting[offset] = (
                _TO_FETCH, self.partition, offset, self.bucket_type, row.bucket, row.key, row.origin, row.time_ms, b"",
            )  # fmt: skip
            self._fresh.append(offset)
            self.budget.references += 1
        self.scan = upto
        if self._passed:
            self._passed = {row_offset for row_offset in self._passed if row_offset >= upto}
        later = [entry for entry in tail or () if entry.offset >= upto]
        if tail is not None and upto >= self._goal:
            if self._extend(later):
                self.scan = self.applied
        else:
            for entry in later:
                if entry.previous_offset >= self.cursor:
                    self._overtake(entry)

    # ---------------------------------------------------------------- serving

    def take(self, count: int, limit_bytes: int, whatever_size: bool) -> tuple[list[int], list[Item], int]:
        """Up to `count` references in the order of their places, those that came back first: (places, items, payload
        bytes). Stops before `limit_bytes` is passed; with `whatever_size` a first one that is larger still goes."""
        places: list[int] = []
        items: list[Item] = []
        size = 0
        waiting, fresh, returned, budget = self._waiting, self._fresh, self._returned, self.budget
        while len(items) < count:
            if returned:
                place = returned[0]
            elif fresh:
                place = fresh[0]
            else:
                break
            item = waiting.get(place)
            if item is not None:
                length = len(item[8])
                if size + length > limit_bytes and (items or not whatever_size):
                    break
                size += length
                del waiting[place]
                row = item[2]
                self._away[row] = False
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

    def done(self, places: Sequence[int], items: Iterable[Item]) -> None:
        """The references of a batch are settled: acknowledged, or found to have vanished."""
        away, scan = self._away, self.scan
        for item in items:
            row = item[2]
            del away[row]
            if row >= scan:
                self._passed.add(row)
        self._gone.update(places)
        if len(self._passed) > self.budget.reference_limit:
            self._passed.clear()  # they will be offered once more, which changes nothing
        self.advance()

    def give_back(self, places: Sequence[int], items: Iterable[Item]) -> int:
        """References come back unsettled (lease over, refused, or not sent) and wait again in their old places; one
        whose key has a newer row with a place of its own is settled by that. Returns how many wait again."""
        budget, again = self.budget, 0
        for place, item in zip(places, items, strict=True):
            row = item[2]
            if self._away.pop(row):
                self._gone.add(place)
                budget.collapsed += 1
                continue
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

    def advance(self) -> int:
        """Move the cursor over the settled prefix; returns it."""
        opened, gone, fresh, waiting = self._open, self._gone, self._fresh, self._waiting
        before = len(opened) + len(fresh)
        while opened and opened[0] in gone:
            gone.remove(opened.popleft())
        if opened:
            cursor = opened[0]
        else:
            while fresh and fresh[0] not in waiting:
                fresh.popleft()
            cursor = fresh[0] if fresh else self.scan
        self.budget.references -= before - len(opened) - len(fresh)
        assert self.cursor <= cursor <= self.applied, (self.cursor, cursor, self.scan, self.applied)
        self.cursor = cursor
        return cursor

    def forget(self) -> None:
        """Let go of everything in memory and stand at the cursor, not tracking. Batches of before no longer count."""
        cursor, budget = self.advance(), self.budget
        budget.references -= len(self._open) + len(self._fresh)
        budget.objects -= sum(1 for item in self._waiting.values() if item[0] == _OBJECT)
        self._waiting.clear()
        self._fresh.clear()
        self._returned.clear()
        self._open.clear()
        self._gone.clear()
        self._moved.clear()
        self._away.clear()
        self._passed.clear()
        self._opened = -1
        self.scan = cursor
        self.tracking = False
        self.refill_failed()

    # ---------------------------------------------------------------- what is shown

    @property
    def contiguous(self) -> bool:
        """True when the window knows every change that waits."""
        return self.tracking and self.scan == self.applied and not self.refilling

    @property
    def waiting_count(self) -> int:
        """References that wait in memory."""
        return len(self._waiting)

    @property
    def away_count(self) -> int:
        """References in leased batches."""
        return len(self._away)

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

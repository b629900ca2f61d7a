"""What goes out of a queue's window over the changes of one partition: served, settled, given back (pure).

    waiting -> away      taken into a batch, unless something of its key is away
    away    -> settled   acknowledged, or found to have vanished; the cursor moves over the settled prefix
    away    -> settled   what was read for it is on its way otherwise, or came from the cluster that fetches
    away    -> waiting   given back; settled instead when a newer row of its key has a place of its own

What goes in, and what a place and a row are, stands in `queues.intake`; the story goes on in `queues.source_queue`,
which shares fetches among windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final

from xxhash import xxh64_intdigest

from queues.flight import Newer
from queues.intake import HELD_ROWS, Intake
from queues.rules import Item
from repl.model.entry import Entry
from repl.model.reference import ReferenceKind
from repl.store.port import Change

_OBJECT: Final = int(ReferenceKind.OBJECT)
_TO_FETCH: Final = int(ReferenceKind.TO_FETCH)


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

    def _overtaken(self, place: int, newer: Newer) -> None:
        """A reference is settled by a newer change of its key."""
        self._gone.add(place)
        self.ledger.collapsed += 1
        self._let_go(newer)

    def _let_go(self, newer: Newer) -> None:
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

"""Bulk references of one priority of a queue on one node: queued by full-sync, folds and operators (pure).

    (offered) -> waiting      there is space, and its key does not wait already
    waiting   -> in flight    taken into a batch, only when nothing waits at a higher priority
    waiting   -> parked       its turn came, and the cluster that fetches lacks its bucket type
    parked    -> waiting      that cluster has the type now
    in flight -> settled      acknowledged, or its object had vanished when it was read
    in flight -> waiting      lease over or failed: before all that were never served; unreadable now: behind all

The references are in memory only. If the node dies they are lost, which is on record (`queues.bulk_marks`), and a
full-sync finds them again. The queue is bounded: a producer waits or retries when it is full; nothing is ever dropped
to make space. A reference names a key; its object is read when it is served, from the leader of its partition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final, NamedTuple

from isthmus.queues.window_rules import Item
from isthmus.repl.model.keys import Key
from isthmus.repl.model.reference import ReferenceKind

NO_PARTITION: Final = 0
"""Partition in a bulk reference; its reader routes by the key."""

_TO_FETCH: Final = int(ReferenceKind.TO_FETCH)


class RefusedReference(NamedTuple):
    """A bulk reference that the sink refused permanently, with the time when it was queued."""

    priority: int
    queued_ms: int
    bucket_type: bytes


@dataclass(slots=True)
class BulkCounts:
    """Counters since the node started, in references: queued = acknowledged + vanished + cleared + waiting + in flight.
    `collapsed` were offered while their key waited already; `outcomes` are applied, merged, superseded, rejected."""

    queued: int = 0
    collapsed: int = 0
    acknowledged: int = 0
    vanished: int = 0
    cleared: int = 0
    outcomes: tuple[int, int, int, int] = (0, 0, 0, 0)


class BulkQueue:
    """References of one priority; `own` is sent as their origin, `limit` bounds those that wait or are in flight."""

    def __init__(self, priority: int, own: bytes, limit: int) -> None:
        self.priority = priority
        self.limit = limit
        self.counts = BulkCounts()
        self._own = own
        self._next_place = 0
        self._waiting: dict[int, Item] = {}
        """Place -> reference."""
        self._fresh: deque[int] = deque()
        """Places never served, rising."""
        self._returned: list[int] = []
        """Heap of requeued places."""
        self._parked: dict[bytes, list[int]] = {}
        """Bucket type that the cluster that fetches lacks -> places. Up to `limit` of them do not count against the
        limit, so that other references can go on."""
        self._in_flight: dict[int, Key] = {}
        self._places: dict[Key, int] = {}
        """Place of each key that waits."""

    def free_count(self) -> int:
        """How many references may be offered now."""
        return max(0, self.limit - self.held_count + min(self.parked_count, self.limit))

    def offer(self, keys: Sequence[Key], now_ms: int) -> int:
        """Queue the first of `keys`, as far as there is space; returns how many were accepted."""
        free, places = self.free_count(), self._places
        for at, key in enumerate(keys):
            if key in places:
                self.counts.collapsed += 1
                continue
            if free <= 0:
                return at
            free -= 1
            place = places[key] = self._next_place
            self._next_place += 1
            self._waiting[place] = (_TO_FETCH, NO_PARTITION, place, *key, self._own, now_ms, b"")
            self._fresh.append(place)
            self.counts.queued += 1
        return len(keys)

    def ready(self, types: Collection[bytes] | None) -> bool:
        """Whether a reference waits whose bucket type is among `types`, those of the cluster that fetches (None: every
        type counts). References of other types are parked when their turn comes."""
        for bucket_type in [name for name in self._parked if types is None or name in types]:
            for place in self._parked.pop(bucket_type):
                heappush(self._returned, place)
        while self._returned or self._fresh:
            place = self._returned[0] if self._returned else self._fresh[0]
            bucket_type = self._waiting[place][3]
            if types is None or bucket_type in types:
                return True
            self._parked.setdefault(bucket_type, []).append(
                heappop(self._returned) if self._returned else self._fresh.popleft()
            )
        return False

    def take(self, count: int, types: Collection[bytes] | None = None) -> tuple[list[int], list[Item]]:
        """Take up to `count` references, requeued ones first: (places, items). `types`: see `ready`."""
        places: list[int] = []
        items: list[Item] = []
        while len(items) < count and self.ready(types):
            place = heappop(self._returned) if self._returned else self._fresh.popleft()
            item = self._waiting.pop(place)
            key = Key(item[3], item[4], item[5])
            # From here on the key may be queued again: its object may change after it was read.
            del self._places[key]
            self._in_flight[place] = key
            places.append(place)
            items.append(item)
        return places, items

    def settle(self, places: Sequence[int], _items: Sequence[Item], *, vanished: bool = False) -> None:
        """Settle references of a batch: acknowledged, or with `vanished` their objects are gone."""
        settled = sum(self._in_flight.pop(place, None) is not None for place in places)
        if vanished:
            self.counts.vanished += settled
        else:
            self.counts.acknowledged += settled

    def requeue(self, places: Sequence[int], items: Iterable[Item]) -> int:
        """Return references of a batch unsettled; one whose key was queued again is settled by that. Returns how many
        wait again."""
        count = 0
        for place, item in zip(places, items, strict=True):
            key = self._land(place)
            if key is None:
                continue
            self._places[key] = place
            self._waiting[place] = (_TO_FETCH, *item[1:8], b"")
            heappush(self._returned, place)
            count += 1
        return count

    def requeue_last(self, rows: Iterable[tuple[int, Item]]) -> None:
        """Return references (place, item) that cannot be read now, behind all others; one whose key was queued again is
        settled by that."""
        for place, item in rows:
            key = self._land(place)
            if key is None:
                continue
            last = self._places[key] = self._next_place
            self._next_place += 1
            self._waiting[last] = (_TO_FETCH, item[1], last, *item[3:8], b"")
            self._fresh.append(last)

    def _land(self, place: int) -> Key | None:
        """Remove a reference from those in flight; returns its key, None when it is settled or queued again."""
        key = self._in_flight.pop(place, None)
        if key in self._places:
            self.counts.queued -= 1
            self.counts.collapsed += 1
            return None
        return key

    def held_types(self) -> set[bytes]:
        """Bucket types of the references that would be lost with the node."""
        return {item[3] for item in self._waiting.values()} | {key.bucket_type for key in self._in_flight.values()}

    def clear(self) -> tuple[int, int, int] | None:
        """Drop all: (how many, when the oldest and the newest that waited were queued), None when there is nothing.
        Batches taken before do not count any more."""
        count = self.held_count
        times = [item[7] for item in self._waiting.values()]
        for kept in (self._waiting, self._fresh, self._returned, self._parked, self._in_flight, self._places):
            kept.clear()
        self.counts.cleared += count
        return (count, min(times, default=0), max(times, default=0)) if count else None

    @property
    def waiting_count(self) -> int:
        """References that wait, parked ones among them."""
        return len(self._waiting)

    @property
    def parked_count(self) -> int:
        """References that wait for their bucket type at the cluster that fetches."""
        return sum(map(len, self._parked.values())) if self._parked else 0

    def parked_since(self) -> dict[bytes, int]:
        """Bucket type that the cluster that fetches lacks -> when the oldest reference of it was queued."""
        return {name: min(self._waiting[place][7] for place in places) for name, places in self._parked.items()}

    @property
    def in_flight_count(self) -> int:
        """References under lease."""
        return len(self._in_flight)

    @property
    def held_count(self) -> int:
        """References that would be lost with the node."""
        return len(self._waiting) + len(self._in_flight)

    def peek(self, count: int) -> list[Item]:
        """The next `count` references to be served, requeued ones first."""
        parked = sorted(place for places in self._parked.values() for place in places)
        places = [*sorted(self._returned), *self._fresh, *parked][:count] if count > 0 else []
        return [self._waiting[place] for place in places]

    def locate(self, key: Key) -> tuple[str, int | None]:
        """State of the reference of a key: "waiting" (with the number queued before it), "in-flight", or ""."""
        place = self._places.get(key)
        if place is not None:
            return "waiting", sum(other < place for other in self._waiting)
        return ("in-flight", None) if key in self._in_flight.values() else ("", None)

    def oldest_ms(self) -> int | None:
        """When the next reference to be served was queued; None when none waits."""
        place = self._returned[0] if self._returned else self._fresh[0] if self._fresh else None
        return None if place is None else self._waiting[place][7]

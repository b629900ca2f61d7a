"""One lower priority of a queue on one node: references that full-sync, folds and operators put there (pure).

    (offered) -> waiting      there is room, and its key does not wait already
    waiting   -> away         taken into a batch, only when nothing waits at a higher priority
    waiting   -> parked       its turn came, and the cluster that fetches lacks its bucket type
    parked    -> waiting      that cluster has it now
    away      -> settled      acknowledged, or nothing was there when it was read
    away      -> waiting      lease over or refused: before all that never went; not to be read now: behind all

In memory only: what a node holds here goes with it, on record (`queues.queue_documents`), and a full-sync finds it
again. Bounded: who offers more than there is room for waits or is told to come back; nothing is ever pushed out. A
reference names a key; the object is read when it is served, from the leader of its partition, wherever that is. The
story goes on in `queues.source_queue`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from isthmus.queues.window_rules import Item
from isthmus.repl.model.keys import Key
from isthmus.repl.model.reference import ReferenceKind

NOWHERE: Final = 0
"""Stands as the partition of a lower reference: who reads it routes by its key."""

_TO_FETCH: Final = int(ReferenceKind.TO_FETCH)


@dataclass(slots=True)
class LowerCounts:
    """Since the node began, in references: queued = acknowledged + vanished + cleared + what waits or is away.
    `collapsed` were offered while their key waited already, `outcomes` are applied, merged, superseded, rejected."""

    queued: int = 0
    collapsed: int = 0
    acknowledged: int = 0
    vanished: int = 0
    cleared: int = 0
    outcomes: tuple[int, int, int, int] = (0, 0, 0, 0)


class BulkQueue:
    """See the module's text. `own` stands as the origin of what is served."""

    def __init__(self, priority: int, own: bytes, limit: int) -> None:
        self.priority = priority
        self.limit = limit
        self.counts = LowerCounts()
        self._own = own
        self._next = 0
        self._waiting: dict[int, Item] = {}
        self._fresh: deque[int] = deque()
        self._returned: list[int] = []
        self._parked: dict[bytes, list[int]] = {}
        """Bucket type -> places of references that wait until the cluster that fetches has it. They take no room, so
        that others go on, but for more than `limit` of them."""
        self._away: dict[int, Key] = {}
        self._names: dict[Key, int] = {}

    def room(self) -> int:
        """References that may be offered now."""
        return max(0, self.limit - self.held_count + min(self.parked_count, self.limit))

    def offer(self, keys: Sequence[Key], now_ms: int) -> int:
        """Queue the first of `keys`, as far as there is room; returns how many were taken in."""
        room, names = self.room(), self._names
        for at, key in enumerate(keys):
            if key in names:
                self.counts.collapsed += 1
                continue
            if room <= 0:
                return at
            room -= 1
            place = names[key] = self._next
            self._next += 1
            self._waiting[place] = (_TO_FETCH, NOWHERE, place, *key, self._own, now_ms, b"")
            self._fresh.append(place)
            self.counts.queued += 1
        return len(keys)

    def ready(self, types: Collection[bytes] | None) -> bool:
        """Whether something waits of a bucket type that is among `types`, which the cluster that fetches has (None: any
        counts). Other references are put aside when their turn comes."""
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
        """Up to `count` references, those that came back first: (places, items). `types`: see `ready`."""
        places: list[int] = []
        items: list[Item] = []
        while len(items) < count and self.ready(types):
            place = heappop(self._returned) if self._returned else self._fresh.popleft()
            item = self._waiting.pop(place)
            key = Key(item[3], item[4], item[5])
            # From here on the key may be queued anew: its object may change after it was read.
            del self._names[key]
            self._away[place] = key
            places.append(place)
            items.append(item)
        return places, items

    def done(self, places: Sequence[int], *, vanished: bool = False) -> None:
        """The references of a batch are settled."""
        settled = sum(self._away.pop(place, None) is not None for place in places)
        if vanished:
            self.counts.vanished += settled
        else:
            self.counts.acknowledged += settled

    def give_back(self, places: Sequence[int], items: Iterable[Item]) -> int:
        """References come back unsettled; one whose key waits anew is settled by that. Returns how many wait again."""
        again = 0
        for place, item in zip(places, items, strict=True):
            key = self._landed(place)
            if key is None:
                continue
            self._names[key] = place
            self._waiting[place] = (_TO_FETCH, *item[1:8], b"")
            heappush(self._returned, place)
            again += 1
        return again

    def put_off(self, rows: Iterable[tuple[int, Item]]) -> None:
        """References (place, item) that cannot be read now come back behind all others; one whose key waits anew is
        settled by that."""
        for place, item in rows:
            key = self._landed(place)
            if key is None:
                continue
            last = self._names[key] = self._next
            self._next += 1
            self._waiting[last] = (_TO_FETCH, item[1], last, *item[3:8], b"")
            self._fresh.append(last)

    def _landed(self, place: int) -> Key | None:
        """The key of a reference that comes back unsettled; None where it was settled, or is by one that waits anew."""
        key = self._away.pop(place, None)
        if key in self._names:
            self.counts.queued -= 1
            self.counts.collapsed += 1
            return None
        return key

    def clear(self) -> tuple[int, int, int] | None:
        """Drop all: (how many, when the oldest and the newest of what waited were queued), None when there is nothing.
        Batches of before no longer count."""
        count = self.held_count
        times = [item[7] for item in self._waiting.values()]
        for kept in (self._waiting, self._fresh, self._returned, self._parked, self._away, self._names):
            kept.clear()
        self.counts.cleared += count
        return (count, min(times, default=0), max(times, default=0)) if count else None

    @property
    def waiting_count(self) -> int:
        """References that wait."""
        return len(self._waiting)

    @property
    def parked_count(self) -> int:
        """Those of them that wait for their bucket type at the cluster that fetches."""
        return sum(map(len, self._parked.values())) if self._parked else 0

    def parked(self) -> dict[bytes, int]:
        """Bucket type that the cluster that fetches lacks -> when the oldest reference of it was queued."""
        return {name: min(self._waiting[place][7] for place in places) for name, places in self._parked.items()}

    @property
    def away_count(self) -> int:
        """References under lease."""
        return len(self._away)

    @property
    def held_count(self) -> int:
        """References that would go with the node."""
        return len(self._waiting) + len(self._away)

    def first(self, count: int) -> list[Item]:
        """The next `count` to be served, those that came back first."""
        parked = sorted(place for places in self._parked.values() for place in places)
        places = [*sorted(self._returned), *self._fresh, *parked][:count] if count > 0 else []
        return [self._waiting[place] for place in places]

    def whereabouts(self, key: Key) -> tuple[str, int | None]:
        """ "waiting" and how many were queued before it, "in-flight", or "" when no reference names the key."""
        place = self._names.get(key)
        if place is not None:
            return "waiting", sum(other < place for other in self._waiting)
        return ("in-flight", None) if key in self._away.values() else ("", None)

    def oldest_ms(self) -> int | None:
        """When the next one to be served was queued; None when none waits."""
        place = self._returned[0] if self._returned else self._fresh[0] if self._fresh else None
        return None if place is None else self._waiting[place][7]

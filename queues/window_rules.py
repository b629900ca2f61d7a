"""Types shared by the windows of a queue: references, priorities, budget, ledger, bucket and origin rules (pure)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final, NamedTuple

from isthmus.queues.filters import Filter

REAL_TIME: Final = 3
FULL_SYNC: Final = 2
FOLD: Final = 1
PRIORITIES: Final = (REAL_TIME, FULL_SYNC, FOLD)
"""Served in strictly this order."""

BULK_PRIORITIES: Final = (FULL_SYNC, FOLD)
"""Priorities of bulk references (`queues.bulk_queue`), the first one before the second."""

Item = tuple[int, int, int, bytes, bytes, bytes, bytes, int, bytes]
"""A reference as it is sent: (kind, partition, row offset, bucket type, bucket, key, origin, time ms, payload)."""


class UnreadableObject(NamedTuple):
    """Stands for an object that cannot be read: `reason` for an operator; `damaged`: its row is to be mended."""

    reason: str
    damaged: bool


Read = Item | UnreadableObject | None
"""What the reading of a reference's object gave; None: it has vanished."""


@dataclass(slots=True)
class Budget:
    """Memory limits of one queue, shared by its windows, and their use.

    `references` counts places in memory (waiting, in flight, or acknowledged out of order); `objects` counts whole
    objects among those that wait.
    """

    object_size_limit_bytes: int
    object_limit: int
    reference_limit: int
    discard: bool = False
    """At the limit new changes are discarded; else the window stops and later reads them from the change index."""
    references: int = 0
    objects: int = 0


@dataclass(slots=True)
class Ledger:
    """Counts of what happened to a partition's changes while this node led it. The ledger balances when
    found + eligible = acknowledged + collapsed + collapsed_unseen + vanished + given_up + handed_on + waiting +
    in flight.

    `found` waited when the window first was contiguous; `eligible` were counted when they were applied. While nobody
    fetches, or the window is stopped, the window does not notice that a change replaces one that waits: the difference
    is counted as `collapsed_unseen` once the window is contiguous again. `given_up` lie in a gap. `handed_on` waited or
    were in flight when the window ended, with the leadership or because an operator moved the cursor: the next window
    finds them, or they lie in a gap. `passed_over` are not offered, by filter or origin, and are on neither side.
    `unbalanced` counts changes by which the two sides ever differed: a bug.
    """

    found: int = 0
    eligible: int = 0
    acknowledged: int = 0
    collapsed: int = 0
    collapsed_unseen: int = 0
    vanished: int = 0
    given_up: int = 0
    handed_on: int = 0
    passed_over: int = 0
    unbalanced: int = 0

    def settled(self) -> int:
        """Changes that neither wait nor are in flight any more."""
        done = self.acknowledged + self.collapsed + self.collapsed_unseen + self.vanished
        return done + self.given_up + self.handed_on

    def left(self) -> int:
        """Changes that must wait or be in flight."""
        return self.found + self.eligible - self.settled()

    def add(self, other: Ledger) -> None:
        """Add the counts of another ledger."""
        for field in fields(other):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def inherit(self, ended: Ledger) -> None:
        """Add the ledger of a window that has ended; changes that were left were handed on. A window that never was
        contiguous may have settled more changes than it had found."""
        self.add(ended)
        left = ended.left()
        self.handed_on += max(0, left)
        self.found += max(0, -left)


BUCKETS_MAX: Final = 4_096
"""Buckets whose filter decision a window caches; at the limit the cache is emptied."""


class BucketRule:
    """A queue's filter for the buckets of one bucket type, with a cache of its decisions."""

    __slots__ = ("_bucket_type", "_filter", "_known", "includes_some")

    def __init__(self, filter_: Filter, bucket_type: bytes) -> None:
        self._filter = filter_
        self._bucket_type = bucket_type
        self._known: dict[bytes, bool] = {}
        self.includes_some = filter_.includes_some(bucket_type)
        """Whether some bucket of the type may be included."""

    def includes(self, bucket: bytes) -> bool:
        """Whether the filter includes the bucket."""
        known = self._known.get(bucket)
        if known is None:
            if len(self._known) >= BUCKETS_MAX:
                self._known.clear()
            known = self._known[bucket] = self._filter.includes(self._bucket_type, bucket)
        return known


@dataclass(frozen=True, slots=True)
class OriginRule:
    """Which origins a queue offers: `own` is this cluster's uuid, `owner` that of the cluster that fetches."""

    own: bytes
    owner: bytes
    cascade: bool

    def eligible(self, origin: bytes) -> bool:
        """Whether changes of this origin are offered: our own always, foreign ones only when cascading, and never to
        the cluster that they came from."""
        return origin == self.own or (self.cascade and origin != self.owner)

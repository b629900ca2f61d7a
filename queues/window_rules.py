"""What the windows of one queue share: the shape of a reference, the queue's budget, whose changes of which buckets it
offers, and the ledger that each window keeps (pure).

The story goes on in `queues.window`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Final

REAL_TIME: Final = 3
FULL_SYNC: Final = 2
FOLD: Final = 1
PRIORITIES: Final = (REAL_TIME, FULL_SYNC, FOLD)
"""Served in this order, strictly."""

LOWER: Final = (FULL_SYNC, FOLD)

Item = tuple[int, int, int, bytes, bytes, bytes, bytes, int, bytes]
"""(kind, partition, row offset, bucket type, bucket, key, origin, time ms, payload), as it goes over the wire."""


@dataclass(slots=True)
class Budget:
    """What all windows of one queue share: its limits and how much of them is used, and its counters.

    `references` are places in memory (waiting, away, or acknowledged out of order); `objects` are whole objects
    among those that wait.
    """

    object_size_limit_bytes: int
    object_limit: int
    reference_limit: int
    discard: bool = False
    """At the limit new changes are given up; else the window stops and refills from the change index."""
    references: int = 0
    objects: int = 0


@dataclass(slots=True)
class Ledger:
    """What became of a partition's changes while this node led it, in changes. It closes when
    found + eligible = acknowledged + collapsed + vanished + given_up + handed_on + what waits + what is under lease.

    `found` waited when the window first knew all; `eligible` were counted at apply. While nobody fetches, or the window
    is stopped, a change that replaces one that waits is not seen to do so: once the window knows all again, the
    difference is booked as `collapsed_unseen`. `handed_on` waited, or was under lease, when the window ended: with the
    leadership, or because an operator moved the cursor; whoever stands there next finds it, or it lies in a gap.
    `passed_over` are changes that the filter or the origin rule holds back; they are on neither side. `unbalanced`
    counts changes by which the two sides ever differed: a bug.
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
        """All that neither waits nor is under lease any more."""
        went = self.acknowledged + self.collapsed + self.collapsed_unseen + self.vanished
        return went + self.given_up + self.handed_on

    def left(self) -> int:
        """What must wait or be under lease."""
        return self.found + self.eligible - self.settled()

    def add(self, other: Ledger) -> None:
        """Take another's numbers in."""
        for field in fields(other):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def inherit(self, ended: Ledger) -> None:
        """Take in the ledger of a window that has ended, and close it: what was left was handed on. A window that never
        knew all may have seen more settled than it had found."""
        self.add(ended)
        left = ended.left()
        self.handed_on += max(0, left)
        self.found += max(0, -left)


BUCKETS_KEPT: Final = 4_096
"""Buckets whose filter decision a window remembers; then it forgets all of them and asks again."""


class BucketRule:
    """Which buckets of one partition's bucket type are offered, remembered by bucket."""

    __slots__ = ("_asks", "_known")

    def __init__(self, asks: Callable[[bytes], bool]) -> None:
        self._asks = asks
        self._known: dict[bytes, bool] = {}

    def offers(self, bucket: bytes) -> bool:
        """True when changes of the bucket pass the filter."""
        known = self._known.get(bucket)
        if known is None:
            if len(self._known) >= BUCKETS_KEPT:
                self._known.clear()
            known = self._known[bucket] = self._asks(bucket)
        return known


@dataclass(frozen=True, slots=True)
class OriginRule:
    """Whose changes may be offered: `own` is this cluster's uuid, `owner` the uuid of the cluster that fetches."""

    own: bytes
    owner: bytes
    cascade: bool

    def eligible(self, origin: bytes) -> bool:
        """Ours always; a foreign cluster's only when cascading, and never to the cluster that it came from."""
        return origin == self.own or (self.cascade and origin != self.owner)

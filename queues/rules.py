"""What the windows of one queue share: the shape of a reference, the queue's budget, and its origin rule (pure).

The story goes on in `queues.window`.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    references: int = 0
    objects: int = 0
    collapsed: int = 0
    vanished: int = 0


@dataclass(frozen=True, slots=True)
class OriginRule:
    """Whose changes may be offered: `own` is this cluster's uuid, `owner` the uuid of the cluster that fetches."""

    own: bytes
    owner: bytes
    cascade: bool

    def eligible(self, origin: bytes) -> bool:
        """Ours always; a foreign cluster's only when cascading, and never to the cluster that it came from."""
        return origin == self.own or (self.cascade and origin != self.owner)

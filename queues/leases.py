"""Batches of references under lease, and the sink sessions that hold them (pure).

`queues.source_queue` makes and settles batches.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

from isthmus.queues.bulk_queue import BulkQueue
from isthmus.queues.window import Window
from isthmus.queues.window_rules import Item

IN_FLIGHT_BATCHES_MAX: Final = 64
"""Batches under lease at once; at the limit fetches wait as if there were nothing. A sink holds two or three."""

IN_FLIGHT_BYTES_MAX: Final = 64_000_000
"""Payload bytes under lease at once, kept in memory for a repeat; above it fetches wait for acknowledgements."""


class Session(NamedTuple):
    """Holder of a batch: a process of the owner's cluster (`node`, `incarnation`), and which of its links."""

    cluster: bytes
    node: str
    incarnation: bytes
    link: int


class Part(NamedTuple):
    """The share of one window or bulk queue in a batch; `start` is the index of its first item in the batch."""

    source: Window | BulkQueue
    start: int
    places: list[int]
    items: list[Item]


@dataclass(slots=True)
class LeasedBatch:
    """References that were sent to a sink, under a lease. `size_bytes` counts payloads."""

    id: bytes
    session: Session
    owner_version: int
    taken_ms: int
    expires_ms: int
    parts: list[Part]
    size_bytes: int
    priority: int

    def items(self) -> list[Item]:
        """All references, in the order in which they are sent."""
        return [item for part in self.parts for item in part.items]

    def __len__(self) -> int:
        last = self.parts[-1]
        return last.start + len(last.items)


@dataclass(slots=True)
class Counts:
    """Counters since the node started, in changes: `served` includes repeats; `redelivered` were requeued; `late`
    counts acknowledgements of batches whose lease was over, `refused` those of an older owner."""

    served: int = 0
    acknowledged: int = 0
    redelivered: int = 0
    batches: int = 0
    late: int = 0
    refused: int = 0
    undecoded: int = 0
    """Rows of the change index that could not be decoded and were passed over into a gap."""
    outcomes: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Applied, merged, superseded, rejected at the sink, in real time, as far as it sends them."""


def sum_outcomes(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
    """The sum of two `Counts.outcomes`."""
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3])


class Leases:
    """The batches under lease, the oldest first. `prefix` makes batch ids of each process life different, so that an
    acknowledgement from before a restart settles nothing."""

    def __init__(self, prefix: bytes, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self.batches: dict[bytes, LeasedBatch] = {}
        self.bytes = 0
        self._prefix = prefix
        self._number = 0

    def has_capacity(self) -> bool:
        """Whether one more batch may be leased."""
        return len(self.batches) < IN_FLIGHT_BATCHES_MAX and self.bytes < IN_FLIGHT_BYTES_MAX

    def open(
        self, session: Session, owner_version: int, parts: list[Part], size: int, priority: int, now_ms: int
    ) -> LeasedBatch:
        """Lease a new batch."""
        self._number += 1
        batch_id = self._prefix + self._number.to_bytes(8, "big")
        batch = LeasedBatch(batch_id, session, owner_version, now_ms, now_ms + self.lease_ms, parts, size, priority)
        self.batches[batch_id] = batch
        self.bytes += size
        return batch

    def resize(self, batch: LeasedBatch, parts: list[Part], size: int) -> None:
        """Replace the contents of a batch."""
        self.bytes += size - batch.size_bytes
        batch.parts, batch.size_bytes = parts, size

    def requeue_unread(self, batch: LeasedBatch, indexes: Collection[int]) -> None:
        """Remove references that could not be read from a bulk batch, and requeue them behind all others."""
        if batch.id not in self.batches or not indexes:
            return
        (part,) = batch.parts
        assert isinstance(part.source, BulkQueue)
        rows = [*zip(part.places, part.items, strict=True)]
        part.source.requeue_last([rows[at] for at in indexes])
        kept = [row for at, row in enumerate(rows) if at not in indexes]
        batch.parts = [Part(part.source, 0, [place for place, _ in kept], [item for _, item in kept])]

    def end(self, batch: LeasedBatch) -> None:
        """End the lease of a batch."""
        del self.batches[batch.id]
        self.bytes -= batch.size_bytes

    def not_held(self, session: Session, holding: Collection[bytes] | None) -> list[LeasedBatch]:
        """Batches that the process of `session` no longer holds: those of an earlier incarnation of the same node, and
        those of the same link that are not in `holding` (None: not sent)."""
        found = []
        for batch in self.batches.values():
            held = batch.session
            if held.node != session.node or held.cluster != session.cluster:
                continue
            if held.incarnation != session.incarnation or (
                held.link == session.link and holding is not None and batch.id not in holding
            ):
                found.append(batch)
        return found

    def expired(self, now_ms: int) -> list[LeasedBatch]:
        """Batches whose lease is over."""
        found = []
        for batch in self.batches.values():
            if batch.expires_ms > now_ms:
                break
            found.append(batch)
        return found

"""Protocols that cross floors: what a lower floor calls without knowing who stands above.

`repl` never imports `queues`, `sink` or `aae`; it calls what they registered here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import Isolation, PushItem, PushResult, WriteRequest, WriteResult


class TimeSource(Protocol):
    """The one place a shell reads the clocks; pure code is handed their values."""

    def now_ms(self) -> int:
        """Monotonic milliseconds that count suspend (CLOCK_BOOTTIME); for timers only."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for last-modified, logs and lag; never for order."""


class AfterApply(Protocol):
    """Told of entries once they are applied, in offset order, on the event loop; must not block."""

    def applied(self, partition: int, entries: Sequence[Entry], leader: bool) -> None:
        """`entries` are in the store and visible; `leader` says if this node leads: all entries between
        two calls of `leadership`, also those of a hand-over that does not come about."""

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """This node began (after its barrier applied) or ceased to lead `partition`."""


class KeyValue(Protocol):
    """The cluster's data as its faces see it (`repl.coordinator.coordinator`); any node answers for its cluster."""

    async def get(self, key: Key, isolation: Isolation | None = None) -> bytes | None:
        """Canonical object bytes; None when never written or reaped; `isolation` None: the node's default. Raises
        BadInput, Retryable."""

    async def get_batch(
        self, keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, *, waits: bool = True
    ) -> list[bytes | IsthmusError | None]:
        """As `get`, one answer per key, in order. Once the answers have reached `room_bytes` the rest is Overloaded.
        `waits` False: a key whose partition has no leader that serves now is refused at once, not after a moment."""

    async def write(self, request: WriteRequest) -> WriteResult:
        """Durable and applied. Raises BadInput, Retryable, OutcomeUnknown."""

    async def write_batch(self, requests: Sequence[WriteRequest]) -> list[WriteResult | IsthmusError]:
        """Not atomic; one answer per item, in request order."""

    async def push(self, items: Sequence[PushItem]) -> list[PushResult]:
        """Changes of another cluster; clocks kept, no new dots; one answer per item, in order."""

    def list_keys(self, bucket_type: bytes, bucket: bytes) -> AsyncIterator[list[bytes]]:
        """Live keys of a bucket (tombstones left out) in batches, each partition in key order."""

    def list_buckets(self, bucket_type: bytes) -> AsyncIterator[list[bytes]]:
        """Buckets that have a live key, each once."""


class CursorWriter(Protocol):
    """How queues move their cursors (docs/protocol.md R-OWNER, R-SOFT)."""

    async def write_cursor(self, partition: int, queue: bytes, payload: bytes) -> int:
        """Append a CURSOR entry; returns its offset once applied. Raises Retryable, OutcomeUnknown."""

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """Let `payload` travel with the partition's next apply batch, or alone within a second."""

    def lineage(self, partition: int) -> int:
        """How often a leader was forced on a partition of this node, as far as this node knows (R-FORCE)."""


class Settled(Protocol):
    """What the floor of the queues knows of tombstones (`queues.tombstone_barrier`); asked by whoever reaps
    (R-REAP)."""

    def offers(self, bucket_type: bytes, bucket: bytes) -> bool:
        """Whether some queue offers changes of this bucket to another cluster."""

    def waits(self, partition: int, offset: int, bucket_type: bytes, bucket: bytes) -> str:
        """Which queue still needs what was written at `offset`, in a sentence; "" when none does: of every queue that
        offers the bucket all changes up to there are acknowledged, and it lies in no recorded gap."""

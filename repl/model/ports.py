"""Protocols between layers: what a lower layer calls and a higher one implements, or the other way round.

`repl` never imports `queues`, `sink` or `aae`; it calls the implementations that they register.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple, Protocol

from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.requests import ForwardedRead, Isolation, PushItem, PushResult, WriteRequest, WriteResult


class TimeSource(Protocol):
    """The only source of clock readings; pure code receives their values."""

    def now_ms(self) -> int:
        """Monotonic milliseconds that count suspend (CLOCK_BOOTTIME); for timers only."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; for last-modified, logs and lag; never for order."""


class AppliedEntries(NamedTuple):
    """Entries of one partition that are in the store and visible, in offset order; never empty.

    `leader` is true for all entries between the two calls of `ApplyListener.leadership`, including those of a hand-over
    that fails."""

    partition: int
    entries: Sequence[Entry]
    leader: bool


class ApplyListener(Protocol):
    """A listener to applied entries, called in offset order on the event loop; must not block."""

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """An apply step is in the store: the entries of each of its partitions."""

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """This node started to lead `partition` (its barrier is applied) or stopped."""


class AppliedChanges(Protocol):
    """Where listeners of applied entries register, before the replicas start
    (`repl.runtime.apply_listeners.ApplyListeners`)."""

    def add(self, listener: ApplyListener, /) -> None:
        """Notify `listener` from now on."""


class KeyValue(Protocol):
    """The cluster's data for its clients (`repl.coordinator.coordinator`); any node answers for its cluster."""

    async def get(self, key: Key, isolation: Isolation | None = None) -> bytes | None:
        """Return canonical object bytes; None for a key that was never written, or reaped.

        `isolation` None means the node's default. Raises BadInput, Retryable.
        """

    async def read(self, key: Key, isolation: Isolation | None = None) -> bytes | ForwardedRead | None:
        """As `get`; an answer that another node gave comes with its name."""

    async def get_batch(
        self, keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, *, waits: bool = True
    ) -> list[bytes | IsthmusError | None]:
        """Return one answer of `get` per key, in order.

        Once the answers have reached `room_bytes`, the rest is Overloaded. With `waits` False, a key whose partition
        has no serving leader is refused at once instead of after a moment.
        """

    async def write(self, request: WriteRequest) -> WriteResult:
        """Write durably and apply. Raises BadInput, Retryable, OutcomeUnknown."""

    async def write_batch(self, requests: Sequence[WriteRequest]) -> list[WriteResult | IsthmusError]:
        """Write several keys, not atomically; returns one answer per item, in request order."""

    async def push(self, items: Sequence[PushItem]) -> list[PushResult]:
        """Apply changes of another cluster, keeping their clocks; returns one answer per item, in order."""

    def list_keys(self, bucket_type: bytes, bucket: bytes) -> AsyncIterator[list[bytes]]:
        """Yield the live keys of a bucket (no tombstones) in batches, each partition in key order."""

    def list_buckets(self, bucket_type: bytes) -> AsyncIterator[list[bytes]]:
        """Yield the buckets that have a live key, each once."""

    def list_in_order(
        self, bucket_type: bytes, bucket: bytes | None, prefix: bytes, after: bytes, wanted: int | None
    ) -> AsyncIterator[list[bytes]]:
        """Yield the live keys of a bucket (None: the buckets that have one) that begin with `prefix` and are above
        `after`, in order of their bytes, in batches: the first `wanted`, or all."""


class CursorWriter(Protocol):
    """Moves the cursors of queues (docs/protocol.md R-OWNER, R-SOFT)."""

    async def write_cursor(self, partition: int, queue: bytes, payload: bytes) -> int:
        """Append a CURSOR entry; returns its offset once applied. Raises Retryable, OutcomeUnknown."""

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """Write `payload` with the partition's next apply batch, or alone within a second."""

    def lineage(self, partition: int) -> int:
        """How often a leader was forced on the partition, as far as this node knows (R-FORCE)."""


class DamageListener(Protocol):
    """Gets reports of rows of the store that cannot be decoded, to have them repaired (see `aae.damaged_rows`)."""

    def on_damaged_row(self, partition: int, segment: int | None, /) -> None:
        """Key rows of `segment` are damaged; None: a change row, or a row of an unknown segment."""


class UnrepairedDifferences(Protocol):
    """Differences between clusters that the newest full-sync checks found (`aae.scheduling.last_comparison`)."""

    def difference_of(self, key: Key, /) -> str:
        """A sentence that names the check which found the key different; "" for none."""


class ReapBarrier(Protocol):
    """Whether queues still need a tombstone (`queues.tombstone_barrier`); the reaper asks before it removes one
    (R-REAP)."""

    def replicates(self, bucket_type: bytes, bucket: bytes) -> bool:
        """Whether some queue sends changes of this bucket to another cluster."""

    def blocked_by(self, partition: int, offset: int, bucket_type: bytes, bucket: bytes) -> str:
        """Which queue still needs the change at `offset`, as a sentence; "" for none.

        None means: every queue that offers the bucket has acknowledgements of all changes up to there, and no recorded
        gap contains it.
        """

"""One partition on this node: its core, and what lies between append and answer.

Plain state, owned by the event loop: `repl.runtime` moves it, `repl.coordinator` adds to it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from repl.isr.replica import Replica
from repl.model.entry import Entry
from repl.model.record import PartitionRecord


class Waiter:
    """One request's outcome, spread over one or more partitions.

    `results[slot]` is filled when an item is decided; the future is done when every group is. A group that
    fails overwrites its slots.
    """

    __slots__ = ("future", "remaining", "results")

    def __init__(self, future: asyncio.Future[list[object]], size: int) -> None:
        self.future = future
        self.results: list[object] = [None] * size
        self.remaining = 0

    def release(self, groups: int = 1) -> None:
        """`groups` more groups are decided."""
        self.remaining -= groups
        if self.remaining == 0 and not self.future.done():
            self.future.set_result(self.results)


class PendingGroup:
    """The items of one request in one partition that wait until all below `end` is applied."""

    __slots__ = ("end", "slots", "waiter")

    def __init__(self, end: int, waiter: Waiter, slots: Sequence[int]) -> None:
        self.end = end
        self.waiter = waiter
        self.slots = slots


class Partition:
    """One partition on this node: its core, and what is between append and apply."""

    __slots__ = (
        "actor",
        "bucket_type",
        "groups",
        "id",
        "index",
        "own_from",
        "partition_count",
        "pending",
        "pending_rows",
        "replica",
        "submitted",
    )

    def __init__(self, record: PartitionRecord, replica: Replica, actor: bytes) -> None:
        self.id = record.partition
        self.bucket_type = record.bucket_type.encode()
        self.index = record.index
        self.partition_count = record.partition_count
        self.replica = replica
        self.actor = actor
        self.pending: deque[Entry] = deque()
        """Entries of this process from the submitted offset on: appended, not yet handed to apply."""
        self.pending_rows: dict[tuple[bytes, bytes], Entry] = {}
        """(bucket, key) -> its newest entry that is not applied: reading one's own writes."""
        self.groups: deque[PendingGroup] = deque()
        self.submitted = replica.applied
        """Everything below was handed to apply."""
        self.own_from = -1
        """Offset of the first entry that this process appended; -1 when none. Older ones take no memory."""

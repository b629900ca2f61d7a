"""One partition on this node: its core, and what lies between append and answer.

Plain state, owned by the event loop: `repl.runtime` moves it, `repl.coordinator` adds to it. What of it is in memory
for the store is `repl.unapplied`'s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from repl.isr.effects import Role
from repl.isr.replica import Replica
from repl.model.entry import Entry
from repl.model.record import PartitionRecord
from repl.reaped_pushes import ReapedPushes
from repl.soft_cursors import SoftCursors
from repl.unapplied import Unapplied


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


class Appended(NamedTuple):
    """Entries of one kind that a leader appended at once; `end` is the offset behind them."""

    end: int
    at_ms: int
    kind: int
    entries: int


class Partition:
    """One partition on this node: its core, and what is between append and apply."""

    __slots__ = (
        "actor",
        "appended",
        "bucket_type",
        "committed",
        "deletion",
        "far",
        "groups",
        "handed_over_full",
        "id",
        "index",
        "log_start",
        "partition_count",
        "pending_rows",
        "reads",
        "reaped_pushes",
        "replica",
        "soft",
        "told_leading",
        "trouble",
        "unapplied",
    )

    def __init__(self, record: PartitionRecord, replica: Replica, actor: bytes, log_start: int) -> None:
        self.id = record.partition
        self.bucket_type = record.bucket_type.encode()
        self.index = record.index
        self.partition_count = record.partition_count
        self.replica = replica
        self.actor = actor
        self.unapplied = Unapplied(replica.applied, replica.leo)
        self.log_start = log_start
        """Where the log begins, as the core was told."""
        self.pending_rows: dict[tuple[bytes, bytes], Entry] = {}
        """(bucket, key) -> its newest entry that is not applied: a leader reads its own writes. Proposals begin once
        the barrier is applied, so all that they must see here was proposed in the same leadership."""
        self.groups: deque[PendingGroup] = deque()
        self.appended: deque[Appended] = deque()
        """Each batch appended here as a leader or candidate and not applied; `repl.entry_times` keeps it."""
        self.committed: deque[tuple[int, int]] = deque()
        """(end, when) of what was committed and is not applied; `repl.entry_times` keeps it."""
        self.reads: dict[int, asyncio.Future[None]] = {}
        """Committed reads that wait for the core's word, by token."""
        self.reaped_pushes = ReapedPushes()
        self.soft = SoftCursors()
        self.told_leading = False
        """The hooks know that this node leads, from its barrier on until it steps down: also while it hands over, which
        may not come about. Whatever is applied meanwhile is theirs."""
        self.trouble = ""
        """What keeps this replica from its work that the core does not know of: "code: sentence"."""
        self.deletion = ""
        """When this copy is deleted, of one that is no replica any more."""
        self.far = ""
        """What came of the rows that this copy takes, while it is far."""
        self.handed_over_full = False
        """Leadership was offered to others since the disk is full; once each time that it fills up."""

    def forget_pending(self, entries: Sequence[Entry]) -> None:
        """These are applied: the store has them for whoever reads now."""
        rows = self.pending_rows
        if rows:
            for entry in entries:
                place = (entry.bucket, entry.key)
                if rows.get(place) is entry:
                    del rows[place]

    @property
    def leads(self) -> bool:
        """True while it leads, also while it hands over."""
        return self.replica.role in (Role.LEADER, Role.RESIGNING)

    @property
    def removed(self) -> bool:
        """True when the record that is believed does not name this node: this copy is to go."""
        record = self.replica.record
        return record is not None and self.replica.member.node not in record.replicas

    @property
    def serves(self) -> bool:
        """True when this replica does what it is for: it leads and is ready, or it follows."""
        return self.replica.ready or (self.replica.following and not self.trouble)

    @property
    def reason(self) -> str:
        """Why the replica is in its state: "code: sentence"."""
        reason = self.trouble or self.replica.reason
        if self.deletion:
            return f"{reason}; {self.deletion}"
        return f"{reason}; {self.far}" if self.far and self.replica.far_position is not None else reason

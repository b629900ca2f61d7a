"""One partition on this node: its core, and what lies between append and answer.

Plain state, owned by the event loop: `repl.runtime.runtime` moves it, `repl.coordinator.coordinator` adds to it.

What one partition has appended and not yet applied, as far as it is in memory.

Pure bookkeeping. The entries in memory are a run [first, leo) at the log's end; what stands below `first` is in the
log alone and durable. Handing over moves `submitted`; what is handed over stays counted until it is applied. A run
is dropped from memory from its durable end only, since the log reads back nothing else.

    submitted <= first <= leo          what lies in [submitted, first) is read back when it is applied

Soft cursors of one partition on their way to its followers: the newest of each queue, and who has been told.

They travel with AppendEntries, at most once a second to each follower and at a hand-over at once; what is lost on the
way is only delivered to a sink again (docs/protocol.md R-SOFT). Pure; `repl.runtime.replication_sender` sends, the time
comes in.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.replica import Replica
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.store.reaped_pushes import ReapedPushes
from isthmus.repl.transport.port import NO_CURSORS

_WIRE: Final = itemgetter(Entry._fields.index("wire"))


class EntryRange(NamedTuple):
    """Entries [start, end) to be applied; `entries` is None where they are to be read back from the log."""

    start: int
    end: int
    entries: list[Entry] | None


def wire_bytes(entries: Sequence[Entry]) -> int:
    """Bytes of the encoded entries."""
    return sum(map(len, map(_WIRE, entries)))


class UnappliedBuffer:
    """Of one partition. `held_bytes` counts what is in memory, here or on its way into the store."""

    __slots__ = ("_entries", "first", "held_bytes", "submitted")

    def __init__(self, submitted: int, leo: int) -> None:
        self.submitted = submitted
        """Everything below was handed over to be applied."""
        self.first = max(submitted, leo)
        """Offset of the first entry in memory, or where it will be."""
        self.held_bytes = 0
        self._entries: list[Entry] = []

    def append(self, entries: Sequence[Entry]) -> int:
        """Entries that go to the log's end. What a store has applied already (its log was lost) is not kept. Returns
        the bytes that are."""
        offset = entries[0].offset
        if offset < self.first:
            entries = entries[self.first - offset :]
            if not entries:
                return 0
            offset = entries[0].offset
        assert offset == self.first + len(self._entries), "entries do not follow on what is in memory"
        self._entries.extend(entries)
        size = wire_bytes(entries)
        self.held_bytes += size
        return size

    def held(self, start: int, end: int) -> list[Entry] | None:
        """Entries [start, end), or None when not all of them are here."""
        first = self.first
        if start < first or end > first + len(self._entries):
            return None
        return self._entries[start - first : end - first]

    def hand_over(self, end: int, *, keep: bool = True) -> list[EntryRange]:
        """What is to be applied next so that all below `end` is. Without `keep` it leaves the memory instead and is
        read back when its turn comes."""
        start = self.submitted
        if end <= start:
            return []
        self.submitted = end
        taken = end - self.first
        if taken <= 0:
            return [EntryRange(start, end, None)]
        entries = self._entries[:taken]
        assert len(entries) == taken, f"asked to apply up to {end}, beyond the log's end"
        del self._entries[:taken]
        first, self.first = self.first, end
        if not keep:
            self.held_bytes -= wire_bytes(entries)
            return [EntryRange(start, end, None)]
        if start < first:
            return [EntryRange(start, first, None), EntryRange(first, end, entries)]
        return [EntryRange(start, end, entries)]

    def applied(self, entries: Sequence[Entry]) -> int:
        """Entries that were handed over in memory are in the store; returns their bytes."""
        size = wire_bytes(entries)
        self.held_bytes -= size
        return size

    def truncate(self, to_offset: int) -> None:
        """The log ends at `to_offset` now. Nothing of what was handed over is ever dropped from the log."""
        assert to_offset >= self.submitted, f"truncation to {to_offset}, but all below {self.submitted} is committed"
        keep = max(0, to_offset - self.first)
        self.held_bytes -= wire_bytes(self._entries[keep:])
        del self._entries[keep:]
        self.first = min(self.first, to_offset)

    def release(self, durable: int) -> None:
        """Drop from memory what the log can read back: everything below `durable`."""
        count = min(durable - self.first, len(self._entries))
        if count > 0:
            self.held_bytes -= wire_bytes(self._entries[:count])
            del self._entries[:count]
            self.first += count


TRAVEL_INTERVAL_MS: Final = 1_000
"""Least time between two copies to one follower: a busy queue moves its cursor with each batch."""


class CursorGossip:
    """Of one partition. Payloads are the queues' affair."""

    __slots__ = ("_newest", "_told", "_version")

    def __init__(self) -> None:
        self._newest: dict[bytes, bytes] = {}
        self._version = 0
        self._told: dict[str, tuple[int, int]] = {}
        """Node -> (version, when)."""

    def note(self, queue: bytes, payload: bytes) -> None:
        """A queue's cursor has moved."""
        if self._newest.get(queue) != payload:
            self._newest[queue] = payload
            self._version += 1

    def due(self, node: str, now_ms: int, *, at_once: bool) -> Mapping[bytes, bytes]:
        """What the next AppendEntries to `node` should carry: all of them, or nothing."""
        told = self._told.get(node)
        if self._version == (0 if told is None else told[0]):
            return NO_CURSORS
        if told is not None and not at_once and now_ms - told[1] < TRAVEL_INTERVAL_MS:
            return NO_CURSORS
        return dict(self._newest)

    def sent(self, node: str, now_ms: int) -> None:
        """What was due is on its way."""
        self._told[node] = (self._version, now_ms)

    def lost(self, node: str) -> None:
        """What was under way to `node` may not have arrived."""
        self._told.pop(node, None)


class BatchResult:
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


class PendingBatch:
    """The items of one request in one partition that wait until all below `end` is applied."""

    __slots__ = ("end", "slots", "waiter")

    def __init__(self, end: int, waiter: BatchResult, slots: Sequence[int]) -> None:
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
        self.unapplied = UnappliedBuffer(replica.applied, replica.leo)
        self.log_start = log_start
        """Where the log begins, as the core was told."""
        self.pending_rows: dict[tuple[bytes, bytes], Entry] = {}
        """(bucket, key) -> its newest entry that is not applied: a leader reads its own writes. Proposals begin once
        the barrier is applied, so all that they must see here was proposed in the same leadership."""
        self.groups: deque[PendingBatch] = deque()
        self.appended: deque[Appended] = deque()
        """Each batch appended here as a leader or candidate and not applied; `repl.runtime.metrics` keeps it."""
        self.committed: deque[tuple[int, int]] = deque()
        """(end, when) of what was committed and is not applied; `repl.runtime.metrics` keeps it."""
        self.reads: dict[int, asyncio.Future[None]] = {}
        """Committed reads that wait for the core's word, by token."""
        self.reaped_pushes = ReapedPushes()
        self.soft = CursorGossip()
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
        return self.replica.role in (ReplicaRole.LEADER, ReplicaRole.RESIGNING)

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

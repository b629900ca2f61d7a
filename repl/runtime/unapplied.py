"""Entries of one partition that are appended and not yet applied, as far as they are in memory.

The entries in memory are a run [first, leo) at the log's end; entries below `first` are durable and only in the log.
Handing entries to the applier moves `submitted`; their bytes stay counted until they are in the store. Only entries
below the durable end may leave memory, since the log can read back nothing else.

    submitted <= first <= leo          entries in [submitted, first) are read back when they are applied
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from isthmus.repl.model.entry import Entry, decode_entry

_WIRE: Final = itemgetter(Entry._fields.index("wire"))


def wire_bytes(entries: Sequence[Entry]) -> int:
    """Bytes of the encoded entries."""
    return sum(map(len, map(_WIRE, entries)))


def _held_bytes(entries: Sequence[Entry | bytes]) -> int:
    """Bytes of entries, of which some are not decoded yet."""
    return sum(len(each if isinstance(each, bytes) else each.wire) for each in entries)


def _decoded(entries: Sequence[Entry | bytes]) -> list[Entry]:
    """The entries. Raises CodecError."""
    return [decode_entry(each) if isinstance(each, bytes) else each for each in entries]


class EntryRange(NamedTuple):
    """Entries [start, end) to be applied; `entries` is None where they must be read back from the log."""

    start: int
    end: int
    entries: list[Entry] | None


class MemoryWindow:
    """Bytes of unapplied entries in memory, of all partitions of a node, and their limit (replication.window_size)."""

    __slots__ = ("held_bytes", "limit_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        """Written by the partitions' UnappliedBuffers only."""

    @property
    def exceeded(self) -> bool:
        """True when more than the limit is in memory."""
        return self.held_bytes > self.limit_bytes


class UnappliedBuffer:
    """One partition's unapplied entries, and the newest of them for each key. Pure, but for its share of `window`."""

    __slots__ = ("_entries", "_pending_rows", "_window", "first", "held_bytes", "pending_rows", "submitted")

    def __init__(self, submitted: int, leo: int, window: MemoryWindow) -> None:
        self.submitted = submitted
        """All entries below this offset were handed to the applier."""
        self.first = max(submitted, leo)
        """Offset of the first entry in memory, or of the next one to be appended."""
        self.held_bytes = 0
        """Bytes of this partition's entries in memory, here or on their way into the store."""
        self._window = window
        self._entries: list[Entry | bytes] = []
        """Those that came by a stream are decoded when they are needed."""
        self._pending_rows: dict[tuple[bytes, bytes], Entry] = {}
        self.pending_rows: Mapping[tuple[bytes, bytes], Entry] = self._pending_rows
        """(bucket, key) -> its newest unapplied entry: a leader reads its own writes. Writes begin once the barrier is
        applied, so all entries that they must see here were appended in the same leadership."""

    # -- entries ------------------------------------------------------------------------------------------

    def append(self, entries: Sequence[Entry]) -> None:
        """Add entries at the log's end. Entries that the store has applied already (its log was lost) are skipped."""
        offset = entries[0].offset
        if offset < self.first:
            entries = entries[self.first - offset :]
            if not entries:
                return
            offset = entries[0].offset
        assert offset == self.first + len(self._entries), "entries do not follow on what is in memory"
        self._entries.extend(entries)
        self._count(wire_bytes(entries))

    def append_encoded(self, start: int, wires: Sequence[bytes]) -> None:
        """Add encoded entries at the log's end, from offset `start` on."""
        assert start == self.first + len(self._entries), "entries do not follow on what is in memory"
        self._entries.extend(wires)
        self._count(sum(map(len, wires)))

    def held(self, start: int, end: int) -> list[Entry] | None:
        """Entries [start, end), or None when not all of them are in memory."""
        first = self.first
        if start < first or end > first + len(self._entries):
            return None
        return _decoded(self._entries[start - first : end - first])

    def take_committed(self, end: int, *, keep: bool = True) -> list[EntryRange]:
        """Return the ranges to be applied next, up to `end`. Without `keep` their entries leave memory and are read
        back from the log."""
        start = self.submitted
        if end <= start:
            return []
        self.submitted = end
        taken = end - self.first
        if taken <= 0:
            return [EntryRange(start, end, None)]
        held = self._entries[:taken]
        assert len(held) == taken, f"asked to apply up to {end}, beyond the log's end"
        entries = _decoded(held) if keep else []
        del self._entries[:taken]
        first, self.first = self.first, end
        if not keep:
            self._count(-_held_bytes(held))
            return [EntryRange(start, end, None)]
        if start < first:
            return [EntryRange(start, first, None), EntryRange(first, end, entries)]
        return [EntryRange(start, end, entries)]

    def applied(self, entries: Sequence[Entry], *, read_back: bool) -> None:
        """Forget entries that are in the store; `read_back` ones came from the log and were not counted."""
        if not read_back:
            self._count(-wire_bytes(entries))
        rows = self._pending_rows
        if rows:
            for entry in entries:
                name = (entry.bucket, entry.key)
                if rows.get(name) is entry:
                    del rows[name]

    def truncate(self, to_offset: int) -> None:
        """Drop entries from `to_offset` on, where the log ends now. Committed entries are never dropped."""
        assert to_offset >= self.submitted, f"truncation to {to_offset}, but all below {self.submitted} is committed"
        keep = max(0, to_offset - self.first)
        self._count(-_held_bytes(self._entries[keep:]))
        del self._entries[keep:]
        self.first = min(self.first, to_offset)

    def release(self, durable: int) -> None:
        """Drop from memory all entries below `durable`, which the log can read back."""
        count = min(durable - self.first, len(self._entries))
        if count > 0:
            self._count(-_held_bytes(self._entries[:count]))
            del self._entries[:count]
            self.first += count

    def reset(self, at_offset: int) -> None:
        """Begin again, empty, at `at_offset`. Nothing may be on its way into the store."""
        self._count(-self.held_bytes)
        self._entries.clear()
        self.submitted = self.first = at_offset

    def _count(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        self._window.held_bytes += size_bytes

    # -- pending rows -------------------------------------------------------------------------------------

    def add_pending_rows(self, newest: Mapping[tuple[bytes, bytes], Entry]) -> None:
        """Make entries that this leader has just appended visible to its next writes."""
        self._pending_rows.update(newest)

    def clear_pending_rows(self) -> None:
        """Forget all pending rows: leadership ended, and the next leader may drop their entries."""
        self._pending_rows.clear()

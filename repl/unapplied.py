"""What one partition has appended and not yet applied, as far as it is in memory.

Pure bookkeeping. The entries in memory are a run [first, leo) at the log's end; what stands below `first` is in the
log alone and durable. Handing over moves `submitted`; what is handed over stays counted until it is applied. A run
is dropped from memory from its durable end only, since the log reads back nothing else.

    submitted <= first <= leo          what lies in [submitted, first) is read back when it is applied
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from repl.model.entry import Entry

_WIRE: Final = itemgetter(Entry._fields.index("wire"))


class Stretch(NamedTuple):
    """Entries [start, end) to be applied; `entries` is None where they are to be read back from the log."""

    start: int
    end: int
    entries: list[Entry] | None


def wire_bytes(entries: Sequence[Entry]) -> int:
    """Bytes of the encoded entries."""
    return sum(map(len, map(_WIRE, entries)))


class Unapplied:
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

    def hand_over(self, end: int, *, keep: bool = True) -> list[Stretch]:
        """What is to be applied next so that all below `end` is. Without `keep` it leaves the memory instead and is
        read back when its turn comes."""
        start = self.submitted
        if end <= start:
            return []
        self.submitted = end
        taken = end - self.first
        if taken <= 0:
            return [Stretch(start, end, None)]
        entries = self._entries[:taken]
        assert len(entries) == taken, f"asked to apply up to {end}, beyond the log's end"
        del self._entries[:taken]
        first, self.first = self.first, end
        if not keep:
            self.held_bytes -= wire_bytes(entries)
            return [Stretch(start, end, None)]
        if start < first:
            return [Stretch(start, first, None), Stretch(first, end, entries)]
        return [Stretch(start, end, entries)]

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

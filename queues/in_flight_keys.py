"""References of a window that are in flight, and newer changes of their keys (pure).

    (taken)      -> in flight     in a leased batch
    in flight    -> followed      a change of its key was applied; the newest such change is remembered
    either       -> landed        acknowledged, dropped or requeued

A sink never works on two versions of one key at a time: `queues.window` blocks a newer change of a key in flight until
the older reference has landed. So versions arrive in order, and a key that changes all the time is sent once per round
trip (docs/protocol.md R-PLACE).
"""

from __future__ import annotations

from typing import Final

from isthmus.repl.model.entry import Entry, decode_key_row

OWNER_HASHES_MAX: Final = 16
"""Versions of one key from the cluster that fetches that are remembered while a reference of the key is in flight. The
oldest are dropped first; such a version could be sent back once, which changes nothing there."""


class PendingChange:
    """The changes of a key since its reference was taken."""

    __slots__ = ("hash64", "offered", "owner_hashes", "row", "settled")

    def __init__(self) -> None:
        self.row = -1
        """Offset of the newest change."""
        self.hash64: int | None = None
        """Hash of its object; None for a REAP."""
        self.offered = False
        """The queue offers one of the changes, so the newest has a place of its own."""
        self.settled = False
        """Nothing is to be sent: the sink has one of the changes, or one is a REAP."""
        self.owner_hashes: list[int] = []
        """Hashes of objects that came from the cluster that fetches."""


class InFlightKeys:
    """References in flight, by the row that each stands for."""

    __slots__ = ("_followed", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, PendingChange | None] = {}
        self._followed: dict[int, int] = {}
        """Row of a newest change -> the row in flight that it follows."""

    def __contains__(self, row: int) -> bool:
        return row in self.rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def has_newer(self) -> bool:
        """Whether the key of some reference has changed since it was taken."""
        return bool(self._followed)

    def follows(self, row: int) -> bool:
        """Whether the change at `row` is the newest of a key in flight."""
        return row in self._followed

    def changed(self, entry: Entry, *, offered: bool, settled: bool) -> bool:
        """An entry was applied. Returns False, without effect, when no reference of its key is in flight."""
        previous = entry.previous_offset
        row = previous if previous in self.rows else self._followed.get(previous)
        if row is None:
            return False
        newer = self.rows[row]
        if newer is None:
            newer = self.rows[row] = PendingChange()
        elif newer.row >= entry.offset:
            return True  # added a second time, after it was applied while rows were read
        else:
            self._followed.pop(newer.row, None)
        newer.row = entry.offset
        if settled or offered:
            newer.offered, newer.settled = not settled, settled
        newer.hash64 = decode_key_row(entry.row).hash64 if entry.row else None
        if settled and newer.hash64 is not None:
            newer.owner_hashes = [*newer.owner_hashes[1 - OWNER_HASHES_MAX :], newer.hash64]
        self._followed[entry.offset] = row
        return True

    def land(self, row: int) -> PendingChange | None:
        """Remove a reference that is in flight no more; returns the newer changes of its key, if any."""
        newer = self.rows.pop(row)
        if newer is not None:
            self._followed.pop(newer.row, None)
        return newer

    def clear(self) -> None:
        """Remove all."""
        self.rows.clear()
        self._followed.clear()

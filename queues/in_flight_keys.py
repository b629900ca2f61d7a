"""References of a window that are under lease, and what became of their keys meanwhile (pure).

    (taken)      -> away        in a batch
    away         -> overtaken   a change of its key was applied meanwhile; the newest such is remembered
    either       -> landed      acknowledged, dropped or given back

A sink never works on two versions of one key at a time: what overtakes a reference under lease is held back in the
window until that one has landed. So versions arrive in order, and a key that changes all the time goes once a round
trip (docs/protocol.md R-PLACE). The story goes on in `queues.window`.
"""

from __future__ import annotations

from typing import Final

from isthmus.repl.model.entry import Entry, decode_key_row

THEIRS_MAX: Final = 16
"""Versions of one key from the cluster that fetches, while a reference of it is under lease, that are remembered. Of
more, the oldest are forgotten, and could be given back to it once, which changes nothing there."""


class PendingChange:
    """The changes of a key since its reference was taken."""

    __slots__ = ("hash64", "offered", "row", "settled", "theirs")

    def __init__(self) -> None:
        self.row = -1
        """Offset of the newest one."""
        self.hash64: int | None = None
        """Of its object; None of a REAP."""
        self.offered = False
        """One of them is for this queue, so there is a place for the newest."""
        self.settled = False
        """None is, since the sink has one of them, or a REAP is among them."""
        self.theirs: list[int] = []
        """Hashes of objects that came from the cluster that fetches."""


class InFlightKeys:
    """See the module's text. By the row that a reference stands for."""

    __slots__ = ("_followed", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, PendingChange | None] = {}
        self._followed: dict[int, int] = {}
        """Row of a newest change -> the row under lease that it overtakes."""

    def __contains__(self, row: int) -> bool:
        return row in self.rows

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def overtaken(self) -> bool:
        """Some reference is."""
        return bool(self._followed)

    def follows(self, row: int) -> bool:
        """Whether the change at `row` is the newest of a key of which something is under lease."""
        return row in self._followed

    def changed(self, entry: Entry, *, offered: bool, settled: bool) -> bool:
        """An entry was applied; False, and nothing happens, when no reference of its key is under lease."""
        previous = entry.previous_offset
        row = previous if previous in self.rows else self._followed.get(previous)
        if row is None:
            return False
        newer = self.rows[row]
        if newer is None:
            newer = self.rows[row] = PendingChange()
        elif newer.row >= entry.offset:
            return True  # told once more, of what came while rows were read
        else:
            self._followed.pop(newer.row, None)
        newer.row = entry.offset
        if settled or offered:
            newer.offered, newer.settled = not settled, settled
        newer.hash64 = decode_key_row(entry.row).hash64 if entry.row else None
        if settled and newer.hash64 is not None:
            newer.theirs = [*newer.theirs[1 - THEIRS_MAX :], newer.hash64]
        self._followed[entry.offset] = row
        return True

    def land(self, row: int) -> PendingChange | None:
        """The reference is under lease no more; what overtook it."""
        newer = self.rows.pop(row)
        if newer is not None:
            self._followed.pop(newer.row, None)
        return newer

    def clear(self) -> None:
        """Forget all."""
        self.rows.clear()
        self._followed.clear()

"""How long members owe acknowledgements: who has stalled, and whether it is the leader's own disk.

Marks say when the log had grown to an offset; the age of what a member owes is that of the newest mark at or
below its acknowledged offset. Only time in which the leader ran counts: after a pause of its own the marks are moved
on by as much, since the acknowledgements wait unread. Rules: docs/protocol.md H19.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

CHECKS: Final = 8
"""Looks within one time limit: how exactly it is kept."""

GRAIN: Final = 16
"""Marks within one time limit: bounds their number to a few dozen, whatever the rate of writes."""

LATE_MS: Final = 250
"""A look that is later than this was delayed by a pause of this process, not by the loop's ordinary work."""


@dataclass(slots=True)
class Stalls:
    """The marks of one leadership: (log end before the append, when)."""

    marks: deque[tuple[int, int]]
    check_at_ms: int | None = None

    @staticmethod
    def since(now_ms: int) -> Stalls:
        """A leadership begins: everything in the log is owed from now on."""
        return Stalls(deque([(0, now_ms)]))

    def appended(self, leo_before: int, limit_ms: int, now_ms: int) -> None:
        """Entries were appended at `leo_before`."""
        if now_ms - self.marks[-1][1] >= limit_ms // GRAIN:
            self.marks.append((leo_before, now_ms))
        if self.check_at_ms is None:
            self.check_at_ms = now_ms + limit_ms // CHECKS

    def look_by(self, at_ms: int) -> None:
        """A look that is under way comes no later than this: the limit has changed."""
        if self.check_at_ms is not None and at_ms < self.check_at_ms:
            self.check_at_ms = at_ms

    def owed_ms(self, acknowledged: int, leo: int, now_ms: int) -> int:
        """How long the entry at `acknowledged` has been owed; 0 when nothing is."""
        if acknowledged >= leo:
            return 0
        since_ms = self.marks[0][1]
        for offset, at_ms in self.marks:
            if offset > acknowledged:
                break
            since_ms = at_ms
        return now_ms - since_ms

    def settled(self, acknowledged: int) -> None:
        """Everybody has acknowledged all below: older marks are of no use."""
        marks = self.marks
        while len(marks) > 1 and marks[1][0] <= acknowledged:
            marks.popleft()

    def forgive(self, now_ms: int) -> None:
        """If this look is late, the process was asleep: nobody is blamed for that time."""
        if self.check_at_ms is not None and now_ms - self.check_at_ms > LATE_MS:
            late_ms = now_ms - self.check_at_ms
            self.marks = deque((offset, at_ms + late_ms) for offset, at_ms in self.marks)
            self.check_at_ms = now_ms

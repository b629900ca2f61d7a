"""Pauses before a replica joins the ISR: who was thrown out waits, and so does who is not registered.

What a leader remembers of each node within its epoch. State and decisions, no time of its own; who is in sync is
`leader.py`'s to judge.

How long members owe acknowledgements: who has stalled, and whether it is the leader's own disk.

Marks say when the log had grown to an offset; the age of what a member owes is that of the newest mark at or
below its acknowledged offset. Only time in which the leader ran counts: after a pause of its own the marks are moved
on by as much, since the acknowledgements wait unread. Rules: docs/protocol.md H19.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

CHECKS: Final = 8
"""Looks within one time limit: how exactly it is kept."""

GRAIN: Final = 16
"""Marks within one time limit: bounds their number to a few dozen, whatever the rate of writes."""

LATE_MS: Final = 250
"""A look that is later than this was delayed by a pause of this process, not by the loop's ordinary work."""


@dataclass(slots=True)
class AckLagTracker:
    """The marks of one leadership: (log end before the append, when)."""

    marks: deque[tuple[int, int]]
    check_at_ms: int | None = None

    @staticmethod
    def since(now_ms: int) -> AckLagTracker:
        """A leadership begins: everything in the log is owed from now on."""
        return AckLagTracker(deque([(0, now_ms)]))

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


REJOIN_MIN_MS: Final = 5_000
"""A member that was taken out as too slow comes back no sooner than this."""

REJOIN_MAX_MS: Final = 60_000
"""Longest such pause; it doubles each time, so that a link at its limit changes the ISR about once a minute and not
all the time."""

REJOIN_HALF_MS: Final = 60_000
"""The pause is halved for each such time in sync: one bad hour a week ago is not held against a member."""

REFUSED_MIN_MS: Final = 1_000
"""Pause before a member is proposed again whose registration the metastore did not confirm; meanwhile others are."""

REFUSED_MAX_MS: Final = 8_000
"""Longest such pause; it doubles each time: a node that is heard and not registered costs few writes, and is back soon
after it has registered."""


@dataclass(slots=True)
class RejoinBackoff:
    """`left`: node -> (when it may come back, or did; after which pause). `refused`: node -> (when it may be proposed
    again, after which pause), of those whose registration a write did not find. `reasons`: node -> (why it was taken
    out, when), for people, as long as it is out."""

    left: dict[str, tuple[int, int]] = field(default_factory=dict)
    refused: dict[str, tuple[int, int]] = field(default_factory=dict)
    reasons: dict[str, tuple[str, int]] = field(default_factory=dict)

    def leaves(self, node: str, now_ms: int, reason: str = "") -> None:
        """A member is taken out of the ISR as too slow."""
        self.reasons[node] = reason, now_ms
        since_ms, pause_ms = self.left.get(node, (now_ms, 0))
        pause_ms >>= min(REJOIN_MAX_MS.bit_length(), max(0, now_ms - since_ms) // REJOIN_HALF_MS)
        pause_ms = max(REJOIN_MIN_MS, min(REJOIN_MAX_MS, 2 * pause_ms))
        self.left[node] = (now_ms + pause_ms, pause_ms)

    def joins(self, node: str, now_ms: int) -> None:
        """A node is proposed as a member: its time in sync begins."""
        if node in self.left:
            self.left[node] = (now_ms, self.left[node][1])

    def is_refused(self, node: str, now_ms: int) -> None:
        """The metastore did not confirm a node's registration."""
        pause_ms = min(REFUSED_MAX_MS, 2 * self.refused.get(node, (0, REFUSED_MIN_MS // 2))[1])
        self.refused[node] = (now_ms + pause_ms, pause_ms)

    def confirmed(self, nodes: Collection[str]) -> None:
        """These are members: their registrations were found."""
        for node in [node for node in self.refused if node in nodes]:
            del self.refused[node]
        for node in [node for node in self.reasons if node in nodes]:
            del self.reasons[node]

    def why(self, node: str, now_ms: int) -> str:
        """Why a node is out of the ISR and what it waits for, as far as this leader knows; "" for nothing."""
        found: list[str] = []
        if node in self.reasons:
            reason, at_ms = self.reasons[node]
            found.append(f"{reason}, taken out {max(0, now_ms - at_ms) / 1000:.0f} s ago")
            end_ms, pause_ms = self.left[node]
            if now_ms < end_ms:
                found.append(f"waits out its back-off of {pause_ms / 1000:g} s, {-(-(end_ms - now_ms) // 1000)} s left")
        end_ms, pause_ms = self.refused.get(node, (0, 0))
        if now_ms < end_ms:
            found.append(
                f"the metastore did not find it registered with this log, asked again after {pause_ms / 1000:g} s"
            )
        return "; ".join(found)

    def allow(self, node: str, now_ms: int, *, needed: bool) -> bool:
        """True when a node may be proposed; one that is `needed`, since too few are in sync, does not wait for having
        been slow."""
        if now_ms < self.refused.get(node, (0, 0))[0]:
            return False
        return needed or now_ms >= self.left.get(node, (0, 0))[0]

    def next_ms(self, nodes: Collection[str], after_ms: int) -> int | None:
        """When the next pause of `nodes` ends, after `after_ms`; None when none does."""
        ends = [pauses[node][0] for pauses in (self.left, self.refused) for node in nodes if node in pauses]
        return min((at_ms for at_ms in ends if at_ms > after_ms), default=None)

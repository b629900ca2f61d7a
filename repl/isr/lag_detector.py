"""Lag of members: how old missing acknowledgements are, and back-off before a removed member rejoins the ISR.

`AckLagTracker` keeps marks of when the log had grown to an offset. The age of a missing acknowledgement is that of the
newest mark at or below the acknowledged offset. Only time in which the leader ran counts: after a pause of its own
process, unread acknowledgements wait, so all marks move on by the pause (docs/protocol.md H19). `leader.py` decides who
is in sync.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

CHECKS: Final = 8
"""Lag checks within one time limit: the precision with which the limit is kept."""

MARKS: Final = 16
"""Marks within one time limit: bounds their number to a few dozen, whatever the rate of writes."""

PAUSED_MS: Final = 250
"""A check that is later than this was delayed by a pause of this process, not by the event loop's ordinary work."""

REJOIN_MIN_MS: Final = 5_000
"""Minimum back-off of a member that was removed as too slow."""

REJOIN_MAX_MS: Final = 60_000
"""Maximum back-off. It doubles with each removal, so that a link at its limit changes the ISR about once a minute."""

REJOIN_HALF_MS: Final = 60_000
"""The back-off halves for each such period in sync: one bad hour a week ago does not count against a member."""

REFUSED_MIN_MS: Final = 1_000
"""Minimum pause before a member is proposed again whose registration the metastore did not find; others may be."""

REFUSED_MAX_MS: Final = 8_000
"""Maximum such pause. It doubles each time: a node that sends messages and is not registered costs few writes, and
rejoins soon after it has registered."""


@dataclass(slots=True)
class AckLagTracker:
    """The marks of one leadership: (log end before an append, its time). `check_at_ms`: the next check, if any."""

    marks: deque[tuple[int, int]]
    check_at_ms: int | None = None

    @staticmethod
    def since(now_ms: int) -> AckLagTracker:
        """A tracker for a leadership that begins now: the whole log is unacknowledged from now on."""
        return AckLagTracker(deque([(0, now_ms)]))

    def appended(self, leo_before: int, limit_ms: int, now_ms: int) -> None:
        """Mark an append at `leo_before`, and schedule a check."""
        if now_ms - self.marks[-1][1] >= limit_ms // MARKS:
            self.marks.append((leo_before, now_ms))
        if self.check_at_ms is None:
            self.check_at_ms = now_ms + limit_ms // CHECKS

    def check_by(self, at_ms: int) -> None:
        """Move a scheduled check to `at_ms` if it is later: the limit has changed."""
        if self.check_at_ms is not None and at_ms < self.check_at_ms:
            self.check_at_ms = at_ms

    def lag_ms(self, acknowledged: int, leo: int, now_ms: int) -> int:
        """Return for how long the entry at `acknowledged` has gone unacknowledged; 0 at the log's end."""
        if acknowledged >= leo:
            return 0
        since_ms = self.marks[0][1]
        for offset, at_ms in self.marks:
            if offset > acknowledged:
                break
            since_ms = at_ms
        return now_ms - since_ms

    def acknowledged_by_all(self, end: int) -> None:
        """Drop marks that no member can be behind any more."""
        marks = self.marks
        while len(marks) > 1 and marks[1][0] <= end:
            marks.popleft()

    def discount_pause(self, now_ms: int) -> None:
        """If this check is late, the process was paused: move all marks on by the delay."""
        if self.check_at_ms is not None and now_ms - self.check_at_ms > PAUSED_MS:
            late_ms = now_ms - self.check_at_ms
            self.marks = deque((offset, at_ms + late_ms) for offset, at_ms in self.marks)
            self.check_at_ms = now_ms


@dataclass(slots=True)
class RejoinBackoff:
    """When nodes may be proposed for the ISR, in one leadership.

    `left`: node -> (end of its back-off, or when it rejoined; length of the back-off), of nodes removed as too slow.
    `refused`: node -> (end, length of the pause), of nodes whose registration a write did not find.
    `reasons`: node -> (why it was removed, when), while it is out; for people.
    """

    left: dict[str, tuple[int, int]] = field(default_factory=dict)
    refused: dict[str, tuple[int, int]] = field(default_factory=dict)
    reasons: dict[str, tuple[str, int]] = field(default_factory=dict)

    def leaves(self, node: str, now_ms: int, reason: str = "") -> None:
        """Begin the back-off of a node that is removed from the ISR as too slow."""
        self.reasons[node] = reason, now_ms
        since_ms, pause_ms = self.left.get(node, (now_ms, 0))
        pause_ms >>= min(REJOIN_MAX_MS.bit_length(), max(0, now_ms - since_ms) // REJOIN_HALF_MS)
        pause_ms = max(REJOIN_MIN_MS, min(REJOIN_MAX_MS, 2 * pause_ms))
        self.left[node] = (now_ms + pause_ms, pause_ms)

    def joins(self, node: str, now_ms: int) -> None:
        """Begin the time in sync of a node that is proposed as a member."""
        if node in self.left:
            self.left[node] = (now_ms, self.left[node][1])

    def not_registered(self, node: str, now_ms: int) -> None:
        """Begin the pause of a node whose registration the metastore did not find."""
        pause_ms = min(REFUSED_MAX_MS, 2 * self.refused.get(node, (0, REFUSED_MIN_MS // 2))[1])
        self.refused[node] = (now_ms + pause_ms, pause_ms)

    def confirmed(self, nodes: Collection[str]) -> None:
        """Forget pauses and reasons of confirmed members; the back-off stays for the next removal."""
        for node in [node for node in self.refused if node in nodes]:
            del self.refused[node]
        for node in [node for node in self.reasons if node in nodes]:
            del self.reasons[node]

    def why_out(self, node: str, now_ms: int) -> str:
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

    def allows(self, node: str, now_ms: int, *, needed: bool) -> bool:
        """True when a node may be proposed now. A `needed` one, while too few are in sync, skips its back-off."""
        if now_ms < self.refused.get(node, (0, 0))[0]:
            return False
        return needed or now_ms >= self.left.get(node, (0, 0))[0]

    def next_ms(self, nodes: Iterable[str], after_ms: int) -> int | None:
        """When the next back-off or pause of `nodes` ends after `after_ms`; None when none does."""
        if not self.left and not self.refused:
            return None
        ends = [pauses[node][0] for node in nodes for pauses in (self.left, self.refused) if node in pauses]
        return min((at_ms for at_ms in ends if at_ms > after_ms), default=None)

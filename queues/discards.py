"""What a queue that discards gives up when its budget is spent, as gaps for the next CURSOR entry (pure).

It is counted, remembered as a gap, and the cursor stays below the gap's start until that is in a CURSOR entry
(docs/protocol.md R-GAP). Who writes that one is `queues.registry`; what is not given up stands in `queues.intake`.
"""

from __future__ import annotations

from typing import Final

from queues.cursors import CursorState, Position
from queues.gaps import Gap, Gaps, covered, with_gap
from queues.rules import Budget, Ledger
from repl.model.entry import Entry

ROOM_AGAIN: Final = 0.9
"""A queue that has begun to give up goes on with it until it is this full: one gap an overflow, not one a change."""

PENDING_GAPS_MAX: Final = 16
"""Gaps that wait for their CURSOR entry; beyond it the last one grows over what lies between."""

DISCARDED: Final = "discard"

REFUSED: Final = "refused"
"""What a gap is of changes that the sink refused for good and keeps no dead letter of."""

NOT_KEPT: Final = "the other cluster refused it for good, and its node has no room for more dead letters"


class Discards:
    """The part of a window that knows of gaps; `queues.intake` is the rest."""

    __slots__ = (
        "_claimed_upto",
        "_given",
        "_giving",
        "_refused",
        "_skips",
        "base",
        "budget",
        "cursor",
        "ledger",
        "saved",
        "state",
    )

    def __init__(self, position: Position, budget: Budget) -> None:
        self.base = position.base
        self.state = position.state
        self.cursor = self.saved = position.cursor
        self.budget = budget
        self.ledger = Ledger()
        self._skips = tuple((g.start, g.end) for g in position.state.gaps if g.end > position.cursor)
        """Ranges of gaps in which nothing is offered."""
        self._given: list[Gap] = []
        """Given up at the limit and not yet in a CURSOR entry, rising."""
        self._claimed_upto = 0
        """Below it all of `_given` is in a CURSOR entry under way."""
        self._giving = False
        self._refused: Gaps = ()
        """Refused there for good, kept nowhere, and not yet in a CURSOR entry."""

    def _skipped(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._skips)

    def _give_up(self, entry: Entry) -> None:
        """The queue is full and discards: the change goes into a gap, unless there is room again."""
        budget = self.budget
        if self._giving and budget.references < budget.reference_limit * ROOM_AGAIN:
            self._giving = False
            return
        offset, time_ms, given = entry.offset, entry.time_ms, self._given
        grows = bool(given) and given[-1].end > self._claimed_upto
        if given and ((grows and self._giving) or len(given) >= PENDING_GAPS_MAX):
            last = given[-1]
            given[-1] = last._replace(
                end=offset + 1,
                from_ms=min(last.from_ms, time_ms),
                upto_ms=max(last.upto_ms, time_ms),
                left_out=last.left_out + 1 if grows else 1,
            )
        else:
            limit = budget.reference_limit
            start = given[-1].end if given and self._giving else offset
            given.append(Gap(start, offset + 1, time_ms, time_ms, 1, DISCARDED, "", f"{limit} references waited"))
        self._giving = True
        self.ledger.given_up += 1

    def _refuse(self, row: int, time_ms: int) -> None:
        """The change at `row` was served, and the sink neither stores nor keeps it: a gap."""
        self._refused = with_gap(self._refused, Gap(row, row + 1, time_ms, time_ms, 1, REFUSED, "", NOT_KEPT))

    def claim_gaps(self) -> tuple[Gap, ...]:
        """`unrecorded`, for a CURSOR entry: they grow no more, or it and the next would both count what they count."""
        if self._given:
            self._claimed_upto = self._given[-1].end
        return (*self._given, *self._refused)

    def unrecorded(self) -> tuple[Gap, ...]:
        """Gaps that no CURSOR entry has yet."""
        return (*self._given, *self._refused)

    def gave_up(self, offset: int) -> bool:
        """Whether the offset lies in a gap on record; below others the cursor stands."""
        return any(gap.start <= offset < gap.end for gap in self.state.gaps)

    def recorded(self, base: int, state: CursorState) -> None:
        """A CURSOR entry at `base` changed nothing but gaps of discarding, below which the cursor stands."""
        self.base, self.saved, self.state = base, state.cursor, state
        self._skips = tuple((g.start, g.end) for g in state.gaps if g.end > self.cursor)
        ends = [gap.end for gap in state.gaps]
        self._given = [gap for gap in self._given if not any(gap.end <= end for end in ends)]
        self._refused = tuple(gap for gap in self._refused if not covered(state.gaps, gap.start, gap.end))
        if not self._given:
            self._giving = False

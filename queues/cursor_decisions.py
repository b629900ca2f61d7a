"""What a partition's next CURSOR entry should say, and what its applying means for the window (pure).

Owner versions, suspensions of publishing and overflows are decided outside the log; each becomes true in a partition
by a CURSOR entry. The story goes on in `queues.source_queue`; who writes them is `queues.service`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from isthmus.queues.cursors import CursorState
from isthmus.queues.gaps import OPEN, QueueGap, covered, ended, growing, with_gap
from isthmus.queues.window import Window
from isthmus.repl.store.port import Change

PUBLISHING_SUSPENDED: Final = "publishing-suspended"
"""What a gap is that grows while publishing is suspended."""


class PublishingSuspended(NamedTuple):
    """Publishing is suspended: by whom, and why."""

    by: str
    reason: str


class PublishingUnknown(PublishingSuspended):
    """Nobody could read yet whether it is: where a gap grows it grows on, and none begins."""


def wanted_state(
    window: Window, owner: bytes, owner_version: int, stopped: PublishingSuspended | None, wall_ms: int
) -> CursorState | None:
    """The state of a window's partition once it says the owner version, whether publishing is suspended, and what was
    given up; None when its last CURSOR entry says all that already."""
    before, gaps = window.state, window.state.gaps
    open_gap, given = growing(gaps), window.claim_gaps()
    if stopped is None and open_gap is not None:
        if window.complete_from == open_gap.start + 1 and not window.ledger.given_up:
            gaps = gaps[:-1]  # told of all since the entry that opened it, and nothing was left out
        else:
            gaps = ended(gaps, window.applied, wall_ms, window.ledger.given_up)
    elif stopped is not None and open_gap is None and not isinstance(stopped, PublishingUnknown):
        gaps = with_gap(gaps, QueueGap(window.applied, OPEN, wall_ms, 0, 0, PUBLISHING_SUSPENDED, *stopped))
    its_owner, version = before.owner, before.owner_version
    if version < owner_version:
        its_owner, version = owner, owner_version
    elif gaps is before.gaps and not given:
        return None
    for gap in given:
        gaps = with_gap(gaps, gap)
    # What the owner of before was not given, since it had made it, is not settled for the next one. Whatever else the
    # window has passed since its last entry, nobody acknowledged: the owner's version had come to its end by then.
    cursor = window.advance() if its_owner == before.owner else window.state.cursor
    return CursorState(cursor, version, its_owner, before.decree, gaps)


def ends_a_gap(before: CursorState, after: CursorState) -> QueueGap | None:
    """The gap that grows in `before` and does not in `after`."""
    grew = growing(before.gaps)
    return grew if grew is not None and growing(after.gaps) is None else None


def from_the_first(after: CursorState, grew: QueueGap, rows: Sequence[Change]) -> CursorState:
    """`after`, in which the gap that grew begins with the first of its changes; `rows` of the index from its start on.
    What was under way when publishing was suspended is in the gap, and was made before."""
    gaps = []
    for gap in after.gaps:
        if gap.start <= grew.start < gap.end:
            first_ms = min((row.time_ms for row in rows if row.offset < gap.end), default=gap.from_ms)
            gap = gap._replace(from_ms=min(gap.from_ms, first_ms))
        gaps.append(gap)
    return replace(after, gaps=tuple(gaps))


def needs_no_new_window(window: Window, after: CursorState) -> bool:
    """True when a new state leaves owner, decree and the gaps that a window looks at as they were, and all that the
    window has passed over since: of two entries of one act, when nobody knew what became of the first, the second may
    say less."""
    before, cursor = window.state, window.cursor
    return (
        after.cursor <= cursor
        and before.owner_version == after.owner_version
        and before.decree == after.decree
        and growing(before.gaps) is None
        and growing(after.gaps) is None
        and all(covered(after.gaps, max(gap.start, after.cursor), min(gap.end, cursor)) for gap in before.gaps)
    )

"""Content of a partition's next CURSOR entry, and whether an applied one needs a new window (pure).

Owner versions, suspensions of publishing and overflows are decided outside the log; each takes effect in a partition by
a CURSOR entry. `queues.cursor_keeper` writes the entries.
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
"""`what` of a gap that grows while publishing is suspended."""


class PublishingSuspended(NamedTuple):
    """Publishing is suspended: by whom, and why."""

    by: str
    reason: str


class PublishingUnknown(PublishingSuspended):
    """Suspensions have not been read yet: gaps that grow go on growing, and none begins."""


def wanted_state(
    window: Window, owner: bytes, owner_version: int, suspended: PublishingSuspended | None, wall_ms: int
) -> CursorState | None:
    """State of the window's partition with the owner version, the suspension of publishing, and new gaps; None when the
    last CURSOR entry contains all of them."""
    before, gaps = window.state, window.state.gaps
    open_gap, given = growing(gaps), window.claim_gaps()
    if suspended is None and open_gap is not None:
        if window.complete_from == open_gap.start + 1 and not window.ledger.given_up:
            gaps = gaps[:-1]  # everything since the entry that opened it was added, and nothing was left out
        else:
            gaps = ended(gaps, window.applied, wall_ms, window.ledger.given_up)
    elif (
        suspended is not None
        and open_gap is None
        and window.offers_some
        and not isinstance(suspended, PublishingUnknown)
    ):
        gaps = with_gap(gaps, QueueGap(window.applied, OPEN, wall_ms, 0, 0, PUBLISHING_SUSPENDED, *suspended))
    its_owner, version = before.owner, before.owner_version
    if version < owner_version:
        its_owner, version = owner, owner_version
    elif gaps is before.gaps and not given:
        return None
    for gap in given:
        gaps = with_gap(gaps, gap)
    # Changes that the former owner was not served, because it had made them, are not settled for the next owner. And
    # nothing else that the window has passed since its last entry was acknowledged: the owner's version had ended.
    cursor = window.advance() if its_owner == before.owner else window.state.cursor
    return CursorState(cursor, version, its_owner, before.command_version, gaps)


def ends_a_gap(before: CursorState, after: CursorState) -> QueueGap | None:
    """The gap that grows in `before` and does not in `after`."""
    grew = growing(before.gaps)
    return grew if grew is not None and growing(after.gaps) is None else None


def dated_from_first(after: CursorState, grew: QueueGap, rows: Sequence[Change]) -> CursorState:
    """`after`, with the gap that grew dated from the first of its changes; `rows` of the index from its start on.
    Changes that were under way when publishing was suspended are in the gap and were made earlier."""
    gaps = []
    for gap in after.gaps:
        if gap.start <= grew.start < gap.end:
            first_ms = min((row.time_ms for row in rows if row.offset < gap.end), default=gap.from_ms)
            gap = gap._replace(from_ms=min(gap.from_ms, first_ms))
        gaps.append(gap)
    return replace(after, gaps=tuple(gaps))


def needs_no_new_window(window: Window, after: CursorState) -> bool:
    """Whether a new state leaves owner, cursor command and the gaps that the window uses as they are, and everything
    that the window has skipped since. When the outcome of an entry was not known, the second entry of the same act may
    contain less."""
    before, cursor = window.state, window.cursor
    return (
        after.cursor <= cursor
        and before.owner_version == after.owner_version
        and before.command_version == after.command_version
        and growing(before.gaps) is None
        and growing(after.gaps) is None
        and all(covered(after.gaps, max(gap.start, after.cursor), min(gap.end, cursor)) for gap in before.gaps)
    )

"""Gaps: ranges of changes that a queue skips on purpose (pure).

A gap is a range of offsets of one partition, with the leader's wall clock at both ends and the reason. It is part of
the CURSOR entries of its partition, so it is as durable as the data, until a full-sync of that range closes it
(docs/protocol.md R-GAP). A window skips the changes in a gap. A gap whose end is OPEN still grows: publishing is
suspended. The changes in a gap *may* be missing at the sink, so two gaps may be merged into one that covers both.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, Final, NamedTuple

from msgspec import Meta

from isthmus.repl.model.vclock import MAX_OFFSET

OPEN: Final = MAX_OFFSET + 1
"""The end of a gap that still grows."""

GAPS_MAX: Final = 32
"""Most gaps of one queue in one partition; beyond it the two closest are merged. A guess: each gap comes from an
operator's command or an overflow, and is written in every CURSOR entry."""

REASON_MAX: Final = 200
"""Longest reason, and longest `by`, in characters; the rest is cut off."""


class QueueGap(NamedTuple):
    """Changes at offsets [start, end), made between `from_ms` and `upto_ms`, some of which the queue skipped.

    `left_out`: at least so many were skipped; 0: not counted. `what`: discard, publishing-suspended, cleared, released,
    offer-changed, refused, unreadable."""

    start: Annotated[int, Meta(ge=0)]
    end: Annotated[int, Meta(le=OPEN)]
    from_ms: int
    upto_ms: int
    left_out: int
    what: str
    by: str
    reason: str

    @property
    def is_open(self) -> bool:
        """Whether it still grows."""
        return self.end == OPEN

    def as_dict(self, partition: int) -> dict[str, Any]:
        """For listings; `end` and `upto_ms` are None while it grows."""
        return {
            "id": f"{partition}:{self.start}",
            "partition": partition,
            "from_offset": self.start,
            "upto_offset": None if self.is_open else self.end,
            "from_ms": self.from_ms,
            "upto_ms": None if self.is_open else self.upto_ms,
            "count_at_least": self.left_out,
            "count_at_most": None,
            "what": self.what,
            "by": self.by,
            "reason": self.reason,
        }


Gaps = tuple[QueueGap, ...]
"""Gaps of one queue in one partition: by rising start, not overlapping."""


def with_gap(gaps: Gaps, new: QueueGap) -> Gaps:
    """`gaps` and `new`, merged where they touch or where there are more than GAPS_MAX."""
    if new.start >= new.end:
        return gaps
    cut = new._replace(by=new.by[:REASON_MAX], reason=new.reason[:REASON_MAX])
    found: list[QueueGap] = []
    for gap in sorted((*gaps, cut)):
        if found and (gap.start < found[-1].end or (gap.start == found[-1].end and gap[5:] == found[-1][5:])):
            found[-1] = _merged(found[-1], gap)
        else:
            found.append(gap)
    while len(found) > GAPS_MAX:
        at = min(range(len(found) - 1), key=lambda i: found[i + 1].start - found[i].end)
        found[at : at + 2] = [_merged(found[at], found[at + 1])]
    return tuple(found)


def below(gaps: Gaps, cursor: int) -> Gaps:
    """`gaps` cut off at `cursor`, from which on everything is offered again. A gap that still grows is not cut."""
    left = []
    for gap in gaps:
        if gap.is_open:
            left.append(gap)
        elif gap.start < cursor:
            left.append(gap._replace(end=min(gap.end, cursor)))
    return tuple(left)


def without(gaps: Gaps, closed: Collection[QueueGap]) -> Gaps:
    """`gaps` without those in `closed`. A gap that has changed since, or still grows, remains."""
    return tuple(gap for gap in gaps if gap.is_open or gap not in closed)


def covered(gaps: Gaps, start: int, end: int) -> bool:
    """Whether each of the offsets [start, end) lies in one of `gaps`."""
    for gap in gaps:
        if gap.start <= start:
            start = max(start, gap.end)
    return start >= end


def ended(gaps: Gaps, end: int, now_ms: int, count: int) -> Gaps:
    """`gaps` after the growing one has ended at `end` (exclusive); `count` is added to its skipped changes."""
    left = []
    for gap in gaps:
        if not gap.is_open:
            left.append(gap)
        elif end > gap.start:
            left.append(gap._replace(end=end, upto_ms=now_ms, left_out=gap.left_out + count))
    return tuple(left)


def growing(gaps: Gaps) -> QueueGap | None:
    """The gap that still grows, always the last one, or None."""
    return gaps[-1] if gaps and gaps[-1].is_open else None


def _merged(one: QueueGap, other: QueueGap) -> QueueGap:
    first, later = (one, other) if one.start <= other.start else (other, one)
    same = one.what == other.what
    return QueueGap(
        first.start,
        max(one.end, other.end),
        min(one.from_ms, other.from_ms),
        max(one.upto_ms, other.upto_ms),
        one.left_out + other.left_out,
        first.what if same else f"{first.what} and {later.what}"[:REASON_MAX],
        later.by,
        later.reason,
    )

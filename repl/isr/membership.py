"""Membership of a partition: ISR, ELR, guard and maximal ISR as sets of members, and the pending record write.

The guard (ISR and ELR) may be elected; each of its members holds everything that is committed. The maximal ISR is the
confirmed ISR with any members that a pending write may add (docs/protocol.md R-MAX). A member that leaves while the ISR
falls below min-ISR stays electable in the ELR (R-ELR).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from isthmus.repl.model.record import Member, PartitionRecord

WRITE_REPEAT_MS: Final = 200
"""Pause before a write with an unknown outcome is repeated: long enough not to flood a metastore that elects its own
leader, short against a session (seconds)."""

WRITE_ANSWER_MS: Final = 2_000
"""A write without any answer for this long is repeated, too, since the answer may be lost. Far above a healthy round
trip (about 10 ms); the version makes a needless repeat harmless."""


@dataclass(slots=True)
class PendingRecordWrite:
    """A conditional write that is not decided, repeated verbatim until the record's version changes (R-AMBIG, H14).

    `needs`: members whose registration it depends on. `adds`: members that this write, or a refused one before it on
    the same version, may have added to the ISR (R-MAX).
    """

    record: PartitionRecord
    repeat_at_ms: int
    needs: tuple[Member, ...] = ()
    adds: frozenset[Member] = frozenset()

    @property
    def base_version(self) -> int:
        """The version on which the write is conditional."""
        return self.record.version


def guard(record: PartitionRecord) -> frozenset[Member]:
    """The members that may be elected."""
    return record.isr | record.elr


def maximal_isr(record: PartitionRecord, adds: frozenset[Member]) -> frozenset[Member]:
    """The members that must acknowledge a commit: the confirmed ISR, and `adds` of a pending write."""
    return record.isr | adds if adds else record.isr


def too_few_in_sync(record: PartitionRecord) -> bool:
    """True when the confirmed ISR is below the effective min-ISR, so nothing may be appended or committed."""
    count = len(record.isr)
    # effective_min_isr costs more, and this runs with every commit
    return (count < record.min_isr or count == 0) and count < record.effective_min_isr


def drop_members(record: PartitionRecord, gone: frozenset[Member]) -> PartitionRecord:
    """Return `record` without `gone` in the ISR; leader and controller remove members only by this function.

    The removed members hold everything committed so far; they stay electable while fewer than min-ISR members remain
    (H9).
    """
    stay = record.isr - gone
    if len(stay) < record.effective_min_isr:
        return replace(record, isr=stay, elr=record.elr | (record.isr & gone))
    return replace(record, isr=stay)


def with_member(record: PartitionRecord, member: Member) -> PartitionRecord:
    """Return `record` with `member` in the ISR, replacing any other copy of its node.

    Members join only by this function. With min-ISR members in sync it empties the ELR."""
    isr = frozenset(m for m in record.isr if m.node != member.node) | {member}
    elr = frozenset(m for m in record.elr if m.node != member.node)
    return replace(record, isr=isr, elr=frozenset() if len(isr) >= record.effective_min_isr else elr)

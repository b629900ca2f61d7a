"""Who must hold an entry, and who may be elected: sets of members of a record.

The guard (ISR and ELR) is who may be elected; every member of it must hold all that is committed. The
maximal ISR is the confirmed one with whatever a write under way may add (docs/protocol.md R-MAX). A member that
leaves while the ISR falls below min-ISR stays electable in the ELR (R-ELR).

A conditional write whose fate is not known: kept, and repeated, until the record's version has moved.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from isthmus.repl.model.record import Member, PartitionRecord

WRITE_REPEAT_MS: Final = 200
"""Pause before a write that came back undecided is repeated: long enough not to flood a metastore that is
electing its own leader, short against a session (seconds)."""

WRITE_ANSWER_MS: Final = 2_000
"""A write without any answer for this long is repeated, too: the answer may have been lost on its way here.
Far above a healthy round trip (about 10 ms); a needless repeat is refused by its version."""


@dataclass(slots=True)
class PendingRecordWrite:
    """A conditional write that is not decided. It is repeated verbatim until the record's version has moved,
    whatever the answers say (R-AMBIG, H14). `needs` are the members whose registration it depends on; `adds` whom this
    write, or a refused one before it on the same version, may have added to the ISR (R-MAX)."""

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
    """The members whose acknowledgement a commit needs: confirmed, and those whom an undecided write may have
    added (`adds`)."""
    return record.isr | adds if adds else record.isr


def too_few_in_sync(record: PartitionRecord) -> bool:
    """True when the confirmed ISR is below the effective min-ISR: nothing may be appended or committed."""
    count = len(record.isr)
    # the clamp to the replication factor matters only below min_isr as set; this runs with every commit
    return (count < record.min_isr or count == 0) and count < record.effective_min_isr


def drop_members(record: PartitionRecord, gone: frozenset[Member]) -> PartitionRecord:
    """`record` with `gone` out of the ISR: the one way in which members leave it, for leader and controller.

    Everything committed so far is on those who leave, too; while fewer than min-ISR stay, they
    remain electable (H9).
    """
    stay = record.isr - gone
    if len(stay) < record.effective_min_isr:
        return replace(record, isr=stay, elr=record.elr | (record.isr & gone))
    return replace(record, isr=stay)


def with_member(record: PartitionRecord, member: Member) -> PartitionRecord:
    """`record` with `member` in the ISR instead of any other copy of its node: the one way in which one joins. With
    min-ISR members in sync nobody outside needs to be elected any more."""
    isr = frozenset(m for m in record.isr if m.node != member.node) | {member}
    elr = frozenset(m for m in record.elr if m.node != member.node)
    return replace(record, isr=isr, elr=frozenset() if len(isr) >= record.effective_min_isr else elr)

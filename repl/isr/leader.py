"""The leader: what it refuses, what its acknowledgements commit, what it wants to have written.

State and pure decisions; `replica.py` makes the transitions. A leader that resigns keeps all of it until
the record names it no longer: while its write is undecided it commits and repeats, and serves nothing. Rules
that are cited by name stand in docs/protocol.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

from repl.isr.effects import Role
from repl.isr.events import Append
from repl.isr.membership import maximal_isr, too_few_in_sync
from repl.isr.progress import Progress
from repl.model.errors import Fenced, NotReady, Overloaded, TooFewInSync
from repl.model.record import Member, PartitionRecord, PartitionStatus

WRITE_REPEAT_MS: Final = 200
"""Pause before a write that came back undecided is repeated: long enough not to flood a metastore that is
electing its own leader, short against a session (seconds)."""

WRITE_ANSWER_MS: Final = 2_000
"""A write without any answer for this long is repeated, too: the answer may have been lost on its way here.
Far above a healthy round trip (about 10 ms); a needless repeat is refused by its version."""


@dataclass(slots=True)
class PendingWrite:
    """A conditional write that is not decided. It is repeated verbatim until the record's version has moved,
    whatever the answers say (R-AMBIG, H14)."""

    record: PartitionRecord
    repeat_at_ms: int

    @property
    def base_version(self) -> int:
        """The version on which the write is conditional."""
        return self.record.version


@dataclass(slots=True)
class Leadership:
    """What a leader knows of its epoch. `acked`: how far each member said, in this epoch, that it holds the
    log durably, the leader itself included; who never said anything holds nothing."""

    epoch: int
    barrier: int
    acked: dict[Member, int] = field(default_factory=dict)
    pending: PendingWrite | None = None
    ready: bool = False

    def committed_end(self, record: PartitionRecord, durable: int) -> int | None:
        """Entries below the answer are committed under the confirmed `record`; None when nothing may be decided.

        R-COMMIT: all of the maximal ISR must have acknowledged, the confirmed ISR must have min-ISR
        members, nobody outside it may be electable, and never past what is durable here. Entries of
        earlier epochs are committed together with this epoch's barrier, never before it.
        """
        if too_few_in_sync(record) or record.elr:
            return None
        end = durable
        for member in maximal_isr(record, self.pending.record if self.pending else None):
            end = min(end, self.acked.get(member, 0))
        return end if end > self.barrier else None


@dataclass(slots=True)
class Leader(Leadership):
    """It leads: appends, and after its barrier is applied serves clients."""

    role: ClassVar[Role] = Role.LEADER


@dataclass(slots=True)
class Resigning(Leadership):
    """It was told to go: appends nothing new, drains, and then has itself taken out of the record."""

    role: ClassVar[Role] = Role.RESIGNING


def refusal(
    leader: Leader, record: PartitionRecord, progress: Progress, window_entries: int, append: Append
) -> str | None:
    """The code with which `append` is refused, or None when it may be appended.

    The window counts what is appended and not applied, which bounds the memory of a stalled partition
    and keeps the log's uncommitted tail below `window_entries`; a batch that does not fit is refused
    whole, so batches must not be larger than the window.
    """
    if not leader.ready:
        return NotReady.reason
    if append.epoch != leader.epoch or not progress.follows(leader.epoch, append.entries):
        return Fenced.reason
    if too_few_in_sync(record):
        return TooFewInSync.reason
    if progress.leo - progress.applied + len(append.entries) > window_entries:
        return Overloaded.reason
    return None


def wanted_record(
    state: Leader | Resigning, record: PartitionRecord, progress: Progress, node: str
) -> PartitionRecord | None:
    """The next conditional write that the leader wants, on the version of `record`, or None.

    First an ELR that is no longer needed is emptied, since nothing is committed before (H22).
    A resignation waits until everything that was appended is applied and so answered.
    """
    if record.elr and not too_few_in_sync(record):
        return replace(record, elr=frozenset())
    if isinstance(state, Resigning) and progress.applied == progress.leo:
        return replace(
            record,
            status=PartitionStatus.ELECTION,
            leader=None,
            candidate=None,
            tried=frozenset(),
            preferred=None,
            reason=f"{node} resigned",
        )
    return None

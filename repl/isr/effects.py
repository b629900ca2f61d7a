"""What a replica asks for: the only output of `Replica.step`, to be carried out in order.

The shell never chooses an order of its own: that an entry is durable before it is committed, committed
before it is applied and applied before it is answered is decided here, by which effect follows which
event (`events.py`). Asking twice for the same thing is allowed where a docstring says "repeated".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from repl.model.entry import Entry
from repl.model.record import PartitionRecord


class Role(StrEnum):
    """What a replica is at the moment; the transitions stand in `replica.py`."""

    IDLE = "idle"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNING = "resigning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Make `epoch` durable as the highest seen, then say EpochPersisted; nothing is done in it before."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AppendBarrier:
    """Append a BARRIER entry of this epoch at this offset, in order with Persist; answered by Persisted."""

    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Append these entries to the log; answered by Persisted once they are durable."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """All entries below `end` are committed: apply them in order; answered by AppliedTo."""

    end: int


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write `record` if the metastore's version is still `record.version`; repeated verbatim while undecided.
    Answered by WriteConfirmed, WriteRefused or WriteUndecided."""

    record: PartitionRecord


@dataclass(frozen=True, slots=True)
class Promoted:
    """To the controllers: this candidate's barrier is durable; repeated until the record says Online."""

    epoch: int
    node: str
    inc: int
    gen: int


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role is now `role`, in `epoch`, because of `reason` ("code: sentence")."""

    role: Role
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeadershipReady:
    """The barrier of `epoch` is applied: committed reads and client writes may start."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """Leadership of `epoch` is over. Entries below `unknown_from` are committed and their AppliedTo answers
    them; what was appended from there on is UNKNOWN to its clients."""

    epoch: int
    unknown_from: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """An Append of `count` entries was refused before anything happened. `reason` is the code of the Retryable
    error in `repl.model.errors` that the client is to see."""

    reason: str
    count: int


Effect = (
    Persist
    | Apply
    | AppendBarrier
    | PersistEpoch
    | WriteRecord
    | Promoted
    | RoleChanged
    | LeadershipReady
    | SteppedDown
    | Refused
)

"""What a replica asks for: the only output of `Replica.step`, to be carried out in order.

The shell never chooses an order of its own: that an entry is durable before it is committed, committed
before it is applied and applied before it is answered is decided here, by which effect follows which
event (`events.py`). Asking twice for the same thing is allowed where a docstring says "repeated".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.isr.messages import AppendEntries, Message, TransferRequest
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord


class ReplicaRole(StrEnum):
    """What a replica is at the moment; the transitions stand in `replica.py`."""

    IDLE = "idle"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNING = "resigning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Make `epoch` durable as the highest seen, with who leads or stands in it (None: not known), then say
    EpochPersisted; nothing is done in it before."""

    epoch: int
    owner: Incarnation | None = None


@dataclass(frozen=True, slots=True)
class AppendBarrier:
    """Append a BARRIER entry of this epoch at this offset, in order with Persist; answered by Persisted."""

    epoch: int
    offset: int


class Persist(NamedTuple):
    """Append these entries to the log; answered by Persisted once they are durable."""

    entries: tuple[Entry, ...]


class Apply(NamedTuple):
    """All entries below `end` are committed: apply them in order; answered by AppliedTo."""

    end: int


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write `record` if the metastore's version is still `record.version`, and each node of `needs` is registered,
    active, and has the gen that is named; repeated verbatim while undecided. Answered by WriteConfirmed,
    WriteRefused or WriteOutcomeUnknown."""

    record: PartitionRecord
    needs: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Promoted:
    """To the controllers: this candidate's barrier is durable; repeated until the record says Online."""

    epoch: int
    node: str
    inc: int
    gen: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the replica on `to`; it may be lost."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Replicate:
    """Send `head` to the follower on `to` with the entries [head.start, end) of the log, as many as fit one message,
    at least the first; in the live lane, or (`live` False) the catch-up lane. Dropped when, at the time
    of sending, this replica leads no longer in `head.epoch`, or the log does not hold `head.start` any more."""

    to: str
    head: AppendEntries
    end: int
    live: bool


@dataclass(frozen=True, slots=True)
class Truncate:
    """Drop the log's entries from `to_offset` on, because of the leader of `epoch`, in order with Persist; answered
    by Truncated once durable. Nobody was ever told that they are committed."""

    to_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """These reads may be served now from the applied state, at once, before anything else happens here."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadRefused:
    """These reads cannot be served as committed; `reason` is the code of a Retryable error."""

    tokens: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ReadRecordSync:
    """Read this partition's record after a sync, begun from now on; answered by RecordSynced, or not at all."""

    nonce: int


@dataclass(frozen=True, slots=True)
class RefreshRecord:
    """A hint that the record has moved: read it soon and say RecordSeen."""


@dataclass(frozen=True, slots=True)
class NewLogIdentity:
    """This copy of the log can no longer be believed: take another gen, make it durable, register it, then say
    GenRenewed. `reason` is one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class BeginTransfer:
    """Mark this copy as far, durably, once all that Apply asked for is written; where the store may lack rows, empty it
    durably, too (`empty`: in any case). Answered by TransferStored. `reason`, and `again` where rows were taken
    already: for people."""

    empty: bool
    reason: str = field(default="", compare=False)
    again: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class InstallRows:
    """Write these rows and the new position in one batch; answered by TransferStored. `end` is the round's, for
    people."""

    rows: bytes
    upto: int
    upto_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class InstallMetadata:
    """Write what is not rows, up to the name `last`; with the first of it (`after` is empty) what was here goes.
    Answered by TransferStored."""

    rows: bytes
    after: bytes
    last: bytes


@dataclass(frozen=True, slots=True)
class FinishTransfer:
    """The round is whole: install the last of the state as InstallMetadata does (none: keep what is here), make the
    store durable, then let the log begin and end at `end` with `table`, durably, then say so in the store and take the
    mark away. Answered by TransferFinished."""

    end: int
    epoch: int
    table: EpochTable
    rows: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class SendTransferChunk:
    """Send the chunk that was asked for to the follower on `to`, from a snapshot of the store, in the catch-up lane;
    dropped when this replica leads no longer in that epoch. With `table`, the follower needs no rows: send
    TransferMetadata with that alone."""

    to: str
    asked: TransferRequest
    table: EpochTable | None


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role is now `role`, in `epoch`, because of `reason` ("code: sentence")."""

    role: ReplicaRole
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
class AppendRefused:
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
    | Send
    | Replicate
    | Truncate
    | ReadReady
    | ReadRefused
    | ReadRecordSync
    | RefreshRecord
    | NewLogIdentity
    | BeginTransfer
    | InstallRows
    | InstallMetadata
    | FinishTransfer
    | SendTransferChunk
    | Promoted
    | RoleChanged
    | LeadershipReady
    | SteppedDown
    | AppendRefused
)

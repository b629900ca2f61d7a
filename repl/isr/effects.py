"""Effects: the only output of `Replica.step`, which the runtime carries out in order.

The runtime never reorders them. An entry is durable before it is committed, committed before it is applied, and
applied before it is answered; the core enforces this by which effect follows which event (`events.py`). The same
effect may be requested twice where its docstring says "repeated".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.isr.messages import AppendEntries, Message, TransferRequest
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord


class ReplicaRole(StrEnum):
    """The current role of a replica; `replica.py` lists the transitions."""

    IDLE = "idle"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNING = "resigning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class PersistEpoch:
    """Make `epoch` durable as the highest seen, with its leader or candidate (None: not known).

    Answered by EpochPersisted; the replica does not act in the epoch before."""

    epoch: int
    owner: Incarnation | None = None


@dataclass(frozen=True, slots=True)
class AppendBarrier:
    """Append a BARRIER entry of this epoch at this offset, in order with Persist; answered by Persisted."""

    epoch: int
    offset: int


@dataclass(slots=True)
class Persist:
    """Append these entries to the log; answered by Persisted once they are durable."""

    entries: tuple[Entry, ...]


@dataclass(slots=True)
class Apply:
    """Apply all entries below `end`, which are committed, in order; answered by AppliedTo."""

    end: int


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write `record` conditionally.

    The condition: the metastore's version is still `record.version`, and each node of `needs` is registered, active,
    and registers the named log id. Repeated verbatim while undecided. Answered by WriteConfirmed, WriteRefused or
    WriteOutcomeUnknown."""

    record: PartitionRecord
    needs: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Promoted:
    """Announce to the controllers that this candidate's barrier is durable; repeated until the record is Online."""

    epoch: int
    node: str
    session_id: int
    log_id: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message to the replica on node `to`; the message may be lost."""

    to: str
    message: Message


@dataclass(frozen=True, slots=True)
class Replicate:
    """Send `head` with the log entries [head.start, end) to the follower on `to`.

    The message carries as many of them as fit, at least the first. It goes into the live lane, or (`live` False) the
    catch-up lane. It is dropped when, at the time of sending, this replica no longer leads in `head.epoch`, or the log
    no longer holds `head.start`."""

    to: str
    head: AppendEntries
    end: int
    live: bool


@dataclass(slots=True)
class StreamEntries:
    """Put the log entries [start, end), just appended, into the open groups of the streams to these followers.

    `to`: (node, join) of each. All entries are of `epoch`, as is the entry below `start` (docs/protocol.md R-STREAM).
    """

    to: tuple[tuple[str, int], ...]
    epoch: int
    start: int
    end: int


@dataclass(slots=True)
class RunAccepted:
    """Append the run that was just received to the log; it counts under `nonce`. Answered by Persisted."""

    nonce: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """Truncate the log at `to_offset` to match the leader of `epoch`, in order with Persist.

    Answered by Truncated once durable. None of the dropped entries was ever reported as committed."""

    to_offset: int
    epoch: int


@dataclass(frozen=True, slots=True)
class ReadReady:
    """Serve these reads from the applied state at once, before any other event of this partition."""

    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadRefused:
    """Fail these reads; `reason` is the code of a Retryable error."""

    tokens: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class ReadRecordSync:
    """Read the record after a metastore sync that begins no earlier than now; answered by RecordSynced, or never."""

    nonce: int


@dataclass(frozen=True, slots=True)
class RefreshRecord:
    """Read the record soon, since it probably changed; answered by RecordSeen."""


@dataclass(frozen=True, slots=True)
class NewLogIdentity:
    """Give this copy of the log, which lost data, a new log id: make the id durable and register it.

    Answered by LogIdentityRenewed. `reason` is one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class BeginTransfer:
    """Mark this copy durably as under state transfer, after all entries of earlier Apply effects are written.

    A store that may lack rows is emptied durably, too; with `empty`, any store is. Answered by TransferStored.
    `reason` and `again` (rows were transferred before) are for people."""

    empty: bool
    reason: str = field(default="", compare=False)
    again: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class InstallRows:
    """Write these rows and the new position in one batch; answered by TransferStored.

    `end` is the round's end, for people."""

    rows: bytes
    upto: int
    upto_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class InstallMetadata:
    """Write one chunk of the partition's metadata (everything but rows), up to the name `last`.

    The first chunk (`after` is empty) replaces the metadata stored here. Answered by TransferStored."""

    rows: bytes
    after: bytes
    last: bytes


@dataclass(frozen=True, slots=True)
class FinishTransfer:
    """Finish a transfer round, in this order:

    install the last metadata chunk like InstallMetadata (empty `rows`: keep the stored metadata); make the store
    durable; make the log begin and end at `end` with `table`, durably; note the new offsets in the store and remove the
    transfer mark. Answered by TransferFinished."""

    end: int
    epoch: int
    table: EpochTable
    rows: bytes
    after: bytes


@dataclass(frozen=True, slots=True)
class SendTransferChunk:
    """Send the requested chunk to the follower on `to`, from a snapshot of the store, in the catch-up lane.

    Dropped when this replica no longer leads in that epoch. With `table`, the follower needs no rows: the chunk is a
    TransferMetadata with only that table."""

    to: str
    asked: TransferRequest
    table: EpochTable | None


@dataclass(frozen=True, slots=True)
class RoleChanged:
    """The role is now `role` in `epoch`; `reason` is "code: sentence"."""

    role: ReplicaRole
    epoch: int
    reason: str


@dataclass(frozen=True, slots=True)
class LeadershipReady:
    """The barrier of `epoch` is applied: committed reads and client writes may start."""

    epoch: int


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """Leadership of `epoch` ended.

    Entries below `unknown_from` are committed, and their AppliedTo answers them; the outcome of entries from there on
    is unknown to their clients."""

    epoch: int
    unknown_from: int
    reason: str


@dataclass(frozen=True, slots=True)
class AppendRefused:
    """An Append of `count` entries was refused without any effect.

    `reason` is the code of the Retryable error in `repl.model.errors` that the client receives."""

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
    | StreamEntries
    | RunAccepted
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


class Effects(list[Effect]):
    """The effects of one step, in the order in which the runtime carries them out.

    Rules only append; nobody changes what a step has returned. A list, since the runtime walks one for each event of
    each write.
    """

    __slots__ = ()

    def send(self, to: str, message: Message) -> None:
        """Append a Send."""
        self.append(Send(to, message))

    def apply(self, end: int) -> None:
        """Append an Apply, unless `end` is 0: nothing was committed."""
        if end:
            self.append(Apply(end))


NOTHING: Final = Effects()
"""What a step without effects may return."""


def at_most_apply(end: int) -> Effects:
    """The effects of a step that can only commit; `end` is 0 when it did not."""
    if not end:
        return NOTHING
    effects = Effects()
    effects.append(Apply(end))
    return effects

"""Events: the only input of `Replica.step`.

Each is a fact from the metastore's session, a record, the disk, the store, another replica or a client. Facts may
arrive late, twice or out of order; the core sorts this out by versions, epochs and offsets. Entries come in batches.
The answers are in `effects.py`. The events of a write are not frozen, though nobody changes them: creating a frozen
object, or a named tuple, costs more than handling it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.isr.messages import Message
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import PartitionRecord


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """This process is registered; `session_id` identifies it from now on (R-INC)."""

    session_id: int


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """The metastore ended the session. A mere disconnection is no event: replication goes on."""


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The partition's record as it was read, perhaps long ago."""

    record: PartitionRecord


@dataclass(frozen=True, slots=True)
class WriteConfirmed:
    """A conditional write succeeded; `record` is the written record with its new version."""

    record: PartitionRecord


@dataclass(frozen=True, slots=True)
class WriteRefused:
    """A conditional write on `base_version` was refused; `current` is the record as read afterwards."""

    base_version: int
    current: PartitionRecord


@dataclass(frozen=True, slots=True)
class WriteOutcomeUnknown:
    """A conditional write on `base_version` may have happened or may yet happen (docs/protocol.md R-AMBIG)."""

    base_version: int


@dataclass(frozen=True, slots=True)
class EpochPersisted:
    """`epoch` is durable as the highest epoch seen."""

    epoch: int


@dataclass(slots=True)
class Append:
    """A batch of a client or a sink, made for this epoch at the log's end; not empty."""

    epoch: int
    entries: tuple[Entry, ...]


@dataclass(slots=True)
class Persisted:
    """All entries below `end` are durable in the log."""

    end: int


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """A write or sync of log, store or identity failed: no state of this process can be trusted any more."""

    reason: str


@dataclass(slots=True)
class AppliedTo:
    """All entries below `end` are in the store and visible."""

    end: int


@dataclass(frozen=True, slots=True)
class Resign:
    """The process is stopping: finish appended entries, then give up leadership; final for the process.

    `heir` leads next if it has acknowledged as much as any other member. `sessions`: see TransferLeadership.
    """

    heir: str | None = None
    sessions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """A leader is asked to hand leadership to `target` (None: to the closest member).

    It leads on when that has not happened by `deadline_ms`, on the clock of `now_ms`. `sessions`: node -> session id of
    its registration, as this node read it last; a target that is not among them is elected by the controller.
    """

    target: str | None
    deadline_ms: int
    sessions: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Received:
    """A message of this partition's replica on `node`; perhaps late, repeated or out of order."""

    node: str
    message: Message


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The connection that this node dialled to `node` is established (again)."""

    node: str


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A connection with `node` broke, whichever side dialled it: messages without an answer may be lost."""

    node: str


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A stream to `node` is open: followers there may join it."""

    node: str


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """The stream to `node` is over: what it carried may be lost."""

    node: str


@dataclass(slots=True)
class RunReceived:
    """The stream from `node` brings `count` entries from `start` on, all of `epoch`, as is the entry below them.

    RunAccepted answers, if they continue the log; without it they are refused."""

    node: str
    epoch: int
    start: int
    count: int


@dataclass(slots=True)
class RunCommitted:
    """All below `end` of this partition, which was accepted under `nonce`, is committed, as the stream announced."""

    partition: int
    nonce: int
    end: int


@dataclass(slots=True)
class RunAcknowledged:
    """All below `end`, which was sent to `node` under `join`, is durable there."""

    node: str
    join: int
    end: int


@dataclass(slots=True)
class RunAnnounced:
    """The follower on `node` knows that all below `end`, which was sent under `join`, is committed."""

    node: str
    join: int
    end: int


@dataclass(frozen=True, slots=True)
class RunHeld:
    """The stream to `node` does not announce the commit of what was sent under `join`."""

    node: str
    join: int


@dataclass(frozen=True, slots=True)
class RunLeft:
    """The follower on `node` refused what was sent under `join`, or gave up what it had accepted."""

    node: str
    join: int


@dataclass(frozen=True, slots=True)
class HeadWanted:
    """An AppendEntries without entries is to go to `node`, as carrier of soft cursors.

    Send answers, where the follower there takes the stream or nothing is under way to it."""

    node: str


@dataclass(frozen=True, slots=True)
class OptionsChanged:
    """`options` are in force from now on, also for checks that are already scheduled."""

    options: ReplicaOptions


@dataclass(frozen=True, slots=True)
class DiskFull:
    """The log's disk takes no barrier (`full`), or takes one again; a nomination is not accepted without (H38)."""

    full: bool


@dataclass(frozen=True, slots=True)
class NodesReached:
    """These nodes are reached by a connection that this node dialled (R-REACHED)."""

    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class RowsMissing:
    """The store had applied all below `end`, the last entry in `epoch`, and may lack rows of it (H36).

    Comes first, right after recovery."""

    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log ends at `to_offset`, durably. Every Persisted for entries appended before came before this event."""

    to_offset: int


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The log begins at `start` now.

    Comes before the next FollowRequest is handled, or when entries to be sent turn out to be trimmed.
    """

    start: int


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """A read of committed state; ReadReady or ReadRefused answers `token`."""

    token: int


@dataclass(frozen=True, slots=True)
class RecordSynced:
    """The record, read after the sync that ReadRecordSync with this `nonce` requested."""

    nonce: int
    record: PartitionRecord


@dataclass(frozen=True, slots=True)
class LogIdentityRenewed:
    """This copy of the log has another id, durably and registered (after NewLogIdentity)."""

    log_id: int


@dataclass(frozen=True, slots=True)
class TransferStored:
    """This copy is marked as under state transfer: it has the rows below `position`.

    `epoch`: that of the entry just below `position` (0: not known). `whole`: the rows are the effect of exactly all
    entries below. `after`: the last name of the metadata stored here.
    """

    position: int
    epoch: int
    whole: bool
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class TransferFinished:
    """State transfer is over: the copy is applied to `end`, where its log begins and ends, with `table`."""

    end: int
    table: EpochTable


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline has come; harmless at any other time."""


Event = (
    Append
    | Persisted
    | AppliedTo
    | RecordSeen
    | WriteConfirmed
    | WriteRefused
    | WriteOutcomeUnknown
    | EpochPersisted
    | SessionStarted
    | SessionExpired
    | PersistFailed
    | Resign
    | TransferLeadership
    | Received
    | LinkUp
    | LinkDown
    | StreamOpened
    | StreamClosed
    | RunReceived
    | RunCommitted
    | RunAcknowledged
    | RunAnnounced
    | RunHeld
    | RunLeft
    | HeadWanted
    | OptionsChanged
    | DiskFull
    | NodesReached
    | RowsMissing
    | Truncated
    | Trimmed
    | ReadRequested
    | RecordSynced
    | LogIdentityRenewed
    | TransferStored
    | TransferFinished
    | Tick
)

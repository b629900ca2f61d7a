"""What happens to a replica: the only input of `Replica.step`.

Each is a fact that somebody else saw: the metastore's session, a record, the disk, the store, a client.
Facts may come late, twice or in another order than they happened; the core sorts that out by versions,
epochs and offsets. Entries come in batches. The answers are in `effects.py`. What comes with every write is a plain
tuple, since making a frozen object costs as much as handling it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.isr.messages import Message
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.record import PartitionRecord


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """This process is registered; `inc` names it from now on (R-INC)."""

    session_id: int


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """The session is definitely over. A mere disconnection is no event: replication goes on."""


@dataclass(frozen=True, slots=True)
class RecordSeen:
    """The partition's record as somebody read it, perhaps long ago."""

    record: PartitionRecord


@dataclass(frozen=True, slots=True)
class WriteConfirmed:
    """A conditional write succeeded; `record` is what was written, with its new version."""

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
    """`epoch` is durable as the highest that this replica has seen."""

    epoch: int


class Append(NamedTuple):
    """A client's or a sink's batch, made for this epoch at the log's end; not empty."""

    epoch: int
    entries: tuple[Entry, ...]


class Persisted(NamedTuple):
    """All entries below `end` are durable in the log."""

    end: int


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """A write or sync of log, store or identity failed; nothing of this process may be believed any more."""

    reason: str


class AppliedTo(NamedTuple):
    """All entries below `end` are in the store and visible."""

    end: int


@dataclass(frozen=True, slots=True)
class Resign:
    """This process is leaving: finish what was appended, then give leadership up; final for the process. `heir`: who is
    to lead then, if it has as much as any other."""

    heir: str | None = None


@dataclass(frozen=True, slots=True)
class TransferLeadership:
    """A leader is asked to hand leadership to `target` (None: to whoever is closest), and to lead on when that has
    not happened by `deadline_ms`, on the clock of `now_ms`."""

    target: str | None
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class Received:
    """A message of another replica of this partition, on `node`; perhaps late, repeated or out of order."""

    node: str
    message: Message


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The connection that this node dialled to `node` stands (again)."""

    node: str


@dataclass(frozen=True, slots=True)
class LinkDown:
    """A connection with `node` broke, whoever dialled it: what was sent and not answered may be lost."""

    node: str


@dataclass(frozen=True, slots=True)
class Truncated:
    """The log ends at `to_offset`, durably. Every Persisted for what was appended before came before this."""

    to_offset: int


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The log begins at `start` now; told no later than before the next FollowRequest is handled, or when what
    was to be sent turns out to be gone."""

    start: int


@dataclass(frozen=True, slots=True)
class ReadRequested:
    """Somebody wants to read committed state; `token` is answered by ReadReady or ReadRefused."""

    token: int


@dataclass(frozen=True, slots=True)
class RecordSynced:
    """The record as the metastore had it after ReadRecordSync of this `nonce` was asked for (a read after a sync)."""

    nonce: int
    record: PartitionRecord


@dataclass(frozen=True, slots=True)
class LogIdentityRenewed:
    """This copy of the log has another gen, durably and registered (after NewLogIdentity)."""

    log_id: int


@dataclass(frozen=True, slots=True)
class TransferStored:
    """This copy is marked as far: it has the rows below `position`; the entry just below is of `epoch` (0: not known).
    `whole`: these rows are the effect of exactly all below. `after`: the last name of the state that is here."""

    position: int
    epoch: int
    whole: bool
    after: bytes = b""


@dataclass(frozen=True, slots=True)
class TransferFinished:
    """This copy is not far any more: it is applied to `end`, where its log begins and ends, with `table`."""

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
    | Truncated
    | Trimmed
    | ReadRequested
    | RecordSynced
    | LogIdentityRenewed
    | TransferStored
    | TransferFinished
    | Tick
)

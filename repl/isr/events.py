"""What happens to a replica: the only input of `Replica.step`.

Each is a fact that somebody else saw: the metastore's session, a record, the disk, the store, a client.
Facts may come late, twice or in another order than they happened; the core sorts that out by versions,
epochs and offsets. Entries come in batches. The answers are in `effects.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from repl.model.entry import Entry
from repl.model.record import PartitionRecord


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """This process is registered; `inc` names it from now on (R-INC)."""

    inc: int


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
class WriteUndecided:
    """A conditional write on `base_version` may have happened or may yet happen (docs/protocol.md R-AMBIG)."""

    base_version: int


@dataclass(frozen=True, slots=True)
class EpochPersisted:
    """`epoch` is durable as the highest that this replica has seen."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Append:
    """A client's or a sink's batch, made for this epoch at the log's end; not empty."""

    epoch: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Persisted:
    """All entries below `end` are durable in the log."""

    end: int


@dataclass(frozen=True, slots=True)
class PersistFailed:
    """A write or sync of log, store or identity failed; nothing of this process may be believed any more."""

    reason: str


@dataclass(frozen=True, slots=True)
class AppliedTo:
    """All entries below `end` are in the store and visible."""

    end: int


@dataclass(frozen=True, slots=True)
class Resign:
    """This process is leaving: finish what was appended, then give leadership up; final for the process."""


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
    | WriteUndecided
    | EpochPersisted
    | SessionStarted
    | SessionExpired
    | PersistFailed
    | Resign
    | Tick
)

"""What the rest of the house knows of the metastore: small records, conditional writes, sessions.

The metastore decides who leads, who is in sync, and who owns a queue; it never holds data. The real thing is
`repl.metastore.zookeeper.ZooKeeperMetastore`, its memory twin `tests.support.memory_metastore.MemoryMetastore`;
one contract suite runs on both. Watch callbacks only say that something changed; whoever is told
reads again. All methods are coroutines of the event loop; driver threads stay behind the door.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from isthmus.repl.model.errors import Retryable
from isthmus.repl.model.record import Member, PartitionRecord, Registration


class SessionState(StrEnum):
    """What a session's listener is told; `expired` is definite, `suspended` only a disconnection."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True)
class Versioned:
    """A value and the version on which a conditional write of it is based."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class ConditionalWrite:
    """A conditional write of a small value, to be made together with others; `version` None: must not exist."""

    path: str
    value: bytes
    version: int | None


@dataclass(frozen=True, slots=True)
class Precondition:
    """What a conditional write rests on besides: the value at `path` must still be of `version`."""

    path: str
    version: int


class VersionConflict(Exception):
    """A conditional write was refused: the version had moved. Nothing was written."""


class Ambiguous(Exception):
    """The connection broke after a write was sent: it may have happened. Repeat it with the same base version
    until the version has moved (docs/protocol.md R-AMBIG)."""


class NameTaken(Retryable):
    """Another process is registered by this node's name, and is not to be replaced."""

    reason = "name-taken"


class Unavailable(Exception):
    """The metastore cannot be reached now; the call had no effect."""


class Metastore(Protocol):
    """One cluster's metastore, under one root path."""

    async def start(self, on_session: Callable[[SessionState], None]) -> None:
        """Connect, bounded by the connect time-out (then LocalFault in one line). `on_session` is called
        on the loop."""

    async def stop(self) -> None:
        """Close the session at once (ephemerals go) and release the threads."""

    async def cluster_uuid(self, proposed: bytes) -> bytes:
        """The cluster's 16-byte uuid; `proposed` becomes it when the metastore is empty."""

    async def register(self, registration: Registration, takes: Collection[int] | None = None) -> int:
        """Write down the node's id and gens (persistent: `needs` of `write_record` go by the latter), then create its
        ephemeral registration in the current session and return its inc (the creation zxid); in the same session it
        renews the data and keeps the inc. One that another session left at the name is replaced (docs/protocol.md
        H28), or with `takes` only if its inc is one of those. Raises NameTaken when it is none of them, and
        WrongIdentity when another node has the same `id`, be it live or down."""

    async def claim(self, path: str, value: bytes) -> bool:
        """Create the ephemeral `path` with `value` unless somebody has it; True when this session has it now. It
        goes with the session; `delete` gives it up. For the election of a controller."""

    async def registrations(self) -> Mapping[str, Registration]:
        """The live registrations, by node."""

    async def allocate_gen(self) -> int:
        """A gen that was never given before in this cluster."""

    async def records(self) -> Mapping[int, PartitionRecord]:
        """All partition records, each with its version. Cheap when nothing changed since the last call: what no
        watch has named is not read again. One that is `unreadable` is as it was read last, or missing."""

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Path ("/p/3", "/nodes/n1") -> why it cannot be read, of the records and registrations as they were read last.
        A node whose registration cannot be read is not among `registrations()`."""

    @property
    def trouble(self) -> str:
        """Why there is no connection, where more is known than that: the ensemble went back behind what this process
        has seen (H32). "" else."""

    async def synced_record(self, partition: int) -> PartitionRecord:
        """One record, read after a sync that began after the call: at least as new as anything that was confirmed
        to anybody before. Raises LookupError when there is none, Unavailable."""

    async def create_records(
        self,
        records: list[PartitionRecord],
        with_values: Collection[ConditionalWrite] = (),
        unmoved: Collection[Precondition] = (),
    ) -> bool:
        """Create these records and write these values, all or nothing; False when a record exists already, or
        the version of a value, or of one of those `unmoved`, has moved."""

    async def write_record(
        self, record: PartitionRecord, needs: Collection[Member] = (), unmoved: Collection[Precondition] = ()
    ) -> PartitionRecord:
        """Write `record` if the stored version is `record.version`, every node of `needs` is registered, active, and
        has noted that gen for the record's partition, and all those `unmoved` are as they were, in one conditional
        multi-write; returns it with its new version. Raises VersionConflict, Ambiguous, Unavailable."""

    async def get(self, path: str) -> Versioned | None:
        """A small value kept beside the records (queue owners, suspensions, options); None if absent."""

    async def put(self, path: str, value: bytes, version: int | None, unmoved: Collection[Precondition] = ()) -> int:
        """Conditional write: `version` None means must not exist. Returns the new version. Raises VersionConflict (one
        of those `unmoved` has moved, too), Ambiguous, Unavailable. At most 512 KB (a larger znode is a lost
        connection): BadInput."""

    async def delete(self, path: str, version: int) -> None:
        """Conditional delete. Raises VersionConflict, Ambiguous, Unavailable."""

    async def children(self, path: str) -> list[str]:
        """Names below `path`, sorted; empty when it does not exist."""

    def watch(self, on_change: Callable[[str], None]) -> None:
        """`on_change(path)` is called on the loop when a record, the registrations or a value that was read
        may have changed; a hint, possibly repeated, never lost while connected."""

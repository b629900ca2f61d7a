"""The interface of the metastore: small records, conditional writes, sessions.

The metastore decides who leads, who is in sync, and who owns a queue; it never holds data. It is implemented by
`repl.metastore.zookeeper.ZooKeeperMetastore` and, in memory, by `tests.support.memory_metastore.MemoryMetastore`; one
contract suite runs on both. A watch callback only reports that something changed; its receiver reads again. All methods
are coroutines of the event loop; threads of the driver stay inside the implementation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from isthmus.repl.model.errors import Retryable
from isthmus.repl.model.record import Member, PartitionRecord, Registration


class SessionState(StrEnum):
    """State of a session, as its listener gets it: `expired` is definite, `suspended` only a disconnection."""

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
    """A precondition of another write: the value at `path` must still have this `version`."""

    path: str
    version: int


class VersionConflict(Exception):
    """A conditional write was refused: the version had moved. Nothing was written."""


class Ambiguous(Exception):
    """The connection broke after a write was sent: it may have happened. Repeat it with the same base version
    until the version has moved (docs/protocol.md R-AMBIG)."""


class NameTaken(Retryable):
    """Another process is registered under this node's name, and may not be replaced."""

    reason = "name-taken"


class Unavailable(Exception):
    """The metastore cannot be reached now; the call had no effect."""


class Metastore(Protocol):
    """One cluster's metastore, under one root path."""

    async def start(self, on_session: Callable[[SessionState], None]) -> None:
        """Connect, bounded by the connect time-out (LocalFault after that). `on_session` is called on the event
        loop."""

    async def stop(self) -> None:
        """Close the session at once, which removes its ephemerals, and release the threads."""

    async def cluster_uuid(self, proposed: bytes) -> bytes:
        """The cluster's 16-byte uuid; in an empty metastore `proposed` becomes it."""

    async def register(self, registration: Registration, takes: Collection[int] | None = None) -> int:
        """Write the node's id and log ids (persistent, for the `needs` of `write_record`), then create its ephemeral
        registration in the current session; returns its session id (the creation zxid). In the same session the data is
        renewed and the session id stays. A registration of another session is replaced (docs/protocol.md H28), with
        `takes` only if its session id is one of those. Raises NameTaken if it is none of them, and WrongIdentity if
        another node, live or down, has the same `id`."""

    async def claim(self, path: str, value: bytes) -> bool:
        """Create the ephemeral `path` with `value` unless there is one; True if this session has it now. It ends with
        the session, or by `delete`. For the election of a controller."""

    async def end_registration(self, node: str, session_id: int, claims: Collection[str] = ()) -> bool:
        """Remove the registration of `node` if it is still that of `session_id`, and before it those of `claims` that
        are of the same session with the metastore, although that session lasts; True if this call removed the
        registration. A session id never comes back, so that session is over for all (docs/protocol.md R-SUSPECT).
        Raises Ambiguous, Unavailable."""

    async def registrations(self, *, sync: bool = True) -> Mapping[str, Registration]:
        """The live registrations, by node. With `sync` not older than the call; without, not older than what any call
        before has returned, which is enough after `records()` and saves a round trip."""

    async def all_read_joined(self) -> bool:
        """True if every node that ever registered and was not removed is live, and its process has `register`ed with a
        program that reads joined documents (`repl.metastore.joined_document`). False while nobody is known."""

    async def allocate_log_id(self) -> int:
        """A gen that was never given before in this cluster."""

    async def records(self) -> Mapping[int, PartitionRecord]:
        """All partition records, each with its version. Cheap if nothing changed since the last call: a value is read
        again only after a watch event. An `unreadable` record is returned as it was read last, or missing."""

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Path ("/p/3", "/nodes/n1") -> why it cannot be read, for records and registrations as of the last read. A
        node whose registration cannot be read is not among `registrations()`."""

    @property
    def rolled_back(self) -> str:
        """Why there is no connection, if the ensemble is known to have lost what this process has seen (H32); ""
        otherwise."""

    async def synced_record(self, partition: int) -> PartitionRecord:
        """One record, read after a sync that began after the call: at least as new as anything confirmed to any client
        before. Raises LookupError if there is none, Unavailable."""

    async def create_records(
        self,
        records: list[PartitionRecord],
        with_values: Collection[ConditionalWrite] = (),
        unmoved: Collection[Precondition] = (),
    ) -> bool:
        """Create these records and write these values, all or nothing. False if a record exists already, or a version
        has moved: that of a value, or of one of `unmoved`."""

    async def write_record(
        self, record: PartitionRecord, needs: Collection[Member] = (), unmoved: Collection[Precondition] = ()
    ) -> PartitionRecord:
        """Write `record` in one conditional multi-write, if the stored version is `record.version`, every node of
        `needs` is registered, active and has that log id for the record's partition, and all of `unmoved` are
        unchanged. Returns the record with its new version. Raises VersionConflict, Ambiguous, Unavailable."""

    async def get(self, path: str) -> Versioned | None:
        """A small value beside the records (queue owners, suspensions, options); None if absent."""

    async def put(self, path: str, value: bytes, version: int | None, unmoved: Collection[Precondition] = ()) -> int:
        """Write conditionally: `version` None means that there must be no value. Returns the new version. Raises
        VersionConflict (also if one of `unmoved` has moved), Ambiguous, Unavailable, and BadInput above 512 KB, since a
        larger znode costs the connection."""

    async def put_all(self, writes: Collection[ConditionalWrite], unmoved: Collection[Precondition] = ()) -> None:
        """Write all of these values or none, as `put` writes one. Raises what `put` raises, and BadInput above 1 MB
        together."""

    async def delete(self, path: str, version: int) -> None:
        """Delete conditionally. Raises VersionConflict, Ambiguous, Unavailable."""

    async def children(self, path: str) -> list[str]:
        """Names below `path`, sorted; empty if it does not exist."""

    def watch(self, on_change: Callable[[str], None]) -> None:
        """Call `on_change(path)` on the event loop when a record, the registrations or a value that was read may have
        changed: a hint, possibly repeated, never lost while connected."""

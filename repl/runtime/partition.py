"""One partition on this node: its replica, and the owners of its state between append and answer.

Belongs to the event loop. `repl.runtime.runtime` drives it; `repl.coordinator.coordinator` adds requests. The state of
the protocol is in `replica` (`repl.isr`); each other part has its own class and is changed by that class's methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.replica import Replica
from isthmus.repl.model.errors import (
    Fenced,
    NotLeader,
    NotReady,
    OutOfStorage,
    Overloaded,
    Retryable,
    TooFewInSync,
)
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.model.vclock import actor_of, partition_prefix
from isthmus.repl.runtime.cursor_gossip import CursorGossip
from isthmus.repl.runtime.entry_timestamps import EntryTimestamps
from isthmus.repl.runtime.unapplied import MemoryWindow, UnappliedBuffer
from isthmus.repl.runtime.waiters import Waiters
from isthmus.repl.store.reaped_pushes import ReapedPushes

REFUSALS: Final[Mapping[str, type[Retryable]]] = {
    cls.reason: cls for cls in (Fenced, TooFewInSync, Overloaded, OutOfStorage, NotReady, NotLeader)
}
"""The core's reasons to refuse -> the error that a caller gets."""


class Partition:
    """A replica with its unapplied entries, waiting requests, entry timestamps and soft cursors."""

    __slots__ = (
        "_actor",
        "_cluster_uuid",
        "_incarnation",
        "actor_prefix",
        "bucket_type",
        "cursor_gossip",
        "deletion_note",
        "disk_trouble",
        "id",
        "index",
        "log_start",
        "overtaken_actor",
        "partition_count",
        "reaped_pushes",
        "replaced_clocks",
        "replica",
        "timestamps",
        "transfer_note",
        "unapplied",
        "waiters",
    )

    def __init__(
        self, record: PartitionRecord, replica: Replica, cluster_uuid: bytes, log_start: int, window: MemoryWindow
    ) -> None:
        self.id = record.partition
        self.bucket_type = record.bucket_type.encode()
        self.index = record.index
        self.partition_count = record.partition_count
        self.replica = replica
        self.actor_prefix = partition_prefix(cluster_uuid, record.partition)
        """What this partition's entries in vector clocks begin with, of all incarnations."""
        self._cluster_uuid = cluster_uuid
        self._actor = actor_of(cluster_uuid, record.partition, record.incarnation)
        self._incarnation = record.incarnation
        self.overtaken_actor = b""
        """An actor under which no more is written: another cluster holds writes of it that the log lacks (R-ACTOR)."""
        self.unapplied = UnappliedBuffer(replica.applied, replica.leo, window)
        self.waiters = Waiters()
        self.timestamps = EntryTimestamps()
        self.cursor_gossip = CursorGossip()
        self.reaped_pushes = ReapedPushes()
        self.replaced_clocks: dict[int, bytes] | None = None
        """Offset of an unapplied entry of this leader -> encoded clock of the version that it replaces, for a listener
        that needs it and takes it out; None: nobody does. An entry that was refused leaves its clock behind until the
        next one at its offset."""
        self.log_start = log_start
        """First offset of the log that the replica knows; set with each Trimmed event and each restart of the log."""
        self.disk_trouble = ""
        """Why this replica takes no entries, as "code: sentence"; set by DiskFullPolicy."""
        self.deletion_note = ""
        """When this copy will be deleted, once no record names it; set by ReplicaRemover."""
        self.transfer_note = ""
        """Progress of a state transfer to this copy; set by TransferReceiver."""

    @property
    def actor(self) -> bytes:
        """The actor that this partition's next writes name in vector clocks: of the record's incarnation (R-ACTOR)."""
        record = self.replica.record
        if record is not None and record.incarnation != self._incarnation:
            self._incarnation = record.incarnation
            self._actor = actor_of(self._cluster_uuid, self.id, record.incarnation)
        return self._actor

    @property
    def leads(self) -> bool:
        """True while it leads, also while leadership is handed over."""
        return self.replica.role in (ReplicaRole.LEADER, ReplicaRole.RESIGNING)

    @property
    def removed(self) -> bool:
        """True when the newest known record does not name this node: this copy will be deleted."""
        record = self.replica.record
        return record is not None and self.replica.member.node not in record.replicas

    @property
    def serves(self) -> bool:
        """True when this replica leads and is ready, or follows."""
        return self.replica.ready or (self.replica.following and not self.disk_trouble)

    @property
    def reason(self) -> str:
        """Why the replica is in its state: "code: sentence"."""
        reason = self.disk_trouble or self.replica.reason
        if self.deletion_note:
            return f"{reason}; {self.deletion_note}"
        if self.transfer_note and self.replica.transfer_position is not None:
            return f"{reason}; {self.transfer_note}"
        return reason

    def refusal(self, reason: str) -> Retryable:
        """The error that a caller gets for one of the core's reasons to refuse."""
        message = f"partition {self.id}: {reason} ({self.reason})"
        if reason == NotLeader.reason:
            record = self.replica.record
            return NotLeader(message, record.leader.node if record is not None and record.leader is not None else None)
        return REFUSALS.get(reason, NotReady)(message)

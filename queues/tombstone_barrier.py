"""Queues that still need a tombstone, which must not be reaped then (docs/protocol.md R-REAP).

Reads the cursors in the store, which are older than those in memory by soft cursors at most; so a wrong answer only
delays a reap. A queue without an owner needs what is above its cursor, too. Called by
`repl.coordinator.tombstone_reaper`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from isthmus.queues.cursors import position_of
from isthmus.queues.source_queue import SourceQueue
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.ports import CursorWriter
from isthmus.repl.store.port import Store


class LocalQueues(Protocol):
    """The queues of this node (`queues.service.QueueService`)."""

    @property
    def unread(self) -> str:
        """Why this node does not know which queues there are; "" when it does."""

    def machines(self) -> Mapping[str, SourceQueue]:
        """Every queue, by name."""


class TombstoneBarrier:
    """`repl.model.ports.ReapBarrier` for the queues of a node."""

    def __init__(self, queues: LocalQueues, store: Store, cursors: CursorWriter) -> None:
        self._queues = queues
        self._store = store
        self._cursors = cursors

    def replicates(self, bucket_type: bytes, bucket: bytes) -> bool:
        """See the port."""
        return any(machine.includes(bucket_type, bucket) for machine in self._queues.machines().values())

    def blocked_by(self, partition: int, offset: int, bucket_type: bytes, bucket: bytes) -> str:
        """See the port."""
        if unread := self._queues.unread:
            return unread
        for name, machine in self._queues.machines().items():
            if not machine.includes(bucket_type, bucket):
                continue
            try:
                position = position_of(self._store.cursor(partition, name.encode()), self._cursors.lineage(partition))
            except CodecError as error:
                return f"queue {name}: its cursor cannot be read: {error}"
            if position is None:
                return f"queue {name}: it has no cursor in partition {partition} yet"
            if position.cursor <= offset:
                return (
                    f"queue {name}: acknowledged below offset {position.cursor}, the tombstone is at {offset} of "
                    f"partition {partition}"
                )
            for gap in position.state.gaps:
                if gap.start <= offset < gap.end:
                    return f"queue {name}: offset {offset} lies in a gap ({gap.what}) that no full-sync has closed yet"
        return ""

"""Which queue still needs a tombstone: the answer to whoever wants to reap it (docs/protocol.md R-REAP).

Read from the cursors that are in the store, which lag behind by at most what travels softly; so an answer errs only on
the side of waiting. A queue that nobody owns yet waits at its cursor, too. The other half is
`repl.coordinator.tombstone_reaper`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from isthmus.queues.cursors import position_of
from isthmus.queues.source_queue import SourceQueue
from isthmus.repl.model.errors import CodecError
from isthmus.repl.store.port import Store


class TombstoneBarrier:
    """`repl.model.ports.Settled` over the queues of a node. `machines`: by name, as they are now; `unread`: why nobody
    knows yet which there are, "" once that is known; `lineage`: of a partition, as its record says."""

    def __init__(
        self,
        machines: Callable[[], Mapping[str, SourceQueue]],
        store: Store,
        unread: Callable[[], str] = lambda: "",
        *,
        lineage: Callable[[int], int],
    ) -> None:
        self._machines = machines
        self._store = store
        self._lineage = lineage
        self._unread = unread

    def offers(self, bucket_type: bytes, bucket: bytes) -> bool:
        """See the port."""
        return any(machine.offers(bucket_type, bucket) for machine in self._machines().values())

    def waits(self, partition: int, offset: int, bucket_type: bytes, bucket: bytes) -> str:
        """See the port."""
        if unread := self._unread():
            return unread
        for name, machine in self._machines().items():
            if not machine.offers(bucket_type, bucket):
                continue
            try:
                position = position_of(self._store.cursor(partition, name.encode()), self._lineage(partition))
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

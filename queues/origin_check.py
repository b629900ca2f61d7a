"""Writes of ours that some other cluster has not received yet (pure; docs/protocol.md R-OWED).

A push that replaces such a write counts as ours: with the foreign origin of the pushed change, no queue would offer the
key to that cluster. Called on the write path (`repl.coordinator.write_batch`), only for pushes that replace something.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.queues.source_queue import SourceQueue
from isthmus.repl.model.keys import Key


def is_unreplicated(queues: Iterable[SourceQueue], partition: int, offset: int, pusher: bytes, key: Key) -> bool:
    """Whether a queue of another cluster than `pusher` still has to serve the row of `key` at `offset`.

    True for a queue without an owner, whose next owner begins at its cursor; for one whose cursor is not known here
    yet, or may be moved by a CURSOR entry that is appended and not applied; and for one with the row in a gap, because
    a full-sync of the gap searches changes of its time, and would not find the pushed one. False for a queue whose
    filter leaves the key out, that offers nothing in real time, or that cascades: it offers the pushed change whatever
    its origin.
    """
    for queue in queues:
        if queue.owner == pusher or queue.blocked or not queue.includes(key.bucket_type, key.bucket):
            continue
        window = queue.windows.get(partition)
        if window is None:
            return True
        if not window.origins.cascade and (
            window.cursor <= offset or queue.cursor_pending(partition) or window.in_recorded_gap(offset)
        ):
            return True
    return False

"""Which writes of ours some other cluster has not got yet (pure; docs/protocol.md R-OWED).

A push that replaces such a write counts as ours, or that cluster would never hear of the key: the row's origin would be
foreign. Asked on the write path, for pushes that replace something only. The story goes on in
`repl.coordinator.write_batch`.
"""

from __future__ import annotations

from collections.abc import Iterable

from isthmus.queues.source_queue import SourceQueue
from isthmus.repl.model.keys import Key


def owed(queues: Iterable[SourceQueue], partition: int, offset: int, pusher: bytes, key: Key) -> bool:
    """Whether a queue of another cluster than `pusher` still has to give out the row of `key` at `offset`.

    A queue that nobody owns yet counts, since who takes it begins at its cursor; so does one whose cursor is not known
    here yet, or may be moved by a CURSOR entry that is appended and not applied. So does one in whose gap the row lies:
    a full-sync of the gap looks for changes of its time, and would not find the pushed one. One whose filter leaves the
    key out, or that offers nothing in real time, does not, nor does one that cascades: it offers the pushed change
    whoever made it.
    """
    for queue in queues:
        if queue.owner == pusher or queue.blocked or not queue.offers(key.bucket_type, key.bucket):
            continue
        window = queue.windows.get(partition)
        if window is None:
            return True
        if not window.origins.cascade and (
            window.cursor <= offset or queue.cursor_pending(partition) or window.in_recorded_gap(offset)
        ):
            return True
    return False

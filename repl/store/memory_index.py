"""What a store remembers of its partitions in memory, all of it on disk, too: requests, reaped keys, and which keys
cannot be there. Pure."""

from __future__ import annotations

from isthmus.repl.store.key_filter import KeyExistenceFilter
from isthmus.repl.store.reaped_keys import ReapedWindows
from isthmus.repl.store.request_dedup import WINDOW_OFFSETS, RequestWindows


class MemoryIndexes:
    """Of one store."""

    def __init__(self, request_window_offsets: int = WINDOW_OFFSETS) -> None:
        self.requests = RequestWindows(request_window_offsets)
        self.reaped = ReapedWindows()
        self.names = KeyExistenceFilter()

    def forget(self, partition: int) -> None:
        """Remember nothing of a partition; names that are noted stay so, since that proves nothing."""
        self.requests.forget(partition)
        self.reaped.forget(partition)

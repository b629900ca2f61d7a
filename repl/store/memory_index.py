"""In-memory indexes of a store, all of them also on disk: request ids, reaped keys, and the key filter. Pure."""

from __future__ import annotations

from isthmus.repl.store.key_filter import KeyExistenceFilter
from isthmus.repl.store.reaped_keys import ReapedWindows
from isthmus.repl.store.request_dedup import WINDOW_OFFSETS, RequestWindows


class MemoryIndexes:
    """The indexes of one store."""

    def __init__(self, request_window_offsets: int = WINDOW_OFFSETS) -> None:
        self.requests = RequestWindows(request_window_offsets)
        self.reaped = ReapedWindows()
        self.names = KeyExistenceFilter()

    def forget(self, partition: int) -> None:
        """Drop a partition's request ids and reaped keys; its keys stay in the filter, which is harmless."""
        self.requests.forget(partition)
        self.reaped.forget(partition)

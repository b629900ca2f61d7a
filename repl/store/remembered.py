"""What a store remembers of its partitions in memory, each row of it on disk, too: requests, and reaped keys. Pure."""

from __future__ import annotations

from repl.store.reaped import ReapedWindows
from repl.store.requests import WINDOW_OFFSETS, RequestWindows


class Remembered:
    """Of one store."""

    def __init__(self, request_window_offsets: int = WINDOW_OFFSETS) -> None:
        self.requests = RequestWindows(request_window_offsets)
        self.reaped = ReapedWindows()

    def forget(self, partition: int) -> None:
        """Remember nothing of a partition."""
        self.requests.forget(partition)
        self.reaped.forget(partition)

"""What reading and recovery need of an ordered key space: LevelDB, or a snapshot of it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Protocol


class Source(Protocol):
    """An ordered key space as it is now, or as it was at one moment. Every method raises Corruption or
    LocalFault; iterators read from one moment and are to be closed when abandoned."""

    def get(self, name: bytes) -> bytes | None:
        """The value of the row `name`, or None."""

    def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], bytes | None, None]:
        """The rows [start, stop), in order. Sent a name, it goes on with the first row from there on: three times as
        cheap as another scan."""

    def names(self, start: bytes, stop: bytes) -> Generator[bytes, None, None]:
        """The names of the rows [start, stop), in order."""

    def last_before(self, name: bytes) -> tuple[bytes, bytes]:
        """The last row before `name`; there is one."""

    def snapshot(self) -> AbstractContextManager[Source]:
        """The key space as it is now, for as long as the context is open."""

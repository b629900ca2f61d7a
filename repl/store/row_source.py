"""The ordered key space that reading and recovery need: LevelDB, or a snapshot of it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from typing import Protocol


class Source(Protocol):
    """An ordered key space, current or a snapshot. Every method raises Corruption or LocalFault; an iterator reads from
    one snapshot and must be closed when abandoned."""

    def get(self, name: bytes) -> bytes | None:
        """The value of the row `name`, or None."""

    def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], bytes | None, None]:
        """The rows [start, stop), in order. `send(name)` continues at the first row at or above `name`, at a third of
        the cost of another scan."""

    def names(self, start: bytes, stop: bytes) -> Generator[bytes, None, None]:
        """The names of the rows [start, stop), in order."""

    def seeking(self, stop: bytes) -> AbstractContextManager[Callable[[bytes], tuple[bytes, bytes] | None]]:
        """A function, for as long as the context is open, that returns the first row at or above a name; None where it
        is `stop` or above. Names may be asked for in any order.

        There is no read backwards: LevelDB then reads a block before the range from each table, and a block may be one
        object of 100 MB."""

    def snapshot(self) -> AbstractContextManager[Source]:
        """A snapshot, for as long as the context is open."""

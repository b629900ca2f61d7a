"""Recently reaped keys, with the clocks of their tombstones. Pure.

A late push may bring back a value that a tombstone had seen, long after the tombstone was reaped; the clock that
decides this must survive a restart (docs/protocol.md R-REAP). So it is replicated state, like request ids: every
replica applies the same REAP entries, in the step's own batch, and forgets the same ones, the oldest first. The rows
are among the cursors, so that a state transfer, also to a release that does not know them, includes them. They are kept
in memory here, since each push looks them up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from isthmus.repl.model.errors import Corruption
from isthmus.repl.store import rows

GONE: Final = b"\0gone"
"""Prefix of a reaped key's row among the cursors, followed by the offset (8 bytes) of its REAP entry; no queue has
such a name."""

REMEMBERED_MAX: Final = 10_000
"""Most reaped keys kept for one partition: 3.4 MB of memory, half as much on disk. At the maximum rate of reaps
(`repl.coordinator.tombstone_reaper.REAPS_AT_ONCE`) they go back 100 s; sinks push nothing older than its lease."""

REMEMBERED_BYTES_MAX: Final = 8_000_000
"""Most bytes of their names and clocks; with long names fewer keys are kept."""

Name = tuple[bytes, bytes]
"""(bucket, key)."""

_NONE: Final[Mapping[Name, bytes]] = MappingProxyType({})


def gone_name(offset: int) -> bytes:
    """Name of the row among the cursors."""
    return GONE + rows.U64.pack(offset)


def encode_gone(bucket: bytes, key: bytes, clock: bytes) -> bytes:
    """Content of the row behind its offset."""
    return rows.U32.pack(len(clock)) + clock + rows.bucket_head(bucket) + key


def decode_gone(payload: bytes) -> tuple[bytes, bytes, bytes]:
    """(bucket, key, encoded clock) in a row's content. Raises Corruption."""
    size = rows.U32.size
    end = size + rows.decode_u32(payload[:size])
    if end > len(payload):
        raise Corruption(f"a row of a reaped key has a clock of {end - size} bytes in {len(payload)}")
    return *rows.split_tail(payload[end:]), payload[size:end]


class ReapedKeys:
    """Reaped keys of one partition. `add` belongs to the thread that prepares batches; any thread may read `clocks`."""

    __slots__ = ("_bytes", "_names", "clocks")

    def __init__(self) -> None:
        self.clocks: dict[Name, bytes] = {}
        """(bucket, key) -> encoded clock of its last tombstone."""
        self._names: deque[tuple[int, Name, bytes]] = deque()
        self._bytes = 0

    def add(self, offset: int, bucket: bytes, key: bytes, clock: bytes) -> list[int]:
        """The REAP entry at `offset`, above all that were added, removed a tombstone of this clock. Returns the offsets
        of those that are forgotten for it."""
        assert not self._names or offset > self._names[-1][0], (offset, self._names[-1])
        name = (bucket, key)
        self._names.append((offset, name, clock))
        self._bytes += len(bucket) + len(key) + len(clock)
        self.clocks[name] = clock
        gone: list[int] = []
        while len(self._names) > REMEMBERED_MAX or self._bytes > REMEMBERED_BYTES_MAX:
            oldest, name, clock = self._names.popleft()
            self._bytes -= len(name[0]) + len(name[1]) + len(clock)
            if self.clocks.get(name) is clock:
                del self.clocks[name]
            gone.append(oldest)
        return gone


class ReapedWindows:
    """The reaped keys of all partitions of one store."""

    def __init__(self) -> None:
        self._windows: dict[int, ReapedKeys] = {}

    def of(self, partition: int) -> ReapedKeys:
        """The partition's, none at first."""
        window = self._windows.get(partition)
        if window is None:
            window = self._windows[partition] = ReapedKeys()
        return window

    def clocks(self, partition: int) -> Mapping[Name, bytes]:
        """See `repl.store.port.Store.reaped_clocks`."""
        window = self._windows.get(partition)
        return _NONE if window is None else window.clocks

    def forget(self, partition: int) -> None:
        """Remember nothing of a partition."""
        self._windows.pop(partition, None)

"""The keys that were reaped lately, with the clocks that their tombstones had. Pure.

A push that comes late may bring back what a tombstone had seen, long after that is gone; what it is judged by must
not be forgotten at a restart (docs/protocol.md R-REAP). So this is part of the replicated state, as the requests are:
every replica applies the same REAP entries, in the step's own batch, and forgets the same ones, always the oldest. A
row stands among the cursors, so that it goes to a copy that is far with them, and a release that does not know it
carries it along. This room keeps them in memory, since a look-up is part of a push.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from isthmus.repl.model.errors import Corruption
from isthmus.repl.store import rows

GONE: Final = b"\0gone"
"""Then the offset (8 bytes) of a REAP entry: its row among the cursors; no queue has such a name."""

REMEMBERED_MAX: Final = 10_000
"""Reaped keys of one partition that are remembered: 3.4 MB of memory, half as much on disk. At the rate at which
tombstones are reaped (`repl.coordinator.tombstone_reaper.REAPS_AT_ONCE`) they go back 100 s; sinks push nothing older
than its lease."""

REMEMBERED_BYTES_MAX: Final = 8_000_000
"""Most bytes of their names and clocks, so that long ones do not take more; then fewer are remembered."""

Name = tuple[bytes, bytes]
"""(bucket, key)."""

_NONE: Final[Mapping[Name, bytes]] = MappingProxyType({})


def gone_name(offset: int) -> bytes:
    """The row's name among the cursors."""
    return GONE + rows.U64.pack(offset)


def encode_gone(bucket: bytes, key: bytes, clock: bytes) -> bytes:
    """What such a row has behind its offset."""
    return rows.U32.pack(len(clock)) + clock + rows.bucket_head(bucket) + key


def decode_gone(payload: bytes) -> tuple[bytes, bytes, bytes]:
    """(bucket, key, encoded clock) of such a row. Raises Corruption."""
    size = rows.U32.size
    end = size + rows.decode_u32(payload[:size])
    if end > len(payload):
        raise Corruption(f"a row of a reaped key has a clock of {end - size} bytes in {len(payload)}")
    return *rows.split_tail(payload[end:]), payload[size:end]


class ReapedKeys:
    """One partition's. `add` belongs to the thread that prepares batches; `clocks` may be read from any."""

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

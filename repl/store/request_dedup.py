"""Request ids of a partition's last entries, for the detection of repeated requests. Pure.

A client may give its write a request id. A write whose answer was lost is sent again under the same id, and must not
take effect twice (docs/protocol.md H40): so it is looked up among the last offsets of its partition. The ids are
replicated state: every replica applies the same entries and forgets the same ones, with each step those below its end
less the window. Rows are written and deleted in the step's own batch (`repl.store.batch`); they are kept in memory
here, since each write with an id looks it up.

A request is identified by its key's hash and its id: one id under two keys is two requests.
"""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_OFFSETS: Final = 10_000
"""Offsets of a partition that are remembered when nobody says otherwise (replication.dedup_window)."""


def request_name(key_hash: int, request_id: bytes) -> bytes:
    """Identity of a request: the key's hash (8 bytes, big-endian), then the request id."""
    return key_hash.to_bytes(8, "big") + request_id


class RequestWindow:
    """One partition's remembered requests. `add` and `trim` belong to the thread that prepares batches; `offset_of`
    may be called from any."""

    __slots__ = ("_names", "_offsets")

    def __init__(self) -> None:
        self._names: deque[tuple[int, bytes]] = deque()
        self._offsets: dict[bytes, int] = {}

    def add(self, offset: int, name: bytes) -> None:
        """The entry at `offset`, above all that were added, carried the request `name`."""
        assert not self._names or offset > self._names[-1][0], (offset, self._names[-1])
        self._names.append((offset, name))
        self._offsets[name] = offset

    def trim(self, below: int) -> list[int]:
        """Forget the requests of offsets below `below`; returns those offsets."""
        names = self._names
        gone: list[int] = []
        while names and names[0][0] < below:
            offset, name = names.popleft()
            gone.append(offset)
            if self._offsets[name] == offset:
                del self._offsets[name]
        return gone

    def all(self) -> list[tuple[int, bytes]]:
        """(offset, name) of all that are remembered, oldest first."""
        return list(self._names)

    def offset_of(self, name: bytes) -> int | None:
        """The offset of the newest entry that carried `name`; None when it is not remembered."""
        return self._offsets.get(name)


class RequestWindows:
    """The windows of all partitions of one store, each over the last `offset_count` offsets."""

    def __init__(self, offset_count: int = WINDOW_OFFSETS) -> None:
        assert offset_count > 0
        self.offset_count = offset_count
        self._windows: dict[int, RequestWindow] = {}

    def of(self, partition: int) -> RequestWindow:
        """The partition's window, empty at first."""
        window = self._windows.get(partition)
        if window is None:
            window = self._windows[partition] = RequestWindow()
        return window

    def forget(self, partition: int) -> None:
        """Remember nothing of a partition."""
        self._windows.pop(partition, None)

    def offset_of(self, partition: int, key_hash: int, request_id: bytes) -> int | None:
        """See `repl.store.port.Store.request_offset`."""
        window = self._windows.get(partition)
        return None if window is None else window.offset_of(request_name(key_hash, request_id))

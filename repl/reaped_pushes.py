"""What is known of keys that were reaped here, when somebody pushes one of them (docs/protocol.md R-REAP).

The last ones are remembered with the clock that their tombstone had: what that has seen is from before and says nothing
new, as if the tombstone were still there; every replica learns them from the REAP entries that it applies. Of older
ones only a sign is left: a push of a key that is not here, but whose clock has seen a write of ours, is of a key that
was reaped here. Either it was written anew elsewhere, over the tombstone; or it was fetched before the tombstone got
there, and would bring the deleted value back (I-NO-RESURRECT). The tombstone was acknowledged before it was reaped, so
whoever fetches the key again gets what is not stale: the first push is refused as retryable, the sink does not
acknowledge it, and what then comes is taken. Pure.
"""

from __future__ import annotations

from typing import Final

REFUSED_MAX: Final = 10_000
"""Refused pushes of one partition that are remembered; beyond it the oldest is forgotten, and refused once more."""

REMEMBERED_MAX: Final = 10_000
"""Reaped keys of one partition that are remembered, 2 MB; of older ones only the sign is left. What is under way while
ten thousand tombstones go, each at least as old as a round trip, is late by far more than any lease. A guess."""


class ReapedPushes:
    """Of one partition. A node that begins anew remembers nothing."""

    __slots__ = ("_refused", "clocks")

    def __init__(self) -> None:
        self._refused: dict[tuple[int, int], None] = {}
        self.clocks: dict[tuple[bytes, bytes], bytes] = {}
        """(bucket, key) -> encoded clock of its last tombstone, of those reaped lately."""

    def reaped(self, bucket: bytes, key: bytes, clock: bytes) -> None:
        """A tombstone with this encoded clock was removed."""
        self.clocks.pop((bucket, key), None)
        if len(self.clocks) >= REMEMBERED_MAX:
            del self.clocks[next(iter(self.clocks))]
        self.clocks[bucket, key] = clock

    def clock_of(self, bucket: bytes, key: bytes) -> bytes | None:
        """The encoded clock of the key's last tombstone, if that was reaped lately."""
        return self.clocks.get((bucket, key))

    def comes_again(self, key_hash: int, object_hash: int) -> bool:
        """Whether this very push was refused before; it is noted otherwise."""
        name = (key_hash, object_hash)
        if name in self._refused:
            del self._refused[name]
            return True
        if len(self._refused) >= REFUSED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[name] = None
        return False

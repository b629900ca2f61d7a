"""Pushes of keys that were reaped here so long ago that their clocks are forgotten (docs/protocol.md R-REAP).

The last ones are remembered with the clock that their tombstone had (`repl.store.reaped`): what that has seen is from
before and says nothing new, as if the tombstone were still there. Of older ones only a sign is left: a push of a key
that is not here, but whose clock has seen a write of ours, is of a key that was reaped here. Either it was written anew
elsewhere, over the tombstone; or it was fetched before the tombstone got there, and would bring the deleted value back
(I-NO-RESURRECT). The tombstone was acknowledged before it was reaped, so whoever fetches the key again gets what is
not stale: the first push is refused as retryable, the sink does not acknowledge it, and what then comes is taken. Pure.
"""

from __future__ import annotations

from typing import Final

REFUSED_MAX: Final = 10_000
"""Refused pushes of one partition that are remembered; beyond it the oldest is forgotten, and refused once more."""


class ReapedPushes:
    """Of one partition. A node that begins anew remembers nothing, and refuses once more."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[int, int], None] = {}

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

"""Pushes of keys that were reaped here: refused once, so that nothing stale comes, and taken when they come again.

A push of a key that is not here, but whose clock has seen a write of ours, is of a key that was reaped here. Either it
was written anew elsewhere, over the tombstone; or it was fetched before the tombstone got there, and would bring the
deleted value back (I-NO-RESURRECT). The tombstone was acknowledged before it was reaped, so whoever fetches the key
again gets what is not stale: the first push is refused as retryable, the sink does not acknowledge it, and what then
comes is taken. Pure.
"""

from __future__ import annotations

from typing import Final

REMEMBERED_MAX: Final = 10_000
"""Refused pushes of one partition that are remembered; beyond it the oldest is forgotten, and refused once more."""


class ReapedPushes:
    """Of one partition, at its leader; another leader begins with none, and refuses once more."""

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: dict[tuple[int, int], None] = {}

    def comes_again(self, key_hash: int, object_hash: int) -> bool:
        """Whether this very push was refused before; it is noted otherwise."""
        name = (key_hash, object_hash)
        if name in self._refused:
            del self._refused[name]
            return True
        if len(self._refused) >= REMEMBERED_MAX:
            del self._refused[next(iter(self._refused))]
        self._refused[name] = None
        return False

"""Soft cursors of one partition on their way to its followers: the newest of each queue, and who has been told.

They travel with Forwards, at most once a second to each follower and at a hand-over at once; what is lost on the way
is only delivered to a sink again (docs/protocol.md R-SOFT). Pure; `repl.outbox` sends, the time comes in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from repl.transport.port import NO_CURSORS

TRAVEL_INTERVAL_MS: Final = 1_000
"""Least time between two copies to one follower: a busy queue moves its cursor with each batch."""


class SoftCursors:
    """Of one partition. Payloads are the queues' affair."""

    __slots__ = ("_newest", "_told", "_version")

    def __init__(self) -> None:
        self._newest: dict[bytes, bytes] = {}
        self._version = 0
        self._told: dict[str, tuple[int, int]] = {}
        """Node -> (version, when)."""

    def note(self, queue: bytes, payload: bytes) -> None:
        """A queue's cursor has moved."""
        if self._newest.get(queue) != payload:
            self._newest[queue] = payload
            self._version += 1

    def due(self, node: str, now_ms: int, *, at_once: bool) -> Mapping[bytes, bytes]:
        """What the next Forward to `node` should carry: all of them, or nothing."""
        told = self._told.get(node)
        if self._version == (0 if told is None else told[0]):
            return NO_CURSORS
        if told is not None and not at_once and now_ms - told[1] < TRAVEL_INTERVAL_MS:
            return NO_CURSORS
        return dict(self._newest)

    def sent(self, node: str, now_ms: int) -> None:
        """What was due is on its way."""
        self._told[node] = (self._version, now_ms)

    def lost(self, node: str) -> None:
        """What was under way to `node` may not have arrived."""
        self._told.pop(node, None)

"""Soft cursors of one partition on their way from the leader to its followers.

The newest cursor of each queue travels with AppendEntries: at most once a second to each follower, and at once when
leadership is handed over. A lost cursor only makes a sink receive some changes again (docs/protocol.md R-SOFT). Pure:
the time comes in; `repl.runtime.replication_sender` sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus.repl.transport.port import NO_CURSORS

SEND_INTERVAL_MS: Final = 1_000
"""Least time between two copies to one follower: a busy queue moves its cursor with each batch."""


class CursorGossip:
    """The newest soft cursor of each queue, and which followers have it. Payloads are opaque here."""

    __slots__ = ("_newest", "_sent", "_version")

    def __init__(self) -> None:
        self._newest: dict[bytes, bytes] = {}
        self._version = 0
        self._sent: dict[str, tuple[int, int]] = {}
        """Follower -> (version sent, when in ms)."""

    def update(self, queue: bytes, payload: bytes) -> None:
        """Replace a queue's cursor."""
        if self._newest.get(queue) != payload:
            self._newest[queue] = payload
            self._version += 1

    def due(self, node: str, now_ms: int, *, at_once: bool) -> Mapping[bytes, bytes]:
        """Cursors for the next AppendEntries to `node`: all of them, or none."""
        sent = self._sent.get(node)
        if self._version == (0 if sent is None else sent[0]):
            return NO_CURSORS
        if sent is not None and not at_once and now_ms - sent[1] < SEND_INTERVAL_MS:
            return NO_CURSORS
        return dict(self._newest)

    def sent(self, node: str, now_ms: int) -> None:
        """Note that all cursors were sent to `node`."""
        self._sent[node] = (self._version, now_ms)

    def lost(self, node: str) -> None:
        """Send all cursors to `node` again: those under way may not have arrived."""
        self._sent.pop(node, None)

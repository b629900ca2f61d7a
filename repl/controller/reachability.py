"""Reachability: which nodes could not lead, since others cannot dial them (R-REACHED).

A leader sends over the connections that its followers dialled. A node whose address is wrong, or behind a firewall,
registers, dials the others and follows well; as a leader it has no followers. Who chooses a leader prefers nodes that
it reaches itself. Of itself a node knows it, too: it is reached if one of the nodes that it dialled has dialled it.
Pure; `repl.controller.controller` feeds it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

UNREACHED_MS: Final = 3_000
"""How long no connection may be open before a registered node counts as unreached: longer than a first dial, or the
next one after a break, takes in a healthy cluster."""


class Reachability:
    """Since when this node reaches no connection of each other registered node. Times are monotonic."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._since_ms: dict[str, int] = {}
        """Node -> since when it has not been reached; of this node itself: by the others."""
        self._reaches_some = False

    def learn(
        self, registered: Collection[str], dialled: Collection[str], dialled_by: Collection[str], now_ms: int
    ) -> None:
        """Take over which nodes are registered, which connections are open that this node dialled, and which that
        others dialled to it."""
        others = set(registered) - {self._node}
        reached = others & set(dialled)
        missing = others - reached
        if reached and not reached & set(dialled_by):
            missing.add(self._node)
        self._since_ms = {node: self._since_ms.get(node, now_ms) for node in missing}
        self._reaches_some = bool(reached)

    def unreached(self, now_ms: int) -> frozenset[str]:
        """The nodes that should not lead. None while this node reaches no other: its own network may be at fault, and
        it says nothing about them."""
        if not self._reaches_some:
            return frozenset()
        return frozenset(node for node, since_ms in self._since_ms.items() if now_ms - since_ms >= UNREACHED_MS)

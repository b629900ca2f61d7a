"""Contact: whether a node that decides can be reached by the nodes that it decides about (R-CONTACT).

Candidates report to the node that decides over connections that they dialled. A node that reaches the metastore, but
that no other node can dial, therefore nominates everybody in vain, again and again. So it lets another node decide. It
takes the claim again only if nobody else does, for example because no node reaches any other one. What it dialled
itself says nothing of that: over those connections it asks for positions in the log, which it can do without. Pure;
`repl.controller.controller` feeds it and acts on it.

    in contact   another registered node has dialled it, or no other node is registered
    alone        neither, for ALONE_MS; a node that decides gives up the claim then
    may claim    not alone; or alone, and CLAIM_PAUSE_MS have passed since that began and since the claim was given up
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

ALONE_MS: Final = 10_000
"""How long a node may be without contact before it lets another one decide: longer than a restart of all other nodes'
connections, and shorter than the time after which an isolated leader gives way (`repl.isr.give_way`), whose successor
must be able to report to the node that decides."""

CLAIM_PAUSE_MS: Final = 5_000
"""How long a node without contact leaves a free claim to others: two polls of the metastore, which show it to them even
if their watch events are lost. Where no node is in contact, the claim changes hands each ALONE_MS + CLAIM_PAUSE_MS."""


class Contact:
    """The connections that other registered nodes dialled to one node. Times are monotonic."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._lost_ms: int | None = None
        """Since when there has been no contact; None while there is."""
        self._took_ms = self._gave_up_ms = 0
        """When the claim was last taken, and given up, without contact."""

    def learn(self, registered: Collection[str], dialled_by: Collection[str], now_ms: int) -> None:
        """Take over which nodes are registered, and of which a connection is open that they dialled to this node."""
        others = set(registered) - {self._node}
        if not others or not others.isdisjoint(dialled_by):
            self._lost_ms = None
        elif self._lost_ms is None:
            self._lost_ms = self._took_ms = self._gave_up_ms = now_ms

    def alone(self, now_ms: int) -> bool:
        """True when this node, which decides, must let another one decide."""
        return self._lost_ms is not None and now_ms - max(self._lost_ms, self._took_ms) >= ALONE_MS

    def gave_up(self, now_ms: int) -> None:
        """The claim was given up."""
        self._gave_up_ms = now_ms

    def took(self, now_ms: int) -> None:
        """The claim was taken."""
        self._took_ms = now_ms

    def may_claim(self, now_ms: int) -> bool:
        """True when this node may take a free claim."""
        if self._lost_ms is None or now_ms - self._lost_ms < ALONE_MS:
            return True
        return now_ms - max(self._lost_ms + ALONE_MS, self._gave_up_ms) >= CLAIM_PAUSE_MS

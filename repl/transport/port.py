"""What the rest of the house knows of the connections between the nodes of one cluster.

Between two nodes there is at most one connection each way, shared by all partitions. The one that X dialled to Y
carries X as a follower: its FollowRequest, AppendAck, AppendRejected and LeadershipCheckOk go to Y over it, and Y's
FollowAccepted, FollowRejected, AppendEntries and LeadershipCheck come back over it; so do X's requests and Y's answers.
The side that dialled checks its health and dials again. Everything here belongs to the event loop. The real thing is
`repl.transport.links.ClusterLinks`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from isthmus.repl.isr.messages import Message

NO_CURSORS: Final[Mapping[bytes, bytes]] = MappingProxyType({})


class Delivery(NamedTuple):
    """One message of a frame that arrived. `cursors` are soft cursors of queues (name -> state) that travelled with a
    AppendEntries."""

    partition: int
    message: Message
    cursors: Mapping[bytes, bytes] = NO_CURSORS


class Links(Protocol):
    """A node's connections with the others of its cluster."""

    def set_nodes(self, addresses: Mapping[str, str]) -> None:
        """The other nodes that live, by name, as HOST:PORT: dial the new ones, drop those that are gone."""

    def send(
        self,
        node: str,
        partition: int,
        message: Message,
        *,
        live: bool = True,
        cursors: Mapping[bytes, bytes] = NO_CURSORS,
    ) -> bool:
        """Queue a message; what is queued in one turn of the loop goes as one frame. False when it was dropped:
        no connection, or the catch-up lane (`live` False) is full. Never blocks."""

    def catch_up_room(self, node: str) -> int:
        """Bytes that the catch-up lane to `node` takes now; 0 when there is no connection."""

    def linked(self, node: str) -> bool:
        """True while the connection that this node dialled to `node` stands."""

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """Ask `node`; returns the answer's body. Raises NotReady when nothing was sent (no connection), Retryable or
        BadInput as the other side raised them, OutcomeUnknown when the connection broke or no answer came."""

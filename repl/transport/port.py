"""Interface of a node's connections with the other nodes of its cluster; `repl.transport.links.ClusterLinks`.

Between two nodes there is at most one connection each way, shared by all partitions. The connection that X dialled to Y
carries X as a follower: its FollowRequest, AppendAck, AppendRejected, LeadershipCheckOk and StreamAck go to Y over it,
and Y's FollowAccepted, FollowRejected, AppendEntries, LeadershipCheck and StreamGroup come back over it; so do X's
requests and Y's answers.
The side that dialled checks its health and dials again. Everything belongs to the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from isthmus.repl.isr.messages import Message
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup
from isthmus.repl.model.errors import IsthmusError

NO_CURSORS: Final[Mapping[bytes, bytes]] = MappingProxyType({})


LinkMessage = Message | StreamGroup | StreamAck
"""A message between nodes; a stream's messages belong to no partition, and name 0."""


class Delivery(NamedTuple):
    """One message of a received frame. `cursors` are soft cursors (queue -> state) that came with an AppendEntries."""

    partition: int
    message: LinkMessage
    cursors: Mapping[bytes, bytes] = NO_CURSORS


class LinkListener(Protocol):
    """Receives messages and changes of connections; `repl.runtime.runtime.Runtime`."""

    def received(self, node: str, deliveries: Sequence[Delivery]) -> None:
        """Messages of `node`, all of one frame."""

    def link_changed(self, node: str, up: bool) -> None:
        """The connection that this node dialled to `node` is up, or any connection with it broke."""

    def stream_wanted(self, node: str) -> None:
        """`node` takes a stream over the connection that it dialled."""


class ReachabilityObserver(Protocol):
    """Observes which nodes can be dialled; `repl.controller.inbox.PeerWatch`."""

    def link_changed(self, node: str, up: bool) -> None:
        """The connection that this node dialled to `node` is up, or ended."""

    def dial_refused(self, node: str) -> None:
        """No connection with `node` is open, in either direction, and its address refuses to be connected to."""


class Links(Protocol):
    """A node's connections with the other nodes of its cluster."""

    def set_nodes(self, addresses: Mapping[str, str]) -> None:
        """Set the other live nodes, by name, as HOST:PORT: dial new ones, drop connections to others."""

    def send(
        self,
        node: str,
        partition: int,
        message: LinkMessage,
        *,
        live: bool = True,
        cursors: Mapping[bytes, bytes] = NO_CURSORS,
    ) -> bool:
        """Queue a message; messages of one turn of the loop go as one frame. False when it was dropped: no connection,
        or the catch-up lane (`live` False) is full. Never blocks."""

    def catch_up_room(self, node: str) -> int:
        """Free bytes of the catch-up lane to `node`; 0 without a connection."""

    def takes_stream(self, node: str) -> bool:
        """True while a connection is open that `node` dialled, and over which it takes a stream."""

    def linked(self, node: str) -> bool:
        """True while the connection that this node dialled to `node` is up."""

    def dialled_nodes(self) -> Collection[str]:
        """The nodes of which `linked` is true."""

    def dialled_by(self) -> Collection[str]:
        """The nodes that dialled this one, and whose connection is open."""

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """Send a request; returns the answer's body. Raises NotReady when nothing was sent (no connection), Retryable
        or BadInput as the other side raised them, OutcomeUnknown when the connection broke or no answer came."""

    def send_request(
        self, node: str, method: str, body: bytes, timeout_ms: int, answered: Callable[[bytes | IsthmusError], None]
    ) -> None:
        """Send a request without a task: `answered` is called once, in a later turn of the loop, with the answer's body
        or an error as in `request`. Raises Retryable or BadInput when nothing was sent; then it is not called."""

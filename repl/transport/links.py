"""The connections of one node with the others of its cluster (`repl.transport.port.Links`).

Dials every live node and accepts the connections that they dial, chooses the connection of each message, passes
received frames to the listener, and measures the connections' health. A node has at most one accepted connection: a
second one replaces the first. Everything belongs to the event loop; messages are not interpreted here.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any, Final

import structlog

from isthmus.repl.isr.messages import StaleEpoch
from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.security.accepting import Acceptor, PlainServer
from isthmus.repl.security.tls import LinkTls, expires_s
from isthmus.repl.security.tls_server import TlsServer
from isthmus.repl.shortage import CLUSTER_HEADROOM
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.codec import FROM_FOLLOWER, FROM_LEADER, Encoder, decode_item
from isthmus.repl.transport.connection import LinkLimits, PeerConnection
from isthmus.repl.transport.dialer import Dialler
from isthmus.repl.transport.frames import Lane
from isthmus.repl.transport.handshake import ConnectionRefused, Handshake, HandshakeRefusal
from isthmus.repl.transport.lanes import RateCap, Traffic
from isthmus.repl.transport.port import NO_CURSORS, LinkListener, LinkMessage, ReachabilityObserver
from isthmus.repl.transport.rpc import (
    NO_DIRECT,
    WANT_STREAM,
    Answered,
    DirectHandler,
    Handler,
    RpcClient,
    RpcServer,
)
from isthmus.repl.unforeseen import unforeseen

TURNS: Final = 4
"""Turns of the loop in which data received during a pause is read: a loop may run due timers before it reads, and an
answer may need a turn at either end."""


async def lived_ms(interval_s: float) -> AsyncIterator[int]:
    """Yield the milliseconds that this process lived through, every `interval_s`. A late tick, since the process or its
    machine was paused, counts as two at most, and only after data received meanwhile was read."""
    loop = asyncio.get_running_loop()
    before_s = loop.time()
    while True:
        await asyncio.sleep(interval_s)
        now_s = loop.time()
        elapsed_s = min(now_s - before_s, 2 * interval_s)
        before_s = now_s
        if elapsed_s == 2 * interval_s:
            for _ in range(TURNS):
                await asyncio.sleep(0)
        yield int(elapsed_s * 1000)


log = structlog.get_logger(__name__)

ACCEPTED_MAX: Final = 256
"""Most nodes with an accepted connection: far more than a cluster has. One more is refused with a reason."""

PENDING_HANDSHAKES_MAX: Final = 64
"""Most accepted connections in their handshake. At one more the oldest is closed, so that idle connections do not keep
nodes out."""

DRAIN_S: Final = 2.0
"""How long a stopping node waits until the others have its answers: normally one round trip. After it connections are
closed, and the outcome of unanswered requests is unknown."""

FRAME_OVERHEAD_BYTES: Final = 8
"""Bytes of a frame besides its one item, at most."""


class ClusterLinks:
    """See `repl.transport.port.Links`.

    `on_request(node, method, body)` answers a request or raises; `direct` has the handlers of methods that are served
    without a task, and may grow until the first connection. Sizes are in bytes, `catch_up_rate_bytes` is per
    second over all nodes (0: no limit).
    """

    def __init__(
        self,
        this: ThisNode,
        limits: LinkLimits,
        *,
        catch_up_rate_bytes: int,
        observer: ReachabilityObserver,
        on_request: Handler,
        direct: Mapping[str, DirectHandler] = NO_DIRECT,
        tls: LinkTls | None = None,
    ) -> None:
        assert len(this.cluster_uuid) == 16
        self.limits = limits
        self.cap = RateCap(catch_up_rate_bytes)
        self.sent = Traffic()
        self.received = Traffic()
        self._this = this
        self._observer = observer
        self._on_request = on_request
        self._direct = direct
        self._tls = tls
        self._encoder = Encoder()
        self._random = machine().random()
        self._diallers: dict[str, tuple[Dialler, asyncio.Task[None]]] = {}
        self._dialled: dict[str, PeerConnection] = {}
        self._accepted: dict[str, PeerConnection] = {}
        self._pending_handshakes: dict[PeerConnection, None] = {}
        self._all: OrderedSet[PeerConnection] = OrderedSet()
        self._emptied = asyncio.Event()
        self._to_flush: dict[PeerConnection, None] = {}
        self._served: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._serving: dict[PeerConnection, RpcServer] = {}
        self._faults: dict[str, int] = {}
        self._log_limit = LogLimit()
        self._server: PlainServer | TlsServer | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._retiring: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._stopping = False

    # -- start and stop -----------------------------------------------------------------------------------

    async def start(self, listen_socket: socket.socket, listener: LinkListener) -> None:
        """Accept connections on the bound `listen_socket`, which `stop` closes, and start the health checks. From now
        on nodes may be dialled, and `listener` receives."""
        self._listener = listener
        loop = asyncio.get_running_loop()
        acceptor = Acceptor("cluster", listen_socket, CLUSTER_HEADROOM)
        if self._tls is None:
            self._server = PlainServer(acceptor, listen_socket, lambda: PeerConnection(self))
        else:
            contexts, also_plain = self._tls.server.current, self._tls.take_plain
            self._server = TlsServer(
                "cluster",
                listen_socket,
                lambda: PeerConnection(self),
                contexts,
                acceptor=acceptor,
                also_plain=also_plain,
            )
        self._server.start()
        self._ticking = loop.create_task(self._tick())

    async def drain(self) -> None:
        """Before `stop`: ask the others for no more requests, and wait until they have all answers, at most DRAIN_S."""
        serving = list(self._serving.values())
        for each in serving:
            each.drain()
        try:
            async with asyncio.timeout(DRAIN_S):
                for each in serving:
                    await each.left.wait()
        except TimeoutError:
            log.warning("transport.leave.timeout", waiting=sum(not each.left.is_set() for each in serving))

    async def stop(self) -> None:
        """Close all connections; the listener gets no more calls. Requests under way fail."""
        self._stopping = True
        tasks = [task for _, task in self._diallers.values()] + list(self._retiring) + list(self._served)
        if self._ticking is not None:
            tasks.append(self._ticking)
        for task in tasks:
            task.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._all):
            connection.close("this node stops")
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._all:
            await self._emptied.wait()
        if self._server is not None:
            await self._server.wait_closed()

    def set_nodes(self, addresses: Mapping[str, str]) -> None:
        """See the port."""
        assert self._this.name not in addresses, "a node does not dial itself"
        for node, (dialler, task) in list(self._diallers.items()):
            if addresses.get(node) != dialler.address:
                task.cancel()
                del self._diallers[node]
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)
        for node, address in addresses.items():
            if node not in self._diallers and not self._stopping:
                dialler = Dialler(
                    node,
                    address,
                    self,
                    timeout_ms=self.limits.dead_after_ms,
                    delay_max_ms=self.limits.dial_delay_max_ms,
                    random=self._random,
                    context=None if self._tls is None or self._tls.dial_plain else self._tls.client.current,
                )
                self._diallers[node] = (dialler, asyncio.get_running_loop().create_task(dialler.run()))

    # -- sending ------------------------------------------------------------------------------------------

    def send(
        self,
        node: str,
        partition: int,
        message: LinkMessage,
        *,
        live: bool = True,
        cursors: Mapping[bytes, bytes] = NO_CURSORS,
    ) -> bool:
        """See the port. An empty lane takes a message of any size."""
        connection = self._connection_for(node, message)
        if connection is None:
            return False
        item = self._encoder.item(partition, message, cursors)
        length = sum(map(len, item))
        if length + FRAME_OVERHEAD_BYTES > connection.body_limit:
            sentence = f"a message of {length} bytes: node {node} takes {connection.body_limit}"
            self.fault(connection, "message-too-large", sentence)
            return False
        if not live:
            waiting = connection.waiting_bytes(Lane.CATCH_UP)
            if waiting and waiting + length > self.limits.catch_up_limit_bytes:
                return False
            return connection.put(Lane.CATCH_UP, item, length)
        return connection.put(Lane.LIVE, item, length)

    def _connection_for(self, node: str, message: LinkMessage) -> PeerConnection | None:
        kind = type(message)
        if kind in FROM_FOLLOWER:
            return self._dialled.get(node)
        if kind is StaleEpoch:
            return self._accepted.get(node) or self._dialled.get(node)
        return self._accepted.get(node)

    def catch_up_room(self, node: str) -> int:
        """See the port."""
        connection = self._accepted.get(node)
        if connection is None:
            return 0
        return max(0, self.limits.catch_up_limit_bytes - connection.waiting_bytes(Lane.CATCH_UP))

    def takes_stream(self, node: str) -> bool:
        """See the port."""
        connection = self._accepted.get(node)
        return connection is not None and connection.takes_stream

    def linked(self, node: str) -> bool:
        """See the port."""
        return node in self._dialled

    def dialled_nodes(self) -> Collection[str]:
        """See the port."""
        return self._dialled.keys()

    def dialled_by(self) -> Collection[str]:
        """See the port."""
        return self._accepted.keys()

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """See the port. Also raises Overloaded and TooLarge, without sending anything."""
        connection, client = self._client_of(node)
        return await client.ask(method, body, timeout_ms, connection.waiting_bytes(Lane.CALLS))

    def send_request(self, node: str, method: str, body: bytes, timeout_ms: int, answered: Answered) -> None:
        """See the port. Also raises Overloaded and TooLarge, without sending anything."""
        connection, client = self._client_of(node)
        client.send(method, body, timeout_ms, connection.waiting_bytes(Lane.CALLS), answered)

    def _client_of(self, node: str) -> tuple[PeerConnection, RpcClient]:
        connection = self._dialled.get(node)
        if connection is None or connection.asking is None:
            raise NotReady(f"no connection to node {node}")
        return connection, connection.asking

    def to_flush(self, connection: PeerConnection) -> None:
        """Write what was queued for `connection` when this turn of the loop is over."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush[connection] = None

    def _flush(self) -> None:
        self._encoder.forget()
        connections, self._to_flush = self._to_flush, {}
        for connection in connections:
            connection.pump()

    # -- LinkOwner ----------------------------------------------------------------------------------------

    def made(self, connection: PeerConnection) -> None:
        """A socket is connected."""
        self._all.add(connection)
        self._emptied.clear()
        if self._stopping:
            connection.close("this node stops")
        if connection.dialled:
            return
        self._pending_handshakes[connection] = None
        if len(self._pending_handshakes) > PENDING_HANDSHAKES_MAX:
            oldest = next(iter(self._pending_handshakes))
            del self._pending_handshakes[oldest]
            oldest.fail("too-many-strangers", f"{PENDING_HANDSHAKES_MAX} newer connections wait for their handshakes")

    def lost(self, connection: PeerConnection) -> None:
        """A socket is closed."""
        self._all.discard(connection)
        if not self._all:
            self._emptied.set()
        self._pending_handshakes.pop(connection, None)
        serving = self._serving.pop(connection, None)
        if serving is not None:
            serving.left.set()

    def handshake(self, to: str) -> Handshake:
        """This node's side of a handshake with `to`."""
        this = self._this
        return Handshake(this.cluster_uuid, this.cluster, this.name, to, self.limits.message_limit_bytes)

    def check_room(self, node: str) -> None:
        """Raises ConnectionRefused when another connection dialled by `node` would exceed ACCEPTED_MAX."""
        if node not in self._accepted and len(self._accepted) >= ACCEPTED_MAX:
            raise ConnectionRefused(
                HandshakeRefusal.TOO_MANY, f"node {self._this.name} has connections of {ACCEPTED_MAX} nodes"
            )

    def serving(self, connection: PeerConnection) -> RpcServer:
        """The server of an accepted connection's requests."""
        serving = self._serving[connection] = RpcServer(
            connection.node,
            self._on_request,
            connection,
            body_limit=connection.body_limit,
            bytes_max=self.limits.live_limit_bytes,
            tasks=self._served,
            direct=self._direct,
        )
        return serving

    def opened(self, connection: PeerConnection) -> None:
        """A handshake has succeeded."""
        self._pending_handshakes.pop(connection, None)
        node = connection.node
        current = self._dialled if connection.dialled else self._accepted
        older = current.get(node)
        if older is not None:
            older.close("replaced by a newer connection with the same node")
            self.closed(older)
        current[node] = connection
        log.info("transport.link.up", peer=node, dialled=connection.dialled, address=connection.peer_address)
        if connection.dialled:
            self._observe(node, True)
            self._report(node, True)
            self._want_stream(connection)

    def _want_stream(self, connection: PeerConnection) -> None:
        """Ask the other node for a stream; a node of an older version does not know the request."""
        asking = connection.asking
        assert asking is not None

        async def ask() -> None:
            try:
                await asking.ask(WANT_STREAM, b"", self.limits.dead_after_ms, 0)
            except IsthmusError as error:
                log.info("transport.stream.refused", peer=connection.node, reason=str(error))

        task = asyncio.get_running_loop().create_task(ask())
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    def stream_wanted(self, connection: PeerConnection) -> None:
        """The node that dialled `connection` takes a stream over it."""
        connection.takes_stream = True
        if not self._stopping and self._accepted.get(connection.node) is connection:
            self._listener.stream_wanted(connection.node)

    def closed(self, connection: PeerConnection) -> None:
        """A connection ended, or was replaced."""
        current = self._dialled if connection.dialled else self._accepted
        if current.get(connection.node) is not connection:
            return
        del current[connection.node]
        if not self._stopping:
            log.info("transport.link.down", peer=connection.node, dialled=connection.dialled, reason=connection.why)
        if connection.dialled:
            self._observe(connection.node, False)
        self._report(connection.node, False)

    def _observe(self, node: str, up: bool) -> None:
        if not self._stopping:
            self._observer.link_changed(node, up)

    def refused(self, node: str) -> None:
        """The address of `node` refused a dial. A connection that it dialled to this node proves that it lives."""
        if not self._stopping and node not in self._accepted:
            self._observer.dial_refused(node)

    def _report(self, node: str, up: bool) -> None:
        if not self._stopping:
            self._listener.link_changed(node, up)

    def arrived(self, connection: PeerConnection, items: tuple[Any, ...]) -> None:
        """A frame of messages. Raises CodecError, also for a message of the wrong direction."""
        deliveries = list(map(decode_item, items))
        wrong_way = FROM_FOLLOWER if connection.dialled else FROM_LEADER
        for delivery in deliveries:
            if type(delivery.message) in wrong_way:
                raise CodecError(f"a {type(delivery.message).__name__} over the wrong connection")
        if not self._stopping:
            self._listener.received(connection.node, deliveries)

    def fault(self, connection: PeerConnection, reason: str, sentence: str) -> None:
        """Count and log a fault for which `connection` is closed or a message dropped."""
        if self._stopping:
            return
        self._faults[reason] = self._faults.get(reason, 0) + 1
        if (suppressed := self._log_limit.due(reason)) is not None:
            log.warning(
                "transport.fault",
                reason=reason,
                sentence=sentence,
                peer=connection.node,
                address=connection.peer_address,
                suppressed=suppressed,
            )

    # -- health and metrics -------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Advance the health checks of all connections by the time that this process lived through."""
        async for elapsed_ms in lived_ms(min(self.limits.ping_interval_ms, self.limits.dead_after_ms / 4) / 1000):
            for connection in list(self._all):
                try:
                    connection.tick(elapsed_ms)
                except Exception as error:  # the health of the other connections is watched all the same
                    unforeseen.exception("transport.tick_failed", error, peer=connection.node)

    def certificates_expire_s(self) -> dict[str, float]:
        """Connected node -> when its certificate expires, in seconds since 1970."""
        connections = (*self._dialled.values(), *self._accepted.values())
        found = ((each.node, expires_s(each.certificate())) for each in connections)
        return {node: at_s for node, at_s in found if at_s is not None}

    def metrics(self) -> list[Sample]:
        """Samples of connections, frames, bytes, faults, round trips and waiting bytes."""
        samples: list[Sample] = [
            ("isthmus_links", {"dialled": "here"}, len(self._dialled)),
            ("isthmus_links", {"dialled": "there"}, len(self._accepted)),
        ]
        connections = [*self._dialled.values(), *self._accepted.values()]
        for direction, traffic in (("sent", self.sent), ("received", self.received)):
            for lane in Lane:
                labels = {"lane": lane.name.lower(), "direction": direction}
                samples.append(("isthmus_link_frames_total", labels, traffic.frames[lane]))
                samples.append(("isthmus_link_bytes_total", labels, traffic.bytes[lane]))
        for lane in (Lane.LIVE, Lane.CALLS, Lane.CATCH_UP):
            waiting = sum(connection.waiting_bytes(lane) for connection in connections)
            samples.append(("isthmus_link_waiting_bytes", {"lane": lane.name.lower()}, waiting))
        samples += [("isthmus_link_faults_total", {"reason": reason}, count) for reason, count in self._faults.items()]
        samples += [
            ("isthmus_link_round_trip_seconds", {"node": connection.node}, connection.round_trip_s)
            for connection in self._dialled.values()
            if connection.round_trip_s is not None
        ]
        if isinstance(self._server, TlsServer):
            samples += self._server.samples()
        return samples

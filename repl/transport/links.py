"""The connections of one node with the others of its cluster: the real `repl.transport.port.Links`.

Dials every node it is told of and takes the connections that they dial; says which connection a message takes, hands
over what arrives, one call a frame, and keeps the clock of their health. At most one accepted connection a node: a
second replaces the first. Everything belongs to the event loop; nothing here knows what a message means.

The clock of the connections' health: time that this process lived through. Who counts it is in `connection`.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from random import Random
from typing import Any, Final

import structlog

from isthmus.repl.isr.messages import Message, StaleEpoch
from isthmus.repl.model.errors import CodecError, NotReady
from isthmus.repl.security.tls import LinkTls, expires_s
from isthmus.repl.security.tls_server import TlsServer
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.codec import FROM_FOLLOWER, FROM_LEADER, Encoder, decode_item
from isthmus.repl.transport.connection import LinkLimits, PeerConnection
from isthmus.repl.transport.dialer import Dialler
from isthmus.repl.transport.frames import Lane
from isthmus.repl.transport.handshake import ConnectionRefused, Handshake, HandshakeRefusal
from isthmus.repl.transport.lanes import RateCap, Traffic
from isthmus.repl.transport.port import NO_CURSORS, Delivery
from isthmus.repl.transport.rpc import Handler, RpcServer

TURNS: Final = 4
"""Turns of the loop in which what came during a pause is read: a loop may run what is due before it reads, and an
answer may want a turn at either end."""


async def lived_ms(interval_s: float) -> AsyncIterator[int]:
    """How many milliseconds have passed, every `interval_s`. A tick that comes late, since the process or its machine
    was paused, counts as two at most, and only when what came meanwhile has been read."""
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
"""Nodes whose connections are taken: far more than a cluster has. One more is refused by name."""

STRANGERS_MAX: Final = 64
"""Accepted connections whose handshake is not over; at one more the oldest is closed, so that whoever opens connections
and says nothing does not keep nodes out."""

FAULT_LOG_INTERVAL_S: Final = 10.0
"""Faults of one reason are counted each and logged once in this time: whoever makes them must not fill the log."""

LEAVE_S: Final = 2.0
"""How long a node that stops waits for the others to have its answers: a round trip, where nothing is amiss. After it
the connections are closed, and who still waits does not know the outcome."""

FRAME_OVERHEAD_BYTES: Final = 8
"""What a frame has besides its one item."""


class ClusterLinks:
    """See `repl.transport.port.Links` for what a caller may expect.

    `on_deliveries(node, deliveries)` is called once a frame; `on_link(node, True)` when the connection that this node
    dialled stands, `on_link(node, False)` when any connection with it broke; `on_request(node, method, body)`
    answers a request or raises. Sizes in bytes, `catch_up_rate_bytes` a second over all nodes (0: no limit).
    """

    def __init__(
        self,
        *,
        node: str,
        cluster: str,
        cluster_uuid: bytes,
        ping_interval_ms: int,
        dead_after_ms: int,
        dial_delay_max_ms: int,
        live_limit_bytes: int,
        catch_up_limit_bytes: int,
        catch_up_share_percent: int,
        catch_up_rate_bytes: int,
        message_limit_bytes: int,
        on_deliveries: Callable[[str, list[Delivery]], None],
        on_link: Callable[[str, bool], None],
        on_request: Handler,
        tls: LinkTls | None = None,
    ) -> None:
        assert len(cluster_uuid) == 16
        self.limits = LinkLimits(
            ping_interval_ms,
            dead_after_ms,
            dial_delay_max_ms,
            live_limit_bytes,
            catch_up_limit_bytes,
            catch_up_share_percent,
            message_limit_bytes,
        )
        self.cap = RateCap(catch_up_rate_bytes)
        self.sent = Traffic()
        self.received = Traffic()
        self._node = node
        self._cluster = cluster
        self._cluster_uuid = cluster_uuid
        self._on_deliveries = on_deliveries
        self._on_link = on_link
        self._on_request = on_request
        self._tls = tls
        self._encoder = Encoder()
        self._random = Random()  # noqa: S311 - jitter
        self._diallers: dict[str, tuple[Dialler, asyncio.Task[None]]] = {}
        self._dialled: dict[str, PeerConnection] = {}
        self._accepted: dict[str, PeerConnection] = {}
        self._strangers: dict[PeerConnection, None] = {}
        self._all: set[PeerConnection] = set()
        self._emptied = asyncio.Event()
        self._to_flush: dict[PeerConnection, None] = {}
        self._served: set[asyncio.Task[None]] = set()
        self._serving: dict[PeerConnection, RpcServer] = {}
        self._faults: dict[str, int] = {}
        self._fault_logged_s: dict[str, float] = {}
        self._server: asyncio.Server | TlsServer | None = None
        self._ticking: asyncio.Task[None] | None = None
        self._retiring: set[asyncio.Task[None]] = set()
        self._stopping = False

    # Life

    async def start(self, listen_socket: socket.socket) -> None:
        """Take connections on `listen_socket` (bound; it is ours from now on) and begin to watch over all."""
        loop = asyncio.get_running_loop()
        if self._tls is None:
            self._server = await loop.create_server(lambda: PeerConnection(self), sock=listen_socket)
        else:
            contexts, also_plain = self._tls.server.current, self._tls.take_plain
            self._server = TlsServer(
                "cluster", listen_socket, lambda: PeerConnection(self), contexts, also_plain=also_plain
            )
            self._server.start()
        self._ticking = loop.create_task(self._tick())

    async def drain(self) -> None:
        """Before `stop`: want to be asked nothing more, and wait until the others have all answers, LEAVE_S at most."""
        serving = list(self._serving.values())
        for each in serving:
            each.drain()
        try:
            async with asyncio.timeout(LEAVE_S):
                for each in serving:
                    await each.left.wait()
        except TimeoutError:
            log.warning("transport.leave.timeout", waiting=sum(not each.left.is_set() for each in serving))

    async def stop(self) -> None:
        """Close everything and forget it; nothing is reported any more. Requests under way fail."""
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
        """The other nodes that live, by name, as HOST:PORT: dial the new ones, drop those that are gone."""
        assert self._node not in addresses, "a node does not dial itself"
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
                    connect=lambda to, on_lost: PeerConnection(self, to, on_lost),
                    timeout_ms=self.limits.dead_after_ms,
                    delay_max_ms=self.limits.dial_delay_max_ms,
                    random=self._random,
                    context=None if self._tls is None or self._tls.dial_plain else self._tls.client.current,
                )
                self._diallers[node] = (dialler, asyncio.get_running_loop().create_task(dialler.run()))

    # Sending

    def send(
        self,
        node: str,
        partition: int,
        message: Message,
        *,
        live: bool = True,
        cursors: Mapping[bytes, bytes] = NO_CURSORS,
    ) -> bool:
        """Queue a message; see the port. A message of any size goes into an empty lane."""
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

    def _connection_for(self, node: str, message: Message) -> PeerConnection | None:
        kind = type(message)
        if kind in FROM_FOLLOWER:
            return self._dialled.get(node)
        if kind is StaleEpoch:
            return self._accepted.get(node) or self._dialled.get(node)
        return self._accepted.get(node)

    def catch_up_room(self, node: str) -> int:
        """Bytes that the catch-up lane to `node` takes now; see the port."""
        connection = self._accepted.get(node)
        if connection is None:
            return 0
        return max(0, self.limits.catch_up_limit_bytes - connection.waiting_bytes(Lane.CATCH_UP))

    def linked(self, node: str) -> bool:
        """True while the connection that this node dialled to `node` stands."""
        return node in self._dialled

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """Ask `node`; see the port. Overloaded when too much waits for it, TooLarge: nothing was sent."""
        connection = self._dialled.get(node)
        if connection is None or connection.asking is None:
            raise NotReady(f"no connection to node {node}")
        return await connection.asking.ask(method, body, timeout_ms, connection.waiting_bytes(Lane.CALLS))

    def to_flush(self, connection: PeerConnection) -> None:
        """Something was queued: it is written when this turn of the loop is over."""
        if not self._to_flush:
            asyncio.get_running_loop().call_soon(self._flush)
        self._to_flush[connection] = None

    def _flush(self) -> None:
        self._encoder.forget()
        connections, self._to_flush = self._to_flush, {}
        for connection in connections:
            connection.pump()

    # Connections report

    def made(self, connection: PeerConnection) -> None:
        """A socket stands."""
        self._all.add(connection)
        self._emptied.clear()
        if self._stopping:
            connection.close("this node stops")
        if connection.dialled:
            return
        self._strangers[connection] = None
        if len(self._strangers) > STRANGERS_MAX:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.fail("too-many-strangers", f"{STRANGERS_MAX} newer connections wait for their handshakes")

    def lost(self, connection: PeerConnection) -> None:
        """A socket is gone."""
        self._all.discard(connection)
        if not self._all:
            self._emptied.set()
        self._strangers.pop(connection, None)
        serving = self._serving.pop(connection, None)
        if serving is not None:
            serving.left.set()

    def introduction(self, to: str) -> Handshake:
        """What this node says of itself in a handshake."""
        return Handshake(self._cluster_uuid, self._cluster, self._node, to, self.limits.message_limit_bytes)

    def check_room(self, node: str) -> None:
        """Raises Refused when a connection dialled by `node` is one too many."""
        if node not in self._accepted and len(self._accepted) >= ACCEPTED_MAX:
            raise ConnectionRefused(
                HandshakeRefusal.TOO_MANY, f"node {self._node} has connections of {ACCEPTED_MAX} nodes"
            )

    def serving(self, connection: PeerConnection) -> RpcServer:
        """What serves the requests of an accepted connection."""
        serving = self._serving[connection] = RpcServer(
            connection.node,
            self._on_request,
            body_limit=connection.body_limit,
            bytes_max=self.limits.live_limit_bytes,
            put=connection.put_call,
            waiting=lambda: connection.waiting_bytes(Lane.CALLS),
            tasks=self._served,
        )
        return serving

    def opened(self, connection: PeerConnection) -> None:
        """A handshake is over."""
        self._strangers.pop(connection, None)
        node = connection.node
        standing = self._dialled if connection.dialled else self._accepted
        older = standing.get(node)
        if older is not None:
            older.close("replaced by a newer connection with the same node")
            self.closed(older)
        standing[node] = connection
        log.info("transport.link.up", peer=node, dialled=connection.dialled, address=connection.peer_address)
        if connection.dialled:
            self._report(node, True)

    def closed(self, connection: PeerConnection) -> None:
        """A connection is gone, or replaced."""
        standing = self._dialled if connection.dialled else self._accepted
        if standing.get(connection.node) is not connection:
            return
        del standing[connection.node]
        if not self._stopping:
            log.info("transport.link.down", peer=connection.node, dialled=connection.dialled, reason=connection.why)
        self._report(connection.node, False)

    def _report(self, node: str, up: bool) -> None:
        if not self._stopping:
            self._on_link(node, up)

    def arrived(self, connection: PeerConnection, items: tuple[Any, ...]) -> None:
        """A frame of messages. Raises CodecError, also for a message that goes the other way."""
        deliveries = list(map(decode_item, items))
        wrong_way = FROM_FOLLOWER if connection.dialled else FROM_LEADER
        for delivery in deliveries:
            if type(delivery.message) in wrong_way:
                raise CodecError(f"a {type(delivery.message).__name__} over the wrong connection")
        if not self._stopping:
            self._on_deliveries(connection.node, deliveries)

    def fault(self, connection: PeerConnection, reason: str, sentence: str) -> None:
        """Something came over `connection`, or did not, for which it is closed or a message dropped."""
        if self._stopping:
            return
        self._faults[reason] = self._faults.get(reason, 0) + 1
        now_s = asyncio.get_running_loop().time()
        if now_s - self._fault_logged_s.get(reason, -FAULT_LOG_INTERVAL_S) >= FAULT_LOG_INTERVAL_S:
            self._fault_logged_s[reason] = now_s
            log.warning(
                "transport.fault",
                reason=reason,
                sentence=sentence,
                peer=connection.node,
                address=connection.peer_address,
                count=self._faults[reason],
            )

    # Health and numbers

    async def _tick(self) -> None:
        """Count the silence of all connections, in time that this process lived through."""
        async for elapsed_ms in lived_ms(min(self.limits.ping_interval_ms, self.limits.dead_after_ms / 4) / 1000):
            for connection in list(self._all):
                connection.tick(elapsed_ms)

    def certificates_expire_s(self) -> dict[str, float]:
        """When the certificates of the nodes that are connected expire, in seconds since 1970, by node."""
        standing = (*self._dialled.values(), *self._accepted.values())
        found = ((each.node, expires_s(each.certificate())) for each in standing)
        return {node: at_s for node, at_s in found if at_s is not None}

    def metrics(self) -> list[Sample]:
        """Connections, frames, bytes, faults, round trips and what waits, as samples of `repl.telemetry.HELP`."""
        samples: list[Sample] = [
            ("isthmus_links", {"dialled": "here"}, len(self._dialled)),
            ("isthmus_links", {"dialled": "there"}, len(self._accepted)),
        ]
        standing = [*self._dialled.values(), *self._accepted.values()]
        for direction, traffic in (("sent", self.sent), ("received", self.received)):
            for lane in Lane:
                labels = {"lane": lane.name.lower(), "direction": direction}
                samples.append(("isthmus_link_frames_total", labels, traffic.frames[lane]))
                samples.append(("isthmus_link_bytes_total", labels, traffic.bytes[lane]))
        for lane in (Lane.LIVE, Lane.CALLS, Lane.CATCH_UP):
            waiting = sum(connection.waiting_bytes(lane) for connection in standing)
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

"""Nodes with real connections on loopback, raw connections driven by a test, and a proxy that misbehaves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Final

import uvloop

from isthmus.node.local.ports import free_port
from isthmus.repl.isr.messages import AppendAck, AppendEntries
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.security.tls import LinkTls
from isthmus.repl.transport.connection import LinkLimits
from isthmus.repl.transport.frames import FrameKind, FrameReader, Lane, WireFrame, frame_head
from isthmus.repl.transport.handshake import Handshake, decode_handshake, encode_handshake
from isthmus.repl.transport.links import ClusterLinks
from isthmus.repl.transport.port import Delivery
from tests.support.waiting import eventually as eventually

UUID: Final = b"u" * 16
PATIENCE_S: Final = 20.0
DEAD_AFTER_MS: Final = 1000
"""How long a silent connection lives; longer than a loop may stall on a busy machine."""
MB: Final = 1_000_000

LOOPS: Final = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def run(scenario: Coroutine[Any, Any, None], loop: str = "asyncio") -> None:
    """Run `scenario` on one of LOOPS."""
    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(scenario)


def entries_of(count: int, size: int, start: int = 0, epoch: int = 1) -> tuple[Entry, ...]:
    """`count` entries from `start` on, with payloads of `size` bytes."""
    return tuple(
        make_entry(
            EntryKind.DATA,
            epoch,
            start + i,
            request_id=b"r" * 16,
            origin=UUID,
            time_ms=1_700_000_000_000,
            bucket=b"bucket",
            key=b"key",
            row=b"row",
            payload=bytes((i % 251,)) * size,
        )
        for i in range(count)
    )


def forward(seq: int, entries: tuple[Entry, ...] = ()) -> AppendEntries:
    """An AppendEntries in epoch 1, identified by its `seq`."""
    return AppendEntries(1, seq, entries[0].offset if entries else 0, 0, 0, 0, 1, ("a", "b"), entries)


def ack(seq: int) -> AppendAck:
    """An AppendAck in epoch 1, identified by its `seq`."""
    return AppendAck(1, 7, seq, 0, 0, 0)


LIMITS = LinkLimits(
    ping_interval_ms=50,
    dead_after_ms=DEAD_AFTER_MS,
    dial_delay_max_ms=200,
    live_limit_bytes=64 * MB,
    catch_up_limit_bytes=8 * MB,
    catch_up_share_percent=20,
    message_limit_bytes=64 * MB,
)


class Observed:
    """Reports of a node's links about reachability."""

    def __init__(self) -> None:
        self.links: list[tuple[str, bool]] = []
        self.refused: list[str] = []

    def link_changed(self, node: str, up: bool) -> None:
        """See ReachabilityObserver."""
        self.links.append((node, up))

    def dial_refused(self, node: str) -> None:
        """See ReachabilityObserver."""
        self.refused.append(node)


class Node:
    """A node with its links, and all that they reported."""

    def __init__(
        self,
        name: str,
        *,
        cluster: str = "c",
        cluster_uuid: bytes = UUID,
        catch_up_rate_bytes: int = 0,
        tls: LinkTls | None = None,
        **limits: int,
    ) -> None:
        self.name = name
        self.frames: list[tuple[str, list[Delivery]]] = []
        self.streams_wanted: list[str] = []
        self.events: list[tuple[str, bool]] = []
        self.answer: Callable[[str, str, bytes], Awaitable[bytes]] = self._echo
        self.observed = Observed()
        this = ThisNode(name, cluster, cluster_uuid)
        self.links = ClusterLinks(
            this,
            replace(LIMITS, **limits),
            catch_up_rate_bytes=catch_up_rate_bytes,
            observer=self.observed,
            tls=tls,
            on_request=lambda node, method, body: self.answer(node, method, body),
        )
        self.port = free_port(set())  # reserved: when the node is gone, no node of another test listens there
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(("127.0.0.1", self.port))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def messages(self) -> list[Any]:
        """All that arrived, in order."""
        return [delivery.message for _, frame in self.frames for delivery in frame]

    def received(self, node: str, deliveries: Sequence[Delivery]) -> None:
        """See LinkListener."""
        self.frames.append((node, list(deliveries)))

    def link_changed(self, node: str, up: bool) -> None:
        """See LinkListener."""
        self.events.append((node, up))

    def stream_wanted(self, node: str) -> None:
        """See LinkListener."""
        self.streams_wanted.append(node)

    def faults(self) -> dict[str, float]:
        """Connections closed for a fault, by reason."""
        return {
            labels["reason"]: value
            for name, labels, value in self.links.metrics()
            if name == "isthmus_link_faults_total"
        }

    def number(self, metric: str, **wanted: str) -> float:
        """The value of one sample."""
        found = [value for name, labels, value in self.links.metrics() if name == metric and labels == wanted]
        assert len(found) == 1, (metric, wanted)
        return found[0]

    async def _echo(self, node: str, method: str, body: bytes) -> bytes:
        return b" ".join((node.encode(), method.encode(), body))


class LinkCluster:
    """Nodes, raw connections, and proxies of one test."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.sockets: list[socket.socket] = []
        self.proxies: list[Proxy] = []

    async def node(self, name: str, **numbers: Any) -> Node:
        """A node that listens and has dialled no other yet."""
        node = Node(name, **numbers)
        self.nodes.append(node)
        await node.links.start(node.socket, node)
        return node

    async def pair(self, **numbers: Any) -> tuple[Node, Node]:
        """Nodes a and b, connected both ways."""
        a, b = await self.node("a", **numbers), await self.node("b", **numbers)
        await self.connect(a, b)
        return a, b

    async def connect(self, a: Node, b: Node) -> None:
        """Both dial each other; waits until both connections are established at both ends."""
        a.links.set_nodes({b.name: b.address})
        b.links.set_nodes({a.name: a.address})
        await eventually(lambda: a.links.linked(b.name) and b.links.linked(a.name), "two connections")
        await eventually(lambda: a.links.catch_up_room(b.name) and b.links.catch_up_room(a.name), "both ends")

    async def proxy(self, to: Node) -> Proxy:
        """A proxy in front of `to`."""
        proxy = Proxy(to.port)
        self.proxies.append(proxy)
        await proxy.start()
        return proxy

    async def raw_connection(self, to: Node, receive_buffer_bytes: int = 0) -> RawConnection:
        """A connection to `to` before the handshake."""
        sock = socket.socket()
        if receive_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        sock.setblocking(False)
        self.sockets.append(sock)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", to.port))
        return RawConnection(sock)

    async def follower(self, to: Node, name: str = "f", receive_buffer_bytes: int = 0) -> RawConnection:
        """A raw connection that has completed the handshake as node `name`."""
        raw_connection = await self.raw_connection(to, receive_buffer_bytes)
        await raw_connection.send_handshake(Handshake(UUID, "c", name, to.name, 64 * MB))
        welcome = await raw_connection.frame()
        assert welcome.kind is FrameKind.WELCOME
        assert decode_handshake(welcome.body).node == to.name
        return raw_connection


@contextlib.asynccontextmanager
async def run_cluster() -> AsyncIterator[LinkCluster]:
    """Yield a cluster; close all its sockets, nodes, and proxies at the end."""
    made = LinkCluster()
    try:
        yield made
    finally:
        for sock in made.sockets:
            sock.close()
        for node in made.nodes:
            await node.links.stop()
        for proxy in made.proxies:
            await proxy.stop()


class RawConnection:
    """A socket on which a test sends and reads frames itself."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.reader = FrameReader(1 << 20, 64 * MB)
        self.read: list[WireFrame] = []

    async def send(self, data: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self.sock, data)

    async def send_handshake(self, introduction: Handshake) -> None:
        await self.send(framed(FrameKind.GREETING, encode_handshake(introduction)))

    async def frame(self) -> WireFrame:
        """The next frame that comes, empty PONGs of a busy connection left out."""
        while True:
            while self.read:
                frame = self.read.pop(0)
                if frame.kind is not FrameKind.PONG or frame.body:
                    return frame
            data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 16), PATIENCE_S)
            if not data:
                raise EOFError
            self.read += [frame._replace(body=bytes(frame.body)) for frame in self.reader.frames(data)]

    async def closed(self) -> None:
        """Returns once the other side has closed it."""
        with contextlib.suppress(ConnectionError):
            while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.sock, 1 << 16), PATIENCE_S):
                pass


def framed(kind: FrameKind, body: bytes, lane: Lane = Lane.URGENT, *, more: bool = False) -> bytes:
    """The bytes of one frame."""
    return frame_head(kind, lane, (body,), more=more) + body


class Proxy:
    """Forwards bytes to a port until a test has it swallow them or cut the connections."""

    def __init__(self, port: int) -> None:
        self.swallows = False
        self.swallowed = False
        self._to = port
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if self._stopped:
            self.cut()
            return
        this = asyncio.current_task()
        assert this is not None
        self._tasks.add(this)
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._to)
        self._writers.append(there_writer)
        for one, other in ((reader, there_writer), (there_reader, writer)):
            task = asyncio.create_task(self._pass_on(one, other))
            self._tasks.add(task)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                if self.swallows:
                    self.swallowed = True
                else:
                    writer.write(data)
                    await writer.drain()
        if not self.swallows:
            writer.close()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def stop(self) -> None:
        """No connection is left, nor is one being made: closing a loop with one breaks the process."""
        self._stopped = True
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cut()
        await self._server.wait_closed()

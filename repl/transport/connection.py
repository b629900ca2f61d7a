"""One connection with a node of the cluster, dialled or accepted: handshake, reading, writing, health.

Input that does not have our form closes this connection and affects nothing else. Writing keeps what cannot be
overtaken small: a batch is handed over when the one before has left for the kernel, and the kernel is asked to hold
little unsent. Silence is counted in ticks that this process has lived through, so its own pauses count as one tick.
`links` interprets messages and selects the connection of each.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, Protocol, cast

from isthmus.repl.machine import machine
from isthmus.repl.model.errors import CodecError
from isthmus.repl.security.tls import FIRST_BYTE, shown_address, shown_certificate, tls_failure, wrong_certificate
from isthmus.repl.transport.frames import (
    FIRST_BYTES_MAX,
    PIECE_BYTES_MAX,
    FrameFault,
    FrameKind,
    FrameReader,
    Lane,
    Parts,
    WireFrame,
    unpacked,
)
from isthmus.repl.transport.handshake import (
    ConnectionRefused,
    Handshake,
    HandshakeRefusal,
    check_handshake,
    decode_handshake,
    decode_refusal,
    encode_handshake,
    encode_refusal,
)
from isthmus.repl.transport.lanes import PriorityLanes, RateCap, Traffic
from isthmus.repl.transport.rpc import RpcClient, RpcServer

NOTSENT_BYTES: Final = 64 * 1024
"""Unsent bytes in the kernel's buffer, which cannot be overtaken. Less would cost wake-ups."""

TURN_BYTES: Final = 512 * 1024
"""Most bytes written to one connection in one turn of the loop, about half a millisecond."""

URGENT_BYTES_MAX: Final = 16 * 1024
"""Most bytes in the urgent lane; above it the peer sends pings and does not read."""

FRAME_TIMEOUT_MS: Final = 60_000
"""Longest wait for the rest of a frame, or the next piece of a body: a piece arrives in that time at 64 kbit/s, beside
live traffic. A slower connection is closed."""

_TOKEN: Final = Struct("<d")


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Limits that all connections of a node share; described in `config/settings.py`."""

    ping_interval_ms: int
    dead_after_ms: int
    dial_delay_max_ms: int
    live_limit_bytes: int
    catch_up_limit_bytes: int
    catch_up_share_percent: int
    message_limit_bytes: int


class ConnectionOwner(Protocol):
    """Receives the events of connections; `repl.transport.links.ClusterLinks`."""

    limits: LinkLimits
    cap: RateCap
    sent: Traffic
    received: Traffic

    def made(self, connection: PeerConnection) -> None:
        """A socket is connected."""

    def lost(self, connection: PeerConnection) -> None:
        """A socket is closed, also one without a handshake."""

    def handshake(self, to: str) -> Handshake:
        """This node's side of a handshake with `to`."""

    def check_room(self, node: str) -> None:
        """Raises ConnectionRefused when another connection dialled by `node` would be too many."""

    def opened(self, connection: PeerConnection) -> None:
        """The handshake has succeeded; `closed` will follow."""

    def closed(self, connection: PeerConnection) -> None:
        """The connection ended."""

    def refused(self, node: str) -> None:
        """The address of `node` refused a dial: nobody listens there."""

    def arrived(self, connection: PeerConnection, items: tuple[Any, ...]) -> None:
        """A frame of messages. Raises CodecError."""

    def serving(self, connection: PeerConnection) -> RpcServer:
        """The server of an accepted connection's requests."""

    def fault(self, connection: PeerConnection, reason: str, sentence: str) -> None:
        """The connection is closed because of a fault of the peer."""

    def stream_wanted(self, connection: PeerConnection) -> None:
        """The node that dialled takes a stream over the connection."""

    def to_flush(self, connection: PeerConnection) -> None:
        """Call `pump` when this turn of the loop is over, since something was queued."""


class PeerConnection(asyncio.Protocol):
    """A connection. `node` is the peer: the dialled one, or the one that dialled (empty before the handshake)."""

    def __init__(
        self, owner: ConnectionOwner, dialled: str | None = None, on_lost: Callable[[], None] | None = None
    ) -> None:
        self.node = dialled or ""
        self.dialled = dialled is not None
        self.up = False
        self.was_up = False
        self.peer_address = ""
        self.body_limit = FIRST_BYTES_MAX
        self.round_trip_s: float | None = None
        self.why = ""
        self.takes_stream = False
        """The node that dialled takes a stream (repl.isr.pair_stream)."""
        self.asking: RpcClient | None = None
        self.silent_ms = 0
        self._owner = owner
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(FIRST_BYTES_MAX, FIRST_BYTES_MAX)
        self._outbox = PriorityLanes(
            calls=FrameKind.REQUESTS if self.dialled else FrameKind.ANSWERS,
            catch_up_share_percent=owner.limits.catch_up_share_percent,
            cap=owner.cap,
            sent=owner.sent,
        )
        self._serving: RpcServer | None = None
        self._heard = False
        self._wrote = False
        self._age_ms = 0
        self._paused = False
        self._closing = False
        self._wake: asyncio.Handle | None = None

    # From the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._owner.made(self)
        if self._closing:
            self._transport.abort()
            return
        # TLS pauses at this many bytes, not above it: with 0 it would pause for ever.
        self._transport.set_write_buffer_limits(high=0 if transport.get_extra_info("sslcontext") is None else 1, low=0)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Linux and macOS
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOTSENT_BYTES)
        self.peer_address = shown_address(transport.get_extra_info("peername"))
        if self.dialled:
            wrong = wrong_certificate(transport, self._owner.handshake(self.node).cluster, self.node)
            if wrong:
                self.fail(HandshakeRefusal.CERTIFICATE.value, wrong)
                return
            self._outbox.put_urgent(FrameKind.GREETING, encode_handshake(self._owner.handshake(self.node)))
            self.pump()

    def data_received(self, data: bytes) -> None:
        """Bytes were received."""
        self._heard = True
        if self._closing:
            return
        try:
            for frame in self._reader.frames(data):
                if not self._takes(frame):
                    return
        except FrameFault as fault:
            if not self.up and data[0] == FIRST_BYTE:
                self.fail("tls", "the other end speaks TLS, which is not turned on here")
            else:
                self.fail(fault.reason, str(fault))
        except CodecError as error:
            self.fail("malformed", str(error))

    def pause_writing(self) -> None:
        """The kernel's buffer is full."""
        self._paused = True

    def resume_writing(self) -> None:
        """The kernel's buffer has space again."""
        self._paused = False
        self.pump()

    def abandoned(self) -> None:
        """The dialler was cancelled after the socket was connected: the loop closes it, some loops without a call."""
        if self._transport is not None:
            self._transport.abort()
            self.connection_lost(None)  # coming twice, it changes nothing

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is closed."""
        self._closing = True
        lost = f"TLS: {tls_failure(error).words}" if isinstance(error, ssl.SSLError) else f"lost: {error}"
        self.why = self.why or (lost if error else "closed by the other end")
        if self._wake is not None:
            self._wake.cancel()
        if self.asking is not None:
            self.asking.broke(self.why)
        if self.up:
            self.up = False
            self._owner.closed(self)
        self._owner.lost(self)
        if self._on_lost is not None:
            self._on_lost()

    # Handshake

    def _on_handshake(self, frame: WireFrame) -> None:
        try:
            if self.dialled:
                if frame.kind is FrameKind.REFUSAL:
                    raise decode_refusal(frame.body)
                self._expect(frame, FrameKind.WELCOME)
                theirs = decode_handshake(frame.body)
                check_handshake(theirs, self._owner.handshake(self.node), self.node)
            else:
                self._expect(frame, FrameKind.GREETING)
                theirs = decode_handshake(frame.body)
                ours = self._owner.handshake(theirs.node)
                check_handshake(theirs, ours, None)
                wrong = wrong_certificate(self._transport, ours.cluster, theirs.node)
                if wrong:
                    raise ConnectionRefused(HandshakeRefusal.CERTIFICATE, wrong)
                self._owner.check_room(theirs.node)
                self._outbox.put_urgent(FrameKind.WELCOME, encode_handshake(ours))
        except ConnectionRefused as refused:
            self._refuse(refused)
            return
        self.node = theirs.node
        self.body_limit = theirs.body_limit
        self._reader.frame_limit = PIECE_BYTES_MAX
        self._reader.body_limit = self._owner.limits.message_limit_bytes
        if self.dialled:
            self.asking = RpcClient(
                self.node, self, body_limit=self.body_limit, bytes_max=self._owner.limits.live_limit_bytes
            )
        else:
            self._serving = self._owner.serving(self)
        self.up = self.was_up = True
        self.pump()
        self._owner.opened(self)

    def certificate(self) -> dict[str, Any] | None:
        """The peer's verified certificate; None without TLS."""
        return shown_certificate(self._transport)

    def _expect(self, frame: WireFrame, kind: FrameKind) -> None:
        if frame.kind is not kind or frame.lane is not Lane.URGENT:
            raise FrameFault("handshake", f"a {frame.kind.name} where a {kind.name} belongs")

    def _refuse(self, refused: ConnectionRefused) -> None:
        self._owner.fault(self, refused.reason, str(refused))
        self.why = f"refused: {refused}"
        assert self._transport is not None
        if not self.dialled:
            self._outbox.put_urgent(FrameKind.REFUSAL, encode_refusal(refused))
            self.pump()
        self._closing = True
        self._transport.close()  # what is written goes first

    # Reading

    def _takes(self, frame: WireFrame) -> bool:
        """Handle a frame; False when it was the last one."""
        self._owner.received.count(frame.lane, len(frame.body))
        if self.up:
            self._take(frame)
        else:
            self._on_handshake(frame)
        return not self._closing

    def _take(self, frame: WireFrame) -> None:
        match frame.kind:
            case FrameKind.MESSAGES:
                self._owner.arrived(self, unpacked(frame.body))
            case FrameKind.ANSWERS if self.asking is not None:
                for item in unpacked(frame.body):
                    self.asking.answered(item)
            case FrameKind.REQUESTS if self._serving is not None:
                for item in unpacked(frame.body):
                    self._serving.asked(item)
            case FrameKind.PING if not self.dialled and len(frame.body) == _TOKEN.size:
                self._put_urgent(FrameKind.PONG, bytes(frame.body))
            case FrameKind.PONG if self.dialled and len(frame.body) in (0, _TOKEN.size):
                if frame.body:
                    self.round_trip_s = max(0.0, machine().monotonic_s() - _TOKEN.unpack(frame.body)[0])
            case _:
                raise FrameFault("unexpected", f"a {frame.kind.name} of {len(frame.body)} bytes that belongs not here")

    # Writing

    def put(self, lane: Lane, item: Parts, length: int) -> bool:
        """Queue an item of `length` bytes; False when the connection is closing, also since the peer reads nothing."""
        if self._closing:
            return False
        waiting = self._outbox.waiting_bytes(lane)
        most = self._owner.limits.live_limit_bytes + (self.body_limit if lane is Lane.CALLS else 0)  # one answer more
        if lane is not Lane.CATCH_UP and waiting > most:
            self.fail("not-reading", f"{waiting} bytes wait for node {self.node}, which does not read them")
            return False
        self._outbox.put(lane, item, length)
        self._owner.to_flush(self)
        return True

    def stream_wanted(self) -> None:
        """The node that dialled takes a stream over this connection."""
        self._owner.stream_wanted(self)

    def put_call(self, item: Parts) -> bool:
        """Queue a request or an answer, as `put`."""
        return self.put(Lane.CALLS, item, sum(map(len, item)))

    def _put_urgent(self, kind: FrameKind, body: bytes) -> None:
        if self._outbox.urgent_bytes > URGENT_BYTES_MAX:
            self.fail("not-reading", f"pings of node {self.node} wait for answers that it does not read")
            return
        self._outbox.put_urgent(kind, body)
        self._owner.to_flush(self)

    def waiting_bytes(self, lane: Lane) -> int:
        """Bytes that wait in one lane."""
        return self._outbox.waiting_bytes(lane)

    def pump(self) -> None:
        """Write as much as may be written now."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._closing or self._transport is None:
            return
        now_s = self._loop.time()
        written = 0
        while not self._paused:
            batch: list[bytes | memoryview] = []
            length = self._outbox.batch(now_s, batch)
            if not length:
                wait_s = self._outbox.catch_up_wait_s(now_s)
                if wait_s:
                    self._wake = self._loop.call_later(wait_s, self.pump)
                return
            self._wrote = True
            if len(batch) == 1:
                self._transport.write(batch[0])
            else:
                self._transport.writelines(batch)
            if self._outbox.empty:
                return
            written += length
            if written >= TURN_BYTES:
                self._wake = self._loop.call_soon(self.pump)
                return

    # Health

    def tick(self, elapsed_ms: int) -> None:
        """Advance the health check by `elapsed_ms` of this process's running time."""
        heard, wrote = self._heard, self._wrote
        self._heard = self._wrote = False
        self.silent_ms = 0 if heard else self.silent_ms + elapsed_ms
        self._age_ms += elapsed_ms
        dead_after_ms = self._owner.limits.dead_after_ms
        if self._closing or not self.up:
            if self._age_ms >= dead_after_ms:
                self.fail("handshake-timeout", f"no handshake within {dead_after_ms} ms")
            return
        if self.silent_ms >= (dead_after_ms if self.dialled else 2 * dead_after_ms):
            self.fail("silent", f"nothing came for {self.silent_ms} ms")
        elif self._reader.waited_ms(elapsed_ms) >= FRAME_TIMEOUT_MS:
            self.fail("frame-timeout", f"a frame that has begun did not end within {FRAME_TIMEOUT_MS} ms")
        elif self.dialled and not heard:
            self._put_urgent(FrameKind.PING, _TOKEN.pack(machine().monotonic_s()))
        elif not self.dialled and heard and not wrote:
            # A ping may wait behind megabytes on a slow way here: that they come is said without being asked.
            self._put_urgent(FrameKind.PONG, b"")

    def fail(self, reason: str, sentence: str) -> None:
        """Close the connection because of a fault of the peer."""
        if not self._closing:
            self._owner.fault(self, reason, sentence)
        self.close(f"{reason}: {sentence}")

    def close(self, why: str) -> None:
        """Close the connection; waiting items are dropped."""
        self._closing = True
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()

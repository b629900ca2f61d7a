"""One connection with a node of the cluster, dialled or accepted: handshake, reading, writing, health.

Whatever comes over it and is not as we write it closes this connection and touches nothing else. Writing keeps what
cannot be overtaken small: a batch is handed over when the one before has left for the kernel, and the kernel is asked
to hold little unsent. Silence is counted in ticks that this process has lived through, so its own pauses count as
one tick. What messages mean, and which connection one takes, is for `links`.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from time import monotonic
from typing import Any, Final, Protocol, cast

from isthmus.repl.model.errors import CodecError
from isthmus.repl.security.tls import FIRST_BYTE, shown_address, shown_certificate, trouble_of, wrong_certificate
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
    check_introduction,
    decode_introduction,
    decode_refusal,
    encode_introduction,
    encode_refusal,
)
from isthmus.repl.transport.lanes import PriorityLanes, RateCap, Traffic
from isthmus.repl.transport.rpc import RpcClient, RpcServer

NOTSENT_BYTES: Final = 64 * 1024
"""What the kernel holds unsent besides what is on its way: it cannot be overtaken. Less would cost wake-ups."""

TURN_BYTES: Final = 512 * 1024
"""What one turn of the loop writes to one connection, about half a millisecond; then others have their turn."""

URGENT_BYTES_MAX: Final = 16 * 1024
"""What may wait in the urgent lane: the other side sends pings and does not read."""

FRAME_TIMEOUT_MS: Final = 60_000
"""How long a frame that has begun, or the next piece of a body, may take: a whole piece comes in that time over
64 kbit/s, beside live traffic. A connection that drips slower is closed."""

_TOKEN: Final = Struct("<d")


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """The numbers that all connections of a node share; `config/settings.py` says what each is for."""

    ping_interval_ms: int
    dead_after_ms: int
    dial_delay_max_ms: int
    live_limit_bytes: int
    catch_up_limit_bytes: int
    catch_up_share_percent: int
    message_limit_bytes: int


class ConnectionOwner(Protocol):
    """Whom a connection reports to."""

    limits: LinkLimits
    cap: RateCap
    sent: Traffic
    received: Traffic

    def made(self, connection: PeerConnection) -> None:
        """A socket stands."""

    def lost(self, connection: PeerConnection) -> None:
        """A socket is gone, whatever became of it before."""

    def introduction(self, to: str) -> Handshake:
        """What this node says of itself."""

    def check_room(self, node: str) -> None:
        """Raises Refused when a connection dialled by `node` is one too many."""

    def opened(self, connection: PeerConnection) -> None:
        """The handshake is over; from now on `closed` will come."""

    def closed(self, connection: PeerConnection) -> None:
        """It is gone."""

    def arrived(self, connection: PeerConnection, items: tuple[Any, ...]) -> None:
        """A frame of messages. Raises CodecError."""

    def serving(self, connection: PeerConnection) -> RpcServer:
        """What serves the requests of an accepted connection."""

    def fault(self, connection: PeerConnection, reason: str, sentence: str) -> None:
        """It is closed because of what came over it, or did not."""

    def to_flush(self, connection: PeerConnection) -> None:
        """Something was queued: `pump` is to be called when this turn of the loop is over."""


class PeerConnection(asyncio.Protocol):
    """`node` is whom it is with: the one that we dialled, or (empty before the handshake) the one that dialled us."""

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
        """The socket stands."""
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
            wrong = wrong_certificate(transport, self._owner.introduction(self.node).cluster, self.node)
            if wrong:
                self.fail(HandshakeRefusal.CERTIFICATE.value, wrong)
                return
            self._outbox.put_urgent(FrameKind.GREETING, encode_introduction(self._owner.introduction(self.node)))
            self.pump()

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
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
        """The kernel takes no more."""
        self._paused = True

    def resume_writing(self) -> None:
        """What was handed over has left."""
        self._paused = False
        self.pump()

    def abandoned(self) -> None:
        """Whoever dialled was cancelled after the socket stood: the loop closes it, and some loops tell nobody."""
        if self._transport is not None:
            self._transport.abort()
            self.connection_lost(None)  # coming twice, it changes nothing

    def connection_lost(self, error: Exception | None) -> None:
        """The socket is gone."""
        self._closing = True
        lost = f"TLS: {trouble_of(error).words}" if isinstance(error, ssl.SSLError) else f"lost: {error}"
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

    def _shake_hands(self, frame: WireFrame) -> None:
        try:
            if self.dialled:
                if frame.kind is FrameKind.REFUSAL:
                    raise decode_refusal(frame.body)
                self._expect(frame, FrameKind.WELCOME)
                theirs = decode_introduction(frame.body)
                check_introduction(theirs, self._owner.introduction(self.node), self.node)
            else:
                self._expect(frame, FrameKind.GREETING)
                theirs = decode_introduction(frame.body)
                ours = self._owner.introduction(theirs.node)
                check_introduction(theirs, ours, None)
                wrong = wrong_certificate(self._transport, ours.cluster, theirs.node)
                if wrong:
                    raise ConnectionRefused(HandshakeRefusal.CERTIFICATE, wrong)
                self._owner.check_room(theirs.node)
                self._outbox.put_urgent(FrameKind.WELCOME, encode_introduction(ours))
        except ConnectionRefused as refused:
            self._refuse(refused)
            return
        self.node = theirs.node
        self.body_limit = theirs.body_limit
        self._reader.frame_limit = PIECE_BYTES_MAX
        self._reader.body_limit = self._owner.limits.message_limit_bytes
        if self.dialled:
            self.asking = RpcClient(
                self.node,
                body_limit=self.body_limit,
                bytes_max=self._owner.limits.live_limit_bytes,
                put=self.put_call,
            )
        else:
            self._serving = self._owner.serving(self)
        self.up = self.was_up = True
        self.pump()
        self._owner.opened(self)

    def certificate(self) -> dict[str, Any] | None:
        """What the other end showed, verified; None without TLS."""
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
        """Do what `frame` says; False when it was the last."""
        self._owner.received.count(frame.lane, len(frame.body))
        if self.up:
            self._take(frame)
        else:
            self._shake_hands(frame)
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
                    self.round_trip_s = max(0.0, monotonic() - _TOKEN.unpack(frame.body)[0])
            case _:
                raise FrameFault("unexpected", f"a {frame.kind.name} of {len(frame.body)} bytes that belongs not here")

    # Writing

    def put(self, lane: Lane, item: Parts, length: int) -> bool:
        """Queue an item of `length` bytes; False when the connection closes, or is closed as its reader reads not."""
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

    def put_call(self, item: Parts) -> bool:
        """Queue a request or an answer; as `put`."""
        return self.put(Lane.CALLS, item, sum(map(len, item)))

    def _put_urgent(self, kind: FrameKind, body: bytes) -> None:
        if self._outbox.urgent_bytes > URGENT_BYTES_MAX:
            self.fail("not-reading", f"pings of node {self.node} wait for answers that it does not read")
            return
        self._outbox.put_urgent(kind, body)
        self._owner.to_flush(self)

    def waiting_bytes(self, lane: Lane) -> int:
        """What waits in one lane."""
        return self._outbox.waiting_bytes(lane)

    def pump(self) -> None:
        """Write what may be written now."""
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
        """`elapsed_ms` of this process's own life have passed since the last tick."""
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
            self._put_urgent(FrameKind.PING, _TOKEN.pack(monotonic()))
        elif not self.dialled and heard and not wrote:
            # A ping may stand behind megabytes on a slow way here: that they come is said without being asked.
            self._put_urgent(FrameKind.PONG, b"")

    def fail(self, reason: str, sentence: str) -> None:
        """Close it because of what came over it, or did not."""
        if not self._closing:
            self._owner.fault(self, reason, sentence)
        self.close(f"{reason}: {sentence}")

    def close(self, why: str) -> None:
        """Close it; what waits is dropped."""
        self._closing = True
        self.why = self.why or why
        if self._transport is not None:
            self._transport.abort()

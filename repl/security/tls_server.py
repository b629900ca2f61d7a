"""Accepts TLS connections: handshakes have a deadline and a limit, and refusals are counted.

Used instead of `loop.create_server` with TLS. The first byte of a connection distinguishes TLS from plain text before
anything is allocated for it; a listener that requires TLS answers plain text with a hint. The protocol object is
created when the handshake is over. The context decides which certificates are requested, the protocol which names are
accepted.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import structlog

from isthmus.repl.log_limit import LogLimit
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.security.accepting import Acceptor, Server
from isthmus.repl.security.tls import (
    FIRST_BYTE,
    HANDSHAKE_TIMEOUT_S,
    SHUTDOWN_TIMEOUT_S,
    TlsFailure,
    shown_address,
    tls_failure,
)
from isthmus.repl.telemetry import Family, Sample

log = structlog.get_logger(__name__)

HANDSHAKES_MAX: Final = 128
"""Most connections in their handshake; each may cost half a megabyte. At the limit accepting waits for one to end, and
aborts the oldest after CROWDED_S."""

CROWDED_S: Final = 2.0
"""Longest handshake while others wait: honest ones take milliseconds."""

PLAIN: Final = TlsFailure("plaintext", "the other end does not speak TLS")
CUT: Final = TlsFailure("crowded", "others waited for the place of this handshake")

HELP: Final[Mapping[str, Family]] = {
    "isthmus_tls_handshakes": Family(
        "TLS handshakes under way now, by listener.", "connections", "security", ("listener",)
    ),
    "isthmus_tls_refused_total": Family(
        "Connections whose TLS handshake failed, by listener and reason.",
        "connections",
        "security",
        ("listener", "reason"),
    ),
}
"""Metric -> its definition (see repl.telemetry)."""


class TlsServer(Server):
    """One listening socket. `contexts` returns the context of each new connection. With `also_plain` connections
    without TLS are accepted, too; otherwise they get `hint`, if the socket takes it at once, and are closed.
    `acceptor` accepts from that socket; by default one that keeps no descriptors free."""

    def __init__(
        self,
        name: str,
        listen_socket: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        contexts: Callable[[], ssl.SSLContext],
        *,
        acceptor: Acceptor | None = None,
        also_plain: bool = False,
        hint: bytes = b"",
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        super().__init__(acceptor or Acceptor(name, listen_socket, 0), listen_socket)
        self.name = name
        self.refused: dict[str, int] = {}
        self._factory = factory
        self._contexts = contexts
        self._also_plain = also_plain
        self._hint = hint
        self._timeout_s = handshake_timeout_s
        self._cut: OrderedSet[asyncio.Task[None]] = OrderedSet()
        self._log_limit = LogLimit()

    async def _make_room(self, loop: asyncio.AbstractEventLoop) -> None:
        while len(self._beginning) >= HANDSHAKES_MAX:
            oldest, since_s = next(iter(self._beginning.items()))
            left_s = since_s + CROWDED_S - loop.time()
            if left_s <= 0:
                self._cut.add(oldest)
                oldest.cancel()
                left_s = CROWDED_S
            await asyncio.wait(set(self._beginning), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def _begun(self, task: asyncio.Task[None]) -> None:
        super()._begun(task)
        self._cut.discard(task)

    async def _begin(self, sock: socket.socket, address: tuple[object, ...]) -> None:
        """One connection up to the end of its handshake."""
        shown = shown_address(address)
        loop = asyncio.get_running_loop()
        taken = False
        try:
            async with asyncio.timeout(self._timeout_s):
                first = await _first_byte(loop, sock)
                if not first:
                    return  # a probe of the port: it said nothing
                if first[0] == FIRST_BYTE:
                    taken = True
                    await loop.connect_accepted_socket(
                        self._factory,
                        sock,
                        ssl=self._contexts(),
                        ssl_handshake_timeout=self._timeout_s + 1,  # ours is told in words
                        ssl_shutdown_timeout=SHUTDOWN_TIMEOUT_S,
                    )
                elif self._also_plain:
                    taken = True
                    await loop.connect_accepted_socket(self._factory, sock)
                else:
                    self._refuse(PLAIN, shown)
                    if self._hint:
                        sock.recv(65_536)  # else closing would reset the connection, and the hint be lost
                        sock.send(self._hint)
        except asyncio.CancelledError:
            if asyncio.current_task() in self._cut:
                self._refuse(CUT, shown)
            else:
                raise
        except OSError as error:  # those of ssl are such, and TimeoutError
            self._refuse(tls_failure(error), shown)
        finally:
            if not taken:
                sock.close()

    def _refuse(self, failure: TlsFailure, address: str) -> None:
        self.refused[failure.code] = self.refused.get(failure.code, 0) + 1
        if (suppressed := self._log_limit.due(failure.code)) is not None:
            log.warning(
                "tls.refused",
                listener=self.name,
                address=address,
                reason=failure.code,
                sentence=failure.words,
                suppressed=suppressed,
            )

    def samples(self) -> Iterator[Sample]:
        """Samples of handshakes and refusals."""
        yield "isthmus_tls_handshakes", {"listener": self.name}, len(self._beginning)
        for reason, count in self.refused.items():
            yield "isthmus_tls_refused_total", {"listener": self.name, "reason": reason}, count


async def _first_byte(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> bytes:
    """Peek at the first byte; empty when the peer closed."""
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    return sock.recv(1, socket.MSG_PEEK)

"""Accepting connections, with and without TLS, also when file descriptors are short.

Not `loop.create_server`: uvloop closes a listening socket for good when one accept fails for want of memory or, at the
wrong moment, of descriptors. A connection that would take a descriptor of those that a node needs for itself
(`repl.shortage`) is told so, if it is plain text, and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final

import structlog

from isthmus.repl.log_limit import LogLimit
from isthmus.repl.shortage import DESCRIPTORS, DescriptorReserve, lacks_descriptors

log = structlog.get_logger(__name__)

BACKLOG: Final = 2048
"""Connections that the kernel queues until they are accepted."""

ACCEPT_PAUSE_S: Final = 0.2
"""Pause after an accept that failed: what was missing may be there soon."""

BURST: Final = 16
"""Connections accepted in a row before others of the event loop have a turn."""

RECEIVED_BYTES: Final = 65_536
"""Read of a refused connection before the answer: closing one with unread bytes resets it, and the answer is lost."""


class Acceptor:
    """One listening socket. Connections leave `headroom` descriptors free; one that cannot gets `hint`, if the socket
    takes it at once."""

    def __init__(
        self,
        name: str,
        listen_socket: socket.socket,
        headroom: int,
        *,
        hint: bytes = b"",
        descriptors: DescriptorReserve = DESCRIPTORS,
    ) -> None:
        self._name = name
        self._socket = listen_socket
        self._headroom = headroom
        self._hint = hint
        self._descriptors = descriptors
        self._in_a_row = 0
        self._log_limit = LogLimit()
        self.refused_count = 0
        """Connections that were closed, and accepts that failed, for want of descriptors or memory."""

    async def next(self) -> tuple[socket.socket, tuple[object, ...]]:
        """The next connection, and the address of the other end."""
        loop = asyncio.get_running_loop()
        while True:
            self._in_a_row += 1
            if self._in_a_row >= BURST:
                self._in_a_row = 0
                await asyncio.sleep(0)
            try:
                sock, address = await loop.sock_accept(self._socket)
            except OSError as error:
                self._refused(str(error))
                if not (lacks_descriptors(error) and self._turn_one_away()):
                    await asyncio.sleep(ACCEPT_PAUSE_S)
                continue
            if self._descriptors.admits(sock.fileno(), self._headroom):
                return sock, address
            self._refused(f"{self._descriptors.limit} files may be open, and {self._headroom} are kept for the node")
            self._close(sock)

    def _turn_one_away(self) -> bool:
        """Accept and close a connection with a descriptor of the reserve, which takes it back later; False without
        one: the connection waits in the kernel then."""
        if not self._descriptors.release_one():
            return False
        try:
            sock, _ = self._socket.accept()
        except OSError:
            return False
        self._close(sock)
        return True

    def _close(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            sock.setblocking(False)
            if self._hint:
                with contextlib.suppress(BlockingIOError):
                    sock.recv(RECEIVED_BYTES)
                sock.send(self._hint)

    def _refused(self, why: str) -> None:
        self.refused_count += 1
        if (suppressed := self._log_limit.due()) is not None:
            log.warning("listener.short", listener=self._name, why=why, suppressed=suppressed)


class Server(ABC):
    """A listening socket. Each connection begins in a task, until its protocol takes over."""

    def __init__(self, acceptor: Acceptor, listen_socket: socket.socket) -> None:
        self._acceptor = acceptor
        self._socket = listen_socket
        self._beginning: dict[asyncio.Task[None], float] = {}
        """Connections that begin -> since when, by the loop's clock; the oldest first."""
        self._accepting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start accepting."""
        self._socket.setblocking(False)
        self._socket.listen(BACKLOG)
        self._accepting = asyncio.get_running_loop().create_task(self._accept())

    def close(self) -> None:
        """Stop accepting, and abort connections that begin; `wait_closed` waits until that is done."""
        for task in self._tasks():
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait for the end of all tasks; after `close`."""
        await asyncio.gather(*self._tasks(), return_exceptions=True)
        self._socket.close()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [*self._beginning, *([self._accepting] if self._accepting is not None else [])]

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._make_room(loop)
            sock, address = await self._acceptor.next()
            task = loop.create_task(self._begin(sock, address))
            self._beginning[task] = loop.time()
            task.add_done_callback(self._begun)

    @abstractmethod
    async def _make_room(self, loop: asyncio.AbstractEventLoop) -> None:
        """Return once another connection may begin."""

    def _begun(self, task: asyncio.Task[None]) -> None:
        self._beginning.pop(task, None)

    @abstractmethod
    async def _begin(self, sock: socket.socket, address: tuple[object, ...]) -> None:
        """Bring one connection, from `address`, to its protocol, or close it."""


class PlainServer(Server):
    """A server without TLS. That a protocol is made takes a turn of the loop."""

    def __init__(
        self, acceptor: Acceptor, listen_socket: socket.socket, factory: Callable[[], asyncio.Protocol]
    ) -> None:
        super().__init__(acceptor, listen_socket)
        self._factory = factory

    async def _make_room(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing: a connection begins within a turn of the loop, so few do at a time."""

    async def _begin(self, sock: socket.socket, _address: tuple[object, ...]) -> None:
        try:
            with contextlib.suppress(OSError):  # the other end is gone, which its protocol learns
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().connect_accepted_socket(self._factory, sock)
        except OSError as error:
            sock.close()
            log.info("listener.connection_lost", error=str(error))
        except BaseException:
            sock.close()
            raise

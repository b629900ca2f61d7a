"""The event loop's part of the simulated network: connections, transports, readers of sockets.

Transports behave as those of asyncio's selector loop: a write goes to the kernel's buffer as far as there is room, the
rest waits in the transport, which pauses its protocol above the high-water mark.
"""

from __future__ import annotations

import asyncio
import contextvars
import socket
import ssl as tls
from asyncio import sslproto, transports
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from tests.simulation.world.sockets import VirtualSocket
from tests.simulation.world.tcp import End, failure

if TYPE_CHECKING:
    from tests.simulation.world.machine import VirtualMachine

READ_BYTES: Final = 256 * 1024
"""Most bytes given to a protocol at once, as asyncio's."""

WARN_WRITES: Final = 5
"""Writes to a lost connection from which on asyncio warns; it is not counted further."""


class VirtualTransport(transports._FlowControlMixin, asyncio.Transport):
    """One end of an established connection, for a protocol of its loop."""

    def __init__(
        self,
        loop: Any,
        sock: VirtualSocket,
        protocol: asyncio.BaseProtocol,
        waiter: asyncio.Future[None] | None = None,
    ) -> None:
        end = sock.end
        assert end is not None
        super().__init__({"socket": sock, "sockname": end.local, "peername": end.remote}, loop)
        self._sock = sock
        self._end: End = end
        self._context = contextvars.copy_context()
        self._buffer: deque[bytes | memoryview] = deque()
        self._buffered = 0
        self._closing = False
        self._lost = 0
        self._eof = False
        self._paused = False
        self._reading = False
        """Reading has begun, and has not ended."""
        self._read_due = False
        self._write_due = False
        self._protocol_connected = True
        self.set_protocol(protocol)
        end.watcher = self
        loop.call_soon(protocol.connection_made, self)
        loop.call_soon(self._begin_reading)
        if waiter is not None:
            loop.call_soon(_settle, waiter)

    # The network's calls, outside of this machine's process

    def input_ready(self) -> None:
        """There is something to read."""
        if self._reading and not self._read_due and not self._paused:
            self._read_due = True
            self._loop.call_soon(self._read, context=self._context)

    def output_ready(self) -> None:
        """There is room to write."""
        if self._buffer and not self._write_due:
            self._write_due = True
            self._loop.call_soon(self._flush, context=self._context)

    # Reading

    def _begin_reading(self) -> None:
        if not self._closing:
            self._reading = True
            if self._end.readable:
                self.input_ready()

    def is_reading(self) -> bool:
        return not self._closing and not self._paused

    def pause_reading(self) -> None:
        if not self._closing:
            self._paused = True

    def resume_reading(self) -> None:
        if self._closing or not self._paused:
            return
        self._paused = False
        if self._end.readable:
            self.input_ready()

    def _read(self) -> None:
        self._read_due = False
        if self._lost or self._paused or not self._reading:
            return
        try:
            if self._buffered_protocol:
                buffer = self._protocol.get_buffer(-1)
                data = self._end.read(len(buffer))
                buffer[: len(data)] = data
            else:
                data = self._end.read(READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._fatal_error(error, "Fatal read error on socket transport")
            return
        try:
            if not data:
                self._reading = False
                if not self._protocol.eof_received():
                    self.close()
                return
            if self._buffered_protocol:
                self._protocol.buffer_updated(len(data))
            else:
                self._protocol.data_received(data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:  # noqa: BLE001 - as asyncio: it ends this connection
            self._fatal_error(error, "Fatal error: protocol.data_received() call failed.")
            return
        if self._end.readable:
            self.input_ready()

    # Writing

    def write(self, data: Any) -> None:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        if self._eof:
            raise RuntimeError("Cannot call write() after write_eof()")
        if not data:
            return
        if self._lost:
            self._lost += 1
            return
        if not self._buffer:
            try:
                sent = self._end.write(data)
            except BlockingIOError:
                sent = 0
            except OSError as error:
                self._fatal_error(error, "Fatal write error on socket transport")
                return
            if sent == len(data):
                return
            data = memoryview(bytes(data))[sent:]
        elif not isinstance(data, bytes):
            data = bytes(data)
        self._buffer.append(data)
        self._buffered += len(data)
        self._maybe_pause_protocol()

    def _flush(self) -> None:
        self._write_due = False
        if self._lost:
            return
        buffer = self._buffer
        try:
            while buffer:
                data = buffer.popleft()
                try:
                    sent = self._end.write(data)
                except BlockingIOError:
                    buffer.appendleft(data)
                    break
                self._buffered -= sent
                if sent < len(data):
                    buffer.appendleft(memoryview(data)[sent:])
        except OSError as error:
            buffer.clear()
            self._buffered = 0
            self._fatal_error(error, "Fatal write error on socket transport")
            return
        self._maybe_resume_protocol()
        if not buffer:
            if self._closing:
                self._call_connection_lost(None)
            elif self._eof:
                self._shut()

    def write_eof(self) -> None:
        if self._closing or self._eof:
            return
        self._eof = True
        if not self._buffer:
            self._shut()

    def _shut(self) -> None:
        try:
            self._end.shut_down()
        except OSError as error:
            self._fatal_error(error, "Fatal write error on socket transport")

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return self._buffered

    # Ending

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._reading = False
        if not self._buffer:
            self._lost += 1
            self._loop.call_soon(self._call_connection_lost, None, context=self._context)

    def abort(self) -> None:
        self._force_close(None)

    def _fatal_error(self, error: BaseException, message: str) -> None:
        if not isinstance(error, OSError):
            self._loop.call_exception_handler(
                {"message": message, "exception": error, "transport": self, "protocol": self._protocol}
            )
        self._force_close(error)

    def _force_close(self, error: BaseException | None) -> None:
        if self._lost:
            return
        self._buffer.clear()
        self._buffered = 0
        self._closing = True
        self._reading = False
        self._lost += 1
        self._loop.call_soon(self._call_connection_lost, error, context=self._context)

    def _call_connection_lost(self, error: BaseException | None) -> None:
        try:
            if self._protocol_connected:
                self._protocol_connected = False
                self._protocol.connection_lost(error)
        finally:
            self._lost += 1
            self._sock.close()

    # Protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol: Any = protocol
        self._buffered_protocol = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> Any:
        return self._protocol

    def __repr__(self) -> str:
        return f"<VirtualTransport {self._sock!r}{' closing' if self._closing else ''}>"


class _SocketReader:
    """Calls back in every turn in which a socket is ready."""

    def __init__(self, loop: Any, sock: VirtualSocket, callback: Callable[[], object], *, output: bool) -> None:
        self._loop = loop
        self._sock = sock
        self._callback = callback
        self._output = output
        self._active = True
        self._look()

    def _look(self) -> None:
        if self._sock.writable if self._output else self._sock.readable:
            self._loop.call_soon(self._call)
        else:
            self._sock.watch(self._ready, output=self._output)

    def _ready(self) -> None:
        self._loop.call_soon(self._call)

    def _call(self) -> None:
        if self._active:
            self._callback()
        if self._active:
            self._look()

    def stop(self) -> None:
        """Call back no more."""
        self._active = False
        self._sock.unwatch(self._ready, output=self._output)


class NetworkLoop:
    """What an event loop has of the network; the base of `VirtualLoop`."""

    machine: VirtualMachine

    def init_network(self) -> None:
        """Call it once."""
        self._readers: dict[tuple[VirtualSocket, bool], _SocketReader] = {}

    # Names

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> list[Any]:
        network = self.machine.network
        if not network.is_address(host):
            await asyncio.sleep(network.resolution_s())
        return network.getaddrinfo(self.machine, host, port, type=type, flags=flags)

    async def getnameinfo(self, sockaddr: tuple[str, int], flags: int = 0) -> tuple[str, str]:
        return sockaddr[0], str(sockaddr[1])

    # Sockets

    def _register(self, of: Any, callback: Callable[..., object], args: tuple[Any, ...], output: bool) -> None:
        sock = self.machine.network.socket_of(self.machine, of)
        self._unregister(of, output)
        self._readers[sock, output] = _SocketReader(self, sock, lambda: callback(*args), output=output)

    def _unregister(self, of: Any, output: bool) -> bool:
        reader = self._readers.pop((self.machine.network.socket_of(self.machine, of), output), None)
        if reader is None:
            return False
        reader.stop()
        return True

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._register(fd, callback, args, output=False)

    def remove_reader(self, fd: Any) -> bool:
        return self._unregister(fd, output=False)

    def add_writer(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:
        self._register(fd, callback, args, output=True)

    def remove_writer(self, fd: Any) -> bool:
        return self._unregister(fd, output=True)

    async def _until_ready(self, sock: VirtualSocket, *, output: bool = False) -> None:
        """Wait until a socket is ready, or may be."""
        loop: Any = self
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            loop.call_soon(_settle, future)

        sock.watch(wake, output=output)
        try:
            await future
        finally:
            sock.unwatch(wake, output=output)

    async def sock_accept(self, sock: Any) -> tuple[Any, Any]:
        while True:
            try:
                found, address = sock.accept()
            except BlockingIOError:
                await self._until_ready(sock)
                continue
            found.setblocking(False)
            return found, address

    async def sock_connect(self, sock: Any, address: Any) -> None:
        sock.dial(address)
        while sock.connecting:
            await self._until_ready(sock, output=True)
        number = sock.take_failure()
        if number:
            raise failure(number, f"Connect call failed {tuple(address)}")

    async def sock_recv(self, sock: Any, n: int) -> bytes:
        while True:
            try:
                found: bytes = sock.recv(n)
            except BlockingIOError:
                await self._until_ready(sock)
                continue
            return found

    async def sock_sendall(self, sock: Any, data: Any) -> None:
        view, sent = memoryview(data), 0
        while sent < len(view):
            try:
                sent += sock.send(view[sent:])
            except BlockingIOError:
                await self._until_ready(sock, output=True)

    # Connections

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: Any = None,
        port: Any = None,
        *,
        ssl: Any = None,
        family: int = 0,
        proto: int = 0,
        flags: int = 0,
        sock: Any = None,
        local_addr: tuple[str, int] | None = None,
        server_hostname: str | None = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
        happy_eyeballs_delay: float | None = None,
        interleave: int | None = None,
    ) -> tuple[Any, Any]:
        """See asyncio; addresses are tried one after the other."""
        if server_hostname is not None and not ssl:
            raise ValueError("server_hostname is only meaningful with ssl")
        if server_hostname is None and ssl:
            if not host:
                raise ValueError("You must set server_hostname when using ssl without a host")
            server_hostname = host
        if sock is None:
            infos = await self.getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM, flags=flags)
            sock = await self._connected([info[4] for info in infos], local_addr)
        return await self._transport(
            protocol_factory, sock, ssl, server_hostname, False, ssl_handshake_timeout, ssl_shutdown_timeout
        )

    async def _connected(self, addresses: list[Any], local: tuple[str, int] | None) -> VirtualSocket:
        errors: list[OSError] = []
        network = self.machine.network
        for address in addresses:
            sock = network.socket(self.machine)
            try:
                sock.setblocking(False)
                if local is not None:
                    sock.bind(local)
                await self.sock_connect(sock, address)
            except OSError as error:
                errors.append(error)
                sock.close()
            except BaseException:
                sock.close()
                raise
            else:
                return sock
        if len({str(error) for error in errors}) == 1:
            raise errors[0]
        raise OSError("Multiple exceptions: {}".format(", ".join(map(str, errors))))

    async def connect_accepted_socket(
        self,
        protocol_factory: Callable[[], Any],
        sock: Any,
        *,
        ssl: Any = None,
        ssl_handshake_timeout: float | None = None,
        ssl_shutdown_timeout: float | None = None,
    ) -> tuple[Any, Any]:
        return await self._transport(protocol_factory, sock, ssl, "", True, ssl_handshake_timeout, ssl_shutdown_timeout)

    async def _transport(
        self,
        factory: Callable[[], Any],
        sock: VirtualSocket,
        context: tls.SSLContext | None,
        server_hostname: str | None,
        server_side: bool,
        handshake_timeout_s: float | None,
        shutdown_timeout_s: float | None,
    ) -> tuple[Any, Any]:
        loop: Any = self
        sock.setblocking(False)
        protocol = factory()
        waiter = loop.create_future()
        transport: Any
        if context is None:
            transport = VirtualTransport(loop, sock, protocol, waiter)
        else:
            over = sslproto.SSLProtocol(
                loop,
                protocol,
                context,
                waiter,
                server_side,
                server_hostname,
                ssl_handshake_timeout=handshake_timeout_s,
                ssl_shutdown_timeout=shutdown_timeout_s,
            )
            VirtualTransport(loop, sock, over)
            transport = over._app_transport
        try:
            await waiter
        except BaseException:
            transport.close()
            raise
        return transport, protocol


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

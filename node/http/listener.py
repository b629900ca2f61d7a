"""Two listening sockets: bound before the node starts, served last, drained in bounded time.

A port that is taken is reported in one line before anything else is started. `connection` serves the connections; the
applications answer the requests.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

import structlog

from isthmus.config.settings import Address, ListenSettings
from isthmus.node.http.connection import Application, HttpConnection, SharedState, whole_refusal
from isthmus.node.http.fast_connection import connection_factory
from isthmus.node.http.outgoing_ports import outgoing_ports
from isthmus.node.http.responses import RequestRefused
from isthmus.repl.clock import SystemTime
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import LocalFault
from isthmus.repl.security.accepting import BACKLOG, Acceptor, PlainServer
from isthmus.repl.security.tls_server import TlsServer
from isthmus.repl.shortage import ADMIN_HEADROOM, HTTP_HEADROOM
from isthmus.repl.telemetry import Family, Sample

log = structlog.get_logger(__name__)

SWEEP_S: Final = 1.0
"""How often the time limits of connections are checked, for all at once: a timer for each would cost every request."""

DRAIN_S: Final = 10.0
"""How long a stop waits for answers under way before it cuts their connections."""

SPEAK_TLS: Final = RequestRefused(400, "tls", "TLS is spoken here: write https:// instead of http://")
"""The answer of a listener with TLS to a connection without TLS."""

NO_FILES: Final = RequestRefused(
    503, "overloaded", "the node's limit of open files leaves no room for one more connection: close some, or raise it"
)
"""The answer to a connection that would take one of the descriptors that the node needs for itself."""

HEADROOM: Final[Mapping[str, int]] = {"http": HTTP_HEADROOM, "admin": ADMIN_HEADROOM}
"""Listener -> descriptors that its connections leave free. Operators get in when clients have taken all they may."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_http_connections": Family("Open connections, by listener.", "connections", "clients", ("listener",)),
    "isthmus_http_connections_refused_total": Family(
        "Connections refused because their listener, or the process, had too many, by listener.",
        "connections",
        "clients",
        ("listener",),
    ),
}
"""Name -> metric definition (see repl.telemetry)."""


NO_TLS: Final[Mapping[str, ListenerTls]] = MappingProxyType({})


def bind(key: str, address: Address) -> socket.socket:
    """Bind a listening socket. `key` is the setting, for the message. Raises LocalFault in one line."""
    try:
        found = machine().getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, where = found[0]
        sock = machine().socket(family, kind, proto)
    except (OSError, UnicodeError) as error:
        raise LocalFault(f"{key}: host {address.host!r} cannot be resolved: set an address of this machine") from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        raise LocalFault(f"{key}: cannot listen on {address}: {_advice(error, address.port)}") from error
    sock.setblocking(False)
    return sock


def _advice(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        first, last = outgoing_ports()
        taken = (
            f"; this machine gives ports {first} to {last} to outgoing connections, any of which may have it now: "
            f"set one outside of that range"
            if first <= port <= last
            else ""
        )
        return f"another program uses it; stop that one or set another port{taken}"
    if error.errno == errno.EADDRNOTAVAIL:
        return "this machine has no such address; set one of its own"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "not allowed; ports below 1024 need privileges, set a higher one"
    return f"{error.strerror}; set another address"


def published(sock: socket.socket, address: Address, advertise: str) -> Address:
    """The address of a bound listener for other machines: `advertise` if set; for a wildcard address this machine's
    name."""
    host = advertise
    if not host:
        host = machine().gethostname() if address.host in ("0.0.0.0", "::", "") else address.host  # noqa: S104
    return Address(host, sock.getsockname()[1])


class ListenerTls(NamedTuple):
    """TLS of a listener: the context of each connection, and whether connections without TLS are accepted, too."""

    contexts: Callable[[], ssl.SSLContext]
    also_plain: bool


class Listener:
    """One listening socket and the connections on it."""

    def __init__(self, name: str, address: Address, settings: ListenSettings, tls: ListenerTls | None = None) -> None:
        self.name = name
        self._tls = tls
        self._socket = bind(f"listen.{name}", address)
        scheme = "http" if tls is None or tls.also_plain else "https"
        self.url = f"{scheme}://{published(self._socket, address, settings.advertise)}"
        self._state = SharedState(settings)
        self._time = SystemTime()
        self._acceptor = Acceptor(name, self._socket, HEADROOM[name], hint=b"" if tls else whole_refusal(NO_FILES))
        self._server: PlainServer | TlsServer | None = None
        self._app: Application | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, app: Application) -> None:
        """Serve `app` on new connections, and on those since the socket was bound."""
        loop = asyncio.get_running_loop()
        self._app = app
        self._tick(loop)
        factory = connection_factory(app, self._state, loop)
        if self._tls is None:
            self._server = PlainServer(self._acceptor, self._socket, factory)
        else:
            contexts, also_plain = self._tls
            hint = whole_refusal(SPEAK_TLS)
            self._server = TlsServer(
                self.name,
                self._socket,
                factory,
                contexts,
                acceptor=self._acceptor,
                also_plain=also_plain,
                hint=hint,
            )
        self._server.start()

    def _tick(self, loop: asyncio.AbstractEventLoop) -> None:
        self._state.set_date(self._time.wall_ms() // 1000)
        now_s = loop.time()
        for connection in list(self._state.connections):
            assert isinstance(connection, HttpConnection)
            connection.sweep(now_s)
        # At the beginning of each second, for the Date of answers; so it is no longer than SWEEP_S.
        self._timer = loop.call_later(SWEEP_S - self._time.wall_ms() % 1000 / 1000, self._tick, loop)

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Accept no more connections, wait up to `drain_s` for answers under way, then cut the rest."""
        if self._server is None:
            self._socket.close()
            return
        server, self._server = self._server, None
        server.close()
        await server.wait_closed()
        assert self._app is not None
        self._app.stop()
        state = self._state
        for connection in list(state.connections):
            connection.shutdown()
        if state.connections:
            state.emptied = asyncio.Event()
            try:
                async with asyncio.timeout(drain_s):
                    await state.emptied.wait()
            except TimeoutError:
                log.warning("http.drain_cut", listener=self.name, connections=len(state.connections))
                for connection in list(state.connections):
                    connection.transport.abort()
                await state.emptied.wait()
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    def samples(self) -> Iterator[Sample]:
        """Samples of this listener for Prometheus."""
        labels = {"listener": self.name}
        yield "isthmus_http_connections", labels, len(self._state.connections)
        yield "isthmus_http_connections_refused_total", labels, self._state.refused_count + self._acceptor.refused_count
        if isinstance(self._server, TlsServer):
            yield from self._server.samples()


class Listeners:
    """The node's two listeners: `http` for clients and sinks of other clusters, `admin` for operators."""

    def __init__(self, settings: ListenSettings, tls: Mapping[str, ListenerTls] = NO_TLS) -> None:
        self._settings = settings
        self._tls = tls
        self._bound: dict[str, Listener] = {}

    def bind(self) -> tuple[str, str]:
        """Bind both ports; returns the URLs of http and admin. Raises LocalFault."""
        for name, address in (("http", self._settings.http), ("admin", self._settings.admin)):
            self._bound[name] = Listener(name, address, self._settings, self._tls.get(name))
        return self._bound["http"].url, self._bound["admin"].url

    async def start(self, http: Application, admin: Application) -> None:
        """Serve both."""
        await self._bound["http"].start(http)
        await self._bound["admin"].start(admin)

    async def drain(self, drain_s: float = DRAIN_S) -> None:
        """Stop the `http` listener; operators and probes are still answered."""
        if "http" in self._bound:
            await self._bound.pop("http").stop(drain_s)

    async def stop(self, drain_s: float = DRAIN_S) -> None:
        """Stop the listeners that are still open; also after a start that failed half-way."""
        while self._bound:
            await self._bound.pop(next(iter(self._bound))).stop(drain_s)

    def samples(self) -> Iterator[Sample]:
        """Samples of both for Prometheus."""
        for listener in self._bound.values():
            yield from listener.samples()

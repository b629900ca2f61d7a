"""Requests over the network, for threads and for asyncio. The only module that knows the HTTP library.

Nothing is decoded, followed or read from the environment: no redirects, no proxies, no content encodings. An attempt
has one time limit for all its waits together, and a shorter one within it for connecting: the resolution of the name,
all addresses, TLS. The exception is the resolution of a name in a `Transport`: the system bounds it, not the client,
and the time that it takes is missing afterwards. An `AsyncTransport` ends its wait in time, while the resolution goes
on in a thread.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any, Final

import httpcore2

from isthmus.client.answers import header_text
from isthmus.client.errors import BadRequest
from isthmus.client.steps import ANSWER_BYTES_MAX, Endpoint, NoAnswer, Response, Send

IDLE_S: Final = 30.0
"""An idle connection is closed after this; a node closes it after 75 s."""

POOL_SHARE: Final = 0.9
"""Part of an attempt's time that it may wait for a connection of the pool; the rest tells this wait from one for the
node."""

JOINED_BYTES_MAX: Final = 65_536
"""Largest body that is copied behind its head, to be sent in one piece."""

_TLS_REFUSALS: Final = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE", "PROTOCOL_VERSION")
"""Parts of TLS alerts by which a node refuses us; with TLS 1.3 they arrive in place of an answer."""

_PLAIN: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST")
"""Errors of TLS for an answer without TLS."""

_TLS_ENDS: Final = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
)
"""Errors for a connection that ended, or a node that was silent, in the handshake: no fault of a certificate."""

_ENDS: Final = ("closed", "disconnected")
"""Words in errors of the HTTP library for a connection that ended too early; others are about what arrived."""

_SILENT: Final = "nothing within the time of the attempt"

_ALL_IN_USE: Final = NoAnswer("all connections of the client were in use (connections=)", sent=False, busy=True)


class Transport:
    """Sends requests from any thread."""

    def __init__(self, context: ssl.SSLContext | None, connections: int, *, certified: bool = True) -> None:
        """`certified`: a client certificate is shown to nodes that ask for it."""
        self._certified = certified
        self._pool = httpcore2.ConnectionPool(
            ssl_context=context,
            max_connections=connections,
            keepalive_expiry=IDLE_S,
            network_backend=_Backend(),
        )

    def send(self, send: Send) -> Response | NoAnswer:
        """The answer to a request."""
        _attempt.set(_Attempt(send, time.monotonic))
        try:
            with self._pool.stream(**_arguments(send)) as response:
                pieces, size_bytes = [], 0
                for piece in response.iter_stream():
                    pieces.append(piece)
                    size_bytes += len(piece)
                    if size_bytes > ANSWER_BYTES_MAX:
                        return _TOO_LARGE
                return _response(response, b"".join(pieces))
        except _FAILURES as error:
            return _no_answer(error, self._certified)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class AsyncTransport:
    """Sends requests from the tasks of one event loop."""

    def __init__(self, context: ssl.SSLContext | None, connections: int, *, certified: bool = True) -> None:
        """`certified`: a client certificate is shown to nodes that ask for it."""
        self._certified = certified
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,
            max_connections=connections,
            keepalive_expiry=IDLE_S,
            network_backend=_AsyncBackend(),
        )

    async def send(self, send: Send) -> Response | NoAnswer:
        """The answer to a request."""
        attempt = _Attempt(send, asyncio.get_running_loop().time)
        _attempt.set(attempt)
        try:
            async with asyncio.timeout(send.timeout_s), self._pool.stream(**_arguments(send)) as response:
                pieces, size_bytes = [], 0
                async for piece in response.aiter_stream():
                    pieces.append(piece)
                    size_bytes += len(piece)
                    if size_bytes > ANSWER_BYTES_MAX:
                        return _TOO_LARGE
                return _response(response, b"".join(pieces))
        except TimeoutError:
            return attempt.too_long()
        except _FAILURES as error:
            return _no_answer(error, self._certified)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


class _Attempt:
    """The attempt of the running thread or task."""

    __slots__ = ("_now_s", "connect_end_s", "connects", "end_s", "joins", "sent")

    def __init__(self, send: Send, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self.end_s = now_s() + send.timeout_s
        """When it ends, by the given clock."""
        self.connect_end_s = self.end_s
        """When connecting ends."""
        self.joins = 0 < len(send.request.body or b"") <= JOINED_BYTES_MAX
        """The head is not sent yet, and is to be sent with the body."""
        self.connects = False
        """It has begun to open a connection: it has its place in the pool."""
        self.sent = False
        """Something of the request may have left."""

    def left_s(self, timeout_s: float | None) -> float:
        """The time for one wait; next to nothing when the attempt is over."""
        left_s = max(0.001, self.end_s - self._now_s())
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def begin_connecting(self, timeout_s: float | None) -> None:
        """Start the time for a connection; TLS has what is left of it."""
        self.connects = True
        self.connect_end_s = self.end_s if timeout_s is None else min(self.end_s, self._now_s() + timeout_s)

    def connect_left_s(self, timeout_s: float | None, shares: int = 1) -> float:
        """An equal share of what is left for connecting; next to nothing when it is over."""
        left_s = max(0.001, (self.connect_end_s - self._now_s()) / shares)
        return left_s if timeout_s is None else min(timeout_s, left_s)

    def holds(self) -> bool:
        """True for the first write of a request whose body is to be sent with the head."""
        joins, self.joins = self.joins, False
        self.sent = self.sent or not joins
        return joins

    def too_long(self) -> NoAnswer:
        """The result of an attempt whose time is over: how far it came."""
        if self.sent:
            return NoAnswer(_SILENT, sent=True, silent=True)
        if self.connects:
            return NoAnswer(f"it cannot be reached: {_SILENT}", sent=False, silent=True)
        return _ALL_IN_USE


_attempt: Final[ContextVar[_Attempt]] = ContextVar("isthmus.client.attempt")


class _Stream(httpcore2.NetworkStream):
    """A connection whose waits end with the attempt, not each after the same time; sends small requests in one piece,
    which a node answers by its fast path."""

    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream
        self._head = b""

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _attempt.get().left_s(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        attempt = _attempt.get()
        if attempt.holds():
            self._head = buffer
            return
        if self._head:
            buffer, self._head = self._head + buffer, b""
        self._stream.write(buffer, attempt.left_s(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, _attempt.get().connect_left_s(timeout)))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore2.NetworkBackend):
    """Opens such connections; tries the addresses of a name one after the other."""

    def __init__(self) -> None:
        self._backend = httpcore2.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        attempt = _attempt.get()
        attempt.begin_connecting(timeout)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            numeric = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
            addresses = list(dict.fromkeys(socket.getnameinfo(each[4], numeric)[0] for each in found))
        except OSError as error:
            raise httpcore2.ConnectError(str(error)) from error
        failure: Exception = httpcore2.ConnectError(f"{host} has no address")
        for at, address in enumerate(addresses):
            # A silent address leaves the others their share.
            left_s = attempt.connect_left_s(timeout, len(addresses) - at)
            try:
                return _Stream(self._backend.connect_tcp(address, port, left_s, local_address, socket_options))
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failure = error
        raise failure


class _AsyncStream(httpcore2.AsyncNetworkStream):
    """As `_Stream`; its waits end with the attempt by themselves."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream
        self._head = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if _attempt.get().holds():
            self._head = buffer
            return
        if self._head:
            buffer, self._head = self._head + buffer, b""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        left_s = _attempt.get().connect_left_s(timeout)
        try:
            return _AsyncStream(await self._stream.start_tls(ssl_context, server_hostname, left_s))
        except asyncio.CancelledError:  # for errors the library closes the connection itself
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _AsyncBackend(httpcore2.AsyncNetworkBackend):
    """Opens such connections; tries the addresses of a name side by side."""

    def __init__(self) -> None:
        self._backend = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        _attempt.get().begin_connecting(timeout)
        return _AsyncStream(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))


_FAILURES: Final = (
    httpcore2.NetworkError,
    httpcore2.TimeoutException,
    httpcore2.ProtocolError,
    OSError,
    EOFError,
)

_TOO_LARGE: Final = NoAnswer(f"the answer has more than {ANSWER_BYTES_MAX} bytes", sent=True, unreadable=True)


def _arguments(send: Send) -> dict[str, Any]:
    node, request = send.node, send.request
    headers = [(b"Host", _host(node)), (b"User-Agent", b"isthmus-client"), *request.headers]
    url = httpcore2.URL(
        scheme=node.scheme.encode(), host=node.host.encode("idna"), port=node.port, target=request.target
    )
    timeouts = {
        "connect": send.connect_timeout_s,
        "read": send.timeout_s,
        "write": send.timeout_s,
        "pool": send.timeout_s * POOL_SHARE,
    }
    return {
        "method": request.method,
        "url": url,
        "headers": headers,
        "content": request.body,
        "extensions": {"timeout": timeouts},
    }


def _host(node: Endpoint) -> bytes:
    return node.address.encode("idna")


def _response(response: httpcore2.Response, body: bytes) -> Response:
    headers: dict[str, str] = {}
    for raw_name, raw_value in response.headers:
        name, value = header_text(raw_name).lower(), header_text(raw_value)
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return Response(response.status, headers, body)


def _no_answer(error: BaseException, certified: bool) -> NoAnswer:
    """Why there was no answer. Raises BadRequest for a request that HTTP does not permit."""
    why = str(error) or type(error).__name__
    if isinstance(error, httpcore2.LocalProtocolError):
        raise BadRequest(f"HTTP does not permit this request: {why}", reason="bad-header") from error
    if isinstance(error, httpcore2.PoolTimeout):
        return _ALL_IN_USE
    not_sent = isinstance(error, httpcore2.ConnectError | httpcore2.ConnectTimeout)
    tls = _tls_failure(error)
    if tls is not None and (not_sent or any(part in tls for part in _TLS_REFUSALS)):
        why = "the other end does not speak TLS; write http://" if tls in _PLAIN else tls
        return NoAnswer(f"TLS failed: {why}", sent=False, tls=True)
    if not_sent:
        return NoAnswer(f"it cannot be reached: {why}", sent=False)
    if isinstance(error, httpcore2.TimeoutException):
        return NoAnswer(_SILENT, sent=True, silent=True)
    if isinstance(error, httpcore2.RemoteProtocolError) and not any(word in why for word in _ENDS):
        return NoAnswer(f"what arrived is not HTTP: {why}", sent=True, unreadable=True)
    # With TLS 1.3 a node that misses a certificate ends the connection after the request, like one that dies.
    hint = "" if certified else " (it may require a client certificate: cert=, key=)"
    return NoAnswer(f"the connection broke: {why}{hint}", sent=True)


def _tls_failure(error: BaseException) -> str | None:
    """The error of TLS behind an error; None for another one, such as a connection that just ended, or silence."""
    cause: BaseException | None = error
    for _ in range(10):  # no chain is longer; a circle would be endless
        if isinstance(cause, ssl.SSLError):
            if isinstance(cause, _TLS_ENDS):
                return None
            return str(getattr(cause, "verify_message", "") or cause.reason or cause)
        if cause is None:
            return None
        cause = cause.__cause__ or cause.__context__
    return None

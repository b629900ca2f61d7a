"""Asyncio HTTP client for frequent requests, such as the fetches of a sink.

One request at a time on a connection, connections kept open, answers bounded before they are read, all requests
aborted on demand. It replaces `repl.http.client` in threads where requests are frequent: a fetch of one change costs
0.6 ms of CPU there (headers, cookies, pools, two sends, and four switches between a thread and the busy loop) and a
tenth of that here. Occasional or blocking requests use `repl.http.client`. Credentials and error texts are those of
that module. Bodies are opaque.
"""

from __future__ import annotations

import asyncio
from typing import Final, cast
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from isthmus.repl.http import client
from isthmus.repl.http.client import (
    CONNECT_TIMEOUT_MS_MAX,
    OPEN,
    REFUSAL_BYTES_MAX,
    AnswerLost,
    HttpRefused,
    PeerCredentials,
    cause_of,
    refusal_words,
    system_contexts,
)
from isthmus.repl.model.errors import PeerFault
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.timers import DeadlineTimer

HEAD_BYTES_MAX: Final = 64_000
"""Longest head of an answer: status line and headers of all common servers and proxies take less than 8 KB. It also
bounds consecutive bytes of a chunked body that are not payload: sizes, extensions, trailers."""

_PORTS: Final = {"http": 80, "https": 443}


class AsyncHttpPeer:
    """Another node's HTTP listener, under base `url`.

    For one event loop. As many connections are kept open as requests were ever under way at once. Requests must be safe
    to repeat: the peer, or a load balancer, may close an idle connection just when it is used again; the request is
    then repeated over a new connection.

    `abort` ends every request under way; afterwards each call fails at once.
    """

    def __init__(self, url: str, access: PeerCredentials = OPEN) -> None:
        self.url = url.rstrip("/")
        self._access = access
        self._authorization = access.authorization_for(self.url)
        self._heads: dict[tuple[str, str], bytes] = {}
        self._idle: list[_Connection] = []
        self._open: OrderedSet[_Connection] = OrderedSet()
        self._aborted = False

    async def post(self, path: str, body: bytes, *, media_type: str, timeout_ms: int, limit_bytes: int) -> bytes:
        """Send a POST and return the body of its answer, of at most `limit_bytes`; a longer one is not read.

        `timeout_ms` bounds the wait for the first byte and for every further one. Raises HttpRefused for an error
        status, AnswerLost where the request was sent, PeerFault for every other failure of the connection or the peer.
        """
        request = self._head("POST", path, media_type) + b"Content-Length: %d\r\n\r\n" % len(body) + body
        return await self._answer(request, timeout_ms, limit_bytes)

    async def get(self, path: str, *, timeout_ms: int, limit_bytes: int, repeatable: bool = True) -> bytes:
        """Send a GET and return the body of its answer; limits and errors as for `post`. One that is not `repeatable`
        is sent once: it raises AnswerLost where a connection that was idle is closed meanwhile."""
        request = self._head("GET", path, "") + b"\r\n"
        return await self._answer(request, timeout_ms, limit_bytes, repeatable=repeatable)

    async def _answer(self, request: bytes, timeout_ms: int, limit_bytes: int, *, repeatable: bool = True) -> bytes:
        """The body of the answer to a whole request."""
        sent = False
        try:
            kept = self._take_idle()
            connection = kept or await self._connect(timeout_ms)
            sent = True
            try:
                answer = await self._exchange(connection, request, timeout_ms, limit_bytes)
            except OSError as error:
                idle = kept is not None and not kept.answered
                if not (idle and repeatable) or self._aborted or isinstance(error, TimeoutError):
                    raise
                sent = False
                connection = await self._connect(timeout_ms)
                sent = True
                answer = await self._exchange(connection, request, timeout_ms, limit_bytes)
        except (OSError, ValueError, HttpParserError, HttpParserUpgrade) as error:
            fault = AnswerLost if sent else PeerFault
            raise fault(f"{self.url}: {cause_of(error)}") from error
        if connection.status != 200:
            words = refusal_words(answer[:REFUSAL_BYTES_MAX].decode("utf-8", "replace"))
            reason = connection.reason or PeerFault.reason
            raise HttpRefused(f"{self.url} answers {connection.status}: {words}", connection.status, reason)
        return answer

    async def _exchange(self, connection: _Connection, request: bytes, timeout_ms: int, limit_bytes: int) -> bytes:
        """Send one request over `connection`, and keep the connection if it can be used again."""
        try:
            return await connection.exchange(request, timeout_ms / 1000, limit_bytes)
        finally:
            if connection.usable and not self._aborted:
                self._idle.append(connection)
            else:
                connection.abort()

    def abort(self) -> None:
        """End every request under way, and refuse all further ones."""
        self._aborted = True
        for connection in list(self._open):
            connection.abort()

    def _take_idle(self) -> _Connection | None:
        """Take an idle connection that is still open, or None; closed ones are dropped."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    def _head(self, method: str, path: str, media_type: str) -> bytes:
        """The head of a request, without the length of its body."""
        head = self._heads.get((path, media_type))
        if head is None:
            try:
                parts = urlsplit(self.url + path)
            except ValueError as error:
                raise PeerFault(f"{self.url}: {error}") from error
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            lines = [
                f"{method} {target} HTTP/1.1", f"Host: {parts.netloc.rpartition('@')[2]}", "Accept: */*",
                "Accept-Encoding: identity", *[f"Content-Type: {media_type}"] * bool(media_type), "",
            ]  # fmt: skip
            head = self._heads[path, media_type] = "\r\n".join(lines).encode()
        if self._authorization is not None:
            head += f"Authorization: {self._authorization()}\r\n".encode()
        return head

    async def _connect(self, timeout_ms: int) -> _Connection:
        loop, access = asyncio.get_running_loop(), self._access
        parts = urlsplit(self.url)
        if parts.scheme not in _PORTS or not parts.hostname:
            raise ValueError("not a URL that begins with http:// or https://")
        context = None if parts.scheme == "http" else (access.contexts or system_contexts)()
        timeout_s = min(timeout_ms, CONNECT_TIMEOUT_MS_MAX) / 1000
        self._require_open()
        try:
            async with asyncio.timeout(timeout_s):
                _, connection = await loop.create_connection(
                    lambda: _Connection(loop, self._open),
                    parts.hostname,
                    parts.port or _PORTS[parts.scheme],
                    ssl=context,
                )
        except TimeoutError as error:
            raise TimeoutError(f"connecting timed out after {timeout_s:g} s") from error
        try:
            self._require_open()
            if context is not None:
                access.check_certificate(connection.certificate)
        except OSError:
            connection.abort()
            raise
        return connection

    def _require_open(self) -> None:
        if self._aborted:
            raise ConnectionAbortedError("the client was closed")


class _Connection(asyncio.Protocol):
    """A connection with at most one exchange under way; it also receives the parser's callbacks.

    idle -> busy         `exchange`
    busy -> idle         the answer is complete, and the peer keeps the connection
    busy -> closed       the peer closes it, the exchange failed, or its caller was cancelled
    idle -> closed       the peer closed it, or sent bytes without a request
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, among: OrderedSet[_Connection]) -> None:
        self.usable = False
        """The connection is open and idle."""
        self.answered = False
        """At least one byte of the answer to the last request has arrived."""
        self.status = 0
        """Status of the last answer."""
        self.reason = ""
        """Stable reason code of the last answer, or ""."""
        self._loop = loop
        self._among = among
        self._parser = HttpResponseParser(self)
        self._future: asyncio.Future[bytes] | None = None
        self._timer = DeadlineTimer(self._check_timeout)
        """Checks the timeout of an exchange. It keeps running from one exchange to the next, which saves setting and
        cancelling a timer for each; on an idle connection it expires."""
        self._fault: Exception | None = None
        self._in_body = False  # read by `connection_lost`, which may come before the first exchange

    # ---------------------------------------------------------------- calls of AsyncHttpPeer

    @property
    def certificate(self) -> dict[str, object] | None:
        """The peer's certificate, None without TLS."""
        found: dict[str, object] | None = self._transport.get_extra_info("peercert")
        return found

    async def exchange(self, request: bytes, timeout_s: float, limit_bytes: int) -> bytes:
        """Send a whole request and return the body of its answer.

        With an error status the body may be cut off after REFUSAL_BYTES_MAX. Raises OSError, HttpParserError."""
        self.usable = False
        self._limit_bytes, self._timeout_s = limit_bytes, timeout_s
        self._pieces: list[bytes] = []
        self._size_bytes = self._other_bytes = 0
        self.answered = self._in_body = self._ends_with_connection = False
        self._fault = None
        self._received_s = self._loop.time()
        future: asyncio.Future[bytes] = self._loop.create_future()
        self._future = future
        self._timer.call_within(timeout_s)
        self._transport.write(request)
        try:
            return await future
        finally:
            self._future = None

    def abort(self) -> None:
        """Close at once; an exchange under way fails."""
        self._transport.abort()
        self._fail(ConnectionAbortedError("the client was closed"))

    # ---------------------------------------------------------------- the loop's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)
        self._among.add(self)
        self.usable = True

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._future is None:
            self.usable = False
            self._transport.abort()
            return
        self._received_s = self._loop.time()
        if not self.answered:
            self.answered, self._since_s = True, self._received_s
        before = self._size_bytes
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            self._fail(error)
            return
        if self._fault is None and not self._future.done():
            self._fault = self._limit_error(len(data) if self._size_bytes == before else 0)
        if self._fault is not None:
            self._fail(self._fault)

    def _limit_error(self, other_bytes: int) -> Exception | None:
        """The error of an answer that is too large or too slow, or None. `other_bytes`: new bytes outside the body."""
        self._other_bytes = self._other_bytes + other_bytes if other_bytes else 0
        if self._other_bytes > HEAD_BYTES_MAX:
            return ConnectionError(f"an answer with more than {HEAD_BYTES_MAX} bytes outside its body")
        taken_s = self._received_s - self._since_s
        if taken_s > self._timeout_s and self._size_bytes < taken_s * client.RATE_MIN_BYTES:
            return ConnectionError(f"an answer that trickles: {self._size_bytes} bytes in {taken_s:.0f} s")
        return None

    def eof_received(self) -> None:
        """See asyncio: the transport closes itself, then calls `connection_lost`, which ends the exchange."""
        self.usable = False

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self.usable = False
        self._among.discard(self)
        self._timer.cancel()
        if exc is None and self._in_body and self._ends_with_connection:
            self._done()
        else:
            self._fail(exc or ConnectionError("the connection was closed before the end of the answer"))

    def _check_timeout(self) -> None:
        """Fail the exchange if its timeout is over, else set the timer again."""
        if self._future is None:
            return
        left_s = self._received_s + self._timeout_s - self._loop.time()
        if left_s > 0:
            self._timer.call_within(left_s)
        else:
            self._fail(TimeoutError(f"timed out: nothing came for {self._timeout_s:g} s"))

    def _done(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces))

    def _fail(self, error: Exception) -> None:
        self.usable = False
        if self._future is not None and not self._future.done():
            self._future.set_exception(error)

    # ---------------------------------------------------------------- the parser's calls

    def on_message_begin(self) -> None:
        """An answer begins. After a second answer to one request the connection is not reused."""
        self.usable = False
        self.reason = ""
        self._ends_with_connection = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Read a header."""
        name = name.lower()
        if name == b"x-isthmus-reason":
            self.reason = value.decode("latin-1")
        elif name == b"transfer-encoding":
            self._ends_with_connection = False
        elif name == b"content-length":
            self._ends_with_connection = False
            length = int(value) if value.isdigit() else 0  # the parser refuses any other value
            if length > self._limit_bytes and self._parser.get_status_code() == 200:
                self._fault = ConnectionError(f"an answer of {length} bytes, at most {self._limit_bytes} are taken")

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self.status = self._parser.get_status_code()
        self._in_body = True

    def on_body(self, piece: bytes) -> None:
        """Collect a part of the body."""
        if self._fault is not None:
            return
        self._pieces.append(piece)
        self._size_bytes += len(piece)
        if self.status != 200:
            if self._size_bytes >= REFUSAL_BYTES_MAX:
                self._done()  # the connection is not kept if more of the body follows
            return
        if self._size_bytes > self._limit_bytes:
            self._fault = ConnectionError(f"an answer of more than {self._limit_bytes} bytes")

    def on_message_complete(self) -> None:
        """The answer is complete."""
        if self._fault is not None or self._future is None:
            return
        if 100 <= self.status < 200:
            self._in_body = False  # an informational answer; the final one follows
            return
        self.usable = self._parser.should_keep_alive() and not self._future.done()
        self._done()

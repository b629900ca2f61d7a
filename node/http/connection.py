"""The adapter for uvicorn: connections with a limit on everything that a client can make one hold or wait for.

uvicorn's protocol class parses and speaks HTTP. Its server object is not used, since it would install signal handlers
and raise captured signals again: two listeners share one loop, and signals stay the daemon's. This module bounds what
uvicorn leaves unbounded: head, framing, pipelining, and every wait for a client. Answers made here, before there is a
request to pass on, have the form of `responses`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any, Final, Protocol

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from isthmus.config.settings import ListenSettings
from isthmus.node.http.application import CONNECTION, PEER_NAMES
from isthmus.node.http.responses import Headers, RequestRefused, refusal
from isthmus.repl.machine import machine
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.security.tls import NodeName, names_of

KEEP_ALIVE_S: Final = 75
"""How long a silent connection stays open before its first or next request: longer than the pauses of usual clients, so
that they seldom meet a connection that is being closed."""

HEAD_TIMEOUT_S: Final = 10.0
"""How long request line and headers may take; then 408. An honest client sends them in one packet."""

STALL_TIMEOUT_S: Final = 30.0
"""How long a client may read nothing of an answer that waits for it; then the connection is cut."""

CLOSE_TIMEOUT_S: Final = 5.0
"""How long a closed connection may take to send what was written; then it is cut."""

PIPELINE_MAX: Final = 128
"""Requests of one connection that may wait behind a running one; with more it is closed. Each costs 3 KB."""

REFUSED_MAX: Final = 256
"""Connections over the limit that are still answered with 503; those beyond are cut without an answer."""

FRAMING_PER_BYTE: Final = 16
"""Bytes of chunk headers allowed per byte of a chunked body: a chunk of one byte needs 6. More (beyond the head's
limit) is padding that would fill memory or waste the parser's time."""


Cycle = RequestResponseCycle


class Application(Protocol):
    """The application of a listener (`node.http.application.HttpApplication`): ASGI with an end for long waits."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer one request."""

    def stop(self) -> None:
        """End long waits."""


class SharedState(ServerState):
    """State shared by the connections of one listener: uvicorn's part and ours."""

    def __init__(self, settings: ListenSettings) -> None:
        super().__init__()
        self.connections: Any = OrderedSet()
        self.tasks: Any = OrderedSet()
        self.connections_limit = settings.connections_limit
        self.head_limit_bytes = settings.header_limit_bytes
        self.body_timeout_s = settings.body_timeout_ms / 1000
        self.refused_count = 0
        self._date_s = -1
        self._date_line = b""
        self.emptied: asyncio.Event | None = None
        self.set_date(0)

    def set_date(self, seconds: int) -> None:
        """Set the Date header of answers from now on, including those under way, to `seconds` since 1970."""
        date = formatdate(seconds, usegmt=True).encode()
        self.default_headers[:] = [(b"date", date)]  # in place: requests under way hold this list
        self._date_s, self._date_line = seconds, b"date: %b\r\n" % date

    def date_line(self) -> bytes:
        """The Date header of an answer that is sent now.

        It never lags: an object written in this second has a Last-Modified that must not be later (RFC 9110, 8.8.2.1).
        """
        now_s = machine().wall_ns() // 1_000_000_000
        if now_s != self._date_s:
            self.set_date(now_s)
        return self._date_line


def loaded_config(app: Application) -> Config:
    """uvicorn's configuration of a listener that serves `app`."""
    config = Config(
        app,
        http=HttpConnection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="critical",
        access_log=False,
        proxy_headers=False,
    )
    config.load()
    return config


def whole_refusal(fault: RequestRefused, first: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """The last answer of a connection, head and body; `first` are the first headers."""
    reply = refusal(fault)
    length = (b"content-length", b"%d" % len(reply.body))
    headers = (*first, *reply.headers, length, (b"connection", b"close"))
    head = b"".join([name + b": " + value + b"\r\n" for name, value in headers])
    return STATUS_LINE[reply.status] + head + b"\r\n" + reply.body


def _ended_by_close(app: Any, cycle: Cycle) -> Any:
    """`app`, whose answer of unknown length ends with the connection, for a client of HTTP/1.0: it does not know chunks
    (RFC 9112, 6.1). uvicorn closes the connection after each answer to such a client."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        unframed = False

        async def send_unframed(message: Any) -> None:
            nonlocal unframed
            if message["type"] == "http.response.start":
                unframed = all(name != b"content-length" for name, _ in message["headers"])
                if unframed:
                    cycle.chunked_encoding = False
            elif unframed:
                cycle.expected_content_length = len(message["body"])  # uvicorn compares each piece with what is left
            await send(message)

        await app(scope, receive, send_unframed)

    return answer


VERSIONS: Final = ("1.0", "1.1")
"""Versions of HTTP that are answered. The parser also takes HTTP/0.9 and HTTP/2.0 in a request line."""

_BODILESS: Final = frozenset((204, 304))

OK: Final = STATUS_LINE[200]
NO_CONTENT: Final = STATUS_LINE[204]
"""The first lines of answers 200 and 204."""


class HttpConnection(HttpToolsProtocol):
    """One connection: uvicorn's HTTP, with a limit on everything that a client can make it hold or wait for."""

    server_state: SharedState

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._head_limit = self.server_state.head_limit_bytes
        self._running: RequestResponseCycle | None = None
        self._in_head = False
        self._in_body = False
        self._broken = False
        self._body_framing: tuple[bytes, bytes] | None = None
        """The framing header of a request whose body the parser skips, since it offers another protocol."""
        self._in_framing = False
        self._fault = RequestRefused(400, "bad-http", "what was sent is not a valid HTTP request")
        self._chunk_bytes = 0
        self._fed_bytes = 0
        self._body_bytes = 0
        self._counting = False
        self._since_s = self.loop.time()
        self._stalled_s: float | None = None
        self._closing_s: float | None = None
        self._too_many = False
        self._peer_names: frozenset[NodeName] | None = None

    # -- the transport's calls --------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if transport.get_extra_info("sslcontext") is not None:
            self._peer_names = names_of(transport.get_extra_info("peercert"))
        state = self.server_state
        if len(state.connections) > state.connections_limit:
            state.refused_count += 1
            self._too_many = True
            if len(state.connections) > state.connections_limit + REFUSED_MAX:
                transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        running = self._running
        super().connection_lost(exc)
        self.pipeline.clear()
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        state = self.server_state
        if state.emptied is not None and not state.connections:
            state.emptied.set()

    def data_received(self, data: bytes) -> None:
        if self._broken:
            return
        if self._too_many:
            limit = self.server_state.connections_limit
            self._refuse(RequestRefused(503, "overloaded", f"{limit} connections are open here, which is the limit"))
            return
        self._chunk_bytes = len(data)
        self._feed(data)
        if not (self._in_head or self._in_body):
            return
        if not self._counting:
            # This chunk may also hold the end of the message before: counting begins with the next one.
            self._counting = True
            self._fed_bytes = self._body_bytes = 0
            return
        self._fed_bytes += len(data)
        if self._in_head:
            if self._fed_bytes > self._head_limit:
                self._refuse(self._head_too_large())
        elif self._fed_bytes - self._body_bytes > self._head_limit + FRAMING_PER_BYTE * self._body_bytes:
            self._refuse(RequestRefused(400, "bad-http", "a chunked body with more framing than content"))

    def _feed(self, data: bytes) -> None:
        """Parse what has arrived, in place of uvicorn's `data_received`."""
        while True:
            try:
                self.parser.feed_data(data)
            except HttpParserUpgrade as offer:
                data = data[offer.args[0] :]
                self._decline_offer()
            except HttpParserError:
                self._refuse(self._fault)
                return
            else:
                return

    def _decline_offer(self) -> None:
        """Go on in HTTP/1.1 behind the head of a request that offered another protocol (RFC 9110, 7.8).

        The parser takes everything behind that head, the body included, for the other protocol. A new parser continues
        at the same byte; where a body follows, it gets a head with the same framing first, of which nothing is told.
        """
        self.parser = HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        if self._body_framing is not None:
            name, value = self._body_framing
            self._body_framing = None
            self._in_framing = True
            try:
                self.parser.feed_data(b"POST / HTTP/1.1\r\nhost: x\r\n%b: %b\r\n\r\n" % (name, value))
            finally:
                self._in_framing = False

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """The client sends no more. A request cut short is refused; answers under way are still written."""
        if self._in_head or self._in_body:
            self._refuse(RequestRefused(400, "cut-short", "the request ended before its end: send all of it"))
        last = self._last_unanswered()
        if last is None:
            return None
        last.keep_alive = False
        if self._running is not None:
            # A long poll takes this for its client's end; other requests wait for nothing from the client.
            self._running.message_event.set()
        return self._peer_names is None  # TLS cannot be half closed: data that is not written by now is lost

    def pause_writing(self) -> None:
        self._stalled_s = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled_s = None
        super().resume_writing()

    # -- the parser's calls -----------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._in_framing:
            return
        self._in_head = True
        self._counting = False
        self._fed_bytes = 0
        self._since_s = self.loop.time()
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        if not self._in_framing:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer, which this server ignores
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._in_framing:
            return
        if self._fed_bytes + self._chunk_bytes > self._head_limit:
            # The chunk may hold more than this head: only now is counting worth its cost.
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._head_limit:
                self._fault = self._head_too_large()
                raise self._fault
        if self.parser.get_method() == b"CONNECT":
            self._fault = RequestRefused(501, "no-proxy", "this is no proxy: CONNECT is not answered here")
            raise self._fault
        version = self.parser.get_http_version()
        if version not in VERSIONS:
            self._fault = RequestRefused(505, "http-version", f"HTTP/{version} is not spoken here: send HTTP/1.1")
            raise self._fault
        hosts = 0
        for name, value in self.headers:
            if name == b"host":
                hosts += 1
            elif name == b"transfer-encoding" and not (value.lower() == b"chunked" and version == "1.1"):
                # A coding that no layer decodes would be stored as the value; a proxy may pass one on from HTTP/1.0.
                self._fault = RequestRefused(400, "bad-http", "Transfer-Encoding is chunked, in HTTP/1.1, or left out")
                raise self._fault
        if hosts != 1 and (hosts or version == "1.1"):
            # RFC 9112, 3.2: a proxy that forwards such a request cannot know which host was meant.
            self._fault = RequestRefused(400, "bad-http", f"{hosts} Host headers: send exactly one")
            raise self._fault
        if len(self.pipeline) >= PIPELINE_MAX:
            self._fault = RequestRefused(
                400, "bad-http", f"more than {PIPELINE_MAX} requests sent ahead on one connection"
            )
            raise self._fault
        if self.parser.should_upgrade():
            framing = (header for header in self.headers if header[0] in (b"content-length", b"transfer-encoding"))
            self._body_framing = next(framing, None)
        super().on_headers_complete()
        self._in_head = False
        self._in_body = True
        self._counting = False

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._body_framing is not None:
            return  # the parser skips the body: `_decline_offer` goes on with it
        self._in_body = False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """As uvicorn's, but `sweep` limits the wait for the next request: a timer each cost a tenth of a request."""
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._since_s = self.loop.time()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        cycle.scope[CONNECTION] = self  # type: ignore[typeddict-unknown-key]
        if self._peer_names is not None:
            cycle.scope[PEER_NAMES] = self._peer_names  # type: ignore[typeddict-unknown-key]
        if cycle.scope.get("http_version") == "1.0":
            app = _ended_by_close(app, cycle)
        super()._start_asgi_task(cycle, app)

    def reply(self, status: int, headers: Headers, body: bytes, *, head: bool) -> bool:
        """Send a whole answer to the running request in one piece, without the two ASGI messages, which cost more than
        building the answer.

        Returns False when it must be sent by ASGI messages: the client reads too slowly, or a header's value would
        break the head apart, which uvicorn refuses.
        """
        cycle = self._running
        assert cycle is not None
        assert not cycle.response_started
        if cycle.disconnected:
            return True
        if self.flow.write_paused:
            return False
        whole = self.whole_answer(status, headers, body, head=head, keep_alive=cycle.keep_alive)
        if whole is None:
            return False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self.transport.write(whole)
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
        return True

    def whole_answer(self, status: int, headers: Headers, body: bytes, *, head: bool, keep_alive: bool) -> bytes | None:
        """The bytes of an answer with at least one header; None when a header would break the head apart."""
        lines = b"\r\n".join([b": ".join(header) for header in headers])
        if len(lines) - len(lines.translate(None, b"\r\n\0")) != 2 * (len(headers) - 1):
            return None
        end = b"\r\n" if status in _BODILESS else b"\r\ncontent-length: %d\r\n" % len(body)
        if not keep_alive:
            end += b"connection: close\r\n"
        date = self.server_state.date_line()
        return b"".join((STATUS_LINE[status], date, lines, end, b"\r\n", b"" if head else body))

    def renew_date(self) -> None:
        """See Connected."""
        self.server_state.date_line()

    def abort(self) -> None:
        """Cut the connection; what was written and not sent is lost."""
        self.transport.abort()

    # -- refusing ---------------------------------------------------------------------------------------

    def _head_too_large(self) -> RequestRefused:
        return RequestRefused(431, "head-too-large", f"request line and headers exceed {self._head_limit} bytes")

    def _last_unanswered(self) -> RequestResponseCycle | None:
        if self.pipeline:
            return self.pipeline[0][0]
        if self._running is not None and not self._running.response_complete:
            return self._running
        return None

    def _refuse(self, fault: RequestRefused) -> None:
        """Read no more.

        Requests before this point are still answered, in order. Then `fault` is sent if no other request came first,
        and the connection ends. A request whose body is cut off here reaches its handler as a disconnect.
        """
        if self._broken:
            return
        self._broken = True
        if self._in_body:
            unread = self.cycle
            if self.pipeline and self.pipeline[0][0] is unread:
                self.pipeline.popleft()
            elif not unread.response_complete:
                unread.disconnected = True
                unread.message_event.set()
                self._close(None if unread.response_started else fault)
                return
            else:
                self._close(None)
                return
        last = self._last_unanswered()
        if last is None:
            self._close(fault)
        else:
            last.keep_alive = False
            self.flow.pause_reading()

    def _close(self, fault: RequestRefused | None) -> None:
        if self.transport.is_closing():
            return
        if fault is not None:
            self.transport.write(whole_refusal(fault, self.server_state.default_headers))
        self.transport.close()

    def sweep(self, now_s: float) -> None:
        """Cut the connection of a client that is too slow; called once a second."""
        transport = self.transport
        if transport.is_closing():
            if self._closing_s is None:
                self._closing_s = now_s
            elif now_s - self._closing_s > CLOSE_TIMEOUT_S:
                transport.abort()
            return
        if self._stalled_s is not None and now_s - self._stalled_s > STALL_TIMEOUT_S:
            transport.abort()
            return
        if self.pipeline and self.flow.read_paused:
            self._since_s = now_s  # this side does not read: data behind a running request waits for its turn
        waited_s = now_s - self._since_s
        if self._in_head:
            if waited_s > HEAD_TIMEOUT_S:
                self._refuse(RequestRefused(408, "slow-request", f"no whole head within {HEAD_TIMEOUT_S:g} s"))
        elif self._in_body:
            limit_s = self.server_state.body_timeout_s
            if waited_s > limit_s:
                self._refuse(RequestRefused(408, "slow-request", f"no whole body within {limit_s:g} s"))
        elif waited_s > KEEP_ALIVE_S and (self._running is None or self._running.response_complete):
            transport.close()

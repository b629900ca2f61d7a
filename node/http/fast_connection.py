"""The fast path of the client API's connections: a usual request is answered at once, with no task and no ASGI message.

A request takes the fast path if it arrived whole (`read_whole`) while no other request of its connection is under way,
and if the application answers it, starts a write for it, or makes a coroutine that answers it
(`FastPathApp.fast_answer`). The coroutine runs in the same turn of the event loop as far as it can, continues when the
future that it awaits is done, and its answer is written in one piece. The most frequent requests need no coroutine: a
read that need not wait, and a write unless it ends otherwise than usual. Every check is the same as on the usual path.
All other requests go through the parser and ASGI, in `connection`; so do data that arrive meanwhile, and an answer that
must wait for its reader.

`read_whole` accepts a small, strict part of HTTP/1.1 that has one reading only. The parser would accept each such
request and read the same in it (a test compares the two). Everything else is left to the parser: other framing, other
versions, doubtful bytes, more or less than one request.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, NamedTuple, Protocol, cast, runtime_checkable

import structlog

from isthmus.node.http.application import SMALL_BODY_BYTES, Receive, Scope, Send, shown_path
from isthmus.node.http.connection import (
    NO_CONTENT,
    OK,
    Application,
    Cycle,
    HttpConnection,
    SharedState,
    loaded_config,
)
from isthmus.node.http.csrf import OF_BROWSERS
from isthmus.node.http.patience import HEADER
from isthmus.node.http.responses import Reply
from isthmus.repl.model.requests import WriteRequest

_IN_TARGET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.~%+:@!$&'()*,;=/?-"
"""Characters of a path and a query here: all but those that have a meaning of their own or must be encoded."""

_LINE: Final = re.compile(rb"([!#$%&'*+.^`|~\w-]+): ?([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)")
_LENGTH: Final = re.compile(rb"[0-9]{1,18}")

_FRAMING: Final = frozenset((b"connection", b"expect", b"proxy-connection", b"transfer-encoding", b"upgrade"))
"""Headers that control the connection."""

_ELSEWHERE: Final = _FRAMING | OF_BROWSERS | {HEADER.lower().encode()}
"""Headers that send a request to the parser: those of browsers, because `check_origin` must see them, and the time that
a client waits, which needs a task to be kept."""

_USUAL_CONNECTION: Final = (b"connection", b"keep-alive")

_BODILESS: Final = frozenset(("DELETE", "GET", "HEAD"))

_METHODS: Final = {name.encode(): name for name in ("DELETE", "GET", "HEAD", "POST", "PUT")}

LINES_KEPT: Final = 1024
LINE_BYTES_MAX: Final = 128
"""Header lines that are cached, since a program sends the same few with every request, and the longest of them:
together a quarter of a megabyte. When the cache is full, it is emptied."""

BLOCKS_KEPT: Final = 256
BLOCK_BYTES_MAX: Final = 512
"""Whole blocks of such lines that are cached, and the longest of them: together half a megabyte, with what was read of
them. When the cache is full, it is emptied."""

_KEPT: Final = frozenset(
    (
        b"accept",
        b"accept-encoding",
        b"connection",
        b"content-length",
        b"content-type",
        b"host",
        b"user-agent",
        b"x-riak-clientid",
    )
)
"""Headers whose lines are cached: they repeat, and are no secret."""


class HeaderBlock(list[tuple[bytes, bytes]]):
    """The headers of a request that was read whole. Requests with the same lines may share one: nobody changes it."""

    __slots__ = ("body_bytes", "parsed")

    body_bytes: int
    """The declared length of the body; -1 for none."""
    parsed: Any
    """For the application: what it read in the headers. None: nothing yet. Requests with a body and requests without
    one never share a block."""


class RawRequest(NamedTuple):
    """A request as it was sent: path and query are still encoded, header names are in lower case."""

    method: str
    raw_path: bytes
    query_string: bytes
    headers: HeaderBlock
    body: bytes


class PlainAnswer(NamedTuple):
    """An answer 200 that fits into one piece. `lines`: its header lines without Content-Length, each with its line
    end."""

    lines: bytes
    body: bytes


class StartedWrite(NamedTuple):
    """A write under way; the list has one element. `began_s`: when its request arrived."""

    results: asyncio.Future[list[object]]
    request: WriteRequest
    began_s: float


FastAnswer = PlainAnswer | Reply | StartedWrite | Coroutine[Any, Any, Reply]
"""The answer to a request, the write that it started, or the coroutine that answers it."""


_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""

_lines: dict[bytes, tuple[bytes, bytes]] = {}
_blocks: dict[bytes, HeaderBlock] = {}


def read_whole(data: bytes, head_limit_bytes: int) -> RawRequest | None:
    """The one request that `data` is; None when it is anything else, or when its head might be over the limit."""
    end = data.find(b"\r\n\r\n", 0, head_limit_bytes)
    if end < 0:
        return None
    first_line, _, block = data[:end].partition(b"\r\n")
    words = first_line.split(b" ")
    if len(words) != 3:
        return None
    verb, target, version = words
    method = _METHODS.get(verb)
    if method is None or version != b"HTTP/1.1" or target[:1] != b"/" or target.translate(None, _IN_TARGET):
        return None
    headers = _blocks.get(block) or _read_block(block)
    if headers is None:
        return None
    path, _, query = target.partition(b"?")
    at = end + 4
    body_bytes = headers.body_bytes
    if body_bytes < 0:
        if len(data) != at or method not in _BODILESS:
            return None
        return _new(RawRequest, (method, path, query, headers, b""))
    if method in _BODILESS or len(data) - at != body_bytes:
        return None
    return _new(RawRequest, (method, path, query, headers, data[at:]))


def _read_block(block: bytes) -> HeaderBlock | None:
    """The headers of all header lines; None if they need the parser."""
    headers = HeaderBlock()
    hosts = 0
    body_bytes = -1
    repeats = len(block) <= BLOCK_BYTES_MAX
    for line in block.split(b"\r\n"):
        header = _lines.get(line) or _read_line(line)
        if header is None:
            return None
        name, value = header
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if body_bytes >= 0:
                return None
            body_bytes = int(value)
        elif name not in _KEPT:
            repeats = False
        headers.append(header)
    if hosts != 1:
        return None
    headers.body_bytes = body_bytes
    headers.parsed = None
    if repeats:
        if len(_blocks) >= BLOCKS_KEPT:
            _blocks.clear()
        _blocks[block] = headers
    return headers


def _read_line(line: bytes) -> tuple[bytes, bytes] | None:
    """Name and value of a header line; None for a line that needs the parser."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    header = match[1].lower(), match[2]
    name, value = header
    if (name in _ELSEWHERE and header != _USUAL_CONNECTION) or (
        name == b"content-length" and _LENGTH.fullmatch(value) is None
    ):
        return None
    if name in _KEPT and len(line) <= LINE_BYTES_MAX:
        if len(_lines) >= LINES_KEPT:
            _lines.clear()
        _lines[line] = header
    return header


log = structlog.get_logger(__name__)


@runtime_checkable
class FastPathApp(Application, Protocol):
    """An application that answers some requests without ASGI (`node.client_api.application.ClientApi`)."""

    def fast_answer(self, request: RawRequest) -> FastAnswer | None:
        """See FastAnswer; None: the request goes by ASGI.

        The coroutine raises nothing but CancelledError. It runs in no task: it may await futures only, and must not
        call functions that need the current task (`asyncio.timeout`).
        """

    def finish_write(self, request: RawRequest, started: StartedWrite) -> bytes | Coroutine[Any, Any, Reply]:
        """The header lines of the answer 204 to a write whose results are there; they end with a line end each. Another
        answer is made by a coroutine, as above."""

    def left(self, request: RawRequest) -> None:
        """The client of a request under way has closed the connection, or sends no more."""

    async def send(self, reply: Reply, scope: Scope, receive: Receive, send: Send) -> None:
        """Send an answer that `fast_answer` made by ASGI messages."""


def connection_factory(
    app: Application, state: SharedState, loop: asyncio.AbstractEventLoop
) -> Callable[[], asyncio.Protocol]:
    """A factory of the connections of one listener; each serves `app`."""
    config = loaded_config(app)
    if isinstance(app, FastPathApp):
        return lambda: FastPathConnection(app, config, state, {}, loop)
    return lambda: HttpConnection(config, state, {}, loop)


class FastPathConnection(HttpConnection):
    """See above."""

    def __init__(self, prompt: FastPathApp, *uvicorns: Any) -> None:
        super().__init__(*uvicorns)
        self._fast_answer = prompt
        self._work: Coroutine[Any, Any, Reply] | None = None
        self._asked: RawRequest | None = None
        self._started: StartedWrite | None = None
        self._quick: Cycle | None = None

    def data_received(self, data: bytes) -> None:
        running = self._running
        if (
            (running is None or running.response_complete)
            and not (self._in_head or self._in_body or self._broken or self._too_many or self.flow.write_paused)
            and (request := read_whole(data, self._head_limit)) is not None
            and not self.transport.is_closing()
            and (work := self._fast_answer.fast_answer(request)) is not None
        ):
            if isinstance(work, PlainAnswer):
                self._write_plain(work)
                return
            quick = self._quick
            if quick is None:
                quick = self._quick = self._new_cycle({})
            quick.response_complete = False
            self.cycle = self._running = quick
            self._asked = request
            if isinstance(work, StartedWrite):
                self._started = work
                results = work.results
                self.tasks.add(results)  # type: ignore[arg-type]
                results.add_done_callback(self._finish_write)
            elif isinstance(work, Reply):
                self._answer(work)
            else:
                self._work = work
                self._go_on()
        else:
            super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._tell_leaving()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        stays = super().eof_received()
        self._tell_leaving()
        return stays

    def _tell_leaving(self) -> None:
        if self._work is not None and self._asked is not None:
            self._fast_answer.left(self._asked)

    def _new_cycle(self, scope: dict[str, Any]) -> Cycle:
        """Begin a request that the parser did not read."""
        return Cycle(
            scope=cast(Any, scope),
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )

    def _go_on(self, waited: asyncio.Future[Any] | None = None) -> None:
        """Run the coroutine until it waits again, or is done."""
        if waited is not None:
            self.tasks.discard(waited)
        work, asked = self._work, self._asked
        assert work is not None
        assert asked is not None
        try:
            waits: asyncio.Future[Any] | None = work.send(None)
        except StopIteration as end:
            self._work = None
            self._answer(end.value)
        except asyncio.CancelledError:
            # The listener's drain has timed out: it has closed the connection, and the request ends here.
            self._work = None
            log.info("http.request_dropped", method=asked.method, path=shown_path(asked.raw_path))
        else:
            if waits is None:
                self.loop.call_soon(self._go_on)
            else:
                waits._asyncio_future_blocking = False  # as a task does when it takes over a future
                waits.add_done_callback(self._go_on)
                self.tasks.add(waits)  # type: ignore[arg-type]

    def _write_plain(self, answer: PlainAnswer) -> None:
        """Write an answer in the turn in which its request arrived: no other request, nor the client's end, came
        between them."""
        lines, body = answer
        date = self.server_state.date_line()
        self.transport.write(b"%b%b%bcontent-length: %d\r\n\r\n%b" % (OK, date, lines, len(body), body))
        self._since_s = self.loop.time()

    def _finish_write(self, results: asyncio.Future[Any]) -> None:
        """Answer a write that was started."""
        self.tasks.discard(results)
        asked, started, quick = self._asked, self._started, self._quick
        assert asked is not None
        assert started is not None
        assert quick is not None
        self._started = None
        lines = self._fast_answer.finish_write(asked, started)
        if not isinstance(lines, bytes):
            self._work = lines
            self._go_on()
            return
        self._asked = None
        if quick.disconnected:
            return
        quick.response_complete = True
        end = b"\r\n" if quick.keep_alive else b"connection: close\r\n\r\n"
        # A few bytes: written even when the client reads slowly.
        self.transport.write(NO_CONTENT + self.server_state.date_line() + lines + end)
        if not quick.keep_alive:
            self.transport.close()
        self.on_response_complete()

    def _answer(self, reply: Reply) -> None:
        asked, self._asked = self._asked, None
        quick = self._quick
        assert asked is not None
        assert quick is not None
        if quick.disconnected:
            return
        status, headers, body = reply
        keep_alive = quick.keep_alive
        if len(body) <= SMALL_BODY_BYTES and not self.flow.write_paused:
            head = asked.method == "HEAD"
            whole = self.whole_answer(status, headers, body, head=head, keep_alive=keep_alive)
            if whole is not None:
                quick.response_complete = True
                self.transport.write(whole)
                if not keep_alive:
                    self.transport.close()
                self.on_response_complete()
                return
        self._say(asked, reply)

    def _say(self, asked: RawRequest, reply: Reply) -> None:
        """Send the answer by ASGI messages, as fast as the client reads."""

        async def say(scope: Scope, receive: Receive, send: Send) -> None:
            await self._fast_answer.send(reply, scope, receive, send)

        quick = self._quick
        assert quick is not None
        cycle = self._new_cycle({"method": asked.method, "raw_path": asked.raw_path, "headers": asked.headers})
        cycle.keep_alive = quick.keep_alive
        cycle.disconnected = quick.disconnected
        cycle.more_body = False
        if self.cycle is quick:
            # Otherwise the parser has begun another request meanwhile, whose body is still coming.
            self.cycle = cycle
        self._start_asgi_task(cycle, say)

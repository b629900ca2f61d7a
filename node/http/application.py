"""One ASGI call, one handler call, one answer: bodies with limits, replies, streams, errors.

Knows neither uvicorn nor the routes. `HttpApplication` is the base of every listener's application.

A request body is read piece by piece within its own limit, and all bodies together within the budget of the
application. The listener limits the time of reading (`listener`): it ends a slow request by a disconnect, and a handler
never gets a body that ends so.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple, Protocol

import structlog

from isthmus.node.http.accept import accept_of, asks_for_json
from isthmus.node.http.authorization import Guard, only_reads
from isthmus.node.http.csrf import check_no_browser, check_origin
from isthmus.node.http.durations import OTHER, RequestDurations
from isthmus.node.http.operations import parameters_of
from isthmus.node.http.patience import answer_by_s
from isthmus.node.http.responses import JSON, PLAIN, Headers, Reply, RequestRefused, refusal, refusal_in_json
from isthmus.node.http.router import Match, Router, check_parameters, parse_query
from isthmus.repl.machine import machine
from isthmus.repl.model.errors import IsthmusError, OutcomeUnknown, Overloaded, TimedOut, TooLarge, clear_traceback
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.security.tls import NodeName
from isthmus.repl.unforeseen import unforeseen

Message = dict[str, Any]
Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

IN_FLIGHT_LIMIT_BYTES: Final = 256 * 1000 * 1000
"""Request bodies and large answers that an application holds at once, over all its connections; above it 503. Enough
for five of the largest objects, or for 4,096 connections with 60 KB each. A guess at the memory that a node of 1 GB can
spare."""


class ClientGone(Exception):
    """The client closed the connection, or the listener gave up waiting for its request: nobody reads an answer."""


class UnreadBody(Exception):
    """`error` refuses a request whose body has not been read to its end."""

    def __init__(self, error: IsthmusError) -> None:
        super().__init__(str(error))
        self.error = error


class BodyBudget:
    """Bytes of bodies held at once, over all connections of one application."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int = IN_FLIGHT_LIMIT_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size: int) -> None:
        """Count a body; the caller gives its size back when it is done with it. Raises Overloaded."""
        if self.used_bytes + size > self.limit_bytes:
            raise self.overloaded()
        self.used_bytes += size

    def overloaded(self) -> Overloaded:
        """The refusal of a body that does not fit now."""
        return Overloaded(f"this node holds {self.used_bytes} bytes of HTTP bodies, its limit is {self.limit_bytes}")


async def read_body(receive: Receive, declared: int, limit: int, limit_name: str, budget: BodyBudget) -> bytes:
    """Read the whole body, counted in `budget`; the caller gives `len(body)` back when it is done with it.

    `declared` is the Content-Length, -1 when there is none. Raises TooLarge or Overloaded, wrapped in UnreadBody when
    part of the body is still to come, and ClientGone when the body was cut short.
    """
    if declared > limit:
        raise UnreadBody(_too_large(declared, limit, limit_name))
    message = await receive()
    if message["type"] != "http.request":
        raise ClientGone
    body: bytes = message["body"]
    if message["more_body"]:
        return await _read_rest(receive, body, limit, limit_name, budget)
    size = len(body)
    if size > limit:
        raise _too_large(size, limit, limit_name)
    budget.take(size)
    return body


async def _read_rest(receive: Receive, first: bytes, limit: int, limit_name: str, budget: BodyBudget) -> bytes:
    pieces = [first]
    size = len(first)
    budget.used_bytes += size
    try:
        more = True
        while more:
            if size > limit:
                raise UnreadBody(_too_large(size, limit, limit_name))
            if budget.used_bytes > budget.limit_bytes:
                raise UnreadBody(budget.overloaded())
            message = await receive()
            if message["type"] != "http.request":
                raise ClientGone
            piece = message["body"]
            pieces.append(piece)
            size += len(piece)
            budget.used_bytes += len(piece)
            more = message["more_body"]
        if size > limit:
            raise _too_large(size, limit, limit_name)
    except BaseException:
        budget.used_bytes -= size
        raise
    return b"".join(pieces)


def _too_large(size: int, limit: int, limit_name: str) -> TooLarge:
    return TooLarge(f"a body of {size} bytes or more, {limit_name} is {limit}")


def content_length(value: bytes) -> int:
    """The value of a Content-Length header. Raises RequestRefused (400)."""
    if not value.isdigit() or len(value) > 18:
        raise RequestRefused(400, "bad-header", "Content-Length is not a number of bytes")
    return int(value)


log = structlog.get_logger(__name__)

MSGPACK: Final = b"application/msgpack"

SMALL_BODY_BYTES: Final = 64 * 1000
"""Answers up to this size go to the transport in one piece, uncounted. Larger ones go in pieces of it, so that a slow
reader causes one counted copy, without a second one in the transport's buffer."""

LINGER_BYTES: Final = 128 * 1000 * 1000
LINGER_PAUSE_S: Final = 3.0
LINGER_S: Final = 30.0
LINGER_WAITS: Final = 6
"""Bytes, pause (in so many waits) and time for which the rest of a refused body is read and discarded: clients that
send everything before they read would see a reset instead of the refusal. Beyond one of them, the connection is
closed."""

JSON_BODY_LIMIT_BYTES: Final = 1000 * 1000
"""Largest JSON body (operators' requests); above it 413."""


LATE_MAX: Final = 64
"""Requests that go on after their client has been answered that it takes too long; further ones are cancelled. Each
holds its body. A guess."""

DIGITS_MAX: Final = 19
"""Digits of a number in a query, leading zeros included: those of the largest of 64 bits."""

NOBODY: Final[frozenset[NodeName]] = frozenset()

CONNECTION: Final = "isthmus.connection"
"""The key of a scope whose connection can send a whole answer at once (`Connected`)."""


TIMING: Final = "isthmus.timing"
"""The key of a scope's RequestTiming."""

PEER_NAMES: Final = "isthmus.peer-names"
"""The key of the node names in the client's verified certificate; missing without TLS."""


class RequestTiming:
    """When a request began, and the route that it takes once that is known."""

    __slots__ = ("began_s", "route")

    def __init__(self) -> None:
        self.began_s = machine().perf_s()
        self.route = OTHER


class Connected(Protocol):
    """The methods of a scope's connection beside ASGI (`connection.HttpConnection`)."""

    def reply(self, status: int, headers: Headers, body: bytes, *, head: bool) -> bool:
        """Send a whole answer in one piece. Returns False when it must be sent by ASGI messages."""

    def renew_date(self) -> None:
        """Set the Date of answers that are sent by ASGI messages to the present second."""

    def abort(self) -> None:
        """Cut the connection; what was written and not sent is lost."""


class Stream(NamedTuple):
    """An answer of unknown length, sent chunk by chunk as the client reads.

    An error in `chunks` cuts the connection, so that a client cannot mistake a part for the whole. `close` is called
    once at the end, however it ends.
    """

    status: int
    headers: Headers
    chunks: AsyncIterator[bytes]
    close: Callable[[], Awaitable[None]]


class Request:
    """One request as a routed handler sees it. `params` are the decoded parts of the path."""

    __slots__ = (
        "_budget", "_held", "_query", "_receive", "after", "before", "connection", "document", "headers", "method",
        "model", "params", "peer_names", "query_string", "raw_path", "secure",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, params: dict[str, bytes], budget: BodyBudget) -> None:
        self.method: str = scope["method"]
        self.raw_path: bytes = scope["raw_path"]
        self.headers: Headers = scope["headers"]
        self.params = params
        self.connection: Connected | None = scope.get(CONNECTION)
        self.peer_names: frozenset[NodeName] = scope.get(PEER_NAMES, NOBODY)
        self.secure = PEER_NAMES in scope
        """Whether the connection is TLS."""
        self.query_string: bytes = scope["query_string"]
        self._query: dict[str, str] | None = None
        self.document: Any = None
        """The body, once `json` has read it."""
        self.model: object = None
        """The body as the struct of its `BodyHandler`, once it is checked."""
        self.before: Any = None
        self.after: Any = None
        self._receive = receive
        self._budget = budget
        self._held = 0

    def changed(self, before: Any, after: Any) -> None:
        """State the values before and after this request's act, for the audit log; None: not known, or none."""
        self.before, self.after = before, after

    @contextmanager
    def changing(self, state: Callable[[], Any]) -> Iterator[None]:
        """Take the `state` before and after the block, for the audit log."""
        self.before = state()
        yield
        self.after = state()

    @property
    def query(self) -> dict[str, str]:
        """The query parameters. Raises RequestRefused (400) as `parse_query` does."""
        if self._query is None:
            self._query = parse_query(self.query_string)
        return self._query

    def header(self, name: bytes) -> bytes | None:
        """The value of a header by its lower-case name; the first one when repeated."""
        for key, value in self.headers:
            if key == name:
                return value
        return None

    def text(self, param: str) -> str:
        """A part of the path as text. Raises RequestRefused (400) when it is not UTF-8."""
        try:
            return self.params[param].decode()
        except UnicodeDecodeError:
            raise RequestRefused(400, "bad-path", f"the {param} in the URL is not UTF-8") from None

    def number(self, name: str, default: int, least: int, most: int) -> int:
        """A whole number of the query, in decimal digits. Raises RequestRefused 400 beyond `least` to `most`."""
        text = self.query.get(name)
        if text is None:
            return default
        if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and least <= int(text) <= most):
            right = f"a whole number from {least} to {most}"
            raise RequestRefused(400, "bad-query", f"{name}={text[:40]}: {right} is right")
        return int(text)

    async def body(self, limit: int = JSON_BODY_LIMIT_BYTES, limit_name: str = "the limit here") -> bytes:
        """The whole body; call once. Raises as `read_body` does."""
        declared = self.header(b"content-length")
        length = -1 if declared is None else content_length(declared)
        body = await read_body(self._receive, length, limit, limit_name, self._budget)
        self._held = len(body)
        return body

    async def json(self) -> Any:
        """The body as JSON, None when empty. Raises RequestRefused (400)."""
        body = await self.body()
        if not body:
            return None
        try:
            self.document = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise RequestRefused(400, "bad-json", f"the body is not JSON: {error}") from error
        return self.document

    async def disconnected(self) -> None:
        """Return when the client has closed the connection or its sending side; call after `body`."""
        await self._receive()

    def detach_body(self) -> int:
        """Pass the body's share of the budget to the caller, who gives it back; returns the number of bytes."""
        held, self._held = self._held, 0
        return held

    def release(self) -> None:
        """Give the body's bytes back to the budget."""
        self._budget.used_bytes -= self._held
        self._held = 0


RoutedHandler = Callable[[Request], Awaitable["Reply | Stream"]]


class RequestAudit(Protocol):
    """Records acts of operators (`audit.AuditTrail`)."""

    def is_act(self, method: str, pattern: str) -> bool:
        """Whether requests of a route are acts."""

    async def watch(
        self, scope: Scope, pattern: str, request: Request, handled: Awaitable[Reply | Stream]
    ) -> Reply | Stream:
        """Await the handler of an act, record the outcome, and return the answer. Raises as the handler."""

    async def forbidden(self, scope: Scope, router: Router[RoutedHandler], error: RequestRefused) -> None:
        """Record a request that was refused for its role, if it is an act."""


def json_reply(value: object, status: int = 200) -> Reply:
    """`value` as JSON text."""
    return Reply(status, [(b"content-type", JSON)], json.dumps(value).encode() + b"\n")


def text_reply(text: str, status: int = 200) -> Reply:
    """`text` as plain text."""
    return Reply(status, [(b"content-type", PLAIN)], text.encode())


def in_asked_form(reply: Reply, request_headers: Headers) -> Reply:
    """A refusal as JSON if the request asks for that; any other answer as it is."""
    if reply.status < 400 or not asks_for_json(accept_of(request_headers)):
        return reply
    return refusal_in_json(reply)


def internal_error() -> IsthmusError:
    """The error for an unexpected exception."""
    return IsthmusError("a fault in this program, see its log; if this was a write, outcome=unknown")


class RequestCounts(dict[tuple[str, str, int], int]):
    """Number of answers by (route, method, status)."""

    def add(self, route: str, method: str, status: int) -> None:
        """Count one answer."""
        key = (route, method, status)
        self[key] = self.get(key, 0) + 1


class AccessControl(NamedTuple):
    """Who may send requests, and the record of acts."""

    guard: Guard | None
    """Authorizes requests; None: every request is allowed."""
    audit: RequestAudit | None
    """Records acts; None: nothing is recorded."""


class HttpApplication:
    """An ASGI application over a router. Add routes to `router` before the listener starts."""

    def __init__(self, access: AccessControl, durations: RequestDurations) -> None:
        """`durations` takes the durations of its requests."""
        self.router: Router[RoutedHandler] = Router()
        self.budget = BodyBudget()
        self.counts = RequestCounts()
        self.durations = durations
        self.guard, self.audit = access
        self._late: OrderedSet[asyncio.Future[Any]] = OrderedSet()
        """Work of requests whose client has its refusal already (`_in_time`)."""
        self._lingering: OrderedSet[asyncio.Timeout] = OrderedSet()
        """Refused bodies whose rest is awaited (`_refuse_unread`)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises only when the answer itself cannot be sent."""
        scope[TIMING] = RequestTiming()
        await self.guarded(self._authorize_and_answer(scope, receive, send), scope, receive, send)

    async def _authorize_and_answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        check_origin(scope["method"], scope["headers"])
        if scope["method"] == "GET" and not only_reads("GET", scope["raw_path"]):
            check_no_browser(scope["headers"])
        if self.guard is not None:
            try:
                self.guard.check(scope["method"], scope["raw_path"], scope["headers"])
            except RequestRefused as refused:
                if self.audit is not None:
                    await self.audit.forbidden(scope, self.router, refused)
                raise
        await self.answer(scope, receive, send)

    async def guarded(self, work: Awaitable[None], scope: Scope, receive: Receive, send: Send) -> None:
        """Await `work`, which answers the request; send the refusal if it raises."""
        try:
            await work
        except UnreadBody as unread:
            clear_traceback(unread)  # and with it the part of the body that was read, which would wait for the rest
            await self._refuse_unread(unread.error, scope, receive, send)
        except ClientGone:
            self.counts.add(OTHER, scope["method"], 499)
            self._timed(scope, 499)
        except asyncio.CancelledError:
            # The listener's drain has timed out: it has closed the connection, and this task ends here.
            log.info("http.request_dropped", method=scope["method"], path=shown_path(scope["raw_path"]))
        except IsthmusError as error:
            await self._refuse(error, scope, send)
        except Exception as error:
            unforeseen.exception("http.bug", error, method=scope["method"], path=shown_path(scope["raw_path"]))
            await self._refuse(internal_error(), scope, send)

    async def _refuse(self, error: IsthmusError, scope: Scope, send: Send) -> None:
        reply = self.refused(error, scope["method"])
        await self.send_reply(scope, send, reply)
        self._timed(scope, reply.status)

    def refused(self, error: IsthmusError, method: str) -> Reply:
        """The answer to a request that ended in `error`, counted."""
        reply = self.refusal(error)
        clear_traceback(error)
        self.counts.add("refused", method, reply.status)
        return reply

    def answered(self, scope: Scope, route: str, status: int) -> None:
        """Count a request that was answered by its route, and note its duration."""
        self.counts.add(route, scope["method"], status)
        self._timed(scope, status)

    def _timed(self, scope: Scope, status: int) -> None:
        """Note the duration of a request; one that began on the fast path has been noted there."""
        timing: RequestTiming | None = scope.get(TIMING)
        if timing is not None:
            series = self.durations.series(timing.route, scope["method"], status)
            series.add(machine().perf_s() - timing.began_s)

    def stop(self) -> None:
        """The node is stopping: end long waits, and work that nobody waits for."""
        for work in self._late:
            work.cancel()
        for limit in self._lingering:
            limit.reschedule(asyncio.get_running_loop().time())

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find the handler, call it, send what it returns. Raises what `__call__` turns into refusals."""
        method: str = scope["method"]
        match = self.router.match(method, scope["raw_path"])
        scope[TIMING].route = match.pattern
        request = Request(scope, receive, match.params, self.budget)
        handled = self._handled(match, request)
        try:
            if self.audit is not None and self.audit.is_act(method, match.pattern):
                handled = self.audit.watch(scope, match.pattern, request, handled)
            limit_s = answer_by_s(scope["headers"])
            reply = await (handled if limit_s is None else self._in_time(handled, request, limit_s))
            if isinstance(reply, Stream):
                await self._stream(reply, scope, receive, send)
            else:
                await self.send_reply(scope, send, reply)
            self.answered(scope, match.pattern, reply.status)
        finally:
            request.release()

    async def _in_time(self, handled: Awaitable[Reply | Stream], request: Request, limit_s: float) -> Reply | Stream:
        """The answer, if it comes while the client waits. Else the work goes on, as that of a client which left, and a
        refusal says so. Raises TimedOut for a request that reads, OutcomeUnknown for one that may change something."""
        work = asyncio.ensure_future(handled)
        try:
            await asyncio.wait((work,), timeout=limit_s)
        except asyncio.CancelledError:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            raise
        if work.done():
            return work.result()
        if len(self._late) < LATE_MAX:
            self._late.add(work)
        else:
            work.cancel()
        work.add_done_callback(lambda _: request.release())  # of a body that it reads from now on
        work.add_done_callback(self._ended_late)
        waited = f"no answer within {limit_s:g} s, as long as this client waits"
        if only_reads(request.method, request.raw_path):
            raise TimedOut(f"{waited}: the node is busy, or waits for others")
        raise OutcomeUnknown(f"{waited}: it may still be done; ask what became of it before it is repeated")

    def _ended_late(self, work: asyncio.Future[Reply | Stream]) -> None:
        """Nobody waits for the answer any more: an unforeseen error is logged, a stream closed."""
        self._late.discard(work)
        if work.cancelled():
            return
        error = work.exception()
        if error is None:
            reply = work.result()
            if isinstance(reply, Stream):
                closing = asyncio.ensure_future(reply.close())
                self._late.add(closing)
                closing.add_done_callback(self._late.discard)
        elif not isinstance(error, IsthmusError | UnreadBody | ClientGone):
            unforeseen.exception("http.late_bug", error)

    async def _handled(self, match: Match[RoutedHandler], request: Request) -> Reply | Stream:
        """Call the handler, unless the query has parameters that the route does not have: a part of the act, so that
        the audit log has this refusal, too."""
        known = parameters_of(request.method, match.pattern)
        if known is not None:
            check_parameters(request.query, known, f"{request.method} {match.pattern}")
        return await match.handler(request)

    async def send_reply(self, scope: Scope, send: Send, reply: Reply) -> None:
        """Send a whole answer with its Content-Length; a large body counts against the budget meanwhile."""
        status, headers, body = reply = in_asked_form(reply, scope["headers"])
        head = scope["method"] == "HEAD"
        connection: Connected | None = scope.get(CONNECTION)
        if connection is not None:
            if len(body) <= SMALL_BODY_BYTES and connection.reply(status, headers, body, head=head):
                return
            connection.renew_date()
        if status not in (204, 304):
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        size = 0 if head else len(body)
        if size > SMALL_BODY_BYTES and self.budget.used_bytes + size > self.budget.limit_bytes:
            full = self.budget.overloaded()
            if only_reads(scope["method"], scope["raw_path"]):
                raise full
            raise OutcomeUnknown(
                f"no memory for the answer: {full}"
            )  # a plain refusal would mean that nothing was done
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if size <= SMALL_BODY_BYTES:
            await send({"type": "http.response.body", "body": b"" if head else body})
            return
        self.budget.used_bytes += size
        try:
            for start in range(0, size, SMALL_BODY_BYTES):
                end = start + SMALL_BODY_BYTES
                await send({"type": "http.response.body", "body": body[start:end], "more_body": end < size})
        finally:
            self.budget.used_bytes -= size

    def refusal(self, error: IsthmusError) -> Reply:
        """The refusal of a request that ended in `error`: one line of text, see `responses`."""
        return refusal(error)

    async def _refuse_unread(self, error: IsthmusError, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, discard a bounded part of the rest of its body, close."""
        reply = in_asked_form(self.refused(error, scope["method"]), scope["headers"])
        self._timed(scope, reply.status)
        headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body)), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        await send({"type": "http.response.body", "body": reply.body, "more_body": True})
        limit = asyncio.timeout(LINGER_S)
        self._lingering.add(limit)
        try:
            async with limit:
                await _discard(receive)
        except TimeoutError:
            pass
        finally:
            self._lingering.discard(limit)
        await send({"type": "http.response.body", "body": b""})

    async def _stream(self, stream: Stream, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await send({"type": "http.response.start", "status": stream.status, "headers": stream.headers})
            if scope["method"] != "HEAD":
                async for chunk in stream.chunks:
                    if gone.done():
                        return
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except IsthmusError as error:
            # The status has been sent: only a cut connection can still signal the failure.
            log.warning("http.stream_cut", path=shown_path(scope["raw_path"]), reason=error.reason, error=str(error))
        finally:
            gone.cancel()
            await stream.close()


async def _discard(receive: Receive) -> None:
    size = 0
    while size <= LINGER_BYTES:
        message = await _within_pause(receive)
        if message["type"] != "http.request" or not message["more_body"]:
            return
        size += len(message["body"])


async def _within_pause(receive: Receive) -> Message:
    """The next message. Raises TimeoutError when none comes for LINGER_PAUSE_S, in short waits: of one long wait the
    end would come first where this process itself did not run for so long, before what has arrived meanwhile."""
    for _ in range(LINGER_WAITS):
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_PAUSE_S / LINGER_WAITS):
                return await receive()
    raise TimeoutError


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] == "http.request":
        pass


def shown_path(raw_path: bytes) -> str:
    """A path as it appears in logs."""
    return raw_path[:200].decode("ascii", "backslashreplace")

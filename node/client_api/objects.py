"""PUT, POST, GET, HEAD and DELETE of one object: the hot path of the client API."""

from __future__ import annotations

import asyncio
from binascii import b2a_base64
from collections.abc import Coroutine
from typing import Any, Final, Protocol, TypeVar, cast

from isthmus.config.settings import LimitSettings
from isthmus.node.client_api.cluster_routes import ClientAddresses, leader_headers
from isthmus.node.client_api.conditional import READ_CONDITIONS, read_condition
from isthmus.node.client_api.object_decoding import read_stored
from isthmus.node.client_api.object_headers import ObjectHeaders, check_content_type, parse_headers, vclock_header
from isthmus.node.client_api.object_rendering import (
    NOT_FOUND,
    render_object,
    render_plain,
    render_stored,
    render_tombstone,
    show_if,
)
from isthmus.node.http.application import (
    SMALL_BODY_BYTES,
    TIMING,
    HttpApplication,
    Receive,
    Request,
    Scope,
    Send,
    read_body,
)
from isthmus.node.http.durations import OBJECT
from isthmus.node.http.fast_connection import HeaderBlock, PlainAnswer, StartedWrite
from isthmus.node.http.object_query import NO_QUERY, ObjectQuery, parse_object_query
from isthmus.node.http.responses import Headers, Reply, RequestRefused
from isthmus.node.http.router import decode_segment, encode_segment, method_not_allowed
from isthmus.repl.machine import machine, random_text
from isthmus.repl.model.conditions import Condition
from isthmus.repl.model.errors import IsthmusError, OutcomeUnknown, Retryable, TimedOut, clear_traceback
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key
from isthmus.repl.model.objects import TOMBSTONE, Content
from isthmus.repl.model.ports import KeyValue, TimeSource
from isthmus.repl.model.requests import ForwardedRead, Isolation, PendingRead, WriteRequest, WriteResult
from isthmus.repl.ordered_set import OrderedSet

METHODS: Final = ("DELETE", "GET", "HEAD", "POST", "PUT")

GENERATED_KEY_BYTES: Final = 18
"""Random bytes of the key of a POST: 144 bits, 24 characters, so that two keys never meet."""

_WRITTEN: Final = (OBJECT, "PUT", 204)
"""Counts the answers to usual writes."""

_FOUND: Final = (OBJECT, "GET", 200)
"""Counts the answers to usual reads."""

_REPEATED: Final = (b"x-isthmus-repeated", b"true")

Result = TypeVar("Result")

_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the cost of its own constructor."""

Named = tuple[bytes, bytes, bytes]
"""Bucket type, bucket and key as in the path, still encoded."""


class ObjectStore(KeyValue, Protocol):
    """The cluster's data, with reads and writes that need no coroutine (`repl.coordinator.coordinator`)."""

    def start_read(self, key: Key, isolation: Isolation | None = None) -> bytes | PendingRead | None:
        """As `read` if the read need not wait; otherwise the coroutine that reads."""

    def start_write(self, request: WriteRequest) -> asyncio.Future[list[object]]:
        """Start a write. The list has one element; any other than a WriteResult is for `finish_write`."""

    async def finish_write(self, request: WriteRequest, results: list[object]) -> WriteResult:
        """The result of a write that was started; raises as `write`."""


class WrittenSpan(Protocol):
    """The span of a request that writes."""

    def end(self, error: str = "") -> None:
        """It ends now; `error`: the reason why it failed."""


class RequestTraces(Protocol):
    """Traces of requests that write (`node.services.write_traces.WriteTraces`)."""

    def begin(self, method: str, key: Key, headers: Headers) -> WrittenSpan | None:
        """The span of a request, which is begun and ended around its write; None: it is not traced."""

    def started(self, key: Key, headers: Headers, results: asyncio.Future[list[object]]) -> None:
        """As `begin`, of a PUT that was started; it ends with a WriteResult, or at `settled`."""

    def settled(self, results: asyncio.Future[list[object]], error: str) -> None:
        """A write that did not end as usual has its answer."""


class ObjectRoutes:
    """The object routes."""

    def __init__(
        self,
        kv: ObjectStore,
        limits: LimitSettings,
        time: TimeSource,
        api: HttpApplication,
        addresses: ClientAddresses,
        traces: RequestTraces | None = None,
    ) -> None:
        """`traces` None: nothing is traced."""
        self._kv = kv
        self._traces = traces
        self._addresses = addresses
        self._time = time
        self._object_limit = limits.object_bytes
        self._key_limit = limits.key_bytes
        self._api = api
        self._budget = api.budget
        self._counts = api.counts
        self._written = api.durations.series(*_WRITTEN)
        self._found = api.durations.series(*_FOUND)
        self._overdue: OrderedSet[asyncio.Future[Any]] = OrderedSet()
        for prefix in ("/buckets/{bucket}/keys", "/types/{type}/buckets/{bucket}/keys", "/riak/{bucket}"):
            api.router.add("POST", prefix, self._create)

    async def answer(self, scope: Scope, receive: Receive, send: Send, named: Named) -> None:
        """Answer one request for a key; its body is still to be read."""
        method: str = scope["method"]
        scope[TIMING].route = OBJECT
        reply = await self.reply(method, scope["query_string"], scope["headers"], receive, named)
        await self._api.send_reply(scope, send, reply)
        self._api.answered(scope, OBJECT, reply.status)

    def reply(
        self, method: str, query_string: bytes, headers: Headers, body: bytes | Receive, named: Named
    ) -> Coroutine[Any, Any, Reply]:
        """The answer to one request for a key.

        `body` is the received bytes, or a function that receives them; `named` as in the path, still encoded. It awaits
        futures only, so that it may run without a task (`fast_connection`).
        """
        place = self._place(named)
        query = parse_object_query(query_string) if query_string else NO_QUERY
        if method == "PUT" or method == "POST":
            return self._put(place, query, headers, body)
        if method == "GET" or method == "HEAD":
            return self._get(place, query, headers)
        if method == "DELETE":
            return self._delete(place, query, headers)
        raise method_not_allowed(method, METHODS)

    def fits(self, size: int) -> bool:
        """True when a value of this size is within the limit."""
        return size <= self._object_limit

    def _place(self, named: Named) -> Key:
        bucket_type, bucket, key = named
        if b"%" in bucket_type or b"+" in bucket_type:
            bucket_type = decode_segment(bucket_type)
        if b"%" in bucket or b"+" in bucket:
            bucket = decode_segment(bucket)
        if b"%" in key or b"+" in key:
            key = decode_segment(key)
        limit = self._key_limit
        if not 0 < len(bucket) <= limit or not 0 < len(key) <= limit:
            raise self._bad_key()
        return _new(Key, (bucket_type, bucket, key))

    def start_put(self, named: Named, headers: HeaderBlock, value: bytes, began_s: float) -> StartedWrite | None:
        """Start a usual write: a PUT whose path has no query and nothing encoded, and whose body is here, and fits.
        `began_s`: when its request arrived.

        None: `reply` answers it, with the same bytes.
        """
        parsed = headers.parsed
        if parsed is None:
            try:
                parsed = headers.parsed = parse_headers(headers)
            except IsthmusError:
                return None
        _, context, content_type, encoding, metadata, links, indexes, request_id, condition = parsed
        _, bucket, key = named
        limit = self._key_limit
        if not (0 < len(bucket) <= limit and len(key) <= limit and b"/" in content_type):
            return None
        budget = self._budget
        used_bytes = budget.used_bytes + len(value)
        if used_bytes > budget.limit_bytes:
            return None
        content = _new(Content, (value, content_type, encoding, metadata, links, indexes, False))
        request = _new(WriteRequest, (_new(Key, named), content, context, request_id, False, condition))
        results = self._kv.start_write(request)
        if self._traces is not None:
            self._traces.started(request.key, headers, results)
        budget.used_bytes = used_bytes
        return _new(StartedWrite, (results, request, began_s))

    def finish_put(self, started: StartedWrite) -> bytes | None:
        """The header lines of the answer to a write that ended as usual, counted; None: `settle_put` has the answer."""
        results, request, began_s = started
        if results.cancelled() or results.exception() is not None:
            return None
        (written,) = results.result()
        if type(written) is not WriteResult:
            return None
        _, clock, _, _, repeated, leader = written
        if repeated or leader:
            return None
        self._budget.used_bytes -= len(request[1][0])
        counts = self._counts
        counts[_WRITTEN] = counts.get(_WRITTEN, 0) + 1
        self._written.add(machine().perf_s() - began_s)
        return b"x-riak-vclock: %b\r\n" % b2a_base64(clock, newline=False)

    async def settle_put(self, started: StartedWrite) -> Reply:
        """The answer to a write with other results: forwarded, repeated, refused, to be retried."""
        results, request, _ = started
        error = "cancelled"
        try:
            written = await self._kv.finish_write(request, await results)
            error = ""
        except IsthmusError as refused:
            error = refused.reason
            raise
        finally:
            self._budget.used_bytes -= len(request.content.value)
            if self._traces is not None:
                self._traces.settled(results, error)
        return self._put_reply(written)

    def _put_reply(self, written: WriteResult) -> Reply:
        headers = _written_headers(written)
        if written.leader:
            headers += leader_headers(self._addresses, written.leader)
        return _new(Reply, (204, headers, b""))

    def start_get(self, named: Named, headers: HeaderBlock, began_s: float) -> PlainAnswer | Reply | PendingRead | None:
        """Answer a usual read: a GET without a condition, whose path has no query and nothing encoded.

        A PlainAnswer is counted. `settle_get` answers a read that must wait. None: `reply` answers it, with the same
        bytes.
        """
        unconditional = headers.parsed
        if unconditional is None:
            unconditional = headers.parsed = READ_CONDITIONS.isdisjoint([name for name, _ in headers])
        _, bucket, key = named
        limit = self._key_limit
        if not (unconditional and 0 < len(bucket) <= limit and len(key) <= limit):
            return None
        payload = self._kv.start_read(_new(Key, named))
        if payload is None:
            return NOT_FOUND
        if not isinstance(payload, bytes):
            return payload
        stored = read_stored(payload)
        now_s = self._time.wall_ms() // 1000
        plain = render_plain(stored, now_s)
        if plain is None or len(plain[1]) > SMALL_BODY_BYTES:
            return render_stored(stored, None, headers, now_s)
        counts = self._counts
        counts[_FOUND] = counts.get(_FOUND, 0) + 1
        self._found.add(machine().perf_s() - began_s)
        return _new(PlainAnswer, plain)

    async def settle_get(self, read: PendingRead, headers: Headers) -> Reply:
        """The answer to a usual read that waits."""
        return self._get_reply(await read, NO_QUERY, headers, None)

    async def _put(self, place: Key, query: ObjectQuery, raw_headers: Headers, body: bytes | Receive) -> Reply:
        declared, context, content_type, encoding, metadata, links, indexes, request_id, condition = parse_headers(
            raw_headers
        )
        _check_content_type(content_type)
        budget = self._budget
        if type(body) is bytes:
            value = body
            budget.take(len(value))
        else:
            limit = self._object_limit
            value = await read_body(cast(Receive, body), declared, limit, "limits.object_size", budget)
        content = _new(Content, (value, content_type, encoding, metadata, links, indexes, False))
        request = _new(WriteRequest, (place, content, context, request_id, query.returnbody, condition))
        write = self._begun("PUT", request, raw_headers)
        timeout_s = query.timeout_s
        if timeout_s is None:
            try:
                written = await write
            finally:
                budget.used_bytes -= len(value)
        else:
            written = await self._within(timeout_s, write, OutcomeUnknown, len(value))
        if query.returnbody:
            return await self._returned(place, written, raw_headers)
        return self._put_reply(written)

    async def _get(self, place: Key, query: ObjectQuery, raw_headers: Headers) -> Reply:
        condition = read_condition(raw_headers)
        read = self._kv.read(place, query.isolation)
        payload = await (read if query.timeout_s is None else self._within(query.timeout_s, read, TimedOut))
        return self._get_reply(payload, query, raw_headers, condition)

    def _get_reply(
        self,
        payload: bytes | ForwardedRead | None,
        query: ObjectQuery,
        raw_headers: Headers,
        condition: Condition | None,
    ) -> Reply:
        leader = ""
        if isinstance(payload, ForwardedRead):
            payload, leader = payload
        if payload is None:
            reply = NOT_FOUND
        elif condition is None:
            reply = render_object(payload, query.vtag, raw_headers, self._time.wall_ms() // 1000)
        else:
            reply = show_if(condition, payload, query.vtag, raw_headers, self._time.wall_ms() // 1000)
        return self._from_leader(reply, leader) if leader else reply

    async def _delete(self, place: Key, query: ObjectQuery, raw_headers: Headers) -> Reply:
        headers = parse_headers(raw_headers)
        request = WriteRequest(place, TOMBSTONE, headers.context, headers.request_id, False, headers.condition)
        written = await self._write("DELETE", request, raw_headers, query.timeout_s)
        reply = Reply(204, _written_headers(written)) if written.created else render_tombstone(written.clock)
        return self._from_leader(reply, written.leader) if written.leader else reply

    async def _create(self, request: Request) -> Reply:
        """POST to .../keys: a write under a generated key; 201 and its Location."""
        query = parse_object_query(request.query_string)
        bucket = request.params["bucket"]
        if not 0 < len(bucket) <= self._key_limit:
            raise self._bad_key()
        headers = parse_headers(request.headers)
        _check_content_type(headers.content_type)
        if headers.request_id:
            raise RequestRefused(
                400,
                "bad-request-id",
                "each POST to .../keys creates a new key, so an id cannot identify a repeat: use PUT with a key",
            )
        key = random_text(GENERATED_KEY_BYTES).encode()
        place = Key(request.params.get("type", DEFAULT_BUCKET_TYPE), bucket, key)
        value = await request.body(self._object_limit, "limits.object_size")
        written = await self._write(
            "POST",
            WriteRequest(place, _content(value, headers), headers.context, b"", query.returnbody, headers.condition),
            request.headers,
            query.timeout_s,
            0 if query.timeout_s is None else request.detach_body(),
        )
        location = (b"location", request.raw_path.rstrip(b"/") + b"/" + encode_segment(key))
        if not query.returnbody:
            made = Reply(201, [*_written_headers(written), location])
            return self._from_leader(made, written.leader) if written.leader else made
        shown = await self._returned(place, written, request.headers)
        return Reply(201, [*shown.headers, location], shown.body)

    def _begun(self, method: str, request: WriteRequest, headers: Headers) -> Coroutine[Any, Any, WriteResult]:
        """The write, in a span if the request is traced."""
        span = None if self._traces is None else self._traces.begin(method, request.key, headers)
        write = self._kv.write(request)
        return write if span is None else _within_span(write, span)

    async def _write(
        self, method: str, request: WriteRequest, headers: Headers, timeout_s: float | None, held_bytes: int = 0
    ) -> WriteResult:
        write = self._begun(method, request, headers)
        return await (write if timeout_s is None else self._within(timeout_s, write, OutcomeUnknown, held_bytes))

    async def _within(
        self, timeout_s: float, work: Coroutine[Any, Any, Result], late: type[IsthmusError], held_bytes: int = 0
    ) -> Result:
        """The result of `work`; raises `late` when it takes longer than the client waits. Then `work` continues until
        the node's own limit, since a write under way cannot be taken back, and keeps `held_bytes` of the budget."""
        task = asyncio.ensure_future(work)
        self._overdue.add(task)

        def done(task: asyncio.Future[Result]) -> None:
            self._budget.used_bytes -= held_bytes
            self._overdue.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                clear_traceback(error)

        task.add_done_callback(done)
        await asyncio.wait((task,), timeout=timeout_s)
        if not task.done():
            raise late(f"no answer within timeout={timeout_s * 1000:.0f} ms")
        return task.result()

    async def _returned(self, place: Key, written: WriteResult, request_headers: Headers) -> Reply:
        """The answer to a write with returnbody=true: as to a GET. A value too large to be returned by the write is
        read."""
        try:
            payload = written.payload or await self._kv.get(place, Isolation.COMMITTED)
        except Retryable as error:
            # As a refusal it would say that nothing was written.
            raise OutcomeUnknown(f"written, but what the key holds now cannot be read: {error}") from error
        reply = NOT_FOUND
        if payload is not None:
            reply = render_object(payload, None, request_headers, self._time.wall_ms() // 1000)
        if written.leader:
            reply = self._from_leader(reply, written.leader)
        return Reply(reply.status, [*reply.headers, _REPEATED], reply.body) if written.repeated else reply

    def _from_leader(self, reply: Reply, leader: str) -> Reply:
        """`reply`, which node `leader` gave, with the address at which it serves clients."""
        return Reply(reply.status, [*reply.headers, *leader_headers(self._addresses, leader)], reply.body)

    def _bad_key(self) -> RequestRefused:
        return RequestRefused(
            400, "bad-key", f"bucket and key must have 1 to {self._key_limit} bytes (limits.key_size)"
        )


async def _within_span(write: Coroutine[Any, Any, WriteResult], span: WrittenSpan) -> WriteResult:
    error = "cancelled"
    try:
        written = await write
        error = ""
    except IsthmusError as refused:
        error = refused.reason
        raise
    finally:
        span.end(error)
    return written


def _check_content_type(content_type: bytes) -> None:
    """Check the content type of a write. Raises RequestRefused when it is missing or malformed."""
    if not content_type:
        raise RequestRefused(400, "no-content-type", "a write needs a Content-Type header")
    check_content_type(content_type)


def _content(value: bytes, headers: ObjectHeaders) -> Content:
    _, _, content_type, content_encoding, metadata, links, indexes, _, _ = headers
    return Content(value, content_type, content_encoding, metadata, links, indexes)


def _written_headers(written: WriteResult) -> Headers:
    if not written.repeated:
        return [vclock_header(written.clock)]
    return [vclock_header(written.clock), _REPEATED] if written.clock else [_REPEATED]

"""POST /queues/Q/fetch: a sink of another cluster asks for the next batch and acknowledges the one before;
/queues/Q/object: for one object that it has not kept. GET /queuename/Q: a Riak takes one change out of a queue.

Moves bodies only; what is in them is `queues.wire`'s, what is given out is decided in `queues.service`. A long poll
ends when its client goes, so that no batch is leased to nobody, and at once when the node stops. The usual fetch is
answered by its connection itself (`fast_connection`), any other by way of ASGI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

from isthmus.node.client_api.object_headers import OCTETS
from isthmus.node.http.application import MSGPACK, SMALL_BODY_BYTES, HttpApplication, Request, json_reply
from isthmus.node.http.fast_connection import RawRequest
from isthmus.node.http.responses import Headers, Reply, RequestRefused
from isthmus.node.http.router import decode_segment, method_not_allowed
from isthmus.queues.long_poll import Until
from isthmus.queues.riak_format import EMPTY_QUEUE, encode_answer
from isthmus.queues.service import RIAK_NAME
from isthmus.queues.window_rules import Item
from isthmus.queues.wire import (
    ASKING_BYTES_MAX,
    OFF_LOOP_FROM_BYTES,
    REQUEST_BYTES_MAX,
    ZSTD,
    FetchReply,
    FetchRequest,
    ObjectReply,
    ObjectRequest,
    decode_asking,
    decode_request,
    encode_object_reply,
    encode_reply,
)
from isthmus.repl.model.errors import NotReady, Overloaded

FETCHES_MAX: Final = 1024
"""Fetches that wait or run at once; one more is refused with 503. A hundred sink nodes of eight workers fit; each
waiting one holds a task and a connection, about 40 KB."""

FETCH_ROUTE: Final = "/queues/{queue}/fetch"

PROMPT_BYTES_MAX: Final = 4_096
"""Largest body of a fetch that its connection answers itself: several times the usual one. Bodies up to here are not
counted as held; with FETCHES_MAX they come to 4 MB."""

_HEADERS: Final[Headers] = [(b"content-type", MSGPACK)]


RIAK_ROUTE: Final = "/queuename/{queue}"

INTERNAL: Final = "internal"
AAE_HASH: Final = "internal_aaehash"
"""`object_format` of Riak's fetch: with the second the answer also has hashes that Riak's trees hold."""

_RIAK_HEADERS: Final[Headers] = [(b"content-type", OCTETS), (b"cache-control", b"no-store")]

_CUT_SHORT: Final = "the connection was closed for sending while the fetch waited"


class Fetching(Protocol):
    """What this room needs of the source side (`queues.service.QueueService`)."""

    async def fetch(self, queue: str, request: FetchRequest, until: Until) -> FetchReply:
        """Acknowledge, then the next batch, waiting for it by `until`. Raises UnknownQueue, OwnedByOther, OwnCluster,
        Retryable. When it is cancelled while it waits, or `until` raises, nothing is given out. It may run in no task,
        so it awaits futures alone."""

    def is_for_riak(self, name: str) -> bool:
        """Whether the queue has `riak_fetch`. Raises UnknownQueue."""

    async def pop(self, name: str, render: Callable[[Item], Awaitable[bytes]]) -> bytes | None:
        """Take one change out of such a queue for good, rendered; None when there is nothing to give now. What `render`
        raises puts it back. Raises UnknownQueue, OwnedByOther, Retryable."""


class ByReference(Protocol):
    """What gives single objects (`queues.admin.QueueActs`)."""

    async def object_of(self, name: str, wanted: ObjectRequest) -> ObjectReply:
        """The object of a key, for the owner of the queue. Raises UnknownQueue, OwnedByOther, BadInput, Retryable."""

    def link(self, name: str) -> dict[str, Any]:
        """What a sink would want to know of a queue before it fetches. Raises UnknownQueue."""


class QueueRoutes:
    """The routes of the client face that other clusters use. With `certified`, who asks must have shown a certificate
    of the cluster that it says it is."""

    def __init__(
        self, queues: Fetching, objects: ByReference, face: HttpApplication, *, certified: bool = False
    ) -> None:
        self._queues = queues
        self._objects = objects
        self._budget = face.budget
        self._certified = certified
        self._stopping = False
        self._waits: set[asyncio.Future[None]] = set()
        """What long polls wait for."""
        self._polls: dict[int, asyncio.Future[None]] = {}
        """Those of fetches that their connections answer, by the request's identity."""
        self._left: set[int] = set()
        """Such requests whose client has gone while they wait."""
        self.running = 0
        face.router.add("POST", FETCH_ROUTE, self._fetch)
        face.router.add("POST", "/queues/{queue}/object", self._object)
        face.router.add("GET", "/queues/{queue}/link", self._link)
        face.router.add("GET", RIAK_ROUTE, self._pop)

    def stop(self) -> None:
        """End all long polls; every fetch from now on is refused."""
        self._stopping = True
        for waiter in self._waits:
            waiter.cancel()

    async def _fetch(self, request: Request) -> Reply:
        """The next batch of a queue, for a sink of another cluster."""
        wanted = decode_request(await request.body(REQUEST_BYTES_MAX, "a fetch's limit"))
        queue = request.text("queue")
        self._check_certificate(request, wanted.cluster_name)
        return await self._fetched(queue, wanted, lambda waiter: self._wait(waiter, request))

    def fits(self, request: RawRequest) -> bool:
        """Whether `fetch` may answer it: usual, and nothing of its connection must be looked at."""
        usual = request.method == "POST" and len(request.body) <= PROMPT_BYTES_MAX and not request.query_string
        return usual and not self._certified

    async def fetch(self, request: RawRequest) -> Reply:
        """As `_fetch`, of a request that `fits`. Awaits futures alone: see `quick.FastPathApp`."""
        try:
            name = decode_segment(request.raw_path.split(b"/")[2]).decode()
        except UnicodeDecodeError:
            raise RequestRefused(400, "bad-path", "the queue in the URL is not UTF-8") from None
        return await self._fetched(name, decode_request(request.body), lambda waiter: self._poll(waiter, request))

    def left(self, request: RawRequest) -> None:
        """The client of a fetch that is answered by `fetch` has gone: it waits no more."""
        waiter = self._polls.get(id(request))
        if waiter is not None:
            self._left.add(id(request))
            waiter.cancel()

    async def _fetched(self, queue: str, wanted: FetchRequest, until: Until) -> Reply:
        self._check_room()
        self.running += 1
        try:
            reply = await self._queues.fetch(queue, wanted, until)
        finally:
            self.running -= 1
        if wanted.compress != ZSTD or sum(len(item[8]) for item in reply.items) < OFF_LOOP_FROM_BYTES:
            return Reply(200, _HEADERS, encode_reply(reply, wanted.compress))
        return Reply(200, _HEADERS, await asyncio.to_thread(encode_reply, reply, wanted.compress))

    def _check_room(self) -> None:
        if self._stopping:
            raise NotReady("this node is stopping")
        if self.running >= FETCHES_MAX:
            raise Overloaded(f"{FETCHES_MAX} fetches wait on this node, which is its limit")

    async def _pop(self, request: Request) -> Reply:
        """The next change of a queue with `riak_fetch`, as Riak's fetch answers it; the queue forgets the change."""
        if request.method != "GET":
            raise method_not_allowed(request.method, ["GET", "POST"])
        queue, object_format = request.text("queue"), request.query.get("object_format", INTERNAL)
        if not self._queues.is_for_riak(queue):
            sentence = (
                f"queue {queue} has no riak_fetch: Riak's fetch forgets what it hands out. Sinks of Isthmus POST "
                f"/queues/{queue}/fetch; a Riak needs a queue of its own with riak_fetch = true"
            )
            raise RequestRefused(501, "not-implemented", sentence)
        if object_format == AAE_HASH:
            sentence = (
                f"{AAE_HASH} is not answered: the hashes of Riak's trees are not computed here; ask for {INTERNAL}"
            )
            raise RequestRefused(501, "not-implemented", sentence)
        if object_format != INTERNAL:
            raise RequestRefused(
                400, "bad-query", f"object_format {object_format[:64]!r} is unknown: {INTERNAL} is answered"
            )
        self._check_certificate(request, RIAK_NAME)
        self._check_room()
        self.running += 1
        try:
            body = await self._queues.pop(queue, self._riak_answer)
        finally:
            self.running -= 1
        return Reply(200, _RIAK_HEADERS, EMPTY_QUEUE if body is None else body)

    async def _riak_answer(self, item: Item) -> bytes:
        """Encode a change for a Riak. Raises Overloaded when the answer could not be sent: the change would be lost."""
        large = len(item[8]) >= OFF_LOOP_FROM_BYTES
        body = await asyncio.to_thread(encode_answer, item) if large else encode_answer(item)
        if len(body) > SMALL_BODY_BYTES and self._budget.used_bytes + len(body) > self._budget.limit_bytes:
            raise self._budget.overloaded()
        return body

    async def _object(self, request: Request) -> Reply:
        """One object by its key, for the sink that a queue belongs to."""
        wanted = decode_asking(await request.body(ASKING_BYTES_MAX, "the limit of a request for an object"))
        self._check_certificate(request, wanted.cluster_name)
        reply = await self._objects.object_of(request.text("queue"), wanted)
        return Reply(200, _HEADERS, encode_object_reply(reply))

    async def _link(self, request: Request) -> Reply:
        """What a queue offers, to whom, and what a sink must share with it; nothing of it changes."""
        return json_reply(self._objects.link(request.text("queue")))

    def _check_certificate(self, request: Request, cluster_name: str) -> None:
        if self._certified and cluster_name not in {name.cluster for name in request.peer_names}:
            names = ", ".join(sorted(name.uri() for name in request.peer_names)) or "no node"
            sentence = f"a sink of cluster {cluster_name[:64]!r} shows a certificate of it; this one names {names}"
            raise RequestRefused(403, "wrong-certificate", sentence)

    async def _poll(self, waiter: asyncio.Future[None], request: RawRequest) -> None:
        """As `_wait`, of a request that its connection answers."""
        place = id(request)
        self._waits.add(waiter)
        self._polls[place] = waiter
        try:
            await waiter
        except asyncio.CancelledError:
            if place in self._left:
                raise RequestRefused(400, "cut-short", _CUT_SHORT) from None
            if self._stopping:
                raise NotReady("this node is stopping") from None
            raise
        finally:
            self._waits.discard(waiter)
            self._left.discard(place)
            del self._polls[place]

    async def _wait(self, waiter: asyncio.Future[None], request: Request) -> None:
        """Until `waiter` is done; raises when the client goes first, or this node stops."""
        gone = asyncio.ensure_future(request.gone())
        gone.add_done_callback(lambda _: waiter.cancel())
        self._waits.add(waiter)
        try:
            await asyncio.wait((waiter,))
        finally:
            self._waits.discard(waiter)
            has_gone = gone.done()
            gone.cancel()
        if waiter.cancelled():
            if has_gone:
                raise RequestRefused(400, "cut-short", _CUT_SHORT)
            raise NotReady("this node is stopping")

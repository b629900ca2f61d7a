"""Fetches from source queues by sinks of other clusters, and by a Riak.

POST /queues/Q/fetch: the next batch, with the acknowledgement of the one before; /queues/Q/object: one object that the
sink has not kept; /queues/Q/counters: what both clusters hold of each other's actors. GET /queuename/Q: a Riak removes
one change from a queue.

`queues.wire` has the bodies, `queues.service` decides. A long poll ends when its client closes, so that no batch is
leased in vain, and at once when the node stops. A usual fetch takes the fast path (`fast_connection`), any other goes
by ASGI.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, Protocol

from isthmus.node.client_api.object_headers import OCTETS
from isthmus.node.http.application import MSGPACK, SMALL_BODY_BYTES, HttpApplication, Request, json_reply
from isthmus.node.http.fast_connection import RawRequest
from isthmus.node.http.responses import Headers, Reply, RequestRefused
from isthmus.node.http.router import decode_segment, method_not_allowed
from isthmus.queues.counters_wire import BYTES_MAX as COUNTERS_BYTES_MAX
from isthmus.queues.counters_wire import HeldCountersMessage, decode_counters, encode_counters
from isthmus.queues.long_poll import Until
from isthmus.queues.riak_format import encode_answer
from isthmus.queues.riak_origin import RIAK_NAME
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
from isthmus.repl.ordered_set import OrderedSet
from isthmus.repl.riak.queue_answers import EMPTY_QUEUE

FETCHES_MAX: Final = 1024
"""Fetches that wait or run at once; more are refused with 503. A hundred sink nodes of eight workers fit; each waiting
one holds a task and a connection, about 40 KB."""

FETCH_ROUTE: Final = "/queues/{queue}/fetch"

PROMPT_BYTES_MAX: Final = 4_096
"""Largest body of a fetch on the fast path: several times the usual one. Bodies up to here are not counted in the
budget; with FETCHES_MAX they come to 4 MB."""

_HEADERS: Final[Headers] = [(b"content-type", MSGPACK)]


RIAK_ROUTE: Final = "/queuename/{queue}"

INTERNAL: Final = "internal"
AAE_HASH: Final = "internal_aaehash"
"""`object_format` of Riak's fetch: with the second the answer also has segment and hash of Riak's trees."""

_RIAK_HEADERS: Final[Headers] = [(b"content-type", OCTETS), (b"cache-control", b"no-store")]

_CUT_SHORT: Final = "the connection was closed for sending while the fetch waited"


class QueueFetches(Protocol):
    """The fetches of source queues (`queues.service.QueueService`)."""

    async def fetch(self, queue: str, request: FetchRequest, until: Until) -> FetchReply:
        """Acknowledge, then return the next batch; `until` waits for it. Raises UnknownQueue, OwnedByOther, OwnCluster,
        Retryable. When it is cancelled while it waits, or `until` raises, nothing is leased. It may run in no task, so
        it awaits futures only."""

    def is_for_riak(self, name: str) -> bool:
        """Whether the queue has `riak_fetch`. Raises UnknownQueue."""

    async def pop(self, name: str, render: Callable[[Item], Awaitable[bytes]], until: Until) -> bytes | None:
        """Remove one change from such a queue for good, rendered; None when there is none, and none came for some ms,
        during which `until` waits. If `render` raises, the change goes back. Raises UnknownQueue, OwnedByOther,
        Retryable, and what `until` raises."""


class QueueObjects(Protocol):
    """Single objects and links of a queue (`queues.admin.QueueActs`)."""

    async def object_of(self, name: str, wanted: ObjectRequest) -> ObjectReply:
        """The object of a key, for the owner of the queue. Raises UnknownQueue, OwnedByOther, BadInput, Retryable."""

    def counters(self, name: str, message: HeldCountersMessage) -> HeldCountersMessage:
        """What a cluster holds of ours, and the answer. Raises UnknownQueue, OwnedByOther."""

    def link(self, name: str) -> dict[str, Any]:
        """The facts about a queue that a sink needs before it fetches. Raises UnknownQueue."""


class QueueRoutes:
    """The routes of other clusters. With `certified` a request must show a certificate of the cluster that it names."""

    def __init__(
        self, queues: QueueFetches, objects: QueueObjects, api: HttpApplication, *, certified: bool = False
    ) -> None:
        self._queues = queues
        self._objects = objects
        self._budget = api.budget
        self._certified = certified
        self._stopping = False
        self._waits: OrderedSet[asyncio.Future[None]] = OrderedSet()
        """The futures of long polls."""
        self._polls: dict[int, asyncio.Future[None]] = {}
        """The futures of fetches on the fast path, by the request's identity."""
        self._left: set[int] = set()
        """Requests on the fast path whose client has closed the connection while they wait."""
        self.running = 0
        api.router.add("POST", FETCH_ROUTE, self._fetch)
        api.router.add("POST", "/queues/{queue}/object", self._object)
        api.router.add("POST", "/queues/{queue}/counters", self._counters)
        api.router.add("GET", "/queues/{queue}/link", self._link)
        api.router.add("GET", RIAK_ROUTE, self._pop)

    def stop(self) -> None:
        """End all long polls; every later fetch is refused."""
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
        """Whether `fetch` may answer it: a usual request that needs nothing of its connection."""
        usual = request.method == "POST" and len(request.body) <= PROMPT_BYTES_MAX and not request.query_string
        return usual and not self._certified

    async def fetch(self, request: RawRequest) -> Reply:
        """As `_fetch`, for a request that `fits`. It awaits futures only: see FastPathApp."""
        try:
            name = decode_segment(request.raw_path.split(b"/")[2]).decode()
        except UnicodeDecodeError:
            raise RequestRefused(400, "bad-path", "the queue in the URL is not UTF-8") from None
        return await self._fetched(name, decode_request(request.body), lambda waiter: self._poll(waiter, request))

    def left(self, request: RawRequest) -> None:
        """The client of a fetch that `fetch` answers has closed the connection: end its wait."""
        waiter = self._polls.get(id(request))
        if waiter is not None:
            self._left.add(id(request))
            waiter.cancel()

    async def _fetched(self, queue: str, wanted: FetchRequest, until: Until) -> Reply:
        self._check_fetch_limit()
        self.running += 1
        try:
            reply = await self._queues.fetch(queue, wanted, until)
        finally:
            self.running -= 1
        if wanted.compress != ZSTD or sum(len(item[8]) for item in reply.items) < OFF_LOOP_FROM_BYTES:
            return Reply(200, _HEADERS, encode_reply(reply, wanted.compress))
        return Reply(200, _HEADERS, await asyncio.to_thread(encode_reply, reply, wanted.compress))

    def _check_fetch_limit(self) -> None:
        if self._stopping:
            raise NotReady("this node is stopping")
        if self.running >= FETCHES_MAX:
            raise Overloaded(f"{FETCHES_MAX} fetches wait on this node, which is its limit")

    async def _pop(self, request: Request) -> Reply:
        """The next change of a queue with `riak_fetch`, in Riak's form; the queue forgets the change."""
        if request.method != "GET":
            raise method_not_allowed(request.method, ["GET", "POST"])
        queue, object_format = request.text("queue"), request.query.get("object_format", INTERNAL)
        if not self._queues.is_for_riak(queue):
            sentence = (
                f"queue {queue} has no riak_fetch: Riak's fetch forgets what it hands out. Sinks of Isthmus POST "
                f"/queues/{queue}/fetch; a Riak needs a queue of its own with riak_fetch = true"
            )
            raise RequestRefused(501, "not-implemented", sentence)
        if object_format not in (INTERNAL, AAE_HASH):
            raise RequestRefused(
                400,
                "bad-query",
                f"object_format {object_format[:64]!r} is unknown: {INTERNAL} and {AAE_HASH} are answered",
            )
        self._check_certificate(request, RIAK_NAME)
        self._check_fetch_limit()
        await request.body()  # there is none; behind it the client's leaving is noticed
        self.running += 1
        try:
            render = partial(self._riak_answer, hashes=object_format == AAE_HASH)
            body = await self._queues.pop(queue, render, lambda waiter: self._wait(waiter, request))
        finally:
            self.running -= 1
        return Reply(200, _RIAK_HEADERS, EMPTY_QUEUE if body is None else body)

    async def _riak_answer(self, item: Item, *, hashes: bool) -> bytes:
        """Encode a change for a Riak, with the hashes of its trees or without. Raises Overloaded when the answer could
        not be sent: the change would be lost."""
        large = len(item[8]) >= OFF_LOOP_FROM_BYTES
        encode = partial(encode_answer, item, hashes=hashes)
        body = await asyncio.to_thread(encode) if large else encode()
        if len(body) > SMALL_BODY_BYTES and self._budget.used_bytes + len(body) > self._budget.limit_bytes:
            raise self._budget.overloaded()
        return body

    async def _object(self, request: Request) -> Reply:
        """One object by its key, for the sink that owns the queue."""
        wanted = decode_asking(await request.body(ASKING_BYTES_MAX, "the limit of a request for an object"))
        self._check_certificate(request, wanted.cluster_name)
        reply = await self._objects.object_of(request.text("queue"), wanted)
        return Reply(200, _HEADERS, encode_object_reply(reply))

    async def _counters(self, request: Request) -> Reply:
        """What a cluster that fetches holds of this one's actors, and what this one holds of its own (R-ACTOR)."""
        message = decode_counters(await request.body(COUNTERS_BYTES_MAX, "the limit of a message of counters"))
        self._check_certificate(request, message.name)
        return Reply(200, _HEADERS, encode_counters(self._objects.counters(request.text("queue"), message)))

    async def _link(self, request: Request) -> Reply:
        """The queue's offer, its owner, and what a sink must share with it; nothing changes."""
        return json_reply(self._objects.link(request.text("queue")))

    def _check_certificate(self, request: Request, cluster_name: str) -> None:
        if self._certified and cluster_name not in {name.cluster for name in request.peer_names}:
            names = ", ".join(sorted(name.uri() for name in request.peer_names)) or "no node"
            sentence = f"a sink of cluster {cluster_name[:64]!r} shows a certificate of it; this one names {names}"
            raise RequestRefused(403, "wrong-certificate", sentence)

    async def _poll(self, waiter: asyncio.Future[None], request: RawRequest) -> None:
        """As `_wait`, of a request on the fast path."""
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
        """Return when `waiter` is done; raise when the client closes first, or this node stops."""
        gone = asyncio.ensure_future(request.disconnected())
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

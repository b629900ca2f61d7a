"""POST /queues/Q/fetch: a sink of another cluster asks for the next batch and acknowledges the one before.

Moves bodies only; what is in them is `queues.wire`'s, what is given out is decided in `queues.registry`. A long poll
ends when its client goes, so that no batch is leased to nobody, and at once when the node stops.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from node.http.asgi import MSGPACK, Face, Request
from node.http.statuses import Headers, Refused, Reply
from queues.wire import (
    OFF_LOOP_FROM_BYTES,
    REQUEST_BYTES_MAX,
    ZSTD,
    FetchReply,
    FetchRequest,
    decode_request,
    encode_reply,
)
from repl.model.errors import NotReady, Overloaded

FETCHES_MAX: Final = 1024
"""Fetches that wait or run at once; one more is refused with 503. A hundred sink nodes of eight workers fit; each
waiting one holds a task and a connection, about 40 KB."""

_HEADERS: Final[Headers] = [(b"content-type", MSGPACK)]


class Fetching(Protocol):
    """What this room needs of the source side (`queues.registry.SourceQueues`)."""

    async def fetch(self, queue: str, request: FetchRequest) -> FetchReply:
        """Acknowledge, then the next batch. Raises UnknownQueue, OwnedByOther, OwnCluster, Retryable. When it is
        cancelled while it waits, nothing is given out."""


class QueueRoutes:
    """The route of the client face that other clusters use. With `certified`, who fetches must have shown a certificate
    of the cluster that it says it is."""

    def __init__(self, queues: Fetching, face: Face, *, certified: bool = False) -> None:
        self._queues = queues
        self._certified = certified
        self._stopping = asyncio.Event()
        self.running = 0
        face.router.add("POST", "/queues/{queue}/fetch", self._fetch)

    def stop(self) -> None:
        """End all long polls; every fetch from now on is refused."""
        self._stopping.set()

    async def _fetch(self, request: Request) -> Reply:
        """The next batch of a queue, for a sink of another cluster."""
        wanted = decode_request(await request.body(REQUEST_BYTES_MAX, "a fetch's limit"))
        queue = request.text("queue")
        if self._certified and wanted.cluster_name not in {name.cluster for name in request.peer_names}:
            names = ", ".join(sorted(name.uri() for name in request.peer_names)) or "no node"
            sentence = (
                f"a sink of cluster {wanted.cluster_name[:64]!r} shows a certificate of it; this one names {names}"
            )
            raise Refused(403, "wrong-certificate", sentence)
        if self._stopping.is_set():
            raise NotReady("this node is stopping")
        if self.running >= FETCHES_MAX:
            raise Overloaded(f"{FETCHES_MAX} fetches wait on this node, which is its limit")
        self.running += 1
        try:
            reply = await self._answer_or_end(queue, wanted, request)
        finally:
            self.running -= 1
        if wanted.compress != ZSTD or sum(len(item[8]) for item in reply.items) < OFF_LOOP_FROM_BYTES:
            return Reply(200, _HEADERS, encode_reply(reply, wanted.compress))
        return Reply(200, _HEADERS, await asyncio.to_thread(encode_reply, reply, wanted.compress))

    async def _answer_or_end(self, queue: str, wanted: FetchRequest, request: Request) -> FetchReply:
        """The answer, unless the client or this node goes first."""
        answer = asyncio.ensure_future(self._queues.fetch(queue, wanted))
        gone = asyncio.ensure_future(request.gone())
        stopping = asyncio.ensure_future(self._stopping.wait())
        waits = (answer, gone, stopping)
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if answer.done() and not answer.cancelled():
            return answer.result()
        if gone.done() and not gone.cancelled():
            raise Refused(400, "cut-short", "the connection was closed for sending while the fetch waited")
        raise NotReady("this node is stopping")

"""Listings of keys and of buckets, whole or streamed, in bounded memory.

Both forms are sent as they are read, so a listing is never in memory as a whole, and ends when its client closes the
connection. Names that are not UTF-8 are percent-encoded; `encoding=percent` encodes all names, which is exact.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import structlog

from isthmus.node.http.application import JSON, HttpApplication, Request, Stream
from isthmus.node.http.object_query import timeout_of
from isthmus.node.http.responses import RequestRefused, explanation
from isthmus.node.http.router import encode_segment
from isthmus.repl.model.errors import IsthmusError, Overloaded, TimedOut
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.ports import KeyValue

log = structlog.get_logger(__name__)


class ListingRoutes:
    """GET .../buckets/B/keys?keys=true|stream and .../buckets?buckets=true|stream, with and without a type."""

    def __init__(self, kv: KeyValue, limit: int, api: HttpApplication) -> None:
        """`limit`: listings that run at once; more are refused with 503."""
        self._kv = kv
        self._limit = limit
        self.running = 0
        for prefix in ("", "/types/{type}"):
            api.router.add("GET", prefix + "/buckets", self.buckets)
            api.router.add("GET", prefix + "/buckets/{bucket}/keys", self.keys)

    async def keys(self, request: Request) -> Stream:
        """The keys of a bucket."""
        bucket = request.params["bucket"]
        if not bucket:
            raise RequestRefused(400, "bad-key", "the bucket must not be empty")
        mode = _mode(request, "keys")
        return await self._listing("keys", mode, request, self._kv.list_keys(_type(request), bucket))

    async def buckets(self, request: Request) -> Stream:
        """The buckets of a type."""
        mode = _mode(request, "buckets")
        return await self._listing("buckets", mode, request, self._kv.list_buckets(_type(request)))

    async def _listing(self, name: str, mode: str, request: Request, batches: AsyncIterator[list[bytes]]) -> Stream:
        encoding = request.query.get("encoding", "auto")
        if encoding not in ("auto", "percent"):
            raise RequestRefused(400, "bad-query", f"encoding={encoding[:40]} is unknown: percent, or leave it out")
        timeout_s = timeout_of(request.query)
        if timeout_s is not None:
            batches = _within(timeout_s, batches)
        if self.running >= self._limit:
            raise Overloaded(f"{self._limit} listings are running on this node, its limit (limits.listings)")
        self.running += 1
        try:
            # The first batch is read before the status is sent, so that a refusal has its own status.
            first: list[bytes] = await anext(batches, [])
        except BaseException:
            self.running -= 1
            raise
        show = _percent if encoding == "percent" else _text
        chunks = (_streamed if mode == "stream" else _whole)(name, first, batches, show)

        async def close() -> None:
            self.running -= 1
            await chunks.aclose()
            stop = getattr(batches, "aclose", None)
            if stop is not None:
                await stop()

        return Stream(200, [(b"content-type", JSON)], chunks, close)


def _mode(request: Request, name: str) -> str:
    mode = request.query.get(name)
    if mode not in ("true", "stream"):
        raise RequestRefused(
            400, "bad-query", f"a listing reads every key: ask for it with ?{name}=true or ?{name}=stream"
        )
    return mode


def _type(request: Request) -> bytes:
    return request.params.get("type", DEFAULT_BUCKET_TYPE)


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return _percent(raw)


def _percent(raw: bytes) -> str:
    return encode_segment(raw).decode("ascii")


Batches = AsyncIterator[list[bytes]]
Show = Callable[[bytes], str]


async def _within(timeout_s: float, batches: Batches) -> AsyncGenerator[list[bytes], None]:
    """`batches`, ended once they have taken `timeout_s` together, including the client's reading."""
    end_s = asyncio.get_running_loop().time() + timeout_s
    try:
        while True:
            async with asyncio.timeout_at(end_s):
                batch = await anext(batches, None)
            if batch is None:
                return
            yield batch
    except TimeoutError:
        raise TimedOut(f"the listing was not done within timeout={timeout_s * 1000:.0f} ms") from None
    finally:
        stop = getattr(batches, "aclose", None)
        if stop is not None:
            await stop()


async def _whole(name: str, first: list[bytes], rest: Batches, show: Show) -> AsyncGenerator[bytes, None]:
    """One JSON object, `{"keys":[...]}`, in as many pieces as there are batches."""
    opening = f'{{"{name}":['.encode()
    yield opening + _array(first, show)[1:-1]
    separator = b"," if first else b""
    async for batch in rest:
        if batch:
            yield separator + _array(batch, show)[1:-1]
            separator = b","
    yield b"]}"


async def _streamed(name: str, first: list[bytes], rest: Batches, show: Show) -> AsyncGenerator[bytes, None]:
    """One JSON object for each batch; an empty one when there is no name, and `error` where it fails, as in Riak."""
    yield f'{{"{name}":'.encode() + _array(first, show) + b"}"
    try:
        async for batch in rest:
            yield f'{{"{name}":'.encode() + _array(batch, show) + b"}"
    except IsthmusError as error:
        log.warning("http.listing_failed", of=name, reason=error.reason, error=str(error))
        yield json.dumps({"error": explanation(error), "reason": error.reason}).encode()


def _array(batch: list[bytes], show: Show) -> bytes:
    return json.dumps([show(raw) for raw in batch], separators=(",", ":")).encode()

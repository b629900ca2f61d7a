"""Listings of keys and of buckets, whole or streamed, in bounded memory.

Both forms are sent as they are read, so a listing is never in memory as a whole, and ends when its client closes the
connection. With a prefix, a limit or a continuation, names are in order, and a page of them ends with the token of the
next one. Names that are not UTF-8 are percent-encoded; `encoding=percent` encodes all names, which is exact.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import NamedTuple

import structlog

from isthmus.node.client_api.continuation import continuation_token, name_before
from isthmus.node.http.answer_limits import PAGE_NAMES_MAX
from isthmus.node.http.application import HttpApplication, Request, Stream
from isthmus.node.http.object_query import timeout_of
from isthmus.node.http.responses import JSON, RequestRefused, error_document, explanation
from isthmus.node.http.router import encode_segment
from isthmus.repl.model.errors import IsthmusError, Overloaded, TimedOut
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.ports import KeyValue

log = structlog.get_logger(__name__)


class _Paging(NamedTuple):
    """A client's request for an ordered listing. `listing` names the listing for its tokens."""

    listing: tuple[bytes, ...]
    prefix: bytes
    after: bytes
    limit: int | None


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
        paging = _paging(request, "keys", bucket)
        if paging is not None:
            return await self._page("keys", mode, request, bucket, paging)
        return await self._listing("keys", mode, request, self._kv.list_keys(_type(request), bucket), None)

    async def buckets(self, request: Request) -> Stream:
        """The buckets of a type."""
        mode = _mode(request, "buckets")
        paging = _paging(request, "buckets", b"")
        if paging is not None:
            return await self._page("buckets", mode, request, None, paging)
        return await self._listing("buckets", mode, request, self._kv.list_buckets(_type(request)), None)

    async def _page(self, name: str, mode: str, request: Request, bucket: bytes | None, paging: _Paging) -> Stream:
        wanted = None if paging.limit is None else paging.limit + 1  # one more says whether there is a next page
        batches = self._kv.list_in_order(_type(request), bucket, paging.prefix, paging.after, wanted)
        return await self._listing(name, mode, request, batches, paging)

    async def _listing(
        self, name: str, mode: str, request: Request, batches: AsyncIterator[list[bytes]], paging: _Paging | None
    ) -> Stream:
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
        page = _Page(batches, paging)
        chunks = (_streamed if mode == "stream" else _whole)(name, page.cut(first), page, show)

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


def _paging(request: Request, kind: str, bucket: bytes) -> _Paging | None:
    """The parameters of an ordered listing; None for Riak's, which has no order. Raises RequestRefused (400)."""
    query = request.query
    if query.keys().isdisjoint(("prefix", "limit", "continuation")):
        return None
    prefix = query.get("prefix", "").encode(errors="surrogateescape")
    listing = (kind.encode(), _type(request), bucket, prefix)
    token = query.get("continuation")
    limit = request.number("limit", 0, 1, PAGE_NAMES_MAX) or None
    return _Paging(listing, prefix, b"" if token is None else name_before(listing, token), limit)


class _Page:
    """The batches of a listing behind its first one, as many names as its client wants; and then the token."""

    def __init__(self, batches: Batches, paging: _Paging | None) -> None:
        self._batches = batches
        self._paging = paging
        self._left = None if paging is None else paging.limit
        self._last = b""
        self.continuation = ""
        """The token of the next page, once all batches are read; empty if there is none."""

    def cut(self, batch: list[bytes]) -> list[bytes]:
        """The names of a batch that belong to the page."""
        left = self._left
        if left is None:
            return batch
        kept = batch[:left]
        self._left = left - len(kept)
        if kept:
            self._last = kept[-1]
        if len(kept) < len(batch):
            assert self._paging is not None
            self.continuation = continuation_token(self._paging.listing, self._last)
        return kept

    def __aiter__(self) -> AsyncIterator[list[bytes]]:
        return self

    async def __anext__(self) -> list[bytes]:
        return self.cut(await anext(self._batches))


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


async def _whole(name: str, first: list[bytes], page: _Page, show: Show) -> AsyncGenerator[bytes, None]:
    """One JSON object, `{"keys":[...]}`, in as many pieces as there are batches."""
    opening = f'{{"{name}":['.encode()
    yield opening + _array(first, show)[1:-1]
    separator = b"," if first else b""
    async for batch in page:
        if batch:
            yield separator + _array(batch, show)[1:-1]
            separator = b","
    yield b'],"continuation":"%b"}' % page.continuation.encode() if page.continuation else b"]}"


async def _streamed(name: str, first: list[bytes], page: _Page, show: Show) -> AsyncGenerator[bytes, None]:
    """One JSON object for each batch; an empty one when there is no name, and `error` where it fails, as in Riak. One
    without names has the token of the next page."""
    yield f'{{"{name}":'.encode() + _array(first, show) + b"}"
    try:
        async for batch in page:
            if batch or page.continuation == "":
                yield f'{{"{name}":'.encode() + _array(batch, show) + b"}"
        if page.continuation:
            yield f'{{"{name}":[],"continuation":"{page.continuation}"}}'.encode()
    except IsthmusError as error:
        log.warning("http.listing_failed", of=name, reason=error.reason, error=str(error))
        yield error_document(explanation(error), error.reason).strip()


def _array(batch: list[bytes], show: Show) -> bytes:
    return json.dumps([show(raw) for raw in batch], separators=(",", ":")).encode()

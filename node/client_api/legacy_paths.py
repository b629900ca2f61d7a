"""Riak's first paths, `/riak/B` and `/riak?buckets=true`, which old programs still use; only of the default type.

They are other names of newer paths, whose answers are combined here. `/riak/B/K` is an object (`application`), POST to
`/riak/B` creates a key (`objects`).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from isthmus.node.client_api.listings import ListingRoutes
from isthmus.node.http.application import HttpApplication, Request, Stream
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import encode_segment


class LegacyPaths:
    """GET /riak, GET and PUT /riak/B."""

    def __init__(self, listings: ListingRoutes, api: HttpApplication) -> None:
        self._listings = listings
        self._router = api.router
        api.router.add("GET", "/riak", listings.buckets)
        api.router.add("GET", "/riak/{bucket}", self._bucket)
        api.router.add("PUT", "/riak/{bucket}", self._props)

    async def _props(self, request: Request) -> Reply | Stream:
        """The bucket's properties, as in the answer to /buckets/B/props."""
        path = b"/buckets/" + encode_segment(request.params["bucket"]) + b"/props"
        return await self._router.match(request.method, path).handler(request)

    async def _bucket(self, request: Request) -> Reply | Stream:
        """Properties unless `props=false`, keys with `keys=true` or `stream`: one object, or properties first."""
        mode = request.query.get("keys", "false")
        if mode not in ("true", "stream"):
            return await self._props(request)
        listing = await self._listings.keys(request)
        if request.query.get("props", "true") == "false":
            return listing
        try:
            props = await self._props(request)
        except BaseException:
            await listing.close()
            raise
        assert isinstance(props, Reply)
        return listing._replace(chunks=_behind(props.body.strip(), listing.chunks, whole=mode == "true"))


async def _behind(props: bytes, chunks: AsyncIterator[bytes], *, whole: bool) -> AsyncGenerator[bytes, None]:
    """`{"props":...}` and then the listing; with `whole` both in one object."""
    if whole:
        yield props[:-1] + b"," + (await anext(chunks))[1:]
    else:
        yield props
    async for chunk in chunks:
        yield chunk

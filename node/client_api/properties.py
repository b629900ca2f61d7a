"""Properties over Riak's paths: /buckets/B/props, /types/T/buckets/B/props and /types/T/props, in Riak's JSON.

`{"props": {...}}` in and out. Which properties there are, and what a value may be, is `config.bucket_properties`'
affair; `/riak/B` is `legacy_paths`', which comes here.
"""

from __future__ import annotations

from typing import Any, Final, Protocol

from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import encode_segment
from isthmus.repl.controller.bucket_properties import PropertyScope
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE

BY: Final = "a client over HTTP"
"""Who is noted to have changed a property over these paths; `isthmus bucket set` says who it was."""


class BucketTypeProperties(Protocol):
    """Who knows properties (`node.services.properties`)."""

    def place(self, bucket_type: bytes, bucket: bytes | None) -> PropertyScope:
        """Whose properties they are. Raises UnknownBucketType, BadInput."""

    def shown(self, place: PropertyScope) -> dict[str, Any]:
        """All that counts for a place."""

    async def set(self, place: PropertyScope, wanted: dict[str, Any], by: str) -> None:
        """Set properties. Raises BadProperty, TooManyProperties, NotReady, OutcomeUnknown."""

    async def unset(self, place: PropertyScope, names: list[str]) -> list[str]:
        """Take properties back, all with no names."""


class PropertyRoutes:
    """GET, PUT and DELETE of a bucket's properties, GET and PUT of a bucket type's."""

    def __init__(self, office: BucketTypeProperties, face: HttpApplication) -> None:
        self._office = office
        for path in ("/buckets/{bucket}/props", "/types/{type}/buckets/{bucket}/props"):
            face.router.add("GET", path, self.shown)
            face.router.add("PUT", path, self.set)
            face.router.add("DELETE", path, self.reset)
        face.router.add("GET", "/types/{type}/props", self.shown)
        face.router.add("PUT", "/types/{type}/props", self.set)

    async def shown(self, request: Request) -> Reply:
        """What counts, whether it is set for the bucket, for its type, or for neither."""
        place = self._place(request)
        props = self._office.shown(place)
        if place.bucket is None:
            return json_reply({"props": {"active": True, **props}})
        return json_reply({"props": {"name": _text(place.bucket), **props}})

    async def set(self, request: Request) -> Reply:
        """Set the properties in the body; others stay as they are. 204."""
        place = self._place(request)
        body = await request.json()
        props = body.get("props") if isinstance(body, dict) else None
        if not isinstance(props, dict):
            raise RequestRefused(400, "bad-json", 'the body must be JSON of the form {"props": {"allow_mult": true}}')
        await self._office.set(place, props, BY)
        return Reply(204, [])

    async def reset(self, request: Request) -> Reply:
        """The bucket has no properties of its own any more. 204."""
        await self._office.unset(self._place(request), [])
        return Reply(204, [])

    def _place(self, request: Request) -> PropertyScope:
        return self._office.place(request.params.get("type", DEFAULT_BUCKET_TYPE), request.params.get("bucket"))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return encode_segment(raw).decode("ascii")

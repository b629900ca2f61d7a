"""Properties over Riak's paths: /buckets/B/props, /types/T/buckets/B/props and /types/T/props, in Riak's JSON.

`{"props": {...}}` in and out. `config.bucket_properties` defines the properties and their values. `/riak/B` is routed
by `legacy_paths`, which calls these handlers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import encode_segment
from isthmus.repl.controller.bucket_properties import PropertyScope
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE

BY: Final = "a client over HTTP"
"""The recorded author of a change over these paths; `isthmus bucket set` records the operator."""


class BucketTypeProperties(Protocol):
    """The node's properties (`node.services.properties`)."""

    def scope(self, bucket_type: bytes, bucket: bytes | None) -> PropertyScope:
        """The scope of a bucket type or a bucket. Raises UnknownBucketType, BadInput."""

    def shown(self, scope: PropertyScope) -> dict[str, Any]:
        """All properties in force for a scope."""

    def own(self, scope: PropertyScope) -> Mapping[str, Any]:
        """The properties that are set for the scope itself."""

    async def set(self, scope: PropertyScope, wanted: dict[str, Any], by: str) -> None:
        """Set properties. Raises BadProperty, TooManyProperties, NotReady, OutcomeUnknown."""

    async def unset(self, scope: PropertyScope, names: list[str]) -> list[str]:
        """Unset properties, all with no names."""


class PropertyRoutes:
    """GET, PUT and DELETE of a bucket's properties, GET and PUT of a bucket type's."""

    def __init__(self, properties: BucketTypeProperties, api: HttpApplication) -> None:
        self._properties = properties
        for path in ("/buckets/{bucket}/props", "/types/{type}/buckets/{bucket}/props"):
            api.router.add("GET", path, self.shown)
            api.router.add("PUT", path, self.set)
            api.router.add("DELETE", path, self.reset)
        api.router.add("GET", "/types/{type}/props", self.shown)
        api.router.add("PUT", "/types/{type}/props", self.set)

    async def shown(self, request: Request) -> Reply:
        """The properties in force, whether set for the bucket, for its type, or for neither."""
        scope = self._scope(request)
        props = self._properties.shown(scope)
        if scope.bucket is None:
            return json_reply({"props": {"active": True, **props}})
        return json_reply({"props": {"name": _text(scope.bucket), **props}})

    async def set(self, request: Request) -> Reply:
        """Set the properties in the body; others stay as they are. 204."""
        scope = self._scope(request)
        body = await request.json()
        props = body.get("props") if isinstance(body, dict) else None
        if not isinstance(props, dict):
            raise RequestRefused(400, "bad-json", 'the body must be JSON of the form {"props": {"allow_mult": true}}')
        with request.changing(lambda: self._properties.own(scope)):
            await self._properties.set(scope, props, BY)
        return Reply(204, [])

    async def reset(self, request: Request) -> Reply:
        """Unset all properties of the bucket. 204."""
        scope = self._scope(request)
        with request.changing(lambda: self._properties.own(scope)):
            await self._properties.unset(scope, [])
        return Reply(204, [])

    def _scope(self, request: Request) -> PropertyScope:
        return self._properties.scope(request.params.get("type", DEFAULT_BUCKET_TYPE), request.params.get("bucket"))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return encode_segment(raw).decode("ascii")

"""Properties of bucket types and buckets in the admin API: show with their origin, set, unset.

A bucket is percent-encoded in the path, as in the client API. `node.services.properties` checks and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import AuditedRequest, BodyHandler, DryRun, right
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router, encode_segment
from isthmus.node.services.container import NodeServices
from isthmus.node.services.properties import check_names
from isthmus.repl.controller.bucket_properties import PropertyScope


class SetPropertiesRequest(AuditedRequest, frozen=True, kw_only=True):
    """Set properties; others stay as they are."""

    props: Annotated[dict[str, Any], msgspec.Meta(min_length=1), right('an object, for instance {"allow_mult": false}')]
    dry_run: DryRun = False


class UnsetPropertiesRequest(AuditedRequest, frozen=True, kw_only=True):
    """Unset properties; all, when none is named."""

    names: Annotated[list[str], right('a list of texts, for instance ["allow_mult"]')] | None = None
    dry_run: DryRun = False


class PropertiesAdmin:
    """Routes over the properties of the cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/buckets", self.listed)
        for path in ("/admin/bucket-types/{type}/properties", "/admin/buckets/{type}/{bucket}/properties"):
            router.add("GET", path, self.shown)
            router.add("POST", path + "/set", BodyHandler(SetPropertiesRequest, self.set))
            router.add("POST", path + "/unset", BodyHandler(UnsetPropertiesRequest, self.unset))

    async def listed(self, _request: Request) -> Reply:
        """Every bucket that has properties of its own, with these properties."""
        scopes = self._services.properties.cache.settings.scopes
        found = sorted((p for p in scopes if p.bucket is not None), key=lambda p: (p.bucket_type, p.bucket or b""))
        return json_reply(
            {"buckets": [{**_named(scope), "props": {n: s.value for n, s in scopes[scope].items()}} for scope in found]}
        )

    async def shown(self, request: Request) -> Reply:
        """The properties in force for a bucket type or a bucket."""
        return self._answer(self._scope(request), "shown")

    async def set(self, request: Request, body: SetPropertiesRequest) -> Reply:
        """Set properties, or show what would be set."""
        scope = self._scope(request)
        if body.dry_run:
            self._services.properties.judged(body.props, self._services.properties.factor(scope))
            return self._answer(scope, "would be set")
        with request.changing(lambda: self._services.properties.own(scope)):
            await self._services.properties.set(scope, body.props, acting_user(body.by))
        return self._answer(scope, "set")

    async def unset(self, request: Request, body: UnsetPropertiesRequest) -> Reply:
        """Unset properties: those that are named, or all."""
        scope, names = self._scope(request), body.names or []
        if body.dry_run:
            check_names(names)
            return self._answer(scope, "would be unset")
        with request.changing(lambda: self._services.properties.own(scope)):
            removed = await self._services.properties.unset(scope, names)
        return self._answer(scope, "unset" if removed else "was not set")

    def _answer(self, scope: PropertyScope, outcome: str) -> Reply:
        return json_reply({"outcome": outcome, **_named(scope), "properties": self._services.properties.rows(scope)})

    def _scope(self, request: Request) -> PropertyScope:
        return self._services.properties.scope(request.params["type"], request.params.get("bucket"))


def _named(scope: PropertyScope) -> dict[str, Any]:
    bucket = None if scope.bucket is None else encode_segment(scope.bucket).decode("ascii")
    return {"bucket_type": scope.bucket_type, "bucket": bucket}

"""Properties of bucket types and buckets in the admin API: show with their origin, set, unset.

A bucket is percent-encoded in the path, as in the client API. `node.services.properties` checks and keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any

import msgspec

from isthmus.config.bucket_properties import PROPERTIES
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router, encode_segment
from isthmus.node.nouns.requests import AuditedRequest, DryRun, right
from isthmus.node.services.container import NodeServices
from isthmus.node.services.settings_query import nodes_behind, reads, settings_of_nodes
from isthmus.repl.controller.bucket_properties import PropertyScope, PropertySettings

Expected = Annotated[
    dict[str, bool | int | str],
    msgspec.Meta(description="The properties that are set for the bucket type or bucket itself, as the operator saw "
                 "them. The change is refused with 409 `changed-meanwhile` where one that it concerns is another by "
                 "now, or is set and missing here. Null: whatever is set."),
    right('an object, for instance {"allow_mult": false}'),
]  # fmt: skip


class SetPropertiesRequest(AuditedRequest, frozen=True, kw_only=True):
    """Set properties; others stay as they are."""

    props: Annotated[dict[str, Any], msgspec.Meta(min_length=1), right('an object, for instance {"allow_mult": false}')]
    expected: Expected | None = None
    dry_run: DryRun = False


class UnsetPropertiesRequest(AuditedRequest, frozen=True, kw_only=True):
    """Unset properties; all, when none is named."""

    names: Annotated[list[str], right('a list of texts, for instance ["allow_mult"]')] | None = None
    expected: Expected | None = None
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
        """The properties in force for a bucket type or a bucket.

        A row for each property: the value in force, its default, its origin, by whom, when, why, and whether it has an
        effect. `behind`: nodes that have not read the newest properties; `unknown`: nodes of which that is not known,
        and why.
        """
        return await self._answer(self._scope(request), "shown")

    async def set(self, request: Request, body: SetPropertiesRequest) -> Reply:
        """Set properties, or show what would be set.

        Answers as `GET`, after a dry run as it would be; `warnings` name properties without effect, and buckets with
        values of their own.
        """
        scope, properties = self._scope(request), self._services.properties
        by, reason = acting_user(body.by), body.reason or ""
        if body.dry_run:
            then = properties.as_if_set(scope, body.props, by, reason, body.expected)
            return await self._answer(scope, "would be set", body.props, then)
        with request.changing(lambda: properties.own(scope)):
            await properties.set(scope, body.props, by, reason, body.expected)
        return await self._answer(scope, "set", body.props)

    async def unset(self, request: Request, body: UnsetPropertiesRequest) -> Reply:
        """Unset properties: those that are named, or all.

        Answers as `set`.
        """
        scope, names, properties = self._scope(request), body.names or [], self._services.properties
        if body.dry_run:
            then, found = properties.as_if_unset(scope, names, body.expected)
            return await self._answer(scope, "would be unset" if found else "was not set", found, then)
        with request.changing(lambda: properties.own(scope)):
            removed = await properties.unset(scope, names, body.expected)
        return await self._answer(scope, "unset" if removed else "was not set", removed)

    async def _answer(
        self,
        scope: PropertyScope,
        outcome: str,
        changed: Iterable[str] = (),
        settings: PropertySettings | None = None,
    ) -> Reply:
        """The properties in force, with `settings` as if these were set; notes on those that are `changed`, which the
        other nodes are given some time to read."""
        properties, services = self._services.properties, self._services
        version = properties.cache.settings.version if changed and settings is None else None
        answers, unknown = await settings_of_nodes(
            services.query, services.membership, has_read=lambda answer: reads(answer.properties_version, version)
        )
        versions = {node: each.properties_version for node, each in answers.items() if each is not None}
        return json_reply(
            {
                "outcome": outcome,
                **_named(scope),
                "properties": msgspec.to_builtins(properties.rows(scope, settings)),
                "warnings": properties.notes(scope, [name for name in changed if name in PROPERTIES]),
                "behind": nodes_behind(versions),
                "unknown": unknown,
            }
        )

    def _scope(self, request: Request) -> PropertyScope:
        return self._services.properties.scope(request.params["type"], request.params.get("bucket"))


def _named(scope: PropertyScope) -> dict[str, Any]:
    bucket = None if scope.bucket is None else encode_segment(scope.bucket).decode("ascii")
    return {"bucket_type": scope.bucket_type, "bucket": bucket}

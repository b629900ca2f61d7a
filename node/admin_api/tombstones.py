"""Reaping in the admin API: waiting tombstones, and the reap of one key. `repl.coordinator.tombstone_reaper`
decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.responses import Reply
from isthmus.node.http.router import Router, decode_segment
from isthmus.node.nouns.requests import AuditedRequest, Name, right
from isthmus.node.services.container import NodeServices
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key

EncodedName = Annotated[Name, right("a name that is not empty, percent-encoded where it is not plain text")]


class ReapRequest(AuditedRequest, frozen=True, kw_only=True):
    """Reap the tombstone of one key. Bucket and key are percent-encoded."""

    bucket: EncodedName
    key: EncodedName
    bucket_type: str | None = None


class ReapsAdmin:
    """Routes over tombstones."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/reaps", self.listed)
        router.add("POST", "/admin/reaps", BodyHandler(ReapRequest, self.reap))

    async def listed(self, _request: Request) -> Reply:
        """Each partition led here whose buckets reap: the number of waiting tombstones, and why the oldest one that is
        due waits."""
        return json_reply({"node": self._services.settings.node.name, "partitions": self._services.reaper.status()})

    async def reap(self, request: Request, body: ReapRequest) -> Reply:
        """Reap one key; names are percent-encoded.

        `outcome` is `reaped`, `waits` (with the `reason`) or `no-tombstone`.
        """
        bucket_type = DEFAULT_BUCKET_TYPE if body.bucket_type is None else body.bucket_type.encode()
        reaped = await self._services.reaper.ask(Key(bucket_type, _bytes(body.bucket), _bytes(body.key)))
        answer = {"outcome": reaped.outcome, "reason": reaped.reason}
        request.changed(None, answer)
        return json_reply(answer)


def _bytes(segment: str) -> bytes:
    return decode_segment(segment.replace("+", "%2B").encode())

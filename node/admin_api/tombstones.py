"""The admin face's reaping: what waits, and one key's tombstone removed. Decided by
`repl.coordinator.tombstone_reaper`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from isthmus.node.admin_api.body import read_body, text
from isthmus.node.http.application import Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router, decode_segment
from isthmus.node.services.container import NodeServices
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, Key

REAP_KEYS: Final = frozenset({"bucket_type", "bucket", "key"})


class ReapsAdmin:
    """Routes over the tombstones of a running node."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        router.add("GET", "/admin/reaps", self.listed)
        router.add("POST", "/admin/reaps", self.reap)

    async def listed(self, _request: Request) -> Reply:
        """Each partition led here whose buckets reap: how many tombstones wait, and why the oldest that is due does."""
        return json_reply({"node": self._services.settings.node.name, "partitions": self._services.reaper.shown()})

    async def reap(self, request: Request) -> Reply:
        """Reap one key; names are percent-encoded."""
        wish = await read_body(request, REAP_KEYS)
        bucket, key = text(wish, "bucket"), text(wish, "key")
        if not bucket or not key:
            raise RequestRefused(
                400, "bad-json", "bucket and key are needed, percent-encoded where they are no plain text"
            )
        kind = text(wish, "bucket_type")
        name = Key(DEFAULT_BUCKET_TYPE if kind is None else kind.encode(), _bytes(bucket), _bytes(key))
        reaped = await self._services.reaper.ask(name)
        return json_reply({"outcome": reaped.outcome, "reason": reaped.reason})


def _bytes(segment: str) -> bytes:
    return decode_segment(segment.replace("+", "%2B").encode())

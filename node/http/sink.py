"""The admin face's sink: what this cluster fetches from others, its suspensions, limits and dead letters.

Passes on what an operator wants and shows what `sink.actor` says; of the whole cluster, what `node.sink_gathering`
gathered. docs/sinks.md tells what it all means.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from node.cluster_view import with_gone
from node.http.asgi import Request, json_reply
from node.http.router import Router
from node.http.statuses import Refused, Reply
from node.http.wishes import count, flag, initiator, text, wish_of
from sink.actor import WORKERS_MAX
from sink.limits import Limits

if TYPE_CHECKING:
    from node.daemon import Node

SUSPEND_KEYS: Final = frozenset({"queue", "peer", "node", "by", "reason"})
LIMIT_KEYS: Final = frozenset(
    {"workers", "per_peer", "bytes_per_second", "objects_per_second", "node", "by", "reason", "forget"}
)
LETTER_KEYS: Final = frozenset({"ids", "by"})

RATE_MAX: Final = 1 << 40
"""Largest rate that is taken; above any disk's."""

IDS_MAX: Final = 10_000
"""Most dead letters named in one request."""


class SinkAdmin:
    """Routes over the sink of a running node."""

    def __init__(self, node: Node, router: Router[Callable[..., Any]]) -> None:
        self._node = node
        router.add("GET", "/admin/sink", self.sink)
        router.add("GET", "/admin/sink/nodes", self.nodes)
        router.add("POST", "/admin/sink/suspend", self.suspend)
        router.add("POST", "/admin/sink/resume", self.resume)
        router.add("POST", "/admin/sink/limits", self.limits)
        router.add("GET", "/admin/sink/dead-letters", self.letters)
        router.add("POST", "/admin/sink/dead-letters/retry", self.retry)
        router.add("POST", "/admin/sink/dead-letters/drop", self.drop)

    async def sink(self, _request: Request) -> Reply:
        """Every (queue, peer) that this node fetches from, and its sink as a whole."""
        sink = self._node.sink
        return json_reply({**sink.overview(), "sinks": sink.listing()})

    async def nodes(self, _request: Request) -> Reply:
        """The same of every node of the cluster; null for one that does not answer, or is gone."""
        names = {*self._node.controller.registrations, self._node.settings.node.name}
        found = with_gone(self._node.controller.records, await self._node.sink_gathering.gather(names))
        return json_reply({"nodes": [{"node": node, "sink": what} for node, what in found.items()]})

    async def suspend(self, request: Request) -> Reply:
        """Start no new fetch of a queue, a peer, or all, on one node or on all."""
        wish = await wish_of(request, SUSPEND_KEYS)
        await self._node.sink.suspend(
            text(wish, "queue"), text(wish, "peer"), initiator(wish), text(wish, "reason") or "", text(wish, "node")
        )
        return await self.sink(request)

    async def resume(self, request: Request) -> Reply:
        """Fetch again."""
        wish = await wish_of(request, SUSPEND_KEYS)
        await self._node.sink.resume(text(wish, "queue"), text(wish, "peer"), text(wish, "node"))
        return await self.sink(request)

    async def limits(self, request: Request) -> Reply:
        """Workers, workers per peer and rates, on one node or on all; with "forget" those that are named (with any
        number) are the config's again."""
        wish = await wish_of(request, LIMIT_KEYS)
        limits = Limits(
            workers=count(wish, "workers", 1, WORKERS_MAX),
            peer_limit=count(wish, "per_peer", 0, WORKERS_MAX),
            bytes_per_second=count(wish, "bytes_per_second", 0, RATE_MAX),
            objects_per_second=count(wish, "objects_per_second", 0, RATE_MAX),
            by=initiator(wish),
            at_ms=self._node.time.wall_ms(),
            reason=text(wish, "reason") or "",
        )
        if not flag(wish, "forget") and (limits.peer_limit or 0) > (limits.workers or WORKERS_MAX):
            raise Refused(400, "bad-json", f"per_peer is at most workers, {limits.workers}: more never bind")
        await self._node.sink.set_limits(limits, text(wish, "node"), flag(wish, "forget"))
        return await self.sink(request)

    async def letters(self, _request: Request) -> Reply:
        """The changes that this node's sink refused for good, the oldest first, and why."""
        return json_reply({"dead_letters": await self._node.sink.dead_letters()})

    async def retry(self, request: Request) -> Reply:
        """Push dead letters again: those named, or all."""
        wish = await wish_of(request, LETTER_KEYS)
        return json_reply({"retried": await self._node.sink.retry_dead_letters(_numbers(wish))})

    async def drop(self, request: Request) -> Reply:
        """Forget dead letters: those named, or all."""
        wish = await wish_of(request, LETTER_KEYS)
        return json_reply({"dropped": await self._node.sink.drop_dead_letters(_numbers(wish))})


def _numbers(wish: dict[str, Any]) -> list[int] | None:
    ids = wish.get("ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or len(ids) > IDS_MAX or not all(type(n) is int and 0 < n < 1 << 63 for n in ids):
        raise Refused(400, "bad-json", f"ids must be a list of at most {IDS_MAX} numbers of dead letters, or null")
    return ids

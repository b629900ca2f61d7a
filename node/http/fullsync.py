"""The admin face of full-sync: what was found, what is due, and what operators want of it.

Shows what `aae.manager` and `aae.keeping` know and passes on acts; decides nothing. docs/http.md lists the paths,
docs/fullsync.md what the words mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from aae import listing
from aae.manager import Manager, UnknownPeer
from aae.schedule import Kind, TimeRange
from node.cluster_view import with_gone
from node.fullsync_gathering import SuspendWish, sharing, warning
from node.http.asgi import Face, Request, json_reply
from node.http.statuses import Refused, Reply
from node.http.wishes import count, initiator, text, wish_of

if TYPE_CHECKING:
    from node.parts import Parts

RUN_KEYS: Final = frozenset({"peer", "kind", "by"})
ACT_KEYS: Final = frozenset({"peer", "node", "by", "reason"})
RANGE_KEYS: Final = frozenset({"peer", "since_ms", "before_ms", "bucket", "by"})
REBUILD_KEYS: Final = frozenset({"partition", "by"})

RESULTS_DIGITS_MAX: Final = 9
"""Longest `results`; no peer has so many."""

TIME_MAX_MS: Final = 1 << 50
"""Largest wall-clock time that is taken, as of queues: beyond the year 30,000 somebody has mistaken the unit."""

RESULTS_SHOWN: Final = 50
"""Newest results of a peer in one answer; `?results=N` asks for others."""


class FullSyncAdmin:
    """Routes below /admin/fullsync and /admin/trees."""

    def __init__(self, parts: Parts, face: Face) -> None:
        self._parts = parts
        router = face.router
        router.add("GET", "/admin/fullsync", self._status)
        router.add("GET", "/admin/fullsync/nodes", self._checks_of_nodes)
        router.add("GET", "/admin/trees/nodes", self._trees_of_nodes)
        router.add("GET", "/admin/fullsync/schedule", self._schedule)
        router.add("POST", "/admin/fullsync/run", self._run)
        router.add("POST", "/admin/fullsync/suspend", self._suspend)
        router.add("POST", "/admin/fullsync/resume", self._resume)
        router.add("POST", "/admin/fullsync/set-range", self._set_range)
        router.add("POST", "/admin/fullsync/clear-range", self._clear_range)
        router.add("GET", "/admin/trees", self._trees)
        router.add("POST", "/admin/trees/rebuild", self._rebuild)

    @property
    def _manager(self) -> Manager:
        return self._parts.fullsync.manager

    async def _status(self, request: Request) -> Reply:
        wanted = request.query.get("results", str(RESULTS_SHOWN))
        if not (wanted.isascii() and wanted.isdigit() and len(wanted) <= RESULTS_DIGITS_MAX):
            raise Refused(400, "bad-query", f"results={wanted[:40]}: write a number")
        return json_reply(await self._shown(int(wanted)))

    async def _shown(self, results: int) -> dict[str, Any]:
        own = self._parts.fullsync_of("checks", results)
        nodes = await self._gathered("checks") if own["peers"] else {}
        for peer in own["peers"]:
            peer["shared_by"], peer["unknown"] = sharing(peer, nodes)
            peer["warning"] = warning(peer["shared_by"], peer["unknown"], len(nodes))
        return own

    async def _schedule(self, _request: Request) -> Reply:
        return json_reply({"node": self._parts.settings.node.name, "peers": listing.scheduled(self._manager)})

    async def _run(self, request: Request) -> Reply:
        wish = await wish_of(request, RUN_KEYS)
        name, kind, by = _needed(wish, "peer"), _kind(_needed(wish, "kind")), initiator(wish)
        at_ms = self._parts.time.wall_ms()
        self._manager.begin(name, kind, by)
        return json_reply({"peer": name, "kind": kind.value, "by": by, "at_ms": at_ms}, 202)

    async def _suspend(self, request: Request) -> Reply:
        return await self._acted(request, suspended=True)

    async def _resume(self, request: Request) -> Reply:
        return await self._acted(request, suspended=False)

    async def _acted(self, request: Request, *, suspended: bool) -> Reply:
        """On the node that is named, or on all; what each did stands beside this node's status."""
        wish = await wish_of(request, ACT_KEYS)
        peer, node = _peer_of(wish), text(wish, "node")
        nodes = {self._parts.settings.node.name, *self._parts.nodes()}
        if node is not None and node not in nodes:
            raise Refused(
                404, "unknown-node", f"there is no node {node!r} that lives; there are {', '.join(sorted(nodes))}"
            )
        act = SuspendWish(suspended, peer, initiator(wish), text(wish, "reason") or "")
        acted = await self._parts.fullsync_gathering.act(nodes if node is None else {node}, act)
        if not any(names is None or names for names in acted.values()):
            name, where = f" {peer!r}" if peer else "", node or "any node"
            raise UnknownPeer(f"there is no full-sync{name} on {where}")
        return json_reply({**await self._shown(RESULTS_SHOWN), "acted": acted})

    async def _set_range(self, request: Request) -> Reply:
        wish = await wish_of(request, RANGE_KEYS)
        since_ms, before_ms = (count(wish, name, 0, TIME_MAX_MS) for name in ("since_ms", "before_ms"))
        if since_ms is None or before_ms is None or not since_ms < before_ms:
            raise Refused(400, "bad-json", "since_ms and before_ms are needed: whole numbers, the first the smaller")
        bucket = wish.get("bucket")
        if bucket is not None and (not isinstance(bucket, str) or not bucket):
            raise Refused(400, "bad-json", "bucket is a text, or left out")
        times = TimeRange(since_ms, before_ms, None if bucket is None else bucket.encode())
        await self._manager.set_range(_needed(wish, "peer"), times)
        return await self._status(request)

    async def _clear_range(self, request: Request) -> Reply:
        wish = await wish_of(request, RANGE_KEYS)
        await self._manager.set_range(_needed(wish, "peer"), None)
        return await self._status(request)

    async def _trees(self, _request: Request) -> Reply:
        return json_reply({"node": self._parts.settings.node.name, **self._parts.fullsync_of("trees")})

    async def _trees_of_nodes(self, _request: Request) -> Reply:
        return json_reply({"nodes": with_gone(self._parts.controller.records, await self._gathered("trees"))})

    async def _checks_of_nodes(self, _request: Request) -> Reply:
        nodes = with_gone(self._parts.controller.records, await self._gathered("checks"))
        return json_reply({"nodes": nodes, "at_ms": self._parts.time.wall_ms()})

    async def _gathered(self, what: str) -> dict[str, Any]:
        return await self._parts.fullsync_gathering.gather(self._parts.nodes(), what)

    async def _rebuild(self, request: Request) -> Reply:
        wish = await wish_of(request, REBUILD_KEYS)
        partition = wish.get("partition")
        if partition is not None and type(partition) is not int:
            raise Refused(400, "bad-json", "partition is a number, or left out for all")
        meant = self._parts.fullsync.trees.rebuild(partition)
        if partition is not None and not meant:
            raise Refused(404, "unknown-partition", f"this node has no copy of partition {partition}")
        return json_reply({"rebuilding": meant}, 202)


def _kind(name: str) -> Kind:
    kinds = {kind.value: kind for kind in Kind if kind is not Kind.NONE}
    if name not in kinds:
        raise Refused(400, "bad-json", f"kind {name!r} is not known; write one of {', '.join(kinds)}")
    return kinds[name]


def _peer_of(wish: dict[str, Any]) -> str | None:
    return text(wish, "peer")


def _needed(wish: dict[str, Any], name: str) -> str:
    found = text(wish, name)
    if not found:
        raise Refused(400, "bad-json", f"{name} is needed, a text")
    return found

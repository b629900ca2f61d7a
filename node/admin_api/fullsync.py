"""The admin face of full-sync: what was found, what is due, and what operators want of it.

Shows what `aae.scheduling.scheduler` and `aae.trees.tree_cache` know and passes on acts; decides nothing. docs/http.md
lists the paths, docs/fullsync.md what the words mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog

from isthmus.aae import status
from isthmus.aae.scheduling import operator_documents
from isthmus.aae.scheduling.operator_documents import FullSyncAuditInfo, FullSyncSuspension
from isthmus.aae.scheduling.schedule import CheckKind, TimeRange
from isthmus.aae.scheduling.scheduler import CheckScheduler, UnknownPeer
from isthmus.config.fullsync_values import WHERE_TO, changed_settings
from isthmus.config.settings import FullSyncSettings
from isthmus.config.text import no_such
from isthmus.config.validation import check_name, is_own
from isthmus.node.admin_api.body import acting_user, count, flag, read_body, text
from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.services.cluster_status import with_gone
from isthmus.node.services.container import NodeServices
from isthmus.node.services.fullsync_query import (
    FULLSYNC_REFRESH,
    FULLSYNC_STATUS,
    FullSyncPart,
    RefreshFullSync,
    sharing,
    warning,
)
from isthmus.repl.model.errors import BadInput

log = structlog.get_logger(__name__)

RUN_KEYS: Final = frozenset({"peer", "kind", "by"})
ACT_KEYS: Final = frozenset({"peer", "node", "by", "reason"})
SET_KEYS: Final = frozenset({"peer", "node", "values", "default", "by", "reason"})
RANGE_KEYS: Final = frozenset({"peer", "since_ms", "before_ms", "bucket", "by"})
REBUILD_KEYS: Final = frozenset({"partition", "by"})

SUPPRESSED_MAX: Final = 240
"""Most checks of kind auto that are left out by one act: a day of the most that there can be. More is a suspension."""

RESULTS_DIGITS_MAX: Final = 9
"""Longest `results`; no peer has so many."""

TIME_MAX_MS: Final = 1 << 50
"""Largest wall-clock time that is taken, as of queues: beyond the year 30,000 somebody has mistaken the unit."""

RESULTS_SHOWN: Final = 50
"""Newest results of a peer in one answer; `?results=N` asks for others."""


class FullSyncAdmin:
    """Routes below /admin/fullsync and /admin/trees."""

    def __init__(self, services: NodeServices, face: HttpApplication) -> None:
        self._services = services
        router = face.router
        router.add("GET", "/admin/fullsync", self._status)
        router.add("GET", "/admin/fullsync/nodes", self._checks_of_nodes)
        router.add("GET", "/admin/trees/nodes", self._trees_of_nodes)
        router.add("GET", "/admin/fullsync/schedule", self._schedule)
        router.add("POST", "/admin/fullsync/run", self._run)
        router.add("POST", "/admin/fullsync/suspend", self._suspend)
        router.add("POST", "/admin/fullsync/resume", self._resume)
        router.add("POST", "/admin/fullsync/set", self._set)
        router.add("POST", "/admin/fullsync/peers/add", self._add)
        router.add("POST", "/admin/fullsync/peers/remove", self._remove)
        router.add("POST", "/admin/fullsync/set-range", self._set_range)
        router.add("POST", "/admin/fullsync/clear-range", self._clear_range)
        router.add("POST", "/admin/fullsync/suppress-auto", self._suppress_auto)
        router.add("GET", "/admin/trees", self._trees)
        router.add("POST", "/admin/trees/rebuild", self._rebuild)

    @property
    def _manager(self) -> CheckScheduler:
        return self._services.fullsync.scheduler

    async def _status(self, request: Request) -> Reply:
        wanted = request.query.get("results", str(RESULTS_SHOWN))
        if not (wanted.isascii() and wanted.isdigit() and len(wanted) <= RESULTS_DIGITS_MAX):
            raise RequestRefused(400, "bad-query", f"results={wanted[:40]}: write a number")
        return json_reply(await self._shown(int(wanted)))

    async def _shown(self, results: int) -> dict[str, Any]:
        own = self._services.fullsync_status.checks(results)
        nodes = await self._ask_nodes(FullSyncPart.CHECKS) if own["peers"] else {}
        for peer in own["peers"]:
            peer["shared_by"], peer["unknown"] = sharing(peer, nodes)
            peer["warning"] = warning(peer["shared_by"], peer["unknown"], len(nodes))
        return own

    async def _schedule(self, _request: Request) -> Reply:
        return json_reply({"node": self._services.settings.node.name, "peers": status.scheduled(self._manager)})

    async def _run(self, request: Request) -> Reply:
        wish = await read_body(request, RUN_KEYS)
        name, kind, by = _peer_of(wish), _kind(_needed(wish, "kind")), acting_user(wish)
        at_ms = self._services.time.wall_ms()
        names = self._manager.begin(name, kind, by)
        return json_reply({"peer": name, "peers": names, "kind": kind.value, "by": by, "at_ms": at_ms}, 202)

    async def _suspend(self, request: Request) -> Reply:
        return await self._acted(request, suspended=True)

    async def _resume(self, request: Request) -> Reply:
        return await self._acted(request, suspended=False)

    async def _acted(self, request: Request, *, suspended: bool) -> Reply:
        """Written to the metastore, for the node that is named, or for all; what each live node made of it stands
        beside this node's status."""
        wish = await read_body(request, ACT_KEYS)
        peer, node, services = _peer_of(wish), self._node_of(wish), self._services
        by, reason = acting_user(wish), text(wish, "reason") or ""
        standing = services.fullsync.documents.suspensions or ()
        if peer is not None and peer not in {one.peer for one in standing}:
            await self._known(peer)
        if suspended:
            new = FullSyncSuspension(peer, node, by, services.time.wall_ms(), reason)
            await operator_documents.suspend(services.controller.metastore, new)
        else:
            await operator_documents.resume(services.controller.metastore, peer, node)
        event = "fullsync.suspended" if suspended else "fullsync.resumed"
        log.info(event, peer=peer, only_node=node, by=by, reason=reason)
        return await self._followed(peer, node, resumed=not suspended)

    async def _add(self, request: Request) -> Reply:
        wish = await read_body(request, SET_KEYS - {"default"})
        name, node, act, values = _needed(wish, "peer"), self._node_of(wish), self._act_of(wish), _values(wish)
        if name in self._manager.peers:
            raise BadInput(f"there is a full-sync {name!r} already: change it (set), or remove it first")
        try:
            check_name(name)
            settings = changed_settings(FullSyncSettings(name, "", ""), values)
        except ValueError as error:
            raise BadInput(str(error)) from error
        if not (settings.urls and settings.queue):
            raise BadInput("urls and queue are needed: where the other cluster is, and the queue that repairs go into")
        own = self._services.settings.listen.http
        for url in settings.urls.split(","):
            if is_own(url, own):
                raise BadInput(f"{url} is this node itself; what it is compared with is another cluster")
        self._known_queue(values)
        await operator_documents.add_peer(self._services.controller.metastore, name, node, values, act)
        log.info("fullsync.peer_added", peer=name, only_node=node, by=act.by, reason=act.reason, values=values)
        return await self._followed(name, node, resumed=False)

    async def _set(self, request: Request) -> Reply:
        wish = await read_body(request, SET_KEYS)
        name, node, act, values = _needed(wish, "peer"), self._node_of(wish), self._act_of(wish), _values(wish)
        if flag(wish, "default") == bool(values):
            raise RequestRefused(400, "bad-json", 'give values, such as {"all": 24, "auto": 0}, or default alone')
        if flag(wish, "default"):
            await self._services.fullsync.documents.refresh()
            entries = self._services.fullsync.documents.entries.get(name, {})
            if not entries or (node is not None and node not in entries):
                where = "" if node is None else f" on node {node} alone"
                raise UnknownPeer(f"nothing is set of a full-sync {name!r}{where}: what files say counts already")
            await operator_documents.forget_peer(self._services.controller.metastore, name, node)
        else:
            await self._known(name)
            here = self._manager.peers.get(name)
            fixed = sorted(WHERE_TO & values.keys())
            if fixed and not (here is not None and any(one.added for one in here.entries)):
                raise BadInput(
                    f"{', '.join(fixed)} of a full-sync that a file has can only change there: a token goes to it"
                )
            try:
                changed_settings(
                    FullSyncSettings(name, "", "", peer_queue="-") if here is None else here.settings, values
                )
            except ValueError as error:
                raise BadInput(str(error)) from error
            self._known_queue(values)
            await operator_documents.set_peer(self._services.controller.metastore, name, node, values, act)
        log.info("fullsync.peer_set", peer=name, only_node=node, by=act.by, reason=act.reason, values=values)
        return await self._followed(name, node, resumed=False)

    async def _remove(self, request: Request) -> Reply:
        wish = await read_body(request, ACT_KEYS)
        name, node, act = _needed(wish, "peer"), self._node_of(wish), self._act_of(wish)
        await self._known(name)
        await operator_documents.remove_peer(self._services.controller.metastore, name, node, act)
        log.info("fullsync.peer_removed_by", peer=name, only_node=node, by=act.by, reason=act.reason)
        return await self._followed(name, node, resumed=False)

    async def _followed(self, peer: str | None, node: str | None, *, resumed: bool) -> Reply:
        """What was written is in force on the nodes that live; which are down, and follow later."""
        live = self._services.membership.live_nodes()
        meant = set(self._services.membership.known_nodes()) if node is None else {node}
        request = RefreshFullSync(peer, resumed)
        acted = await self._services.query.ask(FULLSYNC_REFRESH, request, meant & live, own_may_fail=True)
        return json_reply({**await self._shown(RESULTS_SHOWN), "acted": acted.by_node, "later": sorted(meant - live)})

    def _node_of(self, wish: dict[str, Any]) -> str | None:
        """The node that is named, which may be down; None for all."""
        node, known = text(wish, "node"), self._services.membership.known_nodes()
        if node is not None and node not in known:
            raise RequestRefused(
                404, "unknown-node", f"there is no node {node!r}; there are {', '.join(sorted(known))}"
            )
        return node

    def _act_of(self, wish: dict[str, Any]) -> FullSyncAuditInfo:
        return FullSyncAuditInfo(acting_user(wish), self._services.time.wall_ms(), text(wish, "reason") or "")

    async def _known(self, peer: str) -> None:
        """Some node that lives has the peer, or its file has it, or operators have set it."""
        nodes = await self._ask_nodes(FullSyncPart.CHECKS)
        said = [rows for answer in nodes.values() if answer is not None for rows in
                (answer.get("peers") or (), answer.get("removed") or ())]  # fmt: skip
        known = {one["name"] for rows in said for one in rows} | set(self._services.fullsync.documents.entries)
        if peer not in known:
            there = ", ".join(sorted(known)) or "none"
            raise UnknownPeer(f"there is no full-sync {peer!r} on any node that answers; there are: {there}")

    def _known_queue(self, values: Mapping[str, Any]) -> None:
        queue, known = values.get("queue"), self._services.queues.machines()
        if queue is not None and queue not in known:
            raise RequestRefused(404, "unknown-queue", no_such("queue", str(queue), sorted(known)))

    async def _set_range(self, request: Request) -> Reply:
        wish = await read_body(request, RANGE_KEYS)
        since_ms, before_ms = (count(wish, name, 0, TIME_MAX_MS) for name in ("since_ms", "before_ms"))
        if since_ms is None or before_ms is None or not since_ms < before_ms:
            raise RequestRefused(
                400, "bad-json", "since_ms and before_ms are needed: whole numbers, the first the smaller"
            )
        bucket = wish.get("bucket")
        if bucket is not None and (not isinstance(bucket, str) or not bucket):
            raise RequestRefused(400, "bad-json", "bucket is a text, or left out")
        times = TimeRange(since_ms, before_ms, None if bucket is None else bucket.encode())
        await self._manager.set_range(_peer_of(wish), times)
        return await self._status(request)

    async def _suppress_auto(self, request: Request) -> Reply:
        wish = await read_body(request, {"peer", "count", "by"})
        number = count(wish, "count", 0, SUPPRESSED_MAX)
        if number is None:
            raise RequestRefused(400, "bad-json", f"count is needed: a whole number from 0 to {SUPPRESSED_MAX}")
        await self._manager.suppress_auto(_peer_of(wish), number)
        log.info("fullsync.auto_suppressed", peer=_peer_of(wish), count=number, by=acting_user(wish))
        return await self._status(request)

    async def _clear_range(self, request: Request) -> Reply:
        wish = await read_body(request, RANGE_KEYS)
        await self._manager.set_range(_peer_of(wish), None)
        return await self._status(request)

    async def _trees(self, _request: Request) -> Reply:
        return json_reply({"node": self._services.settings.node.name, **self._services.fullsync_status.trees()})

    async def _trees_of_nodes(self, _request: Request) -> Reply:
        return json_reply(
            {"nodes": with_gone(self._services.controller.records, await self._ask_nodes(FullSyncPart.TREES))}
        )

    async def _checks_of_nodes(self, _request: Request) -> Reply:
        nodes = with_gone(self._services.controller.records, await self._ask_nodes(FullSyncPart.CHECKS))
        gone = {node: self._services.downtimes.since_ms(node) for node, said in nodes.items() if said is None}
        down = {node: at_ms for node, at_ms in gone.items() if at_ms is not None}
        return json_reply({"nodes": nodes, "gone": down, "at_ms": self._services.time.wall_ms()})

    async def _ask_nodes(self, part: FullSyncPart) -> dict[str, dict[str, Any] | None]:
        nodes = self._services.membership.live_nodes()
        return (await self._services.query.ask(FULLSYNC_STATUS, part, nodes)).by_node

    async def _rebuild(self, request: Request) -> Reply:
        wish = await read_body(request, REBUILD_KEYS)
        partition = wish.get("partition")
        if partition is not None and type(partition) is not int:
            raise RequestRefused(400, "bad-json", "partition is a number, or left out for all")
        meant = self._services.fullsync.trees.rebuild(partition)
        if partition is not None and not meant:
            raise RequestRefused(404, "unknown-partition", f"this node has no copy of partition {partition}")
        return json_reply({"rebuilding": meant}, 202)


def _kind(name: str) -> CheckKind:
    kinds = {kind.value: kind for kind in CheckKind if kind is not CheckKind.NONE}
    if name not in kinds:
        raise RequestRefused(400, "bad-json", f"kind {name!r} is not known; write one of {', '.join(kinds)}")
    return kinds[name]


def _peer_of(wish: dict[str, Any]) -> str | None:
    """The peer that is named; None for all."""
    found = text(wish, "peer")
    if found == "":
        raise RequestRefused(400, "bad-json", "peer is empty: name one, or leave it out for all")
    return found


def _needed(wish: dict[str, Any], name: str) -> str:
    found = text(wish, name)
    if not found:
        raise RequestRefused(400, "bad-json", f"{name} is needed, a text")
    return found


def _values(wish: dict[str, Any]) -> dict[str, Any]:
    """Keys of [[fullsync]] with their values, as in a file."""
    values = wish.get("values") or {}
    if not isinstance(values, dict):
        raise RequestRefused(400, "bad-json", 'values must be an object, such as {"all": 24, "auto": 0}')
    return values

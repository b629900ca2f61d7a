"""Full-sync in the admin API: results, schedule, and operators' changes.

Shows the state of `aae.scheduling.scheduler` and `aae.trees.tree_cache` and passes changes on; decides nothing.
docs/http.md lists the paths, docs/fullsync.md explains the terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

import msgspec
import structlog

from isthmus.aae.scheduling import operator_documents
from isthmus.aae.scheduling.operator_documents import FullSyncAuditInfo, FullSyncSuspension
from isthmus.aae.scheduling.schedule import CheckKind
from isthmus.aae.scheduling.scheduler import CheckScheduler, UnknownPeer
from isthmus.config.fullsync_values import WHERE_TO, changed_settings
from isthmus.config.relations import is_own
from isthmus.config.settings import FullSyncSettings
from isthmus.config.text import no_such
from isthmus.config.validation import check_name
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.admin_api.encoded_names import name_bytes
from isthmus.node.admin_api.history import ALL, GONE
from isthmus.node.http.application import HttpApplication, Request, json_reply
from isthmus.node.http.json_body import BodyHandler
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.nouns.requests import TIME_MAX_MS, AuditedRequest, Encoding, Name, right
from isthmus.node.services.cluster_status import with_gone
from isthmus.node.services.container import NodeServices
from isthmus.node.services.fullsync_query import (
    FULLSYNC_ORDER,
    FULLSYNC_REFRESH,
    FULLSYNC_RESULTS,
    FULLSYNC_STATUS,
    ORDER_TIMEOUT_MS,
    BeginChecks,
    CheckOrder,
    FullSyncPart,
    LeaveOutAuto,
    OrderDone,
    ReadResults,
    RefreshFullSync,
    SetTimes,
    newest_results,
    sharing,
    warning,
)
from isthmus.node.services.fullsync_query import RESULTS_MAX as RESULTS_OF_NODES_MAX
from isthmus.repl.model.errors import BadInput

log = structlog.get_logger(__name__)

SUPPRESSED_MAX: Final = 240
"""Most checks of kind auto that one request suppresses: the most of a day. More is a suspension."""

RESULTS_MAX: Final = 999_999_999
"""Largest `results`; no peer keeps so many."""

RESULTS_SHOWN: Final = 50
"""Newest results of a peer in an answer; `?results=N` asks for others."""

RESULTS_OF_NODES: Final = 100
"""Newest results of all nodes together in an answer; `?limit=N` asks for others."""

Peer = Annotated[Name, right("a name, or left out for all")]
NamedPeer = Annotated[Name, right("a text, the name of the full-sync")]
OneNode = Annotated[str, msgspec.Meta(description="Only on this node; null: on all.")]
WhichNode = Annotated[str, msgspec.Meta(description="The node that does it; null: the one that is asked.")]
Values = Annotated[dict[str, Any], right('an object, such as {"all": 24, "auto": 0}')]
TimeMs = Annotated[int, msgspec.Meta(ge=0, le=TIME_MAX_MS)]
KINDS: Final = {kind.value: kind for kind in CheckKind if kind is not CheckKind.NONE}


class RunCheckRequest(AuditedRequest, frozen=True, kw_only=True):
    """Start a check now."""

    kind: Annotated[Name, right("a text"), msgspec.Meta(extra_json_schema={"enum": list(KINDS)})]
    peer: Peer | None = None
    node: WhichNode | None = None


class SuspendChecksRequest(AuditedRequest, frozen=True, kw_only=True):
    """Suspend or resume checks."""

    peer: Peer | None = None
    node: OneNode | None = None


class RemoveFullSyncRequest(AuditedRequest, frozen=True, kw_only=True):
    """Remove a full-sync."""

    peer: NamedPeer
    node: OneNode | None = None


class AddFullSyncRequest(RemoveFullSyncRequest, frozen=True, kw_only=True):
    """Add a full-sync that no file has."""

    values: Annotated[Values, msgspec.Meta(description="Keys of [[fullsync]], as in a file.")] | None = None


class SetFullSyncRequest(AddFullSyncRequest, frozen=True, kw_only=True):
    """Change settings of a full-sync, or take all changes back."""

    default: Annotated[bool, msgspec.Meta(description="Take all changes back.")] = False


class SetRangeRequest(AuditedRequest, frozen=True, kw_only=True):
    """The range of checks of kind `range`."""

    since_ms: TimeMs
    before_ms: TimeMs
    peer: Peer | None = None
    bucket: Annotated[Name, right("a text, or left out")] | None = None
    encoding: Encoding | None = None
    node: WhichNode | None = None


class ClearRangeRequest(AuditedRequest, frozen=True, kw_only=True):
    """Checks of kind `range` have no range. The range of the body, if any, is ignored."""

    peer: Peer | None = None
    since_ms: Any = None
    before_ms: Any = None
    bucket: Any = None
    node: WhichNode | None = None


class SuppressAutoRequest(AuditedRequest, frozen=True, kw_only=True):
    """Leave out checks of kind `auto`."""

    count: Annotated[int, msgspec.Meta(ge=0, le=SUPPRESSED_MAX)]
    peer: Peer | None = None
    node: WhichNode | None = None


class RebuildTreesRequest(AuditedRequest, frozen=True, kw_only=True):
    """Rebuild the trees of this node."""

    partition: Annotated[int, right("a number, or left out for all")] | None = None


class FullSyncAdmin:
    """Routes below /admin/fullsync and /admin/trees."""

    def __init__(self, services: NodeServices, api: HttpApplication) -> None:
        self._services = services
        router = api.router
        router.add("GET", "/admin/fullsync", self._status)
        router.add("GET", "/admin/fullsync/nodes", self._checks_of_nodes)
        router.add("GET", "/admin/trees/nodes", self._trees_of_nodes)
        router.add("GET", "/admin/fullsync/schedule", self._schedule)
        router.add("GET", "/admin/fullsync/schedule/nodes", self._schedule_of_nodes)
        router.add("GET", "/admin/fullsync/results", self._results_of_nodes)
        router.add("POST", "/admin/fullsync/run", BodyHandler(RunCheckRequest, self._run))
        router.add("POST", "/admin/fullsync/suspend", BodyHandler(SuspendChecksRequest, self._suspend))
        router.add("POST", "/admin/fullsync/resume", BodyHandler(SuspendChecksRequest, self._resume))
        router.add("POST", "/admin/fullsync/set", BodyHandler(SetFullSyncRequest, self._set))
        router.add("POST", "/admin/fullsync/peers/add", BodyHandler(AddFullSyncRequest, self._add))
        router.add("POST", "/admin/fullsync/peers/remove", BodyHandler(RemoveFullSyncRequest, self._remove))
        router.add("POST", "/admin/fullsync/set-range", BodyHandler(SetRangeRequest, self._set_range))
        router.add("POST", "/admin/fullsync/clear-range", BodyHandler(ClearRangeRequest, self._clear_range))
        router.add("POST", "/admin/fullsync/suppress-auto", BodyHandler(SuppressAutoRequest, self._suppress_auto))
        router.add("GET", "/admin/trees", self._trees)
        router.add("POST", "/admin/trees/rebuild", BodyHandler(RebuildTreesRequest, self._rebuild))

    @property
    def _manager(self) -> CheckScheduler:
        return self._services.fullsync.scheduler

    async def _status(self, request: Request) -> Reply:
        return json_reply(await self._shown(request.number("results", RESULTS_SHOWN, 0, RESULTS_MAX)))

    async def _shown(self, results: int) -> dict[str, Any]:
        own = self._services.fullsync_status.checks(results)
        nodes = await self._ask_nodes(FullSyncPart.CHECKS) if own["peers"] else {}
        for peer in own["peers"]:
            peer["shared_by"], peer["unknown"] = sharing(peer, nodes)
            peer["warning"] = warning(peer["shared_by"], peer["unknown"], len(nodes))
        return own

    async def _schedule(self, _request: Request) -> Reply:
        return json_reply(self._services.fullsync_status.schedule())

    async def _schedule_of_nodes(self, _request: Request) -> Reply:
        """The rest of the day of every node."""
        return json_reply(await self._of_nodes(FullSyncPart.SCHEDULE))

    async def _results_of_nodes(self, request: Request) -> Reply:
        """The newest results of all nodes (of ?node=NAME), of all peers (of ?peer=NAME), at most ?limit=N."""
        limit = request.number("limit", RESULTS_OF_NODES, 1, RESULTS_OF_NODES_MAX)
        node = request.query.get("node", ALL)
        known = self._services.membership.known_nodes()
        nodes = known if node == ALL else {self._known_node(node) or node}
        live = nodes & self._services.membership.live_nodes()
        question = ReadResults(limit, request.query.get("peer"))
        answers = await self._services.query.ask(FULLSYNC_RESULTS, question, live)
        found = [{"node": name, **one} for name, rows in answers.by_node.items() for one in rows or ()]
        unknown = {**dict.fromkeys(sorted(nodes - live), GONE), **answers.unknown}
        return json_reply({"results": newest_results(found, limit), "unknown": unknown})

    async def _run(self, request: Request, body: RunCheckRequest) -> Reply:
        kind, by = _kind(body.kind), acting_user(body.by)
        node, done = await self._ordered(body.node, BeginChecks(body.peer, kind, by))
        request.changed(None, {"peers": done.peers})
        answer = {"peer": body.peer, "peers": done.peers, "node": node, "kind": kind.value, "by": by}
        return json_reply({**answer, "at_ms": done.at_ms}, 202)

    async def _ordered(self, node: str | None, order: CheckOrder) -> tuple[str, OrderDone]:
        """Have a node (None: this one) do something; the node, and what it did. Raises IsthmusError."""
        services = self._services
        name = self._known_node(node) or services.settings.node.name
        return name, await services.query.ask_one(FULLSYNC_ORDER, order, name, timeout_ms=ORDER_TIMEOUT_MS)

    async def _changed_times(self, request: Request, node: str | None, order: SetTimes | LeaveOutAuto) -> Reply:
        name, done = await self._ordered(node, order)
        request.changed(done.before, done.after)
        return json_reply({**await self._shown(RESULTS_SHOWN), "acted": {name: done.peers}})

    async def _suspend(self, request: Request, body: SuspendChecksRequest) -> Reply:
        with request.changing(lambda: self._state(body.peer)):
            return await self._acted(body, suspended=True)

    async def _resume(self, request: Request, body: SuspendChecksRequest) -> Reply:
        with request.changing(lambda: self._state(body.peer)):
            return await self._acted(body, suspended=False)

    async def _acted(self, body: SuspendChecksRequest, *, suspended: bool) -> Reply:
        """Write the change to the metastore, for one node or for all; the answer has this node's status and the effect
        on each live node."""
        peer, node, services = body.peer, self._known_node(body.node), self._services
        by, reason = acting_user(body.by), body.reason or ""
        standing = services.fullsync.documents.suspensions.value
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

    async def _add(self, request: Request, body: AddFullSyncRequest) -> Reply:
        with request.changing(lambda: self._state(body.peer)):
            return await self._add_peer(body)

    async def _add_peer(self, body: AddFullSyncRequest) -> Reply:
        name, node, act, values = body.peer, self._known_node(body.node), self._audit_info(body), body.values or {}
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

    async def _set(self, request: Request, body: SetFullSyncRequest) -> Reply:
        with request.changing(lambda: self._state(body.peer)):
            return await self._set_peer(body)

    async def _set_peer(self, body: SetFullSyncRequest) -> Reply:
        name, node, act, values = body.peer, self._known_node(body.node), self._audit_info(body), body.values or {}
        if body.default == bool(values):
            raise RequestRefused(400, "bad-json", 'give values, such as {"all": 24, "auto": 0}, or default alone')
        if body.default:
            await self._services.fullsync.documents.refresh()
            entries = self._services.fullsync.documents.peers.value.get(name, {})
            if not entries or (node is not None and node not in entries):
                where = "" if node is None else f" on node {node} alone"
                raise UnknownPeer(
                    f"nothing is set for full-sync {name!r}{where}: the settings of the files are in force"
                )
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

    async def _remove(self, request: Request, body: RemoveFullSyncRequest) -> Reply:
        with request.changing(lambda: self._state(body.peer)):
            return await self._remove_peer(body)

    async def _remove_peer(self, body: RemoveFullSyncRequest) -> Reply:
        name, node, act = body.peer, self._known_node(body.node), self._audit_info(body)
        await self._known(name)
        await operator_documents.remove_peer(self._services.controller.metastore, name, node, act)
        log.info("fullsync.peer_removed_by", peer=name, only_node=node, by=act.by, reason=act.reason)
        return await self._followed(name, node, resumed=False)

    def _state(self, peer: str | None) -> dict[str, Any]:
        """Operators' settings of a full-sync (None: of all), as this node knows them, for the audit log."""
        documents = self._services.fullsync.documents
        found = documents.peers.value
        return {
            "suspensions": [{"peer": one.peer, "node": one.node} for one in documents.suspensions.value],
            "set": {
                name: {node: {"removed": one.removed, "values": dict(one.values)} for node, one in of.items()}
                for name, of in found.items()
                if peer in (None, name)
            },
        }

    async def _followed(self, peer: str | None, node: str | None, *, resumed: bool) -> Reply:
        """The answer to a change: this node's status, the live nodes that read the change, and those that are down and
        follow later."""
        live = self._services.membership.live_nodes()
        meant = set(self._services.membership.known_nodes()) if node is None else {node}
        request = RefreshFullSync(peer, resumed)
        acted = await self._services.query.ask(FULLSYNC_REFRESH, request, meant & live, own_may_fail=True)
        return json_reply({**await self._shown(RESULTS_SHOWN), "acted": acted.by_node, "later": sorted(meant - live)})

    def _known_node(self, node: str | None) -> str | None:
        """The node of a body, which may be down; None for all. Raises RequestRefused."""
        known = self._services.membership.known_nodes()
        if node is not None and node not in known:
            raise RequestRefused(
                404, "unknown-node", f"there is no node {node!r}; there are {', '.join(sorted(known))}"
            )
        return node

    def _audit_info(self, body: AuditedRequest) -> FullSyncAuditInfo:
        return FullSyncAuditInfo(acting_user(body.by), self._services.time.wall_ms(), body.reason or "")

    async def _known(self, peer: str) -> None:
        """Check that a live node, its file, or an operator's document has the peer. Raises UnknownPeer."""
        nodes = await self._ask_nodes(FullSyncPart.CHECKS)
        reported = [rows for answer in nodes.values() if answer is not None for rows in
                (answer.get("peers") or (), answer.get("removed") or ())]  # fmt: skip
        known = {one["name"] for rows in reported for one in rows} | set(self._services.fullsync.documents.peers.value)
        if peer not in known:
            there = ", ".join(sorted(known)) or "none"
            raise UnknownPeer(f"there is no full-sync {peer!r} on any node that answers; there are: {there}")

    def _known_queue(self, values: Mapping[str, Any]) -> None:
        queue, known = values.get("queue"), self._services.queues.machines()
        if queue is not None and queue not in known:
            raise RequestRefused(404, "unknown-queue", no_such("queue", str(queue), sorted(known)))

    async def _set_range(self, request: Request, body: SetRangeRequest) -> Reply:
        if not body.since_ms < body.before_ms:
            raise RequestRefused(
                400, "bad-json", "since_ms and before_ms are needed: whole numbers, the first the smaller"
            )
        bucket = None if body.bucket is None else name_bytes(body.bucket, body.encoding)
        times = SetTimes.of_bytes(body.peer, body.since_ms, body.before_ms, bucket)
        return await self._changed_times(request, body.node, times)

    async def _suppress_auto(self, request: Request, body: SuppressAutoRequest) -> Reply:
        reply = await self._changed_times(request, body.node, LeaveOutAuto(body.peer, body.count))
        log.info("fullsync.auto_suppressed", peer=body.peer, count=body.count, by=acting_user(body.by))
        return reply

    async def _clear_range(self, request: Request, body: ClearRangeRequest) -> Reply:
        return await self._changed_times(request, body.node, SetTimes(body.peer))

    async def _trees(self, _request: Request) -> Reply:
        return json_reply({"node": self._services.settings.node.name, **self._services.fullsync_status.trees()})

    async def _trees_of_nodes(self, _request: Request) -> Reply:
        return json_reply(
            {"nodes": with_gone(self._services.controller.records, await self._ask_nodes(FullSyncPart.TREES))}
        )

    async def _checks_of_nodes(self, _request: Request) -> Reply:
        return json_reply(await self.checks_document())

    async def checks_document(self) -> dict[str, Any]:
        """The answer to `GET /admin/fullsync/nodes`."""
        found = await self._of_nodes(FullSyncPart.CHECKS)
        standing = self._services.fullsync.documents.suspensions
        suspensions = [asdict(one) for one in standing.value] if standing.was_read else None
        return {**found, "suspensions": suspensions, "suspensions_error": standing.error}

    async def _of_nodes(self, part: FullSyncPart) -> dict[str, Any]:
        """Every node's report, null for a node without one, and why; and since when nodes are down."""
        services = self._services
        answers = await services.query.ask(FULLSYNC_STATUS, part, services.membership.live_nodes())
        nodes = with_gone(services.controller.records, answers.by_node)
        unknown = {node: answers.unknown.get(node, GONE) for node, reported in nodes.items() if reported is None}
        since = {node: services.downtimes.since_ms(node) for node in unknown}
        down = {node: at_ms for node, at_ms in since.items() if at_ms is not None}
        return {"nodes": nodes, "gone": down, "unknown": unknown, "at_ms": services.time.wall_ms()} | {
            "skew_ms": services.clocks.cluster_skew_ms()
        }

    async def _ask_nodes(self, part: FullSyncPart) -> dict[str, dict[str, Any] | None]:
        nodes = self._services.membership.live_nodes()
        return (await self._services.query.ask(FULLSYNC_STATUS, part, nodes)).by_node

    async def _rebuild(self, request: Request, body: RebuildTreesRequest) -> Reply:
        partition = body.partition
        meant = self._services.fullsync.trees.rebuild(partition)
        request.changed(None, {"rebuilding": meant})
        if partition is not None and not meant:
            raise RequestRefused(404, "unknown-partition", f"this node has no copy of partition {partition}")
        return json_reply({"rebuilding": meant}, 202)


def _kind(name: str) -> CheckKind:
    if name not in KINDS:
        raise RequestRefused(400, "bad-json", f"kind {name!r} is not known; write one of {', '.join(KINDS)}")
    return KINDS[name]

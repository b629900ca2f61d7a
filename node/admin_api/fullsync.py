"""Full-sync in the admin API: results, schedule, and operators' changes.

Shows the state of `aae.scheduling.scheduler` and `aae.trees.tree_cache` and passes changes on; decides nothing.
docs/http.md lists the paths, docs/fullsync.md explains the terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec
import structlog
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

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
from isthmus.node.http.application import HttpApplication, Request
from isthmus.node.http.json_body import add_noun, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.nouns.fullsync import (
    ADD,
    CHECK_KINDS,
    CLEAR_RANGE,
    FULLSYNC,
    REBUILD,
    REMOVE,
    RESUME,
    RUN,
    SET,
    SET_RANGE,
    SUPPRESS_AUTO,
    SUSPEND,
    TREES,
    AddFullSyncRequest,
    CheckBegun,
    ClearRangeRequest,
    DaysOfNodes,
    FullSyncChanged,
    FullSyncNodes,
    FullSyncOfNode,
    FullSyncPeerRow,
    FullSyncResults,
    FullSyncSuspensionRow,
    NodeResultRow,
    PeerResultRow,
    RebuildTreesRequest,
    RemoveFullSyncRequest,
    RunCheckRequest,
    SetFullSyncRequest,
    SetRangeRequest,
    SuppressAutoRequest,
    SuspendChecksRequest,
    TreesOfNode,
    TreesOfNodes,
    TreesRebuilt,
)
from isthmus.node.nouns.requests import AuditedRequest
from isthmus.node.services.cluster_query import Query
from isthmus.node.services.cluster_status import with_gone
from isthmus.node.services.container import NodeServices
from isthmus.node.services.fullsync_query import (
    FULLSYNC_CHECKS,
    FULLSYNC_ORDER,
    FULLSYNC_REFRESH,
    FULLSYNC_RESULTS,
    FULLSYNC_SCHEDULE,
    FULLSYNC_TREES,
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

RESULTS_MAX: Final = 999_999_999
"""Largest `results`; no peer keeps so many."""

RESULTS_SHOWN: Final = 50
"""Newest results of a peer in an answer; `?results=N` asks for others."""

RESULTS_OF_NODES: Final = 100
"""Newest results of all nodes together in an answer; `?limit=N` asks for others."""

KINDS: Final = {name: CheckKind(name) for name in CHECK_KINDS}


T = TypeVar("T")


class PartOfNodes(NamedTuple, Generic[T]):
    """One part of the full-sync of all nodes, as FullSyncNodes and DaysOfNodes have it."""

    nodes: dict[str, T | None]
    gone: dict[str, int]
    unknown: dict[str, str]
    at_ms: int
    skew_ms: int


class FullSyncAdmin:
    """Routes below /admin/fullsync and /admin/trees."""

    def __init__(self, services: NodeServices, api: HttpApplication) -> None:
        self._services = services
        add_noun(
            api.router,
            FULLSYNC,
            self._status,
            None,
            {
                RUN: self._run,
                SUSPEND: self._suspend,
                RESUME: self._resume,
                SET: self._set,
                ADD: self._add,
                REMOVE: self._remove,
                SET_RANGE: self._set_range,
                CLEAR_RANGE: self._clear_range,
                SUPPRESS_AUTO: self._suppress_auto,
            },
            {
                "nodes": self._checks_of_nodes,
                "schedule": self._schedule,
                "schedule/nodes": self._schedule_of_nodes,
                "results": self._results_of_nodes,
            },
        )
        add_noun(api.router, TREES, self._trees, None, {REBUILD: self._rebuild}, {"nodes": self._trees_of_nodes})

    @property
    def _manager(self) -> CheckScheduler:
        return self._services.fullsync.scheduler

    async def _status(self, request: Request) -> Reply:
        """Every full-sync of this node: next check, proofs, newest results.

        ?results=N: so many results of each. Of each: `proven_ms` (the other side had everything of this one) and
        `equal_ms` (both were equal); `equal_types`, the bucket types whose equality is asked for; `both_ways`: there
        are any. `named`: the first keys that differed in the newest check. `retry`: a check that could not compare and
        is tried again. `gaps_open`, `gaps_queues`: gaps that are not proven, and their queues; `gaps_uncompared`,
        `gaps_uncompared_types`: those of bucket types that the peer does not compare; `gaps_wait_s`: seconds until they
        are checked again. `queue_delisted`: its queue does not exist any more; `queue_of_other`: the cluster that owns
        the queue, if it is not the compared one (`reason` has the consequence). `origin` (`file`, `set` or `added`),
        `set` (values, by whom, when, why), `wants`; `removed` and `left_out`: what does not apply on this node, and
        why. The check that runs.
        """
        return struct_reply(await self._shown(request.number("results", RESULTS_SHOWN, 0, RESULTS_MAX)))

    async def _shown(self, results: int) -> FullSyncOfNode:
        own = self._services.fullsync_status.checks(results)
        nodes = await self._ask_checks() if own.peers else {}
        compared = {node: None if one is None else one.peers for node, one in nodes.items()}
        return replace(own, peers=[_with_sharing(peer, compared) for peer in own.peers])

    async def _changed(self, acted: Mapping[str, list[str] | None], later: list[str] | UnsetType) -> Reply:
        """The answer to a change: this node's checks, and what each node did."""
        own = await self._shown(RESULTS_SHOWN)
        fields = {name: getattr(own, name) for name in own.__struct_fields__}
        return struct_reply(FullSyncChanged(**fields, acted=dict(acted), later=later))

    async def _schedule(self, _request: Request) -> Reply:
        """The rest of this node's day: checks that are due, and slots that were skipped.

        The day has `slots` slots of `slot_ms` each.
        """
        return struct_reply(self._services.fullsync_status.schedule())

    async def _schedule_of_nodes(self, _request: Request) -> Reply:
        """The rest of the day of every node."""
        found = await self._of_nodes(FULLSYNC_SCHEDULE, FullSyncPart.SCHEDULE)
        return struct_reply(DaysOfNodes(**found._asdict()))

    async def _results_of_nodes(self, request: Request) -> Reply:
        """The newest results of all nodes, the newest first.

        ?limit: 1 to 1,000, default 100. ?peer=NAME; ?node=NAME or all. `{"results": [{"node", "peer", ...}], "unknown":
        {NODE: why}}`.
        """
        limit = request.number("limit", RESULTS_OF_NODES, 1, RESULTS_OF_NODES_MAX)
        node = request.query.get("node", ALL)
        known = self._services.membership.known_nodes()
        nodes = known if node == ALL else {self._known_node(node) or node}
        live = nodes & self._services.membership.live_nodes()
        question = ReadResults(limit, request.query.get("peer"))
        answers = await self._services.query.ask(FULLSYNC_RESULTS, question, live)
        found = [_result_of_node(name, one) for name, rows in answers.by_node.items() for one in rows or ()]
        unknown = {**dict.fromkeys(sorted(nodes - live), GONE), **answers.unknown}
        return struct_reply(FullSyncResults(newest_results(found, limit), unknown))

    async def _run(self, request: Request, body: RunCheckRequest) -> Reply:
        """Begin a check, of several peers one after the other.

        Answers 202 with the `peers`; 503 `busy` while a check runs.
        """
        kind, by = _kind(body.kind), acting_user(body.by)
        node, done = await self._ordered(body.node, BeginChecks(body.peer, kind, by))
        request.changed(None, {"peers": done.peers})
        return struct_reply(CheckBegun(body.peer, done.peers, node, kind.value, by, done.at_ms), RUN.status)

    async def _ordered(self, node: str | None, order: CheckOrder) -> tuple[str, OrderDone]:
        """Have a node (None: this one) do something; the node, and what it did. Raises IsthmusError."""
        services = self._services
        name = self._known_node(node) or services.settings.node.name
        return name, await services.query.ask_one(FULLSYNC_ORDER, order, name, timeout_ms=ORDER_TIMEOUT_MS)

    async def _changed_times(self, request: Request, node: str | None, order: SetTimes | LeaveOutAuto) -> Reply:
        name, done = await self._ordered(node, order)
        request.changed(done.before, done.after)
        return await self._changed({name: done.peers}, UNSET)

    async def _suspend(self, request: Request, body: SuspendChecksRequest) -> Reply:
        """Suspend scheduled checks, on all nodes or on one; kept in the metastore.

        Answers as `GET /admin/fullsync`, and `acted`: the peers that this concerned on each live node, null for a node
        that did not answer and follows by itself; `later`: nodes that are down and follow when they are back.
        """
        with request.changing(lambda: self._state(body.peer)):
            return await self._acted(body, suspended=True)

    async def _resume(self, request: Request, body: SuspendChecksRequest) -> Reply:
        """End a suspension of scheduled checks.

        Answers as `suspend`.
        """
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
        """Add a full-sync that no file has.

        `values` needs `urls` and `queue`. Role `admin`. Answers as `suspend`.
        """
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
        """Change settings of a full-sync, or take all changes back.

        Answers as `suspend`.
        """
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
        """Remove a full-sync, also one that a file has.

        Role `admin`. Answers as `suspend`.
        """
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
        return await self._changed(acted.by_node, sorted(meant - live))

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
        reported = [answer for answer in (await self._ask_checks()).values() if answer is not None]
        known = {one.name for answer in reported for one in answer.peers}
        known |= {one.name for answer in reported for one in answer.removed}
        known |= self._services.fullsync.documents.peers.value.keys()
        if peer not in known:
            there = ", ".join(sorted(known)) or "none"
            raise UnknownPeer(f"there is no full-sync {peer!r} on any node that answers; there are: {there}")

    def _known_queue(self, values: Mapping[str, Any]) -> None:
        queue, known = values.get("queue"), self._services.queues.machines()
        if queue is not None and queue not in known:
            raise RequestRefused(404, "unknown-queue", no_such("queue", str(queue), sorted(known)))

    async def _set_range(self, request: Request, body: SetRangeRequest) -> Reply:
        """Set the range of the next check of kind `range`.

        Answers as `GET /admin/fullsync`, and `acted`: the node's peers that this concerned.
        """
        if not body.since_ms < body.before_ms:
            raise RequestRefused(
                400, "bad-json", "since_ms and before_ms are needed: whole numbers, the first the smaller"
            )
        bucket = None if body.bucket is None else name_bytes(body.bucket, body.encoding)
        times = SetTimes.of_bytes(body.peer, body.since_ms, body.before_ms, bucket)
        return await self._changed_times(request, body.node, times)

    async def _suppress_auto(self, request: Request, body: SuppressAutoRequest) -> Reply:
        """Skip the next checks of kind `auto` of a node.

        Answers as `set-range`.
        """
        reply = await self._changed_times(request, body.node, LeaveOutAuto(body.peer, body.count))
        log.info("fullsync.auto_suppressed", peer=body.peer, count=body.count, by=acting_user(body.by))
        return reply

    async def _clear_range(self, request: Request, body: ClearRangeRequest) -> Reply:
        """Clear the range of checks of kind `range`.

        Answers as `set-range`.
        """
        return await self._changed_times(request, body.node, SetTimes(body.peer))

    async def _trees(self, _request: Request) -> Reply:
        """The trees of this node's replicas: state, offset, bytes; and `mismatches`, the segments that were found
        wrong."""
        found = self._services.fullsync_status.trees()
        return struct_reply(TreesOfNode(self._services.settings.node.name, found.trees, found.mismatches))

    async def _trees_of_nodes(self, _request: Request) -> Reply:
        """The trees of every node's replicas.

        Null for a node that does not answer, or is gone and holds replicas.
        """
        live = self._services.membership.live_nodes()
        found = (await self._services.query.ask(FULLSYNC_TREES, FullSyncPart.TREES, live)).by_node
        return struct_reply(TreesOfNodes(with_gone(self._services.controller.records, found)))

    async def _checks_of_nodes(self, _request: Request) -> Reply:
        """The full-syncs of every node, with the newest result of each bucket type and the newest that could compare.

        Null for a node that does not answer, or is gone and holds replicas. `unknown`: why, of each such node; `gone`:
        since when (ms), at the latest, such nodes are down. `suspensions`: by peer and node (null: all), with who, when
        and why, also for nodes that are down; null while this node has not read them, `suspensions_error` if they
        cannot be read.
        """
        return struct_reply(await self._checks())

    async def checks_document(self) -> dict[str, Any]:
        """The answer to `GET /admin/fullsync/nodes`."""
        document: dict[str, Any] = msgspec.to_builtins(await self._checks())
        return document

    async def _checks(self) -> FullSyncNodes:
        found = await self._of_nodes(FULLSYNC_CHECKS, FullSyncPart.CHECKS)
        read = self._services.fullsync.documents.suspensions
        suspensions = [FullSyncSuspensionRow(**asdict(one)) for one in read.value] if read.was_read else None
        return FullSyncNodes(**found._asdict(), suspensions=suspensions, suspensions_error=read.error)

    async def _of_nodes(self, query: Query[FullSyncPart, T], part: FullSyncPart) -> PartOfNodes[T]:
        """Every node's report, null for a node without one, and why; and since when nodes are down."""
        services = self._services
        answers = await services.query.ask(query, part, services.membership.live_nodes())
        nodes = with_gone(services.controller.records, answers.by_node)
        unknown = {node: answers.unknown.get(node, GONE) for node, reported in nodes.items() if reported is None}
        since = {node: services.downtimes.since_ms(node) for node in unknown}
        down = {node: at_ms for node, at_ms in since.items() if at_ms is not None}
        return PartOfNodes(nodes, down, unknown, services.time.wall_ms(), services.clocks.cluster_skew_ms())

    async def _ask_checks(self) -> dict[str, FullSyncOfNode | None]:
        live = self._services.membership.live_nodes()
        return (await self._services.query.ask(FULLSYNC_CHECKS, FullSyncPart.CHECKS, live)).by_node

    async def _rebuild(self, request: Request, body: RebuildTreesRequest) -> Reply:
        """Rebuild the trees of this node, or of one partition; answers 202."""
        partition = body.partition
        meant = self._services.fullsync.trees.rebuild(partition)
        request.changed(None, {"rebuilding": meant})
        if partition is not None and not meant:
            raise RequestRefused(404, "unknown-partition", f"this node has no copy of partition {partition}")
        return struct_reply(TreesRebuilt(meant), REBUILD.status)


def _kind(name: str) -> CheckKind:
    if name not in KINDS:
        raise RequestRefused(400, "bad-json", f"kind {name!r} is not known; write one of {', '.join(KINDS)}")
    return KINDS[name]


def _with_sharing(peer: FullSyncPeerRow, nodes: Mapping[str, list[FullSyncPeerRow] | None]) -> FullSyncPeerRow:
    """A peer with the nodes that compare with its cluster, too."""
    shared_by, silent = sharing(peer, nodes)
    return replace(peer, shared_by=shared_by, unknown=silent, warning=warning(shared_by, silent, len(nodes)))


def _result_of_node(node: str, result: PeerResultRow) -> NodeResultRow:
    return NodeResultRow(node=node, **{name: getattr(result, name) for name in result.__struct_fields__})

"""The admin face: what operators, the command line and Prometheus ask one node about its cluster.

JSON in and out; every state has a reason, every unknown value is null. Errors are {"error", "reason"}. Nothing here
decides: it shows what the parts say and passes on what an operator wants. docs/http.md lists the paths.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from config.rules import check_name
from node import cluster_view, moves_view
from node.gathering import Gathering
from node.http.acts import ActsAdmin
from node.http.asgi import Face, Request, json_reply
from node.http.bucket_types import BucketTypesAdmin
from node.http.folds import add_folds
from node.http.fullsync import FullSyncAdmin
from node.http.health import add_health
from node.http.knowing import KnowingAdmin
from node.http.leaderships import GLANCE_MS, LeadershipsAdmin, glance
from node.http.moves import MovesAdmin
from node.http.openapi import add_openapi
from node.http.options import OptionsAdmin
from node.http.program import program_version
from node.http.property_admin import PropertiesAdmin
from node.http.queue_admin import QueueAdmin
from node.http.reaps import ReapsAdmin
from node.http.sink import SinkAdmin
from node.http.statuses import Refused, Reply, refusal
from node.http.telemetry import TelemetryAdmin
from node.http.wishes import flag, text, wish_of
from repl.assigning import PlacementDiffers
from repl.creation import DEFAULT_TYPE
from repl.isr.replica_map import BadReplicaMap, checked_replica_map
from repl.metastore.port import SessionState
from repl.model.errors import IsthmusError

if TYPE_CHECKING:
    from node.daemon import Node

ASSIGN_KEYS: Final = frozenset({"bucket_type", "partitions", "validate_only"})
"""What the body of an assignment may have: a replica map, and what to do with it."""


class Admin(Face):
    """Routes over the parts of a running node."""

    def __init__(self, node: Node, gathering: Gathering) -> None:
        super().__init__()
        self._node = node
        self._gathering = gathering
        add_health(self.router, ready=node.ready, metrics=node.metrics.render)
        add_openapi(self, "Isthmus: operators", program_version())
        router = self.router
        router.add("GET", "/admin/cluster", self.cluster)
        router.add("GET", "/admin/partitions", self.partitions)
        router.add("POST", "/admin/partitions/assign", self.partitions_assign)
        BucketTypesAdmin(node, router)
        OptionsAdmin(node, router)
        PropertiesAdmin(node, router)
        ReapsAdmin(node, router)
        ActsAdmin(node, gathering, router)
        LeadershipsAdmin(node, router)
        MovesAdmin(node, gathering, router)
        QueueAdmin(node, router)
        KnowingAdmin(node, router)
        SinkAdmin(node, router)
        TelemetryAdmin(node, router)
        FullSyncAdmin(node, self)
        add_folds(self, node)

    def refusal(self, error: IsthmusError) -> Reply:
        """See Face.refusal; here as JSON."""
        plain = refusal(error)
        reply = json_reply({"error": plain.body.decode().strip(), "reason": error.reason}, plain.status)
        return reply._replace(headers=[*reply.headers, *(h for h in plain.headers if h[0] != b"content-type")])

    # -- the cluster --------------------------------------------------------------------------------------

    async def cluster(self, _request: Request) -> Reply:
        """Who is there, who leads, what is not as it should be. Of the metastore; but it waits a moment for the node
        that controls, which alone knows what it moves, and for what the live ones say of their replicas."""
        node, controller = self._node, self._node.controller
        records, registrations = controller.records, controller.registrations
        serves, why_not = node.ready()
        doubts = []
        if controller.read_at_ms is None:
            doubts.append("this node has not read the metastore yet")
        elif node.session is not SessionState.CONNECTED:
            why = controller.metastore.trouble
            doubts.append(
                f"this node's session with the metastore is {node.session.value}: "
                + (f"{why}; what is shown is of before (docs/runbooks.md)" if why else "what is shown may be old")
            )
        if controller.read_at_ms is not None and not node.registrar.inc:
            doubts.append(f"this node, {node.settings.node.name}, is not registered: {node.registrar.why}")
        live = [name for name, found in registrations.items() if found.active]
        balancing, facts = await asyncio.gather(glance(node), self._gathering.gather(live, GLANCE_MS))
        drained, seen = controller.placement.drained, (records, registrations)
        problems = [*doubts, *cluster_view.problems(*seen, controller.waiting, drained, facts, controller.unread.why)]
        moving = moves_view.glance_of(controller.placement, records, registrations)
        state, state_reason = cluster_view.state_of(balancing, problems, moving["reason"])
        troubles = (node.sink.failing(), node.sink.passed_over())
        links = [f"to other clusters, at node {node.settings.node.name}: {why}" for why in troubles if why]
        return json_reply(
            {
                "cluster": node.settings.node.cluster,
                "state": state,
                "state_reason": state_reason,
                "cluster_uuid": node.cluster_uuid.hex(),
                "node": node.settings.node.name,
                "ready": serves,
                "reason": why_not,
                "version": program_version(),
                "controller": controller.controller,
                "metastore": node.session.value,
                "registered": node.registrar.inc != 0,
                "read_at_ms": controller.read_at_ms,
                "started_ms": node.started_ms,
                "partitions": cluster_view.partition_counts(records),
                "replicas": cluster_view.replica_counts(records),
                "under_replicated": cluster_view.under_replicated(records),
                "below_min_isr": cluster_view.below_min_isr(records),
                "unclean_elections": cluster_view.unclean_elections(records),
                "waiting": controller.waiting,
                "balancing": balancing,
                "moving": moving,
                "problems": problems,
                "warnings": [*node.locks.problems(), *cluster_view.silent(facts), *links],
                "silent": sorted(name for name, said in facts.items() if said is None),
                "nodes": cluster_view.node_rows(records, registrations, drained),
                "actors": [node.queues.status(), node.sink.status(), node.fullsync.status()],
            }
        )

    async def partitions(self, request: Request) -> Reply:
        """Every partition (of ?bucket_type=T) with its leader, replicas, offsets and the reason of its state."""
        controller = self._node.controller
        wanted = request.query.get("bucket_type")
        records = {p: r for p, r in controller.records.items() if wanted is None or r.bucket_type == wanted}
        if wanted is not None and not records:
            kinds = ", ".join(sorted({r.bucket_type for r in controller.records.values()})) or "none"
            raise Refused(404, "unknown-bucket-type", f"there is no bucket type {wanted[:64]!r}; there are {kinds}")
        registrations = controller.registrations
        held = {node for record in records.values() for node in record.replicas}
        facts = await self._gathering.gather(held & registrations.keys())
        rows = cluster_view.partition_rows(records, registrations, facts, controller.unread.why)
        return json_reply({"partitions": rows})

    async def partitions_assign(self, request: Request) -> Reply:
        """Create a bucket type with an operator's placement, or only say whether it would be taken."""
        wish = await wish_of(request, ASSIGN_KEYS)
        validate_only = flag(wish, "validate_only")
        try:
            bucket_type = check_name(text(wish, "bucket_type") or DEFAULT_TYPE)
        except ValueError as error:
            raise Refused(400, "bad-json", f"bucket_type: {error}") from None
        try:
            replica_map = checked_replica_map({"partitions": wish.get("partitions")})
            outcome = await self._node.controller.assign(bucket_type, replica_map, validate_only=validate_only)
        except BadReplicaMap as error:
            raise Refused(400, "bad-replica-map", str(error)) from error
        except PlacementDiffers as error:
            raise Refused(409, "placement-differs", str(error)) from error
        return json_reply({"outcome": outcome, "bucket_type": bucket_type, "partitions": len(replica_map)})

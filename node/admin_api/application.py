"""The admin API: requests of operators, the command line and Prometheus about the cluster.

JSON in and out; every state has a reason, every unknown value is null. Errors are {"error", "reason"}. Nothing here
decides: handlers show the components' state and pass changes on. docs/http-admin.md lists the paths.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from isthmus.node.admin_api.bucket_types import BucketTypesAdmin
from isthmus.node.admin_api.findings import FindingsAdmin
from isthmus.node.admin_api.folds import add_folds
from isthmus.node.admin_api.fullsync import FullSyncAdmin
from isthmus.node.admin_api.history import HistoryAdmin
from isthmus.node.admin_api.journal import JournalAdmin
from isthmus.node.admin_api.leaders import GLANCE_MS, LeadershipsAdmin, balance_summary
from isthmus.node.admin_api.live import LiveAdmin
from isthmus.node.admin_api.options import OptionsAdmin
from isthmus.node.admin_api.partitions import PartitionsAdmin
from isthmus.node.admin_api.properties import PropertiesAdmin
from isthmus.node.admin_api.queues import QueueAdmin
from isthmus.node.admin_api.reassignments import ReassignmentsAdmin
from isthmus.node.admin_api.reconcile import ReconcileAdmin
from isthmus.node.admin_api.replication import ReplicationAdmin
from isthmus.node.admin_api.riaks import RiakAdmin
from isthmus.node.admin_api.sinks import SinkAdmin
from isthmus.node.admin_api.telemetry import TelemetryAdmin
from isthmus.node.admin_api.tombstones import ReapsAdmin
from isthmus.node.http.answer_texts import links_sentence
from isthmus.node.http.application import AccessControl, HttpApplication, Request, json_reply
from isthmus.node.http.durations import RequestDurations
from isthmus.node.http.health import NodeStatus, add_health
from isthmus.node.http.openapi import add_openapi
from isthmus.node.http.responses import Reply, refusal, refusal_in_json
from isthmus.node.observability.version import program_version
from isthmus.node.services import cluster_status, reassignment_status
from isthmus.node.services.cluster_query import TIMEOUT_MS, Query
from isthmus.node.services.container import NodeServices
from isthmus.node.services.membership import not_alive
from isthmus.node.services.node_query import NODE_HEALTH
from isthmus.node.services.replica_query import REPLICAS, ReplicaForm
from isthmus.node.services.support_query import SUPPORT
from isthmus.repl.metastore.port import SessionState
from isthmus.repl.model.errors import IsthmusError

SUPPORT_TIMEOUT_MS: Final = 10_000
"""How long a node may take for its part of a support bundle, some hundred kilobytes."""


class AdminApi(HttpApplication):
    """The application behind the `admin` listener."""

    def __init__(
        self,
        services: NodeServices,
        status: NodeStatus,
        access: AccessControl,
    ) -> None:
        super().__init__(access, RequestDurations())
        self._services = services
        self._status = status
        add_health(self.router, status)
        add_openapi(self, "Isthmus: operators", program_version())
        router = self.router
        router.add("GET", "/admin/cluster", self.cluster)
        router.add("GET", "/admin/nodes/health", self.health)
        router.add("GET", "/admin/support", self.support)
        BucketTypesAdmin(services, router)
        OptionsAdmin(services, router)
        PropertiesAdmin(services, router)
        ReapsAdmin(services, router)
        PartitionsAdmin(services, router)
        LeadershipsAdmin(services, router)
        ReassignmentsAdmin(services, router)
        queues = QueueAdmin(services, router)
        replication = ReplicationAdmin(services, router, status)
        sinks = SinkAdmin(services, router)
        RiakAdmin(services, router)
        TelemetryAdmin(services, router)
        JournalAdmin(services, router)
        HistoryAdmin(services, router)
        self.live = LiveAdmin(services, self, router)
        fullsync = FullSyncAdmin(services, self)
        documents = {
            "cluster": self.cluster_document,
            "health": self.health_document,
            "lag": replication.lag_document,
            "sinks": sinks.nodes_document,
            "fullsync": fullsync.checks_document,
            "gaps": queues.gaps_document,
        }
        self.findings = FindingsAdmin(services, documents, router)
        ReconcileAdmin(services, router)
        add_folds(self, services)

    def stop(self) -> None:
        """End the streams of viewers, and questions that are under way."""
        super().stop()
        self.live.stop()
        self.findings.stop()

    def refusal(self, error: IsthmusError) -> Reply:
        """See HttpApplication.refusal; here as JSON, whatever the client asks for."""
        return refusal_in_json(refusal(error))

    # -- the cluster --------------------------------------------------------------------------------------

    async def cluster(self, _request: Request) -> Reply:
        """The state of the cluster: nodes, counts, controller, problems and their reasons.

        `state` is `online`, `leadership-balancing`, `placement-changing` or `degraded`. From the metastore as this node
        last read it, and from live nodes' reports of replicas out of sync and of full disks. Nodes that do not answer
        within 0.5 s are in `silent`, and in `warnings` unless their replicas are out of sync; `balancing` is null if
        the controller is one of them. `outdated_why`: why this node shows earlier records while the metastore answers
        and has gone back, else "". `registered` is false while this node is not registered in the metastore. Of
        `problems`, `doubts` are the reasons why what this node shows may be old, `unreadable` names the documents of
        the metastore that cannot be read, and `writes_refused` has those of each node that refuses writes.
        """
        return json_reply(await self.cluster_document())

    async def cluster_document(self) -> dict[str, Any]:
        """The answer to `GET /admin/cluster`.

        From the metastore; it waits up to GLANCE_MS for the controller, which alone knows what it moves, and for the
        live nodes' facts about their replicas.
        """
        services, controller = self._services, self._services.controller
        records, registrations = controller.records, controller.registrations
        serves, why_not = self._status.ready()
        doubts = []
        if controller.read_at_ms is None:
            doubts.append("this node has not read the metastore yet")
        elif services.session is not SessionState.CONNECTED:
            why = controller.metastore.rolled_back
            doubts.append(
                f"this node's session with the metastore is {services.session.value}: "
                + (f"{why}; what is shown is of before (docs/runbooks.md)" if why else "what is shown may be old")
            )
        elif controller.outdated_why:
            doubts.append(f"{controller.outdated_why}; what is shown is of before (docs/runbooks.md)")
        if controller.read_at_ms is not None and not services.registrar.session_id:
            doubts.append(f"this node, {services.settings.node.name}, is not registered: {services.registrar.why}")
        live = [name for name, found in registrations.items() if found.active]
        balancing, answers = await asyncio.gather(
            balance_summary(services), services.query.ask(REPLICAS, ReplicaForm.WITH_OUT, live, timeout_ms=GLANCE_MS)
        )
        facts = answers.by_node
        drained, seen = controller.placement.drained, (records, registrations)
        problems = [*doubts, *cluster_status.problems(*seen, controller.waiting, drained, facts, controller.unread.why)]
        moving = reassignment_status.summary_of(controller.placement, records, registrations)
        state, state_reason = cluster_status.state_of(balancing, problems, moving["reason"])
        reasons = (services.sink.failing(), services.sink.passed_over())
        links = [links_sentence(services.settings.node.name, why) for why in reasons if why]
        return {
            "cluster": services.settings.node.cluster,
            "state": state,
            "state_reason": state_reason,
            "cluster_uuid": services.cluster_uuid.hex(),
            "node": services.settings.node.name,
            "ready": serves,
            "reason": why_not,
            "version": program_version(),
            "controller": controller.controller,
            "metastore": services.session.value,
            "registered": services.registrar.session_id != 0,
            "read_at_ms": controller.read_at_ms,
            "outdated_why": controller.outdated_why,
            "started_ms": services.started_ms,
            "partitions": cluster_status.partition_counts(records),
            "replicas": cluster_status.replica_counts(records),
            "under_replicated": cluster_status.under_replicated(records),
            "below_min_isr": cluster_status.below_min_isr(records),
            "unclean_elections": cluster_status.unclean_elections(records),
            "waiting": controller.waiting,
            "balancing": balancing,
            "moving": moving,
            "problems": problems,
            "doubts": doubts,
            "unreadable": cluster_status.unreadable(records, controller.unread.why),
            "writes_refused": cluster_status.writes_refused(records, facts),
            "urgent": services.credentials.urgent(),
            "warnings": [*services.credentials.problems(), *cluster_status.silent(facts), *links],
            "silent": sorted(name for name, reported in facts.items() if reported is None),
            "nodes": [msgspec.to_builtins(row) for row in cluster_status.node_rows(records, registrations, drained)],
            "actors": [services.queues.status(), services.sink.status(), *services.fullsync.statuses()],
        }

    async def health(self, _request: Request) -> Reply:
        """Version, start, disk and certificates of every node; null for a node that does not answer, with the reason in
        `unknown`.

        Disk: `free_bytes`, `total_bytes`. Certificates: when they expire, and their problems. `clocks`: how far the
        clocks of other nodes and of linked clusters are from this node's (`offset_ms`, exact to `bound_ms`).
        """
        return json_reply(await self.health_document())

    async def health_document(self) -> dict[str, Any]:
        """The answer to `GET /admin/nodes/health`."""
        return await self._of_nodes(NODE_HEALTH)

    async def support(self, _request: Request) -> Reply:
        """Values in force, last log lines (256 KB) and metrics of every node, without secrets; null for one that does
        not answer.

        `unknown` has the reason. Role `operate`.
        """
        return json_reply(await self._of_nodes(SUPPORT, SUPPORT_TIMEOUT_MS))

    async def _of_nodes(self, query: Query[None, Any], timeout_ms: int = TIMEOUT_MS) -> dict[str, Any]:
        """The answers of all nodes to a query without parameters; null for one without, and why."""
        services = self._services
        live = services.membership.live_nodes()
        answers = await services.query.ask(query, None, live, timeout_ms=timeout_ms, own_may_fail=True)
        unknown = {**not_alive(services.membership.known_nodes() - live), **answers.unknown}
        found = {**dict.fromkeys(unknown), **answers.by_node}
        nodes = {node: None if one is None else msgspec.to_builtins(one) for node, one in sorted(found.items())}
        return {"nodes": nodes, "unknown": unknown, "at_ms": services.time.wall_ms()}

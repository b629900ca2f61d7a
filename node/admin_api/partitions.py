"""Partitions in the admin API: what they are, a placement by a replica map, and a forced leader."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from isthmus.config.validation import check_name
from isthmus.node.admin_api.unsafe_recovery import UnsafeRecoveryAdmin, record_of
from isthmus.node.http.application import Request
from isthmus.node.http.json_body import add_noun, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.partition import (
    ASSIGN,
    FORCE_LEADER,
    PARTITION,
    AssignPartitionsRequest,
    PartitionRow,
    Partitions,
    PartitionsAssigned,
)
from isthmus.node.services import cluster_status
from isthmus.node.services.container import NodeServices
from isthmus.node.services.replica_query import REPLICAS, ReplicaForm
from isthmus.repl.controller.bucket_types import DEFAULT_TYPE, PlacementDiffers
from isthmus.repl.controller.placement import BadReplicaMap, checked_replica_map
from isthmus.repl.model.record import PartitionRecord


class PartitionsAdmin:
    """Routes over the partitions of the cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        recovery = UnsafeRecoveryAdmin(services, router)
        add_noun(router, PARTITION, self.listed, self.shown, {FORCE_LEADER: recovery.force_leader, ASSIGN: self.assign})

    async def listed(self, request: Request) -> Reply:
        """Every partition (of ?bucket_type=T) with its leader, replicas, offsets and the reason of its state.

        Each live node is asked for its replicas and has 2 s; one that does not answer is null.
        """
        known = self._services.controller.records
        wanted = request.query.get("bucket_type")
        records = {p: r for p, r in known.items() if wanted is None or r.bucket_type == wanted}
        if wanted is not None and not records:
            kinds = ", ".join(sorted({r.bucket_type for r in known.values()})) or "none"
            raise RequestRefused(
                404, "unknown-bucket-type", f"there is no bucket type {wanted[:64]!r}; there are {kinds}"
            )
        return struct_reply(Partitions(await self._rows(records)))

    async def shown(self, request: Request) -> Reply:
        """One partition, with all that its replicas report."""
        record = record_of(request.text("partition"), self._services.controller.records)
        (row,) = await self._rows({record.partition: record})
        return struct_reply(row)

    async def _rows(self, records: Mapping[int, PartitionRecord]) -> list[PartitionRow]:
        controller = self._services.controller
        registrations = controller.registrations
        held = {node for record in records.values() for node in record.replicas}
        facts = (await self._services.query.ask(REPLICAS, ReplicaForm.WITH_OUT, held & registrations.keys())).by_node
        outdated = dict.fromkeys((f"/p/{p}" for p in records), controller.outdated_why)
        unread = outdated if controller.outdated_why else controller.unread.why
        return cluster_status.partition_rows(records, registrations, facts, unread)

    async def assign(self, request: Request, body: AssignPartitionsRequest) -> Reply:
        """Create a bucket type with an operator's placement, or only check the placement."""
        try:
            bucket_type = check_name(body.bucket_type or DEFAULT_TYPE)
        except ValueError as error:
            raise RequestRefused(400, "bad-json", f"bucket_type: {error}") from None
        try:
            replica_map = checked_replica_map({"partitions": body.partitions})
            outcome = await self._services.controller.assign(bucket_type, replica_map, validate_only=body.validate_only)
        except BadReplicaMap as error:
            raise RequestRefused(400, "bad-replica-map", str(error)) from error
        except PlacementDiffers as error:
            raise RequestRefused(409, "placement-differs", str(error)) from error
        request.changed(None, {"outcome": outcome, "bucket_type": bucket_type, "partitions": len(replica_map)})
        return struct_reply(PartitionsAssigned(outcome, bucket_type, len(replica_map)))

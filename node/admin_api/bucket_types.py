"""Bucket types in the admin API: list, show with their placement, create.

`repl.controller.bucket_types` creates them. The answer to a creation waits until the new partitions are online, so that
every node can serve the bucket type.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import msgspec

from isthmus.config.dynamic_options import MIN_ISR, OPTIONS
from isthmus.config.text import no_such
from isthmus.config.validation import check_name
from isthmus.node.admin_api.acting_user import acting_user
from isthmus.node.http.application import Request
from isthmus.node.http.json_body import add_noun, struct_reply
from isthmus.node.http.responses import Reply, RequestRefused
from isthmus.node.http.router import Router
from isthmus.node.nouns.bucket_type import (
    BUCKET_TYPE,
    CREATE,
    BucketTypeCreated,
    BucketTypeRow,
    BucketTypes,
    BucketTypeShown,
    CreateBucketTypeRequest,
    PartitionPlace,
    PlacedPartition,
)
from isthmus.node.services.container import NodeServices
from isthmus.node.services.option_status import option_rows
from isthmus.repl.controller.bucket_properties import PropertyScope
from isthmus.repl.controller.bucket_types import PLACEMENTS, BucketTypeExists, BucketTypeSpec, create_bucket_type
from isthmus.repl.controller.placement import (
    BadReplicaMap,
    checked_replica_map,
)
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.model.record import PartitionRecord, PartitionStatus

ONLINE_S: Final = 10.0
"""How long a creation waits until all partitions of the bucket type are online: elections take well below a second."""

POLL_S: Final = 0.05
"""Interval of the checks in between."""


class BucketTypesAdmin:
    """Routes over the bucket types of the cluster."""

    def __init__(self, services: NodeServices, router: Router[Callable[..., Any]]) -> None:
        self._services = services
        add_noun(router, BUCKET_TYPE, self.listed, self.shown, {CREATE: self.create})

    async def listed(self, _request: Request) -> Reply:
        """Every bucket type."""
        kinds = sorted({record.bucket_type for record in self._services.controller.records.values()})
        return struct_reply(BucketTypes([self._row(kind) for kind in kinds]))

    async def shown(self, request: Request) -> Reply:
        """One bucket type with its placement: by node, and by node id as in placement files (null for a node that is
        gone)."""
        name = request.text("name")
        records = self._records(name)
        if not records:
            known = sorted({record.bucket_type for record in self._services.controller.records.values()})
            raise RequestRefused(404, "unknown-bucket-type", no_such("bucket type", name, known))
        ids = {found.node: found.id for found in self._services.controller.registrations.values()}
        partitions = [
            PlacedPartition(
                record.index,
                replicas=[ids.get(node) for node in record.staying],
                nodes=list(record.staying),
                adding=list(record.adding),
                removing=list(record.removing),
                partition=record.partition,
                leader=None if record.leader is None else record.leader.node,
                status=record.status.value,
            )
            for record in records
        ]
        properties = self._services.properties.rows(PropertyScope(name))
        row = msgspec.structs.asdict(self._row(name))
        return struct_reply(BucketTypeShown(**row, partitions=partitions, properties=properties))

    async def create(self, request: Request, body: CreateBucketTypeRequest) -> Reply:
        """Create a bucket type, or show what would be created.

        `placement` is `auto`, `computed` or `rack-aware`; `partitions`, as in a placement file, replaces it and the
        numbers. Answers once the type is online, or after 10 s: `outcome` (`created`, `exists`, `valid`), `online`, and
        the placement.
        """
        try:
            name = check_name(request.text("name"))
        except ValueError as error:
            raise RequestRefused(400, "bad-input", f"the bucket type: {error}") from None
        try:
            wanted = self._wanted(name, body)
            props = self._props(body, wanted.replication_factor)
            dry_run = body.dry_run
            outcome, replica_map = await create_bucket_type(
                self._services.controller.metastore, wanted, dry_run=dry_run
            )
        except BadReplicaMap as error:
            raise RequestRefused(400, "bad-replica-map", str(error)) from error
        except BucketTypeExists as error:
            raise RequestRefused(409, "bucket-type-exists", str(error)) from error
        if props and not dry_run:
            # After the bucket type exists, so that there are no properties of a bucket type that was never created; run
            # again, the command finds the bucket type and sets them.
            await self._services.properties.set(PropertyScope(name), props, acting_user(body.by))
        if not dry_run:
            state = {"partitions": len(replica_map), "replication_factor": wanted.replication_factor, "props": props}
            request.changed(None, {"outcome": outcome, **state})
        if outcome == "created":
            await self._online(name, len(replica_map))
        online = sum(record.status is PartitionStatus.ONLINE for record in self._records(name))
        places = [PartitionPlace(n, list(replicas)) for n, replicas in enumerate(replica_map)]
        return struct_reply(BucketTypeCreated(outcome, name, online, places))

    def _wanted(self, name: str, body: CreateBucketTypeRequest) -> BucketTypeSpec:
        partition_count, factor = body.partition_count, body.replication_factor
        placement = body.placement or PLACEMENTS[0]
        replica_map = None
        if body.partitions is not msgspec.UNSET:
            if partition_count is not None or factor is not None:
                raise RequestRefused(400, "bad-json", "partitions already places all replicas: give no count or factor")
            replica_map = checked_replica_map({"partitions": body.partitions})
            partition_count, factor = len(replica_map), len(replica_map[0])
        elif partition_count is None or factor is None:
            raise RequestRefused(400, "bad-json", "partition_count and replication_factor are needed, or partitions")
        if placement not in PLACEMENTS:
            raise RequestRefused(400, "bad-json", f"placement is one of {', '.join(PLACEMENTS)}")
        min_isr = None
        if body.min_isr is not None:
            try:
                value = OPTIONS[MIN_ISR].typed(body.min_isr)
            except ValueError as error:
                raise RequestRefused(400, "bad-option", str(error)) from None
            min_isr = Setting.made(value, acting_user(body.by), self._services.time.wall_ms())
        return BucketTypeSpec(name, partition_count, factor, placement, replica_map, min_isr)

    def _props(self, body: CreateBucketTypeRequest, factor: int) -> dict[str, Any]:
        """The properties of the body, checked before anything is created."""
        props = body.props or {}
        self._services.properties.judged(props, factor)
        return props

    async def _online(self, name: str, partition_count: int) -> None:
        """Return once the bucket type is online, as this node reads it; or after ONLINE_S."""
        self._services.controller.wake()
        for _ in range(round(ONLINE_S / POLL_S)):
            records = self._records(name)
            if len(records) == partition_count and all(r.status is PartitionStatus.ONLINE for r in records):
                return
            await asyncio.sleep(POLL_S)

    def _records(self, name: str) -> list[PartitionRecord]:
        found = [record for record in self._services.controller.records.values() if record.bucket_type == name]
        return sorted(found, key=lambda record: record.index)

    def _row(self, name: str) -> BucketTypeRow:
        controller, records = self._services.controller, self._records(name)
        (min_isr,) = option_rows(
            controller.options, controller.records, self._services.options, names=[MIN_ISR], bucket_type=name
        )
        factors = sorted({record.factor for record in records})
        pending = controller.placement.pending()
        then = sorted({len(pending[r.partition][1] if r.partition in pending else r.staying) for r in records})
        orders = self._orders(records)
        return BucketTypeRow(
            name,
            partition_count=len(records),
            replication_factor=factors[0] if len(factors) == 1 else None,
            min_isr=min_isr.effective,
            min_isr_set=min_isr.set,
            online=sum(record.status is PartitionStatus.ONLINE for record in records),
            in_sync=sum(len(record.isr) >= record.factor for record in records),
            changing=sum(bool(record.adding or record.removing) for record in records),
            replication_factor_then=then[0] if len(then) == 1 else None,
            orders=orders,
        )

    def _orders(self, records: list[PartitionRecord]) -> list[int]:
        """The numbers of pending orders that change partitions of a bucket type."""
        pending = self._services.controller.placement.pending()
        return sorted({pending[record.partition][0].number for record in records if record.partition in pending})

"""What serves rows to batch jobs, made and wired: which copies this node has, and who leads.

The parts are `aae.row_streams` and `aae.row_plan`; the routes are `node.http.rows`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from aae.local import Led
from aae.row_plan import RowPlan
from aae.row_streams import Held, RowStreams
from repl.controller import Controller
from repl.model.errors import NotLeader
from repl.partition import Partition
from repl.runtime import Runtime
from repl.store.port import Store


def row_streams_of(runtime: Runtime, store: Store, *, cluster: bytes, cluster_name: str) -> RowStreams:
    """Streams of the copies on this node."""

    def held(partition: int) -> Held | None:
        found = runtime.partitions.get(partition)
        return None if found is None or found.removed else _held(found, store)

    async def confirm(partition: int) -> None:
        found = runtime.partitions.get(partition)
        if found is None:
            raise NotLeader(f"this node does not lead partition {partition}")
        await runtime.committed(found)

    return RowStreams(
        store, cluster=cluster, cluster_name=cluster_name, node=runtime.node, held=held, confirm=confirm
    )  # fmt: skip


def row_plan_of(
    streams: RowStreams,
    runtime: Runtime,
    store: Store,
    controller: Controller,
    *,
    partitions: Callable[[bytes], object],
    request: Callable[[str, str, bytes, int], Awaitable[bytes]],
) -> RowPlan:
    """Plans of the cluster. `partitions(bucket_type)` raises when they are not all known."""

    def ranges(bucket_type: bytes) -> Mapping[int, tuple[tuple[int, int], int]]:
        partitions(bucket_type)
        name = bucket_type.decode()
        return {
            record.partition: (
                Led(record.partition, record.index, record.partition_count).segments,
                record.lineage,
            )
            for record in controller.records.values()
            if record.bucket_type == name
        }

    return RowPlan(
        streams,
        node=runtime.node,
        copies=lambda bucket_type: [
            _held(found, store)
            for found in runtime.partitions.values()
            if found.bucket_type == bucket_type and not found.removed
        ],
        ranges=ranges,
        urls=lambda: {r.node: r.http_url for r in controller.registrations.values() if r.active and r.http_url},
        request=request,
    )


def _held(found: Partition, store: Store) -> Held:
    replica = found.replica
    segments = Led(found.id, found.index, found.partition_count).segments
    whole = replica.far_position is None and not store.needs_replay()
    return Held(found.bucket_type, found.id, segments, leads=replica.ready, whole=whole)

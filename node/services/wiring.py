"""From settings to the numbers and parts that the rooms of `repl` are given: the one place that knows both.

`repl` never reads settings; the daemon builds it with what stands here. Values that an operator leaves open (0, "") get
their meaning here, once.

What serves rows to batch jobs, made and wired: which copies this node has, and who leads.

The parts are `aae.row_stream.streams` and `aae.row_stream.plan`; the routes are `node.client_api.row_streams`.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final

from isthmus.aae.exchange.local import Led
from isthmus.aae.row_stream.plan import RowPlan
from isthmus.aae.row_stream.streams import LocalReplica, RowStreams
from isthmus.aae.trees.tree_cache import ReplicaSnapshot
from isthmus.config.settings import MB, Settings
from isthmus.repl.controller.bucket_types import SETTLE_MS, DefaultType
from isthmus.repl.controller.controller import Controller
from isthmus.repl.controller.leader_balancer import BalanceOptions
from isthmus.repl.controller.log_positions import Position
from isthmus.repl.coordinator.write_batch import WriteLimits
from isthmus.repl.isr.epochs import last_epoch
from isthmus.repl.metastore.zookeeper import ZooKeeperMetastore
from isthmus.repl.model.errors import BadInput, NotLeader
from isthmus.repl.model.record import Registration
from isthmus.repl.replog.log import FileLog
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.security.tls import LinkTls
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import Store
from isthmus.repl.transport.links import ClusterLinks
from isthmus.repl.transport.port import Delivery


def row_streams_of(runtime: Runtime, store: Store, *, cluster: bytes, cluster_name: str) -> RowStreams:
    """Streams of the copies on this node."""

    def held(partition: int) -> LocalReplica | None:
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


def _held(found: Partition, store: Store) -> LocalReplica:
    replica = found.replica
    segments = Led(found.id, found.index, found.partition_count).segments
    whole = replica.far_position is None and not store.needs_replay()
    return LocalReplica(found.bucket_type, found.id, segments, leads=replica.ready, whole=whole)


FACTOR_OF_ENSEMBLE: Final = 3
"""replication.factor where none is set and an ensemble is named: a cluster of several nodes is meant."""

ENTRY_HEAD_BYTES: Final = MB
"""Room in an entry for all that is not a value: bucket and key up to three times, user metadata, links, clocks."""

HEAD_BYTES: Final = MB
"""What a message has besides its longest entry: soft cursors, names, numbers. Far above what they take."""

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(node that asks, body) -> the answer's body; raises IsthmusError."""


def entry_limit_bytes(settings: Settings) -> int:
    """The longest entry that may be appended: an object of twice the largest value, that is one with siblings, and what
    keys, headers and clocks take beside it."""
    return 2 * settings.limits.object_bytes + ENTRY_HEAD_BYTES


def message_limit_bytes(settings: Settings) -> int:
    """The longest message between nodes: the longest entry, or a batch of a client that is passed on."""
    return max(entry_limit_bytes(settings), settings.limits.batch_bytes) + HEAD_BYTES


def boot_id() -> str:
    """The kernel's id of this boot; another one means that unsynced data may be gone."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def default_type_of(settings: Settings) -> DefaultType:
    """How the `default` bucket type is created. With an embedded metastore a node is alone unless told otherwise, and
    then does not wait for others."""
    replication = settings.replication
    shared = bool(settings.metastore.hosts)
    factor = replication.factor or (FACTOR_OF_ENSEMBLE if shared else 1)
    return DefaultType(
        partition_count=replication.partitions,
        factor=factor,
        min_isr=replication.min_isr,
        from_file=replication.placement == "file",
        ignore_racks=replication.ignore_rack_assignment,
        settle_ms=SETTLE_MS if shared or factor > 1 else 0,
    )


def balance_options_of(settings: Settings) -> BalanceOptions:
    """When leaderships are spread, and how many at a time."""
    replication = settings.replication
    return BalanceOptions(
        automatic=replication.balance,
        delay_ms=replication.balance_delay_ms,
        moves=replication.balance_moves,
        cool_down_ms=replication.balance_cool_down_ms,
        timeout_ms=replication.handover_timeout_ms,
    )


def write_limits_of(settings: Settings) -> WriteLimits:
    """Limits of one write."""
    limits = settings.limits
    entry_bytes = entry_limit_bytes(settings)
    return WriteLimits(
        limits.object_bytes, limits.siblings, entry_bytes, limits.object_warn_bytes, limits.siblings_warn
    )


def metastore_of(settings: Settings, hosts: str, tls: Callable[[], ssl.SSLContext] | None = None) -> ZooKeeperMetastore:
    """The metastore at `hosts`, not yet started; with `tls` its sessions speak it."""
    metastore = settings.metastore
    return ZooKeeperMetastore(
        hosts,
        root=metastore.root,
        cluster=settings.node.cluster,
        session_timeout_ms=metastore.session_timeout_ms,
        connect_timeout_ms=metastore.connect_timeout_ms,
        tls=tls,
    )


def open_store(settings: Settings, cluster_uuid: bytes, boot_id: str) -> LevelStore:
    """The store of the data directory. Blocks; raises LocalFault."""
    replication = settings.replication
    return LevelStore.open(
        settings.node.data_dir / "store",
        cluster_uuid=cluster_uuid,
        write_buffer_bytes=replication.write_buffer_bytes,
        block_cache_bytes=replication.block_cache_bytes,
        boot_id=boot_id,
        request_window_offsets=replication.dedup_window_count,
    )


def open_log(settings: Settings, cluster_uuid: bytes, known_durable: Mapping[int, int]) -> FileLog:
    """The log of the data directory; `known_durable` as in `FileLog.open`. Blocks; raises LocalFault."""
    replication = settings.replication
    return FileLog.open(
        settings.node.data_dir / "log",
        cluster_uuid=cluster_uuid,
        durability=replication.durability,
        size_limit_bytes=replication.log_size_bytes,
        file_bytes=replication.log_file_bytes,
        batch_bytes=replication.log_batch_bytes,
        known_durable=known_durable,
    )


def portrait_of(settings: Settings, *, http_url: str, admin_url: str, cluster_address: str) -> Registration:
    """What the node says of itself in the metastore, without its session and copies."""
    return Registration(
        node=settings.node.name,
        session_id=0,
        active=True,
        http_url=http_url,
        admin_url=admin_url,
        cluster_address=cluster_address,
        id=settings.node.id,
        rack=settings.node.rack,
    )


def position_of(runtime: Runtime, partition: int) -> Position | None:
    """(last epoch, LEO) of this node's copy of a partition; None when it has none."""
    found = runtime.partitions.get(partition)
    return None if found is None else (last_epoch(found.replica.epoch_table), found.replica.leo)


def in_sync_of(runtime: Runtime, partition: int) -> list[str]:
    """The other nodes whose copies of a partition are in sync as this node's is, the leader first; none where this
    node's is not."""
    found = runtime.partitions.get(partition)
    record = None if found is None else found.replica.record
    if found is None or record is None or found.replica.far_position is not None:
        return []
    names = {member.node for member in record.isr}
    leader = record.leader.node if record.leader else ""
    return sorted(names - {runtime.node}, key=lambda name: (name != leader, name)) if runtime.node in names else []


async def mended(runtime: Runtime, partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
    """`FarStore.mend`, between two batches; False of a copy that is not here any more."""
    found = runtime.partitions.get(partition)
    return found is not None and await runtime.mend(found, chunk, seen, upto)


async def change_dropped(runtime: Runtime, partition: int, offset: int, seen: bytes) -> bool:
    """`FarStore.drop_change`, in the same way."""
    found = runtime.partitions.get(partition)
    return found is not None and await runtime.drop_change(found, offset, seen)


def links_of(
    settings: Settings,
    *,
    cluster_uuid: bytes,
    on_deliveries: Callable[[str, list[Delivery]], None],
    on_link: Callable[[str, bool], None],
    on_request: Callable[[str, str, bytes], Awaitable[bytes]],
    tls: LinkTls | None = None,
) -> ClusterLinks:
    """The connections with the other nodes, not yet started."""
    transport = settings.transport
    return ClusterLinks(
        node=settings.node.name,
        cluster=settings.node.cluster,
        cluster_uuid=cluster_uuid,
        ping_interval_ms=transport.ping_interval_ms,
        dead_after_ms=transport.dead_after_ms,
        dial_delay_max_ms=transport.dial_delay_max_ms,
        live_limit_bytes=transport.live_limit_bytes,
        catch_up_limit_bytes=transport.catch_up_limit_bytes,
        catch_up_share_percent=transport.catch_up_share_percent,
        catch_up_rate_bytes=settings.replication.catch_up_rate_limit_bytes,
        message_limit_bytes=message_limit_bytes(settings),
        on_deliveries=on_deliveries,
        on_link=on_link,
        on_request=on_request,
        tls=tls,
    )


class RpcRegistry:
    """Requests of other nodes, by method; each part brings its own handlers."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handlers: Mapping[str, Handler]) -> None:
        """Take a part's handlers; no two have the same method."""
        assert not self._handlers.keys() & handlers.keys()
        self._handlers.update(handlers)

    async def answer(self, node: str, method: str, body: bytes) -> bytes:
        """Answer one request. Raises BadInput for a method that is not known, and what the handler raises."""
        handler = self._handlers.get(method)
        if handler is None:
            raise BadInput(f"method {method[:64]!r} is not known here: is node {node} of another version?")
        return await handler(node, body)


def copy_of(partition: Partition, *, replaying: bool) -> ReplicaSnapshot:
    """A copy on this node as the keeper of trees sees it."""
    replica = partition.replica
    whole = replica.far_position is None and not replaying
    segments = Led(partition.id, partition.index, partition.partition_count).segments
    return ReplicaSnapshot(partition.id, partition.bucket_type, replica.member.log_id, replica.applied, whole, segments)

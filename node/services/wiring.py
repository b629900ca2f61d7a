"""Conversions of the settings into the numbers and components that `repl` needs: the one place that knows both.

`repl` never reads settings. Values that an operator leaves open (0, "") get their meaning here.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from isthmus.config.settings import MB, Settings
from isthmus.repl.controller.bucket_types import SETTLE_MS, DefaultType
from isthmus.repl.controller.leader_balancer import BalanceOptions
from isthmus.repl.coordinator.coordinator import CoordinatorSettings
from isthmus.repl.coordinator.write_batch import WriteLimits
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.metastore.zookeeper import SessionFactory, ZooKeeperMetastore
from isthmus.repl.metastore.zookeeper_session import ZooKeeperSession
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.record import Registration
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.replog.files import FileIO
from isthmus.repl.replog.log import FileLog
from isthmus.repl.security.tls import LinkTls
from isthmus.repl.store.checkpoint import Disk
from isthmus.repl.store.leveldb import PLYVEL, LevelStore, OpenDatabase
from isthmus.repl.transport.connection import LinkLimits
from isthmus.repl.transport.links import ClusterLinks
from isthmus.repl.transport.port import ReachabilityObserver
from isthmus.repl.transport.rpc import DirectHandler

FACTOR_OF_ENSEMBLE: Final = 3
"""replication.factor when it is not set and an ensemble is configured, which means a cluster of several nodes."""

ENTRY_HEAD_BYTES: Final = MB
"""Bytes of an entry that are no value: bucket and key up to three times, user metadata, links, clocks."""

HEAD_BYTES: Final = MB
"""Bytes of a message beside its longest entry: soft cursors, names, numbers. Far above what they need."""

Handler = Callable[[str, bytes], Awaitable[bytes]]
"""(node that sent the request, body) -> the body of the answer; raises IsthmusError."""


def entry_limit_bytes(settings: Settings) -> int:
    """The longest entry that may be appended: an object of twice the largest value, for siblings, with keys, headers
    and clocks."""
    return 2 * settings.limits.object_bytes + ENTRY_HEAD_BYTES


def message_limit_bytes(settings: Settings) -> int:
    """The longest message between nodes: the longest entry, or a forwarded batch of a client."""
    return max(entry_limit_bytes(settings), settings.limits.batch_bytes) + HEAD_BYTES


def default_type_of(settings: Settings) -> DefaultType:
    """How the `default` bucket type is created. With an embedded metastore and no other setting a node is alone, and
    does not wait for others."""
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
    """The options of the leader balancer."""
    replication = settings.replication
    return BalanceOptions(
        automatic=replication.balance,
        by_load=replication.balance_by == "load",
        delay_ms=replication.balance_delay_ms,
        moves=replication.balance_moves,
        cool_down_ms=replication.balance_cool_down_ms,
        timeout_ms=replication.handover_timeout_ms,
    )


def write_limits_of(settings: Settings) -> WriteLimits:
    """The limits of one write."""
    limits = settings.limits
    entry_bytes = entry_limit_bytes(settings)
    return WriteLimits(
        limits.object_bytes, limits.siblings, entry_bytes, limits.object_warn_bytes, limits.siblings_warn
    )


def coordinator_settings_of(settings: Settings) -> CoordinatorSettings:
    """The limits of requests."""
    return CoordinatorSettings(
        write_limits_of(settings),
        settings.limits.key_bytes,
        settings.listen.request_timeout_ms,
        settings.replication.read_isolation,
    )


def metastore_of(
    settings: Settings,
    hosts: str,
    tls: Callable[[], ssl.SSLContext] | None = None,
    session: SessionFactory = ZooKeeperSession,
) -> ZooKeeperMetastore:
    """The metastore at `hosts`, not yet started; with `tls` its sessions are encrypted. `session` makes them."""
    metastore = settings.metastore
    return ZooKeeperMetastore(
        hosts,
        root=metastore.root,
        cluster=settings.node.cluster,
        session_timeout_ms=metastore.session_timeout_ms,
        connect_timeout_ms=metastore.connect_timeout_ms,
        tls=tls,
        session=session,
    )


def open_store(
    settings: Settings,
    cluster_uuid: bytes,
    boot_id: str,
    *,
    database: OpenDatabase = PLYVEL,
    disk: Disk | None = None,
) -> LevelStore:
    """The store of the data directory; `database` and `disk` as in `LevelStore.open`. Blocks; raises LocalFault."""
    replication = settings.replication
    return LevelStore.open(
        settings.node.data_dir / "store",
        cluster_uuid=cluster_uuid,
        write_buffer_bytes=replication.write_buffer_bytes,
        block_cache_bytes=replication.block_cache_bytes,
        boot_id=boot_id,
        request_window_offsets=replication.dedup_window_count,
        database=database,
        disk=disk,
    )


def open_log(
    settings: Settings, cluster_uuid: bytes, known_durable: Mapping[int, int], *, io: FileIO | None = None
) -> FileLog:
    """The log of the data directory; `known_durable` and `io` as in `FileLog.open`. Blocks; raises LocalFault."""
    replication = settings.replication
    return FileLog.open(
        settings.node.data_dir / "log",
        cluster_uuid=cluster_uuid,
        durability=replication.durability,
        size_limit_bytes=replication.log_size_bytes,
        file_bytes=replication.log_file_bytes,
        batch_bytes=replication.log_batch_bytes,
        known_durable=known_durable,
        io=io,
    )


class Outside(NamedTuple):
    """What a node opens outside of its process: the metastore's driver, the store and the log on its disk."""

    metastore: Callable[[Settings, str, Callable[[], ssl.SSLContext] | None], Metastore] = metastore_of
    store: Callable[[Settings, bytes, str], LevelStore] = open_store
    log: Callable[[Settings, bytes, Mapping[int, int]], FileLog] = open_log


def registration_template(settings: Settings, *, http_url: str, admin_url: str, cluster_address: str) -> Registration:
    """The node's registration, without its session and replicas."""
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


def links_of(
    settings: Settings,
    this: ThisNode,
    *,
    observer: ReachabilityObserver,
    on_request: Callable[[str, str, bytes], Awaitable[bytes]],
    direct: Mapping[str, DirectHandler],
    tls: LinkTls | None = None,
) -> ClusterLinks:
    """The connections with the other nodes, not yet started."""
    transport = settings.transport
    return ClusterLinks(
        this,
        LinkLimits(
            ping_interval_ms=transport.ping_interval_ms,
            dead_after_ms=transport.dead_after_ms,
            dial_delay_max_ms=transport.dial_delay_max_ms,
            live_limit_bytes=transport.live_limit_bytes,
            catch_up_limit_bytes=transport.catch_up_limit_bytes,
            catch_up_share_percent=transport.catch_up_share_percent,
            message_limit_bytes=message_limit_bytes(settings),
        ),
        catch_up_rate_bytes=settings.replication.catch_up_rate_limit_bytes,
        observer=observer,
        on_request=on_request,
        direct=direct,
        tls=tls,
    )


class RpcRegistry:
    """Handlers of other nodes' requests, by method."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}
        self.direct: dict[str, DirectHandler] = {}
        """Handlers of methods that are served without a task."""

    def add(self, handlers: Mapping[str, Handler]) -> None:
        """Add a component's handlers; each method has one handler."""
        assert not (self._handlers.keys() | self.direct.keys()) & handlers.keys()
        self._handlers.update(handlers)

    def add_direct(self, handlers: Mapping[str, DirectHandler]) -> None:
        """Add a component's direct handlers, before the links start."""
        assert not (self._handlers.keys() | self.direct.keys()) & handlers.keys()
        self.direct.update(handlers)

    async def answer(self, node: str, method: str, body: bytes) -> bytes:
        """Answer one request. Raises BadInput for an unknown method, and the errors of the handler."""
        handler = self._handlers.get(method)
        if handler is None:
            raise BadInput(f"method {method[:64]!r} is not known here: is node {node} of another version?")
        return await handler(node, body)

"""Protocols by which full-sync uses the node that it runs on; `node.services` implements them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from isthmus.config.settings import FullSyncSettings
from isthmus.repl.clock_offsets import ClockOffsets
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.model.keys import SEGMENT_COUNT

RpcHandler = Callable[[str, bytes], Awaitable[bytes]]
"""(node that sent the request, body) -> body of the response. Raises IsthmusError."""


class NodeRpc(Protocol):
    """Requests to other nodes of this cluster (`repl.transport.port.Links`)."""

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """The body of the response of `node`. Raises IsthmusError."""


class LedPartition(NamedTuple):
    """A partition that this node leads and serves: number `position` of `total` in its bucket type. `epoch`: of the
    leadership; `lineage` and `incarnation`: of the partition's record."""

    partition: int
    position: int
    total: int
    epoch: int = 0
    lineage: int = 0
    incarnation: int = 0

    @property
    def segments(self) -> tuple[int, int]:
        """Its segments [first, end) of 2^20."""
        return -(-self.position * SEGMENT_COUNT // self.total), -(-(self.position + 1) * SEGMENT_COUNT // self.total)

    def places(self, segments: Sequence[int], shift: int) -> range:
        """Indexes of those `segments`, ascending and of 2^(20 - shift), that overlap this partition."""
        first, end = self.segments
        return range(bisect_left(segments, first >> shift), bisect_left(segments, -(-end >> shift)))


class ReplicaSnapshot(NamedTuple):
    """A local replica. A tree exists only if `whole`: all rows below the applied offset are in the store."""

    partition: int
    bucket_type: bytes
    log_id: int
    """Generation of the replica's log; a replica that is opened again from nothing has another one."""
    applied: int
    whole: bool
    segments: tuple[int, int] = (0, SEGMENT_COUNT)
    """Segments [first, end) of its partition."""


class ReplicaSnapshots(Protocol):
    """Those replicas on this node of which a component keeps something, as they are at the moment of the call."""

    def snapshots(self) -> Sequence[ReplicaSnapshot]:
        """All of them."""


class LocalReplicas(ReplicaSnapshots, Protocol):
    """All replicas on this node, as they are at the moment of the call."""

    def led(self, bucket_type: bytes) -> Sequence[LedPartition]:
        """The partitions of a bucket type that this node leads and serves."""

    def led_partition(self, partition: int) -> tuple[bytes, LedPartition] | None:
        """(bucket type, partition) if this node leads and serves it."""

    def followers(self) -> Iterable[tuple[int, tuple[str, ...]]]:
        """(partition, nodes of its followers) for each partition that this node leads."""

    def in_sync(self, partition: int) -> Sequence[str]:
        """Other nodes with an in-sync replica, the leader first; none where the local replica is not in sync."""

    async def mend(self, partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """Replace a row between two batches of apply (`repl.store.port.TransferStore.mend`); False unless `whole`."""

    async def drop_change(self, partition: int, offset: int, seen: bytes) -> bool:
        """Remove a damaged change row (`repl.store.port.TransferStore.drop_change`); False unless `whole`."""


class Leaders(Protocol):
    """Routes to leaders (`repl.coordinator.routing`)."""

    def leader(self, partition: int) -> str | None:
        """The node that leads a partition; None if there is none."""


class Members(Protocol):
    """The cluster as this node sees it."""

    def nodes(self) -> Iterable[str]:
        """The other live nodes."""

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """The ids of a bucket type's partitions. Raises BadInput for an unknown bucket type, NotReady."""


class QueueTypes(Protocol):
    """The bucket types that queues carry."""

    def repair_types(self, queue: str) -> Sequence[str]:
        """Bucket types whose repairs the filter of `queue` lets through; the default one for an unknown queue."""


class OtherClocks(Protocol):
    """What is known of the clocks of other nodes and clusters."""

    @property
    def peers(self) -> ClockOffsets:
        """Those of other clusters, by the address of a node."""

    def skew_ms(self, peer_urls: Collection[str]) -> int:
        """How far any clock of this cluster, or of the clusters at `peer_urls`, may be from this node's, as far as it
        is measured."""


class PeerAccess(Protocol):
    """How this node authenticates at other clusters."""

    def credentials(self, settings: FullSyncSettings) -> PeerCredentials:
        """TLS and token for a peer. Raises IsthmusError, such as for missing certificates."""

    def token_file(self, urls: str) -> Path | None:
        """The token for a peer that operators add at comma-separated `urls`; None: no token is sent."""

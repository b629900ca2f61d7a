"""This node as `aae` sees it: implementations of the protocols of `aae.ports` and `aae.row_stream`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from isthmus.aae.ports import LedPartition, LocalReplicas, Members, PeerAccess, ReplicaSnapshot
from isthmus.aae.riak_trees.contents import ReplacedClocks
from isthmus.aae.row_stream.plan import ClusterLayout, PartitionRange
from isthmus.aae.row_stream.streams import LocalReplica, StreamReplicas
from isthmus.config.settings import FullSyncSettings, PeerSettings, Settings
from isthmus.node.security.credentials import NodeCredentials
from isthmus.repl.controller.controller import Controller
from isthmus.repl.http.client import PeerCredentials
from isthmus.repl.model.errors import NotLeader
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.store.port import Store


class NodeReplicas(LocalReplicas, StreamReplicas):
    """The replicas of the runtime."""

    def __init__(self, runtime: Runtime, store: Store) -> None:
        self._runtime = runtime
        self._store = store

    def snapshots(self) -> Sequence[ReplicaSnapshot]:
        """See LocalReplicas."""
        return [
            ReplicaSnapshot(
                p.id, p.bucket_type, p.replica.member.log_id, p.replica.applied, self._is_whole(p), _range(p).segments
            )
            for p in self._runtime.partitions.values()
        ]

    def led(self, bucket_type: bytes) -> Sequence[LedPartition]:
        """See LocalReplicas."""
        partitions = self._runtime.partitions.values()
        return [_range(p) for p in partitions if p.bucket_type == bucket_type and p.replica.ready]

    def led_partition(self, partition: int) -> tuple[bytes, LedPartition] | None:
        """See LocalReplicas."""
        found = self._runtime.partitions.get(partition)
        return None if found is None or not found.replica.ready else (found.bucket_type, _range(found))

    def followers(self) -> Iterable[tuple[int, tuple[str, ...]]]:
        """See LocalReplicas."""
        return [
            (p.id, tuple(node for node in p.replica.record.replicas if node != self._runtime.node))
            for p in self._runtime.partitions.values()
            if p.replica.ready and p.replica.record is not None
        ]

    def in_sync(self, partition: int) -> Sequence[str]:
        """See LocalReplicas."""
        found = self._runtime.partitions.get(partition)
        record = None if found is None else found.replica.record
        if found is None or record is None or found.replica.transfer_position is not None:
            return []
        names, own = {member.node for member in record.isr}, self._runtime.node
        leader = record.leader.node if record.leader else ""
        return sorted(names - {own}, key=lambda name: (name != leader, name)) if own in names else []

    async def mend(self, partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """See LocalReplicas."""
        found = self._runtime.partitions.get(partition)
        return found is not None and await self._runtime.mend(found, chunk, seen, upto)

    async def drop_change(self, partition: int, offset: int, seen: bytes) -> bool:
        """See LocalReplicas."""
        found = self._runtime.partitions.get(partition)
        return found is not None and await self._runtime.drop_change(found, offset, seen)

    def history(self, partition: int) -> tuple[int, int] | None:
        """(lineage, incarnation) of a partition's record, as its replica here has it; None without one."""
        found = self._runtime.partitions.get(partition)
        record = None if found is None else found.replica.record
        return None if record is None else (record.lineage, record.incarnation)

    def stream_replica(self, partition: int) -> LocalReplica | None:
        """See StreamReplicas."""
        found = self._runtime.partitions.get(partition)
        return None if found is None or found.removed else self._stream_replica(found)

    def stream_replicas(self, bucket_type: bytes) -> Sequence[LocalReplica]:
        """See StreamReplicas."""
        partitions = self._runtime.partitions.values()
        return [self._stream_replica(p) for p in partitions if p.bucket_type == bucket_type and not p.removed]

    async def confirm(self, partition: int) -> None:
        """See StreamReplicas."""
        found = self._runtime.partitions.get(partition)
        if found is None:
            raise NotLeader(f"this node does not lead partition {partition}")
        await self._runtime.committed(found)

    def _stream_replica(self, found: Partition) -> LocalReplica:
        return LocalReplica(
            found.bucket_type, found.id, _range(found).segments, found.replica.ready, self._is_whole(found)
        )

    def _is_whole(self, found: Partition) -> bool:
        return found.replica.transfer_position is None and not self._store.lacks_rows(found.id)


class NodeReplacedClocks(ReplacedClocks):
    """Those of the runtime's partitions."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def follow(self, partition: int, *, wanted: bool) -> None:
        """See ReplacedClocks."""
        found = self._runtime.partitions.get(partition)
        if found is not None:
            found.replaced_clocks = {} if wanted else None

    def take(self, partition: int, end: int) -> Mapping[int, bytes]:
        """See ReplacedClocks."""
        found = self._runtime.partitions.get(partition)
        noted = None if found is None else found.replaced_clocks
        if not noted:
            return {}
        taken = {offset: clock for offset, clock in noted.items() if offset < end}
        for offset in taken:
            del noted[offset]
        return taken

    def bucket_type(self, partition: int) -> bytes:
        """See ReplacedClocks."""
        return self._runtime.partitions[partition].bucket_type


def _range(found: Partition) -> LedPartition:
    record = found.replica.record
    if record is None:
        return LedPartition(found.id, found.index, found.partition_count)
    return LedPartition(found.id, found.index, found.partition_count, record.epoch, record.lineage, record.incarnation)


class NodeLayout(ClusterLayout):
    """The cluster's layout as the controller knows it."""

    def __init__(self, controller: Controller, members: Members) -> None:
        self._controller = controller
        self._members = members

    def ranges(self, bucket_type: bytes) -> Mapping[int, PartitionRange]:
        """See ClusterLayout."""
        self._members.partitions(bucket_type)  # raises unless all are known
        name = bucket_type.decode()
        return {
            r.partition: PartitionRange(
                LedPartition(r.partition, r.index, r.partition_count).segments, r.lineage, r.incarnation
            )
            for r in self._controller.records.values()
            if r.bucket_type == name
        }

    def urls(self) -> Mapping[str, str]:
        """See ClusterLayout."""
        live = self._controller.registrations.values()
        return {r.node: r.http_url for r in live if r.active and r.http_url}


class NodePeerAccess(PeerAccess):
    """TLS and tokens by the settings of this node."""

    def __init__(self, settings: Settings, credentials: NodeCredentials) -> None:
        self._settings = settings
        self._credentials = credentials

    def credentials(self, settings: FullSyncSettings) -> PeerCredentials:
        """See PeerAccess."""
        return self._credentials.access_to(
            PeerSettings(settings.urls.split(",")[0], settings.queue, settings.cluster, settings.token_file)
        )

    def token_file(self, urls: str) -> Path | None:
        """The token file that this node's settings have for each of the URLs, if it is the same for all. So an act of
        an operator sends no token to a URL to which the settings send none."""
        sink, fullsync = self._settings.sink.peers, self._settings.fullsync
        known = {one.url: one.token_file for one in sink}
        known |= {url: one.token_file for one in fullsync for url in one.urls.split(",")}
        tokens = {known.get(url) for url in urls.split(",")}
        return tokens.pop() if len(tokens) == 1 else None

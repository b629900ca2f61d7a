"""Fakes of the ports of `aae`: replicas, other nodes, cluster members, and row repair without any source."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from isthmus.aae.exchange.wire import AppliedTree, PartitionHistory
from isthmus.aae.ports import LedPartition, LocalReplicas, Members, NodeRpc, PeerAccess, QueueTypes, ReplicaSnapshot
from isthmus.aae.scheduling.proofs import CheckProofs, PendingProof, Proof, QueueMarks, TreeProofs
from isthmus.aae.scrub.row_repair import ForeignObjects, RowRepair
from isthmus.repl.http.client import OPEN, PeerCredentials
from isthmus.repl.model.errors import NotReady
from isthmus.repl.store.port import Store


class FakeReplicas(LocalReplicas):
    """Replicas that return the values a test sets; `store` is for repairs."""

    def __init__(
        self,
        snapshots: Callable[[], Sequence[ReplicaSnapshot]] = list,
        *,
        led: Callable[[bytes], Sequence[LedPartition]] = lambda _: [],
        led_partition: Callable[[int], tuple[bytes, LedPartition] | None] = lambda _: None,
        followers: Callable[[], Iterable[tuple[int, tuple[str, ...]]]] = list,
        in_sync: Callable[[int], Sequence[str]] = lambda _: [],
        store: Store | None = None,
    ) -> None:
        self._snapshots, self._led, self._led_partition = snapshots, led, led_partition
        self._followers, self._in_sync, self._store = followers, in_sync, store

    def snapshots(self) -> Sequence[ReplicaSnapshot]:
        """See LocalReplicas."""
        return self._snapshots()

    def led(self, bucket_type: bytes) -> Sequence[LedPartition]:
        """See LocalReplicas."""
        return self._led(bucket_type)

    def led_partition(self, partition: int) -> tuple[bytes, LedPartition] | None:
        """See LocalReplicas."""
        return self._led_partition(partition)

    def followers(self) -> Iterable[tuple[int, tuple[str, ...]]]:
        """See LocalReplicas."""
        return self._followers()

    def in_sync(self, partition: int) -> Sequence[str]:
        """See LocalReplicas."""
        return self._in_sync(partition)

    async def mend(self, partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """See LocalReplicas."""
        assert self._store is not None
        return self._store.transfers.mend(partition, chunk, seen, upto)

    async def drop_change(self, partition: int, offset: int, seen: bytes) -> bool:
        """See LocalReplicas."""
        assert self._store is not None
        return self._store.transfers.drop_change(partition, offset, seen)


class FakeRpc(NodeRpc):
    """Passes requests to a function; by default no node can be reached."""

    def __init__(self, handle: Callable[[str, str, bytes, int], Awaitable[bytes]] | None = None) -> None:
        self._handle = handle

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """See NodeRpc."""
        if self._handle is None:
            raise NotReady(f"no connection to {node}")
        return await self._handle(node, method, body, timeout_ms)


class FakeMembers(Members, QueueTypes):
    """A cluster with these live nodes; `unplaced`: why its partitions are not known, "" if they are."""

    def __init__(self, live: Iterable[str] = ("n1",), bucket_types: Sequence[str] = ("default",)) -> None:
        self.live, self.bucket_types, self.unplaced = live, bucket_types, ""

    def nodes(self) -> Iterable[str]:
        """See Members."""
        return self.live

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """See Members."""
        if self.unplaced:
            raise NotReady(self.unplaced)
        return [0]

    def repair_types(self, queue: str) -> Sequence[str]:
        """See QueueTypes."""
        return self.bucket_types


class FakeProofs(CheckProofs):
    """Proofs of checks over one cluster: every partition of `offsets` has a tree up to its offset, in the history and
    under the epoch that are set now."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {1: 100, 2: 100, 3: 100}
        self.history = PartitionHistory(0, 0)
        self.epoch = 1
        self.filter = "any"
        self.losses: set[tuple[str, str]] = set()

    def marks(self, queue: str) -> QueueMarks:
        """See MarkReader."""
        return QueueMarks(queue, self.filter, frozenset(self.losses))

    async def applied(self, bucket_type: bytes) -> dict[int, AppliedTree]:
        """See SourceOffsets."""
        return {p: AppliedTree(p, self.history, self.epoch, offset) for p, offset in self.offsets.items()}

    async def begin(self, queue: str, bucket_type: bytes) -> PendingProof:
        """See CheckProofs."""
        return await TreeProofs(self, self).begin(queue, bucket_type)

    async def end(self, pending: PendingProof, bucket_type: bytes) -> Proof:
        """See CheckProofs."""
        return await TreeProofs(self, self).end(pending, bucket_type)


class FakeAccess(PeerAccess):
    """Token files by comma-separated URLs."""

    def __init__(self, tokens: Mapping[str, Path] | None = None) -> None:
        self.tokens = tokens or {}

    def credentials(self, settings: Any) -> PeerCredentials:
        """See PeerAccess."""
        return OPEN

    def token_file(self, urls: str) -> Path | None:
        """See PeerAccess."""
        return self.tokens.get(urls)


class FakeForeignObjects(ForeignObjects):
    """There is no other cluster."""

    async def objects(self, partition: int, segment: int) -> dict[str, dict[bytes, bytes]]:
        """See ForeignObjects."""
        return {}


def fake_trees(invalidate: Callable[[int], object] = lambda _: None) -> Any:
    """A TreeCache without a tree."""
    return SimpleNamespace(leaf=lambda _partition, _segment: None, invalidate=invalidate)


def lone_repair(store: Store, pool: Executor, rpc: NodeRpc | None = None) -> RowRepair:
    """The repair of a replica that has no other replicas, no tree, and no other cluster."""
    return RowRepair(
        store,
        replicas=FakeReplicas(store=store),
        rpc=rpc or FakeRpc(),
        trees=fake_trees(),
        foreign=FakeForeignObjects(),
        cluster_uuid=bytes(16),
        pool=pool,
    )

"""Riak's trees of the partitions that this node leads: kept, and given to the nodes that sum them up.

Only leaders keep these trees, 4 MiB for each partition with some thousand keys: a node that begins to lead builds the
tree, as after a restart. Without `[[riak.trees]]` nothing listens to applied entries, and nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec
import numpy as np

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.exchange import wire
from isthmus.aae.exchange.local import readiness_of
from isthmus.aae.exchange.wire import HashesResponse, TreeReadiness
from isthmus.aae.ports import LocalReplicas, ReplicaSnapshot, ReplicaSnapshots, RpcHandler
from isthmus.aae.riak_trees.contents import ReplacedClocks, RiakContents, RiakTree
from isthmus.aae.riak_trees.groups import TreeGroups
from isthmus.aae.trees.tree import Hashes
from isthmus.aae.trees.tree_cache import TreeCache, TreeState
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.ports import AppliedChanges, AppliedEntries, TimeSource
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Family, Sample

METHOD: Final = "aae.riak_trees"

VERSION: Final = 1

TYPES_MAX: Final = 4_096
"""Bucket types of one request."""

BRANCH_COUNT: Final = RiakTree.form.branch_count
BRANCH_LEAVES: Final = 1 << RiakTree.form.leaf_bits

HELP: Final[Mapping[str, Family]] = {
    "isthmus_riak_trees": Family(
        "Riak's trees of partitions led here, by state (ready, rebuilding, waiting), with `[[riak.trees]]`.",
        "trees",
        "full-sync",
        ("state",),
    ),
    "isthmus_riak_tree_bytes": Family("Memory that the leaves of Riak's trees take.", "bytes", "full-sync"),
    "isthmus_riak_tree_builds_total": Family("Riak's trees built from the key store.", "trees", "full-sync"),
    "isthmus_riak_tree_mismatches_total": Family(
        "Leaves of Riak's trees that a rebuild found wrong.", "leaves", "full-sync"
    ),
}


class TreeRequest(NamedTuple):
    """Request the hashes of all branches (None), or the leaves of some, of all keys of the bucket types."""

    bucket_types: tuple[bytes, ...]
    branches: tuple[int, ...] | None = None

    @property
    def hash_count(self) -> int:
        """Number of hashes in the response."""
        return BRANCH_COUNT if self.branches is None else BRANCH_LEAVES * len(self.branches)


_Branch = Annotated[int, msgspec.Meta(ge=0, lt=BRANCH_COUNT)]
_Request = tuple[
    Literal[1],
    Annotated[list[bytes], msgspec.Meta(max_length=TYPES_MAX)],
    Annotated[list[_Branch], msgspec.Meta(max_length=BRANCH_COUNT)] | None,
]
_decode_request = msgspec.msgpack.Decoder(_Request).decode


def encode_request(request: TreeRequest) -> bytes:
    """Its bytes."""
    return msgspec.msgpack.encode((VERSION, *request))


def decode_request(data: bytes) -> TreeRequest:
    """Raises CodecError."""
    try:
        _, bucket_types, branches = _decode_request(data)
    except (ValueError, RecursionError) as error:
        raise CodecError(f"not a request for Riak's trees, version {VERSION}: {error}") from error
    return TreeRequest(tuple(bucket_types), None if branches is None else tuple(branches))


class _NoRepairs(DamagedRows):
    """Takes no reports: builds of our own trees report the same rows, and leaves of these have other segments."""

    def repair_soon(self, partition: int, leaves: Mapping[int, int]) -> None:
        """See DamagedRows."""


class _LedReplicas(ReplicaSnapshots):
    """The replicas that have such a tree."""

    def __init__(self, replicas: LocalReplicas) -> None:
        self._replicas = replicas
        self.led: set[int] = set()

    def snapshots(self) -> Sequence[ReplicaSnapshot]:
        """See ReplicaSnapshots."""
        led = self.led
        if not led:
            return []
        all_leaves = 0, SEGMENT_COUNT
        return [one._replace(segments=all_leaves) for one in self._replicas.snapshots() if one.partition in led]


class LocalRiakTrees:
    """The trees of one node; an ApplyListener."""

    def __init__(
        self,
        groups: TreeGroups,
        store: Store,
        *,
        replicas: LocalReplicas,
        replaced: ReplacedClocks,
        changes: AppliedChanges,
        time: TimeSource,
        rebuild_ms: int,
    ) -> None:
        """`rebuild_ms`: as for our own trees (`TreeCache`); the leaves that differ then are counted and logged."""
        self._groups = groups
        self._replicas = replicas
        self._replaced = replaced
        self._led = _LedReplicas(replicas)
        self._cache: TreeCache | None = None
        if groups:
            self._cache = TreeCache(
                store,
                directory=None,
                replicas=self._led,
                damaged=_NoRepairs(),
                time=time,
                rebuild_ms=rebuild_ms,
                contents=RiakContents(replaced),
            )
            changes.add(self)

    @property
    def cache(self) -> TreeCache | None:
        """The trees; None without `[[riak.trees]]`."""
        return self._cache

    def start(self) -> None:
        """Begin to build trees; call it before anything is applied."""
        if self._cache is not None:
            self._cache.start()

    async def stop_builds(self) -> None:
        """Stop all that reads the store."""
        if self._cache is not None:
            await self._cache.stop_builds()

    async def stop(self) -> None:
        """Stop all; call it once nothing is applied any more."""
        if self._cache is not None:
            await self._cache.stop(save=False)

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """See ApplyListener."""
        assert self._cache is not None
        self._cache.applied(applied)

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:  # noqa: ARG002
        """See ApplyListener. A new leader's entries are applied after this call."""
        assert self._cache is not None
        kept = leading and self._groups.has(self._replaced.bucket_type(partition))
        self._replaced.follow(partition, wanted=kept)
        if kept:
            self._led.led.add(partition)
        else:
            self._led.led.discard(partition)
        self._cache.replicas_changed()

    def hashes(self, request: TreeRequest) -> HashesResponse:
        """The current hashes of the partitions that this node leads."""
        total: Hashes = np.zeros(request.hash_count, np.uint64)
        readiness: list[TreeReadiness] = []
        for bucket_type in request.bucket_types:
            wanted = self._cache is not None and self._groups.has(bucket_type)
            for led in self._replicas.led(bucket_type):
                cached = None if self._cache is None else self._cache.cached.get(led.partition)
                if not wanted:
                    why = f"no [[riak.trees]] in the file of its node has {bucket_type.decode(errors='replace')}"
                    readiness.append(TreeReadiness(led.partition, False, why))
                    continue
                readiness.append(readiness_of(led.partition, cached))
                if cached is not None and cached.tree is not None:
                    tree, branches = cached.tree, request.branches
                    total ^= (
                        tree.branch_hashes() if branches is None else np.concatenate(list(map(tree.leaves, branches)))
                    )
        return HashesResponse(tuple(readiness), total)

    def request_handlers(self) -> dict[str, RpcHandler]:
        """Handlers of requests from other nodes, by method."""
        return {METHOD: self._serve}

    async def _serve(self, _node: str, body: bytes) -> bytes:
        return wire.encode_hashes(self.hashes(decode_request(body)))

    def status(self) -> dict[str, str] | None:
        """State and reason, for operators; None without `[[riak.trees]]`."""
        if self._cache is None:
            return None
        cached = self._cache.cached
        unready = {partition: one for partition, one in sorted(cached.items()) if one.state is not TreeState.READY}
        groups = ", ".join(map(str, self._groups.n_vals))
        reason = f"{len(cached) - len(unready)} of {len(cached)} trees ready, for n_val {groups}"
        if not unready:
            return {"actor": "riak-trees", "state": "ready" if cached else "idle", "reason": reason}
        first, one = next(iter(unready.items()))
        building = any(each.state is TreeState.REBUILDING for each in unready.values())
        why = f"{reason}; partition {first}: {one.reason or one.state}"
        return {"actor": "riak-trees", "state": "rebuilding" if building else "waiting", "reason": why}

    def metrics(self) -> Iterator[Sample]:
        """For Prometheus."""
        if self._cache is None:
            return
        trees = self._cache
        states = [cached.state for cached in trees.cached.values()]
        for state in TreeState:
            yield "isthmus_riak_trees", {"state": state.value}, states.count(state)
        held = sum(cached.tree.allocated_bytes for cached in trees.cached.values() if cached.tree is not None)
        yield "isthmus_riak_tree_bytes", {}, held
        yield "isthmus_riak_tree_builds_total", {}, trees.builds_total
        yield "isthmus_riak_tree_mismatches_total", {}, trees.mismatches_total

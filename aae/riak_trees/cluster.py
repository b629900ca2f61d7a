"""Riak's trees of a whole cluster: the sums of what each node has of the partitions that it leads.

Any node answers for its cluster, under the rules of `aae.exchange.cluster`: each partition is counted once, with a tree
that is ready, or the request fails with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.cluster import TIMEOUT_MS, at_once, collect, sum_of
from isthmus.aae.exchange.wire import HashesResponse
from isthmus.aae.ports import Members, NodeRpc
from isthmus.aae.riak_trees.groups import TreeGroups
from isthmus.aae.riak_trees.local import METHOD, LocalRiakTrees, TreeRequest, encode_request
from isthmus.repl.model.errors import BadInput, NotReady

RiakHashes = NDArray[np.uint32]
"""Hashes of 32 bits."""


class UnknownNVal(BadInput):
    """This node's file has no trees of the n_val."""

    reason = "unknown-n-val"


class ClusterRiakTrees:
    """The trees of the groups of this node's file."""

    def __init__(
        self,
        groups: TreeGroups,
        local: LocalRiakTrees,
        *,
        known_types: Callable[[], Collection[bytes] | None],
        members: Members,
        rpc: NodeRpc,
    ) -> None:
        """`known_types`: the bucket types of the cluster; None while they are not known here."""
        self._groups = groups
        self._local = local
        self._known_types = known_types
        self._members = members
        self._rpc = rpc

    def types_of(self, n_val: int) -> list[bytes]:
        """The bucket types of the n_val. Raises UnknownNVal, NotReady."""
        known = self._known_types()
        if known is None:
            raise NotReady("this node does not know all bucket types yet")
        found = self._groups.types_of(n_val, known)
        if found is None:
            there = ", ".join(map(str, self._groups.n_vals))
            others = f"it has n_val {there}" if there else "it has none"
            raise UnknownNVal(f"no [[riak.trees]] in this node's file has n_val {n_val}: {others}")
        return found

    async def root(self, n_val: int) -> RiakHashes:
        """The hashes of all branches. Raises UnknownNVal, NotReady, Incomplete."""
        return await self._sum(TreeRequest(tuple(self.types_of(n_val))))

    async def branches(self, n_val: int, branches: Sequence[int]) -> RiakHashes:
        """The leaves of these branches, a row for each. Raises UnknownNVal, NotReady, Incomplete."""
        found = await self._sum(TreeRequest(tuple(self.types_of(n_val)), tuple(branches)))
        return found.reshape(len(branches), -1)

    async def _sum(self, request: TreeRequest) -> RiakHashes:
        if not request.bucket_types:
            return np.zeros(request.hash_count, np.uint32)
        body = encode_request(request)

        async def of(node: str) -> HashesResponse:
            return wire.decode_hashes(await self._rpc.request(node, METHOD, body, TIMEOUT_MS), request.hash_count)

        responses = await collect(self._members, request.bucket_types, lambda: at_once(self._local.hashes(request)), of)
        return sum_of(responses).astype(np.uint32)

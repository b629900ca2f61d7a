"""Compare the tree of each led partition with its followers' trees, all at the same offset.

The leader records its tree as of now; a follower responds with its own once it has applied up to the same offset. The
leaves of differing branches are compared. Replicas that applied the same log have the same rows, so a segment that
differs raises an alarm with its keys, and both replicas repair their damaged rows (`aae.scrub.row_repair`). A missing
response is no alarm: the partition is compared again in the next round. Rules: docs/protocol.md I-TREE.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Annotated, Final, Literal

import msgspec
import structlog

from isthmus.aae.ports import LocalReplicas, NodeRpc, RpcHandler
from isthmus.aae.scrub.row_repair import RowRepair
from isthmus.aae.trees.tree import (
    BRANCH_COUNT,
    LEAF_BITS,
    LEAF_COUNT,
    Hashes,
    differing,
    hashes_from_wire,
    hashes_to_wire,
)
from isthmus.aae.trees.tree_cache import TreeCache
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady
from isthmus.repl.store.port import Store
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

TREE_AT: Final = "aae.tree_at"

ROUND_S: Final = 600.0
"""Every led partition is compared once in this time; a comparison costs 8 KB per follower."""

TIMEOUT_MS: Final = 10_000
"""Time within which a follower must reach the leader's offset; a slower one is compared in the next round."""

BRANCHES_MAX: Final = 8
"""Branches of one comparison whose leaves are compared; one is enough for an alarm."""

KEYS_NAMED: Final = 5
"""Keys of a segment that the log names."""

VERSION: Final = 1

_Request = tuple[Literal[1], int, int, Annotated[int, msgspec.Meta(ge=0, lt=BRANCH_COUNT)] | None]
"""VERSION, partition, offset, and the branch whose leaves are requested (None: the hashes of all branches)."""

_decode_request = msgspec.msgpack.Decoder(_Request).decode


class ReplicaTreeCheck:
    """Compares trees as a leader, and serves its own tree as a follower."""

    def __init__(
        self, trees: TreeCache, store: Store, *, repair: RowRepair, replicas: LocalReplicas, rpc: NodeRpc
    ) -> None:
        self._trees = trees
        self._store = store
        self._repair = repair
        self._replicas = replicas
        self._rpc = rpc
        self._task: asyncio.Task[None] | None = None
        self.compared_total = 0
        """Comparisons with a follower that ended with a result."""

    def request_handlers(self) -> dict[str, RpcHandler]:
        """Handlers of requests from other nodes, by method."""
        return {TREE_AT: self._serve_tree}

    def start(self) -> None:
        """Start the rounds."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop the rounds."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            led = list(self._replicas.followers())
            for partition, followers in led:
                await asyncio.sleep(ROUND_S / len(led))
                for node in followers:
                    try:
                        await self.compare(partition, node)
                    except Exception as error:
                        unforeseen.exception(
                            "trees.agreement_bug", error, partition=partition
                        )  # go on with the other replicas
            if not led:
                await asyncio.sleep(ROUND_S)

    async def compare(self, partition: int, node: str) -> bool | None:
        """Compare one partition with one follower: True if equal, False after alarms, None without a result."""
        try:
            branches = await self._differing(partition, node, None)
            if branches is None:
                return None
            self.compared_total += 1
            if not branches:
                return True
            for branch in branches[:BRANCHES_MAX]:
                leaves = await self._differing(partition, node, branch)
                segments = [(branch << LEAF_BITS) + leaf for leaf in leaves or ()]
                self._alarm(partition, node, segments)
                for segment in segments[:BRANCHES_MAX]:  # each replica repairs its own rows
                    await self._repair.repair_segment(partition, segment)
                    await self._request_check(node, partition, segment)
        except IsthmusError as error:
            log.debug("trees.not_compared", partition=partition, peer=node, error=str(error))
            return None
        return False

    async def _request_check(self, node: str, partition: int, segment: int) -> None:
        """Have the follower repair a segment; after an error the next round requests it again."""
        try:
            await self._repair.request_check(node, partition, segment)
        except IsthmusError as error:
            log.info("trees.not_looked_at", partition=partition, peer=node, segment=segment, error=str(error))

    async def _differing(self, partition: int, node: str, branch: int | None) -> list[int] | None:
        """The branches, or the leaves of a branch, that differ at the current offset; None without a result."""
        cached = self._trees.cached.get(partition)
        if cached is None or cached.tree is None:
            return None
        offset = cached.offset
        mine = cached.tree.branch_hashes() if branch is None else cached.tree.leaves(branch)
        body = msgspec.msgpack.encode((VERSION, partition, offset, branch))
        response = await self._rpc.request(node, TREE_AT, body, TIMEOUT_MS)
        if not response:
            return None
        return list(differing(mine, hashes_from_wire(response, len(mine))))

    def _alarm(self, partition: int, node: str, segments: list[int]) -> None:
        cached = self._trees.cached.get(partition)
        for segment in segments[:BRANCHES_MAX]:
            try:
                rows = self._store.key_rows(partition, segment, segment + 1)
                names = [f"{bucket!r}/{key!r}" for _, bucket, key, _ in islice(rows, KEYS_NAMED)]
            except IsthmusError as error:  # damaged on this node
                names = [f"cannot be read: {error}"]
            log.error("trees.replicas_differ", partition=partition, peer=node, segment=segment, keys=names)
        self._trees.alarm(partition, segments, 0 if cached is None else cached.offset, node)

    async def _serve_tree(self, _node: str, body: bytes) -> bytes:
        """The hashes at the requested offset; b"" if it has passed, or there is no tree then."""
        try:
            _, partition, offset, branch = _decode_request(body)
        except (ValueError, RecursionError) as error:
            raise CodecError(f"not a request for a tree at an offset, version {VERSION}: {error}") from error
        future = self._trees.capture(partition, offset, branch)
        try:
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                found: Hashes | None = await future
        except TimeoutError:
            raise NotReady(f"partition {partition} was not applied to {offset} in {TIMEOUT_MS} ms") from None
        assert found is None or len(found) in (BRANCH_COUNT, LEAF_COUNT)
        return b"" if found is None else hashes_to_wire(found)

"""Trees and rows of a whole bucket type: the sum of what each node has of the partitions that it leads.

Any node can serve its cluster. A sum is correct only if each partition was counted exactly once and had a ready tree.
Partitions are missing while they have no leader or their tree is built, and may be counted twice while a leadership
moves. A live node that does not respond may lead a partition for which a deposed leader still responded. In all these
cases the request is repeated some times; then it fails with Incomplete and the reason.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import numpy as np

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.compare import ComparedRow
from isthmus.aae.exchange.local import ANSWER_BYTES as NODE_BYTES
from isthmus.aae.exchange.local import APPLIED, CLOCKS, LEAVES, ROOTS, LocalTrees, row_bytes
from isthmus.aae.exchange.wire import (
    AppliedTree,
    ClocksRequest,
    HashesResponse,
    LeavesRequest,
    RootsRequest,
    RowsResponse,
    TreeReadiness,
)
from isthmus.aae.ports import Members, NodeRpc
from isthmus.aae.trees.tree import BRANCH_COUNT, Hashes
from isthmus.config.text import clause, quantity
from isthmus.repl.model.errors import IsthmusError, Retryable
from isthmus.repl.model.keys import key_hash
from isthmus.repl.unforeseen import unforeseen

TIMEOUT_MS: Final = 30_000
"""Time-out of a request to a node, which reads the rows of many segments from disk."""

APPLIED_TIMEOUT_MS: Final = 5_000
"""Time-out of a request for offsets, which reads memory alone; without an answer the check proves less."""

ATTEMPTS: Final = 5
ATTEMPT_PAUSE_S: Final = 0.2
"""Pause between attempts; a leadership that moves is counted correctly after some 100 ms."""

ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Limit of the rows of all nodes in one response; the next request gets the rest. Half of `wire.MESSAGE_BYTES_MAX`."""

Response = TypeVar("Response", HashesResponse, RowsResponse)


class Incomplete(Retryable):
    """Not every partition could be counted exactly once; the message names a partition or node, and why."""

    reason = "incomplete"


class ClusterTrees:
    """The trees of the whole cluster; an `aae.exchange.run.ExchangeEnd`."""

    def __init__(self, local: LocalTrees, members: Members, rpc: NodeRpc) -> None:
        self._local = local
        self._members = members
        self._rpc = rpc

    async def roots(self, request: RootsRequest) -> Hashes:
        """The hashes of all branches. Raises Incomplete, BadInput."""
        body = wire.encode_roots_request(request)
        responses = await collect(
            self._members,
            (request.bucket_type,),
            lambda: at_once(self._local.roots(request)),
            lambda node: self._hashes(node, ROOTS, body, BRANCH_COUNT),
        )
        return sum_of(responses)

    async def leaves(self, request: LeavesRequest) -> Hashes:
        """The leaves of the requested branches. Raises Incomplete, BadInput."""
        body = wire.encode_leaves_request(request)
        responses = await collect(
            self._members,
            (request.bucket_type,),
            lambda: at_once(self._local.leaves(request)),
            lambda node: self._hashes(node, LEAVES, body, wire.leaf_count(request)),
        )
        return sum_of(responses)

    async def clocks(self, request: ClocksRequest) -> RowsResponse:
        """The rows of the first segments, as far as all nodes covered them; `readiness` is empty. Raises Incomplete,
        BadInput."""
        # Partitions are spread evenly over the nodes, so each node has an equal part of the rows.
        share = request._replace(rows=-(-request.rows // (1 + len(list(self._members.nodes())))))
        body = wire.encode_clocks_request(share)
        responses = await collect(
            self._members,
            (request.bucket_type,),
            lambda: self._local.clocks(share),
            lambda node: self._rows(node, body, share),
        )
        covered = min(one.covered for one in responses)
        last = request.segments[covered - 1]
        shift = 64 - request.size_bits
        rows = [
            row
            for one in responses
            for row in one.rows
            if one.covered == covered or key_hash(row.bucket, row.key) >> shift <= last
        ]
        if len(responses) * NODE_BYTES > ANSWER_BYTES and sum(map(row_bytes, rows)) > ANSWER_BYTES:
            return _cut(rows, request.segments[:covered], shift)
        return RowsResponse((), covered, rows)

    async def applied(self, bucket_type: bytes) -> dict[int, AppliedTree]:
        """The ready trees of the leaders, by partition. A node that does not answer, as one of an earlier version, is
        left out, and so is a partition for which two nodes answer. Raises nothing."""
        body = wire.encode_roots_request(RootsRequest(bucket_type))

        async def of(node: str) -> list[AppliedTree]:
            try:
                return wire.decode_applied(await self._rpc.request(node, APPLIED, body, APPLIED_TIMEOUT_MS))
            except IsthmusError:
                return []
            except Exception as error:
                unforeseen.exception("fullsync.answer_failed", error, peer=node)
                return []

        found = await asyncio.gather(*(of(node) for node in self._members.nodes()))
        trees = [*self._local.applied(bucket_type), *(tree for one in found for tree in one)]
        answers = Counter(tree.partition for tree in trees)
        return {tree.partition: tree for tree in trees if answers[tree.partition] == 1}

    async def _hashes(self, node: str, method: str, body: bytes, count: int) -> HashesResponse:
        return wire.decode_hashes(await self._rpc.request(node, method, body, TIMEOUT_MS), count)

    async def _rows(self, node: str, body: bytes, request: ClocksRequest) -> RowsResponse:
        return wire.decode_rows(await self._rpc.request(node, CLOCKS, body, TIMEOUT_MS), request)


async def collect(
    members: Members,
    bucket_types: Sequence[bytes],
    own: Callable[[], Awaitable[Response]],
    other: Callable[[str], Awaitable[Response]],
) -> list[Response]:
    """The responses of this node and the others, of which each partition of the bucket types is in exactly one, with a
    ready tree. Raises Incomplete after some attempts, BadInput."""
    missing = ""
    for attempt in range(ATTEMPTS):
        if attempt:
            await asyncio.sleep(ATTEMPT_PAUSE_S)
        wanted = {partition for each in bucket_types for partition in members.partitions(each)}
        nodes: list[str] = sorted(members.nodes())
        responses: list[Response] = []
        unreachable: list[str] = []
        tries = [_try(node, other(node), responses, unreachable) for node in nodes]
        await asyncio.gather(_try("this node", own(), responses, unreachable), *tries)
        missing = _missing(wanted, [each for one in responses for each in one.readiness], unreachable)
        if not missing:
            return responses
    raise Incomplete(missing)


def _missing(wanted: set[int], readiness: Sequence[TreeReadiness], unreachable: Sequence[str]) -> str:
    """Why the responses do not count each of `wanted` once with a ready tree; "" if they do."""
    unready = [one for one in readiness if not one.ready]
    if unready:
        first = unready[0]
        return f"{quantity(len(unready), 'tree')} cannot answer: partition {first.partition}: {first.reason}"
    counted = Counter(one.partition for one in readiness)
    absent, twice = wanted - counted.keys(), [p for p, times in counted.items() if times > 1]
    if absent:
        because = f" ({'; '.join(unreachable)})" if unreachable else ""
        return f"{clause(len(absent), 'partition', 'has', 'have')} no leader that answers, {min(absent)} first{because}"
    if twice:
        return f"partition {min(twice)} is moving: two nodes answered for it"
    if unreachable:  # it may lead a partition for which its deposed leader responded
        return f"{clause(len(unreachable), 'node', 'does', 'do')} not answer ({'; '.join(unreachable)})"
    return ""


async def _try(node: str, answer: Awaitable[Response], responses: list[Response], unreachable: list[str]) -> None:
    try:
        responses.append(await answer)
    except IsthmusError as error:
        unreachable.append(f"{node}: {error}")
    except Exception as error:  # noqa: BLE001 -- this node's answer is missing; the others' are awaited all the same
        unreachable.append(f"{node}: {unforeseen.exception('fullsync.answer_failed', error, peer=node)}")


def _cut(rows: Sequence[ComparedRow], segments: Sequence[int], shift: int) -> RowsResponse:
    """The rows of as many of `segments` as fit into ANSWER_BYTES, of one at least."""
    found: dict[int, list[ComparedRow]] = {}
    for row in rows:
        found.setdefault(key_hash(row.bucket, row.key) >> shift, []).append(row)
    kept: list[ComparedRow] = []
    size = 0
    for covered, segment in enumerate(segments):
        size += sum(map(row_bytes, found.get(segment, ())))
        if covered and size > ANSWER_BYTES:
            return RowsResponse((), covered, kept)
        kept += found.get(segment, ())
    return RowsResponse((), len(segments), kept)


def sum_of(responses: Sequence[HashesResponse]) -> Hashes:
    """The hashes of all together."""
    total = responses[0].hashes.copy()
    for one in responses[1:]:
        np.bitwise_xor(total, one.hashes, out=total)
    return total


async def at_once(response: HashesResponse) -> HashesResponse:
    """A response that need not be awaited."""
    return response

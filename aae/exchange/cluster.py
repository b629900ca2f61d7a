"""All of a bucket type, by asking every node for the partitions that it leads: any node can answer for its cluster.

A sum is believed only if each partition of the bucket type was counted once and was ready; with one missing (no leader,
a tree being built, a leadership that moved while it was asked) or counted twice, or a live node that is silent (it may
lead what a deposed leader still answers for), it is asked for again a few times, and then it is Incomplete, with the
reason. So an answer is whole, or there is none.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, Protocol, TypeVar

import numpy as np

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.compare import ComparedRow
from isthmus.aae.exchange.local import ANSWER_BYTES as NODE_BYTES
from isthmus.aae.exchange.local import CLOCKS, LEAVES, ROOTS, LocalTrees, row_bytes
from isthmus.aae.exchange.wire import ClocksAsked, HashesTold, LeavesAsked, RootsAsked, RowsTold, TreeReadiness
from isthmus.aae.trees.tree import BRANCH_COUNT, Hashes
from isthmus.config.text import clause, quantity
from isthmus.repl.model.errors import IsthmusError, Retryable
from isthmus.repl.model.keys import key_hash

TIMEOUT_MS: Final = 30_000
"""How long a node may take for one answer; rows of many segments are read from disk."""

ATTEMPTS: Final = 5
ATTEMPT_PAUSE_S: Final = 0.2
"""A leadership that is handed over is counted again after some 100 ms."""

ANSWER_BYTES: Final = 32 * 1024 * 1024
"""Of rows, of all nodes together; more than that are left to the next question. Half of `wire.MESSAGE_BYTES_MAX`."""

Told = TypeVar("Told", HashesTold, RowsTold)


class Incomplete(Retryable):
    """Not every partition could be counted once; the message names what is missing and why."""

    reason = "incomplete"


class Members(Protocol):
    """The cluster as this node sees it."""

    def nodes(self) -> Iterable[str]:
        """The other nodes that live."""

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """The ids of the bucket type's partitions. Raises BadInput when there is no such bucket type."""


class ClusterTrees:
    """The trees of the whole cluster. `request` is `Links.request`."""

    def __init__(
        self, local: LocalTrees, members: Members, request: Callable[[str, str, bytes, int], Awaitable[bytes]]
    ) -> None:
        self._local = local
        self._members = members
        self._request = request

    async def roots(self, asked: RootsAsked) -> Hashes:
        """The hashes of all branches. Raises Incomplete, BadInput."""
        body = wire.encode_roots_asked(asked)
        told = await self._whole(
            asked.bucket_type,
            lambda: _now(self._local.roots(asked)),
            lambda node: self._hashes(node, ROOTS, body, BRANCH_COUNT),
        )
        return _sum(told)

    async def leaves(self, asked: LeavesAsked) -> Hashes:
        """The leaves of the branches. Raises Incomplete, BadInput."""
        body = wire.encode_leaves_asked(asked)
        told = await self._whole(
            asked.bucket_type,
            lambda: _now(self._local.leaves(asked)),
            lambda node: self._hashes(node, LEAVES, body, wire.leaf_count(asked)),
        )
        return _sum(told)

    async def clocks(self, asked: ClocksAsked) -> RowsTold:
        """The rows of the first segments, as far as every node covered them; without standings. Raises Incomplete,
        BadInput."""
        # Partitions are spread over the nodes, so each has its part of the rows.
        share = asked._replace(rows=-(-asked.rows // (1 + len(list(self._members.nodes())))))
        body = wire.encode_clocks_asked(share)
        told = await self._whole(
            asked.bucket_type, lambda: self._local.clocks(share), lambda node: self._rows(node, body, share)
        )
        covered = min(one.covered for one in told)
        last = asked.segments[covered - 1]
        shift = 64 - asked.size_bits
        rows = [
            row
            for one in told
            for row in one.rows
            if one.covered == covered or key_hash(row.bucket, row.key) >> shift <= last
        ]
        if len(told) * NODE_BYTES > ANSWER_BYTES and sum(map(row_bytes, rows)) > ANSWER_BYTES:
            return _cut(rows, asked.segments[:covered], shift)
        return RowsTold((), covered, rows)

    async def _hashes(self, node: str, method: str, body: bytes, count: int) -> HashesTold:
        return wire.decode_hashes(await self._request(node, method, body, TIMEOUT_MS), count)

    async def _rows(self, node: str, body: bytes, asked: ClocksAsked) -> RowsTold:
        return wire.decode_rows(await self._request(node, CLOCKS, body, TIMEOUT_MS), asked)

    async def _whole(
        self, bucket_type: bytes, own: Callable[[], Awaitable[Told]], other: Callable[[str], Awaitable[Told]]
    ) -> list[Told]:
        missing = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(ATTEMPT_PAUSE_S)
            wanted = set(self._members.partitions(bucket_type))
            nodes: list[str] = sorted(self._members.nodes())
            told: list[Told] = []
            silent: list[str] = []
            tries = [_tried(node, other(node), told, silent) for node in nodes]
            await asyncio.gather(_tried("this node", own(), told, silent), *tries)
            missing = _missing(wanted, [standing for one in told for standing in one.standings], silent)
            if not missing:
                return told
        raise Incomplete(missing)


def _missing(wanted: set[int], standings: Sequence[TreeReadiness], silent: Sequence[str]) -> str:
    """Why the answers are not all of `wanted`, each once and ready; "" when they are."""
    unready = [standing for standing in standings if not standing.ready]
    if unready:
        first = unready[0]
        return f"{quantity(len(unready), 'tree')} cannot answer: partition {first.partition}: {first.reason}"
    counted = Counter(standing.partition for standing in standings)
    absent, twice = wanted - counted.keys(), [p for p, times in counted.items() if times > 1]
    if absent:
        because = f" ({'; '.join(silent)})" if silent else ""
        return f"{clause(len(absent), 'partition', 'has', 'have')} no leader that answers, {min(absent)} first{because}"
    if twice:
        return f"partition {min(twice)} is moving: two nodes answered for it"
    if silent:  # it may lead what another one, which has not heard of that, answered for
        return f"{clause(len(silent), 'node', 'does', 'do')} not answer ({'; '.join(silent)})"
    return ""


async def _tried(node: str, answer: Awaitable[Told], told: list[Told], silent: list[str]) -> None:
    try:
        told.append(await answer)
    except IsthmusError as error:
        silent.append(f"{node}: {error}")


def _cut(rows: Sequence[ComparedRow], segments: Sequence[int], shift: int) -> RowsTold:
    """As many of `segments`, with their rows, as ANSWER_BYTES have room for, and one at least."""
    found: dict[int, list[ComparedRow]] = {}
    for row in rows:
        found.setdefault(key_hash(row.bucket, row.key) >> shift, []).append(row)
    kept: list[ComparedRow] = []
    size = 0
    for covered, segment in enumerate(segments):
        size += sum(map(row_bytes, found.get(segment, ())))
        if covered and size > ANSWER_BYTES:
            return RowsTold((), covered, kept)
        kept += found.get(segment, ())
    return RowsTold((), len(segments), kept)


def _sum(told: Sequence[HashesTold]) -> Hashes:
    total = told[0].hashes.copy()
    for one in told[1:]:
        np.bitwise_xor(total, one.hashes, out=total)
    return total


async def _now(told: HashesTold) -> HashesTold:
    return told

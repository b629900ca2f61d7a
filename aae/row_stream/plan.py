"""Who holds which rows: for each partition of a bucket type its segments, and its copies with how far each is applied.

Any node answers for its cluster by asking all others; one that does not answer in time is left out, and a partition
without a copy that answers has none in the plan: whoever reads then knows that it cannot. A plan is a hint, of one
moment: what a stream is of, its head says (`aae.row_stream.wire`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgpack

from isthmus.aae.row_stream.streams import LocalReplica, RowStreams
from isthmus.repl.model.errors import CodecError, IsthmusError

METHOD: Final = "aae.rows_held"

TIMEOUT_MS: Final = 5_000
"""How long a node may take: it reads SAMPLE_ROWS rows of each of its copies."""

VERSION: Final = 1

COPIES_MAX: Final = 65_536
"""Copies of one answer, many times what a node holds."""


class ReplicaStatus(NamedTuple):
    """A copy as its node tells of it."""

    partition: int
    leads: bool
    whole: bool
    epoch: int
    offset: int
    rows_estimate: int | None


class RowPlan:
    """Plans. `copies(bucket_type)` are this node's; `ranges(bucket_type)` gives partition -> segments [first, end) and
    lineage, and raises BadInput when there is no such bucket type; `urls()` gives node -> URL of all live nodes."""

    def __init__(
        self,
        streams: RowStreams,
        *,
        node: str,
        copies: Callable[[bytes], Iterable[LocalReplica]],
        ranges: Callable[[bytes], Mapping[int, tuple[tuple[int, int], int]]],
        urls: Callable[[], Mapping[str, str]],
        request: Callable[[str, str, bytes, int], Awaitable[bytes]],
    ) -> None:
        self._streams = streams
        self._node = node
        self._copies = copies
        self._ranges = ranges
        self._urls = urls
        self._request = request

    def request_handlers(self) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes may ask of this one, by method."""
        return {METHOD: self._answer}

    async def plan(self, bucket_type: bytes) -> list[dict[str, Any]]:
        """One row a partition, by segments; the copies leaders last. Raises BadInput, NotReady."""
        ranges = self._ranges(bucket_type)
        urls = self._urls()
        nodes = sorted(urls)
        told = dict(zip(nodes, await asyncio.gather(*(self._ask(node, bucket_type) for node in nodes)), strict=True))
        plan = []
        for partition, (segments, lineage) in sorted(ranges.items(), key=lambda one: one[1]):
            copies = [
                (copy, {"node": node, "http": urls[node], **copy._asdict()})
                for node in nodes
                for copy in told[node]
                if copy.partition == partition
            ]
            copies.sort(key=lambda one: (one[0].leads, -one[0].offset))
            estimates = [copy.rows_estimate for copy, _ in copies if copy.whole and copy.rows_estimate is not None]
            plan.append(
                {
                    "partition": partition,
                    "segments": list(segments),
                    "lineage": lineage,
                    "rows_estimate": max(estimates, default=None),
                    "copies": [shown for _, shown in copies],
                }
            )
        return plan

    async def _own(self, bucket_type: bytes) -> list[ReplicaStatus]:
        held = list(self._copies(bucket_type))
        estimates = await self._streams.estimates(held)
        return [
            ReplicaStatus(one.partition, one.leads, one.whole, *self._streams.applied(one.partition), estimate)
            for one, estimate in zip(held, estimates, strict=True)
        ]

    async def _ask(self, node: str, bucket_type: bytes) -> Sequence[ReplicaStatus]:
        if node == self._node:
            return await self._own(bucket_type)
        try:
            return _decoded(await self._request(node, METHOD, bucket_type, TIMEOUT_MS))
        except IsthmusError:
            return ()

    async def _answer(self, _node: str, body: bytes) -> bytes:
        packed: bytes = msgpack.packb([VERSION, await self._own(body)])
        return packed


def _decoded(data: bytes) -> list[ReplicaStatus]:
    try:
        raw = msgpack.unpackb(data, max_array_len=COPIES_MAX, max_map_len=0, max_ext_len=0)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise CodecError(f"not a list of copies: {error}") from error
    match raw:
        case [1, list(rows)]:
            return [_copy(row) for row in rows]
    raise CodecError("not a list of copies")


def _copy(row: object) -> ReplicaStatus:
    match row:
        case [int(partition), bool(leads), bool(whole), int(epoch), int(offset), int() | None as estimate] if (
            min(partition, epoch, offset) >= 0
        ):
            return ReplicaStatus(partition, leads, whole, epoch, offset, estimate)
    raise CodecError("not a copy: partition, leads, whole, epoch, offset, estimate of rows")

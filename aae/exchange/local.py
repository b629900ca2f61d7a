"""Trees and rows of the partitions that this node leads: roots, leaves, and the rows of segments.

Every response is of one moment and lists its partitions. A partition without a ready tree is listed with the reason.
Rows are read in a thread, from one snapshot per partition, in whole segments; among them are the remembered clocks of
reaped keys (`repl.store.reaped_keys`), so that a value which a removed tombstone had seen is not taken for one that is
missing here. `aae.exchange.cluster` adds up the nodes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from typing import Final

import numpy as np

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.exchange import wire
from isthmus.aae.exchange.compare import ComparedRow, reaped_row
from isthmus.aae.exchange.wire import (
    AppliedTree,
    ClocksRequest,
    HashesResponse,
    LeavesRequest,
    PartitionHistory,
    RootsRequest,
    RowsResponse,
    TreeReadiness,
)
from isthmus.aae.ports import LedPartition, LocalReplicas, RpcHandler
from isthmus.aae.trees.tree import BRANCH_COUNT, LEAF_COUNT, Hashes
from isthmus.aae.trees.tree_cache import CachedTree, TreeCache
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import Corruption, IsthmusError
from isthmus.repl.model.keys import SEGMENT_BITS, key_hash
from isthmus.repl.store.port import Store
from isthmus.repl.store.rows import SEGMENT_BYTES, split_tail

ROOTS: Final = "aae.roots"
LEAVES: Final = "aae.leaves"
CLOCKS: Final = "aae.clocks"
APPLIED: Final = "aae.applied"

ANSWER_BYTES: Final = 8 * 1024 * 1024
"""A node's response ends with the segment that exceeds this size: more than common rows take, and enough for a few with
long names and clocks."""

READ_ROWS_MAX: Final = 500_000
"""Rows read for one response, also those outside its time range: a second or two of a thread."""


class LocalTrees:
    """Serves the partitions that this node leads."""

    def __init__(
        self,
        trees: TreeCache,
        store: Store,
        *,
        replicas: LocalReplicas,
        read_pool: Executor,
        damaged: DamagedRows,
    ) -> None:
        """`damaged` gets the segments that an exchange has read, to have them checked soon."""
        self._trees = trees
        self._store = store
        self._replicas = replicas
        self._pool = read_pool
        self._damaged = damaged

    def request_handlers(self) -> dict[str, RpcHandler]:
        """Handlers of requests from other nodes, by method."""
        return {
            ROOTS: self._serve_roots,
            LEAVES: self._serve_leaves,
            CLOCKS: self._serve_clocks,
            APPLIED: self._serve_applied,
        }

    def applied(self, bucket_type: bytes) -> list[AppliedTree]:
        """The ready trees, each with the offset that it covers."""
        return [
            AppliedTree(led.partition, PartitionHistory(led.lineage, led.incarnation), led.epoch, cached.offset)
            for led in self._replicas.led(bucket_type)
            if (cached := self._trees.cached.get(led.partition)) is not None and cached.tree is not None
        ]

    def roots(self, request: RootsRequest) -> HashesResponse:
        """The current hashes of all branches."""
        hashes: Hashes = np.zeros(BRANCH_COUNT, dtype=np.uint64)
        readiness = []
        for led in self._replicas.led(request.bucket_type):
            cached = self._trees.cached.get(led.partition)
            if cached is not None and cached.tree is not None:
                hashes ^= cached.tree.branch_hashes()
            readiness.append(readiness_of(led.partition, cached))
        return HashesResponse(tuple(readiness), hashes)

    def leaves(self, request: LeavesRequest) -> HashesResponse:
        """The current leaves of the requested branches."""
        readiness = []
        whole: Hashes = np.zeros(wire.leaf_count(request), dtype=np.uint64)
        rows = whole.reshape(len(request.branches), -1)
        for led in self._replicas.led(request.bucket_type):
            cached = self._trees.cached.get(led.partition)
            readiness.append(readiness_of(led.partition, cached))
            if cached is None or cached.tree is None:
                continue
            first, end = led.segments
            for at, branch in enumerate(request.branches):
                if first < (branch + 1) * LEAF_COUNT and branch * LEAF_COUNT < end:
                    rows[at] ^= cached.tree.leaves(branch, request.size_bits)
        return HashesResponse(tuple(readiness), whole)

    async def clocks(self, request: ClocksRequest) -> RowsResponse:
        """The rows of the requested segments. Raises Corruption, LocalFault."""
        led = self._replicas.led(request.bucket_type)
        rows, covered = await asyncio.get_running_loop().run_in_executor(self._pool, self._read, led, request)
        if request.size_bits == SEGMENT_BITS:
            for one in led:
                mine = one.places(request.segments, 0)
                self._damaged.check_soon(one.partition, request.segments[mine.start : min(mine.stop, covered)])
        # The replica of a partition that moved may have been removed while it was read.
        still = {one.partition for one in self._replicas.led(request.bucket_type)}
        moved = "it moved from its node while its rows were read"
        readiness = (TreeReadiness(p, p in still, "" if p in still else moved) for p in (one.partition for one in led))
        return RowsResponse(tuple(readiness), covered, rows)

    def _read(self, led: Sequence[LedPartition], request: ClocksRequest) -> tuple[list[ComparedRow], int]:
        """In a thread: (rows, number of segments covered). Reads all partitions until a limit of rows or bytes is
        reached."""
        shift = SEGMENT_BITS - request.size_bits
        found: list[tuple[int, ComparedRow]] = []
        covered = len(request.segments)
        read = size = 0
        for one in sorted(led, key=lambda one: one.segments):
            first, end = one.segments
            mine = [
                (at, max(first, request.segments[at] << shift), min(end, (request.segments[at] + 1) << shift))
                for at in one.places(request.segments, shift)
                if at < covered
            ]
            if not mine:
                continue
            reaped = _reaped_by_segment(self._store, one.partition, request)
            with (
                closing(self._store.transfers.snapshot(one.partition)) as snapshot,
                closing(snapshot.segments((start, stop) for _, start, stop in mine)) as parts,
            ):
                for (at, _, _), part in zip(mine, parts, strict=True):
                    for name, row in part:
                        listed = _row(*split_tail(name[SEGMENT_BYTES:]), row)
                        if _within(listed, request):
                            found.append((at, listed))
                            size += row_bytes(listed)
                    if at in reaped:
                        here = {split_tail(name[SEGMENT_BYTES:]) for name, _ in part}
                        gone = [row for row in reaped[at] if (row.bucket, row.key) not in here]
                        found += [(at, row) for row in gone if _within(row, request)]
                        size += sum(map(row_bytes, gone))
                    read += len(part)
                    if len(found) >= request.rows or size >= ANSWER_BYTES or read >= READ_ROWS_MAX:
                        covered = at + 1  # the next partition may have rows of the same segment
                        break
        return list(_kept(found, covered)), covered

    async def _serve_roots(self, _node: str, body: bytes) -> bytes:
        return wire.encode_hashes(self.roots(wire.decode_roots_request(body)))

    async def _serve_applied(self, _node: str, body: bytes) -> bytes:
        return wire.encode_applied(self.applied(wire.decode_roots_request(body).bucket_type))

    async def _serve_leaves(self, _node: str, body: bytes) -> bytes:
        return wire.encode_hashes(self.leaves(wire.decode_leaves_request(body)))

    async def _serve_clocks(self, _node: str, body: bytes) -> bytes:
        return wire.encode_rows(await self.clocks(wire.decode_clocks_request(body)))


def readiness_of(partition: int, cached: CachedTree | None) -> TreeReadiness:
    """Whether the tree of a partition that this node leads can answer."""
    if cached is None:
        return TreeReadiness(partition, False, "its tree is not known yet")
    if cached.tree is None:
        return TreeReadiness(partition, False, cached.reason or str(cached.state))
    return TreeReadiness(partition, True, "")


def _reaped_by_segment(store: Store, partition: int, request: ClocksRequest) -> dict[int, list[ComparedRow]]:
    """The rows of remembered reaped keys in the requested segments, by the index of their segment in the request; some
    of the keys may have been written again. Hashes 10,000 names of a partition at most, in some milliseconds."""
    remembered = dict(store.reaped_clocks(partition))
    if not remembered or request.since_ms:  # they have no time
        return {}
    places = {segment: at for at, segment in enumerate(request.segments)}
    shift = 64 - request.size_bits
    found: dict[int, list[ComparedRow]] = {}
    for (bucket, key), clock in remembered.items():
        at = places.get(key_hash(bucket, key) >> shift)
        if at is not None:
            found.setdefault(at, []).append(reaped_row(bucket, key, clock))
    return found


def _row(bucket: bytes, key: bytes, data: bytes) -> ComparedRow:
    try:
        row = decode_key_row(data)
    except IsthmusError as error:
        raise Corruption(f"the key row of {bucket!r}/{key!r} cannot be read: {error}") from error
    return ComparedRow(bucket, key, row.clock, row.hash64, row.last_modified_ms, row.tombstone)


def row_bytes(row: ComparedRow) -> int:
    """Approximate size of a row in a response."""
    return len(row.bucket) + len(row.key) + len(row.clock) + ROW_BYTES


ROW_BYTES: Final = 32
"""Size of a row in a response besides its names and clock: numbers and length prefixes."""


def _within(row: ComparedRow, request: ClocksRequest) -> bool:
    return row.modified_ms >= request.since_ms and (not request.before_ms or row.modified_ms < request.before_ms)


def _kept(found: list[tuple[int, ComparedRow]], covered: int) -> Iterator[ComparedRow]:
    return (row for at, row in found if at < covered)

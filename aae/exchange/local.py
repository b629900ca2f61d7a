"""What this node tells of the partitions that it leads: roots, leaves, and the rows of segments.

Answers are of one moment each, and say for which partitions they speak; a partition whose tree is being built is named
with the reason, never left out. Rows are read in a thread, from one snapshot a partition, whole segments at a time.
Who adds up the nodes is `aae.exchange.cluster`.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.compare import ComparedRow
from isthmus.aae.exchange.wire import ClocksAsked, HashesTold, LeavesAsked, RootsAsked, RowsTold, TreeReadiness
from isthmus.aae.trees.tree import BRANCH_COUNT, LEAF_COUNT, Hashes
from isthmus.aae.trees.tree_cache import CachedTree, TreeCache
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import Corruption, IsthmusError
from isthmus.repl.model.keys import SEGMENT_BITS, SEGMENT_COUNT
from isthmus.repl.store.port import Store
from isthmus.repl.store.rows import SEGMENT_BYTES, split_tail

ROOTS: Final = "aae.roots"
LEAVES: Final = "aae.leaves"
CLOCKS: Final = "aae.clocks"

ANSWER_BYTES: Final = 8 * 1024 * 1024
"""Of rows, of one node: the answer ends with the segment that passes it. More than rows take as a rule, and enough for
few of those with long names and clocks."""

READ_ROWS_MAX: Final = 500_000
"""Rows that are read for one answer, those outside of its times included: a second or two of a thread."""

Handler = Callable[[str, bytes], Awaitable[bytes]]


class Led(NamedTuple):
    """A partition that this node leads and serves: the `place`-th of `of`, which gives its range of segments."""

    partition: int
    place: int
    of: int

    @property
    def segments(self) -> tuple[int, int]:
        """Its segments [first, end) of 2^20."""
        return -(-self.place * SEGMENT_COUNT // self.of), -(-(self.place + 1) * SEGMENT_COUNT // self.of)

    def places(self, segments: Sequence[int], shift: int) -> range:
        """Where among `segments`, ascending and of 2^(20 - shift), those stand that it has a part of."""
        first, end = self.segments
        return range(bisect_left(segments, first >> shift), bisect_left(segments, -(-end >> shift)))


class LocalTrees:
    """Answers for the partitions led here. `led(bucket_type)` names them as they are now."""

    def __init__(
        self,
        trees: TreeCache,
        store: Store,
        *,
        led: Callable[[bytes], Sequence[Led]],
        read_pool: Executor,
        suspect: Callable[[int, Iterable[int]], None],
    ) -> None:
        """`suspect(partition, segments)` is told of segments whose rows are read: see `aae.scrub.row_audit`."""
        self._trees = trees
        self._store = store
        self._led = led
        self._pool = read_pool
        self._suspect = suspect

    def request_handlers(self) -> dict[str, Handler]:
        """What other nodes may ask of this one, by method."""
        return {ROOTS: self._answer_roots, LEAVES: self._answer_leaves, CLOCKS: self._answer_clocks}

    def roots(self, asked: RootsAsked) -> HashesTold:
        """The hashes of all branches, as they are now."""
        hashes: Hashes = np.zeros(BRANCH_COUNT, dtype=np.uint64)
        standings = []
        for led in self._led(asked.bucket_type):
            kept = self._trees.kept.get(led.partition)
            if kept is not None and kept.tree is not None:
                hashes ^= kept.tree.branch_hashes()
            standings.append(_standing(led.partition, kept))
        return HashesTold(tuple(standings), hashes)

    def leaves(self, asked: LeavesAsked) -> HashesTold:
        """The leaves of the branches, as they are now."""
        standings = []
        whole: Hashes = np.zeros(wire.leaf_count(asked), dtype=np.uint64)
        rows = whole.reshape(len(asked.branches), -1)
        for led in self._led(asked.bucket_type):
            kept = self._trees.kept.get(led.partition)
            standings.append(_standing(led.partition, kept))
            if kept is None or kept.tree is None:
                continue
            first, end = led.segments
            for at, branch in enumerate(asked.branches):
                if first < (branch + 1) * LEAF_COUNT and branch * LEAF_COUNT < end:
                    rows[at] ^= kept.tree.leaves(branch, asked.size_bits)
        return HashesTold(tuple(standings), whole)

    async def clocks(self, asked: ClocksAsked) -> RowsTold:
        """The rows of the segments. Raises Corruption, LocalFault."""
        led = self._led(asked.bucket_type)
        rows, covered = await asyncio.get_running_loop().run_in_executor(self._pool, self._read, led, asked)
        if asked.size_bits == SEGMENT_BITS:
            for one in led:
                mine = one.places(asked.segments, 0)
                self._suspect(one.partition, asked.segments[mine.start : min(mine.stop, covered)])
        still = {one.partition for one in self._led(asked.bucket_type)}  # of one that moved, the copy may be going
        moved = "it moved from its node while its rows were read"
        standings = (TreeReadiness(p, p in still, "" if p in still else moved) for p in (one.partition for one in led))
        return RowsTold(tuple(standings), covered, rows)

    def _read(self, led: Sequence[Led], asked: ClocksAsked) -> tuple[list[ComparedRow], int]:
        """In a thread. Segment after segment, through all partitions, until the rows, or their bytes, are passed."""
        shift = SEGMENT_BITS - asked.size_bits
        found: list[tuple[int, ComparedRow]] = []
        covered = len(asked.segments)
        read = size = 0
        for one in sorted(led, key=lambda one: one.segments):
            first, end = one.segments
            mine = [
                (at, max(first, asked.segments[at] << shift), min(end, (asked.segments[at] + 1) << shift))
                for at in one.places(asked.segments, shift)
                if at < covered
            ]
            if not mine:
                continue
            with (
                closing(self._store.far.snapshot(one.partition)) as snapshot,
                closing(snapshot.segments((start, stop) for _, start, stop in mine)) as parts,
            ):
                for (at, _, _), part in zip(mine, parts, strict=True):
                    for name, row in part:
                        listed = _row(*split_tail(name[SEGMENT_BYTES:]), row)
                        if _within(listed, asked):
                            found.append((at, listed))
                            size += row_bytes(listed)
                    read += len(part)
                    if len(found) >= asked.rows or size >= ANSWER_BYTES or read >= READ_ROWS_MAX:
                        covered = at + 1  # but for what the next partition has of the same segment
                        break
        return list(_kept(found, covered)), covered

    async def _answer_roots(self, _node: str, body: bytes) -> bytes:
        return wire.encode_hashes(self.roots(wire.decode_roots_asked(body)))

    async def _answer_leaves(self, _node: str, body: bytes) -> bytes:
        return wire.encode_hashes(self.leaves(wire.decode_leaves_asked(body)))

    async def _answer_clocks(self, _node: str, body: bytes) -> bytes:
        return wire.encode_rows(await self.clocks(wire.decode_clocks_asked(body)))


def _standing(partition: int, kept: CachedTree | None) -> TreeReadiness:
    if kept is None:
        return TreeReadiness(partition, False, "its tree is not looked at yet")
    if kept.tree is None:
        return TreeReadiness(partition, False, kept.reason or str(kept.state))
    return TreeReadiness(partition, True, "")


def _row(bucket: bytes, key: bytes, data: bytes) -> ComparedRow:
    try:
        row = decode_key_row(data)
    except IsthmusError as error:
        raise Corruption(f"the key row of {bucket!r}/{key!r} cannot be read: {error}") from error
    return ComparedRow(bucket, key, row.clock, row.hash64, row.last_modified_ms, row.tombstone)


def row_bytes(row: ComparedRow) -> int:
    """About what it takes in an answer."""
    return len(row.bucket) + len(row.key) + len(row.clock) + ROW_BYTES


ROW_BYTES: Final = 32
"""What a row takes in an answer besides its names and clock: numbers, and what tells their lengths."""


def _within(row: ComparedRow, asked: ClocksAsked) -> bool:
    return row.modified_ms >= asked.since_ms and (not asked.before_ms or row.modified_ms < asked.before_ms)


def _kept(found: list[tuple[int, ComparedRow]], covered: int) -> Iterator[ComparedRow]:
    return (row for at, row in found if at < covered)

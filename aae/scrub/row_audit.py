"""Scrub the key rows of this node's replicas: compare what they fold to with the leaves of the trees.

A tree follows the entries that apply changed. If a stored row is damaged later, the tree is still correct, and two
clusters with equal trees would be reported in sync. So rows are read and folded again, some thousands per replica and
round, and soon after an exchange has read them. A segment whose fold differs from its leaf, while neither changes,
raises an alarm that names its keys. Its damaged rows are repaired (`aae.scrub.row_repair`); the tree is dropped, and
rebuilt from the rows afterwards, so that exchanges and replicas see a row that could not be repaired as a difference.
Rules: docs/protocol.md I-TREE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from itertools import islice
from typing import Final

import structlog
from xxhash import xxh64_intdigest

from isthmus.aae.damaged_rows import SUSPECTS_MAX, DamagedRows
from isthmus.aae.ports import LocalReplicas
from isthmus.aae.scrub.row_repair import RowRepair
from isthmus.aae.trees.tree import LEAF_BITS, LEAF_COUNT, HashTree
from isthmus.aae.trees.tree_builder import SLICE_BYTES, SLICE_ROWS, page_leaves, row_leaf
from isthmus.aae.trees.tree_cache import CachedTree, TreeCache
from isthmus.repl.machine import machine
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import Corruption, IsthmusError
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.store.port import Store
from isthmus.repl.store.rows import segment_name
from isthmus.repl.unforeseen import unforeseen

log = structlog.get_logger(__name__)

ROUND_S: Final = 600.0
"""Every replica is checked once in this time."""

ROWS_MAX: Final = 20_000
"""Rows per replica and round, rounded up to whole segments: some 20 ms of a core. A replica of 10 million keys takes
less than four days, one of 20,000 ten minutes."""

REST_SHARE: Final = 1.0
"""Sleep after each slice of rows, as a share of the slice's duration."""

APPLY_WAIT_S: Final = 0.5
"""How long a tree may lag behind the rows in the store; after that the segments wait for the next round."""

HOLD_REASON: Final = "damaged rows are fetched again"
"""Shown as the reason why a tree is not built."""

KEYS_NAMED: Final = 5
"""Keys of a segment that the log names."""


class Scrubber:
    """Checks one replica at a time. Methods run on the event loop; rows are read in `pool`."""

    def __init__(
        self,
        trees: TreeCache,
        store: Store,
        *,
        repair: RowRepair,
        replicas: LocalReplicas,
        damaged: DamagedRows,
        pool: Executor,
    ) -> None:
        self._repair = repair
        self._replicas = replicas
        self._trees = trees
        self._store = store
        self._pool = pool
        self._next: dict[int, int] = {}
        self._damaged = damaged
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.rows_total = 0
        """Rows that were compared with a tree."""

    def start(self) -> None:
        """Start the rounds."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop the rounds."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        while True:
            partitions = list(self._trees.cached)
            for partition in partitions:
                await self._wait(ROUND_S / len(partitions))
                await self._guarded(self.check_next_range(partition))
            if not partitions:
                await self._wait(ROUND_S)

    async def _guarded(self, check: Awaitable[object]) -> None:
        try:
            await check
        except Exception as error:
            unforeseen.exception("trees.audit_bug", error)  # go on with the other replicas

    async def _wait(self, seconds: float) -> None:
        """Wait for the next check; requested repairs and suspects are handled meanwhile."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while (left_s := end_s - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._damaged.reported()
            except TimeoutError:
                return
            while (repair := self._damaged.take_repair()) is not None:
                await self._guarded(self._repair_segments(*repair))
            await self._guarded(self.check_suspects())

    async def check_suspects(self) -> list[int]:
        """Check the segments that `DamagedRows.check_soon` got; returns the wrong ones."""
        found: list[int] = []
        for partition, segments in self._damaged.take_suspects().items():
            try:
                found += await self._confirmed(partition, segments)
                await self._repair.repair_contradicting(partition, segments)
            except Exception as error:
                unforeseen.exception("trees.audit_bug", error, partition=partition)
        return found

    async def check_next_range(self, partition: int) -> list[int]:
        """Compare the next rows of a replica with its tree; returns the wrong segments, after alarms."""
        cached = self._trees.cached.get(partition)
        if cached is None or cached.tree is None:
            return []
        first = self._next.get(partition, 0)
        loop = asyncio.get_running_loop()
        try:
            tree, end = await loop.run_in_executor(self._pool, self._fold_range, partition, first, cached.segments)
        except Corruption as error:
            await self._unreadable(partition, error)
            return []
        except IsthmusError as error:
            log.info("trees.audit_put_off", partition=partition, error=str(error))
            return []
        self._next[partition] = 0 if end >= SEGMENT_COUNT else end
        serving: HashTree | None = cached.tree
        if serving is None:
            return []
        suspects = [segment for segment, _, _ in serving.differing_leaves(tree) if first <= segment < end]
        return await self._confirmed(partition, suspects[:SUSPECTS_MAX]) if suspects else []

    def _fold_range(self, partition: int, first: int, segments: tuple[int, int]) -> tuple[HashTree, int]:
        """In a thread: (tree of the next ROWS_MAX rows from the segment `first` on, first segment behind them);
        `segments` are the partition's."""
        tree, count = HashTree(*segments), 0
        with (
            closing(self._store.transfers.snapshot(partition)) as snapshot,
            closing(snapshot.key_pages(segment_name(first), SEGMENT_COUNT, SLICE_ROWS, SLICE_BYTES)) as pages,
        ):
            last = first
            for names, rows in pages:
                began = machine().monotonic_s()
                found, leaves = page_leaves(names, rows, *segments)
                if count >= ROWS_MAX:  # finish the last segment: only whole segments can be compared
                    rest = int(found.searchsorted(last, side="right"))
                    tree.change_sorted(found[:rest], leaves[:rest])
                    self.rows_total += rest
                    if rest < len(found):
                        return tree, last + 1
                    continue
                tree.change_sorted(found, leaves)
                last = int(found[-1])
                count += len(found)
                self.rows_total += len(found)
                if self._stopping:
                    return tree, last
                machine().sleep((machine().monotonic_s() - began) * REST_SHARE)
        return tree, SEGMENT_COUNT

    async def _confirmed(self, partition: int, segments: Sequence[int]) -> list[int]:
        """Those of `segments` whose rows did not change between two reads, and whose leaf, read between them, differs
        from their fold; after alarms. The leaf is read once the tree has reached the offset of the first read."""
        cached = self._trees.cached.get(partition)
        if cached is None or cached.tree is None or not segments:
            return []
        tree, loop = cached.tree, asyncio.get_running_loop()
        try:
            before, offset = await loop.run_in_executor(self._pool, self._folds, partition, segments)
            if cached.offset < offset:
                await asyncio.sleep(APPLY_WAIT_S)
            leaves, tree_offset = _leaves(tree, segments), cached.offset
            after, _ = await loop.run_in_executor(self._pool, self._folds, partition, segments)
        except Corruption as error:
            await self._unreadable(partition, error)
            return []
        except IsthmusError as error:
            log.info("trees.audit_put_off", partition=partition, error=str(error))
            return []
        whole = any(one.partition == partition and one.whole for one in self._replicas.snapshots())
        if tree_offset < offset or not whole:  # not whole: rows arrive from another node
            return []
        if self._trees.cached.get(partition) is not cached or cached.tree is not tree:
            return []
        wrong = [
            segment
            for segment, leaf in _leaves(tree, segments).items()
            if before[segment] == after[segment] != leaf == leaves[segment]
        ]
        if wrong:
            await self._alarm(partition, cached, {segment: leaves[segment] for segment in wrong})
        return wrong

    def _folds(self, partition: int, segments: Sequence[int]) -> tuple[dict[int, int], int]:
        """In a thread: ({segment: fold of its rows}, offset), read from one snapshot."""
        found = dict.fromkeys(segments, 0)
        with closing(self._store.transfers.snapshot(partition)) as snapshot:
            for segment in segments:
                with closing(snapshot.key_rows(segment, segment + 1)) as rows:  # type: ignore[type-var]
                    for _, bucket, key, row in rows:
                        found[segment] ^= row_leaf(bucket, key, row)
            return found, snapshot.end.offset

    async def _alarm(self, partition: int, cached: CachedTree, wrong: Mapping[int, int]) -> None:
        """Report and repair `wrong`: {segment: correct leaf}."""
        loop = asyncio.get_running_loop()
        for segment in islice(wrong, KEYS_NAMED):
            names, damaged = await loop.run_in_executor(self._pool, self._affected_keys, partition, segment)
            log.error("trees.rows_are_wrong", partition=partition, segment=segment, keys=names, damaged=damaged)
        self._trees.alarm(partition, list(wrong), cached.offset, "key rows")
        self._trees.invalidate(partition, HOLD_REASON)
        for segment, leaf in wrong.items():
            await self._repair.repair_segment(partition, segment, leaf)
        self._trees.invalidate(partition)

    def _affected_keys(self, partition: int, segment: int) -> tuple[list[str], list[str]]:
        """In a thread: (first keys of a segment, those of them whose object contradicts the key row)."""
        names, damaged = [], []
        for _, bucket, key, row in islice(self._store.key_rows(partition, segment, segment + 1), KEYS_NAMED):
            names.append(f"{bucket!r}/{key!r}")
            try:
                data = self._store.object(partition, bucket, key)
                wrong = data is None or xxh64_intdigest(data) != decode_key_row(row).hash64
            except IsthmusError:  # the object's block or the key row cannot be read
                wrong = True
            if wrong:
                damaged.append(names[-1])
        return names, damaged

    async def _unreadable(self, partition: int, error: IsthmusError) -> None:
        """Drop the tree of a replica with an unreadable row, and repair the row: no tree can be built from it."""
        log.error("trees.rows_unreadable", partition=partition, error=str(error))
        cached = self._trees.cached.get(partition)
        tree = None if cached is None else cached.tree
        self._trees.invalidate(partition, HOLD_REASON)
        await self._repair_unreadable(partition, tree)
        self._trees.invalidate(partition)

    async def _repair_segments(self, partition: int, leaves: Mapping[int, int]) -> None:
        if not leaves:
            await self._repair_unreadable(partition, None)
        for segment, leaf in leaves.items():
            await self._repair.repair_segment(partition, segment, leaf)

    async def _repair_unreadable(self, partition: int, tree: HashTree | None) -> None:
        """Repair all unreadable rows; `tree`: the replica's tree before it was dropped."""
        try:
            segments = await self._repair.unreadable_segments(partition, SUSPECTS_MAX)
        except IsthmusError as error:
            log.info("trees.audit_put_off", partition=partition, error=str(error))
            return
        leaves = {} if tree is None else _leaves(tree, segments)
        for segment in segments:
            await self._repair.repair_segment(partition, segment, leaves.get(segment))


def _leaves(tree: HashTree, segments: Sequence[int]) -> Mapping[int, int]:
    return {segment: int(tree.leaves(segment >> LEAF_BITS)[segment & (LEAF_COUNT - 1)]) for segment in segments}

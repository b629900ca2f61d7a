"""Are the key rows of this node's copies what its trees say? A stretch of each copy every round; in time, all of it.

A tree is kept by what apply changes, the key store by what it stores: if a row was damaged afterwards, the tree is
still right, and two clusters whose trees are equal are called in sync. So rows are read again and folded, some
thousands at a time, the next ones in the next round; and soon the segments that an exchange has asked for. A segment
whose fold is not its leaf, while neither changes, is an alarm that names its keys. Its damaged rows are fetched again
(`aae.scrub.row_repair`), and the tree is built anew from the rows as they are then: meanwhile nothing is proven by it,
and afterwards exchanges and replicas see a row that could not be mended as a difference. When each tree is built anew
anyhow is `aae.trees.tree_cache`'s affair. Rules: docs/protocol.md I-TREE.
"""

from __future__ import annotations

import asyncio
import time as clock
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import closing
from itertools import islice
from typing import Final

import structlog
from xxhash import xxh64_intdigest

from isthmus.aae.scrub.row_repair import RowRepair
from isthmus.aae.trees.tree import LEAF_BITS, LEAF_COUNT, HashTree
from isthmus.aae.trees.tree_builder import SLICE_BYTES, SLICE_ROWS, changes_of_page, leaf_of_row
from isthmus.aae.trees.tree_cache import CachedTree, ReplicaSnapshot, TreeCache
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import Corruption, IsthmusError
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.store.port import Store
from isthmus.repl.store.rows import segment_name

log = structlog.get_logger(__name__)

ROUND_S: Final = 600.0
"""Every copy has its turn once in this time."""

ROWS_MAX: Final = 20_000
"""Rows of one turn, rounded up to whole segments: some 20 ms of a core. A copy of 10 million keys is through in less
than four days, one of 20,000 in ten minutes."""

REST_SHARE: Final = 1.0
"""Rest after each slice of rows, as a share of what it took."""

TOLD_S: Final = 0.5
"""How long a tree may take to be told what the rows have already; after that the segments are left to the next turn."""

SUSPECTS_MAX: Final = 256
"""Segments that wait for a turn of their own; what an exchange asks for beyond that is left to the rounds."""

MENDED_FIRST: Final = "damaged rows are fetched again"
"""Why a tree waits to be built."""

KEYS_NAMED: Final = 5
"""Keys of a segment that are named in the log."""


class Scrubber:
    """Reads and compares, one copy at a time. Methods belong to the event loop; rows are read in `pool`."""

    def __init__(
        self,
        trees: TreeCache,
        store: Store,
        *,
        mending: RowRepair,
        copies: Callable[[], Iterable[ReplicaSnapshot]],
        pool: Executor,
    ) -> None:
        """`copies()` tells what is on this node, as `aae.trees.tree_cache` wants it."""
        self._mending = mending
        self._copies = copies
        self._trees = trees
        self._store = store
        self._pool = pool
        self._next: dict[int, int] = {}
        self._suspects: dict[tuple[int, int], None] = {}
        self._wrong: dict[int, dict[int, int]] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.rows_total = 0
        """Rows that were held against a tree."""

    def start(self) -> None:
        """Begin with the rounds."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Read no more."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def suspect(self, partition: int, segments: Iterable[int]) -> None:
        """Have these segments looked at soon: an exchange reads their rows, so something may be wrong with them."""
        for segment in islice(segments, SUSPECTS_MAX - len(self._suspects)):
            self._suspects[partition, segment] = None
            self._wake.set()

    def wrong(self, partition: int, leaves: Mapping[int, int]) -> None:
        """Have the rows of these segments mended, which should add up to these leaves; with none those that cannot be
        read, from which no tree can be built."""
        self._wrong.setdefault(partition, {}).update(leaves)
        self._wake.set()

    async def _run(self) -> None:
        while True:
            copies = list(self._trees.kept)
            for partition in copies:
                await self._wait(ROUND_S / len(copies))
                await self._kept_alive(self.look(partition))
            if not copies:
                await self._wait(ROUND_S)

    async def _kept_alive(self, turn: Awaitable[object]) -> None:
        try:
            await turn
        except Exception:
            log.exception("trees.audit_bug")  # the other copies are looked at all the same

    async def _wait(self, seconds: float) -> None:
        """Until the next turn; suspects have theirs meanwhile."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + seconds
        while (left_s := end_s - loop.time()) > 0:
            try:
                async with asyncio.timeout(left_s):
                    await self._wake.wait()
            except TimeoutError:
                return
            self._wake.clear()
            while self._wrong:
                await self._kept_alive(self._mend(*self._wrong.popitem()))
            await self._kept_alive(self.look_at_suspects())

    async def look_at_suspects(self) -> list[int]:
        """Look at the segments that were suspected; those that are wrong."""
        found: list[int] = []
        suspects, self._suspects = self._suspects, {}
        for partition in {partition for partition, _ in suspects}:
            segments = sorted(s for p, s in suspects if p == partition)
            found += await self._confirmed(partition, segments)
            await self._mending.look(partition, segments)
        return found

    async def look(self, partition: int) -> list[int]:
        """Hold the next rows of a copy against its tree; the segments that are wrong, after alarms."""
        kept = self._trees.kept.get(partition)
        if kept is None or kept.tree is None:
            return []
        first = self._next.get(partition, 0)
        loop = asyncio.get_running_loop()
        try:
            tree, end = await loop.run_in_executor(self._pool, self._stretch, partition, first, kept.segments)
        except Corruption as error:
            await self._unreadable(partition, error)
            return []
        except IsthmusError as error:
            log.info("trees.audit_put_off", partition=partition, error=str(error))
            return []
        self._next[partition] = 0 if end >= SEGMENT_COUNT else end
        serving: HashTree | None = kept.tree
        if serving is None:
            return []
        suspects = [segment for segment, _, _ in serving.differing_leaves(tree) if first <= segment < end]
        return await self._confirmed(partition, suspects[:SUSPECTS_MAX]) if suspects else []

    def _stretch(self, partition: int, first: int, segments: tuple[int, int]) -> tuple[HashTree, int]:
        """In a thread: the fold of the rows of the segments from `first` on, and the first segment behind them;
        `segments` are the partition's."""
        tree, count = HashTree(*segments), 0
        with (
            closing(self._store.far.snapshot(partition)) as snapshot,
            closing(snapshot.key_pages(segment_name(first), SEGMENT_COUNT, SLICE_ROWS, SLICE_BYTES)) as pages,
        ):
            last = first
            for names, rows in pages:
                began = clock.monotonic()
                found, leaves = changes_of_page(names, rows, *segments)
                if count >= ROWS_MAX:  # whole segments, so that each is compared
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
                clock.sleep((clock.monotonic() - began) * REST_SHARE)
        return tree, SEGMENT_COUNT

    async def _confirmed(self, partition: int, segments: Sequence[int]) -> list[int]:
        """Those of `segments` whose rows, read twice, are the same and not what the tree says between; after alarms.

        The tree is looked at once it has been told of all that the first reading saw, and before the second one: if
        the rows did not change from one to the other, the leaf must be theirs."""
        kept = self._trees.kept.get(partition)
        if kept is None or kept.tree is None or not segments:
            return []
        tree, loop = kept.tree, asyncio.get_running_loop()
        try:
            before, offset = await loop.run_in_executor(self._pool, self._folds, partition, segments)
            if kept.offset < offset:
                await asyncio.sleep(TOLD_S)
            leaves, told = _leaves(tree, segments), kept.offset
            after, _ = await loop.run_in_executor(self._pool, self._folds, partition, segments)
        except Corruption as error:
            await self._unreadable(partition, error)
            return []
        except IsthmusError as error:
            log.info("trees.audit_put_off", partition=partition, error=str(error))
            return []
        whole = any(
            copy.partition == partition and copy.whole for copy in self._copies()
        )  # no rows come from elsewhere
        if told < offset or not whole or self._trees.kept.get(partition) is not kept or kept.tree is not tree:
            return []
        wrong = [
            segment
            for segment, leaf in _leaves(tree, segments).items()
            if before[segment] == after[segment] != leaf == leaves[segment]
        ]
        if wrong:
            await self._alarm(partition, kept, {segment: leaves[segment] for segment in wrong})
        return wrong

    def _folds(self, partition: int, segments: Sequence[int]) -> tuple[dict[int, int], int]:
        """In a thread: the fold of each segment's rows, all of one moment, and the offset that this is of."""
        found = dict.fromkeys(segments, 0)
        with closing(self._store.far.snapshot(partition)) as snapshot:
            for segment in segments:
                with closing(snapshot.key_rows(segment, segment + 1)) as rows:  # type: ignore[type-var]
                    for _, bucket, key, row in rows:
                        found[segment] ^= leaf_of_row(bucket, key, row)
            return found, snapshot.end.offset

    async def _alarm(self, partition: int, kept: CachedTree, wrong: Mapping[int, int]) -> None:
        """`wrong`: segments, each with what its rows should add up to."""
        loop = asyncio.get_running_loop()
        for segment in islice(wrong, KEYS_NAMED):
            names, damaged = await loop.run_in_executor(self._pool, self._named, partition, segment)
            log.error("trees.rows_are_wrong", partition=partition, segment=segment, keys=names, damaged=damaged)
        self._trees.alarm(partition, list(wrong), kept.offset, "key rows")
        self._trees.doubt(partition, MENDED_FIRST)
        for segment, leaf in wrong.items():
            await self._mending.segment(partition, segment, leaf)
        self._trees.doubt(partition)

    def _named(self, partition: int, segment: int) -> tuple[list[str], list[str]]:
        """In a thread: the first keys of a segment, and those of them whose object is not what the key row says."""
        names, damaged = [], []
        for _, bucket, key, row in islice(self._store.key_rows(partition, segment, segment + 1), KEYS_NAMED):
            names.append(f"{bucket!r}/{key!r}")
            try:
                data = self._store.object(partition, bucket, key)
                wrong = data is None or xxh64_intdigest(data) != decode_key_row(row).hash64
            except IsthmusError:  # its block, or its key row: what is wrong is told all the same
                wrong = True
            if wrong:
                damaged.append(names[-1])
        return names, damaged

    async def _unreadable(self, partition: int, error: IsthmusError) -> None:
        """A row cannot be read at all: the tree can then not be built anew, and says so until the copy is mended."""
        log.error("trees.rows_unreadable", partition=partition, error=str(error))
        kept = self._trees.kept.get(partition)
        tree = None if kept is None else kept.tree
        self._trees.doubt(partition, MENDED_FIRST)
        await self._mend_unreadable(partition, tree)
        self._trees.doubt(partition)

    async def _mend(self, partition: int, leaves: Mapping[int, int]) -> None:
        if not leaves:
            await self._mend_unreadable(partition, None)
        for segment, leaf in leaves.items():
            await self._mending.segment(partition, segment, leaf)

    async def _mend_unreadable(self, partition: int, tree: HashTree | None) -> None:
        """Mend all that can be read from elsewhere; `tree` as it was before a row was doubted."""
        try:
            segments = await self._mending.unreadable(partition, SUSPECTS_MAX)
        except IsthmusError as error:
            log.info("trees.audit_put_off", partition=partition, error=str(error))
            return
        leaves = {} if tree is None else _leaves(tree, segments)
        for segment in segments:
            await self._mending.segment(partition, segment, leaves.get(segment))


def _leaves(tree: HashTree, segments: Sequence[int]) -> Mapping[int, int]:
    return {segment: int(tree.leaves(segment >> LEAF_BITS)[segment & (LEAF_COUNT - 1)]) for segment in segments}

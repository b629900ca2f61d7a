"""The trees of this node's copies, kept in step with what is applied; and built anew beside that, when need be.

Every applied entry carries the change of its leaf, so keeping a tree is one XOR an entry, on the event loop. A tree is
of the partition's applied offset exactly, or it is not `ready`: after a gap (rows that came from another node) or a
start without a saved tree it is built from a snapshot of the key store, in a thread, while the changes since are
gathered; a ready tree is still served, and kept, while its successor is built, and is compared with it. What a tree is
made of stands in `aae.trees.tree`, how one is built in `aae.trees.tree_builder`, its file in `aae.trees.tree_files`;
who asks is `aae.exchange.local`. Rules: docs/protocol.md I-TREE, R-TREE.

Each copy's tree, its state and those who wait for an offset are plain values, which only the cache changes.
"""

from __future__ import annotations

import asyncio
import time as clock
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from isthmus.aae.trees.throttle import TreeThrottle
from isthmus.aae.trees.tree import LEAF_BITS, LEAF_COUNT, Hashes, HashTree
from isthmus.aae.trees.tree_builder import TreeBuild, first_rebuild_ms
from isthmus.aae.trees.tree_files import forget_trees, save_tree, take_tree
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import IsthmusError, LocalFault, Overloaded
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.ports import TimeSource
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Family, Sample


class TreeState(StrEnum):
    """Of one copy's tree. Only `ready` answers."""

    READY = "ready"
    REBUILDING = "rebuilding"
    WAITING = "waiting"


class ReplicaSnapshot(NamedTuple):
    """A copy on this node as the runtime has it. Not `whole`: rows are still to come from the leader, or are written
    again after a power loss; then it has no tree."""

    partition: int
    bucket_type: bytes
    gen: int
    applied: int
    whole: bool
    segments: tuple[int, int] = (0, SEGMENT_COUNT)
    """Those of its partition: [first, end)."""


class Mismatch(NamedTuple):
    """An alarm: a tree that was not what it should be, found at `wall_ms`. `against`: `key store`, or the node whose
    tree was another one at the same offset."""

    partition: int
    segment: int
    offset: int
    against: str
    wall_ms: int


class OffsetCapture(NamedTuple):
    """Somebody wants to know the tree at an offset that is still to come."""

    offset: int
    number: int
    branch: int | None
    future: asyncio.Future[Hashes | None]


@dataclass(slots=True)
class CachedTree:
    """One copy's tree. `tree` is of the rows below `offset`; None when there is none that could be believed."""

    bucket_type: bytes
    gen: int
    tree: HashTree | None
    offset: int
    build: TreeBuild | None = None
    captures: list[OffsetCapture] = field(default_factory=list)
    reason: str = ""
    retry_at_ms: int = 0
    failures: int = 0
    """Builds that failed since one succeeded."""
    failed_by: str = ""
    """Why the newest of them did."""
    built_ms: int | None = None
    """Wall clock of the newest build; None: never, it was empty or saved."""
    again_at_ms: int | None = None
    """When it is built anew by itself; None: not known yet."""
    segments: tuple[int, int] = (0, SEGMENT_COUNT)

    @property
    def state(self) -> TreeState:
        """Ready also while a successor is built."""
        if self.tree is not None:
            return TreeState.READY
        return TreeState.REBUILDING if self.build is not None else TreeState.WAITING


log = structlog.get_logger(__name__)

RETRY_MS: Final = 30_000
RETRY_MS_MAX: Final = 300_000
"""Pause before a build that failed is tried again, doubled each time: each reads up to the row that it cannot read. At
most as long as an operator may wait after the key was written again, who asks for a build if not."""

HOLD_MS: Final = 60_000
"""How long the build of a tree that was doubted waits at most until somebody has tried to mend the rows."""

LOOK_MS: Final = 500
"""How often it is looked for copies that are new, gone, or in need of a tree."""

CAPTURES_MAX: Final = 8
"""Comparisons that may wait for an offset of one partition; there is one leader, which asks one at a time."""

MISMATCHES_KEPT: Final = 100
"""Newest alarms kept for operators; each names one segment of one partition."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_trees": Family(
        "Trees of this node's copies by state (ready, rebuilding, waiting).", "trees", "full-sync", ("state",)
    ),
    "isthmus_tree_bytes": Family("Memory of the leaves of all trees.", "bytes", "full-sync"),
    "isthmus_tree_builds_total": Family("Trees built from the key store.", "trees", "full-sync"),
    "isthmus_tree_build_keys_total": Family("Key rows read by builds.", "rows", "full-sync"),
    "isthmus_tree_build_seconds_total": Family("Time that builds took, rests included.", "seconds", "full-sync"),
    "isthmus_tree_rows_mended_total": Family(
        "Damaged rows that were fetched again, or made from their object.", "rows", "full-sync"
    ),
    "isthmus_tree_mismatches_total": Family(
        "Segments in which a tree was not its key store's fold, or not its leader's.", "segments", "full-sync"
    ),
}


class TreeCache:
    """The keeper; an AfterApply hook. Methods belong to the event loop; builds run in one thread, one at a time."""

    def __init__(
        self,
        store: Store,
        *,
        directory: Path,
        copies: Callable[[], Sequence[ReplicaSnapshot]],
        time: TimeSource,
        rebuild_ms: int = 0,
    ) -> None:
        """`copies()` tells what is on this node; `directory` is for trees between a clean stop and a start; every tree
        is built anew each `rebuild_ms`, 0: when asked for."""
        self._rebuild_ms = rebuild_ms
        self._store = store
        self._directory = directory
        self._copies = copies
        self._time = time
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="trees")
        self._pace = TreeThrottle()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._wanted: set[int] = set()
        self._stopping = False
        self._numbers = count()
        self.on_wrong: Callable[[int, Mapping[int, int]], None] = lambda _partition, _leaves: None
        """A tree that was built is not the one that it replaces: segments, and what their rows should add up to. Or,
        with none, a tree cannot be built from the rows that are there, told at each try."""
        self.kept: dict[int, CachedTree] = {}
        self.mismatches: list[Mismatch] = []
        self.mismatches_total = 0
        self.builds_total = 0
        self.build_keys_total = 0
        self.build_seconds_total = 0.0

    # -- life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take the saved trees of the copies that are here, and begin to build what is missing. Raises LocalFault."""
        for copy in self._copies():
            saved = None
            if copy.whole:
                saved = take_tree(self._directory, copy.partition, copy.gen, copy.applied, copy.segments)
            self.kept[copy.partition] = CachedTree(
                copy.bucket_type, copy.gen, saved, copy.applied, segments=copy.segments
            )
        forget_trees(self._directory)
        self._pool.submit(int)  # its thread is there from now on, not from the first build
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self, *, save: bool) -> None:
        """End builds; with `save` write every tree that is ready. The partitions apply nothing any more."""
        self._stopping = True
        if self._task is not None:
            self._wake.set()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if save:
            for partition, kept in self.kept.items():
                if kept.tree is not None and kept.offset:
                    try:
                        await asyncio.get_running_loop().run_in_executor(
                            self._pool, save_tree, self._directory, partition, kept.gen, kept.offset, kept.tree
                        )
                    except LocalFault as error:
                        log.warning("trees.not_saved", partition=partition, error=str(error))
        self._pool.shutdown()

    # -- keeping ----------------------------------------------------------------------------------------

    def applied(self, partition: int, entries: Sequence[Entry], leader: bool) -> None:  # noqa: ARG002
        """See AfterApply. Costs one XOR an entry."""
        kept = self.kept.get(partition)
        if kept is None:
            return  # a copy that came to be after the last look: it is looked at, with all that is applied, at the next
        first = entries[0].offset
        if first != kept.offset:
            self._gap(partition, kept)
        if kept.captures:
            entries = self._captured(kept, entries)
            if not entries:
                return
        self._take(kept, entries)

    @staticmethod
    def _take(kept: CachedTree, entries: Sequence[Entry]) -> None:
        changes = [(entry.key_hash >> 44, entry.leaf_change) for entry in entries if entry.leaf_change]
        kept.offset = entries[-1].offset + 1
        if kept.tree is not None:
            kept.tree.change_all(changes)
        build = kept.build
        if build is not None:
            build.gather(entries)

    def _captured(self, kept: CachedTree, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Answer the captures whose offset lies within `entries`; returns what is left of these."""
        end = entries[-1].offset + 1
        for capture in sorted(c for c in kept.captures if c.offset <= end):
            before = [entry for entry in entries if entry.offset < capture.offset]
            if before:
                self._take(kept, before)
                entries = entries[len(before) :]
            kept.captures.remove(capture)
            self._answer(kept, capture)
        return entries

    def _answer(self, kept: CachedTree, capture: OffsetCapture) -> None:
        if not capture.future.done():
            tree = kept.tree
            hashes = None
            if tree is not None and kept.offset == capture.offset:
                hashes = tree.branch_hashes() if capture.branch is None else tree.leaves(capture.branch)
            capture.future.set_result(hashes)

    def capture(self, partition: int, offset: int, branch: int | None = None) -> asyncio.Future[Hashes | None]:
        """The hashes of all branches, or the leaves of one, as they are when exactly `offset` is applied; None when
        that has passed, or there is no tree then. Raises Overloaded beyond CAPTURES_MAX; the caller sets a time-out."""
        future: asyncio.Future[Hashes | None] = asyncio.get_running_loop().create_future()
        kept = self.kept.get(partition)
        if kept is None or kept.offset > offset:
            future.set_result(None)
            return future
        capture = OffsetCapture(offset, next(self._numbers), branch, future)
        if kept.offset == offset:
            self._answer(kept, capture)
            return future
        kept.captures = [c for c in kept.captures if not c.future.done()]
        if len(kept.captures) >= CAPTURES_MAX:
            raise Overloaded(f"{CAPTURES_MAX} comparisons wait for partition {partition} already")
        kept.captures.append(capture)
        return future

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """See AfterApply: trees are kept on every replica alike."""

    def _gap(self, partition: int, kept: CachedTree) -> None:
        """Rows came by another way than entries: nothing kept so far is of any use."""
        log.info("trees.gap", partition=partition, kept_to=kept.offset)
        kept.tree = None
        if kept.build is not None:
            kept.build.valid = False
        self._wake.set()

    # -- building ---------------------------------------------------------------------------------------

    def rebuild(self, partition: int | None = None) -> list[int]:
        """Build anew the tree of a partition, or of all, as soon as its turn comes; the partitions that are meant."""
        wanted = [partition] if partition is not None else list(self.kept)
        found = [each for each in wanted if each in self.kept]
        self._wanted.update(found)
        self._wake.set()
        return found

    def doubt(self, partition: int, until_mended: str = "") -> None:
        """A tree that is not what its rows say: it serves no more, and is built anew at once, or, with a reason why
        it waits, when it is doubted again without one, HOLD_MS at most."""
        kept = self.kept.get(partition)
        if kept is not None:
            kept.tree, kept.reason = None, until_mended
            kept.retry_at_ms = self._time.now_ms() + HOLD_MS if until_mended else 0
            if kept.build is not None:
                kept.build.valid = False
            self._wake.set()

    async def _run(self) -> None:
        while not self._stopping:
            self._wake.clear()
            partition: int | None = None
            try:
                partition = self._next()
                if partition is not None:
                    await self._build(partition)
                    continue
            except IsthmusError as error:
                log.error("trees.failed", error=str(error))
            except Exception as error:
                log.exception("trees.bug")  # no tree is better than a node that is never in sync without a word
                kept = None if partition is None else self.kept.get(partition)
                if partition is not None and kept is not None:
                    kept.build = None
                    self._failed(partition, kept, error)  # so that the others have their turn
            try:
                async with asyncio.timeout(LOOK_MS / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _next(self) -> int | None:
        """Look which copies are here; the one whose tree is to be built next."""
        copies = {copy.partition: copy for copy in self._copies()}
        for partition in [p for p in self.kept if p not in copies]:
            del self.kept[partition]
            self._wanted.discard(partition)
        now_ms = self._time.now_ms()
        due: list[tuple[bool, int]] = []
        for partition, copy in copies.items():
            kept = self.kept.get(partition)
            if kept is None or kept.gen != copy.gen:
                empty = copy.applied == 0 and copy.whole
                tree = HashTree(*copy.segments) if empty else None
                kept = CachedTree(copy.bucket_type, copy.gen, tree, copy.applied, segments=copy.segments)
                self.kept[partition] = kept
            if kept.offset != copy.applied:  # and no entry since that would have told so: `applied`
                self._gap(partition, kept)
                kept.offset = copy.applied
            if not copy.whole:
                kept.tree, kept.reason = None, "far: rows are still to come, or are written again after a power loss"
            elif kept.tree is None:
                if not kept.reason or now_ms >= kept.retry_at_ms or partition in self._wanted:
                    due.append((False, partition))
            elif partition in self._wanted or self._again(partition, kept, now_ms):
                due.append((True, partition))
        return min(due)[1] if due else None

    def _again(self, partition: int, kept: CachedTree, now_ms: int) -> bool:
        """Whether a tree that serves has its turn."""
        if not self._rebuild_ms:
            return False
        if kept.again_at_ms is None:
            kept.again_at_ms = now_ms + first_rebuild_ms(partition, self._rebuild_ms)
        return now_ms >= kept.again_at_ms

    async def _build(self, partition: int) -> None:
        kept = self.kept[partition]
        build = kept.build = TreeBuild(*kept.segments)
        self._wanted.discard(partition)
        kept.reason = "rebuilding"
        kept.again_at_ms = self._time.now_ms() + self._rebuild_ms
        loop = asyncio.get_running_loop()
        started = clock.monotonic()
        try:
            tree, offset = await loop.run_in_executor(
                self._pool, build.fold, self._store, partition, self._pace, loop, lambda: self._stopping
            )
        except IsthmusError as error:
            kept.build = None
            self._failed(partition, kept, error)
            return
        while kept.offset < offset and self._still(partition, kept, build):
            build.heard.clear()  # the snapshot has what is still on its way to the loop
            try:
                async with asyncio.timeout(LOOK_MS / 1000):
                    await build.heard.wait()
            except TimeoutError:
                pass
        kept.build = None
        if not self._still(partition, kept, build):
            return
        tree = build.finished(tree)
        seconds = clock.monotonic() - started
        self.builds_total += 1
        self.build_keys_total += build.keys
        self.build_seconds_total += seconds
        if kept.tree is not None:
            found = kept.tree.differing_leaves(tree)
            self.alarm(partition, [segment for segment, _, _ in found], kept.offset, "key store")
            if found:
                self.on_wrong(partition, {segment: int(leaf) for segment, leaf, _ in found[:MISMATCHES_KEPT]})
        kept.tree, kept.reason, kept.built_ms = tree, "", self._time.wall_ms()
        kept.failures, kept.failed_by = 0, ""
        log.info("trees.built", partition=partition, keys=build.keys, seconds=round(seconds, 3))

    def _failed(self, partition: int, kept: CachedTree, error: Exception) -> None:
        """It is told of once, until the reason is another one or a build has succeeded; status and metrics show it."""
        why = f"cannot be built: {error}"
        pause_ms = min(RETRY_MS << min(kept.failures, 16), RETRY_MS_MAX)
        if why != kept.failed_by:
            log.error("trees.build_failed", partition=partition, error=str(error), again_in_s=pause_ms // 1000)
        kept.failures += 1
        kept.reason = kept.failed_by = why
        kept.retry_at_ms = self._time.now_ms() + pause_ms
        self.on_wrong(partition, {})

    def _still(self, partition: int, kept: CachedTree, build: TreeBuild) -> bool:
        """Whether a build is of the copy that is here: the same one, of which nothing came by another way."""
        if self._stopping or not build.valid or self.kept.get(partition) is not kept:
            return False
        return any(
            copy.partition == partition and copy.whole and copy.applied == kept.offset for copy in self._copies()
        )

    # -- asking -----------------------------------------------------------------------------------------

    def alarm(self, partition: int, segments: Sequence[int], offset: int, against: str) -> None:
        """Keep and log what a comparison found."""
        if not segments:
            return
        self.mismatches_total += len(segments)
        wall_ms = self._time.wall_ms()
        self.mismatches += [Mismatch(partition, s, offset, against, wall_ms) for s in segments[:MISMATCHES_KEPT]]
        del self.mismatches[:-MISMATCHES_KEPT]
        log.error(
            "trees.mismatch", partition=partition, against=against, segments=list(segments[:10]), count=len(segments)
        )

    def leaf(self, partition: int, segment: int) -> int | None:
        """What the rows of a segment should add up to; None without a tree."""
        kept = self.kept.get(partition)
        if kept is None or kept.tree is None:
            return None
        return int(kept.tree.leaves(segment >> LEAF_BITS)[segment & (LEAF_COUNT - 1)])

    def metrics(self) -> list[Sample]:
        """For Prometheus."""
        states = [kept.state for kept in self.kept.values()]
        held = sum(kept.tree.allocated_bytes for kept in self.kept.values() if kept.tree is not None)
        return [
            *(("isthmus_trees", {"state": state.value}, states.count(state)) for state in TreeState),
            ("isthmus_tree_bytes", {}, held),
            ("isthmus_tree_builds_total", {}, self.builds_total),
            ("isthmus_tree_build_keys_total", {}, self.build_keys_total),
            ("isthmus_tree_build_seconds_total", {}, self.build_seconds_total),
            ("isthmus_tree_mismatches_total", {}, self.mismatches_total),
        ]

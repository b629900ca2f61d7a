"""The trees of this node's replicas, updated as entries are applied and rebuilt when needed.

Every applied entry carries the change of its leaf, so an update is one XOR per entry, on the event loop. A `ready` tree
is exactly at the partition's applied offset. After a gap (rows that came from another node), and after a start without
a saved tree, a thread builds the tree from a snapshot of the key store; changes applied meanwhile are collected and
merged. During a rebuild the old tree keeps serving; it is then compared with the new one. Rules: docs/protocol.md
I-TREE, R-TREE.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import structlog

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.ports import ReplicaSnapshots
from isthmus.aae.trees.throttle import TreeThrottle
from isthmus.aae.trees.tree import LEAF_BITS, LEAF_COUNT, Hashes, HashTree
from isthmus.aae.trees.tree_builder import OWN_CONTENTS, TreeBuild, TreeContents, first_rebuild_ms
from isthmus.aae.trees.tree_files import load_and_remove_tree, remove_trees, save_tree
from isthmus.repl.machine import machine
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import IsthmusError, LocalFault, Overloaded
from isthmus.repl.model.keys import SEGMENT_COUNT
from isthmus.repl.model.ports import AppliedEntries, TimeSource
from isthmus.repl.store.port import Store
from isthmus.repl.telemetry import Family, Sample
from isthmus.repl.unforeseen import unforeseen


class TreeState(StrEnum):
    """State of a replica's tree. Only `ready` trees are compared."""

    READY = "ready"
    REBUILDING = "rebuilding"
    WAITING = "waiting"


class Mismatch(NamedTuple):
    """A segment whose leaf was wrong, found at `wall_ms`. `against`: `key store`, `key rows`, or the node whose tree
    differed at the same offset."""

    partition: int
    segment: int
    offset: int
    against: str
    wall_ms: int


class OffsetCapture(NamedTuple):
    """A request for the tree as of a future offset: the hashes of all branches, or the leaves of one."""

    offset: int
    number: int
    branch: int | None
    future: asyncio.Future[Hashes | None]


@dataclass(slots=True)
class CachedTree:
    """A replica's tree. `tree` covers the rows below `offset`; None when there is no correct one."""

    bucket_type: bytes
    log_id: int
    tree: HashTree | None
    offset: int
    build: TreeBuild | None = None
    captures: list[OffsetCapture] = field(default_factory=list)
    reason: str = ""
    retry_at_ms: int = 0
    failures: int = 0
    """Builds that failed since the last success."""
    failed_by: str = ""
    """Reason of the newest failure."""
    built_ms: int | None = None
    """Wall clock of the newest build; None: never built, because it began empty or was loaded from its file."""
    rebuild_at_ms: int | None = None
    """When the periodic rebuild is due; None: not scheduled yet."""
    segments: tuple[int, int] = (0, SEGMENT_COUNT)

    @property
    def state(self) -> TreeState:
        """A tree stays ready while its successor is built."""
        if self.tree is not None:
            return TreeState.READY
        return TreeState.REBUILDING if self.build is not None else TreeState.WAITING


log = structlog.get_logger(__name__)

RETRY_MS: Final = 30_000
RETRY_MS_MAX: Final = 300_000
"""Pause before a failed build is retried, doubled each time: each attempt reads all rows up to the damaged one. The
maximum is how long an operator may wait after a key was written again; a requested rebuild does not wait."""

HOLD_MS: Final = 60_000
"""Longest wait of an invalidated tree's build for the repair of its rows."""

POLL_MS: Final = 500
"""Interval at which the cache looks for replicas that are new, removed, or lack a tree."""

CAPTURES_MAX: Final = 8
"""Captures that may wait per partition; the only leader sends one request at a time."""

MISMATCHES_KEPT: Final = 100
"""Newest mismatches kept for operators."""

HELP: Final[Mapping[str, Family]] = {
    "isthmus_trees": Family(
        "Trees of this node's replicas by state (ready, rebuilding, waiting).", "trees", "full-sync", ("state",)
    ),
    "isthmus_tree_bytes": Family("Memory that the leaves of all trees take.", "bytes", "full-sync"),
    "isthmus_tree_builds_total": Family("Trees built from the key store.", "trees", "full-sync"),
    "isthmus_tree_build_keys_total": Family("Key rows read by builds.", "rows", "full-sync"),
    "isthmus_tree_build_seconds_total": Family("Time that builds took, pauses included.", "seconds", "full-sync"),
    "isthmus_tree_rows_mended_total": Family("Damaged rows that were replaced by a proven row.", "rows", "full-sync"),
    "isthmus_tree_mismatches_total": Family(
        "Segments in which a tree differed from its key store or from its leader's tree.", "segments", "full-sync"
    ),
}


class TreeCache:
    """Keeps one tree per local replica; an ApplyListener hook. Methods run on the event loop, builds in one thread."""

    def __init__(
        self,
        store: Store,
        *,
        directory: Path | None,
        replicas: ReplicaSnapshots,
        damaged: DamagedRows,
        time: TimeSource,
        rebuild_ms: int = 0,
        contents: TreeContents = OWN_CONTENTS,
    ) -> None:
        """`directory` holds the trees between a clean stop and the next start; None: they end with the process. Each
        tree is rebuilt every `rebuild_ms`; 0: only on request. `damaged` gets the segments in which a rebuilt tree
        differs from the one that it replaces, and the partitions whose rows no tree can be built from. `contents`: what
        is hashed into them."""
        self._contents = contents
        self._rebuild_ms = rebuild_ms
        self._store = store
        self._directory = directory
        self._replicas = replicas
        self._time = time
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="trees")
        self._throttle = TreeThrottle()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._requested: set[int] = set()
        self._stopping = False
        self._numbers = count()
        self._damaged = damaged
        self.cached: dict[int, CachedTree] = {}
        self.mismatches: list[Mismatch] = []
        self.mismatches_total = 0
        self.builds_total = 0
        self.build_keys_total = 0
        self.build_seconds_total = 0.0

    # -- start and stop ---------------------------------------------------------------------------------

    def start(self) -> None:
        """Load saved trees and begin to build the missing ones. Raises LocalFault."""
        for one in self._replicas.snapshots():
            saved = None
            if one.whole and self._directory is not None:
                saved = load_and_remove_tree(self._directory, one.partition, one.log_id, one.applied, one.segments)
            self.cached[one.partition] = CachedTree(
                one.bucket_type, one.log_id, saved, one.applied, segments=one.segments
            )
        if self._directory is not None:
            remove_trees(self._directory)
        loop = asyncio.get_running_loop()
        loop.run_in_executor(self._pool, int)  # start its thread now rather than at the first build
        self._task = loop.create_task(self._run())

    async def stop_builds(self) -> None:
        """Stop builds, and wait until none reads the store."""
        self._stopping = True
        if self._task is not None:
            self._wake.set()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def stop(self, *, save: bool) -> None:
        """Stop builds; with `save` write every ready tree. Call it once the partitions apply no more entries."""
        await self.stop_builds()
        if save and self._directory is not None:
            for partition, cached in self.cached.items():
                if cached.tree is not None and cached.offset:
                    try:
                        await asyncio.get_running_loop().run_in_executor(
                            self._pool, save_tree, self._directory, partition, cached.log_id, cached.offset, cached.tree
                        )
                    except LocalFault as error:
                        log.warning("trees.not_saved", partition=partition, error=str(error))
                    except Exception as error:  # the tree is built again at the next start
                        unforeseen.exception("trees.save_bug", error, partition=partition)
        self._pool.shutdown()

    # -- updates ----------------------------------------------------------------------------------------

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """See ApplyListener. Costs one XOR per entry."""
        for partition, entries, _ in applied:
            cached = self.cached.get(partition)
            if cached is not None:  # else opened since the last poll; the next poll reads its applied offset
                try:
                    self._applied(partition, cached, entries)
                except Exception as error:  # this tree may lack a change: it is built again
                    unforeseen.exception("trees.apply_bug", error, partition=partition)
                    self._gap(partition, cached)
                    cached.offset = entries[-1].offset + 1

    def _applied(self, partition: int, cached: CachedTree, entries: Sequence[Entry]) -> None:
        first = entries[0].offset
        if first != cached.offset:
            self._gap(partition, cached)
        if cached.captures:
            entries = self._captured(partition, cached, entries)
            if not entries:
                return
        self._apply(partition, cached, entries)

    def _apply(self, partition: int, cached: CachedTree, entries: Sequence[Entry]) -> None:
        changes = self._contents.changes(partition, entries)
        cached.offset = entries[-1].offset + 1
        if changes is None:
            self._gap(partition, cached)
            return
        if cached.tree is not None:
            self._contents.change(cached.tree, changes)
        build = cached.build
        if build is not None:
            build.add(changes)

    def _captured(self, partition: int, cached: CachedTree, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Resolve the captures whose offset lies within `entries`; returns the entries behind the last of them."""
        end = entries[-1].offset + 1
        for capture in sorted(c for c in cached.captures if c.offset <= end):
            before = [entry for entry in entries if entry.offset < capture.offset]
            if before:
                self._apply(partition, cached, before)
                entries = entries[len(before) :]
            cached.captures.remove(capture)
            self._resolve(cached, capture)
        return entries

    def _resolve(self, cached: CachedTree, capture: OffsetCapture) -> None:
        if not capture.future.done():
            tree = cached.tree
            hashes = None
            if tree is not None and cached.offset == capture.offset:
                hashes = tree.branch_hashes() if capture.branch is None else tree.leaves(capture.branch)
            capture.future.set_result(hashes)

    def capture(self, partition: int, offset: int, branch: int | None = None) -> asyncio.Future[Hashes | None]:
        """The hashes of all branches, or the leaves of one, at exactly `offset`; None if it has passed or there is no
        tree then. Raises Overloaded beyond CAPTURES_MAX; the caller sets a time-out."""
        future: asyncio.Future[Hashes | None] = asyncio.get_running_loop().create_future()
        cached = self.cached.get(partition)
        if cached is None or cached.offset > offset:
            future.set_result(None)
            return future
        capture = OffsetCapture(offset, next(self._numbers), branch, future)
        if cached.offset == offset:
            self._resolve(cached, capture)
            return future
        cached.captures = [c for c in cached.captures if not c.future.done()]
        if len(cached.captures) >= CAPTURES_MAX:
            raise Overloaded(f"{CAPTURES_MAX} comparisons wait for partition {partition} already")
        cached.captures.append(capture)
        return future

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:
        """See ApplyListener. Leaders and followers keep trees alike."""

    def replicas_changed(self) -> None:
        """Drop the trees of replicas that are none of `replicas` any more, and soon build those of others."""
        held = {one.partition for one in self._replicas.snapshots()}
        for partition in [p for p in self.cached if p not in held]:
            del self.cached[partition]
        self._wake.set()

    def _gap(self, partition: int, cached: CachedTree) -> None:
        """Drop the tree: rows arrived by another way than entries."""
        log.info("trees.gap", partition=partition, kept_to=cached.offset, **self._contents.log_fields)
        cached.tree = None
        if cached.build is not None:
            cached.build.valid = False
        self._wake.set()

    # -- building ---------------------------------------------------------------------------------------

    def rebuild(self, partition: int | None = None) -> list[int]:
        """Request the rebuild of a partition's tree, or of all; returns the partitions that have a replica here."""
        asked = [partition] if partition is not None else list(self.cached)
        found = [each for each in asked if each in self.cached]
        self._requested.update(found)
        self._wake.set()
        return found

    def invalidate(self, partition: int, hold_reason: str = "") -> None:
        """Drop a tree that contradicts its rows, and rebuild it at once. With `hold_reason` the rebuild waits for the
        next call without one, HOLD_MS at most."""
        cached = self.cached.get(partition)
        if cached is not None:
            cached.tree, cached.reason = None, hold_reason
            cached.retry_at_ms = self._time.now_ms() + HOLD_MS if hold_reason else 0
            if cached.build is not None:
                cached.build.valid = False
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
                unforeseen.exception(
                    "trees.bug", error
                )  # the task must go on: without trees the node can never be proven in sync
                cached = None if partition is None else self.cached.get(partition)
                if partition is not None and cached is not None:
                    cached.build = None
                    self._failed(partition, cached, error)  # backs off, so that other trees are built
            try:
                async with asyncio.timeout(POLL_MS / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _next(self) -> int | None:
        """Update the set of replicas; returns the partition whose tree is built next."""
        replicas = {one.partition: one for one in self._replicas.snapshots()}
        for partition in [p for p in self.cached if p not in replicas]:
            del self.cached[partition]
            self._requested.discard(partition)
        now_ms = self._time.now_ms()
        due: list[tuple[bool, int]] = []
        for partition, one in replicas.items():
            cached = self.cached.get(partition)
            if cached is None or cached.log_id != one.log_id:
                empty = one.applied == 0 and one.whole
                tree = self._contents.tree(*one.segments) if empty else None
                cached = CachedTree(one.bucket_type, one.log_id, tree, one.applied, segments=one.segments)
                self.cached[partition] = cached
            if cached.offset != one.applied:  # a gap that no entry has revealed to `applied` yet
                self._gap(partition, cached)
                cached.offset = one.applied
            if not one.whole:
                cached.tree = None
                cached.reason = "transfer: rows are still to come, or are written again after a power loss"
            elif cached.tree is None:
                if not cached.reason or now_ms >= cached.retry_at_ms or partition in self._requested:
                    due.append((False, partition))
            elif partition in self._requested or self._rebuild_is_due(partition, cached, now_ms):
                due.append((True, partition))
        return min(due)[1] if due else None

    def _rebuild_is_due(self, partition: int, cached: CachedTree, now_ms: int) -> bool:
        """True when the periodic rebuild of a ready tree is due."""
        if not self._rebuild_ms:
            return False
        if cached.rebuild_at_ms is None:
            cached.rebuild_at_ms = now_ms + first_rebuild_ms(partition, self._rebuild_ms)
        return now_ms >= cached.rebuild_at_ms

    async def _build(self, partition: int) -> None:
        cached = self.cached[partition]
        build = cached.build = TreeBuild(*cached.segments, self._contents, cached.bucket_type)
        self._requested.discard(partition)
        cached.reason = "rebuilding"
        cached.rebuild_at_ms = self._time.now_ms() + self._rebuild_ms
        loop = asyncio.get_running_loop()
        started = machine().monotonic_s()
        try:
            tree, offset = await loop.run_in_executor(
                self._pool, build.fold, self._store, partition, self._throttle, loop, lambda: self._stopping
            )
        except IsthmusError as error:
            cached.build = None
            self._failed(partition, cached, error)
            return
        while cached.offset < offset and self._is_current(partition, cached, build):
            build.progressed.clear()  # the snapshot has entries that `applied` has not received yet
            try:
                async with asyncio.timeout(POLL_MS / 1000):
                    await build.progressed.wait()
            except TimeoutError:
                pass
        cached.build = None
        if not self._is_current(partition, cached, build):
            return
        tree = build.complete(tree)
        seconds = machine().monotonic_s() - started
        self.builds_total += 1
        self.build_keys_total += build.keys
        self.build_seconds_total += seconds
        if cached.tree is not None:
            found = cached.tree.differing_leaves(tree)
            self.alarm(partition, [segment for segment, _, _ in found], cached.offset, "key store")
            if found:
                self._damaged.repair_soon(
                    partition, {segment: int(leaf) for segment, leaf, _ in found[:MISMATCHES_KEPT]}
                )
        cached.tree, cached.reason, cached.built_ms = tree, "", self._time.wall_ms()
        cached.failures, cached.failed_by = 0, ""
        log.info(
            "trees.built", partition=partition, keys=build.keys, seconds=round(seconds, 3), **self._contents.log_fields
        )

    def _failed(self, partition: int, cached: CachedTree, error: Exception) -> None:
        """Schedule the retry; log a failure once, until its reason changes or a build succeeds."""
        why = f"cannot be built: {error}"
        pause_ms = min(RETRY_MS << min(cached.failures, 16), RETRY_MS_MAX)
        if why != cached.failed_by:
            log.error(
                "trees.build_failed",
                partition=partition,
                error=str(error),
                again_in_s=pause_ms // 1000,
                **self._contents.log_fields,
            )
        cached.failures += 1
        cached.reason = cached.failed_by = why
        cached.retry_at_ms = self._time.now_ms() + pause_ms
        self._damaged.repair_soon(partition, {})

    def _is_current(self, partition: int, cached: CachedTree, build: TreeBuild) -> bool:
        """True while the build is of the replica that is open now, and no rows arrived except by entries."""
        if self._stopping or not build.valid or self.cached.get(partition) is not cached:
            return False
        return any(
            one.partition == partition and one.whole and one.applied == cached.offset
            for one in self._replicas.snapshots()
        )

    # -- reports ----------------------------------------------------------------------------------------

    def alarm(self, partition: int, segments: Sequence[int], offset: int, against: str) -> None:
        """Record and log the segments in which a comparison found a wrong leaf."""
        if not segments:
            return
        self.mismatches_total += len(segments)
        wall_ms = self._time.wall_ms()
        self.mismatches += [Mismatch(partition, s, offset, against, wall_ms) for s in segments[:MISMATCHES_KEPT]]
        del self.mismatches[:-MISMATCHES_KEPT]
        log.error(
            "trees.mismatch",
            partition=partition,
            against=against,
            segments=list(segments[:10]),
            count=len(segments),
            **self._contents.log_fields,
        )

    def leaf(self, partition: int, segment: int) -> int | None:
        """The leaf of a segment, which its rows must fold to; None without a tree."""
        cached = self.cached.get(partition)
        if cached is None or cached.tree is None:
            return None
        return int(cached.tree.leaves(segment >> LEAF_BITS)[segment & (LEAF_COUNT - 1)])

    def metrics(self) -> list[Sample]:
        """For Prometheus."""
        states = [cached.state for cached in self.cached.values()]
        held = sum(cached.tree.allocated_bytes for cached in self.cached.values() if cached.tree is not None)
        return [
            *(("isthmus_trees", {"state": state.value}, states.count(state)) for state in TreeState),
            ("isthmus_tree_bytes", {}, held),
            ("isthmus_tree_builds_total", {}, self.builds_total),
            ("isthmus_tree_build_keys_total", {}, self.build_keys_total),
            ("isthmus_tree_build_seconds_total", {}, self.build_seconds_total),
            ("isthmus_tree_mismatches_total", {}, self.mismatches_total),
        ]

"""Marks and loss records of bulk references: what a node holds in memory is on record, so a crash loses nothing unseen.

    nothing held  -> marked       before references are accepted; the write is awaited, so no crash comes between
    marked        -> raised       before more are accepted than the mark covers, or of another bucket type
    marked        -> lowered      at most once in LOWER_AFTER_MS, when much less is held
    marked        -> nothing held once nothing was held for LOWER_AFTER_MS
    marked        -> loss record  the node died: written by its next life, or by another node when it stays away

Without the metastore no reference is accepted that no mark covers: its producer has to retry (docs/protocol.md R-HELD).

A mark becomes a loss record only on a node that runs its queue. `OrphanedMarks` looks after queues that this node does
not run, because they were delisted while a node was down, or because they are in no file any more:

    delisted            marks and loss records are removed with the queue (docs/replication.md)
    another's queue     what this node held before its restart becomes a loss record, for the nodes that run the queue
    unknown queue       what a node that stays away held becomes a loss record

The first of the live nodes looks now and then; each node looks for its own marks once. The documents are in
`queues.queue_documents`. Runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final, Protocol

import structlog

from isthmus.queues.bulk_queue import BulkQueue
from isthmus.queues.queue_documents import (
    ANY_TYPE,
    CLEARED,
    BulkMark,
    CursorCommand,
    LostReferences,
    bound_for,
    joined_types,
    marks_of,
    named_types,
)
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.queue_store import QueueStore
from isthmus.queues.task_set import TaskSet
from isthmus.queues.window import REFUSED, REFUSED_REASON
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import TimeSource

log = structlog.get_logger(__name__)

SWEEP_MS: Final = 60_000
"""Pause between two sweeps, each a read or two per queue name that ever existed: some thousand reads at most. A node
that is missing in two sweeps counts as dead."""

FIRST_RETRY_MS: Final = 5_000
"""Pause before the first sweep of a process is repeated, when the metastore was away."""

LOWER_AFTER_MS: Final = 10_000
"""How long a mark outlives what it covers, and least pause before it is lowered: full-sync pushes in bursts, and each
change of a mark is a write that every node reads."""

AWAY_MS: Final = 30_000
"""How long a node must be away before another one records what it lost: a node that only restarts does so itself, and
has its queues again by then."""


class LiveNodes(Protocol):
    """The part of `queues.service.QueueCluster` that names live nodes."""

    def live_nodes(self) -> Collection[str]:
        """Names of the live nodes."""


class OrphanedMarks:
    """Sweeps of one node over the queues that it does not run."""

    def __init__(self, store: QueueStore, node: str, time: TimeSource) -> None:
        self._store = store
        self._node = node
        self._time = time
        self._swept = False
        """Whether a sweep of this process has looked for this node's own marks."""
        self._due_ms = 0
        self._away: set[str] = set()
        """Nodes with marks that were not live at the last sweep."""

    def due(self, live: Collection[str], now_ms: int) -> bool:
        """Whether to sweep now: at once in a new process, later only on the first of the live nodes."""
        if now_ms < self._due_ms or (self._swept and (not live or min(live) != self._node)):
            return False
        self._due_ms = now_ms + (SWEEP_MS if self._swept else FIRST_RETRY_MS)
        return True

    async def sweep(self, queues: Collection[QueueServer], live: Collection[str]) -> None:
        """Look at all queues that are not among `queues`, a live view. Raises NotReady."""
        first, away = bool(live) and min(live) == self._node, set[str]()
        for name in await self._store.names():
            if name in {queue.settings.name for queue in queues}:
                continue
            try:
                marks, delisted = await self._store.marks_of_other(name)
                if delisted:
                    log.info("queue.marks_removed", queue=name, marks=len(marks))
                    continue
                dead = {mark.node for mark in marks} - {*live} if live else set()
                away |= dead
                lose = {self._node} if not self._swept and marks_of(marks, self._node) else set()
                for node in sorted(lose | (dead & self._away if first else set())):
                    count = await self._store.record_crash(name, node, self._time.wall_ms())
                    log.warning("queue.lower_lost", queue=name, peer=node, marks=count)
            except CodecError as error:
                log.error("queue.metastore_value_unreadable", queue=name, error=str(error))
        self._swept, self._away = True, away


class BulkMarks:
    """The marks and loss records of one node, for all its queues."""

    def __init__(self, store: QueueStore, node: str, time: TimeSource, cluster: LiveNodes, tasks: TaskSet) -> None:
        self._store = store
        self._node = node
        self._time = time
        self._cluster = cluster
        self._tasks = tasks
        self._of: dict[QueueServer, _Marks] = {}
        self._away_since: dict[str, int] = {}
        """Node with marks -> since when it is not live."""
        self._orphans = OrphanedMarks(store, node, time)

    async def begin(self, queue: QueueServer) -> None:
        """Add a queue, which holds nothing yet: what an earlier process of this node held is lost. Raises NotReady."""
        if marks_of(queue.stored.held, self._node):
            await self._record_crash(queue, self._node)
        self._of[queue] = _Marks()

    async def _record_crash(self, queue: QueueServer, node: str) -> None:
        name = queue.settings.name
        count = await self._store.record_crash(name, node, self._time.wall_ms())
        if count:
            log.warning("queue.lower_lost", queue=name, peer=node, marks=count)

    async def end(self, queue: QueueServer) -> None:
        """Remove a delisted queue and drop what is held here. Raises NotReady; the mark is then removed with the queue,
        or becomes a loss record if a queue of its name is registered again."""
        try:
            await self.give_up(queue, "delisted", "")
        finally:
            self._of.pop(queue, None)

    # ---------------------------------------------------------------- marks of this node

    async def cover(self, queue: QueueServer, bulk: BulkQueue, keys: Sequence[Key]) -> None:
        """See `queues.queue_server.MarkWriter`."""
        marks = self._of.get(queue)
        if marks is None:
            raise NotReady(f"queue {queue.settings.name} is only beginning here, or is gone")
        types = named_types({key.bucket_type for key in keys})
        while not marks.covers(bulk.priority, bulk.held_count + len(keys), types):
            async with marks.lock:
                wanted = bulk.held_count + len(keys)
                if not marks.covers(bulk.priority, wanted, types):
                    bound = max(bound_for(wanted, max(bulk.limit, wanted)), marks.bounds.get(bulk.priority, 0))
                    known = marks.types.get(bulk.priority)
                    joined = types if known is None else joined_types(known, types)
                    await self._write_marks(
                        queue,
                        marks,
                        {**marks.bounds, bulk.priority: bound},
                        {**marks.types, bulk.priority: joined},
                    )

    async def _write_marks(
        self, queue: QueueServer, marks: _Marks, bounds: dict[int, int], types: dict[int, tuple[str, ...]]
    ) -> None:
        """Write that this node holds at most `bounds`, by priority, and of `types` alone. Holds the lock of `marks`."""
        now = self._time.wall_ms()
        since = {priority: marks.since_ms.get(priority, now) for priority in bounds}
        # Until the write is confirmed, only the smaller of the old and the new bound is certain.
        # Types are only added while there is a mark, so the old ones are.
        marks.bounds = {p: min(bound, bounds[p]) for p, bound in marks.bounds.items() if p in bounds}
        marks.types = {p: marks.types[p] for p in marks.bounds}
        wanted = [BulkMark(self._node, p, bound, since[p], types[p]) for p, bound in bounds.items()]
        held = await self._store.set_marks(queue.settings.name, self._node, wanted)
        queue.stored = queue.stored._replace(held=held)
        marks.bounds, marks.since_ms, marks.types = bounds, since, {p: types[p] for p in bounds}
        marks.oversized_since.clear()

    def tick(self, queues: Collection[QueueServer]) -> None:
        """Do what is due once a second: lower marks, restore marks that another node has turned into loss records,
        record the losses of nodes that stay away, sweep over other queues."""
        now = self._time.now_ms()
        if self._orphans.due(self._cluster.live_nodes(), now):
            self._tasks.start(self._sweep())
        away = self._staying_away(queues, now)
        for queue in queues:
            marks = self._of.get(queue)
            if marks is None or marks.lock.locked():
                continue
            wanted = self._wanted(queue, marks, now)
            written = {mark.priority: mark.at_most for mark in marks_of(queue.stored.held, self._node)}
            if marks.unrecorded or not wanted == marks.bounds == written:
                self._tasks.start(self._correct(queue, marks))
            for node in sorted(away & {mark.node for mark in queue.stored.held}):
                self._tasks.start(self._record_crash_of_other(queue, node))

    @staticmethod
    def _wanted(queue: QueueServer, marks: _Marks, now_ms: int) -> dict[int, int]:
        """The bounds to write now, by priority; a bound that is too large stays for LOWER_AFTER_MS."""
        wanted = {}
        for bulk in queue.machine.bulk_queues:
            priority, count = bulk.priority, bulk.held_count
            bound, least = marks.bounds.get(priority, 0), bound_for(count, bulk.limit) if count else 0
            if least >= bound:
                marks.oversized_since.pop(priority, None)
            elif now_ms - marks.oversized_since.setdefault(priority, now_ms) < LOWER_AFTER_MS:
                least = bound
            if least:
                wanted[priority] = least
        return wanted

    async def _correct(self, queue: QueueServer, marks: _Marks) -> None:
        try:
            async with marks.lock:
                await self._write_losses(queue, marks)
                await self._write_marks(queue, marks, self._wanted(queue, marks, self._time.now_ms()), marks.types)
        except IsthmusError as error:
            log.info("queue.mark_put_off", queue=queue.settings.name, reason=error.reason)

    async def _write_losses(self, queue: QueueServer, marks: _Marks) -> None:
        """Write the loss records that are not written yet. Holds the lock of `marks`."""
        if marks.unrecorded:
            writing = list(marks.unrecorded)
            await self._store.record_lost(queue.settings.name, writing)
            marks.unrecorded = marks.unrecorded[len(writing) :]

    # ---------------------------------------------------------------- nodes that stay away

    def _staying_away(self, queues: Collection[QueueServer], now_ms: int) -> set[str]:
        """Nodes with marks that are not live for AWAY_MS; none unless this node is the first of the live ones."""
        live = self._cluster.live_nodes()
        marked = {mark.node for queue in queues for mark in queue.stored.held} - {self._node, *live}
        self._away_since = {node: self._away_since.get(node, now_ms) for node in marked}
        if self._node not in live or min(live) != self._node:
            return set()
        return {node for node, since in self._away_since.items() if now_ms - since >= AWAY_MS}

    async def _sweep(self) -> None:
        try:
            await self._orphans.sweep(self._of, self._cluster.live_nodes())
        except IsthmusError as error:
            log.info("queue.marks_not_looked_at", reason=error.reason)

    async def _record_crash_of_other(self, queue: QueueServer, node: str) -> None:
        try:
            await self._record_crash(queue, node)
        except IsthmusError as error:
            log.info("queue.mark_put_off", queue=queue.settings.name, reason=error.reason)

    # ---------------------------------------------------------------- losses

    async def give_up(self, queue: QueueServer, what: str, by: str) -> None:
        """Drop all bulk references held here, and record the loss. Raises NotReady; the loss is then recorded later, or
        the mark becomes its record."""
        marks = self._of.get(queue)
        if marks is None:
            return  # delisted before this process began it
        lost = []
        for bulk in queue.machine.bulk_queues:
            types = named_types(bulk.held_types())
            cleared = bulk.clear()
            if cleared is not None:
                at_ms = self._time.wall_ms()
                lost.append(LostReferences(self._node, bulk.priority, *cleared, what, by, at_ms, bucket_types=types))
        if lost:
            log.warning(
                "queue.lower_given_up", queue=queue.settings.name, what=what, count=sum(one.left_out for one in lost)
            )
        marks.unrecorded += lost
        queue.space_freed()
        if marks.unrecorded or marks.bounds:
            async with marks.lock:
                await self._write_losses(queue, marks)
                if not any(bulk.held_count for bulk in queue.machine.bulk_queues):
                    await self._write_marks(queue, marks, {}, {})

    def record_refused(self, queue: QueueServer) -> None:
        """Record bulk references that the sink refused permanently and keeps nothing of, within a second; until then
        the marks cover them."""
        marks, now_ms = self._of.get(queue), self._time.wall_ms()
        refused, queue.machine.refused_bulk = queue.machine.refused_bulk, []
        if marks is None:
            return
        for priority in sorted({one.priority for one in refused}):
            found = [one for one in refused if one.priority == priority]
            times = [one.queued_ms for one in found]
            at_ms = max([now_ms, *(lost.at_ms + 1 for lost in marks.unrecorded if lost.priority == priority)])
            marks.unrecorded.append(
                LostReferences(
                    self._node,
                    priority,
                    len(times),
                    min(times),
                    max(times),
                    REFUSED,
                    REFUSED_REASON,
                    at_ms,
                    bucket_types=named_types({one.bucket_type for one in found}),
                )
            )

    async def apply_command(self, queue: QueueServer, before: CursorCommand | None) -> None:
        """Drop what is held here if the queue was cleared since `before` was the newest command. Raises NotReady."""
        command = queue.stored.command
        if command is not None and command != before and command.what == CLEARED:
            await self.give_up(queue, CLEARED, command.by)


class _Marks:
    """This node's marks of one queue."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.bounds: dict[int, int] = {}
        """Priority -> references that its mark covers."""
        self.types: dict[int, tuple[str, ...]] = {}
        """Priority -> bucket types that its mark covers (`queue_documents.ANY_TYPE`: all); for each of `bounds`."""
        self.since_ms: dict[int, int] = {}
        """Priority -> when its mark was first written."""
        self.oversized_since: dict[int, int] = {}
        """Priority -> since when its bound is larger than needed."""
        self.unrecorded: list[LostReferences] = []
        """Losses that are not written yet."""

    def covers(self, priority: int, count: int, types: tuple[str, ...]) -> bool:
        """Whether the mark of a priority allows to hold `count` references, some of them of `types`."""
        covered = self.types.get(priority)
        if count > self.bounds.get(priority, 0) or covered is None:
            return False
        return covered == ANY_TYPE or (types != ANY_TYPE and {*types} <= {*covered})

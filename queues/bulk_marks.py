"""The lower priorities of a node's queues, on record while they hold anything; what is lost of them is written down.

    nothing held  -> marked       before references are taken in; the write is waited for, so no crash comes between
    marked        -> raised       before more are taken in than the mark says
    marked        -> lowered      at most once in REST_MS, when much less is held
    marked        -> nothing held once nothing was held for REST_MS
    marked        -> a record     the node died: by itself when it begins again, by another node when it stays away

Runs on the event loop. What marks and records are stands in `queues.queue_documents` and `queues.queue_documents`;
docs/protocol.md R-HELD. Without the metastore nothing new is taken in that no mark covers: whoever brings it is told to
come back.

What is left in the metastore of queues that this node does not have: marks of references, and records of losses.

A mark (`queues.queue_documents`) becomes a record only where somebody has its queue. Of a queue that was delisted while
a node was down nobody has it; of one that a node's file names no more that node has not. So:

    delisted           marks and records of its lower priorities go: they go with the queue (docs/queues.md)
    another's queue    what this node's life before held becomes a record, for those who have the queue
    nobody's that is   what a node held that stays away becomes a record
    known

The first of the live nodes looks, now and then; each looks for its own marks once. Deletes are conditional on what was
read before the queue was found to be delisted, so a queue that is registered again meanwhile keeps its marks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

import structlog

from isthmus.queues.bulk_queue import BulkQueue
from isthmus.queues.queue_documents import (
    CLEARED,
    BulkMark,
    CursorCommand,
    LostReferences,
    QueueStore,
    bound_for,
    of_node,
)
from isthmus.queues.queue_server import QueueServer
from isthmus.queues.window import REFUSED, REFUSED_REASON
from isthmus.repl.model.errors import CodecError, IsthmusError, NotReady
from isthmus.repl.model.ports import TimeSource

log = structlog.get_logger(__name__)

SWEEP_MS: Final = 60_000
"""Pause between two looks, each a read or two a name that there ever was: a matter of a thousand reads at most. A node
that is missed at two of them is taken for dead, as in `queues.bulk_marks`."""

FIRST_AGAIN_MS: Final = 5_000
"""Pause before the first look of a life is tried again: the metastore was away."""


class OrphanedMarks:
    """Of one node."""

    def __init__(self, steering: QueueStore, node: str, time: TimeSource) -> None:
        self._steering = steering
        self._node = node
        self._time = time
        self._begun = False
        self._due_ms = 0
        self._away: set[str] = set()

    def due(self, live: Collection[str], now_ms: int) -> bool:
        """Whether a look is due: at once in a new life, then for the first of the live nodes."""
        if now_ms < self._due_ms or (self._begun and (not live or min(live) != self._node)):
            return False
        self._due_ms = now_ms + (SWEEP_MS if self._begun else FIRST_AGAIN_MS)
        return True

    async def look(self, own: Callable[[], Collection[str]], live: Collection[str]) -> None:
        """Look at the queues that are not among `own`, asked each time. Raises NotReady."""
        first, away = bool(live) and min(live) == self._node, set[str]()
        for name in await self._steering.names():
            if name in own():
                continue
            try:
                marks, gone = await self._steering.left_of(name)
                if gone:
                    log.info("queue.marks_removed", queue=name, marks=len(marks))
                    continue
                dead = {mark.node for mark in marks} - {*live} if live else set()
                away |= dead
                lose = {self._node} if not self._begun and of_node(marks, self._node) else set()
                for node in lose | (dead & self._away if first else set()):
                    count = await self._steering.lose_held(name, node, self._time.wall_ms())
                    log.warning("queue.lower_lost", queue=name, holder=node, marks=count)
            except CodecError as error:
                log.error("queue.metastore_value_unreadable", queue=name, error=str(error))
        self._begun, self._away = True, away


REST_MS: Final = 10_000
"""How long a mark outlives what it covers, and least pause before it is lowered: full-sync pushes in bursts, and each
change of a mark is a write that every node reads."""

AWAY_MS: Final = 30_000
"""How long a node must be away before another one writes down what it lost: one that is only restarted does so itself,
and knows its queues again by then."""


class BulkMarks:
    """See the module's text. Of one node; `spawn` starts a task that is cancelled at stop."""

    def __init__(
        self,
        steering: QueueStore,
        node: str,
        time: TimeSource,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self.live: Callable[[], Collection[str]] = tuple
        """The live nodes of the cluster. Set by who knows them."""
        self._steering = steering
        self._node = node
        self._time = time
        self._spawn = spawn
        self._of: dict[QueueServer, _Marks] = {}
        self._away_since: dict[str, int] = {}
        self._leftovers = OrphanedMarks(steering, node, time)

    async def begin(self, queue: QueueServer) -> None:
        """The queue is new in this process, which holds nothing of it: what a life before held is lost. Raises
        NotReady."""
        if of_node(queue.word.held, self._node):
            await self._lose(queue, self._node)
        self._of[queue] = _Marks()

    async def _lose(self, queue: QueueServer, node: str) -> None:
        name = queue.settings.name
        count = await self._steering.lose_held(name, node, self._time.wall_ms())
        if count:
            log.warning("queue.lower_lost", queue=name, holder=node, marks=count)

    async def end(self, queue: QueueServer) -> None:
        """The queue is no more: drop what is held here. Raises NotReady; its mark then goes with the queue, or becomes
        a record where there is another of its name."""
        try:
            await self.give_up(queue, "delisted", "")
        finally:
            self._of.pop(queue, None)

    # ---------------------------------------------------------------- marks of this node

    async def cover(self, queue: QueueServer, lower: BulkQueue, count: int) -> None:
        """Returns once a mark covers `count` references more than are held at `lower`, at once when one does. Raises
        NotReady, Overloaded."""
        marks = self._of.get(queue)
        if marks is None:
            raise NotReady(f"queue {queue.settings.name} is only beginning here, or is gone")
        while lower.held_count + count > marks.bounds.get(lower.priority, 0):
            async with marks.lock:
                wanted = lower.held_count + count
                if wanted > marks.bounds.get(lower.priority, 0):
                    bound = bound_for(wanted, max(lower.limit, wanted))
                    await self._mark(queue, marks, {**marks.bounds, lower.priority: bound})

    async def _mark(self, queue: QueueServer, marks: _Marks, bounds: dict[int, int]) -> None:
        """Write that this node holds at most `bounds`, by priority. Under the lock of `marks`."""
        now = self._time.wall_ms()
        since = {priority: marks.since_ms.get(priority, now) for priority in bounds}
        # From here on until it is written, only what both say is certain.
        marks.bounds = {p: min(bound, bounds[p]) for p, bound in marks.bounds.items() if p in bounds}
        wanted = [BulkMark(self._node, priority, bound, since[priority]) for priority, bound in bounds.items()]
        held = await self._steering.hold(queue.settings.name, self._node, wanted)
        queue.word = queue.word._replace(held=held)
        marks.bounds, marks.since_ms = bounds, since
        marks.much_since.clear()

    def tick(self, queues: Collection[QueueServer]) -> None:
        """What is due once a second: marks that say too much, or that another node has taken for a dead one's; marks of
        nodes that stay away; what is left of queues that are not here."""
        now = self._time.now_ms()
        if self._leftovers.due(self.live(), now):
            self._spawn(self._look_at_leftovers())
        away = self._staying_away(queues, now)
        for queue in queues:
            marks = self._of.get(queue)
            if marks is None or marks.lock.locked():
                continue
            wanted = self._wanted(queue, marks, now)
            written = {mark.priority: mark.at_most for mark in of_node(queue.word.held, self._node)}
            if marks.unsaved or not wanted == marks.bounds == written:
                self._spawn(self._put_right(queue, marks))
            for node in away & {mark.node for mark in queue.word.held}:
                self._spawn(self._lose_for(queue, node))

    @staticmethod
    def _wanted(queue: QueueServer, marks: _Marks, now_ms: int) -> dict[int, int]:
        """What the marks should say now, by priority; one that says too much does so for REST_MS."""
        wanted = {}
        for lower in queue.machine.bulk_queues:
            priority, count = lower.priority, lower.held_count
            bound, least = marks.bounds.get(priority, 0), bound_for(count, lower.limit) if count else 0
            if least >= bound:
                marks.much_since.pop(priority, None)
            elif now_ms - marks.much_since.setdefault(priority, now_ms) < REST_MS:
                least = bound
            if least:
                wanted[priority] = least
        return wanted

    async def _put_right(self, queue: QueueServer, marks: _Marks) -> None:
        try:
            async with marks.lock:
                await self._write_down(queue, marks)
                await self._mark(queue, marks, self._wanted(queue, marks, self._time.now_ms()))
        except IsthmusError as error:
            log.info("queue.mark_put_off", queue=queue.settings.name, reason=error.reason)

    async def _write_down(self, queue: QueueServer, marks: _Marks) -> None:
        """What was given up and is not on record yet. Under the lock of `marks`."""
        if marks.unsaved:
            noting = list(marks.unsaved)
            await self._steering.note_lost(queue.settings.name, noting)
            marks.unsaved = marks.unsaved[len(noting) :]

    # ---------------------------------------------------------------- nodes that stay away

    def _staying_away(self, queues: Collection[QueueServer], now_ms: int) -> set[str]:
        """Nodes with marks that are not live for AWAY_MS; none unless this node is the first of the live ones."""
        live = self.live()
        marked = {mark.node for queue in queues for mark in queue.word.held} - {self._node, *live}
        self._away_since = {node: self._away_since.get(node, now_ms) for node in marked}
        if self._node not in live or min(live) != self._node:
            return set()
        return {node for node, since in self._away_since.items() if now_ms - since >= AWAY_MS}

    async def _look_at_leftovers(self) -> None:
        try:
            await self._leftovers.look(lambda: {queue.settings.name for queue in self._of}, self.live())
        except IsthmusError as error:
            log.info("queue.marks_not_looked_at", reason=error.reason)

    async def _lose_for(self, queue: QueueServer, node: str) -> None:
        try:
            await self._lose(queue, node)
        except IsthmusError as error:
            log.info("queue.mark_put_off", queue=queue.settings.name, reason=error.reason)

    # ---------------------------------------------------------------- giving up

    async def give_up(self, queue: QueueServer, what: str, by: str) -> None:
        """Drop what is held here, and keep a record of it. Raises NotReady; the record is then made later, or its mark
        becomes one."""
        marks = self._of.get(queue)
        if marks is None:
            return  # it never began here: it was delisted before this process began
        lost = []
        for lower in queue.machine.bulk_queues:
            cleared = lower.clear()
            if cleared is not None:
                lost.append(LostReferences(self._node, lower.priority, *cleared, what, by, self._time.wall_ms()))
        if lost:
            log.warning(
                "queue.lower_given_up", queue=queue.settings.name, what=what, count=sum(one.left_out for one in lost)
            )
        marks.unsaved += lost
        queue.room_made()
        if marks.unsaved or marks.bounds:
            async with marks.lock:
                await self._write_down(queue, marks)
                if not any(lower.held_count for lower in queue.machine.bulk_queues):
                    await self._mark(queue, marks, {})

    def missing(self, queue: QueueServer) -> None:
        """What the sink refused for good of the lower priorities, and keeps nothing of, is on record soon: until then
        the marks cover it."""
        marks, now_ms = self._of.get(queue), self._time.wall_ms()
        found, queue.machine.refused_bulk = queue.machine.refused_bulk, []
        if marks is None:
            return
        for priority in {priority for priority, _ in found}:
            times = [at for one, ats in found if one == priority for at in ats]
            at_ms = max([now_ms, *(lost.at_ms + 1 for lost in marks.unsaved if lost.priority == priority)])
            marks.unsaved.append(
                LostReferences(self._node, priority, len(times), min(times), max(times), REFUSED, REFUSED_REASON, at_ms)
            )

    async def apply_state(self, queue: QueueServer, before: CursorCommand | None) -> None:
        """The queue was cleared since `before` was the newest decree: on every node. Raises NotReady."""
        decree = queue.word.decree
        if decree is not None and decree != before and decree.what == CLEARED:
            await self.give_up(queue, CLEARED, decree.by)


class _Marks:
    """Of one queue: what this node's marks cover by priority, since when, since when they say too much, and what could
    not be written down yet."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.bounds: dict[int, int] = {}
        self.since_ms: dict[int, int] = {}
        self.much_since: dict[int, int] = {}
        self.unsaved: list[LostReferences] = []

"""What is left in the metastore of queues that this node does not have: marks of references, and records of losses.

A mark (`queues.held`) becomes a record only where somebody has its queue. Of a queue that was delisted while a node was
down nobody has it; of one that a node's file names no more that node has not. So:

    delisted           marks and records of its lower priorities go: they go with the queue (docs/queues.md)
    another's queue    what this node's life before held becomes a record, for those who have the queue
    nobody's that is   what a node held that stays away becomes a record
    known

The first of the live nodes looks, now and then; each looks for its own marks once. Deletes are conditional on what was
read before the queue was found to be delisted, so a queue that is registered again meanwhile keeps its marks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

import structlog

from queues.held import of_node
from queues.steering import Steering
from repl.model.errors import CodecError
from repl.model.ports import TimeSource

log = structlog.get_logger(__name__)

SWEEP_MS: Final = 60_000
"""Pause between two looks, each a read or two a name that there ever was: a matter of a thousand reads at most. A node
that is missed at two of them is taken for dead, as in `queues.holding`."""

FIRST_AGAIN_MS: Final = 5_000
"""Pause before the first look of a life is tried again: the metastore was away."""


class Leftovers:
    """Of one node."""

    def __init__(self, steering: Steering, node: str, time: TimeSource) -> None:
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

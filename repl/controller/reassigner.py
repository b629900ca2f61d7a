"""The reassigner: the controller's routine that carries out the orders that change placements.

Each call returns the records to write: moves begun, turned back, or redirected. The leaders do the rest
(docs/protocol.md R-RF). Only the orders are durable (`repl.controller.reassignment_orders`), so the next controller
continues them. A finished order goes into the history; if a node that is to get replicas stays away, another one gets
them. The rules are in `repl.controller.reassignment_progress`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Final

import structlog

from isthmus.repl.controller.reassignment_orders import FinishedOrder, Placement, change_placement, encode_placement
from isthmus.repl.controller.reassignment_progress import (
    ReassignmentOrder,
    ReassignmentStage,
    Records,
    Registrations,
    due,
    elected,
    outcome,
    progress,
    replanned,
)
from isthmus.repl.controller.reassignments import sites_of
from isthmus.repl.controller.unreadable_documents import UnreadableDocuments
from isthmus.repl.metastore.port import Metastore
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.telemetry import Sample

log = structlog.get_logger(__name__)

REPLAN_MS: Final = 60_000
"""How long a node that is to get replicas must be gone before others are chosen: a restart takes less. A guess."""

ELECTION_MS: Final = 30_000
"""How long an election of one partition may hold up the moves of others; it takes a second or two. One that does not
end (its candidate cannot promote itself) must not stop the drain of the failing node. A guess."""

RETRY_MS: Final = 200
"""Pause after a change of orders could not be written; a watch event of a newer document comes sooner."""

IDLE_MS: Final = 60_000
"""Returned if nothing is timed; the controller reads far more often by itself."""


class Reassigner:
    """State of the deciding controller: since when nodes are gone, and counts for the metrics."""

    def __init__(self, metastore: Metastore, unread: UnreadableDocuments | None = None) -> None:
        """`unread`: the unreadable records. An order with such a partition is not finished, and its record is not
        written."""
        self._metastore = metastore
        self._unread = unread or UnreadableDocuments()
        self._electing: dict[int, int] = {}
        """Partition -> since when its election goes on."""
        self.overdue: frozenset[int] = frozenset()
        """Partitions whose election has gone on for so long that moves no longer wait for it."""
        self._gone: dict[str, int] = {}
        self._sought: tuple[object, int] | None = None
        """The inputs of the last futile search for other nodes, and when it was made."""
        self._orders: int | None = None
        self._stages: Counter[ReassignmentStage] = Counter()
        self._ended: Counter[str] = Counter()

    def see(self, records: Records, now_ms: int) -> int:
        """Note the elections under way, on every node; returns the milliseconds until one of them is overdue."""
        self._electing = {p: self._electing.get(p, now_ms) for p, record in records.items() if elected(record)}
        left = {p: since_ms + ELECTION_MS - now_ms for p, since_ms in self._electing.items()}
        self.overdue = frozenset(p for p, left_ms in left.items() if left_ms <= 0)
        return min((left_ms for left_ms in left.values() if left_ms > 0), default=IDLE_MS)

    def rest(self) -> None:
        """Drop the state: this node is not the controller any more."""
        self._gone.clear()
        self._orders = self._sought = None

    def samples(self) -> Iterator[Sample]:
        """Orders finished since start, and, on the controller, the open ones as of the last call."""
        for how, count in self._ended.items():
            yield "isthmus_move_orders_ended_total", {"outcome": how}, count
        if self._orders is not None:
            yield "isthmus_move_orders", {}, self._orders
            for stage in ReassignmentStage:
                yield "isthmus_moves", {"stage": stage.value}, self._stages[stage]

    async def look(
        self, placement: Placement, records: Records, registrations: Registrations, now_ms: int, wall_ms: int
    ) -> int:
        """Finish orders, and choose other nodes for those that stay away; returns the milliseconds until that may be
        due again. Raises what the metastore raises."""
        self._orders = len(placement.orders)
        self._stages = Counter(
            progress(order, move, records, registrations).stage for order in placement.orders for move in order.moves
        )
        if not placement.orders:
            self._gone.clear()
            return IDLE_MS
        for order in placement.orders:
            if any(move.partition in self._unread.partitions for move in order.moves):
                continue
            ended = _ended(order, records, registrations, wall_ms)
            if ended is not None:
                if not await self._change(placement, placement.with_ended(ended)):
                    return RETRY_MS
                self._ended[ended.outcome] += 1
                log.info("placement.ended", order=order.number, title=order.title, outcome=ended.outcome)
                return 0
        away_ms = self._note_gone(placement, registrations, now_ms)
        lost = {node for node, since_ms in self._gone.items() if now_ms >= since_ms + REPLAN_MS}
        if not lost:
            return away_ms
        sites = sites_of(placement, records, registrations)
        seeking = (placement.version, lost, {node: site for node, site in sites.items() if site.open})
        if self._sought is not None and self._sought[0] == seeking and now_ms < self._sought[1] + REPLAN_MS:
            return away_ms  # many partitions take a second of work, during which no election runs
        for order in placement.orders:
            changed = await asyncio.to_thread(replanned, order, records, registrations, sites, lost)
            if changed != order:
                if not await self._change(placement, placement.with_changed(changed)):
                    return RETRY_MS
                log.info("placement.replanned", order=order.number, title=order.title, gone=sorted(lost))
                return 0
        self._sought = seeking, now_ms
        return away_ms

    async def _change(self, read: Placement, wanted: Placement) -> bool:
        """Write `wanted` if nothing has changed since `read`; False: the next call decides again."""
        written = False

        def choose(newest: Placement) -> Placement:
            nonlocal written
            written = newest.version == read.version or encode_placement(newest) == encode_placement(wanted)
            return wanted if written else newest

        try:
            await change_placement(self._metastore, choose)
        except IsthmusError as error:
            log.warning("placement.not_noted", reason=error.reason, error=str(error))
            return False
        return written

    def _note_gone(self, placement: Placement, registrations: Registrations, now_ms: int) -> int:
        wanted = {node for order in placement.orders for move in order.moves for node in move.adds}
        self._gone = {node: self._gone.get(node, now_ms) for node in wanted if node not in registrations}
        return min((s + REPLAN_MS - now_ms for s in self._gone.values() if now_ms < s + REPLAN_MS), default=IDLE_MS)

    def writes(
        self, placement: Placement, records: Records, registrations: Registrations, at_once: int
    ) -> list[PartitionRecord]:
        """The records to write now."""
        return list(due(placement.orders, self._unread.without(records), registrations, at_once, self.overdue))


def _ended(
    order: ReassignmentOrder, records: Records, registrations: Registrations, wall_ms: int
) -> FinishedOrder | None:
    how = outcome(order, records, registrations)
    if not how:
        return None
    stages = [progress(order, move, records, registrations).stage for move in order.moves]
    return FinishedOrder(
        order.number,
        order.kind,
        order.title,
        order.by,
        order.at_ms,
        wall_ms,
        how,
        stages.count(ReassignmentStage.DONE),
        len(stages),
    )

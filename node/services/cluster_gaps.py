"""The gaps of queues on all nodes, as full-sync needs them (`aae.scheduling.gap_healing.Gaps`).

A node that does not answer has its gaps listed and closed by a later check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from isthmus.aae.exchange.wire import PartitionHistory
from isthmus.aae.scheduling.gap_healing import GapToHeal
from isthmus.aae.scheduling.proofs import Proof, QueueMarks
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.membership import ClusterMembership
from isthmus.node.services.queue_coverage import QueueCoverage
from isthmus.node.services.queue_query import CLOSE_GAPS, OPEN_GAPS, CloseGaps, ListGaps
from isthmus.node.services.repairs import RepairQueue
from isthmus.queues.admin import loss_mark
from isthmus.queues.service import QueueService
from isthmus.repl.controller.controller import Controller
from isthmus.repl.model.ports import TimeSource


class ClusterGaps:
    """Lists and closes gaps by `query` on all live nodes."""

    def __init__(
        self,
        query: ClusterQuery,
        coverage: QueueCoverage,
        membership: ClusterMembership,
        controller: Controller,
        queues: QueueService,
        repairs: RepairQueue,
        time: TimeSource,
    ) -> None:
        self._query = query
        self._coverage = coverage
        self._membership = membership
        self._controller = controller
        self._queues = queues
        self._repairs = repairs
        self._time = time

    def waiting(self, queue: str) -> int:
        """See Gaps."""
        return self._repairs.waiting(queue)

    async def open_gaps(self, queue: str, cluster: bytes | None) -> Sequence[GapToHeal]:
        """See Gaps. Raises UnknownQueue."""
        self._queues.named(queue)
        compared = self._coverage.compared_types(queue, cluster)
        found = (await self._query.ask(OPEN_GAPS, ListGaps(), self._membership.live_nodes())).by_node
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for row in (row for one in found.values() for row in one or ()):
            # Every node lists all recorded losses; one of an earlier version without their marks.
            rows[row["queue"], row["id"]] = {**rows.get((row["queue"], row["id"]), {}), **row}
        gaps = [
            self._gap(row)
            for row in rows.values()
            if row["queue"] in compared and (row["partition"] is None or row["partition"] in self._controller.records)
        ]
        return [gap for gap in gaps if gap.bucket_types <= set(compared[gap.queue])]

    def _gap(self, row: dict[str, Any]) -> GapToHeal:
        history = row.get("history")
        return GapToHeal(
            row["id"],
            row["queue"],
            self._types_of(row),
            row["from_ms"],
            row["upto_ms"],
            row["partition"],
            None if history is None else PartitionHistory(*history),
            row["upto_offset"] or 0,
            row.get("mark", ""),
        )

    async def close(self, gaps: Sequence[GapToHeal], proofs: Mapping[str, Proof], by: str, reason: str) -> int:
        """See Gaps. Raises UnknownQueue, Retryable, OutcomeUnknown."""
        queue = gaps[0].queue
        offsets = [
            (gap.partition, *found.history, found.offset)
            for gap in gaps
            for name in gap.bucket_types
            if gap.partition is not None and (found := proofs[name].offsets.get(gap.partition)) is not None
        ]
        request = CloseGaps(
            queue,
            by,
            self._time.wall_ms(),
            reason,
            ids=[gap.id for gap in gaps],
            upto_ms=max(gap.upto_ms or 0 for gap in gaps),  # for leaders of an earlier version, by their own clock
            offsets=sorted(set(offsets)),
            losses=[gap.mark for gap in gaps if gap.partition is None],
        )
        answers = (await self._query.ask(CLOSE_GAPS, request, self._membership.live_nodes())).by_node
        return sum(one or 0 for one in answers.values())

    def marks(self, queue: str) -> QueueMarks:
        """See Gaps. Raises UnknownQueue."""
        machines = {name: self._queues.named(name) for name in self._queues.machines()}
        losses = {(name, loss_mark(lost)) for name, each in machines.items() for lost in each.stored.lost}
        return QueueMarks(queue, self._queues.named(queue).settings.filter, frozenset(losses))

    def _types_of(self, row: dict[str, Any]) -> frozenset[str]:
        """The bucket types in which changes may be missing. A loss of bulk references names no partition; if it does
        not name bucket types either, they may be of any type that the queue carries."""
        partition = row["partition"]
        if partition is not None:
            return frozenset({self._controller.records[partition].bucket_type})
        if row.get("bucket_types"):
            return frozenset(row["bucket_types"])
        return frozenset(self._coverage.bucket_types(row["queue"]))

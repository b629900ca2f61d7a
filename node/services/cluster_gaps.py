"""The gaps of queues on all nodes, as full-sync needs them (`aae.scheduling.gap_healing.Gaps`).

A node that does not answer has its gaps listed and closed by a later check.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isthmus.aae.scheduling.gap_healing import GapToHeal
from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.membership import ClusterMembership
from isthmus.node.services.queue_coverage import QueueCoverage
from isthmus.node.services.queue_query import CLOSE_GAPS, OPEN_GAPS, CloseGaps, ListGaps
from isthmus.node.services.repairs import RepairQueue
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
        rows = {(row["queue"], row["id"]): row for one in found.values() for row in one or ()}
        gaps = [
            GapToHeal(row["id"], row["queue"], self._types_of(row), row["from_ms"], row["upto_ms"])
            for row in rows.values()
            if row["queue"] in compared and (row["partition"] is None or row["partition"] in self._controller.records)
        ]
        return [gap for gap in gaps if gap.bucket_types <= set(compared[gap.queue])]

    async def close(self, queue: str, ids: Sequence[str], upto_ms: int, by: str, reason: str) -> int:
        """See Gaps. Raises UnknownQueue, Retryable, OutcomeUnknown."""
        request = CloseGaps(queue, by, self._time.wall_ms(), reason, ids=list(ids), upto_ms=upto_ms)
        found = (await self._query.ask(CLOSE_GAPS, request, self._membership.live_nodes())).by_node
        return sum(one or 0 for one in found.values())

    def _types_of(self, row: dict[str, Any]) -> frozenset[str]:
        """The bucket types in which changes may be missing. Bulk references name no partition: they
        may be of any type that the queue carries."""
        partition = row["partition"]
        if partition is not None:
            return frozenset({self._controller.records[partition].bucket_type})
        return frozenset(self._coverage.bucket_types(row["queue"]))

"""How far each other cluster has acknowledged this one's changes, by queue and partition, for those that compare both.

A key that changed here at an offset below the position has arrived there, as far as the queue offers it; one at or
above it may still wait.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isthmus.node.services.cluster_query import ClusterQuery
from isthmus.node.services.membership import ClusterMembership
from isthmus.node.services.queue_query import LAGS, ReadLags
from isthmus.node.services.replication_lag import NodeLags, joined_reasons
from isthmus.queues.service import QueueService
from isthmus.repl.controller.controller import Controller
from isthmus.repl.model.record import PartitionRecord


class ClusterQueuePositions:
    """Asks all nodes."""

    def __init__(
        self,
        query: ClusterQuery,
        membership: ClusterMembership,
        controller: Controller,
        queues: QueueService,
        cluster_uuid: bytes,
    ) -> None:
        self._query = query
        self._membership = membership
        self._controller = controller
        self._queues = queues
        self._cluster_uuid = cluster_uuid

    async def document(self) -> dict[str, Any]:
        """{"cluster_uuid", "queues": rows of `positions_of`, each with its "filter"}."""
        lags = await self._query.ask(LAGS, ReadLags(), self._membership.live_nodes())
        rows = positions_of(lags.by_node, self._controller.records)
        machines = self._queues.machines()
        known = [row for row in rows if row["queue"] in machines]
        shown = [{**row, "filter": str(self._queues.named(row["queue"]).filter)} for row in known]
        return {"cluster_uuid": self._cluster_uuid.hex(), "queues": shown}


def positions_of(
    answers: Mapping[str, NodeLags | None], records: Mapping[int, PartitionRecord]
) -> list[dict[str, Any]]:
    """A row for each queue that a cluster owns: {"queue", "uuid", "cluster", "reason", "partitions": {partition: offset
    below which all is acknowledged, None: not known}}. `answers`: of LAGS, by node. Only the leader of a partition
    knows its position. `reason`: why the queue does not serve all, "" for none. Pure."""
    found: dict[str, dict[str, Any]] = {}
    reasons: dict[str, dict[str, list[str]]] = {}
    for node, answer in answers.items():
        for queue in () if answer is None else answer.queues:
            name = queue.queue
            row = found.setdefault(name, {"queue": name, "uuid": None, "cluster": None})
            row |= {"uuid": queue.uuid or row["uuid"], "cluster": queue.cluster or row["cluster"]}
            reasons.setdefault(name, {}).setdefault(queue.reason, []).append(node)
            positions = row.setdefault("partitions", {str(partition): None for partition in records})
            for part in queue.partitions:
                record = records.get(part.partition)
                if record is not None and record.leader is not None and record.leader.node == node:
                    positions[str(part.partition)] = part.cursor
    return [{**row, "reason": joined_reasons(reasons[name])} for name, row in sorted(found.items()) if row["uuid"]]

"""The queues whose gaps a comparison proves: those owned by the compared cluster, as far as its repairs reach."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.node.services.cluster_gaps import ClusterGaps
from isthmus.node.services.cluster_query import ClusterAnswers, Query
from isthmus.node.services.queue_coverage import QueueCoverage
from isthmus.node.services.queue_query import CloseGaps, ListGaps
from isthmus.queues.queue_documents import AuditInfo
from tests.support.queue_node import PARTITIONS, QueueNode, audited_node
from tests.support.queue_source import SINK, THIRD
from tests.unit.queues.admin.test_acts import settled

pytestmark = pytest.mark.virtual_time


class OneNodeQuery:
    """A ClusterQuery of one node that answers with its gaps."""

    def __init__(self, queue_node: QueueNode) -> None:
        self.queue_node = queue_node

    async def ask(self, query: Query[Any, Any], request: CloseGaps | ListGaps, nodes: set[str]) -> ClusterAnswers[Any]:
        """See ClusterQuery."""
        assert isinstance(request, ListGaps)
        return ClusterAnswers({"e1": self.queue_node.acts.gaps()}, {})


async def test_gaps_belong_to_the_queues_owner_types_and_keys() -> None:
    """A real-time queue is beside a queue for repairs: a comparison with the cluster that owns both proves the gaps of
    both, but none of another cluster's queue. A comparison through a queue with a narrower filter proves nothing of the
    wider one. Bulk references may be of each type that their queue accepts."""

    async with audited_node(
        QueueSettings("rt"),
        QueueSettings("fs", filter="block_rtq"),
        QueueSettings("part", filter="bucketname:part"),
        QueueSettings("north"),
        QueueSettings("typed", filter="buckettype:other"),
    ) as queue_node:
        queue_node.types[PARTITIONS[1]] = b"other"
        for name, owner in (("rt", SINK), ("fs", SINK), ("part", SINK), ("north", THIRD)):
            await queue_node.fetch(queue=name, cluster=owner, wait_ms=0)
            await settled(queue_node, name)
        queue_node.put(b"a")
        queue_node.put(b"b", partition=PARTITIONS[1])
        for name in ("rt", "north"):
            await queue_node.acts.clear(name, AuditInfo("ann", queue_node.clock.wall_ms(), ""))
            await settled(queue_node, name)
        records = {p: SimpleNamespace(bucket_type=queue_node.types[p].decode()) for p in PARTITIONS}
        controller: Any = SimpleNamespace(records=records, registrations={})
        query: Any = OneNodeQuery(queue_node)
        membership: Any = SimpleNamespace(live_nodes=lambda: {"e1"})
        repairs: Any = SimpleNamespace(waiting=lambda _: 0)
        coverage = QueueCoverage(queue_node.queues, controller)
        gaps = ClusterGaps(query, coverage, membership, controller, queue_node.queues, repairs, queue_node.clock)
        for cluster in (SINK, None):
            seen = await gaps.open_gaps("fs", cluster)
            assert {(gap.queue, *gap.bucket_types) for gap in seen} == {("rt", "default"), ("rt", "other")}
        assert {gap.queue for gap in await gaps.open_gaps("fs", THIRD)} == {"north"}, "whoever was compared with counts"
        assert await gaps.open_gaps("part", SINK) == [], "it compares some buckets alone"
        assert coverage.compared("fs", SINK, ["default"]) == {name: ["default"] for name in ("rt", "fs", "part")}
        assert coverage.compared("part", SINK, ["default"]) == {"part": ["default"]}
        assert coverage.compared("none", SINK, ["default"]) == {}
        assert coverage.bucket_types("typed") == ["other"]
        assert coverage.bucket_types("fs") == ["default", "other"]
        assert gaps._types_of({"partition": None, "queue": "fs"}) == {"default", "other"}
        assert {row["queue"]: row["bucket_types"] for row in coverage.sent()} == {
            "rt": ["default", "other"], "fs": [], "part": ["default", "other"], "north": ["default", "other"],
        }  # fmt: skip

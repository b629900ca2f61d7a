"""The queues whose gaps a comparison proves: those owned by the compared cluster, as far as its repairs reach."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.aae.exchange.wire import PartitionHistory
from isthmus.aae.scheduling.gap_healing import HealStatus, is_proven
from isthmus.aae.scheduling.proofs import Proof, ProvenOffset
from isthmus.config.settings import QueueSettings
from isthmus.node.services.cluster_gaps import ClusterGaps
from isthmus.node.services.cluster_query import ClusterAnswers, Query
from isthmus.node.services.queue_coverage import QueueCoverage
from isthmus.node.services.queue_query import CLOSE_GAPS, QUEUES, CloseGaps, ListGaps, QueueResponder
from isthmus.queues.admin import GapChoice
from isthmus.queues.queue_documents import AuditInfo, LostReferences
from tests.support.queue_node import PARTITIONS, QueueNode, audited_node
from tests.support.queue_source import SINK, THIRD
from tests.unit.queues.admin.test_acts import settled

pytestmark = pytest.mark.virtual_time


NOW = PartitionHistory(0, 0)


class OneNodeQuery:
    """A ClusterQuery of one node that answers with its gaps."""

    def __init__(self, queue_node: QueueNode) -> None:
        self.queue_node = queue_node
        self.histories: dict[int, tuple[int, int]] = {}

    def history_of(self, partition: int) -> tuple[int, int] | None:
        """The (lineage, incarnation) of a partition, as its replica has it."""
        return self.histories.get(partition, (0, 0))

    async def ask(self, query: Query[Any, Any], request: CloseGaps | ListGaps, nodes: set[str]) -> ClusterAnswers[Any]:
        """See ClusterQuery. Requests and answers go over the wire."""
        responder = QueueResponder(self.queue_node.queues, self.queue_node.acts, None, None, self.history_of)  # type: ignore[arg-type]
        answer = await responder.respond(QUEUES.requests.decode(query.requests.encode(request)))
        return ClusterAnswers({"e1": query.answers.decode(QUEUES.answers.encode(answer))}, {})


def cluster_gaps(queue_node: QueueNode, query: Any) -> tuple[ClusterGaps, QueueCoverage]:
    """The gaps of a cluster of this node, and what its queues cover."""
    records = {p: SimpleNamespace(bucket_type=queue_node.types[p].decode()) for p in PARTITIONS}
    controller: Any = SimpleNamespace(records=records, registrations={})
    membership: Any = SimpleNamespace(live_nodes=lambda: {"e1"})
    repairs: Any = SimpleNamespace(waiting=lambda _: 0)
    coverage = QueueCoverage(queue_node.queues, controller)
    gaps = ClusterGaps(query, coverage, membership, controller, queue_node.queues, repairs, queue_node.clock)
    return gaps, coverage


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
        gaps, coverage = cluster_gaps(queue_node, OneNodeQuery(queue_node))
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
        assert {row.queue: row.bucket_types for row in coverage.sent()} == {
            "rt": ["default", "other"], "fs": [], "part": ["default", "other"], "north": ["default", "other"],
        }  # fmt: skip


async def test_a_gap_is_closed_by_a_proof_of_its_offsets_alone() -> None:
    """The leader closes a gap if the proof covers its end, as it is now, in the partition's present history. A proof
    below the end, of another history, or of no offsets, as an earlier version's full-sync sends it with times alone,
    closes nothing (R-PROOF)."""

    async with audited_node(QueueSettings("rt")) as queue_node:
        await queue_node.fetch(queue="rt", cluster=SINK, wait_ms=0)
        await settled(queue_node, "rt")
        queue_node.put(b"a", b"b")
        await queue_node.acts.clear("rt", AuditInfo("ann", queue_node.clock.wall_ms(), ""))
        await settled(queue_node, "rt")
        query = OneNodeQuery(queue_node)
        gaps, _ = cluster_gaps(queue_node, query)

        async def closed(offset: int, history: PartitionHistory = NOW) -> int:
            proof = Proof(gaps.marks("rt"), {PARTITIONS[0]: ProvenOffset(history, offset)})
            return await gaps.close([gap], {"default": proof}, "full-sync", "west is up to date")

        (gap,) = [gap for gap in await gaps.open_gaps("rt", SINK) if gap.partition == PARTITIONS[0]]
        assert (gap.history, gap.mark, gap.end > 0) == ((0, 0), "", True)
        assert await closed(gap.end - 1) == 0
        assert await closed(gap.end, PartitionHistory(1, 0)) == await closed(gap.end, PartitionHistory(0, 5)) == 0
        query.histories[PARTITIONS[0]] = (1, 0)
        assert await closed(gap.end) == 0, "its leader was forced since"
        query.histories.clear()
        timed = CloseGaps("rt", "full-sync", 0, "west is in sync", ids=[gap.id], upto_ms=1 << 61)
        assert (await query.ask(CLOSE_GAPS, timed, set())).by_node == {"e1": 0}, "a proof that rests on clocks"
        assert gap in await gaps.open_gaps("rt", SINK)
        assert await closed(gap.end) == 1
        assert gap not in await gaps.open_gaps("rt", SINK)


async def test_a_loss_of_references_is_closed_as_it_was_recorded() -> None:
    """The marks that a check takes along name each recorded loss as it is; one into which another loss was merged
    since, and one that the check did not know, stay."""

    async with audited_node(QueueSettings("rt")) as queue_node:
        await queue_node.fetch(queue="rt", cluster=SINK, wait_ms=0)
        gaps, _ = cluster_gaps(queue_node, OneNodeQuery(queue_node))

        async def lose(at_ms: int, count: int = 1) -> None:
            lost = LostReferences("e2", 2, count, 5, at_ms, "stopped", "", at_ms)
            await queue_node.queues.queue_store.record_lost("rt", [lost])
            await queue_node.queues.refresh("rt")

        await lose(7)
        before = Proof(gaps.marks("rt"))
        await lose(8)
        first, second = await gaps.open_gaps("rt", SINK)
        proofs = {"default": before}
        assert [is_proven(gap, proofs) for gap in (first, second)] == [True, False]
        assert await gaps.close([second], proofs, "full-sync", "") == 1, "the caller vouches for the marks"
        await queue_node.queues.queue_store.forget_lost("rt", queue_node.queues.named("rt").stored.lost)
        await lose(7, count=2)
        assert await gaps.close([first], proofs, "full-sync", "") == 0, "another loss was merged into it"
        assert len(await gaps.open_gaps("rt", SINK)) == 1


async def test_a_loss_of_known_types_is_proven_by_checks_of_these_types() -> None:
    """A full-sync that compares one bucket type of a queue closes the losses of its references. One that names no
    types may be of each type that the queue accepts."""

    async with audited_node(QueueSettings("rt")) as queue_node:
        queue_node.types[PARTITIONS[1]] = b"other"
        await queue_node.fetch(queue="rt", cluster=SINK, wait_ms=0)
        gaps, _ = cluster_gaps(queue_node, OneNodeQuery(queue_node))
        for at_ms, types in ((7, ("default",)), (8, ("default", "other")), (9, ())):
            lost = LostReferences("e2", 2, 0, 5, at_ms, "crashed", "", at_ms, 256, types)
            await queue_node.queues.queue_store.record_lost("rt", [lost])
        await queue_node.queues.refresh("rt")
        found = await gaps.open_gaps("rt", SINK)
        assert [sorted(gap.bucket_types) for gap in found] == [["default"], ["default", "other"], ["default", "other"]]
        proofs = {"default": Proof(gaps.marks("rt"))}
        assert [is_proven(gap, proofs) for gap in found] == [True, False, False]
        status = HealStatus()
        status.set_open(found, ["default"])
        assert (status.open_count, status.uncompared_count, status.uncompared_types) == (3, 2, ("other",))
        assert await gaps.close(found[:1], proofs, "full-sync", "") == 1
        named = [lost.bucket_types for lost in queue_node.queues.named("rt").stored.lost]
        assert named == [("default", "other"), ()]
        by_type = GapChoice(bucket_type=b"default")
        assert await queue_node.acts.close_gaps("rt", by_type, AuditInfo("ann", 1, "")) == 1
        assert [lost.bucket_types for lost in queue_node.queues.named("rt").stored.lost] == [("default", "other")]

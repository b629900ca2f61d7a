"""Which queues' gaps a comparison proves: those of the cluster that was compared with, as far as its repairs reach."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from isthmus.config.settings import QueueSettings
from isthmus.node.services.queue_rpc import ClusterGaps
from isthmus.queues.queue_documents import AuditInfo
from tests.support.queue_node import PARTITIONS, Home
from tests.support.queue_source import SINK, THIRD
from tests.unit.queues.admin.test_acts import alive, settled


class Asked:
    """Asks one node alone, and remembers what was closed."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.closed: list[dict[str, Any]] = []

    async def gather(self, nodes: set[str], what: str, **wish: Any) -> dict[str, Any]:
        """See QueueGathering."""
        if what == "close":
            self.closed.append(wish)
            return {"e1": 1}
        return {"e1": self.home.acts.gaps()}


def test_gaps_belong_to_the_queues_owner_types_and_keys() -> None:
    """A real-time queue beside a queue for repairs: a comparison with the cluster that owns both proves the gaps of
    both, of another cluster's queue none; one by a queue whose filter lets out less proves nothing of the wider one.
    References of lower priorities may be of each type that their queue takes."""

    async def run(home: Home) -> None:
        home.types[PARTITIONS[1]] = b"other"
        for name, owner in (("rt", SINK), ("fs", SINK), ("part", SINK), ("north", THIRD)):
            await home.fetch(queue=name, cluster=owner, wait_ms=0)
            await settled(home, name)
        home.put(b"a")
        home.put(b"b", partition=PARTITIONS[1])
        for name in ("rt", "north"):
            await home.acts.clear(name, AuditInfo("ann", home.clock.wall_ms(), ""))
            await settled(home, name)
        records = {p: SimpleNamespace(bucket_type=home.types[p].decode()) for p in PARTITIONS}
        controller: Any = SimpleNamespace(records=records, registrations={})
        asked: Any = Asked(home)
        gaps = ClusterGaps(asked, controller, home.queues, "e1", home.clock, lambda _: 0)
        for cluster in (SINK, None):
            seen = await gaps.seen("fs", cluster)
            assert {(gap.queue, *gap.bucket_types) for gap in seen} == {("rt", "default"), ("rt", "other")}
        assert {gap.queue for gap in await gaps.seen("fs", THIRD)} == {"north"}, "whoever was compared with counts"
        assert await gaps.seen("part", SINK) == [], "it compares some buckets alone"
        assert gaps.compared("fs", SINK, ["default"]) == {name: ["default"] for name in ("rt", "fs", "part")}
        assert gaps.compared("part", SINK, ["default"]) == {"part": ["default"]}
        assert gaps.compared("none", SINK, ["default"]) == {}
        assert gaps.bucket_types("typed") == ["other"]
        assert gaps.bucket_types("fs") == ["default", "other"]
        assert gaps._types_of({"partition": None, "queue": "fs"}) == {"default", "other"}
        assert {row["queue"]: row["bucket_types"] for row in gaps.sent()} == {
            "rt": ["default", "other"], "fs": [], "part": ["default", "other"], "north": ["default", "other"],
        }  # fmt: skip

    alive(
        run,
        QueueSettings("rt"),
        QueueSettings("fs", filter="block_rtq"),
        QueueSettings("part", filter="bucketname:part"),
        QueueSettings("north"),
        QueueSettings("typed", filter="buckettype:other"),
    )

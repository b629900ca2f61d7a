"""A snapshot joins the answers of a cluster's nodes; numbers that they do not cover are unknown, not 0."""

from __future__ import annotations

from typing import Any

from isthmus.node.demo.watch import ClusterSnapshot, DemoSnapshot, cluster_snapshot

VIEW: dict[str, Any] = {
    "read_at_ms": 5,
    "partitions": {"total": 12, "online": 12, "offline": 0},
    "replicas": {"total": 36, "in_sync": 36},
    "nodes": [{"name": "b", "leaders": 12, "state": "live"}, {"name": "a", "leaders": 0, "state": "leaving"}],
}


def queue(partitions: int, waiting: int | None) -> dict[str, Any]:
    return {"name": "q", "partitions": partitions, "waiting": waiting, "in_flight": 1, "reason": ""}


def link(p50: float | None, p99: float | None, reason: str = "") -> dict[str, Any]:
    state = "failing" if reason else "running"
    return {
        "queue": "q", "state": state, "reason": reason, "lag_ms_p50": p50, "lag_ms_p99": p99,
        "recent_lag_ms_p50": p50, "recent_lag_ms_p99": p99,
    }  # fmt: skip


def seen(**changed: Any) -> ClusterSnapshot:
    return cluster_snapshot("east", [VIEW | changed], [], [])


def test_a_cluster_is_whole_only_with_all_online_in_sync_and_there() -> None:
    """With one partition without a leader, one replica out of sync, or one node away it is not whole, and the line
    shows it."""
    assert seen().missing == 0
    assert seen().text() == "east: leaders a 0, b 12; 36 of 36 replicas in sync"
    offline = seen(partitions={"total": 12, "online": 11})
    assert offline.missing
    assert offline.text().endswith("; 1 partition without a leader")
    assert seen(replicas={"total": 36, "in_sync": 35}).missing
    assert seen(nodes=[{"name": "b", "leaders": 12, "state": "gone"}]).missing
    assert seen(partitions={"total": 0, "online": 0}).missing is None
    assert cluster_snapshot("east", [], [], []).missing is None


def test_the_newest_view_counts() -> None:
    """The view of the node that read the metastore last is shown, never one of a node that has not read it."""
    views = [VIEW | {"read_at_ms": 7, "replicas": {"total": 36, "in_sync": 30}}, VIEW, VIEW | {"read_at_ms": None}]
    assert cluster_snapshot("east", views, [], []).in_sync == 30


def test_a_queue_is_known_only_when_its_nodes_cover_every_partition() -> None:
    """Counts of a cluster's nodes are added up; if a partition has no leader the sum is unknown, not 0."""
    whole = cluster_snapshot("east", [VIEW], [queue(4, 2), queue(5, 0), queue(3, 7)], [])
    assert (whole.waiting, whole.in_flight, whole.outstanding) == (9, 3, 12)
    partial = cluster_snapshot("east", [VIEW], [queue(4, 0), queue(5, 0)], [])
    assert (partial.outstanding, partial.queue_reason) == (None, "9 of 12 partitions seen")
    assert cluster_snapshot("east", [VIEW], [queue(4, 0), queue(8, None)], []).outstanding is None
    assert cluster_snapshot("east", [], [queue(0, 0)], []).outstanding is None
    silent = cluster_snapshot("east", [VIEW], [], [])
    assert silent.outstanding is None, "no node lists a queue"
    assert DemoSnapshot(1.0, clusters=(whole, silent)).outstanding is None


def test_links_of_one_queue_have_the_worst_lag() -> None:
    """It has the p50 of the middle link, the p99 of the worst, and the first problem."""
    links = [link(1.0, 9.0), link(None, None, "refused"), link(2.0, 4.0), link(7.0, 5.0)]
    found = cluster_snapshot("west", [VIEW], [], links)
    assert found.lag_ms == found.recent_lag_ms == (2.0, 9.0)
    assert found.sink_reason == "of q is failing: refused"
    assert cluster_snapshot("west", [VIEW], [], [link(None, None)]).lag_ms is None


def test_nothing_is_outstanding_only_when_every_queue_is_known_to_be_empty() -> None:
    """An unknown count, or no answer at all, is not nothing; the sentence names queues, counts and reasons."""
    empty = ClusterSnapshot("east", queue="to-west", waiting=0, in_flight=0)
    assert DemoSnapshot(0, clusters=(empty,)).outstanding == 0
    assert DemoSnapshot(0, clusters=(empty, ClusterSnapshot("west", waiting=2, in_flight=3))).outstanding == 5
    assert DemoSnapshot(0, clusters=(empty, ClusterSnapshot("west", waiting=None, in_flight=0))).outstanding is None
    assert DemoSnapshot(0).outstanding is None
    late = empty._replace(waiting=7, sink_reason="of to-west is failing: connection refused")
    why = DemoSnapshot(0, clusters=(late,)).why_outstanding()
    assert "east's queue to-west has 7 changes outstanding" in why
    assert "connection refused" in why

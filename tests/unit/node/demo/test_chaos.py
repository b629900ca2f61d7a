"""What the demo kills and when, decided from snapshots, which are made up here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.node.demo.chaos import AWAY_MOST_S, AWAY_S, FailureInjector, ProcessControl
from isthmus.node.demo.watch import (
    ClusterSnapshot,
    DemoSnapshot,
    ProcessSnapshot,
    cluster_snapshot,
    queue_snapshot,
    sink_snapshot,
)

LEADERS = {"east-1": 4, "east-2": 5, "east-3": 3}


class Fixture(ProcessControl):
    """An injector whose process control records actions, with a clock that tests set."""

    def __init__(self) -> None:
        super().__init__(Path())
        self.done: list[str] = []
        self.notes: list[str] = []
        self.now_s = 100.0
        self.injector = FailureInjector("east", self, self.notes.append, lambda: self.now_s)

    def kill_node(self, name: str) -> None:
        self.done.append(f"kill {name}")

    def start_node(self, name: str) -> None:
        self.done.append(f"start {name}")

    def kill(self, name: str) -> None:
        self.done.append(f"kill {name}")

    def observe(
        self, share: float, leaders: dict[str, int], in_sync: int = 36, online: int = 12, absent: tuple[str, ...] = ()
    ) -> None:
        processes = (
            ProcessSnapshot("east-2", "running", 22, 0, ""),
            ProcessSnapshot("zookeeper-east", "running", 77, 0, ""),
        )
        east = ClusterSnapshot("east", 12, online, 36, in_sync, leaders, absent)
        self.snapshot = DemoSnapshot(self.now_s, processes, (east,))
        self.injector.step(share, self.snapshot)


def test_the_greatest_leader_dies_and_returns_and_then_the_zookeeper() -> None:
    """Each action waits for its share of the replay and for the effect of the action before; both are recorded as
    sentences."""
    fixture = Fixture()
    fixture.observe(0.1, LEADERS)
    fixture.observe(0.3, LEADERS, in_sync=35)
    fixture.observe(0.3, LEADERS, absent=("east-3",))
    assert fixture.done == [], "nothing is broken early, nor when something is broken already"
    fixture.observe(0.3, LEADERS)
    assert fixture.done == ["kill east-2"]
    moved = {"east-1": 7, "east-2": 0, "east-3": 5}
    fixture.now_s += AWAY_S + 1
    fixture.observe(0.5, LEADERS, in_sync=24, online=7)
    assert fixture.done == ["kill east-2"], "its partitions have not moved yet"
    fixture.observe(0.5, moved, in_sync=24)
    assert fixture.done[1:] == ["start east-2"]
    fixture.observe(0.9, moved, in_sync=30)
    assert fixture.done[2:] == [], "one thing at a time"
    fixture.now_s += 3
    fixture.observe(0.9, moved)
    fixture.observe(0.9, moved)
    fixture.observe(0.9, moved)
    assert fixture.done[2:] == ["kill zookeeper-east"]
    assert fixture.injector.done
    assert "killed east-2 (kill -9 22), the leader of 5 partitions" in fixture.injector.sentences
    assert "started east-2 again after 11 s; the others lead its partitions" in fixture.injector.sentences
    assert "east-2: every replica in sync again, 3 s after its start" in fixture.injector.sentences
    assert fixture.notes[0] == "east: leaders east-1 4, east-2 5, east-3 3; 36 of 36 replicas in sync"


def test_partitions_that_do_not_move_are_reported_and_the_node_is_started_all_the_same() -> None:
    """The demo does not hang on a cluster that fails; it says what it sees."""
    fixture = Fixture()
    fixture.observe(0.3, LEADERS)
    fixture.now_s += AWAY_MOST_S
    fixture.observe(0.5, LEADERS, in_sync=24)
    assert fixture.done == ["kill east-2", "start east-2"]
    assert "still is named leader of 5 partitions" in fixture.injector.sentences[-1]


@pytest.mark.parametrize("looks", range(5))
def test_at_the_end_what_is_down_is_started_and_nothing_more_is_killed(looks: int) -> None:
    """Wherever the breaking is when the replay is over: a node that is down is started, and that was all."""
    fixture = Fixture()
    moved = {"east-1": 7, "east-2": 0, "east-3": 5}
    snapshots: list[dict[str, Any]] = [
        {"leaders": LEADERS},
        {"leaders": moved, "in_sync": 24},
        {"leaders": moved, "in_sync": 24},
        {"leaders": moved},
    ]
    for snapshot in snapshots[:looks]:
        fixture.observe(0.3, **snapshot)
        fixture.now_s += 6
    if looks == 0:
        fixture.observe(0.1, LEADERS)
    killed = fixture.done.count("kill east-2")
    fixture.injector.finish()
    for _ in range(3):
        fixture.now_s += 1
        fixture.observe(1.0, moved)
    assert fixture.done.count("start east-2") == fixture.done.count("kill east-2") == killed
    assert "kill zookeeper-east" not in fixture.done
    assert fixture.injector.done


def test_a_cluster_is_whole_only_with_all_online_in_sync_and_there() -> None:
    """One partition without a leader, one replica out of sync, one node away: not whole; and the line shows it."""
    raw: dict[str, Any] = {
        "partitions": {"total": 12, "online": 12, "offline": 0},
        "replicas": {"total": 36, "in_sync": 36},
        "nodes": [{"name": "b", "leaders": 12, "state": "live"}, {"name": "a", "leaders": 0, "state": "leaving"}],
    }
    assert not cluster_snapshot("east", raw).missing
    assert cluster_snapshot("east", raw).text() == "east: leaders a 0, b 12; 36 of 36 replicas in sync"
    offline = cluster_snapshot("east", raw | {"partitions": {"total": 12, "online": 11}})
    assert offline.missing
    assert offline.text().endswith("; 1 partition without a leader")
    assert cluster_snapshot("east", raw | {"replicas": {"total": 36, "in_sync": 35}}).missing
    assert cluster_snapshot("east", raw | {"nodes": [{"name": "b", "leaders": 12, "state": "gone"}]}).missing
    assert cluster_snapshot("east", raw | {"partitions": {"total": 0, "online": 0}}).missing


def test_a_queue_is_known_only_when_its_nodes_cover_every_partition() -> None:
    """What the nodes of a cluster count is summed; with a partition that nobody led it is unknown, not nothing."""

    def row(partitions: int, waiting: int | None) -> dict[str, Any]:
        return {"name": "q", "partitions": partitions, "waiting": waiting, "in_flight": 1, "reason": ""}

    whole = queue_snapshot("east", [row(4, 2), row(5, 0), row(3, 7)], 12)
    assert (whole.waiting, whole.in_flight, whole.outstanding) == (9, 3, 12)
    partial = queue_snapshot("east", [row(4, 0), row(5, 0)], 12)
    assert (partial.outstanding, partial.reason) == (None, "9 of 12 partitions seen")
    unknown = queue_snapshot("east", [row(4, 0), row(8, None)], 12)
    assert unknown.outstanding is None
    assert queue_snapshot("east", [row(0, 0)], None).outstanding is None
    silent = queue_snapshot("east", [], 12)
    assert silent.outstanding is None, "no node lists a queue"
    assert DemoSnapshot(1.0, queues=(whole, silent)).outstanding is None


def test_links_of_one_queue_make_one_line_with_the_worst_lag() -> None:
    """p50 of the middle link, p99 of the worst, and the first trouble."""

    def link(p50: float | None, p99: float | None, reason: str = "") -> dict[str, Any]:
        state = "failing" if reason else "running"
        return {
            "queue": "q", "state": state, "reason": reason, "lag_ms_p50": p50, "lag_ms_p99": p99,
            "recent_lag_ms_p50": p50, "recent_lag_ms_p99": p99,
        }  # fmt: skip

    sink = sink_snapshot("west", [link(1.0, 9.0), link(None, None, "refused"), link(2.0, 4.0), link(7.0, 5.0)])
    assert (sink.lag_p50_ms, sink.lag_p99_ms) == (2.0, 9.0)
    assert (sink.state, sink.reason) == ("failing", "refused")

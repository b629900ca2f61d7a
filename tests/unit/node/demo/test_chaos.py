"""What the demo kills, when, and what it says of leaders and replicas: decided by looks alone, here made up."""

from __future__ import annotations

from typing import Any

import pytest

from isthmus.node.demo.chaos import AWAY_MOST_S, AWAY_S, Breaker, ChaosPhase
from isthmus.node.demo.watch import (
    ClusterSnapshot,
    DemoSnapshot,
    ProcessSnapshot,
    cluster_sight,
    queue_sights,
    sink_sights,
)

LEADERS = {"east-1": 4, "east-2": 5, "east-3": 3}


class Desk:
    """A breaker with a hand that only notes, and a clock that is set."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.notes: list[str] = []
        self.now_s = 100.0
        self.breaker = Breaker("east", self, self.notes.append, lambda: self.now_s)

    def kill_node(self, name: str) -> None:
        self.done.append(f"kill {name}")

    def start_node(self, name: str) -> None:
        self.done.append(f"start {name}")

    def kill(self, pid: int) -> None:
        self.done.append(f"kill {pid}")

    def look(
        self, share: float, leaders: dict[str, int], in_sync: int = 36, online: int = 12, absent: tuple[str, ...] = ()
    ) -> None:
        processes = (
            ProcessSnapshot("east-2", "running", 22, 0, ""),
            ProcessSnapshot("zookeeper-east", "running", 77, 0, ""),
        )
        east = ClusterSnapshot("east", 12, online, 36, in_sync, leaders, absent)
        self.sight = DemoSnapshot(self.now_s, processes, (east,))
        self.breaker.step(share, self.sight)


def test_the_greatest_leader_dies_and_returns_and_then_the_zookeeper() -> None:
    """Each act waits for its share of the replay and for what the act before was to bring about; what was done and seen
    is told."""
    desk = Desk()
    desk.look(0.1, LEADERS)
    desk.look(0.3, LEADERS, in_sync=35)
    desk.look(0.3, LEADERS, absent=("east-3",))
    assert desk.done == [], "nothing is broken early, nor when something is broken already"
    desk.look(0.3, LEADERS)
    assert desk.done == ["kill east-2"]
    moved = {"east-1": 7, "east-2": 0, "east-3": 5}
    desk.now_s += AWAY_S + 1
    desk.look(0.5, LEADERS, in_sync=24, online=7)
    assert desk.done == ["kill east-2"], "its partitions have not moved yet"
    desk.look(0.5, moved, in_sync=24)
    assert desk.done[1:] == ["start east-2"]
    desk.look(0.9, moved, in_sync=30)
    assert desk.done[2:] == [], "one thing at a time"
    desk.now_s += 3
    desk.look(0.9, moved)
    desk.look(0.9, moved)
    desk.look(0.9, moved)
    assert desk.done[2:] == ["kill 77"]
    assert desk.breaker.stage is ChaosPhase.DONE
    assert "killed east-2 (kill -9 22), the leader of 5 partitions" in desk.breaker.told
    assert "started east-2 again after 11 s; the others lead its partitions" in desk.breaker.told
    assert "east-2: every replica in sync again, 3 s after its start" in desk.breaker.told
    assert desk.notes[0] == "east: leaders east-1 4, east-2 5, east-3 3; 36 of 36 replicas in sync"


def test_partitions_that_do_not_move_are_told_and_the_node_is_started_all_the_same() -> None:
    """The demo does not hang on a cluster that fails; it says what it sees."""
    desk = Desk()
    desk.look(0.3, LEADERS)
    desk.now_s += AWAY_MOST_S
    desk.look(0.5, LEADERS, in_sync=24)
    assert desk.done == ["kill east-2", "start east-2"]
    assert "still is named leader of 5 partitions" in desk.breaker.told[-1]


@pytest.mark.parametrize("looks", range(5))
def test_at_the_end_what_is_down_is_started_and_nothing_more_is_killed(looks: int) -> None:
    """Wherever the breaking is when the replay is over: a node that is down is started, and that was all."""
    desk = Desk()
    moved = {"east-1": 7, "east-2": 0, "east-3": 5}
    story: list[dict[str, Any]] = [
        {"leaders": LEADERS},
        {"leaders": moved, "in_sync": 24},
        {"leaders": moved, "in_sync": 24},
        {"leaders": moved},
    ]
    for look in story[:looks]:
        desk.look(0.3, **look)
        desk.now_s += 6
    if looks == 0:
        desk.look(0.1, LEADERS)
    killed = desk.done.count("kill east-2")
    desk.breaker.mend(desk.sight)
    for _ in range(3):
        desk.now_s += 1
        desk.look(1.0, moved)
        desk.breaker.mend(desk.sight)
    assert desk.done.count("start east-2") == desk.done.count("kill east-2") == killed
    assert "kill 77" not in desk.done
    assert desk.breaker.stage is ChaosPhase.DONE


def test_a_cluster_is_whole_only_with_all_online_in_sync_and_there() -> None:
    """One partition without a leader, one replica out of sync, one node away: not whole; and the line says so."""
    raw: dict[str, Any] = {
        "partitions": {"total": 12, "online": 12, "offline": 0},
        "replicas": {"total": 36, "in_sync": 36},
        "nodes": [{"name": "b", "leaders": 12, "state": "live"}, {"name": "a", "leaders": 0, "state": "leaving"}],
    }
    assert cluster_sight("east", raw).whole
    assert cluster_sight("east", raw).told() == "east: leaders a 0, b 12; 36 of 36 replicas in sync"
    offline = cluster_sight("east", raw | {"partitions": {"total": 12, "online": 11}})
    assert not offline.whole
    assert offline.told().endswith("; 1 partition without a leader")
    assert not cluster_sight("east", raw | {"replicas": {"total": 36, "in_sync": 35}}).whole
    assert not cluster_sight("east", raw | {"nodes": [{"name": "b", "leaders": 12, "state": "gone"}]}).whole
    assert not cluster_sight("east", raw | {"partitions": {"total": 0, "online": 0}}).whole


def test_a_queue_is_known_only_when_its_nodes_cover_every_partition() -> None:
    """What the nodes of a cluster count is summed; with a partition that nobody led it is unknown, not nothing."""

    def row(partitions: int, waiting: int | None) -> dict[str, Any]:
        return {"name": "q", "partitions": partitions, "waiting": waiting, "in_flight": 1, "reason": ""}

    (whole,) = queue_sights("east", [row(4, 2), row(5, 0), row(3, 7)], 12)
    assert (whole.waiting, whole.in_flight, whole.outstanding) == (9, 3, 12)
    (partial,) = queue_sights("east", [row(4, 0), row(5, 0)], 12)
    assert (partial.outstanding, partial.reason) == (None, "9 of 12 partitions seen")
    (unknown,) = queue_sights("east", [row(4, 0), row(8, None)], 12)
    assert unknown.outstanding is None
    assert queue_sights("east", [row(0, 0)], None)[0].outstanding is None
    (silent,) = queue_sights("east", [], 12)
    assert silent.outstanding is None, "no node told of any queue"
    assert DemoSnapshot(1.0, queues=(whole, silent)).outstanding is None


def test_links_of_one_queue_make_one_line_with_the_worst_lag() -> None:
    """Sums of what was applied, p50 of the middle link, p99 of the worst, and the first trouble."""

    def link(p50: float | None, p99: float | None, reason: str = "") -> dict[str, Any]:
        state = "failing" if reason else "running"
        return {
            "queue": "q", "state": state, "applied": 3, "reason": reason, "lag_ms_p50": p50, "lag_ms_p99": p99,
            "recent_lag_ms_p50": p50, "recent_lag_ms_p99": p99,
        }  # fmt: skip

    (sink,) = sink_sights("west", [link(1.0, 9.0), link(None, None, "refused"), link(2.0, 4.0), link(7.0, 5.0)])
    assert (sink.applied, sink.lag_p50_ms, sink.lag_p99_ms) == (12, 2.0, 9.0)
    assert (sink.state, sink.reason) == ("failing", "refused")

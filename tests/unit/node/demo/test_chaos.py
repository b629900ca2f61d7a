"""When the demo kills which node, decided from snapshots that the test makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.node.demo.chaos import AWAY_MOST_S, AWAY_S, FailureInjector, ProcessControl
from isthmus.node.demo.watch import ClusterSnapshot, DemoSnapshot, ProcessSnapshot

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
    """The demo does not hang on a failing cluster; it reports what it sees."""
    fixture = Fixture()
    fixture.observe(0.3, LEADERS)
    fixture.now_s += AWAY_MOST_S
    fixture.observe(0.5, LEADERS, in_sync=24)
    assert fixture.done == ["kill east-2", "start east-2"]
    assert "still is named leader of 5 partitions" in fixture.injector.sentences[-1]


@pytest.mark.parametrize("looks", range(5))
def test_at_the_end_what_is_down_is_started_and_nothing_more_is_killed(looks: int) -> None:
    """At any step of the chaos, a node that is down at the end of the replay is started, and nothing else happens."""
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
    before = fixture.done.copy()
    fixture.injector.finish()
    for _ in range(3):
        fixture.now_s += 1
        fixture.observe(1.0, moved)
    assert fixture.done == (["kill east-2", "start east-2"] if before else [])
    assert fixture.injector.done

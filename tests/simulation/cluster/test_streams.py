"""Replication streams in clusters under faults: group numbers stand for the same entries at both ends, and cover only
durable and committed entries. Soft cursors reach the followers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import pytest

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica import Replica, ReplicaRole
from tests.simulation.cluster import simulator
from tests.simulation.cluster.fault_mixes import cuts, losses, storms
from tests.simulation.cluster.pair_streams import StreamSimulation
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.simulator import run_seed
from tests.simulation.cluster.stream_mutants import DEFECTS, Defect
from tests.support.samples import floors, seeds

SEEDS = range(20)
MIXED = range(4)
DEFECT_SEEDS = range(40)
MANY = range(20, 820)

DEFECT_HEAL_LIMIT_MS = 40_000

EXPECTED = {
    "acked": 2_000, "streamed": 1_300, "stream_runs": 1_300, "sent_StreamGroup": 2_000, "sent_StreamAck": 2_000,
    "elections": 50, "shrinks": 30, "expands": 30, "truncations": 8, "power_loss": 5, "link_down": 90,
    "message_lost": 50, "message_held": 70, "message_repeated": 170, "AppendRejected": 200, "lived_without_some": 2,
    "cursors_taken": 550, "cursor_handed_over": 12, "acknowledged_at_once": 100, "left_in_an_earlier_group": 1,
}  # fmt: skip
"""Minimum number of occurrences in SEEDS; about a third of those in a run."""


FOUND = (43535, 44539)
"""Seeds that found a follower that stayed behind for ever, and a replica that the simulator itself never removed."""


def several(mix: Callable[[], Plan]) -> Plan:
    """A mix with several partitions, whose runs share groups."""
    plan = mix()
    plan.partition_count = 3
    return plan


def test_streams_replicate_whatever_fails() -> None:
    """I-STREAM-POSITION, I-STREAM-ACK and the invariants of every cluster over crashes, losses of power, changes of
    leader and messages that are lost, repeated and overtaken; some nodes take no streams; and all of that happens."""
    counts: Counter[str] = Counter()
    for seed in seeds(SEEDS):
        counts.update(run_seed(seed, simulation_class=StreamSimulation).counts)
    missing = {name: (counts[name], least) for name, least in floors(EXPECTED).items() if counts[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_found_a_defect_stays_clean(seed: int) -> None:
    """Schedules that broke an invariant once."""
    assert run_seed(seed, simulation_class=StreamSimulation).counts["streamed"]


@pytest.mark.parametrize("mix", [storms(), losses(), cuts()], ids=["storms", "losses", "cuts"])
def test_the_mixes_of_faults_are_harmless(mix: Callable[[], Plan]) -> None:
    """Streams over several partitions pass the mixes that are aimed at one rule."""
    streamed = 0
    for seed in seeds(MIXED):
        streamed += run_seed(seed, simulation_class=StreamSimulation, plan=several(mix)).counts["streamed"]
    assert streamed


def test_the_short_way_to_the_store_has_the_effect_of_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a core takes the short path, AppliedTo would have led to the same state without effects."""
    taken, sound = 0, Replica.applied_quietly

    def compared(self: Replica, end: int) -> bool:
        nonlocal taken
        twin = deepcopy(self)
        if not sound(self, end):
            return False
        taken += 1
        assert twin.step(ev.AppliedTo(end), 0) == [], "the event would have asked for something"
        assert_same(twin, self)
        return True

    monkeypatch.setattr(Replica, "applied_quietly", compared)
    for seed in range(5, 8):
        run_seed(seed, simulation_class=StreamSimulation)
    assert taken > 100


def test_the_short_way_to_the_disk_has_the_effect_of_its_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whenever a leader or follower takes the short path, Persisted would have led to the same state and to the same
    Apply, or no effect."""
    taken: Counter[tuple[ReplicaRole, bool]] = Counter()
    sound = Replica.persisted_quietly

    def compared(self: Replica, end: int, now_ms: int) -> int | None:
        twin = deepcopy(self)
        committed = sound(self, end, now_ms)
        if committed is not None:
            taken[self.role, committed > 0] += 1
            assert twin.step(ev.Persisted(end), now_ms) == ([fx.Apply(committed)] if committed else [])
            assert_same(twin, self)
        return committed

    monkeypatch.setattr(Replica, "persisted_quietly", compared)
    for seed in range(5, 14):
        run_seed(seed, simulation_class=StreamSimulation)
    for commits in (False, True):
        assert taken[ReplicaRole.LEADER, commits] > 30
    assert taken[ReplicaRole.FOLLOWER, False] > 100


def assert_same(twin: Replica, replica: Replica) -> None:
    """Assert that two replicas are in the same state."""
    assert twin._state == replica._state
    assert twin._role_state == replica._role_state


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_seeds() -> None:
    """No invariant breaks over many more seeds."""
    for seed in MANY:
        run_seed(seed, simulation_class=StreamSimulation)


def caught(defect: Defect) -> str:
    """The first violation that some seed shows; empty when none does."""
    for seed in (defect.seed, *DEFECT_SEEDS):
        try:
            run_seed(seed, simulation_class=StreamSimulation, plan=defect.plan() if defect.plan is not None else None)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.put_in.__name__)
def test_a_defect_is_caught(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation of streams notices the defect, and for the right reason."""
    monkeypatch.setattr(simulator, "HEAL_LIMIT_MS", DEFECT_HEAL_LIMIT_MS)
    defect.put_in(monkeypatch)
    assert caught(defect).startswith(defect.names)

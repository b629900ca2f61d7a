"""Replication streams in clusters under faults: group numbers stand for the same entries at both ends, and for no more
than is durable and committed. Soft cursors reach the followers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import pytest

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.follower import Follower
from isthmus.repl.isr.replica import Replica
from tests.simulation.cluster import simulator
from tests.simulation.cluster.fault_mixes import cuts, losses, storms
from tests.simulation.cluster.pair_streams import StreamSimulation
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.simulator import run_seed
from tests.simulation.cluster.stream_mutants import DEFECTS, Defect

SEEDS = range(20)
MIXED = range(4)
DEFECT_SEEDS = range(40)
MANY = range(20, 820)

DEFECT_HEAL_LIMIT_MS = 40_000

EXPECTED = {
    "acked": 2_000, "streamed": 1_300, "stream_runs": 1_300, "sent_StreamGroup": 2_000, "sent_StreamAck": 2_000,
    "elections": 50, "shrinks": 30, "expands": 30, "truncations": 8, "power_loss": 5, "link_down": 90,
    "message_lost": 50, "message_held": 70, "message_repeated": 170, "AppendRejected": 200, "lived_without_some": 2,
    "cursors_taken": 550, "cursor_handed_over": 12,
}  # fmt: skip
"""What happens at least so often in SEEDS; about a third of what a run shows."""


def several(mix: Callable[[], Plan]) -> Plan:
    """A mix with several partitions, whose runs share groups."""
    plan = mix()
    plan.partition_count = 3
    return plan


def test_streams_replicate_whatever_fails() -> None:
    """I-STREAM-POSITION, I-STREAM-ACK and the invariants of every cluster over crashes, losses of power, changes of
    leader and messages that are lost, repeated and overtaken; some nodes take no streams; and all of that happens."""
    counts: Counter[str] = Counter()
    for seed in SEEDS:
        counts.update(run_seed(seed, simulation_class=StreamSimulation).counts)
    missing = {name: (counts[name], least) for name, least in EXPECTED.items() if counts[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


@pytest.mark.parametrize("mix", [storms(), losses(), cuts()], ids=["storms", "losses", "cuts"])
def test_the_mixes_of_faults_are_harmless(mix: Callable[[], Plan]) -> None:
    """Streams over several partitions pass the mixes that are made to break one thing."""
    streamed = 0
    for seed in MIXED:
        streamed += run_seed(seed, simulation_class=StreamSimulation, plan=several(mix)).counts["streamed"]
    assert streamed


@pytest.mark.parametrize(
    ("short_way", "event"), [("persisted_from_stream", ev.Persisted), ("applied_quietly", ev.AppliedTo)]
)
def test_a_short_way_has_the_effect_of_its_event(
    short_way: str, event: Callable[[int], ev.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever a core takes a short way, the event would have led to the same state and asked for nothing."""
    taken, sound = 0, getattr(Replica, short_way)

    def compared(self: Replica, end: int) -> bool:
        nonlocal taken
        twin = deepcopy(self)
        if not sound(self, end):
            return False
        taken += 1
        assert twin.step(event(end), 0) == [], "the event would have asked for something"
        assert twin._state == self._state
        if isinstance(self._role_state, Follower):
            assert twin._role_state == self._role_state
        return True

    monkeypatch.setattr(Replica, short_way, compared)
    for seed in range(5, 8):
        run_seed(seed, simulation_class=StreamSimulation)
    assert taken > 100


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_seeds() -> None:
    """The same over many more seeds."""
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

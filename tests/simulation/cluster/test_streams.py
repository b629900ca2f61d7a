"""Replication streams in clusters under faults: group numbers stand for the same entries at both ends, and cover only
durable and committed entries. Soft cursors reach the followers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import pytest

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica import _EARLY, Replica, ReplicaRole
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


@pytest.mark.parametrize("kind", [ev.AppliedTo, ev.Persisted])
def test_an_early_exit_does_what_the_usual_rules_do(monkeypatch: pytest.MonkeyPatch, kind: type[ev.Event]) -> None:
    """Whenever a replica takes an event early, the usual rules have the same effects and leave the same state; when it
    does not, nothing has changed."""
    taken: Counter[tuple[ReplicaRole, bool]] = Counter()
    sound = _EARLY[kind]

    def compared(self: Replica, event: ev.Event, now_ms: int) -> fx.Effects | None:
        twin = deepcopy(self)
        effects = sound(self, event, now_ms)
        if effects is not None:
            taken[self.role, bool(effects)] += 1
            assert twin._step_usual(event, now_ms) == effects
        assert twin._state == self._state
        assert twin._role_state == self._role_state
        return effects

    monkeypatch.setitem(_EARLY, kind, compared)  # type: ignore[misc]
    for seed in range(5, 14 if kind is ev.Persisted else 8):
        run_seed(seed, simulation_class=StreamSimulation)
    assert taken[ReplicaRole.LEADER, False] > 30
    assert taken[ReplicaRole.LEADER, True] > (30 if kind is ev.Persisted else -1)
    assert taken[ReplicaRole.FOLLOWER, False] > 70


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

"""Nodes that suspect each other (R-SUSPECT) in the simulator: the costs of a suspicion, true or false."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from isthmus.repl.controller.election import Decision, elect
from tests.simulation.cluster import simulator
from tests.simulation.cluster.metastore import SESSION_MS
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.session import PING_MS
from tests.simulation.cluster.simulator import run_seed
from tests.simulation.cluster.suspicion_mutants import DECIDED, PATCHED, Patch
from tests.simulation.cluster.suspicions import HOLD_TIMES, SuspicionSimulation
from tests.support.samples import floors, seeds

ALL_SEEDS = range(100)
SEEDS = seeds(ALL_SEEDS)
CHUNK = len(seeds(range(50)))
DEFECT_SEEDS = range(80)

EXPECTED = {"suspected": 60, "suspicion_ended": 30, "suspected_falsely": 12, "rejecting": 150}
"""Event -> minimum number of occurrences over 50 seeds; about a third of those in a run."""

FAIL_OVER_LIMIT_MS = 900
"""Virtual time without a write after a leader's death: noticing the broken connection (120 ms), and a dozen steps of up
to 30 ms each."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, CHUNK))
def test_no_invariant_breaks_under_suspicions_true_and_false(first: int) -> None:
    """All invariants hold after every event, with deaths that refused dials reveal and with storms of false suspicions;
    every seed becomes healthy and quiet again."""
    total: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        total.update(run_seed(seed, simulation_class=SuspicionSimulation).counts)
    missing = {name: (total[name], least) for name, least in floors(EXPECTED).items() if total[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


@pytest.mark.parametrize("seed", range(5))
def test_a_storm_of_false_suspicions_settles(seed: int) -> None:
    """Live nodes begin to refuse dials four times a second, without any other fault. Each of them loses at most one
    registration per hold time; writes continue meanwhile, and nothing changes after the storm."""
    storm_ms = simulator.FAULT_PHASE_MS
    simulation = run_seed(seed, simulation_class=SuspicionSimulation, plan=Plan.only(), reject_gap_ms=250)
    counts = simulation.counts
    assert counts["rejecting"] > 30
    assert 1 <= counts["suspected_falsely"] <= counts["suspicion_ended"] <= 3 * storm_ms // HOLD_TIMES.min_ms
    assert counts["acked"] > 100


def calm(seed: int) -> tuple[SuspicionSimulation, str]:
    """A cluster without faults that has served for five seconds, and the leader of its partition."""
    simulation = SuspicionSimulation(seed, plan=Plan.only(), reject_gap_ms=0)
    simulation.start()
    simulation.run_until(5_000)
    leader = simulation.metastore.records[0].leader
    assert leader is not None
    assert simulation.counts["acked"] > 0
    return simulation, leader.node


def without_a_write_ms(simulation: SuspicionSimulation) -> int:
    """Virtual time until the next write is acknowledged."""
    began_ms = simulation.now_ms
    for client in simulation.clients:
        client.begin()
    while not all(client.done for client in simulation.clients):
        simulation.run_until(simulation.now_ms + 5)
        assert simulation.now_ms < began_ms + 30_000
    return simulation.now_ms - began_ms


@pytest.mark.parametrize("seed", range(20))
def test_a_killed_leader_is_replaced_long_before_its_session_ends(seed: int) -> None:
    """A leader dies for good, whichever it is: the next write is acknowledged within a second of virtual time."""
    simulation, leader = calm(seed)
    simulation.nodes[leader].gone = True
    simulation.nodes[leader].kill()
    assert without_a_write_ms(simulation) <= FAIL_OVER_LIMIT_MS
    assert simulation.counts["suspicion_ended"] == 1


@pytest.mark.parametrize("cut_off", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_a_frozen_or_cut_off_leader_waits_for_its_session(seed: int, cut_off: bool) -> None:
    """Neither refuses a dial: nothing is suspected, and the leader is replaced when its session is over."""
    simulation, leader = calm(seed)
    if cut_off:
        for other in (*simulation.nodes, "metastore"):
            if other != leader:
                simulation.network.cut(leader, other, 60_000)
                simulation.network.cut(other, leader, 60_000)
    else:
        simulation.nodes[leader].pause(60_000)
    began_ms = simulation.now_ms
    while (found := simulation.metastore.records[0].leader) is None or found.node == leader:
        simulation.run_until(simulation.now_ms + 5)
    assert simulation.now_ms - began_ms >= SESSION_MS - PING_MS
    assert simulation.counts["suspicion_ended"] == 0


def caught(**options: Any) -> str:
    """The first violation that some seed shows; empty when none does."""
    for seed in DEFECT_SEEDS:
        try:
            run_seed(seed, simulation_class=SuspicionSimulation, **options)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("put_in", "names"), PATCHED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_defect_of_the_rules_is_caught(
    put_in: Callable[[Patch], None], names: tuple[str, ...], monkeypatch: Patch
) -> None:
    """The simulator notices the defect, and for the right reason."""
    put_in(monkeypatch)
    assert caught().startswith(names)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("decide", "names"), DECIDED, ids=lambda each: getattr(each, "__name__", ""))
def test_a_defect_of_elections_after_suspicions_is_caught(
    decide: Callable[..., Decision], names: tuple[str, ...]
) -> None:
    """A suspicion makes no replica electable, and restores no leadership."""
    assert decide is not elect
    assert caught(decide=decide).startswith(names)

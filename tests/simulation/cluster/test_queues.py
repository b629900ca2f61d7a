"""Waiters and source queues in clusters under faults: acknowledged writes are committed, and reach the owners."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.simulation.cluster import simulator
from tests.simulation.cluster.fault_mixes import cuts, last_resorts
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.queue_mutants import DEFECTS, Defect, deposed
from tests.simulation.cluster.queues import QueueSimulation, UnsharedQueueSimulation
from tests.simulation.cluster.simulator import run_seed
from tests.support.samples import floors, seeds

SEEDS = range(20)
MIXED = range(6)
DEFECT_SEEDS = range(60)
MANY = range(20, 320)

DEFECT_HEAL_LIMIT_MS = 40_000

EXPECTED = {
    "acked": 500, "unknown": 30, "repeated": 50, "delivered": 200, "soft_taken": 100, "appended_cursor": 40,
    "act_release": 1, "act_register": 4, "ack_again": 15, "fetch_lost": 50, "reply_lost": 50, "sink_restarted": 10,
    "elections": 30, "power_loss": 10, "far_rounds": 2, "push_merged": 20, "reap_waits_for_queues": 30,
    "served_in_share": 80, "served_of_another_share": 140,
}  # fmt: skip
"""Minimum number of occurrences in SEEDS; about a third of those in a run."""


def test_owners_get_what_is_acknowledged_whatever_fails() -> None:
    """I-ALO, I-Q-CURSOR, I-Q-COMMITTED, I-Q-LEDGER, I-ANSWER, I-BASIS over crashes, losses of power, changes of leader,
    moves, lost and repeated acknowledgements, operators who move cursors and owners, and nodes of a sink's cluster that
    fetch shares, come and go; each of these faults occurs."""
    counts: Counter[str] = Counter()
    for seed in seeds(SEEDS):
        counts.update(run_seed(seed, simulation_class=QueueSimulation).counts)
    missing = {name: (counts[name], least) for name, least in floors(EXPECTED).items() if counts[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


@pytest.mark.parametrize("plan", [cuts(), last_resorts(), deposed])
def test_the_sound_product_passes_the_mixes_that_catch_defects(plan: object) -> None:
    """Without a defect the special mixes pass, forced leaders and their lost entries among them."""
    assert callable(plan)
    for seed in seeds(MIXED):
        run_seed(seed, simulation_class=QueueSimulation, plan=plan())


@pytest.mark.parametrize(
    ("plan", "seeds"),
    [
        (last_resorts(last_resort_ms=4_000), (27, 28, 58, 68, 94, 100, 255)),
        (last_resorts(gap_ms=3_000, write_gap_ms=30, last_resort_ms=4_000), (4, 5, 74)),
    ],
)
def test_changes_after_a_forced_election_reach_every_owner(plan: Callable[[], Plan], seeds: tuple[int, ...]) -> None:
    """Seeds in which a write that a forced leader had lost came back from another cluster and was not sent to a third
    one, over a key that was gone or replaced; and in which a queue was cleared before it had a position in any
    partition, without a gap."""
    for seed in seeds:
        run_seed(seed, simulation_class=UnsharedQueueSimulation, plan=plan())


@pytest.mark.parametrize("seed", [307, 1617, 1874])
def test_an_owner_is_never_seen_without_the_command_that_moves_its_cursors(seed: int) -> None:
    """Seeds in which a released queue's next owner began at the last one's position, since the two documents were read
    at different times; in which a queue was placed for an owner that a partition did not serve yet; and in which a
    refused item of a batch was answered as unknown when leadership ended."""
    run_seed(seed, simulation_class=UnsharedQueueSimulation)


@pytest.mark.parametrize(("simulation_class", "seed"), [(UnsharedQueueSimulation, 82), (QueueSimulation, 229)])
def test_an_item_that_waited_for_its_leader_until_its_time_out_is_refused(
    simulation_class: type[QueueSimulation], seed: int
) -> None:
    """Seeds in which an item that waited at a node about to lead, on a paused process, was answered as unknown though
    nothing was appended."""
    run_seed(seed, simulation_class=simulation_class)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_seeds() -> None:
    """No invariant breaks over many more seeds."""
    for seed in MANY:
        run_seed(seed, simulation_class=QueueSimulation)


def caught(defect: Defect) -> str:
    """The first violation that some seed shows; empty when none does."""
    for seed in (defect.seed, *DEFECT_SEEDS):
        try:
            plan = defect.plan() if defect.plan is not None else None
            run_seed(seed, simulation_class=QueueSimulation if defect.shares else UnsharedQueueSimulation, plan=plan)
        except AssertionError as error:
            return str(error)
    return ""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.put_in.__name__)
def test_a_defect_is_caught(defect: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation of queues notices the defect, and for the right reason."""
    monkeypatch.setattr(simulator, "HEAL_LIMIT_MS", DEFECT_HEAL_LIMIT_MS)
    defect.put_in(monkeypatch)
    assert caught(defect).startswith(defect.names)

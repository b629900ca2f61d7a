"""Forced elections in the simulator: entries of the forced replica stay, entries that it lacked are declared lost."""

from __future__ import annotations

from collections import Counter

import pytest

from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.model.record import PartitionStatus
from tests.simulation.cluster.fault_mixes import last_resorts
from tests.simulation.cluster.plan import Plan
from tests.simulation.cluster.scripted import ScriptedCluster
from tests.simulation.cluster.simulator import run_seed
from tests.support.samples import floors, seeds

SEEDS = range(20)

EXPECTED = {"forced": 15, "declared_lost": 100, "diverged": 2, "quarantined": 2, "forced_undecided": 1}
"""Event -> minimum number of occurrences over SEEDS."""

SHAPES = ({"node_count": 5, "factor": 5, "min_isr": 3}, {"node_count": 3, "factor": 3, "min_isr": 2})


def test_a_forced_replica_keeps_all_its_entries() -> None:
    """All electable replicas lose their disks among other faults: whatever replica is forced, only entries that it
    lacked are lost, and writes continue."""
    total: Counter[str] = Counter()
    for seed in SEEDS:
        total.update(run_seed(seed, plan=last_resorts(**SHAPES[seed % len(SHAPES)])()).counts)
    missing = {name: (total[name], least) for name, least in EXPECTED.items() if total[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


ASYNC_SEEDS = range(80, 120)

SLOW_SEEDS = (89, 117, 146)
"""Seeds in which a replica loses power between the order to force it and its election; in which a store has rows of
entries that no log has (H36); and in which a FollowRequest of a replica's former log arrives late."""

TRIMMED_SEEDS = ((123, 150, 0.5), (643, 250, 0.3), (767, 250, 0.3))
"""(seed, write_gap_ms, trims): a forced replica with rows of lost entries must send rows before anything is committed;
one forced election follows another; a late write makes one more replica electable after all others lost their disks."""

ASYNC_EXPECTED = {"forced": 30, "declared_lost": 400, "quarantined": 5, "tail_lost": 8, "made_anew": 1}
"""Minimum number of occurrences over ASYNC_SEEDS, with durability async."""


def test_a_forced_replica_keeps_its_entries_over_power_losses() -> None:
    """With durability async nothing else is lost either, before and after the forced election: a diverged replica keeps
    its entries over a power loss, whatever its log id; where too few replicas are left for writes, one of them is
    recreated; and no replica in sync except the forced one keeps rows of entries that are in no log."""
    total: Counter[str] = Counter()
    for seed in seeds(ASYNC_SEEDS):
        plan = last_resorts(asynchronous=True, **SHAPES[seed % len(SHAPES)])()
        total.update(run_seed(seed, plan=plan).counts)
    for seed in SLOW_SEEDS:  # few writes, so that the rows of lost ones are not overwritten
        plan = last_resorts(asynchronous=True, write_gap_ms=400, **SHAPES[seed % len(SHAPES)])()
        total.update(run_seed(seed, plan=plan).counts)
    for seed, write_gap_ms, trims in TRIMMED_SEEDS:
        plan = last_resorts(asynchronous=True, write_gap_ms=write_gap_ms, trims=trims, **SHAPES[seed % len(SHAPES)])()
        total.update(run_seed(seed, plan=plan).counts)
    missing = {name: (total[name], least) for name, least in floors(ASYNC_EXPECTED).items() if total[name] < least}
    assert not missing, f"happened too rarely (seen, at least): {missing}"


def test_a_replica_in_state_transfer_is_not_forced() -> None:
    """R-FORCE, R-FAR: a replica left behind by a reassignment dropped its rows after a power loss, is assigned again,
    and reports the rest of its log; if it were forced, it could not become leader, and no other replica might."""
    kinds = ("kill", "power_loss", "reassign", "cut_nodes", "isolate")
    mix = {"gap_ms": 350, "write_gap_ms": 40, "lost": 0.02, "repeated": 0.1, "overtaken": 0.2, "held": 0.02}
    store = {"store_lost": 0.1, "store_held": 0.1, "reads": 0.6, "trims": 0.0, "last_resort_ms": 2_500, "node_count": 5}
    assert run_seed(19, plan=Plan.only(*kinds, **mix, **store)).counts["forced"] == 1


def without_its_guard() -> tuple[ScriptedCluster, str, list[str]]:
    """A partition that is Offline: two entries reached all, three only the two replicas that then lost their disks.
    Returns the cluster, the remaining node, and the others."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    one, left = cluster.others(leader)
    cluster.write(leader, 2)
    cluster.wait(cluster.all_in_sync)
    cluster.cut((leader, left), (left, leader))
    cluster.write(leader, 3)
    cluster.wait(lambda: cluster.acked() == 5)
    assert cluster.in_sync() == {leader, one}
    assert not cluster.eligible()
    cluster.simulation.checkers.beyond_promise = True
    for name in (leader, one):
        cluster.simulation.nodes[name].replace_disk()
    cluster.join()
    cluster.wait(lambda: cluster.record.status is PartitionStatus.OFFLINE)
    cluster.pass_ms(5_000)
    assert cluster.record.status is PartitionStatus.OFFLINE
    assert cluster.record.reason.startswith("waits for")
    return cluster, left, [leader, one]


def force(cluster: ScriptedCluster, name: str) -> None:
    """Order a node's replica to be forced, as an operator."""
    operator, record = cluster.simulation.operator, cluster.record
    copies = [copy for copy in map(operator.copy, record.replicas) if copy is not None]
    assert len(copies) == len(record.replicas)
    operator.force(record, next(copy for copy in copies if copy.node == name), copies)
    cluster.wait(lambda: cluster.record.lineage == record.lineage + 1)
    cluster.simulation.checkers.beyond_promise = False
    assert cluster.record.epoch > record.epoch


def test_the_last_replica_leads_with_all_its_entries() -> None:
    """R-FORCE: the three acknowledged writes that it lacks are gone, its own two stay, the replaced disks follow it,
    and new writes are on all."""
    cluster, left, others = without_its_guard()
    force(cluster, left)
    cluster.wait(cluster.all_in_sync)
    assert cluster.leads() == left
    assert cluster.in_sync() == {left, *others}
    assert (cluster.simulation.counts["declared_lost"], cluster.simulation.counts["diverged"]) == (3, 0)
    cluster.write(left, 4)
    cluster.wait(lambda: cluster.acked() == 9)
    cluster.wait(cluster.all_in_sync)
    assert len(cluster.simulation.checkers.history(0).acked) == 6
    cluster.simulation.checkers.final()


@pytest.mark.parametrize("restarted", ["", "killed", "dark"])
def test_a_replica_with_more_entries_than_the_forced_one_is_quarantined(restarted: str) -> None:
    """R-FORCE, I-DIVERGED: an empty replica is forced; one that holds more keeps its entries and reports the
    divergence, also after restarts and where its rows must be replayed (H36), serves nothing, and the others continue
    without it."""
    cluster, left, others = without_its_guard()
    log = cluster.simulation.nodes[left].disk.logs[0]
    before = list(log.entries)
    force(cluster, others[0])
    cluster.wait(cluster.all_in_sync)
    cluster.write(others[0], 2)
    cluster.wait(lambda: cluster.acked() == 7)
    if restarted:
        node = cluster.simulation.nodes[left]
        if restarted == "dark":
            node.disk.stores[0].floor = 0
            node.power_loss()
            assert node.disk.committed(0) > node.disk.stores[0].applied == 0
        else:
            cluster.process(left).die("restarted")
        cluster.wait(lambda: node.current is not None)
    cluster.wait(cluster.all_in_sync)
    assert cluster.replica(left).role is ReplicaRole.FAILED
    assert cluster.replica(left).reason.startswith("committed-divergence")
    assert cluster.in_sync() == set(others)
    assert log.entries == before
    assert cluster.simulation.counts["declared_lost"] == 5
    assert cluster.write(left) is not None, "refused"
    cluster.process(left).read(0)
    assert not cluster.process(left).reads, "refused"
    cluster.simulation.checkers.final()

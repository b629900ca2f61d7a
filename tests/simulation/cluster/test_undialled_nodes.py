"""Nodes that dial the others and cannot be dialled: leaderships settle elsewhere, soon and for good (R-REACHED)."""

from __future__ import annotations

from random import Random

import pytest

from isthmus.repl.controller.leader_balance_plan import plan, seats
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.give_way import CHECK_MS, GIVE_WAY_CHECKS
from tests.simulation.cluster.scripted import ScriptedCluster
from tests.support.samples import share

SETTLE_MS = CHECK_MS * GIVE_WAY_CHECKS + 6_000
"""Virtual time within which another node leads: ten checks, and an election with its longest timers."""

QUIET_MS = 180_000
"""Three times what a leader took to give way before; nothing changes in it."""


def balance(cluster: ScriptedCluster) -> None:
    """A balancer asks for even leaderships; the leader's node refuses a target that it cannot dial."""
    simulation = cluster.simulation
    records, registrations = simulation.metastore.records, simulation.metastore.registrations
    for move in plan(seats(records, registrations)):
        leader = records[move.partition].leader
        if leader is None or move.target in simulation.network.deaf:
            continue
        process = simulation.nodes[leader.node].current
        if process is not None:
            deadline_ms = simulation.now_ms + 3_000
            process.post(move.partition, ev.TransferLeadership(move.target, deadline_ms, simulation.sessions_as_read()))


def leaders(cluster: ScriptedCluster) -> dict[int, str | None]:
    """Partition -> who leads and serves it."""
    found: dict[int, str | None] = {}
    for partition, record in cluster.simulation.metastore.records.items():
        process = None if record.leader is None else cluster.simulation.nodes[record.leader.node].current
        serves = process is not None and process.me() == record.leader and process.replicas[partition].ready
        found[partition] = record.leader.node if serves and record.leader is not None else None
    return found


@pytest.mark.parametrize("seed", range(share(40)))
def test_leaderships_settle_away_from_a_node_that_nobody_can_dial(seed: int) -> None:
    """Six partitions on three nodes with a balancer; one node's listener closes, another node may restart meanwhile.
    Within SETTLE_MS the two others lead everything; then nothing moves for QUIET_MS, the deaf node follows in sync, and
    it leads its share again once it can be dialled. Every event is checked against the invariants."""
    rng = Random(seed)
    cluster = ScriptedCluster(partition_count=6)
    simulation = cluster.simulation
    deaf = rng.choice(sorted(simulation.nodes))

    def evenly() -> bool:
        balance(cluster)
        found = list(leaders(cluster).values())
        return all(found.count(name) == 2 for name in simulation.nodes)

    cluster.wait(evenly)
    cluster.pass_ms(rng.randint(0, 3_000))
    simulation.network.deafen(deaf)
    if rng.random() < 0.5:
        cluster.pass_ms(rng.randint(0, 2_000))
        other = rng.choice(sorted(simulation.nodes.keys() - {deaf}))
        simulation.network.flap(other, deaf)
    began_ms = simulation.now_ms
    heirs = simulation.nodes.keys() - {deaf}

    def settled() -> bool:
        return all(name in heirs for name in leaders(cluster).values())

    while not settled():
        assert simulation.now_ms - began_ms < SETTLE_MS, simulation.rendered_trace()[-4_000:]
        cluster.pass_ms(100)
        if rng.random() < 0.1:
            balance(cluster)
    cluster.pass_ms(5_000)
    balance(cluster)
    cluster.pass_ms(5_000)
    epochs = {partition: record.epoch for partition, record in simulation.metastore.records.items()}
    until_ms = simulation.now_ms + QUIET_MS
    while simulation.now_ms < until_ms:
        cluster.pass_ms(5_000)
        balance(cluster)
        assert settled()
    assert {partition: record.epoch for partition, record in simulation.metastore.records.items()} == epochs
    assert all(len(record.isr) == 3 for record in simulation.metastore.records.values())
    simulation.network.hear(deaf)
    cluster.pass_ms(1_000)
    cluster.wait(evenly)
    simulation.checkers.final()

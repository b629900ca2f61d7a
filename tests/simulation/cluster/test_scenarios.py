"""Scripted stories of three nodes: each of the protocol's named situations, step by step, on the simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.repl.controller.election import RESPONSE_MIN_MS
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.record import PartitionStatus
from tests.simulation.cluster.disk import effect_of
from tests.simulation.cluster.metastore import METASTORE
from tests.simulation.cluster.scripted import ScriptedCluster


def options(**changes: int) -> ReplicaOptions:
    """The core's numbers, short where a test would wait for them."""
    base = {
        "window_entries": 16, "max_time_lag_ms": 800, "max_record_lag": 1_000, "max_near_sync_message_lag": 100_000,
    }  # fmt: skip
    return ReplicaOptions(**{**base, **changes})


def test_the_worked_example_of_fluvio() -> None:
    """LRS 3, LEO leader 4, follower-1 3, follower-2 2: HW 2; follower-2 goes offline: LRS 2 and HW 3.

    Fluvio's page counts offsets of the last record, ours are positions, one past it: the same records, number 0 to the
    one named, are LEO 5, 4, 3 and hw 3 here, and then hw 4. A BARRIER is at offset 0, as record 0 of the example.
    """
    cluster = ScriptedCluster(options=options(max_time_lag_ms=1_500))
    leader = cluster.leads()
    assert leader is not None
    one, two = cluster.others(leader)
    assert cluster.replica(leader).leo == 1
    cluster.write(leader, 2)
    cluster.wait(cluster.all_in_sync)
    assert cluster.replica(two).leo == 3
    cluster.cut((leader, two), (two, leader))  # it gets no more; no node knows yet that it is offline
    cluster.write(leader, 1)
    cluster.wait(lambda: cluster.replica(one).durable == 4)
    cluster.pass_ms(1_000)
    cluster.simulation.network.slow_down(leader, one, 1_300, 2_000)
    cluster.write(leader, 1)  # follower-1 gets this one late
    cluster.wait(lambda: cluster.replica(leader).durable == 5)
    ends = {name: cluster.replica(name).leo for name in (leader, one, two)}
    assert ends == {leader: 5, one: 4, two: 3}  # LEO 4, 3, 2 in the words of the example
    assert cluster.in_sync() == {leader, one, two}  # LRS = 3
    assert cluster.replica(leader).high_watermark == 3  # HW = 2
    cluster.wait(lambda: cluster.replica(leader).high_watermark > 3)
    assert cluster.in_sync() == {leader, one}  # LRS = 2, confirmed by the metastore before anything is applied
    assert cluster.replica(leader).high_watermark == 4  # HW = 3: record 3 is on both; record 4 waits for follower-1
    assert cluster.replica(one).leo == 4
    cluster.wait(lambda: cluster.acked() == 4)
    assert cluster.replica(leader).high_watermark == 5


def test_a_member_far_behind_leaves_never_below_min_isr_goes_on_receiving_and_returns() -> None:
    """Fluvio's lagging follower: its hw is more than the record lag behind, so it leaves the ISR; it still receives
    entries, and returns when it has caught up. When two members lag only one leaves, since min-ISR must stay."""
    cluster = ScriptedCluster(options=options(max_record_lag=10, max_time_lag_ms=8_000, window_entries=1_000))
    leader = cluster.leads()
    assert leader is not None
    one, two = cluster.others(leader)
    for name in (one, two):  # they receive everything, but late
        cluster.simulation.network.slow_down(leader, name, 700, 6_000)
    for _ in range(60):
        cluster.write(leader, 4)
        cluster.pass_ms(60)
        assert len(cluster.in_sync()) >= 2
    assert cluster.simulation.counts["shrinks"] > 0
    out = ({one, two} - cluster.in_sync()).pop()
    before = cluster.replica(out).leo
    cluster.pass_ms(400)
    assert cluster.replica(out).leo > before
    cluster.wait(cluster.all_in_sync)
    assert cluster.in_sync() == {leader, one, two}


def test_below_min_isr_nothing_is_applied_and_writes_are_refused() -> None:
    """A stall: the leader alone takes no writes and applies none, its reason names the members that it waits for, and
    reads that it can confirm are served; when a member is back, the appended entries are committed."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    one, two = cluster.others(leader)
    cluster.write(leader, 1)
    cluster.wait(cluster.all_in_sync)
    applied = cluster.replica(leader).applied
    cluster.cut((leader, one), (one, leader), (leader, two), (two, leader))
    assert cluster.write(leader, 2) is None
    cluster.wait(lambda: cluster.in_sync() == {leader})
    assert cluster.eligible() == {one, two}
    cluster.pass_ms(200)
    assert cluster.replica(leader).applied == applied
    assert cluster.write(leader) == "not-enough-replicas"
    assert cluster.replica(leader).reason == f"stalled: below min-ISR (1 of 2 in sync; waits for {one}, {two})"
    assert cluster.acked() == 1
    cluster.join()
    cluster.wait(lambda: cluster.acked() == 3)
    cluster.wait(cluster.all_in_sync)


def test_the_last_replica_standing_loses_its_disk_and_nothing_is_lost() -> None:
    """H9, R-ELR: two leave, the third loses everything; the one that left below min-ISR is electable, and leads."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    one, two = cluster.others(leader)
    cluster.write(leader, 3)
    cluster.wait(cluster.all_in_sync)
    for name in (one, two):
        cluster.simulation.nodes[name].gone = True
        cluster.process(name).die("for now")
    cluster.wait(lambda: cluster.in_sync() == {leader})
    assert cluster.eligible() == {one, two}
    cluster.simulation.nodes[leader].replace_disk()
    cluster.wait(lambda: cluster.record.status is PartitionStatus.OFFLINE)
    assert cluster.record.reason.startswith("waits for")
    for name in (one, two):
        cluster.simulation.nodes[name].gone = False
        cluster.simulation.nodes[name].start()
    cluster.wait(cluster.all_in_sync)
    assert cluster.leads() in (one, two)
    assert cluster.simulation.counts["elr_elected"] == 1
    assert cluster.acked() == 3
    cluster.simulation.checkers.final()


@pytest.mark.parametrize("arrives", [True, False])
def test_an_expansion_without_an_answer_counts_until_the_version_has_moved(arrives: bool) -> None:
    """H14, R-MAX: from the moment it is proposed the member must acknowledge every commit, whether the write has
    arrived or not; the same bytes are repeated; in the end it is in sync."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    one, two = cluster.others(leader)
    cluster.cut((leader, two), (two, leader))
    cluster.write(leader)
    cluster.wait(lambda: two not in cluster.in_sync())
    cluster.pass_ms(5_200)  # its pause before it may join again
    cluster.cut((METASTORE, leader) if arrives else (leader, METASTORE))
    cluster.simulation.network.join(leader, two)
    cluster.simulation.network.join(two, leader)
    cluster.wait(lambda: cluster.process(leader).undecided[0])
    proposed = cluster.process(leader).undecided[0][0]
    assert {member.node for member in proposed.isr} == {leader, one, two}
    cluster.pass_ms(100)
    assert (two in cluster.in_sync()) is arrives
    cluster.cut((leader, two))
    hw = cluster.replica(leader).high_watermark
    assert cluster.write(leader) is None
    cluster.pass_ms(300)
    assert cluster.replica(one).durable == hw + 1
    assert cluster.replica(leader).high_watermark == hw  # the proposed one must have it, too
    cluster.pass_ms(700)
    assert len(cluster.process(leader).undecided[0]) > 1 or arrives
    assert all(write == proposed for write in cluster.process(leader).undecided[0])
    cluster.join()
    cluster.wait(cluster.all_in_sync)
    assert cluster.in_sync() == {leader, one, two}


def test_a_zombie_leader_acknowledges_nothing_and_serves_no_read() -> None:
    """H24: cut off, it is replaced; entries that it still appends are dropped, and it never serves a read."""
    cluster = ScriptedCluster()
    zombie = cluster.leads()
    assert zombie is not None
    cluster.write(zombie, 2)
    cluster.wait(cluster.all_in_sync)
    cluster.cut_off(zombie)
    cluster.pass_ms(100)
    assert cluster.write(zombie, 1) is None
    cluster.wait(lambda: cluster.leads() not in (None, zombie))
    leader = cluster.leads()
    assert leader is not None
    assert cluster.replica(zombie).role is ReplicaRole.LEADER  # as far as it knows
    cluster.write(leader, 2)
    cluster.wait(lambda: cluster.acked() == 4)
    served = cluster.simulation.counts["reads_served"]
    cluster.process(zombie).read(0)
    cluster.write(zombie, 1)
    cluster.pass_ms(2_000)
    assert cluster.simulation.counts["reads_served"] == served
    cluster.join()
    cluster.wait(cluster.all_in_sync)
    assert (cluster.acked(), cluster.client.lost) == (4, 2)
    assert cluster.simulation.counts["truncations"] == 1
    assert not cluster.process(zombie).reads


def test_a_returning_leader_becomes_a_follower() -> None:
    """Fluvio: the failed leader rejoins, detects the new leader, and follows it, in its epoch."""
    cluster = ScriptedCluster()
    first = cluster.leads()
    assert first is not None
    cluster.write(first, 2)
    cluster.wait(cluster.all_in_sync)
    cluster.simulation.nodes[first].gone = True
    cluster.process(first).die("killed")
    cluster.wait(lambda: cluster.leads() not in (None, first))
    epoch = cluster.record.epoch
    cluster.simulation.nodes[first].gone = False
    cluster.simulation.nodes[first].start()
    cluster.wait(cluster.all_in_sync)
    assert cluster.is_follower(first)
    assert cluster.record.epoch == epoch == 2


def test_after_a_silent_candidate_comes_the_next() -> None:
    """The wait-for-response timer: a candidate whose disk hangs does not answer, and another is nominated."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    cluster.wait(cluster.all_in_sync)
    others = cluster.others(leader)
    slow = min(others)
    cluster.simulation.nodes[slow].disk.slow = 100_000
    cluster.simulation.nodes[leader].gone = True
    cluster.process(leader).die("killed")
    cluster.wait(lambda: cluster.record.candidate is not None and cluster.record.candidate.node == slow)
    cluster.wait(lambda: cluster.record.leader is not None and cluster.record.leader.node == max(others))
    assert cluster.record.epoch == 3
    cluster.simulation.nodes[leader].gone = False
    cluster.simulation.nodes[leader].start()
    cluster.wait(lambda: cluster.leads() == max(others))


def test_leadership_is_handed_to_the_requested_member() -> None:
    """The leader drains and resigns, the target is elected, and no acknowledged or appended item is lost."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    target = cluster.others(leader)[1]
    cluster.write(leader, 5)
    cluster.process(leader).post(0, ev.TransferLeadership(target, cluster.simulation.now_ms + 3_000))
    assert cluster.write(leader) == "not-ready"
    cluster.wait(lambda: cluster.leads() == target)
    cluster.wait(cluster.all_in_sync)
    assert (cluster.acked(), cluster.client.lost) == (5, 0)
    assert cluster.record.epoch == 2


def test_a_resigning_leader_nominates_its_successor() -> None:
    """R-NOMINATE: no controller takes part before the candidate is promoted, and the next leader is the target."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    target = cluster.others(leader)[1]
    cluster.write(leader, 5)
    simulation = cluster.simulation
    sessions = {name: each.session_id for name, each in simulation.metastore.registrations.items()}
    cluster.process(leader).post(0, ev.TransferLeadership(target, simulation.now_ms + 3_000, sessions))
    seen = set()

    def led() -> bool:
        seen.add((cluster.record.epoch, cluster.record.status))
        return cluster.leads() == target

    cluster.wait(led)
    assert (2, PartitionStatus.CANDIDATE_FOUND) in seen
    assert PartitionStatus.ELECTION not in {status for _, status in seen}
    cluster.wait(cluster.all_in_sync)
    assert (cluster.acked(), cluster.client.lost, cluster.record.epoch) == (5, 0, 2)


def test_a_nomination_of_a_session_that_is_over_is_followed_by_another() -> None:
    """R-NOMINATE: the leader nominated an outdated session of its target; the controller nominates another replica at
    once."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    target = cluster.others(leader)[0]
    cluster.write(leader, 5)
    began_ms = cluster.simulation.now_ms
    cluster.process(leader).post(0, ev.TransferLeadership(target, began_ms + 3_000, {target: 10**9}))
    cluster.wait(lambda: cluster.leads() is not None and cluster.record.epoch == 3)
    assert cluster.simulation.now_ms - began_ms < RESPONSE_MIN_MS
    assert (cluster.acked(), cluster.client.lost) == (5, 0)


def test_a_hand_over_that_cannot_happen_is_given_up() -> None:
    """The target is not reached until the deadline; the leader leads on, and takes writes again."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    target = cluster.others(leader)[0]
    cluster.cut((leader, target))
    cluster.write(leader, 2)
    cluster.process(leader).post(0, ev.TransferLeadership(target, cluster.simulation.now_ms + 400))
    assert cluster.write(leader) == "not-ready"
    cluster.wait(lambda: cluster.replica(leader).role is ReplicaRole.LEADER)
    assert cluster.write(leader) is None
    assert cluster.record.epoch == 1


def test_a_stopping_node_gives_everything_up_and_is_dropped() -> None:
    """H10: it resigns, announces that it leaves, is taken out of the ISR, and is not added again while it is
    leaving."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    cluster.write(leader, 2)
    cluster.wait(cluster.all_in_sync)
    cluster.simulation.nodes[leader].stop()
    cluster.wait(lambda: cluster.leads() not in (None, leader))
    assert cluster.simulation.counts["stopped_clean"] == 1
    assert cluster.client.lost == 0
    cluster.wait(cluster.all_in_sync)


def test_setting_min_isr_lower_does_not_clear_the_elr() -> None:
    """H22: only the leader empties the ELR, by a write of its own, and commits nothing before."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    one, two = cluster.others(leader)
    cluster.cut((leader, one), (one, leader), (leader, two), (two, leader))
    cluster.write(leader)
    cluster.wait(lambda: cluster.in_sync() == {leader})
    cluster.simulation.metastore.write("c1", replace(cluster.record, min_isr=1), (), lambda *_: None)
    cluster.wait(lambda: cluster.record.min_isr == 1)
    assert cluster.eligible() == {one, two}
    assert cluster.acked() == 0
    cluster.wait(lambda: cluster.acked() == 1)
    assert cluster.eligible() == set()


def test_a_restored_replica_takes_a_new_log_id() -> None:
    """H39: a restored data directory has less than it acknowledged; the leader reports that, and the replica takes a
    new log id and is in sync again under it."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    other = cluster.others(leader)[0]
    cluster.write(leader, 4)
    cluster.wait(cluster.all_in_sync)
    node = cluster.simulation.nodes[other]
    log_id = node.disk.log_ids[0]
    cluster.simulation.checkers.beyond_promise = True
    cluster.process(other).die("its directory is restored from an old copy")
    log, store = node.disk.logs[0], node.disk.stores[0]
    del log.entries[2:], store.history[2:]
    log.sync()
    store.latest = effect_of(store.history)
    store.floor = 2
    cluster.wait(lambda: cluster.simulation.counts["gen_renewed"])
    cluster.wait(cluster.all_in_sync)
    assert node.disk.log_ids[0] > log_id


def test_a_replica_beyond_the_trimmed_log_takes_rows() -> None:
    """A replica with a replaced disk, where the others have trimmed, takes rows while writes continue, and is in sync
    again."""
    cluster = ScriptedCluster()
    leader = cluster.leads()
    assert leader is not None
    other = cluster.others(leader)[0]
    cluster.write(leader, 6)
    cluster.wait(cluster.all_in_sync)
    cluster.simulation.plan.trims = 0.0
    for name in (leader, cluster.others(leader)[1]):
        process = cluster.process(name)
        process.checkpoint()
        process.trim(0, 4)
    cluster.simulation.nodes[other].replace_disk()
    cluster.wait(lambda: cluster.simulation.counts["FollowRejected_beyond-log"])
    cluster.write(leader, 2)
    cluster.wait(lambda: cluster.acked() == 8)
    cluster.wait(cluster.all_in_sync)
    assert other in cluster.in_sync()
    assert cluster.simulation.counts["far_rounds"] >= 1
    assert cluster.simulation.nodes[other].disk.logs[0].start > 0


@pytest.mark.parametrize("seed_plan", [{"node_count": 3, "factor": 2, "min_isr": 2}, {"node_count": 5, "factor": 5}])
def test_other_shapes_lead_and_commit(seed_plan: dict[str, Any]) -> None:
    """RF 2 and RF 5: one write is acknowledged and everywhere."""
    cluster = ScriptedCluster(**seed_plan)
    leader = cluster.leads()
    assert leader is not None
    cluster.write(leader)
    cluster.wait(cluster.all_in_sync)
    assert cluster.acked() == 1

"""Scripted stories of three nodes: each of the protocol's named situations, step by step, on the simulated cluster."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.record import PartitionStatus
from tests.simulation.cluster.disk import effect_of
from tests.simulation.cluster.metastore import METASTORE
from tests.simulation.cluster.scripted import Stage


def options(**changes: int) -> ReplicaOptions:
    """The core's numbers, short where a test would wait for them."""
    base = {
        "window_entries": 16, "max_time_lag_ms": 800, "max_record_lag": 1_000, "max_near_sync_message_lag": 100_000,
    }  # fmt: skip
    return ReplicaOptions(**{**base, **changes})


def test_the_worked_example_of_fluvio() -> None:
    """LRS 3, LEO leader 4, follower-1 3, follower-2 2: HW 2; follower-2 goes offline: LRS 2 and HW 3.

    Fluvio's page counts offsets of the last record, ours are positions, one past it: the same records, number 0 to the
    one named, are LEO 5, 4, 3 and hw 3 here, and then hw 4. A BARRIER stands at offset 0, as record 0 of the example.
    """
    stage = Stage(options=options(max_time_lag_ms=1_500))
    leader = stage.leads()
    assert leader is not None
    one, two = stage.others(leader)
    assert stage.replica(leader).leo == 1
    stage.write(leader, 2)
    stage.wait(stage.well)
    assert stage.replica(two).leo == 3
    stage.cut((leader, two), (two, leader))  # it gets no more; nobody knows yet that it is offline
    stage.write(leader, 1)
    stage.wait(lambda: stage.replica(one).durable == 4)
    stage.pass_ms(1_000)
    stage.world.network.slow_down(leader, one, 1_300, 2_000)
    stage.write(leader, 1)  # follower-1 gets this one late
    stage.wait(lambda: stage.replica(leader).durable == 5)
    ends = {name: stage.replica(name).leo for name in (leader, one, two)}
    assert ends == {leader: 5, one: 4, two: 3}  # LEO 4, 3, 2 in the words of the example
    assert stage.in_sync() == {leader, one, two}  # LRS = 3
    assert stage.replica(leader).high_watermark == 3  # HW = 2
    stage.wait(lambda: stage.replica(leader).high_watermark > 3)
    assert stage.in_sync() == {leader, one}  # LRS = 2, confirmed by the metastore before anything is applied
    assert stage.replica(leader).high_watermark == 4  # HW = 3: record 3 is on both; record 4 waits for follower-1
    assert stage.replica(one).leo == 4
    stage.wait(lambda: stage.acked() == 4)
    assert stage.replica(leader).high_watermark == 5


def test_a_member_far_behind_leaves_never_below_min_isr_goes_on_receiving_and_returns() -> None:
    """Fluvio's lagging follower: its hw is more than the record lag behind, so it leaves the ISR; what is sent it still
    gets; caught up, it is back. Of two laggards only one leaves, since min-ISR must stay."""
    stage = Stage(options=options(max_record_lag=10, max_time_lag_ms=8_000, window_entries=1_000))
    leader = stage.leads()
    assert leader is not None
    one, two = stage.others(leader)
    for name in (one, two):  # they hear everything, and late
        stage.world.network.slow_down(leader, name, 700, 6_000)
    for _ in range(60):
        stage.write(leader, 4)
        stage.pass_ms(60)
        assert len(stage.in_sync()) >= 2
    assert stage.world.counts["shrinks"] > 0
    out = ({one, two} - stage.in_sync()).pop()
    before = stage.replica(out).leo
    stage.pass_ms(400)
    assert stage.replica(out).leo > before
    stage.wait(stage.well)
    assert stage.in_sync() == {leader, one, two}


def test_below_min_isr_nothing_is_applied_and_writes_are_refused() -> None:
    """A stall: the leader alone takes no writes and applies none, its REASON says whom it waits for, and reads that it
    can confirm go on; when a member is back, what was appended is committed."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    one, two = stage.others(leader)
    stage.write(leader, 1)
    stage.wait(stage.well)
    applied = stage.replica(leader).applied
    stage.cut((leader, one), (one, leader), (leader, two), (two, leader))
    assert stage.write(leader, 2) is None
    stage.wait(lambda: stage.in_sync() == {leader})
    assert stage.eligible() == {one, two}
    stage.pass_ms(200)
    assert stage.replica(leader).applied == applied
    assert stage.write(leader) == "not-enough-replicas"
    assert stage.replica(leader).reason == f"stalled: below min-ISR (1 of 2 in sync; waits for {one}, {two})"
    assert stage.acked() == 1
    stage.join()
    stage.wait(lambda: stage.acked() == 3)
    stage.wait(stage.well)


def test_the_last_replica_standing_loses_its_disk_and_nothing_is_lost() -> None:
    """H9, R-ELR: two leave, the third loses everything; who left below min-ISR may be elected, and leads."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    one, two = stage.others(leader)
    stage.write(leader, 3)
    stage.wait(stage.well)
    for name in (one, two):
        stage.world.nodes[name].gone = True
        stage.process(name).die("for now")
    stage.wait(lambda: stage.in_sync() == {leader})
    assert stage.eligible() == {one, two}
    stage.world.nodes[leader].replace_disk()
    stage.wait(lambda: stage.record.status is PartitionStatus.OFFLINE)
    assert stage.record.reason.startswith("waits for")
    for name in (one, two):
        stage.world.nodes[name].gone = False
        stage.world.nodes[name].start()
    stage.wait(stage.well)
    assert stage.leads() in (one, two)
    assert stage.world.counts["elr_elected"] == 1
    assert stage.acked() == 3
    stage.world.checkers.final()


@pytest.mark.parametrize("arrives", [True, False])
def test_an_expansion_without_an_answer_counts_until_the_version_has_moved(arrives: bool) -> None:
    """H13, H14, R-MAX: from the moment it is proposed the member must acknowledge every commit, whether the write has
    arrived or not; the same bytes are repeated; in the end it is in sync."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    one, two = stage.others(leader)
    stage.cut((leader, two), (two, leader))
    stage.write(leader)
    stage.wait(lambda: two not in stage.in_sync())
    stage.pass_ms(5_200)  # its pause before it may join again
    stage.cut((METASTORE, leader) if arrives else (leader, METASTORE))
    stage.world.network.join(leader, two)
    stage.world.network.join(two, leader)
    stage.wait(lambda: stage.process(leader).undecided[0])
    proposed = stage.process(leader).undecided[0][0]
    assert {member.node for member in proposed.isr} == {leader, one, two}
    stage.pass_ms(100)
    assert (two in stage.in_sync()) is arrives
    stage.cut((leader, two))
    hw = stage.replica(leader).high_watermark
    assert stage.write(leader) is None
    stage.pass_ms(300)
    assert stage.replica(one).durable == hw + 1
    assert stage.replica(leader).high_watermark == hw  # the proposed one must have it, too
    stage.pass_ms(700)
    assert len(stage.process(leader).undecided[0]) > 1 or arrives
    assert all(write == proposed for write in stage.process(leader).undecided[0])
    stage.join()
    stage.wait(stage.well)
    assert stage.in_sync() == {leader, one, two}


def test_a_zombie_leader_acknowledges_nothing_and_serves_no_read() -> None:
    """H23, H24: cut off, it is replaced; what it still appends is dropped, and a read there is never served."""
    stage = Stage()
    zombie = stage.leads()
    assert zombie is not None
    stage.write(zombie, 2)
    stage.wait(stage.well)
    stage.cut_off(zombie)
    stage.pass_ms(100)
    assert stage.write(zombie, 1) is None
    stage.wait(lambda: stage.leads() not in (None, zombie))
    leader = stage.leads()
    assert leader is not None
    assert stage.replica(zombie).role is ReplicaRole.LEADER  # for all it knows
    stage.write(leader, 2)
    stage.wait(lambda: stage.acked() == 4)
    served = stage.world.counts["reads_served"]
    stage.process(zombie).read(0)
    stage.write(zombie, 1)
    stage.pass_ms(2_000)
    assert stage.world.counts["reads_served"] == served
    stage.join()
    stage.wait(stage.well)
    assert (stage.acked(), stage.client.lost) == (4, 2)
    assert stage.world.counts["truncations"] == 1
    assert not stage.process(zombie).reads


def test_a_returning_leader_becomes_a_follower() -> None:
    """Fluvio: the failed leader rejoins, detects the new leader, and follows it, in its epoch."""
    stage = Stage()
    first = stage.leads()
    assert first is not None
    stage.write(first, 2)
    stage.wait(stage.well)
    stage.world.nodes[first].gone = True
    stage.process(first).die("killed")
    stage.wait(lambda: stage.leads() not in (None, first))
    epoch = stage.record.epoch
    stage.world.nodes[first].gone = False
    stage.world.nodes[first].start()
    stage.wait(stage.well)
    assert stage.is_follower(first)
    assert stage.record.epoch == epoch == 2


def test_after_a_silent_candidate_comes_the_next() -> None:
    """The wait-for-response timer: a candidate whose disk hangs says nothing, and another is nominated."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    stage.wait(stage.well)
    others = stage.others(leader)
    slow = min(others)
    stage.world.nodes[slow].disk.slow = 100_000
    stage.world.nodes[leader].gone = True
    stage.process(leader).die("killed")
    stage.wait(lambda: stage.record.candidate is not None and stage.record.candidate.node == slow)
    stage.wait(lambda: stage.record.leader is not None and stage.record.leader.node == max(others))
    assert stage.record.epoch == 3
    stage.world.nodes[leader].gone = False
    stage.world.nodes[leader].start()
    stage.wait(lambda: stage.leads() == max(others))


def test_leadership_is_handed_to_whom_it_is_asked_for() -> None:
    """R-RESIGN: it drains, resigns, the target is elected, and no acknowledged or appended item is lost."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    target = stage.others(leader)[1]
    stage.write(leader, 5)
    stage.process(leader).post(0, ev.TransferLeadership(target, stage.world.now_ms + 3_000))
    assert stage.write(leader) == "not-ready"
    stage.wait(lambda: stage.leads() == target)
    stage.wait(stage.well)
    assert (stage.acked(), stage.client.lost) == (5, 0)
    assert stage.record.epoch == 2


def test_a_hand_over_that_cannot_happen_is_given_up() -> None:
    """R-RESIGN: the target is not reached until the deadline; the leader leads on, and takes writes again."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    target = stage.others(leader)[0]
    stage.cut((leader, target))
    stage.write(leader, 2)
    stage.process(leader).post(0, ev.TransferLeadership(target, stage.world.now_ms + 400))
    assert stage.write(leader) == "not-ready"
    stage.wait(lambda: stage.replica(leader).role is ReplicaRole.LEADER)
    assert stage.write(leader) is None
    assert stage.record.epoch == 1


def test_a_stopping_node_gives_everything_up_and_is_dropped() -> None:
    """H10: it resigns, says that it leaves, is taken out of the ISR, and is not added again while it is leaving."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    stage.write(leader, 2)
    stage.wait(stage.well)
    stage.world.nodes[leader].stop()
    stage.wait(lambda: stage.leads() not in (None, leader))
    assert stage.world.counts["stopped_clean"] == 1
    assert stage.client.lost == 0
    stage.wait(stage.well)


def test_setting_min_isr_lower_does_not_clear_the_elr() -> None:
    """H22: only the leader empties the ELR, by a write of its own, and commits nothing before."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    one, two = stage.others(leader)
    stage.cut((leader, one), (one, leader), (leader, two), (two, leader))
    stage.write(leader)
    stage.wait(lambda: stage.in_sync() == {leader})
    stage.world.metastore.write("c1", replace(stage.record, min_isr=1), (), lambda *_: None)
    stage.wait(lambda: stage.record.min_isr == 1)
    assert stage.eligible() == {one, two}
    assert stage.acked() == 0
    stage.wait(lambda: stage.acked() == 1)
    assert stage.eligible() == set()


def test_a_restored_copy_takes_another_gen() -> None:
    """H39: a data directory that went back acknowledged more than it has; the leader says so, it takes a new gen and
    comes back in sync under that."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    other = stage.others(leader)[0]
    stage.write(leader, 4)
    stage.wait(stage.well)
    node = stage.world.nodes[other]
    log_id = node.disk.log_ids[0]
    stage.world.checkers.beyond_promise = True
    stage.process(other).die("its directory is restored from an old copy")
    log, store = node.disk.logs[0], node.disk.stores[0]
    del log.entries[2:], store.history[2:]
    log.sync()
    store.latest = effect_of(store.history)
    store.floor = 2
    stage.wait(lambda: stage.world.counts["gen_renewed"])
    stage.wait(stage.well)
    assert node.disk.log_ids[0] > log_id


def test_a_copy_that_the_log_does_not_reach_takes_rows() -> None:
    """A replaced disk where the others have trimmed: it takes rows while writes go on, and is in sync again."""
    stage = Stage()
    leader = stage.leads()
    assert leader is not None
    other = stage.others(leader)[0]
    stage.write(leader, 6)
    stage.wait(stage.well)
    stage.world.plan.trims = 0.0
    for name in (leader, stage.others(leader)[1]):
        process = stage.process(name)
        process.checkpoint()
        process.trim(0, 4)
    stage.world.nodes[other].replace_disk()
    stage.wait(lambda: stage.world.counts["FollowRejected_beyond-log"])
    stage.write(leader, 2)
    stage.wait(lambda: stage.acked() == 8)
    stage.wait(stage.well)
    assert other in stage.in_sync()
    assert stage.world.counts["far_rounds"] >= 1
    assert stage.world.nodes[other].disk.logs[0].start > 0


@pytest.mark.parametrize("seed_plan", [{"node_count": 3, "factor": 2, "min_isr": 2}, {"node_count": 5, "factor": 5}])
def test_other_shapes_lead_and_commit(seed_plan: dict[str, Any]) -> None:
    """RF 2 and RF 5: one write is acknowledged and everywhere."""
    stage = Stage(**seed_plan)
    leader = stage.leads()
    assert leader is not None
    stage.write(leader)
    stage.wait(stage.well)
    assert stage.acked() == 1

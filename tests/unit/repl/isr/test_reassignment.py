"""R-RF: newcomers join and leaving replicas are removed, by the leader alone and after all remaining members have
confirmed (H21)."""

from __future__ import annotations

from dataclasses import replace

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.lag_detector import REJOIN_HALF_MS, REJOIN_MAX_MS, REJOIN_MIN_MS, RejoinBackoff
from isthmus.repl.isr.reassignment import HAND_OVER_MS, HAND_OVER_PAUSE_MS, REFUSED_PAUSE_MS
from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.record import Member, PartitionStatus
from tests.support.replica_group import ReplicaGroup

FIVE = ("n1", "n2", "n3", "n4", "n5")
THREE = FIVE[:3]


def five_nodes(min_isr: int = 2) -> ReplicaGroup:
    """Five nodes; the first three hold the partition, n1 leads, ten entries are committed."""
    group = ReplicaGroup(min_isr, ReplicaOptions(max_time_lag_ms=1_000), FIVE, THREE)
    group.elect("n1")
    group.append(10)
    group.advance_time(500)
    return group


def change(group: ReplicaGroup, adding: tuple[str, ...] = (), removing: tuple[str, ...] = ()) -> None:
    """Writes a controller's change of the record."""
    replicas = tuple(dict.fromkeys((*group.record.replicas, *adding)))
    group.write(replace(group.record, replicas=replicas, adding=adding, removing=removing))


def in_sync(group: ReplicaGroup) -> set[str]:
    return {member.node for member in group.record.isr}


def test_a_newcomer_catches_up_joins_and_the_change_is_over() -> None:
    """Without replicas to remove, the change ends once all new replicas are in sync; their logs are equal."""
    group = five_nodes()
    change(group, adding=("n4", "n5"))
    group.advance_time(2_000)
    assert (group.record.adding, group.record.removing) == ((), ())
    assert group.record.replicas == FIVE
    assert in_sync(group) == set(FIVE)
    group.append(3)
    assert {len(group.logs[node]) for node in FIVE} == {14}


def test_a_replica_that_was_removed_and_added_again_unseen_asks_to_follow() -> None:
    """It was not notified of its removal, and the leader has dropped it: the record that adds it again makes it send a
    request; otherwise both would wait for each other."""
    group = five_nodes()
    group.isolated.add("n3")
    change(group, adding=("n4",), removing=("n3",))
    group.advance_time(2_000)
    assert group.record.replicas == ("n1", "n2", "n4")
    assert group.replicas["n3"].following
    group.isolated.discard("n3")
    change(group, adding=("n3",), removing=("n4",))
    group.advance_time(4_000)
    assert group.record.replicas == ("n1", "n2", "n3")
    assert in_sync(group) == {"n1", "n2", "n3"}


def test_a_replaced_replica_leaves_in_one_write_after_all_remaining_members_confirmed() -> None:
    """The write removes it from replicas and ISR, checks the log ids of all remaining members, and follows their
    answers."""
    group = five_nodes()
    leader = group.replicas["n1"]
    change(group, adding=("n4",), removing=("n3",))
    group.advance_time(2_000)
    assert group.record.replicas == ("n1", "n2", "n4")
    assert in_sync(group) == {"n1", "n2", "n4"}
    assert (group.record.adding, group.record.removing, group.record.reason) == ((), (), "n3 removed")
    assert group.replicas["n3"].role is ReplicaRole.IDLE
    assert group.replicas["n3"].reason.startswith("removed: this node is no longer a replica; n1 leads")
    assert [view.node for view in leader.followers()] == ["n2", "n4"]
    group.append(1)
    assert (len(group.logs["n3"]), len(group.logs["n4"])) == (11, 12)


def test_the_removal_checks_the_log_ids_of_all_remaining_members() -> None:
    """A remaining member that the metastore does not have refuses the removal; it is tried again after a pause."""
    group = five_nodes()
    group.unregistered = {"n2"}
    change(group, removing=("n3",))
    group.advance_time(2_000)
    assert group.record.replicas == THREE
    assert in_sync(group) == set(THREE)
    group.unregistered = set()
    group.advance_time(2_000 + 2 * REFUSED_PAUSE_MS)
    assert group.record.replicas == ("n1", "n2")


def test_no_replica_is_removed_while_a_remaining_member_is_silent() -> None:
    """The leader waits, names the member it waits for, asks again, and removes the replica as soon as it has the
    answer."""
    group = five_nodes()
    group.isolated = {"n2"}
    change(group, removing=("n3",))
    group.advance_time(10_000)
    assert group.record.replicas == THREE
    assert group.replicas["n1"].reassigning == (
        "removes n3: waits for n2 to confirm that all below 11 is durable there"
    )
    assert "removes n3: waits for n2" in group.replicas["n1"].reason
    group.isolated = set()
    group.deliver("n2", ev.RecordSeen(group.record))
    group.deliver("n2", ev.LinkUp("n1"))
    group.advance_time(11_000)
    assert group.record.replicas == ("n1", "n2")


def test_an_answer_of_another_log_id_or_below_the_commit_does_not_count() -> None:
    """H21: a replaced disk answers with its log id, and a log that does not follow answers 0; neither permits a
    removal."""
    group = five_nodes()
    leader = group.replicas["n1"]
    group.isolated = {"n2", "n3"}
    change(group, removing=("n3",))
    effects = leader.step(ev.RecordSeen(group.record), group.now_ms)
    probes = [e.message for e in effects if isinstance(e, fx.Send) and isinstance(e.message, ms.LeadershipCheck)]
    assert probes == []  # asked when the record came
    leader.step(ev.Tick(), group.now_ms + 200)
    question = leader._role_state.reassignment.check  # type: ignore[union-attr]
    for log_id, durable in ((2, 11), (1, 10), (1, 0)):
        effects = leader.step(ev.Received("n2", ms.LeadershipCheckOk(1, log_id, question.nonce, durable)), group.now_ms)
        assert not [e for e in effects if isinstance(e, fx.WriteRecord)]
    late = leader.step(ev.Received("n2", ms.LeadershipCheckOk(1, 1, question.nonce - 1, 11)), group.now_ms)
    assert not [e for e in late if isinstance(e, fx.WriteRecord)]
    effects = leader.step(ev.Received("n2", ms.LeadershipCheckOk(1, 1, question.nonce, 11)), group.now_ms)
    writes = [e for e in effects if isinstance(e, fx.WriteRecord)]
    assert [(w.record.replicas, w.needs) for w in writes] == [(("n1", "n2"), (Member("n1", 1), Member("n2", 1)))]


def test_any_record_change_repeats_the_durability_check() -> None:
    """Answers for an older record remove no replica."""
    group = five_nodes()
    leader = group.replicas["n1"]
    group.isolated = {"n2"}
    change(group, removing=("n3",))
    nonce = leader._role_state.reassignment.check.nonce  # type: ignore[union-attr]
    group.write(replace(group.record, min_isr=1))
    effects = leader.step(ev.Received("n2", ms.LeadershipCheckOk(1, 1, nonce, 11)), group.now_ms)
    assert not [e for e in effects if isinstance(e, fx.WriteRecord)]
    assert leader._role_state.reassignment.check.nonce > nonce  # type: ignore[union-attr]


def test_no_replica_is_removed_while_too_few_remaining_members_are_in_sync() -> None:
    """The remaining ISR must have min-ISR members; until then the reason names the missing ones."""
    group = five_nodes()
    group.unregistered = {"n2"}
    group.write(replace(group.record, isr=group.record.isr - {Member("n2", 1)}))
    change(group, removing=("n3",))
    group.advance_time(3_000)
    assert group.record.replicas == THREE
    assert group.replicas["n1"].reassigning == "removes n3: waits for n2: 1 in sync stay, min-ISR is 2 then"


def test_no_replica_is_removed_while_the_elr_is_not_empty() -> None:
    """A member of the ELR may hold entries that no other member of the guard can confirm: the ELR is emptied first, by
    its own rule."""
    group = five_nodes(min_isr=3)
    group.write(replace(group.record, isr=frozenset({Member("n1", 1), Member("n2", 1)}), elr={Member("n3", 1)}))
    group.isolated = {"n3"}
    change(group, removing=("n3",))
    group.advance_time(600)
    # With two remaining replicas min-ISR is two: a write of its own empties the ELR, then n3 is removed.
    assert (group.record.replicas, group.record.elr) == (("n1", "n2"), frozenset())
    versions = group.record.version
    assert versions >= 4


def test_a_leader_that_is_to_go_hands_over_to_a_member_that_stays() -> None:
    """Once the newcomer is in sync the leader drains and removes itself, with a remaining member as preferred."""
    group = five_nodes()
    change(group, adding=("n4",), removing=("n1",))
    group.advance_time(2_000)
    assert group.record.status is PartitionStatus.ELECTION
    assert group.record.leader is None
    assert group.record.preferred in {"n2", "n3", "n4"}
    assert group.record.replicas == ("n1", "n2", "n3", "n4")
    group.elect(group.record.preferred or "")
    group.advance_time(4_000)
    assert group.record.replicas == ("n2", "n3", "n4")
    assert group.replicas["n1"].role is ReplicaRole.IDLE


def test_a_hand_over_that_does_not_drain_is_tried_again_after_a_pause() -> None:
    """The leader that is to be removed continues to lead, with a reason, and tries again."""
    group = five_nodes()
    group.slow_disks = {"n2", "n3"}
    group.deliver("n1", ev.OptionsChanged(ReplicaOptions(max_time_lag_ms=600_000)))
    group.append(1)
    change(group, removing=("n1",))
    assert group.replicas["n1"].role is ReplicaRole.RESIGNING
    group.advance_time(group.now_ms + HAND_OVER_MS + 100)
    assert group.replicas["n1"].role is ReplicaRole.LEADER
    assert "n1 is to hand over to one of n2, n3 first" in group.replicas["n1"].reason
    group.slow_disks = set()
    group.durable("n2")
    group.durable("n3")
    group.advance_time(group.now_ms + HAND_OVER_PAUSE_MS + 100)
    assert group.record.leader is None


def test_a_cancelled_change_removes_the_newcomers_by_the_same_rule() -> None:
    """The former newcomers are the ones to remove, so the replicas are the original ones."""
    group = five_nodes()
    group.isolated = {"n5"}
    change(group, adding=("n4", "n5"), removing=("n3",))
    group.advance_time(2_000)
    assert group.record.adding == ("n4", "n5")
    assert in_sync(group) == {"n1", "n2", "n3", "n4"}
    assert group.replicas["n1"].reassigning == ("adds n4, n5 and removes n3: waits for n5: has not asked to follow yet")
    group.write(replace(group.record, adding=(), removing=("n4", "n5")))
    group.advance_time(3_000)
    assert group.record.replicas == THREE
    assert in_sync(group) == set(THREE)


def test_the_reason_names_how_far_a_newcomer_is_behind() -> None:
    """While the newcomer catches up, the reason has its name and the number of missing entries."""
    group = five_nodes()
    group.append(500)
    group.slow_disks = {"n4"}
    change(group, adding=("n4",))
    group.advance_time(group.now_ms + 500)
    assert group.replicas["n1"].reassigning == "adds n4: waits for n4: 511 entries behind"
    group.isolated = {"n4"}
    group.deliver("n1", ev.LinkDown("n4"))
    assert group.replicas["n1"].reassigning == "adds n4: waits for n4: not connected"


def test_growth_to_more_than_are_in_sync_waits_until_min_isr_holds_afterwards() -> None:
    """A change never leaves a partition that refuses writes because too few members are in sync."""
    group = ReplicaGroup(3, ReplicaOptions(max_time_lag_ms=1_000), FIVE, ("n1", "n2"))
    group.elect("n1")
    group.isolated = {"n2"}
    group.append(1)
    group.advance_time(2_000)
    change(group, adding=("n3",))
    group.advance_time(4_000)
    assert in_sync(group) == {"n1", "n3"}
    assert group.record.adding == ("n3",)
    assert group.replicas["n1"].reassigning == "adds n3: waits for n2: 2 in sync stay, min-ISR is 3 then"


def test_pauses_double_while_a_member_fails_and_are_halved_in_sync() -> None:
    """A member that is removed again and again waits longer, up to a minute; each minute in sync halves the wait."""
    pauses = RejoinBackoff()
    assert pauses.why_out("n2", 0) == ""
    now_ms, waited = 0, []
    for _ in range(6):
        pauses.leaves("n2", now_ms)
        end_ms = pauses.next_ms(["n2"], now_ms)
        assert end_ms is not None
        assert not pauses.allows("n2", end_ms - 1, needed=False)
        assert pauses.allows("n2", end_ms - 1, needed=True)
        waited.append(end_ms - now_ms)
        pauses.joins("n2", end_ms)
        now_ms = end_ms + 1_000
    assert waited == [REJOIN_MIN_MS, 10_000, 20_000, 40_000, REJOIN_MAX_MS, REJOIN_MAX_MS]
    pauses.leaves("n2", now_ms + 2 * REJOIN_HALF_MS)
    assert pauses.next_ms(["n2"], 0) == now_ms + 2 * REJOIN_HALF_MS + REJOIN_MAX_MS // 2
    pauses.joins("n2", now_ms + 3 * REJOIN_HALF_MS)
    pauses.leaves("n2", now_ms + 60 * REJOIN_HALF_MS)
    assert pauses.next_ms(["n2"], 0) == now_ms + 60 * REJOIN_HALF_MS + REJOIN_MIN_MS

"""R-RF: newcomers join, those who are to go leave, by the leader alone and after everybody who stays was asked."""

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
from tests.support.replica_group import Together

FIVE = ("n1", "n2", "n3", "n4", "n5")
THREE = FIVE[:3]


def a_world(min_isr: int = 2) -> Together:
    """Five nodes; the first three hold the partition, n1 leads, ten entries are committed."""
    world = Together(min_isr, ReplicaOptions(max_time_lag_ms=1_000), FIVE, THREE)
    world.elect("n1")
    world.append(10)
    world.pass_time(500)
    return world


def change(world: Together, adding: tuple[str, ...] = (), removing: tuple[str, ...] = ()) -> None:
    """What a controller writes."""
    replicas = tuple(dict.fromkeys((*world.record.replicas, *adding)))
    world.write(replace(world.record, replicas=replicas, adding=adding, removing=removing))


def in_sync(world: Together) -> set[str]:
    return {member.node for member in world.record.isr}


def test_a_newcomer_catches_up_joins_and_the_change_is_over() -> None:
    """With nobody to go, the record is as it is to be once all who were to join are in sync; their logs are equal."""
    world = a_world()
    change(world, adding=("n4", "n5"))
    world.pass_time(2_000)
    assert (world.record.adding, world.record.removing) == ((), ())
    assert world.record.replicas == FIVE
    assert in_sync(world) == set(FIVE)
    world.append(3)
    assert {len(world.logs[node]) for node in FIVE} == {14}


def test_a_replica_that_was_removed_and_added_again_unseen_asks_to_follow() -> None:
    """It never heard that it was removed, and the leader has forgotten it: the record that adds it again tells it so,
    or both would wait for each other until something else happens."""
    world = a_world()
    world.mute.add("n3")
    change(world, adding=("n4",), removing=("n3",))
    world.pass_time(2_000)
    assert world.record.replicas == ("n1", "n2", "n4")
    assert world.replicas["n3"].following
    world.mute.discard("n3")
    change(world, adding=("n3",), removing=("n4",))
    world.pass_time(4_000)
    assert world.record.replicas == ("n1", "n2", "n3")
    assert in_sync(world) == {"n1", "n2", "n3"}


def test_a_replaced_replica_leaves_in_one_write_after_everybody_who_stays_was_asked() -> None:
    """The write takes it out of replicas and ISR, checks the gens of all who stay, and follows their answers."""
    world = a_world()
    leader = world.replicas["n1"]
    change(world, adding=("n4",), removing=("n3",))
    world.pass_time(2_000)
    assert world.record.replicas == ("n1", "n2", "n4")
    assert in_sync(world) == {"n1", "n2", "n4"}
    assert (world.record.adding, world.record.removing, world.record.reason) == ((), (), "n3 removed")
    assert world.replicas["n3"].role is ReplicaRole.IDLE
    assert world.replicas["n3"].reason.startswith("removed: this node is no replica any more; n1 leads")
    assert [view.node for view in leader.followers()] == ["n2", "n4"]
    world.append(1)
    assert (len(world.logs["n3"]), len(world.logs["n4"])) == (11, 12)


def test_the_write_that_removes_checks_the_gens_of_all_who_stay() -> None:
    """A stayer that the metastore does not find refuses the removal; it is tried again after a pause."""
    world = a_world()
    world.unregistered = {"n2"}
    change(world, removing=("n3",))
    world.pass_time(2_000)
    assert world.record.replicas == THREE
    assert in_sync(world) == set(THREE)
    world.unregistered = set()
    world.pass_time(2_000 + 2 * REFUSED_PAUSE_MS)
    assert world.record.replicas == ("n1", "n2")


def test_nobody_is_removed_while_a_member_that_stays_is_silent() -> None:
    """The leader waits, says for whom, asks again, and removes as soon as it has the answer."""
    world = a_world()
    world.mute = {"n2"}
    change(world, removing=("n3",))
    world.pass_time(10_000)
    assert world.record.replicas == THREE
    assert world.replicas["n1"].reassigning == (
        "removes n3: waits for n2 to confirm that all below 11 is durable there"
    )
    assert "removes n3: waits for n2" in world.replicas["n1"].reason
    world.mute = set()
    world.tell("n2", ev.RecordSeen(world.record))
    world.tell("n2", ev.LinkUp("n1"))
    world.pass_time(11_000)
    assert world.record.replicas == ("n1", "n2")


def test_an_answer_of_another_copy_or_of_less_than_is_committed_does_not_count() -> None:
    """H21: a replaced disk answers with its gen, a log that does not follow says 0; neither lets anybody go."""
    world = a_world()
    leader = world.replicas["n1"]
    world.mute = {"n2", "n3"}
    change(world, removing=("n3",))
    effects = leader.step(ev.RecordSeen(world.record), world.now_ms)
    probes = [e.message for e in effects if isinstance(e, fx.Send) and isinstance(e.message, ms.LeadershipCheck)]
    assert probes == []  # asked when the record came
    leader.step(ev.Tick(), world.now_ms + 200)
    question = leader._role_state.reassignment.check  # type: ignore[union-attr]
    for log_id, durable in ((2, 11), (1, 10), (1, 0)):
        effects = leader.step(ev.Received("n2", ms.LeadershipCheckOk(1, log_id, question.nonce, durable)), world.now_ms)
        assert not [e for e in effects if isinstance(e, fx.WriteRecord)]
    late = leader.step(ev.Received("n2", ms.LeadershipCheckOk(1, 1, question.nonce - 1, 11)), world.now_ms)
    assert not [e for e in late if isinstance(e, fx.WriteRecord)]
    effects = leader.step(ev.Received("n2", ms.LeadershipCheckOk(1, 1, question.nonce, 11)), world.now_ms)
    writes = [e for e in effects if isinstance(e, fx.WriteRecord)]
    assert [(w.record.replicas, w.needs) for w in writes] == [(("n1", "n2"), (Member("n1", 1), Member("n2", 1)))]


def test_whatever_moves_the_record_asks_anew() -> None:
    """Answers to the question of an older record remove nobody."""
    world = a_world()
    leader = world.replicas["n1"]
    world.mute = {"n2"}
    change(world, removing=("n3",))
    nonce = leader._role_state.reassignment.check.nonce  # type: ignore[union-attr]
    world.write(replace(world.record, min_isr=1))
    effects = leader.step(ev.Received("n2", ms.LeadershipCheckOk(1, 1, nonce, 11)), world.now_ms)
    assert not [e for e in effects if isinstance(e, fx.WriteRecord)]
    assert leader._role_state.reassignment.check.nonce > nonce  # type: ignore[union-attr]


def test_nobody_is_removed_while_too_few_of_those_who_stay_are_in_sync() -> None:
    """The ISR that is left must have min-ISR members; until then the leader says whom it waits for."""
    world = a_world()
    world.unregistered = {"n2"}
    world.write(replace(world.record, isr=world.record.isr - {Member("n2", 1)}))
    change(world, removing=("n3",))
    world.pass_time(3_000)
    assert world.record.replicas == THREE
    assert world.replicas["n1"].reassigning == "removes n3: waits for n2: 1 in sync stay, min-ISR is 2 then"


def test_nobody_is_removed_while_others_than_the_isr_may_be_elected() -> None:
    """A member of the ELR may hold what nobody else in the guard will confirm: it is let go first, by its own rule."""
    world = a_world(min_isr=3)
    world.write(replace(world.record, isr=frozenset({Member("n1", 1), Member("n2", 1)}), elr={Member("n3", 1)}))
    world.mute = {"n3"}
    change(world, removing=("n3",))
    world.pass_time(600)
    # with two replicas to stay min-ISR is two: the ELR is emptied by a write of its own, then n3 goes
    assert (world.record.replicas, world.record.elr) == (("n1", "n2"), frozenset())
    versions = world.record.version
    assert versions >= 4


def test_a_leader_that_is_to_go_hands_over_to_a_member_that_stays() -> None:
    """Once the newcomer is in sync it drains and has itself taken out, with a member that stays as preferred."""
    world = a_world()
    change(world, adding=("n4",), removing=("n1",))
    world.pass_time(2_000)
    assert world.record.status is PartitionStatus.ELECTION
    assert world.record.leader is None
    assert world.record.preferred in {"n2", "n3", "n4"}
    assert world.record.replicas == ("n1", "n2", "n3", "n4")
    world.elect(world.record.preferred or "")
    world.pass_time(4_000)
    assert world.record.replicas == ("n2", "n3", "n4")
    assert world.replicas["n1"].role is ReplicaRole.IDLE


def test_a_hand_over_that_does_not_drain_is_tried_again_after_a_pause() -> None:
    """The leader that is to go leads on, and says so, and tries again."""
    world = a_world()
    world.slow = {"n2", "n3"}
    world.replicas["n1"].reconfigure(ReplicaOptions(max_time_lag_ms=600_000), world.now_ms)
    world.append(1)
    change(world, removing=("n1",))
    assert world.replicas["n1"].role is ReplicaRole.RESIGNING
    world.pass_time(world.now_ms + HAND_OVER_MS + 100)
    assert world.replicas["n1"].role is ReplicaRole.LEADER
    assert "n1 is to hand over to one of n2, n3 first" in world.replicas["n1"].reason
    world.slow = set()
    world.durable("n2")
    world.durable("n3")
    world.pass_time(world.now_ms + HAND_OVER_PAUSE_MS + 100)
    assert world.record.leader is None


def test_a_cancelled_change_lets_the_newcomers_go_by_the_same_rule() -> None:
    """With those who were to join now to go, the replicas are what they were."""
    world = a_world()
    world.mute = {"n5"}
    change(world, adding=("n4", "n5"), removing=("n3",))
    world.pass_time(2_000)
    assert world.record.adding == ("n4", "n5")
    assert in_sync(world) == {"n1", "n2", "n3", "n4"}
    assert world.replicas["n1"].reassigning == ("adds n4, n5 and removes n3: waits for n5: has not asked to follow yet")
    world.write(replace(world.record, adding=(), removing=("n4", "n5")))
    world.pass_time(3_000)
    assert world.record.replicas == THREE
    assert in_sync(world) == set(THREE)


def test_a_newcomer_of_which_the_leader_needs_more_is_told_by_how_much() -> None:
    """The reason names who is late and by how many entries, while the newcomer catches up."""
    world = a_world()
    world.append(500)
    world.slow = {"n4"}
    change(world, adding=("n4",))
    world.pass_time(world.now_ms + 500)
    assert world.replicas["n1"].reassigning == "adds n4: waits for n4: 511 entries behind"
    world.mute = {"n4"}
    world.tell("n1", ev.LinkDown("n4"))
    assert world.replicas["n1"].reassigning == "adds n4: waits for n4: not connected"


def test_growth_to_more_than_are_in_sync_waits_until_min_isr_holds_afterwards() -> None:
    """A change never leaves a partition that must not be written since too few are in sync."""
    world = Together(3, ReplicaOptions(max_time_lag_ms=1_000), FIVE, ("n1", "n2"))
    world.elect("n1")
    world.mute = {"n2"}
    world.append(1)
    world.pass_time(2_000)
    change(world, adding=("n3",))
    world.pass_time(4_000)
    assert in_sync(world) == {"n1", "n3"}
    assert world.record.adding == ("n3",)
    assert world.replicas["n1"].reassigning == "adds n3: waits for n2: 2 in sync stay, min-ISR is 3 then"


def test_pauses_double_while_a_member_fails_and_are_halved_in_sync() -> None:
    """Thrown out again and again a member waits longer, up to a minute; each minute in sync halves that."""
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

"""The controller's decisions about one partition: the elected member, the time of the election, and the record's
reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.controller import election
from isthmus.repl.controller.election import (
    ASK_MS,
    BACK_OFF_MAX_MS,
    BACK_OFF_MIN_MS,
    RESPONSE_MAX_MS,
    RESPONSE_MIN_MS,
    Decision,
    ElectionTimer,
    NoAction,
    ProposeRecord,
    WaitUntil,
    asked,
    elect,
    watched,
)
from isthmus.repl.isr.membership import guard
from isthmus.repl.isr.reasons import overtaken
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord, PartitionStatus, Registration
from isthmus.repl.model.vclock import MAX_EPOCH
from tests.simulation.cluster import invariants
from tests.support.replica_builders import MEMBER, NODE, a_record, registered
from tests.support.samples import share

A, B, C = Member("a", 1), Member("b", 2), Member("c", 3)
ALL = {"a": registered("a", 101, 1), "b": registered("b", 102, 2), "c": registered("c", 103, 3)}


def three(**changes: object) -> PartitionRecord:
    """Three replicas, all in sync, min-ISR 2, epoch 6, a leads."""
    base = PartitionRecord(
        3,
        "default",
        3,
        12,
        ("a", "b", "c"),
        epoch=6,
        status=PartitionStatus.ONLINE,
        leader=Incarnation("a", 101),
        isr=frozenset({A, B, C}),
        min_isr=2,
        version=30,
    )
    return replace(base, **changes)


def in_election(**changes: object) -> PartitionRecord:
    """`three` without a leader."""
    return three(**{"status": PartitionStatus.ELECTION, "leader": None, **changes})


def found(node: str, session_id: int, **changes: object) -> PartitionRecord:
    """`three` with a candidate in epoch 7."""
    return three(
        **{
            "status": PartitionStatus.CANDIDATE_FOUND,
            "leader": None,
            "candidate": Incarnation(node, session_id),
            "epoch": 7,
            "tried": frozenset({node}),
            **changes,
        }
    )


def without(*nodes: str) -> dict[str, Registration]:
    """All registrations but these."""
    return {name: registration for name, registration in ALL.items() if name not in nodes}


def written(decision: Decision) -> PartitionRecord:
    """The record to be written."""
    assert isinstance(decision, ProposeRecord), decision
    return decision.record


def test_a_live_leader_is_left_alone() -> None:
    """If it is online and its session lives, nothing is done."""
    assert elect(three(), ALL, 0, None, ()) == NoAction("a leads")


@pytest.mark.parametrize("registrations", [without("a"), ALL | {"a": registered("a", 999, 1)}])
def test_a_leader_whose_session_is_over_is_replaced(registrations: dict[str, Registration]) -> None:
    """Its registration is gone or new: another session id is another process (R-INC). The epoch stays until a
    nomination."""
    record = written(elect(three(), registrations, 0, None, ()))
    assert (record.status, record.leader, record.epoch) == (PartitionStatus.ELECTION, None, 6)
    assert record.reason == "a is gone: its session is over"
    assert record.isr == three().isr


def test_members_whose_session_is_gone_leave_the_isr_and_stay_eligible_below_min_isr() -> None:
    """Removals keep min-ISR members in the guard: with two left none is in the ELR, with one left both are."""
    one_gone = written(elect(three(), without("b"), 0, None, ()))
    assert (one_gone.isr, one_gone.elr) == ({A, C}, frozenset())
    both_gone = written(elect(three(), without("b", "c"), 0, None, ()))
    assert (both_gone.isr, both_gone.elr) == ({A}, {B, C})
    assert both_gone.leader == Incarnation("a", 101)
    other_log = written(elect(three(), ALL | {"c": registered("c", 103, 33)}, 0, None, ()))
    assert other_log.isr == {A, B}


def test_the_smallest_lag_is_nominated_in_a_new_epoch() -> None:
    """The largest (last epoch, LEO) wins: a longer log of an older epoch loses (H12)."""
    reported = {"a": (5, 900), "b": (6, 40), "c": (6, 39)}
    record = written(elect(in_election(), ALL, 0, 0, (), reported=reported))
    assert (record.status, record.epoch) == (PartitionStatus.CANDIDATE_FOUND, 7)
    assert (record.candidate, record.tried) == (Incarnation("b", 102), {"b"})
    assert record.leader is None
    assert record.reason == "waits for b to promote itself"


def test_ties_go_to_the_fewest_leaderships_and_then_to_the_name() -> None:
    """Among equal logs the member with the fewest leaderships is nominated; then the first by name."""
    reported = dict.fromkeys("abc", (6, 40))
    by_load = written(elect(in_election(), ALL, 0, 0, (), reported=reported, leaderships={"a": 4, "b": 2, "c": 2}))
    assert by_load.candidate == Incarnation("b", 102)
    by_name = written(elect(in_election(), ALL, 0, 0, (), reported=reported))
    assert by_name.candidate == Incarnation("a", 101)


def test_equal_logs_and_loads_go_to_the_lowest_id() -> None:
    """The name decides only where ids are equal, too."""
    registrations = {name: replace(found, id=9 - found.session_id % 100) for name, found in ALL.items()}
    reported = dict.fromkeys("abc", (6, 40))
    assert written(elect(in_election(), registrations, 0, 0, (), reported=reported)).candidate == Incarnation("c", 103)


def test_a_member_that_leaves_is_dropped_while_enough_stay() -> None:
    """H10: registered as leaving, it leaves the ISR, not electable any more, unless that would go below min-ISR."""
    leaving = {name: replace(found, active=name == "a") for name, found in ALL.items()}
    one = written(elect(three(), ALL | {"c": leaving["c"]}, 0, None, ()))
    assert (one.isr, one.elr, one.reason) == ({A, B}, frozenset(), "out of sync: c leaving")
    both = written(elect(three(), leaving, 0, None, ()))
    assert (both.isr, both.elr) == ({A, C}, frozenset())
    assert elect(both, leaving, 0, None, ()) == NoAction("a leads")
    leader = ALL | {"a": replace(ALL["a"], active=False)}
    assert elect(three(), leader, 0, None, ()) == NoAction("a leads")


def test_a_new_leader_does_not_wait_for_members_that_leave() -> None:
    """A member that is leaving is not in sync under the next leader, unless that would go below min-ISR."""
    found = three(status=PartitionStatus.CANDIDATE_FOUND, leader=None, candidate=Incarnation("b", 102), epoch=7)
    promoted = {(7, "b", 102, 2)}
    leaving = ALL | {"a": replace(ALL["a"], active=False)}
    record = written(elect(found, leaving, 0, 0, promoted))
    assert (record.status, record.isr, record.elr) == (PartitionStatus.ONLINE, {B, C}, frozenset())
    without_c = {name: leaving[name] for name in "ab"}
    record = written(elect(found, without_c, 0, 0, promoted))
    assert (record.status, record.isr, record.elr) == (PartitionStatus.ONLINE, {A, B}, frozenset())


def test_lost_members_are_removed_before_leaving_ones() -> None:
    """With one gone, one leaving, and min-ISR 2, the leaving one must stay."""
    registrations = {"a": ALL["a"], "b": replace(ALL["b"], active=False)}
    record = written(elect(three(), registrations, 0, None, ()))
    assert (record.isr, record.reason) == ({A, B}, "out of sync: c gone")


def test_a_leader_with_a_new_log_id_leads_no_more() -> None:
    """Its process lives under the same session, but the log of the record is lost (R-GEN)."""
    record = written(elect(three(), ALL | {"a": registered("a", 101, 11)}, 0, None, ()))
    assert (record.status, record.isr) == (PartitionStatus.ELECTION, {A, B, C})
    assert record.reason == "a has another log than the one that was in sync"
    reported = {"b": (6, 1), "c": (6, 2)}
    after = written(elect(record, ALL | {"a": registered("a", 101, 11)}, 0, 0, (), reported=reported))
    assert after.candidate == Incarnation("c", 103)


def test_a_replica_not_yet_created_is_known_by_the_spare_log_id() -> None:
    """A node that has just been given a replica may be elected, promoted and kept in sync before it reports the
    replica."""
    spare = {name: replace(found, log_ids={}, spare_log_id=found.log_ids[3]) for name, found in ALL.items()}
    assert elect(three(), spare, 0, None, ()) == NoAction("a leads")
    record = written(elect(in_election(preferred="b", epoch=0), spare, 0, 0, ()))
    assert record.candidate == Incarnation("b", 102)
    online = written(elect(record, spare, 1, 0, {(1, "b", 102, 2)}))
    assert (online.status, online.isr) == (PartitionStatus.ONLINE, {A, B, C})


def test_the_preferred_member_comes_first() -> None:
    """The target of a hand-over needs no comparison and no waiting."""
    record = written(elect(in_election(preferred="c"), ALL, 0, 0, ()))
    assert (record.candidate, record.preferred) == (Incarnation("c", 103), None)


def test_all_live_members_are_asked_for_half_a_second() -> None:
    """The election waits while a member has not reported, then uses the reports that it has. A single member is not
    asked."""
    assert elect(in_election(), ALL, 100, 100, (), reported={"a": (6, 1)}) == WaitUntil(
        100 + ASK_MS, "asks b, c how far they are"
    )
    record = written(elect(in_election(), ALL, 100 + ASK_MS, 100, (), reported={"b": (6, 1)}))
    assert record.candidate == Incarnation("b", 102)
    assert asked(in_election(), ALL) == ["a", "b", "c"]
    assert (
        asked(in_election(isr=frozenset({A})), ALL)
        == asked(in_election(preferred="b"), ALL)
        == asked(three(), ALL)
        == []
    )
    alone = written(elect(in_election(isr=frozenset({A})), ALL, 100, 100, ()))
    assert alone.candidate == Incarnation("a", 101)


def test_only_members_with_the_same_log_may_be_elected() -> None:
    """R-GEN: b is live, but with another log id. R-ELR: a member of the ELR is elected only if none of the ISR can
    be."""
    registrations = {"b": registered("b", 102, 22), "c": ALL["c"]}
    record = in_election(isr=frozenset({A, B}), elr=frozenset({C}))
    assert written(elect(record, registrations, 0, 0, ())).candidate == Incarnation("c", 103)
    assert written(elect(record, ALL, 900, 0, ())).candidate == Incarnation("a", 101)


def test_a_leaving_node_is_not_elected() -> None:
    """Registered as leaving: not eligible, and named as such."""
    registrations = {"a": registered("a", 101, 1, active=False)}
    record = written(elect(in_election(isr=frozenset({A})), registrations, 0, 0, ()))
    assert record.status is PartitionStatus.OFFLINE
    assert record.reason == "waits for a (leaving)"


def test_without_an_eligible_member_the_partition_is_offline_and_names_the_guard() -> None:
    """Only the guard can bring it back, not any replica; the reason says why each member of the guard cannot lead."""
    registrations = {"b": registered("b", 102, 22), "c": ALL["c"]}
    record = written(elect(in_election(isr=frozenset({A}), elr=frozenset({B})), registrations, 0, 0, ()))
    assert (record.status, record.epoch) == (PartitionStatus.OFFLINE, 6)
    assert record.reason == "waits for a (not registered); b (came back with another log: gen 22, not 2)"
    assert elect(record, registrations, 5_000, 0, ()) == NoAction(record.reason)
    changed = written(elect(record, {}, 5_000, 0, ()))
    assert changed.reason == "waits for a (not registered); b (not registered)"


def test_offline_ends_as_soon_as_an_eligible_member_is_back() -> None:
    """The statuses are Offline, Election, CandidateFound."""
    offline = in_election(status=PartitionStatus.OFFLINE, isr=frozenset({A}), elr=frozenset({B}), reason="x")
    record = written(elect(offline, {"b": ALL["b"]}, 0, None, ()))
    assert (record.status, record.reason) == (PartitionStatus.ELECTION, "b is back")
    assert written(elect(record, {"b": ALL["b"]}, 0, None, ())).candidate == Incarnation("b", 102)


def test_a_promotion_of_exactly_this_epoch_session_and_log_brings_the_partition_online() -> None:
    """A promotion of an older epoch, another session, or another log id does not count (R-FENCE)."""
    for wrong in ((6, "b", 102, 2), (7, "b", 101, 2), (7, "b", 102, 22), (7, "a", 102, 2)):
        assert isinstance(elect(found("b", 102), ALL, 10, 0, {wrong}), WaitUntil)
    record = written(elect(found("b", 102), ALL, 10, 0, {(7, "b", 102, 2)}))
    assert (record.status, record.leader, record.candidate) == (PartitionStatus.ONLINE, Incarnation("b", 102), None)
    assert (record.epoch, record.isr, record.elr) == (7, {A, B, C}, frozenset())
    assert (record.tried, record.reason) == (frozenset(), "")


def test_online_keeps_lost_members_eligible_while_too_few_are_in_sync() -> None:
    """The new ISR has the live members with the same log; below min-ISR the rest of the guard becomes the ELR (R-ELR,
    H9)."""
    promoted = {(7, "b", 102, 2)}
    two = written(elect(found("b", 102), without("a"), 10, 0, promoted))
    assert (two.isr, two.elr) == ({B, C}, frozenset())
    one = written(elect(found("b", 102), without("a", "c"), 10, 0, promoted))
    assert (one.isr, one.elr) == ({B}, {A, C})
    from_elr = found("b", 102, isr=frozenset({A}), elr=frozenset({B, C}))
    taken = written(elect(from_elr, without("a"), 10, 0, promoted))
    assert (taken.isr, taken.elr) == ({B}, {A, C})


def test_a_silent_candidate_is_followed_by_the_next_one() -> None:
    """The response timer fires, then the next untried member is nominated in a new epoch; for a candidate that is gone,
    at once."""
    waiting = elect(found("b", 102), ALL, 1_999, 0, ())
    assert waiting == WaitUntil(RESPONSE_MIN_MS, found("b", 102).reason)
    record = written(elect(found("b", 102), ALL, RESPONSE_MIN_MS, 0, (), reported={"c": (6, 9)}))
    assert (record.candidate, record.epoch, record.tried) == (Incarnation("c", 103), 8, {"b", "c"})
    gone = written(elect(found("b", 102), without("b"), 1, 0, ()))
    assert gone.candidate == Incarnation("a", 101)


def test_when_all_were_tried_all_are_tried_again_after_a_pause() -> None:
    """The status goes from CandidateFound to Election with no member tried; after the back-off there is a new
    nomination."""
    record = written(elect(found("c", 103, tried=frozenset("abc")), ALL, 9_000, 0, ()))
    assert (record.status, record.tried, record.epoch) == (PartitionStatus.ELECTION, frozenset(), 7)
    assert record.reason == "a, b, c did not answer; all are tried again"
    pause = elect(record, ALL, 9_000, 9_000, (), attempt=3)
    assert pause == WaitUntil(9_000 + 4 * BACK_OFF_MIN_MS, "pauses after 3 candidates that did not answer")
    again = written(elect(record, ALL, 9_000 + 4 * BACK_OFF_MIN_MS, 9_000, (), attempt=3))
    assert again.epoch == 8


def test_a_lost_candidate_without_successor_means_offline() -> None:
    """Its session ended, and no other member may be elected."""
    record = written(elect(found("a", 101, isr=frozenset({A})), {}, 1, 0, ()))
    assert (record.status, record.candidate, record.tried) == (PartitionStatus.OFFLINE, None, frozenset())


def test_a_record_without_members_is_offline_rather_than_an_error() -> None:
    """Without members there is no candidate; the reason describes the fault of the record."""
    record = written(elect(in_election(isr=frozenset()), ALL, 900, 0, ()))
    assert (record.status, record.reason) == (PartitionStatus.OFFLINE, "waits for no node: the record has no member")


def test_epochs_are_not_used_beyond_the_last() -> None:
    """An epoch has 20 bits: after the last one the partition goes offline with a reason; no epoch is used twice."""
    record = written(elect(in_election(epoch=MAX_EPOCH), ALL, 900, 0, ()))
    assert record.status is PartitionStatus.OFFLINE
    assert record.reason.startswith("all 1048575 epochs are used up")
    assert isinstance(elect(record, ALL, 900, 0, ()), NoAction)


def test_timers_grow_up_to_their_limits() -> None:
    """The response timer is 2 s times 1.5 up to 10 s; the back-off is 1 s doubling up to 30 s, with none before the
    first failure."""
    assert [election.response_timeout_ms(n) for n in (0, 1, 2, 3, 4, 50)] == [
        2_000,
        3_000,
        4_500,
        6_750,
        10_000,
        10_000,
    ]
    assert [election.back_off_ms(n) for n in (0, 1, 2, 5, 6, 50)] == [0, 1_000, 2_000, 16_000, 30_000, 30_000]
    assert election.response_timeout_ms(50) == RESPONSE_MAX_MS
    assert election.back_off_ms(50) == BACK_OFF_MAX_MS


def test_an_election_timer_restarts_with_each_status_and_counts_failed_candidates() -> None:
    """since_ms belongs to (epoch, status); the attempt rises when a candidate was not confirmed."""
    first = watched(None, in_election(), 10)
    assert first == ElectionTimer(6, PartitionStatus.ELECTION, 10, 0)
    assert watched(first, in_election(version=31), 99) is first
    candidate = watched(first, found("b", 102), 20)
    assert (candidate.since_ms, candidate.attempt) == (20, 0)
    next_one = watched(candidate, found("c", 103, epoch=8), 30)
    assert (next_one.since_ms, next_one.attempt) == (30, 1)
    pause = watched(next_one, in_election(epoch=8), 40)
    assert pause.attempt == 2
    assert watched(pause, found("a", 101, epoch=9), 50).attempt == 2
    assert watched(watched(pause, three(epoch=9), 60), in_election(epoch=9), 70).attempt == 0


nodes = st.sampled_from("abc")
members = st.frozensets(st.builds(Member, nodes, st.integers(1, 2)), max_size=3)
incarnations = st.builds(Incarnation, nodes, st.integers(101, 104))


@st.composite
def looks(draw: st.DrawFn) -> tuple[PartitionRecord, dict[str, Registration]]:
    """Any record that the rules could have led to, with any registrations."""
    status = draw(st.sampled_from(PartitionStatus))
    isr = frozenset({m.node: m for m in sorted(draw(members))}.values())
    leader = candidate = None
    if status is PartitionStatus.ONLINE:
        first = min(isr, default=A)
        isr |= {first}
        leader = Incarnation(first.node, draw(st.integers(101, 104)))
    out_of_sync = {m.node: m for m in sorted(draw(members)) if m.node not in {i.node for i in isr}}
    elr = frozenset(out_of_sync.values())
    if status is PartitionStatus.CANDIDATE_FOUND:
        candidate = draw(incarnations)
    record = in_election(
        status=status,
        isr=isr,
        elr=elr,
        leader=leader,
        candidate=candidate,
        tried=draw(st.frozensets(nodes)),
        min_isr=draw(st.integers(1, 4)),
        preferred=draw(st.none() | nodes),
    )
    registrations = {
        name: registered(name, draw(st.integers(101, 104)), draw(st.none() | st.integers(1, 2)), draw(st.booleans()))
        for name in sorted(draw(st.frozensets(nodes)))
    }
    return record, registrations


@settings(deadline=None, derandomize=True, max_examples=share(250))
@given(
    looks(),
    st.sets(st.tuples(st.just(6), nodes, st.integers(101, 104), st.integers(1, 2))),
    st.integers(0, 20_000),
    st.integers(0, 4),
)
def test_every_decision_keeps_the_records_invariants(
    look: tuple[PartitionRecord, dict[str, Registration]],
    promoted: set[tuple[int, str, int, int]],
    now_ms: int,
    attempt: int,
) -> None:
    """In every written record: the epoch rises with each candidate, the leader is in the ISR, no member enters the
    guard, none leaves it if fewer than min-ISR would remain, and waiting always ends."""
    record, registrations = look
    decision = elect(record, registrations, now_ms, 0, promoted, attempt=attempt)
    if isinstance(decision, WaitUntil):
        assert decision.until_ms > now_ms
        return
    if isinstance(decision, NoAction):
        return
    after = decision.record
    assert after.version == record.version
    assert after != record
    invariants.epoch_mono(record, after)
    invariants.leader_in_isr(after)
    assert guard(after) <= guard(record)
    if guard(after) < guard(record):
        assert len(after.isr) >= after.effective_min_isr
    assert not after.isr & after.elr
    if after.status is PartitionStatus.CANDIDATE_FOUND:
        assert after.epoch == record.epoch + 1
        assert after.candidate is not None
        chosen = registrations[after.candidate.node]
        assert Member(chosen.node, chosen.log_ids[3]) in guard(record)
        assert chosen.active
    else:
        assert after.epoch == record.epoch


@settings(deadline=None, derandomize=True, max_examples=share(100))
@given(looks())
def test_a_record_without_electable_members_stays_offline(
    look: tuple[PartitionRecord, dict[str, Registration]],
) -> None:
    """Deciding again and again without any promotion and without registrations ends Offline and stays."""
    record, _ = look
    for _ in range(6):
        decision = elect(record, {}, 50_000, 0, ())
        if isinstance(decision, NoAction):
            break
        record = written(decision)
    assert record.status is PartitionStatus.OFFLINE


@pytest.mark.parametrize("status", list(PartitionStatus))
def test_no_member_is_elected_by_a_rolled_back_record(status: PartitionStatus) -> None:
    """H32: for any ISR of that record, the partition waits for an operator."""
    record = overtaken(three(), 9, "b")
    assert (record.status, record.leader, record.overtaken) == (PartitionStatus.OFFLINE, None, 9)
    decision = elect(replace(record, status=status), ALL, 1_000_000, 0, [])
    assert isinstance(decision, NoAction)
    assert decision.reason == (
        "metastore-rollback: b has been in epoch 9, the metastore went back to 6: isthmus cluster reseed"
    )


def test_a_leader_that_gave_way_is_nominated_last() -> None:
    """R-GIVE-WAY: a leader that reached none of its followers counts as tried, although its log is the longest and its
    preferred successor is gone."""
    guard = frozenset({MEMBER, Member("n2", 8), Member("n3", 9)})
    record = a_record(
        replicas=(NODE, "n2", "n3"), isr=frozenset(), elr=guard, tried=frozenset({NODE}), preferred="n3", min_isr=2
    )
    live = {NODE: registered(NODE), "n2": registered("n2", log_id=8)}
    longest = {NODE: (4, 90), "n2": (4, 20)}
    chosen = elect(record, live, 1_000, 0, (), reported=longest)
    assert isinstance(chosen, ProposeRecord)
    assert chosen.record.candidate is not None
    assert chosen.record.candidate.node == "n2"
    assert chosen.record.tried == {NODE, "n2"}
    alone = elect(record, {NODE: registered(NODE)}, 1_000, 0, (), reported=longest)
    assert isinstance(alone, ProposeRecord)
    assert alone.record.candidate is not None
    assert alone.record.candidate.node == NODE


def test_a_candidate_with_a_log_that_the_record_does_not_mean_is_not_brought_online() -> None:
    """R-GEN: it promoted itself in the right epoch and session, with a log id that is not in the guard."""
    record = a_record(
        epoch=5, status=PartitionStatus.CANDIDATE_FOUND, candidate=Incarnation(NODE, 100), tried=frozenset({NODE})
    )
    for log_id in (MEMBER.log_id, MEMBER.log_id + 1):
        decided = elect(record, {NODE: registered(NODE, log_id=log_id)}, 10, 0, {(5, NODE, 100, log_id)})
        online = isinstance(decided, ProposeRecord) and decided.record.status is PartitionStatus.ONLINE
        assert online is (log_id == MEMBER.log_id)


def test_a_node_that_cannot_be_dialled_is_nominated_only_where_no_other_can_be() -> None:
    """It would lead without followers; neither the longest log nor a preference outweighs that, since safety does not
    rest on the ranking (H12, R-REACHED)."""
    reported = {"a": (6, 100), "b": (6, 90), "c": (6, 80)}
    for record in (in_election(), in_election(preferred="a")):
        chosen = elect(record, ALL, 0, 0, (), reported=reported, unreached=frozenset({"a"}))
        assert isinstance(chosen, ProposeRecord)
        assert chosen.record.candidate == Incarnation("b", 102)
    alone = elect(in_election(isr=frozenset({A})), ALL, 0, 0, (), reported=reported, unreached=frozenset({"a"}))
    assert isinstance(alone, ProposeRecord)
    assert alone.record.candidate == Incarnation("a", 101)

"""Replicas whose leader replicates by streams: joining, leaving, and acknowledgements that count (R-STREAM)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

import pytest

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import replica as replica_module
from isthmus.repl.isr.follower_tracker import ANNOUNCE_MS, LIVE_AHEAD, RESEND_MS
from isthmus.repl.isr.messages import AppendEntries, AppendRejected, LeadershipCheck, LeadershipCheckOk
from isthmus.repl.isr.pair_stream import HOLD_MS, Commit, SentRun, StreamAck
from isthmus.repl.isr.replica import Replica
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.record import Member
from tests.simulation.cluster import stream_mutants
from tests.support.streamed_group import PARTITION, StreamedGroup

TWO = ("n1", "n2")


# -- join ---------------------------------------------------------------------------------------


def test_followers_in_sync_take_new_entries_from_the_stream() -> None:
    """Once a stream is open, an append goes to its followers as one run and by no AppendEntries; it commits when all of
    them have acknowledged, and they apply it when its commit is announced."""
    group = StreamedGroup.joined()
    before = list(group.appends)
    group.append(3)
    assert group.streamed == [("n2", 2, 5), ("n3", 2, 5)]
    group.exchange("n2")
    assert group.leader.high_watermark == 2
    group.exchange("n3")
    assert group.leader.high_watermark == 5
    assert group.replicas["n2"].high_watermark == 2
    group.exchange("n2", "n3")
    assert {group.replicas[node].high_watermark for node in group.nodes} == {5}
    assert group.appends == before
    assert group.logs["n1"] == group.logs["n2"] == group.logs["n3"]


def test_each_follower_has_its_own_way() -> None:
    """A follower on a node without a stream gets AppendEntries, while another one has a stream."""
    group = StreamedGroup()
    group.elect("n1")
    group.open("n2")
    group.append()
    assert group.streamed == [("n2", 1, 2)]
    assert group.appends[-1] == ("n3", 1, 2)


def test_a_follower_outside_the_isr_joins_no_stream() -> None:
    """It gets AppendEntries, and joins once the record names it in the ISR."""
    group = StreamedGroup.joined(TWO, min_isr=1)
    group.unregistered.add("n2")  # so that no write of the record adds it
    group.write(replace(group.record, isr=frozenset({Member("n1", 1)})))
    group.append()
    assert group.streamed == []
    assert group.appends[-1] == ("n2", 2, 3)
    group.write(replace(group.record, isr=frozenset({Member("n1", 1), Member("n2", 1)})))
    group.append()
    assert group.streamed == [("n2", 3, 4)]


def test_a_follower_joins_only_after_it_acknowledged_the_barrier() -> None:
    """Before, its log may end in another epoch, and a run is accepted after an entry of the same epoch only."""
    group = StreamedGroup(TWO)
    group.hold_messages.add("n2")
    group.elect("n1")
    group.open("n2")
    leader = group.leader._leader
    assert leader is not None
    follower = leader.followers["n2"]
    assert follower.next == 1
    assert not follower.joins(group.leader._state, 1, leader.barrier)
    group.release_messages()
    assert follower.joins(group.leader._state, 1, leader.barrier)


@pytest.mark.parametrize("lacks", ["something not sent", "what it lacked when it left", "its connection"])
def test_a_follower_that_lacks_something_joins_no_stream(lacks: str) -> None:
    """The follower must have been sent everything below the new entries, have acknowledged what it lacked when it left,
    and be connected."""
    group = StreamedGroup.joined(TWO)
    leader = group.leader._leader
    assert leader is not None
    follower, start = leader.followers["n2"], group.leader.leo
    match lacks:
        case "something not sent":
            follower.next -= 1
        case "what it lacked when it left":
            follower.join_from = start + 1
        case _:
            follower.linked = False
    assert not follower.joins(group.leader._state, start, leader.barrier)
    assert follower.join == 0


def test_a_follower_that_does_not_keep_up_leaves_the_stream() -> None:
    """With LIVE_AHEAD entries unacknowledged it gets AppendEntries again, from its acknowledged end on."""
    group = StreamedGroup.joined(TWO, options=ReplicaOptions(window_entries=4 * LIVE_AHEAD))
    group.append(LIVE_AHEAD)
    group.append()
    assert group.streamed == [("n2", 2, 2 + LIVE_AHEAD)]
    assert group.appends[-1][0] == "n2"
    assert group.logs["n2"] == group.logs["n1"]


def test_cursors_have_a_message_to_travel_with_unless_entries_are_under_way() -> None:
    """A follower gets an AppendEntries without entries beside the stream, also when it is caught up and was never sent
    one in this epoch; none while AppendEntries with entries are unacknowledged."""
    group = StreamedGroup.joined(TWO)
    leader = group.leader._leader
    assert leader is not None
    follower = leader.followers["n2"]
    group.append()
    assert follower.join
    assert follower.next > follower.leo
    beside = head_for(group.leader, "n2")
    assert beside is not None
    assert (beside.start, beside.leo, beside.entries) == (follower.leo, follower.leo, ())
    group.exchange("n2")
    follower.join = 0
    at_rest = head_for(group.leader, "n2")
    assert at_rest is not None
    assert (at_rest.start, at_rest.seq) == (group.leader.leo, beside.seq + 1)
    group.replicas["n2"].step(ev.Received("n1", at_rest), 0)
    assert group.replicas["n2"].following
    follower.next += 1
    assert head_for(group.leader, "n2") is None
    assert head_for(group.leader, "n3") is None
    assert head_for(group.replicas["n2"], "n1") is None


def head_for(replica: Replica, node: str) -> AppendEntries | None:
    effects = replica.step(ev.HeadWanted(node), 0)
    if not effects:
        return None
    (send,) = effects
    assert isinstance(send, fx.Send)
    assert isinstance(send.message, AppendEntries)
    assert send.to == node
    return send.message


# -- leave --------------------------------------------------------------------------------------


def leaves_by_record(group: StreamedGroup) -> None:
    group.write(replace(group.record, isr=frozenset({Member("n1", 1)})))


def leaves_by_broken_connection(group: StreamedGroup) -> None:
    group.receivers["n2"].end()
    group.deliver("n1", ev.LinkDown("n2"))
    group.close("n2")
    group.deliver("n2", ev.LinkDown("n1"))
    group.deliver("n2", ev.LinkUp("n1"))


def leaves_by_rejection(group: StreamedGroup) -> None:
    leader = group.leader._leader
    assert leader is not None
    rejected = AppendRejected(group.leader.epoch, 1, leader.followers["n2"].seq + 1, 2)
    group.deliver("n1", ev.Received("n2", rejected))


def leaves_by_end_of_the_stream(group: StreamedGroup) -> None:
    group.close("n2")


def leaves_by_its_own_word(group: StreamedGroup) -> None:
    sealed = group.sealed("n2")
    group.replicas["n2"]._role_state.nonce += 1  # type: ignore[union-attr]
    received = group.receivers["n2"].receive(sealed, {}, 0)
    assert received is not None
    assert received.accepted == []
    word = group.acknowledgement("n2")
    assert word is not None
    assert word.left == (PARTITION,)
    group.acknowledge("n2", word)


LEAVINGS = [
    leaves_by_record, leaves_by_broken_connection, leaves_by_rejection, leaves_by_end_of_the_stream,
    leaves_by_its_own_word,
]  # fmt: skip


@pytest.mark.parametrize("leave", LEAVINGS)
def test_a_follower_that_leaves_is_sent_unacknowledged_runs_by_append_entries(
    leave: Callable[[StreamedGroup], None],
) -> None:
    """For each way of leaving, the run that was lost with the stream is sent again, and commits."""
    group = StreamedGroup.joined(TWO, min_isr=1)
    group.append(2)
    assert group.streamed == [("n2", 2, 4)]
    assert len(group.logs["n2"]) == 2
    group.appends.clear()
    leave(group)
    group.pass_time(2 * ANNOUNCE_MS)
    assert ("n2", 2, 4) in group.appends
    assert group.logs["n2"] == group.logs["n1"]
    assert group.leader.high_watermark == group.replicas["n2"].high_watermark == 4


def test_a_follower_rejoins_once_it_has_what_it_missed() -> None:
    """After a stream ended and the entries came by AppendEntries, the next stream carries new ones, under another
    join."""
    group = StreamedGroup.joined(TWO)
    group.append()
    leader = group.leader._leader
    assert leader is not None
    first = leader.followers["n2"].join
    group.close("n2")
    group.open("n2")
    assert leader.followers["n2"].join == 0
    group.append()
    assert leader.followers["n2"].join not in (0, first)
    group.exchange("n2")
    assert group.leader.high_watermark == 4
    assert group.logs["n2"] == group.logs["n1"]


def test_a_follower_that_left_acknowledges_what_becomes_durable_by_itself() -> None:
    """Entries that came by the stream and are sent again by AppendEntries are acknowledged as soon as they are durable,
    not when the leader sends them a third time."""
    group = StreamedGroup.joined(TWO)
    group.slow_disks.add("n2")
    group.append(2)
    group.receive("n2", group.sealed("n2"))
    group.close("n2")
    assert group.logs["n2"] == group.logs["n1"]
    assert group.leader.high_watermark == 2
    group.slow_disks.clear()
    group.deliver("n2", ev.Persisted(4))
    assert group.leader.high_watermark == 4


def test_a_follower_that_left_without_missing_anything_acknowledges_by_itself() -> None:
    """This also holds if an AppendAck had already reported entries that were not durable yet, so that nothing is sent
    again."""
    group = StreamedGroup.joined(TWO)
    began_ms = group.now_ms
    group.slow_disks.add("n2")
    group.append(2)
    group.receive("n2", group.sealed("n2"))
    group.write(replace(group.record))
    group.pass_time(2 * ANNOUNCE_MS)
    group.close("n2")
    group.pass_time(4 * ANNOUNCE_MS)
    assert group.leader.high_watermark == 2
    group.slow_disks.clear()
    group.deliver("n2", ev.Persisted(4))
    assert group.leader.high_watermark == 4
    assert group.now_ms - began_ms < RESEND_MS


def test_followers_of_a_stream_learn_a_new_record() -> None:
    """A record of another version reaches a joined follower by an AppendEntries without entries, and ends no join."""
    group = StreamedGroup.joined()
    group.append()
    group.exchange("n2", "n3")
    leader = group.leader._leader
    assert leader is not None
    joins = {node: each.join for node, each in leader.followers.items()}
    seqs = {node: each.seq for node, each in leader.followers.items()}
    group.write(replace(group.record))
    group.pass_time(2 * ANNOUNCE_MS)
    assert {node: each.join for node, each in leader.followers.items()} == joins
    assert all(each.seq > seqs[node] for node, each in leader.followers.items())


def test_a_held_partition_learns_its_commit_from_append_entries() -> None:
    """A follower whose commit the stream announces without this partition receives it a tenth of a second later."""
    group = StreamedGroup.joined()
    group.append()
    group.exchange("n2")
    assert group.leader.stream_commit("n2", SentRun(PARTITION, join_of(group, "n2"), 3)) is Commit.NOT_YET
    group.now_ms += HOLD_MS
    sealed = group.sealed("n2")
    assert (sealed.committed, sealed.held) == (1, (PARTITION,))
    group.receive("n2", sealed)
    group.exchange("n3")
    assert group.leader.high_watermark == 3
    assert group.replicas["n2"].high_watermark == 2
    group.pass_time(2 * ANNOUNCE_MS)
    assert group.replicas["n2"].high_watermark == 3


def join_of(group: StreamedGroup, node: str) -> int:
    leader = group.leader._leader
    assert leader is not None
    return leader.followers[node].join


# -- what does not count ------------------------------------------------------------------------


def old_runs_after_another_request() -> None:
    """A follower reports a run that it accepted before its last FollowRequest as left, even when it is durable."""
    group = StreamedGroup.joined(TWO)
    group.slow_disks.add("n2")
    group.append()
    group.receive("n2", group.sealed("n2"))
    group.deliver("n2", ev.LinkUp("n1"))
    assert group.replicas["n2"].following
    group.slow_disks.clear()
    group.deliver("n2", ev.Persisted(3))
    word = group.acknowledgement("n2")
    assert word == StreamAck(1, 1, 1, (PARTITION,)), f"acknowledged under another request: {word}"


def old_runs_in_another_epoch() -> None:
    """A follower whose log was truncated for another leader does not acknowledge a run that is not in it any more."""
    group, _ = cut_for_another_leader()
    word = group.acknowledgement("n2")
    assert word is not None
    assert word.left == (PARTITION,), "acknowledges a run that its log does not hold"


def old_commits_in_another_epoch() -> None:
    """A commit of a run that was accepted in an earlier epoch commits no other entries at the same offsets."""
    group, nonce = cut_for_another_leader()
    follower = group.replicas["n2"]
    effects = follower.step(ev.RunCommitted(PARTITION, nonce, 3), group.now_ms)
    assert effects == [], f"applies what is not committed: {effects}"
    assert follower.high_watermark == 2


def cut_for_another_leader() -> tuple[StreamedGroup, int]:
    """n2 accepted offset 2 of n1 by the stream and dropped it for the barrier of n3, which is not committed. Returns
    the nonce of the acceptance."""
    group = StreamedGroup.joined()
    group.append()
    group.receive("n2", group.sealed("n2"))
    nonce = group.replicas["n2"]._role_state.nonce  # type: ignore[union-attr]
    group.isolated.add("n1")
    group.elect("n3")
    assert [entry.epoch for entry in group.logs["n2"]] == [1, 1, 2]
    assert group.logs["n2"] == group.logs["n3"]
    assert group.replicas["n2"].high_watermark == 2
    return group, nonce


def acks_of_an_older_join() -> None:
    """An acknowledgement of a run whose join ended commits nothing: the follower may have dropped the run since."""
    group = StreamedGroup.joined(TWO)
    group.append()
    sender = group.senders["n2"]
    group.receive("n2", group.sealed("n2"))
    word = group.acknowledgement("n2")
    assert word is not None
    group.hold_messages.add("n2")
    group.deliver("n1", ev.StreamClosed("n2"))
    found = sender.acknowledge(word, {PARTITION: group.leader}, 0)
    assert found is not None
    for run in found.durable:
        group.count("n2", run)
    assert group.leader.high_watermark == 2, "a run of an older join was counted"
    group.release_messages()
    assert group.leader.high_watermark == 3


def acks_after_a_gap() -> None:
    """An acknowledgement counts only after all before it: the missing one may have named partitions as left."""
    group = StreamedGroup.joined(TWO)
    group.append()
    group.sealed("n2")
    assert group.senders["n2"].acknowledge(StreamAck(1, 2, 1, ()), {PARTITION: group.leader}, 0) is None, (
        "takes an acknowledgement though one before it is missing"
    )


SCENARIOS: dict[Callable[[pytest.MonkeyPatch], None], Callable[[], None]] = {
    stream_mutants.acknowledges_under_another_request: old_runs_after_another_request,
    stream_mutants.counts_runs_of_an_older_join: acks_of_an_older_join,
    stream_mutants.learns_commits_under_another_request: old_commits_in_another_epoch,
    stream_mutants.ignores_gaps: acks_after_a_gap,
}
"""Defects that random seeds do not show, each with a scenario that does."""


@pytest.mark.parametrize("scenario", [*SCENARIOS.values(), old_runs_in_another_epoch])
def test_runs_and_commits_of_an_older_request_join_or_number_do_not_count(scenario: Callable[[], None]) -> None:
    """Runs and commits count under the FollowRequest and the join under which they were accepted and sent, and
    acknowledgements without a gap."""
    scenario()


@pytest.mark.parametrize("put_in", stream_mutants.SCRIPTED, ids=lambda put_in: put_in.__name__)
def test_a_defect_that_seeds_do_not_show_is_caught(
    put_in: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the defect, its scenario fails."""
    put_in(monkeypatch)
    with pytest.raises(AssertionError):
        SCENARIOS[put_in]()


def test_a_follower_refuses_runs_that_do_not_continue_its_log() -> None:
    """Only this leader's runs, of this epoch, at exactly the log's end, and only while it follows, are accepted."""
    group = StreamedGroup.joined(TWO)
    follower = group.replicas["n2"]
    epoch, end = follower.epoch, follower.leo
    assert follower.step(ev.RunReceived("n3", epoch, end, 1), 0) == []
    assert follower.step(ev.RunReceived("n1", epoch + 1, end, 1), 0) == []
    assert follower.step(ev.RunReceived("n1", epoch, end + 1, 1), 0) == []
    assert follower.step(ev.RunReceived("n1", epoch, end - 1, 1), 0) == []
    assert follower.step(ev.RunReceived("n1", epoch, end, 0), 0) == []
    assert follower.leo == end
    assert group.leader.step(ev.RunReceived("n1", epoch, group.leader.leo, 1), 0) == []
    group.isolated.add("n2")
    group.deliver("n2", ev.LinkDown("n1"))
    assert follower.step(ev.RunReceived("n1", epoch, end, 1), 0) == []
    group.isolated.clear()
    group.deliver("n2", ev.LinkUp("n1"))
    nonce = follower._role_state.nonce  # type: ignore[union-attr]
    assert follower.step(ev.RunReceived("n1", epoch, end, 1), 0) == [fx.RunAccepted(nonce)]
    assert follower.leo == end + 1


def test_a_run_accepted_in_an_older_epoch_is_the_last_of_its_epoch() -> None:
    """After an entry of an older epoch no run is accepted: the barrier of the new one comes by AppendEntries."""
    group = StreamedGroup.joined(TWO)
    group.hold_messages.add("n2")
    group.elect("n1")
    follower = group.replicas["n2"]
    assert (follower.following, follower.epoch, follower.leo) == (True, 2, 2)
    assert follower.step(ev.RunReceived("n1", 2, 2, 1), 0) == []
    group.release_messages()
    assert follower.step(ev.RunReceived("n1", 2, 3, 1), 0) != []


def test_only_an_online_leader_counts() -> None:
    """A replica that does not lead any more neither commits nor sends because of a stream."""
    group = StreamedGroup.joined()
    group.append()
    run = SentRun(PARTITION, join_of(group, "n2"), 3)
    group.elect("n3")
    old = group.replicas["n1"]
    before = deepcopy(old._state)
    for event in (
        ev.RunAcknowledged("n2", run.join, 3),
        ev.RunAnnounced("n2", run.join, 3),
        ev.RunHeld("n2", run.join),
        ev.RunLeft("n2", run.join),
    ):
        assert old.step(event, 0) == []
    assert old._state == before
    assert old.stream_commit("n2", run) is Commit.LEFT


def test_entries_that_are_known_to_be_committed_are_applied_as_soon_as_they_are_durable() -> None:
    """If the stream announces a commit before the entries are durable, they are applied later, by the early exit as
    without."""
    group = StreamedGroup.joined(TWO)
    group.slow_disks.add("n2")
    group.append(2)
    group.receive("n2", group.sealed("n2"))
    follower = group.replicas["n2"]
    nonce = follower._role_state.nonce  # type: ignore[union-attr]
    assert follower.step(ev.RunCommitted(PARTITION, nonce, 4), group.now_ms) == []
    assert follower.high_watermark == 2
    assert taken(follower, ev.Persisted(4), group.now_ms) == Taken(early=True, effects=[fx.Apply(4)])


class Taken(NamedTuple):
    """How a replica took an event: by an early exit or not, and its effects."""

    early: bool
    effects: list[fx.Effect]


def taken(replica: Replica, event: ev.Persisted | ev.AppliedTo, now_ms: int) -> Taken:
    """Step `replica`. An early exit has the effects, and leaves the state, that the event has without it; one that
    leaves the event to the usual rules has changed nothing."""
    twin, before = deepcopy(replica), deepcopy(replica)
    early = replica_module._EARLY[type(event)](replica, event, now_ms)
    usual = twin._step_usual(event, now_ms)
    if early is None:
        assert (replica._state, replica._role_state) == (before._state, before._role_state)
        assert replica.step(event, now_ms) == usual
    else:
        assert early == usual
    assert (replica._state, replica._role_state) == (twin._state, twin._role_state)
    return Taken(early is not None, list(usual))


def test_a_leader_commits_what_becomes_durable_early_only_while_its_record_is_settled() -> None:
    """If its own disk is the last member, the early exit commits as the usual rules do. A leader that may have to write
    its record, resigns, or has followed since, goes by those."""
    group = StreamedGroup.joined()
    group.slow_disks.add("n1")
    group.append()
    group.exchange("n2", "n3")
    leader = group.leader
    assert leader.high_watermark == 2
    twins = [deepcopy(leader) for _ in range(2)]
    assert taken(leader, ev.Persisted(3), group.now_ms) == Taken(early=True, effects=[fx.Apply(3)])
    isolated = twins[0]._leader
    assert isolated is not None
    isolated.isolation.check_at_ms = 0
    assert not taken(twins[0], ev.Persisted(3), group.now_ms).early
    twins[1].step(ev.Resign(None), group.now_ms)
    assert not taken(twins[1], ev.Persisted(3), group.now_ms).early


def test_an_acknowledged_run_lets_a_leader_that_is_not_settled_write_its_record() -> None:
    """Its write may wait for the acknowledgement: a leader that resigns hands over with the last one."""
    group = StreamedGroup.joined(TWO)
    group.append()
    group.receive("n2", group.sealed("n2"))
    leader = group.leader
    leader.step(ev.TransferLeadership("n2", group.now_ms + 60_000), group.now_ms)
    effects = leader.step(ev.RunAcknowledged("n2", join_of(group, "n2"), 3), group.now_ms)
    assert effects == [fx.Apply(3)]
    (write,) = leader.step(ev.AppliedTo(3), group.now_ms)
    assert isinstance(write, fx.WriteRecord)
    leader = StreamedGroup.joined(TWO).leader
    state = leader._leader
    assert state is not None
    state.stalled = frozenset((Member("n2", 1),))
    effects = leader.step(ev.RunAcknowledged("n2", state.followers["n2"].join, 2), group.now_ms)
    assert [type(effect) for effect in effects] == [fx.WriteRecord]


def test_a_report_of_the_disk_from_before_a_truncation_has_no_early_exit() -> None:
    """While a truncation is under way, a report means the log before it: its entries may be the ones that go. It is
    ignored, at a follower in the stream and at a settled leader."""
    group = StreamedGroup.joined()
    group.slow_disks.update(("n1", "n2"))
    group.append(2)
    group.receive("n2", group.sealed("n2"))
    for node in ("n1", "n2"):
        replica = group.replicas[node]
        assert taken(deepcopy(replica), ev.Persisted(4), group.now_ms).early, "without a truncation it is taken"
        replica._state.pending_truncations = 1
        before = deepcopy(replica)
        assert taken(replica, ev.Persisted(4), group.now_ms) == Taken(early=False, effects=[])
        assert (replica._state, replica._role_state) == (before._state, before._role_state)


def test_an_applied_entry_that_a_confirmed_read_waits_for_has_no_early_exit() -> None:
    """The usual rules answer the read; the early exit has no effects."""
    group = StreamedGroup.joined()
    leader = group.leader
    role_state = leader._leader
    assert role_state is not None
    assert taken(deepcopy(leader), ev.AppliedTo(leader.leo), group.now_ms) == Taken(early=True, effects=[])
    leader._state.progress.hw += 1  # committed, not applied
    leader._state.progress.leo += 1
    leader._state.progress.durable += 1
    (check, *_) = [e.message for e in leader.step(ev.ReadRequested(7), group.now_ms) if isinstance(e, fx.Send)]
    assert isinstance(check, LeadershipCheck)
    for node in ("n2", "n3"):
        ok = LeadershipCheckOk(leader.epoch, 1, check.nonce, leader.leo)
        assert fx.ReadReady((7,)) not in leader.step(ev.Received(node, ok), group.now_ms)
    assert role_state.reads.confirmed
    answered = Taken(early=False, effects=[fx.ReadReady((7,))])
    assert taken(leader, ev.AppliedTo(leader.leo), group.now_ms) == answered


def test_a_copy_whose_store_is_beyond_its_log_takes_no_run() -> None:
    """Its rows may hold entries that the new leader never had: it follows by AppendEntries, which check that, until its
    log covers what the store had applied (R-FAR)."""
    group = StreamedGroup.joined(TWO)
    group.append()
    follower = group.replicas["n2"]
    run = group.sealed("n2").runs[0]
    sound = deepcopy(follower)
    received = ev.RunReceived("n1", run.epoch, run.start, run.entry_count)
    assert sound.step(received, group.now_ms)
    follower.step(ev.RowsMissing(run.epoch, run.start + 5), group.now_ms)
    before = deepcopy(follower._state)
    assert follower.step(received, group.now_ms) == []
    assert follower._state == before


def test_a_broken_connection_ends_the_join_of_a_stream() -> None:
    """What is under way may be lost with the connection: acknowledgements of its runs do not count any more, and new
    entries go into no stream to the node before its next FollowRequest."""
    group = StreamedGroup.joined()
    group.append()
    leader = group.leader._leader
    assert leader is not None
    join = leader.followers["n2"].join
    assert join
    run = SentRun(PARTITION, join, group.leader.leo)
    group.isolated.add("n2")
    group.deliver("n1", ev.LinkDown("n2"))
    assert leader.followers["n2"].join == 0
    assert group.leader.stream_commit("n2", run) is Commit.LEFT
    assert group.leader.step(ev.RunAcknowledged("n2", join, run.end), group.now_ms) == []
    assert leader.acked.get(Member("n2", 1), 0) < run.end
    streamed = list(group.streamed)
    group.append()
    assert [each for each in group.streamed[len(streamed) :] if each[0] == "n2"] == []

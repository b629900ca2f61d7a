"""Scripted versions of defects that seeds of the simulator (`tests/simulation/cluster`) found in the core, one test
each."""

from __future__ import annotations

import re
from pathlib import Path

from isthmus.config.dynamic_options import OPTIONS
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.follower import SILENT_MS
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.model.record import Incarnation, Member, PartitionRecord
from tests.support.replica_builders import (
    INC,
    MEMBER,
    NODE,
    a_leader,
    a_record,
    a_replica,
    kinds,
    nominated,
    online,
    some_entries,
)

LEADER = Incarnation("n2", 50)
THREE = (NODE, "n2", "n3")
TWO, OTHER = Member("n2", 8), Member("n3", 9)
TABLE = ((2, 0), (4, 8))


def a_follower() -> tuple[Replica, ms.FollowRequest]:
    """A replica with 20 entries that asks n2, the leader of epoch 5, to follow it, and its request."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.RecordSeen(online(leader=LEADER, isr=frozenset({TWO, MEMBER}), replicas=THREE)), 0)
    (_, sent) = replica.step(ev.EpochPersisted(5), 0)
    assert isinstance(sent, fx.Send)
    assert isinstance(sent.message, ms.FollowRequest)
    return replica, sent.message


def a_leader_of_three() -> Replica:
    """Leader of epoch 5, alone in sync of three with min-ISR 2; n2 and n3 may be elected."""
    return a_leader(online(isr=frozenset({MEMBER}), elr=frozenset({TWO, OTHER}), min_isr=2, replicas=THREE))


def effects_of_follow_request(replica: Replica, member: Member, now_ms: int) -> list[fx.Effect]:
    """The leader's effects when a follower with the log of a_replica sends a FollowRequest."""
    hello = ms.FollowRequest(5, member.log_id, now_ms + 1, 20, 20, TABLE)
    return replica.step(ev.Received(member.node, hello), now_ms)


def caught_up(replica: Replica, member: Member, now_ms: int) -> list[fx.Effect]:
    """The leader's effects when a follower has all entries, including the barrier at 20."""
    effects_of_follow_request(replica, member, now_ms)
    ack = ms.AppendAck(5, member.log_id, 1, 21, 21, 15)
    return replica.step(ev.Received(member.node, ack), now_ms)


def written(effects: list[fx.Effect]) -> PartitionRecord | None:
    """The record that is to be written, if one is."""
    return next((effect.record for effect in effects if isinstance(effect, fx.WriteRecord)), None)


def test_a_duplicated_follow_answer_is_ignored_after_the_link_broke() -> None:
    """R-NONCE, H5: as an acceptance it would truncate entries acknowledged since; as a refusal it would cost the log
    id."""
    replica, hello = a_follower()
    answer = ms.FollowAccepted(5, hello.nonce, 20, 15, 20)
    replica.step(ev.Received("n2", answer), 0)
    entries = some_entries(5, 20, 3)
    replica.step(ev.Received("n2", ms.AppendEntries(5, 1, 20, 4, 20, 23, 12, (), entries)), 1)
    replica.step(ev.Persisted(23), 2)
    replica.step(ev.LinkDown("n2"), 3)
    refusal = ms.FollowRejected(5, hello.nonce, ms.FollowRejection.REGRESSED, 0)
    assert replica.step(ev.Received("n2", answer), 4) == []
    assert replica.step(ev.Received("n2", refusal), 4) == []
    assert (replica.leo, replica.durable, replica.following) == (23, 23, False)


def test_a_refusal_that_comes_late_is_no_rollback() -> None:
    """H32: the record at the time of a refused write may be older than the newest known one, so it proves nothing."""
    replica = a_replica(epoch_seen=4)
    replica.step(ev.SessionStarted(INC), 0)
    (write,) = replica.step(ev.RecordSeen(a_record(epoch=3, version=9)), 0)
    assert isinstance(write, fx.WriteRecord)
    replica.step(ev.RecordSeen(a_record(epoch=7, version=20)), 1)
    replica.step(ev.EpochPersisted(7), 2)
    replica.step(ev.WriteRefused(9, a_record(epoch=5, version=12)), 3)
    replica.step(ev.RecordSeen(a_record(epoch=8, version=22)), 4)
    assert replica.record == a_record(epoch=8)
    assert replica.reason.startswith("election:")


def test_an_unregistered_member_does_not_block_another_from_joining() -> None:
    """Below min-ISR, n2 is caught up but not registered: while its back-off lasts, n3 is proposed."""
    replica = a_leader_of_three()
    proposed = written(caught_up(replica, TWO, 0))
    assert proposed is not None
    assert TWO in proposed.isr
    assert replica.record is not None
    replica.step(ev.WriteRefused(12, replica.record), 10)
    caught_up(replica, OTHER, 20)
    same = written(replica.step(ev.Tick(), 300))
    assert same == replica.record  # an unchanged record, so that the refused write is decided
    moved = online(isr=frozenset({MEMBER}), elr=frozenset({TWO, OTHER}), min_isr=2, replicas=THREE, version=13)
    proposed = written(replica.step(ev.WriteConfirmed(moved), 310))
    assert proposed is not None
    assert proposed.isr == {MEMBER, OTHER}


def test_an_unregistered_follower_is_proposed_again_after_its_pause() -> None:
    """No other event is needed: the back-off itself is a deadline, and it doubles."""
    replica = a_leader_of_three()
    caught_up(replica, TWO, 0)
    times = []
    now_ms, version = 0, 12
    for _ in range(3):
        assert replica.record is not None
        replica.step(ev.WriteRefused(version, replica.record), now_ms)
        replica.step(ev.Tick(), now_ms + 200)
        version += 1
        moved = online(isr=frozenset({MEMBER}), elr=frozenset({TWO, OTHER}), min_isr=2, replicas=THREE, version=version)
        replica.step(ev.WriteConfirmed(moved), now_ms + 210)
        begun_ms, proposed = now_ms, None
        while proposed is None:
            due_ms = replica.deadline_ms()
            assert due_ms is not None
            now_ms = max(due_ms, now_ms + 1)
            proposed = written(replica.step(ev.Tick(), now_ms))
        assert TWO in proposed.isr
        times.append(now_ms - begun_ms)
    assert times == [1_000, 2_000, 4_000]


def test_a_follower_whose_first_acknowledgement_is_lost_is_asked_again() -> None:
    """It has all entries, and nothing is appended: the leader sends an AppendEntries without entries, so that it
    acknowledges."""
    replica = a_leader_of_three()
    caught_up(replica, TWO, 0)
    answers = replica.step(ev.Received("n2", ms.FollowRequest(5, TWO.log_id, 77, 21, 21, (*TABLE, (5, 20)))), 10)
    assert kinds(answers) == ["Send"]
    replica.step(ev.WriteOutcomeUnknown(12), 11)
    sent = [effect for at_ms in range(100, 2_200, 100) for effect in replica.step(ev.Tick(), at_ms)]
    forwards = [effect.message for effect in sent if isinstance(effect, fx.Send) and effect.to == "n2"]
    assert any(isinstance(message, ms.AppendEntries) and message.start == 21 for message in forwards)


def test_a_log_trimmed_under_a_lost_acknowledgement_goes_on() -> None:
    """The last acknowledgement was 20 and the log begins at 21 now: the leader sends AppendEntries without entries; the
    answer moves it on."""
    replica = a_leader_of_three()
    effects_of_follow_request(replica, TWO, 0)
    replica.step(ev.Trimmed(21), 5)
    sent = [effect for at_ms in range(100, 4_200, 100) for effect in replica.step(ev.Tick(), at_ms)]
    assert not [effect for effect in sent if isinstance(effect, fx.Replicate)]
    news = [
        effect.message
        for effect in sent
        if isinstance(effect, fx.Send) and isinstance(effect.message, ms.AppendEntries)
    ]
    assert news
    assert news[-1].start == 20
    replica.step(ev.Received("n2", ms.AppendAck(5, TWO.log_id, news[-1].seq, 21, 21, 15)), 4_300)
    (view,) = replica.followers()
    assert (view.leo, view.durable) == (21, 21)


def test_a_follower_whose_leader_sends_nothing_sends_another_follow_request() -> None:
    """Its leader's log does not reach the follower's end any more; only the answer to a FollowRequest tells it so, and
    the reason shows it."""
    replica, hello = a_follower()
    replica.step(ev.Received("n2", ms.FollowAccepted(5, hello.nonce, 20, 15, 25)), 0)
    effects = replica.step(ev.Received("n2", ms.AppendEntries(5, 1, 20, 4, 15, 25, 12, ())), 1)
    hellos = [e.message for e in effects if isinstance(e, fx.Send) and isinstance(e.message, ms.FollowRequest)]
    assert len(hellos) == 1
    assert replica.reason == "asking: n2 has more and cannot send on from 20"
    effects = replica.step(
        ev.Received("n2", ms.FollowRejected(5, hellos[0].nonce, ms.FollowRejection.BEYOND_LOG, 22)), 2
    )
    assert effects == [fx.BeginTransfer(empty=False)]
    assert effects[0].reason.startswith("entries that it lacks are missing from the log of n2")
    assert not effects[0].again
    assert replica.reason == "transfer: prepares its copy; round 1 from n2"
    assert replica.role is ReplicaRole.FOLLOWER


def test_a_repeated_transfer_names_its_reason_and_the_options_to_raise() -> None:
    """A follower that received rows but is still not in range of its leader's log names the rounds and both dynamic
    options. The minimum number of rounds is not a fault. A follower that drops rows of a later state reports that it
    begins with nothing."""
    replica, hello = a_follower()
    replica._state.transfer_rounds = 2
    (again,) = replica.step(ev.Received("n2", ms.FollowRejected(5, hello.nonce, ms.FollowRejection.BEYOND_LOG, 22)), 2)
    assert isinstance(again, fx.BeginTransfer)
    assert again.again
    assert again.reason == (
        "after 2 transfer rounds entries that it lacks are missing from the log of n2, or are more than "
        "replication.max.near.sync.message.lag (20,000): raise the option replication.far.horizon.min.transfer.rounds, "
        "or replication.catch.up.rate where the transfer is slow"
    )
    replica, hello = a_follower()
    replica._state.transfer_rounds = 1
    (again,) = replica.step(ev.Received("n2", ms.FollowRejected(5, hello.nonce, ms.FollowRejection.BEYOND_LOG, 22)), 2)
    assert isinstance(again, fx.BeginTransfer)
    assert again.reason == "round 2 of at least 2 (replication.far.horizon.min.transfer.rounds)"
    (asked,) = replica.step(ev.TransferStored(10, 4, False, b""), 3)
    assert isinstance(asked, fx.Send)
    nonce = asked.message.nonce
    (anew,) = replica.step(ev.Received("n2", ms.FollowRejected(5, nonce, ms.FollowRejection.AHEAD, 22)), 4)
    assert anew == fx.BeginTransfer(empty=True)
    assert isinstance(anew, fx.BeginTransfer)
    assert anew.reason.startswith("begins from nothing again: its rows are of a later state than n2 has applied")
    assert "option replication.catch.up.rate" in anew.reason


def test_options_that_messages_name_exist() -> None:
    """Every dotted name of an option in a text of the program is one that may be set."""
    named: dict[str, Path] = {}
    for file in [each for folder in ("repl", "node", "queues", "aae", "sink") for each in Path(folder).rglob("*.py")]:
        for found in re.findall(r"\b(?:replication|election|placement)(?:\.[a-z]+){2,}\b(?!\()", file.read_text()):
            named[found] = file
    unknown = {name: str(file) for name, file in named.items() if name not in OPTIONS}
    assert not unknown
    assert {"replication.far.horizon.min.transfer.rounds", "replication.catch.up.rate"} <= named.keys()


def test_rows_of_a_later_state_are_not_completed_by_an_earlier_one() -> None:
    """Seed 12065: a part of the rows came from a leader that had applied more; the next leader sends the rest only once
    its own barrier is applied, or keys that changed in between would be missing. A replica without such rows need not
    wait."""
    record = online(replicas=(NODE, "n2", "n3"), min_isr=1)
    leader = a_leader(record)
    part = ms.TransferRequest(5, 3, 1, 10, 4, 0, 0, b"")
    assert leader.step(ev.Received("n2", part), 10) == []
    (sent,) = leader.step(ev.Received("n3", part._replace(position=0, position_epoch=0, whole=1)), 10)
    assert isinstance(sent, fx.SendTransferChunk)
    (sent,) = leader.step(ev.Received("n3", part), 11)
    assert isinstance(sent, fx.SendTransferChunk), "what it has of this epoch is of no later state"
    leader.step(ev.AppliedTo(21), 12)
    (sent,) = leader.step(ev.Received("n2", part), 13)
    assert isinstance(sent, fx.SendTransferChunk)


def test_a_leader_that_waits_for_a_follower_restarts_its_transfer() -> None:
    """If nothing can be committed without this follower, it is told to begin with an empty store."""
    record = online(replicas=(NODE, "n2"), min_isr=2)
    leader = a_leader(record)
    (sent,) = leader.step(ev.Received("n2", ms.TransferRequest(5, 3, 1, 10, 4, 0, 0, b"")), 10)
    assert isinstance(sent, fx.Send)
    assert isinstance(sent.message, ms.FollowRejected)
    assert sent.message.refusal is ms.FollowRejection.AHEAD


def test_an_out_of_sync_replica_that_receives_nothing_asks_again() -> None:
    """R-HEARD: the leader saw the connection break and waits for a FollowRequest; the follower did not and waits for an
    AppendEntries. Every AppendEntries resets its timer, and a replica in sync does not ask."""
    replica, hello = a_follower()
    replica.step(ev.Received("n2", ms.FollowAccepted(5, hello.nonce, 20, 15, 20)), 0)
    assert replica.following
    assert replica.deadline_ms() is None
    outside = online(leader=LEADER, isr=frozenset({TWO}), replicas=THREE, version=13)
    replica.step(ev.RecordSeen(outside), 1_000)
    replica.step(ev.Received("n2", ms.AppendEntries(5, 1, 20, 4, 20, 20, 13, (), ())), 2_000)
    assert replica.step(ev.Tick(), 2_000 + SILENT_MS - 1) == []
    (asked,) = replica.step(ev.Tick(), 2_000 + SILENT_MS)
    assert isinstance(asked, fx.Send)
    assert isinstance(asked.message, ms.FollowRequest)
    assert asked.message.nonce != hello.nonce


def test_a_replica_that_starts_out_of_sync_asks_again_when_it_receives_nothing() -> None:
    """R-HEARD: this holds for a restarted replica that the first record it sees does not count as in sync."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.RecordSeen(online(leader=LEADER, isr=frozenset({TWO}), replicas=THREE)), 0)
    (_, asked) = replica.step(ev.EpochPersisted(5), 0)
    assert isinstance(asked, fx.Send)
    assert isinstance(asked.message, ms.FollowRequest)
    replica.step(ev.Received("n2", ms.FollowAccepted(5, asked.message.nonce, 20, 15, 20)), 2)
    assert replica.following
    assert replica.step(ev.Tick(), SILENT_MS - 1) == []
    (again,) = replica.step(ev.Tick(), SILENT_MS)
    assert isinstance(again, fx.Send)
    assert isinstance(again.message, ms.FollowRequest)
    assert again.message.nonce != asked.message.nonce


def test_a_replica_with_a_new_log_id_is_out_of_sync_and_asks_again() -> None:
    """R-HEARD: this holds for a replica whose old log the record still counts as in sync: with its new log id it is not
    a member."""
    replica, hello = a_follower()
    replica.step(ev.Received("n2", ms.FollowRejected(5, hello.nonce, ms.FollowRejection.REGRESSED, 0)), 1)
    (again,) = replica.step(ev.LogIdentityRenewed(77), 5)
    assert isinstance(again, fx.Send)
    assert isinstance(again.message, ms.FollowRequest)
    replica.step(ev.Received("n2", ms.FollowAccepted(5, again.message.nonce, 20, 15, 20)), 6)
    assert replica.following
    assert replica.deadline_ms() == 5 + SILENT_MS


def test_a_late_follow_request_of_an_older_log_id_is_ignored() -> None:
    """R-GEN: otherwise the leader would wait for that log's acknowledgement for ever, and send its entries to the
    current one."""
    replica = a_leader_of_three()
    caught_up(replica, Member("n2", 9), 0)
    assert effects_of_follow_request(replica, TWO, 10) == []
    assert [(f.node, f.log_id) for f in replica.followers()] == [("n2", 9)]
    replica.step(ev.LinkDown("n2"), 20)
    assert effects_of_follow_request(replica, TWO, 30), "it says Hello on another connection"


def with_rows_beyond(end: int) -> tuple[Replica, ms.FollowRequest]:
    """`a_follower`, not in sync, whose store has rows of entries below `end`, the last of epoch 4 (H36)."""
    replica = a_replica()
    replica.step(ev.RowsMissing(4, end), 0)
    replica.step(ev.SessionStarted(INC), 0)
    record = online(leader=LEADER, isr=frozenset({TWO, OTHER}), replicas=THREE)
    replica.step(ev.RecordSeen(record), 0)
    (_, sent) = replica.step(ev.EpochPersisted(5), 0)
    assert isinstance(sent, fx.Send)
    assert isinstance(sent.message, ms.FollowRequest)
    return replica, sent.message


def test_rows_of_entries_that_the_leader_has_are_kept_until_the_log_brings_them() -> None:
    """H36: a power loss took the end of the log, and left rows of it; other members in sync have all entries."""
    replica, hello = with_rows_beyond(22)
    assert replica.unfounded
    replica.step(ev.Received("n2", ms.FollowAccepted(5, hello.nonce, 20, 20, 24)), 1)
    entries = some_entries(4, 20, 3)
    effects = replica.step(ev.Received("n2", ms.AppendEntries(5, 1, 20, 4, 20, 24, 12, (), entries)), 2)
    assert not [effect for effect in effects if isinstance(effect, fx.BeginTransfer | fx.NewLogIdentity)]
    assert replica.following
    assert not replica.unfounded


def test_rows_of_entries_that_no_leader_has_are_given_up() -> None:
    """H36, R-FORCE: the leader's log ends below them, or has other entries there; an electable replica takes a new log
    id first."""
    replica, hello = with_rows_beyond(22)
    replica.step(ev.Received("n2", ms.FollowAccepted(5, hello.nonce, 20, 20, 21)), 1)
    forward = ms.AppendEntries(5, 1, 20, 4, 20, 21, 12, (), ())
    assert replica.step(ev.Received("n2", forward), 2) == [fx.BeginTransfer(empty=True)]

    replica, hello = with_rows_beyond(22)
    replica.step(ev.Received("n2", ms.FollowAccepted(5, hello.nonce, 20, 20, 24)), 1)
    replica.step(ev.Received("n2", ms.AppendEntries(5, 1, 20, 4, 20, 24, 12, (), some_entries(5, 20, 4))), 2)
    inside = online(leader=LEADER, isr=frozenset({TWO, MEMBER}), replicas=THREE, version=99)
    replica.step(ev.RecordSeen(inside), 3)
    (renew,) = replica.step(ev.Received("n2", ms.AppendEntries(5, 2, 24, 5, 20, 24, 12, (), ())), 4)
    assert isinstance(renew, fx.NewLogIdentity)
    assert replica.step(ev.LogIdentityRenewed(77), 5) == [fx.BeginTransfer(empty=True)]


def test_a_candidate_puts_barriers_where_its_store_has_rows_of_lost_entries() -> None:
    """H36: an offset for which the store has a row is not used for another entry."""
    replica = a_replica()
    replica.step(ev.RowsMissing(4, 23), 0)
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.RecordSeen(nominated()), 0)
    effects = replica.step(ev.EpochPersisted(5), 0)
    assert [effect for effect in effects if isinstance(effect, fx.AppendBarrier)] == [
        fx.AppendBarrier(5, offset) for offset in (20, 21, 22, 23)
    ]
    assert not [effect for effect in replica.step(ev.Persisted(23), 1) if isinstance(effect, fx.Promoted)]
    assert [effect for effect in replica.step(ev.Persisted(24), 2) if isinstance(effect, fx.Promoted)]


def test_a_late_acknowledgement_of_before_a_state_transfer_does_not_count() -> None:
    """Seed 43535 of `--streams`: a follower was rejected, received rows and followed again in the same epoch. The
    numbers of its AppendEntries restarted, so that a late acknowledgement from before counted as the newest one for
    ever."""
    replica = a_leader(online(isr=frozenset({MEMBER}), min_isr=1, replicas=THREE))
    effects_of_follow_request(replica, TWO, 0)
    (view,) = [each for each in replica.followers() if each.node == "n2"]
    assert view.leo == 20
    sent = [effect for at_ms in range(2_100, 9_000, 2_100) for effect in replica.step(ev.Tick(), at_ms)]
    before = [e.head.seq if isinstance(e, fx.Replicate) else e.message.seq for e in sent if is_entries_for(e, "n2")]
    assert before[-1] > 1

    replica.step(ev.Trimmed(21), 9_000)
    rejected = effects_of_follow_request(replica, TWO, 9_001)
    assert [e.message.refusal for e in rejected if isinstance(e, fx.Send) and isinstance(e.message, ms.FollowRejected)]
    assert not [each for each in replica.followers() if each.node == "n2"]

    replica.step(ev.Received("n2", ms.FollowRequest(5, TWO.log_id, 99, 21, 21, (*TABLE, (5, 20)), 9)), 9_100)
    replica.step(ev.Received("n2", ms.AppendAck(5, TWO.log_id, before[-1], 20, 20, 15)), 9_101)
    (view,) = [each for each in replica.followers() if each.node == "n2"]
    assert view.leo == 21


def is_entries_for(effect: fx.Effect, node: str) -> bool:
    """True if `effect` sends an AppendEntries to `node`."""
    if isinstance(effect, fx.Replicate):
        return effect.to == node
    return isinstance(effect, fx.Send) and effect.to == node and isinstance(effect.message, ms.AppendEntries)

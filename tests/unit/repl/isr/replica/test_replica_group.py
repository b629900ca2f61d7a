"""Three cores in one process: the interaction of leader and followers, step by step."""

from __future__ import annotations

from dataclasses import replace

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.record import Member
from tests.support.replica_builders import some_entries
from tests.support.replica_group import NODES, ReplicaGroup


def offsets(group: ReplicaGroup, node: str) -> tuple[int, int, int, int]:
    """(leo, durable, hw, applied)."""
    r = group.replicas[node]
    return r.leo, r.durable, r.high_watermark, r.applied


def test_followers_append_acknowledge_and_apply_what_the_leader_commits() -> None:
    """After an idle moment all three have stored and applied the same."""
    group = ReplicaGroup()
    leader = group.elect("n1")
    assert leader.ready
    group.append(5)
    assert offsets(group, "n1") == (6, 6, 6, 6)
    group.advance_time(500)
    assert {offsets(group, node) for node in NODES} == {(6, 6, 6, 6)}
    assert [f.node for f in leader.followers()] == ["n2", "n3"]
    assert all(f.in_sync and f.linked and f.durable == 6 for f in leader.followers())
    assert all(replica.deadline_ms() is None for replica in group.replicas.values())


def test_nothing_is_applied_before_a_silent_member_is_out_of_the_record() -> None:
    """The lag timer fires, a conditional write moves the member to the OSR, and only then the high watermark moves."""
    group = ReplicaGroup(options=ReplicaOptions(max_time_lag_ms=1_000))
    group.elect("n1")
    group.isolated = {"n3"}
    group.append(2)
    assert offsets(group, "n1") == (3, 3, 1, 1)
    group.advance_time(900)
    assert group.record.isr == {Member(node, 1) for node in NODES}
    group.advance_time(1_600)
    assert group.record.isr == {Member("n1", 1), Member("n2", 1)}
    assert group.record.reason == "out of sync: n3 stalled"
    assert offsets(group, "n1") == (3, 3, 3, 3)


def test_a_member_that_was_too_slow_returns_after_its_pause_when_it_has_caught_up() -> None:
    """It leaves after the limit, receives entries once it is back, and is in sync again after the back-off of five
    seconds (H17)."""
    group = ReplicaGroup(options=ReplicaOptions(max_time_lag_ms=1_000))
    group.elect("n1")
    group.isolated = {"n3"}
    group.append(2)
    group.advance_time(2_000)
    group.isolated = set()
    group.deliver("n3", ev.RecordSeen(group.record))
    group.deliver("n3", ev.LinkUp("n1"))
    group.append(3)
    assert offsets(group, "n3")[0] == 6
    assert len(group.record.isr) == 2
    group.advance_time(8_000)
    assert len(group.record.isr) == 3
    assert group.record.reason == ""


def test_below_min_isr_the_members_that_left_stay_electable_and_nothing_is_committed() -> None:
    """R-ELR: the last replica in sync refuses writes, with the members that it waits for; once the ISR reaches min-ISR
    the ELR is empty again."""
    group = ReplicaGroup(options=ReplicaOptions(max_time_lag_ms=1_000))
    leader = group.elect("n1")
    group.isolated = {"n2", "n3"}
    group.append(2)
    group.advance_time(3_000)
    assert group.record.isr == {Member("n1", 1)}
    assert group.record.elr == {Member("n2", 1), Member("n3", 1)}
    assert leader.high_watermark == 1
    assert leader.reason == "stalled: below min-ISR (1 of 2 in sync; waits for n2, n3)"
    (refused,) = group.append(1)
    assert refused.reason == "not-enough-replicas"
    group.isolated = {"n3"}
    group.deliver("n2", ev.LinkUp("n1"))
    group.advance_time(4_000)
    assert group.record.isr == {Member("n1", 1), Member("n2", 1)}
    assert group.record.elr == frozenset()
    assert leader.high_watermark == 3


def test_a_follower_drops_what_a_new_leader_does_not_have() -> None:
    """R-TRUNC: entries of the old leader that no other replica has are dropped, the common prefix stays, and the new
    leader's entries follow (H1, H2, H3)."""
    group = ReplicaGroup()
    group.elect("n1")
    group.append(2)
    group.isolated = {"n1"}
    group.append(4)
    assert offsets(group, "n1") == (7, 7, 3, 3)
    group.elect("n2")
    group.isolated = set()
    group.deliver("n1", ev.RecordSeen(group.record))
    assert group.replicas["n1"].role is ReplicaRole.FOLLOWER
    group.append(1)
    group.advance_time(500)
    assert {offsets(group, node) for node in NODES} == {(5, 5, 5, 5)}
    assert [e.wire for e in group.logs["n1"]] == [e.wire for e in group.logs["n2"]]
    assert group.replicas["n1"].epoch_table == ((1, 0), (2, 3))


def test_a_leader_that_lacks_what_is_committed_here_is_not_followed() -> None:
    """I-TRUNC-SAFE: this replica stays unchanged, with the reason committed-divergence (R-TRUNC, H1, H2, H3)."""
    group = ReplicaGroup()
    group.elect("n1")
    group.append(3)
    follower = group.replicas["n2"]
    group.advance_time(500)
    assert follower.high_watermark == 4
    group.deliver("n2", ev.LinkUp("n1"))
    nonce = follower._state.nonce  # the last FollowRequest's
    follower._role_state.following = False  # type: ignore[union-attr]
    assert follower.step(ev.Received("n1", ms.FollowAccepted(1, nonce, 2, 2, 2)), 0)[-1].role is ReplicaRole.FAILED  # type: ignore[union-attr]
    assert follower.reason.startswith("committed-divergence: n1")
    assert len(group.logs["n2"]) == 4


def test_a_quarantined_replica_follows_the_record_until_it_is_removed_from_it() -> None:
    """R-CLEAR: it follows no leader and takes part in nothing. When the record does not name its node any more, it is
    left behind like any other replica; when it is named again, it follows and is compared with its leader again."""
    group = ReplicaGroup()
    group.elect("n1")
    group.append(3)
    group.advance_time(500)
    replica = group.replicas["n2"]
    replica._role_state.following = False  # type: ignore[union-attr]
    replica.step(ev.Received("n1", ms.FollowAccepted(1, replica._state.nonce, 2, 2, 2)), 0)
    reason = replica.reason
    assert reason.startswith("committed-divergence: n1")
    moved = replace(group.record, version=group.record.version + 1, isr=group.record.isr - {Member("n2", 1)})
    for quiet in (ev.RecordSeen(moved), ev.LinkDown("n1"), ev.LinkUp("n1"), ev.Tick()):
        assert replica.step(quiet, 10_000) == []
    assert (replica.role, replica.reason, replica.record) == (ReplicaRole.FAILED, reason, moved)
    assert [effect.reason for effect in replica.step(ev.ReadRequested(1), 0)] == ["not-leader"]  # type: ignore[union-attr]
    left = replace(moved, version=moved.version + 1, replicas=("n1", "n3"))
    replica.step(ev.RecordSeen(left), 0)
    assert (replica.role, replica.leo, replica.applied) == (ReplicaRole.IDLE, 4, 4)
    assert replica.reason.startswith("removed: this node is no longer a replica")
    replica.step(ev.RecordSeen(replace(left, version=left.version + 1, replicas=("n1", "n3", "n2"))), 0)
    assert replica.role is ReplicaRole.FOLLOWER


def test_replayed_entries_are_applied_without_a_commit_message() -> None:
    """H36, R-TRUNC: rows that must be replayed are applied from the log as soon as there is a session, once; they are
    not truncated for a leader that lacks them."""
    found = {"leo": 20, "durable": 20, "epoch_table": ((1, 0),), "epoch_seen": 1}
    replica = Replica(0, "n2", 1, **found, applied=10, options=ReplicaOptions(), committed=18)  # type: ignore[arg-type]
    assert (replica.applied, replica.high_watermark) == (10, 18)
    assert replica.step(ev.SessionStarted(1), 0) == [fx.Apply(18)]
    assert replica.step(ev.SessionExpired(), 0) == []
    assert replica.step(ev.SessionStarted(2), 0) == []
    group = ReplicaGroup()
    group.elect("n1")
    replica.step(ev.RecordSeen(group.record), 0)
    replica.step(ev.Received("n1", ms.FollowAccepted(1, replica._state.nonce, 17, 17, 17)), 0)
    assert replica.reason.startswith("committed-divergence: n1 agrees with this log only below 17, but all below 18")
    assert (replica.leo, replica.high_watermark) == (20, 18)


def test_a_late_answer_to_an_older_follow_request_changes_nothing() -> None:
    """R-NONCE: a late reply to an older request does not truncate entries acknowledged since (H5)."""
    group = ReplicaGroup()
    group.elect("n1")
    follower = group.replicas["n2"]
    old = follower._state.nonce
    group.append(3)
    assert follower.step(ev.Received("n1", ms.FollowAccepted(1, old, 1, 0, 1)), 0) == []
    group.deliver("n2", ev.LinkUp("n1"))
    assert follower.step(ev.Received("n1", ms.FollowAccepted(1, old, 1, 0, 1)), 0) == []
    assert follower.leo == 4


def test_a_message_of_another_epoch_is_answered_with_the_own_one() -> None:
    """R-FENCE: a lower epoch gets StaleEpoch, a higher one makes the receiver read the record, neither changes a
    log."""
    group = ReplicaGroup()
    group.elect("n1")
    group.elect("n2")
    follower = group.replicas["n3"]
    forward = ms.AppendEntries(1, 9, 2, 2, 0, 3, 0, (), ())
    (sent,) = follower.step(ev.Received("n1", forward), 0)
    assert sent.message == ms.StaleEpoch(2)  # type: ignore[union-attr]
    (hint,) = follower.step(ev.Received("n1", forward._replace(epoch=7)), 0)
    assert type(hint).__name__ == "RefreshRecord"
    assert follower.leo == 2


def test_committed_reads_ask_the_whole_guard() -> None:
    """R-READ: a read is served after every other member of the guard has answered, and not while one is silent."""
    group = ReplicaGroup()
    leader = group.elect("n1")
    group.deliver("n1", ev.ReadRequested(1))
    assert group.served == [1]
    group.isolated = {"n3"}
    effects = leader.step(ev.ReadRequested(2), group.now_ms)
    assert sorted(e.to for e in effects) == ["n2", "n3"]  # type: ignore[union-attr]


def test_a_silent_member_is_replaced_by_a_synced_read_of_the_record() -> None:
    """A synced read that shows the version unchanged replaces the answer of a silent member (R-READ)."""
    group = ReplicaGroup()
    group.elect("n1")
    group.isolated = {"n3"}
    group.deliver("n1", ev.ReadRequested(1))
    assert group.served == []
    group.advance_time(400)
    assert group.served == [1]


def test_reads_are_refused_when_leadership_ends() -> None:
    """A pending read is refused as not-leader once the record names another leader."""
    group = ReplicaGroup()
    group.elect("n1")
    group.isolated = {"n3"}
    group.replicas["n1"].step(ev.ReadRequested(1), group.now_ms)
    group.isolated = set()
    group.elect("n2")
    assert group.refused == [1]


def test_leadership_is_handed_to_the_member_that_was_asked_for() -> None:
    """The leader drains, and writes the target as preferred; a target out of sync is refused, and the leadership
    continues."""
    group = ReplicaGroup()
    leader = group.elect("n1")
    group.append(3)
    group.deliver("n1", ev.TransferLeadership("n3", group.now_ms + 1_000))
    assert leader.role is ReplicaRole.IDLE
    assert group.record.leader is None
    assert group.record.preferred == "n3"
    leader = group.elect("n3")
    group.isolated = {"n2"}
    group.append(1)
    group.advance_time(9_000)
    group.deliver("n3", ev.TransferLeadership("n2", group.now_ms + 1_000))
    assert leader.role is ReplicaRole.LEADER


def test_a_hand_over_that_cannot_drain_is_given_up_and_leadership_goes_on() -> None:
    """The target does not acknowledge: at the deadline the leader accepts writes again in the same epoch."""
    group = ReplicaGroup(options=ReplicaOptions(max_time_lag_ms=60_000))
    leader = group.elect("n1")
    group.slow_disks = {"n2"}
    group.append(1)
    group.deliver("n1", ev.TransferLeadership("n2", group.now_ms + 1_000))
    assert leader.role is ReplicaRole.RESIGNING
    assert leader.reason.startswith("resigning: drains")
    group.advance_time(1_200)
    assert leader.role is ReplicaRole.LEADER
    assert leader.ready
    group.slow_disks = set()
    group.deliver("n2", ev.Persisted(len(group.logs["n2"])))
    group.append(1)
    assert leader.applied == 3


def test_a_leader_with_a_slow_disk_hands_over_before_it_removes_members() -> None:
    """H19: its own entry has waited for a sync for more than half the limit: the leader resigns to the closest member,
    and no member leaves the ISR."""
    group = ReplicaGroup(options=ReplicaOptions(max_time_lag_ms=2_000))
    leader = group.elect("n1")
    group.slow_disks = {"n1"}
    group.append(1)
    group.advance_time(1_600)
    assert leader.role is ReplicaRole.RESIGNING
    assert len(group.record.isr) == 3
    group.slow_disks = set()
    group.deliver("n1", ev.Persisted(len(group.logs["n1"])))
    assert group.record.leader is None
    assert group.record.preferred in ("n2", "n3")


def test_a_paused_leader_removes_no_follower() -> None:
    """H19: the leader continues after a pause longer than the limit, before it reads the acknowledgements: no member is
    removed."""
    group = ReplicaGroup(options=ReplicaOptions(max_time_lag_ms=1_000))
    group.elect("n1")
    group.slow_disks = {"n2", "n3"}
    group.append(1)
    group.now_ms += 20_000
    group.deliver("n1", ev.Tick())
    assert len(group.record.isr) == 3
    group.slow_disks = set()
    group.deliver("n2", ev.Persisted(2))
    group.deliver("n3", ev.Persisted(2))
    assert group.replicas["n1"].high_watermark == 2


def test_a_member_whose_registration_is_gone_is_not_taken_in_and_counts_until_that_is_decided() -> None:
    """H10, R-AMBIG: the write of a refused expansion may still arrive; another write without changes settles it."""
    group = ReplicaGroup(options=ReplicaOptions(max_time_lag_ms=1_000))
    leader = group.elect("n1")
    group.isolated = {"n3"}
    group.append(1)
    group.advance_time(2_000)
    group.isolated = set()
    group.unregistered = {"n3"}
    group.deliver("n3", ev.RecordSeen(group.record))
    group.deliver("n3", ev.LinkUp("n1"))
    group.advance_time(6_900)
    before = group.record.version
    group.advance_time(7_300)
    assert group.record.version > before
    assert group.record.isr == {Member("n1", 1), Member("n2", 1)}
    group.unregistered = set()
    group.advance_time(16_000)
    assert len(group.record.isr) == 3
    assert leader.role is ReplicaRole.LEADER


def test_a_restarted_follower_catches_up_from_its_log() -> None:
    """Near horizon: the handshake finds the common prefix, and only what is missing is sent."""
    group = ReplicaGroup(options=ReplicaOptions(max_time_lag_ms=1_000))
    group.elect("n1")
    group.append(3)
    group.isolated = {"n2"}
    group.append(700)
    group.advance_time(2_000)
    group.isolated = set()
    group.replicas["n2"] = group.new_replica("n2", ReplicaOptions())
    group.deliver("n2", ev.SessionStarted(101))
    group.deliver("n2", ev.RecordSeen(group.record))
    assert offsets(group, "n2")[0] == 704
    group.advance_time(12_000)
    assert len(group.record.isr) == 3


def test_a_trimmed_log_is_reported_to_the_follower() -> None:
    """The follower has its replica marked for a state transfer, and reports it."""
    group = ReplicaGroup()
    group.elect("n1")
    group.isolated = {"n3"}
    group.append(5)
    group.advance_time(5_000)
    group.deliver("n1", ev.Trimmed(4))
    group.isolated = set()
    group.deliver("n3", ev.RecordSeen(group.record))
    group.deliver("n3", ev.LinkUp("n1"))
    follower = group.replicas["n3"]
    assert follower.reason == "transfer: prepares its copy; round 1 from n1"
    assert not follower.following


def test_a_log_shorter_than_acknowledged_takes_a_new_log_id() -> None:
    """H39: a restored backup gets REGRESSED, takes a new log id, and is not a member under the old one."""
    group = ReplicaGroup()
    group.elect("n1")
    group.append(3)
    del group.logs["n3"][2:]
    group.replicas["n3"] = group.new_replica("n3", ReplicaOptions())
    group.deliver("n3", ev.SessionStarted(102))
    group.queue.clear()
    effects = group.replicas["n3"].step(ev.RecordSeen(group.record), 0)
    hello = effects[-1].message  # type: ignore[union-attr]
    (refusal,) = group.replicas["n1"].step(ev.Received("n3", hello), 0)
    (renew,) = group.replicas["n3"].step(ev.Received("n1", refusal.message), 0)  # type: ignore[union-attr]
    assert type(renew).__name__ == "NewLogIdentity"
    assert group.replicas["n3"].reason.startswith("regressed: n1")
    (again,) = group.replicas["n3"].step(ev.LogIdentityRenewed(9), 0)
    assert again.message.log_id == 9  # type: ignore[union-attr]
    assert group.replicas["n3"].member == Member("n3", 9)


def test_a_member_far_behind_with_what_is_committed_leaves_but_never_below_min_isr() -> None:
    """Fluvio's lagging follower has all entries, but its high watermark lags beyond the limit; one of two such members
    may leave."""
    group = ReplicaGroup(options=ReplicaOptions(max_record_lag=10, max_time_lag_ms=800))
    leader = group.elect("n1")
    for node in ("n2", "n3"):
        leader.step(ev.Received(node, ms.AppendAck(1, 1, 1, 1, 1, 0)), group.now_ms)
    for _ in range(30):
        group.append(1)
    for peer in leader._role_state.followers.values():  # type: ignore[union-attr]
        peer.hw = 5
    effects = fx.Effects()
    leader._role_state.check_lag(leader._state, group.now_ms)  # type: ignore[union-attr]
    leader._role_state.request_write(leader._state, effects, group.now_ms)  # type: ignore[union-attr]
    (write,) = effects
    assert len(write.record.isr) == 2  # type: ignore[union-attr]
    assert write.record.elr == frozenset()  # type: ignore[union-attr]
    assert write.record.reason == "out of sync: n2 lags"  # type: ignore[union-attr]


def test_a_follower_reports_how_far_behind_it_is() -> None:
    """Its reason has the number of missing entries, whether it is in sync, and the option of near-horizon catch-up if
    that limit is exceeded."""
    group = ReplicaGroup(options=ReplicaOptions(max_near_sync_message_lag=100))
    group.elect("n1")
    follower = group.replicas["n2"]
    assert follower.reason == "follows: n1 in epoch 1"
    isr, version = ("n1", "n3"), group.record.version
    for lacks, said in (
        (70, "catches-up: 70 entries behind n1, not in sync yet"),
        (101, "catches-up: 101 entries behind n1, more than replication.max.near.sync.message.lag (100): served"),
    ):
        entries, leo = some_entries(1, follower.leo, 1), follower.leo + 1 + lacks
        forward = ms.AppendEntries(1, 50 + lacks, follower.leo, 1, 0, leo, version, isr, entries)
        follower.step(ev.Received("n1", forward), 0)
        assert follower.reason.startswith(said)

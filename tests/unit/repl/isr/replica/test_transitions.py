"""Transitions of a replica: nomination, election, loss of session, failure, rollback of the metastore."""

from __future__ import annotations

from dataclasses import replace

import pytest

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.candidate import PROMOTED_REPEAT_MS
from isthmus.repl.isr.messages import AppendEntries, FollowAccepted, FollowRejected, FollowRejection, FollowRequest
from isthmus.repl.isr.reasons import overtaken
from isthmus.repl.isr.replica import ROLLBACK_CHECK_PAUSE_MS, Replica, ReplicaRole
from isthmus.repl.model.entry import EntryKind, make_entry
from isthmus.repl.model.record import Incarnation, Member, PartitionStatus
from tests.support.replica_builders import (
    GEN,
    INC,
    ME,
    MEMBER,
    NODE,
    a_candidate,
    a_leader,
    a_record,
    a_replica,
    a_serving_leader,
    kinds,
    nominated,
    online,
    some_entries,
)


def test_nothing_is_done_in_an_epoch_before_it_is_durable() -> None:
    """A nomination only requests that the epoch be stored; the barrier follows EpochPersisted (H27)."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    assert replica.step(ev.RecordSeen(nominated()), 0) == [fx.PersistEpoch(5, ME)]
    assert replica.role is ReplicaRole.IDLE
    assert replica.epoch_seen == 4
    assert replica.reason.startswith("nominated:")
    effects = replica.step(ev.EpochPersisted(5), 0)
    assert kinds(effects) == ["RoleChanged", "AppendBarrier"]
    assert effects[-1] == fx.AppendBarrier(5, 20)
    assert (replica.role, replica.epoch, replica.leo) == (ReplicaRole.CANDIDATE, 5, 21)
    assert replica.epoch_table == ((2, 0), (4, 8), (5, 20))


def test_a_nomination_seen_before_the_session_counts_once_it_has_begun() -> None:
    """Record, durable epoch and session may come in any order."""
    replica = a_replica()
    replica.step(ev.RecordSeen(nominated()), 0)
    replica.step(ev.EpochPersisted(5), 0)
    assert replica.role is ReplicaRole.IDLE
    assert kinds(replica.step(ev.SessionStarted(INC), 0)) == ["RoleChanged", "AppendBarrier"]


def test_a_candidate_announces_itself_only_with_a_durable_barrier_and_then_repeatedly() -> None:
    """Promoted follows Persisted past the barrier, and again at each deadline until Online."""
    replica = a_candidate()
    assert replica.deadline_ms() is None
    assert replica.step(ev.Persisted(20), 1_000) == []
    assert replica.step(ev.Persisted(21), 1_000) == [fx.Promoted(5, NODE, INC, GEN)]
    assert replica.deadline_ms() == 1_000 + PROMOTED_REPEAT_MS
    assert replica.step(ev.Tick(), 1_001) == []
    assert replica.step(ev.Tick(), 1_000 + PROMOTED_REPEAT_MS) == [fx.Promoted(5, NODE, INC, GEN)]
    assert replica.deadline_ms() == 1_000 + 2 * PROMOTED_REPEAT_MS
    effects = replica.step(ev.RecordSeen(online()), 1_600)
    assert kinds(effects) == ["RoleChanged", "Apply"]
    assert replica.deadline_ms() is None


def test_recovered_entries_commit_with_the_new_epochs_barrier_and_not_before() -> None:
    """The high watermark starts at the applied offset; candidate or not, nothing above is applied before this process
    leads (R-INC)."""
    replica = a_candidate()
    assert replica.high_watermark == 15
    replica.step(ev.Persisted(21), 0)
    assert replica.high_watermark == 15
    effects = replica.step(ev.RecordSeen(online()), 0)
    assert effects[-1] == fx.Apply(21)
    assert replica.high_watermark == 21


def test_clients_are_served_once_the_barrier_is_applied() -> None:
    """LeadershipReady comes with AppliedTo past the barrier, exactly once."""
    replica = a_leader()
    assert not replica.ready
    assert replica.reason.startswith("not-ready:")
    assert replica.step(ev.AppliedTo(20), 0) == []
    assert replica.step(ev.AppliedTo(21), 0) == [fx.LeadershipReady(5)]
    assert replica.ready
    assert replica.reason == "leads: epoch 5"
    assert replica.step(ev.AppliedTo(21), 0) == []


def test_a_leader_that_becomes_ready_while_handing_over_notifies_listeners() -> None:
    """I-TOLD: the hand-over may fail, and a leader that stays must have notified its listeners."""
    replica = a_leader()
    isr = frozenset({replica.member, Member("n2", 7)})
    replica.step(ev.RecordSeen(online(replicas=(NODE, "n2"), isr=isr, version=13)), 0)
    replica.step(ev.TransferLeadership("n2", 1_000), 0)
    assert replica.role is ReplicaRole.RESIGNING
    assert fx.LeadershipReady(5) in replica.step(ev.AppliedTo(21), 0)
    effects = replica.step(ev.Tick(), 1_000)
    assert (replica.role, replica.ready) == (ReplicaRole.LEADER, True)
    assert fx.LeadershipReady(5) not in effects


def test_leadership_of_an_earlier_session_is_never_resumed() -> None:
    """A record that names this node in another session does not make it leader (H11, R-INC)."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC + 1), 0)
    assert replica.step(ev.RecordSeen(online(epoch=4)), 0) == [fx.PersistEpoch(4, ME)]
    assert replica.role is ReplicaRole.IDLE
    assert replica.reason.startswith("earlier-session:")
    assert replica.step(ev.Append(4, some_entries(4, 20, 1)), 0) == [fx.AppendRefused("not-leader", 1)]


def test_a_leader_without_nomination_stays_idle() -> None:
    """A record that is online with this very session is not enough: the barrier of the epoch must have been appended
    here."""
    replica = a_replica(epoch_seen=5)
    replica.step(ev.SessionStarted(INC), 0)
    assert replica.step(ev.RecordSeen(online()), 0) == [fx.PersistEpoch(5, ME)]
    assert replica.role is ReplicaRole.IDLE


@pytest.mark.parametrize(
    ("record", "code"),
    [
        (nominated(isr=frozenset({Member(NODE, GEN + 1)})), "other-log"),
        (nominated(epoch=4), "metastore-rollback"),
    ],
)
def test_a_nomination_of_another_log_or_of_a_used_epoch_is_refused(record: object, code: str) -> None:
    """R-GEN: the nomination must have this log id. An epoch that this log has been in is never used twice."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.RecordSeen(record), 0)  # type: ignore[arg-type]
    effects = replica.step(ev.EpochPersisted(5), 0)
    assert effects == []
    assert replica.role is ReplicaRole.IDLE
    assert replica.reason.startswith(code)


def test_a_replica_without_space_for_a_barrier_accepts_no_nomination() -> None:
    """H38: it sends nothing, with a reason; once there is space again it accepts the next nomination normally."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.DiskFull(full=True), 0)
    replica.step(ev.RecordSeen(nominated()), 0)
    assert replica.step(ev.EpochPersisted(5), 0) == []
    assert (replica.role, replica.leo) == (ReplicaRole.IDLE, 20)
    assert replica.reason.startswith("out-of-storage:")
    replica.step(ev.DiskFull(full=False), 0)
    replica.step(ev.RecordSeen(nominated(epoch=6, version=12)), 0)
    assert fx.AppendBarrier(6, 20) in replica.step(ev.EpochPersisted(6), 0)


def test_a_log_that_ends_below_the_applied_offset_does_not_stand_for_election() -> None:
    """A replica that lost committed entries refuses even if the record still means it."""
    replica = a_replica(applied=25)
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.RecordSeen(nominated()), 0)
    assert replica.step(ev.EpochPersisted(5), 0) == []
    assert replica.reason.startswith("log-lost:")


def test_a_log_about_to_take_a_new_log_id_does_not_stand_for_election() -> None:
    """H39: a replica that got REGRESSED holds less than it acknowledged, even before the metastore has its new log id:
    it must not be elected when its leader fails."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    isr = frozenset({MEMBER, Member("n2", 1)})
    followed = online(version=11, leader=Incarnation("n2", 1), replicas=(NODE, "n2"), isr=isr)
    replica.step(ev.RecordSeen(followed), 0)
    hello = replica.step(ev.EpochPersisted(5), 0)[-1].message  # type: ignore[union-attr]
    regressed = FollowRejected(5, hello.nonce, FollowRejection.REGRESSED, 0)
    assert "NewLogIdentity" in kinds(replica.step(ev.Received("n2", regressed), 0))
    replica.step(ev.RecordSeen(nominated(epoch=6, version=13, replicas=(NODE, "n2"), isr=isr)), 0)
    assert replica.step(ev.EpochPersisted(6), 0) == []
    assert replica.role is ReplicaRole.IDLE
    assert replica.reason.startswith("regressed:")
    replica.step(ev.LogIdentityRenewed(GEN + 1), 0)
    anew = frozenset({Member(NODE, GEN + 1)})
    replica.step(ev.RecordSeen(nominated(epoch=7, version=14, replicas=(NODE, "n2"), isr=anew)), 0)
    replica.step(ev.EpochPersisted(7), 0)
    assert replica.role is ReplicaRole.CANDIDATE


def test_a_member_of_the_elr_may_stand_for_election() -> None:
    """The guard is ISR and ELR together."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.RecordSeen(nominated(isr=frozenset({Member("n2", 1)}), elr=frozenset({Member(NODE, GEN)}))), 0)
    replica.step(ev.EpochPersisted(5), 0)
    assert replica.role is ReplicaRole.CANDIDATE


def test_a_withdrawn_nomination_ends_the_candidate() -> None:
    """The controller's timer fired: the candidate becomes idle and accepts the next nomination in a higher epoch."""
    replica = a_candidate()
    replica.step(ev.Persisted(21), 0)
    effects = replica.step(ev.RecordSeen(a_record(epoch=5, version=12)), 0)
    assert kinds(effects) == ["RoleChanged"]
    assert replica.deadline_ms() is None
    assert replica.step(ev.RecordSeen(nominated(epoch=6, version=13)), 0) == [fx.PersistEpoch(6, ME)]
    assert replica.step(ev.EpochPersisted(6), 0)[-1] == fx.AppendBarrier(6, 21)
    assert replica.epoch_table[-2:] == ((5, 20), (6, 21))


@pytest.mark.parametrize(
    "record",
    [
        a_record(epoch=5, version=13),
        online(epoch=6, version=13, leader=Incarnation("n2", 200)),
        nominated(epoch=6, version=13, candidate=Incarnation(NODE, INC + 1)),
    ],
)
def test_a_leader_steps_down_when_the_record_no_longer_names_it(record: object) -> None:
    """For any new record, the outcome of entries from the high watermark on is unknown, and appends are refused."""
    replica = a_serving_leader()
    replica.step(ev.Append(5, some_entries(5, 21, 3)), 0)
    effects = replica.step(ev.RecordSeen(record), 0)  # type: ignore[arg-type]
    stepped = next(effect for effect in effects if isinstance(effect, fx.SteppedDown))
    assert (stepped.epoch, stepped.unknown_from) == (5, 21)
    assert replica.role is ReplicaRole.IDLE
    assert not replica.ready
    assert replica.step(ev.Append(5, some_entries(5, 24, 1)), 0) == [fx.AppendRefused("not-leader", 1)]


def test_entries_committed_before_stepping_down_are_still_applied() -> None:
    """Persisted and AppliedTo of an ended leadership are processed, but decide nothing any more."""
    replica = a_serving_leader()
    replica.step(ev.Append(5, some_entries(5, 21, 2)), 0)
    assert replica.step(ev.Persisted(22), 0) == [fx.Apply(22)]
    replica.step(ev.SessionExpired(), 0)
    assert replica.step(ev.Persisted(23), 0) == []
    assert replica.step(ev.AppliedTo(22), 0) == []
    assert (replica.durable, replica.high_watermark, replica.applied, replica.leo) == (23, 22, 22, 23)


def test_an_expired_session_ends_leadership_and_its_view() -> None:
    """The next session reads the record again: a lower version is accepted then, a lower epoch never."""
    replica = a_serving_leader()
    assert kinds(replica.step(ev.SessionExpired(), 0)) == ["SteppedDown", "RoleChanged"]
    assert replica.reason.startswith("no-session:")
    assert replica.record is None
    replica.step(ev.SessionStarted(INC + 1), 0)
    replica.step(ev.RecordSeen(a_record(epoch=5, version=3)), 0)
    assert replica.record is not None
    assert replica.record.version == 3
    replica.step(ev.SessionExpired(), 0)
    replica.step(ev.RecordSeen(a_record(epoch=4, version=50)), 0)
    assert replica.record is None


def test_another_session_without_notice_is_an_expired_one() -> None:
    """SessionStarted with another session id ends the first session."""
    replica = a_serving_leader()
    assert kinds(replica.step(ev.SessionStarted(INC + 1), 0)) == ["SteppedDown", "RoleChanged"]
    assert replica.role is ReplicaRole.IDLE


def test_old_records_change_nothing() -> None:
    """A record that is not newer than the known one is ignored, also as a confirmed write; after an older one the
    record is read behind a sync, now and then."""
    replica = a_serving_leader()
    for event in (ev.WriteConfirmed(online()), ev.RecordSeen(a_record(version=12))):
        assert replica.step(event, 0) == []
    for at_ms in (0, 1, ROLLBACK_CHECK_PAUSE_MS):
        asked = kinds(replica.step(ev.RecordSeen(nominated()), at_ms))
        assert asked == ([] if at_ms == 1 else ["ReadRecordSync"])
    assert replica.role is ReplicaRole.LEADER


def a_leader_that_suspects() -> tuple[Replica, int]:
    """A leader that received an older record, and the nonce of the synced read that it requests."""
    replica = a_serving_leader()
    (asked,) = replica.step(ev.RecordSeen(nominated()), 0)
    assert isinstance(asked, fx.ReadRecordSync)
    return replica, asked.nonce


def test_a_late_record_is_no_rollback_when_the_synced_read_is_not_older() -> None:
    """H32: the leader continues; an older answer that was not requested since does not count, either."""
    replica, nonce = a_leader_that_suspects()
    assert replica.step(ev.RecordSynced(nonce + 1, nominated()), 5) == []
    assert replica.step(ev.RecordSynced(nonce, online()), 10) == []
    assert replica.role is ReplicaRole.LEADER


def test_a_synced_read_of_an_older_record_is_a_rollback_also_within_an_epoch() -> None:
    """H32: the metastore lost changes of the ISR but no epoch: members that left by them could be elected. The leader
    writes this into the current record, and ignores all records of this lineage from then on."""
    replica, nonce = a_leader_that_suspects()
    old = online(version=11, isr=frozenset({MEMBER, Member("n2", 9)}), replicas=(NODE, "n2"))
    effects = replica.step(ev.RecordSynced(nonce, old), 10)
    assert kinds(effects) == ["SteppedDown", "RoleChanged", "WriteRecord"]
    assert effects[-1].record.overtaken == 5
    assert effects[-1].record.version == 11
    assert replica.reason.startswith(
        "metastore-rollback: the record is at version 11, this replica has seen version 12"
    )
    assert kinds(replica.step(ev.RecordSeen(nominated(epoch=6, version=30)), 20)) == ["WriteRecord"]
    assert replica.role is ReplicaRole.IDLE
    reseeded = nominated(epoch=9, version=13, lineage=1)
    assert replica.step(ev.RecordSeen(reseeded), 30) == [fx.PersistEpoch(9, ME)]


def a_follower_in_epoch_5() -> Replica:
    """A follower of n2 in epoch 5 that has its barrier, and begins another session."""
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    both = frozenset({MEMBER, Member("n2", 9)})
    replica.step(ev.RecordSeen(online(replicas=(NODE, "n2"), isr=both, leader=Incarnation("n2", 50))), 0)
    (_, asked) = replica.step(ev.EpochPersisted(5), 0)
    assert isinstance(asked, fx.Send)
    assert isinstance(asked.message, FollowRequest)
    replica.step(ev.Received("n2", FollowAccepted(5, asked.message.nonce, 20, 15, 21)), 2)
    barrier = make_entry(EntryKind.BARRIER, 5, 20, request_id=b"", origin=b"", time_ms=0)
    replica.step(ev.Received("n2", AppendEntries(5, 1, 20, 4, 20, 21, 12, (NODE, "n2"), (barrier,))), 3)
    replica.step(ev.Persisted(21), 4)
    replica.step(ev.SessionExpired(), 5)
    replica.step(ev.SessionStarted(INC + 7), 6)
    return replica


def test_a_follower_nominated_in_a_followed_epoch_reports_a_metastore_rollback() -> None:
    """H32: this holds even if no earlier process was in that epoch. The same process may not stand in it."""
    replica = a_follower_in_epoch_5()
    again = nominated(version=13, replicas=(NODE, "n2"), candidate=Incarnation(NODE, INC + 7))
    effects = replica.step(ev.RecordSeen(again), 7)
    assert kinds(effects) == ["WriteRecord"]
    assert effects[0].record.overtaken == 5
    assert replica.reason.startswith("metastore-rollback:")


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("leader", [Incarnation("n3", 60), Incarnation("n2", 61)])
def test_no_replica_follows_a_second_leader_of_one_epoch(restarted: bool, leader: Incarnation) -> None:
    """H32: a metastore that lost one epoch elects a leader in the same epoch again. A follower of the first leader
    reports it, from its own state or from that of its previous process; another session of the same node is another
    leader."""
    replica = a_follower_in_epoch_5()
    if restarted:
        replica = a_replica(epoch_seen=5, epoch_owner=Incarnation("n2", 50))
        replica.step(ev.SessionStarted(INC + 7), 6)
    other = online(version=12, replicas=(NODE, "n2", "n3"), leader=leader)
    effects = replica.step(ev.RecordSeen(other), 7)
    assert kinds(effects) == ["WriteRecord"]
    assert effects[0].record.overtaken == 5
    assert replica.role is ReplicaRole.IDLE
    assert replica.reason.startswith(f"metastore-rollback: the record gives epoch 5 to {leader.node}")


def test_the_leader_of_an_epoch_is_learned_if_an_older_version_did_not_store_it() -> None:
    """Older data directories have epochs alone: the first record that names the leader completes the entry."""
    replica = a_replica(epoch_seen=5)
    replica.step(ev.SessionStarted(INC), 0)
    led = online(replicas=(NODE, "n2"), leader=Incarnation("n2", 50))
    assert replica.step(ev.RecordSeen(led), 0)[0] == fx.PersistEpoch(5, Incarnation("n2", 50))
    assert replica.role is ReplicaRole.FOLLOWER


def test_a_record_below_the_durable_epoch_is_refused_as_a_rollback() -> None:
    """H32: a newer version with a lower epoch means that the metastore lost a confirmed write; the replica steps down
    and reports it."""
    replica = a_serving_leader()
    effects = replica.step(ev.RecordSeen(a_record(epoch=3, version=40)), 0)
    assert kinds(effects) == ["SteppedDown", "RoleChanged", "WriteRecord"]
    assert replica.reason.startswith("metastore-rollback:")
    assert replica.epoch == 5
    again = a_replica(epoch_seen=9)
    again.step(ev.SessionStarted(INC), 0)
    (write,) = again.step(ev.RecordSeen(nominated(epoch=5)), 0)
    assert isinstance(write, fx.WriteRecord)
    assert (write.record.version, write.record.epoch, write.record.overtaken) == (nominated().version, 5, 9)
    assert (write.record.status, write.record.candidate) == (PartitionStatus.OFFLINE, None)
    assert again.reason.startswith("metastore-rollback: the record is at epoch 5, this replica has seen epoch 9")
    assert again.step(ev.RecordSeen(a_record(epoch=10, version=60)), 0) == [fx.PersistEpoch(10)]
    assert again.reason.startswith("election:")


def test_a_disk_error_ends_everything_by_way_of_stepping_down() -> None:
    """H20, H34: the effects are SteppedDown, then Failed; no later event has an effect."""
    replica = a_serving_leader()
    replica.step(ev.Append(5, some_entries(5, 21, 2)), 0)
    replica.step(ev.Persisted(22), 0)
    effects = replica.step(ev.PersistFailed("EIO"), 0)
    assert kinds(effects) == ["SteppedDown", "RoleChanged", "RoleChanged"]
    assert [e.role for e in effects if isinstance(e, fx.RoleChanged)] == [ReplicaRole.IDLE, ReplicaRole.FAILED]
    assert (replica.role, replica.reason) == (ReplicaRole.FAILED, "disk-failed: EIO")
    assert replica.step(ev.RecordSeen(nominated(epoch=9, version=90)), 0) == []
    assert replica.step(ev.Persisted(23), 0) == []
    assert replica.step(ev.Append(5, some_entries(5, 23, 2)), 0) == [fx.AppendRefused("out-of-storage", 2)]
    assert replica.step(ev.AppliedTo(22), 0) == []
    assert replica.applied == 22
    assert replica.durable == 22
    assert replica.deadline_ms() is None


def test_every_idle_state_names_what_it_waits_for() -> None:
    """The reason has a stable code and names the node or the metastore's reason."""
    replica = a_replica()
    assert replica.reason.startswith("no-session:")
    replica.step(ev.SessionStarted(INC), 0)
    assert replica.reason.startswith("no-record:")
    replica.step(ev.RecordSeen(a_record(version=20)), 0)
    assert replica.reason.startswith("election:")
    offline = replace(a_record(version=21), status=PartitionStatus.OFFLINE, reason="waits for n2 (not registered)")
    replica.step(ev.RecordSeen(offline), 0)
    assert replica.reason == "offline: waits for n2 (not registered)"
    replica.step(ev.RecordSeen(nominated(epoch=4, version=22, candidate=Incarnation("n2", 1))), 0)
    assert replica.reason == "candidate-found: n2 is to lead in epoch 4"
    replica.step(ev.RecordSeen(online(epoch=4, version=23, leader=Incarnation("n2", 1), replicas=("n2",))), 0)
    assert replica.reason == "removed: this node is no longer a replica; n2 leads in epoch 4"
    elsewhere = online(epoch=4, version=24, leader=Incarnation("n2", 1), replicas=(NODE, "n2"))
    idle = a_replica()
    idle.step(ev.SessionStarted(INC), 0)
    idle.step(ev.RecordSeen(replace(elsewhere, epoch=5)), 0)
    assert idle.reason == "led-elsewhere: n2 leads in epoch 5"
    replicas = (NODE, "n2")
    replica.step(ev.RecordSeen(online(epoch=4, version=24, leader=Incarnation("n2", 1), replicas=replicas)), 0)
    assert replica.reason == "asking: has asked n2 where the logs agree"


def test_a_recorded_rollback_stays_refused_until_the_lineage_rises() -> None:
    """H32: after the rollback is recorded, higher epochs do not clear it, whoever wrote them; only an operator's
    command, which raises the lineage, does."""
    replica = a_replica(epoch_seen=9)
    replica.step(ev.SessionStarted(INC), 0)
    (write,) = replica.step(ev.RecordSeen(a_record(epoch=5, version=30)), 0)
    assert isinstance(write, fx.WriteRecord)
    assert replica.step(ev.WriteConfirmed(replace(write.record, version=31)), 0) == []
    assert kinds(replica.step(ev.RecordSeen(a_record(epoch=12, version=32)), 0)) == ["WriteRecord"]
    assert replica.reason.startswith("metastore-rollback:")
    assert replica.step(ev.RecordSeen(a_record(epoch=13, version=33, lineage=1)), 0) == [fx.PersistEpoch(13)]


def test_a_stale_read_is_no_rollback() -> None:
    """H32: a lagging server of the metastore returns an old record; a write on it is refused, and the replica
    continues."""
    replica = a_replica(epoch_seen=9)
    replica.step(ev.SessionStarted(INC), 0)
    (write,) = replica.step(ev.RecordSeen(a_record(epoch=5, version=30)), 0)
    assert isinstance(write, fx.WriteRecord)
    replica.step(ev.WriteRefused(30, a_record(epoch=9, version=50)), 0)
    assert replica.reason.startswith("election:")


def test_a_write_of_unknown_outcome_is_repeated_at_the_next_pass() -> None:
    """H32: until the record has the rollback, others may be elected by it."""
    replica = a_replica(epoch_seen=9)
    replica.step(ev.SessionStarted(INC), 0)
    (write,) = replica.step(ev.RecordSeen(a_record(epoch=5, version=30)), 0)
    assert replica.step(ev.WriteOutcomeUnknown(30), 0) == []
    assert replica.step(ev.RecordSeen(a_record(epoch=5, version=30)), 2_000) == [write]
    moved = replica.step(ev.RecordSeen(a_record(epoch=6, version=31)), 4_000)
    assert isinstance(moved[0], fx.WriteRecord)
    assert moved[0].record.version == 31


def test_a_nomination_in_a_used_epoch_is_a_rollback_for_good() -> None:
    """H32: a nomination names a session, so it was made after the session had begun; in an epoch that an earlier
    process was in it means that the metastore went back, even if no older record was ever seen because others nominated
    faster."""
    replica = a_replica(epoch_seen=5)
    replica.step(ev.SessionStarted(INC), 0)
    (write,) = replica.step(ev.RecordSeen(nominated(epoch=5)), 0)
    assert isinstance(write, fx.WriteRecord)
    assert (write.record.status, write.record.overtaken) == (PartitionStatus.OFFLINE, 5)
    assert replica.role is ReplicaRole.IDLE
    other = online(epoch=6, version=70, leader=Incarnation("n2", 1), replicas=(NODE, "n2"))
    assert kinds(replica.step(ev.WriteRefused(write.record.version, other), 0)) == ["WriteRecord"]
    assert replica.role is ReplicaRole.IDLE  # it does not follow


def test_a_leaving_candidate_is_no_proof_of_a_metastore_rollback() -> None:
    """H32: it has been in the epoch of its nomination because it stood. After it is told to resign, it takes no part,
    and the partition does not go offline when the record of that nomination changes again."""
    replica = a_candidate()
    assert kinds(replica.step(ev.Resign(None), 0)) == ["RoleChanged"]
    assert replica.step(ev.RecordSeen(nominated(min_isr=1, version=80)), 0) == []
    assert replica.reason.startswith("resigned:")


def test_a_replica_left_out_by_a_forced_election_stops_no_other() -> None:
    """H32: if it was forced or re-seeded without it, the partition may be in a lower epoch than this replica was; the
    replica waits alone."""
    replica = a_replica(epoch_seen=9)
    replica.step(ev.SessionStarted(INC), 0)
    without = online(epoch=5, leader=Incarnation("n2", 1), isr=frozenset({Member("n2", 1)}), lineage=1)
    assert replica.step(ev.RecordSeen(without), 0) == []
    assert replica.reason.startswith("metastore-rollback:")
    assert kinds(replica.step(ev.RecordSeen(nominated(epoch=6, lineage=1, version=90)), 0)) == ["WriteRecord"]


def test_a_replica_without_newer_state_accepts_a_recorded_rollback() -> None:
    """H32: a replica that was never in the lost epochs stops leading, with the reason."""
    replica = a_serving_leader()
    gone = overtaken(a_record(epoch=5, version=60), 9, "n2")
    assert kinds(replica.step(ev.RecordSeen(gone), 0)) == ["SteppedDown", "RoleChanged"]
    assert replica.reason.startswith("metastore-rollback: n2 has been in epoch 9, the metastore went back to 5")


@pytest.mark.parametrize("broken", [False, True])
def test_a_follow_request_that_precedes_the_own_election_is_answered_after_it(broken: bool) -> None:
    """A follower may learn of a leadership before the leader itself does: its request is answered once this replica
    leads, not only when it is repeated; unless the connection broke meanwhile, so that the answer would be lost."""
    two = Member("n2", 9)
    isr = frozenset({MEMBER, two})
    replica = a_replica()
    replica.step(ev.SessionStarted(INC), 0)
    replica.step(ev.RecordSeen(nominated(replicas=(NODE, "n2"), isr=isr)), 0)
    replica.step(ev.EpochPersisted(5), 0)
    replica.step(ev.Persisted(21), 0)
    table = ((2, 0), (4, 8))
    for node, nonce in (("n2", 1), ("n2", 2), ("n3", 3)):
        assert replica.step(ev.Received(node, FollowRequest(5, two.log_id, nonce, 20, 20, table)), 5) == []
    if broken:
        replica.step(ev.LinkDown("n2"), 6)
    effects = replica.step(ev.RecordSeen(online(replicas=(NODE, "n2"), isr=isr)), 10)
    answers = [
        (e.to, e.message.nonce) for e in effects if isinstance(e, fx.Send) and isinstance(e.message, FollowAccepted)
    ]
    assert answers == ([] if broken else [("n2", 2)])

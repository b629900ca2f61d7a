"""Resignation and conditional writes: drain, one write at a time, repeated verbatim until decided (R-AMBIG, H14)."""

from __future__ import annotations

from dataclasses import replace

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.lag_detector import AckLagTracker
from isthmus.repl.isr.leader import Leader, ResigningLeader
from isthmus.repl.isr.membership import WRITE_ANSWER_MS, WRITE_REPEAT_MS
from isthmus.repl.isr.replica import Replica, ReplicaRole
from isthmus.repl.model.record import Incarnation, Member, PartitionStatus
from isthmus.repl.model.vclock import MAX_EPOCH
from tests.support.replica_builders import (
    MEMBER,
    a_candidate,
    a_replica,
    a_serving_leader,
    kinds,
    nominated,
    online,
    some_entries,
)


def a_resigned() -> tuple[Replica, fx.WriteRecord]:
    """A leader that resigned at time 0 with nothing to drain, and its write."""
    replica = a_serving_leader()
    effects = replica.step(ev.Resign(), 0)
    assert kinds(effects) == ["RoleChanged", "WriteRecord"]
    write = effects[-1]
    assert isinstance(write, fx.WriteRecord)
    return replica, write


def test_a_resigning_leader_drains_before_it_gives_leadership_up() -> None:
    """Nothing new is appended; the record is written once all appended entries are applied."""
    replica = a_serving_leader()
    replica.step(ev.Append(5, some_entries(5, 21, 2)), 0)
    assert kinds(replica.step(ev.Resign(), 0)) == ["RoleChanged"]
    assert (replica.role, replica.ready) == (ReplicaRole.RESIGNING, False)
    assert replica.reason.startswith("resigning: drains")
    assert replica.step(ev.Append(5, some_entries(5, 23, 1)), 0) == [fx.AppendRefused("not-ready", 1)]
    assert replica.step(ev.Persisted(23), 0) == [fx.Apply(23)]
    assert replica.step(ev.AppliedTo(22), 0) == []
    effects = replica.step(ev.AppliedTo(23), 0)
    assert kinds(effects) == ["WriteRecord"]
    assert isinstance(effects[0], fx.WriteRecord)
    written = effects[0].record
    assert (written.status, written.leader, written.epoch) == (PartitionStatus.ELECTION, None, 5)
    assert written.version == 12


def test_a_leader_nominates_a_successor_whose_session_it_knows() -> None:
    """R-NOMINATE: the record that ends the leadership has the target as candidate of the next epoch. If its session is
    unknown, or after the last epoch, a controller elects."""
    isr = frozenset({MEMBER, Member("n2", 9)})
    for sessions, epoch, nominates in (({"n2": 44}, 5, True), ({"n3": 44}, 5, False), ({"n2": 44}, MAX_EPOCH, False)):
        leader = Leader(epoch, 20, AckLagTracker.since(0), dict.fromkeys(isr, 21))
        record = online(epoch, isr=isr, replicas=(MEMBER.node, "n2"))
        written = ResigningLeader(leader, "n2", None, "resigned", sessions)._resigned(record, MEMBER.node, "n2")
        assert (written.leader, written.isr, written.version) == (None, record.isr, record.version)
        if nominates:
            assert (written.status, written.epoch) == (PartitionStatus.CANDIDATE_FOUND, epoch + 1)
            assert (written.candidate, written.tried, written.preferred) == (Incarnation("n2", 44), {"n2"}, None)
        else:
            assert (written.status, written.epoch) == (PartitionStatus.ELECTION, epoch)
            assert (written.candidate, written.tried, written.preferred) == (None, frozenset(), "n2")


def test_a_confirmed_resignation_ends_leadership_with_nothing_unknown() -> None:
    """SteppedDown names the log's end: every client has its answer."""
    replica, write = a_resigned()
    effects = replica.step(ev.WriteConfirmed(replace(write.record, version=13)), 5)
    assert kinds(effects) == ["SteppedDown", "RoleChanged"]
    assert isinstance(effects[0], fx.SteppedDown)
    assert effects[0].unknown_from == replica.leo
    assert replica.role is ReplicaRole.IDLE


def test_a_resigned_replica_never_stands_for_election_again() -> None:
    """A resignation is final for the process: it does not answer nominations, and the reason says why."""
    replica, write = a_resigned()
    replica.step(ev.WriteConfirmed(replace(write.record, version=13)), 5)
    replica.step(ev.RecordSeen(nominated(epoch=6, version=14)), 6)
    assert replica.step(ev.EpochPersisted(6), 7) == []
    assert replica.reason == "resigned: this process is leaving"
    candidate = a_candidate()
    assert kinds(candidate.step(ev.Resign(), 0)) == ["RoleChanged"]
    assert candidate.role is ReplicaRole.IDLE
    idle = a_replica()
    assert idle.step(ev.Resign(), 0) == []


def test_an_undecided_write_is_repeated_verbatim_until_the_version_has_moved() -> None:
    """R-AMBIG: the write has the same bytes and the same base at each deadline, for any other events; meanwhile nothing
    is served."""
    replica, write = a_resigned()
    assert replica.step(ev.WriteOutcomeUnknown(12), 100) == []
    assert replica.deadline_ms() == 100 + WRITE_REPEAT_MS
    assert replica.step(ev.Tick(), 100 + WRITE_REPEAT_MS - 1) == []
    assert replica.step(ev.Tick(), 100 + WRITE_REPEAT_MS) == [write]
    assert replica.step(ev.WriteOutcomeUnknown(12), 400) == []
    assert replica.step(ev.Tick(), 400 + WRITE_REPEAT_MS) == [write]
    assert replica.step(ev.Append(5, some_entries(5, 21, 1)), 700) == [fx.AppendRefused("not-ready", 1)]
    assert replica.step(ev.Resign(), 700) == []
    assert replica.role is ReplicaRole.RESIGNING
    assert kinds(replica.step(ev.RecordSeen(replace(write.record, version=13)), 800)) == ["SteppedDown", "RoleChanged"]
    assert replica.deadline_ms() is None


def test_a_write_without_any_answer_is_repeated_too() -> None:
    """A lost answer does not block the partition."""
    replica, write = a_resigned()
    assert replica.deadline_ms() == WRITE_ANSWER_MS
    assert replica.step(ev.Tick(), WRITE_ANSWER_MS) == [write]
    assert replica.deadline_ms() == 2 * WRITE_ANSWER_MS


def test_a_refused_record_write_is_recomputed_on_the_newer_record() -> None:
    """H16: the version changed while this process still leads: the write is recomputed, and never repeated on the old
    base."""
    replica, write = a_resigned()
    moved = online(version=15, min_isr=1, lineage=2)
    effects = replica.step(ev.WriteRefused(12, moved), 50)
    assert kinds(effects) == ["WriteRecord"]
    assert isinstance(effects[0], fx.WriteRecord)
    assert (effects[0].record.version, effects[0].record.lineage) == (15, 2)
    assert effects[0] != write


def test_a_refusal_that_shows_no_newer_record_decides_nothing() -> None:
    """A lagging read after the refusal leaves the write undecided, and it is repeated on the same base."""
    replica, write = a_resigned()
    assert replica.step(ev.WriteRefused(12, online()), 50) == []
    assert replica.deadline_ms() == 50 + WRITE_REPEAT_MS
    assert replica.step(ev.Tick(), 50 + WRITE_REPEAT_MS) == [write]


def test_late_answers_about_an_older_write_are_ignored() -> None:
    """An unknown outcome of another base neither delays nor hastens the pending write."""
    replica, _ = a_resigned()
    due_ms = replica.deadline_ms()
    assert replica.step(ev.WriteOutcomeUnknown(11), 60) == []
    assert replica.deadline_ms() == due_ms


def test_a_tick_before_the_deadline_does_nothing() -> None:
    """Ticks are harmless at any time, in any role."""
    for replica in (a_replica(), a_candidate(), a_serving_leader(), a_resigned()[0]):
        assert replica.step(ev.Tick(), 1) == []

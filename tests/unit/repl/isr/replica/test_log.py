"""The leader's log: refused, committed and applied entries (R-COMMIT)."""

from __future__ import annotations

import pytest

from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr.replica import Replica
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.record import Member
from tests.support.replica_builders import MEMBER, a_candidate, a_leader, a_serving_leader, kinds, online, some_entries

OTHER = Member("n2", 9)
TWO = ("n1", "n2")


def test_durable_then_committed_then_applied() -> None:
    """An append only requests durability; the next steps follow from events, batch by batch."""
    replica = a_serving_leader()
    batch = some_entries(5, 21, 4)
    assert replica.step(ev.Append(5, batch), 0) == [fx.Persist(batch)]
    assert (replica.leo, replica.high_watermark, replica.durable) == (25, 21, 21)
    assert replica.step(ev.Persisted(23), 0) == [fx.Apply(23)]
    assert replica.step(ev.Persisted(23), 0) == []
    assert replica.step(ev.Persisted(25), 0) == [fx.Apply(25)]
    assert replica.step(ev.AppliedTo(23), 0) == []
    assert (replica.high_watermark, replica.applied) == (25, 23)


def test_batches_may_follow_each_other_before_anything_is_durable() -> None:
    """Appends are pipelined: group commit sees them all."""
    replica = a_serving_leader()
    for offset in (21, 23, 25):
        assert kinds(replica.step(ev.Append(5, some_entries(5, offset, 2)), 0)) == ["Persist"]
    assert replica.step(ev.Persisted(27), 0) == [fx.Apply(27)]


@pytest.mark.parametrize(
    ("epoch", "entries"),
    [
        (4, some_entries(4, 21, 1)),
        (6, some_entries(6, 21, 1)),
        (5, some_entries(4, 21, 1)),
        (5, some_entries(5, 20, 1)),
        (5, some_entries(5, 22, 1)),
        (5, some_entries(5, 21, 1) + some_entries(5, 23, 1)),
        (5, some_entries(5, 21, 1) + some_entries(6, 22, 1)),
    ],
)
def test_a_batch_for_another_epoch_or_place_is_fenced(epoch: int, entries: tuple[object, ...]) -> None:
    """Only a batch made in this epoch for exactly the log's end is appended; others have no effect (R-FENCE)."""
    replica = a_serving_leader()
    assert replica.step(ev.Append(epoch, entries), 0) == [fx.AppendRefused("fenced", len(entries))]  # type: ignore[arg-type]
    assert replica.leo == 21


@pytest.mark.parametrize(
    ("replica", "code"),
    [
        (a_candidate(), "not-ready"),
        (a_leader(), "not-ready"),
        (Replica(3, "n1", 7, 0, (), 0, 0, ReplicaOptions(window_entries=1), 0), "not-leader"),
    ],
)
def test_nothing_is_appended_before_the_barrier_is_applied(replica: Replica, code: str) -> None:
    """A candidate, a leader without an applied barrier, and an idle replica each definitely refuse the whole batch."""
    batch = some_entries(5, replica.leo, 2)
    assert replica.step(ev.Append(5, batch), 0) == [fx.AppendRefused(code, 2)]


def test_the_window_bounds_what_is_not_applied() -> None:
    """At most ten entries wait; one more is overloaded until something is applied."""
    replica = a_serving_leader()
    assert replica.step(ev.Append(5, some_entries(5, 21, 11)), 0) == [fx.AppendRefused("overloaded", 11)]
    replica.step(ev.Append(5, some_entries(5, 21, 9)), 0)
    assert replica.step(ev.Append(5, some_entries(5, 30, 2)), 0) == [fx.AppendRefused("overloaded", 2)]
    assert kinds(replica.step(ev.Append(5, some_entries(5, 30, 1)), 0)) == ["Persist"]
    replica.step(ev.Persisted(31), 0)
    assert replica.step(ev.Append(5, some_entries(5, 31, 1)), 0) == [fx.AppendRefused("overloaded", 1)]
    replica.step(ev.AppliedTo(22), 0)
    assert kinds(replica.step(ev.Append(5, some_entries(5, 31, 1)), 0)) == ["Persist"]


def test_another_member_in_sync_holds_the_commit_back() -> None:
    """All members of the ISR must have acknowledged; a replica that was never a member does not count."""
    replica = a_leader(online(replicas=TWO, isr=frozenset({MEMBER, OTHER})))
    assert replica.high_watermark == 15
    assert replica.step(ev.Persisted(21), 0) == []
    alone = online(replicas=TWO, isr=frozenset({MEMBER}), version=13)
    assert replica.step(ev.RecordSeen(alone), 0) == [fx.Apply(21)]


def test_below_min_isr_nothing_is_appended_or_committed() -> None:
    """With one of two required members, writes are refused with not-enough-replicas, and appended entries wait."""
    replica = a_serving_leader()
    replica.step(ev.Append(5, some_entries(5, 21, 1)), 0)
    replica.step(ev.RecordSeen(online(replicas=TWO, min_isr=2, version=13)), 0)
    assert replica.step(ev.Persisted(22), 0) == []
    assert replica.reason == "stalled: below min-ISR (1 of 2 in sync; waits for n2)"
    assert replica.step(ev.Append(5, some_entries(5, 22, 1)), 0) == [fx.AppendRefused("not-enough-replicas", 1)]
    assert replica.step(ev.RecordSeen(online(replicas=TWO, min_isr=1, version=14)), 0) == [fx.Apply(22)]


def test_min_isr_is_clamped_to_the_replication_factor() -> None:
    """min.isr 3 over one replica asks for one."""
    replica = a_leader(online(min_isr=3))
    assert replica.high_watermark == 21


def test_an_eligible_member_outside_the_isr_holds_the_commit_back_until_it_is_cleared() -> None:
    """H22: the leader empties the ELR by a write of its own, and commits only under the confirmed record."""
    record = online(replicas=TWO, elr=frozenset({OTHER}))
    replica = a_candidate()
    replica.step(ev.Persisted(21), 0)
    effects = replica.step(ev.RecordSeen(record), 0)
    assert kinds(effects) == ["RoleChanged", "WriteRecord"]
    assert replica.high_watermark == 15
    assert replica.reason.startswith("stalled: waits until the metastore confirms that n2")
    cleared = online(replicas=TWO, version=13)
    assert effects[-1] == fx.WriteRecord(online(replicas=TWO))
    assert replica.step(ev.WriteConfirmed(cleared), 0) == [fx.Apply(21)]


def test_durability_beyond_the_logs_end_is_a_bug() -> None:
    """The core asserts that events about its own log are plausible."""
    replica = a_serving_leader()
    with pytest.raises(AssertionError, match="durable up to 22"):
        replica.step(ev.Persisted(22), 0)
    with pytest.raises(AssertionError, match="applied up to 22"):
        replica.step(ev.AppliedTo(22), 0)


def test_same_events_same_effects() -> None:
    """The core is deterministic: two replicas with the same events have the same effects."""
    script: list[tuple[ev.Event, int]] = [
        (ev.Append(5, some_entries(5, 21, 3)), 5),
        (ev.Persisted(23), 9),
        (ev.Tick(), 9),
        (ev.AppliedTo(23), 12),
        (ev.Resign(), 20),
        (ev.Persisted(24), 21),
        (ev.AppliedTo(24), 25),
        (ev.WriteOutcomeUnknown(12), 900),
        (ev.Tick(), 2_000),
    ]
    one, two = a_serving_leader(), a_serving_leader()
    assert [one.step(e, t) for e, t in script] == [two.step(e, t) for e, t in script]
    assert one.deadline_ms() == two.deadline_ms()

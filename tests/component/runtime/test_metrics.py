"""Times, rates and failures of entries, and sizes of logs: the numbers that replication is watched by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isthmus.repl.isr.effects import ReplicaRole
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.errors import OutcomeUnknown
from isthmus.repl.model.record import Member
from isthmus.repl.runtime.entry_timestamps import EntryTimestamps
from isthmus.repl.runtime.latency import LOST, TIMED_OUT, WINDOW_MS, Durations, ReplicationLatency
from isthmus.repl.runtime.metrics import ISR, LEADER, OSR, ReplogSizes, part_of, replog_sizes, samples
from tests.component.runtime.test_several_nodes import put
from tests.support.runtime_cluster import Cluster

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


def entry(offset: int, kind: EntryKind = EntryKind.DATA) -> Entry:
    return make_entry(kind, 1, offset, request_id=b"", origin=b"o" * 16, time_ms=0)


def a_partition(leo: int = 0, hw: int = 0) -> Any:
    """The attributes of a partition that the metrics read."""
    replica = SimpleNamespace(leo=leo, high_watermark=hw)
    return SimpleNamespace(bucket_type=b"default", timestamps=EntryTimestamps(), replica=replica)


def test_the_rate_window_drops_values_older_than_two_windows() -> None:
    """Rate and maximum are of the last one or two windows; after a silence of two there is nothing recent."""
    durations = Durations(0)
    durations.add(900, 10, 1_000)
    assert durations.recent(2_000)[:3] == (10, 9_000, 900)
    assert durations.recent(2_000).per_s == 5
    durations.add(10, 2, WINDOW_MS + 1_000)
    assert durations.recent(WINDOW_MS + 2_000)[:3] == (12, 9_020, 900)
    assert durations.recent(2 * WINDOW_MS + 2_000)[:3] == (2, 20, 10)
    assert durations.recent(9 * WINDOW_MS)[:3] == (0, 0, 0)
    assert durations.recent(9 * WINDOW_MS).per_s == 0
    assert durations.count == 12


def test_the_recent_past_is_no_longer_than_two_windows_however_seldom_something_happens() -> None:
    """A maximum or a rate never covers older events, even when no event arrived and it was not read meanwhile."""
    durations = Durations(0)
    durations.add(900, 1, 1_000)
    durations.add(10, 1, 2 * WINDOW_MS - 1_000)
    recent = durations.recent(3 * WINDOW_MS - 2_000)
    assert (recent.added, recent.max_ms) == (1, 10)
    assert WINDOW_MS <= recent.span_ms <= 2 * WINDOW_MS


def test_an_entry_is_timed_from_append_to_apply_and_from_commit_to_apply() -> None:
    """Replicate is the time from append to apply, apply its part from the commit on, both by kind; a batch that is
    applied in two steps counts once, with its last step."""
    times, partition = ReplicationLatency(), a_partition(leo=3)
    times.appended(partition, EntryKind.DATA, 3, 100)
    partition.replica.leo = 4
    times.appended(partition, EntryKind.CURSOR, 1, 105)
    times.applied([(partition, [entry(0), entry(1)])], 130, 150)
    assert times.replicated_times(150) == {}
    times.applied([(partition, [entry(2), entry(3, EntryKind.CURSOR)])], 130, 160)
    replicated, applied = times.replicated_times(160), times.applied_times(160)
    assert {kind: (t.entries, t.recent.total_ms) for (_, kind), t in replicated.items()} == {
        "write": (3, 180),
        "cursor": (1, 55),
    }
    assert {kind: (t.entries, t.recent.total_ms) for (_, kind), t in applied.items()} == {
        "write": (3, 20 + 20 + 30),
        "cursor": (1, 30),
    }
    assert times.batches == 2
    assert not partition.timestamps._appended


def test_entries_lost_with_a_leadership_are_failures_and_committed_ones_are_not() -> None:
    """When leadership ends, entries above hw fail as lost; those below it are still timed when they are applied;
    refused entries fail under the reason that their client gets."""
    times, partition = ReplicationLatency(), a_partition(leo=2, hw=2)
    times.appended(partition, EntryKind.DATA, 2, 0)
    partition.replica.leo = 5
    times.appended(partition, EntryKind.DATA, 3, 0)
    times.role_changed(partition, ReplicaRole.RESIGNING, 7)
    assert times.failures() == {}
    times.role_changed(partition, ReplicaRole.IDLE, 8)
    assert times.failures() == {(b"default", "write", LOST): 3}
    times.applied([(partition, [entry(0), entry(1)])], 8, 9)
    assert times.replicated_times(9)[b"default", "write"].entries == 2
    times.refused(partition, [entry(2), entry(3, EntryKind.CURSOR)], "not-enough-replicas", 9)
    assert times.failures() == {
        (b"default", "write", LOST): 3,
        (b"default", "write", "not-enough-replicas"): 1,
        (b"default", "cursor", "not-enough-replicas"): 1,
    }


def test_failures_have_a_rate_of_the_recent_past() -> None:
    """A single failure is a low rate; 60 in a window are one or two a second; those of yesterday do not count in the
    rate, but in the total."""
    times, partition = ReplicationLatency(), a_partition()
    key = (b"default", "write", TIMED_OUT)
    times.timed_out(partition, 1, 100_000)
    assert times.recent_failures(100_000)[key].per_s <= 1000 / WINDOW_MS
    times.timed_out(partition, 59, 101_000)
    assert 1 <= times.recent_failures(101_000)[key].per_s <= 2
    assert times.recent_failures(100_000 + 4 * WINDOW_MS)[key].per_s == 0
    assert times.failures()[key] == 60


async def test_a_write_that_is_not_replicated_in_time_is_a_failure(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both followers are cut off: a write waits for min-ISR and is answered 504. It counts at its leader as timed out,
    with a rate; a write that is replicated does not."""

    async with start_cluster(tmp_path, options=ReplicaOptions(max_time_lag_ms=60_000)) as t:
        leader = await t.led()
        await put(leader, b"well", b"v")
        assert leader.runtime.latency.failures() == {}
        for member in t.followers():
            t.network.isolate(member.node)
        monkeypatch.setattr(leader.coordinator._timeouts, "_timeout_s", 0.2)
        with pytest.raises(OutcomeUnknown, match="no outcome within"):
            await put(leader, b"late", b"v")
        times, now_ms = leader.runtime.latency, leader.runtime.time.now_ms()
        assert times.failures() == {(b"default", "write", TIMED_OUT): 1}
        assert times.recent_failures(now_ms)[b"default", "write", TIMED_OUT].per_s > 0


def test_an_apply_step_counts_all_its_partitions() -> None:
    """Entries of several partitions that are applied in one step are counted by bucket type and kind, with the step's
    one time from the commit on, and each with the time of its own append."""
    times, one, other, third = ReplicationLatency(), a_partition(leo=2), a_partition(leo=3), a_partition(leo=1)
    third.bucket_type = b"third"
    times.appended(one, EntryKind.DATA, 2, 100)
    times.appended(other, EntryKind.DATA, 3, 90)
    times.applied(
        [
            (one, [entry(0), entry(1)]),
            (other, [entry(0), entry(1), entry(2)]),
            (third, [entry(0, EntryKind.CURSOR)]),
        ],
        150,
        160,
    )
    applied, replicated = times.applied_times(160), times.replicated_times(160)
    assert {of: (t.entries, t.recent.total_ms) for of, t in applied.items()} == {
        (b"default", "write"): (5, 50),
        (b"third", "cursor"): (1, 10),
    }
    assert {of: (t.entries, t.recent.total_ms) for of, t in replicated.items()} == {
        (b"default", "write"): (5, 2 * 60 + 3 * 70)
    }
    assert times.batches == 2


async def test_a_cluster_counts_its_entries_by_role(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """In a cluster of three, one node counts its log as leader and two as isr; a node whose log id is not in the record
    counts as osr; barriers and writes are timed, and the size of the ISR is recorded with the min-ISR in force."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        for number in range(5):
            await put(leader, b"k%d" % number, b"v")
        await t.level()
        sizes = {
            member.node: replog_sizes([member.partition()], member.runtime.replog) for member in t.members.values()
        }
        assert sorted(part for found in sizes.values() for _, part in found) == [ISR, ISR, LEADER]
        ends = {tuple(found.values()) for found in sizes.values()}
        assert ends == {(ReplogSizes(1, leader.partition().replica.leo, leader.partition().replica.leo, 0, 0),)}
        runtime = leader.runtime
        now_ms = runtime.time.now_ms()
        counted = {kind: each.entries for (_, kind), each in runtime.latency.replicated_times(now_ms).items()}
        assert counted == {"barrier": 1, "write": 5}
        told = samples([leader.partition()], runtime.replog, runtime.store, now_ms)
        found = {name: value for name, _, value in told}
        assert (found["isthmus_isr_worst_members"], found["isthmus_isr_worst_min_isr"]) == (3, 2)
        follower = t.followers()[0].partition()
        follower.replica._state.member = Member(follower.replica.member.node, 99)
        assert part_of(follower) == OSR

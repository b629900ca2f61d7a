"""The scheduler with a test clock: due and skipped checks, operators' commands, and the history."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from msgpack import packb

from isthmus.aae.exchange.compare import BehindSide, ComparedRow, KeyDifference
from isthmus.aae.exchange.compare import DifferenceKind as DifferenceKind
from isthmus.aae.exchange.exchange import ExchangeVerdict, Findings
from isthmus.aae.exchange.run import ExchangeOutcome
from isthmus.aae.fullsync_metrics import samples
from isthmus.aae.scheduling import check
from isthmus.aae.scheduling.check import PeerCheck, PeerChecker, Repairs, rest_s
from isthmus.aae.scheduling.gap_healing import GapHealer, Gaps, GapToHeal
from isthmus.aae.scheduling.history import NAMED_BYTES, DifferingKeys, FullSyncHistory, _plain
from isthmus.aae.scheduling.last_comparison import ComparedDifferences, last_comparisons
from isthmus.aae.scheduling.proofs import Proof, QueueMarks
from isthmus.aae.scheduling.schedule import DAY_MS, HOUR_MS, CheckKind, TimeRange, parse_window
from isthmus.aae.scheduling.scheduler import Busy, CheckCluster, CheckScheduler, UnknownPeer
from isthmus.config.settings import FullSyncSettings
from isthmus.node.nouns.fullsync import FullSyncOfNode
from isthmus.node.services.queue_coverage import Owner, Owners
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.keys import Key
from tests.support.fullsync_fakes import FakeMembers, FakeProofs
from tests.support.fullsync_listings import checks_of, days_of

pytestmark = pytest.mark.virtual_time

START = 1_699_920_000_000  # midnight UTC

WEST = FullSyncSettings("west", "http://10.0.0.7:8098", "to-west", auto_count=0, hour_count=24)


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.ms = START

    def wall_ms(self) -> int:
        """Now."""
        return self.ms

    def now_ms(self) -> int:
        """Now."""
        return self.ms


class FakeAlarm:
    """An Alarm that a test rings."""

    def __init__(self) -> None:
        self.at_ms: int | None = None
        self.call: Callable[[], None] = lambda: None

    def set_at(self, wall_ms: int, call: Callable[[], None]) -> None:
        """See Alarm."""
        self.at_ms, self.call = wall_ms, call

    def stop(self) -> None:
        """See Alarm."""
        self.at_ms = None


class FakeChecker(PeerChecker):
    """A checker whose results the test sets; `gate` blocks it."""

    def __init__(self) -> None:
        self.checks: list[PeerCheck] = []
        self.outcomes: list[ExchangeVerdict] = []
        self.gate: asyncio.Event | None = None
        self.modified_ms = []
        self.buckets = set()
        self.named = {}
        self.sent = {}
        self.differences = self.unexplained = 0
        self.unseen = ""
        self.lacking: set[str] = set()

    @property
    def cluster(self) -> bytes | None:
        """See Checker."""
        return None

    def counts(self, key: Key) -> bool:
        """See Checker."""
        return key.bucket != b"private"

    async def check(self, check: PeerCheck, findings: Findings) -> ExchangeOutcome:
        """See Checker."""
        self.checks.append(check)
        if check.bucket_type in self.lacking:
            return ExchangeOutcome(ExchangeVerdict.ERROR, "no such bucket type there", findings, type_missing=True)
        findings.by_kind.update({(DifferenceKind.BEHIND, BehindSide.SINK): self.differences})
        findings.queued = self.differences
        findings.segments_unexplained = self.unexplained
        if self.gate is not None:
            await self.gate.wait()
        verdict = self.outcomes.pop(0) if self.outcomes else ExchangeVerdict.IN_SYNC
        if verdict is not ExchangeVerdict.IN_SYNC:
            findings.branches_differing = 1
        return ExchangeOutcome(verdict, self.unseen, findings, retryable=bool(self.unseen))

    def close(self) -> None:
        """See Checker."""


class SchedulerFixture:
    """A scheduler, its clock, its alarm and its checkers."""

    def __init__(
        self,
        directory: Path,
        *settings: FullSyncSettings,
        live: Sequence[str] = ("n1",),
        node: str = "n1",
        start_ms: int = START,
    ) -> None:
        self.clock = Clock()
        self.clock.ms = start_ms
        self.alarm = FakeAlarm()
        self.checkers = {one.name: FakeChecker() for one in settings}
        directory.mkdir(exist_ok=True)
        self.history = FullSyncHistory(directory, start_ms)
        self.members = FakeMembers(list(live))
        self.scheduler = CheckScheduler(
            settings,
            CheckCluster(node, self.members, self.members, lambda _: 0),
            checkers=self,
            history=self.history,
            alarm=self.alarm,
            proofs=FakeProofs(),
            time=self.clock,
        )
        self.scheduler.start()

    def open(self, settings: FullSyncSettings) -> FakeChecker:
        """See Checkers."""
        return self.checkers[settings.name]

    async def pass_until(self, end_ms: int) -> None:
        """Let the alarm ring whenever it is due until `end_ms`."""
        while self.alarm.at_ms is not None and self.alarm.at_ms <= end_ms:
            self.clock.ms = max(self.clock.ms, self.alarm.at_ms)
            self.alarm.call()
            for _ in range(50):
                await asyncio.sleep(0)
            await asyncio.sleep(0.002)
            while self.scheduler.running is not None:
                await asyncio.sleep(0.002)
        self.clock.ms = end_ms


async def ended(fixture: SchedulerFixture) -> None:
    """Let what began come to its end."""
    await asyncio.sleep(0)
    while fixture.scheduler._reserved_by:
        await asyncio.sleep(0.002)


async def wait_until_running(fixture: SchedulerFixture) -> None:
    """Let what was asked for, or is due, begin."""
    while fixture.scheduler.running is None:
        await asyncio.sleep(0.002)


class NoGaps(Gaps):
    """A queue that gave nothing up."""

    async def open_gaps(self, queue: str, cluster: bytes | None) -> Sequence[GapToHeal]:
        """See Gaps."""
        assert queue
        return []

    async def close(self, gaps: Sequence[GapToHeal], proofs: Mapping[str, Proof], by: str, reason: str) -> int:
        """See Gaps."""
        raise AssertionError

    def marks(self, queue: str) -> QueueMarks:
        """See Gaps."""
        return QueueMarks(queue, "any", frozenset())

    def waiting(self, queue: str) -> int:
        """See Gaps."""
        raise AssertionError


def operator_view(fixture: SchedulerFixture, owners: Owners = MappingProxyType({"to-west": None})) -> dict[str, Any]:
    """The status that operators see."""
    shown: dict[str, Any] = msgspec.to_builtins(struct_view(fixture, owners))
    return shown


def struct_view(fixture: SchedulerFixture, owners: Owners = MappingProxyType({"to-west": None})) -> FullSyncOfNode:
    """The same, as nodes send it."""
    healing = GapHealer(fixture.scheduler, NoGaps(), fixture.clock)
    return checks_of(fixture.scheduler, healing, 10, fixture.clock.ms, owners)


async def test_a_day_has_the_configured_checks(tmp_path: Path) -> None:
    """With two peers, each check of the day runs once, and two days run twice as many."""

    east = FullSyncSettings("east", "http://10.0.0.8:8098", "to-east", auto_count=0, all_count=2, day_count=3)
    fixture = SchedulerFixture(tmp_path, WEST, east)
    await fixture.pass_until(START + 2 * DAY_MS - 1)
    counts = Counter(check.kind for check in fixture.checkers["east"].checks)
    assert counts == {CheckKind.ALL: 4, CheckKind.DAY: 6}
    assert Counter(check.kind for check in fixture.checkers["west"].checks) == {CheckKind.HOUR: 48}
    await fixture.scheduler.stop()
    assert fixture.alarm.at_ms is None


async def test_a_missing_queue_is_reported_as_delisted(tmp_path: Path) -> None:
    """The reason names the effect on checks; gaps of the removed queue are not known."""

    fixture = SchedulerFixture(tmp_path, WEST)
    (here,), (gone,) = operator_view(fixture)["peers"], operator_view(fixture, {})["peers"]
    assert (here["queue_delisted"], gone["queue_delisted"], gone["gaps_open"]) == (False, True, None)
    assert gone["reason"].startswith("there is no queue to-west: delisted")


async def test_a_queue_of_another_cluster_is_reported(tmp_path: Path) -> None:
    """The cluster is compared by uuid once it has answered, before that by the name in the settings. Without either,
    nothing is reported; nor is a queue without an owner."""

    fixture = SchedulerFixture(tmp_path, WEST, replace(WEST, name="named", cluster="west"))
    plain, named = operator_view(fixture, {"to-west": Owner("north", "ab" * 16)})["peers"]
    assert plain["queue_of_other"] is None, "no cluster has answered, and the settings name none"
    assert named["queue_of_other"] == "north"
    assert named["reason"].startswith("queue to-west belongs to north, and west is compared with: repairs go to")
    assert not any(one["queue_of_other"] for one in operator_view(fixture, {"to-west": None})["peers"])
    assert not any(
        one["queue_of_other"] for one in operator_view(fixture, {"to-west": Owner("west", "cd" * 16)})["peers"]
    )
    for peer in fixture.scheduler.peers.values():
        peer.history.cluster = "ab" * 16
    assert not any(
        one["queue_of_other"] for one in operator_view(fixture, {"to-west": Owner("old name", "ab" * 16)})["peers"]
    )
    plain, named = operator_view(fixture, {"to-west": Owner("west", "cd" * 16)})["peers"]
    assert plain["reason"].startswith(f"queue to-west belongs to west, and cluster {'ab' * 16} is compared with")
    assert f"belongs to another cluster of that name, {'cd' * 16}, and west is" in named["reason"]


async def test_without_configured_checks_the_scheduler_is_idle(tmp_path: Path) -> None:
    """No alarm is set."""

    assert SchedulerFixture(tmp_path / "a").alarm.at_ms is None
    assert SchedulerFixture(tmp_path / "b", replace(WEST, hour_count=0)).alarm.at_ms is None
    assert SchedulerFixture(tmp_path / "c", replace(WEST, hour_count=0, none_count=5)).alarm.at_ms is None


async def test_nodes_of_a_cluster_check_at_different_moments(tmp_path: Path) -> None:
    """The rank among the live nodes determines the moment; a node that leaves moves it back."""

    fixture = SchedulerFixture(tmp_path, WEST, live=["n0", "n1", "n2"])
    assert fixture.alarm.at_ms == START + HOUR_MS // 3
    fixture.members.live = ["n1"]
    await fixture.pass_until(START + HOUR_MS // 3)
    assert fixture.alarm.at_ms == START + HOUR_MS


async def test_a_check_of_all_peers_goes_from_one_to_the_next(tmp_path: Path) -> None:
    """Asked for without a name, every peer is checked in turn, and nothing else begins in between."""

    fixture = SchedulerFixture(tmp_path, WEST, replace(WEST, name="east"))
    gate = fixture.checkers["east"].gate = asyncio.Event()
    assert fixture.scheduler.begin(None, CheckKind.ALL, "ann") == ["west", "east"]
    while not fixture.checkers["east"].checks:
        await asyncio.sleep(0.002)
    assert [len(fixture.checkers[name].checks) for name in ("west", "east")] == [1, 1]
    with pytest.raises(Busy, match="a check of east is running"):
        fixture.scheduler.begin(None, CheckKind.ALL, "bob")
    gate.set()
    await ended(fixture)
    assert {check.by for one in fixture.checkers.values() for check in one.checks} == {"ann"}
    await fixture.scheduler.set_range(None, TimeRange(1, 2))
    assert {peer.history.schedule_state.learned for peer in fixture.scheduler.peers.values()} == {TimeRange(1, 2)}
    nobody = SchedulerFixture(tmp_path / "nobody")
    with pytest.raises(UnknownPeer, match="compares with no cluster"):
        nobody.scheduler.begin(None, CheckKind.ALL, "ann")


async def test_one_check_runs_at_a_time_and_what_is_due_meanwhile_follows(tmp_path: Path) -> None:
    """A check that becomes due during a long check begins after it, unless it is late by then; a manual check in the
    meantime is Busy."""

    east = replace(WEST, name="east")
    fixture = SchedulerFixture(tmp_path, WEST, east)
    gate = fixture.checkers["west"].gate = asyncio.Event()
    fixture.alarm.call()
    await wait_until_running(fixture)
    with pytest.raises(Busy, match="a check of west is running"):
        fixture.scheduler.begin("east", CheckKind.ALL, "ann")
    fixture.clock.ms = START + HOUR_MS // 2 + 1
    fixture.alarm.call()
    await asyncio.sleep(0.01)
    assert fixture.checkers["east"].checks == []
    gate.set()
    await ended(fixture)
    fixture.alarm.call()
    while not fixture.checkers["east"].checks:
        await asyncio.sleep(0.002)
    await ended(fixture)
    assert len(fixture.checkers["east"].checks) == 1
    results = await fixture.scheduler.run("east", CheckKind.ALL, "ann")
    assert [(result.by, result.verdict, result.proven) for result in results] == [
        ("ann", ExchangeVerdict.IN_SYNC, True)
    ]
    gate.clear()
    fixture.clock.ms = START + HOUR_MS
    fixture.alarm.call()
    await wait_until_running(fixture)
    fixture.clock.ms = START + 4 * HOUR_MS
    gate.set()
    await ended(fixture)
    assert [one.reason for one in fixture.scheduler.peers["east"].skipped] == ["late", "late"]


async def test_a_late_check_is_skipped_and_shown(tmp_path: Path) -> None:
    """After hours asleep only the next check runs."""

    fixture = SchedulerFixture(tmp_path, WEST)
    fixture.clock.ms = START + 5 * HOUR_MS + HOUR_MS // 2 + 5
    fixture.alarm.call()
    await asyncio.sleep(0.01)
    assert fixture.checkers["west"].checks == []
    assert [one.reason for one in fixture.scheduler.peers["west"].skipped] == ["late"] * 6
    assert fixture.alarm.at_ms == START + 6 * HOUR_MS
    assert [row["reason"] for row in days_of(fixture.scheduler)[0]["skipped"]] == ["late"] * 6


async def test_a_suspended_peer_is_left_alone_also_after_a_restart(tmp_path: Path) -> None:
    """Nothing is due until it is resumed; who, when and why are kept; an operator may still run one."""

    fixture = SchedulerFixture(tmp_path, WEST)
    await fixture.scheduler.suspend("west", "ann", "maintenance")
    await fixture.pass_until(START + 3 * HOUR_MS)
    assert fixture.checkers["west"].checks == []
    await fixture.scheduler.stop()
    again = SchedulerFixture(tmp_path, WEST)
    row = operator_view(again)["peers"][0]
    assert (row["state"], row["reason"]) == ("suspended", "by ann: maintenance")
    assert row["suspended"] == {"by": "ann", "at_ms": START, "reason": "maintenance"}
    await again.scheduler.run("west", CheckKind.HOUR, "bob")
    assert len(again.checkers["west"].checks) == 1
    await again.scheduler.resume(None)
    await again.pass_until(START + 3 * HOUR_MS)
    assert len(again.checkers["west"].checks) == 4 + 1
    with pytest.raises(UnknownPeer, match="known: west"):
        await again.scheduler.suspend("east", "ann", "")


async def test_results_and_proofs_survive_a_restart(tmp_path: Path) -> None:
    """The results, and the times at which both clusters are proven equal, are kept; a check of an hour with differing
    leaves proves nothing."""

    fixture = SchedulerFixture(tmp_path, WEST)
    checker = fixture.checkers["west"]
    await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    fixture.clock.ms += 5_000
    checker.outcomes, checker.differences = [ExchangeVerdict.REPAIRED], 7
    await fixture.scheduler.run("west", CheckKind.HOUR, "ann")
    checker.outcomes, checker.differences = [ExchangeVerdict.TIMED_OUT], 0
    await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    await fixture.scheduler.stop()
    row = operator_view(SchedulerFixture(tmp_path, WEST))["peers"][0]
    assert [result["verdict"] for result in row["results"]] == ["in-sync", "repaired", "timed-out"]
    assert row["results"][1]["differences"] == {"behind@sink": 7}
    assert row["proven_ms"] == {"default": START}
    names = {(name, labels.get("verdict")): value for name, labels, value in samples(fixture.scheduler, START + 9_000)}
    assert names["isthmus_fullsync_checks_total", "repaired"] == 1
    assert names["isthmus_fullsync_proven_age_seconds", None] == 9.0
    assert names["isthmus_fullsync_checks_per_day", None] == 24
    (tmp_path / "fullsync.0").write_bytes(b"rubbish")
    (tmp_path / "fullsync.1").write_bytes(b"rubbish")
    assert operator_view(SchedulerFixture(tmp_path, WEST))["peers"][0]["results"] == []


async def test_auto_goes_by_what_was_found(tmp_path: Path) -> None:
    """After a check in sync it compares changes since then; after differences a day, or everything in its hours. A
    range that was set comes first, and once."""

    fixture = SchedulerFixture(tmp_path, replace(WEST, hour_count=0, auto_count=24, all_window="never"))
    checker = fixture.checkers["west"]
    checker.outcomes = [ExchangeVerdict.IN_SYNC, ExchangeVerdict.REPAIRED, ExchangeVerdict.REPAIRED]
    checker.differences = 3
    for _ in range(3):
        await fixture.scheduler.run("west", CheckKind.AUTO, "")
    await fixture.scheduler.set_range("west", TimeRange(5, 9, b"b"))
    await fixture.scheduler.run("west", CheckKind.AUTO, "")
    await fixture.scheduler.run("west", CheckKind.RANGE, "")
    kinds = [(check.kind, None if check.times is None else check.times.since_ms) for check in checker.checks]
    assert kinds == [
        (CheckKind.RANGE, START),
        (CheckKind.RANGE, START),
        (CheckKind.DAY, START - DAY_MS),
        (CheckKind.RANGE, 5),
        (CheckKind.RANGE, START),
    ]


async def test_the_history_of_keys_is_bounded(tmp_path: Path) -> None:
    """The first of many keys are kept, fewer if they are long, with a share for each bucket type; the omission is
    reported."""

    fixture = SchedulerFixture(tmp_path, replace(WEST, bucket_types="default,other"))
    for name, length in ((b"default", 10), (b"other", 1_000)):
        keys = {(b"b", b"%0*d" % (length, n)): "missing@sink" for n in range(5_000)}
        fixture.checkers["west"].named[name] = DifferingKeys(START, keys, True)
    await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    await fixture.scheduler.stop()
    assert sum(len(packb(one)) for one in _plain(fixture.history.peer("west"), NAMED_BYTES // 2)["named"]) < NAMED_BYTES
    named = SchedulerFixture(tmp_path, WEST).scheduler.peers["west"].history.named
    assert [len(named[name].keys) for name in (b"default", b"other")] == [1_000, 126]
    assert not any(one.every for one in named.values())


def test_windows_of_the_settings() -> None:
    """Hours, always, never."""
    assert parse_window("always").contains(0)
    assert not parse_window("never").contains(0)
    assert parse_window("22-6").contains(23 * HOUR_MS)
    assert all(parse_window("0-24").contains(hour * HOUR_MS) for hour in range(24))


def test_repairs_pause_while_the_loop_is_late() -> None:
    """A loop that is on time causes no pause, a late one a pause that grows with the delay, up to a limit."""
    assert rest_s(-0.001) == rest_s(0.0) == rest_s(0.019) == 0.0
    assert rest_s(0.05) == pytest.approx(0.5)
    assert rest_s(60.0) == 2.0


class FakeRepairs(Repairs):
    """Takes keys up to its room."""

    def __init__(self) -> None:
        self.keys: list[Key] = []
        self.remembered: set[Key] = set()
        self.waiting_count = 0

    async def recall(self, keys: Sequence[Key]) -> Collection[Key]:
        """See Repairs."""
        return self.remembered.intersection(keys)

    def waiting(self, queue: str) -> int:
        """See Repairs."""
        return self.waiting_count

    def refused_count(self, queue: str) -> int:
        """See Repairs."""
        return 0

    async def push(self, queue: str, keys: Sequence[Key]) -> int:
        """See Repairs."""
        assert queue == "to-west"
        self.keys += keys
        return len(keys)

    def key_filter(self, queue: str, bucket_type: bytes) -> Callable[[bytes, bytes], bool] | None:
        """See Repairs."""
        assert bucket_type == b"default"
        if queue != "to-west":
            raise BadInput("no such queue")
        return None


class FakePeerTrees:
    """The other cluster's half that takes repairs."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[tuple[bytes, bytes]]]] = []

    async def repair(self, queue: str, bucket_type: bytes, names: Iterable[tuple[bytes, bytes]]) -> int:
        """See PeerTrees."""
        assert bucket_type == b"default"
        self.told.append((queue, list(names)))
        return len(self.told[-1][1])


@pytest.mark.parametrize("both_ways", [False, True])
async def test_rows_ahead_here_are_repaired_and_corrupt_ones_never(both_ways: bool) -> None:
    """Keys that are ahead here, or changed on both sides, are queued. Keys that are ahead there are left alone unless
    the peer is bidirectional. Corrupt keys are never queued."""

    def row(key: bytes) -> ComparedRow:
        return ComparedRow(b"b", key, b"\x90", 1, 5_000, False)

    differences = [
        KeyDifference(b"b", b"1", DifferenceKind.MISSING, BehindSide.SINK, row(b"1"), None),
        KeyDifference(b"b", b"2", DifferenceKind.CONCURRENT, BehindSide.BOTH, row(b"2"), row(b"2")),
        KeyDifference(b"b", b"3", DifferenceKind.CORRUPT, BehindSide.BOTH, row(b"3"), row(b"3")),
        KeyDifference(b"b", b"4", DifferenceKind.BEHIND, BehindSide.SOURCE, row(b"4"), row(b"4")),
    ]
    queue, other = FakeRepairs(), FakePeerTrees()
    settings = replace(WEST, bidirectional=both_ways, peer_queue="to-east", repair_rate_limit_count=0)
    checker = PeerChecker(settings, source=None, sink=other, repairs=queue, random=Random(1))  # type: ignore[arg-type]

    async def work() -> int:
        return sum([taken async for taken in checker.enqueue(b"default", differences)])

    queued = await work()
    assert [key.key for key in queue.keys] == [b"1", b"2"]
    assert other.told == ([("to-east", [(b"b", b"4")])] if both_ways else [])
    assert queued == (3 if both_ways else 2)
    assert checker.modified_ms == [5_000, 5_000]
    assert checker.buckets == {b"b"}


async def test_the_last_comparison_of_a_key_is_shown(tmp_path: Path) -> None:
    """A key is equal after a check in sync. It is diverged if a check named it, and equal after a check with
    differences only if that check compared and named all. It is unreachable if a check could not compare it, never did,
    or its record was dropped, and filtered if the queue's filter excludes it. A restart keeps this. The reaper is
    warned about keys that may be diverged."""

    fixture = SchedulerFixture(tmp_path, WEST, replace(WEST, name="north", bucket_types="other"))
    checker = fixture.checkers["west"]
    key = Key(b"default", b"b", b"k")

    def told(of: Key = key) -> tuple[str, str | None]:
        (row,) = last_comparisons(fixture.scheduler, of)
        assert row["fullsync"] == "west"
        may_be = row["verdict"] == "diverged" or (row["verdict"], row["check"]) == ("unreachable", "repaired")
        assert ("full-sync west" in ComparedDifferences(fixture.scheduler).difference_of(of)) == may_be
        return row["verdict"], row["difference"]

    async def checked(verdict: ExchangeVerdict, *named: bytes, every: bool = True) -> None:
        fixture.clock.ms += 1_000
        keys = {(b"b", name): "missing@sink" for name in named}
        checker.named[b"default"] = DifferingKeys(fixture.clock.ms, keys, every)
        checker.outcomes = [verdict]
        await fixture.scheduler.run("west", CheckKind.ALL, "ann")

    assert told() == ("unknown", None), "no check has looked"
    await checked(ExchangeVerdict.IN_SYNC)
    assert told() == ("match", None)
    assert told(Key(b"default", b"private", b"k")) == ("filtered", None)
    await checked(ExchangeVerdict.REPAIRED, b"k", b"other")
    assert told() == ("diverged", "missing@sink")
    assert [(one["key"], one["difference"]) for one in operator_view(fixture)["peers"][0]["named"]] == [
        ("k", "missing@sink"), ("other", "missing@sink"),
    ]  # fmt: skip
    await checked(ExchangeVerdict.REPAIRED, b"other")
    assert told() == ("match", None)
    await checked(ExchangeVerdict.REPAIRED, b"other", every=False)
    assert told() == ("unreachable", None)
    await checked(ExchangeVerdict.TIMED_OUT, b"k")
    assert told() == ("diverged", "missing@sink")
    await checked(ExchangeVerdict.TIMED_OUT)
    assert told() == ("unreachable", None)
    (row,) = last_comparisons(fixture.scheduler, key)
    assert (row["check"], row["kind"], row["at_ms"]) == ("timed-out", "all", fixture.clock.ms)
    assert row["proven_ms"] == START + 1_000
    await checked(ExchangeVerdict.REPAIRED, b"k", b"other")
    await fixture.scheduler.stop()
    fixture = SchedulerFixture(tmp_path, WEST, replace(WEST, name="north", bucket_types="other"))
    assert told() == ("diverged", "missing@sink")
    assert told(Key(b"default", b"b", b"third")) == ("match", None)
    assert [one["key"] for one in operator_view(fixture)["peers"][0]["named"]] == ["k", "other"]
    fixture.checkers["west"].named.clear()  # as it was written by an earlier version
    assert "not known any more" in last_comparisons(fixture.scheduler, key)[0]["reason"]


async def test_the_reaper_sees_differences_that_a_range_check_could_not_explain(tmp_path: Path) -> None:
    """A check that found segments that differ by changes outside its range has differences that it could not name, so
    any key may be one. A check without access has found none."""

    fixture = SchedulerFixture(tmp_path, WEST)
    checker, key = fixture.checkers["west"], Key(b"default", b"b", b"k")
    for unexplained in (2, 0):
        checker.unexplained = unexplained
        checker.outcomes = [ExchangeVerdict.INCOMPLETE]
        await fixture.scheduler.run("west", CheckKind.RANGE, "ann")
        assert ("could not name" in ComparedDifferences(fixture.scheduler).difference_of(key)) == bool(unexplained)
    await fixture.scheduler.stop()


async def test_the_reaper_waits_for_no_key_that_only_the_other_side_has_newer(tmp_path: Path) -> None:
    """One-way, and the sink has more keys of its own than a check names: its clocks contain our tombstones where they
    are newer, so no tombstone waits for it. A key that the sink lacks, and one that a check could not name because more
    was lacking, hold their tombstone up (R-UPTODATE)."""

    fixture = SchedulerFixture(tmp_path, WEST)
    checker, key = fixture.checkers["west"], Key(b"default", b"b", b"k")
    for verdict, named, every, waits in (
        (ExchangeVerdict.UP_TO_DATE, {(b"b", b"k"): "behind@source"}, True, ""),
        (ExchangeVerdict.UP_TO_DATE, {(b"b", b"other"): "missing@source"}, False, ""),
        (ExchangeVerdict.REPAIRED, {(b"b", b"k"): "behind@source", (b"b", b"a"): "missing@sink"}, True, ""),
        (ExchangeVerdict.REPAIRED, {(b"b", b"k"): "behind@sink"}, True, "found the key different"),
        (ExchangeVerdict.REPAIRED, {(b"b", b"k"): "concurrent@both"}, True, "found the key different"),
        (ExchangeVerdict.REPAIRED, {(b"b", b"other"): "missing@sink"}, False, "could not name"),
    ):
        checker.named[b"default"] = DifferingKeys(START, named, every)
        checker.outcomes = [verdict]
        await fixture.scheduler.run("west", CheckKind.ALL, "ann")
        said = ComparedDifferences(fixture.scheduler).difference_of(key)
        assert (waits in said) if waits else not said, verdict
    await fixture.scheduler.stop()


async def test_the_keys_named_by_a_check_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first differences are kept by name; a check that did not finish drops none of an earlier one."""

    for limit, named in ((5, [b"1", b"2", b"3"]), (2, [b"1", b"2"])):
        monkeypatch.setattr(check, "NAMED_MAX", limit)
        found = [
            KeyDifference(b"b", b"%d" % n, DifferenceKind.MISSING, BehindSide.SOURCE, None, None) for n in (1, 2, 3)
        ]

        async def told(
            *_: object, findings: Findings, actions: Any, found: Any = found, **__: object
        ) -> ExchangeOutcome:
            findings.by_kind[DifferenceKind.MISSING, BehindSide.SOURCE] = len(found)
            await actions.repair(found)
            return ExchangeOutcome(ExchangeVerdict.DIFFERING, "", findings)

        monkeypatch.setattr(check, "run", told)
        checker = PeerChecker(WEST, source=None, sink=None, repairs=FakeRepairs(), random=Random(1))  # type: ignore[arg-type]
        await checker.check(PeerCheck("default", CheckKind.ALL, None, "", START), Findings())
        kept = checker.named[b"default"]
        assert (kept.began_ms, kept.every) == (START, limit == 5)
        assert kept.keys == {(b"b", key): "missing@source" for key in named}
        found = [KeyDifference(b"b", b"0", DifferenceKind.MISSING, BehindSide.SOURCE, None, None)]

        async def ended(
            *_: object, findings: Findings, actions: Any, found: Any = found, **__: object
        ) -> ExchangeOutcome:
            await actions.repair(found)
            return ExchangeOutcome(ExchangeVerdict.ERROR, "the other side is away", findings)

        monkeypatch.setattr(check, "run", ended)
        await checker.check(PeerCheck("default", CheckKind.ALL, None, "", START + 1), Findings())
        kept = checker.named[b"default"]
        assert (kept.began_ms, kept.every) == (START + 1, False)
        assert set(kept.keys) == {(b"b", key) for key in [*named, b"0"][:limit]}


async def test_all_bucket_types_are_compared_also_those_made_later(tmp_path: Path) -> None:
    """`bucket_types = "*"` is resolved at each check. A type that the other cluster lacks is reported, not proven, not
    retried before its slot, and does not fail the others."""

    fixture = SchedulerFixture(tmp_path, WEST)
    types = ["default"]
    fixture.members.bucket_types = types
    fixture.scheduler.start()
    checker = fixture.checkers["west"]
    await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    types.append("other")
    checker.lacking = {"other"}
    results = await fixture.scheduler.run("west", CheckKind.ALL, "ann")
    assert [check.bucket_type for check in checker.checks] == ["default", "default", "other"]
    assert [(result.bucket_type, result.lacking, result.proven) for result in results] == [
        ("default", False, True),
        ("other", True, False),
    ]
    history = fixture.scheduler.peer("west").history
    assert history.proven_ms.keys() == {"default"}
    assert not history.schedule_state.failed
    assert fixture.scheduler.peer("west").retry is None
    assert fixture.scheduler.peer("west").bucket_types == ["default", "other"]
    await fixture.scheduler.stop()

"""Gaps of queues, and queued repairs, start checks automatically, until a proof ends them (I-AAE-HEAL)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from isthmus.aae.exchange.compare import BehindSide, DifferenceKind
from isthmus.aae.exchange.exchange import ExchangeVerdict, Findings
from isthmus.aae.exchange.run import ExchangeOutcome
from isthmus.aae.exchange.wire import PartitionHistory
from isthmus.aae.scheduling.check import PeerCheck, PeerChecker
from isthmus.aae.scheduling.gap_healing import (
    FOLLOWING,
    MARGIN_MS,
    POLL_S,
    WAIT_MS,
    GapHealer,
    Gaps,
    GapToHeal,
    is_proven,
    proven,
    range_to_check,
    repairs_unproven,
)
from isthmus.aae.scheduling.history import CheckResult, FullSyncHistory, PeerHistory
from isthmus.aae.scheduling.proofs import Proof, ProvenOffset, QueueMarks
from isthmus.aae.scheduling.schedule import DAY_MS, HOUR_MS, RANGE_AHEAD_MS, CheckKind, PeerScheduleState, TimeRange
from isthmus.aae.scheduling.scheduler import CheckCluster, CheckScheduler
from isthmus.config.settings import FullSyncSettings
from tests.support.fullsync_fakes import FakeMembers, FakeProofs

pytestmark = pytest.mark.virtual_time

START = 1_699_920_000_000  # midnight UTC
WEST = FullSyncSettings("west", "http://10.0.0.7:8098", "to-west", auto_count=0, hour_count=1)
WEST_UUID = b"\xb0" * 16
DEFAULT = frozenset({"default"})
BOTH = frozenset({"default", "other"})
NOW = PartitionHistory(0, 0)
ENDED = GapToHeal("1:10", "to-west", DEFAULT, START - 60_000, START - 50_000, 1, NOW, 20)
GROWING = GapToHeal("2:10", "to-west", DEFAULT, START - 60_000, None, 2, NOW)
FOREIGN = GapToHeal("3:10", "to-west", frozenset({"other"}), START - 60_000, START - 50_000, 3, NOW, 20)
LOWER = GapToHeal("n2:2:9", "to-west", BOTH, START - 70_000, START - 65_000, mark="n2:2:9:4")
MARKS = QueueMarks("to-west", "any", frozenset())


def proof(losses: Collection[tuple[str, str]] = (), **offsets: int) -> Proof:
    """A proof of partitions up to their offsets (`p1=20`), and of losses."""
    found = {int(name[1:]): ProvenOffset(NOW, offset) for name, offset in offsets.items()}
    return Proof(MARKS._replace(losses=frozenset(losses)), found)


def test_a_gap_is_proven_by_the_offsets_that_were_compared() -> None:
    """A proof closes a gap if the trees of each of its bucket types had applied everything below its end, in the same
    history of the partition; whenever it was made. Bulk references may be of every type that their queue accepts: their
    loss must have been recorded before the check of each. A growing gap, a gap whose leader reports no history, and a
    partition whose tree reported no offset are not proven."""
    gaps = [ENDED, LOWER, GROWING, FOREIGN]
    assert proven(gaps, {"default": proof(p1=20, p2=99)}) == [ENDED]
    assert proven(gaps, {"default": proof(p1=19)}) == []
    assert proven(gaps, {"default": proof(p2=99), "other": proof(p1=99)}) == []
    assert proven(gaps, {"other": proof(p3=20)}) == [FOREIGN]
    lost = [("to-west", "n2:2:9:4")]
    assert proven(gaps, {"default": proof(lost), "other": proof(lost)}) == [LOWER]
    assert proven(gaps, {"default": proof(lost), "other": proof()}) == []
    assert proven(gaps, {"default": proof(lost), "other": proof([("rt", "n2:2:9:4")])}) == []
    assert proven([LOWER._replace(mark="n2:2:9:5")], {"default": proof(lost), "other": proof(lost)}) == []
    for history in (None, PartitionHistory(1, 0), PartitionHistory(0, 7)):
        assert proven([ENDED._replace(history=history)], {"default": proof(p1=99)}) == []
    assert proven(gaps, {}) == proven([ENDED._replace(bucket_types=frozenset())], {"default": proof(p1=99)}) == []


def test_a_later_proof_takes_nothing_back() -> None:
    """A partition that the trees of a later check did not report stays proven as far as it was; one by another queue or
    filter begins anew."""
    before = proof([("to-west", "x")], p1=20, p2=20)
    after = proof(p1=30).after(before)
    assert after == proof(p1=30, p2=20)
    other = Proof(MARKS._replace(filter="bucket:b"), {})
    assert other.after(before) == other
    assert proof(p1=30).after(None) == proof(p1=30)


def test_the_times_of_gaps_make_the_range_of_a_check() -> None:
    """Ended gaps of compared bucket types make one range, whatever this node's clock says."""
    assert range_to_check([GROWING, FOREIGN, LOWER], ["default"]) is None
    assert range_to_check([ENDED, GROWING, FOREIGN], ["default"]) == TimeRange(
        START - 60_000 - MARGIN_MS, START - 50_000 + MARGIN_MS
    )
    assert range_to_check([ENDED, LOWER], ["default", "other"]) == TimeRange(
        START - 70_000 - MARGIN_MS, START - 50_000 + MARGIN_MS
    )


class Clock:
    """A clock that the test moves."""

    ms = START

    def wall_ms(self) -> int:
        """Now."""
        return self.ms

    def now_ms(self) -> int:
        """Now."""
        return self.ms


class FakeAlarm:
    """An Alarm that never rings."""

    def set_at(self, wall_ms: int, call: object) -> None:
        """See Alarm."""

    def stop(self) -> None:
        """See Alarm."""


class FakeChecker(PeerChecker):
    """A checker whose results the test sets."""

    def __init__(self, outcomes: Sequence[ExchangeVerdict]) -> None:
        self.outcomes = list(outcomes)
        self.queues = 0
        self.uuid = WEST_UUID
        self.unexplained = self.ahead = self.lacks = 0
        self.checks: list[PeerCheck] = []
        self.modified_ms = []
        self.buckets = set()
        self.named = {}
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def cluster(self) -> bytes | None:
        """See Checker."""
        return self.uuid

    async def check(self, check: PeerCheck, findings: Findings) -> ExchangeOutcome:
        """See Checker."""
        self.checks.append(check)
        self.meanwhile()
        verdict = self.outcomes.pop(0)
        findings.queued = self.queues if verdict is ExchangeVerdict.REPAIRED else 0
        findings.segments_unexplained = self.unexplained
        found = {
            (DifferenceKind.MISSING, BehindSide.SOURCE): self.ahead,
            (DifferenceKind.MISSING, BehindSide.SINK): self.lacks,
        }
        findings.by_kind.update({what: count for what, count in found.items() if count})
        findings.branches_differing = int(verdict is not ExchangeVerdict.IN_SYNC)
        return ExchangeOutcome(verdict, "", findings)

    def close(self) -> None:
        """See Checker."""


class FakeGaps(Gaps):
    """The gaps and references of the queues; `proofs`: those of the trees that are compared."""

    def __init__(self, *gaps: GapToHeal) -> None:
        self.gaps = list(gaps)
        self.proofs = FakeProofs()
        self.proofs.losses = {(gap.queue, gap.mark) for gap in gaps if gap.mark}

    async def open_gaps(self, queue: str, cluster: bytes | None) -> Sequence[GapToHeal]:
        """See Gaps."""
        assert queue == "to-west"
        assert cluster in (None, WEST_UUID)
        return list(self.gaps)

    async def close(self, gaps: Sequence[GapToHeal], proofs: Mapping[str, Proof], by: str, reason: str) -> int:
        """See Gaps."""
        assert (by, reason) == ("full-sync", "west is up to date")
        before = len(self.gaps)
        closed = {(gap.queue, gap.id) for gap in gaps}
        self.gaps = [gap for gap in self.gaps if (gap.queue, gap.id) not in closed or not is_proven(gap, proofs)]
        return before - len(self.gaps)

    def marks(self, queue: str) -> QueueMarks:
        """See Gaps."""
        return self.proofs.marks(queue)

    references = 0

    def waiting(self, queue: str) -> int:
        """See Gaps."""
        assert queue == "to-west"
        return self.references


def scheduler_of(
    directory: Path,
    checker: PeerChecker,
    clock: Clock,
    settings: FullSyncSettings = WEST,
    proofs: FakeProofs | None = None,
    skew_ms: Callable[[Sequence[str]], int] = lambda _: 0,
) -> CheckScheduler:
    """One that has begun."""
    scheduler = CheckScheduler(
        [settings],
        CheckCluster("n1", FakeMembers(), FakeMembers(), skew_ms),
        checkers=SimpleNamespace(open=lambda _: checker),  # type: ignore[arg-type]
        history=FullSyncHistory(directory, START),
        alarm=FakeAlarm(),
        proofs=proofs or FakeProofs(),
        time=clock,
    )
    scheduler.start()
    return scheduler


@pytest.mark.parametrize("explained", [True, False])
async def test_a_gap_is_checked_until_it_is_proven(tmp_path: Path, explained: bool) -> None:
    """A gap starts a check of its times; after repairs, another one follows a while later, or one of everything if its
    times do not explain the differences. Once in sync the gap is closed; a growing gap and a suspended peer are left
    alone."""

    clock, gaps = Clock(), FakeGaps(ENDED, GROWING)
    checker = FakeChecker(
        [ExchangeVerdict.REPAIRED if explained else ExchangeVerdict.INCOMPLETE, ExchangeVerdict.IN_SYNC]
    )
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    healer = GapHealer(scheduler, gaps, clock)
    await scheduler.suspend("west", "me", "")
    await healer.heal("west")
    assert checker.checks == []
    await scheduler.resume("west")
    await scheduler.set_range("west", TimeRange(1, 2))
    for _ in range(3):
        await healer.heal("west")
    assert len(checker.checks) == 1, "the next one waits"
    assert healer.peers["west"].open_count == 2
    clock.ms += WAIT_MS + 1_000 * int(POLL_S)
    await healer.heal("west")
    assert [check.kind for check in checker.checks] == [
        CheckKind.RANGE,
        CheckKind.RANGE if explained else CheckKind.ALL,
    ]
    assert checker.checks[0].times == TimeRange(START - 60_000 - MARGIN_MS, START - 50_000 + MARGIN_MS)
    assert gaps.gaps == [GROWING]
    assert (healer.peers["west"].open_count, healer.peers["west"].closed_count) == (1, 1)
    assert scheduler.peer("west").history.schedule_state.learned == TimeRange(1, 2), "the operator's range is unused"
    await healer.heal("west")
    await healer.stop()
    await scheduler.stop()


async def test_a_sink_with_keys_of_its_own_keeps_no_gap_open(tmp_path: Path) -> None:
    """One-way, and the sink has keys of its own: a check that found all of ours there closes the gap, nothing further
    is checked for it, and the next range begins with that check. Both clusters were not equal then, which is kept
    beside it, and survives a restart (R-UPTODATE)."""

    clock, gaps, checker = Clock(), FakeGaps(ENDED), FakeChecker([ExchangeVerdict.UP_TO_DATE])
    checker.ahead = 3
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert gaps.gaps == []
    clock.ms += WAIT_MS
    await healer.heal("west")
    assert len(checker.checks) == 1
    assert scheduler.peer("west").history.schedule_state == PeerScheduleState(START)
    await scheduler.stop()
    history = scheduler_of(tmp_path, checker, clock).peer("west").history
    assert (history.proven_ms, history.equal_ms) == ({"default": START}, {})
    (result,) = history.results
    assert (result.proven, result.left, result.differences) == (True, 0, {"missing@source": 3})


@pytest.mark.parametrize("lacking", [0, 1])
async def test_repairs_that_only_the_other_side_makes_prove_ours(tmp_path: Path, lacking: int) -> None:
    """A check that asks the other side for its keys ends as repaired: if nothing of ours was missing, it closes the
    gap; one key of ours that was not there keeps it open."""

    clock, gaps, checker = Clock(), FakeGaps(ENDED), FakeChecker([ExchangeVerdict.REPAIRED])
    checker.ahead, checker.lacks, checker.queues = 2, lacking, 2 + lacking
    scheduler = scheduler_of(tmp_path, checker, clock, replace(WEST, bidirectional=True))
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert gaps.gaps == [ENDED] * lacking
    await scheduler.stop()


async def test_a_check_of_a_range_reaches_as_far_as_clocks_differ(tmp_path: Path) -> None:
    """The keys of a range are stamped by the clocks of other nodes and clusters: what is measured of them widens the
    range of every kind, a gap's too; a check of everything has none."""

    clock, gaps, checker = Clock(), FakeGaps(ENDED), FakeChecker([ExchangeVerdict.IN_SYNC] * 3)
    asked: list[Sequence[str]] = []

    def skew_ms(urls: Sequence[str]) -> int:
        asked.append(urls)
        return 30_000

    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs, skew_ms=skew_ms)
    await GapHealer(scheduler, gaps, clock).heal("west")
    await scheduler.run("west", CheckKind.HOUR, "ann")
    await scheduler.run("west", CheckKind.ALL, "ann")
    assert [check.times for check in checker.checks] == [
        TimeRange(START - 60_000 - MARGIN_MS - 30_000, START - 50_000 + MARGIN_MS + 30_000),
        TimeRange(START - HOUR_MS - 30_000, START + RANGE_AHEAD_MS + 30_000),
        None,
    ]
    assert asked == [["http://10.0.0.7:8098"]] * 3
    await scheduler.stop()


async def test_repairs_of_a_range_that_explain_not_all_are_followed_by_a_check_of_everything(tmp_path: Path) -> None:
    """A check of a gap's times that queues repairs, and has segments that differ by other changes, does not explain all
    differences: if that range always had something new, the others would never be compared."""

    clock, checker = Clock(), FakeChecker([ExchangeVerdict.REPAIRED, ExchangeVerdict.IN_SYNC])
    checker.queues, checker.unexplained = 1, 1
    scheduler = scheduler_of(tmp_path, checker, clock)
    healer = GapHealer(scheduler, FakeGaps(ENDED), clock)
    await healer.heal("west")
    clock.ms += WAIT_MS
    await healer.heal("west")
    assert [check.kind for check in checker.checks] == [CheckKind.RANGE, CheckKind.ALL]
    await scheduler.stop()


async def test_a_check_by_hand_closes_the_gaps_that_it_proves(tmp_path: Path) -> None:
    """After a manual check in sync, no unproven gaps remain; one that proved nothing closes nothing. No other check is
    started in either case."""

    clock, gaps = Clock(), FakeGaps(ENDED, GROWING)
    checker = FakeChecker([ExchangeVerdict.INCOMPLETE, ExchangeVerdict.INCOMPLETE, ExchangeVerdict.IN_SYNC])
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    healer = GapHealer(scheduler, gaps, clock)
    healer.start()
    async with asyncio.timeout(5):
        while not checker.checks or scheduler.running is not None:
            await asyncio.sleep(0)
        assert len(checker.checks) == 1, "its own look"
        await scheduler.run("west", CheckKind.ALL, "ann")
        for _ in range(20):
            await asyncio.sleep(0)
        assert gaps.gaps == [ENDED, GROWING]
        await scheduler.run("west", CheckKind.ALL, "ann")
        while ENDED in gaps.gaps:
            await asyncio.sleep(0)
    assert gaps.gaps == [GROWING]
    assert len(checker.checks) == 3
    await healer.stop()
    await scheduler.stop()


async def test_gaps_of_a_real_time_queue_close_though_repairs_go_by_another(tmp_path: Path) -> None:
    """A proof closes the gaps of every queue that the cluster owns, each by its queue and id; a gap with references of
    two bucket types needs two proofs. A gap of the real-time queue begins a check by itself."""

    real_time, lower = ENDED._replace(queue="rt"), LOWER._replace(queue="rt", upto_ms=START - 50_000)
    clock, gaps = Clock(), FakeGaps(ENDED, real_time, lower)
    checker = FakeChecker(
        [ExchangeVerdict.IN_SYNC, ExchangeVerdict.INCOMPLETE, ExchangeVerdict.IN_SYNC, ExchangeVerdict.IN_SYNC]
    )
    scheduler = scheduler_of(tmp_path, checker, clock, replace(WEST, bucket_types="default,other"), gaps.proofs)
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert [check.bucket_type for check in checker.checks] == ["default", "other"]
    assert gaps.gaps == [lower], "of one of its types nothing is proven"
    assert (healer.peers["west"].open_count, healer.peers["west"].open_queues) == (1, ("rt",))
    clock.ms += WAIT_MS
    await healer.heal("west")
    assert gaps.gaps == []
    await scheduler.stop()


async def test_a_proof_for_another_cluster_closes_no_gap(tmp_path: Path) -> None:
    """Another cluster now answers at the same address: its first answer discards the proofs for the old one, also after
    a restart."""

    clock, checker = Clock(), FakeChecker([ExchangeVerdict.IN_SYNC, ExchangeVerdict.INCOMPLETE])
    scheduler = scheduler_of(tmp_path, checker, clock)
    await scheduler.run("west", CheckKind.ALL, "ann")
    await scheduler.stop()
    scheduler = scheduler_of(tmp_path, checker, clock)
    history = scheduler.peer("west").history
    assert (history.cluster, history.proven_ms) == (WEST_UUID.hex(), {"default": START})
    checker.uuid = b"\xb1" * 16
    await scheduler.run("west", CheckKind.ALL, "ann")
    assert (history.cluster, history.proven_ms, history.proofs) == (checker.uuid.hex(), {}, {})
    await scheduler.stop()


async def test_gap_healing_stops_at_any_moment_of_a_check(tmp_path: Path) -> None:
    """A node that stops just when a check has ended does not wait for anything more."""

    scheduler = scheduler_of(tmp_path, FakeChecker([]), Clock())
    for turns in range(6):
        healer = GapHealer(scheduler, FakeGaps(), Clock())
        healer.start()
        for _ in range(10):
            await asyncio.sleep(0)
        scheduler.checked.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(1):
            await healer.stop()
    await scheduler.stop()


@pytest.mark.parametrize("ahead_ms", [-600_000, -30_000, 30_000, 600_000])
async def test_no_clock_decides_what_a_check_has_proven(tmp_path: Path, ahead_ms: int) -> None:
    """The node that compares has another clock than the leader of a gap. A gap that ends after the check, by offsets,
    is not proven by it, however much later the check is stamped; it is checked at once. A gap that lies below what was
    compared is proven, however much earlier the check is stamped (R-PROOF)."""

    clock, gaps, checker = Clock(), FakeGaps(), FakeChecker([ExchangeVerdict.IN_SYNC] * 2)
    clock.ms += ahead_ms
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    await scheduler.run("west", CheckKind.ALL, "ann")
    later = ENDED._replace(from_ms=START + 1_000, upto_ms=START + 4_000, end=120)
    gaps.gaps = [ENDED._replace(id="1:5", from_ms=START + 9_000, upto_ms=START + 9_500), later]
    healer = GapHealer(scheduler, gaps, clock)
    clock.ms += 45_000
    await healer.close_proven("west")
    assert gaps.gaps == [later]
    gaps.proofs.offsets[1] = 120
    await healer.heal("west")
    assert len(checker.checks) == 2, "checked at once"
    assert gaps.gaps == []
    await scheduler.stop()


async def test_a_clock_that_steps_during_a_check_changes_nothing(tmp_path: Path) -> None:
    """The clock is set ten days ahead, or back, while a check runs, and the gap ends during it: the offsets of the
    check's begin decide (R-PROOF)."""

    for step_ms in (10 * DAY_MS, -10 * DAY_MS):
        clock, gaps = Clock(), FakeGaps()
        checker = FakeChecker([ExchangeVerdict.IN_SYNC])
        scheduler = scheduler_of(tmp_path / str(step_ms), checker, clock, proofs=gaps.proofs)

        def step(clock: Clock = clock, gaps: FakeGaps = gaps, step_ms: int = step_ms) -> None:
            clock.ms += step_ms
            gaps.proofs.offsets[1] = 500

        checker.meanwhile = step
        await scheduler.run("west", CheckKind.ALL, "ann")
        below, above = ENDED._replace(end=100), ENDED._replace(id="1:100", end=101)
        gaps.gaps = [below, above]
        await GapHealer(scheduler, gaps, clock).close_proven("west")
        assert gaps.gaps == [above]
        await scheduler.stop()


async def test_a_clock_that_was_set_back_holds_up_no_check(tmp_path: Path) -> None:
    """The clock was ten days ahead when a check was in sync, and is right now: repairs of today are followed, and the
    next slot is within the day, not in ten days."""

    clock, gaps, checker = (
        Clock(),
        FakeGaps(),
        FakeChecker([ExchangeVerdict.IN_SYNC] * 2 + [ExchangeVerdict.REPAIRED] + [ExchangeVerdict.IN_SYNC] * 9),
    )
    checker.queues = checker.lacks = 1
    clock.ms += 10 * DAY_MS
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    await scheduler.run("west", CheckKind.ALL, "ann")
    clock.ms -= 10 * DAY_MS
    gaps.gaps = [ENDED._replace(end=120)]
    gaps.proofs.offsets[1] = 120
    healer = GapHealer(scheduler, gaps, clock)
    assert scheduler.upcoming("west")[0][0] > START + 9 * DAY_MS
    healer.start()
    async with asyncio.timeout(5):
        while gaps.gaps:
            await asyncio.sleep(0)
    assert len(checker.checks) == 2
    assert scheduler.upcoming("west")[0][0] <= START + DAY_MS
    await healer.stop()
    scheduler.peer("west").history.proven_ms["default"] = START + 9 * DAY_MS
    await scheduler.run("west", CheckKind.ALL, "ann")
    clock.ms += WAIT_MS
    await healer.heal("west")
    assert len(checker.checks) == 4, "what was queued is followed"
    await scheduler.stop()


@pytest.mark.parametrize("change", ["epoch", "lineage", "incarnation", "no tree"])
async def test_a_proof_belongs_to_one_leadership_and_one_history(tmp_path: Path, change: str) -> None:
    """Leadership changes during a check: a tree of another leader, perhaps one that was deposed, may have been read, so
    the check proves nothing of the partition, and the next one does. After a forced leader or a restore, offsets are
    given again: a proof of the history before closes no gap of this one (R-PROOF)."""

    clock, gaps, checker = Clock(), FakeGaps(ENDED), FakeChecker([ExchangeVerdict.IN_SYNC] * 3)
    proofs = gaps.proofs

    def meanwhile() -> None:
        if change == "epoch":
            proofs.epoch = 2
        elif change == "no tree":
            del proofs.offsets[1]
        else:
            proofs.history = PartitionHistory(0, 0)._replace(**{change: 7})

    checker.meanwhile = meanwhile
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=proofs)
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert gaps.gaps == [ENDED]
    gaps.gaps = [ENDED._replace(history=proofs.history)]
    proofs.offsets[1] = 100
    checker.meanwhile = lambda: None
    clock.ms += WAIT_MS
    await healer.heal("west")
    assert gaps.gaps == []
    gaps.gaps = [ENDED._replace(id="1:90", end=99, history=PartitionHistory(9, 9))]
    await healer.close_proven("west")
    assert len(gaps.gaps) == 1
    await scheduler.stop()


async def test_a_proof_of_an_earlier_process_closes_no_gap(tmp_path: Path) -> None:
    """A data directory may be a restored copy, in which offsets are given again: after a restart a check is needed,
    which is begun at once. When the other side was last proven up to date is still known."""

    clock, gaps, checker = Clock(), FakeGaps(), FakeChecker([ExchangeVerdict.IN_SYNC] * 2)
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    await scheduler.run("west", CheckKind.ALL, "ann")
    await scheduler.stop()
    gaps.gaps = [ENDED]
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    healer = GapHealer(scheduler, gaps, clock)
    await healer.close_proven("west")
    assert gaps.gaps == [ENDED]
    assert scheduler.peer("west").history.proven_ms == {"default": START}
    await healer.heal("west")
    assert (gaps.gaps, len(checker.checks)) == ([], 2)
    await scheduler.stop()


async def test_a_loss_of_references_is_proven_by_checks_that_began_after_its_record(tmp_path: Path) -> None:
    """Bulk references have no offsets: their loss is proven by checks of all their bucket types that began once it was
    recorded, and only as it was then. A loss that was recorded during the check, or into which another one was merged
    since, needs the next check (R-PROOF)."""

    late, merged = LOWER._replace(id="n3:2:8", mark="n3:2:8:1"), LOWER._replace(mark="n2:2:9:5")
    clock, gaps, checker = Clock(), FakeGaps(LOWER), FakeChecker([ExchangeVerdict.IN_SYNC] * 6)
    proofs = gaps.proofs

    def record() -> None:
        proofs.losses.add(("to-west", late.mark))
        gaps.gaps = [LOWER, late]

    scheduler = scheduler_of(tmp_path, checker, clock, replace(WEST, bucket_types="default,other"), proofs)
    healer = GapHealer(scheduler, gaps, clock)
    checker.meanwhile = record
    await healer.heal("west")
    assert gaps.gaps == [late], "it was recorded before the check of the second bucket type alone"
    checker.meanwhile = lambda: None
    await healer.close_proven("west")
    assert gaps.gaps == [late]
    gaps.gaps.append(merged)
    proofs.losses = {("to-west", late.mark), ("to-west", merged.mark)}
    clock.ms += WAIT_MS
    await healer.heal("west")
    assert gaps.gaps == []
    await scheduler.stop()


async def test_a_proof_by_another_filter_closes_no_gap(tmp_path: Path) -> None:
    """The filter of the queue of repairs chose the keys that were compared. Once it is wider, gaps that it now covers
    need a check by it (R-PROOF)."""

    clock, gaps, checker = Clock(), FakeGaps(), FakeChecker([ExchangeVerdict.IN_SYNC] * 2)
    gaps.proofs.filter = "bucket:b"
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    await scheduler.run("west", CheckKind.ALL, "ann")
    gaps.proofs.filter, gaps.gaps = "any", [ENDED]
    healer = GapHealer(scheduler, gaps, clock)
    await healer.close_proven("west")
    assert gaps.gaps == [ENDED]
    await healer.heal("west")
    assert gaps.gaps == []
    await scheduler.stop()


async def test_a_gap_that_has_grown_while_it_was_checked_is_not_proven(tmp_path: Path) -> None:
    """A continuing overflow, or more gaps than are kept, extend a gap under the same id: changes omitted since the
    check began are not closed by it, but by the next proof (R-GAP)."""

    clock, gaps = Clock(), FakeGaps(ENDED)
    checker = FakeChecker([ExchangeVerdict.IN_SYNC, ExchangeVerdict.IN_SYNC])

    def grow() -> None:
        gaps.gaps = [ENDED._replace(end=101)]
        gaps.proofs.offsets[1] = 101

    checker.meanwhile = grow
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert len(checker.checks) == 1
    assert gaps.gaps == [ENDED._replace(end=101)]
    checker.meanwhile = lambda: None
    clock.ms += WAIT_MS + 1_000 * int(POLL_S)
    await healer.heal("west")
    assert gaps.gaps == []
    await scheduler.stop()


async def test_a_gap_that_grows_between_the_check_and_its_closing_is_not_closed(tmp_path: Path) -> None:
    """The proof covers what was left out before the check began. A gap is closed only if it has not grown since: what
    it contains when it is closed may be more than what was seen when the check ended."""

    clock = Clock()

    class GrowingGaps(FakeGaps):
        """A gap that grows just before it is closed."""

        async def close(self, gaps: Sequence[GapToHeal], proofs: Mapping[str, Proof], by: str, reason: str) -> int:
            """See Gaps."""
            self.gaps = [ENDED._replace(end=101)]
            return await super().close(gaps, proofs, by, reason)

    gaps = GrowingGaps(ENDED)
    scheduler = scheduler_of(tmp_path, FakeChecker([ExchangeVerdict.IN_SYNC]), clock, proofs=gaps.proofs)
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert gaps.gaps == [ENDED._replace(end=101)]
    await scheduler.stop()


async def test_references_that_went_with_their_process_are_looked_for_at_once_after_its_return(tmp_path: Path) -> None:
    """A check queued repairs: while they wait nothing is done. When they are gone, delivered or lost with a killed
    process, everything is checked at the next look, or at the first one of the next process. A check without access to
    everything (trees are built) is retried a minute later, further repairs are followed at growing intervals, and a
    proof ends it. So lost references are queued again within two looks of the node's return (R-FOLLOW)."""

    clock, gaps = Clock(), FakeGaps()
    checker = FakeChecker([ExchangeVerdict.REPAIRED])
    checker.queues = 9
    scheduler = scheduler_of(tmp_path, checker, clock, proofs=gaps.proofs)
    await scheduler.run("west", CheckKind.HOUR, "ann")
    gaps.references = 9
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert len(checker.checks) == 1, "they wait for their sink"
    await scheduler.stop()

    clock.ms += 5_000
    gaps.references = 0
    again = FakeChecker(
        [ExchangeVerdict.INCOMPLETE, ExchangeVerdict.REPAIRED, ExchangeVerdict.REPAIRED, ExchangeVerdict.IN_SYNC]
    )
    again.queues = 9
    scheduler = scheduler_of(tmp_path, again, clock, proofs=gaps.proofs)
    healer = GapHealer(scheduler, gaps, clock)
    begun = clock.ms
    seconds: list[int] = []
    while len(again.checks) < 4:
        await healer.heal("west")
        while len(seconds) < len(again.checks):
            seconds.append((clock.ms - begun) // 1000)
        clock.ms += int(1000 * POLL_S)
        assert clock.ms < begun + 3_600_000
    assert seconds == [0, 60, 180, 420]
    assert {(check.kind, check.by) for check in again.checks} == {(CheckKind.ALL, FOLLOWING)}
    for _ in range(10):
        await healer.heal("west")
        clock.ms += int(1000 * POLL_S)
    assert len(again.checks) == 4
    await scheduler.stop()


def test_repairs_of_the_other_side_only_are_not_followed_by_a_check() -> None:
    """Repairs of the newest finished check count, of any compared bucket type; a later proof, or a finished check
    without repairs, settles them; a check that saw too little does not."""

    def of(verdict: ExchangeVerdict, queued: int, began_ms: int, name: str = "default") -> CheckResult:
        return CheckResult(name, CheckKind.ALL, began_ms, 1.0, verdict, "", False, 0, 0, {}, queued, 0, 0, 0, "")

    def unproven(*results: CheckResult) -> bool:
        kept = PeerHistory(PeerScheduleState(START), None, deque(results), {"default": START + 99})
        return repairs_unproven(kept, ["default", "other"])

    assert not unproven()
    assert unproven(of(ExchangeVerdict.REPAIRED, 5, START))
    assert unproven(of(ExchangeVerdict.DIFFERING, 5, START))
    assert unproven(of(ExchangeVerdict.TIMED_OUT, 5, START)), "what it queued before it ended counts"
    assert unproven(of(ExchangeVerdict.REPAIRED, 5, START), of(ExchangeVerdict.INCOMPLETE, 0, START + 9))
    assert unproven(of(ExchangeVerdict.REPAIRED, 5, START, "other"), of(ExchangeVerdict.IN_SYNC, 0, START + 9))
    assert not unproven(of(ExchangeVerdict.REPAIRED, 5, START, "third"))
    assert not unproven(of(ExchangeVerdict.REPAIRED, 5, START), of(ExchangeVerdict.DIFFERING, 0, START + 9))
    assert not unproven(replace(of(ExchangeVerdict.REPAIRED, 5, START), proven=True)), "the other side's keys alone"
    assert not unproven(of(ExchangeVerdict.REPAIRED, 5, START), of(ExchangeVerdict.IN_SYNC, 0, START - 9)), (
        "in the order in which they ended, whatever the clock was"
    )
    assert unproven(replace(of(ExchangeVerdict.REPAIRED, 5, START), refused=4)), "one of them was not refused before"
    assert not unproven(replace(of(ExchangeVerdict.REPAIRED, 5, START), refused=5)), (
        "the other side refuses all of it for good"
    )

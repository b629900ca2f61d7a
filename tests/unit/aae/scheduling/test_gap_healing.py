"""Gaps of queues, and queued repairs, start checks automatically, until a proof ends them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from isthmus.aae.exchange.compare import BehindSide, DifferenceKind
from isthmus.aae.exchange.exchange import ExchangeVerdict, Findings
from isthmus.aae.exchange.run import ExchangeOutcome
from isthmus.aae.scheduling.check import PeerCheck, PeerChecker
from isthmus.aae.scheduling.gap_healing import (
    FOLLOWING,
    MARGIN_MS,
    POLL_S,
    WAIT_MS,
    GapHealer,
    Gaps,
    GapToHeal,
    proven,
    range_to_check,
    repairs_unproven,
)
from isthmus.aae.scheduling.history import CheckResult, FullSyncHistory, PeerHistory
from isthmus.aae.scheduling.schedule import DAY_MS, CheckKind, PeerScheduleState, TimeRange
from isthmus.aae.scheduling.scheduler import CheckScheduler
from isthmus.config.settings import FullSyncSettings
from tests.support.fullsync_fakes import FakeMembers

pytestmark = pytest.mark.virtual_time

START = 1_699_920_000_000  # midnight UTC
WEST = FullSyncSettings("west", "http://10.0.0.7:8098", "to-west", auto_count=0, hour_count=1)
WEST_UUID = b"\xb0" * 16
DEFAULT = frozenset({"default"})
BOTH = frozenset({"default", "other"})
ENDED = GapToHeal("1:10", "to-west", DEFAULT, START - 60_000, START - 50_000)
GROWING = GapToHeal("2:10", "to-west", DEFAULT, START - 60_000, None)
FOREIGN = GapToHeal("3:10", "to-west", frozenset({"other"}), START - 60_000, START - 50_000)
LOWER = GapToHeal("n2:2:9", "to-west", BOTH, START - 70_000, START - 65_000)


def test_which_times_prove_a_gap_and_which_checks_do() -> None:
    """Ended gaps of compared bucket types make one range. A check that began before a gap had ended, or of another
    bucket type, proves nothing. Bulk references may be of every type that their queue accepts, and need a comparison of
    each."""
    assert range_to_check([GROWING, FOREIGN, LOWER], ["default"], START) is None
    assert range_to_check([ENDED, GROWING, FOREIGN], ["default"], START) == TimeRange(
        START - 60_000 - MARGIN_MS, START - 50_000 + MARGIN_MS
    )
    assert range_to_check([ENDED, LOWER], ["default", "other"], START) == TimeRange(
        START - 70_000 - MARGIN_MS, START - 50_000 + MARGIN_MS
    )
    gaps = [ENDED, LOWER, GROWING, FOREIGN]
    assert proven(gaps, {"default": START}) == [ENDED]
    assert proven(gaps, {"default": START, "other": START - 57_000}) == [ENDED, LOWER]
    assert proven(gaps, {"default": START - 57_000, "other": START}) == [LOWER, FOREIGN]
    assert proven(gaps, {}) == []
    assert proven([ENDED], {"default": START - 50_000 + MARGIN_MS}) == [ENDED]
    assert proven([ENDED], {"default": START - 50_000 + MARGIN_MS - 1}) == [], "the clocks of two machines differ"


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
    """The gaps and references of the queues."""

    def __init__(self, *gaps: GapToHeal) -> None:
        self.gaps = list(gaps)

    async def open_gaps(self, queue: str, cluster: bytes | None) -> Sequence[GapToHeal]:
        """See Gaps."""
        assert queue == "to-west"
        assert cluster in (None, WEST_UUID)
        return list(self.gaps)

    async def close(self, queue: str, ids: Sequence[str], upto_ms: int, by: str, reason: str) -> int:
        """See Gaps."""
        assert (by, reason) == ("full-sync", "west is up to date")
        before = len(self.gaps)
        self.gaps = [
            g for g in self.gaps if g.queue != queue or g.id not in ids or g.upto_ms is None or g.upto_ms > upto_ms
        ]
        return before - len(self.gaps)

    references = 0

    def waiting(self, queue: str) -> int:
        """See Gaps."""
        assert queue == "to-west"
        return self.references


def scheduler_of(
    directory: Path, checker: PeerChecker, clock: Clock, settings: FullSyncSettings = WEST
) -> CheckScheduler:
    """One that has begun."""
    scheduler = CheckScheduler(
        [settings],
        node="n1",
        checkers=SimpleNamespace(open=lambda _: checker),  # type: ignore[arg-type]
        history=FullSyncHistory(directory, START),
        alarm=FakeAlarm(),
        members=FakeMembers(),
        queue_types=FakeMembers(),
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
    scheduler = scheduler_of(tmp_path, checker, clock)
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
    beside it, and survives a restart."""

    clock, gaps, checker = Clock(), FakeGaps(ENDED), FakeChecker([ExchangeVerdict.UP_TO_DATE])
    checker.ahead = 3
    scheduler = scheduler_of(tmp_path, checker, clock)
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
    scheduler = scheduler_of(tmp_path, checker, clock)
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
    scheduler = scheduler_of(tmp_path, checker, clock, replace(WEST, bucket_types="default,other"))
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
    assert (history.cluster, history.proven_ms) == (checker.uuid.hex(), {})
    await scheduler.stop()


async def test_gap_healing_stops_at_any_moment_of_a_check(tmp_path: Path) -> None:
    """A node that stops just when a check has ended does not wait for anything more."""

    scheduler = scheduler_of(tmp_path, FakeChecker([]), Clock())
    for turns in range(6):
        healer = GapHealer(scheduler, FakeGaps(), Clock())
        healer.start()
        for _ in range(10):
            await asyncio.sleep(0)
        scheduler.on_checked()
        for _ in range(turns):
            await asyncio.sleep(0)
        async with asyncio.timeout(1):
            await healer.stop()
    await scheduler.stop()


async def test_a_clock_that_was_set_back_proves_nothing_and_holds_up_no_check(tmp_path: Path) -> None:
    """The clock was ten days ahead when a check was in sync, and is right now: a gap of today is checked before it is
    closed, repairs of today are followed, and the next slot is within the day, not in ten days."""

    clock, gaps, checker = (
        Clock(),
        FakeGaps(),
        FakeChecker([ExchangeVerdict.IN_SYNC] * 2 + [ExchangeVerdict.REPAIRED] + [ExchangeVerdict.IN_SYNC] * 9),
    )
    checker.queues = 1
    clock.ms += 10 * DAY_MS
    scheduler = scheduler_of(tmp_path, checker, clock)
    await scheduler.run("west", CheckKind.ALL, "ann")
    clock.ms -= 10 * DAY_MS
    gaps.gaps = [ENDED]
    healer = GapHealer(scheduler, gaps, clock)
    await healer.close_proven("west")
    assert gaps.gaps == [ENDED]
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


async def test_a_gap_that_has_grown_while_it_was_checked_is_not_proven(tmp_path: Path) -> None:
    """A continuing overflow, or more gaps than are kept, extend a gap under the same id: changes omitted since the
    check began are not closed by it, but by the next proof."""

    clock, gaps = Clock(), FakeGaps(ENDED)
    checker = FakeChecker([ExchangeVerdict.IN_SYNC, ExchangeVerdict.IN_SYNC])

    def grow() -> None:
        gaps.gaps = [ENDED._replace(upto_ms=clock.ms + 500)]

    checker.meanwhile = grow
    scheduler = scheduler_of(tmp_path, checker, clock)
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert len(checker.checks) == 1
    assert gaps.gaps == [ENDED._replace(upto_ms=START + 500)]
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

        async def close(self, queue: str, ids: Sequence[str], upto_ms: int, by: str, reason: str) -> int:
            """See Gaps."""
            self.gaps = [ENDED._replace(upto_ms=clock.ms - 1)]
            return await super().close(queue, ids, upto_ms, by, reason)

    gaps = GrowingGaps(ENDED)
    scheduler = scheduler_of(tmp_path, FakeChecker([ExchangeVerdict.IN_SYNC]), clock)
    healer = GapHealer(scheduler, gaps, clock)
    await healer.heal("west")
    assert gaps.gaps == [ENDED._replace(upto_ms=clock.ms - 1)]
    await scheduler.stop()


async def test_references_that_went_with_their_process_are_looked_for_at_once_after_its_return(tmp_path: Path) -> None:
    """A check queued repairs: while they wait nothing is done. When they are gone, delivered or lost with a killed
    process, everything is checked at the next look, or at the first one of the next process. A check without access to
    everything (trees are built) is retried a minute later, further repairs are followed at growing intervals, and a
    proof ends it. So lost references are queued again within two looks of the node's return."""

    clock, gaps = Clock(), FakeGaps()
    checker = FakeChecker([ExchangeVerdict.REPAIRED])
    checker.queues = 9
    scheduler = scheduler_of(tmp_path, checker, clock)
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
    scheduler = scheduler_of(tmp_path, again, clock)
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

    def unproven(*results: CheckResult, proven_ms: int = 0) -> bool:
        kept = PeerHistory(PeerScheduleState(START), None, deque(results), {"default": proven_ms})
        return repairs_unproven(kept, ["default", "other"])

    assert not unproven()
    assert unproven(of(ExchangeVerdict.REPAIRED, 5, START))
    assert unproven(of(ExchangeVerdict.DIFFERING, 5, START))
    assert unproven(of(ExchangeVerdict.TIMED_OUT, 5, START)), "what it queued before it ended counts"
    assert unproven(of(ExchangeVerdict.REPAIRED, 5, START), of(ExchangeVerdict.INCOMPLETE, 0, START + 9))
    assert unproven(of(ExchangeVerdict.REPAIRED, 5, START, "other"), of(ExchangeVerdict.IN_SYNC, 0, START + 9))
    assert not unproven(of(ExchangeVerdict.REPAIRED, 5, START, "third"))
    assert not unproven(of(ExchangeVerdict.REPAIRED, 5, START), of(ExchangeVerdict.DIFFERING, 0, START + 9))
    assert not unproven(of(ExchangeVerdict.REPAIRED, 5, START), proven_ms=START + 1)
    assert unproven(replace(of(ExchangeVerdict.REPAIRED, 5, START), refused=4)), "one of them was not refused before"
    assert not unproven(replace(of(ExchangeVerdict.REPAIRED, 5, START), refused=5)), (
        "the other side refuses all of it for good"
    )

"""Complete runs between two generated clusters: which verdicts they may have, and which never."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
import structlog.testing

from isthmus.aae.exchange.compare import ComparedRow, DifferenceKind, KeyDifference, reaped_row
from isthmus.aae.exchange.exchange import ExchangeVerdict, Findings
from isthmus.aae.exchange.run import ExchangeActions, ExchangeOutcome, ExchangeScope, run
from isthmus.aae.exchange.wire import ClocksRequest, LeavesRequest, RootsRequest, RowsResponse
from isthmus.aae.scheduling.check import CORRUPT_LOGGED, PeerCheck, PeerChecker, QueueFull
from isthmus.aae.scheduling.schedule import CheckKind as CheckKind
from isthmus.aae.scheduling.schedule import TimeRange
from isthmus.aae.trees.tree import Hashes, HashTree
from isthmus.config.settings import FullSyncSettings
from isthmus.repl.model.entry import leaf
from isthmus.repl.model.errors import IsthmusError, NotReady, PeerFault
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.vclock import actor_of, encode_clock

CLOCK = encode_clock(((b"a" * 20, 1, 0),))


def row(bucket: bytes, key: bytes, modified_ms: int) -> ComparedRow:
    """A key, as one write made it."""
    return ComparedRow(bucket, key, CLOCK, 7, modified_ms, False)


class FakeEnd:
    """A cluster of generated rows; `failures` has the errors of its answers, by request."""

    def __init__(self, *rows: ComparedRow) -> None:
        self.rows = list(rows)
        self.failures: dict[str, IsthmusError] = {}

    def _tree(self, step: str) -> HashTree:
        if step in self.failures:
            raise self.failures[step]
        tree = HashTree()
        for r in self.rows:
            if r.tombstone:
                continue
            tree.change(key_hash(r.bucket, r.key) >> 44, leaf(r.bucket, r.key, r.clock, r.hash64, tombstone=False))
        return tree

    async def roots(self, asked: RootsRequest) -> Hashes:
        """See Side."""
        assert asked.bucket_type == b"default"
        return self._tree("roots").branch_hashes()

    async def leaves(self, asked: LeavesRequest) -> Hashes:
        """See Side."""
        tree = self._tree("leaves")
        found: Hashes = np.concatenate([tree.leaves(branch, asked.size_bits) for branch in asked.branches])
        return found

    async def clocks(self, asked: ClocksRequest) -> RowsResponse:
        """See Side."""
        self._tree("clocks")
        segments = set(asked.segments)
        rows = [
            r
            for r in self.rows
            if key_hash(r.bucket, r.key) >> (64 - asked.size_bits) in segments
            and r.modified_ms >= asked.since_ms
            and (not asked.before_ms or r.modified_ms < asked.before_ms)
        ]
        return RowsResponse((), len(asked.segments), rows)


class RecordingActions(ExchangeActions):
    """Records what a run hands over; takes all of it."""

    def __init__(self) -> None:
        self.repaired: list[KeyDifference] = []

    async def repair(self, differences: Sequence[KeyDifference]) -> int:
        """See ExchangeActions."""
        self.repaired.extend(differences)
        return len(differences)

    async def pause(self) -> None:
        """See ExchangeActions."""
        await asyncio.sleep(0)


async def outcome(source: FakeEnd, sink: FakeEnd, scope: ExchangeScope) -> tuple[ExchangeOutcome, list[KeyDifference]]:
    """The outcome of a run and the differences that it repaired."""
    actions = RecordingActions()
    ended = await run(source, sink, scope, findings=Findings(), actions=actions, timeout_s=10)
    return ended, actions.repaired


async def test_a_range_without_the_differing_keys_is_not_in_sync() -> None:
    """Leaves that differ by a change outside the times or the bucket of a run make it incomplete; a difference within
    is repaired."""
    source, sink = FakeEnd(row(b"b", b"old", 1_000), row(b"b", b"both", 5_000)), FakeEnd(row(b"b", b"both", 5_000))
    times, repaired = await outcome(source, sink, ExchangeScope(b"default", since_ms=2_000, before_ms=9_000))
    assert (times.verdict, repaired) == (ExchangeVerdict.INCOMPLETE, [])
    assert "outside the range" in times.reason
    other, repaired = await outcome(source, sink, ExchangeScope(b"default", since_ms=500, before_ms=9_000, bucket=b"c"))
    assert (other.verdict, repaired) == (ExchangeVerdict.INCOMPLETE, [])
    within, repaired = await outcome(
        source, sink, ExchangeScope(b"default", since_ms=500, before_ms=9_000, bucket=b"b")
    )
    assert within.verdict is ExchangeVerdict.REPAIRED
    assert [difference.key for difference in repaired] == [b"old"]


async def test_a_difference_masked_by_another_key_of_its_segment_is_not_in_sync() -> None:
    """In a run of a range, a segment may have one key that a filter excludes and one of another time that differs: the
    first does not explain the second."""
    segment = key_hash(b"b", b"0") >> (64 - 12)
    names = (b"%d" % n for n in range(1, 100_000))
    other = next(name for name in names if key_hash(b"b", name) >> (64 - 12) == segment)
    source, sink = FakeEnd(row(b"b", b"0", 5_000), row(b"b", other, 1_000)), FakeEnd()
    scope = ExchangeScope(b"default", 2_000, 9_000, 12, lambda _bucket, key: key != b"0")
    narrow, repaired = await outcome(source, sink, scope)
    assert (narrow.verdict, repaired) == (ExchangeVerdict.INCOMPLETE, [])
    source.rows = source.rows[:1]
    equal, repaired = await outcome(source, sink, scope)
    assert (equal.verdict, equal.findings.filtered, repaired) == (ExchangeVerdict.IN_SYNC, 1, [])


@pytest.mark.parametrize("step", ["roots", "leaves", "clocks"])
@pytest.mark.parametrize(
    ("failures", "verdict"),
    [(NotReady("a tree is built"), ExchangeVerdict.INCOMPLETE), (PeerFault("gone"), ExchangeVerdict.ERROR)],
)
async def test_a_missing_answer_ends_a_run_without_a_proof(
    step: str, failures: IsthmusError, verdict: ExchangeVerdict
) -> None:
    """If any request has no answer, the run is not in sync and reports the state at which it ended."""
    source, sink = FakeEnd(row(b"b", b"k", 1)), FakeEnd()
    sink.failures[step] = failures
    ended, repaired = await outcome(source, sink, ExchangeScope(b"default"))
    assert ended.verdict is verdict
    assert str(failures) in ended.reason
    assert repaired == []


@pytest.mark.parametrize("side", ["source", "sink", "both"])
async def test_a_clock_that_is_damaged_hides_nothing_else(side: str) -> None:
    """A key row with a damaged clock, on either side, is a corrupt difference; all other keys are compared and
    repaired."""
    names = [b"%d" % n for n in range(30)]
    source, sink = FakeEnd(*(row(b"b", name, 1) for name in names)), FakeEnd()
    broken = row(b"b", b"7", 1)._replace(clock=b"\xc1")
    sink.rows = [row(b"b", b"7", 1)._replace(hash64=8)]
    if side != "sink":
        source.rows[7] = broken
    if side != "source":
        sink.rows = [broken._replace(hash64=8)]
    ended, repaired = await outcome(source, sink, ExchangeScope(b"default"))
    assert {difference.key for difference in repaired} == set(names)
    assert [d.key for d in repaired if d.kind is DifferenceKind.CORRUPT] == [b"7"]
    assert ended.findings.differences == 30


class FakeRepairs:
    """Queues that take everything."""

    refused_total = 0
    waiting_count = 0
    remembered: frozenset[Key] = frozenset()

    def refused_count(self, queue: str) -> int:
        """See Repairs."""
        return self.refused_total

    async def recall(self, keys: Sequence[Key]) -> set[Key]:
        """See Repairs."""
        return self.remembered.intersection(keys)

    def waiting(self, queue: str) -> int:
        """See Repairs."""
        return self.waiting_count

    async def push(self, queue: str, keys: Sequence[Key]) -> int:
        """See Repairs."""
        return len(keys)

    def key_filter(self, queue: str, bucket_type: bytes) -> None:
        """See Repairs."""


async def test_a_check_of_a_range_that_leaves_differences_unexplained_does_not_name_all() -> None:
    """One key differs within the range and is queued, and another one differs outside it. The result must not let a
    reader conclude that the second key is equal because only the first is named."""
    source, sink = FakeEnd(row(b"b", b"new", 5_000), row(b"b", b"old", 1_000)), FakeEnd()
    settings = FullSyncSettings("west", "http://10.0.0.7:8098", "q", pause_ms=1, repair_rate_limit_count=0)
    named = []
    for times in (TimeRange(4_000, 9_000), None):
        checker = PeerChecker(settings, source=source, sink=sink, repairs=FakeRepairs(), random=Random(1))  # type: ignore[arg-type]
        check = PeerCheck("default", CheckKind.RANGE, times, "", 10_000)
        ended = await checker.check(check, Findings())
        assert ended.verdict is ExchangeVerdict.REPAIRED
        assert ended.reason == ("1 segment differs by changes outside the range" if times is not None else "")
        named.append(checker.named[b"default"])
    assert [(set(one.keys), one.every) for one in named] == [
        ({(b"b", b"new")}, False),
        ({(b"b", b"new"), (b"b", b"old")}, True),
    ]


async def test_a_check_reports_repairs_that_were_refused_before() -> None:
    """If the other cluster refused repairs of the previous check permanently, the next check reports how many and where
    to look; a check in sync reports none."""
    source, sink, taking = FakeEnd(row(b"b", b"large", 5_000)), FakeEnd(), FakeRepairs()
    settings = FullSyncSettings("west", "http://10.0.0.7:8098", "q", pause_ms=1, repair_rate_limit_count=0)
    checker = PeerChecker(settings, source=source, sink=sink, repairs=taking, random=Random(1))  # type: ignore[arg-type]
    check = PeerCheck("default", CheckKind.ALL, None, "", 10_000)
    first = await checker.check(check, Findings())
    assert (first.verdict, first.reason, first.refused) == (ExchangeVerdict.REPAIRED, "", 0)
    taking.refused_total = 1
    again = await checker.check(check, Findings())
    assert (again.verdict, again.refused) == (ExchangeVerdict.REPAIRED, 1)
    assert again.reason == "1 of the repairs before were refused there for good (isthmus sink dead-letters list there)"
    sink.rows = source.rows
    taking.refused_total = 2
    assert (await checker.check(check, Findings())).reason == ""


def a_checker(source: FakeEnd, sink: FakeEnd, taking: FakeRepairs, **settings: Any) -> PeerChecker:
    """A checker that does not wait."""
    west = FullSyncSettings("west", "http://10.0.0.7:8098", "q", pause_ms=1, repair_rate_limit_count=0, **settings)
    return PeerChecker(west, source=source, sink=sink, repairs=taking, random=Random(1), own=OWN)  # type: ignore[arg-type]


OWN, OTHER = b"east-cluster-016", b"west-cluster-016"
ALL = PeerCheck("default", CheckKind.ALL, None, "", 10_000)


class PushedRepairs(FakeRepairs):
    """Queues that note what they took."""

    def __init__(self) -> None:
        self.pushed: list[Key] = []

    async def push(self, queue: str, keys: Sequence[Key]) -> int:
        """See Repairs."""
        self.pushed += keys
        return len(keys)


async def test_the_tombstone_of_a_reaped_key_is_written_again_before_it_is_sent() -> None:
    """The other side has a value that a removed tombstone had seen: this side recalls the tombstone and queues the key.
    Where that does not succeed the key is not queued but named, each time, and the verdict is not `repaired`."""
    clock = encode_clock(((actor_of(OWN, 0), 2, 0),))
    source, sink = FakeEnd(reaped_row(b"b", b"k", clock), row(b"b", b"new", 5_000)), FakeEnd()
    sink.rows = [row(b"b", b"k", 4_000)._replace(clock=encode_clock(((actor_of(OWN, 0), 1, 0),)))]
    key, new = Key(b"default", b"b", b"k"), Key(b"default", b"b", b"new")
    for remembered, verdict in ((frozenset({key}), ExchangeVerdict.REPAIRED), (frozenset(), ExchangeVerdict.DIFFERING)):
        taking = PushedRepairs()
        taking.remembered = remembered
        checker = a_checker(source, sink, taking)
        ended = await checker.check(ALL, Findings())
        assert ended.verdict is verdict
        assert set(taking.pushed) == {new, *remembered}
        assert checker.named[b"default"].keys[b"b", b"k"] == "behind@sink"
        assert checker.modified_ms == [5_000], "the memory of a delete has no time to learn from"
        if not remembered:
            assert ended.reason.startswith(
                "1 key differs and was not queued; 1 key is deleted here and could not be sent"
            )
            assert "(b'b'/b'k')" in ended.reason
            for _ in range(3):
                again = await checker.check(ALL, Findings())
                assert again.reason.count("b'k'") == 1, "named once, and not as a repair without effect"
                assert (b"b", b"k") not in checker.sent[b"default"]
            taking.remembered = frozenset({key})
            assert "could not be sent" not in (await checker.check(ALL, Findings())).reason


async def test_the_side_that_lacks_the_delete_does_not_call_it_repaired() -> None:
    """The other side remembers that the key was deleted: it is ahead, and nothing is queued here. A bidirectional peer
    is asked for it."""
    clocks = [encode_clock(((actor_of(OTHER, 0), count, 0),)) for count in (1, 2)]
    source, sink = FakeEnd(row(b"b", b"k", 4_000)._replace(clock=clocks[0])), FakeEnd(reaped_row(b"b", b"k", clocks[1]))
    taking = PushedRepairs()
    ended = await a_checker(source, sink, taking).check(ALL, Findings())
    assert (ended.verdict, taking.pushed) == (ExchangeVerdict.UP_TO_DATE, [])
    assert ended.reason == "all of ours is there; only there or newer there: 1 key"
    asked: list[tuple[bytes, bytes]] = []

    async def repair(_queue: str, _bucket_type: bytes, names: Sequence[tuple[bytes, bytes]]) -> int:
        asked.extend(names)
        return len(names)

    sink.repair = repair  # type: ignore[attr-defined]
    ended = await a_checker(source, sink, taking, bidirectional=True, peer_queue="to-east").check(ALL, Findings())
    assert (ended.verdict, asked, taking.pushed) == (ExchangeVerdict.REPAIRED, [(b"b", b"k")], [])


async def test_a_repair_without_effect_is_named_instead_of_called_repaired() -> None:
    """The receiving cluster drops what is sent. After two checks that queued the key, a third one that finds both rows
    unchanged names it, with what helps; one that has changed, and one whose reference still waits, is no such key."""
    source, sink, taking = FakeEnd(row(b"b", b"dropped", 5_000), row(b"b", b"moving", 5_000)), FakeEnd(), FakeRepairs()
    checker = a_checker(source, sink, taking)

    async def checked() -> ExchangeOutcome:
        source.rows[1] = source.rows[1]._replace(hash64=source.rows[1].hash64 + 1)
        return await checker.check(ALL, Findings())

    for _ in range(2):
        first = await checked()
        assert (first.verdict, first.reason, first.refused) == (ExchangeVerdict.REPAIRED, "", 0)
        assert checker.ineffective_of(Key(b"default", b"b", b"dropped")) == ""
    taking.waiting_count = 1
    assert (await checked()).verdict is ExchangeVerdict.REPAIRED, "its reference waits: nothing was dropped yet"
    taking.waiting_count = 0
    for _ in range(2):
        ended = await checked()
        assert (ended.verdict, ended.refused, ended.findings.queued) == (ExchangeVerdict.DIFFERING, 1, 2)
        assert ended.reason.startswith("1 key was queued by 2 checks before and did not change (b'b'/b'dropped'): ")
        assert "write or delete it again" in ended.reason
    assert "1 key was queued by 2 checks" in checker.ineffective_of(Key(b"default", b"b", b"dropped"))
    assert checker.ineffective_of(Key(b"default", b"b", b"moving")) == ""
    hour = PeerCheck("default", CheckKind.HOUR, TimeRange(9_000, 0), "", 10_000)
    await checker.check(hour, Findings())
    assert (await checked()).refused == 1, "a check of other times has not looked at it"
    sink.rows = list(source.rows)
    assert (await checker.check(ALL, Findings())).reason == ""
    sink.rows = []
    assert (await checked()).verdict is ExchangeVerdict.REPAIRED, "it was equal in between"


@pytest.mark.parametrize("kind", [CheckKind.ALL, CheckKind.HOUR])
async def test_a_key_whose_delete_may_be_forgotten_is_named_and_proves_nothing(kind: CheckKind) -> None:
    """Only the other side has it, as this cluster wrote it, and no delete of it is known here: it was lost, or reaped
    so long ago that it is forgotten. The other side may lack a delete, so it is not called up to date, by a check of
    other times neither. Keys that the other side wrote alone, or since, are its own (R-REAP)."""
    mine, theirs = (encode_clock(((actor_of(uuid, 0), 1, 0),)) for uuid in (OWN, OTHER))
    both = encode_clock(((actor_of(OWN, 0), 1, 0), (actor_of(OTHER, 0), 1, 0)))
    rows = [row(b"b", b"%d" % n, 5_000)._replace(clock=mine) for n in range(5)]
    others = [row(b"b", name, 5_000)._replace(clock=clock) for name, clock in ((b"theirs", theirs), (b"since", both))]
    check = PeerCheck("default", kind, None if kind is CheckKind.ALL else TimeRange(9_000, 0), "", 10_000)
    ended = await a_checker(FakeEnd(), FakeEnd(*others), FakeRepairs()).check(check, Findings())
    assert ended.verdict is ExchangeVerdict.UP_TO_DATE
    ended = await a_checker(FakeEnd(), FakeEnd(*rows, *others), FakeRepairs()).check(check, Findings())
    if kind is not CheckKind.ALL:
        assert ended.verdict is ExchangeVerdict.INCOMPLETE
        return
    assert ended.verdict is ExchangeVerdict.DIFFERING
    assert ended.findings.ahead == 2
    named = "b'b'/b'0', b'b'/b'1', b'b'/b'2' and 2 more"
    assert f"5 keys are missing here, and as this cluster wrote them there ({named}): lost here, or" in ended.reason


class FullRepairs(FakeRepairs):
    """A queue with space for `room` keys that refuses further ones."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.held = 0

    async def push(self, queue: str, keys: Sequence[Key]) -> int:
        """See Repairs."""
        taken = min(len(keys), self.room - self.held)
        self.held += taken
        if taken < len(keys):
            raise QueueFull(f"queue {queue} has no room for more", taken)
        return taken


async def test_references_queued_before_an_early_end_are_counted() -> None:
    """If the queue is full or the time is over, the references queued so far are counted, so that they are followed
    until they are proven, and the failure is not attributed to the other side."""
    source, sink = FakeEnd(*(row(b"b", b"%d" % n, 5_000) for n in range(1_500))), FakeEnd()

    def make_checker(queue: FullRepairs, rate: int) -> PeerChecker:
        settings = FullSyncSettings("west", "http://10.0.0.7:8098", "q", pause_ms=1, repair_rate_limit_count=rate)
        return PeerChecker(settings, source=source, sink=sink, repairs=queue, random=Random(1))  # type: ignore[arg-type]

    check = PeerCheck("default", CheckKind.ALL, None, "", 10_000)
    full, findings = FullRepairs(1_200), Findings()
    ended = await make_checker(full, 0).check(check, findings)
    assert (ended.verdict, findings.differences) == (ExchangeVerdict.INCOMPLETE, 1_500)
    assert (full.held, findings.queued) == (1_200, 1_200)

    slow, findings = FullRepairs(1_500), Findings()
    running = asyncio.ensure_future(make_checker(slow, 1).check(check, findings))
    while not slow.held:
        await asyncio.sleep(0.005)
    assert (findings.queued, findings.queuing) == (0, 500), "of the repair under way"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (slow.held, findings.queued, findings.queuing) == (500, 500, 0)


async def test_a_check_names_some_corrupt_keys_in_the_log_and_counts_the_others() -> None:
    """Keys with different content under the same clock are found again at every check, so there is no log line for each
    of thousands."""
    rows = [row(b"b", b"%d" % n, 5_000) for n in range(300)]
    settings = FullSyncSettings("west", "http://10.0.0.7:8098", "q", pause_ms=1, repair_rate_limit_count=0)
    sides = {"source": FakeEnd(*rows), "sink": FakeEnd(*(r._replace(hash64=8) for r in rows))}
    checker = PeerChecker(settings, **sides, repairs=FakeRepairs(), random=Random(1))  # type: ignore[arg-type]
    for began_ms in (10_000, 20_000):
        with structlog.testing.capture_logs() as logged:
            await checker.check(PeerCheck("default", CheckKind.ALL, None, "", began_ms), Findings())
        lines = [line for line in logged if line["event"].startswith("fullsync.corrupt")]
        assert len(lines) == CORRUPT_LOGGED + 1
        assert (lines[-1]["event"], lines[-1]["count"]) == ("fullsync.corrupt_keys", 300)
        assert len(checker.named[b"default"].keys) == 300

"""The exchange between two generated clusters finds every difference and nothing else; a change in transit is not a
difference."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from isthmus.aae.exchange.compare import BehindSide, ComparedRow, DifferenceKind, by_key, compare
from isthmus.aae.exchange.exchange import (
    FULL_COMPARE_MAX,
    Clocks,
    ExchangeVerdict,
    Findings,
    Leaves,
    Pause,
    Repair,
    Roots,
    RowPage,
    exchange,
)
from isthmus.aae.trees.tree import HashTree
from isthmus.repl.model.entry import leaf
from isthmus.repl.model.keys import key_hash
from isthmus.repl.model.vclock import Clock, decode_clock, encode_clock

SIZE_BITS = 14
ROWS_MAX = 50

A, B = b"a" * 20, b"b" * 20


def row(number: int, clock: Clock, hash64: int = 1, modified_ms: int = 0) -> ComparedRow:
    """A key of the bucket `b`."""
    return ComparedRow(b"b", b"%d" % number, encode_clock(clock), hash64, modified_ms, False)


@dataclass
class FakeSide:
    """One cluster: its rows."""

    rows: dict[tuple[bytes, bytes], ComparedRow] = field(default_factory=dict)
    flaw: tuple[int, int] = (0, 0)
    """(segment, what is wrong with its leaf)."""

    def put(self, *rows: ComparedRow) -> None:
        """Set keys to these rows."""
        self.rows |= by_key(rows)

    def tree(self) -> HashTree:
        """The tree, computed from all rows."""
        tree = HashTree()
        tree.change(*self.flaw)
        for r in self.rows.values():
            tree.change(
                key_hash(r.bucket, r.key) >> 44, leaf(r.bucket, r.key, r.clock, r.hash64, tombstone=r.tombstone)
            )
        return tree

    def listed(self, ask: Clocks, since_ms: int) -> RowPage:
        """Rows of the requested segments, never many more than ROWS_MAX."""
        rows: list[ComparedRow] = []
        for covered, segment in enumerate(ask.segments):
            if len(rows) >= ROWS_MAX:
                return RowPage(rows, covered)
            rows += [
                r
                for r in self.rows.values()
                if key_hash(r.bucket, r.key) >> (64 - ask.size_bits) == segment
                and (ask.all_times or r.modified_ms >= since_ms)
            ]
        return RowPage(rows, len(ask.segments))


class Run:
    """Drives a machine; `on_pause` is called during each of its pauses."""

    def __init__(self, source: FakeSide, sink: FakeSide, on_pause: Callable[[], None] = lambda: None) -> None:
        self.sides = (source, sink)
        self.on_pause = on_pause
        self.findings = Findings()
        self.repaired: dict[bytes, tuple[DifferenceKind, BehindSide]] = {}
        self.room = 1 << 30
        self.asked: list[type] = []

    def verdict(
        self,
        key_filter: Callable[[bytes, bytes], bool] | None = None,
        since_ms: int = 0,
        segments_at_once: int = 300,
        branches_at_once: int = 100,
        segment_limit: int = 0,
        start: int = 0,
        both_ways: bool = False,
    ) -> ExchangeVerdict:
        """Drive it to its end."""
        machine = exchange(
            self.findings,
            size_bits=SIZE_BITS,
            key_filter=key_filter,
            partial=since_ms > 0,
            both_ways=both_ways,
            branches_at_once=branches_at_once,
            segments_at_once=segments_at_once,
            segment_limit=segment_limit,
            start=start,
        )
        answer: object = None
        while True:
            try:
                ask = machine.send(answer)
            except StopIteration as end:
                verdict: ExchangeVerdict = end.value
                return verdict
            self.asked.append(type(ask))
            match ask:
                case Roots():
                    answer = tuple(side.tree().branch_hashes() for side in self.sides)
                case Leaves():
                    trees = [side.tree() for side in self.sides]
                    answer = tuple(
                        np.concatenate([tree.leaves(branch, ask.size_bits) for branch in ask.branches])
                        for tree in trees
                    )
                case Clocks():
                    answer = tuple(side.listed(ask, since_ms) for side in self.sides)
                case Pause():
                    self.on_pause()
                    answer = None
                case Repair():
                    queued = ask.differences[: self.room]
                    self.room -= len(queued)
                    assert not any(d.key in self.repaired for d in ask.differences)
                    self.repaired |= {d.key: (d.kind, d.side) for d in queued}
                    answer = len(queued)


def two_clusters(count: int) -> tuple[FakeSide, FakeSide]:
    """Two equal clusters."""
    rows = [row(n, ((A, n + 1, 0),)) for n in range(count)]
    source, sink = FakeSide(), FakeSide()
    source.put(*rows)
    sink.put(*rows)
    return source, sink


def test_equal_clusters_are_proven_equal_by_one_look_at_the_roots() -> None:
    """Only the roots are requested."""
    run = Run(*two_clusters(200))
    assert run.verdict() is ExchangeVerdict.IN_SYNC
    assert run.asked == [Roots]


@pytest.mark.parametrize("seed", range(6))
def test_every_difference_is_found_and_nothing_else(seed: int) -> None:
    """If some of many keys are missing, behind, ahead, concurrent or corrupt on a side, the run repairs exactly those,
    each once and by its name, and its verdict is REPAIRED."""
    chance = random.Random(seed)
    source, sink = two_clusters(600)
    expected: dict[bytes, tuple[DifferenceKind, BehindSide]] = {}
    for n in chance.sample(range(600), 150):
        name = (b"b", b"%d" % n)
        match n % 6:
            case 0:
                del sink.rows[name]
                expected[name[1]] = (DifferenceKind.MISSING, BehindSide.SINK)
            case 1:
                del source.rows[name]
                expected[name[1]] = (DifferenceKind.MISSING, BehindSide.SOURCE)
            case 2:
                source.put(row(n, ((A, n + 2, 0),)))
                expected[name[1]] = (DifferenceKind.BEHIND, BehindSide.SINK)
            case 3:
                sink.put(row(n, ((A, n + 1, 0), (B, 1, 0))))
                expected[name[1]] = (DifferenceKind.BEHIND, BehindSide.SOURCE)
            case 4:
                sink.put(row(n, ((B, 7, 0),)))
                expected[name[1]] = (DifferenceKind.CONCURRENT, BehindSide.BOTH)
            case 5:
                sink.put(row(n, ((A, n + 1, 0),), hash64=2))
                expected[name[1]] = (DifferenceKind.CORRUPT, BehindSide.BOTH)
    run = Run(source, sink)
    assert run.verdict() is ExchangeVerdict.REPAIRED
    assert run.repaired == expected
    assert run.findings.differences == len(expected)
    assert run.findings.branches_done == run.findings.branches_differing


def test_a_change_on_its_way_is_transient() -> None:
    """A change that arrives during a pause is not a difference, at any step; nor is a key that is always one version
    behind and keeps changing (R-LASTING, I-AAE-CONFIRM)."""
    source, sink = two_clusters(300)
    source.put(row(1, ((A, 900, 0),)))
    version = [1000]

    def meanwhile() -> None:
        sink.put(source.rows[b"b", b"1"], source.rows[b"b", b"2"])
        version[0] += 1
        source.put(row(2, ((A, version[0], 0),)))

    source.put(row(2, ((A, 999, 0),)))
    run = Run(source, sink, meanwhile)
    assert run.verdict() is ExchangeVerdict.IN_SYNC
    assert run.repaired == {}
    assert run.findings.transient == 1


def test_filtered_keys_are_never_a_difference() -> None:
    """Differing keys that the filter excludes are not repaired."""
    source, sink = two_clusters(50)
    del sink.rows[b"b", b"1"], sink.rows[b"b", b"2"]
    run = Run(source, sink)
    assert run.verdict(key_filter=lambda bucket, key: key != b"1") is ExchangeVerdict.REPAIRED
    assert set(run.repaired) == {b"2"}
    run = Run(source, sink)
    assert run.verdict(key_filter=lambda bucket, key: False) is ExchangeVerdict.IN_SYNC
    assert run.findings.filtered == 2


def test_a_run_limited_to_recent_changes_calls_nothing_missing_that_is_old() -> None:
    """With rows of recent changes alone, a key that the sink has in an older version is reported as behind, not
    missing."""
    source, sink = two_clusters(50)
    source.put(row(3, ((A, 99, 0),), modified_ms=5_000))
    del sink.rows[b"b", b"4"]
    run = Run(source, sink)
    assert run.verdict(since_ms=4_000) is ExchangeVerdict.REPAIRED
    assert run.repaired == {b"3": (DifferenceKind.BEHIND, BehindSide.SINK)}


def test_a_range_that_explains_nothing_is_not_in_sync() -> None:
    """Leaves differ but no row of the time range does: the run is incomplete (I-AAE-COMPLETE); with all times it finds
    the key."""
    source, sink = two_clusters(50)
    del sink.rows[b"b", b"4"]
    run = Run(source, sink)
    assert run.verdict(since_ms=4_000) is ExchangeVerdict.INCOMPLETE
    assert run.findings.segments_unexplained == 1
    assert Run(source, sink).verdict() is ExchangeVerdict.REPAIRED


def test_filtered_keys_explain_leaves_that_differ_outside_the_range() -> None:
    """Old keys that a filter excludes differ for ever: a run of a range reads them completely and is in sync, however
    many they are. One old key that is included makes it incomplete, unless it was only in transit."""
    source, sink = two_clusters(600)
    for n in range(300):
        del sink.rows[b"b", b"%d" % n]

    def wanted(_bucket: bytes, key: bytes) -> bool:
        return int(key) >= 300

    run = Run(source, sink)
    assert run.verdict(wanted, since_ms=4_000) is ExchangeVerdict.IN_SYNC
    assert (run.findings.filtered, run.findings.segments_unexplained, run.repaired) == (300, 0, {})
    missing = sink.rows.pop((b"b", b"400"))
    late = Run(source, sink, lambda: sink.put(missing) if Clocks in late.asked else None)
    assert late.verdict(wanted, since_ms=4_000) is ExchangeVerdict.IN_SYNC
    del sink.rows[b"b", b"400"]
    lacking = Run(source, sink)
    assert lacking.verdict(wanted, since_ms=4_000) is ExchangeVerdict.INCOMPLETE
    assert lacking.findings.segments_unexplained == 1


def test_a_side_ahead_by_a_change_outside_the_range_is_not_in_sync() -> None:
    """A key was changed on one side within the range, and on the other one outside of it. Neither lacks anything within
    the range, but the sides differ. Where the sink lacks the other change, the run is incomplete; where the source
    lacks it, the sink is up to date, unless the run is to repair both."""
    for ahead, both_ways, verdict in (
        (0, False, ExchangeVerdict.INCOMPLETE),
        (1, False, ExchangeVerdict.UP_TO_DATE),
        (1, True, ExchangeVerdict.INCOMPLETE),
    ):
        clusters = two_clusters(50)
        clusters[1 - ahead].put(row(3, ((A, 99, 0),), modified_ms=5_000))
        clusters[ahead].put(row(3, ((A, 99, 0), (B, 7, 0)), hash64=2, modified_ms=3_000))
        run = Run(*clusters)
        assert run.verdict(since_ms=4_000, both_ways=both_ways) is verdict
        incomplete = verdict is ExchangeVerdict.INCOMPLETE
        assert (run.findings.segments_unexplained, run.findings.segments_ahead, run.repaired) == (
            incomplete, not incomplete, {},
        )  # fmt: skip
        assert run.findings.up_to_date is not incomplete


@pytest.mark.parametrize("since_ms", [0, 4_000])
def test_a_sink_with_keys_of_its_own_is_up_to_date(since_ms: int) -> None:
    """One-way, with more keys of the sink's own than a partial run compares at first, some of them newer there: nothing
    of the source is missing, whatever the run's range. Only a key that the sink lacks, has older, or has with other
    content, makes it less than up to date (R-UPTODATE)."""
    source, sink = two_clusters(50)
    sink.put(*(row(number, ((B, number, 0),), modified_ms=1_000) for number in range(1_000, 1_000 + FULL_COMPARE_MAX)))
    sink.put(*(row(number, ((B, number, 0),), modified_ms=5_000) for number in range(2_000, 2_020)))
    newer = source.rows[b"b", b"7"]
    sink.put(row(7, (*decode_clock(newer.clock), (B, 1, 0)), modified_ms=1_000))
    run = Run(source, sink)
    assert run.verdict(since_ms=since_ms) is ExchangeVerdict.UP_TO_DATE
    assert run.findings.up_to_date
    assert run.findings.segments_unexplained == 0
    assert run.findings.ahead == (20 if since_ms else FULL_COMPARE_MAX + 21)
    assert bool(run.findings.segments_ahead) is bool(since_ms)

    for lacking in (row(3_000, ((A, 1, 0),)), row(7, ((A, 99, 0),)), newer._replace(hash64=newer.hash64 + 1)):
        source, sink = two_clusters(50)
        sink.put(*(row(number, ((B, number, 0),)) for number in range(1_000, 1_000 + 2 * FULL_COMPARE_MAX)))
        source.put(lacking)
        run = Run(source, sink)
        verdict = run.verdict(since_ms=since_ms)
        assert not run.findings.up_to_date
        assert verdict is (ExchangeVerdict.INCOMPLETE if since_ms else ExchangeVerdict.REPAIRED)


def test_what_the_sink_lacks_is_repaired_whatever_else_it_has() -> None:
    """A key of the sink's own beside one that it lacks: one-way the run has repaired all that it is to repair when it
    has queued ours; both ways only when it has queued both."""
    for both_ways, room, verdict in (
        (False, 1, ExchangeVerdict.REPAIRED),
        (False, 0, ExchangeVerdict.DIFFERING),
        (True, 1, ExchangeVerdict.DIFFERING),
        (True, 2, ExchangeVerdict.REPAIRED),
    ):
        source, sink = two_clusters(50)
        sink.put(row(1_000, ((B, 1, 0),)))
        source.put(row(2_000, ((A, 1_000, 0),)))
        run = Run(source, sink)
        run.room = room
        assert run.verdict(both_ways=both_ways) is verdict
        assert not run.findings.up_to_date


def test_a_key_that_is_written_on_and_on_leaves_a_range_in_sync() -> None:
    """A key that changes between any two looks, and arrives at the sink one look later, is in transit."""
    source, sink = two_clusters(50)
    source.put(row(3, ((A, 99, 0),), modified_ms=5_000))

    def written_on() -> None:
        before = source.rows[b"b", b"3"]
        sink.put(before)
        source.put(row(3, ((A, 100 + len(run.asked), 0),), modified_ms=6_000))

    run = Run(source, sink, written_on)
    assert run.verdict(since_ms=4_000) is ExchangeVerdict.IN_SYNC
    assert run.findings.transient == 1


def test_a_change_that_arrived_before_its_rows_were_read_leaves_a_range_in_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leaves differ at both looks, and both sides have equal rows when these are read: this is not an old
    difference."""
    source, sink = two_clusters(50)
    source.put(row(7, ((A, 99, 0),), modified_ms=5_000))
    listed = FakeSide.listed

    def arrived(side: FakeSide, ask: Clocks, since_ms: int) -> RowPage:
        sink.rows = dict(source.rows)
        return listed(side, ask, since_ms)

    monkeypatch.setattr(FakeSide, "listed", arrived)
    run = Run(source, sink)
    assert run.verdict(since_ms=4_000) is ExchangeVerdict.IN_SYNC
    assert Clocks in run.asked


@pytest.mark.parametrize("since_ms", [0, 4_000])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_tree_that_is_wrong_proves_nothing(since_ms: int, filtered: bool) -> None:
    """Leaves that differ for ever over equal rows make a run incomplete, also with a filter or a time range. If the
    leaf changes meanwhile the change was in transit, and both are in sync (R-LASTING)."""
    source, sink = two_clusters(50)
    source.flaw = (key_hash(b"b", b"9") >> 44, 77)

    def wanted(_bucket: bytes, key: bytes) -> bool:
        return not filtered or key != b"3"

    run = Run(source, sink)
    assert run.verdict(wanted, since_ms=since_ms) is ExchangeVerdict.INCOMPLETE
    assert (run.findings.segments_wrong, run.findings.segments_unexplained) == (1, 0)
    seen = Run(source, sink)

    def mended() -> None:
        if Clocks in seen.asked:
            source.flaw = (0, 0)

    seen.on_pause = mended
    assert seen.verdict(wanted, since_ms=since_ms) is ExchangeVerdict.IN_SYNC
    assert seen.findings.segments_wrong == 0


def test_no_crowd_of_changes_that_arrived_hides_a_tree_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of segments have equal rows by the time they are read, and one after them has a wrong leaf, which is
    found."""
    source, sink = two_clusters(50)
    source.put(*(row(n, ((A, 10_000 + n, 0),)) for n in range(600)))
    sink.flaw = ((1 << 20) - 1, 9)
    listed = FakeSide.listed

    def arrived(side: FakeSide, ask: Clocks, since_ms: int) -> RowPage:
        sink.rows = dict(source.rows)
        return listed(side, ask, since_ms)

    monkeypatch.setattr(FakeSide, "listed", arrived)
    monkeypatch.setitem(globals(), "ROWS_MAX", 1_000)
    run = Run(source, sink)
    assert run.verdict(segments_at_once=1_000, branches_at_once=1_024) is ExchangeVerdict.INCOMPLETE
    assert run.findings.segments_wrong == 1


def test_a_check_compares_no_more_segments_than_its_limit_and_the_next_ones_go_on() -> None:
    """Each run compares at most the limit, queues the differences among these segments, and reports how many are left.
    If all are repaired, the runs end in sync after as many runs as needed."""
    source, sink = two_clusters(400)
    for n in range(400, 1_000):
        source.put(row(n, ((A, n + 1, 0),)))
    differing = {key_hash(b"b", b"%d" % n) >> 64 - SIZE_BITS for n in range(400, 1_000)}
    for turn in range(40):
        run = Run(source, sink)
        verdict = run.verdict(segment_limit=100, start=turn * 12_345, branches_at_once=70)
        assert run.findings.segments_compared == min(100, len(differing))
        if verdict is ExchangeVerdict.IN_SYNC:
            break
        compared_now = {key_hash(b"b", key) >> 64 - SIZE_BITS for key in run.repaired}
        assert verdict is ExchangeVerdict.REPAIRED
        assert 1 <= len(compared_now) <= 100
        differing -= compared_now
        assert bool(run.findings.segments_left) == bool(differing)
        assert run.findings.segments_left <= len(differing)
        assert run.findings.segments_unexplained == run.findings.segments_left
        sink.put(*(source.rows[b"b", key] for key in run.repaired))
    assert (verdict, differing) == (ExchangeVerdict.IN_SYNC, set())
    assert 6 <= turn <= 7, "600 keys are in nearly as many segments"


def test_lasting_differences_in_some_segments_do_not_starve_others() -> None:
    """Keys that are ahead on the other side differ for ever from here; runs that begin at another segment find the one
    that can be repaired."""
    source, sink = two_clusters(10)
    for n in range(10, 300):
        sink.put(row(n, ((B, n + 1, 0),)))
    source.put(row(1_000, ((A, 7, 0),)))
    found = set[bytes]()
    for start in range(0, 1 << 20, 1 << 15):
        run = Run(source, sink)
        run.verdict(segment_limit=20, start=start)
        found |= {key for key, (_, side) in run.repaired.items() if side is BehindSide.SINK}
    assert found == {b"1000"}


def test_repairs_that_could_not_be_queued_make_the_verdict_differing() -> None:
    """When less was queued than differs, the verdict is `differing`."""
    source, sink = two_clusters(100)
    for n in range(20):
        del sink.rows[b"b", b"%d" % n]
    run = Run(source, sink)
    run.room = 5
    assert run.verdict() is ExchangeVerdict.DIFFERING
    assert (run.findings.differences, run.findings.queued) == (20, 5)


def test_answers_that_cover_less_are_asked_for_again() -> None:
    """If the sides answer for different numbers of segments, a few at a time, each difference is still found once."""
    source, sink = two_clusters(400)
    for n in range(0, 400, 2):
        del sink.rows[b"b", b"%d" % n]
    run = Run(source, sink)
    assert run.verdict(segments_at_once=10_000) is ExchangeVerdict.REPAIRED
    assert len(run.repaired) == 200
    assert run.asked.count(Clocks) > 4


def test_a_reaped_key_is_no_difference() -> None:
    """A key that is gone on both sides at the second look is transient."""
    source, sink = two_clusters(20)
    del sink.rows[b"b", b"1"]
    passes = [0]

    def meanwhile() -> None:
        passes[0] += 1
        if passes[0] == 3:
            del source.rows[b"b", b"1"]

    run = Run(source, sink, meanwhile)
    assert run.verdict() is ExchangeVerdict.IN_SYNC
    assert run.findings.transient == 1


def test_deleted_keys_and_absent_ones_are_the_same() -> None:
    """A tombstone differs from a value, and from nothing else."""
    source, sink = two_clusters(40)
    gone = row(1, ((A, 50, 0),))._replace(tombstone=True)
    source.put(gone)
    del sink.rows[b"b", b"1"]
    assert Run(source, sink).verdict() is ExchangeVerdict.IN_SYNC
    sink.put(row(1, ((B, 3, 0),))._replace(tombstone=True))
    assert Run(source, sink).verdict() is ExchangeVerdict.IN_SYNC
    sink.put(row(1, ((A, 2, 0),)))
    run = Run(source, sink)
    assert run.verdict() is ExchangeVerdict.REPAIRED
    assert run.repaired == {b"1": (DifferenceKind.BEHIND, BehindSide.SINK)}


def test_the_words_of_a_difference() -> None:
    """Each pair of rows has one kind and one side; equal rows have none."""
    old, new = row(1, ((A, 1, 0),)), row(1, ((A, 2, 0),))
    pairs = {
        (new, old): (DifferenceKind.BEHIND, BehindSide.SINK),
        (old, new): (DifferenceKind.BEHIND, BehindSide.SOURCE),
        (old, row(1, ((B, 1, 0),))): (DifferenceKind.CONCURRENT, BehindSide.BOTH),
        (old, row(1, ((A, 1, 0),), hash64=9)): (DifferenceKind.CORRUPT, BehindSide.BOTH),
    }
    for (mine, theirs), (kind, side) in pairs.items():
        (found,) = compare(by_key([mine]), by_key([theirs]))
        assert (found.kind, found.side) == (kind, side)
    assert compare(by_key([old]), by_key([old])) == []

"""The exchange: find where two clusters differ, with as few data as possible at each step.

    roots    -> the hashes of all branches; if equal: in sync, nothing else is requested
    confirm  -> pause and compare again while fewer differ; only what differs every time counts
    leaves   -> of a limited set of branches, confirmed likewise
    clocks   -> the rows of a limited set of segments, compared key by key; keys that differ are read again
    repair   -> hand over the keys that still differ, before the next set begins

until every differing branch was processed. A pure generator: it yields a Step, and the driver (`aae.exchange.run`)
sends the results of both sides. If a result cannot be had, the driver ends the run with a reason: nothing is called in
sync that was not compared. Rules: docs/protocol.md I-AAE-*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple, TypeVar

from isthmus.aae.exchange.compare import (
    BehindSide,
    ComparedRow,
    DifferenceKind,
    KeyDifference,
    Rows,
    by_key,
    compare,
    confirm,
)
from isthmus.aae.trees.tree import BRANCH_BITS, Hashes, differing
from isthmus.repl.model.keys import SEGMENT_BITS, key_hash

BRANCHES_AT_ONCE: Final = 512
"""Branches whose leaves are requested at once: 4 MB of hashes per side in a full tree, before compression. Every set
has its own pauses; a thousand differing keys fit into two sets."""

SEGMENTS_AT_ONCE: Final = 16_384
"""Segments whose rows are requested at once; a response may cover fewer if it would be too large."""

CONFIRMS_MAX: Final = 8
"""Confirmations per step: under load something always differs for a moment."""

FULL_COMPARE_MAX: Final = 256
"""Unexplained segments of a set that a run of a time range compares with all their rows: under load a few change
between two reads. More than that means that older changes differ, which another check compares."""

T = TypeVar("T")


class Roots(NamedTuple):
    """Request the hashes of all branches from both sides. Result: a pair of Hashes."""


class Leaves(NamedTuple):
    """Request the leaves of `branches` in the tree of 2^size_bits segments from both sides. Result: a pair of Hashes,
    with the leaves of the branches concatenated."""

    branches: tuple[int, ...]
    size_bits: int


class Clocks(NamedTuple):
    """Request the rows of `segments` (of the tree of 2^size_bits, ascending) from both sides; only rows changed within
    the run's time range unless `all_times`. Result: a pair of RowPage."""

    segments: tuple[int, ...]
    size_bits: int
    all_times: bool = False


class RowPage(NamedTuple):
    """Rows of the first `segments_covered` of the requested segments, of one at least."""

    rows: Sequence[ComparedRow]
    segments_covered: int


class Pause(NamedTuple):
    """Wait before a confirmation. Result: None."""


class Repair(NamedTuple):
    """Hand over differing keys. Result: how many of them were enqueued."""

    differences: Sequence[KeyDifference]


Step = Roots | Leaves | Clocks | Pause | Repair


class ExchangeVerdict(StrEnum):
    """Result of a run. `in-sync`: both clusters are equal. `up-to-date`: the sink has everything that the source has,
    and keys of its own, or newer ones."""

    IN_SYNC = "in-sync"
    UP_TO_DATE = "up-to-date"
    REPAIRED = "repaired"
    DIFFERING = "differing"
    TIMED_OUT = "timed-out"
    ERROR = "error"
    INCOMPLETE = "incomplete"


PROVING: Final = frozenset({ExchangeVerdict.IN_SYNC, ExchangeVerdict.UP_TO_DATE})
"""Verdicts of runs that found nothing missing at the sink."""


@dataclass(slots=True)
class Findings:
    """Progress of a run: shown while it runs, recorded when it ends."""

    state: str = "new"
    branches_differing: int = 0
    branches_done: int = 0
    segments_compared: int = 0
    keys_compared: int = 0
    transient: int = 0
    filtered: int = 0
    """Differing keys that the filter leaves out."""
    segments_unexplained: int = 0
    """Segments whose leaves differed every time although none of the compared rows did: something outside the scope
    differs."""
    segments_ahead: int = 0
    """Segments that differ outside the scope, and there only in keys that are ahead at the sink."""
    segments_left: int = 0
    """Lower bound of the differing segments left to later checks by the limit; they are unexplained as well."""
    segments_wrong: int = 0
    """Segments with equal rows and different leaves, neither of which changes: one tree is wrong."""
    forgotten: int = 0
    """Keys that are missing at the source, and that the sink has as the source's cluster wrote them: lost, or deleted
    and reaped so long ago that it is forgotten. The sink may lack a delete, so they are not ahead there."""
    queued: int = 0
    queuing: int = 0
    """Keys that the repair under way has queued; they count in `queued` once it ends."""
    by_kind: Counter[tuple[DifferenceKind, BehindSide]] = field(default_factory=Counter)

    @property
    def differences(self) -> int:
        """Keys that differed at both reads."""
        return self.by_kind.total()

    @property
    def ahead(self) -> int:
        """Keys that only the sink has, or that are newer there: the source has nothing to send for them."""
        there = sum(count for (_, side), count in self.by_kind.items() if side is BehindSide.SOURCE)
        return there - self.forgotten

    @property
    def up_to_date(self) -> bool:
        """True, once the run has ended by itself, if the sink has everything that the source had at the run's begin."""
        return self.differences == self.ahead and not self.segments_unexplained and not self.segments_wrong


Machine = Generator[Step, object, ExchangeVerdict]


def nobodys(_row: ComparedRow) -> bool:
    """Rows of a source whose own writes are not known by their clocks."""
    return False


class CompareFilter(NamedTuple):
    """The keys that count (`key_filter`; None: all), the bucket that is compared (None: all), whether rows are of a
    time range only (`partial`), whether keys that are ahead at the sink are to be repaired, too (`both_ways`), and
    which rows of the sink are as the source's cluster wrote them (`ours`)."""

    key_filter: Callable[[bytes, bytes], bool] | None
    bucket: bytes | None
    partial: bool
    both_ways: bool = False
    ours: Callable[[ComparedRow], bool] = nobodys

    @property
    def is_partial(self) -> bool:
        """True if keys may differ that are not compared."""
        return self.partial or self.bucket is not None

    def counts(self, difference: KeyDifference) -> bool:
        """False if the filter leaves the key out."""
        return self.key_filter is None or self.key_filter(difference.bucket, difference.key)

    def lacks(self, difference: KeyDifference) -> bool:
        """True if a cluster lacks something that this run is to bring there: the sink; with `both_ways` either."""
        there = difference.side is BehindSide.SOURCE and not self.forgotten(difference)
        return self.counts(difference) and (self.both_ways or not there)

    def forgotten(self, difference: KeyDifference) -> bool:
        """True for a key that is missing at the source, and that its cluster wrote; see `Findings.forgotten`."""
        missing = difference.kind is DifferenceKind.MISSING and difference.side is BehindSide.SOURCE
        return missing and difference.sink is not None and self.ours(difference.sink)


def exchange(
    findings: Findings,
    *,
    size_bits: int = SEGMENT_BITS,
    key_filter: Callable[[bytes, bytes], bool] | None = None,
    partial: bool = False,
    bucket: bytes | None = None,
    both_ways: bool = False,
    ours: Callable[[ComparedRow], bool] = nobodys,
    branches_at_once: int = BRANCHES_AT_ONCE,
    segments_at_once: int = SEGMENTS_AT_ONCE,
    segment_limit: int = 0,
    start: int = 0,
) -> Machine:
    """The generator of one run over trees of 2^size_bits segments. `key_filter(bucket, key)`: False for keys that may
    differ. `partial`: rows are of a time range only; `bucket`: only its rows are compared. `segment_limit`: compare the
    rows of no more segments, 0: no limit; `start`, any number, selects them, so that lasting differences in some do not
    starve the others. `both_ways`: keys that are ahead at the sink are to be repaired, too; else they are only counted.
    `ours`: whether a row of the sink is as the source's cluster wrote it; see `Findings.forgotten`.

    The driver sends the result of each Step and receives the next. Returns IN_SYNC; UP_TO_DATE when the only
    differences are keys that are ahead at the sink, which are not to be repaired; REPAIRED when all that is to be
    repaired was enqueued; DIFFERING; or INCOMPLETE when leaves differ that no compared row explains, or a tree is
    wrong. IN_SYNC and UP_TO_DATE cover all keys that count, also in a partial run: each differing segment was
    explained.
    """
    scope = CompareFilter(key_filter, bucket, partial, both_ways, ours)
    findings.state = "root-compare"
    branches = yield from _confirm(_compare_roots, findings, "root-confirm")
    findings.branches_differing = len(branches)
    if segment_limit:
        branches = _rotate(branches, start)
    for part in _parts(branches, branches_at_once):
        if segment_limit and findings.segments_compared >= segment_limit:
            _skip_segments(findings, len(part))  # one segment of each branch, at least
        else:
            yield from _branches(findings, sorted(part), size_bits, scope, segments_at_once, segment_limit, start)
        findings.branches_done += len(part)
    findings.state = "done"
    wanted = findings.differences if both_ways else findings.differences - findings.ahead
    if wanted:
        return ExchangeVerdict.REPAIRED if findings.queued >= wanted else ExchangeVerdict.DIFFERING
    if findings.segments_unexplained or findings.segments_wrong:
        return ExchangeVerdict.INCOMPLETE
    ahead = findings.differences or findings.segments_ahead
    return ExchangeVerdict.UP_TO_DATE if ahead else ExchangeVerdict.IN_SYNC


def _branches(
    findings: Findings,
    branches: Sequence[int],
    size_bits: int,
    scope: CompareFilter,
    segments_at_once: int,
    segment_limit: int,
    start: int,
) -> Generator[Step, object, None]:
    findings.state = "branch-compare"

    def compare_once() -> Generator[Step, object, list[int]]:
        return _compare_leaves(branches, size_bits)

    segments = yield from _confirm(compare_once, findings, "branch-confirm")
    if segment_limit:
        room = segment_limit - findings.segments_compared
        _skip_segments(findings, max(0, len(segments) - room))
        segments = sorted(_rotate(segments, start)[:room])
    for part in _parts(segments, segments_at_once):
        left = part
        while left:
            done = yield from _segments(findings, left, size_bits, scope)
            left = left[done:]


def _rotate(numbers: list[int], start: int) -> list[int]:
    """The list rotated to begin at index `start`, modulo its length."""
    first = start % len(numbers) if numbers else 0
    return numbers[first:] + numbers[:first]


def _skip_segments(findings: Findings, count: int) -> None:
    findings.segments_left += count
    findings.segments_unexplained += count


def _segments(
    findings: Findings, segments: Sequence[int], size_bits: int, scope: CompareFilter
) -> Generator[Step, object, int]:
    """Compare the rows of the first of `segments`, as many as the responses cover; returns how many."""
    findings.state = "clock-compare"
    source, sink, covered = yield from _fetch_rows(segments, size_bits, all_times=False)
    findings.segments_compared += covered
    findings.keys_compared += len(source.keys() | sink.keys())
    shift = 64 - size_bits
    every = [each for each in compare(source, sink) if scope.bucket in (None, each.bucket)]
    explained = {_segment(difference, shift) for difference in every}
    unexplained = [segment for segment in segments[:covered] if segment not in explained]
    equal: Sequence[int] = unexplained
    if scope.is_partial:
        unexplained, equal = yield from _beyond_range(findings, unexplained, size_bits, scope)
        findings.segments_unexplained += len(unexplained)
    findings.segments_wrong += yield from _count_wrong_trees(equal, size_bits)
    findings.state = "clock-compare"
    first = [each for each in every if scope.counts(each)]
    findings.filtered += len(every) - len(first)
    suspects = every if scope.is_partial else first
    if not suspects:
        return covered
    findings.state = "clock-confirm"
    yield Pause()
    again = sorted({_segment(difference, shift) for difference in suspects})
    left: Sequence[int] = again
    more: list[KeyDifference] = []
    while left:
        source, sink, done = yield from _fetch_rows(left, size_bits, all_times=True)
        looked = set(left[:done])
        mine = [difference for difference in first if _segment(difference, shift) in looked]
        left = left[done:]
        still, transient = confirm(mine, source, sink)
        findings.transient += transient
        if scope.is_partial:  # all times are read now: keys beyond the range may differ in the same segments
            known = {(difference.bucket, difference.key) for difference in still}
            beyond = [d for d in compare(source, sink) if (d.bucket, d.key) not in known and scope.counts(d)]
            lacking = [difference for difference in beyond if scope.lacks(difference)]
            more += lacking
            findings.segments_ahead += len(_segments_of(beyond, shift) - _segments_of(lacking, shift))
        if still:
            findings.by_kind.update((difference.kind, difference.side) for difference in still)
            findings.forgotten += sum(map(scope.forgotten, still))
            findings.state = "repair"
            queued = yield Repair(still)
            assert isinstance(queued, int)
            findings.queued += queued
            findings.state = "clock-confirm"
    findings.segments_unexplained += len((yield from _confirm_segments(findings, more, size_bits)))
    return covered


def _beyond_range(
    findings: Findings, segments: Sequence[int], size_bits: int, scope: CompareFilter
) -> Generator[Step, object, tuple[list[int], list[int]]]:
    """Explain `segments`, which differ in none of the compared rows, by their other rows. Returns (segments that differ
    in keys of which a cluster lacks something, or that were not compared; segments in which no key differs).

    Keys that a filter leaves out, and keys of the sink's own, differ for ever and hide others in their segments: with
    either, all segments have to be compared. Without a filter the first FULL_COMPARE_MAX tell: where they lack
    something, older changes differ, which another check compares, and the others are not read."""
    tried = segments if scope.key_filter is not None else segments[:FULL_COMPARE_MAX]
    lacking, equal = yield from _differing_beyond_range(findings, tried, size_bits, scope)
    left = segments[len(tried) :]
    if not left:
        return lacking, equal
    if lacking:
        return [*lacking, *left], equal
    return (yield from _differing_beyond_range(findings, left, size_bits, scope))


def _differing_beyond_range(
    findings: Findings, segments: Sequence[int], size_bits: int, scope: CompareFilter
) -> Generator[Step, object, tuple[list[int], list[int]]]:
    """Compare all rows of `segments` twice. Returns (segments with a key of which a cluster lacks something, segments
    in which no key differs), and counts those that differ only in keys that are ahead at the sink."""
    shift = 64 - size_bits
    suspects: list[KeyDifference] = []
    explained: set[int] = set()
    left = segments
    while left:
        source, sink, done = yield from _fetch_rows(left, size_bits, all_times=True)
        left = left[done:]
        found = compare(source, sink)
        explained |= {_segment(difference, shift) for difference in found}
        counting = [difference for difference in found if scope.counts(difference)]
        findings.filtered += len(found) - len(counting)
        lacking = [difference for difference in counting if scope.lacks(difference)]
        findings.segments_ahead += len(_segments_of(counting, shift) - _segments_of(lacking, shift))
        suspects += lacking
    outside = yield from _confirm_segments(findings, suspects, size_bits)
    return outside, [segment for segment in segments if segment not in explained]


def _count_wrong_trees(segments: Sequence[int], size_bits: int) -> Generator[Step, object, int]:
    """How many of `segments`, whose rows are equal, have leaves that differ. Both are read again to exclude changes; a
    lasting contradiction means that a tree does not match its rows."""
    if not segments:
        return 0
    before = yield from _leaf_pairs(segments, size_bits)
    suspects: Sequence[int] = [segment for segment, (mine, theirs) in before.items() if mine != theirs][
        :FULL_COMPARE_MAX
    ]
    if not suspects:
        return 0
    yield Pause()
    shift = 64 - size_bits
    differing_rows: set[int] = set()
    left = suspects
    while left:
        source, sink, done = yield from _fetch_rows(left, size_bits, all_times=True)
        left = left[done:]
        differing_rows |= {_segment(difference, shift) for difference in compare(source, sink)}
    after = yield from _leaf_pairs(suspects, size_bits)
    return sum(after[segment] == before[segment] and segment not in differing_rows for segment in suspects)


def _leaf_pairs(segments: Sequence[int], size_bits: int) -> Generator[Step, object, dict[int, tuple[int, int]]]:
    """{segment: (leaf of the source, leaf of the sink)}."""
    bits = size_bits - BRANCH_BITS
    branches = sorted({segment >> bits for segment in segments})
    answer = yield Leaves(tuple(branches), size_bits)
    mine, theirs = _hashes(answer)
    at = {branch: place << bits for place, branch in enumerate(branches)}
    mask = (1 << bits) - 1
    places = {segment: at[segment >> bits] + (segment & mask) for segment in segments}
    return {segment: (int(mine[place]), int(theirs[place])) for segment, place in places.items()}


def _confirm_segments(
    findings: Findings, suspects: Sequence[KeyDifference], size_bits: int
) -> Generator[Step, object, list[int]]:
    """The segments of those `suspects` that still differ after a pause."""
    if not suspects:
        return []
    shift = 64 - size_bits
    findings.state = "clock-confirm"
    yield Pause()
    found: set[int] = set()
    left = sorted({_segment(difference, shift) for difference in suspects})
    while left:
        source, sink, done = yield from _fetch_rows(left, size_bits, all_times=True)
        looked = set(left[:done])
        left = left[done:]
        still, _ = confirm((d for d in suspects if _segment(d, shift) in looked), source, sink)
        found |= {_segment(difference, shift) for difference in still}
    return sorted(found)


def _segments_of(differences: Iterable[KeyDifference], shift: int) -> set[int]:
    return {_segment(difference, shift) for difference in differences}


def _segment(difference: KeyDifference, shift: int) -> int:
    return key_hash(difference.bucket, difference.key) >> shift


def _fetch_rows(
    segments: Sequence[int], size_bits: int, *, all_times: bool
) -> Generator[Step, object, tuple[Rows, Rows, int]]:
    answer = yield Clocks(tuple(segments), size_bits, all_times)
    source, sink = _pair(answer, RowPage)
    covered = min(source.segments_covered, sink.segments_covered)
    assert 1 <= covered <= len(segments)
    if covered == len(segments):
        return by_key(source.rows), by_key(sink.rows), covered
    kept = _in_covered_segments(segments[covered - 1], size_bits)
    return by_key(filter(kept, source.rows)), by_key(filter(kept, sink.rows)), covered


def _in_covered_segments(last: int, size_bits: int) -> Callable[[ComparedRow], bool]:
    shift = 64 - size_bits
    return lambda row: key_hash(row.bucket, row.key) >> shift <= last


def _compare_roots() -> Generator[Step, object, list[int]]:
    answer = yield Roots()
    return list(differing(*_hashes(answer)))


def _compare_leaves(branches: Sequence[int], size_bits: int) -> Generator[Step, object, list[int]]:
    answer = yield Leaves(tuple(branches), size_bits)
    places = differing(*_hashes(answer))
    bits = size_bits - BRANCH_BITS
    mask = (1 << bits) - 1
    return [(branches[place >> bits] << bits) + (place & mask) for place in places]


def _confirm(
    compare_once: Callable[[], Generator[Step, object, list[int]]], findings: Findings, state: str
) -> Generator[Step, object, list[int]]:
    """The hashes that differ in every comparison: at least two comparisons, and more as long as the set shrinks."""
    found = yield from compare_once()
    for _ in range(CONFIRMS_MAX):
        if not found:
            break
        findings.state = state
        yield Pause()
        again = set((yield from compare_once()))
        kept = [number for number in found if number in again]
        helped = len(kept) < len(found)
        found = kept
        if not helped:
            break
    return found


def _hashes(answer: object) -> tuple[Hashes, Hashes]:
    assert isinstance(answer, tuple)
    source, sink = answer
    return source, sink


def _pair(answer: object, kind: type[T]) -> tuple[T, T]:
    assert isinstance(answer, tuple)
    source, sink = answer
    assert isinstance(source, kind)
    assert isinstance(sink, kind)
    return source, sink


def _parts(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]

"""The exchange: how two clusters find out where they differ, each step as cheap as the last one lets.

    roots    -> the hashes of all branches; equal: in sync, nothing else is asked
    confirm  -> a pause, and again, as long as fewer differ; only what differs each time counts
    leaves   -> of a bounded set of branches, and confirmed likewise
    clocks   -> the rows of a bounded set of segments, compared key by key; and once more for keys that differ
    repair   -> what still differs is handed over, before the next set is begun

until every branch that differed has been through it: one run drains all. A pure machine, written as a generator: it
yields what it wants to know, the driver (`aae.exchange.run`) sends both sides' answers, and one that cannot be had ends
the run with a reason. So nothing is ever called in sync that was not compared. Rules: docs/protocol.md I-AAE-*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
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
    compared,
    lasting,
)
from isthmus.aae.trees.tree import BRANCH_BITS, Hashes, differing
from isthmus.repl.model.keys import SEGMENT_BITS, key_hash

BRANCHES_AT_ONCE: Final = 512
"""Branches whose leaves are asked for at once: 4 MB of hashes a side in a full tree, before compression. Each such set
has pauses of its own: a thousand keys anywhere are in two."""

SEGMENTS_AT_ONCE: Final = 16_384
"""Segments whose rows are asked for at once; an answer may cover fewer, if it would be too large."""

CONFIRMS_MAX: Final = 8
"""Confirms of one step, at most: under load there is always something that differs for a moment."""

WHOLE_LOOKS_MAX: Final = 256
"""Segments of a set that no row of the time range explains, and that are still looked at with all their rows: under
load a few change between two looks. Where there are more, old changes differ, and to read them is another check's."""

T = TypeVar("T")


class Roots(NamedTuple):
    """Ask both sides for the hashes of all branches. Answer: a pair of Hashes."""


class Leaves(NamedTuple):
    """Ask both sides for the leaves of `branches` in the tree of 2^size_bits segments. Answer: a pair of Hashes, the
    branches' leaves one behind the other."""

    branches: tuple[int, ...]
    size_bits: int


class Clocks(NamedTuple):
    """Ask both sides for the rows of `segments` (of the tree of 2^size_bits, in order); only of those
    changed within the run's time range unless `all_times`. Answer: a pair of Listed."""

    segments: tuple[int, ...]
    size_bits: int
    all_times: bool = False


class RowPage(NamedTuple):
    """Rows of the first `segments_covered` segments that were asked for: at least one."""

    rows: Sequence[ComparedRow]
    segments_covered: int


class Pause(NamedTuple):
    """Wait the pause between two looks. Answer: None."""


class Repair(NamedTuple):
    """Hand over what differs. Answer: how many of them were queued."""

    differences: Sequence[KeyDifference]


Ask = Roots | Leaves | Clocks | Pause | Repair


class ExchangeVerdict(StrEnum):
    """What a run found out. Only `in-sync` says that both are equal."""

    IN_SYNC = "in-sync"
    REPAIRED = "repaired"
    DIFFERING = "differing"
    TIMED_OUT = "timed-out"
    ERROR = "error"
    INCOMPLETE = "incomplete"


@dataclass(slots=True)
class Findings:
    """What a run knows so far: shown while it runs, recorded when it ends."""

    state: str = "new"
    branches_differing: int = 0
    branches_done: int = 0
    segments_compared: int = 0
    keys_compared: int = 0
    transient: int = 0
    filtered: int = 0
    """Keys that differ, and that the filter leaves out."""
    segments_unexplained: int = 0
    """Segments whose leaves differed at every look while none of the rows that this run looks at did: something else
    differs."""
    segments_left: int = 0
    """Segments, at least, that differ and are left to later checks by the limit; unexplained ones, too."""
    segments_wrong: int = 0
    """Segments whose rows are equal and whose leaves are not, though neither changes: a tree is wrong."""
    queued: int = 0
    by_kind: Counter[tuple[DifferenceKind, BehindSide]] = field(default_factory=Counter)

    @property
    def differences(self) -> int:
        """Keys that differed at both looks."""
        return self.by_kind.total()


Machine = Generator[Ask, object, ExchangeVerdict]


class CompareFilter(NamedTuple):
    """What counts (`wanted`; None: all), and what of it is looked at: of one bucket (None: of every one), and, if
    `partial`, of a time range alone."""

    wanted: Callable[[bytes, bytes], bool] | None
    bucket: bytes | None
    partial: bool

    @property
    def narrow(self) -> bool:
        """Something may differ that is not looked at."""
        return self.partial or self.bucket is not None

    def counts(self, difference: KeyDifference) -> bool:
        """True unless a filter leaves it out."""
        return self.wanted is None or self.wanted(difference.bucket, difference.key)


def exchange(
    findings: Findings,
    *,
    size_bits: int = SEGMENT_BITS,
    wanted: Callable[[bytes, bytes], bool] | None = None,
    partial: bool = False,
    bucket: bytes | None = None,
    branches_at_once: int = BRANCHES_AT_ONCE,
    segments_at_once: int = SEGMENTS_AT_ONCE,
    segment_limit: int = 0,
    start: int = 0,
) -> Machine:
    """The machine of one run over trees of 2^size_bits segments. `wanted(bucket, key)`: what counts. `partial`: rows
    come of a time range alone; `bucket`: only its rows are looked at. `segment_limit`: rows of no more segments are
    compared, 0: no limit; which ones are chosen depends on `start`, any number, so that what lasts in some does not
    keep others from their turn.

    The driver sends the answer to each Ask and gets the next; the return value is IN_SYNC, REPAIRED when all that
    differs was queued, DIFFERING, or INCOMPLETE when leaves differ and nothing that was looked at explains it, or a
    tree is wrong. IN_SYNC speaks of all that counts, also when only a part was looked at: each segment that differed
    was explained.
    """
    choice = CompareFilter(wanted, bucket, partial)
    findings.state = "root-compare"
    branches = yield from _confirmed(_roots, findings, "root-confirm")
    findings.branches_differing = len(branches)
    if segment_limit:
        branches = _rotated(branches, start)
    for part in _parts(branches, branches_at_once):
        if segment_limit and findings.segments_compared >= segment_limit:
            _leave(findings, len(part))  # one segment of each branch, at least
        else:
            yield from _branches(findings, sorted(part), size_bits, choice, segments_at_once, segment_limit, start)
        findings.branches_done += len(part)
    findings.state = "done"
    if not findings.differences:
        unknown = findings.segments_unexplained or findings.segments_wrong
        return ExchangeVerdict.INCOMPLETE if unknown else ExchangeVerdict.IN_SYNC
    return ExchangeVerdict.REPAIRED if findings.queued >= findings.differences else ExchangeVerdict.DIFFERING


def _branches(
    findings: Findings,
    branches: Sequence[int],
    size_bits: int,
    choice: CompareFilter,
    segments_at_once: int,
    segment_limit: int,
    start: int,
) -> Generator[Ask, object, None]:
    findings.state = "branch-compare"

    def look() -> Generator[Ask, object, list[int]]:
        return _leaves(branches, size_bits)

    segments = yield from _confirmed(look, findings, "branch-confirm")
    if segment_limit:
        room = segment_limit - findings.segments_compared
        _leave(findings, max(0, len(segments) - room))
        segments = sorted(_rotated(segments, start)[:room])
    for part in _parts(segments, segments_at_once):
        left = part
        while left:
            done = yield from _segments(findings, left, size_bits, choice)
            left = left[done:]


def _rotated(numbers: list[int], start: int) -> list[int]:
    """The same, beginning at another one."""
    first = start % len(numbers) if numbers else 0
    return numbers[first:] + numbers[:first]


def _leave(findings: Findings, count: int) -> None:
    findings.segments_left += count
    findings.segments_unexplained += count


def _segments(
    findings: Findings, segments: Sequence[int], size_bits: int, choice: CompareFilter
) -> Generator[Ask, object, int]:
    """Compare the rows of the first of `segments`, as many as the answers cover; returns how many."""
    findings.state = "clock-compare"
    source, sink, covered = yield from _rows(segments, size_bits, all_times=False)
    findings.segments_compared += covered
    findings.keys_compared += len(source.keys() | sink.keys())
    shift = 64 - size_bits
    every = [each for each in compared(source, sink) if choice.bucket in (None, each.bucket)]
    explained = {_segment(difference, shift) for difference in every}
    unexplained = [segment for segment in segments[:covered] if segment not in explained]
    equal: Sequence[int] = unexplained
    if choice.narrow:
        equal = ()
        if choice.wanted is not None or len(unexplained) <= WHOLE_LOOKS_MAX:
            unexplained, equal = yield from _outside(findings, unexplained, size_bits, choice)
        findings.segments_unexplained += len(unexplained)
    findings.segments_wrong += yield from _wrong(equal, size_bits)
    findings.state = "clock-compare"
    first = [each for each in every if choice.counts(each)]
    findings.filtered += len(every) - len(first)
    suspects = every if choice.narrow else first
    if not suspects:
        return covered
    findings.state = "clock-confirm"
    yield Pause()
    again = sorted({_segment(difference, shift) for difference in suspects})
    left: Sequence[int] = again
    more: list[KeyDifference] = []
    while left:
        source, sink, done = yield from _rows(left, size_bits, all_times=True)
        looked = set(left[:done])
        mine = [difference for difference in first if _segment(difference, shift) in looked]
        left = left[done:]
        still, transient = lasting(mine, source, sink)
        findings.transient += transient
        if choice.narrow:  # beside what was looked at there may be more in the same segments, or on the other side
            known = {(difference.bucket, difference.key) for difference in still}
            more += [d for d in compared(source, sink) if (d.bucket, d.key) not in known and choice.counts(d)]
        if still:
            findings.by_kind.update((difference.kind, difference.side) for difference in still)
            findings.state = "repair"
            queued = yield Repair(still)
            assert isinstance(queued, int)
            findings.queued += queued
            findings.state = "clock-confirm"
    findings.segments_unexplained += len((yield from _lasting(findings, more, size_bits)))
    return covered


def _outside(
    findings: Findings, segments: Sequence[int], size_bits: int, choice: CompareFilter
) -> Generator[Ask, object, tuple[list[int], list[int]]]:
    """Those of `segments` in which something that counts differs at two looks at all of their rows; and those in which
    nothing does. What a queue's filter leaves out differs for ever, so with a filter it is the only way to know that
    nothing else does."""
    shift = 64 - size_bits
    suspects: list[KeyDifference] = []
    explained: set[int] = set()
    left = segments
    while left:
        source, sink, done = yield from _rows(left, size_bits, all_times=True)
        left = left[done:]
        found = compared(source, sink)
        explained |= {_segment(difference, shift) for difference in found}
        counting = [difference for difference in found if choice.counts(difference)]
        findings.filtered += len(found) - len(counting)
        suspects += counting
    outside = yield from _lasting(findings, suspects, size_bits)
    return outside, [segment for segment in segments if segment not in explained]


def _wrong(segments: Sequence[int], size_bits: int) -> Generator[Ask, object, int]:
    """How many of `segments`, whose rows are equal, have leaves that differ, and are the same before and after one more
    look at the rows, which are equal still: what is compared there is not what is there, so a tree is wrong."""
    if not segments:
        return 0
    before = yield from _leaf_pairs(segments, size_bits)
    suspects: Sequence[int] = [segment for segment, (mine, theirs) in before.items() if mine != theirs][
        :WHOLE_LOOKS_MAX
    ]
    if not suspects:
        return 0
    yield Pause()
    shift = 64 - size_bits
    differing_rows: set[int] = set()
    left = suspects
    while left:
        source, sink, done = yield from _rows(left, size_bits, all_times=True)
        left = left[done:]
        differing_rows |= {_segment(difference, shift) for difference in compared(source, sink)}
    after = yield from _leaf_pairs(suspects, size_bits)
    return sum(after[segment] == before[segment] and segment not in differing_rows for segment in suspects)


def _leaf_pairs(segments: Sequence[int], size_bits: int) -> Generator[Ask, object, dict[int, tuple[int, int]]]:
    """The leaves of segments on both sides."""
    bits = size_bits - BRANCH_BITS
    branches = sorted({segment >> bits for segment in segments})
    answer = yield Leaves(tuple(branches), size_bits)
    mine, theirs = _hashes(answer)
    at = {branch: place << bits for place, branch in enumerate(branches)}
    mask = (1 << bits) - 1
    places = {segment: at[segment >> bits] + (segment & mask) for segment in segments}
    return {segment: (int(mine[place]), int(theirs[place])) for segment, place in places.items()}


def _lasting(
    findings: Findings, suspects: Sequence[KeyDifference], size_bits: int
) -> Generator[Ask, object, list[int]]:
    """The segments of those `suspects` that differ at one more look, after a pause."""
    if not suspects:
        return []
    shift = 64 - size_bits
    findings.state = "clock-confirm"
    yield Pause()
    found: set[int] = set()
    left = sorted({_segment(difference, shift) for difference in suspects})
    while left:
        source, sink, done = yield from _rows(left, size_bits, all_times=True)
        looked = set(left[:done])
        left = left[done:]
        still, _ = lasting((d for d in suspects if _segment(d, shift) in looked), source, sink)
        found |= {_segment(difference, shift) for difference in still}
    return sorted(found)


def _segment(difference: KeyDifference, shift: int) -> int:
    return key_hash(difference.bucket, difference.key) >> shift


def _rows(
    segments: Sequence[int], size_bits: int, *, all_times: bool
) -> Generator[Ask, object, tuple[Rows, Rows, int]]:
    answer = yield Clocks(tuple(segments), size_bits, all_times)
    source, sink = _pair(answer, RowPage)
    covered = min(source.segments_covered, sink.segments_covered)
    assert 1 <= covered <= len(segments)
    if covered == len(segments):
        return by_key(source.rows), by_key(sink.rows), covered
    kept = _within(segments[covered - 1], size_bits)
    return by_key(filter(kept, source.rows)), by_key(filter(kept, sink.rows)), covered


def _within(last: int, size_bits: int) -> Callable[[ComparedRow], bool]:
    shift = 64 - size_bits
    return lambda row: key_hash(row.bucket, row.key) >> shift <= last


def _roots() -> Generator[Ask, object, list[int]]:
    answer = yield Roots()
    return list(differing(*_hashes(answer)))


def _leaves(branches: Sequence[int], size_bits: int) -> Generator[Ask, object, list[int]]:
    answer = yield Leaves(tuple(branches), size_bits)
    places = differing(*_hashes(answer))
    bits = size_bits - BRANCH_BITS
    mask = (1 << bits) - 1
    return [(branches[place >> bits] << bits) + (place & mask) for place in places]


def _confirmed(
    look: Callable[[], Generator[Ask, object, list[int]]], findings: Findings, state: str
) -> Generator[Ask, object, list[int]]:
    """What differs at every look; after the first one there is at least one more, and more as long as it helps."""
    found = yield from look()
    for _ in range(CONFIRMS_MAX):
        if not found:
            break
        findings.state = state
        yield Pause()
        again = set((yield from look()))
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

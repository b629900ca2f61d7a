"""Laws of the verdicts: one for each key, in the terms of full-sync, and no key in transit counts as lost."""

from __future__ import annotations

from random import Random

from isthmus.aae.exchange.compare import BehindSide, ComparedRow, DifferenceKind, VerdictKind, compare, confirm
from isthmus.aae.reconcile.verdicts import (
    CandidateKey,
    Name,
    ObservedKey,
    difference,
    filtered_verdict,
    first_look,
    same,
    second_look,
    unreachable_verdict,
)
from isthmus.repl.model.vclock import actor_of, encode_clock

A = actor_of(b"a" * 16, 1)
B = actor_of(b"b" * 16, 1)
NAME = (b"bucket", b"key")


def seen(
    a: int, b: int = 0, *, hash64: int | None = None, dead: bool = False, fault: str = "", at_ms: int = 5
) -> ObservedKey:
    """A row whose clock has seen `a` writes of one cluster and `b` of the other; its content follows from these."""
    clock = tuple((actor, count, 0) for actor, count in ((A, a), (B, b)) if count)
    return ObservedKey(encode_clock(clock), a * 100 + b if hash64 is None else hash64, at_ms, dead, 10, 1, fault)


def drawn(rng: Random) -> ObservedKey | None:
    """Any row, or none."""
    if rng.random() < 0.2:
        return None
    a, b = rng.randint(0, 3), rng.randint(1, 3)
    return seen(a, b, hash64=rng.choice((None, 7)), dead=rng.random() < 0.2)


def rows_of(table: dict[Name, ObservedKey]) -> dict[Name, ComparedRow]:
    """As full-sync has them."""
    return {
        name: ComparedRow(*name, one.clock, one.hash64, one.modified_ms, one.tombstone) for name, one in table.items()
    }


def test_verdicts_are_those_of_full_sync() -> None:
    """For random rows of both sides, at both looks, each key gets the verdict of full-sync."""
    rng = Random(4)
    kinds: set[object] = set()
    for _ in range(4_000):
        one, two, later_one, later_two = (drawn(rng) for _ in range(4))
        if rng.random() < 0.3:
            later_one, later_two = one, two
        mine, theirs = ({} if row is None else {NAME: row} for row in (one, two))
        first = first_look(mine, theirs)
        differed = compare(rows_of(mine), rows_of(theirs))
        assert len(first.candidates) == len(differed)
        assert first.match + len(first.candidates) == len(mine.keys() | theirs.keys())
        if not differed:
            continue
        later = [rows_of({} if row is None else {NAME: row}) for row in (later_one, later_two)]
        still, transient = confirm(differed, *later)
        said = second_look(first.candidates[0], later_one, later_two)
        kinds.add((said.verdict, said.kind))
        assert said.verdict is (VerdictKind.DIVERGED if still else VerdictKind.TRANSIENT)
        assert transient == (said.verdict is VerdictKind.TRANSIENT)
        assert not still or (said.kind, said.side) == (still[0].kind, still[0].side)
    assert {(VerdictKind.DIVERGED, kind) for kind in DifferenceKind} <= kinds


def test_each_difference_has_its_word_and_its_side() -> None:
    """missing, behind, concurrent and corrupt are distinguished, with the side that is behind."""
    assert difference(NAME, seen(1), None) == (DifferenceKind.MISSING, BehindSide.SINK)
    assert difference(NAME, None, seen(1)) == (DifferenceKind.MISSING, BehindSide.SOURCE)
    assert difference(NAME, seen(2), seen(1)) == (DifferenceKind.BEHIND, BehindSide.SINK)
    assert difference(NAME, seen(1), seen(1, 1)) == (DifferenceKind.BEHIND, BehindSide.SOURCE)
    assert difference(NAME, seen(2), seen(1, 1)) == (DifferenceKind.CONCURRENT, BehindSide.BOTH)
    assert difference(NAME, seen(1), seen(1, hash64=9)) == (DifferenceKind.CORRUPT, BehindSide.BOTH)
    assert difference(NAME, seen(1), seen(1)) is None


def test_deleted_and_absent_are_the_same() -> None:
    """A tombstone against nothing, or against another tombstone, is a match; against a live object it differs."""
    assert same(seen(1, dead=True), None)
    assert same(None, seen(1, dead=True))
    assert same(seen(1, dead=True), seen(2, dead=True))
    assert not same(seen(2, dead=True), seen(1))


def test_a_row_that_cannot_be_read_is_corrupt_on_its_side() -> None:
    """A damaged row or clock gives a verdict and not an exception, for any row of the other side."""
    broken = seen(1, fault="not a key row")
    no_clock = ObservedKey(b"\x01", 1, 5, tombstone=False)
    for bad in (broken, no_clock):
        assert difference(NAME, bad, seen(1)) == (DifferenceKind.CORRUPT, BehindSide.SOURCE)
        assert difference(NAME, seen(1), bad) == (DifferenceKind.CORRUPT, BehindSide.SINK)
    assert difference(NAME, broken, None) == (DifferenceKind.CORRUPT, BehindSide.SOURCE)
    assert difference(NAME, broken, broken) == (DifferenceKind.CORRUPT, BehindSide.BOTH)
    candidate = CandidateKey(*NAME, broken, seen(1))
    assert second_look(candidate, broken, seen(1)).verdict is VerdictKind.DIVERGED
    assert second_look(candidate, seen(1), seen(1)).verdict is VerdictKind.TRANSIENT


def test_lag_is_never_called_loss() -> None:
    """A key that changes all the time, and whose other side follows, is transient even if no look finds it equal."""
    candidate = CandidateKey(*NAME, seen(5), seen(4))
    assert second_look(candidate, seen(9), seen(8)).verdict is VerdictKind.TRANSIENT
    assert second_look(candidate, seen(9), seen(4)).verdict is VerdictKind.DIVERGED


def test_filtered_keys_are_reported_as_filtered_and_never_as_missing() -> None:
    """A key of an excluded bucket is not a candidate; its verdict is `filtered`."""
    found = first_look({(b"in", b"k"): seen(1), (b"out", b"k"): seen(1)}, {}, wanted=lambda bucket: bucket == b"in")
    assert [one.bucket for one in found.candidates] == [b"in"]
    assert [filtered_verdict(one).verdict for one in found.filtered] == [VerdictKind.FILTERED]


def test_without_a_second_look_nothing_is_lost() -> None:
    """A candidate without a second look is `unreachable`, with the difference of the first look."""
    said = unreachable_verdict(CandidateKey(*NAME, seen(1), None))
    assert said == (VerdictKind.UNREACHABLE, DifferenceKind.MISSING, BehindSide.SINK)


def test_a_range_of_times_takes_a_key_that_either_side_changed_in_it() -> None:
    """The row of the other side counts with any time; otherwise an older row would look missing."""
    mine, theirs = {NAME: seen(2, at_ms=100)}, {NAME: seen(1, at_ms=1)}
    [one] = first_look(mine, theirs, since_ms=50).candidates
    assert one.right is not None
    assert not first_look(mine, theirs, since_ms=200).candidates
    assert not first_look(mine, theirs, since_ms=2, before_ms=100).candidates
    assert first_look(mine, theirs, bucket=b"other") == (0, [], [])

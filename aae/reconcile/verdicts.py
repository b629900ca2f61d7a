"""The verdict of a key that was read from two clusters; one per key, in full-sync's terms.

    match         both have the same, or neither has a live object
    transient     differed at the first look, and the side behind had the write at the second
    waiting       differs at both looks, and the change that is missing waits in a queue for that side
    diverged      differs at both looks and does not wait: the only verdict that claims loss. Its difference is
                  missing, behind, concurrent or corrupt, on the side that lacks something
    filtered      differs, and the filter leaves it out: never missing
    unreachable   differed at the first look, and could not be read at the second

A reaped key that its cluster remembers, as later looks read it, is ahead of what its tombstone had seen: the other side
lacks the delete (R-REAP).

The left cluster is the `source`, the right one the `sink`. Clocks are compared by `aae.exchange.compare`; a row that
cannot be decoded is `corrupt`. Pure, and free of Spark. Rules: docs/protocol.md I-AAE-CONFIRM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from isthmus.aae.exchange.compare import BehindSide, ComparedRow, DifferenceKind, VerdictKind, compare, confirm
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.vclock import decode_clock

Name = tuple[bytes, bytes]
"""(bucket, key)."""


class ObservedKey(NamedTuple):
    """A key's row as read from one cluster. `size_bytes` and `siblings` are None if not read; with a `fault` the row
    cannot be decoded, and other fields are void."""

    clock: bytes
    hash64: int
    modified_ms: int
    tombstone: bool
    size_bytes: int | None = None
    siblings: int | None = None
    fault: str = ""


class KeyVerdict(NamedTuple):
    """A verdict, with kind and side of the difference if there is one."""

    verdict: VerdictKind
    kind: DifferenceKind | None
    side: BehindSide | None


Rows = Mapping[Name, ObservedKey]


class CandidateKey(NamedTuple):
    """A key that differed at the first look."""

    bucket: bytes
    key: bytes
    left: ObservedKey | None
    right: ObservedKey | None


class FirstLook(NamedTuple):
    """Result of a first look at the same segments of both sides. match + len(candidates) + len(filtered) is the number
    of keys in the range."""

    match: int
    candidates: list[CandidateKey]
    filtered: list[CandidateKey]


def same(left: ObservedKey | None, right: ObservedKey | None) -> bool:
    """True if readers see the same: a deleted key equals a missing one. A row that cannot be decoded equals none."""
    if left is None or left.tombstone:
        if left is not None and left.fault:
            return False
        return right is None or (right.tombstone and not right.fault)
    if right is None:
        return False
    return left.clock == right.clock and left.hash64 == right.hash64 and not left.fault and not right.fault


def first_look(
    left: Rows,
    right: Rows,
    *,
    bucket: bytes = b"",
    since_ms: int = 0,
    before_ms: int = 0,
    wanted: Callable[[bytes], bool] | None = None,
) -> FirstLook:
    """Compare the rows of a range. A key counts if it is in `bucket` (b"": any), and if either side changed it in
    [since_ms, before_ms) (0: no bound). `wanted(bucket)`: False for buckets that may differ."""
    found = FirstLook(0, [], [])
    match = 0

    def look(name: Name, mine: ObservedKey | None, theirs: ObservedKey | None) -> int:
        if (bucket and name[0] != bucket) or not (
            _within(mine, since_ms, before_ms) or _within(theirs, since_ms, before_ms)
        ):
            return 0
        if same(mine, theirs):
            return 1
        into = found.candidates if wanted is None or wanted(name[0]) else found.filtered
        into.append(CandidateKey(*name, mine, theirs))
        return 0

    for name, mine in left.items():
        match += look(name, mine, right.get(name))
    for name, theirs in right.items():
        if name not in left:
            match += look(name, None, theirs)
    return found._replace(match=match)


def difference(
    name: Name, left: ObservedKey | None, right: ObservedKey | None
) -> tuple[DifferenceKind, BehindSide] | None:
    """How a key differs; None when it does not."""
    if same(left, right):
        return None
    corrupt = _corrupt(left, right)
    if corrupt is not None:
        return DifferenceKind.CORRUPT, corrupt
    [found] = compare(_row(name, left), _row(name, right))
    return found.kind, found.side


def second_look(first: CandidateKey, left: ObservedKey | None, right: ObservedKey | None) -> KeyVerdict:
    """The verdict of a candidate by later reads of both sides: a side behind that has received what the other side had
    at the first look was `transient`."""
    name = (first.bucket, first.key)
    now = difference(name, left, right)
    before = difference(name, first.left, first.right)
    assert before is not None, "a candidate that did not differ"
    if now is None:
        return KeyVerdict(VerdictKind.TRANSIENT, *before)
    if _corrupt(first.left, first.right) is None and _corrupt(left, right) is None:
        differed = compare(_row(name, first.left), _row(name, first.right))
        still, transient = confirm(differed, _row(name, left), _row(name, right))
        if transient and not still:
            return KeyVerdict(VerdictKind.TRANSIENT, *before)
    return KeyVerdict(VerdictKind.DIVERGED, *now)


def unreachable_verdict(first: CandidateKey) -> KeyVerdict:
    """The verdict when there was no second look."""
    return KeyVerdict(VerdictKind.UNREACHABLE, *_known(first))


def filtered_verdict(first: CandidateKey) -> KeyVerdict:
    """The verdict of a key that the filter does not select."""
    return KeyVerdict(VerdictKind.FILTERED, *_known(first))


def _known(first: CandidateKey) -> tuple[DifferenceKind, BehindSide]:
    found = difference((first.bucket, first.key), first.left, first.right)
    assert found is not None, "a candidate that did not differ"
    return found


def _within(seen: ObservedKey | None, since_ms: int, before_ms: int) -> bool:
    """Whether a row changed in [since_ms, before_ms); True for a row that cannot be decoded, whose time is unknown."""
    if seen is None:
        return False
    if seen.fault:
        return True
    return seen.modified_ms >= since_ms and (not before_ms or seen.modified_ms < before_ms)


def _corrupt(left: ObservedKey | None, right: ObservedKey | None) -> BehindSide | None:
    """Which side's row cannot be read."""
    mine, theirs = _unreadable(left), _unreadable(right)
    if mine and theirs:
        return BehindSide.BOTH
    if mine:
        return BehindSide.SOURCE
    return BehindSide.SINK if theirs else None


def _unreadable(seen: ObservedKey | None) -> bool:
    if seen is None:
        return False
    if seen.fault:
        return True
    try:
        decode_clock(seen.clock)
    except CodecError:
        return True
    return False


def is_reaped(seen: ObservedKey) -> bool:
    """True for the memory of a key whose tombstone was removed; see `ComparedRow.reaped`."""
    return not seen.fault and ComparedRow(b"", b"", seen.clock, seen.hash64, seen.modified_ms, seen.tombstone).reaped


def _row(name: Name, seen: ObservedKey | None) -> dict[Name, ComparedRow]:
    if seen is None:
        return {}
    return {name: ComparedRow(*name, seen.clock, seen.hash64, seen.modified_ms, seen.tombstone)}

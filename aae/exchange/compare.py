"""Compare the rows of the same segments of two clusters key by key.

A key that differs is `missing`, `behind`, `concurrent` or `corrupt` on a side; these words are used everywhere. A
difference may be a change that is still being replicated. So `confirm` compares rows that are read again later: a key
that the other side has received meanwhile was `transient`. Pure. Rules: docs/protocol.md I-AAE-CONFIRM.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.vclock import decode_clock, descends


class ComparedRow(NamedTuple):
    """A key's row in one cluster: canonical clock, hash of the object's bytes, newest last-modified time (ms)."""

    bucket: bytes
    key: bytes
    clock: bytes
    hash64: int
    modified_ms: int
    tombstone: bool

    @property
    def reaped(self) -> bool:
        """True for the memory of a tombstone that was removed: `clock` is its clock (R-REAP). Programs that do not know
        such rows take them for tombstones."""
        return self.tombstone and not self.hash64 and not self.modified_ms


def reaped_row(bucket: bytes, key: bytes, clock: bytes) -> ComparedRow:
    """The row of a reaped key whose last tombstone had this encoded clock."""
    return ComparedRow(bucket, key, clock, 0, 0, True)


class DifferenceKind(StrEnum):
    """How the row of a key differs."""

    MISSING = "missing"
    BEHIND = "behind"
    CONCURRENT = "concurrent"
    CORRUPT = "corrupt"


class BehindSide(StrEnum):
    """The side that lacks a write; both for concurrent and corrupt keys."""

    SOURCE = "source"
    SINK = "sink"
    BOTH = "both"


class VerdictKind(StrEnum):
    """The one verdict of a key that was compared, by full-sync or a Spark job."""

    MATCH = "match"
    TRANSIENT = "transient"
    WAITING = "waiting"
    DIVERGED = "diverged"
    FILTERED = "filtered"
    UNREACHABLE = "unreachable"


class KeyDifference(NamedTuple):
    """A key that differs; `kind` describes the row of `side`."""

    bucket: bytes
    key: bytes
    kind: DifferenceKind
    side: BehindSide
    source: ComparedRow | None
    sink: ComparedRow | None


Rows = dict[tuple[bytes, bytes], ComparedRow]


def by_key(rows: Iterable[ComparedRow]) -> Rows:
    """{(bucket, key): row}."""
    return {row[:2]: row for row in rows}


def compare(source: Rows, sink: Rows) -> list[KeyDifference]:
    """The differing keys in key order. A deleted key equals one that is deleted, reaped or missing on the other side
    (R-TREE). A row whose clock cannot be decoded is corrupt. A reaped key is ahead of what its tombstone had seen, and
    counts as missing beside anything else."""
    differing = [name for name, mine in source.items() if not _equal(mine, sink.get(name))]
    differing += [name for name in sink.keys() - source.keys() if not _equal(None, sink[name])]
    return [_difference(name, source.get(name), sink.get(name)) for name in sorted(differing)]


def _equal(mine: ComparedRow | None, theirs: ComparedRow | None) -> bool:
    """True if readers see the same: a deleted key equals a missing one."""
    if mine is None or mine.tombstone:
        return theirs is None or theirs.tombstone
    return theirs is not None and mine.clock == theirs.clock and mine.hash64 == theirs.hash64


def _difference(name: tuple[bytes, bytes], source: ComparedRow | None, sink: ComparedRow | None) -> KeyDifference:
    if source is not None and source.reaped and not _has(source, sink):
        source = None
    if sink is not None and sink.reaped and not _has(sink, source):
        sink = None
    if sink is None:
        return KeyDifference(*name, DifferenceKind.MISSING, BehindSide.SINK, source, sink)
    if source is None:
        return KeyDifference(*name, DifferenceKind.MISSING, BehindSide.SOURCE, source, sink)
    if source.reaped or sink.reaped:  # it covers the other one, which a push there would not bring back
        return KeyDifference(
            *name, DifferenceKind.BEHIND, BehindSide.SINK if source.reaped else BehindSide.SOURCE, source, sink
        )
    try:
        ours, theirs = decode_clock(source.clock), decode_clock(sink.clock)
    except CodecError:
        return KeyDifference(*name, DifferenceKind.CORRUPT, BehindSide.BOTH, source, sink)
    ahead, behind = descends(ours, theirs), descends(theirs, ours)
    if ahead and behind:
        # Equal clocks and different objects: the clocks do not show which one is right.
        return KeyDifference(*name, DifferenceKind.CORRUPT, BehindSide.BOTH, source, sink)
    if ahead:
        return KeyDifference(*name, DifferenceKind.BEHIND, BehindSide.SINK, source, sink)
    if behind:
        return KeyDifference(*name, DifferenceKind.BEHIND, BehindSide.SOURCE, source, sink)
    return KeyDifference(*name, DifferenceKind.CONCURRENT, BehindSide.BOTH, source, sink)


def confirm(first: Iterable[KeyDifference], source: Rows, sink: Rows) -> tuple[list[KeyDifference], int]:
    """(differences that rows read again still show, with their current rows; number of transient ones, whose behind
    side has received the write of the other side meanwhile)."""
    still = []
    transient = 0
    for before in first:
        name = (before.bucket, before.key)
        mine, theirs = source.get(name), sink.get(name)
        if mine == before.source and theirs == before.sink:
            still.append(before)
        elif _equal(mine, theirs) or (not _is_reaped(mine, theirs) and _arrived(before, mine, theirs)):
            transient += 1
        else:
            still.append(_difference(name, mine, theirs))
    return still, transient


def _is_reaped(*rows: ComparedRow | None) -> bool:
    """True if one of the rows is the memory of a reaped key: it says that the other one should go, not that it is
    here."""
    return any(row is not None and row.reaped for row in rows)


def _arrived(before: KeyDifference, source: ComparedRow | None, sink: ComparedRow | None) -> bool:
    if before.kind is DifferenceKind.CORRUPT:
        return False
    got_here = before.side is BehindSide.SINK or _has(source, before.sink)
    got_there = before.side is BehindSide.SOURCE or _has(sink, before.source)
    return got_here and got_there


def _has(row: ComparedRow | None, wanted: ComparedRow | None) -> bool:
    """True if `row` descends from `wanted`, as far as their clocks can be decoded."""
    if wanted is None:
        return True
    try:
        return row is not None and descends(decode_clock(row.clock), decode_clock(wanted.clock))
    except CodecError:
        return False

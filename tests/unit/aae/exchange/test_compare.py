"""Rows of keys that were reaped on one side: what they are ahead of, and what they say nothing about (R-REAP)."""

from __future__ import annotations

import pytest

from isthmus.aae.exchange import wire
from isthmus.aae.exchange.compare import (
    BehindSide,
    ComparedRow,
    DifferenceKind,
    Rows,
    by_key,
    compare,
    confirm,
    reaped_row,
)
from isthmus.aae.exchange.wire import ClocksRequest, RowsResponse
from isthmus.repl.model.vclock import Clock, encode_clock

A, B = b"a" * 20, b"b" * 20
DELETED: Clock = ((A, 2, 0), (B, 1, 0))


def a_value(clock: Clock, *, tombstone: bool = False) -> Rows:
    return by_key([ComparedRow(b"b", b"k", encode_clock(clock), 7, 5_000, tombstone)])


def reaped(clock: Clock = DELETED) -> Rows:
    return by_key([reaped_row(b"b", b"k", encode_clock(clock))])


@pytest.mark.parametrize("seen", [DELETED, ((A, 1, 0),), ((A, 2, 0),), ((B, 1, 0),)])
def test_a_reaped_key_is_ahead_of_a_value_that_its_tombstone_had_seen(seen: Clock) -> None:
    """The other side never got the delete: it is behind, whichever side compares. Nothing calls the value missing on
    the side that deleted it."""
    (found,) = compare(reaped(), a_value(seen))
    assert (found.kind, found.side) == (DifferenceKind.BEHIND, BehindSide.SINK)
    assert found.source is not None
    assert found.source.reaped
    (found,) = compare(a_value(seen), reaped())
    assert (found.kind, found.side) == (DifferenceKind.BEHIND, BehindSide.SOURCE)


@pytest.mark.parametrize("written", [((A, 3, 0), (B, 1, 0)), ((A, 2, 0), (B, 2, 0)), ((B, 5, 0),)])
def test_a_value_that_the_tombstone_had_not_seen_is_missing_where_the_key_was_reaped(written: Clock) -> None:
    """It was written later, or without knowing of the delete: it is a write that the side without it lacks."""
    (found,) = compare(reaped(), a_value(written))
    assert (found.kind, found.side, found.source) == (DifferenceKind.MISSING, BehindSide.SOURCE, None)
    (found,) = compare(a_value(written), reaped())
    assert (found.kind, found.side, found.sink) == (DifferenceKind.MISSING, BehindSide.SINK, None)


def test_a_reaped_key_equals_a_deleted_and_a_missing_one() -> None:
    """Both sides may remember, with different clocks; readers of both see the same."""
    for other in (reaped(), reaped(((B, 9, 0),)), a_value(((A, 1, 0),), tombstone=True), {}):
        assert compare(reaped(), other) == compare(other, reaped()) == []


def test_a_reaped_key_that_is_read_again_is_no_arrival() -> None:
    """The memory of a delete is found at the second read only, as in a check of a range of times, whose rows have
    times. The value was not received here meanwhile: the difference stays, under its right name."""
    value = a_value(((A, 1, 0),))
    first = compare({}, value)
    (found,), transient = confirm(first, reaped(), value)
    assert (found.kind, found.side, transient) == (DifferenceKind.BEHIND, BehindSide.SINK, 0)
    first = compare(value, {})
    (found,), transient = confirm(first, value, reaped())
    assert (found.kind, found.side, transient) == (DifferenceKind.BEHIND, BehindSide.SOURCE, 0)
    (found,), transient = confirm(compare(reaped(), value), reaped(), value)
    assert (found.kind, found.side, transient) == (DifferenceKind.BEHIND, BehindSide.SINK, 0)
    assert confirm(compare(reaped(), value), reaped(), a_value(DELETED, tombstone=True)) == ([], 1)


def test_a_reaped_key_travels_as_a_tombstone() -> None:
    """Its row has the form that every version reads, and is a tombstone to those that know no reaped keys: they find
    the same side behind."""
    request = ClocksRequest(b"default", (1,), 20, 0, 0, 10)
    (row,) = wire.decode_rows(wire.encode_rows(RowsResponse((), 1, [*reaped().values()])), request).rows
    assert row.reaped
    assert row == ComparedRow(b"b", b"k", encode_clock(DELETED), 0, 0, True)

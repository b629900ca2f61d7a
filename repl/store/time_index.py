"""Time marks: which offset of a partition was reached in which second; lookup and thinning.

A mark (second, offset) means that no change below `offset` was made in that second or later, by the leaders' clocks.
Each mark stays true when others are deleted, so thinning makes answers coarser, never wrong: changes from an older mark
on begin earlier than asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Final, NamedTuple, TypeVar

from isthmus.repl.store import rows
from isthmus.repl.store.batch import RowBatch
from isthmus.repl.store.row_source import Source

FULL_FOR_S: Final = 3_600
"""All marks of the last hour are kept: lag and "since" are asked about the recent past. A guess."""

MINUTES_FOR_S: Final = 86_400
"""Marks between an hour and a day old are thinned to one a minute, older ones to one an hour: per partition 1,440, and
24 for each day."""

THIN_EVERY_S: Final = 600
"""A partition is thinned once its newest mark has moved by this: at most 600 marks too many, and a scan of some 6,000
small rows (about 10 ms) every ten minutes."""

B = TypeVar("B", bound=RowBatch)

_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600


def excess_marks(seconds: Iterable[int], newest_s: int) -> list[int]:
    """Marks of a partition, ascending, that may be deleted: all but the first of each minute (or hour, past a day), and
    never `newest_s`."""
    excess = []
    kept = (0, -1)
    for second in seconds:
        age_s = newest_s - second
        if age_s < FULL_FOR_S:
            break
        width_s = _MINUTE_S if age_s < MINUTES_FOR_S else _HOUR_S
        share = (width_s, second // width_s)
        if share == kept:
            excess.append(second)
        kept = share
    return excess


def thinning(source: Source, prefix: bytes, newest_s: int, batch: B) -> B:
    """Add to `batch` the deletion of the excess marks below `prefix`; returns it."""
    with closing(source.names(prefix, rows.after_prefix(prefix))) as names:
        seconds = [rows.decode_u64(name[len(prefix) :]) for name in names]
    for second in excess_marks(seconds, newest_s):
        batch.delete(prefix + rows.U64.pack(second))
    return batch


def offset_at(source: Source, prefix: bytes, newest_s: int, applied: int, time_ms: int) -> int:
    """An offset below which no change was made at or after `time_ms`, by the leaders' clocks: to the second for the
    last hour, to the minute for the last day, then to the hour; too early rather than too late."""
    second = time_ms // 1000
    if second > newest_s:
        return applied
    if second < 0:
        return 0
    if newest_s - second < FULL_FOR_S:
        # No second of the last hour lost its mark, so no change was made from this second to the next mark's.
        with closing(source.scan(prefix + rows.U64.pack(second), rows.after_prefix(prefix))) as scan:
            return min(applied, rows.decode_u64(next(scan)[1]))
    before, _ = _around(source, prefix, second + 1, lambda mark: mark.second <= second)
    return 0 if before is None else before.offset


def seconds_around(source: Source, prefix: bytes, newest_s: int, offset: int) -> tuple[int | None, int | None]:
    """(second of the last mark at or below `offset`, of the first one at or above it), None where there is none. Takes
    some 30 seeks: a binary search, since offsets rise with seconds."""
    below, above = _around(source, prefix, newest_s + 1, lambda mark: mark.offset < offset)
    if above is not None and above.offset == offset:
        return above.second, above.second
    return None if below is None else below.second, None if above is None else above.second


def newest_mark_s(source: Source, prefix: bytes) -> int:
    """The second of the newest mark; NO_MARK without one."""
    newest = rows.NO_MARK
    with closing(source.names(prefix, rows.after_prefix(prefix))) as names:
        for name in names:
            newest = rows.decode_u64(name[len(prefix) :])
    return newest


class _Mark(NamedTuple):
    """A time mark."""

    second: int
    offset: int


def _around(
    source: Source, prefix: bytes, end_s: int, is_before: Callable[[_Mark], bool]
) -> tuple[_Mark | None, _Mark | None]:
    """(the last mark that `is_before`, the first one that is not), each None where there is none. Marks that are before
    come first; those from the second `end_s` on are not looked at."""
    before: _Mark | None = None
    behind: _Mark | None = None
    at = len(prefix)
    low, high = 0, end_s
    with source.seeking(prefix + rows.U64.pack(end_s)) as first_from:
        while low < high:
            middle = (low + high) // 2
            row = first_from(prefix + rows.U64.pack(middle))
            mark = None if row is None else _Mark(rows.decode_u64(row[0][at:]), rows.decode_u64(row[1]))
            if mark is not None and is_before(mark):
                before, low = mark, mark.second + 1
            else:
                behind, high = mark, middle
    return before, behind

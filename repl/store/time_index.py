"""Time marks: which offset of a partition was reached in which second; lookup and thinning.

A mark (second, offset) means that no change below `offset` was made in that second or later, by the leaders' clocks.
Each mark stays true when others are deleted, so thinning makes answers coarser, never wrong: changes from an older mark
on begin earlier than asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Final, TypeVar

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
    mark = _last_upto(source, prefix, second)
    return 0 if mark is None else mark[1]


def seconds_around(source: Source, prefix: bytes, newest_s: int, offset: int) -> tuple[int | None, int | None]:
    """(second of the last mark at or below `offset`, of the first one at or above it), None where there is none. Takes
    some 30 seeks: a binary search, since offsets rise with seconds."""
    # Seconds below `low` have their last mark below `offset`, those from `high` on at or above it.
    end = newest_s + 1
    low, high = 0, end
    while low < high:
        middle = (low + high) // 2
        found = _last_upto(source, prefix, middle)
        if found is not None and found[1] >= offset:
            high = found[0]
        else:
            low = middle + 1
    above = low if low < end else None
    if above is not None:
        exact = _last_upto(source, prefix, above)
        if exact is not None and exact[1] == offset:
            return above, above
    below = _last_upto(source, prefix, low - 1) if low else None
    return None if below is None else below[0], above


def _last_upto(source: Source, prefix: bytes, second: int) -> tuple[int, int] | None:
    """(second, offset) of the last mark at or before `second`."""
    name, value = source.last_before(prefix + rows.U64.pack(second + 1))
    return (rows.decode_u64(name[len(prefix) :]), rows.decode_u64(value)) if name.startswith(prefix) else None

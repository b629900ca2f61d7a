"""Which time marks of a partition may go.

A mark (second, offset) says: no change below `offset` was made in that second or later, by the leaders' clocks. That
stays true of each mark alone when others go, so thinning never makes an answer wrong, only coarser: what
is found from an older mark begins earlier than asked for.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Final, TypeVar

from isthmus.repl.store import rows
from isthmus.repl.store.batch import RowBatch
from isthmus.repl.store.reads import FULL_FOR_S
from isthmus.repl.store.row_source import Source

MINUTES_FOR_S: Final = 86_400
"""Between an hour and a day old, one mark a minute stays; older, one an hour: 1,440 + 24 a day and partition."""

THIN_EVERY_S: Final = 600
"""A partition is thinned once its newest mark has moved by this: at most 600 marks too many, and a scan of
some 6,000 small rows (about 10 ms) every ten minutes."""

B = TypeVar("B", bound=RowBatch)

_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600


def excess_marks(seconds: Iterable[int], newest_s: int) -> list[int]:
    """Of a partition's marks, ascending, those that may be deleted; never `newest_s` itself.

    Of each minute (or hour, past a day) the first mark stays.
    """
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
    """`batch`, with which the excess marks go of the partition whose marks' names begin with `prefix`."""
    with closing(source.names(prefix, rows.after_prefix(prefix))) as names:
        seconds = [rows.decode_u64(name[len(prefix) :]) for name in names]
    for second in excess_marks(seconds, newest_s):
        batch.delete(prefix + rows.U64.pack(second))
    return batch

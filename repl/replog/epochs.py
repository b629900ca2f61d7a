"""Arithmetic on the epoch table of a log: ((epoch, first offset), ...), ascending in both. Pure.

The log stores a table with every partition's start, so that it survives the trimming of the entries it was derived from
(docs/protocol.md R-TRIM). `repl.isr.epochs` compares the tables of replicas.
"""

from __future__ import annotations

from bisect import bisect_right

from isthmus.repl.replog.port import EpochTable


def _first_offset(row: tuple[int, int]) -> int:
    return row[1]


def last_epoch(table: EpochTable) -> int:
    """The epoch of the newest entry, 0 when there was none yet."""
    return table[-1][0] if table else 0


def epoch_at(table: EpochTable, offset: int) -> int:
    """The epoch of the entry at `offset`, 0 below the table's first offset."""
    row = bisect_right(table, offset, key=_first_offset) - 1
    return table[row][0] if row >= 0 else 0


def extended(table: EpochTable, epoch: int, offset: int) -> EpochTable:
    """The table after an entry of `epoch` was appended at `offset`."""
    last = last_epoch(table)
    if epoch == last:
        return table
    assert epoch > last, f"epoch {epoch} after epoch {last}"
    return (*table, (epoch, offset))


def truncated(table: EpochTable, to_offset: int) -> EpochTable:
    """The table after the entries from `to_offset` on were dropped."""
    return tuple(row for row in table if row[1] < to_offset)


def clipped(table: EpochTable, start: int) -> EpochTable:
    """The table of a log that begins at `start`: without older epochs, except that of the entry just below `start`.

    That row stays, at its true first offset, because a follower at `start` is asked for the epoch of its last entry,
    and because an emptied partition must remember its epoch.
    """
    keep_from = max(0, bisect_right(table, start - 1, key=_first_offset) - 1)
    return table[keep_from:]


def common_end(table: EpochTable, leo: int, other: EpochTable, other_leo: int) -> int:
    """The first offset at which two logs may differ, by their tables and ends alone (H2)."""
    end = min(leo, other_leo)
    for row, other_row in zip(table, other, strict=False):
        if row != other_row:
            return min(end, row[1], other_row[1])
    if len(table) > len(other):
        return min(end, table[len(other)][1])
    if len(other) > len(table):
        return min(end, other[len(table)][1])
    return end

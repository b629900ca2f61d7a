"""The epoch table: where each leadership's entries begin in a log.

Every leader's first entry is its BARRIER, so every epoch that led owns at least one entry and the table
can always be derived from the log (docs/protocol.md H2). A recovered log's table may begin with the epoch of the entry
just below the log's start, at its true first offset (R-TRIM). Its last row ranks a replica in an election, and two
tables tell how far two logs agree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from repl.model.entry import Entry

EpochTable = tuple[tuple[int, int], ...]
"""((epoch, first offset), ...), ascending in both."""


def last_epoch(table: EpochTable) -> int:
    """The newest epoch with an entry in the log, 0 for an empty log."""
    return table[-1][0] if table else 0


def with_epoch(table: EpochTable, epoch: int, offset: int) -> EpochTable:
    """The table of a log to which `epoch` appends its first entry at `offset`."""
    assert epoch > last_epoch(table), f"epoch {epoch} does not rise above {last_epoch(table)}"
    assert not table or offset > table[-1][1], f"epoch {epoch} begins inside an older one"
    return (*table, (epoch, offset))


def with_entries(table: EpochTable, entries: Iterable[Entry]) -> EpochTable:
    """The table of a log to which `entries` are appended."""
    last = last_epoch(table)
    for entry in entries:
        if entry.epoch != last:
            last = entry.epoch
            table = with_epoch(table, last, entry.offset)
    return table


def cut(table: EpochTable, to_offset: int) -> EpochTable:
    """The table of a log that ends at `to_offset` now."""
    return tuple(row for row in table if row[1] < to_offset)


def epoch_at(table: EpochTable, offset: int) -> int:
    """The epoch of the entry at `offset`, which the log has or had; 0 below the first entry."""
    if table and offset >= table[-1][1]:
        return table[-1][0]
    index = bisect_right(table, offset, key=lambda row: row[1])
    return table[index - 1][0] if index else 0


def common_prefix(mine: EpochTable, my_leo: int, theirs: EpochTable, their_leo: int) -> int:
    """The offset below which two logs hold the same entries, by their tables alone: (epoch, offset) denotes one
    entry for ever, so they agree as long as the same epochs begin at the same offsets (R-TRUNC). Where one table was
    clipped, all below its first row agrees if the other has that row (I-LOG-MATCH)."""
    mine, theirs = _aligned(mine, theirs), _aligned(theirs, mine)
    agree = 0
    for index, row in enumerate(mine):
        if index >= len(theirs) or theirs[index] != row:
            break
        my_end = mine[index + 1][1] if index + 1 < len(mine) else my_leo
        their_end = theirs[index + 1][1] if index + 1 < len(theirs) else their_leo
        agree = min(my_end, their_end)
        if my_end != their_end:
            break
    return agree


def _aligned(table: EpochTable, other: EpochTable) -> EpochTable:
    """`table` from the first row of `other` on, if it has that one."""
    return table[table.index(other[0]) :] if other and other[0] in table else table


def table_of(entries: Iterable[Entry]) -> EpochTable:
    """The table that a scan of `entries`, in offset order, gives."""
    table: list[tuple[int, int]] = []
    for entry in entries:
        if not table or table[-1][0] != entry.epoch:
            table.append((entry.epoch, entry.offset))
    return tuple(table)

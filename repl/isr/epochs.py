"""The epoch table: where each leadership's entries begin in a log.

Every leader's first entry is its BARRIER, so every epoch that led owns at least one entry and the table
can always be derived from the log (docs/protocol.md H2). A recovered log's table may begin with the epoch of the entry
just below the log's start, at its true first offset (R-TRIM). Its last row ranks a replica in an election, and two
tables tell how far two logs agree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from isthmus.repl.model.entry import Entry

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
    """The offset below which two logs hold the same entries, by their tables alone; 0 when these share no row.

    (epoch, offset) denotes one entry for ever, and logs that share an entry agree on all below it (I-LOG-MATCH), so the
    newest row that both have tells, wherever each table begins (R-TRUNC)."""
    places = {row: index for index, row in enumerate(theirs)}
    for index in range(len(mine) - 1, -1, -1):
        other = places.get(mine[index])
        if other is not None:
            my_end = mine[index + 1][1] if index + 1 < len(mine) else my_leo
            their_end = theirs[other + 1][1] if other + 1 < len(theirs) else their_leo
            return min(my_end, their_end)
    return 0


def table_of(entries: Iterable[Entry]) -> EpochTable:
    """The table that a scan of `entries`, in offset order, gives."""
    table: list[tuple[int, int]] = []
    for entry in entries:
        if not table or table[-1][0] != entry.epoch:
            table.append((entry.epoch, entry.offset))
    return tuple(table)

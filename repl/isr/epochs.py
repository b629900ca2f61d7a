"""The epoch table: where each epoch's entries begin in a log.

The first entry of each leader is its BARRIER, so every epoch with a leader has at least one entry, and the table can
always be derived from the log (docs/protocol.md H2). A recovered log's table may begin with the epoch of the entry just
below the log's start, at its true first offset (R-TRIM). The last row ranks a replica in an election; two tables show
how far two logs agree.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from isthmus.repl.model.entry import Entry

EpochTable = tuple[tuple[int, int], ...]
"""((epoch, first offset), ...), ascending in both."""


def last_epoch(table: EpochTable) -> int:
    """The epoch of the newest entry, 0 for an empty log."""
    return table[-1][0] if table else 0


def with_epoch(table: EpochTable, epoch: int, offset: int) -> EpochTable:
    """The table after the first entry of `epoch` was appended at `offset`."""
    assert epoch > last_epoch(table), f"epoch {epoch} does not rise above {last_epoch(table)}"
    assert not table or offset > table[-1][1], f"epoch {epoch} begins inside an older one"
    return (*table, (epoch, offset))


def with_entries(table: EpochTable, entries: Iterable[Entry]) -> EpochTable:
    """The table after `entries` were appended."""
    last = last_epoch(table)
    for entry in entries:
        if entry.epoch != last:
            last = entry.epoch
            table = with_epoch(table, last, entry.offset)
    return table


def cut(table: EpochTable, to_offset: int) -> EpochTable:
    """The table after a truncation to `to_offset`."""
    return tuple(row for row in table if row[1] < to_offset)


def epoch_at(table: EpochTable, offset: int) -> int:
    """The epoch of the entry at `offset`, which the log has or had; 0 below the first entry."""
    if table and offset >= table[-1][1]:
        return table[-1][0]
    index = bisect_right(table, offset, key=lambda row: row[1])
    return table[index - 1][0] if index else 0


def common_prefix(mine: EpochTable, my_leo: int, theirs: EpochTable, their_leo: int) -> int:
    """The offset below which two logs hold the same entries, by their tables alone; 0 when these share no row.

    (epoch, offset) identifies one entry for ever, and logs that share an entry agree on all entries below it
    (I-LOG-MATCH). So the newest common row decides, wherever each table begins (R-TRUNC).
    """
    places = {row: index for index, row in enumerate(theirs)}
    for index in range(len(mine) - 1, -1, -1):
        other = places.get(mine[index])
        if other is not None:
            my_end = mine[index + 1][1] if index + 1 < len(mine) else my_leo
            their_end = theirs[other + 1][1] if other + 1 < len(theirs) else their_leo
            return min(my_end, their_end)
    return 0

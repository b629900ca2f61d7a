"""The epoch table: where each leadership's entries begin in a log.

Every leader's first entry is its BARRIER, so every epoch that led owns at least one entry and the table
can always be derived from the log (docs/protocol.md H2). Its last row ranks a replica in an election, and two
tables tell how far two logs agree.
"""

from __future__ import annotations

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


def table_of(entries: Iterable[Entry]) -> EpochTable:
    """The table that a scan of `entries`, in offset order, gives."""
    table: list[tuple[int, int]] = []
    for entry in entries:
        if not table or table[-1][0] != entry.epoch:
            table.append((entry.epoch, entry.offset))
    return tuple(table)

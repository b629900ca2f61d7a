"""A machine's disk: the node's log, its store and its identity, each with what a crash may take.

Written is what a killed process leaves behind (the page cache lives on); synced is what a power loss
leaves, and of the rest any prefix. The store is LevelDB without sync: after a power loss the applied
offset that is found may stand above missing rows, so replay starts at the checkpointed floor (docs/protocol.md H36).
One process at a time holds the directory; whoever lost it gets errors from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from repl.isr.epochs import EpochTable, table_of
from repl.model.entry import Entry


class SimLog:
    """One partition's entries in the node's log: [start, end) written, below `synced` durable. `below` holds the
    epochs that began below `start`."""

    def __init__(self) -> None:
        self.start = 0
        self.entries: list[Entry] = []
        self.synced = 0
        self.below: EpochTable = ()

    @property
    def end(self) -> int:
        """First offset that is not written."""
        return self.start + len(self.entries)

    def table(self) -> EpochTable:
        """The epoch table as recovery derives it."""
        scanned = table_of(self.entries)
        if self.below and scanned and scanned[0][0] == self.below[-1][0]:
            scanned = scanned[1:]
        return self.below + scanned

    def append(self, entries: Sequence[Entry]) -> None:
        """Write; not yet durable."""
        assert entries[0].offset == self.end, f"log ends at {self.end}, write begins at {entries[0].offset}"
        self.entries.extend(entries)

    def read(self, start: int, end: int) -> list[Entry]:
        """Entries [start, end)."""
        assert start >= self.start
        return self.entries[start - self.start : end - self.start]

    def durable(self) -> list[Entry]:
        """Entries that a power loss cannot take."""
        return self.entries[: self.synced - self.start]

    def power_loss(self, rng: Random) -> int:
        """Any prefix of what was not synced survives; returns how many entries went."""
        keep = rng.randint(self.synced, self.end)
        lost = self.end - keep
        del self.entries[keep - self.start :]
        return lost

    def trim(self, to: int) -> None:
        """Free what lies below `to`; the table keeps its rows."""
        cut = self.entries[: to - self.start]
        if cut:
            fresh = tuple(row for row in table_of(cut) if not self.below or row[0] > self.below[-1][0])
            self.below += fresh
            self.entries = self.entries[len(cut) :]
            self.start = to


class SimStore:
    """One partition's rows: `rows[i]` is the effect of offset i. `floor` is the last checkpoint; `target` the
    applied offset that replay must pass before rows can be believed, 0 when they can."""

    def __init__(self) -> None:
        self.rows: list[Entry] = []
        self.floor = 0
        self.target = 0

    @property
    def applied(self) -> int:
        """First offset that is not applied."""
        return len(self.rows)

    def write(self, entries: Sequence[Entry]) -> None:
        """Apply entries that follow on what is there."""
        assert entries[0].offset == self.applied
        self.rows.extend(entries)
        if self.applied >= self.target:
            self.target = 0

    def power_loss(self, rng: Random) -> None:
        """Rows above the floor may be missing, whatever the applied offset says."""
        found = rng.randint(self.floor, self.applied)
        self.target = max(self.target, found)
        del self.rows[self.floor :]


class Disk:
    """One machine's data directory."""

    def __init__(self, partitions: Sequence[int]) -> None:
        self.logs = {partition: SimLog() for partition in partitions}
        self.stores = {partition: SimStore() for partition in partitions}
        self.gens: dict[int, int] = {}
        self.epochs_seen = dict.fromkeys(partitions, 0)
        self.holder: object = None
        """Who has the directory's lock."""
        self.fails = False
        """The next sync reports an error."""
        self.slow = 1
        """Everything takes this many times as long."""

    def power_loss(self, rng: Random) -> int:
        """The machine goes dark; returns how many log entries went."""
        lost = 0
        for partition in self.logs:
            lost += self.logs[partition].power_loss(rng)
            self.stores[partition].power_loss(rng)
        return lost

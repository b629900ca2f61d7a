"""A machine's disk: the node's log, its store and its identity, each with the data that a crash may take.

Written data survives a killed process (the page cache lives on); synced data survives a power loss, and any prefix of
the rest: the last entries written may be gone and a truncation may not have happened. The store is LevelDB without
sync: after a power loss the recovered applied offset may be above missing rows, so replay starts at the checkpointed
floor (docs/protocol.md H36). One process at a time holds the directory; a process that lost it gets errors from then
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType

from isthmus.repl.isr.epochs import EpochTable
from isthmus.repl.isr.events import TransferStored
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.record import Incarnation
from tests.support.replica_builders import table_of

KEY_COUNT = 7
"""Keys of a partition: few, so that most rows are written many times."""


NOTHING: Mapping[int, Entry] = MappingProxyType({})


def key_of(entry: Entry) -> int | None:
    """The key that an entry changes, None when it changes none. Entries that name none have one by their request."""
    if entry.kind not in (EntryKind.DATA, EntryKind.REAP):
        return None
    return int(entry.key) if entry.key else int(entry.request_id[1:]) % KEY_COUNT


def effect_of(entries: Iterable[Entry], before: Mapping[int, Entry] = NOTHING) -> dict[int, Entry]:
    """The rows that entries leave, applied to none or to the rows of `before`: each key's latest change. A reaped key
    has no row."""
    rows = dict(before)
    for entry in entries:
        key = key_of(entry)
        if key is not None and entry.kind == EntryKind.REAP:
            rows.pop(key, None)
        elif key is not None:
            rows[key] = entry
    return rows


def last_reap(entries: Sequence[Entry]) -> int:
    """The offset of the last REAP entry, -1 where there is none."""
    return max((entry.offset for entry in entries if entry.kind == EntryKind.REAP), default=-1)


class SimLog:
    """One partition's entries in the node's log: [start, end) written. `below` holds the epochs that began below
    `start`."""

    def __init__(self) -> None:
        self.start = 0
        self.entries: list[Entry] = []
        self.synced = 0
        """Entries below are there after any crash; those above may be gone, or be the older ones that a truncation
        which was not synced had dropped."""
        self.below: EpochTable = ()
        self._undo: list[int | list[Entry] | tuple[int, int, list[Entry], EpochTable]] = []
        """Operations since the last sync, oldest first: the number of appended entries, or the truncated entries, or
        the state that a new beginning dropped (start, synced, entries, epochs below)."""

    @property
    def end(self) -> int:
        """First offset that is not written."""
        return self.start + len(self.entries)

    def table(self) -> EpochTable:
        """The epoch table as recovery derives it."""
        scanned = table_of(self.entries)
        if self.below and scanned and scanned[0][0] == self.below[-1][0]:
            scanned = scanned[1:]
        return self.below[-1:] + scanned

    def last_epoch(self) -> int:
        """The epoch of the last entry, 0 when there never was one."""
        if self.entries:
            return self.entries[-1].epoch
        return self.below[-1][0] if self.below else 0

    def append(self, entries: Sequence[Entry]) -> None:
        """Write; not yet durable."""
        assert entries[0].offset == self.end, f"log ends at {self.end}, write begins at {entries[0].offset}"
        self.entries.extend(entries)
        self._undo.append(len(entries))

    def truncate(self, to_offset: int) -> None:
        """Drop the entries from `to_offset` on; not yet durable."""
        assert self.start <= to_offset <= self.end, f"truncation to {to_offset} of [{self.start}, {self.end})"
        kept = to_offset - self.start
        self._undo.append(self.entries[kept:])
        del self.entries[kept:]
        self.synced = min(self.synced, to_offset)

    def restart(self, at_offset: int, table: EpochTable) -> None:
        """Begin and end at `at_offset`; not yet durable."""
        self._undo.append((self.start, self.synced, self.entries, self.below))
        self.start = self.synced = at_offset
        self.entries, self.below = [], table[-1:]

    def sync(self) -> None:
        """Make all written operations durable."""
        self._undo.clear()
        self.synced = self.end

    def read(self, start: int, end: int) -> list[Entry]:
        """Entries [start, end)."""
        assert start >= self.start, f"read from {start}, the log begins at {self.start}"
        return self.entries[start - self.start : end - self.start]

    def durable(self) -> list[Entry]:
        """Entries that a power loss cannot take."""
        return self.entries[: self.synced - self.start]

    def power_loss(self, rng: Random) -> int:
        """Any prefix of the operations since the last sync survives; returns how many entries were lost."""
        steps = sum(step if isinstance(step, int) else 1 for step in self._undo)
        undone = rng.randint(0, steps) if steps else 0
        lost = 0
        while undone:
            step = self._undo[-1]
            if isinstance(step, int):
                take = min(step, undone)
                del self.entries[len(self.entries) - take :]
                lost += take
                undone -= take
                if take < step:
                    self._undo[-1] = step - take
                    break
            elif isinstance(step, tuple):
                self.start, self.synced, self.entries, self.below = step
                undone -= 1
            else:
                self.entries.extend(step)
                undone -= 1
            self._undo.pop()
        return lost

    def trim(self, to: int) -> None:
        """Free the entries below `to`; the table keeps the epoch of the entry just below it."""
        cut = self.entries[: to - self.start]
        if cut:
            fresh = tuple(row for row in table_of(cut) if not self.below or row[0] > self.below[-1][0])
            self.below = (self.below + fresh)[-1:]
            self.entries = self.entries[len(cut) :]
            self.start = to


class SimStore:
    """One partition's rows: `latest` by key; `history[i]` is the entry applied at offset i. `floor` is the last
    checkpoint; `target` the applied offset that replay must pass before rows are valid, 0 when they are. `far` is the
    far mark: then only `latest` counts."""

    def __init__(self) -> None:
        self.history: list[Entry] = []
        self.latest: dict[int, Entry] = {}
        self.floor = 0
        self.target = 0
        self.target_epoch = 0
        """Epoch of the entry just below the target."""
        self.transfer: TransferStored | None = None
        self.reaped = -1
        """Offset of the last REAP entry."""
        self.beyond: dict[int, Entry] = {}
        """By key, the rows of entries above the floor that a power loss left, until they are overwritten: the log need
        not hold those entries."""

    @property
    def applied(self) -> int:
        """First offset that is not applied."""
        return len(self.history)

    def write(self, entries: Sequence[Entry]) -> None:
        """Apply entries that follow the applied ones."""
        assert entries[0].offset == self.applied
        assert self.transfer is None
        self.history.extend(entries)
        self.latest = effect_of(entries, self.latest)
        self._written_over(entries)
        self.reaped = max(self.reaped, last_reap(entries))
        if self.applied >= self.target:
            self.target = 0

    def _written_over(self, entries: Iterable[Entry]) -> None:
        for entry in entries if self.beyond else ():
            key = key_of(entry)
            if key is not None:
                self.beyond.pop(key, None)

    def power_loss(self, rng: Random) -> None:
        """Rows above the floor may be missing, whatever the applied offset is, and may be there, whatever the log
        holds; a replica in transfer loses all."""
        if self.transfer is not None:
            self.begin_transfer(empty=True)
            return
        found = rng.randint(self.floor, self.applied)
        if found > self.target:
            self.target, self.target_epoch = found, self.history[found - 1].epoch
        self.beyond |= effect_of(self.history[self.floor : found])
        del self.history[self.floor :]
        self.latest = effect_of(self.history)
        self.reaped = last_reap(self.history)

    def begin_transfer(self, *, empty: bool) -> None:
        """Mark it, durably; where rows may be missing, all go."""
        if empty or self.target:
            self.latest = {}
            self.beyond = {}
            self.history = []
        position = len(self.history)
        self.transfer = TransferStored(position, self.history[-1].epoch if position else 0, True)
        self.history = []
        self.floor = self.target = 0

    def install(self, entries: Sequence[Entry], upto: int, epoch: int) -> None:
        """Rows of another store: each key's latest change of [position, upto)."""
        assert self.transfer is not None
        whole = self.transfer.whole and not entries and upto == self.transfer.position
        assert all(self.transfer.position <= entry.offset < upto for entry in entries)
        self.latest = effect_of(entries, self.latest)
        self._written_over(entries)
        self.transfer = TransferStored(upto, epoch, whole)

    def finish_far(self, committed: Sequence[Entry]) -> None:
        """The rows become the effect of all these entries."""
        self.history = list(committed)
        self.reaped = last_reap(committed)
        self.floor = len(committed)
        self.transfer = None


class Disk:
    """One machine's data directory."""

    def __init__(self, partitions: Iterable[int], new_store: Callable[[], SimStore] = SimStore) -> None:
        partitions = tuple(partitions)
        self.new_store = new_store
        self.logs = {partition: SimLog() for partition in partitions}
        self.stores = {partition: new_store() for partition in partitions}
        self.log_ids: dict[int, int] = {}
        """Log ids of all partitions: of existing replicas, and of those that may be created."""
        self.epochs_seen = dict.fromkeys(partitions, 0)
        self._owners: dict[int, tuple[int, Incarnation]] = {}
        """partition -> (epoch, its leader or candidate), for the highest epoch seen whose owner is known."""
        self.condemned: set[int] = set()
        """Replicas that are being deleted."""
        self.holder: object = None
        """The process that holds the directory's lock."""
        self.fails = False
        """The next sync reports an error."""
        self.slow = 1
        """Factor by which all operations are slowed down."""

    def committed(self, partition: int) -> int:
        """The offset up to which a replica is known to be committed, by its store's recovered state: up to there where
        the log holds that very entry."""
        log, store = self.logs[partition], self.stores[partition]
        last = log.entries[store.target - 1 - log.start] if log.start < store.target <= log.end else None
        holds = last is not None and last.epoch == store.target_epoch
        return store.target if holds else store.applied

    def note_epoch(self, partition: int, epoch: int, owner: Incarnation | None) -> None:
        """Note an epoch as seen, with its owner."""
        if owner is not None and epoch >= self.epochs_seen[partition]:
            self._owners[partition] = (epoch, owner)
        self.epochs_seen[partition] = max(epoch, self.epochs_seen[partition])

    def owner_of(self, partition: int) -> Incarnation | None:
        """The owner of the highest epoch seen, where that is noted."""
        epoch, owner = self._owners.get(partition, (-1, None))
        return owner if epoch == self.epochs_seen[partition] else None

    def make_copy(self, partition: int) -> None:
        """Create an empty replica of a partition."""
        self.logs[partition] = SimLog()
        self.stores[partition] = self.new_store()
        self.epochs_seen.setdefault(partition, 0)

    def condemn(self, partition: int, log_id: int) -> None:
        """Condemn the replica, durably; one created later has `gen` as its log id."""
        self.condemned.add(partition)
        self.log_ids[partition] = log_id

    def delete_copy(self, partition: int) -> None:
        """Delete everything of a condemned replica."""
        self.condemned.discard(partition)
        del self.logs[partition]
        del self.stores[partition]

    def power_loss(self, rng: Random) -> int:
        """The machine goes dark; returns how many log entries went."""
        lost = 0
        for partition in self.logs:
            lost += self.logs[partition].power_loss(rng)
            self.stores[partition].power_loss(rng)
        return lost

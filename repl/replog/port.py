"""What the rest of the house knows of the node's log.

One log a node holds the entries of all its partitions; offsets are sequential per partition. The real
thing is `repl.replog.log.FileLog`, its memory twin `tests.support.memory_log.MemoryLog`; one contract
suite runs on both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from isthmus.repl.model.entry import Entry

EpochTable = tuple[tuple[int, int], ...]
"""((epoch, first offset), ...), ascending in both."""


NO_PINS: Final[Mapping[int, int]] = MappingProxyType({})

PINNED_SHARE: Final = 1
"""How many times its size limit a log may grow beyond it for the sake of pins. Without a bound a follower that takes
for ever would fill its leader's disk."""


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """What recovery found of one partition: entries [start, leo) are readable and verified.

    `damage` is empty, or one sentence: the partition's log lost something that had been durable
    (docs/protocol.md H35), so the replica must take a new gen.
    """

    start: int
    leo: int
    epoch_table: EpochTable
    damage: str = ""


@dataclass(frozen=True, slots=True)
class LogStats:
    """Numbers for telemetry; sizes in bytes, durations in seconds since the log was opened."""

    size_bytes: int
    file_count: int
    entries_written: int
    batches_written: int
    fsync_count: int
    fsync_seconds: float
    pending_entries: int


OnAboveLimit = Callable[[], None]
"""See `Replog.start`."""

OnDurable = Callable[[Mapping[int, int], Mapping[int, int]], None]
"""See `Replog.start`: called with (ends, truncations)."""


class Replog(Protocol):
    """The node's log. Its methods are called from one thread (the loop's) unless said otherwise."""

    def recovered(self) -> Mapping[int, RecoveredPartition]:
        """What opening the log found, by partition."""

    def start(
        self,
        on_durable: OnDurable,
        on_failure: Callable[[Exception], None],
        on_above_limit: OnAboveLimit = lambda: None,
    ) -> None:
        """Begin writing. `on_durable({partition: first offset that is not durable}, {partition: offset})` is called
        after each group commit, from the log's own thread. The second names the partitions that were truncated in it,
        each at most once and before anything was appended to it in the same commit, and to where; what had been
        appended before that was reported before. `on_failure` is called once, when a write or fsync failed: the log
        then accepts nothing more and the process is expected to leave (docs/protocol.md H34). `on_above_limit` is
        called from the log's own thread when a file is full and the log above its size limit: it is time to trim."""

    def has_room(self, size_bytes: int) -> bool:
        """Will the disk take `size_bytes` more without touching its reserve? Asked before a write is accepted,
        so that a full disk is a refusal (docs/protocol.md H38); what was accepted then still fits."""

    def look_at_space(self) -> None:
        """Have the free space looked at, for others fill a disk, too; `has_room` goes by it a moment later."""

    def append(self, partition: int, entries: Sequence[Entry]) -> None:
        """Queue entries for the next group commit; never blocks. Their offsets follow on what the
        partition holds and their epochs do not fall (asserted). Raises OutOfStorage when the
        disk is known to be full, LocalFault after a failure."""

    def truncate(self, partition: int, to_offset: int, epoch: int) -> None:
        """Drop the partition's entries from `to_offset` on, by a record in the log;
        durable with the next group commit."""

    def restart(self, partition: int, at_offset: int, table: EpochTable) -> None:
        """Drop all of the partition's entries and let its log begin and end at `at_offset`, with the epoch table of a
        log that ends there (docs/protocol.md R-FAR); durable with the next group commit, which names the partition
        among the truncated ones."""

    def together(self) -> AbstractContextManager[None]:
        """What is queued in here goes to the writer at its end: into one group commit as far as that takes it, by one
        wake-up. Not to be entered twice (asserted); nothing in here may wait for any of it to be durable."""

    def abandon(self, partition: int) -> None:
        """Nothing that the partition's log holds is needed any more: it keeps no file, whatever the floors say. Its
        next change is a `restart`, which ends that (asserted). Not remembered when the log is opened again."""

    def leo(self, partition: int) -> int:
        """First free offset of the partition, durable or not."""

    def start_of(self, partition: int) -> int:
        """First offset that the log still holds, 0 for an empty log; cheap, from any thread."""

    def epoch_table(self, partition: int) -> EpochTable:
        """The partition's epochs and their first offsets."""

    def read(self, partition: int, from_offset: int, to_offset: int, max_bytes: int) -> list[Entry]:
        """Durable entries [from, to), at least one if any, stopping before `max_bytes` is passed. Raises
        LookupError below the log's start, Corruption when the bytes on disk fail their checksum.
        May be called from any thread."""

    def trim(self, floors: Mapping[int, int], pins: Mapping[int, int] = NO_PINS) -> None:
        """Free what lies below the store's durable floors while the log is over its size limit; whole files
        only, oldest first; entries still needed are copied forward. What stands at `pins` or above it is needed, too,
        as far as the log need not be larger than twice its limit for that (docs/protocol.md R-FAR)."""

    def sync(self) -> None:
        """What was reported durable is on disk, in async mode too. From any thread; blocks. Raises LocalFault."""

    def stats(self) -> LogStats:
        """Numbers for telemetry; from any thread."""

    def close(self) -> None:
        """Write and sync what is queued, then close; idempotent. Blocks."""


def pinned(floors: Mapping[int, int], pins: Mapping[int, int]) -> Mapping[int, int]:
    """The floors below which nobody needs anything."""
    return {partition: min(floor, pins.get(partition, floor)) for partition, floor in floors.items()}

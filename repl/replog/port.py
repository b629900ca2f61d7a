"""The interface of the node's log.

A node has one log for the entries of all its partitions; offsets are sequential per partition.
`repl.replog.log.FileLog` implements it on disk, `tests.support.memory_log.MemoryLog` in memory; one contract suite
covers both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from isthmus.repl.model.entry import Entry

EpochTable = tuple[tuple[int, int], ...]
"""((epoch, first offset), ...), ascending in both."""


NO_PINS: Final[Mapping[int, int]] = MappingProxyType({})

PINNED_SHARE: Final = 1
"""Limit of growth for pins, as a multiple of the size limit. Without it, a follower that never catches up would fill
its leader's disk."""


@dataclass(frozen=True, slots=True)
class RecoveredPartition:
    """A partition as recovery found it: entries [start, leo) are readable and verified.

    `damage` is empty, or one sentence: the log lost entries that had been durable (docs/protocol.md H35), so the
    replica must take a new log id.
    """

    start: int
    leo: int
    epoch_table: EpochTable
    damage: str = ""


class EncodedRun(NamedTuple):
    """Entries [base, base + entry_count) of one partition and `epoch`, as the log has them: header, lengths, bytes."""

    partition: int
    epoch: int
    base: int
    entry_count: int
    buffers: Sequence[bytes]

    @property
    def size_bytes(self) -> int:
        """Length of the buffers."""
        return sum(map(len, self.buffers))


@dataclass(frozen=True, slots=True)
class LogStats:
    """Figures for telemetry; sizes in bytes, durations in seconds since the log was opened."""

    size_bytes: int
    file_count: int
    entries_written: int
    batches_written: int
    fsync_count: int
    fsync_seconds: float
    free_bytes: int
    """Free space of the disk, as it was last measured."""
    free_inodes: int | None = None
    """How many files can still be created on it; None where the file system sets no limit."""


OnAboveLimit = Callable[[], None]
"""See `Replog.start`."""

OnDurable = Callable[[Mapping[int, int], Mapping[int, int]], None]
"""See `Replog.start`: called with (ends, truncations)."""


class Replog(Protocol):
    """The node's log. Methods are called from one thread (the event loop's) unless stated otherwise."""

    def recovered(self) -> Mapping[int, RecoveredPartition]:
        """Partition -> what opening the log found."""

    def start(
        self,
        on_durable: OnDurable,
        on_failure: Callable[[Exception], None],
        on_above_limit: OnAboveLimit = lambda: None,
    ) -> None:
        """Start writing.

        `on_durable({partition: first offset that is not durable}, {partition: offset})` is called after each group
        commit, from the log's own thread. The second mapping has the partitions that were truncated in this commit,
        each at most once and before any append to it in the same commit, with the offset; earlier appends were reported
        before. `on_failure` is called once, when a write or fsync failed: the log then accepts nothing more, and the
        process is expected to exit (docs/protocol.md H34). `on_above_limit` is called from the log's own thread when a
        file is full and the log above its size limit, so that the caller trims.
        """

    def has_space(self, size_bytes: int) -> bool:
        """True when the disk takes `size_bytes` more without touching its reserve, and nothing else is short.

        Asked before a write is accepted, so that a full disk is a refusal (docs/protocol.md H38) and accepted writes
        still fit.
        """

    def has_space_for_barriers(self) -> bool:
        """True when the disk takes a candidate's barriers, from the reserve if need be: a replica whose disk does not
        must not accept a nomination."""

    @property
    def shortage(self) -> str:
        """What the log is short of beside bytes, such as inodes or write access, as a clause for operators; "" for
        nothing. `has_space` is False meanwhile."""

    def refresh_free_space(self) -> None:
        """Schedule a check of the free space, which others use, too; `has_space` reflects it a moment later."""

    def append(self, partition: int, entries: Sequence[Entry]) -> list[EncodedRun]:
        """Queue entries for the next group commit; never blocks. Returns the runs as the log writes them.

        Their offsets follow on the partition's end, and their epochs do not fall (asserted). Raises OutOfStorage when
        the disk is known to be full, LocalFault after a failure.
        """

    def append_encoded(self, runs: Sequence[EncodedRun]) -> None:
        """Queue runs that another node's log returned from `append`, byte for byte; else as `append`."""

    def truncate(self, partition: int, to_offset: int, epoch: int) -> None:
        """Drop entries from `to_offset` on, by a record in the log; durable with the next group commit."""

    def restart(self, partition: int, at_offset: int, table: EpochTable) -> None:
        """Drop all of the partition's entries; its log begins and ends at `at_offset`, with the epoch table of a log
        that ends there (docs/protocol.md R-FAR).

        Durable with the next group commit, which names the partition among the truncated ones.
        """

    def grouped(self) -> AbstractContextManager[None]:
        """Hand everything queued in this context to the writer at its end: one wake-up, and one group commit if it
        fits.

        Do not nest (asserted), and do not wait inside for anything to become durable.
        """

    def abandon(self, partition: int) -> None:
        """Release all of the partition's entries: they keep no file, whatever the floors say.

        The partition's next change is a `restart`, which ends this state (asserted). Not remembered when the log is
        opened again.
        """

    def leo(self, partition: int) -> int:
        """First free offset of the partition, durable or not."""

    def start_of(self, partition: int) -> int:
        """First offset that the log still holds, 0 for an empty log; cheap, from any thread."""

    def epoch_table(self, partition: int) -> EpochTable:
        """The partition's epochs and their first offsets."""

    def read(self, partition: int, from_offset: int, to_offset: int, max_bytes: int) -> list[Entry]:
        """Return durable entries [from, to), at least one if any, stopping before `max_bytes` is exceeded.

        Raises LookupError below the log's start, Corruption when bytes on disk fail their checksum. From any thread.
        """

    def trim(self, floors: Mapping[int, int], pins: Mapping[int, int] = NO_PINS) -> None:
        """Delete files below the store's durable floors while the log is over its size limit.

        Whole files only, oldest first; entries still needed are copied forward. Entries from `pins` on are kept as well
        while the log is no larger than twice its limit (docs/protocol.md R-FAR).
        """

    def sync(self) -> None:
        """Sync everything reported as durable, also in async mode. From any thread; blocks. Raises LocalFault."""

    def stats(self) -> LogStats:
        """Figures for telemetry; from any thread."""

    def close(self) -> None:
        """Write and sync everything queued, then close; idempotent. Blocks."""


def pinned_floors(floors: Mapping[int, int], pins: Mapping[int, int]) -> Mapping[int, int]:
    """Return the floors, lowered to the pins: entries below are not needed at all."""
    return {partition: min(floor, pins.get(partition, floor)) for partition, floor in floors.items()}

"""The log's own thread: group commit across partitions.

It takes everything that is queued, up to a batch's size, writes it as one frame, syncs once, notes where it lies and
tells how far each partition is durable; what is queued meanwhile makes the next batch. When nothing comes for a
while it writes a mark. Trimming runs in the same thread, so that it never meets a log that changes under it.
In async mode a second thread syncs about once a second, and "durable" is told after the write alone.

It decides nothing about entries; `repl.replog.log` has checked and encoded them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event
from typing import Final, NamedTuple

from isthmus.repl.replog.files import FileIO
from isthmus.repl.replog.frames import RunKind
from isthmus.repl.replog.index import LogIndex
from isthmus.repl.replog.port import PINNED_SHARE, EpochTable, OnAboveLimit, OnDurable, pinned
from isthmus.repl.replog.tail import LogTail
from isthmus.repl.replog.trimming import trim

MARK_AFTER_S: Final = 0.5
"""Quiet time before a mark is written: long enough that a busy log has none, short so that little time
passes in which the last batch, should its bytes rot, could be taken for an unfinished write."""

ASYNC_SYNC_S: Final = 1.0
"""Time between syncs in async mode: what a power loss may take from a node that asked for it."""

SPACE_CHECK_S: Final = 1.0
"""Oldest view of the free space that a batch is written under."""

SPACE_CHECK_BYTES: Final = 16 * 1024 * 1024
"""Written bytes after which the free space is looked at again, however soon; a quarter of the reserve."""


CUTS: Final = frozenset((RunKind.TRUNCATE, RunKind.START))
"""Runs that drop entries."""


class Queued(NamedTuple):
    """A run of one partition on its way to the disk; `buffers` are its bytes, `size_bytes` long; `table` is START's."""

    partition: int
    kind: RunKind
    epoch: int
    base: int
    entry_count: int
    size_bytes: int
    buffers: list[bytes]
    table: EpochTable = ()


class Trim(NamedTuple):
    """Drop old files; `floors` is what each partition's store has on disk, `pins` from where on others need it."""

    floors: Mapping[int, int]
    pins: Mapping[int, int]


class Abandon(NamedTuple):
    """Nothing of the partition is needed any more, until a START."""

    partition: int


class CheckSpace(NamedTuple):
    """Look at the free space again."""


class Stop(NamedTuple):
    """Finish what was queued before, then end."""


Item = Queued | Trim | Abandon | CheckSpace | Stop


class LogWriter:
    """Owns the tail of the log while its thread runs. `spendable_bytes` counts, from the beginning of the process,
    how many bytes may be queued in all before the disk's reserve is touched; any thread may read it."""

    def __init__(
        self,
        io: FileIO,
        directory: Path,
        index: LogIndex,
        tail: LogTail,
        *,
        synchronous: bool,
        size_limit_bytes: int,
        file_bytes: int,
        batch_bytes: int,
    ) -> None:
        self._io = io
        self._directory = directory
        self._index = index
        self._tail = tail
        self._synchronous = synchronous
        self._size_limit_bytes = size_limit_bytes
        self._file_bytes = file_bytes
        self._batch_bytes = batch_bytes
        self._held: deque[Item] = deque()
        """Taken off the queue and not yet handled."""
        self._stopped = Event()
        self._space_checked_at = 0.0
        self._space_checked_bytes = 0
        self.queue: SimpleQueue[Sequence[Item]] = SimpleQueue()
        """What is put in at once is in one batch as far as it fits, and wakes the thread once."""
        self.begin_new_file = False
        """Set before `run`: state where the partitions stand in a new file before anything else is written."""
        self.on_durable: OnDurable = lambda _ends, _truncations: None
        self.on_above_limit: OnAboveLimit = lambda: None
        self.entries_written = 0
        self.batches_written = 0
        self.bytes_written = 0
        self.spendable_bytes = 0
        self.space_asked = False
        """A look at the free space is queued: one is enough, however often it is asked for while a disk stalls."""
        self.check_space()

    def run(self) -> None:
        """The thread's work, until Stop. Raises whatever went wrong; nothing may be written after that."""
        try:
            if self.begin_new_file:
                self._tail.roll()
            while True:
                match self._next():
                    case None:
                        self._quiet()
                    case Queued() as first:
                        self._commit(self._batch(first))
                    case Trim(floors, pins):
                        self._trim(floors, pins)
                    case Abandon(partition):
                        if partition in self._index.partitions:
                            self._index.partitions[partition].abandoned = True
                    case CheckSpace():
                        self.check_space()
                    case Stop():
                        self._finish()
                        return
        finally:
            self._stopped.set()

    def sync_in_background(self) -> None:
        """The work of async mode's second thread, until the first one ends. Raises what a sync raised."""
        while not self._stopped.wait(ASYNC_SYNC_S):
            self._tail.sync()

    def _next(self) -> Item | None:
        held = self._held
        if not held:
            try:
                held += self.queue.get() if self._tail.marked else self.queue.get(timeout=MARK_AFTER_S)
            except Empty:
                return None
        return held.popleft()

    def _batch(self, first: Queued) -> list[Queued]:
        """`first` and what else is queued, as far as it fits into one frame."""
        batch = [first]
        size = first.size_bytes
        held = self._held
        while size < self._batch_bytes:
            if not held:
                if self.queue.empty():
                    break
                held += self.queue.get()  # nobody else takes anything from it
            item = held[0]
            if not isinstance(item, Queued) or size + item.size_bytes > self._batch_bytes:
                break
            if item.kind in CUTS and any(b.partition == item.partition for b in batch):
                break  # an offset stands at most once in a frame: a truncation comes first for its partition
            held.popleft()
            batch.append(item)
            size += item.size_bytes
        return batch

    def _commit(self, batch: list[Queued]) -> None:
        now = time.monotonic()
        if now - self._space_checked_at > SPACE_CHECK_S or (
            self.bytes_written - self._space_checked_bytes > SPACE_CHECK_BYTES
        ):
            self.check_space()
        if self._tail.end.position >= self._file_bytes:
            self._tail.roll()
            if self._index.size_bytes() > self._size_limit_bytes:
                self.on_above_limit()
        buffers: list[bytes] = []
        size_bytes = 0
        for item in batch:
            buffers += item.buffers
            size_bytes += item.size_bytes
        # after a START the store forgets what stood in the entries that it drops
        synced = self._synchronous or any(item.kind is RunKind.START for item in batch)
        at = self._tail.write(buffers, len(batch), synced=synced)
        durable: dict[int, int] = {}
        truncated: dict[int, int] = {}
        entries = 0
        with self._index.lock:
            for item in batch:
                partition = self._index.partition(item.partition)
                if item.kind is RunKind.ENTRIES:
                    partition.add(at.sequence, at.position, item.epoch, item.base, item.entry_count)
                    entries += item.entry_count
                elif item.kind is RunKind.START:
                    partition.restart(item.base, item.table)
                    truncated[item.partition] = item.base
                else:
                    partition.truncate(item.base)
                    truncated[item.partition] = item.base
                durable[item.partition] = partition.leo
        self.batches_written += 1
        self.entries_written += entries
        self.bytes_written += size_bytes
        self.on_durable(durable, truncated)

    def _quiet(self) -> None:
        if self._tail.durable == self._tail.end:
            self._tail.mark(synced=self._synchronous)

    def _trim(self, floors: Mapping[int, int], pins: Mapping[int, int]) -> None:
        """Down to the limit without what is pinned; then down to what pins may cost."""
        self._free(pinned(floors, pins), self._size_limit_bytes)
        if pins:
            self._free(floors, self._size_limit_bytes * (1 + PINNED_SHARE))

    def _free(self, floors: Mapping[int, int], limit_bytes: int) -> None:
        if self._index.size_bytes() <= limit_bytes:
            return
        if self._tail.end.position >= self._file_bytes:
            self._tail.roll()
        excess_bytes = self._index.size_bytes() - limit_bytes
        trim(
            self._io,
            self._directory,
            self._index,
            self._tail,
            floors,
            excess_bytes=excess_bytes,
            batch_bytes=self._batch_bytes,
        )

    def _finish(self) -> None:
        self._tail.sync()
        if not self._tail.marked:
            self._tail.mark(synced=False)
        self._tail.leave()

    def check_space(self) -> None:
        """Look at the free space now; the room of the newest file is taken, and free for entries. Raises OSError."""
        self.space_asked = False
        free = self._io.free_bytes(self._directory)
        self.spendable_bytes = self.bytes_written + free + self._tail.room_bytes
        self._space_checked_at = time.monotonic()
        self._space_checked_bytes = self.bytes_written

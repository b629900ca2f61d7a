"""The log's writer thread: group commit across partitions.

It takes everything queued, up to a batch's size, writes it as one frame, syncs once, records the positions, and reports
how far each partition is durable. Meanwhile the queue collects the next batch. When idle it writes a mark. Trimming
runs in the same thread, so the log does not change under it. In async mode a second thread syncs about once a second,
and the report follows the write alone.

`repl.replog.log` has checked and encoded the entries before.

What cannot be written or synced for want of space, a quota, write access or memory waits, with everything behind it,
until it can be (`LogTail.mend`); meanwhile `shortage` refuses all that would be queued.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty
from typing import Final, NamedTuple, TypeVar

import structlog

from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import ThreadQueue, machine
from isthmus.repl.model.errors import StorageShort
from isthmus.repl.replog.files import FileIO
from isthmus.repl.replog.frames import EntryRunKind
from isthmus.repl.replog.index import LogIndex
from isthmus.repl.replog.port import PINNED_SHARE, EpochTable, OnAboveLimit, OnDurable, pinned_floors
from isthmus.repl.replog.tail import LogTail
from isthmus.repl.replog.trimming import trim

log = structlog.get_logger(__name__)

Result = TypeVar("Result")

MARK_AFTER_S: Final = 0.5
"""Idle time before a mark is written: long enough that a busy log has none. It is short because until then the last
batch, if its bytes rot, could be taken for an unfinished write."""

ASYNC_SYNC_S: Final = 1.0
"""Interval between syncs in async mode: what a power loss may cost a node that chose it."""

SPACE_CHECK_S: Final = 1.0
"""Maximum age of the free-space figure under which a batch is written."""

SPACE_CHECK_BYTES: Final = 16 * 1024 * 1024
"""Written bytes after which the free space is checked again, however soon; a quarter of the reserve."""

INODES_RESERVE: Final = 128
"""Free inodes below which no write is accepted, where the file system has a fixed number: accepted writes still need
the log's next file, and those that LevelDB makes in a compaction before it deletes old ones (some 25 tables of 2 MB).
Barriers may use the upper half of it."""

ROLL_AGAIN_S: Final = 1.0
"""Pause before the next file is tried again, after it could not be created. The file before goes on meanwhile; writes
are refused, so it grows by what was accepted before."""

WRITE_AGAIN_S: Final = 1.0
"""Pause before a write is tried again that was refused: an operator, or a trim, needs seconds."""


CUTS: Final = frozenset((EntryRunKind.TRUNCATE, EntryRunKind.START))
"""Runs that drop entries."""


class Queued(NamedTuple):
    """A run of one partition to be written; `buffers` are its bytes, `size_bytes` long; `table` belongs to START."""

    partition: int
    kind: EntryRunKind
    epoch: int
    base: int
    entry_count: int
    size_bytes: int
    buffers: Sequence[bytes]
    table: EpochTable = ()


class Trim(NamedTuple):
    """Delete old files; `floors`: what each store has on disk, `pins`: from where on followers need entries."""

    floors: Mapping[int, int]
    pins: Mapping[int, int]


class Abandon(NamedTuple):
    """Release the partition's entries until a START."""

    partition: int


class CheckSpace(NamedTuple):
    """Check the free space."""


class Stop(NamedTuple):
    """Finish everything queued before, then end."""


Item = Queued | Trim | Abandon | CheckSpace | Stop


class LogWriter:
    """Owns the tail of the log while its thread runs.

    `spendable_bytes`: how many bytes may be queued in all since the start of the process before the disk's reserve is
    touched; any thread may read it.
    """

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
        """Taken off the queue and not handled yet."""
        self._stopped = machine().event()
        self._space_checked_at = 0.0
        self._space_checked_bytes = 0
        self.queue: ThreadQueue[Sequence[Item]] = machine().queue()
        """Items put in together go into one batch as far as they fit, and wake the thread once."""
        self.roll_first = False
        """Set before `run`: write the state of all partitions into a new file first."""
        self.on_durable: OnDurable = lambda _ends, _truncations: None
        self.on_above_limit: OnAboveLimit = lambda: None
        self.entries_written = 0
        self.batches_written = 0
        self.bytes_written = 0
        self.spendable_bytes = 0
        self.free_bytes = 0
        """Free space of the log's disk at the last check."""
        self.free_inodes: int | None = None
        """Files that can still be created on it; None: the file system sets no limit."""
        self.shortage = ""
        """What the log is short of, beside bytes, as a clause for operators; "" for nothing. No write is accepted."""
        self.takes_barriers = True
        """False when the shortage leaves nothing for barriers either."""
        self.closing = machine().event()
        """Set by the owner before it queues Stop: what cannot be written now is given up."""
        self._write_refused = ""
        """Why the last write or sync was refused; "" since one was not."""
        self._roll_refused = ""
        self._roll_after_s = 0.0
        self._log_limit = LogLimit()
        self.space_check_queued = False
        """A space check is queued; one is enough, however often it is requested while a disk stalls."""
        self.check_space()

    def run(self) -> None:
        """Handle items until Stop. Raises any error; nothing may be written after it."""
        try:
            if self.roll_first:
                self._patiently(self._tail.roll)
            while True:
                match self._next():
                    case None:
                        self._mark_if_idle()
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
                        self._close_file()
                        return
        finally:
            self._stopped.set()

    def sync_in_background(self) -> None:
        """The second thread's loop in async mode, until the first thread ends. Raises a sync's error, but not
        StorageShort: the first thread mends what this leaves."""
        while not self._stopped.wait(ASYNC_SYNC_S):
            with suppress(StorageShort):
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
        """Return `first` and further queued runs, as far as they fit into one frame."""
        batch = [first]
        size = first.size_bytes
        held = self._held
        while size < self._batch_bytes:
            if not held:
                if self.queue.empty():
                    break
                held += self.queue.get()  # the only consumer
            item = held[0]
            if not isinstance(item, Queued) or size + item.size_bytes > self._batch_bytes:
                break
            if item.kind in CUTS and any(b.partition == item.partition for b in batch):
                break  # a frame has each offset at most once, so a truncation is the first run of its partition
            held.popleft()
            batch.append(item)
            size += item.size_bytes
        return batch

    def _commit(self, batch: list[Queued]) -> None:
        now = machine().monotonic_s()
        if now - self._space_checked_at > SPACE_CHECK_S or (
            self.bytes_written - self._space_checked_bytes > SPACE_CHECK_BYTES
        ):
            self.check_space()
        full = self._tail.end.position >= self._file_bytes
        if full and self._roll() and self._index.size_bytes() > self._size_limit_bytes:
            self.on_above_limit()
        buffers: list[bytes] = []
        size_bytes = 0
        for item in batch:
            buffers += item.buffers
            size_bytes += item.size_bytes
        # after a START the store drops what only these entries held
        synced = self._synchronous or any(item.kind is EntryRunKind.START for item in batch)
        try:
            at = self._tail.write(buffers, len(batch), synced=synced)
        except StorageShort as error:
            self._refused(error)
            at = self._patiently(lambda: self._tail.write(buffers, len(batch), synced=synced))
        durable: dict[int, int] = {}
        truncated: dict[int, int] = {}
        entries = 0
        with self._index.lock:
            for item in batch:
                partition = self._index.partition(item.partition)
                if item.kind is EntryRunKind.ENTRIES:
                    partition.add(at.sequence, at.position, item.epoch, item.base, item.entry_count)
                    entries += item.entry_count
                elif item.kind is EntryRunKind.START:
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
        if self._synchronous:  # only now, since it may take longer than the write did
            try:
                self._tail.preallocate(self._tail.end.position - at.position)
            except StorageShort as error:
                self._refused(error)

    def _mark_if_idle(self) -> None:
        if self._tail.durable == self._tail.end and not self._tail.short:
            try:
                self._tail.mark(synced=self._synchronous)
            except StorageShort as error:
                self._refused(error)

    def _patiently(self, write: Callable[[], Result]) -> Result:
        """The result of `write`, tried again while it finds the disk short. Raises its other errors, and StorageShort
        once the log is closing."""
        while True:
            try:
                if self._tail.short:
                    self._tail.mend()
                found = write()
            except StorageShort as error:
                self._refused(error)
                if self.closing.wait(WRITE_AGAIN_S):
                    raise
            else:
                self._write_refused = ""
                self._measure()  # not check_space, which may begin a file: the index lacks what was just written
                return found

    def _refused(self, error: StorageShort) -> None:
        """A write or sync found the disk short: nothing is accepted until one does not."""
        self._note_short(error)
        self._write_refused = str(error)
        self._measure()

    def _mend(self) -> None:
        """Bring the file back to what it was before a refused write, if that is possible now."""
        try:
            self._tail.mend()
        except StorageShort as error:
            self._note_short(error)
            self._write_refused = str(error)
        else:
            self._write_refused = ""

    def _roll(self) -> bool:
        """Begin the next file. False while it cannot be created: the file goes on, and it is tried again later."""
        now_s = machine().monotonic_s()
        if now_s < self._roll_after_s:
            return False
        try:
            self._tail.roll()
        except StorageShort as error:
            self._note_short(error)
            self._roll_refused, self._roll_after_s = str(error), now_s + ROLL_AGAIN_S
            self.check_space()
            return False
        self._roll_refused = ""
        return True

    def _note_short(self, error: StorageShort) -> None:
        if (suppressed := self._log_limit.due("short")) is not None:
            log.warning("storage.short", error=str(error), suppressed=suppressed)

    def _trim(self, floors: Mapping[int, int], pins: Mapping[int, int]) -> None:
        """Trim to the size limit without pinned entries, then to the larger limit that includes pins. What cannot be
        trimmed for want of descriptors or space is trimmed after the next checkpoint."""
        try:
            self._free(pinned_floors(floors, pins), self._size_limit_bytes)
            if pins:
                self._free(floors, self._size_limit_bytes * (1 + PINNED_SHARE))
        except StorageShort as error:
            self._note_short(error)
            if self._tail.short:
                self._refused(error)

    def _free(self, floors: Mapping[int, int], limit_bytes: int) -> None:
        if self._index.size_bytes() <= limit_bytes:
            return
        if self._tail.end.position >= self._file_bytes:
            self._roll()
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

    def _close_file(self) -> None:
        """Leave the file as the next start needs it; without that it costs the next start a little more. Raises
        StorageShort where entries are not on disk."""
        try:
            if self._tail.short:
                self._tail.mend()
            self._tail.sync()
            if not self._tail.marked:
                self._tail.mark(synced=False)
            self._tail.seal()
        except StorageShort as error:
            if self._tail.durable != self._tail.end:
                raise
            self._note_short(error)

    def check_space(self) -> None:
        """Check now what is free; preallocated bytes of the newest file count as free. Raises OSError."""
        self.space_check_queued = False
        if self._tail.short:
            self._mend()
        if self._roll_refused:
            self._roll()
        self._measure()

    def _measure(self) -> None:
        self.free_bytes = self._io.free_bytes(self._directory)
        self.free_inodes = self._io.free_inodes(self._directory)
        self.shortage, self.takes_barriers = self._shortage(self._io.read_only(self._directory))
        self.spendable_bytes = self.bytes_written + self.free_bytes + self._tail.preallocated_bytes
        self._space_checked_at = machine().monotonic_s()
        self._space_checked_bytes = self.bytes_written

    def _shortage(self, read_only: bool) -> tuple[str, bool]:
        """What is short beside bytes, and whether barriers are accepted nevertheless."""
        if read_only:
            return "the log's file system is mounted read-only: mount it for writing again", False
        if self._write_refused:
            return self._write_refused, False
        inodes = self.free_inodes
        if inodes is not None and inodes < INODES_RESERVE:
            advice = (
                f"the log's file system has {inodes} free inodes: delete files there ({INODES_RESERVE} must stay free)"
            )
            return advice, inodes >= INODES_RESERVE // 2
        return self._roll_refused, True

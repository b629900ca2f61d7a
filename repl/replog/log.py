"""The node's log (`repl.replog.port.Replog`) over append-only files: the calls from outside.

`append` checks and encodes on the caller's thread and queues; `repl.replog.writer` commits in groups; `read` reads the
files from any thread; `open` runs `repl.replog.recovery`. The log keeps two views of each partition: its end including
everything queued (here, for the caller's thread only), and its durable part (`LogIndex`). The data directory's lock
ensures that one process opens the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Final

from isthmus.repl.machine import MemoryLock, RunningThread, machine
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.errors import Corruption, IsthmusError, LocalFault, OutOfStorage, StorageShort, TooLarge
from isthmus.repl.replog.epochs import clipped, extended, last_epoch, truncated
from isthmus.repl.replog.files import FileIO, SystemFiles
from isthmus.repl.replog.frames import MAX_BODY_BYTES, EntryRunKind, encode_entries, encode_state, encode_truncate
from isthmus.repl.replog.index import LogIndex
from isthmus.repl.replog.names import is_unfinished
from isthmus.repl.replog.port import (
    NO_PINS,
    EncodedRun,
    EpochTable,
    LogStats,
    OnAboveLimit,
    OnDurable,
    RecoveredPartition,
)
from isthmus.repl.replog.reader import LogFileReader, decoded
from isthmus.repl.replog.recovery import Recovery, recover
from isthmus.repl.replog.tail import LogTail
from isthmus.repl.replog.writer import Abandon, CheckSpace, Item, LogWriter, Queued, Stop, Trim
from isthmus.repl.shortage import lacks_descriptors

RESERVE_BYTES: Final = 128 * 1024 * 1024
"""Free space below which no write is accepted: the log's next file (64 MB) and the store's next table (64 MB) still
fit, so that accepted writes can be written, applied and trimmed. `append` itself refuses at half of it, but no barrier:
without them no replica could lead, and nobody could read."""

BARRIERS_BYTES: Final = 1024 * 1024
"""Space that a nomination may need: one barrier of some 100 bytes, or one for every entry that the log lost (H36)."""

ENTRY_BYTES_MAX: Final = MAX_BODY_BYTES - 4096
"""Maximum length of an entry; a longer one does not fit into a frame and is refused as too large."""

_EPOCH: Final = itemgetter(Entry._fields.index("epoch"))
_OFFSET: Final = itemgetter(Entry._fields.index("offset"))
_WIRE: Final = itemgetter(Entry._fields.index("wire"))


class _End:
    """A partition's end, including everything queued."""

    __slots__ = ("leo", "table")

    def __init__(self, leo: int, table: EpochTable) -> None:
        self.leo = leo
        self.table = table


class FileLog:
    """The log in one directory. Create it with `open`, call `start`, and finally `close`."""

    def __init__(
        self,
        io: FileIO,
        recovery: Recovery,
        writer: LogWriter,
        tail: LogTail,
        *,
        synchronous: bool,
        size_limit_bytes: int,
        batch_bytes: int,
        reserve_bytes: int,
    ) -> None:
        self._io = io
        self._index: LogIndex = recovery.index
        self._recovered = recovery.partitions()
        self._ends = {p: _End(found.leo, found.epoch_table) for p, found in self._recovered.items()}
        self._writer = writer
        self._tail = tail
        self._synchronous = synchronous
        self._size_limit_bytes = size_limit_bytes
        self._batch_bytes = batch_bytes
        self._reserve_bytes = reserve_bytes
        self._threads: list[RunningThread] = []
        self._on_failure: Callable[[Exception], None] = lambda _: None
        self._failure: Exception | None = None
        self._failure_lock = MemoryLock()
        self._closed = False
        self._grouping = False
        self._group: list[Item] = []
        self._bytes_queued = 0

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        cluster_uuid: bytes,
        durability: str,
        size_limit_bytes: int,
        file_bytes: int,
        batch_bytes: int,
        known_durable: Mapping[int, int] | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        io: FileIO | None = None,
    ) -> FileLog:
        """Recover the log in `directory`, which is created if missing.

        `known_durable` names every partition of this node, with an offset below which all entries were durable (what
        the store has applied; 0 for none). A partition that it omits is not reported as damaged unless the log has
        something of it. `durability` is "fsync" or "async". Damage is reported at each opening until `start` was
        called. Raises WrongIdentity for another cluster's log, LocalFault when the directory cannot be read or written.
        """
        assert len(cluster_uuid) == 16
        assert durability in ("fsync", "async")
        io = io or SystemFiles()
        synchronous = durability == "fsync"
        try:
            for name in io.names(directory):
                if is_unfinished(name):
                    io.unlink(directory / name)
            found = recover(io, directory, cluster_uuid, known_durable or {})
            tail = LogTail(io, directory, cluster_uuid, found.index, file_bytes=file_bytes)
            roll_first = False
            if found.index.files:
                tail.resume_last(found.durable, marked=found.marked)
                roll_first = bool(found.damage) or tail.end != found.end
            else:
                tail.roll()
            writer = LogWriter(
                io,
                directory,
                found.index,
                tail,
                synchronous=synchronous,
                size_limit_bytes=size_limit_bytes,
                file_bytes=file_bytes,
                batch_bytes=batch_bytes,
            )
        except OSError as error:
            raise LocalFault(f"the log in {directory} cannot be opened: {error}") from error
        writer.roll_first = roll_first
        return cls(
            io,
            found,
            writer,
            tail,
            synchronous=synchronous,
            size_limit_bytes=size_limit_bytes,
            batch_bytes=batch_bytes,
            reserve_bytes=reserve_bytes,
        )

    def recovered(self) -> Mapping[int, RecoveredPartition]:
        return self._recovered

    def start(
        self,
        on_durable: OnDurable,
        on_failure: Callable[[Exception], None],
        on_above_limit: OnAboveLimit = lambda: None,
    ) -> None:
        """See `Replog.start`. The caller has recorded all damage: from now on a damaged partition is what was recovered
        of it, and the next opening reports no damage."""
        assert not self._threads
        self._on_failure = on_failure
        self._writer.on_durable = on_durable
        self._writer.on_above_limit = on_above_limit
        work = [("replog", self._writer.run)]
        if not self._synchronous:
            work.append(("replog-sync", self._writer.sync_in_background))
        for name, run in work:
            self._threads.append(machine().thread(partial(self._guarded, run), name))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - any error ends the log's thread; the node must notice
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        fault = error
        if isinstance(error, OSError):
            fault = LocalFault(f"the log cannot be written: {error}; check the disk, then start the node again")
            fault.__cause__ = error
        with self._failure_lock:
            if self._failure is not None:
                return
            self._failure = fault
        self._on_failure(fault)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise LocalFault(f"the log has failed: {self._failure}") from self._failure
        if self._closed:
            raise LocalFault("the log is closed")
        assert self._threads, "the log is written to before it was started"

    def _end(self, partition: int) -> _End:
        end = self._ends.get(partition)
        if end is None:
            end = self._ends[partition] = _End(0, ())
        return end

    def has_space(self, size_bytes: int) -> bool:
        return not self._writer.shortage and self._fits(size_bytes, self._reserve_bytes)

    def _fits(self, size_bytes: int, reserve_bytes: int) -> bool:
        if self._bytes_queued + size_bytes + reserve_bytes <= self._writer.spendable_bytes:
            return True
        self.refresh_free_space()
        return False

    def has_space_for_barriers(self) -> bool:
        return self._writer.takes_barriers and self._fits(BARRIERS_BYTES, 0)

    @property
    def shortage(self) -> str:
        return self._writer.shortage

    def refresh_free_space(self) -> None:
        if self._failure is None and not self._closed and not self._writer.space_check_queued:
            self._writer.space_check_queued = True
            self._put(CheckSpace())

    def append(self, partition: int, entries: Sequence[Entry]) -> list[EncodedRun]:
        self._check_usable()
        if not entries:
            return []
        end = self._end(partition)
        base = end.leo
        leo = base + len(entries)
        assert list(map(_OFFSET, entries)) == list(range(base, leo)), f"entries do not follow on offset {base - 1}"
        wires = list(map(_WIRE, entries))
        lengths = list(map(len, wires))
        if max(lengths) > ENTRY_BYTES_MAX:
            raise TooLarge(f"an entry of {max(lengths)} bytes; the log takes {ENTRY_BYTES_MAX}")
        size_bytes = sum(lengths)
        if entries[0].kind != EntryKind.BARRIER and not self._fits(size_bytes, self._reserve_bytes // 2):
            raise OutOfStorage("the disk of the log is full: free some space, or lower replication.log_size")
        runs: list[EncodedRun] = []
        at = 0
        for until in self._run_ends(entries, lengths, size_bytes) if leo - base > 1 else (1,):
            epoch, first = entries[at].epoch, base + at
            previous_epoch = last_epoch(end.table)
            if epoch != previous_epoch:
                end.table = extended(end.table, epoch, first)
            buffers = encode_entries(
                EntryRunKind.ENTRIES, partition, epoch, previous_epoch, first, wires[at:until], lengths[at:until]
            )
            self._queue(
                Queued(partition, EntryRunKind.ENTRIES, epoch, first, until - at, sum(map(len, buffers)), buffers, ())
            )
            runs.append(EncodedRun(partition, epoch, first, until - at, buffers))
            at = until
        end.leo = leo
        return runs

    def append_encoded(self, runs: Sequence[EncodedRun]) -> None:
        self._check_usable()
        sizes = [run.size_bytes for run in runs]
        if not self._fits(sum(sizes), self._reserve_bytes // 2):
            raise OutOfStorage("the disk of the log is full: free some space, or lower replication.log_size")
        for run, size_bytes in zip(runs, sizes, strict=True):
            partition, epoch, base, count, buffers = run
            end = self._end(partition)
            assert base == end.leo, f"entries from {base} on do not follow on offset {end.leo - 1}"
            if epoch != last_epoch(end.table):
                end.table = extended(end.table, epoch, base)
            end.leo = base + count
            self._queue(Queued(partition, EntryRunKind.ENTRIES, epoch, base, count, size_bytes, buffers, ()))

    def _run_ends(self, entries: Sequence[Entry], lengths: list[int], size_bytes: int) -> Sequence[int]:
        """Return where to cut entries into runs: one epoch each, within a batch's size unless one entry is larger."""
        if size_bytes <= self._batch_bytes and len(set(map(_EPOCH, entries))) == 1:
            return (len(entries),)
        ends: list[int] = []
        size = 0
        for at, length in enumerate(lengths):
            if at and (size + length > self._batch_bytes or entries[at].epoch != entries[at - 1].epoch):
                ends.append(at)
                size = 0
            size += length
        return [*ends, len(entries)]

    def truncate(self, partition: int, to_offset: int, epoch: int) -> None:
        self._check_usable()
        end = self._end(partition)
        index = self._index.partitions.get(partition)
        start = index.start if index else 0
        assert start <= to_offset <= end.leo, f"truncation to {to_offset} outside of {start} to {end.leo}"
        end.table = truncated(end.table, to_offset)
        end.leo = to_offset
        run = encode_truncate(partition, epoch, last_epoch(end.table), to_offset)
        self._queue(Queued(partition, EntryRunKind.TRUNCATE, epoch, to_offset, 0, len(run), [run]))

    def restart(self, partition: int, at_offset: int, table: EpochTable) -> None:
        self._check_usable()
        end = self._end(partition)
        end.leo, end.table = at_offset, clipped(table, at_offset)
        run = encode_state(partition, at_offset, at_offset, end.table, EntryRunKind.START)
        self._queue(Queued(partition, EntryRunKind.START, 0, at_offset, 0, len(run), [run], end.table))

    def abandon(self, partition: int) -> None:
        self._put(Abandon(partition))

    @contextmanager
    def grouped(self) -> Iterator[None]:
        assert not self._grouping
        self._grouping = True
        try:
            yield
        finally:
            self._grouping = False
            group, self._group = self._group, []
            if group:
                self._writer.queue.put(group)

    def _queue(self, item: Queued) -> None:
        self._bytes_queued += item.size_bytes
        self._put(item)

    def _put(self, item: Item) -> None:
        if self._grouping:
            self._group.append(item)
        else:
            self._writer.queue.put([item])

    def leo(self, partition: int) -> int:
        end = self._ends.get(partition)
        return end.leo if end else 0

    def start_of(self, partition: int) -> int:
        index = self._index.partitions.get(partition)
        return index.start if index else 0

    def epoch_table(self, partition: int) -> EpochTable:
        end = self._ends.get(partition)
        if end is None:
            return ()
        index = self._index.partitions.get(partition)
        return clipped(end.table, index.start if index else 0)

    def read(self, partition: int, from_offset: int, to_offset: int, max_bytes: int) -> list[Entry]:
        entries: list[Entry] = []
        offset = from_offset
        left_bytes = max_bytes
        truncations = 0
        while offset < to_offset:
            with self._index.lock:
                index = self._index.partitions.get(partition)
                if index is None or offset >= index.leo:
                    break
                if not entries:
                    truncations = index.truncations
                elif truncations != index.truncations:
                    break
                if offset < index.start:
                    if entries:
                        break
                    raise LookupError(f"partition {partition}: offset {offset} is below the log's start {index.start}")
                place = index.locate(offset)
                file = self._index.file(place.sequence)
            assert file is not None
            end = min(to_offset, place.end)
            try:
                with LogFileReader(self._io, file) as reader:
                    for epoch, base, wires in reader.wires(partition, offset, end, place.position, place.copied):
                        for offset, wire in enumerate(wires, base):
                            if entries and len(wire) > left_bytes:
                                return entries
                            left_bytes -= len(wire)
                            entries.append(decoded(partition, epoch, offset, wire))
            except FileNotFoundError as error:
                with self._index.lock:
                    if self._index.file(place.sequence) is not None:
                        raise Corruption(f"log file {file.path} is gone") from error
            except OSError as error:
                kind = StorageShort if lacks_descriptors(error) else LocalFault
                raise kind(f"log file {file.path} cannot be read: {error}") from error
            else:
                offset = end
        return entries

    def trim(self, floors: Mapping[int, int], pins: Mapping[int, int] = NO_PINS) -> None:
        size_bytes = self._index.size_bytes()
        if self._failure is None and len(self._index.files) > 1 and size_bytes > self._size_limit_bytes:
            self._writer.queue.put([Trim(floors, pins)])

    def sync(self) -> None:
        if self._failure is not None:
            raise LocalFault(f"the log has failed: {self._failure}") from self._failure
        try:
            self._tail.sync()
        except OSError as error:
            self._fail(error)
            raise LocalFault(f"the log cannot be synced: {error}") from error

    def stats(self) -> LogStats:
        with self._index.lock:
            size_bytes, file_count = self._index.size_bytes(), len(self._index.files)
        return LogStats(
            size_bytes=size_bytes,
            file_count=file_count,
            entries_written=self._writer.entries_written,
            batches_written=self._writer.batches_written,
            fsync_count=self._tail.fsync_count,
            fsync_seconds=self._tail.fsync_seconds,
            free_bytes=self._writer.free_bytes,
            free_inodes=self._writer.free_inodes,
        )

    def close(self) -> None:
        """See `Replog.close`. Raises LocalFault, once, when not everything queued could be written."""
        if self._closed:
            return
        self._closed = True
        self._writer.closing.set()
        self._writer.queue.put([Stop()])
        for thread in self._threads:
            thread.join()
        self._tail.close()
        if self._failure is not None:
            error = self._failure
            raise error if isinstance(error, IsthmusError) else LocalFault(f"the log has failed: {error}") from error

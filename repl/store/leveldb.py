"""The node's store on LevelDB; the only module that imports plyvel (from Python 3.13 on its fork plyvel-next).

Turns apply steps into one LevelDB batch, moves the durable floors by checkpoints, serves reads, and knows after a
restart whether rows may be missing and a replay is due (docs/protocol.md H36). It must not decode objects, decide what
is applied, or sync on the write path. Row layout is in `rows`, positions in `positions`, floors in `checkpoint`.

    directory/rows        the database
    directory/floors.0|1  the durable floors, the boot id, the clean marker

A first failed write or sync is final (H34): LevelDB may have left half a record in its log, and the kernel may have
dropped pages that it called clean. The store then refuses writes until it is opened again; reads go on.

A shortage (`repl.shortage`) is a StorageShort, and what was to be written is written later. Where LevelDB could not
even create the log that a write was to begin, nothing was written. Any other one leaves LevelDB broken: half a record
in its log, or an error of its background work, which it repeats at each write. The rows stay readable; once the disk
takes files again, the database is closed and opened again, as by a start, which reads its logs and writes them as
tables.
"""

from __future__ import annotations

import os
import re
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import structlog
from xxhash import xxh64

if sys.version_info < (3, 13):
    import plyvel
else:  # plyvel has no wheels for it; this fork, with the same interface, has
    import plyvel_next as plyvel

from isthmus.repl.log_limit import LogLimit
from isthmus.repl.machine import MemoryLock, ThreadEvent, machine, monotonic_s
from isthmus.repl.model.entry import NO_OFFSET
from isthmus.repl.model.errors import Corruption, LocalFault, StorageShort
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.shortage import DESCRIPTORS, NO_DESCRIPTORS, SHORTAGES, is_shortage, lacks_descriptors
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store import rows
from isthmus.repl.store.batch import fill
from isthmus.repl.store.checkpoint import FLOORS_NAME, PROBE_NAME, Disk, Floors, encode_floors, read_floors, sync_rows
from isthmus.repl.store.compaction import compact_when_idle, size_of
from isthmus.repl.store.key_filter import SLOT_MASK
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.port import (
    AppliedPosition,
    Change,
    Cursor,
    DamagedChange,
    ListedKey,
    ListedName,
    PartitionStep,
)
from isthmus.repl.store.positions import End, PositionTable
from isthmus.repl.store.recovery import (
    ROWS_NAME,
    check_identity,
    damaged,
    found_marks,
    found_progress,
    found_remembered,
    is_empty,
    make_new,
)
from isthmus.repl.store.request_dedup import WINDOW_OFFSETS
from isthmus.repl.store.row_source import Source
from isthmus.repl.store.rows import START, Prefixes
from isthmus.repl.store.scans import scan_key_rows
from isthmus.repl.store.state_transfer import LevelTransfers
from isthmus.repl.store.time_index import THIN_EVERY_S, offset_at, seconds_around, thinning
from isthmus.repl.store.write_stalls import WriteStallPredictor

log = structlog.get_logger(__name__)

SHORTAGE_PAUSE_S: Final = 0.25
"""Pause between two tries of a write that waits for descriptors, inodes or space. What waits had been accepted before:
the node refuses writes meanwhile, and offers its leaderships to others."""

DRAIN_PAUSE_S: Final = 0.001
"""Pause between two looks whether calls into LevelDB have ended, before it is closed under its readers."""

_REASONS: Final = frozenset(os.strerror(number) for number in SHORTAGES)
_NO_DESCRIPTOR: Final = frozenset(os.strerror(number) for number in NO_DESCRIPTORS)
_IO_ERROR: Final = re.compile(r"(?P<path>/.*): (?P<why>[^:]+)$")
"""LevelDB's words for an error of the system, behind its own: the file, and the system's text."""

BLOOM_FILTER_BITS: Final = 10
"""Bits per key in each table's filter: about one absent key in a hundred costs a block read."""

COMPRESSION: Final = None
"""Tables are not compressed. With 1 KB values, writing and compacting an entry costs 20 to 25 us of CPU; with snappy 55
us for text, which then takes half the disk, and 38 us for bytes that do not compress. Where disk is dearer than CPU, a
file system that compresses does so outside the process."""

SPARE_BATCHES: Final = 4
"""Written batches kept for reuse, which avoids growing new ones (0.8 us an entry in steps of 100): one for the writer,
a few more for a thread that prepares ahead of it."""

SPARE_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Larger batches are not kept for reuse: one large step must not hold its memory for ever."""


class OpenDatabase(Protocol):
    """Opens a LevelDB database: `plyvel.DB`, or what has its interface and raises its errors."""

    def __call__(self, name: str, **options: Any) -> Any:
        """The database in the directory `name`; `options` are plyvel's. Raises plyvel.Error."""


PLYVEL: Final[OpenDatabase] = plyvel.DB
"""LevelDB itself."""


class Closed:
    """Stands for a database that is closed, and for what was open in it: each call raises StorageShort."""

    def __init__(self, why: str) -> None:
        self._why = why

    def get(self, *_: object, **__: object) -> bytes | None:
        raise StorageShort(self._why)

    iterator = snapshot = get_property = compact_range = get

    def close(self) -> None:
        """Nothing is open."""


class Scan:
    """An iterator of the database; `busy` while a call of it is inside of LevelDB."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy = True


class ReadGate:
    """The calls that are inside of LevelDB, which would crash if it were closed under them. A caller appends to
    `inside`, or makes its scan busy, before it looks which driver to call, and undoes that behind the call; each is
    atomic."""

    def __init__(self) -> None:
        self.inside: list[None] = []
        self.scans: set[Scan] = set()
        self._lock = MemoryLock()
        self._views: weakref.WeakSet[LevelDbView] = weakref.WeakSet()

    def add(self, view: LevelDbView) -> None:
        """A database or a snapshot of it is read."""
        with self._lock:
            self._views.add(view)

    def shut(self, why: str) -> None:
        """Let each later call of the views raise StorageShort, and wait until no earlier one is inside."""
        self._close_views(why)
        while self.inside or any(scan.busy for scan in list(self.scans)):
            machine().sleep(DRAIN_PAUSE_S)
        self._close_views(why)  # snapshots that were being made

    def _close_views(self, why: str) -> None:
        with self._lock:
            for view in self._views:
                view.use(Closed(why))


class LevelDbView:
    """A `Source` on a LevelDB database or a snapshot of it. Translates the driver's errors, checks blocks from disk
    against their checksums, and scans without filling the block cache. All reads raise StorageShort while the database
    is closed; those of a snapshot, and of a scan that began before, for ever."""

    def __init__(self, driver: Any, directory: Path, gate: ReadGate | None = None) -> None:
        self.directory = directory
        self._gate = gate = gate or ReadGate()
        self._inside, self._scans = gate.inside, gate.scans
        self.use(driver)
        gate.add(self)

    def use(self, driver: Any) -> None:
        """Read from `driver` from now on."""
        self._driver = driver
        self._driver_get = driver.get

    def _opened_again(self) -> StorageShort:
        return StorageShort(f"the store in {self.directory} was opened again meanwhile")

    def get(self, name: bytes) -> bytes | None:
        """The value of the row `name`, or None."""
        inside = self._inside
        inside.append(None)
        try:
            value: bytes | None = self._driver_get(name, verify_checksums=True)
        except plyvel.Error as error:
            raise fault(error, self.directory) from error
        finally:
            inside.pop()
        return value

    def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], bytes | None, None]:
        """The rows [start, stop), in order, from a snapshot taken at the first one; see Source."""
        self._scans.add(scan := Scan())
        try:
            driver = self._driver
            with driver.iterator(start=start, verify_checksums=True, fill_cache=False) as iterator:
                for row in iterator:
                    if row[0] >= stop:
                        return
                    scan.busy = False
                    target = yield row
                    scan.busy = True
                    if self._driver is not driver:
                        raise self._opened_again()
                    if target is not None:
                        iterator.seek(target)
        except plyvel.Error as error:
            raise fault(error, self.directory) from error
        finally:
            self._scans.discard(scan)
        raise damaged("a table cannot be read", self.directory)

    def names(self, start: bytes, stop: bytes) -> Generator[bytes, None, None]:
        """The names of the rows [start, stop), in order, from a snapshot taken at the first one."""
        self._scans.add(scan := Scan())
        try:
            driver = self._driver
            with driver.iterator(start=start, include_value=False, verify_checksums=True, fill_cache=False) as iterator:
                for name in iterator:
                    if name >= stop:
                        return
                    scan.busy = False
                    yield name
                    scan.busy = True
                    if self._driver is not driver:
                        raise self._opened_again()
        except plyvel.Error as error:
            raise fault(error, self.directory) from error
        finally:
            self._scans.discard(scan)
        raise damaged("a table cannot be read", self.directory)

    @contextmanager
    def seeking(self, stop: bytes) -> Iterator[Callable[[bytes], tuple[bytes, bytes] | None]]:
        """See Source."""
        self._scans.add(scan := Scan())
        try:
            driver = self._driver
            with driver.iterator(verify_checksums=True, fill_cache=False) as iterator:

                def first_from(name: bytes) -> tuple[bytes, bytes] | None:
                    scan.busy = True
                    try:
                        if self._driver is not driver:
                            raise self._opened_again()
                        iterator.seek(name)
                        row: tuple[bytes, bytes] | None = next(iterator, None)
                    finally:
                        scan.busy = False
                    if row is None:
                        raise damaged("a table cannot be read", self.directory)
                    return row if row[0] < stop else None

                scan.busy = False
                yield first_from
        except plyvel.Error as error:
            raise fault(error, self.directory) from error
        finally:
            self._scans.discard(scan)

    def close(self) -> None:
        """Release a snapshot."""
        self._driver.close()

    def open_snapshot(self) -> LevelDbView:
        """A snapshot of the rows, until it is closed."""
        self._inside.append(None)
        try:
            return LevelDbView(self._driver.snapshot(), self.directory, self._gate)
        finally:
            self._inside.pop()

    @contextmanager
    def snapshot(self) -> Iterator[Source]:
        """A snapshot of the rows, for as long as the context is open."""
        with closing(self.open_snapshot()) as view:
            yield view


class Prepared(NamedTuple):
    """A batch that is not written yet, the positions of its partitions behind it, the database that it was made for,
    and about how long it is."""

    batch: Any
    ends: tuple[End, ...]
    database: Any
    size_bytes: int


class RowChanges:
    """Changes of rows for one batch, bound to no database: it outlives that it is opened again."""

    def __init__(self) -> None:
        self.changes: list[tuple[bytes, bytes | None]] = []

    def put(self, name: bytes, value: bytes) -> None:
        """Write the row `name`."""
        self.changes.append((name, value))

    def delete(self, name: bytes) -> None:
        """Delete the row `name`, if it is there."""
        self.changes.append((name, None))

    def put_into(self, batch: Any) -> None:
        """Put the changes into the database's own batch."""
        for name, value in self.changes:
            if value is None:
                batch.delete(name)
            else:
                batch.put(name, value)


class LevelStore:
    """`repl.store.port.Store` on one LevelDB database. Open it with `LevelStore.open`.

    Writes: `write`, or `prepare` by one thread and `commit` by one thread, in the same order. plyvel releases the
    interpreter for every row that it takes, so a thread that prepares beside a busy loop waits a switch interval every
    few rows; prepared on the loop itself, only the one long call is left to the writer thread. `checkpoint` may run in
    a third thread. Reads come from any thread, but none may run during `close`: LevelDB would crash.
    """

    def __init__(
        self,
        directory: Path,
        db: Any,
        progress: PositionTable,
        remembered: MemoryIndexes,
        slots: SlotFile,
        floors: Floors,
        boot_id: str,
        disk: Disk,
        reopen: Callable[[], Any],
        write_buffer_bytes: int,
    ) -> None:
        """For `open` only. `reopen` opens the rows."""
        self._gate = ReadGate()
        self._view = view = LevelDbView(db, directory, self._gate)
        self._source: Source = view
        self._reopen_driver = reopen
        self._write_buffer_bytes = write_buffer_bytes
        self._progress = progress
        self._remembered = remembered
        self.before_floors: Callable[[], None] = lambda: None
        """See the port."""
        self._prefixes: dict[int, Prefixes] = {}
        self._head = (b"", rows.bucket_head(b""))
        """The bucket of the last read, and its bytes in a row's name; replaced as a whole, by any thread."""
        self._directory = directory
        self._db = db
        self._slots = slots
        self._floors = floors
        self._boot_id = boot_id
        self._disk = disk
        self._needs_replay = progress.replaying()
        self._thinned_at_s: dict[int, int] = {}
        self._spare_batches: list[Any] = []
        self._stalls = WriteStallPredictor(self._property, monotonic_s, write_buffer_bytes)
        self._checkpointing = machine().lock()
        self._writing = machine().lock()
        """Held while LevelDB writes a batch, and while it is closed and opened again."""
        self._preparing = machine().lock()
        """Held while a batch is filled: none is while the database is closed."""
        self._failure = ""
        self._broken = ""
        """Why LevelDB is to be opened again, before anything is written: what it was short of, for operators; ""."""
        self._unsynced = False
        """It is broken because a sync failed: the kernel may have dropped rows."""
        self._shut = ""
        """`_broken`, from the close to the next open; else ""."""
        self._before: int | None = None
        """`_digest` before the close, if it is to be compared."""
        self.shortage = ""
        self._size_bytes = 0
        self._log_limit = LogLimit()
        self._closed = False
        self.closing = machine().event()
        self.transfers = LevelTransfers(PatientWriter(self), PatientSource(view, self.closing), progress, remembered)

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        cluster_uuid: bytes,
        write_buffer_bytes: int,
        block_cache_bytes: int,
        boot_id: str,
        request_window_offsets: int = WINDOW_OFFSETS,
        disk: Disk | None = None,
        database: OpenDatabase = PLYVEL,
    ) -> LevelStore:
        """The store in `directory`, made if it is not there. Blocks while LevelDB reads its logs.

        `request_window_offsets`: how many of a partition's last offsets have their request ids remembered. `boot_id`
        identifies this run of the machine (Linux: /proc/sys/kernel/random/boot_id). `database` opens the rows. Raises
        Corruption, WrongIdentity, and LocalFault for a directory that is in use, unwritable or of another version.
        """
        disk = disk or Disk()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalFault(f"cannot make the store's directory {directory}: {error.strerror}") from error
        with suppress(OSError):
            (directory / PROBE_NAME).unlink(missing_ok=True)
        slots = SlotFile(directory, FLOORS_NAME)
        try:
            floors = read_floors(slots)
        except Corruption as error:
            raise damaged(str(error), directory) from error
        whole = floors is None or floors.clean or floors.boot_id == boot_id
        options = {"write_buffer_size": write_buffer_bytes, "lru_cache_size": block_cache_bytes}
        try:
            if not whole:
                # A log that a power loss tore is read up to the damage, and a replay writes the rest again; a strict
                # open would refuse it. This open moves its rows into tables.
                _open_driver(database, directory, paranoid_checks=False, **options).close()

            def reopen() -> Any:
                return _open_driver(database, directory, paranoid_checks=True, **options)

            db = reopen()
        except plyvel.Error as error:
            raise fault(error, directory) from error
        try:
            view = LevelDbView(db, directory)
            if not check_identity(view, directory, cluster_uuid, floors, is_empty=is_empty(db)):
                floors = Floors(boot_id, clean=False)
                make_new(db, directory, cluster_uuid, slots, floors, disk)
            assert floors is not None
            progress = found_progress(view, directory, floors, trusted=whole)
            remembered = found_remembered(view, directory, progress, request_window_offsets)
            store = cls(directory, db, progress, remembered, slots, floors, boot_id, disk, reopen, write_buffer_bytes)
            store.transfers.reopened(trusted=whole)
            if not store._needs_replay:
                store._write_floors(boot_id)
        except plyvel.Error as error:
            db.close()
            raise fault(error, directory) from error
        except OSError as error:
            db.close()
            raise LocalFault(f"cannot write the store in {directory}: {error.strerror}") from error
        except BaseException:
            db.close()
            raise
        return store

    def applied_offsets(self) -> Mapping[int, int]:
        """The applied offset of every partition that has rows here."""
        return self._progress.applied_offsets()

    def applied(self, partition: int) -> AppliedPosition:
        """The partition's applied position; during a replay the one found at open, until the replay has passed it."""
        return self._progress.applied(partition)

    def durable_floor(self, partition: int) -> int:
        """Offset up to which the last finished checkpoint made the partition's rows durable."""
        return self._progress.floor(partition)

    def needs_replay(self) -> bool:
        """See the port."""
        return self._needs_replay

    def lacks_rows(self, partition: int) -> bool:
        """See the port."""
        return self._progress.replayed(partition) is not None

    def replay_finished(self) -> None:
        """See the port."""
        if self._progress.replaying():
            return
        with self._checkpointing:
            self._refuse_after_failure()
            self.transfers.sweep()
            self._write_floors(self._boot_id)
            self._needs_replay = False

    def write(self, steps: Sequence[PartitionStep]) -> None:
        """Apply the steps in one LevelDB batch, unsynced. Entries follow the partition's last ones; in a replay they
        begin at its floor (asserted). Raises LocalFault when the disk fails, and on every later write."""
        self.commit(self.prepare(steps))

    def prepare(self, steps: Sequence[PartitionStep]) -> Prepared:
        """The batch that applies the steps. All prepared batches must be committed, in order. If it raises, nothing is
        prepared. Raises StorageShort while the database is closed."""
        self._refuse_after_failure()
        with self._preparing:
            if self._shut:
                raise StorageShort(self._shut)
            batch = self._spare_batches.pop() if self._spare_batches else self._db.write_batch()
            before = self._progress.positions_of([step.partition for step in steps])
            try:
                ends = fill(batch, steps, self._progress, self._prefixes_of, self._remembered)
            except BaseException:
                self._progress.take_back(before)  # so that the steps may be prepared again, one by one
                raise
            return Prepared(batch, ends, self._db, batch.approximate_size())

    def takes_at_once(self, prepared: Prepared) -> bool:
        """See the port; predicted by `repl.store.write_stalls`."""
        return not self.shortage and self._stalls.takes(prepared.size_bytes)

    def _property(self, name: bytes) -> bytes:
        """A number of LevelDB's, too high for any write on the loop while it is closed."""
        self._gate.inside.append(None)
        try:
            value: bytes = b"99" if self._shut else self._db.get_property(name)
        finally:
            self._gate.inside.pop()
        return value

    def commit(self, prepared: Prepared, *, patient: bool = True) -> None:
        """Write a prepared batch atomically. Raises LocalFault; StorageShort as `write_batch`, and the batch can be
        committed again."""
        batch, ends, database, size_bytes = prepared
        began_s = machine().monotonic_s()
        if patient:
            self._write_batch(batch, database, patient=True)
        else:
            self._write_at_once(batch, database)
        self._stalls.wrote(size_bytes, machine().monotonic_s() - began_s)
        self._progress.wrote(ends)
        if size_bytes <= SPARE_BATCH_BYTES_MAX and len(self._spare_batches) < SPARE_BATCHES:
            with self._preparing:
                if database is self._db and not self._shut:
                    batch.clear()
                    self._spare_batches.append(batch)

    def checkpoint(self) -> None:
        """Sync, then move the durable floors to the positions written before; does nothing when nothing was written.

        Also thins the time marks of one partition, and lets the key filter read on. Raises LocalFault when the disk
        fails, and on every later write."""
        with self._checkpointing:
            self._refuse_after_failure()
            self.mend()
            self._write_floors(self._floors.boot_id)
            self._thin_one_partition()
            self._remembered.names.learn(self._source)

    def compact_when_idle(self, *, idle: bool) -> None:
        """See the port."""
        with self._checkpointing:
            if self._closed or DESCRIPTORS.short or self.shortage:  # an error of LevelDB's own work would break it
                return
            self._gate.inside.append(None)
            try:
                if not self._shut:
                    compact_when_idle(self._db, self._directory / ROWS_NAME, idle=idle)
            finally:
                self._gate.inside.pop()

    def size_bytes(self) -> int:
        """Size of the database's files, including obsolete ones that LevelDB has not deleted yet."""
        try:
            self._size_bytes = size_of(self._directory / ROWS_NAME)
        except OSError as error:
            if not lacks_descriptors(error):
                raise
        return self._size_bytes

    def close(self) -> None:
        """Checkpoint, close, and mark the stop as clean, unless the store has failed or a replay is unfinished.

        Idempotent. Blocks; no other method may be running. Raises LocalFault when the floors could not be made durable;
        the store is closed nevertheless."""
        self.closing.set()
        with self._checkpointing:
            if self._closed:
                return
            self._closed = True
            try:
                if not self._failure and not self._broken:
                    self._write_floors(self._floors.boot_id)
            finally:
                with self._writing:
                    self._spare_batches.clear()
                    self._db.close()
            try:
                if not self._failure and not self._broken and not self._needs_replay:
                    self._write_floors(self._floors.boot_id, clean=True)
            finally:
                self._slots.close()

    # -- reads, from any thread -------------------------------------------------------------------------------

    def key_row(self, partition: int, key_hash: int, bucket: bytes, key: bytes) -> bytes | None:
        """The encoded key row, or None. Raises Corruption, LocalFault, as all reads do."""
        prefix = (self._prefixes.get(partition) or self._add_prefixes(partition)).key
        bucket_of_head, head = self._head
        if bucket_of_head != bucket:
            head = rows.bucket_head(bucket)
            self._head = bucket, head
        name = prefix + (key_hash >> 44).to_bytes(3, "big") + head + key
        names = self._remembered.names
        if names.whole and not names.slots[hash(name) & SLOT_MASK]:
            return None
        return self._source.get(name)

    def object(self, partition: int, bucket: bytes, key: bytes) -> bytes | None:
        """The canonical object bytes, or None."""
        prefix = (self._prefixes.get(partition) or self._add_prefixes(partition)).object
        return self._source.get(prefix + rows.bucket_head(bucket) + key)

    def changes(self, partition: int, from_offset: int, limit: int) -> list[Change]:
        """Up to `limit` change rows at offsets >= `from_offset`, in offset order, from one snapshot. Raises
        DamagedChange at one that cannot be decoded."""
        prefix = self._prefixes_of(partition).change
        at = len(prefix)
        number = rows.U64.unpack_from
        decode = rows.decode_change
        with closing(self._source.scan(prefix + rows.U64.pack(from_offset), rows.after_prefix(prefix))) as scan:
            found: list[Change] = []
            for name, value in islice(scan, limit):
                offset = number(name, at)[0]
                try:
                    found.append(decode(offset, value))
                except Corruption as error:
                    raise DamagedChange(f"partition {partition}: {error}", offset, found) from error
            return found

    def cursor(self, partition: int, queue: bytes) -> Cursor:
        """The queue's cursor rows in this partition; `entry_offset` is NO_OFFSET while there is no CURSOR entry."""
        prefixes = self._prefixes_of(partition)
        soft = self._source.get(prefixes.soft + queue)
        row = self._source.get(prefixes.cursor + queue)
        if row is None:
            return Cursor(NO_OFFSET, None, soft)
        offset, payload = rows.decode_cursor(row)
        return Cursor(offset, payload, soft)

    def request_offset(self, partition: int, key_hash: int, request_id: bytes) -> int | None:
        """The offset of the entry that carried this request for the key of that hash, if it is remembered."""
        return self._remembered.requests.offset_of(partition, key_hash, request_id)

    def reaped_clocks(self, partition: int) -> Mapping[tuple[bytes, bytes], bytes]:
        """(bucket, key) -> encoded clock of its reaped tombstone, for the partition's last REAP entries."""
        return self._remembered.reaped.clocks(partition)

    def reach(self, partition: int) -> int:
        """Readers have seen entries below this offset only: a batch is prepared before it is written."""
        return self._progress.next(partition).offset

    def offset_at(self, partition: int, time_ms: int) -> int:
        """See the port."""
        newest_s = self._progress.newest_mark_s(partition)
        applied = self._progress.applied(partition).offset
        return offset_at(self._source, self._prefixes_of(partition).mark, newest_s, applied, time_ms)

    def seconds_around(self, partition: int, offset: int) -> tuple[int | None, int | None]:
        """See the port."""
        newest_s = self._progress.newest_mark_s(partition)
        return seconds_around(self._source, self._prefixes_of(partition).mark, newest_s, offset)

    def list_keys(
        self, partition: int, bucket: bytes | None, after: ListedName | None, prefix: bytes = b""
    ) -> Iterator[ListedKey]:
        """Keys of a bucket (or all) with their encoded key rows, in (bucket, key) order, tombstones included; the
        snapshot is taken at the first one. See the port. Close the iterator when done early."""
        prefixes = self._prefixes_of(partition)
        start = prefixes.object + (rows.bucket_start(prefix) if bucket is None else rows.bucket_head(bucket) + prefix)
        stop = rows.after_prefix(start)
        if after is not None:
            behind = prefixes.object + rows.bucket_head(after[0])
            start = max(start, rows.after_prefix(behind) if after[1] is None else behind + after[1] + b"\0")
        at = len(prefixes.object)
        with self._source.snapshot() as snapshot, closing(snapshot.names(start, stop)) as names:
            for name in names:
                tail = name[at:]
                listed_bucket, key = rows.split_tail(tail)
                segment = segment_of(key_hash(listed_bucket, key))
                row = snapshot.get(prefixes.key + rows.segment_name(segment) + tail)
                if row is None:
                    raise Corruption(f"the object {listed_bucket!r}/{key!r} of partition {partition} has no key row")
                yield ListedKey(listed_bucket, key, row)

    def key_rows(
        self, partition: int, from_segment: int, to_segment: int
    ) -> Generator[tuple[int, bytes, bytes, bytes], None, None]:
        """(segment, bucket, key, encoded key row) for segments [from, to), in segment order; the snapshot is
        taken at the first one. Close the iterator when done early."""
        return scan_key_rows(self._source, self._prefixes_of(partition).key, from_segment, to_segment)

    def _prefixes_of(self, partition: int) -> Prefixes:
        return self._prefixes.get(partition) or self._add_prefixes(partition)

    def _add_prefixes(self, partition: int) -> Prefixes:
        made = self._prefixes[partition] = rows.prefixes(partition)
        return made

    # -- floors and failures ----------------------------------------------------------------------------------

    def _write_floors(self, boot_id: str, *, clean: bool = False) -> None:
        """Take the written positions, sync the rows, then write the positions as floors. The caller holds the lock."""
        noted = Floors(boot_id, clean, self._progress.written())
        if noted != self._floors:
            self.before_floors()
            self.sync_rows()
            try:
                self._disk.write_slot(self._slots, encode_floors(noted))
            except StorageShort:
                raise  # the floors stay where they are
            except (OSError, LocalFault) as error:
                raise self._failed(error) from error
            self._floors = noted
        self._progress.checkpointed(noted.positions)

    def _thin_one_partition(self) -> None:
        for partition in self._floors.positions:
            newest_s = self._progress.newest_mark_s(partition)
            if newest_s - self._thinned_at_s.get(partition, 0) < THIN_EVERY_S:
                continue
            self._thinned_at_s[partition] = newest_s
            marks, batch = self._prefixes_of(partition).mark, RowChanges()
            self.write_batch(thinning(self._source, marks, newest_s, batch), patient=False)
            return

    def write_batch(self, batch: RowChanges, *, patient: bool = True) -> None:
        """Write changes atomically. Raises LocalFault, then and on every later write. While LevelDB is short of
        something it waits, until the store is closed; if not `patient` it raises StorageShort instead, and the batch
        may be written later: it is there as a whole, or not at all."""
        self._write_batch(batch, None, patient=patient)

    def _write_batch(self, batch: Any, database: Any, *, patient: bool) -> None:
        """`write_batch`, also of LevelDB's own batch, made for `database`."""
        if not patient and self._broken:
            raise StorageShort(self._broken)  # the thread that opens it again may hold the lock for long
        while True:
            try:
                with self._writing:
                    self._refuse_after_failure()
                    if self._broken:
                        self._open_again()
                    self._write(batch, database)
            except StorageShort as error:
                self._note_short(error)
                if not patient or self.closing.is_set():
                    raise
                self.closing.wait(SHORTAGE_PAUSE_S)
            else:
                if self.shortage:
                    self.shortage = ""
                return

    def _write_at_once(self, batch: Any, database: Any) -> None:
        """`_write_batch` that waits for no thread: one that opens the database again may take long. Raises StorageShort
        when one writes."""
        if not self._writing.acquire(blocking=False):
            raise StorageShort(self._broken or "a thread writes to the store")
        try:
            self._refuse_after_failure()
            if self._broken:
                raise StorageShort(self._broken)
            self._write(batch, database)
            self.shortage = ""
        except StorageShort as error:
            self._note_short(error)
            raise
        finally:
            self._writing.release()

    def _write(self, batch: Any, database: Any) -> None:
        if database is not self._db:
            fresh = self._db.write_batch()
            if database is None:
                batch.put_into(fresh)
            else:
                fresh.append(batch)
            batch = fresh
        try:
            batch.write()
        except plyvel.Error as error:
            if short := creation_shortage(words(error)):
                raise StorageShort(short) from error
            if why := _shortage(words(error)):
                raise self._breaks(f"the store cannot be written: {why}") from error
            raise self._failed(error) from error

    def _note_short(self, error: StorageShort) -> None:
        self.shortage = str(error)
        if (suppressed := self._log_limit.due("short")) is not None:
            log.warning("storage.short", error=str(error), suppressed=suppressed)

    def sync_rows(self) -> None:
        """Sync all written rows. Raises LocalFault, then and on every later write; StorageShort, and they are synced
        by a later call."""
        self._refuse_after_failure()
        if self._broken:
            raise StorageShort(self._broken)
        try:
            sync_rows(self._disk, self._directory / ROWS_NAME)
        except StorageShort:
            raise  # no sync failed: the next checkpoint begins with all of them
        except OSError as error:
            if is_shortage(error):
                self._unsynced = True
                raise self._breaks(f"the store cannot be synced: {error.strerror}") from error
            raise self._failed(error) from error

    # -- opening again after a shortage ----------------------------------------------------------------------

    def _breaks(self, why: str) -> StorageShort:
        self._broken = self.shortage = why
        return StorageShort(why)

    def mend(self) -> None:
        """Open the database again, if that is due. Raises StorageShort, LocalFault."""
        if self._broken:
            with self._writing:
                self._refuse_after_failure()
                self._open_again()

    def _open_again(self) -> None:
        """Close the database and open it again, if the disk takes files; all that was written is there, or the store
        has failed. The caller holds `_writing`. Raises StorageShort and LocalFault."""
        if not self._broken:
            return
        if DESCRIPTORS.short:
            raise StorageShort(self._broken)
        try:
            self._disk.probe(self._directory, 2 * self._write_buffer_bytes)
        except StorageShort as error:
            raise StorageShort(self._broken) from error
        except OSError as error:
            raise self._failed(error) from error
        before = self._digest() if self._unsynced and not self._shut else None
        if not self._shut:
            log.warning("store.opens_again", why=self._broken)
            with self._preparing:
                self._shut = f"{self._broken}; it is being opened again"
                self._spare_batches.clear()
            self._gate.shut(self._shut)
            self._db.close()
            self._before = before
        try:
            db = self._reopen_driver()
        except plyvel.Error as error:
            if why := _shortage(words(error)):
                raise StorageShort(f"the store cannot be opened again: {why}") from error
            raise self._failed(error) from error
        self._db = db
        self._view.use(db)
        found = found_progress(self._view, self._directory, self._floors, trusted=True).applied_offsets()
        missing = [p for p, position in self._progress.written().items() if found.get(p, 0) < position.offset]
        if missing or (self._before is not None and self._digest() != self._before):
            raise self._failed(LocalFault("rows that a sync did not bring to disk are lost"))
        self._stalls = WriteStallPredictor(self._property, monotonic_s, self._write_buffer_bytes)
        self._unsynced, self._before = False, None
        self._broken = self._shut = self.shortage = ""
        log.info("store.open_again")

    def _digest(self) -> int:
        """Of the change rows above the floors, and of all rows of cursors: a batch that is missing, and was not undone
        by a later one, is missing in them."""
        digest = xxh64()
        for partition in sorted(self._progress.applied_offsets()):
            prefixes, floor = self._prefixes_of(partition), self._floors.positions.get(partition, START).offset
            for start, prefix in (
                (prefixes.change + rows.U64.pack(floor), prefixes.change),
                (prefixes.cursor, prefixes.cursor),
                (prefixes.soft, prefixes.soft),
                (prefixes.applied, prefixes.applied),
            ):
                with closing(self._source.scan(start, rows.after_prefix(prefix))) as scan:
                    for name, value in scan:
                        digest.update(name + value)
        return digest.intdigest()

    # -- failures --------------------------------------------------------------------------------------------

    def _refuse_after_failure(self) -> None:
        if self._failure:
            raise LocalFault(self._failure)

    def _failed(self, error: Exception) -> LocalFault:
        self._failure = f"the store in {self._directory} refuses writes until the node is started again: {error}"
        if isinstance(error, plyvel.CorruptionError):
            return fault(error, self._directory)
        return LocalFault(self._failure)


Outcome = TypeVar("Outcome")


def _patiently(closing: ThreadEvent, act: Callable[[], Outcome]) -> Outcome:
    """The result of `act`, tried again while it raises StorageShort, until the store closes."""
    while True:
        try:
            return act()
        except StorageShort:
            if closing.wait(SHORTAGE_PAUSE_S):
                raise


class PatientWriter:
    """`repl.store.state_transfer.RowWriter`: its steps wait while the store is short, since half of one cannot be told
    from none."""

    def __init__(self, store: LevelStore) -> None:
        self._store = store

    def new_batch(self) -> RowChanges:
        """See RowWriter."""
        return RowChanges()

    def write_batch(self, batch: RowChanges) -> None:
        """See RowWriter."""
        self._store.write_batch(batch)

    def sync_rows(self) -> None:
        """See RowWriter."""
        store = self._store

        def sync() -> None:
            store.mend()
            store.sync_rows()

        _patiently(store.closing, sync)

    def checkpoint(self) -> None:
        """See RowWriter."""
        _patiently(self._store.closing, self._store.checkpoint)


class PatientSource:
    """The rows as a state transfer reads them: while the database is closed it waits, and goes on where it was."""

    def __init__(self, view: LevelDbView, closing: ThreadEvent) -> None:
        self._view = view
        self._closing = closing

    def get(self, name: bytes) -> bytes | None:
        """See Source."""
        return _patiently(self._closing, lambda: self._view.get(name))

    def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], bytes | None, None]:
        """See Source."""
        while True:
            try:
                with closing(self._view.scan(start, stop)) as scan:
                    row = next(scan, None)
                    while row is not None:
                        target = yield row
                        start = row[0] + b"\0" if target is None else target
                        row = next(scan, None) if target is None else _sent(scan, target)
            except StorageShort:
                if self._closing.wait(SHORTAGE_PAUSE_S):
                    raise
            else:
                return

    def names(self, start: bytes, stop: bytes) -> Generator[bytes, None, None]:
        """See Source."""
        while True:
            try:
                with closing(self._view.names(start, stop)) as names:
                    for name in names:
                        start = name + b"\0"
                        yield name
            except StorageShort:
                if self._closing.wait(SHORTAGE_PAUSE_S):
                    raise
            else:
                return

    def seeking(self, stop: bytes) -> AbstractContextManager[Callable[[bytes], tuple[bytes, bytes] | None]]:
        """See Source."""
        return self._view.seeking(stop)

    def snapshot(self) -> AbstractContextManager[Source]:
        """See Source."""
        return self._view.snapshot()

    def open_snapshot(self) -> LevelDbView:
        """See `LevelDbView`; raises StorageShort while the database is closed."""
        return self._view.open_snapshot()


def _sent(scan: Generator[tuple[bytes, bytes], bytes | None, None], target: bytes) -> tuple[bytes, bytes] | None:
    try:
        return scan.send(target)
    except StopIteration:
        return None


class RecoveredRows(NamedTuple):
    """State from the rows of a copied store: applied offsets, and the partitions that were in a state transfer."""

    applied: Mapping[int, int]
    in_transfer: frozenset[int]


def recover_copy(
    directory: Path, cluster_uuid: bytes, floors: Floors, *, database: OpenDatabase = PLYVEL
) -> RecoveredRows:
    """Open the database of a copied store once: LevelDB reads its logs, deletes what it does not need, and checks that
    nothing is missing. `floors` were read before the copy was made. Raises Corruption, WrongIdentity, LocalFault."""
    try:
        db = _open_driver(database, directory, paranoid_checks=True)
    except plyvel.Error as error:
        raise fault(error, directory) from error
    try:
        view = LevelDbView(db, directory)
        if not check_identity(view, directory, cluster_uuid, floors, is_empty=is_empty(db)):
            return RecoveredRows({}, frozenset())
        progress = found_progress(view, directory, floors, trusted=False)
        return RecoveredRows(progress.applied_offsets(), frozenset(found_marks(view)))
    except plyvel.Error as error:
        raise fault(error, directory) from error
    finally:
        db.close()


def _open_driver(database: OpenDatabase, directory: Path, **options: Any) -> Any:
    return database(
        os.fspath(directory / ROWS_NAME),
        create_if_missing=True,
        bloom_filter_bits=BLOOM_FILTER_BITS,
        compression=COMPRESSION,
        **options,
    )


def fault(error: Exception, directory: Path) -> LocalFault:
    """The error for one of the driver's."""
    if isinstance(error, plyvel.CorruptionError):
        return damaged(str(error), directory)
    if isinstance(error, plyvel.IteratorInvalidError):
        return damaged("a table cannot be read", directory)
    if _shortage(words(error)) in _NO_DESCRIPTOR:
        return StorageShort(f"the store in {directory} cannot be read now: {error}")
    if "/LOCK: " in str(error):
        return LocalFault(f"the store in {directory} is in use by another process: stop that one first")
    return LocalFault(f"the store in {directory} cannot be read or written: {error}")


def words(error: Exception) -> str:
    """LevelDB's message; the driver passes it on as bytes."""
    message = error.args[0] if error.args else ""
    return message.decode(errors="replace") if isinstance(message, bytes) else str(message)


def _shortage(message: str) -> str:
    """The system's text of a shortage in one of LevelDB's messages; "" for any other error."""
    found = _IO_ERROR.search(message)
    return found["why"] if found is not None and found["why"] in _REASONS else ""


def creation_shortage(message: str) -> str:
    """What keeps LevelDB from creating the log that a write was to begin, as a clause for operators; "" for any other
    error. Before it creates a log LevelDB writes nothing of the batch, and a log that could not be created does not
    exist. Errors of its background work concern tables and manifests, and last until it is opened again."""
    found = _IO_ERROR.search(message)
    if found is None or found["why"] not in _REASONS or not found["path"].endswith(".log"):
        return ""
    return "" if os.path.lexists(found["path"]) else f"the store cannot create a file: {found['why']}"

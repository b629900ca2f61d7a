"""The node's store on LevelDB, and the one door to plyvel.

What it does: turns apply steps into one LevelDB batch, moves the durable floors by checkpoints, and knows
after a restart whether rows may be missing and a replay is due (docs/protocol.md H36). What it must not do:
decode objects, decide what is applied, or sync on the write path. Rows are laid out in `rows` and
read in `reads`, positions kept in `progress`, floors in `checkpoint`.

    directory/rows        the database
    directory/floors.0|1  the durable floors, the boot id, the clean marker

A first failed write or sync is final (H34): LevelDB may have left half a record in its log, and the
kernel may have called lost pages clean, so the store refuses writes until it is opened anew; reads go on.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, Final, NamedTuple

import plyvel

from isthmus.repl.model.errors import Corruption, LocalFault
from isthmus.repl.storage.slot_file import SlotFile
from isthmus.repl.store.batch import fill
from isthmus.repl.store.checkpoint import FLOORS_NAME, Disk, Floors, encode_floors, read_floors, sync_rows
from isthmus.repl.store.compaction import compact_when_idle, size_of
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.port import AppliedPosition, PartitionStep
from isthmus.repl.store.positions import End, PositionTable
from isthmus.repl.store.reads import StoreReads
from isthmus.repl.store.recovery import (
    ROWS_NAME,
    check_identity,
    damaged,
    found_progress,
    found_remembered,
    is_empty,
    make_new,
)
from isthmus.repl.store.request_dedup import WINDOW_OFFSETS
from isthmus.repl.store.row_source import Source
from isthmus.repl.store.state_transfer import LevelFar
from isthmus.repl.store.time_index import THIN_EVERY_S, thinning
from isthmus.repl.store.write_stalls import WriteStallPredictor

BLOOM_FILTER_BITS: Final = 10
"""Bits a key in each table's filter: about one absent key in a hundred costs a block read."""

COMPRESSION: Final = None
"""Tables are not compressed: measured with 1 KB values, writing and compacting an entry costs 20 to 25 us of CPU
so, and with snappy 55 us for text and 38 us for bytes that do not compress; text takes half the disk
with it. Where disk is dearer than CPU, a file system that compresses does it outside the process."""

SPARE_BATCHES: Final = 4
"""Written batches kept for use again, which spares growing a new one (0.8 us an entry in steps of 100); one is enough
for a writer alone, a few more for a thread that prepares ahead of it."""

SPARE_BATCH_BYTES_MAX: Final = 4 * 1024 * 1024
"""A batch that held more is let go, so that one large step does not keep its memory for ever."""


class LevelDbView:
    """A `Source` on a LevelDB database or a snapshot of it; the driver's errors become ours here. Blocks that come from
    disk are checked against their checksums; scans leave the block cache alone."""

    def __init__(self, driver: Any, directory: Path) -> None:
        self._driver = driver
        self._driver_get = driver.get
        self.directory = directory

    def get(self, name: bytes) -> bytes | None:
        """The value of the row `name`, or None."""
        try:
            value: bytes | None = self._driver_get(name, verify_checksums=True)
        except plyvel.Error as error:
            raise fault(error, self.directory) from error
        return value

    def scan(self, start: bytes, stop: bytes) -> Generator[tuple[bytes, bytes], bytes | None, None]:
        """The rows [start, stop), in order, as they are when the first is asked for; see Source."""
        try:
            with self._driver.iterator(start=start, verify_checksums=True, fill_cache=False) as iterator:
                for row in iterator:
                    if row[0] >= stop:
                        return
                    if (target := (yield row)) is not None:
                        iterator.seek(target)
        except plyvel.Error as error:
            raise fault(error, self.directory) from error
        raise damaged("a table cannot be read", self.directory)

    def names(self, start: bytes, stop: bytes) -> Generator[bytes, None, None]:
        """The names of the rows [start, stop), in order, as they are when the first is asked for."""
        try:
            with self._driver.iterator(
                start=start, include_value=False, verify_checksums=True, fill_cache=False
            ) as iterator:
                for name in iterator:
                    if name >= stop:
                        return
                    yield name
        except plyvel.Error as error:
            raise fault(error, self.directory) from error
        raise damaged("a table cannot be read", self.directory)

    def last_before(self, name: bytes) -> tuple[bytes, bytes]:
        """The last row before `name`, which is not the first of all."""
        try:
            with self._driver.raw_iterator(verify_checksums=True) as iterator:
                iterator.seek(name)
                iterator.prev()
                return iterator.key(), iterator.value()
        except plyvel.Error as error:
            raise fault(error, self.directory) from error

    def close(self) -> None:
        """Let go of a snapshot."""
        self._driver.close()

    def open_snapshot(self) -> LevelDbView:
        """The rows as they are now, until it is closed."""
        return LevelDbView(self._driver.snapshot(), self.directory)

    @contextmanager
    def snapshot(self) -> Iterator[Source]:
        """The rows as they are now."""
        with closing(self.open_snapshot()) as view:
            yield view


class Prepared(NamedTuple):
    """A batch that was made and not yet written, and where it leaves its partitions."""

    batch: Any
    ends: tuple[End, ...]


class LevelStore(StoreReads):
    """`repl.store.port.Store` on one LevelDB database. Open it with `LevelStore.open`.

    Writes: `write`, or `prepare` by one thread and `commit` by one thread, in the same order. plyvel lets go of the
    interpreter for every row that it takes, so a thread that prepares beside a busy loop waits a switch
    interval every few rows; prepared on the loop itself, only the one long call is left to the
    writer thread. `checkpoint` may run in a third thread. Reads come from any thread, but none may
    run while `close` does: LevelDB does not survive it.
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
        write_buffer_bytes: int,
    ) -> None:
        """For `open` only."""
        view = LevelDbView(db, directory)
        super().__init__(view, progress, remembered)
        self._directory = directory
        self._db = db
        self._slots = slots
        self._floors = floors
        self._boot_id = boot_id
        self._disk = disk
        self._needs_replay = progress.replaying()
        self._thinned_at_s: dict[int, int] = {}
        self._spare_batches: list[Any] = []
        self._at_once = WriteStallPredictor(db.get_property, monotonic, write_buffer_bytes)
        self._checkpointing = Lock()
        self._failure = ""
        self._closed = False
        self.far = LevelFar(
            view,
            progress,
            remembered,
            new_batch=db.write_batch,
            write=self._write_batch,
            sync=self._sync_rows,
            checkpoint=self.checkpoint,
            open_snapshot=view.open_snapshot,
        )

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
    ) -> LevelStore:
        """The store in `directory`, made if it is not there. Blocks while LevelDB reads its logs.

        `request_window_offsets`: of how many of a partition's last offsets the requests are remembered.
        `boot_id` names this run of the machine (Linux: /proc/sys/kernel/random/boot_id). Raises Corruption,
        WrongIdentity, and LocalFault for a directory that is in use, unwritable or of another version.
        """
        disk = disk or Disk()
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LocalFault(f"cannot make the store's directory {directory}: {error.strerror}") from error
        slots = SlotFile(directory, FLOORS_NAME)
        try:
            floors = read_floors(slots)
        except Corruption as error:
            raise damaged(str(error), directory) from error
        whole = floors is None or floors.clean or floors.boot_id == boot_id
        options = {"write_buffer_size": write_buffer_bytes, "lru_cache_size": block_cache_bytes}
        try:
            if not whole:
                # A log that a power loss tore in its middle is read as far as it goes, and what it held comes
                # again by replay; opening strictly would refuse it. This moves its rows into tables.
                _open_driver(directory, paranoid_checks=False, **options).close()
            db = _open_driver(directory, paranoid_checks=True, **options)
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
            store = cls(directory, db, progress, remembered, slots, floors, boot_id, disk, write_buffer_bytes)
            store.far.reopened(trusted=whole)
            if not store._needs_replay:
                store._note_floors(boot_id)
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
        """How far the partition is applied; in a replay, as found at open until the replay has passed it."""
        return self._progress.applied(partition)

    def durable_floor(self, partition: int) -> int:
        """Offset up to which the partition's rows are on disk, by the last finished checkpoint."""
        return self._progress.floor(partition)

    def needs_replay(self) -> bool:
        """True until `replay_finished`, after the machine stopped unclean: see the port."""
        return self._needs_replay

    def replay_finished(self) -> None:
        """Every partition has passed the applied offset found at open (asserted): checkpoint, and note the boot id."""
        assert not self._progress.replaying()
        with self._checkpointing:
            self._refuse_after_failure()
            self.far.sweep()
            self._note_floors(self._boot_id)
            self._needs_replay = False

    def write(self, steps: Sequence[PartitionStep]) -> None:
        """Apply the steps in one LevelDB batch, unsynced. Raises LocalFault, then and ever after, when the disk
        refuses. Entries go on where the partition's last ones ended; in a replay, first at its floor (asserted)."""
        self.commit(self.prepare(steps))

    def prepare(self, steps: Sequence[PartitionStep]) -> Prepared:
        """The batch that applies the steps, to be given to `commit`; each prepared batch must be, in order."""
        self._refuse_after_failure()
        batch = self._spare_batches.pop() if self._spare_batches else self._db.write_batch()
        return Prepared(batch, fill(batch, steps, self._progress, self._prefixes_of, self._remembered))

    def takes_at_once(self, prepared: Prepared) -> bool:
        """See the port; `repl.store.write_stalls` knows."""
        return self._at_once.takes(prepared.batch.approximate_size())

    def commit(self, prepared: Prepared) -> None:
        """Write a prepared batch; readers see all of it or nothing. Raises LocalFault."""
        batch, ends = prepared
        began_s = monotonic()
        self._write_batch(batch)
        size_bytes = batch.approximate_size()
        self._at_once.wrote(size_bytes, monotonic() - began_s)
        self._progress.wrote(ends)
        if size_bytes <= SPARE_BATCH_BYTES_MAX and len(self._spare_batches) < SPARE_BATCHES:
            batch.clear()
            self._spare_batches.append(batch)

    def checkpoint(self) -> None:
        """Move the durable floors to what is written now: sync, then note it; nothing when nothing was written.

        Also thins the time marks of one partition, and reads names of keys. Raises LocalFault, then and ever after."""
        with self._checkpointing:
            self._refuse_after_failure()
            self._note_floors(self._floors.boot_id)
            self._thin_one_partition()
            self._remembered.names.learn(self._source)

    def compact_when_idle(self, *, idle: bool) -> None:
        """Nothing was written for a while: give back the memory that was for writing; see the port."""
        with self._checkpointing:
            if not self._closed:
                compact_when_idle(self._db, self._directory / ROWS_NAME, idle=idle)

    def size_bytes(self) -> int:
        """Size of the database's files, among them obsolete ones that LevelDB has yet to delete."""
        return size_of(self._directory / ROWS_NAME)

    def close(self) -> None:
        """Checkpoint, close, and mark the stop as clean, unless the store has failed or a replay is unfinished.

        Idempotent. Blocks; nothing else may be running. Raises LocalFault when the floors could not be made durable;
        the store is closed all the same."""
        with self._checkpointing:
            if self._closed:
                return
            self._closed = True
            try:
                if not self._failure:
                    self._note_floors(self._floors.boot_id)
            finally:
                self._spare_batches.clear()
                self._db.close()
            if not self._failure and not self._needs_replay:
                self._note_floors(self._floors.boot_id, clean=True)

    def _note_floors(self, boot_id: str, *, clean: bool = False) -> None:
        """Note what is written, sync it, write the note down. The caller holds the checkpoint's lock."""
        noted = Floors(boot_id, clean, self._progress.written())
        if noted != self._floors:
            self.before_floors()
            self._sync_rows()
            try:
                self._disk.write_slot(self._slots, encode_floors(noted))
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
            marks, batch = self._prefixes_of(partition).mark, self._db.write_batch()
            self._write_batch(thinning(self._source, marks, newest_s, batch))
            return

    def _write_batch(self, batch: Any) -> None:
        self._refuse_after_failure()
        try:
            batch.write()
        except plyvel.Error as error:
            raise self._failed(error) from error

    def _sync_rows(self) -> None:
        self._refuse_after_failure()
        try:
            sync_rows(self._disk, self._directory / ROWS_NAME)
        except OSError as error:
            raise self._failed(error) from error

    def _refuse_after_failure(self) -> None:
        if self._failure:
            raise LocalFault(self._failure)

    def _failed(self, error: Exception) -> LocalFault:
        self._failure = f"the store in {self._directory} refuses writes until the node is started again: {error}"
        if isinstance(error, plyvel.CorruptionError):
            return fault(error, self._directory)
        return LocalFault(self._failure)


def _open_driver(directory: Path, **options: Any) -> Any:
    return plyvel.DB(
        os.fspath(directory / ROWS_NAME),
        create_if_missing=True,
        bloom_filter_bits=BLOOM_FILTER_BITS,
        compression=COMPRESSION,
        **options,
    )


def fault(error: Exception, directory: Path) -> LocalFault:
    """Our error for one of the driver's."""
    if isinstance(error, plyvel.CorruptionError):
        return damaged(str(error), directory)
    if isinstance(error, plyvel.IteratorInvalidError):
        return damaged("a table cannot be read", directory)
    if "/LOCK: " in str(error):
        return LocalFault(f"the store in {directory} is in use by another process: stop that one first")
    return LocalFault(f"the store in {directory} cannot be read or written: {error}")

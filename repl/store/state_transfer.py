"""State transfer on LevelDB: rows given to other nodes and taken from them (`repl.store.port.TransferStore`).

A partition in a transfer has a mark instead of an applied row, from before the first foreign row is written until the
last one is durable; each batch of rows moves the mark. After a power loss it is unknown which of those rows are there,
so all of them are deleted: `reopened` does that at open, before the boot id is recorded. Row layout is in `rows`, chunk
bytes in `row_codec`; the core decides when a round begins and ends (`repl.isr.state_transfer`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import islice
from typing import Any, Final, Protocol

import structlog

from isthmus.repl.model.errors import Corruption, DamagedChunk, DamagedRow
from isthmus.repl.model.keys import segment_of
from isthmus.repl.store import row_codec, rows
from isthmus.repl.store.batch import put_object
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.port import AppliedPosition, DamagedChange, StateChunk, TransferChunk, TransferMark
from isthmus.repl.store.positions import PositionTable
from isthmus.repl.store.recovery import found_marks, read_remembered
from isthmus.repl.store.row_codec import ROW_BYTES, STATE_TAGS
from isthmus.repl.store.row_source import Source
from isthmus.repl.store.rows import MarkKind, StoredPosition
from isthmus.repl.store.scans import scan_key_pages, scan_key_rows, scan_segments
from isthmus.repl.store.time_index import newest_mark_s

log = structlog.get_logger(__name__)

WIPE_ROWS: Final = 4_096
"""Rows that one batch deletes when a partition is emptied: about 300 KB of names."""

WIPED_TAGS: Final = (rows.OBJECT_TAG, rows.KEY_TAG, rows.CHANGE_TAG, *STATE_TAGS)


class SnapshotSource(Source, Protocol):
    """A snapshot of a database."""

    def close(self) -> None:
        """Release it."""


class Database(Source, Protocol):
    """The store's rows; `repl.store.leveldb.LevelDbView`."""

    def open_snapshot(self) -> SnapshotSource:
        """A snapshot of the rows, until it is closed."""


class RowWriter(Protocol):
    """The store that owns the rows; `repl.store.leveldb.LevelStore`. All raise LocalFault when the disk fails."""

    def new_batch(self) -> Any:
        """An empty batch."""

    def write_batch(self, batch: Any) -> None:
        """Write a batch atomically, unsynced."""

    def sync_rows(self) -> None:
        """Sync all written rows."""

    def checkpoint(self) -> None:
        """Sync, and write the durable floors."""


class LevelSnapshot:
    """`repl.store.port.Snapshot`."""

    def __init__(self, source: SnapshotSource, partition: int, replayed: StoredPosition | None) -> None:
        """`replayed`: the position of a replay before `source` was taken; rows above may be missing (H36)."""
        self._source = source
        self._number = rows.U32.pack(partition)
        self._prefixes = rows.prefixes(partition)
        value = source.get(self._prefixes.applied)
        found = rows.START if value is None else rows.decode_position(value)
        epoch, offset, _ = found if replayed is None else replayed
        self.end = AppliedPosition(epoch, offset)

    def rows(self, from_offset: int, limit_bytes: int) -> TransferChunk:
        """See the port. A change without its key row or object counts as damaged."""
        prefix = self._prefixes.change
        found: list[tuple[int, bytes, bytes, bytes]] = []
        size = 0
        stop = prefix + rows.U64.pack(self.end.offset)
        with closing(self._source.scan(prefix + rows.U64.pack(from_offset), stop)) as scan:
            for name, value in scan:
                offset = rows.decode_u64(name[len(prefix) :])
                try:
                    key_row, data = self._whole(offset, value)
                except DamagedRow:
                    if found:  # these first; the next request begins at the damaged row
                        return TransferChunk(row_codec.encode(found), offset, len(found))
                    raise
                size += len(value) + len(key_row) + len(data) + ROW_BYTES
                if found and size > limit_bytes:
                    return TransferChunk(row_codec.encode(found), offset, len(found))
                found.append((offset, value, key_row, data))
        return TransferChunk(row_codec.encode(found), self.end.offset, len(found))

    def _whole(self, offset: int, change: bytes) -> tuple[bytes, bytes]:
        """(key row, object) of the key that changed at `offset`. Raises DamagedRow."""
        try:
            key_hash, tail = rows.change_place(offset, change)
        except Corruption as error:
            raise DamagedChange(str(error), offset) from error
        segment = segment_of(key_hash)
        key_row = self._source.get(self._prefixes.key + rows.segment_name(segment) + tail)
        data = self._source.get(self._prefixes.object + tail)
        if key_row is None or data is None:
            what = "key row" if key_row is None else "object"
            bucket, key = rows.split_tail(tail)
            raise DamagedRow(f"the change at offset {offset}, of {bucket!r}/{key!r}, has no {what}", segment)
        return key_row, data

    def damaged_changes(self, from_offset: int, limit: int) -> tuple[Mapping[int, bytes], int | None]:
        """See the port."""
        prefix = self._prefixes.change
        found: dict[int, bytes] = {}
        count = offset = 0
        with closing(self._source.scan(prefix + rows.U64.pack(from_offset), rows.after_prefix(prefix))) as scan:
            for name, value in islice(scan, limit):
                count, offset = count + 1, rows.decode_u64(name[len(prefix) :])
                try:
                    rows.change_place(offset, value)
                except Corruption:
                    found[offset] = value
        return found, offset + 1 if count == limit else None

    def state(self, after: bytes, limit_bytes: int) -> StateChunk:
        """See the port."""
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for tag in STATE_TAGS:
            prefix = tag + self._number
            start = prefix + after[1:] + b"\0" if after[:1] == tag else prefix
            if tag < after[:1]:
                continue
            with closing(self._source.scan(start, rows.after_prefix(prefix))) as scan:
                for name, value in scan:
                    size += len(name) + len(value)
                    if found and size > limit_bytes:
                        return StateChunk(row_codec.encode(found), found[-1][0], False)
                    found.append((tag + name[len(prefix) :], value))
        return StateChunk(row_codec.encode(found), found[-1][0] if found else after, True)

    def key_rows(self, from_segment: int, to_segment: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
        """See the port."""
        return scan_key_rows(self._source, self._prefixes.key, from_segment, to_segment)

    def segments(self, ranges: Iterable[tuple[int, int]]) -> Generator[list[tuple[bytes, bytes]], None, None]:
        """See the port."""
        return scan_segments(self._source, self._prefixes.key, ranges)

    def object(self, bucket: bytes, key: bytes) -> bytes | None:
        """See the port."""
        return self._source.get(self._prefixes.object + rows.bucket_head(bucket) + key)

    def key_pages(
        self, start: bytes, to_segment: int, limit_rows: int, limit_bytes: int
    ) -> Generator[tuple[list[bytes], list[bytes]], None, None]:
        """See the port."""
        return scan_key_pages(self._source, self._prefixes.key, start, to_segment, limit_rows, limit_bytes)

    def named_key_row(self, name: bytes) -> bytes | None:
        """See the port."""
        return self._source.get(self._prefixes.key + name)

    def named_object(self, tail: bytes) -> bytes | None:
        """See the port."""
        return self._source.get(self._prefixes.object + tail)

    def close(self) -> None:
        """See the port."""
        self._source.close()


class LevelTransfers:
    """`repl.store.port.TransferStore` of one `LevelStore`."""

    def __init__(self, store: RowWriter, source: Database, progress: PositionTable, remembered: MemoryIndexes) -> None:
        self._store = store
        self._source = source
        self._progress = progress
        self._remembered = remembered
        self._marks = {p: TransferMark(position, epoch, kind is MarkKind.WHOLE) for p, (kind, epoch, position) in
                       found_marks(source).items()}  # fmt: skip

    def reopened(self, *, trusted: bool) -> None:
        """Empty partitions whose emptying was interrupted and, unless the found rows are `trusted`, all that were being
        filled."""
        for partition, (kind, _, _) in found_marks(self._source).items():
            if kind is MarkKind.EMPTYING or not trusted:
                self._empty(partition)

    def sync(self) -> None:
        """See the port."""
        self._store.sync_rows()

    def marks(self) -> Mapping[int, TransferMark]:
        """See the port."""
        return dict(self._marks)

    def begin(self, partition: int, *, empty: bool) -> TransferMark:
        """See the port."""
        applied = self._progress.applied(partition)
        lossy = empty or self._progress.is_replaying(partition)
        self._progress.forget(partition)
        self._remembered.forget(partition)
        if lossy:
            return self._empty(partition)
        mark = self._mark(self._store.new_batch(), partition, MarkKind.WHOLE, applied.epoch, applied.offset)
        self._store.sync_rows()
        return mark

    def _mark(self, batch: Any, partition: int, kind: MarkKind, epoch: int, position: int) -> TransferMark:
        batch.put(rows.TRANSFER_TAG + rows.U32.pack(partition), rows.encode_mark(kind, epoch, position))
        batch.delete(rows.prefixes(partition).applied)
        self._store.write_batch(batch)
        mark = self._marks[partition] = TransferMark(position, epoch, kind is MarkKind.WHOLE)
        return mark

    def _empty(self, partition: int) -> TransferMark:
        """Delete all rows of a partition: marked as emptying before the first, and as empty after the last."""
        for _ in self._emptying(partition):
            pass
        return self._emptied(partition)

    def _emptying(self, partition: int) -> Iterator[int]:
        self._mark(self._store.new_batch(), partition, MarkKind.EMPTYING, 0, 0)
        self._store.sync_rows()
        for tag in WIPED_TAGS:
            yield from self._deleting(tag + rows.U32.pack(partition))

    def _emptied(self, partition: int) -> TransferMark:
        self._store.sync_rows()
        mark = self._mark(self._store.new_batch(), partition, MarkKind.WHOLE, 0, 0)
        self._store.sync_rows()
        return mark

    def remove(self, partition: int) -> Iterator[int]:
        """See the port. The mark stays until a checkpoint has written floors without the partition: a floor without
        rows would count as damage."""
        self._progress.forget(partition)
        self._remembered.forget(partition)
        yield from self._emptying(partition)
        self._emptied(partition)
        self._store.checkpoint()
        batch = self._store.new_batch()
        batch.delete(rows.TRANSFER_TAG + rows.U32.pack(partition))
        self._store.write_batch(batch)
        self._store.sync_rows()
        del self._marks[partition]

    def _delete_all(self, prefix: bytes) -> None:
        for _ in self._deleting(prefix):
            pass

    def _deleting(self, prefix: bytes) -> Iterator[int]:
        batch, count = self._store.new_batch(), 0
        with closing(self._source.names(prefix, rows.after_prefix(prefix))) as names:
            for name in names:
                batch.delete(name)
                count += 1
                if count % WIPE_ROWS == 0:
                    self._store.write_batch(batch)
                    batch = self._store.new_batch()
                    yield WIPE_ROWS
        self._store.write_batch(batch)
        yield count % WIPE_ROWS

    def sweep(self) -> None:
        """Delete change rows of replayed offsets that no key row points to. A replay leaves such rows where the log
        ended below the applied offset found, and held an older entry of the key (H36). From any thread."""
        for partition, start, stop in self._progress.replayed_ranges:
            batch = self._store.new_batch()
            for name in self._orphaned_changes(rows.prefixes(partition), start, stop):
                batch.delete(name)
            self._store.write_batch(batch)

    def _orphaned_changes(self, prefixes: rows.Prefixes, start: int, stop: int) -> Iterator[bytes]:
        get = self._source.get
        with closing(
            self._source.scan(prefixes.change + rows.U64.pack(start), prefixes.change + rows.U64.pack(stop))
        ) as scan:
            for name, value in scan:
                offset = rows.decode_u64(name[len(prefixes.change) :])
                try:
                    key_hash, tail = rows.change_place(offset, value)
                except Corruption as error:  # its key is unknown: it stays until it is mended
                    log.error("store.change_row_damaged", error=str(error))
                    continue
                row = get(prefixes.key + rows.segment_name(segment_of(key_hash)) + tail)
                if row is None or row_codec.offset_seen(row) not in (None, offset):
                    yield name  # the change of a damaged row stays until the row is mended

    def install_rows(self, partition: int, chunk: bytes, upto: int, epoch: int) -> TransferMark:
        """See the port: the key's old change row is deleted in the batch that writes the new one."""
        found = row_codec.decode_rows(chunk)
        before = self._marks[partition]
        prefixes = rows.prefixes(partition)
        batch = self._store.new_batch()
        get, put = self._source.get, batch.put
        for row in found:
            if not before.position <= row.offset < upto:
                raise DamagedChunk(f"a row of offset {row.offset} came among those of {before.position} to {upto - 1}")
            key_hash, tail = row.place()
            name = prefixes.key + rows.segment_name(segment_of(key_hash)) + tail
            mine = get(name)
            for stale in () if mine is None else self._changes_of(prefixes.change, tail, mine, before.position):
                batch.delete(prefixes.change + rows.U64.pack(stale))
            put_object(batch, prefixes, tail, row.object)
            self._remembered.names.note(name)
            put(name, row.key_row)
            put(prefixes.change + rows.U64.pack(row.offset), row.change)
        kind = MarkKind.WHOLE if before.whole and not found and upto == before.position else MarkKind.PARTIAL
        return self._mark(batch, partition, kind, epoch, upto)

    def _changes_of(self, prefix: bytes, tail: bytes, key_row: bytes, end: int) -> Iterable[int]:
        """Offsets of a key's change rows. For a damaged key row the whole index below `end` is searched, so that the
        damage does not stop the transfer that replaces it. Raises DamagedRow where a change row cannot be read: it may
        be this key's."""
        offset = row_codec.offset_seen(key_row)
        if offset is not None:
            return (offset,)
        with closing(self._source.scan(prefix, prefix + rows.U64.pack(end))) as scan:
            found = []
            for name, value in scan:
                at = rows.decode_u64(name[len(prefix) :])
                try:
                    _, whose = rows.change_place(at, value)
                except Corruption as error:
                    raise DamagedRow(f"the key row of {tail!r} is damaged, and {error}") from error
                if whose == tail:
                    found.append(at)
            return found

    def install_state(self, partition: int, chunk: bytes, *, first: bool) -> TransferMark:
        """See the port."""
        found = row_codec.decode_state(chunk)
        number = rows.U32.pack(partition)
        before = self._marks[partition]
        batch = self._store.new_batch()
        if first:
            self._mark(batch, partition, MarkKind.PARTIAL, before.epoch, before.position)
            for tag in STATE_TAGS:
                self._delete_all(tag + number)
            batch = self._store.new_batch()
        for name, value in found:
            batch.put(name[:1] + number + name[1:], value)
        return self._mark(batch, partition, MarkKind.PARTIAL, before.epoch, before.position)

    def finish(self, partition: int, end: AppliedPosition) -> None:
        """See the port. The checkpoint removes the floor of the earlier rows before the mark is deleted: it may be
        above the end of a round that began with an empty copy, and would count as damage."""
        self._store.checkpoint()
        prefixes = rows.prefixes(partition)
        mark_s = newest_mark_s(self._source, prefixes.mark)
        position = StoredPosition(end.epoch, end.offset, mark_s)
        batch = self._store.new_batch()
        batch.delete(rows.TRANSFER_TAG + rows.U32.pack(partition))
        batch.put(prefixes.applied, rows.encode_position(position))
        self._store.write_batch(batch)
        read_remembered(self._source, self._remembered, partition, end.offset)
        del self._marks[partition]
        self._progress.install(partition, position)
        self._store.checkpoint()

    def mend(self, partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """See the port."""
        row = row_codec.decode_one(chunk)
        prefixes = rows.prefixes(partition)
        key_hash, tail = row.place()
        name = prefixes.key + rows.segment_name(segment_of(key_hash)) + tail
        applied = self._progress.applied(partition).offset
        if partition in self._marks or self._progress.is_replaying(partition) or self._source.get(name) != seen:
            return False
        if row.offset >= applied or (seen is None and applied > upto):
            return False
        batch = self._store.new_batch()
        stale = row_codec.offset_seen(seen)
        if stale is not None and stale != row.offset:
            before = self._source.get(prefixes.change + rows.U64.pack(stale))
            # A change row that cannot be decoded may be another key's: it stays until no key row points to it.
            with suppress(Corruption):
                if before is not None and rows.change_place(stale, before)[1] == tail:
                    batch.delete(prefixes.change + rows.U64.pack(stale))
        put_object(batch, prefixes, tail, row.object)
        self._remembered.names.note(name)
        batch.put(name, row.key_row)
        batch.put(prefixes.change + rows.U64.pack(row.offset), row.change)
        self._store.write_batch(batch)
        return True

    def drop_change(self, partition: int, offset: int, seen: bytes) -> bool:
        """See the port."""
        name = rows.prefixes(partition).change + rows.U64.pack(offset)
        if partition in self._marks or self._progress.is_replaying(partition) or self._source.get(name) != seen:
            return False
        batch = self._store.new_batch()
        batch.delete(name)
        self._store.write_batch(batch)
        return True

    def snapshot(self, partition: int) -> LevelSnapshot:
        """See the port."""
        replayed = self._progress.replayed(partition)
        return LevelSnapshot(self._source.open_snapshot(), partition, replayed)

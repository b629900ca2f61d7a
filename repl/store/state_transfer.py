"""Catching up from another node's rows, on LevelDB (`repl.store.port.FarStore`).

A partition that is far has a mark instead of an applied row, from before the first foreign row is written until the
last one is on disk; each batch of rows moves the mark. After a power loss nobody knows which of the rows since are
there, so then they all go: `reopened` does that at open, before the boot id is noted. Names and values of rows are
`rows`'s, the bytes of a chunk `transfer`'s; when a round begins and ends the core decides (`repl.isr.state_transfer`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from itertools import islice
from typing import Any, Final, Protocol

import structlog

from isthmus.repl.model.errors import Corruption, DamagedChunk, DamagedRow
from isthmus.repl.model.keys import segment_of
from isthmus.repl.store import row_codec, rows
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.port import AppliedPosition, DamagedChange, FarMark, StateChunk, TransferChunk
from isthmus.repl.store.positions import PositionTable
from isthmus.repl.store.reads import scan_key_pages, scan_key_rows, scan_segments
from isthmus.repl.store.recovery import found_marks, read_remembered
from isthmus.repl.store.row_codec import ROW_BYTES, STATE_TAGS
from isthmus.repl.store.row_source import Source
from isthmus.repl.store.rows import FarKind, StoredPosition

log = structlog.get_logger(__name__)

WIPE_ROWS: Final = 4_096
"""Rows that one batch deletes when a partition is emptied: about 300 KB of names."""

WIPED_TAGS: Final = (rows.OBJECT_TAG, rows.KEY_TAG, rows.CHANGE_TAG, *STATE_TAGS)


class Closable(Source, Protocol):
    """A source that is to be closed."""

    def close(self) -> None:
        """Let go of it."""


class LevelSnapshot:
    """`repl.store.port.Snapshot`."""

    def __init__(self, source: Closable, partition: int, replayed: StoredPosition | None) -> None:
        """`replayed`: how far a replay had come before `source` was taken; rows above may be missing (H36)."""
        self._source = source
        self._number = rows.U32.pack(partition)
        self._prefixes = rows.prefixes(partition)
        value = source.get(self._prefixes.applied)
        found = rows.START if value is None else rows.decode_position(value)
        epoch, offset, _ = found if replayed is None else replayed
        self.end = AppliedPosition(epoch, offset)

    def rows(self, from_offset: int, limit_bytes: int) -> TransferChunk:
        """See the port. A row is damaged, too, whose change is without its key or object."""
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
                    if found:  # these first; the next question begins with it
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


class LevelFar:
    """`repl.store.port.FarStore` of one `LevelStore`, whose parts it is given: `new_batch` makes a batch, `write`
    writes one or raises LocalFault, `sync` puts on disk what was written, `checkpoint` is the store's."""

    def __init__(
        self,
        source: Source,
        progress: PositionTable,
        remembered: MemoryIndexes,
        *,
        new_batch: Callable[[], Any],
        write: Callable[[Any], None],
        sync: Callable[[], None],
        checkpoint: Callable[[], None],
        open_snapshot: Callable[[], Closable],
    ) -> None:
        self._source = source
        self._progress = progress
        self._remembered = remembered
        self._new_batch = new_batch
        self._write = write
        self.sync = sync
        self._checkpoint = checkpoint
        self._open_snapshot = open_snapshot
        self._marks = {p: FarMark(position, epoch, kind is FarKind.WHOLE) for p, (kind, epoch, position) in
                       found_marks(source).items()}  # fmt: skip

    def reopened(self, *, trusted: bool) -> None:
        """Empty what was being emptied, and, unless the rows found are `trusted`, all that were being filled."""
        for partition, (kind, _, _) in found_marks(self._source).items():
            if kind is FarKind.EMPTYING or not trusted:
                self._empty(partition)

    def marks(self) -> Mapping[int, FarMark]:
        """See the port."""
        return dict(self._marks)

    def begin(self, partition: int, *, empty: bool) -> FarMark:
        """See the port."""
        applied = self._progress.applied(partition)
        lossy = empty or self._progress.is_replaying(partition)
        self._progress.forget(partition)
        self._remembered.forget(partition)
        if lossy:
            return self._empty(partition)
        mark = self._mark(self._new_batch(), partition, FarKind.WHOLE, applied.epoch, applied.offset)
        self.sync()
        return mark

    def _mark(self, batch: Any, partition: int, kind: FarKind, epoch: int, position: int) -> FarMark:
        batch.put(rows.FAR_TAG + rows.U32.pack(partition), rows.encode_far(kind, epoch, position))
        batch.delete(rows.prefixes(partition).applied)
        self._write(batch)
        mark = self._marks[partition] = FarMark(position, epoch, kind is FarKind.WHOLE)
        return mark

    def _empty(self, partition: int) -> FarMark:
        """The mark says so before the first row goes, and all are gone before it says that they are."""
        for _ in self._emptying(partition):
            pass
        return self._emptied(partition)

    def _emptying(self, partition: int) -> Iterator[int]:
        self._mark(self._new_batch(), partition, FarKind.EMPTYING, 0, 0)
        self.sync()
        for tag in WIPED_TAGS:
            yield from self._deleting(tag + rows.U32.pack(partition))

    def _emptied(self, partition: int) -> FarMark:
        self.sync()
        mark = self._mark(self._new_batch(), partition, FarKind.WHOLE, 0, 0)
        self.sync()
        return mark

    def remove(self, partition: int) -> Iterator[int]:
        """See the port. The mark stays until the floors, which a checkpoint writes, name the partition no more: a
        floor without rows would be called damage."""
        self._progress.forget(partition)
        self._remembered.forget(partition)
        yield from self._emptying(partition)
        self._emptied(partition)
        self._checkpoint()
        batch = self._new_batch()
        batch.delete(rows.FAR_TAG + rows.U32.pack(partition))
        self._write(batch)
        self.sync()
        del self._marks[partition]

    def _delete_all(self, prefix: bytes) -> None:
        for _ in self._deleting(prefix):
            pass

    def _deleting(self, prefix: bytes) -> Iterator[int]:
        batch, count = self._new_batch(), 0
        with closing(self._source.names(prefix, rows.after_prefix(prefix))) as names:
            for name in names:
                batch.delete(name)
                count += 1
                if count % WIPE_ROWS == 0:
                    self._write(batch)
                    batch = self._new_batch()
                    yield WIPE_ROWS
        self._write(batch)
        yield count % WIPE_ROWS

    def sweep(self) -> None:
        """Delete the changes, of offsets that were replayed, that no key row points to. A replay leaves such where the
        log ended below what was found, and held an older entry of the key (H36). From any thread: none of them comes to
        count again."""
        for partition, start, stop in self._progress.stretches:
            batch = self._new_batch()
            for name in self._unfounded(rows.prefixes(partition), start, stop):
                batch.delete(name)
            self._write(batch)

    def _unfounded(self, prefixes: rows.Prefixes, start: int, stop: int) -> Iterator[bytes]:
        get = self._source.get
        with closing(
            self._source.scan(prefixes.change + rows.U64.pack(start), prefixes.change + rows.U64.pack(stop))
        ) as scan:
            for name, value in scan:
                offset = rows.decode_u64(name[len(prefixes.change) :])
                try:
                    key_hash, tail = rows.change_place(offset, value)
                except Corruption as error:  # whose it is nobody knows: it stays until it is mended
                    log.error("store.change_row_damaged", error=str(error))
                    continue
                row = get(prefixes.key + rows.segment_name(segment_of(key_hash)) + tail)
                if row is None or row_codec.offset_seen(row) not in (None, offset):
                    yield name  # of a damaged row nobody knows: its change stays until the row is mended

    def install_rows(self, partition: int, chunk: bytes, upto: int, epoch: int) -> FarMark:
        """See the port: the row that the key had in the index goes with the write of its new one."""
        found = row_codec.decode_rows(chunk)
        before = self._marks[partition]
        prefixes = rows.prefixes(partition)
        batch = self._new_batch()
        get, put = self._source.get, batch.put
        for row in found:
            if not before.position <= row.offset < upto:
                raise DamagedChunk(f"a row of offset {row.offset} came among those of {before.position} to {upto - 1}")
            key_hash, tail = row.place()
            name = prefixes.key + rows.segment_name(segment_of(key_hash)) + tail
            mine = get(name)
            for stale in () if mine is None else self._changes_of(prefixes.change, tail, mine, before.position):
                batch.delete(prefixes.change + rows.U64.pack(stale))
            put(prefixes.object + tail, row.object)
            self._remembered.names.note(name)
            put(name, row.key_row)
            put(prefixes.change + rows.U64.pack(row.offset), row.change)
        kind = FarKind.WHOLE if before.whole and not found and upto == before.position else FarKind.PARTIAL
        return self._mark(batch, partition, kind, epoch, upto)

    def _changes_of(self, prefix: bytes, tail: bytes, key_row: bytes, end: int) -> Iterable[int]:
        """Where the change of a key stands. Of a row that is damaged it is looked for below `end`, in the whole index:
        the row is about to be written anew, and must not keep the copy from that. Raises DamagedRow where a change of
        that index cannot be read: it may be the one of this key."""
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

    def install_state(self, partition: int, chunk: bytes, *, first: bool) -> FarMark:
        """See the port."""
        found = row_codec.decode_state(chunk)
        number = rows.U32.pack(partition)
        before = self._marks[partition]
        batch = self._new_batch()
        if first:
            self._mark(batch, partition, FarKind.PARTIAL, before.epoch, before.position)
            for tag in STATE_TAGS:
                self._delete_all(tag + number)
            batch = self._new_batch()
        for name, value in found:
            batch.put(name[:1] + number + name[1:], value)
        return self._mark(batch, partition, FarKind.PARTIAL, before.epoch, before.position)

    def finish(self, partition: int, end: AppliedPosition) -> None:
        """See the port. The floor of the rows that were here before goes before the mark does: it may be above the end
        of a round that began with nothing, and would be called damage."""
        self._checkpoint()
        prefixes = rows.prefixes(partition)
        name, _ = self._source.last_before(rows.after_prefix(prefixes.mark))
        found = name.startswith(prefixes.mark)
        mark_s = rows.decode_u64(name[len(prefixes.mark) :]) if found else rows.NO_MARK
        position = StoredPosition(end.epoch, end.offset, mark_s)
        batch = self._new_batch()
        batch.delete(rows.FAR_TAG + rows.U32.pack(partition))
        batch.put(prefixes.applied, rows.encode_position(position))
        self._write(batch)
        read_remembered(self._source, self._remembered, partition, end.offset)
        del self._marks[partition]
        self._progress.install(partition, position)
        self._checkpoint()

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
        batch = self._new_batch()
        stale = row_codec.offset_seen(seen)
        if stale is not None and stale != row.offset:
            before = self._source.get(prefixes.change + rows.U64.pack(stale))
            # One that cannot be decoded may be another key's: it stays, and goes once no key row points to it.
            with suppress(Corruption):
                if before is not None and rows.change_place(stale, before)[1] == tail:
                    batch.delete(prefixes.change + rows.U64.pack(stale))
        batch.put(prefixes.object + tail, row.object)
        self._remembered.names.note(name)
        batch.put(name, row.key_row)
        batch.put(prefixes.change + rows.U64.pack(row.offset), row.change)
        self._write(batch)
        return True

    def drop_change(self, partition: int, offset: int, seen: bytes) -> bool:
        """See the port."""
        name = rows.prefixes(partition).change + rows.U64.pack(offset)
        if partition in self._marks or self._progress.is_replaying(partition) or self._source.get(name) != seen:
            return False
        batch = self._new_batch()
        batch.delete(name)
        self._write(batch)
        return True

    def snapshot(self, partition: int) -> LevelSnapshot:
        """See the port."""
        replayed = self._progress.replayed(partition)
        return LevelSnapshot(self._open_snapshot(), partition, replayed)

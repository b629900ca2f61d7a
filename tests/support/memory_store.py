"""The memory twin of `repl.store.state_transfer`: the same bytes on the wire, dictionaries at both ends.

The store's memory twin: the same answers from plain dictionaries.

For tests and for simulations of whole clusters, where a disk would only be slow. It keeps nouns
instead of rows and shares nothing with LevelDB's half but the positions (`positions`), so that the contract
suite compares two implementations. It is as durable as its process: a checkpoint moves the floors at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import RLock

from isthmus.repl.model.entry import CHANGES, NO_OFFSET, EntryKind, decode_key_row
from isthmus.repl.model.errors import DamagedChunk
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.store import row_codec, rows
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.port import (
    REAPED,
    AppliedPosition,
    Change,
    Cursor,
    ListedKey,
    ListedName,
    PartitionStep,
    Prepared,
    StateChunk,
    TransferChunk,
    TransferMark,
)
from isthmus.repl.store.positions import PositionTable
from isthmus.repl.store.reaped_keys import GONE, decode_gone, encode_gone, gone_name
from isthmus.repl.store.request_dedup import WINDOW_OFFSETS, request_name
from isthmus.repl.store.row_codec import ROW_BYTES, TransferRow
from isthmus.repl.store.rows import StoredPosition
from isthmus.repl.store.time_index import FULL_FOR_S


class MemorySnapshot:
    """`repl.store.port.Snapshot`: everything is copied at once."""

    def __init__(self, kept: PartitionRows, end: AppliedPosition, requests: list[tuple[int, bytes]]) -> None:
        self.end = end
        self._key_rows = sorted((segment_of(key_hash(*name)), *name, row) for name, row in kept.key_rows.items())
        self._objects = dict(kept.objects)
        self._rows = [
            TransferRow(
                c.offset,
                rows.CHANGE_HEAD.pack(c.kind, c.key_hash, c.time_ms) + c.origin + rows.bucket_head(c.bucket) + c.key,
                kept.key_rows[c.bucket, c.key],
                kept.objects[c.bucket, c.key],
            )
            for c in (kept.changes[offset] for offset in kept.change_offsets)
        ]
        state = [
            (rows.CURSOR_TAG + q, rows.U64.pack(offset) + payload) for q, (offset, payload) in kept.cursors.items()
        ]
        state += [(rows.SOFT_TAG + q, payload) for q, payload in kept.soft_cursors.items()]
        state += [(rows.MARK_TAG + rows.U64.pack(second), rows.U64.pack(offset)) for second, offset in kept.marks]
        state += [(rows.REQUEST_TAG + rows.U64.pack(offset), name) for offset, name in requests]
        self._state = sorted(state)

    def rows(self, from_offset: int, limit_bytes: int) -> TransferChunk:
        """See the port."""
        found: list[TransferRow] = []
        size = 0
        for row in self._rows:
            if row.offset >= from_offset:
                size += len(row.change) + len(row.key_row) + len(row.object) + ROW_BYTES
                if found and size > limit_bytes:
                    return TransferChunk(row_codec.encode(found), row.offset, len(found))
                found.append(row)
        return TransferChunk(row_codec.encode(found), self.end.offset, len(found))

    def damaged_changes(self, from_offset: int, limit: int) -> tuple[Mapping[int, bytes], int | None]:
        """See the port: rows that were never encoded cannot be damaged."""
        return {}, None

    def state(self, after: bytes, limit_bytes: int) -> StateChunk:
        """See the port."""
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for item in self._state:
            if item[0] > after:
                size += len(item[0]) + len(item[1])
                if found and size > limit_bytes:
                    return StateChunk(row_codec.encode(found), found[-1][0], False)
                found.append(item)
        return StateChunk(row_codec.encode(found), found[-1][0] if found else after, True)

    def key_rows(self, from_segment: int, to_segment: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
        """See the port."""
        yield from (row for row in self._key_rows if from_segment <= row[0] < to_segment)

    def segments(self, ranges: Iterable[tuple[int, int]]) -> Generator[list[tuple[bytes, bytes]], None, None]:
        """See the port."""
        for first, end in ranges:
            yield [
                (rows.segment_name(segment) + rows.bucket_head(bucket) + key, row)
                for segment, bucket, key, row in self.key_rows(first, end)
            ]

    def object(self, bucket: bytes, key: bytes) -> bytes | None:
        """See the port."""
        return self._objects.get((bucket, key))

    def key_pages(
        self, start: bytes, to_segment: int, limit_rows: int, limit_bytes: int
    ) -> Generator[tuple[list[bytes], list[bytes]], None, None]:
        """See the port."""
        stop = rows.segment_name(to_segment)
        found = sorted(
            (rows.segment_name(segment) + rows.bucket_head(bucket) + key, row)
            for segment, bucket, key, row in self._key_rows
        )
        names: list[bytes] = []
        values: list[bytes] = []
        for name, row in found:
            if start <= name < stop:
                names.append(name)
                values.append(row)
                if len(names) >= limit_rows or sum(map(len, (*names, *values))) > limit_bytes:
                    yield names, values
                    names, values = [], []
        if names:
            yield names, values

    def named_key_row(self, name: bytes) -> bytes | None:
        """See the port."""
        wanted = rows.split_tail(name[rows.SEGMENT_BYTES :])
        return next((row for _, bucket, key, row in self._key_rows if (bucket, key) == wanted), None)

    def named_object(self, tail: bytes) -> bytes | None:
        """See the port."""
        return self._objects.get(rows.split_tail(tail))

    def close(self) -> None:
        """Nothing to release."""


class MemoryTransfers:
    """`repl.store.port.TransferStore` of one `MemoryStore`."""

    def __init__(
        self,
        partitions: dict[int, PartitionRows],
        progress: PositionTable,
        remembered: MemoryIndexes,
        new: Callable[[], PartitionRows],
    ) -> None:
        self._partitions = partitions
        self._progress = progress
        self._remembered = remembered
        self._requests = remembered.requests
        self._new = new
        self._marks: dict[int, TransferMark] = {}

    def marks(self) -> Mapping[int, TransferMark]:
        """See the port."""
        return dict(self._marks)

    def begin(self, partition: int, *, empty: bool) -> TransferMark:
        """See the port."""
        applied = self._progress.applied(partition)
        self._progress.forget(partition)
        if empty:
            self._partitions[partition] = self._new()
            self._remembered.forget(partition)
            applied = AppliedPosition(0, 0)
        return self._mark(partition, TransferMark(applied.offset, applied.epoch, True))

    def _mark(self, partition: int, mark: TransferMark) -> TransferMark:
        self._marks[partition] = mark
        return mark

    def install_rows(self, partition: int, chunk: bytes, upto: int, epoch: int) -> TransferMark:
        """See the port."""
        found = row_codec.decode_rows(chunk)
        before = self._marks[partition]
        if any(not before.position <= row.offset < upto for row in found):
            raise DamagedChunk(f"a row came that is not among those of {before.position} to {upto - 1}")
        kept = self._partitions.setdefault(partition, self._new())
        for row in found:
            change: Change = rows.decode_change(row.offset, row.change)
            name = (change.bucket, change.key)
            if name in kept.key_rows:
                for old in [offset for offset, one in kept.changes.items() if (one.bucket, one.key) == name]:
                    del kept.changes[old]
                    kept.change_offsets.remove(old)
            else:
                insort(kept.names, name)
            kept.objects[name], kept.key_rows[name] = row.object, row.key_row
            kept.changes[row.offset] = change
            kept.change_offsets.append(row.offset)
        whole = before.whole and not found and upto == before.position
        return self._mark(partition, TransferMark(upto, epoch, whole))

    def install_state(self, partition: int, chunk: bytes, *, first: bool) -> TransferMark:
        """See the port."""
        found = row_codec.decode_state(chunk)
        kept = self._partitions.setdefault(partition, self._new())
        if first:
            kept.cursors.clear()
            kept.soft_cursors.clear()
            kept.marks.clear()
            self._remembered.forget(partition)
        for name, value in found:
            tag, rest = name[:1], name[1:]
            if tag == rows.CURSOR_TAG:
                kept.cursors[rest] = rows.decode_cursor(value)
            elif tag == rows.SOFT_TAG:
                kept.soft_cursors[rest] = value
            elif tag == rows.MARK_TAG:
                kept.marks.append((rows.decode_u64(rest), rows.decode_u64(value)))
            else:
                self._requests.of(partition).add(rows.decode_u64(rest), value)
        before = self._marks[partition]
        return self._mark(partition, TransferMark(before.position, before.epoch, False))

    def remove(self, partition: int) -> Iterator[int]:
        """See the port."""
        self._progress.forget(partition)
        self._remembered.forget(partition)
        kept = self._partitions.pop(partition, None)
        self._marks.pop(partition, None)
        yield 0 if kept is None else len(kept.names)

    def sync(self) -> None:
        """Nothing to sync."""

    def finish(self, partition: int, end: AppliedPosition) -> None:
        """See the port."""
        kept = self._partitions.setdefault(partition, self._new())
        marks = kept.marks
        self._remembered.reaped.forget(partition)
        for name, (offset, payload) in sorted(kept.cursors.items()):
            if name.startswith(GONE):
                self._remembered.reaped.of(partition).add(offset, *decode_gone(payload))
        del self._marks[partition]
        self._progress.install(
            partition, StoredPosition(end.epoch, end.offset, marks[-1][0] if marks else rows.NO_MARK)
        )
        self._progress.checkpointed(self._progress.written())

    def mend(self, partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """See the port."""
        row = row_codec.decode_one(chunk)
        change: Change = rows.decode_change(row.offset, row.change)
        name = (change.bucket, change.key)
        kept = self._partitions.setdefault(partition, self._new())
        applied = self._progress.applied(partition).offset
        if partition in self._marks or kept.key_rows.get(name) != seen:
            return False
        if row.offset >= applied or (seen is None and applied > upto):
            return False
        stale = row_codec.offset_seen(seen)
        if stale is not None and stale != row.offset and stale in kept.changes:
            before = kept.changes[stale]
            if (before.bucket, before.key) == name:
                del kept.changes[stale]
                kept.change_offsets.remove(stale)
        if name not in kept.objects:
            insort(kept.names, name)
        kept.objects[name], kept.key_rows[name] = row.object, row.key_row
        if row.offset not in kept.changes:
            insort(kept.change_offsets, row.offset)
        kept.changes[row.offset] = change
        return True

    def drop_change(self, partition: int, offset: int, seen: bytes) -> bool:
        """See the port."""
        return False

    def snapshot(self, partition: int) -> MemorySnapshot:
        """See the port."""
        kept = self._partitions.get(partition) or self._new()
        return MemorySnapshot(kept, self._progress.applied(partition), self._requests.of(partition).all())


Name = tuple[bytes, bytes]
"""(bucket, key)."""


@dataclass(slots=True)
class PartitionRows:
    """One partition's rows."""

    objects: dict[Name, bytes] = field(default_factory=dict)
    key_rows: dict[Name, bytes] = field(default_factory=dict)
    names: list[Name] = field(default_factory=list)
    """Names of all objects, sorted."""
    changes: dict[int, Change] = field(default_factory=dict)
    change_offsets: list[int] = field(default_factory=list)
    """Offsets of all changes, sorted."""
    marks: list[tuple[int, int]] = field(default_factory=list)
    """(second, offset), sorted."""
    cursors: dict[bytes, tuple[int, bytes]] = field(default_factory=dict)
    soft_cursors: dict[bytes, bytes] = field(default_factory=dict)


class MemoryStore:
    """`repl.store.port.Store` in memory."""

    def __init__(self, *, request_window_offsets: int = WINDOW_OFFSETS) -> None:
        self.before_floors: Callable[[], None] = lambda: None
        self.shortage = ""
        self._remembered = MemoryIndexes(request_window_offsets)
        self._requests = self._remembered.requests
        self._progress = PositionTable({}, {}, trusted=True)
        self._partitions: dict[int, PartitionRows] = {}
        self._lock = RLock()
        self.transfers = MemoryTransfers(self._partitions, self._progress, self._remembered, PartitionRows)

    def applied_offsets(self) -> Mapping[int, int]:
        """The applied offset of every partition that has rows here."""
        return self._progress.applied_offsets()

    def applied(self, partition: int) -> AppliedPosition:
        """How far the partition is applied."""
        return self._progress.applied(partition)

    def reach(self, partition: int) -> int:
        """The offset below which all entries lie that a reader can have seen."""
        return self.applied(partition).offset

    def durable_floor(self, partition: int) -> int:
        """The offset applied at the last checkpoint."""
        return self._progress.floor(partition)

    def needs_replay(self) -> bool:
        """Never: a restart loses everything here."""
        return False

    def lacks_rows(self, _partition: int) -> bool:
        """Never: a restart loses everything here."""
        return False

    def replay_finished(self) -> None:
        """See the port; a checkpoint."""
        self.checkpoint()

    def prepare(self, steps: Sequence[PartitionStep]) -> Prepared:
        """The steps themselves."""
        return steps

    def takes_at_once(self, prepared: Prepared) -> bool:
        """Always."""
        return True

    def commit(self, prepared: Prepared, *, patient: bool = True) -> None:
        """See the port; like `write`."""
        self.write(prepared)

    def write(self, steps: Sequence[PartitionStep]) -> None:
        """Apply the steps; a partition's entries begin where its last ones ended (asserted)."""
        with self._lock:
            for step in steps:
                self._write(step)

    def _write(self, step: PartitionStep) -> None:
        kept = self._partitions.setdefault(step.partition, PartitionRows())
        kept.soft_cursors.update(step.soft_cursors)
        if not step.entries:
            return
        first, last = step.entries[0].offset, step.entries[-1]
        mark_s = self._progress.next(step.partition).newest_mark_s
        assert [e.offset for e in step.entries] == list(range(first, last.offset + 1))
        for e in step.entries:
            if e.kind == EntryKind.CURSOR:
                kept.cursors[e.key] = (e.offset, e.payload)
            elif e.kind in CHANGES:
                name = (e.bucket, e.key)
                if name not in kept.objects:
                    insort(kept.names, name)
                kept.objects[name] = e.payload
                kept.key_rows[name] = e.row
                kept.changes[e.offset] = Change(e.offset, e.kind, e.key_hash, e.origin, e.time_ms, e.bucket, e.key)
                kept.change_offsets.append(e.offset)
                if e.previous_offset != NO_OFFSET and kept.changes.pop(e.previous_offset, None) is not None:
                    del kept.change_offsets[bisect_left(kept.change_offsets, e.previous_offset)]
                if e.time_ms // 1000 > mark_s:
                    mark_s = e.time_ms // 1000
                    kept.marks.append((mark_s, e.offset))
                if e.request_id:
                    self._requests.of(step.partition).add(e.offset, request_name(e.key_hash, e.request_id))
            elif e.kind == EntryKind.REAP:
                name = (e.bucket, e.key)
                if kept.objects.pop(name, None) is not None:
                    del kept.key_rows[name]
                    del kept.names[bisect_left(kept.names, name)]
                if kept.changes.pop(e.previous_offset, None) is not None:
                    del kept.change_offsets[bisect_left(kept.change_offsets, e.previous_offset)]
                kept.cursors[REAPED] = (e.offset, b"")
                if e.row:
                    clock = decode_key_row(e.row).clock
                    kept.cursors[gone_name(e.offset)] = (e.offset, encode_gone(e.bucket, e.key, clock))
                    for gone in self._remembered.reaped.of(step.partition).add(e.offset, e.bucket, e.key, clock):
                        del kept.cursors[gone_name(gone)]
            else:
                assert e.kind in (EntryKind.BARRIER, EntryKind.CONFIG), e.kind
        self._requests.of(step.partition).trim(last.offset + 1 - self._requests.offset_count)
        end = StoredPosition(last.epoch, last.offset + 1, mark_s)
        self._progress.wrote([self._progress.prepared(step.partition, first, end)])

    def checkpoint(self) -> None:
        """Raise the floors to the applied offsets."""
        with self._lock:
            noted = self._progress.written()
            self.before_floors()
            self._progress.checkpointed(noted)

    def compact_when_idle(self, *, idle: bool) -> None:
        """Nothing to compact."""

    def key_row(self, partition: int, key_hash: int, bucket: bytes, key: bytes) -> bytes | None:
        """The encoded key row, or None."""
        with self._lock:
            return self._of(partition).key_rows.get((bucket, key))

    def object(self, partition: int, bucket: bytes, key: bytes) -> bytes | None:
        """The canonical object bytes, or None."""
        with self._lock:
            return self._of(partition).objects.get((bucket, key))

    def changes(self, partition: int, from_offset: int, limit: int) -> list[Change]:
        """Up to `limit` change rows at offsets >= `from_offset`, in offset order."""
        with self._lock:
            kept = self._of(partition)
            at = bisect_left(kept.change_offsets, from_offset)
            return [kept.changes[offset] for offset in islice(kept.change_offsets, at, at + limit)]

    def cursor(self, partition: int, queue: bytes) -> Cursor:
        """The queue's cursor rows in this partition."""
        with self._lock:
            kept = self._of(partition)
            offset, payload = kept.cursors.get(queue, (NO_OFFSET, None))
            return Cursor(offset, payload, kept.soft_cursors.get(queue))

    def request_offset(self, partition: int, key_hash: int, request_id: bytes) -> int | None:
        """The offset of the entry that carried this request, if it is remembered."""
        with self._lock:
            return self._requests.offset_of(partition, key_hash, request_id)

    def reaped_clocks(self, partition: int) -> Mapping[Name, bytes]:
        """(bucket, key) -> encoded clock of the tombstone that was reaped, of the partition's last ones."""
        return self._remembered.reaped.clocks(partition)

    def offset_at(self, partition: int, time_ms: int) -> int:
        """An offset below which no change was made at or after `time_ms`."""
        with self._lock:
            marks = self._of(partition).marks
            second = time_ms // 1000
            if not marks or second > marks[-1][0]:
                return self.applied(partition).offset
            if second >= 0 and marks[-1][0] - second < FULL_FOR_S:
                return min(self.applied(partition).offset, marks[bisect_left(marks, (second, 0))][1])
            at = bisect_right(marks, second, key=lambda mark: mark[0])
            return marks[at - 1][1] if at else 0

    def seconds_around(self, partition: int, offset: int) -> tuple[int | None, int | None]:
        """See the port."""
        with self._lock:
            marks = self._of(partition).marks
            below = bisect_right(marks, offset, key=lambda mark: mark[1])
            above = bisect_left(marks, offset, key=lambda mark: mark[1])
            return marks[below - 1][0] if below else None, marks[above][0] if above < len(marks) else None

    def list_keys(
        self, partition: int, bucket: bytes | None, after: ListedName | None, prefix: bytes = b""
    ) -> Iterator[ListedKey]:
        """Keys of a bucket (or all), in (bucket, key) order, as of the first one's request."""
        with self._lock:
            kept = self._of(partition)
            listed = [
                ListedKey(*name, kept.key_rows[name])
                for name in kept.names
                if bucket in (None, name[0])
                and name[bucket is not None].startswith(prefix)
                and (after is None or (name[0] > after[0] if after[1] is None else name > after))
            ]
        yield from listed

    def key_rows(
        self, partition: int, from_segment: int, to_segment: int
    ) -> Generator[tuple[int, bytes, bytes, bytes], None, None]:
        """(segment, bucket, key, encoded key row) for segments [from, to), in segment order."""
        with self._lock:
            listed = sorted((segment_of(key_hash(*n)), *n, row) for n, row in self._of(partition).key_rows.items())
        yield from (row for row in listed if from_segment <= row[0] < to_segment)

    def size_bytes(self) -> int:
        """The bytes of all objects and key rows."""
        with self._lock:
            return sum(
                len(value)
                for kept in self._partitions.values()
                for values in (kept.objects, kept.key_rows)
                for value in values.values()
            )

    def close(self) -> None:
        """A last checkpoint."""
        self.checkpoint()

    def _of(self, partition: int) -> PartitionRows:
        return self._partitions.get(partition) or PartitionRows()

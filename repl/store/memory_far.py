"""The memory twin of `repl.store.far`: the same bytes on the wire, dictionaries at both ends."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from repl.model.errors import DamagedChunk
from repl.model.keys import key_hash, segment_of
from repl.store import rows, transfer
from repl.store.port import Applied, Change, Chunk, FarMark, StateChunk
from repl.store.progress import Progress
from repl.store.reaped import GONE, decode_gone
from repl.store.remembered import Remembered
from repl.store.rows import Position
from repl.store.transfer import ROW_BYTES, Row

if TYPE_CHECKING:
    from repl.store.memory import Kept


class MemorySnapshot:
    """`repl.store.port.Snapshot`: everything is copied at once."""

    def __init__(self, kept: Kept, end: Applied, requests: list[tuple[int, bytes]]) -> None:
        self.end = end
        self._key_rows = sorted((segment_of(key_hash(*name)), *name, row) for name, row in kept.key_rows.items())
        self._objects = dict(kept.objects)
        self._rows = [
            Row(
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

    def rows(self, from_offset: int, limit_bytes: int) -> Chunk:
        """See the port."""
        found: list[Row] = []
        size = 0
        for row in self._rows:
            if row.offset >= from_offset:
                size += len(row.change) + len(row.key_row) + len(row.object) + ROW_BYTES
                if found and size > limit_bytes:
                    return Chunk(transfer.encode(found), row.offset, len(found))
                found.append(row)
        return Chunk(transfer.encode(found), self.end.offset, len(found))

    def damaged_changes(self, from_offset: int, limit: int) -> tuple[Mapping[int, bytes], int | None]:  # noqa: ARG002 - see below
        """See the port: rows that were never bytes are whole."""
        return {}, None

    def state(self, after: bytes, limit_bytes: int) -> StateChunk:
        """See the port."""
        found: list[tuple[bytes, bytes]] = []
        size = 0
        for item in self._state:
            if item[0] > after:
                size += len(item[0]) + len(item[1])
                if found and size > limit_bytes:
                    return StateChunk(transfer.encode(found), found[-1][0], False)
                found.append(item)
        return StateChunk(transfer.encode(found), found[-1][0] if found else after, True)

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
        """Nothing to let go of."""


class MemoryFar:
    """`repl.store.port.FarStore` of one `MemoryStore`."""

    def __init__(
        self, partitions: dict[int, Kept], progress: Progress, remembered: Remembered, new: Callable[[], Kept]
    ) -> None:
        self._partitions = partitions
        self._progress = progress
        self._remembered = remembered
        self._requests = remembered.requests
        self._new = new
        self._marks: dict[int, FarMark] = {}

    def marks(self) -> Mapping[int, FarMark]:
        """See the port."""
        return dict(self._marks)

    def begin(self, partition: int, *, empty: bool) -> FarMark:
        """See the port."""
        applied = self._progress.applied(partition)
        self._progress.forget(partition)
        if empty:
            self._partitions[partition] = self._new()
            self._remembered.forget(partition)
            applied = Applied(0, 0)
        return self._mark(partition, FarMark(applied.offset, applied.epoch, True))

    def _mark(self, partition: int, mark: FarMark) -> FarMark:
        self._marks[partition] = mark
        return mark

    def install_rows(self, partition: int, chunk: bytes, upto: int, epoch: int) -> FarMark:
        """See the port."""
        found = transfer.decode_rows(chunk)
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
        return self._mark(partition, FarMark(upto, epoch, whole))

    def install_state(self, partition: int, chunk: bytes, *, first: bool) -> FarMark:
        """See the port."""
        found = transfer.decode_state(chunk)
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
        return self._mark(partition, FarMark(before.position, before.epoch, False))

    def remove(self, partition: int) -> Iterator[int]:
        """See the port."""
        self._progress.forget(partition)
        self._remembered.forget(partition)
        kept = self._partitions.pop(partition, None)
        self._marks.pop(partition, None)
        yield 0 if kept is None else len(kept.names)

    def sync(self) -> None:
        """Nothing to sync."""

    def finish(self, partition: int, end: Applied) -> None:
        """See the port."""
        kept = self._partitions.setdefault(partition, self._new())
        marks = kept.marks
        self._remembered.reaped.forget(partition)
        for name, (offset, payload) in sorted(kept.cursors.items()):
            if name.startswith(GONE):
                self._remembered.reaped.of(partition).add(offset, *decode_gone(payload))
        del self._marks[partition]
        self._progress.install(partition, Position(end.epoch, end.offset, marks[-1][0] if marks else rows.NO_MARK))
        self._progress.checkpointed(self._progress.written())

    def mend(self, partition: int, chunk: bytes, seen: bytes | None, upto: int) -> bool:
        """See the port."""
        row = transfer.decode_one(chunk)
        change: Change = rows.decode_change(row.offset, row.change)
        name = (change.bucket, change.key)
        kept = self._partitions.setdefault(partition, self._new())
        applied = self._progress.applied(partition).offset
        if partition in self._marks or kept.key_rows.get(name) != seen:
            return False
        if row.offset >= applied or (seen is None and applied > upto):
            return False
        stale = transfer.offset_seen(seen)
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

    def drop_change(self, partition: int, offset: int, seen: bytes) -> bool:  # noqa: ARG002 - none is ever damaged
        """See the port."""
        return False

    def snapshot(self, partition: int) -> MemorySnapshot:
        """See the port."""
        kept = self._partitions.get(partition) or self._new()
        return MemorySnapshot(kept, self._progress.applied(partition), self._requests.of(partition).all())

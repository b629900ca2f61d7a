"""The store's memory twin: the same answers from plain dictionaries.

For tests and for simulations of whole clusters, where a disk would only be slow. It keeps nouns
instead of rows and shares nothing with LevelDB's half but the positions (`progress`), so that the contract
suite compares two implementations. It is as durable as its process: a checkpoint moves the floors at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from threading import RLock

from repl.model.entry import CHANGES, NO_OFFSET, EntryKind, decode_key_row
from repl.model.keys import key_hash, segment_of
from repl.store.memory_far import MemoryFar
from repl.store.port import REAPED, Applied, Change, Cursor, ListedKey, PartitionStep, Prepared
from repl.store.progress import Progress
from repl.store.reads import FULL_FOR_S
from repl.store.reaped import encode_gone, gone_name
from repl.store.remembered import Remembered
from repl.store.requests import WINDOW_OFFSETS, request_name
from repl.store.rows import Position

Name = tuple[bytes, bytes]
"""(bucket, key)."""


@dataclass(slots=True)
class Kept:
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
        self._remembered = Remembered(request_window_offsets)
        self._requests = self._remembered.requests
        self._progress = Progress({}, {}, trusted=True)
        self._partitions: dict[int, Kept] = {}
        self._lock = RLock()
        self.far = MemoryFar(self._partitions, self._progress, self._remembered, Kept)

    def applied_offsets(self) -> Mapping[int, int]:
        """The applied offset of every partition that has rows here."""
        return self._progress.applied_offsets()

    def applied(self, partition: int) -> Applied:
        """How far the partition is applied."""
        return self._progress.applied(partition)

    def reach(self, partition: int) -> int:
        """What any reader has seen until now is of entries below this offset."""
        return self.applied(partition).offset

    def durable_floor(self, partition: int) -> int:
        """What was applied at the last checkpoint."""
        return self._progress.floor(partition)

    def needs_replay(self) -> bool:
        """Never: what a restart loses here is everything."""
        return False

    def replay_finished(self) -> None:
        """As a checkpoint."""
        self.checkpoint()

    def prepare(self, steps: Sequence[PartitionStep]) -> Prepared:
        """The steps themselves."""
        return steps

    def takes_at_once(self, prepared: Prepared) -> bool:  # noqa: ARG002
        """Always."""
        return True

    def commit(self, prepared: Prepared) -> None:
        """As `write`."""
        self.write(prepared)

    def write(self, steps: Sequence[PartitionStep]) -> None:
        """Apply the steps; a partition's entries begin where its last ones ended (asserted)."""
        with self._lock:
            for step in steps:
                self._write(step)

    def _write(self, step: PartitionStep) -> None:
        kept = self._partitions.setdefault(step.partition, Kept())
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
        end = Position(last.epoch, last.offset + 1, mark_s)
        self._progress.wrote([self._progress.prepared(step.partition, first, end)])

    def checkpoint(self) -> None:
        """Move the floors to what is applied."""
        with self._lock:
            noted = self._progress.written()
            self.before_floors()
            self._progress.checkpointed(noted)

    def rest(self, *, idle: bool) -> None:
        """Nothing was written for a while: nothing to give back."""

    def key_row(self, partition: int, key_hash: int, bucket: bytes, key: bytes) -> bytes | None:  # noqa: ARG002
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

    def list_keys(self, partition: int, bucket: bytes | None, after: Name | None) -> Iterator[ListedKey]:
        """Keys of a bucket (or all), in (bucket, key) order, as they are when the first is asked for."""
        with self._lock:
            kept = self._of(partition)
            listed = [
                ListedKey(*name, kept.key_rows[name])
                for name in kept.names
                if bucket in (None, name[0]) and (after is None or name > after)
            ]
        yield from listed

    def key_rows(self, partition: int, from_segment: int, to_segment: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
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

    def _of(self, partition: int) -> Kept:
        return self._partitions.get(partition) or Kept()

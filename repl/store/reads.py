"""Reading the store's rows: keys, objects, listings, what changed since. From any thread.

What is here knows how rows are laid out (`rows`) but not LevelDB: it reads through a `Source`, which
`repl.store.leveldb` provides. Nothing is decoded beyond the row's own fields; objects and key rows go out as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from itertools import islice
from typing import Final

from isthmus.repl.model.entry import NO_OFFSET
from isthmus.repl.model.errors import Corruption
from isthmus.repl.model.keys import SEGMENT_COUNT, key_hash, segment_of
from isthmus.repl.store import rows
from isthmus.repl.store.key_filter import SLOT_MASK
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.port import Change, Cursor, DamagedChange, ListedKey
from isthmus.repl.store.positions import PositionTable
from isthmus.repl.store.row_source import Source
from isthmus.repl.store.rows import Prefixes

FULL_FOR_S: Final = 3_600
"""Every time mark of the last hour stays (`repl.store.time_index`): lag and "since" are asked about the recent past. A
guess."""


class StoreReads:
    """The reading half of a store (`repl.store.port.Store`)."""

    def __init__(self, source: Source, progress: PositionTable, remembered: MemoryIndexes) -> None:
        self._source = source
        self._progress = progress
        self._remembered = remembered
        self.before_floors: Callable[[], None] = lambda: None
        self._prefixes: dict[int, Prefixes] = {}
        self._head = (b"", rows.bucket_head(b""))
        """The bucket that was last asked for, as it stands in a row's key; replaced as a whole, for any thread."""

    def key_row(self, partition: int, key_hash: int, bucket: bytes, key: bytes) -> bytes | None:
        """The encoded key row, or None. Raises Corruption, LocalFault; so do all reads."""
        prefix = (self._prefixes.get(partition) or self._add_prefixes(partition)).key
        of, head = self._head
        if of != bucket:
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
        """Up to `limit` change rows at offsets >= `from_offset`, in offset order, all of one moment. Raises
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
        """(bucket, key) -> encoded clock of the tombstone that was reaped, of the partition's last ones."""
        return self._remembered.reaped.clocks(partition)

    def reach(self, partition: int) -> int:
        """What any reader has seen until now is of entries below this offset: a batch is prepared before it is
        written."""
        return self._progress.next(partition).offset

    def offset_at(self, partition: int, time_ms: int) -> int:
        """An offset below which no change was made at or after `time_ms`, by the leaders' clocks: to the second for
        the last hour, to the minute for the last day, then to the hour; too early rather than too late."""
        second = time_ms // 1000
        applied = self._progress.applied(partition).offset
        newest_s = self._progress.newest_mark_s(partition)
        if second > newest_s:
            return applied
        if second < 0:
            return 0
        prefix = self._prefixes_of(partition).mark
        if newest_s - second < FULL_FOR_S:
            # Each second in which something was made has its mark still: nothing was, from this one to the next mark's.
            with closing(self._source.scan(prefix + rows.U64.pack(second), rows.after_prefix(prefix))) as scan:
                return min(applied, rows.decode_u64(next(scan)[1]))
        name, value = self._source.last_before(prefix + rows.U64.pack(second + 1))
        return rows.decode_u64(value) if name.startswith(prefix) else 0

    def seconds_around(self, partition: int, offset: int) -> tuple[int | None, int | None]:
        """See the port: some 30 seeks, since offsets rise with seconds."""
        prefix = self._prefixes_of(partition).mark

        def last_upto(second: int) -> tuple[int, int] | None:
            """(second, offset) of the last mark at or before `second`."""
            name, value = self._source.last_before(prefix + rows.U64.pack(second + 1))
            if not name.startswith(prefix):
                return None
            return rows.decode_u64(name[len(prefix) :]), rows.decode_u64(value)

        # Seconds below `low` have their last mark below `offset`, those from `high` on at or above it.
        end = self._progress.newest_mark_s(partition) + 1
        low, high = 0, end
        while low < high:
            middle = (low + high) // 2
            found = last_upto(middle)
            if found is not None and found[1] >= offset:
                high = found[0]
            else:
                low = middle + 1
        above = low if low < end else None
        if above is not None:
            exact = last_upto(above)
            if exact is not None and exact[1] == offset:
                return above, above
        below = last_upto(low - 1) if low else None
        return None if below is None else below[0], above

    def list_keys(self, partition: int, bucket: bytes | None, after: tuple[bytes, bytes] | None) -> Iterator[ListedKey]:
        """Keys of a bucket (or all) with their encoded key rows, in (bucket, key) order, tombstones included; the
        snapshot is taken at the first one. Close the iterator when done early."""
        prefixes = self._prefixes_of(partition)
        prefix = prefixes.object if bucket is None else prefixes.object + rows.bucket_head(bucket)
        start = prefix
        if after is not None:
            start = max(start, prefixes.object + rows.bucket_head(after[0]) + after[1] + b"\0")
        at = len(prefixes.object)
        with self._source.snapshot() as snapshot, closing(snapshot.names(start, rows.after_prefix(prefix))) as names:
            for name in names:
                tail = name[at:]
                listed_bucket, key = rows.split_tail(tail)
                segment = segment_of(key_hash(listed_bucket, key))
                row = snapshot.get(prefixes.key + rows.segment_name(segment) + tail)
                if row is None:
                    raise Corruption(f"the object {listed_bucket!r}/{key!r} of partition {partition} has no key row")
                yield ListedKey(listed_bucket, key, row)

    def key_rows(self, partition: int, from_segment: int, to_segment: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
        """(segment, bucket, key, encoded key row) for segments [from, to), in segment order; the snapshot is
        taken at the first one. Close the iterator when done early."""
        return scan_key_rows(self._source, self._prefixes_of(partition).key, from_segment, to_segment)

    def _prefixes_of(self, partition: int) -> Prefixes:
        return self._prefixes.get(partition) or self._add_prefixes(partition)

    def _add_prefixes(self, partition: int) -> Prefixes:
        made = self._prefixes[partition] = rows.prefixes(partition)
        return made


def scan_key_rows(
    source: Source, prefix: bytes, from_segment: int, to_segment: int
) -> Iterator[tuple[int, bytes, bytes, bytes]]:
    """(segment, bucket, key, encoded key row) of the key rows below `prefix`, segments [from, to), in segment order."""
    assert 0 <= from_segment <= to_segment <= SEGMENT_COUNT
    at = len(prefix)
    tail_at = at + rows.SEGMENT_BYTES
    start, stop = (prefix + rows.segment_name(segment) for segment in (from_segment, to_segment))
    with closing(source.scan(start, stop)) as scan:
        for name, row in scan:
            yield int.from_bytes(name[at:tail_at], "big"), *rows.split_tail(name[tail_at:]), row


def scan_segments(
    source: Source, prefix: bytes, ranges: Iterable[tuple[int, int]]
) -> Generator[list[tuple[bytes, bytes]], None, None]:
    """For each range [from, to) of segments, which do not go back, its (name behind `prefix`, encoded key row)."""
    at = len(prefix)
    end = prefix + rows.segment_name(SEGMENT_COUNT)
    with closing(source.scan(prefix, end)) as scan:
        row = next(scan, None)
        for first, to in ranges:
            start, stop = prefix + rows.segment_name(first), prefix + rows.segment_name(to)
            if row is not None and row[0] < start:
                try:
                    row = scan.send(start)
                except StopIteration:
                    row = None
            found = []
            while row is not None and row[0] < stop:
                found.append((row[0][at:], row[1]))
                row = next(scan, None)
            yield found


PIECE_ROWS: Final = 64
"""Rows taken between two looks at how large a page has become: with the longest names and clocks 15 MB."""


def scan_key_pages(
    source: Source, prefix: bytes, start: bytes, to_segment: int, limit_rows: int, limit_bytes: int
) -> Generator[tuple[list[bytes], list[bytes]], None, None]:
    """(names behind `prefix`, encoded key rows) from the name `start` to the segments below `to_segment`, in pages."""
    at = len(prefix)
    with closing(source.scan(prefix + start, prefix + rows.segment_name(to_segment))) as scan:
        names: list[bytes] = []
        values: list[bytes] = []
        size = 0
        while piece := list(islice(scan, min(PIECE_ROWS, limit_rows - len(names)))):
            for name, value in piece:
                names.append(name[at:])
                values.append(value)
                size += len(name) + len(value)
            if len(names) >= limit_rows or size > limit_bytes:
                yield names, values
                names, values, size = [], [], 0
        if names:
            yield names, values

"""The input of a source queue: a store in memory, and entries to put into it.

`FakeStore` holds the rows that apply would write and has the store's reading methods. `EntryFactory` makes real
entries. A test may notify the queue later than it writes, as happens between the writer thread and the event loop.
"""

from __future__ import annotations

from isthmus.repl.model.entry import NO_OFFSET, Entry, EntryKind, encode_key_row, make_entry
from isthmus.repl.model.keys import key_hash
from isthmus.repl.model.objects import TOMBSTONE, Content, encode_with_summary, write
from isthmus.repl.model.vclock import Clock, actor_of, pack_counter
from isthmus.repl.store.port import AppliedPosition, Change, Cursor

OURS = b"\xa0" * 16
SINK = b"\xb0" * 16
THIRD = b"\xc0" * 16
BUCKET = b"bucket"


class FakeStore:
    """Change index, objects, and cursors of several partitions, in memory."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[int, Change]] = {}
        self.latest: dict[tuple[int, bytes], int] = {}
        self.objects: dict[tuple[int, bytes], bytes] = {}
        self.ends: dict[int, int] = {}
        self.cursor_entries: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        self.soft: dict[tuple[int, bytes], bytes] = {}
        self.reads = 0

    def changes(self, partition: int, from_offset: int, limit: int) -> list[Change]:
        self.reads += 1
        rows = self.rows.get(partition, {})
        return [rows[offset] for offset in sorted(rows) if offset >= from_offset][:limit]

    def applied(self, partition: int) -> AppliedPosition:
        return AppliedPosition(self.ends.get(partition, 0), 1)

    def object(self, partition: int, bucket: bytes, key: bytes) -> bytes | None:
        assert bucket == BUCKET
        self.reads += 1
        return self.objects.get((partition, key))

    def key_row(self, partition: int, key_hash: int, bucket: bytes, key: bytes) -> bytes | None:
        """Whether the key has one: nobody looks into it."""
        return b"row" if (partition, key) in self.objects else None

    def cursor(self, partition: int, queue: bytes) -> Cursor:
        offset, entry = self.cursor_entries.get((partition, queue), (NO_OFFSET, None))
        return Cursor(offset, entry, self.soft.get((partition, queue)))

    def put(self, partition: int, entry: Entry) -> None:
        """Apply one entry."""
        assert entry.offset == self.ends.get(partition, 0)
        self.ends[partition] = entry.offset + 1
        rows = self.rows.setdefault(partition, {})
        if entry.kind == EntryKind.CURSOR:
            self.cursor_entries[partition, entry.key] = (entry.offset, entry.payload)
        if entry.kind not in (EntryKind.DATA, EntryKind.REAP):
            return
        rows.pop(entry.previous_offset, None)
        rows[entry.offset] = Change(
            entry.offset, entry.kind, entry.key_hash, entry.origin, entry.time_ms, entry.bucket, entry.key
        )
        self.latest[partition, entry.key] = entry.offset
        if entry.kind == EntryKind.DATA:
            self.objects[partition, entry.key] = entry.payload
        else:
            self.objects.pop((partition, entry.key), None)


class EntryFactory:
    """Makes the next entry of a partition from the contents of a FakeStore."""

    def __init__(self, fake_store: FakeStore) -> None:
        self.fake_store = fake_store

    def data(
        self,
        partition: int,
        key: bytes,
        *,
        origin: bytes = OURS,
        size: int = 20,
        delete: bool = False,
        time_ms: int = 0,
        seen: Clock = (),
    ) -> Entry:
        offset = self.fake_store.ends.get(partition, 0)
        content = TOMBSTONE if delete else Content(b"v" * size)
        made = write(None, seen, content, (actor_of(origin, partition), pack_counter(1, offset)), time_ms)
        payload, summary = encode_with_summary(made)
        return make_entry(
            EntryKind.DATA,
            1,
            offset,
            request_id=b"",
            origin=origin,
            time_ms=time_ms,
            key_hash=key_hash(BUCKET, key),
            previous_offset=self.fake_store.latest.get((partition, key), NO_OFFSET),
            bucket=BUCKET,
            key=key,
            row=encode_key_row(summary, offset),
            payload=payload,
        )

    def reap(self, partition: int, key: bytes) -> Entry:
        offset = self.fake_store.ends.get(partition, 0)
        previous = self.fake_store.latest.get((partition, key), NO_OFFSET)
        return make_entry(
            EntryKind.REAP,
            1,
            offset,
            request_id=b"",
            origin=OURS,
            time_ms=0,
            previous_offset=previous,
            bucket=BUCKET,
            key=key,
        )

    def barrier(self, partition: int) -> Entry:
        offset = self.fake_store.ends.get(partition, 0)
        return make_entry(EntryKind.BARRIER, 1, offset, request_id=b"", origin=OURS, time_ms=0)

    def cursor(self, partition: int, queue: bytes, payload: bytes) -> Entry:
        offset = self.fake_store.ends.get(partition, 0)
        return make_entry(
            EntryKind.CURSOR, 1, offset, request_id=b"", origin=OURS, time_ms=0, key=queue, payload=payload
        )

"""Turns apply steps into rows: the hot loop of every write.

More than half of the cost of replication is writing these rows, so the loop creates nothing that it does not hand over:
no object per row, prefixes once per partition, bound methods once per batch. It fills anything with `put` and `delete`;
`repl.store.leveldb` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from isthmus.repl.model.entry import EntryKind, decode_key_row
from isthmus.repl.store import rows
from isthmus.repl.store.key_filter import SLOT_MASK
from isthmus.repl.store.memory_index import MemoryIndexes
from isthmus.repl.store.port import REAPED, PartitionStep
from isthmus.repl.store.positions import End, PositionTable
from isthmus.repl.store.reaped_keys import encode_gone, gone_name
from isthmus.repl.store.request_dedup import request_name
from isthmus.repl.store.rows import Prefixes, StoredPosition

_DATA: Final = int(EntryKind.DATA)
_LEAVING: Final = int(EntryKind.LEAVING)
_CURSOR: Final = int(EntryKind.CURSOR)
_REAP: Final = int(EntryKind.REAP)
_PLAIN: Final = frozenset((int(EntryKind.BARRIER), int(EntryKind.CONFIG)))


class RowBatch(Protocol):
    """Rows to be written and deleted atomically; later calls replace earlier ones."""

    def put(self, name: bytes, value: bytes) -> None:
        """Write the row `name`."""

    def delete(self, name: bytes) -> None:
        """Delete the row `name`, if it is there."""


def put_object(batch: RowBatch, prefixes: Prefixes, tail: bytes, payload: bytes) -> None:
    """Write the object row of a key, and the separator if it is large."""
    batch.put(prefixes.object + tail, payload)
    if len(payload) >= rows.LARGE_OBJECT_BYTES:
        batch.put(rows.SEPARATOR_KEY, rows.SEPARATOR)


def fill(
    batch: RowBatch,
    steps: Sequence[PartitionStep],
    progress: PositionTable,
    prefixes_of: Callable[[int], Prefixes],
    remembered: MemoryIndexes,
) -> tuple[End, ...]:
    """Put the rows of `steps` into `batch`; returns the positions of their partitions behind it.

    Rows of the memory indexes are in the batch, too; key rows are noted in the key filter before they can be read. A
    partition's entries are contiguous and follow its last ones, or begin at its floor in a replay (asserted). All rows
    are absolute, so entries written again change nothing.
    """
    put, delete = batch.put, batch.delete
    pack_u64, pack_head = rows.U64.pack, rows.CHANGE_HEAD.pack
    bucket, head = b"", rows.bucket_head(b"")
    large_bytes, large = rows.LARGE_OBJECT_BYTES, False
    requests, slots = remembered.requests, remembered.names.slots
    ends = []
    for step in steps:
        partition, entries = step.partition, step.entries
        prefixes = prefixes_of(partition)
        for queue, state in step.soft_cursors.items():
            put(prefixes.soft + queue, state)
        if not entries:
            continue
        object_prefix, key_prefix, change_prefix, mark_prefix, cursor_prefix, _, request_prefix, applied_name = prefixes
        window = requests.of(partition)
        mark_s = progress.next(partition).newest_mark_s
        next_mark_ms = mark_s * 1000 + 1000
        first = expected = entries[0].offset
        for (
            kind, _, offset, _, request_id, origin, time_ms, hash64, _, previous, entry_bucket, key, row, payload, _
        ) in entries:  # fmt: skip
            assert offset == expected, (partition, offset, expected)
            expected += 1
            if kind == _DATA or kind == _LEAVING:  # noqa: SIM109 - the first is nearly all of them
                assert len(origin) == 16
                if entry_bucket != bucket:
                    bucket, head = entry_bucket, rows.bucket_head(entry_bucket)
                tail = head + key
                number = pack_u64(offset)
                put(object_prefix + tail, payload)
                if len(payload) >= large_bytes:
                    large = True
                name = key_prefix + (hash64 >> 44).to_bytes(3, "big") + tail
                slots[hash(name) & SLOT_MASK] = 1
                put(name, row)
                put(change_prefix + number, pack_head(kind, hash64, time_ms) + origin + tail)
                if previous >= 0:
                    delete(change_prefix + pack_u64(previous))
                if time_ms >= next_mark_ms:
                    mark_s = time_ms // 1000
                    next_mark_ms = mark_s * 1000 + 1000
                    put(mark_prefix + pack_u64(mark_s), number)
                if request_id:
                    name = request_name(hash64, request_id)
                    window.add(offset, name)
                    put(request_prefix + number, name)
            elif kind == _CURSOR:
                put(cursor_prefix + key, pack_u64(offset) + payload)
            elif kind == _REAP:
                tail = rows.bucket_head(entry_bucket) + key
                delete(object_prefix + tail)
                delete(key_prefix + (hash64 >> 44).to_bytes(3, "big") + tail)
                if previous >= 0:  # else it was not here, and is only remembered
                    delete(change_prefix + pack_u64(previous))
                number = pack_u64(offset)
                put(cursor_prefix + REAPED, number)
                if row:  # a release before these rows made the entry otherwise
                    clock = decode_key_row(row).clock
                    put(cursor_prefix + gone_name(offset), number + encode_gone(entry_bucket, key, clock))
                    for gone in remembered.reaped.of(partition).add(offset, entry_bucket, key, clock):
                        delete(cursor_prefix + gone_name(gone))
            else:
                assert kind in _PLAIN, kind
        for gone in window.trim(expected - requests.offset_count):
            delete(request_prefix + pack_u64(gone))
        end = progress.prepared(partition, first, StoredPosition(entries[-1].epoch, expected, mark_s))
        if end.moves_applied:
            put(applied_name, rows.encode_position(end.position))
        ends.append(end)
    if large:
        put(rows.SEPARATOR_KEY, rows.SEPARATOR)
    return tuple(ends)

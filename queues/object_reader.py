"""Reads of a queue from the store: rows of the change index, and objects to be served. Runs in the read pool's
threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from isthmus.queues.window import Window
from isthmus.queues.window_rules import Item, Read, UnreadableObject
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import CodecError, Corruption, DamagedRow, IsthmusError
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.model.objects import decode_object, is_deleted_object
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.model.vclock import decode_clock, of_partition, partition_prefix
from isthmus.repl.store.port import Change, DamagedChange, Store
from isthmus.repl.unforeseen import unforeseen

_LEAVING: Final = int(ReferenceKind.LEAVING)
_OBJECT: Final = int(ReferenceKind.OBJECT)
_TOMBSTONE: Final = int(ReferenceKind.TOMBSTONE)


def read_changes(store: Store, window: Window, from_offset: int, limit: int) -> list[Change]:
    """Up to `limit` rows of the window's partition at offsets >= `from_offset`, in offset order, with the origins that
    `backfilled` sets. Raises DamagedChange at a row that cannot be decoded, with the rows before it."""
    try:
        rows = store.changes(window.partition, from_offset, limit)
    except DamagedChange as error:
        error.before = backfilled(store, window, list(error.before))
        raise
    return backfilled(store, window, rows)


def sound_changes(store: Store, window: Window, from_offset: int, limit: int) -> list[Change]:
    """`read_changes` for listings: up to the first row that cannot be decoded."""
    try:
        return read_changes(store, window, from_offset, limit)
    except DamagedChange as error:
        return list(error.before)


def backfilled(store: Store, window: Window, rows: list[Change]) -> list[Change]:
    """`rows`, in which foreign rows that contain a write of this cluster get this cluster's origin, so that the window
    offers them (`Window.may_backfill`). Reads the key row of each foreign row below `backfill_end`."""
    if not rows or rows[0].offset >= window.backfill_end:
        return rows
    own = window.origins.own
    prefix = partition_prefix(own, window.partition)
    return [
        row._replace(origin=own) if window.may_backfill(row) and _has_seen(store, window, row, prefix) else row
        for row in rows
    ]


def _has_seen(store: Store, window: Window, change: Change, prefix: bytes) -> bool:
    """Whether the object's clock has a write of the partition of `prefix`. False when the key has changed again: its
    newer row is read at its own offset. True when the key row is damaged: a reference sent needlessly changes nothing
    at the sink, and one left out would lose a change."""
    found = store.key_row(window.partition, change.key_hash, change.bucket, change.key)
    if found is None:
        return False
    try:
        row = decode_key_row(found)
        return row.offset == change.offset and bool(of_partition(decode_clock(row.clock), prefix))
    except CodecError:
        window.damage_listener.on_damaged_row(window.partition, segment_of(change.key_hash))
        return True


def size_of(store: Store, window: Window, change: Change) -> int | None:
    """Bytes of the object as it is now, 0 when it has vanished, None when its key row is damaged."""
    found = store.key_row(window.partition, change.key_hash, change.bucket, change.key)
    try:
        return 0 if found is None else decode_key_row(found).size_bytes
    except CodecError:
        window.damage_listener.on_damaged_row(window.partition, segment_of(change.key_hash))
        return None


def read_objects(store: Store, items: Sequence[Item], limit_bytes: int) -> list[Read]:
    """The first of `items` with their objects as they are now, None for one that has vanished, until `limit_bytes` of
    payload would be exceeded (a single larger object is still returned). An object that is damaged, or at which the
    reading fails in a way that nobody foresaw, is an UnreadableObject, and the others are read. Raises LocalFault when
    the store fails."""
    resolved: list[Read] = []
    size = 0
    for item in items:
        if not item[8]:
            found = _with_object(store, item)
            if found is None or isinstance(found, UnreadableObject):
                resolved.append(found)
                continue
            item = found
        length = len(item[8])
        if size and size + length > limit_bytes:
            break
        size += length
        resolved.append(item)
    return resolved


def _with_object(store: Store, item: Item) -> Read:
    try:
        payload = _object(store, item[1], item[4], item[5])
    except Corruption as error:
        return UnreadableObject(f"its object cannot be read: {error}", damaged=True)
    except IsthmusError:
        raise
    except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
        bug = unforeseen.exception("queue.object_failed", error, partition=item[1], offset=item[2])
        return UnreadableObject(str(bug), damaged=False)
    if payload is None:
        return None
    kind = kind_of(payload, item)
    if isinstance(kind, UnreadableObject):
        return kind
    return (kind, item[1], item[2], item[3], item[4], item[5], item[6], item[7], payload)


def _object(store: Store, partition: int, bucket: bytes, key: bytes) -> bytes | None:
    """The object, None when the key is gone. Raises DamagedRow when the key row has no object."""
    payload = store.object(partition, bucket, key)
    if payload is None:
        hash64 = key_hash(bucket, key)
        if store.key_row(partition, hash64, bucket, key) is not None:
            payload = store.object(partition, bucket, key)  # it may have been written in between
            if payload is None:
                raise DamagedRow("its key row has no object", segment_of(hash64))
    return payload


def kind_of(payload: bytes, item: Item) -> int | UnreadableObject:
    """The kind under which the object of a reference is sent."""
    try:
        if not is_deleted_object(payload):
            return _OBJECT
    except Exception as error:  # noqa: BLE001 -- it looks at bytes of our own store, and checks nothing
        try:
            decode_object(payload)
        except CodecError as damage:
            return UnreadableObject(f"its object is damaged: {damage}", damaged=True)
        bug = unforeseen.exception("queue.object_failed", error, partition=item[1], offset=item[2])
        return UnreadableObject(str(bug), damaged=False)
    return _LEAVING if item[0] == _LEAVING else _TOMBSTONE


def read_batch(store: Store, items: Sequence[Item], limit_bytes: int) -> tuple[list[Read], dict[int, int]]:
    """`read_objects`, and for each partition of `items` an offset above everything that was read."""
    resolved = read_objects(store, items, limit_bytes)
    return resolved, {partition: store.reach(partition) for partition in {item[1] for item in items}}

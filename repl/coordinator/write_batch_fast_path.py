"""The fast path of write batches: many items at once, the common ones in one stretch of code each.

A common write stores a value, without request id and condition, for a key that is missing and was not reaped lately
(then without a context), or for a key whose whole clock the writer has seen. It replaces all that was there, so the
object has one sibling, and neither objects nor rows are built as values on the way to bytes.

A common push is an object of one sibling that names no write of this partition, for a key that is missing, or that it
dominates and that has no write of this partition either. It is stored as it came; only its clock is decoded, once.

An item whose work raises what nobody foresaw ends alone, as an InternalError, and leaves no entry.

Every other item goes through `WriteBatch.write` or `WriteBatch.push`, which define what is right: both paths make the
same entries and answers for common items, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, cast

import msgpack
from xxhash import xxh64_intdigest

from isthmus.repl.coordinator.write_batch import WriteBatch, WriteLimits
from isthmus.repl.model.entry import ENTRY_VERSION, KEY_ROW_VERSION, NO_OFFSET, Entry, EntryKind, decode_key_row, leaf
from isthmus.repl.model.errors import IsthmusError, clear_traceback
from isthmus.repl.model.objects import OBJECT_VERSION, peek_summary
from isthmus.repl.model.properties import Properties
from isthmus.repl.model.requests import PushItem, PushOutcome, PushResult, WriteRequest, WriteResult
from isthmus.repl.model.vclock import (
    CLOCK_ENTRIES_MAX,
    OFFSET_BITS,
    decode_clock,
    descends,
    encode_clock,
    increment,
    of_one_writer,
)
from isthmus.repl.unforeseen import unforeseen

_pack: Final = msgpack.Packer().pack  # one for all: see repl.model.vclock
_new: Final = tuple.__new__
"""Builds a named tuple from all its fields, in order, at half the cost of its own constructor."""

_LENGTH: Final = Struct(">I").pack
_HASH: Final = Struct(">Q").pack
_DATA: Final = int(EntryKind.DATA)
_REAP: Final = int(EntryKind.REAP)


def add_items(
    batch: WriteBatch,
    items: Sequence[WriteRequest | PushItem],
    slots: Sequence[int],
    hashes: Sequence[int],
    results: list[object],
) -> int:
    """Add `items[slot]`, whose key has the hash beside it, for each of `slots`; the answers go into `results[slot]`.

    The items of one call are all writes or all pushes. Returns the offset below which all must be applied before any
    answer may be given; 0: at once.
    """
    if type(items[slots[0]]) is WriteRequest:
        return _add_writes(batch, cast("Sequence[WriteRequest]", items), slots, hashes, results)
    return _add_pushes(batch, cast("Sequence[PushItem]", items), slots, hashes, results)


def _add_writes(
    batch: WriteBatch,
    requests: Sequence[WriteRequest],
    slots: Sequence[int],
    hashes: Sequence[int],
    results: list[object],
) -> int:
    partition, new_rows, pending = batch.partition, batch.new_rows, batch.partition.unapplied.pending_rows
    entries = batch.entries
    partition_id, actor, epoch = partition.id, partition.actor, batch.epoch
    origin, now_ms, now_s = batch.cluster_uuid, batch.now_ms, batch.now_ms // 1000
    key_row, entry_limit = batch.store.key_row, batch.limits.made_bytes
    reaped = batch.store.reaped_clocks(partition_id)
    bucket, bucket_head, quiet_bytes = b"", b"", -1
    end = puts = 0
    for slot, hash64 in zip(slots, hashes, strict=True):
        request, first = requests[slot], batch.next_offset
        try:
            (_, item_bucket, key), content, context, request_id, _, condition = request
            value, content_type, content_encoding, metadata, links, indexes, tombstone = content
            if item_bucket != bucket:
                bucket, bucket_head = item_bucket, _LENGTH(len(item_bucket)) + item_bucket
                quiet_bytes = _quiet_bytes(batch.limits, batch.properties.of(bucket))
            common = not (request_id or tombstone or condition is not None or len(value) > quiet_bytes)
            if common:
                name = (bucket, key)
                unapplied = new_rows.get(name) or pending.get(name)
                if unapplied is None:
                    row = key_row(partition_id, hash64, bucket, key)
                else:
                    row = unapplied.row if unapplied.kind != _REAP else None
                offset = batch.next_offset
                counter = epoch << OFFSET_BITS | offset
                if row is None:
                    common = not context and unapplied is None and name not in reaped
                    clock = encode_clock(((actor, counter, now_s),))
                    change, previous = 0, NO_OFFSET
                elif context:
                    old_clock, old_hash, _, _, _, old_tombstone, previous = decode_key_row(row)
                    common = encode_clock(context) == old_clock and len(context) < CLOCK_ENTRIES_MAX
                    clock = encode_clock(increment(context, actor, counter, now_s))
                    change = leaf(bucket, key, old_clock, old_hash, tombstone=old_tombstone)
                else:
                    common = False
            if not common:
                answer, at = batch.write(request, hash64)
                results[slot] = answer
                if at > end:
                    end = at
                continue
            sibling = (
                actor, counter, now_ms, False, value, content_type, content_encoding, metadata, links, indexes,
            )  # fmt: skip
            payload: bytes = _pack((OBJECT_VERSION, clock, (sibling,)))
            object_hash = xxh64_intdigest(payload)
            change ^= xxh64_intdigest(bucket_head + _LENGTH(len(key)) + key + clock + _HASH(object_hash))
            row = _pack((KEY_ROW_VERSION, clock, object_hash, now_ms, len(payload), 1, False, offset))
            fields = (
                _DATA, epoch, offset, 0, b"", origin, now_ms, hash64, change, previous, bucket, key, row, payload,
            )  # fmt: skip
            wire: bytes = _pack((ENTRY_VERSION, *fields))
            if len(wire) > entry_limit:
                raise batch.too_long(wire)
            entry = _new(Entry, (*fields, wire))
            entries.append(entry)  # these three lines are `batch.add`
            new_rows[name] = entry
            batch.next_offset = end = offset + 1
            puts += 1
            results[slot] = _new(WriteResult, (payload, clock, 1, True, False, ""))
        except IsthmusError as error:
            results[slot] = clear_traceback(error)
        except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
            batch.take_back(first)
            results[slot] = unforeseen.exception(
                "write.bug", error, partition=partition_id, bucket=repr(request.key.bucket)
            )
    batch.put_count += puts
    return end


def _quiet_bytes(limits: WriteLimits, properties: Properties) -> int:
    """Size of the largest value that is neither refused nor counted as too large."""
    quiet = limits.object_bytes
    if 0 < properties.max_object_bytes < quiet:
        quiet = properties.max_object_bytes
    warn = properties.warn_object_bytes or limits.object_warn_bytes
    return warn if 0 < warn < quiet else quiet


APPLIED: Final = PushResult(PushOutcome.APPLIED)
"""The answer to every common push."""


def _add_pushes(
    batch: WriteBatch, items: Sequence[PushItem], slots: Sequence[int], hashes: Sequence[int], results: list[object]
) -> int:
    partition, new_rows, pending = batch.partition, batch.new_rows, batch.partition.unapplied.pending_rows
    entries = batch.entries
    partition_id, prefix, epoch, now_ms = partition.id, partition.actor_prefix, batch.epoch, batch.now_ms
    key_row, entry_limit, object_limit = batch.store.key_row, batch.limits.entry_bytes, batch.limits.object_bytes
    reaped = batch.store.reaped_clocks(partition_id)
    last_bucket, bucket_head, end = b"", b"", 0
    for slot, hash64 in zip(slots, hashes, strict=True):
        item, first = items[slot], batch.next_offset
        try:
            (_, bucket, key), origin, payload, leaving = item
            summary = (
                peek_summary(payload) if not leaving and len(payload) <= object_limit and len(origin) == 16 else None
            )
            common = summary is not None and prefix not in summary[0]
            if common:
                assert summary is not None
                clock, pushed, object_hash, modified_ms, tombstone = summary
                if bucket != last_bucket:
                    last_bucket, bucket_head = bucket, _LENGTH(len(bucket)) + bucket
                name = (bucket, key)
                unapplied = new_rows.get(name) or pending.get(name)
                if unapplied is None:
                    row = key_row(partition_id, hash64, bucket, key)
                else:
                    row = unapplied.row if unapplied.kind != _REAP else None
                change, previous = 0, NO_OFFSET
                if row is None:
                    common = unapplied is None and name not in reaped
                else:
                    old_clock, old_hash, _, _, _, old_tombstone, previous = decode_key_row(row)
                    if not of_one_writer(old_clock, clock):
                        common = old_clock != clock and prefix not in old_clock
                        if common:
                            old = decode_clock(old_clock)
                            common = descends(pushed, old) and not descends(old, pushed)
                    if common:
                        change = leaf(bucket, key, old_clock, old_hash, tombstone=old_tombstone)
            if not common:
                results[slot], at = batch.push(item, hash64)
                if at > end:
                    end = at
                continue
            offset = batch.next_offset
            if not tombstone:  # else old leaf is 0
                change ^= xxh64_intdigest(bucket_head + _LENGTH(len(key)) + key + clock + _HASH(object_hash))
            row = _pack((KEY_ROW_VERSION, clock, object_hash, modified_ms, len(payload), 1, tombstone, offset))
            fields = (
                _DATA, epoch, offset, 0, b"", origin, now_ms, hash64, change, previous, bucket, key, row, payload,
            )  # fmt: skip
            wire: bytes = _pack((ENTRY_VERSION, *fields))
            if len(wire) > entry_limit:
                raise batch.too_long(wire)
            entry = _new(Entry, (*fields, wire))
            entries.append(entry)  # these three lines are `batch.add`
            new_rows[name] = entry
            batch.next_offset = end = offset + 1
            results[slot] = APPLIED
        except IsthmusError as error:
            results[slot] = clear_traceback(error)
        except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
            batch.take_back(first)
            results[slot] = unforeseen.exception(
                "push.bug", error, partition=partition_id, bucket=repr(item.key.bucket)
            )
    return end

"""The hot room of writes: a proposal's items, many at once, with the usual ones made in one stretch of code.

Usual is a value for a key that is not there and was not reaped lately, without a context, and a value for a key whose
whole clock the writer has seen; without request id and condition either way. All that was there is replaced, so the
object has one sibling, and neither objects nor rows are built as nouns on the way to bytes. Every other item goes the
way of `repl.coordinator.write_batch`, which says what is right: for the usual ones, too, both make the same entries and
answers. Pushes are `write_batch_fast_path`'.

The hot room of pushes: those of a batch in one stretch of code where they are usual.

Usual is an object of one sibling that has seen no write of this partition, for a key that is not there, or that it
dominates and that no write of this partition is in either: it is stored as it came. Nothing of it is decoded but its
clock, once. Every other push goes the way of `repl.coordinator.write_batch`, which says what is right: for the usual
ones, too, both make the same entries and answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, cast

import msgpack
from xxhash import xxh64_intdigest

from isthmus.repl.coordinator.write_batch import Proposal, WriteLimits
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

_pack: Final = msgpack.Packer().pack  # one for all: see repl.model.vclock
_new: Final = tuple.__new__
"""Makes a named tuple of all its fields, in order, at half the price of its own constructor."""

_LENGTH: Final = Struct(">I").pack
_HASH: Final = Struct(">Q").pack
_DATA: Final = int(EntryKind.DATA)
_REAP: Final = int(EntryKind.REAP)


class UsualProposal(Proposal):
    """A proposal that takes the items of one request at once."""

    def take(
        self,
        requests: Sequence[WriteRequest | PushItem],
        slots: Sequence[int],
        hashes: Sequence[int],
        results: list[object],
    ) -> int:
        """Propose `requests[slot]`, whose key has the hash beside it, for each of `slots`; the answers go into
        `results[slot]`. Returns the offset below which all must be applied before any may be given; 0 for at once."""
        partition, fresh, pending = self._partition, self.fresh, self._partition.pending_rows
        partition_id, actor, epoch = partition.id, partition.actor, self._epoch
        own, now_ms, now_s = self._own, self._now_ms, self._now_ms // 1000
        key_row, entries, entry_limit = self._store.key_row, self.entries, self._limits.made_bytes
        reaped = self._store.reaped_clocks(partition_id)
        bucket, bucket_head, quiet_bytes = b"", b"", -1
        end = puts = 0
        for slot, hash64 in zip(slots, hashes, strict=True):
            request = requests[slot]
            try:
                if type(request) is PushItem:
                    answer, at = self.push(request, hash64)
                    results[slot] = answer
                    if at > end:
                        end = at
                    continue
                assert type(request) is WriteRequest
                (_, its_bucket, key), content, context, request_id, _, condition = request
                value, content_type, content_encoding, metadata, links, indexes, tombstone = content
                if its_bucket != bucket:
                    bucket, bucket_head = its_bucket, _LENGTH(len(its_bucket)) + its_bucket
                    quiet_bytes = _quiet_bytes(self._limits, self._properties.of(bucket))
                usual = not (request_id or tombstone or condition is not None or len(value) > quiet_bytes)
                if usual:
                    place = (bucket, key)
                    before = fresh.get(place) or pending.get(place)
                    if before is None:
                        row = key_row(partition_id, hash64, bucket, key)
                    else:
                        row = before.row if before.kind != _REAP else None
                    offset = self._next
                    counter = epoch << OFFSET_BITS | offset
                    if row is None:
                        usual = not context and before is None and place not in reaped
                        clock = encode_clock(((actor, counter, now_s),))
                        change, previous = 0, NO_OFFSET
                    elif context:
                        seen, its_hash, _, _, _, was_tombstone, previous = decode_key_row(row)
                        usual = encode_clock(context) == seen and len(context) < CLOCK_ENTRIES_MAX
                        clock = encode_clock(increment(context, actor, counter, now_s))
                        change = leaf(bucket, key, seen, its_hash, tombstone=was_tombstone)
                    else:
                        usual = False
                if not usual:
                    answer, at = self.write(request, hash64)
                    results[slot] = answer
                    if at > end:
                        end = at
                    continue
                sibling = (
                    actor, counter, now_ms, False, value, content_type, content_encoding, metadata, links, indexes,
                )  # fmt: skip
                payload: bytes = _pack((OBJECT_VERSION, clock, (sibling,)))
                hash_of = xxh64_intdigest(payload)
                change ^= xxh64_intdigest(bucket_head + _LENGTH(len(key)) + key + clock + _HASH(hash_of))
                row = _pack((KEY_ROW_VERSION, clock, hash_of, now_ms, len(payload), 1, False, offset))
                fields = (
                    _DATA, epoch, offset, 0, b"", own, now_ms, hash64, change, previous, bucket, key, row, payload,
                )  # fmt: skip
                wire: bytes = _pack((ENTRY_VERSION, *fields))
                if len(wire) > entry_limit:
                    raise self.too_long(wire)
                entry = _new(Entry, (*fields, wire))
                entries.append(entry)
                fresh[place] = entry
                self._next = end = offset + 1
                puts += 1
                results[slot] = _new(WriteResult, (payload, clock, 1, True, False))
            except IsthmusError as error:
                results[slot] = clear_traceback(error)
        self.put_count += puts
        return end


def _quiet_bytes(limits: WriteLimits, properties: Properties) -> int:
    """Size of the largest value that is neither refused nor reported."""
    quiet = limits.object_bytes
    if 0 < properties.max_object_bytes < quiet:
        quiet = properties.max_object_bytes
    warn = properties.warn_object_bytes or limits.object_warn_bytes
    return warn if 0 < warn < quiet else quiet


APPLIED: Final = PushResult(PushOutcome.APPLIED)
"""The usual answer, one for all."""


class PushProposal(UsualProposal):
    """A proposal that takes the pushes of one batch at once, too."""

    def take(
        self,
        requests: Sequence[WriteRequest | PushItem],
        slots: Sequence[int],
        hashes: Sequence[int],
        results: list[object],
    ) -> int:
        """See UsualProposal.take. The items of one call are all writes or all pushes."""
        if type(requests[slots[0]]) is WriteRequest:
            return super().take(requests, slots, hashes, results)
        return self._take_pushes(cast("Sequence[PushItem]", requests), slots, hashes, results)

    def _take_pushes(
        self, items: Sequence[PushItem], slots: Sequence[int], hashes: Sequence[int], results: list[object]
    ) -> int:
        partition, fresh, pending = self._partition, self.fresh, self._partition.pending_rows
        partition_id, actor, epoch, now_ms = partition.id, partition.actor, self._epoch, self._now_ms
        key_row, entries = self._store.key_row, self.entries
        entry_limit, object_limit = self._limits.entry_bytes, self._limits.object_bytes
        reaped = self._store.reaped_clocks(partition_id)
        its_bucket, bucket_head, end = b"", b"", 0
        for slot, hash64 in zip(slots, hashes, strict=True):
            item = items[slot]
            try:
                (_, bucket, key), origin, payload, leaving = item
                seen = (
                    peek_summary(payload)
                    if not leaving and len(payload) <= object_limit and len(origin) == 16
                    else None
                )
                usual = seen is not None and actor not in seen[0]
                if usual:
                    assert seen is not None
                    clock, theirs, hash_of, modified_ms, tombstone = seen
                    if bucket != its_bucket:
                        its_bucket, bucket_head = bucket, _LENGTH(len(bucket)) + bucket
                    place = (bucket, key)
                    before = fresh.get(place) or pending.get(place)
                    if before is None:
                        row = key_row(partition_id, hash64, bucket, key)
                    else:
                        row = before.row if before.kind != _REAP else None
                    change, previous = 0, NO_OFFSET
                    if row is None:
                        usual = before is None and place not in reaped
                    else:
                        its_clock, its_hash, _, _, _, was_tombstone, previous = decode_key_row(row)
                        if not of_one_writer(its_clock, clock):
                            usual = its_clock != clock and actor not in its_clock
                            if usual:
                                its = decode_clock(its_clock)
                                usual = descends(theirs, its) and not descends(its, theirs)
                        if usual:
                            change = leaf(bucket, key, its_clock, its_hash, tombstone=was_tombstone)
                if not usual:
                    results[slot], at = self.push(item, hash64)
                    if at > end:
                        end = at
                    continue
                offset = self._next
                if not tombstone:  # else its leaf is 0
                    change ^= xxh64_intdigest(bucket_head + _LENGTH(len(key)) + key + clock + _HASH(hash_of))
                row = _pack((KEY_ROW_VERSION, clock, hash_of, modified_ms, len(payload), 1, tombstone, offset))
                fields = (
                    _DATA, epoch, offset, 0, b"", origin, now_ms, hash64, change, previous, bucket, key, row, payload,
                )  # fmt: skip
                wire: bytes = _pack((ENTRY_VERSION, *fields))
                if len(wire) > entry_limit:
                    raise self.too_long(wire)
                entry = _new(Entry, (*fields, wire))
                entries.append(entry)
                fresh[place] = entry
                self._next = end = offset + 1
                results[slot] = APPLIED
            except IsthmusError as error:
                results[slot] = clear_traceback(error)
        return end

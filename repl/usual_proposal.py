"""The hot room of writes: a proposal's items, many at once, with the usual ones made in one stretch of code.

Usual is a value for a key that is not there and was not reaped lately, without a context, and a value for a key whose
whole clock the writer has seen; without request id and condition either way. All that was there is replaced, so the
object has one sibling, and neither objects nor rows are built as nouns on the way to bytes. Every other item goes the
way of `repl.proposal`, which says what is right: for the usual ones, too, both make the same entries and answers.
Pushes are `usual_pushes`'.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final

import msgpack
from xxhash import xxh64_intdigest

from repl.model.entry import ENTRY_VERSION, KEY_ROW_VERSION, NO_OFFSET, Entry, EntryKind, decode_key_row, leaf
from repl.model.errors import IsthmusError, let_go
from repl.model.objects import OBJECT_VERSION
from repl.model.properties import Properties
from repl.model.requests import PushItem, WriteRequest, Written
from repl.model.vclock import CLOCK_ENTRIES_MAX, OFFSET_BITS, encode_clock, increment
from repl.proposal import Proposal
from repl.write_limits import WriteLimits

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
                results[slot] = _new(Written, (payload, clock, 1, True, False))
            except IsthmusError as error:
                results[slot] = let_go(error)
        self.put_count += puts
        return end


def _quiet_bytes(limits: WriteLimits, properties: Properties) -> int:
    """Size of the largest value that is neither refused nor reported."""
    quiet = limits.object_bytes
    if 0 < properties.max_object_bytes < quiet:
        quiet = properties.max_object_bytes
    warn = properties.warn_object_bytes or limits.object_warn_bytes
    return warn if 0 < warn < quiet else quiet

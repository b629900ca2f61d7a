"""The hot room of pushes: those of a batch in one stretch of code where they are usual.

Usual is an object of one sibling that has seen no write of this partition, for a key that is not there, or that it
dominates and that no write of this partition is in either: it is stored as it came. Nothing of it is decoded but its
clock, once. Every other push goes the way of `repl.proposal`, which says what is right: for the usual
ones, too, both make the same entries and answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Final, cast

import msgpack
from xxhash import xxh64_intdigest

from repl.model.entry import ENTRY_VERSION, KEY_ROW_VERSION, NO_OFFSET, Entry, EntryKind, decode_key_row, leaf
from repl.model.errors import IsthmusError, let_go
from repl.model.objects import glanced
from repl.model.requests import PushItem, PushOutcome, PushResult, WriteRequest
from repl.model.vclock import decode_clock, descends, of_one_writer
from repl.usual_proposal import UsualProposal

_pack: Final = msgpack.Packer().pack  # one for all: see repl.model.vclock
_new: Final = tuple.__new__
_LENGTH: Final = Struct(">I").pack
_HASH: Final = Struct(">Q").pack
_DATA: Final = int(EntryKind.DATA)
_REAP: Final = int(EntryKind.REAP)

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
                seen = glanced(payload) if not leaving and len(payload) <= object_limit and len(origin) == 16 else None
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
                results[slot] = let_go(error)
        return end

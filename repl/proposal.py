"""A proposal: what a batch of writes and pushes would change in one partition, before the core is asked.

For each item it reads what the key holds now (the newest unapplied entry first: a leader reads its own writes),
decides by clocks, makes the new object and encodes it once. It appends nothing: `repl.coordinator` takes the entries
to the core and answers when they are applied. An item that needs no entry still waits for the entry that it was
judged against (docs/protocol.md R-WAIT).
"""

from __future__ import annotations

import base64
from typing import NamedTuple

from repl.model.entry import (
    NO_OFFSET,
    Entry,
    EntryKind,
    KeyRow,
    decode_key_row,
    encode_key_row,
    leaf,
    make_entry,
)
from repl.model.errors import BadInput, CodecError, Corruption, TooLarge
from repl.model.keys import Key
from repl.model.objects import Object, Summary, decode_object, merge, seal, summarize_encoded, write
from repl.model.requests import PushItem, PushOutcome, PushResult, WriteRequest, Written
from repl.model.vclock import Clock, counter_of, decode_clock, descends, pack_counter
from repl.partition import Partition
from repl.store.port import Store


class TooManySiblings(BadInput):
    """The write would leave more siblings than limits.siblings; read, resolve, and write with the context."""

    reason = "too-many-siblings"


class WriteLimits(NamedTuple):
    """Limits of one write, from the settings."""

    object_bytes: int
    sibling_count: int


class _Current(NamedTuple):
    """What a key holds: its row, where its bytes are, and the offset below which all must be applied
    before an answer may rest on it (0: it is applied)."""

    row: KeyRow
    pending: Entry | None


class Proposal:
    """The entries of one batch of one partition, in the making; later items see what earlier ones made."""

    def __init__(
        self,
        partition: Partition,
        store: Store,
        cluster_uuid: bytes,
        limits: WriteLimits,
        request_id: bytes,
        now_ms: int,
    ) -> None:
        self._partition = partition
        self._store = store
        self._own = cluster_uuid
        self._limits = limits
        self._request_id = request_id
        self._now_ms = now_ms
        self._epoch = partition.replica.epoch
        self._next = partition.replica.leo
        self.put_count = 0
        self.delete_count = 0
        self.entries: list[Entry] = []
        self.fresh: dict[tuple[bytes, bytes], Entry] = {}

    def _current(self, hash64: int, bucket: bytes, key: bytes) -> _Current | None:
        place = (bucket, key)
        entry = self.fresh.get(place) or self._partition.pending_rows.get(place)
        if entry is not None:
            return _Current(decode_key_row(entry.row), entry)
        row = self._store.key_row(self._partition.id, hash64, bucket, key)
        return None if row is None else _Current(decode_key_row(row), None)

    def _object(self, current: _Current, key: Key) -> Object:
        if current.pending is not None:
            return decode_object(current.pending.payload)
        data = self._store.object(self._partition.id, key.bucket, key.key)
        if data is None:
            raise Corruption(f"key row without its object in partition {self._partition.id}")
        return decode_object(data)

    def write(self, request: WriteRequest, hash64: int) -> tuple[object, int]:
        """(answer, offset below which all must be applied before it may be given; 0 for at once)."""
        key, content, context = request
        if len(content.value) > self._limits.object_bytes:
            raise TooLarge(f"value of {len(content.value)} bytes, limits.object_bytes is {self._limits.object_bytes}")
        current = self._current(hash64, key.bucket, key.key)
        if context:
            self._check_context(context)
        if content.tombstone:
            self.delete_count += 1
            if current is None or current.row.tombstone:
                end = current.pending.offset + 1 if current is not None and current.pending is not None else 0
                return Written(b"", b"" if current is None else current.row.clock, 0, created=False), end
        else:
            self.put_count += 1
        offset = self._next
        dot = (self._partition.actor, pack_counter(self._epoch, offset))
        if current is None:
            obj = write(None, context or (), content, dot, self._now_ms)
        else:
            clock = decode_clock(current.row.clock)
            if not context and (content.tombstone or current.row.tombstone):
                context = clock
            if context and descends(context, clock):
                # All that is there was seen: the old siblings need not be read.
                obj = write(Object(clock, ()), context, content, dot, self._now_ms)
            else:
                obj = write(self._object(current, key), context or (), content, dot, self._now_ms)
                if len(obj.siblings) > self._limits.sibling_count:
                    raise TooManySiblings(
                        f"the write would make {len(obj.siblings)} siblings, limits.siblings is "
                        f"{self._limits.sibling_count}: read the key and write with its X-Riak-Vclock"
                    )
        encoded, summary = seal(obj)
        self._append(key, hash64, current, encoded, summary, self._own)
        return Written(encoded, summary.clock, summary.sibling_count), offset + 1

    def push(self, item: PushItem, hash64: int) -> tuple[object, int]:
        """As `write`, for a change from another cluster: kept as it is, or merged by causality."""
        key, origin, payload = item
        if len(payload) > self._limits.object_bytes + (self._limits.object_bytes >> 1):
            raise TooLarge(f"pushed object of {len(payload)} bytes, limits.object_bytes is {self._limits.object_bytes}")
        if len(origin) != 16:
            raise CodecError("a push whose origin is no cluster uuid")
        summary = summarize_encoded(payload)
        current = self._current(hash64, key.bucket, key.key)
        outcome = PushOutcome.APPLIED
        if current is not None:
            row = current.row
            end = current.pending.offset + 1 if current.pending is not None else 0
            if row.clock == summary.clock:
                if row.hash64 != summary.hash64:
                    raise Corruption(
                        f"equal clock with other bytes: {key.bucket!r}/{key.key!r} "
                        f"clock {base64.b64encode(row.clock).decode()}"
                    )
                return PushResult(PushOutcome.SUPERSEDED), end
            mine = decode_clock(row.clock)
            theirs = decode_clock(summary.clock)
            if descends(mine, theirs):
                return PushResult(PushOutcome.SUPERSEDED), end
            if not descends(theirs, mine):
                merged = merge(self._object(current, key), decode_object(payload))
                payload, summary = seal(merged)
                origin = self._own
                outcome = PushOutcome.MERGED
        offset = self._next
        self._append(key, hash64, current, payload, summary, origin)
        return PushResult(outcome), offset + 1

    def _check_context(self, context: Clock) -> None:
        """A context may not have seen writes of ours that were never made: their dots would be lost."""
        if counter_of(context, self._partition.actor) >= pack_counter(self._epoch, self._next):
            raise BadInput("X-Riak-Vclock names writes that this cluster has not made: read the key again")

    def _append(
        self, key: Key, hash64: int, current: _Current | None, encoded: bytes, summary: Summary, origin: bytes
    ) -> None:
        bucket, name = key.bucket, key.key
        change = leaf(bucket, name, summary.clock, summary.hash64)
        previous = NO_OFFSET
        if current is not None:
            change ^= leaf(bucket, name, current.row.clock, current.row.hash64)
            previous = current.row.offset
        offset = self._next
        entry = make_entry(
            EntryKind.DATA,
            self._epoch,
            offset,
            request_id=self._request_id,
            origin=origin,
            time_ms=self._now_ms,
            key_hash=hash64,
            leaf_change=change,
            previous_offset=previous,
            bucket=bucket,
            key=name,
            row=encode_key_row(summary, offset),
            payload=encoded,
        )
        self._next = offset + 1
        self.entries.append(entry)
        self.fresh[bucket, name] = entry

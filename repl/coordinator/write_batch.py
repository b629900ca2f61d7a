"""A write batch: the entries by which writes and pushes would change one partition, before the core is asked.

For each item `WriteBatch` reads the key's newest version (an unapplied entry before the store: a leader reads its own
writes), decides by clocks, builds the new object and encodes it once. It appends nothing:
`repl.coordinator.coordinator` hands the entries to the core, and answers once they are applied. An item without an
entry still waits for the pending entry that it was judged against (docs/protocol.md R-WAIT): a superseded push, a
delete of nothing, one sibling too many, a repeated request.

A write has two limits for its size and two for its siblings, the node's and its bucket's. Above the limit it is
refused, above the warning it is counted. Properties of a bucket can only be stricter than `limits` of the node's file,
since other nodes and the queues' windows rely on those. A push is never refused for its siblings: what another cluster
holds must be kept.

`write` and `push` begin with an early exit for what is common, which builds neither objects nor rows as values on the
way to bytes. A common write stores a value, without request id and condition, for a key that is missing and was not
reaped lately (then without a context), or for a key whose whole clock the writer has seen: it replaces all that was
there, so the object has one sibling. A common push is an object of one sibling that names no write of this partition,
for a key that is missing and was not reaped lately, or that it dominates and that has no write of this partition
either: it is stored as it came, and only its clock is decoded, once. Both make what the rules behind them would make.

An item whose work raises what nobody foresaw ends alone, as an InternalError, and leaves no entry. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple, Protocol

import msgpack
from xxhash import xxh64_intdigest

from isthmus.repl.model.conditions import Condition, ConditionFailed, ConditionState, judge_write, needs_tag, object_tag
from isthmus.repl.model.entry import (
    ENTRY_VERSION,
    KEY_ROW_VERSION,
    NO_OFFSET,
    Entry,
    EntryKind,
    KeyRow,
    decode_key_row,
    encode_key_row,
    leaf,
)
from isthmus.repl.model.errors import (
    BadInput,
    CodecError,
    Corruption,
    IsthmusError,
    Retryable,
    TooLarge,
    clear_traceback,
)
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import (
    OBJECT_VERSION,
    TOMBSTONE,
    Object,
    Summary,
    decode_object,
    encode_with_summary,
    merge,
    peek_summary,
    pushed,
    summarize_encoded,
    written,
)
from isthmus.repl.model.properties import Properties, TypeProperties
from isthmus.repl.model.requests import (
    REQUEST_ID_BYTES_MAX,
    MergedWith,
    PushItem,
    PushOutcome,
    PushResult,
    WriteRequest,
    WriteResult,
)
from isthmus.repl.model.vclock import (
    CLOCK_ENTRIES_MAX,
    OFFSET_BITS,
    Clock,
    counter_of,
    decode_clock,
    descends,
    encode_clock,
    increment,
    of_one_writer,
    of_partition,
    pack_counter,
)
from isthmus.repl.model.vclock import merge as merge_clocks
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.store.port import REAPED, DamagedChange, Store
from isthmus.repl.store.reaped_pushes import EntryHeader, gone_with, reap_entry
from isthmus.repl.store.request_dedup import request_name
from isthmus.repl.unforeseen import unforeseen

_pack: Final = msgpack.Packer().pack  # one for all: see repl.model.vclock
_new: Final[Any] = tuple.__new__
"""Builds a named tuple from all its fields, in order, at half the cost of its own constructor."""

_LENGTH: Final = Struct(">I").pack
_HASH: Final = Struct(">Q").pack
_VERSION: Final = (ENTRY_VERSION,)
_DATA: Final = int(EntryKind.DATA)
_REAP: Final = int(EntryKind.REAP)

APPLIED: Final = PushResult(PushOutcome.APPLIED)
"""The answer to every common push."""


class TooManySiblings(BadInput):
    """The write would leave more siblings than limits.siblings; read, resolve, and write with the context."""

    reason = "too-many-siblings"


INTEGERS_BYTES: Final = 64
"""By how much two entries of one object may differ in length: seven integers (epoch, offset twice, previous offset,
time, hash of the leaf) that take one to nine bytes each, and the header of a request id."""


class WriteLimits(NamedTuple):
    """Limits of one write, from the settings."""

    object_bytes: int
    sibling_count: int
    entry_bytes: int
    """Longest entry that other nodes take, which bounds an object with all its siblings."""

    object_warn_bytes: int = 0
    """Larger values are counted and logged; 0: none."""

    sibling_warn_count: int = 0
    """Objects with more siblings are counted and logged; 0: none."""

    @property
    def made_bytes(self) -> int:
        """Longest entry of an object made here, by a write or a merge. A cluster with the same settings takes it as a
        push, since the entries there differ by their integers alone."""
        return self.entry_bytes - INTEGERS_BYTES


class Warned(NamedTuple):
    """An object above a warning limit; `what` is "object-size" or "siblings"."""

    what: str
    key: Key
    found: int
    limit: int


def unchecked_bytes(limits: WriteLimits, properties: Properties) -> int:
    """Size of the largest value that need not be checked: `check_size` neither refuses nor warns of it."""
    most = limits.object_bytes
    if 0 < properties.max_object_bytes < most:
        most = properties.max_object_bytes
    warn = properties.warn_object_bytes or limits.object_warn_bytes
    return warn if 0 < warn < most else most


def check_size(size: int, key: Key, limits: WriteLimits, properties: Properties, warned: list[Warned]) -> None:
    """Raises TooLarge for a value above the limit; appends to `warned` for one above the warning."""
    limit, name = limits.object_bytes, "limits.object_size"
    if 0 < properties.max_object_bytes < limit:
        limit, name = properties.max_object_bytes, f"max_object_size of bucket {key.bucket!r}"
    if size > limit:
        raise TooLarge(f"value of {size} bytes, {name} is {limit}")
    warn = properties.warn_object_bytes or limits.object_warn_bytes
    if 0 < warn < size:
        warned.append(Warned("object-size", key, size, warn))


def check_siblings(
    count: int, key: Key, limits: WriteLimits, properties: Properties, warned: list[Warned]
) -> TooManySiblings | None:
    """The refusal of an object with `count` siblings; within the limit None, with `note_siblings` called."""
    limit, name = limits.sibling_count, "limits.siblings"
    if 0 < properties.max_siblings < limit:
        limit, name = properties.max_siblings, f"max_siblings of bucket {key.bucket!r}"
    if count > limit:
        return TooManySiblings(
            f"the write would make {count} siblings, {name} is {limit}: read the key and write with its X-Riak-Vclock"
        )
    note_siblings(count, key, limits, properties, warned)
    return None


def note_siblings(count: int, key: Key, limits: WriteLimits, properties: Properties, warned: list[Warned]) -> None:
    """Append to `warned` for an object with more siblings than the warning."""
    warn = properties.warn_siblings or limits.sibling_warn_count
    if 0 < warn < count:
        warned.append(Warned("siblings", key, count, warn))


class ForgedClock(BadInput):
    """A clock from another cluster names writes of this cluster that were never made."""

    reason = "forged-clock"


class StalePush(Retryable):
    """The key was reaped here, and the push may be older than that: it must be fetched again."""

    reason = "stale-push"


class UnreplicatedCheck(Protocol):
    """Asks the source queues whether another cluster still lacks a row with a write of this cluster (R-OWED)."""

    def __call__(self, partition: int, offset: int, pusher: bytes, key: Key, /) -> bool:
        """True if some cluster other than `pusher` has not received the row at `offset` yet."""


def never_unreplicated(_partition: int, _offset: int, _pusher: bytes, _key: Key) -> bool:
    """The check of a node without source queues."""
    return False


class CurrentVersion(NamedTuple):
    """A key's newest version: its row, and the unapplied entry that has its bytes (None: the store has them)."""

    row: KeyRow
    pending: Entry | None


Decision = tuple[object, int]
"""(answer, offset below which all entries must be applied before the answer may be given; 0: at once)."""


class WriteBatch:
    """The entries of one batch of one partition. Later items see the entries of earlier ones."""

    def __init__(
        self,
        partition: Partition,
        store: Store,
        cluster_uuid: bytes,
        limits: WriteLimits,
        properties: TypeProperties,
        now_ms: int,
        pending_requests: Mapping[bytes, int],
        unreplicated: UnreplicatedCheck = never_unreplicated,
    ) -> None:
        """`properties` are those of the partition's bucket type. `pending_requests`: name of a request
        (`repl.store.request_dedup`) -> offset of its unapplied entry."""
        self.partition = partition
        self.store = store
        self.cluster_uuid = cluster_uuid
        self.limits = limits
        self.properties = properties
        self.now_ms = now_ms
        self.epoch = partition.replica.epoch
        self.next_offset = partition.replica.leo
        self.put_count = 0
        self.delete_count = 0
        self.repeated_count = 0
        self.ahead_counter = 0
        """The highest counter of this partition's actor, not made by its log, in a push (R-FORGED); 0: none."""
        self._actor = partition.actor
        self._pending_rows = partition.unapplied.pending_rows
        self._reaped = store.reaped_clocks(partition.id)
        self._replaced = partition.replaced_clocks
        self._bucket: bytes | None = None
        """The bucket of the last item."""
        self._bucket_head = b""
        """Its name, after its length."""
        self._bucket_properties = Properties()
        self._unchecked_bytes = -1
        self._made_bytes = limits.made_bytes
        self.needs_confirmation = False
        """An item was refused for a reason that holds only while this node leads."""
        self.warned: list[Warned] = []
        self.entries: list[Entry] = []
        self.new_rows: dict[tuple[bytes, bytes], Entry] = {}
        """(bucket, key) -> the newest entry of this batch."""
        self.new_requests: dict[bytes, int] = {}
        """Name of a request -> offset of its entry in this batch."""
        self._pending_requests = pending_requests
        self._unreplicated = unreplicated

    def add_items(
        self,
        items: Sequence[WriteRequest | PushItem],
        slots: Sequence[int],
        hashes: Sequence[int],
        results: list[object],
    ) -> int:
        """Add `items[slot]`, whose key has the hash beside it, for each of `slots`; the answers go into
        `results[slot]`.

        The items of one call are all writes or all pushes. Returns the offset below which all must be applied before
        any answer may be given; 0: at once.
        """
        writes = type(items[slots[0]]) is WriteRequest
        add: Any = self.write if writes else self.push
        end = 0
        for slot, hash64 in zip(slots, hashes, strict=True):
            first = self.next_offset
            try:
                results[slot], at = add(items[slot], hash64)
                if at > end:
                    end = at
            except IsthmusError as error:
                results[slot] = clear_traceback(error)
            except Exception as error:  # noqa: BLE001 -- see repl.unforeseen
                self._take_back(first)
                results[slot] = unforeseen.exception(
                    "write.bug" if writes else "push.bug",
                    error,
                    partition=self.partition.id,
                    bucket=repr(items[slot].key.bucket),
                )
        return end

    def _take_back(self, first: int) -> None:
        """Remove the entries at `first` and above: the work on their item failed."""
        if self.next_offset == first:
            return
        self.next_offset = first
        self.entries = [entry for entry in self.entries if entry.offset < first]
        self.new_rows = {(entry.bucket, entry.key): entry for entry in self.entries}
        self.new_requests = {name: at for name, at in self.new_requests.items() if at < first}

    # -- what the key holds ---------------------------------------------------------------------------

    def current(self, hash64: int, bucket: bytes, key: bytes) -> CurrentVersion | None:
        """The key's newest version; None if it was never written, or is reaped."""
        pending, row = self._newest(hash64, (bucket, key))
        return None if row is None else CurrentVersion(decode_key_row(row), pending)

    def _newest(self, hash64: int, name: tuple[bytes, bytes]) -> tuple[Entry | None, bytes | None]:
        """The newest entry of (bucket, key) that is not applied, and the row of its newest version; None without."""
        entry = self.new_rows.get(name) or self._pending_rows.get(name)
        if entry is None:
            return None, self.store.key_row(self.partition.id, hash64, name[0], name[1])
        return entry, entry.row if entry.kind != _REAP else None

    def _enter(self, bucket: bytes) -> None:
        """The next item is of another bucket."""
        self._bucket, self._bucket_head = bucket, _LENGTH(len(bucket)) + bucket
        self._bucket_properties = self.properties.of(bucket)
        self._unchecked_bytes = unchecked_bytes(self.limits, self._bucket_properties)

    def read_object(self, current: CurrentVersion, key: Key) -> Object:
        """The object of a version. Raises Corruption: the writer has sent nothing wrong."""
        try:
            return decode_object(self._object_bytes(current, key))
        except CodecError as error:
            raise Corruption(f"the stored object of {key.bucket!r}/{key.key!r} cannot be read: {error}") from error

    def _object_bytes(self, current: CurrentVersion, key: Key) -> bytes:
        if current.pending is not None:
            return current.pending.payload
        data = self.store.object(self.partition.id, key.bucket, key.key)
        if data is None:
            raise Corruption(f"key row without its object in partition {self.partition.id}")
        return data

    def _unapplied(self, name: tuple[bytes, bytes]) -> Entry | None:
        """The newest entry of (bucket, key) that is not applied."""
        return self.new_rows.get(name) or self._pending_rows.get(name)

    # -- writes ---------------------------------------------------------------------------------------

    def write(self, request: WriteRequest, hash64: int) -> Decision:
        """Add the entry of a client's write, unless it makes none. Raises BadInput, Corruption."""
        key, content, context, request_id, _, condition = request
        value, content_type, content_encoding, metadata, links, indexes, tombstone = content
        _, bucket, key_name = key
        if bucket != self._bucket:
            self._enter(bucket)
        if len(value) > self._unchecked_bytes:
            check_size(len(value), key, self.limits, self._bucket_properties, self.warned)
        name = bucket, key_name
        pending, stored = self._newest(hash64, name)
        if request_id or tombstone or condition is not None:
            return self._write_usual(request, hash64, pending, stored)
        actor, now_ms, offset = self._actor, self.now_ms, self.next_offset
        counter = self.epoch << OFFSET_BITS | offset
        if stored is None:
            if context or pending is not None or name in self._reaped:
                return self._write_usual(request, hash64, pending, stored)
            clock: bytes = _pack(((actor, counter, now_ms // 1000),))
            change, previous = 0, NO_OFFSET
        elif context:
            old_clock, old_hash, _, _, _, old_tombstone, previous = decode_key_row(stored)
            if encode_clock(context) != old_clock or len(context) >= CLOCK_ENTRIES_MAX:
                return self._write_usual(request, hash64, pending, stored)
            clock = encode_clock(increment(context, actor, counter, now_ms // 1000))
            change = leaf(bucket, key_name, old_clock, old_hash, tombstone=old_tombstone)
            if self._replaced is not None:
                self._replaced[offset] = old_clock
        else:
            return self._write_usual(request, hash64, pending, stored)
        sibling = actor, counter, now_ms, False, value, content_type, content_encoding, metadata, links, indexes
        payload: bytes = _pack((OBJECT_VERSION, clock, (sibling,)))
        object_hash = xxh64_intdigest(payload)
        change ^= xxh64_intdigest(self._bucket_head + _LENGTH(len(key_name)) + key_name + clock + _HASH(object_hash))
        row = _pack((KEY_ROW_VERSION, clock, object_hash, now_ms, len(payload), 1, False, offset))
        self.put_count += 1
        end = self._add_entry(
            _DATA, name, hash64, change, previous, row, payload, self.cluster_uuid, b"", self._made_bytes
        )
        return _new(WriteResult, (payload, clock, 1, True, False, "")), end

    def _write_usual(self, request: WriteRequest, hash64: int, pending: Entry | None, stored: bytes | None) -> Decision:
        """`write` of what is not common, for a key whose newest row is `stored`. Raises BadInput, Corruption."""
        key, content, context, request_id, _, condition = request
        name = (key.bucket, key.key)
        properties = self._bucket_properties
        current = None if stored is None else CurrentVersion(decode_key_row(stored), pending)
        if request_id:
            if len(request_id) > REQUEST_ID_BYTES_MAX:
                raise BadInput(f"a request id of {len(request_id)} bytes; at most {REQUEST_ID_BYTES_MAX} are allowed")
            found = self._request_offset(request_id, hash64)
            if found is not None:
                return self._answer_repeated(found, current, key)
        if condition is not None:
            failed = self._failed_condition(condition, current, key)
            if failed is not None:
                self.needs_confirmation = True
                return failed, _rests_on(current)
            if not context and current is not None and condition.names_version:
                context = decode_clock(current.row.clock)
        if context:
            self._check_context(context)
        if content.tombstone:
            self.delete_count += 1
            if current is None or current.row.tombstone:
                return WriteResult(b"", b"" if current is None else current.row.clock, 0, created=False), _rests_on(
                    current
                )
        else:
            self.put_count += 1
        offset = self.next_offset
        dot = (self.partition.actor, pack_counter(self.epoch, offset))
        if current is None:
            last = self.reaped_clock(name)
            base = Object(last, ()) if last else None
            obj = written(base, merge_clocks(last, context or ()), content, dot, self.now_ms, properties)
        else:
            clock = decode_clock(current.row.clock)
            if not context and (content.tombstone or current.row.tombstone):
                context = clock
            if properties.last_write_wins or (context and descends(context, clock)):
                # The writer has seen all siblings, or they do not count: the old object need not be read.
                obj = written(Object(clock, ()), context or clock, content, dot, self.now_ms, properties)
            else:
                obj = written(self.read_object(current, key), context or (), content, dot, self.now_ms, properties)
                refused = check_siblings(len(obj.siblings), key, self.limits, properties, self.warned)
                if refused is not None:
                    return refused, _rests_on(current)
        encoded, summary = encode_with_summary(obj)
        self.add_object(key, hash64, current, encoded, summary, self.cluster_uuid, request_id)
        return WriteResult(encoded, summary.clock, summary.sibling_count), offset + 1

    # -- pushes ---------------------------------------------------------------------------------------

    def push(self, item: PushItem, hash64: int) -> Decision:
        """Add the entry of another cluster's change, stored as it came or merged by causality, unless it makes none.
        Raises BadInput, Corruption, StalePush."""
        key, origin, payload, leaving = item
        if len(payload) > self.limits.entry_bytes:
            raise self.too_long(payload)
        if len(origin) != 16:
            raise CodecError("a push whose origin is not a cluster uuid of 16 bytes")
        if key.bucket != self._bucket:
            self._enter(key.bucket)
        seen = None if leaving else peek_summary(payload)
        name = (key.bucket, key.key)
        pending, stored = self._newest(hash64, name)
        prefix = self.partition.actor_prefix
        if seen is None or prefix in seen[0]:
            return self._push_usual(item, hash64, pending, stored)
        clock, their_clock, object_hash, modified_ms, tombstone = seen
        change, previous = 0, NO_OFFSET
        if stored is None:
            if pending is not None or name in self._reaped:
                return self._push_usual(item, hash64, pending, stored)
        else:
            old_clock, old_hash, _, _, _, old_tombstone, previous = decode_key_row(stored)
            if not of_one_writer(old_clock, clock):
                if old_clock == clock or prefix in old_clock:
                    return self._push_usual(item, hash64, pending, stored)
                old = decode_clock(old_clock)
                if not descends(their_clock, old) or descends(old, their_clock):
                    return self._push_usual(item, hash64, pending, stored)
            change = leaf(key.bucket, key.key, old_clock, old_hash, tombstone=old_tombstone)
            if self._replaced is not None:
                self._replaced[self.next_offset] = old_clock
        if not tombstone:
            size = _LENGTH(len(key.key))
            change ^= xxh64_intdigest(self._bucket_head + size + key.key + clock + _HASH(object_hash))
        row = _pack((KEY_ROW_VERSION, clock, object_hash, modified_ms, len(payload), 1, tombstone, self.next_offset))
        limit = self.limits.entry_bytes
        return APPLIED, self._add_entry(_DATA, name, hash64, change, previous, row, payload, origin, b"", limit)

    def _push_usual(self, item: PushItem, hash64: int, pending: Entry | None, stored: bytes | None) -> Decision:
        """`push` of what is not common, for a key whose newest row is `stored`. Raises BadInput, Corruption,
        StalePush."""
        key, origin, payload, leaving = item
        name = (key.bucket, key.key)
        summary = summarize_encoded(payload)
        if self._actor in summary.clock:
            self._check_pushed_clock(decode_clock(summary.clock))
        current = None if stored is None else CurrentVersion(decode_key_row(stored), pending)
        leaving = leaving and summary.tombstone and self._bucket_properties.repl_reap
        if current is None:
            answer, end = self._push_of_reaped(item, summary, hash64, leaving=leaving)
            if answer is not None:
                return answer, end
        outcome, kind, met = PushOutcome.APPLIED, EntryKind.DATA, None
        last = self.reaped_clock(name) if current is None else ()
        if last and not descends(decode_clock(summary.clock), last):
            merged = self._merge_over_reaped(last, decode_object(payload))
            if not merged.siblings and summary.tombstone:
                return PushResult(PushOutcome.SUPERSEDED), end
            if not merged.siblings:
                merged = self._tombstone_over(merged.clock, key)
            payload, summary = encode_with_summary(merged)
            origin, outcome = self.cluster_uuid, PushOutcome.MERGED
        if current is not None:
            row = current.row
            end = _rests_on(current)
            decision = self._push_leaving(key, hash64, current, item, summary) if leaving else None
            if decision is not None:
                return decision
            if row.clock == summary.clock:
                if row.hash64 != summary.hash64:
                    refused = Corruption(
                        f"equal clock with other bytes: {key.bucket!r}/{key.key!r} "
                        f"clock {base64.b64encode(row.clock).decode()}"
                    )
                    return refused, end
                return PushResult(PushOutcome.SUPERSEDED), end
            mine = decode_clock(row.clock)
            theirs = decode_clock(summary.clock)
            if descends(mine, theirs):
                return PushResult(PushOutcome.SUPERSEDED), end
            if not descends(theirs, mine):
                properties = self._bucket_properties
                dot = (self._actor, pack_counter(self.epoch, self.next_offset))
                merged = pushed(self.read_object(current, key), decode_object(payload), dot, self.now_ms, properties)
                note_siblings(len(merged.siblings), key, self.limits, properties, self.warned)
                payload, summary = encode_with_summary(merged)
                if leaving and summary.tombstone and self._is_leaving(current):
                    kind = EntryKind.LEAVING
                origin = self.cluster_uuid
                outcome, met = PushOutcome.MERGED, MergedWith(row.clock, len(merged.siblings))
        if outcome is PushOutcome.APPLIED and self._takes_our_origin(current, summary, origin, key):
            origin = self.cluster_uuid
        offset, made = self.next_offset, outcome is not PushOutcome.APPLIED
        self.add_object(key, hash64, current, payload, summary, origin, b"", kind, made=made)
        return PushResult(outcome, None, met), offset + 1

    def _push_leaving(
        self, key: Key, hash64: int, current: CurrentVersion, item: PushItem, summary: Summary
    ) -> Decision | None:
        """`push` of a tombstone that is about to be reaped at its origin. If it has seen all that the key holds, it
        becomes a LEAVING entry here, too, to be reaped by this cluster's own rules (R-REAP). None: an ordinary
        push."""
        if not descends(decode_clock(summary.clock), decode_clock(current.row.clock)):
            return None
        differs = current.row.hash64 != summary.hash64
        if current.row.clock == summary.clock and (differs or self._is_leaving(current)):
            return None
        origin, offset = item.origin, self.next_offset
        if self._takes_our_origin(current, summary, origin, key):
            origin = self.cluster_uuid
        self.add_object(key, hash64, current, item.payload, summary, origin, b"", EntryKind.LEAVING, made=False)
        return PushResult(PushOutcome.APPLIED), offset + 1

    def _takes_our_origin(self, current: CurrentVersion | None, summary: Summary, pusher: bytes, key: Key) -> bool:
        """Whether a push that replaces `current` gets this cluster's origin, so that clusters other than the pusher
        receive it (R-OWED). It does if it replaces a write of this cluster that some of them lack, or returns one that
        was lost here: then no cursor shows who received it before."""
        prefix = self.partition.actor_prefix
        here = () if current is None else of_partition(decode_clock(current.row.clock), prefix)
        # The offset of the row, not of our dot: merges, and pushes that count as ours, move the row up.
        if current is not None and here and self._unreplicated(self.partition.id, current.row.offset, pusher, key):
            return True
        if prefix not in summary.clock or descends(here, of_partition(decode_clock(summary.clock), prefix)):
            return False
        return self._unreplicated(self.partition.id, self.next_offset, pusher, key)

    def _is_leaving(self, current: CurrentVersion) -> bool:
        """Whether the current version is a tombstone that is about to be reaped."""
        if current.pending is not None:
            return current.pending.kind == EntryKind.LEAVING
        try:
            found = self.store.changes(self.partition.id, current.row.offset, 1)
        except DamagedChange:  # the mark is lost: it is written again, and replaces the damaged row
            return False
        return bool(found) and found[0].offset == current.row.offset and found[0].kind == EntryKind.LEAVING

    def reaped_clock(self, name: tuple[bytes, bytes]) -> Clock:
        """The clock of a missing key's last tombstone; () if there was none, or it is forgotten."""
        pending = self._unapplied(name)
        if pending is not None:
            return decode_clock(decode_key_row(pending.row).clock)
        last = self._reaped.get(name)
        return () if last is None else decode_clock(last)

    def _merge_over_reaped(self, last: Clock, theirs: Object) -> Object:
        """Merge a pushed object with a tombstone that was reaped here and that it has not seen, so that deleted
        siblings stay deleted. The clock gets a dot of this partition: elsewhere, where the tombstone still exists, a
        merge has the same clock and another sibling. An object without siblings: the tombstone had seen them all,
        though not all of the clock."""
        merged = merge(Object(last, ()), theirs)
        dot = (self.partition.actor, pack_counter(self.epoch, self.next_offset))
        return Object(increment(merged.clock, *dot, self.now_ms // 1000), merged.siblings)

    def _tombstone_over(self, clock: Clock, key: Key) -> Object:
        """The tombstone of a reaped key, written once more under a pushed object's clock: the pusher still has what the
        tombstone had seen, and receives it so, as where the tombstone still exists."""
        dot = (self.partition.actor, pack_counter(self.epoch, self.next_offset))
        return written(Object(clock, ()), clock, TOMBSTONE, dot, self.now_ms, self.properties.of(key.bucket))

    def _push_of_reaped(
        self, item: PushItem, summary: Summary, hash64: int, *, leaving: bool
    ) -> tuple[object | None, int]:
        """`push` for a missing key, if it was reaped (R-REAP). The answer is None if the item is to be stored.

        Nothing that the reaped tombstone had seen is stored again. An item that has seen a write of this partition was
        reaped here at some time, or will be: a tombstone is not stored but remembered, and so is one that is leaving
        elsewhere. A value may be older than the reap, and must be fetched again.
        """
        partition, key = self.partition, item.key
        name = (key.bucket, key.key)
        pending = self._unapplied(name)
        under_way = 0 if pending is None else pending.offset + 1
        last = self.reaped_clock(name)
        if last and descends(last, decode_clock(summary.clock)):
            return PushResult(PushOutcome.SUPERSEDED), under_way
        if not leaving:
            if partition.actor_prefix not in summary.clock:
                return None, under_way
            if pending is None and self.store.cursor(partition.id, REAPED).entry_offset < 0:
                return None, 0
        if summary.tombstone:
            seen = gone_with(last, decode_object(item.payload))
            if seen is not None:
                summary = summary._replace(clock=seen)
                self.add(reap_entry(self.header(), self.cluster_uuid, key, hash64, NO_OFFSET, summary))
                under_way = self.next_offset
            return PushResult(PushOutcome.SUPERSEDED), under_way
        if partition.reaped_pushes.comes_again(hash64, summary.hash64):
            return None, under_way
        return StalePush("the key was reaped here: fetch its current version from the source again"), 0

    # -- requests and conditions ----------------------------------------------------------------------

    def _request_offset(self, request_id: bytes, hash64: int) -> int | None:
        """The offset of the entry by which this request took effect, pending or committed; None: not known."""
        name = request_name(hash64, request_id)
        found = self.new_requests.get(name)
        if found is None:
            found = self._pending_requests.get(name)
        return self.store.request_offset(self.partition.id, hash64, request_id) if found is None else found

    def _answer_repeated(self, found: int, current: CurrentVersion | None, key: Key) -> Decision:
        """The answer to a request that took effect at the offset `found`: the key's current version, or the clock of
        its last tombstone if it was deleted and reaped since."""
        self.repeated_count += 1
        end = found + 1 if found >= self.partition.replica.applied else 0
        if current is None:
            name = (key.bucket, key.key)
            reap = self._unapplied(name)
            last = self.reaped_clock(name)
            answer = WriteResult(b"", encode_clock(last) if last else b"", 0, repeated=True)
            return answer, end if reap is None else max(end, reap.offset + 1)
        end = max(end, _rests_on(current))
        data = self._object_bytes(current, key)
        return WriteResult(data, current.row.clock, current.row.sibling_count, repeated=True), end

    def _failed_condition(
        self, condition: Condition, current: CurrentVersion | None, key: Key
    ) -> ConditionFailed | None:
        """The refusal of a write whose condition does not hold. The object is read only if its tag is needed."""
        if current is None:
            return judge_write(condition, ConditionState(False, "", 0, ()))
        row = current.row
        clock = decode_clock(row.clock)
        if row.tombstone:
            return judge_write(condition, ConditionState(False, "", 0, clock))
        tag = object_tag(row.clock, self.read_object(current, key).siblings) if needs_tag(condition) else ""
        return judge_write(condition, ConditionState(True, tag, row.last_modified_ms // 1000, clock))

    def _check_context(self, context: Clock) -> None:
        """Refuse a context that names writes of this partition which were never made: their dots would be lost."""
        if counter_of(context, self.partition.actor) >= pack_counter(self.epoch, self.next_offset):
            error = BadInput("X-Riak-Vclock names writes that this cluster has not made: read the key again")
            raise self._never_made(error, context)

    def _check_pushed_clock(self, clock: Clock) -> None:
        """Refuse a pushed clock that names writes of this partition which were never made: later writes would look
        old (R-FORGED)."""
        counter = counter_of(clock, self.partition.actor)
        if counter >= pack_counter(self.epoch, self.next_offset):
            self.ahead_counter = max(self.ahead_counter, counter)
            raise self._never_made(
                ForgedClock("the pushed object's clock names writes that this cluster has not made"), clock
            )

    def _never_made(self, error: BadInput, clock: Clock) -> BadInput:
        """`error` about a clock that is ahead of this partition. In this leader's epoch that is certain. A counter of a
        higher epoch may be a successor's: then the refusal waits until leadership is confirmed."""
        if counter_of(clock, self.partition.actor) >> OFFSET_BITS > self.epoch:
            error.needs_confirmation = self.needs_confirmation = True
        return error

    # -- entries --------------------------------------------------------------------------------------

    def header(self) -> EntryHeader:
        """The header of the next entry."""
        return EntryHeader(self.epoch, self.next_offset, self.now_ms)

    def add(self, entry: Entry) -> None:
        """Add the next entry."""
        self.next_offset = entry.offset + 1
        self.entries.append(entry)
        self.new_rows[entry.bucket, entry.key] = entry

    def _add_entry(
        self,
        kind: int,
        name: tuple[bytes, bytes],
        hash64: int,
        change: int,
        previous: int,
        row: bytes,
        payload: bytes,
        origin: bytes,
        request_id: bytes,
        limit_bytes: int,
    ) -> int:
        """Add the next entry of (bucket, key), encoded once; returns the offset after it. Raises TooLarge."""
        offset = self.next_offset
        bucket, key = name
        fields = (
            kind, self.epoch, offset, 0, request_id, origin, self.now_ms, hash64, change, previous, bucket, key, row,
            payload,
        )  # fmt: skip
        wire: bytes = _pack(_VERSION + fields)
        if len(wire) > limit_bytes:
            raise self.too_long(wire)
        entry: Entry = _new(Entry, fields + (wire,))  # noqa: RUF005 -- a third of the time of (*fields, wire)
        self.entries.append(entry)
        self.new_rows[name] = entry
        self.next_offset = offset + 1
        return offset + 1

    def too_long(self, wire: bytes) -> TooLarge:
        """The refusal of an entry that other nodes or clusters would not take."""
        return TooLarge(
            f"the object with all its siblings would make an entry of {len(wire)} bytes; at most "
            f"{self.limits.made_bytes} are taken, which follows from limits.object_size "
            f"({self.limits.object_bytes}): resolve its siblings, or raise that in all clusters"
        )

    def add_object(
        self,
        key: Key,
        hash64: int,
        current: CurrentVersion | None,
        encoded: bytes,
        summary: Summary,
        origin: bytes,
        request_id: bytes,
        kind: EntryKind = EntryKind.DATA,
        *,
        made: bool = True,
    ) -> None:
        """Add an entry that replaces `current` by the object `encoded`. `made`: the object was made here, and not
        taken over from another cluster. Raises TooLarge."""
        bucket, name = key.bucket, key.key
        change = leaf(bucket, name, summary.clock, summary.hash64, tombstone=summary.tombstone)
        previous = NO_OFFSET
        if current is not None:
            row = current.row
            change ^= leaf(bucket, name, row.clock, row.hash64, tombstone=row.tombstone)
            previous = current.row.offset
        offset = self.next_offset
        if current is not None and self._replaced is not None:
            self._replaced[offset] = current.row.clock
        self._add_entry(
            int(kind),
            (bucket, name),
            hash64,
            change,
            previous,
            encode_key_row(summary, offset),
            encoded,
            origin,
            request_id,
            self._made_bytes if made else self.limits.entry_bytes,
        )
        if request_id:
            self.new_requests[request_name(hash64, request_id)] = offset


def _rests_on(current: CurrentVersion | None) -> int:
    """The offset below which all must be applied before an answer may depend on `current`; 0: at once."""
    return 0 if current is None or current.pending is None else current.pending.offset + 1

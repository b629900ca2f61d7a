"""A proposal: what a batch of writes and pushes would change in one partition, before the core is asked.

For each item it reads what the key holds now (the newest unapplied entry first: a leader reads its own writes),
decides by clocks, makes the new object and encodes it once. It appends nothing: `repl.coordinator.coordinator` takes
the entries to the core and answers when they are applied. An item that makes no entry, refused or not, still waits for
the pending entry that it was judged against (docs/protocol.md R-WAIT): a push that is superseded, a delete of nothing,
one sibling too many, a request that is known.

Limits of one write: the node's own and its bucket's, refused above the one, reported above the other. Pure.

A bucket's properties can only be stricter than `limits` of the node's file, for those are what other nodes and the
window take. Pushes are reported and never refused for their siblings: what another cluster has must be kept.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from isthmus.repl.model.conditions import Condition, ConditionFailed, ConditionState, judge_write, needs_tag, object_tag
from isthmus.repl.model.entry import (
    NO_OFFSET,
    Entry,
    EntryKind,
    KeyRow,
    decode_key_row,
    encode_key_row,
    leaf,
    make_entry,
)
from isthmus.repl.model.errors import BadInput, CodecError, Corruption, Retryable, TooLarge
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import (
    Object,
    Summary,
    decode_object,
    encode_with_summary,
    merge,
    resolved,
    summarize_encoded,
    written,
)
from isthmus.repl.model.properties import Properties, TypeProperties
from isthmus.repl.model.requests import (
    REQUEST_ID_BYTES_MAX,
    Met,
    PushItem,
    PushOutcome,
    PushResult,
    WriteRequest,
    WriteResult,
)
from isthmus.repl.model.vclock import (
    OFFSET_BITS,
    Clock,
    counter_of,
    decode_clock,
    descends,
    encode_clock,
    increment,
    pack_counter,
)
from isthmus.repl.model.vclock import merge as merge_clocks
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.store.port import REAPED, DamagedChange, Store
from isthmus.repl.store.reaped_pushes import EntryHeader, gone_with, reap_entry
from isthmus.repl.store.request_dedup import request_name


class TooManySiblings(BadInput):
    """The write would leave more siblings than limits.siblings; read, resolve, and write with the context."""

    reason = "too-many-siblings"


INTEGERS_BYTES: Final = 64
"""By how much two entries of one object may differ in length: seven integers (epoch, offset twice, previous offset,
time, hash of the leaf) that take one to nine bytes each, and a request id's place."""


class WriteLimits(NamedTuple):
    """Limits of one write, from the settings."""

    object_bytes: int
    sibling_count: int
    entry_bytes: int
    """Longest entry, so the largest object with all its siblings, that other nodes take."""

    object_warn_bytes: int = 0
    """Larger values are reported; 0: none."""

    sibling_warn_count: int = 0
    """Objects with more siblings are reported; 0: none."""

    @property
    def made_bytes(self) -> int:
        """Longest entry of an object that is made here, by a write or a merge. Any cluster with the same settings then
        takes it as a push: there the entry differs by its integers alone."""
        return self.entry_bytes - INTEGERS_BYTES


class Warned(NamedTuple):
    """An object that was taken although it is above what is sound: `what` is "object-size" or "siblings"."""

    what: str
    key: Key
    found: int
    limit: int


def check_size(size: int, key: Key, limits: WriteLimits, properties: Properties, warned: list[Warned]) -> None:
    """Raises TooLarge for a value above a limit; one above the warning goes into `warned`."""
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
    """The refusal of an object with that many siblings; None, and as `note_siblings`, when it is within the limits."""
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
    """An object with more siblings than the warning goes into `warned`."""
    warn = properties.warn_siblings or limits.sibling_warn_count
    if 0 < warn < count:
        warned.append(Warned("siblings", key, count, warn))


class ForgedClock(BadInput):
    """A clock from another cluster that has seen writes of this one which were never made."""

    reason = "forged-clock"


class StalePush(Retryable):
    """The key was reaped here, and the push may be from before: it must be fetched again."""

    reason = "stale-push"


Owed = Callable[[int, int, bytes, Key], bool]
"""(partition, offset of a row in which a write of ours is, cluster that pushes, key) -> whether some other cluster has
not got that row yet."""


def never_unreplicated(_partition: int, _offset: int, _pusher: bytes, _key: Key) -> bool:
    """Where no queue gives anything to anybody."""
    return False


class CurrentVersion(NamedTuple):
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
        properties: TypeProperties,
        now_ms: int,
        pending_requests: Mapping[bytes, int],
        owed: Owed = never_unreplicated,
    ) -> None:
        """`properties` are those of the partition's bucket type. `pending_requests`: name of a request
        (`repl.store.request_dedup`) -> offset of its entry that is not applied. `owed` asks the source queues
        (R-OWED)."""
        self._partition = partition
        self._pending_requests = pending_requests
        self._owed = owed
        self._store = store
        self._own = cluster_uuid
        self._limits = limits
        self._properties = properties
        self._now_ms = now_ms
        self._epoch = partition.replica.epoch
        self._next = partition.replica.leo
        self.put_count = 0
        self.delete_count = 0
        self.repeated_count = 0
        self.needs_confirmation = False
        """An item was refused because of what a process that leads no longer does not know."""
        self.warned: list[Warned] = []
        self.entries: list[Entry] = []
        self.fresh: dict[tuple[bytes, bytes], Entry] = {}
        self.fresh_requests: dict[bytes, int] = {}

    def _current(self, hash64: int, bucket: bytes, key: bytes) -> CurrentVersion | None:
        place = (bucket, key)
        entry = self.fresh.get(place) or self._partition.pending_rows.get(place)
        if entry is not None:
            return None if entry.kind == EntryKind.REAP else CurrentVersion(decode_key_row(entry.row), entry)
        row = self._store.key_row(self._partition.id, hash64, bucket, key)
        return None if row is None else CurrentVersion(decode_key_row(row), None)

    def _bytes(self, current: CurrentVersion, key: Key) -> bytes:
        if current.pending is not None:
            return current.pending.payload
        data = self._store.object(self._partition.id, key.bucket, key.key)
        if data is None:
            raise Corruption(f"key row without its object in partition {self._partition.id}")
        return data

    def _object(self, current: CurrentVersion, key: Key) -> Object:
        try:
            return decode_object(self._bytes(current, key))
        except CodecError as error:  # the stored one: whoever writes has sent nothing wrong
            raise Corruption(f"the stored object of {key.bucket!r}/{key.key!r} cannot be read: {error}") from error

    def write(self, request: WriteRequest, hash64: int) -> tuple[object, int]:
        """(answer, offset below which all must be applied before it may be given; 0 for at once)."""
        key, content, context, request_id, _, condition = request
        properties = self._properties.of(key.bucket)
        check_size(len(content.value), key, self._limits, properties, self.warned)
        current = self._current(hash64, key.bucket, key.key)
        if request_id:
            if len(request_id) > REQUEST_ID_BYTES_MAX:
                raise BadInput(f"a request id of {len(request_id)} bytes; at most {REQUEST_ID_BYTES_MAX} are allowed")
            found = self._known(request_id, hash64)
            if found is not None:
                return self._repeated(found, current, key)
        if condition is not None:
            failed = self._judge(condition, current, key)
            if failed is not None:
                self.needs_confirmation = True
                return failed, _rests_on(current)
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
        offset = self._next
        dot = (self._partition.actor, pack_counter(self._epoch, offset))
        if current is None:
            last = self._reaped_clock((key.bucket, key.key))
            base = Object(last, ()) if last else None
            obj = written(base, merge_clocks(last, context or ()), content, dot, self._now_ms, properties)
        else:
            clock = decode_clock(current.row.clock)
            if not context and (content.tombstone or current.row.tombstone):
                context = clock
            if properties.last_write_wins or (context and descends(context, clock)):
                # All that is there was seen, or does not count: the old siblings need not be read.
                obj = written(Object(clock, ()), context or clock, content, dot, self._now_ms, properties)
            else:
                obj = written(self._object(current, key), context or (), content, dot, self._now_ms, properties)
                refused = check_siblings(len(obj.siblings), key, self._limits, properties, self.warned)
                if refused is not None:
                    return refused, _rests_on(current)
        encoded, summary = encode_with_summary(obj)
        self._append(key, hash64, current, encoded, summary, self._own, request_id)
        return WriteResult(encoded, summary.clock, summary.sibling_count), offset + 1

    def push(self, item: PushItem, hash64: int) -> tuple[object, int]:
        """As `write`, for a change from another cluster: kept as it is, or merged by causality."""
        key, origin, payload, leaving = item
        if len(payload) > self._limits.entry_bytes:
            raise self.too_long(payload)
        if len(origin) != 16:
            raise CodecError("a push whose origin is no cluster uuid")
        summary = summarize_encoded(payload)
        if self._partition.actor in summary.clock:
            self._check_ours(decode_clock(summary.clock))
        current = self._current(hash64, key.bucket, key.key)
        leaving = leaving and summary.tombstone and self._properties.of(key.bucket).repl_reap
        if current is None:
            answer, end = self._reaped(item, summary, hash64, leaving=leaving)
            if answer is not None:
                return answer, end
        outcome, kind, met = PushOutcome.APPLIED, EntryKind.DATA, None
        last = self._reaped_clock((key.bucket, key.key)) if current is None else ()
        if last and not descends(decode_clock(summary.clock), last):
            merged = self._over_reaped(last, decode_object(payload))
            if not merged.siblings:
                return PushResult(PushOutcome.SUPERSEDED), end
            payload, summary = encode_with_summary(merged)
            origin, outcome = self._own, PushOutcome.MERGED
        if current is not None:
            row = current.row
            end = _rests_on(current)
            told = self._leaving(key, hash64, current, item, summary) if leaving else None
            if told is not None:
                return told
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
                merged = merge(self._object(current, key), decode_object(payload))
                properties = self._properties.of(key.bucket)
                dot = (self._partition.actor, pack_counter(self._epoch, self._next))
                merged = resolved(merged, dot, self._now_ms, properties)
                note_siblings(len(merged.siblings), key, self._limits, properties, self.warned)
                payload, summary = encode_with_summary(merged)
                if leaving and summary.tombstone and self._leaves(current):
                    kind = EntryKind.LEAVING
                origin = self._own
                outcome, met = PushOutcome.MERGED, Met(row.clock, len(merged.siblings))
        if outcome is PushOutcome.APPLIED and self._counts_as_ours(current, summary, origin, key):
            origin = self._own
        offset, made = self._next, outcome is not PushOutcome.APPLIED
        self._append(key, hash64, current, payload, summary, origin, b"", kind, made=made)
        return PushResult(outcome, None, met), offset + 1

    def _leaving(
        self, key: Key, hash64: int, current: CurrentVersion, item: PushItem, summary: Summary
    ) -> tuple[object, int] | None:
        """As `push`, of a tombstone that is about to be reaped where it comes from: if that has seen all that is here,
        it is to leave here, too, by our own rules (R-REAP). None: it is a push like any other."""
        if not descends(decode_clock(summary.clock), decode_clock(current.row.clock)):
            return None
        differs = current.row.hash64 != summary.hash64
        if current.row.clock == summary.clock and (differs or self._leaves(current)):
            return None
        origin, offset = item.origin, self._next
        if self._counts_as_ours(current, summary, origin, key):
            origin = self._own
        self._append(key, hash64, current, item.payload, summary, origin, b"", EntryKind.LEAVING, made=False)
        return PushResult(PushOutcome.APPLIED), offset + 1

    def _counts_as_ours(self, current: CurrentVersion | None, summary: Summary, pusher: bytes, key: Key) -> bool:
        """Whether a push that replaces `current` is given our origin, so that other clusters than the pusher get it
        (R-OWED): it replaces a write of ours that some have not got, or brings back one that was lost here, of which
        nothing tells who got it before."""
        actor = self._partition.actor
        here = 0 if current is None else counter_of(decode_clock(current.row.clock), actor)
        # The offset of the row, not of our dot: merges, and pushes that count as ours, move the row up.
        if current is not None and here and self._owed(self._partition.id, current.row.offset, pusher, key):
            return True
        if actor not in summary.clock or counter_of(decode_clock(summary.clock), actor) <= here:
            return False
        return self._owed(self._partition.id, self._next, pusher, key)

    def _leaves(self, current: CurrentVersion) -> bool:
        """Whether what the key holds is a tombstone that is about to be reaped."""
        if current.pending is not None:
            return current.pending.kind == EntryKind.LEAVING
        try:
            found = self._store.changes(self._partition.id, current.row.offset, 1)
        except DamagedChange:  # what was said is lost: it is said again, and that row goes
            return False
        return bool(found) and found[0].offset == current.row.offset and found[0].kind == EntryKind.LEAVING

    def _reaped_clock(self, name: tuple[bytes, bytes]) -> Clock:
        """Of a key that is not here: what its last tombstone had seen, () where there was none, or it is forgotten."""
        pending = self.fresh.get(name) or self._partition.pending_rows.get(name)
        if pending is not None:
            return decode_clock(decode_key_row(pending.row).clock)
        last = self._store.reaped_clocks(self._partition.id).get(name)
        return () if last is None else decode_clock(last)

    def _over_reaped(self, last: Clock, theirs: Object) -> Object:
        """What a pushed object comes to that has not seen the tombstone which was reaped here: as if that were still
        there, so what it had seen stays gone, and does not come back beside this either. Its clock gets a dot of ours:
        where the tombstone is still there, a merge with it has this clock and another sibling. Without siblings: all
        that it has is gone."""
        merged = merge(Object(last, ()), theirs)
        dot = (self._partition.actor, pack_counter(self._epoch, self._next))
        return Object(increment(merged.clock, *dot, self._now_ms // 1000), merged.siblings)

    def _reaped(self, item: PushItem, summary: Summary, hash64: int, *, leaving: bool) -> tuple[object, int]:
        """As `push`, for a key that is not here, if it was reaped (R-REAP): of what the tombstone had seen nothing is
        new. One that has seen a write of ours was reaped some time: a tombstone is not taken again, but remembered,
        like one that leaves elsewhere; a value may be from before, and must come again. No answer: it is to be had."""
        place, key = self._partition, item.key
        name = (key.bucket, key.key)
        pending = self.fresh.get(name) or place.pending_rows.get(name)
        under_way = 0 if pending is None else pending.offset + 1
        last = self._reaped_clock(name)
        if last and descends(last, decode_clock(summary.clock)):
            return PushResult(PushOutcome.SUPERSEDED), under_way
        if not leaving:
            if place.actor not in summary.clock:
                return None, under_way
            if pending is None and self._store.cursor(place.id, REAPED).entry_offset < 0:
                return None, 0
        if summary.tombstone:
            seen = gone_with(last, decode_object(item.payload))
            if seen is not None:
                self._take(reap_entry(self._stamp(), self._own, key, hash64, NO_OFFSET, summary._replace(clock=seen)))
                under_way = self._next
            return PushResult(PushOutcome.SUPERSEDED), under_way
        if place.reaped_pushes.comes_again(hash64, summary.hash64):
            return None, under_way
        return StalePush("the key was reaped here: what is there now is to be fetched once more"), 0

    def too_long(self, wire: bytes) -> TooLarge:
        """The refusal of an entry that other nodes, or other clusters, do not take."""
        return TooLarge(
            f"the object with all its siblings would make an entry of {len(wire)} bytes; at most "
            f"{self._limits.made_bytes} are taken, which follows from limits.object_size "
            f"({self._limits.object_bytes}): resolve its siblings, or raise that in all clusters"
        )

    def _stamp(self) -> EntryHeader:
        return EntryHeader(self._epoch, self._next, self._now_ms)

    def _take(self, entry: Entry) -> None:
        self._next = entry.offset + 1
        self.entries.append(entry)
        self.fresh[entry.bucket, entry.key] = entry

    def _known(self, request_id: bytes, hash64: int) -> int | None:
        """The offset of the entry by which this request took effect, pending or committed; None: not known."""
        name = request_name(hash64, request_id)
        found = self.fresh_requests.get(name)
        if found is None:
            found = self._pending_requests.get(name)
        return self._store.request_offset(self._partition.id, hash64, request_id) if found is None else found

    def _repeated(self, found: int, current: CurrentVersion | None, key: Key) -> tuple[object, int]:
        """The answer to a request that took effect at the offset `found`: what the key holds now; of one that was
        deleted and reaped since, what its tombstone had seen."""
        self.repeated_count += 1
        end = found + 1 if found >= self._partition.replica.applied else 0
        if current is None:
            name = (key.bucket, key.key)
            reap = self.fresh.get(name) or self._partition.pending_rows.get(name)
            last = self._reaped_clock(name)
            answer = WriteResult(b"", encode_clock(last) if last else b"", 0, repeated=True)
            return answer, end if reap is None else max(end, reap.offset + 1)
        end = max(end, _rests_on(current))
        data = self._bytes(current, key)
        return WriteResult(data, current.row.clock, current.row.sibling_count, repeated=True), end

    def _judge(self, condition: Condition, current: CurrentVersion | None, key: Key) -> ConditionFailed | None:
        """Why the write must not be carried out by its own condition; the object is read only for its tag."""
        if current is None:
            return judge_write(condition, ConditionState(False, "", 0, ()))
        row = current.row
        clock = decode_clock(row.clock)
        if row.tombstone:
            return judge_write(condition, ConditionState(False, "", 0, clock))
        tag = object_tag(row.clock, self._object(current, key).siblings) if needs_tag(condition) else ""
        return judge_write(condition, ConditionState(True, tag, row.last_modified_ms // 1000, clock))

    def _check_context(self, context: Clock) -> None:
        """A context may not have seen writes of ours that were never made: their dots would be lost."""
        if counter_of(context, self._partition.actor) >= pack_counter(self._epoch, self._next):
            error = BadInput("X-Riak-Vclock names writes that this cluster has not made: read the key again")
            raise self._never_made(error, context)

    def _check_ours(self, clock: Clock) -> None:
        """A pushed clock may not have seen writes of ours that were never made: ours to come would look old
        (R-FORGED)."""
        if counter_of(clock, self._partition.actor) >= pack_counter(self._epoch, self._next):
            raise self._never_made(
                ForgedClock("the pushed object's clock names writes that this cluster has not made"), clock
            )

    def _never_made(self, error: BadInput, clock: Clock) -> BadInput:
        """`error` about a clock that is ahead of this partition. In the epoch of this leader that is certain. A counter
        of a higher epoch may be its successor's: then the refusal must wait until leadership is confirmed."""
        if counter_of(clock, self._partition.actor) >> OFFSET_BITS > self._epoch:
            error.needs_confirmation = self.needs_confirmation = True
        return error

    def _append(
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
        """`made`: the object is made here; else it is taken as another cluster has it."""
        bucket, name = key.bucket, key.key
        change = leaf(bucket, name, summary.clock, summary.hash64, tombstone=summary.tombstone)
        previous = NO_OFFSET
        if current is not None:
            row = current.row
            change ^= leaf(bucket, name, row.clock, row.hash64, tombstone=row.tombstone)
            previous = current.row.offset
        offset = self._next
        entry = make_entry(
            kind,
            self._epoch,
            offset,
            request_id=request_id,
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
        if len(entry.wire) > (self._limits.made_bytes if made else self._limits.entry_bytes):
            raise self.too_long(entry.wire)
        self._take(entry)
        if request_id:
            self.fresh_requests[request_name(hash64, request_id)] = offset


def _rests_on(current: CurrentVersion | None) -> int:
    """The offset below which all must be applied before an answer may rest on `current`; 0 for at once."""
    return 0 if current is None or current.pending is None else current.pending.offset + 1

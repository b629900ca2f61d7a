"""Reaping: tombstones whose time has come are removed, once nobody can need them any more.

A bucket's `delete_mode` says when a tombstone may go, an operator may ask for one key. Removal is an entry of the log,
REAP, made by the leader, so all replicas do it at the same place. It waits (docs/protocol.md R-REAP) until every
replica of the partition is in sync, and until every queue that offers the bucket has the acknowledgement of the
tombstone; a tombstone of another cluster is first written once more as ours where there are queues, so that all of
them offer it. What waits, and for whom, is told.

Candidates come from apply; beyond CANDIDATES_MAX, and after a change of leader or of properties, from a walk over the
partition's keys, a page at a time. What a proposal does is `repl.coordinator.write_batch`'s; which queues wait
`queues.tombstone_barrier` says.

A proposal about tombstones that may go: they are removed, or written once more.

Tombstones that may go, and when: what the reaper remembers of them (pure).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Final, NamedTuple

import msgpack
import structlog

from isthmus.repl.coordinator.reads import not_led
from isthmus.repl.coordinator.routing import RoutingTable
from isthmus.repl.coordinator.write_batch import CurrentVersion, WriteBatch, WriteLimits
from isthmus.repl.model.entry import CHANGES, Entry, EntryKind, KeyRow, decode_key_row
from isthmus.repl.model.errors import CodecError, IsthmusError, NotLeader, NotReady
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import Object, Summary, encode_with_summary
from isthmus.repl.model.ports import ReapBarrier
from isthmus.repl.model.properties import PropertySource, TypeProperties
from isthmus.repl.model.vclock import counter_of, increment, pack_counter
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.store.port import DamagedChange
from isthmus.repl.store.reaped_pushes import reap_entry
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links


class ReapBatch:
    """Entries about tombstones that may go: REAP removes one, and a restatement writes it once more."""

    def __init__(self, batch: WriteBatch) -> None:
        """The entries are added to `batch`."""
        self.batch = batch

    def reap(self, key: Key, hash64: int, offset: int) -> bool:
        """Remove the tombstone that was written at `offset`; False if it is no longer the key's current version."""
        row, batch = self._tombstone(key, hash64, offset), self.batch
        if row is None:
            return False
        batch.add(reap_entry(batch.header(), batch.cluster_uuid, key, hash64, offset, Summary(*row[:-1])))
        return True

    def restate(self, key: Key, hash64: int, offset: int, *, leaving: bool = False) -> bool:
        """Write the tombstone once more as a change of this cluster, so that every queue offers it; False as in `reap`.

        It gets a dot of this partition if it has none: a cluster whose dot it has stores it no more once it is reaped
        there, so that tombstones do not circulate in a mesh."""
        row, batch = self._tombstone(key, hash64, offset), self.batch
        if row is None:
            return False
        current, actor = CurrentVersion(row, None), batch.partition.actor
        obj = batch.read_object(current, key)
        if not counter_of(obj.clock, actor):
            clock = increment(obj.clock, actor, pack_counter(batch.epoch, batch.next_offset), batch.now_ms // 1000)
            obj = Object(clock, obj.siblings)
        encoded, summary = encode_with_summary(obj)
        kind = EntryKind.LEAVING if leaving else EntryKind.DATA
        batch.add_object(key, hash64, current, encoded, summary, batch.cluster_uuid, b"", kind)
        return True

    def _tombstone(self, key: Key, hash64: int, offset: int) -> KeyRow | None:
        """The key's row, if it is the tombstone written at `offset`, and applied."""
        current = self.batch.current(hash64, key.bucket, key.key)
        if current is None or current.pending is not None:
            return None
        return current.row if current.row.tombstone and current.row.offset == offset else None


class Tombstone(NamedTuple):
    """A key that was deleted: since which offset, when (wall clock), whether by this cluster, and whether it is about
    to be reaped here, or in a cluster that told so."""

    bucket: bytes
    key: bytes
    offset: int
    deleted_ms: int
    ours: bool
    leaving: bool


def due_at_ms(kind: TypeProperties, found: Tombstone) -> int | None:
    """From when on a tombstone may be reaped; None: not by itself. One that leaves elsewhere leaves here."""
    properties = kind.of(found.bucket)
    if found.leaving and properties.repl_reap:
        return 0
    return None if properties.reap_after_ms is None else found.deleted_ms + properties.reap_after_ms


log = structlog.get_logger(__name__)

METHOD: Final = "kv.reap"
"""What one node asks of the one that leads: msgpack [bucket type, bucket, key] -> [outcome, reason]."""

TICK_S: Final = 0.5
"""How often candidates are looked at: a tombstone of `delete_mode = immediate` stays for about as long."""

CANDIDATES_MAX: Final = 10_000
"""Tombstones of one partition that are remembered until they may go; the others are found again by a walk: 2 MB."""

ENTRIES_AT_ONCE: Final = 500
"""Most entries of one partition in one turn, so that reaping many takes its time and writes do not wait for it."""

REAPS_AT_ONCE: Final = 50
"""Most of them that reap: 100 a second. So the 10,000 reaped keys that a partition remembers (`repl.store.reaped_keys`)
go back 100 s at least: longer than a queue's lease (30 s) and the time that a write may take (60 s) together, after
which no sink pushes an old value any more. Beyond that rate tombstones stay until there are fewer deletes."""

LOOKS_AT_ONCE: Final = 500
"""Most tombstones of one partition that are asked about in one turn, 8 us each: while a sink is away all of them wait,
and all at once would hold up the loop for a tenth of a second, twice a second, for each partition."""

PAGE_KEYS: Final = 2_000
"""Keys that one step of a walk reads, in a thread."""

WALK_PAUSE_S: Final = 60.0
"""Pause before a walk that left tombstones behind begins again. A guess."""

_REAP: Final = int(EntryKind.REAP)
_LEAVING: Final = int(EntryKind.LEAVING)


class Reaped(NamedTuple):
    """What came of asking for one key: "reaped", "waits", "no-tombstone"; and why."""

    outcome: str
    reason: str


class _Led:
    """What is known of a partition that is led here."""

    def __init__(self) -> None:
        self.candidates: dict[tuple[bytes, bytes], Tombstone] = {}
        self.walk_after: tuple[bytes, bytes] | None = None
        self.walking = True
        """A walk over the keys is under way, or due."""
        self.walk_at_s = 0.0
        self.left_behind = False
        self.waits = ""
        """Why the oldest candidate that is due is still there."""


class Reaper:
    """Of one node; an ApplyListener hook. All methods belong to the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        links: Links,
        routes: RoutingTable,
        read_pool: Executor,
        limits: WriteLimits,
        properties: PropertySource,
        settled: ReapBarrier,
        request_timeout_ms: int,
    ) -> None:
        self._runtime = runtime
        self._links = links
        self._routes = routes
        self._pool = read_pool
        self._limits = limits
        self._properties = properties
        self._settled = settled
        self._timeout_ms = request_timeout_ms
        self.differs: Callable[[Key], str] = lambda _key: ""
        """Which full-sync of this node last found the key different, in a sentence. Set by who knows them."""
        self._led: dict[int, _Led] = {}
        self._task: asyncio.Task[None] | None = None
        self.reaped_count = 0
        self.restated_count = 0
        self.announced_count = 0
        self.told_count = 0
        runtime.listeners.add(self)

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Look no more; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def properties_changed(self) -> None:
        """Other tombstones may be due now."""
        for led in self._led.values():
            led.candidates.clear()
            led.walking, led.walk_after, led.walk_at_s = True, None, 0.0

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:  # noqa: ARG002
        """See `repl.model.ports.ApplyListener`."""
        if leading:
            self._led[partition] = _Led()
        else:
            self._led.pop(partition, None)

    def applied(self, partition: int, entries: Sequence[Entry], leader: bool) -> None:
        """See `repl.model.ports.ApplyListener`: notes new tombstones that will be reaped, and reaped ones."""
        led = self._led.get(partition) if leader else None
        if led is None:
            return
        kind = self._properties.of_type(self._runtime.partitions[partition].bucket_type)
        if not kind.reaps:
            return
        own = self._runtime.cluster_uuid
        for entry in entries:
            place = (entry.bucket, entry.key)
            if entry.kind not in CHANGES:
                if entry.kind == _REAP:
                    led.candidates.pop(place, None)
                continue
            leaving = entry.kind == _LEAVING
            self.told_count += leaving and entry.origin != own
            found = Tombstone(*place, entry.offset, entry.time_ms, entry.origin == own, leaving)
            if due_at_ms(kind, found) is not None and decode_key_row(entry.row).tombstone:
                self._note(led, found)
            else:
                led.candidates.pop(place, None)

    def _note(self, led: _Led, found: Tombstone) -> None:
        place = (found.bucket, found.key)
        if len(led.candidates) < CANDIDATES_MAX or place in led.candidates:
            led.candidates[place] = found
        else:
            led.left_behind = True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for partition in list(self._led):
                await asyncio.sleep(0)
                place = self._runtime.partitions.get(partition)
                led = self._led.get(partition)
                if place is None or led is None or not place.replica.ready:
                    continue
                if not self._properties.of_type(place.bucket_type).reaps:
                    continue
                try:
                    await self._walk(place, led)
                    self._reap_due(place, led)
                except IsthmusError as error:
                    led.waits = f"{error.reason}: {error}"
                    led.walking, led.walk_after = True, None  # what was to be reaped is a candidate no more
                except Exception:
                    log.exception("reap.bug", partition=partition)

    # -- finding --------------------------------------------------------------------------------------

    async def _walk(self, place: Partition, led: _Led) -> None:
        """One page of a walk over the keys, if one is due and there is room for what it finds."""
        loop = asyncio.get_running_loop()
        if not led.walking and led.left_behind and not led.candidates:
            led.walking, led.left_behind, led.walk_at_s = True, False, loop.time() + WALK_PAUSE_S
        if not led.walking or loop.time() < led.walk_at_s or len(led.candidates) >= CANDIDATES_MAX:
            return
        found, led.walk_after = await loop.run_in_executor(self._pool, self._page, place, led.walk_after)
        for tombstone in found:
            if (tombstone.bucket, tombstone.key) not in led.candidates:
                self._note(led, tombstone)
        led.walking = led.walk_after is not None

    def _page(
        self, place: Partition, after: tuple[bytes, bytes] | None
    ) -> tuple[list[Tombstone], tuple[bytes, bytes] | None]:
        """In a thread: tombstones of buckets that reap, and where to go on."""
        kind = self._properties.of_type(place.bucket_type)
        keys = self._runtime.store.list_keys(place.id, None, after)
        found, count, last = [], 0, after
        for listed in islice(keys, PAGE_KEYS):
            count, last = count + 1, (listed.bucket, listed.key)
            try:
                row = decode_key_row(listed.row)
            except CodecError as error:  # whoever mends rows finds it; those behind it are reaped all the same
                log.error("reap.row_unreadable", partition=place.id, key=repr(last), error=str(error))
                continue
            properties = kind.of(listed.bucket)
            if row.tombstone and (properties.reap_after_ms is not None or properties.repl_reap):
                try:
                    tombstone = self._tombstone_of(place.id, listed.bucket, listed.key, row)
                except DamagedChange as error:  # likewise
                    log.error("reap.row_unreadable", partition=place.id, key=repr(last), error=str(error))
                    continue
                if due_at_ms(kind, tombstone) is not None:
                    found.append(tombstone)
        keys.close()  # type: ignore[attr-defined]
        return found, last if count == PAGE_KEYS else None

    def _tombstone_of(self, partition: int, bucket: bytes, key: bytes, row: KeyRow) -> Tombstone:
        changes = self._runtime.store.changes(partition, row.offset, 1)
        if not changes or changes[0].offset != row.offset:
            return Tombstone(bucket, key, row.offset, row.last_modified_ms, ours=False, leaving=False)
        ours = changes[0].origin == self._runtime.cluster_uuid
        return Tombstone(bucket, key, row.offset, row.last_modified_ms, ours, changes[0].kind == _LEAVING)

    # -- reaping --------------------------------------------------------------------------------------

    def _reap_due(self, place: Partition, led: _Led) -> None:
        now_ms = self._runtime.time.wall_ms()
        kind = self._properties.of_type(place.bucket_type)
        due = [
            found
            for found in led.candidates.values()
            if (due_ms := due_at_ms(kind, found)) is not None and due_ms <= now_ms
        ]
        if len(due) <= LOOKS_AT_ONCE:
            led.waits = ""
        if not due:
            return
        reaps, reaped_before = self._batch(place), self.reaped_count
        told = ""
        for found in due[:LOOKS_AT_ONCE]:
            if len(reaps.batch.entries) >= ENTRIES_AT_ONCE or self.reaped_count - reaped_before >= REAPS_AT_ONCE:
                break
            waits = self._propose(place, reaps, found)
            name = found.bucket, found.key
            if not waits or len(due) > LOOKS_AT_ONCE:
                led.candidates.pop(name, None)
            if waits:
                told = told or waits
                led.candidates[name] = found  # where they are many, behind the others: their turn is next
        led.waits = told or led.waits
        self._append(place, reaps.batch)

    def _batch(self, place: Partition) -> ReapBatch:
        runtime = self._runtime
        kind = self._properties.of_type(place.bucket_type)
        now_ms = runtime.time.wall_ms()
        return ReapBatch(WriteBatch(place, runtime.store, runtime.cluster_uuid, self._limits, kind, now_ms, {}))

    def _propose(self, place: Partition, reaps: ReapBatch, found: Tombstone) -> str:
        """Why it must wait; "" when it is not there any more, or an entry was made."""
        key = Key(place.bucket_type, found.bucket, found.key)
        hash64 = key_hash(found.bucket, found.key)
        offered = self._settled.offers(place.bucket_type, found.bucket)
        if offered and not found.ours:
            self.restated_count += reaps.restate(key, hash64, found.offset, leaving=found.leaving)
            return ""  # apply notes it anew
        waits = self._obstacle(place, found)
        if waits:
            return waits
        tells = self._properties.of_type(place.bucket_type).of(found.bucket).repl_reap
        if offered and tells and not found.leaving:
            self.announced_count += reaps.restate(key, hash64, found.offset, leaving=True)
        else:
            self.reaped_count += reaps.reap(key, hash64, found.offset)
        return ""

    def _obstacle(self, place: Partition, found: Tombstone) -> str:
        record = place.replica.record
        missing = sorted(set(record.replicas) - {member.node for member in record.isr}) if record is not None else ["?"]
        if missing:
            return f"replica {missing[0]} is not in sync: it may not have the tombstone"
        waits = self._settled.waits(place.id, found.offset, place.bucket_type, found.bucket)
        return waits or self.differs(Key(place.bucket_type, found.bucket, found.key))

    def _append(self, place: Partition, batch: WriteBatch) -> None:
        """Raises Retryable: nothing was appended."""
        if not batch.entries:
            return
        refused = self._runtime.append(place, batch.entries)
        if refused is not None:
            raise refused
        place.unapplied.add_pending_rows(batch.new_rows)

    # -- one key --------------------------------------------------------------------------------------

    async def ask(self, key: Key) -> Reaped:
        """Reap one key's tombstone now, wherever its partition is led, whatever its bucket's delete_mode. Raises
        UnknownBucketType, Retryable, and what the other node raised."""
        partition = self._routes.partition_of(key.bucket_type, key_hash(key.bucket, key.key))
        place = self._runtime.partitions.get(partition)
        if place is not None and place.replica.ready:
            return self._ask_here(place, key)
        refused = not_led(self._runtime, self._routes, partition)
        assert refused is not None
        if not isinstance(refused, NotLeader) or refused.leader is None:
            raise refused
        answer = await self._links.request(refused.leader, METHOD, msgpack.packb(list(key)), self._timeout_ms)
        match msgpack.unpackb(answer):
            case [str(outcome), str(reason)]:
                return Reaped(outcome, reason)
        raise CodecError(f"node {refused.leader} answered what is no answer to {METHOD}")

    def _ask_here(self, place: Partition, key: Key) -> Reaped:
        row = self._runtime.store.key_row(place.id, key_hash(key.bucket, key.key), key.bucket, key.key)
        if row is None:
            return Reaped("no-tombstone", "the key was never written, or is reaped already")
        current = decode_key_row(row)
        if not current.tombstone:
            return Reaped("no-tombstone", "the key has a value: delete it first")
        found = self._tombstone_of(place.id, key.bucket, key.key, current)
        reaps = self._batch(place)
        waits = self._propose(place, reaps, found)
        self._append(place, reaps.batch)
        if waits:
            return Reaped("waits", waits)
        if not reaps.batch.entries:
            return Reaped("waits", "a write of the key is under way")
        if reaps.batch.entries[0].kind == _LEAVING and found.ours:
            return Reaped("waits", "the queues tell other clusters first (repl_reap); then it goes by itself")
        if reaps.batch.entries[0].kind != _REAP:
            return Reaped("waits", "the tombstone is another cluster's and is now offered to our queues: ask again")
        return Reaped("reaped", "")

    def request_handlers(self) -> Mapping[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """What other nodes of the cluster may ask."""
        return {METHOD: self._asked}

    async def _asked(self, _node: str, body: bytes) -> bytes:
        try:
            match msgpack.unpackb(body):
                case [bytes(bucket_type), bytes(bucket), bytes(key)]:
                    name = Key(bucket_type, bucket, key)
                case _:
                    raise CodecError(f"not a {METHOD} request")
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise CodecError(f"not a {METHOD} request: {error}") from error
        partition = self._routes.partition_of(name.bucket_type, key_hash(name.bucket, name.key))
        place = self._runtime.partitions.get(partition)
        if place is None or not place.replica.ready:
            raise NotReady("leadership moves: ask again")
        packed: bytes = msgpack.packb(list(self._ask_here(place, name)))
        return packed

    # -- telemetry ------------------------------------------------------------------------------------

    def shown(self) -> list[dict[str, object]]:
        """One dict a partition led here that reaps: how many tombstones are known to wait, and why the oldest does."""
        rows = []
        for partition, led in sorted(self._led.items()):
            place = self._runtime.partitions.get(partition)
            if place is not None and self._properties.of_type(place.bucket_type).reaps:
                rows.append({"partition": partition, "tombstones": len(led.candidates), "waits": led.waits})
        return rows

    def told(self, partition: int, key: Key) -> dict[str, object]:
        """Of a tombstone in a partition led here: {"after_ms", "waits"}: when it may go by itself (None: never), and
        why it may not go yet; "" when it may, or is no tombstone."""
        place = self._runtime.partitions[partition]
        after_ms = self._properties.of_type(key.bucket_type).of(key.bucket).reap_after_ms
        found = self._runtime.store.key_row(partition, key_hash(key.bucket, key.key), key.bucket, key.key)
        current = None if found is None else decode_key_row(found)
        if current is None or not current.tombstone:
            return {"after_ms": after_ms, "waits": ""}
        tombstone = self._tombstone_of(partition, key.bucket, key.key, current)
        waits = self._obstacle(place, tombstone)
        if not waits and after_ms is None and not tombstone.leaving:
            waits = "the bucket's delete_mode keeps it; isthmus kv reap takes it away"
        return {"after_ms": after_ms, "waits": waits}

    def metrics(self) -> list[Sample]:
        """What was reaped."""
        return [
            ("isthmus_reaps_total", {}, self.reaped_count),
            ("isthmus_reap_restated_total", {}, self.restated_count),
            ("isthmus_reap_announced_total", {}, self.announced_count),
            ("isthmus_reap_told_total", {}, self.told_count),
            ("isthmus_reap_waiting", {}, sum(len(led.candidates) for led in self._led.values())),
        ]

"""Reaping: the leader removes tombstones that are due, once no replica and no queue needs them any more.

A bucket's `delete_mode` sets when a tombstone is due; an operator may ask for one key at any time. The removal is an
entry of the log, REAP, so all replicas remove it at the same position. It waits (docs/protocol.md R-REAP) until every
replica of the partition is in sync, and until every queue that offers the bucket has the acknowledgement of the
tombstone. Where there are queues, a tombstone of another cluster is first written once more as this cluster's, so that
all of them offer it. The status names what each partition waits for.

Candidates come from applied entries. Beyond CANDIDATES_MAX, and after a change of leader or of properties, they come
from a walk over the partition's keys, a page at a time. `repl.coordinator.tombstone_writes` makes the entries;
`queues.tombstone_barrier` decides which queues still need a tombstone.
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
from isthmus.repl.coordinator.tombstone_writes import ReapBatch, TombstoneWrites
from isthmus.repl.model.entry import CHANGES, Entry, EntryKind, KeyRow, decode_key_row
from isthmus.repl.model.errors import CodecError, IsthmusError, NotLeader, NotReady
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.ports import AppliedEntries, ReapBarrier, UnrepairedDifferences
from isthmus.repl.model.properties import TypeProperties
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.runtime import Runtime
from isthmus.repl.store.port import DamagedChange
from isthmus.repl.telemetry import Sample
from isthmus.repl.transport.port import Links
from isthmus.repl.unforeseen import unforeseen


class Tombstone(NamedTuple):
    """A deleted key: the tombstone's offset, its wall-clock time, whether this cluster wrote it, and whether it is
    leaving: about to be reaped here, or announced by a cluster that is about to reap it."""

    bucket: bytes
    key: bytes
    offset: int
    deleted_ms: int
    ours: bool
    leaving: bool


def due_at_ms(kind: TypeProperties, found: Tombstone) -> int | None:
    """The wall-clock time from which a tombstone may be reaped; None: only on request. One that is leaving elsewhere is
    due at once."""
    properties = kind.of(found.bucket)
    if found.leaving and properties.repl_reap:
        return 0
    return None if properties.reap_after_ms is None else found.deleted_ms + properties.reap_after_ms


log = structlog.get_logger(__name__)

METHOD: Final = "kv.reap"
"""The request to the leader's node: msgpack [bucket type, bucket, key] -> [outcome, reason]."""

TICK_S: Final = 0.5
"""Pause between two turns: a tombstone of `delete_mode = immediate` stays for about this time."""

CANDIDATES_MAX: Final = 10_000
"""Tombstones that are remembered per partition until they are due, 2 MB; a walk finds the others again."""

ENTRIES_AT_ONCE: Final = 500
"""Most entries of one partition in one turn, so that writes do not wait for mass reaping."""

REAPS_AT_ONCE: Final = 50
"""Most REAP entries among them: 100 a second. So the 10,000 reaped keys that a partition remembers
(`repl.store.reaped_keys`) go back at least 100 s: longer than a queue's lease (30 s) and the time limit of a write (60
s) together, after which no sink pushes an old value any more. Above that rate tombstones stay until there are fewer
deletes."""

CHECKS_AT_ONCE: Final = 500
"""Most tombstones of one partition whose queues are checked in one turn, 8 us each. While a sink is away all of them
wait; checking all at once would block the loop for a tenth of a second, twice a second, for each partition."""

PAGE_KEYS: Final = 2_000
"""Keys that one step of a walk reads, in a thread."""

WALK_PAUSE_S: Final = 60.0
"""Pause before the next walk, after one that left tombstones behind. A guess."""

_REAP: Final = int(EntryKind.REAP)
_LEAVING: Final = int(EntryKind.LEAVING)


class Reaped(NamedTuple):
    """The outcome of a request for one key: "reaped", "waits" or "no-tombstone", and the reason."""

    outcome: str
    reason: str


class _Led:
    """The state of a partition that is led here."""

    def __init__(self, properties: TypeProperties) -> None:
        self.properties = properties
        """Those by which candidates were found."""
        self.candidates: dict[tuple[bytes, bytes], Tombstone] = {}
        self.walk_after: tuple[bytes, bytes] | None = None
        self.walking = True
        """A walk over the keys is under way, or due."""
        self.walk_at_s = 0.0
        self.left_behind = False
        self.waits = ""
        """Why the oldest due candidate is still there."""

    def follow(self, properties: TypeProperties) -> None:
        """Look for candidates again if the properties were read again: other tombstones may be due now."""
        if properties is not self.properties:
            self.properties = properties
            self.candidates.clear()
            self.walking, self.walk_after, self.walk_at_s = True, None, 0.0


class Reaper:
    """Reaps the partitions that this node leads. A listener of applied entries; belongs to the event loop."""

    def __init__(
        self,
        runtime: Runtime,
        writes: TombstoneWrites,
        *,
        links: Links,
        routes: RoutingTable,
        read_pool: Executor,
        barrier: ReapBarrier,
        differences: UnrepairedDifferences,
        request_timeout_ms: int,
    ) -> None:
        self._runtime = runtime
        self._writes = writes
        self._links = links
        self._routes = routes
        self._pool = read_pool
        self._properties = writes.properties
        self._barrier = barrier
        self._differences = differences
        self._timeout_ms = request_timeout_ms
        self._led: dict[int, _Led] = {}
        self._task: asyncio.Task[None] | None = None
        self.reaped_count = 0
        self.restated_count = 0
        self.announced_count = 0
        self.announced_count = 0
        runtime.listeners.add(self)

    # -- life -----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the task that reaps."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the task; idempotent."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    def leadership(self, partition: int, leading: bool, applied_offset: int) -> None:  # noqa: ARG002
        """See `repl.model.ports.ApplyListener`."""
        if leading:
            self._led[partition] = _Led(self._properties.of_type(self._runtime.partitions[partition].bucket_type))
        else:
            self._led.pop(partition, None)

    def applied(self, applied: Sequence[AppliedEntries]) -> None:
        """See `repl.model.ports.ApplyListener`: notes new tombstones that will be reaped, and reaped ones."""
        for partition, entries, leader in applied:
            led = self._led.get(partition) if leader else None
            if led is not None:
                try:
                    self._note_applied(partition, led, entries)
                except Exception as error:  # a walk over the keys finds what was not noted
                    led.left_behind = True
                    unforeseen.exception("reap.note_bug", error, partition=partition)

    def _note_applied(self, partition: int, led: _Led, entries: Sequence[Entry]) -> None:
        kind = self._properties.of_type(self._runtime.partitions[partition].bucket_type)
        if not kind.reaps:
            return
        own = self._runtime.cluster_uuid
        for entry in entries:
            name = (entry.bucket, entry.key)
            if entry.kind not in CHANGES:
                if entry.kind == _REAP:
                    led.candidates.pop(name, None)
                continue
            leaving = entry.kind == _LEAVING
            self.announced_count += leaving and entry.origin != own
            found = Tombstone(*name, entry.offset, entry.time_ms, entry.origin == own, leaving)
            if due_at_ms(kind, found) is not None and decode_key_row(entry.row).tombstone:
                self._note(led, found)
            else:
                led.candidates.pop(name, None)

    def _note(self, led: _Led, found: Tombstone) -> None:
        name = (found.bucket, found.key)
        if len(led.candidates) < CANDIDATES_MAX or name in led.candidates:
            led.candidates[name] = found
        else:
            led.left_behind = True

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for partition_id in list(self._led):
                partition = self._runtime.partitions.get(partition_id)
                led = self._led.get(partition_id)
                if partition is None or led is None or not partition.replica.ready:
                    continue
                try:
                    led.follow(self._properties.of_type(partition.bucket_type))
                    if not led.properties.reaps:
                        continue
                    await asyncio.sleep(0)
                    if self._led.get(partition_id) is not led or not partition.replica.ready:
                        continue
                    await self._walk(partition, led)
                    self._reap_due(partition, led)
                except IsthmusError as error:
                    led.waits = f"{error.reason}: {error}"
                    led.walking, led.walk_after = (
                        True,
                        None,
                    )  # the dropped candidates are found again
                except Exception as error:
                    unforeseen.exception("reap.bug", error, partition=partition_id)

    # -- finding --------------------------------------------------------------------------------------

    async def _walk(self, partition: Partition, led: _Led) -> None:
        """Read one page of a walk over the keys, if one is due and there is space for candidates."""
        loop = asyncio.get_running_loop()
        if not led.walking and led.left_behind and not led.candidates:
            led.walking, led.left_behind, led.walk_at_s = True, False, loop.time() + WALK_PAUSE_S
        if not led.walking or loop.time() < led.walk_at_s or len(led.candidates) >= CANDIDATES_MAX:
            return
        found, led.walk_after = await loop.run_in_executor(self._pool, self._page, partition, led.walk_after)
        for tombstone in found:
            if (tombstone.bucket, tombstone.key) not in led.candidates:
                self._note(led, tombstone)
        led.walking = led.walk_after is not None

    def _page(
        self, partition: Partition, after: tuple[bytes, bytes] | None
    ) -> tuple[list[Tombstone], tuple[bytes, bytes] | None]:
        """Read a page in a thread: its tombstones of buckets that reap, and the key after which to continue."""
        kind = self._properties.of_type(partition.bucket_type)
        keys = self._runtime.store.list_keys(partition.id, None, after)
        found, count, last = [], 0, after
        for listed in islice(keys, PAGE_KEYS):
            count, last = count + 1, (listed.bucket, listed.key)
            try:
                row = decode_key_row(listed.row)
            except CodecError as error:  # row repair finds it; the keys after it are reaped
                log.error("reap.row_unreadable", partition=partition.id, key=repr(last), error=str(error))
                continue
            properties = kind.of(listed.bucket)
            if row.tombstone and (properties.reap_after_ms is not None or properties.repl_reap):
                try:
                    tombstone = self._tombstone_of(partition.id, listed.bucket, listed.key, row)
                except DamagedChange as error:  # likewise
                    log.error("reap.row_unreadable", partition=partition.id, key=repr(last), error=str(error))
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

    def _reap_due(self, partition: Partition, led: _Led) -> None:
        now_ms = self._runtime.time.wall_ms()
        kind = self._properties.of_type(partition.bucket_type)
        due = [
            found
            for found in led.candidates.values()
            if (due_ms := due_at_ms(kind, found)) is not None and due_ms <= now_ms
        ]
        if len(due) <= CHECKS_AT_ONCE:
            led.waits = ""
        if not due:
            return
        reaps, reaped_before = self._writes.batch(partition), self.reaped_count
        first_obstacle = ""
        for found in due[:CHECKS_AT_ONCE]:
            if len(reaps.batch.entries) >= ENTRIES_AT_ONCE or self.reaped_count - reaped_before >= REAPS_AT_ONCE:
                break
            waits = self._propose(partition, reaps, found)
            name = found.bucket, found.key
            if not waits or len(due) > CHECKS_AT_ONCE:
                led.candidates.pop(name, None)
            if waits:
                first_obstacle = first_obstacle or waits
                led.candidates[name] = found  # if there are many, behind the others
        led.waits = first_obstacle or led.waits
        self._writes.append(partition, reaps.batch)

    def _propose(self, partition: Partition, reaps: ReapBatch, found: Tombstone) -> str:
        """Add the entry for a tombstone to `reaps`; returns why it must wait, "" if it was added or the tombstone is
        gone."""
        key = Key(partition.bucket_type, found.bucket, found.key)
        hash64 = key_hash(found.bucket, found.key)
        offered = self._barrier.replicates(partition.bucket_type, found.bucket)
        if offered and not found.ours:
            self.restated_count += reaps.restate(key, hash64, found.offset, leaving=found.leaving)
            return ""  # a candidate again once it is applied
        waits = self._obstacle(partition, found)
        if waits:
            return waits
        announces = self._properties.of_type(partition.bucket_type).of(found.bucket).repl_reap
        if offered and announces and not found.leaving:
            self.announced_count += reaps.restate(key, hash64, found.offset, leaving=True)
        else:
            self.reaped_count += reaps.reap(key, hash64, found.offset)
        return ""

    def _obstacle(self, partition: Partition, found: Tombstone) -> str:
        record = partition.replica.record
        missing = sorted(set(record.replicas) - {member.node for member in record.isr}) if record is not None else ["?"]
        if missing:
            return f"replica {missing[0]} is not in sync: it may not have the tombstone"
        waits = self._barrier.blocked_by(partition.id, found.offset, partition.bucket_type, found.bucket)
        return waits or self._differences.difference_of(Key(partition.bucket_type, found.bucket, found.key))

    # -- one key --------------------------------------------------------------------------------------

    async def ask(self, key: Key) -> Reaped:
        """Reap one key's tombstone now, at any node, whatever its bucket's delete_mode. Raises UnknownBucketType,
        Retryable, and what the leader's node raised."""
        partition_id = self._routes.partition_of(key.bucket_type, key_hash(key.bucket, key.key))
        partition = self._runtime.partitions.get(partition_id)
        if partition is not None and partition.replica.ready:
            return self._reap_here(partition, key)
        refused = not_led(self._runtime, self._routes, partition_id)
        assert refused is not None
        if not isinstance(refused, NotLeader) or refused.leader is None:
            raise refused
        answer = await self._links.request(refused.leader, METHOD, msgpack.packb(list(key)), self._timeout_ms)
        match msgpack.unpackb(answer):
            case [str(outcome), str(reason)]:
                return Reaped(outcome, reason)
        raise CodecError(f"node {refused.leader} sent an invalid answer to {METHOD}")

    def _reap_here(self, partition: Partition, key: Key) -> Reaped:
        row = self._runtime.store.key_row(partition.id, key_hash(key.bucket, key.key), key.bucket, key.key)
        if row is None:
            return Reaped("no-tombstone", "the key was never written, or is reaped already")
        current = decode_key_row(row)
        if not current.tombstone:
            return Reaped("no-tombstone", "the key has a value: delete it first")
        found = self._tombstone_of(partition.id, key.bucket, key.key, current)
        reaps = self._writes.batch(partition)
        waits = self._propose(partition, reaps, found)
        self._writes.append(partition, reaps.batch)
        if waits:
            return Reaped("waits", waits)
        if not reaps.batch.entries:
            return Reaped("waits", "a write of the key is under way")
        if reaps.batch.entries[0].kind == _LEAVING and found.ours:
            return Reaped(
                "waits", "the queues notify other clusters first (repl_reap); then it is removed automatically"
            )
        if reaps.batch.entries[0].kind != _REAP:
            return Reaped("waits", "the tombstone is another cluster's and is now offered to our queues: ask again")
        return Reaped("reaped", "")

    def request_handlers(self) -> Mapping[str, Callable[[str, bytes], Awaitable[bytes]]]:
        """Handlers of requests from other nodes, by method."""
        return {METHOD: self._serve}

    async def _serve(self, _node: str, body: bytes) -> bytes:
        try:
            match msgpack.unpackb(body):
                case [bytes(bucket_type), bytes(bucket), bytes(key)]:
                    name = Key(bucket_type, bucket, key)
                case _:
                    raise CodecError(f"not a {METHOD} request")
        except (ValueError, msgpack.exceptions.UnpackException) as error:
            raise CodecError(f"not a {METHOD} request: {error}") from error
        partition_id = self._routes.partition_of(name.bucket_type, key_hash(name.bucket, name.key))
        partition = self._runtime.partitions.get(partition_id)
        if partition is None or not partition.replica.ready:
            raise NotReady("leadership moves: ask again")
        packed: bytes = msgpack.packb(list(self._reap_here(partition, name)))
        return packed

    # -- telemetry ------------------------------------------------------------------------------------

    def status(self) -> list[dict[str, object]]:
        """One dict per partition led here that reaps: how many tombstones wait, and why the oldest due one does."""
        rows = []
        for partition_id, led in sorted(self._led.items()):
            partition = self._runtime.partitions.get(partition_id)
            if partition is not None and self._properties.of_type(partition.bucket_type).reaps:
                rows.append({"partition": partition_id, "tombstones": len(led.candidates), "waits": led.waits})
        return rows

    def explain(self, partition_id: int, key: Key) -> dict[str, object]:
        """When a tombstone in a partition led here may be reaped by itself ("after_ms"; None: never), and why it may
        not be reaped yet ("waits"; "" if it may, or there is no tombstone)."""
        partition = self._runtime.partitions[partition_id]
        after_ms = self._properties.of_type(key.bucket_type).of(key.bucket).reap_after_ms
        found = self._runtime.store.key_row(partition_id, key_hash(key.bucket, key.key), key.bucket, key.key)
        current = None if found is None else decode_key_row(found)
        if current is None or not current.tombstone:
            return {"after_ms": after_ms, "waits": ""}
        tombstone = self._tombstone_of(partition_id, key.bucket, key.key, current)
        waits = self._obstacle(partition, tombstone)
        if not waits and after_ms is None and not tombstone.leaving:
            waits = "the bucket's delete_mode keeps it; isthmus kv reap takes it away"
        return {"after_ms": after_ms, "waits": waits}

    def metrics(self) -> list[Sample]:
        """Samples of reaped, restated and announced tombstones."""
        return [
            ("isthmus_reaps_total", {}, self.reaped_count),
            ("isthmus_reap_restated_total", {}, self.restated_count),
            ("isthmus_reap_announced_total", {}, self.announced_count),
            ("isthmus_reap_told_total", {}, self.announced_count),
            ("isthmus_reap_waiting", {}, sum(len(led.candidates) for led in self._led.values())),
        ]

"""One cluster in virtual time: one partition with its rows and log, and a source queue for each cluster that fetches.

All decisions are the product's: write batches, queues, cursors, reaps. A cluster only schedules: an entry is appended,
some time later it is in the store, and only then the node's loop is notified; a read of objects or of rows sees the
store as it is at that moment. `tests.simulation.mesh.simulator` drives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from isthmus.queues.cursors import CursorState, decode_state, encode_soft, encode_state, position_of
from isthmus.queues.object_reader import read_changes
from isthmus.queues.origin_check import is_unreplicated
from isthmus.queues.source_queue import SourceQueue
from isthmus.queues.tombstone_barrier import TombstoneBarrier
from isthmus.queues.window import Window
from isthmus.queues.window_rules import Budget
from isthmus.repl.coordinator.tombstone_writes import ReapBatch
from isthmus.repl.coordinator.write_batch import WriteBatch, WriteLimits
from isthmus.repl.model.conditions import Condition, ConditionFailed, object_tag
from isthmus.repl.model.entry import Entry, EntryKind, decode_key_row, make_entry
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, decode_object
from isthmus.repl.model.properties import DEFAULTS, Properties, TypeProperties
from isthmus.repl.model.requests import PushItem, WriteRequest, WriteResult
from isthmus.repl.model.vclock import Clock, Dot, actor_of, encode_clock, pack_counter, partition_prefix
from isthmus.repl.runtime.unapplied import MemoryWindow, UnappliedBuffer
from isthmus.repl.store.port import Change, PartitionStep
from isthmus.repl.store.reaped_pushes import ReapedPushes
from tests.support.damage_reports import raising_listeners
from tests.support.memory_store import MemoryStore

P: Final = 3
TYPE: Final = b"default"
BUCKET: Final = b"b"
KEYS: Final = [b"a", b"b", b"c", b"d"]
LEASE_MS: Final = 5_000
BUDGET: Final = (300, 4, 9)
"""Object size, whole objects, references: small, so that overflow and reading from rows happen all the time."""

DISCARDING_FROM: Final = 2
"""References of a queue that discards: fewer than keys, so that it does."""

LIMITS: Final = WriteLimits(1_000_000, 1_000, 10_000_000)


class Link(NamedTuple):
    """One cluster's fetching from another. `moved`: the queue was created for another sink, and released."""

    source: str
    sink: str
    cascade: bool = False
    moved: str = ""

    @property
    def queue(self) -> str:
        """The queue's key at its source: the sink that it was made for."""
        return self.moved or self.sink


class IndexRead(NamedTuple):
    """A read of the change index under way; `rows` None: not read yet."""

    window: Window
    start: int
    limit: int
    rows: list[Change] | None


class Cluster:
    """One cluster. `look_at(key, before, after)` is called for every object that is stored."""

    def __init__(
        self,
        name: str,
        number: int,
        links: list[Link],
        look_at: Callable[[Cluster, bytes, Object | None, Object], None],
        *,
        unreplicated_check: bool = True,
        properties: Properties = DEFAULTS,
        discard: bool = False,
    ) -> None:
        """`properties`: of all buckets. `discard`: its queues discard changes above their budget."""
        self.name = name
        self._discard = discard
        self.claiming: set[str] = set()
        """Sinks whose queue has a CURSOR entry under way."""
        self.properties = TypeProperties(properties, {})
        self.uuid = bytes([number]) * 16
        self.store = MemoryStore()
        self.replica = SimpleNamespace(epoch=1, leo=0, applied=0)
        self.place: Any = SimpleNamespace(
            id=P,
            bucket_type=TYPE,
            actor=actor_of(self.uuid, P),
            actor_prefix=partition_prefix(self.uuid, P),
            replica=self.replica,
            unapplied=UnappliedBuffer(0, 0, MemoryWindow(0)),
            reaped_pushes=ReapedPushes(),
            replaced_clocks=None,
        )
        self.log: list[Entry] = []
        """Committed, and not in the store."""
        self.history: list[Entry] = []
        """All entries in the store."""
        self.unnotified: list[Entry] = []
        """Entries in the store of which the loop has not been notified."""
        self.reads: list[IndexRead] = []
        self.queues: dict[str, SourceQueue] = {}
        self.barrier = TombstoneBarrier(self, self.store, self)  # type: ignore[arg-type]
        self.now_ms = 0
        self.skew_ms = 0
        """How far the wall clock of the node that leads is ahead; below 0: behind."""
        self.life = 0
        self.read_count = 0
        self._roads = links
        self._look_at = look_at
        self._unreplicated_check = unreplicated_check

    unread = ""
    """See LocalQueues."""

    def machines(self) -> dict[str, SourceQueue]:
        """See LocalQueues."""
        return {queue.name: queue for queue in self.queues.values()}

    def lineage(self, _partition: int) -> int:
        """See CursorWriter."""
        return 0

    def start(self, owner_of: Callable[[str], bytes]) -> None:
        """A new life: memory is gone, log, rows and cursors are there."""
        self.life += 1
        self.apply(len(self.log))
        self.unnotified = []
        self.claiming.clear()
        self.reads = []
        self.place.unapplied.clear_pending_rows()
        self.place.reaped_pushes = ReapedPushes()
        self.replica.applied = self.replica.leo
        for link in self._roads:
            if link.source == self.name:
                owner = owner_of(link.queue)
                queue = self._make_queue(link, owner)
                if position_of(self.store.cursor(P, queue.name.encode()), 0) is None:
                    self._decide(queue.name.encode(), CursorState(0, 1, owner))
        for queue in self.queues.values():
            position = position_of(self.store.cursor(P, queue.name.encode()), 0)
            assert position is not None
            queue.lead(P, TYPE, position, self.replica.applied)

    def go_back(self, length: int, incarnation: int) -> None:
        """The cluster is restored from a backup of its first `length` entries, and begins an incarnation. `start`
        follows."""
        self.store, self.history, self.log = MemoryStore(), self.history[:length], []
        self.barrier = TombstoneBarrier(self, self.store, self)  # type: ignore[arg-type]
        self.store.write([PartitionStep(P, self.history)])
        self.replica.leo = self.replica.applied = length
        self.place.actor = actor_of(self.uuid, P, incarnation)
        self.place.unapplied.clear_pending_rows()

    def _make_queue(self, link: Link, owner: bytes) -> SourceQueue:
        budget = Budget(*BUDGET, discard=self._discard)
        if self._discard:
            budget.reference_limit = DISCARDING_FROM
        prefix = self.life.to_bytes(8, "big")
        queue = SourceQueue(f"to-{link.queue}", self.uuid, link.cascade, LEASE_MS, budget, prefix, raising_listeners())
        queue.set_owner(owner, 1)
        self.queues[link.queue] = queue
        return queue

    def register(self, link: Link, owner: bytes, start: int) -> None:
        """A queue registered while the cluster lives: its first CURSOR entry is on its way; it has a position once that
        is applied, and no owner until `owner` has claimed it."""
        self._make_queue(link, owner)
        self.claim(link.queue, CursorState(start, command_version=1))

    def reelect(self, *, saved: bool, known: bool) -> None:
        """Leadership went and came back, and the process lives on: leases survive, windows do not, and no leader was
        notified of the entries applied meanwhile. `saved`: moved cursors were written before; `known`: the next leader
        has the soft ones, else the last CURSOR entry counts."""
        if saved:
            self.save_cursors()
        for queue in self.queues.values():
            queue.unlead(P)
        self.apply(len(self.log))
        self.unnotified = []
        self.claiming.clear()
        self.place.unapplied.clear_pending_rows()
        self.replica.applied = self.replica.leo
        for queue in self.queues.values():
            position = position_of(self.store.cursor(P, queue.name.encode()), 0)
            assert position is not None
            if not known:
                position = replace(position, cursor=position.state.cursor)
            queue.lead(P, TYPE, position, self.replica.applied)

    def _decide(self, queue: bytes, state: CursorState) -> None:
        self._log_cursor(queue, state)
        self.apply(1)
        self.replica.applied, self.unnotified = self.replica.leo, []

    def _log_cursor(self, queue: bytes, state: CursorState) -> None:
        offset = self.replica.leo
        self.log.append(
            make_entry(EntryKind.CURSOR, 1, offset, request_id=b"", origin=self.uuid, time_ms=0, key=queue,
                       payload=encode_state(state))
        )  # fmt: skip
        self.replica.leo = offset + 1

    def claim(self, sink: str, state: CursorState) -> None:
        """A CURSOR entry of the queue that was made for `sink` is on its way; one at a time."""
        assert sink not in self.claiming
        self.claiming.add(sink)
        self.queues[sink].cursor_appended(P)
        self._log_cursor(self.queues[sink].name.encode(), state)

    # ---------------------------------------------------------------- writes

    def get(self, key: bytes) -> Object | None:
        """The object of a key, unapplied entries included."""
        entry = self.place.unapplied.pending_rows.get((BUCKET, key))
        payload = self.store.object(P, BUCKET, key) if entry is None else entry.payload
        return decode_object(payload) if payload else None

    def batch(self) -> WriteBatch:
        """The next batch to write."""
        unreplicated = self._is_unreplicated if self._unreplicated_check else lambda *_: False
        wall_ms = self.now_ms + self.skew_ms
        return WriteBatch(self.place, self.store, self.uuid, LIMITS, self.properties, wall_ms, {}, unreplicated)

    def _is_unreplicated(self, partition: int, offset: int, pusher: bytes, key: Key) -> bool:
        return is_unreplicated(self.queues.values(), partition, offset, pusher, key)

    def append(self, batch: WriteBatch) -> None:
        """Append a batch's entries; they are committed."""
        for entry in batch.entries:
            if entry.kind == EntryKind.DATA:
                self._look_at(self, entry.key, self.get(entry.key), decode_object(entry.payload))
            self.log.append(entry)
            self.replica.leo = entry.offset + 1
            self.place.unapplied.add_pending_rows({(entry.bucket, entry.key): entry})

    def put(self, key: bytes, content: Content, context: Clock) -> Dot | None:
        """A client's write; its dot, None when nothing was written."""
        batch = self.batch()
        request = WriteRequest(Key(TYPE, BUCKET, key), content, context)
        answer, _ = batch.write(request, key_hash(BUCKET, key))
        assert isinstance(answer, WriteResult)
        dot = (self.place.actor, pack_counter(1, self.replica.leo))
        self.append(batch)
        return dot if batch.entries else None

    def tag(self, key: bytes) -> str:
        """The tag of a key's object; empty if it does not exist."""
        current = self.get(key)
        if current is None or current.deleted:
            return ""
        return object_tag(encode_clock(current.clock), current.siblings)

    def put_if(self, key: bytes, content: Content, tag: str) -> Dot | None:
        """A client's write without a clock, on condition that the key holds the version of this tag; its dot, None
        when it was refused."""
        batch = self.batch()
        request = WriteRequest(Key(TYPE, BUCKET, key), content, condition=Condition(if_match=(tag,)))
        answer, _ = batch.write(request, key_hash(BUCKET, key))
        if isinstance(answer, ConditionFailed):
            return None
        assert isinstance(answer, WriteResult)
        assert answer.sibling_count == 1, "a version was kept beside the one that replaced it"
        dot = (self.place.actor, pack_counter(1, self.replica.leo))
        self.append(batch)
        return dot

    def push(self, changes: list[tuple[bytes, bytes, bool]], pusher: bytes) -> list[tuple[object, int]]:
        """(answer, offset below which all must be applied first) for each (key, object, whether it leaves)."""
        batch = self.batch()
        answers = [
            batch.push(PushItem(Key(TYPE, BUCKET, key), pusher, payload, leaving), key_hash(BUCKET, key))
            for key, payload, leaving in changes
        ]
        self.append(batch)
        return answers

    def delete(self, key: bytes, clock: Clock) -> Dot | None:
        """A client's delete of the object that it has read."""
        return self.put(key, TOMBSTONE, clock)

    # ---------------------------------------------------------------- apply

    def apply(self, count: int) -> None:
        """The writer's thread has written `count` entries more."""
        entries, self.log = self.log[:count], self.log[count:]
        if entries:
            self.store.write([PartitionStep(P, entries)])
            self.history += entries
            self.unnotified += entries

    def notify(self, count: int) -> None:
        """Notify the loop of the next `count` applied entries."""
        entries, self.unnotified = self.unnotified[:count], self.unnotified[count:]
        if not entries:
            return
        self.replica.applied = entries[-1].offset + 1
        self.place.unapplied.applied(entries, read_back=True)
        for sink, queue in self.queues.items():
            start = 0
            for at, entry in enumerate(entries):
                if entry.kind == EntryKind.CURSOR and entry.key == queue.name.encode():
                    queue.add(P, entries[start : at + 1], self.now_ms)
                    queue.cursor_applied(P, TYPE, entry.offset, decode_state(entry.payload))
                    self.claiming.discard(sink)
                    start = at + 1
            if start < len(entries):
                queue.add(P, entries[start:], self.now_ms)

    def begin_reads(self) -> None:
        """Begin the reads of the change index that windows request."""
        for queue in self.queues.values():
            self.reads += [IndexRead(window, start, limit, None) for window, start, limit in queue.begin_refills()]

    def go_on_reading(self, number: int) -> None:
        """Finish one of the reads, or continue it."""
        read = self.reads.pop(number)
        if read.rows is None:
            rows = read_changes(self.store, read.window, read.start, read.limit)
            self.reads.insert(number, read._replace(rows=rows))
            self.read_count += 1
        else:
            read.window.finish_refill(read.rows, read.limit)

    def save_cursors(self) -> None:
        """Write the cursors that acknowledgements moved, softly."""
        for queue in self.queues.values():
            for _, base, cursor in queue.moved_cursors():
                self.store.write([PartitionStep(P, (), {queue.name.encode(): encode_soft(base, cursor, 0)})])

    # ---------------------------------------------------------------- reaping

    def reap(self, key: bytes) -> str:
        """One key's tombstone goes, if it may: why it must wait; "" when something was done or there is none. As
        `repl.coordinator.tombstone_reaper` does it."""
        hash64 = key_hash(BUCKET, key)
        found = self.store.key_row(P, hash64, BUCKET, key)
        row = None if found is None else decode_key_row(found)
        if row is None or not row.tombstone:
            return ""
        name, reaps = Key(TYPE, BUCKET, key), ReapBatch(self.batch())
        (change,) = self.store.changes(P, row.offset, 1)
        leaving = change.kind == EntryKind.LEAVING
        if change.origin != self.uuid and self.barrier.replicates(TYPE, BUCKET):
            reaps.restate(name, hash64, row.offset, leaving=leaving)
        else:
            waits = self.barrier.blocked_by(P, row.offset, TYPE, BUCKET)
            if waits:
                return waits
            if self.properties.default.repl_reap and not leaving:
                reaps.restate(name, hash64, row.offset, leaving=True)
            else:
                reaps.reap(name, hash64, row.offset)
        self.append(reaps.batch)
        return ""

    def leaves(self, key: bytes) -> bool:
        """Whether the key has a tombstone that is about to be reaped here or elsewhere."""
        rows = self.store.changes(P, 0, 1_000)
        return any(row.key == key and row.kind == EntryKind.LEAVING for row in rows)

    # ---------------------------------------------------------------- observations

    @property
    def at_rest(self) -> bool:
        """Everything is applied and notified, and every queue is empty."""
        return (
            not self.log
            and not self.unnotified
            and all(
                window.advance() == self.replica.applied
                for queue in self.queues.values()
                for window in queue.windows.values()
            )
        )

    def shown(self) -> list[tuple[bytes, bytes]]:
        """Key and object of all keys."""
        found = ((key, self.store.object(P, BUCKET, key)) for key in KEYS)
        return [(key, payload) for key, payload in found if payload is not None]


def clock_bytes(obj: Object | None) -> bytes:
    """The clock as messages encode it."""
    return b"" if obj is None else encode_clock(obj.clock)

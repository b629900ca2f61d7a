"""A simulation whose rows are real: clients write, delete and reap keys, and another cluster sends late pushes.

Writes go through the product: write batches over the leader's store and log, REAP entries, and the rows of
`MemoryStore` with the clocks of reaped keys, which state transfers carry to other replicas. The simulator adds all its
faults: crashes, losses of power, changes of leader, replaced disks, moves. The other cluster is one that never fails:
it fetches applied changes, in order, and may push any object that it ever had again, once, ten times, or long after it
was deleted and reaped on both sides. The checked invariant is I-NO-RESURRECT.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from isthmus.repl.coordinator.tombstone_writes import ReapBatch
from isthmus.repl.coordinator.write_batch import ForgedClock, WriteBatch, WriteLimits
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.model.entry import Entry, EntryKind, decode_key_row
from isthmus.repl.model.errors import BadInput, Corruption, IsthmusError
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, decode_object, encode_object, merge, write
from isthmus.repl.model.properties import DEFAULTS, TypeProperties
from isthmus.repl.model.requests import PushItem, WriteRequest, WriteResult
from isthmus.repl.model.vclock import Clock, actor_of, covers, pack_counter
from isthmus.repl.model.vclock import merge as merge_clocks
from isthmus.repl.store import row_codec, rows
from isthmus.repl.store.port import AppliedPosition, PartitionStep
from isthmus.repl.store.reaped_pushes import ReapedPushes
from isthmus.repl.store.request_dedup import request_name
from tests.simulation.cluster.checkers import Checkers
from tests.simulation.cluster.clients import Client
from tests.simulation.cluster.disk import SimStore
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.process import ORIGIN, Process
from tests.simulation.cluster.simulator import ClusterSimulation
from tests.simulation.cluster.state_transfer import Snapshot, StateTransfers
from tests.support.memory_store import MemoryStore

TYPE, BUCKET = b"default", b"b"
KEYS = tuple(b"%d" % number for number in range(4))
"""Few, so that each is written, deleted and reaped many times."""

PEER = b"the-other-cluste"
LIMITS = WriteLimits(object_bytes=1_000_000, sibling_count=50, entry_bytes=20_000_000)
PROPERTIES = TypeProperties(DEFAULTS, {})

P = 0
"""The number of the partition in each replica's own store."""

STATE_BYTES = 150
"""Transfer metadata comes in chunks of this size: several."""

UNDER_WAY = 120
"""Pushes of the other cluster that are remembered, to be made again at any time."""


class RowStore(SimStore):
    """A replica's rows twice: as the simulator's entries, and in the product's store."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = MemoryStore()

    def write(self, entries: Sequence[Entry]) -> None:
        """See SimStore; so do all."""
        super().write(entries)
        self.rows.write([PartitionStep(P, entries)])

    def power_loss(self, rng: Any) -> None:
        super().power_loss(rng)
        if self.transfer is None:
            self.rows = MemoryStore()
            if self.history:
                self.rows.write([PartitionStep(P, self.history)])

    def begin_transfer(self, *, empty: bool) -> None:
        lossy = empty or bool(self.target)
        super().begin_transfer(empty=empty)
        self.rows.transfers.begin(P, empty=lossy)

    def install(self, entries: Sequence[Entry], upto: int, epoch: int) -> None:
        super().install(entries, upto, epoch)
        found = [
            (
                entry.offset,
                rows.CHANGE_HEAD.pack(entry.kind, entry.key_hash, entry.time_ms)
                + entry.origin
                + rows.bucket_head(entry.bucket)
                + entry.key,
                entry.row,
                entry.payload,
            )
            for entry in entries
        ]
        self.rows.transfers.install_rows(P, row_codec.encode(found), upto, epoch)

    def finish_far(self, committed: Sequence[Entry]) -> None:
        super().finish_far(committed)
        self.rows.transfers.finish(P, AppliedPosition(committed[-1].epoch if committed else 0, len(committed)))
        self.look()

    def look(self) -> None:
        """The reaped keys' clocks in the store equal those in the log (I-FAR-COMMITTED)."""
        wanted = {(e.bucket, e.key): decode_key_row(e.row).clock for e in self.history if e.kind == EntryKind.REAP}
        if self.rows.reaped_clocks(P) != wanted:
            raise Violation("I-FAR-COMMITTED", f"remembers the reaps of {sorted(self.rows.reaped_clocks(P))}")
        found = {key for _, key, _ in self.rows.list_keys(P, None, None)}
        if found != {b"%d" % key for key in self.latest}:
            raise Violation("I-FAR-COMMITTED", f"has rows of {sorted(found)}, the log leaves {sorted(self.latest)}")


class RowStateTransfers(StateTransfers):
    """Sends and receives transfer metadata unchanged."""

    def snapshot(self, partition: int) -> Snapshot:
        """See StateTransfers; this holds for all methods."""
        of = super().snapshot(partition)
        store = self.process.node.disk.stores[partition]
        assert isinstance(store, RowStore)
        of.of_state = store.rows.transfers.snapshot(P)  # type: ignore[attr-defined]
        return of

    def state(self, of: Snapshot, after: bytes) -> tuple[bytes, bytes, bool]:
        chunk: tuple[bytes, bytes, bool] = of.of_state.state(after, STATE_BYTES)  # type: ignore[attr-defined]
        return chunk

    def _install(self, partition: int, chunk: bytes, after: bytes) -> None:
        store = self._store(partition)
        if store is not None:
            assert isinstance(store, RowStore)
            store.rows.transfers.install_state(P, chunk, first=not after)

    def _state(self, partition: int, effect: fx.InstallMetadata) -> None:
        self._install(partition, effect.rows, effect.after)
        super()._state(partition, effect)

    def _end(self, partition: int, effect: fx.FinishTransfer) -> None:
        if effect.rows:
            self._install(partition, effect.rows, effect.after)
        super()._end(partition, effect)


class RowProcess(Process):
    """A process whose leaders make their entries with the product's code."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.transfers = RowStateTransfers(self)
        self.refused_pushes = ReapedPushes()
        self._repeated: dict[tuple[int, bytes, int], int] = {}
        """(partition, request id, the offset that its answer waits for) -> offset of the entry by which it took
        effect."""
        self._ahead: dict[int, str] = {}
        """Token of a read that would confirm a refusal -> the refused push."""

    def rows_of(self, partition: int) -> MemoryStore:
        """The rows of a replica."""
        store = self.node.disk.stores[partition]
        assert isinstance(store, RowStore)
        return store.rows

    def batch(self, partition: int) -> WriteBatch:
        """The next batch to append, on top of everything in the log."""
        tail = self.tails[partition]
        pending = {(e.bucket, e.key): e for _, e in sorted(tail.items()) if e.kind in (EntryKind.DATA, EntryKind.REAP)}
        requests = {request_name(e.key_hash, e.request_id): e.offset for e in tail.values() if e.request_id}
        place: Any = SimpleNamespace(
            id=P,
            bucket_type=TYPE,
            actor=actor_of(ORIGIN, partition),
            actor_prefix=actor_of(ORIGIN, partition),
            replica=self.replicas[partition],
            unapplied=SimpleNamespace(pending_rows=pending),
            reaped_pushes=self.refused_pushes,
            replaced_clocks=None,
        )
        return WriteBatch(place, self.rows_of(partition), ORIGIN, LIMITS, PROPERTIES, self.simulation.now_ms, requests)

    def refused_as_ahead(self, partition: int, error: BadInput) -> None:
        """A clock was refused as naming writes that were never made. All clocks in this simulation are sound, so that
        must not be certain: it needs a confirmation of leadership, which never comes (R-FORGED)."""
        self.simulation.counts["clock_ahead"] += 1
        if not error.needs_confirmation:
            raise Violation("R-FORGED", f"{self.name} refuses a sound clock for good: {error}")
        token = self.simulation.token()
        self.reads[token] = (partition, 0)
        self._ahead[token] = str(error)
        self._step(partition, ev.ReadRequested(token))

    def _read(self, token: int) -> None:
        if token in self._ahead:
            raise Violation("R-FORGED", f"{self.name} is confirmed as leader and refuses: {self._ahead[token]}")
        super()._read(token)

    def answer_repeated(self, client: Client, request_id: bytes, offset: int, end: int) -> None:
        """A repeated request is answered once all below `end` is applied; the entries that it depends on may still be
        dropped (R-WAIT, H40)."""
        self.simulation.counts["repeated"] += 1
        waiting = self.waiting[client.partition]
        if end <= self.replicas[client.partition].applied:
            self.simulation.checkers.acknowledged(self, client.partition, request_id, offset)
            return
        self.simulation.counts["repeated_waits"] += 1
        self._repeated[client.partition, request_id, end - 1] = offset
        waiting.append((end - 1, request_id, client))
        self.waiting[client.partition] = deque(sorted(waiting, key=lambda each: each[0]))

    def _answer(self, partition: int, end: int) -> None:
        waiting = self.waiting[partition]
        while waiting and waiting[0][0] < end:
            at, request_id, client = waiting.popleft()
            offset = self._repeated.get((partition, request_id, at), at)
            self.simulation.checkers.acknowledged(self, partition, request_id, offset)
            client.acknowledged()

    def append(self, client: Client, batch: WriteBatch) -> str | None:
        """Append the entries; the code of the refusal, or None."""
        entries, partition = tuple(batch.entries), client.partition
        if not entries:
            return None
        effects = self._step(partition, ev.Append(entries[0].epoch, entries))
        refused = next((effect for effect in effects if type(effect) is fx.AppendRefused), None)
        named = [entry for entry in entries if entry.request_id]
        if refused is not None:
            resent = client.resent if isinstance(client, RowClient) else set()
            self.simulation.checkers.refused(partition, [entry for entry in named if entry.request_id not in resent])
            return refused.reason
        self.waiting[partition].extend((entry.offset, entry.request_id, client) for entry in named)
        for entry in named:
            self._repeated.pop((partition, entry.request_id, entry.offset), None)
        if isinstance(client, RowClient) and named:
            client.appended()
        return None


class Peer:
    """Another cluster, of one node that never fails. It keeps its tombstones."""

    def __init__(self, simulation: ClusterSimulation, partition: int) -> None:
        self.simulation = simulation
        self.actor = actor_of(PEER, partition)
        self.objects: dict[bytes, Object] = {}
        self.cursor = 0
        """All changes below were received: the offset that our queue's sink has acknowledged."""
        self.under_way: deque[PushItem] = deque(maxlen=UNDER_WAY)
        self._writes = 0

    def fetch(self, store: MemoryStore, limit: int) -> None:
        """Take in the next changes of ours; a merge is a change of its own."""
        changes = store.changes(P, self.cursor, limit)
        for change in changes:
            data = store.object(P, change.bucket, change.key)
            assert data is not None
            if change.origin != PEER:
                theirs, mine = decode_object(data), self.objects.get(change.key)
                merged = theirs if mine is None else merge(mine, theirs)
                self._keep(change.key, merged, told=merged != theirs)
            self.cursor = change.offset + 1
        if len(changes) < limit:
            self.cursor = max(self.cursor, store.applied(P).offset)

    def act(self) -> None:
        """A client of its own writes, blindly or not, or deletes."""
        rng, key = self.simulation.rng, self.simulation.rng.choice(KEYS)
        current = self.objects.get(key)
        self._writes += 1
        deletes = current is not None and rng.random() < 0.4
        context: Clock = current.clock if current is not None and (deletes or rng.random() < 0.7) else ()
        content = TOMBSTONE if deletes else Content(b"p%d" % self._writes)
        dot = (self.actor, pack_counter(1, self._writes))
        self._keep(key, write(current, context, content, dot, self.simulation.now_ms), told=True)

    def repeat_push(self) -> PushItem | None:
        """Push one of its objects again, current or old, at any time."""
        rng = self.simulation.rng
        if self.objects and rng.random() < 0.3:
            key = rng.choice(sorted(self.objects))
            return self._item(key)
        return rng.choice(self.under_way) if self.under_way else None

    def _item(self, key: bytes) -> PushItem:
        return PushItem(Key(TYPE, BUCKET, key), PEER, encode_object(self.objects[key]))

    def _keep(self, key: bytes, obj: Object, *, told: bool) -> None:
        self.objects[key] = obj
        if told:
            self.under_way.append(self._item(key))


class RowClient(Client):
    """Writes, deletes and reaps of one partition, and another cluster's pushes to it."""

    simulation: RowSimulation

    def __init__(self, simulation: ClusterSimulation, partition: int) -> None:
        super().__init__(simulation, partition)
        self.peer = Peer(simulation, partition)
        self._chance = Random(simulation.seed * 1_000 + partition)
        """A random generator of its own, so that the simulation's schedule does not depend on it."""
        self._last: WriteRequest | None = None
        self._sent: deque[WriteRequest] = deque(maxlen=UNDER_WAY)
        self.resent: set[bytes] = set()
        """Ids of requests that were sent more than once: an earlier one may have been appended."""
        self._seen: dict[bytes, Clock] = {}
        """Key -> a clock that was read before, perhaps from another leader."""

    def start(self) -> None:
        """See Client; the other cluster acts at the same pace."""
        if self.simulation.rng.random() < 0.3 and not self._stopped:
            self.peer.act()
        super().start()

    def _write(self) -> bool:
        process = self._process(0.05)
        if not isinstance(process, RowProcess) or not process.holds_directory():
            return False
        if not process.replicas[self.partition].ready:
            self.simulation.counts["refused_not_ready"] += 1
            return False
        rng = self.simulation.rng
        if rng.random() < 0.4:
            self.peer.fetch(process.rows_of(self.partition), rng.randint(1, 6))
        act = rng.choice((self._put, self._put, self._delete, self._push, self._push, self._reap, self._reap))
        refused = act(process)
        if refused is not None:
            self.simulation.counts[f"refused_{refused}"] += 1
        return refused is None

    def _put(self, process: RowProcess) -> str | None:
        batch = process.batch(self.partition)
        self._request(batch, process, Content(b"v%d" % self.simulation.now_ms))
        return process.append(self, batch)

    def _delete(self, process: RowProcess) -> str | None:
        batch = process.batch(self.partition)
        self._request(batch, process, TOMBSTONE)
        return process.append(self, batch)

    def _request(self, batch: WriteBatch, process: RowProcess, content: Content) -> None:
        """A write with the clock of a recent read, or without one."""
        rng, key = self.simulation.rng, self.simulation.rng.choice(KEYS)
        data = process.rows_of(self.partition).object(P, BUCKET, key)
        context = decode_object(data).clock if data is not None and rng.random() < 0.7 else None
        if self._chance.random() < self.simulation.recalls:
            context = self._seen.get(key, context)
        if data is not None:
            self._seen[key] = decode_object(data).clock
        request = WriteRequest(Key(TYPE, BUCKET, key), content, context, self.simulation.request_id())
        if self._sent and self._chance.random() < self.simulation.repeats:
            request = self._chance.choice(self._sent)
            self.resent.add(request.request_id)
        self._last = request
        hash64 = key_hash(BUCKET, request.key.key)
        found = batch._request_offset(request.request_id, hash64)
        try:
            answer, end = batch.write(request, hash64)
        except BadInput as error:
            process.refused_as_ahead(self.partition, error)
            return
        if isinstance(answer, WriteResult) and answer.repeated:
            assert found is not None
            process.answer_repeated(self, request.request_id, found, end)

    def appended(self) -> None:
        """The last request was appended: from now on it may be sent again, whatever its outcome."""
        if self._last is not None:
            self._sent.append(self._last)
            self._last = None

    def _push(self, process: RowProcess) -> str | None:
        batch = process.batch(self.partition)
        for _ in range(self.simulation.rng.randint(1, 3)):
            item, before = self.peer.repeat_push(), len(batch.entries)
            if item is None:
                break
            try:
                answer, _ = batch.push(item, key_hash(BUCKET, item.key.key))
            except IsthmusError as error:
                answer = error
            if isinstance(answer, Corruption):
                raise Violation("I-CLOCK-STABLE", str(answer))
            if isinstance(answer, ForgedClock):
                process.refused_as_ahead(self.partition, answer)
            for entry in batch.entries[before:]:
                if entry.kind == EntryKind.REAP:
                    self.simulation.counts["reaps"] += 1
                    self.simulation.counts["reaps_remembered"] += 1
            self.simulation.counts[f"push_{getattr(answer, 'outcome', None) or type(answer).__name__}"] += 1
        return process.append(self, batch)

    def _reap(self, process: RowProcess) -> str | None:
        """Reap as `repl.coordinator.tombstone_reaper` does: keys that the other cluster has, once all replicas are in
        sync."""
        record = process.replicas[self.partition].record
        assert record is not None
        if {member.node for member in record.isr} != {*record.replicas}:
            self.simulation.counts["reap_waits_for_copies"] += 1
            return None
        reaps = ReapBatch(process.batch(self.partition))
        for _, key, row in process.rows_of(self.partition).list_keys(P, BUCKET, None):
            found = decode_key_row(row)
            if found.tombstone and self.may_reap(found.offset):
                self.simulation.counts["reaps"] += reaps.reap(
                    Key(TYPE, BUCKET, key), key_hash(BUCKET, key), found.offset
                )
        return process.append(self, reaps.batch)

    def may_reap(self, offset: int) -> bool:
        """Whether the other cluster has the tombstone of that offset."""
        return offset < self.peer.cursor


class RowCheckers(Checkers):
    """Also checks deleted keys."""

    def __init__(self, simulation: ClusterSimulation) -> None:
        super().__init__(simulation)
        self._looked: dict[int, int] = {}
        self._offsets: dict[tuple[int, bytes], int] = {}
        """(partition, request id) -> offset of the entry by which it took effect."""
        self.gone: dict[tuple[int, bytes], Clock] = {}
        """(partition, key) -> the clock of all its committed tombstones."""

    def applied(self, process: Process, partition: int, entries: Sequence[Entry]) -> None:
        """See Checkers."""
        super().applied(process, partition, entries)
        for entry in entries:
            if entry.offset == self._looked.get(partition, 0):
                self._looked[partition] = entry.offset + 1
                if entry.request_id:
                    known = self._offsets.setdefault((partition, entry.request_id), entry.offset)
                    if known != entry.offset:
                        raise Violation("I-ACK", f"request {entry.request_id!r} takes effect twice: {known}, {entry}")
                if entry.kind == EntryKind.DATA:
                    self._look(partition, entry)
                elif entry.kind == EntryKind.REAP and entry.previous_offset >= self._peer(partition).cursor:
                    raise Violation("I-NO-RESURRECT", f"key {entry.key!r} is reaped, and the other cluster has it yet")

    def _peer(self, partition: int) -> Peer:
        client = self.simulation.clients[partition]
        assert isinstance(client, RowClient)
        return client.peer

    def _look(self, partition: int, entry: Entry) -> None:
        """I-NO-RESURRECT: no value that a tombstone's clock covers is stored again."""
        name, obj = (partition, entry.key), decode_object(entry.payload)
        gone = self.gone.get(name, ())
        if obj.deleted:
            self.gone[name] = merge_clocks(gone, obj.clock)
            return
        back = [sibling.value for sibling in obj.siblings if not sibling.tombstone and covers(gone, sibling.dot)]
        if back:
            raise Violation("I-NO-RESURRECT", f"{entry.epoch}.{entry.offset} brings {back} of key {entry.key!r} back")

    def final(self) -> None:
        """See Checkers; also, all replicas' clocks of reaped keys equal the log's, and the other cluster has all
        deletes."""
        super().final()
        for partition, record in self.simulation.metastore.records.items():
            for name in record.replicas:
                store = self.simulation.nodes[name].disk.stores[partition]
                assert isinstance(store, RowStore)
                store.look()
            peer = self._peer(partition)
            peer.fetch(store.rows, 1_000)
            for key, obj in peer.objects.items():
                seen = self.gone.get((partition, key), ())
                if any(not sibling.tombstone and covers(seen, sibling.dot) for sibling in obj.siblings):
                    raise Violation(
                        "I-NO-RESURRECT", f"key {key!r} was deleted, and the other cluster never heard of it"
                    )


class RowSimulation(ClusterSimulation):
    """See the module's text. `recalls`: how often a client writes with the clock of an earlier read, perhaps from
    another leader, instead of one that it reads at the leader that it writes to. `repeats`: how often it sends a
    request again, under the same id, whatever its outcome."""

    option = " --reaps"

    recalls = 0.0
    repeats = 0.0

    def __init__(self, seed: int, **options: Any) -> None:
        given = {"shell": RowProcess, "new_store": RowStore, "new_client": RowClient, **options}
        super().__init__(seed, **given)
        self.checkers = RowCheckers(self)

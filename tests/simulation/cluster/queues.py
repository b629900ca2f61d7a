"""A simulation whose processes run the product's waiters and source queues: clients write, other clusters fetch and
push.

Each process is a `QueueProcess`. Clients write, delete, send requests again and bring pushes; the sinks of two other
clusters fetch from every leader, acknowledge (late, twice, or not at all), restart, and refuse some changes for good.
An operator releases, places, clears, suspends and resumes, and registers a queue late. Tombstones are reaped once all
queues have passed them. The simulator adds all its faults.

    I-ALO  once all is calm, each queue's owner has every write of ours that is acknowledged and not in a gap
    I-Q-CURSOR     no cursor passes a row whose writes of ours the owner lacks, but in a gap
    I-Q-COMMITTED    nothing is offered that is not committed
    I-Q-LEDGER     every queue's ledger closes
    I-ANSWER     every request is answered once; its outcome is unknown only where something of it was appended
    I-BASIS      a committed change stands on the committed one before
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Coroutine, Sequence
from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

import structlog

from isthmus.config.settings import QueueSettings
from isthmus.queues.cursors import NO_OWNER
from isthmus.queues.leases import Session
from isthmus.queues.queue_documents import PUBLISHING, SERVING, AuditInfo
from isthmus.queues.sink_shares import Share, TypeShare
from isthmus.queues.window import Window
from isthmus.queues.wire import BatchAck, FetchReply, FetchRequest, OwnedByOther
from isthmus.repl.coordinator.tombstone_writes import ReapBatch
from isthmus.repl.coordinator.write_batch import WriteBatch
from isthmus.repl.isr.messages import AppendEntries
from isthmus.repl.model.entry import NO_OFFSET, Entry, EntryKind, decode_key_row
from isthmus.repl.model.errors import BadInput, IsthmusError, OutcomeUnknown
from isthmus.repl.model.keys import Key, key_hash, partition_index
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, decode_object, encode_object, merge, write
from isthmus.repl.model.requests import PushItem, PushResult, WriteRequest, WriteResult
from isthmus.repl.model.vclock import Clock, actor_of, descends, of_partition, pack_counter, partition_prefix
from tests.simulation.cluster.checkers import Checkers
from tests.simulation.cluster.clients import Client
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.metastore_values import StoredValues
from tests.simulation.cluster.network import Network
from tests.simulation.cluster.process import ORIGIN, Process
from tests.simulation.cluster.product_process import QueueProcess
from tests.simulation.cluster.reaps import BUCKET, LIMITS, PROPERTIES, TYPE, P, RowStore
from tests.simulation.cluster.simulator import ClusterSimulation

KEY_COUNT = 4
"""Keys of a partition: few, so that each is written, deleted and reaped many times."""

FIRST, LATE = "q", "late"
"""The queue that is there from the start, and the one that is registered later."""

CLUSTERS = {
    FIRST: (b"the-west-cluster", b"the-southcluster"),
    LATE: (b"the-northcluster", b"the-upper-cluste"),
}
"""The sinks that fetch from a queue: one at a time, the next when it was released. No two share data."""

REMEMBERED = 60
"""Requests and pushes that may come again."""

DELIVERY_LIMIT_MS = 90_000
"""Virtual time after the last write within which the owners must have everything: a lease, a look at the metastore, and
the minute for which a cluster that a queue was released from may not have it."""

ALL_ROWS = 1_000

ACTS: tuple[tuple[str, ...], ...] = (
    (),
    ("register",),
    ("release", "register"),
    ("place", "release", "register"),
    ("clear", "suspend", "resume", "resume"),
    ("release", "place", "clear", "register", "suspend", "stop", "resume", "resume"),
)
"""The acts of an operator in a simulation."""


@lru_cache(1_000)
def clock_of(data: bytes) -> Clock:
    """The clock of an encoded object; cursors are checked at every fetch, over the same few objects."""
    return decode_object(data).clock


class RequestBatch:
    """Requests of one kind that a client sent in one batch."""

    def __init__(self, client: QueueClient, process: QueueProcess, requests: Sequence[WriteRequest | PushItem]) -> None:
        self.client = client
        self.process = process
        self.requests = requests
        self.results: list[object] | None = None
        """The answers; `was` keeps them as they arrived, since an answer must not change."""
        self.was: list[object] = []


class QueueClient(Client):
    """Writes of one partition, and pushes of the sinks' clusters to it."""

    simulation: QueueSimulation

    def __init__(self, simulation: ClusterSimulation, partition: int) -> None:
        super().__init__(simulation, partition)
        self._sent: deque[WriteRequest] = deque(maxlen=REMEMBERED)
        self.submitted: deque[RequestBatch] = deque(maxlen=REMEMBERED)
        self.resent: set[bytes] = set()
        """Ids of requests of which an earlier one may have been appended."""
        self._seen: dict[bytes, Clock] = {}

    @property
    def keys(self) -> list[bytes]:
        """Names that lie in the partition."""
        return self.simulation.keys[self.partition]

    def _write(self) -> bool:
        process = self._process(0.05)
        if not isinstance(process, QueueProcess) or not process.holds_directory():
            return False
        rng = self.simulation.chance
        dice = rng.random()
        if dice < 0.12:
            return self._reap(process)
        requests: list[WriteRequest | PushItem] = []
        for _ in range(rng.randint(1, 3)):
            if dice < 0.35:
                item = self.simulation.repeat_push(self.keys)
                requests += [] if item is None else [item]
            else:
                requests.append(self._request(process))
        if not requests:
            return True
        submitted = RequestBatch(self, process, requests)
        self.submitted.append(submitted)
        self.simulation.counts["asked"] += 1
        process.ask(submitted)
        return process.replicas[self.partition].ready

    def _request(self, process: QueueProcess) -> WriteRequest:
        rng = self.simulation.chance
        if self._sent and rng.random() < 0.15:
            return rng.choice(self._sent)
        key = rng.choice(self.keys)
        data = process.rows_of(self.partition).object(P, BUCKET, key)
        context = decode_object(data).clock if data is not None and rng.random() < 0.6 else None
        if rng.random() < 0.1:
            context = self._seen.get(key, context)
        if data is not None:
            self._seen[key] = decode_object(data).clock
        request_id = self.simulation.request_id()
        content = TOMBSTONE if rng.random() < 0.3 else Content(request_id)
        return WriteRequest(Key(TYPE, BUCKET, key), content, context, request_id)

    def _reap(self, process: QueueProcess) -> bool:
        """Reap as `repl.coordinator.tombstone_reaper` does: tombstones that all queues have passed, once all replicas
        are in sync."""
        replica = process.replicas[self.partition]
        record = replica.record
        if not replica.ready or record is None or {member.node for member in record.isr} != {*record.replicas}:
            return False
        place, store = process.partitions[self.partition], process.rows
        now_ms = process.time.wall_ms()
        batch = WriteBatch(place, store, ORIGIN, LIMITS, PROPERTIES, now_ms, {}, process.queue_table.is_unreplicated)
        reaps = ReapBatch(batch)
        for _, key, row in process.rows_of(self.partition).list_keys(P, BUCKET, None):
            found, hash64 = decode_key_row(row), key_hash(BUCKET, key)
            if not found.tombstone:
                continue
            (change,) = store.changes(self.partition, found.offset, 1)
            if change.origin != ORIGIN:
                reaps.restate(Key(TYPE, BUCKET, key), hash64, found.offset, leaving=False)
            elif process.barrier.blocked_by(self.partition, found.offset, TYPE, BUCKET):
                self.simulation.counts["reap_waits_for_queues"] += 1
            else:
                self.simulation.counts["reaps"] += reaps.reap(Key(TYPE, BUCKET, key), hash64, found.offset)
        if batch.entries:
            with process.loop.entered():
                refused = process.runtime.append(place, batch.entries, process.time.now_ms())
            if refused is None:
                place.unapplied.add_pending_rows(batch.new_rows)
        return True

    # -- answers --------------------------------------------------------------------------------

    def answered(self, submitted: RequestBatch, results: list[object]) -> None:
        """The product has answered."""
        if submitted.results is not None:
            raise Violation("I-ANSWER", f"{submitted.process.name} answers twice: {submitted.results}, {results}")
        submitted.results, submitted.was = results, list(results)
        assert len(results) == len(submitted.requests)
        for request, result in zip(submitted.requests, results, strict=True):
            if isinstance(request, PushItem):
                name = result.outcome if isinstance(result, PushResult) else type(result).__name__
                self.simulation.counts[f"push_{name}"] += 1
            else:
                self._written(submitted.process, request, result)

    def _written(self, process: QueueProcess, request: WriteRequest, result: object) -> None:
        counts, request_id = self.simulation.counts, request.request_id
        checkers = self.simulation.checkers
        if isinstance(result, WriteResult):
            if not result.created:
                counts["nothing_to_delete"] += 1
                self.done = True
                return
            counts["repeated"] += result.repeated
            offset = checkers.offsets.get((self.partition, request_id))
            if offset is None:
                raise Violation("I-ACK", f"{process.name} acknowledges {request_id!r}, which nobody applied")
            if self.partition in process.replicas:
                checkers.acknowledged(process, self.partition, request_id, offset)
            self._may_come_again(request)
            self.acknowledged()
        elif isinstance(result, OutcomeUnknown):
            counts["unknown"] += 1
            named = request_id in process.appended_ids or request_id in self.resent
            if not named and not request.content.tombstone:
                raise Violation("I-ANSWER", f"{process.name} does not know of {request_id!r}, which it never appended")
            self._may_come_again(request)
            self.unknown()
        elif isinstance(result, IsthmusError):
            counts[f"refused_{result.reason}"] += 1
            if request_id not in self.resent:
                if request_id in process.appended_ids:
                    raise Violation("I-ANSWER", f"{process.name} refuses {request_id!r} and has appended it: {result}")
                checkers.history(self.partition).refused.add(request_id)
        else:
            raise Violation("I-ANSWER", f"{process.name} answers {request_id!r} by {result!r}")

    def _may_come_again(self, request: WriteRequest) -> None:
        self.resent.add(request.request_id)
        self._sent.append(request)

    def lost(self, submitted: RequestBatch) -> None:
        """The process died with it."""
        for request in submitted.requests:
            if isinstance(request, WriteRequest):
                self._may_come_again(request)
                self.unknown()


class SinkLink(NamedTuple):
    """A node of a sink's cluster, and the source node that it fetches from."""

    node: str
    source: str


class SinkNodes:
    """The nodes of a sink's cluster: which of them fetch, and which partitions each reports to lead there. With one
    node, no share is sent."""

    def __init__(self, seed: str, total: int, *, shares: bool) -> None:
        self._chance = Random(seed)
        self.names = ("sink", "sink2", "sink3")[: self._chance.randint(2, 3) if shares else 1]
        self.total = total if self._chance.random() < 0.8 else total + 1
        self._leaders: list[str | None] = [self._chance.choice((*self.names, None)) for _ in range(self.total)]
        self._sends_none = frozenset(name for name in self.names if self._chance.random() < 0.1)
        self._away: frozenset[str] = frozenset()

    @property
    def awake(self) -> tuple[str, ...]:
        """The nodes that fetch; at least one does."""
        return tuple(name for name in self.names if name not in self._away)

    def share(self, node: str) -> Share | None:
        """The share that a node sends with its next fetch."""
        if len(self.names) == 1 or node in self._sends_none:
            return None
        return {TYPE: TypeShare(self.total, sum(1 << at for at, leader in enumerate(self._leaders) if leader == node))}

    def change(self) -> None:
        """Sometimes a leader changes; sometimes nodes stop fetching, and start again."""
        if self._chance.random() < 0.05:
            self._leaders[self._chance.randrange(self.total)] = self._chance.choice((*self.names, None))
        if self._chance.random() < 0.02:
            self._away = frozenset(self._chance.sample(self.names, self._chance.randrange(len(self.names))))


class Sink:
    """One cluster's links with one queue: a session of each node with each source node, and the arrived objects."""

    def __init__(self, simulation: QueueSimulation, cluster: bytes, queue: str) -> None:
        self.simulation = simulation
        self.cluster = cluster
        self.queue = queue
        self.active = False
        self.objects: dict[bytes, Object] = {}
        self._nodes = SinkNodes(
            f"shares {simulation.seed} {cluster!r}", simulation.plan.partition_count, shares=simulation.shares
        )
        self._life = 0
        self._acks: dict[SinkLink, list[BatchAck]] = {}
        self._holding: dict[SinkLink, list[bytes]] = {}
        self._fetching: set[SinkLink] = set()

    def start(self) -> None:
        """Fetch, and again after a while."""
        simulation = self.simulation
        if not simulation.faults.over:
            self._nodes.change()
        links = [SinkLink(node, source) for node in self._nodes.awake for source in simulation.nodes]
        if self.active and (idle := [link for link in links if link not in self._fetching]):
            self._fetch(simulation.chance.choice(idle))
        if not simulation.faults.over and simulation.chance.random() < 0.004:
            self._restart()
        simulation.after(simulation.chance.randint(10, 150), self.start)

    def _restart(self) -> None:
        """The sink's process ends and loses everything that it had not acknowledged."""
        self.simulation.counts["sink_restarted"] += 1
        self._life += 1
        self._acks.clear()
        self._holding.clear()
        self._fetching.clear()

    def _fetch(self, name: SinkLink) -> None:
        simulation, rng = self.simulation, self.simulation.chance
        awake = [process for process in simulation.nodes[name.source].processes if not process.paused]
        if not awake:
            return
        process = rng.choice(awake)
        assert isinstance(process, QueueProcess)
        acks = tuple(self._acks.pop(name, ()))
        if acks and not simulation.faults.over and rng.random() < 0.2:
            simulation.counts["ack_again"] += 1
            self._acks[name] = list(acks)  # the source does not know that they arrived
        for ack in acks:
            if ack.batch in self._holding.get(name, ()):
                self._holding[name].remove(ack.batch)
        session = Session(self.cluster, name.node, b"life%04d" % self._life, 0)
        request = FetchRequest(
            session,
            "another",
            acks,
            tuple(self._holding.get(name, ())),
            rng.choice((1, 2, 8)),
            wait_ms=rng.choice((0, 100, 400)),
            share=self._nodes.share(name.node),
        )
        self._fetching.add(name)
        simulation.after(2_500, self._gives_up, name, self._life)
        if not simulation.faults.over and rng.random() < 0.08:
            simulation.counts["fetch_lost"] += 1
            return
        simulation.after(rng.randint(1, 30), self._arrives, process, name, request, self._life)

    def _gives_up(self, name: SinkLink, life: int) -> None:
        if life == self._life:
            self._fetching.discard(name)

    def _arrives(self, process: QueueProcess, name: SinkLink, request: FetchRequest, life: int) -> None:
        if process.alive:
            with process.loop.entered():
                process.loop.create_task(self._serve(process, name, request, life))

    async def _serve(self, process: QueueProcess, name: SinkLink, request: FetchRequest, life: int) -> None:
        simulation = self.simulation
        try:
            reply = await process.queues.fetch(self.queue, request)
        except OwnedByOther:
            simulation.counts["fetch_owned_by_other"] += 1
            return
        except IsthmusError as error:
            simulation.counts[f"fetch_{error.reason}"] += 1
            return
        except Exception as bug:  # noqa: BLE001 - whatever it is, it is a finding
            simulation.broken = simulation.broken or bug
            return
        if process.alive:
            self._check(process, reply)
            self._count_shares(request.share, reply)
            simulation.look_at_cursors(process)
            if not simulation.faults.over and simulation.chance.random() < 0.1:
                simulation.counts["reply_lost"] += 1
                return
            simulation.after(simulation.chance.randint(1, 40), self._take, process, name, reply, life)

    def _count_shares(self, share: Share | None, reply: FetchReply) -> None:
        if share is not None and share[TYPE].total == self.simulation.plan.partition_count:
            home = sum(share[TYPE].led >> item[1] & 1 for item in reply.items)
            self.simulation.counts["served_in_share"] += home
            self.simulation.counts["served_of_another_share"] += len(reply.items) - home

    def _check(self, process: QueueProcess, reply: FetchReply) -> None:
        """I-Q-COMMITTED."""
        committed = self.simulation.checkers.payloads
        for item in reply.items:
            if item[8] not in committed.get((item[1], item[5]), ()):
                self.simulation.fail(
                    Violation(
                        "I-Q-COMMITTED", f"{process.name} offers {item[5]!r} at {item[2]}, which is not committed"
                    )
                )

    def _take(self, process: QueueProcess, name: SinkLink, reply: FetchReply, life: int) -> None:
        if life != self._life:
            return
        self._fetching.discard(name)
        if not reply.items:
            return
        self.simulation.counts["batches"] += 1
        self._holding.setdefault(name, []).append(reply.batch)
        self.simulation.after(self.simulation.chance.randint(1, 60), self._apply, process, name, reply, life)

    def _apply(self, process: QueueProcess, name: SinkLink, reply: FetchReply, life: int) -> None:
        if life != self._life:
            return
        simulation, rng = self.simulation, self.simulation.chance
        calm = simulation.faults.over
        failed, given_up = [], []
        for at, item in enumerate(reply.items):
            dice = 1.0 if calm else rng.random()
            if dice < 0.03:
                failed.append(at)
            elif dice < 0.04:
                given_up.append(at)
            else:
                simulation.counts["delivered"] += 1
                self.keep(item[5], decode_object(item[8]))
        simulation.counts["given_up"] += len(given_up)
        ack = BatchAck(reply.batch, reply.owner_version, tuple(failed), None, tuple(given_up))
        self._acks.setdefault(name, []).append(ack)

    def keep(self, key: bytes, obj: Object) -> None:
        """Take an object in."""
        mine = self.objects.get(key)
        self.objects[key] = obj if mine is None else merge(mine, obj)

    def has_seen(self, key: bytes) -> Clock:
        """The newest writes of ours in the sink's object of a key, for each incarnation of its partition."""
        obj = self.objects.get(key)
        return () if obj is None else of_partition(obj.clock, self.simulation.prefix_of_key[key])

    def act(self, keys: Sequence[bytes]) -> None:
        """A client of that cluster writes."""
        simulation, rng = self.simulation, self.simulation.chance
        key = rng.choice(keys)
        current = self.objects.get(key)
        simulation.writes_there += 1
        context: Clock = current.clock if current is not None and rng.random() < 0.7 else ()
        content = TOMBSTONE if current is not None and rng.random() < 0.3 else Content(b"p%d" % simulation.writes_there)
        dot = (actor_of(self.cluster, 0), pack_counter(1, simulation.writes_there))
        self.objects[key] = write(current, context, content, dot, simulation.now_ms)
        simulation.said.append(PushItem(Key(TYPE, BUCKET, key), self.cluster, encode_object(self.objects[key])))


class Operator:
    """Acts on queues at some node; a failed act is not retried, except that everything is resumed in the end."""

    def __init__(self, simulation: QueueSimulation) -> None:
        self.simulation = simulation

    def start(self) -> None:
        """Act, and again after a while."""
        simulation = self.simulation
        if simulation.faults.over:
            return
        if self.simulation.acts and simulation.now_ms > 1_500 and simulation.chance.random() < 0.5:
            self._act(simulation.chance.choice(simulation.acts))
        simulation.after(simulation.chance.randint(*simulation.act_pause_ms), self.start)

    def _act(self, what: str) -> None:
        processes = [node.current for node in self.simulation.nodes.values()]
        awake = [p for p in processes if isinstance(p, QueueProcess) and not p.paused]
        if awake:
            process = self.simulation.chance.choice(awake)
            with process.loop.entered():
                process.loop.create_task(self._carry_out(process, what))

    async def _carry_out(self, process: QueueProcess, what: str) -> None:
        simulation = self.simulation
        name = simulation.chance.choice(list(process.queues.machines()) or [FIRST])
        by = AuditInfo("me", process.time.wall_ms(), "so")
        work: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "release": lambda: self._release(process, name, by),
            "place": lambda: self._place(process, name, by),
            "clear": lambda: process.acts.clear(name, by),
            "register": lambda: process.acts.register(LATE, {"lease_ms": simulation.settings[0].lease_ms}, 0, by),
            "suspend": lambda: process.acts.suspend(name, SERVING, None, by),
            "stop": lambda: process.acts.suspend(name, PUBLISHING, None, by),
            "resume": lambda: process.acts.resume(name, (SERVING, PUBLISHING), None, by),
        }
        try:
            await work[what]()
        except IsthmusError as error:
            simulation.counts[f"act_refused_{error.reason}"] += 1
        else:
            simulation.counts[f"act_{what}"] += 1
            if what == "register":
                simulation.sink(CLUSTERS[LATE][0], LATE).active = True

    async def _release(self, process: QueueProcess, name: str, by: AuditInfo) -> None:
        await process.acts.release(name, 0, by)
        for cluster in CLUSTERS[name]:
            self.simulation.sink(cluster, name).active = True

    async def _place(self, process: QueueProcess, name: str, by: AuditInfo) -> None:
        """Copy the applied objects of the leaders here to the owner by other means, then place the queue behind
        them."""
        owner = process.queues.named(name).machine.owner
        if owner == NO_OWNER:
            raise BadInput("nobody has it")
        sink, positions = self.simulation.sink(owner, name), []
        for partition, end in process.queues.applied_upto().items():
            rows = process.rows.changes(partition, 0, ALL_ROWS)
            for row in rows:
                data = process.rows.object(partition, row.bucket, row.key)
                if row.offset < end and data is not None:
                    sink.keep(row.key, decode_object(data))
            positions.append((partition, end))
        await process.acts.place(name, tuple(positions), by)

    def end(self) -> None:
        """Let everything run, again until it does."""
        simulation = self.simulation
        if any(self._suspended(node.current) for node in simulation.nodes.values()):
            self._act("resume")
        simulation.after(400, self.end)

    @staticmethod
    def _suspended(process: Process | None) -> bool:
        if not isinstance(process, QueueProcess):
            return False
        return any(
            machine.serving_suspended or machine.publishing_suspended for machine in process.queues.machines().values()
        )


class QueueCheckers(Checkers):
    """Also checks requests, the predecessors of changes, and the offered changes."""

    def __init__(self, simulation: QueueSimulation) -> None:
        super().__init__(simulation)
        self.offsets: dict[tuple[int, bytes], int] = {}
        """(partition, request id) -> offset of the entry by which it took effect."""
        self.payloads: dict[tuple[int, bytes], set[bytes]] = {}
        """(partition, key) -> every object that was ever committed."""
        self._last: dict[int, dict[bytes, int]] = {}
        """Partition -> key -> offset of its last change below `_looked`."""
        self._looked: dict[int, int] = {}
        self._lineages: dict[int, int] = {}

    def applied(self, process: Process, partition: int, entries: Sequence[Entry]) -> None:
        """See Checkers."""
        super().applied(process, partition, entries)
        for entry in entries:
            if entry.kind in (EntryKind.DATA, EntryKind.LEAVING):
                self.payloads.setdefault((partition, entry.key), set()).add(entry.payload)
        act = self.declared.acts.get(partition)
        if act is not None and self.declared.quarantines(process.node, partition):
            return
        if act is not None and self._lineages.get(partition, 0) != act.lineage:
            self._lineages[partition] = act.lineage
            self._last[partition], self._looked[partition] = {}, 0
            self.offsets = {name: at for name, at in self.offsets.items() if name[0] != partition}
        decided = self.history(partition).committed
        while self._looked.get(partition, 0) <= entries[-1].offset:
            at = self._looked.get(partition, 0)
            self._looked[partition] = at + 1
            self._look(partition, decided[at])

    def _look(self, partition: int, entry: Entry) -> None:
        if entry.request_id:
            known = self.offsets.setdefault((partition, entry.request_id), entry.offset)
            if known != entry.offset:
                raise Violation("I-ACK", f"request {entry.request_id!r} takes effect twice: {known}, {entry}")
        last = self._last.setdefault(partition, {})
        if entry.kind in (EntryKind.DATA, EntryKind.LEAVING, EntryKind.REAP):
            before = last.get(entry.key, NO_OFFSET)
            if entry.previous_offset != before:
                raise Violation(
                    "I-BASIS",
                    f"{entry.epoch}.{entry.offset} of {entry.key!r} stands on {entry.previous_offset}, the change "
                    f"before it is at {before}",
                )
            if entry.kind == EntryKind.REAP:
                last.pop(entry.key, None)
            else:
                last[entry.key] = entry.offset

    def final(self) -> None:
        """See Checkers; and no answer to a client has changed."""
        super().final()
        simulation = self.simulation
        assert isinstance(simulation, QueueSimulation)
        for client in simulation.clients:
            assert isinstance(client, QueueClient)
            changed = [
                submitted
                for submitted in client.submitted
                if submitted.results is not None and submitted.results != submitted.was
            ]
            if changed:
                raise Violation("I-ANSWER", f"an answer was changed: {changed[0].was}, {changed[0].results}")
        for node in simulation.nodes.values():
            process = node.current
            if isinstance(process, QueueProcess):
                reads = [place.waiters._reads for place in process.partitions.values() if place.waiters._reads]
                if process.pending or reads:
                    raise Violation("I-ANSWER", f"{process.name}: {len(process.pending)} requests and {reads} wait")


class CursorNetwork(Network):
    """Soft cursors ride along with AppendEntries."""

    def send(self, sender: Process, to: str, partition: int, message: Any) -> None:
        """See Network."""
        if isinstance(message, AppendEntries) and isinstance(sender, QueueProcess):
            message = sender.with_cursors(partition, to, message)
        super().send(sender, to, partition, message)


class QueueSimulation(ClusterSimulation):
    """See the module's text. `mixes`: an operator carries out the acts of one of them, with its pauses. `shares`: sinks
    have several nodes, which come and go, and fetch the shares that they lead."""

    option = " --queues"
    shares = True

    checkers: QueueCheckers
    mixes = ACTS
    act_pause_ms = (300, 1_500)

    def __init__(self, seed: int, **options: Any) -> None:
        self.chance = Random(f"queues {seed}")
        self.broken: BaseException | None = None
        self.keys: dict[int, list[bytes]] = {}
        self.prefix_of_key: dict[bytes, bytes] = {}
        self.settings = (
            QueueSettings(
                FIRST,
                object_limit_count=self.chance.choice((1, 100)),
                queue_limit_count=self.chance.choice((2, 6, 1_000)),
                overflow=self.chance.choice(("replay", "replay", "replay", "discard")),
                lease_ms=self.chance.choice((400, 2_000)),
            ),
        )
        self.acts = self.chance.choice(self.mixes)
        self.said: deque[PushItem] = deque(maxlen=REMEMBERED)
        self.writes_there = 0
        given = {"shell": QueueProcess, "new_store": RowStore, "new_client": QueueClient, **options}
        super().__init__(seed, **given)
        self.values = StoredValues(self)
        self.checkers = QueueCheckers(self)
        self.network = CursorNetwork(self)
        self.sinks = {(c, queue): Sink(self, c, queue) for queue, clusters in CLUSTERS.items() for c in clusters}
        self.sink(CLUSTERS[FIRST][0], FIRST).active = True
        self.steward = Operator(self)
        self._name_keys()

    def _name_keys(self) -> None:
        count, number = self.plan.partition_count, 0
        self.keys = {partition: [] for partition in range(count)}
        while any(len(names) < KEY_COUNT for names in self.keys.values()):
            name = b"%d" % number
            partition = partition_index(key_hash(BUCKET, name), count)
            if len(self.keys[partition]) < KEY_COUNT:
                self.keys[partition].append(name)
                self.prefix_of_key[name] = partition_prefix(ORIGIN, partition)
            number += 1

    def sink(self, cluster: bytes, queue: str) -> Sink:
        """A cluster's links with a queue."""
        return self.sinks[cluster, queue]

    def repeat_push(self, keys: Sequence[bytes]) -> PushItem | None:
        """Push one of `keys` again as another cluster has it, or had it."""
        sink = self.chance.choice(list(self.sinks.values()))
        if sink.active and self.chance.random() < 0.5:
            sink.act(keys)
        found = [item for item in self.said if item.key.key in keys]
        return self.chance.choice(found) if found else None

    def fail(self, violation: BaseException) -> None:
        """Noticed where a task would swallow it."""
        self.broken = self.broken or violation

    # -- the run --------------------------------------------------------------------------------

    def start(self) -> None:
        """See Simulation."""
        super().start()
        for sink in self.sinks.values():
            sink.start()
        self.steward.start()

    def run(self) -> Counter[str]:
        """See Simulation; the product's log is not wanted."""
        logging = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger("critical"))
        try:
            return super().run()
        finally:
            structlog.configure(**logging)
            for node in self.nodes.values():
                for process in list(node.processes):
                    if isinstance(process, QueueProcess):
                        process.alive = False
                        process.loop.wind_up()

    def heal(self) -> None:
        """See Simulation."""
        self.steward.end()
        super().heal()

    def quiet(self) -> None:
        """See Simulation; the owners fetch everything left."""
        super().quiet()
        if not self.wait_for(DELIVERY_LIMIT_MS, lambda: not self.undelivered()):
            raise Violation("I-ALO", f"{DELIVERY_LIMIT_MS} ms after the last write: {self.undelivered()}")
        for node in self.nodes.values():
            if isinstance(node.current, QueueProcess):
                self.look_at_cursors(node.current)
                self._look_at_ledgers(node.current)
        if self.broken is not None:
            raise self.broken

    def undelivered(self) -> str:
        """The reason why a queue has not delivered everything; empty when it has."""
        for partition, record in self.metastore.records.items():
            process = None if record.leader is None else self.nodes[record.leader.node].current
            assert isinstance(process, QueueProcess)
            for name, machine in process.queues.machines().items():
                window = machine.windows.get(partition)
                if window is None:
                    return f"{name} does not stand in partition {partition}"
                if machine.owner and window.owner_version != machine.owner_version:
                    return f"{name} stands in partition {partition} under version {window.owner_version}"
                if machine.owner and window.advance() < window.applied:
                    return f"{name} stands at {window.cursor} of {window.applied} in partition {partition}"
        return ""

    # -- checks ----------------------------------------------------------------------------------

    def look_at_cursors(self, process: QueueProcess) -> None:
        """I-Q-CURSOR, of a process that has the past that counts."""
        for name, machine in process.queues.machines().items():
            for partition, window in machine.windows.items():
                if partition in process.replicas and not self.checkers.declared.quarantines(process.node, partition):
                    self._look_at_cursor(process, name, partition, window)

    def _look_at_cursor(self, process: QueueProcess, name: str, partition: int, window: Window) -> None:
        owner = window.state.owner
        if owner == NO_OWNER or not process.holds_directory() or self.declared_lost(process, partition):
            return
        sinks, store, machine = [self.sink(owner, name)], process.rows_of(partition), process.queues.machines()[name]
        if window.owner_version != machine.owner_version and machine.owner != NO_OWNER:
            # A `place` for the next owner may be applied before a partition serves that owner.
            sinks.append(self.sink(machine.owner, name))
        prefix = partition_prefix(ORIGIN, partition)
        for row in store.changes(P, 0, ALL_ROWS):
            if row.offset >= window.cursor or any(gap.start <= row.offset < gap.end for gap in window.state.gaps):
                continue
            data = store.object(P, row.bucket, row.key)
            assert data is not None
            ours = of_partition(clock_of(data), prefix)
            if not any(descends(sink.has_seen(row.key), ours) for sink in sinks):
                self.fail(
                    Violation(
                        "I-Q-CURSOR",
                        f"{name} at {process.name} stands at {window.cursor} of partition {partition}, and its owner "
                        f"lacks a write in {row.key!r} at {row.offset}: gaps {window.state.gaps}",
                    )
                )
                return

    def declared_lost(self, process: QueueProcess, partition: int) -> bool:
        """Its leadership dates from before an operator forced another history."""
        act = self.checkers.declared.acts.get(partition)
        record = process.replicas[partition].record
        return self.checkers.beyond_promise or (act is not None and (record is None or record.lineage < act.lineage))

    def _look_at_ledgers(self, process: QueueProcess) -> None:
        """I-Q-LEDGER, at rest."""
        for name, machine in process.queues.machines().items():
            off = [machine.ledger().unbalanced, *(window.ledger_error() or 0 for window in machine.windows.values())]
            if any(off):
                raise Violation("I-Q-LEDGER", f"{name} at {process.name} does not close by {off}")


class UnsharedQueueSimulation(QueueSimulation):
    """Sinks with one node and no shares, as in the version before: for seeds that were found with it."""

    option = " --queues --no-shares"
    shares = False

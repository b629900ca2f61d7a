"""A process that runs the product's own shell above the core: waiters, coordinator, source queues.

Writes go through `repl.coordinator.coordinator` and are answered by `repl.runtime.waiters`; `queues.service` with its
cursor keeper serves sinks, on an event loop in virtual time. The layers below (log, store, links, metastore) are the
simulator's. Like the product's runtime it answers waiters and notifies listeners, and sends soft cursors.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from isthmus.queues.admin import QueueActs
from isthmus.queues.queue_table import QueueTable
from isthmus.queues.service import QueuePorts, QueueService
from isthmus.queues.sink_shares import KeyRange
from isthmus.queues.tombstone_barrier import TombstoneBarrier
from isthmus.repl.coordinator.coordinator import Coordinator, CoordinatorSettings
from isthmus.repl.isr import effects as fx
from isthmus.repl.isr import events as ev
from isthmus.repl.isr import messages as ms
from isthmus.repl.isr.replica import ReplicaRole
from isthmus.repl.model.entry import Entry, EntryKind
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown
from isthmus.repl.model.ports import ApplyListener
from isthmus.repl.model.properties import FixedProperties
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.runtime.apply_listeners import ApplyListeners
from isthmus.repl.runtime.latency import ReplicationLatency
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.rounds import Rounds
from isthmus.repl.runtime.unapplied import MemoryWindow
from isthmus.repl.store.port import PartitionStep
from isthmus.repl.transport.port import NO_CURSORS
from tests.simulation.cluster.disk_writers import StoreWriter
from tests.simulation.cluster.invariants import Violation
from tests.simulation.cluster.loop import SimLoop
from tests.simulation.cluster.metastore_values import ProcessValues
from tests.simulation.cluster.process import ORIGIN, Process
from tests.simulation.cluster.reaps import LIMITS, PROPERTIES, TYPE, P, RowStateTransfers, RowStore
from tests.support.cluster_facts import FakeClusterFacts
from tests.support.damage_reports import DamageReports
from tests.support.memory_store import MemoryStore

if TYPE_CHECKING:
    from tests.simulation.cluster.nodes import Node
    from tests.simulation.cluster.queues import QueueSimulation, RequestBatch

WALL_MS = 1_700_000_000_000
SOFT_INTERVAL_MS = 1_000
REQUEST_TIMEOUT_MS = 3_000
KEY_LIMIT = 100
WINDOW_BYTES = 1 << 30


class AppendWithCursors(NamedTuple):
    """An AppendEntries with the soft cursors that it carries."""

    forward: ms.AppendEntries
    cursors: dict[bytes, bytes]


class Clock:
    """Virtual time."""

    def __init__(self, simulation: QueueSimulation) -> None:
        self._simulation = simulation

    def now_ms(self) -> int:
        """Virtual time of the simulation."""
        return self._simulation.now_ms

    def wall_ms(self) -> int:
        """Virtual time of the simulation as wall-clock time."""
        return WALL_MS + self._simulation.now_ms


class ProcessStore:
    """The stores of all replicas of a process as one store; each replica's own store has its partition as `P`."""

    def __init__(self, process: QueueProcess) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(partition: int, *args: Any) -> Any:
            return getattr(self._process.rows_of(partition), name)(P, *args)

        return ask


class SoftStoreWriter(StoreWriter):
    """Writes soft cursors together with applied entries; keeps applied entries until the core has been notified."""

    def __init__(self, process: QueueProcess) -> None:
        super().__init__(process)
        self.untold: dict[int, list[Entry]] = {}
        self.soft: dict[int, dict[bytes, bytes]] = {}

    def _apply(self, jobs: dict[int, int]) -> None:
        before = {partition: self.disk.stores[partition].applied for partition in jobs}
        super()._apply(jobs)
        for partition, start in before.items():
            store = self.disk.stores[partition]
            if store.applied > start:
                self.untold.setdefault(partition, []).extend(store.history[start : store.applied])
            self.write_soft(partition)

    def write_soft(self, partition: int) -> None:
        """Write the soft cursors that wait."""
        soft, store = self.soft.pop(partition, {}), self.disk.stores.get(partition)
        if soft and isinstance(store, RowStore) and store.transfer is None:
            store.rows.write([PartitionStep(P, (), soft)])

    def flush(self) -> None:
        """Write the soft cursors that no entry carried."""
        if self._amid is None and not self._asked and self.process.holds_directory():
            for partition in list(self.soft):
                self.write_soft(partition)


class ReplicaFacts(FakeClusterFacts):
    """The cluster of one process: one bucket type, and the partitions of its replicas."""

    def __init__(self, process: QueueProcess) -> None:
        super().__init__()
        self._process = process

    def partition_types(self) -> dict[int, bytes]:
        return dict.fromkeys(self._process.replicas, TYPE)

    def key_range(self, partition: int) -> KeyRange | None:
        return KeyRange(partition, self._process.simulation.plan.partition_count)

    def bucket_types(self) -> set[bytes]:
        return set(self.partition_types().values())


class StrictQueueService(QueueService):
    """A QueueService in which a failed task is a violation."""

    process: QueueProcess

    def __init__(self, *settings: Any, **collaborators: Any) -> None:
        super().__init__(*settings, **collaborators)
        self._log_end = self._tasks._ended
        self._tasks._ended = self._ended  # type: ignore[method-assign]

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and self.process.alive:
            self.process.simulation.broken = self.process.simulation.broken or error
        self._log_end(task)

    def tick(self) -> None:
        """See QueueProcess; and the ledger of each queue closes."""
        super().tick()
        for queue in self._queues.values():
            if queue.ledger_off:
                raise Violation("I-Q-LEDGER", f"{queue.name!r} at {self.node} does not close by {queue.ledger_off}")


class StrictApplyListeners(ApplyListeners):
    """ApplyListeners that raise the exceptions of listeners, as violations."""

    def _bug(self, listener: ApplyListener, bug: Exception) -> None:
        raise bug


class QueueProcess(Process):
    """See the module's text. It also replaces the product's runtime for the coordinator."""

    simulation: QueueSimulation
    store: SoftStoreWriter

    def __init__(self, simulation: QueueSimulation, node: Node, number: int) -> None:
        super().__init__(simulation, node, number)
        self.transfers = RowStateTransfers(self)
        self.store = SoftStoreWriter(self)
        self.loop = SimLoop(self)
        self.rows: Any = ProcessStore(self)
        self.time = Clock(simulation)
        self.partitions: dict[int, Partition] = {}
        self.listeners = StrictApplyListeners()
        self.latency = ReplicationLatency()
        self.window = MemoryWindow(WINDOW_BYTES)
        self.pending: dict[RequestBatch, None] = {}
        """Requests of clients to this process that have no answer."""
        self.appended_ids: set[bytes] = set()
        self._records: dict[int, PartitionRecord] = {}
        self._heads: dict[tuple[int, str], ms.AppendEntries] = {}
        self.runtime = Runtime(self)
        with self.loop.entered():
            values = cast(Any, ProcessValues(self, self.loop, simulation.values))
            self.queue_table = QueueTable(values, simulation.settings)
            self.coordinator = Coordinator(
                cast(Any, self.runtime),
                CoordinatorSettings(LIMITS, KEY_LIMIT, REQUEST_TIMEOUT_MS, "committed"),
                links=cast(Any, None),
                read_pool=cast(Executor, None),
                properties=FixedProperties(PROPERTIES),
                unreplicated=self.queue_table.is_unreplicated,
                on_ahead=lambda _partition, _counter: False,
            )
            self.queues = StrictQueueService(
                self.queue_table,
                ThisNode(node.name, "ours", ORIGIN),
                QueuePorts(
                    store=self.rows,
                    changes=self.listeners,
                    cursors=self.coordinator,
                    kv=self.coordinator,
                    metastore=values,
                    cluster=ReplicaFacts(self),
                    damage_listener=DamageReports(),
                    time=self.time,
                    read_pool=cast(Executor, None),
                ),
                traces=None,
                enabled=True,
            )
            self.queues.process = self
            self.acts = QueueActs(self.queues, self.rows, cast(Executor, None))
            self.barrier = TombstoneBarrier(self.queues, self.rows, self.coordinator)

    # -- life -----------------------------------------------------------------------------------

    def boot(self) -> None:
        """See Process."""
        super().boot()
        with self.loop.entered():
            self.loop.create_task(self._start())
            self.loop.call_later(SOFT_INTERVAL_MS / 1000, self._each_second)

    async def _start(self) -> None:
        while True:
            try:
                return await self.queues.start()
            except NotReady:
                await asyncio.sleep(0.2)

    def attach(self, partition: int) -> None:
        """See Process."""
        super().attach(partition)
        record = self.simulation.metastore.records[partition]
        place = Partition(record, self.replicas[partition], ORIGIN, 0, self.window)
        self.partitions[partition] = place
        self.store.untold.pop(partition, None)

    def die(self, why: str) -> None:
        """See Process: clients get no answer."""
        if not self.alive:
            return
        super().die(why)
        pending, self.pending = self.pending, {}
        for each in pending:
            each.client.lost(each)
        self.simulation.after(0, self.loop.wind_up)

    def resume(self) -> None:
        """See Process."""
        super().resume()
        self.loop.go_on()

    def see(self, record: PartitionRecord) -> None:
        """See Process; the coordinator's map follows."""
        super().see(record)
        known = self._records.get(record.partition)
        if self.alive and not self.paused and (known is None or known.version < record.version):
            self._records[record.partition] = record
            with self.loop.entered():
                self.coordinator.learn_records(self._records)

    def rows_of(self, partition: int) -> MemoryStore:
        """The rows of a replica; none if it does not exist."""
        store = self.node.disk.stores.get(partition)
        return store.rows if isinstance(store, RowStore) else MemoryStore()

    def place(self, partition: int) -> Partition:
        """The partition object of a replica on this process."""
        return self.partitions[partition]

    # -- events ---------------------------------------------------------------------------------

    def post(self, partition: int, event: ev.Event) -> None:
        """See Process; soft cursors that ride along are taken from the leader that is followed."""
        if (
            self.paused
            or not self.alive
            or type(event) is not ev.Received
            or type(event.message) is not AppendWithCursors
        ):
            super().post(partition, event)
            return
        forward, cursors = event.message
        replica = self.replicas.get(partition)
        if replica is not None and replica.following and forward.epoch == replica.epoch:
            for queue, payload in cursors.items():
                self.simulation.counts["soft_taken"] += 1
                self.soft_cursor(partition, queue, payload)
        super().post(partition, ev.Received(event.node, forward))

    def stepped(self, partition: int, event: ev.Event) -> None:
        """Entries are applied: answer the waiting requests, notify listeners."""
        if type(event) is not ev.AppliedTo:
            return
        untold, place = self.store.untold.get(partition, []), self.partitions[partition]
        entries = [entry for entry in untold if entry.offset < event.end]
        self.store.untold[partition] = [entry for entry in untold if entry.offset >= event.end]
        if not entries:
            return
        with self.loop.entered():
            place.unapplied.applied(entries, read_back=True)
            place.waiters.applied(event.end)
            self.listeners.applied([(partition, entries)])

    def _answer(self, partition: int, end: int) -> None:
        """Waiters did."""

    def perform(self, partition: int, effect: fx.Effect, made_here: bool) -> None:
        """See Process."""
        place = self.partitions.get(partition)
        if place is None:
            super().perform(partition, effect, made_here)
            return
        with self.loop.entered():
            match effect:
                case fx.ReadReady(tokens):
                    place.waiters.reads_confirmed(tokens)
                case fx.ReadRefused(tokens, reason):
                    place.waiters.reads_refused(tokens, place.refusal(reason))
                case fx.LeadershipReady():
                    self.listeners.leadership(partition, True, self.replicas[partition].applied)
                case fx.SteppedDown():
                    place.waiters.fail_above(effect.unknown_from, OutcomeUnknown(effect.reason))
                    place.unapplied.clear_pending_rows()
                    self.listeners.leadership(partition, False, self.replicas[partition].applied)
                case _:
                    if type(effect) is fx.RoleChanged and effect.role is ReplicaRole.RESIGNING:
                        self._share(place, at_once=True)
                    super().perform(partition, effect, made_here)

    # -- soft cursors ---------------------------------------------------------------------------

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        """As in the product's runtime."""
        if partition in self.partitions:
            self.store.soft.setdefault(partition, {})[queue] = payload
            self.partitions[partition].cursor_gossip.update(queue, payload)

    def with_cursors(self, partition: int, to: str, forward: ms.AppendEntries) -> ms.AppendEntries | AppendWithCursors:
        """An AppendEntries on its way, with the soft cursors that are due."""
        place = self.partitions.get(partition)
        if place is None:
            return forward
        self._heads[partition, to] = forward._replace(entries=())
        cursors = place.cursor_gossip.due(
            to, self.simulation.now_ms, at_once=place.replica.role is ReplicaRole.RESIGNING
        )
        if cursors is NO_CURSORS or not cursors:
            return forward
        place.cursor_gossip.sent(to, self.simulation.now_ms)
        self.simulation.counts["soft_sent"] += 1
        return AppendWithCursors(forward, dict(cursors))

    def link_down(self, peer: str) -> None:
        """See Process."""
        super().link_down(peer)
        for partition, place in self.partitions.items():
            place.cursor_gossip.lost(peer)
            self._heads.pop((partition, peer), None)

    def _share(self, place: Partition, *, at_once: bool = False) -> None:
        for follower in place.replica.followers():
            head = self._heads.get((place.id, follower.node))
            stands = head is not None and head.epoch == place.replica.epoch and follower.linked
            if stands and place.cursor_gossip.due(follower.node, self.simulation.now_ms, at_once=at_once):
                self.simulation.network.send(self, follower.node, place.id, head)

    def _each_second(self) -> None:
        self.loop.call_later(SOFT_INTERVAL_MS / 1000, self._each_second)
        self.store.flush()
        for place in self.partitions.values():
            if place.id in self.replicas and place.leads:
                self._share(place)

    # -- clients --------------------------------------------------------------------------------

    def ask(self, batch: RequestBatch) -> None:
        """A client's requests, all of one kind."""
        self.pending[batch] = None
        with self.loop.entered():
            future = self.coordinator._submit(batch.requests, forward=False)
            future.add_done_callback(lambda done: self._answered(batch, done.result()))

    def _answered(self, batch: RequestBatch, results: list[object]) -> None:
        if batch not in self.pending:
            return
        del self.pending[batch]
        batch.client.answered(batch, results)

    def read(self, partition: int) -> None:
        """See Process; the waiting is the product's."""
        least, place = self.simulation.checkers.read_begins(partition), self.partitions[partition]

        def served(confirmed: asyncio.Future[None]) -> None:
            error = confirmed.exception()
            if error is None and partition in self.replicas:
                self.simulation.checkers.read_served(self, partition, least)
            elif isinstance(error, IsthmusError):
                self.simulation.counts[f"read_refused_{error.reason}"] += 1

        with self.loop.entered():
            self.runtime.committed(place).add_done_callback(served)


class Runtime:
    """The part of `repl.runtime.runtime` that the coordinator uses."""

    def __init__(self, process: QueueProcess) -> None:
        self._process = process
        self.node = process.node.name
        self.cluster_uuid = ORIGIN
        self.partitions = process.partitions
        self.store = process.rows
        self.time = process.time
        self.latency = process.latency
        self.listeners = process.listeners
        self.rounds = Rounds()
        self.confirmed: asyncio.Future[None] = process.loop.create_future()
        self.confirmed.set_result(None)
        self.soft_cursor = process.soft_cursor
        self.replog = self

    @staticmethod
    def grouped() -> contextlib.AbstractContextManager[None]:
        """The log's grouping: one write for all entries appended meanwhile; here each turn of the writer is one."""
        return contextlib.nullcontext()

    def append(self, place: Partition, entries: Sequence[Entry], _now_ms: int) -> IsthmusError | None:
        """As in the product's runtime."""
        process = self._process
        if not process.alive or process.stopping or place.id not in process.replicas:
            return NotReady("the node is stopping")
        effects = process._step(place.id, ev.Append(place.replica.epoch, tuple(entries)))
        refused = next((effect for effect in effects if type(effect) is fx.AppendRefused), None)
        if refused is not None:
            return place.refusal(refused.reason)
        for entry in entries:
            process.simulation.counts[f"appended_{EntryKind(entry.kind).name.lower()}"] += 1
            if entry.request_id:
                process.appended_ids.add(entry.request_id)
        return None

    def committed(self, place: Partition) -> asyncio.Future[None]:
        """As in the product's runtime."""
        process = self._process
        if place.replica.confirms_alone:
            return self.confirmed
        token, future = place.waiters.add_read()
        if process.alive and place.id in process.replicas:
            process.post(place.id, ev.ReadRequested(token))
        else:
            place.waiters.refuse_all_reads(place.refusal(NotReady.reason))
        return future

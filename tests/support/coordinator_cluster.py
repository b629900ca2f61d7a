"""Coordinators of several nodes, joined by links in memory, over one store that all of them read.

The store emulates perfect replication: the next leader has all entries that any node applied. Each node's runtime is a
stand-in that appends, applies and loses leadership on a test's command.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from isthmus.repl.coordinator.coordinator import Coordinator, CoordinatorSettings
from isthmus.repl.coordinator.write_batch import WriteLimits, never_unreplicated
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.errors import IsthmusError, NotReady, OutcomeUnknown
from isthmus.repl.model.keys import Key, key_hash, partition_index
from isthmus.repl.model.properties import NO_SETTINGS, PropertySource
from isthmus.repl.model.record import Incarnation, PartitionRecord
from isthmus.repl.model.vclock import PARTITION_BYTES, actor_of
from isthmus.repl.runtime.apply_listeners import ApplyListeners
from isthmus.repl.runtime.latency import ReplicationLatency
from isthmus.repl.runtime.rounds import Rounds
from isthmus.repl.runtime.unapplied import MemoryWindow, UnappliedBuffer
from isthmus.repl.runtime.waiters import Waiters
from isthmus.repl.store.port import PartitionStep, Store
from isthmus.repl.store.reaped_pushes import ReapedPushes
from tests.support.memory_links import as_handler, call_back
from tests.support.memory_log import MemoryLog
from tests.support.memory_store import MemoryStore

UUID = b"east-cluster-016"
OTHER = b"west-cluster-016"
PARTITIONS = 4
LIMITS = WriteLimits(object_bytes=1_000_000, sibling_count=5, entry_bytes=20_000_000)


@dataclass
class FakeReplica:
    """The attributes of a replica that a coordinator reads."""

    ready: bool = False
    epoch: int = 0
    leo: int = 0
    applied: int = 0
    reason: str = "idle: nothing was said"
    record: PartitionRecord | None = None
    high_watermark: int = 0
    about_to_lead: bool = False


@dataclass
class FakePartition:
    """One partition on one node."""

    id: int
    actor: bytes
    bucket_type: bytes = b"default"
    replica: FakeReplica = field(default_factory=FakeReplica)
    pending: list[Entry] = field(default_factory=list)
    unapplied: UnappliedBuffer = field(default_factory=lambda: UnappliedBuffer(0, 0, MemoryWindow(0)))
    waiters: Waiters = field(default_factory=Waiters)
    reaped_pushes: ReapedPushes = field(default_factory=ReapedPushes)
    overtaken_actor: bytes = b""
    replaced_clocks: dict[int, bytes] | None = None

    @property
    def actor_prefix(self) -> bytes:
        return self.actor[:PARTITION_BYTES]


class Clock:
    """A time source that does not advance."""

    def now_ms(self) -> int:
        return 1_000

    def wall_ms(self) -> int:
        return 1_700_000_000_000


class FakeRuntime:
    """The part of a runtime that a coordinator calls. With `hold` entries wait for `apply`; `refusal` refuses appends;
    `reads` holds committed reads back, `read_refusals` are raised by the next ones."""

    def __init__(self, node: str, store: Store) -> None:
        self.node = node
        self.cluster_uuid = UUID
        self.store = store
        self.replog = MemoryLog()
        self.time = Clock()
        self.latency = ReplicationLatency()
        self.listeners = ApplyListeners()
        self.rounds = Rounds()
        self.partitions = {p: FakePartition(p, actor_of(UUID, p)) for p in range(PARTITIONS)}
        self.hold = False
        self.refusal: IsthmusError | None = None
        self.reads: list[asyncio.Future[None]] | None = None
        self.read_refusals: list[IsthmusError] = []
        self.confirmed: list[int] = []
        self.appends: list[int] = []
        self.quarantined: list[int] = []

    def quarantine(self, place: FakePartition, _bug: Exception) -> None:
        """Leadership of the copy ends, as far as its coordinator sees."""
        self.quarantined.append(place.id)
        place.replica.ready = False

    def append(self, place: FakePartition, entries: Sequence[Entry], _now_ms: int) -> IsthmusError | None:
        if self.refusal is not None:
            return self.refusal
        self.appends.append(len(entries))
        place.pending += entries
        place.replica.leo = entries[-1].offset + 1
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.apply, place)
        return None

    def committed(self, place: FakePartition) -> asyncio.Future[None]:
        self.confirmed.append(place.id)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.read_refusals:
            future.set_exception(self.read_refusals.pop(0))
        elif self.reads is not None:
            self.reads.append(future)
        else:
            future.set_result(None)
        return future

    def apply(self, place: FakePartition) -> None:
        """Commit everything pending: apply it, answer its callers, notify listeners."""
        if not place.pending:
            return
        entries, place.pending = place.pending, []
        self.store.write([PartitionStep(place.id, entries)])
        place.replica.applied = end = entries[-1].offset + 1
        place.unapplied.applied(entries, read_back=True)
        place.waiters.applied(end)
        self.listeners.applied([(place.id, entries)])

    def lead(self, partition: int, epoch: int) -> None:
        """Begin to lead: a barrier is appended and applied."""
        place = self.partitions[partition]
        offset = self.store.applied(partition).offset
        barrier = make_entry(EntryKind.BARRIER, epoch, offset, request_id=b"", origin=UUID, time_ms=0)
        self.store.write([PartitionStep(partition, [barrier])])
        place.replica = FakeReplica(True, epoch, offset + 1, offset + 1, "leading: all is well")
        self.listeners.leadership(partition, True, offset + 1)

    def step_down(self, partition: int) -> None:
        """Cease to lead; pending entries are dropped, and their callers get an unknown outcome."""
        place = self.partitions[partition]
        place.replica.ready = False
        place.replica.reason = "idle: stepped down"
        place.waiters.fail_above(0, OutcomeUnknown("leadership ended"))
        place.pending.clear()
        place.unapplied.clear_pending_rows()
        self.listeners.leadership(partition, False, place.replica.applied)


class FakeNetwork:
    """The links of all nodes. `down`: unreachable nodes; `breaking`: connections to these nodes break after the request
    has arrived, before (`lost`) or after it was carried out."""

    def __init__(self) -> None:
        self.handlers: dict[str, dict[str, Callable[[str, bytes], Awaitable[bytes]]]] = {}
        self.requests: list[tuple[str, str, str, int]] = []
        self.down: set[str] = set()
        self.breaking: set[str] = set()
        self.lost: set[str] = set()

    def of(self, node: str) -> Any:
        """The links as `node` has them."""
        return _LinksOf(self, node)


class _LinksOf:
    def __init__(self, wire: FakeNetwork, node: str) -> None:
        self._wire = wire
        self._node = node
        self._calls: set[asyncio.Task[bytes]] = set()

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        wire = self._wire
        assert node != self._node
        assert timeout_ms > 0
        if node in wire.down:
            raise NotReady(f"no connection to {node}")
        wire.requests.append((self._node, node, method, len(body)))
        await asyncio.sleep(0)
        if node in wire.lost:
            raise OutcomeUnknown("the connection broke")
        answer = await wire.handlers[node][method](self._node, body)
        if node in wire.breaking:
            raise OutcomeUnknown("the connection broke")
        return answer

    def send_request(
        self, node: str, method: str, body: bytes, timeout_ms: int, answered: Callable[[bytes | IsthmusError], None]
    ) -> None:
        if node in self._wire.down:
            raise NotReady(f"no connection to {node}")
        call_back(self._calls, self.request(node, method, body, timeout_ms), answered)


@dataclass
class Cluster:
    """A test's entry point: nodes by name, each with its stand-in and coordinator."""

    store: Store
    wire: FakeNetwork
    runtimes: dict[str, FakeRuntime]
    coordinators: dict[str, Coordinator]
    leaders: dict[int, str | None]
    epoch: int = 1

    def records(self) -> dict[int, PartitionRecord]:
        """The metastore's records."""
        return {
            p: PartitionRecord(
                p, "default", p, PARTITIONS, tuple(self.runtimes), self.epoch,
                leader=None if node is None else Incarnation(node, 1),
            )
            for p, node in self.leaders.items()
        }  # fmt: skip

    def publish_records(self, *nodes: str) -> None:
        """Publish the records to these nodes (to all when none is named)."""
        for node in nodes or self.coordinators:
            self.coordinators[node].learn_records(self.records())

    def move(self, partition: int, node: str | None, *, tell: bool = True) -> None:
        """End leadership of a partition, and let `node` lead it."""
        old = self.leaders[partition]
        if old is not None:
            self.runtimes[old].step_down(partition)
        self.leaders[partition] = node
        if node is not None:
            self.epoch += 1
            self.runtimes[node].lead(partition, self.epoch)
        if tell:
            self.publish_records()


def handlers_of(coordinator: Coordinator) -> dict[str, Callable[[str, bytes], Awaitable[bytes]]]:
    """All handlers of requests from other nodes, by method."""
    direct = coordinator.direct_handlers().items()
    return {**coordinator.request_handlers(), **{method: as_handler(handler) for method, handler in direct}}


@asynccontextmanager
async def cluster(
    leaders: Sequence[str | None] = ("n1", "n2", "n1", "n2"),
    *,
    nodes: Sequence[str] = ("n1", "n2"),
    window: int = 1_000,
    request_timeout_ms: int = 5_000,
    read_isolation: str = "committed",
    store: Store | None = None,
    properties: PropertySource = NO_SETTINGS,
) -> AsyncIterator[Cluster]:
    """A cluster whose partition N is led by `leaders[N]`."""
    store, wire = store or MemoryStore(request_window_offsets=window), FakeNetwork()
    with ThreadPoolExecutor(1) as pool:
        runtimes = {node: FakeRuntime(node, store) for node in nodes}
        coordinators: dict[str, Coordinator] = {}
        for node, runtime in runtimes.items():
            coordinators[node] = Coordinator(
                runtime,  # type: ignore[arg-type]
                CoordinatorSettings(LIMITS, 100, request_timeout_ms, read_isolation),
                links=wire.of(node),
                read_pool=pool,
                properties=properties,
                unreplicated=never_unreplicated,
                on_ahead=lambda _partition, _counter: False,
            )
            wire.handlers[node] = handlers_of(coordinators[node])
        made = Cluster(store, wire, runtimes, coordinators, dict(enumerate(leaders)))
        for partition, node in made.leaders.items():
            if node is not None:
                runtimes[node].lead(partition, store.applied(partition).epoch + 1)
        made.publish_records()
        yield made


def keys_of(partition: int, count: int, bucket: bytes = b"b") -> list[Key]:
    """The first `count` keys that lie in a partition."""
    found: list[Key] = []
    number = 0
    while len(found) < count:
        name = b"k%d" % number
        if partition_index(key_hash(bucket, name), PARTITIONS) == partition:
            found.append(Key(b"default", bucket, name))
        number += 1
    return found


def key_of(partition: int) -> Key:
    """A key that lies in a partition."""
    return keys_of(partition, 1)[0]

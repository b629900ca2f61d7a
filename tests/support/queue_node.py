"""A cluster of one node around its source queues: memory store, memory metastore, a write path of two lines.

Its time is the event loop's: tests that wait belong into virtual time (`tests.support.virtual_time`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, Self

from isthmus.config.settings import QueueSettings
from isthmus.queues.admin import QueueActs
from isthmus.queues.leases import Session
from isthmus.queues.queue_table import QueueTable
from isthmus.queues.service import QueuePorts, QueueService
from isthmus.queues.sink_shares import KeyRange, Share
from isthmus.queues.wire import NO_PROPERTIES, BatchAck, FetchReply, FetchRequest
from isthmus.repl.model import vclock
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.model.requests import Isolation
from isthmus.repl.model.this_node import ThisNode
from isthmus.repl.property_digests import ScopeDigests
from isthmus.repl.runtime.apply_listeners import ApplyListeners
from isthmus.repl.store.port import PartitionStep
from tests.support.cluster_facts import FakeClusterFacts
from tests.support.damage_reports import DamageReports
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.memory_store import MemoryStore
from tests.support.queue_source import OURS, SINK, EntryFactory, FakeStore
from tests.support.virtual_time import LoopTime
from tests.support.waiting import PATIENCE_S, eventually

PARTITIONS = (3, 8)


class QueueNode:
    """The queues of one node. `start` starts them and leads all partitions; `crash` drops the state in memory.

    As a context manager: started, and closed at the end.
    """

    def __init__(self, *settings: QueueSettings, ensemble: MemoryEnsemble | None = None, node: str = "e1") -> None:
        self.settings = settings or (QueueSettings("q"),)
        self.node = node
        self.clock = LoopTime()
        self.fake_store = FakeStore()
        self.factory = EntryFactory(self.fake_store)
        self.store = MemoryStore()
        self.metastore = MemoryMetastore(ensemble)
        self.damaged = DamageReports()
        self.refusals: list[IsthmusError] = []
        """Errors that the next CURSOR entries meet, one each."""
        self.soft_writes = 0
        self.lineages: dict[int, int] = {}
        """Partition -> lineage of its record as this node has read it, where that is not 0."""
        self.pool = ThreadPoolExecutor(2)
        self.table: QueueTable
        self.queues: QueueService
        self._started = False
        self.enabled = True
        self.types = dict.fromkeys(PARTITIONS, b"default")
        """Partition -> its bucket type."""
        self.facts = FakeClusterFacts(
            key_ranges={partition: KeyRange(position, len(PARTITIONS)) for position, partition in enumerate(PARTITIONS)}
        )

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, *, lead: bool = True) -> None:
        if not self._started:
            await self.metastore.start(lambda state: None)
            self._started = True
        self.facts.partitions = self.types
        self.table = QueueTable(self.metastore, self.settings)
        self.queues = QueueService(
            self.table,
            ThisNode(self.node, "east", OURS),
            QueuePorts(
                store=self.store,
                changes=ApplyListeners(),
                cursors=self,
                kv=self,  # type: ignore[arg-type]
                metastore=self.metastore,
                cluster=self.facts,
                damage_listener=self.damaged,
                time=self.clock,
                read_pool=self.pool,
            ),
            traces=None,
            enabled=self.enabled,
        )
        self.acts = QueueActs(self.queues, self.store, self.pool)
        await self.queues.start()
        if lead:
            for partition in PARTITIONS:
                self.lead(partition)
            await self.eventually(lambda: all(len(q.machine.windows) == len(PARTITIONS) for q in self.served()))

    def served(self) -> list:  # type: ignore[type-arg]
        return list(self.queues._queues.values())

    def lead(self, partition: int) -> None:
        self.queues.leadership(partition, True, self.fake_store.ends.get(partition, 0))

    async def crash(self) -> None:
        """The process dies: nothing more is saved."""
        self.queues._running = False
        await self.queues.stop()

    async def close(self) -> None:
        await self.queues.stop()
        self.pool.shutdown()

    # ------------------------------------------------------------------ the write path

    def apply(self, partition: int, *entries: Entry) -> None:
        """Make and store `entries` one after the other, then notify the queue."""
        self.store.write([PartitionStep(partition, entries)])
        self.queues.applied([AppliedEntries(partition, entries, True)])

    def put(
        self,
        *keys: bytes,
        partition: int = PARTITIONS[0],
        origin: bytes = OURS,
        size: int = 20,
        seen: vclock.Clock = (),
    ) -> None:
        entries = []
        for key in keys:
            entry = self.factory.data(partition, key, origin=origin, size=size, time_ms=self.clock.wall_ms(), seen=seen)
            self.fake_store.put(partition, entry)
            entries.append(entry)
        self.apply(partition, *entries)

    async def write_cursor(self, partition: int, queue: bytes, payload: bytes) -> int:
        await asyncio.sleep(0.001)
        if self.refusals:
            raise self.refusals.pop()
        entry = self.factory.cursor(partition, queue, payload)
        self.fake_store.put(partition, entry)
        self.apply(partition, entry)
        return entry.offset

    async def get_batch(
        self, keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, *, waits: bool = True
    ) -> list[bytes | IsthmusError | None]:
        return [
            next(
                (
                    self.store.object(p, key.bucket, key.key)
                    for p in PARTITIONS
                    if self.store.object(p, key.bucket, key.key)
                ),
                None,
            )
            for key in keys
        ]

    async def get(self, key: Key) -> bytes | None:
        (found,) = await self.get_batch([key], None, 1)
        assert not isinstance(found, IsthmusError)
        return found

    def soft_cursor(self, partition: int, queue: bytes, payload: bytes) -> None:
        self.soft_writes += 1
        self.store.write([PartitionStep(partition, (), {queue: payload})])

    def lineage(self, partition: int) -> int:
        return self.lineages.get(partition, 0)

    # ------------------------------------------------------------------ the sink's part

    async def eventually(self, condition: object, seconds: float = PATIENCE_S) -> None:
        await eventually(condition, timeout_s=seconds)  # type: ignore[arg-type]

    async def fetch(
        self,
        *,
        acks: Sequence[BatchAck] = (),
        cluster: bytes = SINK,
        link: int = 0,
        holding: tuple[bytes, ...] | None = None,
        count: int = 512,
        size: int = 4_000_000,
        wait_ms: int = 2_000,
        queue: str = "q",
        types: frozenset[bytes] | None = None,
        node: str = "w1",
        properties: Mapping[bytes, bytes] = NO_PROPERTIES,
        scopes: ScopeDigests | None = None,
        share: Share | None = None,
    ) -> FetchReply:
        session = Session(cluster, node, b"incarnat", link)
        request = FetchRequest(
            session, "west", tuple(acks), holding, count, size, wait_ms, "", properties, types, scopes, share
        )
        return await self.queues.fetch(queue, request)

    async def drain(self, **how: object) -> list[bytes]:
        """Keys in the order of arrival, all acknowledged, until a short poll stays empty."""
        got: list[bytes] = []
        acks: list[BatchAck] = []
        while True:
            reply = await self.fetch(acks=acks, wait_ms=50, **how)  # type: ignore[arg-type]
            acks = []
            unread = self.queues.named(str(how.get("queue", "q"))).machine.incomplete_windows()
            if not reply.items and all(window.held_back for window in unread):
                return got
            if reply.items:
                got += [item[5] for item in reply.items]
                acks = [BatchAck(reply.batch, reply.owner_version)]


@asynccontextmanager
async def audited_node(*settings: QueueSettings, enabled: bool = True) -> AsyncIterator[QueueNode]:
    """A started node; at the end its ledgers must account for every reference."""
    queue_node = QueueNode(*settings)
    queue_node.enabled = enabled
    async with queue_node:
        yield queue_node
        for queue in queue_node.served():
            ledger = await queue_node.acts.ledger(queue.settings.name)
            assert ledger["closes"] in (True, None), ledger
            assert not ledger["lost"], ledger
            assert ledger["closes"] is None or adds_up(ledger), ledger


def adds_up(ledger: dict[str, Any]) -> bool:
    """Whether the displayed numbers add up as docs/replication.md states."""
    went = ("acknowledged", "collapsed", "collapsed_unseen", "vanished", "given_up", "handed_on")
    left = ledger["waiting"] + ledger["in_flight"]
    return bool(ledger["found"] + ledger["eligible"] == sum(ledger[word] for word in went) + left)

"""Some nodes' controllers on one metastore in memory, with replicas that promote themselves on nomination."""

from __future__ import annotations

import asyncio
import struct
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import msgpack

from isthmus.repl.controller.bucket_types import DefaultType
from isthmus.repl.controller.controller import Controller, OwnNode
from isthmus.repl.controller.dynamic_options import OptionSettings
from isthmus.repl.controller.inbox import ControllerInbox, PeerWatch, WakeUp
from isthmus.repl.controller.leader_balancer import BalanceOptions, LeaderBalancer
from isthmus.repl.controller.node_loads import METHOD as LOADS
from isthmus.repl.controller.promotions import Promotions
from isthmus.repl.controller.suspicion import Suspicions
from isthmus.repl.isr import effects as fx
from isthmus.repl.model.errors import BadInput, NotReady
from isthmus.repl.model.record import PartitionRecord, PartitionStatus, Registration
from isthmus.repl.runtime.handover import METHOD as HAND_OVER
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.virtual_time import LoopTime
from tests.support.waiting import eventually as eventually

NO_BALANCING = BalanceOptions(automatic=False)


class FakeNode:
    """A node without data: it registers, runs a controller, and promotes itself when it is nominated."""

    def __init__(self, cluster: Cluster, number: int, rack: str) -> None:
        self.cluster = cluster
        self.name = f"n{number}"
        self.number = number
        self.rack = rack
        self.metastore = MemoryMetastore(cluster.ensemble)
        self.session_id = 0
        self.leo: dict[int, int] = {}
        self.mute = False
        """Does not promote itself."""
        self.deaf = False
        """A node that answers no request."""
        self.undialled = False
        """A node that nobody can dial, but that dials the others."""
        self.busy = 0.0
        """Which share of a core its event loop takes."""
        self.earlier = False
        """A program of a version that knows no loads."""
        self.unwilling = False
        """Refuses to hand over."""
        self.handed_over: list[tuple[int, str]] = []
        self.seen: list[str] = []
        self.registrations: Mapping[str, Registration] = {}
        self.announced: set[tuple[int, int]] = set()
        wake_up = WakeUp()
        self.peers = PeerWatch(self.name, LoopTime(), wake_up, Suspicions(self.name))
        promotions = Promotions(node=self.name, links=self, on_received=wake_up.decide)
        self.inbox = ControllerInbox(wake_up, self.peers, promotions)
        self.balancer = LeaderBalancer(
            node=self.name, links=self, own=self, options=cluster.balance, wake=self.inbox.wake
        )
        self.balancer._loads._own.share = lambda: self.busy  # type: ignore[method-assign]
        self.controller = Controller(
            self.metastore,
            OwnNode(self.name, self, self, self),
            self.inbox,
            time=LoopTime(),
            default_type=cluster.default,
            observer=self,
            balancer=self.balancer,
        )

    registered = True
    """See OwnRegistration."""

    def position_of(self, partition: int) -> tuple[int, int] | None:
        """See LocalPositions."""
        return (1, self.leo.get(partition, 0))

    async def start(self) -> None:
        """Register and begin."""
        await self.metastore.start(lambda _state: None)
        await self.register()
        for other in self.cluster.living:
            if other is not self:
                other.peers.link_changed(self.name, True)
                self.peers.link_changed(other.name, True)
        self.controller.start()

    async def register(self, *, active: bool = True) -> None:
        """Register, in the session there is."""
        self.session_id = await self.metastore.register(
            Registration(self.name, 0, active, spare_log_id=50 + self.number, id=self.number, rack=self.rack)
        )

    async def die(self) -> None:
        """The process ends and its session with it; no other node is notified."""
        self.deaf = True
        for other in self.cluster.living:
            other.peers.link_changed(self.name, False)
        await self.controller.stop()
        await self.metastore.stop()

    def dialled_nodes(self) -> list[str]:
        """See ControllerLinks."""
        return [other.name for other in self.cluster.living if other is not self and not other.undialled]

    def dialled_by(self) -> list[str]:
        """See ControllerLinks."""
        return [] if self.undialled or self.deaf else [other.name for other in self.cluster.living if other is not self]

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """Send a request as the links do: to another node, or raise NotReady."""
        assert node != self.name, "a message to oneself never occurs"
        self.cluster.requests[self.name, node, method] += 1
        await asyncio.sleep(0)
        other = self.cluster.nodes.get(node)
        if other is None or other.deaf:
            raise NotReady(f"no connection to {node}")
        if method == HAND_OVER:
            return await other.answer(self.name, body)
        if method == LOADS:
            if other.earlier:
                raise BadInput(f"{method} is not known")
            return struct.pack("<d", other.busy)
        return await other.controller.request_handlers()[method](self.name, body)

    async def answer(self, node: str, body: bytes) -> bytes:
        """Hand over as a drained leader does: have this node removed from the record, in favour of the target."""
        partition, epoch, target, _timeout_ms = msgpack.unpackb(body)
        if self.unwilling:
            raise NotReady("it will not")
        record = (await self.metastore.records())[partition]
        assert record.epoch == epoch
        assert record.leader is not None
        assert record.leader.node == self.name
        assert not record.elr
        self.handed_over.append((partition, target))
        gone = replace(record, status=PartitionStatus.ELECTION, leader=None, preferred=target, reason="hands over")
        await self.metastore.write_record(gone)
        return b""

    def on_registrations(self, registrations: Mapping[str, Registration]) -> None:
        """A reading."""
        self.registrations = registrations

    def on_options(self, options: OptionSettings) -> None:
        """See ClusterObserver."""

    def on_records(self, records: Mapping[int, PartitionRecord], _unread: Collection[int]) -> None:
        """Read the records: each nominee promotes itself, once per epoch."""
        for partition, record in records.items():
            who = record.candidate
            if self.mute or who is None or (who.node, who.session_id) != (self.name, self.session_id):
                continue
            if (partition, record.epoch) not in self.announced:
                self.announced.add((partition, record.epoch))
                effect = fx.Promoted(record.epoch, self.name, self.session_id, 50 + self.number)
                asyncio.get_running_loop().call_soon(self.inbox.promoted, partition, effect)


class Cluster:
    """Nodes on one ensemble."""

    def __init__(self, default: DefaultType, balance: BalanceOptions = NO_BALANCING) -> None:
        self.default = default
        self.balance = balance
        self.ensemble = MemoryEnsemble()
        self.nodes: dict[str, FakeNode] = {}
        self.requests: Counter[tuple[str, str, str]] = Counter()

    def node(self, number: int, rack: str = "") -> FakeNode:
        """A node that is not started yet."""
        made = self.nodes[f"n{number}"] = FakeNode(self, number, rack)
        return made

    async def add(self, *numbers: int) -> list[FakeNode]:
        """Nodes that are started, one after the other."""
        made = [self.node(number) for number in numbers]
        for node in made:
            await node.start()
        return made

    @property
    def living(self) -> list[FakeNode]:
        """The nodes that have not died."""
        return [node for node in self.nodes.values() if not node.deaf]

    @property
    def records(self) -> Mapping[int, PartitionRecord]:
        """The records as a live node read them last."""
        return self.living[0].controller.records

    def decides(self) -> list[str]:
        """The nodes that decide."""
        return [node.name for node in self.living if node.controller.decides]

    def online(self) -> bool:
        """True when there are partitions, all are online, and every living node has read so."""
        return all(
            node.controller.records
            and all(r.status is PartitionStatus.ONLINE for r in node.controller.records.values())
            for node in self.living
        )

    def leads(self) -> Counter[str]:
        """How many partitions each node leads."""
        return Counter(record.leader.node for record in self.records.values() if record.leader is not None)

    async def stop(self) -> None:
        """Stop all nodes."""
        for node in self.living:
            await node.die()


@asynccontextmanager
async def running(
    default: DefaultType, *numbers: int, balance: BalanceOptions = NO_BALANCING
) -> AsyncIterator[Cluster]:
    """A cluster of the nodes `numbers`, started one after the other."""
    cluster = Cluster(default, balance)
    try:
        await cluster.add(*numbers)
        yield cluster
    finally:
        await cluster.stop()

"""Nodes of one cluster in one process: runtime, controller and coordinator on real files, with a metastore and
connections in memory."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from isthmus.repl.clock import SystemTime
from isthmus.repl.controller.bucket_types import DefaultType
from isthmus.repl.controller.controller import Controller, OwnNode
from isthmus.repl.controller.dynamic_options import OptionSettings
from isthmus.repl.controller.inbox import ControllerInbox, PeerWatch, WakeUp
from isthmus.repl.controller.leader_balance_api import LeaderBalanceApi
from isthmus.repl.controller.leader_balancer import BalanceOptions, LeaderBalancer
from isthmus.repl.controller.promotions import Promotions
from isthmus.repl.controller.suspicion import Suspicions
from isthmus.repl.coordinator.coordinator import Coordinator, CoordinatorSettings
from isthmus.repl.coordinator.write_batch import WriteLimits, never_unreplicated
from isthmus.repl.isr.replica_state import ReplicaOptions
from isthmus.repl.model.errors import BadInput
from isthmus.repl.model.properties import NO_SETTINGS
from isthmus.repl.model.record import PartitionRecord, Registration
from isthmus.repl.replog.files import SystemFiles
from isthmus.repl.replog.log import FileLog
from isthmus.repl.runtime.handover import LeadershipTransfer
from isthmus.repl.runtime.node_data import NodeData, RuntimeSettings
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.runtime.registration import Registrar, verify_local_replicas
from isthmus.repl.runtime.runtime import Runtime, RuntimeListeners
from isthmus.repl.storage.identity import NodeIdentity
from isthmus.repl.store.leveldb import LevelStore
from tests.support.controller_cluster import NO_BALANCING
from tests.support.coordinator_cluster import handlers_of
from tests.support.damage_reports import DamageReports
from tests.support.memory_links import MemoryLinks, MemoryNetwork
from tests.support.memory_metastore import MemoryEnsemble, MemoryMetastore
from tests.support.waiting import PATIENCE_S
from tests.support.waiting import eventually as eventually

UUID = b"east-cluster-016"
PARTITIONS = 4


class FullableFiles(SystemFiles):
    """Real files on a disk whose free space and inodes a test can set, and which refuses writes with the error `refuse`
    when half of one is done."""

    free: int | None = None
    inodes: int | None = None
    refuse = 0
    mounted_read_only = False

    def pwritev(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if self.refuse:
            data = b"".join(buffers)
            super().pwritev(fd, [data[: len(data) // 2]], position)
            raise OSError(self.refuse, os.strerror(self.refuse))
        super().pwritev(fd, buffers, position)

    def pwritev_synced(self, fd: int, buffers: Sequence[bytes], position: int) -> None:
        if self.refuse:
            self.pwritev(fd, buffers, position)
        super().pwritev_synced(fd, buffers, position)

    def free_bytes(self, directory: Path) -> int:
        return super().free_bytes(directory) if self.free is None else self.free

    def free_inodes(self, directory: Path) -> int | None:
        return super().free_inodes(directory) if self.inodes is None else self.inodes

    def read_only(self, directory: Path) -> bool:
        return self.mounted_read_only


@dataclass
class Node:
    """A running node."""

    node: str
    runtime: Runtime
    coordinator: Coordinator
    controller: Controller
    metastore: MemoryMetastore
    identity: NodeIdentity
    registrar: Registrar
    links: MemoryLinks
    disk: FullableFiles
    failures: list[Exception]
    damaged: DamageReports
    leader_balance: LeaderBalanceApi
    options_listeners: list[Callable[[OptionSettings], None]]

    def partition(self, partition: int = 0) -> Partition:
        return self.runtime.partitions[partition]

    @property
    def ready(self) -> bool:
        """True when all replicas that the records assign to this node serve."""
        records = self.controller.records
        mine = [p for p, record in records.items() if self.node in record.replicas]
        partitions = self.runtime.partitions
        return bool(records) and all(p in partitions and partitions[p].serves for p in mine)


@asynccontextmanager
async def run_node(
    directory: Path,
    ensemble: MemoryEnsemble,
    *,
    node: str = "n1",
    number: int = 1,
    network: MemoryNetwork | None = None,
    default_type: DefaultType | None = None,
    boot_id: str = "boot-1",
    durability: str = "fsync",
    stop: bool = True,
    wait: bool = True,
    options: ReplicaOptions | None = None,
    window_bytes: int = 64_000_000,
    log_size_bytes: int = 100_000_000,
    log_file_bytes: int = 10_000_000,
    checkpoint_interval_ms: int = 100_000,
    removed_grace_ms: int = 600_000,
    balance: BalanceOptions = NO_BALANCING,
    takes_streams: bool = True,
) -> AsyncIterator[Node]:
    """A serving node on `directory`. With `stop` False it is left as a kill would: nothing is handed over. With
    `takes_streams` False it is of a version without replication streams."""
    metastore = MemoryMetastore(ensemble)
    await metastore.start(lambda _state: None)
    identity = NodeIdentity.open(directory)
    identity.check_node(node)
    if identity.is_new:
        identity.adopt(UUID, node, boot_id, {})
    store = LevelStore.open(
        directory / "store",
        cluster_uuid=UUID,
        write_buffer_bytes=1_000_000,
        block_cache_bytes=1_000_000,
        boot_id=boot_id,
    )
    disk = FullableFiles()
    replog = FileLog.open(
        directory / "log",
        cluster_uuid=UUID,
        durability=durability,
        size_limit_bytes=log_size_bytes,
        file_bytes=log_file_bytes,
        batch_bytes=1_000_000,
        known_durable={**dict.fromkeys(identity.partitions(), 0), **store.applied_offsets()},
        io=disk,
    )
    records = await verify_local_replicas(
        metastore,
        identity,
        replog.recovered(),
        store,
        node=node,
        cluster_uuid=UUID,
        boot_id=boot_id,
        durability=durability,
    )
    failures: list[Exception] = []
    damaged = DamageReports()
    handlers: dict[str, Callable[[str, bytes], Awaitable[bytes]]] = {}

    async def answer(sender: str, method: str, body: bytes) -> bytes:
        if method not in handlers:
            raise BadInput(f"no method {method}")
        return await handlers[method](sender, body)

    wake_up = WakeUp()
    peers = PeerWatch(node, SystemTime(), wake_up, Suspicions(node))
    links = MemoryLinks(
        network or MemoryNetwork(),
        node,
        observer=peers,
        on_request=answer,
        takes_streams=takes_streams,
    )
    inbox = ControllerInbox(wake_up, peers, Promotions(node=node, links=links, on_received=wake_up.decide))
    template = Registration(node, 0, True, cluster_address=f"{node}:1", id=number)
    registrar = Registrar(metastore, identity, template, links)
    runtime = Runtime(
        RuntimeSettings(
            node,
            UUID,
            window_bytes,
            3_000_000,
            checkpoint_interval_ms,
            removed_grace_ms,
            lambda _bucket_type: options or ReplicaOptions(),
        ),
        NodeData(identity, store, replog),
        RuntimeListeners(inbox, damaged, failures.append),
        metastore=metastore,
        registrar=registrar,
        links=links,
        time=SystemTime(),
    )
    pool = ThreadPoolExecutor(1)
    coordinator = Coordinator(
        runtime,
        CoordinatorSettings(WriteLimits(1_000_000, 5, 3_000_000), 100, 10_000, "committed"),
        links=links,
        read_pool=pool,
        properties=NO_SETTINGS,
        unreplicated=never_unreplicated,
        on_ahead=lambda _partition, _counter: False,
    )

    options_listeners: list[Callable[[OptionSettings], None]] = []

    class Observer:
        """Passes on what the controller reads, as a node does."""

        def on_options(self, options: OptionSettings) -> None:
            for each in options_listeners:
                each(options)

        def on_records(self, records: Mapping[int, PartitionRecord], unread: Collection[int]) -> None:
            runtime.records_seen(records)
            coordinator.learn_records(records, unread)

        def on_registrations(self, registrations: Mapping[str, Registration]) -> None:
            runtime.registrations_seen(registrations)
            links.set_nodes({r.node: r.cluster_address for r in registrations.values() if r.node != node})

    handing_over = LeadershipTransfer(runtime)
    balancer = LeaderBalancer(node=node, links=links, own=handing_over, options=balance, wake=inbox.wake)
    controller = Controller(
        metastore,
        OwnNode(node, links, runtime, SimpleNamespace(registered=True)),
        inbox,
        time=SystemTime(),
        default_type=default_type or DefaultType(PARTITIONS, 1, settle_ms=0),
        observer=Observer(),
        balancer=balancer,
    )
    leader_balance = LeaderBalanceApi(controller, runtime, balancer, handing_over)
    handlers |= {
        **handlers_of(coordinator),
        **controller.request_handlers(),
        **leader_balance.request_handlers(),
    }
    for record in records.values():
        if identity.partition(record.partition) is not None:
            runtime.attach(record)
    runtime.start()
    links.start(runtime)
    await registrar.register()
    controller.start()
    member = Node(
        node,
        runtime,
        coordinator,
        controller,
        metastore,
        identity,
        registrar,
        links,
        disk,
        failures,
        damaged,
        leader_balance,
        options_listeners,
    )
    try:
        if wait:
            await eventually(lambda: member.ready)
        yield member
    finally:
        if stop:
            await controller.resign()
            await runtime.resign(10.0)
            await controller.stop()
            links._network.unplug(node)
            assert await runtime.stop(10.0)
        else:
            await _abandon(member)
        await metastore.stop()
        identity.close(clean=stop)
        pool.shutdown()


async def _abandon(member: Node) -> None:
    """End a node as a kill would: it sends and receives nothing more, and written data stays."""
    bugs = [p.reason for p in member.runtime.partitions.values() if "bug:" in p.reason]
    assert not bugs, bugs
    runtime, storage = member.runtime, member.runtime._storage
    member.links._network.unplug(member.node)
    await member.controller.stop()
    runtime._closed = True
    for part in (runtime._metastore_effects, runtime._replicas):
        part.cancel()  # type: ignore[attr-defined]
    runtime._sender.stop()
    for using_the_store in (runtime._transfer_sender, runtime._transfer_receiver, runtime._replicas):
        await runtime._loop.run_in_executor(None, using_the_store.stop)  # type: ignore[attr-defined]
    runtime._ticks.stop()
    if runtime._second is not None:
        runtime._second.cancel()
    storage._checkpointer.stop(10.0)
    await eventually(lambda: storage.idle or bool(member.failures))
    storage._applier.stop(10.0)
    runtime.replog.close()
    runtime.store._db.close()  # type: ignore[attr-defined]


@dataclass
class Cluster:
    """A cluster: its running nodes by name, the connections between them, and the options of all nodes."""

    directory: Path
    default_type: DefaultType
    given: dict[str, object]
    ensemble: MemoryEnsemble = field(default_factory=MemoryEnsemble)
    network: MemoryNetwork = field(default_factory=MemoryNetwork)
    members: dict[str, Node] = field(default_factory=dict)
    _open: dict[str, AbstractAsyncContextManager[Node]] = field(default_factory=dict)

    async def open(self, node: str, **given: object) -> Node:
        """Start a node on its directory, which `kill` keeps."""
        entered = run_node(
            self.directory / node,
            self.ensemble,
            node=node,
            number=int(node[1:]),
            network=self.network,
            default_type=self.default_type,
            stop=False,
            wait=False,
            **{**self.given, **given},  # type: ignore[arg-type]
        )
        self.members[node] = await entered.__aenter__()
        self._open[node] = entered
        return self.members[node]

    async def kill(self, node: str) -> None:
        """End a node as a kill would, and its session."""
        del self.members[node]
        await self._open.pop(node).__aexit__(None, None, None)

    async def settled(self, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all replicas of running nodes serve."""
        await eventually(lambda: all(member.ready for member in self.members.values()), timeout_s=timeout_s)

    def leader(self, partition: int = 0) -> Node | None:
        """The node that leads and serves a partition."""
        return next(
            (
                member
                for member in self.members.values()
                if partition in member.runtime.partitions and member.partition(partition).replica.ready
            ),
            None,
        )

    async def led(self, partition: int = 0, timeout_s: float = PATIENCE_S) -> Node:
        """Wait for a serving leader."""
        found = await eventually(lambda: self.leader(partition), timeout_s=timeout_s)
        assert isinstance(found, Node)
        return found

    async def led_by_another(self, old: Node, partition: int = 0, timeout_s: float = PATIENCE_S) -> Node:
        """Wait until a node other than `old` leads and serves."""
        others = [member for member in self.members.values() if member is not old]
        await eventually(
            lambda: any(member.partition(partition).replica.ready for member in others), timeout_s=timeout_s
        )
        return next(member for member in others if member.partition(partition).replica.ready)

    def followers(self, partition: int = 0) -> list[Node]:
        """The nodes that follow a partition's leader."""
        return [member for member in self.members.values() if member.partition(partition).replica.following]

    async def level(self, partition: int = 0, timeout_s: float = PATIENCE_S) -> None:
        """Wait until all replicas of a partition are applied to the same end and in sync under their current log ids:
        the record may still have a replica's id from before it lost its log."""

        def same() -> bool:
            found = [member.partition(partition).replica for member in self.members.values()]
            record = next((r.record for r in found if r.ready), None)
            return (
                record is not None
                and len({(r.leo, r.applied) for r in found}) == 1
                and found[0].leo == found[0].applied
                and record.isr == {r.member for r in found}
            )

        await eventually(same, timeout_s=timeout_s)


@asynccontextmanager
async def run_cluster(
    directory: Path, nodes: int = 3, *, partitions: int = 1, factor: int = 3, min_isr: int = 2, **given: object
) -> AsyncIterator[Cluster]:
    """A cluster of several nodes, whose replicas all serve."""
    default_type = DefaultType(partitions, factor, min_isr, settle_ms=0 if nodes == factor else 100)
    cluster = Cluster(directory, default_type, given)
    try:
        for number in range(1, nodes + 1):
            await cluster.open(f"n{number}")
        await cluster.settled()
        yield cluster
    finally:
        for node in list(cluster.members):
            await cluster.kill(node)


@pytest.fixture
def start_node() -> Callable[..., AbstractAsyncContextManager[Node]]:
    """`async with start_node(directory, ensemble) as h: ...`"""
    return run_node


@pytest.fixture
def start_cluster() -> Callable[..., AbstractAsyncContextManager[Cluster]]:
    """`async with start_cluster(directory, nodes) as t: ...`"""
    return run_cluster

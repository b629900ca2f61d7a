"""What nodes and metastores of a world really hold, read from their objects between two events.

Oracles and the wait for quiet compare it with what must be, and with what operators are told. Nothing here changes
anything, waits, or goes through a disk: rows are read where the store's database has them in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from isthmus.node.services.container import NodeServices
from isthmus.queues.queue_server import QueueServer
from isthmus.repl.metastore.codecs import decode_record
from isthmus.repl.model.keys import Key
from isthmus.repl.model.record import PartitionRecord
from isthmus.repl.model.vclock import Clock, decode_clock
from isthmus.repl.runtime.partition import Partition
from isthmus.repl.store.rows import CHANGE_TAG, KEY_TAG, OBJECT_TAG, U32, split_tail

if TYPE_CHECKING:
    from tests.simulation.world.clusters import WorldCluster
    from tests.simulation.world.node import WorldNode
    from tests.simulation.world.world import World

ROOT = "/isthmus"
"""`metastore.root` of nodes whose file does not set it."""


def services_of(node: WorldNode) -> NodeServices | None:
    """The components of the node's process; None while there are none, and once its store is closed."""
    found = None if not node.running or node.node is None else node.node._services
    return None if found is None or found.store._db.closed else found


def running(cluster: WorldCluster) -> dict[str, NodeServices]:
    """Name -> components, of the nodes of a cluster that have them."""
    return {name: found for name, node in cluster.nodes.items() if (found := services_of(node)) is not None}


def uuid_of(cluster: WorldCluster) -> bytes:
    """The cluster's uuid, as a running node knows it; b"" while none runs."""
    return next((services.cluster_uuid for services in running(cluster).values()), b"")


# -- the metastore ---------------------------------------------------------------------------------------------------


def records_of(cluster: WorldCluster) -> dict[int, PartitionRecord]:
    """The records of all partitions, as the metastore has them now."""
    tree, path = cluster.ensemble.tree, f"{ROOT}/{cluster.name}/p"
    found = {}
    for name in tree.children(path) or ():
        read = tree.read(f"{path}/{name}")
        if read is not None and name.isdigit():
            found[int(name)] = _record(read[0], read[1].version)
    return found


@lru_cache(maxsize=1_000)
def _record(data: bytes, version: int) -> PartitionRecord:
    """Oracles read the same records many times."""
    return decode_record(data, version)


def registered(cluster: WorldCluster) -> frozenset[str]:
    """The nodes that are registered, as the metastore has it now."""
    return frozenset(cluster.ensemble.tree.children(f"{ROOT}/{cluster.name}/nodes") or ())


# -- replicas --------------------------------------------------------------------------------------------------------


class Led(NamedTuple):
    """A partition at the node that leads it and serves."""

    node: str
    services: NodeServices
    partition: Partition


def leaders_of(cluster: WorldCluster) -> dict[int, Led]:
    """Partition -> its leader, of those that serve. Two nodes may believe that they do: the higher epoch counts. One of
    an epoch before the record's is none, since another may have served since then."""
    found: dict[int, Led] = {}
    records = records_of(cluster)
    for name, services in running(cluster).items():
        for number, partition in services.runtime.partitions.items():
            record = records.get(number)
            if not partition.replica.ready or (record is not None and partition.replica.epoch < record.epoch):
                continue
            before = found.get(number)
            if before is None or before.partition.replica.epoch < partition.replica.epoch:
                found[number] = Led(name, services, partition)
    return found


# -- rows ------------------------------------------------------------------------------------------------------------


def rows_of(services: NodeServices) -> Any:
    """Name -> value of all rows of the node's store, a SortedDict."""
    return services.store._db._rows


def partition_rows(services: NodeServices, partition: int, tags: tuple[bytes, ...] = ()) -> dict[bytes, bytes]:
    """The rows of one partition that replicas must have in common: objects, keys, changes; by name."""
    rows = rows_of(services)
    found: dict[bytes, bytes] = {}
    for tag in tags or (CHANGE_TAG, KEY_TAG, OBJECT_TAG):
        start = tag + U32.pack(partition)
        names = rows.irange(start, tag + U32.pack(partition + 1), (True, False))
        found.update((name, rows[name]) for name in names)
    return found


def objects_in(services: NodeServices, partition: int) -> dict[bytes, bytes]:
    """Encoded bucket and key (`rows.bucket_head` + key) -> canonical object, of one partition."""
    rows, start = rows_of(services), OBJECT_TAG + U32.pack(partition)
    at = len(start)
    names = rows.irange(start, OBJECT_TAG + U32.pack(partition + 1), (True, False))
    return {name[at:]: rows[name] for name in names}


Contents = Mapping[bytes, Mapping[bytes, bytes]]
"""Bucket type -> encoded bucket and key -> canonical object."""


def contents_of(cluster: WorldCluster) -> dict[str, dict[bytes, bytes]]:
    """All objects of a cluster as its leaders have them: bucket type -> encoded bucket and key -> canonical object.
    Partitions without a leader are left out."""
    found: dict[str, dict[bytes, bytes]] = {}
    for number, led in sorted(leaders_of(cluster).items()):
        found.setdefault(led.partition.bucket_type.decode(), {}).update(objects_in(led.services, number))
    return found


def reaped_of(cluster: WorldCluster) -> dict[str, dict[tuple[bytes, bytes], bytes]]:
    """Bucket type -> (bucket, key) -> encoded clock of the last tombstone that was reaped, as far as it is
    remembered."""
    found: dict[str, dict[tuple[bytes, bytes], bytes]] = {}
    for number, led in leaders_of(cluster).items():
        found.setdefault(led.partition.bucket_type.decode(), {}).update(led.services.store.reaped_clocks(number))
    return found


class Raw(NamedTuple):
    """An object as far as it is compared: its clock and whether all its siblings are tombstones."""

    clock: Clock
    deleted: bool


def raw_object(data: bytes) -> Raw:
    """Decode a stored object, which our own code encoded."""
    _, clock, siblings = msgpack.unpackb(data, use_list=False)
    return Raw(decode_clock(clock), all(sibling[3] for sibling in siblings))


def siblings_of(data: bytes) -> tuple[tuple[Any, ...], ...]:
    """The siblings of a stored object: (actor, counter, then everything that makes its content)."""
    found: tuple[tuple[Any, ...], ...] = msgpack.unpackb(data, use_list=False)[2]
    return found


def named(bucket_type: str, tail: bytes) -> Key:
    """The key that a row's tail names."""
    return Key(bucket_type.encode(), *split_tail(tail))


def shown(key: Key) -> str:
    """A key in a sentence."""
    return "/".join(part.decode(errors="backslashreplace") for part in key)


# -- directions ------------------------------------------------------------------------------------------------------


class Direction(NamedTuple):
    """One cluster's full-sync with another: what its queue carries is to be there."""

    source: WorldCluster
    sink: WorldCluster
    peer: str
    queue: QueueServer
    bucket_types: frozenset[str]


def directions(world: World) -> Iterator[Direction]:
    """Every direction that some full-sync of a running node compares, once for each of its nodes' peers by name. Peers
    whose queue is gone, or belongs to another cluster than the one compared, are left out."""
    by_uuid = {uuid_of(cluster): cluster for cluster in world.clusters.values()}
    for source in world.clusters.values():
        seen = set()
        for services in running(source).values():
            machines = services.queues.machines()
            for name, peer in services.fullsync.scheduler.peers.items():
                settings = peer.settings
                sink = world.clusters.get(settings.cluster) or by_uuid.get(bytes.fromhex(peer.history.cluster))
                if name in seen or sink is None or sink is source or settings.queue not in machines:
                    continue
                queue = services.queues.named(settings.queue)
                owner = queue.stored.owner
                if owner is None or owner.cluster != uuid_of(sink):
                    continue
                seen.add(name)
                yield Direction(source, sink, name, queue, frozenset(peer.bucket_types))

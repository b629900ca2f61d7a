"""Riak's trees of a cluster of three nodes: at all times those of all its keys."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from isthmus.aae.exchange.cluster import Incomplete
from isthmus.aae.riak_trees.cluster import ClusterRiakTrees, UnknownNVal
from isthmus.aae.riak_trees.groups import TreeGroups
from isthmus.aae.riak_trees.local import LocalRiakTrees
from isthmus.aae.trees.tree_cache import TreeState
from isthmus.config.settings import RiakTreeSettings
from isthmus.node.services.fullsync_ports import NodeReplacedClocks, NodeReplicas
from isthmus.repl.coordinator.tombstone_writes import TombstoneWrites
from isthmus.repl.coordinator.write_batch import WriteLimits
from isthmus.repl.model.entry import decode_key_row
from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, Sibling, decode_object, encode_object
from isthmus.repl.model.properties import NO_SETTINGS
from isthmus.repl.model.requests import PushItem, WriteRequest
from isthmus.repl.model.vclock import Clock, decode_clock
from isthmus.repl.riak.tree_hash import leaf_hash, segment_id
from tests.support.fullsync_fakes import FakeMembers, FakeRpc
from tests.support.runtime_cluster import Cluster, Node
from tests.support.virtual_time import LoopTime
from tests.support.waiting import eventually

StartCluster = Callable[..., AbstractAsyncContextManager[Cluster]]

PARTITIONS = 4
GROUPS = TreeGroups([RiakTreeSettings(3, "default")])
WEST = b"west-cluster-016"
LIMITS = WriteLimits(1_000_000, 50, 3_000_000)


class OtherNodes(FakeMembers):
    """The other nodes of a cluster with PARTITIONS partitions."""

    def partitions(self, bucket_type: bytes) -> list[int]:
        """See Members."""
        return list(range(PARTITIONS))


class RiakCluster:
    """A cluster whose nodes keep Riak's trees, unless `without` names them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.trees: dict[str, LocalRiakTrees] = {}

    def attach(self, node: Node, groups: TreeGroups = GROUPS) -> None:
        """Let a node keep the trees."""
        runtime = node.runtime
        trees = LocalRiakTrees(
            groups,
            runtime.store,
            replicas=NodeReplicas(runtime, runtime.store),
            replaced=NodeReplacedClocks(runtime),
            changes=runtime.listeners,
            time=LoopTime(),
            rebuild_ms=0,
        )
        trees.start()
        self.trees[node.node] = trees
        for partition in runtime.partitions.values():
            if partition.replica.ready:  # a node of the product has the trees before it leads anything
                trees.leadership(partition.id, True, partition.replica.applied)

    async def kill(self, name: str) -> None:
        """End a node as a kill would."""
        trees = self.trees.pop(name)
        await trees.stop_builds()
        await trees.stop()
        await self.cluster.kill(name)

    async def restart(self, name: str) -> None:
        """Kill a node and start it again."""
        await self.kill(name)
        self.attach(await self.cluster.open(name))

    def asked(self, name: str) -> ClusterRiakTrees:
        """The trees as `name` answers for them."""

        async def request(node: str, method: str, body: bytes, _timeout_ms: int) -> bytes:
            return await self.trees[node].request_handlers()[method](name, body)

        members = OtherNodes([node for node in self.trees if node != name])
        types = frozenset({b"default"})
        return ClusterRiakTrees(
            GROUPS, self.trees[name], known_types=lambda: types, members=members, rpc=FakeRpc(request)
        )

    async def keys(self) -> dict[tuple[bytes, bytes], Clock]:
        """All keys with their clocks, as the leaders' stores have them, once everything is applied."""
        found = {}
        for partition in range(PARTITIONS):
            leader = await self.cluster.led(partition)
            replica = leader.partition(partition).replica
            await eventually(lambda replica=replica: replica.applied == replica.leo)
            for _, bucket, key, row in leader.runtime.store.key_rows(partition, 0, 1 << 20):
                found[bucket, key] = decode_clock(decode_key_row(row).clock)
        return found

    async def matches(self) -> int:
        """Check that every node answers with the tree of all keys; returns their number."""
        keys = await self.keys()
        leaves = np.zeros(1 << 20, np.uint32)
        for (bucket, key), clock in keys.items():
            leaves[segment_id(b"default", bucket, key) & 0xFFFFF] ^= leaf_hash(b"default", bucket, key, clock)
        branches = leaves.reshape(4096, 256)
        for name in self.trees:
            trees = self.asked(name)
            assert (await trees.root(3) == np.bitwise_xor.reduce(branches, axis=1)).all()
            changed = [0, 4095, *sorted({int(leaf) >> 8 for leaf in np.flatnonzero(leaves)})[:100]]
            assert (await trees.branches(3, changed) == branches[changed]).all()
        return len(keys)


@asynccontextmanager
async def started(start_cluster: StartCluster, directory: Path) -> AsyncIterator[RiakCluster]:
    async with start_cluster(directory, 3, partitions=PARTITIONS) as cluster:
        riak = RiakCluster(cluster)
        for node in cluster.members.values():
            riak.attach(node)
        try:
            yield riak
        finally:
            for name in list(riak.trees):
                await riak.kill(name)


class Load:
    """Random writes, deletes, pushes and reaps of some keys, by any node."""

    def __init__(self, riak: RiakCluster, chance: random.Random) -> None:
        self.riak = riak
        self.chance = chance
        self.counter = 0

    async def some(self, count: int) -> None:
        """So many acts; what a moving leadership refuses is left out."""
        for _ in range(count):
            try:
                await self._one()
            except IsthmusError:
                continue

    async def _one(self) -> None:
        chance = self.chance
        node = chance.choice(list(self.riak.cluster.members.values()))
        key = Key(b"default", b"b%d" % chance.randrange(3), b"k%d" % chance.randrange(60))
        stored = await node.coordinator.get(key)
        obj = None if stored is None else decode_object(stored)
        match chance.randrange(6):
            case 0 | 1:  # a sibling, unless the key is missing
                await self._write(node, key, Content(b"v", b"text/plain"), ())
            case 2:
                await self._write(node, key, Content(b"v", b"text/plain"), obj.clock if obj else ())
            case 3:
                await self._write(node, key, TOMBSTONE, obj.clock if obj else ())
            case 4:
                self.counter += 1
                actor = bytes([chance.randrange(2)]) * chance.choice((4, 8))
                seen = obj.clock if obj and chance.random() < 0.5 else ()
                entry = (actor, self.counter, chance.choice((1_700_000_000, 63_900_000_000)))
                clock = tuple(sorted([each for each in seen if each[0] != actor] + [entry]))
                sibling = Sibling(entry[:2], 1_700_000_000_000, chance.random() < 0.3, b"", b"")
                await node.coordinator.push([PushItem(key, WEST, encode_object(Object(clock, (sibling,))), False)])
            case 5:
                self._reap(key)

    async def _write(self, node: Node, key: Key, content: Content, context: Clock) -> None:
        await node.coordinator.write(WriteRequest(key, content, context, b"", 0, None))

    def _reap(self, key: Key) -> None:
        hash64 = key_hash(key.bucket, key.key)
        partition = (hash64 >> 44) * PARTITIONS >> 20
        leader = self.riak.cluster.leader(partition)
        if leader is None:
            return
        led = leader.partition(partition)
        writes = TombstoneWrites(leader.runtime, LIMITS, NO_SETTINGS)
        batch = writes.batch(led)
        current = batch.batch.current(hash64, key.bucket, key.key)
        if current is not None and current.pending is None and batch.reap(key, hash64, current.row.offset):
            writes.append(led, batch.batch)


@pytest.mark.parametrize("seed", range(2))
async def test_the_sum_over_the_leaders_is_the_tree_of_all_keys(
    start_cluster: StartCluster, tmp_path: Path, seed: int
) -> None:
    """Asked at any node, after writes, siblings, deletes, pushes and reaps; deleted keys count until they are reaped.
    So it is after leaderships moved because nodes ended, and after these have come back and lead again."""
    chance = random.Random(seed)
    async with started(start_cluster, tmp_path) as riak:
        load = Load(riak, chance)
        await load.some(300)
        assert await riak.matches() > 20
        for name in ("n2", "n1"):
            await riak.kill(name)
            await load.some(60)
            await riak.matches()
            riak.attach(await riak.cluster.open(name))
            await load.some(60)
            await riak.cluster.settled()
            await riak.matches()


async def test_a_partition_without_a_tree_makes_the_request_fail_with_the_reason(
    start_cluster: StartCluster, tmp_path: Path
) -> None:
    """A node whose file has no `[[riak.trees]]` is named by what it lacks; an n_val that this node's file lacks, by
    those that it has."""
    async with started(start_cluster, tmp_path) as riak:
        await riak.kill("n3")
        riak.attach(await riak.cluster.open("n3"), TreeGroups([]))
        await riak.kill("n1")
        await riak.kill("n2")
        assert riak.trees["n3"].cache is None
        assert riak.trees["n3"].status() is None
        for name in ("n1", "n2"):
            riak.attach(await riak.cluster.open(name))
        await riak.cluster.settled()
        assert "n3" in [(await riak.cluster.led(partition)).node for partition in range(PARTITIONS)]
        with pytest.raises(Incomplete, match=r"no \[\[riak.trees\]\] in the file of its node has default"):
            await riak.asked("n1").root(3)
        with pytest.raises(UnknownNVal, match="n_val 2: it has n_val 3"):
            await riak.asked("n1").root(2)


async def test_trees_are_kept_of_what_a_node_leads_alone(start_cluster: StartCluster, tmp_path: Path) -> None:
    """A node keeps none of partitions that it follows, and notes no clocks for them; its state counts the trees."""
    async with started(start_cluster, tmp_path) as riak:
        await riak.matches()
        kept = {name: set(trees.cache.cached) for name, trees in riak.trees.items() if trees.cache is not None}
        led = {
            name: {p.id for p in node.runtime.partitions.values() if p.replica.ready}
            for name, node in riak.cluster.members.items()
        }
        assert kept == led
        for node in riak.cluster.members.values():
            for partition in node.runtime.partitions.values():
                assert (partition.replaced_clocks is not None) == (partition.id in led[node.node])
        name = next(name for name, partitions in led.items() if partitions)
        status = riak.trees[name].status()
        count = len(led[name])
        assert status == {
            "actor": "riak-trees", "state": "ready", "reason": f"{count} of {count} trees ready, for n_val 3",
        }  # fmt: skip


async def test_updates_keep_the_tree_that_there_is(start_cluster: StartCluster, tmp_path: Path) -> None:
    """No tree is built again because of writes, pushes and reaps: the clocks that they replace are known."""
    async with started(start_cluster, tmp_path) as riak:
        await riak.matches()
        builds = {name: trees.cache.builds_total for name, trees in riak.trees.items() if trees.cache is not None}
        await Load(riak, random.Random(7)).some(300)
        await riak.matches()
        for name, trees in riak.trees.items():
            assert trees.cache is not None
            assert trees.cache.builds_total == builds[name]
            assert all(one.state is TreeState.READY for one in trees.cache.cached.values())

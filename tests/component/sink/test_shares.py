"""Claims about the sinks of a cluster of several nodes that share one queue: each pushes the partitions that it
leads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from isthmus.queues.sink_shares import TypeShare
from isthmus.repl.model.requests import PushItem, PushResult
from isthmus.sink.service import Sink
from tests.support.cluster_facts import FakeClusterFacts
from tests.support.queue_node import PARTITIONS
from tests.support.sink_pair import Cluster, SinkPair

NAMES = ("w1", "w2")
POLL_MS = 100


class NodePushes:
    """The coordinator of one node: records its pushes into the cluster that all nodes share."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.keys: list[bytes] = []

    async def push(self, items: Sequence[PushItem]) -> list[PushResult]:
        self.keys += [item.key.key for item in items]
        return await self.cluster.push(items)


class SinkNode(NamedTuple):
    """A node of the sink's cluster."""

    sink: Sink
    pushes: NodePushes
    facts: FakeClusterFacts


def share_of(position: int) -> dict[bytes, TypeShare]:
    return {b"default": TypeShare(len(PARTITIONS), 1 << position)}


async def shared_sinks(pair: SinkPair) -> list[SinkNode]:
    """Nodes w1 and w2, which lead partition 0 and 1 of two; both have fetched."""
    nodes = []
    for position, name in enumerate(NAMES):
        pushes, facts = NodePushes(pair.cluster), FakeClusterFacts(nodes=NAMES, share=share_of(position))
        nodes.append(SinkNode(await pair.sink(node_name=name, kv=pushes, facts=facts, poll_ms=POLL_MS), pushes, facts))
    machine = pair.source.served()[0].machine
    await pair.source.eventually(
        lambda: all(machine.sink_shares.allowed(name, pair.source.clock.now_ms()) for name in NAMES)
    )
    return nodes


async def test_each_node_pushes_the_changes_that_it_leads() -> None:
    """No change is forwarded, and all arrive, in single changes and in many at once."""
    async with SinkPair() as pair:
        nodes = await shared_sinks(pair)
        for number in range(40):
            for position, partition in enumerate(PARTITIONS):
                pair.source.put(b"%d-%d" % (position, number), partition=partition)
            await asyncio.sleep(0.002 * (number % 3))
        await pair.equal()
        for position, node in enumerate(nodes):
            assert {key[:2] for key in node.pushes.keys} == {b"%d-" % position}


async def test_changes_of_a_node_that_stops_arrive_through_the_others() -> None:
    """The stopped node's partitions have no leader, or one that does not fetch: they are in no node's share any
    more."""
    async with SinkPair() as pair:
        stopped, other = await shared_sinks(pair)
        await stopped.sink.stop()
        pair.sinks.remove(stopped.sink)
        await asyncio.sleep(2 * POLL_MS / 1_000)  # this listener does not notice that a client closes its connection
        for number in range(20):
            pair.source.put(b"0-%d" % number, partition=PARTITIONS[0])
        await pair.equal()
        assert len(other.pushes.keys) == 20


async def test_leadership_that_moves_takes_the_changes_along() -> None:
    """With its next fetch each node sends its present leaderships."""
    async with SinkPair() as pair:
        nodes = await shared_sinks(pair)
        for position, node in enumerate(reversed(nodes)):
            node.facts.share = share_of(position)
        for partition in PARTITIONS * 2:  # wakes both, so that both fetch again
            pair.source.put(b"wake-%d" % partition, partition=partition)
            await asyncio.sleep(0.05)
        await pair.equal()
        for node in nodes:
            node.pushes.keys.clear()
        for number in range(20):
            for position, partition in enumerate(PARTITIONS):
                pair.source.put(b"%d-%d" % (position, number), partition=partition)
        await pair.equal()
        for position, node in enumerate(reversed(nodes)):
            assert {key[:2] for key in node.pushes.keys} == {b"%d-" % position}

"""A client of three nodes: it sends to leaders, follows them, and works without a stopped node."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

from isthmus.client import AsyncClient
from isthmus.client.nodes import ROUTES_AFTER_COUNT
from isthmus.repl.model.keys import key_hash
from tests.support.ensemble_nodes import NodeOfEnsemble, eventually, three_nodes

KEYS = [f"k{at}" for at in range(24)]


def forwarded(nodes: dict[str, NodeOfEnsemble]) -> Counter[str]:
    """Items that each node has forwarded."""
    found: Counter[str] = Counter()
    for node in nodes.values():
        for name, _, value in node.services.coordinator.metrics():
            if name == "isthmus_forwarded_items_total":
                found[node.settings.node.name] += int(value)
    return found


async def test_requests_go_to_the_leaders_and_follow_them(tmp_path: Path) -> None:
    """A client that was given one node knows the leaders after its first requests: no node forwards its writes, reads
    and batches. After a leader has moved, the client learns that from one answer. When the given node and then another
    one stop, the client works on, since it knows the others."""
    async with three_nodes(tmp_path) as nodes:
        given = next(iter(nodes.values()))
        async with AsyncClient(f"http://{given.address}", timeout_s=60) as client:
            for key in KEYS:
                await client.put("b", key, {"n": 1})
            before = forwarded(nodes)
            assert before.total() <= ROUTES_AFTER_COUNT + 2
            for key in KEYS:
                await client.update("b", key, lambda value: {"n": value["n"] + 1})
            await client.put_many("batch", dict.fromkeys(KEYS, 1))
            assert len(await client.get_many("batch", KEYS)) == len(KEYS)
            assert forwarded(nodes) == before

            services = given.services
            key = next(key for key in KEYS if leader_of(nodes, key) is given)
            partition = services.coordinator.routes.partition_of(b"default", key_hash(b"b", key.encode()))
            place = services.runtime.partitions[partition]
            new = next(node for node in nodes.values() if node is not given)
            services.runtime.hand_over(place, new.settings.node.name, 10_000)
            await eventually(lambda: leader_of(nodes, key) is new, "every node knows the new leader")
            for _ in range(3):
                await client.update("b", key, lambda value: {"n": value["n"] + 1})
            assert forwarded(nodes).total() == before.total() + 1

            given.request_stop("the test stops it")
            await asyncio.gather(*(client.update("b", key, lambda value: {"n": value["n"] + 1}) for key in KEYS))
            read = await client.get_many("b", KEYS)
            assert Counter(found.value["n"] for found in read if found) == Counter({3: len(KEYS) - 1, 6: 1})


def leader_of(nodes: dict[str, NodeOfEnsemble], key: str) -> NodeOfEnsemble | None:
    """The leader of a key, if all nodes agree on it."""
    names = set()
    for node in nodes.values():
        routes = node.services.coordinator.routes
        partition = routes.partition_of(b"default", key_hash(b"b", key.encode()))
        names.add(routes.leader(partition))
    return nodes.get(names.pop() or "") if len(names) == 1 else None

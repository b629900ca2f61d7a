"""Reads, listings and repeated requests at any of three real nodes, over changes of leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from isthmus.repl.model.errors import IsthmusError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content, decode_object
from isthmus.repl.model.requests import Isolation, WriteRequest, WriteResult
from tests.support.runtime_cluster import Cluster, Node
from tests.support.waiting import PATIENCE_S

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


def key(name: bytes) -> Key:
    return Key(b"default", b"b", name)


async def write_until_answered(member: Node, request: WriteRequest) -> WriteResult:
    """Write as a client with a request id does: again after every 503 and 504."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await member.coordinator.write(request)
            except IsthmusError:
                await asyncio.sleep(0.02)


async def test_every_node_reads_what_any_node_wrote(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """A write acknowledged at one node is at once read at the others, one by one, in batches and in listings."""

    async with start_cluster(tmp_path, partitions=4) as t:
        names = [b"%d" % n for n in range(24)]
        members = list(t.members.values())
        for n, name in enumerate(names):
            await members[n % 3].coordinator.write(WriteRequest(key(name), Content(name)))
            for isolation in Isolation:
                data = await members[(n + 1) % 3].coordinator.get(key(name), isolation)
                assert data is not None
                assert decode_object(data).live[0].value == name
        for member in members:
            found = await member.coordinator.get_batch([key(name) for name in names], None, 1_000_000)
            assert all(isinstance(data, bytes) for data in found)
            listed = [k async for batch in member.coordinator.list_keys(b"default", b"b") for k in batch]
            assert sorted(listed) == sorted(names)


async def test_a_repeated_request_takes_effect_once_over_the_leaders_death(
    tmp_path: Path, start_cluster: ClusterFactory
) -> None:
    """Writes that are repeated under their ids, at other nodes and after the leader was killed under them, leave no
    second sibling, and the next leader recognizes requests that its predecessor received."""

    async with start_cluster(tmp_path) as t:
        leader = await t.led()
        others = [member for member in t.members.values() if member is not leader]
        requests = [WriteRequest(key(b"%d" % n), Content(b"v"), None, b"id-%d" % n) for n in range(20)]
        for request in requests[:10]:
            assert not (await others[0].coordinator.write(request)).repeated
        for member in others:
            member.coordinator._forwarder._timeout_ms = 500  # these wires send no notification of a broken connection
        under_way = [asyncio.create_task(write_until_answered(others[1], request)) for request in requests[10:]]
        await asyncio.sleep(0.005)
        await t.kill(leader.node)
        await asyncio.gather(*under_way)
        new = await t.led()
        for request in requests:
            for member in (*others, new):
                again = await write_until_answered(member, request)
                assert (again.repeated, again.sibling_count) == (True, 1)

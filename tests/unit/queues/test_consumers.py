"""The nodes that fetch from a queue, with the time of their last fetch and their unacknowledged changes."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.queues.consumers import CONSUMERS_MAX, Consumer, Consumers
from isthmus.queues.queue_documents import AuditInfo
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import QueueNode
from tests.support.queue_source import THIRD


def test_the_node_that_was_silent_for_longest_is_forgotten_first() -> None:
    """At most the limit of nodes is kept, those that fetched last; an unknown node has no unacknowledged changes."""
    consumers = Consumers()
    for number in range(CONSUMERS_MAX + 5):
        consumers.fetched(f"w{number}", number)
        consumers.fetched("w0", number)
    assert (len(consumers.by_node()), next(iter(consumers.by_node()))) == (CONSUMERS_MAX, "w6")
    consumers.given("w0", 7, 100)
    consumers.given("w0", 5, 200)
    consumers.given("w1", 7, 100)
    assert consumers.by_node()["w0"] == Consumer(CONSUMERS_MAX + 4, 12, 200)
    assert "w1" not in consumers.by_node()
    consumers.clear()
    assert consumers.by_node() == {}


@pytest.mark.virtual_time
async def test_a_listing_names_each_node_that_fetches() -> None:
    """The listing has the time of its newest fetch, its unacknowledged changes, and whether a fetch waits; a new owner
    begins without consumers."""

    async with QueueNode() as queue_node:
        assert (await listed_queues(queue_node.queues))[0]["consumers"] == []
        queue_node.put(b"a", b"b")
        await queue_node.fetch(node="w1")
        first_ms = queue_node.clock.wall_ms()
        await asyncio.sleep(3)
        waiting = asyncio.create_task(queue_node.fetch(node="w2", wait_ms=60_000))
        await asyncio.sleep(0.5)
        second, first = (await listed_queues(queue_node.queues))[0]["consumers"]
        assert (first["node"], first["waits"], first["given"], first["in_flight"]) == ("w1", False, 2, 2)
        assert first_ms - 5 <= first["last_fetch_ms"] <= first["last_given_ms"] <= first_ms
        assert (second["node"], second["waits"], second["given"], second["in_flight"]) == ("w2", True, 0, 0)
        assert second["last_given_ms"] is None
        assert second["last_fetch_ms"] == first_ms + 3_000
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await queue_node.acts.release("q", 0, AuditInfo("ann", queue_node.clock.wall_ms(), ""))
        await queue_node.fetch(cluster=THIRD, node="n1", wait_ms=0)
        assert [one["node"] for one in (await listed_queues(queue_node.queues))[0]["consumers"]] == ["n1"]


@pytest.mark.virtual_time
async def test_a_fetch_that_only_acknowledges_is_none() -> None:
    """A suspended sink that sends acknowledgements is not a consumer."""

    async with QueueNode() as queue_node:
        await queue_node.fetch(count=0)
        assert (await listed_queues(queue_node.queues))[0]["consumers"] == []

"""Metrics of source queues that alerts are built on."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.node.admin_api.queue_plan import plan_of
from isthmus.node.services.queue_listing import shares_of
from isthmus.queues.queue_documents import LostReferences
from isthmus.queues.source_queue import IDLE_MS
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.queue_node import QueueNode

pytestmark = pytest.mark.virtual_time


def numbers(queue_node: QueueNode) -> dict[str, float]:
    """The samples of the only queue."""
    return {name: value for name, _, value in queue_node.queues.metrics()}


async def test_the_age_of_the_last_fetch_grows_though_the_queue_leaves_memory() -> None:
    """A queue without fetches drops its window, and the age of its oldest change with it. The age of the last fetch
    keeps growing. Without an owner, there is no such age."""
    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        assert "isthmus_queue_last_fetch_age_seconds" not in numbers(queue_node)
        assert len((await queue_node.fetch()).items) == 1
        assert numbers(queue_node)["isthmus_queue_last_fetch_age_seconds"] == pytest.approx(0, abs=0.1)
        away_s = 3 * IDLE_MS / 1000
        await asyncio.sleep(away_s)
        found = numbers(queue_node)
        assert found["isthmus_queue_oldest_age_seconds"] == 0
        assert found["isthmus_queue_last_fetch_age_seconds"] == pytest.approx(away_s, abs=1)


async def test_a_fetch_that_waits_has_no_age() -> None:
    """A long poll without changes is a fetch in progress."""
    async with QueueNode() as queue_node:
        waiting = asyncio.create_task(queue_node.fetch(wait_ms=20_000))
        await asyncio.sleep(15)
        assert numbers(queue_node)["isthmus_queue_last_fetch_age_seconds"] == 0
        await waiting


async def test_a_restarted_node_counts_from_its_start() -> None:
    """On a node without a fetch since its start, the age counts from the start."""
    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=0)
        await queue_node.crash()
        await queue_node.start()
        await asyncio.sleep(40)
        assert numbers(queue_node)["isthmus_queue_last_fetch_age_seconds"] == pytest.approx(40, abs=1)


@pytest.mark.logs_errors("queue.ledger_off")
async def test_an_unbalanced_ledger_shows_while_the_queue_serves() -> None:
    """Changes missing from a ledger appear in the metric within the second in which ledgers are checked."""
    async with QueueNode() as queue_node:
        queue_node.put(b"a", b"b", b"c")
        await queue_node.drain()
        (served,) = queue_node.served()
        await queue_node.eventually(lambda: not served.machine.incomplete_windows())
        await asyncio.sleep(2)
        assert numbers(queue_node)["isthmus_queue_ledger_off"] == 0
        next(iter(served.machine.windows.values())).ledger.given_up += 2
        await asyncio.sleep(2)
        assert numbers(queue_node)["isthmus_queue_ledger_off"] == 2


async def test_a_loss_record_is_counted_once_over_all_nodes() -> None:
    """Every node knows the loss records of all. Listings and metrics count each at its own node, and those of a node
    that is gone at the first live node, so that the sum over nodes, the plan of a change and an alert are right."""
    ensemble = MemoryEnsemble()
    homes = [QueueNode(ensemble=ensemble, node=name) for name in ("e1", "e2", "e3")]
    lost = [LostReferences(node, 1, 1, at, at, "stopped", "", at) for node, at in (("e2", 1), ("e2", 2), ("e9", 3))]
    for queue_node in homes:
        await queue_node.start(lead=queue_node is homes[0])
        queue_node.facts.live = {"e1", "e2", "e3"}
    await homes[0].queues.queue_store.record_lost("q", lost)

    async def counted() -> list[int]:
        for queue_node in homes:
            await queue_node.queues.refresh("q")
        listings = {each.node: await shares_of(each.queues) for each in homes}
        gaps = [rows.queues[0].gaps for rows in listings.values()]
        assert [numbers(each)["isthmus_queue_gaps"] for each in homes] == gaps
        live = {node: rows for node, rows in listings.items() if node in homes[0].facts.live}
        assert plan_of("delist", "q", live).gaps == sum(gaps)
        return gaps

    assert await counted() == [1, 2, 0]
    for queue_node in homes:
        queue_node.facts.live = {"e1", "e3"}
    assert await counted() == [3, 0, 0], "e2 is gone: its losses are counted in its place"
    for queue_node in homes:
        await queue_node.close()

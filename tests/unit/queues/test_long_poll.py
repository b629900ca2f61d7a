"""Long polls at a queue: any event that makes changes ready wakes them at once."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import pytest

from isthmus.queues.sink_shares import SHARE_PATIENCE_MS, TypeShare
from isthmus.queues.wire import BatchAck, FetchReply
from isthmus.repl.store.port import Change
from tests.support.queue_node import PARTITIONS, QueueNode

pytestmark = pytest.mark.virtual_time

AT_ONCE_S: Final = 0.4
"""Well below the tick of a second, which is there for what nobody has heard of."""


async def timely(reply: asyncio.Task[FetchReply], key: bytes) -> None:
    async with asyncio.timeout(AT_ONCE_S):
        assert [item[5] for item in (await reply).items] == [key]


def sharing(queue_node: QueueNode, node: str, led: int, wait_ms: int = 5_000) -> asyncio.Task[FetchReply]:
    """A fetch of a node that leads the partitions `led` of the sink's cluster."""
    share = {b"default": TypeShare(len(PARTITIONS), led)}
    return asyncio.get_running_loop().create_task(queue_node.fetch(node=node, share=share, wait_ms=wait_ms))


def waiting(queue_node: QueueNode, link: int) -> asyncio.Task[FetchReply]:
    return asyncio.get_running_loop().create_task(queue_node.fetch(link=link, wait_ms=5_000))


async def test_an_acknowledgement_wakes_the_fetches_that_wait_for_a_free_lease() -> None:
    """A newer change of a key is held back while the older one is under lease; once that is acknowledged, by a message
    that fetches nothing, a fetch that waits gets the newer one."""

    async with QueueNode() as queue_node:
        queue_node.put(b"k")
        first = await queue_node.fetch(link=1)
        queue_node.put(b"k")
        second = waiting(queue_node, 2)
        await asyncio.sleep(0.02)
        assert not second.done()
        await queue_node.fetch(link=1, count=0, acks=[BatchAck(first.batch, first.owner_version)])
        await timely(second, b"k")


async def test_changes_of_an_aborted_fetch_go_to_the_next_one() -> None:
    """The sink whose fetch was woken disconnected before its answer: the next waiting fetch is woken instead."""

    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=10)
        one = waiting(queue_node, 1)
        await asyncio.sleep(0.01)
        two = waiting(queue_node, 2)
        await asyncio.sleep(0.02)
        queue_node.put(b"k")
        one.cancel()
        await timely(two, b"k")
        with pytest.raises(asyncio.CancelledError):
            await one


async def test_a_change_wakes_the_fetch_in_whose_share_it_is() -> None:
    """A fetch that has waited longer is not woken; changes of two shares in one turn wake both fetches."""

    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=10)
        one = sharing(queue_node, "w1", 0b01)
        await asyncio.sleep(0.01)
        two = sharing(queue_node, "w2", 0b10)
        await asyncio.sleep(0.02)
        queue_node.put(b"b", partition=PARTITIONS[1])
        await timely(two, b"b")
        assert not one.done()
        two = sharing(queue_node, "w2", 0b10)
        await asyncio.sleep(0.02)
        queue_node.put(b"c", partition=PARTITIONS[1])
        queue_node.put(b"a", partition=PARTITIONS[0])
        await timely(two, b"c")
        await timely(one, b"a")


@pytest.mark.parametrize("waits_before", [False, True])
async def test_a_change_that_its_node_does_not_fetch_wakes_another_fetch_after_the_patience(waits_before: bool) -> None:
    """A timer wakes the fetch, without another event at the queue, whether that fetch waits before or after the
    change."""

    async with QueueNode() as queue_node:
        loop = asyncio.get_running_loop()
        owner = sharing(queue_node, "w1", 0b01)
        await asyncio.sleep(0.01)
        queue_node.put(b"first")
        await timely(owner, b"first")  # from now on the node pushes, and does not fetch
        if waits_before:
            other = sharing(queue_node, "w2", 0b10)
            await asyncio.sleep(0.02)
            queue_node.put(b"k")
        else:
            queue_node.put(b"k")
            other = sharing(queue_node, "w2", 0b10)
        began_s = loop.time()
        assert [item[5] for item in (await other).items] == [b"k"]
        assert SHARE_PATIENCE_MS <= (loop.time() - began_s) * 1_000 <= SHARE_PATIENCE_MS + 20


async def test_a_node_whose_fetch_is_cut_off_leaves_its_share_at_once() -> None:
    """If its connection closes, as when its process dies, other fetches need not wait."""

    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=10)
        gone = sharing(queue_node, "w1", 0b01)
        other = sharing(queue_node, "w2", 0b10)
        await asyncio.sleep(0.02)
        gone.cancel()
        await asyncio.sleep(0.02)
        queue_node.put(b"k")
        await timely(other, b"k")


async def test_a_fetch_without_a_share_takes_changes_of_every_share() -> None:
    """A node of the previous version beside others with shares is served first come, first served."""

    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=10)
        old = waiting(queue_node, 1)
        await asyncio.sleep(0.01)
        shared = sharing(queue_node, "w2", 0b01)
        await asyncio.sleep(0.02)
        queue_node.put(b"a", partition=PARTITIONS[0])
        await timely(old, b"a")
        assert not shared.done()
        queue_node.put(b"b", partition=PARTITIONS[1])
        await timely(shared, b"b")


@pytest.mark.logs_errors("queue.rows_failed")
async def test_a_failed_read_of_rows_is_repeated_after_any_error() -> None:
    """An unexpected error in one read of the change index does not stop a partition for good."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        read, faults = queue_node.store.changes, [OSError("the disk"), ValueError("a row")]

        def changes(partition: int, from_offset: int, limit: int) -> list[Change]:
            if faults:
                raise faults.pop()
            return read(partition, from_offset, limit)

        queue_node.store.changes = changes  # type: ignore[method-assign]
        assert [item[5] for item in (await queue_node.fetch(wait_ms=5_000)).items] == [b"a"]


@pytest.mark.timing
async def test_a_large_partly_failed_batch_does_not_block_the_loop() -> None:
    """The time to sort out the failed items is proportional to the batch, and the loop is free for other work."""
    few_s, many_s = [min([await _sorting_s(count) for _ in range(2)]) for count in (1_000, 10_000)]
    assert many_s < 50 * few_s, "ten times the keys: ten times the work, give or take; 100 times if it were quadratic"


async def _sorting_s(count: int) -> float:
    """CPU time for the acknowledgement of one key of a batch, when all others failed."""
    async with QueueNode() as queue_node:
        await queue_node.fetch(wait_ms=10)
        queue_node.put(*[b"%d" % number for number in range(count)])
        reply = await queue_node.fetch(count=count)
        failed = tuple(range(1, len(reply.items)))
        began = time.thread_time()
        await queue_node.fetch(count=0, acks=[BatchAck(reply.batch, reply.owner_version, failed)])
        took_s = time.thread_time() - began
        machine = queue_node.served()[0].machine
        assert (machine.counts.acknowledged, machine.waiting_count()) == (1, len(failed))
        return took_s

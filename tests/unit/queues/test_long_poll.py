"""Claims about fetches that wait at a queue: whatever makes something ready for them, they have it at once."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import pytest

from isthmus.queues.wire import BatchAck, FetchReply
from isthmus.repl.store.port import Change
from tests.support.queue_node import QueueNode

pytestmark = pytest.mark.virtual_time

AT_ONCE_S: Final = 0.4
"""Well below the tick of a second, which is there for what nobody has heard of."""


async def timely(reply: asyncio.Task[FetchReply], key: bytes) -> None:
    async with asyncio.timeout(AT_ONCE_S):
        assert [item[5] for item in (await reply).items] == [key]


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
    """The sink whose fetch was woken has gone before it got anything: who waits behind it is woken instead."""

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


async def test_a_failed_read_of_rows_is_repeated_after_any_error() -> None:
    """A fault that nobody thought of, in one read of the change index, does not silence a partition for good."""

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
    """Sorting out what failed of a batch takes time in proportion to the batch: the loop has other work, too."""
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

"""The number of waiting changes equals the number then served, or is unknown."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from random import Random

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues import backlog_count
from isthmus.queues import window as intake
from isthmus.queues.window import Window
from isthmus.queues.wire import BatchAck
from isthmus.repl.store.port import Change
from tests.support.queue_listings import listed_queues
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.support.queue_source import SINK, THIRD

pytestmark = pytest.mark.virtual_time

SMALL = QueueSettings("q", queue_limit_count=20, object_limit_count=5)


async def counted(queue_node: QueueNode) -> int | None:
    """The number in the listing, counted again."""
    queue = queue_node.served()[0]
    queue.backlog_counter._reuse_until_ms = 0
    (row,) = await listed_queues(queue_node.queues)
    assert row["waiting"] == row["priorities"]["real_time"]["waiting"]
    assert abs(row["waiting_at_ms"] - queue_node.clock.wall_ms()) < 5_000
    waiting: int | None = row["waiting"]
    return waiting


async def owned(queue_node: QueueNode) -> None:
    """Waits until a sink owns the queue and the CURSOR entries say so."""
    await queue_node.fetch(wait_ms=0)
    machine = queue_node.served()[0].machine
    await queue_node.eventually(lambda: all(w.owner_version == machine.owner_version for w in machine.windows.values()))


def waiting_rows(window: Window, rows: Sequence[Change]) -> set[int]:
    """Offered rows that are neither acknowledged nor under lease, and rows with a waiting reference that replaced an
    earlier local change."""
    above = [row for row in rows if row.offset >= window.cursor]
    offered = {row.offset for row in window.unsettled(above) if row.offset not in window._in_flight}
    return offered | {item[2] for item in window.waiting.values()}


async def count_served(queue_node: QueueNode) -> int:
    """The number of changes that are served without further writes."""
    return len(await queue_node.drain(count=1_000))


async def test_overwritten_changes_in_memory_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty references fill the memory, the rest waits in the store; keys of both are written again: each still counts
    once, as it goes once."""

    monkeypatch.setattr(intake, "REFILL_ROWS", 10)

    queue_node = QueueNode(SMALL)
    await queue_node.start()
    await owned(queue_node)
    names = [b"%03d" % n for n in range(60)]
    queue_node.put(*names)
    assert await counted(queue_node) == 60
    queue_node.put(*names[:10], *names[40:50], *names[:5])
    assert queue_node.served()[0].machine.incomplete_windows()
    assert await counted(queue_node) == 60
    peeked = [item[5] for item in await queue_node.acts.peek("q", 100)]
    assert sorted(peeked) == names, "each once"
    reply = await queue_node.fetch(count=7)
    queue_node.put(*(item[5] for item in reply.items[:3]), b"new")
    assert await counted(queue_node) == 60 - 7 + 4
    await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], count=0, wait_ms=0)
    assert await counted(queue_node) == 57
    assert await count_served(queue_node) == 57
    assert await counted(queue_node) == 0
    await queue_node.close()


@pytest.mark.virtual_time(False)  # writes come while a thread reads
@pytest.mark.parametrize("seed", range(6))
async def test_a_count_is_true_whatever_is_written_and_fetched_while_it_is_made(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows are read slowly while keys are overwritten, pushed by other clusters, fetched and acknowledged; the number,
    less those served since its moment, is the number served afterwards."""
    monkeypatch.setattr(backlog_count, "STEP_ROWS", 10)
    monkeypatch.setattr(intake, "REFILL_ROWS", 10)

    rng = Random(seed)
    queue_node = QueueNode(SMALL)
    await queue_node.start()
    await owned(queue_node)
    plain = queue_node.store.changes

    def slow(partition: int, from_offset: int, limit: int) -> list:  # type: ignore[type-arg]
        time.sleep(0.003)
        return plain(partition, from_offset, limit)

    audit_info = 0
    machine = queue_node.served()[0].machine
    plain_oldest = machine.oldest_ms
    truths: list[int] = []

    def at_the_moment() -> int | None:
        """Reads the whole change index at the moment of the count."""
        truths.append(sum(len(waiting_rows(w, plain(w.partition, 0, 10_000))) for w in machine.windows.values()))
        return plain_oldest()

    machine.oldest_ms = at_the_moment  # type: ignore[method-assign]
    for _ in range(6):
        for _ in range(40):
            queue_node.put(
                b"%02d" % rng.randrange(70),
                partition=rng.choice(PARTITIONS),
                origin=rng.choice((queue_node.queues.cluster_uuid,) * 4 + (SINK, THIRD)),
            )
        queue_node.store.changes = slow  # type: ignore[method-assign]
        count = asyncio.ensure_future(counted(queue_node))
        acks: list[BatchAck] = []
        while not count.done():
            await asyncio.sleep(0.001)
            if rng.random() < 0.7:
                queue_node.put(*(b"%02d" % rng.randrange(90) for _ in range(3)), partition=rng.choice(PARTITIONS))
            else:
                reply = await queue_node.fetch(acks=acks, count=5, wait_ms=0)
                acks = [BatchAck(reply.batch, reply.owner_version)] if reply.items else []
        queue_node.store.changes = plain  # type: ignore[method-assign]
        assert count.result() in (None, truths[-1])
        audit_info += count.result() is not None
        quiet = await counted(queue_node)
        await queue_node.fetch(acks=acks, count=0, wait_ms=0)
        assert await counted(queue_node) == quiet
        assert await count_served(queue_node) == quiet
    assert audit_info, "no count came to an end"
    await queue_node.close()


async def test_too_many_rows_are_unknown_and_so_is_a_new_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A count over its limit is unknown; so is one during which the queue moved."""

    monkeypatch.setattr(intake, "REFILL_ROWS", 10)

    queue_node = QueueNode(SMALL)
    await queue_node.start()
    await owned(queue_node)
    queue_node.put(*(b"%03d" % n for n in range(60)))
    monkeypatch.setattr(backlog_count, "STEP_ROWS", 4)
    for bound, limit in (("ROWS_MAX", 10), ("NOTES_MAX", -1)):
        with monkeypatch.context() as bounded:
            bounded.setattr(backlog_count, bound, limit)
            assert await counted(queue_node) is None
    assert await counted(queue_node) == 60
    queue_node.queues.leadership(PARTITIONS[0], False, 0)
    queue_node.lead(PARTITIONS[0])
    assert await counted(queue_node) is None, "a partition where the queue does not stand yet"
    await queue_node.close()

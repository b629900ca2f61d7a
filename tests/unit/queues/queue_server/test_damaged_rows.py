"""A change row that cannot be decoded blocks its partition until it is repaired; no change is skipped."""

from __future__ import annotations

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues import queue_server
from isthmus.queues.status import reason
from isthmus.queues.wire import BatchAck
from isthmus.repl.store.port import Change, DamagedChange
from tests.support.damage_reports import DamageReports
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.unit.queues.test_lag import lag

pytestmark = pytest.mark.virtual_time

P, OTHER = PARTITIONS


async def fetch_all(queue_node: QueueNode, polls: int) -> list[bytes]:
    """The keys of this many polls, all acknowledged except the last one's."""
    got: list[bytes] = []
    acks: list[BatchAck] = []
    for _ in range(polls):
        reply = await queue_node.fetch(acks=acks, wait_ms=100)
        got += [item[5] for item in reply.items]
        acks = [BatchAck(reply.batch, reply.owner_version)] if reply.items else []
    return got


@pytest.mark.logs_errors("queue.change_row_damaged")
async def test_a_damaged_change_row_is_waited_for_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes before it in the partition, and all of other partitions, are served; none behind it is, although sinks
    fetch and writes arrive. The reason names the row, lags can be shown, and the row is reported for repair without
    repeated reads. Afterwards the queue continues by itself with the key of that row and those behind it."""
    monkeypatch.setattr(queue_server, "DAMAGED_ROW_PAUSE_S", 0.05)

    queue_node = QueueNode(QueueSettings("q"))
    await queue_node.start(lead=False)
    queue_node.queues.damage_listener = reported = DamageReports()
    read = queue_node.store.changes
    damaged: set[int] = set()

    def changes(partition: int, from_offset: int, limit: int) -> list[Change]:
        rows = read(partition, from_offset, limit)
        for at, row in enumerate(rows):
            if partition == P and row.offset in damaged:
                raise DamagedChange(f"the change row of offset {row.offset} names no bucket", row.offset, rows[:at])
        return rows

    monkeypatch.setattr(queue_node.store, "changes", changes)
    try:
        queue_node.put(b"before", b"damaged", b"behind")
        queue_node.put(b"other", partition=OTHER)
        (bad,) = (row.offset for row in read(P, 0, 9) if row.key == b"damaged")
        damaged.add(bad)
        for partition in PARTITIONS:
            queue_node.lead(partition)
        await queue_node.eventually(lambda: len(queue_node.queues.machines()["q"].windows) == len(PARTITIONS))
        assert sorted(await fetch_all(queue_node, 4)) == [b"before", b"other"]
        (queue,) = queue_node.served()
        window = queue.machine.windows[P]
        assert f"waits until a damaged row is mended: the change row of offset {bad}" in reason(
            queue, queue_node.clock.now_ms()
        )
        queue_node.put(b"new")
        assert await fetch_all(queue_node, 2) == []
        assert window.scan == window.advance() == bad
        await queue_node.eventually(lambda: len(reported) >= 3)
        assert set(reported) == {(P, None)}
        found = await lag(queue_node)
        assert (found["objects"], found["bytes"]) == (None, None)
        assert (await queue_node.queues.backlog(queue_node.queues.named("q"))).changes is None
        damaged.clear()
        await queue_node.eventually(lambda: window.contiguous)
        assert sorted(await queue_node.drain()) == [b"behind", b"damaged", b"new"]
        assert "damaged" not in reason(queue, queue_node.clock.now_ms())
    finally:
        await queue_node.close()

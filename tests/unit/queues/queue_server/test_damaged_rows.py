"""A change row that cannot be decoded holds its partition back until it is mended; nothing is passed over."""

from __future__ import annotations

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues import queue_server
from isthmus.queues.status import reason
from isthmus.queues.wire import BatchAck
from isthmus.repl.store.port import Change, DamagedChange
from tests.support.queue_node import PARTITIONS, Home
from tests.unit.queues.test_lag import lag

P, OTHER = PARTITIONS


async def taken(home: Home, polls: int) -> list[bytes]:
    """Keys that so many polls bring, all acknowledged but the last one's."""
    got: list[bytes] = []
    acks: list[BatchAck] = []
    for _ in range(polls):
        reply = await home.fetch(acks=acks, wait_ms=100)
        got += [item[5] for item in reply.items]
        acks = [BatchAck(reply.batch, reply.owner_version)] if reply.items else []
    return got


async def test_a_damaged_change_row_is_waited_for_and_not_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands before it in the partition goes out, and all of other partitions; nothing behind it, though sinks ask
    and writes come. The reason names the row, lags can be told, it is reported to be mended without a storm of reads,
    and afterwards the queue goes on by itself with the key of that row and those behind it."""
    monkeypatch.setattr(queue_server, "DAMAGED_ROW_PAUSE_S", 0.05)

    home = Home(QueueSettings("q"))
    await home.start(lead=False)
    reported: list[tuple[int, int | None]] = []
    home.queues.on_damaged = lambda partition, segment: reported.append((partition, segment))
    read = home.store.changes
    damaged: set[int] = set()

    def changes(partition: int, from_offset: int, limit: int) -> list[Change]:
        rows = read(partition, from_offset, limit)
        for at, row in enumerate(rows):
            if partition == P and row.offset in damaged:
                raise DamagedChange(f"the change row of offset {row.offset} names no bucket", row.offset, rows[:at])
        return rows

    monkeypatch.setattr(home.store, "changes", changes)
    try:
        home.put(b"before", b"damaged", b"behind")
        home.put(b"other", partition=OTHER)
        (bad,) = (row.offset for row in read(P, 0, 9) if row.key == b"damaged")
        damaged.add(bad)
        for partition in PARTITIONS:
            home.lead(partition)
        await home.until(lambda: len(home.queues.machines()["q"].windows) == len(PARTITIONS))
        assert sorted(await taken(home, 4)) == [b"before", b"other"]
        (queue,) = home.served()
        window = queue.machine.windows[P]
        assert f"waits until a damaged row is mended: the change row of offset {bad}" in reason(
            queue, home.clock.now_ms()
        )
        home.put(b"new")
        assert await taken(home, 2) == []
        assert window.scan == window.advance() == bad
        await home.until(lambda: len(reported) >= 3)
        assert set(reported) == {(P, None)}
        found = await lag(home)
        assert (found["objects"], found["bytes"]) == (None, None)
        assert (await home.queues.backlog(home.queues.named("q"))).changes is None
        damaged.clear()
        await home.until(lambda: window.contiguous)
        assert sorted(await home.drain()) == [b"behind", b"damaged", b"new"]
        assert "damaged" not in reason(queue, home.clock.now_ms())
    finally:
        await home.close()

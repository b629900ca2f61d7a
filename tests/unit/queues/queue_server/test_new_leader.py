"""The position of a queue at a new leader, for any earlier notifications."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from isthmus.queues import cursor_keeper
from isthmus.queues.cursors import CursorState, decode_soft, encode_soft, encode_state, position_of
from isthmus.queues.gaps import QueueGap
from isthmus.queues.queue_documents import AuditInfo, CursorCommand
from isthmus.queues.wire import BatchAck
from isthmus.repl.store.port import Cursor, PartitionStep
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.support.queue_source import SINK

pytestmark = pytest.mark.virtual_time

P = PARTITIONS[0]


async def test_a_soft_cursor_above_the_log_of_its_leader_hides_no_change() -> None:
    """A follower may know a cursor above the end of its own log. As the leader, it writes those offsets again: the new
    entries there are offered, and the store no longer reports them as acknowledged (R-SOFT)."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        reply = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        base = queue_node.store.cursor(P, b"q").entry_offset
        queue_node.soft_cursor(P, b"q", encode_soft(base, queue_node.fake_store.ends[P] + 5, 0))
        queue_node.lead(P)
        await queue_node.eventually(lambda: P in queue_node.queues.machines()["q"].windows)
        found = position_of(queue_node.store.cursor(P, b"q"), 0)
        assert found is not None
        assert found.cursor == queue_node.fake_store.ends[P]
        queue_node.put(b"b", b"c")
        assert await queue_node.drain() == [b"b", b"c"]


def acknowledged(queue_node: QueueNode) -> tuple[int, int, int]:
    """(base, cursor, lineage) of what the store of that node knows of acknowledgements."""
    soft = queue_node.store.cursor(P, b"q").soft
    assert soft is not None
    return decode_soft(soft)


async def test_a_cursor_of_the_lineage_that_was_lost_counts_for_no_later_leader() -> None:
    """A replica that knows acknowledgements of the leader before a forced one may lead after it, under the same CURSOR
    entry: other entries are at those offsets by then, and they are offered. Only acknowledgements from then on count
    (R-SOFT)."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a", b"b", b"c")
        assert await queue_node.drain() == [b"a", b"b", b"c"]
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        base, cursor, lineage = acknowledged(queue_node)
        assert (cursor, lineage) == (queue_node.fake_store.ends[P], 0)
        queue_node.lineages[P] = 1
        queue_node.lead(P)
        assert await queue_node.drain() == [b"a", b"b", b"c"]
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        assert acknowledged(queue_node) == (base, cursor, 1)
        queue_node.lead(P)
        await queue_node.eventually(lambda: P in queue_node.queues.machines()["q"].windows)
        assert await queue_node.drain() == []


async def test_a_leader_of_an_old_lineage_sends_no_cursor_of_the_next_one() -> None:
    """A leader learns of a forced successor from the record, which has the new lineage: the soft cursors that it sends
    then have the lineage under which the changes were acknowledged (R-SOFT)."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a", b"b")
        reply = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        queue_node.lineages[P] = 1
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        assert acknowledged(queue_node)[1:] == (queue_node.fake_store.ends[P], 0)


async def test_missed_notifications_are_read_from_the_change_index() -> None:
    """A complete window that is notified of a change after missed ones reads the missed ones from the store."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        silent = queue_node.factory.data(P, b"b")
        queue_node.fake_store.put(P, silent)
        queue_node.store.write([PartitionStep(P, [silent])])
        queue_node.put(b"c")
        assert await queue_node.drain() == [b"b", b"c"]


@pytest.mark.virtual_time(False)  # a thread waits for the loop
async def test_a_decision_of_another_leader_during_a_read_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leadership is lost and regained while the read of the queue's position is in progress: the CURSOR entry written
    in between counts, not the result of that read."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        before, read, here = queue_node.store.cursor(P, b"q"), queue_node.store.cursor, threading.current_thread()
        goes_on = threading.Event()

        def slow(partition: int, queue: bytes) -> Cursor:
            if threading.current_thread() is here:
                return read(partition, queue)
            assert goes_on.wait(60)
            return before

        monkeypatch.setattr(queue_node.store, "cursor", slow)
        queue_node.lead(P)
        await asyncio.sleep(0.02)
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        entry = queue_node.factory.cursor(P, b"q", encode_state(CursorState(queue_node.fake_store.ends[P], 1, SINK)))
        queue_node.fake_store.put(P, entry)
        queue_node.store.write([PartitionStep(P, [entry])])
        queue_node.lead(P)
        goes_on.set()
        windows = queue_node.queues.machines()["q"].windows
        await queue_node.eventually(lambda: P in windows)
        assert windows[P].base == entry.offset


@pytest.mark.virtual_time(False)  # a thread waits for the loop
async def test_a_command_read_under_an_earlier_leadership_undoes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a clear reads what it gives up, leadership is lost and regained; in between another leader executed it,
    and the queue went on. The state under which this one began to execute it is out of date: it writes none of it."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        queue_node.put(b"b")
        read, goes_on, reading = cursor_keeper.read_changes, threading.Event(), threading.Event()

        def slow(store: Any, window: Any, cursor: int, limit: int) -> Any:
            if window.partition == P:
                reading.set()
                assert goes_on.wait(60)
            return read(store, window, cursor, limit)

        monkeypatch.setattr(cursor_keeper, "read_changes", slow)
        await queue_node.acts.clear("q", AuditInfo("ann", queue_node.clock.wall_ms(), ""))
        await queue_node.eventually(reading.is_set)
        (queue,) = queue_node.served()
        assert queue.stored.command is not None
        version, end = queue.stored.command.version, queue_node.fake_store.ends[P]
        queue_node.queues.leadership(P, False, end)
        gap = QueueGap(0, end, 5, 6, 1, "cleared", "ann", "")
        state = CursorState(end, 1, SINK, version, (gap,))
        entry = queue_node.factory.cursor(P, b"q", encode_state(state))
        queue_node.fake_store.put(P, entry)
        queue_node.store.write([PartitionStep(P, [entry])])
        queue_node.lead(P)
        windows = queue_node.queues.machines()["q"].windows
        await queue_node.eventually(lambda: P in windows)
        goes_on.set()
        await queue_node.eventually(lambda: not queue.writing_cursor)
        assert (windows[P].base, windows[P].state) == (entry.offset, state)


@pytest.mark.virtual_time(False)  # a thread waits for the loop
async def test_a_beginning_that_is_still_looked_for_undoes_nothing_that_another_leader_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue without a position begins at a given time. While its offset is searched, leadership is lost and regained,
    and the other leader has written a position with a gap: no second position overwrites it, or the gap would be
    lost."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        (queue,) = queue_node.served()
        decree = CursorCommand(7, "register", queue_node.clock.wall_ms(), "ann", 5, "")
        queue.stored = queue.stored._replace(command=decree)
        read, decided, goes_on = queue_node.store.cursor, threading.Event(), threading.Event()

        def cursor(partition: int, name: bytes) -> Cursor:
            return read(partition, name) if partition != P or decided.is_set() else Cursor(0, None, None)

        def slow(_partition: int, _at_ms: int) -> int:
            assert goes_on.wait(60)
            return 0

        monkeypatch.setattr(queue_node.store, "cursor", cursor)
        monkeypatch.setattr(queue_node.store, "offset_at", slow)
        queue_node.lead(P)
        await asyncio.sleep(0.02)
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        gap = QueueGap(0, 1, 5, 6, 1, "cleared", "ann", "")
        state = CursorState(queue_node.fake_store.ends[P], 1, SINK, 7, (gap,))
        entry = queue_node.factory.cursor(P, b"q", encode_state(state))
        queue_node.fake_store.put(P, entry)
        queue_node.store.write([PartitionStep(P, [entry])])
        decided.set()
        queue_node.lead(P)
        goes_on.set()
        await asyncio.sleep(0.05)
        window = queue_node.queues.machines()["q"].windows[P]
        assert (window.base, window.state.gaps) == (entry.offset, (gap,))

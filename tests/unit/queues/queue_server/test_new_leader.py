"""Claims about where a queue stands at a new leader, whatever that was told."""

from __future__ import annotations

import asyncio
import threading

import pytest

from isthmus.queues.cursors import CursorState, decode_soft, encode_soft, encode_state, position_of
from isthmus.queues.gaps import QueueGap
from isthmus.queues.queue_documents import CursorCommand
from isthmus.queues.wire import BatchAck
from isthmus.repl.store.port import Cursor, PartitionStep
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.support.queue_source import SINK

pytestmark = pytest.mark.virtual_time

P = PARTITIONS[0]


async def test_a_soft_cursor_above_the_log_of_its_leader_hides_no_change() -> None:
    """A follower may know a cursor above what its own log holds. Made to lead, it writes those offsets anew: what
    stands there then is offered, and the store no longer says that it is acknowledged."""

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
    """A copy that knows what the leader before a forced one was acknowledged may lead after it, under the same CURSOR
    entry: others stand at those offsets by then, and they are offered. What is acknowledged from then on counts there,
    and is all that counts."""

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
    """A leader hears of its successor by force from the record that has the new lineage: what it lets travel then is of
    the lineage under which it was acknowledged."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a", b"b")
        reply = await queue_node.fetch()
        await queue_node.fetch(acks=[BatchAck(reply.batch, reply.owner_version)], wait_ms=0)
        queue_node.lineages[P] = 1
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        assert acknowledged(queue_node)[1:] == (queue_node.fake_store.ends[P], 0)


async def test_missed_notifications_are_read_from_the_change_index() -> None:
    """A window that knew all, and hears of a change behind some that it never heard of, reads those from the store."""

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
    """Leadership goes and comes back while the read of where the queue stands is under way: what counts is the CURSOR
    entry that came between, not what that read brings."""

    async with QueueNode() as queue_node:
        queue_node.put(b"a")
        assert await queue_node.drain() == [b"a"]
        queue_node.queues.leadership(P, False, queue_node.fake_store.ends[P])
        before, read, here = queue_node.store.cursor(P, b"q"), queue_node.store.cursor, threading.current_thread()
        goes_on = threading.Event()

        def slow(partition: int, queue: bytes) -> Cursor:
            if threading.current_thread() is here:
                return read(partition, queue)
            assert goes_on.wait(5)
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
async def test_a_beginning_that_is_still_looked_for_undoes_nothing_that_another_leader_decided(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A queue that never stood anywhere is to begin at a time. While its offset is looked for, leadership goes and
    comes back, and the leader between has written where the queue stands, with a gap: no second beginning is written
    over that, or the gap would be forgotten."""

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
            assert goes_on.wait(5)
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

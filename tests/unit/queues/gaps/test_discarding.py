"""Gaps of a queue with overflow `discard`: their range and count while more is dropped than the pending entry
records."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from isthmus.config.settings import QueueSettings
from isthmus.queues.admin import GapChoice
from isthmus.queues.cursors import encode_state
from isthmus.queues.queue_documents import CLEARED, AuditInfo, CursorCommand, execute
from isthmus.repl.model.errors import NotReady
from tests.support.queue_node import PARTITIONS, QueueNode
from tests.unit.queues.source_queue.test_rules import P, QueueFixture, keys

pytestmark = pytest.mark.virtual_time

LIMIT = 10


def test_changes_dropped_while_an_entry_is_pending_are_counted_once() -> None:
    """Changes are dropped between the claim of a gap and the CURSOR entry that records it: the next entry adds only
    those, and both together are one gap that counts each change once."""
    fixture = QueueFixture(reference_limit=LIMIT)
    fixture.budget.discard = True
    for number in range(LIMIT + 5):
        fixture.write(b"a%d" % number)
    ((_, first),) = fixture.queue.wanted_cursors(0)
    for number in range(7):
        fixture.write(b"b%d" % number)
    entry = fixture.factory.cursor(P, b"q", encode_state(first))
    fixture.fake_store.put(P, entry)
    fixture.queue.cursor_applied(P, b"default", entry.offset, first)
    ((_, second),) = fixture.queue.wanted_cursors(0)
    (gap,) = second.gaps
    assert (gap.start, gap.end, gap.left_out) == (LIMIT, LIMIT + 12, 12)
    assert fixture.queue.windows[P].ledger.given_up == 12
    assert fixture.queue.windows[P].ledger_error() == 0


async def test_a_gap_that_is_closed_takes_none_with_it_whose_entry_is_under_way() -> None:
    """A full-sync closes an old gap while the CURSOR entry of a new one is being written: both entries have the whole
    state of the queue, and the later one must keep the new gap, whichever it is (R-GAP)."""

    queue_node = QueueNode(QueueSettings("q", queue_limit_count=LIMIT, overflow="discard"))
    await queue_node.start()
    (queue,) = queue_node.served()
    await queue_node.drain()
    for turn in range(2):
        queue_node.put(*(b"%d/%d" % (turn, number) for number in range(LIMIT + 5)))
        if not turn:
            await queue_node.eventually(lambda: queue.machine.windows[PARTITIONS[0]].state.gaps)
            assert len(await queue_node.drain()) == LIMIT
    (old,) = queue_node.acts.gaps("q")
    queue_node.queues._go_on(queue)
    await asyncio.sleep(0)
    assert PARTITIONS[0] in queue.writing_cursor
    with contextlib.suppress(NotReady):
        await queue_node.acts.close_gaps("q", GapChoice((old["id"],)), AuditInfo("ann", 1, ""))
    assert len(await queue_node.drain()) == LIMIT
    await queue_node.eventually(lambda: not queue.writing_cursor)
    left = [gap for gap in queue_node.acts.gaps("q") if gap["id"] != old["id"]]
    assert [gap["count_at_least"] for gap in left] == [5]
    await queue_node.acts.close_gaps("q", GapChoice((old["id"],)), AuditInfo("ann", 1, ""))
    assert queue_node.acts.gaps("q") == left
    await queue_node.close()


async def test_no_gap_is_closed_beside_a_cursor_entry_under_way() -> None:
    """Each CURSOR entry has the whole state: one that closes a gap, written beside another one, would undo what the
    other one records, or be undone by it. The call is refused as retryable, and changes nothing."""

    queue_node = QueueNode(QueueSettings("q", queue_limit_count=LIMIT, overflow="discard"))
    await queue_node.start()
    (queue,) = queue_node.served()
    await queue_node.drain()
    for partition in PARTITIONS:
        queue_node.put(*(b"%d/%d" % (partition, number) for number in range(2 * LIMIT)), partition=partition)
    await queue_node.eventually(lambda: all(window.state.gaps for window in queue.machine.windows.values()))
    before = queue_node.acts.gaps("q")
    proven = {partition: queue.machine.windows[partition].state.gaps for partition in PARTITIONS}
    end = dict(queue_node.fake_store.ends)
    queue.writing_cursor.add(PARTITIONS[0])
    with pytest.raises(NotReady, match="another cursor entry of partition 3 is under way"):
        await queue_node.queues._cursors.close_gaps(queue, proven)
    assert (queue_node.acts.gaps("q"), queue_node.fake_store.ends) == (before, end)
    queue.writing_cursor.clear()
    write = queue_node.write_cursor

    async def writing(partition: int, name: bytes, payload: bytes) -> int:
        queue.writing_cursor.add(PARTITIONS[1])  # an entry of the other partition begins meanwhile
        return await write(partition, name, payload)

    queue_node.write_cursor = writing  # type: ignore[method-assign]
    assert await queue_node.queues._cursors.close_gaps(queue, proven) == 1
    assert {gap["partition"] for gap in queue_node.acts.gaps("q")} == {PARTITIONS[1]}
    queue.writing_cursor.clear()
    await queue_node.close()


async def test_the_entry_that_closes_a_gap_records_all_changes_dropped_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each CURSOR entry has the whole state, so one entry closes the old gap and records the new one: an earlier entry
    of the new gap, of unknown outcome, may be applied before or after it."""

    queue_node = QueueNode(QueueSettings("q", queue_limit_count=LIMIT, overflow="discard"))
    await queue_node.start()
    (queue,) = queue_node.served()
    await queue_node.drain()
    window = queue.machine.windows[PARTITIONS[0]]
    queue_node.put(*(b"0/%d" % number for number in range(LIMIT + 5)))
    await queue_node.eventually(lambda: window.state.gaps)
    assert len(await queue_node.drain()) == LIMIT
    (old,) = queue_node.acts.gaps("q")
    monkeypatch.setattr(queue_node.queues._cursors, "write_pending_cursors", lambda _queue: None)
    queue_node.put(*(b"1/%d" % number for number in range(LIMIT + 5)))
    assert window.unrecorded_gaps()
    await queue_node.acts.close_gaps("q", GapChoice((old["id"],)), AuditInfo("ann", 1, ""))
    window = queue.machine.windows[PARTITIONS[0]]
    assert [gap.left_out for gap in window.state.gaps] == [5]
    assert not window.unrecorded_gaps()
    await queue_node.close()


def test_acknowledgements_above_an_unrecorded_overflow_are_not_lost() -> None:
    """The CURSOR entry of a gap is late: changes acknowledged above it are counted in the ledger, not pending in the
    lag, and explained correctly; the dropped changes are not counted as anything else."""
    fixture = QueueFixture(reference_limit=LIMIT)
    fixture.budget.discard = True
    for number in range(LIMIT + 5):
        fixture.write(b"a%d" % number)
    fixture.ack(fixture.take()[0])
    fixture.write(b"b")
    fixture.ack(fixture.take()[0])
    fixture.write(b"c")
    window = fixture.queue.windows[P]
    assert window.cursor == LIMIT, "the gap is on no record"
    rows = fixture.fake_store.changes(P, 0, 100)
    assert window.find_lost(rows) == []
    assert [row.key for row in window.unsettled(rows)] == [b"c"]
    (above,) = [row.offset for row in rows if row.key == b"b"]
    assert window.locate(above)[0] == "acknowledged"


def test_the_second_of_two_entries_counts_even_if_it_drops_less() -> None:
    """The outcome of an entry that executes a clear is unknown, and a second one follows that clears less: changes that
    only the first one left out are offered."""
    fixture = QueueFixture()
    for number in range(6):
        fixture.write(b"a%d" % number)
    window = fixture.queue.windows[P]
    clear = CursorCommand(1, CLEARED, 1, "ann", 7, "")
    states = [execute(window.state, window.cursor, clear, start, 7) for start in (6, 2)]
    for state in states:
        entry = fixture.factory.cursor(P, b"q", encode_state(state))
        fixture.fake_store.put(P, entry)
        fixture.queue.add(P, [entry], 0)
        fixture.queue.cursor_applied(P, b"default", entry.offset, state)
    fixture.refill()
    assert [(gap.start, gap.end) for gap in fixture.queue.windows[P].state.gaps] == [(0, 2)]
    assert keys(fixture.take()[1]) == [b"a2", b"a3", b"a4", b"a5"]

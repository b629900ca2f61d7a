"""What whoever waits for an entry gets when leadership ends, and what the next leadership of the node still sees."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any

from isthmus.repl.isr.effects import SteppedDown
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.errors import OutcomeUnknown
from isthmus.repl.runtime.partition import BatchResult, PendingBatch
from isthmus.repl.runtime.waiters import Waiters


def waiting(partition: Any, end: int) -> BatchResult:
    """A request of one item that is answered "done" once all below `end` is applied."""
    waiter = BatchResult(asyncio.get_running_loop().create_future(), 1)
    waiter.results[0], waiter.remaining = "done", 1
    partition.groups.append(PendingBatch(end, waiter, (0,)))
    return waiter


def a_partition() -> Any:
    """As much of a partition as waiters need."""
    return SimpleNamespace(id=3, groups=deque(), pending_rows={}, reads={})


def entry(offset: int) -> Entry:
    return make_entry(EntryKind.DATA, 1, offset, request_id=b"", origin=b"o" * 16, time_ms=0)


def test_what_is_not_known_to_be_committed_is_unknown_and_the_rest_is_answered_when_applied() -> None:
    """I-ACK, I-NO-FALSE-NACK: entries below `unknown_from` are committed and their writes are answered by apply; the
    others may be dropped, so their writes are told at once that nobody here knows, and never that they are done."""

    async def story() -> None:
        promises, partition = Waiters(), a_partition()
        committed, appended = waiting(partition, 5), waiting(partition, 6)
        promises.stepped_down(partition, SteppedDown(2, 5, "fenced"))
        assert appended.future.done()
        assert isinstance(appended.future.result()[0], OutcomeUnknown)
        assert not committed.future.done()
        promises.applied(partition, 9)
        assert await committed.future == ["done"]
        assert not partition.groups

    asyncio.run(story())


def test_a_next_leadership_does_not_read_what_may_have_been_dropped() -> None:
    """A leader reads its own entries before they are applied. When its leadership ends they may be cut off, and a write
    of its next one must not be judged by them, nor rest on their clocks."""

    async def story() -> None:
        promises, partition = Waiters(), a_partition()
        partition.pending_rows[b"b", b"k"] = entry(7)
        promises.stepped_down(partition, SteppedDown(2, 5, "fenced"))
        assert not partition.pending_rows

    asyncio.run(story())

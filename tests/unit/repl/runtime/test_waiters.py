"""Waiting requests, also when leadership ends, and unapplied entries that the next leadership must not see."""

from __future__ import annotations

import asyncio

from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.errors import BadInput, Corruption, Fenced, NotReady, OutcomeUnknown
from isthmus.repl.runtime.unapplied import MemoryWindow, UnappliedBuffer
from isthmus.repl.runtime.waiters import BatchResult, PendingBatch, Waiters


def waiting(waiters: Waiters, end: int) -> BatchResult:
    """A request of one item that is answered "done" once all entries below `end` are applied."""
    result = BatchResult(asyncio.get_running_loop().create_future(), 1)
    result.results[0], result.remaining = "done", 1
    waiters.add([PendingBatch(end, result, (0,))])
    return result


def entry(offset: int) -> Entry:
    return make_entry(
        EntryKind.DATA, 1, offset, request_id=b"", origin=b"o" * 16, time_ms=0, bucket=b"b", key=b"k", payload=b"v"
    )


async def test_uncommitted_writes_are_unknown_and_committed_ones_are_answered_when_applied() -> None:
    """I-ACK, I-NO-FALSE-NACK: entries below the given offset are committed and their writes are answered by apply; the
    others may be dropped, so their writes fail at once with an unknown outcome, and never succeed."""

    waiters = Waiters()
    committed, appended = waiting(waiters, 5), waiting(waiters, 6)
    waiters.fail_above(5, OutcomeUnknown("fenced"))
    assert appended.future.done()
    assert isinstance(appended.future.result()[0], OutcomeUnknown)
    assert not committed.future.done()
    waiters.applied(9)
    assert await committed.future == ["done"]
    assert waiters.idle


async def test_each_read_has_a_future_of_its_own_that_its_reader_may_cancel() -> None:
    """Reads of one confirmation are answered one by one; a cancelled one affects neither the others nor a later
    refusal."""
    waiters = Waiters()
    (left, cancelled), (stays, confirmed) = waiters.add_read(), waiters.add_read()
    assert cancelled is not confirmed
    cancelled.cancel()
    waiters.reads_confirmed((left, stays))
    assert cancelled.cancelled()
    assert confirmed.result() is None
    _, cancelled = waiters.add_read()
    _, refused = waiters.add_read()
    cancelled.cancel()
    waiters.refuse_all_reads(NotReady("the node stops"))
    assert isinstance(refused.exception(), NotReady)
    assert waiters.idle


async def test_an_item_that_was_refused_is_not_unknown_when_leadership_ends() -> None:
    """I-ANSWER: only the items of a batch that have entries may have taken effect. A refusal may rest on entries that
    are dropped now, or on an ended leadership, so it becomes a definite 503."""
    forged, damaged = BadInput("clock of a newer leader"), Corruption("a damaged row")
    result = BatchResult(asyncio.get_running_loop().create_future(), 3)
    result.results[:], result.remaining = [forged, "written", damaged], 1
    waiters = Waiters()
    waiters.add([PendingBatch(6, result, (0, 1, 2))])
    waiters.fail_above(5, OutcomeUnknown("session-expired"))
    answers = result.future.result()
    assert [type(answer) for answer in answers] == [Fenced, OutcomeUnknown, Fenced]
    assert "nothing was written" in str(answers[0])


async def test_a_definite_failure_of_a_batch_replaces_its_refusals() -> None:
    """Nothing of the batch was appended, so all of its items get the same answer."""
    result = BatchResult(asyncio.get_running_loop().create_future(), 2)
    result.results[:], result.remaining = [BadInput("no key"), None], 1
    result.fail((0, 1), NotReady("the node stops"))
    assert [type(answer) for answer in result.future.result()] == [NotReady, NotReady]


async def test_an_answer_that_waits_for_an_older_entry_goes_before_newer_ones() -> None:
    """Batches are answered in the order of their ends, for any order in which they were added."""

    waiters = Waiters()
    newer, older = waiting(waiters, 7), waiting(waiters, 3)
    waiters.applied(3)
    assert older.future.done()
    assert not newer.future.done()


async def test_answered_requests_are_dropped_and_their_uncommitted_items_counted() -> None:
    """A request that timed out is dropped; its items count as late unless their entries are committed."""

    waiters = Waiters()
    for end in (4, 5, 6):
        waiting(waiters, end).future.set_result([])
    kept = waiting(waiters, 7)
    assert waiters.drop_answered(committed_end=4) == 2
    assert not waiters.idle
    waiters.applied(7)
    assert await kept.future == ["done"]


def test_a_next_leadership_does_not_read_entries_that_may_have_been_dropped() -> None:
    """A leader reads its own entries before they are applied. When its leadership ends they may be truncated, and a
    write of its next one must neither be judged by them nor build on their clocks."""
    unapplied = UnappliedBuffer(0, 0, MemoryWindow(1_000))
    unapplied.add_pending_rows({(b"b", b"k"): entry(7)})
    unapplied.clear_pending_rows()
    assert not unapplied.pending_rows


def test_an_applied_entry_leaves_the_pending_rows_unless_a_newer_one_replaced_it() -> None:
    """The newest unapplied entry of a key stays visible until it is applied itself."""
    unapplied = UnappliedBuffer(0, 0, MemoryWindow(1_000))
    older, newer = entry(7), entry(8)
    unapplied.add_pending_rows({(b"b", b"k"): older})
    unapplied.add_pending_rows({(b"b", b"k"): newer})
    unapplied.applied([older], read_back=True)
    assert unapplied.pending_rows[b"b", b"k"] is newer
    unapplied.applied([newer], read_back=True)
    assert not unapplied.pending_rows

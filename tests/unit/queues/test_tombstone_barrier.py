"""Queues that still need a tombstone: by filter, cursor and gap, read from the store."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from isthmus.queues.cursors import CursorState, encode_soft, encode_state
from isthmus.queues.gaps import QueueGap
from isthmus.queues.tombstone_barrier import TombstoneBarrier
from isthmus.repl.store.port import Cursor


class FakeQueue:
    """A queue that offers one bucket."""

    def includes(self, _bucket_type: bytes, bucket: bytes) -> bool:
        return bucket == b"b"


class FakeCursorRows:
    """The store's cursor rows."""

    def __init__(self, state: CursorState | None, soft: int | None = None) -> None:
        self.rows = Cursor(
            5, None if state is None else encode_state(state), None if soft is None else encode_soft(5, soft, 0)
        )

    def cursor(self, _partition: int, queue: bytes) -> Cursor:
        assert queue == b"to-west"
        return self.rows


def wait_reason(state: CursorState | None, soft: int | None = None, bucket: bytes = b"b", lineage: int = 0) -> str:
    queues: Any = SimpleNamespace(machines=lambda: {"to-west": FakeQueue()}, unread="")
    rows: Any = FakeCursorRows(state, soft)
    cursors: Any = SimpleNamespace(lineage=lambda _partition: lineage)
    barrier = TombstoneBarrier(queues, rows, cursors)
    assert barrier.replicates(b"t", b"b")
    assert not barrier.replicates(b"t", b"c")
    return barrier.blocked_by(3, 10, b"t", bucket)


def test_a_queue_waits_until_its_cursor_has_passed() -> None:
    """A cursor at the tombstone's own offset has not passed it, one above has, wherever the cursor was moved from."""
    assert "no cursor in partition 3 yet" in wait_reason(None)
    assert (
        wait_reason(CursorState(10))
        == "queue to-west: acknowledged below offset 10, the tombstone is at 10 of partition 3"
    )
    assert wait_reason(CursorState(0), soft=10).startswith("queue to-west")
    assert wait_reason(CursorState(0), soft=11) == ""
    assert wait_reason(CursorState(11)) == ""


def test_acknowledgements_before_a_forced_election_do_not_count() -> None:
    """A soft cursor of another lineage than the partition's refers to other entries (R-SOFT)."""
    assert wait_reason(CursorState(0), soft=11, lineage=1).startswith("queue to-west: acknowledged below offset 0")


def test_other_buckets_wait_for_nothing() -> None:
    """A queue that does not include the bucket does not count."""
    assert wait_reason(None, bucket=b"c") == ""


def test_a_gap_holds_a_tombstone_until_it_is_closed() -> None:
    """Changes in a gap were never acknowledged, wherever the cursor is."""
    gap = QueueGap(8, 11, 1, 2, 0, "discard", "ann", "full")
    assert "gap (discard)" in wait_reason(CursorState(20, gaps=(gap,)))
    assert "gap (discard)" in wait_reason(CursorState(20, gaps=(gap._replace(start=10),))), "it is the gap's first"
    for before_or_after in (gap._replace(end=10), gap._replace(start=11, end=12)):
        assert wait_reason(replace(CursorState(20), gaps=(before_or_after,))) == ""


def test_while_queues_are_unread_every_tombstone_waits() -> None:
    """A node that does not know which queues there are cannot know that none of them needs the tombstone."""
    queues: Any = SimpleNamespace(machines=dict, unread="which queues there are cannot be read")
    barrier = TombstoneBarrier(queues, FakeCursorRows(None), SimpleNamespace(lineage=lambda _partition: 0))  # type: ignore[arg-type]
    assert barrier.blocked_by(3, 10, b"t", b"b") == "which queues there are cannot be read"

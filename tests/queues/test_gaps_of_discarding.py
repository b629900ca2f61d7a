"""Gaps of a queue that discards: what they cover and count, while more is given up than an entry under way says."""

from __future__ import annotations

from queues.cursors import encode_state
from tests.queues.test_source_queue_rules import Desk, P

LIMIT = 10


def test_what_is_given_up_while_an_entry_is_under_way_is_counted_once() -> None:
    """Changes are given up between the claim of a gap and the CURSOR entry that records it: the next entry adds only
    those, and both together are one gap that counts each change once."""
    desk = Desk(reference_limit=LIMIT)
    desk.budget.discard = True
    for number in range(LIMIT + 5):
        desk.write(b"a%d" % number)
    ((_, first),) = desk.queue.unclaimed(0)
    for number in range(7):
        desk.write(b"b%d" % number)
    entry = desk.pen.cursor(P, b"q", encode_state(first))
    desk.shelf.put(P, entry)
    desk.queue.decided(P, b"default", entry.offset, first)
    ((_, second),) = desk.queue.unclaimed(0)
    (gap,) = second.gaps
    assert (gap.start, gap.end, gap.left_out) == (LIMIT, LIMIT + 12, 12)
    assert desk.queue.windows[P].ledger.given_up == 12
    assert desk.queue.windows[P].close_ledger() == 0

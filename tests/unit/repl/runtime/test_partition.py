"""Bookkeeping of the runtime without I/O: entries in memory, the sending of soft cursors, and the splitting of batches
into messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.isr.messages import AppendEntries
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.runtime.cursor_gossip import SEND_INTERVAL_MS, CursorGossip
from isthmus.repl.runtime.replication_sender import PART_BYTES, _parts
from isthmus.repl.runtime.unapplied import MemoryWindow, UnappliedBuffer, wire_bytes


def entry(offset: int, epoch: int = 1, size: int = 10) -> Entry:
    return make_entry(
        EntryKind.DATA, epoch, offset, request_id=b"", origin=b"o" * 16, time_ms=0, key=b"k", payload=b"x" * size
    )


@given(
    st.integers(0, 5),
    st.integers(0, 5),
    st.lists(st.tuples(st.sampled_from(["appk", "enc", "tru", "rel"]), st.integers(1, 6))),
)
def test_entries_are_handed_over_in_log_order(submitted: int, more: int, acts: list[tuple[str, int]]) -> None:
    """For any appends, truncations, drops and hand-overs, decoded or not: the ranges follow each other without a gap,
    have the newest entries of their offsets, and the counted bytes are those in memory."""
    window = MemoryWindow(1_000)
    unapplied = UnappliedBuffer(submitted, submitted + more, window)
    log = {offset: entry(offset) for offset in range(submitted, submitted + more)}
    end, epoch, on_the_way = submitted + more, 1, []
    for act, count in acts:
        match act:
            case "app" | "appk":
                fresh = [entry(offset, epoch) for offset in range(end, end + count)]
                unapplied.append(fresh)
                log.update((e.offset, e) for e in fresh)
                end += count
            case "enc":
                fresh = [entry(offset, epoch) for offset in range(end, end + count)]
                unapplied.append_encoded(end, [e.wire for e in fresh])
                log.update((e.offset, e) for e in fresh)
                end += count
            case "tru":
                end = max(unapplied.submitted, end - count)
                epoch += 1
                unapplied.truncate(end)
            case "rel":
                unapplied.release(max(unapplied.first, end - count))
        if act == "appk" or (act == "enc" and count > 2):
            before = unapplied.submitted
            stretches = unapplied.take_committed(min(end, before + count), keep=count % 2 == 0)
            at = before
            for stretch in stretches:
                assert stretch.start == at < stretch.end
                at = stretch.end
                if stretch.entries is not None:
                    assert stretch.entries == [log[offset] for offset in range(stretch.start, stretch.end)]
                    on_the_way.append(stretch.entries)
            assert at == unapplied.submitted
        inside = unapplied.held(unapplied.first, end) or []
        assert len(inside) == max(0, end - unapplied.first)
        assert inside == [log[offset] for offset in range(unapplied.first, end)]
        assert window.held_bytes == unapplied.held_bytes == wire_bytes(inside) + sum(map(wire_bytes, on_the_way))
    for entries in on_the_way:
        unapplied.applied(entries, read_back=False)
    assert unapplied.held_bytes == wire_bytes(unapplied.held(unapplied.first, end) or [])


def test_entries_that_the_store_has_already_are_not_kept() -> None:
    """A log that ends below the applied offset receives those entries again without a second apply."""
    unapplied = UnappliedBuffer(5, 2, MemoryWindow(1_000))
    unapplied.append([entry(2), entry(3)])
    unapplied.append([entry(4), entry(5), entry(6)])
    assert unapplied.take_committed(4) == []
    (stretch,) = unapplied.take_committed(7)
    assert (stretch.start, stretch.end) == (5, 7)
    assert stretch.entries is not None
    assert [e.offset for e in stretch.entries] == [5, 6]


def test_soft_cursors_are_sent_once_a_second_and_at_once_on_request() -> None:
    """The newest cursor of each queue is sent to each follower, at most once a second except at a hand-over, not
    without changes, and again if it may have been lost."""
    soft = CursorGossip()
    assert soft.due("n2", 0, at_once=True) == {}
    soft.update(b"q", b"1")
    assert soft.due("n2", 0, at_once=False) == {b"q": b"1"}
    soft.sent("n2", 0)
    assert soft.due("n2", 10_000, at_once=True) == {}
    soft.update(b"q", b"1")
    assert soft.due("n2", 10_000, at_once=True) == {}, "no news"
    soft.update(b"q", b"2")
    soft.update(b"r", b"1")
    assert soft.due("n2", SEND_INTERVAL_MS - 1, at_once=False) == {}
    assert soft.due("n2", SEND_INTERVAL_MS - 1, at_once=True) == {b"q": b"2", b"r": b"1"}
    assert soft.due("n2", SEND_INTERVAL_MS, at_once=False) == {b"q": b"2", b"r": b"1"}
    assert soft.due("n3", 0, at_once=False) == {b"q": b"2", b"r": b"1"}
    soft.sent("n2", SEND_INTERVAL_MS)
    soft.lost("n2")
    assert soft.due("n2", SEND_INTERVAL_MS, at_once=False) == {b"q": b"2", b"r": b"1"}


@given(st.lists(st.sampled_from((10, 200_000, 600_000, 1_500_000)), min_size=1, max_size=8), st.booleans())
def test_parts_are_the_whole_in_order(sizes: list[int], whole: bool) -> None:
    """Parts follow each other, each has the epoch before it, none exceeds the limit except for a single entry, and only
    the one that reaches the end of the request has its number."""
    entries = [entry(3 + at, 1 + at // 2, size) for at, size in enumerate(sizes)]
    head = AppendEntries(9, 7, 3, 1, 0, 50, 1, ("n1",))
    end = 3 + len(sizes) + (0 if whole else 1)
    parts = list(_parts(head, entries, end))
    assert [e for part in parts for e in part.entries] == entries
    before, at = head.before, head.start
    for part in parts:
        assert (part.start, part.before) == (at, before)
        assert len(part.entries) == 1 or wire_bytes(part.entries) <= PART_BYTES
        at, before = at + len(part.entries), part.entries[-1].epoch
    assert [part.seq for part in parts] == [6] * (len(parts) - 1) + [7 if whole else 6]

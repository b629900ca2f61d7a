"""A queue's cursor: its encoding, which cursor counts, and when it is reported."""

from __future__ import annotations

import msgpack
import pytest

from isthmus.queues.cursors import (
    CursorPosition,
    CursorState,
    decode_soft,
    decode_state,
    encode_soft,
    encode_state,
    position_of,
)
from isthmus.queues.gaps import GAPS_MAX, OPEN, QueueGap
from isthmus.repl.model.errors import CodecError
from isthmus.repl.store.port import Cursor
from tests.support.queue_source import SINK
from tests.unit.queues.source_queue.test_rules import P, QueueFixture


def test_soft_cursors_count_only_on_top_of_their_entry_and_forward() -> None:
    """R-SOFT: a soft state made under another CURSOR entry is ignored; an older one moves nothing back."""
    entry = encode_state(CursorState(10, 2, SINK))
    assert position_of(Cursor(-1, None, encode_soft(5, 99, 0)), 0) is None
    for lineage in (0, 3):
        for base, made_at, cursor in [(5, 99, 10), (40, 77, 77), (40, 3, 10)]:
            position = position_of(Cursor(40, entry, encode_soft(base, made_at, lineage)), lineage)
            assert position == CursorPosition(40, CursorState(10, 2, SINK), cursor)
        assert position_of(Cursor(40, entry, None), lineage) == CursorPosition(40, CursorState(10, 2, SINK), 10)


def test_soft_cursors_count_only_in_the_lineage_they_were_made_in() -> None:
    """R-SOFT: after a forced election, earlier acknowledgements do not count, nor do those of a leader of the new
    lineage at a replica that does not know it; the last CURSOR entry counts."""
    entry = encode_state(CursorState(10, 2, SINK))
    for made_in, lineage in [(0, 1), (1, 0), (1, 2), (2, 1)]:
        assert position_of(Cursor(40, entry, encode_soft(40, 77, made_in)), lineage) == CursorPosition(
            40, CursorState(10, 2, SINK), 10
        )


def test_soft_cursors_keep_their_bytes_until_a_leader_is_forced() -> None:
    """Soft cursors of lineage 0 have version 1, which every version of the program writes and reads."""
    assert encode_soft(3, 4, 0) == b"\x93\x01\x03\x04"
    assert encode_soft(3, 4, 7) == b"\x94\x02\x03\x04\x07"


def test_cursor_entries_have_their_golden_bytes() -> None:
    """Version 1 without command and gaps, else version 2; both are decoded to what was encoded."""
    plain = CursorState(300, 2, SINK)
    gap = QueueGap(3, 9, 1_700_000_000_000, 1_700_000_000_500, 4, "cleared", "ann é", "")
    growing = QueueGap(12, OPEN, 5, 5, 0, "publishing-suspended", "bob", "disk")
    whole = CursorState(12, 2, b"", 7, (gap, growing))
    assert encode_state(plain) == b"\x94\x01\xcd\x01\x2c\x02\xc4\x10" + SINK
    assert encode_state(whole) == msgpack.packb([2, 12, 2, b"", 7, [list(gap), list(growing)]])
    assert [decode_state(encode_state(state)) for state in (plain, whole)] == [plain, whole]


@pytest.mark.parametrize(
    "gaps",
    [
        [[3, 9, 1, 2, 0, "what", "by"]],
        [[3, 9, 1, 2, 0, "what", "by", "reason", 1]],
        [[9, 3, 1, 2, 0, "what", "by", "reason"]],
        [[-1, 3, 1, 2, 0, "what", "by", "reason"]],
        [[3, OPEN + 1, 1, 2, 0, "what", "by", "reason"]],
        [[3, 9, 1.0, 2, 0, "what", "by", "reason"]],
        [[3, 9, 1, 2, True, "what", "by", "reason"]],
        [[3, 9, 1, 2, 0, b"what", "by", "reason"]],
        [[3, 9, 1, 2, 0, "\udcff", "by", "reason"]],
        [[n, n + 1, 1, 2, 0, "", "", ""] for n in range(GAPS_MAX + 1)],
        {},
    ],
    ids=str,
)
def test_gaps_of_a_wrong_shape_are_refused(gaps: object) -> None:
    """Wrong types or numbers of fields, invalid ranges, more than GAPS_MAX gaps, and texts that are not UTF-8 are
    refused."""
    payload = msgpack.packb([2, 12, 2, b"", 7, gaps], unicode_errors="surrogateescape")
    with pytest.raises(CodecError, match="not a cursor entry"):
        decode_state(payload)


def test_cursor_payloads_refuse_what_they_would_not_write() -> None:
    """Round trips hold, and other bytes are a CodecError."""
    assert decode_state(encode_state(CursorState())) == CursorState()
    assert decode_soft(encode_soft(3, 4, 0)) == (3, 4, 0)
    assert decode_soft(encode_soft(3, 4, 7)) == (3, 4, 7)
    for bad in (
        b"",
        b"\xc1",
        b"\x94\x02\x00\x00\xc4\x00",
        encode_soft(1, 2, 0),
        encode_state(CursorState(-1)),
        b"\x93" * 9,
    ):
        with pytest.raises(CodecError):
            decode_state(bad)
    for bad in (
        b"",
        encode_state(CursorState()),
        encode_soft(-1, 0, 0),
        encode_soft(1, 0, -1),
        b"\x93\x02\x00\x00",
        b"\x94\x01\x00\x00\x01",
        b"\x94\x02\x00\x00\x00",
        b"\x93\x03\x00\x00",
    ):
        with pytest.raises(CodecError):
            decode_soft(bad)


def test_a_cursor_entry_that_moves_the_cursor_takes_effect_at_once() -> None:
    """A rule or an operator may move a cursor forward: changes below it are no longer offered or acknowledged."""
    fixture = QueueFixture()
    fixture.write(b"a")
    fixture.write(b"b")
    batch, _ = fixture.take(count=1)
    fixture.queue.cursor_applied(P, b"default", 2, CursorState(3, 1, SINK))
    fixture.ack(batch)
    fixture.refill()
    assert fixture.take()[1] == []
    assert fixture.cursor == 3
    assert fixture.budget.references == fixture.budget.objects == 0


def test_moved_cursors_are_handed_out_once_and_again_after_a_new_entry() -> None:
    """A cursor is handed out for saving when it moved, and again under a new CURSOR entry's tag."""
    fixture = QueueFixture()
    fixture.write(b"a")
    assert fixture.queue.moved_cursors() == []
    fixture.ack(fixture.take()[0])
    assert fixture.queue.moved_cursors() == [(P, 0, 1)]
    assert fixture.queue.moved_cursors() == []
    fixture.queue.cursor_applied(P, b"default", 50, CursorState(0, 1, SINK))
    assert fixture.queue.moved_cursors() == [(P, 50, 1)]

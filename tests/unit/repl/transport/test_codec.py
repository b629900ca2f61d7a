"""Claims about messages as bytes: what is sent arrives the same, and nothing else is believed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.isr.messages import (
    AppendAck,
    AppendEntries,
    AppendRejected,
    FollowAccepted,
    FollowRejected,
    FollowRejection,
    FollowRequest,
    LeadershipCheck,
    LeadershipCheckOk,
    Message,
    StaleEpoch,
    TransferMetadata,
    TransferRequest,
    TransferRows,
)
from isthmus.repl.model.entry import make_entry
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.vclock import MAX_EPOCH, MAX_OFFSET
from isthmus.repl.transport.codec import Encoder, decode_item
from isthmus.repl.transport.frames import LIST_ITEMS_MAX, list_head, unpacked
from tests.support.link_nodes import entries_of, forward

epochs = st.integers(0, MAX_EPOCH)
offsets = st.integers(0, MAX_OFFSET)
numbers = st.integers(0, (1 << 64) - 1)
names = st.text("abcdefgh-1", min_size=1, max_size=64)


@st.composite
def tables(draw: st.DrawFn) -> tuple[tuple[int, int], ...]:
    """Epoch tables as a log makes them."""
    firsts = sorted(draw(st.sets(st.integers(1, MAX_EPOCH), max_size=20)))
    starts = sorted(draw(st.sets(offsets, min_size=len(firsts), max_size=len(firsts))))
    return tuple(zip(firsts, starts, strict=True))


@st.composite
def forwards(draw: st.DrawFn) -> AppendEntries:
    """Forwards with entries that follow each other."""
    start = draw(st.integers(0, MAX_OFFSET - 10))
    risings = sorted(draw(st.lists(st.integers(1, MAX_EPOCH), max_size=8)))
    before = draw(st.integers(0, risings[0] if risings else MAX_EPOCH))
    entries = tuple(
        make_entry(
            draw(st.sampled_from([1, 2, 4])),
            epoch,
            start + i,
            request_id=b"r",
            origin=b"o" * 16,
            time_ms=draw(st.integers(0, 1 << 45)),
            payload=draw(st.binary(max_size=300)),
        )
        for i, epoch in enumerate(risings)
    )
    return AppendEntries(
        draw(st.integers(risings[-1] if risings else 0, MAX_EPOCH)),
        draw(numbers), start, before, draw(offsets), draw(offsets), draw(numbers),
        tuple(draw(st.lists(names, max_size=4))), entries,
    )  # fmt: skip


messages = st.one_of(
    st.builds(FollowRequest, epochs, numbers, numbers, offsets, offsets, tables(), numbers),
    st.builds(
        TransferRequest, epochs, numbers, numbers, offsets, epochs, st.integers(0, 1), offsets, st.binary(max_size=9)
    ),
    st.builds(TransferRows, epochs, numbers, offsets, offsets, epochs, offsets, st.binary(max_size=300)),
    st.builds(
        TransferMetadata,
        *(epochs, numbers, offsets, st.binary(max_size=9), st.binary(max_size=9), st.integers(0, 1)),
        *(tables(), st.binary(max_size=300)),
    ),
    st.builds(FollowAccepted, epochs, numbers, offsets, offsets, offsets),
    st.builds(FollowRejected, epochs, numbers, st.sampled_from(list(FollowRejection)), offsets),
    forwards(),
    st.builds(AppendAck, epochs, numbers, numbers, offsets, offsets, offsets),
    st.builds(AppendRejected, epochs, numbers, numbers, offsets),
    st.builds(LeadershipCheck, epochs, numbers),
    st.builds(LeadershipCheckOk, epochs, numbers, numbers, offsets),
    st.builds(StaleEpoch, epochs),
)


def bytes_of(partition: int, message: Message, **more: Any) -> bytes:
    return b"".join(Encoder().item(partition, message, **more))


def decoded(item: bytes) -> Any:
    return decode_item(unpacked(list_head(1) + item)[0])


@given(st.integers(0, (1 << 32) - 1), messages)
def test_every_message_arrives_as_it_was_sent(partition: int, message: Message) -> None:
    """Partition, kind, every field and every entry's bytes come back equal, of the same types."""
    delivery = decoded(bytes_of(partition, message))
    assert delivery == (partition, message, {})
    assert type(delivery.message) is type(message)
    assert repr(delivery.message) == repr(message)


def test_cursors_travel_with_a_forward() -> None:
    """Names and states of cursors come back beside the message."""
    cursors = {b"q1": b"state", b"q2": b""}
    assert decoded(bytes_of(3, forward(1), cursors=cursors)).cursors == cursors


def test_entries_for_several_followers_are_joined_once() -> None:
    """Two followers that are sent the same entries in one turn share one copy of their bytes, until the turn ends."""
    encoder, entries = Encoder(), entries_of(5, 1000)
    first = encoder.item(1, forward(1, entries))
    second = encoder.item(1, forward(2, tuple(entries)))
    third = encoder.item(1, forward(2, entries[1:]))
    assert first[2] is second[2]
    assert first[2] is not third[2]
    assert decoded(b"".join(second)).message == forward(2, entries)
    encoder.forget()
    assert encoder.item(1, forward(1, entries))[2] is not first[2]


@given(messages, st.data())
def test_hostile_items_are_refused_and_nothing_else_happens(message: Message, data: st.DataObject) -> None:
    """Whatever becomes of a message's bytes, they decode to a message or to a CodecError."""
    item = bytearray(bytes_of(1, message))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(item) - 1))
        item[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(item)))
    for hostile in (bytes(item), bytes(item[:cut]), bytes(item) + b"\x00"):
        try:
            delivery = decoded(hostile)
        except CodecError:
            continue
        assert decoded(bytes_of(delivery.partition, delivery.message)).message == delivery.message


@settings(max_examples=40)
@given(st.recursive(st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text()
                    | st.binary(), lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.binary(), inner),
                    max_leaves=20))  # fmt: skip
def test_items_of_other_shapes_are_refused(shape: Any) -> None:
    """Any msgpack value in place of a message, or of one of its fields, is refused or is a message."""
    for wrong in (shape, [1, shape], [1, 5, shape], [1, 4, 1, 1, 0, 0, 0, 0, 1, ["a"], b"", b"", shape],
                  [1, 1, 1, 1, 1, 1, 1, shape], [1, 3, 1, 1, shape, 1], [shape, 9, 1]):  # fmt: skip
        try:
            decode_item(unpacked(msgpack.packb([wrong]))[0])
        except CodecError:
            continue


def hostile_forwards() -> list[tuple[str, AppendEntries | list[Any]]]:
    entries = entries_of(3, 10, start=5, epoch=2)
    good = AppendEntries(2, 1, 5, 1, 0, 0, 1, ("a",), entries)
    fields = unpacked(list_head(1) + bytes_of(1, good))[0]
    return [
        ("offset 5 where 6 stands", good._replace(start=6)),
        ("offset 7 where 6 stands", good._replace(entries=(entries[0], entries[2]))),
        ("epochs fall", good._replace(before=3, epoch=3)),
        ("rise above its own", good._replace(epoch=1)),
        ("belong to no entry", [*fields[:11], fields[11] + b"x", fields[12]]),
        ("not a log entry", [*fields[:10], fields[10] + b"\0\0\0\0", *fields[11:]]),
        ("not a log entry", [*fields[:11], b"\xc1" + fields[11][1:], fields[12]]),
        ("wrong type", [*fields[:10], fields[10] + b"\0", *fields[11:]]),
        ("within its range", [*fields[:2], True, *fields[3:]]),
        ("within its range", [*fields[:2], MAX_EPOCH + 1, *fields[3:]]),
        ("list of names", [*fields[:9], ["n" * 65], *fields[10:]]),
        ("cursor", [*fields[:12], {b"q": 1}]),
        ("number of fields", [*fields, 1]),
    ]


@pytest.mark.parametrize(("why", "hostile"), hostile_forwards())
def test_a_forward_whose_entries_do_not_fit_is_refused(why: str, hostile: AppendEntries | list[Any]) -> None:
    """Gaps, falling epochs, entries from later epochs, loose bytes and wrong types each have their sentence."""
    item = bytes_of(1, hostile) if isinstance(hostile, AppendEntries) else msgpack.packb(hostile)
    with pytest.raises(CodecError, match=why):
        decoded(item)


@pytest.mark.parametrize("table", [[(2, 5), (2, 6)], [(2, 5), (3, 5)], [(3, 5), (2, 6)], [(0, 1)], [(1, 1 << 44)]])
def test_an_epoch_table_that_does_not_rise_is_refused(table: list[tuple[int, int]]) -> None:
    """Both columns of an epoch table rise within their ranges, or the FollowRequest is refused."""
    with pytest.raises(CodecError, match="does not rise"):
        decoded(bytes_of(1, FollowRequest(1, 1, 1, 1, 1, tuple(table))))


@pytest.mark.parametrize("limit", [1 << 20, 1 << 32])
def test_lists_that_claim_more_than_they_hold_cost_nothing(limit: int) -> None:
    """A body of nested lists that each claim many items is refused without making room for them."""
    claims = b"\xdd" + (limit - 1).to_bytes(4, "big")
    hostile = (claims * 1000).ljust(1 << 20, b"\x00")
    deep = (b"\xdc" + LIST_ITEMS_MAX.to_bytes(2, "big")) * 1000 + b"\x00" * 100
    tracemalloc.start()
    for body in (hostile, deep):
        with pytest.raises(CodecError):
            unpacked(body)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16_000_000

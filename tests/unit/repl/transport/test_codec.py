"""Messages as bytes: every message decodes to the same one, and malformed ones are refused."""

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
    StaleEpoch,
    TransferMetadata,
    TransferRequest,
    TransferRows,
)
from isthmus.repl.isr.pair_stream import StreamAck, StreamGroup, StreamRun
from isthmus.repl.model.entry import make_entry
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.vclock import MAX_EPOCH, MAX_OFFSET
from isthmus.repl.replog.frames import RUN_HEADER_BYTES, EntryRunKind, encode_entries
from isthmus.repl.transport.codec import Encoder, decode_item
from isthmus.repl.transport.frames import LIST_ITEMS_MAX, bin_head, list_head, unpacked
from isthmus.repl.transport.port import LinkMessage
from tests.support.link_nodes import entries_of, forward
from tests.support.samples import share

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


partitions = st.integers(0, (1 << 32) - 1)
partition_lists = st.lists(partitions, max_size=5).map(tuple)


def a_run(
    partition: int = 3, epoch: int = 2, start: int = 5, wires: tuple[bytes, ...] = (b"one", b"", b"two"), **changes: Any
) -> StreamRun:
    """A run as a log has it; `changes`: its kind, and the epoch below it."""
    kind, before = changes.get("kind", EntryRunKind.ENTRIES), changes.get("before", epoch)
    buffers = encode_entries(kind, partition, epoch, before, start, wires, list(map(len, wires)))
    return StreamRun(partition, epoch, start, len(wires), b"".join(buffers), list(wires))


@st.composite
def groups(draw: st.DrawFn) -> StreamGroup:
    """Groups of a stream, with the bytes of any entries."""
    wires = st.lists(st.binary(max_size=50), min_size=1, max_size=4).map(tuple)
    starts = st.integers(0, MAX_OFFSET - 4)
    runs = draw(st.lists(st.builds(a_run, partitions, st.integers(1, MAX_EPOCH), starts, wires), max_size=4))
    return StreamGroup(draw(numbers), draw(numbers), draw(numbers), draw(partition_lists), tuple(runs))


messages = st.one_of(
    groups(),
    st.builds(StreamAck, numbers, numbers, numbers, partition_lists),
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


def bytes_of(partition: int, message: LinkMessage, **more: Any) -> bytes:
    return b"".join(Encoder().item(partition, message, **more))


def decoded(item: bytes) -> Any:
    return decode_item(unpacked(list_head(1) + item)[0])


@given(st.integers(0, (1 << 32) - 1), messages)
def test_every_message_arrives_as_it_was_sent(partition: int, message: LinkMessage) -> None:
    """Partition, kind, every field and every entry's bytes decode to equal values of the same types."""
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
def test_hostile_items_are_refused_and_nothing_else_happens(message: LinkMessage, data: st.DataObject) -> None:
    """However a message's bytes are changed, they decode to a message or raise CodecError."""
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


@settings(max_examples=share(40))
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
        ("offset 5 in place of 6", good._replace(start=6)),
        ("offset 7 in place of 6", good._replace(entries=(entries[0], entries[2]))),
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


def group_fields(*runs: StreamRun, claimed: int | None = None) -> list[Any]:
    """The fields of a group of such runs, as a list that a test may change."""
    body = b"".join(run.encoded for run in runs)
    return [0, 13, 7, 4, 2, b"\3\0\0\0", len(runs) if claimed is None else claimed, body]


def changed(at: int, value: Any) -> list[Any]:
    fields = group_fields(a_run())
    fields[at] = value
    return fields


GOOD_RUN = a_run().encoded
HOSTILE_STREAMS: list[tuple[str, list[Any]]] = [
    ("number of fields", [*group_fields(a_run()), 1]),
    ("number of fields", group_fields(a_run())[:-1]),
    *[("within its range", changed(at, wrong)) for at in (2, 3, 4, 6) for wrong in (-1, 1.0, True, b"1", None)],
    ("within its range", changed(6, 1 << 32)),
    ("4 bytes each", changed(5, [3])),
    ("4 bytes each", changed(5, b"123")),
    ("4 bytes each", changed(5, 3)),
    ("fit into its body", changed(7, "text")),
    ("fit into its body", changed(7, b"")),
    ("fit into its body", group_fields(a_run(), claimed=1_000_000)),
    ("after its last run", group_fields(a_run(), a_run(), claimed=1)),
    ("after its last run", changed(7, GOOD_RUN + b"x")),
    ("a run", group_fields(a_run(wires=(b"x" * RUN_HEADER_BYTES,)), claimed=2)),
    ("contradicts", changed(7, GOOD_RUN[:-1])),
    ("contradicts", changed(7, GOOD_RUN[:4] + b"\x09" + GOOD_RUN[5:])),
    ("add up", changed(7, GOOD_RUN[:RUN_HEADER_BYTES] + b"\x09" + GOOD_RUN[RUN_HEADER_BYTES + 1 :])),
    ("one epoch", group_fields(a_run(kind=EntryRunKind.COPIED))),
    ("one epoch", group_fields(a_run(before=1))),
    ("epoch out of range", group_fields(a_run(epoch=0))),
    ("epoch out of range", group_fields(a_run(epoch=MAX_EPOCH + 1))),
    ("out of range", group_fields(a_run(start=MAX_OFFSET - 2))),
    ("number of fields", [0, 14, 1, 1, 1]),
    ("number of fields", [0, 14, 1, 1, 1, b"", 0]),
    *[("within its range", [0, 14, *([1] * at), wrong, *([1] * (2 - at)), b""])
      for at in range(3) for wrong in (-1, "1", 1.5, False)],
    ("4 bytes each", [0, 14, 1, 1, 1, [1]]),
    ("4 bytes each", [0, 14, 1, 1, 1, b"1"]),
]  # fmt: skip


def test_the_group_that_hostile_ones_are_made_of_is_sound() -> None:
    """Each refusal below is therefore caused by the changed field."""
    delivery = decoded(msgpack.packb(group_fields(a_run(), a_run(partition=9))))
    assert delivery.message == StreamGroup(7, 4, 2, (3,), (a_run(), a_run(partition=9)))
    last = a_run(start=MAX_OFFSET - 3)
    assert decoded(msgpack.packb(group_fields(last))).message.runs == (last,)


@pytest.mark.parametrize(("why", "hostile"), HOSTILE_STREAMS)
def test_a_malformed_message_of_a_stream_is_refused(why: str, hostile: list[Any]) -> None:
    """Wrong types, ranges and lengths, and runs that are not new entries of one epoch, each have their error
    message."""
    with pytest.raises(CodecError, match=why):
        decoded(msgpack.packb(hostile))


def test_more_partitions_than_a_list_may_have_are_held_or_left() -> None:
    """Two nodes may share more partitions than a list of a frame has items, and all of them may leave at once."""
    many = tuple(range(4 * LIST_ITEMS_MAX))
    for message in (StreamAck(1, 1, 1, many), StreamGroup(1, 2, 1, many, ())):
        assert decoded(bytes_of(0, message)).message == message


def test_a_groups_runs_travel_as_the_log_has_them() -> None:
    """The bytes of the runs follow the group's head unchanged, and are not copied to be encoded."""
    runs = (a_run(), a_run(partition=9))
    head, *bodies = Encoder().item(0, StreamGroup(7, 4, 2, (3,), runs))
    assert all(body is run.encoded for body, run in zip(bodies, runs, strict=True))
    assert head.endswith(bin_head(sum(map(len, bodies))))


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

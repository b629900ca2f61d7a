"""The decoding of other nodes' requests and answers: any bytes are a valid value or a CodecError."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.model.conditions import Condition
from isthmus.repl.model.errors import CodecError, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import (
    MergedWith,
    PushItem,
    PushOutcome,
    PushResult,
    WriteRequest,
    WriteResult,
)
from tests.support.samples import share

EXAMPLES = settings(max_examples=share(150), deadline=None, derandomize=True)

leaf = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(max_size=9) | st.text(max_size=5)
tree = st.recursive(leaf, lambda inner: st.lists(inner, max_size=15), max_leaves=40)

WRITE = kv_rpc.encode_write(
    WriteRequest(
        Key(b"t", b"b", b"k"), Content(b"v", b"a/b", b"", ((b"n", b"v"),)), ((b"a" * 20, 3, 4),), b"id", True,
        Condition(("a",), ("*",), 1, 2, ((b"a" * 20, 3, 4),)),
    )
)  # fmt: skip


def decoded(data: bytes) -> None:
    """Decodes `data` as every kind of message between nodes."""
    for decode in (
        lambda: kv_rpc.decode_body(data, kv_rpc.decode_write),
        lambda: kv_rpc.decode_body(data, kv_rpc.decode_push),
        lambda: kv_rpc.decode_body(data, kv_rpc.decode_key),
        lambda: kv_rpc.decode_answers(data, 1, kv_rpc.decode_written),
        lambda: kv_rpc.decode_list_ask(data),
        lambda: kv_rpc.decode_list_page(data),
    ):
        with contextlib.suppress(CodecError):
            decode()


def test_requests_for_pages_cross_the_wire_and_unordered_ones_as_ever() -> None:
    """Each request and page decodes to the same one; one without a limit has the three fields that older nodes know."""
    plain = kv_rpc.ListAsk(3, b"b", (b"b", b"k"))
    assert kv_rpc.encode_list_ask(plain) == msgpack.packb([kv_rpc.VERSION, 3, b"b", [b"b", b"k"]])
    for ask in (plain, kv_rpc.ListAsk(3, None, None), kv_rpc.ListAsk(3, None, (b"b", None), b"\xff", 9, 100)):
        assert kv_rpc.decode_list_ask(kv_rpc.encode_list_ask(ask)) == ask
    for page in (kv_rpc.ListPage([b"a"], None), kv_rpc.ListPage([], (b"b", b"k")), kv_rpc.ListPage([], (b"b", None))):
        assert kv_rpc.decode_list_page(kv_rpc.encode_list_page(page)) == page
    for bad in ((0, 5), (5, 0), (-1, 5)):
        with pytest.raises(CodecError):
            kv_rpc.decode_list_ask(bytes(msgpack.packb([kv_rpc.VERSION, 3, None, None, b"", *bad])))


@EXAMPLES
@given(st.binary(max_size=80) | st.builds(lambda t: msgpack.packb([kv_rpc.VERSION, None, [t]]), tree))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """Random bytes and well-packed nonsense raise nothing but CodecError."""
    decoded(data)


@EXAMPLES
@given(st.integers(0, len(WRITE) - 1), st.integers(0, 255))
def test_a_write_with_one_changed_byte_is_another_write_or_none(place: int, byte: int) -> None:
    """With any byte changed, a forwarded write is strictly decoded or refused."""
    changed = bytearray(WRITE)
    changed[place] = byte
    decoded(kv_rpc.encode_body(None, [bytes(changed)]))


@EXAMPLES
@given(st.binary(max_size=30), st.binary(max_size=30), st.integers(0, 9), st.booleans(), st.booleans())
def test_answers_survive_the_wire(payload: bytes, clock: bytes, count: int, created: bool, repeated: bool) -> None:
    """An answer to a write is decoded as it was encoded."""
    written = WriteResult(payload, clock, count, created, repeated)
    answer = kv_rpc.encode_answers([written], kv_rpc.written_row)
    assert kv_rpc.decode_answers(answer, 1, kv_rpc.decode_written) == [written]


small = st.binary(max_size=5)
keys = st.builds(Key, small, small, small)
pairs = st.lists(st.tuples(small, small), max_size=2).map(tuple)
links = st.lists(st.tuples(small, small, small), max_size=2).map(tuple)
conditions = st.none() | st.none() | st.just(Condition(("a",), None, 1, None, ((b"a" * 20, 3, 4),)))
writes = st.builds(
    WriteRequest, keys, st.builds(Content, small, small, small, pairs, links, pairs, st.booleans()),
    st.none() | st.just(((b"a" * 20, 3, 4),)), small, st.booleans(), conditions,
)  # fmt: skip
pushes = st.builds(PushItem, keys, small, small, st.sampled_from((False, False, True)))
written = st.builds(WriteResult, small, small, st.integers(0, 9), st.booleans(), st.booleans()) | st.just(NotReady("x"))
merged = PushResult(PushOutcome.MERGED, None, MergedWith(b"clock", 2))
applied = PushResult(PushOutcome.APPLIED)
pushed = st.sampled_from((applied, applied, applied, PushResult(PushOutcome.SUPERSEDED), merged, NotReady("x")))


def outcome(decode: Callable[[bytes], object], data: bytes) -> object:
    """The result of decoding, or its error."""
    try:
        return repr(decode(data))
    except CodecError as error:
        return type(error), str(error)


def changed(data: bytes, drawn: st.DataObject) -> bytes:
    """`data` unchanged, or with one byte changed, shortened, or extended."""
    at = drawn.draw(st.integers(0, len(data) - 1))
    byte = bytes([drawn.draw(st.integers(0, 255))])
    return drawn.draw(st.sampled_from((data, data[:at] + byte + data[at + 1 :], data[:at], data + byte)))


@EXAMPLES
@given(st.lists(writes, max_size=20), st.lists(pushes, max_size=20), st.data())
def test_usual_bodies_are_decoded_like_all_others(
    requests: list[WriteRequest], items: list[PushItem], data: st.DataObject
) -> None:
    """A body has the bytes that msgpack gives it, and with any changed byte it is decoded as by the decoder of single
    items, or refused with the same message."""
    body = kv_rpc.encode_body(None, [kv_rpc.encode_write(request) for request in requests])
    assert msgpack.packb(msgpack.unpackb(body)) == body
    assert kv_rpc.decode_writes(body) == requests
    body = changed(body, data)
    assert outcome(kv_rpc.decode_writes, body) == outcome(lambda b: kv_rpc.decode_body(b, kv_rpc.decode_write)[1], body)
    body = kv_rpc.encode_body(None, [kv_rpc.encode_push(item) for item in items])
    assert msgpack.packb(msgpack.unpackb(body)) == body
    assert kv_rpc.decode_pushes(body) == items
    body = changed(body, data)
    assert outcome(kv_rpc.decode_pushes, body) == outcome(lambda b: kv_rpc.decode_body(b, kv_rpc.decode_push)[1], body)


@EXAMPLES
@given(st.lists(written, max_size=20), st.lists(pushed, max_size=20), st.data())
def test_usual_answers_are_coded_like_all_others(
    results: list[object], outcomes: list[object], data: st.DataObject
) -> None:
    """The same holds for answers; the fast encoder agrees with the general one, too."""
    answer, count = kv_rpc.encode_write_answers(results), len(results)
    assert answer == kv_rpc.encode_answers(results, kv_rpc.written_row) == msgpack.packb(msgpack.unpackb(answer))
    answer = changed(answer, data)
    assert outcome(lambda a: kv_rpc.decode_write_answers(a, count, "n2"), answer) == outcome(
        lambda a: kv_rpc.decode_answers(a, count, lambda row: kv_rpc.decode_written(row, "n2")), answer
    )
    answer, count = kv_rpc.encode_push_answers(outcomes), len(outcomes)
    assert answer == kv_rpc.encode_answers(outcomes, kv_rpc.pushed_row) == msgpack.packb(msgpack.unpackb(answer))
    answer = changed(answer, data)
    assert outcome(lambda a: kv_rpc.decode_push_answers(a, count), answer) == outcome(
        lambda a: kv_rpc.decode_answers(a, count, kv_rpc.decode_pushed), answer
    )


def test_a_declared_length_alone_allocates_nothing() -> None:
    """A list that declares more elements than a body may have is refused before it is allocated."""
    huge = b"\xdd\x7f\xff\xff\xff"
    row = b"\x9d" + b"\xc4\x01x" * 6
    for body in (b"\x93\x01\xc0" + huge, b"\x93\x01\xc0\x91" + row + huge):
        for decode in (kv_rpc.decode_writes, kv_rpc.decode_pushes):
            with pytest.raises(CodecError):
                decode(body)
    with pytest.raises(CodecError):
        kv_rpc.decode_write_answers(b"\x92\x01" + huge, 1, "n2")

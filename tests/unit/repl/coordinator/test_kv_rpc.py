"""What a node decodes of another one's requests and answers: any bytes are a value of ours or CodecError."""

from __future__ import annotations

import contextlib

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.coordinator import kv_rpc
from isthmus.repl.model.conditions import Condition
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest, WriteResult

EXAMPLES = settings(max_examples=150, deadline=None, derandomize=True)

leaf = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(max_size=9) | st.text(max_size=5)
tree = st.recursive(leaf, lambda inner: st.lists(inner, max_size=15), max_leaves=40)

WRITE = kv_rpc.encode_write(
    WriteRequest(
        Key(b"t", b"b", b"k"), Content(b"v", b"a/b", b"", ((b"n", b"v"),)), ((b"a" * 20, 3, 4),), b"id", True,
        Condition(("a",), ("*",), 1, 2, ((b"a" * 20, 3, 4),)),
    )
)  # fmt: skip


def decoded(data: bytes) -> None:
    """Take `data` for everything that one node sends another."""
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


@EXAMPLES
@given(st.binary(max_size=80) | st.builds(lambda t: msgpack.packb([kv_rpc.VERSION, None, [t]]), tree))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """Random bytes and well-packed nonsense raise nothing but CodecError."""
    decoded(data)


@EXAMPLES
@given(st.integers(0, len(WRITE) - 1), st.integers(0, 255))
def test_a_write_with_one_changed_byte_is_another_write_or_none(place: int, byte: int) -> None:
    """Each byte of a forwarded write may be any other: it is decoded strictly, or refused."""
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

"""Codecs: encoded values decode to equal ones, and hostile bytes raise an error, never crash."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.repl.model.entry import Entry, EntryKind, KeyRow, decode_entry, decode_key_row, encode_key_row, make_entry
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.objects import (
    Object,
    Sibling,
    Summary,
    decode_object,
    encode_object,
    peek_summary,
    summarize_encoded,
)
from isthmus.repl.model.vclock import decode_clock, encode_clock
from tests.support.samples import share

DECODERS: list[Callable[[bytes], object]] = [
    decode_clock,
    decode_object,
    decode_entry,
    decode_key_row,
    summarize_encoded,
]

small = st.binary(max_size=12)
pairs = st.lists(st.tuples(small, small), max_size=3).map(tuple)
siblings = st.builds(
    Sibling,
    dot=st.tuples(st.binary(min_size=1, max_size=20), st.integers(1, 2**64 - 1)),
    last_modified_ms=st.integers(0, 2**62),
    tombstone=st.just(False),
    value=st.binary(max_size=60),
    content_type=small,
    content_encoding=small,
    metadata=pairs,
    links=st.lists(st.tuples(small, small, small), max_size=2).map(tuple),
    indexes=pairs,
)


@st.composite
def objects(draw: st.DrawFn) -> Object:
    found = {s.dot[0]: s for s in draw(st.lists(siblings, min_size=1, max_size=4))}
    ordered = tuple(found[actor] for actor in sorted(found))
    clock = tuple((s.dot[0], s.dot[1], draw(st.integers(0, 9))) for s in ordered)
    return Object(clock, ordered)


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    offset = draw(st.integers(0, 2**44 - 1))
    return make_entry(
        draw(st.sampled_from(EntryKind)),
        draw(st.integers(1, 2**20 - 1)),
        offset,
        request_id=draw(small),
        origin=draw(st.binary(min_size=16, max_size=16)),
        time_ms=draw(st.integers(0, 2**50)),
        key_hash=draw(st.integers(0, 2**64 - 1)),
        leaf_change=draw(st.integers(0, 2**64 - 1)),
        previous_offset=draw(st.integers(-1, offset - 1)),
        bucket=draw(small),
        key=draw(small),
        row=draw(small),
        payload=draw(st.binary(max_size=60)),
    )


@given(objects())
def test_objects_come_back_equal(obj: Object) -> None:
    """decode(encode(object)) is the object, and equal objects have equal bytes."""
    data = encode_object(obj)
    assert decode_object(data) == obj
    assert encode_object(decode_object(data)) == data


@given(entries())
def test_entries_come_back_equal(entry: Entry) -> None:
    """decode(wire) is the entry, wire included."""
    assert decode_entry(entry.wire) == entry


def test_key_rows_come_back_equal() -> None:
    """A key row keeps the summary and the offset."""
    summary = Summary(encode_clock(((b"a", 5, 6),)), 2**64 - 1, 77, 1000, 3, False)
    assert decode_key_row(encode_key_row(summary, 9)) == KeyRow(*summary, 9)


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=80))
@settings(max_examples=share(150))
def test_random_bytes_give_an_error(decode: Callable[[bytes], object], data: bytes) -> None:
    """Random bytes raise nothing but CodecError, with a message that describes the fault."""
    try:
        decode(data)
    except CodecError as error:
        message = str(error)
    else:
        message = "decoded"
    assert message


@given(entries(), objects(), st.data())
@settings(max_examples=share(150))
def test_damaged_bytes_give_an_error_or_another_valid_value(entry: Entry, obj: Object, data: st.DataObject) -> None:
    """One flipped byte or a cut end is refused or still well-formed; nothing else is raised."""
    for decode, encoded in ((decode_entry, entry.wire), (decode_object, encode_object(obj))):
        at = data.draw(st.integers(0, len(encoded) - 1))
        flipped = bytearray(encoded)
        flipped[at] ^= data.draw(st.integers(1, 255))
        for damaged in (bytes(flipped), encoded[:at]):
            try:
                decode(damaged)
            except CodecError:
                continue
    with pytest.raises(CodecError):
        decode_entry(entry.wire[:-1] if entry.payload else entry.wire + b"x")


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff",  # a list that claims 4 billion items
        b"\xc6\xff\xff\xff\xff",  # 4 GB of bytes
        b"\xdb\xff\xff\xff\xff",  # 4 GB of text
        b"\xdf\xff\xff\xff\xff",  # a map of 4 billion pairs
        b"\x93\x01\xc6\xff\xff\xff\xff",
        b"\x91" * 5000,  # deep nesting
        b"\xc9\x7f\xff\xff\xff\x01",  # an extension type
    ],
    ids=["list", "bytes", "text", "map", "inner", "deep", "extension"],
)
def test_huge_claims_allocate_nothing(decode: Callable[[bytes], object], data: bytes) -> None:
    """A length that the bytes do not back is refused before anything of that size is allocated."""
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "raw",
    [
        [[b"b", 1, 0], [b"a", 1, 0]],
        [[b"a", 1, 0], [b"a", 2, 0]],
        [[b"a", 0, 0]],
        [[b"", 1, 0]],
        [[b"a", 1]],
        [[b"a", -1, 0]],
        [["a", 1, 0]],
        [[b"a", True, 0]],
        [[b"a", 1, -2]],
        {},
    ],
)
def test_clocks_that_no_encoder_writes_are_refused(raw: object) -> None:
    """A clock with unordered or repeated actors, counters outside their range or wrong types is malformed."""
    with pytest.raises(CodecError):
        decode_clock(msgpack.packb(raw))


_ACTOR = b"a" * 20
_CLOCK = encode_clock(((_ACTOR, 2**44 + 7, 1_800_000_000),))


def _one(version: object = 1, clock: bytes = _CLOCK, dot: object = (_ACTOR, 2**44 + 7), modified: object = 5) -> bytes:
    sibling = (*dot, modified, False, b"value", b"text/plain", b"", (), (), ())  # type: ignore[misc]
    packed: bytes = msgpack.packb((version, clock, (sibling,)))
    return packed


_AS_THEY_ARE = _one()


@pytest.mark.parametrize(
    "data",
    [
        _one(version=True),
        _one(version=1.0),
        _one(dot=(_ACTOR, 0)),
        _one(dot=(_ACTOR, -5)),
        _one(clock=_CLOCK.replace(b"\xcf\0\0\x10", b"\xd3\0\0\x10")),
        _AS_THEY_ARE.replace(b"\x05\xc2", b"\xcc\x05\xc2"),
        _AS_THEY_ARE.replace(b"\x05\xc2", b"\xd0\x05\xc2"),
        _AS_THEY_ARE.replace(b"\xc4\x05value", b"\xc5\0\x05value"),
    ],
    ids=["true", "float", "dot 0", "dot below 0", "clock", "long number", "signed number", "long length"],
)
def test_objects_in_another_form_than_ours_are_refused(data: bytes) -> None:
    """No replica stores an object in non-canonical bytes or with an impossible dot: its hash would differ from that of
    the same object in other clusters, or it could not be read again."""
    assert summarize_encoded(_AS_THEY_ARE).size_bytes == len(_AS_THEY_ARE)
    assert data != _AS_THEY_ARE
    with pytest.raises(CodecError):
        summarize_encoded(data)
    assert peek_summary(data) is None


_STRANGE = st.sampled_from([None, True, False, 1.0, 0, -1, 1, 2**44, 2**63, 2**64 - 1, "", b"", b"a", (), ((),)])


_BARE = siblings.map(lambda s: Object(((*s.dot, 9),), (s._replace(metadata=(), links=(), indexes=()),)))


@given(st.one_of(_BARE, objects()), st.data())
@settings(max_examples=share(300))
def test_accepted_bytes_are_canonical(obj: Object, data: st.DataObject) -> None:
    """With any part of an object replaced, the object is refused, or its bytes are those that this program would
    encode."""
    version, clock, (first, *others) = msgpack.unpackb(encode_object(obj), use_list=False)
    parts = [version, clock, *first]
    parts[data.draw(st.integers(0, len(parts) - 1))] = data.draw(_STRANGE)
    version, clock, *first = parts
    changed = msgpack.packb((version, clock, (tuple(first), *others)))
    try:
        summarize_encoded(changed)
    except CodecError:
        return
    assert encode_object(decode_object(changed)) == changed


def test_an_object_of_a_newer_version_is_refused_by_name() -> None:
    """A version this program does not know is named in the error."""
    with pytest.raises(CodecError, match="version 9"):
        decode_object(msgpack.packb([9, b"", []]))
    with pytest.raises(CodecError, match="version 9"):
        decode_entry(msgpack.packb([9] + [0] * 14))

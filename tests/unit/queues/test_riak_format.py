"""The bytes of answers to Riak's fetch, compared with bytes worked out by hand, and decoded again."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.queues.riak_format import encode_answer
from isthmus.queues.window_rules import Item
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.objects import HIDDEN_NAME, Object, Sibling, encode_object
from isthmus.repl.model.reference import ReferenceKind
from isthmus.repl.riak.clocks import GREGORIAN_EPOCH_S, encode_clock_term
from tests.support.riak_decoder import Answer, Text, decode_answer, decode_term

ACTOR = bytes(range(20))


def item(stored: Object, kind: ReferenceKind = ReferenceKind.OBJECT, bucket_type: bytes = b"default") -> Item:
    return int(kind), 1, 7, bucket_type, b"b", b"k", b"o" * 16, 0, encode_object(stored)


def decoded(stored: Object, bucket_type: bytes = b"default") -> Answer:
    found = decode_answer(encode_answer(item(stored, bucket_type=bucket_type)))
    assert found is not None
    return found


def test_a_clock_has_the_bytes_of_erlangs_external_terms() -> None:
    """term_to_binary([{<<"a">>,{1,63000000000}}]): a counter of one byte, a timestamp beyond 32 bits, ours of 1970 as
    seconds since the year 0; a counter of 64 bits is a small big integer, little-endian; no entry is the empty list."""
    one = "83 6c00000001 6802 6d00000001 61 6802 61 01 6e0500 00b6 17ab0e 6a".replace(" ", "")
    assert (63_000_000_000).to_bytes(5, "little").hex() == "00b617ab0e"
    assert encode_clock_term(((b"a", 1, 63_000_000_000),)).hex() == one
    assert encode_clock_term(((b"a", 1, 63_000_000_000 - 62_167_219_200),)).hex() == one
    wide = "83 6c00000001 6802 6d00000001 61 6802 6e0800 0807060504030201 6e0500 00b6 17ab0e 6a".replace(" ", "")
    assert encode_clock_term(((b"a", 0x0102030405060708, 63_000_000_000),)).hex() == wide
    four = "83 6c00000001 6802 6d00000001 61 6802 62 00000100 6e0500 00b6 17ab0e 6a".replace(" ", "")
    assert encode_clock_term(((b"a", 256, 63_000_000_000),)).hex() == four
    assert encode_clock_term(()).hex() == "836a"


def sized(text: str) -> str:
    """Hexadecimal digits behind their count of bytes."""
    return f"{len(text) // 2:08x}{text}"


def test_an_answer_has_the_bytes_of_riaks_internal_form() -> None:
    """One sibling with a value and a content type, byte by byte."""
    sibling = Sibling((b"a", 1), 1_700_000_000_123, tombstone=False, value=b"hi", content_type=b"x/y")
    stored = Object(((b"a", 1, 63_000_000_000),), (sibling,))
    clock = "836c0000000168026d0000000161680261016e050000b617ab0e6a"
    dot = "8368026d0000000161680261016e0500" + (1_700_000_000 + 62_167_219_200).to_bytes(5, "little").hex()
    about = [
        "000006a4" + "00000000" + "0001e078",  # 1,700 million seconds, 0, 123,000 microseconds
        "10" + sibling.vtag.encode().hex() + "00",
        "00000004" + "01646f74" + sized("00" + dot),
        "0000000d" + "01636f6e74656e742d74797065" + "00000008" + "00836b0003782f79",
    ]
    change = [
        "10" + "00000000" + "0000000162" + "000000016b",
        "3501" + sized(clock) + "00000001",
        "00000003" + "016869" + sized("".join(about)),
    ]
    checksum = crc32(bytes.fromhex("".join(change)))
    assert encode_answer(item(stored)).hex() == "0100" + f"{checksum:08x}" + "".join(change)


@pytest.mark.parametrize("kind", [ReferenceKind.TOMBSTONE, ReferenceKind.LEAVING])
def test_a_tombstone_has_its_clock_before_the_checksum_even_when_it_is_to_be_reaped(kind: ReferenceKind) -> None:
    """The order is: flag, length of the clock, clock, CRC32, and the object, whose sibling is deleted."""
    stored = Object(((ACTOR, 5, 10),), (Sibling((ACTOR, 5), 10_000, tombstone=True, value=b""),))
    body = encode_answer(item(stored, kind))
    clock = encode_clock_term(stored.clock)
    assert body[:6] == b"\x01\x01" + len(clock).to_bytes(4, "big")
    assert body[6 : 6 + len(clock)] == clock
    found = decode_answer(body)
    assert found is not None
    assert found.tombstone_clock == found.clock == [(ACTOR, (5, 10 + GREGORIAN_EPOCH_S))]
    assert [(one.value, one.deleted) for one in found.siblings] == [(b"", True)]


def test_a_tombstone_beside_a_value_is_no_tombstone() -> None:
    """The flag is set only when all siblings are tombstones, as Riak checks when it takes the object."""
    siblings = (
        Sibling((ACTOR, 1), 1_000, tombstone=True, value=b""),
        Sibling((ACTOR, 2), 2_000, tombstone=False, value=b"v"),
    )
    found = decoded(Object(((ACTOR, 2, 2),), siblings), b"typed")
    assert (found.tombstone, found.bucket_type) == (False, b"typed")
    assert [(one.value, one.deleted) for one in found.siblings] == [(b"", True), (b"v", False)]


def test_metadata_has_the_types_in_which_riak_keeps_it() -> None:
    """Texts are lists of characters, links and index entries are binaries, integer indexes are integers; a value that
    is not an integer stays a binary; a charset is separated from its content type."""
    sibling = Sibling(
        (ACTOR, 3), 3_000, tombstone=False, value=b"v", content_type=b"text/plain; charset=utf-8",
        content_encoding=b"gzip", metadata=((b"colour", b"red"), (b"empty", b"")), links=((b"b2", b"k2", b"next"),),
        indexes=((b"age_int", b"-7"), (b"far_int", b"9" * 39), (b"odd_int", b"x"), (b"name_bin", b"ann")),
    )  # fmt: skip
    (found,) = decoded(Object(((ACTOR, 3, 3),), (sibling,))).siblings
    assert found.last_modified == (0, 3, 0)
    assert found.vtag == sibling.vtag.encode()
    assert found.metadata == {
        b"dot": (ACTOR, (3, 3 + GREGORIAN_EPOCH_S)),
        b"content-type": b"text/plain",
        b"charset": b"utf-8",
        b"content-encoding": b"gzip",
        b"Links": [((b"b2", b"k2"), b"next")],
        b"index": [(b"age_int", -7), (b"far_int", 10**39 - 1), (b"odd_int", b"x"), (b"name_bin", b"ann")],
        b"X-Riak-Meta": [(b"X-Riak-Meta-colour", b"red"), (b"X-Riak-Meta-empty", [])],
    }
    texts = [found.metadata[name] for name in (b"content-type", b"charset", b"content-encoding")]
    assert all(type(text) is Text for text in (*texts, *found.metadata[b"X-Riak-Meta"][0]))


def test_a_content_type_with_other_parameters_stays_whole() -> None:
    """Only a charset that is the sole parameter is separated."""
    whole = b'multipart/mixed; boundary="x"; charset=utf-8'
    sibling = Sibling(
        (ACTOR, 3), 3_000, tombstone=False, value=b"v", content_type=whole, metadata=((b"n", b"y" * 70_000),)
    )
    (found,) = decoded(Object(((ACTOR, 3, 3),), (sibling,))).siblings
    assert found.metadata[b"content-type"] == whole
    assert b"charset" not in found.metadata
    assert found.metadata[b"X-Riak-Meta"] == [(b"X-Riak-Meta-n", b"y" * 70_000)]


def test_a_payload_that_is_no_object_is_refused() -> None:
    """The caller learns it by a CodecError."""
    with pytest.raises(CodecError):
        encode_answer(
            (*item(Object(((ACTOR, 1, 1),), (Sibling((ACTOR, 1), 1, tombstone=False, value=b""),)))[:8], b"x")
        )


actors = st.binary(min_size=1, max_size=24)
counters = st.integers(1, (1 << 64) - 1)
clocks = st.dictionaries(actors, st.tuples(counters, counters), max_size=5)


@given(clocks)
def test_any_clock_comes_back(entries: dict[bytes, tuple[int, int]]) -> None:
    """Actors and counters are exact; timestamps are those of Riak's era."""
    clock = tuple(sorted((actor, counter, time_s) for actor, (counter, time_s) in entries.items()))
    shifted = [(a, (c, t if t >= GREGORIAN_EPOCH_S else t + GREGORIAN_EPOCH_S)) for a, c, t in clock]
    assert decode_term(encode_clock_term(clock)) == shifted


shown_names = st.binary(max_size=9).filter(lambda name: not name.startswith(HIDDEN_NAME))
pairs = st.lists(st.tuples(shown_names, st.binary(min_size=1, max_size=9)), max_size=4).map(tuple)
siblings = st.builds(
    Sibling,
    st.tuples(st.just(ACTOR), counters),
    st.integers(0, (1 << 63) - 1),
    st.just(False),
    st.binary(max_size=40),
    st.binary(max_size=12).filter(lambda kind: b";" not in kind),
    st.binary(max_size=8),
    pairs,
    st.lists(st.tuples(st.binary(max_size=4), st.binary(max_size=4), st.binary(max_size=4)), max_size=3).map(tuple),
    pairs,
)


@given(st.lists(siblings, min_size=1, max_size=4, unique_by=lambda one: one.dot))
def test_any_object_comes_back(found: list[Sibling]) -> None:
    """Values, times and metadata of every sibling are preserved for any bytes."""
    stored = Object(((ACTOR, (1 << 64) - 1, 1),), tuple(sorted(found, key=lambda one: one.dot)))
    answer = decoded(stored)
    assert len(answer.siblings) == len(stored.siblings)
    for got, sibling in zip(answer.siblings, stored.siblings, strict=True):
        assert got.value == sibling.value
        mega, seconds, micro = got.last_modified
        times = (mega * 1_000_000 + seconds) * 1_000 + micro // 1_000
        assert times == sibling.last_modified_ms or mega == 0xFFFF_FFFF
        assert got.metadata.get(b"content-type", b"") == sibling.content_type
        assert got.metadata.get(b"content-encoding", b"") == sibling.content_encoding
        assert got.metadata.get(b"Links", []) == [((b, k), t) for b, k, t in sibling.links]
        meta = [(bytes(name), bytes(value)) for name, value in got.metadata.get(b"X-Riak-Meta", [])]
        assert meta == [(b"X-Riak-Meta-" + name, value) for name, value in sibling.metadata]
        assert [name for name, _ in got.metadata.get(b"index", [])] == [name for name, _ in sibling.indexes]

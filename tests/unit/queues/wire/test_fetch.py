"""The bodies of a fetch: round trips, limits, hostile bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.queues.leases import Session
from isthmus.queues.sink_shares import TypeShare
from isthmus.queues.window_rules import Item
from isthmus.queues.wire import (
    ACKS_MAX,
    BYTES_MAX,
    COUNT_MAX,
    NAME_MAX,
    REQUEST_BYTES_MAX,
    SERVING,
    SHARE_PARTITIONS_MAX,
    SHARE_TYPES_MAX,
    UNPACKED_MAX,
    WAIT_MS_MAX,
    ZSTD,
    BatchAck,
    FetchReply,
    FetchRequest,
    UnknownFetchVersion,
    decode_reply,
    decode_request,
    encode_reply,
    encode_request,
)
from isthmus.repl.controller.bucket_properties import DIGESTS_MAX
from isthmus.repl.model.errors import CodecError, TooLarge
from isthmus.repl.property_digests import SCOPE_DIGEST_BYTES_MAX, SCOPES_BYTES_MAX, SCOPES_MAX
from tests.support.samples import share

SESSION = Session(b"c" * 16, "w1", b"i" * 8, 3)
ITEM: Item = (1, 2, 3, b"default", b"bucket", b"key", b"o" * 16, 1_700_000_000_000, b"payload")
REPLY = FetchReply(b"c" * 16, "east", 1, b"batch", 30_000, 1_700_000_000_000, SERVING, (ITEM,))


def _bytes(length: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=length, max_size=length)


_small = st.binary(max_size=12)
_number = st.integers(0, (1 << 44) - 1)
_items = st.lists(
    st.tuples(st.integers(0, 2), _number, _number, _small, _small, _small, _small, _number, _small), max_size=5
)


_type_shares = st.integers(1, SHARE_PARTITIONS_MAX).flatmap(
    lambda count: st.builds(TypeShare, st.just(count), st.integers(0, (1 << count) - 1))
)


_outcomes = st.none() | st.tuples(_number, _number, _number, _number)


_requests = (
    st.builds(
        FetchRequest,
        st.builds(Session, _bytes(16), st.text(max_size=9), _bytes(8), _number),
        st.text(max_size=9),
        st.lists(
            st.builds(
                BatchAck, _small, _number, st.none() | st.lists(_number, max_size=4).map(tuple), _outcomes,
                st.lists(_number, max_size=2).map(tuple),
            ),
            max_size=3,
        ).map(tuple),
        st.none() | st.lists(_small, max_size=3).map(tuple),
        st.integers(0, COUNT_MAX),
        st.integers(0, BYTES_MAX),
        st.integers(0, WAIT_MS_MAX),
        st.sampled_from(("", ZSTD)),
        st.dictionaries(_small, _bytes(8), max_size=3),
        st.none() | st.frozensets(_small, max_size=3),
        st.none() | st.dictionaries(_small, st.dictionaries(_small, _bytes(10), max_size=3), max_size=3),
        st.none() | st.dictionaries(_small, _type_shares, max_size=3),
    )
)  # fmt: skip


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(_requests)
def test_requests_come_back_as_they_went(request: FetchRequest) -> None:
    """Encoding and decoding a request within the limits changes nothing."""
    assert decode_request(encode_request(request)) == request


@settings(max_examples=share(100), deadline=None, derandomize=True)
@given(_items, st.text(max_size=9))
def test_answers_come_back_as_they_went(items: list[Item], name: str) -> None:
    """Encoding and decoding an answer changes nothing; payloads are opaque."""
    reply = FetchReply(b"c" * 16, name, 4, b"b" if items else b"", 5, 6, SERVING, tuple(items))
    assert decode_reply(encode_reply(reply)) == reply


_replies = st.builds(
    FetchReply, _bytes(16), st.text(max_size=9), _number, st.sampled_from((b"", b"b")), _number, _number,
    st.text(max_size=9), _items.map(tuple), st.sampled_from((1, 2, 3)), st.dictionaries(_small, _bytes(8), max_size=3),
    st.none() | _number, st.none() | st.dictionaries(_small, _number, max_size=3),
    st.none() | st.dictionaries(_small, st.dictionaries(_small, _bytes(10), max_size=3), max_size=3),
    st.none() | st.dictionaries(_number, st.text(max_size=55), max_size=3),
)  # fmt: skip
_odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | _small
    | st.text(max_size=5) | st.binary(min_size=16, max_size=16),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_small | st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=share(300), deadline=None, derandomize=True)
@given(_requests | _replies, st.data())
def test_a_changed_body_is_refused_or_is_another_message(
    message: FetchRequest | FetchReply, data: st.DataObject
) -> None:
    """The encoders write the same bytes as msgpack. Whatever is accepted after any field or byte was changed is a
    message within the limits: it comes back as it is when it is encoded again."""
    is_request = isinstance(message, FetchRequest)
    encode: Any = encode_request if is_request else encode_reply
    decode: Callable[[bytes], Any] = decode_request if is_request else decode_reply
    body = encode(message)
    fields = msgpack.unpackb(body, strict_map_key=False)
    assert msgpack.packb(fields) == body
    name = data.draw(st.sampled_from([*fields, "later"]))
    change = data.draw(st.sampled_from(("none", "drop", "odd", "byte", "short", "long")))
    if change == "drop":
        fields.pop(name, None)
        body = msgpack.packb(fields)
    elif change == "odd":
        body = msgpack.packb(fields | {name: data.draw(_odd)})
    elif change == "byte":
        at = data.draw(st.integers(0, len(body) - 1))
        body = body[:at] + bytes([data.draw(st.integers(0, 255))]) + body[at + 1 :]
    elif change == "short":
        body = body[: data.draw(st.integers(0, len(body) - 1))]
    elif change == "long":
        body += data.draw(st.binary(min_size=1, max_size=3))
    try:
        found = decode(body)
    except CodecError:
        return
    assert change not in ("short", "long")
    assert decode(encode(found)) == found


def test_compressed_answers_come_back_as_they_went_and_are_smaller() -> None:
    """A batch requested in zstd decodes to the same one; a batch that compression does not shrink is sent plain."""
    items = tuple((1, 2, n, b"default", b"bucket", b"key", b"o" * 16, 7, b"payload" * 50) for n in range(20))
    reply = FetchReply(b"c" * 16, "east", 1, b"b", 5, 6, SERVING, items, 2, {b"default": b"d" * 8}, 1_234)
    body = encode_reply(reply, ZSTD)
    assert decode_reply(body) == reply
    assert len(body) < len(encode_reply(reply)) // 10
    assert encode_reply(REPLY, ZSTD) == encode_reply(REPLY)


def test_a_frame_with_a_wrong_or_no_size_is_refused_unread() -> None:
    """A compressed answer with a size above the limit, or without a size, is refused before decompression."""
    body = msgpack.unpackb(encode_reply(REPLY))
    del body["items"]
    endless = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 1000)
    huge = b"\x28\xb5\x2f\xfd\xa0" + (UNPACKED_MAX + 1).to_bytes(4, "little")
    for frame in (endless, huge, b"", b"noise", 7, zstandard.ZstdCompressor().compress(b"\xc1")):
        with pytest.raises(CodecError):
            decode_reply(msgpack.packb(body | {"zstd": frame}))


def test_bucket_types_are_sent_by_name() -> None:
    """The same request has the same bytes in every process, whatever order a set of names has there."""
    types = [b"type-%d" % number for number in range(10)]
    assert msgpack.unpackb(encode_request(FetchRequest(SESSION, "west", types=frozenset(types))))["types"] == types


def test_messages_of_before_the_added_fields_are_understood() -> None:
    """Fields of later versions may be absent, and an unknown one is skipped, so neighbouring versions can
    communicate."""
    old = msgpack.unpackb(encode_request(FetchRequest(SESSION, "west", (BatchAck(b"b", 1),))))
    for name in ("outcomes", "compress", "properties"):
        del old[name]
    assert decode_request(msgpack.packb(old | {"later": 1})).acks == (BatchAck(b"b", 1),)
    answer = msgpack.unpackb(encode_reply(REPLY))
    del answer["priority"], answer["properties"]
    assert decode_reply(msgpack.packb(answer | {"later": 1})) == REPLY


def test_another_version_is_refused_with_a_reason() -> None:
    """A message of an unknown protocol version names both versions and is refused as such."""
    for body, decode in (
        (encode_request(FetchRequest(SESSION, "west")), decode_request),
        (encode_reply(REPLY), decode_reply),
    ):
        with pytest.raises(UnknownFetchVersion, match="version 2, this program speaks 1"):
            decode(msgpack.packb(msgpack.unpackb(body) | {"v": 2}))
        with pytest.raises(UnknownFetchVersion, match="version 2, this program speaks 1"):
            decode(msgpack.packb({"later": [{}], "name": 7, "v": 2}))


def test_requested_amounts_are_cut_to_the_limits() -> None:
    """Batches and waits stay bounded for any request."""
    wanted = FetchRequest(SESSION, "west", max_count=1 << 60, max_bytes=1 << 60, wait_ms=1 << 60)
    got = decode_request(encode_request(wanted))
    assert (got.max_count, got.max_bytes, got.wait_ms) == (COUNT_MAX, BYTES_MAX, WAIT_MS_MAX)


def test_a_request_over_the_size_limit_is_not_decoded() -> None:
    """The size is checked first."""
    with pytest.raises(TooLarge, match=str(REQUEST_BYTES_MAX)):
        decode_request(b"\xc1" * (REQUEST_BYTES_MAX + 1))


def test_the_longest_request_that_a_sink_makes_is_taken() -> None:
    """All changes of the largest batch failed, and the maximum number of bucket types have the longest names."""
    acks = (BatchAck(b"b" * NAME_MAX, 1 << 60, tuple(range(COUNT_MAX)), (0, 0, 0, 0)),)
    properties = {b"%0255d" % number: bytes(8) for number in range(DIGESTS_MAX)}
    scopes = {b"t": {b"%069d" % number: bytes(10) for number in range(SCOPES_MAX)}}
    assert sum(len(b"t") + len(name) + 10 for name in scopes[b"t"]) == SCOPES_BYTES_MAX
    types = frozenset(properties)
    every = TypeShare(SHARE_PARTITIONS_MAX, (1 << SHARE_PARTITIONS_MAX) - 1)
    share = {b"%0255d" % number: every for number in range(SHARE_TYPES_MAX)}
    wanted = FetchRequest(
        SESSION, "w" * NAME_MAX, acks, (), properties=properties, types=types, scopes=scopes, share=share
    )
    assert decode_request(encode_request(wanted)) == wanted


SHARE = {b"default": TypeShare(12, 0b1000_0000_0101), b"maps": TypeShare(3, 0)}

NO_SHARE_BODY = bytes.fromhex(
    "de0010a17601a7636c7573746572c41063636363636363636363636363636363a46e616d65a477657374a46e6f6465a27731"
    "ab696e6361726e6174696f6ec4086969696969696969a46c696e6b03a461636b739193c4056261746368029101a7686f6c64"
    "696e6790a96d61785f636f756e74cd0200a96d61785f6279746573ce003d0900a7776169745f6d73cd2710a86f7574636f6d"
    "6573919403000000a8636f6d7072657373a47a737464aa70726f7065727469657381c40174c4080000000000000000a86769"
    "76656e5f75709190a5747970657391c40174"
)
"""A request without a share, as a node of the version before shares encodes it."""


REPLY_BODY = bytes.fromhex(
    "8fa17601a7636c7573746572c41063636363636363636363636363636363a46e616d65a465617374ad6f776e65725f766572"
    "73696f6e01a56261746368c4056261746368a86c656173655f6d73cd7530a66e6f775f6d73cf0000018bcfe56800a5737461"
    "7465a773657276696e67a56974656d739199010203c40764656661756c74c4066275636b6574c4036b6579c4106f6f6f6f6f"
    "6f6f6f6f6f6f6f6f6f6f6fcf0000018bcfe56800c4077061796c6f6164a87072696f7269747902aa70726f70657274696573"
    "81c40174c4080000000000000000a468656c6481c4017507a6706c6163657381c4017481c400c4023031a97761697465645f"
    "6d730ca67472616365738100a830302d7472616365"
)
"""An answer with every field, as earlier versions encode it."""


def test_an_answer_has_the_bytes_of_earlier_versions() -> None:
    """Sinks of other versions decode it, and theirs are decoded here."""
    reply = REPLY._replace(
        priority=2, properties={b"t": bytes(8)}, waited_ms=12, held={b"u": 7}, scopes={b"t": {b"": b"01"}},
        traces={0: "00-trace"},
    )  # fmt: skip
    assert encode_reply(reply) == REPLY_BODY
    assert decode_reply(REPLY_BODY) == reply


def test_a_request_without_a_share_has_the_bytes_of_the_version_before() -> None:
    """An older source can decode it, and a node without a share sends the same bytes as before."""
    acks = (BatchAck(b"batch", 2, (1,), (3, 0, 0, 0)),)
    request = FetchRequest(SESSION, "west", acks, (), 512, 4_000_000, 10_000, ZSTD, {b"t": bytes(8)}, frozenset({b"t"}))
    assert encode_request(request) == NO_SHARE_BODY
    assert decode_request(NO_SHARE_BODY) == request


def test_a_share_is_one_more_field_which_an_older_source_ignores() -> None:
    """All other fields are unchanged. Bit i % 8 of byte i // 8 stands for partition number i."""
    plain, shared = FetchRequest(SESSION, "west"), FetchRequest(SESSION, "west", share=SHARE)
    fields = msgpack.unpackb(encode_request(shared))
    assert fields.pop("share") == {b"default": [12, b"\x05\x08"], b"maps": [3, b"\x00"]}
    assert fields == msgpack.unpackb(encode_request(plain))
    assert decode_request(encode_request(shared)) == shared


@pytest.mark.parametrize(
    "share",
    [
        7,
        [[b"default", 12, b"\x05\x08"]],
        {b"default": b"\x05\x08"},
        {b"default": [12]},
        {b"default": [0, b""]},
        {b"default": [-1, b"\x05"]},
        {b"default": [SHARE_PARTITIONS_MAX + 1, bytes(129)]},
        {b"default": ["12", b"\x05\x08"]},
        {b"default": [12, b"\x05"]},
        {b"default": [12, b"\x05\x08\x00"]},
        {b"default": [12, b"\x05\x10"]},
        {b"default": [12, "\x05\x08"]},
        {"default": [12, b"\x05\x08"]},
        {b"x" * (NAME_MAX + 1): [12, b"\x05\x08"]},
        {b"%d" % number: [1, b"\x01"] for number in range(SHARE_TYPES_MAX + 1)},
    ],
    ids=lambda share: str(share)[:40],
)
def test_a_share_of_a_wrong_shape_or_beyond_its_bounds_is_refused(share: object) -> None:
    """Bits of partitions that do not exist are refused, too, so that each share has one encoding."""
    body = encode_request(FetchRequest(SESSION, "west"))
    decode_request(_changed(body, share={b"default": [12, b"\x05\x08"]}))
    with pytest.raises(CodecError):
        decode_request(_changed(body, share=share))


PLACES = {b"default": {b"orders": b"0123456789", b"": b"9876543210"}, b"maps": {}}


def test_places_arrive_both_ways_and_may_be_absent_on_either_side() -> None:
    """No scopes and absent scopes differ: an older node sends none, and ignores those it gets."""
    for scopes in (None, {}, PLACES):
        request, reply = FetchRequest(SESSION, "west", scopes=scopes), REPLY._replace(scopes=scopes)
        assert decode_request(encode_request(request)) == request
        assert decode_reply(encode_reply(reply)) == reply
        assert ("places" in msgpack.unpackb(encode_request(request))) is (scopes is not None)
        assert ("places" in msgpack.unpackb(encode_reply(reply))) is (scopes is not None)


TRACES = {0: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}


def test_contexts_of_traced_changes_arrive_where_there_are_any() -> None:
    """An answer without contexts has no such field; compressed answers can have it, too."""
    for compress in ("", ZSTD):
        for traces in (None, TRACES):
            body = encode_reply(REPLY._replace(traces=traces), compress)
            assert ("traces" in msgpack.unpackb(body, strict_map_key=False)) is (traces is not None)
            assert decode_reply(body) == REPLY._replace(traces=traces)


@pytest.mark.parametrize("traces", [7, [0, "x"], {-1: "x"}, {"0": "x"}, {0: b"x"}, {0: "x" * 56}, {0: {}}])
def test_contexts_of_a_wrong_shape_are_refused(traces: object) -> None:
    """Any value other than a map of indexes to texts is refused."""
    with pytest.raises(CodecError):
        decode_reply(_changed(encode_reply(REPLY), traces=traces))


@pytest.mark.parametrize(
    "scopes",
    [
        7,
        [[b"default", b"orders", b"0123456789"]],
        {b"default": b"0123456789"},
        {b"default": {b"orders": 7}},
        {b"default": {b"orders": b""}},
        {b"default": {b"orders": b"odd"}},
        {b"default": {b"orders": bytes(SCOPE_DIGEST_BYTES_MAX + 2)}},
        {b"default": {"orders": b"01"}},
        {"default": {b"orders": b"01"}},
        {b"x" * (NAME_MAX + 1): {b"orders": b"01"}},
        {b"default": {b"%d" % number: b"01" for number in range(SCOPES_MAX + 1)}},
        {b"%d" % number: {} for number in range(SCOPES_MAX + 1)},
        {b"a": {b"%d" % n: b"01" for n in range(SCOPES_MAX)}, b"b": {b"1": b"01"}},
        {b"default": {b"x" * SCOPES_BYTES_MAX: b"01"}},
    ],
    ids=lambda scopes: str(scopes)[:40],
)
def test_places_of_a_wrong_shape_or_beyond_their_bounds_are_refused(scopes: object) -> None:
    """This holds for both directions."""
    for body, decode in (
        (encode_request(FetchRequest(SESSION, "west")), decode_request),
        (encode_reply(REPLY), decode_reply),
    ):
        decode(_changed(body, places=PLACES))
        with pytest.raises(CodecError):
            decode(_changed(body, places=scopes))


def _changed(encoded: bytes, **fields: object) -> bytes:
    body: bytes = msgpack.packb(msgpack.unpackb(encoded) | fields)
    return body


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 2},
        {"v": None},
        {"cluster": b"short"},
        {"cluster": "x" * 16},
        {"node": b"bytes"},
        {"node": "n" * 256},
        {"incarnation": b""},
        {"link": -1},
        {"link": True},
        {"acks": None},
        {"acks": [[b"id", 1]]},
        {"acks": [["id", 1, []]]},
        {"acks": [[b"id", "1", []]]},
        {"acks": [[b"id", 1, ["x"]]]},
        {"acks": [[b"id" * 200, 1, []]]},
        {"acks": [[b"id", 1, []]] * (ACKS_MAX + 1)},
        {"holding": "x"},
        {"holding": [1]},
        {"holding": [b"x"] * (ACKS_MAX + 1)},
        {"max_count": -1},
        {"max_bytes": 1.5},
        {"wait_ms": "1"},
    ],
    ids=str,
)
def test_a_request_with_a_wrong_field_is_refused(fields: dict[str, object]) -> None:
    """Every field has its type and range."""
    good = encode_request(FetchRequest(SESSION, "west"))
    decode_request(good)
    with pytest.raises(CodecError):
        decode_request(_changed(good, **fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"v": 9},
        {"items": None},
        {"items": [[1, 2, 3]]},
        {"items": [*list(ITEM)[:8], "text"]},
        {"items": [[*ITEM, 1]]},
        {"items": [[str(ITEM[0]), *ITEM[1:]]]},
        {"items": []},
        {"batch": b""},
        {"batch": "id"},
        {"batch": b"x" * 256},
        {"cluster": b""},
        {"owner_version": -1},
        {"state": 7},
        {"state": "s" * 300},
        {"lease_ms": None},
    ],
    ids=str,
)
def test_an_answer_with_a_wrong_field_is_refused(fields: dict[str, object]) -> None:
    """A sink refuses every answer that a source cannot have sent."""
    good = encode_reply(REPLY)
    assert decode_reply(good) == REPLY
    with pytest.raises(CodecError):
        decode_reply(_changed(good, **fields))


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(st.data())
def test_hostile_bytes_are_refused_never_a_crash(data: st.DataObject) -> None:
    """Noise, truncations and flipped bits give a CodecError or a well-formed value."""
    good = data.draw(st.sampled_from([encode_reply(REPLY), encode_request(FetchRequest(SESSION, "west"))]))
    mangled = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        mangled[data.draw(st.integers(0, len(mangled) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(mangled[: data.draw(st.integers(0, len(mangled)))])
    for body in (bytes(mangled), cut, data.draw(st.binary(max_size=40))):
        for decode in (decode_reply, decode_request):
            try:
                decode(body)
            except CodecError:
                continue


@pytest.mark.parametrize(
    "body", [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 100_000, b""], ids=len
)
def test_declared_lengths_allocate_nothing(body: bytes) -> None:
    """Four billion elements, or a nest a hundred thousand deep, are refused from a few bytes."""
    with pytest.raises((CodecError, TooLarge)):
        decode_request(body)
    with pytest.raises(CodecError):
        decode_reply(body)


def test_lists_longer_than_any_batch_are_refused_before_they_are_made() -> None:
    """An answer, compressed or not, with a list longer than the largest batch is refused."""
    many = [ITEM] * (COUNT_MAX + 1)
    body = msgpack.unpackb(encode_reply(REPLY))
    with pytest.raises(CodecError):
        decode_reply(msgpack.packb(body | {"items": many}))
    del body["items"]
    with pytest.raises(CodecError):
        decode_reply(msgpack.packb(body | {"zstd": zstandard.ZstdCompressor().compress(msgpack.packb(many))}))


def _peak(work: Callable[[], object]) -> int:
    """The maximal number of bytes allocated while something is refused."""
    tracemalloc.start()
    try:
        with pytest.raises(CodecError):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


DEEP = b"\xdc\x27\x10" * 800
"""Eight hundred lists, one in the other, of ten thousand elements each: room for 64 MB is declared in 2,400 bytes."""

MAPS = b"\xdc\x27\x10" + b"\x80" * 10_000
"""A list of empty maps: one byte each there, sixty once made."""

ALLOWED_BYTES = 3_000_000


def test_nested_lists_take_no_more_memory_than_was_sent() -> None:
    """Declared but absent elements allocate nothing: in a request, in an answer, and in a compressed part of an
    answer."""
    assert _peak(lambda: decode_request(b"\x82\xa1v\x01\xa4acks" + DEEP)) < ALLOWED_BYTES
    for name in (b"\xa5items", b"\xa5batch", b"\xaaproperties", b"\xa6places", b"\xa5later"):
        assert _peak(lambda name=name: decode_reply(b"\x82\xa1v\x01" + name + DEEP)) < ALLOWED_BYTES, name
    frame = zstandard.ZstdCompressor().compress(DEEP * 10)
    body = b"\x82\xa1v\x01\xa4zstd\xc4" + bytes([len(frame)]) + frame
    assert _peak(lambda: decode_reply(body)) < ALLOWED_BYTES


def test_a_flood_of_empty_maps_is_refused_at_the_first() -> None:
    """Values that take more memory than their bytes are refused one by one, not after all were decoded."""
    flood = b"\xdc\x01\x00" + MAPS * 256
    for name in (b"\xa5items", b"\xa5batch"):
        assert _peak(lambda name=name: decode_reply(b"\x82\xa1v\x01" + name + flood)) < 2 * len(flood) + ALLOWED_BYTES
    frame = zstandard.ZstdCompressor().compress(flood)
    body = b"\x82\xa1v\x01\xa4zstd\xc5" + len(frame).to_bytes(2, "big") + frame
    assert _peak(lambda: decode_reply(body)) < 3 * len(flood) + ALLOWED_BYTES


def test_an_unknown_field_of_any_shape_is_passed_over() -> None:
    """A later version may add fields; they are skipped without being decoded."""
    answer = encode_reply(REPLY)
    later = {"later": [{"a": [[1], {}]}, {1: 2}], "much": [[0] * 20_000]}
    assert decode_reply(bytes([answer[0] + 2]) + answer[1:] + b"".join(map(_entry, later.items()))) == REPLY


def _entry(entry: tuple[str, object]) -> bytes:
    return b"".join(map(msgpack.packb, entry))


def test_bytes_behind_an_answer_are_refused() -> None:
    """An answer ends where its body does, and its compressed items where theirs do."""
    with pytest.raises(CodecError, match="trailing"):
        decode_reply(encode_reply(REPLY) + b"\x00")
    body = msgpack.unpackb(encode_reply(REPLY))
    del body["items"]
    packed = zstandard.ZstdCompressor().compress(msgpack.packb([ITEM]) + b"\x00")
    with pytest.raises(CodecError, match="trailing"):
        decode_reply(msgpack.packb(body | {"zstd": packed}))

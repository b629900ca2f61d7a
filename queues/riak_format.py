"""Encodes a change in the format of Riak's fetch from a real-time queue: object form "internal", version 1 (pure).

    answer      0                                     the queue has nothing to give
                1, 0, CRC32, change                   an object
                1, 1, length, clock, CRC32, change    an object whose siblings are all tombstones
    change      0x10 (version 1, not compressed, no reap), bucket type ("" for `default`), bucket, key, object
    object      53, 1, length, clock, count of siblings, siblings
    sibling     length, value, length, (last modified, vtag, deleted, metadata)

Lengths have four bytes, all integers are big-endian. A clock is a term in Erlang's external term format: a list of
{actor, {counter, timestamp}}. A value, and each name and value of the metadata, begins with 1 when it is a binary and
with 0 when it is any other term. Texts of the metadata are lists of characters, as Riak's HTTP listener stores them.
Timestamps of clocks are seconds since the year 0, as in Riak; ours are seconds since 1970.

The formats: Riak's `riak_object` and `riak_kv_wm_queue`, and Erlang's "External Term Format". Nothing here decodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final
from zlib import crc32

from isthmus.queues.window_rules import Item
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.objects import Object, Sibling, decode_object
from isthmus.repl.model.vclock import Clock

EMPTY_QUEUE: Final = b"\x00"
"""The answer when there is nothing to give."""

GREGORIAN_EPOCH_S: Final = 62_167_219_200
"""1970 in seconds since the year 0. A timestamp of a clock from here on came from a Riak and stays as it is."""

_FOUND: Final = b"\x01"
_PLAIN_OBJECT: Final = b"\x10"
_OBJECT_MAGIC: Final = b"\x35\x01"
_BINARY: Final = b"\x01"
_TERM: Final = b"\x00"

_TERM_VERSION: Final = b"\x83"
_SMALL_INTEGER: Final = b"\x61"
_INTEGER: Final = b"\x62"
_TUPLE: Final = b"\x68"
_NIL: Final = b"\x6a"
_STRING: Final = b"\x6b"
_LIST: Final = b"\x6c"
_BINARY_TERM: Final = b"\x6d"
_SMALL_BIG: Final = b"\x6e"

_STRING_BYTES_MAX: Final = 65_535
"""Longest list of characters in Erlang's short form, whose length has two bytes."""

_MEGA_MAX: Final = 0xFFFF_FFFF
"""Greatest number of millions of seconds in a last-modified time, the year 136 million; a later time is cut to it."""

_INTEGER_INDEX: Final = re.compile(rb"-?[0-9]{1,39}")
"""Values that the HTTP listener accepts for an index whose name ends in _int."""

_CHARSET: Final = re.compile(rb"([^;\s]+)\s*;\s*[Cc][Hh][Aa][Rr][Ss][Ee][Tt]=([^;\s\"]+)\s*")
"""A content type with a charset and no other parameter: Riak keeps the two apart."""


def encode_answer(item: Item) -> bytes:
    """The answer with a whole change. A tombstone that is about to be reaped is sent as a tombstone: a reap would not
    delete the object in the Riak. Raises CodecError when the payload is no object."""
    _, _, _, bucket_type, bucket, key, _, _, payload = item
    stored = decode_object(payload)
    named = b"" if bucket_type == DEFAULT_BUCKET_TYPE else bucket_type
    change = b"".join((_PLAIN_OBJECT, _sized(named), _sized(bucket), _sized(key), encode_riak_object(stored)))
    clock = _sized(encode_clock_term(stored.clock)) if stored.deleted else b""
    return b"".join((_FOUND, bytes([stored.deleted]), clock, crc32(change).to_bytes(4, "big"), change))


def encode_riak_object(stored: Object) -> bytes:
    """A Riak object, version 1."""
    siblings = [part for sibling in stored.siblings for part in _sibling(sibling)]
    clock = _sized(encode_clock_term(stored.clock))
    return b"".join((_OBJECT_MAGIC, clock, len(stored.siblings).to_bytes(4, "big"), *siblings))


def encode_clock_term(clock: Clock) -> bytes:
    """A vector clock as an external term."""
    return _TERM_VERSION + _list(
        _tuple(_binary(actor), _tuple(_integer(counter), _integer(_gregorian(time_s))))
        for actor, counter, time_s in clock
    )


def _gregorian(time_s: int) -> int:
    return time_s if time_s >= GREGORIAN_EPOCH_S else time_s + GREGORIAN_EPOCH_S


def _sibling(sibling: Sibling) -> tuple[bytes, ...]:
    seconds, ms = divmod(sibling.last_modified_ms, 1000)
    mega, seconds = divmod(seconds, 1_000_000)
    times = (min(mega, _MEGA_MAX), seconds, ms * 1000)
    vtag = sibling.vtag.encode()
    about = b"".join(
        (
            *(number.to_bytes(4, "big") for number in times),
            bytes([len(vtag)]),
            vtag,
            bytes([sibling.tombstone]),
            *_metadata(sibling),
        )
    )
    return (len(_BINARY + sibling.value).to_bytes(4, "big"), _BINARY, sibling.value, _sized(about))


def _metadata(sibling: Sibling) -> Iterable[bytes]:
    """Names and values of the metadata of one sibling."""
    actor, counter = sibling.dot
    dot = _tuple(_binary(actor), _tuple(_integer(counter), _integer(_gregorian(sibling.last_modified_ms // 1000))))
    yield _entry(b"dot", dot)
    if sibling.content_type:
        parted = _CHARSET.fullmatch(sibling.content_type)
        yield _entry(b"content-type", _text(sibling.content_type if parted is None else parted[1]))
        if parted is not None:
            yield _entry(b"charset", _text(parted[2]))
    if sibling.content_encoding:
        yield _entry(b"content-encoding", _text(sibling.content_encoding))
    if sibling.links:
        links = (_tuple(_tuple(_binary(bucket), _binary(key)), _binary(tag)) for bucket, key, tag in sibling.links)
        yield _entry(b"Links", _list(links))
    if sibling.indexes:
        yield _entry(b"index", _list(_tuple(_binary(name), _index(name, value)) for name, value in sibling.indexes))
    if sibling.metadata:
        pairs = (_tuple(_text(b"X-Riak-Meta-" + name), _text(value)) for name, value in sibling.metadata)
        yield _entry(b"X-Riak-Meta", _list(pairs))


def _entry(name: bytes, term: bytes) -> bytes:
    return _sized(_BINARY + name) + _sized(_TERM + _TERM_VERSION + term)


def _index(name: bytes, value: bytes) -> bytes:
    number = name.endswith(b"_int") and _INTEGER_INDEX.fullmatch(value) is not None
    return _integer(int(value)) if number else _binary(value)


def _sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


# ---------------------------------------------------------------- terms


def _integer(number: int) -> bytes:
    """An integer of at most 255 bytes: far above a counter, and an index of 39 digits."""
    if 0 <= number <= 0xFF:
        return _SMALL_INTEGER + bytes([number])
    if -(1 << 31) <= number < 1 << 31:
        return _INTEGER + number.to_bytes(4, "big", signed=True)
    length = (abs(number).bit_length() + 7) // 8
    return _SMALL_BIG + bytes([length, number < 0]) + abs(number).to_bytes(length, "little")


def _binary(data: bytes) -> bytes:
    return _BINARY_TERM + _sized(data)


def _tuple(*terms: bytes) -> bytes:
    return _TUPLE + bytes([len(terms)]) + b"".join(terms)


def _list(terms: Iterable[bytes]) -> bytes:
    found = list(terms)
    return _LIST + len(found).to_bytes(4, "big") + b"".join(found) + _NIL if found else _NIL


def _text(characters: bytes) -> bytes:
    """A list of characters."""
    if 0 < len(characters) <= _STRING_BYTES_MAX:
        return _STRING + len(characters).to_bytes(2, "big") + characters
    return _list(_integer(character) for character in characters)

"""Answers to Riak's fetch from a real-time queue, both ways. Pure.

    answer      0                                     the queue has nothing to give
                1, 0, hashes, CRC32, change           an object, or a reap
                1, 1, hashes, length, clock, CRC32, change   an object whose siblings are all tombstones
    hashes      nothing in the form "internal"; in "internal_aaehash" segment and hash, four bytes each
    change      0x10 (0x18: all after the key is compressed), bucket type ("" for `default`), bucket, key, object
                0x14, bucket type, bucket, key, time (12 bytes), clock: a tombstone was reaped

Lengths have four bytes, all integers are big-endian; a clock is a term (`clocks`).

The formats: Riak's `riak_kv_wm_queue` and `riak_object` (`nextgenrepl_encode`).
"""

from __future__ import annotations

import zlib
from typing import Final, NamedTuple

from isthmus.repl.model.errors import CodecError, TooLarge
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.objects import Object
from isthmus.repl.model.vclock import Clock
from isthmus.repl.riak.clocks import decode_clock_term, encode_clock_term
from isthmus.repl.riak.objects import encode_riak_object
from isthmus.repl.riak.terms import TermReader, sized
from isthmus.repl.riak.tree_hash import leaf_hash, segment_id

EMPTY_QUEUE: Final = b"\x00"
"""The answer when there is nothing to give."""

_FOUND: Final = b"\x01"
_PLAIN_OBJECT: Final = 0x10
_COMPRESSED_OBJECT: Final = 0x18
_REAP: Final = 0x14
_TIME_BYTES: Final = 12


class QueueChange(NamedTuple):
    """A change as a Riak's queue gives it. `encoded` is the object (`objects.decode_riak_object`); None when the key's
    tombstone, of `clock`, was reaped."""

    bucket_type: bytes
    bucket: bytes
    key: bytes
    encoded: bytes | None
    clock: Clock = ()


def encode_queue_answer(bucket_type: bytes, bucket: bytes, key: bytes, stored: Object, *, hashes: bool) -> bytes:
    """The answer with an object. A tombstone that is about to be reaped is sent as a tombstone: a reap would not
    delete the object in the Riak."""
    named = b"" if bucket_type == DEFAULT_BUCKET_TYPE else bucket_type
    place = b"".join((bytes([_PLAIN_OBJECT]), sized(named), sized(bucket), sized(key)))
    change = place + encode_riak_object(stored)
    clock = sized(encode_clock_term(stored.clock)) if stored.deleted else b""
    numbers = (segment_id(bucket_type, bucket, key), leaf_hash(bucket_type, bucket, key, stored.clock))
    about = b"".join(number.to_bytes(4, "big") for number in numbers) if hashes else b""
    return b"".join((_FOUND, bytes([stored.deleted]), about, clock, zlib.crc32(change).to_bytes(4, "big"), change))


def decode_queue_answer(body: bytes, object_bytes_max: int) -> QueueChange | None:
    """The change in an answer of form "internal"; None for an empty queue. A compressed object of more than
    `object_bytes_max` raises TooLarge, bytes that are no answer CodecError."""
    if body == EMPTY_QUEUE:
        return None
    reader = TermReader(body, "an answer of a queue")
    if reader.take(1) != _FOUND:
        raise reader.refused("its first byte is neither 0 nor 1")
    deleted = reader.number(1)
    if deleted > 1:
        raise reader.refused("its second byte is neither 0 nor 1")
    if deleted:
        reader.sized()
    checksum, change = reader.number(), reader.rest()
    if zlib.crc32(change) != checksum:
        raise reader.refused("its checksum is wrong")
    return _change(change, object_bytes_max)


def _change(data: bytes, object_bytes_max: int) -> QueueChange:
    reader = TermReader(data, "a change")
    kind = reader.number(1)
    if kind not in (_PLAIN_OBJECT, _COMPRESSED_OBJECT, _REAP):
        raise reader.refused(f"its kind is {kind:#04x}, of which this version knows none")
    bucket_type, bucket, key = reader.sized() or DEFAULT_BUCKET_TYPE, reader.sized(), reader.sized()
    if kind == _REAP:
        reader.take(_TIME_BYTES)
        return QueueChange(bucket_type, bucket, key, None, decode_clock_term(reader.rest()))
    encoded = reader.rest()
    if kind == _COMPRESSED_OBJECT:
        encoded = _inflated(encoded, object_bytes_max)
    return QueueChange(bucket_type, bucket, key, encoded)


def _inflated(data: bytes, bytes_max: int) -> bytes:
    inflate = zlib.decompressobj()
    try:
        found = inflate.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise CodecError(f"not a change of a Riak: {error}") from error
    if len(found) > bytes_max:
        raise TooLarge(f"a compressed object of a Riak has more than {bytes_max:,} bytes")
    if not inflate.eof or inflate.unused_data:
        raise CodecError("not a change of a Riak: its compressed object is cut short, or something follows it")
    return found

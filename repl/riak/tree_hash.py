"""Where a key stands in Riak's trees, and by what it changes a leaf. Pure.

A tree of Riak's tictac AAE has 2^20 leaves of four bytes. A key's segment is made of the MD5 of its bucket type ("" for
`default`), bucket and key; the low 20 bits of it are its leaf, which is XORed with four other bytes of the MD5 XOR the
hash of its clock: Erlang's `phash2` of the sorted list of {actor, {counter, timestamp}}, in Riak's timestamps.

The rules: `leveled_tictac`, and `make_hash2` of Erlang's runtime.
"""

from __future__ import annotations

from hashlib import md5
from struct import iter_unpack, unpack
from typing import Final

from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.vclock import Clock
from isthmus.repl.riak.clocks import gregorian

LEAF_BITS: Final = 20
LEAVES: Final = 1 << LEAF_BITS
LEAF_BYTES: Final = 4

_MASK: Final = 0xFFFF_FFFF
_PHASH2_MASK: Final = (1 << 27) - 1
_SMALL_MAX: Final = (1 << 27) - 1
"""Greatest integer that is hashed in the short way."""

_GOLDEN: Final = 0x9E37_79B9


def _constant(number: int) -> int:
    return _GOLDEN * number & _MASK


_END_OF_LIST: Final = _constant(2)
_TUPLE: Final = _constant(9)
_BIG: Final = _constant(11)
_BINARY: Final = _constant(13)
_BLOCK: Final = "<III"
_BLOCK_BYTES: Final = 12
"""A binary is hashed in blocks of three numbers."""

_EMPTY_LIST_HASH: Final = 3_468_870_702
"""Of a list without entries, where nothing was hashed before."""


def segment_id(bucket_type: bytes, bucket: bytes, key: bytes) -> int:
    """The segment of a key, 32 bits; its low LEAF_BITS are its leaf."""
    return _segment(_digest(bucket_type, bucket, key))


def leaf_hash(bucket_type: bytes, bucket: bytes, key: bytes, clock: Clock) -> int:
    """By what a key with `clock` changes its leaf, 32 bits."""
    return _key_hash(_digest(bucket_type, bucket, key)) ^ phash2_of_clock(clock)


def place_of(bucket_type: bytes, bucket: bytes, key: bytes) -> tuple[int, int]:
    """(segment, hash without the clock's) of a key, for a caller that needs both: XOR the second with
    `phash2_of_clock`."""
    digest = _digest(bucket_type, bucket, key)
    return _segment(digest), _key_hash(digest)


def _digest(bucket_type: bytes, bucket: bytes, key: bytes) -> bytes:
    named = bucket + key if bucket_type == DEFAULT_BUCKET_TYPE else bucket_type + bucket + key
    return md5(named, usedforsecurity=False).digest()


def _segment(digest: bytes) -> int:
    return int.from_bytes(digest[4:6], "big") << 16 | int.from_bytes(digest[:2], "big")


def _key_hash(digest: bytes) -> int:
    return int.from_bytes(digest[6:10], "big")


def phash2_of_clock(clock: Clock, hash_iv: int | None = None) -> int:
    """Erlang's `phash2` of a clock as Riak has it, sorted by actor; 27 bits. With `hash_iv`: of {hash_iv, clock}, by
    which a Riak may compare ranges, since other clocks have equal hashes then."""
    found = before_clock(hash_iv)
    if not clock and hash_iv is None:
        return _EMPTY_LIST_HASH & _PHASH2_MASK
    for actor, counter, time_s in clock:
        found = _mix(_TUPLE + 2, _TUPLE, found) if found else _FIRST_TUPLE
        found = _mix(_TUPLE + 2, _TUPLE, _hash_binary(actor, found))
        found = hash_integer(gregorian(time_s), hash_integer(counter, found))
    return _mix(_END_OF_LIST + 2, _END_OF_LIST, found) & _PHASH2_MASK


def before_clock(hash_iv: int | None) -> int:
    """The hash of what stands before a clock."""
    return 0 if hash_iv is None else hash_integer(hash_iv, _FIRST_TUPLE)


def hash_integer(number: int, before: int) -> int:
    """Of a number that is not negative."""
    if number <= _SMALL_MAX:
        return _mix(_GOLDEN + number, _GOLDEN, before)
    found = before
    while number:  # by digits of 64 bits
        found = _mix(_BIG + (number & _MASK), _BIG + (number >> 32 & _MASK), found)
        number >>= 64
    return found


def _hash_binary(data: bytes, before: int) -> int:
    c = _BINARY + before & _MASK
    if not data:
        return c
    a = b = _GOLDEN
    whole = len(data) // _BLOCK_BYTES * _BLOCK_BYTES
    for x, y, z in iter_unpack(_BLOCK, data[:whole]):
        a, b, c = _mixed(a + x, b + y, c + z)
    x, y, z = unpack(_BLOCK, data[whole:].ljust(_BLOCK_BYTES, b"\0"))
    return _mix(a + x, b + y, c + len(data) + (z << 8))


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    """Three numbers of any size, mixed to 32 bits each."""
    c &= _MASK
    a = (a - b - c ^ c >> 13) & _MASK
    b = (b - c - a ^ a << 8) & _MASK
    c = (c - a - b ^ b >> 13) & _MASK
    a = (a - b - c ^ c >> 12) & _MASK
    b = (b - c - a ^ a << 16) & _MASK
    c = (c - a - b ^ b >> 5) & _MASK
    a = (a - b - c ^ c >> 3) & _MASK
    b = (b - c - a ^ a << 10) & _MASK
    return a, b, (c - a - b ^ b >> 15) & _MASK


def _mix(a: int, b: int, c: int) -> int:
    """The third of three mixed numbers: the hash."""
    return _mixed(a, b, c)[2]


_FIRST_TUPLE: Final = _mix(_TUPLE + 2, _TUPLE, 0)

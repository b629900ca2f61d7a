"""What many keys contribute to Riak's trees, as columns: the same as `repl.riak.tree_hash` for one key. Pure.

Erlang's `phash2` of one clock costs some 10 us an entry in Python; numpy does the same arithmetic for hundreds of
clocks in a call. Clocks whose actors have the same lengths are hashed together; of a few the plain function is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import md5
from typing import Final

import numpy as np
from numpy.typing import NDArray

from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE
from isthmus.repl.model.vclock import Clock
from isthmus.repl.riak.clocks import gregorian
from isthmus.repl.riak.tree_hash import before_clock, hash_integer, phash2_of_clock

Words = NDArray[np.uint32]
"""Numbers of 32 bits that wrap around."""

TOGETHER_MIN: Final = 16
"""Fewer clocks of a shape are hashed one by one: a step of numpy costs some 20 us whatever it is given."""

_DIGEST_BYTES: Final = 16
_BLOCK_BYTES: Final = 12
_SMALL_MAX: Final = (1 << 27) - 1
_PHASH2_MASK: Final = np.uint32((1 << 27) - 1)

_GOLDEN: Final = 0x9E37_79B9
_WORD: Final = 0xFFFF_FFFF
_BITS: Final = np.uint64(32)


def _constant(number: int) -> np.uint32:
    return np.uint32(_GOLDEN * number & _WORD)


_ONE: Final = _constant(1)
_END_OF_LIST: Final = _constant(2)
_TUPLE: Final = _constant(9)
_BIG: Final = _constant(11)
_BINARY: Final = _constant(13)


def places_of(bucket_type: bytes, names: Iterable[tuple[bytes, bytes]]) -> tuple[Words, Words]:
    """(segment of 32 bits, hash without the clock's) of each (bucket, key)."""
    head = b"" if bucket_type == DEFAULT_BUCKET_TYPE else bucket_type
    return split_digests([md5(head + bucket + key, usedforsecurity=False).digest() for bucket, key in names])


def split_digests(digests: Sequence[bytes]) -> tuple[Words, Words]:
    """As `places_of`, of the MD5s of the names."""
    table = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, _DIGEST_BYTES)
    return _words(table, [4, 5, 0, 1]), _words(table, [6, 7, 8, 9])


def _words(table: NDArray[np.uint8], columns: list[int]) -> Words:
    """The big-endian numbers in four columns of bytes."""
    return np.ascontiguousarray(table[:, columns]).view(">u4").astype(np.uint32).reshape(-1)


def leaves_of(
    bucket_type: bytes, keys: Sequence[tuple[bytes, bytes]], clocks: Sequence[Clock], bits: int, hash_iv: int | None
) -> dict[int, int]:
    """Leaf -> hash, in a tree of 2^bits leaves with these keys alone."""
    if not keys:
        return {}
    segments, hashes = places_of(bucket_type, keys)
    leaves, places = np.unique(segments & np.uint32((1 << bits) - 1), return_inverse=True)
    found: Words = np.zeros(len(leaves), np.uint32)
    np.bitwise_xor.at(found, places, hashes ^ hash_clocks(clocks, hash_iv))
    return dict(zip(leaves.tolist(), found.tolist(), strict=True))


def hash_clocks(clocks: Sequence[Clock], hash_iv: int | None = None) -> Words:
    """`phash2_of_clock` of each."""
    found: Words = np.zeros(len(clocks), np.uint32)
    shapes: dict[tuple[int, ...], list[int]] = {}
    for at, clock in enumerate(clocks):
        shapes.setdefault(tuple([len(entry[0]) for entry in clock]), []).append(at)
    for shape, places in shapes.items():
        if len(places) < TOGETHER_MIN or not shape:
            found[places] = [phash2_of_clock(clocks[at], hash_iv) for at in places]
        else:
            found[places] = _hash_alike([clocks[at] for at in places], shape, before_clock(hash_iv))
    return found


def _hash_alike(clocks: Sequence[Clock], shape: tuple[int, ...], before: int) -> Words:
    """The hashes of clocks whose actors have these lengths."""
    found: Words = np.full(len(clocks), before, np.uint32)
    for at, length in enumerate(shape):
        entries = [clock[at] for clock in clocks]
        found = _mixed_pair(_TUPLE, found)
        found = _hash_binaries(b"".join([actor for actor, _, _ in entries]), length, found)
        found = _mixed_pair(_TUPLE, found)
        found = _hash_integers([counter for _, counter, _ in entries], found)
        found = _hash_integers([gregorian(time_s) for _, _, time_s in entries], found)
    return _mixed_pair(_END_OF_LIST, found) & _PHASH2_MASK


def _mixed_pair(constant: np.uint32, before: Words) -> Words:
    """What a tuple of two, or the end of the list, makes of the hash so far."""
    return _mix(np.full_like(before, int(constant) + 2 & _WORD), np.full_like(before, constant), before)


def _hash_integers(numbers: Sequence[int], before: Words) -> Words:
    """Of numbers from 0; a time in seconds since the year 0 may have a little more than 64 bits."""
    if max(numbers) >> 64:
        return np.array([hash_integer(*pair) for pair in zip(numbers, before.tolist(), strict=True)], np.uint32)
    whole = np.array(numbers, np.uint64)
    constant = np.where(whole <= _SMALL_MAX, _ONE, _BIG)
    low, high = whole.astype(np.uint32), (whole >> _BITS).astype(np.uint32)
    return _mix(constant + low, constant + high, before)


def _hash_binaries(joined: bytes, length: int, before: Words) -> Words:
    """Of binaries of one length, joined."""
    blocks = length // _BLOCK_BYTES + 1
    padded = np.zeros((len(before), blocks * _BLOCK_BYTES), np.uint8)
    padded[:, :length] = np.frombuffer(joined, np.uint8).reshape(len(before), length)
    words = padded.view("<u4").astype(np.uint32, copy=False)
    a, b, c = np.full_like(before, _ONE), np.full_like(before, _ONE), before + _BINARY
    last = 3 * (blocks - 1)
    for at in range(0, last, 3):
        a, b, c = a + words[:, at], b + words[:, at + 1], c + words[:, at + 2]
        _mix(a, b, c)
    c += np.uint32(length) + (words[:, last + 2] << np.uint32(8))
    return _mix(a + words[:, last], b + words[:, last + 1], c)


_SHIFTS: Final = tuple(tuple(np.uint32(bits) for bits in step) for step in ((13, 8, 13), (12, 16, 5), (3, 10, 15)))


def _mix(a: Words, b: Words, c: Words) -> Words:
    """Mix three columns in place, and return the third: the hash."""
    for right, left, last in _SHIFTS:
        a -= b
        a -= c
        a ^= c >> right
        b -= c
        b -= a
        b ^= a << left
        c -= a
        c -= b
        c ^= b >> last
    return c

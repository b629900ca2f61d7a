"""Keys and their hash, from which segment and partition follow.

Keys are bytes inside, text only at the edges. One function places a key everywhere: in the store's row order, the
trees, the partition map and Spark (`xxhash64` of the same bytes).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

HASH_SEED: Final = 42
"""Seed of every key hash: that of Spark SQL's `xxhash64`, so that both agree."""

SEGMENT_BITS: Final = 20
"""A full tree has 2^20 segments; smaller trees are folds of it."""

SEGMENT_COUNT: Final = 1 << SEGMENT_BITS

_SEGMENT_SHIFT: Final = 64 - SEGMENT_BITS
_LENGTH: Final = struct.Struct(">I")

DEFAULT_BUCKET_TYPE: Final = b"default"


class Key(NamedTuple):
    """(bucket type, bucket, key), each bytes and not empty in a stored key."""

    bucket_type: bytes
    bucket: bytes
    key: bytes


def hashed_bytes(bucket: bytes, key: bytes) -> bytes:
    """Return the hashed bytes: each part after its length (4 bytes, big-endian).

    The lengths keep ("a", "bc") and ("ab", "c") apart. The bucket type is not part of them, since each has its own
    partitions and trees.
    """
    return _LENGTH.pack(len(bucket)) + bucket + _LENGTH.pack(len(key)) + key


def key_hash(bucket: bytes, key: bytes) -> int:
    """Return the 64-bit hash of a key: xxh64 with seed 42 over `hashed_bytes`."""
    pack = _LENGTH.pack
    return xxh64_intdigest(pack(len(bucket)) + bucket + pack(len(key)) + key, HASH_SEED)


def segment_of(hash64: int) -> int:
    """Return the key's segment in a full tree: the top 20 bits of its hash (0 .. 2^20 - 1)."""
    return hash64 >> _SEGMENT_SHIFT


def partition_index(hash64: int, partition_count: int) -> int:
    """Return the index of the key's partition among `partition_count`: a contiguous range of segments."""
    return (hash64 >> _SEGMENT_SHIFT) * partition_count >> SEGMENT_BITS

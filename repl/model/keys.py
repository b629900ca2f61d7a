"""Keys, their one hash, and the cuts that follow from it: segment and partition.

Bytes inside, text only at the edges. One function decides where a key lives, everywhere: in the
store's row order, in the trees, in the partition map and in Spark (`xxhash64` of the same bytes).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from xxhash import xxh64_intdigest

HASH_SEED: Final = 42
"""Seed of every key hash: the one that Spark SQL's `xxhash64` uses, so that both agree."""

SEGMENT_BITS: Final = 20
"""A full tree has 2^20 segments; smaller trees are folds of it."""

SEGMENT_COUNT: Final = 1 << SEGMENT_BITS

_SEGMENT_SHIFT: Final = 64 - SEGMENT_BITS
_LENGTH: Final = struct.Struct(">I")

DEFAULT_BUCKET_TYPE: Final = b"default"


class Key(NamedTuple):
    """(bucket type, bucket, key), each bytes; none may be empty in a stored key."""

    bucket_type: bytes
    bucket: bytes
    key: bytes


def hashed_bytes(bucket: bytes, key: bytes) -> bytes:
    """The bytes that are hashed: each part behind its length (4 bytes, big-endian).

    The lengths keep ("a", "bc") and ("ab", "c") apart; the bucket type is left out since every
    bucket type has partitions and trees of its own.
    """
    return _LENGTH.pack(len(bucket)) + bucket + _LENGTH.pack(len(key)) + key


def key_hash(bucket: bytes, key: bytes) -> int:
    """The 64-bit hash of a key: xxh64 with seed 42 over `hashed_bytes`."""
    pack = _LENGTH.pack
    return xxh64_intdigest(pack(len(bucket)) + bucket + pack(len(key)) + key, HASH_SEED)


def segment_of(hash64: int) -> int:
    """The key's segment in a full tree: the top 20 bits of its hash (0 .. 2^20 - 1)."""
    return hash64 >> _SEGMENT_SHIFT


def partition_index(hash64: int, partition_count: int) -> int:
    """The index of the key's partition among `partition_count`: a contiguous range of segments."""
    return (hash64 >> _SEGMENT_SHIFT) * partition_count >> SEGMENT_BITS

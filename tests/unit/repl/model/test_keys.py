"""Keys: one hash, and segments and partitions that cut the key space along the same line."""

from __future__ import annotations

import struct

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.model import keys


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_the_hash_is_xxh64_of_length_prefixed_parts(bucket: bytes, key: bytes) -> None:
    """The key hash equals xxh64 (seed 42) of the documented bytes, so that Spark can compute it too."""
    data = struct.pack(">I", len(bucket)) + bucket + struct.pack(">I", len(key)) + key
    assert keys.hashed_bytes(bucket, key) == data
    assert keys.key_hash(bucket, key) == xxhash.xxh64_intdigest(data, seed=42)


def test_the_hash_of_a_known_key_never_changes() -> None:
    """The hash is an on-disk format: this value is fixed for ever."""
    assert keys.key_hash(b"bucket", b"key") == 1518692877650032374


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(1, 1024))
def test_a_partition_is_a_contiguous_range_of_segments(one: int, other: int, count: int) -> None:
    """Partition indexes rise with the segment from 0 to the last, and keys of one segment share a partition."""
    low, high = sorted((one, other))
    assert 0 <= keys.partition_index(low, count) <= keys.partition_index(high, count) < count
    assert keys.segment_of(low) <= keys.segment_of(high)
    if keys.segment_of(low) == keys.segment_of(high):
        assert keys.partition_index(low, count) == keys.partition_index(high, count)


@given(st.integers(1, 300))
def test_partitions_cover_all_segments_evenly(count: int) -> None:
    """Every partition has segments, and their numbers differ by at most one."""
    edges = [keys.partition_index(segment << 44, count) for segment in range(0, keys.SEGMENT_COUNT, 97)]
    assert edges[0] == 0
    assert keys.partition_index((keys.SEGMENT_COUNT - 1) << 44, count) == count - 1
    sizes = [edges.count(index) for index in range(count)]
    assert max(sizes) - min(sizes) <= 2

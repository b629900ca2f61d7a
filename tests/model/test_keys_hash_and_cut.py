"""Keys: one hash, and segments and partitions that cut the key space along the same line."""

from __future__ import annotations

import struct

import xxhash
from hypothesis import given
from hypothesis import strategies as st

from repl.model import keys


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_the_hash_is_xxh64_of_length_prefixed_parts(bucket: bytes, key: bytes) -> None:
    """The key hash equals xxh64 (seed 42) of the documented bytes, so that Spark can compute it too."""
    data = struct.pack(">I", len(bucket)) + bucket + struct.pack(">I", len(key)) + key
    assert keys.hashed_bytes(bucket, key) == data
    assert keys.key_hash(bucket, key) == xxhash.xxh64_intdigest(data, seed=42)


def test_the_hash_of_a_known_key_never_changes() -> None:
    """The hash is an on-disk format: this value is fixed for ever."""
    assert keys.key_hash(b"bucket", b"key") == 1518692877650032374


@given(st.integers(0, 2**64 - 1), st.integers(1, 1024))
def test_a_partition_is_a_contiguous_range_of_segments(hash64: int, count: int) -> None:
    """A key's segment lies in the range of its partition, and in no other partition's."""
    index = keys.partition_index(hash64, count)
    assert 0 <= index < count
    segment = keys.segment_of(hash64)
    assert segment in keys.segment_range(index, count)
    for other in (index - 1, index + 1):
        if 0 <= other < count:
            assert segment not in keys.segment_range(other, count)


@given(st.integers(1, 300))
def test_partitions_cover_all_segments_once(count: int) -> None:
    """The ranges of all partitions follow on each other from 0 to 2^20 without a gap."""
    end = 0
    for index in range(count):
        found = keys.segment_range(index, count)
        assert found.start == end
        end = found.stop
    assert end == keys.SEGMENT_COUNT

"""Rows as they travel and as columns: joined strings, and key rows taken apart all at once."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.aae.reconcile.key_rows import bucket_ends, one_by_one, parsed
from isthmus.aae.row_stream.blobs import Blobs, lengths_of
from isthmus.repl.model.entry import KEY_ROW_VERSION, encode_key_row
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.objects import Summary
from isthmus.repl.store.rows import bucket_head

EDGES = (0, 127, 128, 255, 256, 65_535, 65_536, (1 << 32) - 1, 1 << 32)
NUMBERS = st.integers(0, (1 << 63) - 1) | st.sampled_from(EDGES)
SUMMARIES = st.builds(
    Summary,
    st.binary(max_size=40) | st.binary(min_size=250, max_size=300) | st.just(b"c" * 70_000),
    st.integers(0, (1 << 64) - 1) | NUMBERS,
    NUMBERS,
    NUMBERS,
    st.integers(0, (1 << 31) - 1),
    st.booleans(),
)


def fields(row: Any, at: int) -> tuple[Any, ...]:
    """The n-th row of what `parsed` gives, as `one_by_one` has it."""
    data, found = row
    clock = data[found.clock_first[at] : found.clock_end[at]]
    return (clock, *(column[at].item() for column in found[2:-1]))


@given(st.lists(st.tuples(SUMMARIES, NUMBERS), min_size=1, max_size=8))
def test_rows_taken_apart_abreast_are_those_taken_apart_singly(made: list[tuple[Summary, int]]) -> None:
    """For numbers and clocks of any width, every field of every row equals the result of decoding that row alone, and
    the bytes before the offset are the same for equal summaries."""
    rows = Blobs.of([encode_key_row(summary, offset) for summary, offset in made])
    found = parsed(rows)
    assert found is not None
    singly, faults = one_by_one(rows)
    assert not any(faults)
    assert [fields((rows.data, found), at) for at in range(len(made))] == list(zip(*singly, strict=True))
    for at, (summary, _) in enumerate(made):
        bare = encode_key_row(summary, 0)
        assert rows.data[rows.places[at] : found.same_end[at]] == bare[:-1]


@given(st.binary(max_size=80), st.integers(0, 60))
def test_no_bytes_are_taken_for_a_row_that_decoding_refuses(noise: bytes, cut: int) -> None:
    """Noise, a truncated row, and one with a changed byte are reported as damage or read as the decoder reads them;
    never past their end."""
    good = encode_key_row(Summary(b"clock", 7, 1, 300, 2, tombstone=False), 5)
    changed = bytearray(good)
    changed[cut % len(good)] ^= 1 + len(noise) % 255
    for bad in (noise, good[: cut % len(good)], bytes(changed)):
        rows = Blobs.of([good, bad, good])
        found = parsed(rows)
        if found is not None:
            singly, faults = one_by_one(rows)
            assert not any(faults)
            assert fields((rows.data, found), 1) == tuple(column[1] for column in singly)


@pytest.mark.parametrize(
    "row",
    [
        msgpack.packb((KEY_ROW_VERSION + 1, b"c", 1, 1, 1, 1, False, 1)),
        msgpack.packb((KEY_ROW_VERSION, "c", 1, 1, 1, 1, False, 1)),
        msgpack.packb((KEY_ROW_VERSION, b"c", -1, 1, 1, 1, False, 1)),
        msgpack.packb((KEY_ROW_VERSION, b"c", 1, 1 << 63, 1, 1, False, 1)),
        msgpack.packb((KEY_ROW_VERSION, b"c", 1, 1, 1, 1 << 31, False, 1)),
        msgpack.packb((KEY_ROW_VERSION, b"c", 1, 1, 1, 1, None, 1)),
        msgpack.packb((KEY_ROW_VERSION, b"c", 1, 1, 1, 1, False, 1)) + b"\0",
        msgpack.packb((KEY_ROW_VERSION, b"c", 1, 1, 1, 1, False)),
        b"\x98\x01\xc6\xff\xff\xff\xff12345678",
    ],
)
def test_a_row_that_is_none_is_not_taken_apart(row: bytes) -> None:
    """Another version, type, number of fields, a number out of range, bytes behind the end, a clock without one."""
    assert parsed(Blobs.of([row])) is None


@given(st.lists(st.tuples(st.binary(max_size=12), st.binary(max_size=12)), min_size=1, max_size=6))
def test_buckets_end_where_the_store_ends_them(pairs: list[tuple[bytes, bytes]]) -> None:
    """If no bucket name has a zero byte, the end of each bucket is found; otherwise the result is None."""
    names = Blobs.of([b"\0\1\0" + bucket_head(bucket) + key for bucket, key in pairs])
    ends = bucket_ends(names)
    if any(b"\0" in bucket for bucket, _ in pairs):
        assert ends is None
    else:
        assert ends is not None
        found = zip(names.places[:-1], ends, names.places[1:], strict=True)
        assert [(names.data[a + 3 : b], names.data[b + 2 : c]) for a, b, c in found] == pairs


def test_names_without_a_bucket_have_no_end() -> None:
    """Too short, no end, or its end in the next name."""
    for names in ([b"ab"], [b"abcdef"], [b"abcd\0", b"\1bcd\0\1"]):
        assert bucket_ends(Blobs.of(names)) is None


@given(st.lists(st.binary(max_size=9), max_size=9))
def test_joined_strings_are_the_strings(items: list[bytes]) -> None:
    """As a sequence they are what was joined, over the wire too."""
    for blobs in (Blobs.of(items), Blobs.parsed(b"".join(items), lengths_of(items))):
        assert blobs == items
        assert [blobs[at] for at in range(-len(items), len(items))] == items + items
        assert blobs[1:4] == items[1:4]
        with pytest.raises(IndexError):
            blobs[len(items)]


def test_lengths_that_do_not_fit_are_refused() -> None:
    """More or fewer bytes than the lengths say, half a length, other types."""
    one = np.array([2], "<u4").tobytes()
    for data, lengths in ((b"abc", one), (b"a", one), (b"ab", one[:3]), ("ab", one), (b"ab", [2])):
        with pytest.raises(CodecError):
            Blobs.parsed(data, lengths)

"""A build takes the same leaves from encoded key rows as apply takes from their fields; damaged rows never become
leaves."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.aae.trees.tree_builder import page_leaves, row_leaf
from isthmus.repl.model.entry import decode_key_row, encode_key_row, leaf
from isthmus.repl.model.errors import CodecError, Corruption
from isthmus.repl.model.objects import Summary
from isthmus.repl.store.rows import bucket_head, segment_name
from tests.support.samples import share

numbers = st.integers(0, 300) | st.integers(0, 70_000) | st.integers(0, 2**63)
summaries = st.builds(
    Summary,
    st.binary(max_size=60) | st.binary(min_size=250, max_size=300),
    st.integers(0, 2**64 - 1) | st.integers(0, 300),
    numbers,
    numbers,
    numbers,
    st.booleans(),
)
texts = st.binary(min_size=1, max_size=12) | st.sampled_from(
    [b"\0", b"a\0\1b", b"\0\1", b"k" * 255, b"k" * 256, b"k" * 999]
)
keys = st.tuples(st.integers(0, 2**20 - 1), texts, texts, summaries, numbers)
Made = tuple[int, bytes, bytes, Summary, int]


def page(found: list[Made]) -> tuple[list[bytes], list[bytes]]:
    """The names and rows of keys."""
    names = [segment_name(segment) + bucket_head(bucket) + key for segment, bucket, key, _, _ in found]
    return names, [encode_key_row(summary, offset) for *_, summary, offset in found]


@settings(max_examples=share(150), deadline=None, derandomize=True)
@given(st.lists(keys, min_size=1, max_size=20))
def test_a_page_gives_every_row_the_leaf_that_apply_gave_it(found: list[Made]) -> None:
    """For every shape of name and row, alone and among others, in the order of the page."""
    segments, leaves = page_leaves(*page(found))
    assert segments.tolist() == [made[0] for made in found]
    assert leaves.tolist() == [
        leaf(bucket, key, summary.clock, summary.hash64, tombstone=summary.tombstone)
        for _, bucket, key, summary, _ in found
    ]


def cut(row: bytes, chance: random.Random) -> bytes:
    """It ends early."""
    return row[: chance.randrange(len(row))]


def longer(row: bytes, chance: random.Random) -> bytes:
    """Bytes after the row's end."""
    return row + chance.randbytes(1 + chance.randrange(3))


def other(row: bytes, chance: random.Random) -> bytes:
    """One byte is another."""
    at = chance.randrange(len(row))
    return (
        row[:at] + bytes([chance.choice([0, 1, 0xC0, 0xC2, 0xC3, 0xC4, 0xCF, 0xD0, 0xFF, row[at] ^ 1])]) + row[at + 1 :]
    )


@pytest.mark.parametrize("damage", [cut, longer, other])
def test_a_damaged_row_is_an_error_or_its_decoded_leaf(damage: Callable[[bytes, random.Random], bytes]) -> None:
    """Beside good rows, a row that was cut, lengthened or changed in a byte gives the result of decoding it: an error
    that names the key, or the leaf of the row that the bytes now encode; never a third result (R-TREE)."""
    chance = random.Random(7)
    errors = 0
    for turn in range(600):
        clock = chance.randbytes(chance.choice([0, 38, 70, 251]))
        summary = Summary(clock, chance.randrange(2**63, 2**64), 1_700_000_000_000, 1_000, 1, turn % 7 == 0)
        row = damage(encode_key_row(summary, chance.randrange(2**20)), chance)
        good = encode_key_row(summary._replace(clock=b"clock"), 5)
        names = [segment_name(5) + bucket_head(b"b") + b"key-%d" % n for n in range(3)]
        rows = [good] * 3
        at = chance.randrange(3)
        rows[at] = row
        try:
            expected = row_leaf(b"b", b"key-%d" % at, row)
        except Corruption:
            errors += 1
            with pytest.raises(Corruption, match=f"b'b'/b'key-{at}'"):
                page_leaves(names, rows)
        else:
            assert int(page_leaves(names, rows)[1][at]) == expected
    assert errors > 50


def test_no_byte_makes_a_row_that_decodes_and_has_no_leaf() -> None:
    """Every byte of a row is changed to every other value: the result is Corruption, or a leaf and a possible offset,
    never an internal error, which would not be treated as damage and repaired."""
    row = encode_key_row(Summary(b"clock", 2**64 - 7, 1_790_000_000_000, 300, 1, False), 70_000)
    refused = 0
    for at in range(len(row)):
        for byte in range(256):
            hurt = row[:at] + bytes([byte]) + row[at + 1 :]
            try:
                row_leaf(b"b", b"k", hurt)
            except Corruption:
                refused += 1
                with pytest.raises(CodecError):
                    decode_key_row(hurt)
            else:
                assert min(decode_key_row(hurt)[1:5]) >= 0
                assert decode_key_row(hurt).offset >= 0
    assert refused > 2_000


def test_a_name_without_a_bucket_is_an_error() -> None:
    """Also one that is shorter than a segment."""
    row = encode_key_row(Summary(b"clock", 2**63, 1, 1, 1, False), 1)
    for name in (b"", b"\0", segment_name(1), segment_name(1) + b"bucket", segment_name(1) + b"bucket\0"):
        with pytest.raises(Corruption, match="names no bucket"):
            page_leaves([segment_name(1) + bucket_head(b"b") + b"k", name], [row, row])


def test_a_row_of_another_partition_is_an_error() -> None:
    """Below the partition's segments, or behind them."""
    row = encode_key_row(Summary(b"clock", 2**63, 1, 1, 1, False), 1)
    names = [segment_name(segment) + bucket_head(b"b") + b"k" for segment in (7, 8, 9)]
    assert page_leaves(names, [row] * 3, 7, 10)[0].tolist() == [7, 8, 9]
    for first, end in ((8, 10), (7, 9)):
        with pytest.raises(Corruption, match="is of segment"):
            page_leaves(names, [row] * 3, first, end)

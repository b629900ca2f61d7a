"""Row names sort as their nouns do and never collide; damaged values are refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.repl.model.errors import Corruption
from isthmus.repl.store import rows
from isthmus.repl.store.rows import StoredPosition

BYTES = st.lists(st.sampled_from([b"\0", b"\1", b"\xfe", b"\xff", b"a"]), max_size=5).map(b"".join) | st.binary(
    max_size=8
)
NAMES = st.tuples(BYTES, BYTES)


def tail(name: tuple[bytes, bytes]) -> bytes:
    """(bucket, key) as encoded in a row's name."""
    return rows.bucket_head(name[0]) + name[1]


@given(NAMES, NAMES)
def test_names_sort_as_bucket_and_key_do(a: tuple[bytes, bytes], b: tuple[bytes, bytes]) -> None:
    """Two row names compare as their (bucket, key) pairs, so equal ones are the same pair."""
    assert (tail(a) < tail(b)) == (a < b)
    assert (tail(a) == tail(b)) == (a == b)


@given(NAMES)
def test_names_are_read_back(name: tuple[bytes, bytes]) -> None:
    """`split_tail` undoes what made the name."""
    assert rows.split_tail(tail(name)) == name


@given(st.integers(0, 2**32 - 1), st.binary(max_size=6))
def test_a_prefix_ends_before_what_follows_it(partition: int, rest: bytes) -> None:
    """Everything that begins with a partition's prefix lies below `after_prefix`, the next partition not."""
    for prefix in rows.prefixes(partition):
        assert prefix + rest < rows.after_prefix(prefix)
        assert rows.after_prefix(prefix) <= rows.END_KEY
    if partition < 2**32 - 1:
        assert rows.after_prefix(rows.prefixes(partition).object) <= rows.prefixes(partition + 1).object


@given(st.integers(0, 2**20 - 1), st.integers(0, 2**44), st.integers(-1, 2**40))
def test_positions_are_read_back(epoch: int, offset: int, newest_mark_s: int) -> None:
    """An applied row gives back its position."""
    position = StoredPosition(epoch, offset, newest_mark_s)
    assert rows.decode_position(rows.encode_position(position)) == position


@pytest.mark.parametrize(
    "decode",
    [
        rows.decode_format,
        rows.decode_position,
        rows.decode_cursor,
        rows.decode_u32,
        rows.decode_u64,
        rows.split_tail,
        lambda value: rows.decode_change(5, value),
    ],
)
@pytest.mark.parametrize("value", [b"", b"abc", b"\0" * 33])
def test_a_short_or_misshapen_value_is_corruption(decode: object, value: bytes) -> None:
    """A value that cannot be what its row holds is called corruption, not read as something else."""
    if decode is rows.decode_cursor and len(value) >= 8:
        value = value[:7]
    with pytest.raises(Corruption):
        decode(value)  # type: ignore[operator]

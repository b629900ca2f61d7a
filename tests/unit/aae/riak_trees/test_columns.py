"""Keys and clocks hashed many at once: the same numbers as one by one, and as Erlang's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.aae.riak_trees import columns
from isthmus.aae.riak_trees.columns import hash_clocks, places_of
from isthmus.repl.model.vclock import Clock
from isthmus.repl.riak.clocks import decode_clock_term
from isthmus.repl.riak.tree_hash import phash2_of_clock, place_of

VECTORS = Path(__file__).parents[2] / "repl" / "riak" / "captures" / "phash2_clocks.txt"

actors = st.sampled_from([b"a", b"vnode-08", b"twelve-bytes", b"x" * 20, b"y" * 28, b"z" * 255])
numbers = st.integers(1, (1 << 64) - 1) | st.integers(1, 300) | st.integers((1 << 27) - 2, (1 << 27) + 2)
clocks = st.dictionaries(actors, st.tuples(numbers, numbers), max_size=4).map(
    lambda entries: tuple((actor, *entries[actor]) for actor in sorted(entries))
)


@pytest.fixture(autouse=True)
def together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few clocks are hashed in columns, too."""
    monkeypatch.setattr(columns, "TOGETHER_MIN", 1)


def test_the_hashes_of_many_clocks_are_erlangs() -> None:
    """300 clocks: actors of up to 29 bytes, counters of up to 64 bits, 0 to 20 entries."""
    lines = [line.split() for line in VECTORS.read_text().splitlines() if not line.startswith("#")]
    found = hash_clocks([decode_clock_term(bytes.fromhex(term)) for term, _ in lines])
    assert found.tolist() == [int(expected) for _, expected in lines]


@given(st.lists(clocks, max_size=12), st.none() | st.integers(0, 1 << 40))
def test_many_clocks_are_hashed_as_each_alone(many: list[Clock], hash_iv: int | None) -> None:
    """Of any lengths of actors, also with what a Riak may put before a clock."""
    assert hash_clocks(many, hash_iv).tolist() == [phash2_of_clock(clock, hash_iv) for clock in many]


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=30), st.binary(min_size=1, max_size=30)), min_size=1))
def test_many_keys_are_placed_as_each_alone(names: list[tuple[bytes, bytes]]) -> None:
    """With a bucket type and in the default one."""
    for bucket_type in (b"default", b"maps"):
        segments, hashes = places_of(bucket_type, names)
        assert segments.dtype == hashes.dtype == np.uint32
        found = list(zip(segments.tolist(), hashes.tolist(), strict=True))
        assert found == [place_of(bucket_type, *name) for name in names]

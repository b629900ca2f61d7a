"""Laws of the trees: order, parts and folds do not matter, and a difference is found in its segment."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.aae.trees.tree import (
    BRANCH_BITS,
    BRANCH_COUNT,
    LEAF_BITS,
    HashTree,
    differing,
    hashes_from_wire,
    hashes_to_wire,
)
from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import SEGMENT_COUNT
from tests.support.samples import share

segments = st.integers(0, SEGMENT_COUNT - 1) | st.sampled_from([0, 1, 1023, 1024, SEGMENT_COUNT - 1])
changes = st.lists(st.tuples(segments, st.integers(0, (1 << 64) - 1)), max_size=40)


def tree_of(found: list[tuple[int, int]]) -> HashTree:
    """A tree with these changes."""
    tree = HashTree()
    tree.change_all(found)
    return tree


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(changes, st.randoms(use_true_random=False))
def test_the_order_of_changes_makes_no_difference(found: list[tuple[int, int]], chance: object) -> None:
    """Changes in any order, one by one or together, give the same tree; a change made twice cancels itself."""
    shuffled = list(found)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    one_by_one = HashTree()
    for segment, delta in shuffled:
        one_by_one.change(segment, delta)
    whole = tree_of(found)
    assert not whole.differing_leaves(one_by_one)
    one_by_one.change_all(found)
    assert not one_by_one.branch_hashes().any()


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(changes, st.integers(0, SEGMENT_COUNT))
def test_the_trees_of_parts_make_the_tree_of_the_whole(found: list[tuple[int, int]], cut: int) -> None:
    """Two trees of disjoint ranges of segments merge into that of both, and the parts stay what they were."""
    low, high = tree_of([c for c in found if c[0] < cut]), tree_of([c for c in found if c[0] >= cut])
    before = high.dump()
    merged = HashTree()
    merged.merge(low)
    merged.merge(high)
    assert merged.dump().keys() == tree_of(found).dump().keys()
    assert not merged.differing_leaves(tree_of(found))
    assert high.dump() == before


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(changes, st.integers(12, 20))
def test_smaller_trees_are_folds_with_the_same_branches(found: list[tuple[int, int]], size_bits: int) -> None:
    """A leaf of a smaller tree is the XOR of the leaves below it, and its branches have the hashes of the full one."""
    tree = tree_of(found)
    hashes = tree.branch_hashes()
    expected: dict[int, int] = {}
    for segment, delta in found:
        small = segment >> (20 - size_bits)
        expected[small] = expected.get(small, 0) ^ delta
    for branch in {segment >> LEAF_BITS for segment, _ in found} | {7}:
        leaves = tree.leaves(branch, size_bits)
        first = branch << (size_bits - BRANCH_BITS)
        assert leaves.tolist() == [expected.get(first + at, 0) for at in range(len(leaves))]
        assert int(np.bitwise_xor.reduce(leaves)) == int(hashes[branch])


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(changes, changes)
def test_trees_differ_exactly_where_rows_changed(common: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    """Two trees differ in the segments, and in the branches, in which one had a change that does not cancel out."""
    here, there = tree_of(common), tree_of(common + more)
    net: dict[int, int] = {}
    for segment, delta in more:
        net[segment] = net.get(segment, 0) ^ delta
    expected = {segment for segment, delta in net.items() if delta}
    assert {segment for segment, _, _ in here.differing_leaves(there)} == expected
    branch_nets: dict[int, int] = {}
    for segment, delta in net.items():
        branch_nets[segment >> LEAF_BITS] = branch_nets.get(segment >> LEAF_BITS, 0) ^ delta
    assert list(differing(here.branch_hashes(), there.branch_hashes())) == sorted(
        b for b, d in branch_nets.items() if d
    )


def test_a_tree_survives_its_file_form_and_the_wire() -> None:
    """A dump loads as the same tree, hashes are unchanged over the wire, and truncated data is refused."""
    tree = tree_of([(5, 1 << 63), (SEGMENT_COUNT - 1, 3)])
    again = HashTree.load(tree.dump())
    assert not again.differing_leaves(tree)
    again.change(6, 1)
    assert tree.differing_leaves(again) == [(6, 0, 1)]
    hashes = tree.branch_hashes()
    assert (hashes_from_wire(hashes_to_wire(hashes), BRANCH_COUNT) == hashes).all()
    with pytest.raises(CodecError, match="are due"):
        hashes_from_wire(hashes_to_wire(hashes)[:-8], BRANCH_COUNT)
    with pytest.raises(CodecError, match="not a tree"):
        HashTree.load({5: b"short"})
    with pytest.raises(CodecError, match="not a tree"):
        HashTree.load({BRANCH_COUNT: bytes(8192)})


def test_memory_grows_with_the_branches_that_are_touched() -> None:
    """An empty tree has no leaves; one of all segments has 8 bytes a segment, and so have all parts together."""
    tree = HashTree()
    assert tree.allocated_bytes == 0
    tree.change(0, 1)
    tree.change(1, 1)
    assert 0 < tree.allocated_bytes <= 8192
    tree.change_all((branch << LEAF_BITS, 1) for branch in range(0, BRANCH_COUNT, 2))
    assert tree.allocated_bytes <= 4 * SEGMENT_COUNT
    tree.change_all((segment, 1) for segment in range(SEGMENT_COUNT))
    assert tree.allocated_bytes == 8 * SEGMENT_COUNT
    cuts = [0, 1, 100, 87_382, 87_382 + 512, 524_288, SEGMENT_COUNT]
    parts = [HashTree(first, end) for first, end in pairwise(cuts)]
    for part in parts:
        part.change_all((segment, 1) for segment in range(part.first, part.end))
    assert sum(part.allocated_bytes for part in parts) == 8 * SEGMENT_COUNT


@settings(max_examples=share(40), deadline=None, derandomize=True)
@given(changes, st.integers(0, SEGMENT_COUNT - 1), st.integers(1, SEGMENT_COUNT))
def test_a_tree_of_a_range_is_that_part_of_the_whole(found: list[tuple[int, int]], first: int, end: int) -> None:
    """For any range, aligned to branches or not, its branches, leaves, file and merge equal those of a whole tree with
    changes only there; changes by page equal changes one by one."""
    first, end = min(first, end - 1), max(first + 1, end)
    within = sorted(c for c in found if first <= c[0] < end)
    whole, part, paged = tree_of(within), HashTree(first, end), HashTree(first, end)
    part.change_all(within)
    paged.change_sorted(np.array([c[0] for c in within], np.int64), np.array([c[1] for c in within], np.uint64))
    assert not part.differing_leaves(paged)
    assert (part.branch_hashes() == whole.branch_hashes()).all()
    for branch in {segment >> LEAF_BITS for segment, _ in found} | {first >> LEAF_BITS, (end - 1) >> LEAF_BITS}:
        assert (part.leaves(branch) == whole.leaves(branch)).all()
    assert part.dump() == whole.dump()
    assert not HashTree.load(whole.dump(), first, end).differing_leaves(part)
    merged = HashTree()
    merged.merge(part)
    assert not merged.differing_leaves(whole)
    outside = [c for c in found if not first <= c[0] < end and c[1]]
    for one in outside:
        with pytest.raises(CodecError, match="has others"):
            HashTree.load(tree_of([one]).dump(), first, end)
        with pytest.raises((AssertionError, IndexError)):
            part.change(*one)

"""A tictac tree: two levels of hashes over the segments of a key space, combined by XOR.

The leaf of a segment is the XOR of the contributions of its keys (`repl.model.entry.leaf`); a branch's hash is the XOR
of its 1,024 leaves. So a change is one XOR, in any order, and the trees of disjoint parts of a key space XOR to the
tree of the whole. A full tree has 2^20 segments; smaller trees, of 2^12 or more, are folded from it and have the same
branch hashes. Pure. Rules: docs/protocol.md I-TREE, R-TREE. Source: Riak's `leveled_tictac`.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from isthmus.repl.model.errors import CodecError
from isthmus.repl.model.keys import SEGMENT_BITS, SEGMENT_COUNT

BRANCH_BITS: Final = 10
BRANCH_COUNT: Final = 1 << BRANCH_BITS
"""Branches of every tree, whatever its size: a key's branch is the top 10 bits of its hash."""

LEAF_BITS: Final = SEGMENT_BITS - BRANCH_BITS
LEAF_COUNT: Final = 1 << LEAF_BITS
"""Leaves of a branch of a full tree."""

SIZE_BITS_MIN: Final = 12
"""The smallest tree compared has 2^12 segments, 4 leaves a branch: enough to locate some thousand differing keys."""

Hashes = NDArray[np.uint64]
"""64-bit hashes, little-endian on the wire."""

WIRE: Final = np.dtype("<u8")


class LeafForm(NamedTuple):
    """How a tree's 2^20 leaves lie in memory: bytes of a leaf (4 or 8), and bits of a segment within its branch."""

    leaf_bytes: int
    leaf_bits: int

    @property
    def branch_count(self) -> int:
        """Branches of the tree."""
        return SEGMENT_COUNT >> self.leaf_bits

    @property
    def page_leaves(self) -> int:
        """Leaves of a page of memory; the kernel allocates the page at the first write to it."""
        return mmap.PAGESIZE // self.leaf_bytes


class HashTree:
    """The leaves of the segments [first, end) of 2^20, 8 bytes each, in lazily allocated pages: all partitions of a
    bucket type together take 8 MiB at most. Not thread-safe."""

    __slots__ = ("_hashes", "_leaves", "end", "first")

    form: ClassVar[LeafForm] = LeafForm(8, LEAF_BITS)

    def __init__(self, first: int = 0, end: int = SEGMENT_COUNT) -> None:
        assert 0 <= first < end <= SEGMENT_COUNT
        self.first = first
        self.end = end
        size = self.form.leaf_bytes
        memory = mmap.mmap(-1, size * (end - first), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would take 2 MB for one change
        self._leaves = memoryview(memory).cast("Q" if size == 8 else "I")
        self._hashes: Hashes = np.frombuffer(memory, dtype=f"u{size}")

    def change(self, segment: int, delta: int) -> None:
        """XOR `delta` into the leaf of `segment` (of 2^20)."""
        self.change_all(((segment, delta),))

    def change_all(self, changes: Iterable[tuple[int, ...]]) -> None:
        """`change` for each (segment, delta, ...)."""
        leaves, first = self._leaves, self.first
        for change in changes:
            segment = change[0]
            assert segment >= first
            leaves[segment - first] ^= change[1]

    def change_sorted(self, segments: NDArray[np.int64], deltas: Hashes) -> None:
        """`change` for each segment and its delta; segments are in ascending order (asserted)."""
        if not len(segments):
            return
        steps = np.diff(segments)
        assert segments[0] >= self.first
        assert segments[-1] < self.end
        assert not (steps < 0).any()
        starts = np.concatenate(([0], np.flatnonzero(steps) + 1))
        self._hashes[segments[starts] - self.first] ^= np.bitwise_xor.reduceat(deltas, starts)

    def merge(self, other: HashTree) -> None:
        """XOR `other`, whose range lies within this one's, into this one."""
        assert self.first <= other.first
        assert other.end <= self.end
        shift, count = other.first - self.first, self.form.page_leaves
        for page in np.flatnonzero(other._block_or(count)).tolist():
            theirs = other._hashes[page * count : (page + 1) * count]
            at = shift + page * count
            self._hashes[at : at + len(theirs)] ^= theirs

    def _block_or(self, count: int) -> Hashes:
        """The OR of each run of `count` leaves; 0 where all of them are 0."""
        found: Hashes = np.bitwise_or.reduceat(self._hashes, np.arange(0, len(self._hashes), count))
        return found

    def branch_hashes(self) -> Hashes:
        """The hashes of all branches; 0 for empty ones."""
        bits = self.form.leaf_bits
        first, last = self.first >> bits, (self.end - 1) >> bits
        starts = (np.arange(first, last + 1) << bits) - self.first
        starts[0] = 0
        hashes: Hashes = np.zeros(self.form.branch_count, dtype=np.uint64)
        hashes[first : last + 1] = np.bitwise_xor.reduceat(self._hashes, starts)
        return hashes

    def leaves(self, branch: int, size_bits: int = SEGMENT_BITS) -> Hashes:
        """The leaves of a branch in the tree of 2^size_bits segments, in segment order; 0 outside the range."""
        assert SIZE_BITS_MIN <= size_bits <= SEGMENT_BITS
        bits = self.form.leaf_bits
        count = 1 << bits
        start = branch << bits
        low, high = max(start, self.first), min(start + count, self.end)
        if high - low == count:
            whole = self._hashes[low - self.first : high - self.first]
        else:
            whole = np.zeros(count, dtype=np.uint64)
            if low < high:
                whole[low - start : high - start] = self._hashes[low - self.first : high - self.first]
        folded = np.bitwise_xor.reduce(whole.reshape(1 << (bits + size_bits - SEGMENT_BITS), -1), axis=1)
        found: Hashes = folded.astype(np.uint64, copy=False)
        return found

    @property
    def allocated_bytes(self) -> int:
        """Bytes of all pages with a leaf that is not 0."""
        count = self.form.page_leaves
        pages = np.flatnonzero(self._block_or(count))
        if not len(pages):
            return 0
        beyond = (int(pages[-1]) + 1) * count - len(self._hashes)
        return self.form.leaf_bytes * (len(pages) * count - max(0, beyond))

    def dump(self) -> dict[int, bytes]:
        """The leaves, little-endian, of every branch that is not empty."""
        found = {}
        for branch in range(self.first >> LEAF_BITS, ((self.end - 1) >> LEAF_BITS) + 1):
            leaves = self.leaves(branch)
            if leaves.any():
                found[branch] = hashes_to_wire(leaves)
        return found

    @staticmethod
    def load(branches: Mapping[int, bytes], first: int = 0, end: int = SEGMENT_COUNT) -> HashTree:
        """The tree of [first, end) from the output of `dump`. Raises CodecError."""
        tree = HashTree(first, end)
        for branch, data in branches.items():
            known = type(branch) is int and 0 <= branch < BRANCH_COUNT
            if not known or type(data) is not bytes or len(data) != 8 * LEAF_COUNT:
                raise CodecError(f"not a tree: {branch!r:.40} is not a branch with {LEAF_COUNT} hashes of 8 bytes")
            leaves = hashes_from_wire(data, LEAF_COUNT)
            start = branch << LEAF_BITS
            low, high = max(start, first), max(start, first, min(start + LEAF_COUNT, end))
            if leaves[: low - start].any() or leaves[high - start :].any():
                raise CodecError(f"not a tree of segments {first} to {end - 1}: branch {branch} has others")
            tree._hashes[low - first : high - first] = leaves[low - start : high - start]
        return tree

    def differing_leaves(self, other: HashTree) -> list[tuple[int, int, int]]:
        """(segment, leaf here, leaf in `other`) of every segment that differs, ascending; both have the same range."""
        assert (self.first, self.end) == (other.first, other.end)
        places = differing(self._hashes, other._hashes)
        return [(self.first + at, self._leaves[at], other._leaves[at]) for at in places]


def hashes_to_wire(hashes: Hashes) -> bytes:
    """8 bytes per hash, little-endian."""
    return hashes.astype(WIRE, copy=False).tobytes()


def hashes_from_wire(data: bytes, count: int) -> Hashes:
    """Decode `count` hashes. Raises CodecError for another number."""
    if len(data) != 8 * count:
        raise CodecError(f"{len(data)} bytes of tree hashes where {count} of 8 bytes are due")
    return np.frombuffer(data, dtype=WIRE).astype(np.uint64, copy=False)


def differing(mine: Hashes, theirs: Hashes) -> Sequence[int]:
    """The indexes at which two arrays of hashes differ, ascending."""
    assert len(mine) == len(theirs)
    places: list[int] = np.flatnonzero(mine != theirs).tolist()
    return places

"""A tictac tree: two levels over the segments of a key space, merged and compared by XOR.

A segment's leaf is the XOR of what each of its keys contributes (`repl.model.entry.leaf`), a branch's hash the XOR of
its 1,024 leaves, so a change is one XOR, order does not matter, and the trees of disjoint parts of a key space make
up the tree of the whole, whatever the number of parts. A full tree has 2^20 segments; one of 2^12 or more
is folded from it and has the same branch hashes. Pure: what feeds it is `aae.keeping`, what compares it
`aae.exchange`. Rules: docs/protocol.md I-TREE, R-TREE.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from repl.model.errors import CodecError
from repl.model.keys import SEGMENT_BITS

BRANCH_BITS: Final = 10
BRANCH_COUNT: Final = 1 << BRANCH_BITS
"""Branches of every tree, whatever its size: a key's branch is the top 10 bits of its hash."""

LEAF_BITS: Final = SEGMENT_BITS - BRANCH_BITS
LEAF_COUNT: Final = 1 << LEAF_BITS
"""Leaves of a branch of a full tree."""

SIZE_BITS_MIN: Final = 12
"""Smallest tree compared has 2^12 segments, 4 leaves a branch: enough to tell where some thousand keys differ."""

_LEAF_MASK: Final = LEAF_COUNT - 1
_EMPTY_BRANCH: Final = bytes(8 * LEAF_COUNT)

Hashes = NDArray[np.uint64]
"""64-bit hashes, little-endian on the wire."""

WIRE: Final = np.dtype("<u8")


class Tree:
    """The leaves of one part of a key space. A branch takes 8 KB from the first change in it on; all of a key space
    at most 8 MB. Not thread-safe."""

    __slots__ = ("_branches",)

    def __init__(self) -> None:
        self._branches: dict[int, array[int]] = {}

    def change(self, segment: int, delta: int) -> None:
        """XOR `delta` into the leaf of `segment` (of 2^20)."""
        branch = self._branches.get(segment >> LEAF_BITS)
        if branch is None:
            branch = self._branches[segment >> LEAF_BITS] = array("Q", _EMPTY_BRANCH)
        branch[segment & _LEAF_MASK] ^= delta

    def change_all(self, changes: Iterable[tuple[int, int]]) -> None:
        """`change` for each (segment, delta)."""
        branches = self._branches
        for segment, delta in changes:
            branch = branches.get(segment >> LEAF_BITS)
            if branch is None:
                branch = branches[segment >> LEAF_BITS] = array("Q", _EMPTY_BRANCH)
            branch[segment & _LEAF_MASK] ^= delta

    def merge(self, other: Tree) -> None:
        """XOR `other` into this one; of disjoint parts that makes the tree of both."""
        for number, leaves in other._branches.items():
            mine = self._branches.get(number)
            if mine is None:
                self._branches[number] = array("Q", leaves)
            else:
                view = np.frombuffer(mine, dtype=np.uint64)
                np.bitwise_xor(view, np.frombuffer(leaves, dtype=np.uint64), out=view)

    def branch_hashes(self) -> Hashes:
        """The hash of every branch: BRANCH_COUNT of them, 0 where nothing is."""
        hashes: Hashes = np.zeros(BRANCH_COUNT, dtype=np.uint64)
        for number, leaves in self._branches.items():
            hashes[number] = np.bitwise_xor.reduce(np.frombuffer(leaves, dtype=np.uint64))
        return hashes

    def leaves(self, branch: int, size_bits: int = SEGMENT_BITS) -> Hashes:
        """The leaves of a branch in the tree of 2^size_bits segments, in segment order."""
        assert SIZE_BITS_MIN <= size_bits <= SEGMENT_BITS
        found = self._branches.get(branch)
        count = 1 << (size_bits - BRANCH_BITS)
        if found is None:
            return np.zeros(count, dtype=np.uint64)
        whole = np.frombuffer(found, dtype=np.uint64)
        folded: Hashes = np.bitwise_xor.reduce(whole.reshape(count, -1), axis=1)
        return folded

    def clear(self) -> None:
        """Forget everything."""
        self._branches.clear()

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the leaves that are there."""
        return len(self._branches) * 8 * LEAF_COUNT

    def dump(self) -> dict[int, bytes]:
        """The leaves of every branch that is there, little-endian."""
        return {
            number: np.frombuffer(leaves, dtype=np.uint64).astype(WIRE, copy=False).tobytes()
            for number, leaves in sorted(self._branches.items())
        }

    @staticmethod
    def load(branches: Mapping[int, bytes]) -> Tree:
        """The tree of which `dump` made `branches`. Raises CodecError."""
        tree = Tree()
        for number, data in branches.items():
            if type(number) is not int or not 0 <= number < BRANCH_COUNT or len(data) != len(_EMPTY_BRANCH):
                raise CodecError(f"not a tree: branch {number!r} of {len(data)} bytes")
            tree._branches[number] = array("Q", np.frombuffer(data, dtype=WIRE).astype(np.uint64, copy=False).tobytes())
        return tree

    def differing_leaves(self, other: Tree) -> list[tuple[int, int, int]]:
        """(segment, leaf here, leaf there) of every segment that differs, in order."""
        found: list[tuple[int, int, int]] = []
        for number in sorted(self._branches.keys() | other._branches.keys()):
            mine, theirs = self.leaves(number), other.leaves(number)
            first = number << LEAF_BITS
            found.extend((first + at, int(mine[at]), int(theirs[at])) for at in differing(mine, theirs))
        return found


def hashes_to_wire(hashes: Hashes) -> bytes:
    """The hashes as they travel: 8 bytes each, little-endian."""
    return hashes.astype(WIRE, copy=False).tobytes()


def hashes_from_wire(data: bytes, count: int) -> Hashes:
    """`count` hashes that travelled. Raises CodecError when there are not as many."""
    if len(data) != 8 * count:
        raise CodecError(f"{len(data)} bytes of tree hashes where {count} of 8 bytes are due")
    return np.frombuffer(data, dtype=WIRE).astype(np.uint64, copy=False)


def differing(mine: Hashes, theirs: Hashes) -> Sequence[int]:
    """The places at which two rows of hashes differ, in order."""
    assert len(mine) == len(theirs)
    places: list[int] = np.flatnonzero(mine != theirs).tolist()
    return places

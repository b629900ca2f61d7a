"""The contents of Riak's trees: every key of a bucket type, tombstones included, with its clock alone.

A tree has 2^20 leaves of four bytes in 4,096 branches. A key changes the leaf that the MD5 of its names decides, by a
hash of names and clock (`repl.riak.tree_hash`). So, unlike in our own trees, the keys of one partition are spread over
all leaves, a deleted key counts until it is reaped, and equal clocks are equal objects.

An entry says which clock it writes, and not which one it replaces. The leader that made it knows: `ReplacedClocks`.
Clocks are hashed some hundred at a time, which costs a fraction of one by one: changes wait in the tree until enough
have come, or it is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import md5
from types import MappingProxyType
from typing import Final, Protocol

import numpy as np
from msgpack import unpackb

from isthmus.aae.riak_trees.columns import hash_clocks, places_of, split_digests
from isthmus.aae.trees.tree import Hashes, HashTree, LeafForm
from isthmus.aae.trees.tree_builder import Change, TreeContents
from isthmus.repl.model.entry import CHANGES, NO_OFFSET, Entry, EntryKind, decode_key_row
from isthmus.repl.model.errors import CodecError, Corruption
from isthmus.repl.model.keys import DEFAULT_BUCKET_TYPE, SEGMENT_BITS, SEGMENT_COUNT
from isthmus.repl.model.vclock import Clock, decode_clock
from isthmus.repl.store.rows import SEGMENT_BYTES, split_tail

WAITING_MAX: Final = 128
"""Changes that wait in a tree to be hashed together: half a millisecond of the event loop. Twice as many would save a
microsecond each."""

PAGE_ROWS: Final = 500
"""Key rows between two sleeps of a build: some 2 ms of a core, as in builds of our own trees."""

LEAF_MASK: Final = np.uint32(SEGMENT_COUNT - 1)
"""A leaf is the low 20 bits of a segment."""

_REAP: Final = int(EntryKind.REAP)

_LENGTH_AT: Final = 3
"""Place of the clock's length in a key row (`repl.model.entry.encode_key_row`), if it has at most 255 bytes."""
_SHORT_BYTES: Final = 0xC4
"""Byte before it then."""


class ReplacedClocks(Protocol):
    """The clocks of versions that this node's unapplied entries replace, of partitions that it leads."""

    def follow(self, partition: int, *, wanted: bool) -> None:
        """Note them from now on, or no more."""

    def take(self, partition: int, end: int) -> Mapping[int, bytes]:
        """Offset -> encoded clock of those below `end`, which are forgotten. Some may be of entries that were refused;
        then the entry at this offset replaces nothing."""

    def bucket_type(self, partition: int) -> bytes:
        """The bucket type of a partition with a replica here."""


class RiakTree(HashTree):
    """The tree of the keys of one partition; it has all leaves. Not thread-safe."""

    __slots__ = ("_clocks", "_counts", "_digests")

    form = LeafForm(leaf_bytes=4, leaf_bits=8)

    def __init__(self) -> None:
        super().__init__()
        self._digests: list[bytes] = []
        self._counts: list[int] = []
        self._clocks: list[Clock] = []

    def change_keys(self, changes: Sequence[Change]) -> None:
        """Make these changes (`_KeyChange`), once the tree is read, or enough others have come."""
        for digest, clocks, _ in changes:
            self._digests.append(digest)
            self._counts.append(len(clocks))
            self._clocks += clocks
        if len(self._digests) >= WAITING_MAX:
            self._settle()

    def _settle(self) -> None:
        if self._digests:
            counts = np.array(self._counts)
            segments, names = split_digests(self._digests)
            leaves = segments & LEAF_MASK
            # Where one clock replaces another, the part of the names stays.
            np.bitwise_xor.at(self._hashes, leaves, np.where(counts == 1, names, 0))
            np.bitwise_xor.at(self._hashes, np.repeat(leaves, counts), hash_clocks(self._clocks))
            self._digests, self._counts, self._clocks = [], [], []

    def merge(self, other: HashTree) -> None:
        """See HashTree."""
        self._settle()
        if isinstance(other, RiakTree):
            other._settle()
        super().merge(other)

    def branch_hashes(self) -> Hashes:
        """See HashTree; 4,096 of 32 bits."""
        self._settle()
        return super().branch_hashes()

    def leaves(self, branch: int, size_bits: int = SEGMENT_BITS) -> Hashes:
        """See HashTree; 256 of 32 bits."""
        self._settle()
        return super().leaves(branch, size_bits)

    def differing_leaves(self, other: HashTree) -> list[tuple[int, int, int]]:
        """See HashTree."""
        self._settle()
        if isinstance(other, RiakTree):
            other._settle()
        return super().differing_leaves(other)


_KeyChange = tuple[bytes, tuple[Clock, ...], int]
"""What an entry changes: the MD5 of the key's names, the clock that comes and the one that goes (or one of them), and
the entry's offset."""


class RiakContents(TreeContents):
    """See TreeContents."""

    page_rows = PAGE_ROWS
    log_fields = MappingProxyType({"trees_of": "riak"})

    def __init__(self, replaced: ReplacedClocks) -> None:
        self._replaced = replaced

    def tree(self, first: int = 0, end: int = SEGMENT_COUNT) -> HashTree:
        """See TreeContents."""
        assert (first, end) == (0, SEGMENT_COUNT)
        return RiakTree()

    def changes(self, partition: int, entries: Sequence[Entry]) -> Sequence[Change] | None:
        """See TreeContents. None for an entry that another leader made, or this one before it was to note clocks."""
        replaced = self._replaced.take(partition, entries[-1].offset + 1)
        bucket_type = self._replaced.bucket_type(partition)
        head = b"" if bucket_type == DEFAULT_BUCKET_TYPE else bucket_type
        found: list[_KeyChange] = []
        known = True
        for entry in entries:
            if entry.kind in CHANGES:
                clocks: tuple[Clock, ...] = (_clock_of(entry.row),)
                if entry.previous_offset != NO_OFFSET:
                    before = replaced.get(entry.offset)
                    if before is None:
                        known = False
                        continue
                    clocks = (*clocks, _unpack(before))
            elif entry.kind == _REAP and entry.previous_offset != NO_OFFSET:
                if not entry.row:
                    known = False
                    continue
                clocks = (_clock_of(entry.row),)
            else:
                continue
            digest = md5(head + entry.bucket + entry.key, usedforsecurity=False).digest()
            found.append((digest, clocks, entry.offset))
        return found if known else None

    def change(self, tree: HashTree, changes: Sequence[Change]) -> None:
        """See TreeContents."""
        assert isinstance(tree, RiakTree)
        tree.change_keys(changes)

    def add_page(self, tree: HashTree, bucket_type: bytes, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        """See TreeContents."""
        keys = [split_tail(name[SEGMENT_BYTES:]) for name in names]
        clocks = [_clock(*key, row) for key, row in zip(keys, values, strict=True)]
        segments, hashes = places_of(bucket_type, keys)
        leaves = (segments & LEAF_MASK).astype(np.int64)
        order = np.argsort(leaves)
        tree.change_sorted(leaves[order], (hashes ^ hash_clocks(clocks)).astype(np.uint64)[order])


def _unpack(clock: bytes) -> Clock:
    """The clock in bytes that this node has encoded, or checked."""
    found: Clock = unpackb(clock, use_list=False)
    return found


def _clock_of(row: bytes) -> Clock:
    """The clock in a key row that this node has encoded."""
    length = row[_LENGTH_AT]
    short = row[_LENGTH_AT - 1] == _SHORT_BYTES
    return _unpack(row[_LENGTH_AT + 1 : _LENGTH_AT + 1 + length] if short else decode_key_row(row).clock)


def _clock(bucket: bytes, key: bytes, row: bytes) -> Clock:
    try:
        return decode_clock(decode_key_row(row).clock)
    except CodecError as error:
        raise Corruption(f"the key row of {bucket!r}/{key!r} cannot be read: {error}") from error

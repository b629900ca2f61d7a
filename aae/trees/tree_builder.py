"""Build a tree from the key rows of a snapshot while entries are being applied.

Rows of the common shape (`repl.model.entry.encode_key_row`: a short clock, a large hash) are not decoded, because they
contain the hashed bytes as they are. numpy processes a page as columns of bytes: 0.3 us per row, against 2 us for
decoding and hashing. Every type byte and the row's length are checked; any other row is decoded, or raises Corruption:
a damaged row never becomes a leaf.

A build reads one snapshot in a thread and sleeps after every slice, longer on a busy node. The event loop collects the
leaf changes of entries applied since the build began: as a list until the snapshot's offset is known, then as a tree.
XOR is commutative, so merging both gives the current tree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh64_digest

from isthmus.aae.trees.throttle import TreeThrottle
from isthmus.aae.trees.tree import Hashes, HashTree
from isthmus.repl.machine import machine
from isthmus.repl.model.entry import KEY_ROW_VERSION, Entry, decode_key_row, leaf
from isthmus.repl.model.errors import Corruption, IsthmusError
from isthmus.repl.model.keys import SEGMENT_COUNT, hashed_bytes
from isthmus.repl.store import rows
from isthmus.repl.store.port import Store

Places = NDArray[np.int64]
"""For each row an index into the joined bytes of a page, or a length."""

_HEAD: Final = bytes((0x98, KEY_ROW_VERSION, 0xC4))
"""A msgpack list of eight, the version, and bytes of at most 255: the clock, whose length is the next byte."""

_CLOCK_AT: Final = len(_HEAD) + 1
_HASH_BYTES: Final = 8
_UINT64: Final = 0xCF
_FALSE: Final = 0xC2
_TRUE: Final = 0xC3

_WIDTH_MAX: Final = 9
_WIDTHS: Final = np.array(
    [1 if byte < 0x80 else {0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: _WIDTH_MAX}.get(byte, 0) for byte in range(256)], np.int64
)
"""Length of a msgpack unsigned integer by its first byte; 0: not an integer."""

_PART_MAX: Final = 255
"""Longest bucket, key or clock of a common row: the longest one of a page sets the width of all its rows."""

_TAIL_AT: Final = rows.SEGMENT_BYTES
_BUCKET_END, _SEPARATOR = rows.BUCKET_END
_LENGTH_BYTES: Final = len(hashed_bytes(b"", b"")) // 2
"""Length prefix, big-endian, of the bucket and of the key in the hashed bytes."""

_BEYOND: Final = bytes(_CLOCK_AT + _PART_MAX + 1 + _HASH_BYTES + 4 * _WIDTH_MAX + 2)
"""Zeros behind the last row of a page: parsing a damaged row ends within them."""


def page_leaves(
    names: Sequence[bytes], values: Sequence[bytes], first: int = 0, end: int = SEGMENT_COUNT
) -> tuple[Places, Hashes]:
    """(segment, leaf contribution) of each row, as two arrays in the page's order; `names` and `values` as in
    `key_pages`, at least one. Raises Corruption, also for a row of a segment outside [first, end)."""
    page = _Page(names, values)
    leaves: Hashes = np.zeros(len(names), np.uint64)
    for at in np.flatnonzero(~page.usual).tolist():
        leaves[at] = row_leaf(*rows.split_tail(names[at][_TAIL_AT:]), values[at])
    hashed = np.flatnonzero(page.usual & (page.flags == _FALSE))  # a tombstone contributes 0
    if len(hashed):
        leaves[hashed] = page.hashes(hashed)
    for segment in (int(page.segments.min()), int(page.segments.max())):
        if not first <= segment < end:
            raise Corruption(f"a key row is of segment {segment}, not of {first} to {end - 1}")
    return page.segments, leaves


def row_leaf(bucket: bytes, key: bytes, row: bytes) -> int:
    """A key's contribution to its leaf, from an encoded key row of any shape. Raises Corruption."""
    try:
        found = decode_key_row(row)
    except IsthmusError as error:
        raise Corruption(f"the key row of {bucket!r}/{key!r} cannot be read: {error}") from error
    return leaf(bucket, key, found.clock, found.hash64, tombstone=found.tombstone)


class _Page:
    """Indexes of the parts of each row. For rows that are not `usual` only the segment is valid."""

    def __init__(self, names: Sequence[bytes], values: Sequence[bytes]) -> None:
        self._names, self._values = b"".join(names) + _BEYOND, b"".join(values) + _BEYOND
        named, valued = np.frombuffer(self._names, np.uint8), np.frombuffer(self._values, np.uint8)
        starts, self._key_ends = _cut(names)
        self.segments: Places = named[starts].astype(np.int64)
        for at in range(1, _TAIL_AT):
            self.segments = self.segments << 8 | named[starts + at]

        # The first zero of a tail ends the bucket, or is an escaped zero within the bucket.
        self._buckets = starts + _TAIL_AT
        zeros = np.flatnonzero(named == _BUCKET_END)
        self._bucket_ends: Places = zeros[np.searchsorted(zeros, self._buckets)]
        self._keys = self._bucket_ends + len(rows.BUCKET_END)
        usual = (self._keys <= self._key_ends) & (named[self._keys - 1] == _SEPARATOR)
        usual &= self._bucket_ends - self._buckets <= _PART_MAX
        usual &= self._key_ends - self._keys <= _PART_MAX

        starts, ends = _cut(values)
        for at, byte in enumerate(_HEAD):
            usual &= valued[starts + at] == byte
        self._clocks = starts + _CLOCK_AT
        self._clock_ends: Places = self._clocks + valued[self._clocks - 1]
        usual &= valued[self._clock_ends] == _UINT64
        number = self._clock_ends + 1 + _HASH_BYTES
        for _ in range(3):  # last modified, size, siblings
            widths = _WIDTHS[valued[number]]
            usual &= widths > 0
            number += widths
        self.flags = valued[number]
        usual &= (self.flags == _FALSE) | (self.flags == _TRUE)
        widths = _WIDTHS[valued[number + 1]]
        self.usual: NDArray[np.bool_] = usual & (widths > 0) & (number + 1 + widths == ends)

    def hashes(self, which: Places) -> Hashes:
        """Leaf contributions of these rows, all usual."""
        buckets, keys, clocks = self._buckets[which], self._keys[which], self._clocks[which]
        clock_ends = self._clock_ends[which]
        bucket_lengths, key_lengths = self._bucket_ends[which] - buckets, self._key_ends[which] - keys
        lengths = np.stack((bucket_lengths, key_lengths)).astype(">u4")
        names, values = self._names, self._values
        parts = (
            (lengths[0].tobytes(), _multiples(len(which), _LENGTH_BYTES), _LENGTH_BYTES),
            (names, buckets, bucket_lengths),
            (lengths[1].tobytes(), _multiples(len(which), _LENGTH_BYTES), _LENGTH_BYTES),
            (names, keys, key_lengths),
            (values, clocks, clock_ends - clocks),
            (values, clock_ends + 1, _HASH_BYTES),
        )
        width = sum(int(np.max(length)) for _, _, length in parts)
        table = bytearray(width * len(which))
        starts = _multiples(len(which), width)
        places = starts
        for data, at, length in parts:
            # Copies the length of the longest for every row; the next part overwrites the excess.
            longest = int(np.max(length))
            if longest:
                _strings(table, longest)[places] = _strings(data, longest)[at]
            places = places + length
        if (places - starts == width).all():
            messages = np.ndarray(len(which), f"V{width}", table).tolist()
        else:
            whole = bytes(table)
            messages = [whole[start:end] for start, end in zip(starts.tolist(), places.tolist(), strict=True)]
        hashes: Hashes = np.frombuffer(b"".join(map(xxh64_digest, messages)), ">u8").astype(np.uint64)
        return hashes


def _cut(parts: Sequence[bytes]) -> tuple[Places, Places]:
    """(starts, ends) of the parts within their joined bytes."""
    lengths = np.fromiter(map(len, parts), np.int64, len(parts))
    ends = np.cumsum(lengths)
    return ends - lengths, ends


def _multiples(count: int, of: int) -> Places:
    return np.arange(0, count * of, of)


def _strings(data: bytes | bytearray, length: int) -> NDArray[np.void]:
    """View of the overlapping substrings of `length` bytes, one per index of `data`."""
    return np.ndarray((len(data) - length + 1,), f"V{length}", data, strides=(1,))


SLICE_ROWS: Final = 2_000
"""Key rows between two sleeps of a build: some 2 ms of a core."""

SLICE_BYTES: Final = 1024 * 1024
"""Bytes between two sleeps, the limit where names and clocks are long."""


Change = tuple[Any, ...]
"""What an entry changes in a tree, as its contents have it; the last item is the entry's offset."""


class TreeContents:
    """What is hashed into trees: what an applied entry changes, and what key rows contribute. Trees of other contents
    (`aae.riak_trees.contents`) are kept by the same cache."""

    page_rows = SLICE_ROWS
    """Key rows of a slice of a build."""

    log_fields: Mapping[str, str] = MappingProxyType({})
    """What events about these trees have beside the partition."""

    def tree(self, first: int = 0, end: int = SEGMENT_COUNT) -> HashTree:
        """An empty tree of the segments [first, end)."""
        return HashTree(first, end)

    def changes(self, partition: int, entries: Sequence[Entry]) -> Sequence[Change] | None:  # noqa: ARG002
        """What the entries change in the partition's tree, for `change`; None: that is not known, and the tree must be
        built again. Each applied entry of a partition with a tree is passed once, in the order of offsets."""
        return [(e.key_hash >> 44, e.leaf_change, e.offset) for e in entries if e.leaf_change]

    def change(self, tree: HashTree, changes: Sequence[Change]) -> None:
        """Make such changes."""
        tree.change_all(changes)

    def add_page(self, tree: HashTree, bucket_type: bytes, names: Sequence[bytes], values: Sequence[bytes]) -> None:  # noqa: ARG002
        """Add a page of key rows, as `page_leaves` takes them, to a tree that lacks them. Raises Corruption."""
        tree.change_sorted(*page_leaves(names, values, tree.first, tree.end))


OWN_CONTENTS: Final = TreeContents()
"""Those of the trees by which clusters of Isthmus compare."""


class TreeBuild:
    """A tree under construction. `fold` runs in a thread, all other methods on the event loop."""

    def __init__(
        self, first: int = 0, end: int = SEGMENT_COUNT, contents: TreeContents = OWN_CONTENTS, bucket_type: bytes = b""
    ) -> None:
        """A builder for the segments [first, end) of a bucket type."""
        self._contents = contents
        self._bucket_type = bucket_type
        self._changes: list[Change] = []
        self._since: int | None = None
        self._range = first, end
        self._delta: HashTree | None = None
        """The changes above the snapshot, once there are any."""
        self.keys = 0
        """Key rows read so far."""
        self.progressed = asyncio.Event()
        """Set when entries were applied."""
        self.valid = True
        """False after a gap: the collected changes are incomplete."""

    def add(self, changes: Sequence[Change]) -> None:
        """Collect the changes of applied entries (`TreeContents.changes`)."""
        self.progressed.set()
        since = self._since
        if since is None:
            self._changes += changes
        else:
            self._change([each for each in changes if each[-1] >= since])

    def set_snapshot_offset(self, offset: int) -> None:
        """Set the snapshot's offset; changes below it are part of the snapshot and are dropped."""
        self._since = offset
        self._change([each for each in self._changes if each[-1] >= offset])
        self._changes.clear()

    def _change(self, changes: Sequence[Change]) -> None:
        if not changes:
            return
        if self._delta is None:
            self._delta = self._contents.tree(*self._range)
        self._contents.change(self._delta, changes)

    def complete(self, tree: HashTree) -> HashTree:
        """Merge the collected changes into `tree`, the result of `fold`."""
        if self._delta is not None:
            tree.merge(self._delta)
        return tree

    def fold(
        self,
        store: Store,
        partition: int,
        throttle: TreeThrottle,
        loop: asyncio.AbstractEventLoop,
        stopping: Callable[[], bool],
    ) -> tuple[HashTree, int]:
        """(tree of a new snapshot, the snapshot's offset); incomplete once `stopping` or invalid. Raises Corruption,
        LocalFault."""
        with closing(store.transfers.snapshot(partition)) as snapshot:
            offset = snapshot.end.offset
            loop.call_soon_threadsafe(self.set_snapshot_offset, offset)
            tree, size = self._contents.tree(*self._range), self._contents.page_rows
            with closing(snapshot.key_pages(rows.segment_name(0), SEGMENT_COUNT, size, SLICE_BYTES)) as pages:
                while self.valid and not stopping():
                    began_s = machine().monotonic_s()
                    page = next(pages, None)
                    if page is None:
                        break
                    self._contents.add_page(tree, self._bucket_type, *page)
                    self.keys += len(page[0])
                    now_s, others_s = machine().monotonic_s(), machine().process_cpu_s() - machine().cpu_s()
                    machine().sleep(throttle.rest_s(now_s - began_s, now_s, others_s))
        return tree, offset


def first_rebuild_ms(partition: int, interval_ms: int) -> int:
    """Delay of the first periodic rebuild after the node's start, or after a replica was opened. Multiples of the
    golden ratio, modulo 1, spread the partitions evenly over the interval."""
    return int(interval_ms * (partition * GOLDEN_RATIO % 1.0))


GOLDEN_RATIO: Final = 0.6180339887498949

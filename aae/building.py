"""Building a tree from the key store, beside the changes that go on meanwhile.

A build reads one snapshot, in a thread, and rests after every slice. What is applied since it began is gathered on the
event loop: one by one until the snapshot's offset is known, as a tree afterwards. Both merged are the tree of now,
since XOR asks for no order. When one is built, and what it replaces, `aae.keeping` decides.
"""

from __future__ import annotations

import asyncio
import time as clock
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Final

from xxhash import xxh64_intdigest

from aae.tree import Tree
from repl.model.entry import KEY_ROW_VERSION, Entry, decode_key_row, leaf
from repl.model.errors import Corruption, IsthmusError
from repl.model.keys import SEGMENT_COUNT, hashed_bytes
from repl.store import rows
from repl.store.port import Store

SLICE_ROWS: Final = 2_000
"""Key rows between two rests of a build: about 4 ms of a core."""

SLICE_BYTES: Final = 1024 * 1024
"""Or fewer, when names and clocks are long."""

REST_SHARE: Final = 0.25
"""What a build rests after each slice, as a share of what the slice took, so that the loop gets its turn."""


class Build:
    """A tree being built. `gather` and `begins_at` belong to the event loop, `fold` to the thread."""

    def __init__(self) -> None:
        self._changes: list[tuple[int, int, int]] = []
        self._since: int | None = None
        self._delta = Tree()
        self.keys = 0
        """Key rows read so far."""
        self.heard = asyncio.Event()
        """Set when more is applied."""
        self.valid = True
        """False once a gap was seen: what is gathered is not all."""

    def gather(self, entries: Sequence[Entry]) -> None:
        """More is applied."""
        self.heard.set()
        since = self._since
        if since is None:
            self._changes += [(e.offset, e.key_hash >> 44, e.leaf_change) for e in entries if e.leaf_change]
        else:
            self._delta.change_all((e.key_hash >> 44, e.leaf_change) for e in entries if e.offset >= since)

    def begins_at(self, offset: int) -> None:
        """The snapshot is of `offset`: of what was gathered, only what came at or above it is not in it."""
        self._since = offset
        self._delta.change_all((segment, delta) for at, segment, delta in self._changes if at >= offset)
        self._changes.clear()

    def finished(self, tree: Tree) -> Tree:
        """`tree`, as `fold` made it, with all that was applied since."""
        tree.merge(self._delta)
        return tree

    def fold(
        self, store: Store, partition: int, loop: asyncio.AbstractEventLoop, stopping: Callable[[], bool]
    ) -> tuple[Tree, int]:
        """The tree of a snapshot, and the offset that this is of; cut short once `stopping` or not valid. Raises
        Corruption, LocalFault."""
        with closing(store.far.snapshot(partition)) as snapshot:
            offset = snapshot.end.offset
            loop.call_soon_threadsafe(self.begins_at, offset)
            tree = Tree()
            with closing(snapshot.key_pages(rows.segment_name(0), SEGMENT_COUNT, SLICE_ROWS, SLICE_BYTES)) as pages:
                self._add(tree, pages, stopping)
        return tree, offset

    def _add(self, tree: Tree, pages: Iterator[tuple[list[bytes], list[bytes]]], stopping: Callable[[], bool]) -> None:
        while self.valid and not stopping():
            began = clock.monotonic()
            page = next(pages, None)
            if page is None:
                break
            names, values = page
            tree.change_all(map(change_of_row, names, values))
            self.keys += len(names)
            clock.sleep((clock.monotonic() - began) * REST_SHARE)


def first_rebuild_ms(partition: int, interval_ms: int) -> int:
    """How long after a node's start, or after it got a copy, the copy's tree is built anew for the first time: anywhere
    within the interval, far from that of the next partition."""
    return int(interval_ms * (partition * GOLDEN % 1.0))


GOLDEN: Final = 0.6180339887498949
"""Multiples of it, without their whole part, lie as far from each other as numbers can."""


def change_of_row(name: bytes, row: bytes) -> tuple[int, int]:
    """(segment, change of its leaf) of a key row and its name (see `key_pages`). Raises Corruption."""
    bucket, key = rows.split_tail(name[rows.SEGMENT_BYTES :])
    return int.from_bytes(name[: rows.SEGMENT_BYTES], "big"), leaf_of_row(bucket, key, row)


def leaf_of_row(bucket: bytes, key: bytes, row: bytes) -> int:
    """What a key contributes to its leaf, from its encoded key row. Raises Corruption.

    A build does this for every key there is, so a row of the usual shape (`repl.model.entry.encode_key_row`: a short
    clock, a large hash, no tombstone) is not decoded: what is hashed stands in it as it is."""
    try:
        end = _CLOCK_AT + row[_CLOCK_AT - 1]
        at = end + 9
        at += _WIDTHS[row[at]]  # last modified
        at += _WIDTHS[row[at]]  # size
        at += _WIDTHS[row[at]]  # siblings
        if row.startswith(_HEAD) and row[end] == _UINT64 and row[at] == _FALSE:
            return xxh64_intdigest(b"".join((hashed_bytes(bucket, key), row[_CLOCK_AT:end], row[end + 1 : end + 9])))
    except IndexError:
        pass  # another shape, or none
    try:
        found = decode_key_row(row)
    except IsthmusError as error:
        raise Corruption(f"the key row of {bucket!r}/{key!r} cannot be read: {error}") from error
    return leaf(bucket, key, found.clock, found.hash64, tombstone=found.tombstone)


_HEAD: Final = bytes((0x98, KEY_ROW_VERSION, 0xC4))
"""A msgpack list of eight, the version, and bytes of at most 255: the clock, whose length is the next byte."""

_CLOCK_AT: Final = len(_HEAD) + 1
_UINT64: Final = 0xCF
_FALSE: Final = 0xC2

_WIDTHS: Final = bytes({0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9}.get(byte, 1) for byte in range(256))
"""Bytes of a whole number in msgpack, by its first one; of anything else 1, which ends at no false."""

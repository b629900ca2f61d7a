"""Building a tree from the key store, beside the changes that go on meanwhile.

A build reads one snapshot, in a thread, and rests after every slice. What is applied since it began is gathered on the
event loop: one by one until the snapshot's offset is known, as a tree afterwards. Both merged are the tree of now,
since XOR asks for no order. When one is built, and what it replaces, `aae.keeping` decides.
"""

from __future__ import annotations

import asyncio
import time as clock
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import islice
from typing import Final

from aae.tree import Tree
from repl.model.entry import Entry, decode_key_row, leaf
from repl.model.errors import Corruption, IsthmusError
from repl.model.keys import SEGMENT_COUNT
from repl.store.port import Store

SLICE_ROWS: Final = 2_000
"""Key rows between two rests of a build: about 4 ms of a core."""

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
            rows = snapshot.key_rows(0, SEGMENT_COUNT)
            while self.valid and not stopping():
                began = clock.monotonic()
                part = list(islice(rows, SLICE_ROWS))
                if not part:
                    break
                tree.change_all((segment, leaf_of_row(bucket, key, row)) for segment, bucket, key, row in part)
                self.keys += len(part)
                clock.sleep((clock.monotonic() - began) * REST_SHARE)
        return tree, offset


def leaf_of_row(bucket: bytes, key: bytes, row: bytes) -> int:
    """What a key contributes to its leaf, from its encoded key row. Raises Corruption."""
    try:
        found = decode_key_row(row)
    except IsthmusError as error:
        raise Corruption(f"the key row of {bucket!r}/{key!r} cannot be read: {error}") from error
    return leaf(bucket, key, found.clock, found.hash64, tombstone=found.tombstone)

"""Building a tree from the key store, beside the changes that go on meanwhile.

A build reads one snapshot, in a thread, and rests after every slice, the longer the more the node has to do. What is
applied since it began is gathered on the event loop: one by one until the snapshot's offset is known, as a tree
afterwards. Both merged are the tree of now, since XOR asks for no order. What a row contributes `aae.row_leaves`
tells; when a tree is built, and what it replaces, `aae.keeping` decides.
"""

from __future__ import annotations

import asyncio
import time as clock
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from aae.pace import Pace
from aae.row_leaves import changes_of_page
from aae.tree import Tree
from repl.model.entry import Entry
from repl.model.keys import SEGMENT_COUNT
from repl.store import rows
from repl.store.port import Store

SLICE_ROWS: Final = 2_000
"""Key rows between two rests of a build: some 2 ms of a core."""

SLICE_BYTES: Final = 1024 * 1024
"""Or fewer, when names and clocks are long."""


class Build:
    """A tree being built. `gather` and `begins_at` belong to the event loop, `fold` to the thread."""

    def __init__(self, first: int = 0, end: int = SEGMENT_COUNT) -> None:
        """Of the segments [first, end)."""
        self._changes: list[tuple[int, int, int]] = []
        self._since: int | None = None
        self._delta = Tree(first, end)
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
            changed = (e for e in entries if e.leaf_change and e.offset >= since)  # a barrier is in no segment
            self._delta.change_all((e.key_hash >> 44, e.leaf_change) for e in changed)

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
        self, store: Store, partition: int, pace: Pace, loop: asyncio.AbstractEventLoop, stopping: Callable[[], bool]
    ) -> tuple[Tree, int]:
        """The tree of a snapshot, and the offset that this is of; cut short once `stopping` or not valid. Raises
        Corruption, LocalFault."""
        with closing(store.far.snapshot(partition)) as snapshot:
            offset = snapshot.end.offset
            loop.call_soon_threadsafe(self.begins_at, offset)
            tree = Tree(self._delta.first, self._delta.end)
            with closing(snapshot.key_pages(rows.segment_name(0), SEGMENT_COUNT, SLICE_ROWS, SLICE_BYTES)) as pages:
                while self.valid and not stopping():
                    began_s = clock.monotonic()
                    page = next(pages, None)
                    if page is None:
                        break
                    tree.change_sorted(*changes_of_page(*page, tree.first, tree.end))
                    self.keys += len(page[0])
                    now_s, others_s = clock.monotonic(), clock.process_time() - clock.thread_time()
                    clock.sleep(pace.rest_s(now_s - began_s, now_s, others_s))
        return tree, offset


def first_rebuild_ms(partition: int, interval_ms: int) -> int:
    """How long after a node's start, or after it got a copy, the copy's tree is built anew for the first time: anywhere
    within the interval, far from that of the next partition."""
    return int(interval_ms * (partition * GOLDEN % 1.0))


GOLDEN: Final = 0.6180339887498949
"""Multiples of it, without their whole part, lie as far from each other as numbers can."""

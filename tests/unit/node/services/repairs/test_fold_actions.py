"""Actions of folds yield to the event loop, and count every completed key."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from isthmus.node.services.repairs import REAPS_AT_ONCE, FoldActionsImpl
from isthmus.repl.coordinator.tombstone_reaper import Reaped
from isthmus.repl.model.errors import Overloaded
from isthmus.repl.model.keys import Key


class FakeReaper:
    """A reaper on the leader that answers at once. The keys in `full` find no room."""

    def __init__(self, full: Sequence[bytes] = ()) -> None:
        self.full = full
        self.asked = 0

    async def ask(self, key: Key) -> Reaped:
        """See Reaper."""
        self.asked += 1
        if key.key in self.full:
            raise Overloaded("the window is full")
        return Reaped("reaped", "") if key.key != b"7" else Reaped("waits", "queue q: waits")


def fold_actions(reaper: FakeReaper) -> FoldActionsImpl:
    """With nothing but a reaper."""
    unused: Any = None
    return FoldActionsImpl(unused, reaper, unused, unused)  # type: ignore[arg-type]


async def test_others_have_their_turn_while_a_page_of_tombstones_is_reaped() -> None:
    """After every few keys, other tasks of the loop run."""
    reaper = FakeReaper()
    longest = 0

    async def count_longest_turn() -> None:
        nonlocal longest
        while True:
            before = reaper.asked
            await asyncio.sleep(0)
            longest = max(longest, reaper.asked - before)

    waiting = asyncio.ensure_future(count_longest_turn())
    done, refused = await fold_actions(reaper).reap([Key(b"default", b"b", b"%d" % n) for n in range(1_000)])
    assert (done, dict(refused)) == (999, {"queue q: waits": 1})
    waiting.cancel()
    assert 0 < longest <= 2 * REAPS_AT_ONCE


async def test_reaped_keys_are_counted_although_later_ones_are_refused() -> None:
    """A key that is refused for now is reported with its reason, like one that must wait, and the others are reaped; if
    all are refused, the page fails and is requested again."""
    reaper = FakeReaper(full=(b"3", b"5"))
    keys = [Key(b"default", b"b", b"%d" % n) for n in range(7)]
    done, refused = await fold_actions(reaper).reap(keys)
    assert (done, dict(refused)) == (5, {"overloaded: the window is full": 2})
    with pytest.raises(Overloaded):
        await fold_actions(FakeReaper(full=[key.key for key in keys])).reap(keys)

"""Which tombstone a reap removes or writes once more: exactly the one that was judged, once it is applied."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.repl.coordinator.tombstone_reaper import ReapBatch
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import Content
from tests.simulation.mesh.cluster import BUCKET, TYPE, Town
from tests.simulation.mesh.fetcher import settle

K = b"a"
NAME, HASH = Key(TYPE, BUCKET, K), key_hash(BUCKET, K)

ACTS: list[Callable[[ReapBatch, int], bool]] = [
    lambda proposal, offset: proposal.reap(NAME, HASH, offset),
    lambda proposal, offset: proposal.restate(NAME, HASH, offset),
]


def a_town() -> Town:
    """A cluster without queues."""
    town = Town("a", 1, [], lambda *_: None)
    town.start(lambda _: b"")
    return town


def deleted(town: Town) -> int:
    """Write the key and delete it; returns the tombstone's offset, which is not applied."""
    current = town.get(K)
    assert town.put(K, Content(b"v"), () if current is None else current.clock)
    current = town.get(K)
    assert current is not None
    assert town.delete(K, current.clock)
    return town.replica.leo - 1


def proposed(town: Town, act: Callable[[ReapBatch, int], bool], offset: int) -> int:
    """How many entries it makes for the tombstone of that offset; what it answers says the same."""
    reaps = ReapBatch(town.batch())
    assert act(reaps, offset) is bool(reaps.batch.entries)
    return len(reaps.batch.entries)


@pytest.mark.parametrize("act", ACTS)
def test_a_later_tombstone_of_the_key_is_not_taken_for_the_one_that_was_judged(
    act: Callable[[ReapBatch, int], bool],
) -> None:
    """Queues and replicas were asked about the offset of the first one: nobody knows whether the second is settled."""
    town = a_town()
    first = deleted(town)
    settle(town)
    second = deleted(town)
    settle(town)
    assert proposed(town, act, first) == 0
    assert proposed(town, act, second) == 1


@pytest.mark.parametrize("act", ACTS)
def test_a_tombstone_that_is_not_applied_is_left_alone(act: Callable[[ReapBatch, int], bool]) -> None:
    """It may be dropped with the leadership; once it is applied the same is done."""
    town = a_town()
    offset = deleted(town)
    assert proposed(town, act, offset) == 0
    settle(town)
    assert proposed(town, act, offset) == 1

"""A reap removes or rewrites exactly the tombstone that was checked, once it is applied."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from isthmus.repl.coordinator.tombstone_writes import ReapBatch
from isthmus.repl.model.keys import Key, key_hash
from isthmus.repl.model.objects import Content
from tests.simulation.mesh.cluster import BUCKET, TYPE, Cluster
from tests.simulation.mesh.fetcher import settle

K = b"a"
NAME, HASH = Key(TYPE, BUCKET, K), key_hash(BUCKET, K)

ACTS: list[Callable[[ReapBatch, int], bool]] = [
    lambda proposal, offset: proposal.reap(NAME, HASH, offset),
    lambda proposal, offset: proposal.restate(NAME, HASH, offset),
]


def without_queues() -> Cluster:
    """A cluster without queues."""
    cluster = Cluster("a", 1, [], lambda *_: None)
    cluster.start(lambda _: b"")
    return cluster


def deleted(cluster: Cluster) -> int:
    """Write the key and delete it; returns the tombstone's offset, which is not applied."""
    current = cluster.get(K)
    assert cluster.put(K, Content(b"v"), () if current is None else current.clock)
    current = cluster.get(K)
    assert current is not None
    assert cluster.delete(K, current.clock)
    return cluster.replica.leo - 1


def proposed(cluster: Cluster, act: Callable[[ReapBatch, int], bool], offset: int) -> int:
    """The number of entries that `act` makes for the tombstone of that offset; its result must agree."""
    reaps = ReapBatch(cluster.batch())
    assert act(reaps, offset) is bool(reaps.batch.entries)
    return len(reaps.batch.entries)


@pytest.mark.parametrize("act", ACTS)
def test_a_later_tombstone_of_the_key_is_not_taken_for_the_one_that_was_judged(
    act: Callable[[ReapBatch, int], bool],
) -> None:
    """Queues and replicas were checked for the offset of the first one; whether they have passed the second is
    unknown."""
    cluster = without_queues()
    first = deleted(cluster)
    settle(cluster)
    second = deleted(cluster)
    settle(cluster)
    assert proposed(cluster, act, first) == 0
    assert proposed(cluster, act, second) == 1


@pytest.mark.parametrize("act", ACTS)
def test_a_tombstone_that_is_not_applied_is_left_alone(act: Callable[[ReapBatch, int], bool]) -> None:
    """It may be dropped with the leadership; once it is applied it is reaped or rewritten."""
    cluster = without_queues()
    offset = deleted(cluster)
    assert proposed(cluster, act, offset) == 0
    settle(cluster)
    assert proposed(cluster, act, offset) == 1

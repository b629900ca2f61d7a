"""Trees are rebuilt automatically, one after the other, each once in its interval."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.ports import ReplicaSnapshot
from isthmus.aae.trees.throttle import TreeThrottle
from isthmus.aae.trees.tree import HashTree
from isthmus.aae.trees.tree_builder import TreeBuild, first_rebuild_ms
from isthmus.aae.trees.tree_cache import RETRY_MS, TreeCache
from isthmus.repl.store.port import PartitionStep
from tests.support.entry_histories import History
from tests.support.fullsync_fakes import FakeReplicas
from tests.support.memory_store import MemoryStore
from tests.support.waiting import eventually

EVERY_MS = 100_000


class Clock:
    """A clock that the test moves."""

    ms = 1_000

    def now_ms(self) -> int:
        """Now."""
        return self.ms

    def wall_ms(self) -> int:
        """Now."""
        return self.ms


def test_first_moments_are_spread_over_the_interval() -> None:
    """At most a few of a hundred partitions have their first turn within the same tenth of the interval."""
    turns = [first_rebuild_ms(partition, EVERY_MS) for partition in range(100)]
    assert all(0 <= turn < EVERY_MS for turn in turns)
    assert max(sum(turn * 10 // EVERY_MS == tenth for turn in turns) for tenth in range(10)) <= 12


@pytest.mark.parametrize(("busy", "low", "high"), [(0, 0.1, 0.1), (0.3, 3.5, 4.4), (1, 13, 16), (2, 16, 16)])
def test_a_build_pauses_longer_in_a_busier_process(busy: float, low: float, high: float) -> None:
    """While other threads take a share of a core, slices and pauses settle at a steady ratio: at least a tenth of the
    work, and never more than a limit."""
    pace, now_s, others_s = TreeThrottle(), 5.0, 77.0
    for turn in range(200):
        now_s, others_s = now_s + 0.001, others_s + 0.001 * busy
        rest_s = pace.rest_s(0.001, now_s, others_s)
        now_s, others_s = now_s + rest_s, others_s + rest_s * busy
        assert rest_s / 0.001 == pytest.approx(0.1) or turn
        assert 0.1 - 1e-6 <= rest_s / 0.001 <= 16 + 1e-6
    assert low - 1e-6 <= rest_s / 0.001 <= high + 1e-6


async def test_a_tree_is_built_once_an_interval_while_it_serves(tmp_path: Path) -> None:
    """A tree that serves has its turn when its moment comes, and the next one an interval later; not in between."""

    clock, store, history = Clock(), MemoryStore(), History(3)
    entries = [history.put(b"b", b"%d" % n, b"x") for n in range(10)]
    store.write([PartitionStep(3, entries)])
    copy = ReplicaSnapshot(3, b"default", 1, len(entries), True)
    trees = TreeCache(
        store,
        directory=tmp_path,
        replicas=FakeReplicas(lambda: [copy]),
        damaged=DamagedRows(),
        time=clock,
        rebuild_ms=EVERY_MS,
    )
    trees.start()

    async def looked(builds: int) -> None:
        def built() -> bool:
            trees._wake.set()
            return trees.builds_total >= builds

        await eventually(built)
        for _ in range(20):
            trees._wake.set()
            await asyncio.sleep(0.001)
        assert trees.builds_total == builds

    await looked(1)  # no build was due
    clock.ms += EVERY_MS - 1
    await looked(1)
    clock.ms += 1
    await looked(2)
    assert trees.cached[3].tree is not None
    clock.ms += EVERY_MS // 2
    await looked(2)
    clock.ms += EVERY_MS // 2
    await looked(3)
    assert trees.mismatches == []
    await trees.stop(save=False)


async def test_a_fault_of_the_program_in_one_build_holds_up_no_other_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build with an unexpected error counts as failed: it collects no more changes, shows the reason, and pauses,
    while the trees of the next partitions are built."""
    faults = [ValueError("nobody foresaw this")]

    class Faulty(TreeBuild):
        def fold(self, store: Any, partition: int, *others: Any) -> tuple[HashTree, int]:
            if partition == 3 and faults:
                raise faults[0]
            return super().fold(store, partition, *others)

    monkeypatch.setattr("isthmus.aae.trees.tree_cache.TreeBuild", Faulty)

    clock, store = Clock(), MemoryStore()
    copies = []
    for partition in (3, 4):
        history = History(partition)
        entries = [history.put(b"b", b"%d" % n, b"x") for n in range(10)]
        store.write([PartitionStep(partition, entries)])
        copies.append(ReplicaSnapshot(partition, b"default", 1, len(entries), True))
    trees = TreeCache(
        store, directory=tmp_path, replicas=FakeReplicas(lambda: copies), damaged=DamagedRows(), time=clock
    )
    trees.start()

    async def looked(found: Callable[[], bool]) -> None:
        def looks_again() -> bool:
            trees._wake.set()
            return found()

        await eventually(looks_again)

    await looked(lambda: {3, 4} <= trees.cached.keys() and trees.cached[4].tree is not None)
    await looked(lambda: bool(trees.cached[3].reason) and trees.cached[3].build is None)
    faulty, whole = trees.cached[3], trees.cached[4]
    assert whole.tree is not None
    assert (faulty.tree, faulty.build) == (None, None)
    assert faulty.reason == "cannot be built: nobody foresaw this"
    faults.clear()
    clock.ms += RETRY_MS
    await looked(lambda: faulty.tree is not None)
    assert faulty.tree is not None
    await trees.stop(save=False)

"""Trees updated by apply: at every offset they equal the fold of the key store, after any build, save or damage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.ports import ReplicaSnapshot
from isthmus.aae.trees.tree import HashTree
from isthmus.aae.trees.tree_builder import OWN_CONTENTS, TreeBuild, row_leaf
from isthmus.aae.trees.tree_cache import TreeCache, TreeState
from isthmus.aae.trees.tree_files import load_and_remove_tree, save_tree
from isthmus.repl.model.entry import Entry, EntryKind, make_entry
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from tests.support.entry_histories import History, open_store
from tests.support.fullsync_fakes import FakeReplicas
from tests.support.virtual_time import LoopTime
from tests.support.waiting import eventually

pytestmark = pytest.mark.virtual_time

PARTITION = 3


class TreeFixture:
    """A store, a history that is applied to it, and its tree cache."""

    def __init__(self, directory: Path, store: LevelStore) -> None:
        self.directory = directory
        self.store = store
        self.history = History(PARTITION)
        self.applied = 0
        self.whole = True
        self.log_id = 7
        self.damaged = DamagedRows()
        self.trees = self.new_cache()

    def new_cache(self) -> TreeCache:
        """A tree cache as in a new process."""
        return TreeCache(
            self.store,
            directory=self.directory,
            replicas=FakeReplicas(self.snapshots),
            damaged=self.damaged,
            time=LoopTime(),
        )

    def snapshots(self) -> list[ReplicaSnapshot]:
        """The one replica, as the event loop sees it."""
        return [ReplicaSnapshot(PARTITION, b"default", self.log_id, self.applied, self.whole)]

    def write(self, count: int, chance: random.Random) -> list[Entry]:
        """Makes entries and writes them into the store, without reporting them to the tree cache."""
        made = [self.history.put(b"b", b"%d" % chance.randrange(40), b"x") for _ in range(count)]
        self.store.write([PartitionStep(PARTITION, made)])
        return made

    def report_applied(self, entries: list[Entry]) -> None:
        """The report of apply."""
        self.applied = entries[-1].offset + 1
        self.trees.applied([AppliedEntries(PARTITION, entries, True)])

    def fold(self) -> HashTree:
        """The tree that the store is."""
        tree = HashTree()
        for segment, bucket, key, row in self.store.key_rows(PARTITION, 0, 1 << 20):
            tree.change(segment, row_leaf(bucket, key, row))
        return tree

    def matches_store(self) -> bool:
        """True when the kept tree is the fold of the store."""
        cached = self.trees.cached[PARTITION]
        assert cached.tree is not None
        return not cached.tree.differing_leaves(self.fold())


@asynccontextmanager
async def opened(tmp_path: Path) -> AsyncIterator[TreeFixture]:
    """Trees over a new store."""
    store = open_store(tmp_path / "store")
    fixture = TreeFixture(tmp_path / "trees", store)
    try:
        yield fixture
        await fixture.trees.stop(save=False)
    finally:
        store.close()


def ready(fixture: TreeFixture) -> bool:
    """True when the tree answers."""
    cached = fixture.trees.cached.get(PARTITION)
    return cached is not None and cached.state is TreeState.READY


@pytest.mark.virtual_time(False)  # changes come while a thread builds
@pytest.mark.parametrize("seed", range(3))
async def test_a_kept_tree_is_the_fold_of_the_store_at_every_offset(tmp_path: Path, seed: int) -> None:
    """After every applied batch of overwrites and new keys, and beside builds that begin at any time (R-TREE,
    I-TREE)."""
    chance = random.Random(seed)

    async with opened(tmp_path) as fixture:
        fixture.trees.start()
        await eventually(lambda: ready(fixture))
        for turn in range(60):
            entries = fixture.write(chance.randrange(1, 20), chance)
            if chance.random() < 0.3:
                fixture.trees.rebuild()
                for _ in range(chance.randrange(4)):
                    await asyncio.sleep(0)
                if chance.random() < 0.5:
                    await asyncio.sleep(0.005)
            fixture.report_applied(entries)
            assert fixture.matches_store(), turn
            await asyncio.sleep(0)
        builds = fixture.trees.builds_total
        fixture.trees.rebuild()
        await eventually(lambda: fixture.trees.builds_total > builds)
        assert fixture.matches_store()
        assert not fixture.trees.mismatches


async def test_a_build_waits_for_changes_not_yet_reported_to_the_loop(tmp_path: Path) -> None:
    """A tree from a snapshot that is ahead of the reports is not used before these have arrived, and no change counts
    twice (R-TREE)."""

    async with opened(tmp_path) as fixture:
        chance = random.Random(1)
        first, second = fixture.write(30, chance), fixture.write(30, chance)
        fixture.applied = 0
        fixture.trees.start()
        await eventually(lambda: fixture.trees.cached[PARTITION].build is not None)
        fixture.report_applied(first)
        await asyncio.sleep(0.05)
        assert not ready(fixture)
        fixture.report_applied(second)
        await eventually(lambda: ready(fixture))
        assert fixture.matches_store()


async def test_a_gap_throws_the_tree_away_and_another_is_built(tmp_path: Path) -> None:
    """Entries that do not follow the last ones mean that rows arrived by other means; a wrong tree is never served."""

    async with opened(tmp_path) as fixture:
        chance = random.Random(2)
        fixture.trees.start()
        await eventually(lambda: ready(fixture))
        fixture.report_applied(fixture.write(10, chance))
        fixture.write(10, chance)  # never reported, like rows of a state transfer
        fixture.report_applied(fixture.write(10, chance))
        assert not ready(fixture)
        await eventually(lambda: ready(fixture))
        assert fixture.matches_store()
        fixture.whole = False
        fixture.trees.rebuild()
        await eventually(lambda: fixture.trees.cached[PARTITION].state is TreeState.WAITING)
        assert "rows are still to come" in fixture.trees.cached[PARTITION].reason
        fixture.whole = True
        await eventually(lambda: ready(fixture))
        assert fixture.matches_store()


async def test_a_transferred_replica_has_a_tree_before_further_writes(tmp_path: Path) -> None:
    """No entry reports the rows of a state transfer: the tree of a partition without further writes is still built, and
    its build blocks no other one."""

    async with opened(tmp_path) as fixture:
        chance = random.Random(4)
        fixture.whole = False
        fixture.trees.start()
        await eventually(lambda: fixture.trees.cached[PARTITION].reason.startswith("transfer"))
        fixture.applied = fixture.write(30, chance)[-1].offset + 1
        fixture.whole = True
        await eventually(lambda: ready(fixture))
        assert fixture.matches_store()


async def test_a_tree_is_not_served_once_rows_came_from_elsewhere(tmp_path: Path) -> None:
    """If a replica was filled between two looks of the cache, or during a build, the old tree is discarded although no
    entry shows the gap."""

    async with opened(tmp_path) as fixture:
        chance = random.Random(5)
        fixture.trees.start()
        await eventually(lambda: ready(fixture))
        fixture.report_applied(fixture.write(30, chance))
        fixture.applied = fixture.write(30, chance)[-1].offset + 1
        await eventually(lambda: ready(fixture) and fixture.matches_store())
        fixture.trees.rebuild()
        while fixture.trees.cached[PARTITION].build is None:
            await asyncio.sleep(0)
        fixture.applied = fixture.write(30, chance)[-1].offset + 1
        await eventually(lambda: ready(fixture) and fixture.matches_store())
        fixture.report_applied(fixture.write(30, chance))
        assert fixture.matches_store()


async def test_a_tree_that_went_wrong_is_an_alarm_and_is_replaced(tmp_path: Path) -> None:
    """A rebuild that differs from the cached tree reports the segment, and replaces it."""

    async with opened(tmp_path) as fixture:
        fixture.trees.start()
        await eventually(lambda: ready(fixture))
        fixture.report_applied(fixture.write(20, random.Random(3)))
        cached = fixture.trees.cached[PARTITION]
        assert cached.tree is not None
        cached.tree.change(77, 5)
        builds = fixture.trees.builds_total
        assert fixture.trees.rebuild(PARTITION) == [PARTITION]
        await eventually(lambda: fixture.trees.builds_total > builds)
        assert [(m.partition, m.segment, m.against) for m in fixture.trees.mismatches] == [(PARTITION, 77, "key store")]
        assert fixture.matches_store()


async def test_a_clean_stop_saves_and_the_next_start_needs_no_build(tmp_path: Path) -> None:
    """The saved tree is loaded if it is of the same replica and offset, and its file is deleted. Any other is ignored:
    one from before later entries, of another log id, or damaged."""

    async with opened(tmp_path) as fixture:
        chance = random.Random(4)
        fixture.trees.start()
        await eventually(lambda: ready(fixture))
        fixture.report_applied(fixture.write(50, chance))
        await fixture.trees.stop(save=True)
        path = fixture.directory / f"{PARTITION}.tree"
        saved = path.read_bytes()

        fixture.trees = fixture.new_cache()
        fixture.trees.start()
        assert ready(fixture)
        assert fixture.matches_store()
        assert not path.exists()
        fixture.report_applied(fixture.write(5, chance))
        assert fixture.matches_store()
        assert fixture.trees.builds_total == 0
        await fixture.trees.stop(save=False)

        for case in ("stale", "other gen", "flipped", "cut"):
            bad = {
                "stale": saved,
                "other gen": saved,
                "flipped": saved[:100] + bytes([saved[100] ^ 1]) + saved[101:],
                "cut": saved[:-30],
            }[case]
            path.write_bytes(bad)
            fixture.log_id = 8 if case == "other gen" else 7
            fixture.trees = fixture.new_cache()
            fixture.trees.start()
            assert not ready(fixture), case
            await eventually(lambda: ready(fixture))
            assert fixture.matches_store(), case
            assert not path.exists()
            await fixture.trees.stop(save=False)


async def test_a_capture_is_of_its_offset_exactly(tmp_path: Path) -> None:
    """The hashes captured at an offset are those of the store there, also in the middle of a batch; for a past offset,
    or without a tree, the result is unknown."""

    async with opened(tmp_path) as fixture:
        chance = random.Random(5)
        fixture.trees.start()
        await eventually(lambda: ready(fixture))
        fixture.report_applied(fixture.write(10, chance))
        now = fixture.trees.capture(PARTITION, 10)
        middle, end, later = (fixture.trees.capture(PARTITION, offset) for offset in (14, 20, 25))
        first = fixture.write(4, chance)
        expected = fixture.fold().branch_hashes()
        fixture.report_applied(first + fixture.write(6, chance))
        assert (await middle) is not None
        assert ((await middle) == expected).all()
        assert ((await end) == fixture.fold().branch_hashes()).all()
        assert now.done()
        assert fixture.matches_store()
        assert await fixture.trees.capture(PARTITION, 19) is None
        branch = int(expected.nonzero()[0][0])
        leaves = await fixture.trees.capture(PARTITION, 20, branch)
        assert (leaves == fixture.fold().leaves(branch)).all()
        assert not later.done()
        fixture.write(3, chance)  # a gap: the tree is gone before the offset comes
        fixture.report_applied(fixture.write(7, chance))
        assert await later is None


def test_a_tree_file_belongs_to_one_partition_log_id_and_offset(tmp_path: Path) -> None:
    """`load_and_remove_tree` gives back what was saved, once."""
    tree = HashTree()
    tree.change(9, 1 << 63)
    save_tree(tmp_path / "t", 4, 2, 100, tree)
    found = load_and_remove_tree(tmp_path / "t", 4, 2, 100)
    assert found is not None
    assert not found.differing_leaves(tree)
    assert load_and_remove_tree(tmp_path / "t", 4, 2, 100) is None


def test_a_barrier_that_is_applied_while_a_tree_is_built_is_in_no_segment() -> None:
    """A leader's first entry changes no leaf: the build of a tree whose range does not begin at 0 takes it, before the
    snapshot and after."""
    barrier = make_entry(EntryKind.BARRIER, 5, 0, request_id=b"", origin=bytes(16), time_ms=0)
    build = TreeBuild(1000, 2000)
    for at in range(2):
        changes = OWN_CONTENTS.changes(PARTITION, [barrier._replace(offset=at)])
        assert changes is not None
        build.add(changes)
        build.set_snapshot_offset(0)
    assert not build.complete(HashTree(1000, 2000)).differing_leaves(HashTree(1000, 2000))

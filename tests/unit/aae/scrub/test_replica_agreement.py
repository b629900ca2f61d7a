"""Leader and follower compared at one offset: equal trees agree, a differing row is an alarm, and no answer is
neither."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import pytest

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.scrub import replica_agreement, row_repair
from isthmus.aae.scrub.replica_agreement import ReplicaTreeCheck
from isthmus.aae.trees.tree import HashTree
from isthmus.aae.trees.tree_cache import CachedTree, TreeCache
from isthmus.repl.clock import SystemTime
from isthmus.repl.model.entry import Entry
from isthmus.repl.model.errors import CodecError, Corruption, NotReady, OutcomeUnknown
from isthmus.repl.model.ports import AppliedEntries
from isthmus.repl.store.port import PartitionStep
from tests.support.entry_histories import History
from tests.support.fullsync_fakes import FakeReplicas, FakeRpc, lone_repair
from tests.support.memory_store import MemoryStore

PARTITION = 3


class Replica:
    """One replica and its tree."""

    def __init__(self, directory: Path) -> None:
        self.store = MemoryStore()
        self.trees = TreeCache(
            self.store, directory=directory, replicas=FakeReplicas(), damaged=DamagedRows(), time=SystemTime()
        )
        self.trees.cached[PARTITION] = CachedTree(b"default", 1, HashTree(), 0)
        self.pool = ThreadPoolExecutor(1)
        self.mending = lone_repair(self.store, self.pool, FakeRpc(self.looks))
        self.agreement = ReplicaTreeCheck(
            self.trees, self.store, repair=self.mending, replicas=FakeReplicas(), rpc=FakeRpc(self.request)
        )
        self.other: Replica | None = None
        self.looked: list[tuple[str, str]] = []

    async def looks(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """Records that the other replica is asked to check a segment of its own."""
        assert self.other is not None
        self.other.looked.append((node, method))
        return b""

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """To the other one."""
        assert (node, timeout_ms) == ("n2", replica_agreement.TIMEOUT_MS)
        if self.other is None:
            raise NotReady("no connection")
        return await self.other.agreement.request_handlers()[method]("n1", body)

    def apply(self, entries: list[Entry]) -> None:
        """Apply entries."""
        self.store.write([PartitionStep(PARTITION, entries)])
        self.trees.applied([AppliedEntries(PARTITION, entries, False)])


def pair(tmp_path: Path) -> tuple[Replica, Replica, list[Entry]]:
    """A leader, a follower, and 60 entries for both."""
    leader, follower = Replica(tmp_path / "a"), Replica(tmp_path / "b")
    leader.other = follower
    history, chance = History(PARTITION), random.Random(3)
    return leader, follower, [history.put(b"b", b"%d" % chance.randrange(30), b"x") for _ in range(60)]


async def test_a_follower_that_is_behind_answers_when_it_has_caught_up(tmp_path: Path) -> None:
    """It is compared at the leader's offset, although both receive more entries meanwhile."""

    leader, follower, entries = pair(tmp_path)
    leader.apply(entries[:40])
    follower.apply(entries[:25])
    comparing = asyncio.create_task(leader.agreement.compare(PARTITION, "n2"))
    await asyncio.sleep(0.01)
    leader.apply(entries[40:])
    assert not comparing.done()
    follower.apply(entries[25:])
    assert await comparing is True
    assert leader.agreement.compared_total == 1
    assert not leader.trees.mismatches


async def test_a_fault_of_the_program_ends_one_comparison_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next partitions are still compared, and this one in its next turn."""
    monkeypatch.setattr(replica_agreement, "ROUND_S", 0.01)

    leader, _, entries = pair(tmp_path)
    leader.apply(entries)
    asked: list[str] = []

    async def request(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        asked.append(node)
        raise ValueError("a fault")

    comparing = ReplicaTreeCheck(
        leader.trees,
        leader.store,
        repair=leader.mending,
        replicas=FakeReplicas(followers=lambda: [(PARTITION, ("n2", "n3"))]),
        rpc=FakeRpc(request),
    )
    comparing.start()
    while len(asked) < 5:
        await asyncio.sleep(0.005)
    await comparing.stop()
    assert set(asked) == {"n2", "n3"}


async def test_a_row_that_differs_is_an_alarm_with_its_segment(tmp_path: Path) -> None:
    """The leader names partition, segment and node, and asks the other node to check for damage of its own."""

    leader, follower, entries = pair(tmp_path)
    leader.apply(entries)
    follower.apply(entries)
    wrong = entries[7].key_hash >> 44
    tree = follower.trees.cached[PARTITION].tree
    assert tree is not None
    tree.change(wrong, 9)
    assert await leader.agreement.compare(PARTITION, "n2") is False
    assert [(m.partition, m.segment, m.against) for m in leader.trees.mismatches] == [(PARTITION, wrong, "n2")]
    assert follower.looked == [("n2", row_repair.LOOK_ASKED)]
    leader.pool.shutdown()


async def test_rows_that_cannot_be_read_keep_no_alarm_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the keys of a segment cannot be named, since the leader's own block is damaged, the alarm has none, and the
    other node is still asked to check."""

    leader, follower, entries = pair(tmp_path)
    leader.apply(entries)
    follower.apply(entries)
    wrong = entries[7].key_hash >> 44
    tree = follower.trees.cached[PARTITION].tree
    assert tree is not None
    tree.change(wrong, 9)

    def damaged(*_: object) -> NoReturn:
        raise Corruption("a table cannot be read")

    monkeypatch.setattr(leader.store, "key_rows", damaged)
    assert await leader.agreement.compare(PARTITION, "n2") is False
    assert [(m.partition, m.segment, m.against) for m in leader.trees.mismatches] == [(PARTITION, wrong, "n2")]
    assert follower.looked == [("n2", row_repair.LOOK_ASKED)]
    leader.pool.shutdown()


async def test_a_follower_that_does_not_look_keeps_no_other_alarm_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the other node is too slow to check the first segment, segments of other branches still raise alarms, and the
    node is asked to check each."""

    leader, follower, entries = pair(tmp_path)
    leader.apply(entries)
    follower.apply(entries)
    tree = follower.trees.cached[PARTITION].tree
    assert tree is not None
    for wrong in (5, 5_000, 500_000):
        tree.change(wrong, 9)
    asked: list[int] = []

    async def slow(_node: str, _partition: int, segment: int) -> None:
        asked.append(segment)
        raise OutcomeUnknown("node n2 did not answer aae.look_again within 10000 ms")

    monkeypatch.setattr(leader.mending, "request_check", slow)
    assert await leader.agreement.compare(PARTITION, "n2") is False
    assert [m.segment for m in leader.trees.mismatches] == asked == [5, 5_000, 500_000]
    leader.pool.shutdown()


async def test_replicas_that_cannot_be_compared_raise_no_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that is away, ahead, without a tree, or too slow gives no result and no alarm."""
    monkeypatch.setattr(replica_agreement, "TIMEOUT_MS", 30)

    leader, follower, entries = pair(tmp_path)
    leader.apply(entries[:10])
    assert await leader.agreement.compare(PARTITION, "n2") is None  # too slow
    follower.apply(entries[:20])
    assert await leader.agreement.compare(PARTITION, "n2") is None  # ahead: leads by now, perhaps
    leader.apply(entries[10:20])
    follower.trees.cached[PARTITION].tree = None
    assert await leader.agreement.compare(PARTITION, "n2") is None
    leader.other = None
    assert await leader.agreement.compare(PARTITION, "n2") is None
    assert not leader.trees.mismatches
    with pytest.raises(CodecError):
        await follower.agreement.request_handlers()[replica_agreement.TREE_AT]("n1", b"\x93\x01\x02\x03")

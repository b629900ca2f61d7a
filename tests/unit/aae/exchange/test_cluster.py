"""A cluster's trees, summed over its nodes completely or not at all, and the rows of any segments from all nodes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest
import zstandard

from isthmus.aae.damaged_rows import DamagedRows
from isthmus.aae.exchange import wire
from isthmus.aae.exchange.cluster import ClusterTrees, Incomplete
from isthmus.aae.exchange.compare import ComparedRow, reaped_row
from isthmus.aae.exchange.local import LocalTrees
from isthmus.aae.exchange.wire import ClocksRequest, LeavesRequest, PartitionHistory, RootsRequest
from isthmus.aae.ports import LedPartition
from isthmus.aae.trees.tree import BRANCH_COUNT, HashTree
from isthmus.aae.trees.tree_cache import CachedTree, TreeCache
from isthmus.repl.clock import SystemTime
from isthmus.repl.model.entry import Entry, EntryKind, encode_key_row, leaf, make_entry
from isthmus.repl.model.errors import BadInput, CodecError, NotReady
from isthmus.repl.model.keys import key_hash, partition_index, segment_of
from isthmus.repl.model.objects import Summary
from isthmus.repl.store.port import PartitionStep
from tests.support.entry_histories import History
from tests.support.fullsync_fakes import FakeReplicas, FakeRpc
from tests.support.memory_store import MemoryStore

TYPE = b"default"
COUNT = 5


class FakeCluster:
    """Nodes of one cluster in one process; the test assigns leaders, and requests go directly to the other node."""

    def __init__(self, directory: Path, pool: ThreadPoolExecutor) -> None:
        self.store = MemoryStore()
        self.histories = [History(partition) for partition in range(COUNT)]
        self.leaders: dict[int, str] = {partition: "abc"[partition % 3] for partition in range(COUNT)}
        self.unreachable: set[str] = set()
        self.trees = TreeCache(
            self.store, directory=directory, replicas=FakeReplicas(), damaged=DamagedRows(), time=SystemTime()
        )
        self.nodes = {
            name: LocalTrees(
                self.trees,
                self.store,
                replicas=FakeReplicas(led=lambda _type, n=name: self.led(n)),  # type: ignore[misc]
                read_pool=pool,
                damaged=DamagedRows(),
            )
            for name in "abc"
        }
        self.names: dict[tuple[bytes, bytes], int] = {}

    def led(self, name: str) -> list[LedPartition]:
        """The partitions that a node leads."""
        return [
            LedPartition(partition, partition, COUNT, 9, 3, 4)
            for partition, leader in self.leaders.items()
            if leader == name
        ]

    def fill(self, count: int) -> None:
        """Writes keys to the leaders of their partitions, and updates the trees."""
        for number in range(count):
            name = (b"b%d" % (number % 3), b"key-%d" % number)
            self.names[name] = partition_index(key_hash(*name), COUNT)
        for partition, history in enumerate(self.histories):
            made = [history.put(*name, b"x") for name, place in self.names.items() if place == partition]
            self.store.write([PartitionStep(partition, made)])
            tree = HashTree()
            tree.change_all((segment_of(entry.key_hash), entry.leaf_change) for entry in made)
            self.trees.cached[partition] = CachedTree(TYPE, 1, tree, len(made))

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """As `Links.request`."""
        assert timeout_ms > 0
        if node in self.unreachable:
            raise NotReady(f"no connection to node {node}")
        return await self.nodes[node].request_handlers()[method]("a", body)

    def cluster_trees(self) -> ClusterTrees:
        """The cluster as node `a` answers for it."""
        return ClusterTrees(self.nodes["a"], FakeMembers(), FakeRpc(self.request))


class FakeMembers:
    """The cluster as node `a` sees it."""

    def nodes(self) -> Iterable[str]:
        """The other two."""
        return ["b", "c"]

    def partitions(self, bucket_type: bytes) -> Sequence[int]:
        """All."""
        assert bucket_type == TYPE
        return range(COUNT)


def a_reap(history: History, name: tuple[bytes, bytes], clock: bytes) -> Entry:
    """The next entry: the key's row goes, and `clock` is remembered."""
    before = history.latest.pop(name)
    entry = make_entry(
        EntryKind.REAP,
        history.epoch,
        len(history.entries),
        request_id=b"",
        origin=b"",
        time_ms=history.time_ms,
        key_hash=key_hash(*name),
        previous_offset=before.offset,
        bucket=name[0],
        key=name[1],
        row=encode_key_row(Summary(clock, 0, history.time_ms, 0, 1, True), before.offset),
    )
    history.entries.append(entry)
    return entry


@pytest.fixture
def cluster(tmp_path: Path) -> Iterable[FakeCluster]:
    """A cluster of 300 keys."""
    with ThreadPoolExecutor(1) as pool:
        made = FakeCluster(tmp_path, pool)
        made.fill(300)
        yield made


def expected(cluster: FakeCluster) -> HashTree:
    """The tree of all keys, from the histories alone."""
    tree = HashTree()
    for history in cluster.histories:
        for name, entry in history.latest.items():
            clock = b"clock-%d" % entry.offset
            tree.change(segment_of(key_hash(*name)), leaf(*name, clock, entry.offset, tombstone=False))
    return tree


async def test_any_node_answers_for_all_of_the_cluster(cluster: FakeCluster) -> None:
    """Roots and leaves, of full and of small trees, are those of all keys, however the partitions are led."""

    tree = expected(cluster)
    for leaders in ("abcab", "aaaaa", "ccccc"):
        cluster.leaders = dict(enumerate(leaders))
        assert (await cluster.cluster_trees().roots(RootsRequest(TYPE)) == tree.branch_hashes()).all()
        branches = tuple(tree.branch_hashes().nonzero()[0].tolist())[:40]
        for bits in (20, 12):
            found = (await cluster.cluster_trees().leaves(LeavesRequest(TYPE, branches, bits))).reshape(
                len(branches), -1
            )
            for at, branch in enumerate(branches):
                assert (found[at] == tree.leaves(branch, bits)).all()


async def test_remembered_clocks_of_reaped_keys_are_among_the_rows(cluster: FakeCluster) -> None:
    """Of the requested segments alone, unless the key was written again; a range of times has none, since they have no
    time. However few rows an answer may hold, each is returned once."""

    gone, again, elsewhere = list(cluster.names)[:3]
    for number, name in enumerate((gone, again, elsewhere)):
        history = cluster.histories[cluster.names[name]]
        cluster.store.write([PartitionStep(cluster.names[name], [a_reap(history, name, b"seen-%d" % number)])])
    history = cluster.histories[cluster.names[again]]
    cluster.store.write([PartitionStep(cluster.names[again], [history.put(*again, b"new")])])
    wanted = tuple(sorted({segment_of(key_hash(*name)) for name in cluster.names if name != elsewhere}))
    request = ClocksRequest(TYPE, wanted, 20, 0, 0, 1_000)
    for rows in (1_000, 1):
        found, left = [], wanted
        while left:
            answer = await cluster.cluster_trees().clocks(request._replace(segments=left, rows=rows))
            found += answer.rows
            left = left[answer.covered :]
        assert [row for row in found if row.reaped] == [reaped_row(*gone, b"seen-0")]
        assert sorted(row[:2] for row in found) == sorted(name for name in cluster.names if name != elsewhere)
    for times in ({"since_ms": 1}, {"since_ms": 1, "before_ms": 1 << 50}):
        answer = await cluster.cluster_trees().clocks(request._replace(**times))
        assert not [row for row in answer.rows if row.reaped]


async def test_rows_of_segments_come_whole_and_in_bounded_parts(cluster: FakeCluster) -> None:
    """Every row of the requested segments is returned once, however few an answer may hold, and no row of another
    segment."""

    for bits, rows in ((20, 1000), (12, 7), (12, 1)):
        wanted = sorted({key_hash(*name) >> (64 - bits) for name in cluster.names})[::2]
        left, found = tuple(wanted), []
        while left:
            told = await cluster.cluster_trees().clocks(ClocksRequest(TYPE, left, bits, 0, 0, rows))
            found += told.rows
            left = left[told.covered :]
        names = [(row.bucket, row.key) for row in found]
        assert sorted(names) == sorted(n for n in cluster.names if key_hash(*n) >> (64 - bits) in set(wanted))
    one = next(iter(cluster.histories[0].latest.values()))
    segment = (segment_of(one.key_hash),)
    told = await cluster.cluster_trees().clocks(ClocksRequest(TYPE, segment, 20, one.time_ms, one.time_ms + 1, 10))
    assert [row.key for row in told.rows] == [one.key]
    assert (await cluster.cluster_trees().clocks(ClocksRequest(TYPE, segment, 20, one.time_ms + 1, 0, 10))).rows == []


async def test_an_answer_of_rows_is_bounded_however_partitions_are_led(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer holds at most the requested rows and bytes, plus one segment, whether one node leads all partitions or
    all nodes lead some; rows outside a time range count, too. No row is lost between the parts."""
    most = 4  # one segment of 2^20 has one of the keys, or two

    async def parts(c: FakeCluster, asked: ClocksRequest) -> list[int]:
        found: list[tuple[bytes, bytes]] = []
        sizes = []
        while asked.segments:
            told = await c.cluster_trees().clocks(asked)
            found += [(row.bucket, row.key) for row in told.rows]
            sizes.append(len(told.rows))
            asked = asked._replace(segments=asked.segments[told.covered :])
        assert sorted(found) == ([] if asked.since_ms else sorted(c.names))
        return sizes

    every = tuple(sorted({segment_of(key_hash(*name)) for name in cluster.names}))
    for leaders in ("aaaaa", "abcab", "ccccc"):
        cluster.leaders = dict(enumerate(leaders))
        assert max(await parts(cluster, ClocksRequest(TYPE, every, 20, 0, 0, 70))) <= 70 + most
        coarse = tuple(range(1 << 12))
        assert max(await parts(cluster, ClocksRequest(TYPE, coarse, 12, 0, 0, 10))) <= 10 + most + 4
    monkeypatch.setattr("isthmus.aae.exchange.local.ANSWER_BYTES", 20 * 50)
    for leaders, nodes in (("aaaaa", 1), ("abcab", 3)):
        cluster.leaders = dict(enumerate(leaders))
        assert max(await parts(cluster, ClocksRequest(TYPE, every, 20, 0, 0, 1_000))) <= nodes * (25 + most)
    monkeypatch.setattr("isthmus.aae.exchange.cluster.ANSWER_BYTES", 20 * 50)
    assert max(await parts(cluster, ClocksRequest(TYPE, every, 20, 0, 0, 1_000))) <= 25 + most
    monkeypatch.setattr("isthmus.aae.exchange.local.READ_ROWS_MAX", 50)
    assert len(await parts(cluster, ClocksRequest(TYPE, every, 20, 1 << 50, 0, 1_000))) >= 2


async def test_rows_of_a_replica_removed_during_the_read_are_no_answer(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 moves to a node that has answered already, and the old replica is removed before its rows are read:
    the answers are not taken for all rows; a repeated request gets them."""

    monkeypatch.setattr("isthmus.aae.exchange.cluster.ATTEMPT_PAUSE_S", 0)
    segments = tuple(sorted({segment_of(key_hash(*name)) for name in cluster.names}))
    asked = ClocksRequest(TYPE, segments, 20, 0, 0, 1_000_000)
    node = cluster.nodes["a"]
    read = node._read

    def moved(led: Sequence[LedPartition], asked: ClocksRequest) -> tuple[list[ComparedRow], int]:
        if cluster.leaders[0] == "b":
            return read(led, asked)
        time.sleep(0.05)  # until the others have reported the partitions that they lead
        cluster.leaders[0] = "b"
        return read([one for one in led if one.partition], asked)

    monkeypatch.setattr(node, "_read", moved)
    told = await cluster.cluster_trees().clocks(asked)
    assert {(row.bucket, row.key) for row in told.rows} == set(cluster.names)


async def test_an_incomplete_answer_is_refused(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition without a leader, with two, on an unreachable node, or without a tree makes the response Incomplete;
    the reason names it (R-WHOLE)."""
    monkeypatch.setattr("isthmus.aae.exchange.cluster.ATTEMPT_PAUSE_S", 0.0)

    trees = cluster.cluster_trees()
    del cluster.leaders[3]
    with pytest.raises(Incomplete, match="1 partition has no leader that answers, 3 first"):
        await trees.roots(RootsRequest(TYPE))
    cluster.leaders[3] = "a"
    cluster.unreachable = {"b"}
    with pytest.raises(Incomplete, match="no connection to node b"):
        await trees.clocks(ClocksRequest(TYPE, (1,), 20, 0, 0, 10))
    cluster.unreachable = set()
    kept = cluster.trees.cached[2]
    kept.tree, kept.reason = None, "rebuilding"
    with pytest.raises(Incomplete, match="partition 2: rebuilding"):
        await trees.leaves(LeavesRequest(TYPE, (1,), 20))
    kept.tree = HashTree()
    original = cluster.led
    cluster.led = lambda name: [*original(name), LedPartition(1, 1, COUNT)]  # type: ignore[method-assign]
    with pytest.raises(Incomplete, match="partition 1 is moving"):
        await trees.roots(RootsRequest(TYPE))


async def test_a_deposed_leader_does_not_answer_for_a_new_one_that_is_silent(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that is cut off still believes that it leads, so its tree may be old while the silent node leads the
    partition. The sum is then Incomplete, even if each partition was counted once (R-WHOLE)."""
    monkeypatch.setattr("isthmus.aae.exchange.cluster.ATTEMPT_PAUSE_S", 0.0)

    cluster.leaders = dict(enumerate("aacca"))
    original = cluster.led
    cluster.led = lambda name: [LedPartition(1, 1, COUNT)] if name == "b" else original(name)  # type: ignore[method-assign]
    cluster.unreachable = {"b"}
    for asked in (
        cluster.cluster_trees().roots(RootsRequest(TYPE)),
        cluster.cluster_trees().clocks(ClocksRequest(TYPE, (1,), 20, 0, 0, 10)),
    ):
        with pytest.raises(Incomplete, match=r"1 node does not answer .*no connection to node b"):
            await asked


def test_compressed_answers_are_the_same_and_bombs_are_refused() -> None:
    """A zstd answer decodes to the plain one and is smaller; small answers stay plain. A frame that hides its size, or
    decompresses to too much, is refused."""
    told = wire.PeerResponse(bytes(16), "west", b"rows " * 10_000)
    packed = wire.encode_peer_response(told, wire.ZSTD)
    assert len(packed) < len(wire.encode_peer_response(told)) / 10
    assert wire.decode_peer_response(packed) == told
    small = told._replace(body=b"few")
    assert (
        wire.encode_peer_response(small, wire.ZSTD)
        == wire.encode_peer_response(small)
        == wire.encode_peer_response(small, "other")
    )
    unreachable = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 1_000)
    large = zstandard.ZstdCompressor().compress(bytes(wire.MESSAGE_BYTES_MAX + 1))
    for frame in (unreachable, large, b"rubbish"):
        with pytest.raises(CodecError):
            wire.decode_peer_response(msgpack.packb([wire.VERSION, bytes(16), "west", frame, wire.ZSTD]))


def test_messages_that_are_none_are_refused() -> None:
    """A request that is cut, of another version, out of range, or out of order raises a CodecError that says what is
    expected."""
    good = wire.encode_clocks_request(ClocksRequest(TYPE, (1, 5), 20, 0, 0, 10))
    assert wire.decode_clocks_request(good) == ClocksRequest(TYPE, (1, 5), 20, 0, 0, 10)
    for bad in (
        good[:-1],
        wire.encode_clocks_request(ClocksRequest(TYPE, (5, 1), 20, 0, 0, 10)),
        wire.encode_clocks_request(ClocksRequest(TYPE, (1 << 20,), 20, 0, 0, 10)),
        wire.encode_clocks_request(ClocksRequest(TYPE, (), 20, 0, 0, 10)),
        wire.encode_clocks_request(ClocksRequest(TYPE, (1,), 21, 0, 0, 10)),
        wire.encode_clocks_request(ClocksRequest(TYPE, (1,), 20, 0, 0, 1 << 40)),
        b"",
        b"\xc1",
    ):
        with pytest.raises(CodecError):
            wire.decode_clocks_request(bad)
    with pytest.raises(wire.UnknownExchangeVersion, match="form 9"):
        wire.decode_roots_request(b"\x92\x09\xc4\x01a")
    with pytest.raises(CodecError, match="not a question for leaves"):
        wire.decode_leaves_request(wire.encode_leaves_request(LeavesRequest(TYPE, (BRANCH_COUNT,), 20)))
    told = wire.RowsResponse((wire.TreeReadiness(1, True, ""),), 1, [ComparedRow(b"b", b"k", b"c", 1 << 63, 5, True)])
    asked = ClocksRequest(TYPE, (1,), 20, 0, 0, 10)
    assert wire.decode_rows(wire.encode_rows(told), asked) == told
    with pytest.raises(CodecError):
        wire.decode_rows(wire.encode_rows(told._replace(covered=2)), asked)
    with pytest.raises(CodecError, match="not a row"):
        wire.decode_rows(wire.encode_rows(told._replace(rows=[(b"b", b"", b"c", 1, 5, True)])), asked)  # type: ignore[list-item]


async def test_applied_offsets_are_those_of_the_leaders_ready_trees(cluster: FakeCluster) -> None:
    """Each partition has the offset that its leader's tree covers. A node that does not answer, one of an earlier
    version, which does not know the request, a tree that is not ready, and a partition for which two nodes answer are
    left out."""
    trees = cluster.cluster_trees()
    ends = {partition: len(history.entries) for partition, history in enumerate(cluster.histories)}
    found = await trees.applied(TYPE)
    assert {partition: tree.offset for partition, tree in found.items()} == ends
    assert all(tree.history == PartitionHistory(3, 4) and tree.epoch == 9 for tree in found.values())
    cluster.trees.cached[0].tree = None
    cluster.unreachable = {"b"}
    assert set(await trees.applied(TYPE)) == {p for p, leader in cluster.leaders.items() if p and leader != "b"}
    cluster.unreachable = set()
    original = cluster.led
    cluster.led = lambda name: [*original(name), LedPartition(1, 1, COUNT)]  # type: ignore[method-assign]
    assert 1 not in await trees.applied(TYPE)


async def test_a_node_of_an_earlier_version_reports_no_offsets(cluster: FakeCluster) -> None:
    """Its refusal of the request takes nothing from the other nodes."""
    request = cluster.request

    async def old(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        if method == "aae.applied" and node == "b":
            raise BadInput(f"there is no method {method}")
        return await request(node, method, body, timeout_ms)

    found = await ClusterTrees(cluster.nodes["a"], FakeMembers(), FakeRpc(old)).applied(TYPE)
    assert set(found) == {partition for partition, leader in cluster.leaders.items() if leader != "b"}

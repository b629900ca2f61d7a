"""Damaged rows are fetched from a replica that can prove them, or made from their object; unproven ones are left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import msgpack
import pytest

from isthmus.aae.scrub import row_repair
from isthmus.aae.scrub.row_repair import RowRepair
from isthmus.aae.trees.tree_builder import row_leaf
from isthmus.repl.machine import machine
from isthmus.repl.model.entry import NO_OFFSET, EntryKind, decode_key_row, encode_key_row, leaf, make_entry
from isthmus.repl.model.errors import NotReady
from isthmus.repl.model.keys import key_hash, segment_of
from isthmus.repl.model.objects import Content, Summary, encode_with_summary, write
from isthmus.repl.store import rows
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import DamagedChange, PartitionStep
from tests.support.entry_histories import CLUSTER, open_store
from tests.support.fullsync_fakes import FakeReplicas, FakeRpc, fake_trees

pytestmark = pytest.mark.virtual_time

PARTITION = 3
KEYS = [b"%d" % n for n in range(20)]
SEGMENT = segment_of(key_hash(b"b", b"7"))


def entry(offset: int, key: bytes, value: bytes) -> Any:
    """A write of a new key, as a leader makes it."""
    data, summary = encode_with_summary(
        write(None, (), Content(value, b"text/plain"), (b"actor", offset + 1), 1_700_000_000_000)
    )
    return make_entry(
        EntryKind.DATA, 1, offset, request_id=b"", origin=CLUSTER, time_ms=1_700_000_000_000,
        key_hash=key_hash(b"b", key), leaf_change=leaf(b"b", key, summary.clock, summary.hash64, tombstone=False),
        previous_offset=NO_OFFSET, bucket=b"b", key=key, row=encode_key_row(summary, offset), payload=data,
    )  # fmt: skip


class Replica:
    """One replica and its row repair."""

    def __init__(self, directory: Path) -> None:
        self.store: LevelStore = open_store(directory)
        self.driver: Any = self.store._db
        self.pool = ThreadPoolExecutor(1)
        self.other: Replica | None = None
        self.in_sync = True
        self.west: dict[bytes, bytes] | None = None
        self.invalidated: list[int] = []
        self.mending = RowRepair(
            self.store,
            replicas=FakeReplicas(
                in_sync=lambda _: ["other"] if self.in_sync and self.other is not None else [], store=self.store
            ),
            rpc=FakeRpc(self.request),
            trees=fake_trees(self.invalidated.append),
            foreign=self,
            cluster_uuid=CLUSTER,
            pool=self.pool,
        )

    async def objects(self, partition: int, segment: int) -> dict[str, dict[bytes, bytes]]:
        """Objects of another cluster."""
        return {} if self.west is None else {"west": self.west}

    async def request(self, node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        """To the other replica."""
        assert self.other is not None
        return await self.other.mending.request_handlers()[method](node, body)

    def damage(self, prefix: bytes, change: Callable[[bytes], bytes] | None) -> None:
        """Changes the row of the key 7 in the database directly; None deletes it."""
        (name,) = [n for n, _ in self.driver.iterator(prefix=prefix) if n.endswith(rows.bucket_head(b"b") + b"7")]
        data = self.driver.get(name)
        self.driver.delete(name) if change is None else self.driver.put(name, change(data))

    def all_rows(self) -> dict[bytes, bytes]:
        """Everything that is stored."""
        return dict(self.driver)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Replica, Replica]]:
    """Two replicas with the same rows."""
    made = [Replica(tmp_path / name) for name in "ab"]
    made[0].other, made[1].other = made[1], made[0]
    step = PartitionStep(PARTITION, [entry(n, key, b"value of %s" % key) for n, key in enumerate(KEYS)])
    for replica in made:
        replica.store.write([step])
    yield made[0], made[1]
    for replica in made:
        replica.pool.shutdown()
        replica.store.close()


def other_hash(data: bytes) -> bytes:
    """A key row that can be read and is another one."""
    row = decode_key_row(data)
    summary = Summary(row.clock, row.hash64 ^ 1, row.last_modified_ms, row.size_bytes, row.sibling_count, row.tombstone)
    return encode_key_row(summary, row.offset)


def right_leaf(replica: Replica) -> int:
    """The leaf of the segment, computed from its rows."""
    found = 0
    for _, bucket, key, row in replica.store.key_rows(PARTITION, SEGMENT, SEGMENT + 1):
        found ^= row_leaf(bucket, key, row)
    return found


async def repair_of_key_7(replica: Replica, leaf_is: int | None = None) -> row_repair.RepairResult:
    """The result of a repair of the segment of the key 7."""
    return await replica.mending.repair_segment(PARTITION, SEGMENT, leaf_is)


KEY_ROWS, OBJECTS = rows.prefixes(PARTITION).key, rows.prefixes(PARTITION).object


@pytest.mark.parametrize(
    ("prefix", "change"),
    [
        (KEY_ROWS, other_hash),
        (KEY_ROWS, lambda data: b"\xc1" + data),
        (KEY_ROWS, lambda data: data[:-1] + b"\x05"),  # the offset of another key
        (OBJECTS, lambda data: data[:-4] + b"nope"),
        (OBJECTS, None),
    ],
    ids=["another hash", "unreadable", "another offset", "damaged object", "no object"],
)
async def test_an_inconsistent_row_is_taken_from_the_other_replica(
    pair: tuple[Replica, Replica], prefix: bytes, change: Any
) -> None:
    """Without any tree, every row of the store equals the other replica's afterwards, and the key is reported
    (R-MEND)."""
    mine, other = pair
    mine.damage(prefix, change)
    assert mine.all_rows() != other.all_rows()
    found = await repair_of_key_7(mine)
    assert (found.keys, found.by) == (((b"b", b"7"),), "node other")
    assert mine.all_rows() == other.all_rows()
    assert mine.invalidated == [PARTITION]
    assert mine.mending.metrics()[0][2] == 1
    assert await repair_of_key_7(mine) == row_repair.RepairResult()


async def test_a_lost_row_is_fetched_if_the_tree_proves_it(pair: tuple[Replica, Replica]) -> None:
    """Without the tree, the key may have been deleted; with it, the other replica's row is proven."""
    mine, other = pair
    leaf_is = right_leaf(mine)
    mine.damage(KEY_ROWS, None)
    assert await repair_of_key_7(mine) == row_repair.RepairResult()
    assert (await repair_of_key_7(mine, leaf_is)).keys == ((b"b", b"7"),)
    assert mine.all_rows() == other.all_rows()


async def test_an_unproven_row_is_left_unchanged(pair: tuple[Replica, Replica]) -> None:
    """If the other replica's row contradicts its object, too, or that replica is not in sync or behind, nothing is
    written and the reason is reported. A correct row is never taken for damaged (R-MEND)."""
    mine, other = pair
    mine.damage(KEY_ROWS, lambda data: data[:-1] + b"\x05")
    other.damage(OBJECTS, lambda data: data[:-4] + b"nope")
    before = mine.all_rows()
    assert "does not match its object either" in (await repair_of_key_7(mine)).reason
    other.in_sync = False
    assert "not in sync there" in (await repair_of_key_7(mine)).reason
    mine.in_sync = False
    assert "no other replica in sync proves" in (await repair_of_key_7(mine)).reason
    assert mine.all_rows() == before


async def test_an_unrepairable_key_blocks_no_other(pair: tuple[Replica, Replica]) -> None:
    """Two keys of one segment are damaged, and the other replica has one of them: that one is repaired and named, and
    the reason explains the other one."""
    mine, other = pair
    places: dict[int, bytes] = {}
    first = second = b""
    for n in range(100_000):
        second = b"two-%d" % n
        first = places.setdefault(segment_of(key_hash(b"b", second)), second)
        if first != second:
            break
    segment = segment_of(key_hash(b"b", second))
    for replica in pair:
        step = [entry(len(KEYS) + n, key, b"value of %s" % key) for n, key in enumerate((first, second))]
        replica.store.write([PartitionStep(PARTITION, step)])
    right = other.all_rows()
    for whose, key in ((mine, first), (mine, second), (other, min(first, second))):
        whose.driver.put(OBJECTS + rows.bucket_head(b"b") + key, b"damaged")
    found = await mine.mending.repair_segment(PARTITION, segment)
    assert (found.keys, found.by) == (((b"b", max(first, second)),), "node other")
    assert "does not match its object either" in found.reason
    assert (mine.invalidated, mine.mending.repaired_total) == ([PARTITION], 1)
    assert mine.all_rows() == other.all_rows() != right
    done, refused = await mine.mending.repair_keys(PARTITION, [(b"b", first), (b"b", second)])
    assert (done, refused.total()) == (0, 2)
    tail = rows.bucket_head(b"b") + min(first, second)
    mine.west = {tail: right[OBJECTS + tail]}
    assert (await mine.mending.repair_segment(PARTITION, segment)).by == "cluster west"
    assert mine.all_rows() == right


async def test_a_replica_that_is_behind_is_waited_for(
    pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers once it has applied as much; if that takes too long, it answers that it is not ready."""
    monkeypatch.setattr(row_repair, "APPLIED_S", 0.05)
    mine, other = pair
    more = PartitionStep(PARTITION, [entry(len(KEYS), b"more", b"x")])
    mine.store.write([more])
    mine.damage(KEY_ROWS, other_hash)
    assert f"not applied to {len(KEYS) + 1} there" in (await repair_of_key_7(mine)).reason
    monkeypatch.setattr(row_repair, "APPLIED_S", 10.0)

    async def scenario() -> row_repair.RepairResult:
        asking = asyncio.create_task(mine.mending.repair_segment(PARTITION, SEGMENT))
        await asyncio.sleep(0.1)
        assert not asking.done()
        other.store.write([more])
        return await asking

    assert (await scenario()).keys
    assert mine.all_rows() == other.all_rows()


async def test_alone_a_key_row_is_made_from_its_object_if_the_tree_agrees(pair: tuple[Replica, Replica]) -> None:
    """A readable row needs a tree that proves the object; an undecodable one does not."""
    mine, other = pair
    mine.other = None
    leaf_is = right_leaf(mine)
    mine.damage(KEY_ROWS, other_hash)
    assert "nor its object" in (await repair_of_key_7(mine)).reason
    assert "nor its object" in (await repair_of_key_7(mine, leaf_is ^ 1)).reason
    assert (await repair_of_key_7(mine, leaf_is)).by == "their own objects"
    assert mine.all_rows() == other.all_rows()
    mine.damage(KEY_ROWS, lambda data: b"\xc1" + data)
    assert await mine.mending.unreadable_segments(PARTITION, 10) == [SEGMENT]
    assert (await repair_of_key_7(mine)).keys == ((b"b", b"7"),)
    assert mine.all_rows() == other.all_rows()
    mine.damage(OBJECTS, lambda data: data[:-4] + b"nope")
    assert "nor its object" in (await repair_of_key_7(mine, leaf_is)).reason


async def test_alone_an_object_is_taken_from_another_cluster_if_the_key_row_or_the_tree_proves_it(
    pair: tuple[Replica, Replica],
) -> None:
    """The key row proves an object that is damaged or missing; the tree proves one whose key row is damaged, too. Any
    other object, newer or broken, is not taken, and a damaged key row is not a proof."""
    mine, other = pair
    mine.other = None
    leaf_is = right_leaf(mine)
    tail = rows.bucket_head(b"b") + b"7"
    right = mine.store.object(PARTITION, b"b", b"7")
    newer, broken = entry(90, b"7", b"newer").payload, b"\xc1"
    assert right is not None
    for damage in (lambda data: data[:-4] + b"nope", None):
        mine.damage(OBJECTS, damage) if damage else mine.damage(OBJECTS, None)
        for wrong in ({}, {tail: newer}, {tail: broken}, {b"other\0\x01k": right}):
            mine.west = wrong
            assert (await repair_of_key_7(mine)).keys == (await repair_of_key_7(mine, leaf_is)).keys == ()
        mine.west = {tail: right}
        assert (await repair_of_key_7(mine)).by == "cluster west"
        assert mine.all_rows() == other.all_rows()
    mine.damage(OBJECTS, lambda data: data[:-4] + b"nope")
    mine.damage(KEY_ROWS, other_hash)
    mine.west = {tail: newer}
    assert (await repair_of_key_7(mine, leaf_is)).keys == ()
    mine.west = {tail: right}
    assert "nor another cluster" in (await repair_of_key_7(mine)).reason
    assert (await repair_of_key_7(mine, leaf_is)).by == "cluster west"
    assert mine.all_rows() == other.all_rows()
    mine.damage(KEY_ROWS, other_hash)  # two objects are the same, even if a tree was built from this row
    assert (await repair_of_key_7(mine, right_leaf(mine))).by == "cluster west"
    assert mine.all_rows() == other.all_rows()


async def test_segments_read_by_an_exchange_are_repaired_up_to_a_limit(
    pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requested segments that have damage are repaired, up to a limit of rows; others are left alone."""
    mine, other = pair
    mine.damage(OBJECTS, None)
    others = [segment_of(key_hash(b"b", key)) for key in KEYS if key != b"7"]
    monkeypatch.setattr(row_repair, "CHECKED_ROWS_MAX", len(KEYS) - 1)
    await mine.mending.repair_contradicting(PARTITION, [*sorted(others), SEGMENT])
    assert mine.all_rows() != other.all_rows()
    monkeypatch.setattr(row_repair, "CHECKED_ROWS_MAX", len(KEYS))
    await mine.mending.repair_contradicting(PARTITION, sorted(others))
    assert mine.all_rows() != other.all_rows()
    await mine.mending.repair_contradicting(PARTITION, sorted([*others, SEGMENT]))
    assert mine.all_rows() == other.all_rows()


async def test_the_scan_for_unreadable_rows_yields_between_pages(
    pair: tuple[Replica, Replica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows of a replica are decoded in a thread: between pages it pauses as long as a page took, so that clients
    have their turn."""
    mine, _ = pair
    mine.damage(KEY_ROWS, lambda data: b"\xc1" + data)
    rests: list[float] = []
    monkeypatch.setattr(row_repair, "UNREADABLE_ROWS", 5)
    monkeypatch.setattr(machine(), "sleep", rests.append)
    assert await mine.mending.unreadable_segments(PARTITION, 10) == [SEGMENT]
    pages = len(KEYS) // 5
    assert len(rests) == pages + 1 + pages  # pages of change rows, with the read after the last one, and of key rows
    assert min(rests) > 0


async def test_keys_are_repaired_one_by_one_and_other_nodes_are_notified(pair: tuple[Replica, Replica]) -> None:
    """A damaged key named by a fold is repaired, and a sound one is reported as such; another node is asked to check a
    segment of its own."""
    mine, other = pair
    mine.damage(OBJECTS, None)
    done, refused = await mine.mending.repair_keys(PARTITION, [(b"b", b"7"), (b"b", b"8")])
    assert (done, dict(refused)) == (1, {"it is not damaged any more": 1})
    mine.damage(KEY_ROWS, other_hash)
    await other.mending.request_check("mine", PARTITION, SEGMENT)
    assert mine.all_rows() == other.all_rows()
    other.in_sync = False
    with pytest.raises(NotReady):
        await mine.mending._request_rows("other", PARTITION, SEGMENT, None, 0)


CHANGES = rows.prefixes(PARTITION).change


async def mended_unreadable(replica: Replica) -> list[int]:
    """Repairs the segments that a scan of the replica finds; returns them."""

    found = await replica.mending.unreadable_segments(PARTITION, 100)
    for segment in found:
        await replica.mending.repair_segment(PARTITION, segment)
    return found


@pytest.mark.parametrize("followers", [True, False], ids=["another replica", "alone"])
async def test_a_damaged_change_row_is_as_it_was(pair: tuple[Replica, Replica], followers: bool) -> None:
    """The change row of a key cannot be decoded, but its key row can: the key is found by the offset in the key row,
    and the change row is taken from another replica or made from the key row (R-MEND)."""
    mine, other = pair
    mine.driver.put(CHANGES + rows.U64.pack(7), b"x")
    mine.in_sync = followers
    with pytest.raises(DamagedChange, match="partition 3: the change row of offset 7") as damaged:
        mine.store.changes(PARTITION, 0, 100)
    assert (damaged.value.offset, [row.offset for row in damaged.value.before]) == (7, [0, 1, 2, 3, 4, 5, 6])
    assert await mended_unreadable(mine) == [SEGMENT]
    assert mine.all_rows() == other.all_rows()
    assert await mended_unreadable(mine) == []


async def test_a_neighbour_of_a_damaged_change_row_is_whole(pair: tuple[Replica, Replica]) -> None:
    """The key that changed just before is neither taken for damaged nor withheld from a replica that requests it; rows
    before the damage are sent to a follower first, and the damaged one is named by its offset."""
    mine, _ = pair
    mine.driver.put(CHANGES + rows.U64.pack(7), b"x")
    segment = segment_of(key_hash(b"b", b"6"))
    assert await mine.mending.repair_segment(PARTITION, segment) == row_repair.RepairResult()
    with closing(mine.store.transfers.snapshot(PARTITION)) as snapshot:
        chunk = snapshot.rows(0, 1 << 20)
        assert (chunk.upto, chunk.row_count) == (7, 7)
        with pytest.raises(DamagedChange, match="offset 7"):
            snapshot.rows(chunk.upto, 1 << 20)


async def test_a_damaged_change_row_of_nothing_goes(pair: tuple[Replica, Replica]) -> None:
    """No key row points to it, so it is deleted, unless it may belong to an undecodable key row or has changed by then.
    A row that no key row can prove stays (R-MEND)."""
    mine, other = pair
    name = CHANGES + rows.U64.pack(100)
    mine.driver.put(name, b"x")
    assert not mine.store.transfers.drop_change(PARTITION, 100, b"another")
    mine.in_sync = False
    mine.damage(KEY_ROWS, lambda data: b"\xc1" + data)
    mine.damage(OBJECTS, lambda _: b"nope")
    assert await mended_unreadable(mine) == [SEGMENT]
    assert mine.driver.get(name) == b"x"
    mine.in_sync = True
    assert await mended_unreadable(mine) == [SEGMENT]
    assert await mended_unreadable(mine) == []
    assert mine.driver.get(name) is None
    assert mine.all_rows() == other.all_rows()


async def test_messages_of_row_repair_have_the_bytes_of_version_1(pair: tuple[Replica, Replica]) -> None:
    """Nodes of earlier versions exchange the same bytes."""
    mine, other = pair
    sent: list[tuple[str, bytes, bytes]] = []

    async def recording(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        response = await other.mending.request_handlers()[method](node, body)
        sent.append((method, body, response))
        return response

    mine.mending._rpc = FakeRpc(recording)
    offset, rows = await mine.mending._request_rows("other", PARTITION, SEGMENT, None, 3)
    await mine.mending.request_check("other", PARTITION, SEGMENT)
    assert sent == [
        (
            "aae.rows_again",
            msgpack.packb([1, PARTITION, SEGMENT, None, 3]),
            msgpack.packb([1, offset, [[tail, row] for tail, row in rows]]),
        ),
        ("aae.look_again", msgpack.packb([1, PARTITION, SEGMENT]), b""),
    ]

"""Folds: every row of a scope once, with pages of any size; the right keys are named, counted or acted upon."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgpack
import pytest
from xxhash import xxh64_intdigest

from isthmus.aae.folds import folds
from isthmus.aae.folds.fold_rpc import (
    FoldRouter,
    decode_page,
    decode_request,
    encode_page,
    encode_request,
    page_document,
    parse_fold_request,
    text_of,
)
from isthmus.aae.folds.folds import (
    UNREADABLE,
    FoldActions,
    FoldCursor,
    FoldKind,
    FoldMatch,
    FoldRequest,
    Folds,
    FoldScope,
    Page,
    RiakSegments,
    RiakTreeShape,
)
from isthmus.aae.ports import Leaders, LedPartition
from isthmus.repl.model.entry import NO_OFFSET, EntryKind, encode_key_row, make_entry
from isthmus.repl.model.errors import CodecError, NotLeader, NotReady
from isthmus.repl.model.keys import Key, key_hash, segment_of
from isthmus.repl.model.objects import Summary
from isthmus.repl.model.vclock import encode_clock
from isthmus.repl.riak.tree_hash import phash2_of_clock, place_of, segment_id
from isthmus.repl.store import rows
from isthmus.repl.store.leveldb import LevelStore
from isthmus.repl.store.port import PartitionStep
from tests.support.damage_reports import DamageReports
from tests.support.entry_histories import CLUSTER, open_store
from tests.support.fullsync_fakes import FakeReplicas, FakeRpc

PARTITION = 3


class FakeFoldActions(FoldActions):
    """Actions that accept all keys but those configured to be refused."""

    def __init__(self) -> None:
        self.pushed: list[Key] = []
        self.reaped: list[Key] = []
        self.erased: list[tuple[Key, bytes]] = []
        self.mended: list[tuple[bytes, bytes]] = []

    async def push(self, queue: str, keys: Sequence[Key]) -> tuple[int, Counter[str]]:
        """See FoldActions."""
        assert queue == "to-west"
        self.pushed += keys
        return len(keys), Counter()

    async def reap(self, keys: Sequence[Key]) -> tuple[int, Counter[str]]:
        """See FoldActions."""
        self.reaped += keys[:1]
        return 1, Counter({"waits for queue to-west": len(keys) - 1})

    async def repair(self, partition: int, keys: Sequence[tuple[bytes, bytes]]) -> tuple[int, Counter[str]]:
        """See FoldActions."""
        assert partition == PARTITION
        self.mended += keys
        return len(keys), Counter()

    async def erase(self, keys: Sequence[tuple[Key, bytes]]) -> tuple[int, Counter[str]]:
        """See FoldActions."""
        self.erased += keys
        return len(keys), Counter()


class FoldFixture:
    """A store with keys of three buckets: number n has n siblings, 100 n bytes, every tenth is a tombstone."""

    def __init__(self, store: LevelStore, pool: ThreadPoolExecutor) -> None:
        self.store = store
        self.actions = FakeFoldActions()
        self.damaged = DamageReports()
        self.names: list[tuple[bytes, bytes]] = []
        entries = []
        for n in range(300):
            bucket, key = (b"a", b"bb", b"\xff\x00")[n % 3], b"key-%03d" % n
            self.names.append((bucket, key))
            payload = b"x" * (n % 50)
            row = encode_key_row(
                Summary(b"clock-%d" % n, xxh64_intdigest(payload), 1_000 + n, 100 * n, 1 + n % 4, n % 10 == 0), n
            )
            entries.append(
                make_entry(
                    EntryKind.DATA,
                    1,
                    n,
                    request_id=b"",
                    origin=CLUSTER,
                    time_ms=n,
                    key_hash=key_hash(bucket, key),
                    previous_offset=NO_OFFSET,
                    bucket=bucket,
                    key=key,
                    row=row,
                    payload=payload,
                )
            )
        store.write([PartitionStep(PARTITION, entries)])
        self.folds = Folds(
            store,
            replicas=FakeReplicas(
                led_partition=lambda p: (b"default", LedPartition(PARTITION, 0, 1)) if p == PARTITION else None
            ),
            actions=self.actions,
            damage_listener=self.damaged,
            read_pool=pool,
        )

    async def all_pages(self, asked: FoldRequest) -> list[Page]:
        """All pages, until there is no next one."""

        pages, place = [], FoldCursor()
        while True:
            page = await self.folds.page(PARTITION, asked._replace(cursor=place))
            pages.append(page)
            if page.next is None:
                return pages
            place = page.next

    async def found(self, kind: FoldKind, scope: FoldScope) -> list[tuple[bytes, bytes]]:
        """The names on all pages, sorted."""
        return sorted(
            (one.bucket, one.key) for page in await self.all_pages(FoldRequest(kind, scope)) for one in page.found
        )


@pytest.fixture
def fixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    """A fixture whose pages read seven rows."""
    monkeypatch.setattr(folds, "ROWS_MAX", 7)
    store = open_store(tmp_path / "s")
    with ThreadPoolExecutor(1) as pool:
        yield FoldFixture(store, pool)
    store.close()


SCOPES = [
    FoldScope(),
    FoldScope(bucket=b"bb"),
    FoldScope(bucket=b"bb", key_from=b"key-100", key_to=b"key-200"),
    FoldScope(bucket=b"\xff\x00", key_from=b"key-101"),
    FoldScope(segments=(100_000, 700_000)),
    FoldScope(bucket=b"a", segments=(100_000, 700_000)),
    FoldScope(since_ms=1_050, before_ms=1_100),
    FoldScope(bucket=b"nothing"),
]


@pytest.mark.parametrize("scope", SCOPES, ids=str)
async def test_a_fold_reads_every_row_of_its_scope_once(fixture: FoldFixture, scope: FoldScope) -> None:
    """A fold reads every row once in any order of reading, also if a page has few rows."""
    expected = sorted(
        (b, k)
        for n, (b, k) in enumerate(fixture.names)
        if (scope.bucket in (None, b))
        and (scope.key_from is None or k >= scope.key_from)
        and (scope.key_to is None or k < scope.key_to)
        and (scope.segments is None or scope.segments[0] <= segment_of(key_hash(b, k)) < scope.segments[1])
        and 1_000 + n >= scope.since_ms
        and (not scope.before_ms or 1_000 + n < scope.before_ms)
        and n % 10
    )
    assert await fixture.found(FoldKind.FIND_KEYS, scope) == expected


async def test_one_segment_with_more_rows_than_a_page(fixture: FoldFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of one row continue within a segment."""
    monkeypatch.setattr(folds, "ROWS_MAX", 1)
    pages = await fixture.all_pages(FoldRequest(FoldKind.FIND_KEYS, FoldScope()))
    assert len(pages) == 300
    assert sum(page.scanned for page in pages) == 300


async def test_each_kind_of_fold_returns_its_result(fixture: FoldFixture) -> None:
    """Buckets with a live key, large keys, tombstones, and sums."""
    buckets: Counter[bytes] = Counter()
    for page in await fixture.all_pages(FoldRequest(FoldKind.LIST_BUCKETS, FoldScope())):
        buckets += page.buckets
    assert buckets == {b"a": 90, b"bb": 90, b"\xff\x00": 90}
    large = await fixture.found(FoldKind.FIND_KEYS, FoldScope(siblings_over=3, size_over=29_000))
    assert large == sorted(fixture.names[n] for n in range(300) if n % 10 and (n % 4 == 3 or n > 290))
    assert await fixture.found(FoldKind.FIND_TOMBS, FoldScope()) == sorted(fixture.names[n] for n in range(0, 300, 10))
    pages = await fixture.all_pages(FoldRequest(FoldKind.OBJECT_STATS, FoldScope()))
    assert sum(page.objects for page in pages) == 270
    assert sum(page.tombstones for page in pages) == 30
    assert sum(page.bytes for page in pages) == sum(100 * n for n in range(300) if n % 10)
    siblings = sum((page.siblings for page in pages), Counter[int]())
    assert siblings.total() == 270
    assert set(siblings) == {1, 2, 3, 4}


async def test_acts_are_done_once_and_not_at_all_when_tried_dry(fixture: FoldFixture) -> None:
    """Folds queue references for all keys, reap tombstones, and erase live keys with their clocks; refused keys are
    reported."""
    for kind in (FoldKind.REPL_KEYS, FoldKind.REAP_TOMBS, FoldKind.ERASE_KEYS):
        pages = await fixture.all_pages(FoldRequest(kind, FoldScope(bucket=b"a"), queue="to-west", dry=True))
        assert sum(page.done for page in pages) == 0
        assert (
            sum(page.matched for page in pages)
            == {FoldKind.REPL_KEYS: 100, FoldKind.REAP_TOMBS: 10, FoldKind.ERASE_KEYS: 90}[kind]
        )
    assert fixture.actions.pushed == []
    assert fixture.actions.reaped == []
    assert fixture.actions.erased == []
    await fixture.all_pages(FoldRequest(FoldKind.REPL_KEYS, FoldScope(bucket=b"a"), queue="to-west"))
    assert sorted(fixture.actions.pushed) == sorted(Key(b"default", *name) for name in fixture.names[::3])
    await fixture.all_pages(FoldRequest(FoldKind.ERASE_KEYS, FoldScope(bucket=b"a")))
    assert sorted(fixture.actions.erased) == sorted(
        (Key(b"default", *fixture.names[n]), b"clock-%d" % n) for n in range(0, 300, 3) if n % 10
    )
    pages = await fixture.all_pages(FoldRequest(FoldKind.REAP_TOMBS, FoldScope(bucket=b"a")))
    refused = sum((page.refused for page in pages), Counter[str]())
    assert sum(page.done for page in pages) + refused["waits for queue to-west"] == 10


async def test_damage_is_named(fixture: FoldFixture) -> None:
    """repair-keys finds exactly the objects that do not match their row, and key rows that cannot be read. Only damaged
    keys are passed to the repair, and none in a dry run."""
    bucket, key = fixture.names[77]
    row = encode_key_row(Summary(b"clock", 1, 5, 5, 1, False), 300)
    entry = make_entry(
        EntryKind.DATA, 1, 300, request_id=b"", origin=CLUSTER, time_ms=1, key_hash=key_hash(bucket, key),
        previous_offset=77, bucket=bucket, key=key, row=row, payload=b"other",
    )  # fmt: skip
    fixture.store.write([PartitionStep(PARTITION, [entry])])
    found = [
        one for page in await fixture.all_pages(FoldRequest(FoldKind.REPAIR_KEYS, FoldScope())) for one in page.found
    ]
    assert [(one.bucket, one.key) for one in found] == [(bucket, key)]
    assert "hash differs" in found[0].note
    assert fixture.actions.mended == [(bucket, key)]
    unreadable, name = fixture.names[5], fixture.names[5][1]
    entry = make_entry(
        EntryKind.DATA, 1, 301, request_id=b"", origin=CLUSTER, time_ms=1, key_hash=key_hash(*unreadable),
        previous_offset=5, bucket=unreadable[0], key=name, row=b"\xc1 no row", payload=b"x",
    )  # fmt: skip
    fixture.store.write([PartitionStep(PARTITION, [entry])])
    fixture.actions.mended.clear()
    await fixture.all_pages(FoldRequest(FoldKind.REPAIR_KEYS, FoldScope(), dry=True))
    assert fixture.actions.mended == []
    found = [
        one for page in await fixture.all_pages(FoldRequest(FoldKind.REPAIR_KEYS, FoldScope())) for one in page.found
    ]
    assert sorted((one.bucket, one.key) for one in found) == sorted([(bucket, key), unreadable])
    assert sorted(fixture.actions.mended) == sorted([(bucket, key), unreadable])
    assert "its key row cannot be read" in [one.note for one in found]


async def test_damage_is_named_within_the_scope_alone(fixture: FoldFixture) -> None:
    """Within one bucket, or a range of its keys, a key without an object is found as in a fold of all keys. An
    unreadable row outside the scope is neither named nor repaired."""
    lost, elsewhere, later = fixture.names[77], fixture.names[78], fixture.names[80]
    assert (lost[0], elsewhere[0], later[0]) == (b"\xff\x00", b"a", b"\xff\x00")
    entries = [
        make_entry(
            EntryKind.DATA, 1, at, request_id=b"", origin=CLUSTER, time_ms=1, key_hash=key_hash(*name),
            previous_offset=n, bucket=name[0], key=name[1], row=b"\xc1 no row", payload=b"x",
        )
        for at, n, name in ((300, 78, elsewhere), (301, 80, later))
    ]  # fmt: skip
    fixture.store.write([PartitionStep(PARTITION, entries)])
    fixture.store._db.delete(rows.prefixes(PARTITION).object + rows.bucket_head(lost[0]) + lost[1])
    for scope in (
        FoldScope(bucket=lost[0], key_to=later[1]),
        FoldScope(bucket=lost[0], key_to=later[1], segments=(0, 1 << 20)),
    ):
        fixture.actions.mended.clear()
        assert await fixture.found(FoldKind.REPAIR_KEYS, scope) == [lost]
        assert fixture.actions.mended == [lost]
    assert await fixture.found(FoldKind.REPAIR_KEYS, FoldScope(bucket=lost[0])) == sorted([lost, later])
    assert await fixture.found(FoldKind.REPAIR_KEYS, FoldScope()) == sorted([lost, elsewhere, later])


async def test_pages_are_passed_on_to_the_leader(fixture: FoldFixture) -> None:
    """A node that does not lead forwards the request to the leader, over the wire; without a leader it is NotReady."""

    leaders: dict[int, str] = {PARTITION: "n2"}
    n2 = FoldRouter(fixture.folds, node="n2", leaders=Routes(leaders), rpc=FakeRpc())

    async def request(node: str, method: str, body: bytes, timeout_ms: int) -> bytes:
        assert (node, timeout_ms > 0) == ("n2", True)
        return await n2.request_handlers()[method]("n1", body)

    n1 = FoldRouter(fixture.folds, node="n1", leaders=Routes(leaders), rpc=FakeRpc(request))
    asked = FoldRequest(FoldKind.OBJECT_STATS, FoldScope(segments=(0, 1 << 19)))
    assert await n1.page(PARTITION, asked) == await n2.page(PARTITION, asked)
    with pytest.raises(NotReady, match="no leader"):
        await n1.page(99, asked)
    leaders[98] = "n1"
    with pytest.raises(NotLeader):
        await n1.page(98, asked)


class Routes(Leaders):
    """Leaders by partition."""

    def __init__(self, leaders: Mapping[int, str | None]) -> None:
        self._leaders = leaders

    def leader(self, partition: int) -> str | None:
        """See Leaders."""
        return self._leaders.get(partition)


async def test_tombstones_come_with_their_clocks_for_riaks_tools(fixture: FoldFixture) -> None:
    """The same keys as find-tombs finds, each with the clock of its row; nodes exchange them."""
    pages = await fixture.all_pages(FoldRequest(FoldKind.TOMB_CLOCKS, FoldScope()))
    assert {(one.bucket, one.key): one.clock for page in pages for one in page.found} == {
        fixture.names[n]: b"clock-%d" % n for n in range(0, 300, 10)
    }
    assert [decode_page(encode_page(page)) for page in pages] == pages


async def test_statistics_for_riaks_tools_count_every_key(fixture: FoldFixture) -> None:
    """Tombstones are objects there, and sizes are by powers of ten; zero bytes count as one."""
    pages = await fixture.all_pages(FoldRequest(FoldKind.KEY_STATS, FoldScope()))
    assert sum(page.objects for page in pages) == sum(page.matched for page in pages) == 300
    assert sum(page.tombstones for page in pages) == 30
    assert sum(page.bytes for page in pages) == sum(100 * n for n in range(300))
    sizes, siblings = Counter[int](), Counter[int]()
    for page in pages:
        sizes.update(page.sizes)
        siblings.update(page.siblings)
    assert sizes == {0: 1, 2: 9, 3: 90, 4: 200}
    assert siblings == {1: 75, 2: 75, 3: 75, 4: 75}


@pytest.mark.parametrize("bits", [12, 20])
async def test_riaks_segments_select_the_keys_that_a_riak_has_there(fixture: FoldFixture, bits: int) -> None:
    """By Riak's own hash of type, bucket and key, for reads and for acts; together with other bounds."""
    leaves = (1 << bits) - 1
    wanted = [fixture.names[n] for n in (1, 2, 33, 150)]
    chosen = RiakSegments(bits, tuple(segment_id(b"default", *name) & leaves for name in wanted))
    assert await fixture.found(FoldKind.FIND_KEYS, FoldScope(riak_segments=chosen)) == sorted(wanted[:3])
    assert await fixture.found(FoldKind.FIND_KEYS, FoldScope(bucket=b"bb", riak_segments=chosen)) == [wanted[0]]
    assert await fixture.found(FoldKind.FIND_KEYS, FoldScope(riak_segments=RiakSegments(bits, ()))) == []
    await fixture.all_pages(FoldRequest(FoldKind.ERASE_KEYS, FoldScope(riak_segments=chosen)))
    assert sorted((key.bucket, key.key) for key, _ in fixture.actions.erased) == sorted(wanted[:3])
    asked = FoldRequest(FoldKind.REAP_TOMBS, FoldScope(b"a", riak_segments=chosen))
    assert decode_request(encode_request(3, asked)) == (3, asked)
    with pytest.raises(CodecError):
        decode_request(
            encode_request(3, FoldRequest(FoldKind.REAP_TOMBS, FoldScope(riak_segments=RiakSegments(99, ()))))
        )


async def test_all_keys_come_with_their_clocks_for_a_riaks_full_sync(fixture: FoldFixture) -> None:
    """Tombstones, too: a Riak's trees have them until they are reaped."""
    pages = await fixture.all_pages(FoldRequest(FoldKind.KEY_CLOCKS, FoldScope(b"bb")))
    assert {(one.bucket, one.key): one.clock for page in pages for one in page.found} == {
        fixture.names[n]: b"clock-%d" % n for n in range(1, 300, 3)
    }
    assert [decode_page(encode_page(page)) for page in pages] == pages


async def test_the_leaves_of_a_riaks_tree_add_up_over_the_pages(
    fixture: FoldFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of all keys whose clock can be read, in the size asked for, whatever the size of the pages; nodes
    exchange them. The clocks of the fixture's own keys are none."""
    monkeypatch.setattr(folds, "ROWS_MAX", 7)
    monkeypatch.setattr(folds, "FOUND_MAX", 3)
    clocks = {n: ((b"a" * 20, n, 1_700_000_000),) for n in range(1, 20)}
    entries = [
        make_entry(
            EntryKind.DATA, 1, 299 + n, request_id=b"", origin=CLUSTER, time_ms=n, key_hash=key_hash(b"t", b"%d" % n),
            bucket=b"t", key=b"%d" % n, payload=b"x",
            row=encode_key_row(Summary(encode_clock(clock), 5, 1, 1, 1, n % 2 == 0), 299 + n),
        )
        for n, clock in clocks.items()
    ]  # fmt: skip
    fixture.store.write([PartitionStep(PARTITION, entries)])
    for scope, unread in ((FoldScope(b"t"), 0), (FoldScope(), 300)):
        asked = FoldRequest(FoldKind.RIAK_TREE, scope, tree=RiakTreeShape(4, 77))
        pages = await fixture.all_pages(asked)
        assert [decode_page(encode_page(page)) for page in pages] == pages
        assert not any(page.found for page in pages)
        found, expected = [0] * 16, [0] * 16
        for page in pages:
            for leaf, change in page.leaves.items():
                found[leaf] ^= change
        for n, clock in clocks.items():
            segment, names = place_of(b"default", b"t", b"%d" % n)
            expected[segment & 15] ^= names ^ phash2_of_clock(clock, 77)
        assert found == expected
        assert sum(page.refused[UNREADABLE] for page in pages) == unread
        assert decode_request(encode_request(3, asked)) == (3, asked)
    for wrong in (
        asked._replace(tree=None),
        asked._replace(tree=RiakTreeShape(33)),
        FoldRequest(FoldKind.KEY_CLOCKS, FoldScope(), tree=RiakTreeShape(4)),
    ):
        with pytest.raises(CodecError):
            decode_request(encode_request(3, wrong))
    with pytest.raises(CodecError, match="GET /rangetrees"):
        parse_fold_request({"kind": "riak-tree"})


def test_requests_and_pages_have_the_bytes_of_version_1() -> None:
    """Nodes of earlier versions exchange the same bytes."""
    request = FoldRequest(
        FoldKind.REPL_KEYS, FoldScope(b"a", b"b", None, (1, 5), 3, 1 << 40, 5, None), FoldCursor(7, b"n"), "q", True
    )
    scope = [b"a", b"b", None, [1, 5], 3, 1 << 40, 5, None]
    assert encode_request(70_000, request) == msgpack.packb([1, 70_000, "repl-keys", scope, [7, b"n"], "q", True])
    page = Page(
        FoldCursor(9, b"x" * 300), 5, 4, [FoldMatch(b"b", b"k", 2, 70_000, 1 << 41, "note")], 3,
        Counter({"why": 2}), Counter({b"b": 1}), 6, 7, 1 << 33, Counter({8: 1}), Counter({1: 300}),
    )  # fmt: skip
    fields = [1, [9, b"x" * 300], 5, 4, [[b"b", b"k", 2, 70_000, 1 << 41, "note"]], 3, {"why": 2}, {b"b": 1}]
    data = msgpack.packb([*fields, [6, 7, 1 << 33], {8: 1}, {1: 300}])
    assert encode_page(page) == data
    assert decode_page(data) == page
    assert decode_page(encode_page(Page())) == Page()


async def test_questions_and_pages_survive_the_wire(fixture: FoldFixture) -> None:
    """Malformed requests and pages are refused with a message that says what is valid."""
    asked = FoldRequest(
        FoldKind.FIND_KEYS, FoldScope(b"a", b"b", None, (1, 5), 3, 4, 5, None), FoldCursor(7, b"n"), "", True
    )
    assert decode_request(encode_request(3, asked)) == (3, asked)
    page = await fixture.folds.page(PARTITION, FoldRequest(FoldKind.FIND_KEYS, FoldScope()))
    assert decode_page(encode_page(page)) == page
    for bad in (b"", b"\x90", encode_page(page)[:-1], encode_request(3, asked)):
        with pytest.raises(CodecError):
            decode_page(bad)
    row = page_document(page)
    assert row["next"] is not None
    assert parse_fold_request({"kind": "find-keys", "next": row["next"]}).cursor == page.next
    assert parse_fold_request({"kind": "erase-keys"}).dry
    assert not parse_fold_request({"kind": "erase-keys", "dry_run": False}).dry
    assert parse_fold_request({"kind": "find-keys", "bucket": text_of(b"\xff\x00%")}).scope.bucket == b"\xff\x00%"
    for wish in (
        {"kind": "burn"}, {"kind": "repl-keys"}, {"kind": "find-keys", "key_from": "a"},
        {"kind": "find-keys", "since_ms": "x"}, {"kind": "find-keys", "next": {"segment": 1}},
        {"kind": "find-keys", "since_ms": 10**30}, {"kind": "find-keys", "next": {"segment": 10**30, "name": ""}},
        {"kind": "find-keys", "next": {"segment": float("inf"), "name": ""}},
        {"kind": "erase-keys", "before_ms": 0, "dry_run": False}, {"kind": "find-keys", "since_ms": 5, "before_ms": 0},
        {"kind": "repair-keys", "bucket": "b", "key_from": "z", "key_to": "a"},
        {"kind": "find-keys", "bucket": "b", "key_from": "a", "key_to": "a"},
        {"kind": "repair-keys", "segment_from": 5, "segment_to": 5}, {"kind": "find-keys", "segment_from": 1 << 20},
        {"kind": "object-stats", "since_ms": 5, "before_ms": 5},
    ):  # fmt: skip
        with pytest.raises(CodecError):
            parse_fold_request(wish)


async def test_folds_take_turns_and_too_many_get_overloaded(fixture: FoldFixture) -> None:
    """If ten times as many pages are requested as may be read at once, one is read at a time, a bounded number waits,
    and the others get Overloaded at once. All that waited are answered."""

    async def request_many() -> list[Page | BaseException]:
        reading, most = 0, 0
        read = fixture.folds._read

        def slowly(led: LedPartition, asked: FoldRequest, bucket_type: bytes) -> object:
            nonlocal reading, most
            reading += 1
            most = max(most, reading)
            time.sleep(0.005)
            reading -= 1
            return read(led, asked, bucket_type)

        fixture.folds._read = slowly  # type: ignore[assignment, method-assign]
        asked = FoldRequest(FoldKind.OBJECT_STATS, FoldScope())
        pages = await asyncio.gather(
            *(fixture.folds.page(PARTITION, asked) for _ in range(10 * folds.WAITING_MAX)), return_exceptions=True
        )
        assert most == folds.READS_AT_ONCE
        assert (await fixture.folds.page(PARTITION, asked)).scanned == 7, "there is room again"
        return pages

    pages = await request_many()
    assert sum(isinstance(page, Page) for page in pages) == folds.WAITING_MAX
    assert {str(page) for page in pages if not isinstance(page, Page)} == {
        f"{folds.WAITING_MAX} pages of folds wait on this node; ask again"
    }


async def test_a_page_whose_partition_has_moved_meanwhile_is_none(fixture: FoldFixture) -> None:
    """If the leadership moves while a request waits or is read, the rows may be incomplete. The caller is told to ask
    the new leader, and no action is taken."""

    leads = True
    read, led = fixture.folds._read, fixture.folds._replicas.led_partition

    def moved(place: LedPartition, asked: FoldRequest, bucket_type: bytes) -> object:
        nonlocal leads
        leads = False
        return read(place, asked, bucket_type)

    fixture.folds._read = moved  # type: ignore[assignment, method-assign]
    fixture.folds._replicas = FakeReplicas(led_partition=lambda partition: led(partition) if leads else None)
    for kind in (FoldKind.OBJECT_STATS, FoldKind.REPL_KEYS):
        leads = True
        with pytest.raises(NotLeader):
            await fixture.folds.page(PARTITION, FoldRequest(kind, FoldScope(), queue="to-west"))
    assert not fixture.actions.pushed


@pytest.mark.parametrize("kind", [kind for kind in FoldKind if kind is not FoldKind.REPAIR_KEYS])
async def test_a_damaged_key_row_ends_no_fold(fixture: FoldFixture, kind: FoldKind) -> None:
    """Its key is omitted and counted in `refused`, and its segment is reported for repair; all other keys are
    processed. A row outside the scope is not reported."""
    bucket, key = fixture.names[5]
    scope = FoldScope(size_over=1) if kind is FoldKind.FIND_KEYS else FoldScope()
    before = sum(page.matched for page in await fixture.all_pages(FoldRequest(kind, scope, queue="to-west", dry=True)))
    name = rows.prefixes(PARTITION).key + rows.segment_name(segment_of(key_hash(bucket, key)))
    fixture.store._db.put(name + rows.bucket_head(bucket) + key, b"\xc1 no row")
    pages = await fixture.all_pages(FoldRequest(kind, scope, queue="to-west", dry=True))
    assert sum(page.refused[UNREADABLE] for page in pages) == 1
    assert sum(page.matched for page in pages) == before - (
        0 if kind in (FoldKind.FIND_TOMBS, FoldKind.TOMB_CLOCKS, FoldKind.REAP_TOMBS) else 1
    )
    assert fixture.damaged == [(PARTITION, segment_of(key_hash(bucket, key)))]
    fixture.damaged.clear()
    elsewhere = await fixture.all_pages(
        FoldRequest(kind, scope._replace(bucket=fixture.names[0][0]), queue="to-west", dry=True)
    )
    assert not any(page.refused for page in elsewhere)
    assert not fixture.damaged

"""Ordered listings, and unreadable key rows in listings and in the scan for tombstones."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from isthmus.repl.coordinator import kv_rpc, listing, tombstone_reaper
from isthmus.repl.coordinator.coordinator import Coordinator
from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.entry import encode_key_row
from isthmus.repl.model.errors import CodecError, Corruption, NotReady
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE, Content, Object, encode_with_summary, write
from isthmus.repl.model.properties import FixedProperties
from isthmus.repl.model.requests import WriteRequest
from isthmus.repl.model.vclock import EMPTY, actor_of
from isthmus.repl.store.port import ListedKey
from tests.support.coordinator_cluster import cluster


def row(offset: int, content: Content) -> bytes:
    """The key row of an object with one write."""
    made: Object = write(None, EMPTY, content, (actor_of(b"A" * 16, 1), offset + 1), 1_000)
    return encode_key_row(encode_with_summary(made)[1], offset)


SOUND = ListedKey(b"b", b"a", row(0, Content(b"v")))
DAMAGED = ListedKey(b"b", b"k", b"spoiled")
DELETED = ListedKey(b"b", b"z", row(2, TOMBSTONE))


def test_a_listing_with_a_damaged_row_names_it() -> None:
    """It is unknown whether the key has a value, so the listing would be wrong with it and without it. The refusal
    names the key and the command that repairs it."""
    assert listing._page([SOUND, DELETED], b"b", None).names == [b"a"]
    with pytest.raises(Corruption, match=r"key row of b'b'/b'k' cannot be read.*repair-keys --mend"):
        listing._page([SOUND, DAMAGED, DELETED], b"b", None)


@pytest.mark.logs_errors("reap.row_unreadable")
def test_a_damaged_row_keeps_no_tombstone_behind_it_from_being_reaped() -> None:
    """The scan of the keys continues after it; otherwise it would restart for ever without progress."""

    def keys(*_: object) -> Any:
        yield from (SOUND, DAMAGED, DELETED)

    kind = SimpleNamespace(of=lambda _bucket: SimpleNamespace(reap_after_ms=0, repl_reap=False))
    changes = SimpleNamespace(list_keys=keys, changes=lambda *_: [])
    reaper: Any = SimpleNamespace(_properties=FixedProperties(kind), _runtime=SimpleNamespace(store=changes))
    reaper._tombstone_of = lambda *given: tombstone_reaper.Reaper._tombstone_of(reaper, *given)
    found, after = tombstone_reaper.Reaper._page(reaper, SimpleNamespace(id=0, bucket_type=b"default"), None)  # type: ignore[arg-type]
    assert ([one.key for one in found], after) == ([b"z"], None)


async def ordered(
    coordinator: Coordinator, bucket: bytes | None, prefix: bytes = b"", after: bytes = b""
) -> list[bytes]:
    """A whole ordered listing."""
    listing = coordinator.list_in_order(b"default", bucket, prefix, after, None)
    return [name async for batch in listing for name in batch]


async def pages(coordinator: Coordinator, bucket: bytes | None, prefix: bytes, limit: int) -> list[bytes]:
    """An ordered listing in pages of `limit` names."""
    found: list[bytes] = []
    while True:
        after = found[-1] if found else b""
        listing = coordinator.list_in_order(b"default", bucket, prefix, after, limit)
        page = [name async for batch in listing for name in batch]
        assert len(page) <= limit
        found += page
        if len(page) < limit:
            return found


def older(handlers: dict[str, Any]) -> None:
    """Makes a node behave like the version before ordered listings."""
    page = handlers[kv_rpc.LIST]

    async def serve(node: str, body: bytes) -> bytes:
        if len(msgpack.unpackb(body)) != 4:
            raise CodecError("not a request for a page of a listing")
        answer: bytes = await page(node, body)
        return answer

    handlers[kv_rpc.LIST] = serve


@pytest.mark.virtual_time
@pytest.mark.parametrize("version", ["same", "older"])
@pytest.mark.parametrize("page_bytes", [40, 10_000])
async def test_an_ordered_listing_merges_all_partitions(
    monkeypatch: pytest.MonkeyPatch, page_bytes: int, version: str
) -> None:
    """Keys and buckets of four partitions at two nodes are in order of their bytes, each once, without deleted ones:
    whole, behind any name, by prefix, and in pages of any size; also if the other node is of an older version."""
    monkeypatch.setattr(listing, "BATCH_KEYS", 7)
    monkeypatch.setattr(listing, "PAGE_BYTES", page_bytes)
    async with cluster() as c:
        if version == "older":
            older(c.wire.handlers["n2"])
        keys = [Key(b"default", b"b%d" % (n % 3), b"k%d" % n if n % 2 else b"\xff%d" % n) for n in range(90)]
        keys += [Key(b"default", b"b", b"k"), Key(b"default", b"c\0", b"k"), Key(b"default", b"gone", b"k")]
        await c.coordinators["n1"].write_batch([WriteRequest(key, Content(b"v")) for key in keys])
        gone = [keys[-1], *keys[0:90:9]]
        await c.coordinators["n1"].write_batch([WriteRequest(key, TOMBSTONE) for key in gone])
        left = [key for key in keys if key not in gone]
        for bucket in (b"b0", b"b1", None):
            names = sorted({key.bucket if bucket is None else key.key for key in left if bucket in (None, key.bucket)})
            for node in c.coordinators.values():
                assert await ordered(node, bucket) == names
                for prefix in (b"b", b"k", b"k4", b"\xff", b"\xff1", b"x", b"b1", b"c\0"):
                    expected = [name for name in names if name.startswith(prefix)]
                    assert await ordered(node, bucket, prefix) == expected
                    assert await pages(node, bucket, prefix, 3) == expected
            for at, name in enumerate(names):
                assert await ordered(c.coordinators["n1"], bucket, b"", name) == names[at + 1 :]
            assert await pages(c.coordinators["n2"], bucket, b"", 1) == names
        assert await ordered(c.coordinators["n1"], b"none") == []


@pytest.mark.virtual_time
async def test_a_page_of_few_names_reads_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit is sent to the other nodes, which return about that many names; a listing of buckets reads one row for
    each."""
    async with cluster() as c:
        keys = [Key(b"default", b"b%d" % (n % 5), b"k%d" % n) for n in range(1_000)]
        await c.coordinators["n1"].write_batch([WriteRequest(key, Content(b"v")) for key in keys])
        answered = 0
        page = c.wire.handlers["n2"][kv_rpc.LIST]

        async def counted(node: str, body: bytes) -> bytes:
            nonlocal answered
            answer: bytes = await page(node, body)
            answered += len(kv_rpc.decode_list_page(answer).names)
            return answer

        c.wire.handlers["n2"][kv_rpc.LIST] = counted
        read = 0
        is_tombstone = listing._is_tombstone

        def looked_at(listed: ListedKey) -> bool:
            nonlocal read
            read += 1
            return is_tombstone(listed)

        monkeypatch.setattr(listing, "_is_tombstone", looked_at)
        found = [n async for b in c.coordinators["n1"].list_in_order(b"default", b"b1", b"", b"", 4) for n in b]
        assert found == sorted(key.key for key in keys if key.bucket == b"b1")[:4]
        assert answered <= 20
        assert read <= 40
        read = 0
        assert await ordered(c.coordinators["n1"], None) == [b"b%d" % n for n in range(5)]
        assert read == 20, "a row for each bucket in each of four partitions"


@pytest.mark.virtual_time
@pytest.mark.parametrize("wanted", [1, 3])
async def test_a_page_is_not_kept_waiting_for_names_behind_it(monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
    """If the last wanted name is also the last of a partition's page, no further page is read: one for each of four
    partitions, and one for each name before the last."""
    monkeypatch.setattr(listing, "PAGE_BYTES", 1)
    async with cluster() as c:
        await c.coordinators["n1"].write_batch(
            [WriteRequest(Key(b"default", b"b", b"k%d" % n), Content(b"v")) for n in range(100)]
        )
        filled = 0
        fill = listing.Listing._fill

        async def counted(of: listing.Listing, source: listing._OrderedNames) -> None:
            nonlocal filled
            filled += 1
            await fill(of, source)

        monkeypatch.setattr(listing.Listing, "_fill", counted)
        names = c.coordinators["n1"].list_in_order(b"default", b"b", b"", b"", wanted)
        assert len([name async for batch in names for name in batch]) == wanted
        assert filled == 4 + wanted - 1


@pytest.mark.virtual_time
async def test_an_ordered_listing_is_stable_under_writes_and_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that exist all the time are listed exactly once, in order, while others are added and deleted on both sides
    of the listing's position, and leadership moves between pages."""
    monkeypatch.setattr(listing, "BATCH_KEYS", 5)
    async with cluster(("n1", "n2", "n3", "n1"), nodes=("n1", "n2", "n3")) as c:
        stays = [Key(b"default", b"b", b"k%03d" % n) for n in range(0, 200, 2)]
        passing = [Key(b"default", b"b", b"k%03d" % n) for n in range(1, 200, 2)]
        writer = c.coordinators["n1"]
        await writer.write_batch([WriteRequest(key, Content(b"v")) for key in (*stays, *passing[::2])])
        found: list[bytes] = []
        turn = 0
        async for batch in c.coordinators["n2"].list_in_order(b"default", b"b", b"", b"", None):
            found += batch
            turn += 1
            await writer.write_batch(
                [WriteRequest(key, Content(b"w") if turn % 2 else TOMBSTONE) for key in passing[turn::7]]
            )
            c.move(turn % 4, ("n1", "n2", "n3")[turn % 3])
        assert turn > 10
        assert found == sorted(set(found))
        assert {key.key for key in stays} <= set(found) <= {key.key for key in (*stays, *passing)}


@pytest.mark.virtual_time
async def test_an_ordered_listing_without_a_leader_is_refused() -> None:
    """After the wait for a leader the refusal is the partition's, and nothing is left under way."""
    async with cluster() as c:
        await c.coordinators["n1"].write(WriteRequest(Key(b"default", b"b", b"k"), Content(b"v")))
        c.move(1, None)
        with pytest.raises(NotReady):
            await ordered(c.coordinators["n1"], b"b")
        with pytest.raises(UnknownBucketType):
            await anext(c.coordinators["n1"].list_in_order(b"no", b"b", b"", b"", None))


def test_a_page_skips_tombstones_in_bounded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of a partition full of tombstones reads at most BATCH_KEYS rows, and returns the position to continue
    from; a bucket whose first keys are deleted is found."""
    monkeypatch.setattr(listing, "BATCH_KEYS", 3)
    rows = [ListedKey(b"b", b"%d" % n, DELETED.row) for n in range(5)] + [ListedKey(b"b", b"9", SOUND.row)]

    def of(_partition: int, _bucket: bytes | None, after: Any, _prefix: bytes) -> Iterator[ListedKey]:
        behind = after and (after[0], b"\xff" if after[1] is None else after[1])
        yield from (one for one in rows if behind is None or one[:2] > behind)

    store: Any = SimpleNamespace(list_keys=of)
    ask = kv_rpc.ListAsk(0, None, None, b"", 10, 1_000)
    first = listing._read_page(store, ask)
    assert first == ([], (b"b", b"2"))
    assert listing._read_page(store, ask._replace(after=first.after)) == ([b"b"], (b"b", None))
    assert listing._read_page(store, ask._replace(after=(b"b", None))) == ([], None)

"""Reads: which entries they see, when they wait, and the size of one answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from isthmus.repl.coordinator.routing import UnknownBucketType
from isthmus.repl.model.errors import IsthmusError, NotLeader, NotReady, Overloaded, TooFewInSync
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE, Content, decode_object
from isthmus.repl.model.requests import Isolation, WriteRequest
from tests.support.coordinator_cluster import Cluster, cluster, key_of, keys_of

pytestmark = pytest.mark.virtual_time

COMMITTED, UNCOMMITTED = Isolation.COMMITTED, Isolation.UNCOMMITTED


def values(data: object) -> list[bytes] | None:
    if data is None:
        return None
    assert isinstance(data, bytes), data
    return sorted(s.value for s in decode_object(data).live)


def count(c: Cluster, node: str, metric: str, label: str) -> float:
    return next(v for n, labels, v in c.coordinators[node].metrics() if n == metric and label in labels.values())


async def all_of(batches: AsyncIterator[list[bytes]]) -> list[bytes]:
    return [name async for batch in batches for name in batch]


async def test_uncommitted_reads_see_the_log_and_committed_ones_what_is_applied() -> None:
    """At every node, only uncommitted reads return an entry that is not applied; they need no confirmation."""

    async with cluster() as c:
        for node in ("n1", "n2"):
            key = keys_of(1, 2)[node == "n2"]
            asked, leader = c.coordinators[node], c.runtimes["n2"]
            await asked.write(WriteRequest(key, Content(b"old")))
            leader.hold = True
            clock = decode_object(await asked.get(key) or b"").clock
            task = asyncio.create_task(asked.write(WriteRequest(key, Content(b"new"), clock)))
            while not leader.partitions[1].pending:
                await asyncio.sleep(0.001)
            leader.confirmed.clear()
            assert values(await asked.get(key, UNCOMMITTED)) == [b"new"]
            assert [values(v) for v in await asked.get_batch([key], UNCOMMITTED, 1_000)] == [[b"new"]]
            assert leader.confirmed == []
            assert values(await asked.get(key, COMMITTED)) == [b"old"]
            assert values(await asked.get(key)) == [b"old"]
            assert leader.confirmed == [1, 1]
            assert not task.done()
            leader.hold = False
            leader.apply(leader.partitions[1])
            await task
            assert values(await asked.get(key)) == [b"new"]
        assert count(c, "n1", "isthmus_reads_total", "uncommitted") == 2
        assert count(c, "n1", "isthmus_reads_total", "committed") == 4


async def test_the_default_isolation_is_the_nodes_setting() -> None:
    """A read without an isolation uses the setting of the node that receives it, also if it is forwarded."""

    async with cluster(read_isolation="uncommitted") as c:
        await c.coordinators["n1"].get(key_of(1))
        await c.coordinators["n1"].get_batch([key_of(0), key_of(1)], None, 1_000)
        assert c.runtimes["n1"].confirmed == c.runtimes["n2"].confirmed == []
        await c.coordinators["n1"].get(key_of(1), COMMITTED)
        assert c.runtimes["n2"].confirmed == [1]


async def test_a_committed_read_waits_for_its_confirmation_and_reads_afterwards() -> None:
    """The read returns entries applied during the confirmation; a cancelled reader does not affect others."""

    async with cluster() as c:
        leader, asked = c.runtimes["n1"], c.coordinators["n1"]
        leader.reads = []
        tasks = [asyncio.create_task(asked.get(key_of(0))) for _ in range(2)]
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in tasks)
        await asked.write(WriteRequest(key_of(0), Content(b"v")))
        tasks[0].cancel()
        await asyncio.sleep(0)
        assert [confirmed.cancelled() for confirmed in leader.reads] == [True, False]
        leader.reads[1].set_result(None)
        assert values(await tasks[1]) == [b"v"]


async def test_a_read_that_need_not_wait_is_answered_at_once() -> None:
    """A confirmed read of a key led here needs no coroutine; one that is not confirmed yet, led elsewhere, without a
    leader, or of an unknown type does. All are counted like `read`, and so are their errors."""

    async with cluster(("n1", "n2", None, "n1")) as c:
        asked, runtime = c.coordinators["n1"], c.runtimes["n1"]
        await asked.write_batch([WriteRequest(key_of(p), Content(b"v")) for p in (0, 1)])
        assert values(asked.start_read(key_of(0))) == [b"v"]
        assert values(asked.start_read(key_of(0), UNCOMMITTED)) == [b"v"]
        assert asked.start_read(key_of(3)) is None
        runtime.read_refusals = [TooFewInSync("cannot tell")]
        with pytest.raises(TooFewInSync, match="cannot tell"):
            asked.start_read(key_of(0))
        runtime.read_refusals = [NotReady("not yet")]
        moved = asked.start_read(key_of(0))
        runtime.reads = []
        unconfirmed = asked.start_read(key_of(0))
        runtime.reads.pop().set_result(None)
        refused = asked.start_read(key_of(0))
        runtime.reads.pop().set_exception(TooFewInSync("cannot tell"))
        runtime.reads = None
        away = asked.start_read(key_of(1))
        leaderless = asked.start_read(key_of(2))
        unknown = asked.start_read(key_of(0)._replace(bucket_type=b"none"))
        assert all(asyncio.iscoroutine(read) for read in (moved, unconfirmed, refused, away, leaderless, unknown))
        assert values(await moved) == values(await unconfirmed) == [b"v"]
        assert (await away).leader == "n2"
        with pytest.raises(TooFewInSync, match="cannot tell"):
            await refused
        with pytest.raises(NotReady, match="no serving leader"):
            await leaderless
        with pytest.raises(UnknownBucketType, match="'none' does not exist"):
            await unknown
        assert count(c, "n1", "isthmus_requests_total", "get") == 10
        assert count(c, "n1", "isthmus_requests_total", "refused") == 3
        assert count(c, "n1", "isthmus_reads_total", "committed") == 9


async def test_a_batch_is_confirmed_once_a_partition() -> None:
    """For any number of keys, each partition's leader confirms once, all concurrently."""

    async with cluster() as c:
        keys = [key for p in range(4) for key in keys_of(p, 30)]
        await c.coordinators["n1"].write_batch([WriteRequest(key, Content(key.key)) for key in keys])
        c.runtimes["n1"].reads = reads = []
        task = asyncio.create_task(c.coordinators["n1"].get_batch(keys, None, 1_000_000))
        await asyncio.sleep(0.01)
        assert len(reads) == 2
        for confirmed in reads:
            confirmed.set_result(None)
        assert [values(v) for v in await task] == [[key.key] for key in keys]
        assert sorted(c.runtimes["n1"].confirmed) == [0, 2]
        assert sorted(c.runtimes["n2"].confirmed) == [1, 3]
        assert [r[2] for r in c.wire.requests] == ["kv.write", "kv.get"]


async def test_a_refused_confirmation_is_retried_or_returned() -> None:
    """The read waits while leadership moves and returns any other refusal; in a batch, only for the keys of that
    partition."""

    async with cluster() as c:
        for node in ("n1", "n2"):
            c.runtimes["n1"].read_refusals = [NotReady("not yet"), NotLeader("no more", "n2")]
            assert await c.coordinators[node].get(key_of(0)) is None
            c.runtimes["n1"].read_refusals = [TooFewInSync("cannot tell")]
            with pytest.raises(TooFewInSync, match="cannot tell"):
                await c.coordinators[node].get(key_of(0))
            c.runtimes["n1"].read_refusals = [TooFewInSync("cannot tell")]
            results = await c.coordinators[node].get_batch([key_of(0), key_of(1)], None, 1_000)
            assert isinstance(results[0], TooFewInSync)
            assert results[1] is None


@pytest.mark.parametrize("node", ["n1", "n2"])
async def test_an_answer_holds_what_fits(node: str) -> None:
    """Objects beyond the limit are refused as overloaded, one is always returned, and requesting the rest repeatedly
    ends."""

    async with cluster(("n1",) * 4) as c:
        keys = keys_of(1, 6)
        await c.coordinators["n1"].write_batch([WriteRequest(key, Content(bytes(1_000))) for key in keys])
        wanted, rounds = list(keys), 0
        while wanted:
            results = await c.coordinators[node].get_batch(wanted, None, 2_500)
            assert 1 <= sum(isinstance(r, bytes) for r in results) <= 2
            assert all(isinstance(r, bytes | Overloaded) for r in results)
            wanted = [key for key, r in zip(wanted, results, strict=True) if isinstance(r, IsthmusError)]
            rounds += 1
        assert rounds >= 3
        (large,) = await c.coordinators[node].get_batch(keys[:1], None, 1)
        assert isinstance(large, bytes)


async def test_more_than_one_message_holds_comes_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer to another node is cut to its limit, and the caller requests the rest."""
    monkeypatch.setattr("isthmus.repl.coordinator.reads.ANSWER_BYTES", 3_000)

    async with cluster() as c:
        keys = keys_of(1, 10)
        await c.coordinators["n2"].write_batch([WriteRequest(key, Content(bytes(1_000))) for key in keys])
        results = await c.coordinators["n1"].get_batch(keys, None, 1_000_000)
        assert [values(r) for r in results] == [[bytes(1_000)]] * 10
        assert len(c.wire.requests) >= 5
        c.wire.requests.clear()
        results = await c.coordinators["n1"].get_batch(keys, None, 3_000)
        assert sum(isinstance(r, Overloaded) for r in results) >= 7
        assert len(c.wire.requests) <= 2
        big = Key(b"default", b"b", keys[0].key)
        await c.coordinators["n2"].write(WriteRequest(big, Content(bytes(5_000)), ()))
        assert len(await c.coordinators["n1"].get(big) or b"") > 6_000
        written = await c.coordinators["n1"].write(WriteRequest(keys[1], Content(bytes(5_000))))
        assert written.payload == b""


async def test_listings_cross_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and buckets of all partitions are listed once, without tombstones; other nodes' names come in bounded
    pages."""
    monkeypatch.setattr("isthmus.repl.coordinator.listing.BATCH_KEYS", 10)
    monkeypatch.setattr("isthmus.repl.coordinator.listing.PAGE_BYTES", 30)

    async with cluster() as c:
        keys = [key for p in range(4) for key in keys_of(p, 25)]
        await c.coordinators["n1"].write_batch([WriteRequest(key, Content(b"v")) for key in keys])
        await c.coordinators["n1"].write(WriteRequest(keys[30], TOMBSTONE))
        other = Key(b"default", b"other", b"k")
        await c.coordinators["n1"].write(WriteRequest(other, Content(b"v")))
        c.wire.requests.clear()
        expected = sorted(key.key for key in keys if key is not keys[30])
        for node in ("n1", "n2"):
            assert sorted(await all_of(c.coordinators[node].list_keys(b"default", b"b"))) == expected
            assert sorted(await all_of(c.coordinators[node].list_buckets(b"default"))) == [b"b", b"other"]
        assert len(c.wire.requests) > 20
        assert {r[2] for r in c.wire.requests} == {"kv.list"}
        assert await all_of(c.coordinators["n1"].list_keys(b"default", b"none")) == []


async def test_a_listing_goes_on_with_the_next_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """If leadership moves between two pages, to another node or to this one, no key is lost or repeated."""
    monkeypatch.setattr("isthmus.repl.coordinator.listing.BATCH_KEYS", 5)

    async with cluster(("n2",) * 4, nodes=("n1", "n2", "n3")) as c:
        keys = keys_of(0, 40)
        await c.coordinators["n2"].write_batch([WriteRequest(key, Content(b"v")) for key in keys])
        listing = c.coordinators["n1"].list_keys(b"default", b"b")
        found = [*await anext(listing), *await anext(listing)]
        c.move(0, None)
        asyncio.get_running_loop().call_later(0.02, c.move, 0, "n3")
        found += await anext(listing)
        c.wire.breaking.add("n3")
        asyncio.get_running_loop().call_later(0.02, c.move, 0, "n1")
        found += [name async for batch in listing for name in batch]
        assert sorted(found) == sorted(key.key for key in keys)

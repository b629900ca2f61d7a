"""Properties that take effect on all nodes at once, and reaps that reach every replica, also one that was away
(R-REAP)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from isthmus.repl.controller.bucket_properties import PropertyCache, PropertyScope, change_properties
from isthmus.repl.controller.stored_setting import Setting
from isthmus.repl.coordinator.tombstone_reaper import Reaper
from isthmus.repl.coordinator.tombstone_writes import TombstoneWrites
from isthmus.repl.coordinator.write_batch import WriteLimits
from isthmus.repl.model.errors import TooLarge
from isthmus.repl.model.keys import Key
from isthmus.repl.model.objects import TOMBSTONE, Content, decode_object
from isthmus.repl.model.properties import PLAIN, FixedProperties
from isthmus.repl.model.requests import WriteRequest
from tests.component.runtime.test_state_transfer import SMALL, follower_of, put, same_everywhere, trimmed_beyond
from tests.support.runtime_cluster import Cluster, Node, eventually

ClusterFactory = Callable[..., AbstractAsyncContextManager[Cluster]]


class NoTombstoneBarrier:
    """A barrier that no queue holds back: nothing is offered."""

    def replicates(self, _bucket_type: bytes, _bucket: bytes) -> bool:
        return False

    def blocked_by(self, _partition: int, _offset: int, _bucket_type: bytes, _bucket: bytes) -> str:
        return ""


class NoDifferences:
    """No full-sync found a difference."""

    def difference_of(self, _key: Key) -> str:
        """See UnrepairedDifferences."""
        return ""


def reaper_of(member: Node, pool: ThreadPoolExecutor) -> Reaper:
    return Reaper(
        member.runtime,
        TombstoneWrites(member.runtime, WriteLimits(1_000_000, 5, 3_000_000), FixedProperties(PLAIN)),
        links=member.links,
        routes=member.coordinator.routes,
        read_pool=pool,
        barrier=NoTombstoneBarrier(),
        differences=NoDifferences(),
        request_timeout_ms=10_000,
    )


async def delete(member: Node, name: bytes) -> None:
    await member.coordinator.write(WriteRequest(Key(b"default", b"b", name), TOMBSTONE))


async def test_a_property_set_at_one_node_counts_at_all(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """The bucket's own properties apply, whichever node receives a request and whichever leads."""

    async with start_cluster(tmp_path, partitions=3) as t:
        books = {}
        for node, member in t.members.items():
            book = books[node] = PropertyCache(member.metastore)
            await book.start()
            member.coordinator._properties = book
        changes = {
            "allow_mult": Setting(False, "ann", 1),
            "max_object_size": Setting(9, "ann", 1),
        }
        await change_properties(t.members["n2"].metastore, PropertyScope("default", b"b"), changes)
        await eventually(
            lambda: all(book.of_type(b"default").of(b"b").max_object_bytes == 9 for book in books.values())
        )
        for n, member in enumerate(t.members.values()):
            key = Key(b"default", b"b", b"k%d" % n)
            for value in (b"1", b"2"):
                written = await member.coordinator.write(WriteRequest(key, Content(value)))
            assert len(decode_object(written.payload).siblings) == 1
            with pytest.raises(TooLarge):
                await member.coordinator.write(WriteRequest(key, Content(bytes(10))))
            await member.coordinator.write(WriteRequest(key._replace(bucket=b"c"), Content(bytes(10))))
        for book in books.values():
            await book.stop()


async def test_every_replica_carries_out_a_reap(tmp_path: Path, start_cluster: ClusterFactory) -> None:
    """After the reap no replica holds anything of the key, restarted or not."""

    async with start_cluster(tmp_path, **SMALL) as t:
        with ThreadPoolExecutor(1) as pool:
            leader = await t.led()
            reaper = reaper_of(leader, pool)
            await put(leader, b"k", b"v")
            await delete(leader, b"k")
            assert (await reaper.ask(Key(b"default", b"b", b"k"))).outcome == "reaped"
            await put(leader, b"other", b"v")
            await same_everywhere(t)
            for member in t.members.values():
                assert [k.key for k in member.runtime.store.list_keys(0, None, None)] == [b"other"]
            away = await follower_of(t)
            await t.kill(away.node)
            leader = await t.led()
            await eventually(lambda: len(leader.partition().replica.record.isr) == 2)  # type: ignore[union-attr]
            reaper = reaper_of(leader, pool)
            await delete(leader, b"other")
            answer = await reaper.ask(Key(b"default", b"b", b"other"))
            assert (answer.outcome, f"replica {away.node} is not in sync" in answer.reason) == ("waits", True)


async def test_a_far_replica_that_missed_a_reap_takes_all_rows(
    tmp_path: Path, start_cluster: ClusterFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows do not show which keys were reaped; so a replica below the last reap takes all rows, and ends equal to the
    others."""
    monkeypatch.setattr(Reaper, "_obstacle", lambda *_: "")  # as if it had stopped just after the reap was proposed

    async with start_cluster(tmp_path, **SMALL) as t:
        with ThreadPoolExecutor(1) as pool:
            leader = await t.led()
            for n in range(10):
                await put(leader, b"k%d" % n, b"v")
            await delete(leader, b"k3")
            await t.level()
            away = await follower_of(t)
            end = away.partition().replica.leo
            await t.kill(away.node)
            leader = await t.led()
            reaper = reaper_of(leader, pool)
            await eventually(lambda: leader.partition().replica.ready)
            assert (await reaper.ask(Key(b"default", b"b", b"k3"))).outcome == "reaped"
            await trimmed_beyond(leader, end)
            back = await t.open(away.node)
            await same_everywhere(t)
            names = {k.key for k in back.runtime.store.list_keys(0, None, None)}
            assert b"k3" not in names
            assert b"k4" in names

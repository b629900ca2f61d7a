"""A metastore that was restored from a copy of before: what it forgot of queues, and partitions remember."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from isthmus.queues.queue_documents import AuditInfo
from tests.support.memory_metastore import MemoryEnsemble
from tests.support.queue_node import Home
from tests.support.queue_source import SINK, THIRD


def alive(test: Callable[[Home, Callable[[str, bytes | None], None]], Awaitable[None]]) -> None:
    """Run `test` with a node, and a way to put an older value back."""

    async def run() -> None:
        ensemble = MemoryEnsemble()
        home = Home(ensemble=ensemble)
        await home.start()

        def restore(what: str, value: bytes | None) -> None:
            found = ensemble.read(f"/queues/q/{what}")
            assert found is not None
            assert value is not None
            ensemble.set(f"/queues/q/{what}", value, found[1].version)

        await test(home, restore)
        await home.close()

    asyncio.run(run())


def value_of(home: Home, what: str) -> bytes:
    found = home.metastore._memory.ensemble.read(f"/queues/q/{what}")
    assert found is not None
    return found[0]


def told(home: Home) -> AuditInfo:
    return AuditInfo("ann", home.clock.wall_ms(), "")


async def all_stand(home: Home, cluster: bytes) -> None:
    machine = home.served()[0].machine
    await home.until(lambda: all(w.state.owner == cluster for w in machine.windows.values()))


def test_an_act_after_a_restore_is_obeyed_though_its_number_was_used() -> None:
    """Acts that were forgotten were obeyed; the next one is another, and every partition obeys it."""

    async def test(home: Home, restore: Callable[[str, bytes | None], None]) -> None:
        home.put(b"a")
        assert await home.drain() == [b"a"]
        await home.acts.place("q", ((3, 0),), told(home))
        assert await home.drain() == [b"a"]
        before = value_of(home, "decree")
        home.clock.skew_ms += 2_000
        await home.acts.place("q", ((3, 1 << 40),), told(home))
        await home.until(lambda: home.served()[0].machine.windows[3].state.command_version > 1)
        restore("decree", before)
        home.clock.skew_ms += 2_000
        await home.acts.place("q", ((3, 0),), told(home))
        await asyncio.sleep(0.1)
        assert await home.drain() == [b"a"]

    alive(test)


def test_a_queue_whose_owner_was_restored_serves_it() -> None:
    """Partitions stand under a later owner version than the metastore says: who owns the queue by the metastore gets a
    newer one, and changes go. It begins where the last CURSOR entry stood: what the other owner acknowledged settles
    nothing for it, so changes that it had may come again."""

    async def test(home: Home, restore: Callable[[str, bytes | None], None]) -> None:
        home.put(b"a")
        assert await home.drain() == [b"a"]
        before = value_of(home, "owner")
        await home.acts.release("q", 0, told(home))
        assert await home.drain(cluster=THIRD) == [b"a"]
        await all_stand(home, THIRD)
        restore("owner", before)
        await home.until(lambda: home.served()[0].stored.owner.cluster == SINK)
        home.put(b"b")
        assert await home.drain() == [b"a", b"b"]
        await all_stand(home, SINK)

    alive(test)


def test_a_queue_that_was_forgotten_and_is_registered_again_begins_where_it_is_told() -> None:
    """Its partitions have obeyed later decrees than the restored metastore knows of."""

    async def test(home: Home, restore: Callable[[str, bytes | None], None]) -> None:
        home.put(b"a")
        await home.acts.register("late", {}, 0, told(home))
        assert await home.drain(queue="late") == [b"a"]
        home.clock.skew_ms += 2_000
        await home.acts.clear("late", told(home))
        queue = home.queues.named("late")
        await home.until(
            lambda: all(w.state.command_version == queue.stored.command.version for w in queue.machine.windows.values())
        )
        ensemble = home.metastore._memory.ensemble
        for path in ("/queue-definitions", "/queues/late/decree"):
            found = ensemble.read(path)
            assert found is not None
            await home.metastore.delete(path, found[1].version)
        await home.until(lambda: "late" not in home.queues.machines())
        home.clock.skew_ms += 2_000
        await home.acts.register("late", {}, 0, told(home))
        assert set(await home.drain(queue="late")) == {b"a"}

    alive(test)

"""Acts on queues that meet each other, or what cannot be had at the moment: nothing is lost, made twice, or held up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from config.settings import QueueSettings
from queues.decrees import SERVING
from queues.rules import FULL_SYNC
from queues.serving import ServedQueue
from queues.wire import Ack
from repl.model.errors import IsthmusError, NotReady
from repl.model.keys import Key
from repl.model.requests import Isolation
from repl.routes import LEADER_WAIT_S
from tests.queues.home import Home
from tests.queues.test_queue_acts import alive, keys, told


def test_a_reference_that_cannot_be_read_waits_behind_the_others() -> None:
    """A partition without a leader, or a damaged object, must not hold up repairs of all others: what cannot be read
    is looked at again after a rest, behind what can, and goes once it can be read."""

    async def test(home: Home) -> None:
        home.put(b"a", b"b", b"x", b"z")
        await home.drain()
        read, asked, away = home.get_batch, 0, {b"x", b"z"}

        async def reading(
            keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, **_waits: bool
        ) -> list[bytes | IsthmusError | None]:
            nonlocal asked
            asked += 1
            found = await read(keys, isolation, room_bytes)
            return [NotReady("no leader") if k.key in away else one for k, one in zip(keys, found, strict=True)]

        home.get_batch = reading  # type: ignore[method-assign]
        assert await home.acts.push("q", keys(b"x", b"a", b"z", b"b"), FULL_SYNC, 0) == 4
        first = await home.fetch(wait_ms=500)
        assert [item[5] for item in first.items] == [b"a", b"b"]
        lower = home.served()[0].machine.lower[0]
        assert (lower.waiting_count, lower.away_count) == (2, 2)
        asked = 0
        acks = [Ack(first.batch, first.owner_version)]
        assert (await home.fetch(acks=acks, wait_ms=1_500)).items == []
        assert asked <= 3
        away.clear()
        assert [item[5] for item in (await home.fetch(wait_ms=5_000)).items] == [b"x", b"z"]

    alive(test)


def test_a_fetch_does_not_sit_where_a_partition_has_no_leader() -> None:
    """Of a lower priority's batch what can be read goes at once, and what comes in real time is not behind it."""

    async def test(home: Home) -> None:
        home.put(b"a", b"x")
        await home.drain()
        read = home.get_batch

        async def reading(
            keys: Sequence[Key], isolation: Isolation | None, room_bytes: int, *, waits: bool = True
        ) -> list[bytes | IsthmusError | None]:
            if waits:
                await asyncio.sleep(LEADER_WAIT_S)
            found = await read(keys, isolation, room_bytes)
            return [NotReady("no leader") if k.key == b"x" else one for k, one in zip(keys, found, strict=True)]

        home.get_batch = reading  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        for key in (b"a", b""):
            assert await home.acts.push("q", keys(*filter(None, (b"x", key))), FULL_SYNC, 0) > 0
            fetched = asyncio.create_task(home.fetch(wait_ms=5_000))
            await asyncio.sleep(0.05)
            if not key:
                home.put(b"new")
            reply = await fetched
            assert [item[5] for item in reply.items] == [key or b"new"]
            await home.fetch(acks=[Ack(reply.batch, reply.owner_version)], wait_ms=0)
        assert asyncio.get_running_loop().time() - began < LEADER_WAIT_S

    alive(test)


def test_definitions_are_followed_one_after_the_other() -> None:
    """A hint and an act tell of a new queue at once: it is made once, or what was pushed into the first would be gone
    with it. A queue that is delisted while it is still being made is none, and what is decided of one meanwhile is
    heard."""

    async def test(home: Home) -> None:
        made, gate, make, begin = [], asyncio.Event(), home.queues._made, home.queues.holding.begin

        def making(settings: QueueSettings) -> ServedQueue:
            made.append(settings.name)
            return make(settings)

        async def beginning(queue: ServedQueue) -> None:
            await gate.wait()
            await begin(queue)

        async def being_made(name: str) -> None:
            await home.until(lambda: name in made)
            await asyncio.sleep(0.05)

        home.queues._made = making  # type: ignore[method-assign]
        home.queues.holding.begin = beginning  # type: ignore[method-assign]
        registering = asyncio.create_task(home.acts.register("x", {}, 0, told(home)))
        await being_made("x")
        await home.queues.steering.suspend("x", SERVING, None, told(home))
        await asyncio.sleep(0.05)
        gate.set()
        await registering
        await home.until(lambda: home.queues.named("x").suspension is not None, seconds=2)
        assert made == ["x"]
        gate.clear()
        await home.queues.steering.register("y", {}, 0, told(home))
        await being_made("y")
        await home.queues.steering.delist("y", told(home))
        await asyncio.sleep(0.05)
        gate.set()
        await home.until(lambda: "y" not in home.queues.machines(), seconds=2)
        await asyncio.sleep(0.05)
        assert sorted(home.queues.machines()) == ["q", "x"]

    alive(test)

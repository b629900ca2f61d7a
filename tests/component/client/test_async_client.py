"""Features of the asyncio client alone: tasks, cancellation, coroutine functions, closing."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from isthmus.client import AsyncClient, BadRequest, Client, OutcomeUnknown
from tests.support.raw_server import RawServer
from tests.support.waiting import wait_until


async def test_counters_of_many_tasks_add_up(url: str) -> None:
    """Each update takes effect exactly once; the function may be a coroutine function."""

    async def add(count: int) -> int:
        await asyncio.sleep(0)
        return count + 1

    async with AsyncClient(url, connections=4) as client:

        async def count() -> None:
            for _ in range(10):
                await client.update("tasks", "count", add, default=0, timeout_s=60)

        await asyncio.gather(*(count() for _ in range(8)))
        assert (await client.get("tasks", "count")).value == 80


async def test_a_resolver_of_an_update_may_be_a_coroutine_function(url: str) -> None:
    """A resolver may await other requests for the value."""

    async def total(siblings: Any) -> int:
        await asyncio.sleep(0)
        return sum(each.value for each in siblings)

    async with AsyncClient(url) as client:
        for value in (1, 2, 3):
            await client.put("resolved", "k", value)
        assert (await client.update("resolved", "k", lambda value: value * 10, resolve=total)).value == 60


async def test_cancelled_calls_leave_no_connection_occupied(url: str) -> None:
    """Hundreds of calls, cancelled at random moments, waiting or under way: afterwards the client serves as many calls
    as before, and each key has the value of a complete write or none."""
    chance = random.Random(3)
    async with AsyncClient(url, connections=3) as client:
        for at in range(25):
            tasks = [
                asyncio.create_task(client.put("cancelled", f"{at}-{number}", {"n": number}, timeout_s=30))
                for number in range(12)
            ]
            await asyncio.sleep(chance.uniform(0, 0.02))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        async with asyncio.timeout(30):
            await asyncio.gather(*(client.put("cancelled", f"last-{at}", {"n": at}) for at in range(12)))
        read = await client.get_many("cancelled", [f"{at}-{number}" for at in range(25) for number in range(12)])
        assert all(found is None or found.value == {"n": index % 12} for index, found in enumerate(read))


async def test_a_call_is_bounded_by_a_timeout_of_the_caller(url: str) -> None:
    """asyncio.timeout ends it at once, also in a pause between attempts, or within a function of the caller."""
    async with AsyncClient("http://127.0.0.1:9", timeout_s=60) as lost:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await lost.get("b", "k")
    async with AsyncClient(url) as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await client.update("b", "k", lambda _: asyncio.sleep(60, 1))


async def test_a_listing_may_be_left_in_the_middle(url: str) -> None:
    """No connection stays open."""
    async with AsyncClient(url) as client:
        await client.put_many("left", {str(at): at for at in range(20)})
        async for _ in client.list_keys("left", page_size=2):
            break
        assert len([name async for name in client.list_keys("left")]) == 20


async def test_a_closed_client_refuses_calls(url: str) -> None:
    """Calls under way end with an error, and further ones are refused."""
    client = AsyncClient("http://127.0.0.1:9", timeout_s=30)
    waiting = asyncio.create_task(client.get("b", "k"))
    await asyncio.sleep(0.3)
    await client.close()
    await client.close()
    with pytest.raises(BadRequest, match="closed"):
        await waiting
    with pytest.raises(BadRequest, match="closed"):
        await client.get("b", "k")


def test_a_client_belongs_to_one_event_loop(url: str) -> None:
    """In another event loop each call and `close` say so, and the first loop goes on with it."""

    async def elsewhere(client: AsyncClient) -> None:
        for call in (client.get("loops", "k"), client.put("loops", "k", 2), client.close()):
            with pytest.raises(BadRequest, match="another event loop"):
                await call

    with asyncio.Runner() as first, asyncio.Runner() as second:
        client = AsyncClient(url)
        first.run(client.put("loops", "k", 1))
        second.run(elsewhere(client))
        assert first.run(client.get("loops", "k")).value == 1
        first.run(client.close())


async def test_a_write_that_is_under_way_when_the_client_is_closed() -> None:
    """The write was sent, its answer was lost, and the client is closed in the pause before a retry: the outcome is
    unknown, and the error has the id."""

    def hang_up(connection: socket.socket) -> None:
        server.read_request(connection)

    server = RawServer(hang_up)
    with server:
        client = AsyncClient(server.url, timeout_s=60)
        writing = asyncio.create_task(client.put("b", "k", 1, request_id="my-id"))
        while not server.heads:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        await client.close()
        with pytest.raises(OutcomeUnknown, match="closed") as caught:
            await writing
        assert caught.value.request_id == "my-id"


async def test_a_resolver_of_a_read_is_no_coroutine_function(url: str) -> None:
    """`value` cannot wait for it: the mistake is named, for each way to read."""

    async def total(siblings: Any) -> int:
        return sum(each.value for each in siblings)

    async with AsyncClient(url) as client:
        for value in (1, 2):
            await client.put("read", "k", value)
        (many,) = await client.get_many("read", ["k"], resolve=total)
        for found in (
            await client.get("read", "k", resolve=total),
            await client.find("read", "k", resolve=total),
            many,
        ):
            assert found is not None
            with pytest.raises(BadRequest, match="coroutine function"):
                _ = found.value


def test_closing_leaves_nothing(url: str) -> None:
    """Neither client has an open socket or file after its block, whatever calls it has made."""

    def open_files() -> int:
        gc.collect()
        return len(os.listdir(Path("/proc/self/fd")))

    async def run() -> None:
        async with AsyncClient(url) as client:
            await asyncio.gather(*(client.put("closed", str(at), at) for at in range(10)))

    asyncio.run(run())
    before = open_files()
    for _ in range(3):
        with Client(url) as client:
            client.put("closed", "k", 1)
            list(client.list_keys("closed"))
        asyncio.run(run())
    # The node's ends of the connections are files of this process, too.
    wait_until(lambda: open_files() <= before + 2, "the files are closed")

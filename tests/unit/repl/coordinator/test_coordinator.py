"""Rounds: writes wait while followers have not acknowledged the group before, and make the next one together."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.repl.coordinator.round_gate import ROUND_WAIT_S
from isthmus.repl.model.objects import Content
from isthmus.repl.model.requests import WriteRequest, WriteResult
from tests.support.coordinator_cluster import cluster, keys_of

pytestmark = pytest.mark.virtual_time


async def test_writes_during_a_round_make_one_batch_at_its_end() -> None:
    """Nothing is appended while the round is open; at its end all waiting writes are, in one batch per partition."""
    async with cluster(("n1", "n1", "n1", "n1")) as t:
        runtime, coordinator = t.runtimes["n1"], t.coordinators["n1"]
        runtime.rounds.begin()
        writes = []
        for key in keys_of(0, 3):
            writes.append(asyncio.create_task(coordinator.write(WriteRequest(key, Content(b"v")))))
            await asyncio.sleep(ROUND_WAIT_S / 10)
        assert runtime.appends == []
        runtime.rounds.end()
        results = await asyncio.gather(*writes)
        assert all(isinstance(result, WriteResult) for result in results)
        assert runtime.appends == [3]


async def test_a_round_holds_writes_for_a_bounded_time() -> None:
    """A follower that does not acknowledge delays writes of other partitions by ROUND_WAIT_S at most, each time."""
    async with cluster(("n1", "n1", "n1", "n1")) as t:
        runtime, coordinator = t.runtimes["n1"], t.coordinators["n1"]
        runtime.rounds.begin()
        for key in keys_of(0, 2):
            began_s = asyncio.get_running_loop().time()
            await coordinator.write(WriteRequest(key, Content(b"v")))
            took_s = asyncio.get_running_loop().time() - began_s
            assert 0.99 * ROUND_WAIT_S < took_s < 2 * ROUND_WAIT_S
        assert runtime.appends == [1, 1]
        runtime.rounds.end()


async def test_a_write_outside_of_a_round_is_not_delayed() -> None:
    """Without a round, or once it is over, a write is appended in its own turn of the event loop."""
    async with cluster(("n1", "n1", "n1", "n1")) as t:
        runtime, coordinator = t.runtimes["n1"], t.coordinators["n1"]
        runtime.rounds.begin()
        runtime.rounds.end()
        (key,) = keys_of(0, 1)
        began_s = asyncio.get_running_loop().time()
        await coordinator.write(WriteRequest(key, Content(b"v")))
        assert asyncio.get_running_loop().time() - began_s < ROUND_WAIT_S / 10

"""Lanes on a real socket: urgent messages arrive before waiting ones."""

from __future__ import annotations

import asyncio

import pytest

from isthmus.repl.transport.codec import decode_item
from isthmus.repl.transport.frames import FrameKind, Lane, WireFrame, unpacked
from isthmus.repl.transport.lanes import BATCH_BYTES
from tests.support.link_nodes import (
    LOOPS,
    MB,
    LinkCluster,
    RawConnection,
    ack,
    entries_of,
    eventually,
    forward,
    framed,
    run,
    run_cluster,
)

pytestmark = pytest.mark.parametrize("loop", LOOPS)

KERNEL_BYTES = 250_000
"""More than leaves for a kernel whose reader has a small buffer, twice what was measured: it cannot be overtaken."""


async def stuck(cluster: LinkCluster, lane_live: bool) -> tuple[object, RawConnection, float]:
    """A leader whose follower f reads nothing while 6 MB wait for it, and the number of bytes not yet given to the
    transport."""
    a = await cluster.node("a", dead_after_ms=60_000)
    follower = await cluster.follower(a, receive_buffer_bytes=4096)
    entries = entries_of(1, 200_000)
    for seq in range(30):
        assert a.links.send("f", 1, forward(seq, entries), live=lane_live)
    lane = "live" if lane_live else "catch_up"
    waiting = -1.0
    while waiting != a.number("isthmus_link_waiting_bytes", lane=lane):
        waiting = a.number("isthmus_link_waiting_bytes", lane=lane)
        await asyncio.sleep(0.1)
    assert waiting > 6 * MB - KERNEL_BYTES
    return a, follower, waiting


async def frames_until(follower: RawConnection, count: int) -> list[WireFrame]:
    """Frames as they come, until `count` messages have."""
    frames: list[WireFrame] = []
    while sum(len(unpacked(frame.body)) for frame in frames if frame.kind is FrameKind.MESSAGES) < count:
        frames.append(await follower.frame())
    return frames


def test_a_live_message_overtakes_what_waits_to_catch_up(loop: str) -> None:
    """With megabytes of catch-up queued for a slow reader, a live message arrives before all of it that had not left
    for the kernel."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, follower, waiting = await stuck(cluster, lane_live=False)
            assert a.links.send("f", 1, forward(1000))
            frames = await frames_until(follower, 31)
            places = [decode_item(item).message.seq for frame in frames for item in unpacked(frame.body)]
            assert [place for place in places if place != 1000] == list(range(30)), "each lane keeps its order"
            behind = sum(len(frame.body) for frame in frames[[f.lane for f in frames].index(Lane.LIVE) + 1 :])
            assert behind >= waiting

    run(scenario(), loop)


def test_a_ping_is_answered_while_large_live_messages_wait(loop: str) -> None:
    """An answer to a ping waits for at most one batch of live pieces, not for all of them."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            _, follower, waiting = await stuck(cluster, lane_live=True)
            await follower.send(framed(FrameKind.PING, b"12345678"))
            await asyncio.sleep(0.2)
            frames: list[WireFrame] = []
            while not frames or frames[-1].kind is not FrameKind.PONG:
                frames.append(await follower.frame())
            assert frames[-1].body == b"12345678"
            assert sum(len(frame.body) for frame in frames) <= 6 * MB - waiting + 2 * BATCH_BYTES + 200_000

    run(scenario(), loop)


def test_acknowledgements_pass_a_large_request(loop: str) -> None:
    """An AppendAck sent after a 20 MB request to the same node arrives before the request is whole."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            seen: list[int] = []

            async def answer(node: str, method: str, body: bytes) -> bytes:
                seen.append(len(a.messages))
                return b""

            a.answer = answer
            asked = asyncio.create_task(b.links.request("a", "large", bytes(20 * MB), 20_000))
            await asyncio.sleep(0)
            assert b.links.send("a", 1, ack(1))
            await asked
            assert seen == [1]

    run(scenario(), loop)


def test_catch_up_ends_beside_busy_live_traffic(loop: str) -> None:
    """Catch-up completes although live messages never cease."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair()
            entries = entries_of(1, 100_000)
            for seq in range(10):
                assert a.links.send("b", 2, forward(seq, entries), live=False)
            sent = 0

            def caught_up() -> int:
                return sum(1 for _, frame in b.frames for delivery in frame if delivery.partition == 2)

            while caught_up() < 10:
                while a.number("isthmus_link_waiting_bytes", lane="live") < MB:
                    assert a.links.send("b", 1, forward(sent, entries))
                    sent += 1
                assert sent < 2000
                await asyncio.sleep(0)
            assert sent > 20

    run(scenario(), loop)


@pytest.mark.timing
def test_catch_up_keeps_to_its_rate(loop: str) -> None:
    """300 KB at 500 KB a second take at least half a second, and live messages do not wait for them."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair(catch_up_rate_bytes=500_000)
            clock = asyncio.get_running_loop().time
            began_s = clock()
            for seq in range(3):
                assert a.links.send("b", 2, forward(seq, entries_of(1, 100_000)), live=False)
            await eventually(lambda: not a.links.send("b", 1, forward(9)) or b.messages)
            assert b.messages[0].seq == 9
            await eventually(lambda: sum(message.seq < 9 for message in b.messages) == 3)
            assert clock() - began_s > 0.4

    run(scenario(), loop)

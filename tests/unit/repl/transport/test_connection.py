"""Bytes that no node sends, over real connections: one connection is closed and nothing else happens."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import msgpack
import pytest

from isthmus.repl.transport import connection
from isthmus.repl.transport.frames import PIECE_BYTES_MAX, FrameKind, Lane, list_head
from isthmus.repl.transport.handshake import WIRE_VERSION, Handshake, decode_refusal, encode_handshake
from tests.support.link_nodes import LOOPS, MB, UUID, ack, eventually, forward, framed, run, run_cluster
from tests.unit.repl.transport.test_codec import bytes_of
from tests.unit.repl.transport.test_frames import header

GREETING = encode_handshake(Handshake(UUID, "c", "f", "a", MB))


def listed(*items: Any) -> bytes:
    packed: bytes = msgpack.packb(items)
    return packed


BEFORE: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "oversize": header(kind=1, flags=0, length=(1 << 32) - 1) + b"x" * MB,
    "longer than a greeting": header(kind=1, flags=0, length=2000),
    "unknown kind": header(kind=77),
    "checksum": header(kind=1, flags=0) + b"body",
    "no greeting": framed(FrameKind.PING, b"12345678"),
    "messages first": framed(FrameKind.MESSAGES, listed([1, 9, 1]), Lane.LIVE),
    "greeting in another lane": framed(FrameKind.GREETING, GREETING, Lane.LIVE),
    "no msgpack": framed(FrameKind.GREETING, b"\xc1"),
    "deep msgpack": framed(FrameKind.GREETING, b"\x91" * 1000 + b"\x90"),
    "wrong types": framed(FrameKind.GREETING, listed(WIRE_VERSION, 1, 2, 3, 4, 5)),
    "no name": framed(FrameKind.GREETING, encode_handshake(Handshake(UUID, "c", "", "a", MB))),
    "long name": framed(FrameKind.GREETING, encode_handshake(Handshake(UUID, "c", "f" * 65, "a", MB))),
    "strange name": framed(FrameKind.GREETING, encode_handshake(Handshake(UUID, "c", "f\n", "a", MB))),
    "short uuid": framed(FrameKind.GREETING, encode_handshake(Handshake(b"u", "c", "f", "a", MB))),
}

AFTER: dict[str, bytes] = {
    "oversize": header(length=(1 << 32) - 1) + b"x" * MB,
    "longer than a piece": header(length=PIECE_BYTES_MAX + 1),
    "unknown kind": header(kind=77),
    "second greeting": framed(FrameKind.GREETING, GREETING),
    "answers nobody asked for": framed(FrameKind.ANSWERS, listed([1, b""]), Lane.CALLS),
    "no msgpack": framed(FrameKind.MESSAGES, b"\xc1", Lane.LIVE),
    "deep msgpack": framed(FrameKind.MESSAGES, b"\x91" * 5000 + b"\x90", Lane.LIVE),
    "a map": framed(FrameKind.MESSAGES, b"\x81\x01\x01", Lane.LIVE),
    "an extension": framed(FrameKind.MESSAGES, b"\xc7\x04\x01abcd", Lane.LIVE),
    "unknown message": framed(FrameKind.MESSAGES, listed([1, 99, 1]), Lane.LIVE),
    "a leader's word": framed(FrameKind.MESSAGES, list_head(1) + bytes_of(1, forward(1)), Lane.LIVE),
    "a number for a request": framed(FrameKind.REQUESTS, listed(1), Lane.CALLS),
    "a request without a body": framed(FrameKind.REQUESTS, listed([1, "m", 1000]), Lane.CALLS),
    "a request for a year": framed(FrameKind.REQUESTS, listed([1, "m", 1 << 40, b""]), Lane.CALLS),
    "a long ping": framed(FrameKind.PING, b"123456789"),
    "a body in too many pieces": framed(FrameKind.MESSAGES, bytes(200_000), Lane.LIVE, more=True) * 6,
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("loop", LOOPS)
def test_hostile_bytes_cost_one_connection(loop: str, when: str) -> None:
    """Each such connection is closed and counted, before or after the handshake; two other nodes are not affected, and
    no hostile bytes are taken for a message."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a, b = await cluster.pair(message_limit_bytes=MB, dead_after_ms=60_000)
            for seq, (what, hostile) in enumerate((BEFORE if when == "before" else AFTER).items(), 1):
                raw_connection = await (cluster.raw_connection(a) if when == "before" else cluster.follower(a))
                try:
                    await raw_connection.send(hostile)
                    await raw_connection.closed()
                except ConnectionError:
                    pass
                assert sum(a.faults().values()) == seq, what
                assert b.links.send("a", 1, ack(seq))
                await eventually(lambda seq=seq: len(a.messages) == seq)
            assert a.messages == [ack(seq) for seq in range(1, len(a.messages) + 1)]
            assert {event for event in a.events if event[0] == "b"} == {("b", True)}
            assert b.events == [("a", True)]

    run(scenario(), loop)


def test_random_bytes_cost_one_connection() -> None:
    """Noise of any length, at any time, closes the connection or waits for more bytes."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a", dead_after_ms=200)
            chance = random.Random(7)
            for number in range(60):
                raw_connection = await (cluster.follower(a, f"f{number}") if number % 2 else cluster.raw_connection(a))
                with contextlib.suppress(ConnectionError):
                    await raw_connection.send(chance.randbytes(chance.randrange(1, 5000)))
            await eventually(lambda: sum(a.faults().values()) == 60)
            assert a.messages == []
            assert a.number("isthmus_links", dialled="there") == 0

    run(scenario())


def test_another_version_is_refused_by_its_number() -> None:
    """A greeting of a later version gets a refusal that names both versions, whatever its other fields."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a")
            raw_connection = await cluster.raw_connection(a)
            await raw_connection.send(framed(FrameKind.GREETING, listed(WIRE_VERSION + 1, {"new": "fields"})))
            refused = decode_refusal((await raw_connection.frame()).body)
            assert refused.reason == "version"
            assert f"version {WIRE_VERSION + 1}" in str(refused)
            await raw_connection.closed()

    run(scenario())


@pytest.mark.parametrize("drips", [True, False])
def test_a_handshake_has_a_deadline(drips: bool) -> None:
    """A peer that sends nothing, or one byte at a time, is disconnected after the limit of silence."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a", dead_after_ms=200)
            raw_connection = await cluster.raw_connection(a)
            hello = framed(FrameKind.GREETING, GREETING)
            closed = asyncio.create_task(raw_connection.closed())
            for at in range(len(hello) - 1):
                if closed.done():
                    break
                try:
                    await raw_connection.send(hello[at : at + 1] if drips else b"")
                except ConnectionError:
                    break
                await asyncio.sleep(0.02)
            await closed
            assert a.faults() == {"handshake-timeout": 1}

    run(scenario())


@pytest.mark.parametrize("in_pieces", [True, False])
def test_a_frame_that_has_begun_has_a_deadline(monkeypatch: pytest.MonkeyPatch, in_pieces: bool) -> None:
    """A frame whose bytes drip, or a body whose next piece does not come, ends a connection that is not silent."""
    monkeypatch.setattr(connection, "FRAME_TIMEOUT_MS", 300)

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a")
            follower = await cluster.follower(a)
            closed = asyncio.create_task(follower.closed())
            if in_pieces:
                await follower.send(framed(FrameKind.MESSAGES, b"\x91", Lane.LIVE, more=True))
                drip = framed(FrameKind.PING, b"12345678")
            else:
                await follower.send(header(length=100_000))
                drip = b"x"
            while not closed.done():
                try:
                    await follower.send(drip)
                except ConnectionError:
                    break
                await asyncio.sleep(0.02)
            await closed
            assert a.faults() == {"frame-timeout": 1}

    run(scenario())


def test_unread_ping_answers_are_bounded() -> None:
    """A peer that sends pings without end and never reads is disconnected."""

    async def scenario() -> None:
        async with run_cluster() as cluster:
            a = await cluster.node("a", dead_after_ms=60_000)
            follower = await cluster.follower(a, receive_buffer_bytes=4096)
            pings = framed(FrameKind.PING, b"12345678") * 1000
            try:
                for _ in range(100):
                    await follower.send(pings)
                    if a.faults():
                        break
            except ConnectionError:
                pass
            await eventually(lambda: a.faults() == {"not-reading": 1})

    run(scenario())
